"""Summaries of turns, for an outline of a session that does not load all of it.

Reads a bounded number of entries per request, however long the session is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oakleaf.core.entries import INTERRUPTED, PARTIAL, Compaction, Entry
from oakleaf.core.tree_text import one_line
from oakleaf.core.turns import ENDED_BY_TOOL
from oakleaf.core.usage import total
from oakleaf.session import Session
from oakleaf_server.context import BranchTree
from oakleaf_server.failed_calls import failed_calls
from oakleaf_server.json_views import entry_failures, to_json
from oakleaf_server.path_window import CallsByEntry, calls_by_entry, read_entries
from oakleaf_server.truncate import SizedPage

STEP = 200
MAX_SCANNED = 4_000
_FINISHES = {
    "cancelled": "cancelled",
    PARTIAL: "interrupted",
    INTERRUPTED: "open",
    "error": "error",
    ENDED_BY_TOOL: "ended_by_tool",
}


def turns_before(
    session: Session, tree: BranchTree, end: int, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
    """Return the turns up to `end`, newest first, and the start of the next page."""
    page, turn, scanned, failures = SizedPage(), list[Entry](), 0, set[int]()
    calls = CallsByEntry()
    while end > 0:
        begin = max(1, end - STEP + 1)
        calls |= calls_by_entry(session, begin, end)
        failures.update(failure["seq"] for failure in failed_calls(session, tree, begin, end))
        for entry in reversed(read_entries(session, begin, end)):
            scanned += 1
            turn.append(entry)
            if entry.turn == entry.seq:
                if not page.add(turn_summary(turn[::-1], calls, failures)):
                    return page.items, entry.seq + len(turn)
                turn = []
                if len(page.items) == limit:
                    return page.items, entry.seq if entry.seq > 1 else None
            elif scanned >= MAX_SCANNED:
                return _partial_turn(session, page, turn[::-1], calls, failures)
        end = begin - 1
    return page.items, None


def _partial_turn(
    session: Session, page: SizedPage, turn: Sequence[Entry], calls: CallsByEntry, failures: set[int]
) -> tuple[list[dict[str, Any]], int | None]:
    """Summarize a turn longer than a request's scan from the input and the scanned end."""
    start = turn[0].turn
    if not start:
        return page.items, turn[0].seq
    summary = turn_summary([*read_entries(session, start, start), *turn], calls, failures)
    if not page.add({**summary, "is_partial": True}):
        return page.items, turn[-1].seq + 1
    return page.items, start if start > 1 else None


def turn_summary(turn: Sequence[Entry], calls: CallsByEntry, failures: set[int]) -> dict[str, Any]:
    """Summarize the entries of a turn, from the input to the end. `failures` are the seqs behind which model
    calls failed.
    """
    own = [entry for entry in turn if entry.turn == turn[0].turn]
    answers = [entry for entry in own if entry.role == "assistant"]
    model_calls = [call for entry in turn for call in calls.get((entry.branch, entry.seq), ())]
    answer = next((e.message.text for e in reversed(answers) if e.message and e.message.text.strip()), "")
    return {
        "turn": turn[0].turn,
        "last": turn[-1].seq,
        "input": one_line(turn[0].message.text if turn[0].message else ""),
        "answer": one_line(answer),
        "status": turn_status(own),
        "steps": len(answers),
        "at": turn[0].at,
        "ended_at": own[-1].at,
        "model": answers[-1].model if answers else None,
        "tools": _tools(own),
        "errors": sum(bool(entry_failures(entry)) or entry.seq in failures for entry in turn),
        "usage": to_json(total(model_calls)),
        "flags": ["compacted"] if any(isinstance(e.payload, Compaction) for e in turn) else [],
    }


def turn_status(turn: Sequence[Entry]) -> str:
    """Return how a turn ended, or `open`."""
    last = next((entry for entry in reversed(turn) if entry.message is not None), None)
    if last is None or last.message is None:
        return "open"
    if last.role == "assistant" and not last.message.calls:
        return _FINISHES.get(last.finish or "", "answered")
    return "open"


def _tools(turn: Sequence[Entry]) -> list[dict[str, Any]]:
    messages = [entry.message for entry in turn if entry.message is not None]
    names = {call.id: call.name for message in messages for call in message.calls}
    tools: dict[str, dict[str, Any]] = {}
    for message in messages:
        for call in message.calls:
            new = {"name": call.name, "calls": 0, "errors": 0, "denied": 0, "outcomes": []}
            tool = tools.setdefault(call.name, new)
            tool["calls"] += 1
        for result in message.results:
            name = names.get(result.call_id, "")
            if name in tools:
                is_denied = result.outcome == "denied"
                tools[name]["denied"] += is_denied
                tools[name]["errors"] += result.error and not is_denied
                if result.outcome != "done" and result.outcome not in tools[name]["outcomes"]:
                    tools[name]["outcomes"].append(result.outcome)
    return list(tools.values())[:50]
