"""The trash as every caller has it: plans, and a purge that is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import oakleaf
from oakleaf import assistant, user
from oakleaf.errors import InvalidArgument, NotFound
from oakleaf.store import Store
from oakleaf.verbs.base import Caller, Step
from oakleaf.verbs.trash import Purge, Restore, Rm
from support.golden_text import check_golden

NOW = 1_000_000_100_000_000


class Impatient(Caller):
    """Presses Ctrl-C after the first step."""

    @contextmanager
    def progress(self, label: str, unit: str = "") -> Iterator[Step]:
        def interrupt(done: int, total: int | None, note: str = "") -> None:
            raise KeyboardInterrupt

        yield interrupt


def start(store: Store, name: str) -> None:
    session = store.start("support", session_id=name, title=f"Order {name[-1]}")
    session.append([user("Where is my parcel?"), assistant(f"canary of {name}")])


def test_a_plan_changes_nothing_and_names_what_goes_and_what_stays(store: Store) -> None:
    start(store, "ses_1")
    fork = store.session("ses_1").fork(title="Another try")
    store.delete("ses_1")
    purge = Purge(sessions=["ses_1"])
    planned = purge.plan(Caller(store))
    assert (planned.done, planned.purged, planned.surviving) == (False, ["ses_1"], [fork.session_id])
    check_golden("purge_plan", purge, planned, NOW)
    assert store.session("ses_1").row.trashed_at is not None
    assert purge(store).purged == ["ses_1"]
    with pytest.raises(NotFound):
        store.session("ses_1")


def test_rm_and_restore_take_each_session_once(store: Store) -> None:
    start(store, "ses_1")
    assert Rm(sessions=["ses_1", "Order 1"])(store).trashed == ["ses_1"]
    assert Restore(sessions=["ses_1", "Order 1"])(store).restored == ["ses_1"]


def test_an_age_is_refused_beside_a_session_and_forks_without_one(store: Store) -> None:
    for purge in (
        Purge(sessions=["ses_1"], trashed_for="1d"),
        Purge(sessions=["ses_1"], idle_for="1d"),
        Purge(with_forks=True),
    ):
        with pytest.raises(InvalidArgument):
            purge.plan(Caller(store))


def test_an_interrupted_purge_leaves_no_byte_of_what_it_deleted(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with oakleaf.open(path) as store:
        for name in ("ses_1", "ses_2", "ses_3"):
            start(store, name)
            store.delete(name)
        with pytest.raises(KeyboardInterrupt):
            Purge(sessions=["ses_1", "ses_2", "ses_3"]).run(Impatient(store))
        assert [row.session_id for row in store.all_sessions(trashed=True)] == ["ses_3", "ses_2"]
        data = path.read_bytes() + path.with_name("s.db-wal").read_bytes()
        assert (b"canary of ses_1" in data, b"canary of ses_2" in data) == (False, True)
