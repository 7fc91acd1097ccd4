"""The bytes of a request or a response whose body was compressed."""

from __future__ import annotations

import sys
import zlib
from importlib import import_module
from typing import Any

from oakleaf.errors import UnrecognizedReply

MAX_DECODED_BYTES = 64 * 1024 * 1024
"""As much as of a body that is not compressed: a few kilobytes may stand for gigabytes."""


def decompress(body: bytes, encoding: str) -> bytes:
    """Return the bytes of a body; of a cut body the readable part. A body may have several members.

    Raises `UnrecognizedReply` for an unknown encoding, and for a body that is too long.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate", "zstd"):
        raise UnrecognizedReply(f"a body in the encoding {encoding!r}")
    pieces, room = [], MAX_DECODED_BYTES + 1
    while body and room:
        decoder, fault = _decoder(body, encoding)
        try:
            pieces.append(decoder.decompress(body, room))
        except fault as error:
            if pieces:  # bytes after the last member say nothing
                break
            raise UnrecognizedReply(f"a body that is not {encoding}: {error}") from None
        room -= len(pieces[-1])
        body = decoder.unused_data
    if not room:
        raise UnrecognizedReply(f"a body of more than {MAX_DECODED_BYTES >> 20} MiB when decompressed")
    return b"".join(pieces)


def _decoder(body: bytes, encoding: str) -> tuple[Any, type[Exception]]:
    """Return the reader of the body, and the reader's error."""
    if encoding == "zstd":
        zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
        return zstd.ZstdDecompressor(), zstd.ZstdError
    return zlib.decompressobj(_window_bits(body, encoding)), zlib.error


def _window_bits(body: bytes, encoding: str) -> int:
    """Return zlib's window bits for the body: with the body's header, or without, for servers with raw `deflate`."""
    has_header = body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0
    return -zlib.MAX_WBITS if encoding == "deflate" and not has_header else zlib.MAX_WBITS | 32
