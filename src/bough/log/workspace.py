"""The workspace a session runs against: detected, overridable, and filled into `{{ctx.*}}`.

`variables` are plaintext by contract: they are stored and echoed as they are, so they must hold no secret.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from ..core.messages import Message, Text

_SLOT = re.compile(r"\{\{\s*ctx\.([A-Za-z_][\w.]*)\s*\}\}")


class Selection(Struct, frozen=True):
    file: str
    start_line: int
    end_line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.start_line}-{self.end_line}"


class Workspace(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where an agent works, and how far from there its tools may reach."""

    working_dir: str
    active_file: str | None = None
    selection: Selection | None = None
    git_ref: str | None = None
    fs_scope_tier: Literal["sandboxed", "project", "full"] = "sandboxed"
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def detect(cls, **overrides: Any) -> Workspace:
        """What can be seen from here; anything given wins."""
        working_dir = str(overrides.pop("working_dir", os.getcwd()))
        overrides.setdefault("git_ref", _git_ref(Path(working_dir)))
        return cls(working_dir=working_dir, **overrides)

    def fill(self, message: Message) -> Message:
        """The message with every `{{ctx.name}}` it knows filled in; unknown ones stay as they are."""
        parts = tuple(Text(self._filled(p.text)) if isinstance(p, Text) else p for p in message.parts)
        return message if parts == message.parts else replace(message, parts=parts)

    def _filled(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            name = match.group(1)
            found = self.variables.get(name, known.get(name))
            return match.group(0) if found is None else str(found)

        known = self._known()
        return _SLOT.sub(value, text)

    def _known(self) -> dict[str, str | int | None]:
        """What a slot may name beside the variables, which win."""
        plain = {
            name: getattr(self, name) for name in ("working_dir", "active_file", "git_ref", "fs_scope_tier")
        }
        if self.selection is None:
            return plain
        place = {f"selection.{name}": getattr(self.selection, name) for name in Selection.__struct_fields__}
        return {**plain, "selection": str(self.selection), **place}


def _git_ref(folder: Path) -> str | None:
    """The branch or commit checked out in this folder or one above it, without running git."""
    for place in (folder, *folder.parents):
        head = place / ".git" / "HEAD"
        try:
            text = head.read_text().strip()
        except OSError:
            continue
        return text.removeprefix("ref: refs/heads/")
    return None
