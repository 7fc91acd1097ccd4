"""What a request to a model says, in any provider's JSON: prompt, messages, tools, options, model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.entries import Evidence, TokenLimit
from oakleaf.core.json_repair import INVALID_JSON, decode_repaired
from oakleaf.core.messages import Message, system
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.errors import UnrecognizedReply
from oakleaf.wire import find_provider, parse_system, parse_tools
from oakleaf.wire.base import HistoryMessage
from oakleaf.wire.openai_chat.request import LIMIT_FIELDS
from oakleaf.wire.options import read_options
from oakleaf.wire.parsing import to_dict

_VOLATILE = re.compile(r"^x-anthropic-billing-header:.*$", re.MULTILINE)
"""Lines of a system prompt that change with every request and say nothing to the model."""


class ModelRequest(Struct, frozen=True):
    provider: str
    model: str
    system: tuple[HistoryMessage, ...]
    messages: tuple[HistoryMessage, ...]
    tools: tuple[ToolSpec, ...]
    options: dict[str, Any]
    token_limit: TokenLimit | None = None
    """The name of the limit, of the two of OpenAI's Chat Completions."""
    previous_response: str | None = None
    """The response that the messages follow, on OpenAI's Responses."""
    conversation: str | None = None
    """The conversation that the messages are added to, on OpenAI's Responses."""

    @property
    def prompt(self) -> str:
        return "\n\n".join(item.message.text for item in self.system)

    @property
    def continues_stored(self) -> bool:
        """Whether the messages follow the provider's stored history instead of being the whole history."""
        return self.previous_response is not None or self.conversation is not None


def read_request(
    provider: str,
    path_model: str | None,
    body: bytes,
    mask: Callable[[Any], Any] = lambda value: value,
    issuer: str | None = None,
    find_answer: Callable[[str], HistoryMessage | None] = lambda item_id: None,
) -> ModelRequest:
    """Raise `UnrecognizedReply` if the body is not a request of the provider. `mask` hides secrets in a JSON
    value.

    `issuer` names the server, if servers of the provider's format differ. `find_answer` returns the answer that has an
    item of this id.
    """
    try:
        data = to_dict(mask(decode_repaired(body)))
    except INVALID_JSON as error:
        raise UnrecognizedReply(f"a request that is not JSON: {error}") from None
    history = data.get(find_provider(provider).history)
    if isinstance(history, str):
        history = [{"role": "user", "content": history}]
    if not isinstance(history, list):
        raise UnrecognizedReply(f"a request without {find_provider(provider).history}")
    parsed = _parse_history(provider, history, find_answer)
    head, messages = _split_system(parsed)
    prompt = map(_without_volatile, [*parse_system(provider, data), *head])
    issuer = issuer or provider
    continued = data if provider == "openai" else {}
    previous, conversation = continued.get("previous_response_id"), continued.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    return ModelRequest(
        provider,
        mask(path_model) or str(data.get("model") or "unknown"),
        tuple(issued_by(issuer, item) for item in prompt if item.message.text.strip()),
        tuple(issued_by(issuer, item) for item in _join_answers(messages)),
        tuple(parse_tools(provider, data.get("tools"), issuer)),
        read_options(provider, data),
        next((name for name in LIMIT_FIELDS if data.get(name) is not None), None)
        if provider == "openai-chat"
        else None,
        previous if isinstance(previous, str) else None,
        conversation if isinstance(conversation, str) else None,
    )


def _parse_history(
    provider: str, history: list[Any], find_answer: Callable[[str], HistoryMessage | None]
) -> Iterator[HistoryMessage]:
    """Yield the messages, with the answer in place of references to items stored at OpenAI."""
    for is_stored, items in groupby(map(to_dict, history), _is_reference):
        if is_stored and provider == "openai":
            answers = filter(None, (find_answer(str(item.get("id"))) for item in items))
            yield from (answer for answer, _ in groupby(answers))
        else:
            yield from find_provider(provider).parse_history(items)


def _is_reference(item: dict[str, Any]) -> bool:
    return item.get("type") == "item_reference"


def _split_system(
    parsed: Iterable[HistoryMessage],
) -> tuple[list[HistoryMessage], list[HistoryMessage]]:
    """Return the system messages at the start, and the rest."""
    head: list[HistoryMessage] = []
    messages: list[HistoryMessage] = []
    for item in parsed:
        if item.message.role == "system" and not messages:
            head.append(item)
        elif item.message.parts:
            messages.append(item)
    return head, messages


def issued_by(issuer: str, item: HistoryMessage) -> HistoryMessage:
    """Return a message with the server's evidence."""
    return replace(item, evidence=item.evidence and replace(item.evidence, issuer=issuer))


def _join_answers(messages: Iterable[HistoryMessage]) -> Iterator[HistoryMessage]:
    """Join the messages of an answer: parallel calls may come one by one, and the results after all calls."""
    last: HistoryMessage | None = None
    for item in messages:
        if last is not None and last.message.calls and item.message.role == "assistant":
            last = _joined(last, item)
            continue
        if last is not None:
            yield last
        last = item
    if last is not None:
        yield last


def _joined(first: HistoryMessage, second: HistoryMessage) -> HistoryMessage:
    parts, shift = (*first.message.parts, *second.message.parts), len(first.message.parts)
    proofs = {} if first.evidence is None else dict(first.evidence.parts)
    issuer = ""
    for item in (first, second):
        issuer = item.evidence.issuer if item.evidence is not None else issuer
    for index, proof in ({} if second.evidence is None else second.evidence.parts).items():
        proofs[str(int(index) + shift) if index.isdecimal() else index] = proof
    return HistoryMessage(Message("assistant", parts), Evidence(issuer, proofs) if proofs else None)


def _without_volatile(item: HistoryMessage) -> HistoryMessage:
    text = item.message.text
    steady = _VOLATILE.sub("", text)
    return item if steady == text else replace(item, message=system(steady.strip()))
