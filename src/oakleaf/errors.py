"""Every error Oakleaf raises: what happened, what to do next, and how the command line and the server report it.

    OakleafError
    ├── PluginMissing               a plugin is not installed, or lacks a package
    ├── PluginBroken                a plugin cannot be used; everything else works
    ├── NotFound                    no such session in this store, space and owner
    ├── InvalidReference            a reference that names no session, several, or an entry that is not there
    ├── StaleLeaf                   the leaf moved; nothing was written
    ├── Fenced                      another runner has taken over the session; nothing was written
    │   └── ClaimLost               another worker has the task now; nothing was written
    ├── SessionRunning              a runner holds the session; its leaf may not be moved
    │   └── TurnOpen                … or the input before waits for a worker
    ├── InputsQueued                an input with a key or options while others are queued; it was not stored
    ├── KeyReused                   another input was recorded under the key; this one was not stored
    ├── SessionTrashed              the session is in the trash
    │   └── TaskTrashed             … and another session waits for it
    ├── AgentBound                  the session is bound to another agent; nothing was written
    ├── NotTrashed                  only a session in the trash can be purged
    ├── IdTaken                     the session id belongs to another history
    │   └── IdConflict              an imported session's id belongs to other content here
    ├── UnknownImporter             no importer for sessions of that program
    ├── InvalidSource               not a source of sessions of the named program
    ├── InvalidBundle               not a complete bundle; nothing was changed
    ├── UnknownFormat               no plugin writes sessions in that format
    ├── PageTooLarge                more than one HTML file should hold; nothing was written
    ├── AnswerTooLarge              more than one answer of a surface may have
    ├── InvalidOperation            not allowed at this point of the log; nothing was written
    │   ├── OpenBatch               tool calls wait for their results
    │   ├── OrphanResult            a tool result without its call
    │   ├── CallAlreadyStarted      a tool call that may have taken effect already
    │   ├── ApprovalRequired        a tool call that a person must approve first
    │   ├── InvalidMessage          a part its role cannot have, an unknown kind or role
    │   ├── InvalidPosition         not an entry on this path
    │   ├── NothingToUndo           no input, or no compaction
    │   ├── NothingToRedo           nothing was rewound
    │   ├── ApprovalPending         a new input while a call waits for a person
    │   ├── NotWaiting              a decision about a call that waits for nobody
    │   ├── ApproverUnnamed         a decision without a name about a tool that wants one
    │   ├── ToolsNotAllowed         the session may no longer use these tools
    │   ├── ToolsMissing            a call waits for a tool that only another process has
    │   ├── ImportNotAccepted       calls and inputs that an import left open; nothing was run
    │   ├── SessionIsReplay         a replay can be read and forked, not continued
    │   └── InvalidReplay           a replay with contradictory options
    ├── InvalidValue                a value that not every store can keep unchanged
    │   ├── NotJson                 NaN, a non-string key, an object JSON cannot express
    │   ├── NotText                 another type where text is expected
    │   ├── InvalidText             a lone surrogate, or a NUL in a plain text column
    │   ├── InvalidId               an id that a URL or a file name would read as another
    │   ├── InvalidCount            usage that is not a count of tokens or money
    │   ├── InvalidArgument         an argument out of its range
    │   ├── UnknownField            an argument that the verb does not have
    │   ├── UnknownExportOption     an option that the format of an export lacks
    │   ├── InvalidOption           an option of a model call that the provider lacks, or refuses the value of
    │   ├── WrongSpace              a query for a space this store was not opened for
    │   ├── SpacesHidden            the list of spaces, asked by a caller who may see one alone
    │   ├── WrongOwner              a new session of an owner this store was not opened for
    │   ├── SecretTooShort          a secret too short to redact
    │   ├── SecretInName            a secret in an id or a name, where it cannot be redacted
    │   ├── SecretInWorkspace       a secret in a variable or a field of a workspace, which is plain text
    │   ├── InvalidSearch           a search query that cannot be parsed
    │   └── SealRefused             a seal that was altered, of another key, or of another store
    ├── MissingBlob                 a media handle without its bytes
    ├── InvalidSummary              a summary that is empty or longer than what it replaces
    ├── TurnTooLarge                the newest turn alone exceeds the budget
    ├── UnknownProvider             no wire format of that name
    ├── ModelError                  a model gave no answer
    │   ├── Overloaded              too busy, unreachable or temporarily broken
    │   ├── ContextOverflow         the history is too long for the model
    │   │   └── PromptTooLarge      what no compaction can shorten is too long; nothing was sent
    │   ├── TruncatedReply          the answer ended in the middle
    │   └── ModelUnavailable        no such model, no key, or its SDK is not installed
    │       └── ModelRefused        named by stored data or a request, and not allowed by the operator
    ├── UnrecognizedReply           not a reply of a known provider
    ├── OutOfScope                  a path, command or address the workspace does not allow
    ├── PlatformUnsupported         what makes a feature safe is missing on this operating system
    ├── TokenRequired               a server that others could reach without a token
    ├── InvalidTool                 a function that cannot be a tool
    │   └── DuplicateTool           two tools of one name
    ├── Refused                     raised by a hook of the host: a turn, model call or tool call is not run
    ├── TurnLimit                   a limit stopped a turn or refused its input, which was not stored
    ├── TurnFailed                  a turn got no answer
    │   └── TurnCancelled           … because session.cancel() or oakleaf cancel ended it
    └── StoreError                  the file or server itself
        ├── NotAStore               not an Oakleaf store
        ├── StoreAbsent             no file at the address
        ├── NewerFormat             written by a newer Oakleaf
        ├── PrereleaseFormat        written under the former name, before the first release
        ├── ServerUnreachable       no connection to the database server
        ├── MigrationNeeded         the database has no Oakleaf schema, or an older one
        ├── PostgresRequired        workers, which need PostgreSQL
        ├── UnknownCommit           the connection broke during a commit and did not come back
        ├── InvalidKey              an unusable encryption key
        ├── EncryptionUnavailable   a key, and a SQLite that cannot encrypt
        ├── StoreReadOnly           no permission to write
        ├── StoreFull               the disk is full; nothing was written
        ├── StoreLocked             another program kept the file locked
        ├── IndexBehind             new text cannot be indexed, so a search would miss it
        ├── StoreDamaged            the database file is corrupt
        ├── StoreLacks              this kind of store cannot do it; nothing was done
        └── StoreClosed             used after close

Constructors take data and compose the texts here, so that the command line and the server only ask the error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from oakleaf.agent.events import RunResult
    from oakleaf.core.tree import Leaf
    from oakleaf.core.usage import Usage


class ExitCode(IntEnum):
    """How the command line exits."""

    OK = 0
    PROBLEM = 1
    """Something differs, or a problem was found."""
    USAGE = 2
    LOCKED = 3
    """Stale or locked: another process wrote or holds the session."""
    UNANSWERABLE = 4
    """A comparison that cannot be made: a model is unreachable, a replay incomplete."""


class OakleafError(Exception):
    """Base class: catch OakleafError to catch every error of Oakleaf.

    `problem` says what happened, `hint` what to do next in Python, `command_hint` what to do next at the command
    line or in the viewer (the same hint unless it differs). `str()` is the problem and the Python hint.
    """

    code = "oakleaf_error"
    """The name of the class in snake case, for programs."""
    exit_code = ExitCode.PROBLEM
    http_status = 400

    def __init__(self, problem: str, hint: str = "", command_hint: str | None = None) -> None:
        self.problem, self.hint = without_passwords(problem), hint
        self.command_hint = hint if command_hint is None else command_hint
        super().__init__(_join(self.problem, hint))

    def __init_subclass__(cls) -> None:
        cls.code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    def with_hint(self, hint: str) -> Self:
        """Return this error with another next step in Python: the verb of the caller's own loop."""
        self.hint, self.args = hint, (_join(self.problem, hint),)
        return self

    @property
    def command_text(self) -> str:
        """The problem and the hint at the command line."""
        return _join(self.problem, self.command_hint)


