"""The rules of OpenAI's Chat Completions for a history, each with the sources it was learned from.

Knows requests, and not how Oakleaf makes them: it judges the projection independently.
A history at rest may be empty or end with the assistant; one that is `ready` to be sent may not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from oakleaf.wire.base import Request
from oakleaf.wire.sources import error, gateway, learned, sdk, unconfirmed

_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_IMAGE = re.compile(
    r"data:image/(?:png;base64,(?=iVBORw0KGg)|jpeg;base64,(?=/9j/)|gif;base64,(?=R0lGOD)|webp;base64,(?=UklGR))"
    + _BASE64
)
_PDF = re.compile(r"data:application/pdf;base64,(?=JVBERi)" + _BASE64)
_SOUND = re.compile(r"(?=.)" + _BASE64)
_LINK = re.compile(r"https?://\S+")
_ROLES = ("system", "developer", "user", "assistant", "tool")
_ALLOWED_PARTS = {
    "system": {"text"},
    "developer": {"text"},
    "user": {"text", "image_url", "file", "input_audio"},
    "assistant": {"text", "refusal"},
    "tool": {"text"},
}
_KINDS = {"tool_use", "tool_result"}.union(*_ALLOWED_PARTS.values())

Violations = Iterator[str]


def violations(request: Request, *, ready: bool = False) -> list[str]:
    """Return the provider's objections, each with a path; empty if the history is accepted."""
    messages = request.get("messages")
    if not isinstance(messages, list):
        return ["messages: not a list"]
    problems = ["system: no such field, it is a role"] if "system" in request else []
    for index, message in enumerate(messages):
        problems.extend(_message(f"messages[{index}]", message))
    if not problems:  # pairs can only be checked if all shapes are valid
        problems.extend(_pairs(messages))
        problems.extend(_tools(request, messages))
        problems.extend(_end(messages) if ready else ())
    return problems


@learned(
    sdk("openai 3.49.0, types/chat/chat_completion_message_param.py", "2026-11", "roles and fields"),
)
def _message(path: str, message: Any) -> Violations:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _ROLES:
        yield f"{path}: {role!r} is not one of {', '.join(_ROLES)}"
        return
    if role == "assistant":
        yield from _assistant(path, message)
        return
    yield from _content(f"{path}.content", message.get("content"), role)
    if role == "tool" and not _matches(_ID, message.get("tool_call_id")):
        yield f"{path}.tool_call_id: must be 1 to 40 of a-z, A-Z, 0-9, _ and -"


@learned(
    error("vercel/ai#13744", "2026-04-30", "content or calls"),
    sdk("openai 3.49.0, types/chat/chat_completion_assistant_message_param.py", "2026-11", "the fields"),
    unconfirmed("reasoning that is not empty, on compatible servers"),
)
def _assistant(path: str, message: dict[str, Any]) -> Violations:
    calls = message.get("tool_calls")
    for field in ("reasoning_content", "reasoning"):  # of compatible servers; OpenAI has no such field
        if message.get(field) is not None and not isinstance(message[field], str):
            yield f"{path}.{field}: must be text"
    if message.get("content") is not None:
        yield from _content(f"{path}.content", message["content"], "assistant")
    elif calls is None and not message.get("refusal"):
        yield f"{path}.content: is null, and there are no tool_calls"
    if calls is None:
        return
    if not isinstance(calls, list) or not calls:
        yield f"{path}.tool_calls: must be a list and not empty"
        return
    for index, call in enumerate(calls):
        yield from _call(f"{path}.tool_calls[{index}]", call)


@learned(
    error("agno-agi/agno#5382", "2025-11-11", "40 letters of an id"),
    error("mcp-use/mcp-use#94", "2025", "the letters of a name"),
    error("OpenHands/software-agent-sdk#2887", "2026-06-01", "llama-server and vLLM parse arguments"),
    error(
        "vllm-project/vllm#48922", "2026-07-17", "vLLM no longer refuses other arguments after this change"
    ),
    unconfirmed("the letters of an id"),
)
def _call(path: str, call: Any) -> Violations:
    fields = call.keys() if isinstance(call, dict) else set()
    if not {"id", "function"} <= fields or call.get("type", "function") != "function":
        yield f"{path}: must be of type function with id, type and function"
        return
    if not _matches(_ID, call["id"]):
        yield f"{path}.id: must be 1 to 40 of a-z, A-Z, 0-9, _ and -"
    function = call["function"]
    if not isinstance(function, dict) or function.keys() != {"name", "arguments"}:
        yield f"{path}.function: must have name and arguments"
        return
    if not _matches(_NAME, function["name"]):
        yield f"{path}.function.name: must match ^[a-zA-Z0-9_-]{{1,64}}$"
    if not _is_object(function["arguments"]):
        yield f"{path}.function.arguments: must be the text of a JSON object, which some servers parse"


