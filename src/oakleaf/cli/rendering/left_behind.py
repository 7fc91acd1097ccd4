"""What a move of the leaf or a fork leaves behind, in words: calls of unsafe tools that nothing undoes."""

from __future__ import annotations

from oakleaf import PendingApproval
from oakleaf.cli.rendering.output import clip, notify, plural, safe, width
from oakleaf.cli.rendering.turn_events import call_details, call_text, mark, preview
from oakleaf.ext import EarlierCall
from oakleaf.session import Session

SHOWN = 5
COUNTED = 50
EARLIER_LENGTH = 500


def notify_left_behind(session: Session) -> None:
    """Say on stderr which unsafe calls are not on the session's path any more; nothing if there are none."""
    calls = session.left_behind(COUNTED + 1)
    if not calls:
        return
    count = f"{COUNTED} calls and more" if len(calls) > COUNTED else plural(len(calls), "call")
    notify(f"left behind, and not undone: {count} of unsafe tools. The same call waits for approval here.")
    for call in calls[:SHOWN]:
        notify(f"  {clip(earlier_text(call), width() - 2)}")
    if len(calls) > SHOWN:
        notify("  …")


def approval_details(approval: PendingApproval) -> str:
    """Return a call that waits for a person, whole, and what became of the same call on a path that was left."""
    details = call_details(approval.call)
    if approval.earlier is None:
        return details
    earlier = clip(earlier_text(approval.earlier), EARLIER_LENGTH)
    return f"{details}\n  It was made before, on a path that was left: {earlier}"


def earlier_text(call: EarlierCall) -> str:
    """Return a call of another path in one line: what became of it, and where it is."""
    outcome = "? unknown" if call.result is None else f"{mark(call.result)} {preview(call.result)}"
    return f"{call.session_id}@{call.seq} {safe(call_text(call.call))} → {safe(outcome)}"
