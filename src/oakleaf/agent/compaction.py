"""Compaction: make the history fit the model's window before each model call. A summary replaces the part
that is too much.

`compaction_plan` chooses what is replaced, without a model; if there is one for summaries, it writes a better text. The
window is known from the session, the limits, the table of models, or the error of a server, which the settings on the
path keep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from oakleaf.agent.compaction_plan import CompactionPlan, Sizes, newest_turn, plan_compaction, summary_tokens
from oakleaf.agent.events import Event
from oakleaf.agent.limits import LimitChecker, NextCall
from oakleaf.agent.summary import MAX_SUMMARY, list_files, summarise_items, transcribe
from oakleaf.agent.writer import Writer, name_of, run_uncancelled
from oakleaf.core import context
from oakleaf.core.context import Context, Item
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Compaction, Entry, Settings
from oakleaf.core.fit import measure, measure_system, measure_text, measure_tools
from oakleaf.core.messages import user
from oakleaf.core.usage import Call, Usage
from oakleaf.errors import (
    ContextOverflow,
    InvalidArgument,
    InvalidOperation,
    InvalidSummary,
    ModelError,
    PromptTooLarge,
    Refused,
)
from oakleaf.log.hooks import Ending, Watching, watch_model_call
from oakleaf.log.log import Log
from oakleaf.log.prompt import prompt_entries
from oakleaf.log.threads import run_to_end
from oakleaf.models.base import Model, Request, model_name
from oakleaf.models.prices import UNPRICED_PROVIDERS, price_of
from oakleaf.models.windows import SMALL_REQUEST, window_of
from oakleaf.wire import Answer
from oakleaf.wire.base import Blobs

if TYPE_CHECKING:
    from oakleaf.agent.model_call import ModelCaller

ANSWER_TOKENS = 8_192
"""Reserved for the answer, a quarter of the window at most, unless the option `max_tokens` says otherwise."""
INSTRUCTION = "You summarise conversations between a user and an agent, so that the agent can continue from the summary."
REQUEST = (
    "Summarise the conversation above: what was asked, what was found and done, which files were read or changed, "
    "what is still open. Keep names, numbers and decisions. Do not continue the conversation."
)


class Compactor:
    """Makes each request of a run fit the window of the called model."""

    def __init__(self, writer: Writer, limits: LimitChecker) -> None:
        self._writer, self._limits = writer, limits
        self._refused: dict[str, int] = {}
        """The smallest request refused as too long by each model, in estimated tokens."""
        self._goal: int | None = None
        """The maximum length of the request after a refused one."""
        self.start_turn()

    def start_turn(self) -> None:
        self._sizes = Sizes()

    async def fit(self, model: Model, caller: ModelCaller) -> Event | None:
        """Compact if the next request is too long for the model. Raise `PromptTooLarge` if that does not
        suffice."""
        limit, goal = self._known_limit(model), self._goal
        if limit is None and model.provider in UNPRICED_PROVIDERS:
            return None
        request = await caller.next_request()
        prompt, tokens = await self._writer.run_blocking(self._measure, model, request)
        if limit is None and tokens > SMALL_REQUEST:
            limit = self._beside_answer(model, await self._writer.run_blocking(window_of, model))
        if limit is None or tokens <= limit:
            return None
        goal, self._goal = limit if goal is None else min(goal, limit), None
        path, run_blocking = self._writer.path, self._writer.run_blocking
        plan = await run_blocking(plan_compaction, path, sum(prompt), goal, limit, self._sizes)
        if plan is None:
            turn = newest_turn(path)
            newest_input = [item for item in request.context.items if item.seq == turn]
            raise PromptTooLarge(model.model, limit, *prompt, self._sizes.total(newest_input))
        return await self._compact(plan, goal, limit)

    def _measure(self, model: Model, request: Request) -> tuple[tuple[int, int], int]:
        """Return the tokens of the system prompt, of the tools and of the whole request. To be called on a
        thread: other sessions share the event loop."""
        if self._sizes.provider != model.provider:  # another model of the chain is sent other evidence
            self._sizes = Sizes(model.provider)
        prompt = measure_system(request.context).tokens, measure_tools(request.context.settings).tokens
        return prompt, sum(prompt) + self._sizes.total(request.context.items)

    async def learn(self, model: Model, overflow: ContextOverflow, caller: ModelCaller) -> None:
        """Remember the refused request, and the window if reported by the error."""
        request = await caller.next_request()
        _, tokens = await self._writer.run_blocking(self._measure, model, request)
        await self._learn_window(model, overflow)
        fits = self._beside_answer(model, overflow.window)
        if fits is None or (fits >= tokens and overflow.tokens is None):
            self._goal = tokens // 2
        else:  # the estimate may be too low by the same factor again
            scaled = fits * tokens // max(tokens, overflow.tokens or tokens)
            self._goal = min(scaled, tokens * 3 // 4)
        name = model_name(model) or model.model
        self._refused[name] = min(tokens, self._refused.get(name, tokens))

    async def _learn_window(self, model: Model, overflow: ContextOverflow) -> None:
        name = model_name(model)
        if name is None or overflow.window is None or overflow.window == self._window_on_path(name):
            return
        draft = Draft(Settings(windows={name: overflow.window}))
        await self._writer.write(self._writer.runner.append, [draft])

    def _window_on_path(self, name: str | None) -> int | None:
        windows = self._writer.settings().windows or {}
        return None if name is None else windows.get(name)

    def _known_limit(self, model: Model) -> int | None:
        """Return the maximum tokens of a request to the model. None: only the table of models may tell."""
        limits, name = self._limits.limits, model_name(model)
        windows = (limits.context_window, self._writer.context_window, self._window_on_path(name))
        refused = self._refused.get(name or model.model)
        return _least(
            limits.context_tokens,
            self._beside_answer(model, _least(*windows)),
            None if refused is None else refused - 1,
        )

    def _beside_answer(self, model: Model, window: int | None) -> int | None:
        """Return the tokens of a window left for the request."""
        if window is None:
            return None
        options = {**getattr(model, "options", {}), **(self._writer.settings().options or {})}
        reserved = options.get("max_tokens")
        if isinstance(reserved, int):
            return window - min(reserved, window // 2)
        return window - min(ANSWER_TOKENS, window // 4)

    async def _compact(self, plan: CompactionPlan, goal: int, limit: int) -> Event:
        writer, summariser = self._writer, self._limits.limits.summariser
        compaction = plan.compaction
        calls: list[Call] = []
        if summariser is not None and compaction.summary:
            window = self._window_on_path(model_name(summariser))
            window = window or await writer.run_blocking(window_of, summariser)
            room = self._beside_answer(summariser, window)
            room = goal if room is None else room
            request = await writer.run_blocking(
                _summary_request, writer.path, compaction, writer.log.read_blob, room
            )
            if await self._is_affordable(summariser, request):
                answer, call = await self._ask_summariser(summariser, request)
                calls += [] if call is None else [call]
                max_tokens = limit - plan.tokens + summary_tokens(compaction)
                compaction = await writer.run_blocking(
                    improve_summary, writer.path, compaction, answer, max_tokens
                )
        await writer.write(writer.runner.append, [Draft(compaction)], calls=calls)
        data = {
            "summary": compaction.summary,
            "first_kept": compaction.first_kept,
            "tokens_before": compaction.tokens_before,
            "shortened": len(compaction.shortened),
            "limit": limit,
        }
        return Event("session:compacted", data, writer.runner.journal_number)

    async def _is_affordable(self, model: Model, request: Request) -> bool:
        """Whether the limit on the cost allows the call for a summary."""
        limit = await self._limits.check_cost(NextCall(model, lambda: request))
        return limit is None or limit.is_warning

    async def _ask_summariser(self, model: Model, request: Request) -> tuple[Answer | None, Call | None]:
        """Record the call, then send the request. So a call that a crash cuts off is counted too. A call that was not made
        is None."""
        writer, runner = self._writer, self._writer.runner
        call = runner.side_call(name_of(model))
        is_made = False
        try:
            await writer.write(runner.start_side_call, call)
            async with Watching(watch_model_call(writer.log, model, request), run_to_end) as watch:
                is_made = True
                answer = await _answer(model, request)
                if answer is not None:
                    done = replace(call, usage=answer.usage or Usage())
                    watch.ending = Ending(message=answer.message, call=done, finish=answer.finish)
        except Refused:
            await writer.write(runner.drop_call, call.call_id)
            return None, None
        except asyncio.CancelledError:
            if is_made:
                await run_uncancelled(writer.write(runner.fail_side_call, call, "cancelled"))
            else:
                await run_uncancelled(writer.write(runner.drop_call, call.call_id))
            raise
        except ContextOverflow as overflow:
            answer = None
            await self._learn_window(model, overflow)
        except ModelError as error:
            answer = None
            if not error.was_asked:
                await writer.write(runner.drop_call, call.call_id)
                return None, None
        usage = None if answer is None else answer.usage
        price = None if usage is None else price_of(model, usage)
        return answer, replace(call, usage=usage or Usage(), price=price, failed=answer is None)


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


async def _answer(model: Model, request: Request) -> Answer | None:
    answer: Answer | None = None
    async for piece in model.stream(request):
        answer = piece if isinstance(piece, Answer) else answer
    return answer


def improve_summary(
    path: Sequence[Entry], compaction: Compaction, answer: Answer | None, max_tokens: int
) -> Compaction:
    """Return the compaction with the model's summary, unless the summary is empty or too long."""
    text = "" if answer is None else answer.message.text.strip()
    improved = replace(compaction, summary=text, replaces_earlier=True)
    is_usable = text and _is_shorter(path, improved) and summary_tokens(improved) <= max_tokens
    return improved if is_usable else compaction


