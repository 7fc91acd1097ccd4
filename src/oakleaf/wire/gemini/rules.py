"""The rules of Google's Gemini API for a history, each with the sources it was learned from.

Knows requests, and not how Oakleaf makes them: it judges the projection independently.
A history at rest may be empty or end with the model; one that is `ready` to be sent may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from oakleaf.wire.base import Request
from oakleaf.wire.sources import documentation, error, learned, sdk, unconfirmed

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
# Of both alphabets, with or without padding.
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/_-]{4})*(?:[A-Za-z0-9+/_-]{2}(?:==)?|[A-Za-z0-9+/_-]{3}=?)?")
_SIGNATURE = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_INLINE_LIMIT = 100 * 1024 * 1024  # of base64, for the whole request
# As base64, without the letter that the byte after them has a part in.
_FIRST_BYTES = {
    "image/png": ("iVBORw0KGg",),
    "image/jpeg": ("/9j/",),
    "image/webp": ("UklGR",),
    "application/pdf": ("JVBERi",),
    "audio/wav": ("UklGR",),
    "audio/mp3": ("SUQz", "//"),
    "audio/ogg": ("T2dnU",),
    "audio/flac": ("ZkxhQ",),
}
_OTHER_TYPES = ("audio", "video", "text")
"""Kinds of media of which Gemini takes more types than Oakleaf writes."""
_HOSTED = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
_ALLOWED_PARTS = {
    "user": {"text", "inlineData", "fileData", "functionResponse"},
    "model": {"text", "inlineData", "fileData", "functionCall", *_HOSTED},
    "system": {"text"},
}
_DATA = {"text", "inlineData", "fileData", "functionCall", "functionResponse", *_HOSTED}
_METADATA = {
    *("videoMetadata", "mediaResolution", "partMetadata"),
    *("speechMetadata", "mediaProcessing", "audioTranscription"),
}
_MORE = {
    "user": _METADATA,
    "model": {"thought", "thoughtSignature", *_METADATA},
    "system": set(),
}
_FIELDS = {
    "functionCall": {"id", "name", "args", "partialArgs", "willContinue"},
    "functionResponse": {"id", "name", "response", "parts", "scheduling", "willContinue"},
}

Violations = Iterator[str]


def violations(request: Request, *, ready: bool = False) -> list[str]:
    """Return the provider's objections, each with a path; empty if the history is accepted."""
    contents = request.get("contents")
    if not isinstance(contents, list):
        return ["contents: not a list"]
    problems = [*_system(request), *_order(contents)]
    for index, content in enumerate(contents):
        problems.extend(_content(f"contents[{index}]", content))
    if not problems:  # pairs can only be checked if all shapes are valid
        problems.extend(_pairs(contents))
        problems.extend(_ids(contents))
        problems.extend(_signatures(contents))
        problems.extend(_tools(request, contents))
        problems.extend(_end(contents) if ready else ())
    return problems


@learned(
    sdk("google-genai 3.1.0, types.py", "2026-11", "one content without a role"),
)
def _system(request: Request) -> Violations:
    for key in ("messages", "system"):
        if key in request:
            yield f"{key}: no such field"
    if "systemInstruction" in request:
        system = request["systemInstruction"]
        if not isinstance(system, dict) or not system.keys() <= {"role", "parts"}:
            yield "systemInstruction: not a content"
        else:
            yield from _parts("systemInstruction.parts", system.get("parts"), "system")


@learned(
    error("google-gemini/gemini-cli#11814", "2025-10-23", "no call at the beginning"),
)
def _order(contents: list[Any]) -> Violations:
    if contents and isinstance(contents[0], dict) and contents[0].get("role") == "model":
        yield "contents[0]: the first content must be the user's"


@learned(
    error("the-open-agent/openagent#1666", "2025-10-19", "the two roles"),
)
def _content(path: str, content: Any) -> Violations:
    if not isinstance(content, dict) or content.get("role") not in ("user", "model"):
        yield f"{path}: please use a valid role: user, model"
    elif content.keys() != {"role", "parts"}:
        yield f"{path}: fields are role and parts, not {', '.join(map(str, content))}"
    else:
        yield from _parts(f"{path}.parts", content["parts"], content["role"])


