"""Import Codex: one rollout file per session, one JSON line per Responses API item and per event.

Some lines carry the conversation, others only repeat it for the screen. Usage is reported as running totals, often more
than once. Turns can be rolled back, and a sub-agent names the session that started it. A fork or a reverted session with
paginated history names the place in another rollout that it goes on from; Codex compresses rollouts at rest (.zst).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.codec import is_storable
from oakleaf.core.entries import Compaction, Evidence, Note, Payload, Settings
from oakleaf.core.messages import Message, Text, ToolResult, system, user
from oakleaf.core.usage import Usage
from oakleaf.errors import InvalidSource
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
from oakleaf_importers.formats.source_files import files_within, find_files, leads_to, only_within
from oakleaf_importers.formats.zstd import SUFFIX
from oakleaf_importers.session_records import NEWER_FORMAT, EntryList, with_source_losses, with_tasks
from oakleaf_importers.sqlite_files import SourceTables, open_tables

INDEX, DATABASES = "session_index.jsonl", "state_*.sqlite"
SESSION_FOLDERS = ("sessions", "archived_sessions")
"""The folders beside the index and the database: sessions/YYYY/MM/DD/rollout-….jsonl."""
ROLLOUTS = ("**/rollout-*.jsonl", "**/rollout-*.jsonl.zst")
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
    "CommandExecution": ("exit_code", "status", "duration", "cwd", "command"),
    "FileChange": ("status", "changes"),
    "McpToolCall": ("duration", "server", "tool"),
    "DynamicToolCall": ("success", "duration"),
}
"""Events and completed items about a call that ended, and what they say beyond the output that the model received."""
SCREEN_ITEMS = {
    *(
        "UserMessage",
        "HookPrompt",
        "AgentMessage",
        "Plan",
        "Reasoning",
        "CollabAgentToolCall",
        "SubAgentActivity",
    ),
    *("WebSearch", "ImageView", "Extension", "ImageGeneration", "EnteredReviewMode", "ExitedReviewMode"),
    "ContextCompaction",
}
"""Completed items that only repeat other lines for the screen."""
SCREEN_EVENTS = {
    *("user_message", "agent_message", "agent_reasoning", "agent_reasoning_raw_content"),
    *("agent_reasoning_section_break", "context_compacted", "entered_review_mode", "exited_review_mode"),
    *("task_started", "turn_started", "thread_settings_applied", "thread_goal_updated", "sub_agent_activity"),
    *("error", "stream_error", "warning", "guardian_warning", "guardian_assessment", "model_reroute"),
    *("exec_command_begin", "patch_apply_begin", "mcp_tool_call_begin", "web_search_begin", "web_search_end"),
    *("image_generation_begin", "image_generation_end", "view_image_tool_call", "turn_diff", "plan_update"),
    *("dynamic_tool_call_request", "dynamic_tool_call_response", "item_started", "undo_completed"),
    *("collab_agent_spawn_end", "collab_agent_interaction_end", "collab_waiting_end", "collab_close_end"),
    "collab_resume_end",
}
"""Events that only repeat other lines for the screen, or are about the program."""
_EXIT_CODE = re.compile(r"(?:\A|\n)(?:Exit code:|Process exited with code) (-?\d{1,10})(?=\n|\Z)")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
TOKENS = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_input_tokens")
FIRST_LINE_BYTES = 1 << 20

RolloutLine = dict[str, Any]
Tokens = tuple[int, ...]


class Rollout(Struct, frozen=True):
    """A file and the first line. A session that was reverted has a file for each time."""

    path: Path
    metadata: RolloutLine

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(SUFFIX).removesuffix(".jsonl")

    @property
    def thread(self) -> str:
        """The id of the session."""
        return text_or_none(self.metadata.get("id")) or self.name

    @property
    def rollout_id(self) -> str:
        """The id of the file: in the name, where different from the session's id."""
        return self.name.rpartition("_")[2] if "_" in self.name else self.thread

    @property
    def parent(self) -> str | None:
        """The id of the parent session."""
        source = as_dict(self.metadata.get("source"))
        spawned = as_dict(as_dict(source.get("subagent")).get("thread_spawn"))
        named = first_text(self.metadata, "parent_thread_id") or first_text(spawned, "parent_thread_id")
        return named or (first_text(self.metadata, "session_id") if "subagent" in source else None)

    @property
    def base(self) -> tuple[str, int] | None:
        """The continued rollout, and the number of the first line after the shared part."""
        fields = as_dict(self.metadata.get("history_base"))
        rollout, end = fields.get("thread_id"), fields.get("end_ordinal_exclusive")
        return (rollout, end) if isinstance(rollout, str) and type(end) is int else None


