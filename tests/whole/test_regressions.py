"""What broke the command line, replays and bundles once, as laws."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf import assistant, errors, system, user
from oakleaf.cli.commands.export import export_file_name
from support.cli_store import write_store
from support.terminal import OAKLEAF, Terminal, environment, oakleaf

pytestmark = pytest.mark.extra

ESCAPE = "\x1b]0;owned\x07\x1b[31m"


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return write_store(tmp_path / "s.db")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A store with one session, all of whose names were chosen by an enemy."""
    place = tmp_path / "h.db"
    with library.open(place) as store:
        session = store.start(
            f"agent {ESCAPE}", [system("You help.")], session_id="ses_enemy", title=f"title {ESCAPE}"
        )
        session.tag(**{f"name {ESCAPE}": f"value {ESCAPE}"})
        session.append([user(f"q \x9b31m \u202e {ESCAPE}"), assistant("a")])
    return place


class TestReference:
    def test_entry_0_is_no_entry_and_that_is_said(self, store_path: Path) -> None:
        done = oakleaf("show", "latest@0", store=store_path)
        assert (done.code, done.out) == (2, "")
        assert "oakleaf log" in done.err

    @pytest.mark.parametrize("verb", ["show", "fork", "title", "export"])
    def test_an_argument_that_is_no_text_is_refused_without_a_traceback(
        self, verb: str, store_path: Path
    ) -> None:
        done = subprocess.run(
            [*OAKLEAF, verb, b"\xff\xfe"], capture_output=True, env=environment(None, store_path), check=False
        )
        assert done.returncode == 2
        assert b"Traceback" not in done.stderr
        assert b"UTF-8" in done.stderr

    def test_a_title_names_the_session_and_not_its_replays(self, tmp_path: Path) -> None:
        with library.open(tmp_path / "t.db") as store:
            session = store.start("a", [system("s")], title="Order 41")
            session.append([user("q"), assistant("a")])
            session.replay_sync()
        done = oakleaf("show", "Order 41", "--json", store=tmp_path / "t.db")
        assert done.json["session"]["id"] == session.session_id


class TestText:
    """A byte that is none of UTF-8 reaches Python as half a character, which no store can keep."""

    BROKEN = os.fsdecode(b"b\xff")

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        (tmp_path / "bad.txt").write_bytes(b"b\xff")
        (tmp_path / "a.json").write_text('["hello"]')
        write_store(tmp_path / "agent.db")
        return tmp_path

    def test_a_file_that_cannot_be_read_as_one_is_refused(self, home: Path) -> None:
        before = oakleaf("ls", "--json", "--all", home=home).out
        for line in (
            "run hi --model scripted:a.json --system @{}",
            "chat --model scripted:a.json --system @{}",
            "run hi --model scripted:{}",
            "fork ses_case --prompt @{}",
            "replay ses_case --model scripted:a.json --prompt-patch @{}",
            "compact ses_case --summary @{}",
        ):
            for name, why in (("bad.txt", "UTF-8"), ("nosuch.txt", "No such file")):
                done = oakleaf(*line.format(name).split(), home=home)
                assert (done.code, name in done.err, why in done.err) == (2, True, True), done.err
        assert oakleaf("ls", "--json", "--all", home=home).out == before

    @pytest.mark.parametrize(
        "line", [["run", BROKEN], ["run", "-"], ["chat"], ["run", "hi", "--max-cost", "0"]]
    )
    def test_an_input_that_is_refused_makes_no_session(self, tmp_path: Path, line: list[str]) -> None:
        (tmp_path / "a.json").write_text('["hello"]')
        done = oakleaf(*line, "--model", "scripted:a.json", home=tmp_path, stdin=self.BROKEN)
        assert (done.code, done.out) == (2, "")
        assert not (tmp_path / "agent.db").exists()

    @pytest.mark.parametrize("line", ["run -", "chat"])
    def test_a_pipe_that_is_read_strictly_ends_in_words(self, home: Path, line: str) -> None:
        env = {**environment(home), "PYTHONIOENCODING": "utf-8:strict"}
        done = subprocess.run(
            [*OAKLEAF, *line.split(), "--model", "scripted:a.json"],
            cwd=home, env=env, input=b"b\xff\n", capture_output=True, check=False,
        )  # fmt: skip
        assert (done.returncode, b"UTF-8" in done.stderr) == (2, True)

    def test_a_name_that_is_refused_is_refused_in_words_for_people(self, home: Path) -> None:
        done = oakleaf("title", "ses_case", self.BROKEN, home=home)
        assert (done.code, "locale" in done.err, ".encode" in done.err) == (2, True, False)