def _join(problem: str, hint: str) -> str:
    return f"{problem}; {hint}" if hint else problem


def without_passwords(text: str) -> str:
    """Return the text without passwords of URLs."""
    if "://" not in text or "@" not in text:
        return text
    first, *rest = text.split("://")
    return "://".join([first, *map(_without_password, rest)])


def _without_password(after_scheme: str) -> str:
    url = (after_scheme.split(maxsplit=1) or [""])[0]
    login, at, _ = url.rpartition("@")
    _, colon, password = login.partition(":")
    return after_scheme.replace(f":{password}@", ":…@", 1) if at and colon and password else after_scheme


def shorten(text: str, length: int = 80) -> str:
    """Return the text, cut to at most `length` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def plural(count: int, noun: str) -> str:
    """Return the count with a noun: `1 turn`, `2 turns`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def list_some(names: Sequence[str], count: int = 3, length: int = 40) -> str:
    """Return the first names, and how many more there are."""
    text = ", ".join(shorten(name, length) for name in names[:count])
    return text if len(names) <= count else f"{text} and {len(names) - count} more"


def _use_one_of(name: str, names: Sequence[str]) -> str:
    """Return the hint for an unknown name: the similar names first, then all."""
    from difflib import get_close_matches  # late: few programs see this error

    near = [one for one in names if name and one.startswith(name)] or get_close_matches(name, names, 2)
    guess = f"did you mean {' or '.join(near)}? Else " if near else ""
    return f"{guess}use one of {', '.join(names)}"


# -- plugins -----------------------------------------------------------------------------------------------------


class PluginMissing(OakleafError):
    """A plugin asked for by name is not installed, or lacks a package."""

    exit_code = ExitCode.USAGE
    http_status = 501

    def __init__(self, group: str, name: str, provider: str = "", module: str = "") -> None:
        self.group, self.name, self.provider, self.module = group, name, provider, module
        kind = group.rpartition(".")[2].removesuffix("s")
        problem = f"{provider} needs {module} for the {kind} {name!r}, and that is not installed"
        if not provider:
            problem = f"no installed plugin adds the {kind} {name!r}"
        super().__init__(problem, _plugin_hint(group, name, provider, module))


def _plugin_hint(group: str, name: str, provider: str, module: str) -> str:
    from oakleaf.install import extra_of, install_line

    extra = extra_of(group, name)
    if extra:
        return f"install it with: {install_line(extra)}"
    if provider:
        return f"install {module}, or uninstall {provider}; everything else works"
    return "oakleaf plugins lists what is installed"


class PluginBroken(OakleafError):
    """A plugin cannot be used: loading raised an error, or the plugin breaks the promise of the name."""

    http_status = 500

    def __init__(self, group: str, name: str, provider: str, reason: str, hint: str = "") -> None:
        self.group, self.name, self.provider = group, name, provider
        kind = group.rpartition(".")[2].removesuffix("s")
        super().__init__(
            f"the {kind} {name!r} of {provider} cannot be used: {reason}",
            f"{hint or f'mend or uninstall {provider}'}; everything else works",
        )


# -- sessions ----------------------------------------------------------------------------------------------------


class NotFound(OakleafError):
    """No session of the tenant has the id."""

    exit_code = ExitCode.USAGE
    http_status = 404

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"no session {session_id!r} in this store, space and owner",
            "list the sessions with store.sessions()",
            "oakleaf ls lists the sessions",
        )


