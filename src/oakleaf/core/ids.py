"""Ids of sessions: which texts may be one, and how a foreign id becomes one.

An id is a part of a URL's path and of a file's name. One that a browser, a proxy or a folder would read as another is
refused when a session is made, so that no session can pose as another. An id that another program chose is escaped: two
of them never become one.
"""

from __future__ import annotations

import re

from oakleaf.errors import InvalidId

REFUSED = frozenset("/\\?#%")
ESCAPE = "~"
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def is_traceparent(text: object) -> bool:
    """Whether a value is the `traceparent` of a span, as W3C's Trace Context writes it."""
    return isinstance(text, str) and _TRACEPARENT.fullmatch(text) is not None


def check_id(session_id: str | None) -> None:
    """Raise InvalidId for an id that would address another session or no session."""
    if session_id is None:
        return
    unusable = next((each for each in session_id if each in REFUSED or not each.isprintable()), None)
    if unusable is not None:
        raise InvalidId(session_id, f"the character {unusable!r}")
    if not session_id:
        raise InvalidId(session_id, "no character")
    if session_id.startswith("."):
        raise InvalidId(session_id, "a dot at its beginning")
    if session_id != session_id.strip():
        raise InvalidId(session_id, "a blank at its beginning or end")


def escape_id(foreign: str) -> str:
    """Escape another program's id for an id: illegal characters and `~` become `~` and two hex digits per byte.
    `unescape_id` returns the foreign id.
    """
    is_plain = foreign.isprintable() and not REFUSED.intersection(foreign) and ESCAPE not in foreign
    if is_plain and foreign[:1] not in (".", " ") and foreign[-1:] != " ":
        return foreign
    last = len(foreign) - 1
    return "".join(
        _escaped(each)
        if each in REFUSED
        or each == ESCAPE
        or not each.isprintable()
        or (at == 0 and each == ".")
        or (each == " " and at in (0, last))
        else each
        for at, each in enumerate(foreign)
    )


def unescape_id(escaped: str) -> str:
    """Return the foreign id behind the result of `escape_id`."""
    first, *pieces = escaped.encode("utf-8", "surrogatepass").split(ESCAPE.encode())
    raw = b"".join([first, *(bytes.fromhex(piece[:2].decode()) + piece[2:] for piece in pieces)])
    return raw.decode("utf-8", "surrogatepass")


def _escaped(character: str) -> str:
    return "".join(f"{ESCAPE}{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
