"""Extract bytes from what is stored: a durable part contains handles only.

Knows attachments, data: URLs and the base64 of files. Within text they become Media parts. Inside JSON (tool arguments,
details, notes) and reasoning they become short references, because JSON has no parts and reasoning is signed; there only
what `base64_text` restores to the letter is extracted.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.entries import Note, Payload
from oakleaf.core.messages import (
    Attachment,
    Media,
    Message,
    Part,
    ProviderBlock,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

MEDIA_MARK = b'{"type":"media"'
BLOB_REFERENCE = "[oakleaf-blob:"
MIN_LENGTH = 60
"""Shorter base64 stays in place: a reference would not be shorter."""
MIN_UNSTATED_LENGTH = 256
"""Letters of base64 whose type is neither known nor stated: fewer may be a hash, an id or a key."""

_FIRST_LETTERS = {
    "iVBORw0KGg": "image/png",
    "/9j/": "image/jpeg",
    "_9j_": "image/jpeg",
    "R0lGOD": "image/gif",
    "JVBERi": "application/pdf",
    "UEsDB": "application/zip",
    "H4sIA": "application/gzip",
    "T2dnUw": "audio/ogg",
    "SUQzA": "audio/mpeg",
}
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_OTHER = "application/octet-stream"
_DATA_KEYS = frozenset({"data", "blob", "bytes", "base64", "b64_json", "file_data"})
_TYPE_KEYS = ("mimeType", "mime_type", "media_type", "mediaType")
_ATTACHMENT_MARK = b'{"type":"attachment"'
_REFERENCE_MARK = BLOB_REFERENCE.encode()
# A run of letters is found faster as equal letters in a translated copy than by a regular expression.
_TO_RUNS = bytes(
    ord("a") if chr(code).isalnum() or chr(code) in "+/_-" else 0 for code in range(128)
) + bytes(128)
_LONG_WORD = b"a" * MIN_LENGTH

_TYPE = r"[\w.+-]{1,80}/[\w.+-]{1,80}"
_LETTERS = rf"[A-Za-z0-9+/_-]{{{MIN_LENGTH},}}={{0,2}}"
_INLINE = re.compile(
    rf"(?i:data):(?P<mime>[\w.+-]+/[\w.+-]+)?(?P<parameters>(?:;[\w=.-]+)*);(?i:base64),(?P<url>{_LETTERS})"
    rf"|(?:(?<![A-Za-z0-9+/=_\\-])|(?<=\\[nrt]))(?P<bare>{_LETTERS})"  # also after a line break as JSON has it
)
_QUOTE = r'\\{0,7}"'  # as it is in JSON within JSON
_KEY = re.compile(rf'"(?:{"|".join(sorted(_DATA_KEYS))}){_QUOTE}\s{{0,9}}:\s{{0,9}}{_QUOTE}$')
_STATED_TYPE = re.compile(rf"(?:{'|'.join(_TYPE_KEYS)}){_QUOTE}\s{{0,9}}:\s{{0,9}}{_QUOTE}({_TYPE})")
_FORMAT = re.compile(rf'"format{_QUOTE}\s{{0,9}}:\s{{0,9}}{_QUOTE}(\w{{1,20}})')
_SAYS_BASE64 = re.compile(rf'"encoding{_QUOTE}\s{{0,9}}:\s{{0,9}}{_QUOTE}base64{_QUOTE}')
_KINDS_OF_LETTERS = tuple(map(re.compile, ("[A-Z]", "[a-z]", "[0-9]", "[G-Zg-z]")))
_NEAR = 300  # characters around the bytes in which their type is looked for
_REFERENCE = re.compile(
    r"\[oakleaf-blob:([0-9a-f]{64});([\w.+-]+/[\w.+-]+);\d+((?:;[\w=.-]+)*)((?:!(?:bare|urlsafe|unpadded|lines\d{2,3}|crlf|escaped\d))*)\]"
)
_WRAPPED = re.compile(r"!lines(\d+)(!crlf)?(?:!escaped(\d))?")
_LINE_BREAK = re.compile(r"\r?\n|(?:\\{1,7}r)?\\{1,7}n")  # also as it is in JSON
MAX_LINE, MIN_LAST_LINE = 128, 16
"""The longest line of base64, and the shortest last line without padding: a shorter line may be a word."""

ReadBlob = Callable[[str], bytes | None]


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def media_handle(attachment: Attachment) -> Media:
    return Media(digest(attachment.data), attachment.mime, len(attachment.data), attachment.name)


def may_hold_bytes(body: bytes) -> bool:
    """Return whether an entry's body may hold bytes to extract: a filter before the search, for every append.

    Measured on 1.7 kB: 2.3 µs, the search 60.
    """
    return _has_long_word(body) or body.find(_ATTACHMENT_MARK) >= 0


def _has_long_word(text: bytes) -> bool:
    """Return whether so many letters of base64 follow each other: as many as in bytes to extract, and in every reference."""
    return text.translate(_TO_RUNS).find(_LONG_WORD) >= 0  # `in` would take 1 µs more: see `redact`


# -- finding bytes ---------------------------------------------------------------------------------------


class InlineBytes(Struct, frozen=True, gc=False):
    """Base64 within a text: the place, the bytes, and the notation."""

    start: int
    end: int
    attachment: Attachment
    notation: str
    """The notation for `base64_text`: the parameters of a data: URL, or a mark for bare base64."""


def find_inline_bytes(text: str) -> Iterator[InlineBytes]:
    """Yield the data: URLs of a text, and the base64 of files, known by first bytes or a stated type."""
    if not _has_long_word(text.encode(errors="replace")):  # as in most texts
        return
    end = 0
    for match in _INLINE.finditer(text):
        if match.start() < end:  # a line of what was found before
            continue
        letters, end, lines = _all_lines(text, match)
        mime = match["mime"] or _type_of(letters) or _type_beside(text, match, end, letters)
        data = None if mime is None else _decode(letters)
        if data:
            is_url = match["mime"] is not None and match[0].startswith("data:") and ";base64," in match[0]
            start = match.start() if is_url else match.start("url" if match["url"] else "bare")
            notation = (match["parameters"] if is_url else "!bare") + _notation(letters) + lines
            yield InlineBytes(start, end, Attachment(data, str(mime)), notation)


def _all_lines(text: str, match: re.Match[str]) -> tuple[str, int, str]:
    """Return the letters of base64, of all lines if wrapped, the end, and the notation of the lines."""
    letters, end = match["url"] or match["bare"], match.end()
    line_break = _LINE_BREAK.match(text, end)
    if line_break is None or not MIN_LENGTH <= len(letters) <= MAX_LINE or letters.endswith("="):
        return letters, end, ""
    rest = _more_lines(len(letters), line_break[0]).match(text, end)
    if rest is None or not rest[0]:
        return letters, end, ""
    lines, end = rest[0].split(line_break[0])[1:], rest.end()
    if len(lines[-1]) < MIN_LAST_LINE and not lines[-1].endswith("="):  # perhaps a word of the text
        end -= len(lines.pop()) + len(line_break[0])
    notation = f"!lines{len(letters)}" + ("!crlf" if "\r" in line_break[0] or "r" in line_break[0] else "")
    escapes = line_break[0].rpartition("r")[2].count("\\")
    return letters + "".join(lines), end, notation + (f"!escaped{escapes}" if escapes else "")


@lru_cache(maxsize=64)
def _more_lines(length: int, line_break: str) -> re.Pattern[str]:
    line, separator = "[A-Za-z0-9+/_-]", re.escape(line_break)
    return re.compile(
        f"(?:{separator}{line}{{{length}}}(?![A-Za-z0-9+/_-]))*(?:{separator}{line}{{1,{length}}}={{0,2}})?"
    )


def _type_of(letters: str) -> str | None:
    """Return a file's type by the first bytes."""
    for first, mime in _FIRST_LETTERS.items():
        if letters.startswith(first):
            return mime
    return _RIFF.get((_decode(letters[:16]) or b"")[8:12]) if letters.startswith("UklGR") else None


