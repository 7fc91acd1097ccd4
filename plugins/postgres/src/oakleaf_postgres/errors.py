"""The errors of this plugin that no other part of Oakleaf raises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from oakleaf.errors import ExitCode, OakleafError, StoreError, list_some
from oakleaf.install import install_line

TRIED_AGAIN = "the task is tried again while it has attempts left; after the last one call oakleaf_postgres.absurd.resume(session)"
"""The hint of an error that fails a task."""


class EngineNotInstalled(StoreError):
    def __init__(self, location: str, queue: str, reason: str) -> None:
        self.location, self.queue, self.reason = location, queue, reason
        super().__init__(
            f"{location} {reason}",
            f"run oakleaf --store URL migrate --queue {queue}, once, as the role that owns the schema",
        )


class MissingPermission(StoreError):
    def __init__(self, location: str, role: str, reason: str, hint: str | None = None) -> None:
        self.role = role
        super().__init__(
            f"role {role!r} lacks a permission on {location}: {reason}",
            hint
            or f"to open a store, grant oakleaf_service to {role} (or the service role you chose); to migrate, grant the "
            "permission to create a schema and roles",
        )


class UnsafeRights(StoreError):
    """Rights in a database that let others than the service read or write what is not theirs."""

    def __init__(self, location: str, rights: Sequence[str]) -> None:
        self.location, self.rights = location, tuple(rights)
        named, more = rights[:5], len(rights) - 5
        super().__init__(
            f"{location} gives rights away, so nothing was done: {'; '.join(named)}{f'; {more} more' if more > 0 else ''}",
            "run oakleaf --store URL migrate as the role that owns the schema: it revokes what was granted; an administrator "
            "revokes a membership and drops a trigger. What a person should see on purpose, grant to another role",
        )


class StoreHeld(StoreError):
    """Others hold what a scrub has to rewrite: a snapshot that can still read it, or a lock."""

    def __init__(self, location: str, what: str, holders: Sequence[tuple[str, str]]) -> None:
        self.location, self.holders = location, tuple(name for name, _ in holders)
        more = f", and {len(holders) - 3} more" if len(holders) > 3 else ""
        names = "; ".join(self.holders[:3]) or "somebody who has just gone"
        steps = "; ".join(step for _, step in holders[:3])
        super().__init__(
            f"{location}: the scrub is not complete, since somebody {what}: {names}{more}",
            f"end it, and scrub again: {steps}" if steps else "scrub again",
        )


class UnknownAgent(OakleafError):
    def __init__(self, name: str | None, known: Sequence[str]) -> None:
        self.name, self.known = name, tuple(known)
        problem = "no agent is named" if name is None else f"this worker has no agent {name!r}"
        super().__init__(
            f"{problem} (it has {list_some(known) or 'none'})",
            "run oakleaf worker --agents FILE.py with a file that contains "
            f"oakleaf_postgres.absurd.Agent({name or 'NAME'!r}, model=…)",
        )


class PoisonTask(OakleafError):
    def __init__(self, session_id: str, task_id: str, queue: str, deaths: int, last: str | None) -> None:
        self.session_id, self.task_id, self.queue, self.deaths = session_id, task_id, queue, deaths
        super().__init__(
            f"task {task_id} of session {session_id} was given up: {deaths} processes died in the same step"
            f" (the last one: {last or 'unknown'}); what is durable stays",
            f"fix what its step runs, then oakleaf enqueue --queue {queue} --resume {session_id}",
        )


class SessionRewound(OakleafError):
    def __init__(self, session_id: str, step_end: int, seq: int) -> None:
        self.session_id, self.step_end, self.seq = session_id, step_end, seq
        super().__init__(
            f"session {session_id} is at {seq}, but the task's steps had reached {step_end}: the session was moved "
            "meanwhile",
            "send again from the current leaf, or call session.redo() and retry the task",
        )


class EngineMissing(StoreError):
    """A package of the Absurd engine is not installed. The store itself works without it."""

    exit_code = ExitCode.USAGE
    http_status = 501

    def __init__(self, module: str | None) -> None:
        self.module = module
        super().__init__(
            f"the engine 'absurd' needs {module}, and that is not installed",
            f"install it with: {install_line('absurd')}",
        )


@contextmanager
def needs_absurd() -> Iterator[None]:
    """Raise EngineMissing if an import in the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise EngineMissing(error.name) from None
