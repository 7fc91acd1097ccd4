"""Distributions of strangers, written into a folder as an installer would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

from support.terminal import OAKLEAF, CommandResult, environment


class Site:
    """A folder on the path that holds installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self, name: str, entry_points: Mapping[str, Mapping[str, str]], files: Mapping[str, str] | None = None
    ) -> None:
        """Write a distribution: its metadata, and its modules by path."""
        for path, text in (files or {}).items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(dedent(text))
        metadata = self.folder / f"{name}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [
            line
            for group, added in entry_points.items()
            for line in (f"[oakleaf.{group}]", *(f"{key} = {target}" for key, target in added.items()), "")
        ]
        (metadata / "entry_points.txt").write_text("\n".join(lines))

    def run(self, *arguments: str) -> CommandResult:
        """Run a command in a new interpreter that finds these distributions."""
        return self._start([*OAKLEAF, *arguments])

    def python(self, code: str) -> CommandResult:
        """Run a script in a new interpreter that finds these distributions."""
        return self._start([sys.executable, "-c", dedent(code)])

    def _start(self, command: Sequence[str]) -> CommandResult:
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        variables = environment(self.folder) | {"PYTHONPATH": path}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
        return CommandResult(done.args, done.returncode, done.stdout, done.stderr)