def read_sessions(source: str) -> Iterator[SessionRecord]:
    """Yield each session with the sub-agents from the same source."""
    losses = LossReport()
    rollouts = [
        Rollout(path, _metadata(path))
        for path in _without_copies(find_files(source, "codex", losses, *ROLLOUTS))
    ]
    threads: dict[str, list[Rollout]] = {}
    for rollout in sorted(rollouts, key=lambda each: each.path.name):
        threads.setdefault(rollout.thread, []).append(rollout)
    parents = {thread: files[-1].parent for thread, files in threads.items()}
    library = Library(rollouts, losses)

    def read(thread: str, tasks: tuple[SessionRecord, ...]) -> SessionRecord | None:
        session = CodexSession(threads[thread], library)
        if session.entries or tasks:
            return session.record(tasks)
        losses.merge(session.losses)
        return None

    yield from with_source_losses("codex", with_tasks(parents, read), losses)


def _without_copies(paths: list[Path]) -> list[Path]:
    """Return the files without compressed copies of files beside."""
    return [path for path in paths if path.suffix != SUFFIX or path.with_suffix("") not in paths]


class Library:
    """Rollouts by id and session titles, in the source and in the surrounding folders of Codex."""

    def __init__(self, rollouts: list[Rollout], losses: LossReport) -> None:
        self._rollouts = {rollout.rollout_id: rollout for rollout in rollouts}
        self._losses = losses
        self._home = _home(rollouts[0].path) if rollouts else None

    def find(self, rollout_id: str) -> Rollout | None:
        """Return the rollout with the id; None without a match."""
        if rollout_id not in self._rollouts and self._home is not None:
            for folder in SESSION_FOLDERS:
                paths = [path for pattern in ROLLOUTS for path in (self._home / folder).glob(pattern)]
                for path in _without_copies(only_within(self._home, paths, self._losses)):
                    if path.name.removesuffix(SUFFIX).endswith(f"{rollout_id}.jsonl"):
                        self._rollouts[rollout_id] = Rollout(path, _metadata(path))
        return self._rollouts.get(rollout_id)

    @cached_property
    def titles(self) -> dict[str, str]:
        """The users' titles, by session: from the database, and from the index of older versions."""
        if self._home is None:
            return {}
        titles: dict[str, str] = {}
        if leads_to(self._home.resolve(), self._home / INDEX) and (self._home / INDEX).is_file():
            for line in read_objects(self._home / INDEX, LossReport()):
                if (thread := text_or_none(line.get("id"))) and (
                    name := text_or_none(line.get("thread_name"))
                ):
                    titles[thread] = name
        for path in files_within(self._home, self._losses, DATABASES):
            try:
                with open_tables(str(path), "codex", "threads") as tables:
                    titles |= dict(_named_threads(tables))
            except (InvalidSource, PermissionError) as error:
                self._losses.add("titles in a database that cannot be read", f"{path.name}: {error}")
        return titles


def _home(path: Path) -> Path | None:
    """Return the folder of Codex around a rollout; None elsewhere."""
    return next((each.parent for each in path.absolute().parents if each.name in SESSION_FOLDERS), None)


def _named_threads(tables: SourceTables) -> Iterator[tuple[str, str]]:
    """Yield the names of sessions. A title that only repeats the first input is none."""
    for row in tables.rows("threads"):
        title = row.get("title") if row.get("title") != row.get("first_user_message") else None
        thread, name = text_or_none(row.get("id")), text_or_none(row.get("name")) or text_or_none(title)
        if thread and name:
            yield thread, name


