"""The session store of the Claude Agent SDK on Oakleaf: every line comes back as it was, and they are a real session."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from base64 import b64encode
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    InMemorySessionStore,
    delete_session_via_store,
    fork_session_via_store,
    get_session_messages_from_store,
    get_subagent_messages_from_store,
    import_session_to_store,
    list_sessions_from_store,
    list_subagents_from_store,
    project_key_for_directory,
    rename_session_via_store,
)
from claude_agent_sdk._internal.session_resume import materialize_resume_session
from claude_agent_sdk._internal.transcript_mirror_batcher import TranscriptMirrorBatcher
from claude_agent_sdk.testing import run_session_store_conformance
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import oakleaf
from oakleaf import OakleafError, Session, Usage, wire
from oakleaf.cli.main import oakleaf as command
from oakleaf.core.entries import Compaction, Settings
from oakleaf.errors import InvalidMessage
from oakleaf.ext import read
from oakleaf.store import Store
from oakleaf_frameworks.claude_agent import session_store as claude_agent
from oakleaf_frameworks.claude_agent.lines import record_of, stored_lines
from oakleaf_frameworks.claude_agent.session_store import OakleafSessionStore
from oakleaf_frameworks.shared import MISSING_MEDIA, UNKNOWN_RESULT
from support import fake_providers
from support.claude_transcripts import (
    MODEL,
    PICTURE,
    PNG,
    Line,
    Transcript,
    result,
    shop_transcript,
    text,
    thinking,
    tool_use,
)
from support.fake_providers import Call, Completion, FakeProviders, Reply, Stall
from support.random_logs import SOAK
from support.sessions import tasks_of

FEW = settings(max_examples=1_000 if SOAK else 20)
KEY: Any = {"project_key": "-home-ann", "session_id": "11111111-2222-4333-8444-555555555555"}
BELOW: Any = {**KEY, "subpath": "subagents/agent-abc"}


def append_batches(sessions: Store, *batches: list[Line], key: Any = KEY) -> Session:
    """The Oakleaf session behind these batches: sound, fit for every provider, and without a line lost."""

    async def append() -> tuple[list[Any] | None, Session | None]:
        store = OakleafSessionStore(sessions)
        for batch in batches:
            await store.append(key, batch)
        return await OakleafSessionStore(sessions).load(key), await store.oakleaf_session(key)

    loaded, session = asyncio.run(append())
    assert loaded == [line for batch in batches for line in batch]
    assert session is not None
    return sound(session)


def sound(session: Session) -> Session:
    assert session.verify() == []
    for provider in wire.PROVIDERS:
        assert wire.find_provider(provider).violations(session.request(provider)) == []
    return session


def roles(session: Session) -> list[str]:
    """What was said; notes are between."""
    return [entry.role or entry.kind for entry in session.path() if entry.kind != "note"]


def screen_of(sessions: Store, session: Session) -> str:
    return str(
        CliRunner().invoke(command, ["--store", sessions.backend.url, "show", session.session_id]).output
    )


@pytest.fixture
def memory() -> Store:
    return oakleaf.open("memory:")


class TestProtocol:
    def test_the_sdks_own_suite_is_met_on_every_store(self, store: Store) -> None:
        spaces = count(1)
        opened: list[Store] = []

        def fresh() -> OakleafSessionStore:
            opened.append(oakleaf.open(store.backend.url, space=f"space-{next(spaces)}", synchronous="full"))
            return OakleafSessionStore(opened[-1])

        asyncio.run(run_session_store_conformance(fresh))
        for sessions in opened:
            assert list(sessions.verify()) == []
            sessions.close()

    def test_what_the_sdk_keeps_in_memory_and_what_oakleaf_keeps_is_the_same(self, memory: Store) -> None:
        async def listed(store: Any) -> list[Any]:
            await store.append(KEY, shop_transcript().lines)
            await store.append(KEY, [{"type": "tag", "tag": "x", "sessionId": KEY["session_id"]}])
            await store.append(KEY, [{"type": "tag", "tag": "", "sessionId": KEY["session_id"]}])
            return [{**one, "mtime": 0} for one in await store.list_session_summaries(KEY["project_key"])]

        assert asyncio.run(listed(OakleafSessionStore(memory))) == asyncio.run(listed(InMemorySessionStore()))

    def test_an_entry_that_is_no_object_is_refused_and_nothing_is_written(self, memory: Store) -> None:
        with pytest.raises(InvalidMessage, match="not str"):
            asyncio.run(OakleafSessionStore(memory).append(KEY, [{"type": "x"}, "y"]))
        assert asyncio.run(OakleafSessionStore(memory).load(KEY)) is None


class TestSession:
    def test_the_lines_are_messages_calls_results_and_usage(self, store: Store) -> None:
        session = append_batches(store, shop_transcript().lines)
        first = ["user", "system", "assistant", "tool", "tool", "assistant"]
        assert roles(session) == [*first, "user", "assistant"]
        assert [call.usage for call in session.model_calls()] == [Usage(117, 5, 100, 7)] * 3
        assert (session.row.title, session.row.model) == ("Fixing the shop", "claude-sonnet-4-5")
        assert session.row.tags == {"claude_project": "-home-ann", "claude_session": KEY["session_id"]}
        assert session.messages("anthropic")[1]["content"][0] == thinking("two files")

    def test_what_a_message_tells_is_not_kept_a_second_time(self, memory: Store) -> None:
        transcript = Transcript()
        transcript.user("q" * 10_000)
        transcript.answer(
            thinking("t" * 10_000, "s" * 10_000), text("a" * 10_000), tool_use("a", path="p" * 10_000)
        )
        transcript.results(result("a", "r" * 10_000))
        transcript.user(
            [
                text("see"),
                {**PICTURE, "source": {**PICTURE["source"], "data": b64encode(bytes(10_000)).decode()}},
            ]
        )
        session = append_batches(memory, transcript.lines)
        entries = [stored.entry for stored in memory.backend.entries(session.session_id)]
        size = sum(len(entry.body) + len(entry.evidence or b"") for entry in entries)
        assert 60_000 < size < 67_000

    def test_a_prompt_and_a_compaction_are_entries_of_their_own(self, memory: Store) -> None:
        transcript = shop_transcript()
        prompt = {"type": "prompt_snapshot", "systemPrompt": ["You fix shops."]}
        transcript.line("attachment", attachment=prompt)
        transcript.compact("They fixed it.", keeps=transcript.lines[-4]["uuid"])
        transcript.line("attachment", attachment=prompt)
        session = append_batches(memory, transcript.lines)
        (settings,) = [entry.payload for entry in session.path() if isinstance(entry.payload, Settings)]
        assert settings.prompt == "You fix shops."
        (compaction,) = [entry.payload for entry in session.path() if isinstance(entry.payload, Compaction)]
        assert (compaction.summary, compaction.tokens_before) == ("They fixed it.", 9_000)
        message = session.path()[compaction.first_kept - 1].message
        assert message is not None
        assert message.text == "And this?"

    def test_what_was_rewound_is_a_branch_and_every_line_comes_back(self, store: Store) -> None:
        transcript = Transcript()
        transcript.user("go")
        (answer,) = transcript.answer(text("gone"))
        transcript.user("left")
        transcript.answer(text("left too"))
        transcript.user("right", parent=answer["uuid"])
        session = append_batches(store, transcript.lines[:3], transcript.lines[3:])
        assert [e.message.text for e in session.path() if e.message] == ["go", "gone", "right"]
        assert len(session.branches()) == 2

    def test_a_sub_agent_is_a_task(self, store: Store) -> None:
        transcript = Transcript(mark="a")
        transcript.detached_line("agent_metadata", agentType="Explore", toolUseId="toolu_1")
        transcript.user("look", isSidechain=True)
        transcript.answer(text("found"), isSidechain=True)
        parent = append_batches(store, shop_transcript().lines)
        task = append_batches(store, transcript.lines, key=BELOW)
        assert [child.session_id for child in tasks_of(parent)] == [task.session_id]
        assert parent.usage("tree").calls == 4

    def test_show_tells_the_conversation(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "agent.db") as sessions:
            transcript = screen_of(sessions, append_batches(sessions, shop_transcript().lines))
        for words in ("Fix the shop", "I look.", "ls", "a b", "x = 1", "Fixed.", "A dot."):
            assert words in transcript

    def test_it_can_be_forked_and_its_transcript_stays_what_it_was(self, memory: Store) -> None:
        session = append_batches(memory, shop_transcript().lines)
        fork = session.fork(3)
        fork.append([oakleaf.assistant("another end")])
        assert sound(fork).path()[2].role == "assistant"
        store = OakleafSessionStore(memory)
        assert len(asyncio.run(store.list_sessions("-home-ann"))) == 1
        assert asyncio.run(store.load(KEY)) == shop_transcript().lines

    @pytest.mark.parametrize("is_known", [True, False])
    @pytest.mark.parametrize("by_hand", ["rewind", "chat", "compact"])
    def test_what_is_done_to_it_by_hand_does_not_lead_the_transcript_astray(
        self, memory: Store, by_hand: str, is_known: bool
    ) -> None:
        lines = shop_transcript().lines
        store = OakleafSessionStore(memory)
        asyncio.run(store.append(KEY, lines[:11]))
        session = asyncio.run(store.oakleaf_session(KEY))
        assert session is not None
        match by_hand:
            case "rewind":
                session.rewind(2)
            case "chat":
                session.append([oakleaf.user("by hand"), oakleaf.assistant("yes")])
            case _:
                session.compact("All.", first_kept=6)
        again = store if is_known else OakleafSessionStore(memory)
        asyncio.run(again.append(KEY, lines[11:]))
        session.refresh()
        texts = [entry.message.text for entry in sound(session).transcript() if entry.message]
        assert texts == ["Fix the shop", "Fixed.", "And this?", "A dot."]
        assert len(session.branches()) == (1 if by_hand == "rewind" else 2)
        assert asyncio.run(again.load(KEY)) == lines

    def test_a_bundle_of_it_goes_on_in_another_store_and_for_another_owner(self, memory: Store) -> None:
        session = append_batches(memory, shop_transcript().lines[:11])
        append_batches(memory, [{"type": "agent_metadata", "agentType": "Explore"}], key=BELOW)
        bundle = io.BytesIO()
        session.export(bundle, blobs=True)
        bundle.seek(0)
        elsewhere = oakleaf.open("memory:", space="elsewhere")
        elsewhere.import_bundle(bundle)
        store = OakleafSessionStore(elsewhere)
        asyncio.run(store.append(KEY, shop_transcript().lines[11:]))
        assert asyncio.run(store.load(KEY)) == without_thoughts(shop_transcript().lines)
        assert asyncio.run(store.list_subkeys(KEY)) == [BELOW["subpath"]]
        assert {row.agent for row in elsewhere.all_sessions()} == {"claude-agent", "Explore"}

    def test_the_importer_reads_the_same_conversation(self, memory: Store, tmp_path: Path) -> None:
        transcript = shop_transcript()
        transcript.compact("So far.", keeps="u-3")
        transcript.user("on")
        (report,) = memory.import_from("claude-code", str(transcript.write(tmp_path / "s.jsonl")))
        for provider in wire.PROVIDERS:
            sessions = [
                append_batches(memory, transcript.lines, key={**KEY, "session_id": provider}),
                memory.session(report.session_id),
            ]
            assert sessions[0].messages(provider) == sessions[1].messages(provider)
        assert sessions[0].usage() == sessions[1].usage()

    def test_signatures_and_bytes_that_did_not_come_along_leave_a_transcript_that_can_be_resumed(
        self, memory: Store
    ) -> None:
        """A thought without its signature is refused by Anthropic, and so is a picture without its bytes."""
        transcript = Transcript()
        transcript.user([text("look"), PICTURE])
        transcript.answer(thinking("seen"), {"type": "redacted_thinking", "data": "sealed"}, text("A dot."))
        transcript.answer(thinking("not the end yet"), stop=None)
        session = append_batches(memory, transcript.lines)
        assert "c2lnbmVk" not in "".join(
            str(stored.entry.body) for stored in memory.backend.entries(session.session_id)
        )
        bundle = io.BytesIO()
        session.export(bundle)
        bundle.seek(0)
        elsewhere = oakleaf.open("memory:")
        elsewhere.import_bundle(bundle)
        loaded = without_thoughts(transcript.lines)
        loaded[0]["message"]["content"][1] = text(MISSING_MEDIA)
        assert asyncio.run(OakleafSessionStore(elsewhere).load(KEY)) == loaded


def without_thoughts(lines: list[Line]) -> list[Line]:
    """As they are where evidence was left out."""
    copies = copy.deepcopy(lines)
    for line in copies:
        content = line.get("message", {}).get("content")
        if isinstance(content, list):
            line["message"]["content"] = [block for block in content if "thinking" not in block["type"]]
    return copies


class TestBatches:
    @FEW
    @given(cuts=st.lists(st.integers(0, 18), max_size=6))
    def test_wherever_they_are_cut_the_conversation_is_the_same(self, cuts: list[int]) -> None:
        transcript = shop_transcript()
        transcript.compact("So far.", keeps="u-3")
        transcript.user("on")
        (last,) = transcript.answer(text("ok"))
        transcript.user("another way", parent=transcript.lines[1]["uuid"])
        transcript.user("back", parent=last["uuid"])
        ends = [0, *sorted(cuts), len(transcript.lines)]
        batches = [transcript.lines[start:end] for start, end in pairwise(ends)]
        session = append_batches(oakleaf.open("memory:"), *batches)
        calls = {call.id for entry in session.path() if entry.message for call in entry.message.calls}
        results = [one.call_id for entry in session.path() if entry.message for one in entry.message.results]
        assert (calls, sorted(results)) == ({"toolu_1", "toolu_2"}, ["toolu_1", "toolu_2"])
        assert UNKNOWN_RESULT not in json.dumps(session.messages("anthropic"))
        assert [entry.message.text for entry in session.transcript() if entry.message] == [
            *("Fix the shop", "Fixed.", "And this?", "A dot.", "on", "ok", "back")
        ]
        assert (session.usage().calls, session.usage().output_tokens, len(session.branches())) == (4, 20, 2)

    def test_an_answer_waits_until_its_end_has_come_and_is_durable_meanwhile(self, store: Store) -> None:
        transcript = Transcript()
        transcript.user("go")
        transcript.answer(thinking("hm"), text("I look."), tool_use("a"), stop=None)
        batches = [[line] for line in transcript.lines]
        assert roles(append_batches(store, *batches)) == ["user"]
        transcript.results(result("a"))
        store_again = OakleafSessionStore(store)
        asyncio.run(store_again.append(KEY, transcript.lines[4:]))
        session = asyncio.run(store_again.oakleaf_session(KEY))
        assert session is not None
        assert roles(sound(session)) == ["user", "assistant", "tool"]
        assert asyncio.run(store_again.load(KEY)) == transcript.lines

    def test_a_reminder_between_results_is_told_behind_them(self, memory: Store) -> None:
        transcript = Transcript()
        transcript.user("go")
        transcript.answer(tool_use("a"), tool_use("b"))
        transcript.results(result("b"))
        transcript.line("attachment", attachment={"type": "hook"}, rendered=[{"content": "Mind the gap."}])
        transcript.results(result("a"))
        session = append_batches(memory, transcript.lines[:4], transcript.lines[4:5], transcript.lines[5:])
        assert roles(session) == ["user", "assistant", "tool", "tool", "system"]

    def test_what_waits_on_a_branch_that_was_left_does_not_lead_back_to_it(self, memory: Store) -> None:
        transcript = Transcript()
        transcript.user("go")
        (call,) = transcript.answer(tool_use("a"))
        transcript.line("attachment", attachment={"type": "hook"}, rendered=[{"content": "Mind the gap."}])
        transcript.user("elsewhere", parent="u-1")
        transcript.answer(text("there"))
        transcript.user([result("a")], parent=call["uuid"])
        for batches in ([transcript.lines], [[line] for line in transcript.lines]):
            session = append_batches(oakleaf.open("memory:"), *batches)
            assert roles(session) == ["user", "user", "assistant"]

    def test_a_line_is_durable_with_the_message_that_tells_it(self, memory: Store) -> None:
        """A move in the middle of a batch is a commit of its own, and a crash may follow it."""
        transcript = Transcript()
        transcript.user("go")
        transcript.answer(tool_use("a"), tool_use("b"))
        transcript.user([result("a"), result("b")])  # two messages, so the line lies in a note
        transcript.user("elsewhere", parent="u-1")
        session = append_batches(memory, transcript.lines)
        message_branches = {
            n: entry.branch for entry in session.entries() for n in record_of(entry).get("noted_numbers", ())
        }
        line_branches = {
            n: entry.branch for entry in session.entries() for n, _ in stored_lines(entry, read(session).blob)
        }
        assert message_branches == {3: line_branches[3]}

    def test_a_call_the_conversation_went_on_without_is_told_so(self, memory: Store) -> None:
        transcript = Transcript()
        transcript.user("go")
        transcript.answer(tool_use("a"))
        transcript.user("never mind")
        transcript.results(result("a", "late"))
        session = append_batches(memory, transcript.lines[:2], transcript.lines[2:3], transcript.lines[3:])
        assert roles(session) == ["user", "assistant", "tool", "user"]
        assert UNKNOWN_RESULT in json.dumps(session.messages("anthropic"))

    def test_a_batch_that_comes_again_adds_nothing(self, store: Store) -> None:
        lines = [line for line in shop_transcript().lines if "uuid" in line]
        session = append_batches(store, lines)
        before = session.row
        for adapter in (OakleafSessionStore(store), OakleafSessionStore(store)):
            asyncio.run(adapter.append(KEY, [*lines, *lines]))
        assert session.row == before

    def test_two_processes_may_write_one_transcript(self, tmp_path: Path) -> None:
        """Each knows only its own lines: the one that comes late reads what is there and goes on behind it."""

        async def write() -> None:
            for at in range(0, 10, 2):
                await here.append(KEY, lines[at : at + 1])
                await there.append(KEY, lines[at : at + 2])

        lines = [
            {"type": "user", "uuid": f"u{n}", "message": {"role": "user", "content": f"{n}"}}
            for n in range(10)
        ]
        with oakleaf.open(tmp_path / "agent.db") as one, oakleaf.open(tmp_path / "agent.db") as other:
            here, there = OakleafSessionStore(one), OakleafSessionStore(other)
            asyncio.run(write())
            assert asyncio.run(here.load(KEY)) == lines

    def test_batches_at_the_same_moment_land_one_after_the_other(self, store: Store) -> None:
        async def write() -> list[Any] | None:
            adapter = OakleafSessionStore(store)
            batches = ([{"type": "x", "n": n, "i": i} for i in range(5)] for n in range(8))
            await asyncio.gather(*(adapter.append(KEY, batch) for batch in batches))
            return await adapter.load(KEY)

        loaded = asyncio.run(write())
        assert loaded is not None
        runs = [loaded[at : at + 5] for at in range(0, 40, 5)]
        assert sorted(run[0]["n"] for run in runs) == list(range(8))
        assert all([line["i"] for line in run] == [0, 1, 2, 3, 4] for run in runs)

    def test_a_transcript_that_was_forgotten_is_read_again(
        self, memory: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claude_agent, "CACHE_SIZE", 1)
        adapter = OakleafSessionStore(memory)
        for batch in ([{"type": "x", "uuid": "a"}], [{"type": "x", "uuid": "a"}, {"type": "x", "uuid": "b"}]):
            for name in ("one", "two"):
                asyncio.run(adapter.append({**KEY, "session_id": name}, batch))
        assert [one["uuid"] for one in asyncio.run(adapter.load({**KEY, "session_id": "one"})) or ()] == [
            "a",
            "b",
        ]


def answer_of(*blocks: Any) -> Line:
    message = {
        "id": "m",
        "role": "assistant",
        "model": "c",
        "stop_reason": "end_turn",
        "content": list(blocks),
    }
    return {"type": "assistant", "uuid": "odd", "message": message}


def user_of(content: Any, **more: Any) -> Line:
    return {
        "type": "user",
        "uuid": "odd",
        "message": {"role": "user", "content": content},
        **more,
    }


deep: Any = "bottom"
for _ in range(300):
    deep = [deep]
ODD: dict[str, Line] = {
    "nothing but a type": {"type": "user"},
    "no message": {"type": "assistant", "uuid": "odd", "message": 7},
    "no text": user_of(None),
    "content of another kind": user_of({"text": "x"}),
    "a block that is no block": user_of(["x", 7, None]),
    "a block we do not know": answer_of(text("x"), {"type": "server_tool_use", "id": "s", "input": {}}),
    "more than a block tells": answer_of({**text("x"), "citations": [{"n": 1}]}),
    "a call with no object": answer_of({"type": "tool_use", "id": "a", "name": "b", "input": "c"}),
    "two calls of one id": answer_of(tool_use("a"), tool_use("a")),
    "a result without its call": user_of([result("nobody")]),
    "a result with pieces we do not know": user_of([result("n", [{"type": "reference"}, PICTURE])]),
    "half a character": user_of("cut \ud83d here"),
    "half a character in a key": user_of("x", extra={"\udc00": 1}),
    "NUL": user_of("a\x00b", toolUseResult="\x00"),
    "numbers that are none": {**user_of("x"), "cost": float("inf")},
    "a large number": user_of("x", n=2**9000),
    "bytes within text": user_of(f"see data:image/png;base64,{PNG} here"),
    "bytes within arguments": answer_of(tool_use("a", url=f"data:image/png;base64,{PNG}")),
    "a file read": user_of("x", toolUseResult={"file": {"base64": PNG, "type": "image/png"}}),
    "base64 as text": user_of(PNG),
    "base64 within arguments": answer_of(tool_use("a", data=PNG, media_type="image/png")),
    "depth": user_of("x", toolUseResult=deep),
    "size": user_of("x" * 10_000_000),
    "a picture that is none": user_of([{**PICTURE, "source": {"type": "base64", "data": "?"}}]),
    "a mime type of its own": user_of([{**PICTURE, "source": {**PICTURE["source"], "media_type": "a\x00b"}}]),
    "usage that is none": {
        **answer_of(text("x")),
        "message": {**answer_of()["message"], "usage": {"input_tokens": -1}},
    },
    "reminders of every kind": {"type": "attachment", "uuid": "odd", "rendered": [{"content": 7}, "x", {}]},
    "keys of ours": user_of([{**text("x"), "held": 1}], details={"claude": {"numbers": [7]}}),
    "a title": {"type": "custom-title", "customTitle": "a\x00b \ud800"},
    "a blank summary": user_of(" ", isCompactSummary=True),
}

jsons = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["u-1", "u-3", "u-9", "x", "y"])
blocks = st.sampled_from(
    [text("t"), thinking("h"), tool_use("a"), tool_use("b"), result("a"), result("b"), PICTURE, 7]
)
anything = st.fixed_dictionaries(
    {"type": st.sampled_from(["user", "assistant", "attachment", "system", "custom-title", "x"])},
    optional={
        "uuid": names,
        "parentUuid": st.none() | names,
        "message": jsons
        | st.fixed_dictionaries(
            {"content": st.lists(blocks, max_size=3) | jsons},
            optional={
                "id": names,
                "stop_reason": st.none() | st.just("tool_use"),
                "model": st.text(max_size=3),
            },
        ),
        "isCompactSummary": st.booleans(),
        "attachment": jsons,
        "rendered": jsons,
    },
)


class TestHostile:
    @pytest.mark.parametrize("name", ODD)
    def test_whatever_a_line_holds_it_comes_back(self, memory: Store, name: str) -> None:
        session = append_batches(
            memory,
            shop_transcript().lines[:11],
            [ODD[name]],
            [{"type": "user", "message": {"content": "on"}}],
        )
        assert roles(session)[:6] == ["user", "system", "assistant", "tool", "tool", "assistant"]
        assert roles(session)[-1] == "user"

    @FEW
    @given(lines=st.lists(anything, max_size=8), cut=st.integers(0, 8))
    def test_any_lines_come_back_from_a_sound_session(self, lines: list[Line], cut: int) -> None:
        known: set[str] = {"u-1", "u-3"}
        fresh = []
        for line in lines:
            if line.get("uuid") not in known:
                fresh.append(line)
            known |= {line["uuid"]} if "uuid" in line else set()
        append_batches(oakleaf.open("memory:"), shop_transcript().lines[:6], fresh[:cut], fresh[cut:])

    def test_a_secret_is_hidden_here_too(self) -> None:
        sessions = oakleaf.open("memory:", secrets=["hunter2-hunter2"])
        store = OakleafSessionStore(sessions)
        asyncio.run(store.append(KEY, [user_of("it is hunter2-hunter2", toolUseResult="hunter2-hunter2")]))
        assert "hunter2" not in json.dumps(asyncio.run(store.load(KEY)))


class TestTenants:
    def test_what_is_anothers_is_not_there(self, tmp_path: Path) -> None:
        tenants = [("default", "ann"), ("default", "bob"), ("other", None)]
        opened = [oakleaf.open(tmp_path / "agent.db", space=space, owner=owner) for space, owner in tenants]
        stores = [OakleafSessionStore(sessions) for sessions in opened]
        for number, store in enumerate(stores):
            assert asyncio.run(store.load(KEY)) is None
            asyncio.run(store.append(KEY, [{"type": "x", "n": number}]))
        for number, store in enumerate(stores):
            assert asyncio.run(store.load(KEY)) == [{"type": "x", "n": number}]
            assert len(asyncio.run(store.list_sessions("-home-ann"))) == 1
        for sessions in opened:
            sessions.close()


class TestDeleting:
    def test_it_goes_to_the_trash_with_its_sub_agents_and_can_be_restored(self, store: Store) -> None:
        adapter = OakleafSessionStore(store)
        session = append_batches(store, shop_transcript().lines)
        task = append_batches(store, [{"type": "x"}], key=BELOW)
        asyncio.run(adapter.delete(KEY))
        assert asyncio.run(adapter.load(KEY)) is None
        assert set(store.restore(session.session_id)) == {session.session_id, task.session_id}
        assert asyncio.run(adapter.load(KEY)) == shop_transcript().lines
        assert asyncio.run(adapter.load(BELOW)) == [{"type": "x"}]

    def test_what_is_appended_afterwards_is_another_session(self, store: Store) -> None:
        adapter = OakleafSessionStore(store)
        for number in range(3):
            asyncio.run(adapter.append(KEY, [{"type": "x", "uuid": "u", "n": number}]))
            assert asyncio.run(adapter.load(KEY)) == [{"type": "x", "uuid": "u", "n": number}]
            asyncio.run(adapter.delete(KEY))
        assert len(list(store.all_sessions(trashed=True))) == 3


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of Claude Code's own with one session and a sub-agent of it, the working folder of which is `work`."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    project = tmp_path / "config" / "projects" / project_key_for_directory(tmp_path / "work")
    shop_transcript().write(project / f"{KEY['session_id']}.jsonl")
    below = project / KEY["session_id"] / "subagents"
    inner = Transcript(mark="a")
    inner.user("look", isSidechain=True, agentId="abc")
    inner.answer(text("found"), isSidechain=True, agentId="abc")
    inner.write(below / "agent-abc.jsonl")
    (below / "agent-abc.meta.json").write_text('{"agentType": "Explore"}')
    return project


class TestSdk:
    """The SDK's own functions and classes, as it drives a store itself."""

    def test_its_batcher_mirrors_a_transcript(self, memory: Store, tmp_path: Path) -> None:
        errors: list[str] = []

        async def mirror() -> None:
            async def failed(_: Any, why: str) -> None:
                errors.append(why)

            batcher = TranscriptMirrorBatcher(OakleafSessionStore(memory), str(tmp_path), failed)
            for line in shop_transcript().lines:
                batcher.enqueue(str(tmp_path / "-home-ann" / f"{KEY['session_id']}.jsonl"), [line])
            await batcher.flush()

        asyncio.run(mirror())
        assert errors == []
        assert asyncio.run(OakleafSessionStore(memory).load(KEY)) == shop_transcript().lines

    def test_a_session_on_disk_is_imported_listed_read_and_resumed(self, memory: Store, home: Path) -> None:
        store, name, work = OakleafSessionStore(memory), KEY["session_id"], str(home.parents[2] / "work")

        async def drive() -> None:
            for _ in range(2):  # a second time adds what has no uuid: titles, snapshots
                await import_session_to_store(name, store, directory=work)
            (listed,) = await list_sessions_from_store(store, directory=work)
            assert (listed.session_id, listed.summary) == (name, "Fixing the shop")
            assert listed.first_prompt == "Fix the shop"
            messages = await get_session_messages_from_store(store, name, directory=work)
            assert [one.type for one in messages][:2] == ["user", "assistant"]
            assert await list_subagents_from_store(store, name, directory=work) == ["abc"]
            inner = await get_subagent_messages_from_store(store, name, "abc", directory=work)
            assert [one.type for one in inner] == ["user", "assistant"]

            resumed = await materialize_resume_session(
                ClaudeAgentOptions(session_store=store, resume=name, cwd=work)
            )
            assert resumed is not None
            path = resumed.config_dir / "projects" / home.name / f"{name}.jsonl"
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            assert [line for line in lines if "uuid" in line] == [
                one for one in shop_transcript().lines if "uuid" in one
            ]
            sidecar = path.with_suffix("") / "subagents" / "agent-abc.meta.json"
            assert json.loads(sidecar.read_text()) == {"agentType": "Explore"}
            await resumed.cleanup()

        asyncio.run(drive())

    def test_a_session_is_renamed_forked_and_deleted(self, memory: Store, home: Path) -> None:
        store, name, work = OakleafSessionStore(memory), KEY["session_id"], str(home.parents[2] / "work")

        async def drive() -> str:
            await import_session_to_store(name, store, directory=work)
            await rename_session_via_store(store, name, "Shop", directory=work)
            forked = await fork_session_via_store(store, name, directory=work)
            await delete_session_via_store(store, name, directory=work)
            (remaining,) = await list_sessions_from_store(store, directory=work)
            assert remaining.session_id == forked.session_id
            return forked.session_id

        key: Any = {"project_key": home.name, "session_id": asyncio.run(drive())}
        session = asyncio.run(store.oakleaf_session(key))
        assert session is not None
        assert roles(sound(session))[-1] == "assistant"
        assert session.row.title == "Shop (fork)"
        assert [row.title for row in memory.all_sessions(trashed=True, include_children=False)] == ["Shop"]

    def test_a_fork_counts_its_own_calls_and_the_source_those_it_copied(
        self, memory: Store, home: Path
    ) -> None:
        store, name, work = OakleafSessionStore(memory), KEY["session_id"], str(home.parents[2] / "work")

        async def drive() -> tuple[Session | None, Session | None]:
            await import_session_to_store(name, store, directory=work)
            forked = await fork_session_via_store(store, name, directory=work)
            key: Any = {"project_key": home.name, "session_id": forked.session_id}
            more = Transcript(forked.session_id, mark="new")
            more.line("user", "the fork's last", message={"role": "user", "content": "And now?"})
            more.answer(text("Done."))
            await store.append(key, [*more.lines])
            source: Any = {"project_key": home.name, "session_id": name}
            return await store.oakleaf_session(source), await store.oakleaf_session(key)

        source, fork = asyncio.run(drive())
        assert source is not None
        assert fork is not None
        assert source.usage().calls == 3
        assert (sound(fork).usage().calls, fork.row.totals.calls) == (1, 1)
        assert len([entry for entry in fork.path() if entry.role == "assistant"]) == 4


