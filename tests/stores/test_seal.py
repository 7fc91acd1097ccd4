"""A seal finds what was altered or removed since, and lets sessions go on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import Note, Request, ScriptedModel, Seal, Store, assistant, user
from oakleaf.errors import SealRefused
from oakleaf.log.binding import bind
from oakleaf.log.lease import Lease
from support.sealed_store import fill

KEY = b"0123456789abcdef0123456789abcdef"


def test_a_store_that_nobody_touched_is_as_sealed(store: Store) -> None:
    fill(store)
    check = store.check_seal(store.seal())
    assert (check.sealed, check.grown, check.problems) == (3, 0, [])


def test_sessions_that_went_on_are_as_sealed_before(store: Store) -> None:
    session = fill(store)
    sealed = store.seal()
    session.append([user("and now?"), assistant("wait")])
    session.rewind(to=1)
    session.append([user("from the start"), assistant("yes")])
    session.fork(at=1)
    bind(session.log, "billing", rebind=True)
    session.title("Refund, again")
    session.tag(team="red")
    check = store.check_seal(sealed)
    assert (check.grown, check.problems) == (1, [])


def test_a_call_in_flight_is_not_covered_until_it_has_an_outcome(store: Store) -> None:
    session = store.start(session_id="ses_1")
    seals: list[Seal] = []

    def answer(request: Request) -> str:
        seals.append(store.seal())
        return "a"

    session.send_sync("q", model=ScriptedModel(answer))
    assert len(seals[0].heads[0].extent.open_calls) == 1
    assert store.check_seal(seals[0]).problems == []


def test_leases_notes_and_queued_inputs_change_nothing_sealed(store: Store) -> None:
    session = fill(store)
    sealed = store.seal()
    session.append([Note({"seen": True})])
    session.enqueue("more")
    Lease(session.log).take(session.row)
    assert store.check_seal(sealed).problems == []


def test_the_trash_is_no_removal_and_a_purge_is_one(store: Store) -> None:
    fill(store)
    sealed = store.seal()
    store.delete("ses_sealed")
    assert store.check_seal(sealed).problems == []
    gone = set(store.purge("ses_sealed").sessions)
    check = store.check_seal(sealed)
    assert {problem.session_id for problem in check.problems} == gone == set(check.removed)
    assert "removed since the seal" in str(check.problems[0])
    receipted = store.check_seal(sealed, purged=gone)
    assert (set(receipted.purged), receipted.problems) == (gone, [])


def test_a_fork_is_as_sealed_when_its_parent_is_purged(store: Store) -> None:
    fill(store)
    sealed = store.seal()
    store.delete("ses_sealed")
    store.purge("ses_sealed")
    assert all(p.what == "it was removed since the seal" for p in store.check_seal(sealed).problems)


def test_a_seal_of_another_store_is_refused(store: Store) -> None:
    fill(store)
    with oakleaf.open("memory:") as other:
        other.start()
        sealed = other.seal()
    with pytest.raises(SealRefused, match="another store"):
        store.check_seal(sealed)


def test_a_seal_of_another_space_is_refused(store: Store) -> None:
    with store.in_space("acme") as acme:
        acme.start()
        sealed = acme.seal()
        assert acme.check_seal(sealed).problems == []
    with pytest.raises(SealRefused, match="space acme"):
        store.check_seal(sealed)


def test_an_owner_alone_cannot_compare_the_seal_of_all(store: Store) -> None:
    fill(store)
    sealed = store.seal()
    ann = store.in_space(store.backend.space, owner="ann")
    with pytest.raises(SealRefused, match="all owners"):
        ann.check_seal(sealed)
    assert len(ann.seal().heads) == 2


def test_one_session_is_compared_alone(store: Store) -> None:
    fill(store)
    sealed = store.seal()
    assert store.check_seal(sealed, session_id="ses_task").sealed == 1
    later = store.start()
    with pytest.raises(SealRefused, match="no session"):
        store.check_seal(sealed, session_id=later.session_id)


class TestASignature:
    @pytest.fixture
    def sealed(self, store: Store) -> Seal:
        fill(store)
        return store.seal().sign(KEY)

    def test_is_checked_with_its_key(self, sealed: Seal) -> None:
        sealed.check(KEY)

    def test_of_another_key_is_refused(self, sealed: Seal) -> None:
        with pytest.raises(SealRefused, match="not of this key"):
            sealed.check(KEY[::-1])

    def test_of_an_altered_seal_is_refused(self, sealed: Seal) -> None:
        with pytest.raises(SealRefused, match="altered"):
            replace(sealed, made_at=sealed.made_at + 1).check(KEY)
        with pytest.raises(SealRefused, match="altered"):
            replace(sealed, heads=sealed.heads[1:]).check(KEY)

    def test_that_was_taken_away_is_missed(self, sealed: Seal) -> None:
        with pytest.raises(SealRefused, match="removed"):
            replace(sealed, signature=None).check(KEY)

    def test_is_not_passed_over_without_a_key(self, sealed: Seal) -> None:
        with pytest.raises(SealRefused, match="is signed"):
            sealed.check(None)

    def test_wants_a_key_of_some_length(self, sealed: Seal) -> None:
        with pytest.raises(SealRefused, match="5 bytes"):
            sealed.sign(b"short")
