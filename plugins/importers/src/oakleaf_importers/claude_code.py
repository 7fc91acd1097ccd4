"""Import Claude Code: one JSON Lines file per session, each line after its parent; sub-agents in files of their own.

The lines of one answer are joined, with its results, whichever of its lines they follow: tools run while an answer still
streams. Parents may be bookkeeping lines, so an entry follows the nearest ancestor that was converted.
`formats.claude_code` reads single lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from oakleaf.core.codec import is_storable
from oakleaf.core.entries import Compaction, Note, Payload, Settings
from oakleaf.core.messages import Message, ToolResult, system
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import START, EntryRecord, LossReport, SessionRecord, unknown_note
from oakleaf_importers.formats.claude_code import (
    BOOKKEEPING,
    TITLES,
    TranscriptLine,
    answer_id,
    clean_text,
    content_blocks,
    copied_from,
    first_kept_uuid,
    is_boundary,
    is_summary,
    is_unfinished,
    line_kind,
    line_message,
    parent_uuid,
    read_agent_progress,
    read_answer,
    read_attachment,
    read_compaction,
    read_user_line,
    system_prompt,
)
from oakleaf_importers.formats.json_values import as_dict, parse_time
from oakleaf_importers.formats.jsonl import (
    SETTLING_SECONDS,
    WRITTEN_SECONDS,
    read_objects,
    read_optional_json,
    seconds_since_written,
)
from oakleaf_importers.formats.source_files import files_within, find_files, only_within
from oakleaf_importers.session_records import with_source_losses

NAME = "claude-code"
AGENT_FILES = "agent-*.jsonl"
AGENT_FOLDER = "subagents"
SUBAGENT = "subagent"
BOOKKEEPING_LINE = "a bookkeeping line of the tool"
CALL_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)


def read_sessions(source: str) -> Iterator[SessionRecord]:
    """Yield every session with the sub-agents; a sub-agent without a session becomes a session."""
    losses = LossReport()
    files = find_files(source, NAME, losses, "**/*.jsonl")
    is_single_file = Path(source).expanduser().is_file()
    yield from with_source_losses(NAME, _sessions(files, losses, is_single_file=is_single_file), losses)


def _source_of(root: Path, file: Path) -> Path | None:
    """Return the session file of a file, or the folder of an older sub-agent's file."""
    if file.suffix != ".jsonl":
        return None
    agents = next((folder for folder in file.parents if folder.name == AGENT_FOLDER), None)
    if agents is None:
        return file.parent if file.name.startswith("agent-") else file
    session = agents.parent.with_name(f"{agents.parent.name}.jsonl")
    return session if session.is_file() else file


IMPORTER = Importer(
    source="its projects folder, or one .jsonl file in it",
    sessions=read_sessions,
    default_paths=("~/.claude/projects",),
    source_of=_source_of,
    versions="1.0 to 2.1",
    checked=date(2026, 1, 21),
)


def _sessions(files: list[Path], losses: LossReport, *, is_single_file: bool) -> Iterator[SessionRecord]:
    agent_files: dict[Path, dict[str, list[Path]]] = {}
    links = losses if is_single_file else LossReport()  # those in a folder are counted already
    for path in files:
        main = _main_of(path)
        if main is not None and main.is_file() and not is_single_file:
            continue  # it is read with its session
        if main is not None:
            record = _session(path, f"{main.stem}-{path.stem}", is_agent=True)
        else:
            if path.parent not in agent_files:
                agent_files[path.parent] = _agent_files(path.parent, links)
            agent_paths = sorted((path.with_suffix("") / AGENT_FOLDER).rglob("*.jsonl"))
            agent_paths = only_within(path.parent, agent_paths, links)
            record = _session(path, path.stem, [*agent_files[path.parent].get(path.stem, ()), *agent_paths])
        is_silent = not (record.entries or record.tasks or record.unfinished)
        if not is_silent or is_single_file or set(record.losses) - {BOOKKEEPING_LINE}:
            yield record  # skip files without a conversation: titles, backups


