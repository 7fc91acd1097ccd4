"""The trash: rm, restore, purge. What goes is shown first, and goes when that is confirmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct

from oakleaf import plugins
from oakleaf.core.time_text import parse_duration
from oakleaf.errors import InvalidArgument, OakleafError, SessionRunning, plural
from oakleaf.ext import read_store
from oakleaf.ingest.importers import find_importer
from oakleaf.store import GRACE_MICROSECONDS, Store
from oakleaf.stores.address import is_path
from oakleaf.stores.base import PurgeResult, SessionRow
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import Help, Refs, TrashedRefs
from oakleaf.verbs.screen import Screen, clip

SHOWN = 20
"""How many sessions of a plan are named by their heading, and shown to people."""


class PlannedSession(Struct, frozen=True):
    """A session that a plan is about."""

    id: str
    turns: int
    relation: str | None
    """What it is of the session named: a task, a fork, a replay, or what a plugin calls it."""
    heading: str | None
    """None past the first sessions of a plan."""


# -- to the trash and back ---------------------------------------------------------------------------------


class Trashed(Struct, frozen=True, kw_only=True):
    done: bool
    """False for a plan."""
    trashed: list[str]
    plan: list[PlannedSession] = []


class Rm(Verb, frozen=True):
    """Move a session and its tasks to the trash.

    oakleaf restore brings them back; oakleaf purge deletes them permanently.
    """

    section = "Maintain"
    effect = "destroy"
    http = "DELETE /api/sessions/{session}"

    sessions: Refs

    def plan(self, caller: Caller) -> Trashed:
        rows = [row for name in _names(caller, self.sessions) for row in caller.store.family(name)]
        caller.store.raise_if_running(rows)
        return Trashed(done=False, trashed=_ids(rows), plan=planned_sessions(caller.store, rows))

    def question(self, planned: Trashed) -> str:
        return "Move to the trash?"

    def run(self, caller: Caller) -> Trashed:
        self.plan(caller)  # raises for a running session before any other is moved
        names = _names(caller, self.sessions)
        return Trashed(done=True, trashed=[one for name in names for one in caller.store.delete(name)])

    def lines(self, result: Trashed, screen: Screen) -> Iterator[str]:
        yield from plan_lines(result.plan, "moves to the trash")

    def notes(self, result: Trashed, screen: Screen) -> Iterator[str]:
        count = plural(len(result.trashed), "session")
        yield f"moved {count} to the trash; undo with: oakleaf restore {' '.join(result.trashed[:SHOWN])}"


class Restored(Struct, frozen=True):
    restored: list[str]


class Restore(Verb, frozen=True):
    """Restore a session from the trash, with its tasks."""

    section = "Maintain"
    effect = "write"
    http = "POST /api/sessions/{session}/restore"

    sessions: TrashedRefs

    def run(self, caller: Caller) -> Restored:
        names = _names(caller, self.sessions, trashed=True)
        return Restored([one for name in names for one in caller.store.restore(name)])

    def lines(self, result: Restored, screen: Screen) -> Iterator[str]:
        yield from result.restored


# -- purge -------------------------------------------------------------------------------------------------


class Purged(Struct, frozen=True, kw_only=True):
    done: bool
    """False for a plan."""
    purged: list[str]
    """The sessions deleted permanently."""
    trashed: list[str] = []
    """The sessions moved to the trash."""
    surviving: list[str] = []
    """The sessions that repeat parts of those deleted, and stay."""
    imported_from: dict[str, str] = {}
    """The tools that deleted sessions came from, by session: they still have their own."""
    attachments: int = 0
    attachment_bytes: int = 0
    """The size of unreferenced attachments in a plan."""
    entries: int = 0
    kept_entries: int = 0
    """Entries that a fork shares, and that go with it."""
    file_bytes: int | None = None
    """The size of the file that is rewritten, in a plan."""
    scrubbed: bool = True
    """Whether no byte is left in the file."""
    problems: list[str] = []
    """Plugins that cannot say what they quote, and sessions that were left alone."""
    plan: list[PlannedSession] = []
    planned_trash: list[PlannedSession] = []
    planned_survivors: list[PlannedSession] = []


class Purge(Verb, frozen=True):
    """Delete trashed sessions permanently; without a session, unreferenced attachments and, if you ask, old sessions.

    Nothing of a session remains in the file, its write-ahead log, the search index or the attachments. Its forks and
    replays are separate sessions and stay; entries that a fork shares remain until the fork is purged. Lab runs that quote
    it stay, too. The files it was imported from are not touched, so the next import adds it again.
    """

    section = "Maintain"
    effect = "destroy"
    examples = ("oakleaf purge ses_3f --with-forks", "oakleaf purge --trashed-for 30d --idle-for 180d")

    sessions: TrashedRefs = []
    with_forks: Annotated[bool, Help("Delete its forks and replays too, which repeat parts of it.")] = False
    trashed_for: Annotated[
        str | None, Help("Purge sessions that were in the trash this long, such as 30d.", metavar="TIME")
    ] = None
    idle_for: Annotated[
        str | None,
        Help("Move sessions to the trash that were idle this long, such as 180d.", metavar="TIME"),
    ] = None

    def plan(self, caller: Caller) -> Purged:
        return self._selection(caller).plan(caller, with_forks=self.with_forks)

    def question(self, planned: Purged) -> str | None:
        if planned.purged:
            return "Delete permanently?"
        return "Continue?" if planned.trashed or planned.attachments else None

    def run(self, caller: Caller) -> Purged:
        selected = self._selection(caller)
        planned = selected.plan(caller, with_forks=self.with_forks)
        return selected.purge(caller, planned, with_forks=self.with_forks)

    def _selection(self, caller: Caller) -> _Selection:
        """Return what is named, or what the policy finds."""
        store, now = caller.store, read_store(caller.store).now()
        if self.sessions:
            self._check_no_policy()
            return _Selection(_names(caller, self.sessions, trashed=True))
        if self.with_forks:
            raise InvalidArgument("with_forks", True, "a session whose forks to delete")
        old, idle = _duration("trashed_for", self.trashed_for), _duration("idle_for", self.idle_for)
        return _Selection(
            old=[] if old is None else _trashed_before(store, now - old),
            idle=[] if idle is None else _idle_before(store, now - idle),
            attachments_before=now - GRACE_MICROSECONDS,
        )

    def _check_no_policy(self) -> None:
        for name, value in (("trashed_for", self.trashed_for), ("idle_for", self.idle_for)):
            if value is not None:
                raise InvalidArgument(name, value, "no session besides it: it selects sessions by age")

    def lines(self, result: Purged, screen: Screen) -> Iterator[str]:
        if not result.done:
            yield from _purge_plan(result, self.with_forks)
            return
        remaining = (
            f"; {result.kept_entries:,} entries remain until their forks are purged"
            if result.kept_entries
            else ""
        )
        deleted = f"{plural(len(result.purged), 'session')}, {result.entries:,} entries"
        yield f"deleted {deleted}, {plural(result.attachments, 'attachment')}{remaining}"
        if result.trashed:
            yield f"moved {plural(len(result.trashed), 'session')} to the trash"

    def notes(self, result: Purged, screen: Screen) -> Iterator[str]:
        if not result.done:
            yield from ["nothing to do"] * (self.question(result) is None)
            return
        yield from result.problems
        if not result.scrubbed:
            yield "another process is reading the file, so its write-ahead log is cleaned by the next purge"


class _Selection(Struct, frozen=True):
    """The sessions that a purge is about."""

    named: list[str] = []
    old: list[SessionRow] = []
    idle: list[SessionRow] = []
    attachments_before: int | None = None
    """Unreferenced attachments older than this go, too; None if sessions are named."""

    @property
    def first(self) -> list[str]:
        """The sessions to delete, without the tasks that go with them."""
        return self.named or _ids(self.old)

    def plan(self, caller: Caller, *, with_forks: bool) -> Purged:
        store = caller.store
        rows = [row for name in self.first for row in store.family(name, forks=with_forks)]
        if self.named:
            store.raise_if_running(rows)
        problems: list[str] = []
        surviving = _surviving_sessions(store, rows, problems)
        loose = None
        if self.attachments_before is not None:
            loose = read_store(store).unreferenced_blobs(self.attachments_before)
        return Purged(
            done=False,
            purged=list(dict.fromkeys(_ids(rows))),
            trashed=_ids(self.idle),
            surviving=_ids(row for row, _ in surviving),
            imported_from={
                row.session_id: row.tags["imported_from"] for row in rows if "imported_from" in row.tags
            },
            attachments=0 if loose is None else loose.blobs,
            attachment_bytes=0 if loose is None else loose.bytes,
            file_bytes=_file_size(caller.address) if rows else None,
            problems=problems,
            plan=planned_sessions(store, rows),
            planned_trash=planned_sessions(store, self.idle),
            planned_survivors=planned_sessions(
                store, [row for row, _ in surviving], [kind for _, kind in surviving]
            ),
        )

    def purge(self, caller: Caller, planned: Purged, *, with_forks: bool) -> Purged:
        store, problems = caller.store, list(planned.problems)
        done = list(self._purge_first(caller, with_forks=with_forks))
        trashed = [name for row in self.idle for name in _move_to_trash(store, row, problems)]
        dropped = 0 if self.attachments_before is None else store.gc()
        return Purged(
            done=True,
            purged=[name for one in done for name in one.sessions],
            trashed=trashed,
            surviving=planned.surviving,
            imported_from=planned.imported_from,
            attachments=dropped + sum(one.blobs for one in done),
            entries=sum(one.entries for one in done),
            kept_entries=sum(one.kept_entries for one in done),
            scrubbed=done[-1].scrubbed if done else True,
            problems=problems,
        )

    def _purge_first(self, caller: Caller, *, with_forks: bool) -> Iterator[PurgeResult]:
        """Purge one session after the other. The file is rewritten once, also after Ctrl-C."""
        purged, last = None, len(self.first)
        with caller.progress("purge", "sessions") as step:
            try:
                for number, name in enumerate(self.first, 1):
                    yield caller.store.purge(name, with_forks=with_forks, scrub=number == last)
                    purged = name
                    step(number, last)
            except BaseException:
                if purged is not None:
                    with suppress(OakleafError):
                        caller.store.purge(purged)
                raise


def _duration(name: str, text: str | None) -> int | None:
    return None if text is None else parse_duration(name, text)


def _trashed_before(store: Store, before: int) -> list[SessionRow]:
    """Return the sessions trashed before, without tasks whose parent is among them: those are purged with it."""
    rows = [row for row in store.all_sessions(trashed=True, limit=500) if (row.trashed_at or 0) < before]
    ids = {row.session_id for row in rows}
    return [row for row in rows if not (row.relation == "task" and row.parent_session in ids)]


def _idle_before(store: Store, before: int) -> list[SessionRow]:
    rows = store.all_sessions(include_children=False, limit=500)
    return [row for row in rows if row.updated_at < before and row.status != "running"]


def _move_to_trash(store: Store, row: SessionRow, problems: list[str]) -> list[str]:
    try:
        return store.delete(row.session_id)
    except SessionRunning as error:  # it, or one of its tasks, started since the plan was made
        problems.append(f"{row.session_id} skipped: {error.problem}")
        return []


def _file_size(address: str) -> int | None:
    """Return the size of the store's file; None for a store that is no file."""
    return Path(address).stat().st_size if is_path(address) else None


