"""Our errors as a person at a command line or a page is told them: what happened, and the command that helps.

The errors' own words are for programmers (`session.refresh()`); these are for everybody else. The command
line adds exit codes, the server statuses; both say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import errors


class Told(NamedTuple):
    what: str
    next: str | None = None
    """What to do; None: `what` says it too."""

    @property
    def text(self) -> str:
        return self.what if self.next is None else f"{self.what}; {self.next}"


_WORDS: dict[type[errors.BoughError], Callable[[Any], Told]] = {
    errors.NotFound: lambda e: Told(f"no session {e.session_id!r} here", "bough ls lists what there is"),
    errors.StaleLeaf: lambda e: Told(
        f"session {e.session_id} moved to {e.present} meanwhile; nothing was written",
        f"look with bough show {e.session_id}, then try again",
    ),
    errors.Fenced: lambda e: Told(f"another runner took session {e.session_id} over; nothing was written"),
    errors.SessionRunning: lambda e: Told(
        f"session {e.session_id} is being driven by {e.holder or 'an unnamed runner'}",
        f"wait for its turn to end (bough tail -f {e.session_id}), or queue your input with bough run --queue",
    ),
    errors.SessionTrashed: lambda e: Told(
        f"session {e.session_id} is in the trash", f"bough restore {e.session_id} brings it back"
    ),
    errors.TaskTrashed: lambda e: Told(
        f"session {e.waits} waits for its task {e.session_id}, which is in the trash",
        f"bough restore {e.session_id} brings it back",
    ),
    errors.NotTrashed: lambda e: Told(
        f"session {e.session_id} is not in the trash", f"bough rm {e.session_id} puts it there first"
    ),
    errors.InvalidPosition: lambda e: Told(
        f"{e.point!r} is no place on this path, which runs from {e.least} to {e.most}", "bough log shows it"
    ),
    errors.MissingBlob: lambda _: Told("there are no such bytes here"),
    errors.NothingToRedo: lambda _: Told("nothing was rewound since the last append", "bough tree shows all"),
}


def tell(error: errors.BoughError) -> Told:
    """In these words if we have some, else in the error's own, which say what to do too."""
    for kind in type(error).__mro__:
        if kind in _WORDS:
            return _WORDS[kind](error)
    return Told(str(error))
