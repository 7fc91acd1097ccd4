"""Writes the calls that passed the proxy as sessions, on a thread of its own.

Each request carries a whole history. The longest part of it that is known, by the digest under which its commit was
stored, says which session continues and where: at its leaf, or at an earlier entry, on a branch. What is missing between
that place and the new input, because a call was not recorded, is appended as well.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Session, plugins
from oakleaf.core.context import build_context, endpoint_of
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import INTERRUPTED, Endpoint, Settings
from oakleaf.core.facts import ModelCallFailed, ModelCallRecorded, ModelCallStarted, PluginFact, RunnerEnded
from oakleaf.core.messages import (
    Message,
    Part,
    ToolResult,
    assistant,
    tool_result,
    with_unique_ids,
)
from oakleaf.core.tool_definitions import ToolSet, changed_tools, define_tools
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import Cursor, advance
from oakleaf.core.usage import Call, Usage
from oakleaf.errors import (
    NotFound,
    OakleafError,
    ServerUnreachable,
    SessionTrashed,
    StaleLeaf,
    StoreLocked,
    UnknownCommit,
    UnrecognizedReply,
)
from oakleaf.ext import Mirror, price, read, read_store
from oakleaf.stores.base import SessionQuery, SessionRow
from oakleaf.wire import Answer, find_provider
from oakleaf.wire.base import HistoryMessage
from oakleaf.wire.openai_chat.request import HOST, issuer_of
from oakleaf.wire.parsing import content_blocks
from oakleaf_record.content_encoding import decompress
from oakleaf_record.credentials import SecretMask
from oakleaf_record.history import history_digests
from oakleaf_record.model_request import ModelRequest, issued_by, read_request
from oakleaf_record.server import ApiCall, Listener
from oakleaf_record.spill import Spill, SpilledCall

if TYPE_CHECKING:
    from oakleaf import Store

_Result = TypeVar("_Result")
Place = tuple[Session, Leaf]

MAX_WAITING_BYTES = 256 * 1024 * 1024
"""What may wait for a slow store in memory. What comes on top of it waits on disk."""
OUTAGES = (ServerUnreachable, UnknownCommit, StoreLocked)
"""A store that is away and may come back. It is asked for half a minute before it says so."""
OUTAGE_PAUSE_SECONDS = 0.5
OUTAGE_CLOSE_SECONDS = 5.0
"""How long closing waits for a store that is known to be away."""
INTERRUPT_SECONDS = 0.2
"""How soon Ctrl-C ends a wait: a signal that another thread gets does not wake the main one."""
RETRY_MICROSECONDS = 10 * 60 * 1_000_000
"""How long the same first request counts as a repeated one, and not as a new conversation."""
MAX_ATTEMPTS, MAX_PAUSE_SECONDS = 100, 0.05
"""How often, and how soon, a write is tried again after another recorder moved the session: five seconds at most."""
MAX_SECRETS = 64
"""How many keys of programs are remembered: a history may repeat what an answer to another key said."""
MIN_PROMPT_LENGTH = 16
"""A shorter input is not taken for the prompt of a task only because a call contains it."""
CONVERSATION_STORED = PluginFact("record", "conversation_stored")
"""The fact after each answer that the provider added to a conversation; the first has the conversation's key."""
RESPONSE_STORED = PluginFact("record", "response_stored")
"""The fact that the provider keeps an answer, with the key of the response, or of one of its items."""
NOT_SENT = "The program that called the model sent no result for this call."


class CallPosition(Struct):
    """The position of a call: the session and the entry before the answer."""

    session: Session
    leaf: Leaf
    digest: bytes
    """Of the history up to there."""
    call_id: str
    request: ModelRequest


class Job(Struct, frozen=True):
    """A call's part to write: the request, or the end."""

    is_ended: bool
    call: ApiCall | SpilledCall
    size: int
    """What it takes of the memory."""


