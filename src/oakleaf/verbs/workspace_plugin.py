"""The plugin of the name `workspace`, as verbs and commands use it: tools in a folder, and files that follow the leaf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, cast

from oakleaf import Cut, Leaf, Session, Workspace, plugins


class FileAction(Protocol):
    """What happens with one file."""

    @property
    def kind(self) -> str: ...
    @property
    def root(self) -> str: ...
    @property
    def location(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def is_imported(self) -> bool: ...


class FilesPlan(Protocol):
    """What happens with the files when the leaf moves."""

    @property
    def actions(self) -> Sequence[FileAction]: ...
    @property
    def changes(self) -> Sequence[FileAction]: ...
    def raise_if_refused(self) -> None: ...
    def summary(self) -> str: ...
    def lines(self) -> list[str]: ...


class PlanFiles(Protocol):
    """Plans which files a move of the leaf changes in a folder."""

    def __call__(self, folder: str, *, accept_imported: bool) -> FilesPlan: ...


class WorkspacePlugin(Protocol):
    TOOL_NAMES: Sequence[str]

    def check(self, workspace: Workspace, *, commands: Iterable[str], env: Iterable[str]) -> None: ...
    def plan_rewind(self, session: Session, to: int, folder: str, *, accept_imported: bool) -> FilesPlan: ...
    def rewind(
        self,
        session: Session,
        to: int,
        folder: str,
        *,
        summary: str | None = None,
        skip_changed: bool,
        accept_imported: bool,
    ) -> Cut: ...
    def plan_redo(
        self, session: Session, folder: str | None = None, *, accept_imported: bool = False
    ) -> FilesPlan: ...
    def redo(self, session: Session, folder: str, *, skip_changed: bool, accept_imported: bool) -> Leaf: ...


def is_installed() -> bool:
    return "workspace" in plugins.names(plugins.TOOLS)


def workspace_plugin() -> WorkspacePlugin:
    """Return the plugin. Raises PluginMissing, which names what to install, and PluginBroken."""
    return cast("WorkspacePlugin", plugins.find(plugins.TOOLS, "workspace"))
