"""The agent file: TOML and Python, changes by --set, what comes first, and what is refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf import Limits, Session, user
from oakleaf.cli.agent_options import read_options
from support.terminal import Terminal, oakleaf

SHOP = '''
import os, pathlib, signal
import oakleaf

BOOK = pathlib.Path("book")

@oakleaf.tool(effect="read")
def look_up(order: int) -> str:
    """Look an order up."""
    return "lost"

@oakleaf.tool(effect="idempotent")
def refund(order: int) -> str:
    """Give the money back."""
    with BOOK.open("a") as book:
        book.write("refund\\n")
    if pathlib.Path("dies").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return "refunded"
'''

SUPPORT = """
model = "scripted:answers.json"
prompt = "@support.md"
tools = ["shop.py"]
approval = ["refund"]
effects = "reuse"
trigger = "email"

[options]
temperature = 0

[limits]
turns = 2
rounds = 5
cost = 3.50
on_exceed = "warn"
messages = 40
context_window = 9000

[context]
git_ref = "main"
selection = "a.py:3-7"
variables = { who = "Ann" }
"""

PYTHON = '''
import oakleaf
from oakleaf import ScriptedModel

model = [ScriptedModel(["From Python."])]
prompt = "You help."
limits = {"turns": 1}

@oakleaf.tool(effect="read")
def look_up(order: int) -> str:
    """Look an order up."""
    return "lost"

def hidden():
    """Not listed, not decorated: no tool."""
'''


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A current folder, beside the folder of the agent files."""
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "support.toml").write_text(SUPPORT)
    (folder / "support.md").write_text("For {{ctx.who}} of {{ctx.git_ref}}.")
    (folder / "shop.py").write_text(SHOP)
    (folder / "python.py").write_text(PYTHON)
    answers(folder, "One.", "Two.", "Three.")
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


FILE = "../agents/support.toml"


def answers(folder: Path, *lines: object, name: str = "answers.json") -> None:
    (folder / name).write_text(json.dumps({"lines": lines, "rates": {"input": 1, "output": 1}}))


def calls(name: str) -> dict[str, object]:
    return {"text": "Let me see.", "calls": [{"name": name, "arguments": {"order": 41}}]}


def write(home: Path, text: str, name: str = "agent.toml") -> str:
    (home / name).write_text(text)
    return name


def only_session(home: Path) -> Session:
    store = library.open(home / "agent.db")
    (row,) = store.sessions().sessions
    return store.session(row.session_id)


def turn_facts(session: Session) -> list[dict[str, object]]:
    return [fact.data for fact in session.journal() if fact.kind == "turn_started"]


