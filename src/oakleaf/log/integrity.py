"""The laws of a session's records: chain, sequence numbers, tool pairs, anchors, visibility and cached
values.

`SessionWalker` checks records as they pass by and keeps none of them, so a bundle of any size is checked in
constant memory. `verify` uses the walker over a store, bundles in both directions. Knows no file and no
store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import asdict, astuple, replace

from oakleaf.core.codec import chain_id, check_json, check_length, check_text, decode, from_json
from oakleaf.core.drafts import NewEntry
from oakleaf.core.entries import Note, Payload, Settings, Unknown, is_internal
from oakleaf.core.facts import (
    Appended,
    ModelCallFailed,
    Moved,
    RunnerEnded,
    SessionEnded,
    Started,
    StoredFact,
    TurnEnded,
    TurnLeft,
    TurnResumed,
    TurnStarted,
    kind_of,
)
from oakleaf.core.ids import check_id
from oakleaf.core.media import extract_blobs, has_inline_bytes, may_hold_bytes
from oakleaf.core.messages import Message
from oakleaf.core.state import State, merge_state, state_updates
from oakleaf.core.tree import Branch, Leaf
from oakleaf.core.turns import Cursor, advance
from oakleaf.core.usage import MAX_COUNT, Call, Totals, add, check_call, total
from oakleaf.errors import InvalidId, OakleafError
from oakleaf.log.new_session import INDEXED_COLUMNS
from oakleaf.stores.base import QueuedInput, SessionDetail, SessionRow, StoredEntry
from oakleaf.stores.transfer import SessionExport

MAX_SEQ = 2**32 - 1
ANSWER, INPUT, END = 1, 2, 4
"""The walker's flags of an entry: an answer, the input of a turn, the end of a turn."""
INVALID_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
"""The exceptions of decoding untrusted JSON, also for endless numbers and endless nesting."""

_rows = msgspec.msgpack.Decoder(SessionRow)
_calls = msgspec.msgpack.Decoder(Call)

Report = Callable[[str, str], None]
"""Called with the place and the text of a problem. The function may raise, to stop at the first problem."""
Anchor = tuple[Cursor, State]
"""The cursor and the state after an entry."""


class IntegrityError(Exception):
    """The first broken law of an exported session. Callers add the file and line, or the store."""


def check_export(export: SessionExport) -> SessionExport:
    """Return the same export, checked during the read; raise `IntegrityError` at the first problem.

    Exports and imports both pass here, so an export never writes what an import would refuse.
    """

    def fail(where: str, problem: str) -> None:
        raise IntegrityError(f"{where}: {problem}")

    walker = SessionWalker(export.row, export.branches, fail)
    walker.check_row()
    walker.check_detail(export.detail)
    walker.check_numbering()
    walker.check_branches()
    walker.check_inherited(export.inherited_calls)

    def entries() -> Iterator[StoredEntry]:
        yield from walker.entries(export.entries)
        walker.check_caches(export.detail.state)

    return replace(
        export,
        entries=entries(),
        calls=walker.calls(export.calls),
        facts=walker.facts(export.facts),
        inbox=walker.inbox(export.inbox),
    )


def _holds_bytes(payload: Payload) -> bool:
    return bool(extract_blobs(payload)[1]) if isinstance(payload, Message) else has_inline_bytes(payload)


