"""Values that an append keeps come back unchanged, in every field and in every process."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oakleaf
import oakleaf.core.state
from oakleaf import (
    Attachment,
    BranchSummary,
    Compaction,
    Evidence,
    Message,
    Note,
    Settings,
    Store,
    Text,
    ToolCall,
    Usage,
    assistant,
    errors,
    system,
    tool_result,
    user,
)
from oakleaf.core.drafts import Draft
from support.soak import SOAK
from support.store_contents import TEXTS, in_a_call, open_store, payloads, refusal_of, reopened

thorough = settings(
    max_examples=3_000 if SOAK else 50,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield from open_store(request.param, tmp_path)


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


class TestText:
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
    def test_text_beside_entries_is_kept_or_refused_alike(
        self, store: Store, attempt: Callable[[Store, str], object]
    ) -> None:
        for name in ("empty", "nul", "control", "sql", "sql 2", "json", "not characters"):
            with contextlib.suppress(errors.InvalidValue):
                attempt(store, TEXTS[name])
            assert list(store.verify()) == [], name
        with pytest.raises(errors.InvalidValue):  # no store but memory can hold half a character
            attempt(store, "half \ud83d")
        assert list(store.verify()) == []


class TestCalls:
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


class TestSize:
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
