"""Read items of OpenAI's Responses API as tools keep them: one by one, including types Oakleaf never requests.

Consecutive items the model produced become one answer, with the evidence OpenAI expects back. This module does not know
files, times or models.
"""

from __future__ import annotations

from typing import Any

from oakleaf.core.codec import json_text
from oakleaf.core.entries import Evidence
from oakleaf.core.messages import Message, Part, ToolCall
from oakleaf.ingest.records import LossReport
from oakleaf.wire import PROVIDERS, Answer
from oakleaf.wire.openai_responses import NAME
from oakleaf.wire.openai_responses.parse import parse_reply
from oakleaf.wire.parsing import parse_base64, parse_tool_call
from oakleaf_importers.formats.json_values import UNEXPECTED_SHAPE

Item = dict[str, Any]

CALL_ARGUMENTS = {
    "custom_tool_call": "input",
    "tool_search_call": "arguments",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
"""Tool calls besides `function_call`, and the field that holds the arguments of each."""
OUTPUT_TYPES = {"function_call_output", "tool_search_output", *(f"{kind}_output" for kind in CALL_ARGUMENTS)}
HOSTED_TOOLS = {
    "web_search_call": "a search the provider ran",
    "file_search_call": "a search the provider ran",
    "code_interpreter_call": "code the provider ran",
    "computer_call": "a computer the provider used",
    "mcp_call": "an MCP call the provider made",
    "mcp_list_tools": "a list of MCP tools the provider fetched",
    "mcp_approval_request": "an MCP call the provider asked approval for",
}


class AnswerBuilder:
    """Collects consecutive items of the model into one answer."""

    def __init__(self, losses: LossReport) -> None:
        self.losses = losses
        self._parts: list[Part] = []
        self._proofs: dict[str, dict[str, Any]] = {}

    def add(self, item: Item) -> bool:
        """Add an item of the model, or count a lost item; return False for an item of another origin."""
        kind = item.get("type", "message")
        if not isinstance(kind, str):
            return False
        if kind in HOSTED_TOOLS or kind == "image_generation_call" or kind in CALL_ARGUMENTS:
            self._add_tool_item(kind, item)
            return True
        if kind not in ("reasoning", "function_call") and item.get("role") != "assistant":
            return False
        try:
            self._add_item(item)
        except UNEXPECTED_SHAPE as error:
            self.losses.misread("a part of an answer of unknown shape", str(error))
        return True

    @property
    def is_open(self) -> bool:
        """Whether the builder holds items of an unfinished answer."""
        return bool(self._parts)

    def finish(self) -> Answer | None:
        """Return the answer so far, if any, and start the next answer."""
        parts, proofs = tuple(self._parts), self._proofs
        self._parts, self._proofs = [], {}
        if not parts:
            return None
        return Answer(Message("assistant", parts), evidence=Evidence(NAME, proofs) if proofs else None)

    def _add_item(self, item: Item) -> None:
        answer = parse_reply(item)
        proofs = {} if answer.evidence is None else answer.evidence.parts
        encrypted = item.get("encrypted_content") if item.get("type") == "reasoning" else None
        if isinstance(encrypted, str) and encrypted and not proofs:  # older versions of Codex wrote no ids
            proofs = {"0": {"encrypted_content": encrypted}}
            self.losses.add("encrypted reasoning without its id: it is kept, but not sent to OpenAI again")
        for index, part in enumerate(answer.message.parts):
            proof = proofs.get(str(index), {})
            if proof and all(isinstance(value, str) for value in proof.values()):
                self._proofs[str(len(self._parts))] = proof
            self._parts.append(part)

    def _add_tool_item(self, kind: str, item: Item) -> None:
        if kind in CALL_ARGUMENTS:
            call = _read_call(kind, item)
            if call is None:
                self.losses.misread("a tool call without an id or a name", kind)
            else:
                self._parts.append(call)
        elif kind == "image_generation_call" and isinstance(item.get("result"), str):
            try:
                self._parts.append(parse_base64(item["result"], "image/png"))
            except UNEXPECTED_SHAPE as error:
                self.losses.add("an image that cannot be read", str(error))
        else:
            self.losses.add(
                HOSTED_TOOLS.get(kind, "an image that cannot be read"), str(item.get("id") or kind)
            )


def is_input_item(item: Item) -> bool:
    """Whether the item is an input, an instruction or a tool result."""
    kind = item.get("type", "message")
    return isinstance(kind, str) and (kind == "message" or kind in OUTPUT_TYPES)


def read_input_item(item: Item, losses: LossReport) -> list[Message]:
    """Convert an input, an instruction or a tool result; count an unreadable item as lost."""
    kind = item.get("type", "message")
    try:
        return _read_message(item, losses) if kind == "message" else [_read_output(kind, item)]
    except UNEXPECTED_SHAPE as error:
        losses.misread("a message of unknown shape", str(error))
    return []


def _read_message(item: Item, losses: LossReport) -> list[Message]:
    """Convert an input or an instruction; an unreadable piece is counted alone."""
    pieces = item.get("content")
    try:
        return PROVIDERS[NAME].parse_messages([item])
    except UNEXPECTED_SHAPE:
        if not isinstance(pieces, list) or len(pieces) < 2:
            raise
    readable = []
    for piece in pieces:
        try:
            PROVIDERS[NAME].parse_messages([{**item, "content": [piece]}])
            readable.append(piece)
        except UNEXPECTED_SHAPE as error:
            losses.misread("a piece of a message that cannot be read", str(error))
    return PROVIDERS[NAME].parse_messages([{**item, "content": readable}]) if readable else []


def _read_output(kind: str, item: Item) -> Message:
    """Convert a tool result; output other than text and known parts is kept as JSON text."""
    output = item.get("tools" if kind == "tool_search_output" else "output")
    result = {"type": "function_call_output", "call_id": item.get("call_id"), "output": output}
    try:
        return PROVIDERS[NAME].parse_messages([result])[0]
    except UNEXPECTED_SHAPE:
        return PROVIDERS[NAME].parse_messages([{**result, "output": json_text(output)}])[0]


def _read_call(kind: str, item: Item) -> ToolCall | None:
    call_id = item.get("call_id") or (item.get("id") if kind == "local_shell_call" else None)
    name = item.get("name") if kind == "custom_tool_call" else kind.removesuffix("_call")
    if not isinstance(call_id, str) or not isinstance(name, str):
        return None
    arguments = item.get(CALL_ARGUMENTS[kind])
    # A custom tool takes free text instead of JSON.
    return parse_tool_call(call_id, name, {"input": arguments} if kind == "custom_tool_call" else arguments)
