"""Bodies are read in every encoding that a server may send although it was asked for gzip or deflate."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
from backports.zstd import compress

from oakleaf.errors import UnrecognizedReply
from oakleaf.plugins import MODELS, find
from oakleaf_record.content_encoding import MAX_DECODED_BYTES, decompress
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
        ("zstd", compress(STREAM)),
        ("zstd", compress(STREAM[:40]) + compress(STREAM[40:])),
        ("deflate", zlib.compress(STREAM)),
        ("deflate", _without_header(STREAM)),
    ],
    ids=[
        "none",
        "identity",
        "gzip",
        "x-gzip",
        "members",
        "padding",
        "zstd",
        "frames",
        "deflate",
        "deflate without header",
    ],
)
def test_a_reply_is_read_in_its_encoding(encoding: str, body: bytes) -> None:
    assert decompress(body, encoding).startswith(STREAM)
    reply = find(MODELS, "openai-chat").read_reply("text/event-stream", decompress(body, encoding))
    assert reply.is_complete
    assert reply.data["choices"][0]["message"]["content"] == "hello"


def test_a_compressed_reply_that_was_cut_gives_what_came_of_it() -> None:
    compressor = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    first = compressor.compress(chunk({"content": "hello"})) + compressor.flush(zlib.Z_SYNC_FLUSH)
    body = decompress(first + compressor.flush()[:1], "gzip")
    reply = find(MODELS, "openai-chat").read_reply("text/event-stream", body)
    assert not reply.is_complete
    assert reply.data["choices"][0]["message"]["content"] == "hello"


def test_a_body_that_cannot_be_read_says_so() -> None:
    for encoding, body in (("br", b"abc"), ("gzip", b"abc"), ("zstd", b"abc")):
        with pytest.raises(UnrecognizedReply, match=encoding):
            decompress(body, encoding)


class TestSize:
    def test_a_body_of_the_greatest_length_is_read(self) -> None:
        assert len(decompress(gzip.compress(bytes(MAX_DECODED_BYTES)), "gzip")) == MAX_DECODED_BYTES

    @pytest.mark.attack
    @pytest.mark.parametrize("members", [1, 3])
    def test_a_body_that_grows_too_long_is_refused(self, members: int) -> None:
        body = gzip.compress(bytes(MAX_DECODED_BYTES // members + 1)) * members
        assert len(body) < MAX_DECODED_BYTES // 100
        with pytest.raises(UnrecognizedReply, match="more than 64 MiB when decompressed"):
            decompress(body, "gzip")

    @pytest.mark.attack
    def test_a_bomb_takes_no_more_memory_than_the_limit(self) -> None:
        body = gzip.compress(bytes(MAX_DECODED_BYTES)) * 16
        tracemalloc.start()
        with pytest.raises(UnrecognizedReply):
            decompress(body, "gzip")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * MAX_DECODED_BYTES