def _source_of(root: Path, file: Path) -> Path | None:
    if not file.name.startswith("rollout-") or not file.name.removesuffix(SUFFIX).endswith(".jsonl"):
        return None
    return root if _needs_others(file) else file


_parents: dict[Path, bool] = {}


def _needs_others(path: Path) -> bool:
    """Return whether a rollout's fixed first line names another rollout: a parent, or an earlier history."""
    if path not in _parents:
        try:
            with path.open("rb") as file:
                line = file.readline(FIRST_LINE_BYTES)
        except OSError:
            return False
        if not line.endswith(b"\n") and len(line) < FIRST_LINE_BYTES:
            return False  # it is being written
        _parents[path] = b"parent_thread_id" in line or b"history_base" in line
    return _parents[path]


IMPORTER = Importer(
    source="a rollout-….jsonl file, or a folder of them",
    sessions=read_sessions,
    default_paths=("~/.codex/sessions", "~/.codex/archived_sessions"),
    source_of=_source_of,
    versions="0.153, and before",
)


def _metadata(path: Path) -> RolloutLine:
    return next((_payload(line) for line in read_objects(path, LossReport()) if _is_meta(line)), {})


def _is_meta(line: RolloutLine) -> bool:
    """Whether the line is the metadata line, without a wrapper in the first versions."""
    return line.get("type") == "session_meta" or ("type" not in line and "id" in line and "timestamp" in line)


def _payload(line: RolloutLine) -> RolloutLine:
    return as_dict(line.get("payload", line))


class Mark(Struct, frozen=True):
    """The reading position of a session at the start of a continuing rollout."""

    path: tuple[tuple[str, bool], ...]
    total: Tokens
    model: str | None
    options: dict[str, Any]


