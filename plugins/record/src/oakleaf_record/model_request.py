"""What a request to a model says, in any provider's JSON: prompt, messages, tools, options, model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from oakleaf.core.json_repair import INVALID_JSON, decode_repaired
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.errors import UnrecognizedReply
from oakleaf.wire import find_provider
from oakleaf.wire.base import HistoryMessage
from oakleaf.wire.options import read_options
from oakleaf.wire.parsing import content_blocks, to_dict

_VOLATILE = re.compile(r"^x-anthropic-billing-header:.*$", re.MULTILINE)
"""Lines of a system prompt that change with every request and say nothing to the model."""
_NOT_OPTIONS = (
    "metadata",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_control",
)
"""Fields that do not decide an answer."""


class ModelRequest(Struct, frozen=True):
    provider: str
    model: str
    system: str
    messages: tuple[HistoryMessage, ...]
    tools: tuple[ToolSpec, ...]
    options: dict[str, Any]
    previous_response: str | None = None
    """The response that the messages follow, on OpenAI's Responses."""
    conversation: str | None = None
    """The conversation that the messages are added to, on OpenAI's Responses."""

    @property
    def continues_stored(self) -> bool:
        """Whether the messages follow what the provider stored, and are not the whole history."""
        return self.previous_response is not None or self.conversation is not None


def read_request(
    provider: str, path_model: str | None, body: bytes, mask: Callable[[Any], Any] = lambda value: value
) -> ModelRequest:
    """Raises `UnrecognizedReply` if the body is not a request of this provider. `mask` hides secrets in a JSON value."""
    try:
        data = to_dict(mask(decode_repaired(body)))
    except INVALID_JSON as error:
        raise UnrecognizedReply(f"a request that is not JSON: {error}") from None
    history = data.get(find_provider(provider).history)
    if isinstance(history, str):
        history = [{"role": "user", "content": history}]
    if not isinstance(history, list):
        raise UnrecognizedReply(f"a request without {find_provider(provider).history}")
    parsed = find_provider(provider).parse_history(_content(provider, history))
    system, messages = _split_system(parsed)
    prompt = "\n\n".join(filter(None, [*_system_texts(data), *system]))
    continued = data if provider == "openai" else {}
    previous, conversation = continued.get("previous_response_id"), continued.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    return ModelRequest(
        provider,
        mask(path_model) or str(data.get("model") or "unknown"),
        _VOLATILE.sub("", prompt).strip(),
        tuple(messages),
        tuple(_tools(data.get("tools"))),
        {name: value for name, value in read_options(provider, data).items() if name not in _NOT_OPTIONS},
        previous if isinstance(previous, str) else None,
        conversation if isinstance(conversation, str) else None,
    )


def _content(provider: str, history: list[Any]) -> list[Any]:
    """Leave out items that only refer to what the provider stored."""
    if provider != "openai":
        return history
    return [item for item in history if to_dict(item).get("type") != "item_reference"]


def _split_system(parsed: Iterable[HistoryMessage]) -> tuple[list[str], list[HistoryMessage]]:
    """Return the system messages before the first other one, and the rest."""
    texts: list[str] = []
    messages: list[HistoryMessage] = []
    for item in parsed:
        if item.message.role == "system" and not messages:
            texts.append(item.message.text)
        elif item.message.parts:
            messages.append(item)
    return texts, messages


def _system_texts(data: dict[str, Any]) -> Iterator[str]:
    for name in ("system", "instructions", "systemInstruction", "system_instruction"):
        value = data.get(name)
        parts = value.get("parts") if isinstance(value, dict) else value
        for block in content_blocks(parts):
            if isinstance(text := block.get("text"), str):
                yield text


def _tools(tools: object) -> Iterator[ToolSpec]:
    """Yield the functions among the tools. A hosted tool has no definition that anybody sends."""
    for tool in content_blocks(tools if isinstance(tools, list) else None):
        declarations = tool.get("functionDeclarations") or tool.get("function_declarations")
        for function in declarations if isinstance(declarations, list) else [tool.get("function") or tool]:
            fields = to_dict(function)
            schema = next((fields[name] for name in _SCHEMAS if isinstance(fields.get(name), dict)), None)
            if isinstance(fields.get("name"), str) and (schema is not None or fields.get("description")):
                yield ToolSpec(fields["name"], str(fields.get("description") or ""), schema or {})


_SCHEMAS = ("input_schema", "parameters", "parametersJsonSchema", "parameters_json_schema")
