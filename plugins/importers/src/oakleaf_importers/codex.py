"""Import Codex: one rollout file per session, one JSON line per Responses API item and per event.

Some lines carry the conversation, others only repeat it for the screen. Usage is reported as running totals, often more
than once. Turns can be rolled back, and a sub-agent names the session that started it. Compressed rollouts (.zst) are
counted as lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from oakleaf.core.codec import is_storable
from oakleaf.core.entries import Compaction, Evidence, Note, Payload, Settings
from oakleaf.core.messages import Message, Text, ToolResult, system, user
from oakleaf.core.usage import Usage
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import START, EntryRecord, LossReport, SessionRecord, unknown_note
from oakleaf_importers.formats.json_values import (
    as_dict,
    dicts_in,
    first_text,
    json_object,
    known_texts,
    parse_time,
    text_or_none,
    token_counts,
)
from oakleaf_importers.formats.jsonl import WRITTEN_SECONDS, read_objects, seconds_since_written
from oakleaf_importers.formats.responses_items import AnswerBuilder, is_input_item, read_input_item
from oakleaf_importers.formats.source_files import find_files, leads_to
from oakleaf_importers.session_records import EntryList, with_source_losses, with_tasks

INDEX = "session_index.jsonl"
SESSION_FOLDERS = ("sessions", "archived_sessions")
"""The folders beside the index: sessions/YYYY/MM/DD/rollout-….jsonl."""
CODEX_TEXT_PREFIXES = (
    *("<environment_context>", "<user_instructions>", "<turn_aborted>", "<subagent_notification>", "<skill>"),
    *("<user_shell_command>", "<permissions instructions>", "<current_time_reminder>", "<model_switch>"),
    *("<codex_internal_context", "<goal_context>", "<startup_context>"),
    *("<external_", "<image_resize_notice>"),
    *("<recommended_plugins>", "<apps_instructions>", "<skills_instructions>", "<plugins_instructions>"),
    "# AGENTS.md instructions",
)
"""The beginnings of texts that Codex writes in the user's role."""
IGNORED_TYPES = {
    "turn_context",
    "world_state",
    "security_risk_score",
    "inter_agent_communication_metadata",
    "event_msg",
}
ENDS = {
    "exec_command_end": ("exit_code", "status", "duration", "cwd", "command"),
    "patch_apply_end": ("success", "status", "changes"),
    "mcp_tool_call_end": ("duration", "invocation"),
}
"""Events about a call that ended, and what they say beyond the output that the model received."""
_EXIT_CODE = re.compile(r"(?:\A|\n)(?:Exit code:|Process exited with code) (-?\d{1,10})(?=\n|\Z)")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
TOKENS = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_input_tokens")
FIRST_LINE_BYTES = 1 << 20

RolloutLine = dict[str, Any]
Tokens = tuple[int, ...]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    """Yield each session with the sub-agents it started, if they are in the same source."""
    losses = LossReport()
    heads = {path: _metadata(path) for path in find_files(source, "codex", losses, "**/rollout-*.jsonl")}
    by_thread = {_thread_id(path, metadata): path for path, metadata in heads.items()}
    parents = {path: by_thread.get(_parent_id(metadata) or "") for path, metadata in heads.items()}
    losses.merge(_compressed_files(source))
    titles = _titles(next(iter(heads), Path(source)))

    def read(path: Path, tasks: tuple[SessionRecord, ...]) -> SessionRecord | None:
        rollout = CodexRollout(path)
        if rollout.entries or tasks:
            return rollout.record(tasks, titles)
        losses.merge(rollout.losses)
        return None

    yield from with_source_losses("codex", with_tasks(parents, read), losses)


def _source_of(root: Path, file: Path) -> Path | None:
    if not file.name.startswith("rollout-") or file.suffix != ".jsonl":
        return None
    return root if _has_parent(file) else file


_parents: dict[Path, bool] = {}


def _has_parent(path: Path) -> bool:
    """Return whether a rollout names the session that started it, in its first line, which never changes."""
    if path not in _parents:
        try:
            with path.open("rb") as file:
                line = file.readline(FIRST_LINE_BYTES)
        except OSError:
            return False
        if not line.endswith(b"\n") and len(line) < FIRST_LINE_BYTES:
            return False  # it is being written
        _parents[path] = b"parent_thread_id" in line
    return _parents[path]