# -- what repeats parts of it ------------------------------------------------------------------------------


def _surviving_sessions(
    store: Store, rows: list[SessionRow], problems: list[str]
) -> list[tuple[SessionRow, str]]:
    """Return the sessions that repeat parts of these and are not among them, each with what it is."""
    purged = set(_ids(rows))
    family = [one for row in rows for one in store.family(row.session_id, forks=True)]
    repeating = {row.session_id: (row, str(row.relation)) for row in family}
    providers = {one.module.partition(".")[0]: one for one in plugins.providers()} if rows else {}
    for provider in providers.values():
        try:
            repeating |= _quoting_sessions(provider, store, purged)
        except Exception as error:  # noqa: BLE001  # a plugin may raise anything
            problems.append(f"{provider} cannot say which of its sessions repeat parts of it: {error}")
    return [survivor for session_id, survivor in repeating.items() if session_id not in purged]


def _quoting_sessions(
    provider: plugins.Provider, store: Store, session_ids: set[str]
) -> dict[str, tuple[SessionRow, str]]:
    """Ask a plugin for its sessions that quote these: `quoting_sessions` of its module `plugin` knows them."""
    module = plugins.summary_module(provider.group, provider.name)
    quoting = getattr(module, "quoting_sessions", lambda store, session_ids: ())
    return {row.session_id: (row, str(kind)) for row, kind in quoting(store, session_ids)}


