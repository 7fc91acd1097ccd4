"""Random logs that the log would accept: every payload passed `core.turns.follow`.

Each call carries a serial number in its arguments and each result the serial of the call it answers, so a
test can check in a request that each result is next to its call, without pairing them itself.
"""

from __future__ import annotations

import base64
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from msgspec import Struct

from oakleaf.core.codec import encode
from oakleaf.core.entries import (
    BranchSummary,
    Compaction,
    Endpoint,
    Entry,
    Evidence,
    Note,
    Payload,
    Settings,
    Uncompaction,
    is_internal,
)
from oakleaf.core.fit import Budget
from oakleaf.core.messages import Media, Message, ProviderBlock, Reasoning, Text, ToolCall, ToolResult
from oakleaf.core.tool_definitions import ToolSpec, define_tools
from oakleaf.core.turns import Cursor, OpenCall, advance

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"
thorough_settings = settings(
    max_examples=10_000 if SOAK else 30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 24
TOOL_NAMES = [("search",), ("search", "look"), ("größe", "n" * 200, "fs.read", "fs_read", ""), ()]
TOOL_SETS = [define_tools([ToolSpec(name, "", {"type": "object"}) for name in names]) for names in TOOL_NAMES]
BLOBS: dict[str, bytes] = {
    **{tools.blob.hash: tools.blob.data for tools in TOOL_SETS},
    "png": PNG,
    "jpeg": b"\xff\xd8\xff\xe0" + b"\0" * 8,
    "gif": b"GIF89a" + b"\0" * 8,
    "webp": b"RIFF\x04\0\0\0WEBP" + b"\0" * 8,
    "pdf": b"%PDF-1.7 \n%%EOF",
    "lie": b"<html>not an image</html>",
    "empty": b"",
    "song": b"ID3\x04" + b"\0" * 9,
    "sound": b"RIFF\x04\0\0\0WAVE" + b"\0" * 8,
}
MEDIA = [
    Media("png", "image/png", 32, "cat.png"),
    Media("png", "image/jpeg", 32),
    Media("jpeg", "image/jpeg", 12),
    Media("gif", "image/gif", 14, "a\nb" * 90),
    Media("webp", "image/webp", 20),
    Media("pdf", "application/pdf", 16, "plan.pdf"),
    Media("lie", "image/png", 25),
    Media("empty", "image/png", 0),
    Media("sound", "audio/wav", 20),
    Media("song", "audio/mpeg", 13),
    Media("gone", "image/png", 9_999),
    Media("gone", "", 9_999),
]
TEXTS = [
    "hello",
    "",
    " ",
    "\n\t ",
    "trailing  \n",
    " leading",
    "snowman ☃ 🎄",
    "nul \0",
    "\x85",
    "{}",
    "x" * 300,
]
IDS = [
    "call_1",
    "call_1",
    "call_2",
    "",
    "é",
    "a b",
    "call.3",
    "x" * 41,
    "y" * 64,
    "w" * 65,
    "z" * 512,
    "toolu_9\n",
]
NAMES = ["search", "fs.read", "", "9lives", "-x", "größe", "n" * 200, "a b\n", "mcp__x__y"]
OUTCOMES = ["done", "done", "done", "unknown", "denied", "interrupted", "dry_run"]


def blobs(digest: str) -> bytes | None:
    return BLOBS.get(digest)


def entries(payloads: list[tuple[Payload, Evidence | None]], seeds: int = 0) -> list[Entry]:
    """Return the path that the log would build from the payloads."""
    cursor = Cursor()
    path = []
    for payload, evidence in payloads:
        encode(payload)  # fails for a payload that cannot be stored
        seed = cursor.seq < seeds
        place = advance(cursor, payload, seed=seed)
        seq = cursor.seq + 1
        internal = is_internal(payload, seed=seed)
        path.append(Entry(1, seq, b"", place.turn, place.step, payload, internal, 0, evidence=evidence))
        cursor = place.cursor
    return path


def path_of(*payloads: Payload, seeds: int = 0) -> list[Entry]:
    return entries([(payload, None) for payload in payloads], seeds)


class _Maker(Struct):
    """The state of the strategy while it draws."""

    cursor: Cursor = Cursor()
    payloads: list[tuple[Payload, Evidence | None]] = []
    serials: dict[tuple[int, int], int] = {}
    compactions: list[int] = []
    serial: int = 0


texts = st.sampled_from(TEXTS) | st.text(max_size=8, alphabet=st.characters(codec="utf-8"))
text_parts = texts.map(Text)
media_parts = st.sampled_from(MEDIA)
content = st.lists(st.one_of(text_parts, text_parts, media_parts), max_size=3).map(tuple)
budgets = st.builds(
    Budget,
    tokens=st.none() | st.integers(1, 9_000),
    bytes=st.none() | st.integers(1, 9_000),
    media=st.none() | st.integers(0, 6),
    messages=st.none() | st.integers(1, 20),
)


@st.composite
def paths(draw: st.DrawFn, max_entries: int = 18) -> list[Entry]:
    """Draw a complete path including seeds; every prefix of it is a valid path."""
    maker = _Maker(Cursor(), [], {}, [])
    seeds = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(3, max_entries))):
        seed = maker.cursor.seq < seeds
        payload, evidence = _next(draw, maker)
        maker.cursor = advance(maker.cursor, payload, seed=seed).cursor
        maker.payloads.append((payload, evidence))
    return entries(maker.payloads, seeds)


