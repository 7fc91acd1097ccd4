"""A batch of transcript lines on its way into the log: told as messages, each where it may stand.

What cannot stand yet (a reminder while a call is open, an answer whose end has not come) waits, durable in a note, and is
told when it can. What is no message, or none that the log can hold, stays in a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...core.drafts import Draft
from ...core.entries import Compaction, Note, Payload, Settings
from ...core.messages import Message, tool_result
from ...core.tree import Leaf
from ...core.turns import Cursor, advance
from ...core.usage import Call
from ...formats.claude_code import (
    first_kept_uuid,
    is_summary,
    read_answer,
    read_attachment,
    read_compaction,
    read_user_line,
    system_prompt,
)
from ...formats.records import LossReport
from ...models.prices import price
from ...wire import Answer
from .lines import Unpackable, packed
from .mirror import ROOT, Mirror, Numbered, Piece
from .notes import NAME, beside, noted, readable, telling

CUT_OFF = "[no result was recorded before the conversation went on: this call may or may not have happened]"


class Spoken(Struct, frozen=True):
    """What a piece says: entries, and what is known of the making of the first."""

    payloads: tuple[Payload, ...] = ()
    answer: Answer | None = None

    @property
    def results(self) -> set[str]:
        messages = [one for one in self.payloads if isinstance(one, Message)]
        return {result.call_id for message in messages for result in message.results}


class Writing:
    """One batch. `is_told` False keeps every line whole and tells none."""

    def __init__(self, mirror: Mirror, *, is_told: bool = True) -> None:
        self.mirror, self.log, self.is_told = mirror, mirror.log, is_told
        self.cursor: Cursor = mirror.log.cursor
        self._drafts: list[Draft] = []
        self._calls: list[Call] = []
        self._units: list[tuple[str, int]] = []
        self._whole: list[Numbered] = []
        self._deferred: list[tuple[Piece, Spoken]] = []

    def run(self, numbered: Sequence[Numbered], state: dict[str, Any] | None = None) -> None:
        title = self.mirror.title
        spoken = [(piece, self._read(piece)) for piece in self.mirror.pieces(numbered)]
        last = next((piece for piece, says in reversed(spoken) if says.payloads), None)
        for piece, says in spoken:
            if not says.payloads:
                self._pass_over(piece)
            elif (piece is last and not piece.is_complete) or not self._tell(piece, says):
                piece.has_waited = True
                self._deferred.append((piece, says))
            else:
                self._drain()
        self._keep_deferred()
        self._note(None if state is None else {NAME: state})
        self._flush({} if title == self.mirror.title else {"title": self.mirror.title})

    # -- reading -----------------------------------------------------------------------------------

    def _read(self, piece: Piece) -> Spoken:
        if not self.is_told:
            return Spoken()
        losses = LossReport()  # nothing is lost: the lines are kept
        lines = [readable(one.line) for one in piece.lines]
        line = lines[0]
        if piece.kind == "assistant":
            found = read_answer(lines, losses)
            return Spoken((found.message,), found)
        if is_summary(line):
            summary = read_compaction(line, None)  # the boundary before it may be of this batch
            return Spoken() if summary is None else Spoken((summary,))
        if piece.kind == "user":
            return Spoken(tuple(read_user_line(line, losses)))
        prompt = system_prompt(line)
        if prompt is not None and prompt != self.mirror.prompt:
            self.mirror.prompt = prompt
            return Spoken((Settings(prompt=prompt),))
        message = read_attachment(line, losses)
        return Spoken() if message is None else Spoken((message,))

    # -- telling -----------------------------------------------------------------------------------

    def _tell(self, piece: Piece, says: Spoken) -> bool:
        """False: it cannot stand yet."""
        if says.results:
            return self._tell_results(piece, says)
        above, goes_on = self.mirror.above(piece.lines[0].line), self._goes_on(piece, says)
        if piece.has_waited and not goes_on and above not in (None, self.mirror.tip):
            return False  # the conversation went on elsewhere: it is not led back by a reminder
        self._stand(above)
        if self.cursor.open_calls and not goes_on:
            return False
        self._close()
        self._write(piece, says)
        return True

    def _tell_results(self, piece: Piece, says: Spoken) -> bool:
        """Where their calls are open, or when they are. A result that nothing waits for stays a line."""
        if says.results <= {call.call.id for call in self.cursor.open_calls}:
            self._write(piece, says)
            return True
        if piece.unit in {waiting.unit for waiting, _ in self._deferred}:
            return False
        self._pass_over(piece)
        return True

    def _goes_on(self, piece: Piece, says: Spoken) -> bool:
        """Whether the conversation went on without the results that are still open: a new input, answer or summary."""
        first = says.payloads[0]
        if isinstance(first, Message) and first.role == "assistant":
            return piece.unit not in self.mirror.told
        return isinstance(first, Compaction) or (isinstance(first, Message) and first.role == "user")

    def _close(self) -> None:
        """Give every open call a result that says so. What waited for them is told then, and may open others."""
        while self.cursor.open_calls:
            for call in self.cursor.open_calls:
                self._put(Draft(tool_result(call.call.id, CUT_OFF, error=True, outcome="unknown")))
            self._drain()

    def _drain(self) -> None:
        waiting, self._deferred = self._deferred, []
        for piece, says in waiting:
            if not self._tell(piece, says):
                self._deferred.append((piece, says))

    def _stand(self, unit: str | None) -> None:
        """Behind a unit: where it is another than the last, the leaf moves there."""
        mirror = self.mirror
        if unit is None or mirror.tip is None or unit == mirror.tip:
            return
        self._flush()
        place = self.log.leaf_at(0) if unit == ROOT else mirror.ends.get(unit)
        if place is not None:
            self.log.move(place)
            self.cursor, mirror.tip = self.log.cursor, unit or None

    def _write(self, piece: Piece, says: Spoken) -> None:
        first = says.payloads[0]
        for one in piece.lines:
            self.mirror.belongs(piece.unit, one.line)
        if isinstance(first, Compaction | Settings):
            self._set(piece, first)
        else:
            details = self._details(piece, says)
            made = says.answer or Answer(Message("user"))
            if made.usage is not None and piece.unit not in self.mirror.told:
                self._calls.append(self._call(made))
            for payload in says.payloads:
                if isinstance(payload, Message):
                    told = replace(payload, details=details)
                    self._put(Draft(told, made.model, made.finish, made.evidence), piece.unit)
        self.mirror.told.add(piece.unit)
        self.mirror.tip = piece.unit

    def _set(self, piece: Piece, payload: Compaction | Settings) -> None:
        """Entries of these kinds have no details: the note before them keeps the line."""
        if isinstance(payload, Compaction):
            self._flush()
            payload = read_compaction(readable(piece.lines[0].line), self.mirror.boundary) or payload
            unit = self.mirror.units.get(first_kept_uuid(self.mirror.boundary) or "", "")
            kept = self.mirror.starts[unit] if self.mirror.is_on_path(unit) else self.cursor.seq + 2
            payload = replace(payload, first_kept=kept)
        fresh = [one for one in piece.lines if not one.is_kept]
        self._put(noted([one.n for one in fresh], [one.line for one in fresh], tells=piece.lines[0].n))
        self._put(Draft(payload), piece.unit)

    def _details(self, piece: Piece, says: Spoken) -> dict[str, Any]:
        numbers = [one.n for one in piece.lines]
        first = says.payloads[0]
        evidence = None if says.answer is None else says.answer.evidence
        try:
            if len(says.payloads) > 1 or any(one.is_kept for one in piece.lines):
                raise Unpackable
            assert isinstance(first, Message)
            return beside(numbers, packed([one.line for one in piece.lines], first, evidence))
        except Unpackable:
            self._whole.extend(one for one in piece.lines if not one.is_kept)
            return telling(numbers)

    def _call(self, made: Answer) -> Call:
        usage, after, runtime = made.usage, self.cursor.seq, self.log.runtime
        assert usage is not None
        by = (made.provider, made.model, price(usage, made.provider, made.model))
        return Call(runtime.new_id(""), 0, after, after + 1, runtime.now(), usage, "answer", "live", *by)

    # -- keeping -----------------------------------------------------------------------------------

    def _pass_over(self, piece: Piece) -> None:
        for one in piece.lines:
            self.mirror.pass_over(one.line)
        self._whole.extend(one for one in piece.lines if not one.is_kept)

    def _keep_deferred(self) -> None:
        """What still waits is kept whole, and tried again with the next batch."""
        self.mirror.waiting = [piece for piece, _ in self._deferred]
        fresh = [one for piece in self.mirror.waiting for one in piece.lines if not one.is_kept]
        for piece in self.mirror.waiting:
            for one in piece.lines:
                self.mirror.belongs(piece.unit, one.line)
            piece.lines = [replace(one, is_kept=True) for one in piece.lines]
        if fresh:
            self._put(noted([one.n for one in fresh], [one.line for one in fresh], waits=True))

    def _note(self, state: dict[str, Any] | None) -> None:
        whole, self._whole = self._whole, []
        if whole:
            self._put(noted([one.n for one in whole], [one.line for one in whole], state))
        elif state is not None:
            self._put(Draft(Note({}, state)))

    def _put(self, draft: Draft, unit: str | None = None) -> None:
        self.cursor = advance(self.cursor, draft.payload).cursor
        self._drafts.append(draft)
        if unit is not None:
            self._units.append((unit, self.cursor.seq))

    def _flush(self, row: dict[str, Any] | None = None) -> None:
        """Commit what there is. Lines that are kept whole go with the messages that tell them."""
        self._note(None)
        if not self._drafts:
            return
        done = self.log.append(self._drafts, calls=self._calls, row=row)
        tip = self.mirror.tip
        for unit, seq in self._units:
            self.mirror.place(unit, Leaf(done.leaf.branch, seq))
        self.mirror.tip = tip
        if tip is not None:
            self.mirror.ends[tip] = done.leaf  # with the notes behind it
        self._drafts, self._calls, self._units = [], [], []
        self.cursor = self.log.cursor
