"""A coding agent on a temporary folder: it reads, fixes a bug, runs the program, and cannot leave its folder.

No key, no network: the model is scripted. The files, the edit and the processes are real.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import oakleaf
import oakleaf_workspace
from oakleaf import ScriptedModel, ToolCall, Workspace, assistant, draw_tree, system

BUG = "def double(n):\n    return n + n + 1\n\n\nprint(double(21))\n"


def script() -> ScriptedModel:
    def call(n: int, name: str, **arguments: object) -> oakleaf.Message:
        return assistant(ToolCall(f"c{n}", name, arguments))

    return ScriptedModel(
        [
            call(1, "list_files"),
            call(2, "read_file", path="double.py"),
            call(3, "read_file", path="../../etc/passwd"),
            call(4, "edit_file", path="double.py", old="n + n + 1", new="n + n"),
            call(5, "shell", argv=[sys.executable, "double.py"]),
            "It printed 43 because of the extra 1; now it prints 42.",
        ]
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        folder.mkdir()
        (folder / "double.py").write_text(BUG)
        workspace = Workspace.detect(working_dir=str(folder), fs_scope_tier="project")
        with oakleaf.open(Path(name) / "agent.db") as store:
            session = store.start(
                "coder", [system("You fix programs in {{ctx.working_dir}}.")], workspace=workspace
            )
            tools = oakleaf_workspace.tools(session, workspace, commands=[sys.executable])
            session.send_sync("double.py prints 43. Fix it.", model=script(), tools=tools)
            print(draw_tree(session, width=100).replace(str(folder), "<folder>"))
            results = [r for entry in session.path() if entry.message for r in entry.results]
            assert [result.error for result in results] == [False, False, True, False, False]
            assert "42" in str(results[-1].content)


if __name__ == "__main__":
    main()