# -- plans -------------------------------------------------------------------------------------------------


def _names(caller: Caller, references: Sequence[str], *, trashed: bool = False) -> list[str]:
    """Return the ids of the sessions that are named, each once."""
    found = [caller.stored_session(one, trashed=trashed).session_id for one in references]
    return list(dict.fromkeys(found))


def _ids(rows: Iterable[SessionRow]) -> list[str]:
    return [row.session_id for row in rows]


def planned_sessions(
    store: Store, rows: Sequence[SessionRow], relations: Sequence[str] | None = None
) -> list[PlannedSession]:
    headings: dict[str, Any] = store.headings(rows[:SHOWN])
    kinds = [row.relation for row in rows] if relations is None else relations
    return [
        PlannedSession(row.session_id, row.turns, kind, headings.get(row.session_id))
        for row, kind in zip(rows, kinds, strict=True)
    ]


def plan_lines(sessions: Sequence[PlannedSession], what: str, *, by_relation: bool = False) -> Iterator[str]:
    for one in sessions[:SHOWN]:
        about = (by_relation and one.relation) or plural(one.turns, "turn")
        yield f"  {one.id}  {clip(one.heading or '', 60)}  ({about}) {what}"
    if len(sessions) > SHOWN:
        yield f"  … and {len(sessions) - SHOWN} more"


