"""Claude Code's sessions taken in: answers put together again, trees, compactions, sub-agents; the source only read."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import Media, OakleafError, ProviderBlock, Reasoning, Session, Text, ToolCall, Usage, wire
from oakleaf.core.entries import Compaction, Settings
from oakleaf.core.messages import Message
from oakleaf.errors import InvalidSource
from oakleaf.ext import read
from oakleaf.ingest.ingest import ToolImportResult
from oakleaf.store import Store
from oakleaf_importers.formats import jsonl
from support.claude_transcripts import (
    PICTURE,
    USAGE,
    Transcript,
    result,
    shop_transcript,
    text,
    thinking,
    tool_use,
)
from support.sessions import tasks_of
from support.terminal import oakleaf as command

NAME = "claude-code"


def import_sound(place: Path, store: Store | None = None) -> tuple[Session, ToolImportResult]:
    """The one session of a place, sound and fit for every provider."""
    sessions = store or oakleaf.open("memory:")
    (report,) = sessions.import_from(NAME, str(place))
    assert report.error is None
    session = sessions.session(report.session_id)
    for one in (session, *tasks_of(session)):
        assert one.verify() == []
        for provider in wire.PROVIDERS:
            assert wire.find_provider(provider).violations(one.request(provider)) == []
    return session, report


def import_transcript(transcript: Transcript, tmp_path: Path) -> Session:
    return import_sound(transcript.write(tmp_path / f"{transcript.session_id}.jsonl"))[0]


def roles(session: Session) -> list[str]:
    return [entry.role or entry.kind for entry in session.path()]


def message_at(session: Session, seq: int) -> Message:
    message = session.path()[seq - 1].message
    assert message is not None
    return message


def loss_counts(report: ToolImportResult) -> dict[str, int]:
    return {what: one.count for what, one in report.losses.items()}


class TestSession:
    @pytest.mark.smoke
    def test_a_session_is_taken_in_on_every_store(self, store: Store, tmp_path: Path) -> None:
        transcript = shop_transcript()
        session, report = import_sound(transcript.write(tmp_path / f"{transcript.session_id}.jsonl"), store)
        assert session.session_id == f"claude-code-{transcript.session_id}"
        first = ["user", "system", "assistant", "tool", "tool", "assistant"]
        assert roles(session) == [*first, "user", "assistant"]
        assert message_at(session, 3).parts == (
            Reasoning("two files"),
            Text("I look."),
            ToolCall("toolu_1", "Bash", {"command": "ls"}),
            ToolCall("toolu_2", "Read", {"path": "a"}),
        )
        assert [message_at(session, seq).results[0].content for seq in (4, 5)] == [
            (Text("a b"),),
            (Text("x = 1"),),
        ]
        assert loss_counts(report) == {"a bookkeeping line of the tool": 2}

    def test_it_has_the_title_the_folder_and_the_times_of_the_source(self, tmp_path: Path) -> None:
        session = import_transcript(shop_transcript(), tmp_path)
        assert session.row.title == "Fixing the shop"
        assert session.row.tags == {"imported_from": NAME, "cwd": "/home/ann/shop", "git_branch": "main"}
        assert session.row.started_at == 1_772_359_201_250_000 == session.path()[0].at
        answer = session.path()[2]
        assert (answer.model, answer.finish) == ("claude-sonnet-4-5", "tool_use")

    def test_what_a_person_called_it_goes_before_what_the_tool_did(self, tmp_path: Path) -> None:
        transcript = shop_transcript()
        transcript.detached_line("custom-title", customTitle="Shop")
        transcript.detached_line("ai-title", aiTitle="Something newer")
        assert import_transcript(transcript, tmp_path).row.title == "Shop"

    def test_a_summary_names_the_session_of_the_line_it_stands_for(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.detached_line("summary", summary="Of another session", leafUuid="elsewhere")
        transcript.user("hi")
        other = transcript.write(tmp_path / "other" / "s.jsonl")
        assert import_sound(other)[0].row.title is None
        transcript.detached_line("summary", summary="Of this one", leafUuid="u-1")
        assert import_transcript(transcript, tmp_path).row.title == "Of this one"

    def test_the_system_prompt_is_a_seed_and_a_later_one_a_setting(self, tmp_path: Path) -> None:
        transcript = Transcript()
        for words in ("You test.", "You test.", "You fix."):
            transcript.user("go")
            prompts = [words, "<total_tokens>9 left</total_tokens>"]
            transcript.line("attachment", attachment={"type": "prompt_snapshot", "systemPrompt": prompts})
            transcript.answer(text("gone"))
        session = import_transcript(transcript, tmp_path)
        assert roles(session)[:3] == ["system", "user", "assistant"]
        assert (session.row.seed_count, message_at(session, 1).text) == (1, "You test.")
        assert [e.payload.prompt for e in session.path() if isinstance(e.payload, Settings)] == ["You fix."]


class TestAnswer:
    def test_its_usage_stands_on_every_line_and_counts_once(self, tmp_path: Path) -> None:
        session = import_transcript(shop_transcript(), tmp_path)
        assert [call.usage for call in session.model_calls()] == [Usage(117, 5, 100, 7)] * 3
        assert {(call.provider, call.model) for call in session.model_calls()} == {
            ("anthropic", "claude-sonnet-4-5")
        }

    def test_a_fork_counts_its_own_and_the_session_it_left_the_copied_ones(self, tmp_path: Path) -> None:
        source = shop_transcript()
        fork = Transcript("22222222-2222-4333-8444-555555555555", mark="f")
        for line in source.lines:
            named = {"sessionId": source.session_id, "messageUuid": line.get("uuid")}
            fork.lines.append({**line, "sessionId": fork.session_id, "forkedFrom": named})
        tip = [line["uuid"] for line in source.lines if "uuid" in line][-1]
        fork.line("user", tip, message={"role": "user", "content": "more"})
        fork.answer(text("and more"))
        alone = import_transcript(fork, tmp_path / "alone")
        assert alone.usage().calls == 4  # nobody else counts them
        for transcript in (source, fork):
            transcript.write(tmp_path / "both" / f"{transcript.session_id}.jsonl")
        with oakleaf.open("memory:") as store:
            assert len(list(store.import_from(NAME, str(tmp_path / "both")))) == 2
            assert sorted(row.totals.calls for row in store.all_sessions()) == [1, 3]

    def test_a_line_written_while_it_streamed_tells_less(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("go")
        first, last = transcript.answer(thinking("hm"), text("done"), stop=None)
        first["message"]["usage"] = {**USAGE, "output_tokens": 1}
        assert last["message"]["usage"]["output_tokens"] == 5
        transcript.user("thanks")  # so it is complete
        assert import_transcript(transcript, tmp_path).usage().output_tokens == 5

    def test_a_cache_write_for_an_hour_costs_what_it_costs(self, tmp_path: Path) -> None:
        """Priced as writes for five minutes, real sessions cost 8 % too little."""
        costs = []
        for hours in (0, 1):
            transcript = Transcript(f"{hours}1111111-2222-4333-8444-555555555555")
            transcript.user("go")
            (line,) = transcript.answer(text("done"))
            written = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 100_000}
            line["message"]["usage"] = {
                "input_tokens": 0,
                "output_tokens": 0,
                "cache_creation_input_tokens": 100_000,
                **({"cache_creation": written} if hours else {}),
            }
            costs.append(import_transcript(transcript, tmp_path / str(hours)).usage().cost_microcents)
        assert costs == [37_500_000, 60_000_000]  # 3.75 and 6 dollars per million, claude-sonnet-4-5

    def test_that_said_nothing_is_paid_for(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("go")
        (line,) = transcript.answer(text("x"))
        line["message"]["content"] = []
        session = import_transcript(transcript, tmp_path)
        assert (session.usage().calls, session.usage().output_tokens) == (1, 5)

    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2)])
    def test_results_go_with_it_whichever_of_its_lines_they_hang_on(
        self, tmp_path: Path, order: tuple[int, ...]
    ) -> None:
        """Tools run while an answer still streams: a result may come before the next call of the same answer."""
        transcript = Transcript()
        transcript.user("go")
        calls = transcript.answer(tool_use("a"), tool_use("b"))
        results = [
            transcript.user([result(name)], parent=call["uuid"])
            for name, call in zip("ab", calls, strict=True)
        ]
        lines = [calls[0], calls[1], *results]
        transcript.lines[1:] = [lines[at] for at in order]
        transcript.answer(text("both done"))
        session = import_transcript(transcript, tmp_path)
        assert roles(session) == ["user", "assistant", "tool", "tool", "assistant"]
        assert len(session.branches()) == 1

    def test_its_signature_goes_back_to_its_issuer_and_to_no_other(self, tmp_path: Path) -> None:
        session = import_transcript(shop_transcript(), tmp_path)
        assert session.messages("anthropic")[1]["content"][0] == thinking("two files")
        assert "c2lnbmVk" not in json.dumps(session.messages("openai"))

    def test_thoughts_nobody_may_read_are_kept_for_their_issuer(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("go")
        transcript.answer({"type": "redacted_thinking", "data": "sealed"}, text("done"))
        sealed = import_transcript(transcript, tmp_path).messages("anthropic")[1]["content"][0]
        assert sealed == {"type": "redacted_thinking", "data": "sealed"}

    def test_an_error_of_the_api_is_an_answer_that_nobody_paid_for(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("go")
        (line,) = transcript.answer(
            text("API Error: 529 overloaded"), stop="stop_sequence", isApiErrorMessage=True
        )
        line["message"]["model"] = "<synthetic>"
        session = import_transcript(transcript, tmp_path)
        assert (session.path()[1].finish, session.path()[1].model, session.model_calls()) == (
            "error",
            None,
            [],
        )

    def test_a_step_of_anthropics_own_tools_is_kept_and_one_of_a_wrong_shape_is_counted(
        self, tmp_path: Path
    ) -> None:
        transcript = Transcript()
        transcript.user("go")
        use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "cats"}}
        transcript.answer(text("I search."), use, {"type": "server_tool_use", "name": "web_search"})
        session, report = import_sound(transcript.write(tmp_path / "s.jsonl"))
        search = ProviderBlock("server_tool_use", "searched the web: cats")
        assert message_at(session, 2).parts == (Text("I search."), search)
        assert session.request("anthropic")["messages"][-1]["content"][-1] == use
        assert loss_counts(report) == {"a block of unknown shape": 1}


class TestInput:
    def test_a_picture_is_kept_as_a_blob(self, tmp_path: Path) -> None:
        session = import_transcript(shop_transcript(), tmp_path)
        (media,) = message_at(session, 7).media
        assert isinstance(media, Media)
        data = read(session).blob(media.hash)
        assert data is not None
        assert data.startswith(b"\x89PNG")

    def test_pictures_in_results_are_kept_too_and_other_pieces_as_json(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("look")
        transcript.answer(tool_use("a"))
        transcript.user([result("a", [PICTURE, {"type": "tool_reference", "tool_name": "Grep"}])])
        session, report = import_sound(transcript.write(tmp_path / "s.jsonl"))
        picture, reference = message_at(session, 3).results[0].content
        assert isinstance(picture, Media)
        assert reference == Text('{"type":"tool_reference","tool_name":"Grep"}')
        assert loss_counts(report) == {}

    def test_what_the_tool_says_in_the_users_place_is_the_systems(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("<command-name>/model</command-name>")
        transcript.user("<local-command-stdout>set</local-command-stdout>")
        transcript.user("Base directory of this skill: …", isMeta=True)
        transcript.user([text("see"), PICTURE], isMeta=True)
        assert roles(import_transcript(transcript, tmp_path)) == ["system", "system", "system", "user"]

    @pytest.mark.parametrize(
        "typed",
        [
            *(
                f"<command-name>/{name}</command-name>\n<command-message>{name}</command-message>\n"
                for name in ("exit", "clear", "model")
            ),
            "<command-message>cost</command-message>\n<command-name>/cost</command-name>",
            "[Request interrupted by user]",
            "[Request interrupted by user for tool use]",
            "<bash-input>ls</bash-input>",
        ],
    )
    def test_a_command_that_calls_no_model_is_no_input(self, tmp_path: Path, typed: str) -> None:
        transcript = shop_transcript()
        transcript.user([text(typed)])
        session = import_transcript(transcript, tmp_path)
        assert (roles(session)[-1], session.row.turns) == ("system", 2)

    def test_a_command_that_is_a_prompt_is_an_input(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user(
            "<command-message>review is running…</command-message>\n<command-name>/review</command-name>"
        )
        transcript.user("Review the changes.", isMeta=True)
        transcript.answer(text("Fine."))
        session = import_transcript(transcript, tmp_path)
        assert (roles(session), session.row.turns) == (["user", "system", "assistant"], 1)

    def test_a_message_without_content_is_counted(self, tmp_path: Path) -> None:
        transcript = shop_transcript()
        transcript.line("user", message={"role": "user", "parts": [{"text": "hello"}]})
        transcript.line("assistant", message={"role": "assistant", "parts": [{"text": "hi"}]})
        _, report = import_sound(transcript.write(tmp_path / "s.jsonl"))
        assert loss_counts(report)["a message without content"] == 2

    def test_a_file_that_was_mentioned_is_shown_to_the_model(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("see @a.py and @dot.png")
        file = {"filePath": "/home/ann/a.py", "content": "x = 1", "numLines": 1}
        transcript.line("attachment", attachment={"type": "file", "content": {"type": "text", "file": file}})
        picture = {"base64": PICTURE["source"]["data"], "type": "image/png"}
        attachment = {"type": "image", "file": picture}
        transcript.line(
            "attachment", attachment={"type": "file", "filename": "dot.png", "content": attachment}
        )
        session = import_transcript(transcript, tmp_path)
        assert message_at(session, 2).text == "/home/ann/a.py:\n\nx = 1"
        assert [media.name for media in message_at(session, 3).media] == ["dot.png"]

    def test_what_was_typed_while_it_was_busy_is_the_users(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("go")
        for mode in ("prompt", "task-notification"):
            transcript.line(
                "attachment", attachment={"type": "queued_command", "prompt": "wait", "commandMode": mode}
            )
        assert roles(import_transcript(transcript, tmp_path)) == ["user", "user", "system"]

    def test_a_result_keeps_what_the_tool_knew_of_it_beside_what_the_model_saw(self, tmp_path: Path) -> None:
        session = import_transcript(shop_transcript(), tmp_path)
        assert message_at(session, 4).results[0].details == {NAME: {"stdout": "done"}}
        assert "stdout" not in json.dumps(session.messages("anthropic"))

    def test_results_that_came_on_one_line_are_told_one_by_one(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("go")
        transcript.answer(tool_use("a"), tool_use("b"))
        transcript.user([result("b"), result("a"), text("and stop")])
        assert roles(import_transcript(transcript, tmp_path)) == ["user", "assistant", "tool", "tool", "user"]

    def test_a_call_that_was_never_answered_is_told_so(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("go")
        transcript.answer(tool_use("a"))
        transcript.user("never mind")
        session, report = import_sound(transcript.write(tmp_path / "s.jsonl"))
        assert message_at(session, 3).results[0].outcome == "interrupted"
        assert loss_counts(report) == {"a tool call without a result; an error result was added": 1}


class TestTree:
    def test_what_was_rewound_is_a_branch(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("go")
        (answer,) = transcript.answer(text("gone"))
        transcript.user("left")
        transcript.answer(text("left too"))
        transcript.user("right", parent=answer["uuid"])
        session = import_transcript(transcript, tmp_path)
        assert [entry.message.text for entry in session.path() if entry.message] == ["go", "gone", "right"]
        assert [branch.parent_seq for branch in session.branches()] == [0, 2]

    def test_lines_hang_on_lines_that_nobody_said(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("go")
        for kind in ("progress", "system"):
            transcript.line(kind, subtype="turn_duration")
        transcript.answer(text("gone"))
        session = import_transcript(transcript, tmp_path)
        assert (roles(session), len(session.branches())) == (["user", "assistant"], 1)

    def test_a_line_that_was_written_again_is_taken_once(self, tmp_path: Path) -> None:
        """At a second compaction Claude Code writes lines again that are there."""
        transcript = shop_transcript()
        transcript.lines.extend(transcript.lines[:6])
        assert len(import_transcript(transcript, tmp_path).path()) == 8

    def test_a_line_before_its_parent_follows_it(self, tmp_path: Path) -> None:
        """A result was written one line before its call, and lost."""
        transcript = shop_transcript()
        whole = list(transcript.lines)
        for one, other in ((8, 7), (9, 8), (11, 12)):
            transcript.lines = list(whole)
            transcript.lines[one], transcript.lines[other] = transcript.lines[other], transcript.lines[one]
            session, report = import_sound(transcript.write(tmp_path / f"{one}.jsonl"))
            once, _ = import_sound(shop_transcript().write(tmp_path / "once.jsonl"))
            assert loss_counts(report) == {"a bookkeeping line of the tool": 2}
            assert sorted(map(str, (e.message for e in session.path()))) == sorted(
                map(str, (e.message for e in once.path()))
            )

    def test_a_parent_that_is_not_there_is_said(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("go")
        transcript.user("on", parent="gone")
        session, report = import_sound(transcript.write(tmp_path / "s.jsonl"))
        assert roles(session) == ["user", "user"]
        assert loss_counts(report) == {"a missing parent; the entry follows the previous one instead": 1}

    def test_where_no_line_says_what_it_follows_each_follows_the_last(self, tmp_path: Path) -> None:
        transcript = Transcript()
        for words in ("one", "two", "three"):
            transcript.user(words, parent=None)
        session = import_transcript(transcript, tmp_path)
        assert (roles(session), len(session.branches())) == (["user"] * 3, 1)

    def test_an_input_at_the_very_start_that_was_typed_anew_is_a_branch(self, tmp_path: Path) -> None:
        transcript = shop_transcript()
        transcript.user("Begin again", parent=None)
        session = import_transcript(transcript, tmp_path)
        assert (roles(session), len(session.branches())) == (["user"], 2)

    def test_a_ring_of_parents_is_walked_once(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.line("progress", "u-2")
        transcript.line("progress", "u-1")
        transcript.user("go", parent="u-1")
        transcript.user("me", parent="u-4")
        assert roles(import_transcript(transcript, tmp_path)) == ["user", "user"]


class TestCompaction:
    def test_the_model_sees_the_summary_in_place_of_what_lies_before(self, tmp_path: Path) -> None:
        transcript = shop_transcript()
        transcript.compact("They fixed the shop.")
        transcript.user("go on")
        session = import_transcript(transcript, tmp_path)
        compaction = session.path()[8].payload
        assert compaction == Compaction("They fixed the shop.", 9, 9_000, replaces_earlier=True)
        messages = session.messages("anthropic")
        assert len(messages) == 1
        assert [block["text"].rpartition("\n")[2] for block in messages[0]["content"]] == [
            "They fixed the shop.",
            "go on",
        ]

    def test_what_it_kept_is_kept(self, tmp_path: Path) -> None:
        transcript = shop_transcript()
        first_uuid = transcript.lines[4]["uuid"]
        transcript.compact("The beginning.", keeps=first_uuid)
        compaction = import_transcript(transcript, tmp_path).path()[8].payload
        assert isinstance(compaction, Compaction)
        assert compaction.first_kept == 3

    def test_versions_that_did_not_say_what_it_follows_are_followed(self, tmp_path: Path) -> None:
        transcript = shop_transcript()
        transcript.user("All so far.", parent=None, isCompactSummary=True)
        session = import_transcript(transcript, tmp_path)
        assert (roles(session)[-1], len(session.branches())) == ("compaction", 1)

    def test_results_taken_from_the_models_sight_are_said(self, tmp_path: Path) -> None:
        transcript = shop_transcript()
        transcript.line("system", subtype="microcompact_boundary")
        _, report = import_sound(transcript.write(tmp_path / "s.jsonl"))
        assert (
            loss_counts(report)["tool results the tool removed from the context; they stay in it here"] == 1
        )


def agent(session_id: str) -> Transcript:
    transcript = Transcript(session_id, "a")
    transcript.user("look", isSidechain=True, agentId="abc")
    transcript.answer(tool_use("sub", command="ls"), isSidechain=True, agentId="abc")
    transcript.results(result("sub"), isSidechain=True, agentId="abc")
    transcript.answer(text("found"), isSidechain=True, agentId="abc")
    return transcript


class TestSubagents:
    def test_one_in_a_file_below_is_a_task_named_by_what_lies_beside_it(self, tmp_path: Path) -> None:
        transcript = shop_transcript()
        place = transcript.write(tmp_path / "-home-ann" / f"{transcript.session_id}.jsonl")
        below = place.with_suffix("") / "subagents" / "agent-abc.jsonl"
        agent(transcript.session_id).write(below)
        below.with_name("agent-abc.meta.json").write_text('{"agentType": "Explore", "description": "look"}')
        session, report = import_sound(tmp_path)
        (task,) = tasks_of(session)
        assert (task.row.agent, task.row.title, task.row.relation) == ("Explore", "look", "task")
        assert report.added == (session.session_id, f"{session.session_id}-agent-abc")
        assert session.usage("tree").calls == 5
        assert import_sound(place)[1].added == report.added
        assert import_sound(below)[1].added == (f"{session.session_id}-agent-abc",)

    def test_one_in_a_file_beside_is_found_by_the_session_its_lines_name(self, tmp_path: Path) -> None:
        transcript = shop_transcript()
        transcript.write(tmp_path / f"{transcript.session_id}.jsonl")
        agent(transcript.session_id).write(tmp_path / "agent-abc.jsonl")
        session, _ = import_sound(tmp_path)
        assert [roles(task) for task in tasks_of(session)] == [["user", "assistant", "tool", "assistant"]]

    def test_those_in_the_same_file_are_told_apart(self, tmp_path: Path) -> None:
        transcript = shop_transcript()
        for mark in "xy":
            inner = Transcript(transcript.session_id, mark)
            inner.user(f"look {mark}", isSidechain=True)
            inner.answer(text(f"found {mark}"), isSidechain=True)
            transcript.lines[4:4] = inner.lines
        session = import_transcript(transcript, tmp_path)
        texts = [[message_at(task, seq).text for seq in (1, 2)] for task in tasks_of(session)]
        assert sorted(texts) == [["look x", "found x"], ["look y", "found y"]]
        assert len(session.path()) == 8

    def test_one_in_lines_of_progress_is_a_task_with_its_own_usage(self, tmp_path: Path) -> None:
        """3,741 calls of 83 real sessions were counted as bookkeeping."""
        transcript = shop_transcript()
        inner = Transcript(mark="i")
        inner.answer(thinking("where"), tool_use("toolu_i", "Grep", pattern="x"))
        inner.results(result("toolu_i", "a.py"))
        inner.answer(text("In a.py."))
        transcript.answer(tool_use("toolu_t", "Task", prompt="Find x"))
        for line in inner.lines:
            data = {"type": "agent_progress", "agentId": "a1b2", "prompt": "Find x", "normalizedMessages": []}
            message = {key: line[key] for key in ("type", "message", "uuid", "timestamp")}
            transcript.line("progress", data={**data, "message": message}, parentToolUseID="toolu_t")
        transcript.results(result("toolu_t", "In a.py."))
        transcript.answer(text("It is in a.py."))
        place = transcript.write(tmp_path / f"{transcript.session_id}.jsonl")
        session, report = import_sound(tmp_path)
        (task,) = tasks_of(session)
        assert task.session_id == f"{session.session_id}-agent-a1b2"
        assert roles(task) == ["user", "assistant", "tool", "assistant"]
        assert message_at(task, 1).text == "Find x"
        assert (task.usage().calls, session.usage().calls) == (2, 5)
        assert roles(session)[-3:] == ["assistant", "tool", "assistant"]
        assert loss_counts(report) == {"a bookkeeping line of the tool": 2}
        inner.write(place.with_suffix("") / "subagents" / "agent-a1b2.jsonl")
        (task,) = tasks_of(import_sound(tmp_path)[0])
        assert roles(task) == ["assistant", "tool", "assistant"]  # its own file goes before

    def test_one_whose_session_is_gone_stands_alone(self, tmp_path: Path) -> None:
        agent("../../etc/passwd").write(tmp_path / "agent-abc.jsonl")
        session, _ = import_sound(tmp_path)
        assert session.session_id == "claude-code-unknown-agent-abc"
        assert session.row.agent == "subagent"


class TestAgain:
    def test_twice_adds_nothing(self, store: Store, tmp_path: Path) -> None:
        place = shop_transcript().write(tmp_path / "s.jsonl")
        session, _ = import_sound(place, store)
        before = session.row
        _, again = import_sound(place, store)
        assert (again.added, again.entries, session.row) == ((), 0, before)

    def test_a_session_that_went_on_grows(self, store: Store, tmp_path: Path) -> None:
        transcript = shop_transcript()
        whole = list(transcript.lines)
        for many, entries in ((9, 4), (11, 2), (14, 2)):  # first in the middle of a step
            transcript.lines = whole[:many]
            session, report = import_sound(transcript.write(tmp_path / "s.jsonl"), store)
            assert report.entries == entries
        assert (session.row.title, session.usage().calls) == ("Fixing the shop", 3)
        assert len(session.branches()) == 1

    def test_an_answer_that_is_being_written_waits_until_it_is_complete(self, tmp_path: Path) -> None:
        sessions = oakleaf.open("memory:")
        transcript = shop_transcript()
        whole = list(transcript.lines)
        unfinished = []
        for many in (5, 6, 7, 14):
            transcript.lines = whole[:many]
            session, report = import_sound(transcript.write(tmp_path / "s.jsonl"), sessions)
            unfinished.append(report.unfinished)
        assert unfinished == [1, 1, 0, 0]
        assert len(session.path()) == 8

    def test_an_answer_that_nobody_completes_is_imported_when_the_file_has_come_to_rest(
        self, tmp_path: Path
    ) -> None:
        transcript = shop_transcript()
        transcript.lines = transcript.lines[:6]
        place = transcript.write(tmp_path / "s.jsonl")
        os.utime(place, (0, 0))
        session, report = import_sound(place)
        assert (roles(session), report.unfinished) == (["user", "system", "assistant"], 0)

    @pytest.mark.parametrize("age", [0, 60, 10_000])
    @pytest.mark.parametrize("stop", ["tool_use", None])
    def test_line_by_line_it_grows_into_the_same_ledger(
        self, store: Store, tmp_path: Path, age: int, stop: str | None
    ) -> None:
        """Calls were charged twice: once for each state of an answer that an import met."""
        transcript = shop_transcript()
        transcript.user("And then?")
        for index, line in enumerate(
            transcript.answer(thinking("hm"), text("so"), tool_use("toolu_9"), stop=stop)
        ):
            line["message"]["usage"] = {**USAGE, "output_tokens": index + 1}
        transcript.results(result("toolu_9"))
        transcript.answer(text("Done."))
        for line in (
            transcript.lines[:-1] if stop is None else ()
        ):  # versions that write as it streams have no reason yet
            line.get("message", {}).pop("stop_reason", None)
        whole, place = list(transcript.lines), tmp_path / "s.jsonl"
        for many in range(2, len(whole) + 1):
            transcript.lines = whole[:many]
            transcript.write(place)
            os.utime(place, (time.time() - age,) * 2)
            grown, _ = import_sound(place, store)
        once, _ = import_sound(place)
        assert [entry.payload for entry in grown.path()] == [entry.payload for entry in once.path()]
        assert grown.usage("path") == grown.usage() == once.usage()
        usages = [sorted(map(str, (call.usage for call in one.model_calls()))) for one in (grown, once)]
        assert (usages[0], grown.usage().calls) == (usages[1], 5)
        if age == 0 or (age == 60 and stop is None):
            assert len(grown.branches()) == 1

    def test_a_title_that_changed_is_changed_unless_it_was_given_here(self, tmp_path: Path) -> None:
        sessions = oakleaf.open("memory:")
        transcript = shop_transcript()
        for title in ("Fixing the shop", "Shop, again"):
            transcript.detached_line("ai-title", aiTitle=title)
            session, _ = import_sound(transcript.write(tmp_path / "s.jsonl"), sessions)
            assert session.row.title == title
        session.title("Mine")
        transcript.detached_line("ai-title", aiTitle="Another")
        session, _ = import_sound(transcript.write(tmp_path / "s.jsonl"), sessions)
        assert session.row.title == "Mine"

    @pytest.mark.parametrize("cut", range(2, 19))
    def test_whenever_it_was_first_taken_in_it_ends_the_same(self, tmp_path: Path, cut: int) -> None:
        transcript = shop_transcript()
        transcript.compact("So far.", keeps="u-3")
        transcript.user("on")
        transcript.answer(text("ok"))
        transcript.user("another way", parent="u-1")
        whole, place = list(transcript.lines), tmp_path / "s.jsonl"
        sessions = oakleaf.open("memory:")
        for many in (cut, len(whole)):
            transcript.lines = whole[:many]
            grown, _ = import_sound(transcript.write(place), sessions)
        once, _ = import_sound(place)
        assert [entry.payload for entry in grown.path()] == [entry.payload for entry in once.path()]
        assert grown.usage("path") == once.usage("path")

    def test_a_branch_and_a_sub_agent_that_came_since_grow_too(self, tmp_path: Path) -> None:
        sessions = oakleaf.open("memory:")
        transcript = shop_transcript()
        place = transcript.write(tmp_path / f"{transcript.session_id}.jsonl")
        import_sound(tmp_path, sessions)
        transcript.user("another way", parent=transcript.lines[1]["uuid"])
        transcript.write(place)
        agent(transcript.session_id).write(place.with_suffix("") / "subagents" / "agent-abc.jsonl")
        session, report = import_sound(tmp_path, sessions)
        assert (report.entries, len(session.branches()), len(tasks_of(session))) == (5, 2, 1)
        assert message_at(session, 2).text == "another way"


class TestSource:
    def test_it_is_only_read(self, tmp_path: Path) -> None:
        transcript = shop_transcript()
        place = transcript.write(tmp_path / "project" / f"{transcript.session_id}.jsonl")
        before = (place.read_bytes(), place.stat().st_mtime_ns, sorted(tmp_path.rglob("*")))
        import_sound(tmp_path)
        assert before == (place.read_bytes(), place.stat().st_mtime_ns, sorted(tmp_path.rglob("*")))

    def test_a_file_without_a_conversation_is_passed_over_unless_it_was_named(self, tmp_path: Path) -> None:
        """There are many: titles of other sessions, backups of files."""
        shop_transcript().write(tmp_path / "s.jsonl")
        transcript = Transcript()
        transcript.detached_line("summary", summary="Of another session", leafUuid="elsewhere")
        transcript.detached_line("file-history-snapshot")
        place = transcript.write(tmp_path / "titles.jsonl")
        assert [one.source for one in oakleaf.open("memory:").import_from(NAME, str(tmp_path))] == ["s"]
        (report,) = oakleaf.open("memory:").import_from(NAME, str(place))
        assert report.error is not None

    def test_without_a_place_its_own_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(OakleafError, match=r"nothing is at ~/\.claude/projects"):
            list(oakleaf.open("memory:").import_from(NAME))
        shop_transcript().write(tmp_path / ".claude" / "projects" / "-home-ann" / "s.jsonl")
        assert [one.session_id for one in oakleaf.open("memory:").import_from(NAME)] == ["claude-code-s"]

    def test_the_command_says_what_would_be_taken_and_what_lost(self, tmp_path: Path) -> None:
        shop_transcript().write(tmp_path / "source" / "s.jsonl")
        store = tmp_path / "agent.db"
        done = command("import", "--from", NAME, tmp_path / "source", "--dry-run", store=store)
        assert done.code == 0
        assert "claude-code-s  8 entries  Fixing the shop" in done.out
        assert "lost 2 × a bookkeeping line of the tool (queue-operation, file-history-snapshot)" in done.err
        assert not store.exists()


ODD: list[Any] = [
    None,
    7,
    -1,
    2**70,
    1.5,
    True,
    "",
    "\x00",
    "\ud800",
    [],
    [7],
    {},
    {"type": 7},
    "u-1",
    "x" * 100,
]


def import_hostile(place: Path) -> list[ToolImportResult]:
    sessions = oakleaf.open("memory:")
    reports = list(sessions.import_from(NAME, str(place)))
    for report in reports:
        for name in report.added:
            session = sessions.session(name)
            assert session.verify() == []
            for provider in wire.PROVIDERS:
                assert wire.find_provider(provider).violations(session.request(provider)) == []
    again = list(sessions.import_from(NAME, str(place)))
    assert [one.entries for one in again] == [0] * len(reports)
    return reports


class TestHostile:
    @pytest.mark.parametrize("odd", ODD)
    @pytest.mark.parametrize(
        "key", ["uuid", "parentUuid", "type", "message", "timestamp", "cwd", "isSidechain"]
    )
    def test_a_value_of_another_kind_costs_its_line_and_no_more(
        self, tmp_path: Path, key: str, odd: Any
    ) -> None:
        transcript = shop_transcript()
        transcript.lines[4][key] = odd
        (report,) = import_hostile(transcript.write(tmp_path / "s.jsonl"))
        assert report.error is None
        assert report.entries >= 6

    def test_a_line_of_ten_megabytes_and_half_a_character_are_taken(self, tmp_path: Path) -> None:
        transcript = shop_transcript()
        transcript.user("x" * 10_000_000)
        transcript.user("cut \ud83d here \x00")
        session, report = import_sound(transcript.write(tmp_path / "s.jsonl"))
        assert message_at(session, 10).text == "cut \ufffd here \x00"
        assert loss_counts(report)["half a character, replaced by U+FFFD"] == 1

    def test_a_title_that_names_no_line_costs_nothing(self, tmp_path: Path) -> None:
        """A list was looked up among the lines: a traceback, and the end of the folder's import."""
        transcript = shop_transcript()
        transcript.lines = [line for line in transcript.lines if line["type"] != "ai-title"]
        transcript.detached_line("summary", summary="Of something", leafUuid=["u-1"])
        transcript.write(tmp_path / "a.jsonl")
        shop_transcript().write(tmp_path / "b.jsonl")
        assert [report.entries for report in import_hostile(tmp_path)] == [8, 8]

    def test_a_byte_order_mark_is_no_part_of_the_first_line(self, tmp_path: Path) -> None:
        transcript = Transcript()
        transcript.user("first")
        place = transcript.write(tmp_path / "s.jsonl")
        place.write_bytes(b"\xef\xbb\xbf" + place.read_bytes())
        session, report = import_sound(place)
        assert (roles(session), report.losses) == (["user"], {})

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.jsonl")
        shop_transcript().write(tmp_path / "s.jsonl")
        reports = import_hostile(tmp_path)
        assert [report.entries for report in reports] == [0, 8]
        assert loss_counts(reports[0]) == {"a file that is not a regular one": 1}
        with pytest.raises(InvalidSource, match="neither a file nor a folder"):
            import_hostile(tmp_path / "pipe.jsonl")

    def test_a_line_that_is_too_long_is_skipped_in_little_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 100_000)
        transcript = shop_transcript()
        whole = list(transcript.lines)
        transcript.lines = [*whole[:2], {"type": "user", "message": "x" * 30_000_000}, *whole[2:]]
        place = transcript.write(tmp_path / "s.jsonl")
        tracemalloc.start()
        (report,) = import_hostile(place)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (report.entries, loss_counts(report)["a line longer than 64 MB"]) == (8, 1)
        assert peak < 10_000_000

    def test_a_broken_file_loses_no_other(self, tmp_path: Path) -> None:
        shop_transcript().write(tmp_path / "good.jsonl")
        (tmp_path / "bad.jsonl").write_bytes(
            bytes(range(256)) * 40 + b"[" * 100_000 + b'\n{"type": "user", "mess'
        )
        reports = import_hostile(tmp_path)
        assert [(one.session_id, one.entries) for one in reports] == [
            ("claude-code-bad", 0),
            ("claude-code-good", 8),
        ]
        assert loss_counts(reports[0])["a line that is not JSON"] > 0
