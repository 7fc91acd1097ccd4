"""Codex: a rollout file per session, a JSON line per item of OpenAI's Responses API and per event.

Knows which lines carry the conversation and which only repeat it for the screen, how usage is told (running totals, more
than once), how turns are rolled back, and how a sub-agent names the session that started it. Compressed rollouts (.zst)
are counted, not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...core.entries import Compaction, Evidence, Note, Payload
from ...core.messages import Message, Text, system, user
from ...core.usage import Usage
from ...formats.jsonl import find_files, parse_time, read_objects, text_or_none, token_counts
from ...formats.records import START, EntryRecord, LossReport, SessionRecord
from ...formats.responses_items import AnswerBuilder, read_input_item

DEEPEST = 20
"""Sub-agents below that many others stand as sessions of their own."""
INDEX = "session_index.jsonl"
INDEX_DEPTH = 6
"""How far above a rollout its home is looked for: sessions/YYYY/MM/DD/rollout-….jsonl."""
ADDED = (
    *("<environment_context>", "<user_instructions>", "<turn_aborted>", "<subagent_notification>", "<skill>"),
    *("<user_shell_command>", "<permissions instructions>", "<current_time_reminder>", "<model_switch>"),
    *(
        "<codex_internal_context",
        "<goal_context>",
        "<startup_context>",
        "<external_",
        "<image_resize_notice>",
    ),
    *("<recommended_plugins>", "<apps_instructions>", "<skills_instructions>", "<plugins_instructions>"),
    "# AGENTS.md instructions",
)
"""How what Codex says in the user's name begins."""
SHOWN = {
    "turn_context",
    "world_state",
    "security_risk_score",
    "inter_agent_communication_metadata",
    "event_msg",
}
TOKENS = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_input_tokens")

Line = dict[str, Any]
Counted = tuple[int, ...]
Children = Mapping[Path, Iterable[Path]]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    """Each with the sub-agents it started, if they are at the same source."""
    heads = {path: _head(path) for path in find_files(source, "codex", "rollout-*.jsonl")}
    by_thread = {_thread(path, head): path for path, head in heads.items()}
    children: dict[Path, list[Path]] = {}
    for path, head in heads.items():
        parent = by_thread.get(_parent(head) or "")
        if parent is not None and parent != path:
            children.setdefault(parent, []).append(path)
    started = {child for below in children.values() for child in below}
    packed, titles = _packed(source), _titles(next(iter(heads)))
    seen: set[Path] = set()
    for path in (*(path for path in heads if path not in started), *heads):  # a ring of parents has no root
        if path not in seen:
            told = _told(path, children, titles, seen)
            if told is not None:
                told.losses.merge(packed)
                packed = LossReport()
                yield told


def _told(
    path: Path, children: Children, titles: Mapping[str, str], seen: set[Path], depth: int = 0
) -> SessionRecord | None:
    """None if nobody has said anything yet."""
    seen.add(path)
    rollout = Rollout(path)
    own = children.get(path, ()) if depth < DEEPEST else ()
    below = [_told(child, children, titles, seen, depth + 1) for child in own if child not in seen]
    tasks = tuple(task for task in below if task is not None)
    return rollout.foreign(tasks, titles) if rollout.told or tasks else None


def _head(path: Path) -> Line:
    return next((_payload(line) for line in read_objects(path, LossReport()) if _is_meta(line)), {})


def _is_meta(line: Line) -> bool:
    """The first versions wrote it bare, as they did all lines."""
    return line.get("type") == "session_meta" or ("type" not in line and "id" in line and "timestamp" in line)


def _payload(line: Line) -> Line:
    found = line.get("payload", line)
    return found if isinstance(found, dict) else {}


def _thread(path: Path, head: Line) -> str:
    return text_or_none(head.get("id")) or path.stem


def _parent(head: Line) -> str | None:
    spawned = head.get("source")
    for name in ("subagent", "thread_spawn"):
        spawned = spawned.get(name) if isinstance(spawned, dict) else None
    named = spawned.get("parent_thread_id") if isinstance(spawned, dict) else None
    return text_or_none(head.get("parent_thread_id")) or text_or_none(named)


def _packed(place: str) -> LossReport:
    losses = LossReport()
    where = Path(place).expanduser()
    for path in where.rglob("rollout-*.jsonl.zst") if where.is_dir() else ():
        losses.add("a compressed session; decompress it with zstd -d and import it again", path.name)
    return losses


