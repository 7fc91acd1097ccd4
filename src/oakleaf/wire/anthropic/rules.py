"""The rules of Anthropic's Messages API for a history, each with the sources it was learned from.

Knows requests, and not how Oakleaf makes them: it judges the projection independently.
A history at rest may be empty or end with the assistant; one that is `ready` to be sent may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from oakleaf.wire.base import Request
from oakleaf.wire.sources import error, gateway, learned, sdk, unconfirmed

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_IMAGE_LIMIT = 5 * 1024 * 1024  # of base64
# As base64, without the letter that the byte after them has a part in.
_FIRST_BYTES = {
    "image/png": ("iVBORw0KGg",),
    "image/jpeg": ("/9j/",),
    "image/gif": ("R0lGOD",),
    "image/webp": ("UklGR",),
    "application/pdf": ("JVBERi",),
}
_THINKING = ("thinking", "redacted_thinking")
_FIELDS = {
    "text": {"type", "text", "cache_control", "citations"},
    "container_upload": {"type", "file_id", "cache_control"},
    "search_result": {"type", "source", "title", "content", "citations", "cache_control"},
    "server_tool_use": {"type", "id", "name", "input", "caller", "cache_control"},
    "mcp_tool_use": {"type", "id", "name", "server_name", "input", "cache_control"},
    "image": {"type", "source", "cache_control", "transformations"},
    "document": {"type", "source", "title", "context", "citations", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller", "toolset_name"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
}
_ALLOWED_PARTS = {
    "user": {"text", "image", "document", "search_result", "container_upload", "tool_result"},
    "system": {"text"},
    "assistant": {
        *("text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use"),
        "container_upload",
    },
    "tool_result": {"text", "image", "document", "search_result"},
}
_HOSTED_CALLS = ("server_tool_use", "mcp_tool_use")
_HOSTED_RESULTS = (
    *("web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result", "mcp_tool_result"),
    *("bash_code_execution_tool_result", "text_editor_code_execution_tool_result"),
    *("tool_search_tool_result", "advisor_tool_result"),
)
_SOURCE_FIELDS = {"url": {"type", "url"}, "file": {"type", "file_id"}, "content": {"type", "content"}}

Violations = Iterator[str]


def violations(request: Request, *, ready: bool = False) -> list[str]:
    """Return the provider's objections, each with a path; empty if the history is accepted."""
    messages = request.get("messages")
    if not isinstance(messages, list):
        return ["messages: not a list"]
    problems = [*_system(request), *_order(messages)]
    for index, message in enumerate(messages):
        problems.extend(_message(f"messages[{index}]", message))
    if not problems:  # pairs can only be checked if all shapes are valid
        problems.extend(_pairs(messages))
        problems.extend(_hosted_pairs(messages))
        problems.extend(_tools(request, messages))
        problems.extend(_end(messages, ready))
    return problems


@learned(
    sdk("anthropic 2.8.0, types/message_create_params.py", "2026-11", "text or a list of text blocks"),
    error("anthropics/claude-code#23440", "2026-02-05", "no blank text"),
)
def _system(request: Request) -> Violations:
    if "system" not in request:
        return
    system = request["system"]
    if isinstance(system, str):
        system = [{"type": "text", "text": system}]
    if not isinstance(system, list) or not system:
        yield "system: neither text nor a list of text blocks"
        return
    for index, block in enumerate(system):
        yield from _block(f"system[{index}]", block, {"text"})


@learned(
    error("livekit/agents#669", "2024", "the first message is the user's; no newer evidence"),
)
def _order(messages: list[Any]) -> Violations:
    if messages and isinstance(messages[0], dict) and messages[0].get("role") == "assistant":
        yield "messages[0]: the first message must be the user's"


