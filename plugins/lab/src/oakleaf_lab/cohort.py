"""Cohorts: the recorded sessions that a lab run replays, found by a query, a reference or a saved name.

A session counts once: tasks, replays, forks and copies of the same history are left out and counted with the reason, as
are sessions that cannot be replayed. Knows stores and search; does not know lanes or models.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct

from oakleaf import Session, Store
from oakleaf.core.context import build_context
from oakleaf.core.entries import Entry, Note
from oakleaf.core.search import parse_query
from oakleaf.core.tool_definitions import ToolSpec, read_tools
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Totals, total
from oakleaf.errors import InvalidArgument, NotFound
from oakleaf.ext import is_model_name, read_store
from oakleaf.stores.base import SessionRow
from oakleaf_lab.errors import InvalidLab

AGENT = "lab"
"""The agent of the sessions that hold lab runs and saved cohorts."""
COHORT_PREFIX = "cohort_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SKIPPED_RELATIONS = {
    "task": "tasks of other sessions",
    "replay": "replays",
    "fork": "forks of other sessions",
}


class CohortSession(Struct, frozen=True, kw_only=True):
    """A recorded session of a cohort, at the entry of the time of planning."""

    session_id: str
    leaf: Leaf
    heading: str
    model: str | None
    turns: int
    calls: int
    """Model calls on its path."""
    usage: Totals
    """What they used."""
    longest_request: int
    longest_answer: int
    """The most input and output tokens that one of them had."""


class SkippedSessions(Struct, frozen=True):
    """Skipped sessions, with the reason."""

    reason: str
    session_ids: tuple[str, ...]


class Cohort(Struct, frozen=True):
    sources: tuple[CohortSession, ...]
    skipped: tuple[SkippedSessions, ...] = ()
    total: int = 0
    """How many sessions could be replayed, before sampling."""
    prompts: dict[str, int] = {}
    """The recorded system prompts, and how many sessions have each; the most frequent first."""
    tools: tuple[tuple[ToolSpec, ...], ...] = ()
    """The recorded sets of tools."""
    called: tuple[str, ...] = ()
    """The names of the tools that were called."""

    @property
    def turns(self) -> int:
        return sum(source.turns for source in self.sources)


class CohortFinder:
    """Finds the sessions of a cohort in one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prompts: Counter[str] = Counter()
        self._tools: dict[str, tuple[ToolSpec, ...]] = {}
        self._called: set[str] = set()
        self._skipped: dict[str, list[str]] = {}

    def find(
        self, expressions: Sequence[str], *, sample: int | None = None, seed: int = 0, needs_model: bool
    ) -> Cohort:
        """Return the sessions of all expressions together, oldest first.

        With `sample` only so many of them, chosen by `seed`: the same seed chooses the same ones though others come.
        With `needs_model` sessions whose model cannot be called by its name are left out.
        """
        if sample is not None and (type(sample) is not int or sample < 1):
            raise InvalidArgument("sample", sample, "a number from 1 up")
        rows = self._unique(self._eligible(self._matches(expressions), needs_model))
        selection = (
            rows if sample is None else sorted(rows, key=lambda row: _draw(seed, row.session_id))[:sample]
        )
        selection = sorted(selection, key=lambda row: (row.started_at, row.session_id))
        names = self._store.headings(selection)
        sources = [self._source(row, names[row.session_id]) for row in selection]
        skipped = tuple(SkippedSessions(reason, tuple(ids)) for reason, ids in self._skipped.items())
        return Cohort(
            tuple(sources),
            skipped,
            len(rows),
            dict(self._prompts.most_common()),
            tuple(self._tools.values()),
            tuple(sorted(self._called)),
        )

    def _matches(self, expressions: Sequence[str]) -> Iterator[tuple[SessionRow, bool]]:
        """Yield each session once, with a flag for named sessions."""
        named: dict[str, bool] = {}
        for expression in expressions:
            for session_id, is_named in self._session_ids(expression):
                named[session_id] = named.get(session_id, False) or is_named
        for session_id, is_named in named.items():
            row = self._store.session(session_id).row
            if row.relation != "replay" or is_named:  # those that a lab made would be found by the next one
                yield row, is_named

    def _session_ids(self, expression: str) -> Iterator[tuple[str, bool]]:
        saved = load_cohort(self._store, expression)
        if saved is not None:
            yield from ((session_id, True) for session_id in saved)
        elif is_query(expression):
            yield from ((session_id, False) for session_id in self._search(expression))
        else:
            yield self._store.session(expression).session_id, True

    def _search(self, text: str) -> Iterable[str]:
        if not parse_query(text, read_store(self._store).now()).terms:
            text = f"role:user {text}"  # a session without an input cannot be replayed: inputs find all
        session_ids: dict[str, None] = {}
        before: str | None = None
        while True:
            page = self._store.search(text, limit=1_000, before=before, catch_up=before is None)
            session_ids |= {hit.session_id: None for hit in page.hits}
            if page.next is None:
                return session_ids
            before = page.next

    def _eligible(
        self, rows: Iterable[tuple[SessionRow, bool]], needs_model: bool
    ) -> Iterator[tuple[SessionRow, bool]]:
        for row, is_named in rows:
            model = row.model
            if row.relation in _SKIPPED_RELATIONS and not (row.relation == "fork" and is_named):
                self._skip(_SKIPPED_RELATIONS[row.relation], row)
            elif row.trashed_at is not None:
                self._skip("in the trash", row)
            elif not row.turns and row.relation != "fork":
                self._skip("without an input", row)
            elif read_store(self._store).is_held(row):
                self._skip("still running", row)
            elif needs_model and (model is None or not is_model_name(model)):
                name = "no model" if model is None else f"model {model}, which cannot be called by that name"
                self._skip(f"with {name}", row)
            else:
                yield row, is_named

    def _unique(self, rows: Iterable[tuple[SessionRow, bool]]) -> list[SessionRow]:
        """Leave out all but the oldest session with the same history."""
        unique: dict[bytes, SessionRow] = {}
        for row, _ in sorted(rows, key=lambda pair: (pair[0].started_at, pair[0].session_id)):
            last = self._store.session(row.session_id).path(last=1)
            entry_id = last[-1].entry_id if last else b""
            if entry_id in unique:
                self._skip("with the same history as another", row)
            else:
                unique[entry_id] = row
        return list(unique.values())

    def _skip(self, reason: str, row: SessionRow) -> None:
        self._skipped.setdefault(reason, []).append(row.session_id)

    def _source(self, row: SessionRow, heading: str) -> CohortSession:
        session = self._store.session(row.session_id)
        calls, path = session.model_calls("path"), session.path()
        context = build_context(path)
        self._prompts["\n\n".join(context.system)] += 1
        definitions = context.settings.tool_definitions
        if definitions is not None and definitions.hash not in self._tools:
            self._tools[definitions.hash] = read_tools(definitions, self._store.blob) or ()
        self._called |= {call.name for entry in path if entry.message for call in entry.message.calls}
        return CohortSession(
            session_id=row.session_id,
            leaf=session.leaf,
            heading=heading,
            model=row.model,
            turns=sum(entry.is_input for entry in path),
            calls=sum(entry.role == "assistant" for entry in path),
            usage=total(calls),
            longest_request=max((call.usage.input_tokens or 0 for call in calls), default=0),
            longest_answer=max((call.usage.output_tokens or 0 for call in calls), default=0),
        )


