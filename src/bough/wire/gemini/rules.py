"""The rules of Google's Gemini API for a history, as its documentation and its refusals state them.

Knows requests, and nothing of how Bough makes them: it is the judge of the projection, not a part of it.
A history at rest may be empty or end with the model; one that is `ready` to be sent may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from ..base import Request

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_SIGNATURE = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_INLINE_LIMIT = 20 * 1024 * 1024  # of base64, for the whole request
_FIRST_BYTES = {
    "image/png": ("iVBORw0KGgo",),
    "image/jpeg": ("/9j/",),
    "image/webp": ("UklGR",),
    "application/pdf": ("JVBERi0",),
    "audio/wav": ("UklGR",),
    "audio/mp3": ("SUQz", "//"),
    "audio/ogg": ("T2dnUw",),
    "audio/flac": ("ZkxhQ",),
}
_MAY_HOLD = {
    "user": {"text", "inlineData", "functionResponse"},
    "model": {"text", "functionCall"},
    "system": {"text"},
}
_DATA = {"text", "inlineData", "functionCall", "functionResponse"}
_FIELDS = {
    "functionCall": {"id", "name", "args"},
    "functionResponse": {"id", "name", "response"},
}

Found = Iterator[str]


def violations(request: Request, *, ready: bool = False) -> list[str]:
    """What the provider would refuse, each with its place; empty if it takes the history."""
    contents = request.get("contents")
    if not isinstance(contents, list):
        return ["contents: not a list"]
    found = [*_system(request), *_order(contents)]
    for index, content in enumerate(contents):
        found.extend(_content(f"contents[{index}]", content))
    if not found:  # pairs can only be judged where the shapes are right
        found.extend(_pairs(contents))
        found.extend(_ids(contents))
        found.extend(_signatures(contents))
        found.extend(_end(contents) if ready else ())
    return found


def _system(request: Request) -> Found:
    for key in ("messages", "system"):
        if key in request:
            yield f"{key}: no such field"
    if "systemInstruction" in request:
        system = request["systemInstruction"]
        if not isinstance(system, dict) or not system.keys() <= {"role", "parts"}:
            yield "systemInstruction: not a content"
        else:
            yield from _parts("systemInstruction.parts", system.get("parts"), "system")


def _order(contents: list[Any]) -> Found:
    roles = [content.get("role") if isinstance(content, dict) else None for content in contents]
    if roles and roles[0] == "model":
        yield "contents[0]: the first content must be the user's"
    for index, (before, role) in enumerate(pairwise(roles), 1):
        if role == before:
            yield f"contents[{index}]: roles must alternate, a second {role} in a row"


def _content(where: str, content: Any) -> Found:
    if not isinstance(content, dict) or content.get("role") not in ("user", "model"):
        yield f"{where}: please use a valid role: user, model"
    elif content.keys() != {"role", "parts"}:
        yield f"{where}: fields are role and parts, not {', '.join(map(str, content))}"
    else:
        yield from _parts(f"{where}.parts", content["parts"], content["role"])


def _parts(where: str, parts: Any, role: str) -> Found:
    if not isinstance(parts, list) or not parts:
        yield f"{where}: must include at least one part"
        return
    for index, part in enumerate(parts):
        yield from _part(f"{where}[{index}]", part, role)


def _part(where: str, part: Any, role: str) -> Found:
    held = _DATA & part.keys() if isinstance(part, dict) else set()
    if len(held) != 1 or not held <= _MAY_HOLD[role]:
        yield f"{where}: holds exactly one of {', '.join(sorted(_MAY_HOLD[role]))}"
        return
    [kind] = held
    more = part.keys() - held
    if not more <= ({"thoughtSignature"} if role == "model" else set()):
        yield f"{where}: unknown names {', '.join(sorted(more))}"
    elif more and not _matches(_SIGNATURE, part["thoughtSignature"]):
        yield f"{where}.thoughtSignature: base64 decoding failed"
    if kind == "text":
        if not isinstance(part["text"], str) or (not part["text"] and not more):
            yield f"{where}.text: must be text and not empty"
    elif kind == "inlineData":
        yield from _inline(f"{where}.inlineData", part[kind])
    else:
        yield from _function(f"{where}.{kind}", kind, part[kind])


def _inline(where: str, blob: Any) -> Found:
    if not isinstance(blob, dict) or blob.keys() != {"mimeType", "data"}:
        yield f"{where}: not a blob with mimeType and data"
        return
    mime, data = blob["mimeType"], blob["data"]
    if not _matches(_BASE64, data):
        yield f"{where}.data: base64 decoding failed"
    elif mime not in _FIRST_BYTES:
        yield f"{where}.mimeType: unsupported MIME type {mime!r}"
    elif not data.startswith(_FIRST_BYTES[mime]):
        yield f"{where}.data: unable to process as {mime}"
    elif len(data) > _INLINE_LIMIT:
        yield f"{where}.data: request payload exceeds 20 MB: {len(data)} > {_INLINE_LIMIT}"


def _function(where: str, kind: str, value: Any) -> Found:
    if not isinstance(value, dict) or not value.keys() <= _FIELDS[kind]:
        yield f"{where}: not an object with {', '.join(sorted(_FIELDS[kind]))}"
        return
    if not _matches(_NAME, value.get("name")):
        yield f"{where}.name: must match ^[a-zA-Z_][a-zA-Z0-9_.:-]{{0,63}}$"
    if "id" in value and (not isinstance(value["id"], str) or not value["id"]):
        yield f"{where}.id: must be text and not empty"
    key = "args" if kind == "functionCall" else "response"
    if not isinstance(value.get(key), dict):
        yield f"{where}.{key}: must be an object"


def _pairs(contents: list[dict[str, Any]]) -> Found:
    """The calls of a content are answered at the head of the very next, as many and in the same order."""
    nothing: dict[str, Any] = {"parts": []}
    for index, (before, content) in enumerate(pairwise([nothing, *contents, nothing])):
        where = f"contents[{index}]"
        asked, answered = _held(before, "functionCall"), _held(content, "functionResponse")
        if len(asked) != len(answered):
            yield (
                f"{where}: the number of function response parts ({len(answered)}) must be equal to "
                f"the number of function call parts ({len(asked)}) of the function call turn"
            )
            continue
        for call, response in zip(asked, answered, strict=True):
            if (call["name"], call.get("id")) != (response["name"], response.get("id")):
                yield f"{where}: function response {response['name']} does not answer {call['name']}"
        if any("functionResponse" not in part for part in content["parts"][: len(answered)]):
            yield f"{where}: function responses must come first"


def _ids(contents: list[dict[str, Any]]) -> Found:
    seen: set[str] = set()
    for index, content in enumerate(contents):
        for call in _held(content, "functionCall"):
            if call.get("id") in seen:
                yield f"contents[{index}]: ids must be unique, {call['id']} is not"
            seen.update({call["id"]} if "id" in call else ())


def _signatures(contents: list[dict[str, Any]]) -> Found:
    """From Gemini 3 on the first call of each step of the current turn must be signed."""
    for index in range(len(contents) - 1, -1, -1):
        content = contents[index]
        if content["role"] == "user" and not _held(content, "functionResponse"):
            return
        calls = [part for part in content["parts"] if "functionCall" in part]
        if calls and "thoughtSignature" not in calls[0]:
            yield f"contents[{index}]: function call is missing a thought_signature"


def _end(contents: list[dict[str, Any]]) -> Found:
    if not contents:
        yield "contents: is not specified"
    elif contents[-1]["role"] != "user":
        yield "contents: please ensure that requests end with a user role"


def _held(content: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [part[kind] for part in content["parts"] if kind in part]


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
