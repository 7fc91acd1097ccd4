"""No answer to another agent does more work in a long session than in a short one, unless it returns more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oakleaf_mcp.archive import Archive
from support.long_sessions import MIDDLE, check_steps, stores

__all__ = ["stores"]  # a fixture

ANSWERS: dict[str, Callable[[Archive], str]] = {
    "show": lambda archive: archive.show("ses_long", first=MIDDLE, limit=3),
    "show the end": lambda archive: archive.show("ses_long", first=10**6),
    "show an entry": lambda archive: archive.show(f"ses_long@{MIDDLE}"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_to_another_agent_does_more_work(
    name: str, stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_steps(lambda store: ANSWERS[name](Archive(store)), stores, monkeypatch)