class TestNumbers:
    @pytest.mark.parametrize(
        "line",
        [
            ["tail", "latest", "--from", "9" * 30],
            ["tail", "latest", "-n", "9" * 30],
            ["log", "latest", "--since", "9" * 30],
            ["log", "latest", "-n", "9" * 30],
            ["compact", "latest", "--keep-from", "9" * 30],
            ["show", f"latest@{'9' * 30}"],
            ["run", "hi", "--max-cost", "nan", "--model", "scripted:none.json"],
            ["run", "hi", "--max-cost", "inf", "--model", "scripted:none.json"],
            ["run", "hi", "--max-cost", "1e300", "--model", "scripted:none.json"],
        ],
    )
    def test_one_that_no_store_can_hold_ends_in_words(self, line: list[str], store_path: Path) -> None:
        done = oakleaf(*line, store=store_path)
        assert done.code in (0, 1, 2)
        assert "Traceback" not in done.err


class TestOutput:
    @pytest.mark.parametrize(
        "line",
        [
            ["show"],
            ["tree"],
            ["log"],
            ["ls"],
            ["title", "latest"],
            ["tag", "latest"],
            ["usage", "--by", "agent"],
            ["search", "q"],
            ["fork"],
            ["show", "--json"],
            ["context"],
            ["context", "--json"],
            ["tail"],
            ["log", "--json"],
            ["export", "--jsonl"],
            ["export", "--markdown"],
            ["export", "--workflow"],
            ["verify"],
            ["doctor"],
            ["rm", "latest"],
            ["undo"],
            ["show", f"no such {ESCAPE}"],
        ],
    )
    def test_nothing_of_a_stranger_reaches_a_terminal_as_a_control(
        self, line: list[str], hostile: Path
    ) -> None:
        with Terminal(*line, store=hostile, NO_COLOR="1") as terminal:
            if line[0] == "rm":
                terminal.wait_for("trash?")
                terminal.enter("n")
            terminal.wait()
            screen = terminal.raw
        assert "\x1b]0;owned" not in screen
        assert "\x1b[31m" not in screen
        assert "\x9b" not in screen
        assert "\u202e" not in screen

    def test_json_says_what_it_escaped(self, hostile: Path) -> None:
        done = oakleaf("show", "latest", "--json", store=hostile)
        text = done.json["entries"][1]["payload"]["parts"][0]["text"]
        assert text == f"q \x9b31m \u202e {ESCAPE}"
        assert done.json["session"]["title"] == f"title {ESCAPE}"

    def test_a_stream_that_is_not_utf_8_gets_what_it_can_show(self, hostile: Path) -> None:
        for line in (["search", "q"], ["show"], ["tree"], ["ls"], ["doctor"]):
            variables = {**environment(None, hostile), "PYTHONIOENCODING": "latin-1"}
            done = subprocess.run([*OAKLEAF, *line], capture_output=True, env=variables, check=False)
            assert (done.returncode, b"Traceback" in done.stderr) == (0, False), line

    def test_json_is_utf_8_whatever_the_locale(self, hostile: Path) -> None:
        with library.open(hostile) as store:
            store.start("a", title="zażółć 🦒")
        run = subprocess.run(
            [*OAKLEAF, "ls", "--json"],
            capture_output=True,
            env={**environment(None, hostile), "PYTHONIOENCODING": "latin-1"},
            check=True,
        )
        assert json.loads(run.stdout.decode())["sessions"][0]["title"] == "zażółć 🦒"

    def test_wide_letters_do_not_break_the_table(self, tmp_path: Path) -> None:
        with library.open(tmp_path / "w.db") as store:
            store.start("a", title="日本語" * 40)
        with Terminal("ls", store=tmp_path / "w.db", columns=80) as terminal:
            terminal.wait()
            rows = [line for line in terminal.screen.splitlines() if line.startswith("ses_")]
        assert len(rows) == 1
        assert sum(2 if ord(c) > 0x2FFF else 1 for c in rows[0]) <= 80