@learned(
    sdk("anthropic 2.8.0, types/message_param.py", "2026-11", "roles and fields"),
    error("tailcallhq/forgecode#2107", "2025-12-11", "no thinking at the end"),
)
def _message(path: str, message: Any) -> Violations:
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        yield f"{path}: not a message of the user, the assistant or the system"
        return
    if message.keys() != {"role", "content"}:
        yield f"{path}: fields are role and content, not {', '.join(map(str, message))}"
        return
    role = message["role"]
    yield from _content(f"{path}.content", message["content"], _ALLOWED_PARTS[role])
    if role == "assistant" and isinstance(message["content"], list):
        last = message["content"][-1:]
        if any(isinstance(block, dict) and block.get("type") in _THINKING for block in last):
            yield f"{path}: the final block of an assistant message cannot be thinking"


@learned(
    error("anomalyco/opencode#15371", "2026-02-27", "not empty"),
)
def _content(path: str, content: Any, may_hold: set[str]) -> Violations:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        yield f"{path}: neither text nor a list of blocks"
    elif not content:
        yield f"{path}: must not be empty"
    else:
        for index, block in enumerate(content):
            yield from _block(f"{path}[{index}]", block, may_hold)


@learned(
    error("anthropics/claude-code#23440", "2026-02-05", "no blank text"),
    error("anthropics/claude-code#4378", "2025-07-25", "no extra fields"),
    sdk("anthropic 2.8.0, types/content_block_param.py", "2026-11", "the blocks and their fields"),
)
def _block(path: str, block: Any, may_hold: set[str]) -> Violations:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in _HOSTED_RESULTS and may_hold is _ALLOWED_PARTS["assistant"]:
        yield from _hosted_result(path, block)
        return
    if kind not in may_hold:
        if (
            not isinstance(kind, str) or kind in _FIELDS
        ):  # others are of a newer API: what was sent once, it accepts
            yield f"{path}: a block of type {kind!r} cannot stand here"
        return
    if not block.keys() <= _FIELDS[kind]:
        yield f"{path}: extra fields {', '.join(sorted(block.keys() - _FIELDS[kind]))}"
    if kind == "text":
        if not isinstance(block.get("text"), str) or not block["text"].strip():
            yield f"{path}.text: must contain non-whitespace text"
        if not isinstance(block.get("citations", []), list):
            yield f"{path}.citations: must be a list"
    elif kind in ("image", "document"):
        yield from _source(f"{path}.source", kind, block.get("source"))
    elif kind == "container_upload":
        if not isinstance(block.get("file_id"), str):
            yield f"{path}.file_id: field required"
    elif kind == "search_result":
        yield from _content(f"{path}.content", block.get("content"), {"text"})
    elif kind == "tool_use" or kind in _HOSTED_CALLS:
        yield from _tool_use(path, block)
    elif kind == "tool_result":
        yield from _tool_result(path, block)
    else:
        yield from _thinking(path, kind, block)


@learned(
    sdk("anthropic 2.8.0, types/web_search_tool_result_block_param.py", "2026-11", "required fields"),
    unconfirmed("the pattern of the id"),
)
def _hosted_result(path: str, block: dict[str, Any]) -> Violations:
    if not _matches(_ID, block.get("tool_use_id")):
        yield f"{path}.tool_use_id: must match ^[a-zA-Z0-9_-]{{1,64}}$"
    if "content" not in block:
        yield f"{path}.content: field required"


@learned(
    error("anthropics/claude-code#8184", "2025-09-25", "the four types of images"),
    error("home-assistant/core#167208", "2026-04-02", "bytes of the declared type"),
    error("lobehub/lobehub#14711", "2026-05-12", "5 MB of base64 for an image"),
    error("can1357/oh-my-pi#10633", "2026-09-03", "10 MB by then; other platforms may lag behind"),
    unconfirmed("the first bytes of a PDF"),
)
def _source(path: str, kind: str, source: Any) -> Violations:
    how = source.get("type") if isinstance(source, dict) else None
    if how in _SOURCE_FIELDS:
        if source.keys() != _SOURCE_FIELDS[how]:
            yield f"{path}: a source of type {how} has {', '.join(sorted(_SOURCE_FIELDS[how]))}"
        return
    if how == "text" and kind == "document":
        if source.get("media_type") != "text/plain" or not isinstance(source.get("data"), str):
            yield f"{path}: not a plain text"
        return
    if not isinstance(source, dict) or source.keys() != {"type", "media_type", "data"}:
        yield f"{path}: not a source with type, media_type and data"
        return
    mime, data = source["media_type"], source["data"]
    if source["type"] != "base64" or not isinstance(data, str) or not _BASE64.fullmatch(data):
        yield f"{path}: not base64"
    elif mime not in _FIRST_BYTES or (kind == "document") != (mime == "application/pdf"):
        yield f"{path}.media_type: {mime!r} is not taken as {kind}"
    elif not data.startswith(_FIRST_BYTES[mime]):
        yield f"{path}.data: does not match the media type {mime}"
    elif kind == "image" and len(data) > _IMAGE_LIMIT:
        yield f"{path}.data: image exceeds 5 MB: {len(data)} > {_IMAGE_LIMIT}"


