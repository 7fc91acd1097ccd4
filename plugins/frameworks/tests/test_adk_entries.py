"""Events of Google's ADK as entries: equal when they come back, and a real session in between."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from google.adk.events.event import Event, NodeInfo
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.events.ui_widget import UiWidget
from google.adk.models.cache_metadata import CacheMetadata
from google.adk.sessions import Session
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from test_adk import APP, Service, says

import oakleaf
from oakleaf import ToolCall, assistant, tool_result, user
from oakleaf.core.messages import Reasoning, Text
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf_frameworks.adk.service import OakleafSessionService
from oakleaf_frameworks.shared import UNKNOWN_RESULT
from support.sessions import exported

PNG = b"\x89PNG\r\n\x1a\n and \xff\xfe the rest"
URL = f"data:image/png;base64,{base64.b64encode(PNG * 4).decode()}"
USED = types.GenerateContentResponseUsageMetadata(
    prompt_token_count=100,
    cached_content_token_count=60,
    candidates_token_count=7,
    thoughts_token_count=5,
    total_token_count=112,
)


@pytest.fixture
def service(store: Store) -> Service:
    return Service(store)


@pytest.fixture
def session(service: Service) -> Session:
    return service.create("one")


def model(*parts: types.Part, **fields: Any) -> Event:
    content = types.Content(role="model", parts=list(parts))
    return Event(author="helper", invocation_id="inv", content=content, **fields)


def call(call_id: str | None, name: str = "look", **args: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(id=call_id, name=name, args=args))


def result(call_id: str | None, response: Any, name: str = "look", **fields: Any) -> types.Part:
    return types.Part(
        function_response=types.FunctionResponse(id=call_id, name=name, response=response, **fields)
    )


def returned(*parts: types.Part, author: str = "helper", **fields: Any) -> Event:
    return Event(
        author=author, invocation_id="inv", content=types.Content(role="user", parts=list(parts)), **fields
    )


def came_back(service: Service, session: Session, *events: Event) -> list[Event]:
    """Append them, and see that they come back equal, in every way in which a model of pydantic may differ."""
    for event in events:
        service.append(session, event)
    loaded_session = service.load(session.id)
    # As JSON too: in Python 1 is True.
    assert [e.model_dump_json() for e in loaded_session.events] == [
        e.model_dump_json() for e in session.events
    ]
    assert loaded_session == session
    assert service.oakleaf(session).verify() == []
    return loaded_session.events


def messages(service: Service, session: Session) -> list[oakleaf.Message]:
    return [entry.message for entry in service.oakleaf(session).path() if entry.message is not None]


def kept_beside(service: Service, session: Session) -> str:
    """All that lies beside the messages and in notes."""
    path = service.oakleaf(session).path()
    beside = [entry.message.details if entry.message else entry.payload.data for entry in path]
    return json.dumps(beside)


class TestEveryField:
    def test_each_comes_back_as_it_was(self, service: Service, session: Session) -> None:
        event = Event(
            author="helper",
            invocation_id="inv",
            content=types.Content(role="model", parts=[types.Part(text="words")]),
            model_version="gemini-2.5-flash",
            grounding_metadata=types.GroundingMetadata(
                web_search_queries=["q"], search_entry_point=types.SearchEntryPoint(sdk_blob=b"\xff\xfe")
            ),
            partial=False,
            turn_complete=True,
            turn_complete_reason=types.TurnCompleteReason.MALFORMED_FUNCTION_CALL,
            interaction_status=next(iter(types.InteractionStatus)),
            finish_reason=types.FinishReason.MAX_TOKENS,
            error_code="429",
            error_message="too much",
            interrupted=True,
            custom_metadata={"a": None, "b": [1, {"c": 1.5}]},
            usage_metadata=USED,
            live_session_resumption_update=types.LiveServerSessionResumptionUpdate(new_handle="h"),
            live_session_id="live",
            go_away=types.LiveServerGoAway(time_left="1s"),
            voice_activity=types.VoiceActivity(audio_offset="1s"),
            input_transcription=types.Transcription(text="in", finished=True),
            output_transcription=types.Transcription(text="out", finished=False),
            avg_logprobs=-0.25,
            logprobs_result=types.LogprobsResult(
                chosen_candidates=[types.LogprobsResultCandidate(token="t", token_id=1, log_probability=-0.5)]
            ),
            cache_metadata=CacheMetadata(fingerprint="f", contents_count=3),
            citation_metadata=types.CitationMetadata(citations=[types.Citation(uri="u")]),
            interaction_id="i",
            environment_id="e",
            actions=EventActions(
                skip_summarization=False,
                state_delta={"a": None, "b": {"c": None}, "app:d": 1},
                artifact_delta={"file": 0},
                transfer_to_agent="other",
                transfer_reason="why",
                escalate=True,
                requested_auth_configs={},
                requested_tool_confirmations={"c": ToolConfirmation(hint="h", payload={"x": [None]})},
                compaction=EventCompaction(
                    start_timestamp=1.0,
                    end_timestamp=2.0,
                    compacted_content=types.Content(role="model", parts=[types.Part(text="short")]),
                ),
                end_of_agent=True,
                agent_state={"step": None},
                route=[True, 1, "x"],
                render_ui_widgets=[UiWidget(id="w", provider="mcp", payload={"a": 1})],
                set_model_response={"a": [1]},
            ),
            output={"any": [None]},
            node_info=NodeInfo(path="a@1/b@2", output_for=["a@1"], message_as_output=True),
            long_running_tool_ids={"b", "a"},
            branch="a.b",
            isolation_scope="scope",
            id="event",
            timestamp=1700000000.123456,
        )
        untold = Event.model_fields.keys() - event.model_fields_set
        assert not untold, "ADK has a new field: tell it here too"
        untold = EventActions.model_fields.keys() - event.actions.model_fields_set
        assert untold == {"rewind_before_invocation_id"}  # it moves the leaf: see test_adk_runner
        came_back(service, session, event)

    def test_an_event_of_nothing_but_its_defaults(self, service: Service, session: Session) -> None:
        came_back(service, session, Event(), Event(author="user"), Event(content=types.Content()))


CONTENTS: dict[str, list[Event]] = {
    "text": [says("hi"), says("ho", "helper")],
    "empty text": [says(""), says("", "helper"), model(types.Part(text=""), types.Part(text="x"))],
    "no parts": [model(), returned(author="user")],
    "another role": [
        Event(author="helper", content=types.Content(parts=[types.Part(text="custom")])),
        Event(author="user", content=types.Content(role="model", parts=[types.Part(text="odd")])),
        Event(author="helper", content=types.Content(role="system", parts=[types.Part(text="odd")])),
    ],
    "thoughts": [
        model(types.Part(text="hm", thought=True, thought_signature=b"\xff\x00"), types.Part(text="so")),
        model(types.Part(text="", thought_signature=b"end")),
        model(types.Part(text=""), types.Part(text="", thought=True, thought_signature=b"1"), call("c1")),
    ],
    "calls and results": [
        model(types.Part(text="let me"), call("adk-1", order=41), call("adk-2", "find", deep={"a": [None]})),
        returned(result("adk-2", {"result": "x"}, "find"), result("adk-1", {"status": "lost", "n": 1.0})),
        model(call("c", order=None)),
        returned(result("c", {"error": "no such order"})),
    ],
    "results of every form": [
        model(*(call(f"c{n}") for n in range(9))),
        returned(
            result("c0", {"output": "words"}),
            result("c1", {"output": '{"a":1}'}),
            result("c2", {"output": [1, 2]}),
            result("c3", {"error": {"code": 1}}),
            result("c4", {}),
            result("c5", {"output": ""}),
            result("c6", None),
            result("c7", {"a": URL}),
            result("c8", {"error": "5"}, will_continue=False),
        ),
    ],
    "calls without ids": [
        model(
            call(None, order=1), call(None, order=2), types.Part(function_call=types.FunctionCall(name="f"))
        ),
        returned(result(None, {"a": 1}), result(None, {"a": 2}), result(None, {}, "f")),
    ],
    "pictures": [
        returned(
            types.Part(text="look:"), types.Part.from_bytes(data=PNG, mime_type="image/png"), author="user"
        ),
        returned(
            types.Part(inline_data=types.Blob(data=PNG, mime_type="image/png", display_name="a.png")),
            types.Part(inline_data=types.Blob(data=PNG, mime_type="video/mp4"), video_metadata={"fps": 2}),
            types.Part(inline_data=types.Blob(data=b"", mime_type="image/png")),
            types.Part(inline_data=types.Blob(mime_type="image/png")),
            types.Part(inline_data=types.Blob(data=PNG)),
            author="user",
        ),
        model(types.Part.from_bytes(data=PNG, mime_type="image/png")),
    ],
    "a picture as a result": [
        model(call("c")),
        returned(
            result(
                "c",
                {"ok": True},
                parts=[types.FunctionResponsePart.from_bytes(data=PNG, mime_type="image/png")],
            )
        ),
    ],
    "data: URLs": [says(f"this: {URL}!"), model(call("c", url=URL)), returned(result("c", {"u": [URL]}))],
    "base64": [
        says(URL[22:]),
        model(types.Part(text=f'["{URL[22:]}"]'), call("c", data=URL[22:], mime_type="image/png")),
        returned(result("c", {"data": URL[22:], "mime_type": "image/png"})),
    ],
    "files elsewhere": [
        returned(types.Part.from_uri(file_uri="gs://b/o", mime_type="image/png"), author="user"),
    ],
    "code": [
        model(
            types.Part(text="I count"),
            types.Part(executable_code=types.ExecutableCode(code="1+1", language="PYTHON")),
            types.Part(code_execution_result=types.CodeExecutionResult(outcome="OUTCOME_OK", output="2")),
        ),
    ],
    "words beside a result": [
        model(call("c")),
        returned(result("c", {"a": 1}), types.Part(text="and go on"), author="user"),
        model(call("d")),
        returned(
            result(
                "d", {"a": 1}, parts=[types.FunctionResponsePart.from_bytes(data=PNG, mime_type="image/png")]
            ),
            types.Part(text="odd"),
            author="helper",
        ),
    ],
    "a call and its result at once": [model(call("c"), result("c", {"a": 1}))],
    "hostile": [says("nul \0 and ‮"), says("x" * 1_000_000), model(call("c", **{"": {"adk": "adk"}}))],
}


class TestContents:
    @pytest.mark.parametrize("events", CONTENTS.values(), ids=CONTENTS)
    def test_every_shape_comes_back_equal(
        self, service: Service, session: Session, events: list[Event]
    ) -> None:
        came_back(service, session, *(event.model_copy(deep=True) for event in events))

    @pytest.mark.parametrize("name", ["text", "thoughts", "calls and results", "pictures"])
    def test_an_ordinary_one_is_not_stored_twice(self, service: Service, session: Session, name: str) -> None:
        came_back(service, session, CONTENTS[name][0].model_copy(deep=True))
        beside = json.loads(kept_beside(service, session))[-1]["adk"]
        assert beside.keys() <= {"id", "invocation_id", "author", "timestamp"}

    def test_bytes_are_kept_once_and_never_as_text(self, service: Service, session: Session) -> None:
        for name in ("pictures", "a picture as a result", "data: URLs", "base64"):
            came_back(service, session, *(event.model_copy(deep=True) for event in CONTENTS[name]))
        encoded = base64.b64encode(PNG).decode()[:24]
        for entry in service.oakleaf(session).log.store.entries(service.oakleaf(session).session_id):
            assert encoded not in entry.entry.body.decode()
            assert encoded.translate(str.maketrans("+/", "-_")) not in entry.entry.body.decode()

    def test_bytes_that_are_gone_are_told(self, service: Service, session: Session, tmp_path: Any) -> None:
        came_back(service, session, CONTENTS["pictures"][0].model_copy(deep=True))
        service.oakleaf(session).export(tmp_path / "s.oakleaf", blobs=False)
        with oakleaf.open("memory:") as elsewhere:
            elsewhere.import_bundle(tmp_path / "s.oakleaf")
            words, picture = Service(elsewhere).load("one").events[0].content.parts
        assert (words.text, picture.inline_data) == ("look:", None)
        assert "not in this store" in picture.text


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
DICTS = st.dictionaries(TEXTS, JSONS, max_size=3)
IDS = st.sampled_from(["adk-1", "adk-2", "c", None])
NAMES = st.sampled_from(["look", "find"])
PARTS = st.one_of(
    st.builds(
        lambda text, thought, signature: types.Part(text=text, thought=thought, thought_signature=signature),
        TEXTS,
        st.sampled_from([None, True, False]),
        st.none() | st.binary(max_size=4),
    ),
    st.builds(
        lambda i, n, a: types.Part(function_call=types.FunctionCall(id=i, name=n, args=a)), IDS, NAMES, DICTS
    ),
    st.builds(result, IDS, DICTS, NAMES),
    st.builds(lambda data: types.Part.from_bytes(data=data, mime_type="image/png"), st.binary(max_size=8)),
)
EVENTS = st.builds(
    lambda author, role, parts, delta: Event(
        author=author,
        content=types.Content(role=role, parts=parts),
        actions=EventActions(state_delta=delta),
    ),
    st.sampled_from(["user", "helper", "other"]),
    st.sampled_from(["user", "model", None]),
    st.lists(PARTS, max_size=3),
    st.dictionaries(st.sampled_from(["a", "b", "app:a", "user:a"]), JSONS, max_size=2),
)


class TestAnything:
    @given(st.lists(EVENTS, max_size=6))
    def test_whatever_agents_and_people_say_comes_back_and_the_log_stays_whole(
        self, events: list[Event]
    ) -> None:
        async def send_text() -> None:
            service = OakleafSessionService(Store(MemoryStore()))
            session = await service.create_session(app_name=APP, user_id="ann")
            for event in events:
                await service.append_event(session, event)
            loaded_session = await service.get_session(app_name=APP, user_id="ann", session_id=session.id)
            assert loaded_session == session
            own = [e for e in loaded_session.events if not e.id.startswith("lost-before-")]
            assert [e.model_dump_json() for e in own] == [e.model_dump_json() for e in events]
            assert list(service.store.verify()) == []

        asyncio.run(send_text())


class TestEntries:
    def test_a_session_reads_as_messages_with_calls_and_results(
        self, service: Service, session: Session
    ) -> None:
        came_back(
            service,
            session,
            says("Where is 41?"),
            model(types.Part(text="hm", thought=True), call("adk-1", order=41), call("adk-2", order=42)),
            returned(result("adk-1", {"status": "lost"}), result("adk-2", {"error": "no such order"})),
            says("It is lost.", "helper"),
        )
        question, called, tool_message, answered = messages(service, session)
        assert (question.role, question.text) == ("user", "Where is 41?")
        assert called.parts == (
            Reasoning("hm"),
            ToolCall("adk-1", "look", {"order": 41}),
            ToolCall("adk-2", "look", {"order": 42}),
        )
        assert [(r.call_id, r.content, r.error) for r in tool_message.results] == [
            ("adk-1", (Text('{"status":"lost"}'),), False),
            ("adk-2", (Text("no such order"),), True),
        ]
        assert (answered.role, answered.text) == ("assistant", "It is lost.")
        below = service.oakleaf(session)
        assert [entry.message.text for entry in below.transcript()] == ["Where is 41?", "It is lost."]
        assert (below.row.turns, below.row.status, below.row.agent, below.row.owner) == (
            1,
            "idle",
            APP,
            "ann",
        )
        assert below.open_tool_calls == ()
        page = service.service.store.search("lost")
        assert {hit.session_id for hit in page.hits} == {below.session_id}
        assert "Where is 41?" in exported(below, "markdown")

    def test_the_state_is_oakleaf_s_own(self, service: Service, session: Session) -> None:
        service.change(session, cart=["apple"], profile={"name": "Ann", "gone": 1})
        service.append(session, model(call("c")))
        service.append(
            session,
            returned(result("c", {}), actions=EventActions(state_delta={"profile": {"name": "Bob"}, "n": 1})),
        )
        below = service.oakleaf(session)
        assert below.state == {"cart": ["apple"], "profile": {"name": "Bob"}, "n": 1}
        assert below.path()[-1].message is not None  # the result holds it: no note beside
        assert service.load("one").state == below.state

    def test_what_a_call_cost_is_in_the_ledger(self, service: Service, session: Session) -> None:
        service.append(session, says("hi"))
        service.append(session, says("ho", "helper", usage_metadata=USED, model_version="gemini-2.5-flash"))
        service.append(session, Event(author="helper", error_code="500", usage_metadata=USED))
        below = service.oakleaf(session)
        first, failed = below.model_calls()
        assert (first.model, first.provider, first.usage) == (
            "gemini-2.5-flash",
            "gemini",
            oakleaf.Usage(100, 12, 60),
        )
        assert below.path()[first.answer_seq - 1].message.text == "ho"
        assert (failed.failed, failed.answer_seq) == (True, None)
        assert below.usage().input_tokens == 200
        assert below.row.model == "gemini-2.5-flash"
        assert below.verify() == []

    def test_signatures_are_evidence_and_leave_with_no_export(
        self, service: Service, session: Session, tmp_path: Any
    ) -> None:
        signed = CONTENTS["thoughts"]
        came_back(service, session, says("hi"), *(event.model_copy(deep=True) for event in signed))
        below = service.oakleaf(session)
        assert "thought_signature" not in kept_beside(service, session)
        parts = [part for content in below.messages("gemini") for part in content["parts"]]
        assert {"text": "", "thoughtSignature": base64.b64encode(b"end").decode()} in parts
        below.export(tmp_path / "s.oakleaf", blobs=True)
        with oakleaf.open("memory:") as elsewhere:
            elsewhere.import_bundle(tmp_path / "s.oakleaf")
            moved = Service(elsewhere).load("one")
        plain = [event.model_copy(deep=True) for event in session.events]
        for part in (part for event in plain for part in event.content.parts):
            part.thought_signature = None
        assert moved.events == plain

    def test_ids_that_adk_made_up_are_not_shown_to_gemini(self, service: Service, session: Session) -> None:
        service.append(session, says("hi"))
        service.append(session, model(call("adk-1"), call("theirs")))
        calls = [part["functionCall"] for part in service.oakleaf(session).messages("gemini")[-2]["parts"]]
        assert [call.get("id") for call in calls] == [None, "theirs"]

    def test_secrets_are_hidden_before_they_are_kept(self) -> None:
        with oakleaf.open("memory:", secrets={"PIN": "correct-horse"}) as store:
            service = Service(store)
            session = service.create("one")
            service.append(session, says("it is correct-horse"))
            assert service.load("one").events[0].content.parts[0].text == "it is [redacted PIN]"

    def test_where_a_secret_was_hidden_the_rest_is_told_all_the_same(self) -> None:
        secret = 'aa":1,"bb'  # hidden, it takes a key with it
        with oakleaf.open("memory:", secrets={"PIN": secret}) as store:
            service = Service(store)
            session = service.create("one")
            service.append(session, model(call("c")))
            service.append(session, returned(result("c", {"aa": 1, "bb": {"c": URL}})))
            response = service.load("one").events[1].get_function_responses()[0]
            assert response.id == "c"
            assert "redacted PIN" in str(response.response)


class TestLaws:
    def test_who_goes_on_while_a_call_waits_is_heard_and_the_call_is_closed(
        self, service: Service, session: Session
    ) -> None:
        came_back(service, session, says("q"), model(call("c")), says("never mind"), says("fine", "helper"))
        _, _, closed, question, _ = messages(service, session)
        assert [(r.content, r.outcome, r.error) for r in closed.results] == [
            ((Text(UNKNOWN_RESULT),), "unknown", True)
        ]
        assert question.text == "never mind"

    def test_a_result_that_comes_late_from_outside_is_what_a_person_says(
        self, service: Service, session: Session
    ) -> None:
        came_back(
            service,
            session,
            says("approve it"),
            model(call("c", "ask"), long_running_tool_ids={"c"}),
            returned(result("c", {"status": "pending"}, "ask")),
            says("I have asked.", "helper"),
            returned(result("c", {"status": "approved"}, "ask"), author="user"),
            says("It is approved.", "helper"),
        )
        *_, late, _ = messages(service, session)
        assert late.role == "user"
        assert "ask, a tool call that was already answered" in late.text
        assert late.text.endswith('{"status":"approved"}')

    def test_a_result_that_comes_again_from_an_agent_brings_its_call(
        self, service: Service, session: Session
    ) -> None:
        came_back(
            service,
            session,
            model(call("c", "pay", sum=5)),
            returned(result("c", {"error": "needs a word"}, "pay")),
            returned(result("c", {"paid": 5}, "pay")),
            says("Paid.", "helper"),
        )
        again, paid, _ = messages(service, session)[2:]
        assert again.calls == (ToolCall("c", "pay", {"sum": 5}),)
        assert paid.results[0].content == (Text('{"paid":5}'),)

    def test_what_another_agent_says_while_a_call_waits_is_a_note_and_shown_when_it_may(
        self, service: Service, session: Session
    ) -> None:
        one_branch, right = {"branch": "both.left"}, {"branch": "both.right"}
        asks = model(call("l", "look", n=1), **one_branch)
        also_asks = model(call("r", "find", n=2), **right)
        came_back(service, session, says("q"), asks, also_asks, says("right thinks", "right", **right))
        assert [len(m.calls) for m in messages(service, session)] == [0, 1]
        came_back(
            service,
            session,
            returned(result("r", {"r": 1}, "find"), **right),
            returned(result("l", {"l": 1}), **one_branch),
            says("left is done", "left", **one_branch),
            says("right is done", "right", **right),
        )
        output = messages(service, session)
        assert [m.calls[0].arguments for m in output if m.calls] == [{"n": 1}, {"n": 2}]
        assert [r.content[0].text for m in output for r in m.results] == ['{"l":1}', '{"r":1}']
        assert [m.text for m in output if m.role == "assistant" and m.text] == [
            *("right thinks", "left is done", "right is done"),
        ]

    def test_the_results_of_such_a_call_bring_it_along(self, service: Service, session: Session) -> None:
        came_back(
            service,
            session,
            model(call("l", n=1), branch="both.left"),
            model(call("r", n=2), branch="both.right"),
            returned(result("l", {}), branch="both.left"),
            returned(result("r", {}), branch="both.right"),
        )
        output = messages(service, session)
        assert [m.calls[0].arguments for m in output if m.calls] == [{"n": 1}, {"n": 2}]

    def test_the_agent_that_asked_may_go_on_without_a_result(
        self, service: Service, session: Session
    ) -> None:
        came_back(
            service,
            session,
            says("q"),
            model(call("long", "ask"), call("short", "look"), long_running_tool_ids={"long"}),
            returned(result("short", {"a": 1})),
            says("I have asked.", "helper"),
        )
        *_, short, closed, answered = messages(service, session)
        assert [(r.call_id, r.outcome) for m in (short, closed) for r in m.results] == [
            ("short", "done"),
            ("long", "unknown"),
        ]
        assert answered.text == "I have asked."
        assert service.oakleaf(session).row.status == "idle"

    def test_what_was_noted_is_shown_before_a_person_goes_on(
        self, service: Service, session: Session
    ) -> None:
        came_back(service, session, model(call("l")), says("meanwhile", "right"), says("stop"))
        assert [m.text for m in messages(service, session)] == ["", "", "meanwhile", "stop"]


class TestOthers:
    def test_what_others_wrote_is_told_as_events(self, service: Service, session: Session) -> None:
        service.append(session, says("hi"))
        below = service.oakleaf(session)
        photo = service.service.store.put_blob(PNG, "image/png")
        below.append([assistant(ToolCall("c", "look", {"n": 1})), tool_result("c", "here"), assistant("ho")])
        below.note({"mine": 1}, state={"k": 1})
        below.append([user("and this?", photo)])
        loaded_session = service.load("one")
        assert [event.author for event in loaded_session.events] == [
            "user",
            "oakleaf",
            "oakleaf",
            "oakleaf",
            "user",
        ]
        assert loaded_session.events[1].get_function_calls()[0].args == {"n": 1}
        assert loaded_session.events[2].get_function_responses()[0].response == {"output": "here"}
        assert loaded_session.events[4].content.parts[1].inline_data.data == PNG
        assert loaded_session.state == {"k": 1}
        assert loaded_session == service.load("one")
        service.append(loaded_session, says("A parcel.", "helper"))
        assert service.load("one") == loaded_session

    def test_a_fork_is_a_session_of_adk_s_by_the_id_oakleaf_gave_it(
        self, service: Service, session: Session
    ) -> None:
        service.append(session, says("one", actions=EventActions(state_delta={"n": 1, "user:n": 1})))
        service.append(session, says("re one", "helper"))
        service.append(session, says("two"))
        fork = service.oakleaf(session).fork(at=5)
        forked = service.load(fork.session_id)
        assert [event.id for event in forked.events] == [event.id for event in session.events[:2]]
        assert forked.state == {"n": 1, "user:n": 1}
        service.append(forked, says("another way"))
        assert service.load(fork.session_id) == forked
        assert len(service.load("one").events) == 3
        assert {one.id for one in service.list()} == {"one", fork.session_id}
        assert service.find(fork.session_id, user="bob") is None
