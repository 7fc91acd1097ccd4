"""Import a ChatGPT data export: conversations.json (or a numbered series), in a folder or the .zip as it was downloaded.

A conversation is a tree of nodes. An answer is a run of nodes (thoughts, text, one call at its end), and so is the result
of a call; a run that forks becomes one entry per continuation, so the shared beginning is repeated and entries that were
imported before stay the same. Calls have no ids: the id of their node is used. The export has no token counts.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.messages import Attachment, Message, Part, Reasoning, Role, Text, ToolResult
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import START, EntryRecord, LossReport, SessionRecord, unknown_note
from oakleaf.wire.parsing import parse_tool_call
from oakleaf_importers.formats.export_files import ExportFiles, export_source
from oakleaf_importers.formats.json_values import (
    as_dict,
    as_list,
    dicts_in,
    first_text,
    known_texts,
    parse_time,
    text_or_none,
)
from oakleaf_importers.session_records import with_source_losses, without_empty

NAME = "chatgpt"
PROVIDER = "openai"
UNKNOWN_MIME = "application/octet-stream"
EVERYONE = (None, "all")
"""The recipients of a message that is not a call."""
SCREEN_ONLY = {"reasoning_recap"}
"""Content that repeats for the screen how long the model thought."""
POINTERS = {
    "image_asset_pointer",
    "audio_asset_pointer",
    "video_asset_pointer",
    "video_container_asset_pointer",
}
VOICE = "real_time_user_audio_video_asset_pointer"

Node = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    losses = LossReport()
    with ExportFiles(source, NAME) as files:
        conversations = files.conversations("mapping", dict, losses)
        records = (ChatGptConversation(each, files).record(name) for name, each in conversations)
        yield from with_source_losses(NAME, without_empty(records), losses)


IMPORTER = Importer(
    source="conversations.json of a data export, its folder or its .zip",
    sessions=read_sessions,
    source_of=export_source,
    versions="exports of February 2026",
)


class NodeRun(Struct, frozen=True):
    """Consecutive nodes of one entry."""

    kind: str
    after: str
    """The key of the entry before it."""
    nodes: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    call_id: str | None = None
    """The open call: the one a result belongs to, or that ends an answer."""
    is_error: bool = False
    at: int | None = None
    model: str | None = None
    finish: str | None = None
    details: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        return self.nodes[-1]


class ChatGptConversation:
    """Reads one conversation."""

    def __init__(self, conversation: Node, files: ExportFiles) -> None:
        self.conversation, self.files = conversation, files
        self.losses = LossReport()
        self.entries: dict[str, EntryRecord] = {}
        self.keys: dict[str, str] = {}
        """By node: the key of the entry it became a part of."""
        self._aliases: dict[str, str] = {}
        """By a node that became no entry: the node or key before it."""
        self.mapping = {
            name: node for name, node in conversation["mapping"].items() if isinstance(node, dict) and name
        }
        self._children: dict[str | None, list[str]] = {}
        for name, node in self.mapping.items():
            parent = node.get("parent")
            parent_name = parent if isinstance(parent, str) and parent in self.mapping else None
            self._children.setdefault(parent_name, []).append(name)
        self._walk()

    def record(self, fallback: str) -> SessionRecord:
        about = self.conversation
        current = text_or_none(about.get("current_node")) or ""
        current = self._aliases.get(current, current)
        return SessionRecord(
            NAME,
            first_text(about, "conversation_id", "id") or fallback,
            tuple(self.entries.values()),
            leaf=self.keys.get(current),
            title=text_or_none(about.get("title")),
            agent=NAME,
            started_at=parse_time(about.get("create_time")),
            tags=known_texts(gizmo=about.get("gizmo_id")),
            losses=self.losses,
        )

    # -- the tree ----------------------------------------------------------------------------------

    def _walk(self) -> None:
        """Visit every node after the parent, each branch to the end, with the run to continue."""
        waiting: list[tuple[str, NodeRun]] = [
            (name, NodeRun("start", START)) for name in reversed(self._children.get(None, ()))
        ]
        visited = 0
        while waiting:
            name, run = waiting.pop()
            visited += 1
            new = self._visit(name, run)
            children = self._children.get(name, ())
            if not children:
                self._finish(new)
            waiting.extend((child, new) for child in reversed(children))
        if visited < len(self.mapping):
            self.losses.add("a message whose parents form a circle", count=len(self.mapping) - visited)

    def _visit(self, name: str, run: NodeRun) -> NodeRun:
        """Return the run after this node: the same run continued, or a new run."""
        message = self.mapping[name].get("message")
        if message is not None and not isinstance(message, dict):
            self.losses.misread("a message that is not a JSON object", name)
        new = self._read(name, message, run) if isinstance(message, dict) else None
        if new is None:
            self._aliases[name] = run.key if run.nodes else run.after
            return run
        is_continued = new.kind == run.kind and (
            (run.kind == "answer" and run.call_id is None) or (run.kind == "result" and bool(run.nodes))
        )
        if new.kind == "note":
            new = replace(new, call_id=run.call_id)
        if is_continued:
            return replace(
                new,
                after=run.after,
                nodes=(*run.nodes, name),
                parts=(*run.parts, *new.parts),
                is_error=run.is_error or new.is_error,
                call_id=new.call_id,
                model=new.model or run.model,
                details=run.details or new.details,
            )
        after = self._finish(run)
        return replace(new, after=after, nodes=(name,))

    def _finish(self, run: NodeRun) -> str:
        """Add the entry of a run and return the key."""
        if not run.nodes:
            return run.after
        if run.key not in self.entries:
            self.entries[run.key] = self._entry(run)
        for node in run.nodes:
            self.keys.setdefault(node, run.key)
        self.keys[run.key] = run.key
        return run.key

    def _entry(self, run: NodeRun) -> EntryRecord:
        entry = EntryRecord(Message("system"), run.key, run.after, at=run.at)
        if run.kind == "note":
            return replace(entry, payload=unknown_note(NAME, *self._unknown(run), self.losses))
        if run.kind == "answer":
            message = Message("assistant", run.parts, details=run.details)
            return replace(entry, payload=message, model=run.model, provider=PROVIDER, finish=run.finish)
        if run.kind == "result":
            content = tuple(part for part in run.parts if isinstance(part, Text | Attachment))
            result = ToolResult(run.call_id or "", content, run.is_error, details=run.details)
            return replace(entry, payload=Message("tool", (result,)))
        role: Role = "user" if run.kind == "user" else "system"
        return replace(entry, payload=Message(role, run.parts, details=run.details))

    def _unknown(self, run: NodeRun) -> tuple[str, object]:
        message = self.mapping[run.key]["message"]
        content, role = message.get("content"), as_dict(message.get("author")).get("role")
        kind = content.get("content_type") if isinstance(content, dict) else "message"
        return str(kind), {"role": role, "content": content}

    # -- messages ----------------------------------------------------------------------------------

    def _read(self, name: str, message: Node, run: NodeRun) -> NodeRun | None:
        """Return a node's content as a run without a place; None without content."""
        author, content, metadata = (as_dict(message.get(key)) for key in ("author", "content", "metadata"))
        kind, role = text_or_none(content.get("content_type")), author.get("role")
        new = NodeRun(
            "note",
            START,
            at=parse_time(message.get("create_time")),
            details=_details(author, metadata),
        )
        if kind in SCREEN_ONLY:
            self.losses.add("content that only the screen shows", str(kind))
            return None
        parts = self._parts(content, metadata)
        if parts is None or role not in ("user", "assistant", "tool", "system"):
            return new
        if role == "assistant":
            return self._answer(name, message, parts, metadata, new)
        if not parts:
            return None
        if role == "tool":
            return self._result(parts, kind, author, run, new)
        if role == "user" and kind not in ("user_editable_context", "model_editable_context"):
            return replace(new, kind="user", parts=parts)
        texts = tuple(part for part in parts if isinstance(part, Text))
        return replace(new, kind="system", parts=texts) if texts else None

    def _answer(
        self, name: str, message: Node, parts: tuple[Part, ...], metadata: Node, new: NodeRun
    ) -> NodeRun | None:
        recipient = message.get("recipient")
        call_id = None
        if isinstance(recipient, str) and recipient not in EVERYONE:
            text = "".join(part.text for part in parts if isinstance(part, Text))
            call_id = name
            parts = (_call(name, recipient, text),)
        if not parts:
            return None
        finish = as_dict(metadata.get("finish_details")).get("type")
        model = text_or_none(metadata.get("model_slug"))
        return replace(
            new, kind="answer", parts=parts, call_id=call_id, model=model, finish=text_or_none(finish)
        )

    def _result(
        self, parts: tuple[Part, ...], kind: object, author: Node, run: NodeRun, new: NodeRun
    ) -> NodeRun | None:
        """Return the result of the open call; a tool's output without a call is a system message."""
        is_error = kind == "system_error"
        if run.call_id is not None:
            return replace(new, kind="result", parts=parts, call_id=run.call_id, is_error=is_error)
        texts = tuple(part for part in parts if isinstance(part, Text))
        if len(texts) < len(parts):
            self.losses.add("a file shown by a tool without a call", str(author.get("name")))
        return replace(new, kind="system", parts=texts) if texts else None

    # -- content -----------------------------------------------------------------------------------

    def _parts(self, content: Node, metadata: Node) -> tuple[Part, ...] | None:
        """Return the parts of a content; None for an unknown kind."""
        kind = text_or_none(content.get("content_type"))
        if kind in ("text", "multimodal_text"):
            items = content.get("parts")
            if not isinstance(items, list):
                return None
            parts: list[Part] = []
            for pieces in [self._part(item) for item in items]:  # all of them: each may report a loss
                if pieces is None:
                    return None
                parts += pieces
            return (*parts, *self._attachments(metadata, content))
        if kind == "thoughts" and isinstance(content.get("thoughts"), list):
            thoughts = map(as_dict, content["thoughts"])
            texts = (text_or_none(item.get("content")) or item.get("summary") for item in thoughts)
            return tuple(Reasoning(text) for text in texts if isinstance(text, str) and text)
        if kind in ("user_editable_context", "model_editable_context"):
            names = ("user_profile", "user_instructions", "model_set_context")
            return tuple(Text(content[name]) for name in names if text_or_none(content.get(name)))
        if kind == "tether_browsing_display":
            return _texts(content, "result", "summary")
        if kind in ("tether_quote", "sonic_webpage"):
            return _texts(content, "title", "url", "text")
        if kind == "system_error":
            return _texts(content, "name", "text")
        if kind in ("code", "execution_output", "audio_transcription"):
            return _texts(content, "text") + self._plots(metadata)
        return None

    def _part(self, item: object) -> tuple[Part, ...] | None:
        """Return the parts of one item of a list; None for an unknown kind."""
        if isinstance(item, str):
            return (Text(item),) if item else ()
        fields = as_dict(item)
        kind = text_or_none(fields.get("content_type"))
        if kind in POINTERS:
            return (self._asset(fields.get("asset_pointer"), str(kind)),)
        if kind == VOICE:
            pointers = [fields.get("audio_asset_pointer"), fields.get("video_container_asset_pointer")]
            pointers += as_list(fields.get("frames_asset_pointers"))
            assets = [as_dict(pointer).get("asset_pointer", pointer) for pointer in pointers if pointer]
            return tuple(self._asset(asset, VOICE) for asset in assets)
        if kind in ("text", "audio_transcription", None) and isinstance(fields.get("text"), str):
            return (Text(fields["text"]),) if fields["text"] else ()
        return None

    def _asset(self, pointer: object, kind: str) -> Text | Attachment:
        """Return the file of a pointer, or a text with the file's name if the export lacks the file."""
        file_id = pointer.rpartition("//")[2].partition("?")[0] if isinstance(pointer, str) else ""
        file = self._file(file_id)
        if file is not None:
            name, data = file
            return Attachment(data, mimetypes.guess_type(name)[0] or UNKNOWN_MIME, name)
        self.losses.add("a file that is not in the export", file_id or kind)
        return Text(f"[{kind.split('_')[0]} {file_id}: not in the export]")

    def _file(self, file_id: str) -> tuple[str, bytes] | None:
        file = self.files.upload(file_id)
        return file if file is not None and file[1] else None

    def _attachments(self, metadata: Node, content: Node) -> tuple[Part, ...]:
        """Return the uploads missing among the parts, as files or as texts with the name."""
        parts_text = str(content.get("parts"))
        parts: list[Part] = []
        for item in dicts_in(metadata.get("attachments")):
            file_id, name = text_or_none(item.get("id")), text_or_none(item.get("name"))
            if file_id is None or file_id in parts_text:
                continue
            file = self._file(file_id)
            mime = text_or_none(item.get("mime_type") or item.get("mimeType")) or UNKNOWN_MIME
            if file is not None:
                parts.append(Attachment(file[1], mime, name or file[0]))
            else:
                self.losses.add("a file that is not in the export", name or file_id)
                parts.append(Text(f"[file {name or file_id}: not in the export]"))
        return tuple(parts)

    def _plots(self, metadata: Node) -> tuple[Part, ...]:
        """Return the images from the code interpreter."""
        return tuple(
            self._asset(image.get("image_url"), "image_asset_pointer")
            for image in dicts_in(as_dict(metadata.get("aggregate_result")).get("messages"))
            if image.get("message_type") == "image"
        )


def _call(name: str, tool: str, text: str) -> Part:
    """Return a call; text other than a JSON object, such as code, is the argument `input`."""
    call = parse_tool_call(name, tool, text)
    return replace(call, arguments={"input": text}, malformed=None) if call.malformed is not None else call


def _texts(content: Node, *names: str) -> tuple[Part, ...]:
    texts = [content[name] for name in names if text_or_none(content.get(name))]
    return (Text("\n".join(texts)),) if texts else ()


def _details(author: Node, metadata: Node) -> dict[str, Any] | None:
    """Return details for the host: the speaker for a tool, the citations."""
    fields = {"author": text_or_none(author.get("name")), "citations": as_list(metadata.get("citations"))}
    details = {name: value for name, value in fields.items() if value}
    return {NAME: details} if details else None
