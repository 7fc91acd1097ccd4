"""Route for the exact request behind an answer, its token counts, and what changed since the previous request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from litestar import get
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from ... import wire
from ...agent.prompt_window import MessageLimits, measure_window, prompt_context
from ...core.context import Context
from ...core.entries import Entry
from ...core.usage import Call
from ...errors import InvalidArgument
from ...exchange.exports.requests import provider_of, token_shares
from ...session import Session
from ...wire.explain import Missing
from ..context import ApiRequest, ServerContext, context_and_caller, one_of_few
from ..json_views import call_view, to_json
from ..schemas import Json, RequestView
from ..truncate import SizedPage, truncate_value


class RecordedCall(Struct, frozen=True):
    """One model call, the path before it, and the previous call on that path."""

    path: Sequence[Entry]
    call: Call | None
    previous: Call | None

    @property
    def seq(self) -> int:
        return self.path[-1].seq if self.path else 0


@get("/api/sessions/{session_id:str}/request", tags=["requests"])
@one_of_few
def read_request(
    request: ApiRequest,
    session_id: FromPath[str],
    at: Annotated[str | None, QueryParameter(description="The answer's position; default: the leaf")] = None,
    provider: Annotated[
        str | None, QueryParameter(description="Provider format; default: that of the call")
    ] = None,
    first: Annotated[
        int | None, QueryParameter(ge=0, description="Index of the first message; default: the newest ones")
    ] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=200)] = 50,
) -> RequestView:
    """Return the request behind the answer at a position, or the request a model would get after it."""
    context, caller = context_and_caller(request)
    session = context.session_at(context.session(caller, session_id), at)
    recorded = _recorded_call(context, session)
    provider_format = wire.find_provider(provider or provider_of(recorded.call))
    limits = context.prompt_limits(session)
    prompt = prompt_context(recorded.path, limits)
    full = provider_format.project(prompt, session.read_blob)
    request_part, begin, omitted = _request_window(full, provider_format.history, first, limit)
    model = recorded.call.model if recorded.call else prompt.settings.model or session.row.model
    return RequestView(
        at=str(session.leaf),
        after=str(session.log.leaf_at(recorded.seq)),
        provider=provider_format.name,
        model=model,
        request=request_part,
        messages_key=provider_format.history,
        total=len(full[provider_format.history]),
        first=begin,
        omitted_chars=omitted,
        tokens=[
            {"part": part, "tokens": count} for part, count in token_shares(prompt, provider_format.name)
        ],
        window=_window(session, prompt, recorded.call),
        call=None if recorded.call is None else call_view(recorded.call),
        previous=None if recorded.previous is None else str(session.log.leaf_at(recorded.previous.after_seq)),
        difference=_difference(session, recorded, limits, provider_format, full),
    )


def _window(session: Session, prompt: Context, call: Call | None) -> int | None:
    row = session.row
    own = row.model or ""
    is_own = call is None or own.partition("@")[0] == f"{call.provider}:{call.model}"
    name = own if is_own or call is None else f"{call.provider}:{call.model}"
    return measure_window(prompt, name, row.context_window).window


def _recorded_call(context: ServerContext, session: Session) -> RecordedCall:
    """Return the call behind an answer, and the previous call on the same path."""
    path = session.path()
    calls = context.calls_by_entry(session)
    on_path = [
        call
        for entry in path
        for call in calls.get((entry.branch, entry.seq), ())
        if call.answer_seq == entry.seq and call.purpose == "answer"
    ]
    is_answer = bool(path) and path[-1].role == "assistant"
    own = on_path.pop() if is_answer and on_path and on_path[-1].answer_seq == path[-1].seq else None
    end = own.after_seq if own is not None else len(path) - is_answer
    return RecordedCall(path[:end], own, on_path[-1] if on_path else None)


def _request_window(full: Json, history: str, first: int | None, limit: int) -> tuple[Json, int, int]:
    """Return a window of the history that fits a response; if it must shrink, the newest messages stay."""
    messages: list[Any] = full[history]
    begin = max(0, len(messages) - limit) if first is None else first
    if begin > len(messages):
        raise InvalidArgument("first", first, f"a number up to {len(messages)}")
    rest, omitted = truncate_value(
        {name: value for name, value in full.items() if name != history}, 200_000, 100_000
    )
    page = SizedPage(500_000)
    window = messages[begin : begin + limit]
    for message in reversed(window) if first is None else window:
        shorter, cut_chars = truncate_value(message, 60_000)
        if not page.add(shorter):
            break
        omitted += cut_chars
    items = page.items[::-1] if first is None else page.items
    begin = begin if first is not None else len(messages) - len(items)
    return {**rest, history: items}, begin, omitted


def _difference(
    session: Session, recorded: RecordedCall, limits: MessageLimits, provider_format: wire.Provider, now: Json
) -> Json | None:
    if recorded.previous is None:
        return None
    earlier = prompt_context(recorded.path[: recorded.previous.after_seq], limits)
    difference = wire.first_difference(provider_format.project(earlier, session.read_blob), now)
    if difference is None:
        return None
    sides = [None if isinstance(side, Missing) else side for side in (difference.before, difference.after)]
    (before, after), _ = truncate_value(sides, 60_000)
    return {"path": difference.path, "before": to_json(before), "after": to_json(after)}


HANDLERS = [read_request]
