"""What every error has in common, and how their messages shorten what they quote."""

from __future__ import annotations

from collections.abc import Sequence


class BoughError(Exception):
    """The root: catch this to catch everything of ours."""


def shorten(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def list_some(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(shorten(name, 40) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
