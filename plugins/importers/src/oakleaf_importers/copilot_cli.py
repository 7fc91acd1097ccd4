"""Import Copilot CLI: session-state/SESSION/events.jsonl, one JSON line per event.

An answer is one event, so the file only grows. Only a shutdown says how many tokens were used: by model, for all calls since
the start. A sub-agent's events are among those of its session, marked with its id.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oakleaf.core.entries import Compaction, Note
from oakleaf.core.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult, tool_result
from oakleaf.core.usage import Price, Usage, is_count
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import START, LossReport, SessionRecord
from oakleaf.wire.parsing import parse_base64, parse_tool_call
from oakleaf_importers.formats.json_values import (
    UNEXPECTED_SHAPE,
    as_dict,
    as_list,
    first_text,
    known_texts,
    parse_time,
    required_text,
    text_or_none,
    token_counts,
)
from oakleaf_importers.formats.jsonl import read_objects
from oakleaf_importers.formats.source_files import find_files, jsonl_source
from oakleaf_importers.session_records import EntryTree, with_source_losses, without_empty

NAME = "copilot-cli"
EVENTS = "events.jsonl"
TOKENS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
NANO_UNITS_PER_MICROCENT = 1_000
"""A billed unit is one cent, and a billionth of it is what the tool counts."""
BOOKKEEPING = {
    f"{group}.{name}"
    for group, names in {
        "assistant": "idle intent message_delta message_start reasoning_delta server_tool_progress streaming_delta"
        " tool_call_delta turn_end turn_start usage",
        "auto_mode_switch": "completed requested",
        "capabilities": "changed",
        "command": "completed execute queued",
        "commands": "changed",
        "elicitation": "completed requested",
        "exit_plan_mode": "completed requested",
        "external_tool": "completed requested",
        "hook": "end progress start",
        "pending_messages": "modified",
        "permission": "completed requested",
        "sampling": "completed requested",
        "session": "auto_mode_resolved autopilot_objective_changed background_tasks_changed binary_asset compaction_start"
        " custom_agents_updated extensions_loaded idle managed_settings_enforced managed_settings_resolved"
        " mcp_server_status_changed mcp_servers_loaded mode_changed permissions_changed plan_changed"
        " remote_steerable_changed session_limits_changed skills_loaded todos_changed tools_updated truncation"
        " usage_checkpoint usage_info workspace_file_changed",
        "subagent": "completed deselected failed selected",
        "tool": "execution_partial_result execution_progress execution_start user_requested",
        "tool_search": "activated",
        "user_input": "completed requested",
    }.items()
    for name in names.split()
}
INVALID_CALL = "a tool call without an id or a name"
SCREEN_TYPES = {"session.info", "session.warning", "session.error", "model.call_failure", "abort"}

Event = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    losses = LossReport()
    files = find_files(source, NAME, losses, f"**/{EVENTS}", "*.jsonl")
    yield from with_source_losses(
        NAME, without_empty(CopilotSession(path).record() for path in files), losses
    )


IMPORTER = Importer(
    source="its folder ~/.copilot/session-state, or one events.jsonl in it",
    sessions=read_sessions,
    default_paths=("~/.copilot/session-state",),
    source_of=jsonl_source,
    versions="1.0.78",
)


class CopilotSession:
    """Reads one file of events: the session, and the transcript of each sub-agent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.losses = LossReport()
        self.start: Event = {}
        self.title: str | None = None
        self.tags: dict[str, str] = {}
        self.main = CopilotTranscript(self.losses)
        self.agents: dict[str, CopilotTranscript] = {}
        self.names: dict[str, str] = {}
        """By the call that started a sub-agent: its name."""
        for line in read_objects(path, self.losses):
            self._read(line)

    def record(self) -> SessionRecord:
        name = text_or_none(self.start.get("sessionId"))
        if name is None:
            name = self.path.parent.name if self.path.name == EVENTS else self.path.stem
        tasks = [
            SessionRecord(
                NAME,
                f"{name}-{agent_id}",
                tuple(transcript.entries),
                agent=transcript.agent or "subagent",
            )
            for agent_id, transcript in self.agents.items()
            if transcript.entries
        ]
        return self.main.to_record(
            name,
            title=self.title,
            agent=NAME,
            started_at=parse_time(self.start.get("startTime")),
            tags=self.tags,
            tasks=tuple(tasks),
        )

    def _read(self, event: Event) -> None:
        kind, fields = text_or_none(event.get("type")), as_dict(event.get("data"))
        if kind in ("session.start", "session.resume", "session.context_changed"):
            self.start = self.start or (fields if kind == "session.start" else {})
            self._describe(fields)
        elif kind == "session.title_changed":
            self.title = text_or_none(fields.get("title")) or self.title
        elif kind == "subagent.started":
            call_id = str(fields.get("toolCallId"))
            self.names[call_id] = text_or_none(fields.get("agentName")) or "subagent"
        else:
            agent_id = text_or_none(event.get("agentId")) or text_or_none(fields.get("parentToolCallId"))
            transcript = self.main if agent_id is None else self._agent(agent_id, fields)
            transcript.read(kind, fields, event)

    def _describe(self, fields: Event) -> None:
        self.main.model = text_or_none(fields.get("selectedModel")) or self.main.model
        context = as_dict(fields.get("context", fields))
        named = {"cwd": "cwd", "repository": "repository", "git_branch": "branch"}
        for tag, text in known_texts(**{tag: context.get(name) for tag, name in named.items()}).items():
            self.tags.setdefault(tag, text)

    def _agent(self, agent_id: str, fields: Event) -> CopilotTranscript:
        """Return the transcript of a sub-agent, beginning with the prompt of the starting call."""
        if agent_id not in self.agents:
            transcript = self.agents[agent_id] = CopilotTranscript(self.losses)
            call_id = text_or_none(fields.get("parentToolCallId")) or agent_id
            transcript.agent = self.names.get(call_id)
            call = self.main.calls.get(call_id)
            prompt = text_or_none(call.arguments.get("prompt")) if call is not None else None
            if prompt:
                transcript.add(Message("user", (Text(prompt),)), None)
        return self.agents[agent_id]