def _main_of(path: Path) -> Path | None:
    """Return the session file of a sub-agent's file; None for any other file."""
    if AGENT_FOLDER in path.parts:
        at = len(path.parts) - 1 - path.parts[::-1].index(AGENT_FOLDER)
        return Path(*path.parts[: at - 1], f"{path.parts[at - 1]}.jsonl") if at else None
    return path.with_name(f"{_session_id(path)}.jsonl") if path.match(AGENT_FILES) else None


def _agent_files(folder: Path, losses: LossReport) -> dict[str, list[Path]]:
    result: dict[str, list[Path]] = {}
    for path in files_within(folder, losses, AGENT_FILES):
        result.setdefault(_session_id(path), []).append(path)
    return result


def _session_id(path: Path) -> str:
    """Return the session id in a sub-agent's lines, restricted to characters safe in a path."""
    named = (line.get("sessionId") for line in read_objects(path, LossReport()))
    result = next((name for name in named if isinstance(name, str)), "")
    return result if result.replace("-", "").replace("_", "").isalnum() else "unknown"


def _session(path: Path, source: str, tasks: Iterable[Path] = (), *, is_agent: bool = False) -> SessionRecord:
    losses, tasks = LossReport(), list(tasks)
    main, sidechains = Transcript(losses, path.parent), Sidechains(losses, {_name(task) for task in tasks})
    for line in read_objects(path, losses):
        if line.get("isSidechain") is True and not is_agent:
            sidechains.tree_of(line).add(line)
        elif line.get("type") == "progress" and sidechains.add_progress(line):
            main.skip(line)
        else:
            main.add(line)
    age = seconds_since_written(path)
    if age < WRITTEN_SECONDS:
        for tree in (main, *sidechains.trees.values()):
            tree.hold_back_unfinished(is_settling=age < SETTLING_SECONDS)
    children = [
        _record(tree, f"{source}-{name}", SUBAGENT) for name, tree in sidechains.trees.items() if tree.units
    ]
    children.extend(_session(task, f"{source}-{_name(task)}", is_agent=True) for task in tasks)
    about = path.with_name(f"{path.stem}.meta.json")
    metadata = read_optional_json(about, losses, "the metadata of a sub-agent") if is_agent else {}
    agent = clean_text(metadata.get("agentType")) or (SUBAGENT if is_agent else NAME)
    record = _record(main, source, agent, clean_text(metadata.get("description")))
    return replace(record, losses=losses, tasks=tuple(children))


def _name(path: Path) -> str:
    agent_paths = (
        path.parts[path.parts.index(AGENT_FOLDER) + 1 :] if AGENT_FOLDER in path.parts else path.parts[-1:]
    )
    return "-".join(agent_paths).removesuffix(".jsonl")


def _record(tree: Transcript, source: str, agent: str, title: str | None = None) -> SessionRecord:
    leaf, missing = tree.leaf, ("tool definitions", "options")
    return SessionRecord(
        NAME,
        source,
        tuple(tree.entries()),
        (system(tree.prompt),) if tree.prompt else (),
        None if leaf is None else leaf.end,
        title=title or tree.title,
        agent=agent,
        tags=tree.tags,
        missing=missing if tree.prompt else ("system prompt", *missing),
        unfinished=tree.unfinished,
    )


