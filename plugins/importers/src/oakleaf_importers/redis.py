"""Import chats from Redis: LangChain's chat history lists, and keys that hold {messages, state} as JSON text.

Only sends commands that read. Keys with other content belong to other programs and are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from oakleaf import plugins
from oakleaf.core.codec import is_storable
from oakleaf.core.entries import Note
from oakleaf.core.json_repair import INVALID_JSON
from oakleaf.errors import InvalidSource, PluginMissing
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import EntryRecord, LossReport, SessionRecord
from oakleaf_importers.chat import has_messages, read_chat_messages
from oakleaf_importers.formats import langchain
from oakleaf_importers.formats.json_values import as_dict, as_list
from oakleaf_importers.formats.jsonl import decode_json

if TYPE_CHECKING:
    from redis import Redis

PORT = 6379
TIMEOUT_SECONDS = 10
PAGE = 500
"""Keys, or items of a list, per request."""
LANGCHAIN_PREFIX = "message_store:"
"""What LangChain puts before a session id in its keys."""


def read_sessions(source: str) -> Iterator[SessionRecord]:
    """Read the chats of all keys, or of the keys in the address's `?match=chat:*`."""
    with _open(source) as (redis, pattern):
        for key in sorted(set(redis.scan_iter(pattern, PAGE))):
            session = _read_key(redis, key, pattern)
            if session is not None:
                yield session


def read_conversation(source: str, conversation_id: str) -> SessionRecord | None:
    """Read the chat of one conversation, by the key from the address's pattern, LangChain or the id."""
    with _open(source) as (redis, pattern):
        prefixes = dict.fromkeys([pattern.removesuffix("*"), LANGCHAIN_PREFIX, ""])
        for prefix in prefixes:
            session = _read_key(redis, f"{prefix}{conversation_id}".encode(), pattern)
            if session is not None and session.conversation_id == conversation_id:
                return session
    return None


IMPORTER = Importer(
    source="redis://[user:password@]host[:port][/db][?match=PATTERN]",
    sessions=read_sessions,
    conversation=read_conversation,
)


@contextmanager
def _open(source: str) -> Iterator[tuple[Redis, str]]:
    """Yield a connection and the pattern of the keys; raise `InvalidSource` for any failure."""
    url = _parse_url(source)
    try:
        from redis.exceptions import RedisError
    except ImportError:
        provider = str(plugins.provider_of(plugins.IMPORTERS, "redis"))
        raise PluginMissing(plugins.IMPORTERS, "redis", provider, "redis") from None
    public_url = f"{url.scheme}://{url.hostname}:{url.port or PORT}{url.path}"  # without the password
    try:
        with _connect(url) as redis:
            yield redis, parse_qs(url.query).get("match", ["*"])[0]
    except (RedisError, OSError, ValueError, TypeError, IndexError) as error:  # also for another protocol
        raise InvalidSource(public_url, "redis", str(error) or type(error).__name__) from None


def _parse_url(source: str) -> SplitResult:
    try:
        url = urlsplit(source)
        is_valid = url.scheme in ("redis", "rediss") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidSource("that address", "redis", "expected redis://host:6379/0")
    return url


def _connect(url: SplitResult) -> Redis:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return Redis(
        host=url.hostname or "",
        port=url.port or PORT,
        db=int(url.path.strip("/") or 0),
        username=unquote(url.username) if url.username else None,
        password=unquote(url.password) if url.password else None,
        ssl=url.scheme == "rediss",
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
        protocol=2,  # understood by every server
    )


def _read_key(redis: Redis, key: bytes, pattern: str) -> SessionRecord | None:
    losses = LossReport()
    kind = redis.type(key)
    if kind == b"list":
        entries = _read_list([_decode(item, losses, key) for item in _list_items(redis, key)], losses)
    elif kind == b"string":
        entries = _read_value(_decode(redis.get(key), losses, key), losses)
    else:
        return None
    name = key.decode("utf-8", "backslashreplace").removeprefix(LANGCHAIN_PREFIX)
    missing = ("tool definitions", "options")
    if not has_messages(entries):
        return None
    conversation_id = name.removeprefix(pattern.removesuffix("*"))
    return SessionRecord(
        "redis", name, tuple(entries), conversation_id=conversation_id, losses=losses, missing=missing
    )


def _list_items(redis: Any, key: bytes) -> Iterator[object]:
    first = 0
    while page := redis.lrange(key, first, first + PAGE - 1):
        yield from page
        first += PAGE


def _decode(value: object, losses: LossReport, key: bytes) -> object:
    try:
        return decode_json(value, losses, repr(key)) if isinstance(value, bytes) else None
    except INVALID_JSON:
        return None


def _read_list(items: list[object], losses: LossReport) -> list[EntryRecord]:
    """Convert LangChain's list, whose first item is the newest message."""
    messages = [fields for item in reversed(items) if (fields := langchain.message_fields(item)) is not None]
    if messages and len(messages) < len(items):
        losses.add("a list item that is not a message", count=len(items) - len(messages))
    entries = (langchain.read_message(message, losses) for message in messages)
    return [entry for entry in entries if entry is not None]


def _read_value(value: object, losses: LossReport) -> list[EntryRecord]:
    fields = as_dict(value)
    entries: list[EntryRecord] = []
    for message in as_list(fields.get("messages")):
        if isinstance(message, dict) and "type" in message and "data" in message:
            entries.extend(_read_list([message], losses))
        elif isinstance(message, dict):
            entries.extend(read_chat_messages([message], losses))
        else:
            losses.misread("a message that is not a JSON object")
    state = as_dict(fields.get("state"))
    if entries and state:
        if is_storable(state):
            entries.append(EntryRecord(Note(state=state)))
        else:
            losses.misread("a state that is not JSON")
    return entries
