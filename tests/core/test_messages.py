"""Messages are values: equal content, equal value."""

from __future__ import annotations

import pytest

from oakleaf import (
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.core.messages import check_message
from oakleaf.errors import InvalidMessage, NotJson


def test_equal_content_makes_equal_values() -> None:
    assert user("a", "b") == Message("user", (Text("a"), Text("b")))
    assert assistant("x", ToolCall("1", "t", {"a": 1})) == assistant("x", ToolCall("1", "t", {"a": 1}))


def test_a_message_never_changes() -> None:
    with pytest.raises(AttributeError):
        user("a").role = "system"  # type: ignore[misc]


@pytest.mark.parametrize(
    "message",
    [
        Message("robot", ()),  # type: ignore[arg-type]
        system(ToolCall("1", "t")),
        user(ToolCall("1", "t")),
        user(Reasoning("hm")),
        assistant(ToolResult("1")),
        Message("tool", (Text("x"),)),
        Message("tool", ()),
    ],
    ids=lambda message: f"{message.role} with {[type(part).__name__ for part in message.parts]}",
)
def test_a_role_takes_only_own_parts(message: Message) -> None:
    with pytest.raises(InvalidMessage):
        check_message(message)


def test_a_constructor_refuses_foreign_parts() -> None:
    with pytest.raises(InvalidMessage, match="dict"):
        user({"type": "text"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ({"z": 1, "a": [1.5, None]}, '{"z":1,"a":[1.5,null]}'),
        ([1, "two"], '[1,"two"]'),
        (["one", "two"], '["one","two"]'),
        (None, "null"),
        (41, "41"),
        ([], "[]"),
    ],
)
def test_a_result_takes_text_or_any_json(content: object, text: str) -> None:
    assert tool_result("c", content).results[0].content == (Text(text),)


def test_a_result_takes_parts() -> None:
    media = Media("0" * 64, "image/png", 3)
    assert tool_result("c", ["see", media]).results[0].content == (Text("see"), media)
    assert tool_result("c", media).results[0].content == (media,)
    assert tool_result("c").results[0].content == ()


def test_a_result_that_json_cannot_hold_is_refused() -> None:
    for value in (float("nan"), {1: 2}, object(), {"a": {1, 2}}, b"bytes"):
        with pytest.raises(NotJson):
            tool_result("c", value)


def test_the_state_update_rides_in_the_details() -> None:
    result = tool_result("c", "x", state={"a": 1}, details={"mine": 2}).results[0]
    assert result.details == {"mine": 2, "state": {"a": 1}}
