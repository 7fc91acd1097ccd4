"""Rollouts of Codex: what becomes of their lines."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from backports import zstd

from oakleaf.core.entries import Compaction, Note, Settings
from oakleaf.core.messages import Media, Reasoning, Text, ToolCall
from oakleaf.store import Store
from support.import_sources import (
    Record,
    entries_of,
    file_contents,
    import_all,
    import_one,
    memory_store,
    message_texts,
    store,
    write_jsonl,
)

__all__ = ["store"]

THREAD = "0199aaaa-0000-7000-8000-000000000001"
CHILD = "0199aaaa-0000-7000-8000-000000000002"
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n and the rest").decode()


def line(kind: str, payload: Record, second: int = 0) -> Record:
    return {"timestamp": f"2026-03-01T10:00:{second:02d}.500Z", "type": kind, "payload": payload}


def meta(thread: str = THREAD, **more: Any) -> Record:
    head = {
        "id": thread,
        "timestamp": "2026-03-01T10:00:00Z",
        "cwd": "/home/ann/shop",
        "cli_version": "0.90.0",
    }
    about = {"originator": "codex_cli", "source": "cli", "model_provider": "openai"}
    return line("session_meta", head | about | {"base_instructions": {"text": "You write code."}} | more)


def item(kind: str, second: int = 1, **fields: Any) -> Record:
    return line("response_item", {"type": kind, **fields}, second)


def message_item(role: str, words: str, second: int = 1, **more: Any) -> Record:
    part = "output_text" if role == "assistant" else "input_text"
    return item("message", second, role=role, content=[{"type": part, "text": words}], **more)


def token_count_line(total: tuple[int, int, int], last: tuple[int, int, int], second: int = 2) -> Record:
    names = ("input_tokens", "cached_input_tokens", "output_tokens")
    info = {"total_token_usage": dict(zip(names, total, strict=True))}
    info["last_token_usage"] = dict(zip(names, last, strict=True))
    return line("event_msg", {"type": "token_count", "info": info, "rate_limits": None}, second)


TURN = line("turn_context", {"model": "gpt-5-codex", "cwd": "/home/ann/shop", "approval_policy": "never"})

SAMPLE: list[Record] = [
    meta(),
    message_item("developer", "<permissions instructions>read only</permissions instructions>"),
    message_item("user", "<environment_context>\n<cwd>/home/ann/shop</cwd>\n</environment_context>"),
    TURN,
    message_item("user", "Why does the test fail?", 1),
    line("event_msg", {"type": "user_message", "message": "Why does the test fail?"}),
    item(
        "reasoning",
        2,
        id="rs_1",
        summary=[{"type": "summary_text", "text": "Look first."}],
        encrypted_content="gAAA",
    ),
    message_item("assistant", "I look.", 2, id="msg_1", phase="commentary"),
    item("function_call", 2, id="fc_1", name="shell", arguments='{"command":["ls"]}', call_id="call_1"),
    line("event_msg", {"type": "agent_message", "message": "I look."}),
    token_count_line((100, 40, 10), (100, 40, 10)),
    token_count_line((100, 40, 10), (100, 40, 10)),
    item("function_call_output", 3, call_id="call_1", output="test_shop.py"),
    item("custom_tool_call", 4, call_id="call_2", name="apply_patch", input="*** Begin Patch"),
    token_count_line((250, 90, 30), (150, 50, 20), 4),
    item("custom_tool_call_output", 5, call_id="call_2", output="Done"),
    message_item("assistant", "It is mended.", 6, id="msg_2"),
    token_count_line((450, 190, 35), (200, 100, 5), 6),
]


class TestARollout:
    def test_becomes_a_session_with_its_calls_results_and_reasoning(
        self, store: Store, tmp_path: Path
    ) -> None:
        write_jsonl(tmp_path / "rollout-1.jsonl", SAMPLE)
        session, report = import_one(store, "codex", tmp_path)

        path = entries_of(session)
        roles = [entry.role for entry in path]
        assert roles == [
            *("system", "system", "user", "user", "assistant", "tool"),
            *("assistant", "tool", "assistant"),
        ]
        answer = path[4].message
        assert answer is not None
        assert answer.parts == (
            Reasoning("Look first."),
            Text("I look."),
            ToolCall("call_1", "shell", {"command": ["ls"]}),
        )
        assert path[6].message is not None
        assert path[6].message.calls == (ToolCall("call_2", "apply_patch", {"input": "*** Begin Patch"}),)
        assert (session.session_id, report.losses) == (f"codex-{THREAD}", {})

    def test_its_prompt_and_what_codex_adds_before_the_first_input_are_seeds(
        self, store: Store, tmp_path: Path
    ) -> None:
        write_jsonl(tmp_path / "rollout-1.jsonl", SAMPLE)
        session, _ = import_one(store, "codex", tmp_path)
        assert session.row.seed_count == 3
        assert session.request("openai")["instructions"].startswith("You write code.")
        assert [entry.turn for entry in entries_of(session)] == [0, 0, 0, 4, 4, 4, 4, 4, 4]

    def test_keeps_the_times_the_model_and_the_working_directory(self, store: Store, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "rollout-1.jsonl", SAMPLE)
        session, _ = import_one(store, "codex", tmp_path)
        row = store.backend.session(session.session_id)
        assert row.tags == {"imported_from": "codex", "cwd": "/home/ann/shop"}
        assert row.started_at == 1_772_359_200_000_000
        answers = [entry for entry in entries_of(session) if entry.role == "assistant"]
        assert {entry.model for entry in answers} == {"gpt-5-codex"}
        assert [entry.at % 60_000_000 for entry in answers] == [2_500_000, 4_500_000, 6_500_000]

    def test_counts_usage_once_however_often_it_was_told(self, store: Store, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "rollout-1.jsonl", SAMPLE)
        session, _ = import_one(store, "codex", tmp_path)
        usage = session.usage()
        assert (usage.calls, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (
            3,
            450,
            35,
            190,
        )
        assert {(call.provider, call.model) for call in session.model_calls()} == {("openai", "gpt-5-codex")}

    def test_going_on_with_openai_gives_back_what_it_encrypted(self, store: Store, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "rollout-1.jsonl", SAMPLE)
        session, _ = import_one(store, "codex", tmp_path)
        reasoning = [i for i in session.messages("openai") if i.get("type") == "reasoning"]
        assert [(i["id"], i["encrypted_content"]) for i in reasoning] == [("rs_1", "gAAA")]

    def test_reasoning_of_another_provider_is_not_shown_to_openai(self, store: Store, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "rollout-1.jsonl", [meta(model_provider="azure"), *SAMPLE[1:]])
        session, _ = import_one(store, "codex", tmp_path)
        assert all(entry.evidence is None for entry in entries_of(session))

    def test_its_name_comes_from_the_index_of_its_home(self, store: Store, tmp_path: Path) -> None:
        names = [{"id": THREAD, "thread_name": name, "updated_at": ""} for name in ("Old", "Mend the shop")]
        write_jsonl(tmp_path / "session_index.jsonl", names)
        write_jsonl(tmp_path / "sessions/2026/03/01/rollout-1.jsonl", SAMPLE)
        session, _ = import_one(store, "codex", tmp_path / "sessions")
        assert store.backend.session(session.session_id).title == "Mend the shop"

    def test_pictures_are_kept_as_blobs(self, store: Store, tmp_path: Path) -> None:
        image = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}
        generation = item("image_generation_call", 2, id="ig_1", status="completed", result=PIXEL)
        write_jsonl(
            tmp_path / "rollout-1.jsonl", [meta(), item("message", role="user", content=[image]), generation]
        )
        session, _ = import_one(store, "codex", tmp_path)
        media = [part for entry in entries_of(session)[1:] for part in entry.message.parts]  # type: ignore[union-attr]
        assert [part.mime for part in media if isinstance(part, Media)] == ["image/png", "image/png"]
        assert isinstance(media[0], Media)
        assert (store.blob(media[0]) or b"").startswith(b"\x89PNG")

    def test_what_codex_says_in_the_users_name_opens_no_turn(self, store: Store, tmp_path: Path) -> None:
        aborted = message_item("user", "<turn_aborted>\nstopped\n</turn_aborted>", 7)
        write_jsonl(tmp_path / "rollout-1.jsonl", [*SAMPLE, aborted, message_item("user", "Go on.", 8)])
        session, _ = import_one(store, "codex", tmp_path)
        assert [entry.role for entry in entries_of(session)][-2:] == ["system", "user"]
        assert store.backend.session(session.session_id).turns == 2

    def test_what_is_said_while_calls_are_open_waits_for_their_results(
        self, store: Store, tmp_path: Path
    ) -> None:
        between = [message_item("developer", "You may write.", 3), message_item("user", "Hurry.", 3)]
        write_jsonl(tmp_path / "rollout-1.jsonl", [*SAMPLE[:12], *between, *SAMPLE[12:]])
        session, report = import_one(store, "codex", tmp_path)
        roles = [entry.role for entry in entries_of(session)]
        assert roles[4:] == ["assistant", "tool", "system", "user", "assistant", "tool", "assistant"]
        assert report.losses == {}

    def test_reasoning_without_its_id_is_kept(self, store: Store, tmp_path: Path) -> None:
        reasoning = item("reasoning", 2, summary=[], encrypted_content="gAAA")
        write_jsonl(
            tmp_path / "rollout-1.jsonl", [*SAMPLE[:5], reasoning, message_item("assistant", "Yes.", 3)]
        )
        session, report = import_one(store, "codex", tmp_path)
        evidence = entries_of(session)[-1].evidence
        assert evidence is not None
        assert evidence.parts == {"0": {"encrypted_content": "gAAA"}}
        assert [loss.count for loss in report.losses.values()] == [1]

    def test_one_in_which_nobody_spoke_is_passed_over(self, store: Store, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "rollout-1.jsonl", SAMPLE[:4])
        assert import_all(store, "codex", tmp_path) == []

    def test_lines_of_the_first_versions_are_read_too(self, store: Store, tmp_path: Path) -> None:
        old = [{"id": THREAD, "timestamp": "2025-05-01T10:00:00Z", "instructions": "Be brief."}]
        old += [{"record_type": "state"}, SAMPLE[4]["payload"], SAMPLE[16]["payload"]]
        write_jsonl(tmp_path / "rollout-1.jsonl", old)
        session, report = import_one(store, "codex", tmp_path)
        assert [entry.role for entry in entries_of(session)] == ["system", "user", "assistant"]
        assert report.losses == {}

    def test_keeps_exit_codes_and_diffs_for_the_host(self, store: Store, tmp_path: Path) -> None:
        changes = {"/home/ann/shop/a.py": {"type": "update", "unified_diff": "@@ -1 +1 @@\n-a\n+b\n"}}
        ended = {
            "type": "exec_command_end",
            "call_id": "call_1",
            "exit_code": 2,
            "duration": {"secs": 1, "nanos": 5},
        }
        patched = {
            "type": "patch_apply_end",
            "call_id": "call_2",
            "success": True,
            "changes": changes,
            "stdout": "ok",
        }
        sample = list(SAMPLE)
        sample.insert(12, line("event_msg", {**ended, "aggregated_output": "long"}, 3))
        sample.insert(16, line("event_msg", patched, 5))
        for number, output in enumerate(
            [
                '{"output":"x","metadata":{"exit_code":1,"duration_seconds":0.1}}',
                "Exit code: 3\nWall time: 1 s\nOutput:\nx",
            ]
        ):
            sample.append(item("function_call", 7, name="shell", arguments="{}", call_id=f"more_{number}"))
            sample.append(item("function_call_output", 8, call_id=f"more_{number}", output=output))
        session, _ = import_one(store, "codex", write_jsonl(tmp_path / "rollout-a.jsonl", sample))
        results = [part for entry in entries_of(session) if entry.message for part in entry.message.results]
        assert [(part.details or {}).get("codex") for part in results] == [
            {"exit_code": 2, "duration": {"secs": 1, "nanos": 5}},
            {"success": True, "changes": changes},
            {"exit_code": 1},
            {"exit_code": 3},
        ]
        assert [part.error for part in results] == [True, False, True, True]

    def test_its_effort_is_an_option_from_where_it_was_set(self, store: Store, tmp_path: Path) -> None:
        sample = list(SAMPLE)
        for at, effort in ((len(sample), "high"), (3, "low")):
            sample.insert(at, line("turn_context", {"model": "gpt-5-codex", "effort": effort}))
        sample += [message_item("user", "More?", 7), message_item("assistant", "No.", 8)]
        session, report = import_one(store, "codex", write_jsonl(tmp_path / "rollout-a.jsonl", sample))
        settings = [e.payload.options for e in entries_of(session) if isinstance(e.payload, Settings)]
        assert settings == [{"effort": "low"}, {"effort": "high"}]
        assert session.row.turns == 2
        assert session.request("openai")["reasoning"]["effort"] == "high"
        assert report.missing == ("tool definitions",)

    def test_keeps_the_git_branch_and_the_last_name(self, store: Store, tmp_path: Path) -> None:
        names = [
            line("event_msg", {"type": "thread_name_updated", "thread_name": name}) for name in ("One", "Two")
        ]
        sample = [meta(git={"branch": "main", "commit_hash": "abc"}), *SAMPLE[1:], names[0]]
        place = tmp_path / "rollout-a.jsonl"
        session, _ = import_one(store, "codex", write_jsonl(place, sample))
        assert (session.row.tags["git_branch"], session.row.title) == ("main", "One")
        session, report = import_one(store, "codex", write_jsonl(place, [*sample, names[1]]))
        assert (session.row.title, report.entries) == ("Two", 0)

    def test_a_picture_that_cannot_be_read_costs_no_words(self, store: Store, tmp_path: Path) -> None:
        """One unreadable image dropped the whole prompt."""
        content = [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_image", "image_url": "data:image/png;base64,%%%"},
            {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
        ]
        sample = [*SAMPLE, item("message", 7, role="user", content=content)]
        session, report = import_one(store, "codex", write_jsonl(tmp_path / "rollout-a.jsonl", sample))
        message = entries_of(session)[-1].message
        assert message is not None
        assert [type(part) for part in message.parts] == [Text, Media]
        assert report.losses["a piece of a message that cannot be read"].count == 1

    def test_says_what_it_lost(self, store: Store, tmp_path: Path) -> None:
        search = item("web_search_call", 7, id="ws_1", action={"type": "search", "query": "pytest"})
        strange = [line("hologram", {}), item("dream", 7, text="?"), search]
        write_jsonl(tmp_path / "rollout-1.jsonl", [*SAMPLE, *strange])
        (tmp_path / "rollout-2.jsonl.zst").write_bytes(b"(\xb5/\xfd")
        _, report = import_one(store, "codex", tmp_path)
        assert {what: loss.count for what, loss in report.losses.items()} == {
            "an item of unknown kind, kept as a note": 2,
            "a search the provider ran": 1,
            "a file that cannot be read": 1,
        }


class TestACompaction:
    SUMMARY = "They mend a test."

    def compacted(self, *history: Record) -> Record:
        return line("compacted", {"message": self.SUMMARY, "replacement_history": list(history)}, 7)

    def test_shows_the_model_what_it_saw_inputs_kept_and_summary(self, store: Store, tmp_path: Path) -> None:
        message = message_item("user", "Why does the test fail?")["payload"]
        summary = message_item("user", self.SUMMARY)["payload"]
        write_jsonl(
            tmp_path / "rollout-1.jsonl",
            [*SAMPLE, self.compacted(message, summary), message_item("user", "And now?", 8)],
        )
        session, _ = import_one(store, "codex", tmp_path)
        compaction = entries_of(session)[-2].payload
        assert isinstance(compaction, Compaction)
        assert compaction.summary == "Why does the test fail?\n\nThey mend a test."
        assert compaction.first_kept == 10
        assert len(session.messages("openai")) == 2

    def test_only_openai_can_read_leaves_the_whole_history_in_view(
        self, store: Store, tmp_path: Path
    ) -> None:
        sealed = {"type": "compaction", "encrypted_content": "gAAA"}
        write_jsonl(tmp_path / "rollout-1.jsonl", [*SAMPLE, self.compacted(sealed)])
        session, report = import_one(store, "codex", tmp_path)
        assert len(entries_of(session)) == 9
        assert [loss.count for loss in report.losses.values()] == [1]

    def test_is_paid_for_though_it_left_no_answer(self, store: Store, tmp_path: Path) -> None:
        more = token_count_line((950, 190, 45), (500, 0, 10), 7)
        write_jsonl(tmp_path / "rollout-1.jsonl", [*SAMPLE, more])
        session, _ = import_one(store, "codex", tmp_path)
        assert isinstance(entries_of(session)[-1].payload, Note)
        assert (session.usage().calls, session.usage().input_tokens) == (4, 950)


class TestARollback:
    def test_leaves_a_branch_and_stands_where_codex_stood(self, store: Store, tmp_path: Path) -> None:
        wrong = [message_item("user", "Delete it.", 7), message_item("assistant", "Deleted.", 8)]
        back = line("event_msg", {"type": "thread_rolled_back", "num_turns": 1}, 9)
        right = [message_item("user", "Keep it.", 10), message_item("assistant", "Kept.", 11)]
        write_jsonl(tmp_path / "rollout-1.jsonl", [*SAMPLE, *wrong, back, *right])
        session, _ = import_one(store, "codex", tmp_path)
        assert [e.message.text for e in entries_of(session)[-2:] if e.message] == ["Keep it.", "Kept."]
        assert [branch.parent_seq for branch in session.branches()] == [0, 9]

    def test_at_the_end_is_a_move_of_the_leaf(self, store: Store, tmp_path: Path) -> None:
        wrong = [message_item("user", "Delete it.", 7), message_item("assistant", "Deleted.", 8)]
        back = line("event_msg", {"type": "thread_rolled_back", "num_turns": 1}, 9)
        write_jsonl(tmp_path / "rollout-1.jsonl", [*SAMPLE, *wrong, back])
        session, _ = import_one(store, "codex", tmp_path)
        assert session.leaf.seq == 9


class TestSubAgents:
    def child(self, parent: str = THREAD) -> list[Record]:
        spawned = {"subagent": {"thread_spawn": {"parent_thread_id": parent, "depth": 1}}}
        task = line(
            "inter_agent_communication", {"author": "/root", "recipient": "/root/a", "content": "Read it."}
        )
        return [meta(CHILD, source=spawned, agent_role="reader"), task, message_item("assistant", "Read.")]

    def test_are_tasks_of_the_session_that_started_them(self, store: Store, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "rollout-2.jsonl", SAMPLE)
        write_jsonl(tmp_path / "rollout-1.jsonl", self.child())
        (report,) = import_all(store, "codex", tmp_path)
        assert report.added == (f"codex-{THREAD}", f"codex-{CHILD}")
        row = store.backend.session(f"codex-{CHILD}")
        assert (row.relation, row.parent_session, row.agent) == ("task", f"codex-{THREAD}", "reader")

    def test_without_their_parent_stand_for_themselves(self, store: Store, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "rollout-1.jsonl", self.child())
        session, _ = import_one(store, "codex", tmp_path)
        assert store.backend.session(session.session_id).relation == "import"

    def test_in_a_ring_are_all_taken_in(self, store: Store, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "rollout-1.jsonl", self.child())
        spawned = {"subagent": {"thread_spawn": {"parent_thread_id": CHILD}}}
        write_jsonl(tmp_path / "rollout-2.jsonl", [meta(source=spawned), *SAMPLE[1:]])
        (report,) = import_all(store, "codex", tmp_path)
        assert len(report.added) == 2

    def test_name_the_session_when_they_name_no_parent(self, store: Store, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "rollout-1.jsonl", [meta(session_id=THREAD), *SAMPLE[1:]])
        review = meta(CHILD, session_id=THREAD, source={"subagent": "review"})
        write_jsonl(tmp_path / "rollout-2.jsonl", [review, message_item("assistant", "Fine.")])
        (report,) = import_all(store, "codex", tmp_path)
        assert report.added == (f"codex-{THREAD}", f"codex-{CHILD}")

    def test_do_not_pay_again_for_the_history_they_were_given(self, store: Store, tmp_path: Path) -> None:
        copied = [{**each, "ordinal": number} for number, each in enumerate(SAMPLE, 1)]
        own = {**message_item("assistant", "Read.", 9), "ordinal": len(SAMPLE) + 1}
        spent = {**token_count_line((500, 200, 40), (50, 10, 5), 9), "ordinal": len(SAMPLE) + 2}
        start = len(SAMPLE) + 1
        head = {**meta(CHILD, subagent_history_start_ordinal=start, parent_thread_id=THREAD), "ordinal": 0}
        write_jsonl(tmp_path / "rollout-1.jsonl", [head, *copied, own, spent])
        session, _ = import_one(store, "codex", tmp_path)
        assert (session.usage().calls, session.usage().input_tokens) == (1, 50)


def numbered(records: list[Record], start: int = 0) -> list[Record]:
    """Return lines as paginated history has them."""
    return [{**record, "ordinal": number} for number, record in enumerate(records, start)]


def completed(kind: str, second: int = 3, **fields: Any) -> Record:
    return line(
        "event_msg", {"type": "item_completed", "turn_id": "t", "item": {"type": kind, **fields}}, second
    )


class TestPaginatedHistory:
    PAGINATED = [meta(history_mode="paginated"), *SAMPLE[1:]]

    def fork(self, base: str, end: int, thread: str = CHILD, *more: Record) -> list[Record]:
        position = {"thread_id": base, "end_ordinal_exclusive": end, "end_byte_offset": 0}
        return numbered([meta(thread, history_mode="paginated", history_base=position), *more], end)

    def test_keeps_what_completed_items_say_about_calls(self, store: Store, tmp_path: Path) -> None:
        at = next(n for n, each in enumerate(SAMPLE) if each["payload"].get("type") == "function_call_output")
        more = [
            completed("UserMessage", id="u", content=[]),
            completed("CommandExecution", id="call_1", exit_code=2, status="failed", cwd="/home"),
            completed("FileChange", id="call_2", status="declined", changes={}),
        ]
        write_jsonl(tmp_path / "rollout-1.jsonl", numbered([*SAMPLE[:at], *more, *SAMPLE[at:]]))
        session, report = import_one(store, "codex", tmp_path)
        results = [part for entry in entries_of(session) if entry.message for part in entry.message.results]
        assert [result.error for result in results] == [True, True]
        assert results[0].details == {"codex": {"exit_code": 2, "status": "failed", "cwd": "/home"}}
        assert report.losses == {}

    def test_keeps_unknown_items_and_events_as_notes(self, store: Store, tmp_path: Path) -> None:
        strange = [completed("Hologram", 7, rays=[1]), line("event_msg", {"type": "beamed", "to": "ship"}, 8)]
        write_jsonl(tmp_path / "rollout-1.jsonl", [*SAMPLE, *strange])
        session, report = import_one(store, "codex", tmp_path)
        notes = [entry.payload for entry in entries_of(session) if isinstance(entry.payload, Note)]
        assert [note.data["kind"] for note in notes] == ["Hologram", "beamed"]
        assert report.losses["an item of unknown kind, kept as a note"].count == 2

    def test_of_a_fork_begins_in_the_rollout_it_names(self, store: Store, tmp_path: Path) -> None:
        write_jsonl(tmp_path / f"rollout-1-{THREAD}.jsonl", numbered(self.PAGINATED))
        asked = [message_item("user", "And why?", 20), message_item("assistant", "A typo.", 21)]
        spent = token_count_line((600, 200, 40), (150, 10, 5), 22)
        fork = self.fork(THREAD, len(SAMPLE), CHILD, *asked, spent)
        write_jsonl(tmp_path / f"rollout-2-{CHILD}.jsonl", fork)
        import_all(store, "codex", tmp_path)
        origin, copy = store.session(f"codex-{THREAD}"), store.session(f"codex-{CHILD}")
        assert message_texts(copy) == [*message_texts(origin), "And why?", "A typo."]
        assert (origin.usage().calls, origin.usage().input_tokens) == (3, 450)
        assert (copy.usage().calls, copy.usage().input_tokens) == (1, 150)

    def test_of_a_fork_is_found_among_the_archived(self, store: Store, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "archived_sessions" / f"rollout-1-{THREAD}.jsonl", numbered(self.PAGINATED))
        fork = self.fork(THREAD, 6, CHILD, message_item("assistant", "A typo.", 21))
        place = write_jsonl(tmp_path / "sessions" / "2026" / f"rollout-2-{CHILD}.jsonl", fork)
        session, report = import_one(store, "codex", place)
        assert message_texts(session)[-2:] == ["Why does the test fail?", "A typo."]
        assert report.losses == {}

    def test_of_a_fork_whose_origin_is_gone_is_counted(self, store: Store, tmp_path: Path) -> None:
        fork = self.fork(THREAD, 6, CHILD, message_item("user", "Go on.", 21))
        session, report = import_one(store, "codex", write_jsonl(tmp_path / "rollout-2.jsonl", fork))
        assert message_texts(session)[-1] == "Go on."
        assert report.losses["the beginning, which is in another rollout file"].count == 1

    def test_of_forks_in_a_ring_ends(self, store: Store, tmp_path: Path) -> None:
        for one, other in ((THREAD, CHILD), (CHILD, THREAD)):
            ring = self.fork(other, 5, one, message_item("user", "Go on.", 21))
            write_jsonl(tmp_path / f"rollout-1-{one}.jsonl", ring)
        assert len(import_all(store, "codex", tmp_path)) == 2

    def test_that_was_reverted_leaves_a_branch(self, store: Store, tmp_path: Path) -> None:
        wrong = [message_item("user", "Delete it.", 7), message_item("assistant", "Deleted.", 8)]
        before = [*self.PAGINATED, *wrong]
        write_jsonl(tmp_path / f"rollout-1-{THREAD}.jsonl", numbered(before))
        with memory_store() as at_once:
            import_one(store, "codex", tmp_path)
            right = [message_item("user", "Keep it.", 10), message_item("assistant", "Kept.", 11)]
            again = self.fork(THREAD, len(self.PAGINATED), THREAD, *right)
            write_jsonl(tmp_path / f"rollout-2-{THREAD}_{CHILD}.jsonl", again)
            session, report = import_one(store, "codex", tmp_path)
            assert message_texts(session)[-2:] == ["Keep it.", "Kept."]
            assert [branch.parent_seq for branch in session.branches()] == [0, 9]
            whole, _ = import_one(at_once, "codex", tmp_path)
            assert [e.entry_id for e in whole.path()] == [e.entry_id for e in session.path()]
            assert whole.usage() == session.usage()
            assert report.losses == {}


class TestCompressedRollouts:
    def compress(self, path: Path) -> Path:
        compressed = path.with_name(f"{path.name}.zst")
        compressed.write_bytes(zstd.compress(path.read_bytes()))
        os.utime(compressed, (time.time() - 3_600,) * 2)
        path.unlink()
        return compressed

    def test_are_the_same_session_as_before(self, store: Store, tmp_path: Path) -> None:
        path = write_jsonl(tmp_path / "rollout-1.jsonl", SAMPLE)
        plain, _ = import_one(store, "codex", tmp_path)
        before = [entry.entry_id for entry in plain.path()]
        self.compress(path)
        again, report = import_one(store, "codex", tmp_path)
        assert (report.entries, report.losses) == (0, {})
        assert [entry.entry_id for entry in again.path()] == before

    def test_beside_the_unpacked_one_are_not_read_twice(self, store: Store, tmp_path: Path) -> None:
        path = write_jsonl(tmp_path / "rollout-1.jsonl", SAMPLE[:5])
        self.compress(path)
        write_jsonl(path, SAMPLE)
        session, _ = import_one(store, "codex", tmp_path)
        assert len(entries_of(session)) == 9

    def test_that_are_cut_off_are_counted(self, store: Store, tmp_path: Path) -> None:
        more = [message_item("user", os.urandom(60_000).hex(), 7) for _ in range(5)]
        path = self.compress(write_jsonl(tmp_path / "rollout-1.jsonl", [*SAMPLE, *more]))
        path.write_bytes(path.read_bytes()[:-100_000])
        session, report = import_one(store, "codex", tmp_path)
        assert entries_of(session)
        assert "a file that cannot be read" in report.losses

    def test_that_unpack_to_too_much_are_refused(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write_jsonl(tmp_path / "rollout-1.jsonl", [*SAMPLE, message_item("user", "a" * 200_000, 7)])
        self.compress(path)
        monkeypatch.setenv("OAKLEAF_IMPORT_MAX_BYTES", "100000")
        _, report = import_one(store, "codex", tmp_path)
        (what,) = report.losses
        assert "more than 100,000 bytes" in what

    def test_without_the_package_name_what_to_install(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.compress(write_jsonl(tmp_path / "rollout-1.jsonl", SAMPLE))
        write_jsonl(tmp_path / "rollout-2.jsonl", [meta(CHILD), *SAMPLE[1:]])
        for name in ("backports.zstd", "compression.zstd"):
            monkeypatch.setitem(sys.modules, name, None)
        _, report = import_one(store, "codex", tmp_path)
        (what,) = report.losses
        assert "[zstd]" in what


class TestTitles:
    def database(self, folder: Path, *rows: tuple[str, str, str, str | None]) -> apsw.Connection:
        connection = apsw.Connection(str(folder / "state_5.sqlite"))
        connection.execute("pragma journal_mode=wal")
        connection.execute("create table threads (id text, title text, first_user_message text, name text)")
        connection.executemany("insert into threads values (?, ?, ?, ?)", rows)
        return connection

    @pytest.mark.parametrize(
        ("title", "name", "shown"),
        [("Why?", "The test", "The test"), ("Why?", None, None), ("Mending", None, "Mending")],
    )
    def test_come_from_the_database(
        self, store: Store, tmp_path: Path, title: str, name: str | None, shown: str | None
    ) -> None:
        write_jsonl(tmp_path / "sessions" / "rollout-1.jsonl", SAMPLE)
        connection = self.database(tmp_path, (THREAD, title, "Why?", name))
        connection.execute("begin exclusive")  # Codex is writing
        before = file_contents(tmp_path)
        session, report = import_one(store, "codex", tmp_path / "sessions")
        assert (session.row.title, report.losses) == (shown, {})
        assert file_contents(tmp_path) == before
        connection.close()

    def test_of_a_damaged_database_are_counted(self, store: Store, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "sessions" / "rollout-1.jsonl", SAMPLE)
        (tmp_path / "state_5.sqlite").write_bytes(b"SQLite format 3\0 and no more")
        _, report = import_one(store, "codex", tmp_path / "sessions")
        assert report.losses["titles in a database that cannot be read"].count == 1


class TestTheSource:
    def test_by_default_is_both_folders(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        write_jsonl(tmp_path / ".codex" / "sessions" / "rollout-1.jsonl", SAMPLE)
        archived = tmp_path / ".codex" / "archived_sessions"
        archived.mkdir()
        assert len(list(store.import_from("codex"))) == 1
        write_jsonl(archived / "rollout-2.jsonl", [meta(CHILD), *SAMPLE[1:]])
        assert len(list(store.import_from("codex"))) == 2

    @pytest.mark.parametrize("age", [0, 3_600])
    def test_line_by_line_grows_into_the_same_ledger(self, age: int, tmp_path: Path) -> None:
        sample = [*SAMPLE, line("turn_context", {"model": "gpt-5-codex", "effort": "high"}, 7)]
        sample += [message_item("user", "More?", 7), message_item("assistant", "No.", 8)]
        sample += [token_count_line((500, 200, 40), (50, 10, 5), 9)]
        place = tmp_path / "rollout-a.jsonl"
        with memory_store() as growing, memory_store() as whole:
            for end in range(1, len(sample) + 1):
                write_jsonl(place, sample[:end])
                os.utime(place, (time.time() - age,) * 2)
                reports = import_all(growing, "codex", place)
            grown, once = growing.session(reports[0].session_id), import_one(whole, "codex", place)[0]
            assert [e.payload for e in grown.path()] == [e.payload for e in once.path()]
            assert grown.usage("path") == grown.usage() == once.usage()
            assert age or len(grown.branches()) == 1

    def test_with_half_a_character_keeps_the_message(self, store: Store, tmp_path: Path) -> None:
        body = json.dumps(message_item("user", "a\ud83d b \\ud83d \ud83d\ude00"))
        path = write_jsonl(tmp_path / "rollout-1.jsonl", [meta()])
        path.write_text(path.read_text() + body + "\n")
        session, report = import_one(store, "codex", path)
        assert entries_of(session)[-1].message.text == "a\ufffd b \\ud83d \U0001f600"  # type: ignore[union-attr]
        assert [loss.count for loss in report.losses.values()] == [1]
