"""Claude Code: one file of JSON lines per session, each line behind its parent; sub-agents in files of their own.

The lines of one answer are put together again, and its results with it, whichever of its lines they hang on: tools run
while an answer still streams. Lines hang on lines nobody said, so a parent is the nearest one that was. What a line says
`claude_lines` knows.
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
BESIDE = "agent-*.jsonl"
BELOW = "subagents"
INNER = "subagent"
KEPT_FOR_ITSELF = "a bookkeeping line of the tool"


def read_sessions(source: str) -> Iterator[SessionRecord]:
    """Every session of a folder with the sub-agents it started; a sub-agent whose session is gone stands alone."""
    beside: dict[Path, dict[str, list[Path]]] = {}
    is_asked_for = Path(source).expanduser().is_file()
    for path in find_files(source, NAME):
        main = _main_of(path)
        if main is not None and main.is_file() and not is_asked_for:
            continue  # it comes with its session
        if main is not None:
            told = _session(path, f"{main.stem}-{path.stem}", is_agent=True)
        else:
            if path.parent not in beside:
                beside[path.parent] = _beside(path.parent)
            below = sorted((path.with_suffix("") / BELOW).rglob("*.jsonl"))
            told = _session(path, path.stem, [*beside[path.parent].get(path.stem, ()), *below])
        if told.entries or told.tasks or is_asked_for or set(told.losses) - {KEPT_FOR_ITSELF}:
            yield told  # else it is one of the many files without a conversation: titles, backups


def _main_of(path: Path) -> Path | None:
    """The file of the session a sub-agent's file belongs to; None if it is no sub-agent's."""
    if BELOW in path.parts:
        at = len(path.parts) - 1 - path.parts[::-1].index(BELOW)
        return Path(*path.parts[: at - 1], f"{path.parts[at - 1]}.jsonl") if at else None
    return path.with_name(f"{_session_id(path)}.jsonl") if path.match(BESIDE) else None


def _beside(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(BESIDE)):
        found.setdefault(_session_id(path), []).append(path)
    return found


def _session_id(path: Path) -> str:
    """Of the session a sub-agent's lines name, if they do; no path may be made of it."""
    named = (line.get("sessionId") for line in read_objects(path, LossReport()))
    found = next((one for one in named if isinstance(one, str)), "")
    return found if found.replace("-", "").replace("_", "").isalnum() else "unknown"


def _session(path: Path, source: str, tasks: Iterable[Path] = (), *, is_agent: bool = False) -> SessionRecord:
    losses = LossReport()
    main, sides = Tree(losses), Sides(losses)
    for line in read_objects(path, losses):
        is_side = line.get("isSidechain") is True and not is_agent
        (sides.tree_of(line) if is_side else main).add(line)
    children = [_foreign(tree, f"{source}-{name}", INNER) for name, tree in sides.trees.items() if tree.units]
    children.extend(_session(task, f"{source}-{_name(task)}", is_agent=True) for task in tasks)
    about = _metadata(path, losses) if is_agent else {}
    agent = clean_text(about.get("agentType")) or (INNER if is_agent else NAME)
    told = _foreign(main, source, agent, clean_text(about.get("description")))
    return replace(told, losses=losses, tasks=tuple(children))


def _name(path: Path) -> str:
    below = path.parts[path.parts.index(BELOW) + 1 :] if BELOW in path.parts else path.parts[-1:]
    return "-".join(below).removesuffix(".jsonl")


def _metadata(path: Path, losses: LossReport) -> dict[str, Any]:
    place = path.with_name(f"{path.stem}.meta.json")
    try:
        found = msgspec.json.decode(place.read_bytes())
    except FileNotFoundError:
        return {}
    except (*INVALID_JSON, OSError):
        losses.add("the metadata of a sub-agent", place.name)
        return {}
    return found if isinstance(found, dict) else {}


def _foreign(tree: Tree, source: str, agent: str, title: str | None = None) -> SessionRecord:
    told = tuple(tree.told())
    seeds = (system(tree.prompt),) if tree.prompt else ()
    leaf = None if tree.last is None else tree.last.end
    titled = title or tree.title
    return SessionRecord(
        NAME, source, told, seeds, leaf, {}, titled, agent, tags=tree.tags, losses=LossReport()
    )


class Sides:
    """The sub-agents that older versions wrote into the file of their session, as trees with roots of their own."""

    def __init__(self, losses: LossReport) -> None:
        self.trees: dict[str, Tree] = {}
        self._losses = losses
        self._by_line: dict[object, Tree] = {}

    def tree_of(self, line: TranscriptLine) -> Tree:
        uuid, agent = line.get("uuid"), line.get("agentId")
        tree = self._by_line.get(parent_uuid(line))
        if tree is None:
            named = agent if isinstance(agent, str) and agent.isalnum() else f"side-{len(self.trees) + 1}"
            tree = self.trees.setdefault(named, Tree(self._losses))
        if isinstance(uuid, str):
            self._by_line.setdefault(uuid, tree)
        return tree


class Unit(Struct):
    """What is told in one piece: an answer with its results, or one line that somebody said."""

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


