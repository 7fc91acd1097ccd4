"""Oakleaf as the session of OpenAI's Agents SDK: `Runner.run(agent, "Hi", session=OakleafSession("user-42", store))`.

Knows the SDK's session protocol and its hooks. Does not know how an item becomes an entry (`items`). All work of one
session runs call after call on the log's threads: the event loop never waits for the store, and tools that block the
SDK's threads do not delay entries.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Lock, get_running_loop
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    ItemHelpers,
    ModelResponse,
    RunContextWrapper,
    RunHooks,
    Tool,
    TResponseInputItem,
    handoff,
)
from agents.memory import SessionSettings
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
from agents.tool_context import ToolContext
from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Compaction, Entry, Uncompaction
from oakleaf.core.facts import ModelCallStarted, ToolCallsStarted
from oakleaf.core.messages import Message, tool_result
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Call, Usage
from oakleaf.ext import Mirror, read, run_to_end
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf_frameworks.openai_agents.items import Item, ItemDraftBuilder, is_ahead, path_items
from oakleaf_frameworks.shared import UNKNOWN_RESULT, model_call, model_column, record_setup, require_store

if TYPE_CHECKING:
    from agents.memory.session import _CompactionSnapshot
    from agents.result import RunResultBase

R = TypeVar("R")
CallUsage = tuple[Usage, str | None, str | None]
"""The usage of a model call, its provider and its model."""


class OakleafSession:
    """A session of the Agents SDK whose history is an Oakleaf session, opened on first use.

    With a store, `session_id` is a conversation id: its newest session is continued, or one is started with the given
    agent, title and tags. With an Oakleaf session, for example a fork, it is only a name. One object serves one run at a
    time: an append after another writer's raises `StaleLeaf`. With `redact=False` items are stored as they are.
    """

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        store: Store | Session,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        agent: str | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        redact: bool = True,
    ) -> None:
        self.session_id = session_id
        settings = SessionSettings() if session_settings is None else session_settings
        self.session_settings = coerce_session_settings(settings)
        self._source = require_store(store, "OakleafSession", or_session=True, redact=redact)
        self._agent, self._title, self._tags = agent, title or session_id, dict(tags or {})
        self._locks: WeakKeyDictionary[AbstractEventLoop, Lock] = WeakKeyDictionary()
        self._ahead = WrittenAhead()

    async def oakleaf_session(self) -> Session:
        """Return the Oakleaf session, to fork, redo, compact or export. This object uses the same handle."""
        return await self._run(lambda: self._session)

    # -- the SDK's protocol ------------------------------------------------------------------------

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the latest `limit` items (default: the settings' limit, else all), oldest first, in order of
        adding.
        """
        limit = resolve_session_limit(limit, self.session_settings)
        return cast(list[TResponseInputItem], await self._run(self._read, limit))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add all items, durable on return, or none."""
        await self._run(self._add, list(items))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the latest item: the leaf moves, nothing is deleted."""
        return cast(TResponseInputItem | None, await self._run(self._pop))

    async def clear_session(self) -> None:
        """Move the leaf to the start. Everything stays in the tree, and `redo` brings it back."""
        await self._run(self._clear)

    # -- beyond the protocol -----------------------------------------------------------------------

    async def close_batch(self, text: str = UNKNOWN_RESULT) -> int:
        """Give the open calls of a killed run this result, before the next run; return the count."""
        return await self._run(self._close_batch, text)

    async def store_run_usage(self, result: RunResultBase) -> None:
        """Record the usage of a run's model calls: once per run, for runs without `OakleafHooks`."""
        usages = [_usage(response) for response in result.raw_responses]
        model = model_of(result.last_agent)
        await self._run(self._record_usage, [(usage, *model) for usage in usages])

    async def write_setup(self, tools: Sequence[ToolSpec], prompt: str) -> None:
        """Record the tools and the instructions of the next model call."""
        await self._run(lambda: record_setup(self._mirror, tools, prompt))

    async def write_answer(self, agent: Agent[Any], response: ModelResponse) -> None:
        """Write a model's answer on arrival: calls are durable before running. An answer without calls waits
        for
        `add_items`."""
        items = [cast(Item, item) for item in response.to_input_items()]
        needing_approval = {tool.name for tool in agent.tools if getattr(tool, "needs_approval", False)}
        usage = (_usage(response), *model_of(agent))
        await self._run(self._write_answer, items, usage, needing_approval)

    async def write_tool_start(self, call_id: str) -> None:
        """Record the start of an approved call: from here on the call may have run."""
        await self._run(self._write_tool_start, call_id)

    async def write_tool_result(self, item: Item) -> None:
        """Write a tool's result on arrival."""
        await self._run(self._write_tool_result, item)

    # -- the SDK's private hooks for compaction ------------------------------------------------------

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[TResponseInputItem], bool] | None = None
    ) -> _CompactionSnapshot | None:
        """Return the latest items, with a function that replaces the last items in one commit unless another
        writer came first.
        """
        from agents.memory.session import _CompactionSnapshot

        suffix = await self._run(self._suffix, limit)
        if suffix is None:
            return None

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            return await self._run(self._replace_suffix, suffix, start, output, prune_prefix)

        items = cast(list[TResponseInputItem], [item for _, item in suffix.items])
        return _CompactionSnapshot(items, suffix.is_complete, replace_suffix)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace all items in one commit. The old ones stay in the tree."""
        await self._run(self._replace_all, items)
        return True

    async def _run(self, function: Callable[..., R], *args: Any) -> R:
        """Run the function to the end on a thread, after earlier calls: the SDK runs hooks of a session side
        by side.
        """
        async with self._locks.setdefault(get_running_loop(), Lock()):
            return await run_to_end(function, *args)

    # -- on the thread -----------------------------------------------------------------------------

    @property
    def _session(self) -> Session:
        if not isinstance(self._source, Session):
            self._source = self._source.latest_or_start(
                self.session_id, self._agent, title=self._title, tags=self._tags
            )
        return self._source

    @property
    def _mirror(self) -> Mirror:
        return Mirror(self._session, follows_notes=True)

    def _read(self, limit: int | None) -> list[Item]:
        session = self._session
        session.refresh()
        if limit is None or limit < 0:
            return [item for _, items in path_items(session.path(), read(session).blob) for item in items]
        return [item for _, items in self._latest(limit) for item in items][-limit:] if limit else []

    def _latest(self, minimum: int) -> list[tuple[Entry, list[Item]]]:
        """Return at least `minimum` of the latest items, if there are as many, reading the whole path only if needed."""
        session, many = self._session, minimum + 1
        while True:
            path = session.path(last=many)
            is_complete = len(path) < many
            if not is_complete and any(
                isinstance(entry.payload, Compaction | Uncompaction) for entry in path
            ):
                path, is_complete = session.path(), True
            pairs = path_items(path, read(session).blob)
            # Results are sorted by their calls, which must have been read: the path may not begin with a result.
            has_enough = sum(len(items) for _, items in pairs) >= minimum and path[0].role != "tool"
            if is_complete or has_enough:
                return pairs
            many *= 4

    def _add(self, items: Sequence[object]) -> None:
        session, mirror = self._session, self._mirror
        rest = self._ahead.remaining(session, items)
        if rest is None:  # the SDK changed what was written ahead: its version wins
            mirror.move(self._ahead.base)
            self._ahead.clear()
            rest = items
        if not rest:
            return
        drafts = self._builder().add(rest)
        call, last = self._ahead.call, _last_answer(drafts)
        if call is None or last is None:
            mirror.append(drafts)
        else:
            drafts[last] = replace(drafts[last], model=call.model)
            answered = replace(call, answer_seq=session.leaf.seq + last + 1)
            mirror.append(drafts, calls=[answered], replaces_call=True)
        self._ahead.call = None  # an answer that is not among the items was blocked and will not come

    def _builder(self) -> ItemDraftBuilder:
        """Return a builder: open calls that may have run get a visible result, other open calls a hidden result."""
        open_calls = self._session.open_tool_calls
        builder = ItemDraftBuilder([call.call.id for call in open_calls])
        if open_calls and is_ahead(self._session.path(since=open_calls[0].seq - 1)[0]):
            builder.closing_text, builder.hides_closing = UNKNOWN_RESULT, False
        return builder

    def _pop(self) -> Item | None:
        session = self._session
        session.refresh()
        self._ahead.clear()
        pairs = [pair for pair in self._latest(1) if not isinstance(pair[0].payload, Compaction)]
        if not pairs:
            return None
        last = pairs[-1][0]
        *rest, popped = (item for entry, items in pairs if entry.seq >= last.seq for item in items)
        # Consecutive items of the model are one entry: the rest of it is appended again, on a branch of its own.
        self._replace_after(last.seq - 1, rest, last.model)
        return popped

    def _suffix(self, limit: int) -> ItemSuffix | None:
        """Return the latest items; None after a compaction by Oakleaf, as the summary is not at the entry's place."""
        session = self._session
        session.refresh()
        pairs = self._latest(limit + 1)
        if any(isinstance(entry.payload, Compaction) for entry, _ in pairs):
            return None
        items = [(entry.seq, item) for entry, items in pairs for item in items]
        return ItemSuffix(session.leaf, items[-limit:], len(items) <= limit)

    def _replace_suffix(
        self,
        suffix: ItemSuffix,
        start: int,
        output: Sequence[object],
        prune_prefix: Callable[[TResponseInputItem], bool] | None,
    ) -> bool:
        """Replace the items from `start` on; False if there are none, or if the leaf has moved."""
        self._session.refresh()
        replaced = suffix.items[start:]
        if not replaced or self._session.leaf != suffix.leaf:
            return False
        base = min(seq for seq, _ in replaced) - 1
        # What precedes them in the same answer, or came later than them, is appended again.
        kept_items = [item for seq, item in suffix.items[:start] if seq > base]
        if prune_prefix is not None:
            before = self._read(None)[: -len(replaced)]
            expired = list(takewhile(prune_prefix, cast(list[TResponseInputItem], before)))
            base, kept_items = (0, before[len(expired) :]) if expired else (base, kept_items)
        self._replace_after(base, [*kept_items, *output])
        return True

    def _replace_all(self, items: Sequence[object]) -> None:
        self._session.refresh()
        self._replace_after(0, items)

    def _replace_after(self, seq: int, items: Sequence[object], model: str | None = None) -> None:
        """Move the leaf back to `seq` and append items there, on a branch, in one commit."""
        reader = read(self._session)
        base = reader.leaf_at(seq)
        open_calls = reader.cursor_at(base).open_calls if seq else ()
        drafts = (
            ItemDraftBuilder([call.call.id for call in open_calls], model=model).add(items) if items else []
        )
        self._ahead.clear()
        self._mirror.move(base, drafts=drafts)

    def _clear(self) -> None:
        self._session.refresh()
        self._ahead.clear()
        if self._session.leaf.seq:
            self._session.rewind(0)

    def _close_batch(self, text: str) -> int:
        self._session.refresh()
        open_calls = self._session.open_tool_calls
        if open_calls:
            self._mirror.append(
                [Draft(tool_result(call.call.id, text, error=True, outcome="unknown")) for call in open_calls]
            )
        return len(open_calls)

    def _record_usage(self, usages: Sequence[CallUsage]) -> None:
        calls = [self._call(usage) for usage in usages]
        if calls:
            self._mirror.record(ModelCallStarted(), calls=calls, row=model_column(calls))

    def _write_answer(self, items: list[Item], usage: CallUsage, needing_approval: Container[str]) -> None:
        session, mirror, call = self._session, self._mirror, self._call(usage)
        drafts = ItemDraftBuilder(model=call.model, is_ahead=True).add(items)
        last = drafts[-1].payload if drafts else None
        tool_calls = last.calls if isinstance(last, Message) else ()
        if session.open_tool_calls or not tool_calls:
            mirror.record(ModelCallStarted(), calls=[call], row=model_column([call]))
            # While calls are open this is a nested run, which has its own session or none.
            self._ahead.call = None if session.open_tool_calls else call
            return
        base, seq = session.leaf, session.leaf.seq + len(drafts)
        starts = [index for index, tool in enumerate(tool_calls) if tool.name not in needing_approval]
        mirror.append(drafts, calls=[replace(call, answer_seq=seq)], row=model_column([call]), starts=starts)
        self._ahead.add(base, session.leaf, items)

    def _write_tool_start(self, call_id: str) -> None:
        for call in self._session.open_tool_calls:
            if call.call.id == call_id:
                self._mirror.record(ToolCallsStarted(call.seq, (call.index,)), at_leaf=True)

    def _write_tool_result(self, item: Item) -> None:
        session = self._session
        if any(call.call.id == item.get("call_id") for call in session.open_tool_calls):
            base = session.leaf
            self._mirror.append(ItemDraftBuilder([item["call_id"]], is_ahead=True).add([item]))
            self._ahead.add(base, session.leaf, [item])

    def _call(self, usage: CallUsage) -> Call:
        return model_call(self._session, *usage, after=self._session.leaf.seq, answer=None)


