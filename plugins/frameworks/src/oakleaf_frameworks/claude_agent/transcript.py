"""One Claude Code transcript in a log: which lines it holds and as which entries, and how a batch of lines is appended.

Lines form units: an answer with its results, whose lines may come in any order, or one line of input. The index is derived
from the entries alone, so every process builds the same. A line that may not follow yet (a reminder while a call is open,
an answer whose end has not come) is stored in a note as pending and becomes a message when it may. A line that is not a
message, or one that the log cannot hold, stays in a note.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Compaction, Note, Payload, Settings
from oakleaf.core.messages import Message, tool_result
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import Cursor, advance
from oakleaf.core.usage import Call, Usage
from oakleaf.ext import Mirror, read
from oakleaf.ingest.records import LossReport
from oakleaf.session import Session
from oakleaf.wire import Answer
from oakleaf_frameworks.claude_agent.lines import (
    KEY,
    THINKING,
    CannotPack,
    NumberedLine,
    block_ids,
    lines_note,
    pack_lines,
    readable_line,
    record_of,
    stored_lines,
    uuid_of,
)
from oakleaf_frameworks.shared import UNKNOWN_RESULT, model_call, model_column, no_blob
from oakleaf_importers.formats.claude_code import (
    TITLES,
    TranscriptLine,
    answer_id,
    clean_text,
    content_blocks,
    copied_from,
    first_kept_uuid,
    is_boundary,
    is_summary,
    line_kind,
    line_message,
    parent_uuid,
    read_answer,
    read_attachment,
    read_compaction,
    read_user_line,
    system_prompt,
)

ROOT = ""
"""The unit before the first."""
STRAY = "stray"
"""In place of a unit when the leaf is not right after one."""


class LineGroup(Struct):
    """Lines that become entries together or wait together."""

    unit: str
    lines: list[NumberedLine]
    has_waited: bool = False

    @property
    def kind(self) -> str:
        return line_kind(self.lines[0].line)

    @property
    def is_complete(self) -> bool:
        """Whether an answer has a stop reason and, for `tool_use`, a call; other lines are always complete."""
        if self.kind != "assistant":
            return True
        stop_reasons = {
            str(reason)
            for numbered in self.lines
            if (reason := line_message(numbered.line).get("stop_reason"))
        }
        blocks = [block for numbered in self.lines for block in content_blocks(numbered.line)]
        kinds = [block.get("type") for block in blocks if isinstance(block, dict)]
        if not stop_reasons or not kinds or kinds[-1] in THINKING:
            return False
        return "tool_use" not in stop_reasons or "tool_use" in kinds


class TranscriptIndex:
    """A log's share of a transcript when the index is built; one `BatchWriter` updates the index from then on."""

    def __init__(self, session: Session) -> None:
        self.session, self.reader = session, read(session)
        self.next_number = 0
        self.units: dict[str, str] = {}
        """By uuid of a line its unit; of a line without entries, the unit of its nearest ancestor that has some."""
        self.call_units: dict[str, str] = {}
        self.first_seqs: dict[str, int] = {}
        self.ends: dict[str, Leaf] = {}
        self.written: set[str] = set()
        """The units that have entries."""
        self.pending: list[LineGroup] = []
        self.boundary: TranscriptLine | None = None
        self.prompt: str | None = None
        self.title: str | None = None
        self.tip: str | None = None
        """The unit at the leaf."""
        self._title_rank = 0
        self._build()

    def new_lines(self, lines: Iterable[TranscriptLine]) -> list[TranscriptLine]:
        """Return the lines missing in the log, each once. A line without a uuid is always new."""
        new: dict[str | int, TranscriptLine] = {}
        for line in lines:
            uuid = uuid_of(line)
            if uuid is None or uuid not in self.units:
                new.setdefault(len(new) if uuid is None else uuid, line)
        return list(new.values())

    def number(self, lines: Iterable[TranscriptLine]) -> list[NumberedLine]:
        numbered = [NumberedLine(number, line) for number, line in enumerate(lines, self.next_number)]
        self.next_number += len(numbered)
        return numbered

    def groups(self, lines: Iterable[NumberedLine]) -> list[LineGroup]:
        """Return pending and new groups, with the lines of each answer together."""
        groups, self.pending = self.pending, []
        answers = {group.unit: group for group in groups if group.kind == "assistant"}
        for numbered in lines:
            unit = self._unit(numbered.number, numbered.line)
            self.call_units |= dict.fromkeys(block_ids(numbered.line, "tool_use", "id"), unit)
            if unit in answers and line_kind(numbered.line) == "assistant":
                answers[unit].lines.append(numbered)
                continue
            group = LineGroup(unit, [numbered])
            groups.append(group)
            if group.kind == "assistant":
                answers[unit] = group
        return groups

    def parent_unit(self, line: TranscriptLine) -> str | None:
        """Return the unit before a line; None without a parent in the log."""
        parent = parent_uuid(line)
        if parent is None:
            return ROOT if "parentUuid" in line else None
        return self.units.get(parent)

    def is_on_path(self, unit: str) -> bool:
        end = self.ends.get(unit)
        ranges = self.reader.ranges() if end is not None else ()
        return any(end and r.branch == end.branch and r.first <= end.seq <= r.last for r in ranges)

    # -- recording lines ---------------------------------------------------------------------------

    def assign(self, unit: str, line: TranscriptLine) -> None:
        uuid = uuid_of(line)
        if uuid is not None:
            self.units[uuid] = unit

    def add_entry(self, unit: str, leaf: Leaf) -> None:
        self.written.add(unit)
        self.first_seqs.setdefault(unit, leaf.seq)
        if unit not in self.ends or self.ends[unit].seq < leaf.seq:
            self.ends[unit] = leaf
        self.tip = unit

    def add_without_entry(self, line: TranscriptLine) -> None:
        """Record a line without a message: later lines follow the line's parent."""
        parent = self.parent_unit(line)
        self.assign((self.tip or ROOT) if parent is None else parent, line)
        self.boundary = line if is_boundary(line) else self.boundary
        kind = line_kind(line)
        title = clean_text(line.get(TITLES[kind])) if kind in TITLES else None
        rank = list(TITLES).index(kind) if kind in TITLES else 0
        if title and rank >= self._title_rank:
            self.title, self._title_rank = title, rank

    def _unit(self, number: int, line: TranscriptLine) -> str:
        """Return the unit of a line with a message."""
        if line_kind(line) == "assistant":
            return f"answer {answer_id(line) or uuid_of(line) or number}"
        call_ids = block_ids(line, "tool_result", "tool_use_id")
        units = (self.call_units.get(call_id) for call_id in call_ids)
        return next((unit for unit in units if unit), uuid_of(line) or f"line {number}")

    # -- building the index ------------------------------------------------------------------------

    def _build(self) -> None:
        lines: dict[int, tuple[TranscriptLine, bool]] = {}
        leaves: dict[int, list[Leaf]] = {}
        tails: dict[Leaf, Leaf] = {}
        last = Leaf(0, 0)
        for entry in self.session.entries():
            record, leaf = record_of(entry), Leaf(entry.branch, entry.seq)
            is_note = isinstance(entry.payload, Note)
            last = last if is_note and last.branch == leaf.branch else leaf
            tails[last] = leaf  # notes after an entry are part of where its unit ends
            is_pending = "pending" in record
            lines |= {number: (line, is_pending) for number, line in stored_lines(entry, no_blob)}
            if "shows" in record:  # the next entry represents this line
                leaves.setdefault(record["shows"], []).append(Leaf(entry.branch, entry.seq + is_note))
            elif not is_note:
                for number in record.get("noted_numbers", record.get("numbers", ())):
                    leaves.setdefault(number, []).append(leaf)
            if isinstance(entry.payload, Settings):
                self.prompt = entry.payload.prompt
        self._add_lines(lines, leaves)
        self.next_number = max(lines, default=-1) + 1
        on_path = [(end.seq, unit) for unit, end in self.ends.items() if self.is_on_path(unit)]
        self.ends |= {unit: tails.get(end, end) for unit, end in self.ends.items()}
        self.tip = max(on_path)[1] if on_path else None
        if self.ends and (self.tip is None or self.ends[self.tip] != self.session.leaf):
            self.tip = STRAY  # another writer has moved the leaf or appended

    def _add_lines(
        self, lines: dict[int, tuple[TranscriptLine, bool]], leaves: dict[int, list[Leaf]]
    ) -> None:
        pending: list[NumberedLine] = []
        for number in sorted(lines):
            line, is_pending = lines[number]
            unit = self._unit(number, line)
            self.call_units |= dict.fromkeys(block_ids(line, "tool_use", "id"), unit)
            for leaf in leaves.get(number, ()):
                self.add_entry(unit, leaf)
            if number in leaves or is_pending:
                self.assign(unit, line)
            else:
                self.add_without_entry(line)
            if is_pending and number not in leaves:
                pending.append(NumberedLine(number, line, is_stored=True))
        self.pending = self.groups(pending)
        for group in self.pending:
            group.has_waited = True


