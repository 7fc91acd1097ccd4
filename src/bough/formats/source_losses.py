"""Report what was lost of a whole source, such as an unreadable file: with the session that is read next, or the last one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .records import LossReport, SessionRecord


def with_source_losses(
    tool: str, sessions: Iterable[SessionRecord], losses: LossReport
) -> Iterator[SessionRecord]:
    """Yield the sessions; `losses`, which their reader fills, are moved to one of them, or to an empty one if there is none."""
    last: SessionRecord | None = None
    for session in sessions:
        if last is not None:
            yield last
        _move(losses, session.losses)
        last = session
    if last is None and losses:
        last = SessionRecord(tool, "unreadable", ())
    if last is not None:
        _move(losses, last.losses)
        yield last


def _move(losses: LossReport, target: LossReport) -> None:
    target.merge(losses)
    losses.clear()
