"""Routes for the exact request behind an answer, its token counts, and what changed since the previous request."""

from __future__ import annotations

from typing import Annotated, BinaryIO

from litestar import get
from litestar.params import FromPath, QueryParameter
from litestar.response import Stream
from msgspec import Struct
from msgspec.structs import replace

from oakleaf import wire
from oakleaf.core.context import Context
from oakleaf.core.usage import Call
from oakleaf.ext import measure_window, read
from oakleaf.session import Session
from oakleaf.wire.explain import Missing
from oakleaf.wire.parts import part_starts
from oakleaf_server.context import ApiRequest, few_at_once, find_session
from oakleaf_server.json_views import call_view, to_json
from oakleaf_server.offline_requests import provider_of, token_shares
from oakleaf_server.request_window import ItemWindow, PromptReader, read_prompt
from oakleaf_server.routes.bundles import download, file_name
from oakleaf_server.schemas import Json, RequestView
from oakleaf_server.truncate import json_size, truncate_value

NEWEST = 2_000
"""Entries whose tokens are estimated. A request that has no more is compared with the previous one as a whole."""
COMPARED = 200
"""The newest messages of a longer one, which are compared."""

At = Annotated[str | None, QueryParameter(description="The answer's position; default: the leaf")]
ProviderName = Annotated[str | None, QueryParameter(description="Provider format; default: that of the call")]


class AnswerRequest(Struct, frozen=True):
    """What was sent for an answer, or would be sent next: its messages, its call, and the previous call on the path."""

    session: Session
    reader: PromptReader
    provider: wire.Provider
    call: Call | None
    previous: Call | None


@get("/api/sessions/{session_id:str}/request", tags=["requests"])
@few_at_once
def read_request(
    request: ApiRequest,
    session_id: FromPath[str],
    at: At = None,
    provider: ProviderName = None,
    before: Annotated[
        int | None, QueryParameter(ge=1, le=2**32, description="The `earlier` of a page; default: the newest")
    ] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=200, description="About how many messages")] = 50,
) -> RequestView:
    """Return the request behind the answer at a position, or the one a model would get after it: its newest messages.

    Earlier messages come by cursor, without the tokens and the comparison that the first page has.
    """
    answer_request = _find_request(request, session_id, at, provider)
    reader, history = answer_request.reader, answer_request.provider.history
    window = reader.window(before, limit)
    view, omitted = _truncate(reader.project(answer_request.provider, window), history)
    last = reader.leaf.seq if before is None else min(before - 1, reader.leaf.seq)
    session, call, previous = answer_request.session, answer_request.call, answer_request.previous
    page = RequestView(
        at=str(session.leaf),
        after=str(reader.leaf),
        provider=answer_request.provider.name,
        model=call.model if call else reader.frame.settings.model or session.row.model,
        request=view,
        messages_key=history,
        start=reader.first,
        first=window.first,
        last=last,
        earlier=None if window.is_start else window.first,
        omitted_chars=omitted,
        call=None if call is None else call_view(call),
        previous=None if previous is None else str(read(session).leaf_at(previous.after_seq)),
    )
    return page if before is not None else _with_tokens(page, answer_request)


@get("/api/sessions/{session_id:str}/request/raw", tags=["requests"], media_type="application/json")
async def raw_request(
    request: ApiRequest, session_id: FromPath[str], at: At = None, provider: ProviderName = None
) -> Stream:
    """Download the whole request of any length, byte for byte as it is sent. The model's name and streaming are not in it."""

    def write(file: BinaryIO) -> None:
        answer_request = _find_request(request, session_id, at, provider)
        file.writelines(answer_request.reader.stream(answer_request.provider))

    return await download(write, f"{file_name(session_id)}-request.json", "application/json")


