"""Bough as the conversation store of Pydantic AI: `BoughConversationStore(store)`, and `BoughSteps` to save each step.

Knows the framework's store contract and its hooks. Does not know how a conversation lies in a session
(`pydantic_ai_conversations`), nor how a message becomes entries (`pydantic_ai_messages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

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
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import DeferredToolRequests

from ...session import Session
from ...store import Store
from .. import require_store
from ..async_bridge import AsyncBridge
from .conversations import Conversations


class BoughConversationStore(ConversationStore):
    """Pydantic AI's conversations as sessions of a store, in its space and for its owner.

    `conversation_id` is the session's conversation and, to begin with, its title. Further keywords (agent, tags, …) are
    for the sessions it starts. Deleting puts a session into the trash; `store.restore` brings it back.
    """

    def __init__(self, store: Store, **about: Any) -> None:
        self._conversations = Conversations(require_store(store, "BoughConversationStore"), about)
        self._bridge = AsyncBridge(threads=4)

    # -- the framework's contract ------------------------------------------------------------------

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        return await self._bridge.run(self._conversations.record, conversation_id)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        return await self._bridge.run(self._conversations.records, scope, limit)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        await self._bridge.run(self._conversations.write, record, list(new_entries), expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        await self._bridge.run(self._conversations.delete, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        return [] if head_id is None else await self._bridge.run(self._conversations.history, head_id, limit)

    async def opened(self, conversation_id: str) -> Session | None:
        """The Bough session of a conversation: show, search, compact or export it."""
        return await self._bridge.run(self._conversations.find, conversation_id)

    async def land(self, conversation_id: str, part: ToolReturnPart[Any]) -> None:
        """A tool's result at the moment it came; its request, with all that belongs to it, is saved later."""
        dumped = ModelMessagesTypeAdapter.dump_python([ModelRequest([part])], mode="json")
        await self._bridge.run(self._conversations.land, conversation_id, dumped[0]["parts"][0])


class BoughSteps(AbstractCapability[Any]):
    """Every step durable as it happens: a request before the model is called, its answer before tools run, each result.

    `Agent(…, capabilities=[BoughSteps(store)])`. A run saves itself then, the result's revision included: `store.save` is
    not needed. `ConversationConflict` if the conversation the run was given is not what the store holds.
    """

    def __init__(self, store: BoughConversationStore) -> None:
        self.store = store
        self._conversation = Conversation()
        self._seen: list[ModelMessage] = []
        """The messages of the run's history that are in it."""

    async def for_run(self, ctx: RunContext[Any]) -> BoughSteps:
        return type(self)(self.store)

    async def before_run(self, ctx: RunContext[Any]) -> None:
        conversation_id = ctx.conversation_id or self._conversation.conversation_id
        stored = await self.store.load(conversation_id)
        self._conversation = stored or Conversation(conversation_id=conversation_id)
        held, given = self._conversation.messages, ctx.messages
        if given[: len(held)] == held:
            held.extend(given[len(held) :])
        elif not given or given != held[len(held) - len(given) :]:
            raise ConversationConflict(conversation_id)
        self._seen = list(given)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        await self._save(ctx)
        return request_context

    async def before_node_run(self, ctx: RunContext[Any], *, node: AgentNode[Any]) -> AgentNode[Any]:
        if isinstance(node, CallToolsNode):
            await self._save(ctx)
        return node

    async def after_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart[Any], tool_def: Any, args: Any, result: Any
    ) -> Any:
        value = result.return_value if isinstance(result, ToolReturn) else result
        part = ToolReturnPart(call.tool_name, value, call.tool_call_id)
        await self.store.land(self._conversation.conversation_id, part)
        return result

    async def after_run(self, ctx: RunContext[Any], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
        self._add(ctx, result.all_messages())  # the last answer of a stream is in the result alone
        await self._save(ctx, waits_for=result.conversation.deferred_tool_requests)
        assert self._conversation.revision is not None
        # What `store.save(result)` does with it; else whoever goes on with the result would be refused.
        result._conversation_saved(self._conversation.revision)
        return result

    async def _save(self, ctx: RunContext[Any], waits_for: DeferredToolRequests | None = None) -> None:
        self._add(ctx, ctx.messages)
        kept = self._conversation
        is_new = kept.new_message_index is None or len(kept.messages) > kept.new_message_index
        if is_new or kept.usage != ctx.usage or kept.deferred_tool_requests != waits_for:
            kept.usage, kept.deferred_tool_requests = copy(ctx.usage), waits_for
            await self.store.save(kept)

    def _add(self, ctx: RunContext[Any], messages: Sequence[ModelMessage]) -> None:
        """What the run has added to its history; what another capability trims of it stays stored."""
        for message in messages:
            if message.run_id == ctx.run_id and not any(message is seen for seen in self._seen):
                self._seen.append(message)
                self._conversation.messages.append(message)
