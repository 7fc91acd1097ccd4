"""Every example runs offline and does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_it_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_demo_survives_kill_9_and_shows_the_leaf() -> None:
    demo = next(path for path in EXAMPLES if path.name == "own_loop.py")
    output = subprocess.run([sys.executable, demo], capture_output=True, text=True, check=True).stdout
    assert "killed by SIGKILL" in output
    assert "status running; waiting for ['lookup_order']; problems found: 0" in output
    assert "The earlier part of the prompt is unchanged: True" in output
    assert "●   5 assistant  On its way, due Friday.   ◀ leaf" in output
    assert "verify: 0 problems; calls 3" in output
