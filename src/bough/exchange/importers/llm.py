"""`llm`, the command line tool: conversations in one SQLite file, logs.db.

Knows both ways it has kept them. Since 0.32 messages are a tree, named by hashes, and a thread points at its tip; before,
each response stood in a row with its prompt. A conversation that was gone on with in a newer version is in both: the tree
is told, and what it cost before comes from the older rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ...core.entries import Evidence
from ...core.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, ToolResult
from ...core.usage import MAX_COUNT, Usage
from ...formats.jsonl import INVALID_JSON, parse_time, text_or_none
from ...formats.records import START, EntryRecord, LossReport, SessionRecord
from ...wire.parsing import parse_tool_call
from .sqlite_files import Row, Tables, open_tables

FILE = "logs.db"
EVIDENCE = {
    "anthropic": ("signature", "data"),
    "openai": ("id", "encrypted_content"),
    "gemini": ("signature",),
}


def read_sessions(source: str) -> Iterator[SessionRecord]:
    path = Path(source).expanduser()
    with open_tables(str(path / FILE) if path.is_dir() else source, "llm", "threads", "responses") as found:
        threads = set()
        for row in found.rows("threads", order="id"):
            threads.add(row.get("id"))
            yield from Thread(found, row).foreign()
        for row in found.rows("conversations", order="id"):
            if row.get("id") not in threads:
                yield from _of_responses(found, row, "conversation_id = ?", row.get("id"))
        for row in found.rows("responses", "conversation_id is null", order="id"):
            yield from _of_responses(found, {"id": row.get("id")}, "id = ?", row.get("id"))


def _json(value: object) -> Any:
    try:
        return msgspec.json.decode(value) if isinstance(value, str | bytes) else None
    except (*INVALID_JSON, UnicodeEncodeError):
        return None


def _usage(row: Row) -> Usage | None:
    """Tokens as the model's plugin told them; None if it told none."""
    details = _json(row.get("token_details"))
    details = details if isinstance(details, dict) else {}
    inner = details.get("prompt_tokens_details", details.get("input_tokens_details"))
    cached = (inner if isinstance(inner, dict) else details).get("cached_tokens")
    told = [row.get("input_tokens"), row.get("output_tokens"), cached]
    counted = [one if type(one) is int and 0 <= one <= MAX_COUNT else None for one in told]
    return Usage(*counted) if counted[0] is not None or counted[1] is not None else None


class Parts:
    """What messages are made of, looked up in the tables that hold each thing once."""

    def __init__(self, found: Tables, losses: LossReport) -> None:
        self.found, self.losses = found, losses

    def fragment(self, number: object) -> str:
        return text_or_none(self.found.row("fragments", "id = ?", _key(number)).get("content")) or ""

    def fragments(self, table: str, response: object) -> list[str]:
        rows = self.found.rows(table, "response_id = ?", _key(response), order='"order"')
        return [self.fragment(row.get("fragment_id")) for row in rows]

    def attached(self, table: str, column: str, owner: object) -> list[Text | Attachment]:
        rows = self.found.rows(table, f"{column} = ?", _key(owner), order='"order"')
        return [self.attachment(row.get("attachment_id")) for row in rows]

    def attachment(self, name: object) -> Text | Attachment:
        row = self.found.row("attachments", "id = ?", _key(name))
        kind, content = text_or_none(row.get("type")) or "application/octet-stream", row.get("content")
        if isinstance(content, bytes) and content:
            return Attachment(content, kind)
        self.losses.add(
            "an attachment stored elsewhere; only its location is kept", str(row.get("path") or name)
        )
        return Text(f"[{kind}: {row.get('path') or row.get('url') or name}]")


def _key(value: object) -> str | int | None:
    return value if isinstance(value, str | int) else None


# -- since 0.32: threads, turns and a tree of messages ---------------------------------------------------


