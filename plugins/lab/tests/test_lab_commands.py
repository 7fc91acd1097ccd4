"""`oakleaf lab`, through the real entry point, on sessions that a scripted model recorded."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import oakleaf as library
import oakleaf_lab
from oakleaf import Rates, ScriptedModel, ToolCall, assistant
from oakleaf_lab import Lab
from support.fake_providers import Completion, ErrorReply, FakeProviders
from support.foreign_plugins import Site
from support.hostile_text import HOSTILE, assert_harmless
from support.lab_sessions import look_up, track
from support.terminal import CommandResult, Terminal, environment, oakleaf

CASES = 12


def script(path: Path, tool: str = "look_up", text: str = "It is lost.") -> None:
    calls = [{"name": tool, "arguments": {"order": 41}, "id": "c1"}]
    lines = [{"text": "", "calls": calls}, {"text": text}]
    path.write_text(json.dumps({"lines": lines, "rates": {"input": 3, "output": 15}}))


@cache
def store_bytes() -> bytes:
    """Record twelve sessions once per test process, by the model that is `scripted:old.json` in every folder."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "agent.db"
        lines = [assistant(ToolCall("c1", "look_up", {"order": 41})), "It is lost."]
        with library.open(path, synchronous="normal") as store:
            for number in range(CASES):
                old = ScriptedModel(lines, model="scripted:old.json", rates=Rates(input=3, output=15))
                session = store.start("support", session_id=f"ses_case_{number:02d}")
                session.send_sync(f"Where is order {number}?", model=old, tools=[look_up, track])
        return path.read_bytes()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A store of twelve sessions, the model that answered them, one that calls another tool, and a polite one."""
    (tmp_path / "agent.db").touch(0o600)
    (tmp_path / "agent.db").write_bytes(store_bytes())
    script(tmp_path / "old.json")
    script(tmp_path / "new.json", tool="track")
    script(tmp_path / "polite.json", text="I am sorry, it is lost.")
    return tmp_path


SHOP = """
import oakleaf

@oakleaf.tool(effect="read")
def look_up(order: int) -> dict[str, object]:
    \"\"\"Look an order up.\"\"\"
    return {"order": order, "status": "lost"}

@oakleaf.tool(effect="unsafe", dry_run=lambda order: "would refund")
def refund(order: int) -> str:
    \"\"\"Give the money back.\"\"\"
    return "refunded"
