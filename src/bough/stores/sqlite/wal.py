"""The write-ahead log as a file: extended before it is needed, checkpointed when it is long.

Knows frames and bytes; does not know what is written. A sync of bytes appended to a file also has to make the
file's new length durable, a sync of bytes that overwrite others has not: measured here 550 µs against 340 for
the same commit. SQLite overwrites only after the first checkpoint, 8 MB on, and the last connection to close
deletes the log. So zeros are written ahead of the frames. They are no frames: a recovery stops at the first frame
without the log's own salt, whatever it contains.
"""

from __future__ import annotations

import contextlib
import os

import apsw

CHECKPOINT_FRAMES = 1_000
"""SQLite's own default; our hook replaces SQLite's."""
MIN_EXTENSION, MAX_EXTENSION = (
    1 << 17,
    1 << 20,
)  # bytes added at once: little for a single write, never enough to be noticed
MARGIN = 1 << 16  # an ordinary commit writes 12 kB


class Wal:
    def __init__(self, path: str, writer: apsw.Connection, *, is_synced: bool) -> None:
        self._path = f"{path}-wal"
        self._frame = int(writer.execute("pragma page_size").get) + 24
        self._full_size = self._used = self._extended_to = 0
        if is_synced:  # without syncs there is nothing to gain
            self._full_size = CHECKPOINT_FRAMES * self._frame
            writer.set_wal_hook(self._on_commit)

    def _on_commit(self, writer: apsw.Connection, _: str, frames: int) -> int:
        used = frames * self._frame
        if used < self._used:
            self._extended_to = 0  # the log was restarted, and perhaps truncated before that
        self._used = used
        if frames >= CHECKPOINT_FRAMES:
            with contextlib.suppress(apsw.Error):  # the commit is done; the next one tries again
                writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return apsw.SQLITE_OK

    def extend(self) -> None:
        """Make sure the next commit overwrites. Call within a write transaction, when no other process may append."""
        if not self._ends_soon():
            return
        # A full disk is no reason to refuse here: the commit reports it if it needs the space too.
        with contextlib.suppress(OSError), open(self._path, "r+b", buffering=0) as file:
            self._extended_to = file.seek(0, os.SEEK_END)
            if self._ends_soon():
                self._extended_to += file.write(
                    bytes(min(max(MIN_EXTENSION, self._extended_to), MAX_EXTENSION))
                )

    def _ends_soon(self) -> bool:
        return self._extended_to < self._full_size and self._used + MARGIN > self._extended_to
