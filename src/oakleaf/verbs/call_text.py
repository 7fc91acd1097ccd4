"""Tool calls, their results and what became of them, in words and in a line."""

from __future__ import annotations

from oakleaf import PendingApproval
from oakleaf.core.codec import to_json
from oakleaf.core.messages import Outcome, Text, ToolCall, ToolResult
from oakleaf.ext import EarlierCall
from oakleaf.verbs.screen import clip, safe

EARLIER_LENGTH = 500
MARKS: dict[Outcome, str] = {
    "done": "✓",
    "unknown": "?",
    "denied": "⊘",
    "interrupted": "‖",
    "dry_run": "~",
}

MAX_ARGUMENT_LENGTH = 4_000


def mark(result: ToolResult) -> str:
    return "✗" if result.error and result.outcome == "done" else MARKS[result.outcome]


def call_text(call: ToolCall) -> str:
    """Return a call as one line of code."""
    if call.malformed is not None:
        return clip(f"{call.name}(not JSON: {call.malformed})", 200)
    arguments = (f"{name}={to_json(value, name).decode()}" for name, value in call.arguments.items())
    return clip(f"{call.name}({', '.join(arguments)})", 200)


def call_details(call: ToolCall) -> str:
    """Return a call for approval: each argument on its own lines, never clipped to the terminal."""
    lines = [f"{safe(call.name)}" if call.malformed is None else f"{safe(call.name)}: {safe(call.malformed)}"]
    for name, value in call.arguments.items():
        text = value if isinstance(value, str) else to_json(value, name).decode()
        more = (
            f"\n… and {len(text) - MAX_ARGUMENT_LENGTH:,} more characters"
            if len(text) > MAX_ARGUMENT_LENGTH
            else ""
        )
        lines.append(f"  {safe(name)}: {safe(text[:MAX_ARGUMENT_LENGTH] + more)}".replace("\n", "\n    "))
    return "\n".join(lines)


def preview(result: ToolResult) -> str:
    """Return the beginning of a result in one line."""
    parts = (part.text if isinstance(part, Text) else f"[{part.mime}]" for part in result.content)
    prefix = "" if result.outcome == "done" else f"{result.outcome}: "
    return clip(prefix + " ".join(parts), 300)


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
