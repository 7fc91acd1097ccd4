"""What the workspace tools wrote: each file before and after a call, recorded in the details of its result.

The bytes are blobs that the entry refers to, so they are counted, exported, collected and purged like media.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from oakleaf.core.drafts import Blob
from oakleaf.core.entries import Entry
from oakleaf.core.media import BLOB_REFERENCE, digest, referenced_digest
from oakleaf.core.redact import Redactor
from oakleaf.core.typed_json import converter

MIME = "application/octet-stream"
MAX_KEPT_BYTES = 32 * 1024 * 1024
"""A larger file is recorded by its hash only: it can be compared, but not restored."""
DETAIL = "files"


class FileVersion(Struct, frozen=True, omit_defaults=True):
    """The state of a file at a moment."""

    hash: str
    size: int
    mode: int
    """Its permissions, such as 0o644."""
    blob: str = ""
    """The reference to its bytes; "" if it is empty or they are not kept."""
    not_kept: str = ""
    """Why its bytes are not kept."""

    @property
    def blob_hash(self) -> str:
        return referenced_digest(self.blob) if self.blob else ""


class FileChange(Struct, frozen=True, omit_defaults=True):
    """A call's change of a file."""

    root: str
    """The folder of the workspace."""
    path: str
    """Relative to `root`."""
    before: FileVersion | None
    """None: there was none."""
    after: FileVersion
    is_before_lost: bool = False
    """Whether an interrupted try of the same call may have written it already, so that `before` is not known."""


_to_file_change = converter(FileChange)


def version(data: bytes, mode: int, redactor: Redactor) -> tuple[FileVersion, Blob | None]:
    """Return a file's version and the blob of the bytes. Bytes that hold a secret are not kept: they could
    not be
    restored without it, and a store keeps none."""
    hash_ = digest(data)
    if redactor.may_contain_secret(data):
        text = data.decode("utf-8", "replace")
        if redactor.redact_text(text) != text:
            return FileVersion(hash_, len(data), mode, not_kept="it holds a secret"), None
    if not data:
        return FileVersion(hash_, 0, mode), None
    reference = f"{BLOB_REFERENCE}{hash_};{MIME};{len(data)}]"
    return FileVersion(hash_, len(data), mode, reference), Blob(hash_, MIME, data)


def large_version(hash_: str, size: int, mode: int) -> FileVersion:
    return FileVersion(hash_, size, mode, not_kept=f"it is larger than {MAX_KEPT_BYTES:,} bytes")


def to_details(changes: Sequence[FileChange]) -> dict[str, Any]:
    return {DETAIL: [msgspec.to_builtins(change) for change in changes]}


def file_changes(entries: Iterable[Entry]) -> Iterator[tuple[int, FileChange]]:
    """Yield the changes in the results of a path, in order, with the seq of the entries. Details of another
    shape, which a tool of one's own may have, are skipped."""
    for entry in entries:
        for result in () if entry.message is None else entry.message.results:
            recorded = (result.details or {}).get(DETAIL)
            if not isinstance(recorded, list):
                continue
            for item in recorded:
                try:
                    yield entry.seq, _to_file_change(item)
                except msgspec.ValidationError:
                    continue