class TestToml:
    def test_a_file_is_a_whole_agent(self, home: Path) -> None:
        done = oakleaf("run", "hi", "--agent", FILE, home=home)
        assert (done.returncode, done.stdout) == (0, "One.\n"), done.stderr
        session = only_session(home)
        row, settings = session.row, session.context().settings
        assert (row.agent, set(row.tool_names)) == ("support", {"look_up", "refund"})
        assert session.context().system == ("For Ann of main.",)
        assert (settings.options, settings.effects, settings.max_messages) == (
            {"temperature": 0},
            "reuse",
            40,
        )
        (turn,) = turn_facts(session)
        assert turn["trigger"] == {"type": "email"}

    def test_limits_are_those_of_a_run(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(home)
        assert read_options(agent=FILE).limits == Limits(
            turns=2,
            rounds=5,
            max_cost_microcents=350_000_000,
            on_exceed="warn",
            max_messages=40,
            context_window=9000,
        )

    def test_a_session_records_the_file_beside_what_it_always_records(self, home: Path) -> None:
        oakleaf("run", "hi", "--agent", FILE, home=home)
        with library.open(home / "agent.db") as store:
            spec = store.backend.detail(only_session(home).session_id).spec
        assert json.loads(spec or b"") == {
            "name": "support",
            "prompt": "For {{ctx.who}} of {{ctx.git_ref}}.",
            "models": ["scripted:../agents/answers.json"],
            "tools": ["../agents/shop.py"],
            "agent_file": FILE,
        }

    def test_the_file_may_name_its_agent(self, home: Path) -> None:
        name = write(home, 'name = "helper"\nmodel = "scripted:../agents/answers.json"\n')
        assert oakleaf("run", "hi", "--agent", name, home=home).returncode == 0
        assert only_session(home).row.agent == "helper"

    def test_a_chain_of_models_falls_back(self, home: Path) -> None:
        answers(home, name="none.json")
        name = write(home, 'model = ["scripted:none.json", "scripted:../agents/answers.json"]\n')
        assert oakleaf("run", "hi", "--agent", name, home=home).stdout == "One.\n"

    def test_an_alias_of_the_configuration_is_a_model(self, home: Path) -> None:
        (home / "config.toml").write_text('[aliases]\nfast = "scripted:../agents/answers.json"\n')
        name = write(home, 'model = "fast"\n')
        done = oakleaf("run", "hi", "--agent", name, home=home, OAKLEAF_CONFIG=str(home / "config.toml"))
        assert done.stdout == "One.\n", done.stderr
        assert only_session(home).row.model == "scripted:../agents/answers.json"

    @pytest.mark.parametrize("approval", ['approval = ["refund"]', "approval = true"])
    def test_a_named_tool_waits_for_approval(self, home: Path, approval: str) -> None:
        answers(home.parent / "agents", calls("refund"), "Refunded.")
        place = home.parent / "agents/support.toml"
        place.write_text(SUPPORT.replace('approval = ["refund"]', approval))
        done = oakleaf("run", "pay", "--agent", FILE, home=home)
        assert (done.returncode, "waiting for approval: refund(order=41)" in done.stderr) == (1, True)
        assert not (home / "book").exists()
        assert oakleaf("approve", "latest", "--yes", home=home).returncode == 0
        assert oakleaf("resume", "latest", "--agent", FILE, home=home).stdout == "Refunded.\n"
        assert (home / "book").read_text() == "refund\n"

    def test_an_approval_of_no_tool_is_refused(self, home: Path) -> None:
        done = oakleaf("run", "pay", "--agent", FILE, "--set", "approval=refunds", home=home)
        assert done.returncode == 2
        assert (
            "approval names refunds, which the agent does not have; its tools: look_up, refund" in done.stderr
        )
        assert not (home / "agent.db").exists()

    def test_a_module_is_found_beside_the_file_and_not_in_the_current_folder(self, home: Path) -> None:
        (home / "shelf.py").write_text("raise SystemExit('a stranger')")
        (home.parent / "agents/shelf.py").write_text(SHOP)
        place = home.parent / "agents/support.toml"
        place.write_text(SUPPORT.replace('"shop.py"', '"shelf"'))
        done = oakleaf("run", "hi", "--agent", FILE, home=home)
        assert (done.returncode, done.stdout) == (0, "One.\n"), done.stderr


class TestPython:
    def test_a_module_defines_the_same_names_and_its_models_and_tools_may_be_objects(
        self, home: Path
    ) -> None:
        done = oakleaf("run", "hi", "--agent", "../agents/python.py", home=home)
        assert (done.returncode, done.stdout) == (0, "From Python.\n"), done.stderr
        session = only_session(home)
        assert (session.row.agent, session.row.tool_names) == ("python", ("look_up",))
        assert session.context().system == ("You help.",)
        again = oakleaf("run", "hi", "--resume", "latest", "--agent", "../agents/python.py", home=home)
        assert "had its 1 turn" in again.stderr

    def test_listed_tools_are_functions_tools_and_files(self, home: Path) -> None:
        listed = PYTHON + 'tools = [hidden, look_up, "shop.py:refund"]\n'
        (home.parent / "agents/python.py").write_text(listed)
        assert oakleaf("run", "hi", "--agent", "../agents/python.py", home=home).returncode == 0
        assert set(only_session(home).row.tool_names) == {"hidden", "look_up", "refund"}

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("limit = {'turns': 3}", "there is no key limit; did you mean limits?"),
            ("limits = {'turn': 3}", "there is no key limits.turn; did you mean limits.turns?"),
            ("tools = 3", "tools is invalid; expected a list of FILE.py"),
            ("model = None", "no model was given"),
            ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ],
    )
    def test_bad_input_is_named(self, home: Path, line: str, words: str) -> None:
        name = write(home, f"model = 'scripted:../agents/answers.json'\n{line}\n", "bad.py")
        done = oakleaf("run", "hi", "--agent", name, home=home)
        assert done.returncode == 2
        assert words in done.stderr
        assert not (home / "agent.db").exists()