class Thread:
    def __init__(self, found: Tables, row: Row) -> None:
        self.found, self.row = found, row
        self.losses = LossReport()
        self.parts = Parts(found, self.losses)
        self.told: dict[str, EntryRecord] = {}
        self.keys: dict[str, str] = {}
        """By the hash of a message the key of the last entry it became, or of the one it would follow."""

    def foreign(self) -> Iterator[SessionRecord]:
        name = text_or_none(self.row.get("id"))
        if name is None:
            return
        for turn in self.found.rows("turns", "thread_id = ?", name, order="id"):
            self._tell(turn.get("parent_message_hash"), parse_time(turn.get("datetime_utc")))
            self._tell(turn.get("tip_message_hash"), _answered(turn))
            self._charge(turn)
            _count_options(turn, self.losses)
        tip = text_or_none(self.row.get("tip_message_hash"))
        self._tell(tip, None)
        self._charge_older(name)
        older, origin = (
            self.found.row("conversations", "id = ?", name),
            text_or_none(self.row.get("forked_from")),
        )
        if self.told:
            yield SessionRecord(
                "llm",
                name,
                tuple(self.told.values()),
                leaf=self.keys.get(tip or START),
                title=text_or_none(older.get("name")) or text_or_none(self.row.get("name")),
                tags={"forked_from": origin} if origin else {},
                losses=self.losses,
            )

    def _tell(self, tip: object, at: int | None) -> None:
        """The messages up to this one that were not told yet, oldest first."""
        line: list[Row] = []
        names = set()
        while isinstance(tip, str) and tip not in self.keys and tip not in names:
            row = self.found.row("messages", "hash = ?", tip)
            if not row:
                self.losses.add("a missing message", tip)
                break
            names.add(tip)
            line.append(row)
            tip = row.get("parent_hash")
        for row in reversed(line):
            self._tell_one(row, at)

    def _tell_one(self, row: Row, at: int | None) -> None:
        name, after = str(row["hash"]), row.get("parent_hash")
        follows = self.keys.get(after, START) if isinstance(after, str) else START
        messages, evidence = self._messages(row)
        for index, message in enumerate(messages):
            key = f"{name} {index}"
            self.told[key] = EntryRecord(message, key, follows, at=at, evidence=evidence)
            follows = key
        self.keys[name] = follows

    def _messages(self, row: Row) -> tuple[list[Message], Evidence | None]:
        role = row.get("role")
        parts: list[Part] = []
        proofs: dict[str, dict[str, dict[str, Any]]] = {}
        for one in self.found.rows("parts", "message_hash = ?", row["hash"], order="position"):
            payload = _json(one.get("payload"))
            payload = payload if isinstance(payload, dict) else {}
            made = self._part(one, payload, _nth(row, parts))
            for issuer, proof in _proofs(payload) if made else ():
                proofs.setdefault(issuer, {})[str(len(parts))] = proof
            parts.extend(made)
        if role == "tool":
            return [Message("tool", (part,)) for part in _joined(parts)], None
        signed = list(proofs.items()) if role == "assistant" else []
        evidence = Evidence(*signed[0]) if signed else None
        return [Message(role, tuple(parts))] if isinstance(role, str) else [], evidence  # type: ignore[arg-type]

    def _part(self, row: Row, payload: Row, unnamed: str) -> list[Part]:
        kind, literal = row.get("type"), row.get("text")
        said = literal if isinstance(literal, str) else self._resolved(payload)
        if payload.get("server_executed"):
            self.losses.add("a tool call the provider ran", str(payload.get("name")))
        elif kind == "text":
            return [Text(said)] if said else []
        elif kind == "reasoning":
            return [Reasoning(said)]
        elif kind == "tool_call" and isinstance(payload.get("name"), str):
            call_id = text_or_none(payload.get("tool_call_id")) or unnamed
            return [parse_tool_call(call_id, payload["name"], payload.get("arguments"))]
        elif kind == "tool_result":
            return [self._result(payload, unnamed)]
        elif kind == "attachment" and isinstance(payload.get("attachment"), dict):
            return [self.parts.attachment(payload["attachment"].get("id"))]
        else:
            self.losses.add("a part of unknown type", str(kind))
        return []

    def _resolved(self, payload: Row) -> str:
        """Text that borrows from fragments is kept as a list of pieces."""
        pieces = payload.get("text_ref")
        if not isinstance(pieces, list):
            return text_or_none(payload.get("text")) or ""
        told = (piece for piece in pieces if isinstance(piece, dict))
        return "".join(
            str(p["literal"]) if "literal" in p else self.parts.fragment(p.get("fragment")) for p in told
        )

    def _result(self, payload: Row, unnamed: str) -> ToolResult:
        output = payload.get("output")
        content: list[Text | Attachment] = [Text(output)] if isinstance(output, str) and output else []
        more = payload.get("attachments")
        names = [one.get("id") for one in more if isinstance(one, dict)] if isinstance(more, list) else []
        content += [self.parts.attachment(name) for name in names]
        call_id = text_or_none(payload.get("tool_call_id")) or unnamed
        return ToolResult(call_id, tuple(content), bool(payload.get("exception")))

    def _charge(self, turn: Row) -> None:
        key = self.keys.get(str(turn.get("tip_message_hash")), START)
        told, usage = self.told.get(key), _usage(turn)
        if told is None or not _is_answer(told) or told.usage is not None:
            if usage is not None:
                self.losses.add("usage of an answer that already has one", str(turn.get("id")))
            return
        self.told[key] = replace(told, usage=usage, model=_model(turn))

    def _charge_older(self, name: str) -> None:
        """What a conversation cost before it was moved to the tree, by the words of its answers."""
        open_ones = [key for key, told in self.told.items() if _is_answer(told) and told.usage is None]
        for row in self.found.rows("responses", "conversation_id = ?", name, order="id"):
            usage = _usage(row)
            key = next((key for key in open_ones if _says(self.told[key], row.get("response"))), None)
            if key is not None:
                open_ones.remove(key)
                told = self.told[key]
                self.told[key] = replace(told, usage=usage, model=_model(row), at=_answered(row) or told.at)
            elif usage is not None:
                self.losses.add("usage of an answer missing from the thread")