class InvalidReference(OakleafError):
    """A reference to a session that names none, several, or an entry that is not there."""

    exit_code = ExitCode.USAGE
    http_status = 404


class StaleLeaf(OakleafError):
    """The leaf moved; nothing was written. `present` is the current leaf."""

    exit_code = ExitCode.LOCKED
    http_status = 409

    def __init__(self, session_id: str, expected: Leaf, present: Leaf) -> None:
        self.session_id, self.expected, self.present = session_id, expected, present
        super().__init__(
            f"session {session_id} is at {present}, not at {expected}: another writer moved it; nothing was written",
            "call session.refresh(), look at the new entries, then decide",
            f"look at it with oakleaf show {session_id}, then try again",
        )


class Fenced(OakleafError):
    exit_code = ExitCode.LOCKED
    http_status = 409

    def __init__(self, session_id: str, fence: int, present: int) -> None:
        self.session_id, self.fence, self.present = session_id, fence, present
        super().__init__(
            f"another runner has taken over session {session_id} (its fence is {present}, yours {fence}); "
            "nothing was written",
            "stop this runner; the other one continues",
            "",
        )


class ClaimLost(Fenced):
    def __init__(self, queue: str, task_id: str) -> None:
        self.queue, self.task_id = queue, task_id
        OakleafError.__init__(
            self,
            f"task {task_id} of queue {queue!r} is no longer this worker's: its lease expired or it was cancelled; "
            "nothing was written",
            "the worker that has it now continues",
        )


class SessionRunning(OakleafError):
    exit_code = ExitCode.LOCKED
    http_status = 409

    def __init__(self, session_id: str, holder: str | None, lease_until: int | None) -> None:
        self.session_id, self.holder, self.lease_until = session_id, holder, lease_until
        runner = "an unnamed runner" if holder is None else short_holder(holder)
        until = (
            "" if lease_until is None else f", whose lease lasts until {_clock(lease_until)} and is renewed"
        )
        super().__init__(
            f"session {session_id} is run by {runner}{until}",
            "wait for its turn to end, or queue your input with session.enqueue(text); if its runner is gone, call "
            "session.resume(…, take_over=True)",
            f"wait for its turn to end (oakleaf tail -f {session_id}), or queue your input with oakleaf run --resume {session_id} --queue TEXT; if "
            f"its runner is gone: oakleaf resume {session_id} --take-over",
        )


class TurnOpen(SessionRunning):
    """Workers take a single input of a session at a time, and the input before waits for a worker."""

    def __init__(self, session_id: str) -> None:
        self.session_id, self.holder, self.lease_until = session_id, None, None
        OakleafError.__init__(
            self,
            f"the last input of session {session_id} waits for a worker to answer it",
            "wait for it, queue yours with oakleaf_postgres.absurd.enqueue(session, text), or end its turn with session.cancel()",
            f"wait for it (oakleaf tail -f {session_id}), queue yours (oakleaf enqueue --resume {session_id} TEXT), "
            f"or end its turn (oakleaf cancel {session_id})",
        )


class InputsQueued(OakleafError):
    """An input with a key or with options is not queued: the queue holds texts, and neither keys nor options."""

    exit_code = ExitCode.LOCKED
    http_status = 409

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id} has queued inputs, which run first; this one was not stored",
            "send it again, as it is, once they have run; session.resume(…) runs them if no other runner does",
            f"send it again, as it is, once they have run; oakleaf resume {session_id} runs them if no other runner does",
        )


class KeyReused(OakleafError):
    """Something else was asked for under the key."""

    exit_code = ExitCode.USAGE
    http_status = 422

    def __init__(self, session_id: str, key: str, turn: int | None = None) -> None:
        self.session_id, self.key, self.turn = session_id, key, turn
        if turn is None:
            super().__init__(
                f"key {key!r} belongs to another change of session {session_id}; nothing was stored",
                "repeat the same request, or use a key of its own for each change",
            )
            return
        super().__init__(
            f"key {key!r} belongs to the input at entry {turn} of session {session_id}, which differs from this one; "
            "nothing was stored",
            "send the same input to continue that turn, or use a key of its own for each input",
        )


def short_holder(holder: str) -> str:
    """Return a lease's holder for people: host and pid, or the task of an engine."""
    return holder.partition("#")[0].partition("/")[0]


def _clock(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class SessionTrashed(OakleafError):
    exit_code = ExitCode.USAGE
    http_status = 409

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id} is in the trash",
            f"call store.restore({session_id!r}) first",
            f"oakleaf restore {session_id} brings it back",
        )


class TaskTrashed(SessionTrashed):
    """The task a session waits for is in the trash; the session keeps waiting and nothing is lost."""

    def __init__(self, parent_id: str, session_id: str) -> None:
        self.parent_id, self.session_id = parent_id, session_id
        OakleafError.__init__(
            self,
            f"session {parent_id} waits for its task {session_id}, which is in the trash",
            f"call store.restore({session_id!r}), then resume",
            f"oakleaf restore {session_id} brings it back",
        )


class AgentBound(OakleafError):
    http_status = 409

    def __init__(self, session_id: str, bound: str, agent: str) -> None:
        self.session_id, self.bound, self.agent = session_id, bound, agent
        super().__init__(
            f"session {session_id} is bound to agent {bound!r}, and {agent!r} would answer",
            "fork it with fork(agent=…), or pass rebind=True",
            f"start a session of that agent's own: oakleaf fork {session_id} --agent NAME",
        )


class NotTrashed(OakleafError):
    exit_code = ExitCode.USAGE
    http_status = 409

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id} is not in the trash",
            f"call store.delete({session_id!r}) before purge",
            f"move it there first with oakleaf rm {session_id}",
        )


