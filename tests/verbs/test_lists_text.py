"""What people read of lists, searches and sums."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import oakleaf
from oakleaf import Note, Usage, assistant, user
from oakleaf.store import Store
from oakleaf.stores.sqlite.store import SqliteStore
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.screen import Screen
from oakleaf.verbs.search import Search
from oakleaf.verbs.sessions import Ls
from oakleaf.verbs.usage import Usage as UsageVerb
from support.cli_store import answers, look_up, refund
from support.golden_text import check_golden
from support.runtime import deterministic_runtime

NOW = 1_000_000_000_000_000 + 3 * 3_600_000_000


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Store]:
    """A shop's sessions: a case, its fork and its task, one that failed, and one without a title."""
    with Store(SqliteStore(tmp_path / "s.db", synchronous="normal"), deterministic_runtime()) as store:
        case = store.start("support", session_id="ses_case", title="Order 41", tags={"team": "blue"})
        case.send_sync("Where is order 41?", model=answers(), tools=[look_up, refund])
        case.fork(at=2, title="Order 41, with another and much stricter prompt for angry customers")
        store.start_task(case, "research", session_id="ses_task", title="Look the parcel up")
        paid = store.start("billing", session_id="ses_paid", model="anthropic:claude-sonnet-4-5")
        with paid.turn("Is order 42 paid? \x1b[31mred\x1b[0m") as turn:
            turn.answer(assistant("It is."), usage=Usage(12_000, 300, 9_000), model="claude-sonnet-4-5")
        failed = store.start("billing", session_id="ses_failed", title="Order 43")
        with pytest.raises(RuntimeError), failed.turn("Pay."):
            raise RuntimeError("no money")
        yield store


def check(name: str, verb: Verb, store: Store) -> None:
    check_golden(name, verb, verb.run(Caller(store)), NOW)


def test_sessions_are_listed_last_active_first(shop: Store) -> None:
    check("ls", Ls(query="is:all"), shop)


def test_a_page_says_how_to_go_on(shop: Store) -> None:
    check("ls_page", Ls(query='agent:support "Order 41"', limit=1), shop)


def test_a_status_has_a_colour(shop: Store) -> None:
    verb = Ls(query="status:failed")
    (table,) = verb.lines(verb.run(Caller(shop)), Screen(80, NOW))
    assert not isinstance(table, str)
    assert table.rows[0][2] == "\x1b[31mfailed\x1b[0m"


def test_an_empty_list_explains_itself(shop: Store) -> None:
    check("ls_no_match", Ls(query="agent:nobody"), shop)
    check("ls_empty_trash", Ls(query="is:trashed"), shop)


def test_an_empty_list_names_the_space() -> None:
    with oakleaf.open("memory:", space="blue") as store:
        check("ls_empty_space", Ls(), store)
        store.delete(store.start().session_id)
        check("ls_all_trashed", Ls(), store)


def test_hits_are_listed_below_their_sessions(shop: Store) -> None:
    shop.session("ses_paid").append([user("Is order 42 lost at sea?"), Note({"seen": "order 42"})])
    check("search", Search(query="order", limit=4), shop)


def test_a_search_without_a_hit_says_what_to_try(shop: Store) -> None:
    check("search_nothing", Search(query="whale"), shop)


def test_an_index_that_is_behind_is_told(shop: Store) -> None:
    class Busy(Caller):
        def index(self) -> str | None:
            return "another process writes"

    verb = Search(query="order")
    check_golden("search_behind", verb, verb.run(Busy(shop)), NOW)


@pytest.mark.parametrize("by", [None, "day", "model", "agent", "session"])
def test_usage_is_summed(shop: Store, by: str | None) -> None:
    check(f"usage_{by or 'all'}", UsageVerb(by=by), shop)  # type: ignore[arg-type]


def test_the_storage_of_a_session_is_told_in_bytes(shop: Store) -> None:
    check("usage_storage", UsageVerb("ses_case", by="storage"), shop)


@pytest.fixture
def replayed(shop: Store) -> Store:
    """The shop after its case was replayed twice by another model."""
    for _ in range(2):
        shop.session("ses_case").replay_sync(model=answers(), tools=[look_up, refund], mode="dry")
    return shop


def test_replays_are_left_out_of_a_search_and_marked(replayed: Store) -> None:
    check("search_without_replays", Search(query="order 41"), replayed)
    check("search_with_replays", Search(query="order 41 is:all", limit=6), replayed)


def test_the_spending_of_replays_is_left_out_and_told(replayed: Store) -> None:
    check("usage_without_replays", UsageVerb(by="model"), replayed)
    check("usage_replays", UsageVerb(by="model", replays=True), replayed)
    check("usage_bucket", UsageVerb(by="bucket"), replayed)