def transcript_lines(session: Session) -> list[TranscriptLine]:
    """Return every line of a transcript, in order of arrival."""
    blobs = read(session).blob
    lines = (numbered for entry in session.entries() for numbered in stored_lines(entry, blobs))
    return [line for _, line in sorted(lines, key=lambda pair: pair[0])]


# -- writing a batch -------------------------------------------------------------------------------


class ParsedGroup(Struct, frozen=True):
    """A group's entries, and the answer of the first entry."""

    payloads: tuple[Payload, ...] = ()
    answer: Answer | None = None

    @property
    def result_ids(self) -> set[str]:
        messages = [payload for payload in self.payloads if isinstance(payload, Message)]
        return {result.call_id for message in messages for result in message.results}


class BatchWriter:
    """Appends one batch of lines. With `parses=False` every line is stored unchanged and none becomes a message.

    Lines copied from the sessions in `sources` cost nothing here: their calls are counted there.
    """

    def __init__(self, index: TranscriptIndex, *, parses: bool = True, sources: Collection[str] = ()) -> None:
        self._sources = sources
        self.index, self.session, self.parses = index, index.session, parses
        self._mirror = Mirror(index.session)
        self.cursor: Cursor = index.reader.cursor
        self._drafts: list[Draft] = []
        self._calls: list[Call] = []
        self._units: list[tuple[str, int]] = []
        self._unchanged: list[NumberedLine] = []
        self._deferred: list[tuple[LineGroup, ParsedGroup]] = []

    def write(self, lines: Sequence[NumberedLine], state: dict[str, Any] | None = None) -> None:
        title = self.index.title
        groups = [(group, self._parse(group)) for group in self.index.groups(lines)]
        last = next((group for group, parsed in reversed(groups) if parsed.payloads), None)
        for group, parsed in groups:
            if not parsed.payloads:
                self._store_unchanged(group)
            elif (group is last and not group.is_complete) or not self._write_group(group, parsed):
                group.has_waited = True
                self._deferred.append((group, parsed))
            else:
                self._write_deferred()
        self._store_deferred()
        self._add_note(None if state is None else {KEY: state})
        self._flush({} if title == self.index.title else {"title": self.index.title})

    def _parse(self, group: LineGroup) -> ParsedGroup:
        if not self.parses:
            return ParsedGroup()
        losses = LossReport()  # unused: no line is lost
        lines = [readable_line(numbered.line) for numbered in group.lines]
        line = lines[0]
        if group.kind == "assistant":
            answer = read_answer(lines, losses)
            return ParsedGroup((answer.message,), answer)
        if is_summary(line):
            summary = read_compaction(line, None)  # the boundary before it may be in this batch
            return ParsedGroup() if summary is None else ParsedGroup((summary,))
        if group.kind == "user":
            return ParsedGroup(tuple(read_user_line(line, losses)))
        prompt = system_prompt(line)
        if prompt is not None and prompt != self.index.prompt:
            self.index.prompt = prompt
            return ParsedGroup((Settings(prompt=prompt),))
        message = read_attachment(line, losses)
        return ParsedGroup() if message is None else ParsedGroup((message,))

    # -- groups that become entries ----------------------------------------------------------------

    def _write_group(self, group: LineGroup, parsed: ParsedGroup) -> bool:
        """Write a group's entries; return False if the entries may not follow yet."""
        if parsed.result_ids:
            return self._write_results(group, parsed)
        parent, continues = self.index.parent_unit(group.lines[0].line), self._continues(group, parsed)
        if group.has_waited and not continues and parent not in (None, self.index.tip):
            return False  # the conversation continued on another branch: a reminder does not move it back
        self._move_after(parent)
        if self.cursor.open_calls and not continues:
            return False
        self._close_calls()
        self._add_entries(group, parsed)
        return True

    def _write_results(self, group: LineGroup, parsed: ParsedGroup) -> bool:
        """Write results of open calls. A result without a call, open or pending, stays a line."""
        if parsed.result_ids <= {call.call.id for call in self.cursor.open_calls}:
            self._add_entries(group, parsed)
            return True
        if group.unit in {deferred.unit for deferred, _ in self._deferred}:
            return False
        self._store_unchanged(group)
        return True

    def _continues(self, group: LineGroup, parsed: ParsedGroup) -> bool:
        """Whether the conversation continued without the open results: a new input, answer or summary."""
        first = parsed.payloads[0]
        if isinstance(first, Message) and first.role == "assistant":
            return group.unit not in self.index.written
        return isinstance(first, Compaction) or (isinstance(first, Message) and first.role == "user")

    def _close_calls(self) -> None:
        """Give every open call an explicit result. What waited for them is written then, and may open others."""
        while self.cursor.open_calls:
            for call in self.cursor.open_calls:
                self._add(Draft(tool_result(call.call.id, UNKNOWN_RESULT, error=True, outcome="unknown")))
            self._write_deferred()

    def _write_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for group, parsed in deferred:
            if not self._write_group(group, parsed):
                self._deferred.append((group, parsed))

    def _move_after(self, unit: str | None) -> None:
        """Move the leaf to the end of a unit."""
        index = self.index
        if unit is None or index.tip is None or unit == index.tip:
            return
        self._flush()
        leaf = index.reader.leaf_at(0) if unit == ROOT else index.ends.get(unit)
        if leaf is not None:
            self._mirror.move(leaf)
            self.cursor, index.tip = index.reader.cursor, unit or None

    def _add_entries(self, group: LineGroup, parsed: ParsedGroup) -> None:
        first = parsed.payloads[0]
        for numbered in group.lines:
            self.index.assign(group.unit, numbered.line)
        if isinstance(first, Compaction | Settings):
            self._add_without_details(group, first)
        else:
            details = self._details(group, parsed)
            answer = parsed.answer or Answer(Message("user"))
            is_copy = copied_from(group.lines[0].line) in self._sources
            if answer.usage is not None and group.unit not in self.index.written and not is_copy:
                self._calls.append(self._call(answer, answer.usage))
            for payload in parsed.payloads:
                if isinstance(payload, Message):
                    message = replace(payload, details=details)
                    self._add(Draft(message, answer.model, answer.finish, answer.evidence), group.unit)
        self.index.written.add(group.unit)
        self.index.tip = group.unit

    def _add_without_details(self, group: LineGroup, payload: Compaction | Settings) -> None:
        """Add an entry of a kind without details: the note before the entry holds the line."""
        if isinstance(payload, Compaction):
            self._flush()
            payload = read_compaction(readable_line(group.lines[0].line), self.index.boundary) or payload
            unit = self.index.units.get(first_kept_uuid(self.index.boundary) or "", "")
            is_on_path = self.index.is_on_path(unit)
            first_kept = self.index.first_seqs[unit] if is_on_path else self.cursor.seq + 2
            payload = replace(payload, first_kept=first_kept)
        self._add(lines_note(_not_yet_stored(group.lines), shows=group.lines[0].number))
        self._add(Draft(payload), group.unit)

    def _details(self, group: LineGroup, parsed: ParsedGroup) -> dict[str, Any]:
        numbers = [numbered.number for numbered in group.lines]
        first = parsed.payloads[0]
        evidence = None if parsed.answer is None else parsed.answer.evidence
        try:
            if len(parsed.payloads) > 1 or any(numbered.is_stored for numbered in group.lines):
                raise CannotPack
            assert isinstance(first, Message)
            packed = pack_lines([numbered.line for numbered in group.lines], first, evidence)
            return {KEY: {"numbers": numbers, "lines": packed}}
        except CannotPack:
            self._unchanged.extend(_not_yet_stored(group.lines))
            return {KEY: {"noted_numbers": numbers}}

    def _call(self, answer: Answer, usage: Usage) -> Call:
        after, (provider, model) = self.cursor.seq, (answer.provider, answer.model)
        return model_call(
            self.session, usage, provider, model, after=after, answer=after + 1, units=answer.units
        )

    # -- lines that stay lines ---------------------------------------------------------------------

    def _store_unchanged(self, group: LineGroup) -> None:
        for numbered in group.lines:
            self.index.add_without_entry(numbered.line)
        self._unchanged.extend(_not_yet_stored(group.lines))

    def _store_deferred(self) -> None:
        """Store the waiting lines in a note; the next batch tries again."""
        self.index.pending = [group for group, _ in self._deferred]
        new = [numbered for group in self.index.pending for numbered in _not_yet_stored(group.lines)]
        for group in self.index.pending:
            for numbered in group.lines:
                self.index.assign(group.unit, numbered.line)
            group.lines = [replace(numbered, is_stored=True) for numbered in group.lines]
        if new:
            self._add(lines_note(new, is_pending=True))

    def _add_note(self, state: dict[str, Any] | None) -> None:
        unchanged, self._unchanged = self._unchanged, []
        if unchanged:
            self._add(lines_note(unchanged, state))
        elif state is not None:
            self._add(Draft(Note({}, state)))

    def _add(self, draft: Draft, unit: str | None = None) -> None:
        self.cursor = advance(self.cursor, draft.payload).cursor
        self._drafts.append(draft)
        if unit is not None:
            self._units.append((unit, self.cursor.seq))

    def _flush(self, row: dict[str, Any] | None = None) -> None:
        """Commit the drafts. Lines stored unchanged are committed with the messages they became."""
        self._add_note(None)
        if not self._drafts:
            return
        columns = {**(model_column(self._calls) or {}), **(row or {})}
        appended = self._mirror.append(self._drafts, calls=self._calls, row=columns or None)
        tip = self.index.tip
        for unit, seq in self._units:
            self.index.add_entry(unit, Leaf(appended.leaf.branch, seq))
        self.index.tip = tip
        if tip is not None:
            self.index.ends[tip] = appended.leaf  # including the notes after it
        self._drafts, self._calls, self._units = [], [], []
        self.cursor = self.index.reader.cursor


def _not_yet_stored(lines: Iterable[NumberedLine]) -> list[NumberedLine]:
    return [numbered for numbered in lines if not numbered.is_stored]