"""


def run(home: Path, *arguments: object, **variables: str) -> CommandResult:
    return oakleaf("lab", "run", *arguments, home=home, **{"OAKLEAF_MODEL": "scripted:old.json", **variables})


def test_it_prints_the_plan_then_the_report_and_passes(home: Path) -> None:
    ran = run(home, "agent:support", "--fail-if", "tool_changed > baseline + 5%")
    assert (ran.code, "12 sessions, 12 turns" in ran.err) == (0, True)
    assert "about 48 calls of scripted:" in ran.err
    assert "passed     tool_changed > baseline + 5%: 0.0 %" in ran.out
    assert re.search(r"same +100\.0 % +100\.0 %", ran.out)


def test_a_title_of_several_words_is_a_session_and_not_a_search(home: Path) -> None:
    oakleaf("title", "ses_case_03", "It is lost.", home=home)
    saved = oakleaf("lab", "cohort", "one", "It is lost.", "--json", home=home).json
    assert saved["cohorts"] == [{"name": "one", "sessions": ["ses_case_03"]}]
    found = oakleaf("lab", "cohort", "all", "is lost", "--json", home=home).json
    assert len(found["cohorts"][0]["sessions"]) == CASES


def test_a_change_of_tools_fails_the_gate(home: Path) -> None:
    ran = run(
        home,
        "agent:support",
        "--model",
        f"scripted:{home}/new.json",
        "--fail-if",
        "tool_changed > baseline + 5%",
    )
    assert ran.code == 1
    assert "tools change in 100 % of turns, 0 % by noise alone: +100 points" in ran.out
    assert "failed     tool_changed > baseline + 5%" in ran.out
    assert "oakleaf diff ses_case_00 ses_" in ran.out
    shown = oakleaf("lab", "show", "latest", home=home)
    assert (shown.code, "failed     tool_changed > baseline + 5%: 100.0 %" in shown.out) == (0, True)


def test_json_has_a_schema_version_and_the_same_command_prints_it_again(home: Path) -> None:
    first = run(home, "agent:support", "--model", f"scripted:{home}/polite.json", "--json")
    report = json.loads(first.out)
    assert (report["schema_version"], report["status"], report["exit_code"]) == (1, "complete", 0)
    assert report["lanes"][2]["classes"]["reworded"]["count"] == CASES
    assert len(report["sessions"]) == CASES
    again = run(home, "agent:support", "--model", f"scripted:{home}/polite.json", "--json")
    assert again.out == first.out
    assert "will make  no model calls" in again.err
    data = oakleaf("lab", "show", "latest", "--json", home=home).json
    assert data["report"]["lanes"] == report["lanes"]
    (row,) = oakleaf("lab", "show", "--json", home=home).json["runs"]
    assert row["status"] == "complete"


def test_scorers_of_a_file_are_shown_and_gate(home: Path) -> None:
    (home / "scores.py").write_text(
        "def polite(turn):\n    return 'sorry' in turn.text\n\n\nasync def broken(session):\n    raise ValueError('no')\n"
    )
    how = ("--model", f"scripted:{home}/polite.json", "--set", "score=scores.py")
    ran = run(home, "agent:support", *how, "--fail-if", "polite < baseline + 50%")
    assert ran.code == 0
    assert re.search(r"polite +0 +0 +1\n", ran.out)
    assert "scorer broken had no value in 12 cases (candidate): ValueError: no" in ran.out
    assert "polite in 100 % of turns, 0 % in the baseline: +100 points" in ran.out
    nothing = run(home, "agent:support", "--set", "score=new.json")
    assert (nothing.code, "score new.json" in nothing.err) == (2, True)


def test_a_judge_is_charged_to_a_bucket_of_its_own(home: Path) -> None:
    (home / "judge.json").write_text(
        json.dumps({"lines": ["score: 0.5"], "rates": {"input": 1, "output": 1}})
    )
    ran = run(
        home,
        "ses_case_01",
        "--set",
        f"judge.model=scripted:{home}/judge.json",
        "--set",
        "judge.prompt=Is it polite?",
    )
    assert re.search(r"judge +0\.5 +0\.5 +0\.5", ran.out)
    usage = oakleaf("usage", "--by", "bucket", home=home).out
    assert re.search(r"judge +3 ", usage)


EXPERIMENT = """
cohort = ["agent:support"]
model = "scripted:../new.json"
prompt = "@new.txt"
score = ["checks.py"]
fail_if = ["tool_changed > baseline + 5%"]
repeat = 1

