"""Bough as the session of OpenAI's Agents SDK: `Runner.run(agent, "Hi", session=BoughSession("user-42", store))`.

Knows the SDK's session protocol and its hooks. Does not know how an item becomes an entry: `openai_agents_items` does.
All of one session's work runs on a thread of its own, one piece after the other: the event loop is never held up, and
neither are entries by tools that block the SDK's threads.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, cast

from agents import Agent, ItemHelpers, ModelResponse, RunContextWrapper, RunHooks, Tool, TResponseInputItem
from agents.memory import SessionSettings
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
from agents.tool_context import ToolContext
from msgspec.structs import replace

from ...core.drafts import Draft, ExtraFact
from ...core.entries import Compaction, Entry, Uncompaction
from ...core.messages import Message
from ...core.tree import Leaf
from ...core.usage import Call, Usage
from ...log.log import Log
from ...models.prices import price
from ...session import Session
from ...store import Store
from .. import require_store
from ..async_bridge import AsyncBridge
from .items import CUT_OFF, Item, Plan, is_ahead, told

if TYPE_CHECKING:
    from agents.result import RunResultBase

Spent = tuple[Usage, str | None, str | None]
"""What a call used, and whose: provider and model."""


class BoughSession:
    """A session of the Agents SDK whose history is a Bough session. Opened when it is first used.

    In the sessions of a store `session_id` names a conversation: the newest session of it goes on, or one is started, and
    further keywords (agent, title, tags, …) are for that. On a Bough session, say a fork, it is only a name. One object
    serves one run at a time: it stands where it last read, and an append behind somebody else's raises `StaleLeaf`.
    """

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        store: Store | Session,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **about: Any,
    ) -> None:
        self.session_id = session_id
        settings = SessionSettings() if session_settings is None else session_settings
        self.session_settings = coerce_session_settings(settings)
        self._source = require_store(store, "BoughSession", or_session=True)
        self._about = {"title": session_id, **about}
        self._bridge = AsyncBridge()
        self._ahead = Ahead()

    async def opened(self) -> Session:
        """The Bough session below: fork, redo, compact, export it. The handle is shared with this object."""
        return await self._bridge.run(lambda: self._session)

    # -- the SDK's protocol ------------------------------------------------------------------------

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The latest `limit` items, or those the settings say, or all, oldest first, as they were handed in."""
        most = resolve_session_limit(limit, self.session_settings)
        return cast(list[TResponseInputItem], await self._bridge.run(self._read, most))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """All of them, durable on return, or none."""
        await self._bridge.run(self._add, list(items))

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the latest item back: the leaf moves, nothing is deleted."""
        return cast(TResponseInputItem | None, await self._bridge.run(self._pop))

    async def clear_session(self) -> None:
        """Back to the start: everything stays in the tree, and `redo` brings it back."""
        await self._bridge.run(self._clear)

    # -- more than the protocol --------------------------------------------------------------------

    async def close_batch(self, why: str = CUT_OFF) -> int:
        """Give the calls a killed run left open a result that says so, before the next run; returns how many."""
        return await self._bridge.run(self._close_batch, why)

    async def store_run_usage(self, result: RunResultBase) -> None:
        """What a run's model calls cost, into the ledger: once per run, for runs without `BoughHooks`."""
        used = [_usage(response) for response in result.raw_responses]
        model = model_of(result.last_agent)
        await self._bridge.run(self._record, [(usage, *model) for usage in used])

    async def answered(self, agent: Agent[Any], response: ModelResponse) -> None:
        """A model's answer at the moment it came. Calls are durable before they run; a last answer when it is added."""
        items = [cast(Item, item) for item in response.to_input_items()]
        asking = {tool.name for tool in agent.tools if getattr(tool, "needs_approval", False)}
        await self._bridge.run(self._write_ahead, items, (_usage(response), *model_of(agent)), asking)

    async def started(self, call_id: str) -> None:
        """A call that had to wait for a person begins to run: from here on it may have happened."""
        await self._bridge.run(self._start, call_id)

    async def returned(self, item: Item) -> None:
        """A tool's result at the moment it landed."""
        await self._bridge.run(self._land, item)

    # -- on the thread -----------------------------------------------------------------------------

    @property
    def _session(self) -> Session:
        if not isinstance(self._source, Session):
            self._source = self._source.latest_or_start(self.session_id, **self._about)
        return self._source

    def _read(self, most: int | None) -> list[Item]:
        self._session.refresh()
        if most is not None and most >= 0:
            return self._newest(most)
        return [item for _, items in told(self._session.path(), self._session.read_blob) for item in items]

    def _newest(self, most: int) -> list[Item]:
        return [item for _, items in self._shown(most) for item in items][-most:] if most else []

    def _shown(self, least: int) -> list[tuple[Entry, list[Item]]]:
        """The newest items, at least so many if there are, without reading the whole path where that can be helped."""
        session, many = self._session, least + 1
        while True:
            path = session.path(last=many)
            is_whole = len(path) < many
            if not is_whole and any(isinstance(entry.payload, Compaction | Uncompaction) for entry in path):
                path, is_whole = session.path(), True
            shown = told(path, session.read_blob)
            # Results are put in the order of their calls, which must be known: it may not begin with one.
            if is_whole or (sum(len(items) for _, items in shown) >= least and path[0].role != "tool"):
                return shown
            many *= 4

    def _add(self, items: Sequence[object]) -> None:
        log = self._session.log
        rest = self._ahead.settle(log, items)
        if rest is None:  # the SDK makes something else of what was written ahead: its word counts
            log.move(self._ahead.base)
            self._ahead.forget()
            rest = items
        if not rest:
            return
        drafts = self._plan().add(rest)
        call, last = self._ahead.call, _last_answer(drafts)
        if call is None or last is None:
            log.append(drafts)
        else:
            drafts[last] = replace(drafts[last], model=call.model)
            log.append(drafts, calls=[replace(call, answer_seq=log.leaf.seq + last + 1)], replaces_call=True)
        self._ahead.call = None  # an answer that was not in it was blocked, and is not coming

    def _plan(self, **how: Any) -> Plan:
        """Calls that may have run before a process died get a result the model is told of; others one it is not."""
        waiting = self._session.open_tool_calls
        plan = Plan([call.call.id for call in waiting], **how)
        if waiting and is_ahead(self._session.path(since=waiting[0].seq - 1)[0]):
            plan.closing, plan.hides_closing = CUT_OFF, False
        return plan

    def _pop(self) -> Item | None:
        session = self._session
        session.refresh()
        self._ahead.forget()
        shown = [one for one in self._shown(1) if not isinstance(one[0].payload, Compaction)]
        if not shown:
            return None
        last = shown[-1][0]
        *kept, popped = (item for entry, items in shown if entry.seq >= last.seq for item in items)
        session.log.move(session.log.leaf_at(last.seq - 1))
        # What the model made in a row is one entry: the rest of it grows again, on a branch of its own.
        if kept:
            session.log.append(self._plan(model=last.model).add(kept))
        return popped

    def _clear(self) -> None:
        self._session.refresh()
        self._ahead.forget()
        if self._session.leaf.seq:
            self._session.rewind(0)

    def _close_batch(self, why: str) -> int:
        self._session.refresh()
        waiting = self._session.open_tool_calls
        self._session.close_batch(why, outcome="unknown")
        return len(waiting)

    def _record(self, spent: Sequence[Spent]) -> None:
        calls = [self._call(one) for one in spent]
        if calls:
            self._session.log.record("call_started", calls=calls)

    def _write_ahead(self, items: list[Item], spent: Spent, asking: Container[str]) -> None:
        log, call = self._session.log, self._call(spent)
        drafts = Plan(model=call.model, is_ahead=True).add(items)
        last = drafts[-1].payload if drafts else None
        asked = last.calls if isinstance(last, Message) else ()
        if log.cursor.open_calls or not asked:
            log.record("call_started", calls=[call])
            # While calls are open it is a run inside of this one, which has a session of its own or none.
            self._ahead.call = None if log.cursor.open_calls else call
            return
        base, seq = log.leaf, log.leaf.seq + len(drafts)
        at_once = [index for index, one in enumerate(asked) if one.name not in asking]
        started = [ExtraFact("calls_started", {"seq": seq, "indexes": at_once})] if at_once else []
        log.append(drafts, calls=[replace(call, answer_seq=seq)], facts=started)
        self._ahead.add(base, log.leaf, items)

    def _start(self, call_id: str) -> None:
        log = self._session.log
        for call in log.cursor.open_calls:
            if call.call.id == call_id:
                log.record(
                    "calls_started", data={"seq": call.seq, "indexes": [call.index]}, only_at_leaf=True
                )

    def _land(self, item: Item) -> None:
        log = self._session.log
        if any(call.call.id == item.get("call_id") for call in log.cursor.open_calls):
            base = log.leaf
            log.append(Plan([item["call_id"]], is_ahead=True).add([item]))
            self._ahead.add(base, log.leaf, [item])

    def _call(self, spent: Spent) -> Call:
        runtime, (usage, provider, model) = self._session.log.runtime, spent
        return Call(
            call_id=runtime.new_id(""),
            branch=0,
            after_seq=self._session.leaf.seq,
            answer_seq=None,
            at=runtime.now(),
            usage=usage,
            provider=provider,
            model=model,
            price=price(usage, provider, model),
        )


