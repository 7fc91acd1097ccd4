"""Items of OpenAI's Responses API as tools keep them: one by one, with kinds that no request of ours has.

Knows which items a model made and which it was given, and puts what it made in a row together as one answer, with the
evidence OpenAI wants back. Does not know files, times or models.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ..core.codec import to_json
from ..core.entries import Evidence
from ..core.messages import Message, Part, ToolCall
from ..wire.openai_responses.request import NAME, parse_messages, parse_reply
from ..wire.shapes import parse_base64, parse_tool_call
from .jsonl import UNEXPECTED_SHAPE
from .records import LossReport

Item = dict[str, Any]

CALLS = {
    "custom_tool_call": "input",
    "tool_search_call": "arguments",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
"""Calls beside a function's, and where each says what it wants."""
GIVEN = {"function_call_output", "tool_search_output", *(f"{kind}_output" for kind in CALLS)}
HOSTED = {
    "web_search_call": "a search the provider made itself",
    "file_search_call": "a search the provider made itself",
    "code_interpreter_call": "code the provider ran itself",
    "computer_call": "a computer the provider used",
    "mcp_call": "a call the provider made itself",
    "mcp_list_tools": "a list of tools the provider fetched",
    "mcp_approval_request": "a call the provider asked leave for",
}


class Said(Struct, frozen=True):
    """An answer that is complete as far as it was told."""

    message: Message
    evidence: Evidence | None


class AnswerBuilder:
    """The answer that grows while items of the model go by."""

    def __init__(self, losses: LossReport) -> None:
        self.losses = losses
        self._parts: list[Part] = []
        self._proofs: dict[str, dict[str, Any]] = {}

    def add(self, item: Item) -> bool:
        """Whether the model made it; then it is part of the answer, or counted as lost."""
        kind = item.get("type", "message")
        if not isinstance(kind, str):
            return False
        if kind in HOSTED or kind == "image_generation_call" or kind in CALLS:
            self._add_other(kind, item)
            return True
        if kind not in ("reasoning", "function_call") and item.get("role") != "assistant":
            return False
        try:
            self._add_item(item)
        except UNEXPECTED_SHAPE as error:
            self.losses.add("a part of an answer of no shape we know", str(error))
        return True

    def finish(self) -> Said | None:
        """What there is of an answer; the next item begins another."""
        parts, proofs = tuple(self._parts), self._proofs
        self._parts, self._proofs = [], {}
        if not parts:
            return None
        return Said(Message("assistant", parts), Evidence(NAME, proofs) if proofs else None)

    def _add_item(self, item: Item) -> None:
        found = parse_reply(item)
        proofs = {} if found.evidence is None else found.evidence.parts
        sealed = item.get("encrypted_content") if item.get("type") == "reasoning" else None
        if isinstance(sealed, str) and sealed and not proofs:  # Codex long wrote no ids
            proofs = {"0": {"encrypted_content": sealed}}
            self.losses.add("encrypted reasoning without its id: it is kept, and not shown to OpenAI again")
        for index, part in enumerate(found.message.parts):
            proof = proofs.get(str(index), {})
            if proof and all(isinstance(value, str) for value in proof.values()):
                self._proofs[str(len(self._parts))] = proof
            self._parts.append(part)

    def _add_other(self, kind: str, item: Item) -> None:
        if kind in CALLS:
            call = _other_call(kind, item)
            if call is None:
                self.losses.add("a call without an id or a name", kind)
            else:
                self._parts.append(call)
        elif kind == "image_generation_call" and isinstance(item.get("result"), str):
            try:
                self._parts.append(parse_base64(item["result"], "image/png"))
            except UNEXPECTED_SHAPE as error:
                self.losses.add("a picture that cannot be read", str(error))
        else:
            self.losses.add(HOSTED.get(kind, "a picture that cannot be read"), str(item.get("id") or kind))


def read_input_item(item: Item, losses: LossReport) -> list[Message]:
    """What the model was given: inputs, instructions, results. Nothing, and counted, if it is none of them."""
    kind = item.get("type", "message")
    try:
        if isinstance(kind, str) and kind in GIVEN:
            return [_result(kind, item)]
        if kind == "message":
            return parse_messages([item])
        losses.add("an item of a kind we do not know", str(kind))
    except UNEXPECTED_SHAPE as error:
        losses.add("a message of no shape we know", str(error))
    return []


def _result(kind: str, item: Item) -> Message:
    """A result; what is neither text nor parts we know is kept as JSON text."""
    output = item.get("tools" if kind == "tool_search_output" else "output")
    plain = {"type": "function_call_output", "call_id": item.get("call_id"), "output": output}
    try:
        return parse_messages([plain])[0]
    except UNEXPECTED_SHAPE:
        return parse_messages([{**plain, "output": _text(output)}])[0]


def _other_call(kind: str, item: Item) -> ToolCall | None:
    call_id = item.get("call_id") or (item.get("id") if kind == "local_shell_call" else None)
    name = item.get("name") if kind == "custom_tool_call" else kind.removesuffix("_call")
    if not isinstance(call_id, str) or not isinstance(name, str):
        return None
    asked = item.get(CALLS[kind])
    # Free text where others have JSON.
    return parse_tool_call(call_id, name, {"input": asked} if kind == "custom_tool_call" else asked)


def _text(value: object) -> str:
    try:
        return to_json(value, "output").decode()
    except UNEXPECTED_SHAPE:
        return repr(value)
