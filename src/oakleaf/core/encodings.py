"""The encodings in which a text may hold another one: escapes of JSON, URLs and HTML, and base64.

Undone, they lead back: each decoded text says which bytes of the original a part of it stands for. Every step is linear in
the text. `encoded_forms` goes the other way, where a text is too long to be decoded in every way: of 2 MB, finding a few
forms takes 40 ms, and undoing all nestings 2 s. Does not know what is looked for.
"""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import a2b_base64
from bisect import bisect_right
from collections.abc import Callable, Iterator
from string import printable

from msgspec import Struct

_LINE = 40
"""Letters of base64 before a line break within base64: programs wrap after 64 or 76."""
_LETTERS = rb"[A-Za-z0-9+/_-]"
_BEGUN_ESCAPE = re.compile(
    r"(?:\\{1,16}(?:[uxU][0-9a-fA-F]{0,7}(?:\\{1,16}(?:u[0-9a-fA-F]{0,3})?)?)?"
    r"|%(?:25){0,8}[0-9a-fA-F]?|&[#A-Za-z0-9]{0,31})\Z"
)
_SHORT = dict(zip(b"bfnrt", b"\b\f\n\r\t", strict=True))
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_SHORT_TEXT = 256
_PRINTABLE = printable.encode() + bytes(range(128, 256))


class Decoded(Struct, frozen=True):
    """A decoded text."""

    data: bytes
    source: Callable[[int], tuple[int, int]]
    """Returns begin and end of the bytes behind a decoded byte."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return begin and end of the bytes behind a part."""
        return self.source(start)[0], self.source(end - 1)[1]


class Escapes(Struct, frozen=True):
    """A way to escape characters."""

    mark: int
    """A byte common to all escapes of the kind."""
    pattern: re.Pattern[bytes]
    plain: Callable[[bytes], bytes]
    """Returns the character behind an escape, in UTF-8."""

    def undo(self, data: bytes) -> Decoded | None:
        """Return the text with each escape undone once; None without escapes."""
        if self.mark not in data:
            return None
        pieces: list[bytes] = []
        targets: list[int] = []
        escapes: list[tuple[int, int, int]] = []
        size = end = 0
        for match in self.pattern.finditer(data):
            start, stop = match.span()
            plain = self.plain(match[0])
            size += start - end
            pieces += [data[end:start], plain]
            targets.append(size)
            escapes.append((start, stop, len(plain)))
            size, end = size + len(plain), stop
        if not pieces:
            return None
        pieces.append(data[end:])

        def source(position: int) -> tuple[int, int]:
            index = bisect_right(targets, position) - 1
            if index < 0:
                return position, position + 1
            start, stop, length = escapes[index]
            behind = position - targets[index] - length
            return (start, stop) if behind < 0 else (stop + behind, stop + behind + 1)

        return Decoded(b"".join(pieces), source)


def _from_json(escape: bytes) -> bytes:
    letter = escape[1]
    if letter not in b"uxU":
        return bytes([_SHORT.get(letter, letter)])
    codes = [int(code, 16) for code in re.split(rb"\\[uxU]", escape)[1:]]
    if len(codes) == 2:
        codes = [0x10000 + ((codes[0] & 0x3FF) << 10) + (codes[1] & 0x3FF)]
    return _character(codes[0]) or escape


def _from_url(escape: bytes) -> bytes:
    return b" " if escape == b"+" else bytes([int(escape[1:], 16)])


def _from_html(escape: bytes) -> bytes:
    if escape.startswith(b"&#"):
        number = escape[2:-1]
        return _character(int(number[1:], 16) if number[:1] in b"xX" else int(number)) or escape
    from html import unescape  # its table takes a while to load, and few texts need it

    return unescape(escape.decode()).encode()


def _character(code: int) -> bytes:
    return chr(code).encode("utf-8", "surrogatepass") if code < 0x110000 else b""


def shortest_base64(size: int) -> int:
    """Return the number of base64 letters for bytes alone, in the worst alignment."""
    return size * 8 // 6 - 1


def words_of(length: int) -> re.Pattern[bytes]:
    """Return a pattern for words of at least so many letters of base64."""
    return re.compile(_LETTERS + rb"{%d,}" % length)


JSON = Escapes(
    ord("\\"),
    re.compile(
        rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # two halves of a character
        rb"|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|[\"'\\/bfnrt])"
    ),
    _from_json,
)
"""Also of the literals of most programming languages."""
URL = Escapes(ord("%"), re.compile(rb"%[0-9a-fA-F]{2}"), _from_url)
FORM = Escapes(ord("+"), re.compile(rb"%[0-9a-fA-F]{2}|\+"), _from_url)
"""A URL with a plus in place of each space."""
HTML = Escapes(
    ord("&"),
    re.compile(rb"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"),
    _from_html,
)
LINES = Escapes(
    ord("\n"), re.compile(rb"(?<=" + _LETTERS + rb"{%d})\r?\n(?=%s)" % (_LINE, _LETTERS)), lambda _: b""
)
"""The line breaks within base64."""


def from_base64(data: bytes, words: re.Pattern[bytes]) -> Iterator[Decoded]:
    """Yield the bytes behind words of base64, standard or urlsafe, in any alignment."""
    for match in words.finditer(data):
        word = match[0].translate(_TO_STANDARD)
        for skipped in range(4):
            decoded = _decode(word[skipped:])
            if decoded:
                yield Decoded(decoded, _base64_source(match.start() + skipped))


def _base64_source(first: int) -> Callable[[int], tuple[int, int]]:
    return lambda position: (first + position * 8 // 6, first + (position * 8 + 7) // 6 + 1)


def _decode(letters: bytes) -> bytes:
    rest = len(letters) % 4
    if rest == 1:
        letters = letters[:-1]
    return a2b_base64(letters + b"=" * (-len(letters) % 4))


def encoded_forms(text: str) -> Iterator[str]:
    """Yield a text in each encoding alone, and as hexadecimal digits."""
    import json  # few programs need these, and all load this module
    from html import escape
    from urllib.parse import quote

    data = text.encode("utf-8", "surrogateescape")
    yield from {quote(data, safe=""), quote(data, safe="").lower(), escape(text), data.hex()}
    yield from {json.dumps(text, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)}
    for before in range(3):  # where a text begins within base64 decides about its letters
        letters = b64encode(bytes(before) + data).decode().rstrip("=")
        whole = letters[(0, 2, 3)[before] : None if (before + len(data)) % 3 == 0 else -1]
        yield from {whole, whole.replace("+", "-").replace("/", "_")}


def is_text(data: bytes) -> bool:
    """Return whether bytes are short or nearly all text: a word wrongly taken for base64 seldom gives text."""
    return len(data) <= _SHORT_TEXT or len(data.translate(None, _PRINTABLE)) * 16 <= len(data)


def begun_escape(text: str) -> int:
    """Return the begin of an escape that the end of the text may cut off, else the length."""
    match = _BEGUN_ESCAPE.search(text, max(0, len(text) - 64))
    return len(text) if match is None else match.start()