class TestStreams:
    @pytest.mark.parametrize(
        ("line", "code"),
        [
            ("ls >&-", 0),
            ("ls --json >&-", 0),
            ("show latest >&- 2>&-", 0),
            ("ls 2>&-", 0),
            ("rm latest <&-", 1),
            ("run --model scripted:none.json <&-", 2),
            ("chat --model scripted:none.json <&-", 2),
            ("import - <&-", 1),
        ],
    )
    def test_one_that_is_closed_is_no_reason_to_break(
        self, line: str, code: int, store_path: Path, tmp_path: Path
    ) -> None:
        verb, *rest = line.split(" ", 1)
        done = _in_shell(f"{' '.join(OAKLEAF)} {verb} {' '.join(rest)}", store_path)
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stderr
        assert oakleaf("verify", store=store_path).code == 0

    @pytest.mark.parametrize(
        "line",
        ["log latest", "log latest --json", "tail latest", "export latest -o -", "export latest --markdown"],
    )
    def test_a_reader_that_has_seen_enough_is_no_failure(self, line: str, tmp_path: Path) -> None:
        with library.open(tmp_path / "long.db") as store:
            session = store.start("a")
            for n in range(40):
                session.append([user(f"{n} {'x' * 20_000}"), assistant("a")])
        done = _in_shell(f"set -o pipefail; {' '.join(OAKLEAF)} {line} | head -c 5", tmp_path / "long.db")
        assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is full, on Linux")
    @pytest.mark.parametrize("line", ["ls", "ls --json", "export latest --markdown", "--help"])
    def test_one_that_is_full_ends_in_words(self, line: str, store_path: Path) -> None:
        done = _in_shell(f"{' '.join(OAKLEAF)} {line} > /dev/full", store_path)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "no space left" in done.stderr.lower()


class TestExport:
    @pytest.mark.parametrize("line", [[], ["--markdown"], ["--workflow"]])
    def test_a_pipe_that_is_named_is_written_to_and_not_replaced(
        self, line: list[str], store_path: Path, tmp_path: Path
    ) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
        done = oakleaf("export", "latest", *line, "-o", pipe, store=store_path)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert done.code == 0, done.err
        got, _ = reader.communicate(timeout=20)
        assert len(got) > 100

    def test_a_link_stays_a_link(self, store_path: Path, tmp_path: Path) -> None:
        real, link = tmp_path / "real.oakleaf", tmp_path / "link.oakleaf"
        real.write_text("old")
        link.symlink_to(real)
        assert oakleaf("export", "latest", "-o", link, "--force", store=store_path).code == 0
        assert link.is_symlink()
        assert real.read_bytes().startswith(b'{"line":"oakleaf"')

    @pytest.mark.parametrize("line", [["-o", "-"], ["--markdown"], ["--jsonl", "-o", "-"]])
    def test_what_it_wrote_and_json_are_never_mixed(self, line: list[str], store_path: Path) -> None:
        done = oakleaf("export", "latest", *line, "--json", store=store_path)
        assert (done.code, done.out) == (2, "")
        assert "-o FILE" in done.err

    def test_a_text_that_does_not_fit_leaves_the_old_file(self, store_path: Path, tmp_path: Path) -> None:
        target = tmp_path / "kept.md"
        target.write_text("old")
        code = (
            "import resource, signal, sys\n"
            "from oakleaf.cli.main import outcome\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
            f"sys.exit(outcome(['export', 'latest', '--markdown', '-o', {str(target)!r}]))"
        )
        run = subprocess.run(
            [OAKLEAF[0], "-c", code], capture_output=True, env=environment(None, store_path), check=False
        )
        assert run.returncode == 1
        assert target.read_text() == "old"
        assert [one.name for one in tmp_path.iterdir() if "kept" in one.name] == ["kept.md"]

    @pytest.mark.parametrize("session_id", ["../up/x", "..", "/etc/x", f"a{ESCAPE}"])
    def test_an_id_chosen_by_a_stranger_chooses_no_folder(self, session_id: str) -> None:
        name = export_file_name(session_id, ".oakleaf")
        assert name.isprintable()
        assert Path(name).name == name
        assert not name.startswith(".")