class IdTaken(OakleafError):
    http_status = 409

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session id {session_id!r} belongs to another history (or another tenant)",
            "start without session_id= to get a new one",
        )


# -- import and export -------------------------------------------------------------------------------------------


class IdConflict(IdTaken):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        OakleafError.__init__(
            self,
            f"session id {session_id!r} belongs to other content here (or another tenant); nothing was imported",
            "import it under an id of its own with new_id=True",
            "import it under an id of its own with --new-id",
        )


class UnknownImporter(OakleafError):
    exit_code = ExitCode.USAGE

    def __init__(self, name: str, names: Sequence[str]) -> None:
        self.name = name
        super().__init__(f"no importer for sessions of {name!r}", _use_one_of(name, names))


class UnknownFormat(OakleafError):
    exit_code = ExitCode.USAGE

    def __init__(self, name: str, names: Sequence[str]) -> None:
        self.name = name
        super().__init__(f"no export is called {name!r}", _use_one_of(name, names))


class InvalidSource(OakleafError):
    def __init__(self, location: str | None, tool: str, reason: str) -> None:
        self.location, self.tool, self.reason = location, tool, reason
        subject = f"sessions of {tool}" if location is None else f"{location} as sessions of {tool}"
        super().__init__(
            f"cannot read {subject}: {reason}; nothing was changed",
            "oakleaf import --help lists where each tool keeps its sessions",
        )


class InvalidBundle(OakleafError):
    def __init__(self, location: str, line: int, reason: str) -> None:
        self.location, self.line, self.reason = location, line, reason
        position = f"line {line}: " if line else ""
        super().__init__(
            f"cannot import {location}: {position}{reason}; nothing was changed",
            "export the session again, or copy the file again if it was transferred",
        )


class PageTooLarge(OakleafError):
    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"the session exceeds the {limit:,} bytes one HTML file should hold; nothing was written",
            "leave out the blobs or the tasks (blobs=False, children=False), write it with oakleaf export --format bundle, "
            "or show it with oakleaf serve",
            "leave out its tasks (--no-children) or its attachments (no --blobs), write it with oakleaf export "
            "--format bundle, or show it with oakleaf serve",
        )


class AnswerTooLarge(OakleafError):
    def __init__(self, verb: str, size: int, most: int, fields: Sequence[str]) -> None:
        self.size, self.most, self.fields = size, most, tuple(fields)
        names = " or ".join(fields)
        super().__init__(
            f"the answer of {verb} has {size:,} bytes, and one answer here has at most {most:,}",
            f"ask for less with {names}" if names else f"read it at the command line: oakleaf {verb} --json",
        )


# -- the log -----------------------------------------------------------------------------------------------------


class InvalidOperation(OakleafError):
    """Not allowed at the present point of the log; nothing was written."""


class OpenBatch(InvalidOperation):
    http_status = 409

    def __init__(self, call_ids: Sequence[str], kind: str, hint: str | None = None) -> None:
        self.call_ids = tuple(call_ids)
        super().__init__(
            f"{plural(len(call_ids), 'tool call')} without a result ({list_some(call_ids)}): only results and notes may "
            f"follow, not {kind}",
            hint or 'append tool_result(call_id, …) for each, or call session.close_batch("reason")',
        )


class OrphanResult(InvalidOperation):
    def __init__(self, call_id: str, open_ids: Sequence[str]) -> None:
        self.call_id, self.open_ids = call_id, tuple(open_ids)
        open_calls = f"open calls: {list_some(open_ids)}" if open_ids else "no call is open here"
        super().__init__(
            f"tool result for {shorten(call_id)!r} has no open call before it ({open_calls})",
            "append the answer that made the call first, and each result once",
        )


class CallAlreadyStarted(InvalidOperation):
    http_status = 409

    def __init__(self, call_id: str, name: str) -> None:
        self.call_id, self.name = call_id, name
        super().__init__(
            f"call {shorten(call_id)!r} of {name} was started before and has no result: it may have taken effect",
            'do not run it again; tell the model: turn.result(call_id, "…", error=True, outcome="unknown")',
        )


class ApprovalRequired(InvalidOperation):
    http_status = 409

    def __init__(self, session_id: str, call_id: str, name: str) -> None:
        self.session_id, self.call_id, self.name = session_id, call_id, name
        super().__init__(
            f"call {shorten(call_id)!r} of {name} waits for a person's approval; it was not run",
            "decide with session.approve(call) or session.approve(call, allow=False), then continue: session.turn()",
            f"decide with oakleaf approve {session_id}, then continue the turn",
        )


class InvalidMessage(InvalidOperation):
    """A message or entry of the wrong shape."""


class InvalidPosition(InvalidOperation):
    exit_code = ExitCode.USAGE
    http_status = 404

    def __init__(self, position: object, first: int, last: int, session_id: str = "") -> None:
        self.position, self.first, self.last = position, first, last
        super().__init__(
            f"{position!r} is not an entry on this path, which has entries {first} to {last}",
            "session.path() lists them, session.branches() the other branches",
            f"oakleaf log {session_id} lists them" if session_id else "oakleaf log lists them",
        )


class NothingToUndo(InvalidOperation):
    """No input that could be taken back, or no compaction that could be cancelled."""

    exit_code = ExitCode.USAGE
    http_status = 409


class NothingToRedo(InvalidOperation):
    exit_code = ExitCode.USAGE
    http_status = 409

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"nothing was rewound in session {session_id} since its last append",
            "session.branches() lists every branch, session.checkout(leaf) switches to one",
            f"oakleaf log {session_id} --all lists every branch, oakleaf rewind REFERENCE@BRANCH:SEQ switches to one",
        )