@learned(
    error("anomalyco/opencode#28669", "2026-05-21", "at least one part"),
)
def _parts(path: str, parts: Any, role: str) -> Violations:
    if not isinstance(parts, list) or not parts:
        yield f"{path}: must include at least one part"
        return
    for index, part in enumerate(parts):
        yield from _part(f"{path}[{index}]", part, role)


@learned(
    error("router-for-me/CLIProxyAPI#1292", "2026-01-28", "one kind of data, no empty text"),
    error("Chevey339/kelivo#543", "2026-04-30", "no unknown names"),
)
def _part(path: str, part: Any, role: str) -> Violations:
    kinds = _DATA & part.keys() if isinstance(part, dict) else set()
    if not kinds and role == "model" and isinstance(part, dict) and part.keys() - _MORE["model"]:
        return  # of a newer API: what the model sent, it accepts
    if len(kinds) != 1 or not kinds <= _ALLOWED_PARTS[role]:
        yield f"{path}: holds exactly one of {', '.join(sorted(_ALLOWED_PARTS[role]))}"
        return
    [kind] = kinds
    more = part.keys() - kinds
    if not more <= _MORE[role]:
        yield f"{path}: unknown names {', '.join(sorted(more - _MORE[role]))}"
    elif "thoughtSignature" in more and not _matches(_SIGNATURE, part["thoughtSignature"]):
        yield f"{path}.thoughtSignature: base64 decoding failed"
    if kind == "text":
        if not isinstance(part["text"], str) or (not part["text"] and "thoughtSignature" not in more):
            yield f"{path}.text: must be text and not empty"
    elif kind == "inlineData":
        yield from _inline(f"{path}.inlineData", part[kind])
    elif kind == "fileData":
        if not isinstance(part[kind], dict) or not isinstance(part[kind].get("fileUri"), str):
            yield f"{path}.fileData.fileUri: required"
    elif kind in _HOSTED:
        if not isinstance(part[kind], dict):
            yield f"{path}.{kind}: must be an object"
    else:
        yield from _function(f"{path}.{kind}", kind, part[kind])


@learned(
    error("ogkalu2/comic-translate#399", "2026-01-28", "the types"),
    documentation(
        "blog.google/innovation-and-ai/technology/developers-tools/gemini-api-new-file-limits",
        "2026-11",
        "100 MB of base64",
    ),
    sdk("google-genai 3.1.0, _common.py", "2026-11", "both alphabets of base64"),
    unconfirmed("the first bytes of a type"),
)
def _inline(path: str, blob: Any) -> Violations:
    if not isinstance(blob, dict) or not {"mimeType", "data"} <= blob.keys() <= {
        "mimeType",
        "data",
        "displayName",
    }:
        yield f"{path}: not a blob with mimeType and data"
        return
    mime, data = blob["mimeType"], blob["data"]
    if not _matches(_BASE64, data):
        yield f"{path}.data: base64 decoding failed"
    elif mime not in _FIRST_BYTES:
        if not isinstance(mime, str) or mime.partition("/")[0] not in _OTHER_TYPES:
            yield f"{path}.mimeType: unsupported MIME type {mime!r}"
    elif not data.replace("-", "+").replace("_", "/").startswith(_FIRST_BYTES[mime]):
        yield f"{path}.data: unable to process as {mime}"
    elif len(data) > _INLINE_LIMIT:
        yield f"{path}.data: request payload exceeds 100 MB: {len(data)} > {_INLINE_LIMIT}"


@learned(
    error("kaitranntt/ccs#25", "2025-11-30", "the letters of a name"),
    sdk("google-genai 3.1.0, types.py", "2026-11", "the fields"),
)
def _function(path: str, kind: str, value: Any) -> Violations:
    if not isinstance(value, dict) or not value.keys() <= _FIELDS[kind]:
        yield f"{path}: not an object with {', '.join(sorted(_FIELDS[kind]))}"
        return
    if not _matches(_NAME, value.get("name")):
        yield f"{path}.name: must match ^[a-zA-Z_][a-zA-Z0-9_.:-]{{0,63}}$"
    if "id" in value and (not isinstance(value["id"], str) or not value["id"]):
        yield f"{path}.id: must be text and not empty"
    key = "args" if kind == "functionCall" else "response"
    if not isinstance(value.get(key), dict):
        yield f"{path}.{key}: must be an object"


