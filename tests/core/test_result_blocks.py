"""Bytes in a tool's result become attachments, in whatever shape a tool returns them."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from oakleaf import Attachment, Media, Text, ToolCall, assistant, tool_result, user
from oakleaf.store import Store
from oakleaf.wire import PROVIDERS

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
ENCODED = base64.b64encode(PNG).decode()
IMAGE = {"type": "image", "data": ENCODED, "mimeType": "image/png"}
TEXT = {"type": "text", "text": "The chart"}


class McpObject:
    """As an object of the MCP SDK: pydantic, by its aliases."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def model_dump(self, *, mode: str, by_alias: bool, exclude_none: bool) -> dict[str, Any]:
        assert (mode, by_alias, exclude_none) == ("json", True, True)
        return self.data


RESULTS: dict[str, tuple[object, list[object]]] = {
    "an MCP image": (IMAGE, [PNG]),
    "MCP blocks": ([TEXT, IMAGE], ["The chart", PNG]),
    "an MCP result": ({"content": [TEXT, IMAGE], "isError": False}, ["The chart", PNG]),
    "an MCP object": (McpObject({"content": [IMAGE], "structuredContent": {"n": 1}}), [PNG, '{"n":1}']),
    "an MCP resource": (
        {"type": "resource", "resource": {"blob": ENCODED, "mimeType": "image/png", "uri": "x:y"}},
        [PNG],
    ),
    "a block of Anthropic": (
        [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED}}],
        [PNG],
    ),
    "a part of Gemini": ({"inlineData": {"mimeType": "image/png", "data": ENCODED}}, [PNG]),
    "a bare string": (ENCODED, [PNG]),
    "a string in JSON": ({"b64_json": ENCODED}, ['{"b64_json":"', PNG, '"}']),
    "JSON text": (
        json.dumps([{"type": "blob", "data": ENCODED[8:], "mimeType": "application/zip"}]),
        ['[{"type": "blob", "data": "', PNG[6:], '", "mimeType": "application/zip"}]'],
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_bytes_in_a_result_are_stored_once_and_shown(store: Store, name: str) -> None:
    content, expected = RESULTS[name]
    session = store.start("a")
    session.append([user("q"), assistant(ToolCall("c", "draw")), tool_result("c", content)])
    again = store.session(session.session_id)
    parts = again.path()[-1].message.results[0].content
    assert [store.blob(part) if isinstance(part, Media) else part.text for part in parts] == expected
    body = store.backend.entries(session.session_id)[-1].entry.body
    assert ENCODED[8:72].encode() not in body
    assert again.verify() == []
    if PNG in expected:
        for provider in PROVIDERS:
            assert ENCODED in json.dumps(again.messages(provider))


@pytest.mark.parametrize(
    "content",
    [
        {"sha256": "ab" * 32, "mimeType": "text/plain"},
        {"token": "x" * 64},
        "a" * 64,
        {"data": "A" * 65, "mimeType": "image/png"},
        {"content": "a page", "isError": True, "more": 1},
        [TEXT],
    ],
)
def test_text_of_no_file_stays(content: object) -> None:
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    assert tool_result("c", content).results[0].content == (Text(text),)
    assert not tool_result("c", content).results[0].error


def test_a_failed_mcp_tool_is_an_error() -> None:
    result = tool_result("c", {"content": [TEXT, IMAGE], "isError": True}).results[0]
    assert result.error
    assert result.content == (Text("The chart"), Attachment(PNG, "image/png"))


@pytest.mark.parametrize("unit", ['"', "a", '"a', "a" * 70 + '"', '"data":"', '"mimeType":"'])
def test_a_long_result_is_searched_in_linear_time(unit: str) -> None:
    def seconds(length: int) -> float:
        text = '"' + unit * (length // len(unit))
        took = []
        for _ in range(3):
            began = time.process_time()
            tool_result("c", text)
            took.append(time.process_time() - began)
        return min(took)

    assert seconds(200_000) < 10 * max(seconds(50_000), 0.001)
