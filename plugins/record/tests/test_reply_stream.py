"""Replies are read in every encoding that a server may send although it was asked for gzip or deflate."""

from __future__ import annotations

import gzip
import zlib

import pytest

from oakleaf.errors import UnrecognizedReply
from oakleaf.providers.replies import read_reply
from support.fake_providers import chunk

STREAM = chunk({"role": "assistant", "content": "hello"}) + chunk({}, finish_reason="stop")


def _without_header(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("", STREAM),
        ("identity", STREAM),
        ("gzip", gzip.compress(STREAM)),
        ("x-gzip", gzip.compress(STREAM)),
        ("gzip", gzip.compress(STREAM[:40]) + gzip.compress(STREAM[40:])),
        ("gzip", gzip.compress(STREAM) + bytes(8)),
        ("deflate", zlib.compress(STREAM)),
        ("deflate", _without_header(STREAM)),
    ],
    ids=["none", "identity", "gzip", "x-gzip", "members", "padding", "deflate", "deflate without header"],
)
def test_a_reply_is_read_in_its_encoding(encoding: str, body: bytes) -> None:
    reply = read_reply("openai-chat", "text/event-stream", encoding, body)
    assert reply.is_complete
    assert reply.data is not None
    assert reply.data["choices"][0]["message"]["content"] == "hello"


def test_a_compressed_reply_that_was_cut_gives_what_came_of_it() -> None:
    compressor = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    first = compressor.compress(chunk({"content": "hello"})) + compressor.flush(zlib.Z_SYNC_FLUSH)
    reply = read_reply("openai-chat", "text/event-stream", "gzip", first + compressor.flush()[:1])
    assert not reply.is_complete
    assert reply.data is not None
    assert reply.data["choices"][0]["message"]["content"] == "hello"


def test_a_reply_that_cannot_be_read_says_so() -> None:
    for encoding, body in (("br", b"abc"), ("gzip", b"abc")):
        with pytest.raises(UnrecognizedReply, match=encoding):
            read_reply("openai-chat", "text/event-stream", encoding, body)
