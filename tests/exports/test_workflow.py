"""A session as a workflow scaffold: the mapping of the session specification, case by case."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import oakleaf
from oakleaf import (
    Attachment,
    Evidence,
    Limits,
    Reasoning,
    ScriptedModel,
    Session,
    ToolCall,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Entry
from oakleaf.core.redact import Redactor
from oakleaf.core.redact_entries import redact_entries
from oakleaf.core.time_text import iso
from oakleaf.exports.workflow import neutral, workflow, workflow_id
from oakleaf.exports.yaml import to_yaml
from oakleaf.log.workspace import Workspace
from oakleaf.store import Store
from oakleaf.stores.base import SessionRow
from oakleaf.stores.sqlite.store import SqliteStore
from support.import_sources import store
from support.random_logs import TEXTS, paths, thorough_settings
from support.runtime import deterministic_runtime
from support.sessions import exported
from support.stopped_runs import stopped

__all__ = ["store"]

AGENT = {
    "id": "support",
    "name": "Support",
    "system_prompt": "Help {{ctx.name}}.\nBe kind.",
    "tools": ["lookup"],
}
ROW = SessionRow(session_id="ses_1", space="default", conversation_id="con_1", started_at=0, updated_at=1)


def export_workflow(session: Session) -> dict[str, Any]:
    steps: dict[str, Any] = yaml.safe_load(exported(session, "workflow"))
    assert steps["schema_version"] == "1.0"
    workflow: dict[str, Any] = steps["workflow"]
    return workflow


def turns(session: Session) -> list[dict[str, Any]]:
    return [node for node in export_workflow(session)["nodes"] if node["type"] == "agent"]


def transcript(session: Session) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = export_workflow(session)["metadata"]["relaviumExport"]["messages"]
    return messages


def sample_session(store: Store, **about: Any) -> Session:
    """Two turns, the first of them split into four entries."""
    session = store.start("support", [system("You help.")], title="Order 41: lost?", **about)
    session.append([user("Where is it?"), assistant("Let me see.", ToolCall("c", "lookup", {"order": 41}))])
    session.append([tool_result("c", {"status": "lost"}), assistant("It is lost.")])
    session.append([user("Refund it."), assistant("Done.")])
    return session


class TestTheMapping:
    def test_each_completed_turn_is_one_agent_node_between_input_and_output(self, store: Store) -> None:
        workflow = export_workflow(sample_session(store))
        assert workflow["nodes"] == [
            {"id": "input", "type": "input"},
            {
                "id": "turn-1",
                "type": "agent",
                "agent_ref": "support",
                "prompt_template": "Where is it?",
                "tools": ["lookup"],
            },
            {"id": "turn-2", "type": "agent", "agent_ref": "support", "prompt_template": "Refund it."},
            {"id": "output", "type": "output"},
        ]

    def test_edges_are_one_straight_line(self, store: Store) -> None:
        assert export_workflow(sample_session(store))["edges"] == [
            {"from": "input", "to": "turn-1"},
            {"from": "turn-1", "to": "turn-2"},
            {"from": "turn-2", "to": "output"},
        ]

    def test_a_session_without_a_completed_turn_is_input_to_output(self, store: Store) -> None:
        session = store.start("support")
        for _ in range(2):
            workflow = export_workflow(session)
            assert [node["id"] for node in workflow["nodes"]] == ["input", "output"]
            assert workflow["edges"] == [{"from": "input", "to": "output"}]
            session.append([user("anybody?")])
        assert [message["role"] for message in transcript(session)] == ["user", "user"]

    def test_the_metadata_holds_the_whole_transcript(self, store: Store) -> None:
        session = sample_session(store)
        about = export_workflow(session)["metadata"]
        assert list(about) == ["relaviumExport"]
        export = about["relaviumExport"]
        messages = export.pop("messages")
        assert export == {
            "source": "session",
            "sessionId": session.session_id,
            "agentSlug": "support",
            "title": "Order 41: lost?",
            "createdAt": "2001-09-09T01:46:40.000000Z",
            "updatedAt": iso(session.row.updated_at),
        }
        assert [message["sequenceNumber"] for message in messages] == [1, 2, 3, 4, 5, 6, 7]
        assert messages[2] == {
            "id": session.path()[2].entry_id.hex(),
            "sessionId": session.session_id,
            "sequenceNumber": 3,
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_call", "id": "c", "name": "lookup", "args": {"order": 41}},
            ],
            "timestamp": "2001-09-09T01:46:41.000000Z",
        }
        result = {"type": "tool_result", "toolCallId": "c", "result": '{"status":"lost"}'}
        assert messages[3]["content"] == [result]

    def test_the_model_that_answered_is_named(self, store: Store) -> None:
        session = store.start("support")
        session.append([user("hi")])
        session.log.append([Draft(assistant("hello"), model="small-1")])
        assert [message.get("modelId") for message in transcript(session)] == [None, "small-1"]

    def test_the_frozen_agent_is_the_only_agent(self, store: Store) -> None:
        assert export_workflow(sample_session(store, spec=AGENT))["agents"] == [AGENT]

    def test_without_a_snapshot_agents_are_omitted(self, store: Store) -> None:
        assert "agents" not in export_workflow(sample_session(store))

    def test_without_an_agent_nothing_is_referred_to(self, store: Store) -> None:
        session = store.start()
        session.append([user("hi"), assistant("hello")])
        assert turns(session) == [{"id": "turn-1", "type": "agent", "prompt_template": "hi"}]
        assert "agentSlug" not in export_workflow(session)["metadata"]["relaviumExport"]

    @pytest.mark.parametrize(
        ("title", "expected"),
        [
            ("Order 41: lost?", "order-41-lost"),
            ("  --Hello,   World!-- ", "hello-world"),
            ("naïve Größe", "na-ve-gr-e"),
            ("東京 ☃", "exported-session"),
            ("", "exported-session"),
            (None, "exported-session"),
            ("\u212a7", "7"),  # the sign for kelvin, which lower() would make a k
        ],
    )
    def test_the_id_is_the_title_in_kebab_case(self, title: str | None, expected: str) -> None:
        assert workflow_id(title) == expected


class TestTurns:
    def test_two_inputs_in_a_row_are_one_turn(self, store: Store) -> None:
        session = store.start("support")
        session.append([user("first"), user("second")])
        session.note({"host": "data"})
        session.append([user("third"), assistant("all three")])
        (turn,) = turns(session)
        assert turn["prompt_template"] == "first\n\nsecond\n\nthird"

    def test_a_turn_interrupted_in_its_tool_loop_is_kept_in_the_metadata_only(self, store: Store) -> None:
        session = store.start("support")
        session.append([user("try"), assistant(ToolCall("c", "lookup"))])
        assert turns(session) == []
        session.close_batch("the power went")
        assert turns(session) == []
        session.append([user("again"), assistant("fine")])
        (turn,) = turns(session)
        assert (turn["prompt_template"], "tools" in turn) == ("again", False)
        result = transcript(session)[2]["content"][0]
        assert (result["isError"], result["outcome"], result["result"]) == (
            True,
            "interrupted",
            "the power went",
        )

    def test_a_turn_that_goes_on_after_a_crash_is_one_node(self, store: Store) -> None:
        session = store.start("support")
        session.append([user("try"), assistant(ToolCall("c", "a")), tool_result("c", "r")])
        again = store.session(session.session_id)
        again.append([assistant(ToolCall("c", "b")), tool_result("c", "r"), assistant("done")])
        (turn,) = turns(again)
        assert turn["tools"] == ["a", "b"]

    def test_a_prompt_without_text_is_omitted(self, store: Store) -> None:
        session = store.start("support")
        session.append([user(Attachment(b"\x89PNG\r\n\x1a\n", "image/png", "cat.png")), assistant("a cat")])
        assert turns(session) == [{"id": "turn-1", "type": "agent", "agent_ref": "support"}]

    def test_tools_are_named_once_in_the_order_of_their_first_use(self, store: Store) -> None:
        session = store.start("support")
        session.append([user("go"), assistant(ToolCall("1", "z"), ToolCall("2", "a"), ToolCall("3", "z"))])
        session.append([tool_result(n, "r") for n in ("3", "1", "2")])
        session.append([assistant(ToolCall("4", "a"), ToolCall("5", "m"))])
        session.append([tool_result("4", "r"), tool_result("5", "r"), assistant("done")])
        assert turns(session)[0]["tools"] == ["z", "a", "m"]

    def test_a_turn_without_a_final_text_of_the_model_is_kept_in_the_metadata_only(
        self, store: Store
    ) -> None:
        """Ended by a tool, a limit or a person, cut off, or answered with nothing."""
        session = store.start("support")
        session.append([user("stop"), assistant(ToolCall("c", "stop")), tool_result("c", "", ends_turn=True)])
        looping = ScriptedModel(lambda _: assistant(ToolCall("c", "look")))
        stopped(session.send_sync, "too long", model=looping, limits=Limits(rounds=1))
        for finish in ("cancelled", "interrupted", "partial", "error"):
            session.log.append([Draft(user("cut")), Draft(assistant("half"), finish=finish)])
        session.append([user("empty"), assistant(Reasoning("hm"))])
        assert turns(session) == []
        assert len([message for message in transcript(session) if message["role"] == "user"]) == 7
        session.append([user("now"), assistant("a")])
        assert [turn["prompt_template"] for turn in turns(session)] == ["now"]

    def test_seeds_are_no_turns(self, store: Store) -> None:
        session = store.start("support", [system("s"), user("example"), assistant("answer")])
        assert turns(session) == []
        assert len(transcript(session)) == 3

    def test_a_rewound_branch_is_not_in_it(self, store: Store) -> None:
        session = sample_session(store)
        session.rewind(to=5)
        session.append([user("Send another."), assistant("Sent.")])
        assert "Refund it." not in exported(session, "workflow")
        assert [turn["prompt_template"] for turn in turns(session)] == ["Where is it?", "Send another."]

    def test_a_compaction_takes_nothing_away(self, store: Store) -> None:
        session = sample_session(store)
        before = turns(session)
        session.compact("Lost.")
        session.append([user("And now?"), assistant("Now you wait.")])
        assert turns(session)[:2] == before
        assert [message["sequenceNumber"] for message in transcript(session)] == [1, 2, 3, 4, 5, 6, 7, 9, 10]

    def test_a_fork_tells_the_part_it_shares_and_the_agent_of_its_source(self, store: Store) -> None:
        session = sample_session(store, spec=AGENT)
        fork = session.fork(at=5, prompt="Be strict.").fork()
        fork.append([user("Why?"), assistant("Nobody knows.")])
        assert [turn["prompt_template"] for turn in turns(fork)] == ["Where is it?", "Why?"]
        assert export_workflow(fork)["agents"] == [AGENT]
        assert {message["sessionId"] for message in transcript(fork)} == {fork.session_id}

    def test_a_fork_whose_source_is_gone_tells_the_agent_all_the_same(self, store: Store) -> None:
        session = sample_session(store, spec=AGENT)
        fork = session.fork()
        store.delete(session.session_id)
        store.purge(session.session_id)
        assert export_workflow(fork)["agents"] == [AGENT]
        assert len(turns(fork)) == 2


class TestWhatStaysOut:
    def test_media_are_handles_and_reasoning_has_no_signature(self, store: Store) -> None:
        session = store.start("support")
        session.append([user("look", Attachment(b"PNG-BYTES" * 20, "image/png", "cat.png"))])
        answer = assistant(Reasoning("a cat?"), "A cat.")
        session.log.append([Draft(answer, evidence=Evidence("anthropic", {"0": {"signature": "CANARY"}}))])
        media = transcript(session)[0]["content"][1]
        handle = session.path()[0].message.parts[1]  # type: ignore[union-attr]
        assert media == {
            "type": "media",
            "mimeType": "image/png",
            "source": {"kind": "handle", "ref": f"media://sha256-{handle.hash}"},  # type: ignore[union-attr]
            "byteLength": 180,
            "name": "cat.png",
        }
        assert transcript(session)[1]["content"][0] == {"type": "reasoning", "text": "a cat?"}
        assert "CANARY" not in exported(session, "workflow")

    def test_details_and_notes_are_the_hosts_own(self, store: Store) -> None:
        session = store.start("support")
        session.append([user("q"), assistant(ToolCall("c", "t"))])
        session.append([tool_result("c", "r", details={"k": "CANARY"})])
        session.note({"k": "CANARY"})
        assert "CANARY" not in exported(session, "workflow", redact=False)

    def test_secrets_are_hidden_when_written_and_again_when_they_became_known_later(
        self, tmp_path: Path
    ) -> None:
        place = tmp_path / "agent.db"
        with oakleaf.open(place, secrets={"DOOR": "open-sesame-1"}) as store:
            session = store.start("support", spec={"id": "support", "hint": "late-secret-2"})
            session.append([user("open-sesame-1 and late-secret-2"), assistant("ok")])
            assert turns(session)[0]["prompt_template"] == "[redacted DOOR] and late-secret-2"
        with oakleaf.open(place, secrets={"LATE": "late-secret-2"}) as store:
            again = store.session(session.session_id)
            assert "late-secret-2" not in exported(again, "workflow")
            assert "late-secret-2" in exported(again, "workflow", redact=False)


class TestInterpolation:
    @pytest.mark.parametrize(
        "text", ["{{", "{{{", "{{{{", "{ {{x}} }", "{{ctx.name}}", "a {{secrets.K}} b {{"]
    )
    def test_no_opener_is_left(self, text: str) -> None:
        neutral_text = neutral(text)
        assert "{{" not in neutral_text
        assert neutral_text.replace("{ ", "{") == text.replace("{ ", "{")

    def test_text_without_openers_stays_as_it_is(self) -> None:
        for text in ("{}", "}}", '{"a": {"b": 1}}', "{ {", "f{x}"):
            assert neutral(text) == text

    @given(st.text(alphabet="{} c.x"))
    def test_whatever_the_text_no_opener_is_left(self, text: str) -> None:
        assert "{{" not in neutral(text)
        assert neutral(neutral(text)) == neutral(text)

    def test_a_prompt_read_back_from_the_file_fills_nothing_in(self, store: Store) -> None:
        session = store.start("support")
        session.append([user("Say {{ctx.name}} and {{{ctx.name}}}"), assistant("{{ctx.name}}")])
        prompt = turns(session)[0]["prompt_template"]
        filled = Workspace(working_dir="/", variables={"name": "FILLED"}).fill(user(prompt))
        assert filled.text == prompt == "Say { {ctx.name}} and { { {ctx.name}}}"
        assert transcript(session)[0]["content"][0]["text"] == "Say {{ctx.name}} and {{{ctx.name}}}"


SCRIPT = """
import sys
from oakleaf.store import Store
from oakleaf.stores.sqlite import SqliteStore
with Store(SqliteStore(sys.argv[1])) as store:
    store.session(sys.argv[2]).export(sys.stdout.buffer, "workflow")