def _find_request(
    request: ApiRequest, session_id: str, at: str | None, provider: str | None
) -> AnswerRequest:
    session = find_session(request, session_id, at)
    stored, leaf = read(session), session.leaf
    newest = stored.entries(newest=1)
    is_answer = bool(newest) and newest[-1].role == "assistant"
    call = _call_of(session, leaf.seq) if is_answer else None
    end = call.after_seq if call is not None else leaf.seq - is_answer
    previous = stored.latest_answer_call(leaf.seq - is_answer)
    reader = read_prompt(stored.at(stored.leaf_at(end)))
    return AnswerRequest(session, reader, wire.find_provider(provider or provider_of(call)), call, previous)


def _call_of(session: Session, seq: int) -> Call | None:
    """Return the call behind the answer at the leaf."""
    calls = read(session).calls(seq, seq)
    answers = [call for call in calls if call.answer_seq == seq and call.purpose == "answer"]
    return answers[-1] if answers else None


def _truncate(request: Json, history: str) -> tuple[Json, int]:
    """Shorten a value too long for a response; return the value and the number of characters omitted."""
    rest = {name: value for name, value in request.items() if name != history}
    view, omitted = truncate_value(rest, 200_000, 100_000)
    room, messages = 600_000, list[Json]()
    for message in reversed(request[history]):
        shorter, cut_chars = truncate_value(message, max(1_000, min(60_000, room)))
        room -= json_size(shorter)
        messages.insert(0, shorter)
        omitted += cut_chars
    return {**view, history: messages}, omitted


def _with_tokens(page: RequestView, answer_request: AnswerRequest) -> RequestView:
    """Return the first page with the tokens, and with the changes since the previous request."""
    newest = answer_request.reader.newest(NEWEST)
    prompt = replace(answer_request.reader.frame, items=newest.items)
    shares = token_shares(prompt, answer_request.provider.name)
    page.tokens_from = newest.first
    page.tokens = [{"part": part, "tokens": count} for part, count in shares]
    page.window = _window(answer_request.session, prompt, answer_request.call)
    page.difference = _difference(answer_request, newest)
    return page


def _window(session: Session, prompt: Context, call: Call | None) -> int | None:
    row = session.row
    own = row.model or ""
    is_own = call is None or own.partition("@")[0] == f"{call.provider}:{call.model}"
    name = own if is_own or call is None else f"{call.provider}:{call.model}"
    return measure_window(prompt, name, row.context_window).window


def _difference(answer_request: AnswerRequest, newest: ItemWindow) -> Json | None:
    if answer_request.previous is None:
        return None
    stored = read(answer_request.session)
    there = stored.at(stored.leaf_at(answer_request.previous.after_seq))
    earlier = read_prompt(there)
    difference = _compare(earlier, answer_request, newest)
    if difference is None:
        return None
    sides = [None if isinstance(side, Missing) else side for side in (difference.before, difference.after)]
    (before, after), _ = truncate_value(sides, 60_000)
    return {"path": difference.path, "before": to_json(before), "after": to_json(after)}


def _compare(
    earlier: PromptReader, answer_request: AnswerRequest, newest: ItemWindow
) -> wire.Difference | None:
    """Compare two requests; of long requests, everything but the messages, and the newest messages."""
    now, provider = answer_request.reader, answer_request.provider
    if newest.is_start and (before := earlier.within(now, newest)).is_start:
        return wire.first_difference(earlier.project(provider, before), now.project(provider, newest))
    difference = wire.first_difference(*(reader.around(provider, newest) for reader in (earlier, now)))
    if difference is not None:
        return difference
    if not earlier.continues_as(now):
        sides = [f"from entry {reader.first} on" for reader in (earlier, now)]
        return wire.Difference(provider.history, *sides)
    items = newest.items[-COMPARED:]
    starts = part_starts(items)
    if not starts:
        return None
    tail = replace(newest, items=items[starts[0] :], first=items[starts[0]].seq, is_start=False)
    return wire.first_difference(
        earlier.project(provider, earlier.within(now, tail)), now.project(provider, tail)
    )


HANDLERS = [read_request, raw_request]
