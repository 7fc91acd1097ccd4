"""The write-ahead log as a file: extended before it is needed, checkpointed when it is long.

Knows frames and bytes; does not know what is written. A sync of bytes appended to a file also has to make the
file's new length durable, a sync of bytes that overwrite others has not: measured here 550 µs against 340 for
the same commit. SQLite overwrites only after the first checkpoint, 8 MB on, and the last connection to close
deletes the log. So zeros are written ahead of the frames. They are no frames: a recovery stops at the first frame
without the log's own salt, whatever it contains.

A hook counts the frames until the log has its full length. Then SQLite's own checkpoints take over: a callback after each
commit, when the sync has left the processor's caches cold, took 20 µs of 350.
"""

from __future__ import annotations

import contextlib
import os

import apsw

CHECKPOINT_FRAMES = 1_000
"""SQLite's own default."""
ZEROS = bytes(1 << 16)
"""What is written at once. The pages of one long write are one piece of the system's cache, and each of the 15 short writes of
a commit looks at all of its piece: after zeros written by the megabyte one took 4 µs instead of 1.5."""
MIN_EXTENSION, MAX_EXTENSION = 1 << 17, 1 << 20  # little for a single commit, never enough to be noticed
MARGIN = 1 << 16  # an ordinary commit writes 12 kB


class Wal:
    def __init__(self, path: str, writer: apsw.Connection, *, is_synced: bool) -> None:
        self._path = f"{path}-wal"
        self._frame = int(writer.execute("pragma page_size").get) + 24
        self._full_size = self._used = self._extended_to = 0
        if is_synced:  # without syncs there is nothing to gain
            self._full_size = CHECKPOINT_FRAMES * self._frame
            self.restart(writer)

    def restart(self, writer: apsw.Connection) -> None:
        """Count the frames from the first: the log was truncated, or is new."""
        self._used = self._extended_to = 0
        if self._full_size:
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

    def extend(self, writer: apsw.Connection) -> None:
        """Make sure the next commit overwrites. Call within a write transaction, when no other process may append."""
        if not self._ends_soon():
            return
        # A full disk is no reason to refuse here: the commit reports it if it needs the space too.
        with contextlib.suppress(OSError), open(self._path, "r+b", buffering=0) as file:
            self._extended_to = file.seek(0, os.SEEK_END)
            if self._ends_soon():
                size = min(max(MIN_EXTENSION, self._extended_to), MAX_EXTENSION)
                for _ in range(0, size, len(ZEROS)):
                    self._extended_to += file.write(ZEROS)
        if self._extended_to >= self._full_size:
            writer.wal_autocheckpoint(CHECKPOINT_FRAMES)  # in place of the hook

    def _ends_soon(self) -> bool:
        return self._extended_to < self._full_size and self._used + MARGIN > self._extended_to
