"""The plugin of the name `workspace` at the command line.

Where it is not installed, an option that needs it is refused with what to install, and the rest goes on without.
"""

from __future__ import annotations

from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.output import notify
from oakleaf.errors import OakleafError
from oakleaf.verbs import workspace_plugin as installed
from oakleaf.verbs.workspace_plugin import PlanFiles as PlanFiles
from oakleaf.verbs.workspace_plugin import WorkspacePlugin as WorkspacePlugin


def workspace_plugin(option: str) -> WorkspacePlugin:
    """Return the plugin for an option that needs the plugin."""
    try:
        return installed.workspace_plugin()
    except OakleafError as error:
        raise CommandError(f"{option}: {error.command_text}") from None


def find_workspace_plugin() -> WorkspacePlugin | None:
    """Return the plugin for optional work; report an installed but unusable plugin."""
    if not installed.is_installed():
        return None
    try:
        return workspace_plugin("the files of the workspace")
    except CommandError as error:
        notify(error.message)
        return None