def _next(draw: st.DrawFn, maker: _Maker) -> tuple[Payload, Evidence | None]:
    """Draw the next payload. Strategies are made once, above and below: making them took most of the time of a long run."""
    kind = draw(_waiting_kinds if maker.cursor.open_calls else _kinds)
    if kind == "answer":
        return _answer(draw, maker)
    if kind == "result":
        return _result(draw, maker), None
    if kind == "compaction":
        return _compaction(draw, maker), None
    if kind == "output":
        return _output(draw)
    return draw(_plain[kind]), None


_user = content.map(lambda parts: Message("user", parts, details={"secret": "DETAILS"}))
_system = st.lists(text_parts, max_size=2).map(lambda parts: Message("system", tuple(parts)))
_note = st.just(Note({"secret": "DETAILS"}))
_settings = st.builds(
    Settings,
    model=st.none() | st.just("m"),
    prompt=st.none() | texts,
    prompt_patch=st.none() | texts,
    options=st.sampled_from([None, None, {"temperature": 0.5}]),
    tool_definitions=st.sampled_from([None, *(tools.definitions for tools in TOOL_SETS)]),
    windows=st.sampled_from([None, None, {"m": 4096}]),
    endpoints=st.sampled_from([None, None, {"openai-chat": Endpoint("127.0.0.1:8000", "m", "max_tokens")}]),
)
_branch = texts.map(lambda summary: BranchSummary(summary, 3, "ab"))
_plain: dict[str, st.SearchStrategy[Any]] = {
    "user": _user,
    "note": _note,
    "settings": _settings,
    "branch": _branch,
    "system": _system,
}
_kinds = st.sampled_from(
    ["user", "answer", "answer", "note", "settings", "branch", "system", "compaction", "output"]
)
_waiting_kinds = st.sampled_from(["result", "result", "result", "note"])
_issuers = st.sampled_from(["anthropic", "openai-chat", "openai", "openai", "gemini"])
_part_kinds = st.sampled_from(
    ["text", "text", "call", "call", "call", "reasoning", "reasoning", "media", "hosted", "hosted"]
)
_proof_keys = st.sampled_from(["signature", "signature", "data", "native_id", "none"])
_call_ids, _call_names = st.sampled_from(IDS), st.sampled_from(NAMES)
_result_counts = st.sampled_from([1, 1, 1, 2])
_outcomes = st.sampled_from(OUTCOMES)


def _output(draw: st.DrawFn) -> tuple[Payload, Evidence | None]:
    """Draw what the user's own shell gave back to OpenAI; its call may be anywhere or nowhere."""
    item = {
        "type": "local_shell_call_output",
        "call_id": f"shell_{draw(st.integers(0, 2))}",
        "output": "x",
    }
    return Message("user", (ProviderBlock(item["type"], "x"),)), Evidence("openai", {"0": {"item": item}})


def _compaction(draw: st.DrawFn, maker: _Maker) -> Payload:
    if maker.compactions and draw(st.booleans()):
        return Uncompaction(maker.compactions[draw(st.integers(0, len(maker.compactions) - 1))])
    maker.compactions.append(maker.cursor.seq + 1)
    # At any position, even between a call and its result: the log forbids that, but the projection must handle it.
    first_kept = draw(st.integers(1, maker.cursor.seq + 1))
    return Compaction(draw(texts), first_kept, replaces_earlier=draw(st.booleans()))


