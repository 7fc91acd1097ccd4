"""Ids of model calls that are the same on every import, so that a call whose answer or usage has grown is counted once."""

from __future__ import annotations

from hashlib import sha256


def stable_call_id(tool: str, *names: str) -> str:
    """Return the id of the call that a source names, or of all calls of a session of which only the sum is known."""
    text = " ".join((tool, *names)).encode("utf-8", "replace")
    return sha256(text).hexdigest()[:24]
