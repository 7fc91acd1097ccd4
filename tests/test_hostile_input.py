"""Whatever is handed in is kept unchanged or refused with an error of ours before anything is written."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oakleaf
import oakleaf.core.media
import oakleaf.core.state
from oakleaf import (
    Attachment,
    BranchSummary,
    Compaction,
    Evidence,
    Media,
    Message,
    Note,
    Settings,
    Store,
    Text,
    ToolCall,
    ToolResult,
    Uncompaction,
    Usage,
    assistant,
    errors,
    system,
    tool_result,
    user,
)
from oakleaf.log.log import Draft

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"
thorough = settings(
    max_examples=3_000 if SOAK else 50,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    where = "memory:" if request.param == "memory" else tmp_path / "a.db"
    with oakleaf.open(where, synchronous="normal") as opened:
        yield opened


def contents(store: Store) -> object:
    """Everything the store holds, to see that a refusal wrote nothing."""
    inner: Any = store.backend
    if store.backend.url == "memory:":
        tables = inner.tables
        sessions = {session_id: repr(data) for session_id, data in tables.sessions.items()}
        return sessions, repr(tables.entries), repr(tables.branches), sorted(tables.blobs)
    with contextlib.closing(apsw.Connection(inner.url, flags=apsw.SQLITE_OPEN_READWRITE)) as reader:
        tables = ("session", "session_detail", "branch", "entry", "tool_call", "usage", "journal")
        tables += ("blob", "blob_use")
        return [reader.execute(f"select * from {table}").fetchall() for table in tables]


def reopened(store: Store, session: oakleaf.Session) -> oakleaf.Session:
    """The session as somebody else finds it: through another connection if there is a file."""
    if store.backend.url == "memory:":
        return store.session(session.session_id)
    with oakleaf.open(store.backend.url) as other:
        return _Read(other.session(session.session_id))  # type: ignore[return-value]


class _Read:
    """What a handle on another connection gave, read before that was closed."""

    def __init__(self, session: oakleaf.Session) -> None:
        entries, state, journal, row = session.path(), session.state, session.journal(), session.row
        model_calls, problems = session.model_calls(), session.verify()
        self.path = lambda: entries
        self.journal = lambda: journal
        self.model_calls = lambda: model_calls
        self.verify = lambda: problems
        self.state, self.row = state, row


def payloads(session: oakleaf.Session) -> list[Any]:
    return [entry.payload for entry in session.path()]


def refusal_of(store: Store, attempt: Callable[[], object]) -> errors.OakleafError:
    """The refusal, after looking that nothing was written and that the store goes on."""
    before = contents(store)
    with pytest.raises(errors.OakleafError) as excinfo:
        attempt()
    assert contents(store) == before, "refused, but something was written"
    assert list(store.verify()) == []
    return excinfo.value


def in_a_call(arguments: Any) -> list[Message]:
    return [user("x"), assistant(ToolCall("c", "t", arguments))]


# -- what is kept ----------------------------------------------------------------------------------

TEXTS = {
    "empty": "",
    "blank": " \t\n\r ",
    "nul": "a\0b\0",
    "control": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "rtl": "שלום ‮evil‬ مرحبا",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈🫠",
    "combining": "e\u0301\u0323 Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚",
    "not characters": "\ufffe\uffff\U0010ffff\ufeff",
    "line separators": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "sql": "'; drop table session; --",
    "sql 2": '" or 1=1; pragma user_version=9; /* */ ?1 :id $x @y %s {}',
    "json": '{"role":"user","parts":[]}\\u0000\\ud800"',
    "path": "../../etc/passwd\\..\\con",
    "html": "</script><script>alert(1)</script>",
    "almost a data url": "data:image/png;base64,AAAA",
    "base64 that is none": "data:image/png;base64," + "A" * 65,
    "looks like ours": '"type":"attachment" oakleaf-blob:00;image/png;1',
    "a long line": "x" * 300_000,
    "many lines": "zeile ü\n" * 20_000,
}


class TestKept:
    @pytest.mark.parametrize("name", TEXTS)
    def test_text_in_every_field_of_an_entry_comes_back(self, store: Store, name: str) -> None:
        text = TEXTS[name]
        identity = text[:512]
        written = [
            user(text),
            Message(
                "assistant",
                (
                    oakleaf.Reasoning(text),
                    Text(text),
                    ToolCall(identity, identity, {text: text, "l": [text]}),
                ),
                details={"d": text},
            ),
            tool_result(identity, text, details={text: {text: [text]}}, state={identity or "k": text}),
            assistant("", ToolCall("m", "n", malformed=text)),
            tool_result("m"),
            assistant(text),
            Settings(model=identity, prompt=text, prompt_patch=text, tools=(identity,), limits={text: text}),
            Note({text: text}, {identity or "k": [text, {"z": text}]}),
            BranchSummary(text, 1, text),
            Compaction(text, 2, files_read=(text,), files_changed=(text,)),
        ]
        session = store.start(seeds=[system(text)])
        session.append(written)
        again = reopened(store, session)
        assert payloads(again) == [system(text), *written]
        assert again.state == {identity or "k": [text, {"z": text}]}
        assert again.verify() == []

    @pytest.mark.parametrize("name", [name for name in TEXTS if "long" not in name and "many" not in name])
    def test_text_in_every_field_of_the_row_comes_back_or_is_refused(self, store: Store, name: str) -> None:
        text = TEXTS[name]
        fields = ("agent", "title", "conversation_id", "model", "trigger_type", "trigger_id", "owner")
        for field in fields:
            self.kept_or_refused(
                store, lambda f=field: store.start(**{f: text}), lambda row, f=field: getattr(row, f) or ""
            )
        tags = {text: text, "k": text}
        self.kept_or_refused(store, lambda: store.start(tags=tags), lambda row: row.tags.get(text, ""))
        self.kept_or_refused(store, lambda: store.start(tool_names=[text]), lambda row: row.tool_names[0])

    def kept_or_refused(
        self, store: Store, start: Callable[[], oakleaf.Session], read: Callable[[Any], str]
    ) -> None:
        before = contents(store)
        try:
            session = start()
        except errors.OakleafError:
            assert contents(store) == before
            return
        again = reopened(store, session)
        value = read(again.row)
        assert value in TEXTS.values() or value.startswith(("con_", "ses_"))
        assert again.verify() == []

    @pytest.mark.parametrize("name", [name for name in TEXTS if "long" not in name and "many" not in name])
    def test_sessions_are_found_by_any_text_and_nothing_else_is(self, store: Store, name: str) -> None:
        text = TEXTS[name]
        store.start(agent="other", tags={"k": "other"})
        try:
            session = store.start(agent=text or None, conversation_id=text or None, tags={text: text})
        except errors.OakleafError:
            return
        queries: list[dict[str, Any]] = [
            {"tag": (text, text)},
            {"conversation_id": session.row.conversation_id},
        ]
        queries += [{"agent": text}] if text else []
        for query in queries:
            assert [row.session_id for row in store.all_sessions(**query)] == [session.session_id], query
        assert len(list(store.all_sessions())) == 2

    @pytest.mark.parametrize(
        "attempt",
        [
            lambda store, text: store.start().title(text),
            lambda store, text: store.start().tag(**{text: text}),
            lambda store, text: store.start().end("failed", text),
            lambda store, text: store.start().append([user("x")], key=text),
            lambda store, text: _answered_session(store, model=text, usage=Usage(1, 1)),
            lambda store, text: _answered_session(store, provider=text, usage=Usage(1, 1)),
            lambda store, text: _failed(store, text),
            lambda store, text: _turn(store, text),
            lambda store, text: store.put_blob(b"x", text),
            lambda store, text: store.start().append([user(Attachment(b"x", text, text))]),
            lambda store, text: _evidence(store, text),
        ],
        ids=[
            "title",
            "tag",
            "end",
            "key",
            "model",
            "provider",
            "failed",
            "turn_started",
            "mime",
            "attachment",
            "evidence",
        ],
    )
    def test_text_beside_entries_is_kept_or_refused_alike_on_every_store(
        self, store: Store, attempt: Callable[[Store, str], object]
    ) -> None:
        for name in ("empty", "nul", "control", "sql", "sql 2", "json", "not characters"):
            with contextlib.suppress(errors.InvalidValue):
                attempt(store, TEXTS[name])
            assert list(store.verify()) == [], name
        with pytest.raises(errors.InvalidValue):  # no store but memory can hold half a character
            attempt(store, "half \ud83d")
        assert list(store.verify()) == []

    def test_tool_ids_of_any_length_pair_with_their_results(self, store: Store) -> None:
        for length in (0, 1, 64, 65, 450, 512, 100_000):
            call_id, session = "é" * length, store.start()
            session.append(
                [user("x"), assistant(ToolCall(call_id, "t", {"n": 1})), tool_result(call_id, "r")]
            )
            again = reopened(store, session)
            assert payloads(again)[1].calls[0].id == payloads(again)[2].results[0].call_id == call_id
            assert again.verify() == []

    def test_keys_of_arguments_keep_their_order(self, store: Store) -> None:
        orders = [["b", "a", "c"], ["10", "9", "1"], ["é", "e", "\0", ""], list("zyxwvutsrqponmlkjihgfedcba")]
        for keys in orders:
            session = store.start()
            session.append(in_a_call({key: {inner: n for n, inner in enumerate(keys)} for key in keys}))
            arguments = payloads(reopened(store, session))[1].calls[0].arguments
            assert list(arguments) == keys
            assert [list(inner) for inner in arguments.values()] == [keys] * len(keys)

    def test_numbers_come_back_as_they_were(self, store: Store) -> None:
        integers = (0, -1, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**300, -(10**1000), 2**8191)
        for number in (*integers, 0.1, -0.0, 5e-324, 1.7976931348623157e308, 1e16, 123456789.12345679):
            session = store.start()
            session.append(in_a_call({"n": number, "l": [number]}))
            session.append([tool_result("c", number, state={"n": number}, details={"n": number})])
            again = reopened(store, session)
            value = payloads(again)[1].calls[0].arguments["n"]
            assert value == number
            assert type(value) is type(number)
            assert isinstance(number, int) or math.copysign(1, value) == math.copysign(1, number)
            assert again.state == {"n": number}
            assert json.loads(payloads(again)[2].results[0].content[0].text) == number

    def test_a_line_of_ten_megabytes_comes_back(self, store: Store) -> None:
        line = "x" * 10_000_000
        session = store.start()
        session.append([user(line), assistant("", ToolCall("c", "t", {"line": line}))])
        assert payloads(reopened(store, session)) == [
            user(line),
            assistant("", ToolCall("c", "t", {"line": line})),
        ]

    def test_a_result_of_ten_megabytes_comes_back(self, store: Store) -> None:
        big = {"rows": ["ü" * 1_000] * 5_000}
        session = store.start()
        session.append([*in_a_call({}), tool_result("c", big, details=big)])
        result = payloads(reopened(store, session))[2].results[0]
        assert json.loads(result.content[0].text) == result.details == big

    def test_thousands_of_entries_in_one_append(self, store: Store) -> None:
        session = store.start()
        many = [user(str(n)) for n in range(5_000)]
        session.append(many)
        assert payloads(reopened(store, session)) == many

    def test_many_parallel_calls_answered_backwards(self, store: Store) -> None:
        session = store.start()
        calls = [ToolCall(f"c{n}", "t", {"n": n}) for n in range(200)]
        session.append([user("x"), assistant(*calls)])
        for call in reversed(calls):
            session.append([tool_result(call.id, call.id)])
        assert session.open_tool_calls == ()
        assert reopened(store, session).verify() == []

    def test_two_open_calls_of_one_id_take_two_results(self, store: Store) -> None:
        session = store.start()
        session.append([user("x"), assistant(ToolCall("c", "t"), ToolCall("c", "t"))])
        session.append([tool_result("c", "1")])
        assert len(session.open_tool_calls) == 1
        session.append([tool_result("c", "2")])
        assert isinstance(
            refusal_of(store, lambda: session.append([tool_result("c", "3")])), errors.OrphanResult
        )

    def test_nesting_is_kept_down_to_a_depth_and_refused_below(self, store: Store) -> None:
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


def _answered_session(store: Store, **how: Any) -> object:
    session = store.start()
    with session.turn("x") as turn:
        turn.answer(assistant("y"), **how)
    read = reopened(store, session)
    for name in ("model", "provider"):
        if name in how:
            assert getattr(read.model_calls()[0], name) == (how[name] or None)
    return read


def _failed(store: Store, text: str) -> None:
    session = store.start()
    with session.turn("x") as turn:
        try:
            turn.failed(text)
        finally:
            turn.answer(assistant("y"))
    assert any(fact.data.get("why") == text for fact in reopened(store, session).journal())


def _turn(store: Store, text: str) -> None:
    session = store.start()
    with session.turn("x", trigger=text) as turn:
        turn.answer(assistant("y"))
    assert any(fact.data.get("trigger") == {"type": text} for fact in reopened(store, session).journal())


def _evidence(store: Store, text: str) -> None:
    session = store.start()
    evidence = Evidence(text, {"0": {"signature": text}})
    session.log.append([Draft(user("x")), Draft(assistant("y"), text, text, evidence)])
    last = reopened(store, session).path()[-1]
    assert (last.evidence, last.model, last.finish) == (evidence, text, text)


# -- what is refused -------------------------------------------------------------------------------


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


class TestRefused:
    @pytest.mark.parametrize("place", PLACES)
    def test_what_json_cannot_hold_is_refused_before_anything_is_written(
        self, store: Store, place: str
    ) -> None:
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

    def test_half_a_character_is_refused_wherever_text_is(self, store: Store) -> None:
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
    def test_a_payload_of_the_wrong_shape_is_refused_and_never_poisons_the_log(
        self, store: Store, item: Any
    ) -> None:
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

    @pytest.mark.parametrize(
        "usage",
        [Usage(1 << 70, 1), Usage(1.5, 1), Usage("1", 1), Usage(float("nan"), 1), Usage(-1, 1)],
        ids=repr,
    )  # type: ignore[arg-type]
    def test_usage_that_is_no_count_is_unknown_and_the_answer_is_kept(
        self, store: Store, usage: Usage
    ) -> None:
        session = store.start()
        with session.turn("x") as turn:
            turn.answer(assistant("y"), usage=usage)
        again = reopened(store, session)
        assert [call.usage for call in again.model_calls()] == [Usage(None, 1)]
        assert again.path()[-1].message == assistant("y")
        assert again.verify() == []

    @pytest.mark.parametrize(
        "about",
        [
            {"title": 5},
            {"title": b"x"},
            {"agent": 5},
            {"session_id": 5},
            {"context_window": 1 << 70},
            {"context_window": "big"},
            {"tags": {"a": 5}},
            {"tags": {1: "a"}},
            {"tags": {"\ud800": "a"}},
            {"tool_names": ["\ud800"]},
            {"tool_names": "abc"},
            {"state": [1]},
            {"state": "x"},
        ],
        ids=repr,
    )
    def test_a_row_of_the_wrong_shape_is_refused(self, store: Store, about: dict[str, Any]) -> None:
        refusal_of(store, lambda: store.start(**about))

    @pytest.mark.parametrize(
        "ask",
        [
            lambda store: store.session("\ud800"),
            lambda store: store.session("'; drop table session; --"),
            lambda store: store.delete("\0"),
            lambda store: store.sessions(before="abc"),
        ],
        ids=["surrogate", "sql", "nul", "cursor"],
    )
    def test_a_question_no_store_can_answer_is_answered_with_an_error_of_ours(
        self, store: Store, ask: Callable[[Store], object]
    ) -> None:
        store.start()
        refusal_of(store, lambda: ask(store))

    def test_what_the_caller_does_to_its_values_later_does_not_reach_the_log(self, store: Store) -> None:
        """State is the fold of the path, not of whatever the caller's lists hold by now."""
        session = store.start()
        mine: list[int] = [1]
        session.note(state={"mine": mine, "deep": {"mine": mine}})
        mine.append(2)
        session.note(state={"next": 1})
        assert reopened(store, session).state == {"mine": [1], "deep": {"mine": [1]}, "next": 1}
        assert reopened(store, session).verify() == []
        assert session.state == {"mine": [1], "deep": {"mine": [1]}, "next": 1}

    def test_what_the_caller_does_to_the_state_it_read_does_not_reach_the_log(self, store: Store) -> None:
        session = store.start()
        session.note(state={"a": 1, "deep": {"b": [1]}})
        session.state["forged"] = True
        session.state["deep"]["b"].append(2)
        session.note(state={"next": 1})
        assert reopened(store, session).state == {"a": 1, "deep": {"b": [1]}, "next": 1}
        assert reopened(store, session).verify() == []

    def test_an_input_in_the_place_of_a_seed_is_an_input(self, store: Store) -> None:
        """Rewound below the seeds, what follows is no seed; or the rewind is refused."""
        session = store.start(seeds=[system("s"), user("earlier")])
        with contextlib.suppress(errors.OakleafError):
            session.rewind(0)
        session.turn("a real input").__enter__()
        again = store.session(session.session_id)
        assert again.log.cursor.turn == again.leaf.seq
        assert again.verify() == []
        with again.turn() as turn:
            turn.answer(assistant("goes on"))


