"""The arguments of commands: texts and numbers that no store can keep are refused in words."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import oakleaf as library
from support.cli_store import write_store
from support.terminal import OAKLEAF, environment, oakleaf


class TestText:
    """A byte beyond UTF-8 reaches Python as half a character, which no store can keep."""

    BROKEN = os.fsdecode(b"b\xff")

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        (tmp_path / "bad.txt").write_bytes(b"b\xff")
        (tmp_path / "a.json").write_text('["hello"]')
        write_store(tmp_path / "agent.db")
        return tmp_path

    def test_an_unreadable_file_is_refused(self, home: Path) -> None:
        before = oakleaf("ls", "--json", "is:all", home=home).out
        for line in (
            "run hi --model scripted:a.json --set prompt=@{}",
            "chat --model scripted:a.json --set prompt=@{}",
            "run hi --model scripted:{}",
            "fork ses_case --prompt @{}",
            "replay ses_case --model scripted:a.json --prompt-patch @{}",
            "compact ses_case --summary @{}",
        ):
            for name, why in (("bad.txt", "UTF-8"), ("nosuch.txt", "No such file")):
                done = oakleaf(*line.format(name).split(), home=home)
                assert (done.code, name in done.err, why in done.err) == (2, True, True), done.err
        assert oakleaf("ls", "--json", "is:all", home=home).out == before

    @pytest.mark.parametrize(
        "line",
        [
            "run hi --model scripted:a.json --set prompt={}",
            "run hi --model scripted:a.json --agent support.toml",
            "fork ses_case --prompt {}",
            "replay ses_case --model scripted:a.json --prompt {}",
            "replay ses_case --model scripted:a.json --prompt-patch {}",
            "lab run latest --model scripted:a.json --prompt {}",
        ],
    )
    def test_the_name_of_a_file_is_never_sent_as_text(self, home: Path, line: str) -> None:
        (home / "new.txt").write_text("Be strict.")
        (home / "support.toml").write_text("prompt = 'new.txt'")
        before = oakleaf("ls", "--json", "is:all", home=home).out
        done = oakleaf(*line.format("new.txt").split(), home=home)
        assert done.code == 2
        assert "new.txt is a file; write @new.txt for its content, or - and pipe" in done.err
        assert oakleaf("ls", "--json", "is:all", home=home).out == before

    @pytest.mark.parametrize(
        "line",
        [
            "run hi --model scripted:a.json --set prompt=@new.txt",
            "run hi --model scripted:a.json --agent support.toml",
            "fork ses_case --prompt @new.txt",
            "replay ses_case --model scripted:a.json --prompt @new.txt",
        ],
    )
    def test_every_byte_of_a_file_is_sent(self, home: Path, line: str) -> None:
        (home / "new.txt").write_bytes(b" Be strict.\r\nAlways.\n\n")
        (home / "support.toml").write_text("prompt = '@new.txt'")
        oakleaf(*line.split(), home=home)
        with library.open(home / "agent.db") as store:
            newest = store.session(store.sessions(include_children=True).sessions[0].session_id)
            assert newest.context().system == (" Be strict.\r\nAlways.\n\n",)

    @pytest.mark.parametrize("verb", ["show", "fork", "title", "export"])
    def test_bytes_beyond_utf_8_are_refused_without_a_traceback(self, verb: str, store_path: Path) -> None:
        done = subprocess.run(
            [*OAKLEAF, verb, b"\xff\xfe"], capture_output=True, env=environment(None, store_path), check=False
        )
        assert done.returncode == 2
        assert b"Traceback" not in done.stderr
        assert b"UTF-8" in done.stderr

    @pytest.mark.parametrize(
        "line", [["run", BROKEN], ["run", "-"], ["chat"], ["run", "hi", "--set", "limits.cost=0"]]
    )
    def test_a_refused_input_makes_no_session(self, tmp_path: Path, line: list[str]) -> None:
        (tmp_path / "a.json").write_text('["hello"]')
        done = oakleaf(*line, "--model", "scripted:a.json", home=tmp_path, stdin=self.BROKEN)
        assert (done.code, done.out) == (2, "")
        assert not (tmp_path / "agent.db").exists()

    @pytest.mark.parametrize("line", ["run -", "chat"])
    def test_a_strict_pipe_is_refused_in_words(self, home: Path, line: str) -> None:
        env = {**environment(home), "PYTHONIOENCODING": "utf-8:strict"}
        done = subprocess.run(
            [*OAKLEAF, *line.split(), "--model", "scripted:a.json"],
            cwd=home, env=env, input=b"b\xff\n", capture_output=True, check=False,
        )  # fmt: skip
        assert (done.returncode, b"UTF-8" in done.stderr) == (2, True)

    def test_a_broken_title_is_refused_in_words(self, home: Path) -> None:
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
            ["run", "hi", "--set", "limits.cost=nan", "--model", "scripted:none.json"],
            ["run", "hi", "--set", "limits.cost=inf", "--model", "scripted:none.json"],
            ["run", "hi", "--set", "limits.cost=1e300", "--model", "scripted:none.json"],
        ],
    )
    def test_a_number_beyond_every_store_ends_without_a_traceback(
        self, line: list[str], store_path: Path
    ) -> None:
        done = oakleaf(*line, store=store_path)
        assert done.code in (0, 1, 2)
        assert "Traceback" not in done.err
