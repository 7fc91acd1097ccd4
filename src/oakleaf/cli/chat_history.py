"""The inputs that were typed in chats on this machine, each as JSON in a line of one file."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from oakleaf.cli.store_option import default_store
from oakleaf.ext import atomic_file


def history_path() -> Path:
    return default_store().parent / "chat_history"


def decode_input(line: bytes) -> str | None:
    """Return the input of a line; None for a line that was cut by a full disk."""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(line, type=str)
    return None


def forget_inputs(inputs: Collection[str]) -> int:
    """Remove inputs from the file; return the number of changed lines."""
    path = history_path()
    if not path.exists():
        return 0
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if decode_input(line) not in (None, *inputs)]
    if len(kept) < len(lines):
        with atomic_file(path) as file:
            file.writelines(kept)
        path.chmod(0o600)
    return len(lines) - len(kept)