@learned(
    error("QwenLM/qwen-code#8160", "2026-07-30", "the letters of an id"),
    error("anthropics/claude-code#96152", "2026-09-22", "128 letters of a name"),
    unconfirmed("64 letters of an id"),
)
def _tool_use(path: str, block: dict[str, Any]) -> Violations:
    if not _matches(_ID, block.get("id")):
        yield f"{path}.id: must match ^[a-zA-Z0-9_-]{{1,64}}$"
    if not _matches(_NAME, block.get("name")):
        yield f"{path}.name: must match ^[a-zA-Z0-9_-]{{1,128}}$"
    if not isinstance(block.get("input"), dict):
        yield f"{path}.input: must be an object"


@learned(
    error("vellum-ai/vellum-assistant#18387", "2026-03-17", "only text in an error"),
    error("bytedance/trae-agent#230", "2025-07-30", "no empty error"),
)
def _tool_result(path: str, block: dict[str, Any]) -> Violations:
    if not _matches(_ID, block.get("tool_use_id")):
        yield f"{path}.tool_use_id: must match ^[a-zA-Z0-9_-]{{1,64}}$"
    is_error = block.get("is_error", False)
    if not isinstance(is_error, bool):
        yield f"{path}.is_error: must be true or false"
    content = block.get("content")
    if content is None or content in ("", []):
        if is_error:
            yield f"{path}.content: cannot be empty if is_error is true"
        return
    may_hold = {"text"} if is_error else _ALLOWED_PARTS["tool_result"]
    yield from _content(f"{path}.content", content, may_hold)


@learned(
    error("JohnnyZ93/oai-compatible-copilot#217", "2026-04-29", "the signature"),
    sdk("anthropic 2.8.0, types/redacted_thinking_block_param.py", "2026-11", "the data"),
)
def _thinking(path: str, kind: str, block: dict[str, Any]) -> Violations:
    key = "signature" if kind == "thinking" else "data"
    if not isinstance(block.get(key), str) or not block[key]:
        yield f"{path}.{key}: field required"
    if kind == "thinking" and not isinstance(block.get("thinking"), str):
        yield f"{path}.thinking: field required"


@learned(
    error("lbjlaq/Antigravity-Manager#654", "2026-01-15", "a result in the next message"),
    error("anthropics/claude-code#13460", "2025-12-09", "a call in the message before"),
    error("anthropics/claude-code#28515", "2026-02-25", "unique ids"),
    error("anthropics/claude-code#37", "2025-02-24", "results at the head of the message"),
)
def _pairs(messages: list[dict[str, Any]]) -> Violations:
    """Each call is answered once, at the head of the very next message; no id is used twice."""
    ids: set[str] = set()
    for index, message in enumerate([*messages, {"role": "user", "content": []}]):
        path = f"messages[{index}]"
        calls = _ids(messages[index - 1], "tool_use", "id") if index else []
        answered = _ids(message, "tool_result", "tool_use_id")
        for call_id in [call_id for call_id in calls if call_id not in answered]:
            yield f"{path}: tool_use {call_id} has no tool_result immediately after"
        for call_id in [call_id for call_id in answered if call_id not in calls]:
            yield f"{path}: tool_result {call_id} has no tool_use in the message before"
        if len(set(answered)) < len(answered):
            yield f"{path}: more than one tool_result for a tool_use"
        kinds = [block["type"] for block in message["content"]] if answered else []
        if any(kind != "tool_result" for kind in kinds[: len(answered)]):
            yield f"{path}: tool_result blocks must come first"
        for call_id in _ids(message, "tool_use", "id"):
            if call_id in ids:
                yield f"{path}: tool_use ids must be unique, {call_id} is not"
            ids.add(call_id)


