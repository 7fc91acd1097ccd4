"""Pydantic AI's records and entries on sessions, as plain calls: finding, reading, writing, forking, deleting.

Knows the framework's values and Bough's logs. Does not know event loops: `pydantic_ai` crosses to here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from pydantic import TypeAdapter
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

from ...core.context import fold_settings
from ...core.entries import Entry
from ...core.tree import Leaf
from ...core.usage import Call, Usage
from ...errors import StaleLeaf
from ...log.changes import Cut
from ...log.log import Log
from ...models.prices import price
from ...session import Session
from ...stores.base import SessionRow
from .messages import Placed, Plan, name_of, placed, record_of
from .parts import Dumped

if TYPE_CHECKING:
    from ...store import Store

SCOPE = "scope"
"""The tag that holds a conversation's scope."""
OWN = (None, "import", "fork")
"""What sessions of a conversation are conversations: not the tasks and replays of others."""
MOST_HOMES = 10_000

_usages = TypeAdapter(RunUsage)
_requests: TypeAdapter[DeferredToolRequests | None] = TypeAdapter(DeferredToolRequests | None)


class Conversations:
    """The conversations of a store, in its space and for its owner."""

    def __init__(self, store: Store, about: dict[str, Any]) -> None:
        self._store, self._about = store, about
        self._homes: OrderedDict[str, str] = OrderedDict()
        """Of the heads and branches last read the sessions: the contract asks for them by their ids alone."""

    # -- reading -----------------------------------------------------------------------------------

    def find(self, conversation_id: str) -> Session | None:
        for row in self._store.all_sessions(conversation_id=conversation_id):
            if row.relation in OWN:
                return Session(Log(self._store.backend, row, self._store.runtime))
        return None

    def record(self, conversation_id: str) -> ConversationRecord | None:
        session = self.find(conversation_id)
        return None if session is None else self._record(session)

    def records(self, scope: str | None, limit: int | None) -> list[ConversationRecord]:
        tagged = {} if scope is None else {"tag": (SCOPE, scope)}
        rows: dict[str, SessionRow] = {}
        for row in self._store.all_sessions(**tagged):
            if row.relation in OWN:
                rows.setdefault(row.conversation_id, row)
        found: list[ConversationRecord] = []
        for row in sorted(rows.values(), key=lambda row: row.updated_at, reverse=True):
            if limit is not None and len(found) >= limit:
                break
            record = self._record(Session(Log(self._store.backend, row, self._store.runtime)))
            found.extend([record] if record is not None else [])
        return found

    def _record(self, session: Session) -> ConversationRecord | None:
        """What was last written of the conversation; None if nothing was said in it yet."""
        mark, last, told = self._tail(session)
        if mark is None and last is None:
            return None
        has_moved = mark is None or (told is not None and told.seq > mark.seq)
        held = None if mark is None else record_of(mark)
        head = None if last is None else last.name
        record = _opened(session.row, head, held or {}, session.leaf if has_moved else None)
        self._remember(session, record)
        return record

    def _tail(self, session: Session) -> tuple[Entry | None, Placed | None, Placed | None]:
        """The entry with the latest record, the last message, and the last that is not of landed results alone."""
        many = 8
        while True:
            path = session.path(last=many)
            marks = [entry for entry in path if record_of(entry) is not None]
            shown = list(placed(path, _no_bytes))
            told = [one for one in shown if not one.has_landed]
            if len(path) < many or (marks and told):
                return marks[-1] if marks else None, _last(shown), _last(told)
            many *= 8

    def _remember(self, session: Session, record: ConversationRecord) -> None:
        for name in (record.head_id, *record.branches):
            if name is not None:
                self._homes[name] = session.session_id
        while len(self._homes) > MOST_HOMES:
            self._homes.popitem(last=False)

    def history(self, head: str, limit: int | None) -> list[ConversationEntry]:
        session = self._home(head)
        leaf = self._place(session, head)
        if leaf is None:
            raise LookupError(f"no entry {head!r} in the conversation it was in; load the conversation again")
        found, before = self._messages(session, leaf, limit)
        messages = ModelMessagesTypeAdapter.validate_python([one.message for one in found])
        names = [before, *(one.name for one in found)]
        return [
            ConversationEntry(id=name, parent_id=parent, message=message)
            for parent, name, message in zip(names, names[1:], messages, strict=False)
            if name is not None
        ]

    def _messages(self, session: Session, leaf: Leaf, limit: int | None) -> tuple[list[Placed], str | None]:
        """The latest messages up to a place, and the name of the one before them."""
        store, many = session.log.store, None if limit is None else 4 * limit + 4
        while many is not None:
            path = store.path(session.session_id, leaf=leaf, newest=many).entries
            if len(path) < many:
                break
            found = list(placed(path, session.read_blob, self._prompt(session, path[0])))
            if limit is not None and len(found) > limit:
                kept = found[len(found) - limit :]
                return kept, found[len(found) - limit - 1].name
            many *= 4
        found = list(placed(store.path(session.session_id, leaf=leaf).entries, session.read_blob))
        first = 0 if limit is None else max(0, len(found) - limit)
        return found[first:], found[first - 1].name if first else None

    def _prompt(self, session: Session, before: Entry) -> str | None:
        place = Leaf(before.branch, before.seq)
        return fold_settings(session.log.store.non_message_entries(session.session_id, leaf=place)).prompt

    def _home(self, name: str) -> Session:
        session_id = self._homes.get(name)
        if session_id is None:
            raise LookupError(
                f"no conversation that was read holds entry {name!r}; load its conversation first"
            )
        return self._store.session(session_id)

    def _place(self, session: Session, name: str) -> Leaf | None:
        """Where in a session's tree an entry of the framework ends."""
        tail = list(placed(session.path(last=8), _no_bytes))
        if tail and tail[-1].name == name:
            return Leaf(tail[-1].branch, tail[-1].seq)
        for entry in (*session.path(), *session.entries()):
            if name_of(entry) == name:
                return Leaf(entry.branch, entry.seq)
        return None

    # -- writing -----------------------------------------------------------------------------------

    def write(
        self, record: ConversationRecord, new: list[ConversationEntry], expected_revision: str | None
    ) -> None:
        session = self.find(record.conversation_id)
        stored = None if session is None else self._record(session)
        if (None if stored is None else stored.revision) != expected_revision:
            raise ConversationConflict(record.conversation_id)
        parent = new[0].parent_id if new else record.head_id
        try:
            if session is None:
                session = self._begin(record, parent)
            elif parent != (None if stored is None else stored.head_id):
                self._move(session, record, parent)
            self._append(session, record, new)
        except StaleLeaf as stale:
            raise ConversationConflict(record.conversation_id) from stale
        self._remember(session, record)

    def _begin(self, record: ConversationRecord, parent: str | None) -> Session:
        tags = {} if record.scope is None else {SCOPE: record.scope}
        about = {"title": record.conversation_id, **self._about}
        about["tags"] = {**about.get("tags", {}), **tags}
        if parent is None:
            return self._store.latest_or_start(record.conversation_id, **about)
        source = None if record.forked_from is None else self.find(record.forked_from)
        leaf = None if source is None else self._place(source, parent)
        if source is None or leaf is None:  # what it was to stand on went meanwhile
            raise ConversationConflict(record.conversation_id)
        return self._fork(source, leaf, record.conversation_id, about)

    def _fork(self, source: Session, leaf: Leaf, conversation_id: str, about: dict[str, Any]) -> Session:
        """Anywhere in the source's tree, also where calls are open: the framework knows how to go on there."""
        store, runtime = self._store.backend, self._store.runtime
        row, detail = store.session_with_detail(source.session_id)
        now = runtime.now()
        new = SessionRow(
            session_id=runtime.new_id("ses"),
            space=row.space,
            owner=row.owner,
            conversation_id=conversation_id,
            agent=row.agent,
            title=about["title"],
            tags=about["tags"],
            relation="fork",
            parent_session=row.session_id,
            model=row.model,
            started_at=now,
            updated_at=now,
        )
        log = Log(store, replace(row, leaf=leaf), runtime)
        made, cursor = log.fork(Cut(leaf.seq, leaf.seq), new, replace(detail, state=None), None)
        return Session(Log(store, made, runtime, cursor))

    def _move(self, session: Session, record: ConversationRecord, parent: str | None) -> None:
        leaf = session.log.leaf_at(0) if parent is None else self._place(session, parent)
        if leaf is None:
            raise ConversationConflict(record.conversation_id)
        session.log.move(leaf)

    def _append(self, session: Session, record: ConversationRecord, new: list[ConversationEntry]) -> None:
        log = session.log
        prompt = (
            fold_settings(log.store.non_message_entries(session.session_id, leaf=log.leaf)).prompt
            if new
            else None
        )
        plan = Plan([call.call.id for call in session.open_tool_calls], prompt, self._tail(session)[1])
        dumped = ModelMessagesTypeAdapter.dump_python([entry.message for entry in new], mode="json")
        for entry, message in zip(new, dumped, strict=True):
            plan.add(message, entry.id)
        plan.mark(_closed(record))
        calls = [self._call(log, log.leaf.seq + index, message) for index, message in plan.answers]
        log.append(plan.drafts, calls=calls)

    def _call(self, log: Log, after: int, answer: Dumped) -> Call:
        told, model = answer["usage"], answer.get("model_name")
        provider = answer.get("provider_name")
        provider = "gemini" if provider is not None and provider.startswith("google") else provider
        usage = Usage(
            told["input_tokens"], told["output_tokens"], told["cache_read_tokens"], told["cache_write_tokens"]
        )
        return Call(
            call_id=log.runtime.new_id(""),
            branch=0,
            after_seq=after,
            answer_seq=after + 1,
            at=log.runtime.now(),
            usage=usage,
            provider=provider,
            model=model,
            price=price(usage, provider, model),
        )

    def land(self, conversation_id: str, part: Dumped) -> None:
        """A result at the moment it came, if the conversation waits for it. Results of one batch may land at once."""
        while (session := self.find(conversation_id)) is not None:
            waiting = [call.call.id for call in session.open_tool_calls]
            if part["tool_call_id"] not in waiting:
                return
            plan = Plan(waiting)
            plan.land(part)
            with suppress(StaleLeaf):
                session.log.append(plan.drafts)
                return

    def delete(self, conversation_id: str, expected_revision: str) -> None:
        session = self.find(conversation_id)
        stored = None if session is None else self._record(session)
        if session is None or stored is None or stored.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        self._store.delete(session.session_id)


