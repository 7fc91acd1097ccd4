"""`oakleaf config`, options and the flags of the bare command: what the user has set once, and what comes first."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf.cli.config import Config, complete_model
from oakleaf.cli.main import outcome
from oakleaf.core.context import fold_settings

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line in this process, in a folder of its own; return exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OAKLEAF_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("OAKLEAF_STORE", str(tmp_path / "s.db"))
    monkeypatch.delenv("OAKLEAF_MODEL", raising=False)
    (tmp_path / "one.json").write_text(json.dumps(["One.", "Two.", "Three."]))
    (tmp_path / "other.json").write_text(json.dumps(["Other.", "Others."]))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = outcome(list(arguments))
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def _options() -> dict[str, object] | None:
    with library.open("s.db") as store:
        rows = store.sessions().sessions
        return fold_settings(store.session(rows[0].session_id).path()).options


class TestFile:
    def test_a_value_and_the_aliases_are_also_printed_as_json(self, cli: Cli) -> None:
        code, out, _ = cli("config", "model", "--json")
        assert (code, json.loads(out)) == (1, {"schema_version": 1, "key": "model", "value": None})
        cli("config", "aliases.fast", "scripted:one.json")
        cli("config", "model", "fast")
        assert json.loads(cli("config", "model", "--json")[1])["value"] == "fast"
        assert json.loads(cli("config", "aliases", "--json")[1])["value"] == {"fast": "scripted:one.json"}

    def test_only_its_owner_may_read_it_and_a_link_to_it_stays(self, cli: Cli, tmp_path: Path) -> None:
        """It may have a password in the URL of the store."""
        real = tmp_path / "dotfiles.toml"
        (tmp_path / "config.toml").symlink_to(real)
        assert cli("config", "store", "s.db")[0] == 0
        assert (real.stat().st_mode & 0o777, (tmp_path / "config.toml").is_symlink()) == (0o600, True)

    def test_a_place_where_it_cannot_be_written_is_named(
        self, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("OAKLEAF_CONFIG", str(tmp_path / "file" / "config.toml"))
        code, _, err = cli("config", "store", "s.db")
        assert (code, "name another" in err) == (2, True)

    def test_values_are_set_shown_read_and_removed_and_comments_stay(self, cli: Cli, tmp_path: Path) -> None:
        assert cli("config")[1:] == ("", f"{tmp_path}/config.toml (not there yet)\n")
        (tmp_path / "config.toml").write_text("# mine\n\n[aliases]\n# slow ones\nbig = 'scripted:one.json'\n")
        assert cli("config", "aliases.fast", "scripted:one.json")[0] == 0
        assert cli("config", "model", "fast", "big")[0] == 0
        assert cli("config", "options.fast.stop", '["a", "b"]')[0] == 0
        assert cli("config", "options.scripted:one.json.temperature", "0")[0] == 0
        assert cli("config", "options.scripted:one.json.temperature", "1")[0] == 0
        assert cli("config", "store", "s.db")[0] == 0
        assert cli("config")[1].splitlines() == [
            'model = ["fast", "big"]',
            "store = s.db",
            "aliases.big = scripted:one.json",
            "aliases.fast = scripted:one.json",
            'options.fast.stop = ["a", "b"]',
            "options.scripted:one.json.temperature = 1",
        ]
        report = json.loads(cli("config", "--json")[1])
        assert (report["models"], report["aliases"]["big"]) == (["fast", "big"], "scripted:one.json")
        assert cli("config", "options.fast.stop")[:2] == (0, '["a", "b"]\n')
        for key in ("model", "store", "aliases.fast", "options.fast.stop"):
            assert cli("config", key, "--unset")[0] == 0
            assert cli("config", key)[0] == 1
            assert cli("config", key, "--unset")[0] == 1
        text = (tmp_path / "config.toml").read_text()
        assert text.startswith("# mine\n")
        assert "# slow ones\nbig = 'scripted:one.json'\n" in text
        assert cli("config", "aliases")[1] == "aliases.big = scripted:one.json\n"

    @pytest.mark.parametrize(
        ("line", "key", "shown"),
        [
            (
                'store = "postgresql://bob:hunter2-horse@h/db?sslpassword=hunter2-horse"',
                "store",
                "postgresql://bob@h/db",
            ),
            (
                '[options."openai:m"]\nuser = "sk-ant-hunter2-horse-0123456789abcdefghij"',
                "options.openai:m.user",
                "[",
            ),
            ('model = "openai:sk-ant-hunter2-horse-0123456789abcdefghij"', "model", "openai:["),
        ],
    )
    def test_a_secret_in_it_is_never_printed(
        self, cli: Cli, tmp_path: Path, line: str, key: str, shown: str
    ) -> None:
        (tmp_path / "config.toml").write_text(f"{line}\n")
        for command in (
            ("config",),
            ("config", "--json"),
            ("config", key),
            ("config", "x", "y"),
        ):
            _, out, err = cli(*command)
            assert "hunter2" not in out + err, command
        assert cli("config", key)[1].startswith(shown)

    @pytest.mark.parametrize(
        ("option", "problem"),
        [
            ('temperature = "hot"', "temperature"),
            ("temprature = 1", "temprature"),
            ("max_tokens = -1", "max_tokens"),
        ],
    )
    def test_an_option_that_a_model_does_not_have_is_named_with_file_and_line(
        self, cli: Cli, tmp_path: Path, option: str, problem: str
    ) -> None:
        text = f"[aliases]\nfast = 'openai:m'\n\n[options.fast]\n{option}\n"
        (tmp_path / "config.toml").write_text(text)
        code, _, err = cli("run", "hi", "--model", "fast")
        assert (code, f"{tmp_path}/config.toml, line 5: " in err, problem in err) == (2, True, True), err
        assert not (tmp_path / "s.db").exists()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("model = \n", "Invalid value (at line 1, column 9)"),
            ("\nmodel = 7\n", "config.toml, line 2: model is invalid; expected the name of a model"),
            ("store = []\n", "line 1: store is invalid; expected a path or a URL"),
            ("[aliases]\na = 'x:y'\nb = 'z'\n", "line 3: aliases.b is invalid; expected the name of a model"),
            (
                "[aliases]\n'a:b' = 'x:y'\n",
                "line 2: aliases.a:b is invalid; expected an alias without a colon",
            ),
            ("# x\n[options]\nfast = 1\n", "line 3: options.fast is invalid; expected a table of options"),
            ("\n\n[modles]\n", "line 3: modles is invalid; expected model, store, by, aliases.NAME, options"),
        ],
    )
    def test_what_is_wrong_in_the_file_is_told_with_its_line(
        self, cli: Cli, tmp_path: Path, text: str, message: str
    ) -> None:
        (tmp_path / "config.toml").write_text(text)
        for command in (("config",), ("run", "hi"), ("config", "store", "x.db")):
            code, _, err = cli(*command)
            assert code == 2
            assert message in err
            assert "config.toml" in err
        assert (tmp_path / "config.toml").read_text() == text
        assert not (tmp_path / "s.db").exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("modle", "x"), "there is no key 'modle'; expected model, store"),
            (("model", "fast"), "there is no model with this name"),
            (("aliases.a", "nonsense"), "there is no model with this name"),
            (("aliases.a:b", "scripted:x"), "aliases.a:b is invalid"),
            (("aliases.nobody",), "aliases.nobody is not set"),
            (("options.fast.seed", "1"), "'fast' is neither a model nor an alias"),
            (("options.anthropic:m.seed", "1"), "anthropic has no option 'seed'"),
            (("options.gemini:m.temperature", "9"), "temperature=9 is invalid for gemini"),
            (("options.gemini:m.temperature", "null"), "oakleaf config options.gemini:m.temperature --unset"),
        ],
    )
    def test_a_value_that_no_command_could_use_is_refused(
        self, cli: Cli, tmp_path: Path, arguments: tuple[str, ...], message: str
    ) -> None:
        code, _, err = cli("config", *arguments)
        assert code != 0
        assert message in err
        assert not (tmp_path / "config.toml").exists()

    def test_a_value_that_is_not_on_one_line_is_left_to_its_author(self, cli: Cli, tmp_path: Path) -> None:
        text = "aliases = { a = 'scripted:x' }\n"
        (tmp_path / "config.toml").write_text(text)
        code, _, err = cli("config", "aliases.b", "scripted:y")
        assert code == 2
        assert "config.toml" in err
        assert (tmp_path / "config.toml").read_text() == text


class TestPrecedence:
    def test_a_flag_comes_before_the_environment_and_that_before_the_file(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cli("config", "aliases.fast", "scripted:one.json")
        cli("config", "aliases.slow", "scripted:other.json")
        cli("config", "model", "fast")
        assert cli("run", "hi")[1] == "One.\n"
        monkeypatch.setenv("OAKLEAF_MODEL", "slow")
        assert cli("run", "hi")[1] == "Other.\n"
        assert cli("run", "hi", "--model", "fast")[1] == "One.\n"
        assert cli("run", "on", "--resume", "latest")[1] == "Two.\n", "the session's own model"
        cli("config", "store", "t.db")
        assert json.loads(cli("ls", "--json")[1])["sessions"], "the environment names another store"
        monkeypatch.delenv("OAKLEAF_STORE")
        assert cli("run", "hi", "--model", "slow")[1] == "Other.\n"
        assert len(json.loads(cli("ls", "--json")[1])["sessions"]) == 1
        assert Path("t.db").exists()

    def test_default_options_fill_what_neither_session_nor_flag_says(self, cli: Cli) -> None:
        cli("config", "aliases.fast", "scripted:one.json")
        cli("config", "model", "fast")
        cli("config", "options.fast.temperature", "0")
        cli("config", "options.scripted:one.json.max_tokens", "50")
        assert cli("run", "hi", "--set", "options.temperature=1", "--set", "options.stop=END")[0] == 0
        assert _options() == {"temperature": 1, "max_tokens": 50, "stop": "END"}
        assert cli("--resume", "latest", "on", "--set", "options.stop=null")[0] == 0
        assert _options() == {"temperature": 1, "max_tokens": 50}

    def test_aliases_are_completed(self, cli: Cli) -> None:
        cli("config", "aliases.fast", "scripted:one.json")
        cli("config", "aliases.slow", "scripted:other.json")
        assert [item.value for item in complete_model(None, None, "f")] == ["fast"]  # type: ignore[arg-type]


class TestVendorNames:
    @pytest.mark.parametrize(
        ("typed", "name"),
        [
            ("claude-sonnet-4-20250514", "anthropic:claude-sonnet-4-20250514"),
            ("gpt-5", "openai:gpt-5"),
            ("o3-mini", "openai:o3-mini"),
            ("gemini-3-pro", "gemini:gemini-3-pro"),
            ("openai-chat:gpt-x@http://127.0.0.1:1/v1", "openai-chat:gpt-x@http://127.0.0.1:1/v1"),
            ("mine", "mine"),
        ],
    )
    def test_a_vendors_own_name_is_enough(self, typed: str, name: str) -> None:
        assert Config(Path("c.toml")).resolve([typed]) == (name,)

    def test_an_alias_comes_first_and_options_apply_to_either_form(self) -> None:
        config = Config(Path("c.toml"), aliases={"gpt-5": "scripted:x"}, options={"claude-x": {"seed": 1}})
        assert config.resolve(["gpt-5"]) == ("scripted:x",)
        assert config.default_options("anthropic:claude-x") == {"seed": 1}


class TestOptions:
    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ("temprature=0", "scripted has no option 'temprature'; did you mean temperature?"),
            ("temperature=hot", "temperature='hot' is invalid for scripted; expected a number"),
            ("temperature=9", "temperature=9 is invalid for scripted; expected a number from 0 to 2"),
            ("temperature", "--set needs KEY=VALUE"),
            ("temperature=", "temperature='' is invalid for scripted; expected a number"),
        ],
    )
    def test_one_that_is_refused_is_a_usage_error_and_leaves_nothing_behind(
        self, cli: Cli, option: str, message: str
    ) -> None:
        code, _, err = cli("run", "hi", "--model", "scripted:one.json", "--set", f"options.{option}")
        assert code == 2
        assert message in err
        assert not Path("s.db").exists()

    def test_every_verb_that_runs_or_forks_takes_them(self, cli: Cli) -> None:
        model = ("--model", "scripted:one.json")
        assert cli("run", "hi", *model, "--set", "options.seed=1")[0] == 0
        assert _options() == {"seed": 1}
        assert cli("fork", "latest", "-o", "seed=2", "-o", "effort=low")[0] == 0
        assert _options() == {"seed": 2, "effort": "low"}
        assert cli("--copy", "latest", "--to-point", "3", "again", *model, "--set", "options.seed=3")[0] == 0
        assert _options() == {"seed": 3}
        with library.open("s.db") as store:
            store.session(store.sessions().sessions[0].session_id).append([library.user("open")])
        assert cli("resume", "latest", *model, "--set", "options.temperature=0")[:2] == (0, "Three.\n")
        assert _options() == {"seed": 3, "temperature": 0}
        code, out, _ = cli("replay", "latest", *model, "--set", "options.temperature=1", "--json")
        assert code == 0
        with library.open("s.db") as store:
            assert fold_settings(store.session(json.loads(out)["replay"]).path()).options == {
                "seed": 3,
                "temperature": 1,
            }
        assert cli("fork", "latest", "-o", "nonsense=1")[0] == 2


class TestBareCommand:
    def test_the_flags_of_run_need_no_command(self, cli: Cli) -> None:
        cli("config", "aliases.one", "scripted:one.json")
        cli("run", "hi", "--model", "one")
        assert cli("--resume", "latest", "on")[1] == "Two.\n"
        assert cli("--store", "s.db", "--overwrite=latest", "--from-point", "2", "else")[1] == "Two.\n"
        assert cli("and on", "--copy", "latest")[1] == "Three.\n"
        assert len(json.loads(cli("ls", "--json")[1])["sessions"]) == 2
        assert "unknown command 'and'" in cli("and", "on")[2]
        code, _, err = cli("--to-point", "3")
        assert code == 2
        assert "--to-point" in err


class TestChat:
    """[chat]: what an agent runs with that is started here, unless a flag or the session says otherwise."""

    @pytest.fixture
    def chat(self, cli: Cli, tmp_path: Path) -> Callable[[str], None]:
        return lambda lines: (tmp_path / "config.toml").write_text(f"[chat]\n{lines}\n") and None

    def test_a_flag_wins_over_the_configured_cap_of_turns(
        self, cli: Cli, chat: Callable[[str], None]
    ) -> None:
        chat('max_turns = 1\ndefault_model = "scripted:one.json"')
        assert cli("run", "hi")[:2] == (0, "One.\n")
        code, out, err = cli("run", "more", "--resume", "latest")
        assert (code, out) == (1, "")
        assert (
            "had its 1 turn; raise it with --set limits.turns=N, for good with oakleaf config chat.max_turns N"
            in err
        )
        assert cli("run", "more", "--resume", "latest", "--set", "limits.turns=2")[:2] == (0, "Two.\n")
        assert cli("config", "chat.max_turns", "3")[0] == 0
        assert cli("run", "more", "--resume", "latest")[:2] == (0, "Three.\n")

    def test_the_last_turns_before_the_cap_are_announced_with_the_setting(
        self, cli: Cli, chat: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chat('max_turns = 10\ndefault_model = "scripted:many.json"')
        (tmp_path / "many.json").write_text(json.dumps([f"{n}." for n in range(1, 12)]))
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"say {n}\n" for n in range(1, 10))))
        code, out, err = cli("chat")
        assert (code, out.split()) == (0, [f"{n}." for n in range(1, 10)])
        assert "this is turn 9 of at most 10; raise it with --set limits.turns=N" in err
        assert "this is turn 8" not in err
        code, out, err = cli("run", "say 10", "--resume", "latest")
        assert (code, out, "this is turn 10 of at most 10" in err) == (0, "10.\n", True)

    def test_the_limit_of_a_session_comes_before_the_default(
        self, cli: Cli, chat: Callable[[str], None]
    ) -> None:
        chat("max_turns = 1")
        with library.open("s.db") as store:
            store.start("a", model="scripted:one.json").set(limits=library.Limits(turns=2))
        assert cli("run", "hi", "--resume", "latest", "--model", "scripted:one.json")[0] == 0
        assert cli("run", "hi", "--resume", "latest", "--model", "scripted:one.json")[0] == 0
        code, _, err = cli("run", "hi", "--resume", "latest", "--model", "scripted:one.json")
        assert (code, "had its 2 turns" in err) == (1, True)

    def test_the_rounds_and_the_messages_of_a_turn_have_defaults(
        self, cli: Cli, chat: Callable[[str], None], tmp_path: Path
    ) -> None:
        chat("rounds = 2\nmax_messages = 4")
        call = {"calls": [{"name": "look", "arguments": {}}]}
        (tmp_path / "loop.json").write_text(json.dumps([call] * 9))
        (tmp_path / "shop.py").write_text(
            "import oakleaf\n@oakleaf.tool(effect='read')\ndef look() -> str:\n    'Look.'\n    return 'x'\n"
        )
        model = ("--model", "scripted:loop.json", "--set", "tools=shop.py")
        code, _, err = cli("run", "hi", *model)
        assert (code, "called the model 2 times" in err, _max_messages()) == (1, True, 4)
        code, _, err = cli("run", "hi", *model, "--set", "limits.rounds=3", "--set", "limits.messages=6")
        assert (code, "called the model 3 times" in err, _max_messages()) == (1, True, 6)

    @pytest.mark.parametrize("cost", ["max_cost = 0.5", "max_cost_microcents = 50_000_000"])
    def test_the_cost_of_a_session_has_a_default(
        self, cli: Cli, chat: Callable[[str], None], tmp_path: Path, cost: str
    ) -> None:
        script = {"lines": ["One.", "Two.", "Three."], "rates": {"input": 1e6, "output": 1e6}}
        (tmp_path / "dear.json").write_text(json.dumps(script))
        chat(f'{cost}\ndefault_model = "scripted:dear.json"')
        assert cli("run", "hi")[0] == 0
        code, _, err = cli("run", "more", "--resume", "latest")
        assert (code, "of $0.50 is spent; raise it with --set limits.cost" in err) == (1, True)
        assert cli("run", "more", "--resume", "latest", "--set", "limits.cost=1000")[0] == 0
        chat(f'{cost}\non_exceed = "warn"\ndefault_model = "scripted:dear.json"')
        code, _, err = cli("run", "more", "--resume", "latest")
        assert (code, "of $0.50 is spent" in err) == (0, True)

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("max_turn = 5", "one of default_model, max_turns, rounds, max_messages, max_cost"),
            ('max_turns = "5"', "a number of turns"),
            ("max_turns = true", "a number of turns"),
            ("max_turns = -1", "a number of turns"),
            ("max_messages = 0", "a number of messages from 1 on"),
            ("max_cost = nan", "an amount of dollars"),
            ("max_cost = 0", "an amount of dollars"),
            ("max_cost = 1\nmax_cost_microcents = 1", "one of max_cost and max_cost_microcents"),
            ('on_exceed = "ask"', "stop or warn"),
            ('on_exceed = ["stop"]', "stop or warn"),
            ('fs_scope = "all"', "sandboxed, project or full"),
            ('allowed_commands = "git"', "a list of commands"),
            ("default_model = 5", "the name of a model, or a list of names"),
        ],
    )
    def test_what_is_wrong_in_it_is_named_with_the_file_and_what_is_expected(
        self, cli: Cli, chat: Callable[[str], None], tmp_path: Path, line: str, expected: str
    ) -> None:
        chat(line)
        code, _, err = cli("run", "hi", "--model", "scripted:one.json")
        assert code == 2
        assert (
            f"{tmp_path}/config.toml, line {2 + line.count(chr(10))}: chat.{line.splitlines()[-1].split()[0]} is invalid"
            in err
        )
        assert expected in err
        assert not (tmp_path / "s.db").exists()

    def test_it_is_set_shown_and_removed_by_the_command(self, cli: Cli, tmp_path: Path) -> None:
        assert cli("config", "chat.max_cost", "0.5")[0] == 0
        assert cli("config", "chat.allowed_commands", "git", "ls")[0] == 0
        assert cli("config", "chat.fs_scope", "project")[0] == 0
        assert cli("config", "chat.default_model", "scripted:one.json")[0] == 0
        assert cli("config")[1].splitlines() == [
            "chat.max_cost = 0.5",
            'chat.allowed_commands = ["git", "ls"]',
            "chat.fs_scope = project",
            "chat.default_model = scripted:one.json",
        ]
        before = (tmp_path / "config.toml").read_text()
        for wrong in (("chat.max_turns", "many"), ("chat.turns", "5"), ("chat.max_turns", "5", "6")):
            assert cli("config", *wrong)[0] == 2
        assert (tmp_path / "config.toml").read_text() == before
        assert cli("config", "chat.max_cost", "--unset")[0] == 0
        assert cli("config", "chat.max_cost")[0] == 1


class TestContext:
    """What a session records of where it was started."""

    def test_it_is_recorded_filled_into_the_prompt_and_needs_no_tools(self, cli: Cli, tmp_path: Path) -> None:
        about = ("active_file=a.py", "selection=a.py:3-7", "git_ref=trunk", "variables.who=Ann")
        code, out, _ = cli(
            *("run", "hi", "--model", "scripted:one.json", "--json"),
            *(word for change in about for word in ("--set", f"context.{change}")),
            *("--set", "prompt=For {{ctx.who}}: {{ctx.selection}} of {{ctx.git_ref}}."),
        )
        expected = {
            "working_dir": str(tmp_path),
            "active_file": "a.py",
            "selection": {"file": "a.py", "start_line": 3, "end_line": 7},
            "git_ref": "trunk",
            "fs_scope_tier": "sandboxed",
            "variables": {"who": "Ann"},
        }
        assert (code, _workspace()) == (0, expected)
        (started,) = [
            event for event in map(json.loads, out.splitlines()) if event["type"] == "session:started"
        ]
        assert started["data"]["workspace"] == expected
        with library.open("s.db") as store:
            (row,) = store.sessions().sessions
            assert store.session(row.session_id).context().system == ("For Ann: a.py:3-7 of trunk.",)
            assert row.tool_names == ()

    @pytest.mark.attack
    @pytest.mark.parametrize("command", ["run", "chat"])
    def test_a_secret_in_a_variable_is_refused_and_no_session_is_started(
        self, cli: Cli, command: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = "ghp_" + "a1B2" * 9
        monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
        text = ("hi",) if command == "run" else ()
        code, out, err = cli(
            command, *text, "--model", "scripted:one.json", "--set", f"context.variables.token={key}"
        )
        assert (code, "variable 'token' of the workspace contains a secret" in err) == (2, True)
        assert key not in out + err
        with library.open("s.db") as store:
            assert store.sessions().sessions == []

    @pytest.mark.parametrize(
        "change",
        ["selection=a.py", "selection=a.py:7-3", "selection=:1-2", "variables=x"],
    )
    def test_what_is_no_selection_or_variable_is_refused(self, cli: Cli, change: str) -> None:
        assert cli("run", "hi", "--model", "scripted:one.json", "--set", f"context.{change}")[0] == 2

    def test_it_is_that_of_a_new_session_only(self, cli: Cli) -> None:
        cli("run", "hi", "--model", "scripted:one.json")
        code, _, err = cli(
            "run",
            "hi",
            "--resume",
            "latest",
            "--set",
            "context.variables.a=b",
            "--set",
            "context.active_file=f",
        )
        assert (
            code,
            "--set context.variables and --set context.active_file: only for a new session" in err,
        ) == (2, True)


def _max_messages() -> object:
    with library.open("s.db") as store:
        session = store.session(store.sessions().sessions[0].session_id)
        return session.context().settings.max_messages


def _workspace() -> dict[str, object]:
    with library.open("s.db") as store:
        detail = store.backend.detail(store.sessions().sessions[0].session_id)
        return dict(json.loads(detail.workspace or b"{}"))
