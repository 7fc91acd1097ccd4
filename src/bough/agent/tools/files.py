"""Read, write, edit, list and search the files of a workspace.

Knows text, lines and caps. Does not know what is in scope (`scope` opens every file for it) nor where long
outputs are kept: `spill` takes the whole of one and names it, `read_spill` pages through it. Whoever
supplies `spill` redacts what it keeps and gives out only what the same session spilled.
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
from fnmatch import fnmatchcase

from ...errors import InvalidArgument, OutOfScope
from .scope import Scope, open_at

Spill = Callable[[bytes, str], str]
"""Keeps bytes of a media type, returns the handle under which they are found again."""
Unspill = Callable[[str], bytes]

MAX_SHOWN_BYTES = 16_000
"""Bytes of one output that a model sees; the rest is spilled."""
_LARGEST = 16 * 1024 * 1024
_SEARCHED_FILE = 2 * 1024 * 1024
_SEARCHED = 32 * 1024 * 1024
_VISITED = 50_000
_HITS = 500
_LINE = 400
_SEARCH_SECONDS = 10
_SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "node_modules", "__pycache__", ".mypy_cache"})

_SEARCH = """
import json, re, sys
asked = json.load(sys.stdin)
find, left, hits = re.compile(asked["pattern"]).search, asked["most"], []
for at, text in enumerate(asked["texts"]):
    for number, line in enumerate(text.split("\\n"), 1):
        if left and find(line):
            hits.append((at, number, line[: asked["line"]]))
            left -= 1
json.dump(hits, sys.stdout)
"""


class Files:
    """The file tools of one workspace. Paths are relative to its root."""

    def __init__(self, scope: Scope, spill: Spill, unspill: Unspill) -> None:
        self._scope, self._spill, self._unspill = scope, spill, unspill

    def read_file(self, path: str, offset: int = 1, limit: int = 2_000) -> str:
        """Read a text file with line numbers, from line `offset` on, at most `limit` lines."""
        _at_least("offset", offset, 1)
        _at_least("limit", limit, 1)
        data = self._bytes(path)
        if b"\0" in data:
            return f"{path} is a binary file of {len(data):,} bytes; it is not shown"
        lines = text_of(data).split("\n")
        if lines[-1] == "":
            lines.pop()
        if offset > max(len(lines), 1):
            raise InvalidArgument("offset", offset, f"a line of {path}, which has {len(lines)}")
        end = min(offset - 1 + limit, len(lines))
        numbered = [f"{at + 1:>6}\t{lines[at].removesuffix(chr(13))}" for at in range(offset - 1, end)]
        if not numbered:
            return f"{path} is empty"
        if end < len(lines):
            numbered.append(f"[lines {offset}–{end} of {len(lines)}; go on with offset={end + 1}]")
        return truncate("\n".join(numbered), self._spill)

    def write_file(self, path: str, text: str) -> str:
        """Write a whole file, made with its folders if missing. Either all of it is there or nothing."""
        data = _encoded("text", text)
        with self._scope.parent(path) as (above, name):
            known = _present(above, name, path)
            _replace(above, name, data, known)
        return f"{'made' if known is None else 'replaced'} {path}: {len(data):,} bytes"

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace `old`, which must occur exactly once, by `new`. Everything else stays byte for byte."""
        before, after = _encoded("old", old), _encoded("new", new)
        if not before or before == after:
            raise InvalidArgument("old", old, "some text of the file, other than new")
        with self._scope.parent(path) as (above, name):
            known = _present(above, name, path)
            if known is None:
                raise FileNotFoundError(2, os.strerror(2), path)
            with open_at(above, name, path) as file:
                data = _bounded(file.read(_LARGEST + 1), path)
            if b"\r\n" in data and data.count(b"\r\n") == data.count(b"\n"):
                # read_file does not show the carriage returns, so nobody can be asked to write them.
                before, after = _with_returns(before), _with_returns(after)
            at = data.find(before)
            if at < 0:
                raise InvalidArgument("old", old, f"text exactly as it stands in {path}; read it again")
            if data.find(before, at + 1) >= 0:
                raise InvalidArgument("old", old, f"text that occurs once in {path}; add lines around it")
            _replace(above, name, data[:at] + after + data[at + len(before) :], known)
        return f"edited {path} at line {data[:at].count(10) + 1}"

    def list_files(self, pattern: str = "**/*", folder: str = ".") -> str:
        """List files by a glob: `*` and `?` within a name, `**` for any folders; `*.py` is found at any
        depth. Links are not followed; .git, node_modules and the like only if the glob names them."""
        walk = _Walk(self._scope, folder, pattern)
        names = [shown for shown, _ in walk.files()]
        return truncate("\n".join([*names, *walk.remarks(len(names))]), self._spill)

    def grep(self, pattern: str, glob: str = "**/*", folder: str = ".") -> str:
        """Search lines by a regular expression (Python's; `(?i)` to ignore case) in files of a glob."""
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidArgument("pattern", pattern, f"a regular expression ({error})") from None
        walk = _Walk(self._scope, folder, glob)
        names, texts = self._texts(walk)
        hits = _search(pattern, texts)
        lines = [f"{names[at]}:{number}: {line.rstrip()}" for at, number, line in hits[:_HITS]]
        if len(hits) > _HITS:
            lines.append(f"[only the first {_HITS} hits; narrow the pattern or the glob]")
        return truncate("\n".join([*lines, *walk.remarks(len(lines))]), self._spill)

    def read_spill(self, handle: str, offset: int = 0, limit: int = MAX_SHOWN_BYTES) -> str:
        """Read on in a long output by its handle, from byte `offset`, at most `limit` bytes."""
        _at_least("offset", offset, 0)
        _at_least("limit", limit, 4)
        data = self._unspill(handle)
        end = _boundary(data, min(offset + min(limit, MAX_SHOWN_BYTES), len(data)))
        if offset and offset >= len(data):
            raise InvalidArgument("offset", offset, f"a byte of {handle}, which has {len(data)}")
        tail = "" if end >= len(data) else f"; go on with offset={end}"
        return f"{text_of(data[offset:end])}\n[bytes {offset}–{end} of {len(data)}{tail}]"

    def _bytes(self, path: str) -> bytes:
        with self._scope.open(path) as file:
            return _bounded(file.read(_LARGEST + 1), path)

    def _texts(self, walk: _Walk) -> tuple[list[str], list[str]]:
        names: list[str] = []
        texts: list[str] = []
        room = _SEARCHED
        for shown, path in walk.files():
            try:
                with self._scope.open(path) as file:
                    data = file.read(min(_SEARCHED_FILE, room) + 1)
            except (OSError, OutOfScope):  # swapped for a link since it was listed, or an odd name
                walk.unread += 1
                continue
            if len(data) > min(_SEARCHED_FILE, room):
                walk.large += 1
            elif b"\0" in data:
                walk.binary += 1
            else:
                room -= len(data)
                names.append(shown)
                texts.append(text_of(data))
        return names, texts


