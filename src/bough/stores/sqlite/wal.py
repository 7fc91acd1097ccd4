"""The write-ahead log as a file: grown before it is needed, folded into the store when it is long.

Knows frames and bytes; does not know what is written. A sync of bytes appended to a file also has to make the
file's new length durable, a sync of bytes that overwrite others has not: measured here 550 µs against 340 for
the same commit. SQLite overwrites only once the log has been folded for the first time, 8 MB on, and the last
one to close the store deletes it. So zeros are laid out ahead of the frames. They are no frames: a recovery
stops at the first frame without the log's own salt, whatever lies there.
"""

from __future__ import annotations

import contextlib
import os

import apsw

FOLD_AT = 1_000
"""Frames; what SQLite does by itself. A hook of our own takes the place of that one."""
FIRST, MOST = (
    1 << 18,
    1 << 20,
)  # bytes laid out at once: little for who writes once, never so much as to be felt
NEAR = 1 << 17  # an ordinary commit writes 35 kB


class Wal:
    def __init__(self, path: str, writer: apsw.Connection, *, is_synced: bool) -> None:
        self._path = f"{path}-wal"
        self._frame = int(writer.execute("pragma page_size").get) + 24
        self._whole = self._used = self._laid_out = 0
        if is_synced:  # who does not sync need not care
            self._whole = FOLD_AT * self._frame
            writer.set_wal_hook(self._written)

    def _written(self, writer: apsw.Connection, _: str, frames: int) -> int:
        used = frames * self._frame
        if used < self._used:
            self._laid_out = 0  # begun anew, and perhaps cut short before that
        self._used = used
        if frames >= FOLD_AT:
            with contextlib.suppress(apsw.Error):  # the commit stands; the next one folds
                writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return apsw.SQLITE_OK

    def lay_out(self) -> None:
        """See that the next commit overwrites. Within a transaction that writes: nobody else may append then."""
        if not self._ends_soon():
            return
        # Not having the room is no reason to refuse: if the commit has it not either, it says so.
        with contextlib.suppress(OSError), open(self._path, "r+b", buffering=0) as file:
            self._laid_out = file.seek(0, os.SEEK_END)
            if self._ends_soon():
                self._laid_out += file.write(bytes(min(max(FIRST, self._laid_out), MOST)))

    def _ends_soon(self) -> bool:
        return self._laid_out < self._whole and self._used + NEAR > self._laid_out
