"""The rules of OpenAI's Responses API for a stateless history, from its documentation and its error messages.

Knows requests, and not how Bough makes them: it judges the projection independently.
A history at rest may be empty or end with the assistant; one that is `ready` to be sent may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..base import Request

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_IMAGE = re.compile(
    r"data:image/(?:png;base64,(?=iVBORw0KGg)|jpeg;base64,(?=/9j/)|gif;base64,(?=R0lGOD)|webp;base64,(?=UklGR))"
    + _BASE64
)
_PDF = re.compile(r"data:application/pdf;base64,(?=JVBERi)" + _BASE64)
_LINK = re.compile(r"https?://\S+")
_STATUS = ("completed", "incomplete", "in_progress")
_FIELDS = {
    "message": {"type", "id", "role", "content", "status", "phase"},
    "function_call": {"type", "id", "call_id", "name", "namespace", "arguments", "status"},
    "function_call_output": {"type", "id", "call_id", "output", "status"},
    "reasoning": {"type", "id", "summary", "encrypted_content", "content", "status"},
}
_ID_BEGINS = {"message": "msg", "function_call": "fc", "function_call_output": "fc", "reasoning": "rs"}
_ALLOWED_PARTS = {
    "user": {"input_text", "input_image", "input_file"},
    "system": {"input_text"},
    "developer": {"input_text"},
    "assistant": {"output_text", "refusal"},
    "function_call_output": {"input_text", "input_image", "input_file"},
}
_PART_FIELDS = {
    "input_text": {"type", "text"},
    "output_text": {"type", "text", "annotations", "logprobs"},
    "refusal": {"type", "refusal"},
    "input_image": {"type", "image_url", "file_id", "detail"},
    "input_file": {"type", "file_data", "file_id", "file_url", "filename", "detail"},
}

Violations = Iterator[str]


def violations(request: Request, *, ready: bool = False) -> list[str]:
    """Return what the provider would refuse, each with its path; empty if it accepts the history."""
    items = request.get("input")
    if not isinstance(items, list):
        return ["input: not a list"]
    problems = [f"{key}: no such field, it is `input`" for key in ("messages", "system") if key in request]
    if "instructions" in request and not _is_text(request["instructions"]):
        problems.append("instructions: must be text and not empty")
    for index, item in enumerate(items):
        problems.extend(_item(f"input[{index}]", item))
    if not problems:  # pairs can only be checked if all shapes are valid
        problems.extend(_ids(items))
        problems.extend(_pairs(items))
        problems.extend(_reasons(items))
        problems.extend(_end(items) if ready else ())
    return problems


def _kind(item: dict[str, Any]) -> Any:
    return item.get("type", "message")


def _item(path: str, item: Any) -> Violations:
    kind = _kind(item) if isinstance(item, dict) else None
    if kind not in _FIELDS:
        yield f"{path}: {kind!r} is not one of {', '.join(_FIELDS)}"
        return
    if not item.keys() <= _FIELDS[kind]:
        yield f"{path}: extra fields {', '.join(sorted(item.keys() - _FIELDS[kind]))}"
    if "id" in item and not (_matches(_ID, item["id"]) and item["id"].startswith(_ID_BEGINS[kind])):
        yield f"{path}.id: expected 1 to 64 characters that begin with {_ID_BEGINS[kind]!r}"
    if "status" in item and item["status"] not in _STATUS:
        yield f"{path}.status: {item['status']!r} is not one of {', '.join(_STATUS)}"
    if kind == "message":
        yield from _message(path, item)
    elif kind == "reasoning":
        yield from _reasoning(path, item)
    else:
        yield from _tool(path, kind, item)


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


def _tool(path: str, kind: str, item: dict[str, Any]) -> Violations:
    if not _matches(_ID, item.get("call_id")):
        yield f"{path}.call_id: must be 1 to 64 of a-z, A-Z, 0-9, _ and -"
    if kind == "function_call":
        if not _matches(_NAME, item.get("name")):
            yield f"{path}.name: must match ^[a-zA-Z0-9_-]{{1,64}}$"
        if not isinstance(item.get("arguments"), str):
            yield f"{path}.arguments: must be text"
    elif not isinstance(item.get("output"), str):
        yield from _content(f"{path}.output", item.get("output"), kind)


def _reasoning(path: str, item: dict[str, Any]) -> Violations:
    if "id" not in item:
        yield f"{path}.id: field required"
    if not _is_text(item.get("encrypted_content")):
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


def _part(path: str, part: Any, holder: str) -> Violations:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _ALLOWED_PARTS[holder]:
        allowed = ", ".join(sorted(_ALLOWED_PARTS[holder]))
        yield f"{path}: invalid value {kind!r}, supported in {holder} are {allowed}"
        return
    if not part.keys() <= _PART_FIELDS[kind]:
        yield f"{path}: extra fields {', '.join(sorted(part.keys() - _PART_FIELDS[kind]))}"
    if kind == "input_image":
        if not any(_matches(taken, part.get("image_url")) for taken in (_IMAGE, _LINK)):
            yield f"{path}.image_url: no link, and no base64 of a png, jpeg, gif or webp"
    elif kind == "input_file":
        yield from _file(path, part)
    else:
        key = "refusal" if kind == "refusal" else "text"
        if not _is_text(part.get(key)):
            yield f"{path}.{key}: must be text and not empty"
        if kind == "output_text" and not isinstance(part.get("annotations"), list):
            yield f"{path}.annotations: field required"


def _file(path: str, part: dict[str, Any]) -> Violations:
    if _is_text(part.get("file_id")) or _matches(_LINK, part.get("file_url")):
        return
    if not _matches(_PDF, part.get("file_data")):
        yield f"{path}.file_data: no base64 of a PDF"
    if not _is_text(part.get("filename")):
        yield f"{path}.filename: required with file_data"


def _ids(items: list[dict[str, Any]]) -> Violations:
    """No item and no call twice."""
    for key, kinds in (("id", tuple(_FIELDS)), ("call_id", ("function_call",))):
        seen: set[str] = set()
        for index, item in enumerate(items):
            if key in item and _kind(item) in kinds:
                if item[key] in seen:
                    yield f"input[{index}]: duplicate item found with {key} {item[key]}"
                seen.add(item[key])


def _pairs(items: list[dict[str, Any]]) -> Violations:
    """The outputs of a batch follow what the model said in one run, in call order, and nothing else does."""
    waiting: list[str] = []
    is_answering = False
    for index, item in enumerate(items):
        path = f"input[{index}]"
        if _kind(item) == "function_call_output":
            if not waiting or item["call_id"] != waiting[0]:
                yield f"{path}: no function_call that is next to be answered has {item['call_id']}"
            waiting, is_answering = [call for call in waiting if call != item["call_id"]], True
            continue
        if waiting and (is_answering or not _is_output(item)):
            yield f"{path}: no tool output found for function call {', '.join(waiting)}"
            waiting = []
        is_answering = False
        if _kind(item) == "function_call":
            waiting.append(item["call_id"])
    if waiting:
        yield f"input: no tool output found for function call {', '.join(waiting)}"


def _reasons(items: list[dict[str, Any]]) -> Violations:
    for index, item in enumerate(items):
        after = items[index + 1] if index + 1 < len(items) else None
        if _kind(item) == "reasoning" and (after is None or not _is_output(after)):
            yield f"input[{index}]: reasoning was provided without its required following item"


def _is_output(item: dict[str, Any]) -> bool:
    """Whether the model made it."""
    return _kind(item) in ("function_call", "reasoning") or item.get("role") == "assistant"


def _end(items: list[dict[str, Any]]) -> Violations:
    if not items:
        yield "input: at least one item is required"
    elif items[-1].get("role") != "user" and _kind(items[-1]) != "function_call_output":
        yield "input: must end with a user message or a function_call_output"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