class _Walk:
    """The plain files below a folder, in order, and a count of what was left out."""

    def __init__(self, scope: Scope, folder: str, glob: str) -> None:
        if re.search(r"\{[^{}]*,[^{}]*\}", glob):
            raise InvalidArgument("glob", glob, "* ** ? and [ ]; ask once for each of the alternatives")
        if glob.startswith("/") or ".." in glob.split("/"):
            raise InvalidArgument(
                "glob", glob, "names below the folder; name another folder for other places"
            )
        names = tuple(part for part in glob.split("/") if part not in ("", "."))
        self._globs = names if len(names) > 1 else ("**", *names)
        self._scope, self._folder = scope, folder
        self.links = self.large = self.binary = self.unread = 0
        self.cut_short = False

    def files(self) -> Iterator[tuple[str, str]]:
        """As shown, and as to be opened."""
        visited, waiting = 0, [self._folder]
        while waiting:
            here = waiting.pop()
            folders = []
            for name, mode in self._entries(here):
                visited += 1
                path = name if here == "." else f"{here}/{name}"
                if stat.S_ISDIR(mode):
                    if name not in _SKIPPED or name in self._globs:
                        folders.append(path)
                elif stat.S_ISLNK(mode):
                    self.links += 1
                elif stat.S_ISREG(mode) and self._wanted(path):
                    yield shown(path), path
            if visited > _VISITED:
                self.cut_short = True
                return
            waiting.extend(reversed(folders))

    def remarks(self, found: int) -> list[str]:
        counts = (
            (self.links, "links not followed"),
            (self.large, "files too large to search"),
            (self.binary, "binary files not searched"),
            (self.unread, "files or folders that could not be read"),
        )
        said = [f"{count} {what}" for count, what in counts if count]
        if self.cut_short:
            said.append(f"stopped after {_VISITED:,} names: name a folder")
        if not found:
            said.insert(0, "nothing found")
        return [f"[{'; '.join(said)}]"] if said else []

    def _entries(self, here: str) -> list[tuple[str, int]]:
        try:
            with self._scope.folder(here) as above:
                names = sorted(os.listdir(above))
                return [(name, mode) for name in names if (mode := _mode(above, name)) is not None]
        except (OSError, OutOfScope):
            if here == self._folder:
                raise
            self.unread += 1
            return []

    def _wanted(self, path: str) -> bool:
        below = path if self._folder == "." else path[len(self._folder) + 1 :]
        return _matches(below.split("/"), self._globs)


