"""Sessions of pi: its tree, what its messages become, and the places its summaries name."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from oakleaf.core.entries import BranchSummary, Compaction, Note, Settings
from oakleaf.core.messages import Media, Reasoning, Text, ToolCall
from oakleaf.store import Store
from support.import_sources import (
    Record,
    entries_of,
    import_all,
    import_one,
    message_texts,
    store,
    write_jsonl,
)

__all__ = ["store"]

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n and the rest").decode()
HEAD: Record = {
    "type": "session",
    "version": 3,
    "id": "5e55",
    "timestamp": "2026-03-01T10:00:00.000Z",
    "cwd": "/home/ann/shop",
    "parentSession": "/home/ann/.pi/agent/sessions/x/2026-02_0001.jsonl",
}
SPENT = {
    "input": 10,
    "output": 3,
    "cacheRead": 40,
    "cacheWrite": 5,
    "totalTokens": 58,
    "cost": {"total": 0.1},
}


def entry(kind: str, name: str, parent: str | None, second: int = 0, /, **fields: Any) -> Record:
    at = f"2026-03-01T10:00:{second:02d}.000Z"
    return {"type": kind, "id": name, "parentId": parent, "timestamp": at, **fields}


def message(name: str, parent: str | None, role: str, content: Any, second: int = 0, **more: Any) -> Record:
    body = {"role": role, "content": content, "timestamp": 1_772_359_200_000, **more}
    return entry("message", name, parent, second, message=body)


def answer(name: str, parent: str, *blocks: Record, second: int = 0, **more: Any) -> Record:
    about = {"api": "anthropic-messages", "provider": "anthropic", "model": "claude-sonnet-4-5"}
    about |= {
        "usage": SPENT,
        "stopReason": "toolUse" if any(b["type"] == "toolCall" for b in blocks) else "stop",
    }
    return message(name, parent, "assistant", list(blocks), second, **{**about, **more})


def text_part(words: str) -> Record:
    return {"type": "text", "text": words}


CALL = {"type": "toolCall", "id": "t1", "name": "bash", "arguments": {"command": "ls"}}
THINKING = {"type": "thinking", "thinking": "Look first.", "thinkingSignature": "sig"}
LINE: list[Record] = [
    HEAD,
    entry("model_change", "a0", None, provider="anthropic", modelId="claude-sonnet-4-5"),
    message("a1", "a0", "user", "Why does it fail?", 1),
    answer("a2", "a1", THINKING, text_part("I look."), CALL, second=2),
    message(
        "a3", "a2", "toolResult", [text_part("shop.py")], 3, toolCallId="t1", toolName="bash", isError=False
    ),
    answer("a4", "a3", text_part("A typo."), second=4),
]
SAMPLE: list[Record] = [
    *LINE,
    message("b1", "a4", "user", "Mend it.", 5),
    answer("b2", "b1", text_part("Mended."), second=6),
    entry("branch_summary", "c0", "a4", 7, fromId="b2", summary="It was mended."),
    message(
        "c1",
        "c0",
        "user",
        [text_part("Rather not."), {"type": "image", "data": PIXEL, "mimeType": "image/png"}],
        8,
    ),
    answer("c2", "c1", text_part("As it was."), second=9),
    entry("label", "c3", "c2", targetId="b2", label="mended"),
    entry("session_info", "c4", "c3", name="A typo"),
]


class TestASession:
    def test_keeps_messages_calls_results_and_reasoning(self, store: Store, tmp_path: Path) -> None:
        session, report = import_one(store, "pi", write_jsonl(tmp_path / "s.jsonl", LINE))
        path = [e.message for e in entries_of(session) if e.message is not None]
        assert [m.role for m in path] == ["user", "assistant", "tool", "assistant"]
        assert path[1].parts == (
            Reasoning("Look first."),
            Text("I look."),
            ToolCall("t1", "bash", {"command": "ls"}),
        )
        assert report.losses == {}

    def test_keeps_times_model_finish_directory_and_usage(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "pi", write_jsonl(tmp_path / "s.jsonl", SAMPLE))
        row = store.backend.session("pi-5e55")
        assert (row.title, row.agent, row.started_at) == ("A typo", "pi", 1_772_359_200_000_000)
        assert row.tags == {"imported_from": "pi", "cwd": "/home/ann/shop", "forked_from": "2026-02_0001"}
        answers = [e for e in entries_of(session) if e.role == "assistant"]
        assert [(e.model, e.finish, e.at % 60_000_000 // 1_000_000) for e in answers] == [
            ("claude-sonnet-4-5", "toolUse", 2),
            ("claude-sonnet-4-5", "stop", 4),
            ("claude-sonnet-4-5", "stop", 9),
        ]
        usage = session.usage()
        assert (usage.calls, usage.input_tokens, usage.output_tokens) == (4, 220, 12)
        assert (usage.cache_read_tokens, usage.cache_write_tokens) == (160, 20)

    def test_signatures_go_back_to_anthropic(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "pi", write_jsonl(tmp_path / "s.jsonl", LINE))
        blocks = [block for m in session.messages("anthropic") for block in m["content"]]
        assert [b["signature"] for b in blocks if b["type"] == "thinking"] == ["sig"]

    def test_signatures_go_back_to_openai(self, store: Store, tmp_path: Path) -> None:
        about = {"api": "openai-responses", "provider": "openai", "model": "gpt-5"}
        reasoning = {"id": "rs_1", "encrypted_content": "gAAA", "summary": []}
        blocks = (
            {"type": "thinking", "thinking": "", "thinkingSignature": json.dumps(reasoning)},
            {"type": "text", "text": "I look.", "textSignature": json.dumps({"v": 1, "id": "msg_1"})},
            {**CALL, "id": "call_1|fc_1"},
        )
        result = message("a3", "a2", "toolResult", [text_part("x")], toolCallId="call_1|fc_1", isError=True)
        lines = [*LINE[:3], answer("a2", "a1", *blocks, **about), result]
        session, _ = import_one(store, "pi", write_jsonl(tmp_path / "s.jsonl", lines))
        items = session.messages("openai")
        assert [item.get("id") for item in items] == [None, "rs_1", "msg_1", "fc_1", None]
        assert items[-1]["call_id"] == "call_1"

    def test_signatures_go_back_to_google(self, store: Store, tmp_path: Path) -> None:
        about = {"api": "google-generative-ai", "provider": "google", "model": "gemini-3-pro"}
        call = {**CALL, "thoughtSignature": "c2ln"}
        session, _ = import_one(
            store, "pi", write_jsonl(tmp_path / "s.jsonl", [*LINE[:3], answer("a2", "a1", call, **about)])
        )
        signed = [p.get("thoughtSignature") for m in session.messages("gemini") for p in m["parts"]]
        assert "c2ln" in signed

    def test_what_the_user_ran_and_what_an_extension_said_opens_no_turn(
        self, store: Store, tmp_path: Path
    ) -> None:
        ran = {"role": "bashExecution", "command": "ls", "output": "shop.py", "exitCode": 0}
        more = [
            entry("message", "d1", "a4", message=ran),
            entry("message", "d2", "d1", message={**ran, "excludeFromContext": True}),
            entry("custom_message", "d3", "d2", customType="x", content="Mind the style.", display=True),
            entry("custom", "d4", "d3", customType="x", data={"count": 42}),
        ]
        session, _ = import_one(store, "pi", write_jsonl(tmp_path / "s.jsonl", [*LINE, *more]))
        path = entries_of(session)[4:]
        assert [e.role for e in path] == ["system", None, "system", None]
        assert isinstance(path[3].payload, Note)
        assert path[3].payload.data == {"pi": "x", "data": {"count": 42}}

    def test_an_answer_that_failed_is_a_note_that_says_why(self, store: Store, tmp_path: Path) -> None:
        failed = answer("d1", "a4", stopReason="error", errorMessage="overloaded")
        session, _ = import_one(store, "pi", write_jsonl(tmp_path / "s.jsonl", [*LINE, failed]))
        note = entries_of(session)[-1].payload
        assert isinstance(note, Note)
        assert note.data["error"] == "overloaded"
        assert session.usage().calls == 3

    def test_of_the_first_version_is_a_line(self, store: Store, tmp_path: Path) -> None:
        old = [
            {key: value for key, value in line.items() if key not in ("id", "parentId")} for line in LINE[1:]
        ]
        short = {"type": "compaction", "summary": "s", "firstKeptEntryIndex": 5, "tokensBefore": 9}
        session, _ = import_one(store, "pi", write_jsonl(tmp_path / "s.jsonl", [HEAD, *old, short]))
        compaction = entries_of(session)[-1].payload
        assert isinstance(compaction, Compaction)
        assert (len(entries_of(session)), compaction.first_kept) == (5, 4)

    def test_says_what_it_lost(self, store: Store, tmp_path: Path) -> None:
        strange = [
            entry("hologram", "d1", "a4"),
            message("d2", "d1", "goblin", "x"),
            message("d3", "d2", "user", [{"type": "smell"}, text_part("x")]),
            entry("thinking_level_change", "d4", "d3", thinkingLevel="much"),
        ]
        _, report = import_one(store, "pi", write_jsonl(tmp_path / "s.jsonl", [*LINE, *strange]))
        assert {what: loss.count for what, loss in report.losses.items()} == {
            "an item of unknown kind, kept as a note": 1,
            "a message of unknown role": 1,
            "a part of a message of unknown shape": 1,
            "an option of a model call that is not known here": 1,
        }

    def test_a_thinking_level_is_an_option_from_there_on_and_waits_for_results(
        self, store: Store, tmp_path: Path
    ) -> None:
        levels = [
            entry("thinking_level_change", "l1", "a1", thinkingLevel="high"),
            LINE[3] | {"parentId": "l1"},
            entry("thinking_level_change", "l2", "a2", thinkingLevel="off"),
            LINE[4] | {"parentId": "l2"},
            LINE[5],
        ]
        session, report = import_one(store, "pi", write_jsonl(tmp_path / "s.jsonl", [*LINE[:3], *levels]))
        kinds = [entry.role or entry.kind for entry in entries_of(session)]
        assert kinds == ["user", "settings", "assistant", "tool", "settings", "assistant"]
        options = [e.payload.options for e in entries_of(session) if isinstance(e.payload, Settings)]
        assert options == [{"effort": "high"}, {"effort": None}]
        assert (report.losses, report.missing) == ({}, ("system prompt", "tool definitions"))


class TestATree:
    def test_keeps_its_branches_its_summary_and_its_labels(self, store: Store, tmp_path: Path) -> None:
        session, report = import_one(store, "pi", write_jsonl(tmp_path / "s.jsonl", SAMPLE))
        assert message_texts(store.session("pi-5e55"))[-2:] == ["Rather not.", "As it was."]
        assert [branch.parent_seq for branch in session.branches()] == [0, 4]
        summary = entries_of(session)[4].payload
        assert isinstance(summary, BranchSummary)
        assert (summary.summary, summary.leaf_seq) == ("It was mended.", 6)
        assert list(session.labels().values()) == ["mended"]
        media = [m for e in entries_of(session) if e.message for m in e.message.media]
        assert all(isinstance(m, Media) for m in media)
        assert report.losses == {}


class TestACompaction:
    def import_compaction(self, store: Store, tmp_path: Path, **how: Any) -> tuple[int, int]:
        change = entry("model_change", "d0", "a4", provider="openai", modelId="gpt-5")
        input_ = message("d1", "d0", "user", "On.", 6)
        short = entry("compaction", "d2", "d1", 7, summary="They look.", tokensBefore=900, usage=SPENT, **how)
        session, _ = import_one(
            store, "pi", write_jsonl(tmp_path / "s.jsonl", [*LINE, change, input_, short])
        )
        compaction = entries_of(session)[-1].payload
        assert isinstance(compaction, Compaction)
        return compaction.first_kept, session.usage().calls

    def test_keeps_from_the_entry_it_names_and_was_paid_for(self, store: Store, tmp_path: Path) -> None:
        assert self.import_compaction(store, tmp_path, firstKeptEntryId="d1") == (5, 3)

    def test_that_names_a_change_of_the_model_keeps_from_what_follows_it(
        self, store: Store, tmp_path: Path
    ) -> None:
        assert self.import_compaction(store, tmp_path, firstKeptEntryId="d0") == (5, 3)

    def test_that_tells_what_it_kept_keeps_as_many(self, store: Store, tmp_path: Path) -> None:
        tail = [{"role": "assistant"}, {"role": "user"}]
        assert self.import_compaction(store, tmp_path, retainedTail=tail) == (4, 3)

    def test_that_names_nothing_keeps_nothing(self, store: Store, tmp_path: Path) -> None:
        assert self.import_compaction(store, tmp_path, firstKeptEntryId="gone") == (6, 3)


class TestTheSource:
    def test_one_in_which_nobody_spoke_is_passed_over(self, store: Store, tmp_path: Path) -> None:
        assert import_all(store, "pi", write_jsonl(tmp_path / "s.jsonl", LINE[:2])) == []