def _type_beside(text: str, match: re.Match[str], end: int, letters: str) -> str | None:
    """Return the type stated beside the bytes in JSON. A hash or an id may have the letters of base64 too."""
    if match["url"]:
        return _OTHER
    before = text[max(0, match.start() - _NEAR) : match.start()]
    after = text[end : end + _NEAR]
    if not _KEY.search(before[-40:]):
        return _OTHER if _SAYS_BASE64.search(after) or _SAYS_BASE64.search(before) else None
    stated = _STATED_TYPE.search(after) or next(reversed(list(_STATED_TYPE.finditer(before))), None)
    if stated is not None:
        return stated[1]
    audio = (_FORMAT.search(after) or _FORMAT.search(before)) if '"input_audio' in before else None
    if audio is not None:
        return f"audio/{audio[1]}"
    return _OTHER if _is_unmistakable(letters) else None


def _is_unmistakable(letters: str) -> bool:
    """Return whether so many letters of all kinds can hardly be anything but base64."""
    return len(letters) >= MIN_UNSTATED_LENGTH and all(kind.search(letters) for kind in _KINDS_OF_LETTERS)


def _decode(letters: str) -> bytes | None:
    is_urlsafe = "-" in letters or "_" in letters
    padded = letters if letters.endswith("=") else letters + "=" * (-len(letters) % 4)
    try:
        return base64.b64decode(padded, altchars=b"-_" if is_urlsafe else None, validate=True)
    except (binascii.Error, ValueError):
        return None


