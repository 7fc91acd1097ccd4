"""The health of a store: verify, doctor."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Problem, Seal, SealCheck, plugins
from oakleaf.core.time_text import parse_time
from oakleaf.errors import InvalidArgument, NotFound, StoreAbsent, StoreDamaged, plural
from oakleaf.ext import file_health, mark_interrupted, read_store, stuck_sessions
from oakleaf.stores.address import display_url, is_path
from oakleaf.stores.base import Finding
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import AllSpaces, Count, File, Help, Names, Place, Ref
from oakleaf.verbs.screen import Screen, safe, style
from oakleaf.verbs.seal import read_receipts, read_seal

# -- verify ------------------------------------------------------------------------------------------------


class Verified(Struct, frozen=True):
    sessions: int
    """How many sessions were checked."""
    problems: list[Problem]
    seal: SealCheck | None = None
    """What a seal says of them; its problems are among `problems`."""


class Verify(Verb, frozen=True):
    """Check the integrity of one session, all sessions, or a sample.

    Checks hash chains, numbering, call/result pairs, totals, and the journal against the entries, which reveals removed
    ones. Without a session it checks every session, including the trash. Exit code 1 if something is wrong.

    Against a seal it also finds what these cannot show: times, models and owners that were altered since, decisions, and
    sessions that were removed. The trash is no removal, and a purge is none if its receipt is named.
    """

    section = "Maintain"
    http = "GET /api/verify"

    session: Ref | None = None
    sample: Annotated[Count | None, Help("Only N sessions, picked at random.")] = None
    since: Annotated[
        str | None,
        Help("Only sessions active since then: 7d, yesterday, 2026-11-01.", metavar="TIME"),
    ] = None
    against: Annotated[File | None, Help("Compare with a file that oakleaf seal wrote.")] = None
    key: Annotated[File | None, Help("The key that the seal is signed with.")] = None
    receipt: Annotated[
        Names, Help("Receipts of sessions purged since the seal.", metavar="FILE,…", local=True)
    ] = []

    def run(self, caller: Caller) -> Verified:
        self._check_fields()
        if self.against is not None:
            return self._verify_against(caller, read_seal(self.against, self.key))
        if self.session is None:
            return self._verify_many(caller)
        return Verified(1, caller.session(self.session).verify())

    def _check_fields(self) -> None:
        for name, value in (("sample", self.sample), ("since", self.since)):
            if value is not None and (self.session or self.against):
                what = "session" if self.session else "seal"
                raise InvalidArgument(name, value, f"no {what} besides it: it picks from all sessions")
        for name, file in (("key", self.key), ("receipt", self.receipt)):
            if file and self.against is None:
                raise InvalidArgument(name, file, "a seal beside it: --against FILE")

    def _verify_against(self, caller: Caller, seal: Seal) -> Verified:
        purged = read_receipts(self.receipt)
        name = None if self.session is None else self._sealed_name(caller, self.session)
        with caller.progress("compare", "sessions") as step:
            check = caller.store.check_seal(seal, session_id=name, purged=purged, progress=step)
        if name is None:
            done = self._verify_many(caller)
        else:
            done = Verified(1, list(caller.store.verify([] if check.is_gone(name) else [name])))
        return replace(done, problems=[*check.problems, *done.problems], seal=check)

    def _sealed_name(self, caller: Caller, reference: str) -> str:
        """Return the id of a session. One that was removed is named by the whole id."""
        try:
            return caller.session(reference).session_id
        except NotFound:
            return reference

    def _verify_many(self, caller: Caller) -> Verified:
        store = caller.store
        floor = 0 if self.since is None else parse_time("since", self.since, read_store(store).now())
        rows = (row for trashed in (False, True) for row in store.all_sessions(trashed=trashed, limit=500))
        names = [row.session_id for row in rows if row.updated_at >= floor]
        if self.sample is not None and self.sample < len(names):
            names = random.sample(names, self.sample)
        is_partial = self.sample is not None or self.since is not None
        with caller.progress("verify", "sessions") as step:
            return Verified(len(names), list(store.verify(names if is_partial else None, step)))

    def lines(self, result: Verified, screen: Screen) -> Iterator[str]:
        yield from map(str, result.problems)

    def notes(self, result: Verified, screen: Screen) -> Iterator[str]:
        yield f"{plural(result.sessions, 'session')}, {plural(len(result.problems), 'problem')}"
        if result.seal is not None:
            yield from _seal_notes(result.seal, screen)
        elif result.problems:
            yield StoreDamaged("", "").command_hint

    def exit_code(self, result: Verified) -> int:
        return int(bool(result.problems))


def _seal_notes(check: SealCheck, screen: Screen) -> Iterator[str]:
    yield f"compared {plural(check.sealed, 'session')} with the seal of {screen.time(check.made_at)}"
    if check.grown:
        yield f"{plural(check.grown, 'session')} changed since: the seal covers what was there before"
    if check.purged:
        yield f"{plural(len(check.purged), 'session')} purged since, by the receipts: {', '.join(check.purged[:20])}"


# -- doctor ------------------------------------------------------------------------------------------------


class Health(Struct, frozen=True, kw_only=True):
    backend: str
    """What was checked, without a password."""
    healthy: bool
    findings: list[Finding]
    stuck: list[str] = []
    """Sessions whose process died: those that a plan would mark as interrupted, or that were marked."""


class Doctor(Verb, frozen=True):
    """Check the health of a store, or of another tool's session folder.

    Of a folder of .jsonl sessions of another tool, calls without results, results without calls and truncated lines are
    reported. Exit code 1 if there are problems: a session that failed within a day or whose process died, tasks that wait
    without a worker, workers that keep dying.
    """

    section = "Maintain"
    has_local_plan = True

    folder: Place | None = None
    all_spaces: AllSpaces = False
    fix: Annotated[
        bool,
        Help("Mark sessions whose process died as interrupted, after listing them.", local=True),
    ] = False

    @property
    def needs_yes(self) -> bool:
        return self.fix

    def plan(self, caller: Caller) -> Health:
        found = self._check(caller)
        return replace(found, stuck=[row.session_id for row in stuck_sessions(caller.store)])

    def question(self, planned: Health) -> str | None:
        count = plural(len(planned.stuck), "session")
        return f"Mark {count} as interrupted?" if planned.stuck else None

    def run(self, caller: Caller) -> Health:
        if not self.fix:
            return self._check(caller)
        rows = stuck_sessions(caller.store)
        for row in rows:
            mark_interrupted(caller.store, row)
        return replace(self._check(caller), stuck=[row.session_id for row in rows])

    def _check(self, caller: Caller) -> Health:
        if self.all_spaces and (self.fix or self.folder is not None):
            raise InvalidArgument("all_spaces", True, "neither a fix nor a folder beside it")
        with caller.progress("doctor") as step:
            counter = count(1)
            found = _findings(caller, self.folder, self.all_spaces, lambda: step(next(counter), None))
        findings = [replace(one, fix=caller.typed(one.fix, one.space)) for one in found]
        return Health(
            backend=display_url(self.folder or caller.address),
            healthy=all(one.level != "problem" for one in findings),
            findings=findings,
        )

    def lines(self, result: Health, screen: Screen) -> Iterator[str]:
        yield result.backend
        for finding in result.findings:
            mark, colour = _MARKS[finding.level]
            hint = style(f"  → {finding.fix}", "dim") if finding.fix else ""
            where = "" if finding.space is None else f"{safe(finding.space)}: "
            yield f"{style(mark, colour)} {where}{finding.message}{hint}"
        if result.stuck:
            yield f"  the process is gone of {', '.join(result.stuck)}"

    def notes(self, result: Health, screen: Screen) -> Iterator[str]:
        if self.fix and not result.stuck:
            yield "nothing to fix"
        if result.stuck:
            yield f"{plural(len(result.stuck), 'session')} marked interrupted; oakleaf resume continues each"

    def exit_code(self, result: Health) -> int:
        return int(not result.healthy)


_MARKS = {"ok": ("✓", "green"), "warning": ("•", "yellow"), "problem": ("✗", "red")}


def _findings(
    caller: Caller, folder: str | None, all_spaces: bool, progress: Callable[[], None]
) -> list[Finding]:
    """Return the findings of a folder of another tool, or of the caller's store."""
    place = Path(folder or caller.address)
    if folder is not None and not place.is_dir():
        raise InvalidArgument("folder", folder, "a folder; oakleaf --store FILE doctor checks a store")
    if place.is_dir():
        found: list[Finding] = plugins.find(plugins.VERBS, "doctor.folder")(str(place), progress)
        return found
    is_file = is_path(caller.address) and place.exists()
    findings = file_health(caller.address) if is_file else []
    if any(one.level == "problem" and one.is_final for one in findings):
        return findings
    try:
        store = caller.store
    except StoreAbsent as error:
        return [Finding("problem", error.problem, error.command_hint, is_final=True)]
    return findings + list(store.findings(progress, all_spaces=all_spaces))
