"""Base64 is stored as a blob wherever it is in an entry, and comes back to the letter."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

import oakleaf
from oakleaf import ScriptedModel, Text, ToolCall, ToolContext, assistant, user
from oakleaf.core.entries import Note
from oakleaf.core.media import extract_from_note, restore_json
from oakleaf.core.messages import Reasoning
from oakleaf.ext import read
from oakleaf.store import Store
from oakleaf.wire import PROVIDERS

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
BYTES = bytes(range(255, 50, -1))  # of no known kind, and with every letter of the alphabets
PADDED, URLSAFE = base64.b64encode(PNG).decode(), base64.urlsafe_b64encode(BYTES[:-2]).decode()
ZIP = base64.b64encode(b"PK\3\4" + BYTES).decode()
LINES = "\r\n".join(ZIP[start : start + 60] for start in range(0, len(ZIP), 60))
SHAPES: dict[str, Any] = {
    "MCP": {"type": "image", "data": PADDED, "mimeType": "image/png"},
    "Anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/x", "data": URLSAFE}},
    "Gemini": {"inline_data": {"mime_type": "audio/l16;rate=24000", "data": URLSAFE.rstrip("=")}},
    "Gemini by alias": [{"inlineData": {"data": base64.b64encode(BYTES).decode(), "mimeType": "a/b"}}],
    "OpenAI audio": {"type": "input_audio", "input_audio": {"data": URLSAFE, "format": "wav"}},
    "a bare file": {"anything": PADDED},
    "JSON in text": json.dumps({"data": URLSAFE, "media_type": "a/b"}),
    "URLs": f"data:a/b;base64,{PADDED}, data:a/b;x=y;base64,{URLSAFE}; data:a/b;base64,{URLSAFE.rstrip('=')}.",
    "URLs that are written otherwise": f"DATA:a/b;BASE64,{URLSAFE} data:;base64,{PADDED}",
    "text around it": f"screenshot:\n{PADDED}\nand <img>{PADDED}</img>, {{'repr': '{PADDED}'}}",
    "lines": "\n".join(PADDED[start : start + 76] for start in range(0, len(PADDED), 76)),
    "lines of a mail": f"{LINES}\r\n\r\n--\r\n",
    "JSON in JSON in JSON": json.dumps(json.dumps(json.dumps({"x": PADDED}))),
    "an archive": {"file": ZIP},
    "what is said to be base64": {"encoding": "base64", "content": LINES.replace("\r\n", "\n") + "\n"},
    "a name that says it": {"blob": ZIP[4:]},
    "the same bytes three times": [PADDED, f"data:image/png;base64,{PADDED};x=y", {"data": PADDED}],
}


def holds_base64(body: bytes) -> bool:
    return any(
        letters[8:48].encode() in body
        for letters in (PADDED, URLSAFE, ZIP, ZIP[4:], base64.b64encode(BYTES).decode())
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_base64_is_stored_once_and_returns_to_the_letter(store: Store, shape: str) -> None:
    value, runs = {"value": SHAPES[shape]}, []

    @oakleaf.tool(effect="idempotent", approval=True)
    def draw(value: Any, ctx: ToolContext) -> str:
        """Draws."""
        runs.append(ctx.call.arguments)
        return "drawn"

    session = store.start()
    session.note({"host": value})
    call = assistant(Reasoning(f"I think of {json.dumps(value)}."), ToolCall("c", "draw", value))
    session.send_sync("go", model=ScriptedModel([call]), tools=[draw])
    later = oakleaf.Store(store.backend).session(session.session_id)  # knows nothing of the first
    later.approve(*later.pending_approvals())
    later.resume_sync(model=ScriptedModel(["done"]), tools=[draw])
    later.append([user("next"), oakleaf.Message("assistant", (Text("a"),), details=value)])
    assert runs == [value]
    path = later.path()
    assert not any(holds_base64(stored.entry.body) for stored in store.backend.entries(session.session_id))
    notes = [entry.payload.data for entry in path if isinstance(entry.payload, Note)]
    assert [restore_json(note, read(later).blob) for note in notes] == [{"host": value}]
    assert restore_json(path[-1].message.details, read(later).blob) == value
    assert later.verify() == []
    bundle = io.BytesIO()
    later.export(bundle, blobs=True)
    bundle.seek(0)
    with oakleaf.open("memory:") as elsewhere:
        elsewhere.import_bundle(bundle)
        copy = elsewhere.session(session.session_id)
        assert restore_json(copy.path()[-1].message.details, read(copy).blob) == value


def test_repeated_bytes_outlive_a_purge_of_the_first(store: Store) -> None:
    url, details = f"data:image/png;base64,{PADDED}", {"shot": [PADDED]}
    session = store.start()
    with session.turn("go") as turn:
        turn.answer(assistant(Reasoning(url), ToolCall("c", "look", {"at": url})))
        turn.result("c", "seen", details=details)
        turn.answer(assistant("done"))
    replay = store.session(asyncio.run(session.replay(mode="strict")).replay)
    seeded = store.start("", [entry.message for entry in session.path()])
    pasted = f"[oakleaf-blob:{'0' * 64};image/png;1]"  # of nothing that was ever stored
    seeded.append([user(pasted)])
    store.delete(session.session_id)
    store.purge(session.session_id)
    store.gc(grace=-1)
    for copy in (replay, seeded):
        results = [result for entry in copy.path() for result in entry.message.results]
        assert [restore_json(result.details, read(copy).blob) for result in results] == [details]
    assert seeded.path()[-1].message.text == pasted
    assert list(store.verify()) == []
    for copy in (replay, seeded):
        store.delete(copy.session_id)
        store.purge(copy.session_id)
    store.gc(grace=-1)
    assert store.blob(hashlib.sha256(PNG).hexdigest()) is None


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_media_in_a_message_of_a_provider_is_stored_as_a_blob(store: Store, provider: str) -> None:
    session = store.start()
    session.append([user("see", oakleaf.Attachment(PNG, "image/png"))])
    other = store.start()
    other.append(session.messages(provider))
    assert not holds_base64(store.backend.entries(other.session_id)[-1].entry.body)
    assert [store.blob(media) for media in other.path()[-1].message.media] == [PNG]


@pytest.mark.parametrize(
    "data",
    [
        {"sha256": "ab" * 32, "mimeType": "text/plain"},
        {"data": "A" * 65, "mimeType": "image/png"},
        {"data": "a" * 64},
        {"data": "not base64, but long enough to be some of it " * 3, "mimeType": "image/png"},
        {"text": f"[oakleaf-blob:{'0' * 64};image/png;1]"},
        {
            "key": "ssh-rsa " + base64.b64encode(BYTES * 2).decode()
        },  # of no known kind: a model may have to copy it
        {"data": "ab12" * 100},
        {"text": f"{PADDED[4:80]}\ndone"},
    ],
)
def test_other_text_than_media_stays(data: dict[str, Any]) -> None:
    assert extract_from_note(Note(data)) == (Note(data), {})


def test_base64_in_malformed_arguments_is_stored_as_a_blob(store: Store) -> None:
    session = store.start()
    session.append([user("go"), assistant(ToolCall("c", "draw", malformed=f'{{"image": "{PADDED}'))])
    assert not holds_base64(store.backend.entries(session.session_id)[-1].entry.body)
    assert session.verify() == []


def test_a_word_on_the_line_after_base64_stays_a_word(store: Store) -> None:
    session = store.start()
    line = base64.b64encode(PNG[:57]).decode()
    session.append([user(f"data:image/png;base64,{line}\ndone")])
    message = session.path()[0].message
    assert [store.blob(media) for media in message.media] == [PNG[:57]]
    assert message.text.endswith("\ndone")


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_malformed_arguments_are_never_sent_raw(store: Store, provider: str) -> None:
    """A server that parses the history would refuse every later request."""
    session = store.start()
    session.append([user("go"), assistant(ToolCall("c", "draw", malformed='{"x": '))])
    session.append([oakleaf.tool_result("c", "no", error=True), assistant("sorry")])
    sent = json.dumps(session.messages(provider))
    assert "malformed_arguments" in sent
    assert [each for each in _arguments(json.loads(sent)) if not isinstance(each, dict)] == []


def _arguments(value: Any) -> Iterator[Any]:
    """Yield the arguments of calls in a request, read as JSON."""
    if isinstance(value, list):
        for item in value:
            yield from _arguments(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in ("arguments", "input", "args"):
                yield json.loads(item) if isinstance(item, str) else item
            else:
                yield from _arguments(item)
