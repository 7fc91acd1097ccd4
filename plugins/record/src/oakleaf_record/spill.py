"""Calls that wait on disk, because memory holds no more of them. The file has no name and goes with the process."""

from __future__ import annotations

import threading
from tempfile import TemporaryFile
from typing import IO

from msgspec import Struct
from msgspec.structs import replace

from oakleaf_record.http_stream import LengthBody
from oakleaf_record.server import ApiCall


class SpilledCall(Struct, frozen=True):
    """A call without the bytes, and the place of the bytes."""

    call: ApiCall
    offset: int
    request_length: int
    response_length: int | None
    """None: there was no response."""


class Spill:
    """Written by the proxy's thread, read by the recorder's. Empty again, it gives its room back."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._count = self._end = 0

    def put(self, call: ApiCall) -> SpilledCall:
        """Write an ended call; raise OSError without room."""
        response = None if call.body is None else call.response
        with self._lock:
            self._file = self._file or TemporaryFile(buffering=0)  # noqa: SIM115 - it lives as long as the recorder
            self._file.seek(self._end)
            for data in (call.request, response or b""):
                left = memoryview(data)
                while left:
                    left = left[self._file.write(left) :]
            bare = replace(call, request=b"", body=None)
            length = None if response is None else len(response)
            spilled = SpilledCall(bare, self._end, len(call.request), length)
            self._end += len(call.request) + (length or 0)
            self._count += 1
        return spilled

    def take(self, spilled: SpilledCall) -> ApiCall:
        """Return a call with the bytes, once."""
        with self._lock:
            assert self._file is not None
            self._file.seek(spilled.offset)
            request = self._read(spilled.request_length)
            body = None
            if spilled.response_length is not None:
                body = LengthBody(spilled.response_length)
                body.feed(self._read(spilled.response_length))
            self._count -= 1
            if not self._count:
                self._file.close()
                self._file, self._end = None, 0
        return replace(spilled.call, request=request, body=body)

    def _read(self, length: int) -> bytes:
        assert self._file is not None
        pieces: list[bytes] = []
        while length:
            piece = self._file.read(length)
            if not piece:
                raise OSError("the file of the calls that wait was cut")
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)
