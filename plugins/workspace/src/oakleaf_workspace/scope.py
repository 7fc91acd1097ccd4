"""Which files and commands the workspace tools may use.

Knows which paths a tier allows, and opens them so that nothing can be swapped between check and use: every name
of a path is opened relative to the folder before it, and no symbolic link is followed. Does not know what is read,
written or run. It restricts our own tools and is not a sandbox of the operating system: a program on the allow-list
may do whatever its user may.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

from oakleaf import Workspace
from oakleaf.errors import InvalidArgument, OutOfScope, PlatformUnsupported
from oakleaf.ext import ScopeTier

_CAN_OPEN_BELOW = hasattr(os, "O_NOFOLLOW") and os.open in os.supports_dir_fd
"""Windows can neither open a file relative to a folder that is open nor refuse to follow a link."""
if _CAN_OPEN_BELOW:
    _FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    _FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_KERNEL_FOLDERS = tuple(PurePosixPath(folder) for folder in ("/proc", "/sys", "/dev"))
"""Never user files; /proc/self/environ contains the keys of this process."""


class Scope(Struct, frozen=True):
    """A folder, a tier, and the permitted commands.

    | | sandboxed (the default) | project | full |
    |---|---|---|---|
    | read, list, search | inside root | inside root | anywhere |
    | write, edit | inside root, not in `.git` | inside root, not in `.git` | anywhere |
    | symbolic links | refused | refused | resolved before opening |
    | commands | on the allow-list, no argument that may be a path outside root or in `.git` | on the allow-list | any |
    | programs are looked up in | PATH without relative folders and those inside root | PATH without relative folders | PATH |
    | commands that need a person's approval | a commit or what may be one; programs and options that run any program | a commit or what may be one | a commit or what may be one |
    | git | in root's own repository, without hooks, no option that names a program, a setting or another repository | any | any |
    | environment | a short list of variables, and those named in `env` | the same | the same |
    | shell scripts | no | no | yes |

    At every tier: no control character in a path, regular files and folders only (no device, pipe or socket),
    nothing below /proc, /sys or /dev. `.git` is not written because its hooks and settings name programs that
    even `git status` runs. In doubt, access is refused.
    """

    root: Path
    tier: ScopeTier = "sandboxed"
    commands: frozenset[str] = frozenset()
    """The first word or words of each allowed command: `pytest`, `git status`. Whoever allows a command allows what it
    does: `pytest` and `make` run the code they find."""
    env: frozenset[str] = frozenset()
    """Names of variables that commands inherit besides PATH, HOME, USER, SHELL, TERM, TMPDIR, TZ, LANG and the like."""

    def __post_init__(self) -> None:
        check_variable_names(self.env)
        if self.tier not in get_args(ScopeTier):
            raise InvalidArgument("tier", self.tier, "sandboxed, project or full")
        if not _CAN_OPEN_BELOW:
            raise PlatformUnsupported("the workspace tools", "Linux or macOS (or WSL)")
        force_setattr(self, "root", Path(os.path.realpath(self.root)))

    @classmethod
    def of(cls, workspace: Workspace, commands: Iterable[str] = (), env: Iterable[str] = ()) -> Scope:
        folder = Path(workspace.working_dir)
        return cls(folder, workspace.fs_scope_tier, frozenset(commands), frozenset(env))

    def locate(self, path: str) -> tuple[str, str]:
        """Return a folder and the path below: the workspace's folder, or / for a path outside."""
        base, names = self._split(path)
        absolute = base.joinpath(*names)
        if absolute.is_relative_to(self.root):
            return str(self.root), absolute.relative_to(self.root).as_posix()
        return "/", absolute.relative_to("/").as_posix()

    def open(self, path: str) -> BinaryIO:
        """Open a regular file for reading."""
        base, names = self._split_file(path)
        with _open_folder(base, names[:-1], path) as parent_fd, name_in_errors(path):
            return open_at(parent_fd, names[-1], path)

    @contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """Yield the descriptor of a folder for listing."""
        base, names = self._split(path)
        with _open_folder(base, names, path) as folder_fd:
            yield folder_fd

    @contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of the parent of `path`, created if missing, and the name to write."""
        base, names = self.check_writable(path)
        with _open_folder(base, names[:-1], path, create=True) as parent_fd:
            yield parent_fd, names[-1]

    def check_writable(self, path: str) -> tuple[Path, tuple[str, ...]]:
        """Raise OutOfScope for an unwritable path; return the folder to start from and the names below."""
        base, names = self._split_file(path)
        if self.tier != "full" and any(name.casefold() == ".git" for name in names):
            raise OutOfScope(path, "files in .git name programs that git runs")
        return base, names

    def _split_file(self, path: str) -> tuple[Path, tuple[str, ...]]:
        base, names = self._split(path)
        if not names:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return base, names

    def _split(self, path: str) -> tuple[Path, tuple[str, ...]]:
        """Return the folder to start from and the names below. Reads no file, except at tier full."""
        parsed = _parse(path)
        if self.tier == "full":
            base, names = Path("/"), Path(os.path.realpath(self.root / parsed)).parts[1:]
        else:
            base, names = self.root, self._names_below_root(parsed, path)
        absolute = PurePosixPath(base, *names)
        if any(absolute.is_relative_to(folder) for folder in _KERNEL_FOLDERS):
            raise OutOfScope(path, "it is below /proc, /sys or /dev")
        return base, names

    def _names_below_root(self, parsed: PurePosixPath, path: str) -> tuple[str, ...]:
        """Return the names below root, or raise OutOfScope."""
        parts = parsed.parts
        if parsed.is_absolute():
            root = self.root.parts
            if parts[: len(root)] != root:
                raise OutOfScope(path, f"it is not inside {self.root}")
            parts = parts[len(root) :]
        names: list[str] = []
        for part in parts:
            if part != "..":
                names.append(part)
            elif names:
                names.pop()
            else:
                raise OutOfScope(path, f"it leads out of {self.root}")
        return tuple(names)


def check_variable_names(names: Iterable[str]) -> None:
    for name in names:
        if not _VARIABLE_NAME.fullmatch(name):
            raise InvalidArgument("env", name, "the name of an environment variable, without a value")


def open_at(parent_fd: int, name: str, path: str) -> BinaryIO:
    """Open a regular file of an open folder. Its type is checked before, because opening a device can already have
    an effect, and after, because the file may have been replaced in between."""
    _check_type(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode, path, may_be_folder=False)
    try:
        fd = os.open(name, _FILE_FLAGS, dir_fd=parent_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise OutOfScope(path, "it is a symbolic link") from None
        raise
    try:
        _check_type(os.fstat(fd).st_mode, path, may_be_folder=False)
        return os.fdopen(fd, "rb")
    except BaseException:  # also Ctrl-C: no file object owns the descriptor yet
        os.close(fd)
        raise


def _parse(path: str) -> PurePosixPath:
    if not isinstance(path, str):
        raise OutOfScope(repr(path), "a path must be a string")
    if not path:
        raise OutOfScope(path, "the path is empty; use '.' for the workspace itself")
    if any(ord(char) < 32 or ord(char) == 127 for char in path):
        raise OutOfScope(path, "it contains a control character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise OutOfScope(repr(path), "it contains a lone surrogate") from None
    first, _, rest = path.partition("/")
    if first == "~" or (first.startswith("~") and rest):
        raise OutOfScope(path, "~ is not expanded")
    return PurePosixPath(path)


@contextmanager
def _open_folder(base: Path, names: Sequence[str], path: str, *, create: bool = False) -> Iterator[int]:
    """Open folder after folder and yield the descriptor of the last."""
    with name_in_errors(path):
        fd = os.open(base, _FOLDER_FLAGS)
    try:
        with name_in_errors(path):
            for name in names:
                parent_fd, fd = fd, _enter(fd, name, path, create)
                os.close(parent_fd)
        yield fd
    finally:
        os.close(fd)


def _enter(fd: int, name: str, path: str, create: bool) -> int:
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=fd)
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=fd)
    except OSError as error:
        # For a symbolic link Linux reports ENOTDIR, other systems ELOOP or EMLINK.
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK):
            _check_type(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode, path)
        raise


def _check_type(mode: int, path: str, may_be_folder: bool = True) -> None:
    if stat.S_ISLNK(mode):
        raise OutOfScope(path, "it contains a symbolic link")
    if stat.S_ISDIR(mode):
        if not may_be_folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    elif not stat.S_ISREG(mode):
        raise OutOfScope(path, "it is a device, pipe or socket")


@contextmanager
def name_in_errors(path: str) -> Iterator[None]:
    """Let errors of the system name the whole path, not the name at the end of the walk."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
