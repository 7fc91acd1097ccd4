"""A live session is written by the log alone: it decides, a store keeps. Checked over the source of Oakleaf itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from support.paths import SOURCES, relative


def calls_of(name: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a function or method of this name outside the stores, and the file it is in."""
    for path in (path for source in SOURCES for path in sorted(source.rglob("*.py"))):
        place = relative(path).as_posix()
        if place.startswith(("oakleaf/stores/", "oakleaf_postgres/store/", "oakleaf/testing/")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "attr", getattr(node.func, "id", None)) == name
            ):
                yield place, node


def test_only_the_log_commits_a_change() -> None:
    """Everybody else asks a log, by `log.commit(Request(…))`."""
    others = [
        f"{place}:{call.lineno} {ast.unparse(call.func)}"
        for place, call in calls_of("commit")
        if place != "oakleaf/log/log.py" and not ast.unparse(call.func).endswith("log.commit")
    ]
    assert others == []


def test_only_the_log_makes_a_change() -> None:
    assert {place for place, _ in calls_of("Change")} == {"oakleaf/log/log.py"}
