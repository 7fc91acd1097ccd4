"""Oakleaf as the conversation store of Pydantic AI: `OakleafConversationStore(store)`, and `OakleafSteps` to save each step.

Knows the framework's store contract, its hooks, and how conversations map to sessions. Does not know how a message becomes
entries (`messages`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

from pydantic import TypeAdapter
from pydantic_ai import CallToolsNode, RunContext, ToolReturn
from pydantic_ai.agent import AgentRunResult
from pydantic_ai.capabilities import AbstractCapability, AgentNode
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import DeferredToolRequests, ToolDefinition
from pydantic_ai.usage import RunUsage

from oakleaf.core.context import fold_settings
from oakleaf.core.entries import Entry
from oakleaf.core.facts import ToolCallsStarted
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Call, Usage
from oakleaf.errors import StaleLeaf
from oakleaf.ext import UNKNOWN_OUTCOME, Mirror, fork_at, read, read_store, run_to_end, session_of
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.stores.base import SessionQuery, SessionRow
from oakleaf_frameworks.pydantic_ai.messages import (
    Dumped,
    MessageDraftBuilder,
    PathMessage,
    entry_id_of,
    path_messages,
    record_of,
)
from oakleaf_frameworks.shared import (
    is_repeatable,
    model_call,
    model_column,
    no_blob,
    record_setup,
    require_store,
)

V = TypeVar("V")
SCOPE_TAG = "scope"
CONVERSATION_RELATIONS = (None, "import", "fork")
"""The relations of sessions that are conversations; tasks and replays are not."""
MAX_REMEMBERED_ENTRIES = 10_000
PRICED_UNITS = ("cache_write_1h_tokens", "web_searches")
"""What has a price of its own beside the tokens: fields of the usage only where a provider reports them."""

_usage_adapter = TypeAdapter(RunUsage)
_deferred_adapter: TypeAdapter[DeferredToolRequests | None] = TypeAdapter(DeferredToolRequests | None)


class OakleafConversationStore(ConversationStore):
    """Pydantic AI's conversations as sessions of a store, in the store's space and for its owner.

    `conversation_id` is the session's conversation id and its first title. `agent` and `tags` are for the sessions it
    starts. Deleting moves a session to the trash; `store.restore` brings it back. With `redact=False` messages are stored as
    they are, secrets included.
    """

    def __init__(
        self,
        store: Store,
        *,
        agent: str | None = None,
        tags: Mapping[str, str] | None = None,
        redact: bool = True,
    ) -> None:
        store = require_store(store, "OakleafConversationStore", redact=redact)
        self._conversations = Conversations(store, agent, tags)

    # -- the framework's contract ------------------------------------------------------------------

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        return await run_to_end(self._conversations.record, conversation_id)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        return await run_to_end(self._conversations.records, scope, limit)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        await run_to_end(self._conversations.write, record, list(new_entries), expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        await run_to_end(self._conversations.delete, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        return [] if head_id is None else await run_to_end(self._conversations.history, head_id, limit)

    async def oakleaf_session(self, conversation_id: str) -> Session | None:
        """Return the Oakleaf session of a conversation, to show, search, compact or export."""
        return await run_to_end(self._conversations.find, conversation_id)

    async def write_tools(self, conversation_id: str, tools: Sequence[ToolSpec]) -> None:
        """Record the tools of the next model call."""
        await run_to_end(self._conversations.write_tools, conversation_id, tools)

    async def write_tool_start(self, conversation_id: str, call_id: str) -> bool:
        """Record a call's start before the run; return False for a start recorded before."""
        return await run_to_end(self._conversations.write_start, conversation_id, call_id)

    async def write_tool_result(self, conversation_id: str, part: ToolReturnPart[Any]) -> None:
        """Write a tool's result on arrival; the rest of the request is saved later."""
        dumped = ModelMessagesTypeAdapter.dump_python([ModelRequest([part])], mode="json")
        await run_to_end(self._conversations.write_result, conversation_id, dumped[0]["parts"][0])


