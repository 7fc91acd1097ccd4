"""The files of a data export: a folder, a .zip archive, or one JSON file and what is beside it. They are only read."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import InvalidSource
from .jsonl import INVALID_JSON, decode_json
from .records import LossReport

CONVERSATIONS = re.compile(r"conversations(-\d+)?\.json")
"""One file, or in large exports a numbered series."""
MAX_MEMBER_BYTES = 4 << 30
"""An archive member that claims to be larger is not unpacked."""
SEARCH_DEPTH = 3
UNREADABLE_ARCHIVE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What `zipfile` raises for a damaged, encrypted or unsupported archive."""


Member = tuple[str, str | Path]
"""The base name of a file, and where it is."""


class ExportFiles:
    """Finds the files of one export by name; nothing is unpacked to disk."""

    def __init__(self, source: str, tool: str) -> None:
        self.source, self.tool = source, tool
        path = Path(source).expanduser()
        self._archive: zipfile.ZipFile | None = None
        self._single = path if path.is_file() else None
        self._folder = path if path.is_dir() else path.parent
        self._members: list[Member] | None = None
        if not path.exists():
            raise InvalidSource(source, tool, "there is no such file or folder")
        if self._single is not None and zipfile.is_zipfile(path):
            self._single = None
            try:
                self._archive = zipfile.ZipFile(path)
            except UNREADABLE_ARCHIVE as error:
                raise InvalidSource(source, tool, str(error)) from None

    def __enter__(self) -> ExportFiles:
        return self

    def __exit__(self, *_: object) -> None:
        if self._archive is not None:
            self._archive.close()

    def conversations(
        self, field: str, kind: type, losses: LossReport
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the conversations whose messages are in `field`, each with an id in case it has none of its own."""
        names, number = self._conversation_files(), 0
        if not names:
            raise InvalidSource(self.source, self.tool, "it has no conversations.json")
        for name, location in names:
            try:
                value = decode_json(self._read(location), losses, name)
            except (*INVALID_JSON, *UNREADABLE_ARCHIVE) as error:
                raise InvalidSource(self.source, self.tool, f"{name}: {error}") from None
            if isinstance(value, dict):
                value = value.get("conversations", [value])
            if not isinstance(value, list):
                raise InvalidSource(self.source, self.tool, f"{name} is not a list of conversations")
            for item in value:
                if not isinstance(item, dict):
                    losses.add("a conversation that is not a JSON object", name)
                    continue
                number += 1
                if isinstance(item.get(field), kind):
                    yield f"{name.removesuffix('.json')}-{number}", item
                else:
                    losses.add("a conversation without messages", f"{name}: {number}")

    def file(self, prefix: str) -> tuple[str, bytes] | None:
        """Return the name and bytes of the first file whose name starts with `prefix`; None if it is not in the export."""
        for name, location in self._files():
            if name.startswith(prefix):
                try:
                    return name, self._read(location)
                except (InvalidSource, *UNREADABLE_ARCHIVE):
                    return None
        return None

    def _conversation_files(self) -> list[Member]:
        if self._single is not None:
            return [(self._single.name, self._single)]
        return [member for member in self._files() if CONVERSATIONS.fullmatch(member[0])]

    def _files(self) -> list[Member]:
        if self._members is None:
            self._members = list(self._walk())
        return self._members

    def _walk(self) -> Iterator[Member]:
        if self._archive is not None:
            for info in sorted(self._archive.infolist(), key=lambda info: info.filename):
                if not info.is_dir() and not info.filename.startswith("__MACOSX/"):
                    yield PurePosixPath(info.filename).name, info.filename
            return
        patterns = ("/".join("*" * depth) for depth in range(1, SEARCH_DEPTH + 1))
        for pattern in patterns:
            for path in sorted(self._folder.glob(pattern)):
                if path.is_file():
                    yield path.name, path

    def _read(self, location: str | Path) -> bytes:
        if isinstance(location, Path):
            return location.read_bytes()
        assert self._archive is not None
        if self._archive.getinfo(location).file_size > MAX_MEMBER_BYTES:
            raise InvalidSource(self.source, self.tool, f"{location} is larger than 4 GiB")
        return self._archive.read(location)
