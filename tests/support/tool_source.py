"""A source of tools that needs no plugin: it counts what a run does with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import oakleaf
from oakleaf import Tool
from oakleaf.core.redact import Redactor


@oakleaf.tool(effect="read")
def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing in {place}"


class Shop:
    """A source that counts what is done with it."""

    def __init__(self, *tools: Any, error: BaseException | None = None, is_kept: bool = True) -> None:
        self.tools, self.error, self.is_kept = tools or (look,), error, is_kept
        self.restarts: Sequence[str] = ()
        self.keys: list[object] = []
        self.steps: list[str] = []
        self.once: list[Shop] = []

    def __str__(self) -> str:
        return "the shop"

    def for_one_turn(self) -> Shop:
        self.once.append(Shop(*self.tools, is_kept=False))
        return self.once[-1]

    def open(self, redactor: Redactor, session_key: object) -> Shop:
        self.keys.append(session_key)
        return self

    async def connect(self) -> Sequence[Tool]:
        self.steps.append("connect")
        if self.error is not None:
            raise self.error
        return self.tools

    async def close(self) -> None:
        self.steps.append("close")
