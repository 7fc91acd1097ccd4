"""What people ask of a store with many sessions, and a small store to copy many from."""

from __future__ import annotations

import time
from collections.abc import Callable

import oakleaf
from oakleaf import Store, assistant, user
from oakleaf.core.usage import Usage
from oakleaf.stores.base import SessionQuery

SESSIONS = 40
Work = Callable[[Store], object]


def _list(**filters: object) -> Work:
    return lambda store: store.backend.sessions(SessionQuery(order="active", **filters))  # type: ignore[arg-type]


def _all(**filters: object) -> Work:
    return lambda store: list(store.backend.all_sessions(SessionQuery(**filters)))  # type: ignore[arg-type]


READS: dict[str, tuple[str, Work]] = {
    "a page of the list": ("default", lambda store: store.sessions(limit=50)),
    "by last activity": ("default", _list()),
    "by creation": ("default", lambda store: store.backend.sessions(SessionQuery())),
    "by a rare status": ("default", _list(status="failed")),
    "by one of two rare statuses": ("default", _list(status="interrupted", or_running=True)),
    "all of a rare status": ("default", _all(status="failed")),
    "by a common status": ("default", _list(status="idle")),
    "by a rare agent": ("default", _list(agent="agent-2")),
    "by a common agent": ("default", _list(agent="support")),
    "by owner": ("default", _list(owner="owner-0")),
    "by a rare tag": ("default", _list(tag=("team", "rare"))),
    "all of a rare tag": ("default", _all(tag=("team", "rare"))),
    "by a common tag": ("default", _list(tag=("team", "common"))),
    "by a rare model": ("default", _list(model="model-2")),
    "by a common model": ("default", _list(model="model-1")),
    "by a model of nobody": ("default", _list(model="nobody's")),
    "by a rare title": ("default", _list(title="rare title")),
    "by a common title": ("default", _list(title="a title")),
    "by a title of nobody": ("default", _list(title="nobody's")),
    "by a rare relation": ("default", _list(relation="fork")),
    "by a relation of nobody": ("default", _list(relation="import")),
    "by start in the future": ("default", _list(started_from=1 << 60)),
    "by start long ago": ("default", _list(started_before=1)),
    "by start and creation": (
        "default",
        lambda store: store.backend.sessions(SessionQuery(started_before=1)),
    ),
    "by the beginning of an id": (
        "default",
        lambda store: store.backend.sessions(SessionQuery(id_prefix="ses_rar")),
    ),
    "by the beginning of every id": (
        "default",
        lambda store: store.backend.sessions(SessionQuery(id_prefix="ses_")),
    ),
    "by the beginning of an id of nobody": ("default", _list(id_prefix="walrus")),
    "by the beginning of an id of the small one": ("small", _list(id_prefix="ses_")),
    "by conversation": ("default", _list(conversation_id="conv-one")),
    "queued inputs": ("default", lambda store: store.backend.queued_input_count()),
    "sessions with queued inputs": ("default", lambda store: store.backend.sessions_with_input(20)),
    "the trash": ("default", _list(trashed=True)),
    "all of the trash": ("default", _all(trashed=True)),
    "latest": ("default", lambda store: store.latest()),
    "counts of statuses": ("default", lambda store: store.backend.status_counts(50)),
    "counts of the newest": ("default", lambda store: store.backend.count(SessionQuery(), "agent", 50)),
    "counts of the newest of a common tag": (
        "default",
        lambda store: store.backend.count(SessionQuery(tag=("team", "common")), "model", 50),
    ),
    "counts of the small one": ("small", lambda store: store.backend.status_counts(50)),
    "usage since a time": (
        "default",
        lambda store: store.backend.daily_usage(time.time_ns() // 1_000 + 120_000_000),
    ),
    "labels": ("default", lambda store: store.session("ses_rare").labels()),
    "calls of an entry of a long ledger": (
        "default",
        lambda store: store.backend.calls_between(
            "ses_rare", store.session("ses_rare").leaf.branch, 600, 602
        ),
    ),
    "the latest call of a long ledger": (
        "default",
        lambda store: store.backend.latest_answer_call(
            "ses_rare", store.session("ses_rare").leaf.branch, 1 << 31
        ),
    ),
    "a search": ("default", lambda store: store.search("herring", limit=10)),
    "a search of one session": ("default", lambda store: store.search("herring session:ses_rare", limit=10)),
    "a search for what nobody wrote": ("default", lambda store: store.search("walrus", limit=10)),
    "a search of the small one": ("small", lambda store: store.search("herring", limit=10)),
    "a list of the small one": ("small", lambda store: store.sessions(limit=10)),
    "opening and reading": ("small", lambda store: store.session("ses_small").path()),
    "appending": ("small", lambda store: store.session("ses_small").append([user("more")])),
    "tagging": ("small", lambda store: store.session("ses_small").tag(team="other")),
    "forking and rewinding": ("small", lambda store: store.session("ses_small").fork(at=1).rewind(1)),
    "purging": ("small", lambda store: purge(store)),
}
"""By name, with the space it is asked in."""


def purge(store: Store) -> None:
    session = store.start(tags={"a": "b"})
    session.append([user("to be purged")])
    store.index()
    store.delete(session.session_id)
    store.purge(session.session_id)


def write_sessions(store: Store) -> None:
    """Write the sessions that are copied: all but the first few are alike, so that what is rare stays rare."""
    for n in range(SESSIONS):
        session = store.start(
            "support", title="a title", model="model-1", tags={"team": "common", "n": str(n)}
        )
        with session.turn(f"question {n} about herring") as turn:
            turn.answer(assistant("an answer about mackerel"), usage=Usage(10, 5))
    assert store.search("herring", limit=1).hits


def write_rare_sessions(store: Store) -> None:
    session = store.start(
        "agent-2",
        session_id="ses_rare",
        title="rare title",
        model="model-2",
        tags={"team": "rare"},
        conversation_id="conv-one",
    )
    with session.turn("a question about herring") as turn:
        turn.answer(assistant("an answer about plaice"), usage=Usage(10, 5))
    session.label(1, "first")
    session.fork()
    store.start(owner="owner-0").end("failed", "no answer")
    store.delete(store.start().session_id)
    store.index()


def write_small_space(url: str) -> None:
    with oakleaf.open(url, space="small") as store:
        session = store.start("support", session_id="ses_small", owner="ann", tags={"team": "small"})
        session.append([user("herring of the small one")])
        assert store.search("herring").hits
