"""Export a session as a workflow scaffold: one agent node per completed turn, with the transcript in its metadata.

Follows the mapping of the session specification into `.relavium.yaml`, schema version 1.0. `workflow` is a pure function
of the row, the path and the frozen agent: the same session gives the same bytes everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

from oakleaf import Session
from oakleaf.core.codec import from_json
from oakleaf.core.entries import PARTIAL, Entry
from oakleaf.core.messages import (
    Attachment,
    Media,
    Message,
    Part,
    ProviderBlock,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from oakleaf.core.time_text import iso
from oakleaf.core.turns import ENDED_BY_TOOL, is_completed
from oakleaf.exports.values import PathOptions, redactor_of, result_text, shared_row, without_none
from oakleaf.exports.yaml import to_yaml
from oakleaf.ext import Exporter, read
from oakleaf.stores.base import SessionRow

FORMAT = "1.0"
NO_TITLE = "exported-session"

UNFINISHED = ("cancelled", PARTIAL, "error", ENDED_BY_TOOL)
"""How answers finish that the model did not complete, or did not write."""
_OPENER = re.compile(r"\{(?=\{)")
_SLUG = re.compile(r"[A-Za-z0-9]+")


def write(session: Session, to: BinaryIO, options: PathOptions) -> None:
    """Write the completed turns of the path as a scaffold."""
    spec, redactor = read(session).detail().spec, redactor_of(session, options)
    agent = None if spec is None else from_json(spec)
    agent = agent if redactor is None else redactor.redact_json(agent)
    path = list(read(session).shared_entries(redact=options.redact))
    to.write(to_yaml(workflow(shared_row(session, options), path, agent)).encode())


EXPORTER = Exporter(suffix=".relavium.yaml", write=write, options=PathOptions)


def workflow(row: SessionRow, path: Sequence[Entry], agent: Any = None) -> dict[str, Any]:
    """Return the workflow definition of a path; `agent` is the agent as frozen at the start."""
    turns = [_node(row, n, turn) for n, turn in enumerate(completed_turns(path), 1)]
    nodes = [{"id": "input", "type": "input"}, *turns, {"id": "output", "type": "output"}]
    definition = {
        "id": workflow_id(row.title),
        "name": row.title or None,
        "agents": None if agent is None else [agent],
        "nodes": nodes,
        "edges": [{"from": start["id"], "to": end["id"]} for start, end in pairwise(nodes)],
        "metadata": {"relaviumExport": _transcript(row, path)},
    }
    return {"schema_version": FORMAT, "workflow": without_none(definition)}


def workflow_id(title: str | None) -> str:
    """Return the title's ASCII letters and digits in kebab case."""
    return "-".join(_SLUG.findall(title or "")).lower() or NO_TITLE


def completed_turns(path: Iterable[Entry]) -> list[list[Entry]]:
    """Return the turns with a final text of the model, in order. Consecutive inputs without an answer are one turn."""
    turns: list[list[Entry]] = []
    for entry in path:
        if entry.message is None or not entry.turn:
            continue
        if turns and (turns[-1][-1].turn == entry.turn or not _is_answered(turns[-1])):
            turns[-1].append(entry)
        else:
            turns.append([entry])
    return [turn for turn in turns if _has_final_text(turn)]


def _has_final_text(turn: Sequence[Entry]) -> bool:
    """Whether the model ended the turn with a text; a tool, a limit, a person or a crash may have ended the
    turn instead.
    """
    last = turn[-1]
    if not is_completed(turn) or last.message is None or last.finish in UNFINISHED:
        return False
    return last.role == "assistant" and bool(last.message.text.strip())


def _is_answered(turn: Iterable[Entry]) -> bool:
    return any(entry.role in ("assistant", "tool") for entry in turn)


def _node(row: SessionRow, n: int, turn: Sequence[Entry]) -> dict[str, Any]:
    messages = [entry.message for entry in turn if entry.message is not None]
    texts = [
        part.text
        for m in messages
        if m.role == "user"
        for part in m.parts
        if isinstance(part, Text) and part.text
    ]
    names = dict.fromkeys(call.name for message in messages for call in message.calls if call.name)
    node = {
        "id": f"turn-{n}",
        "type": "agent",
        "agent_ref": row.agent,
        "prompt_template": neutral("\n\n".join(texts)) or None,
        "tools": list(names) or None,
    }
    return without_none(node)


def neutral(text: str) -> str:
    """Return text without interpolations: a blank separates opening braces."""
    return _OPENER.sub("{ ", text)


def _transcript(row: SessionRow, path: Iterable[Entry]) -> dict[str, Any]:
    fields = {
        "source": "session",
        "sessionId": row.session_id,
        "agentSlug": row.agent,
        "title": row.title or None,
        "createdAt": iso(row.started_at),
        "updatedAt": iso(row.updated_at),
        "messages": [_message(row.session_id, e, e.message) for e in path if e.message is not None],
    }
    return without_none(fields)


def _message(session_id: str, entry: Entry, message: Message) -> dict[str, Any]:
    fields = {
        "id": entry.entry_id.hex(),
        "sessionId": session_id,
        "sequenceNumber": entry.seq,
        "role": message.role,
        "content": [_part(part) for part in message.parts],
        "timestamp": iso(entry.at),
        "modelId": entry.model,
    }
    return without_none(fields)


def _part(part: Part) -> dict[str, Any]:
    """Return a stored part under the names of the specification: media handles, no signatures, no details."""
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Reasoning(text=text):
            return {"type": "reasoning", "text": text}
        case ProviderBlock(text=text):
            return {"type": "provider_block", "kind": part.kind, "text": text}
        case ToolCall(malformed=malformed):
            written = part.arguments if malformed is None else malformed
            return {"type": "tool_call", "id": part.id, "name": part.name, "args": written}
        case ToolResult():
            return _result(part)
        case Media():
            return _media(part)
        case Attachment():
            raise TypeError("an attachment is not stored; the log stores a media handle instead")


def _result(result: ToolResult) -> dict[str, Any]:
    fields = {
        "type": "tool_result",
        "toolCallId": result.call_id,
        "result": result_text(result),
        "isError": result.error or None,
        "outcome": None if result.outcome == "done" else result.outcome,
        "media": [_media(piece) for piece in result.content if isinstance(piece, Media)] or None,
    }
    return without_none(fields)


def _media(media: Media) -> dict[str, Any]:
    source = {"kind": "handle", "ref": f"media://sha256-{media.hash}"}
    fields = {"type": "media", "mimeType": media.mime, "source": source, "byteLength": media.size}
    return without_none({**fields, "name": media.name})
