"""Parse replies and contents of Google's Gemini API, in the camelCase of REST or the snake_case of the SDK.

A part that Oakleaf has none for, such as code that Gemini ran, becomes a `ProviderBlock`; the part itself is evidence, to
be sent back as it came. So are the sources of an answer, which Gemini does not take back.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from oakleaf.core.codec import to_json
from oakleaf.core.messages import Attachment, Part, ProviderBlock, Reasoning, Text, ToolResult
from oakleaf.core.usage import Usage, is_count
from oakleaf.errors import UnrecognizedReply
from oakleaf.wire.base import Answer, HistoryMessage, Proof, history_message
from oakleaf.wire.gemini import NAME
from oakleaf.wire.parsing import (
    compact_json,
    content_blocks,
    parse_base64,
    parse_tool_call,
    result_parts,
    text_field,
    to_dict,
    to_plain,
)
from oakleaf.wire.shapes import shape_around

_USUAL = str.maketrans("-_", "+/")
_USUAL_TYPES = ("image/png", "image/jpeg", "image/webp", "application/pdf")
_MEDIA_UNITS = {
    "prompt_tokens_details": "input_{}_tokens",
    "candidates_tokens_details": "output_{}_tokens",
    "cache_tokens_details": "cache_{}_read_tokens",
}
"""Lists of tokens by kind, with the names of `genai-prices` for them."""
_METADATA = ("grounding_metadata", "url_context_metadata", "citation_metadata")
"""A candidate's fields about sources."""
_AS_GIVEN = ("args", "response", "partMetadata", "parameters", "parametersJsonSchema")
"""Fields with the user's own JSON, under names outside the API."""


def parse_reply(reply: object) -> Answer:
    """Parse a reply, or only the content of a reply."""
    data = to_dict(reply)
    candidate: dict[str, Any] = {"content": data}
    if "parts" not in data:
        candidates = data.get("candidates") or []
        if len(candidates) != 1:
            why = _field(data, "prompt_feedback")
            raise UnrecognizedReply(
                f"a reply with {len(candidates)} candidates ({why}); an answer is exactly one"
            )
        candidate = to_dict(candidates[0])
    content = to_dict(candidate.get("content") or {})
    if content.get("role") not in ("model", None):
        raise UnrecognizedReply(f"a content of role {content['role']!r} is not an answer")
    parsed = _parse_parts(content)
    if any(isinstance(part, ToolResult) for part, _ in parsed):
        raise UnrecognizedReply("a function response is not an answer")
    for name in _METADATA:
        metadata = camel_case(to_plain(_field(candidate, name) or {}))
        if metadata:
            block = ProviderBlock(_camel(name), _describe_sources(metadata))
            parsed.append((block, {"metadata": metadata}))
    answer = history_message(NAME, "assistant", parsed)
    usage, finish = _field(data, "usage_metadata"), _field(candidate, "finish_reason")
    return Answer(
        answer.message,
        None if usage is None else _parse_usage(to_dict(usage)),
        answer.evidence,
        NAME,
        _field(data, "model_version"),
        getattr(finish, "value", finish),  # the SDK has an enum of it
        _count_searches(_field(data, "model_version"), _field(candidate, "grounding_metadata"))
        | ({} if usage is None else _count_media(to_dict(usage)))
        or None,
    )


def _count_searches(model: object, grounding: object) -> dict[str, int]:
    """Return the billed searches: each query, before Gemini 3 each answer with a search."""
    queries = _field(to_dict(grounding), "web_search_queries") if grounding is not None else None
    if not queries:
        return {}
    return {"web_searches": 1 if str(model).startswith(("gemini-1", "gemini-2")) else len(queries)}


def _count_media(usage: dict[str, Any]) -> dict[str, int]:
    """Return the tokens of sound and images, which have rates of their own."""
    counts: Counter[str] = Counter()
    for name, unit in _MEDIA_UNITS.items():
        for detail in content_blocks(_field(usage, name)):
            modality = detail.get("modality")
            kind = str(getattr(modality, "value", modality)).lower()
            count = _field(detail, "token_count")
            if kind in ("audio", "image") and is_count(count) and count:
                counts[unit.format(kind)] += count
    return dict(counts)


