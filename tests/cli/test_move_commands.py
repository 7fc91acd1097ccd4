"""The verbs that move and name: fork, rewind, undo, redo, compact, uncompact, title, tag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bough as library
from support.cli_store import write_store
from support.terminal import bough


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    return write_store(tmp_path / "s.db")


def row(shelf: Path, name: str = "ses_case") -> dict[str, Any]:
    found: dict[str, Any] = bough("show", name, "--json", store=shelf).json["session"]
    return found


class TestFork:
    def test_a_fork_carries_its_overrides_and_leaves_its_source_alone(
        self, shelf: Path, tmp_path: Path
    ) -> None:
        before = row(shelf)
        (tmp_path / "strict.txt").write_text("Never refund.")
        made = bough(
            "fork", "ses_case@7", "--prompt", f"@{tmp_path}/strict.txt", "--model", "m", "--tools", "look_up, x",
            "--title", "strict", "--json", store=shelf,
        ).json  # fmt: skip
        with library.open(shelf) as store:
            fork = store.session(made["session"]["id"])
            assert fork.path()[-1].payload == library.Settings("m", "Never refund.", None, ("look_up", "x"))
            assert fork.row.parent_seq == 7
        assert row(shelf) == before

    def test_a_cut_inside_a_batch_moves_and_says_so(self, shelf: Path) -> None:
        done = bough("fork", "ses_case@3", store=shelf)
        assert done.code == 0
        assert "used entry 2 instead" in done.err
        assert done.out.startswith("ses_")


class TestRewind:
    def test_rewind_undo_and_redo_move_the_leaf_and_lose_nothing(self, shelf: Path) -> None:
        assert bough("rewind", "ses_case@7", "--json", store=shelf).json["leaf"]["seq"] == 7
        assert bough("redo", "ses_case", "--json", store=shelf).json["leaf"]["seq"] == 9
        assert bough("undo", "ses_case", "--json", store=shelf).json["leaf"]["seq"] == 7
        assert bough("undo", "ses_case", "--json", store=shelf).json["leaf"]["seq"] == 1
        assert len(bough("log", "ses_case", "--all", store=shelf).out.splitlines()) == 9

    def test_rewind_wants_a_place(self, shelf: Path) -> None:
        done = bough("rewind", "ses_case", store=shelf)
        assert done.code == 2
        assert "ses_case@7" in done.err

    def test_nothing_to_redo_is_said(self, shelf: Path) -> None:
        done = bough("redo", "ses_case", store=shelf)
        assert done.code == 2
        assert "nothing was rewound" in done.err

    def test_a_session_that_is_driven_is_not_moved(self, shelf: Path) -> None:
        import os
        import socket

        with library.open(shelf) as store:
            log = store.session("ses_case").log
            until = log.runtime.now() + 60_000_000
            store.backend.lease(
                "ses_case", f"{socket.gethostname()}:{os.getpid()}#x", until, log.runtime.now()
            )
            log.record("turn", row={"status": "running"})
            done = bough("undo", "ses_case", store=shelf)
        assert done.code == 3
        assert "bough tail -f ses_case" in done.err


class TestCompact:
    def test_a_summary_stands_for_the_past_until_it_is_cancelled(self, shelf: Path) -> None:
        before = bough("context", "ses_case", "--json", store=shelf).out
        assert bough("compact", "ses_case", "--summary", "Order 41 was refunded.", store=shelf).code == 0
        compacted = bough("context", "ses_case", "--json", store=shelf).out
        assert "Order 41 was refunded." in compacted
        assert "Let me look" not in compacted
        assert bough("uncompact", "ses_case", store=shelf).code == 0
        assert bough("context", "ses_case", "--json", store=shelf).out == before

    def test_without_a_summary_one_is_made_without_a_model(self, shelf: Path) -> None:
        made = bough("compact", "ses_case", "--json", store=shelf).json["compaction"]
        assert "Where is order 41?" in made["summary"]

    def test_an_empty_summary_is_refused(self, shelf: Path) -> None:
        assert bough("compact", "ses_case", "--summary", " ", store=shelf).code == 1
        assert bough("uncompact", "ses_case", store=shelf).code == 2


class TestNames:
    def test_title_and_tags_are_set_shown_and_removed(self, shelf: Path) -> None:
        assert bough("title", "ses_case", "Lost parcel", store=shelf).code == 0
        assert bough("title", "ses_case", store=shelf).out == "Lost parcel\n"
        assert bough("title", "ses_case", "--json", store=shelf).json["title"] == "Lost parcel"
        assert bough("tag", "ses_case", "a=1", "team=", "--json", store=shelf).json["tags"] == {"a": "1"}
        assert bough("tag", "ses_case", store=shelf).out == "a=1\n"
        assert bough("tag", "ses_case", "odd", store=shelf).code == 2

    def test_a_label_names_a_place_of_the_tree_and_can_be_taken_away(self, shelf: Path) -> None:
        assert bough("label", "ses_case@3", "the", "good", "one", store=shelf).code == 0
        (line,) = bough("label", "ses_case", store=shelf).out.splitlines()
        assert line.endswith(":3  the good one")
        tree = bough("tree", "ses_case", store=shelf).out.splitlines()
        assert [line.endswith("⚑ the good one") for line in tree if " 3 " in line] == [True]
        assert list(bough("tree", "ses_case", "--json", store=shelf).json["labels"].values()) == [
            "the good one"
        ]
        assert bough("label", "ses_case@3", "", store=shelf).code == 0
        assert bough("label", "ses_case", "--json", store=shelf).json["labels"] == {}
        assert bough("label", "ses_case@999", "x", store=shelf).code == 2