@learned(
    error("microsoft/vscode#299295", "2026-03-04", "as many responses as calls"),
    error("google-gemini/gemini-cli#26486", "2026-05-05", "a call after the user or a response"),
    unconfirmed("the same order, responses first"),
)
def _pairs(contents: list[dict[str, Any]]) -> Violations:
    """The calls of a content are answered at the head of the very next, as many and in the same order."""
    nothing: dict[str, Any] = {"parts": []}
    for index, (before, content) in enumerate(pairwise([nothing, *contents, nothing])):
        path = f"contents[{index}]"
        calls, answered = _values(before, "functionCall"), _values(content, "functionResponse")
        if len(calls) != len(answered):
            yield (
                f"{path}: the number of function response parts ({len(answered)}) must be equal to "
                f"the number of function call parts ({len(calls)}) of the function call turn"
            )
            continue
        for call, response in zip(calls, answered, strict=True):
            if (call["name"], call.get("id")) != (response["name"], response.get("id")):
                yield f"{path}: function response {response['name']} does not answer {call['name']}"
        if any("functionResponse" not in part for part in content["parts"][: len(answered)]):
            yield f"{path}: function responses must come first"


@learned(
    unconfirmed("unique ids"),
)
def _ids(contents: list[dict[str, Any]]) -> Violations:
    ids: set[str] = set()
    for index, content in enumerate(contents):
        for call in _values(content, "functionCall"):
            if call.get("id") in ids:
                yield f"contents[{index}]: ids must be unique, {call['id']} is not"
            ids.update({call["id"]} if "id" in call else ())


@learned(
    error("nanbingxyz/5ire#405", "2026-02-04", "from Gemini 3 on"),
    error("nearai/ironclaw#1510", "2026-03-21", "the first call of a step"),
)
def _signatures(contents: list[dict[str, Any]]) -> Violations:
    """From Gemini 3 on the first call of each step of the current turn must be signed."""
    for index in range(len(contents) - 1, -1, -1):
        content = contents[index]
        if content["role"] == "user" and not _values(content, "functionResponse"):
            return
        calls = [part for part in content["parts"] if "functionCall" in part]
        if calls and "thoughtSignature" not in calls[0]:
            yield f"contents[{index}]: function call is missing a thought_signature"


@learned(
    error("kaitranntt/ccs#25", "2025-11-30", "the letters of a name"),
    error("UKGovernmentBEIS/inspect_ai#2462", "2025-09-12", "functions for a mode"),
    unconfirmed("unique names, functions for calls in the history"),
)
def _tools(request: Request, contents: list[dict[str, Any]]) -> Violations:
    """A history with function calls declares functions; names are legal and unique; a mode has functions to choose from."""
    declared = [one for tool in request.get("tools") or [] for one in tool.get("functionDeclarations") or []]
    names = [one["name"] for one in declared]
    for name in names:
        if not _matches(_NAME, name):
            yield f"tools: invalid function name {name!r}"
    if len(set(names)) < len(names):
        yield "tools: duplicate function declaration found"
    if not declared and any(_values(content, "functionCall") for content in contents):
        yield "tools: a history with function calls must declare functions"
    if not declared and "functionCallingConfig" in request.get("toolConfig", {}):
        yield "toolConfig: function calling config is set without function_declarations"


@learned(
    error("pipecat-ai/pipecat#5821", "2026-09-17", "the user last, on newer models"),
    unconfirmed("at least one content"),
)
def _end(contents: list[dict[str, Any]]) -> Violations:
    if not contents:
        yield "contents: is not specified"
    elif contents[-1]["role"] != "user":
        yield "contents: please ensure that requests end with a user role"


def _values(content: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [part[kind] for part in content["parts"] if kind in part]


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