class TestSet:
    def test_a_key_changes_the_file_and_a_last_change_wins(self, home: Path) -> None:
        changes = ("limits.turns=9", "limits.turns=1", "context.git_ref=trunk", "options.max_tokens=5")
        words = [word for change in changes for word in ("--set", change)]
        assert oakleaf("run", "hi", "--agent", FILE, *words, home=home).returncode == 0
        session = only_session(home)
        assert session.context().system == ("For Ann of trunk.",)
        assert session.context().settings.options == {"temperature": 0, "max_tokens": 5}
        done = oakleaf(
            "run", "more", "--resume", "latest", "--agent", FILE, "--set", "limits.turns=1", home=home
        )
        assert "had its 1 turn; raise it with --set limits.turns=N" in done.stderr

    def test_no_file_is_needed(self, home: Path) -> None:
        changes = ("name=helper", "model=scripted:../agents/answers.json", "tools=../agents/shop.py")
        words = [word for change in changes for word in ("--set", change)]
        assert oakleaf("run", "hi", *words, home=home).stdout == "One.\n"
        row = only_session(home).row
        assert (row.agent, set(row.tool_names)) == ("helper", {"look_up", "refund"})

    def test_null_takes_a_value_of_the_file_back(self, home: Path) -> None:
        words = ("--agent", FILE, "--set", "limits.turns=null", "--set", "trigger=null")
        for text in ("hi", "more", "again"):
            assert oakleaf("run", text, "--set", "session.conversation=c", *words, home=home).returncode == 0
        assert ["trigger" in fact for fact in turn_facts(only_session(home))] == [False] * 3

    def test_a_list_grows_with_each_change(self, home: Path) -> None:
        done = oakleaf(
            *("run", "hi", "--model", "scripted:../agents/answers.json", "--set", "workspace.dir=."),
            *("--set", "workspace.allow=git", "--set", "workspace.allow=ls -l", "--set", "approval=shell"),
            home=home,
        )
        assert done.returncode == 0, done.stderr

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ("limit.turns=3", "there is no key limit; did you mean limits?"),
            ("limits.turn=3", "there is no key limits.turn; did you mean limits.turns?"),
            ("turns=3", "there is no key turns; did you mean limits.turns?"),
            ("max_turns=3", "did you mean limits.turns?"),
            ("nonsense=3", "there is no key nonsense; the keys are name, model, prompt"),
            ("limits.turns=many", "limits.turns is invalid; expected a number of turns"),
            ("limits.turns=true", "limits.turns is invalid; expected a number of turns"),
            ("limits.cost=0", "limits.cost is invalid; expected an amount of dollars above 0"),
            ("limits.on_exceed=ask", "limits.on_exceed is invalid; expected stop or warn"),
            ("limits=3", "limits is invalid; expected a table [limits]"),
            ("workspace.scope=all", "workspace.scope is invalid; expected sandboxed, project or full"),
            ("effects=never", "effects is invalid; expected ask, repeat or reuse"),
            ("mcp.trust=maybe", "mcp.trust is invalid; expected true or false"),
            ("mcp.trust=true", "mcp.trust and mcp.approve need mcp.servers"),
            ("workspace.allow=git", "workspace.allow and workspace.env need workspace.dir"),
            ("policy=ask", "policy is invalid; expected a table, or a JSON object"),
            ("limits.turns", "--set needs KEY=VALUE"),
        ],
    )
    def test_bad_input_is_named_and_starts_nothing(self, home: Path, change: str, words: str) -> None:
        done = oakleaf("run", "hi", "--model", "scripted:../agents/answers.json", "--set", change, home=home)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr
        assert not (home / "agent.db").exists()