@learned(
    error("anthropics/claude-code#95406", "2026-09-18", "a call before a result"),
    unconfirmed("a result before the next input"),
)
def _hosted_pairs(messages: list[dict[str, Any]]) -> Violations:
    """A tool that Anthropic runs has a result before the next input; only in the last answer a call may wait."""
    waiting: set[str] = set()
    ids: set[str] = set()
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        blocks = [] if isinstance(message["content"], str) else message["content"]
        is_input = message["role"] == "user" and any(block["type"] != "tool_result" for block in blocks)
        for call_id in sorted(waiting) if is_input or isinstance(message["content"], str) else ():
            yield f"{path}: tool use with id {call_id} was found without a corresponding result block"
        for block in blocks:
            if block["type"] in _HOSTED_CALLS:
                if block["id"] in ids:
                    yield f"{path}: tool_use ids must be unique, {block['id']} is not"
                ids.add(block["id"])
                waiting.add(block["id"])
            elif block["type"] in _HOSTED_RESULTS:
                if block["tool_use_id"] not in waiting:
                    yield f"{path}: {block['type']} {block['tool_use_id']} has no tool use before it"
                waiting.discard(block["tool_use_id"])


@learned(
    error("netclaw-dev/netclaw#1133", "2026-05-21", "the letters of a name"),
    error("danny-avila/LibreChat#13162", "2026-05-17", "unique names"),
    gateway(
        "aws-samples/bedrock-access-gateway#239", "2026-04-20", "Bedrock: tools for calls in the history"
    ),
    gateway("BerriAI/litellm#24712", "2026-03-28", "LiteLLM: the same; the API itself takes it by then"),
    unconfirmed("tools for a forced choice"),
)
def _tools(request: Request, messages: list[dict[str, Any]]) -> Violations:
    """A history with tool calls defines tools; names of tools are legal and unique; a choice has tools to choose from."""
    tools = request.get("tools") or []
    names = [tool["name"] for tool in tools if "name" in tool]
    for name in names:
        if not _matches(_NAME, name):
            yield f"tools: {name!r} must match ^[a-zA-Z0-9_-]{{1,128}}$"
    if len(set(names)) < len(names):
        yield "tools: tool names must be unique"
    if not tools and any(_ids(message, "tool_use", "id") for message in messages):
        yield "tools: requests which include tool_use or tool_result blocks must define tools"
    if not tools and request.get("tool_choice", {}).get("type") in ("any", "tool"):
        yield "tool_choice: may only be specified while providing tools"


@learned(
    error("langchain-ai/langchain#31696", "2025-06-21", "at least one message"),
    error("tailcallhq/forgecode#1872", "2025-11-08", "no blanks at the end"),
    error("cortexkit/magic-context#511", "2026-09-23", "the user last, from Claude 4.6 on"),
)
def _end(messages: list[dict[str, Any]], ready: bool) -> Violations:
    if not messages:
        if ready:
            yield "messages: at least one message is required"
        return
    last = messages[-1]
    if last["role"] != "assistant":
        return
    content = last["content"]
    text = content if isinstance(content, str) else content[-1].get("text", "")
    if text != text.rstrip():
        yield "messages: final assistant content cannot end with trailing whitespace"
    is_paused = not isinstance(content, str) and any(block["type"] in _HOSTED_CALLS for block in content)
    if ready and not is_paused:
        yield "messages: must end with a user message"


def _ids(message: dict[str, Any], kind: str, key: str) -> list[str]:
    content = message["content"]
    return [] if isinstance(content, str) else [block[key] for block in content if block["type"] == kind]


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