[baseline]
model = "scripted:../old.json"
"""


class TestExperimentFile:
    @pytest.fixture
    def folder(self, home: Path) -> Path:
        folder = home / "tries"
        folder.mkdir()
        (folder / "new.txt").write_text("Be brief.")
        (folder / "checks.py").write_text("def polite(turn):\n    return True\n")
        (folder / "a.toml").write_text(EXPERIMENT)
        return folder

    def test_it_says_what_flags_say(self, home: Path, folder: Path) -> None:
        ran = run(home, "tries/a.toml", "--json")
        assert (ran.code, ran.json["status"], "will make  no model calls" in ran.err) == (
            1,
            "complete",
            False,
        )
        words = ("--model", "scripted:tries/../new.json", "--prompt", "Be brief.")
        words += ("--set", "baseline.model=scripted:tries/../old.json", "--set", "score=tries/checks.py")
        again = run(home, "agent:support", *words, "--fail-if", "tool_changed > baseline + 5%", "--json")
        assert (again.json, "will make  no model calls" in again.err) == (ran.json, True)

    def test_flags_and_cohorts_come_before_it(self, home: Path, folder: Path) -> None:
        how = ("--model", "scripted:polite.json", "--prompt", "Be kind.", "--set", "score=tries/checks.py")
        ran = run(home, "tries/a.toml", "ses_case_03", *how, "--json")
        assert ran.code == 0, ran.err
        assert [one["session_id"] for one in ran.json["sessions"]] == ["ses_case_03"]

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("repeat = 1", "repaet = 1", "a.toml, line 7: there is no key repaet; did you mean repeat?"),
            ("repeat = 1", "repeat = 0", "line 7: repeat is invalid; expected a whole number from 1 on"),
            ("@new.txt", "new.txt", "prompt: new.txt is a file; write @new.txt"),
            ("scripted:../new.json", "nobody", "model nobody: there is no model with this name"),
            ('cohort = ["agent:support"]', "", "name a COHORT, or an EXPERIMENT.toml that has one"),
        ],
    )
    def test_a_wrong_key_is_refused_with_its_line(
        self, home: Path, folder: Path, old: str, new: str, words: str
    ) -> None:
        (folder / "a.toml").write_text(EXPERIMENT.replace(old, new))
        refused = run(home, "tries/a.toml")
        assert (refused.code, words in refused.err) == (2, True), refused.err


def test_cohorts_are_saved_listed_and_removed(home: Path) -> None:
    saved = oakleaf("lab", "cohort", "few", "agent:support", "--sample", "3", home=home)
    assert saved.out == "saved 3 sessions as few; oakleaf lab run few replays them\n"
    assert re.search(r"few +3", oakleaf("lab", "cohort", home=home).out)
    assert "3 sessions, 3 turns" in run(home, "few").err
    planned = oakleaf("lab", "cohort", "few", "--rm", home=home)
    assert (planned.code, "few  (" in planned.err, "--yes" in planned.err) == (1, True, True)
    assert oakleaf("lab", "cohort", "few", "--rm", "--yes", home=home).code == 0
    assert "no saved cohort" in oakleaf("lab", "cohort", home=home).err
    assert re.search(r"lab_\w+ +\S+ \S+ +complete +lab few", oakleaf("lab", "show", home=home).out)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["agent:nobody"], 2, "no session of agent:nobody can be replayed; oakleaf search shows"),
        (["ses_nowhere"], 2, "no session 'ses_nowhere'"),
        (["agent:support", "--model", "gpt"], 2, "there is no model with this name"),
        (["agent:support", "--model", "openai:x"], 4, "OPENAI_API_KEY"),
        (["agent:support", "--fail-if", "tools > 1"], 2, "metrics are same, reworded"),
        (
            ["agent:support", "--fail-if", "tool_changed >"],
            2,
            "write one like 'calls:refund > baseline + 5%'",
        ),
        (["agent:support", "--set", "mode=strict", "--prompt", "x"], 2, "leave out --model, --prompt"),
        (["agent:support", "--max-cost", "0.0000001"], 4, "larger --max-cost"),
        (["agent:support", "--set", "judge.prompt=x"], 2, "judge.prompt needs judge.model"),
        (["agent:support", "--prompt", "@nowhere.txt"], 2, "@FILE reads the text from an existing file"),
        (["ses_case_01", "--fail-if", "cost > 1.2x"], 4, "too few data: 1 session, 10 are needed"),
    ],
)
def test_bad_input_says_what_to_do(home: Path, arguments: list[str], code: int, words: str) -> None:
    ran = run(home, *arguments, OPENAI_API_KEY="")
    assert (ran.code, words in ran.out + ran.err) == (code, True), ran.out + ran.err


@pytest.mark.parametrize("page", ["README.md", "docs/lab.md", "docs/cli.md", "Makefile"])
def test_the_command_that_people_copy_runs(home: Path, page: str) -> None:
    (home / "new.txt").write_text("Be strict.")
    (home / "shop.py").write_text(SHOP)
    root = Path(__file__).parents[3]
    if page == "Makefile":
        how = [
            "COHORT=agent:support after:7d",
            "PROMPT=@new.txt",
            "TOOLS=shop.py",
            "GATE=calls:refund > baseline + 5%",
        ]
        text = subprocess.run(
            ["make", "-n", "lab", *how], cwd=root, capture_output=True, text=True, check=True
        ).stdout
    else:
        text = (root / page).read_text()
    lines = re.findall(r"oakleaf (lab run [^#\n]*--fail-if [^#\n]*)", text.replace("\\\n", " "))
    commands = [line for line in lines if "@new.txt" in line]
    assert commands
    for line in commands:
        ran = oakleaf(*shlex.split(line), "--set", "baseline.model=scripted:old.json", home=home)
        assert (ran.code, "passed     calls:refund > baseline + 5%" in ran.out) == (0, True), (
            ran.err + ran.out
        )


def test_every_byte_of_the_prompt_is_tested(home: Path) -> None:
    (home / "new.txt").write_bytes(b" Be strict.\r\nAlways.\n\n")
    ran = run(home, "ses_case_00", "--prompt", "@new.txt", "--json")
    assert ran.code == 0, ran.err
    (session,) = ran.json["sessions"]
    with library.open(home / "agent.db") as store:
        assert store.session(session["candidate"][0]).context().system == (" Be strict.\r\nAlways.\n\n",)
        assert store.session(session["baseline"][0]).context().system == ()


def test_before_the_first_run_show_says_how_to_make_one(home: Path) -> None:
    shown = oakleaf("lab", "show", home=home)
    assert (shown.code, shown.err) == (0, "there is no lab run yet; oakleaf lab run QUERY makes one\n")


class TestRealModels:
    @pytest.fixture
    def recorded(self, tmp_path: Path) -> Path:
        with library.open(tmp_path / "agent.db", synchronous="normal") as store:
            for number in range(2):
                session = store.start("support", session_id=f"ses_case_{number:02d}")
                session.send_sync(f"Hello {number}.", model=ScriptedModel(["Hi."]))
        return tmp_path

    def arguments(self, fake: FakeProviders) -> list[str]:
        return [
            "agent:support",
            "--set",
            f"baseline.model=openai-chat:m@{fake.url}/v1",
            "--prompt",
            "Be brief.",
        ]

    def test_money_is_not_spent_without_consent(self, recorded: Path) -> None:
        with FakeProviders() as fake:
            ran = run(recorded, *self.arguments(fake), OPENAI_API_KEY="sk-test")
        assert ran.code == 4
        assert "about 4 calls of openai-chat:m" in ran.err
        assert "pass --yes" in ran.err
        assert fake.requests == []

    def test_the_candidate_is_sent_its_prompt_and_the_baseline_is_not(self, recorded: Path) -> None:
        with FakeProviders(*[Completion("Hi.")] * 4) as fake:
            ran = run(
                recorded, *self.arguments(fake), "--yes", "--set", "workers=1", OPENAI_API_KEY="sk-test"
            )
        assert ran.code == 0, ran.err
        systems = ["Be brief." in json.dumps(request.body) for request in fake.requests]
        assert sorted(systems) == [False, False, True, True]

    def test_one_that_cannot_be_reached_is_asked_again_by_the_same_command(self, recorded: Path) -> None:
        refused = ErrorReply(401, "no such key")
        with FakeProviders(Completion("Hi."), refused, *[Completion("Hi.")] * 3) as fake:
            how = [*self.arguments(fake), "--yes", "--set", "workers=1", "--json"]
            first = run(recorded, *how, OPENAI_API_KEY="sk-test")
            second = run(recorded, *how, OPENAI_API_KEY="sk-test")
        assert first.code == 4, first.err
        assert "the same command continues where it stopped" in first.err
        assert second.code == 0, second.err
        assert len(fake.requests) == 5


def test_ctrl_c_ends_it_cleanly_and_the_same_command_goes_on(home: Path) -> None:
    """The answers in flight are stored, so the ledger has every call once."""
    (home / "slow.py").write_text("import time\n\n\ndef slow(turn):\n    time.sleep(0.1)\n    return True\n")
    changes = ("sample=4", "score=slow.py", "workers=1", "baseline.model=scripted:old.json")
    arguments = ("lab", "run", "agent:support", *(word for one in changes for word in ("--set", one)))
    with Terminal(*arguments, home=home) as terminal:
        terminal.wait_for("replays")
        terminal.interrupt("stopped; the same command continues where it stopped")
        assert "Traceback" not in terminal.screen
    ran = oakleaf(*arguments, home=home)
    assert ran.code == 0
    with library.open(home / "agent.db") as store:
        calls = [
            call
            for row in store.all_sessions(relation="replay")
            for call in store.session(row.session_id).model_calls()
        ]
    assert len(calls) == 4 * 2 * 2
    assert all(call.price is not None for call in calls)


def test_the_command_after_promote_can_be_typed_whatever_the_folder_is_called(home: Path) -> None:
    done = oakleaf("lab", "promote", "ses_case_00", "my cases", home=home)
    assert "run it with: oakleaf test 'my cases'" in done.err


def test_a_report_overwrites_no_file(home: Path) -> None:
    oakleaf("lab", "run", "ses_case_00", "--set", "mode=strict", home=home)
    (home / "present").write_text("mine")
    done = oakleaf("lab", "show", "latest", "--output", "present", home=home)
    assert (done.code, "the name of a new file in a folder that exists" in done.err) == (2, True)
    assert (home / "present").read_text() == "mine"


def test_promote_completes_sessions_of_the_store_that_is_typed(home: Path) -> None:
    """Within `oakleaf lab` those of the default store were offered."""
    words = f"oakleaf --store {home / 'agent.db'} lab promote ses_case_03"
    variables = {"COMP_WORDS": words, "COMP_CWORD": "5", "_OAKLEAF_COMPLETE": "bash_complete"}
    assert oakleaf(store=home / "none.db", **variables).out == "plain,ses_case_03\n"


def test_the_plan_of_a_purge_names_the_lab_runs_that_quote_it(store_path: Path) -> None:
    with library.open(store_path) as store:
        answers = ScriptedModel(lambda request: "It is lost.", model="m")
        run_id = Lab(store, "ses_case", baseline_model=answers).run_sync().run_id
    assert oakleaf("rm", "ses_case", "--yes", store=store_path).code == 0
    done = oakleaf("purge", "ses_case", "--with-forks", "--yes", "--json", store=store_path)
    assert f"{run_id}  lab ses_case  (lab run) stays and repeats parts of it" in done.err
    assert done.json["surviving"] == [run_id]
    assert oakleaf("rm", run_id, "--yes", store=store_path).code == 0
    assert oakleaf("purge", run_id, "--yes", store=store_path).code == 0
    assert b"Where is order 41?" not in store_path.read_bytes()


def test_the_lab_asks_the_model_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text(json.dumps(["One."]))
    with library.open(tmp_path / "agent.db") as store:
        session = store.start(session_id="ses_own")
        session.send_sync("hi", model=ScriptedModel(["One."], model="scripted:script.json"))
    words = ["lab", "run", "ses_own", "--prompt", "x", "--yes"]
    done = oakleaf(*words, home=tmp_path)
    assert (done.code, "scripted:script.json" in done.err, "--set baseline.model=" in done.err) == (
        4,
        True,
        True,
    )
    done = oakleaf(*words, "--set", "baseline.model=scripted:script.json", home=tmp_path)
    assert done.code == 0, done.err


@pytest.mark.attack
def test_the_lab_sends_nothing_to_an_address_that_a_session_names(tmp_path: Path) -> None:
    with FakeProviders() as stranger, library.open(tmp_path / "agent.db") as store:
        address = stranger.url_for("openai-chat").replace("127.0.0.1", "0.0.0.0")
        session = store.start(session_id="ses_evil", model=f"openai-chat:m@{address}")
        session.append([library.user("the history"), assistant("Yes.")])
        words = ["lab", "run", "ses_evil", "--prompt", "Be brief.", "--yes"]
        done = oakleaf(*words, home=tmp_path, OPENAI_API_KEY="sk-test", NO_PROXY="0.0.0.0,127.0.0.1")
        assert (done.code != 0, stranger.requests) == (True, []), done.err
        assert "was not asked: its address" in done.err


@pytest.mark.attack
def test_a_list_of_runs_prints_no_control_of_a_title(home: Path) -> None:
    run(home, "ses_case_00", "--set", "mode=strict")
    with library.open(home / "agent.db") as store:
        (row,) = oakleaf_lab.runs(store)
        store.session(row.session_id).title(f"owned {HOSTILE}")
    with Terminal("lab", "show", home=home, OAKLEAF_PAGER="") as terminal:
        terminal.wait()
        assert "owned" in terminal.raw
        assert_harmless(terminal.raw)


ALONE = """
import sys
from oakleaf import plugins

