"""The secrets of an exchange: what a request proves itself with is stored nowhere, in whatever form a server repeats it.

A key that the store knows, or that has the shape of a vendor's key, is redacted everywhere. This is about the others: the
key of a gateway, a local server's password, a cookie. Knows headers and texts; does not know sessions.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import parse_qsl

from oakleaf.core.encodings import encoded_forms
from oakleaf.core.redact import MIN_SECRET_LENGTH, REDACTED, strings_in
from oakleaf_record.http_stream import Head

_SECRET_NAME = re.compile(r"key|token|secret|passw|auth|cookie|credential|signature|^sig$", re.IGNORECASE)
_LONG_WORD = re.compile(r"[A-Za-z0-9+/_.~=-]{20,}")
MIN_COOKIE_LENGTH = 16
"""A shorter value of a cookie is a setting, such as a language."""
PLACEHOLDERS = frozenset(
    [
        "lm-studio",
        "not-needed",
        "no-key-required",
        "sk-no-key-required",
        "no-api-key",
        "placeholder",
        "anything",
    ]
)
"""What the manuals of local servers, which want no key, write in its place: words, and no secrets."""
PIECE = 8
MAX_PIECES = 16
"""A part of a secret is found if it has two of these pieces' lengths: 16 letters of a usual key."""


def request_secrets(head: Head, target: str) -> tuple[str, ...]:
    """Return a request's credentials: in the headers, and in the query of the target."""
    secrets: dict[str, None] = {}
    for name, value in head.headers:
        if _SECRET_NAME.search(name.decode("latin-1")):
            secrets |= dict.fromkeys(_header_secrets(name.lower(), value.decode("latin-1")))
    for field, text in parse_qsl(target.partition("?")[2], encoding="latin-1"):
        if _SECRET_NAME.search(field):
            secrets.setdefault(text)
    return tuple(
        secret for secret in secrets if len(secret) >= MIN_SECRET_LENGTH and secret not in PLACEHOLDERS
    )


def _header_secrets(name: bytes, value: str) -> Iterator[str]:
    if b"cookie" in name:
        values = (pair.strip().partition("=")[2] for pair in value.split(";"))
        yield from (each for each in values if len(each) >= MIN_COOKIE_LENGTH)
        return
    scheme, _, rest = value.strip().partition(" ")
    proof = rest.strip() or scheme
    yield proof
    yield from _LONG_WORD.findall(proof)
    if scheme.lower() == "basic":
        try:
            user_and_password = base64.b64decode(proof).decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            return
        yield user_and_password
        yield user_and_password.partition(":")[2]


class SecretMask:
    """Replaces secrets, and long parts of secrets, verbatim and in the escapes of surrounding texts."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = (form for secret in secrets for form in (secret, *encoded_forms(secret)))
        self._forms = tuple(dict.fromkeys(form for form in forms if len(form) >= MIN_SECRET_LENGTH))

    def text(self, text: str) -> str:
        """Return a text without the secrets."""
        spans = sorted(span for form in self._forms for span in _spans(text, form))
        pieces, end = [], 0
        for start, stop in spans:
            if start >= end:
                pieces += [text[end:start], REDACTED]
            end = max(end, stop)
        return "".join([*pieces, text[end:]]) if pieces else text

    def json(self, value: Any) -> Any:
        """Return a JSON value without the secrets in strings, names of fields too."""
        text = "\0".join(strings_in(value))
        return value if self.text(text) == text else _map_strings(value, self.text)


def _spans(text: str, form: str) -> Iterator[tuple[int, int]]:
    """Yield the places of the form in a text, or of a part of at least two pieces: such a part holds a whole
    piece.
    """
    length = max(PIECE, len(form) // MAX_PIECES)
    least = min(len(form), 2 * length)
    for at in range(0, len(form) - length + 1, length):
        found = text.find(form[at : at + length])
        while found >= 0:
            start, stop = found, found + length
            first, last = at, at + length
            while start and first and text[start - 1] == form[first - 1]:
                start, first = start - 1, first - 1
            while stop < len(text) and last < len(form) and text[stop] == form[last]:
                stop, last = stop + 1, last + 1
            if stop - start >= least:
                yield start, stop
            found = text.find(form[at : at + length], stop)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
    return [_map_strings(item, change) for item in value] if isinstance(value, list | tuple) else value
