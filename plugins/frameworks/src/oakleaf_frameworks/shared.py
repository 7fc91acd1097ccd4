"""What the packages of several frameworks share: the store they take, settings, model calls, their own records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from oakleaf.core.context import fold_settings
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Note, Payload, Settings
from oakleaf.core.messages import Message, ToolCall
from oakleaf.core.tool_definitions import ToolSpec, changed_tools, define_tools
from oakleaf.core.usage import Call, Usage
from oakleaf.ext import Mirror, price, read, without_redaction
from oakleaf.install import install_line
from oakleaf.session import Session
from oakleaf.store import Store

V = TypeVar("V")
NO_RESULT = "[no result was added before the conversation continued]"
UNKNOWN_RESULT = (
    "[no result was recorded before the conversation continued: this call may or may not have run]"
)
MISSING_MEDIA = "[media whose bytes are not in this store]"


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Name the extra to install if a framework's package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("oakleaf", "oakleaf_frameworks"):
            raise
        problem = f"{error.name} is not installed; install it with: {install_line(extra)}"
        raise ModuleNotFoundError(problem, name=error.name) from error


def require_store(value: V, adapter: str, *, or_session: bool = False, redact: bool = True) -> V:
    """Return `value` if a store (or a session, where allowed); else raise TypeError.

    Without `redact`, what is written through it is stored as it is; exports are redacted by who opens the store.
    """
    if isinstance(value, Store) or (or_session and isinstance(value, Session)):
        return value if redact else cast(V, without_redaction(value))
    hint = f"; pass oakleaf.open({str(value)!r})" if isinstance(value, str | Path) else ""
    expected = "the Store that oakleaf.open(path) returns" + (", or a Session" if or_session else "")
    raise TypeError(f"{adapter} expected {expected}, not {type(value).__name__}{hint}")


def record_setup(mirror: Mirror, tools: Sequence[ToolSpec], prompt: str | None = None) -> None:
    """Record the tools and the prompt of the next model call, unless unchanged on the path."""
    session = mirror.session
    if session.open_tool_calls:
        return  # nothing may come between a call and its result
    reader = read(session)
    current, redactor = fold_settings(reader.control_entries()), reader.store.redactor
    tool_set = changed_tools(define_tools(tools, redactor), current.tool_definitions)
    changed: dict[str, Any] = {}
    if prompt is not None and redactor.redact_text(prompt) != (current.prompt or ""):
        changed["prompt"] = prompt
    if tool_set is not None:
        changed["tool_definitions"] = tool_set.definitions
    if changed:
        blobs = () if tool_set is None else (tool_set.blob,)
        mirror.append([Draft(Settings(**changed), blobs=blobs)])


def model_call(
    session: Session,
    usage: Usage,
    provider: str | None,
    model: str | None,
    *,
    after: int,
    answer: int | None,
    call_id: str | None = None,
    units: Mapping[str, int] | None = None,
    failed: bool = False,
) -> Call:
    """Return a framework's model call after the entry `after`, with the price; `answer` is the answer's seq."""
    store = read(session).store
    return Call(
        call_id=call_id or store.new_id(),
        branch=0,
        after_seq=after,
        answer_seq=answer,
        at=store.now(),
        usage=usage,
        provider=provider,
        model=model,
        price=price(usage, provider, model, units),
        failed=failed,
    )


def model_column(calls: Sequence[Call]) -> dict[str, str] | None:
    """Return the session row's column for the last answering model."""
    models = [call.model for call in calls if call.model is not None]
    return {"model": models[-1]} if models else None


def is_repeatable(metadata: Mapping[str, Any] | None) -> bool:
    """Whether a call may run again after a crash, by the effect in the tool's metadata; unsafe is the default."""
    return (metadata or {}).get("effect") in ("read", "idempotent")


def stored_record(payload: Payload, key: str) -> dict[str, Any] | None:
    """Return the record of the adapter with this key in a payload; None for other adapters."""
    data = payload.data if isinstance(payload, Note) else None
    data = payload.details if isinstance(payload, Message) else data
    record = (data or {}).get(key)
    return record if isinstance(record, dict) else None


def no_blob(_: str) -> None:
    """Stand in for reading blobs, where the bytes are still in the message or do not matter."""


def arguments_text(call: ToolCall, *, spaced: bool = False) -> str:
    """Return the arguments of a call as JSON: compact, or spaced like `json.dumps`."""
    if spaced:
        return json.dumps(call.arguments)
    return call.malformed if call.malformed is not None else msgspec.json.encode(call.arguments).decode()


def is_spaced(call: ToolCall, arguments: object) -> bool:
    """Whether the text is the spaced JSON of a call's arguments and differs from the compact JSON."""
    return arguments != arguments_text(call) and arguments == json.dumps(call.arguments)