def _draw(seed: int, session_id: str) -> bytes:
    """Return the sampling number of a session, independent of the other sessions."""
    return sha256(f"{seed}\n{session_id}".encode()).digest()


def is_query(expression: str) -> bool:
    """Whether an expression is a query of `oakleaf search` and not a name: a filter, a blank or a quote tells."""
    return bool(re.search(r"[\s\"]|^-?[a-z_]+:[^\s:/]", expression))


# -- sessions of the lab itself --------------------------------------------------------------------------


def create_lab_session(
    store: Store,
    session_id: str,
    title: str,
    notes: Sequence[Note] = (),
    tags: Mapping[str, str] = {},
) -> Session:
    """Create a session for a lab run, a queue or a saved cohort; return an existing session unchanged."""
    return store.start(AGENT, notes, session_id=session_id, title=title, tags=tags, relation="replay")


# -- saved cohorts ---------------------------------------------------------------------------------------


def save_cohort(store: Store, name: str, *cohort: str, sample: int | None = None, seed: int = 0) -> Cohort:
    """Save the sessions of `cohort`, as for `Lab`, as a list under a name; replace an earlier list."""
    if not _NAME.fullmatch(name):
        raise InvalidLab(
            f"{name!r} cannot be the name of a cohort", "use letters, digits, dots, dashes and underscores"
        )
    sessions = CohortFinder(store).find(cohort, sample=sample, seed=seed, needs_model=False)
    session = create_lab_session(store, f"{COHORT_PREFIX}{name}", f"cohort {name}", tags={"cohort": name})
    ids = [source.session_id for source in sessions.sources]
    session.append([Note({"cohort": ids}, hidden=True)])
    return sessions


def load_cohort(store: Store, name: str) -> tuple[str, ...] | None:
    """Return the sessions saved under a name; None for an unknown cohort."""
    if not _NAME.fullmatch(name):
        return None
    try:
        session = store.session(f"{COHORT_PREFIX}{name}")
    except NotFound:
        return None
    return _session_ids(session.path(last=1))


def cohorts(store: Store) -> dict[str, tuple[str, ...]]:
    """Return the saved cohorts: the session ids of each, by name."""
    rows = store.all_sessions(relation="replay", agent=AGENT, id_prefix=COHORT_PREFIX)
    names = sorted(row.session_id.removeprefix(COHORT_PREFIX) for row in rows)
    return {name: load_cohort(store, name) or () for name in names}


def _session_ids(entries: Sequence[Entry]) -> tuple[str, ...]:
    payload = entries[-1].payload if entries else None
    data = payload.data.get("cohort") if isinstance(payload, Note) else None
    return msgspec.convert(data or [], tuple[str, ...])