IMPORTER = Importer(
    source="a rollout-….jsonl file, or a folder of them",
    sessions=read_sessions,
    default_paths=("~/.codex/sessions",),
    source_of=_source_of,
)


def _metadata(path: Path) -> RolloutLine:
    return next((_payload(line) for line in read_objects(path, LossReport()) if _is_meta(line)), {})


def _is_meta(line: RolloutLine) -> bool:
    """Whether it is the metadata line, which the first versions wrote without a wrapper."""
    return line.get("type") == "session_meta" or ("type" not in line and "id" in line and "timestamp" in line)


def _payload(line: RolloutLine) -> RolloutLine:
    return as_dict(line.get("payload", line))


def _thread_id(path: Path, metadata: RolloutLine) -> str:
    return text_or_none(metadata.get("id")) or path.stem


def _parent_id(metadata: RolloutLine) -> str | None:
    spawned = as_dict(as_dict(as_dict(metadata.get("source")).get("subagent")).get("thread_spawn"))
    return first_text(metadata, "parent_thread_id") or first_text(spawned, "parent_thread_id")


def _compressed_files(place: str) -> LossReport:
    losses = LossReport()
    where = Path(place).expanduser()
    for path in where.rglob("rollout-*.jsonl.zst") if where.is_dir() else ():
        losses.add("a compressed session; decompress it with zstd -d and import it again", path.name)
    return losses


