"""examples/compare: the same agent on three libraries, killed inside a refund and run again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "examples" / "compare"


@pytest.mark.parametrize(
    ("program", "count"),
    [("with_langgraph.py", 2), ("with_openai_agents.py", 2), ("with_oakleaf.py", 1)],
)
def test_the_money_is_paid(program: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    import compare

    assert compare.refunds_of(program) == count
    assert compare.PROGRAMS.keys() == {"LangGraph", "OpenAI Agents", "Oakleaf"}


@pytest.fixture(autouse=True)
def forget_the_modules() -> object:
    yield
    for name in ("compare", "bank"):
        sys.modules.pop(name, None)
