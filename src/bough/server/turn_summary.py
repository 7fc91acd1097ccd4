"""Outlines: turns in a line each, and entries in a line each, so that nobody loads a session to find his way.

Knows how to sum a turn up from its entries. Reads a bounded number of them, however long the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.entries import Compaction, Entry
from ..core.messages import Message
from ..core.usage import Call, total
from ..session import Session
from .json_views import to_json
from .path_window import read_entries
from .truncate import SizedPage, one_line

STEP = 200
MOST_LOOKED_AT = 4_000
Calls = Mapping[tuple[int, int], Sequence[Call]]
_FINISHES = {"cancelled": "cancelled", "interrupted": "interrupted", "error": "error"}


def turns_before(
    session: Session, end: int, limit: int, calls: Calls
) -> tuple[list[dict[str, Any]], int | None]:
    """The turns that end at or before `end`, newest first, and where the next page begins."""
    page, turn, looked = SizedPage(), list[Entry](), 0
    while end > 0:
        begin = max(1, end - STEP + 1)
        for entry in reversed(read_entries(session, begin, end)):
            looked += 1
            turn.append(entry)
            if entry.turn == entry.seq:
                if not page.add(turn_summary(turn[::-1], calls)):
                    return page.items, entry.seq + len(turn)
                turn = []
                if len(page.items) == limit:
                    return page.items, entry.seq if entry.seq > 1 else None
            elif looked >= MOST_LOOKED_AT:
                return _ended_early(session, page, turn[::-1], calls)
        end = begin - 1
    return page.items, None


def _ended_early(
    session: Session, page: SizedPage, turn: Sequence[Entry], calls: Calls
) -> tuple[list[dict[str, Any]], int | None]:
    """A turn longer than one request looks at: its input, and what was seen of its end."""
    start = turn[0].turn
    if not start:
        return page.items, turn[0].seq
    told = turn_summary([*read_entries(session, start, start), *turn], calls)
    if not page.add({**told, "is_partial": True}):
        return page.items, turn[-1].seq + 1
    return page.items, start if start > 1 else None


def turn_summary(turn: Sequence[Entry], calls: Calls) -> dict[str, Any]:
    """A turn, from its input to its end."""
    own = [entry for entry in turn if entry.turn == turn[0].turn]
    answers = [entry for entry in own if entry.role == "assistant"]
    made = [call for entry in turn for call in calls.get((entry.branch, entry.seq), ())]
    said = next((e.message.text for e in reversed(answers) if e.message and e.message.text.strip()), "")
    return {
        "turn": turn[0].turn,
        "last": turn[-1].seq,
        "input": one_line(turn[0].message.text if turn[0].message else ""),
        "answer": one_line(said),
        "status": turn_status(own),
        "steps": len(answers),
        "at": turn[0].at,
        "model": answers[-1].model if answers else None,
        "tools": _tools(own),
        "usage": to_json(total(made)),
        "flags": ["compacted"] if any(isinstance(e.payload, Compaction) for e in turn) else [],
    }


def turn_status(turn: Sequence[Entry]) -> str:
    """How it ended, if it did."""
    last = next((entry for entry in reversed(turn) if entry.message is not None), None)
    if last is None or last.message is None:
        return "open"
    if last.role == "assistant" and not last.message.calls:
        return _FINISHES.get(last.finish or "", "answered")
    ends = last.role == "tool" and any(r.ends_turn for e in turn if e.message for r in e.message.results)
    return "ended_by_tool" if ends else "open"


def _tools(turn: Sequence[Entry]) -> list[dict[str, Any]]:
    messages = [entry.message for entry in turn if entry.message is not None]
    names = {call.id: call.name for message in messages for call in message.calls}
    found: dict[str, dict[str, Any]] = {}
    for message in messages:
        for call in message.calls:
            told = found.setdefault(call.name, {"name": call.name, "calls": 0, "errors": 0, "outcomes": []})
            told["calls"] += 1
        _add_results(message, names, found)
    return list(found.values())[:50]


def _add_results(message: Message, names: Mapping[str, str], found: dict[str, dict[str, Any]]) -> None:
    for result in message.results:
        told = found.get(names.get(result.call_id, ""))
        if told is None:
            continue
        told["errors"] += result.error
        if result.outcome != "done" and result.outcome not in told["outcomes"]:
            told["outcomes"].append(result.outcome)
