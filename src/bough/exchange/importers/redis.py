"""Chats in Redis: the lists of LangChain's chat history, and keys that hold {messages, state} as one JSON text.

Speaks as much of Redis' protocol as reading needs: SCAN, TYPE, GET and LRANGE. A key that holds something else is another
program's, and is passed over.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from ...core.codec import to_json
from ...core.entries import Note
from ...errors import InvalidSource, InvalidValue
from ...formats import langchain
from ...formats.jsonl import INVALID_JSON, decode_json
from ...formats.records import EntryRecord, LossReport, SessionRecord
from . import chat

PORT = 6379
SECONDS = 10
PAGE = 500
"""Keys, or items of a list, that are asked for at once."""
DEEPEST = 8
LARGEST = 512 * 1024 * 1024 + 2
"""Redis itself keeps no longer value."""
PREFIX = "message_store:"
"""What LangChain puts before the name of a session."""


def read_sessions(source: str) -> Iterator[SessionRecord]:
    address = _address(source)
    shown = (
        f"{address.scheme}://{address.hostname}:{address.port or PORT}{address.path}"  # without the password
    )
    pattern = parse_qs(address.query).get("match", ["*"])[0]
    try:
        with _connected(address) as redis:
            for key in sorted(set(redis.keys(pattern))):
                told = _told(redis, key)
                if told is not None:
                    yield told
    except (OSError, EOFError, ValueError) as error:
        raise InvalidSource(shown, "redis", str(error) or type(error).__name__) from None


def _address(place: str) -> SplitResult:
    try:
        found = urlsplit(place)
        is_known = found.scheme in ("redis", "rediss") and bool(found.hostname) and found.port != 0
    except ValueError:
        is_known = False
    if not is_known:
        raise InvalidSource("that place", "redis", "it wants an address: redis://host:6379/0")
    return found


def _told(redis: Redis, key: bytes) -> SessionRecord | None:
    losses = LossReport()
    kind = redis.ask("TYPE", key)
    if kind == b"list":
        told = _of_list([_json(item, losses, key) for item in redis.items(key)], losses)
    elif kind == b"string":
        told = _of_value(_json(redis.ask("GET", key), losses, key), losses)
    else:
        return None
    name = key.decode("utf-8", "backslashreplace").removeprefix(PREFIX)
    return SessionRecord("redis", name, tuple(told), losses=losses) if told else None


def _json(value: object, losses: LossReport, key: bytes) -> object:
    try:
        return decode_json(value, losses, repr(key)) if isinstance(value, bytes) else None
    except INVALID_JSON:
        return None


def _of_list(items: list[object], losses: LossReport) -> list[EntryRecord]:
    """LangChain's list has the newest message first."""
    messages = [langchain.message_fields(item) for item in reversed(items)]
    found = [message for message in messages if message is not None]
    if not found:
        return []
    if len(found) < len(items):
        losses.add("a list item that is not a message", count=len(items) - len(found))
    told = (langchain.read_message(message, losses) for message in found)
    return [one for one in told if one is not None]


def _of_value(value: object, losses: LossReport) -> list[EntryRecord]:
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(messages, list):
        return []
    told: list[EntryRecord] = []
    for message in messages:
        if isinstance(message, dict) and "type" in message and "data" in message:
            told.extend(_of_list([message], losses))
        elif isinstance(message, dict):
            told.extend(chat.read_chat_messages([message], losses))
        else:
            losses.add("a message that is not a JSON object")
    state = value.get("state")
    if told and isinstance(state, dict) and state:
        try:
            to_json(state, "state")
        except InvalidValue:
            losses.add("a state that is not JSON")
        else:
            told.append(EntryRecord(Note(state=state)))
    return told


@contextlib.contextmanager
def _connected(address: SplitResult) -> Iterator[Redis]:
    host = address.hostname or ""
    with contextlib.ExitStack() as opened:
        line = opened.enter_context(socket.create_connection((host, address.port or PORT), SECONDS))
        if address.scheme == "rediss":
            secured = ssl.create_default_context().wrap_socket(line, server_hostname=host)
            line = opened.enter_context(secured)
        redis = Redis(line, opened.enter_context(line.makefile("rb")))
        who = [unquote(part) for part in (address.username, address.password) if part]
        if who:
            redis.ask("AUTH", *who)
        if address.path.strip("/"):
            redis.ask("SELECT", address.path.strip("/"))
        yield redis


class Redis:
    """A connection that asks and reads."""

    def __init__(self, line: socket.socket, answers: BinaryIO) -> None:
        self._line, self._answers = line, answers

    def keys(self, pattern: str) -> Iterator[bytes]:
        cursor: object = b"0"
        while True:
            answer = self.ask("SCAN", cursor, "MATCH", pattern, "COUNT", str(PAGE))
            if not isinstance(answer, list) or len(answer) != 2 or not isinstance(answer[1], list):
                raise ValueError("what answers there does not speak as Redis does")
            cursor = answer[0]
            yield from (key for key in answer[1] if isinstance(key, bytes))
            if cursor == b"0":
                return

    def items(self, key: bytes) -> Iterator[bytes]:
        first = 0
        while True:
            page = self.ask("LRANGE", key, str(first), str(first + PAGE - 1))
            yield from (item for item in (page if isinstance(page, list) else []) if isinstance(item, bytes))
            if not isinstance(page, list) or len(page) < PAGE:
                return
            first += PAGE

    def ask(self, *words: object) -> Any:
        sent = [word if isinstance(word, bytes) else str(word).encode("utf-8", "replace") for word in words]
        parts = [b"*%d\r\n" % len(sent), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in sent)]
        self._line.sendall(b"".join(parts))
        return self._answer()

    def _answer(self, depth: int = 0) -> Any:
        head = self._answers.readline()
        if not head.endswith(b"\r\n") or depth > DEEPEST:
            raise EOFError("what answers there does not speak as Redis does, or broke off")
        kind, rest = head[:1], head[1:-2]
        if kind == b"-":
            raise ValueError(f"the server says {rest.decode('utf-8', 'replace')}")
        if kind == b"$":
            return None if int(rest) < 0 else self._exactly(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if int(rest) < 0 else [self._answer(depth + 1) for _ in range(int(rest))]
        if kind in (b"+", b":"):
            return rest
        raise ValueError("what answers there does not speak as Redis does")

    def _exactly(self, many: int) -> bytes:
        if many > LARGEST:
            raise ValueError(f"a value of {many:,} bytes")
        found = self._answers.read(many)
        if len(found) < many:
            raise EOFError("the connection broke off")
        return found
