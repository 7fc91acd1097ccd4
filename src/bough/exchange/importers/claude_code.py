"""Import Claude Code: one JSON Lines file per session, each line after its parent; sub-agents in files of their own.

The lines of one answer are joined, with its results, whichever of its lines they follow: tools run while an answer still
streams. Parents may be bookkeeping lines, so an entry follows the nearest ancestor that was converted.
`formats.claude_code` reads single lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ...core.entries import Payload, Settings
from ...core.messages import Message, ToolResult, system
from ...formats.claude_code import (
    BOOKKEEPING,
    TITLES,
    TranscriptLine,
    answer_id,
    clean_text,
    content_blocks,
    copied_from,
    first_kept_uuid,
    is_boundary,
    is_storable,
    is_summary,
    line_kind,
    parent_uuid,
    read_answer,
    read_attachment,
    read_compaction,
    read_user_line,
    system_prompt,
)
from ...formats.jsonl import INVALID_JSON, find_files, parse_time, read_objects
from ...formats.records import START, EntryRecord, LossReport, SessionRecord

NAME = "claude-code"
AGENT_FILES = "agent-*.jsonl"
AGENT_FOLDER = "subagents"
SUBAGENT = "subagent"
BOOKKEEPING_LINE = "a bookkeeping line of the tool"


def read_sessions(source: str) -> Iterator[SessionRecord]:
    """Yield every session with the sub-agents it started; a sub-agent without its session is a session of its own."""
    agent_files: dict[Path, dict[str, list[Path]]] = {}
    is_single_file = Path(source).expanduser().is_file()
    for path in find_files(source, NAME):
        main = _main_of(path)
        if main is not None and main.is_file() and not is_single_file:
            continue  # it is read with its session
        if main is not None:
            entries = _session(path, f"{main.stem}-{path.stem}", is_agent=True)
        else:
            if path.parent not in agent_files:
                agent_files[path.parent] = _agent_files(path.parent)
            agent_paths = sorted((path.with_suffix("") / AGENT_FOLDER).rglob("*.jsonl"))
            entries = _session(path, path.stem, [*agent_files[path.parent].get(path.stem, ()), *agent_paths])
        if entries.entries or entries.tasks or is_single_file or set(entries.losses) - {BOOKKEEPING_LINE}:
            yield entries  # skip files without a conversation: titles, backups


def _main_of(path: Path) -> Path | None:
    """Return the session file a sub-agent's file belongs to; None if it is not a sub-agent's."""
    if AGENT_FOLDER in path.parts:
        at = len(path.parts) - 1 - path.parts[::-1].index(AGENT_FOLDER)
        return Path(*path.parts[: at - 1], f"{path.parts[at - 1]}.jsonl") if at else None
    return path.with_name(f"{_session_id(path)}.jsonl") if path.match(AGENT_FILES) else None


def _agent_files(folder: Path) -> dict[str, list[Path]]:
    result: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(AGENT_FILES)):
        result.setdefault(_session_id(path), []).append(path)
    return result


def _session_id(path: Path) -> str:
    """Return the session id in a sub-agent's lines, restricted to characters that are safe in a path."""
    named = (line.get("sessionId") for line in read_objects(path, LossReport()))
    result = next((entry for entry in named if isinstance(entry, str)), "")
    return result if result.replace("-", "").replace("_", "").isalnum() else "unknown"


def _session(path: Path, source: str, tasks: Iterable[Path] = (), *, is_agent: bool = False) -> SessionRecord:
    losses = LossReport()
    main, sidechains = Transcript(losses, path.parent), Sidechains(losses)
    for line in read_objects(path, losses):
        is_side = line.get("isSidechain") is True and not is_agent
        (sidechains.tree_of(line) if is_side else main).add(line)
    children = [
        _record(tree, f"{source}-{name}", SUBAGENT) for name, tree in sidechains.trees.items() if tree.units
    ]
    children.extend(_session(task, f"{source}-{_name(task)}", is_agent=True) for task in tasks)
    metadata = _metadata(path, losses) if is_agent else {}
    agent = clean_text(metadata.get("agentType")) or (SUBAGENT if is_agent else NAME)
    entries = _record(main, source, agent, clean_text(metadata.get("description")))
    return replace(entries, losses=losses, tasks=tuple(children))


def _name(path: Path) -> str:
    agent_paths = (
        path.parts[path.parts.index(AGENT_FOLDER) + 1 :] if AGENT_FOLDER in path.parts else path.parts[-1:]
    )
    return "-".join(agent_paths).removesuffix(".jsonl")


def _metadata(path: Path, losses: LossReport) -> dict[str, Any]:
    place = path.with_name(f"{path.stem}.meta.json")
    try:
        result = msgspec.json.decode(place.read_bytes())
    except FileNotFoundError:
        return {}
    except (*INVALID_JSON, OSError):
        losses.add("the metadata of a sub-agent", place.name)
        return {}
    return result if isinstance(result, dict) else {}