def _summary_request(path: Sequence[Entry], compaction: Compaction, blobs: Blobs, max_tokens: int) -> Request:
    """Build the request to summarise all replaced items, earlier summaries included, within a window."""
    earlier = [summary.summary for _, summary in context.active_compactions(path)]
    replaced = [item for item in _replaced_items(path, compaction) if not item.pinned]
    room = max_tokens - measure_text(INSTRUCTION).tokens - measure(user(REQUEST)).tokens
    transcript = Item(user(transcribe(earlier, replaced, room)), path[-1].seq + 1, 0)
    return Request(Context((INSTRUCTION,), (transcript, Item(user(REQUEST), path[-1].seq + 2, 0))), blobs)


def _is_shorter(path: Sequence[Entry], compaction: Compaction) -> bool:
    return summary_tokens(compaction) < Sizes().total(_replaced_items(path, compaction))


def _replaced_items(path: Sequence[Entry], compaction: Compaction) -> list[Item]:
    """Return the items hidden from a model by the compaction."""
    replacement = context.Replacement(first_kept=compaction.first_kept, kept_input=compaction.kept_input)
    return [
        item
        for item in context.whole_context(path).items
        if (compaction.replaces_earlier if item.pinned else not replacement.keeps(item.seq, item.turn))
    ]


