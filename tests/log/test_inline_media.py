"""Bytes within text: they become blobs that every handle reads, or the entry is refused."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oakleaf
import oakleaf.core.media
from oakleaf import (
    Attachment,
    Compaction,
    Message,
    Note,
    Settings,
    Store,
    Text,
    assistant,
    errors,
    system,
    tool_result,
    user,
)
from support.store_contents import contents, in_a_call, open_store, payloads, reopened


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield from open_store(request.param, tmp_path)


PIXELS = bytes(range(256)) * 4


URL = "data:image/png;base64," + base64.b64encode(PIXELS).decode()


URL_SAFE = "data:image/png;name=a.png;base64," + base64.urlsafe_b64encode(PIXELS).decode().rstrip("=")


INLINE: dict[str, list[Any]] = {
    "text": [user(f"look: {URL} there")],
    "text, url safe": [user(URL_SAFE)],
    "two in one text": [user(URL + " " + URL_SAFE)],
    "answer": [user("x"), assistant(URL)],
    "arguments": in_a_call({"a": [{"image": URL}], "b": f"<img src='{URL}'>"}),
    "result": [*in_a_call({}), tool_result("c", f"made {URL}")],
    "result as json": [*in_a_call({}), tool_result("c", {"image": URL})],
    "result details": [*in_a_call({}), tool_result("c", "r", details={"image": URL})],
    "state": [*in_a_call({}), tool_result("c", "r", state={"image": URL})],
    "message details": [Message("user", (Text("x"),), details={"image": URL})],
    "attachment": [user(Attachment(PIXELS, "image/png", "a.png"))],
    "attachment in a result": [*in_a_call({}), tool_result("c", Attachment(PIXELS, "image/png"))],
    "system": [system(URL)],
    "reasoning": [user("x"), assistant(oakleaf.Reasoning(f"I see {URL} and {URL} again"))],
    "reasoning, url safe": [user("x"), assistant(oakleaf.Reasoning(URL_SAFE))],
    "note": [Note({"image": URL})],
}


VERBATIM: dict[str, list[Any]] = {
    "key of arguments": in_a_call({URL: 1}),
    "note state": [Note(state={"image": URL})],
    "settings": [Settings(prompt=URL)],
    "summary": [Compaction(URL, 1)],
}
"""Fields that are not shown as a part. Malformed arguments are: core/test_media.py."""


FIRST_BYTES = [
    ("image/png", b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", b"\xff\xd8\xff"),
    ("image/gif", b"GIF89a"),
    ("image/webp", b"RIFF\x1a\0\0\0WEBP"),
    ("application/pdf", b"%PDF-"),
    ("audio/wav", b"RIFF\x1a\0\0\0WAVE"),
    ("audio/mp3", b"ID3"),
    ("audio/mpeg", b"\xff\xfb"),
    ("audio/ogg", b"OggS"),
    ("audio/flac", b"fLaC"),
]


@pytest.mark.parametrize("place", INLINE)
def test_bytes_in_a_part_become_a_blob_or_are_refused(store: Store, place: str) -> None:
    session = store.start()
    before = contents(store)
    try:
        session.append(INLINE[place])
    except errors.OakleafError:
        assert contents(store) == before
        return
    bodies = b"".join(stored.entry.body for stored in store.backend.entries(session.session_id))
    assert base64.b64encode(PIXELS)[:80] not in bodies, "the bytes are still within the entry"
    assert base64.urlsafe_b64encode(PIXELS)[:80] not in bodies
    digest = oakleaf.core.media.digest(PIXELS)
    assert digest.encode() in bodies
    assert store.blob(digest) == PIXELS
    assert reopened(store, session).verify() == []


@pytest.mark.parametrize(("mime", "start"), FIRST_BYTES)
def test_a_damaged_file_is_appended_and_verified(mime: str, start: bytes) -> None:
    session = oakleaf.open("memory:").start()
    cut = [start[:length] for length in range(len(start) + 1)]
    for data in [*cut, *(start + bytes([byte]) + b"x" for byte in range(0, 256, 21))]:
        session.append(in_a_call({}))
        session.append([tool_result("c", Attachment(data, mime)), user(Attachment(data, mime))])
    assert session.verify() == []


@pytest.mark.parametrize("place", VERBATIM)
def test_verbatim_text_stays_or_is_refused(store: Store, place: str) -> None:
    session = store.start()
    before = contents(store)
    try:
        session.append(VERBATIM[place])
    except errors.OakleafError:
        assert contents(store) == before
        return
    again = reopened(store, session)
    assert payloads(again) == VERBATIM[place]
    assert again.verify() == []


@pytest.mark.parametrize(
    "place",
    ["text", "arguments", "result details", "state", "message details", "attachment in a result", "note"],
)
def test_a_blob_in_use_is_never_collected(store: Store, place: str) -> None:
    session = store.start()
    session.append(INLINE[place])
    assert store.gc(grace=-1_000_000_000) == 0
    assert store.blob(oakleaf.core.media.digest(PIXELS)) == PIXELS


def test_the_state_holds_the_reference_and_not_the_bytes(store: Store) -> None:
    session = store.start()
    session.append(INLINE["state"])
    session.note(state={"next": 1})
    again = reopened(store, session)
    assert again.state["image"] == session.state["image"]
    assert again.verify() == []


def test_a_blob_put_twice_is_kept_once(store: Store) -> None:
    one = store.put_blob(PIXELS, "image/png")
    two = store.put_blob(PIXELS, "image/gif")
    assert one.hash == two.hash
    assert store.blob(one) == PIXELS
    empty = store.put_blob(b"", "image/png")
    assert store.blob(empty) == b""