def _record(tree: Transcript, source: str, agent: str, title: str | None = None) -> SessionRecord:
    entries = tuple(tree.entries())
    seeds = (system(tree.prompt),) if tree.prompt else ()
    leaf = None if tree.last is None else tree.last.end
    return SessionRecord(
        NAME,
        source,
        entries,
        seeds,
        leaf,
        {},
        title or tree.title,
        agent,
        tags=tree.tags,
        losses=LossReport(),
    )


class Sidechains:
    """The sub-agents that older versions wrote into the file of their session, each a tree."""

    def __init__(self, losses: LossReport) -> None:
        self.trees: dict[str, Transcript] = {}
        self._losses = losses
        self._by_line: dict[object, Transcript] = {}

    def tree_of(self, line: TranscriptLine) -> Transcript:
        uuid, agent = line.get("uuid"), line.get("agentId")
        tree = self._by_line.get(parent_uuid(line))
        if tree is None:
            named = agent if isinstance(agent, str) and agent.isalnum() else f"side-{len(self.trees) + 1}"
            tree = self.trees.setdefault(named, Transcript(self._losses))
        if isinstance(uuid, str):
            self._by_line.setdefault(uuid, tree)
        return tree


class Unit(Struct):
    """An answer with its results, or one converted line."""

    uid: str
    parent: str | None
    at: int | None = None
    answer: list[TranscriptLine] = field(default_factory=list)
    results: list[tuple[Message, int | None]] = field(default_factory=list)
    rest: list[tuple[Payload, int | None]] = field(default_factory=list)
    names: str | None = None

    @property
    def start(self) -> str:
        return f"{self.uid}/0"

    @property
    def end(self) -> str:
        return f"{self.uid}/{max(bool(self.answer) + len(self.results) + len(self.rest) - 1, 0)}"


