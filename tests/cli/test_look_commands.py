"""The verbs that look: ls, show, log, tree, tail, usage, context."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import oakleaf as library
from support.cli_store import answers
from support.paths import TESTS
from support.terminal import OAKLEAF, Terminal, environment, oakleaf


class TestLs:
    @pytest.mark.smoke
    def test_it_lists_the_newest_first(self, store_path: Path) -> None:
        listed = oakleaf("ls", "--json", store=store_path).json
        assert listed["schema_version"] == 1
        assert listed["sessions"][0]["id"] == "ses_other"
        assert listed["sessions"][-1]["id"] == "ses_case"
        lines = oakleaf("ls", store=store_path).out.splitlines()
        assert "Order 41" in lines[-1]
        assert "⑂ fork" in lines[-2]

    @pytest.mark.parametrize(
        ("filters", "names"),
        [
            (["agent:other"], ["ses_other"]),
            (["tag:team=blue"], ["ses_case"]),
            (["tag:team=red"], []),
            (["status:failed"], []),
            (["after:2099-01-01"], []),
            (["before:2099-01-01", "-n", "1"], ["ses_other"]),
            (["after:1h", "agent:other"], ["ses_other"]),
        ],
    )
    def test_it_filters(self, store_path: Path, filters: list[str], names: list[str]) -> None:
        listed = oakleaf("ls", "--json", *filters, store=store_path).json["sessions"]
        assert [row["id"] for row in listed] == names

    def test_it_says_where_they_are_if_all_are_in_the_trash(self, tmp_path: Path) -> None:
        place = tmp_path / "s.db"
        with library.open(place) as store:
            assert "no sessions yet" in oakleaf("ls", store=place).err
            store.delete(store.start(session_id="ses_gone").session_id)
        assert "oakleaf ls is:trashed" in oakleaf("ls", store=place).err
        assert [row["id"] for row in oakleaf("ls", "is:trashed", "--json", store=place).json["sessions"]] == [
            "ses_gone"
        ]

    def test_it_filters_by_owner_within_the_owner_it_is_bound_to(self, tmp_path: Path) -> None:
        place = tmp_path / "s.db"
        with library.open(place) as store:
            for owner in ("ann", "bob"):
                store.start(owner=owner, session_id=f"ses_{owner}")

        def list_ids(*words: str) -> list[str]:
            return [row["id"] for row in oakleaf(*words, "--json", store=place).json["sessions"]]

        assert list_ids("ls", "owner:ann") == ["ses_ann"]
        assert list_ids("--owner", "bob", "ls", "owner:ann") == []

    def test_a_fork_names_its_source_by_the_id_of_the_list(self, tmp_path: Path) -> None:
        place = tmp_path / "s.db"
        with library.open(place) as store:
            source = store.start(session_id="claude-code-0f0e0d0c-1111")
            source.append([library.user("Where?")])
            source.fork()
        out = oakleaf("ls", store=place).out
        assert "Where? (⑂ fork of claude-code-0f0e)" in out
        assert "claude-code-0f0e " in out

    def test_a_session_without_a_title_is_called_by_its_first_input(self, tmp_path: Path) -> None:
        place = tmp_path / "s.db"
        with library.open(place) as store:
            session = store.start("support", [library.system("Be brief.")], session_id="ses_a")
            assert "support" in oakleaf("ls", store=place).out
            session.append([library.user("Where is\norder 41?"), library.assistant("Lost.")])
            session.fork(at=3, title="Other")
            key = "sk-ant-api03-" + "a1B2" * 20
            store.start(session_id="ses_k").append([library.user(f"my key {key}")])
        rows = oakleaf("ls", "--json", store=place).json["sessions"]
        assert [row["heading"] for row in rows[1:]] == ["Other", "Where is order 41?"]
        assert key not in rows[0]["heading"]
        lines = oakleaf("ls", store=place).out.splitlines()
        assert lines[-1].endswith("Where is order 41?")
        assert oakleaf("show", "ses_a", store=place).out.startswith("Where is order 41?  ses_a")

    def test_a_parent_is_named_as_everywhere(self, store_path: Path) -> None:
        whole = oakleaf("ls", "parent:ses_case", "--json", store=store_path).json["sessions"]
        assert whole
        assert oakleaf("ls", "parent:ses_cas", "--json", store=store_path).json["sessions"] == whole
        assert oakleaf("ls", "parent:ses_none", store=store_path).code == 2

    def test_forks_of_what_is_gone_are_found_by_its_whole_id(self, store_path: Path) -> None:
        whole = oakleaf("ls", "parent:ses_case", "--json", store=store_path).json["sessions"]
        for verb in ("rm", "purge"):
            assert oakleaf(verb, "ses_case", "--yes", store=store_path).code == 0
            assert oakleaf("ls", "parent:ses_case", "--json", store=store_path).json["sessions"] == whole

    def test_a_page_says_how_to_go_on(self, store_path: Path) -> None:
        first = oakleaf("ls", "--json", "-n", "2", store=store_path).json
        second = oakleaf("ls", "--json", "-n", "2", "--page", first["next"], store=store_path).json
        assert [row["id"] for row in second["sessions"]] == ["ses_case"]
        assert f"--page {first['next']}" in oakleaf("ls", "-n", "2", store=store_path).err

    @pytest.mark.parametrize(
        "bad", [["after:soon"], ["--page", "x"], ["-n", "0"], ["status:odd"], ["is:odd"], ["colour:red"]]
    )
    def test_a_filter_that_makes_no_sense_is_refused(self, store_path: Path, bad: list[str]) -> None:
        assert oakleaf("ls", *bad, store=store_path).code == 2

    def test_tasks_are_left_out_unless_asked_for(self, tmp_path: Path) -> None:
        with library.open(tmp_path / "s.db") as store:
            store.start_task(store.start(session_id="ses_p"), session_id="ses_t")
        assert [row["id"] for row in oakleaf("ls", "--json", store=tmp_path / "s.db").json["sessions"]] == [
            "ses_p"
        ]
        assert len(oakleaf("ls", "--json", "is:all", store=tmp_path / "s.db").json["sessions"]) == 2


class TestShow:
    def test_the_transcript_reads_as_a_conversation(self, store_path: Path) -> None:
        output = oakleaf("show", "ses_case", store=store_path).out
        for text in (
            "Where is order 41?",
            '→ look_up {"order":41}',
            '← {"order":41,"status":"lost"}',
            "welcome",
        ):
            assert text in output

    def test_json_holds_every_entry_and_no_evidence(self, store_path: Path) -> None:
        report = oakleaf("show", "ses_case", "--json", store=store_path).json
        assert [entry["seq"] for entry in report["entries"]] == list(range(1, 11))
        assert "evidence" not in json.dumps(report)
        assert report["next_action"] == "Rest"

    def test_queued_inputs_are_shown_with_what_answers_them(self, store_path: Path) -> None:
        """One that was queued behind a runner that died was nowhere to be seen."""
        with library.open(store_path) as store:
            session = store.session("ses_case")
            for text in ("And order 42?", "Two\nlines"):
                session.enqueue(text)
        shown = oakleaf("show", "ses_case", store=store_path)
        assert "… And order 42? [queued]\n      … Two lines [queued]\n" in shown.out
        assert "oakleaf resume ses_case answers the 2 queued inputs" in shown.err
        report = oakleaf("show", "ses_case", "--json", store=store_path).json
        assert [(one["number"], one["text"]) for one in report["queued"]] == [
            (1, "And order 42?"),
            (2, "Two\nlines"),
        ]
        oakleaf("export", "ses_case", "-o", "q.oakleaf", store=store_path, home=store_path.parent)
        exported = oakleaf("show", "q.oakleaf", store=store_path, home=store_path.parent)
        assert "oakleaf import q.oakleaf, then oakleaf resume ses_case answers" in exported.err

    def test_a_call_without_an_end_is_marked_unknown(self, tmp_path: Path) -> None:
        import sys

        code = (
            "import os, sys, oakleaf; sys.path.insert(0, sys.argv[2]); from support.cli_store import answers, look_up\n"
            "@oakleaf.tool\ndef refund(order: int) -> str:\n    '''x'''\n    os._exit(9)\n"
            "s = oakleaf.open(sys.argv[1]).start(session_id='ses_k')\n"
            "s.send_sync('Where is order 41?', model=answers(), tools=[look_up, refund])"
        )
        place = tmp_path / "s.db"
        subprocess.run([sys.executable, "-c", code, str(place), str(TESTS)], check=False)
        done = oakleaf("show", "ses_k", store=place)
        assert "outcome unknown" in done.out
        assert "oakleaf resume ses_k" in done.err
        assert "interrupted" in done.out.splitlines()[1]
        (row,) = oakleaf("ls", "status:interrupted", "--json", store=place).json["sessions"]
        assert (row["id"], row["status"]) == ("ses_k", "interrupted")
        assert oakleaf("ls", "status:running", "--json", store=place).json["sessions"] == []
        ill = oakleaf("doctor", store=place)
        assert ill.code == 1
        assert "ses_k is marked running" in ill.out
        assert oakleaf("doctor", "--fix", store=place).code == 1
        assert oakleaf("doctor", store=place).code == 1
        assert oakleaf("doctor", "--fix", "--yes", store=place).code == 0
        assert oakleaf("doctor", store=place).code == 0
        assert oakleaf("ls", "status:interrupted", "--json", store=place).json["sessions"][0]["id"] == "ses_k"

    def test_a_call_of_a_loop_of_ones_own_is_not_said_to_be_not_started_unless_it_is_known(
        self, tmp_path: Path
    ) -> None:
        place = tmp_path / "s.db"
        call = [library.ToolCall(f"c{n}", "refund", {"order": n}) for n in range(2)]

        def crash_after(*started: library.ToolCall, session_id: str) -> None:
            turn = store.start(session_id=session_id).turn("q").__enter__()
            turn.answer(library.assistant(*call))
            for one in started:
                turn.started(one)
            running = oakleaf("show", session_id, store=place)
            assert f"oakleaf cancel {session_id} ends the turn" in running.err, "its runner is alive"
            assert "oakleaf resume" not in running.err
            assert "unknown" not in running.out
            store.session(session_id).interrupt()

        with library.open(place) as store:
            crash_after(call[0], session_id="ses_said")
            crash_after(session_id="ses_silent")
        announced, silent = (oakleaf("show", name, store=place) for name in ("ses_said", "ses_silent"))
        assert "[started, outcome unknown]" in announced.out
        assert "[not started]" in announced.out
        assert "oakleaf resume ses_said" in announced.err
        assert silent.out.count("[no start recorded: it may have run]") == 2
        assert "not started" not in silent.out
        assert "find out first whether refund ran" in silent.err
        assert "continues" not in silent.err

    def test_a_call_whose_arguments_are_hidden_is_shown_as_such(self, tmp_path: Path) -> None:
        place, key = tmp_path / "s.db", "AKIA" + "A1B2" * 4
        with library.open(place) as store:
            turn = store.start(session_id="ses_h").turn("q").__enter__()
            turn.started(
                turn.answer(library.assistant(library.ToolCall("c", "save", {"text": key}))).calls[0]
            )
            store.session("ses_h").interrupt()
        result = oakleaf("show", "ses_h", store=place)
        assert "started, outcome unknown; its arguments hold a secret that was not stored" in result.out
        assert key not in result.out


class TestLog:
    def test_one_line_per_entry(self, store_path: Path) -> None:
        assert len(oakleaf("log", "ses_case", store=store_path).out.splitlines()) == 10
        assert len(oakleaf("log", "ses_case", "-n", "2", store=store_path).out.splitlines()) == 2
        later = oakleaf("log", "ses_case", "--json", "--since", "8", store=store_path).json["entries"]
        assert [entry["seq"] for entry in later] == [9, 10]

    def test_the_newest_events_are_the_end_of_all_events(self, store_path: Path) -> None:
        for _ in range(4):  # an entry that is no event
            library.open(store_path).session("ses_case").note({"seen": True})
        events = self.events(store_path)
        assert self.events(store_path, "-n", "3") == events[-3:]
        since = self.events(store_path, "-n", "99", "--since", "8")
        assert since == [event for event in events if event["seq"] > 8]

    @staticmethod
    def events(store_path: Path, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = oakleaf(
            "log", "ses_case", "--events", "--json", *words, store=store_path
        ).json["events"]
        return found

    def test_events_are_the_five_types(self, store_path: Path) -> None:
        types = [event["type"] for event in self.events(store_path)]
        assert types[:4] == ["system_message", "user_message", "assistant_message", "tool_call"]
        assert set(types) == {
            "system_message",
            "user_message",
            "assistant_message",
            "tool_call",
            "tool_result",
        }

    def test_abandoned_branches_are_shown_when_asked_for(self, store_path: Path) -> None:
        oakleaf("rewind", "ses_case@8", store=store_path)
        assert len(oakleaf("log", "ses_case", store=store_path).out.splitlines()) == 8
        assert len(oakleaf("log", "ses_case", "--all", store=store_path).out.splitlines()) == 10


class TestTree:
    def test_the_leaf_and_the_forks_are_in_it(self, store_path: Path) -> None:
        output = oakleaf("tree", "ses_case", store=store_path).out
        assert "◀ leaf" in output
        assert "fork at 8" in output
        data = oakleaf("tree", "ses_case", "--json", store=store_path).json
        assert data["leaf"]["seq"] == 10
        assert data["related"][0]["relation"] == "fork"

    def test_a_fork_without_a_title_is_called_by_its_first_input(self, store_path: Path) -> None:
        with library.open(store_path) as store:
            session = store.start("support", session_id="ses_untitled")
            session.append([library.user("Where is order 9?")])
            fork = session.fork()
        output = oakleaf("tree", "ses_untitled", store=store_path).out
        line = next(line for line in output.splitlines() if fork.session_id in line)
        assert line.startswith("fork at 1 ")
        assert line.endswith(" Where is order 9?")


class TestTail:
    def test_each_fact_is_a_line_with_its_number_and_entries(self, store_path: Path) -> None:
        page = oakleaf("tail", "ses_case", "--from", "0", "--json", store=store_path).json
        lines = page["facts"]
        assert page["total"] == len(lines)
        assert [line["number"] for line in lines] == list(range(1, len(lines) + 1))
        seqs = [entry["seq"] for line in lines for entry in line["entries"]]
        assert seqs == list(range(2, 11))
        newest = oakleaf("tail", "ses_case", "-n", "2", "--json", store=store_path).json["facts"]
        assert newest == lines[-2:]

    def test_it_follows_as_facts_come_and_misses_none(self, store_path: Path) -> None:
        with library.open(store_path) as store:
            session = store.session("ses_case")
            before = session.row.facts
            tail = subprocess.Popen(
                [*OAKLEAF, "tail", "ses_case", "-f", "--from", str(before)],
                stdout=subprocess.PIPE,
                text=True,
                env=environment(store=store_path),
            )
            try:
                assert tail.stdout is not None
                session.send_sync("And now?", model=answers(), tools=[])
                numbers = [
                    json.loads(tail.stdout.readline())["number"] for _ in range(session.row.facts - before)
                ]
                session.title("While it follows")
                numbers.append(json.loads(tail.stdout.readline())["number"])
                assert numbers == list(range(before + 1, session.row.facts + 1))
            finally:
                tail.kill()
                tail.communicate()

    def test_it_stops_following_when_its_reader_has_enough(self, store_path: Path) -> None:
        command = [*OAKLEAF, "tail", "ses_case", "-f", "-n", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(store=store_path)) as tail:
            try:
                assert tail.stdout is not None
                assert tail.stdout.readline()
                tail.stdout.close()
                assert tail.wait(20) == 0
            finally:
                tail.kill()


class TestUsage:
    def test_tokens_that_nobody_reported_are_unknown_and_not_zero(self, tmp_path: Path) -> None:
        place = tmp_path / "s.db"
        with library.open(place) as store:
            session = store.start(session_id="ses_u")
            with session.turn("q", model="openai:m") as turn:
                turn.answer(library.assistant("a"))
        assert "tokens unknown" in oakleaf("show", "ses_u", store=place).out
        line = oakleaf("usage", "ses_u", store=place).out.splitlines()[-1].split()
        assert line[1:7] == ["1", "(1", "unknown)", "unknown", "unknown", "unknown"]
        assert (
            "- Tokens: unknown\n"
            in oakleaf("export", "ses_u", "--format", "markdown", "-o", "-", store=place).out
        )
        assert oakleaf("usage", "ses_u", "--json", store=place).json["total"]["unknown_calls"] == 1
        with library.open(place) as store, store.session("ses_u").turn("q") as turn:
            turn.answer(library.assistant("a"), usage=library.Usage(10, 2))
        assert "10 in, 2 out + 1 unknown" in oakleaf("show", "ses_u", store=place).out

    def test_a_task_is_counted_under_its_own_session_and_agent(self, tmp_path: Path) -> None:
        place = tmp_path / "s.db"
        with library.open(place) as store:
            parent = store.start("support", session_id="ses_parent")
            child = store.start_task(parent, "research")
            for session, tokens in ((parent, 1), (child, 10)):
                with session.turn("q") as turn:
                    turn.answer(library.assistant("a"), usage=library.Usage(tokens, 0))

        def groups(by: str) -> dict[str, int]:
            words = ("usage", "ses_parent", "--view", "tree", "--by", by, "--json")
            return {
                row["name"]: row["totals"]["input_tokens"]
                for row in oakleaf(*words, store=place).json["usage"]
            }

        assert groups("agent") == {"research": 10, "support": 1}
        assert sorted(groups("session").values()) == [1, 10]

    def test_it_says_what_tools_and_options_take_in_bytes(self, store_path: Path) -> None:
        output = oakleaf("usage", "ses_case", "--by", "storage", store=store_path).out
        stored = oakleaf("usage", "ses_case", "--by", "storage", "--json", store=store_path).json["storage"]
        assert f"{stored['bytes']:,}" in output
        line = next(line for line in output.splitlines() if "tools and options" in line).split()
        assert line[-3:-1] == [str(stored["settings"]), str(stored["settings_bytes"])]
        assert 0 < stored["tool_bytes"] <= stored["blob_bytes"]
        refused = oakleaf("usage", "--by", "storage", store=store_path)
        assert (refused.code, "oakleaf usage latest --by storage" in refused.err) == (2, True)

    def test_sums_of_the_store_equal_the_calls_made(self, store_path: Path) -> None:
        whole = oakleaf("usage", "--json", store=store_path).json
        assert whole["total"]["calls"] == 4
        by = oakleaf("usage", "--json", "--by", "agent", store=store_path).json["usage"]
        assert [(group["name"], group["totals"]["calls"]) for group in by] == [("support", 4)]

    def test_views_of_one_session(self, store_path: Path) -> None:
        assert oakleaf("usage", "Another try", "--json", store=store_path).json["total"]["calls"] == 0
        assert (
            oakleaf("usage", "Another try", "--view", "path", "--json", store=store_path).json["total"][
                "calls"
            ]
            == 3
        )
        assert (
            oakleaf("usage", "ses_case", "--since", "8", "--json", store=store_path).json["total"]["calls"]
            == 1
        )
        assert (
            oakleaf("usage", "ses_case", "--since", "2099-01-01", "--json", store=store_path).json["total"][
                "calls"
            ]
            == 0
        )

    @pytest.mark.parametrize("by", ["day", "model", "session", "purpose", "bucket"])
    def test_it_is_grouped(self, store_path: Path, by: str) -> None:
        groups = oakleaf("usage", "--json", "--by", by, store=store_path).json["usage"]
        assert sum(group["totals"]["calls"] for group in groups) == 4
        assert oakleaf("usage", "--by", by, store=store_path).code == 0

    def test_sums_by_the_values_of_a_tag(self, store_path: Path) -> None:
        oakleaf("tag", "ses_case", "team=blue", store=store_path)
        for by, name in (("tag:team", "blue"), ("tag:tier", "(none)")):
            groups = oakleaf("usage", "--json", "--by", by, store=store_path).json["usage"]
            assert {group["name"]: group["totals"]["calls"] for group in groups} == {name: 4}
        one = oakleaf("usage", "ses_case", "--by", "tag:team", "--json", store=store_path).json["usage"]
        assert [group["name"] for group in one] == ["blue"]
        for wrong in ("tag:", "tag", "team"):
            refused = oakleaf("usage", "--by", wrong, store=store_path)
            assert (refused.code, "tag:NAME" in refused.err) == (2, True)


class TestContext:
    @pytest.mark.parametrize("provider", ["anthropic", "openai-chat", "openai", "gemini"])
    def test_what_the_model_would_be_given_is_the_sessions_own_projection(
        self, store_path: Path, provider: str
    ) -> None:
        report = oakleaf("context", "ses_case@8", "--provider", provider, "--json", store=store_path).json[
            "request"
        ]
        with library.open(store_path) as store:
            session = store.session("ses_case")
            session.rewind(8)
            assert report["tools"]
            assert report == json.loads(json.dumps(session.request(provider)))

    def test_it_says_whether_the_cache_stays_warm(self, store_path: Path) -> None:
        warm = oakleaf("context", "ses_case", "--explain", store=store_path)
        assert (warm.code, "stays warm" in warm.out) == (0, True)
        with library.open(store_path) as store:
            store.session("ses_case").set(prompt="Be brief.")
        cold = oakleaf("context", "ses_case", "--explain", "--json", store=store_path)
        assert cold.code == 1
        assert "Be brief." in str(cold.json["difference"]["after"])

    def test_it_names_the_tool_or_option_that_makes_the_cache_cold(self, store_path: Path) -> None:
        with library.open(store_path) as store:
            session = store.session("ses_case")
            warmer = session.fork()
            warmer.set(options={"temperature": 0.5})
            other = session.fork()
            with other.turn("more", tools=[{"name": "look_up", "description": "Look elsewhere."}]):
                pass
        cold = oakleaf("context", warmer.session_id, "--explain", store=store_path)
        assert (cold.code, cold.out) == (1, "temperature was nothing, now it is 0.5\n")
        cold = oakleaf("context", other.session_id, "--explain", store=store_path)
        assert cold.code == 1
        assert cold.out.startswith("tools[0].description was ")
        assert "now it is 'Look elsewhere.'" in cold.out

    def test_it_says_how_much_of_the_window_the_request_fills(self, store_path: Path) -> None:
        with library.open(store_path) as store:
            windowed = store.start(context_window=10_000, model="anthropic:claude-sonnet-4-5")
            windowed.append([library.user("word " * 2_000)])
            large = store.start(model="anthropic:claude-sonnet-4-5")
            large.append([library.user("word " * 2_000)])
        used = "about 2,507 of 10,000 tokens (25 %)"
        assert used in oakleaf("context", windowed.session_id, store=store_path).err
        assert f"next request: {used}" in oakleaf("show", windowed.session_id, store=store_path).out
        window = {"tokens": 2_507, "window": 10_000}
        for command in ("context", "show"):
            assert (
                oakleaf(command, windowed.session_id, "--json", store=store_path).json["window_use"] == window
            )
        from_the_table = oakleaf("show", large.session_id, "--json", store=store_path).json["window_use"]
        assert from_the_table == {"tokens": 2_507, "window": 200_000}
        small = oakleaf("show", "ses_case", "--json", store=store_path).json["window_use"]
        assert small["window"] is None
        assert 0 < small["tokens"] < 2_000

    def test_people_read_it_and_an_unknown_provider_is_refused(self, store_path: Path) -> None:
        with library.open(store_path) as store:
            store.session("ses_case").set(options={"temperature": 0})
        output = oakleaf("context", "ses_case", store=store_path).out
        lines = ["You help customers.", "look_up: ", "temperature: 0", "Where is order 41?", "→ look_up"]
        assert sorted(lines, key=output.index) == lines
        assert oakleaf("context", "ses_case", "--provider", "nobody", store=store_path).code == 2


class TestAtATerminal:
    @pytest.mark.parametrize(
        "command",
        [
            ["ls"],
            ["show", "ses_case"],
            ["log", "ses_case"],
            ["tree", "ses_case"],
            ["usage"],
            ["verify"],
            ["doctor"],
        ],
    )
    def test_every_reading_verb_works_at_a_terminal_too(self, store_path: Path, command: list[str]) -> None:
        with Terminal(*command, store=store_path) as terminal:
            assert terminal.wait() == 0
            assert terminal.screen.strip()
