"""The workspace of a session: detected, overridable, and the source of `{{ctx.*}}`.

`variables` are stored and echoed in plain text by contract: they must not contain secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from ..core.messages import Message, Text

ScopeTier = Literal["sandboxed", "project", "full"]
_SLOT = re.compile(r"\{\{\s*ctx\.([A-Za-z_][\w.]*)\s*\}\}")


class Selection(Struct, frozen=True):
    file: str
    start_line: int
    end_line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.start_line}-{self.end_line}"


class Workspace(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where an agent works, and how far its tools may reach."""

    working_dir: str
    active_file: str | None = None
    selection: Selection | None = None
    git_ref: str | None = None
    fs_scope_tier: ScopeTier = "sandboxed"
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def detect(
        cls,
        *,
        working_dir: str | None = None,
        active_file: str | None = None,
        selection: Selection | None = None,
        git_ref: str | None = None,
        fs_scope_tier: ScopeTier = "sandboxed",
        variables: Mapping[str, str] | None = None,
    ) -> Workspace:
        """Detect the workspace from the current directory; arguments override what was detected."""
        folder = os.getcwd() if working_dir is None else working_dir
        return cls(
            working_dir=folder,
            active_file=active_file,
            selection=selection,
            git_ref=_git_ref(Path(folder)) if git_ref is None else git_ref,
            fs_scope_tier=fs_scope_tier,
            variables=dict(variables or {}),
        )

    def fill(self, message: Message) -> Message:
        """Replace every known `{{ctx.name}}` in the message; unknown ones stay."""
        parts = tuple(Text(self._fill_text(p.text)) if isinstance(p, Text) else p for p in message.parts)
        return message if parts == message.parts else replace(message, parts=parts)

    def _fill_text(self, text: str) -> str:
        def replacement(match: re.Match[str]) -> str:
            name = match.group(1)
            value = self.variables.get(name, fields.get(name))
            return match.group(0) if value is None else str(value)

        fields = self._fields()
        return _SLOT.sub(replacement, text)

    def _fields(self) -> dict[str, str | int | None]:
        """The names a slot may use beside the variables, which win."""
        fields = {
            name: getattr(self, name) for name in ("working_dir", "active_file", "git_ref", "fs_scope_tier")
        }
        if self.selection is None:
            return fields
        selection = {
            f"selection.{name}": getattr(self.selection, name) for name in Selection.__struct_fields__
        }
        return {**fields, "selection": str(self.selection), **selection}


def _git_ref(folder: Path) -> str | None:
    """The branch or commit checked out in this folder or a parent, without running git."""
    for parent in (folder, *folder.parents):
        head = parent / ".git" / "HEAD"
        try:
            text = head.read_text().strip()
        except OSError:
            continue
        return text.removeprefix("ref: refs/heads/")
    return None