class Transcript:
    """Reads the lines of one conversation as a tree of units. `folder` holds the sessions it may be a fork of."""

    def __init__(self, losses: LossReport, folder: Path | None = None) -> None:
        self.losses, self._folder = losses, folder
        self.units: list[Unit] = []
        self.parents: dict[str, str | None] = {}
        self.tags: dict[str, str] = {}
        self.prompt: str | None = None
        self.last: Unit | None = None
        self._unit_by_uuid: dict[str, Unit] = {}
        self._answers: dict[str, Unit] = {}
        self._calls: dict[str, Unit] = {}
        self._boundary: TranscriptLine | None = None
        self._current_prompt: str | None = None
        self._titles: dict[str, tuple[str, object]] = {}
        self._kinds: set[str] = set()
        self._is_tree = False

    @property
    def title(self) -> str | None:
        """The user's title, else the tool's. Old titles name a line, which may be in another file."""
        for kind in reversed(TITLES):
            name, leaf = self._titles.get(kind, (None, None))
            if name and (kind != "summary" or leaf in self.parents):
                return name
        return None

    def add(self, line: TranscriptLine) -> None:
        uuid = line.get("uuid") if isinstance(line.get("uuid"), str) else None
        if uuid is not None and uuid in self.parents:
            return  # a second compaction writes earlier lines again
        self._note_facts(line)
        unit = self._unit(line, uuid or f"line-{len(self.units) + 1}")
        if uuid is not None:
            self.parents[uuid] = parent_uuid(line)
            if unit is not None:
                self._unit_by_uuid[uuid] = unit
        if unit is not None:
            self.last = unit

    def _note_facts(self, line: TranscriptLine) -> None:
        for tag, key in (("cwd", "cwd"), ("git_branch", "gitBranch")):
            value = clean_text(line.get(key))
            if value and tag not in self.tags:
                self.tags[tag] = value
        kind = line_kind(line)
        name = clean_text(line.get(TITLES[kind])) if kind in TITLES else None
        if name:
            self._titles[kind] = (name.strip(), line.get("leafUuid"))
        if is_boundary(line):
            self._boundary = line

    def _unit(self, line: TranscriptLine, uid: str) -> Unit | None:
        kind = line_kind(line)
        if kind == "assistant":
            return self._answer(line, answer_id(line) or uid, uid)
        if is_summary(line):
            return self._summary(line, uid)
        if kind == "user":
            return self._user_line(line, uid)
        if kind == "attachment":
            return self._attachment(line, uid)
        if kind == "system" and line.get("subtype") == "microcompact_boundary":
            self.losses.add("tool results the tool removed from the context; they stay in it here")
        elif kind in BOOKKEEPING:
            self._count_loss(BOOKKEEPING_LINE, kind)
        elif kind not in TITLES:
            self._count_loss("a line of unknown type", kind)
        return None

    def _count_loss(self, what: str, kind: str) -> None:
        self.losses.add(what, "" if kind in self._kinds else kind)
        self._kinds.add(kind)

    def _answer(self, line: TranscriptLine, name: str, uid: str) -> Unit:
        unit = self._answers.get(name)
        if unit is None:
            unit = self._answers[name] = self._new_unit(line, uid)
        unit.answer.append(line)
        for block in content_blocks(line):
            if (
                isinstance(block, dict)
                and block.get("type") == "tool_use"
                and isinstance(block.get("id"), str)
            ):
                self._calls[block["id"]] = unit
        return unit

    def _new_unit(self, line: TranscriptLine, uid: str) -> Unit:
        unit = Unit(uid, parent_uuid(line), parse_time(line.get("timestamp")))
        self.units.append(unit)
        return unit

    def _summary(self, line: TranscriptLine, uid: str) -> Unit | None:
        compaction = read_compaction(line, self._boundary)
        if compaction is None:
            self.losses.add("a blank summary", uid)
            return None
        unit = self._new_unit(line, uid)
        unit.rest.append((compaction, unit.at))
        unit.names = first_kept_uuid(self._boundary)
        if unit.parent is None and len(self.units) > 1:  # older versions named no parent
            unit.parent = self.units[-2].uid
        self._boundary = None
        return unit

    def _user_line(self, line: TranscriptLine, uid: str) -> Unit | None:
        messages = [_with_details(message, line) for message in read_user_line(line, self.losses)]
        calls = (self._calls.get(message.results[0].call_id) for message in messages if message.results)
        unit = next((result for result in calls if result is not None), None)
        if not messages:
            return None
        unit = unit or self._new_unit(line, uid)
        at = parse_time(line.get("timestamp"))
        for message in messages:
            (unit.results if message.results else unit.rest).append((message, at))
        return unit

    def _attachment(self, line: TranscriptLine, uid: str) -> Unit | None:
        prompt = system_prompt(line)
        payload = self._prompt_change(prompt) if prompt else read_attachment(line, self.losses)
        if payload is None:
            result = line.get("attachment")
            kind = str(result.get("type")) if isinstance(result, dict) else "none"
            if not prompt:
                self._count_loss("an attachment of unknown type, or without content for the model", kind)
            return None
        unit = self._new_unit(line, uid)
        unit.rest.append((payload, unit.at))
        return unit

    def _prompt_change(self, prompt: str) -> Settings | None:
        """The first prompt becomes a seed; a changed one becomes new settings."""
        if self.prompt is None:
            self.prompt = self._current_prompt = prompt
        if prompt == self._current_prompt:
            return None
        self._current_prompt = prompt
        return Settings(prompt=prompt)

    # -- telling -----------------------------------------------------------------------------------

    def entries(self) -> Iterator[EntryRecord]:
        self._is_tree = any(self.parents.values())  # if no line names a parent, each follows the previous one
        for unit in self.units:
            entries = list(self._entries(unit))
            for index, entry in enumerate(entries):
                after = self._after(unit) if not index else None
                yield replace(entry, key=f"{unit.uid}/{index}", after=after)

    def _entries(self, unit: Unit) -> Iterator[EntryRecord]:
        if unit.answer:
            result = read_answer(unit.answer, self.losses)
            usage = result.usage
            if usage is not None and self._is_copy(unit.answer[0]):
                usage = None
                self.losses.add("usage of answers copied by a fork; the session it left counts it")
            by = (result.model, result.provider, result.finish, result.evidence, usage)
            yield EntryRecord(result.message, None, None, None, unit.at, *by)
        names = self._unit_by_uuid[unit.names].start if unit.names in self._unit_by_uuid else None
        for payload, at in (*unit.results, *unit.rest):
            yield EntryRecord(payload, refers_to=names, at=at)

    def _is_copy(self, line: TranscriptLine) -> bool:
        """Whether a line was copied from a session whose file is in the same folder."""
        source = copied_from(line)
        if source is None or self._folder is None or not source.replace("-", "").isalnum():
            return False
        return (self._folder / f"{source}.jsonl").is_file()

    def _after(self, unit: Unit) -> str | None:
        """Return the key of the last entry of the nearest converted ancestor."""
        uuid, visited = unit.parent, set[str]()
        while uuid is not None:
            result = self._unit_by_uuid.get(uuid)
            if result is not None and result is not unit:
                for skipped in visited:  # shorten the next search through these lines
                    self._unit_by_uuid.setdefault(skipped, result)
                return result.end
            if uuid not in self.parents or uuid in visited:
                return uuid  # a missing line, or a cycle
            visited.add(uuid)
            uuid = self.parents[uuid]
        return START if self._is_tree else None


def _with_details(message: Message, line: TranscriptLine) -> Message:
    """Add what the tool stored about a result: patches, exit codes, times."""
    details = line.get("toolUseResult")
    if not message.results or not isinstance(details, dict | list) or not is_storable(details):
        return message
    parts = tuple(
        replace(part, details={NAME: details}) if isinstance(part, ToolResult) else part
        for part in message.parts
    )
    return replace(message, parts=parts)