class Claude(fake_providers._Handler):
    """Claude Code asks with a query in the address, and looks first whether anybody is there."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        self.path = self.path.partition("?")[0]
        super().do_POST()


class ClaudeLoopback(FakeProviders):
    def __init__(self, *replies: Reply) -> None:
        super().__init__(*replies)
        self._server.RequestHandlerClass = Claude


MOMENTS = ("after the effect", "before the last answer")
CLIENT = """
import asyncio, sys
import oakleaf
from oakleaf_frameworks.claude_agent import OakleafSessionStore
from claude_agent_sdk import ClaudeAgentOptions, query

folder, prompt, resume = sys.argv[1:]

class Telling(OakleafSessionStore):
    async def append(self, key, entries):
        await super().append(key, entries)
        print("durable:", *(entry["type"] for entry in entries), flush=True)

async def main():
    with oakleaf.open(folder + "/agent.db") as sessions:
        options = ClaudeAgentOptions(
            session_store=Telling(sessions),
            session_store_flush="eager",
            cwd=folder,
            allowed_tools=["Bash"],
            setting_sources=[],
            resume=resume or None,
        )
        async for message in query(prompt=prompt, options=options):
            pass

asyncio.run(main())
"""


def away(folder: Path) -> dict[str, str]:
    """An environment that knows nothing of who runs the tests."""
    config = str(folder / "config")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "CLAUDE_CONFIG_DIR": config,
    }


def spoken_to(url: str) -> dict[str, str]:
    quiet = "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "ANTHROPIC_MODEL": MODEL, quiet: "1"}


def client(url: str, folder: Path, prompt: str, resume: str = "") -> subprocess.Popen[bytes]:
    """The SDK's real client with the program it brings, in a process group of its own."""
    line = [sys.executable, "-c", CLIENT, str(folder), prompt, resume]
    env = {**away(folder), **spoken_to(url)}
    return subprocess.Popen(line, env=env, stdout=subprocess.PIPE, start_new_session=True)


