"""The rules of OpenAI's Responses API for a stateless history, each with the sources it was learned from.

Knows requests, and not how Oakleaf makes them: it judges the projection independently.
A history at rest may be empty or end with the assistant; one that is `ready` to be sent may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from oakleaf.wire.base import Request
from oakleaf.wire.sources import error, learned, sdk, unconfirmed

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_IMAGE = re.compile(
    r"data:image/(?:png;base64,(?=iVBORw0KGg)|jpeg;base64,(?=/9j/)|gif;base64,(?=R0lGOD)|webp;base64,(?=UklGR))"
    + _BASE64
)
_PDF = re.compile(r"data:application/pdf;base64,(?=JVBERi)" + _BASE64)
_FILE = re.compile(r"data:(?!application/pdf)[\w.+-]+/[\w.+-]+(?:;[\w.=-]+)*;base64," + _BASE64)
_LINK = re.compile(r"https?://\S+")
_STATUS = ("completed", "incomplete", "in_progress")
_FIELDS = {
    "message": {"type", "id", "role", "content", "status", "phase"},
    "function_call": {"type", "id", "call_id", "name", "namespace", "arguments", "status", "caller", "async"},
    "custom_tool_call": {"type", "id", "call_id", "name", "namespace", "input", "caller", "async"},
    "custom_tool_call_output": {"type", "id", "call_id", "output"},
    "function_call_output": {"type", "id", "call_id", "output", "status", "name", "namespace", "caller"},
    "reasoning": {"type", "id", "summary", "encrypted_content", "content", "status"},
}
_ID_BEGINS = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fc",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctc",
    "reasoning": "rs",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
}
_OF_OTHERS = ("text", "thinking", "tool_use", "tool_result")
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_OF_THE_USER = ("mcp_approval_response", "computer_call_output", "local_shell_call_output")
_ALLOWED_PARTS = {
    "user": {"input_text", "input_image", "input_file", "input_audio"},
    "system": {"input_text"},
    "developer": {"input_text"},
    "assistant": {"output_text", "refusal"},
    "function_call_output": {"input_text", "input_image", "input_file"},
    "custom_tool_call_output": {"input_text", "input_image", "input_file"},
}
_PART_FIELDS = {
    "input_text": {"type", "text", "prompt_cache_breakpoint"},
    "output_text": {"type", "text", "annotations", "logprobs"},
    "refusal": {"type", "refusal"},
    "input_image": {"type", "image_url", "file_id", "detail", "prompt_cache_breakpoint"},
    "input_audio": {"type", "input_audio"},
    "input_file": {
        "type",
        "file_data",
        "file_id",
        "file_url",
        "filename",
        "detail",
        "prompt_cache_breakpoint",
    },
}

Violations = Iterator[str]


def violations(request: Request, *, ready: bool = False) -> list[str]:
    """Return the provider's objections, each with a path; empty if the history is accepted."""
    items = request.get("input")
    if not isinstance(items, list):
        return ["input: not a list"]
    problems = [f"{key}: no such field, it is `input`" for key in ("messages", "system") if key in request]
    if not isinstance(request.get("instructions", ""), str):
        problems.append("instructions: must be text")
    for index, item in enumerate(items):
        problems.extend(_item(f"input[{index}]", item, is_stored=request.get("store") is not False))
    if not problems:  # pairs can only be checked if all shapes are valid
        problems.extend(_ids(items))
        problems.extend(_other_pairs(items))
        problems.extend(_pairs(items))
        problems.extend(_reasons(items))
        problems.extend(_tools(request, items))
        problems.extend(_end(items) if ready else ())
    return problems


def _kind(item: dict[str, Any]) -> Any:
    return item.get("type", "message")


_OF_CODEX = "internal_"
"""How the names of fields begin that Codex sends with its items, and its server accepts."""


@learned(
    error("openai/codex#33176", "2026-07-14", "the beginning of an id"),
    error("earendil-works/pi#1022", "2026-01-28", "the letters of an id"),
    error(
        "CopilotKit/CopilotKit#6117",
        "2026-07-23",
        "an id with a dash was refused, against the text of the error",
    ),
    sdk("openai 3.49.0, types/responses/response_input_item_param.py", "2026-11", "items and fields"),
)
def _item(path: str, item: Any, *, is_stored: bool) -> Violations:
    kind = _kind(item) if isinstance(item, dict) else None
    if not isinstance(kind, str):
        yield f"{path}: {kind!r} is not the type of an item"
        return
    begin = _ID_BEGINS.get(kind, "")
    if "id" in item and not (_matches(_ID, item["id"]) and item["id"].startswith(begin)):
        yield f"{path}.id: expected 1 to 64 characters that begin with {begin!r}"
    if kind in _OF_OTHERS:
        yield f"{path}: an item of type {kind!r} is another format's"
    if kind not in _FIELDS:  # of a tool that OpenAI runs, or of a newer API: what was sent once, it accepts
        return
    extra = [name for name in item.keys() - _FIELDS[kind] if not name.startswith(_OF_CODEX)]
    if extra:
        yield f"{path}: extra fields {', '.join(sorted(extra))}"
    if item.get("status") is not None and item["status"] not in _STATUS:
        yield f"{path}.status: {item['status']!r} is not one of {', '.join(_STATUS)}"
    if kind == "message":
        yield from _message(path, item)
    elif kind == "reasoning":
        yield from _reasoning(path, item, is_stored=is_stored)
    else:
        yield from _tool(path, kind, item)


