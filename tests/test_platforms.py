"""The core and the command line run where Python has none of the names that only POSIX gives it.

Windows has no `fcntl`, `termios` or `resource`, no `os.O_DIRECTORY`, no `SIGKILL`, and an event loop without signal
handlers. A child without them is not Windows, but it meets every place that would use one of them unguarded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.without_posix import WITHOUT_POSIX

CORE = """
import oakleaf
from oakleaf import ScriptedModel, ToolCall, assistant, system

@oakleaf.tool(effect="unsafe")
def refund(order: int) -> dict:
    return {"refunded": order}

with oakleaf.open("a.db") as store:
    session = store.start(seeds=[system("You help.")])
    call = assistant(ToolCall("c1", "refund", {"order": 41}))
    result = session.send_sync("Refund it", model=ScriptedModel([call, "Done."]), tools=[refund])
    assert result.text == "Done.", result
    fork = session.fork(at=2)
    fork.send_sync("And you?", model=ScriptedModel(["Fine."]))
    session.export("a.oakleaf")
    assert list(store.verify()) == []
with oakleaf.open("b.db") as other:
    other.import_bundle("a.oakleaf")
    assert other.session(session.session_id).transcript()[-1].message.text == "Done."
print("sound")
"""
COMMANDS = """
import oakleaf
from oakleaf.cli.main import outcome

with oakleaf.open("a.db") as store:
    store.start(title="first").send_sync("Hello", model=oakleaf.ScriptedModel(["Hi."]))
for command in (["ls"], ["show", "latest"], ["log", "latest"], ["tree", "latest"], ["doctor"], ["verify"], ["usage"],
                ["export", "latest", "-o", "a.oakleaf"], ["import", "a.oakleaf"],
                ["run", "--model", "scripted:script.yaml", "Hello again"], ["--help"]):
    assert outcome(["--store", "a.db", *command]) == 0, command
import oakleaf.cli.chat.chat, oakleaf.cli.picker
print("sound")
"""


@pytest.mark.parametrize("script", [CORE, COMMANDS], ids=["library", "command line"])
@pytest.mark.extra
def test_nothing_that_only_posix_has_is_needed(script: str, tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text("- Hi again.\n")
    command = [sys.executable, "-X", "utf8", "-c", WITHOUT_POSIX + script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["sound"]), done.stderr[-3000:]


@pytest.mark.parametrize("script", [CORE, COMMANDS], ids=["library", "command line"])
@pytest.mark.extra
def test_a_locale_that_is_not_utf_8_changes_nothing(script: str, tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text("- Hi again.\n")
    ascii_locale = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=tmp_path, env=ascii_locale, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["sound"]), done.stderr[-3000:]
