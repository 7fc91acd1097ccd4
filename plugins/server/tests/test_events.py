"""Live events: every fact once and in order, to everybody, across cuts; pieces of answers that never show half."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path

import pytest

import oakleaf
from oakleaf import Limits, ToolCall, assistant, user
from oakleaf.agent.events import FACT_EVENT_TYPES, Event
from oakleaf.core.facts import Titled
from oakleaf.models.base import Delta, Request
from oakleaf.models.scripted import ScriptedModel
from oakleaf.store import Store
from oakleaf.wire import Answer
from oakleaf_server.context import ServerAgent
from oakleaf_server.live import MAX_QUEUED, LiveEvent, LiveHub
from oakleaf_server.routes import events
from support.secret_session import ANN, SECRET, SERVICE, TOKENS, start_with_secrets
from support.server import LocalServer, Stream

WORDS = [f"word{n}" for n in range(60)]


class ToolCallingModel:
    """Calls a tool a few times, then answers at length, not all at once."""

    provider = "scripted"
    model = "talker"

    def __init__(self, rounds: int = 6, pause: float = 0.01) -> None:
        self.rounds, self.pause = rounds, pause

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        answers = sum(item.message.role == "assistant" for item in request.context.items)
        if answers < self.rounds:
            yield Delta("looking ")
            call = ToolCall(f"call_{answers}", "look", {"n": answers})
            yield Answer(assistant("looking", call), None, None, "scripted", "talker", "tool_use")
            return
        for word in WORDS:
            yield Delta(f"{word} ")
            await asyncio.sleep(self.pause)
        yield Answer(assistant(" ".join(WORDS)), None, None, "scripted", "talker", "stop")


@oakleaf.tool(effect="read")
def look(n: int) -> int:
    """Look at a number."""
    return n


def serve_agent(store: Store, **access: object) -> LocalServer:
    return LocalServer(store, ServerAgent((ToolCallingModel(),), (look,)), **access)


def has_ended(stream: Stream) -> bool:
    return any(fact["kind"] == "turn_ended" for fact in stream.data_of("fact"))


class TestFacts:
    def test_two_clients_see_every_fact_once_and_in_order(self, store: Store) -> None:
        session = store.start()
        with serve_agent(store) as server:
            address = f"/api/sessions/{session.session_id}/events"
            with server.watch(address) as one, server.watch(address) as other:
                server.post(f"/api/sessions/{session.session_id}/send", {"text": "go"}, 202)
                for stream in (one, other):
                    stream.wait(lambda s=stream: any(f["kind"] == "turn_ended" for f in s.data_of("fact")))
            last = store.session(session.session_id).row.facts
            assert one.facts() == other.facts() == list(range(2, last + 1))

    def test_a_stream_cut_and_begun_anew_misses_nothing_and_repeats_nothing(self, store: Store) -> None:
        session = store.start()
        with serve_agent(store) as server:
            address = f"/api/sessions/{session.session_id}/events"
            numbers: list[int] = []
            cuts, stream = 0, server.watch(address, after=0)
            server.post(f"/api/sessions/{session.session_id}/send", {"text": "go"}, 202)
            while True:
                with stream:
                    stream.wait(lambda s=stream: len(s.events) > 3 or has_ended(s))
                numbers += stream.facts()
                if has_ended(stream):
                    break
                cuts += 1
                stream = server.watch(address, after=numbers[-1] if numbers else 0)
            assert numbers == list(range(1, store.session(session.session_id).row.facts + 1))
            assert cuts >= 1

    def test_a_fact_brings_the_entries_it_appended(self, store: Store) -> None:
        session = store.start()
        with (
            LocalServer(store) as server,
            server.watch(f"/api/sessions/{session.session_id}/events") as stream,
        ):
            session.append([user("a"), assistant("b")])
            session.title("named")
            stream.wait(lambda: len(stream.facts()) == 4)
            first, *_, last = stream.data_of("fact")
            assert [e["payload"]["parts"][0]["text"] for e in first["entries"]] == ["a", "b"]
            assert (last["kind"], last["entries"], last["session"]["title"]) == ("titled", [], "named")

    def test_what_another_process_does_is_seen_too(self, tmp_path: Path) -> None:
        place = tmp_path / "agent.db"
        with oakleaf.open(place) as store:
            session = store.start()
            with (
                LocalServer(store) as server,
                server.watch(f"/api/sessions/{session.session_id}/events") as stream,
            ):
                code = (
                    "import oakleaf, sys\n"
                    "with oakleaf.open(sys.argv[1]) as store:\n"
                    "    store.session(sys.argv[2]).append([oakleaf.user('from elsewhere')])\n"
                )
                subprocess.run([sys.executable, "-c", code, place, session.session_id], check=True)
                stream.wait(lambda: stream.facts() == [2, 3])
                assert "from elsewhere" in json.dumps(stream.data_of("fact"))

    def test_who_missed_too_much_is_told_to_read_anew(self, store: Store) -> None:
        session = store.start()
        for _ in range(events.MAX_MISSED + 1):
            session.log.record(Titled())
        with LocalServer(store) as server:
            address = f"/api/sessions/{session.session_id}/events"
            with server.watch(address, after=0) as stream:
                stream.wait(lambda: stream.data_of("resync"))
                assert stream.events[0][1] == session.row.facts
                session.title("x")
                stream.wait(lambda: stream.facts() == [session.row.facts])
            with server.watch(address, after=9_999_999) as ahead:  # a number this journal never had
                ahead.wait(lambda: ahead.data_of("resync"))

    def test_without_a_number_it_begins_with_what_comes_now(self, store: Store) -> None:
        session = store.start()
        session.title("before")
        with (
            LocalServer(store) as server,
            server.watch(f"/api/sessions/{session.session_id}/events") as stream,
        ):
            session.title("after")
            stream.wait(lambda: stream.facts() == [3])

    def test_a_quiet_stream_shows_that_it_is_alive(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(events, "HEARTBEAT", 0.2)
        session = store.start()
        with (
            LocalServer(store) as server,
            server.watch(f"/api/sessions/{session.session_id}/events") as stream,
        ):
            stream.wait(lambda: stream.comments >= 2)
            assert stream.events == []

    def test_a_wrong_number_or_session_is_refused(self, store: Store) -> None:
        session = store.start()
        with LocalServer(store) as server:
            server.get("/api/sessions/none/events", 404)
            reply = server.client.get(
                f"/api/sessions/{session.session_id}/events", headers={"last-event-id": "x"}
            )
            assert (reply.status_code, reply.json()["code"]) == (400, "invalid_argument")

    def test_a_session_that_is_purged_ends_its_streams(self, store: Store) -> None:
        session = store.start()
        with (
            LocalServer(store) as server,
            server.watch(f"/api/sessions/{session.session_id}/events") as stream,
        ):
            store.delete(session.session_id)
            store.purge(session.session_id)
            stream.wait(lambda: stream.data_of("problem"))
            assert stream.data_of("problem")[0]["code"] == "not_found"

    def test_a_session_moved_to_the_trash_or_restored_says_so(self, store: Store) -> None:
        session_id = store.start().session_id
        address = f"/api/sessions/{session_id}/events"
        with LocalServer(store) as server:
            with server.watch(address) as stream:
                store.delete(session_id)
                stream.wait(lambda: stream.data_of("trashed"))
                row = store.session(session_id).row
                assert stream.data_of("trashed") == [{"trashed_at": row.trashed_at}]
                with server.watch(address) as late:
                    late.wait(lambda: late.data_of("trashed"))
                store.restore(session_id)
                stream.wait(lambda: stream.data_of("restored"))
            assert [name for name, _, _ in stream.events] == ["session:trashed", "session:restored"]


class TestNames:
    def test_python_and_the_stream_tell_the_same_names_and_numbers_without_a_gap(self, store: Store) -> None:
        session = store.start()

        @oakleaf.tool(effect="read")
        def look(ctx: oakleaf.ToolContext) -> str:
            """Look, while another handle names the session and adds a note."""
            other = store.session(session.session_id)
            other.title("from elsewhere")
            other.note({"from": "elsewhere"})
            return "seen"

        model = ScriptedModel([assistant(ToolCall("c1", "look", {})), "Done."])
        with (
            LocalServer(store) as server,
            server.watch(f"/api/sessions/{session.session_id}/events", after=1) as stream,
        ):
            run = session.send_sync("go", model=model, tools=[look])
            last = session.row.facts
            stream.wait(lambda: len(stream.facts()) == last - 1)
        durable = [(e.type, e.journal_number) for e in run.events if e.journal_number is not None]
        assert durable[0] == ("session:started", 1)
        assert [number for _, number in durable] == list(range(1, last + 1))
        assert durable[1:] == [(name, number) for name, number, _ in stream.events]
        names = [name for name, _ in durable]
        assert names[1:3] == ["session:input", "session:turn_started"]
        assert names[-2:] == ["session:answer", "session:turn_completed"]
        assert {"session:titled", "session:note"} <= set(names)
        assert all(e.type == "session:delta" for e in run.events if e.journal_number is None)

    def test_the_last_turns_before_the_cap_are_told(self, store: Store) -> None:
        """A default of the server holds where the session has no cap of its own."""
        agent = ServerAgent((ScriptedModel(["a"] * 4),), default_limits={"turns": 10})
        near, own = store.start(), store.start()
        own.set(limits=Limits(turns=20))
        for session in (near, own):
            for n in range(8):
                session.append([user(f"q{n}"), assistant("a")])
        with LocalServer(store, agent) as server:
            for session, warns in ((near, True), (own, False)):
                address = f"/api/sessions/{session.session_id}"
                with server.watch(f"{address}/events") as stream:
                    server.post(f"{address}/send", {"text": "go"}, 202)
                    stream.wait(lambda s=stream: has_ended(s))
                warnings = stream.data_of("warning")
                assert [data["code"] for data in warnings] == ["turn_limit_near"] * warns
                assert all("chat.max_turns" in data["command_message"] for data in warnings)

    def test_the_viewer_listens_to_every_durable_event(self) -> None:
        script = files("oakleaf_server").joinpath("viewer/live.js").read_text()
        listed = re.findall(r'"(\w+)"', script[script.index("const FACTS") : script.index("const LIVE")])
        assert {f"session:{name}" for name in listed} == {*FACT_EVENT_TYPES, "session:hidden"}


class TestPieces:
    def test_the_pieces_of_an_answer_make_the_answer(self, store: Store) -> None:
        session = store.start()
        with (
            serve_agent(store) as server,
            server.watch(f"/api/sessions/{session.session_id}/events") as stream,
        ):
            server.post(f"/api/sessions/{session.session_id}/send", {"text": "go"}, 202)
            stream.wait(lambda: stream.data_of("turn_completed"))
            text, finished = "", []
            for name, _, data in stream.events:
                if name == "session:delta":
                    text += data["text"]
                elif name == "session:draft":
                    text = data["text"]
                elif name == "session:answer":
                    finished.append((text.strip(), data["entries"][-1]["payload"]["parts"][0]["text"]))
                    text = ""
            assert [piece_text == answer_text for piece_text, answer_text in finished] == [True] * 7
            assert finished[-1][1] == " ".join(WORDS)

    def test_who_comes_late_is_told_what_was_said_so_far(self, store: Store) -> None:
        session = store.start()
        agent = ServerAgent((ToolCallingModel(rounds=0, pause=0.03),))
        with LocalServer(store, agent) as server:
            address = f"/api/sessions/{session.session_id}/events"
            with server.watch(address) as early:
                server.post(f"/api/sessions/{session.session_id}/send", {"text": "go"}, 202)
                early.wait(lambda: len(early.data_of("delta")) > 10)
                with server.watch(address) as late:
                    late.wait(lambda: any(fact["kind"] == "turn_ended" for fact in late.data_of("fact")))
            assert late.events[0][0] == "session:draft"
            text = late.data_of("draft")[-1]["text"] + "".join(
                piece["text"] for piece in late.data_of("delta")
            )
            assert text.split() == WORDS

    def test_the_draft_of_a_run_elsewhere_is_shown(self, store: Store) -> None:
        session = store.start()
        session.append([user("go")])
        now = store.runtime.now()
        fence = session.log.store.lease(session.session_id, "elsewhere:1#1", now + 10**12, now)
        with (
            LocalServer(store) as server,
            server.watch(f"/api/sessions/{session.session_id}/events") as stream,
        ):
            session.log.store.save_draft(session.session_id, session.leaf, "half an ans", fence, now)
            stream.wait(
                lambda: stream.data_of("draft") and stream.data_of("draft")[-1]["text"] == "half an ans"
            )
            assert server.get(f"/api/sessions/{session.session_id}")["draft"] == "half an ans"

    def test_a_run_that_breaks_says_so(self, store: Store) -> None:
        def broken(_: Request) -> str:
            raise RuntimeError("a bug at /some/path")

        session = store.start()
        with (
            LocalServer(store, ServerAgent((ScriptedModel(broken),))) as server,
            server.watch(f"/api/sessions/{session.session_id}/events") as stream,
        ):
            server.post(f"/api/sessions/{session.session_id}/send", {"text": "go"}, 202)
            stream.wait(lambda: stream.data_of("failed"))
            failed = stream.data_of("failed")[0]
            assert failed["code"] == "internal_error"
            assert "/some/path" not in json.dumps(failed)

    def test_who_cannot_keep_up_gets_the_draft_and_never_half(self) -> None:
        async def fall_behind() -> tuple[bool, LiveEvent | None, dict[str, str] | None]:
            live = LiveHub()
            watcher = live.watch("ses")
            for n in range(MAX_QUEUED + 10):
                live.publish("ses", Event("session:delta", {"text": f"{n} ", "reasoning": ""}))
            piece = await watcher.next(0.01)
            return watcher.has_lost_events, piece, live.draft("ses")

        has_lost_events, piece, draft = asyncio.run(fall_behind())
        assert has_lost_events
        assert piece is not None
        assert draft is not None
        assert draft["text"].split() == [str(n) for n in range(MAX_QUEUED + 10)]


class TestClients:
    def test_what_is_hidden_comes_as_stubs_so_that_no_number_is_missing(self, store: Store) -> None:
        mine = start_with_secrets(store, "ann", "ann")
        session = store.session(mine)
        with (
            LocalServer(store, **TOKENS) as server,
            server.watch(f"/api/sessions/{mine}/events", 0, ANN) as stream,
        ):
            session.title(SECRET)
            stream.wait(lambda: stream.facts() == list(range(1, session.row.facts + 1)))
            assert SECRET not in json.dumps(stream.events)
            texts = [entry["text"] for fact in stream.data_of("fact") for entry in fact.get("entries", [])]
            assert texts == ["ann asks", "ann is answered"]
            assert {tuple(fact) for fact in stream.data_of("fact") if fact["kind"] == "hidden"} == {
                ("number", "kind", "at")
            }
            reply = server.client.get(
                f"/api/sessions/{start_with_secrets(store, 'bob', 'bob')}/events",
                headers={"authorization": f"Bearer {ANN}"},
            )
            assert reply.status_code == 404

    def test_a_client_sends_and_hears_the_answer_but_none_of_the_work(self, store: Store) -> None:
        session = store.start(owner="ann")
        address = f"/api/sessions/{session.session_id}"
        with (
            serve_agent(store, **TOKENS) as server,
            server.watch(f"{address}/events", token=ANN) as stream,
            server.watch(f"{address}/events", token=SERVICE) as inside,
        ):
            server.post(f"{address}/send", {"text": "go"}, 202, token=ANN)
            inside.wait(lambda: any(fact["kind"] == "turn_ended" for fact in inside.data_of("fact")))
            stream.wait(lambda: stream.facts() == inside.facts())
            texts = [entry["text"] for fact in stream.data_of("fact") for entry in fact.get("entries", [])]
            assert texts == ["go", " ".join(WORDS)]
            names = {name for name, _, _ in stream.events}
            assert names == {"session:input", "session:answer", "session:hidden"}
            assert "look" not in json.dumps(stream.events)

    def test_the_stream_of_a_session_in_the_trash_ends_as_one_that_does_not_exist(self, store: Store) -> None:
        session_id = store.start(owner="ann").session_id
        with (
            LocalServer(store, **TOKENS) as server,
            server.watch(f"/api/sessions/{session_id}/events", token=ANN) as stream,
        ):
            store.delete(session_id)
            stream.wait(lambda: stream.events)
            assert [(name, data["code"]) for name, _, data in stream.events] == [
                ("session:problem", "not_found")
            ]