class TestPrecedence:
    def test_a_flag_comes_before_the_file(self, home: Path) -> None:
        answers(home, "Mine.", name="mine.json")
        (home / "own.py").write_text(SHOP)
        words = ("--model", "scripted:mine.json", "--set", "tools=own.py:look_up", "--set", "approval=null")
        done = oakleaf(
            "run",
            "hi",
            "--agent",
            FILE,
            *words,
            "--set",
            "options.temperature=1",
            "--set",
            "prompt=Mine.",
            home=home,
        )
        assert done.stdout == "Mine.\n", done.stderr
        session = only_session(home)
        assert (session.row.tool_names, session.context().settings.options) == (
            ("look_up",),
            {"temperature": 1},
        )
        assert session.context().system == ("Mine.",)

    def test_the_file_comes_before_the_session_the_environment_and_the_configuration(
        self, home: Path
    ) -> None:
        answers(home, "Own.", "Own again.", name="own.json")
        (home / "config.toml").write_text("[chat]\nmax_turns = 1\n")
        settings = {"OAKLEAF_MODEL": "scripted:own.json", "OAKLEAF_CONFIG": str(home / "config.toml")}
        assert oakleaf("run", "hi", home=home, **settings).stdout == "Own.\n"
        more = ("run", "more", "--resume", "latest")
        assert "had its 1 turn" in oakleaf(*more, home=home, **settings).stderr
        assert oakleaf(*more, "--agent", FILE, home=home, **settings).stdout == "Two.\n"
        assert only_session(home).context().system[-1].startswith("For ")

    def test_a_plain_name_is_the_agents_name_as_before(self, home: Path) -> None:
        done = oakleaf(
            "run", "hi", "--agent", "support", "--model", "scripted:../agents/answers.json", home=home
        )
        assert done.returncode == 0, done.stderr
        assert only_session(home).row.agent == "support"

    def test_a_file_continues_a_session_and_a_name_does_not(self, home: Path) -> None:
        oakleaf("run", "hi", "--agent", FILE, home=home)
        for name in (("--agent", "other"), ("--agent", FILE, "--set", "name=other")):
            done = oakleaf("run", "more", "--resume", "latest", *name, home=home)
            assert (done.returncode, "--agent NAME: only for a new session" in done.stderr) == (2, True)
        assert oakleaf("run", "more", "--resume", "latest", "--agent", FILE, home=home).stdout == "Two.\n"
        assert [entry.kind for entry in only_session(home).path()].count("settings") <= 1, "the same prompt"


class TestResume:
    def test_the_same_file_continues_after_a_kill(self, home: Path) -> None:
        answers(home.parent / "agents", calls("refund"), "Refunded.")
        (home / "dies").touch()
        words = ("--agent", FILE, "--set", "approval=null")
        assert oakleaf("run", "pay", *words, home=home).returncode == -9
        (home / "dies").unlink()
        refused = oakleaf("resume", "latest", "--model", "scripted:../agents/answers.json", home=home)
        assert refused.returncode == 2
        assert f"(it was started with --agent {FILE})" in refused.stderr
        assert oakleaf("resume", "latest", *words, home=home).stdout == "Refunded.\n"
        assert (home / "book").read_text() == "refund\n" * 2
        assert only_session(home).verify() == []

    def test_the_command_that_goes_on_names_the_file_and_works(self, home: Path) -> None:
        answers(home.parent / "agents", calls("refund"), "Refunded.")
        shown = oakleaf("run", "pay", "--agent", FILE, "--set", "limits.turns=7", home=home).stderr
        resume = shown.partition("then oakleaf ")[2].splitlines()[0]
        assert resume.endswith(f" --agent {FILE} --set limits.turns=7")
        allowed = oakleaf("approve", "latest", "--yes", home=home).stderr
        assert allowed.rstrip().endswith(f" --agent {FILE}")
        assert oakleaf(*resume.split(), home=home).stdout == "Refunded.\n"

    @pytest.mark.parametrize("key", ["name=x", "prompt=x", "context.git_ref=x", "trigger=cron"])
    def test_an_open_turn_takes_no_key_of_a_new_one(self, home: Path, key: str) -> None:
        oakleaf("run", "hi", "--agent", FILE, home=home)
        done = oakleaf("resume", "latest", "--agent", FILE, "--set", key, home=home)
        assert (done.returncode, "it is of a new session or an input" in done.stderr) == (2, True)


