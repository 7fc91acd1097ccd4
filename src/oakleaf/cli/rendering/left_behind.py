"""What a move of the leaf or a fork leaves behind, told at the command line."""

from __future__ import annotations

from oakleaf.cli.rendering.output import notify, width
from oakleaf.session import Session
from oakleaf.verbs.screen import Screen
from oakleaf.verbs.views import left_behind, left_behind_lines


def notify_left_behind(session: Session) -> None:
    """Say on stderr the unsafe calls no longer on the session's path; nothing without such calls."""
    for line in left_behind_lines(left_behind(session), Screen(width())):
        notify(line)