class CodexSession(EntryList):
    """Reads the rollouts of a session, oldest first. The last one is the present history, the others led to it."""

    def __init__(self, rollouts: list[Rollout], library: Library) -> None:
        super().__init__("codex")
        self.rollouts, self.library = rollouts, library
        self.metadata = rollouts[-1].metadata
        if (mode := self.metadata.get("history_mode")) not in (None, "legacy", "paginated"):
            self.losses.add(NEWER_FORMAT, f"history mode {mode}")
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
        self._is_inherited = False
        """Whether the lines are another session's, which counts their usage."""
        self._without_usage: int | None = None
        self._title: str | None = None
        self._options: dict[str, Any] = {}
        self._new_options: dict[str, Any] = {}
        self._details: dict[str, dict[str, Any]] = {}
        """What events said about calls, by call; they come before the output that the model received."""
        self._marks: dict[tuple[str, int], Mark] = {}
        self.unfinished = 0
        for rollout in rollouts:
            self._go_to(rollout.base, {rollout.rollout_id})
            self._read_file(rollout, is_last=rollout is rollouts[-1])

    def _go_to(self, base: tuple[str, int] | None, visited: set[str]) -> None:
        """Go back to the place a rollout goes on from. What another session wrote before it is read first."""
        if base is None:
            return
        rollout_id, end = base
        if mark := self._marks.get(base):
            self._path, self._total, self._model = list(mark.path), mark.total, mark.model
            self._options, self._new_options = dict(mark.options), {}
            self._has_moved, self._without_usage = True, None
            return
        rollout = None if rollout_id in visited else self.library.find(rollout_id)
        if rollout is None:
            self.losses.add("the beginning, which is in another rollout file", rollout_id)
            return
        self._go_to(rollout.base, {*visited, rollout_id})
        self._read_file(rollout, end=end)

    def _read_file(self, rollout: Rollout, end: int | None = None, *, is_last: bool = False) -> None:
        """Read a rollout; up to the line `end`, the lines belong to another session."""
        own_start = rollout.metadata.get("subagent_history_start_ordinal")
        places = sorted(
            base[1] for each in self.rollouts if (base := each.base) and base[0] == rollout.rollout_id
        )
        for line in read_objects(rollout.path, self.losses):
            ordinal = line.get("ordinal")
            if type(ordinal) is int:
                if end is not None and ordinal >= end:
                    break
                while places and end is None and ordinal >= places[0]:
                    self._mark(rollout.rollout_id, places.pop(0))
            is_copied = type(ordinal) is int and type(own_start) is int and ordinal < own_start
            self._is_inherited = end is not None or is_copied
            self._read(line)
        self._is_inherited = False
        if is_last and self._answer.is_open and seconds_since_written(rollout.path) < WRITTEN_SECONDS:
            self.unfinished = 1  # more of it may come: a later import adds it in one piece
        else:
            self._finish_answer()
        self._release_messages()
        for place in places if end is None else ():
            self._mark(rollout.rollout_id, place)

    def _mark(self, rollout_id: str, place: int) -> None:
        self._finish_answer()
        self._release_messages()
        state = Mark(tuple(self._path), self._total, self._model, dict(self._options))
        self._marks[rollout_id, place] = state

    def record(self, tasks: tuple[SessionRecord, ...]) -> SessionRecord:
        metadata, thread = self.metadata, self.rollouts[-1].thread
        return self.to_record(
            thread,
            seeds=tuple(self._prompt() + self.seeds),
            leaf=(self._path[-1][0] if self._path else START) if self._has_moved else None,
            title=self._title or self.library.titles.get(thread),
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
            return  # read before; a fork repeats that of its source
        if kind == "event_msg":
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
            self._add(unknown_note("codex", kind or "a line without a type", line, self.losses), at)

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
        """Add the messages held back."""
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
        elif kind == "item_completed":
            item = as_dict(event.get("item"))
            self._read_end(item.get("type"), item, item.get("id"), SCREEN_ITEMS, at)
        else:
            self._read_end(kind, event, event.get("call_id"), SCREEN_EVENTS, at)

    def _read_end(
        self, kind: object, event: RolloutLine, call_id: object, known: set[str], at: int | None
    ) -> None:
        """Keep the details of a finished call. What is neither that nor for the screen becomes a note."""
        if isinstance(kind, str) and kind in ENDS and isinstance(call_id, str):
            fields = {name: event[name] for name in ENDS[kind] if event.get(name) is not None}
            self._details.setdefault(call_id, {}).update(fields)
        elif not (isinstance(kind, str) and kind in known):
            self._finish_answer()
            self._add(unknown_note("codex", kind, event, self.losses), at)

    def _read_usage(self, info: object, at: int | None) -> None:
        """Add the growth of the running totals, repeated in the file with every change of the rate limits."""
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
        if self._is_inherited:
            self._without_usage = None
        elif any(growth):
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
        """Add a compaction: the verbatim inputs, and the summary."""
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
        """Add Codex's details of a call: exit code, duration, changes of a patch."""
        parts = []
        for part in message.parts:
            if isinstance(part, ToolResult):
                details = self._details.pop(part.call_id, {})
                if "exit_code" not in details and (code := _exit_code(part)) is not None:
                    details = {"exit_code": code, **details}
                has_failed = (
                    details.get("exit_code") not in (None, 0)
                    or details.get("success") is False
                    or details.get("status") in ("failed", "declined")
                )
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
    """Return the exit code in a command's output, as text or JSON by version."""
    text = result.text
    stated = _EXIT_CODE.search(text, 0, 500)
    code = as_dict(json_object(text).get("metadata")).get("exit_code") if text.startswith("{") else None
    return int(stated[1]) if stated else code if type(code) is int else None


def _is_from_codex(message: Message) -> bool:
    """Whether Codex wrote the text in the user's role."""
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    return bool(texts) and all(text.lstrip().startswith(CODEX_TEXT_PREFIXES) for text in texts)


def _texts(content: object) -> str | None:
    return "\n".join(piece["text"] for piece in dicts_in(content) if text_or_none(piece.get("text")))