class Ahead:
    """What hooks wrote before the SDK handed it in, and where the session stood before and stands since."""

    def __init__(self) -> None:
        self.base = self._leaf = Leaf(0, 0)
        self._items: list[Item] = []
        self.call: Call | None = None
        """The ledger row of an answer that is not on the path yet."""

    def add(self, base: Leaf, leaf: Leaf, items: Sequence[Item]) -> None:
        self.base = self.base if self._items else base
        self._leaf = leaf
        self._items.extend(items)

    def forget(self) -> None:
        self._items.clear()

    def settle(self, log: Log, items: Sequence[object]) -> Sequence[object] | None:
        """What of these items is still to be written; None if they are the same step, told in other words."""
        written = self._items
        is_there = log.leaf.seq >= self._leaf.seq and log.leaf_at(self._leaf.seq) == self._leaf
        if not is_there or not any(map(self._knows, items)):
            # Nothing was written ahead, or by a run that failed: its calls may have happened and stay where they are.
            self.forget()
            return items
        known = items[: len(written)]
        if all(item in written for item in known) and all(item in known for item in written[: len(known)]):
            self._items = written[len(known) :]
            return items[len(known) :]
        return None

    def _knows(self, item: object) -> bool:
        call_id = item.get("call_id") if isinstance(item, dict) else None
        return any(item == one or (call_id and call_id == one.get("call_id")) for one in self._items)


