"""Restore the files that the workspace tools wrote after an entry of the path, and bring them forward again.

A plan compares three states of each file: before the first write that is left behind, after the last one, and now. If
a file is now neither what the tools left nor what the rewind left, something else changed it, and it is refused. Files
are restored one by one, each by a rename, and before the leaf moves: after a crash the same rewind continues, and what is
restored already needs nothing. Does not know what a shell command or another program wrote.

What an import says was written is only a claim: its paths and contents are a stranger's. It is restored if the caller
names the folder and accepts it, only inside that folder, and never as a program.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Literal

from msgspec import Struct

from oakleaf import Cut, Leaf, Session
from oakleaf.core.media import digest
from oakleaf.errors import InvalidOperation, OutOfScope
from oakleaf.ext import Move, read
from oakleaf_workspace.errors import FilesChanged
from oakleaf_workspace.file_changes import FileChange, FileVersion, file_changes
from oakleaf_workspace.files import printable, read_snapshot, replace_file
from oakleaf_workspace.scope import Scope, name_in_errors, open_at

ActionKind = Literal["restore", "recreate", "delete", "nothing", "refused"]
Folder = str | os.PathLike[str]


class FileAction(Struct, frozen=True):
    """The effect of a rewind or a redo on a file."""

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
    is_imported: bool = False
    """Whether a write of it came with an import."""

    @property
    def location(self) -> str:
        return str(Path(self.root, self.path))


class FilesPlan(Struct, frozen=True):
    """The effect of moving to entry `to` on files: a rewind with the files written after, a redo with the
    files up to there.
    """

    session_id: str
    to: int
    actions: tuple[FileAction, ...]

    @property
    def changes(self) -> tuple[FileAction, ...]:
        """The restored, recreated or deleted files."""
        return tuple(action for action in self.actions if action.kind not in ("nothing", "refused"))

    @property
    def refused(self) -> tuple[FileAction, ...]:
        return tuple(action for action in self.actions if action.kind == "refused")

    def raise_if_refused(self) -> None:
        """Raise `FilesChanged` if a file is refused."""
        if self.refused:
            raise FilesChanged([(action.location, action.reason) for action in self.refused])

    def summary(self) -> str:
        """The number of files of each kind after the plan: "2 restored, 1 deleted"."""
        verbs: dict[ActionKind, str] = {
            "restore": "restored",
            "recreate": "recreated",
            "delete": "deleted",
            "refused": "left as they are",
        }
        counts = Counter(action.kind for action in self.actions)
        parts = [f"{counts[kind]} {verb}" for kind, verb in verbs.items() if counts[kind]]
        return ", ".join(parts) or "no files changed"

    def lines(self) -> list[str]:
        """The plan for people: a line per file."""
        return [
            f"{action.kind:<9} {printable(action.location)}"
            + (" (from an import)" if action.is_imported else "")
            + (f": {action.reason}" if action.reason else "")
            for action in self.actions
        ]


class _Group(Struct, frozen=True):
    """The writes of a file, each with the seq of the entry, oldest first."""

    changes: list[tuple[int, FileChange]]
    foreign: list[bool]

    @property
    def is_foreign(self) -> bool:
        return any(self.foreign)


def plan_rewind(
    session: Session, to: int, folder: Folder | None = None, *, accept_imported: bool = False
) -> FilesPlan:
    """Plan to restore the files at entry `to` of the path. `folder` is the only one that is written to; by
    default the workspaces that the entries name. What came with an import is refused, unless it is accepted and the
    folder is named."""
    if session.row.relation == "replay":
        raise InvalidOperation(
            "a replay wrote no files, so there are none to restore", "rewind its source instead"
        )
    return _plan_move(session, read(session).rewind_move(to), folder, accept_imported)


def rewind(
    session: Session,
    to: int,
    folder: Folder | None = None,
    *,
    summary: str | None = None,
    skip_changed: bool = False,
    accept_imported: bool = False,
) -> Cut:
    """Restore the files of `plan_rewind`, then `session.rewind(to)`.

    Raises `FilesChanged` if a file was changed elsewhere, unless `skip_changed` leaves those as they are. Files that an
    import names are restored with `accept_imported=True` only, and only in the `folder`.
    """
    read(session).check_free()
    plan = plan_rewind(session, to, folder, accept_imported=accept_imported)
    _restore_files(session, plan, skip_changed=skip_changed)
    return session.rewind(to, summary=summary)


def plan_redo(session: Session, folder: Folder | None = None, *, accept_imported: bool = False) -> FilesPlan:
    """Plan to write the files for the goal of `session.redo()`."""
    return _plan_move(session, read(session).redo_move(), folder, accept_imported, is_forward=True)


def redo(
    session: Session,
    folder: Folder | None = None,
    *,
    skip_changed: bool = False,
    accept_imported: bool = False,
) -> Leaf:
    """Write the files of `plan_redo`, then `session.redo()`; under the rules of `rewind`."""
    read(session).check_free()
    plan = plan_redo(session, folder, accept_imported=accept_imported)
    _restore_files(session, plan, skip_changed=skip_changed)
    return session.redo()


def _plan_move(
    session: Session, move: Move, folder: Folder | None, accept_imported: bool, *, is_forward: bool = False
) -> FilesPlan:
    if move.entries is None:
        raise InvalidOperation(
            "the redo goes to another branch, whose files are not known here",
            "session.redo() moves without them",
            "leave out --files",
        )
    scope = _RestoreScope(None if folder is None else os.path.realpath(folder), accept_imported)
    groups = _changes_by_file(move)
    actions = tuple(_plan(session, group, scope, is_forward=is_forward) for group in groups)
    return FilesPlan(session.session_id, move.to, actions)


class _RestoreScope(Struct, frozen=True):
    """Where files may be restored."""

    folder: str | None
    """The only folder; None: those that this store's own entries name."""
    accepts_imported: bool

    def refusal(self, group: _Group) -> str | None:
        """Return why nothing is restored where the entries say. A stranger's path is compared, and not looked up."""
        root = group.changes[0][1].root
        if group.is_foreign and (self.folder is None or not self.accepts_imported):
            return "it came with an import; name the folder to restore in, and accept it (accept_imported)"
        if group.is_foreign and root != self.folder:
            return f"it came with an import and was written elsewhere, not in {self.folder}"
        if self.folder is not None and os.path.realpath(root) != self.folder:
            return f"it is not in {self.folder}"
        if os.path.realpath(root) != root or not os.path.isdir(root):
            return "its workspace is gone, or is a symbolic link now"
        return None