class TestBundle:
    @pytest.mark.parametrize("name", ["session_id", "parent_session"])
    def test_an_id_that_cannot_be_shown_is_refused(self, name: str, store_path: Path, tmp_path: Path) -> None:
        assert oakleaf("export", "latest", "-o", tmp_path / "a.oakleaf", store=store_path).code == 0
        *lines, end = map(json.loads, (tmp_path / "a.oakleaf").read_text().splitlines())
        lines[1]["row"][name] = f"ses_{ESCAPE}"
        lines[0]["session"] = lines[1]["row"]["session_id"]
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        end["sha256"] = sha256(body).hexdigest()
        (tmp_path / "b.oakleaf").write_bytes(body + json.dumps(end).encode() + b"\n")
        with (
            library.open("memory:") as store,
            pytest.raises(errors.InvalidBundle, match=r"cannot be printed|has the character"),
        ):
            store.import_bundle(tmp_path / "b.oakleaf")


class TestBackup:
    def test_only_a_file_is_written_over(self, store_path: Path, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        done = oakleaf("backup", pipe, "--force", store=store_path)
        assert done.code == 2
        assert stat.S_ISFIFO(pipe.stat().st_mode)


class TestCopy:
    def test_what_was_there_already_is_not_called_copied(self, store_path: Path, tmp_path: Path) -> None:
        line = ["copy", "--all", "--yes", "--to", tmp_path / "to.db"]
        assert "0 sessions copied" not in oakleaf(*line, store=store_path).err
        again = oakleaf(*line, store=store_path)
        assert "0 sessions copied" in again.err
        assert "3 existed" in again.err


class TestReplay:
    def test_where_the_report_goes_is_looked_at_before_the_work(
        self, store_path: Path, tmp_path: Path
    ) -> None:
        before = _digest(store_path)
        done = oakleaf("replay", "latest", "--output", tmp_path / "none" / "report.md", store=store_path)
        assert done.code == 2
        assert "report.md" in done.err
        assert _digest(store_path) == before

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is full, on Linux")
    @pytest.mark.parametrize("line", ["replay ses_case", "diff ses_case ses_other"])
    def test_a_report_that_does_not_fit_is_named_and_leaves_nothing(
        self, store_path: Path, line: str
    ) -> None:
        done = oakleaf(*line.split(), "--output", "/dev/full", store=store_path)
        assert (done.code, "no space left to write /dev/full" in done.err, "key" in done.err) == (
            1,
            True,
            False,
        )

    def test_a_place_before_the_beginning_is_refused(self) -> None:
        session = library.open("memory:").start("a", [system("s")])
        session.append([user("q"), assistant("a")])
        with pytest.raises(errors.InvalidReplay, match="start"):
            session.replay_sync(start=-1)


def _in_shell(line: str, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        env=environment(None, store),
        timeout=60,
        check=False,
    )


def _digest(store: Path) -> str:
    with library.open(store) as opened:
        rows = [row.session_id for row in opened.all_sessions()]
    return sha256(repr(sorted(rows)).encode()).hexdigest()
