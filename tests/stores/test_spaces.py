"""One store serves the tenants of many spaces on the same connections, and keeps them apart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from oakleaf import Store, Usage, assistant, user
from oakleaf.errors import InvalidArgument, InvalidText, NotFound, WrongOwner, WrongSpace
from oakleaf.verbs.erase import Erase
from oakleaf.verbs.sessions import Ls


class TestInSpace:
    def test_spaces_are_kept_apart(self, store: Store) -> None:
        acme, globex = store.in_space("acme"), store.in_space("globex")
        session = acme.start(session_id="ses_a", owner="ann")
        session.append([user("secret of acme"), assistant("a")])
        for stranger in (store, globex, globex.in_space("default")):
            with pytest.raises(NotFound):
                stranger.session("ses_a")
            assert len(stranger.search("secret")) == len(stranger.sessions()) == 0
        assert [hit.session_id for hit in acme.search("secret")] == ["ses_a"]
        assert globex.in_space("acme").session("ses_a").row.space == "acme"

    def test_two_tenants_of_one_conversation_id_are_kept_apart(self, any_store: Store) -> None:
        acme, globex = any_store.in_space("acme"), any_store.in_space("globex")
        names: dict[Store, str] = {}
        for tenant, text in ((acme, "secret of acme"), (globex, "secret of globex")):
            session = tenant.latest_or_start("order-41", "support", owner="ann", tags={"team": text})
            with session.turn(text) as turn:
                turn.answer(assistant("Hello"), usage=Usage(10, 5), model=f"model of {text}")
            names[tenant] = session.session_id
        assert len(set(names.values())) == 2
        for tenant, other in ((acme, globex), (globex, acme)):
            own = names[tenant]
            latest = tenant.latest("order-41")
            assert latest is not None
            assert latest.session_id == tenant.latest_or_start("order-41", owner="ann").session_id == own
            assert [row.session_id for row in tenant.sessions(conversation_id="order-41")] == [own]
            assert [view.id for view in Ls("conversation:order-41")(tenant).sessions] == [own]
            assert tenant.hydrate(own).row.session_id == own
            with pytest.raises(NotFound):
                tenant.hydrate(names[other])
            assert {hit.session_id for hit in tenant.search("secret")} == {own}
            for by in ("model", "owner", "tag:team", "session"):
                assert [sums.calls for sums in tenant.usage(by).live.values()] == [1]
        erased = Erase(owner="ann")(acme)
        assert erased is not None
        assert (acme.latest("order-41"), [len(one.sessions()) for one in (acme, globex)]) == (None, [0, 1])
        kept = globex.hydrate(names[globex])
        assert [message.text for message in kept.messages if message.role == "user"] == ["secret of globex"]
        assert list(globex.verify()) == []

    def test_an_owner_sees_what_belongs_to_the_owner(self, store: Store) -> None:
        acme = store.in_space("acme")
        acme.start(session_id="ses_ann", owner="ann")
        acme.start(session_id="ses_bob", owner="bob")
        ann = store.in_space("acme", owner="ann")
        assert [row.session_id for row in ann.sessions()] == ["ses_ann"]
        with pytest.raises(NotFound):
            ann.session("ses_bob")
        assert ann.start().row.owner == "ann"

    @pytest.mark.attack
    def test_a_store_of_an_owner_stays_with_the_owner(self, store: Store) -> None:
        ann = store.in_space("acme", owner="ann")
        with pytest.raises(WrongOwner):
            ann.in_space("acme", owner="bob")
        with pytest.raises(WrongSpace):
            ann.in_space("globex")
        assert ann.in_space("acme").backend.owner == "ann"

    def test_closing_one_leaves_the_others_open(self, store: Store) -> None:
        with store.in_space("acme") as acme:
            acme.start(session_id="ses_a")
        assert len(store.in_space("acme").sessions()) == 1
        store.start()

    @pytest.mark.parametrize("space", ["", "a\0b", "\ud800"])
    def test_a_space_without_a_name_is_refused(self, space: str, store: Store) -> None:
        with pytest.raises((InvalidArgument, InvalidText)):
            store.in_space(space)

    def test_sessions_are_copied_between_spaces(self, store: Store) -> None:
        session = store.start(session_id="ses_a")
        session.append([user("q"), assistant("a")])
        copied = store.copy(session, store.in_space("acme"), new_id=True)
        assert [row.session_id for row in store.in_space("acme").sessions()] == [copied.session_id]
        assert copied.verify() == []


@pytest.mark.attack
class TestOneConversationId:
    """A conversation id comes from elsewhere, such as a phone number: two tenants may have the same."""

    def test_two_spaces_have_two_conversations(self, store: Store) -> None:
        tenants = [store.in_space(name) for name in ("acme", "globex")]
        with ThreadPoolExecutor(8) as pool:
            rows = list(pool.map(lambda n: tenants[n % 2].latest_or_start("con").row, range(16)))
        found = {(row.space, row.session_id) for row in rows}
        assert sorted(space for space, _ in found) == ["acme", "globex"]
        for tenant in tenants:
            (row,) = tenant.sessions(conversation_id="con")
            latest = tenant.latest("con")
            assert latest is not None
            assert latest.session_id == row.session_id
            assert (row.space, row.session_id) in found

    def test_two_owners_have_two_conversations(self, store: Store) -> None:
        tenants = [store.in_space("acme", owner=name) for name in ("ann", "bob")]
        with ThreadPoolExecutor(8) as pool:
            rows = list(pool.map(lambda n: tenants[n % 2].latest_or_start("con").row, range(16)))
        assert sorted({(row.owner or "", row.session_id) for row in rows}) == sorted(
            (row.owner or "", row.session_id)
            for tenant in tenants
            for row in tenant.sessions(conversation_id="con")
        )
        assert len({row.session_id for row in rows}) == 2

    def test_a_key_of_one_space_starts_nothing_in_another(self, store: Store) -> None:
        acme, globex = store.in_space("acme"), store.in_space("globex")
        first, other = acme.start(key="mail-1"), globex.start(key="mail-1")
        assert first.session_id != other.session_id
        assert acme.start(key="mail-1").session_id == first.session_id