def _nth(message: Row, parts: list[Part]) -> str:
    """Some models name no calls: the n-th result belongs to the n-th call of the message before."""
    if message.get("role") == "tool":
        return f"{message.get('parent_hash')} {sum(isinstance(part, ToolResult) for part in parts)}"
    return f"{message['hash']} {sum(isinstance(part, ToolCall) for part in parts)}"


def _joined(parts: list[Part]) -> list[ToolResult]:
    """The results of a tool message; what else it shows goes with the last of them."""
    found: list[ToolResult] = []
    for part in parts:
        if isinstance(part, ToolResult):
            found.append(part)
        elif found and isinstance(part, Text | Attachment):
            found[-1] = replace(found[-1], content=(*found[-1].content, part))
    return found


def _proofs(payload: Row) -> Iterator[tuple[str, dict[str, Any]]]:
    told = payload.get("provider_metadata")
    for issuer, wanted in EVIDENCE.items():
        about = told.get(issuer) if isinstance(told, dict) else None
        if isinstance(about, dict):
            proof = {key: about[key] for key in wanted if text_or_none(about.get(key))}
            if proof:
                yield issuer, proof


def _is_answer(told: EntryRecord) -> bool:
    return isinstance(told.payload, Message) and told.payload.role == "assistant"


def _says(told: EntryRecord, words: object) -> bool:
    return isinstance(told.payload, Message) and told.payload.text == words


def _model(row: Row) -> str | None:
    return text_or_none(row.get("resolved_model")) or text_or_none(row.get("model"))


def _answered(row: Row) -> int | None:
    start, took = parse_time(row.get("datetime_utc")), row.get("duration_ms")
    return None if start is None else start + (took * 1_000 if type(took) is int and 0 < took < 10**9 else 0)


def _count_options(row: Row, losses: LossReport) -> None:
    if _json(row.get("options_json")):
        losses.add("the options of a model call", str(row["options_json"]))
    if row.get("schema_id"):
        losses.add("the output schema of an answer", str(row["schema_id"]))


# -- before: a row for each response ---------------------------------------------------------------------


def _of_responses(found: Tables, about: Row, where: str, value: object) -> Iterator[SessionRecord]:
    losses = LossReport()
    parts = Parts(found, losses)
    told: list[EntryRecord] = []
    prompt = ""
    for row in found.rows("responses", where, _key(value), order="datetime_utc, id"):
        at = parse_time(row.get("datetime_utc"))
        given = list(_given(parts, row))
        system = "\n\n".join(
            [*parts.fragments("system_fragments", row.get("id")), text_or_none(row.get("system")) or ""]
        )
        if system.strip() and system.strip() != prompt:
            prompt = system.strip()
            given.insert(0, Message("system", (Text(prompt),)))
        told.extend(EntryRecord(message, at=at) for message in given)
        answer = _answer(found, row)
        if answer.parts:
            told.append(EntryRecord(answer, at=_answered(row), model=_model(row), usage=_usage(row)))
        _count_options(row, losses)
    name = text_or_none(about.get("id"))
    if told and name is not None:
        yield SessionRecord("llm", name, tuple(told), title=text_or_none(about.get("name")), losses=losses)


def _given(parts: Parts, row: Row) -> Iterator[Message]:
    for result in parts.found.rows("tool_results", "response_id = ?", _key(row.get("id")), order="id"):
        output, attached = (
            result.get("output"),
            ("tool_results_attachments", "tool_result_id", result.get("id")),
        )
        said: list[Text | Attachment] = [Text(output)] if isinstance(output, str) and output else []
        content = (*said, *parts.attached(*attached))
        yield Message("tool", (ToolResult(_call_id(result), content, bool(result.get("exception"))),))
    pieces = [*parts.fragments("prompt_fragments", row.get("id")), text_or_none(row.get("prompt")) or ""]
    said_by_user = "\n".join(piece for piece in pieces if piece)
    shown = parts.attached("prompt_attachments", "response_id", row.get("id"))
    if said_by_user or shown:
        yield Message("user", (*([Text(said_by_user)] if said_by_user else []), *shown))


def _answer(found: Tables, row: Row) -> Message:
    thought, said = text_or_none(row.get("reasoning")), text_or_none(row.get("response"))
    rows = found.rows("tool_calls", "response_id = ?", _key(row.get("id")), order="id")
    calls: list[ToolCall] = [
        parse_tool_call(_call_id(call), call["name"], call.get("arguments"))
        for call in rows
        if text_or_none(call.get("name"))
    ]
    parts: list[Part] = [Reasoning(thought)] if thought else []
    return Message("assistant", (*parts, *([Text(said)] if said else []), *calls))


def _call_id(row: Row) -> str:
    """Some models name no calls; then a result is found by the name of its tool."""
    return text_or_none(row.get("tool_call_id")) or f"call of {row.get('name')}"
