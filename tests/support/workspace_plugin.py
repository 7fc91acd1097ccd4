"""A plugin of the name `workspace` with one tool, in place of the installed one: what the callers of the seam rely on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from oakleaf import Session, Tool, Workspace, plugins, tool

TOOL_NAMES = ("read_file",)


def check(workspace: Workspace, *, commands: Iterable[str], env: Iterable[str]) -> None:
    """Refuse nothing."""


def tools(
    session: Session, workspace: Workspace, *, commands: Sequence[str], env: Sequence[str]
) -> list[Tool]:
    @tool(effect="read")
    def read_file(path: str) -> str:
        """Read a file, for this session."""
        text = Path(workspace.working_dir, path).read_text()
        return f"{session.session_id}: {text} {list(commands)} {list(env)}"

    return [read_file]


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this module be the only plugin of tools."""
    others = [each for each in plugins.providers() if each.group != plugins.TOOLS]
    here = plugins.Provider(plugins.TOOLS, "workspace", __name__, "stranger", "1.0")
    monkeypatch.setattr(plugins, "providers", lambda: (here, *others))