class BoughHooks(RunHooks[Any]):
    """Every step durable as it happens: an answer before its tools run, each result as it lands, what each call cost.

    `Runner.run(agent, "Hi", session=session, hooks=BoughHooks(session))`. The SDK alone hands all of a step in at once,
    when its tools are done.
    """

    def __init__(self, session: BoughSession) -> None:
        self.session = session

    async def on_llm_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse
    ) -> None:
        await self.session.answered(agent, response)

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Any, tool: Tool) -> None:
        if isinstance(context, ToolContext) and getattr(tool, "needs_approval", False):
            await self.session.started(context.tool_call_id)

    async def on_tool_end(
        self, context: RunContextWrapper[Any], agent: Any, tool: Tool, result: object
    ) -> None:
        if isinstance(context, ToolContext) and context.tool_call is not None:
            item = ItemHelpers.tool_call_output_item(context.tool_call, result)
            await self.session.returned(cast(Item, item))


def _last_answer(drafts: Sequence[Draft]) -> int | None:
    """The index of the last answer among them."""
    for index in range(len(drafts) - 1, -1, -1):
        payload = drafts[index].payload
        if isinstance(payload, Message) and payload.role == "assistant":
            return index
    return None


def model_of(agent: Any) -> tuple[str | None, str | None]:
    """Provider and model as the agent names them: `gpt-5`, `litellm/anthropic/claude-…`, or a model's own name."""
    named = agent.model if isinstance(agent.model, str) else getattr(agent.model, "model", None)
    if not isinstance(named, str) or not named:
        return None, None
    *vendors, model = named.split("/")
    return vendors[-1] if vendors else "openai", model


def _usage(response: ModelResponse) -> Usage:
    used = response.usage
    read = used.input_tokens_details.cached_tokens
    written = getattr(used.input_tokens_details, "cache_write_tokens", None)
    return Usage(used.input_tokens, used.output_tokens, read, written)
