"""The inputs that were typed in chats on this machine, each as JSON in a line of one file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from oakleaf.cli.store_option import default_store
from oakleaf.ext import atomic_file


def history_path() -> Path:
    return default_store().parent / "chat_history"


def forget_inputs(inputs: Collection[str]) -> int:
    """Remove inputs from the file; return how many lines had one."""
    path = history_path()
    if not path.exists():
        return 0
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if msgspec.json.decode(line) not in inputs]
    if len(kept) < len(lines):
        with atomic_file(path) as file:
            file.writelines(kept)
        path.chmod(0o600)
    return len(lines) - len(kept)