def truncate(text: str, spill: Spill, head: int = MAX_SHOWN_BYTES, tail: int = 0) -> str:
    """The text if it is short; else its first and last bytes, and the handle of the whole."""
    data = text.encode("utf-8", "replace")
    if len(data) <= head + tail:
        return data.decode()
    handle = spill(data, "text/plain")
    first = _boundary(data, head)
    last = _boundary(data, len(data) - tail)
    note = f"[{len(data):,} bytes in all, {last - first:,} left out here; read_spill({handle!r}, offset={first})]"
    return "\n".join(part for part in (text_of(data[:first]), note, text_of(data[last:])) if part)


def text_of(data: bytes) -> str:
    """Text that every store keeps: what is not UTF-8 shows as �."""
    return data.decode("utf-8", "replace")


def shown(path: str) -> str:
    """A name fit for a line of its own: no control character, no undecodable byte."""
    whole = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "�" for char in whole)


def _matches(parts: Sequence[str], globs: Sequence[str]) -> bool:
    """All places in the glob at once, name by name: no pattern makes this slow."""
    places = _past_stars({0}, globs)
    for part in parts:
        met = {i for i in places if i < len(globs) and (globs[i] == "**" or fnmatchcase(part, globs[i]))}
        places = _past_stars({i if globs[i] == "**" else i + 1 for i in met}, globs)
    return len(globs) in places


def _past_stars(places: set[int], globs: Sequence[str]) -> set[int]:
    for at, glob in enumerate(globs):
        if glob == "**" and at in places:
            places.add(at + 1)
    return places


def _search(pattern: str, texts: list[str]) -> list[tuple[int, int, str]]:
    """In a process of its own: a pattern such as `(a+)+$` would hold this one for ever."""
    asked = json.dumps({"pattern": pattern, "texts": texts, "most": _HITS + 1, "line": _LINE})
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _SEARCH],
            input=asked.encode(),
            capture_output=True,
            timeout=_SEARCH_SECONDS,
            check=True,
            env={},
        )
    except subprocess.TimeoutExpired:
        takes = f"an expression that is done within {_SEARCH_SECONDS} s; avoid nested repeats such as (a+)+"
        raise InvalidArgument("pattern", pattern, takes) from None
    return [(at, number, line) for at, number, line in json.loads(done.stdout)]


def _present(above: int, name: str, path: str) -> os.stat_result | None:
    """What is there to be replaced: a plain file that may be written, or nothing."""
    try:
        with open_at(above, name, path) as file:
            known = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    if not known.st_mode & 0o222:
        raise PermissionError(13, "the file is read-only", path)
    return known


def _replace(above: int, name: str, data: bytes, known: os.stat_result | None) -> None:
    """Beside it, then over it: a reader sees the old file or the new one, and a link put there meanwhile is
    replaced, not followed. Another hard link of the file keeps the old text."""
    beside = f".{secrets.token_hex(8)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    made = os.open(beside, flags, 0o666 if known is None else 0o600, dir_fd=above)
    try:
        with os.fdopen(made, "wb") as file:
            file.write(data)
            if known is not None:
                with contextlib.suppress(PermissionError):
                    os.fchown(made, known.st_uid, known.st_gid)
                os.fchmod(made, known.st_mode & 0o777)
            file.flush()
            os.fsync(made)
        _refuse_if_changed(above, name, known)
        os.rename(beside, name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=above)
        raise


def _refuse_if_changed(above: int, name: str, known: os.stat_result | None) -> None:
    """Narrows the race with another writer to one system call; it cannot be closed without a lock."""
    if known is None:
        return
    present = os.stat(name, dir_fd=above, follow_symlinks=False)
    if (present.st_ino, present.st_size, present.st_mtime_ns) != (
        known.st_ino,
        known.st_size,
        known.st_mtime_ns,
    ):
        raise InvalidArgument("path", name, "a file that nobody else writes meanwhile; read it again")


def _mode(above: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None  # gone since it was listed


def _bounded(data: bytes, path: str) -> bytes:
    if len(data) > _LARGEST:
        raise InvalidArgument("path", path, f"a file of at most {_LARGEST:,} bytes")
    return data


def _encoded(where: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(where, text, "whole characters") from None


def _with_returns(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _boundary(data: bytes, at: int) -> int:
    """The nearest place at or before `at` that does not split a character of UTF-8."""
    back = at
    while 0 < back < len(data) and at - back < 4 and data[back] & 0xC0 == 0x80:
        back -= 1
    return back if back >= len(data) or data[back] & 0xC0 != 0x80 else at


def _at_least(where: str, value: int, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise InvalidArgument(where, value, f"a whole number from {least} on")