def _notation(letters: str) -> str:
    is_urlsafe = "-" in letters or "_" in letters
    is_unpadded = len(letters) % 4 != 0
    return ("!urlsafe" if is_urlsafe else "") + ("!unpadded" if is_unpadded else "")


# -- extracting them -------------------------------------------------------------------------------------


def extract_blobs(message: Message) -> tuple[Message, dict[str, Attachment], list[int]]:
    """Return the message with handles in place of bytes, the attachments by digest, and the origins of parts.

    The last is for each part the index of the one it was made of: a text with a data: URL becomes several.
    """
    extraction = _Extraction()
    parts: list[Part] = []
    origins: list[int] = []
    for index, part in enumerate(message.parts):
        parts.extend(extraction.part(part))
        origins += [index] * (len(parts) - len(origins))
    extracted = replace(message, parts=tuple(parts), details=extraction.json(message.details))
    return extracted, extraction.blobs, origins


def extract_from_note(note: Note) -> tuple[Note, dict[str, Attachment]]:
    """Return the note with references in place of bytes in the data, and the attachments by digest.

    A hidden note stays as it is: it holds a framework's own state, in a form that the framework alone reads.
    """
    if note.hidden:
        return note, {}
    extraction = _Extraction()
    return replace(note, data=extraction.json(note.data)), extraction.blobs


def has_inline_bytes(payload: Payload) -> bool:
    """Return whether base64 would be extracted from the texts, arguments, details or data of a payload."""
    if isinstance(payload, Note):
        return bool(extract_from_note(payload)[1])
    extraction = _Extraction()
    if isinstance(payload, Message):
        for part in payload.parts:
            extraction.part(part)
        extraction.json(payload.details)
    return extraction.has_inline_bytes


