"""Text that a terminal would obey, and a check that none of it was printed."""

from __future__ import annotations

HOSTILE = "\x1b]0;owned\x07\x1b[8m\x1b[2J\x1b[46m\x9b1m\x9d0;x\x9c\u202etxt\u2066\r\x08\x7fx"
FORBIDDEN = (
    "\x1b]",
    "\x1b[8m",
    "\x1b[2J",
    "\x1b[46m",
    "\x07",
    "\x08",
    "\x7f",
    "\x90",
    "\x9b",
    "\x9c",
    "\x9d",
    "\u202e",
    "\u2066",
)


def assert_harmless(text: str) -> None:
    found = [repr(each) for each in FORBIDDEN if each in text]
    assert not found, (found, text[:2_000])
