"""Values that no store can keep are refused with an error of ours before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import (
    Attachment,
    BranchSummary,
    Compaction,
    Evidence,
    Media,
    Message,
    Note,
    Session,
    Settings,
    Store,
    Text,
    ToolCall,
    ToolResult,
    Uncompaction,
    assistant,
    draw_tree,
    errors,
    tool_result,
    user,
)
from oakleaf.core.drafts import Draft
from oakleaf.errors import NotJson
from support.store_contents import contents, in_a_call, open_store, payloads, refusal_of, reopened


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield from open_store(request.param, tmp_path)


class Colour(Enum):
    RED = object()


BAD_VALUES: dict[str, Any] = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "bytes": b"bytes",
    "bytearray": bytearray(b"x"),
    "set": {1, 2},
    "frozenset": frozenset({1}),
    "object": object(),
    "class": int,
    "function": len,
    "enum": Colour.RED,
    "complex": 1j,
    "int key": {1: "x"},
    "none key": {None: "x"},
    "tuple key": {(1, 2): "x"},
    "bytes key": {b"k": "x"},
    "surrogate": "half \ud83d",
    "surrogate key": {"\udc00": 1},
    "too great an integer": 1 << 20_000,
    "struct": Text("a part is no JSON"),
    "generator": (n for n in range(3)),
}


def _ring() -> dict[str, Any]:
    ring: dict[str, Any] = {}
    ring["me"] = [ring]
    return ring


PLACES: dict[str, Callable[[Store, oakleaf.Session, Any], object]] = {
    "arguments": lambda store, s, v: s.append(in_a_call({"v": v})),
    "deep in arguments": lambda store, s, v: s.append(in_a_call({"a": [{"b": [v]}]})),
    "message details": lambda store, s, v: s.append([Message("user", (Text("x"),), details={"v": v})]),
    "result": lambda store, s, v: s.append([*in_a_call({}), tool_result("c", {"v": v})]),
    "result details": lambda store, s, v: s.append([*in_a_call({}), tool_result("c", "r", details={"v": v})]),
    "state": lambda store, s, v: s.append([*in_a_call({}), tool_result("c", "r", state={"v": v})]),
    "note": lambda store, s, v: s.note({"v": v}),
    "note state": lambda store, s, v: s.note(state={"v": v}),
    "limits": lambda store, s, v: s.set(limits={"v": v}),
    "seed": lambda store, s, v: store.start(seeds=in_a_call({"v": v})),
    "initial state": lambda store, s, v: store.start(state={"v": v}),
    "spec": lambda store, s, v: store.start(spec={"v": v}),
    "policy": lambda store, s, v: store.start(policy={"v": v}),
    "turn_started": lambda store, s, v: s.turn("x", policy={"v": v}).__enter__(),
    "second of two": lambda store, s, v: s.append([user("good"), Note({"v": v})]),
    "evidence": lambda store, s, v: s.log.append([Draft(user("x"), evidence=Evidence("i", {"0": {"v": v}}))]),
}


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

    def test_nesting_is_kept_to_a_depth_and_refused_below(self, store: Store) -> None:
        accepted = deep = 0
        for depth in (1, 50, 150, 199, 250, 900, 5_000):
            value: Any = "bottom"
            for n in range(depth):
                value = {"d": value} if n % 2 else [value]
            session = store.start()
            try:
                session.append(in_a_call({"deep": value}))
                session.append([tool_result("c", "r", state={"deep": value})])
                accepted = depth
            except errors.NotJson:
                deep += 1
                continue
            again = reopened(store, session)
            assert payloads(again)[1].calls[0].arguments == {"deep": value}
            assert again.state == {"deep": value}
            assert again.verify() == []
        assert accepted >= 150
        assert deep


class TestShape:
    @pytest.mark.parametrize("place", PLACES)
    def test_values_beyond_json_are_refused_before_a_write(self, store: Store, place: str) -> None:
        session = store.start()
        session.append([user("before"), assistant("yes")])
        written, raw = [], []
        for name, value in {**BAD_VALUES, "ring": _ring()}.items():
            before = contents(store)
            try:
                PLACES[place](store, session, value)
            except errors.InvalidValue:
                assert contents(store) == before, f"{name} was refused, but something was written"
            except Exception as error:  # noqa: BLE001 - collected, to name all of them at once
                raw.append(f"{name}: {error!r}")
            else:
                written.append(name)
                session = store.start()
        assert written == [], "taken, though no store can keep them"
        assert raw == [], "refused with an error that is not ours"
        session.append([user("the handle goes on")])
        assert list(store.verify()) == []

    def test_half_a_character_is_refused_in_every_text(self, store: Store) -> None:
        half = "half \ud83d"
        session = store.start()
        items: dict[str, list[Any]] = {
            "text": [user(half)],
            "reasoning": [user("x"), assistant(oakleaf.Reasoning(half))],
            "call id": [user("x"), assistant(ToolCall(half, "t"))],
            "name": [user("x"), assistant(ToolCall("c", half))],
            "malformed": [user("x"), assistant(ToolCall("c", "t", malformed=half))],
            "result": [*in_a_call({}), tool_result("c", half)],
            "summary": [Compaction(half, 1)],
            "prompt": [Settings(prompt=half)],
            "media name": [user(Attachment(b"x", "image/png", half))],
        }
        for where, item in items.items():
            refusal = refusal_of(store, lambda item=item: session.append(item))  # type: ignore[misc]
            assert isinstance(refusal, errors.InvalidText), where

    @pytest.mark.parametrize(
        "item",
        [
            user(Text(5)),  # type: ignore[arg-type]
            user(Text(None)),  # type: ignore[arg-type]
            user(Text(b"bytes")),  # type: ignore[arg-type]
            assistant(ToolCall(5, "t")),  # type: ignore[arg-type]
            assistant(ToolCall("c", None)),  # type: ignore[arg-type]
            assistant(ToolCall("c", "t", [1])),  # type: ignore[arg-type]
            assistant(ToolCall("c", "t", "{}")),  # type: ignore[arg-type]
            assistant(ToolCall("c", "t", malformed=5)),  # type: ignore[arg-type]
            Message("user", "text"),  # type: ignore[arg-type]
            Message("user", ("text",)),  # type: ignore[arg-type]
            Message("user", 5),  # type: ignore[arg-type]
            Message("robot", ()),  # type: ignore[arg-type]
            Message("tool", ()),
            Message("user", (Text("x"),), is_new="yes"),  # type: ignore[arg-type]
            Message("user", (Text("x"),), timestamp="now"),  # type: ignore[arg-type]
            Message("user", (Text("x"),), timestamp=float("nan")),  # type: ignore[arg-type]
            Message("user", (Text("x"),), details=[1]),  # type: ignore[arg-type]
            Message("user", (ToolCall("c", "t"),)),
            user(Media(5, "image/png", 1)),  # type: ignore[arg-type]
            Settings(tools="abc"),  # type: ignore[arg-type]
            Settings(model=5),  # type: ignore[arg-type]
            Settings(limits=[1]),  # type: ignore[arg-type]
            Note([1]),  # type: ignore[arg-type]
            Note({}, "state"),  # type: ignore[arg-type]
            Compaction(5, 1),  # type: ignore[arg-type]
            Compaction("s", "1"),  # type: ignore[arg-type]
            Compaction("s", float("inf")),  # type: ignore[arg-type]
            Uncompaction("1"),  # type: ignore[arg-type]
            BranchSummary("s", 1, b"id"),  # type: ignore[arg-type]
            Message,
            None,
            5,
            "text",
            ["x"],
            {"role": "robot", "content": "x"},
            {},
        ],
        ids=lambda item: repr(item)[:60],
    )
    def test_a_payload_of_the_wrong_shape_never_poisons_the_log(self, store: Store, item: Any) -> None:
        """msgspec checks types when it reads, not when it writes: what was written so could never be read again."""
        session = store.start()
        session.append([user("before")])
        refusal_of(store, lambda: session.append([item]))
        assert payloads(reopened(store, session)) == [user("before")]

    @pytest.mark.parametrize(
        "result",
        [
            ToolResult("c", outcome="maybe"),  # type: ignore[arg-type]
            ToolResult("c", "text"),  # type: ignore[arg-type]
            ToolResult("c", (5,)),  # type: ignore[arg-type]
            ToolResult("c", error="yes"),  # type: ignore[arg-type]
            ToolResult("c", ends_turn=1),  # type: ignore[arg-type]
            ToolResult("c", details=[1]),  # type: ignore[arg-type]
            ToolResult("c", details="x"),  # type: ignore[arg-type]
            ToolResult("c", (Media("0" * 64, "image/png", "big"),)),  # type: ignore[arg-type]
        ],
        ids=repr,
    )
    def test_a_result_of_the_wrong_shape_is_refused(self, store: Store, result: ToolResult) -> None:
        session = store.start()
        session.append(in_a_call({}))
        refusal_of(store, lambda: session.append([Message("tool", (result,))]))
        assert reopened(store, session).verify() == []