class TestBadFile:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("model = \n", "is not TOML: "),
            ("modle = 'x'\n", "line 1: there is no key modle; did you mean model?"),
            ("model = 'scripted:x'\n\n[limits]\nturn = 3\n", "line 4: there is no key limits.turn"),
            (
                "[limits]\nrounds = 1\nturns = '3'\n",
                "line 3: limits.turns is invalid; expected a number of turns",
            ),
            ("limits = 3\n", "line 1: limits is invalid; expected a table [limits]"),
            ("tools = 'shop.py'\n", "line 1: tools is invalid; expected a list of FILE.py"),
            ("tools = ['nothing.py']\n", "agent.toml: tools nothing.py: there is no file nothing.py"),
            ("prompt = '@nothing.md'\n", "nothing.md: No such file or directory"),
            ("[mcp]\nservers = 3\n", "mcp.servers is invalid; expected a list of commands"),
            (
                "[context]\nselection = 'a.py'\n",
                "line 2: context.selection is invalid; expected FILE:FIRST-LAST",
            ),
            ("approval = 'refund'\n", "line 1: approval is invalid; expected a list of names of tools"),
        ],
    )
    def test_bad_input_is_named_with_its_line_and_starts_nothing(
        self, home: Path, text: str, words: str
    ) -> None:
        name = write(home, text)
        model = () if "model" in text else ("--model", "scripted:../agents/answers.json")
        done = oakleaf("run", "hi", "--agent", name, *model, home=home)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr
        assert "Traceback" not in done.stderr
        assert not (home / "agent.db").exists()

    def test_a_syntax_error_is_named_with_its_line(self, home: Path) -> None:
        done = oakleaf("run", "hi", "--agent", write(home, "model = 'x'\nprompt = open\n"), home=home)
        assert (done.returncode, "agent.toml is not TOML" in done.stderr, "line 2" in done.stderr) == (
            2,
            True,
            True,
        )

    @pytest.mark.parametrize("name", ["nothing.toml", "nothing.py"])
    def test_a_missing_file_is_no_name_of_an_agent(self, home: Path, name: str) -> None:
        done = oakleaf("run", "hi", "--agent", name, "--model", "scripted:x", home=home)
        assert (done.returncode, f"there is no file {name}" in done.stderr) == (2, True)

    @pytest.mark.attack
    @pytest.mark.parametrize(
        "text",
        [
            "model = 5\npolicy = '{key}'\n",
            "effects = '{key}'\n",
            "prompt = ['{key}']\n",
            "[mcp]\ntrust = '{key}'\n",
            "[limits]\ncost = '{key}'\n",
            "prompt = '{key}\n",
        ],
    )
    def test_a_value_is_not_echoed_for_it_may_be_a_secret(self, home: Path, text: str) -> None:
        key = "hunter2-not-a-known-kind"
        name = write(home, text.replace("{key}", key))
        done = oakleaf("run", "hi", "--agent", name, home=home)
        assert (done.returncode, key in done.stdout + done.stderr) == (2, False)
        change = oakleaf("run", "hi", "--set", f"limits.cost={key}", home=home)
        assert (change.returncode, key in change.stdout + change.stderr) == (2, False)


@pytest.mark.attack
class TestOfAStranger:
    def test_a_bundle_names_no_agent_file_that_is_loaded_or_suggested(self, home: Path) -> None:
        """The importing folder has a Python file of that very name."""
        (home / "evil.py").write_text(
            "import pathlib\npathlib.Path('ran').touch()\nmodel = 'scripted:one.json'\n"
        )
        answers(home, "One.", name="one.json")
        with library.open("memory:") as store:
            spec = {"agent_file": "evil.py", "tools": ["evil.py"], "models": ["scripted:one.json"]}
            session = store.start("evil.py", session_id="ses_evil", model="scripted:one.json", spec=spec)
            session.append(
                [user("go on"), library.assistant("", library.ToolCall("c", "refund", {"order": 1}))]
            )
            session.export(home / "evil.oakleaf")
        assert oakleaf("import", "evil.oakleaf", home=home).returncode == 0
        for words in (
            ("resume", "ses_evil", "--accept-imported"),
            ("resume", "ses_evil", "--accept-imported", "--model", "scripted:one.json"),
            ("run", "hi", "--resume", "ses_evil"),
            ("show", "ses_evil"),
        ):
            done = oakleaf(*words, home=home)
            assert "--agent evil.py" not in done.stdout + done.stderr, words
        assert not (home / "ran").exists()


class TestOtherCommands:
    def test_chat_talks_to_the_agent_of_a_file(self, home: Path) -> None:
        done = oakleaf("chat", "--agent", FILE, home=home, stdin="hi\nmore\n")
        assert done.stdout == "One.\nTwo.\n", done.stderr
        facts = turn_facts(only_session(home))
        assert [fact["trigger"] for fact in facts] == [{"type": "email"}] * 2

    def test_chat_lists_the_approvals_of_the_file(self, home: Path) -> None:
        with Terminal("chat", "--agent", FILE, home=home) as terminal:
            terminal.wait_for("› ")
            terminal.enter("/tools")
            assert "needs approval" in terminal.wait_for("Give the money back")

    def test_replay_takes_the_candidate_of_a_file(self, home: Path) -> None:
        oakleaf("run", "hi", "--agent", FILE, home=home)
        answers(home.parent / "agents", "Another.", name="candidate.json")
        name = write(home.parent / "agents", 'model = "scripted:candidate.json"\n', "candidate.toml")
        done = oakleaf("replay", "latest", "--agent", f"../agents/{name}", "--json", home=home)
        assert (done.returncode, done.json["same"]) == (1, False), done.stderr
        refused = oakleaf("replay", "latest", "--set", "limits.turns=3", home=home)
        assert (refused.returncode, "a replay has no use for it" in refused.stderr) == (2, True)