class ToolsNotAllowed(InvalidOperation):
    def __init__(self, names: Sequence[str], allowed: Sequence[str]) -> None:
        self.names, self.allowed = tuple(names), tuple(allowed)
        super().__init__(
            f"the tools would be widened by {list_some(names)}: from here on the session may use "
            f"{', '.join(shorten(name, 40) for name in allowed) or 'no tool'}, and tools are narrowed, never widened",
            "leave out the additional tools, or fork from before they were narrowed",
        )


class ToolsMissing(InvalidOperation):
    """Raised before anything is written: the call keeps waiting for a process with the tool."""

    http_status = 409

    def __init__(self, session_id: str, names: Sequence[str]) -> None:
        self.session_id, self.names = session_id, tuple(names)
        super().__init__(
            f"session {session_id} has a call of {list_some(names)}, and this process has no tool of that name",
            "resume it with that tool: session.resume(tools=[…]); the call is still open",
            f"oakleaf resume {session_id} --agent FILE.py, or resume it where the tool is configured",
        )


MAX_PLAN_LINES, MAX_PLAN_TEXT = 20, 200


class ImportedCall(NamedTuple):
    """An open call of an import."""

    session_id: str
    """The session with the open call: the running session, or a task."""
    call_id: str
    name: str
    arguments: dict[str, Any]


class ImportedInput(NamedTuple):
    """A queued input of an exported session."""

    session_id: str
    text: str


class ImportNotAccepted(InvalidOperation):
    """Raised before anything is run or written. `calls` and `inputs` are what would run."""

    http_status = 409

    def __init__(
        self, session_id: str, calls: Sequence[ImportedCall], inputs: Sequence[ImportedInput]
    ) -> None:
        self.session_id, self.calls, self.inputs = session_id, tuple(calls), tuple(inputs)
        left = len(self.calls) + len(self.inputs) - MAX_PLAN_LINES
        more = f"; and {left:,} more" if left > 0 else ""
        super().__init__(
            f"session {session_id} came from elsewhere, and what was left open there was not accepted here; nothing was run. "
            f"It would run: {'; '.join(self.lines[:MAX_PLAN_LINES])}{more}",
            "accept it with session.resume(…, accept_imported=True) or session.accept_imported(); session.fork() goes on "
            "without it",
            f"accept it with oakleaf resume {session_id} --accept-imported; oakleaf fork {session_id} goes on without it",
        )

    @property
    def lines(self) -> list[str]:
        """The plan, a line for each call and input; long plans are shortened."""
        import json  # late: few programs see this error

        sessions = [call.session_id for call in self.calls] + [queued.session_id for queued in self.inputs]
        of = {name: "" if name == self.session_id else f" of task {name}" for name in sessions}
        calls = [
            f"call {shorten(call.name)}{of[call.session_id]} {shorten(json.dumps(call.arguments), MAX_PLAN_TEXT)}"
            for call in self.calls
        ]
        inputs = [
            f"queued input{of[queued.session_id]} {shorten(json.dumps(queued.text), MAX_PLAN_TEXT)}"
            for queued in self.inputs
        ]
        return calls + inputs


class ApprovalPending(InvalidOperation):
    http_status = 409

    def __init__(self, session_id: str, calls: Sequence[str], hint: str | None = None) -> None:
        self.session_id, self.calls = session_id, tuple(calls)
        super().__init__(
            f"session {session_id} waits for {list_some(calls)}; a new input would abandon "
            f"{'this call' if len(calls) == 1 else 'these calls'}",
            hint
            or "allow it with session.approve(call) and call session.resume(), deny it with allow=False and send again, or queue "
            "your input with session.enqueue(text)",
            f"allow it with oakleaf approve {session_id} and oakleaf resume {session_id} --agent FILE.py, deny it with oakleaf approve "
            f"{session_id} --deny and send again, or queue your input with oakleaf run --resume {session_id} --queue TEXT",
        )


class NotWaiting(InvalidOperation):
    """The call of a decision does not wait for approval: somebody else decided, or the turn ended."""

    exit_code = ExitCode.USAGE
    http_status = 409

    def __init__(self, session_id: str, call: str) -> None:
        self.session_id, self.call = session_id, call
        super().__init__(
            f"call {call} of session {session_id} does not wait for approval",
            "session.pending_approvals() lists the calls that wait",
            f"oakleaf approve {session_id} lists the calls that wait",
        )


class ApproverUnnamed(InvalidOperation):
    """The tool of a call wants a decision by a person with a name."""

    exit_code = ExitCode.USAGE
    http_status = 422

    def __init__(self, session_id: str, tool: str) -> None:
        self.session_id, self.tool = session_id, tool
        super().__init__(
            f"a decision about {tool} in session {session_id} needs the name of the person who decides",
            'name the person: session.approve(call, by="ann")',
            "name the person: oakleaf config by NAME",
        )


class SessionIsReplay(InvalidOperation):
    http_status = 409

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id} is a replay: its tools were answered by a recording and must not run for real "
            "by accident",
            "session.fork() makes a session that can continue; source.replay(…) replays again",
            f"oakleaf fork {session_id} makes a session that can continue",
        )


class InvalidReplay(InvalidOperation):
    exit_code = ExitCode.USAGE

    def __init__(self, reason: str, hint: str, command_hint: str | None = None) -> None:
        self.reason = reason
        super().__init__(f"no replay was made: {reason}", hint, command_hint)


# -- values and arguments ----------------------------------------------------------------------------------------


class InvalidValue(OakleafError):
    """A value that some store could not keep unchanged; nothing was written."""

    exit_code = ExitCode.USAGE


class NotJson(InvalidValue):
    def __init__(self, field: str, value: object) -> None:
        self.field = field
        super().__init__(
            f"{field} is {shorten(repr(value))}, which JSON cannot hold unchanged",
            "use str, int, finite float, bool, None, list and dict with string keys",
        )


