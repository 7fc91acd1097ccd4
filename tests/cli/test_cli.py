"""The command line as a whole: its verbs, exit codes, streams and manners."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf.cli.main import oakleaf as group
from oakleaf.cli.rendering.error_text import describe_error
from oakleaf.cli.verb_table import sections
from oakleaf.errors import TokenRequired
from oakleaf.install import install_line
from support.terminal import OAKLEAF, Terminal, environment, oakleaf


class TestVerbs:
    def test_every_verb_says_in_its_help_what_the_list_says(self) -> None:
        import click

        for verb, summary in ((name, text) for verbs in sections().values() for name, text in verbs.items()):
            command = group.get_command(click.Context(group), verb)
            assert command is not None
            assert command.help is not None
            assert command.help.split("\n")[0].startswith(summary.rstrip(".")), verb

    def test_help_loads_no_verb_no_driver_and_nothing_optional(self) -> None:
        code = (
            "import sys\nfrom oakleaf.cli.main import outcome\noutcome(['--help'])\n"
            "heavy = {'apsw', 'rich', 'asyncio', 'anthropic', 'openai', 'oakleaf.session', 'oakleaf.store'}\n"
            "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "oakleaf help all" in done.stdout

    def test_an_unknown_verb_is_answered_by_the_nearest_one(self) -> None:
        done = oakleaf("shwo", store="memory:")
        assert (done.code, done.out) == (2, "")
        assert "Did you mean 'show'?" in done.err

    def test_the_version_is_told(self) -> None:
        import oakleaf as package

        for start in (OAKLEAF, [str(Path(sys.executable).with_name("oakleaf"))]):
            done = subprocess.run([*start, "--version"], capture_output=True, text=True, check=True)
            assert done.stdout == f"oakleaf {package.__version__}\n"

    @pytest.mark.parametrize(
        ("missing", "words"), [("click", ["--version"]), ("rich", ["chat", "--model", "scripted:s.json"])]
    )
    def test_without_the_extra_it_says_what_to_install(
        self, missing: str, words: list[str], tmp_path: Path
    ) -> None:
        """The core brings the command, and not what it is drawn with."""
        (tmp_path / "s.json").write_text('["hello"]')
        code = (
            f"import sys\nsys.modules[{missing!r}] = None\nsys.argv[1:] = {words!r}\n"
            "from oakleaf.cli.entry import run\nrun()"
        )
        main, side = pty.openpty()  # rich is for terminals
        os.write(main, b"hi\n")
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=side,
            stdout=side,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment(store="memory:"),
        )
        os.close(main)
        os.close(side)
        assert done.returncode == 2
        needed = f"oakleaf: the command line needs {missing}; install it with: {install_line('cli')}"
        assert needed in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_a_shell_learns_to_complete(self, shell: str) -> None:
        assert "_OAKLEAF_COMPLETE" in oakleaf("completion", shell, store=None).out

    def test_fish_is_told_what_stands_behind_a_comma(self) -> None:
        """It ended titles and the help of options there: `one,two` was completed to `one`."""
        assert 'string split --max 1 ","' in oakleaf("completion", "fish", store=None).out

    def test_the_shell_completes_verbs_and_references(self, store_path: Path) -> None:
        def completions(words: str) -> list[str]:
            variables = {
                "_OAKLEAF_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(words.count(" ")),
            }
            env = {**environment(store=store_path), **variables}
            done = subprocess.run(OAKLEAF, capture_output=True, text=True, env=env, check=False)
            return [line.partition(",")[2] for line in done.stdout.splitlines()]

        assert sorted(completions("oakleaf re")) == [
            "record",
            "redo",
            "replay",
            "restore",
            "resume",
            "rewind",
        ]
        assert completions("oakleaf show ses_cas") == ["ses_case"]


class TestStores:
    def test_where_there_is_no_store_it_says_how_one_is_made(self, tmp_path: Path) -> None:
        done = oakleaf("ls", store=tmp_path / "none.db")
        assert done.code == 2
        assert "oakleaf chat" in done.err
        assert list(tmp_path.iterdir()) == []

    def test_the_default_store_does_not_depend_on_the_working_directory(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        outputs = set()
        for folder in (tmp_path, tmp_path / "a"):
            env = {**environment(), "XDG_DATA_HOME": str(tmp_path)}
            done = subprocess.run(
                [*OAKLEAF, "ls"], cwd=folder, env=env, capture_output=True, text=True, check=False
            )
            outputs.add(done.stderr)
        assert len(outputs) == 1
        assert str(tmp_path / "oakleaf" / "oakleaf.db") in outputs.pop()

    def test_a_foreign_file_is_refused_and_not_touched(self, tmp_path: Path) -> None:
        place = tmp_path / "notes.txt"
        place.write_text("my notes\n" * 200)
        done = oakleaf("ls", store=place)
        assert done.code == 2
        assert "not an Oakleaf store" in done.err
        assert place.read_text() == "my notes\n" * 200

    def test_another_space_sees_nothing(self, store_path: Path) -> None:
        assert oakleaf("--space", "elsewhere", "ls", "--json", store=store_path).json["sessions"] == []
        assert oakleaf("--space", "elsewhere", "show", "ses_case", store=store_path).code == 2


class TestSuggestions:
    def test_a_suggested_command_works_as_it_is_printed(self, store_path: Path, tmp_path: Path) -> None:
        place = tmp_path / "my stores" / "s.db"
        place.parent.mkdir()
        place.write_bytes(store_path.read_bytes())
        flags = ("--store", place, "--owner", "ann o'neill")
        with library.open(place, owner="ann o'neill") as store:
            store.start(session_id="ses_hers", title="oakleaf ls")

        def printed(text: str, before: str, after: str = "\n") -> tuple[str, ...]:
            program, *words = shlex.split(text.partition(before)[2].partition(after)[0])
            assert program == "oakleaf"
            return tuple(words)

        removed = oakleaf(*flags, "rm", "ses_hers", "--yes")
        assert oakleaf(*printed(removed.err, "undo with: ")).out == "ses_hers\n"
        missing = oakleaf(*flags, "show", "nobody")
        listed = oakleaf(*printed(missing.err, "; ", " lists"), "--json")
        assert [row["id"] for row in listed.json["sessions"]] == ["ses_hers"]
        assert listed.json["sessions"][0]["title"] == "oakleaf ls", "what sessions say stays as it is"
        assert "oakleaf ls lists" in oakleaf("show", "nobody", store=place).err, "the environment names it"


class TestReferences:
    @pytest.mark.parametrize("reference", ["ses_case", "ses_cas", "cas", "Order 41"])
    def test_a_session_is_named_by_its_id_a_prefix_or_its_title(
        self, store_path: Path, reference: str
    ) -> None:
        assert oakleaf("show", reference, "--json", store=store_path).json["session"]["id"] == "ses_case"

    def test_a_whole_id_or_title_is_never_ambiguous(self, store_path: Path) -> None:
        with library.open(store_path) as store:
            case = store.session("ses_case")
            for number in range(7):
                case.fork()
                store.start(session_id=f"ses_case_{number}")
        for name in ("ses_case", "case", "Order 41"):
            done = oakleaf("show", name, "--json", store=store_path)
            assert (done.code, done.err) == (0, "")
            assert done.json["session"]["id"] == "ses_case"
        assert oakleaf("rm", "ses_case", "--yes", store=store_path).code == 0
        assert "type more of the id" in oakleaf("show", "ses_case", store=store_path).err
        assert oakleaf("restore", "ses_case", store=store_path).code == 0

    def test_a_name_that_ends_like_the_number_of_an_entry_is_a_name_if_nothing_else_is(
        self, store_path: Path
    ) -> None:
        """Such an id, title or conversation could not be named at all."""
        with library.open(store_path) as store:
            store.start(session_id="mail@12", conversation_id="ann@7", title="Room@3").append(
                [library.user("hi")]
            )
        for name in ("mail@12", "ann@7", "Room@3"):
            assert oakleaf("show", name, "--json", store=store_path).json["session"]["id"] == "mail@12"
            assert oakleaf("show", f"{name}@1", "--json", store=store_path).json["entries"][0]["seq"] == 1
            assert oakleaf("tag", name, "a=b", store=store_path).code == 0
        assert oakleaf("show", "ses_case@3", "--json", store=store_path).json["entries"][0]["seq"] == 3
        assert "no session 'nobody'" in oakleaf("show", "nobody@3", store=store_path).err

    def test_a_first_input_that_ls_shows_is_a_name_if_it_is_unique(self, tmp_path: Path) -> None:
        place = tmp_path / "s.db"
        long = "Please look into the order that I placed in spring. " * 6
        with library.open(place) as store:
            for name, text in (("a", "Where is it?"), ("b", "Refund it"), ("c", "Refund it"), ("d", long)):
                store.start(session_id=f"ses_{name}").append([library.user(text)])
            store.session("ses_a").fork(title=None)
        rows = oakleaf("ls", "--json", store=place).json["sessions"]
        names = {row["id"]: row["heading"] for row in rows}
        for session in ("ses_a", "ses_d"):
            assert session in oakleaf("show", names[session], store=place).out
        refused = oakleaf("show", "Refund it", store=place)
        assert refused.code == 2
        assert "'Refund it' is ambiguous" in refused.err
        assert "ses_c" in refused.err

    @pytest.mark.parametrize("reference", ["latest@abc", "ses_case@", "ses_case@1.5"])
    def test_an_entry_that_is_no_number_is_named(self, store_path: Path, reference: str) -> None:
        for command in ("show", "fork"):
            refused = oakleaf(command, reference, store=store_path)
            assert refused.code == 2
            name, _, entry = reference.partition("@")
            assert f"'{entry}' is not the number of an entry; {name}@7 names entry 7" in refused.err

    def test_the_sessions_of_an_ambiguous_one_are_called_as_in_ls(self, store_path: Path) -> None:
        with library.open(store_path) as store:
            for number in (1, 2):
                session = store.start("support", session_id=f"ses_twin_{number}")
                session.append([library.user(f"Where is order {number}?")])
        done = oakleaf("show", "ses_twin", store=store_path)
        assert "ses_twin_1  Where is order 1?\n" in done.err
        assert "ses_twin_2  Where is order 2?\n" in done.err

    def test_latest_is_the_first_line_of_ls(self, store_path: Path) -> None:
        listed = oakleaf("ls", "--json", store=store_path).json["sessions"]
        assert oakleaf("show", "latest", "--json", store=store_path).json["session"]["id"] == listed[0]["id"]

    def test_a_prefix_of_several_is_answered_by_a_list_of_them(self, store_path: Path) -> None:
        done = oakleaf("show", "ses_", store=store_path)
        assert done.code == 2
        assert "ses_case" in done.err
        assert "ses_other" in done.err

    @pytest.mark.parametrize(
        "reference", ["nobody", "ses_nobody", "", "%", "ses_case@99", "ses_case@9:1", "x.oakleaf"]
    )
    def test_what_names_nothing_is_a_usage_error_and_prints_no_data(
        self, store_path: Path, reference: str
    ) -> None:
        done = oakleaf("log", reference or "''", store=store_path)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("oakleaf:")

    def test_an_empty_one_is_refused_and_is_not_the_latest(self, store_path: Path) -> None:
        before = oakleaf("ls", "--json", store=store_path).out
        for line in (
            ["rm", "", "--yes"],
            ["undo", ""],
            ["title", "", "zz"],
            ["run", "hi", "--resume", "", "--model", "scripted:none.json"],
        ):
            done = oakleaf(*line, store=store_path)
            assert (done.code, "the reference is empty" in done.err) == (2, True), line
        assert oakleaf("ls", "--json", store=store_path).out == before
        assert (
            oakleaf("show", "@1", store=store_path).out == oakleaf("show", "latest@1", store=store_path).out
        )

    @pytest.mark.parametrize("name", ["latest", "ses_case", "Order 41"])
    def test_a_file_that_is_called_like_a_session_does_not_hide_it(
        self, store_path: Path, tmp_path: Path, name: str
    ) -> None:
        output = oakleaf("show", name, store=store_path).out
        (tmp_path / name).write_text("no bundle at all")
        assert oakleaf("show", name, home=tmp_path, store=store_path).out == output
        assert "cannot import" in oakleaf("show", f"./{name}", home=tmp_path, store=store_path).err

    def test_a_bundle_of_any_name_is_looked_into_where_no_session_has_it(
        self, store_path: Path, tmp_path: Path
    ) -> None:
        oakleaf("export", "ses_case", "-o", tmp_path / "parcel", store=store_path)
        for store in (store_path, tmp_path / "none.db"):
            assert "Thank you!" in oakleaf("show", "parcel", home=tmp_path, store=store).out

    def test_a_verb_that_changes_refuses_a_bundle_and_names_the_import(
        self, store_path: Path, tmp_path: Path
    ) -> None:
        oakleaf("export", "ses_case", "-o", tmp_path / "case.oakleaf", store=store_path)
        before = oakleaf("ls", "--json", "is:all", store=store_path).out
        for line in (
            *("fork {}", "title {} x", "tag {} a=b", "label {}@2 x", "undo {}", "redo {}", "rewind {}@2"),
            *(
                "compact {}",
                "uncompact {}",
                "rm {} --yes",
                "purge {} --yes",
                "restore {}",
                "copy {} --to o.db",
            ),
        ):
            done = oakleaf(*line.format("case.oakleaf").split(), home=tmp_path, store=store_path)
            assert (done.code, done.out) == (2, ""), line
            assert done.err.endswith("import it first: oakleaf import case.oakleaf\n"), line
        assert oakleaf("ls", "--json", "is:all", store=store_path).out == before

    def test_with_a_place_the_entry_there_is_shown(self, store_path: Path) -> None:
        assert oakleaf("show", "ses_case@3", "--json", store=store_path).json["entries"][0]["seq"] == 3

    def test_looking_at_a_place_does_not_move_the_leaf(self, store_path: Path) -> None:
        before = oakleaf("show", "ses_case", "--json", store=store_path).json["session"]
        assert len(oakleaf("log", "ses_case@4", store=store_path).out.splitlines()) == 4
        assert oakleaf("show", "ses_case", "--json", store=store_path).json["session"] == before

    def test_entry_0_is_refused(self, store_path: Path) -> None:
        done = oakleaf("show", "latest@0", store=store_path)
        assert (done.code, done.out) == (2, "")
        assert "oakleaf log" in done.err

    def test_a_title_names_a_session_and_not_its_replays(self, tmp_path: Path) -> None:
        with library.open(tmp_path / "t.db") as store:
            session = store.start("a", [library.system("s")], title="Order 41")
            session.append([library.user("q"), library.assistant("a")])
            session.replay_sync()
        done = oakleaf("show", "Order 41", "--json", store=tmp_path / "t.db")
        assert done.json["session"]["id"] == session.session_id


class TestExitCodes:
    def test_what_cannot_be_done_here_is_usage(self, store_path: Path) -> None:
        for line in (
            "worker --agents x.py",
            "migrate --queue q",
            "uncompact ses_case",
            "import nosuch",
        ):
            assert oakleaf(*line.split(), store=store_path).code == 2, line
        text = describe_error(TokenRequired("0.0.0.0"))
        assert text is not None
        assert text.exit_code == 2


class TestTable:
    def test_a_pipe_gets_it_whole_and_a_terminal_what_fits(self, tmp_path: Path) -> None:
        place, title = (
            tmp_path / "s.db",
            "a title of many words that goes on and on, and on, and then some more",
        )
        with library.open(place) as store:
            model = library.ScriptedModel(["ho"], model="a-model-of-a-long-name")
            store.start(title=title).send_sync("hi", model=model)
        piped = oakleaf("ls", store=place, COLUMNS="40").out
        assert title in piped
        assert "a-model-of-a-long-name" in piped
        assert "1 unpriced" in oakleaf("usage", store=place, COLUMNS="40").out
        for verb, text in (("ls", "a title of"), ("usage", "1 unpriced")):
            with Terminal(verb, store=place, columns=40) as terminal:
                assert terminal.wait() == 0
                assert text in terminal.screen
                assert all(len(line) <= 40 for line in terminal.screen.splitlines()), terminal.screen

    def test_wide_letters_do_not_break_it(self, tmp_path: Path) -> None:
        with library.open(tmp_path / "w.db") as store:
            store.start("a", title="日本語" * 40)
        with Terminal("ls", store=tmp_path / "w.db", columns=80) as terminal:
            terminal.wait()
            rows = [line for line in terminal.screen.splitlines() if line.startswith("ses_")]
        assert len(rows) == 1
        assert sum(2 if ord(c) > 0x2FFF else 1 for c in rows[0]) <= 80


class TestManners:
    def test_there_is_colour_at_a_terminal_only(self, store_path: Path) -> None:
        assert "\x1b[" not in oakleaf("show", "ses_case", store=store_path).out
        with Terminal("show", "ses_case", store=store_path) as terminal:
            assert terminal.wait() == 0
            assert "\x1b[" in terminal.raw
        with Terminal("show", "ses_case", store=store_path, NO_COLOR="1") as terminal:
            assert terminal.wait() == 0
            assert "\x1b[" not in terminal.raw

    def test_whoever_reads_may_stop_in_the_middle(self, store_path: Path) -> None:
        command = f"{' '.join(OAKLEAF)} log ses_case --json | head -1"
        done = subprocess.run(
            ["sh", "-c", command],
            capture_output=True,
            text=True,
            env=environment(store=store_path),
            check=False,
        )
        assert done.stderr == ""
        assert done.stdout.count("\n") == 1

    def test_escape_sequences_of_a_tool_do_not_reach_the_terminal(self, tmp_path: Path) -> None:
        with library.open(tmp_path / "s.db") as store:
            session = store.start(session_id="ses_x", title="\x1b[2Jgone")
            with session.turn("hi \x1b]0;owned\x07") as turn:
                turn.answer(library.assistant("\x1b[31mred"))
        for verb in ("show", "log", "tree", "ls"):
            with Terminal(verb, *(["ses_x"] if verb != "ls" else []), store=tmp_path / "s.db") as terminal:
                assert terminal.wait() == 0
                assert "\x1b[2J" not in terminal.raw
                assert "\x1b]0" not in terminal.raw
                assert "\x1b[31mred" not in terminal.raw
