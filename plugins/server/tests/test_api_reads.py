"""Every address of the API: what it tells, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import oakleaf
from oakleaf import Text, ToolCall, assistant, system, tool_result, user, wire
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import ApprovalRequested, ToolCallsStarted, TurnLeft
from oakleaf.core.messages import Reasoning
from oakleaf.core.usage import Call, Price, Usage
from oakleaf.models.scripted import ScriptedModel
from oakleaf.store import Store
from support.server import LocalServer


@pytest.fixture
def server(store: Store) -> Iterator[LocalServer]:
    with LocalServer(store, internal_token="inside") as running:
        yield running


def start_sample_session(store: Store, **about: object) -> oakleaf.Session:
    """Two turns, the first with a tool; entries 1 to 6."""
    session = store.start("support", [system("You help.")], **about)
    session.append([user("Where is order 41?")])
    session.append([assistant(Reasoning("hm"), Text("Looking."), ToolCall("c1", "track", {"order": 41}))])
    session.append([tool_result("c1", {"status": "lost"}, error=True, state={"found": False})])
    session.append([assistant("It is lost.")])
    session.append([user("Thanks")])
    session.append([assistant("Welcome.")])
    return session


def session_url(session: oakleaf.Session) -> str:
    return f"/api/sessions/{session.session_id}"


class TestSessions:
    @pytest.mark.smoke
    def test_a_session_is_started_read_named_tagged_trashed_and_restored(self, server: LocalServer) -> None:
        answer = server.post(
            "/api/sessions", {"agent": "support", "prompt": "Be kind.", "tags": {"a": "1"}}, 201
        )
        name = answer["session"]["id"]
        read = server.get(f"/api/sessions/{name}")
        assert (read["session"]["agent"], read["session"]["seed_count"], read["next_action"]) == (
            "support",
            1,
            "Rest",
        )
        assert read["settings"] == {
            "model": None,
            "prompt": None,
            "prompt_patch": None,
            "tools": None,
            "limits": None,
            "options": None,
            "effects": None,
            "max_messages": None,
        }
        assert server.post(f"/api/sessions/{name}/title", {"text": "T"})["title"] == "T"
        assert server.post(f"/api/sessions/{name}/title", {"text": ""})["title"] is None
        tagged = server.post(f"/api/sessions/{name}/tag", {"tags": {"a": None, "self": "x"}})
        assert tagged["tags"] == {"self": "x"}
        planned = server.change("DELETE", f"/api/sessions/{name}")
        assert (planned["done"], planned["plan"][0]["id"]) == (False, name)
        assert [row["id"] for row in server.get("/api/sessions")["sessions"]] == [name]
        assert server.change("DELETE", f"/api/sessions/{name}?yes=true")["trashed"] == [name]
        assert server.get("/api/sessions")["sessions"] == []
        assert [row["id"] for row in server.get("/api/sessions", query="is:trashed")["sessions"]] == [name]
        assert server.post(f"/api/sessions/{name}/title", {"text": "x"}, 409)["code"] == "session_trashed"
        assert server.change("POST", f"/api/sessions/{name}/fork", {}, 409)["code"] == "session_trashed"
        server.get(f"/api/sessions/{name}/path")
        assert server.post(f"/api/sessions/{name}/restore")["restored"] == [name]
        assert server.post("/api/sessions", {"session_id": name}, 409)["code"] == "id_taken"

    def test_a_purge_is_a_plan_until_yes(self, server: LocalServer) -> None:
        name = server.sessions.start("gone").session_id
        server.change("DELETE", f"/api/sessions/{name}?yes=true")
        planned = server.post("/api/purge", {"sessions": [name]})
        assert (planned["done"], planned["purged"]) == (False, [name])
        assert server.get("/api/sessions", query="is:trashed")["sessions"]
        assert server.post("/api/purge", {"sessions": [name], "yes": True})["purged"] == [name]
        assert server.get("/api/sessions", query="is:trashed")["sessions"] == []

    def test_a_row_with_many_tags_or_tool_names_is_listed_with_every_field(self, server: LocalServer) -> None:
        server.sessions.start("plain")
        server.sessions.start("tagged", tags={f"tag-{n}": "x" * 40 for n in range(300)})
        server.sessions.start("tools", tool_names=[f"{'long_name_' * 4}{n}" for n in range(350)])
        rows = {row["agent"]: row for row in server.get("/api/sessions")["sessions"]}
        assert rows["tagged"].keys() == rows["tools"].keys() == rows["plain"].keys()
        assert rows["tools"]["status"] == "idle"
        assert len(json.dumps(rows)) < 40_000

    def test_sessions_are_listed_by_pages_and_filters(self, server: LocalServer) -> None:
        sessions = [
            server.sessions.start("even" if n % 2 == 0 else "odd", tags={"n": str(n)}) for n in range(7)
        ]
        first = server.get("/api/sessions", limit=3)
        second = server.get("/api/sessions", limit=3, page=first["next"])
        third = server.get("/api/sessions", limit=3, page=second["next"])
        ids = [row["id"] for page in (first, second, third) for row in page["sessions"]]
        assert ids == [session.session_id for session in reversed(sessions)]
        assert third["next"] is None
        assert len(server.get("/api/sessions", query="agent:even")["sessions"]) == 4
        assert [r["id"] for r in server.get("/api/sessions", query="tag:n=3")["sessions"]] == [
            sessions[3].session_id
        ]
        assert server.get("/api/sessions", 400, query="tag:n")["code"] == "invalid_search"
        assert server.get("/api/facets", 400, query="status:odd")["code"] == "invalid_search"
        assert server.get("/api/sessions", 400, query="relation:odd")["code"] == "invalid_search"
        assert server.get("/api/sessions", 400, staus="idle")["code"] == "unknown_field"
        for path in (
            "/api/facets",
            session_url(sessions[0]),
            f"{session_url(sessions[0])}/path",
        ):
            problem = server.get(path, 400, staus="idle")
            assert (problem["code"], "'staus'" in problem["detail"]) == ("invalid_argument", True)

    def test_a_session_without_a_title_is_called_by_its_first_input(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        assert server.get("/api/sessions")["sessions"][0]["heading"] == "Where is order 41?"
        session.title("Order\n41")
        assert server.get("/api/sessions")["sessions"][0]["heading"] == "Order 41"

    def test_facets_count_what_the_other_choices_would_give(self, server: LocalServer) -> None:
        for n in range(3):
            server.sessions.start("a", model="m" if n else None)
        server.sessions.start("b").fork(at=0)
        facets = server.get("/api/facets", query="agent:a")
        assert facets["total"] == 3
        assert facets["facets"]["agent"] == {"a": 3, "b": 2}
        assert facets["facets"]["model"] == {"m": 2, "": 1}
        assert server.get("/api/facets")["facets"]["relation"] == {"": 4, "fork": 1}

    def test_what_needs_attention_is_counted_as_it_is_listed(self, server: LocalServer) -> None:
        """A replay that stopped counted as interrupted, to be resumed, and what a task waits for was told twice."""
        store = server.sessions
        failed = [store.start(), store.start(agent="cook")]
        failed.append(store.start_task(failed[0], "helper", []))
        for session in failed:
            session.log.record(TurnLeft(1, "failed"), row={"status": "failed"})
        overview = server.get("/api/overview")
        listed = server.get("/api/sessions?query=status:failed")["sessions"]
        assert overview["counts"]["failed"] == len(listed) == 2
        assert [row["id"] for row in overview["failed"]] == [row["id"] for row in listed]

    def test_a_session_tells_its_parent_and_its_children(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        fork = session.fork(at=2, title="other")
        task = server.sessions.start_task(session, "helper")
        read = server.get(session_url(session))
        assert {row["id"] for row in read["related"]} == {fork.session_id, task.session_id}
        assert server.get(session_url(fork))["parent"]["id"] == session.session_id
        server.sessions.delete(session.session_id)
        assert server.get(session_url(fork))["parent"]["trashed_at"] is not None

    def test_open_calls_tell_how_far_they_are(self, server: LocalServer) -> None:
        session = server.sessions.start()
        session.append([user("go")])
        session.append(
            [assistant(ToolCall("c1", "refund", {"order": 1}), ToolCall("c2", "refund", {"order": 2}))]
        )
        session.log.record(ToolCallsStarted(2, (0,)))
        session.log.record(ApprovalRequested(2, 1))
        read = server.get(session_url(session))
        assert read["next_action"] == "RunTools"
        assert [(c["id"], c["state"]) for c in read["open_tool_calls"]] == [
            ("c1", "unknown"),
            ("c2", "waits_for_approval"),
        ]

    def test_an_open_call_is_only_said_to_be_not_started_by_a_loop_that_records_starts(
        self, server: LocalServer
    ) -> None:
        session = server.sessions.start()
        turn = session.turn("go").__enter__()
        calls = turn.answer(assistant(ToolCall("c1", "refund"), ToolCall("c2", "refund"))).calls
        states = [call["state"] for call in server.get(session_url(session))["open_tool_calls"]]
        assert states == ["no_start_recorded"] * 2
        turn.started(calls[0])
        session.end("interrupted")
        states = [call["state"] for call in server.get(session_url(session))["open_tool_calls"]]
        assert states == ["unknown", "not_started"]


class TestEntries:
    def test_a_path_is_read_by_windows(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        whole = server.get(f"{session_url(session)}/path")
        assert [e["seq"] for e in whole["entries"]] == [1, 2, 3, 4, 5, 6, 7]
        assert (whole["total"], whole["first"], whole["last"], whole["has_before"]) == (7, 1, 7, False)
        assert "evidence" not in whole["entries"][0]
        for query, seqs in [
            ({"first": 3, "limit": 2}, [3, 4]),
            ({"last": 3, "limit": 2}, [2, 3]),
            ({"around": 4, "limit": 3}, [3, 4, 5]),
            ({"newest": "true", "limit": 2}, [6, 7]),
            ({"first": 9}, []),
            ({"public": "true"}, [2, 5, 6, 7]),
            ({"leaf": "3"}, [1, 2, 3]),
            ({"leaf": str(session.log.leaf_at(2))}, [1, 2]),
        ]:
            assert [
                e["seq"] for e in server.get(f"{session_url(session)}/path", **query)["entries"]
            ] == seqs, query
        assert server.get(f"{session_url(session)}/path", 400, first=1, last=2)["code"] == "invalid_argument"
        for leaf in ("9:9", "x", "1:99", "99"):
            assert server.get(f"{session_url(session)}/path", 404, leaf=leaf)["code"] == "invalid_position"

    def test_a_place_of_another_session_is_not_read(self, server: LocalServer) -> None:
        mine, other = start_sample_session(server.sessions), start_sample_session(server.sessions)
        fork = mine.fork(at=2)
        for path in ("path?leaf=", "outline?leaf=", "request?at=", "turns?leaf=", "state?leaf=", "entries/"):
            server.get(f"{session_url(mine)}/{path}{other.leaf}", 404)
            assert server.client.get(f"{session_url(fork)}/{path}{mine.log.leaf_at(2)}").status_code == 200, (
                path
            )
            server.get(
                f"{session_url(fork)}/{path}{mine.log.leaf_at(5)}", 404
            )  # behind what the fork stands on

    def test_long_text_is_cut_and_fetched_whole(self, server: LocalServer) -> None:
        session = server.sessions.start()
        session.append([user("x" * 300_000)])
        session.append([assistant(ToolCall("c", "write", {"path": "a.py", "content": "y" * 50_000}))])
        entries = server.get(f"{session_url(session)}/path")["entries"]
        part = entries[0]["payload"]["parts"][0]
        assert len(part["text"]) == 4_000
        assert part["omitted_chars"] == entries[0]["omitted_chars"] == 296_000
        call = entries[1]["payload"]["parts"][0]
        assert (call["arguments"]["path"], call["omitted_chars"]) == ("a.py", 46_000)
        whole = server.get(f"{session_url(session)}/entries/1")
        assert whole["entry"]["payload"]["parts"][0]["text"] == "x" * 300_000
        assert "omitted_chars" not in whole["entry"]

    def test_one_entry_tells_its_call_and_its_raw_form(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        price = Price(77, "v")
        call = Call("k1", 0, 7, 9, 5, Usage(10, 2), provider="anthropic", model="m", price=price)
        session.log.append([Draft(user("a")), Draft(assistant("b"))], calls=[call])
        read = server.get(f"{session_url(session)}/entries/9")
        assert (read["call"]["cost_microcents"], read["on_path"]) == (77, True)
        assert read["reference"] == f"{session.session_id}@{session.leaf}"
        raw = server.client.get(f"{session_url(session)}/entries/{session.leaf}/raw")
        assert raw.json()["payload"]["parts"][0]["text"] == "b"
        assert raw.headers["content-disposition"].startswith("attachment")
        assert server.get(f"{session_url(session)}/entries/0", 404)["code"] == "invalid_position"

    def test_turns_are_summed_up_newest_first(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        session.append([user("once more")])
        first = server.get(f"{session_url(session)}/turns", limit=2)
        assert [(t["turn"], t["input"], t["status"]) for t in first["turns"]] == [
            (8, "once more", "open"),
            (6, "Thanks", "answered"),
        ]
        rest = server.get(f"{session_url(session)}/turns", before=first["next"])
        (turn,) = rest["turns"]
        assert (turn["turn"], turn["last"], turn["answer"], turn["steps"]) == (2, 5, "It is lost.", 2)
        assert turn["tools"] == [{"name": "track", "calls": 1, "errors": 1, "denied": 0, "outcomes": []}]
        assert rest["next"] is None

    def test_what_a_call_waited_for_is_told_with_the_calls_of_its_range(self, server: LocalServer) -> None:
        @oakleaf.tool(approval=True)
        def pay(amount: int) -> str:
            return f"paid {amount}"

        session = server.sessions.start("support", [system("You pay.")])
        asks = assistant(ToolCall("a", "pay", {"amount": 1}), ToolCall("b", "pay", {"amount": 2}))
        for turn in range(3):
            model = ScriptedModel([asks, "Done."])
            session.send_sync(f"Pay {turn}", model=model, tools=[pay])
            first, second = session.pending_approvals()
            session.approve(first)
            session.approve(second, allow=False)
            session.resume_sync(model=model, tools=[pay])
        fork = session.fork()
        (turn,) = server.get(f"{session_url(session)}/turns", limit=1)["turns"]
        assert turn["tools"] == [
            {"name": "pay", "calls": 2, "errors": 0, "denied": 1, "outcomes": ["denied"]}
        ]
        asked = turn["last"] - 3
        for one in (session, fork):  # the fork inherits the entries, and has no such facts of its own
            facts = server.get(f"{session_url(one)}/calls", first=turn["turn"])["facts"]
            assert [(fact["kind"], fact.get("seq"), fact.get("index")) for fact in facts] == [
                ("approval_requested", asked, 0),
                ("approval_requested", asked, 1),
                ("waiting", None, None),
                ("approved", asked, 0),
                ("denied", asked, 1),
                ("turn_resumed", None, None),
                ("tool_calls_started", asked, 0),
            ]
        assert server.get(f"{session_url(session)}/calls", first=1, last=2)["facts"] == []

    def test_an_answer_that_broke_off_is_marked_and_its_turn_stays_open_until_it_is_kept(
        self, server: LocalServer
    ) -> None:
        session = server.sessions.start("support")
        session.append([user("q")])
        session.log.append([Draft(assistant("half an ans"), finish="interrupted")])

        def read() -> tuple[str, str]:
            last = server.get(f"{session_url(session)}/path")["entries"][-1]
            (turn,) = server.get(f"{session_url(session)}/turns")["turns"]
            return last["finish"], turn["status"]

        assert read() == ("interrupted", "open")
        server.post(f"{session_url(session)}/resume", {"keep_partial": True}, 202)
        assert read() == ("partial", "interrupted")
        assert [entry.message.text for entry in session.transcript()] == ["q"]
        session.refresh()
        assert [entry.message.text for entry in session.transcript()] == ["q", "half an ans"]
        session.append([user("again")])
        problem = server.post(f"{session_url(session)}/resume", {"keep_partial": True}, 409)
        assert problem["code"] == "nothing_partial"

    def test_state_and_journal_are_read(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        assert server.get(f"{session_url(session)}/state")["state"] == {"found": False}
        assert server.get(f"{session_url(session)}/state", leaf="2")["state"] == {}
        facts = server.get(f"{session_url(session)}/journal", **{"from": 1, "last": 2})
        assert [fact["number"] for fact in facts["facts"]] == [2, 3]
        assert facts["total"] == session.row.facts


class TestTheTree:
    def test_branches_are_rows_and_the_path_is_ranges(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        old = session.leaf
        session.rewind(5)
        session.append([user("other")])
        answer = server.get(f"{session_url(session)}/branches")
        assert answer["columns"] == ["branch", "parent", "parent_seq", "tail", "own"]
        assert answer["branches"] == [
            [old.branch, None, 0, 7, 1],
            [session.leaf.branch, old.branch, 5, 6, 1],
        ]
        assert answer["path"] == [[old.branch, 1, 5], [session.leaf.branch, 6, 6]]
        fork = session.fork(at=2)
        assert server.get(f"{session_url(fork)}/branches")["branches"][0] == [old.branch, None, 0, 2, 0]

    def test_any_part_of_the_tree_is_told_in_lines(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        old = session.leaf
        session.rewind(5)
        session.append([user("other"), assistant("yes")])
        own = server.get(f"{session_url(session)}/outline", branch=session.leaf.branch)
        assert [(line["seq"], line["text"], line["flags"]) for line in own["lines"]] == [
            (6, "other", ["input"]),
            (7, "yes", []),
        ]
        outline = server.get(f"{session_url(session)}/outline", leaf=str(old), kinds="inputs")
        assert [line["text"] for line in outline["lines"]] == ["Where is order 41?", "Thanks"]
        some = server.get(
            f"{session_url(session)}/outline", positions=f"{old},9:9,{old.branch}:3,{old.branch}:4"
        )
        assert [line["flags"] for line in some["lines"]] == [[], ["calls", "reasoning"], ["result", "error"]]
        assert server.get(f"{session_url(session)}/outline", 400, positions="x")["code"] == "invalid_argument"
        assert server.get(f"{session_url(session)}/outline", 400, kinds="odd")["code"] == "invalid_argument"
        server.get(f"{session_url(session)}/outline", 404, branch=99)


class TestActivity:
    def test_a_list_tells_when_a_session_was_last_active_not_when_it_was_tagged(self, store: Store) -> None:
        session = store.start("a")
        session.append([user("hi"), assistant("there")])
        with LocalServer(store) as server:
            [before] = server.get("/api/sessions")["sessions"]
            session.tag(customer="ann")
            [after] = server.get("/api/sessions", query="hi")["sessions"]
        assert after["active_at"] == before["active_at"] == session.path()[-1].at
        assert after["updated_at"] > before["updated_at"]


class TestWhatTheModelSaw:
    def test_what_a_model_saw_is_without_the_turns_that_were_left_out(self, server: LocalServer) -> None:
        session = server.sessions.start()
        for n in range(3):
            limits = oakleaf.Limits(max_messages=3)
            session.send_sync(f"question {n}", model=oakleaf.ScriptedModel(["ok"]), limits=limits)
        request = server.get(f"{session_url(session)}/request", at="6", provider="openai-chat")
        assert [message["content"] for message in request["request"]["messages"]] == [
            "question 1",
            "ok",
            "question 2",
        ]
        assert request["difference"]["before"] == "question 0"

    def test_the_request_behind_an_answer_is_the_one_that_was_made(self, store: Store) -> None:
        model = ScriptedModel(["one", "two", "three"])
        session = store.start("a", [system("Be brief.")])
        for text in ("a", "b"):
            session.send_sync(text, model=model)
        with LocalServer(store) as server:
            request = server.get(f"{session_url(session)}/request", at="3", provider="anthropic")
            assert request["request"]["messages"] == [
                {"role": "user", "content": [{"type": "text", "text": "a"}]}
            ]
            assert (request["after"], request["previous"], request["difference"]) == (
                str(session.log.leaf_at(2)),
                None,
                None,
            )
            assert {part["part"] for part in request["tokens"]} >= {
                "system",
                "user",
                "assistant",
                "tool results",
            }
            assert request["window"] is None
            windowed = store.start("a", context_window=9_000)
            windowed.append([user("hi")])
            assert server.get(f"{session_url(windowed)}/request")["window"] == 9_000
            later = server.get(f"{session_url(session)}/request", provider="openai-chat")
            assert (later["messages_key"], later["difference"]) == ("messages", None)
            assert (later["start"], later["first"], later["last"], later["earlier"]) == (2, 2, 4, None)
            assert later["previous"] == str(session.log.leaf_at(2))
            session.set(prompt="Be long.")
            session.send_sync("c", model=model)
            changed = server.get(f"{session_url(session)}/request", limit=1)
            assert changed["difference"]["path"].startswith("system")
            assert (changed["first"], changed["earlier"], len(changed["request"]["messages"])) == (7, 7, 1)
            before = server.get(f"{session_url(session)}/request", limit=1, before=changed["earlier"])
            assert [message["content"][0]["text"] for message in before["request"]["messages"]] == [
                "b",
                "two",
            ]
            assert (before["tokens"], before["difference"], before["earlier"]) == ([], None, 4)
            raw = server.client.get(f"{session_url(session)}/request/raw").content
            assert raw == wire.render(session.request("anthropic", at=session.leaf.seq - 1))
            assert (
                server.get(f"{session_url(session)}/request", 400, provider="nobody")["code"]
                == "unknown_provider"
            )
