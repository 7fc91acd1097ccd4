"""The sessions of one store: start them, find them, care for them. `bough.open` gives one of these."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from .core.codec import check_text
from .core.drafts import Blob
from .core.media import digest
from .core.messages import Media
from .core.redact import Redactor
from .core.search import parse_query
from .core.turns import Cursor
from .errors import NotAStore, StoreError, WrongSpace
from .log.hydrate import HydratedSession, hydrate
from .log.log import Log
from .log.new_session import new_session
from .log.runtime import Runtime, environment_secrets, real_runtime
from .log.verify import Problem, verify
from .session import Appendable, Session, drafts
from .stores import is_postgres_url
from .stores.base import NewSession, SessionPage, SessionQuery, SessionRow, StoreBackend
from .stores.purge_types import PurgeResult
from .stores.search_types import IndexProgress, SearchPage

if TYPE_CHECKING:
    from .exchange.bundle.transfer import BundleImportResult, PathOrFile
    from .exchange.bundle.write import OnProgress
    from .exchange.importers.ingest import ToolImportResult

GRACE_MICROSECONDS = 3_600 * 1_000_000


class Store:
    """A store opened for one space and, if given, one owner. Safe to use from several threads."""

    def __init__(self, store: StoreBackend, runtime: Runtime | None = None) -> None:
        self.backend = store
        self.runtime = runtime or real_runtime()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store; what was durable is safe, also without."""
        self.backend.close()

    def __repr__(self) -> str:
        return f"Store({self.backend.url!r}, space={self.backend.space!r})"

    # -- starting ----------------------------------------------------------------------------------

    def start(
        self,
        agent: str | None = None,
        seeds: Iterable[Appendable] = (),
        *,
        session_id: str | None = None,
        **about: Any,
    ) -> Session:
        """A new session, durable on return. With `session_id` it is idempotent.

        About it: conversation_id, title, tags, model, context_window, trigger_type, trigger_id, tool_names,
        spec (the frozen agent), policy, state (initial), workspace, owner.
        """
        new, cursor = self._new(agent, seeds, session_id, about)
        row, made = self.backend.create(new)
        return Session(Log(self.backend, row, self.runtime, cursor if made else None))

    def latest_or_start(
        self,
        conversation_id: str,
        agent: str | None = None,
        seeds: Iterable[Appendable] = (),
        *,
        fallback: Store | None = None,
        **about: Any,
    ) -> Session:
        """The session to go on with in this conversation, or a new one: one atomic verb.

        A conversation that is not here and is in the `fallback`, an older store, is taken in first: whole, once.
        From then on it is ours, and the older store is not asked again.
        """
        if fallback is not None:
            from .exchange import copy as moving

            moving.import_conversation(fallback.backend, self.backend, self.runtime, conversation_id)
        new, cursor = self._new(agent, seeds, None, {**about, "conversation_id": conversation_id})
        row, made = self.backend.latest_or_create(new)
        return Session(Log(self.backend, row, self.runtime, cursor if made else None))

    def start_task(
        self, parent: Session, agent: str | None = None, seeds: Iterable[Appendable] = (), **about: Any
    ) -> Session:
        """A child session with its own log. It is recorded in the parent before it exists, so none is ever unknown."""
        session_id = about.pop("session_id", None) or self.runtime.new_id("ses")
        parent.log.record("task_started", data={"child": session_id, "seq": parent.leaf.seq})
        about |= {"relation": "task", "parent_session": parent.session_id, "parent_seq": parent.leaf.seq}
        return self.start(agent, seeds, session_id=session_id, **about)

    def _new(
        self, agent: str | None, seeds: Iterable[Appendable], session_id: str | None, about: dict[str, Any]
    ) -> tuple[NewSession, Cursor]:
        about.setdefault("owner", self.backend.owner)
        return new_session(self.runtime, self.backend.space, agent, drafts(seeds), session_id, about)

    # -- finding -----------------------------------------------------------------------------------

    def session(self, session_id: str) -> Session:
        """A handle on a session, standing at its leaf; `NotFound` if it is absent or another tenant's."""
        return Session(Log(self.backend, self.backend.session(session_id), self.runtime))

    def sessions(self, **query: Any) -> SessionPage:
        """A page of session rows, newest first. Hand `page.next` in as `before` to read on.

        Filters: owner, agent, status, model, conversation_id, relation, parent_session, tag=(name, value), title,
        started_from and started_before (microseconds), trashed. `WrongSpace` if `space` is not this store's.
        """
        space = query.pop("space", None)
        if space not in (None, self.backend.space):
            raise WrongSpace(space, self.backend.space)
        return self.backend.sessions(SessionQuery(**query))

    def all_sessions(self, **query: Any) -> Iterator[SessionRow]:
        """All rows that match, page by page."""
        before = query.pop("before", None)
        while True:
            page = self.sessions(before=before, **query)
            yield from page.sessions
            if page.next is None:
                return
            before = page.next

    def search(
        self,
        typed: str,
        *,
        limit: int = 50,
        before: str | None = None,
        trashed: bool = False,
        catch_up: bool = True,
    ) -> SearchPage:
        """Entries and titles that match, newest branch first: words, "phrases", prefix*, -word and filters.

        Filters: role: kind: tool: model: error: agent: tag: session: before: after:. What is new is indexed
        first; with `catch_up=False` it is not, and `page.unindexed_sessions` says how many sessions are not up to date.
        """
        search = replace(parse_query(typed, self.runtime.now()), limit=limit, before=before, trashed=trashed)
        if catch_up:
            self.backend.index()
        return self.backend.search(search)

    def index(self, progress: IndexProgress | None = None) -> int:
        """Index what is new, which a search does by itself; worth a call of its own when there is much."""
        return self.backend.index(progress)

    def latest(self, conversation_id: str) -> Session | None:
        """The newest session of a conversation; never a child, a fork or a replay."""
        for row in self.all_sessions(conversation_id=conversation_id):
            if row.relation in (None, "import"):
                return Session(Log(self.backend, row, self.runtime))
        return None

    def hydrate(self, session_id: str) -> HydratedSession:
        """Row, seeds, messages, state and totals in one read."""
        return hydrate(Log(self.backend, self.backend.session(session_id), self.runtime))

    # -- moving ------------------------------------------------------------------------------------

    def import_bundle(
        self, source: PathOrFile, *, new_id: bool = False, progress: OnProgress | None = None
    ) -> BundleImportResult:
        """Take a bundle in, from a path or a binary file: all of it or nothing; twice adds nothing.

        `IdConflict` if its id holds other content here; `new_id` takes it in beside, under ids of its own.
        """
        from .exchange.bundle import transfer as bundle  # late, as all that moves sessions

        return bundle.import_bundle(self.backend, self.runtime, source, new_id=new_id, progress=progress)

    def import_from(
        self, tool: str, place: str | None = None, *, new_id: bool = False
    ) -> Iterator[ToolImportResult]:
        """Take in the sessions another tool keeps at a place, or where it keeps them by itself; one after the other.

        Each is taken in whole or not at all. Twice adds nothing, and one that has gone on since adds what it grew by.
        What could not be taken over as it was is told with it. The source is only read.
        """
        from .exchange.importers import read_sessions
        from .exchange.importers.ingest import import_session

        return (
            import_session(self.backend, self.runtime, told, new_id=new_id)
            for told in read_sessions(tool, place)
        )

    def copy(self, session: Session | str, to: Store, *, new_id: bool = False) -> Session:
        """A deep copy of a session and its tasks in another store or space; to share entries here, fork."""
        from .exchange import copy as moving

        name = session if isinstance(session, str) else session.session_id
        return to.session(moving.copy_session(self.backend, name, to.backend, to.runtime, new_id=new_id))

    # -- blobs -------------------------------------------------------------------------------------

    def put_blob(self, data: bytes, mime: str, name: str | None = None) -> Media:
        """Keep bytes once, by content; returns the handle for a message."""
        check_text(mime, "mime type")
        self.backend.put_blob(Blob(digest(data), mime, data), self.runtime.now())
        return Media(digest(data), mime, len(data), name)

    def blob(self, media: Media | str) -> bytes | None:
        """The bytes behind a handle; None if they are missing. Checked against their name."""
        wanted = media if isinstance(media, str) else media.hash
        found = self.backend.blob(wanted)
        if found is not None and digest(found.data) != wanted:
            raise StoreError(
                f"blob {wanted} does not hold the bytes it is named after; restore it from a backup"
            )
        return None if found is None else found.data

    def gc(self, grace: int = GRACE_MICROSECONDS) -> int:
        """Drop blobs that no entry points to and that are older than an hour; returns how many."""
        return self.backend.delete_unreferenced_blobs(self.runtime.now() - grace)

    # -- care --------------------------------------------------------------------------------------

    def delete(self, session_id: str) -> list[str]:
        """Into the trash, its child tasks first; `restore` brings them back. `SessionRunning` while one of them is driven."""
        self.raise_if_running(self.family(session_id))
        return self.backend.trash(session_id, self.runtime.now())

    def restore(self, session_id: str) -> list[str]:
        """Out of the trash, with the tasks that went there with it; returns their ids."""
        return self.backend.restore(session_id)

    def purge(self, session_id: str, *, with_forks: bool = False) -> PurgeResult:
        """For good, from the trash only. What a surviving fork stands on stays until that goes."""
        self.raise_if_running(self.family(session_id, forks=with_forks))
        return self.backend.purge(session_id, with_forks=with_forks)

    def family(self, session_id: str, *, forks: bool = False) -> list[SessionRow]:
        """The rows of what goes where it goes: it and the tasks it started, and theirs; with `forks` those too."""
        row = self.backend.session(session_id)
        shelves = (False, True) if forks else (row.trashed_at is not None,)
        found = {session_id: row}
        waiting = [session_id]
        while waiting:  # a ring of parents is walked once
            query = {"parent_session": waiting.pop(), "relation": None if forks else "task"}
            for child in (child for shelf in shelves for child in self.all_sessions(trashed=shelf, **query)):
                if child.session_id not in found:
                    found[child.session_id] = child
                    waiting.append(child.session_id)
        return list(found.values())

    def raise_if_running(self, rows: Iterable[SessionRow]) -> None:
        """`SessionRunning` if one of them is: what its runner does next would have nowhere to go."""
        for row in rows:
            Log(self.backend, row, self.runtime).raise_if_held(row)

    def verify(self) -> Iterator[Problem]:
        """What is wrong anywhere in this store and space, session by session. Changes nothing."""
        for trashed in (False, True):
            for row in self.all_sessions(trashed=trashed, limit=200):
                yield from verify(self.backend, row.session_id)