OTHERS = ("postgres", "server", "importers", "record", "mcp", "workspace", "frameworks")
sys.modules.update({f"oakleaf_{name}": None for name in OTHERS})
installed = plugins.providers()
plugins.providers = lambda: tuple(one for one in installed if one.distribution.removeprefix("oakleaf-") not in OTHERS)
from oakleaf.cli.entry import run
run()
"""


class TestAlone:
    """The lab, with the library and no other plugin."""

    def run(self, home: Path, *words: str, **variables: str) -> CommandResult:
        done = subprocess.run(
            [sys.executable, "-c", ALONE, *words],
            cwd=home,
            env=environment(home) | variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return CommandResult(words, done.returncode, done.stdout, done.stderr)

    def test_the_lab_needs_no_other_plugin(self, home: Path) -> None:
        ran = self.run(home, "lab", "run", "agent:support", "--set", "mode=strict", "--json")
        assert (ran.code, ran.json["status"]) == (0, "complete"), ran.err
        assert self.run(home, "lab", "promote", "ses_case_00", "cases").code == 0
        assert "1 passed" in self.run(home, "test", "cases").err

    def test_a_page_without_the_viewer_names_what_to_install(self, home: Path) -> None:
        self.run(home, "lab", "run", "ses_case_00", "--set", "mode=strict")
        shown = self.run(home, "lab", "show", "latest", "--output", "lab.html")
        assert (shown.code, "oakleaf[server]" in shown.err or "plugins/server" in shown.err) == (2, True)
        assert not (home / "lab.html").exists()

    def test_an_html_export_of_a_stranger_that_has_no_pages_is_named(self, home: Path) -> None:
        Site(home / "site").install(
            "plainhtml", {"exports": {"html": "plainhtml:html"}}, {"plainhtml.py": "html = 1\n"}
        )
        self.run(home, "lab", "run", "ses_case_00", "--set", "mode=strict")
        shown = self.run(home, "lab", "show", "latest", "--output", "lab.html", PYTHONPATH=str(home / "site"))
        assert (shown.code, "plainhtml 1.0 cannot be used: it makes no files of pages" in shown.err) == (
            1,
            True,
        )


class TestScorersOfPlugins:
    @pytest.fixture
    def site(self, home: Path) -> Site:
        site = Site(home / "site")
        scorers = {"polite": "manners:polite", "rude": "manners:rude", "lost": "nowhere:lost"}
        files = {"manners.py": "def polite(turn):\n    return 'sorry' in turn.text\n\n\nrude = 1\n"}
        site.install("manners", {"scorers": scorers}, files)
        return site

    def score(self, site: Site, name: str) -> CommandResult:
        store = site.folder.parent / "agent.db"
        return site.run(
            *("--store", str(store), "lab", "run", "agent:support"),
            *("--set", "mode=strict", "--set", f"score={name}"),
        )

    def test_a_scorer_of_a_plugin_is_found_by_its_name(self, site: Site) -> None:
        scored = self.score(site, "polite")
        assert scored.code == 0, scored.err
        assert re.search(r"polite +0 +0 +0\n", scored.out)

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("rude", "it is no function whose parameter is named turn or session"),
            ("lost", "No module named 'nowhere'"),
        ],
    )
    def test_a_broken_scorer_of_a_plugin_is_named(self, site: Site, name: str, words: str) -> None:
        broken = self.score(site, name)
        assert (broken.code, f"'{name}' of manners 1.0" in broken.err, words in broken.err) == (1, True, True)
        assert self.score(site, "polite").code == 0

    def test_a_source_without_scorers_names_those_of_plugins(self, site: Site) -> None:
        (site.folder.parent / "none.py").write_text("")
        missing = self.score(site, str(site.folder.parent / "none.py"))
        assert (missing.code, "scorers of plugins: lost, polite, rude" in missing.err) == (2, True)
