"""The page of names is true: every test it cites is there, and every name of ours."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import oakleaf
from oakleaf.core.log_events import LogEvent
from oakleaf.stores.base import SessionDetail
from support.suggestions import suggested_commands

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PAGE = (ROOT / "docs/mapping.md").read_text()
CONFORMANCE = ROOT / "src/oakleaf/testing/stores"


def test_every_test_that_is_cited_is_there() -> None:
    cited = re.findall(r"`([\w/.]+)::(test_\w+)`", PAGE)
    assert len(cited) > 100
    for home, name in cited:
        files = (
            [*CONFORMANCE.glob("*.py")]
            if home == "conformance"
            else [(ROOT if home.startswith("plugins/") else TESTS) / home]
        )
        assert any(f"def {name}(" in file.read_text() for file in files), f"{home}::{name}"


HOMES: dict[str, type] = {
    "session": oakleaf.Session,
    "store": oakleaf.Store,
    "turn": oakleaf.Turn,
    "Entry": oakleaf.Entry,
    "Event": oakleaf.Event,
    "Leaf": oakleaf.Leaf,
    "Limits": oakleaf.Limits,
    "LogEvent": LogEvent,
    "Message": oakleaf.Message,
    "SessionDetail": SessionDetail,
    "SessionRow": oakleaf.SessionRow,
    "StoreBackend": oakleaf.StoreBackend,
    "ToolCall": oakleaf.ToolCall,
    "ToolContext": oakleaf.ToolContext,
    "ToolResult": oakleaf.ToolResult,
    "Totals": oakleaf.Totals,
    "Usage": oakleaf.Usage,
    "Workspace": oakleaf.Workspace,
}
"""The names that stand before a dot on the page, and what they are."""


def own_names() -> Iterator[str]:
    """Yield the code of the column that says what things are called here."""
    for line in PAGE.splitlines():
        if line.startswith("| ") and "::test_" in line:
            yield from re.findall(r"`([^`]+)`", line.split(" | ")[1])


def test_every_name_of_ours_exists() -> None:
    count = 0
    for code in own_names():
        for home, name in re.findall(r"\b(\w+)\.([a-z]\w*)", code):
            if home in HOMES:
                assert hasattr(HOMES[home], name), code
                count += 1
            elif home == "oakleaf" and hasattr(oakleaf, name):
                count += 1
            elif home in ("oakleaf", "oakleaf_postgres", "core", "log", "agent", "wire", "stores"):
                module = re.match(r"[\w.]*\w", code)
                assert module is not None
                assert find_name(module[0] if home.startswith("oakleaf") else f"oakleaf.{module[0]}"), code
                count += 1
        for home, arguments in re.findall(r"\b(\w+(?:\.\w+)?)\(([^)]*=[^)]*)\)", code):
            function = find_function(home)
            for name in re.findall(r"(\w+)=", arguments) if function is not None else ():
                assert name in inspect.signature(function).parameters or takes_options(function), code
                count += 1
    assert count > 60


def find_name(dotted: str) -> bool:
    """Whether `core.state.fold_state`, or a module, exists in the package."""
    home, _, name = dotted.rpartition(".")
    with suppress(ImportError):
        return bool(home) and hasattr(importlib.import_module(home), name)
    return importlib.util.find_spec(dotted) is not None


def find_function(name: str) -> Any:
    home, _, member = name.rpartition(".")
    if home in HOMES:
        return getattr(HOMES[home], member)
    found = getattr(oakleaf, name, None) if not home else None
    return found if callable(found) else None


def takes_options(function: Any) -> bool:
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def test_every_command_exists() -> None:
    assert sum(len(suggested_commands(code)) for code in own_names()) > 3


def test_every_line_of_a_table_cites_one() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| theirs")]
    assert [line for line in lines if "::test_" not in line] == []
