"""How far a workspace tool may reach.

Knows which paths a tier allows and opens them so that nothing can be swapped between the check and the
use: every name on the way is opened relative to the folder before it, and no symbolic link is followed.
Does not know what is read, written or run. It binds our own tools; it is no sandbox of the operating
system, so a program that the allow-list lets start may do whatever its user may.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

from ...errors import InvalidArgument, OutOfScope
from ...log.workspace import Workspace

Tier = Literal["sandboxed", "project", "full"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KERNEL = tuple(PurePosixPath(place) for place in ("/proc", "/sys", "/dev"))
"""Never files of a person; /proc/self/environ holds the keys of this very process."""


class Scope(Struct, frozen=True):
    """One folder, one tier, the commands that may start.

    | | sandboxed (the default) | project | full |
    |---|---|---|---|
    | read, list, search | inside root | inside root | anywhere |
    | write, edit | inside root, not in `.git` | inside root, not in `.git` | anywhere |
    | symbolic links | refused | refused | followed, then opened without |
    | commands | on the allow-list, no argument that may lead out of root or into `.git` | on the allow-list | any |
    | program found on | PATH without relative folders and those inside root | PATH without relative folders | PATH |
    | environment | a short list of names | all but what looks secret | all but what looks secret |
    | a line for `sh` | no | no | yes |

    At every tier: no NUL or control character in a path, plain files and folders only (no device, pipe or
    socket), nothing below /proc, /sys or /dev. `.git` is not written because its hooks and settings name
    programs that the most harmless `git status` runs. In doubt the answer is no.
    """

    root: Path
    tier: Tier = "sandboxed"
    commands: frozenset[str] = frozenset()
    """The first word or words of what may start: `pytest`, `git status`."""

    def __post_init__(self) -> None:
        if self.tier not in get_args(Tier):
            raise InvalidArgument("tier", self.tier, "sandboxed, project or full")
        force_setattr(self, "root", Path(os.path.realpath(self.root)))

    @classmethod
    def of(cls, workspace: Workspace, commands: Iterable[str] = ()) -> Scope:
        return cls(Path(workspace.working_dir), workspace.fs_scope_tier, frozenset(commands))

    def resolve(self, path: str) -> Path:
        """Where `path` is, or OutOfScope. To show and compare: whoever reads or writes goes through
        `open`, `folder` or `parent`, which look again at every step."""
        base, names = self._place(path)
        with suppress(FileNotFoundError), _told_as(path):
            above = _descend(os.open(base, _FOLDER), names[:-1], path, make=False)
            try:
                if names:
                    _refuse_odd(os.stat(names[-1], dir_fd=above, follow_symlinks=False).st_mode, path)
            finally:
                os.close(above)
        return base.joinpath(*names)

    def open(self, path: str) -> BinaryIO:
        """A plain file, to be read."""
        base, names = self._place(path)
        if not names:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        with _told_as(path):
            above = _descend(os.open(base, _FOLDER), names[:-1], path, make=False)
            try:
                return open_at(above, names[-1], path)
            finally:
                os.close(above)

    @contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """A folder as a descriptor, to be listed."""
        base, names = self._place(path)
        with _told_as(path):
            found = _descend(os.open(base, _FOLDER), names, path, make=False)
        try:
            yield found
        finally:
            os.close(found)

    @contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The folder, made if missing, and the name in it under which `path` may be written."""
        base, names = self._place(path)
        if not names:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if self.tier != "full" and any(name.casefold() == ".git" for name in names):
            raise OutOfScope(path, "what lies in .git names programs that git runs")
        with _told_as(path):
            above = _descend(os.open(base, _FOLDER), names[:-1], path, make=True)
        try:
            yield above, names[-1]
        finally:
            os.close(above)

    def _place(self, path: str) -> tuple[Path, tuple[str, ...]]:
        """The folder to start from and the names below it. Reads the text alone, except at tier full."""
        given = _plain(path)
        if self.tier == "full":
            base, names = Path("/"), Path(os.path.realpath(self.root / given)).parts[1:]
        else:
            base, names = self.root, self._inside(given, path)
        whole = PurePosixPath(base, *names)
        if any(whole.is_relative_to(place) for place in _KERNEL):
            raise OutOfScope(path, "below /proc, /sys and /dev are no files")
        return base, names

    def _inside(self, given: PurePosixPath, path: str) -> tuple[str, ...]:
        parts = given.parts
        if given.is_absolute():
            home = self.root.parts
            if parts[: len(home)] != home:
                raise OutOfScope(path, f"it is not inside {self.root}")
            parts = parts[len(home) :]
        names: list[str] = []
        for part in parts:
            if part != "..":
                names.append(part)
            elif names:
                names.pop()
            else:
                raise OutOfScope(path, f"it leads out of {self.root}")
        return tuple(names)


def open_at(above: int, name: str, path: str) -> BinaryIO:
    """A plain file of an open folder. Looked at before it is opened, because opening a device may already
    do something, and after, because it may have been swapped."""
    _refuse_odd(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode, path, folder_is_fine=False)
    try:
        found = os.open(name, _FILE, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise OutOfScope(path, "it is a symbolic link") from None
        raise
    try:
        _refuse_odd(os.fstat(found).st_mode, path, folder_is_fine=False)
        return os.fdopen(found, "rb")
    except BaseException:
        os.close(found)
        raise


def _plain(path: str) -> PurePosixPath:
    if not isinstance(path, str):
        raise OutOfScope(repr(path), "a path is text")
    if not path:
        raise OutOfScope(path, "a path is not empty; the workspace itself is '.'")
    if any(ord(char) < 32 or ord(char) == 127 for char in path):
        raise OutOfScope(path, "it holds a control character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise OutOfScope(repr(path), "it holds half a character") from None
    first, _, rest = path.partition("/")
    if first == "~" or (first.startswith("~") and rest):
        raise OutOfScope(path, "~ is not expanded")
    return PurePosixPath(path)


def _descend(start: int, names: Sequence[str], path: str, make: bool) -> int:
    """The descriptor of the last folder; `start` is closed whatever happens."""
    here = start
    for name in names:
        try:
            below = _enter(here, name, path, make)
        finally:
            os.close(here)
        here = below
    return here


def _enter(here: int, name: str, path: str, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=here)
    try:
        return os.open(name, _FOLDER, dir_fd=here)
    except OSError as error:
        # Linux says ENOTDIR for a link here, others ELOOP or EMLINK.
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK):
            _refuse_odd(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode, path)
        raise


def _refuse_odd(mode: int, path: str, folder_is_fine: bool = True) -> None:
    if stat.S_ISLNK(mode):
        raise OutOfScope(path, "a symbolic link is on the way")
    if stat.S_ISDIR(mode):
        if not folder_is_fine:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    elif not stat.S_ISREG(mode):
        raise OutOfScope(path, "it is a device, pipe or socket")


@contextmanager
def _told_as(path: str) -> Iterator[None]:
    """An error of the system names what was asked for, not the one name at which the walk stopped."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