class _Extraction:
    """The bytes of an entry, and the references in JSON and reasoning, in order."""

    def __init__(self) -> None:
        self.blobs: dict[str, Attachment] = {}
        self.references: list[str] = []
        self.has_inline_bytes = False

    def part(self, part: Part) -> list[Part]:
        if isinstance(part, Text | Attachment):
            return [*self._pieces(part)]
        if isinstance(part, ToolResult):
            content = tuple(piece for original in part.content for piece in self._pieces(original))
            return [replace(part, content=content, details=self.json(part.details))]
        if isinstance(part, ToolCall):
            self.references = []
            arguments, placeholders = self.json(part.arguments), (*part.placeholders, *self.references)
            malformed = None if part.malformed is None else self.text(part.malformed)  # it is never run
            return [replace(part, arguments=arguments, malformed=malformed, placeholders=placeholders)]
        # Reasoning is restored by the order of its references: none may be in it by itself.
        if isinstance(part, Reasoning) and not part.placeholders and BLOB_REFERENCE not in part.text:
            self.references = []
            text = self.text(part.text)
            return [Reasoning(text, tuple(self.references)) if self.references else part]
        if isinstance(part, ProviderBlock):
            return [replace(part, text=self.text(part.text))]
        return [part]

    def _pieces(self, piece: Text | Media | Attachment) -> Iterator[Text | Media | Attachment]:
        if isinstance(piece, Attachment):
            yield self._add(piece)
            return
        if isinstance(piece, Media):
            yield piece
            return
        end = 0
        for inline in find_inline_bytes(piece.text):
            if inline.start > end:
                yield Text(piece.text[end : inline.start])
            yield self._add(inline.attachment)
            self.has_inline_bytes = True
            end = inline.end
        if end < len(piece.text) or not end:
            yield Text(piece.text[end:]) if end else piece

    def json(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            mime = _stated_type(value, key) or (_OTHER if value.get("encoding") == "base64" else None)
            return {
                name: self._bare(item, mime)
                if isinstance(item, str) and _is_data(name, item, mime)
                else self.json(item, name)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def _bare(self, text: str, mime: str | None) -> str:
        """Return the reference to a block's base64, or the text unless the text is base64."""
        match = _INLINE.match(text)
        letters, end, lines = _all_lines(text, match) if match is not None and match["bare"] else ("", 0, "")
        data = _decode(letters) if not text[end:].strip() else None
        if not data:
            return self.text(text)
        attachment = Attachment(data, mime or _type_of(letters) or _OTHER)
        reference = self._refer(text[:end], attachment, "!bare" + _notation(letters) + lines)
        return text if reference is None else reference + text[end:]

    def text(self, text: str) -> str:
        pieces, end = [], 0
        for inline in find_inline_bytes(text):
            reference = self._refer(text[inline.start : inline.end], inline.attachment, inline.notation)
            if reference is not None:
                pieces += [text[end : inline.start], reference]
                end = inline.end
        return "".join([*pieces, text[end:]]) if pieces else text

    def _refer(self, original: str, attachment: Attachment, notation: str) -> str | None:
        """Return a reference in place of a text; None if the text could not be restored to the letter."""
        media = media_handle(attachment)
        reference = f"{BLOB_REFERENCE}{media.hash};{media.mime};{media.size}{notation}]"
        if base64_text(reference, attachment.data) != original:
            return None
        self.blobs[media.hash] = attachment
        self.references.append(reference)
        self.has_inline_bytes = True
        return reference

    def _add(self, attachment: Attachment) -> Media:
        media = media_handle(attachment)
        self.blobs[media.hash] = attachment
        return media


def _is_data(name: str, text: str, mime: str | None) -> bool:
    """Return whether a string of a block holds bytes, by name."""
    if mime == _OTHER and name == "content":
        return True
    return name in _DATA_KEYS and (mime is not None or _is_unmistakable(text))


def _stated_type(block: Mapping[str, Any], key: str) -> str | None:
    """Return the stated type of a media block's base64."""
    if key == "input_audio" and isinstance(block.get("format"), str):
        mime = f"audio/{block['format']}"
    else:
        stated = next((block[name] for name in _TYPE_KEYS if isinstance(block.get(name), str)), "")
        mime = stated.partition(";")[0]
    return mime if re.fullmatch(_TYPE, mime) else None


# -- restoring them --------------------------------------------------------------------------------------


def referenced_digest(reference: str) -> str:
    """Return the digest of a reference's blob; "", the digest of no blob, for other text."""
    match = _REFERENCE.fullmatch(reference)
    return "" if match is None else match[1]


def digests_in(body: bytes) -> list[str]:
    """Return the digests of all blobs referenced within an entry's bytes."""
    if body.find(_REFERENCE_MARK) < 0:  # as in most
        return []
    return list(dict.fromkeys(match[1] for match in _REFERENCE.finditer(body.decode())))


def base64_text(reference: str, data: bytes) -> str:
    """Return the text behind a reference: a data: URL or bare base64."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        return reference
    _, mime, parameters, notation = match.groups()
    encode = base64.urlsafe_b64encode if "!urlsafe" in notation else base64.b64encode
    letters = encode(data).decode()
    letters = letters.rstrip("=") if "!unpadded" in notation else letters
    if wrapped := _WRAPPED.search(notation):
        length, escape = int(wrapped[1]), "\\" * int(wrapped[3] or 0)
        carriage_return, line_feed = (f"{escape}r", f"{escape}n") if escape else ("\r", "\n")
        lines = (letters[start : start + length] for start in range(0, len(letters), length))
        letters = f"{carriage_return if wrapped[2] else ''}{line_feed}".join(lines)
    return letters if "!bare" in notation else f"data:{mime}{parameters};base64,{letters}"


def restore_reasoning(reasoning: Reasoning, read_blob: ReadBlob) -> Reasoning | None:
    """Return the model's original reasoning; None if bytes are missing."""
    pieces, text = [], reasoning.text
    for reference in reasoning.placeholders:
        before, match, text = text.partition(reference)
        data = read_blob(referenced_digest(reference))
        if data is None or not match:
            return None
        pieces += [before, base64_text(reference, data)]
    return Reasoning("".join([*pieces, text])) if pieces else reasoning


def restore_json(value: Any, read_blob: ReadBlob) -> Any:
    """Return a note's data or a message's details in the original form; missing bytes stay a reference."""
    if isinstance(value, dict):
        return {key: restore_json(item, read_blob) for key, item in value.items()}
    if isinstance(value, list):
        return [restore_json(item, read_blob) for item in value]
    if isinstance(value, str) and BLOB_REFERENCE in value:
        return _REFERENCE.sub(lambda match: _restore_url(match, read_blob), value)
    return value


def _restore_url(match: re.Match[str], read_blob: ReadBlob) -> str:
    data = read_blob(match[1])
    return match[0] if data is None else base64_text(match[0], data)
