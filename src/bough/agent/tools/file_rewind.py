"""Restore the files that the workspace tools wrote after an entry of the path, and bring them forward again.

A plan compares three states of each file: before the first write that is left behind, after the last one, and now. If
a file is now neither what the tools left nor what the rewind left, something else changed it, and it is refused. Files
are restored one by one, each by a rename, and before the leaf moves: after a crash the same rewind continues, and what is
restored already needs nothing. Does not know what a shell command or another program wrote.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Literal

from msgspec import Struct

from ...core.entries import Entry
from ...core.file_changes import FileChange, FileVersion, file_changes
from ...core.media import digest
from ...errors import FilesChanged, InvalidOperation, OutOfScope
from ...log.log import Log
from .files import printable, read_snapshot, replace_file
from .scope import Scope, name_in_errors, open_at

ActionKind = Literal["restore", "recreate", "delete", "nothing", "refused"]


class FileAction(Struct, frozen=True):
    """What a rewind or a redo does with one file."""

    kind: ActionKind
    root: str
    path: str
    seq: int
    """The entry of the first write that is left behind, or done again."""
    target: FileVersion | None
    """What it becomes; None: it is deleted."""
    expected: FileVersion | None
    """What it must be now; None: there must be none."""
    reason: str = ""
    """Why it is refused."""

    @property
    def location(self) -> str:
        return str(Path(self.root, self.path))


class FilesPlan(Struct, frozen=True):
    """What moving to entry `to` does with the files: a rewind with those written after it, a redo with those up to it."""

    session_id: str
    to: int
    actions: tuple[FileAction, ...]

    @property
    def changes(self) -> tuple[FileAction, ...]:
        """What is restored, recreated or deleted."""
        return tuple(action for action in self.actions if action.kind not in ("nothing", "refused"))

    @property
    def refused(self) -> tuple[FileAction, ...]:
        return tuple(action for action in self.actions if action.kind == "refused")

    def lines(self) -> list[str]:
        """The plan for people: a line per file."""
        return [
            f"{action.kind:<9} {printable(action.location)}" + (f": {action.reason}" if action.reason else "")
            for action in self.actions
        ]


def plan_rewind(log: Log, to: int, folder: str | os.PathLike[str] | None = None) -> FilesPlan:
    """Plan to restore the files as they were at entry `to` of the path. `folder` is the only one that is written to; by
    default the workspaces that the entries name."""
    if log.store.session(log.session_id).relation == "replay":
        raise InvalidOperation(
            "a replay wrote no files, so there are none to restore", "rewind its source instead"
        )
    root = None if folder is None else os.path.realpath(folder)
    groups = _changes_by_file(log.path(since=to).entries)
    return FilesPlan(log.session_id, to, tuple(_plan(log, group, root) for group in groups))


def plan_redo(log: Log, folder: str | os.PathLike[str] | None = None) -> FilesPlan:
    """Plan to write the files as they were where `redo` goes."""
    leaf, target = log.leaf, log.redo_target()
    path = log.store.path(log.session_id, leaf=target, first=leaf.seq + 1)
    if leaf.seq and not any(part.branch == leaf.branch and leaf.seq <= part.last for part in path.ranges):
        raise InvalidOperation(
            "the redo goes to another branch, whose files are not known here", "leave out files"
        )
    root = None if folder is None else os.path.realpath(folder)
    groups = _changes_by_file(path.entries)
    actions = tuple(_plan(log, group, root, is_forward=True) for group in groups)
    return FilesPlan(log.session_id, target.seq, actions)


def _changes_by_file(entries: Iterable[Entry]) -> list[list[tuple[int, FileChange]]]:
    changes: dict[tuple[str, str], list[tuple[int, FileChange]]] = {}
    for seq, change in file_changes(entries):
        changes.setdefault((change.root, change.path), []).append((seq, change))
    return list(changes.values())


def restore_files(log: Log, plan: FilesPlan, *, skip_changed: bool = False) -> None:
    """Carry out a plan; raise `FilesChanged` before anything is written if a file of it is refused."""
    if plan.refused and not skip_changed:
        raise FilesChanged([(action.location, action.reason) for action in plan.refused])
    for action in plan.changes:
        with name_in_errors(action.location):
            _restore(log, action)


def _plan(
    log: Log, group: Sequence[tuple[int, FileChange]], folder: str | None, *, is_forward: bool = False
) -> FileAction:
    (seq, first), (_, last) = group[0], group[-1]
    target, expected = (last.after, first.before) if is_forward else (first.before, last.after)

    def action(kind: ActionKind, reason: str = "") -> FileAction:
        is_absent = kind == "recreate"
        return FileAction(kind, first.root, first.path, seq, target, None if is_absent else expected, reason)

    if folder is not None and os.path.realpath(first.root) != folder:
        return action("refused", f"it is not in {folder}")
    if os.path.realpath(first.root) != first.root or not os.path.isdir(first.root):
        return action("refused", "its workspace is gone, or is a symbolic link now")
    try:
        now = _hash(lambda: Scope(Path(first.root)).open(first.path))
    except (OSError, OutOfScope) as error:
        return action(
            "refused", getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        )
    if first.is_before_lost and not is_forward:
        return action("refused", f"what it was before entry {seq} was lost when the call was interrupted")
    if now == (None if target is None else target.hash):
        return action("nothing")
    if (reason := _obstacle(log, group, target)) is not None:
        return action("refused", reason)
    if now is None:
        return action("recreate")
    if expected is None or now != expected.hash:
        since = "the rewind" if is_forward else f"entry {group[-1][0]}"
        return action("refused", f"it was changed elsewhere since {since}")
    return action("delete" if target is None else "restore")


def _obstacle(log: Log, group: Sequence[tuple[int, FileChange]], target: FileVersion | None) -> str | None:
    """Return why the version cannot be restored whatever the file is now."""
    for (_, earlier), (seq, later) in pairwise(group):
        if later.before is None or later.before.hash != earlier.after.hash:
            return f"it was changed elsewhere before entry {seq}"
    if target is None or not target.size:
        return None
    if target.not_kept:
        return f"what it was is not kept: {target.not_kept}"
    if log.read_blob(target.blob_hash) is None:
        return "what it was is not in this store"
    return None


def _hash(open_file: Callable[[], BinaryIO]) -> str | None:
    """Return the hash of the file as it is now; None if there is none."""
    try:
        with open_file() as file:
            snapshot = read_snapshot(file)
    except FileNotFoundError:
        return None
    return snapshot.hash if snapshot.data is None else digest(snapshot.data)


def _restore(log: Log, action: FileAction) -> None:
    """Write one file, unless it has changed since the plan was made."""
    with Scope(Path(action.root)).parent(action.path) as (parent_fd, name):
        expected = None if action.expected is None else action.expected.hash
        if _hash(lambda: open_at(parent_fd, name, action.path)) != expected:
            raise FilesChanged([(action.location, "it was changed elsewhere in this moment")])
        if action.target is None:
            os.unlink(name, dir_fd=parent_fd)
        else:
            data = log.read_blob(action.target.blob_hash) if action.target.size else b""
            if data is None:
                raise FilesChanged([(action.location, "what it was is not in this store")])
            replace_file(parent_fd, name, data, None, action.target.mode)
        os.fsync(parent_fd)


def count_text(actions: Iterable[FileAction]) -> str:
    """Return how many files of each kind: "2 restored, 1 deleted"."""
    verbs: dict[ActionKind, str] = {
        "restore": "restored",
        "recreate": "recreated",
        "delete": "deleted",
        "refused": "left as they are",
    }
    counts = Counter(action.kind for action in actions)
    parts = [f"{counts[kind]} {verb}" for kind, verb in verbs.items() if counts[kind]]
    return ", ".join(parts) or "no files changed"