class Recorder(Listener):
    """Takes copies of calls and writes the copies to a store. While the store is away they wait."""

    def __init__(self, store: Store, notify: Callable[[str], None] = lambda line: None) -> None:
        self.store, self._notify = store, notify
        self.calls = 0
        """How many calls were recorded."""
        self.written = 0
        """How many requests and ends of calls wait no more."""
        self.sessions: dict[str, None] = {}
        """The sessions they belong to, in order."""
        self._started: set[str] = set()
        """Those of them that this run began."""
        self.gaps: list[str] = []
        """Why calls were not recorded."""
        self.passed: Counter[str] = Counter()
        """Requests that do not call a model, by method and path."""
        self.refused_paths: Counter[str] = Counter()
        """Requests that no upstream has a prefix for, by path."""
        self.outage: str | None = None
        """Why the store is away, while it is."""
        self.unrecorded: list[Job] = []
        """What was not written when the recorder was closed; `record_elsewhere` writes it."""
        self._reader = read_store(store)
        self._holder = f"{self._reader.holder()}#{self._reader.new_id()}"
        self._positions: dict[int, CallPosition] = {}
        self._prompts: dict[str, list[str]] = {}
        """The texts in the arguments of each session's open calls: one of them may be the prompt of a task."""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._job: Job | None = None
        """The one that is being written."""
        self._closing = threading.Event()
        self._ended = threading.Event()
        """Set when the thread ends: a join that Ctrl-C interrupts takes a running thread for one that has ended."""
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._spill = Spill()
        self._secrets: dict[str, None] = {}
        """The keys that programs sent, the latest last."""
        self._mask = SecretMask()
        threading.Thread(target=self._work, name="oakleaf-recorder", daemon=True).start()

    def finish(self, seconds: float | None = None) -> bool:
        """Write the queue; return whether the write, or giving up an absent store, was done in time."""
        self._closing.set()
        self._jobs.put(None)
        end = time.monotonic() + (float("inf") if seconds is None else seconds)
        while not self._ended.wait(max(0, min(INTERRUPT_SECONDS, end - time.monotonic()))):
            if time.monotonic() >= end:
                return False
        return True

    def close(self, seconds: float | None = None) -> bool:
        """Write the queue; return whether all was written in time. The rest is `unrecorded`."""
        if not self.finish(seconds if self.outage is None else OUTAGE_CLOSE_SECONDS):
            self.outage = self.outage or "the store did not take everything in time"
            self._give_up(self._job)  # the thread may still write it, and has nothing to do after that
        return self.outage is None

    def _give_up(self, job: Job | None) -> None:
        """Leave the job and all later jobs unrecorded. The thread and the one that closes the recorder may
        both do so.
        """
        with self._lock:
            if not self.unrecorded:
                self.unrecorded = [*filter(None, [job]), *self._waiting_jobs()]

    def _waiting_jobs(self) -> Iterator[Job]:
        with suppress(queue.Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    yield job

    def record_elsewhere(self, store: Store) -> Recorder:
        """Write the unrecorded calls to another store; return the closed recorder of the store.

        Each request has its whole history, so nothing of the first store is missing there.
        """
        recorder = Recorder(store)
        recorder._spill = self._spill
        for job in self.unrecorded:
            recorder._jobs.put(job)
        recorder.close()
        return recorder

    # -- called by the proxy -----------------------------------------------------------------------

    def request_sent(self, call: ApiCall) -> None:
        self._put(False, call)

    def call_ended(self, call: ApiCall) -> None:
        self._put(True, call)

    def passed_through(self, path: str) -> None:
        self.passed[path] += 1

    def refused(self, path: str) -> None:
        self.refused_paths[path] += 1

    def _put(self, is_ended: bool, call: ApiCall) -> None:
        size = 1 + len(call.request) + (0 if call.body is None else call.body.length)
        if self._waiting_bytes <= MAX_WAITING_BYTES:
            with self._lock:
                self._waiting_bytes += size
            self._jobs.put(Job(is_ended, call, size))
        elif is_ended:  # and with it its request
            try:
                self._jobs.put(Job(True, self._spill.put(call), 0))
            except OSError as error:
                why = error.strerror or str(error)
                self.gaps.append(f"the store was too slow, and the disk took no more to wait: {why}")

    # -- on the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._record_jobs()
            for session_id in () if self.outage else self.sessions:
                # It was purged, or the store takes nothing more, which is told as a gap.
                with suppress(OakleafError):
                    self._end_session(session_id)
        finally:
            self._ended.set()

    def _end_session(self, session_id: str) -> None:
        """Mark a session interrupted if the awaited calls will not be recorded any more."""
        session = self.store.session(session_id)
        row = session.refresh()
        if row.status == "running" and row.holder == self._holder:
            ended = {"status": "interrupted", "holder": None}
            Mirror(session).record(RunnerEnded(row.holder), row=ended)

    def _record_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._job = job
            try:
                if isinstance(job.call, SpilledCall):
                    self._job = job = replace(job, call=self._spill.take(job.call))
                self._record_job(job)
            except OUTAGES:  # and the recorder is closing
                self._give_up(job)
                return
            except Exception as error:  # noqa: BLE001 - whatever the store or a reply raises: the traffic goes on
                if job.is_ended:  # a request that was not recorded is recorded with its answer
                    why = error.problem if isinstance(error, OakleafError) else repr(error)
                    self.gaps.append(self._mask.text(why))
            self._job = None
            if job.is_ended:
                self._positions.pop(_call(job).number, None)
            with self._lock:
                self._waiting_bytes -= job.size
                self.written += 1

    def _record_job(self, job: Job) -> None:
        """Write a job, and try again while the store is away; raise one of OUTAGES when the recorder is closing."""
        call = _call(job)
        self._remember(call.secrets)
        while True:
            try:
                self._record_end(call) if job.is_ended else self._record_request(call)
            except OUTAGES as error:
                if self.outage is None:
                    self.outage = error.problem
                    self._notify(f"{error.problem}; calls pass as before and are recorded when it is back")
                if self._closing.wait(OUTAGE_PAUSE_SECONDS):
                    raise
            else:
                break
        if self.outage is not None:
            self.outage = None
            self._notify("the store is back, and what waited for it is recorded")

    def _remember(self, secrets: Sequence[str]) -> None:
        """Mask the secrets from now on."""
        if any(secret not in self._secrets for secret in secrets):
            latest = [*(old for old in self._secrets if old not in secrets), *secrets]
            self._secrets = dict.fromkeys(latest[-MAX_SECRETS:])
            self._mask = SecretMask(self._secrets)

    def _record_request(self, call: ApiCall) -> None:
        self._positions[call.number] = _retry_if_stale(lambda: self._append_request(call))

    def _record_end(self, call: ApiCall) -> None:
        if call.end == "too long":
            self.gaps.append("a request or response was too long to be recorded, or too many were under way")
            return
        if not call.request:  # the program left before its request was complete, or nobody waited for it
            if call.end == "unreachable":
                self.gaps.append(self._mask.text(call.error))
            elif call.end == "complete":
                self.gaps.append(f"the server answered {call.status} before the request was complete")
            return
        if call.number not in self._positions:
            self._record_request(call)
        _retry_if_stale(lambda: self._append_end(call, self._positions[call.number]))
        self.calls += 1

    # -- the request -------------------------------------------------------------------------------

    def _append_request(self, call: ApiCall) -> CallPosition:
        """Append the new part of the request, and announce the call."""
        body = decompress(call.request, call.request_encoding)
        request = read_request(
            call.provider, call.path_model, body, self._mask.json, _issuer(call), self._find_answer
        )
        stored = self._find_stored(request)
        start = _history_start(request, stored)
        digests = [start, *history_digests(request.messages, start)]
        count, position = self._find(request, digests, stored)
        session = position[0] if position is not None else self._start(request, call)
        if position is not None and session.leaf != position[1]:
            Mirror(session).move(position[1])
        self.sessions.setdefault(session.session_id)
        tools = define_tools(request.tools, self._reader.redactor)
        settings = self._new_settings(session, request, tools, call)
        holder = {"holder": self._holder, "lease_until": None}  # a name for `doctor`, which leases it nothing
        columns = {**_tool_columns(session.row.tool_names, tools), **holder}
        call_id = self._reader.new_id()
        announced = Call(call_id, 0, 0, None, call.started_at, provider=request.provider, model=request.model)
        ends = [
            end for end in range(count + 1, len(request.messages) + 1) if _is_boundary(request.messages, end)
        ]
        is_announced = False
        for end in ends:  # each with a key of its own: another request may share only a part of them
            cursor = read(session).cursor
            new = _with_stored_ids(cursor, request.messages[:count], request.messages[count:end])
            is_last = end == len(request.messages)
            drafts = list(self._follow(cursor, new, settings, closes=is_last))
            settings, count = None, end
            if not drafts:
                continue
            is_announced = is_last
            row = replace(announced, after_seq=session.leaf.seq + len(drafts))
            key = self._key(request, digests, end)
            Mirror(session).append(
                drafts,
                key=key,
                calls=[row] if is_announced else [],
                row=columns,  # from the first commit on: the recorder may be killed between two
            )
        if not is_announced:
            # A system prompt alone opens no turn, so no end of one would set another status.
            cursor = read(session).cursor
            columns |= {"status": "running"} if cursor.turn else {}
            if settings is not None and not cursor.open_calls:  # a known history, asked another way
                announced = replace(announced, after_seq=session.leaf.seq + 1)
                Mirror(session).append([settings], calls=[announced], row=columns)
            else:
                announced = replace(announced, after_seq=session.leaf.seq)
                Mirror(session).record(ModelCallStarted(), calls=[announced], row=columns)
        return CallPosition(session, session.leaf, digests[-1], call_id, request)

    def _find_stored(self, request: ModelRequest) -> Place | None:
        """Return the end of the provider's stored history, if the request continues a stored history."""
        if request.previous_response is not None:
            return self._find_key(_response_key(request.previous_response))
        found = self._find_key(_conversation_key(request.conversation)) if request.conversation else None
        if found is None:
            return None
        session = found[0]
        facts = read(session).facts_backwards()
        last = next(stored.leaf for stored in facts if stored.fact == CONVERSATION_STORED)
        return None if last is None else (session, last)

    def _find_answer(self, item_id: str) -> HistoryMessage | None:
        """Return the answer with an item of the id, as far as recorded."""
        place = self._find_key(_response_key(item_id))
        if place is None:
            return None
        session, leaf = place
        (entry,) = read(session).at(leaf).entries(leaf.seq)
        return None if entry.message is None else HistoryMessage(entry.message, entry.evidence)

    def _find(
        self, request: ModelRequest, digests: Sequence[bytes], stored: Place | None
    ) -> tuple[int, Place | None]:
        """Return the number of known messages, and the place of the last; else the end of the stored history."""
        messages = request.messages
        for count in range(len(messages), 0, -1):
            if _is_boundary(messages, count):
                is_answered = _has_answer(messages[:count]) or request.continues_stored
                key = self._key(request, digests, count)
                position = self._find_key(key) if is_answered else self._find_start(request, key)
                if position is not None:
                    waiting = (
                        None
                        if _is_answer(messages[count - 1])
                        else self._find_waiting(request, digests, position)
                    )
                    return waiting or (count, position)
        return 0, stored

    def _find_waiting(
        self, request: ModelRequest, digests: Sequence[bytes], known: Place
    ) -> tuple[int, Place] | None:
        """Return the session that waits for the input, if active after the session with the known input.

        A program that runs again and gets the same answers continues in its own session, not in that of its earlier run.
        """
        count = max((at for at, item in enumerate(request.messages, 1) if _is_answer(item)), default=0)
        position = self._find_key(self._key(request, digests, count)) if count else None
        if position is None or position[0].leaf != position[1]:
            return None
        is_later = position[0].row.updated_at > known[0].row.updated_at
        return (count, position) if is_later else None

    def _key(self, request: ModelRequest, digests: Sequence[bytes], count: int) -> str:
        """Return the key of the change at the end of the given number of the request's messages.

        Before the first answer the key is one of prompt and tools: other programs begin with the same words.
        """
        digest = digests[count]
        if _has_answer(request.messages[:count]) or request.continues_stored:
            return _history_key(digest)
        tools = ",".join(tool.name for tool in request.tools)
        setup = f"{request.model}\0{request.prompt}\0{tools}\0".encode("utf-8", "replace")
        return _history_key(sha256(setup + digest).digest())

    def _find_key(self, key: str) -> Place | None:
        """Return the position of the change with the key; among several sessions prefer a session with the
        leaf there.
        """
        return self._latest(self._places(key))

    def _find_start(self, request: ModelRequest, key: str) -> Place | None:
        """Return the position of a first input: of the same run, if soon repeated, for other runs begin anew.

        A request that goes on from there may follow one of another run, whose recorder was killed before the answer.
        """
        goes_on = _has_answer(request.messages)
        latest = self._reader.now() - RETRY_MICROSECONDS
        places = [
            (row, leaf)
            for row, leaf in self._places(key, None if goes_on else self._started)
            if (row.session_id in self._started and row.updated_at > latest) or (goes_on and row.leaf == leaf)
        ]
        own = [place for place in places if place[0].session_id in self._started]
        return self._latest(own or places)

    def _places(self, key: str, of: Container[str] | None = None) -> list[tuple[SessionRow, Leaf]]:
        rows = self._reader.sessions(SessionQuery(key=key)).sessions
        places = [
            (row, self._reader.find_change(row.session_id, key))
            for row in rows
            if of is None or row.session_id in of
        ]
        return [(row, leaf) for row, leaf in places if leaf is not None]

    def _latest(self, places: Sequence[tuple[SessionRow, Leaf]]) -> Place | None:
        if not places:
            return None
        row, leaf = max(places, key=lambda place: (place[0].leaf == place[1], place[0].updated_at))
        return self.store.session(row.session_id), leaf

    def _start(self, request: ModelRequest, call: ApiCall) -> Session:
        session = self._new_session(request, call)
        self._started.add(session.session_id)
        return session

    def _new_session(self, request: ModelRequest, call: ApiCall) -> Session:
        seeds = [Draft(item.message, evidence=item.evidence) for item in request.system]
        program = self._mask.text(call.client).partition("/")[0].partition(" ")[0] or "unknown"
        tags = {"recorded_from": program}
        model = f"{request.provider}:{request.model}"
        parent_id = self._parent_id(request)
        if parent_id is not None:
            with suppress(NotFound, SessionTrashed):  # it was deleted meanwhile
                parent = self.store.session(parent_id)
                return self.store.start_task(parent, seeds=seeds, tags=tags, model=model)
        return self.store.start(seeds=seeds, tags=tags, model=model)

    def _parent_id(self, request: ModelRequest) -> str | None:
        """Return the parent session: an open call of the parent contains the first input."""
        first = next(
            (item.message.text.strip() for item in request.messages if item.message.role == "user"), ""
        )
        for session_id, prompts in self._prompts.items():
            if any(prompt in first for prompt in prompts):
                return session_id
        return None

    def _new_settings(
        self, session: Session, request: ModelRequest, tools: ToolSet, call: ApiCall
    ) -> Draft | None:
        """Return the settings different from the session's; None without a difference."""
        context = build_context(session.path())
        now = context.settings
        redact = self._reader.redactor.redact_json
        options = redact(request.options)
        changed: dict[str, Any] = {}
        if redact(request.prompt) != "\n\n".join(context.system):
            changed["prompt"] = request.prompt
        if options != (now.options or {}):
            removed = {name: None for name in now.options or {} if name not in options}
            changed["options"] = {**options, **removed}
        new_tools = changed_tools(tools, now.tool_definitions)
        if new_tools is not None:
            changed["tool_definitions"] = new_tools.definitions
        model = f"{request.provider}:{request.model}"
        if model != (now.model or session.row.model):
            changed["model"] = model
        endpoint = _endpoint(request, call)
        if endpoint != endpoint_of(now, request.provider):
            changed["endpoints"] = {request.provider: endpoint}
        if not changed:
            return None
        return Draft(Settings(**changed), blobs=() if new_tools is None else (new_tools.blob,))

    def _follow(
        self, cursor: Cursor, messages: Sequence[HistoryMessage], settings: Draft | None, *, closes: bool
    ) -> Iterator[Draft]:
        """Yield the drafts of messages after the cursor, with the settings at the first possible place.

        Calls that got no result are closed before anything else follows, with `closes` also an answer; results of no open
        call are left out and counted as a gap.
        """
        for item in messages:
            message = item.message
            if message.role == "tool":
                open_ids = {call.call.id for call in cursor.open_calls}
                if not all(result.call_id in open_ids for result in message.results):
                    self.gaps.append("a tool result without an open call was left out")
                    continue
            else:
                for result in _missing_results(cursor):
                    cursor = advance(cursor, result).cursor
                    yield Draft(result)
                if settings is not None:
                    cursor = advance(cursor, settings.payload).cursor
                    yield settings
                    settings = None
                message = with_unique_ids(message) if message.role == "assistant" else message
            cursor = advance(cursor, message).cursor
            yield Draft(message, evidence=item.evidence)
        if closes:
            for result in _missing_results(cursor):
                cursor = advance(cursor, result).cursor
                yield Draft(result)
        if settings is not None and not cursor.open_calls:
            yield settings

    # -- the answer --------------------------------------------------------------------------------

    def _append_end(self, call: ApiCall, position: CallPosition) -> None:
        request, session = position.request, position.session
        session.refresh()  # another call of the same session may have moved it
        if session.leaf != position.leaf:
            Mirror(session).move(position.leaf)
        if call.end == "unreachable":
            self._fail(position, call, call.error)
            return
        try:
            body = decompress(call.response, call.content_encoding)
            reply = plugins.find(plugins.MODELS, call.provider).read_reply(call.content_type, body)
            reply.data, reply.error = self._mask.json(reply.data), self._mask.text(reply.error)
            if call.status >= 400 or reply.data is None:
                why = f"the server answered {call.status}"
                if not call.status:
                    why = f"the call was {call.end} before the server answered"
                self._fail(position, call, reply.error or why)
                return
            answer = find_provider(request.provider).parse_reply(reply.data)
            issued = issued_by(_issuer(call), HistoryMessage(answer.message, answer.evidence))
            answer = replace(answer, evidence=issued.evidence)
        except UnrecognizedReply as error:
            self._fail(position, call, error.problem)
            raise
        if reply.data.get("status") in ("queued", "in_progress"):  # the program asks for it by another path
            self._interrupt(
                position, call, answer, "the answer is given in the background, which is not recorded"
            )
        elif not reply.is_complete:
            self._interrupt(position, call, answer, reply.error)
            return
        else:
            self._answer(position, call, answer)
        if request.conversation is not None:
            key = _conversation_key(request.conversation)
            is_known = self._reader.find_change(session.session_id, key) is not None
            Mirror(session).record(CONVERSATION_STORED, key=None if is_known else key, at_leaf=True)
        if reply.response_id is not None and request.provider == "openai":
            for stored_id in _stored_ids(reply.response_id, reply.data):
                key = _response_key(stored_id)
                if self._find_key(key) is None:
                    Mirror(session).record(RESPONSE_STORED, key=key, at_leaf=True)

    def _answer(self, position: CallPosition, call: ApiCall, answer: Answer) -> None:
        session = position.session
        message = with_unique_ids(answer.message)
        digest = next(history_digests([HistoryMessage(message)], position.digest))
        key = _history_key(digest)
        row = self._ledger_row(position, call, answer)
        earlier = self._reader.find_change(session.session_id, key)
        if earlier is not None and earlier.seq == position.leaf.seq + 1:
            # The same answer again: the entry is there, the call was paid for once more.
            Mirror(session).record(
                ModelCallRecorded(), calls=[replace(row, answer_seq=None)], replaces_call=True
            )
            Mirror(session).move(earlier)
        else:
            draft = Draft(message, answer.model or position.request.model, answer.finish, answer.evidence)
            columns = None if message.calls else {"holder": None}
            Mirror(session).append(
                [draft], key=None if earlier else key, calls=[row], replaces_call=True, row=columns
            )
        texts = [text.strip() for call in message.calls for text in _texts(call.arguments)]
        self._prompts[session.session_id] = [text for text in texts if len(text) >= MIN_PROMPT_LENGTH]

    def _interrupt(self, position: CallPosition, call: ApiCall, answer: Answer, error: str) -> None:
        """Append the part of an answer from before the stream broke off."""
        mirror = Mirror(position.session)
        row = replace(self._ledger_row(position, call, answer), answer_seq=None, failed=True)
        ended = "cancelled" if call.end == "cancelled" else "interrupted"
        status = {"status": ended, "error": error or None, "holder": None}
        text = answer.message.text
        if text.strip():
            draft = Draft(assistant(text), answer.model or position.request.model, INTERRUPTED)
            mirror.append([draft], calls=[row], replaces_call=True, row=status)
        else:
            why = error or f"the stream was {call.end}"
            mirror.record(ModelCallFailed(why), calls=[row], replaces_call=True, row=status)

    def _fail(self, position: CallPosition, call: ApiCall, why: str) -> None:
        why = self._mask.text(why)
        row = replace(self._ledger_row(position, call, None), failed=True)
        ended = "cancelled" if call.end == "cancelled" else "failed"
        status = {"status": ended, "error": why, "holder": None}
        failed = ModelCallFailed(why)
        Mirror(position.session).record(failed, calls=[row], replaces_call=True, row=status)

    def _ledger_row(self, position: CallPosition, call: ApiCall, answer: Answer | None) -> Call:
        usage = (None if answer is None else answer.usage) or Usage()
        units = None if answer is None else answer.units
        model = (None if answer is None else answer.model) or position.request.model
        after = position.leaf.seq
        return Call(
            call_id=position.call_id,
            branch=0,
            after_seq=after,
            answer_seq=None if answer is None else after + 1,
            at=call.ended_at,
            usage=usage,
            provider=position.request.provider,
            model=model,
            price=price(usage, position.request.provider, model, units),
        )


def _call(job: Job) -> ApiCall:
    return job.call.call if isinstance(job.call, SpilledCall) else job.call


def _issuer(call: ApiCall) -> str:
    """Return the issuer of a call's evidence: servers of OpenAI's Chat Completions differ."""
    return issuer_of(call.upstream_host) if call.provider == "openai-chat" else call.provider


def _endpoint(request: ModelRequest, call: ApiCall) -> Endpoint:
    """Return the server of a call, as far as the server decides the form of a request."""
    if request.provider != "openai-chat":
        return Endpoint()
    host = None if call.upstream_host == HOST else call.upstream_host
    return Endpoint(host, request.model if request.token_limit else None, request.token_limit)


def _retry_if_stale(write: Callable[[], _Result]) -> _Result:
    """Write again after a faster recorder of the same conversation: each has a separate branch."""
    for attempt in range(MAX_ATTEMPTS - 1):
        try:
            return write()
        except StaleLeaf:
            time.sleep(random.uniform(0, min(0.001 * 2**attempt, MAX_PAUSE_SECONDS)))
    return write()


def _missing_results(cursor: Cursor) -> list[Message]:
    return [
        tool_result(call.call.id, NOT_SENT, error=True, outcome="interrupted") for call in cursor.open_calls
    ]


def _with_stored_ids(
    cursor: Cursor, known: Sequence[HistoryMessage], new: Sequence[HistoryMessage]
) -> list[HistoryMessage]:
    """Return the new messages with each result under the call's id in the session: ids may be made anew."""
    answer = next((item.message for item in reversed(known) if _is_answer(item)), None)
    calls = () if answer is None else answer.calls
    waiting = [(calls[one.index].id, one.call.id) for one in cursor.open_calls if one.index < len(calls)]

    def stored(part: Part) -> Part:
        for call in waiting:
            if isinstance(part, ToolResult) and part.call_id == call[0]:
                waiting.remove(call)  # the next result with this id is that of another call
                return replace(part, call_id=call[1])
        return part

    return [
        replace(item, message=replace(item.message, parts=tuple(map(stored, item.message.parts))))
        for item in new
    ]


def _tool_columns(known: Sequence[str], tools: ToolSet) -> dict[str, Any]:
    """Return the names of all tools ever offered to a session, if any are new."""
    names = tuple(dict.fromkeys([*known, *tools.definitions.names]))
    return {} if len(names) == len(known) else {"tool_names": names}


def _is_answer(item: HistoryMessage) -> bool:
    return item.message.role == "assistant"


def _is_boundary(messages: Sequence[HistoryMessage], count: int) -> bool:
    """Whether a request or an answer ends with so many messages."""
    return count == len(messages) or _is_answer(messages[count - 1]) or _is_answer(messages[count])


def _has_answer(messages: Sequence[HistoryMessage]) -> bool:
    return any(map(_is_answer, messages))


def _history_key(digest: bytes) -> str:
    return f"history:{digest.hex()}"


def _response_key(response_id: str) -> str:
    return f"response:{sha256(response_id.encode('utf-8', 'replace')).hexdigest()}"


def _stored_ids(response_id: str, data: dict[str, Any]) -> Iterator[str]:
    """Yield the ids for later references to a response."""
    yield response_id
    if data.get("store") is not False:
        yield from (
            item["id"] for item in content_blocks(data.get("output")) if isinstance(item.get("id"), str)
        )


def _conversation_key(conversation_id: str) -> str:
    return f"conversation:{sha256(conversation_id.encode('utf-8', 'replace')).hexdigest()}"


def _history_start(request: ModelRequest, stored: Place | None) -> bytes:
    """Return the digest before the first message: in a conversation the same words may be said again."""
    if request.previous_response is not None:
        return _response_key(request.previous_response).encode()
    if request.conversation is not None:
        return f"{_conversation_key(request.conversation)} {stored[1].seq if stored else 0}".encode()
    return b"oakleaf history"


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
