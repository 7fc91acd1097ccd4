"""Erase a customer: erase, with a receipt that `verify --against` reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf import plugins
from oakleaf.core.codec import decode_message
from oakleaf.core.typed_json import json_decoder
from oakleaf.errors import InvalidArgument, InvalidOperation, NotFound, OakleafError, plural
from oakleaf.ext import atomic_file, read, read_store
from oakleaf.stores.base import SessionRow
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import File, Help
from oakleaf.verbs.screen import Screen
from oakleaf.verbs.trash import PlannedSession, plan_lines, planned_sessions


class Erased(Struct, frozen=True, kw_only=True):
    """The receipt of an erasure. It has ids, and no content."""

    done: bool
    """False for a plan, and for an erasure that was cut off."""
    owner: str
    space: str
    at: int
    """Microseconds since 1970."""
    purged: list[str]
    """The sessions deleted permanently."""
    lab_runs: list[str] = []
    """Lab runs that quoted them, and were deleted. What they said of other owners is in new runs."""
    history: int = 0
    """Inputs removed from the chat history of this machine."""
    scrubbed: bool = False
    """Whether no byte is left in the store's files."""
    problems: list[str] = []
    plan: list[PlannedSession] = []


_decode_receipt = json_decoder(Erased)


class Erase(Verb, frozen=True):
    """Erase a customer: all sessions of an owner, with everything that repeats them, for good.

    Deletes the owner's sessions, with tasks, forks and replays whoever owns them, in the trash too, drafts, queued inputs,
    attachments, the search index, what lab runs quote of them, and their inputs in the chat history of this machine. Then
    the files are rewritten, so that no byte is left; on PostgreSQL the owner of the tables alone can do that. Bundles,
    exports, seals and backups are files of your own.

    --receipt FILE is written before the first deletion. After an interruption the same command goes on, and the receipt is
    whole. oakleaf verify --against SEAL --receipt FILE accepts what it names.
    """

    section = "Maintain"
    effect = "destroy"
    examples = ("oakleaf erase --owner ann --receipt ann.json",)

    owner: Annotated[str, Help("The customer.", metavar="NAME")]
    receipt: Annotated[File | None, Help("Write the receipt to a file.")] = None

    def plan(self, caller: Caller) -> Erased:
        rows, (earlier, earlier_runs) = self._rows(caller), self._unfinished(caller)
        caller.store.raise_if_running(rows)
        return self._erased(
            caller,
            purged=_united(earlier, rows),
            lab_runs=_united(earlier_runs, [row for row, _ in _lab_runs(caller, rows)]),
            plan=planned_sessions(caller.store, rows),
        )

    def question(self, planned: Erased) -> str | None:
        return "Erase permanently?" if planned.purged else None

    def run(self, caller: Caller) -> Erased:
        store, rows, (earlier, earlier_runs) = caller.store, self._rows(caller), self._unfinished(caller)
        store.raise_if_running(rows)
        quoting = _lab_runs(caller, rows)
        lab_runs = _united(earlier_runs, [row for row, _ in quoting])
        erased = self._erased(caller, purged=_united(earlier, rows), lab_runs=lab_runs)
        self._write(erased)  # before the first deletion: a later run knows what this one was about
        history = caller.forget(_inputs(caller, rows))
        runs = [_without(caller, module, row, rows) for row, module in quoting]
        with caller.progress("erase", "sessions") as step:
            # Runs first: an erasure that goes on finds them by the rows.
            for number, row in enumerate([*runs, *rows], 1):
                _purge(caller, row.session_id)
                step(number, len(rows) + len(runs))
        if started := self._rows(caller):
            raise InvalidOperation(
                f"{self.owner} has {plural(len(started), 'session')} more, started meanwhile",
                "stop what serves them, and erase again with the same receipt",
            )
        store.gc()
        scrubbed, problems = _scrub(caller)
        erased = replace(
            erased,
            done=True,
            history=history,
            scrubbed=scrubbed,
            problems=problems,
        )
        self._write(erased)
        return erased

    def _rows(self, caller: Caller) -> list[SessionRow]:
        """Return the sessions of the owner, with all that come from them, deepest last."""
        store, rows = caller.store, dict[str, SessionRow]()
        for trashed in (False, True):
            for own in store.all_sessions(owner=self.owner, trashed=trashed, limit=500):
                rows.update((row.session_id, row) for row in store.family(own.session_id, forks=True))
        return list(rows.values())

    def _erased(
        self,
        caller: Caller,
        *,
        purged: list[str],
        lab_runs: Sequence[str] = (),
        plan: Sequence[PlannedSession] = (),
    ) -> Erased:
        reader = read_store(caller.store)
        return Erased(
            done=False,
            owner=self.owner,
            space=reader.space,
            at=reader.now(),
            purged=purged,
            lab_runs=list(lab_runs),
            plan=list(plan),
        )

    def _unfinished(self, caller: Caller) -> tuple[list[str], list[str]]:
        """Return the sessions and the lab runs of an erasure of the owner that was cut off."""
        space = read_store(caller.store).space
        if self.receipt is not None and not Path(self.receipt).parent.is_dir():
            raise InvalidArgument("receipt", self.receipt, "the name of a file in a folder that exists")
        if self.receipt is None or not Path(self.receipt).exists():
            return [], []
        try:
            if not Path(self.receipt).is_file():
                raise OSError  # a device may have no end
            found = _decode_receipt(Path(self.receipt).read_bytes())
        except (OSError, msgspec.MsgspecError):
            raise InvalidArgument(
                "receipt", self.receipt, "the name of a new file, or an unfinished receipt"
            ) from None
        if found.owner != self.owner:
            raise InvalidArgument(
                "receipt", self.receipt, f"the receipt of {self.owner}; it is of {found.owner}"
            )
        if found.space != space:
            raise InvalidArgument(
                "receipt", self.receipt, f"a receipt of the space {space}; it is of {found.space}"
            )
        if found.done and found.scrubbed:
            raise InvalidArgument("receipt", self.receipt, "the name of a new file; this receipt is complete")
        return found.purged, found.lab_runs

    def _write(self, erased: Erased) -> None:
        if self.receipt is not None:
            with atomic_file(Path(self.receipt)) as file:
                file.write(msgspec.json.encode(erased) + b"\n")

    def lines(self, result: Erased, screen: Screen) -> Iterator[str]:
        if result.done:
            yield f"erased {plural(len(result.purged), 'session')} of {result.owner}"
            return
        yield from plan_lines(result.plan, "is deleted permanently", by_relation=True)
        yield from (f"  {run}  (lab run) loses what it says of them" for run in result.lab_runs)

    def notes(self, result: Erased, screen: Screen) -> Iterator[str]:
        if not result.purged:
            yield f"{result.owner} has no sessions in the space {result.space}"
        yield from result.problems
        if result.done and not result.scrubbed:
            yield (
                "the sessions are gone, and their bytes are still in the store's files: run it again with the same receipt, "
                "on PostgreSQL as the owner of the tables"
            )

    def exit_code(self, result: Erased) -> int:
        return int(result.done and not result.scrubbed)