# -- compaction by hand ----------------------------------------------------------------------------


def manual_compaction(
    log: Log,
    summary: str | None,
    first_kept: int | None,
    *,
    replaces_earlier: bool,
    context_tokens: int | None = None,
    files_read: Sequence[str] | None = None,
    files_changed: Sequence[str] | None = None,
) -> Compaction:
    """Return the entry to append for `session.compact`. A missing summary is made as in the loop, without a
    model.

    Raises `InvalidSummary` if the summary is empty, replaces nothing, or is longer than what it replaces.
    """
    entries = prompt_entries(log, log.leaf)
    at = log.place(_before_newest_turn(entries) if first_kept is None else first_kept - 1).at
    if context_tokens is not None:
        if type(context_tokens) is not int or context_tokens < 1:
            raise InvalidArgument("context_tokens", context_tokens, "an integer of at least 1")
        if summary is not None or first_kept is not None:
            raise InvalidOperation(
                "context_tokens chooses the summary and what is kept; pass it without them"
            )
        compaction = _fitting_compaction(entries, context_tokens)
    elif summary is not None:
        _check_summary(entries, summary, at, replaces_earlier=replaces_earlier)
        tokens = Sizes().total(context.whole_context(entries).items)
        compaction = Compaction(summary, at + 1, tokens, replaces_earlier=replaces_earlier)
    else:
        # The input of an open turn stays whole, as in the loop.
        is_in_turn = first_kept is None and at == log.leaf.seq
        compaction = _summarise(entries, at + 1, log.cursor.turn if is_in_turn else 0)
    if files_read is not None:
        compaction = replace(compaction, files_read=tuple(files_read))
    return compaction if files_changed is None else replace(compaction, files_changed=tuple(files_changed))


def _fitting_compaction(entries: Sequence[Entry], context_tokens: int) -> Compaction:
    current = context.whole_context(entries)
    prompt = (measure_system(current) + measure_tools(current.settings)).tokens
    plan = plan_compaction(entries, prompt, context_tokens, context_tokens)
    if plan is not None:
        return plan.compaction
    tokens = prompt + Sizes().total(current.items)
    if tokens <= context_tokens:
        raise InvalidSummary(f"the context has {tokens:,} tokens and fits in {context_tokens:,}")
    raise InvalidSummary(
        f"the system prompt, the tools and the newest input do not fit in {context_tokens:,} tokens, and they always stay"
    )


def _summarise(entries: Sequence[Entry], first_kept: int, kept_input: int) -> Compaction:
    """Summarise the entries before `first_kept`, except one input, without a model."""
    earlier = [compaction for _, compaction in context.active_compactions(entries)]
    draft = Compaction("", first_kept, replaces_earlier=bool(earlier), kept_input=kept_input)
    replaced = [item for item in _replaced_items(entries, draft) if not item.pinned]
    files_read, files_changed = list_files([item.message for item in replaced], earlier)
    compaction = replace(
        draft,
        summary=summarise_items(earlier, replaced, MAX_SUMMARY),
        tokens_before=Sizes().total(context.whole_context(entries).items),
        files_read=files_read,
        files_changed=files_changed,
    )
    if not _is_shorter(entries, compaction):
        raise InvalidSummary(f"no summary would be shorter than the entries before {first_kept}")
    return compaction


def _check_summary(entries: Sequence[Entry], summary: str, at: int, *, replaces_earlier: bool) -> None:
    if not summary.strip():
        raise InvalidSummary("the summary is empty")
    items = context.whole_context(entries).items
    replaced = [item for item in items if item.seq <= at and (replaces_earlier or not item.pinned)]
    if not replaced:
        raise InvalidSummary(f"there is nothing before entry {at + 1} to replace")
    tokens = Sizes().total(replaced)
    if measure(user(summary)).tokens >= tokens:
        raise InvalidSummary(f"the summary is longer than the {tokens:,} tokens it would replace")


def _before_newest_turn(entries: Sequence[Entry]) -> int:
    """Return the seq before the newest turn, or the last seq if the model sees no older turn."""
    turn = newest_turn(entries)
    items = context.whole_context(entries).items
    is_older = any(item.turn and item.seq < turn for item in items)
    return turn - 1 if is_older else (entries[-1].seq if entries else 0)