class Tree:
    """The lines of one conversation, as units behind each other."""

    def __init__(self, losses: LossReport) -> None:
        self.losses = losses
        self.units: list[Unit] = []
        self.parents: dict[str, str | None] = {}
        self.tags: dict[str, str] = {}
        self.prompt: str | None = None
        self.last: Unit | None = None
        self._of: dict[str, Unit] = {}
        self._answers: dict[str, Unit] = {}
        self._calls: dict[str, Unit] = {}
        self._boundary: TranscriptLine | None = None
        self._shown: str | None = None
        self._titles: dict[str, tuple[str, object]] = {}
        self._kinds: set[str] = set()
        self._is_tree = False

    @property
    def title(self) -> str | None:
        """The name a person gave it, else the one the tool gave it; old ones name a line, perhaps of another file."""
        for kind in reversed(TITLES):
            name, leaf = self._titles.get(kind, (None, None))
            if name and (kind != "summary" or leaf in self.parents):
                return name
        return None

    def add(self, line: TranscriptLine) -> None:
        uuid = line.get("uuid") if isinstance(line.get("uuid"), str) else None
        if uuid is not None and uuid in self.parents:
            return  # at a second compaction the tool writes lines again that are there
        self._note_facts(line)
        unit = self._unit(line, uuid or f"line-{len(self.units) + 1}")
        if uuid is not None:
            self.parents[uuid] = parent_uuid(line)
            if unit is not None:
                self._of[uuid] = unit
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
            return self._said(line, uid)
        if kind == "attachment":
            return self._attached(line, uid)
        if kind == "system" and line.get("subtype") == "microcompact_boundary":
            self.losses.add("tool results the tool removed from the context; they stay in it here")
        elif kind in BOOKKEEPING:
            self._pass_over(KEPT_FOR_ITSELF, kind)
        elif kind not in TITLES:
            self._pass_over("a line of unknown type", kind)
        return None

    def _pass_over(self, what: str, kind: str) -> None:
        self.losses.add(what, "" if kind in self._kinds else kind)
        self._kinds.add(kind)

    def _answer(self, line: TranscriptLine, name: str, uid: str) -> Unit:
        unit = self._answers.get(name)
        if unit is None:
            unit = self._answers[name] = self._begun(line, uid)
        unit.answer.append(line)
        for block in content_blocks(line):
            if (
                isinstance(block, dict)
                and block.get("type") == "tool_use"
                and isinstance(block.get("id"), str)
            ):
                self._calls[block["id"]] = unit
        return unit

    def _begun(self, line: TranscriptLine, uid: str) -> Unit:
        unit = Unit(uid, parent_uuid(line), parse_time(line.get("timestamp")))
        self.units.append(unit)
        return unit

    def _summary(self, line: TranscriptLine, uid: str) -> Unit | None:
        compaction = read_compaction(line, self._boundary)
        if compaction is None:
            self.losses.add("a blank summary", uid)
            return None
        unit = self._begun(line, uid)
        unit.rest.append((compaction, unit.at))
        unit.names = first_kept_uuid(self._boundary)
        if unit.parent is None and len(self.units) > 1:  # versions that did not say what it follows
            unit.parent = self.units[-2].uid
        self._boundary = None
        return unit

    def _said(self, line: TranscriptLine, uid: str) -> Unit | None:
        messages = [_with_details(message, line) for message in read_user_line(line, self.losses)]
        calls = (self._calls.get(message.results[0].call_id) for message in messages if message.results)
        unit = next((found for found in calls if found is not None), None)
        if not messages:
            return None
        unit = unit or self._begun(line, uid)
        at = parse_time(line.get("timestamp"))
        for message in messages:
            (unit.results if message.results else unit.rest).append((message, at))
        return unit

    def _attached(self, line: TranscriptLine, uid: str) -> Unit | None:
        prompt = system_prompt(line)
        payload = self._prompted(prompt) if prompt else read_attachment(line, self.losses)
        if payload is None:
            found = line.get("attachment")
            kind = str(found.get("type")) if isinstance(found, dict) else "none"
            if not prompt:
                self._pass_over("an attachment of unknown type, or without content for the model", kind)
            return None
        unit = self._begun(line, uid)
        unit.rest.append((payload, unit.at))
        return unit

    def _prompted(self, prompt: str) -> Settings | None:
        """The first is what the model saw before anything; another one holds from here on."""
        if self.prompt is None:
            self.prompt = self._shown = prompt
        if prompt == self._shown:
            return None
        self._shown = prompt
        return Settings(prompt=prompt)

    # -- telling -----------------------------------------------------------------------------------

    def told(self) -> Iterator[EntryRecord]:
        self._is_tree = any(self.parents.values())  # if no line says what it follows, each follows the last
        for unit in self.units:
            entries = list(self._entries(unit))
            for index, one in enumerate(entries):
                after = self._after(unit) if not index else None
                yield replace(one, key=f"{unit.uid}/{index}", after=after)

    def _entries(self, unit: Unit) -> Iterator[EntryRecord]:
        if unit.answer:
            found = read_answer(unit.answer, self.losses)
            by = (found.model, found.provider, found.finish, found.evidence, found.usage)
            yield EntryRecord(found.message, None, None, None, unit.at, *by)
        names = self._of[unit.names].start if unit.names in self._of else None
        for payload, at in (*unit.results, *unit.rest):
            yield EntryRecord(payload, refers_to=names, at=at)

    def _after(self, unit: Unit) -> str | None:
        """The key of what it follows: the end of the nearest line above that is told."""
        uuid, seen = unit.parent, set[str]()
        while uuid is not None:
            found = self._of.get(uuid)
            if found is not None and found is not unit:
                for passed in seen:  # who comes this way again need not go all of it
                    self._of.setdefault(passed, found)
                return found.end
            if uuid not in self.parents or uuid in seen:
                return uuid  # a line that is not there, or a ring
            seen.add(uuid)
            uuid = self.parents[uuid]
        return START if self._is_tree else None


def _with_details(message: Message, line: TranscriptLine) -> Message:
    """A result with what the tool kept of it for itself: patches, exit codes, times."""
    kept = line.get("toolUseResult")
    if not message.results or not isinstance(kept, dict | list) or not is_storable(kept):
        return message
    parts = tuple(
        replace(part, details={NAME: kept}) if isinstance(part, ToolResult) else part
        for part in message.parts
    )
    return replace(message, parts=parts)