class SessionWalker:
    """A check of the records of one session in the order branches, entries, calls, facts, inbox.

    `find_anchor` returns the cursor and state at (branch, seq) on branches whose entries are not walked; without it all
    branches and entries of the session must pass by, inherited ones too. `check_blobs` is called with each message,
    note and settings.
    """

    def __init__(
        self,
        row: SessionRow,
        branches: Sequence[Branch],
        report: Report,
        find_anchor: Callable[[int, int], Anchor | None] | None = None,
        check_blobs: Callable[[str, Message | Note | Settings, NewEntry], None] | None = None,
    ) -> None:
        self.row, self.report = row, report
        self.branches = {branch.branch: branch for branch in branches}
        self.own = {branch.branch for branch in branches if branch.session_id == row.session_id}
        self.is_complete = find_anchor is None
        self._find_anchor, self._check_blobs = find_anchor, check_blobs
        self._walked = [branch for branch in branches if self.is_complete or branch.branch in self.own]
        self._anchor_points = {(branch.parent, branch.parent_seq) for branch in self._walked}
        self._anchor_points.add((row.leaf.branch, row.leaf.seq))
        self._anchors: dict[tuple[int | None, int], Anchor] = {(None, 0): (Cursor(), {})}
        self._marks = {number: bytearray() for number in self.own}
        """By branch: one byte per entry, of the flags `ANSWER`, `INPUT` and `END`."""
        self._turns = 0
        self._inherited: dict[int, tuple[int, int]] = {}
        """By own branch: the inherited open turn, and the steps made by other sessions."""
        self._journal = JournalFold(row, self.branches, self.own, self._marks, report)

    # -- row and branches --------------------------------------------------------------------------

    def check_row(self) -> None:
        """Check the row of an export: `check_types`, and the laws for rows outside of a store."""
        self.check_types()
        row = self.row
        if not row.session_id or row.status == "running":
            self.report("row", "it has no session id, or its status is running")

    def check_types(self) -> None:
        """Check the types of the row's values, and the texts and numbers for every store."""
        row = self.row
        try:
            _rows.decode(msgspec.msgpack.encode(row))
            for name, value in asdict(row).items():
                texts: Iterable[object] = (value,)
                if name in ("tags", "tool_names"):
                    texts = [*value, *row.tags.values()]
                for text in texts:
                    if isinstance(text, str):
                        check_text(text, name)
                        if name in INDEXED_COLUMNS:
                            check_length(text, name)
                if isinstance(value, int):
                    self._check_count(f"row {name}", value)
        except (OakleafError, msgspec.MsgspecError) as error:
            self.report("row", str(error))
            return
        try:
            check_id(row.session_id)
        except InvalidId as error:
            self.report("row", error.problem)
        if row.parent_session is not None and not row.parent_session.isprintable():
            self.report("row", f"the id {row.parent_session!r} has characters that cannot be printed")

    def check_detail(self, detail: SessionDetail) -> None:
        for name, text in asdict(detail).items():
            if text is None:
                continue
            try:
                check_json(from_json(text), name)
            except (OakleafError, *INVALID_JSON) as error:
                self.report(name, str(error))
            if b"\n" in text:
                self.report(name, "it contains a line break")

    def check_numbering(self) -> None:
        """Check the numbering of an export's branches: from 1, inherited branches first."""
        has_own = False
        for number, branch in enumerate(self.branches.values(), 1):
            if branch.branch != number:
                self.report(f"branch {branch.branch}", f"expected branch {number}")
            if has_own and branch.branch not in self.own:
                self.report(f"branch {number}", "it is inherited, but follows one of the session's own")
            has_own = has_own or branch.branch in self.own

    def check_branches(self) -> None:
        for branch in self._walked:
            self._check_branch(branch)
        if not self.own:
            self.report("tree", "the session has no branch of its own")
        leaf = self.branches.get(self.row.leaf.branch)
        if leaf is None or not leaf.parent_seq <= self.row.leaf.seq <= leaf.tail:
            self.report("leaf", f"{self.row.leaf} is not a position in its tree")

    def _check_branch(self, branch: Branch) -> None:
        where = f"branch {branch.branch}"
        parent = None if branch.parent is None else self.branches.get(branch.parent)
        if not 0 <= branch.parent_seq <= branch.tail <= MAX_SEQ:
            self.report(where, f"it starts after {branch.parent_seq} and ends at {branch.tail}")
        if branch.parent is None:
            if branch.parent_seq:
                self.report(where, f"it has no parent, yet starts after entry {branch.parent_seq}")
        elif parent is None or branch.parent >= branch.branch:
            self.report(where, f"its parent {branch.parent} is not an earlier branch")
        elif not parent.parent_seq <= branch.parent_seq <= parent.tail:
            self.report(where, f"its anchor {branch.parent}:{branch.parent_seq} does not exist")

    def check_inherited(self, calls: Iterable[Call]) -> None:
        for call in calls:
            if call.branch in self.own:
                self.report(f"call {call.call_id}", f"branch {call.branch} is not inherited")
            self._check_call(call)

    # -- entries -----------------------------------------------------------------------------------

    def entries(self, entries: Iterable[StoredEntry]) -> Iterator[StoredEntry]:
        """Yield the entries, checked.

        After a problem the rest of the branch is unchecked: further problems would only follow.
        """
        remaining = iter(self._walked)
        branch, anchor = self._next_branch(remaining)
        for stored in entries:
            while branch is not None and branch.branch != stored.branch:
                self._check_end(branch, anchor)
                branch, anchor = self._next_branch(remaining)
            if branch is None:
                where = f"entry {stored.branch}:{stored.entry.seq}"
                self.report(where, "its branch does not exist or has ended")
                return
            if anchor is not None:
                anchor = self._step(branch, anchor, stored.entry)
                if anchor is not None:
                    self._pass(branch, anchor)
            yield stored
        while branch is not None:
            self._check_end(branch, anchor)
            branch, anchor = self._next_branch(remaining)

    def _next_branch(self, remaining: Iterator[Branch]) -> tuple[Branch | None, Anchor | None]:
        branch = next(remaining, None)
        return branch, None if branch is None else self._enter(branch)

    def _check_end(self, branch: Branch, anchor: Anchor | None) -> None:
        if anchor is not None and anchor[0].seq != branch.tail:
            problem = f"its last entry is {anchor[0].seq}, its tail is {branch.tail}"
            self.report(f"branch {branch.branch}", problem)

    def _enter(self, branch: Branch) -> Anchor | None:
        anchor = self._anchor(branch.parent, branch.parent_seq)
        if anchor is None:
            position = f"{branch.parent}:{branch.parent_seq}"
            self.report(f"branch {branch.branch}", f"its anchor {position} does not exist or cannot be read")
        else:
            self._pass(branch, anchor)
            if branch.branch in self.own and branch.parent in self._inherited:
                self._inherited[branch.branch] = self._inherited[branch.parent]
            elif branch.branch in self.own and branch.parent not in self.own and anchor[0].turn:
                self._inherited[branch.branch] = (anchor[0].turn, anchor[0].step)
        return anchor

    def _anchor(self, branch: int | None, seq: int) -> Anchor | None:
        anchor = self._anchors.get((branch, seq))
        if anchor is None and self._find_anchor is not None and branch is not None:
            return self._find_anchor(branch, seq)
        return anchor

    def _pass(self, branch: Branch, anchor: Anchor) -> None:
        position = (branch.branch, anchor[0].seq)
        if position in self._anchor_points:
            self._anchors[position] = anchor

    def _step(self, branch: Branch, anchor: Anchor, entry: NewEntry) -> Anchor | None:
        """Check one entry and return the anchor after the entry; None if nothing later can be checked."""
        cursor, state = anchor
        where = f"entry {branch.branch}:{entry.seq}"
        if entry.seq != cursor.seq + 1 or entry.seq > branch.tail:
            self.report(where, f"it follows {cursor.seq} of {branch.tail}: entries were removed or added")
            return None
        if chain_id(cursor.entry_id, entry.kind, entry.turn, entry.step, entry.body) != entry.entry_id:
            self.report(where, "its id does not match its content and its parent: altered or reordered")
            return None
        is_seed = branch.parent is None and entry.seq <= self.row.seed_count
        try:
            payload = self._payload(where, entry.kind, entry.body)
            position = advance(cursor, payload, seed=is_seed, finish=entry.finish)
            check_text(entry.model, "model")
            check_text(entry.finish, "finish")
        except (OakleafError, *INVALID_JSON) as error:
            self.report(where, str(error))
            return None
        if (position.turn, position.step) != (entry.turn, entry.step):
            expected = f"{position.turn}.{position.step}"
            self.report(where, f"its turn is {entry.turn}.{entry.step}, by its path it is {expected}")
        self._check_columns(where, payload, entry, is_seed=is_seed)
        is_input = entry.turn == entry.seq
        if branch.branch in self.own:
            answers_inherited = (entry.turn, entry.step - 1) == self._inherited.get(branch.branch)
            self._turns += is_input or (answers_inherited and entry.role == "assistant")
            is_end = bool(cursor.turn and not position.cursor.turn)
            mark = ANSWER * (entry.role == "assistant") | INPUT * is_input | END * is_end
            self._mark(branch, entry.seq, mark)
        for update in state_updates(payload):
            state = merge_state(state, update)
        return position.cursor.with_id(entry.entry_id), state

    def _payload(self, where: str, kind: str, body: bytes) -> Payload:
        check_text(kind, "kind")
        payload = decode(kind, body)
        if isinstance(payload, Unknown):
            from_json(body)
        if b"\n" in body:
            self.report(where, "its body contains a line break")
        if not kind.isidentifier():
            self.report(where, f"{kind!r} is not a valid kind")
        if may_hold_bytes(body) and _holds_bytes(payload):
            self.report(where, "it contains inline bytes instead of a blob handle")
        return payload

    def _check_columns(self, where: str, payload: Payload, entry: NewEntry, *, is_seed: bool) -> None:
        """Check the columns derived from the body."""
        self._check_count(where, entry.at)
        if not isinstance(payload, Unknown):
            role = payload.role if isinstance(payload, Message) else None
            if entry.internal != is_internal(payload, seed=is_seed, finish=entry.finish):
                self.report(where, "its visibility does not match its kind")
            if entry.role != role:
                self.report(where, f"its role column is {entry.role}, its content's role is {role}")
        if isinstance(payload, Message | Note | Settings) and self._check_blobs is not None:
            self._check_blobs(where, payload, entry)

    def _mark(self, branch: Branch, seq: int, mark: int) -> None:
        marks, offset = self._marks[branch.branch], seq - branch.parent_seq
        marks.extend(bytes(offset + 1 - len(marks)))
        marks[offset] = mark

    # -- calls, facts, inbox and caches ------------------------------------------------------------

    def calls(self, calls: Iterable[Call]) -> Iterator[Call]:
        sums: Totals | None = Totals()
        call_ids: set[str] = set()
        for call in calls:
            if not self._check_call(call):
                sums = None
            elif call.branch in self.own:
                self._check_call_position(call)
            if call.call_id in call_ids:
                self.report(f"call {call.call_id}", "another call has this id")
            call_ids.add(call.call_id)
            sums = None if sums is None else add(sums, total([call]))
            yield call
        if sums not in (None, self.row.totals):
            self.report("totals", f"they are {self.row.totals}, the calls sum to {sums}")

    def _check_call(self, call: Call) -> bool:
        """Check one ledger row alone; return whether the row can be counted."""
        where = f"call {call.call_id}"
        # In a store, an inherited branch may be purged.
        if call.branch not in self.branches and self.is_complete:
            self.report(where, f"branch {call.branch} does not exist")
        try:
            _calls.decode(msgspec.msgpack.encode(call))
            check_call(call)
        except (OakleafError, msgspec.MsgspecError, OverflowError) as error:
            self.report(where, str(error))
            return False
        for count in (call.after_seq, call.answer_seq or 0, call.at):
            self._check_count(where, count)
        if call.answer_seq is not None and (call.failed or call.answer_seq <= call.after_seq):
            what = "it failed" if call.failed else f"it was made after entry {call.after_seq}"
            self.report(where, f"{what}, yet its answer is entry {call.answer_seq}")
        return True

    def _check_call_position(self, call: Call) -> None:
        branch, marks = self.branches[call.branch], self._marks[call.branch]
        if not 0 <= call.after_seq <= branch.tail:
            self.report(
                f"call {call.call_id}", f"it follows {call.branch}:{call.after_seq}, which does not exist"
            )
        elif call.answer_seq is not None:
            offset = call.answer_seq - branch.parent_seq
            if not 0 < offset < len(marks) or not marks[offset] & ANSWER:
                self.report(
                    f"call {call.call_id}", f"its answer {call.branch}:{call.answer_seq} is not an answer"
                )

    def facts(self, facts: Iterable[StoredFact]) -> Iterator[StoredFact]:
        count = 0
        for fact in facts:
            count += 1
            if fact.number != count:
                self.report("journal", f"fact {count} is missing")
                return
            if self._check_fact(fact):
                self._journal.add(fact)
            yield fact
        if count != self.row.facts:
            self.report("journal", f"it has {count} facts, the row says {self.row.facts}")
        self._journal.finish()

    def _check_fact(self, stored: StoredFact) -> bool:
        """Check one fact alone; return whether the fact can be compared with the entries."""
        where, leaf = f"fact {stored.number}", stored.leaf
        try:
            check_text(stored.kind, "kind")
            check_text(stored.key, "key")
            values = from_json(stored.body)
            check_json(values, "its body")
            fact = stored.fact
        except OakleafError as error:
            self.report(where, str(error))
            return False
        except INVALID_JSON as error:
            self.report(where, f"it cannot be read: {error}")
            return False
        if not isinstance(values, dict) or b"\n" in stored.body:
            self.report(where, "its body is not a JSON object on one line")
            return False
        self._check_count(where, stored.at)
        branches = [] if leaf is None else [leaf.branch]
        branches += [fact.origin[0]] if isinstance(fact, Moved) else []
        if stored.first is not None and leaf is None:
            self.report(where, "it names entries, yet no leaf")
            return False
        if self.is_complete and not all(branch in self.branches for branch in branches):
            self.report(where, "it names a branch that does not exist")
            return False
        return True

    def inbox(self, inbox: Iterable[QueuedInput]) -> Iterator[QueuedInput]:
        last = 0
        for queued in inbox:
            where = f"queued input {queued.number}"
            if queued.number <= last:
                self.report(where, f"it follows {last}")
            last = queued.number
            self._check_count(where, queued.number)
            self._check_count(where, queued.at)
            try:
                self._payload(where, "message", queued.body)
            except (OakleafError, *INVALID_JSON) as error:
                self.report(where, str(error))
            yield queued

    def check_caches(self, state: bytes | None) -> None:
        """Check the row's columns derived from the entries, after the last entry."""
        row = self.row
        if self._turns != row.turns:
            self.report("turns", f"the row counts {row.turns}, the log has {self._turns}")
        anchor = self._anchor(row.leaf.branch, row.leaf.seq)
        if anchor is None:
            self.report("leaf", f"{row.leaf} is not an entry of its tree")
            return
        if state is not None and from_json(state) != anchor[1]:
            self.report("state", "the row's state differs from the state folded from the path")
        if row.status in ("running", "waiting") and not anchor[0].turn:
            self.report("status", f"it is {row.status}, but no turn is open")

    def _check_count(self, where: str, value: int) -> None:
        if not 0 <= value <= MAX_COUNT:
            self.report(where, f"{value} is out of range")


