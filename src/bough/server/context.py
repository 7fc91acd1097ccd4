"""What the server works with: the store, as each one who asks may see it, who answers, and what is going on.

Every handler asks the desk for a session, and the desk decides whether there is one for whoever asks. Places
come from outside and are checked against the session's own tree before anything is read there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from anyio import to_thread
from litestar import Request
from msgspec import Struct
from msgspec.structs import replace

from ..agent.limits import Limits
from ..agent.prompt_window import MessageLimits, tree_message_limits
from ..agent.tools.tool import Tool
from ..core.tree import Branch, Leaf, reachable_seqs
from ..core.usage import Call
from ..errors import InvalidPosition, NotFound, StaleLeaf
from ..log.log import Log
from ..log.workspace import Workspace
from ..models.model import Model
from ..session import Session
from ..store import Store
from ..stores.base import SessionRow
from .auth import AccessSettings, Caller
from .live import LiveHub
from .lru_cache import LruCache

P = ParamSpec("P")
R = TypeVar("R")
_PLACE = re.compile(r"(?:(\d{1,18}):)?(\d{1,10})")


class ServerAgent(Struct, frozen=True):
    """Who answers what is sent to this server, and with which tools."""

    models: tuple[Model, ...] = ()
    tools: tuple[Tool, ...] = ()
    limits: Limits | None = None
    workspace: Workspace | None = None
    commands: tuple[str, ...] = ()

    def tools_of(self, session: Session) -> list[Tool]:
        """Its own, and the workspace's, which keep their long output in this session."""
        if self.workspace is None:
            return list(self.tools)
        return [*self.tools, *session.workspace_tools(self.workspace, commands=self.commands)]

    def find_model(self, name: str) -> Model | str:
        """One of its models by its name, else the name: it may be found by that."""
        known = (model for model in self.models if name in (model.model, f"{model.provider}:{model.model}"))
        return next(known, name)


class BranchTree(Struct, frozen=True):
    """A session's branches, and how far each belongs to it."""

    branches: dict[int, Branch]
    reach: dict[int, int]

    def contains(self, leaf: Leaf) -> bool:
        branch = self.branches.get(leaf.branch)
        return branch is not None and branch.parent_seq <= leaf.seq <= self.reach.get(leaf.branch, -1)


class ServerContext:
    def __init__(
        self,
        store: Store,
        access: AccessSettings,
        agent: ServerAgent = ServerAgent(),
        open_for_owner: Callable[[str], Store] | None = None,
    ) -> None:
        self.store, self.access, self.agent = store, access, agent
        self.live = LiveHub()
        self._open_for_owner = open_for_owner
        self._owner_stores: dict[str, Store] = {}
        self._lock = Lock()
        self._trees: LruCache[BranchTree] = LruCache()
        self._calls: LruCache[dict[tuple[int, int], list[Call]]] = LruCache(4)
        self._prompt_limits: LruCache[MessageLimits] = LruCache(4)

    def close(self) -> None:
        for sessions in self._owner_stores.values():
            sessions.close()

    # -- whose sessions ----------------------------------------------------------------------------

    def store_of(self, caller: Caller) -> Store:
        """The store as this one may see it; for a client, opened for its owner and nobody else."""
        if not caller.is_client or caller.owner is None:
            return self.store
        with self._lock:
            if caller.owner not in self._owner_stores:
                if self._open_for_owner is None:
                    raise NotFound(caller.owner)
                self._owner_stores[caller.owner] = self._open_for_owner(caller.owner)
            return self._owner_stores[caller.owner]

    def session(self, caller: Caller, session_id: str) -> Session:
        """A handle at its leaf. For a client what is trashed or a replay is not there."""
        found = self.store_of(caller).session(session_id)
        if caller.is_client:
            row = found.row
            if row.trashed_at is not None or row.relation == "replay" or row.owner != caller.owner:
                raise NotFound(session_id)
        return found

    # -- places ------------------------------------------------------------------------------------

    def tree(self, session: Session, row: SessionRow | None = None) -> BranchTree:
        """Its branches change only with its facts, so their number names them."""
        row = row or session.row
        return self._trees.get((row.session_id, row.facts), lambda: _load_tree(session))

    def position(self, session: Session, text: str | None) -> Leaf:
        """`3:7`, or `7` on the present path, as a place of this session's tree; `InvalidPosition` for any other."""
        if text is None:
            return session.leaf
        match = _PLACE.fullmatch(text)
        if match is None:
            raise InvalidPosition(text, 0, session.leaf.seq)
        branch, seq = match.groups()
        if branch is None:
            return session.log.leaf_at(int(seq))
        leaf = Leaf(int(branch), int(seq))
        if not self.tree(session).contains(leaf):
            raise InvalidPosition(text, 0, session.leaf.seq)
        return leaf

    def session_at(self, session: Session, text: str | None) -> Session:
        """A handle that stands at that place; the session itself is not moved."""
        if text is None:
            return session
        log, leaf = session.log, self.position(session, text)
        return Session(Log(log.store, replace(session.row, leaf=leaf), log.runtime))

    def require_leaf(self, session: Session, leaf: str | None) -> Session:
        """The session, if it stands where the caller believes."""
        if leaf is not None and str(session.leaf) != leaf:
            raise StaleLeaf(session.session_id, self.position(session, leaf), session.leaf)
        return session

    def calls_by_entry(self, session: Session) -> dict[tuple[int, int], list[Call]]:
        """The model calls by the entry that answers them, or behind which they were made."""
        row = session.row
        return self._calls.get((row.session_id, row.facts), lambda: _load_calls(session))

    def prompt_limits(self, session: Session) -> MessageLimits:
        """How many messages a model was given at the most, by the turns of which that was said."""
        row = session.row
        return self._prompt_limits.get((row.session_id, row.facts), lambda: tree_message_limits(session.log))


def _load_tree(session: Session) -> BranchTree:
    branches = {branch.branch: branch for branch in session.branches()}
    own = [Leaf(b.branch, b.tail) for b in branches.values() if b.session_id == session.session_id]
    return BranchTree(branches, reachable_seqs(branches, own))


def _load_calls(session: Session) -> dict[tuple[int, int], list[Call]]:
    store, found = session.log.store, dict[tuple[int, int], list[Call]]()
    for call in (*store.inherited_calls(session.session_id), *store.calls(session.session_id)):
        seq = call.after_seq if call.answer_seq is None else call.answer_seq
        found.setdefault((call.branch, seq), []).append(call)
    return found


ApiRequest = Request[Any, Any, Any]


def in_thread(handler: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """The crossing from the event loop to the store, for a handler that only reads or writes there."""

    @wraps(handler)
    async def crossed(*given: P.args, **named: P.kwargs) -> R:
        return await to_thread.run_sync(partial(handler, *given, **named))

    return crossed


def context_and_caller(request: ApiRequest) -> tuple[ServerContext, Caller]:
    """The desk, and who stands before it."""
    context: ServerContext = request.app.state.context
    caller: Caller = request.scope["state"]["caller"]
    return context, caller


def model_names(models: Sequence[Model]) -> list[str]:
    return [model.model for model in models]