def _parse_usage(usage: dict[str, Any]) -> Usage:
    return Usage(
        _count(usage, "prompt_token_count", "tool_use_prompt_token_count"),
        _count(usage, "candidates_token_count", "thoughts_token_count"),
        _count(usage, "cached_content_token_count"),
    )


def _count(usage: dict[str, Any], *names: str) -> int | None:
    """Sum the counts: Gemini reports thoughts and tool use separately from answer and prompt."""
    counts = [value for name in names if is_count(value := _field(usage, name))]
    return sum(counts) if counts else None


def parse_history(messages: Iterable[object]) -> list[HistoryMessage]:
    return [ours for content in messages for ours in _parse_content(to_dict(content))]


def _parse_content(content: dict[str, Any]) -> list[HistoryMessage]:
    role = content.get("role")
    parsed = _parse_parts(content)
    results = [pair for pair in parsed if isinstance(pair[0], ToolResult)]
    rest = [pair for pair in parsed if not isinstance(pair[0], ToolResult)]
    if role == "model" and not results:
        return [history_message(NAME, "assistant", rest)]
    if role in ("user", "function", None) and all(
        isinstance(part, Text | Attachment | ProviderBlock) for part, _ in rest
    ):
        tools = [history_message(NAME, "tool", [pair]) for pair in results]
        return tools if tools and not rest else [*tools, history_message(NAME, "user", rest)]
    raise UnrecognizedReply(f"a content of role {role!r} with {len(parsed)} parts, which is not supported")


def _parse_parts(content: dict[str, Any]) -> list[tuple[Part, Proof]]:
    """Return the parts, each with the data that Gemini requires back."""
    parsed: list[tuple[Part, Proof]] = []
    # Without ids the n-th call of a name is answered by the n-th response of that name, whenever it is read.
    calls: Counter[str] = Counter()
    results: Counter[str] = Counter()
    for piece in content_blocks(content.get("parts")):
        signature = _field(piece, "thought_signature")
        call, result = _field(piece, "function_call"), _field(piece, "function_response")
        proof: Proof = {"signature": _encode(signature)} if signature else {}
        if call is not None:
            data = to_dict(call)
            proof |= {"id": data["id"]} if data.get("id") else {}
            part: Part = parse_tool_call(
                _parse_id(data, calls), text_field(data, "name"), data.get("args") or {}
            )
        elif result is not None:
            part, proof = _parse_response(to_dict(result), results)
        elif piece.get("thought") and set(_fields(piece)) <= {"text", "thought", "thoughtSignature"}:
            part = Reasoning(piece.get("text") or "")
        else:
            part, proof = _parse_part(piece, proof, is_answer=content.get("role") in ("model", None))
        if part != Text("") or proof:
            parsed.append((part, proof))
    return parsed


def _parse_id(data: dict[str, Any], counts: Counter[str]) -> str:
    if data.get("id"):
        return text_field(data, "id")
    name = text_field(data, "name")
    counts[name] += 1
    return f"call_{counts[name]}_{name}"


def _parse_response(data: dict[str, Any], counts: Counter[str]) -> tuple[ToolResult, Proof]:
    response = to_dict(data.get("response"))
    key = next(iter(response)) if len(response) == 1 else None
    output = response[key] if key in ("output", "error") else response
    text = output if isinstance(output, str) else to_json(output, "response").decode()
    parsed: list[tuple[Part, Proof]] = [(Text(text), {})] if text else []
    parsed += [_parse_part(piece, {}, is_answer=False) for piece in content_blocks(data.get("parts"))]
    content, proof = result_parts(parsed)
    if not isinstance(output, str):
        proof["json"] = key if output is not response else ""
    if data.get("parts"):
        proof["has_parts"] = True
    fields = {name: value for name, value in _fields(data).items() if name not in ("id", "parts")}
    if shape := shape_around(fields, "name", "response"):
        proof["shape"] = shape
    return ToolResult(_parse_id(data, counts), content, key == "error"), proof