def _closed(record: ConversationRecord) -> Dumped:
    """A record without what the session tells itself."""
    return {
        "usage": _usages.dump_python(record.usage, mode="json", exclude_defaults=True),
        "deferred": _requests.dump_python(record.deferred_tool_requests, mode="json"),
        "forked_from": record.forked_from,
        "forked_at": record.forked_at,
        "branches": record.branches,
        "revision": record.revision,
        "updated_at": record.updated_at.isoformat(),
    }


def _opened(row: SessionRow, head: str | None, held: Dumped, moved: Leaf | None) -> ConversationRecord:
    """The record of a session that may have moved since it was written: then it is at a revision of Bough's."""
    updated = held.get("updated_at")
    return ConversationRecord(
        conversation_id=row.conversation_id,
        head_id=head,
        usage=_usages.validate_python(held.get("usage", {})),
        deferred_tool_requests=_requests.validate_python(held.get("deferred")) if moved is None else None,
        scope=row.tags.get(SCOPE),
        forked_from=held.get("forked_from"),
        forked_at=held.get("forked_at"),
        branches=list(held.get("branches", ())),
        revision=held["revision"] if moved is None else f"bough {moved}",
        updated_at=datetime.fromisoformat(updated)
        if updated
        else datetime.fromtimestamp(row.updated_at / 1e6, UTC),
    )


def _last(found: Sequence[Placed]) -> Placed | None:
    return found[-1] if found else None


def _no_bytes(_: str) -> None:
    """For whoever wants to know where messages stand, and not what they show."""