# -- bytes within text -----------------------------------------------------------------------------

PIXELS = bytes(range(256)) * 4
URL = "data:image/png;base64," + base64.b64encode(PIXELS).decode()
URL_SAFE = "data:image/png;name=a.png;base64," + base64.urlsafe_b64encode(PIXELS).decode().rstrip("=")

INLINE: dict[str, list[Any]] = {
    "text": [user(f"look: {URL} there")],
    "text, url safe": [user(URL_SAFE)],
    "two in one text": [user(URL + " " + URL_SAFE)],
    "answer": [user("x"), assistant(URL)],
    "arguments": in_a_call({"a": [{"image": URL}], "b": f"<img src='{URL}'>"}),
    "result": [*in_a_call({}), tool_result("c", f"made {URL}")],
    "result as json": [*in_a_call({}), tool_result("c", {"image": URL})],
    "result details": [*in_a_call({}), tool_result("c", "r", details={"image": URL})],
    "state": [*in_a_call({}), tool_result("c", "r", state={"image": URL})],
    "message details": [Message("user", (Text("x"),), details={"image": URL})],
    "attachment": [user(Attachment(PIXELS, "image/png", "a.png"))],
    "attachment in a result": [*in_a_call({}), tool_result("c", Attachment(PIXELS, "image/png"))],
    "system": [system(URL)],
    "reasoning": [user("x"), assistant(oakleaf.Reasoning(f"I see {URL} and {URL} again"))],
    "reasoning, url safe": [user("x"), assistant(oakleaf.Reasoning(URL_SAFE))],
    "note": [Note({"image": URL})],
}

