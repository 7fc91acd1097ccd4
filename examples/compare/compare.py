"""The same agent on LangGraph, on the OpenAI Agents SDK and on Oakleaf: each is killed inside a refund and run again.

    python examples/compare/compare.py            needs langgraph-checkpoint-sqlite and openai-agents beside oakleaf

The processes, the SIGKILL and the SQLite files are real. The model is scripted, and the bank is a file. No key, no network.
Each program is the shortest that its framework's own documentation leads to.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bank import payments

HERE = Path(__file__).parent
PROGRAMS = {
    "LangGraph": "with_langgraph.py",
    "OpenAI Agents": "with_openai_agents.py",
    "Oakleaf": "with_oakleaf.py",
}


def run(program: str, folder: Path, *, dies: bool) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DIES": "1" if dies else ""}
    command = [sys.executable, str(HERE / program), str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def refunds_of(program: str) -> int:
    """Return how often the money was paid: once by the process that was killed, and perhaps by the next."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        killed, next_run = run(program, folder, dies=True), run(program, folder, dies=False)
        assert killed.returncode == -9, killed.stderr
        assert "refunded" in next_run.stdout, next_run.stderr
        return len(payments(folder))


if __name__ == "__main__":
    print("killed inside a refund, then run again; times that the money was paid:")
    for name, program in PROGRAMS.items():
        print(f"  {name:14} {refunds_of(program)}", flush=True)
