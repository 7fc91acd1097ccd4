"""Zip archives of others: no more is unpacked than `max_bytes` in all, whatever their headers say. Nothing goes to disk."""

from __future__ import annotations

import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from oakleaf.errors import InvalidSource
from oakleaf_importers.formats.source_files import max_bytes, too_large
from oakleaf_importers.formats.zstd import ZIP_METHOD, zip_module, zstd_errors

UNREADABLE_ARCHIVE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What reading a damaged, encrypted or unsupported archive raises."""
MAX_MEMBERS = 100_000
"""More files than the largest exports have."""
PIECE = 1 << 20


class ZipArchive:
    """An open archive. An archive within it is a file like any other."""

    def __init__(self, path: Path, tool: str) -> None:
        self.path, self.tool, self.unpacked = path, tool, 0
        self._file: zipfile.ZipFile = zipfile.ZipFile(path)
        if any(info.compress_type == ZIP_METHOD for info in self._file.infolist()):
            self._file.close()
            with zstd_errors():
                self._file = zip_module().ZipFile(path)
        self.members = {
            info.filename: info for info in self._file.infolist() if not info.is_dir() and not _is_link(info)
        }
        if len(self.members) > MAX_MEMBERS:
            self.close()
            reason = f"it has more than {MAX_MEMBERS:,} files; unpack it, and import the folder"
            raise InvalidSource(str(path), tool, reason)

    def read(self, name: str) -> bytes:
        """Return the bytes of a member; `InvalidSource` if the archive unpacks to more than `max_bytes`."""
        limit, pieces = max_bytes(), []
        info = self.members[name]
        with zstd_errors(info.compress_type == ZIP_METHOD), self._file.open(info) as member:
            while piece := member.read(PIECE):
                self.unpacked += len(piece)
                if self.unpacked > limit:
                    reason = f"it unpacks to {too_large(limit)}, or unpack it and import the folder"
                    raise InvalidSource(str(self.path), self.tool, reason)
                pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> ZipArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_hidden(path: PurePosixPath | Path) -> bool:
    """Return whether a name in a relative path begins with a dot, or belongs to the packing system."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.parts)


def _is_link(info: zipfile.ZipInfo) -> bool:
    return stat.S_ISLNK(info.external_attr >> 16)