VERBATIM: dict[str, list[Any]] = {
    "key of arguments": in_a_call({URL: 1}),
    "note state": [Note(state={"image": URL})],
    "settings": [Settings(prompt=URL)],
    "summary": [Compaction(URL, 1)],
}
"""What is not shown as a part. Malformed arguments are: core/test_media.py."""


FIRST_BYTES = [
    ("image/png", b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", b"\xff\xd8\xff"),
    ("image/gif", b"GIF89a"),
    ("image/webp", b"RIFF\x1a\0\0\0WEBP"),
    ("application/pdf", b"%PDF-"),
    ("audio/wav", b"RIFF\x1a\0\0\0WAVE"),
    ("audio/mp3", b"ID3"),
    ("audio/mpeg", b"\xff\xfb"),
    ("audio/ogg", b"OggS"),
    ("audio/flac", b"fLaC"),
]


class TestInlineMedia:
    @pytest.mark.parametrize("place", INLINE)
    def test_bytes_in_a_part_become_a_blob_or_are_refused(self, store: Store, place: str) -> None:
        session = store.start()
        before = contents(store)
        try:
            session.append(INLINE[place])
        except errors.OakleafError:
            assert contents(store) == before
            return
        bodies = b"".join(stored.entry.body for stored in store.backend.entries(session.session_id))
        assert base64.b64encode(PIXELS)[:80] not in bodies, "the bytes are still within the entry"
        assert base64.urlsafe_b64encode(PIXELS)[:80] not in bodies
        digest = oakleaf.core.media.digest(PIXELS)
        assert digest.encode() in bodies
        assert store.blob(digest) == PIXELS
        assert reopened(store, session).verify() == []

    @pytest.mark.parametrize(("mime", "start"), FIRST_BYTES)
    def test_a_file_cut_off_or_damaged_anywhere_is_appended_and_verified_alike(
        self, mime: str, start: bytes
    ) -> None:
        session = oakleaf.open("memory:").start()
        cut = [start[:length] for length in range(len(start) + 1)]
        for data in [*cut, *(start + bytes([byte]) + b"x" for byte in range(0, 256, 21))]:
            session.append(in_a_call({}))
            session.append([tool_result("c", Attachment(data, mime)), user(Attachment(data, mime))])
        assert session.verify() == []

    @pytest.mark.parametrize("place", VERBATIM)
    def test_what_must_stay_verbatim_stays_or_is_refused(self, store: Store, place: str) -> None:
        session = store.start()
        before = contents(store)
        try:
            session.append(VERBATIM[place])
        except errors.OakleafError:
            assert contents(store) == before
            return
        again = reopened(store, session)
        assert payloads(again) == VERBATIM[place]
        assert again.verify() == []

    @pytest.mark.parametrize(
        "place",
        ["text", "arguments", "result details", "state", "message details", "attachment in a result", "note"],
    )
    def test_a_blob_an_entry_names_is_never_collected(self, store: Store, place: str) -> None:
        session = store.start()
        session.append(INLINE[place])
        assert store.gc(grace=-1_000_000_000) == 0
        assert store.blob(oakleaf.core.media.digest(PIXELS)) == PIXELS

    def test_the_state_is_what_the_log_holds_after_lifting(self, store: Store) -> None:
        session = store.start()
        session.append(INLINE["state"])
        session.note(state={"next": 1})
        again = reopened(store, session)
        assert again.state["image"] == session.state["image"]
        assert again.verify() == []

    def test_a_blob_put_twice_is_kept_once(self, store: Store) -> None:
        one = store.put_blob(PIXELS, "image/png")
        two = store.put_blob(PIXELS, "image/gif")
        assert one.hash == two.hash
        assert store.blob(one) == PIXELS
        empty = store.put_blob(b"", "image/png")
        assert store.blob(empty) == b""


# -- laws over everything --------------------------------------------------------------------------

any_text = st.text(st.characters(codec="utf-8"), max_size=40)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**8000), 2**8000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)
json_objects = st.dictionaries(any_text, json_values, max_size=4)


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types and in the same order; 0.0 and -0.0 differ."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)


