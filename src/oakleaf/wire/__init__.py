"""Wire formats: how each provider writes a history, one package per provider with `request`, `parse` and `rules`.

Pure: imports no SDK, opens no file, reads no clock. A projection is a function of a context and of the bytes of its
media, so another process renders the same bytes for the same leaf. Whatever a log contains, its projection obeys the
provider's rules: repair happens here and never in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from types import ModuleType
from typing import Any

import msgspec
from msgspec.structs import replace

from oakleaf.core.messages import Message, system
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.core.typed_json import converter
from oakleaf.errors import InvalidArgument, InvalidTool, UnknownProvider, UnrecognizedReply
from oakleaf.wire import anthropic, gemini, openai_chat, openai_responses
from oakleaf.wire.anthropic import parse as anthropic_parse
from oakleaf.wire.anthropic import request as anthropic_request
from oakleaf.wire.anthropic import rules as anthropic_rules
from oakleaf.wire.base import Answer, Blobs, HistoryMessage, HistoryPart, Provider, Request
from oakleaf.wire.explain import Difference, first_difference
from oakleaf.wire.gemini import parse as gemini_parse
from oakleaf.wire.gemini import request as gemini_request
from oakleaf.wire.gemini import rules as gemini_rules
from oakleaf.wire.gemini.parse import camel_case
from oakleaf.wire.openai_chat import parse as openai_chat_parse
from oakleaf.wire.openai_chat import request as openai_chat_request
from oakleaf.wire.openai_chat import rules as openai_chat_rules
from oakleaf.wire.openai_responses import parse as openai_responses_parse
from oakleaf.wire.openai_responses import request as openai_responses_request
from oakleaf.wire.openai_responses import rules as openai_responses_rules
from oakleaf.wire.parsing import content_blocks, to_dict
from oakleaf.wire.shapes import shape_of

_to_tool_spec = converter(ToolSpec)

__all__ = [
    "PROVIDERS",
    "Answer",
    "Blobs",
    "Difference",
    "HistoryPart",
    "Provider",
    "Request",
    "find_provider",
    "first_difference",
    "parse_history",
    "parse_reply",
    "parse_system",
    "parse_tool",
    "parse_tools",
    "provider_of",
    "render",
    "split_name",
]


def _provider(
    name: str,
    request: ModuleType,
    parse: ModuleType,
    rules: ModuleType,
    history: str,
    block_key: str | None = None,
) -> Provider:
    project, violations = request.project, rules.violations
    return Provider(
        name,
        project,
        violations,
        request.write_tools,
        parse.parse_reply,
        parse.parse_history,
        history,
        block_key,
    )


PROVIDERS: dict[str, Provider] = {
    provider.name: provider
    for provider in (
        _provider(anthropic.NAME, anthropic_request, anthropic_parse, anthropic_rules, "messages", "content"),
        _provider(openai_chat.NAME, openai_chat_request, openai_chat_parse, openai_chat_rules, "messages"),
        _provider(
            openai_responses.NAME,
            openai_responses_request,
            openai_responses_parse,
            openai_responses_rules,
            "input",
        ),
        _provider(gemini.NAME, gemini_request, gemini_parse, gemini_rules, "contents", "parts"),
    )
}
_PROVIDER_BY_CLOUD = {
    "anthropic-bedrock": anthropic.NAME,
    "anthropic-vertex": anthropic.NAME,
    "azure": openai_responses.NAME,
    "gemini-vertex": gemini.NAME,
}

_TOOL_FIELDS = {"type", "function", "name", "description", "parameters", "input_schema", "strict"}
_FUNCTION_TYPES = (None, "function", "custom")
_DECLARATIONS = ("functionDeclarations", "function_declarations")
_SCHEMAS = ("input_schema", "parameters", "parametersJsonSchema", "parameters_json_schema")
_CHAT_PARTS = {"image_url", "file", "input_audio", "refusal"}
_RESPONSES_PARTS = {"input_text", "input_image", "input_file", "output_text"}
_GEMINI_REPLY = {"candidates", "promptFeedback", "prompt_feedback"}


def provider_of(name: str) -> str:
    """Return the provider in a model's name, `provider:model`. A vendor's models on a cloud have the vendor's format."""
    prefix = name.partition(":")[0]
    return _PROVIDER_BY_CLOUD.get(prefix, prefix)


def split_name(name: str) -> tuple[str, str]:
    """Return provider and model of a name; an empty provider for a name without one."""
    return (provider_of(name), name.partition(":")[2]) if ":" in name else ("", name)


def find_provider(name: str) -> Provider:
    provider = PROVIDERS.get(name)
    if provider is None:
        raise UnknownProvider(name, list(PROVIDERS))
    return provider


def render(request: Request) -> bytes:
    """Encode a request: equal requests give equal bytes in every process."""
    return msgspec.json.encode(request)


def parse_reply(reply: object) -> Answer:
    """Parse a provider's reply (SDK object or dict), or accept a `Message` or `Answer`."""
    if isinstance(reply, Answer):
        return reply
    if isinstance(reply, Message):
        if reply.role != "assistant":
            raise UnrecognizedReply(f"a message of role {reply.role!r} is not an answer")
        return Answer(reply)
    data = to_dict(reply)
    if data.get("object") == "response":
        return openai_responses_parse.parse_reply(data)
    if "choices" in data:
        return openai_chat_parse.parse_reply(data)
    if data.keys() & _GEMINI_REPLY or data.get("role") == "model":
        return gemini_parse.parse_reply(data)
    if data.get("type") == "message" and _provider_of(data) != "openai":
        return anthropic_parse.parse_reply(data)
    if data.get("role") == "assistant":
        return PROVIDERS[_provider_of(data)].parse_reply(data)
    if "error" in data:
        raise UnrecognizedReply(f"the provider returned an error: {data['error']!r}")
    raise UnrecognizedReply(f"a dict with {', '.join(map(str, data)) or 'no keys'} is not a known reply")