def _purge_plan(planned: Purged, with_forks: bool) -> Iterator[str]:
    if planned.attachments:
        size = f"{planned.attachment_bytes:,} bytes"
        yield f"  {plural(planned.attachments, 'unreferenced attachment')} ({size}) will be deleted"
    yield from plan_lines(planned.plan, "is deleted permanently")
    yield from plan_lines(planned.planned_survivors, "stays and repeats parts of it", by_relation=True)
    if planned.surviving:
        remedy = "" if with_forks else "; --with-forks deletes forks and replays too"
        count = plural(len(planned.surviving), "session")
        yield f"  purge apart what repeats parts of what is deleted: {count}{remedy}"
    yield from (f"  {problem}" for problem in planned.problems)
    yield from _plan_imported(planned.imported_from)
    if planned.file_bytes is not None:
        size = f"{planned.file_bytes / 1e6:,.1f} MB"
        yield f"  the file ({size}) is rewritten, so that no byte is left; other writers wait meanwhile"
    yield from plan_lines(planned.planned_trash, "moves to the trash")


def _plan_imported(imported: dict[str, str]) -> Iterator[str]:
    for tool, count in Counter(imported.values()).items():
        sessions, path = plural(count, "session"), _default_places(tool) or "the source"
        yield (
            f"  {sessions} imported from {tool}, which keeps its own: the next import, or a watcher, adds again "
            f"what is still in {path}"
        )


def _default_places(tool: str) -> str:
    """Return where a tool keeps its sessions; nothing if no reader of the tool is installed to say so."""
    try:
        return " and ".join(find_importer(tool).default_places)
    except OakleafError:
        return ""
