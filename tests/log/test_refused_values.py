"""Values that no store can keep are refused with an error of ours before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

import oakleaf
from oakleaf import Session, ToolCall, assistant, draw_tree, user
from oakleaf.errors import NotJson
from oakleaf.store import Store


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"bottom": 1}
    for _ in range(depth):
        value = {"deeper": value}
    return value


NESTED: dict[str, Any] = {
    "note": lambda deep: [oakleaf.Note(deep)],
    "settings": lambda deep: [oakleaf.Settings(limits=deep)],
    "arguments": lambda deep: [user("q"), assistant(ToolCall("c", "t", deep))],
    "message details": lambda deep: [oakleaf.Message("user", (oakleaf.Text("q"),), details=deep)],
    "result details": lambda deep: [
        user("q"),
        assistant(ToolCall("c", "t")),
        oakleaf.tool_result("c", "r", details=deep),
    ],
}


class TestNesting:
    @pytest.mark.parametrize("place", NESTED)
    @pytest.mark.parametrize("depth", [250, 900])
    def test_a_value_nested_too_deep_is_refused_in_every_place(
        self, session: Session, place: str, depth: int
    ) -> None:
        """Some were kept, and one of them in any session made searching and drawing the store impossible."""
        with pytest.raises(NotJson, match="nested deeper than 200"):
            session.append(NESTED[place](nested(depth)))
        assert len(session.path()) == 1

    @pytest.mark.parametrize("place", NESTED)
    def test_a_value_at_the_limit_can_be_drawn_found_and_verified(
        self, store: Store, session: Session, place: str
    ) -> None:
        session.append(NESTED[place](nested(190)))
        assert "1" in draw_tree(session)
        store.search("help")
        assert session.verify() == []