@pytest.fixture(scope="module")
def two_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Store, Store]]]:
    """Each with a second one to read from: the file through a connection of its own."""
    path = tmp_path_factory.mktemp("laws") / "a.db"
    with (
        oakleaf.open("memory:") as memory,
        oakleaf.open(path, synchronous="normal") as one,
        oakleaf.open(path) as two,
    ):
        yield [(memory, memory), (one, two)]


class TestLaws:
    @thorough
    @given(text=any_text, arguments=json_objects, details=json_objects, name=any_text)
    def test_what_is_appended_is_what_is_read(
        self, two_stores: list[tuple[Store, Store]], text: str, arguments: Any, details: Any, name: str
    ) -> None:
        written = [
            Message("user", (Text(text),), details=details),
            assistant(oakleaf.Reasoning(text), ToolCall(name, text, arguments)),
            tool_result(name, text, details={"host": details}),
            Note(details),
        ]
        for store, other in two_stores:
            session = store.start()
            appended = session.append(written).entries
            read = other.session(session.session_id).path()
            assert read == appended
            assert [entry.payload for entry in read] == written
            assert same(read[1].payload.calls[0].arguments, arguments)  # type: ignore[union-attr]
            assert same(read[3].payload.data, details)  # type: ignore[union-attr]
            assert other.session(session.session_id).verify() == []

    @thorough
    @given(patches=st.lists(json_objects, max_size=5))
    def test_state_is_the_fold_of_the_path_in_every_process(
        self, two_stores: list[tuple[Store, Store]], patches: list[Any]
    ) -> None:
        for store, other in two_stores:
            session = store.start(state={"begin": 1})
            for patch in patches:
                session.note(state=patch)
            read = other.session(session.session_id)
            assert same(read.state, session.state)
            assert same(other.hydrate(session.session_id).state, oakleaf.core.state.fold_state(read.path()))
            assert read.verify() == []

    @thorough
    @given(
        text=st.text(max_size=40),
        value=st.recursive(st.floats() | st.text(max_size=5) | st.binary(max_size=3), st.lists),
    )
    def test_any_python_value_is_kept_or_refused(
        self, two_stores: list[tuple[Store, Store]], text: str, value: Any
    ) -> None:
        outcomes = []
        for store, other in two_stores:
            session = store.start()
            try:
                session.append([user(text), assistant(ToolCall("c", "t", {"v": value}))])
            except errors.InvalidValue as refusal:
                outcomes.append(type(refusal))
                assert session.row.leaf.seq == 0
            else:
                outcomes.append(type(None))
                assert same(
                    other.session(session.session_id).path()[1].payload.calls[0].arguments["v"], value
                )  # type: ignore[union-attr]
        assert len(set(outcomes)) == 1, "both stores say the same"

    def test_another_process_reads_the_same_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        texts = {name: text for name, text in TEXTS.items() if len(text) < 100_000}
        with oakleaf.open(path) as store:
            session = store.start()
            session.append([user(text) for text in texts.values()])
            session.append([Note({"all": list(texts.values()), "n": [2**80, 0.1, -0.0]})])
            code = (
                "import sys, oakleaf, msgspec\n"
                "path = oakleaf.open(sys.argv[1]).session(sys.argv[2]).path()\n"
                "sys.stdout.buffer.write(msgspec.json.encode([(e.entry_id, e.payload) for e in path]))"
            )
            args = [sys.executable, "-c", code, str(path), session.session_id]
            done = subprocess.run(args, capture_output=True, check=True)
            ours = msgspec.json.encode([(entry.entry_id, entry.payload) for entry in session.path()])
            assert done.stdout == ours
