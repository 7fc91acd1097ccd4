"""The streams of a command: their encodings, and streams that are closed, full or read in part."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf import assistant, user
from support.terminal import OAKLEAF, environment, oakleaf


def run_in_shell(line: str, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        env=environment(None, store),
        timeout=60,
        check=False,
    )


class TestEncoding:
    def test_a_latin_1_stream_breaks_no_command(self, store_path: Path) -> None:
        with library.open(store_path) as store:
            store.start("a", title="zażółć 🦒").append([user("the order: 日本語 🦒"), assistant("a")])
        for line in (["search", "order"], ["show"], ["tree"], ["ls"], ["doctor"]):
            variables = {**environment(None, store_path), "PYTHONIOENCODING": "latin-1"}
            done = subprocess.run([*OAKLEAF, *line], capture_output=True, env=variables, check=False)
            assert (done.returncode, b"Traceback" in done.stderr) == (0, False), line

    def test_json_is_utf_8_under_every_locale(self, store_path: Path) -> None:
        with library.open(store_path) as store:
            store.start("a", title="zażółć 🦒")
        run = subprocess.run(
            [*OAKLEAF, "ls", "--json"],
            capture_output=True,
            env={**environment(None, store_path), "PYTHONIOENCODING": "latin-1"},
            check=True,
        )
        assert json.loads(run.stdout.decode())["sessions"][0]["title"] == "zażółć 🦒"


class TestEnds:
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
    def test_a_closed_stream_breaks_no_command(
        self, line: str, code: int, store_path: Path, tmp_path: Path
    ) -> None:
        verb, *rest = line.split(" ", 1)
        done = run_in_shell(f"{' '.join(OAKLEAF)} {verb} {' '.join(rest)}", store_path)
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stderr
        assert oakleaf("verify", store=store_path).code == 0

    @pytest.mark.parametrize(
        "line",
        [
            "log latest",
            "log latest --json",
            "tail latest --json",
            "export latest -o -",
            "export latest --format markdown",
        ],
    )
    def test_a_reader_may_stop_early(self, line: str, tmp_path: Path) -> None:
        with library.open(tmp_path / "long.db") as store:
            session = store.start("a")
            for n in range(40):
                session.append([user(f"{n} {'x' * 20_000}"), assistant("a")])
        done = run_in_shell(f"set -o pipefail; {' '.join(OAKLEAF)} {line} | head -c 5", tmp_path / "long.db")
        assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is full, on Linux")
    @pytest.mark.parametrize("line", ["ls", "ls --json", "export latest --format markdown", "--help"])
    def test_a_full_disk_is_told_in_words(self, line: str, store_path: Path) -> None:
        done = run_in_shell(f"{' '.join(OAKLEAF)} {line} > /dev/full", store_path)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "no space left" in done.stderr.lower()