class Sidechains:
    """The sub-agents in the session's own file (some versions), each a tree."""

    def __init__(self, losses: LossReport, files: set[str]) -> None:
        self.trees: dict[str, Transcript] = {}
        self._losses, self._files = losses, files
        self._by_line: dict[object, Transcript] = {}

    def add_progress(self, line: TranscriptLine) -> bool:
        """Add the sub-agent's line within a line of progress; return False without a line, or for a sub-agent
        with a file.
        """
        progress = read_agent_progress(line)
        name = None if progress is None else f"agent-{progress.agent_id}"
        if progress is None or name is None or name in self._files:
            return False
        tree = self.trees.get(name)
        if tree is None:
            tree = self.trees[name] = Transcript(self._losses)
            if progress.prompt and line_kind(progress.line) != "user":
                tree.add(
                    {**progress.line, "type": "user", "uuid": None, "message": {"content": progress.prompt}}
                )
        tree.add(progress.line)
        return True

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
    """An answer with the results, or one converted line."""

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
        self._early: dict[str, list[tuple[Message, int | None]]] = {}
        """Results whose calls have not been read: of two lines written at once either may come first."""
        self.unfinished = 0

    @property
    def title(self) -> str | None:
        """The user's title, else the tool's. Old titles name a line, which may be in another file."""
        for kind in reversed(TITLES):
            name, leaf = self._titles.get(kind, (None, None))
            if name and (kind != "summary" or (isinstance(leaf, str) and leaf in self.parents)):
                return name
        return None

    def add(self, line: TranscriptLine) -> None:
        uuid = line.get("uuid")
        uuid = uuid if isinstance(uuid, str) else None
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

    @property
    def leaf(self) -> Unit | None:
        """The last line's unit, or a follower of the unit written before."""
        followers = {
            ancestor.uid: unit for unit in self.units if isinstance(ancestor := self._nearest(unit), Unit)
        }
        leaf, visited = self.last, set[str]()
        while leaf is not None and leaf.uid in followers and leaf.uid not in visited:
            visited.add(leaf.uid)
            leaf = followers[leaf.uid]
        return leaf

    def skip(self, line: TranscriptLine) -> None:
        """Pass over a line without content."""
        uuid = line.get("uuid")
        if isinstance(uuid, str):
            self.parents.setdefault(uuid, parent_uuid(line))

    def hold_back_unfinished(self, *, is_settling: bool) -> None:
        """Leave out an unfinished last answer: a later import adds the answer, in one piece and once.

        With `is_settling` also one that called tools without a result yet: another call may follow at once.
        """
        for index in reversed(range(len(self.units))):
            unit = self.units[index]
            if unit.answer:
                if is_unfinished(unit.answer) or (
                    is_settling and unit in self._calls.values() and not unit.results
                ):
                    del self.units[index:]
                    self.last = self.units[-1] if self.units else None
                    self.unfinished = 1
                return
            if any(_ends_answer(payload) for payload, _ in unit.rest):
                return

    def _note_facts(self, line: TranscriptLine) -> None:
        for tag, key in (("cwd", "cwd"), ("git_branch", "gitBranch")):
            if key in line and tag not in self.tags and (value := clean_text(line[key])):
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
            unit = self._new_unit(line, uid)
            unit.rest.append((unknown_note(NAME, kind, line, self.losses), unit.at))
            return unit
        return None

    def _count_loss(self, what: str, kind: str) -> None:
        self.losses.add(what, "" if kind in self._kinds else kind)
        self._kinds.add(kind)

    def _answer(self, line: TranscriptLine, name: str, uid: str) -> Unit:
        unit = self._answers.get(name)
        if unit is None:
            unit = self._answers[name] = self._new_unit(line, uid)
        unit.answer.append(line)
        blocks = content_blocks(line)
        for block in blocks:
            match block:
                case {"type": "tool_use", "id": str(call_id)}:
                    self._calls[call_id] = unit
                    unit.results += self._early.pop(call_id, ())
        if not blocks:
            self._count_loss("a message without content", ", ".join(sorted(map(str, line_message(line)))))
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
        if not messages and not content_blocks(line):
            self._count_loss("a message without content", ", ".join(sorted(map(str, line_message(line)))))
        at = parse_time(line.get("timestamp"))
        unit: Unit | None = None
        for message in messages:
            if not message.results:
                unit = unit or self._new_unit(line, uid)
                unit.rest.append((message, at))
                continue
            call_id = message.results[0].call_id
            owner = self._calls.get(call_id)
            if owner is None:
                self._early.setdefault(call_id, []).append((message, at))
            else:
                owner.results.append((message, at))
                unit = unit or owner
        return unit

    def _attachment(self, line: TranscriptLine, uid: str) -> Unit | None:
        prompt = system_prompt(line)
        payload = self._prompt_change(prompt) if prompt else read_attachment(line, self.losses)
        if payload is None:
            if not prompt:
                kind = str(as_dict(line.get("attachment")).get("type", "none"))
                self._count_loss("an attachment of unknown type, or without content for the model", kind)
            return None
        unit = self._new_unit(line, uid)
        unit.rest.append((payload, unit.at))
        return unit

    def _prompt_change(self, prompt: str) -> Settings | None:
        """Turn the first prompt into a seed, and a changed prompt into new settings."""
        if self.prompt is None:
            self.prompt = self._current_prompt = prompt
        if prompt == self._current_prompt:
            return None
        self._current_prompt = prompt
        return Settings(prompt=prompt)

    # -- entries -----------------------------------------------------------------------------------

    def entries(self) -> Iterator[EntryRecord]:
        self._is_tree = any(self.parents.values())  # if no line names a parent, each follows the previous one
        for call_id, results in self._early.items():
            self.losses.add("a tool result without an open call", call_id, len(results))
        for unit in self._parents_first():
            yield from self._entries(unit)

    def _entries(self, unit: Unit) -> Iterator[EntryRecord]:
        """Yield a unit's entries: only the first follows another unit."""
        after = self._after(unit)
        if unit.answer:
            result = read_answer(unit.answer, self.losses)
            usage = result.usage
            if usage is not None and self._is_copy(unit.answer[0]):
                usage = None
                self.losses.add("usage of answers copied by a fork; the session it left counts it")
            name = answer_id(unit.answer[0])
            call_id = name if name is not None and CALL_ID.fullmatch(name) else None
            by = (result.model, result.provider, result.finish, result.evidence, usage, result.units, call_id)
            payload: Payload = result.message
            if usage is not None and not result.message.parts:  # it said nothing, and was paid for
                payload, by = Note({NAME: "an answer without content"}), (*by[:2], None, None, *by[4:])
            yield EntryRecord(payload, unit.start, after, None, unit.at, *by)
        names = self._unit_by_uuid[unit.names].start if unit.names in self._unit_by_uuid else None
        for index, (payload, at) in enumerate((*unit.results, *unit.rest), bool(unit.answer)):
            yield EntryRecord(payload, f"{unit.uid}/{index}", None if index else after, names, at)

    def _parents_first(self) -> Iterator[Unit]:
        """Yield the units in the order of lines, each after the unit before."""
        done: set[str] = set()
        for unit in self.units:
            waiting: list[Unit] = []
            while unit.uid not in done:
                done.add(unit.uid)
                waiting.append(unit)
                parent = self._nearest(unit)
                if not isinstance(parent, Unit):
                    break
                unit = parent
            yield from reversed(waiting)

    def _is_copy(self, line: TranscriptLine) -> bool:
        """Whether a line was copied from a session whose file is in the same folder."""
        source = copied_from(line)
        if source is None or self._folder is None or not source.replace("-", "").isalnum():
            return False
        return (self._folder / f"{source}.jsonl").is_file()

    def _after(self, unit: Unit) -> str | None:
        """Return the key of the last entry of the nearest converted ancestor."""
        ancestor = self._nearest(unit)
        if isinstance(ancestor, Unit):
            return ancestor.end
        return ancestor or (START if self._is_tree else None)

    def _nearest(self, unit: Unit) -> Unit | str | None:
        """Return the nearest converted ancestor; the uuid of a missing line or a cycle; None without an ancestor."""
        uuid, visited = unit.parent, set[str]()
        while uuid is not None:
            result = self._unit_by_uuid.get(uuid)
            if result is not None and result is not unit:
                for skipped in visited:  # shorten the next search through these lines
                    self._unit_by_uuid.setdefault(skipped, result)
                return result
            if uuid not in self.parents or uuid in visited:
                return uuid
            visited.add(uuid)
            uuid = self.parents[uuid]
        return None


def _ends_answer(payload: Payload) -> bool:
    """Whether the line shows the answer before to be complete."""
    return isinstance(payload, Compaction) or (isinstance(payload, Message) and payload.role == "user")


def _with_details(message: Message, line: TranscriptLine) -> Message:
    """Add the tool's details of a result: patches, exit codes, times."""
    details = line.get("toolUseResult")
    if not message.results or not isinstance(details, dict | list) or not is_storable(details):
        return message
    parts = tuple(
        replace(part, details={NAME: details}) if isinstance(part, ToolResult) else part
        for part in message.parts
    )
    return replace(message, parts=parts)
