"""The contents of a store as other handles read them, and texts that are hard to keep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import oakleaf
from oakleaf import Message, Store, ToolCall, assistant, errors, user


def open_store(kind: str, folder: Path) -> Iterator[Store]:
    with oakleaf.open("memory:" if kind == "memory" else folder / "a.db", synchronous="normal") as opened:
        yield opened


def contents(store: Store) -> object:
    """Everything the store holds, to see that a refusal wrote nothing."""
    inner: Any = store.backend
    if store.backend.url == "memory:":
        tables = inner.tables
        sessions = {session_id: repr(data) for session_id, data in tables.sessions.items()}
        return sessions, repr(tables.entries), repr(tables.branches), sorted(tables.blobs)
    with contextlib.closing(apsw.Connection(inner.url, flags=apsw.SQLITE_OPEN_READWRITE)) as reader:
        tables = ("session", "session_detail", "branch", "entry", "tool_call", "usage", "journal")
        tables += ("blob", "blob_use")
        return [reader.execute(f"select * from {table}").fetchall() for table in tables]


def reopened(store: Store, session: oakleaf.Session) -> oakleaf.Session:
    """The session as somebody else finds it: through another connection if there is a file."""
    if store.backend.url == "memory:":
        return store.session(session.session_id)
    with oakleaf.open(store.backend.url) as other:
        return _Read(other.session(session.session_id))  # type: ignore[return-value]


class _Read:
    """What a handle on another connection gave, read before that was closed."""

    def __init__(self, session: oakleaf.Session) -> None:
        entries, state, journal, row = session.path(), session.state, session.journal(), session.row
        model_calls, problems = session.model_calls(), session.verify()
        self.path = lambda: entries
        self.journal = lambda: journal
        self.model_calls = lambda: model_calls
        self.verify = lambda: problems
        self.state, self.row = state, row


def payloads(session: oakleaf.Session) -> list[Any]:
    return [entry.payload for entry in session.path()]


def refusal_of(store: Store, attempt: Callable[[], object]) -> errors.OakleafError:
    """The refusal, after looking that nothing was written and that the store goes on."""
    before = contents(store)
    with pytest.raises(errors.OakleafError) as excinfo:
        attempt()
    assert contents(store) == before, "refused, but something was written"
    assert list(store.verify()) == []
    return excinfo.value


def in_a_call(arguments: Any) -> list[Message]:
    return [user("x"), assistant(ToolCall("c", "t", arguments))]


TEXTS = {
    "empty": "",
    "blank": " \t\n\r ",
    "nul": "a\0b\0",
    "control": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "rtl": "שלום ‮evil‬ مرحبا",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈🫠",
    "combining": "e\u0301\u0323 Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚",
    "not characters": "\ufffe\uffff\U0010ffff\ufeff",
    "line separators": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "sql": "'; drop table session; --",
    "sql 2": '" or 1=1; pragma user_version=9; /* */ ?1 :id $x @y %s {}',
    "json": '{"role":"user","parts":[]}\\u0000\\ud800"',
    "path": "../../etc/passwd\\..\\con",
    "html": "</script><script>alert(1)</script>",
    "almost a data url": "data:image/png;base64,AAAA",
    "base64 that is none": "data:image/png;base64," + "A" * 65,
    "looks like ours": '"type":"attachment" oakleaf-blob:00;image/png;1',
    "a long line": "x" * 300_000,
    "many lines": "zeile ü\n" * 20_000,
}
