"""Checking a dumped session while it goes by: chain, numbers, pairs, anchors, visibility and every cache.

`checked` gives the same dump back; whoever reads it to its end knows that it is whole. Both ways are checked: an
export never writes what an import would refuse. Knows no file and no store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import asdict, replace

from ...core.codec import chain_id, check_json, check_text, decode, from_json
from ...core.drafts import NewEntry
from ...core.entries import Payload, Unknown, is_internal
from ...core.media import ATTACHMENT_MARK, BASE64_MARK, extract_blobs
from ...core.messages import Message
from ...core.state import State, merge_state, state_updates
from ...core.tree import Branch
from ...core.turns import Cursor, advance
from ...core.usage import MAX_COUNT, Call, Totals, add, total
from ...core.usage import check_call as check_call
from ...errors import BoughError
from ...stores.base import Fact, QueuedInput, SessionDetail, SessionRow, StoredEntry
from ...stores.transfer import SessionExport
from .lines import UNREADABLE

FIRST_SEQ_TOO_LARGE = 2**32


class NotWhole(Exception):
    """What is wrong with it, for whoever knows where it came from."""


def checked(dump: SessionExport) -> SessionExport:
    """The same dump, checked as it is read: raises `NotWhole` at the first thing that is wrong."""
    check = _Check(dump)
    return replace(
        dump,
        entries=check.entries(),
        calls=check.calls(),
        facts=check.facts(),
        inbox=check.inbox(),
    )


class _Check:
    def __init__(self, dump: SessionExport) -> None:
        self.dump, self.row = dump, dump.row
        _check_row(dump.row)
        _check_detail(dump.detail)
        self.branches = {branch.branch: branch for branch in dump.branches}
        self._check_branches()
        for call in dump.inherited_calls:
            self._check_call(call, below=True)
        self._check_given()
        self.anchors = {(b.parent, b.parent_seq) for b in dump.branches}
        self.anchors.add((self.row.leaf.branch, self.row.leaf.seq))
        self.passed: dict[tuple[int | None, int], tuple[Cursor, State]] = {(None, 0): (Cursor(), {})}
        self.inputs = 0

    # -- the tree ----------------------------------------------------------------------------------

    def _check_branches(self) -> None:
        own = False
        for n, branch in enumerate(self.dump.branches, 1):
            if branch.branch != n:
                raise NotWhole(f"branch {branch.branch} stands where {n} belongs")
            parent = None if branch.parent is None else self.branches.get(branch.parent)
            self._check_branch(branch, parent)
            if own and branch.session_id is None:
                raise NotWhole(f"branch {n} is not its own, but stands behind one that is")
            own = own or branch.session_id is not None
        leaf = self.branches.get(self.row.leaf.branch)
        if not own:
            raise NotWhole("the session has no branch of its own")
        if leaf is None or not leaf.parent_seq <= self.row.leaf.seq <= leaf.tail:
            raise NotWhole(f"the leaf {self.row.leaf} is not a place of its tree")

    def _check_branch(self, branch: Branch, parent: Branch | None) -> None:
        if not 0 <= branch.parent_seq <= branch.tail < FIRST_SEQ_TOO_LARGE:
            raise NotWhole(f"branch {branch.branch} runs from {branch.parent_seq} to {branch.tail}")
        if branch.parent is None:
            if branch.parent_seq:
                raise NotWhole(
                    f"branch {branch.branch} hangs on nothing, yet begins behind {branch.parent_seq}"
                )
        elif parent is None or branch.parent >= branch.branch:
            raise NotWhole(f"branch {branch.branch} hangs on {branch.parent}, which is not before it")
        elif not parent.parent_seq <= branch.parent_seq <= parent.tail:
            raise NotWhole(
                f"branch {branch.branch} hangs on {branch.parent}:{branch.parent_seq}, which is gone"
            )

    def entries(self) -> Iterator[StoredEntry]:
        waiting = iter(self.dump.branches)
        current: Branch | None = None
        cursor = Cursor()
        state: State = {}
        for stored in self.dump.entries:
            while current is None or (current.branch != stored.branch and cursor.seq == current.tail):
                current, cursor, state = self._enter(next(waiting, None))
            if current.branch != stored.branch or cursor.seq >= current.tail:
                raise NotWhole(
                    f"entry {stored.branch}:{stored.entry.seq} stands behind {current.branch}:{cursor.seq}"
                )
            if (stored.branch, stored.entry.seq) in self.given and stored.entry.turn != stored.entry.seq:
                raise NotWhole(
                    f"{stored.branch}:{stored.entry.seq} is told as the input of a turn, and is none"
                )
            cursor, state = self._step(current, cursor, state, stored.entry)
            self._pass(current, cursor, state)
            yield stored
        while current is None or cursor.seq == current.tail:
            branch = next(waiting, None)
            if branch is None:
                self._check_path()
                return
            current, cursor, state = self._enter(branch)
        raise NotWhole(f"branch {current.branch} ends at {cursor.seq}, its tail is {current.tail}")

    def _enter(self, branch: Branch | None) -> tuple[Branch, Cursor, State]:
        if branch is None:
            raise NotWhole("there are more entries than its branches hold")
        place = (branch.parent, branch.parent_seq)
        if place not in self.passed:
            raise NotWhole(
                f"branch {branch.branch} hangs on {branch.parent}:{branch.parent_seq}, which is gone"
            )
        cursor, state = self.passed[place]
        self._pass(branch, cursor, state)
        return branch, cursor, state

    def _pass(self, branch: Branch, cursor: Cursor, state: State) -> None:
        if (branch.branch, cursor.seq) in self.anchors:
            self.passed[branch.branch, cursor.seq] = (cursor, state)

    def _step(self, branch: Branch, cursor: Cursor, state: State, entry: NewEntry) -> tuple[Cursor, State]:
        where = f"entry {branch.branch}:{entry.seq}"
        if entry.seq != cursor.seq + 1:
            raise NotWhole(f"{where} follows {cursor.seq}: entries between were removed")
        if chain_id(cursor.entry_id, entry.kind, entry.turn, entry.step, entry.body) != entry.entry_id:
            raise NotWhole(f"{where}: its id does not match its content and its parent: altered or reordered")
        is_seed = branch.parent is None and entry.seq <= self.row.seed_count
        payload = _payload(where, entry)
        try:
            place = advance(cursor, payload, seed=is_seed)
            check_text(entry.model, "model")
            check_text(entry.finish, "finish")
        except BoughError as error:
            raise NotWhole(f"{where}: {error}") from None
        if (place.turn, place.step) != (entry.turn, entry.step):
            raise NotWhole(
                f"{where} stands in turn {entry.turn}.{entry.step}, by its path {place.turn}.{place.step}"
            )
        if not isinstance(payload, Unknown) and entry.internal != is_internal(payload, seed=is_seed):
            raise NotWhole(f"{where}: its visibility is not what its kind gives it")
        _check_count(where, entry.at)
        self.inputs += branch.session_id is not None and entry.turn == entry.seq
        for update in state_updates(payload):
            state = merge_state(state, update)
        return place.cursor.with_id(entry.entry_id), state

    def _check_path(self) -> None:
        if self.inputs != self.row.turns:
            raise NotWhole(f"the row counts {self.row.turns} turns, the log holds {self.inputs} inputs")
        cached = self.dump.detail.state
        _, state = self.passed[self.row.leaf.branch, self.row.leaf.seq]
        if cached is not None and from_json(cached) != state:
            raise NotWhole("the state in the row differs from the fold of the path")

    # -- calls, facts, queue -----------------------------------------------------------------------

    def calls(self) -> Iterator[Call]:
        sums = Totals()
        for call in self.dump.calls:
            self._check_call(call, below=False)
            sums = add(sums, total([call]))
            yield call
        if sums != self.row.totals:
            raise NotWhole(f"the totals are {self.row.totals}, the calls sum to {sums}")

    def _check_call(self, call: Call, *, below: bool) -> None:
        branch = self.branches.get(call.branch)
        if branch is None or (below and branch.session_id is not None):
            raise NotWhole(f"call {call.call_id} was made on branch {call.branch}, which is not there")
        try:
            check_call(call)
        except BoughError as error:
            raise NotWhole(f"call {call.call_id}: {error}") from None
        for count in (call.after_seq, call.answer_seq or 0, call.at):
            _check_count(f"call {call.call_id}", count)

    def _check_given(self) -> None:
        told = [(one.branch, one.turn) for one in self.dump.inherited_limits]
        self.given = set(told)
        if told != sorted(self.given):
            raise NotWhole("what turns were given is not in the order of their places, each once")
        for one in self.dump.inherited_limits:
            branch = self.branches.get(one.branch)
            if (
                branch is None
                or branch.session_id is not None
                or not branch.parent_seq < one.turn <= branch.tail
            ):
                raise NotWhole(f"turn {one.branch}:{one.turn} is none of what it stands on")
            _check_count(f"turn {one.branch}:{one.turn}", one.max_messages)

    def facts(self) -> Iterator[Fact]:
        count = 0
        for fact in self.dump.facts:
            count += 1
            if fact.number != count:
                raise NotWhole(f"fact {count} is missing")
            self._check_fact(fact)
            yield fact
        if count != self.row.facts:
            raise NotWhole(f"the journal holds {count} facts, the row says {self.row.facts}")

    def _check_fact(self, fact: Fact) -> None:
        data, places = fact.data, []
        try:
            check_text(fact.kind, "kind")
            check_text(fact.key, "key")
            check_json(data, "its data")
            if fact.key is not None and next(iter(data), None) == "branch":
                places.append(data["branch"])
            if fact.kind == "moved" and "from" in data:
                branch, _ = data["from"]
                places.append(branch)
        except (BoughError, TypeError, ValueError) as error:
            raise NotWhole(f"fact {fact.number}: {error}") from None
        if not all(type(place) is int and place in self.branches for place in places):
            raise NotWhole(f"fact {fact.number} names a branch that is not there")
        _check_count(f"fact {fact.number}", fact.at)

    def inbox(self) -> Iterator[QueuedInput]:
        before = 0
        for queued in self.dump.inbox:
            if queued.number <= before:
                raise NotWhole(f"queued input {queued.number} stands behind {before}")
            before = queued.number
            _check_count("queued input", queued.number)
            _payload(f"queued input {queued.number}", queued)
            _check_count(f"queued input {queued.number}", queued.at)
            yield queued


def _payload(where: str, holder: NewEntry | QueuedInput) -> Payload:
    body = holder.body
    kind = holder.kind if isinstance(holder, NewEntry) else "message"
    if b"\n" in body:
        raise NotWhole(f"{where}: its body holds a line break, which no body has")
    try:
        check_text(kind, "kind")
        payload = decode(kind, body)
        if isinstance(payload, Unknown):
            from_json(body)
    except (BoughError, *UNREADABLE) as error:
        raise NotWhole(f"{where}: {error}") from None
    if not kind.isidentifier():
        raise NotWhole(f"{where} is of no kind that can be")
    if (
        isinstance(payload, Message)
        and (ATTACHMENT_MARK in body or BASE64_MARK in body)
        and extract_blobs(payload)[1]
    ):
        raise NotWhole(f"{where} holds inline bytes where a handle belongs")
    return payload


def _check_row(row: SessionRow) -> None:
    try:
        for name, value in asdict(row).items():
            texts: Iterable[object] = (value,)
            if name in ("tags", "tool_names"):
                texts = [*value, *row.tags.values()]
            for text in texts:
                if isinstance(text, str):
                    check_text(text, name)
            if isinstance(value, int):
                _check_count(name, value)
    except BoughError as error:
        raise NotWhole(f"the row: {error}") from None
    if not row.session_id or row.status == "running":
        raise NotWhole("the row has no id, or says that it runs")
    for name in (row.session_id, row.parent_session or "", row.conversation_id or ""):
        if not name.isprintable():  # it is shown, typed and put into addresses
            raise NotWhole(f"the id {name!r} holds what cannot be shown")


def _check_detail(detail: SessionDetail) -> None:
    for name, text in asdict(detail).items():
        try:
            if text is not None:
                check_json(from_json(text), name)
        except (BoughError, *UNREADABLE) as error:
            raise NotWhole(f"its {name}: {error}") from None
        if text is not None and b"\n" in text:
            raise NotWhole(f"its {name} holds a line break")


def _check_count(where: str, value: int) -> None:
    if not 0 <= value <= MAX_COUNT:
        raise NotWhole(f"{where} has the number {value}, which is out of range")
