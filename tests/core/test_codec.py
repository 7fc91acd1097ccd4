"""Canonical bytes and chain ids: equal ids mean equal histories."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakleaf import Compaction, Note, Settings, ToolCall, assistant, tool_result, user
from oakleaf.core.codec import (
    chain_id,
    check_text,
    decode,
    encode,
    from_json,
    round_trip,
    to_json,
)
from oakleaf.core.drafts import Draft, build_entries
from oakleaf.core.entries import Payload, Unknown, kind_of
from oakleaf.core.turns import Cursor
from oakleaf.errors import InvalidMessage, InvalidText, NotJson, NotText

texts = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(texts, json_values, max_size=5)
payloads: st.SearchStrategy[Payload] = st.one_of(
    texts.map(user),
    st.builds(lambda t, n, a: assistant(t, ToolCall(n, "tool", a)), texts, texts, objects),
    st.builds(lambda n, c, d: tool_result(n, c, details=d), texts, json_values, objects),
    objects.map(Note),
    st.builds(Settings, prompt=texts, tools=st.lists(texts).map(tuple)),
    st.builds(Compaction, texts, st.integers(1, 9)),
)


@given(payloads)
def test_written_payloads_read_back_equal(payload: Payload) -> None:
    body = encode(payload)
    again = decode(kind_of(payload), body)
    assert again == payload
    assert encode(again) == body


@given(json_values)
def test_json_is_kept_unchanged_and_in_order(value: object) -> None:
    body = to_json(value, "here")
    assert from_json(body) == value
    assert json.loads(body) == value
    assert to_json(from_json(body), "here") == body


def test_the_order_of_keys_is_kept_and_counts() -> None:
    one, two = (encode(assistant(ToolCall("c", "t", a))) for a in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert one != two
    assert list(decode("message", two).calls[0].arguments) == ["b", "a"]  # type: ignore[union-attr]


@given(st.lists(texts, min_size=2, max_size=6), st.integers(0, 5))
def test_an_id_tells_everything_before_it(words: list[str], spot: int) -> None:
    def ids(words: list[str]) -> list[bytes]:
        return [
            entry.entry_id
            for entry in build_entries(Cursor(), [Draft(user(word)) for word in words], 1).entries
        ]

    spot %= len(words)
    changed = [word + "!" if n == spot else word for n, word in enumerate(words)]
    one, two = ids(words), ids(changed)
    assert one[:spot] == two[:spot]
    assert all(a != b for a, b in zip(one[spot:], two[spot:], strict=True))


def test_an_id_depends_on_parent_kind_turn_step_and_body() -> None:
    base = chain_id(b"p", "message", 1, 1, b"{}")
    assert base == chain_id(b"p", "message", 1, 1, b"{}")
    others = {
        chain_id(*change)
        for change in [
            (b"q", "message", 1, 1, b"{}"),
            (b"p", "note", 1, 1, b"{}"),
            (b"p", "message", 2, 1, b"{}"),
            (b"p", "message", 1, 2, b"{}"),
            (b"p", "message", 1, 1, b"[]"),
        ]
    }
    assert len(others) == 5
    assert base not in others
    one, two = (
        build_entries(Cursor(), [Draft(user("x"), model=m, finish=m)], at).entries[0]
        for m, at in (("a", 1), ("b", 2))
    )
    assert one.entry_id == two.entry_id


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        {"a": float("-inf")},
        {1: "int key"},
        {"s": {1}},
        {"b": b"bytes"},
        {"o": object()},
        10**5000,
    ],
    ids=["nan", "inf", "inner inf", "int key", "set", "bytes", "object", "huge int"],
)
def test_values_outside_json_are_refused(value: object) -> None:
    for payload in (Note({"value": value}), assistant(ToolCall("c", "t", {"value": value}))):
        with pytest.raises(NotJson):
            round_trip(payload, encode(payload))


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    "call",
    [ToolCall("c", "t", "{}"), ToolCall(1, "t"), ToolCall("c", None)],  # type: ignore[arg-type]
    ids=str,
)
def test_a_call_of_other_types_is_refused(call: ToolCall) -> None:
    message = assistant("a", call)
    with pytest.raises(InvalidMessage):
        round_trip(message, encode(message))


def test_later_changes_of_arguments_leave_the_entry_alone() -> None:
    arguments: dict[str, Any] = {"paths": ["a"], "limits": {"lines": nested(20)}}
    batch = build_entries(Cursor(), [Draft(assistant(ToolCall("c", "t", arguments)))], 1)
    arguments["paths"].append("b")
    arguments["limits"].clear()
    [call] = batch.cursor.open_calls
    assert call.call.arguments == {"paths": ["a"], "limits": {"lines": nested(20)}}


def test_endless_nesting_is_refused() -> None:
    ring: dict[str, object] = {}
    ring["self"] = ring
    with pytest.raises(NotJson):
        encode(Note(ring))


@pytest.mark.parametrize("value", [5, b"x", ["x"]])
def test_other_values_are_refused_in_place_of_text(value: Any) -> None:
    with pytest.raises(NotText, match=re.escape(f"title is {value!r}; expected text")):
        check_text(value, "title")


def test_half_a_character_is_refused_and_nul_is_kept() -> None:
    with pytest.raises(InvalidText):
        encode(user("\ud800"))
    assert decode("message", encode(user("a\0b"))) == user("a\0b")


def test_an_unknown_kind_is_read_whole_and_never_written() -> None:
    payload = decode("hologram", b'{"depth":3}')
    assert payload == Unknown("hologram", b'{"depth":3}')
    with pytest.raises(InvalidMessage, match="hologram"):
        encode(payload)
