"""The workspace of a session: detected, overridable, and the source of `{{ctx.*}}`.

`variables` are stored and echoed in plain text by contract: `store.start` refuses a secret that it recognises.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from oakleaf.core.codec import check_text, to_json
from oakleaf.core.entries import Settings
from oakleaf.core.messages import Message, Text
from oakleaf.core.typed_json import json_decoder
from oakleaf.errors import InvalidArgument

ScopeTier = Literal["sandboxed", "project", "full"]
_SLOT = re.compile(r"\{\{\s*ctx\.([A-Za-z_][\w.]*)\s*\}\}")


class Selection(Struct, frozen=True):
    file: str
    start_line: int
    end_line: int

    def __post_init__(self) -> None:
        _check_text("file", self.file)
        for name, least in (("start_line", 1), ("end_line", self.start_line)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidArgument(name, value, f"a line number from {least} on")

    def __str__(self) -> str:
        return f"{self.file}:{self.start_line}-{self.end_line}"


class Workspace(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where an agent works, and how far the agent's tools may reach."""

    working_dir: str
    active_file: str | None = None
    selection: Selection | None = None
    git_ref: str | None = None
    fs_scope_tier: ScopeTier = "sandboxed"
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_text("working_dir", self.working_dir)
        for name in ("active_file", "git_ref"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        if self.selection is not None and not isinstance(self.selection, Selection):
            raise InvalidArgument("selection", self.selection, "a Selection")
        if self.fs_scope_tier not in get_args(ScopeTier):
            raise InvalidArgument("fs_scope_tier", self.fs_scope_tier, ", ".join(get_args(ScopeTier)))
        if not isinstance(self.variables, dict):
            raise InvalidArgument("variables", self.variables, "texts by name")
        for name, value in self.variables.items():
            _check_text("variables", name)
            _check_text(f"variables[{name!r}]", value)

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
        """Detect the workspace from the current directory; arguments override detected values."""
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
        """Replace every known `{{ctx.name}}` in the message; unknown names stay."""
        parts = tuple(Text(self.fill_text(p.text)) if isinstance(p, Text) else p for p in message.parts)
        return message if parts == message.parts else replace(message, parts=parts)

    def fill_settings(self, settings: Settings) -> Settings:
        """Replace every known `{{ctx.name}}` in the prompt and the patch."""
        prompt, patch = (
            None if text is None else self.fill_text(text)
            for text in (settings.prompt, settings.prompt_patch)
        )
        return replace(settings, prompt=prompt, prompt_patch=patch)

    def to_json(self) -> bytes:
        """Return the stored and echoed form: known fields, and always the tier. The tier limits the tools."""
        return to_json({**msgspec.to_builtins(self), "fs_scope_tier": self.fs_scope_tier}, "workspace")

    def fill_text(self, text: str) -> str:
        def replacement(match: re.Match[str]) -> str:
            name = match.group(1)
            value = self.variables.get(name, fields.get(name))
            return match.group(0) if value is None else str(value)

        fields = self._fields()
        return _SLOT.sub(replacement, text)

    def _fields(self) -> dict[str, str | int | None]:
        """Return the slots' names beside the variables; a variable wins over a field of the same name."""
        fields = {
            name: getattr(self, name) for name in ("working_dir", "active_file", "git_ref", "fs_scope_tier")
        }
        if self.selection is None:
            return fields
        selection = {
            f"selection.{name}": getattr(self.selection, name) for name in Selection.__struct_fields__
        }
        return {**fields, "selection": str(self.selection), **selection}


def has_slot(settings: Settings) -> bool:
    """Whether a prompt may hold a slot; only then the workspace is read."""
    return any(text is not None and _SLOT.search(text) for text in (settings.prompt, settings.prompt_patch))


_decode_workspace = json_decoder(Workspace)


def stored_workspace(data: bytes | None) -> Workspace | None:
    """Read a stored workspace; None if there is none, or for an unknown form of another program."""
    try:
        return None if data is None else _decode_workspace(data)
    except (msgspec.MsgspecError, InvalidArgument):
        return None


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidArgument(name, value, "text")
    check_text(value, name)


def _git_ref(folder: Path) -> str | None:
    """Return the branch or commit checked out in this folder or a parent, without running git."""
    for parent in (folder, *folder.parents):
        place = parent / ".git"
        try:
            if place.is_file():  # a worktree or a submodule: it names the folder that holds its HEAD
                place = parent / place.read_text(encoding="utf-8").strip().removeprefix("gitdir: ")
            elif not place.exists():
                continue
            return (place / "HEAD").read_text(encoding="utf-8").strip().removeprefix("ref: refs/heads/")
        except (OSError, UnicodeDecodeError):
            return None
    return None