class NotText(InvalidValue):
    def __init__(self, field: str, value: object) -> None:
        self.field = field
        super().__init__(f"{field} is {shorten(repr(value))}; expected text")


class InvalidText(InvalidValue):
    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        super().__init__(
            f"{field} contains {reason}",
            "clean it first, for example text.encode('utf-8', 'replace').decode() or text.replace('\\0', '')",
            "type it again, or check your terminal's locale or the file it comes from",
        )


class InvalidId(InvalidValue):
    def __init__(self, session_id: str, reason: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"the session id {shorten(session_id)!r} has {reason}: in a URL or a file name it would be another one",
            "use letters, digits and - _ . : @, or let Oakleaf choose; new_id=True imports or copies a session under a new id",
            "use letters, digits and - _ . : @, or let Oakleaf choose; --new-id imports or copies a session under a new id",
        )


class InvalidCount(InvalidValue):
    def __init__(self, field: str, value: object) -> None:
        super().__init__(
            f"{field} is {shorten(repr(value))}; expected a whole number from 0 to 2^53, or None if unknown"
        )


class InvalidArgument(InvalidValue):
    def __init__(self, name: str, value: object, expected: str) -> None:
        self.name = name
        try:
            shown = shorten(repr(value))
        except ValueError:  # an integer of 5,000 digits has no text
            shown = f"a value of type {type(value).__name__}"
        super().__init__(f"{name}={shown} is invalid; expected {expected}")


class UnknownField(InvalidValue):
    def __init__(self, verb: str, name: str, nearest: str | None) -> None:
        self.name = name
        guess = f"did you mean {nearest!r}?" if nearest else f"oakleaf {verb} --help lists what it has"
        super().__init__(f"{verb} has no {name!r}", guess)


class UnknownExportOption(InvalidValue):
    def __init__(self, name: str, format: str, names: Sequence[str]) -> None:
        self.name, self.format = name, format
        takes = f"it takes {', '.join(names)}" if names else "it takes no options"
        super().__init__(f"the export {format!r} has no option {name!r}", takes)


class InvalidOption(InvalidValue):
    """An option of a model call unknown to the provider, or a refused value; nothing was written or sent."""


class WrongSpace(InvalidValue):
    def __init__(self, space: str, own_space: str) -> None:
        self.space, self.own_space = space, own_space
        super().__init__(
            f"this store was opened for space {shorten(repr(own_space))} and reads no other",
            f"open that one with oakleaf.open(…, space={shorten(repr(space))})",
            "open that one with oakleaf --space NAME",
        )


class SpacesHidden(InvalidValue):
    http_status = 403

    def __init__(self, location: str, space: str) -> None:
        self.location, self.space = location, space
        super().__init__(
            f"{location} shows this caller the space {shorten(repr(space))} alone",
            "open it without an owner; on PostgreSQL as a role that may see all spaces: "
            "create role NAME login bypassrls in role oakleaf_service",
        )


class WrongOwner(InvalidValue):
    def __init__(self, owner: str, own_owner: str) -> None:
        self.owner, self.own_owner = owner, own_owner
        super().__init__(
            f"this store was opened for owner {shorten(repr(own_owner))} and starts no session of another",
            f"open one for that owner with oakleaf.open(…, owner={shorten(repr(owner))})",
            "open one for that owner with oakleaf --owner NAME",
        )


class SecretTooShort(InvalidValue):
    def __init__(self, name: str, length: int, min_length: int) -> None:
        self.name, self.length, self.min_length = name, length, min_length
        super().__init__(
            f"{name or 'a secret'} has {length} characters, and a secret needs at least {min_length} to be redacted: "
            "replacing a shorter one everywhere would also replace ordinary words and numbers",
            "make it longer, or leave it out and keep it away from tools and prompts",
        )


class SecretInName(InvalidValue):
    def __init__(self, field: str, redacted: str) -> None:
        self.field, self.redacted = field, redacted
        super().__init__(
            f"the {field} {shorten(redacted)!r} contains a secret, or text in the form of a key; ids, names and options are "
            "stored as they are, because redacted they would be others",
            "use another value, such as a hash of it",
        )


class SecretInWorkspace(InvalidValue):
    def __init__(self, field: str) -> None:
        self.field = field
        super().__init__(
            f"{field} of the workspace contains a secret, or text in the form of a key; a workspace is stored and shown in "
            "plain text",
            "leave it out, and let the tool that needs the secret read it where it runs",
        )


class InvalidSearch(InvalidValue):
    def __init__(self, query: object, reason: str) -> None:
        super().__init__(f"cannot search for {shorten(repr(query))}: {reason}")


class SealRefused(InvalidValue):
    """A seal that cannot be compared with the store; nothing was verified."""


class MissingBlob(OakleafError):
    http_status = 404

    def __init__(self, digest: str) -> None:
        self.digest = digest
        super().__init__(
            f"blob {digest} is not in this store and space",
            "store it first with store.put_blob(data, mime)",
            "",
        )


class InvalidSummary(OakleafError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"compaction refused, the context is unchanged: {reason}")


class TurnTooLarge(OakleafError):
    http_status = 409

    def __init__(self, turn: int, measure: str, size: int, budget: int) -> None:
        self.turn, self.measure, self.size, self.budget = turn, measure, size, budget
        subject = f"turn {turn}" if turn else "the part that always stays (system prompt, summaries)"
        super().__init__(
            f"{subject} alone has {size:,} {measure}, the budget is {budget:,}, and it is never dropped silently",
            "raise the budget, compact the session, or shorten the tool results",
        )


# -- running an agent --------------------------------------------------------------------------------------------


class UnknownProvider(OakleafError):
    exit_code = ExitCode.USAGE

    def __init__(self, name: str, names: Sequence[str]) -> None:
        super().__init__(f"no provider {name!r}", f"use one of {', '.join(names)}")