@learned(
    gateway("BiFangKNT/mtga#68", "2026-02-28", "no empty text, where Claude is behind the gateway"),
)
def _content(path: str, content: Any, role: str) -> Violations:
    if isinstance(content, str):
        if not content and role != "tool":
            yield f"{path}: must not be empty"
    elif not isinstance(content, list):
        yield f"{path}: neither text nor a list of parts"
    elif not content:
        yield f"{path}: must not be empty"
    else:
        for index, part in enumerate(content):
            yield from _part(f"{path}[{index}]", part, role)


@learned(
    sdk("openai 3.49.0, types/chat/chat_completion_content_part_param.py", "2026-11", "parts by role"),
    error("marketing-factory/ai-filemetadata#18", "2025-02-17", "the four types of images"),
    sdk(
        "openai 3.49.0, types/chat/chat_completion_content_part_input_audio_param.py",
        "2026-11",
        "wav and mp3",
    ),
)
def _part(path: str, part: Any, role: str) -> Violations:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _ALLOWED_PARTS[role]:
        if not isinstance(kind, str) or kind in _KINDS:  # others are another server's
            yield f"{path}: a part of type {kind!r} cannot stand in a {role} message"
    elif kind not in part:
        yield f"{path}.{kind}: field required"
    elif kind in ("text", "refusal"):
        if not isinstance(part[kind], str) or not part[kind]:
            yield f"{path}.{kind}: must be text and not empty"
    elif kind == "image_url":
        url = part[kind].get("url") if isinstance(part[kind], dict) else None
        if not _matches(_IMAGE, url) and not _matches(_LINK, url):
            yield f"{path}.image_url.url: no link, and no base64 of a png, jpeg, gif or webp"
    elif kind == "input_audio":
        sound = part[kind] if isinstance(part[kind], dict) else {}
        if sound.get("format") not in ("wav", "mp3") or not _matches(_SOUND, sound.get("data")):
            yield f"{path}.input_audio: must be base64 of a wav or mp3"
    else:
        yield from _file(f"{path}.file", part[kind])


@learned(
    sdk("openai 3.49.0, types/chat/chat_completion_content_part_param.py", "2026-11", "the fields"),
    unconfirmed("a name and a PDF"),
)
def _file(path: str, file: Any) -> Violations:
    if not isinstance(file, dict):
        yield f"{path}: not an object"
    elif "file_id" not in file:
        if not _matches(_PDF, file.get("file_data")):
            yield f"{path}.file_data: no base64 of a PDF"
        if not isinstance(file.get("filename"), str) or not file["filename"]:
            yield f"{path}.filename: required with file_data"


@learned(
    error("spring-ai-community/spring-ai-session#44", "2026-09-09", "a result for each call"),
    error("diegosouzapw/OmniRoute#2893", "2026-05-29", "a call before each result"),
    unconfirmed("unique ids"),
)
def _pairs(messages: list[dict[str, Any]]) -> Violations:
    """Each call is answered once, before any other message; no id is used twice."""
    ids: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield f"{path}: no tool_calls before it ask for {message['tool_call_id']}"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield f"{path}: tool_calls before it were not answered: {', '.join(waiting)}"
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        for call_id in waiting:
            if call_id in ids:
                yield f"{path}: ids must be unique, {call_id} is not"
            ids.add(call_id)
    if waiting:
        yield f"messages: tool_calls at the end were not answered: {', '.join(waiting)}"


@learned(
    error("hackers365/xiaozhi-esp32-server-golang#268", "2026-05-24", "the letters of a name"),
    gateway(
        "earendil-works/pi#149", "2025-12-08", "tools for calls in the history; the API itself does not ask"
    ),
    error("dapr/dapr-agents#248", "2025-11-02", "tools for a choice"),
    unconfirmed("unique names, 64 letters, tools for parallel calls"),
)
def _tools(request: Request, messages: list[dict[str, Any]]) -> Violations:
    """A history with tool calls defines tools; names of tools are legal and unique; a choice has tools to choose from."""
    tools = request.get("tools") or []
    names = [tool["function"]["name"] for tool in tools if tool.get("type") == "function"]
    for name in names:
        if not _matches(_NAME, name):
            yield f"tools: {name!r} must match ^[a-zA-Z0-9_-]{{1,64}}$"
    if len(set(names)) < len(names):
        yield "tools: names must be unique"
    if not tools and any(message.get("tool_calls") for message in messages):
        yield "tools: a history with tool_calls must define tools"
    for key in ("tool_choice", "parallel_tool_calls"):
        if not tools and key in request:
            yield f"{key}: is only allowed when tools are specified"


@learned(
    gateway("aj47/SpeakMCP#1037", "2026-02-17", "the user last, where Claude is behind the gateway"),
    unconfirmed("at least one message"),
)
def _end(messages: list[dict[str, Any]]) -> Violations:
    if not messages:
        yield "messages: at least one message is required"
    elif messages[-1]["role"] not in ("user", "tool"):
        yield "messages: must end with a user or tool message"


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_object(text: Any) -> bool:
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