def parse_tool(definition: dict[str, Any]) -> ToolSpec:
    """Parse a tool's definition: name, description and parameters, or the form of Anthropic or OpenAI."""
    fields = definition.get("function", definition)
    if not isinstance(fields, dict) or not isinstance(fields.get("name"), str) or not fields["name"]:
        raise InvalidArgument("tools", definition, "a dict with name, description and parameters")
    schemas = [fields[key] for key in ("parameters", "input_schema") if key in fields]
    others = {**definition, **fields}.keys() - _TOOL_FIELDS
    if others or definition.get("strict") or len(schemas) > 1:
        raise InvalidTool(fields["name"], f"its definition has {', '.join(sorted(others)) or 'strict'}")
    try:
        return _to_tool_spec(
            {
                "name": fields["name"],
                "description": fields.get("description") or "",
                "parameters": schemas[0] if schemas else {"type": "object", "properties": {}},
            }
        )
    except msgspec.ValidationError as error:
        raise InvalidTool(fields["name"], str(error)) from None


def parse_tools(provider: str, tools: object, issuer: str) -> list[ToolSpec]:
    """Parse the tools of a request to `issuer`: the functions, and the tools that only the issuer defines."""
    specs: list[ToolSpec] = []
    for tool in tools if isinstance(tools, list) else ():
        definition = to_dict(tool)
        name = (
            next((key for key in _DECLARATIONS if key in definition), None) if provider == "gemini" else None
        )
        if name is not None:
            declared = [camel_case(to_dict(one)) for one in definition.pop(name) or ()]
            specs.extend(_parse_spec(provider, one, issuer) for one in declared)
        if definition or name is None:
            specs.append(_parse_spec(provider, definition, issuer, is_function=provider != "gemini"))
    return specs


def _parse_spec(
    provider: str, definition: dict[str, Any], issuer: str, *, is_function: bool = True
) -> ToolSpec:
    fields = definition.get("function") if "function" in definition else definition
    name = fields.get("name") if isinstance(fields, dict) else None
    is_ours = is_function and definition.get("type") in _FUNCTION_TYPES and isinstance(name, str) and name
    if not is_ours or not isinstance(fields, dict):
        kind = definition.get("type") or next(iter(definition), "tool")
        return ToolSpec(
            name if isinstance(name, str) and name else str(kind), "", {}, issuer, definition, True
        )
    schema: dict[str, Any] = next((fields[key] for key in _SCHEMAS if isinstance(fields.get(key), dict)), {})
    spec = ToolSpec(str(name), str(fields.get("description") or ""), schema)
    return _with_shape(provider, spec, definition, issuer)


def _with_shape(provider: str, spec: ToolSpec, definition: dict[str, Any], issuer: str) -> ToolSpec:
    [written] = PROVIDERS[provider].write_tools([spec])
    if provider == "gemini":  # which has two fields for the parameters
        [written] = written["functionDeclarations"]
        written |= {key: spec.parameters for key in _SCHEMAS if key in definition}
        written = {key: value for key, value in written.items() if key not in _SCHEMAS or key in definition}
    shape = shape_of(definition, written)
    is_named_so = provider == "gemini" and "parameters" in definition
    shape = dict.fromkeys(definition) if shape is None and is_named_so else shape
    return replace(spec, issuer=None if shape is None else issuer, shape=shape)


def parse_system(provider: str, request: Mapping[str, Any]) -> list[HistoryMessage]:
    """Parse the system prompt of a request, where it is no part of the history."""
    if provider == "anthropic":
        return anthropic_parse.parse_system(request.get("system"))
    if provider == "openai":
        blocks = content_blocks(request.get("instructions"))
    else:
        prompt = request.get("systemInstruction") or request.get("system_instruction")
        parts = prompt.get("parts") if isinstance(prompt, dict) else prompt
        blocks = content_blocks([parts] if isinstance(parts, dict) else parts)
    return [HistoryMessage(system(text)) for block in blocks if isinstance(text := block.get("text"), str)]


def parse_history(messages: Iterable[object]) -> list[HistoryMessage]:
    """Parse messages of any provider's shape, with the evidence for the provider; a `Message` stays unchanged.

    Consecutive messages of one shape are parsed together: on OpenAI's Responses an answer is several items.
    """
    parsed: list[HistoryMessage] = []
    dicts = (message if isinstance(message, Message) else to_dict(message) for message in messages)
    for name, group in groupby(dicts, lambda m: None if isinstance(m, Message) else _provider_of(m)):
        if name is None:
            parsed.extend(HistoryMessage(message) for message in group if isinstance(message, Message))
        else:
            parsed.extend(PROVIDERS[name].parse_history(group))
    return parsed


def _provider_of(message: dict[str, Any]) -> str:
    """Return the provider of a message; plain text is the same for all but Gemini."""
    if "parts" in message:
        return "gemini"
    if message.get("type", "message") != "message":
        return "openai"
    content = message.get("content")
    kinds = {to_dict(block).get("type") for block in content} if isinstance(content, list | tuple) else set()
    if kinds & _RESPONSES_PARTS or (kinds == {"refusal"} and "type" in message):
        return "openai"
    if message.get("role") in ("tool", "developer") or message.get("tool_calls"):
        return "openai-chat"
    if not isinstance(content, list | tuple):
        return "openai-chat"
    return "openai-chat" if kinds & _CHAT_PARTS else "anthropic"
