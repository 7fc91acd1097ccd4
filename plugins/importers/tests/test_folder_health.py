"""Other tools' session folders, looked at and never touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakleaf_importers.folder_health import file_problems, folder_health, scan_file
from support.terminal import oakleaf


def write_lines(place: Path, *lines: Any, end: str = "\n") -> Path:
    place.write_text("\n".join(json.dumps(line) for line in lines) + end)
    return place


def tool_use_line(name: str) -> dict[str, Any]:
    content = [{"type": "text", "text": "x"}, {"type": "tool_use", "id": name, "name": "Bash", "input": {}}]
    return {"type": "assistant", "uuid": f"u-{name}", "message": {"role": "assistant", "content": content}}


def tool_result_line(name: str) -> dict[str, Any]:
    content = [{"type": "tool_result", "tool_use_id": name, "content": "done"}]
    return {"type": "user", "uuid": f"r-{name}", "message": {"role": "user", "content": content}}


class TestFaults:
    @pytest.mark.parametrize(
        ("lines", "problems"),
        [
            ([tool_use_line("a"), tool_result_line("a")], []),
            (
                [tool_use_line("a"), tool_result_line("a"), tool_use_line("b")],
                ["1 tool calls without a result (b)"],
            ),
            ([tool_result_line("a")], ["1 results without a call (a)"]),
            (
                [tool_use_line("a"), tool_result_line("a"), tool_result_line("a")],
                ["1 calls answered more than once (a)"],
            ),
            (
                [{**tool_use_line("a"), "parentUuid": "gone"}, tool_result_line("a")],
                ["1 entries have a parent"],
            ),
            (
                [{"payload": {"type": "function_call", "call_id": "c", "name": "shell"}}],
                ["1 tool calls without"],
            ),
            (
                [
                    {"payload": {"type": "function_call", "call_id": "c", "name": "shell"}},
                    {"payload": {"type": "function_call_output", "call_id": "c", "output": "x"}},
                ],
                [],
            ),
            ([{"role": "assistant", "tool_calls": [{"id": "k"}]}, {"role": "tool", "tool_call_id": "k"}], []),
        ],
    )
    def test_what_makes_a_provider_refuse_is_named(
        self, tmp_path: Path, lines: list[Any], problems: list[str]
    ) -> None:
        reports = list(file_problems(scan_file(write_lines(tmp_path / "s.jsonl", *lines))))
        assert len(reports) == len(problems)
        assert all(one.startswith(start) for one, start in zip(reports, problems, strict=True))

    def test_a_line_cut_in_half_is_named(self, tmp_path: Path) -> None:
        place = tmp_path / "s.jsonl"
        place.write_bytes(
            json.dumps(tool_use_line("a")).encode()
            + b"\n"
            + json.dumps(tool_result_line("a")).encode()
            + b'\n{"type": "us'
        )
        assert list(file_problems(scan_file(place))) == ["its last line is cut in half"]

    @given(
        st.lists(
            st.recursive(
                st.none() | st.text() | st.integers(),
                lambda v: st.lists(v) | st.dictionaries(st.text(), v),
                max_leaves=20,
            )
        )
    )
    def test_any_lines_can_be_looked_at(
        self, tmp_path_factory: pytest.TempPathFactory, lines: list[Any]
    ) -> None:
        place = write_lines(tmp_path_factory.mktemp("any") / "s.jsonl", *lines)
        assert scan_file(place).broken == []

    def test_bytes_of_any_kind_are_looked_at_too(self, tmp_path: Path) -> None:
        (tmp_path / "s.jsonl").write_bytes(bytes(range(256)) * 40 + b"[" * 100_000)
        assert scan_file(tmp_path / "s.jsonl").broken


class TestFolder:
    def test_the_doctor_looks_at_a_folder_and_touches_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "project").mkdir()
        place = write_lines(tmp_path / "project" / "one.jsonl", tool_use_line("a"))
        before = place.read_bytes()
        done = oakleaf("doctor", tmp_path, store=None)
        assert done.code == 1
        assert "one.jsonl: 1 tool calls without a result (a)" in done.out
        write_lines(place, tool_use_line("a"), tool_result_line("a"))
        assert oakleaf("doctor", tmp_path, "--json", store=None).json["healthy"] is True
        assert place.read_bytes() != before
        assert sorted(file.name for file in tmp_path.rglob("*")) == ["one.jsonl", "project"]

    def test_a_folder_without_sessions_is_said(self, tmp_path: Path) -> None:
        assert folder_health(str(tmp_path))[0].level == "problem"
