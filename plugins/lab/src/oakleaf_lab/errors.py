"""The errors of the lab and of regression cases.

OakleafError
├── SessionRunning
│   └── LabRunning             a process runs this lab run already
├── InvalidOperation
│   └── InvalidLab             a lab run with contradictory options, or a gate that cannot be parsed
├── EmptyCohort                no session to run a lab on
├── BudgetReached              the next model call of a lab run could pass its cost limit; it was not made
├── InvalidCase                a regression case that cannot be run
├── CaseExists                 a file where a regression case would be written; nothing was written
├── NothingToPromote           no complete turn to make a regression case of
├── NothingExpected            a turn without an answer, and nothing named that it must do; nothing was written
└── AttachmentsMissing         a regression case that could not run without what its bundle leaves out
"""

from __future__ import annotations

from collections.abc import Sequence

from oakleaf.errors import (
    ExitCode,
    InvalidOperation,
    OakleafError,
    SessionRunning,
    list_some,
    plural,
    short_holder,
)


class LabRunning(SessionRunning):
    def __init__(self, run_id: str, holder: str | None) -> None:
        self.session_id, self.holder = run_id, holder
        OakleafError.__init__(
            self,
            f"lab run {run_id} is run by {'another process' if holder is None else short_holder(holder)}",
            "wait for it, or end that process and run it again: it continues where it stopped",
            f"wait for it, or end that process and run the same command again; oakleaf lab show {run_id} shows how far it is",
        )


class InvalidLab(InvalidOperation):
    exit_code = ExitCode.USAGE

    def __init__(self, reason: str, hint: str, command_hint: str | None = None) -> None:
        self.reason = reason
        super().__init__(reason, hint, command_hint)


class EmptyCohort(OakleafError):
    exit_code = ExitCode.USAGE

    def __init__(self, cohort: Sequence[str], skipped: Sequence[tuple[str, int]]) -> None:
        self.cohort, self.skipped = tuple(cohort), tuple(skipped)
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped)
        hints = (
            "store.search(…) shows what a query finds",
            "oakleaf search shows what a query finds, oakleaf lab cohort the saved cohorts",
        )
        if any(reason.startswith(("with model", "with no model")) for reason, _ in skipped):
            hints = (
                "name the baseline's model: baseline_model=…",
                "name the baseline's model with --set baseline.model=NAME",
            )
        super().__init__(
            f"no session of {list_some(cohort)} can be replayed" + (f" ({reasons})" if reasons else ""),
            *hints,
        )


class BudgetReached(OakleafError):
    exit_code = ExitCode.UNANSWERABLE

    def __init__(self, spent: str, reserved: str, call: str, limit: str) -> None:
        running = f" and {reserved} is reserved for calls that are running" if reserved else ""
        super().__init__(
            f"{spent} of {limit} is spent{running}, and the next model call may cost {call}",
            "run it again with a larger max_cost_dollars=; it continues where it stopped. A smaller max_tokens option bounds a call",
            "run the same command with a larger --max-cost; it continues where it stopped. -o max_tokens=N bounds a call",
        )


class InvalidCase(OakleafError):
    exit_code = ExitCode.USAGE

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} is not a regression case that can be run: {reason}",
            "oakleaf lab promote writes one; docs/testing.md describes it",
        )


class CaseExists(OakleafError):
    exit_code = ExitCode.USAGE

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} exists already; nothing was written",
            "choose another name=, or pass overwrite=True",
            "choose another --name, or remove the file",
        )


class NothingToPromote(OakleafError):
    exit_code = ExitCode.USAGE

    def __init__(self, session_id: str, at: int | None, turns: Sequence[int], reason: str = "") -> None:
        self.session_id, self.at, self.turns = session_id, at, turns
        if turns:
            reason = reason or f"entry {at} is in no turn"
            inputs = list_some([str(turn) for turn in turns], 8)
            hints = [f"name an entry of a turn; turns start at {inputs}"]
        elif not reason:
            reason = "it has no turn"
            hints = [
                "send it an input first: session.send(…)",
                f"oakleaf run --resume {session_id} TEXT adds one",
            ]
        else:
            hints = [
                "finish the turn first: session.resume()",
                f"oakleaf log {session_id} lists its entries, oakleaf resume {session_id} finishes its turn",
            ]
        super().__init__(
            f"{session_id} cannot be made a regression case: {reason}; nothing was written", *hints
        )


class NothingExpected(OakleafError):
    """A case would pass whatever its turn does: the turn has no answer, and nothing else is expected of it."""

    exit_code = ExitCode.USAGE

    def __init__(self, session_id: str, turn: int, *, is_last: bool) -> None:
        self.session_id, self.turn = session_id, turn
        resume = (
            "session.resume() gets the answer, or ",
            f"oakleaf resume {session_id} gets the answer, or ",
        )
        hints = (
            "name what the turn must do: says=, never_says=, never_calls= or scorers=",
            "name in Python what the turn must do: oakleaf_lab.promote(…, says=[…]); docs/testing.md describes it",
        )
        super().__init__(
            f"turn {turn} of {session_id} has no answer, so a case would expect nothing of it; nothing was written",
            *((first + hint for first, hint in zip(resume, hints, strict=True)) if is_last else hints),
        )


class AttachmentsMissing(OakleafError):
    """A case cannot be replayed without the attachments of its turns."""

    exit_code = ExitCode.USAGE

    def __init__(self, session_id: str, count: int, *, is_left_out: bool) -> None:
        self.session_id, self.count = session_id, count
        words = plural(count, "attachment")
        if is_left_out:
            problem = (
                f"{session_id} has {words}, which the bundle leaves out, and the case could not run without"
            )
            hints = (
                "promote it with redact=False, blobs=True: attachments cannot be searched for secrets",
                "add --no-redact --blobs: attachments cannot be searched for secrets",
            )
        else:
            problem = f"{words} of {session_id} {'is' if count == 1 else 'are'} not in this store"
            hints = ("import the session again from a bundle with blobs=True",) * 2
        super().__init__(f"{problem}; nothing was written", *hints)