class CopilotTranscript(EntryTree):
    """Converts the events of one agent."""

    def __init__(self, losses: LossReport) -> None:
        super().__init__(NAME, losses)
        self.keys: dict[str, str] = {}
        """By event: the key of the last entry up to it."""
        self.calls: dict[str, ToolCall] = {}
        self.model: str | None = None
        self.agent: str | None = None
        self._reasoning: list[Part] = []
        self._chunks: list[str] = []
        self._used: dict[str, tuple[int, ...]] = {}
        self._started: object = None

    def read(self, kind: str | None, data: Event, event: Event) -> None:
        at = parse_time(event.get("timestamp"))
        try:
            self._convert(kind, data, at)
        except UNEXPECTED_SHAPE:
            self.add_unknown(kind, event, at)
        name = event.get("id")
        if isinstance(name, str):
            self.keys[name] = self.tip

    def _convert(self, kind: str | None, data: Event, at: int | None) -> None:
        match kind:
            case "user.message":
                self._input(data, at)
            case "assistant.message":
                self._answer(data, at)
            case "assistant.reasoning":
                self._reasoning = [Reasoning(data["content"])]
            case "tool.execution_complete":
                self._result(data, at)
            case "system.message" | "system.notification" | "skill.invoked":
                if data["content"]:
                    self.add(Message("system", (Text(data["content"]),)), at)
            case "session.compaction_complete":
                self._compaction(data, at)
            case "session.context_cleared":
                self.tip = START
            case "session.snapshot_rewind":
                self._rewind(data)
            case "session.model_change":
                self.model = text_or_none(data.get("newModel")) or self.model
            case "session.shutdown":
                self._shutdown(data, at)
            case _ if kind in SCREEN_TYPES:
                self.add(Note({NAME: kind, "data": data}), at)
            case _ if kind in BOOKKEEPING:
                self.losses.add("a bookkeeping event of the tool", str(kind))
            case _:
                self.add_unknown(kind, data, at)

    def _input(self, data: Event, at: int | None) -> None:
        parts: list[Part] = [Text(data["content"])] if data["content"] else []
        for item in data.get("attachments") or ():
            name = first_text(item, "displayName", "path") or "attachment"
            if item.get("type") == "blob" and item.get("data"):
                parts.append(parse_base64(item["data"], item.get("mimeType"), name))
            else:  # a file or folder is named; what the model saw of it is in the transformed text
                self.losses.add("a file that is only named", name)
        if not parts:
            return
        details = {NAME: {"sent": data["transformedContent"]}} if data.get("transformedContent") else None
        self.add(Message("user", tuple(parts), details=details), at)

    def _answer(self, data: Event, at: int | None) -> None:
        text, chunks = data["content"], data.get("chunkCount")
        if is_count(chunks) and chunks > 1:
            self._chunks.append(text)
            if data.get("chunkIndex") != chunks - 1:
                return
            text, self._chunks = "".join(self._chunks), []
        reasoning = text_or_none(data.get("reasoningText"))
        parts: list[Part] = [Reasoning(reasoning)] if reasoning else self._reasoning
        self._reasoning = []
        parts = [*parts, Text(text)] if text else [*parts]
        for request in data.get("toolRequests") or ():
            call_id, name = (required_text(request[key], INVALID_CALL) for key in ("toolCallId", "name"))
            call = parse_tool_call(call_id, name, request.get("arguments"))
            self.calls[call.id] = call
            parts.append(call)
        if data.get("encryptedContent") or data.get("reasoningOpaque"):
            self.losses.add("reasoning that only the tool's own service can read")
        model = text_or_none(data.get("model")) or self.model
        if parts:
            self.add(Message("assistant", tuple(parts)), at, model=model)

    def _result(self, data: Event, at: int | None) -> None:
        call_id = required_text(data["toolCallId"], INVALID_CALL)
        result, error = data.get("result"), data.get("error")
        if isinstance(result, dict):
            media = [block for block in as_list(result.get("contents")) if _is_media(block)]
            (parsed,) = tool_result(call_id, [{"type": "text", "text": result["content"]}, *media]).results
            content = parsed.content if media else tool_result(call_id, result["content"]).results[0].content
        else:
            content = (Text(str(as_dict(error).get("message") or "The call failed.")),)
        detailed = as_dict(result).get("detailedContent")
        details = {NAME: {"detailed": detailed}} if text_or_none(detailed) else None
        is_error = data.get("success") is False
        self.add(Message("tool", (ToolResult(call_id, content, is_error, details=details),)), at)

    def _compaction(self, data: Event, at: int | None) -> None:
        summary = text_or_none(data.get("summaryContent"))
        if data.get("success") is not True or summary is None:
            self.add(Note({NAME: "a failed compaction", "error": data.get("error")}), at)
            return
        before = data.get("preCompactionTokens")
        payload = Compaction(summary, 0, before if is_count(before) else 0, replaces_earlier=True)
        self.add(payload, at)

    def _rewind(self, data: Event) -> None:
        """Go back to before an event: later events form a branch."""
        names = list(self.keys)
        target = data["upToEventId"]
        if target not in self.keys:
            self.losses.add("a rewind to a missing event", str(target))
            return
        index = names.index(target)
        self.tip = self.keys[names[index - 1]] if index else START
        for name in names[index:]:
            del self.keys[name]

    def _shutdown(self, data: Event, at: int | None) -> None:
        """Add the tokens of each model since the last shutdown; sums continue after the same start."""
        if data.get("sessionStartTime") != self._started:
            self._used, self._started = {}, data.get("sessionStartTime")
        for model, metric in (data.get("modelMetrics") or {}).items():
            counts = token_counts(metric.get("usage"), TOKENS)
            if counts is None:
                self.losses.add("usage that is not a count of tokens", str(model))
                continue
            units = metric.get("totalNanoAiu")
            total = (*counts, units if is_count(units) else 0)
            last = self._used.get(model, (0,) * len(total))
            growth = tuple(new - old for new, old in zip(total, last, strict=True))
            self._used[model] = total
            if min(growth) < 0:
                growth = total
            if any(growth[:4]):
                requests = metric.get("requests")
                note = Note({NAME: "the tokens of a model", "model": model, "requests": requests})
                self.add(note, at, model=str(model), usage=_usage(growth), price=_price(growth[4]))


def _usage(counts: tuple[int, ...]) -> Usage:
    """Convert usage. The cached tokens are part of the input, unless they are more than it."""
    prompt, output, read, written = counts[:4]
    return Usage(prompt if read + written <= prompt else prompt + read + written, output, read, written)


def _price(units: int) -> Price | None:
    microcents = round(units / NANO_UNITS_PER_MICROCENT)
    return Price(microcents, f"recorded by {NAME}") if microcents else None


def _is_media(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") in ("image", "audio", "resource")
