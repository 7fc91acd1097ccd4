"""A tree as text: every entry once, the leaf marked once."""

from __future__ import annotations

from bough import Attachment, Note, ToolCall, assistant, system, tool_result, user
from conftest import Sessions


def test_a_tree_with_what_was_left_behind(store: Sessions) -> None:
    session = store.start("a", [system("s")])
    session.append(
        [user("q"), assistant(ToolCall("c", "look", {"n": 1})), tool_result("c", "r"), assistant("one")]
    )
    session.rewind(to=4)
    session.append([assistant("two")])
    session.rewind(to=1)
    session.append([user("other\nline\0")])
    assert session.tree() == "\n".join(
        [
            "│   1 system     s",
            "├╮",
            "││   2 user       q",
            "││   3 assistant  → look(n=1)",
            "││   4 tool       ← r",
            "│├╮",
            "│││   5 assistant  two",
            "││   5 assistant  one",
            "●   2 user       other line·   ◀ leaf",
        ]
    )


def test_an_empty_session_and_a_rewind_to_nothing_show_the_leaf(store: Sessions) -> None:
    session = store.start("a")
    assert session.tree() == "● (empty)"
    session.append([user("q")])
    session.rewind(to=0)
    assert session.tree().splitlines() == ["● (empty)", "│   1 user       q"]


def test_a_fork_shows_what_it_shares(store: Sessions) -> None:
    session = store.start("a", [system("s")])
    session.append([user("q"), assistant("a")])
    fork = session.fork(at=2, prompt="p")
    fork.append([assistant("b")])
    assert [line.split()[1] for line in fork.tree().splitlines()] == ["1", "2", "3", "4"]
    assert "settings" in fork.tree()


def test_every_kind_is_told_in_one_line(store: Sessions) -> None:
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
    told = session.tree(width=60)
    assert told.count("◀ leaf") == 1
    assert all(len(line) <= 60 + len("   ◀ leaf") for line in told.splitlines())
    assert len([line for line in told.splitlines() if "╮" not in line]) == len(session.entries())
