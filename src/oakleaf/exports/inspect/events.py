"""Build the events of an Inspect sample: a span per turn with its model and tool calls, in the order of the path.

Every call of the ledger is a model event, and so is every answer without one. Does not know the log around the events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from oakleaf.core.entries import CUT_OFF_FINISHES, BranchSummary, Compaction, Entry, Settings, Uncompaction
from oakleaf.core.messages import Message, ToolCall, ToolResult
from oakleaf.core.time_text import iso
from oakleaf.core.usage import Call, Totals, total
from oakleaf.exports.inspect.messages import Chat, Inputs, content, outcome_fields
from oakleaf.exports.timeline import Timeline, call_start
from oakleaf.exports.values import without_none
from oakleaf.stores.base import SessionRow

NONE = "none"
"""What Inspect writes for an unknown model: `none/none`."""
_APIS = {"openai-chat": "openai", "gemini": "google"}
"""Providers that Inspect names differently."""
_STOPS = {
    **dict.fromkeys(("stop", "end_turn", "stop_sequence", "STOP", "completed"), "stop"),
    **dict.fromkeys(("tool_use", "tool_calls"), "tool_calls"),
    **dict.fromkeys(CUT_OFF_FINISHES, "max_tokens"),
    "model_context_window_exceeded": "model_length",
    **dict.fromkeys(("content_filter", "refusal", "SAFETY", "PROHIBITED_CONTENT"), "content_filter"),
}

Event = dict[str, Any]
Result = tuple[Entry, ToolResult]


class EventBuilder:
    """Builds the events of a path."""

    def __init__(
        self,
        row: SessionRow,
        path: Sequence[Entry],
        chats: dict[int, list[Chat]],
        inputs: Inputs,
        calls: Sequence[Call],
        moments: Timeline,
    ) -> None:
        self._session_id, self._path, self._chats, self._inputs = row.session_id, path, chats, inputs
        self._moments = moments
        self._answered = {call.answer_seq: call for call in calls if call.answer_seq is not None}
        self._loose: dict[int, list[Call]] = {}
        for call in calls:
            if call.answer_seq is None:
                self._loose.setdefault(call.after_seq, []).append(call)
        self._results = dict(_pair_results(path))
        self._zero = min((entry.at for entry in path), default=0)
        self._span: str | None = None
        self._tools = [tool_info(name) for name in row.tool_names]

    def events(self) -> Iterator[Event]:
        yield from map(self._unanswered, self._loose.get(0, ()))
        last: Entry | None = None
        number = 0
        for entry in self._path:
            if entry.turn != (last.turn if last is not None else 0):
                yield from self._end_turn(last)
                number += bool(entry.turn)
                yield from self._begin_turn(entry, number)
            yield from self._entry(entry)
            yield from map(self._unanswered, self._loose.get(entry.seq, ()))
            last = entry
        yield from self._end_turn(last)

    # -- turns -------------------------------------------------------------------------------------

    def _begin_turn(self, first: Entry, number: int) -> Iterator[Event]:
        """Open a turn. In Inspect a turn is one answer, so ours is named a user turn."""
        if first.turn:
            span, name = f"{self._session_id}@{first.turn}", f"user turn {number}"
            yield self._event("span_begin", f"turn-{first.turn}", first.at, id=span, name=name)
            self._span = span

    def _end_turn(self, last: Entry | None) -> Iterator[Event]:
        if last is None or not last.turn:
            return
        ended = self._moments.turns.get((last.branch, last.turn))
        if ended is not None and ended.status != "completed":
            data = {"turn": last.turn, "status": ended.status, "error": ended.error}
            yield self._event("info", f"end-{last.turn}", ended.at, source="oakleaf", data=data)
        span, self._span = self._span, None
        yield self._event("span_end", f"over-{last.turn}", last.at, id=span)

    # -- entries -----------------------------------------------------------------------------------

    def _entry(self, entry: Entry) -> Iterator[Event]:
        match entry.payload:
            case Message(role="assistant") if entry.turn:
                yield self._model(entry)
                yield from self._tool_events(entry)
            case Compaction(tokens_before=before, summary=summary, first_kept=first_kept):
                about = {"summary": summary, "first_kept": first_kept}
                data = {"type": "summary", "tokens_before": before, "source": "oakleaf", "metadata": about}
                yield self._event("compaction", f"{entry.seq}", entry.at, **data)
            case Uncompaction(cancels=cancels):
                yield self._info(entry, {"uncompaction": cancels})
            case BranchSummary(summary=summary, leaf_seq=leaf_seq):
                yield self._info(entry, {"branch_summary": summary, "left": leaf_seq})
            case Settings(
                model=model,
                prompt=prompt,
                prompt_patch=patch,
                tools=tools,
                tool_definitions=definitions,
                max_messages=maximum,
            ):
                named = tools if definitions is None else definitions.names
                self._tools = self._tools if named is None else [tool_info(name) for name in named]
                data = {
                    "model": model,
                    "prompt": prompt,
                    "prompt_patch": patch,
                    "tools": named,
                    "max_messages": maximum,
                }
                yield self._info(entry, {"settings": without_none(data)})

    def _info(self, entry: Entry, data: dict[str, Any]) -> Event:
        return self._event("info", f"{entry.seq}", entry.at, source="oakleaf", data=data)

    def _model(self, entry: Entry) -> Event:
        call = self._answered.get(entry.seq)
        model = entry.model or (call.model if call is not None else None)
        choice = {
            "message": self._chats[entry.seq][0],
            "stop_reason": _STOPS.get(entry.finish or "", "unknown"),
        }
        usage = {} if call is None else _usage(call)
        asked_at = self._path[entry.seq - 2].at if entry.seq > 1 else entry.at
        start = asked_at if call is None else call_start(call, asked_at, self._moments.models)
        output = {"model": model or NONE, "choices": [choice], **usage}
        name = model_name(None, model) if call is None else model_of(call)
        return self._call(f"{entry.seq}", name, start, entry.at, entry.seq - 1, output)

    def _unanswered(self, call: Call) -> Event:
        """Return the event of a call without an answer: failed, interrupted, or a summary."""
        output = {"model": call.model or NONE, "choices": [], **_usage(call)}
        is_side = call.purpose != "answer"
        asked_at = self._path[call.after_seq - 1].at if call.after_seq else None
        start = call_start(call, asked_at, self._moments.models) if call.failed else call.at
        event = self._call(call.call_id, model_of(call), start, call.at, call.after_seq, output)
        if is_side:
            event["role"] = call.purpose
        if call.failed or not is_side:
            event["error"] = "the call failed" if call.failed else "no answer is known"
        return event

    def _call(self, name: str, model: str, start: int, end: int, after: int, output: Event) -> Event:
        refs = self._inputs.given_after(after)
        return self._event(
            "model",
            f"model-{name}",
            start,
            model=model,
            input=[],
            **({"input_refs": refs} if refs else {}),
            tools=self._tools,
            tool_choice="auto",
            config={},
            output={**output, "time": _seconds(end - start)},
            completed=iso(max(start, end)),
            working_time=_seconds(end - start),
        )

    def _tool_events(self, entry: Entry) -> Iterator[Event]:
        assert entry.message is not None
        for index, call in enumerate(entry.message.calls):
            start = self._moments.tools.get((entry.branch, entry.seq, index), entry.at)
            about = {"id": call.id, "function": call.name, "arguments": call.arguments}
            result = self._results.get((entry.seq, index))
            fields = {"metadata": {"outcome": "open"}} if result is None else self._tool_event(result, start)
            yield self._event("tool", f"tool-{entry.seq}-{index}", start, **about, **fields)

    def _tool_event(self, pair: Result, start: int) -> Event:
        entry, result = pair
        fields: Event = {"result": content(result.content), "completed": iso(max(start, entry.at))}
        fields["working_time"] = _seconds(entry.at - start)
        return without_none({**fields, **outcome_fields(result)})

    def _event(self, kind: str, unique: str, at: int, **fields: Any) -> Event:
        head = {"event": kind, "uuid": f"{self._session_id}/{unique}", "timestamp": iso(at)}
        head |= without_none({"span_id": self._span})
        return {**head, "working_start": _seconds(at - self._zero), **fields}


def _pair_results(path: Iterable[Entry]) -> Iterator[tuple[tuple[int, int], Result]]:
    """Yield each result with the seq of the answer and the index of the call."""
    waiting: list[tuple[int, int, ToolCall]] = []
    for entry in path:
        if entry.message is None:
            continue
        if entry.role == "assistant":
            waiting = [(entry.seq, index, call) for index, call in enumerate(entry.message.calls)]
        for result in entry.message.results:
            match = next((one for one in waiting if one[2].id == result.call_id), None)
            if match is not None:
                waiting.remove(match)
                yield match[:2], (entry, result)


def model_of(call: Call) -> str:
    return model_name(call.provider, call.model)


def model_name(provider: str | None, model: str | None) -> str:
    """Return Inspect's form of a name, `anthropic/…`: scorers need both parts."""
    return f"{_APIS.get(provider or NONE, provider or NONE)}/{model or NONE}"


def _usage(call: Call) -> dict[str, Any]:
    """Return a call's usage; nothing if the provider reported none: Inspect would show zeros."""
    totals = total([call])
    return {} if totals.is_unknown else {"usage": usage_of(totals)}


def usage_of(totals: Totals) -> dict[str, Any]:
    """Return the usage in Inspect's count, with cache reads and writes beside the input instead of within."""
    cached = totals.cache_read_tokens + totals.cache_write_tokens
    fields = {
        "input_tokens": max(0, totals.input_tokens - cached),
        "output_tokens": totals.output_tokens,
        "total_tokens": totals.input_tokens + totals.output_tokens,
        "input_tokens_cache_read": totals.cache_read_tokens,
        "input_tokens_cache_write": totals.cache_write_tokens,
    }
    is_priced = totals.calls > totals.unpriced_calls
    return {**fields, "total_cost": totals.cost_microcents / 1e8} if is_priced else fields


def tool_info(name: str) -> dict[str, str]:
    """Return the tool's name without a schema: a session keeps only names."""
    return {"name": name, "description": ""}


def _seconds(microseconds: int) -> float:
    return max(0, microseconds) / 1e6
