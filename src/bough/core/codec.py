"""Bytes: how a payload is written, read back and chained.

The body of an entry is JSON, written once: fields in declared order, keys of tool arguments in the
order given, no blanks, UTF-8. These bytes are the canonical content: the id is a hash over them and
the id of the parent, so they are never written anew. Measured: sha256 of a 2 kB body takes 1.7 µs
here, blake2b 2.9.
"""

from __future__ import annotations

import math
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from ..errors import BadMessage, BadText, InlineMedia, NotJson
from .entries import KINDS, Evidence, Payload, Unknown, kind_of
from .messages import Attachment, Message, ToolCall, ToolResult, check

ID_BYTES = 20
MAX_INT_BITS = 8192  # what every JSON reader here takes back unchanged
MAX_DEPTH = 200  # msgspec and PostgreSQL go deeper, other readers of a bundle may not

_encoder = msgspec.json.Encoder()
_decoders = {kind: msgspec.json.Decoder(type_) for kind, type_ in KINDS.items()}
_evidence = msgspec.json.Decoder(Evidence)
_WRITTEN = frozenset(KINDS.values())


def encode(payload: Payload) -> bytes:
    """The body of an entry; refuses what could not be read back unchanged."""
    if isinstance(payload, Unknown) or type(payload) not in _WRITTEN:
        named = getattr(payload, "kind", type(payload).__name__)
        raise BadMessage(f"unknown kind {named!r} is not written; kinds are {', '.join(KINDS)}")
    kind = kind_of(payload)
    try:
        if isinstance(payload, Message):
            check(payload)
            _check_parts(payload)
        else:
            check_json(msgspec.structs.asdict(payload), kind)
    except (TypeError, AttributeError) as error:
        raise BadMessage(f"a {kind} of the wrong shape: {error}") from None
    return _write(payload, kind)


def read_back(payload: Payload, body: bytes) -> Payload:
    """The payload as any reader will see it; refuses values that would come back as others."""
    kind = kind_of(payload)
    try:
        kept = decode(kind, body)
    except msgspec.MsgspecError as error:
        raise BadMessage(f"a {kind} of the wrong shape: {error}") from None
    if kept != payload:  # a tuple that became a list may pass; bytes that became text may not
        check_json(_plain(payload), kind)
    return kept


def _plain(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return [_plain(item) for item in value] if isinstance(value, _ROWS) else value


def decode(kind: str, body: bytes) -> Payload:
    decoder = _decoders.get(kind)
    return Unknown(kind, bytes(body)) if decoder is None else decoder.decode(body)


def decode_evidence(body: bytes | None) -> Evidence | None:
    return None if body is None else _evidence.decode(body)


def encode_evidence(evidence: Evidence | None) -> bytes | None:
    if evidence is None:
        return None
    check_json(evidence.parts, "evidence")
    body = _write(evidence, "evidence")
    read_back_as(_evidence, body, "evidence")
    return body


def read_back_as(decoder: msgspec.json.Decoder[Any], body: bytes, where: str) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise NotJson(where, str(error)) from None


def chain(parent: bytes, kind: str, turn: int, step: int, body: bytes) -> bytes:
    """The id of an entry: a hash over its parent's id and its own canonical content."""
    digest = sha256(parent)
    digest.update(b"%b %d %d\n" % (kind.encode(), turn, step))
    digest.update(body)
    return digest.digest()[:ID_BYTES]


def to_json(value: object, where: str) -> bytes:
    """Any JSON value as bytes, keys in the order given; refuses what JSON cannot hold."""
    check_json(value, where)
    return _write(value, where)


def from_json(body: bytes | str) -> Any:
    return msgspec.json.decode(body)


Plain = TypeVar("Plain", str, str | None)


def plain_text(value: Plain, where: str) -> Plain:
    """Text for a plain column, which on some stores can hold neither NUL nor half a character."""
    if value is None:
        return value
    if not isinstance(value, str):
        raise NotJson(where, value)
    if "\0" in value:
        raise BadText(where, "a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadText(where, "a lone surrogate") from None
    return value


def _write(value: object, where: str) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        raise BadText(where, "a lone surrogate") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJson(where, str(error)) from None


def _check_parts(message: Message) -> None:
    if message.details is not None:
        check_json(message.details, "message details")
    for part in message.parts:
        if isinstance(part, ToolCall):
            if part.arguments:
                check_json(part.arguments, f"arguments of {part.name}")
        elif isinstance(part, ToolResult):
            if part.details is not None:
                check_json(part.details, f"details of the result for {part.call_id}")
            for piece in part.content:
                if isinstance(piece, Attachment):
                    raise InlineMedia(f"the result for {part.call_id}")
        elif isinstance(part, Attachment):
            raise InlineMedia(f"a {message.role} message")


_PLAIN = (str, bool, type(None))
_ROWS = (list, tuple)


def check_json(value: object, where: str, depth: int = 0) -> None:
    """Walk a value of the caller's own making. msgspec would write NaN as null and 1 as a key "1"."""
    if isinstance(value, _PLAIN):
        return
    if isinstance(value, int):
        if value.bit_length() > MAX_INT_BITS:
            raise NotJson(where, f"an integer of {value.bit_length()} bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise NotJson(where, value)
    elif depth > MAX_DEPTH:
        raise NotJson(where, f"nested deeper than {MAX_DEPTH}")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise NotJson(f"a key in {where}", key)
            check_json(item, where, depth + 1)
    elif isinstance(value, _ROWS):
        for item in value:
            check_json(item, where, depth + 1)
    else:
        raise NotJson(where, value)
