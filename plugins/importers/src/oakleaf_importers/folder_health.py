"""Check another tool's session folder: JSON Lines files, one per session. Reads only.

Recognises tool calls and results of common tools (`tool_use` / `tool_result`, `function_call` / `function_call_output`,
`tool_calls` / `tool_call_id`). A provider refuses a history with a call without its result, a result without its call, or a
line that is cut in half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from oakleaf.stores.base import Finding

MAX_NAMES = 3


class FileSummary(Struct):
    """The counts of one file."""

    lines: int = 0
    broken: list[int] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    ids: Counter[str] = field(default_factory=Counter)
    parents: set[str] = field(default_factory=set)
    ends_with_newline: bool = True


def folder_health(folder: str, on_file: Callable[[], None] = lambda: None) -> list[Finding]:
    """Check every `.jsonl` file below the folder line by line."""
    files = sorted(Path(folder).rglob("*.jsonl"))
    if not files:
        return [Finding("problem", f"{folder} has no .jsonl file; name a tool's session folder or a store")]
    findings: list[Finding] = []
    lines = 0
    for path in files:
        on_file()
        try:
            summary = scan_file(path)
        except OSError as error:
            findings.append(Finding("problem", f"{path.name} cannot be read: {error.strerror}"))
            continue
        lines += summary.lines
        findings += [Finding("problem", f"{path.name}: {what}") for what in file_problems(summary)]
    return [Finding("ok", f"{len(files):,} files, {lines:,} lines"), *findings]


def scan_file(path: Path) -> FileSummary:
    summary = FileSummary()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            summary.lines = number
            summary.ends_with_newline = line.endswith(b"\n")
            if not line.strip():
                continue
            try:
                _count_line(summary, msgspec.json.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                summary.broken.append(number)
    return summary


def _count_line(summary: FileSummary, line: Any) -> None:
    if isinstance(line, dict):
        if isinstance(line.get("uuid"), str):
            summary.ids[line["uuid"]] += 1
        if isinstance(line.get("parentUuid"), str):
            summary.parents.add(line["parentUuid"])
    for kind, name in _calls(line):
        (summary.calls if kind == "call" else summary.results)[name] += 1


def _calls(value: Any) -> Iterator[tuple[str, str]]:
    """Yield calls and results anywhere in a line, by id."""
    if isinstance(value, list):
        for one in value:
            yield from _calls(one)
    if not isinstance(value, dict):
        return
    match value:
        case {"type": "tool_use", "id": str(name)}:
            yield "call", name
        case {"type": "tool_result", "tool_use_id": str(name)}:
            yield "result", name
        case {"type": "function_call" | "custom_tool_call" | "local_shell_call", "call_id": str(name)}:
            yield "call", name
        case {"type": "function_call_output" | "custom_tool_call_output", "call_id": str(name)}:
            yield "result", name
        case {"role": "tool", "tool_call_id": str(name)}:
            yield "result", name
        case {"role": "assistant", "tool_calls": list(calls)}:
            yield from (
                ("call", one["id"])
                for one in calls
                if isinstance(one, dict) and isinstance(one.get("id"), str)
            )
    for inner in value.values():
        if isinstance(inner, dict | list):
            yield from _calls(inner)


def file_problems(summary: FileSummary) -> Iterator[str]:
    if summary.broken:
        cut = not summary.ends_with_newline and summary.broken == [summary.lines]
        yield (
            "its last line is cut in half"
            if cut
            else f"lines that are not JSON: {_list_names(map(str, summary.broken))}"
        )
    unanswered = [name for name in summary.calls if name not in summary.results]
    if unanswered:
        yield f"{len(unanswered)} tool calls without a result ({_list_names(unanswered)}): a provider refuses this history"
    orphans = [name for name in summary.results if name not in summary.calls]
    if orphans:
        yield f"{len(orphans)} results without a call ({_list_names(orphans)}): a provider refuses this history"
    twice = [name for name, count in summary.results.items() if count > 1]
    if twice:
        yield f"{len(twice)} calls answered more than once ({_list_names(twice)})"
    missing = [name for name in summary.parents if name not in summary.ids]
    if summary.ids and missing:
        yield f"{len(missing)} entries have a parent that is not in the file ({_list_names(missing)})"


def _list_names(names: Any) -> str:
    listed = list(names)
    return ", ".join(listed[:MAX_NAMES]) + (
        f" and {len(listed) - MAX_NAMES} more" if len(listed) > MAX_NAMES else ""
    )