class ModelError(OakleafError):
    """A model gave no answer."""

    outcome = "gave no answer"

    def __init__(self, model: str, reason: str, hint: str = "", command_hint: str | None = None) -> None:
        self.model, self.reason = model, reason
        self.raw: str | None = None
        """The model's text, if unreadable."""
        self.was_asked = True
        """Whether a request was sent. Without a package or a key none is, and no call is in the ledger."""
        self.usage: Usage | None = None
        """The `Usage` charged for the failed call, if known."""
        super().__init__(f"{model} {self.outcome}: {reason}", hint, command_hint)


class Overloaded(ModelError):
    """Too busy, unreachable or temporarily broken. `after` is how many seconds the provider asked us to wait."""

    def __init__(self, model: str, reason: str, after: float | None = None) -> None:
        self.after = after
        super().__init__(model, reason, "try again later, or add another model to the fallback chain")


class ContextOverflow(ModelError):
    """The history is too long for the model. `window` and `tokens` are its window and the length of the request, if the
    server reported them."""

    def __init__(
        self,
        model: str,
        reason: str,
        window: int | None = None,
        tokens: int | None = None,
        hint: str = "compact the session or lower the budget",
        command_hint: str | None = None,
    ) -> None:
        self.window, self.tokens = window, tokens
        super().__init__(model, reason, hint, command_hint)

    def explain(self, cause: PromptTooLarge) -> ContextOverflow:
        """Return the error with the hints of the cause."""
        hints = str(cause), cause.command_text
        return ContextOverflow(self.model, self.reason, self.window, self.tokens, *hints)


class PromptTooLarge(ContextOverflow):
    """The system prompt, tool definitions and input do not fit, and no compaction can shorten them. Nothing was sent."""

    def __init__(self, model: str, limit: int, system: int, tools: int, newest_input: int) -> None:
        self.limit, self.system, self.tools, self.newest_input = limit, system, tools, newest_input
        parts = [
            ("system prompt", system, "shorten the system prompt"),
            ("tool definitions", tools, "allow fewer tools"),
            ("input", newest_input, "shorten the input, or store it as a file that a tool reads"),
        ]
        largest, _, remedy = max(parts, key=lambda part: part[1])
        listed = ", ".join(f"{name} {tokens:,}" for name, tokens, _ in parts)
        hint = f"{remedy}, use a model with a larger window, or raise"
        super().__init__(
            model,
            f"the {largest} is too large: {limit:,} tokens fit beside the answer, by estimate there are {listed}",
            hint=f"{hint} Limits(context_window=, context_tokens=)",
            command_hint=f"{hint} --set limits.context_window=TOKENS",
        )


class TruncatedReply(ModelError):
    """The answer ended in the middle."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(model, reason, "the partial answer is lost; call the model again")


class ModelUnavailable(ModelError):
    """No such model, no key, or the SDK is not installed; the hint names the variable or the extra."""

    exit_code = ExitCode.USAGE


class ModelRefused(ModelUnavailable):
    """A model named by stored data or a request, not allowed by the operator. Nothing was sent or read."""

    outcome = "was not asked"


class UnrecognizedReply(OakleafError):
    def __init__(self, problem: str, raw: object = None) -> None:
        self.raw = raw
        super().__init__(
            problem,
            "pass an Anthropic message, an OpenAI response or chat completion, a Gemini response (object or dict), "
            "or oakleaf.assistant(…)",
        )


class InvalidTool(OakleafError):
    exit_code = ExitCode.USAGE

    def __init__(
        self,
        name: str,
        reason: str,
        hint: str = "give every parameter a name and a type hint that JSON can hold",
    ) -> None:
        super().__init__(f"{name} cannot be a tool: {reason}", hint)


class DuplicateTool(InvalidTool):
    """Two tools of the same name, at least one of a source such as an MCP server; nothing was written."""

    def __init__(self, name: str, first: str, second: str) -> None:
        self.name, self.first, self.second = name, first, second
        OakleafError.__init__(
            self,
            f"two tools are named {name}: of {first}, and of {second}",
            'give the tools of one a prefix: oakleaf_mcp.server(…, prefix="b_"), or leave it out with only=[…]',
            "give the tools of one a prefix: --set mcp.servers='b=COMMAND' names them b_…",
        )


class TurnFailed(OakleafError):
    """A turn has no answer. `status` is that of its run: failed, stopped, waiting, cancelled or interrupted."""

    def __init__(self, session_id: str, reason: str, hint: str, status: str = "failed") -> None:
        self.session_id, self.reason, self.status = session_id, reason, status
        super().__init__(
            f"the turn of session {session_id} got no answer: {reason}; what is durable stays",
            hint,
        )


class TurnCancelled(TurnFailed):
    """The block of an own loop was ended from elsewhere, by `session.cancel()` or `oakleaf cancel`."""

    http_status = 409

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id, "it was cancelled", "open the next: session.turn(text)", "cancelled")


class Refused(OakleafError):
    """Raised by a hook of the host, to refuse a turn, a model call or a tool call."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"a hook refused: {reason}")


class TurnLimit(OakleafError):
    """A limit or a hook stopped a turn, or refused an input without storing the input.

    `limit` is turns, rounds, cost or hook.
    """

    def __init__(
        self,
        session_id: str,
        problem: str,
        hint: str = "",
        command_hint: str | None = None,
        limit: str = "turns",
        result: RunResult | None = None,
    ) -> None:
        self.session_id, self.limit, self.result = session_id, limit, result
        super().__init__(f"session {session_id} is at a limit: {problem}", hint, command_hint)


