"""Tools for files, grep, shell and HTTP within a workspace's scope, and rewinding of the files that they wrote.

    tools = oakleaf_workspace.tools(session, workspace, commands=["pytest"])
    session.send_sync("…", model=…, tools=tools)
    oakleaf_workspace.rewind(session, 0)

The names below load when first used, so importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oakleaf.late_names import late_names

_HOMES = {
    "oakleaf_workspace.errors": ["FilesChanged"],
    "oakleaf_workspace.file_rewind": [
        "FileAction",
        "FilesPlan",
        "plan_redo",
        "plan_rewind",
        "redo",
        "rewind",
    ],
    "oakleaf_workspace.plugin": ["TOOL_NAMES"],
    "oakleaf_workspace.session_tools": ["check", "shell", "tools"],
}
__getattr__, __all__ = late_names(__name__, _HOMES)

if TYPE_CHECKING:
    from oakleaf_workspace.errors import FilesChanged as FilesChanged
    from oakleaf_workspace.file_rewind import FileAction as FileAction
    from oakleaf_workspace.file_rewind import FilesPlan as FilesPlan
    from oakleaf_workspace.file_rewind import plan_redo as plan_redo
    from oakleaf_workspace.file_rewind import plan_rewind as plan_rewind
    from oakleaf_workspace.file_rewind import redo as redo
    from oakleaf_workspace.file_rewind import rewind as rewind
    from oakleaf_workspace.plugin import TOOL_NAMES as TOOL_NAMES
    from oakleaf_workspace.session_tools import check as check
    from oakleaf_workspace.session_tools import shell as shell
    from oakleaf_workspace.session_tools import tools as tools