def _parse_part(
    piece: dict[str, Any], proof: Proof, *, is_answer: bool
) -> tuple[Text | Attachment | ProviderBlock, Proof]:
    data, file = _field(piece, "inline_data"), _field(piece, "file_data")
    fields = _fields(piece)
    if data is not None:
        blob = to_dict(data)
        # The SDK dumps JSON in the other alphabet of base64.
        attachment = parse_base64(
            _standard_base64(blob.get("data")), _field(blob, "mime_type"), _field(blob, "display_name")
        )
        # An image of the model is sent back as one; further fields, such as a video's offsets, with any.
        mime = fields["inlineData"].get("mimeType")
        is_described = is_answer or len(fields) > 1 or mime not in _USUAL_TYPES
        fields["inlineData"] = {**fields["inlineData"], "data": ""}
        return attachment, {"block": fields} if is_described else {}
    if file is not None:
        return ProviderBlock("fileData", f"file: {_field(to_dict(file), 'file_uri')}"), {"block": fields}
    if fields.keys() <= {"text", "thought", "thoughtSignature"}:
        return Text(text_field({"text": "", **fields}, "text")), proof
    if "text" in fields and not fields.get("thought"):
        return Text(text_field(fields, "text")), {"block": fields | {"text": ""}}
    kind = next((name for name in fields if name not in ("thought", "thoughtSignature")), "part")
    return ProviderBlock(kind, _describe(fields)), {"block": fields}


def _fields(piece: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part in the form of the REST API."""
    plain = to_plain({key: value for key, value in piece.items() if value is not None})
    fields: dict[str, Any] = camel_case(plain)
    if "thoughtSignature" in fields:
        fields["thoughtSignature"] = _standard_base64(fields["thoughtSignature"])
    return fields


def camel_case(value: Any) -> Any:
    """Return JSON with the names of the REST API, without unset fields."""
    if isinstance(value, list):
        return [camel_case(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {_camel(key): item for key, item in value.items() if item is not None}
    return {key: item if key in _AS_GIVEN else camel_case(item) for key, item in named.items()}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(map(str.capitalize, rest))


def _standard_base64(data: object) -> object:
    encoded = _encode(data)
    return encoded.translate(_USUAL) if isinstance(encoded, str) else encoded


# -- for people ------------------------------------------------------------------------------------


def _describe(part: Mapping[str, Any]) -> str:
    """Describe a part in a few words."""
    match part:
        case {"executableCode": {"code": str(code)}}:
            return f"ran code:\n{code}"
        case {"codeExecutionResult": {"outcome": str(outcome), **result}}:
            failure = "" if outcome == "OUTCOME_OK" else f" ({outcome})"
            return f"output of the code{failure}:\n{result.get('output') or ''}".rstrip()
        case {"toolCall": {"toolType": str(kind), **call}}:
            return f"called {kind}: {compact_json(call.get('args'))}"
        case {"toolResponse": {"toolType": str(kind)}}:
            return f"result of {kind}"
    return ""


def _describe_sources(metadata: Mapping[str, Any]) -> str:
    queries = [str(query) for query in metadata.get("webSearchQueries") or ()]
    chunks = [
        chunk.get("web") or chunk.get("retrievedContext") or {}
        for chunk in metadata.get("groundingChunks") or ()
    ]
    sources = [f"{chunk.get('title') or ''} {chunk.get('uri') or ''}".strip() for chunk in chunks]
    sources += [str(url.get("retrievedUrl")) for url in metadata.get("urlMetadata") or ()]
    sources += [str(cited["uri"]) for cited in metadata.get("citations") or () if cited.get("uri")]
    head = [f"searched the web: {'; '.join(queries)}"] if queries else ["sources:"] if sources else []
    return "\n".join(head + sources)


def _encode(data: object) -> object:
    """Return the SDK's bytes in the form of the REST API."""
    return base64.b64encode(data).decode() if isinstance(data, bytes) else data


def _field(data: Mapping[str, Any], name: str) -> Any:
    """Return a field by the name in snake_case or in camelCase."""
    value = data.get(name)
    return data.get(_camel(name)) if value is None else value
