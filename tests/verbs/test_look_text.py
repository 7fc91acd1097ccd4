"""What people read of sessions: show, log, tree, tail, context, diff."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import Message, Note, Reasoning, Text, ToolCall, Usage, assistant, tool_result, user
from oakleaf.core.messages import ProviderBlock
from oakleaf.errors import InvalidArgument
from oakleaf.store import Store
from oakleaf.stores.sqlite.store import SqliteStore
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.context import Context
from oakleaf.verbs.diff import Diff
from oakleaf.verbs.log import Log
from oakleaf.verbs.screen import Screen
from oakleaf.verbs.show import Show
from oakleaf.verbs.tail import Tail
from oakleaf.verbs.tree import Tree
from support.cli_store import answers, look_up, refund
from support.golden_text import check_golden
from support.runtime import deterministic_runtime

NOW = 1_000_000_000_000_000 + 3 * 3_600_000_000
LONG = "The parcel left the port of Bergen on Monday and has not been seen by anybody since then. "


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Store]:
    """A case of three turns with an abandoned branch, a label, a fork, and results of every outcome."""
    with Store(SqliteStore(tmp_path / "s.db", synchronous="normal"), deterministic_runtime()) as store:
        case = store.start("support", [oakleaf.system("Help.")], session_id="ses_case", title="Order 41")
        case.send_sync("Where is order 41?", model=answers(), tools=[look_up, refund])
        case.send_sync("Thank you!", model=answers(), tools=[look_up, refund])
        case.rewind(8)
        case.set(options={"temperature": 0}, model="anthropic:claude-sonnet-4-5")
        with case.turn(f"{LONG * 3}\n\n    indented code\n日本語のとても長いお問い合わせです。" * 2) as turn:
            calls = [ToolCall(f"x{n}", name, {"order": 41}) for n, name in enumerate(("pay", "mail", "ask"))]
            turn.answer(assistant(Reasoning("Hm."), *calls), usage=Usage(12_000, 300), model="m")
            case.append(
                [
                    tool_result("x0", outcome="unknown"),
                    tool_result("x1", "no", outcome="denied"),
                    tool_result("x2", "\n".join(map(str, range(30))), error=True),
                ]
            )
            turn.answer(assistant("Done. \x1b[31mred\x1b[0m"), usage=Usage(13_000, 30), model="m")
        case.label(3, "the question")
        case.note({"seen": True})
        case.fork(at=8, title="Another try")
        yield store


def check(name: str, verb: Verb, store: Store) -> None:
    check_golden(name, verb, verb.run(Caller(store)), NOW)


def test_a_transcript_numbers_its_turns(shop: Store) -> None:
    check("show", Show("ses_case"), shop)


def test_a_transcript_with_all_entries_and_whole_results(shop: Store) -> None:
    check("show_trace", Show("ses_case", trace=True, full=True), shop)


def test_a_window_says_how_to_read_what_is_before(shop: Store) -> None:
    check("show_window", Show("ses_case", last=2), shop)


def test_an_entry_says_its_turn_and_its_cost(shop: Store) -> None:
    verb = Show("ses_case@11")
    shown = verb(shop)
    entry = replace(shown.entries[0], entry_id="9871e914")  # it follows from every byte before
    check_golden("show_entry", verb, replace(shown, entries=[entry]), NOW)


def test_an_open_call_says_what_became_of_it(shop: Store) -> None:
    session = shop.start("shop", session_id="ses_open")
    turn = session.turn("Pay order 9.").__enter__()
    turn.started(turn.answer(assistant(ToolCall("c", "pay", {"order": 9}))).calls[0])
    session.enqueue("And order 10?")
    session.interrupt()
    check("show_open", Show("ses_open"), shop)


def test_a_log_numbers_its_turns(shop: Store) -> None:
    check("log", Log("ses_case"), shop)


def test_a_log_of_all_branches_names_each_place(shop: Store) -> None:
    check("log_all", Log("ses_case", all=True, last=6), shop)


def test_events_are_listed(shop: Store) -> None:
    check("log_events", Log("ses_case", events=True, last=5), shop)


def test_a_tree_shows_branches_labels_and_forks(shop: Store) -> None:
    check("tree", Tree("ses_case"), shop)


def test_a_page_of_a_tree_says_how_to_go_on(shop: Store) -> None:
    check("tree_page", Tree("ses_case", limit=3), shop)


def test_a_page_of_the_journal_is_a_table(shop: Store) -> None:
    check("tail", Tail("ses_case", last=4), shop)
    check("tail_page", Tail("ses_case", from_=2, last=2), shop)


def test_a_context_is_the_request_in_words(shop: Store) -> None:
    check("context", Context("ses_case@8"), shop)
    check("context_explain", Context("ses_case", explain=True), shop)


@pytest.mark.parametrize("provider", ["anthropic", "openai-chat", "openai", "gemini"])
def test_a_context_reads_alike_in_every_providers_format(shop: Store, provider: str) -> None:
    verb = Context("ses_case@8", provider=provider)  # type: ignore[arg-type]
    lines = [line for line in verb.lines(verb.run(Caller(shop)), Screen()) if line.strip()]
    for text in ("Help.", "look_up: Look an order up.", "Where is order 41?", '{"order":41}', "refunded 41"):
        assert sum(text in line for line in lines) >= 1, (text, lines)


def test_a_comparison_is_a_table_of_turns(shop: Store) -> None:
    check("diff", Diff("ses_case", "Another try"), shop)
    check("diff_same", Diff("ses_case@8", "Another try"), shop)
    check("diff_page", Diff("ses_case", "ses_case@2", limit=1), shop)


def test_a_comparison_can_be_markdown(shop: Store) -> None:
    check("diff_markdown", Diff("ses_case@4", "ses_case", markdown=True), shop)


def test_a_block_of_a_provider_is_shown_in_its_words(shop: Store) -> None:
    block = ProviderBlock("image", "image: https://example.com/a.png")
    shop.start(session_id="ses_block").append([Message("user", (block, Text("What is it?")))])
    verb = Show("ses_block@1")
    assert any("[image: https://example.com/a.png]" in str(one) for one in verb.lines(verb(shop), Screen()))


def test_an_unknown_outcome_is_never_called_failed(shop: Store) -> None:
    for verb in (Show("ses_case"), Show("ses_case", full=True), Log("ses_case"), Tree("ses_case")):
        text = "\n".join(Screen().print(verb.lines(verb(shop), Screen())))
        assert "unknown" in text
        assert "failed" not in text


def test_long_paths_number_no_turn_in_a_window(shop: Store) -> None:
    session = shop.start(session_id="ses_long")
    for n in range(1_001):
        session.append([user(f"q{n}"), assistant("a")])
    assert [one.number for one in Show("ses_long", last=2)(shop).entries] == [None, None]
    assert [one.number for one in Log("ses_long", last=2)(shop).entries] == [None, None]
    assert Show("ses_long")(shop).entries[-2].number == 1_001


def test_a_piece_of_an_entry_needs_an_entry(shop: Store) -> None:
    with pytest.raises(InvalidArgument):
        Show("ses_case", offset=3)(shop)


def test_a_note_has_no_turn(shop: Store) -> None:
    shop.session("ses_case").append([Note({"n": 1})])
    assert Show(f"ses_case@{shop.session('ses_case').leaf.seq}")(shop).turn_number is None
