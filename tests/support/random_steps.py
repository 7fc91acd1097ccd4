"""Random steps of a session: turns, open turns, compactions, settings, notes and rewinds; and counted reads of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

import oakleaf
from oakleaf import Note, Session, ToolCall, assistant, system, tool_result, user
from oakleaf.core.entries import Settings

READS = (
    *("path", "journal", "facts_of", "control_entries", "entries"),
    *("calls", "inherited_calls", "calls_between", "latest_answer_call"),
)


class Reads:
    """Counts the entries, facts and calls that a backend returns."""

    def __init__(self, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: Counter[str] = Counter()
        for name in READS:
            monkeypatch.setattr(backend, name, self._counted(name, getattr(backend, name)))

    def _counted(self, name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = read(*args, **kwargs)
            rows = result.entries if name == "path" else result
            self.rows[name] += len(rows) if isinstance(rows, list) else int(rows is not None)
            return result

        return counted


def random_seeds(random: Random) -> list[Any]:
    return [system("Be brief.")] * random.randrange(3) + [
        user("seed"),
        assistant("seeded"),
    ] * random.randrange(2)


def _turn(session: Session, random: Random) -> None:
    steps = [
        item
        for n in range(random.randrange(4))
        for item in (
            assistant(ToolCall(f"c{n}", "look", {"order": n})),
            tool_result(f"c{n}", "lost " * random.randrange(1, 60)),
        )
    ]
    session.append([user("Where is it? " * random.randrange(1, 9)), *steps, assistant("Lost.")])


def _open_turn(session: Session, random: Random) -> None:
    session.append([user("And this?"), assistant(ToolCall("c", "look", {})), tool_result("c", "lost")])


def _compact(session: Session, random: Random) -> None:
    first = session.log.place(random.randrange(session.leaf.seq + 1)).at + 1
    turn = session.log.cursor.turn
    session.append(
        [
            oakleaf.Compaction(
                "Things were lost.",
                first,
                replaces_earlier=random.random() < 0.5,
                kept_input=turn if 0 < turn < first else 0,
            )
        ]
    )


def _uncompact(session: Session, random: Random) -> None:
    if any(entry.kind == "compaction" for entry in session.path()):
        with suppress(oakleaf.OakleafError):  # it was cancelled
            session.uncompact()


def _settings(session: Session, random: Random) -> None:
    session.append(
        [random.choice([Settings(prompt="Be kind."), Settings(prompt_patch="More."), Settings(model="m")])]
    )


def _note(session: Session, random: Random) -> None:
    session.append([Note({"n": random.random()})])


def _rewind(session: Session, random: Random) -> None:
    session.rewind(random.randrange(session.leaf.seq + 1), summary=random.choice([None, "It was lost."]))


STEPS = [_turn, _turn, _open_turn, _compact, _uncompact, _settings, _note, _rewind]