def _united(earlier: Sequence[str], rows: Sequence[SessionRow]) -> list[str]:
    return list(dict.fromkeys([*earlier, *(row.session_id for row in rows)]))


def _inputs(caller: Caller, rows: Sequence[SessionRow]) -> set[str]:
    """Return the texts that were typed into the sessions."""
    texts = set()
    for row in rows:
        with suppress(OakleafError):  # damaged: it can still be deleted
            session = caller.store.session(row.session_id)
            messages = [entry.message for entry in session.entries()]  # an undone input was typed, too
            messages += [decode_message(queued.body) for queued in read(session).inbox()]
            texts |= {message.text for message in messages if message and message.role == "user"}
    return texts


def _lab_runs(caller: Caller, rows: Sequence[SessionRow]) -> list[tuple[SessionRow, object]]:
    """Return the sessions of plugins that quote the sessions, each with its plugin's module."""
    ids = {row.session_id for row in rows}
    providers = {one.module.partition(".")[0]: one for one in plugins.providers()} if rows else {}
    found: list[tuple[SessionRow, object]] = []
    for provider in providers.values():
        module = plugins.summary_module(provider.group, provider.name)
        quoting = getattr(module, "quoting_sessions", None)
        if quoting is not None:
            found += [(row, module) for row, _ in quoting(caller.store, ids)]
    return found


def _without(caller: Caller, module: object, row: SessionRow, rows: Sequence[SessionRow]) -> SessionRow:
    """Let a plugin keep what a session of its own says of other sessions; return the session, to be deleted."""
    keep = getattr(module, "keep_without", None)
    if keep is not None:
        keep(caller.store, row, {one.session_id for one in rows})
    return row


def _purge(caller: Caller, session_id: str) -> None:
    """Delete a session for good, with all that comes from it, wherever an earlier erasure stopped."""
    with suppress(NotFound):  # it went with its parent
        if caller.store.session(session_id).row.trashed_at is None:
            caller.store.delete(session_id)
        caller.store.purge(session_id, with_forks=True, scrub=False)


def _scrub(caller: Caller) -> tuple[bool, list[str]]:
    try:
        return caller.store.scrub(), []
    except OakleafError as error:
        return False, [error.problem]
