"""Media: which bytes a provider gets, and the text that replaces the others.

Knows limits and file signatures. Does not know how a provider writes an image.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.media import restore_reasoning
from oakleaf.core.messages import Attachment, Media, Message, Part, ProviderBlock, Reasoning, Text
from oakleaf.wire.base import Blobs

PDF = "application/pdf"
MAX_NAME_LENGTH = 100  # a name helps the model to identify the file, no more
_FIRST_BYTES: dict[str, bytes | tuple[bytes, ...]] = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": (b"GIF87a", b"GIF89a"),
    "audio/mp3": (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"),
    "audio/ogg": b"OggS",
    "audio/flac": b"fLaC",
    PDF: b"%PDF-",
}
_RIFF_TYPES = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}


class LoadedMedia(Struct, frozen=True):
    mime: str
    data: bytes
    name: str | None

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()


def load_content(part: Part, blobs: Blobs, size_limits: Mapping[str, int]) -> LoadedMedia | str:
    """Return the media to send, or a text: the part's own, or a stub for media that the provider does not take."""
    if isinstance(part, Text):
        return part.text
    if isinstance(part, ProviderBlock):
        return part.stub
    assert isinstance(part, Media | Attachment)
    return load_media(part, blobs, size_limits)


def load_media(part: Media | Attachment, blobs: Blobs, size_limits: Mapping[str, int]) -> LoadedMedia | str:
    """Return the bytes to send, or a stub. `size_limits` has the accepted types and their limits in bytes."""
    data = part.data if isinstance(part, Attachment) else blobs(part.hash)
    if data is None:
        return media_stub(part, "is missing")
    # Providers compare the bytes with the declared type and refuse the whole request if they differ.
    mime = _detect_mime(data)
    if mime is None or part.mime not in size_limits or len(data) > size_limits.get(mime, 0):
        return media_stub(part)
    return LoadedMedia(mime, data, part.name)


def with_reasoning(message: Message, blobs: Blobs) -> Message | None:
    """Return the message with the model's own reasoning; None if bytes of the reasoning are missing."""
    if not any(isinstance(part, Reasoning) and part.placeholders for part in message.parts):
        return message
    parts: list[Part] = []
    for part in message.parts:
        restored = restore_reasoning(part, blobs) if isinstance(part, Reasoning) else part
        if restored is None:
            return None
        parts.append(restored)
    return replace(message, parts=tuple(parts))


def media_stub(part: Media | Attachment, status: str = "not shown") -> str:
    size = part.size if isinstance(part, Media) else len(part.data)
    name = f", {part.name[:MAX_NAME_LENGTH]}" if part.name else ""
    return f"[{part.mime or 'media'}, {size:,} bytes{name}: {status}]"


def _detect_mime(data: bytes) -> str | None:
    if data.startswith(b"RIFF"):
        return _RIFF_TYPES.get(data[8:12])
    return next((mime for mime, starts in _FIRST_BYTES.items() if data.startswith(starts)), None)