def _changes_by_file(move: Move) -> list[_Group]:
    groups: dict[tuple[str, str], _Group] = {}
    for seq, change in file_changes(move.entries or ()):
        group = groups.setdefault((change.root, change.path), _Group([], []))
        group.changes.append((seq, change))
        group.foreign.append(seq in move.imported)
    return list(groups.values())


def _restore_files(session: Session, plan: FilesPlan, *, skip_changed: bool) -> None:
    """Carry out a plan; raise `FilesChanged` before any write for a refused file."""
    if not skip_changed:
        plan.raise_if_refused()
    for action in plan.changes:
        with name_in_errors(action.location):
            _restore(session, action)


def _plan(session: Session, group: _Group, scope: _RestoreScope, *, is_forward: bool = False) -> FileAction:
    changes = group.changes
    (seq, first), (_, last) = changes[0], changes[-1]
    target, expected = (last.after, first.before) if is_forward else (first.before, last.after)

    def action(kind: ActionKind, reason: str = "") -> FileAction:
        now_expected = None if kind == "recreate" else expected
        return FileAction(kind, first.root, first.path, seq, target, now_expected, reason, group.is_foreign)

    if (refusal := scope.refusal(group)) is not None:
        return action("refused", refusal)
    try:
        Scope(Path(first.root)).check_writable(first.path)
        now = _hash(lambda: Scope(Path(first.root)).open(first.path))
    except (OSError, OutOfScope) as error:
        return action(
            "refused", getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        )
    if first.is_before_lost and not is_forward:
        return action("refused", f"what it was before entry {seq} was lost when the call was interrupted")
    if now == (None if target is None else target.hash):
        return action("nothing")
    if (reason := _obstacle(session, changes, target)) is not None:
        return action("refused", reason)
    if now is None:
        return action("recreate")
    if expected is None or now != expected.hash:
        since = "the rewind" if is_forward else f"entry {changes[-1][0]}"
        return action("refused", f"it was changed elsewhere since {since}")
    return action("delete" if target is None else "restore")


def _obstacle(
    session: Session, group: Sequence[tuple[int, FileChange]], target: FileVersion | None
) -> str | None:
    """Return why the version cannot be restored whatever the file is now."""
    for (_, earlier), (seq, later) in pairwise(group):
        if later.before is None or later.before.hash != earlier.after.hash:
            return f"it was changed elsewhere before entry {seq}"
    if target is None or not target.size:
        return None
    if target.not_kept:
        return f"what it was is not kept: {target.not_kept}"
    if read(session).blob(target.blob_hash) is None:
        return "what it was is not in this store"
    return None


def _hash(open_file: Callable[[], BinaryIO]) -> str | None:
    """Return the hash of the present file; None for a missing file."""
    try:
        with open_file() as file:
            snapshot = read_snapshot(file)
    except FileNotFoundError:
        return None
    return snapshot.hash if snapshot.data is None else digest(snapshot.data)


def _restore(session: Session, action: FileAction) -> None:
    """Write a file unchanged since the plan."""
    with Scope(Path(action.root)).parent(action.path) as (parent_fd, name):
        expected = None if action.expected is None else action.expected.hash
        if _hash(lambda: open_at(parent_fd, name, action.path)) != expected:
            raise FilesChanged([(action.location, "it was changed elsewhere in this moment")])
        if action.target is None:
            os.unlink(name, dir_fd=parent_fd)
        else:
            data = read(session).blob(action.target.blob_hash) if action.target.size else b""
            if data is None:
                raise FilesChanged([(action.location, "what it was is not in this store")])
            mode = _mode(parent_fd, name, action) if action.is_imported else action.target.mode
            replace_file(parent_fd, name, data, None, mode)
        os.fsync(parent_fd)


def _mode(parent_fd: int, name: str, action: FileAction) -> int | None:
    """Return the mode for an imported file: the file's own, or the mode of any new file, so not a program's."""
    if action.expected is None:
        return None
    return os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode
