"""The verbs that move and name: fork, rewind, undo, redo, compact, uncompact, title, tag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import oakleaf as library
from oakleaf.core.facts import Titled
from support.terminal import oakleaf


def row(store_path: Path, name: str = "ses_case") -> dict[str, Any]:
    report: dict[str, Any] = oakleaf("show", name, "--json", store=store_path).json["session"]
    return report


class TestFork:
    def test_a_fork_carries_its_overrides_and_leaves_its_source_alone(
        self, store_path: Path, tmp_path: Path
    ) -> None:
        before = row(store_path)
        (tmp_path / "strict.txt").write_text("Never refund.")
        report = oakleaf(
            "fork", "ses_case@8", "--prompt", f"@{tmp_path}/strict.txt", "--model", "m",
            "--title", "strict", "--json", store=store_path,
        ).json  # fmt: skip
        with library.open(store_path) as store:
            fork = store.session(report["session"]["id"])
            assert fork.path()[-1].payload == library.Settings("m", "Never refund.")
            assert fork.row.parent_seq == 8
        assert row(store_path) == before

    def test_a_cut_inside_a_batch_moves_and_says_so(self, store_path: Path) -> None:
        done = oakleaf("fork", "ses_case@4", store=store_path)
        assert done.code == 0
        assert "used entry 3 instead" in done.err
        assert done.out.startswith("ses_")


class TestWhatIsLeftBehind:
    @pytest.mark.parametrize(
        "command", [("fork", "ses_case@2"), ("rewind", "ses_case@2"), ("undo", "ses_case")]
    )
    def test_every_move_says_which_unsafe_calls_it_leaves(
        self, store_path: Path, command: tuple[str, ...]
    ) -> None:
        oakleaf("undo", "ses_case", store=store_path)
        (left,) = oakleaf(*command, "--json", store=store_path).json["left_behind"]
        assert (left["name"], left["session"]) == ("refund", "ses_case")

    def test_people_read_it_beside_the_result(self, store_path: Path) -> None:
        done = oakleaf("rewind", "ses_case@2", store=store_path)
        assert "left behind, and not undone: 1 call of unsafe tools" in done.err
        assert "ses_case@" in done.err
        assert done.out.startswith("ses_case is at")
        assert "left behind" not in oakleaf("redo", "ses_case", store=store_path).err


class TestRewind:
    def test_rewind_undo_and_redo_move_the_leaf_and_lose_nothing(self, store_path: Path) -> None:
        assert oakleaf("rewind", "ses_case@8", "--json", store=store_path).json["leaf"] == "1:8"
        assert oakleaf("redo", "ses_case", "--json", store=store_path).json["leaf"] == "1:10"
        assert oakleaf("undo", "ses_case", "--json", store=store_path).json["leaf"] == "1:8"
        assert oakleaf("undo", "ses_case", "--json", store=store_path).json["leaf"] == "1:2"
        assert len(oakleaf("log", "ses_case", "--all", store=store_path).out.splitlines()) == 10

    def test_rewind_wants_a_place(self, store_path: Path) -> None:
        done = oakleaf("rewind", "ses_case", store=store_path)
        assert done.code == 2
        assert "ses_case@7" in done.err

    def test_nothing_to_redo_is_said(self, store_path: Path) -> None:
        done = oakleaf("redo", "ses_case", store=store_path)
        assert done.code == 2
        assert "nothing was rewound" in done.err

    def test_a_session_that_is_driven_is_not_moved(self, store_path: Path) -> None:
        import os
        import socket

        with library.open(store_path) as store:
            log = store.session("ses_case").log
            until = log.runtime.now() + 60_000_000
            store.backend.lease(
                "ses_case", f"{socket.gethostname()}:{os.getpid()}#x", until, log.runtime.now()
            )
            log.record(Titled(), row={"status": "running"})
            done = oakleaf("undo", "ses_case", store=store_path)
        assert done.code == 3
        assert "oakleaf tail -f ses_case" in done.err


class TestCompact:
    def test_a_summary_stands_for_the_past_until_it_is_cancelled(self, store_path: Path) -> None:
        before = oakleaf("context", "ses_case", "--json", store=store_path).out
        assert (
            oakleaf("compact", "ses_case", "--summary", "Order 41 was refunded.", store=store_path).code == 0
        )
        compacted = oakleaf("context", "ses_case", "--json", store=store_path).out
        assert "Order 41 was refunded." in compacted
        assert "Let me look" not in compacted
        assert oakleaf("uncompact", "ses_case", store=store_path).code == 0
        assert oakleaf("context", "ses_case", "--json", store=store_path).out == before

    def test_without_a_summary_one_is_made_without_a_model(self, store_path: Path) -> None:
        report = oakleaf("compact", "ses_case", "--json", store=store_path).json["compaction"]
        assert "Where is order 41?" in report["summary"]

    def test_an_empty_summary_is_refused(self, store_path: Path) -> None:
        assert oakleaf("compact", "ses_case", "--summary", " ", store=store_path).code == 1
        assert oakleaf("uncompact", "ses_case", store=store_path).code == 2


class TestNames:
    def test_title_and_tags_are_set_shown_and_removed(self, store_path: Path) -> None:
        assert oakleaf("title", "ses_case", "Lost parcel", store=store_path).code == 0
        assert oakleaf("title", "ses_case", store=store_path).out == "Lost parcel\n"
        assert oakleaf("title", "ses_case", "--json", store=store_path).json["title"] == "Lost parcel"
        assert oakleaf("tag", "ses_case", "a=1", "team=", "--json", store=store_path).json["tags"] == {
            "a": "1"
        }
        assert oakleaf("tag", "ses_case", store=store_path).out == "a=1\n"
        assert oakleaf("tag", "ses_case", "odd", store=store_path).code == 2

    def test_a_label_names_a_place_of_the_tree_and_can_be_taken_away(self, store_path: Path) -> None:
        assert oakleaf("label", "ses_case@3", "the", "good", "one", store=store_path).code == 0
        (line,) = oakleaf("label", "ses_case", store=store_path).out.splitlines()
        assert line.endswith(":3  the good one")
        tree = oakleaf("tree", "ses_case", store=store_path).out.splitlines()
        assert [line.endswith("⚑ the good one") for line in tree if " 3 " in line] == [True]
        rows = oakleaf("tree", "ses_case", "--json", store=store_path).json["tree"]
        assert [row["label"] for row in rows if row["label"]] == ["the good one"]
        assert oakleaf("label", "ses_case@3", "", store=store_path).code == 0
        assert oakleaf("label", "ses_case", "--json", store=store_path).json["labels"] == {}
        assert oakleaf("label", "ses_case@999", "x", store=store_path).code == 2

    def test_a_message_about_an_entry_names_the_session_to_look_at(self, store_path: Path) -> None:
        for command in (("show", "ses_case@999"), ("show", "ses_case@0"), ("rewind", "ses_case@999")):
            assert "oakleaf log ses_case lists" in oakleaf(*command, store=store_path).err
        (store_path.parent / "one.json").write_text('["One."]')
        words = ("run", "x", "--model", f"scripted:{store_path.parent}/one.json", "--copy", "ses_case")
        copied = oakleaf(*words, "--to-point", "999", store=store_path)
        assert "oakleaf log ses_case lists" in copied.err
        assert "oakleaf log ses_case --all lists" in oakleaf("redo", "ses_case", store=store_path).err