class ItemSuffix(Struct, frozen=True):
    """The latest items of a session, each with the seq of the entry, and the leaf of the reading."""

    leaf: Leaf
    items: list[tuple[int, Item]]
    is_complete: bool


class WrittenAhead:
    """The items hooks wrote before the SDK, and the leaf before (`base`) and after the items."""

    def __init__(self) -> None:
        self.base = self._leaf = Leaf(0, 0)
        self._items: list[Item] = []
        self.call: Call | None = None
        """The recorded model call of an answer that is not on the path yet."""

    def add(self, base: Leaf, leaf: Leaf, items: Sequence[Item]) -> None:
        self.base = self.base if self._items else base
        self._leaf = leaf
        self._items.extend(items)

    def clear(self) -> None:
        self._items.clear()

    def remaining(self, session: Session, items: Sequence[object]) -> Sequence[object] | None:
        """Return the items not written yet; None for a changed version of the written step."""
        written = self._items
        is_on_path = session.leaf.seq >= self._leaf.seq and read(session).contains(self._leaf)
        if not is_on_path or not any(map(self._matches, items)):
            # Nothing was written ahead, or a failed run wrote it: its calls may have run and stay on the path.
            self.clear()
            return items
        same_step = items[: len(written)]
        if all(item in written for item in same_step) and all(
            item in same_step for item in written[: len(same_step)]
        ):
            self._items = written[len(same_step) :]
            return items[len(same_step) :]
        return None

    def _matches(self, item: object) -> bool:
        call_id = item.get("call_id") if isinstance(item, dict) else None
        return any(
            item == written or (call_id and call_id == written.get("call_id")) for written in self._items
        )