@learned(
    sdk("openai 3.49.0, types/responses/response_input_item_param.py", "2026-11", "roles and fields"),
)
def _message(path: str, item: dict[str, Any]) -> Violations:
    role = item.get("role")
    if role not in ("user", "system", "developer", "assistant"):
        yield f"{path}.role: {role!r} is not one of user, system, developer, assistant"
        return
    if role != "assistant" and "phase" in item:
        yield f"{path}.phase: only of the assistant"
    yield from _content(f"{path}.content", item.get("content"), role)
    if "id" in item and role == "assistant" and ("status" not in item or isinstance(item["content"], str)):
        yield f"{path}: an output message with an id has a status and a list of content"


@learned(
    error("AnswerDotAI/fastllm#45", "2026-06-08", "64 letters of a call id"),
    sdk("openai 3.49.0, types/responses/response_function_tool_call_param.py", "2026-11", "the fields"),
    unconfirmed("64 letters of a name"),
)
def _tool(path: str, kind: str, item: dict[str, Any]) -> Violations:
    if not _matches(_ID, item.get("call_id")):
        yield f"{path}.call_id: must be 1 to 64 of a-z, A-Z, 0-9, _ and -"
    if kind == "function_call":
        if not _matches(_NAME, item.get("name")):
            yield f"{path}.name: must match ^[a-zA-Z0-9_-]{{1,64}}$"
        if not isinstance(item.get("arguments"), str):
            yield f"{path}.arguments: must be text"
    elif kind == "custom_tool_call":
        if not _is_text(item.get("name")) or not isinstance(item.get("input"), str):
            yield f"{path}: must have a name and an input of text"
    elif not isinstance(item.get("output"), str):
        yield from _content(f"{path}.output", item.get("output"), kind)


@learned(
    sdk("openai 3.49.0, types/responses/response_reasoning_item_param.py", "2026-11", "the fields"),
    error("coder/xum#59", "2025-10-07", "encrypted content where nothing is stored"),
)
def _reasoning(path: str, item: dict[str, Any], *, is_stored: bool) -> Violations:
    if not is_stored and "id" in item and not _is_text(item.get("encrypted_content")):
        yield f"{path}.encrypted_content: required where nothing is stored"
    summary = item.get("summary")
    if not isinstance(summary, list):
        yield f"{path}.summary: must be a list"
        return
    for index, piece in enumerate(summary):
        if not isinstance(piece, dict) or piece.keys() != {"type", "text"} or piece["type"] != "summary_text":
            yield f"{path}.summary[{index}]: not a summary_text"
        elif not isinstance(piece["text"], str):
            yield f"{path}.summary[{index}].text: must be text"


@learned(
    sdk(
        "openai 3.49.0, types/responses/response_input_message_content_list_param.py",
        "2026-11",
        "text or parts",
    ),
    unconfirmed("not empty"),
)
def _content(path: str, content: Any, holder: str) -> Violations:
    if isinstance(content, str):
        if not content:
            yield f"{path}: must not be empty"
    elif not isinstance(content, list):
        yield f"{path}: neither text nor a list of parts"
    elif not content:
        yield f"{path}: must not be empty"
    else:
        for index, part in enumerate(content):
            yield from _part(f"{path}[{index}]", part, holder)


@learned(
    sdk("openai 3.49.0, types/responses/response_input_content_param.py", "2026-11", "parts and fields"),
    error("yuji-hatakeyama/opencode-gpt-imagegen#82", "2026-09-12", "the four types of images"),
    unconfirmed("no empty text"),
)
def _part(path: str, part: Any, holder: str) -> Violations:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _ALLOWED_PARTS[holder]:
        allowed = ", ".join(sorted(_ALLOWED_PARTS[holder]))
        yield f"{path}: invalid value {kind!r}, supported in {holder} are {allowed}"
        return
    if not part.keys() <= _PART_FIELDS[kind]:
        yield f"{path}: extra fields {', '.join(sorted(part.keys() - _PART_FIELDS[kind]))}"
    if kind == "input_image":
        links = any(_matches(pattern, part.get("image_url")) for pattern in (_IMAGE, _LINK))
        if not links and not _is_text(part.get("file_id")):
            yield f"{path}.image_url: no link, and no base64 of a png, jpeg, gif or webp"
    elif kind == "input_file":
        yield from _file(path, part)
    elif kind == "input_audio":
        audio = part.get("input_audio")
        if not isinstance(audio, dict) or not _matches(re.compile(_BASE64), audio.get("data")):
            yield f"{path}.input_audio: no base64 of audio"
    else:
        key = "refusal" if kind == "refusal" else "text"
        if not _is_text(part.get(key)):
            yield f"{path}.{key}: must be text and not empty"
        if kind == "output_text" and not isinstance(part.get("annotations", []), list):
            yield f"{path}.annotations: must be a list"