class OutOfScope(OakleafError):
    def __init__(self, subject: str, reason: str) -> None:
        self.subject, self.reason = subject, reason
        super().__init__(
            f"{shorten(subject)!r} is out of scope: {reason}; nothing was done",
            "stay within what the workspace allows, or ask the user to widen it",
        )


class PlatformUnsupported(OakleafError):
    """Raised before anything is done: the operating system lacks a safeguard."""

    exit_code = ExitCode.USAGE

    def __init__(self, feature: str, required: str) -> None:
        self.feature, self.required = feature, required
        super().__init__(f"{feature} are not available on this platform", f"use {required}")


class TokenRequired(OakleafError):
    """The server was not started: without a token others could reach the server."""

    exit_code = ExitCode.USAGE

    def __init__(
        self,
        host: str,
        reason: str = "others can reach it there",
        hint: str = "pass --token SECRET, or --host 127.0.0.1",
    ) -> None:
        self.host = host
        super().__init__(f"refusing to serve on {host} without a token: {reason}", hint)


# -- stores ------------------------------------------------------------------------------------------------------


class StoreError(OakleafError):
    """The file or server itself."""

    http_status = 503


class NotAStore(StoreError):
    exit_code = ExitCode.USAGE

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(
            f"{location} is not an Oakleaf store: {reason}", "name another path to create a new one"
        )


class StoreAbsent(StoreError):
    """There is no file at the address of a store."""

    exit_code = ExitCode.USAGE


class NewerFormat(StoreError):
    def __init__(self, location: str, version: str, newest: str) -> None:
        super().__init__(
            f"{location} has format {version}, this Oakleaf reads up to {newest}; nothing was changed",
            "install a newer Oakleaf",
        )


class PrereleaseFormat(StoreError):
    def __init__(self, location: str) -> None:
        super().__init__(
            f"{location} was written by Bough, as Oakleaf was called before its first release; "
            "this format is not read any more, nothing was changed",
            "read it with the version that wrote it; for new sessions name another file or database",
        )


class ServerUnreachable(StoreError):
    def __init__(self, location: str, reason: str, hint: str | None = None) -> None:
        super().__init__(
            f"cannot connect to {location}: {reason}",
            hint or "check the host, port, database and role of the URL, and that the server runs",
        )


class MigrationNeeded(StoreError):
    def __init__(self, location: str, version: int, needed: int) -> None:
        self.version, self.needed = version, needed
        state = (
            f"has schema {version}, this Oakleaf needs {needed}" if version else "has no Oakleaf schema yet"
        )
        super().__init__(
            f"{location} {state}",
            "run oakleaf --store URL migrate, once, as the role that owns the schema or is going to own it",
        )


class PostgresRequired(StoreError):
    exit_code = ExitCode.USAGE

    def __init__(self, location: str) -> None:
        self.location = location
        super().__init__(
            f"workers need PostgreSQL, and {location} is not a PostgreSQL store",
            "open postgresql://…, and copy sessions there with oakleaf copy --all --to URL",
        )


class UnknownCommit(StoreError):
    def __init__(self, location: str, reason: str) -> None:
        super().__init__(
            f"the connection to {location} broke during a commit and did not come back in time ({reason}); whether "
            "the change was written is unknown",
            "repeat it with the same key once the server is back: it is written only once",
        )


class InvalidKey(StoreError):
    def __init__(self) -> None:
        super().__init__("the key is invalid; expected text of at least one character, without NUL")


class EncryptionUnavailable(StoreError):
    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} was not opened: the SQLite of this Python cannot encrypt",
            "replace it with one that can: pip uninstall apsw, then pip install apsw-sqlite3mc",
        )


class StoreReadOnly(StoreError):
    def __init__(self, location: str) -> None:
        hint = "check the permissions of the file and its folder"
        if "://" in location:
            hint = "connect to the primary: a standby, or a server or role that is set to read only, accepts no writes"
        super().__init__(f"{location} cannot be written", hint)


class StoreLacks(StoreError):
    """The store lacks an optional capability of the contract."""

    exit_code = ExitCode.USAGE
    http_status = 501

    def __init__(self, location: str, deed: str) -> None:
        self.location, self.deed = location, deed
        super().__init__(
            f"{location} cannot {deed}: this kind of store has no way to; nothing was done",
            "use another store, such as a file: store.copy(…) takes the sessions there",
            "use another store, such as a file: oakleaf copy --all --to FILE takes the sessions there",
        )


class StoreFull(StoreError):
    http_status = 507

    def __init__(self, location: str) -> None:
        super().__init__(
            f"no space left to write {location}; nothing of this change was kept and everything before it is safe",
            "free some disk space, then try again with the same key",
            "free some disk space, then try again",
        )


class StoreLocked(StoreError):
    exit_code = ExitCode.LOCKED

    def __init__(self, location: str, seconds: int) -> None:
        super().__init__(
            f"{location} was locked by another program for {seconds} s; nothing was written", "try again"
        )


class IndexBehind(StoreError):
    def __init__(self, location: str, sessions: int, cause: StoreError) -> None:
        self.sessions, self.reason = sessions, cause.problem
        super().__init__(
            f"the text of {plural(sessions, 'session')} of {location} is not indexed yet: {cause.problem}",
            "search only what is indexed with search(…, catch_up=False)",
            cause.command_hint,
        )


class StoreDamaged(StoreError):
    def __init__(self, location: str, reason: str) -> None:
        super().__init__(
            f"{location} is damaged ({reason})",
            "restore a backup, or save the sessions that store.verify() finds intact with store.copy(…)",
            "restore a backup, or save the sessions that can be read with oakleaf copy --all --to rescued.db",
        )


class StoreClosed(StoreError):
    def __init__(self, location: str) -> None:
        super().__init__(f"the store {location} was closed", "open it again with oakleaf.open(…)")