class CodexRollout(EntryList):
    """Reads one rollout file."""

    def __init__(self, path: Path) -> None:
        super().__init__("codex")
        self.path = path
        self.metadata: RolloutLine = {}
        self.seeds: list[Message] = []
        self._answer = AnswerBuilder(self.losses)
        self._answer_at: int | None = None
        self._model: str | None = None
        self._path: list[tuple[str, bool]] = []
        """The keys of the current path, and whether each is an input."""
        self._has_moved = False
        self._open: set[str] = set()
        self._held_back: list[tuple[Message, int | None]] = []
        """Messages that arrived while calls were open. Codex writes them before the results, where no provider accepts them."""
        self._total: Tokens = (0,) * len(TOKENS)
        self._without_usage: int | None = None
        self._title: str | None = None
        self._options: dict[str, Any] = {}
        self._new_options: dict[str, Any] = {}
        self._details: dict[str, dict[str, Any]] = {}
        """What events said about calls, by call; they come before the output that the model received."""
        self.unfinished = 0
        for line in read_objects(path, self.losses):
            self._read(line)
        if self._answer.is_open and seconds_since_written(path) < WRITTEN_SECONDS:
            self.unfinished = 1  # more of it may come: a later import adds it in one piece
        else:
            self._finish_answer()
        self._release_messages()

    def record(self, tasks: tuple[SessionRecord, ...], titles: Mapping[str, str]) -> SessionRecord:
        metadata = self.metadata
        if isinstance(metadata.get("history_base"), dict):
            self.losses.add("the beginning, which is in another rollout file", self.path.name)
        thread = _thread_id(self.path, metadata)
        return self.to_record(
            thread,
            seeds=tuple(self._prompt() + self.seeds),
            leaf=(self._path[-1][0] if self._path else START) if self._has_moved else None,
            title=self._title or titles.get(thread),
            agent=text_or_none(metadata.get("agent_role")) or "codex",
            started_at=parse_time(metadata.get("timestamp")),
            tags=known_texts(
                cwd=metadata.get("cwd"),
                git_branch=as_dict(metadata.get("git")).get("branch"),
                forked_from=metadata.get("forked_from_id"),
            ),
            tasks=tasks,
            missing=("tool definitions",) if self._prompt() else ("system prompt", "tool definitions"),
            unfinished=self.unfinished,
        )

    def _prompt(self) -> list[Message]:
        base = self.metadata.get("base_instructions")
        text = text_or_none(base.get("text") if isinstance(base, dict) else self.metadata.get("instructions"))
        return [system(text)] if text else []

    # -- lines -------------------------------------------------------------------------------------

    def _read(self, line: RolloutLine) -> None:
        payload, kind = _payload(line), text_or_none(line.get("type"))
        at = parse_time(line.get("timestamp"))
        if _is_meta(line):
            self.metadata = self.metadata or payload  # a fork repeats the metadata of its source
        elif kind == "event_msg":
            self._read_event(payload, at)
        elif kind == "turn_context":
            self._model = text_or_none(payload.get("model")) or self._model
            effort = text_or_none(payload.get("effort"))
            if effort not in (None, *EFFORTS):
                self.losses.add("an unknown effort", str(effort))
            elif effort != self._options.get("effort"):
                self._new_options = {"effort": effort}
        elif kind == "compacted":
            self._read_compacted(payload, at)
        elif kind == "inter_agent_communication":
            self._add_agent_message(payload.get("author"), payload.get("content"), at)
        elif kind == "response_item" or ("payload" not in line and kind is not None):
            self._read_item(payload, at)
        elif kind not in IGNORED_TYPES and "record_type" not in line:
            self._finish_answer()
            self._add(unknown_note("codex", kind or self.path.name, line, self.losses), at)

    def _read_item(self, item: RolloutLine, at: int | None) -> None:
        kind = item.get("type", "message")
        if kind in ("compaction", "compaction_summary", "context_compaction"):
            self.losses.add("an encrypted summary; the context keeps the full history instead")
        elif kind == "agent_message":
            self._add_agent_message(item.get("author"), _texts(item.get("content")), at)
        elif kind == "ghost_snapshot":
            self.losses.add("a snapshot of the files, which is in git")
        elif self._answer.add(item):
            self._answer_at = at
        else:
            self._finish_answer()
            if not is_input_item(item):
                self._add(unknown_note("codex", item.get("type"), item, self.losses), at)
                return
            for message in read_input_item(item, self.losses):
                self._add_message(message, at)

    def _add_message(self, message: Message, at: int | None) -> None:
        if message.role != "tool" and self._open:
            self._held_back.append((message, at))
            return
        is_from_codex = message.role == "system" or (message.role == "user" and _is_from_codex(message))
        if is_from_codex and not self.entries:
            self.seeds.append(message)
        elif is_from_codex:
            texts = tuple(part for part in message.parts if isinstance(part, Text))
            self._add(Message("system", texts), at)
        else:
            self._add(message, at)
        if message.role == "tool":
            self._open.difference_update(result.call_id for result in message.results)
            if not self._open:
                self._release_messages()

    def _release_messages(self) -> None:
        """Add the messages that were held back."""
        self._open.clear()
        messages, self._held_back = self._held_back, []
        for message, at in messages:
            self._add_message(message, at)

    def _add_agent_message(self, author: object, text: object, at: int | None) -> None:
        """Add a message from another agent of the same session."""
        self._finish_answer()
        if isinstance(text, str) and text.strip():
            self._add_message(user(f"From {author}:\n\n{text}" if isinstance(author, str) else text), at)
        else:
            self.losses.add("an encrypted message between agents")

    def _read_event(self, event: RolloutLine, at: int | None) -> None:
        kind = text_or_none(event.get("type"))
        if kind == "token_count":
            self._read_usage(event.get("info"), at)
        elif kind == "thread_rolled_back":
            self._roll_back(event.get("num_turns"))
        elif kind in ("task_complete", "turn_complete", "turn_aborted"):
            self._finish_answer()
        elif kind == "thread_name_updated":
            self._title = text_or_none(event.get("thread_name")) or self._title
        elif kind in ENDS and isinstance(event.get("call_id"), str):
            fields = {name: event[name] for name in ENDS[kind] if event.get(name) is not None}
            self._details.setdefault(event["call_id"], {}).update(fields)

    def _read_usage(self, info: object, at: int | None) -> None:
        """Add the growth of the running totals, which are repeated with every change of the rate limits."""
        if not isinstance(info, dict):
            return
        self._finish_answer()
        total = token_counts(info.get("total_token_usage"), TOKENS)
        if total is None:
            self.losses.add("usage that is not a count of tokens")
            return
        growth = tuple(new - old for new, old in zip(total, self._total, strict=True))
        if min(growth) < 0:  # another process restarted the count
            growth = token_counts(info.get("last_token_usage"), TOKENS) or total
        self._total = total
        if any(growth):
            self._add_usage(Usage(*growth), at)

    def _add_usage(self, usage: Usage, at: int | None) -> None:
        if self._without_usage is None:
            self._add(Note({"codex": "a model call without an answer"}), at, usage=usage)
        else:
            self.entries[self._without_usage] = replace(self.entries[self._without_usage], usage=usage)
            self._without_usage = None

    def _roll_back(self, turns: object) -> None:
        self._finish_answer()
        self._release_messages()
        inputs = [index for index, (_, is_input) in enumerate(self._path) if is_input]
        if isinstance(turns, int) and turns > 0 and inputs:
            del self._path[inputs[max(0, len(inputs) - turns)] :]
            self._has_moved, self._without_usage = True, None

    def _read_compacted(self, payload: RolloutLine, at: int | None) -> None:
        """Add a compaction: the inputs it kept verbatim, and the summary."""
        self._finish_answer()
        self._release_messages()
        text = text_or_none(payload.get("message"))
        replacement = payload.get("replacement_history")
        if isinstance(replacement, list):
            items = dicts_in(replacement)
            if any("compaction" in str(item.get("type")) for item in items):
                self.losses.add("an encrypted summary; the context keeps the full history instead")
                return
            messages = [
                message
                for item in filter(is_input_item, items)
                for message in read_input_item(item, LossReport())
                if message.role == "user"
            ]
            text = "\n\n".join(message.text for message in messages if not _is_from_codex(message)) or text
        if text:
            self._add(Compaction(text, 0, replaces_earlier=True), at)

    # -- entries -----------------------------------------------------------------------------------

    def _with_details(self, message: Message) -> Message:
        """Add what Codex knew about a call: its exit code, how long it took, the changes of a patch."""
        parts = []
        for part in message.parts:
            if isinstance(part, ToolResult):
                details = self._details.pop(part.call_id, {})
                if "exit_code" not in details and (code := _exit_code(part)) is not None:
                    details = {"exit_code": code, **details}
                has_failed = details.get("exit_code") not in (None, 0) or details.get("success") is False
                if details and is_storable(details):
                    part = replace(part, details={"codex": details}, error=part.error or has_failed)
            parts.append(part)
        return replace(message, parts=tuple(parts))

    def _finish_answer(self) -> None:
        text = self._answer.finish()
        if text is not None:
            self._release_messages()
            self._open = {call.id for call in text.message.calls}
            evidence = text.evidence if self._provider in (None, "openai") else None
            self._without_usage = len(self.entries)
            self._add(text.message, self._answer_at, evidence)

    @property
    def _provider(self) -> str | None:
        return text_or_none(self.metadata.get("model_provider"))

    def _add(
        self,
        payload: Payload,
        at: int | None,
        evidence: Evidence | None = None,
        usage: Usage | None = None,
    ) -> None:
        key = str(len(self.entries) + 1)
        after = self._path[-1][0] if self._path else START
        role = payload.role if isinstance(payload, Message) else None
        if isinstance(payload, Message) and role == "tool":
            payload = self._with_details(payload)
        elif role in ("user", "assistant") and self._new_options and not self._open:
            options, self._new_options = self._new_options, {}
            self._options |= options
            self._add(Settings(options=options), at)
            key, after = str(len(self.entries) + 1), self._path[-1][0]
        by_model = role == "assistant" or usage is not None
        entry = EntryRecord(
            payload, key, after if self._has_moved else None, at=at, evidence=evidence, usage=usage
        )
        if by_model:
            entry = replace(entry, model=self._model, provider=self._provider or "openai")
        self.entries.append(entry)
        self._path.append((key, role == "user"))


