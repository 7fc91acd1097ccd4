"""mypy and pyright, as users run them: the errors that each reports in a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.paths import SOURCES

Error = tuple[str, int, str]
"""File, line and message."""


def mypy_errors(folder: Path) -> list[Error]:
    """Return the errors of `mypy --strict`."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--output=json",
        "--no-error-summary",
        "--cache-dir=.cache",
        ".",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [(each["file"], each["line"], each["message"]) for each in found if each["severity"] == "error"]


def pyright_errors(folder: Path) -> list[Error]:
    """Return the errors of pyright, run as basedpyright, whose wheel brings all it needs; its rules set to pyright's."""
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(source.parent) for source in SOURCES]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    program = Path(sys.executable).with_name("basedpyright")
    command = [program, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in found
        if each["severity"] == "error"
    ]