@learned(
    sdk("openai 3.49.0, types/responses/response_input_file_param.py", "2026-11", "the fields"),
    unconfirmed("a name beside the bytes"),
)
def _file(path: str, part: dict[str, Any]) -> Violations:
    if _is_text(part.get("file_id")) or _matches(_LINK, part.get("file_url")):
        return
    if not _matches(_PDF, part.get("file_data")) and not _matches(_FILE, part.get("file_data")):
        yield f"{path}.file_data: no base64 of a file"
    if not _is_text(part.get("filename")):
        yield f"{path}.filename: required with file_data"


@learned(
    error("earendil-works/pi#5151", "2026-05-28", "unique items"),
    unconfirmed("unique call ids"),
)
def _ids(items: list[dict[str, Any]]) -> Violations:
    """No item and no call twice."""
    for key in ("id", "call_id"):
        ids: set[str] = set()
        for index, item in enumerate(items):
            if item.get(key) is not None and (key == "id" or not _kind(item).endswith("_output")):
                if item[key] in ids:
                    yield f"input[{index}]: duplicate item found with {key} {item[key]}"
                ids.add(item[key])


@learned(
    error("Azure/azure-sdk-for-python#46092", "2026-04-02", "an output for each call"),
    error("can1357/oh-my-pi#106", "2026-02-18", "a call for each output"),
    unconfirmed("the outputs right after the calls, in the same order"),
)
def _pairs(items: list[dict[str, Any]]) -> Violations:
    """The outputs of a batch follow the model's items in call order; nothing else follows."""
    waiting: list[str] = []
    is_answering = False
    for index, item in enumerate(items):
        path = f"input[{index}]"
        if _kind(item) in _OUTPUTS:
            if not waiting or item["call_id"] != waiting[0]:
                yield f"{path}: no function_call that is next to be answered has {item['call_id']}"
            waiting, is_answering = [call for call in waiting if call != item["call_id"]], True
            continue
        if waiting and (is_answering or not _is_output(item)):
            yield f"{path}: no tool output found for function call {', '.join(waiting)}"
            waiting = []
        is_answering = False
        if _kind(item) in _CALLS:
            waiting.append(item["call_id"])
    if waiting:
        yield f"input: no tool output found for function call {', '.join(waiting)}"


@learned(
    unconfirmed("an output for each call of another tool"),
)
def _other_pairs(items: list[dict[str, Any]]) -> Violations:
    """Each call of another tool, such as a shell, has an output after the call."""
    others = [
        (index, item["call_id"], _kind(item).endswith("_output"))
        for index, item in enumerate(items)
        if _kind(item) not in (*_CALLS, *_OUTPUTS) and isinstance(item.get("call_id"), str)
    ]
    calls: set[str] = set()
    outputs = {call_id: index for index, call_id, is_output in others if is_output}
    for index, call_id, is_output in others:
        if is_output and call_id not in calls:
            yield f"input[{index}]: no call found for the output {call_id}"
        elif not is_output and outputs.get(call_id, -1) < index:
            yield f"input[{index}]: no output found for the call {call_id}"
        calls.update(() if is_output else {call_id})


@learned(
    error("openclaw/openclaw#19582", "2026-02-18", "an item after reasoning"),
)
def _reasons(items: list[dict[str, Any]]) -> Violations:
    for index, item in enumerate(items):
        after = items[index + 1] if index + 1 < len(items) else None
        if _kind(item) == "reasoning" and (after is None or not _is_output(after)):
            yield f"input[{index}]: reasoning was provided without its required following item"


@learned(
    unconfirmed("names, tools for calls in the history and for a choice, as in Chat Completions"),
)
def _tools(request: Request, items: list[dict[str, Any]]) -> Violations:
    """A history with tool calls defines tools; names of tools are legal and unique; a choice has tools to choose from."""
    tools = request.get("tools") or []
    names = [tool["name"] for tool in tools if tool.get("type") == "function"]
    for name in names:
        if not _matches(_NAME, name):
            yield f"tools: {name!r} must match ^[a-zA-Z0-9_-]{{1,64}}$"
    if len(set(names)) < len(names):
        yield "tools: names must be unique"
    if not tools and any(_kind(item) in _CALLS for item in items):
        yield "tools: a history with function calls must define tools"
    if not tools and request.get("tool_choice", "auto") not in ("auto", "none"):
        yield "tool_choice: must be specified with tools"


def _is_output(item: dict[str, Any]) -> bool:
    """Whether the model made an item."""
    kind = _kind(item)
    return item.get("role") == "assistant" if kind == "message" else kind not in (*_OUTPUTS, *_OF_THE_USER)


@learned(
    unconfirmed("the user or an output last"),
)
def _end(items: list[dict[str, Any]]) -> Violations:
    if not items:
        yield "input: at least one item is required"
    elif items[-1].get("role") != "user" and _kind(items[-1]) not in (*_OUTPUTS, *_OF_THE_USER):
        yield "input: must end with a user message or a function_call_output"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
