"""Every error Bough raises, and what to do about it.

    BoughError
    ├── NotFound                no such session here (or it is another tenant's)
    ├── StaleLeaf               the leaf moved; nothing was written
    ├── Fenced                  a later runner took the session over; nothing was written
    │   └── ClaimLost           a task that another worker has now; nothing was written
    ├── Running                 the session is being driven; its leaf may not be moved
    ├── Trashed                 the session is in the trash
    ├── NotTrashed              purge wants the trash first
    ├── IdTaken                 that session id holds another history
    │   └── IdClash             what is to be taken in has an id that holds other content here
    ├── BadBundle               a file that is no bundle, or not a whole one; nothing was changed
    ├── PageTooLarge            more than one HTML file should hold; nothing was written
    ├── LawBroken               the entry may not stand here
    │   ├── OpenBatch           tool calls wait for their results
    │   ├── OrphanResult        a result without its call
    │   ├── BadMessage          a role with parts it cannot have, an unknown kind or role
    │   ├── BadPoint            no such place on this path
    │   ├── NothingToRedo       no branch was left behind
    │   ├── IsReplay            a replay is looked at or forked, not driven on
    │   └── BadReplay           a replay that cannot be made as it was asked for
    ├── BadValue                a value no store can keep unchanged
    │   ├── NotJson             NaN, a non-string key, an object JSON does not know
    │   ├── BadText             a lone surrogate, or a NUL where a plain column stands
    │   ├── BadCount            usage that is no count of tokens or money
    │   ├── BadQuery            a question that makes no sense
    │   └── BadSearch           a search that cannot be understood
    ├── MissingBlob             a media handle without its bytes
    ├── BadSummary              a summary that is empty or longer than what it replaces
    ├── TooLarge                the newest turn alone exceeds the budget
    ├── UnknownProvider         no projection of that name
    ├── ModelError              a model gave no answer
    │   ├── Overloaded          too busy, unreachable or broken for now: try again later
    │   ├── Overflow            the history is too long for it
    │   ├── CutOff              the answer ended in the middle
    │   └── NoModel             no such model, no key, or its SDK is not installed
    ├── NotAnAnswer             not a reply of a provider we know
    ├── OutOfScope              a path, command or address the workspace does not allow
    ├── Unguarded               a server that others could reach without a token
    ├── BadTool                 a function that cannot be a tool
    ├── UnknownAgent            a worker was given no agent of that name
    ├── LimitReached            an input past a limit; it was not stored
    ├── TurnFailed              a task's turn got no answer; Absurd tries it again
    ├── StrayTask               a task whose session was moved back behind its steps
    └── StoreError              the file or server itself
        ├── WrongStore          not a Bough store
        ├── NewerFormat         written by a newer Bough
        ├── NoServer            the database server cannot be reached
        ├── NoSchema            the database has no schema of ours, or an older one
        ├── NoRights            the role may not do this
        ├── NotOnPostgres       an engine that needs PostgreSQL
        ├── NoEngine            the database lacks the engine's schema or queue
        ├── Unsettled           the server went away in mid-commit and has not come back
        ├── ReadOnly            no right to write
        ├── StoreFull           the disk took no more; nothing was written
        ├── IndexBehind         what is new cannot be indexed, so a search would miss it
        ├── Damaged             the database file is not whole
        └── StoreClosed         used after close

Constructors take data, the message is made here: what happened, with the values, and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core.tree import Leaf


class BoughError(Exception):
    """The root: catch this to catch everything of ours."""


class NotFound(BoughError):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"no session {session_id!r} in this store, space and owner; "
            "list what there is with store.sessions()"
        )


class StaleLeaf(BoughError):
    def __init__(self, session_id: str, expected: Leaf, present: Leaf) -> None:
        self.session_id, self.expected, self.present = session_id, expected, present
        super().__init__(
            f"session {session_id} stands at {present}, not at {expected}: somebody else wrote; "
            "nothing of yours was written. Call session.refresh(), look at what is new, then decide"
        )


class Fenced(BoughError):
    def __init__(self, session_id: str, fence: int, present: int) -> None:
        self.session_id, self.fence, self.present = session_id, fence, present
        super().__init__(
            f"session {session_id} was taken over (fence {present}, yours is {fence}); "
            "nothing was written. Stop this runner; the other one goes on"
        )


class ClaimLost(Fenced):
    def __init__(self, queue: str, task_id: str) -> None:
        self.queue, self.task_id = queue, task_id
        BoughError.__init__(
            self,
            f"task {task_id} of queue {queue!r} is no longer this worker's: its lease ran out or it was cancelled; "
            "nothing was written. Whoever has it now goes on",
        )


class Running(BoughError):
    def __init__(self, session_id: str, holder: str | None, heard_at: int) -> None:
        self.session_id, self.holder, self.heard_at = session_id, holder, heard_at
        when = datetime.fromtimestamp(heard_at / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        super().__init__(
            f"session {session_id} is running, held by {holder or 'an unnamed runner'}, last heard of at {when}; "
            "wait for its turn to end, queue your input with session.enqueue(text), or call session.interrupt() "
            "if its runner is gone"
        )


class Trashed(BoughError):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id} is in the trash; call store.restore({session_id!r}) first")


class NotTrashed(BoughError):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id} is not in the trash; call store.delete({session_id!r}) before purge"
        )


class IdTaken(BoughError):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session id {session_id!r} already holds another history (or another tenant's); "
            "start without session_id= to get a new one"
        )


class IdClash(IdTaken):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        BoughError.__init__(
            self,
            f"session id {session_id!r} holds other content here (or is another tenant's); nothing was taken in. "
            "new_id=True (--new-id) takes it in beside",
        )


class BadBundle(BoughError):
    def __init__(self, where: str, line: int, why: str) -> None:
        self.where, self.line, self.why = where, line, why
        place = f"line {line}: " if line else ""
        super().__init__(
            f"{where} cannot be taken in: {place}{why}; nothing was changed. Export the session again, or fetch "
            "the file again if it was sent"
        )


class PageTooLarge(BoughError):
    def __init__(self, most: int) -> None:
        self.most = most
        super().__init__(
            f"the session is more than the {most:,} bytes one HTML file should hold; nothing was written. Leave out "
            "the blobs or the tasks (blobs=False, children=False), write it with bough export --bundle, or show it "
            "with bough serve"
        )


class LawBroken(BoughError):
    """The entry may not stand here; nothing was written."""


class OpenBatch(LawBroken):
    def __init__(self, call_ids: Sequence[str], kind: str) -> None:
        self.call_ids = tuple(call_ids)
        super().__init__(
            f"{len(call_ids)} tool call(s) wait for results ({_some(call_ids)}): only results and notes "
            f"may follow, not {kind}. Append tool_result(call_id, …) for each, or session.close_batch()"
        )


class OrphanResult(LawBroken):
    def __init__(self, call_id: str, open_ids: Sequence[str]) -> None:
        self.call_id, self.open_ids = call_id, tuple(open_ids)
        waiting = f"open calls: {_some(open_ids)}" if open_ids else "no call is open here"
        super().__init__(
            f"tool result for {_short(call_id)!r} has no open call before it ({waiting}); "
            "append the answer that asked for it first, and each result once"
        )


class BadMessage(LawBroken):
    def __init__(self, what: str) -> None:
        super().__init__(what)


class BadPoint(LawBroken):
    def __init__(self, point: object, least: int, most: int) -> None:
        self.point, self.least, self.most = point, least, most
        super().__init__(
            f"{point!r} is no place on this path, which runs from {least} to {most}; "
            "session.path() shows it, session.branches() the others"
        )


class NothingToRedo(LawBroken):
    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"nothing was rewound in session {session_id} since its last append; "
            "session.branches() lists every branch, session.checkout(leaf) goes to one"
        )


class IsReplay(LawBroken):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id} is a replay: its tools were answered by a recording and must not run for real "
            "by accident. session.fork() makes a session of it that goes on; source.replay(…) replays anew"
        )


class BadReplay(LawBroken):
    def __init__(self, why: str, hint: str) -> None:
        self.why = why
        super().__init__(f"no replay was made: {why}; {hint}")


class BadValue(BoughError):
    """A value that not every store could keep unchanged; nothing was written."""


class NotJson(BadValue):
    def __init__(self, where: str, value: object) -> None:
        self.where = where
        super().__init__(
            f"{where} is {_short(repr(value))}, which JSON cannot hold unchanged; "
            "use str, int, finite float, bool, None, list and dict with string keys"
        )


class BadText(BadValue):
    def __init__(self, where: str, why: str) -> None:
        self.where = where
        super().__init__(
            f"{where} holds {why}; clean it first, for example "
            "text.encode('utf-8', 'replace').decode() or text.replace('\\0', '')"
        )


class BadCount(BadValue):
    def __init__(self, where: str, value: object) -> None:
        super().__init__(
            f"{where} is {_short(repr(value))}; it takes a whole number from 0 to 2^53, or None: not told"
        )


class BadQuery(BadValue):
    def __init__(self, where: str, value: object, takes: str) -> None:
        self.where = where
        super().__init__(f"{where}={_short(repr(value))} makes no sense; it takes {takes}")


class BadSearch(BadValue):
    def __init__(self, typed: object, why: str) -> None:
        super().__init__(f"cannot search for {_short(repr(typed))}: {why}")


class MissingBlob(BoughError):
    def __init__(self, digest: str) -> None:
        self.digest = digest
        super().__init__(
            f"blob {digest} is not in this store and space; put it with store.put_blob(data, mime) first"
        )


class BadSummary(BoughError):
    def __init__(self, why: str) -> None:
        super().__init__(f"compaction refused, the old context stays: {why}")


class TooLarge(BoughError):
    def __init__(self, turn: int, measure: str, size: int, budget: int) -> None:
        self.turn, self.measure, self.size, self.budget = turn, measure, size, budget
        what = f"turn {turn}" if turn else "what always stays (system prompt, summary)"
        super().__init__(
            f"{what} alone is {size:,} {measure}, the budget is {budget:,}; it is never dropped "
            "silently. Raise the budget, compact the session, or shorten the tool results"
        )


class UnknownProvider(BoughError):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"no provider {name!r}; known are {', '.join(known)}")


class ModelError(BoughError):
    """A model gave no answer."""

    def __init__(self, model: str, why: str, hint: str = "") -> None:
        self.model, self.why = model, why
        super().__init__(f"{model} gave no answer: {why}{'; ' + hint if hint else ''}")


class Overloaded(ModelError):
    """Too busy, unreachable or broken for now. `after` is how many seconds it asked us to wait."""

    def __init__(self, model: str, why: str, after: float | None = None) -> None:
        self.after = after
        super().__init__(
            model, why, "it is tried again with growing pauses, then the next in the fallback chain"
        )


class Overflow(ModelError):
    """The history is too long for it."""

    def __init__(self, model: str, why: str) -> None:
        super().__init__(model, why, "compact the session or lower the budget")


class CutOff(ModelError):
    """The answer ended in the middle."""

    def __init__(self, model: str, why: str) -> None:
        super().__init__(model, why, "what it had said is lost; call it again")


class NoModel(ModelError):
    """No such model, no key, or its SDK is not installed; the hint names the variable or the extra."""


class BadTool(BoughError):
    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"{name} cannot be a tool: {why}; give every parameter a name and a type hint that JSON can hold"
        )


class UnknownAgent(BoughError):
    def __init__(self, name: str | None, known: Sequence[str]) -> None:
        self.name, self.known = name, tuple(known)
        who = "no agent is named" if name is None else f"this worker knows no agent {name!r}"
        super().__init__(
            f"{who} (it knows {_some(known) or 'none'}); run bough worker --agents FILE.py with a file that holds "
            f"bough.engines.absurd.Agent({name or 'NAME'!r}, model=…)"
        )


class LimitReached(BoughError):
    def __init__(self, session_id: str, what: str) -> None:
        self.session_id, self.what = session_id, what
        super().__init__(f"nothing was sent to session {session_id}: {what}")


class TurnFailed(BoughError):
    def __init__(self, session_id: str, why: str) -> None:
        self.session_id, self.why = session_id, why
        super().__init__(
            f"the turn of session {session_id} got no answer: {why}; what is durable stays and the task is tried "
            'again. Once it has failed for good: session.resume(engine="absurd")'
        )


class StrayTask(BoughError):
    def __init__(self, session_id: str, step_end: int, seq: int) -> None:
        self.session_id, self.step_end, self.seq = session_id, step_end, seq
        super().__init__(
            f"session {session_id} stands at {seq}, the task's steps had reached {step_end}: somebody moved it. "
            "Send again from where it stands, or session.redo() and try the task again"
        )


class NotAnAnswer(BoughError):
    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}; hand in an Anthropic message, an OpenAI response or chat completion, a Gemini response "
            "(object or dict), or bough.assistant(…)"
        )


class OutOfScope(BoughError):
    def __init__(self, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(
            f"{_short(what)!r} is out of scope: {why}; nothing was done. Stay within what the workspace "
            "allows, or ask the person to widen it"
        )


class Unguarded(BoughError):
    def __init__(self, host: str, why: str = "others can reach it there") -> None:
        self.host = host
        super().__init__(
            f"not served on {host} without a token: {why}; say --token SECRET, or --host 127.0.0.1"
        )


class StoreError(BoughError):
    """The file or server itself."""


class WrongStore(StoreError):
    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where} is not a Bough store: {why}; name another path to make a new one")


class NewerFormat(StoreError):
    def __init__(self, where: str, found: str, known: str) -> None:
        super().__init__(
            f"{where} has format {found}, this Bough reads up to {known}; "
            "upgrade with pip install -U bough. The file was not touched"
        )


class NoServer(StoreError):
    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} cannot be reached: {why}; check the host, port, database and role of the URL, and that the "
            "server runs"
        )


class NoSchema(StoreError):
    def __init__(self, where: str, found: int, wanted: int) -> None:
        self.found, self.wanted = found, wanted
        what = f"has schema {found}, this Bough needs {wanted}" if found else "has no Bough schema yet"
        super().__init__(
            f"{where} {what}; run bough --store URL migrate, once, as the role that owns it or is to own it"
        )


class NoRights(StoreError):
    def __init__(self, where: str, role: str, why: str) -> None:
        self.role = role
        super().__init__(
            f"role {role!r} lacks a right on {where}: {why}. To open a store: grant bough_service to {role} "
            "(or the service role you chose); to migrate: the right to create a schema and roles"
        )


class NotOnPostgres(StoreError):
    def __init__(self, engine: str, where: str) -> None:
        self.engine, self.where = engine, where
        super().__init__(
            f"the engine {engine!r} runs on PostgreSQL, {where} is none; open postgresql://…, and take sessions "
            "along with bough copy --to URL"
        )


class NoEngine(StoreError):
    def __init__(self, where: str, queue: str, why: str) -> None:
        self.where, self.queue, self.why = where, queue, why
        super().__init__(
            f"{where} {why}; run bough --store URL migrate --engine absurd --queue {queue}, once, as the role that "
            "owns the schema"
        )


class Unsettled(StoreError):
    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} went away while committing and did not come back in time ({why}); whether the change was "
            "written is not known. Hand it in again with the same key once the server is back: it is written once"
        )


class ReadOnly(StoreError):
    def __init__(self, where: str) -> None:
        super().__init__(f"{where} cannot be written; check the rights of the file and its folder")


class StoreFull(StoreError):
    def __init__(self, where: str) -> None:
        super().__init__(
            f"no room to write {where}; nothing of this change was kept and all before it is safe. "
            "Free some disk, then try again with the same key"
        )


class IndexBehind(StoreError):
    def __init__(self, where: str, sessions: int, why: str) -> None:
        self.sessions = sessions
        super().__init__(
            f"{sessions:,} session(s) of {where} have text that is not indexed yet, and it cannot be now: {why}. "
            "Search what is indexed with search(…, catch_up=False)"
        )


class Damaged(StoreError):
    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} is damaged ({why}); restore a backup, or copy what can be read with verify()"
        )


class StoreClosed(StoreError):
    def __init__(self, where: str) -> None:
        super().__init__(f"the store {where} was closed; open it again with bough.open(…)")


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _some(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(_short(name, 40) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
