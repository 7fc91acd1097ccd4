"""Errors of moving sessions between stores: bundles, pages, ids that hold something else."""

from __future__ import annotations

from collections.abc import Sequence

from .root import BoughError
from .sessions import IdTaken


class IdConflict(IdTaken):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        BoughError.__init__(
            self,
            f"session id {session_id!r} holds other content here (or is another tenant's); nothing was taken in. "
            "new_id=True (--new-id) takes it in beside",
        )


class InvalidBundle(BoughError):
    def __init__(self, where: str, line: int, why: str) -> None:
        self.where, self.line, self.why = where, line, why
        place = f"line {line}: " if line else ""
        super().__init__(
            f"{where} cannot be taken in: {place}{why}; nothing was changed. Export the session again, or fetch "
            "the file again if it was sent"
        )


class PageTooLarge(BoughError):
    def __init__(self, most: int) -> None:
        self.most = most
        super().__init__(
            f"the session is more than the {most:,} bytes one HTML file should hold; nothing was written. Leave out "
            "the blobs or the tasks (blobs=False, children=False), write it with bough export --bundle, or show it "
            "with bough serve"
        )


class UnknownImporter(BoughError):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name = name
        super().__init__(f"sessions of {name!r} cannot be read; known are {', '.join(known)}")


class InvalidSource(BoughError):
    def __init__(self, where: str | None, tool: str, why: str) -> None:
        self.where, self.tool, self.why = where, tool, why
        what = (
            f"sessions of {tool} cannot be read"
            if where is None
            else f"{where} cannot be read as sessions of {tool}"
        )
        super().__init__(
            f"{what}: {why}; nothing was changed. bough import --help says what each tool's place is"
        )