class OakleafHooks(RunHooks[Any]):
    """Make every step durable as it happens: an answer before its tools run, each result as it arrives, each usage, and
    the instructions and the definitions of the tools that the model is given.

    `Runner.run(agent, "Hi", session=session, hooks=OakleafHooks(session))`. Without hooks the SDK adds all of a step at
    once, when its tools are done.
    """

    def __init__(self, session: OakleafSession) -> None:
        self.session = session

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        await self.session.write_setup(await tool_specs(agent, context), system_prompt or "")

    async def on_llm_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse
    ) -> None:
        await self.session.write_answer(agent, response)

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Any, tool: Tool) -> None:
        if isinstance(context, ToolContext) and getattr(tool, "needs_approval", False):
            await self.session.write_tool_start(context.tool_call_id)

    async def on_tool_end(
        self, context: RunContextWrapper[Any], agent: Any, tool: Tool, result: object
    ) -> None:
        if isinstance(context, ToolContext) and context.tool_call is not None:
            item = ItemHelpers.tool_call_output_item(context.tool_call, result)
            await self.session.write_tool_result(cast(Item, item))


async def tool_specs(agent: Agent[Any], context: RunContextWrapper[Any]) -> list[ToolSpec]:
    """Return the functions that an agent's model may call, its handoffs last, as the SDK sends them.

    Tools that OpenAI hosts have no definition to send.
    """
    functions = [tool for tool in await agent.get_all_tools(context) if isinstance(tool, FunctionTool)]
    handoffs = [item if isinstance(item, Handoff) else handoff(item) for item in agent.handoffs]
    return [
        *(ToolSpec(tool.name, tool.description, tool.params_json_schema) for tool in functions),
        *(
            ToolSpec(item.tool_name, item.tool_description, item.input_json_schema)
            for item in handoffs
            if item.is_enabled is True
        ),
    ]


def _last_answer(drafts: Sequence[Draft]) -> int | None:
    """Return the index of the last answer."""
    payloads = [draft.payload for draft in drafts]
    roles = [payload.role if isinstance(payload, Message) else None for payload in payloads]
    return len(roles) - 1 - roles[::-1].index("assistant") if "assistant" in roles else None


def model_of(agent: Any) -> tuple[str | None, str | None]:
    """Return provider and model of an agent: from `gpt-5`, `litellm/anthropic/claude-…`, or a model object's name."""
    name = agent.model if isinstance(agent.model, str) else getattr(agent.model, "model", None)
    if not isinstance(name, str) or not name:
        return None, None
    *vendors, model = name.split("/")
    return vendors[-1] if vendors else "openai", model


def _usage(response: ModelResponse) -> Usage:
    usage = response.usage
    cache_read = usage.input_tokens_details.cached_tokens
    cache_write = getattr(usage.input_tokens_details, "cache_write_tokens", None)
    return Usage(usage.input_tokens, usage.output_tokens, cache_read, cache_write)
