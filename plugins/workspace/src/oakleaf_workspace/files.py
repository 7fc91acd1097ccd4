"""Read, write, edit, list and search the files of a workspace.

Knows text, lines and size limits. Does not know what is in scope (`scope` opens every file for it) nor where long
outputs are stored: `spill` stores one and returns its handle, `read_spill` pages through it. The function passed as
`spill` must redact what it stores, and its counterpart must return only what the same session stored.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import unified_diff
from fnmatch import fnmatchcase
from hashlib import sha256
from operator import attrgetter
from typing import BinaryIO

from msgspec import Struct

from oakleaf.errors import InvalidArgument, OutOfScope
from oakleaf_workspace.file_changes import MAX_KEPT_BYTES
from oakleaf_workspace.scope import Scope, open_at

Spill = Callable[[bytes, str], str]
"""Stores bytes of a media type and returns their handle."""
ReadSpill = Callable[[str], bytes]
"""Returns the bytes stored under a handle."""

MAX_SHOWN_BYTES = 16_000
"""The maximum bytes of one output that a model sees; longer output is spilled."""
_MAX_FILE_BYTES = 16 * 1024 * 1024
_MAX_SEARCHED_FILE_BYTES = 2 * 1024 * 1024
_MAX_SEARCHED_BYTES = 32 * 1024 * 1024
_MAX_VISITED = 50_000
_MAX_MATCHES = 500
_MAX_LINE_LENGTH = 400
_SEARCH_SECONDS = 10
_SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", ".venv", "node_modules", "__pycache__", ".mypy_cache"})

_SEARCH_PROGRAM = """
import json, re, sys
request = json.load(sys.stdin)
search, matches = re.compile(request["pattern"]).search, []
for index, text in enumerate(request["texts"]):
    for number, line in enumerate(text.split("\\n"), 1):
        if len(matches) < request["max_matches"] and search(line):
            matches.append((index, number, line[: request["max_line_length"]]))
json.dump(matches, sys.stdout)
"""


class Snapshot(Struct, frozen=True):
    """A file's earlier state: the bytes, or of a file too large to keep the hash and size."""

    data: bytes | None
    hash: str = ""
    size: int = 0
    mode: int = 0


MAX_COMPARED_LINES = 5_000
"""Longer files are previewed by their size: comparing lines takes time that grows with the square of their number."""

OnWrite = Callable[[str, str, Snapshot | None, Snapshot], None]
"""Called after a write with the root, the path below it, and the file before and after."""


def read_snapshot(file: BinaryIO) -> Snapshot:
    """Read a file; of a file too large to keep only the hash."""
    mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    data = file.read(MAX_KEPT_BYTES + 1)
    if len(data) <= MAX_KEPT_BYTES:
        return Snapshot(data, mode=mode)
    hash_, size = sha256(data), len(data)
    while chunk := file.read(1 << 20):
        hash_.update(chunk)
        size += len(chunk)
    return Snapshot(None, hash_.hexdigest(), size, mode)


