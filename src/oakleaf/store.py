"""A store of sessions: start, find, move, delete and check them. `oakleaf.open()` returns one."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from msgspec.structs import replace

from oakleaf import plugins
from oakleaf.agent.blocking import Awaited, awaited, streamed
from oakleaf.core.codec import check_text
from oakleaf.core.drafts import Blob
from oakleaf.core.entries import Settings
from oakleaf.core.facts import TaskStarted
from oakleaf.core.ids import check_id
from oakleaf.core.media import digest, referenced_digest
from oakleaf.core.messages import Media, ToolResult
from oakleaf.core.redact import NullRedactor, Redactor
from oakleaf.core.search import parse_query
from oakleaf.core.tree import Leaf
from oakleaf.errors import (
    IdTaken,
    InvalidArgument,
    NotAStore,
    NotFound,
    SpacesHidden,
    StoreError,
    WrongOwner,
    WrongSpace,
)
from oakleaf.log.audit import AuditPage, audit
from oakleaf.log.changes import ask, check_callers_key, keyed_session_id
from oakleaf.log.fork import fork
from oakleaf.log.lease import require_free
from oakleaf.log.log import HydratedSession, Log, hydrate
from oakleaf.log.new_session import SessionOptions, find_keyed, new_session
from oakleaf.log.runtime import Runtime, environment_secrets, real_runtime
from oakleaf.log.seal import Seal, SealCheck, check_seal, seal
from oakleaf.log.session_list import headings, session_page
from oakleaf.log.verify import Problem, verify, verify_branches
from oakleaf.log.workspace import Workspace
from oakleaf.session import Appendable, Session, as_drafts
from oakleaf.stores.address import check_store_url, store_scheme
from oakleaf.stores.base import (
    Finding,
    NewSession,
    Order,
    PurgeResult,
    Relation,
    SessionPage,
    SessionQuery,
    SessionRow,
    Status,
    StoreBackend,
)
from oakleaf.stores.counts import UsageSums
from oakleaf.stores.opening import StoreOptions
from oakleaf.stores.search import IndexProgress, SearchPage

if TYPE_CHECKING:
    from oakleaf.agent.notebook import Notebook
    from oakleaf.agent.open_turn import OpenTurn
    from oakleaf.agent.reader import SessionReader, StoreReader
    from oakleaf.agent.tools.tool import Tool
    from oakleaf.bundle.transfer import BundleImportResult, PathOrFile
    from oakleaf.bundle.write import OnProgress
    from oakleaf.ingest.ingest import ToolImportResult
    from oakleaf.ingest.records import SessionRecord
    from oakleaf.log.hooks import Hooks
    from oakleaf.replay.replay import ReplayPlan
    from oakleaf.replay.report import ReplayReport

GRACE_MICROSECONDS = 3_600 * 1_000_000


class SessionFilters(TypedDict, total=False):
    """The filters of `Store.sessions`, explained there."""

    space: str | None
    owner: str | None
    agent: str | None
    status: Status | None
    model: str | None
    conversation_id: str | None
    relation: Relation | None
    parent_session: str | None
    tag: tuple[str, str] | None
    id_prefix: str | None
    title: str | None
    include_children: bool
    started_from: int | None
    started_before: int | None
    trashed: bool
    limit: int


class Store:
    """A store opened for a space and, if given, an owner. Safe to use from several threads."""

    _is_part = False
    """Whether another store has the connections."""

    def __init__(self, backend: StoreBackend, runtime: Runtime | None = None) -> None:
        self.backend = backend
        self.runtime = runtime or real_runtime(store=backend)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the store's connections. Nothing durable depends on closing."""
        if not self._is_part:
            self.backend.close()

    def in_space(self, space: str, *, owner: str | None = None) -> Store:
        """Return this store for another space, and perhaps an owner, on the same connections.

        A process that serves many tenants opens one store and asks it for each of them: that costs nothing. The returned
        store is closed with this one. A store that was opened for an owner stays with the owner: WrongSpace, WrongOwner.
        """
        own = self.backend
        check_space(space)
        if own.owner is not None and space != own.space:
            raise WrongSpace(space, own.space)
        self._check_owner(owner)
        other = copy(self)
        other.backend = own.for_tenant(space, own.owner if owner is None else owner)
        other._is_part = True
        return other

    @property
    def aio(self) -> AsyncStore:
        """The verbs of the store for asyncio: `session = await store.aio.latest("41")`. None blocks the event loop.

        Verbs that return an iterator are iterated over: `async for row in store.aio.all_sessions()`. A cancelled verb is
        cancelled when it has ended. See `Session.aio` for the verbs of a session.
        """
        return AsyncStore(self)

    def spaces(self) -> list[str]:
        """Return the names of all spaces with sessions, also in the trash, sorted: for the operator of the store.

        Raises SpacesHidden for a store that was opened for an owner, and on PostgreSQL for a role to which row level
        security applies: a service of one space sees no other, nor its name.
        """
        names = self.backend.spaces()
        if names is None:
            raise SpacesHidden(self.backend.url, self.backend.space)
        return names

    def __repr__(self) -> str:
        return f"Store({self.backend.url!r}, space={self.backend.space!r})"

    # -- start -------------------------------------------------------------------------------------

    def start(
        self,
        agent: str | None = None,
        seeds: Iterable[Appendable] = (),
        *,
        session_id: str | None = None,
        conversation_id: str | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        model: str | None = None,
        context_window: int | None = None,
        trigger_type: str | None = None,
        trigger_id: str | None = None,
        tool_names: Sequence[str] = (),
        spec: Any = None,
        policy: Any = None,
        state: dict[str, Any] | None = None,
        workspace: Workspace | None = None,
        owner: str | None = None,
        relation: Relation | None = None,
        parent_session: str | None = None,
        parent_seq: int | None = None,
        key: str | None = None,
    ) -> Session:
        """Start a session, durable on return. With `session_id` the call is idempotent.

        With a `key` the session is started once, too, under an id that is made of the key; `KeyReused` if another session
        was asked for under the key.

        `seeds` are the messages a model sees before the first turn. `spec` is the agent's definition, frozen with the
        session; `state` the initial state; `workspace` fills `{{ctx.*}}` in the seeds. `owner` defaults to the store's.
        """
        options: SessionOptions = {
            "title": title,
            "tags": tags or {},
            "model": model,
            "context_window": context_window,
            "trigger_type": trigger_type,
            "trigger_id": trigger_id,
            "tool_names": tool_names,
            "spec": spec,
            "policy": policy,
            "state": state,
            "workspace": workspace,
            "owner": owner,
            "relation": relation,
            "parent_session": parent_session,
            "parent_seq": parent_seq,
        }
        if key is None:
            return self._start(self.backend.create, agent, seeds, session_id, conversation_id, options)
        check_callers_key(key)
        if session_id is not None:
            raise InvalidArgument("session_id", session_id, "none beside a key, which makes the id")
        create = partial(self._create_once, key, [agent, conversation_id, options])
        scope = self._scope(owner)
        return self._start(create, agent, seeds, keyed_session_id(scope, key), conversation_id, options)

    def _scope(self, owner: str | None) -> str:
        """Return where a key of a new session is unique: the space, and the owner's part of it."""
        return f"{self.backend.space}\0{owner or self.backend.owner or ''}"

    def _create_once(self, key: str, request: list[Any], new: NewSession) -> tuple[SessionRow, bool]:
        seeds = [seed.entry_id.hex() for seed in new.seeds]
        asked = ask(self.runtime, key, "start", *request, seeds)
        find = partial(find_keyed, self.backend, self._scope(new.row.owner), asked)
        if (earlier := find()) is not None:
            return earlier, False
        try:
            row, is_new = self.backend.create(replace(new, digest=asked.digest))
        except IdTaken:
            row, is_new = None, False
        found = row if is_new else find()  # another process was first
        assert found is not None
        return found, is_new

    def latest_or_start(
        self,
        conversation_id: str,
        agent: str | None = None,
        seeds: Iterable[Appendable] = (),
        *,
        fallback: Store | str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Session:
        """Return the newest session of a conversation, or start a session, atomically. `options` as for `start`.

        With an `owner`, the newest session of the owner. A conversation found only in `fallback`, an older store or the address
        of a Redis that holds chats (`redis://…`, `redis://…?match=chat:*`), is imported first, whole and once; after
        that `fallback` is not read again for it.
        """
        if fallback is not None:
            from oakleaf.bundle import fallback as conversations

            older = fallback if isinstance(fallback, str) else fallback.backend
            owner = options.get("owner")
            conversations.import_conversation(older, self.backend, self.runtime, conversation_id, owner)
        return self._start(self.backend.latest_or_create, agent, seeds, None, conversation_id, options)

    def start_task(
        self,
        parent: Session,
        agent: str | None = None,
        seeds: Iterable[Appendable] = (),
        *,
        session_id: str | None = None,
        conversation_id: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Session:
        """Start a child session with a log of the child's own. The parent records the child first, so no child is ever unknown."""
        self.runtime.redactor.check_name(session_id, "session id")  # before the parent records it
        check_id(session_id)
        self._check_owner(options.get("owner"))
        session_id = session_id or self.runtime.new_id("ses")
        parent.log.record(TaskStarted(session_id, parent.leaf.seq))
        options["relation"] = "task"
        options["parent_session"], options["parent_seq"] = parent.session_id, parent.leaf.seq
        facts, nth = parent.row.facts, parent.log.branch_number()

        def create(new: NewSession) -> tuple[SessionRow, bool]:
            return self.backend.create(replace(new, parent_facts=facts, parent_nth=nth))

        return self._start(create, agent, seeds, session_id, conversation_id, options)

    def _start(
        self,
        create: Callable[[NewSession], tuple[SessionRow, bool]],
        agent: str | None,
        seeds: Iterable[Appendable],
        session_id: str | None,
        conversation_id: str | None,
        options: SessionOptions,
    ) -> Session:
        self._check_owner(options.get("owner"))
        if options.get("owner") is None:
            options["owner"] = self.backend.owner
        drafts, space = as_drafts(seeds, "seeds"), self.backend.space
        new, cursor = new_session(self.runtime, space, agent, drafts, session_id, conversation_id, options)
        row, is_new = create(new)
        return Session(Log(self.backend, row, self.runtime, cursor if is_new else None))

    def _check_owner(self, owner: str | None) -> None:
        if owner is not None and self.backend.owner not in (None, owner):
            raise WrongOwner(owner, self.backend.owner or "")

    # -- find --------------------------------------------------------------------------------------

    def session(self, session_id: str) -> Session:
        """A handle on a session at the current leaf. Raises NotFound if the session is absent or another tenant's."""
        return Session(Log(self.backend, self.backend.session(session_id), self.runtime))

    def sessions(
        self,
        *,
        space: str | None = None,
        owner: str | None = None,
        agent: str | None = None,
        status: Status | None = None,
        model: str | None = None,
        conversation_id: str | None = None,
        relation: Relation | None = None,
        parent_session: str | None = None,
        tag: tuple[str, str] | None = None,
        id_prefix: str | None = None,
        title: str | None = None,
        include_children: bool = True,
        started_from: int | None = None,
        started_before: int | None = None,
        trashed: bool = False,
        order: Order = "active",
        before: str | None = None,
        limit: int = 50,
    ) -> SessionPage:
        """A page of session rows, last active first, or newest first with `order="created"`.

        Iterate over the page for its rows. Pass `page.next` as `before` to read the next page. A session that becomes active meanwhile moves to the front,
        where only a new listing has it; `all_sessions` misses none. One that is marked running and whose runner is gone
        is listed as interrupted. `tag` is (name, value); times are microseconds since the epoch;
        `include_children=False` leaves out tasks and replays. Raises WrongSpace if `space` is not the one this store
        was opened for.
        """
        if space not in (None, self.backend.space):
            raise WrongSpace(space, self.backend.space)
        query = SessionQuery(
            owner=owner,
            agent=agent,
            status=status,
            model=model,
            conversation_id=conversation_id,
            relation=relation,
            parent_session=parent_session,
            tag=tag,
            id_prefix=id_prefix,
            title=title,
            include_children=include_children,
            started_from=started_from,
            started_before=started_before,
            trashed=trashed,
            order=order,
            before=before,
            limit=limit,
        )
        return session_page(self.backend, query, self.runtime)

    def all_sessions(self, **filters: Unpack[SessionFilters]) -> Iterator[SessionRow]:
        """All rows that match the filters of `sessions`, each once, newest first; read page by page."""
        before: str | None = None
        while True:
            page = self.sessions(order="created", before=before, **filters)
            yield from page
            if page.next is None:
                return
            before = page.next

    def headings(self, rows: Sequence[SessionRow]) -> dict[str, str]:
        """The name of each session for a list: the title, else the first input, else the agent, else the id.

        One line each, by session id; all first inputs are read at once.
        """
        return headings(self.backend, rows)

    def latest(self, conversation_id: str | None = None, *, owner: str | None = None) -> Session | None:
        """The newest session, of a conversation or of the whole space; never a task, a fork or a replay."""
        for row in self.all_sessions(conversation_id=conversation_id, owner=owner, include_children=False):
            if row.relation in (None, "import"):
                return Session(Log(self.backend, row, self.runtime))
        return None

    def hydrate(self, session_id: str) -> HydratedSession:
        """Read a session's row, seeds, messages, state and totals in one read."""
        return hydrate(Log(self.backend, self.backend.session(session_id), self.runtime))

    def search(
        self,
        text: str,
        *,
        limit: int = 50,
        before: str | None = None,
        catch_up: bool = True,
    ) -> SearchPage:
        """Search entries and titles: words, "phrases", prefix*, -word and filters; newest branch first.

        Filters: role: kind: tool: model: error: agent: tag: session: before: after: is:trashed
        is:replay. What replays have written is found with `is:replay`, or in the session named by `session:`; `is:all`
        finds both. New entries are indexed first; with `catch_up=False` they are not, and `page.unindexed_sessions` counts the sessions not fully indexed.
        Iterate over the page for its hits.
        """
        query = parse_query(text, self.runtime.now())
        if catch_up:
            self.backend.index()
        return self.backend.search(replace(query, limit=limit, before=before))

    def index(self, progress: IndexProgress | None = None) -> int:
        """Index new entries. A search indexes too; call `index` for many new entries."""
        return self.backend.index(progress)

    # -- import and copy ---------------------------------------------------------------------------

    def import_bundle(
        self, source: PathOrFile, *, new_id: bool = False, progress: OnProgress | None = None
    ) -> BundleImportResult:
        """Import a bundle from a path or a binary file, whole or not at all. Importing it twice adds nothing.

        Raises IdConflict if its id holds other content here; `new_id=True` imports it under a new id.
        """
        from oakleaf.bundle.transfer import import_bundle

        return import_bundle(self.backend, self.runtime, source, new_id=new_id, progress=progress)

    def import_from(
        self, tool: str, place: str | None = None, *, new_id: bool = False, dry_run: bool = False
    ) -> Iterator[ToolImportResult]:
        """Import another tool's sessions from a place, by default the tool's own, session by session.

        Each is imported whole or not at all. Importing twice adds nothing; a session that has grown adds what is new.
        Each result reports what could not be kept as it was. The source is only read. With `dry_run` nothing is
        written, and each result says what this store would have.
        """
        from oakleaf.ingest.importers import read_sessions

        records = read_sessions(tool, place)
        return (self.import_record(record, new_id=new_id, dry_run=dry_run) for record in records)

    def import_record(
        self, record: SessionRecord, *, new_id: bool = False, dry_run: bool = False
    ) -> ToolImportResult:
        """Import a session read by an importer, whole or not at all, by the rules of `import_from`."""
        from oakleaf.ingest.ingest import import_session, preview_session

        import_one = preview_session if dry_run else import_session
        return import_one(self.backend, self.runtime, record, new_id=new_id)

    def copy(self, session: Session | str, to: Store, *, new_id: bool = False) -> Session:
        """Deep copy a session and the session's tasks to another store or space. Within one space, `fork` copies nothing."""
        from oakleaf.bundle import copy

        session_id = session if isinstance(session, str) else session.session_id
        return to.session(copy.copy_session(self.backend, session_id, to.backend, to.runtime, new_id=new_id))

    # -- blobs -------------------------------------------------------------------------------------

    def put_blob(self, data: bytes, mime: str, name: str | None = None) -> Media:
        """Store bytes once, by content hash, and return the handle for a message."""
        check_text(mime, "mime type")
        self.backend.put_blob(Blob(digest(data), mime, data), self.runtime.now())
        return Media(digest(data), mime, len(data), name)

    def blob(self, media: Media | str) -> bytes | None:
        """The bytes behind a handle, a hash, or a reference within JSON (`[oakleaf-blob:…]`); None for missing bytes.

        The bytes are checked against the hash.
        """
        hash_ = (referenced_digest(media) or media) if isinstance(media, str) else media.hash
        blob = self.backend.blob(hash_)
        if blob is not None and digest(blob.data) != hash_:
            raise StoreError(f"the bytes of blob {hash_} do not match its hash; restore it from a backup")
        return None if blob is None else blob.data

    def gc(self, grace: int = GRACE_MICROSECONDS) -> int:
        """Delete blobs without a reference and older than `grace` microseconds; return the number."""
        return self.backend.delete_unreferenced_blobs(self.runtime.now() - grace)

    # -- maintain ----------------------------------------------------------------------------------

    def delete(self, session_id: str) -> list[str]:
        """Move a session to the trash, tasks first; `restore` undoes the deletion. Raises SessionRunning for a running session."""
        self.raise_if_running(self.family(session_id))
        return self.backend.trash(session_id, self.runtime.now())

    def restore(self, session_id: str) -> list[str]:
        """Restore a session from the trash, with the tasks deleted with it; return their ids."""
        return self.backend.restore(session_id)

    def purge(self, session_id: str, *, with_forks: bool = False, scrub: bool = True) -> PurgeResult:
        """Delete a trashed session for good. Entries that a surviving fork needs stay until that fork goes.

        On SQLite the file is rewritten, so that no byte of it is left. To purge many sessions pass `scrub=False` with all
        but the last: they cannot be read from then on, and the last purge removes their bytes, too.
        """
        with suppress(NotFound):  # an earlier purge may have deleted it and not finished
            self.raise_if_running(self.family(session_id, forks=with_forks))
        return self.backend.purge(session_id, with_forks=with_forks, scrub=scrub)

    def scrub(self) -> bool:
        """Remove every byte of purged sessions from the store's files; False if a reader holds SQLite's log open.

        On PostgreSQL the tables are rewritten, which their owner alone may do. The last `purge` on SQLite does it by itself.
        """
        return self.backend.scrub()

    def family(self, session_id: str, *, forks: bool = False) -> list[SessionRow]:
        """The rows of a session and all tasks, which are deleted together; with `forks` also the forks."""
        row = self.backend.session(session_id)
        trash = (False, True) if forks else (row.trashed_at is not None,)
        rows = {session_id: row}
        parents = [session_id]
        relation: Relation | None = None if forks else "task"
        while parents:  # a cycle of parents is walked once
            parent = parents.pop()
            for trashed in trash:
                for child in self.all_sessions(parent_session=parent, relation=relation, trashed=trashed):
                    if child.session_id not in rows:
                        rows[child.session_id] = child
                        parents.append(child.session_id)
        return list(rows.values())

    def raise_if_running(self, rows: Iterable[SessionRow]) -> None:
        """Raise SessionRunning if any of the sessions is running."""
        for row in rows:
            require_free(row, self.runtime)

    def verify(
        self,
        session_ids: Sequence[str] | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Iterator[Problem]:
        """Check the given sessions, or all of the space, also in the trash, and yield the problems. Changes nothing.

        `progress` is called with the number of checked sessions, and of all.
        """
        trash = (False, True)
        everything = (row for trashed in trash for row in self.all_sessions(trashed=trashed, limit=200))
        names = [row.session_id for row in everything] if session_ids is None else session_ids
        for done, name in enumerate(names, 1):
            yield from verify(self.backend, name)
            progress(done, len(names))
        if session_ids is None:
            yield from verify_branches(self.backend)

    def usage(self, by: str = "bucket", since: int = 0) -> UsageSums:
        """Sum the calls of all sessions since a time, those of replays apart; also of the trash.

        `by` is quarter (of an hour), model, agent, owner, session, purpose or bucket, or `tag:team` for the values of the
        tag `team`.
        """
        return self.backend.usage_by(by, since)

    def audit(
        self,
        after: int,
        before: int | None = None,
        *,
        owner: str | None = None,
        page: str | None = None,
        limit: int = 200,
    ) -> AuditPage:
        """Return the calls of tools with an effect in a span of time, with who allowed each, and how it ended.

        Times are microseconds since 1970. A page covers `limit` sessions; `page` is the `next` of the page before.
        Replays are left out.
        """
        return audit(self.backend, after, before, owner=owner, page=page, limit=limit)

    def seal(self, progress: Callable[[int, int], None] = lambda done, total: None) -> Seal:
        """Return digests of all sessions of the space, also in the trash, as they are now. Changes nothing.

        Keep the seal where nobody who may write the store can write: `check_seal` finds what was altered or removed since.
        """
        return seal(self.backend, self.runtime.now(), progress)

    def check_seal(
        self,
        seal: Seal,
        *,
        session_id: str | None = None,
        purged: Collection[str] = (),
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> SealCheck:
        """Compare the sessions, or one, with a seal. Raises SealRefused for a seal of another store.

        `purged` are the sessions that receipts of purges name. Beside it `verify` checks what came after the seal.
        """
        return check_seal(self.backend, seal, only=session_id, purged=purged, progress=progress)

    def findings(
        self, progress: Callable[[], None] = lambda: None, *, all_spaces: bool = False
    ) -> Iterator[Finding]:
        """Yield the findings, good and bad: sessions that need attention, then the store itself. Changes nothing.

        `progress` is called for each running session. With `all_spaces` the sessions are those of all spaces, each with
        the name of the space; raises SpacesHidden.
        """
        from oakleaf.log.doctor import session_health

        for space in self.spaces() if all_spaces else ():
            for finding in session_health(self.in_space(space).backend, self.runtime, progress):
                yield replace(finding, space=space)
        if not all_spaces:
            yield from session_health(self.backend, self.runtime, progress)
        yield from self.backend.findings()

    def backup(
        self,
        to: str | os.PathLike[str],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Copy the store to a file without blocking writers, over an existing file. Raises StoreLacks if the store is no file."""
        self.backend.backup(to, progress)


class AsyncStore(Awaited[Store]):
    """The verbs of a store for asyncio, each with the arguments and the result of the store's own."""

    close = awaited(Store.close)
    spaces = awaited(Store.spaces)
    start = awaited(Store.start)
    latest_or_start = awaited(Store.latest_or_start)
    start_task = awaited(Store.start_task)
    session = awaited(Store.session)
    sessions = awaited(Store.sessions)
    headings = awaited(Store.headings)
    latest = awaited(Store.latest)
    hydrate = awaited(Store.hydrate)
    search = awaited(Store.search)
    index = awaited(Store.index)
    import_bundle = awaited(Store.import_bundle)
    import_record = awaited(Store.import_record)
    copy = awaited(Store.copy)
    put_blob = awaited(Store.put_blob)
    blob = awaited(Store.blob)
    gc = awaited(Store.gc)
    delete = awaited(Store.delete)
    restore = awaited(Store.restore)
    purge = awaited(Store.purge)
    scrub = awaited(Store.scrub)
    family = awaited(Store.family)
    usage = awaited(Store.usage)
    audit = awaited(Store.audit)
    seal = awaited(Store.seal)
    check_seal = awaited(Store.check_seal)
    backup = awaited(Store.backup)
    all_sessions = streamed(Store.all_sessions)
    import_from = streamed(Store.import_from)
    verify = streamed(Store.verify)
    findings = streamed(Store.findings)


def open(
    url: str | os.PathLike[str],
    *,
    space: str = "default",
    owner: str | None = None,
    synchronous: Literal["full", "normal"] = "full",
    secrets: Mapping[str, str] | Iterable[str] = (),
    key: str | None = None,
    hooks: Sequence[Hooks] = (),
) -> Store:
    """Open a store by path, `memory:`, or a plugin's address such as `postgresql://…`.

    `secrets` (values, or names and values) are redacted before anything becomes durable, as are the environment's
    secrets and everything that has the form of a known kind of key. `synchronous="normal"` is faster and survives a
    killed process, but a power cut may lose the last commits. `key` encrypts a file; it needs `apsw-sqlite3mc`
    installed in place of `apsw`, and is needed at every opening. `hooks` are called before and after each turn, model
    call and tool call of this store's sessions, and may refuse (docs/howto/telemetry.md).
    """
    check_space(space)
    if synchronous not in ("full", "normal"):
        raise StoreError(f"synchronous={synchronous!r} is unknown; use 'full' or 'normal'")
    address = os.fspath(url)
    check_store_url(address)
    if isinstance(secrets, str):
        raise StoreError("secrets is a text; pass a list of values, or a dict of names and values")
    named, unnamed = (secrets, ()) if isinstance(secrets, Mapping) else ({}, secrets)
    redactor = Redactor({**environment_secrets(), **named}, unnamed)
    backend = _open_backend(address, space, owner, StoreOptions(synchronous, key))
    runtime = real_runtime(redactor, backend)
    return Store(backend, replace(runtime, hooks=tuple(hooks)) if hooks else runtime)


def check_space(space: str) -> None:
    if not check_text(space, "space"):
        raise InvalidArgument("space", space, "a name that is not empty")


def _open_backend(url: str, space: str, owner: str | None, options: StoreOptions) -> StoreBackend:
    if url == "memory:":
        from oakleaf.stores.memory.store import MemoryStore

        if options.key is not None:
            raise StoreError("key= is for files; a store in memory has none")
        return MemoryStore(space=space, owner=owner)
    scheme = store_scheme(url)
    if scheme is not None:
        return _open_by_plugin(scheme, url, space, owner, options)
    if url == ":memory:":
        raise NotAStore(url, 'for a store in memory use "memory:"')
    from oakleaf.stores.sqlite.store import SqliteStore

    return SqliteStore(url, space=space, owner=owner, synchronous=options.synchronous, key=options.key)


def _open_by_plugin(
    scheme: str, url: str, space: str, owner: str | None, options: StoreOptions
) -> StoreBackend:
    open_store = plugins.find(plugins.STORES, scheme)
    with plugins.naming(plugins.STORES, scheme, "opening"):
        opened = open_store(url, space=space, owner=owner, options=options)
    if isinstance(opened, StoreBackend):
        return opened
    reason = f"it returned {type(opened).__name__}, not a StoreBackend"
    raise plugins.broken(plugins.STORES, scheme, reason)


# -- doors for plugins, named by `oakleaf.ext` ---------------------------------------------------------


def read(session: Session) -> SessionReader:
    """Return a reader of a session along the path to the handle's leaf."""
    from oakleaf.agent.reader import SessionReader

    return SessionReader(session.log)


def read_store(store: Store) -> StoreReader:
    """Return a reader of the sessions of a store."""
    from oakleaf.agent.reader import StoreReader

    return StoreReader(store.backend, store.runtime)


def draw_tree(session: Session, *, width: int = 100) -> str:
    """Return the whole tree of a session as text, with the leaf marked."""
    return "\n".join(line.fit(width) for line in read(session).tree_lines())


def store_of(session: Session) -> Store:
    """Return the store of a session."""
    return Store(session.log.store, session.log.runtime)


def open_turn(session: Session, row: SessionRow) -> OpenTurn:
    """Return the open turn of a session, for a worker that runs the turn as a task; `row` was just read."""
    from oakleaf.agent.open_turn import OpenTurn

    return OpenTurn(session.log, row)


def session_at(session: Session, leaf: Leaf) -> Session:
    """Return another handle on a session, positioned at any leaf of its tree. The session's own leaf does not move."""
    return Session(session.log.at(leaf))


def run_host_tool(session: Session, said: str, tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
    """Run a tool for the host, recorded like a model's tool call; return the result, which ends the turn.

    `said` is the input. Runs an event loop of its own.
    """
    from oakleaf.agent.host_tool import run_host_tool

    return run_host_tool(session.log, said, tool, arguments)


def notebook(session: Session) -> Notebook:
    """Return the notes of a session with a program's records and no conversation."""
    from oakleaf.agent.notebook import Notebook

    return Notebook(session.log)


def excerpt(session: Session, last: int) -> Session:
    """Return a copy of a session in memory, up to entry `last` of the path; the same bytes each time."""
    from oakleaf.bundle.excerpt import excerpt

    return Session(excerpt(session.log, last))


def scratch_store() -> Store:
    """Open a store in memory without the secrets of the environment: a bundle reads as written."""
    from oakleaf.stores.memory.store import MemoryStore

    return Store(MemoryStore())


async def replay_session(session: Session, plan: ReplayPlan) -> ReplayReport:
    """Replay a session by a plan and compare it with the recording. `Session.replay` does so by keywords."""
    from oakleaf.replay.replay import replay

    return await replay(session.log, plan)


def stuck_sessions(store: Store) -> list[SessionRow]:
    """Return the sessions whose runners are gone, without sessions left to a worker."""
    from oakleaf.log.doctor import stuck_sessions

    return stuck_sessions(store.backend, store.runtime)


def mark_interrupted(store: Store, row: SessionRow) -> None:
    """Mark a session whose runner is gone as interrupted. Raises Fenced if the session has changed hands since `row` was read."""
    from oakleaf.log.doctor import mark_interrupted

    mark_interrupted(store.backend, store.runtime, row)


def import_checked(
    source: PathOrFile,
    open_store: Callable[[], Store],
    *,
    new_id: bool = False,
    progress: OnProgress | None = None,
) -> BundleImportResult:
    """Check all of a bundle, then open a store and import the bundle there: a refused bundle creates no store."""
    from oakleaf.bundle.transfer import open_bundle

    with open_bundle(source, progress) as bundle:
        store = open_store()
        return bundle.import_into(store.backend, store.runtime, new_id=new_id)


def session_of(store: Store, row: SessionRow) -> Session:
    """Return a handle on the session of a row just read, at the row's leaf. Nothing is read."""
    return Session(Log(store.backend, row, store.runtime))


def fork_at(
    session: Session,
    leaf: Leaf,
    *,
    conversation_id: str,
    title: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> Session:
    """Fork anywhere in a session's tree into another conversation. Calls may be open there: the caller continues them."""
    source = session_at(session, leaf).log
    return Session(
        fork(
            source,
            source.place_of(leaf.seq),
            Settings(),
            conversation_id=conversation_id,
            title=title,
            tags=tags,
        )
    )


def without_redaction(value: Store | Session) -> Store | Session:
    """Return a handle on the same store or session that stores text unchanged, secrets included."""
    if isinstance(value, Store):
        return Store(value.backend, replace(value.runtime, redactor=NullRedactor()))
    log = value.log
    return Session(Log(log.store, value.row, replace(log.runtime, redactor=NullRedactor())))


def observe_commits(store: Store, observe: Callable[[float], None]) -> None:
    """Call `observe` after each commit of the store with the seconds taken."""
    store.runtime = replace(store.runtime, on_commit=observe)
