"""`oakleaf run`, `resume` and `approve`, through the real entry point, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

import oakleaf as library
from oakleaf import Session, user
from oakleaf.core.facts import ApprovalRequested, Approved, Fact
from support.fake_providers import FakeProviders
from support.processes import wait_until
from support.terminal import OAKLEAF, Terminal, environment, oakleaf

TOOLS = '''
import os, pathlib, signal, time
import oakleaf
from oakleaf import Happened, NeverHappened, ToolContext
from oakleaf.models.names import model_by_name

BOOK = pathlib.Path("book")

def payments():
    return BOOK.read_text().splitlines() if BOOK.exists() else []

def was_paid(order: int, ctx: ToolContext):
    return Happened("paid") if ctx.key in payments() else NeverHappened()

def pay(key):
    with BOOK.open("a") as book:
        book.write(key + "\\n")
    if pathlib.Path("dies").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"

@oakleaf.tool(effect="read")
def look_up(order: int) -> dict:
    """Look an order up."""
    return {"order": order, "status": "lost"}

@oakleaf.tool(effect="unsafe", verify=was_paid)
def verified(order: int, ctx: ToolContext) -> str:
    """Pay, and know afterwards."""
    return pay(ctx.key)

@oakleaf.tool(effect="unsafe")
def unverified(order: int, ctx: ToolContext) -> str:
    """Pay, and never know."""
    return pay(ctx.key)

@oakleaf.tool(effect="unsafe", approval=True)
def refund(order: int, ctx: ToolContext) -> str:
    """Give the money back."""
    return pay(ctx.key)

@oakleaf.tool(effect="idempotent")
async def delegate(order: int, ctx: ToolContext) -> str:
    """Have a child give the money back."""
    return await ctx.task("refund it", models=[model_by_name("scripted:child.json")], tools=[refund])

@oakleaf.tool(effect="read")
def sleeps() -> str:
    """Blocks its thread."""
    pathlib.Path("asleep").touch()
    time.sleep(120)
    return "awake"
'''


VANISHING = '''
import oakleaf

@oakleaf.tool(effect="read")
def vanish() -> str:
    """What another program might do at any moment."""
    with oakleaf.open("agent.db") as other:
        other.backend.trash(other.sessions().sessions[0].session_id, 1)
    return "gone"
'''


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    script(tmp_path, "One.", "Two.", "Three.")
    (tmp_path / "config.toml").write_text('[aliases]\nscript = "scripted:script.json"\n')
    return tmp_path


def script(home: Path, *lines: object, name: str = "script.json") -> None:
    (home / name).write_text(json.dumps(lines))


def calls(*names: str, text: str = "Let me see.") -> dict[str, object]:
    return {"text": text, "calls": [{"name": name, "arguments": {"order": 41}} for name in names]}


MODEL = ("--model", "scripted:script.json")
AGENT = (*MODEL, "--set", "tools=tools.py")


def open_store(home: Path) -> library.Store:
    return library.open(home / "agent.db")


def only_session(home: Path) -> Session:
    with open_store(home) as store:
        (row,) = store.sessions().sessions
    return library.open(home / "agent.db").session(row.session_id)


def texts(session: Session) -> list[str]:
    return [entry.message.text for entry in session.path() if entry.message is not None]


class TestRun:
    def test_the_answer_goes_to_stdout_and_everything_else_to_stderr(self, home: Path) -> None:
        script(home, calls("look_up"), "It is lost.")
        done = oakleaf("run", "Where is 41?", *AGENT, home=home)
        assert (done.returncode, done.stdout) == (0, "It is lost.\n")
        assert '✓ look_up(order=41) → {"order":41,"status":"lost"}' in done.stderr
        assert only_session(home).session_id in done.stderr

    def test_a_run_is_a_one_shot_and_ends_completed(self, home: Path) -> None:
        oakleaf("run", "hi", *MODEL, home=home)
        row = only_session(home).row
        assert (row.status, row.completed_at is not None) == ("completed", True)
        oakleaf("run", "and?", "--resume", row.session_id, *MODEL, home=home)
        assert only_session(home).row.completed_at > row.completed_at

    @pytest.mark.parametrize("arguments", [(), ("-",)])
    def test_the_input_may_come_from_a_pipe(self, home: Path, arguments: tuple[str, ...]) -> None:
        done = oakleaf("run", *arguments, *MODEL, home=home, stdin="several\nlines\n")
        assert done.stdout == "One.\n"
        assert texts(only_session(home)) == ["several\nlines", "One."]

    def test_an_empty_input_is_refused_and_leaves_nothing_behind(self, home: Path) -> None:
        done = oakleaf("run", *MODEL, home=home, stdin="\n")
        assert done.returncode == 2
        assert "the input is empty" in done.stderr
        assert not (home / "agent.db").exists()

    def test_without_a_model_it_says_how_to_name_one(self, home: Path) -> None:
        done = oakleaf("run", "hi", home=home)
        assert done.returncode == 2
        assert all(
            text in done.stderr for text in ("--model", "OAKLEAF_MODEL", "scripted:FILE.yaml", "anthropic:")
        )
        assert not (home / "agent.db").exists()

    def test_the_environment_names_a_model_when_nobody_else_does(self, home: Path) -> None:
        assert oakleaf("run", "hi", home=home, OAKLEAF_MODEL="scripted:script.json").stdout == "One.\n"

    @pytest.mark.parametrize("name", ["nobody:x", "scripted:none.json"])
    def test_a_model_that_is_not_there_leaves_no_session_behind(self, home: Path, name: str) -> None:
        done = oakleaf("run", "hi", "--model", name, home=home)
        assert done.returncode == 2
        assert not (home / "agent.db").exists()

    def test_the_next_of_the_chain_is_asked_and_the_chain_is_remembered(self, home: Path) -> None:
        script(home, name="dumb.json")
        chain = ("--model", "scripted:dumb.json", "--model", "scripted:script.json")
        (home / "config.toml").write_text('model = ["scripted:script.json", "scripted:dumb.json"]\n')
        assert oakleaf("run", "hi", *chain, home=home).stdout == "One.\n"
        assert oakleaf("run", "--resume", "latest", "more", home=home).stdout == "Two.\n"

    def test_what_is_said_of_the_session_is_in_its_row(self, home: Path) -> None:
        (home / "prompt.txt").write_text("You help.")
        named = ("--agent", "support", "--set", "session.title=Order 41", "--set", "session.tags.team=red")
        about = ("--set", "prompt=@prompt.txt", *named)
        oakleaf("run", "hi", *AGENT, *about, home=home)
        session = only_session(home)
        row = session.row
        assert (row.agent, row.title, row.tags, row.model) == (
            "support",
            "Order 41",
            {"team": "red"},
            "scripted:script.json",
        )
        assert "refund" in row.tool_names
        assert session.context().system == ("You help.",)

    def test_a_conversation_goes_on_with_its_latest_session(self, home: Path) -> None:
        for text in ("hi", "more"):
            oakleaf("run", text, *MODEL, "--set", "session.conversation=con_1", home=home)
        assert texts(only_session(home)) == ["hi", "One.", "more", "Two."]

    def test_an_input_with_a_key_is_sent_once_and_its_answer_is_printed_again(self, home: Path) -> None:
        for where in (("--set", "session.conversation=con_1"), ("--resume", "latest")):
            done = oakleaf("run", "hi", *MODEL, *where, "--key", "mail-1", home=home)
            assert (done.returncode, done.stdout) == (0, "One.\n")
        assert texts(only_session(home)) == ["hi", "One."]
        assert oakleaf("run", "hi", *MODEL, "--key", "mail-1", home=home).returncode == 2

    def test_a_new_prompt_holds_from_here_on(self, home: Path) -> None:
        oakleaf("run", "hi", *MODEL, "--set", "prompt=Be kind.", home=home)
        oakleaf("run", "--resume", "latest", "more", "--set", "prompt=Be brief.", home=home)
        oakleaf("run", "--resume", "latest", "again", "--set", "prompt=Be brief.", home=home)
        session = only_session(home)
        assert session.context().system == ("Be brief.",)
        assert [entry.kind for entry in session.path()].count("settings") == 1

    def test_a_failed_turn_is_durable_and_resume_goes_on_with_it(self, home: Path) -> None:
        script(home)
        done = oakleaf("run", "hi", *MODEL, home=home)
        assert done.returncode == 1
        assert f"oakleaf resume {only_session(home).session_id}" in done.stderr
        script(home, "Now.")
        assert oakleaf("resume", "latest", home=home).stdout == "Now.\n"
        assert texts(only_session(home)) == ["hi", "Now."]

    def test_a_limit_is_an_exit_code_and_the_refused_input_is_not_stored(self, home: Path) -> None:
        oakleaf("run", "hi", *MODEL, home=home)
        done = oakleaf("run", "--resume", "latest", "more", "--set", "limits.turns=1", home=home)
        assert (done.returncode, done.stdout) == (1, "")
        assert (
            "the session has had its 1 turn; raise it with --set limits.turns=N, for good with oakleaf config chat.max_turns N, "
            "or continue in a fork: oakleaf fork ses_" in done.stderr
        )
        assert texts(only_session(home)) == ["hi", "One."]

    def test_money_that_is_spent_stops_the_turn(self, home: Path) -> None:
        rates = {"input": 1e6, "output": 1e6}
        (home / "script.json").write_text(json.dumps({"lines": ["One.", "Two."], "rates": rates}))
        assert oakleaf("run", "hi", *MODEL, home=home).code == 0
        done = oakleaf("run", "more", "--resume", "latest", "--set", "limits.cost=0.01", home=home)
        assert done.returncode == 1
        assert (
            "of $0.01 is spent; raise it with --set limits.cost=DOLLARS, or continue in a fork, which is charged separately: oakleaf fork ses_"
            in done.stderr
        )

    def test_a_cap_is_told_in_dollars_also_while_a_call_waits_for_approval(self, home: Path) -> None:
        rates = {"input": 0, "output": 1}
        lines = [{"calls": [{"name": "refund", "arguments": {"order": 41}}]}, "Done."]
        (home / "script.json").write_text(json.dumps({"lines": lines, "rates": rates}))
        (home / "tools.py").write_text(
            "import oakleaf\n@oakleaf.tool(approval=True)\ndef refund(order: int) -> str:\n    return 'ok'\n"
        )
        oakleaf("run", "refund it", *AGENT, home=home)
        more = ("run", "more", "--resume", "latest", "--set", "tools=tools.py")
        done = oakleaf(*more, "--set", "limits.cost=0.000001", home=home)
        assert (done.code, done.out) == (1, "")
        assert "of $0.000001 is spent; raise it with --set limits.cost=DOLLARS" in done.err
        assert "waiting for approval: refund" in done.err
        assert "microcents" not in done.err
        assert "the input is saved" not in done.err

        waits = oakleaf(*more, home=home)
        assert waits.code == 1
        assert (
            "waits for refund; a new input would abandon this call; allow it with oakleaf approve ses_"
            in waits.err
        )
        assert [call.call.name for call in only_session(home).pending_approvals()] == ["refund"]
        assert oakleaf(*more, "--queue", home=home).code == 0
        assert texts(only_session(home))[0] == "refund it"

    def test_a_cap_refuses_a_model_without_a_price_unless_it_only_warns(self, home: Path) -> None:
        cap = ("--set", "limits.cost=1")
        done = oakleaf("run", "hi", *MODEL, *cap, "--set", "limits.turns=0", home=home)
        assert (done.code, done.out) == (1, "")
        assert "has no price, so the limit of $1.00 cannot be checked" in done.err
        assert "--set limits.on_exceed=warn" in done.err
        assert oakleaf("run", "hi", *MODEL, *cap, "--set", "limits.on_exceed=warn", home=home).out == "One.\n"

    def test_events_come_as_json_lines_and_the_last_one_sums_up(self, home: Path) -> None:
        script(home, calls("look_up"), "It is lost.")
        done = oakleaf("run", "hi", *AGENT, "--json", home=home)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert {line["schema_version"] for line in lines} == {1}
        assert [line["type"] for line in lines if line["type"] != "session:delta"] == [
            "session:started",
            "session:input",
            "session:turn_started",
            "session:answer",
            "session:calls_started",
            "session:tool_result",
            "session:answer",
            "session:turn_completed",
            "run",
        ]
        assert lines[-1]["answer"] == "It is lost."
        assert lines[-1]["session_id"] == only_session(home).session_id
        assert lines[-1]["usage"]["calls"] == 2

    def test_a_pipe_gets_the_words_as_they_are_and_a_terminal_never_obeys_them(self, home: Path) -> None:
        script(home, "\x1b[2Jgone\x07", "\x1b[2Jgone\x07")
        assert oakleaf("run", "hi", *MODEL, home=home).stdout == "\x1b[2Jgone\x07\n"
        with Terminal("run", "--resume", "latest", "more", home=home) as terminal:
            assert terminal.wait() == 0
            assert "␛[2Jgone" in terminal.raw
            assert "\x1b[2J" not in terminal.raw


class TestWhereItGoesOnFrom:
    def test_resume_adds_a_turn_where_the_session_stands(self, home: Path) -> None:
        oakleaf("run", "hi", *MODEL, home=home)
        assert oakleaf("run", "--resume", "latest", "more", home=home).stdout == "Two.\n"
        assert texts(only_session(home)) == ["hi", "One.", "more", "Two."]

    def test_each_turn_has_its_own_trigger_and_policy(self, home: Path) -> None:
        about = ("--set", "trigger=email:<1@x>", "--set", 'policy={"refunds": "ask"}')
        oakleaf("run", "hi", *MODEL, *about, home=home)
        oakleaf("run", "--resume", "latest", "more", "--set", "trigger=cron", home=home)
        facts = [fact.data for fact in only_session(home).journal() if fact.kind == "turn_started"]
        assert (facts[0]["trigger"], facts[0]["policy"]) == (
            {"type": "email", "id": "<1@x>"},
            {"refunds": "ask"},
        )
        assert (facts[1]["trigger"], facts[1].get("policy")) == ({"type": "cron"}, None)

    def test_a_policy_that_is_no_json_is_refused_and_starts_nothing(self, home: Path) -> None:
        done = oakleaf("run", "hi", *MODEL, "--set", "policy=ask", home=home)
        assert (done.returncode, "policy is invalid; expected a table, or a JSON object" in done.stderr) == (
            2,
            True,
        )
        assert not (home / "agent.db").exists()

    def test_resume_without_words_goes_on_with_the_open_turn(self, home: Path) -> None:
        with open_store(home) as store:
            store.start(model="scripted:script.json").append([user("hi")])
        assert oakleaf("run", "--resume", "latest", home=home).stdout == "One.\n"
        assert texts(only_session(home)) == ["hi", "One."]

    def test_copy_grows_a_session_of_its_own_and_leaves_its_source_alone(self, home: Path) -> None:
        oakleaf("run", "hi", *MODEL, home=home)
        oakleaf("run", "--resume", "latest", "more", home=home)
        source = only_session(home)
        before, facts = source.path(), source.journal()
        assert (
            oakleaf("run", "--copy", source.session_id, "--to-point", "2", "else", home=home).stdout
            == "Two.\n"
        )
        with open_store(home) as store:
            (row,) = store.sessions(relation="fork").sessions
            copy = store.session(row.session_id)
            assert (row.parent_session, row.parent_seq) == (source.session_id, 2)
            assert texts(copy) == ["hi", "One.", "else", "Two."]
            assert [e.entry_id for e in copy.path()[:2]] == [e.entry_id for e in before[:2]]
        source.refresh()
        assert (source.path(), source.journal()) == (before, facts)

    @pytest.mark.attack
    def test_a_copy_repeats_no_payment_without_a_decision(self, home: Path) -> None:
        script(home, calls("unverified"), "Paid.")
        tools = (*MODEL, "--set", "tools=tools.py")
        assert oakleaf("run", "pay", *tools, home=home).stdout == "Paid.\n"
        done = oakleaf("run", "--copy", "latest", "--to-point", "2", *tools, home=home)
        assert done.returncode == 1
        assert "left behind, and not undone: 1 call of unsafe tools" in done.stderr
        assert "made before: ses_" in done.stderr
        assert len((home / "book").read_text().splitlines()) == 1
        assert "waits for approval; made before: ses_" in oakleaf("show", "latest", home=home).stdout
        listed = oakleaf("approve", "latest", home=home)
        assert "It was made before, on a path that was left" in listed.stderr
        assert oakleaf("approve", "latest", "--yes", home=home).returncode == 0
        assert oakleaf("resume", "latest", *tools, home=home).stdout == "Paid.\n"
        assert len((home / "book").read_text().splitlines()) == 2

    @pytest.mark.parametrize(("effects", "count"), [("repeat", 2), ("reuse", 1)])
    def test_a_copy_may_say_what_becomes_of_a_payment(self, home: Path, effects: str, count: int) -> None:
        script(home, calls("unverified"), "Paid.")
        tools = (*MODEL, "--set", "tools=tools.py")
        oakleaf("run", "pay", *tools, home=home)
        done = oakleaf(
            "run", "--copy", "latest", "--to-point", "2", "--set", f"effects={effects}", *tools, home=home
        )
        assert (done.returncode, done.stdout) == (0, "Paid.\n")
        assert len((home / "book").read_text().splitlines()) == count
        shown = oakleaf("show", "latest", home=home).stdout
        assert ("[reused from ses_" in shown) == (effects == "reuse")

    def test_overwriting_and_rolling_back_say_what_they_leave(self, home: Path) -> None:
        script(home, calls("unverified"), "Paid.")
        tools = (*MODEL, "--set", "tools=tools.py")
        oakleaf("run", "pay", *tools, home=home)
        done = oakleaf("run", "--overwrite", "latest", "--from-point", "0", "pay", *tools, home=home)
        assert (done.returncode, "left behind" in done.stderr) == (1, True)
        assert "left behind" in oakleaf("resume", "latest", "--rollback", home=home).stderr
        assert len((home / "book").read_text().splitlines()) == 1

    def test_copy_without_a_point_takes_all_of_it_and_without_words_says_nothing(self, home: Path) -> None:
        oakleaf("run", "hi", *MODEL, home=home)
        done = oakleaf("run", "--copy", "latest", home=home)
        assert (done.returncode, done.stdout) == (0, "")
        with open_store(home) as store:
            (row,) = store.sessions(relation="fork").sessions
            assert texts(store.session(row.session_id)) == ["hi", "One."]

    def test_a_copy_with_another_model_and_prompt_records_them_as_its_first_entry(self, home: Path) -> None:
        script(home, "A.", "B.", name="other.json")
        oakleaf("run", "hi", *MODEL, "--set", "prompt=Be kind.", home=home)
        how = ("--model", "scripted:other.json", "--set", "prompt=Be brief.")
        assert oakleaf("run", "--copy", "latest", "more", *how, home=home).stdout == "B.\n"
        with open_store(home) as store:
            (row,) = store.sessions(relation="fork").sessions
            copy = store.session(row.session_id)
            assert copy.path()[3].kind == "settings"
            assert copy.context().system == ("Be brief.",)

    def test_overwrite_goes_on_from_an_earlier_place_and_loses_nothing(self, home: Path) -> None:
        oakleaf("run", "hi", *MODEL, home=home)
        oakleaf("run", "--resume", "latest", "more", home=home)
        session = only_session(home)
        leaf = session.leaf
        done = oakleaf("run", "--overwrite", session.session_id, "--from-point", "2", "else", home=home)
        assert done.stdout == "Two.\n"
        assert "to entry 2" in done.stderr
        session.refresh()
        assert texts(session) == ["hi", "One.", "else", "Two."]
        assert len(session.entries()) == 6
        assert len(session.branches()) == 2
        session.checkout(leaf)
        assert texts(session) == ["hi", "One.", "more", "Two."]

    def test_overwrite_without_a_point_just_goes_on(self, home: Path) -> None:
        oakleaf("run", "hi", *MODEL, home=home)
        oakleaf("run", "--overwrite", "latest", "more", home=home)
        assert texts(only_session(home)) == ["hi", "One.", "more", "Two."]

    def test_overwrite_from_an_input_asks_for_another_answer(self, home: Path) -> None:
        oakleaf("run", "hi", *MODEL, home=home)
        script(home, "Uno.")
        assert oakleaf("run", "--overwrite", "latest@1", home=home).stdout == "Uno.\n"
        assert texts(only_session(home)) == ["hi", "Uno."]

    def test_a_point_between_a_call_and_its_result_moves_and_says_so(self, home: Path) -> None:
        script(home, calls("look_up"), "Lost.", "Else.")
        oakleaf("run", "hi", *AGENT, home=home)
        done = oakleaf("run", "--overwrite", "latest", "--from-point", "3", *AGENT, home=home)
        assert "to entry 2 (entry 3 is between a call and its results)" in done.stderr

    @pytest.mark.parametrize(
        "flags",
        [
            ("--resume", "latest", "--copy", "latest"),
            ("--to-point", "1"),
            ("--resume", "latest", "--from-point", "1"),
            ("--resume", "latest@1"),
            ("--copy", "latest", "--set", "session.conversation=c"),
            ("--resume", "nobody"),
        ],
    )
    def test_flags_that_make_no_sense_together_change_nothing(
        self, home: Path, flags: tuple[str, ...]
    ) -> None:
        oakleaf("run", "hi", *MODEL, home=home)
        assert oakleaf("run", "more", *flags, home=home).returncode == 2
        assert texts(only_session(home)) == ["hi", "One."]


class TestTools:
    @pytest.mark.parametrize("source", ["tools.py:look_up", "tools:look_up", "listed.py", "listed.py:tools"])
    def test_tools_are_found_in_files_and_modules_by_name_or_all(self, home: Path, source: str) -> None:
        (home / "listed.py").write_text("from tools import look_up as _one\n\ntools = [_one]\n")
        script(home, calls("look_up"), "Done.")
        done = oakleaf("run", "hi", *MODEL, "--set", f"tools={source}", home=home)
        assert "✓ look_up" in done.stderr
        assert only_session(home).row.tool_names == ("look_up",)

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("none.py", "there is no file"),
            ("broken.py", "ZeroDivisionError"),
            ("empty.py", "has no tools"),
            ("tools.py:nothing", "it has no 'nothing'"),
            ("no.such.module", "ModuleNotFoundError"),
        ],
    )
    def test_tools_that_cannot_be_had_are_named(self, home: Path, source: str, message: str) -> None:
        (home / "broken.py").write_text("1 / 0")
        (home / "empty.py").write_text("")
        done = oakleaf("run", "hi", *MODEL, "--set", f"tools={source}", home=home)
        assert done.returncode == 2
        assert message in done.stderr
        assert not (home / "agent.db").exists()

    def test_what_a_workspace_may_do_wants_a_workspace(self, home: Path) -> None:
        assert oakleaf("run", "hi", *MODEL, "--set", "workspace.allow=git", home=home).returncode == 2


class TestResume:
    @pytest.mark.parametrize(("tool", "mark"), [("verified", "✓"), ("unverified", "?")])
    def test_a_process_killed_inside_an_unsafe_tool_leaves_one_effect(
        self, home: Path, tool: str, mark: str
    ) -> None:
        script(home, calls(tool), "Settled.")
        (home / "dies").touch()
        assert oakleaf("run", "pay", *AGENT, home=home).returncode == -signal.SIGKILL
        (home / "dies").unlink()
        done = oakleaf("resume", "latest", "--set", "tools=tools.py", home=home)
        assert done.stdout == "Settled.\n"
        assert f"{mark} {tool}" in done.stderr
        assert len((home / "book").read_text().splitlines()) == 1
        assert only_session(home).verify() == []

    def test_a_call_that_waits_is_not_lost_to_a_forgotten_option(self, home: Path) -> None:
        script(home, calls("verified"), "Settled.")
        (home / "dies").touch()
        oakleaf("run", "pay", *AGENT, home=home)
        before = only_session(home).path()
        done = oakleaf("resume", "latest", home=home)
        assert done.returncode == 2
        assert "has open calls of verified" in done.stderr
        assert "--set tools=tools.py" in done.stderr
        assert only_session(home).path() == before

    def test_rollback_leaves_the_turn_behind_and_redo_brings_it_back(self, home: Path) -> None:
        script(home)
        oakleaf("run", "hi", *MODEL, home=home)
        done = oakleaf("resume", "latest", "--rollback", home=home)
        assert "turn 1 abandoned" in done.stderr
        session = only_session(home)
        assert texts(session) == []
        session.redo()
        assert texts(session) == ["hi"]

    def test_where_nothing_is_open_nothing_is_done(self, home: Path) -> None:
        oakleaf("run", "hi", *MODEL, home=home)
        facts = only_session(home).row.facts
        done = oakleaf("resume", "latest", home=home)
        assert done.returncode == 0
        assert "has no open turn" in done.stderr
        end = json.loads(oakleaf("resume", "latest", "--json", home=home).stdout)
        assert (end["schema_version"], end["type"], end["stop_reason"]) == (1, "run", None)
        assert only_session(home).row.facts == facts

    def test_what_was_shown_before_a_crash_is_marked_and_the_model_asked_again_or_it_is_kept(
        self, home: Path
    ) -> None:
        script(home, "Whole.")
        with open_store(home) as store:
            for title in ("again", "keep"):
                session = store.start(model="scripted:script.json", title=title)
                session.append([user("hi")])
                store.backend.save_draft(session.session_id, session.leaf, "Half a sen", 0, 1)
        assert oakleaf("resume", "again", home=home).stdout == "Whole.\n"
        assert "marked as interrupted" in oakleaf("resume", "keep", "--keep-partial", home=home).stderr
        assert "no answer" in oakleaf("resume", "keep", "--keep-partial", home=home).stderr
        for title in ("again", "keep"):
            assert "  interrupted" in oakleaf("show", title, home=home).stdout
            assert "[interrupted] Half a sen" in oakleaf("log", title, home=home).stdout
        data = json.loads(oakleaf("show", "keep", "--json", home=home).stdout)
        assert [entry["finish"] for entry in data["entries"]] == [None, "partial"]


class TestNaming:
    def test_what_names_a_new_session_is_refused_for_one_that_is_there(self, home: Path) -> None:
        oakleaf("run", "hi", *MODEL, home=home)
        for verb in ("run hi --resume", "run hi --overwrite", "chat --resume"):
            for flag, words in (
                ("--set session.title=T", "--set session.title:"),
                ("--set session.tags.a=b", "--set session.tags:"),
                ("--agent zz", "--agent NAME:"),
            ):
                done = oakleaf(*f"{verb} latest {flag}".split(), home=home, stdin="more\n")
                assert (done.code, words in done.err) == (2, True), (verb, flag)
        assert texts(only_session(home)) == ["hi", "One."]

    def test_a_copy_is_new_and_keeps_its_agent(self, home: Path) -> None:
        oakleaf("run", "hi", *MODEL, "--agent", "oak", home=home)
        copied = ["run", "more", "--copy", "latest", "--set", "session.title=T", "--set", "session.tags.a=b"]
        assert oakleaf(*copied, "--agent", "zz", home=home).code == 2
        assert oakleaf(*copied, home=home).out == "Two.\n"
        with open_store(home) as store:
            copy = store.sessions().sessions[0]
        assert (copy.title, copy.tags, copy.agent) == ("T", {"a": "b"}, "oak")


class TestConnection:
    def test_that_to_a_vendor_is_shared_by_the_turns_of_a_chat_and_closed_at_its_end(
        self, home: Path
    ) -> None:
        with FakeProviders(keeps_alive=True) as server:
            model = f"openai-chat:m@{server.url_for('openai-chat')}"
            done = subprocess.run(
                [*OAKLEAF, "chat", "--model", model],
                cwd=home,
                env=environment(home) | {"PYTHONDEVMODE": "1"},  # tells of sockets that are left open
                input="hi\nand now?\n",
                capture_output=True,
                text=True,
                check=True,
            )
        assert (server.connections, len(server.requests)) == (1, 2)
        assert "ResourceWarning" not in done.stderr


class TestCancel:
    def test_it_aborts_a_turn_of_another_process_and_says_when_there_is_none(self, home: Path) -> None:
        script(home, {"text": "Wait.", "calls": [{"name": "sleeps"}]}, "Never.")
        driving = subprocess.Popen([*OAKLEAF, "run", "hi", *AGENT], cwd=home, env=environment(home))
        try:
            wait_until((home / "asleep").exists)
            done = oakleaf("cancel", "latest", "--wait", "0", home=home)
            assert done.returncode == 3
            assert "has not confirmed" in done.stderr
            done = oakleaf("cancel", "latest", "--wait", "30", "--json", home=home)
            assert done.returncode == 0
            report = json.loads(done.stdout)
            assert (report["turn"], report["cancelled"], report["status"]) == (2, True, "cancelled")
            assert driving.wait(20) == 130
        finally:
            driving.kill()
            driving.wait()
        session = only_session(home)
        assert texts(session)[-1] == "(cancelled)"
        assert session.verify() == []
        done = oakleaf("cancel", "latest", home=home)
        assert done.returncode == 1
        assert "has no open turn" in done.stderr

    def test_it_closes_the_turn_that_a_loop_of_ones_own_leaves_when_it_sees_the_request(
        self, home: Path
    ) -> None:
        with open_store(home) as store, ThreadPoolExecutor(1) as thread:
            session, is_open = store.start(session_id="ses_own"), Event()

            def loop() -> None:
                with session.turn("hi") as turn:
                    is_open.set()
                    while not turn.is_cancel_requested:
                        time.sleep(0.02)

            looping = thread.submit(loop)
            assert is_open.wait(20)
            done = oakleaf("cancel", "ses_own", "--wait", "30", home=home)
            looping.result()
        assert (done.returncode, "is cancelled" in done.stderr) == (0, True)
        assert (only_session(home).row.status, texts(only_session(home))[-1]) == ("cancelled", "(cancelled)")

    def test_it_closes_the_turn_of_a_process_that_was_killed(self, home: Path) -> None:
        (home / "dies").touch()
        script(home, calls("unverified"), "Never.")
        oakleaf("run", "hi", *AGENT, home=home)
        assert oakleaf("cancel", "latest", home=home).returncode == 0
        session = only_session(home)
        assert (session.row.status, session.path()[3].message.results[0].outcome) == ("cancelled", "unknown")
        assert session.verify() == []


class TestBusy:
    def test_a_busy_session_is_an_exit_code_and_queued_input_is_answered_next(self, home: Path) -> None:
        script(home, calls("sleeps"), "One.", "Two.")
        lines = json.loads((home / "script.json").read_text())
        lines[0]["calls"][0]["arguments"] = {}
        script(home, *lines)
        driving = subprocess.Popen([*OAKLEAF, "run", "hi", *AGENT], cwd=home, env=environment(home))
        try:
            wait_until((home / "asleep").exists)
            done = oakleaf("run", "--resume", "latest", "more", *AGENT, home=home)
            assert done.returncode == 3
            assert "--queue" in done.stderr
            assert oakleaf("run", "--overwrite", "latest@1", "x", *AGENT, home=home).returncode == 3
            done = oakleaf("run", "--resume", "latest", "more", "--queue", *AGENT, home=home)
            assert done.returncode == 0
            assert "queued as number 1" in done.stderr
        finally:
            driving.kill()
            driving.wait()
        (home / "tools.py").write_text(TOOLS.replace("time.sleep(120)", "pass"))
        assert oakleaf("resume", "latest", *AGENT, home=home).stdout == "One.\nTwo.\n"
        assert texts(only_session(home))[-2:] == ["more", "Two."]

    def test_a_session_that_is_taken_away_in_the_middle_of_a_turn_is_an_exit_code(self, home: Path) -> None:
        (home / "tools.py").write_text(VANISHING)
        script(home, {"text": "Hm.", "calls": [{"name": "vanish"}]}, "One.")
        done = oakleaf("run", "hi", *AGENT, home=home)
        assert (done.code, done.out) == (3, "")
        assert "oakleaf restore ses_" in done.err


class TestApprove:
    def test_without_a_terminal_the_turn_waits_and_says_what_to_do(self, home: Path) -> None:
        script(home, calls("refund"), "Refunded.")
        done = oakleaf("run", "refund it", *AGENT, home=home)
        assert (done.returncode, done.stdout) == (1, "")
        assert "waiting for approval: refund(order=41)" in done.stderr
        assert "oakleaf approve" in done.stderr
        assert not (home / "book").exists()

    @pytest.mark.parametrize(
        ("variables", "configured", "name"),
        [
            ({"OAKLEAF_BY": "bob"}, "by = 'cid'\n", "bob"),
            ({"USER": "dan", "LOGNAME": "dan"}, "by = 'cid'\n", "cid"),
            ({"USER": "dan", "LOGNAME": "dan"}, "", "dan"),
        ],
    )
    def test_a_decision_has_the_name_of_a_person(
        self, home: Path, variables: dict[str, str], configured: str, name: str
    ) -> None:
        script(home, calls("refund"), "Refunded.")
        oakleaf("run", "refund it", *AGENT, home=home)
        (home / "config.toml").write_text(configured)
        settings = {**variables, "OAKLEAF_CONFIG": str(home / "config.toml")}
        oakleaf("approve", "latest", "--yes", "--reason", "lost", home=home, **settings)
        decided = next(fact.data for fact in only_session(home).journal() if fact.kind == "approved")
        assert (decided["by"], decided["reason"], decided["surface"]) == (name, "lost", "command line")

    def test_until_it_is_resumed_the_list_says_that_it_waits(self, home: Path) -> None:
        script(home, calls("refund"), "Refunded.")
        oakleaf("run", "refund it", *AGENT, home=home)
        assert " waiting " in oakleaf("ls", home=home).out
        assert [row["status"] for row in oakleaf("ls", "--json", home=home).json["sessions"]] == ["waiting"]
        assert oakleaf("ls", "status:waiting", home=home).out.count("ses_") == 1
        oakleaf("approve", "latest", "--yes", home=home)
        assert oakleaf("resume", "latest", *AGENT, home=home).code == 0
        assert oakleaf("ls", "status:waiting", home=home).out == ""

    def test_the_command_that_goes_on_works_as_it_is_printed(self, home: Path) -> None:
        lines = [calls("refund"), "Refunded."]
        priced = {"lines": lines, "rates": {"input": 1, "output": 1}}
        (home / "script.json").write_text(json.dumps(priced))
        output = oakleaf("run", "refund it", *AGENT, "--set", "limits.cost=2", home=home).err
        resume = output.partition("then oakleaf ")[2].splitlines()[0]
        assert resume.endswith(" --set limits.cost=2 --set tools=tools.py")
        allowed = oakleaf("approve", "latest", "--yes", home=home).err
        assert allowed.partition("oakleaf ")[2].strip() == resume.replace(" --set limits.cost=2", "")
        without_limit = resume.replace(" --set limits.cost=2", "")
        assert f"oakleaf {without_limit} continues" in oakleaf("show", home=home).err
        assert oakleaf(*resume.split(), home=home).out == "Refunded.\n"

    def test_a_session_of_a_program_says_that_its_tools_are_needed(self, home: Path) -> None:
        @library.tool(approval=True)
        def refund(order: int) -> str:
            """Give the money back."""
            return "refunded"

        asks = library.assistant(library.ToolCall("c1", "refund", {"order": 41}))
        with open_store(home) as store:
            session = store.start("support", session_id="ses_program")
            session.send_sync("Refund it", model=library.ScriptedModel([asks]), tools=[refund])
        resume = "oakleaf resume ses_program --agent FILE.py"
        assert f"then {resume} continues" in oakleaf("show", "ses_program", home=home).err
        assert f"continue with: {resume}\n" in oakleaf("approve", "ses_program", "--yes", home=home).err

    def test_nothing_is_allowed_unless_somebody_says_so(self, home: Path) -> None:
        script(home, calls("refund"), "Refunded.")
        oakleaf("run", "refund it", *AGENT, home=home)
        listed = oakleaf("approve", "latest", home=home)
        assert (listed.code, listed.out) == (1, "")
        assert listed.err.startswith("1. refund\n  order: 41\n")
        as_json = oakleaf("approve", "latest", "--json", home=home).json
        assert (as_json["done"], as_json["calls"][0]["call"]["name"]) == (False, "refund")
        assert oakleaf("resume", "latest", *AGENT, home=home).returncode == 1
        assert not (home / "book").exists()

    def test_an_allowed_call_runs_once(self, home: Path) -> None:
        script(home, calls("refund"), "Refunded.")
        oakleaf("run", "refund it", *AGENT, home=home)
        assert oakleaf("approve", "latest", "--yes", home=home).returncode == 0
        assert oakleaf("resume", "latest", *AGENT, home=home).stdout == "Refunded.\n"
        assert oakleaf("resume", "latest", *AGENT, home=home).returncode == 0
        assert len((home / "book").read_text().splitlines()) == 1
        assert "no call" in oakleaf("approve", "latest", "--yes", home=home).stderr

    def test_a_denied_call_never_runs_and_the_model_is_told(self, home: Path) -> None:
        script(home, calls("refund"), "As you wish.")
        oakleaf("run", "refund it", *AGENT, home=home)
        assert oakleaf("approve", "latest", "--deny", home=home).returncode == 0
        done = oakleaf("resume", "latest", *AGENT, home=home)
        assert done.stdout == "As you wish.\n"
        assert "⊘ refund" in done.stderr
        assert not (home / "book").exists()

    def test_one_of_several_may_be_allowed_by_its_number(self, home: Path) -> None:
        script(home, calls("refund", "refund"), "Done.")
        oakleaf("run", "refund both", *AGENT, home=home)
        assert oakleaf("approve", "latest", "--call", "3", home=home).returncode == 2
        oakleaf("approve", "latest", "--call", "2", "--yes", home=home)
        assert oakleaf("resume", "latest", *AGENT, home=home).returncode == 1
        oakleaf("approve", "latest", "--deny", home=home)
        assert oakleaf("resume", "latest", *AGENT, home=home).stdout == "Done.\n"
        assert len((home / "book").read_text().splitlines()) == 1

    @pytest.mark.parametrize("by", ["parent", "child"])
    def test_what_a_task_asks_for_is_allowed_here_or_there_and_the_parent_goes_on(
        self, home: Path, by: str
    ) -> None:
        script(home, calls("delegate"), "It is done.")
        script(home, calls("refund"), "Refunded.", name="child.json")
        done = oakleaf("run", "refund it", *AGENT, home=home)
        assert (done.returncode, "waiting for approval: refund(order=41)" in done.stderr) == (1, True)
        with open_store(home) as store:
            names = {row.relation or "parent": row.session_id for row in store.all_sessions()}
        result = oakleaf("show", names["parent"], home=home)
        assert f"waits for approval in its task {names['task']}" in result.stdout
        assert f"oakleaf approve {names['parent']}, then oakleaf resume" in result.stderr
        assert (
            f"(called by its task {names['task']})" in oakleaf("approve", names["parent"], home=home).stderr
        )
        listed = json.loads(oakleaf("approve", names["parent"], "--json", home=home).stdout)["calls"]
        assert [call["session"] for call in listed] == [names["task"]]
        allowed = oakleaf("approve", names["parent" if by == "parent" else "task"], "--yes", home=home)
        assert f"oakleaf resume {names['parent']}" in allowed.stderr
        assert "its task was decided" in oakleaf("show", names["parent"], home=home).stdout
        assert oakleaf("resume", names["parent"], *AGENT, home=home).stdout == "It is done.\n"
        assert len((home / "book").read_text().splitlines()) == 1

    def test_a_task_in_the_trash_is_told_with_the_command_that_brings_it_back(self, home: Path) -> None:
        script(home, calls("delegate"), "It is done.")
        script(home, calls("refund"), "Refunded.", name="child.json")
        oakleaf("run", "refund it", *AGENT, home=home)
        with open_store(home) as store:
            names = {row.relation or "parent": row.session_id for row in store.all_sessions()}
        oakleaf("rm", names["task"], "--yes", home=home)
        hint = f"oakleaf restore {names['task']}"
        for verb, code in ((("resume", *AGENT), 2), (("approve", "--yes"), 1), (("show",), 0)):
            done = oakleaf(verb[0], names["parent"], *verb[1:], home=home)
            assert (done.code, hint in done.err) == (code, True), done.err
        assert oakleaf("restore", names["task"], home=home).code == 0
        assert oakleaf("approve", names["parent"], "--yes", home=home).code == 0
        assert oakleaf("resume", names["parent"], *AGENT, home=home).out == "It is done.\n"


class TestTerminal:
    @pytest.mark.parametrize(("word", "effects"), [("y", 1), ("n", 0)])
    def test_a_person_is_asked_with_every_argument_in_sight(
        self, home: Path, word: str, effects: int
    ) -> None:
        script(home, calls("refund"), "Very well.")
        with Terminal("run", "refund it", *AGENT, home=home, columns=30) as terminal:
            assert "order: 41" in terminal.wait_for("Allow it? [y/N]")
            terminal.enter(word)
            assert terminal.wait() == 0
            assert "Very well." in terminal.screen
        book = home / "book"
        assert len(book.read_text().splitlines() if book.exists() else []) == effects

    def test_ctrl_c_cancels_the_turn_at_once_even_inside_a_tool_that_blocks(self, home: Path) -> None:
        script(home, {"text": "Wait.", "calls": [{"name": "sleeps"}]}, "Never.")
        with Terminal("run", "hi", *AGENT, home=home) as terminal:
            terminal.wait_for("Wait.")
            wait_until((home / "asleep").exists)
            terminal.type("\x03")
            assert terminal.wait() == 130
            assert "oakleaf run --resume" in terminal.screen
        session = only_session(home)
        assert session.row.status == "cancelled"
        assert texts(session)[-1] == "(cancelled)"
        assert session.verify() == []
        script(home, "", "", "Going on.")
        assert oakleaf("run", "--resume", "latest", "go on", *AGENT, home=home).stdout == "Going on.\n"

    def test_a_reader_that_goes_away_ends_it_quietly(self, home: Path) -> None:
        script(home, "One.\n" * 1000)
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            done = subprocess.run(
                [*OAKLEAF, "run", "hi", *MODEL],
                cwd=home,
                env=environment(home),
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        assert "Traceback" not in done.stderr


@pytest.mark.attack
class TestImports:
    """A bundle decides nothing here: what it left open is shown and asked about."""

    def bundle(self, home: Path, tool: str, *facts: Fact, queued: str | None = None) -> str:
        with library.open("memory:") as elsewhere:
            session = elsewhere.start()
            call = library.ToolCall("c1", tool, {"order": 41})
            session.append([library.user("pay"), library.assistant("Paying.", call)])
            for fact in facts:
                session.log.record(fact)
            if queued is not None:
                session.enqueue(queued)
            session.export(home / "theirs.oakleaf")
        assert oakleaf("import", "theirs.oakleaf", home=home).code == 0
        return session.session_id

    def test_a_call_that_was_approved_elsewhere_waits_and_is_shown_as_such(self, home: Path) -> None:
        name = self.bundle(home, "refund", ApprovalRequested(2, 0), Approved(2, 0))
        script(home, "", "Paid.")
        done = oakleaf("resume", name, *AGENT, home=home)
        assert (done.code, done.out, (home / "book").exists()) == (1, "", False)
        assert "approved elsewhere, which does not count here" in done.err
        assert "waits for approval; approved elsewhere" in oakleaf("show", name, home=home).out
        listed = oakleaf("approve", name, "--yes", home=home)
        assert "approved elsewhere, which does not count here" in listed.err
        assert oakleaf("resume", name, *AGENT, home=home).out == "Paid.\n"

    def test_without_a_terminal_the_error_has_the_plan_and_the_option_that_accepts_it(
        self, home: Path
    ) -> None:
        name = self.bundle(home, "unverified", queued="and \x1b[2Jeverything else")
        assert "left open elsewhere" in oakleaf("show", name, home=home).out
        done = oakleaf("resume", name, *AGENT, home=home)
        assert (done.code, done.out, (home / "book").exists()) == (1, "", False)
        assert 'call unverified {"order": 41}; queued input "and \\u001b[2Jeverything else"' in done.err
        assert f"oakleaf resume {name} --accept-imported" in done.err
        script(home, "", "Paid.", "Done.")
        assert oakleaf("resume", name, *AGENT, "--accept-imported", home=home).out == "Paid.\nDone.\n"
        assert len((home / "book").read_text().splitlines()) == 1

    @pytest.mark.parametrize(("word", "effects"), [("y", 1), ("n", 0)])
    def test_at_a_terminal_the_plan_is_asked_about(self, home: Path, word: str, effects: int) -> None:
        name = self.bundle(home, "unverified")
        script(home, "", "Paid.")
        with Terminal("resume", name, *AGENT, home=home) as terminal:
            assert 'call unverified {"order": 41}' in terminal.wait_for("Let it run? [y/N]")
            terminal.enter(word)
            assert terminal.wait() == (0 if effects else 1)
        book = home / "book"
        assert len(book.read_text().splitlines() if book.exists() else []) == effects

    def test_no_program_file_folder_or_tier_of_a_bundle_is_used_or_proposed(self, home: Path) -> None:
        """What runs, and how far its tools reach, is what the options here say."""
        (home / "evil.py").write_text('import pathlib; pathlib.Path("ran").touch()')
        workspace = library.Workspace(working_dir="/", fs_scope_tier="full")
        spec = {"tools": ["evil.py"], "mcp": ["touch ran"], "workspace": "/", "allow": ["sh"]}
        open_call = library.ToolCall("c1", "shell", {"argv": ["touch", "ran"]})
        with library.open("memory:") as elsewhere:
            session = elsewhere.start("support", workspace=workspace, spec=spec)
            session.append([library.user("q"), library.assistant(open_call)])
            session.export(home / "theirs.oakleaf")
        oakleaf("import", "theirs.oakleaf", home=home)
        name = session.session_id
        script(home, {"calls": [{"name": "read_file", "arguments": {"path": "/etc/hostname"}}]}, "", "Done.")
        resume = oakleaf("resume", name, *MODEL, home=home)
        assert (resume.code, "shell, which is not loaded" in resume.err) == (2, True)
        oakleaf("resume", name, "--rollback", home=home)
        done = oakleaf("run", "hi", "--resume", name, *MODEL, home=home)
        fork = oakleaf("fork", name, home=home).out.strip()
        shown = [oakleaf(verb, one, home=home) for verb in ("show", "resume") for one in (name, fork)]
        for each in (resume, done, *shown):
            assert not any(
                text in each.out + each.err for text in ("evil.py", "touch ran", "workspace.dir=/")
            )
        assert not (home / "ran").exists()
        results = [
            r
            for e in library.open(home / "agent.db").session(name).path()
            for r in (e.message.results if e.message else ())
        ]
        assert [result.error for result in results] == [True], "it has no tool"