class Files:
    """The file tools of a workspace. Paths are relative to its root."""

    def __init__(
        self, scope: Scope, spill: Spill, read_spilled: ReadSpill, on_write: OnWrite | None = None
    ) -> None:
        self._scope, self._spill, self._read_spilled = scope, spill, read_spilled
        self._on_write = on_write

    def read_file(self, path: str, offset: int = 1, limit: int = 2_000) -> str:
        """Read a text file with line numbers, from line `offset` on, at most `limit` lines."""
        _check_minimum("offset", offset, 1)
        _check_minimum("limit", limit, 1)
        data = self._bytes(path)
        if b"\0" in data:
            return f"{path} is a binary file of {len(data):,} bytes; its content is not shown"
        lines = text_of(data).split("\n")
        if lines[-1] == "":
            lines.pop()
        if offset > max(len(lines), 1):
            raise InvalidArgument("offset", offset, f"a line of {path}, which has {len(lines)} lines")
        end = min(offset - 1 + limit, len(lines))
        numbered = [f"{n + 1:>6}\t{lines[n].removesuffix(chr(13))}" for n in range(offset - 1, end)]
        if not numbered:
            return f"{path} is empty"
        if end < len(lines):
            numbered.append(f"[lines {offset}–{end} of {len(lines)}; continue with offset={end + 1}]")
        return truncate("\n".join(numbered), self._spill)

    def write_file(self, path: str, text: str) -> str:
        """Write a whole file; missing folders are created. It is written completely or not at all."""
        data = _encode("text", text)
        with self._scope.parent(path) as (parent_fd, name):
            before_stat = _stat_writable(parent_fd, name, path)
            before = self._snapshot(parent_fd, name, path)
            replace_file(parent_fd, name, data, before_stat)
            self._report_write(path, before, data, _mode(parent_fd, name))
        return f"{'created' if before_stat is None else 'replaced'} {path}: {len(data):,} bytes"

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace `old`, which must occur exactly once, by `new`. All other bytes stay the same."""
        with self._scope.parent(path) as (parent_fd, name):
            before_stat = _stat_writable(parent_fd, name, path)
            if before_stat is None:
                raise FileNotFoundError(2, os.strerror(2), path)
            with open_at(parent_fd, name, path) as file:
                data = _check_size(file.read(_MAX_FILE_BYTES + 1), path)
            edited, line = _edit(data, path, old, new)
            replace_file(parent_fd, name, edited, before_stat)
            mode = stat.S_IMODE(before_stat.st_mode)
            self._report_write(path, Snapshot(data, mode=mode), edited, _mode(parent_fd, name))
        return f"edited {path} at line {line}"

    def preview_write(self, path: str, text: str) -> str:
        """Return the difference that `write_file` would make; nothing is written."""
        self._scope.check_writable(path)
        try:
            before = self._bytes(path)
        except FileNotFoundError:
            before = b""
        return self._difference(path, before, _encode("text", text))

    def preview_edit(self, path: str, old: str, new: str) -> str:
        """Return the difference that `edit_file` would make; nothing is written."""
        self._scope.check_writable(path)
        before = self._bytes(path)
        return self._difference(path, before, _edit(before, path, old, new)[0])

    def _difference(self, path: str, before: bytes, after: bytes) -> str:
        if before == after:
            return f"would leave {path} as it is"
        if max(before.count(b"\n"), after.count(b"\n")) > MAX_COMPARED_LINES or b"\0" in before + after:
            return f"would write {path}: {len(after):,} bytes instead of {len(before):,}"
        old, new = (text_of(data).splitlines(keepends=True) for data in (before, after))
        lines = unified_diff(old, new, f"a/{path}" if before else "/dev/null", f"b/{path}")
        return truncate("".join(lines), self._spill)

    def list_files(self, pattern: str = "**/*", folder: str = ".") -> str:
        """List files by a glob: `*` and `?` match within a name, `**` any folders; `*.py` matches at any depth.
        Symbolic links are not followed; .git, node_modules and the like are listed only if the glob names them."""
        walk = _FolderWalk(self._scope, folder, pattern)
        names = [name for name, _ in walk.files()]
        return truncate("\n".join([*names, *walk.remarks(len(names))]), self._spill)

    def grep(self, pattern: str, glob: str = "**/*", folder: str = ".") -> str:
        """Search the lines of files that match a glob by a Python regular expression; `(?i)` ignores case."""
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidArgument("pattern", pattern, f"a valid regular expression ({error})") from None
        walk = _FolderWalk(self._scope, folder, glob)
        names, texts = self._texts(walk)
        matches = _find_matches(pattern, texts)
        lines = [
            f"{names[index]}:{number}: {line.rstrip()}" for index, number, line in matches[:_MAX_MATCHES]
        ]
        if len(matches) > _MAX_MATCHES:
            lines.append(f"[only the first {_MAX_MATCHES} matches are shown; narrow the pattern or the glob]")
        return truncate("\n".join([*lines, *walk.remarks(len(lines))]), self._spill)

    def read_spill(self, handle: str, offset: int = 0, limit: int = MAX_SHOWN_BYTES) -> str:
        """Read more of a long output by its handle, from byte `offset` on, at most `limit` bytes."""
        _check_minimum("offset", offset, 0)
        _check_minimum("limit", limit, 4)
        data = self._read_spilled(handle)
        end = _boundary(data, min(offset + min(limit, MAX_SHOWN_BYTES), len(data)))
        if offset and offset >= len(data):
            raise InvalidArgument("offset", offset, f"a byte of {handle}, which has {len(data)} bytes")
        tail = "" if end >= len(data) else f"; continue with offset={end}"
        return f"{text_of(data[offset:end])}\n[bytes {offset}–{end} of {len(data)}{tail}]"

    def _snapshot(self, parent_fd: int, name: str, path: str) -> Snapshot | None:
        if self._on_write is None:
            return None
        try:
            with open_at(parent_fd, name, path) as file:
                return read_snapshot(file)
        except FileNotFoundError:
            return None

    def _report_write(self, path: str, before: Snapshot | None, data: bytes, mode: int | None) -> None:
        if self._on_write is not None:
            after = Snapshot(data, mode=stat.S_IMODE(mode or 0o644))
            self._on_write(*self._scope.locate(path), before, after)

    def _bytes(self, path: str) -> bytes:
        with self._scope.open(path) as file:
            return _check_size(file.read(_MAX_FILE_BYTES + 1), path)

    def _texts(self, walk: _FolderWalk) -> tuple[list[str], list[str]]:
        names: list[str] = []
        texts: list[str] = []
        bytes_left = _MAX_SEARCHED_BYTES
        for name, path in walk.files():
            try:
                with self._scope.open(path) as file:
                    data = file.read(min(_MAX_SEARCHED_FILE_BYTES, bytes_left) + 1)
            except (OSError, OutOfScope):
                # Replaced by a link since it was listed, or a name that is out of scope.
                walk.unread += 1
                continue
            if len(data) > min(_MAX_SEARCHED_FILE_BYTES, bytes_left):
                walk.large += 1
            elif b"\0" in data:
                walk.binary += 1
            else:
                bytes_left -= len(data)
                names.append(name)
                texts.append(text_of(data))
        return names, texts


class _FolderWalk:
    """The regular files below a folder, in order, and a count of the skipped files."""

    def __init__(self, scope: Scope, folder: str, glob: str) -> None:
        if re.search(r"\{[^{},]*,[^{}]*\}", glob):
            raise InvalidArgument(
                "glob", glob, "a glob of *, **, ? and [ ]; {a,b} is not supported, call once per alternative"
            )
        if glob.startswith("/") or ".." in glob.split("/"):
            raise InvalidArgument(
                "glob", glob, "a pattern below the folder; pass another folder to look elsewhere"
            )
        names = tuple(part for part in glob.split("/") if part not in ("", "."))
        self._globs = names if len(names) > 1 else ("**", *names)
        self._scope, self._folder = scope, folder
        self.links = self.large = self.binary = self.unread = 0
        self.is_incomplete = False

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield each file as the printable name and the path to open."""
        visited, pending = 0, [self._folder]
        while pending:
            current = pending.pop()
            folders = []
            for name, mode in self._entries(current):
                visited += 1
                path = name if current == "." else f"{current}/{name}"
                if stat.S_ISDIR(mode):
                    if name not in _SKIPPED_FOLDERS or name in self._globs:
                        folders.append(path)
                elif stat.S_ISLNK(mode):
                    self.links += 1
                elif stat.S_ISREG(mode) and self._matches_glob(path):
                    yield printable(path), path
            if visited > _MAX_VISITED:
                self.is_incomplete = True
                return
            pending.extend(reversed(folders))

    def remarks(self, count: int) -> list[str]:
        counts = (
            (self.links, "symbolic links not followed"),
            (self.large, "files too large to search"),
            (self.binary, "binary files not searched"),
            (self.unread, "files or folders that could not be read"),
        )
        remarks = [f"{skipped} {what}" for skipped, what in counts if skipped]
        if self.is_incomplete:
            remarks.append(f"stopped after {_MAX_VISITED:,} names; pass a narrower folder")
        if not count:
            remarks.insert(0, "nothing found")
        return [f"[{'; '.join(remarks)}]"] if remarks else []

    def _entries(self, current: str) -> list[tuple[str, int]]:
        try:
            with self._scope.folder(current) as parent_fd:
                names = sorted(os.listdir(parent_fd))
                return [(name, mode) for name in names if (mode := _mode(parent_fd, name)) is not None]
        except (OSError, OutOfScope):
            if current == self._folder:
                raise
            self.unread += 1
            return []

    def _matches_glob(self, path: str) -> bool:
        below = path if self._folder == "." else path[len(self._folder) + 1 :]
        return _matches(below.split("/"), self._globs)