class JournalFold:
    """A comparison of the journal with the entries: every fact of a change names the appended entries.

    So removed entries and branches are known even if the row was altered to match, and so is a removed end of
    the journal. Only the first difference is reported: further differences would only follow.
    """

    def __init__(
        self,
        row: SessionRow,
        branches: Mapping[int, Branch],
        own: Collection[int],
        marks: Mapping[int, bytearray],
        report: Report,
    ) -> None:
        self._row, self._branches, self._own, self._marks = row, branches, own, marks
        self._report = report
        self._tails: dict[int, int] = {}
        self._leaf = Leaf(0, 0)
        self._turn_facts: list[tuple[type[TurnStarted] | type[TurnEnded], int]] = []
        """The starts and ends of turns due in the facts after the latest append, last first."""
        self._differs = False
        self._end: tuple[str, str | None] | None = None
        """The latest recorded status and error of the end of a turn or session; None after a possible
        change."""

    def add(self, stored: StoredFact) -> None:
        if self._differs:
            return
        fact = stored.fact
        match fact:
            case TurnEnded() | TurnLeft() | SessionEnded():
                self._end = fact.status, fact.error
            case TurnStarted() | TurnResumed() | Moved() | RunnerEnded() | ModelCallFailed():
                self._end = None
        where = f"fact {stored.number}"
        if self._turn_facts:
            self._check_turn_fact(where, stored)
        elif stored.number == 1:
            self._check_start(where, stored)
        elif stored.leaf is not None:
            self._check_change(where, stored, stored.leaf)

    def _check_start(self, where: str, stored: StoredFact) -> None:
        row, fact, leaf = self._row, stored.fact, stored.leaf
        branch = self._branches[leaf.branch] if leaf is not None and leaf.branch in self._own else None
        origin = (fact.relation, fact.parent) if isinstance(fact, Started) else ("", "")
        if (
            origin == ("", "")
            or stored.key is None
            or branch is None
            or leaf is None
            or stored.first is not None
        ):
            self._differ(
                where, f"it should say that the session started on a branch of its own: {stored.kind}"
            )
        elif row.relation != "import" and origin != (row.relation, row.parent_session):
            self._differ(where, f"it says {origin}, the row {(row.relation, row.parent_session)}")
        elif row.parent_session is None and row.parent_seq is not None:
            self._differ(where, f"it names no parent, yet the row says it left one at {row.parent_seq}")
        elif row.relation in ("fork", "replay") and row.parent_seq != (
            branch.parent_seq if row.parent_session is not None else branch.parent_seq or None
        ):  # a session that holds a lab run is a replay of no single session
            self._differ(where, f"the session left its parent at {branch.parent_seq}, not {row.parent_seq}")
        else:
            self._check_change(where, stored, leaf)

    def _check_turn_fact(self, where: str, stored: StoredFact) -> None:
        type_, seq = self._turn_facts.pop()
        fact = stored.fact
        turn = fact.turn if isinstance(fact, type_) else 0
        is_turn = turn == seq if type_ is TurnStarted else 0 < turn <= seq
        if stored.key is not None or not is_turn:
            problem = f"it should record {kind_of(type_)} for entry {seq}, it is {stored.kind} of turn {turn}"
            self._differ(where, problem)

    def _check_change(self, where: str, stored: StoredFact, leaf: Leaf) -> None:
        fact, first, branch = stored.fact, stored.first, self._branches.get(leaf.branch)
        if branch is None or stored.key is None:
            self._differ(where, f"{leaf}, which it names, does not exist: a branch was removed")
            return
        if not branch.parent_seq <= leaf.seq <= branch.tail:
            self._differ(where, f"entry {leaf}, which it names, does not exist: entries were removed")
        elif stored.number == 1:
            self._append(where, stored, branch, branch.parent_seq + 1)
        elif isinstance(fact, Moved) and fact.origin != astuple(self._leaf):
            self._differ(
                where, f"it moved from {Leaf(*fact.origin)}, the facts before it end at {self._leaf}"
            )
        elif first is not None and not isinstance(fact, Appended | Moved):
            self._differ(where, f"{stored.kind} appends no entries, yet it names {leaf.branch}:{first}")
        elif first is not None:
            self._check_place(where, stored, branch, first)
            self._append(where, stored, branch, first)
        elif not isinstance(fact, Moved) and leaf != self._leaf:
            self._differ(where, f"it was recorded at {leaf}, the facts before it end at {self._leaf}")
        self._leaf = leaf

    def _check_place(self, where: str, stored: StoredFact, branch: Branch, first: int) -> None:
        """Check the place of an append: after the leaf, or on a new branch from the leaf."""
        is_new = branch.branch not in self._tails
        before = (branch.parent, branch.parent_seq) if is_new else (branch.branch, first - 1)
        if isinstance(stored.fact, Appended) and before != astuple(self._leaf):
            place = f"{branch.branch}:{first}"
            self._differ(
                where, f"it appended {place}, which does not follow {self._leaf}: facts were removed"
            )

    def _append(self, where: str, stored: StoredFact, branch: Branch, first: int) -> None:
        assert stored.leaf is not None
        last = stored.leaf.seq
        end = self._tails.get(branch.branch, branch.parent_seq)
        if branch.branch not in self._own or first != end + 1:
            place = f"entry {first} of branch {branch.branch}"
            self._differ(where, f"it appended {place}, which ended at {end} before: facts were removed")
            return
        self._tails[branch.branch] = last
        if not isinstance(stored.fact, Appended):
            return
        marks = self._marks[branch.branch]
        for seq in range(last, first - 1, -1):
            offset = seq - branch.parent_seq
            mark = marks[offset] if offset < len(marks) else 0  # a damaged entry was reported before
            if mark & END:
                self._turn_facts.append((TurnEnded, seq))
            if mark & INPUT:
                self._turn_facts.append((TurnStarted, seq))

    def finish(self) -> None:
        """Compare the end of the journal with the leaf and the branches."""
        if self._differs:
            return
        if self._turn_facts:
            type_, seq = self._turn_facts[-1]
            self._differ("journal", f"{kind_of(type_)} for entry {seq} is missing at its end")
        if self._leaf != self._row.leaf:
            self._differ("leaf", f"it is {self._row.leaf}, the journal ends at {self._leaf}")
        for number in sorted(self._own):
            end, tail = self._tails.get(number, 0), self._branches[number].tail
            if end != tail:
                self._differ(f"branch {number}", f"it ends at {tail}, in the journal at {end}")
        if self._end is not None and not self._differs:
            self._check_status(*self._end)

    def _check_status(self, status: str, error: str | None) -> None:
        """Compare the row with the latest recorded end: a failure is neither invented nor hidden."""
        row = self._row
        expected = {"completed": ("idle", "completed"), "interrupted": ("idle", "interrupted")}
        if row.status not in expected.get(status, (status,)):
            self._differ("status", f"it is {row.status}, the journal says {status}")
        elif (row.error or "") != (error or "").replace("\0", ""):
            self._differ("error", f"it is {row.error!r}, the journal says {error!r}")

    def _differ(self, where: str, problem: str) -> None:
        if not self._differs:
            self._differs = True
            self._report(where, problem)
