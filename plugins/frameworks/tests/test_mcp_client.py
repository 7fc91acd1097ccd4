"""`oakleaf mcp` in a real client: the program of Claude Code, which comes with its Agent SDK, connects to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import claude_agent_sdk

CLAUDE = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
OAKLEAF = Path(sys.executable).parent / "oakleaf"


def claude(home: Path, *words: str) -> str:
    variables = {**os.environ, "HOME": str(home), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    done = subprocess.run(
        [CLAUDE, *words], cwd=home, env=variables, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def test_claude_code_adds_the_server_as_the_docs_say_and_connects(tmp_path: Path) -> None:
    claude(tmp_path, "mcp", "add", "oakleaf", "--", str(OAKLEAF), "--store", str(tmp_path / "s.db"), "mcp")
    listed = claude(tmp_path, "mcp", "list")
    assert "oakleaf:" in listed
    assert "Connected" in listed