class TestClient:
    def test_killed_in_the_middle_of_a_tool_the_next_process_goes_on(self, tmp_path: Path) -> None:
        ran = tmp_path / "ran"
        waits = Call("toolu_1", "Bash", json.dumps({"command": f"echo $$ > {ran}; exec sleep 60"}))
        quick = Call("toolu_2", "Bash", json.dumps({"command": "echo over"}))
        replies = (
            Completion("I wait.", "a thought", (waits,)),
            Completion("I look.", "another", (quick,)),
            Completion("It is over."),
        )
        with ClaudeLoopback(*replies) as server:
            first = client(server.url, tmp_path, "Wait for it")
            assert first.stdout is not None
            try:
                first_line = next(line for line in first.stdout if b"assistant" in line)
                assert first_line.startswith(b"durable:")
                while not ran.exists() or not ran.read_text().strip():
                    assert first.poll() is None
            finally:
                os.killpg(first.pid, signal.SIGKILL)
                first.communicate()
            os.kill(int(ran.read_text()), signal.SIGKILL)  # the tool runs in a group of its own
            with oakleaf.open(tmp_path / "agent.db") as sessions:
                (row,) = sessions.all_sessions()
                assert roles(sound(sessions.session(row.session_id)))[-1] == "assistant"
            shutil.rmtree(tmp_path / "config")  # the store is all there is
            second = client(server.url, tmp_path, "Are you there?", row.tags["claude_session"])
            second.communicate()
            assert second.returncode == 0
            assert [request.problems for request in server.requests] == [[], [], []]
        with oakleaf.open(tmp_path / "agent.db") as sessions:
            session = sound(sessions.session(row.session_id))
            text = screen_of(sessions, session)
            assert [call.usage for call in session.model_calls()] == [Usage(14, 7, 3, 0)] * 3
            assert session.row.status == "idle"
        for words in ("Wait for it", "I wait.", "Are you there?", "I look.", "over", "It is over."):
            assert words in text
        assert "outcome is unknown" in json.dumps(server.requests[1].body["messages"])

    @pytest.mark.parametrize("moment", MOMENTS if SOAK else MOMENTS[:1])
    def test_an_effect_happens_once_whenever_the_process_is_killed(self, tmp_path: Path, moment: str) -> None:
        effects, waiting = tmp_path / "effects", tmp_path / "waiting"
        sleeps = f"; echo $$ > {waiting}; exec sleep 60" if moment == "after the effect" else ""
        refund = Call("toolu_1", "Bash", json.dumps({"command": f"echo 41 >> {effects}{sleeps}"}))
        replies: list[Reply] = [Completion("I refund.", "", (refund,)), Completion("It is done.")]
        if not sleeps:
            replies.insert(1, Stall())
        with ClaudeLoopback(*replies) as server:
            first = client(server.url, tmp_path, "Refund 41")
            assert first.stdout is not None
            try:
                next(
                    line for line in first.stdout if b"assistant" in line
                )  # the program's transcript is mirrored
                while not (
                    waiting.exists() and waiting.read_text().strip() if sleeps else server.requests[1:]
                ):
                    assert first.poll() is None
            finally:
                os.killpg(first.pid, signal.SIGKILL)
                first.communicate()
            if sleeps:
                os.kill(int(waiting.read_text()), signal.SIGKILL)  # the tool runs in a group of its own
            with oakleaf.open(tmp_path / "agent.db") as sessions:
                (row,) = sessions.all_sessions()
                assert "assistant" in roles(sound(sessions.session(row.session_id)))
            shutil.rmtree(tmp_path / "config")
            second = client(server.url, tmp_path, "And?", row.tags["claude_session"])
            second.communicate()
            assert second.returncode == 0
            resumed = json.dumps(server.requests[-1].body["messages"])
        assert effects.read_text().split() == ["41"]
        # The program may be killed before its result is mirrored; then the model is told the same.
        assert "outcome is unknown" in resumed or not sleeps


class TestPage:
    def test_the_code_of_the_docs_runs_with_the_real_client(self, tmp_path: Path) -> None:
        page = (Path(__file__).parents[3] / "docs" / "frameworks" / "claude-agent.md").read_text()
        (code,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        with ClaudeLoopback(Completion("On its way."), Completion("Lost.")) as server:
            env = {**away(tmp_path), **spoken_to(server.url)}
            done = subprocess.run(
                [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, check=False
            )
        assert done.returncode == 0, done.stderr.decode()
        for words in (b"Where is order 41?", b"On its way.", b"And order 42?", b"Lost."):
            assert words in done.stdout
        (report,) = oakleaf.open("memory:").import_from("claude-code", str(tmp_path / "config" / "projects"))
        assert (report.error, report.entries > 2) == (None, True)  # what Claude Code wrote beside it


def test_the_errors_of_the_store_are_oakleaf(tmp_path: Path) -> None:
    with oakleaf.open(tmp_path / "agent.db") as sessions:
        store = OakleafSessionStore(sessions)
    with pytest.raises(OakleafError):
        asyncio.run(store.load(KEY))
