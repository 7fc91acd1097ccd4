"""Export a session as an evaluation log of Inspect (`inspect_ai`), format version 2, with the path as its sample.

`inspect_log` is a pure function of the row, the path, the ledger and the journal: the same session gives the same bytes.
Nothing is scored. Does not need Inspect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, BinaryIO

import msgspec
from msgspec.structs import replace

from oakleaf import Session
from oakleaf.core.entries import Entry
from oakleaf.core.time_text import iso
from oakleaf.core.usage import Call, totals_by
from oakleaf.exports.inspect.events import EventBuilder, model_name, model_of, usage_of
from oakleaf.exports.inspect.messages import Chat, Inputs, chat_messages
from oakleaf.exports.timeline import Timeline, build_timeline
from oakleaf.exports.values import PathOptions, redactor_of, shared_row, without_none
from oakleaf.ext import Exporter, read
from oakleaf.stores.base import SessionRow

VERSION = 2
_STATUS = {
    "failed": "error",
    "cancelled": "cancelled",
    "interrupted": "cancelled",
    "running": "started",
    "waiting": "started",
}


def write(session: Session, to: BinaryIO, options: PathOptions) -> None:
    """Write the path as the only sample of a log."""
    row, calls, redactor = (
        shared_row(session, options),
        session.model_calls("path"),
        redactor_of(session, options),
    )
    path = list(read(session).shared_entries(redact=options.redact))
    timeline = build_timeline(session.journal(), calls, redactor)
    if row.leaf != session.leaf:
        row, timeline = until(path, row, timeline)
    log = inspect_log(row, path, calls, timeline)
    to.write(msgspec.json.encode(log) + b"\n")


def file_stem(session: Session) -> str:
    """Return a name listed by Inspect: a time, a task and an id, joined by `_`, a character barred within the
    parts.
    """
    row, mask = session.row, read(session).redactor.redact_text
    started = iso(row.started_at).partition(".")[0].replace(":", "-")
    parts = (mask(row.agent or "session")[:40], session.session_id)
    return "_".join([started, *(re.sub(r"[^A-Za-z0-9.-]+", "-", part) for part in parts)])


EXPORTER = Exporter(suffix=".json", write=write, options=PathOptions, file_stem=file_stem)


def inspect_log(
    row: SessionRow, path: Sequence[Entry], calls: Sequence[Call], moments: Timeline
) -> dict[str, Any]:
    """Return the log of the path to the session's leaf, a single sample."""
    status = _STATUS.get(row.status, "success")
    error = _error(row.error) if status == "error" else {}
    first, last = _ends(row, path)
    usage = _usage(calls)
    return {
        "version": VERSION,
        "status": status,
        "eval": _spec(row, _model(path, calls)),
        "plan": {"name": "session", "steps": [], "config": {}},
        "results": {"total_samples": 1, "completed_samples": int(status == "success"), "scores": []},
        "stats": {"started_at": iso(first), "completed_at": iso(last), "model_usage": usage},
        **error,
        "samples": [{**_sample(row, path, calls, moments), "model_usage": usage, **error}],
    }


def until(path: Sequence[Entry], row: SessionRow, moments: Timeline) -> tuple[SessionRow, Timeline]:
    """The state at the end of an abandoned path: without the end of the last turn and of the session."""
    turn = path[-1].turn if path else 0
    turns = {place: ended for place, ended in moments.turns.items() if place[1] != turn}
    return replace(row, status="idle", error=None), replace(moments, turns=turns)


def _spec(row: SessionRow, model: str) -> dict[str, Any]:
    from oakleaf import __version__  # late: the package itself is loaded by then

    return {
        "eval_id": _id("eval", row),
        "run_id": _id("run", row),
        "created": iso(row.started_at),
        "task": row.agent or "session",
        "task_id": _id("task", row),
        "dataset": {"name": "oakleaf", "samples": 1, "sample_ids": [row.session_id], "shuffled": False},
        "model": model,
        "config": {},
        "packages": {"oakleaf": __version__},
        "metadata": _about(row),
    }


def _about(row: SessionRow) -> dict[str, Any]:
    fields = {"session_id": row.session_id, "agent": row.agent, "title": row.title, "relation": row.relation}
    return without_none(fields)


def _id(kind: str, row: SessionRow) -> str:
    """As long as Inspect's own ids; the same whenever the session is written."""
    return sha256(f"oakleaf {kind} {row.session_id}".encode()).hexdigest()[:22]


def _sample(
    row: SessionRow, path: Sequence[Entry], calls: Sequence[Call], moments: Timeline
) -> dict[str, Any]:
    chats = chat_messages(row.session_id, path)
    inputs = Inputs(row.session_id, path, chats)
    events = list(EventBuilder(row, path, chats, inputs, calls, moments).events())
    first, last = _ends(row, path)
    prompts = [chat for entry in _sample_input(path) for chat in chats[entry.seq]]
    return {
        "id": row.session_id,
        "epoch": 1,
        "input": prompts,
        "target": "",
        "messages": [chat for group in chats.values() for chat in group],
        "output": next((event["output"] for event in reversed(events) if _has_answer(event)), {}),
        "metadata": _about(row),
        "events": events,
        "events_data": {"messages": inputs.pool, "calls": []},
        "started_at": iso(first),
        "completed_at": iso(last),
        "total_time": (last - first) / 1e6,
        "uuid": _id("sample", row),
    }


def _model(path: Sequence[Entry], calls: Iterable[Call]) -> str:
    """Return the last answering model."""
    answered = [call for call in calls if call.answer_seq is not None]
    if answered:
        return model_of(max(answered, key=lambda call: call.answer_seq or 0))
    return model_name(None, next((entry.model for entry in reversed(path) if entry.model), None))


def _has_answer(event: Chat) -> bool:
    return event["event"] == "model" and bool(event["output"]["choices"])


def _sample_input(path: Iterable[Entry]) -> list[Entry]:
    """Return the seeds, and the inputs up to the first answer after the seeds."""
    inputs: list[Entry] = []
    for entry in path:
        if entry.message is None:
            continue
        if entry.turn and entry.role != "user":
            break
        inputs.append(entry)
    return inputs


def _ends(row: SessionRow, path: Sequence[Entry]) -> tuple[int, int]:
    times = [entry.at for entry in path] or [row.started_at]
    return min(times), max(times)


def _usage(calls: Iterable[Call]) -> dict[str, Any]:
    sums = totals_by(calls, model_of)
    return {model: usage_of(totals) for model, totals in sums.items() if not totals.is_unknown}


def _error(message: str | None) -> dict[str, Any]:
    return {"error": {"message": message or "the session failed", "traceback": "", "traceback_ansi": ""}}
