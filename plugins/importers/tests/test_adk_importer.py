"""Sessions of Google's ADK in a SQLite file; those its own code writes are in `frameworks/test_importers`."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from oakleaf.core.entries import Compaction
from oakleaf.core.messages import Media, ToolCall
from oakleaf.store import Store
from support.import_sources import (
    Record,
    entries_of,
    import_all,
    import_one,
    message_texts,
    store,
    write_sqlite,
)

__all__ = ["store"]

ID = "adk-shop:ann@x.org:s1"
PIXEL = base64.urlsafe_b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xfe\xfd\xfb").decode()
START = 1_772_359_200.0


def event(
    n: int, author: str, role: str | None = None, parts: list[Record] | None = None, **more: Any
) -> Record:
    content = {"content": {"role": role, "parts": parts}} if role else {}
    data = {"id": f"e{n}", "author": author, "timestamp": START + n, "actions": {}, **content, **more}
    owner = {"app_name": "shop", "user_id": "ann@x.org", "session_id": "s1"}
    run = more.get("invocation", "i1")
    return {
        "table": "events",
        "id": f"e{n}",
        **owner,
        "invocation_id": run,
        "timestamp": START + n,
        "event_data": data,
    }


def usage_fields(prompt: int, answer: int, thoughts: int = 0) -> Record:
    fields = {
        "prompt_token_count": prompt,
        "candidates_token_count": answer,
        "thoughts_token_count": thoughts,
    }
    return {"usage_metadata": fields | {"cached_content_token_count": 2}, "model_version": "gemini-2.5-pro"}


SESSION: Record = {
    "table": "sessions",
    "app_name": "shop",
    "user_id": "ann@x.org",
    "id": "s1",
    "state": {"mood": "calm", "cart": {"b": 2}},
    "create_time": "2026-03-01 10:00:00.000000",
    "update_time": "2026-03-01 10:00:09.000000",
}
ASK = {"function_call": {"id": "adk-1", "name": "look", "args": {"order": 41}}, "thought_signature": "c2-_"}
RESPONSE = {"function_response": {"id": "adk-1", "name": "look", "response": {"result": "lost"}}}
SAMPLE: list[Record] = [
    SESSION,
    {"table": "app_states", "app_name": "shop", "state": {"open": True}},
    {"table": "user_states", "app_name": "shop", "user_id": "ann@x.org", "state": {"name": "Ann"}},
    event(
        1,
        "user",
        "user",
        [{"text": "Where is 41?"}, {"inline_data": {"mime_type": "image/png", "data": PIXEL}}],
    ),
    event(
        2,
        "guide",
        "model",
        [{"text": "Look.", "thought": True}, {"text": "I look."}, ASK],
        **usage_fields(10, 3, 4),
    ),
    event(
        3,
        "guide",
        "user",
        [RESPONSE],
        actions={"state_delta": {"cart": {"a": 1}, "temp:x": 1, "user:name": "Ann"}},
    ),
    event(4, "guide", "model", [{"text": "It is lost."}], finish_reason="STOP", **usage_fields(20, 5)),
    event(5, "guide", actions={"state_delta": {"cart": {"b": 2}}}),
]


class TestASession:
    def test_keeps_contents_calls_and_responses(self, store: Store, tmp_path: Path) -> None:
        session, report = import_one(store, "adk", write_sqlite(tmp_path / "a.db", SAMPLE))
        path = [e.message for e in entries_of(session) if e.message is not None]
        assert session.session_id == ID
        assert [m.role for m in path] == ["user", "assistant", "tool", "assistant"]
        assert isinstance(path[0].parts[1], Media)
        assert (store.blob(path[0].parts[1]) or b"").startswith(b"\x89PNG")
        assert path[1].calls == (ToolCall("adk-1", "look", {"order": 41}),)
        assert path[3].details == {"author": "guide"}
        assert report.losses == {}

    def test_keeps_usage_model_finish_and_times(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "adk", write_sqlite(tmp_path / "a.db", SAMPLE))
        usage = session.usage()
        assert (usage.calls, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (
            2,
            30,
            12,
            4,
        )
        answers = [e for e in entries_of(session) if e.role == "assistant"]
        assert [(e.model, e.finish, e.at % 60_000_000) for e in answers] == [
            ("gemini-2.5-pro", None, 2_000_000),
            ("gemini-2.5-pro", "STOP", 4_000_000),
        ]
        row = store.backend.session(ID)
        assert (row.agent, row.tags["user"], row.started_at) == ("shop", "ann@x.org", 1_772_359_200_000_000)

    def test_its_state_is_what_adk_shows(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "adk", write_sqlite(tmp_path / "a.db", SAMPLE))
        assert session.state == {"mood": "calm", "cart": {"b": 2}, "app:open": True, "user:name": "Ann"}

    def test_signatures_go_back_to_gemini_in_the_usual_alphabet(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "adk", write_sqlite(tmp_path / "a.db", SAMPLE))
        (call,) = [p for m in session.messages("gemini") for p in m["parts"] if "functionCall" in p]
        assert call["thoughtSignature"] == "c2+/"

    def test_an_answer_that_failed_is_a_note(self, store: Store, tmp_path: Path) -> None:
        failed = event(6, "guide", error_code="RECITATION", error_message="no", **usage_fields(7, 0))
        session, _ = import_one(store, "adk", write_sqlite(tmp_path / "a.db", [*SAMPLE, failed]))
        assert session.usage().input_tokens == 37

    def test_without_events_is_passed_over(self, store: Store, tmp_path: Path) -> None:
        nothing = {**event(1, "user"), "session_id": "s9"}
        assert import_all(store, "adk", write_sqlite(tmp_path / "a.db", [SESSION, nothing])) == []

    def test_of_an_older_file_is_read_without_its_pickles(self, store: Store, tmp_path: Path) -> None:
        old = {key: value for key, value in event(1, "user").items() if key != "event_data"}
        record = {
            "author": "user",
            "content": {"role": "user", "parts": [{"text": "Hi"}]},
            "actions": b"\x80\x04.",
        }
        answer = {
            **old,
            "id": "e2",
            "author": "guide",
            "content": {"role": "model", "parts": [{"text": "Ho"}]},
        }
        rows = [SESSION, {**old, **record}, answer | {"usage_metadata": usage_fields(3, 1)["usage_metadata"]}]
        session, report = import_one(store, "adk", write_sqlite(tmp_path / "a.db", rows))
        assert message_texts(store.session(ID)) == ["Hi", "Ho"]
        assert (session.usage().input_tokens, session.state["mood"]) == (3, "calm")
        assert list(report.losses) == ["the actions of an event, stored as a pickle"]


class TestWhatEventsDo:
    def test_a_rewind_leaves_a_branch(self, store: Store, tmp_path: Path) -> None:
        more = [
            event(6, "user", "user", [{"text": "Delete it."}], invocation="i2"),
            event(7, "guide", "model", [{"text": "Deleted."}], invocation="i2"),
            event(8, "user", actions={"rewind_before_invocation_id": "i2"}, invocation="i3"),
            event(9, "user", "user", [{"text": "Keep it."}], invocation="i4"),
        ]
        session, _ = import_one(store, "adk", write_sqlite(tmp_path / "a.db", [*SAMPLE, *more]))
        assert message_texts(store.session(ID))[-1] == "Keep it."
        assert len(session.branches()) == 2

    def test_a_compaction_keeps_what_came_after_its_end(self, store: Store, tmp_path: Path) -> None:
        content = {"role": "model", "parts": [{"text": "They look for 41."}]}
        range_ = {"start_timestamp": START, "end_timestamp": START + 3.5, "compacted_content": content}
        short = event(6, "user", actions={"compaction": range_})
        session, _ = import_one(store, "adk", write_sqlite(tmp_path / "a.db", [*SAMPLE, short]))
        (compaction,) = [e.payload for e in entries_of(session) if isinstance(e.payload, Compaction)]
        message = entries_of(session)[compaction.first_kept - 1].message
        assert compaction.summary == "They look for 41."
        assert message is not None
        assert message.text == "It is lost."

    def test_what_is_lost_is_said(self, store: Store, tmp_path: Path) -> None:
        more = [
            event(
                6,
                "sub",
                "model",
                [{"text": "x"}],
                branch="guide.sub",
                actions={"artifact_delta": {"a.png": 1}},
            ),
            event(7, "guide", "model", [{"inline_data": {"mime_type": "image/png"}}]),
            event(8, "guide", actions={"state_delta": {"odd": {"a": None}}}),
        ]
        rows = [{**SESSION, "state": {**SESSION["state"], "odd": {"a": None}}}, *SAMPLE[1:], *more]
        _, report = import_one(store, "adk", write_sqlite(tmp_path / "a.db", rows))
        assert {what: loss.count for what, loss in report.losses.items()} == {
            "the separate history of an agent branch; imported into one path": 1,
            "an artifact, which is stored elsewhere": 1,
            "an item of unknown kind, kept as a note": 1,
            "a state value that is null": 1,
        }