class Rollout:
    """One file, read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.losses = LossReport()
        self.head: Line | None = None
        self.told: list[EntryRecord] = []
        self.seeds: list[Message] = []
        self._answering = AnswerBuilder(self.losses)
        self._said_at: int | None = None
        self._model: str | None = None
        self._line: list[tuple[str, bool]] = []
        """The keys of the path, and whether each is an input."""
        self._has_moved = False
        self._open: set[str] = set()
        self._held: list[tuple[Message, int | None]] = []
        """What was said while calls were open. Codex writes it before their results, no provider takes it there."""
        self._total: Counted = (0,) * len(TOKENS)
        self._unpaid: int | None = None
        for line in read_objects(path, self.losses):
            self._read(line)
        self._close()
        self._release()

    def foreign(self, tasks: tuple[SessionRecord, ...], titles: Mapping[str, str]) -> SessionRecord:
        head = self.head or {}
        tags = {"cwd": text_or_none(head.get("cwd")), "forked_from": text_or_none(head.get("forked_from_id"))}
        if isinstance(head.get("history_base"), dict):
            self.losses.add("the beginning, which is in another rollout file", self.path.name)
        thread = _thread(self.path, head)
        return SessionRecord(
            "codex",
            thread,
            tuple(self.told),
            tuple(self._prompt() + self.seeds),
            leaf=(self._line[-1][0] if self._line else START) if self._has_moved else None,
            title=titles.get(thread),
            agent=text_or_none(head.get("agent_role")) or "codex",
            started_at=parse_time(head.get("timestamp")),
            tags={name: value for name, value in tags.items() if value},
            losses=self.losses,
            tasks=tasks,
        )

    def _prompt(self) -> list[Message]:
        head = self.head or {}
        base = head.get("base_instructions")
        said = (
            text_or_none(base.get("text"))
            if isinstance(base, dict)
            else text_or_none(head.get("instructions"))
        )
        return [system(said)] if said else []

    # -- lines -------------------------------------------------------------------------------------

    def _read(self, line: Line) -> None:
        payload, kind = _payload(line), text_or_none(line.get("type"))
        at = parse_time(line.get("timestamp"))
        if _is_meta(line):
            self.head = payload if self.head is None else self.head  # a fork repeats the one it came from
        elif kind == "event_msg":
            self._read_event(payload, at)
        elif kind == "turn_context":
            self._model = text_or_none(payload.get("model")) or self._model
        elif kind == "compacted":
            self._read_compacted(payload, at)
        elif kind == "inter_agent_communication":
            self._hear(payload.get("author"), payload.get("content"), at)
        elif kind == "response_item" or ("payload" not in line and kind is not None):
            self._read_item(payload, at)
        elif kind not in SHOWN and "record_type" not in line:
            self.losses.add("a line of unknown type", kind or self.path.name)

    def _read_item(self, item: Line, at: int | None) -> None:
        kind = item.get("type", "message")
        if kind in ("compaction", "compaction_summary", "context_compaction"):
            self.losses.add("an encrypted summary; the context keeps the full history instead")
        elif kind == "agent_message":
            self._hear(item.get("author"), _texts(item.get("content")), at)
        elif kind == "ghost_snapshot":
            self.losses.add("a snapshot of the files, which is in git")
        elif self._answering.add(item):
            self._said_at = at
        else:
            self._close()
            for message in read_input_item(item, self.losses):
                self._hear_message(message, at)

    def _hear_message(self, message: Message, at: int | None) -> None:
        if message.role != "tool" and self._open:
            self._held.append((message, at))
            return
        is_added = message.role == "system" or (message.role == "user" and _is_added(message))
        if is_added and not self.told:
            self.seeds.append(message)
        elif is_added:
            texts = tuple(part for part in message.parts if isinstance(part, Text))
            self._add(Message("system", texts), at)
        else:
            self._add(message, at)
        if message.role == "tool":
            self._open.difference_update(result.call_id for result in message.results)
            if not self._open:
                self._release()

    def _release(self) -> None:
        """Say what was held back."""
        self._open.clear()
        held, self._held = self._held, []
        for message, at in held:
            self._hear_message(message, at)

    def _hear(self, author: object, said: object, at: int | None) -> None:
        """What another agent of the same session wrote to this one."""
        self._close()
        if isinstance(said, str) and said.strip():
            self._hear_message(user(f"From {author}:\n\n{said}" if isinstance(author, str) else said), at)
        else:
            self.losses.add("an encrypted message between agents")

    def _read_event(self, event: Line, at: int | None) -> None:
        kind = event.get("type")
        if kind == "token_count":
            self._read_usage(event.get("info"), at)
        elif kind == "thread_rolled_back":
            self._roll_back(event.get("num_turns"))

    def _read_usage(self, info: object, at: int | None) -> None:
        """Totals that run on; told again with every change of the rate limits."""
        if not isinstance(info, dict):
            return
        self._close()
        total = token_counts(info.get("total_token_usage"), TOKENS)
        if total is None:
            self.losses.add("usage that is not a count of tokens")
            return
        grown = tuple(new - old for new, old in zip(total, self._total, strict=True))
        if min(grown) < 0:  # another process began to count anew
            grown = token_counts(info.get("last_token_usage"), TOKENS) or total
        self._total = total
        if any(grown):
            self._pay(Usage(*grown), at)

    def _pay(self, usage: Usage, at: int | None) -> None:
        if self._unpaid is None:
            self._add(Note({"codex": "a model call without an answer"}), at, usage=usage)
        else:
            self.told[self._unpaid] = replace(self.told[self._unpaid], usage=usage)
            self._unpaid = None

    def _roll_back(self, turns: object) -> None:
        self._close()
        self._release()
        inputs = [index for index, (_, is_input) in enumerate(self._line) if is_input]
        if isinstance(turns, int) and turns > 0 and inputs:
            del self._line[inputs[max(0, len(inputs) - turns)] :]
            self._has_moved, self._unpaid = True, None

    def _read_compacted(self, payload: Line, at: int | None) -> None:
        """What the model saw from there on: the inputs that were kept word for word, and the summary."""
        self._close()
        self._release()
        said = text_or_none(payload.get("message"))
        kept = payload.get("replacement_history")
        if isinstance(kept, list):
            items = [item for item in kept if isinstance(item, dict)]
            if any("compaction" in str(item.get("type")) for item in items):
                self.losses.add("an encrypted summary; the context keeps the full history instead")
                return
            heard = [
                message
                for item in items
                for message in read_input_item(item, LossReport())
                if message.role == "user"
            ]
            said = "\n\n".join(message.text for message in heard if not _is_added(message)) or said
        if said:
            self._add(Compaction(said, 0, replaces_earlier=True), at)

    # -- telling -----------------------------------------------------------------------------------

    def _close(self) -> None:
        said = self._answering.finish()
        if said is not None:
            self._release()
            self._open = {call.id for call in said.message.calls}
            evidence = said.evidence if self._provider in (None, "openai") else None
            self._unpaid = len(self.told)
            self._add(said.message, self._said_at, evidence)

    @property
    def _provider(self) -> str | None:
        return text_or_none((self.head or {}).get("model_provider"))

    def _add(
        self,
        payload: Payload,
        at: int | None,
        evidence: Evidence | None = None,
        usage: Usage | None = None,
    ) -> None:
        key = str(len(self.told) + 1)
        after = self._line[-1][0] if self._line else START
        role = payload.role if isinstance(payload, Message) else None
        by_model = role == "assistant" or usage is not None
        told = EntryRecord(
            payload, key, after if self._has_moved else None, at=at, evidence=evidence, usage=usage
        )
        if by_model:
            told = replace(told, model=self._model, provider=self._provider or "openai")
        self.told.append(told)
        self._line.append((key, role == "user"))


def _is_added(message: Message) -> bool:
    """Whether Codex wrote it in the user's name."""
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    return bool(texts) and all(said.lstrip().startswith(ADDED) for said in texts)


def _texts(content: object) -> str | None:
    pieces = content if isinstance(content, list) else []
    return "\n".join(
        piece["text"] for piece in pieces if isinstance(piece, dict) and text_or_none(piece.get("text"))
    )


def _titles(path: Path) -> dict[str, str]:
    """The names people gave, by thread; the last one counts."""
    for folder in path.absolute().parents[:INDEX_DEPTH]:
        if (folder / INDEX).is_file():
            lines = read_objects(folder / INDEX, LossReport())
            named = ((text_or_none(line.get("id")), text_or_none(line.get("thread_name"))) for line in lines)
            return {thread: name for thread, name in named if thread and name}
    return {}