def open(
    url: str | os.PathLike[str],
    *,
    space: str = "default",
    owner: str | None = None,
    synchronous: str = "full",
    secrets: Mapping[str, str] | Iterable[str] = (),
    key: str | None = None,
) -> Store:
    """Open a store by a path, `memory:` or `postgresql://…`.

    `secrets` (values, or names and values) never become durable: wherever they appear they are hidden, as are the
    environment's own (by their names) and what looks like a key for certain. `synchronous="normal"` is faster and safe against a killed process, but a power cut may take the last commits.
    `key` encrypts a file, with `apsw-sqlite3mc` in place of `apsw`; it is needed again at every opening.
    """
    check_text(space, "space")
    if synchronous not in ("full", "normal"):
        raise StoreError(f"synchronous={synchronous!r} is unknown; use 'full' or 'normal'")
    where = os.fspath(url)
    if key is not None and (where == "memory:" or "://" in where):
        raise StoreError("key= is for files; PostgreSQL is encrypted by its server's disk and by TLS")
    runtime = real_runtime(Redactor({**environment_secrets(), **_named(secrets)}))
    if where == "memory:":
        from .stores.memory.store import MemoryStore

        return Store(MemoryStore(space=space, owner=owner), runtime)
    if is_postgres_url(where):
        if synchronous != "full":
            raise StoreError(
                "synchronous= is for files; set synchronous_commit on the PostgreSQL server or role"
            )
        return Store(_postgres(where, space, owner), runtime)
    if "://" in where:
        raise NotAStore(where, "only paths, memory: and postgresql:// are known")
    from .stores.sqlite.store import SqliteStore

    return Store(SqliteStore(where, space=space, owner=owner, synchronous=synchronous, key=key), runtime)


def _named(secrets: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    if isinstance(secrets, Mapping):
        return dict(secrets)
    return {f"secret {n}": value for n, value in enumerate(secrets, 1)}


def _postgres(url: str, space: str, owner: str | None) -> StoreBackend:
    try:
        from .stores.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        raise StoreError(f"{error.name} is not installed; pip install 'bough[postgres]' brings it") from None
    return PostgresStore(url, space=space, owner=owner)


__all__ = ["Store", "open"]
