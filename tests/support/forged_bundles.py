"""Bundles that somebody altered who knows the format: ids, counts and hash are true, one value is not."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from random import Random
from typing import Any

import oakleaf
from oakleaf import Budget, Session, Store, fit
from oakleaf.agent.call_status import read_call_status
from oakleaf.core.codec import chain_id
from oakleaf.core.log_events import log_events
from oakleaf.errors import NotFound, NothingToRedo, SessionTrashed
from oakleaf.ext import formats, read
from oakleaf.log.ledger import by_turn
from oakleaf.wire import PROVIDERS
from support.sessions import tasks_of

Line = dict[str, Any]

VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 7, 2**31, 2**40, 2**53 + 1, 2**63, 2**70, -(2**63), 0.5, 1e300),
    *(
        "",
        "x",
        "\0",
        "a\nb",
        "\x1b[31m",
        "é" * 3,
        "0" * 64,
        "idle",
        "running",
        "waiting",
        "user",
        "tool",
        "system",
    ),
    *("message", "note", "settings", "compaction", "labelled", "moved", "tool_calls_started", "task_started"),
    *([], [0], [1, 2], ["x"], [[]], {}, {"a": 1}, {"seq": 1}, [{}], [None]),
)


def lines_of(bundle: bytes) -> list[Line]:
    return [json.loads(line) for line in bundle.splitlines()]


def forge(lines: list[Line], random: Random) -> bytes:
    """Alter one or two values anywhere, and make ids, counts and hash true again."""
    lines = json.loads(json.dumps(lines))
    for _ in range(random.choice((1, 1, 2))):
        places = list(_places(lines[random.randrange(1, len(lines) - 1)]))
        if not places:
            continue
        holder, key = random.choice(places)
        match random.randrange(5):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1:
                other, other_key = random.choice(places)
                holder[key] = json.loads(json.dumps(other[other_key]))
            case 2 if type(holder[key]) is int:
                holder[key] += random.choice((-2, -1, 1, 2, 100))
            case _:
                holder[key] = random.choice(VALUES)
    return written(lines)


def written(lines: list[Line]) -> bytes:
    """The lines as a bundle with a true chain, true counts and a true hash."""
    _chain(lines)
    *content, end = lines
    kinds = [line.get("line") for line in content]
    calls = [line for line in content if line.get("line") == "call" and not line.get("inherited")]
    counted = {name: kinds.count(name[:-1]) for name in ("sessions", "facts", "blobs")}
    counts = counted | {"entries": kinds.count("entry"), "calls": len(calls)}
    text = b"".join(map(_encode, content))
    return text + _encode(end | {"counts": counts, "sha256": sha256(text).hexdigest()})


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        if key != "line":
            yield value, key
            yield from _places(value[key])


def _chain(lines: list[Line]) -> None:
    ids: dict[tuple[Any, Any], bytes] = {}
    parents: dict[Any, tuple[Any, Any]] = {}
    for line in lines:
        try:
            if line["line"] == "session":
                ids, parents = {}, {}
            elif line["line"] == "branch":
                parents[line["number"]] = (line.get("parent"), line.get("parent_seq", 0))
            elif line["line"] == "entry":
                branch, seq = line["branch"], line["seq"]
                parent = ids.get((branch, seq - 1)) or ids.get(parents[branch], b"")
                body = _encode(line["body"]).rstrip(b"\n")
                entry = (line.get("kind", "message"), line["turn"], line["step"], body)
                ids[branch, seq] = chain_id(parent, *entry)
                line["id"] = ids[branch, seq].hex()
        except (KeyError, TypeError, AttributeError, ValueError):
            continue  # it is to be refused anyway


def _encode(value: Any) -> bytes:
    return (
        json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
    )


def read_with_every_verb(store: Store) -> None:
    """Call whatever reads a session, or moves in it without a model; none of it may fail."""
    rows = [row for trashed in (False, True) for row in store.all_sessions(trashed=trashed)]
    for row in rows:
        _read(store, store.session(row.session_id))
    assert list(store.verify()) == []
    store.search("parcel")
    store.backend.count(oakleaf.stores.base.SessionQuery(), "agent")
    store.backend.daily_usage()
    for row in rows:
        with suppress(NotFound, SessionTrashed):  # it went with the session that started it
            store.delete(row.session_id)
    for row in list(store.all_sessions(trashed=True)):
        with suppress(NotFound):
            store.purge(row.session_id)


def _read(store: Store, session: Session) -> None:
    assert session.verify() == []
    session.hydrate()
    for verb in (
        *(session.path, session.transcript, session.entries, session.branches, session.journal),
        *(session.next_action, session.labels),
        *(session.model_calls, session.usage, session.pending_approvals, session.context),
    ):
        verb()
    assert isinstance(session.state, dict)
    for view in ("own", "path", "tree"):
        session.usage(view)
    by_turn(session.log)
    read_call_status(session.log)
    store.backend.storage_size(session.session_id)
    for provider in PROVIDERS:
        session.messages(provider)
        read(session).cache_break(provider)
    fit(session.context(), Budget(messages=1_000))
    oakleaf.draw_tree(session)
    list(log_events(session.path()))
    tasks_of(session)
    oakleaf.diff(session, session)
    for format in formats():
        session.export(io.BytesIO(), format, **({"content": True} if format == "otel" else {}))
    session.export(io.BytesIO(), "jsonl", what="all")
    with suppress(NothingToRedo):
        session.redo()
    fork = session.fork()
    fork.rewind(0)
    fork.redo()