def _answer(draw: st.DrawFn, maker: _Maker) -> tuple[Payload, Evidence | None]:
    parts: list[Any] = []
    proofs: dict[str, dict[str, Any]] = {}
    issuer = draw(_issuers)
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(_part_kinds)
        proof = _proof(draw, issuer, kind, f"{maker.cursor.seq}-{len(parts)}")
        if proof:
            proofs[str(len(parts))] = proof
        if kind == "text":
            parts.append(Text(draw(texts)))
        elif kind == "media":
            parts.append(draw(media_parts))
        elif kind == "hosted":
            parts.append(ProviderBlock(str(proof.get("block", {}).get("type", "hosted")), draw(texts)))
        elif kind == "call":
            parts.append(_call(draw, maker, len([p for p in parts if isinstance(p, ToolCall)])))
        else:
            parts.append(Reasoning("" if "data" in proof else draw(texts)))
    message = Message("assistant", tuple(parts), details={"secret": "DETAILS"})
    return message, Evidence(issuer, proofs) if proofs else None


def _proof(draw: st.DrawFn, issuer: str, kind: str, place: str) -> dict[str, Any]:
    """Draw the evidence an issuer expects with such a part; sometimes missing or malformed."""
    mark = f"SIG-{issuer}-{place};"
    if kind == "hosted":
        return {"block": _hosted_block(draw, issuer, place, mark)} if draw(st.integers(0, 3)) else {}
    if issuer == "openai" and kind != "media" and draw(st.integers(0, 7)):
        begins = {"text": "msg", "call": "fc", "reasoning": "rs"}[kind]
        proof = {"id": f"{begins}_{place}"}
        return proof | {"encrypted_content": mark} if kind == "reasoning" else proof
    if issuer == "gemini" and kind in ("text", "call") and draw(st.booleans()):
        signed = {"signature": base64.b64encode(mark.encode()).decode()} if draw(st.booleans()) else {}
        return signed | ({"id": f"g{place}"} if kind == "call" else {})
    if kind != "reasoning":
        return {}
    key = draw(_proof_keys)
    return {} if key == "none" else {key: mark}


def _hosted_block(draw: st.DrawFn, issuer: str, place: str, mark: str) -> dict[str, Any]:
    """Draw a block that its issuer alone can read: a call or a result, whose other half may be anywhere or nowhere."""
    if issuer == "anthropic":
        call_id = f"srvtoolu_{draw(st.integers(0, 3))}"
        call = {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {"query": mark}}
        result = {"type": "web_search_tool_result", "tool_use_id": call_id, "content": []}
        return [call, result, {"type": "of_a_newer_api", "mark": mark}][draw(st.integers(0, 2))]
    if issuer == "openai":
        search = {"type": "web_search_call", "id": f"ws_{place}", "status": "completed", "mark": mark}
        call_id = f"shell_{draw(st.integers(0, 2))}"
        call = {"type": "shell_call", "id": f"sh_{place}", "call_id": call_id, "mark": mark}
        output = {"type": "shell_call_output", "id": f"sho_{place}", "call_id": call_id, "mark": mark}
        return [search, search, call, output][draw(st.integers(0, 3))]
    signature = base64.b64encode(mark.encode()).decode()
    return {"executableCode": {"code": "1", "language": "PYTHON"}, "thoughtSignature": signature}


def _call(draw: st.DrawFn, maker: _Maker, index: int) -> ToolCall:
    maker.serial += 1
    maker.serials[maker.cursor.seq + 1, index] = maker.serial
    mark = f"serial-{maker.serial};"
    call_id, name = draw(_call_ids), draw(_call_names)
    if draw(st.integers(0, 4)) == 0:
        return ToolCall(call_id, name, malformed='{"mark": "' + mark)
    return ToolCall(call_id, name, {"z": 1, "mark": mark, "a": [None, 1.5, {"é": draw(texts)}]})


def _result(draw: st.DrawFn, maker: _Maker) -> Payload:
    """Draw results for one or more open calls, in any order, sometimes several in one message."""
    waiting = list(maker.cursor.open_calls)
    results = []
    for _ in range(draw(_result_counts)):
        if not waiting:
            break
        choice = waiting[draw(st.integers(0, len(waiting) - 1))]
        # If two open calls have the same id, the log answers the first.
        call = next(call for call in waiting if call.call.id == choice.call.id)
        waiting.remove(call)
        results.append(_one_result(draw, maker, call))
    return Message("tool", tuple(results))


def _one_result(draw: st.DrawFn, maker: _Maker, call: OpenCall) -> ToolResult:
    mark = Text(f"result of serial-{maker.serials[call.seq, call.index]};")
    pieces = draw(content)
    parts = pieces if draw(st.integers(0, 5)) == 0 else (*pieces, mark)
    return ToolResult(
        call.call.id,
        parts,
        error=draw(st.booleans()),
        outcome=draw(_outcomes),
        ends_turn=draw(st.integers(0, 5)) == 0,
        details={"secret": "DETAILS"},
    )
