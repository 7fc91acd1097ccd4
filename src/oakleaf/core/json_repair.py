"""Decode JSON of other programs, which may hold half a character or bytes that are not UTF-8."""

from __future__ import annotations

import re

import msgspec

INVALID_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_LONE_SURROGATE = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def decode_repaired(text: bytes) -> object:
    """Decode JSON without a report of replacements."""
    try:
        return msgspec.json.decode(text)
    except INVALID_JSON:
        return msgspec.json.decode(repair_json(text))


def repair_json(text: bytes) -> bytes:
    """Return JSON with U+FFFD in place of lone surrogates and invalid UTF-8."""
    valid_utf8 = text.decode("utf-8", "replace").encode()
    return _LONE_SURROGATE.sub(lambda match: rb"\ufffd" if match[1] else match[0], valid_utf8)
