"""Situations in which a command suggests another one, and a check that the suggested commands run as they are printed."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf import assistant
from oakleaf.cli.main import outcome
from support.cli_store import write_store
from support.suggestions import has_placeholder, suggested_commands

INTERACTIVE = {"chat", "serve", "worker", "demo"}
"""They go on until they are ended, like everything with -f: their flags are checked, and they are tested elsewhere."""


class Situation:
    """A folder with the sample store `s.db`, and a model that answers from `one.json`."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        write_store(folder / "s.db")
        (folder / "one.json").write_text(json.dumps(["One.", "Two."]))

    def run(self, *arguments: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = outcome([*arguments])
        written = self._capsys.readouterr()
        return code, written.out + written.err

    @property
    def store(self) -> library.Store:
        return library.open(self.folder / "s.db")

    def assert_suggestions_run(self, command: str) -> None:
        """Run a command, then every command that its output suggests."""
        _, text = self.run(*shlex.split(command))
        commands = suggested_commands(text)
        assert commands, text
        for arguments in commands:
            if INTERACTIVE & set(arguments) or "-f" in arguments or has_placeholder(arguments):
                continue
            code, written = self.run(*arguments)
            if "Missing argument" in written:  # the message only mentions the verb
                continue
            assert code in (0, 1, 3), f"{text}\n→ oakleaf {shlex.join(arguments)}: {code}\n{written}"


def situation_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Situation:
    """Make a folder the working directory, with the sample store and a scripted model."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OAKLEAF_CONFIG", str(folder / "config.toml"))
    monkeypatch.setenv("OAKLEAF_STORE", str(folder / "s.db"))
    monkeypatch.setenv("OAKLEAF_MODEL", "scripted:one.json")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return Situation(folder, capsys)


Prepare = Callable[[Situation], object]


def trashed(here: Situation) -> None:
    with here.store as store:
        store.delete("ses_case")


def branched(here: Situation) -> None:
    with here.store as store:
        session = store.session("ses_case")
        session.rewind(3)
        session.append([assistant("Another way.")])


def nothing(here: Situation) -> None:
    """The sample store as it is."""