def truncate(text: str, spill: Spill, head: int = MAX_SHOWN_BYTES, tail: int = 0) -> str:
    """Return a short text; otherwise the first and last bytes and the handle of the spilled text."""
    data = text.encode("utf-8", "replace")
    if len(data) <= head + tail:
        return data.decode()
    handle = spill(data, "text/plain")
    first = _boundary(data, head)
    last = _boundary(data, len(data) - tail)
    note = f"[{len(data):,} bytes in total, {last - first:,} omitted; read_spill({handle!r}, offset={first})]"
    return "\n".join(part for part in (text_of(data[:first]), note, text_of(data[last:])) if part)


def text_of(data: bytes) -> str:
    """Decode UTF-8; invalid bytes become �, so every store can keep the text."""
    return data.decode("utf-8", "replace")


def printable(path: str) -> str:
    """Return the path fit for one line: control characters and undecodable bytes become �."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "�" for char in text)


def _matches(parts: Sequence[str], globs: Sequence[str]) -> bool:
    """Match a path against a glob. Follows all positions in the glob at once, so no pattern makes this slow."""
    positions = _skip_stars({0}, globs)
    for part in parts:
        reached = {
            i for i in positions if i < len(globs) and (globs[i] == "**" or fnmatchcase(part, globs[i]))
        }
        positions = _skip_stars({i if globs[i] == "**" else i + 1 for i in reached}, globs)
    return len(globs) in positions


def _skip_stars(positions: set[int], globs: Sequence[str]) -> set[int]:
    for i, glob in enumerate(globs):
        if glob == "**" and i in positions:
            positions.add(i + 1)
    return positions


def _find_matches(pattern: str, texts: list[str]) -> list[tuple[int, int, str]]:
    """Search in a separate process, for killing endless patterns such as `(a+)+$`."""
    limits = {"max_matches": _MAX_MATCHES + 1, "max_line_length": _MAX_LINE_LENGTH}
    request = json.dumps({"pattern": pattern, "texts": texts, **limits})
    try:
        process = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _SEARCH_PROGRAM],
            input=request.encode(),
            capture_output=True,
            timeout=_SEARCH_SECONDS,
            check=True,
            env={},
        )
    except subprocess.TimeoutExpired:
        expected = (
            f"an expression that finishes within {_SEARCH_SECONDS} s; avoid nested repeats such as (a+)+"
        )
        raise InvalidArgument("pattern", pattern, expected) from None
    return [(index, number, line) for index, number, line in json.loads(process.stdout)]


def _stat_writable(parent_fd: int, name: str, path: str) -> os.stat_result | None:
    """Return the stat of the file to replace, always regular and writable; None without a file."""
    try:
        with open_at(parent_fd, name, path) as file:
            before_stat = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    if not before_stat.st_mode & 0o222:
        raise PermissionError(13, "the file is read-only", path)
    return before_stat


def replace_file(
    parent_fd: int, name: str, data: bytes, before_stat: os.stat_result | None, mode: int | None = None
) -> None:
    """Write a temporary file beside the target, then rename: a reader, and a crash, find the old file or the
    new file, and a symbolic link put there meanwhile is replaced, not followed. Other hard links keep the old
    text.

    The file keeps its owner and mode, unless `mode` is another. Without `before_stat` it is not checked for changes.
    """
    if mode is None and before_stat is not None:
        mode = before_stat.st_mode
    temporary_name = f".{secrets.token_hex(8)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary_name, flags, 0o666 if mode is None else 0o600, dir_fd=parent_fd)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if before_stat is not None:
                with contextlib.suppress(PermissionError):
                    os.fchown(fd, before_stat.st_uid, before_stat.st_gid)
            if mode is not None:
                os.fchmod(fd, mode & 0o777)
            file.flush()
            os.fsync(fd)
        if before_stat is not None:
            _refuse_if_changed(parent_fd, name, before_stat)
        os.rename(temporary_name, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
    except BaseException:  # also Ctrl-C: no half-written file is left behind
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary_name, dir_fd=parent_fd)
        raise


def _refuse_if_changed(parent_fd: int, name: str, before_stat: os.stat_result) -> None:
    """Narrow the race with another writer to a system call; only a lock could close the race."""
    now = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    identity = attrgetter("st_ino", "st_size", "st_mtime_ns")
    if identity(now) != identity(before_stat):
        raise InvalidArgument("path", name, "a file that does not change during the edit; read it again")


def _mode(parent_fd: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None  # deleted since it was listed


def _check_size(data: bytes, path: str) -> bytes:
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidArgument("path", path, f"a file of at most {_MAX_FILE_BYTES:,} bytes")
    return data


def _edit(data: bytes, path: str, old: str, new: str) -> tuple[bytes, int]:
    """Return a file's bytes with the only `old` replaced by `new`, and the first line of the change."""
    old_bytes, new_bytes = _encode("old", old), _encode("new", new)
    if not old_bytes or old_bytes == new_bytes:
        raise InvalidArgument("old", old, "text from the file that differs from new")
    if b"\r\n" in data and data.count(b"\r\n") == data.count(b"\n"):
        # read_file does not show carriage returns, so `old` and `new` need not contain them.
        old_bytes, new_bytes = _to_crlf(old_bytes), _to_crlf(new_bytes)
    start = data.find(old_bytes)
    if start < 0:
        raise InvalidArgument("old", old, f"text exactly as it is in {path}; read the file again")
    if data.find(old_bytes, start + 1) >= 0:
        raise InvalidArgument("old", old, f"text that occurs once in {path}; include surrounding lines")
    return data[:start] + new_bytes + data[start + len(old_bytes) :], data[:start].count(10) + 1


def _encode(argument: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(argument, text, "text without lone surrogates") from None


def _to_crlf(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _boundary(data: bytes, index: int) -> int:
    """Return the nearest index at or before `index` between two UTF-8 characters."""
    back = index
    while 0 < back < len(data) and index - back < 4 and data[back] & 0xC0 == 0x80:
        back -= 1
    return back if back >= len(data) or data[back] & 0xC0 != 0x80 else index


def _check_minimum(argument: str, value: int, minimum: int) -> None:
    if not isinstance(value, int) or value < minimum:
        raise InvalidArgument(argument, value, f"an integer of at least {minimum}")
