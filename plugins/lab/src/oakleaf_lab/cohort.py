"""Cohorts: the recorded sessions that a lab run replays, found by a query, a reference or a saved name.

A session counts once: tasks, replays, forks and copies of the same history are left out and counted with the reason, as
are sessions that cannot be replayed. Knows stores and search; does not know lanes or models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Entry, Note
from oakleaf.core.search import Term, marker_word, parse_query
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Totals, total
from oakleaf.errors import InvalidArgument, InvalidLab, NotFound
from oakleaf.log import ledger
from oakleaf.log.lease import is_held
from oakleaf.log.log import Log
from oakleaf.log.new_session import SessionOptions, new_session
from oakleaf.log.runtime import Runtime
from oakleaf.log.session_list import headings
from oakleaf.stores.base import SessionQuery, SessionRow, StoreBackend

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
    """A recorded session of a cohort, at the entry where it was when the run was planned."""

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
    """Sessions that were left out, and why."""

    reason: str
    session_ids: tuple[str, ...]


class Cohort(Struct, frozen=True):
    sources: tuple[CohortSession, ...]
    skipped: tuple[SkippedSessions, ...] = ()
    total: int = 0
    """How many sessions could be replayed, before sampling."""

    @property
    def turns(self) -> int:
        return sum(source.turns for source in self.sources)


class CohortFinder:
    """Finds the sessions of a cohort in one store."""

    def __init__(self, store: StoreBackend, runtime: Runtime) -> None:
        self._store, self._runtime = store, runtime
        self._skipped: dict[str, list[str]] = {}

    def find(
        self, expressions: Sequence[str], *, sample: int | None = None, seed: int = 0, needs_model: bool
    ) -> Cohort:
        """Return the sessions that the expressions name together, oldest first.

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
        names = headings(self._store, selection)
        sources = [self._source(row, names[row.session_id]) for row in selection]
        skipped = tuple(SkippedSessions(reason, tuple(ids)) for reason, ids in self._skipped.items())
        return Cohort(tuple(sources), skipped, len(rows))

    def _matches(self, expressions: Sequence[str]) -> Iterator[tuple[SessionRow, bool]]:
        """Yield each session once, with whether it was named itself."""
        named: dict[str, bool] = {}
        for expression in expressions:
            for session_id, is_named in self._session_ids(expression):
                named[session_id] = named.get(session_id, False) or is_named
        for session_id, is_named in named.items():
            row = self._store.session(session_id)
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
        query = parse_query(text, self._runtime.now())
        if not query.terms:  # a session without an input cannot be replayed, so inputs are enough to find all
            query = replace(query, terms=(Term("marker", (marker_word("role", "user"),)),))
        self._store.index()
        session_ids: dict[str, None] = {}
        before: str | None = None
        while True:
            page = self._store.search(replace(query, limit=1_000, before=before))
            session_ids |= {hit.session_id: None for hit in page.hits}
            if page.next is None:
                return session_ids
            before = page.next

    def _eligible(
        self, rows: Iterable[tuple[SessionRow, bool]], needs_model: bool
    ) -> Iterator[tuple[SessionRow, bool]]:
        from oakleaf.models.names import is_model_name

        for row, is_named in rows:
            model = row.model
            if row.relation in _SKIPPED_RELATIONS and not (row.relation == "fork" and is_named):
                self._skip(_SKIPPED_RELATIONS[row.relation], row)
            elif row.trashed_at is not None:
                self._skip("in the trash", row)
            elif not row.turns and row.relation != "fork":
                self._skip("without an input", row)
            elif is_held(row, self._runtime):
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
            last = self._store.path(row.session_id, newest=1).entries
            entry_id = last[-1].entry_id if last else b""
            if entry_id in unique:
                self._skip("with the same history as another", row)
            else:
                unique[entry_id] = row
        return list(unique.values())

    def _skip(self, reason: str, row: SessionRow) -> None:
        self._skipped.setdefault(reason, []).append(row.session_id)

    def _source(self, row: SessionRow, heading: str) -> CohortSession:
        log = Log(self._store, row, self._runtime)
        calls = ledger.model_calls(log, "path", None)
        path = log.path().entries
        return CohortSession(
            session_id=row.session_id,
            leaf=row.leaf,
            heading=heading,
            model=row.model,
            turns=sum(entry.is_input for entry in path),
            calls=sum(entry.role == "assistant" for entry in path),
            usage=total(calls),
            longest_request=max((call.usage.input_tokens or 0 for call in calls), default=0),
            longest_answer=max((call.usage.output_tokens or 0 for call in calls), default=0),
        )


def _draw(seed: int, session_id: str) -> bytes:
    """Return a number that decides whether a session is in the sample, independent of the other sessions."""
    return sha256(f"{seed}\n{session_id}".encode()).digest()


def is_query(expression: str) -> bool:
    """Whether an expression is a query of `oakleaf search` and not one name: it has a filter, a blank or a quote."""
    return bool(re.search(r"[\s\"]|^-?[a-z_]+:[^\s:/]", expression))


# -- sessions of the lab itself --------------------------------------------------------------------------


def create_lab_session(
    store: StoreBackend,
    runtime: Runtime,
    session_id: str,
    title: str,
    notes: Sequence[Draft] = (),
    tags: Mapping[str, str] = {},
) -> SessionRow:
    """Create a session that holds a lab run, its queue or a saved cohort; if it exists, return it as it is."""
    options: SessionOptions = {"relation": "replay", "title": title, "owner": store.owner, "tags": tags}
    new, _ = new_session(runtime, store.space, AGENT, notes, session_id, None, options)
    row, _ = store.create(new)
    return row


# -- saved cohorts ---------------------------------------------------------------------------------------


def save_cohort(store: StoreBackend, runtime: Runtime, name: str, session_ids: Sequence[str]) -> None:
    """Save a list of sessions under a name, in a session of its own; saving again replaces the list."""
    if not _NAME.fullmatch(name):
        raise InvalidLab(
            f"{name!r} cannot be the name of a cohort", "use letters, digits, dots, dashes and underscores"
        )
    row = create_lab_session(
        store, runtime, f"{COHORT_PREFIX}{name}", f"cohort {name}", tags={"cohort": name}
    )
    Log(store, row, runtime).append([Draft(Note({"cohort": list(session_ids)}, hidden=True))])


def load_cohort(store: StoreBackend, name: str) -> tuple[str, ...] | None:
    """Return the sessions that were saved under a name; None if there is no such cohort."""
    if not _NAME.fullmatch(name):
        return None
    try:
        entries = store.path(f"{COHORT_PREFIX}{name}", newest=1).entries
    except NotFound:
        return None
    return _session_ids(entries)


def saved_cohorts(store: StoreBackend) -> dict[str, tuple[str, ...]]:
    """Return the saved cohorts by name."""
    query = SessionQuery(relation="replay", agent=AGENT, id_prefix=COHORT_PREFIX)
    names = sorted(row.session_id.removeprefix(COHORT_PREFIX) for row in store.all_sessions(query))
    return {name: load_cohort(store, name) or () for name in names}


def _session_ids(entries: Sequence[Entry]) -> tuple[str, ...]:
    payload = entries[-1].payload if entries else None
    data = payload.data.get("cohort") if isinstance(payload, Note) else None
    return msgspec.convert(data or [], tuple[str, ...])
