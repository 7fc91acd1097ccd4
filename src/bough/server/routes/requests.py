"""What the model saw: the exact request behind an answer, what it is made of, and what changed since the call before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from litestar import get
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from ... import wire
from ...agent.prompt_window import MessageLimits, prompt_context
from ...core.entries import Entry
from ...core.usage import Call
from ...errors import InvalidArgument
from ...exchange.exports.requests import provider_of, token_shares
from ...session import Session
from ...wire.explain import Missing
from ..context import ApiRequest, ServerContext, context_and_caller, in_thread
from ..json_views import call_view, to_json
from ..schemas import Json, RequestView
from ..truncate import SizedPage, truncate_value


class RecordedCall(Struct, frozen=True):
    """One model call: the path it was made behind, and the one before it."""

    path: Sequence[Entry]
    call: Call | None
    before: Call | None

    @property
    def seq(self) -> int:
        return self.path[-1].seq if self.path else 0


@get("/api/sessions/{session_id:str}/request", tags=["requests"])
@in_thread
def read_request(
    request: ApiRequest,
    session_id: FromPath[str],
    at: Annotated[str | None, QueryParameter(description="The answer's place; default: the leaf")] = None,
    provider: Annotated[
        str | None, QueryParameter(description="Whose format; default: that of the call")
    ] = None,
    first: Annotated[
        int | None, QueryParameter(ge=0, description="The first message told; default: the newest")
    ] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=200)] = 50,
) -> RequestView:
    """The exact request a model was given for the answer at a place, or would be given behind it."""
    context, caller = context_and_caller(request)
    session = context.session_at(context.session(caller, session_id), at)
    asking = _asking(context, session)
    speaking = wire.find_provider(provider or provider_of(asking.call))
    most = context.prompt_limits(session)
    prompt = prompt_context(asking.path, most)
    full = speaking.project(prompt, session.read_blob)
    shown, begin, cut = _shown(full, speaking.history, first, limit)
    return RequestView(
        at=str(session.leaf),
        after=str(session.log.leaf_at(asking.seq)),
        provider=speaking.name,
        model=asking.call.model if asking.call else prompt.settings.model or session.row.model,
        request=shown,
        messages_key=speaking.history,
        total=len(full[speaking.history]),
        first=begin,
        omitted_chars=cut,
        tokens=[{"part": part, "tokens": count} for part, count in token_shares(prompt)],
        call=None if asking.call is None else call_view(asking.call),
        previous=None if asking.before is None else str(session.log.leaf_at(asking.before.after_seq)),
        difference=_difference(session, asking, most, speaking, full),
    )


def _asking(context: ServerContext, session: Session) -> RecordedCall:
    """The call an answer came from, and the one before it on the same path."""
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


def _shown(full: Json, history: str, first: int | None, limit: int) -> tuple[Json, int, int]:
    """A window of the history, as much of it as an answer holds, newest kept if it must be shorter."""
    messages: list[Any] = full[history]
    begin = max(0, len(messages) - limit) if first is None else first
    if begin > len(messages):
        raise InvalidArgument("first", first, f"a number up to {len(messages)}")
    around, left = truncate_value(
        {name: value for name, value in full.items() if name != history}, 200_000, 100_000
    )
    page = SizedPage(500_000)
    window = messages[begin : begin + limit]
    for message in reversed(window) if first is None else window:
        shorter, cut = truncate_value(message, 60_000)
        if not page.add(shorter):
            break
        left += cut
    told = page.items[::-1] if first is None else page.items
    begin = begin if first is not None else len(messages) - len(told)
    return {**around, history: told}, begin, left


def _difference(
    session: Session, asking: RecordedCall, most: MessageLimits, speaking: wire.Provider, now: Json
) -> Json | None:
    if asking.before is None:
        return None
    earlier = prompt_context(asking.path[: asking.before.after_seq], most)
    found = wire.first_difference(speaking.project(earlier, session.read_blob), now)
    if found is None:
        return None
    sides = [None if isinstance(side, Missing) else side for side in (found.before, found.after)]
    (before, after), _ = truncate_value(sides, 60_000)
    return {"path": found.path, "before": to_json(before), "after": to_json(after)}


HANDLERS = [read_request]