"""


class TestDeterminism:
    def test_another_process_writes_the_same_bytes(self, tmp_path: Path) -> None:
        place = tmp_path / "agent.db"
        with Store(SqliteStore(place), deterministic_runtime()) as store:
            session = sample_session(store, spec=AGENT)
            here = exported(session, "workflow").encode()
        for seed in ("0", "1"):
            done = subprocess.run(
                [sys.executable, "-c", SCRIPT, str(place), session.session_id],
                capture_output=True,
                check=True,
                env={"PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo"},
            )
            assert done.stdout == here

    @thorough_settings
    @given(paths(), st.sampled_from([*TEXTS, None]))
    def test_every_log_gives_a_workflow_that_parses_to_the_same_bytes(
        self, path: list[Entry], title: str | None
    ) -> None:
        row = replace(ROW, title=title, agent="support")
        written = to_yaml(workflow(row, list(redact_entries(path, Redactor())), AGENT))
        document = yaml.safe_load(written)
        assert to_yaml(document) == written
        assert "SIG-" not in written
        assert "DETAILS" not in written
        nodes = [node["id"] for node in document["workflow"]["nodes"]]
        assert nodes == ["input", *(f"turn-{n}" for n in range(1, len(nodes) - 1)), "output"]
        assert [(e["from"], e["to"]) for e in document["workflow"]["edges"]] == list(pairwise(nodes))
        assert all("{{" not in node.get("prompt_template", "") for node in document["workflow"]["nodes"])
