"""The files of a data export: a folder, a .zip archive, or one JSON file and what is beside it. They are only read.

What a conversation names is data: only files whose names follow the export's own rule are read for it, no hidden ones, and
none outside of the folder.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from oakleaf.core.json_repair import INVALID_JSON
from oakleaf.errors import InvalidSource
from oakleaf.ingest.records import LossReport
from oakleaf_importers.formats.archives import UNREADABLE_ARCHIVE, ZipArchive, is_hidden
from oakleaf_importers.formats.jsonl import decode_json
from oakleaf_importers.formats.source_files import LINK_OUT, check_readable, leads_to, read_bytes

CONVERSATIONS = re.compile(r"conversations(-\d+)?\.json")
"""One file, or in large exports a numbered series."""
UPLOAD = re.compile(r"file[-_][A-Za-z0-9]{16,64}(?![A-Za-z0-9])")
"""How the name of an upload begins: with its id, and after that the name it had."""
SEARCH_DEPTH = 3

Member = tuple[str, str | Path]
"""The base name of a file, and where it is."""


class ExportFiles:
    """Finds the files of one export by name; nothing is unpacked to disk."""

    def __init__(self, source: str, tool: str) -> None:
        self.source, self.tool = source, tool
        path = Path(source).expanduser()
        self._archive: ZipArchive | None = None
        self._single = path if path.is_file() else None
        self._folder = path if path.is_dir() else path.parent
        self._links: list[str] = []
        self._members: list[Member] | None = None
        self._uploads: dict[str, Member] | None = None
        if not path.exists():
            raise InvalidSource(source, tool, "there is no such file or folder")
        if self._single is not None and zipfile.is_zipfile(path):
            self._single = None
            try:
                self._archive = ZipArchive(path, tool)
            except (*UNREADABLE_ARCHIVE, ValueError) as error:
                raise InvalidSource(source, tool, str(error)) from None

    def __enter__(self) -> ExportFiles:
        return self

    def __exit__(self, *_: object) -> None:
        if self._archive is not None:
            self._archive.close()

    def conversations(
        self, field: str, kind: type, losses: LossReport
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the conversations with messages in `field`, each with a fallback id."""
        names, number = self._conversation_files(), 0
        for link in self._links:
            losses.add(LINK_OUT, link)
        if not names:
            raise InvalidSource(self.source, self.tool, "it has no conversations.json")
        for name, location in names:
            try:
                value = decode_json(self._read(location), losses, name)
            except (*INVALID_JSON, *UNREADABLE_ARCHIVE, ValueError) as error:
                raise InvalidSource(self.source, self.tool, f"{name}: {error}") from None
            if isinstance(value, dict):
                value = value.get("conversations", [value])
            if not isinstance(value, list):
                raise InvalidSource(self.source, self.tool, f"{name} is not a list of conversations")
            for item in value:
                if not isinstance(item, dict):
                    losses.misread("a conversation that is not a JSON object", name)
                    continue
                number += 1
                if isinstance(item.get(field), kind):
                    yield f"{name.removesuffix('.json')}-{number}", item
                else:
                    losses.add("a conversation without messages", f"{name}: {number}")

    def upload(self, file_id: str) -> tuple[str, bytes] | None:
        """Return the name and bytes of the upload with the id; None for an upload missing in the export."""
        if self._uploads is None:
            self._uploads = {}
            for member in self._files():
                if named := UPLOAD.match(member[0]):
                    self._uploads.setdefault(named[0], member)
        named = UPLOAD.match(file_id)
        found = self._uploads.get(named[0]) if named else None
        if found is None:
            return None
        name, location = found
        try:
            return name, self._read(location)
        except (*UNREADABLE_ARCHIVE, ValueError):
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
            for name in sorted(self._archive.members):
                member = PurePosixPath(name)
                if not is_hidden(member):
                    yield member.name, name
            return
        check_readable(self._folder)
        root = self._folder.resolve()
        patterns = ("/".join("*" * depth) for depth in range(1, SEARCH_DEPTH + 1))
        for pattern in patterns:
            for path in sorted(self._folder.glob(pattern)):
                if is_hidden(path.relative_to(self._folder)) or not path.is_file():
                    continue
                if leads_to(root, path):
                    yield path.name, path
                elif CONVERSATIONS.fullmatch(path.name) or UPLOAD.match(path.name):
                    self._links.append(path.name)

    def _read(self, location: str | Path) -> bytes:
        if isinstance(location, Path):
            return read_bytes(location)
        assert self._archive is not None
        return self._archive.read(location)


def export_source(root: Path, file: Path) -> Path | None:
    """Return a changed file of a data export itself."""
    return file if file.suffix == ".zip" or file.name.startswith("conversations") else None