def _exit_code(result: ToolResult) -> int | None:
    """Return the exit code of a command that the output itself states, as versions wrote it in text or JSON."""
    text = result.text
    stated = _EXIT_CODE.search(text, 0, 500)
    code = as_dict(json_object(text).get("metadata")).get("exit_code") if text.startswith("{") else None
    return int(stated[1]) if stated else code if type(code) is int else None


def _is_from_codex(message: Message) -> bool:
    """Whether Codex wrote it in the user's role."""
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    return bool(texts) and all(text.lstrip().startswith(CODEX_TEXT_PREFIXES) for text in texts)


def _texts(content: object) -> str | None:
    return "\n".join(piece["text"] for piece in dicts_in(content) if text_or_none(piece.get("text")))


def _titles(path: Path) -> dict[str, str]:
    """Return the titles users gave, by thread; the last one wins."""
    folder = next((each.parent for each in path.absolute().parents if each.name in SESSION_FOLDERS), None)
    if folder is None or not leads_to(folder.resolve(), folder / INDEX) or not (folder / INDEX).is_file():
        return {}
    lines = read_objects(folder / INDEX, LossReport())
    named = ((text_or_none(line.get("id")), text_or_none(line.get("thread_name"))) for line in lines)
    return {thread: name for thread, name in named if thread and name}
