"""A tree as text: every entry once, the leaf marked once."""

from __future__ import annotations

from typing import Any

import pytest

from oakleaf import (
    Attachment,
    Note,
    Session,
    Settings,
    ToolCall,
    assistant,
    draw_tree,
    system,
    tool_result,
    user,
)
from oakleaf.core.entries import Endpoint, Entry, ToolDefinitions
from oakleaf.core.tree import Branch, Leaf
from oakleaf.core.tree_text import describe_entry, one_line, tree_lines
from oakleaf.store import Store


def test_a_tree_with_abandoned_branches(store: Store) -> None:
    session = store.start("a", [system("s")])
    session.append(
        [user("q"), assistant(ToolCall("c", "look", {"n": 1})), tool_result("c", "r"), assistant("one")]
    )
    session.rewind(to=4)
    session.append([assistant("two")])
    session.rewind(to=1)
    session.append([user("other\nline\0")])
    assert draw_tree(session) == "\n".join(
        [
            "│   1 system     s",
            "├╮ branch 1",
            "││   2 turn 1     q",
            "││   3 assistant  → look(n=1)",
            "││   4 tool       ← r",
            "│├╮ branch 2",
            "│││   5 assistant  two",
            "││   5 assistant  one",
            "●   2 turn 1     other line·   ◀ leaf",
        ]
    )


WORDS: dict[str, tuple[Any, str]] = {
    "model": ("m", "model m"),
    "prompt": ("Be kind.", "prompt: Be kind."),
    "prompt_patch": ("Be brief.", "prompt, added: Be brief."),
    "tools": (("look",), "only the tools look"),
    "limits": ({"turns": 3}, "limits: turns 3"),
    "options": (
        {"temperature": 0.2, "thinking": {"type": "enabled", "budget": 1024}, "seed": None},
        "temperature 0.2 · thinking type enabled, budget 1024 · no seed",
    ),
    "tool_definitions": (ToolDefinitions("0" * 64, ("look", "refund")), "tools: look, refund"),
    "windows": ({"m": 4096}, "m has a window of 4,096 tokens"),
    "effects": ("repeat", "effects repeat"),
    "max_messages": (7, "at most 7 messages"),
    "endpoints": (
        {"openai-chat": Endpoint("127.0.0.1:8000", "m", "max_tokens")},
        "openai-chat is served by 127.0.0.1:8000",
    ),
}


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_every_setting_is_told_in_words(name: str) -> None:
    value, words = WORDS[name]
    entry = Entry(1, 1, b"", 0, 0, Settings(**{name: value}), True, 0)
    assert describe_entry(entry) == words


def test_settings_of_one_entry_share_a_line(store: Store) -> None:
    session = store.start("a")
    session.append([Settings(model="m", options={"temperature": 0}, tools=(), max_messages=0)])
    assert "model m · temperature 0 · none of the tools · all messages" in draw_tree(session)


def test_turns_are_numbered_along_each_branch(store: Store) -> None:
    session = store.start("a", [system("s")])
    session.append([user("one"), assistant("1"), user("two"), assistant("2"), user("three")])
    session.rewind(to=3)
    session.append([user("other two")])
    lines = draw_tree(session).splitlines()
    assert [line.split("turn ")[1] for line in lines if "turn" in line] == [
        "1     one",
        "2     two",
        "3     three",
        "2     other two   ◀ leaf",
    ]


def test_an_empty_session_and_a_rewind_to_nothing_show_the_leaf(store: Store) -> None:
    session = store.start("a")
    assert draw_tree(session) == "● (empty)"
    session.append([user("q")])
    session.rewind(to=0)
    assert draw_tree(session).splitlines() == ["● (empty)", "│   1 turn 1     q"]


def test_hidden_notes_have_no_line_and_leave_the_mark_before(store: Store) -> None:
    session = store.start("a")
    checkpoint = Note({"checkpoint": 1}, hidden=True)
    session.append([checkpoint, user("q"), checkpoint, checkpoint, assistant("one"), checkpoint])
    session.rewind(to=4)
    session.append([checkpoint, assistant("two"), checkpoint])
    session.rewind(to=4)
    session.append([checkpoint])
    assert draw_tree(session).splitlines() == [
        "●   2 turn 1     q   ◀ leaf",
        "├╮ branch 1",
        "││   5 assistant  one",
        "├╮ branch 2",
        "││   6 assistant  two",
    ]
    session.rewind(to=1)
    assert draw_tree(session).startswith("● (empty)")
    assert [entry.payload for entry in session.path()] == [checkpoint]


def test_a_fork_shows_shared_entries(store: Store) -> None:
    session = store.start("a", [system("s")])
    session.append([user("q"), assistant("a")])
    fork = session.fork(at=2, prompt="p")
    fork.append([assistant("b")])
    assert [line.split()[1] for line in draw_tree(fork).splitlines()] == ["1", "2", "3", "4"]
    assert "settings" in draw_tree(fork)


def test_every_entry_is_drawn_once(store: Store) -> None:
    """What it shares, what it left behind, and the path: by whichever reading they came."""
    source = store.start("a", [system("s")])
    source.append([user("q"), assistant("a"), user("more"), assistant("b")])
    fork = source.fork(at=3)
    for turn in ("one", "two"):
        fork.append([user(turn), assistant(turn)])
        for _ in range(2):
            assert places(fork) == sorted({(e.branch, e.seq) for e in [*fork.path(), *fork.entries()]})
            fork.rewind(to=3)
    fork.rewind(to=1)
    assert len(places(fork)) == 5, "of what it shares, what the path runs through"
    assert len(places(source)) == 5


def places(session: Session) -> list[tuple[int, int]]:
    return [(entry.branch, entry.seq) for entry in session.log.all_entries()]


def test_every_kind_is_told_in_one_line(store: Store) -> None:
    session = store.start("a")
    session.append(
        [
            user("x " * 300, Attachment(b"1", "image/png")),
            assistant("a " * 300),
            user("q"),
            assistant("b"),
            Note({"k": 1}),
        ]
    )
    session.compact("short")
    session.uncompact()
    session.rewind(to=4, summary="gave up")
    tree = draw_tree(session, width=60)
    assert tree.count("◀ leaf") == 1
    assert all(len(line) <= 60 + len("   ◀ leaf") for line in tree.splitlines())
    assert len([line for line in tree.splitlines() if "╮" not in line]) == len(session.entries())


def test_thousands_of_nested_branches_are_drawn() -> None:
    deep = range(1, 3_001)
    branches = [Branch(n, "s", n - 1 or None, max(0, n - 1), n + 1) for n in deep]
    entries = [Entry(n, seq, b"", 1, 0, user(f"of {n}"), False, 0) for n in deep for seq in (n, n + 1)]
    lines = [line.text for line in tree_lines(entries, branches, Leaf(1, 1))]
    assert len([line for line in lines if " of " in line]) == len(entries)
    assert sum("├╮ branch" in line for line in lines) == len(branches) - 1
    assert any("⋯2999⋯" in line for line in lines)
    assert max(map(len, lines)) <= 60


def test_a_line_keeps_joiners_and_marks_hidden_characters() -> None:
    """A family was four people with dots between them, and Persian words fell apart."""
    family, word = "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}", "می\u200cخواهم"
    assert one_line(f"{family} {word}") == f"{family} {word}"
    assert one_line("a\u202eb\x00c\u200bd") == "a·b·c·d"