class OakleafSteps(AbstractCapability[Any]):
    """Save every step as it happens: a request before the model is called, with the tools that the model receives, its
    answer, each tool's start and result.

    `Agent(…, capabilities=[OakleafSteps(store)])`. The run saves itself, including the result's revision: `store.save` is
    not needed. `ConversationConflict` if the run's history differs from the stored conversation.

    A call that had started when its process was killed is not run again: the model is told that its outcome is unknown.
    A tool with `metadata={"effect": "read"}` or `"idempotent"` is run again.
    """

    def __init__(self, store: OakleafConversationStore) -> None:
        self.store = store
        self._conversation = Conversation()
        self._known: list[ModelMessage] = []
        """The messages of the run's history that are in the conversation."""
        self._deferred: set[str] = set()
        """The calls that an earlier run deferred: they started, and had no effect yet."""

    async def for_run(self, ctx: RunContext[Any]) -> OakleafSteps:
        return type(self)(self.store)

    async def before_run(self, ctx: RunContext[Any]) -> None:
        conversation_id = ctx.conversation_id or self._conversation.conversation_id
        stored = await self.store.load(conversation_id)
        self._conversation = stored or Conversation(conversation_id=conversation_id)
        saved, history = self._conversation.messages, ctx.messages
        if history[: len(saved)] == saved:
            saved.extend(history[len(saved) :])
        elif not history or history != saved[len(saved) - len(history) :]:
            raise ConversationConflict(conversation_id)
        self._known = list(history)
        deferred = self._conversation.deferred_tool_requests
        if deferred is not None:
            self._deferred = {call.tool_call_id for call in (*deferred.approvals, *deferred.calls)}

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        await self._save(ctx)
        parameters = request_context.model_request_parameters
        tools = [
            ToolSpec(tool.name, tool.description or "", tool.parameters_json_schema)
            for tool in (*parameters.function_tools, *parameters.output_tools)
        ]
        await self.store.write_tools(self._conversation.conversation_id, tools)
        return request_context

    async def before_node_run(self, ctx: RunContext[Any], *, node: AgentNode[Any]) -> AgentNode[Any]:
        if isinstance(node, CallToolsNode):
            await self._save(ctx)
        return node

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart[Any],
        tool_def: ToolDefinition,
        args: Any,
        handler: Any,
    ) -> Any:
        is_first = await self.store.write_tool_start(self._conversation.conversation_id, call.tool_call_id)
        if not (is_first or is_repeatable(tool_def.metadata) or call.tool_call_id in self._deferred):
            raise ToolFailed(UNKNOWN_OUTCOME)
        self._deferred.discard(call.tool_call_id)
        return await handler(args)

    async def after_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart[Any], tool_def: Any, args: Any, result: Any
    ) -> Any:
        value = result.return_value if isinstance(result, ToolReturn) else result
        part = ToolReturnPart(call.tool_name, value, call.tool_call_id)
        await self.store.write_tool_result(self._conversation.conversation_id, part)
        return result

    async def after_run(self, ctx: RunContext[Any], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
        self._add(ctx, result.all_messages())  # the last answer of a stream is in the result alone
        await self._save(ctx, deferred=result.conversation.deferred_tool_requests)
        assert self._conversation.revision is not None
        # As `store.save(result)` does; without it, continuing from the result would raise a conflict.
        result._conversation_saved(self._conversation.revision)
        return result

    async def _save(self, ctx: RunContext[Any], deferred: DeferredToolRequests | None = None) -> None:
        self._add(ctx, ctx.messages)
        conversation = self._conversation
        saved_count = conversation.new_message_index
        is_new = saved_count is None or len(conversation.messages) > saved_count
        if is_new or conversation.usage != ctx.usage or conversation.deferred_tool_requests != deferred:
            conversation.usage, conversation.deferred_tool_requests = copy(ctx.usage), deferred
            await self.store.save(conversation)

    def _add(self, ctx: RunContext[Any], messages: Sequence[ModelMessage]) -> None:
        """Add the run's new messages; messages trimmed from the history by another capability stay stored."""
        for message in messages:
            if message.run_id == ctx.run_id and not any(message is earlier for earlier in self._known):
                self._known.append(message)
                self._conversation.messages.append(message)


class Conversations:
    """The conversations of a store as blocking calls: finding, reading, writing, forking, deleting."""

    def __init__(self, store: Store, agent: str | None, tags: Mapping[str, str] | None) -> None:
        self._store, self._agent, self._tags = store, agent, dict(tags or {})
        self._session_ids: OrderedDict[str, str] = OrderedDict()
        """Sessions of the heads and branches that were read last: the contract refers to entries by id alone."""

    # -- reading -----------------------------------------------------------------------------------

    def find(self, conversation_id: str) -> Session | None:
        for row in self._store.all_sessions(conversation_id=conversation_id):
            if row.relation in CONVERSATION_RELATIONS:
                return self._open(row)
        return None

    def _open(self, row: SessionRow) -> Session:
        return session_of(self._store, row)

    def record(self, conversation_id: str) -> ConversationRecord | None:
        session = self.find(conversation_id)
        return None if session is None else self._record(session)

    def records(self, scope: str | None, limit: int | None) -> list[ConversationRecord]:
        tag = None if scope is None else (SCOPE_TAG, scope)
        rows: dict[str, SessionRow] = {}
        for row in self._store.all_sessions(tag=tag):
            if row.relation in CONVERSATION_RELATIONS:
                rows.setdefault(row.conversation_id, row)
        newest = sorted(rows.values(), key=lambda row: row.updated_at, reverse=True)
        records = (self._record(self._open(row)) for row in newest)
        return list(islice((record for record in records if record is not None), limit))

    def _record(self, session: Session) -> ConversationRecord | None:
        """Return the conversation's record; None without a message and a record."""
        entry, last, last_request = self._tail(session)
        if entry is None and last is None:
            return None
        has_moved = entry is None or (last_request is not None and last_request.seq > entry.seq)
        fields = None if entry is None else record_of(entry)
        head = None if last is None else last.entry_id
        record = _conversation_record(session.row, head, fields or {}, session.leaf if has_moved else None)
        self._remember(session, record)
        return record

    def _tail(self, session: Session) -> tuple[Entry | None, PathMessage | None, PathMessage | None]:
        """Return the entry with the latest record, the last message, and the last message with more than
        early results.
        """
        many = 8
        while True:
            path = session.path(last=many)
            recorded = [entry for entry in path if record_of(entry) is not None]
            messages = list(path_messages(path, no_blob))
            complete = [message for message in messages if not message.is_results_only]
            if len(path) < many or (recorded and complete):
                return _last(recorded), _last(messages), _last(complete)
            many *= 8

    def _remember(self, session: Session, record: ConversationRecord) -> None:
        for entry_id in (record.head_id, *record.branches):
            if entry_id is not None:
                self._session_ids[entry_id] = session.session_id
        while len(self._session_ids) > MAX_REMEMBERED_ENTRIES:
            self._session_ids.popitem(last=False)

    def history(self, head: str, limit: int | None) -> list[ConversationEntry]:
        session = self._session_of(head)
        leaf = self._leaf_of(session, head)
        if leaf is None:
            raise LookupError(f"entry {head!r} is no longer in its conversation; load the conversation again")
        stored, before = self._messages(session, leaf, limit)
        messages = ModelMessagesTypeAdapter.validate_python([item.message for item in stored])
        entry_ids = [before, *(item.entry_id for item in stored)]
        return [
            ConversationEntry(id=entry_id, parent_id=parent, message=message)
            for parent, entry_id, message in zip(entry_ids, entry_ids[1:], messages, strict=False)
            if entry_id is not None
        ]

    def _messages(
        self, session: Session, leaf: Leaf, limit: int | None
    ) -> tuple[list[PathMessage], str | None]:
        """Return the latest messages up to a leaf, and the entry id of the message before."""
        store, many = read_store(self._store), None if limit is None else 4 * limit + 4
        while many is not None:
            path = store.path(session.session_id, leaf=leaf, newest=many).entries
            if len(path) < many:
                break
            messages = list(path_messages(path, read(session).blob, self._prompt(session, path[0])))
            if limit is not None and len(messages) > limit:
                first = len(messages) - limit
                return messages[first:], messages[first - 1].entry_id
            many *= 4
        messages = list(path_messages(store.path(session.session_id, leaf=leaf).entries, read(session).blob))
        first = 0 if limit is None else max(0, len(messages) - limit)
        return messages[first:], messages[first - 1].entry_id if first else None

    def _prompt(self, session: Session, before: Entry) -> str | None:
        leaf = Leaf(before.branch, before.seq)
        return fold_settings(read(session).at(leaf).control_entries()).prompt

    def _session_of(self, entry_id: str) -> Session:
        """Return the session of an entry: remembered, found by the change's key, or searched among the candidates."""
        session_id = self._session_ids.get(entry_id)
        if session_id is not None:
            return self._store.session(session_id)
        for row in read_store(self._store).sessions(SessionQuery(key=_change_key(entry_id))).sessions:
            if row.relation in CONVERSATION_RELATIONS:
                return self._open(row)
        rows = [row for row in self._store.all_sessions() if row.relation in CONVERSATION_RELATIONS]
        minted = _minted_at(entry_id)  # last come those that were not written since, unless by another clock
        for row in sorted(rows, key=lambda row: row.updated_at < minted):
            session = self._open(row)
            if self._leaf_of(session, entry_id) is not None:
                self._session_ids[entry_id] = row.session_id
                return session
        raise LookupError(f"entry {entry_id!r} is in no conversation of this store")

    def _leaf_of(self, session: Session, entry_id: str) -> Leaf | None:
        """Return where in a session's tree an entry of the framework ends."""
        change = read(session).find_change(_change_key(entry_id))
        if change is not None:
            return change.leaf
        tail = list(path_messages(session.path(last=8), no_blob))
        if tail and tail[-1].entry_id == entry_id:
            return Leaf(tail[-1].branch, tail[-1].seq)
        for entry in (*session.path(), *session.entries()):
            if entry_id_of(entry) == entry_id:
                return Leaf(entry.branch, entry.seq)
        return None

    # -- writing -----------------------------------------------------------------------------------

    def write(
        self, record: ConversationRecord, new: list[ConversationEntry], expected_revision: str | None
    ) -> None:
        """Append messages and the record, also behind a note of another writer: notes change no revision."""
        while True:
            try:
                return self._write(record, new, expected_revision)
            except StaleLeaf:  # what has been written is judged by the revision
                continue

    def _write(
        self, record: ConversationRecord, new: list[ConversationEntry], expected_revision: str | None
    ) -> None:
        session = self.find(record.conversation_id)
        stored = None if session is None else self._record(session)
        if (None if stored is None else stored.revision) != expected_revision:
            raise ConversationConflict(record.conversation_id)
        parent = new[0].parent_id if new else record.head_id
        if session is None:
            session = self._start(record, parent)
        elif parent != (None if stored is None else stored.head_id):
            self._move(session, record, parent)
        self._append(session, record, new)
        self._remember(session, record)

    def _start(self, record: ConversationRecord, parent: str | None) -> Session:
        tags = self._tags | ({} if record.scope is None else {SCOPE_TAG: record.scope})
        if parent is None:
            title = record.conversation_id
            return self._store.latest_or_start(title, self._agent, title=title, tags=tags)
        source = None if record.forked_from is None else self.find(record.forked_from)
        leaf = None if source is None else self._leaf_of(source, parent)
        if source is None or leaf is None:  # the parent was deleted meanwhile
            raise ConversationConflict(record.conversation_id)
        return self._fork(source, leaf, record.conversation_id, tags)

    def _fork(self, source: Session, leaf: Leaf, conversation_id: str, tags: dict[str, str]) -> Session:
        """Fork anywhere in the source's tree, even where calls are open: the framework can continue there."""
        return fork_at(source, leaf, conversation_id=conversation_id, title=conversation_id, tags=tags)

    def _move(self, session: Session, record: ConversationRecord, parent: str | None) -> None:
        leaf = read(session).leaf_at(0) if parent is None else self._leaf_of(session, parent)
        if leaf is None:
            raise ConversationConflict(record.conversation_id)
        Mirror(session).move(leaf)

    def _append(self, session: Session, record: ConversationRecord, new: list[ConversationEntry]) -> None:
        prompt = fold_settings(read(session).control_entries()).prompt if new else None
        open_calls = [call.call.id for call in session.open_tool_calls]
        builder = MessageDraftBuilder(open_calls, prompt, self._tail(session)[1], _started_calls(session))
        dumped = ModelMessagesTypeAdapter.dump_python([entry.message for entry in new], mode="json")
        for entry, message in zip(new, dumped, strict=True):
            builder.add(message, entry.id)
        builder.add_record(_record_fields(record))
        calls = [self._call(session, session.leaf.seq + index, message) for index, message in builder.answers]
        key = _change_key(new[-1].id) if new else None
        Mirror(session).append(builder.drafts, calls=calls, row=model_column(calls), key=key)

    def _call(self, session: Session, after: int, answer: Dumped) -> Call:
        tokens, model = answer["usage"], answer.get("model_name")
        provider = answer.get("provider_name")
        provider = "gemini" if provider is not None and provider.startswith("google") else provider
        usage = Usage(
            tokens["input_tokens"],
            tokens["output_tokens"],
            tokens["cache_read_tokens"],
            tokens["cache_write_tokens"],
        )
        units = {name: tokens[name] for name in PRICED_UNITS if tokens.get(name)}
        return model_call(session, usage, provider, model, after=after, answer=after + 1, units=units)

    def write_tools(self, conversation_id: str, tools: Sequence[ToolSpec]) -> None:
        session = self.find(conversation_id)
        if session is not None:
            record_setup(Mirror(session), tools)

    def write_start(self, conversation_id: str, call_id: str) -> bool:
        """Record the start of an open call; return False for a start recorded before."""
        session = self.find(conversation_id)
        for call in () if session is None else session.open_tool_calls:
            if session is not None and call.call.id == call_id:
                if (call.seq, call.index) in read(session).call_status().started:
                    return False
                Mirror(session).record(ToolCallsStarted(call.seq, (call.index,)))
        return True

    def write_result(self, conversation_id: str, part: Dumped) -> None:
        """Write the result of an open call. Results of one batch may arrive at the same time."""
        while (session := self.find(conversation_id)) is not None:
            open_calls = [call.call.id for call in session.open_tool_calls]
            if part["tool_call_id"] not in open_calls:
                return
            builder = MessageDraftBuilder(open_calls)
            builder.add_result(part)
            with suppress(StaleLeaf):
                Mirror(session).append(builder.drafts)
                return

    def delete(self, conversation_id: str, expected_revision: str) -> None:
        session = self.find(conversation_id)
        stored = None if session is None else self._record(session)
        if session is None or stored is None or stored.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        self._store.delete(session.session_id)


def _started_calls(session: Session) -> set[str]:
    """Return the open calls with a possible start."""
    if not session.open_tool_calls:
        return set()
    started = read(session).call_status().started
    return {call.call.id for call in session.open_tool_calls if (call.seq, call.index) in started}


def _change_key(entry_id: str) -> str:
    """Return the key of the change ending with an entry of the framework: keys are indexed over all sessions."""
    return f"pydantic-ai:{sha256(entry_id.encode('utf-8', 'replace')).hexdigest()[:32]}"


def _minted_at(entry_id: str) -> int:
    """Return when the framework made an entry's id, a UUID of version 7, in microseconds; 0 for any other id."""
    try:
        uuid = UUID(entry_id)
    except ValueError:
        return 0
    return (uuid.int >> 80) * 1_000 if uuid.version == 7 else 0


def _record_fields(record: ConversationRecord) -> Dumped:
    """Return the fields of a record missing in the session."""
    return {
        "usage": _usage_adapter.dump_python(record.usage, mode="json", exclude_defaults=True),
        "deferred": _deferred_adapter.dump_python(record.deferred_tool_requests, mode="json"),
        "forked_from": record.forked_from,
        "forked_at": record.forked_at,
        "branches": record.branches,
        "revision": record.revision,
        "updated_at": record.updated_at.isoformat(),
    }


def _conversation_record(
    row: SessionRow, head: str | None, fields: Dumped, moved: Leaf | None
) -> ConversationRecord:
    """Return a session's record. If its leaf has moved to `moved` since it was written, the revision names that leaf."""
    updated = fields.get("updated_at")
    return ConversationRecord(
        conversation_id=row.conversation_id,
        head_id=head,
        usage=_usage_adapter.validate_python(fields.get("usage", {})),
        deferred_tool_requests=_deferred_adapter.validate_python(fields.get("deferred"))
        if moved is None
        else None,
        scope=row.tags.get(SCOPE_TAG),
        forked_from=fields.get("forked_from"),
        forked_at=fields.get("forked_at"),
        branches=list(fields.get("branches", ())),
        revision=fields["revision"] if moved is None else f"oakleaf {moved}",
        updated_at=datetime.fromisoformat(updated)
        if updated
        else datetime.fromtimestamp(row.updated_at / 1e6, UTC),
    )


def _last(items: Sequence[V]) -> V | None:
    return items[-1] if items else None
