"""What handlers share: the store as each caller may see it, the agent that answers, and live events.

Handlers get sessions only from `ServerContext`, which checks what the caller may see. Positions in requests are
untrusted: they are checked against the session's tree before anything is read there.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from functools import partial, wraps
from threading import Lock
from typing import Any, Generic, ParamSpec, TypeVar

from anyio import to_thread
from litestar import Request
from msgspec import Struct

from oakleaf import Limits, Workspace
from oakleaf.core.entries import Effects, Settings
from oakleaf.core.tree import Branch, Leaf, reachable_seqs
from oakleaf.errors import InvalidPosition, ModelRefused, ModelUnavailable, NotFound
from oakleaf.ext import ToolLike, plugin_tools, read, read_store, session_at, with_approval, with_defaults
from oakleaf.models.base import Model, model_name
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf_server.auth import AccessSettings, Caller
from oakleaf_server.live import LiveHub, StorePoller
from oakleaf_server.metrics import Metrics
from oakleaf_server.search_indexer import SearchIndexer

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")
_POSITION = re.compile(r"(?:(\d{1,18}):)?(\d{1,10})")


class ServerAgent(Struct, frozen=True):
    """The models, tools and limits for answering messages to the server."""

    models: tuple[Model, ...] = ()
    tools: tuple[ToolLike, ...] = ()
    limits: Limits | None = None
    default_limits: dict[str, Any] = {}
    """Limits for a session that has none of the same name."""
    workspace: Workspace | None = None
    commands: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    """Options of its models' calls, for a session that has none of the same name."""
    offered: tuple[Model, ...] = ()
    """Further models, which a request may name."""
    effects: Effects | None = None
    """What becomes of an unsafe call that a path which was left has made, for a session whose path does not say."""
    approval: bool | tuple[str, ...] = ()
    """The names of the tools of its workspace whose calls wait for approval, or True for all."""

    def tools_of(self, session: Session) -> list[ToolLike]:
        """Return the agent's tools and the workspace tools, which store long output in the session."""
        if self.workspace is None:
            return list(self.tools)
        own = plugin_tools("workspace", session, self.workspace, commands=self.commands, env=self.env)
        return [*self.tools, *with_approval(own, self.approval)]

    def limits_of(self, settings: Settings) -> Limits:
        """Return the agent's limits of a turn in a session with the settings."""
        return with_defaults(self.limits or Limits(), self.default_limits, settings)

    @property
    def model_names(self) -> list[str]:
        """The names of the models a request may name: the answering models, and the offered models."""
        names = (model_name(model) or model.model for model in (*self.models, *self.offered))
        return list(dict.fromkeys(names))

    def find_model(self, name: str) -> Model | None:
        """Return the model of the name, if offered by the operator. A name that a caller or a session gives
        is
        compared, never resolved: resolved it could name a file or an address."""
        for model in (*self.models, *self.offered):
            if name in (model.model, f"{model.provider}:{model.model}", model_name(model)):
                return model
        return None

    def requested_model(self, name: str) -> Model:
        """Return the model in a request; raise ModelRefused for a model not offered by the operator."""
        model = self.find_model(name)
        if model is None:
            offers = f"it offers {', '.join(self.model_names)}" if self.model_names else "it offers none"
            raise ModelRefused(
                name,
                f"a request names it and this server does not offer it; {offers}",
                "the operator offers another: oakleaf serve --offer NAME",
            )
        return model

    def check_model(self, name: str | None) -> None:
        """Raise ModelRefused for a request's model not offered by the operator."""
        if name is not None:
            self.requested_model(name)

    def answering_models(self, requested: str | None, setting: str | None) -> list[Model]:
        """Return the request's model, else the session's offered setting, else the agent's models. The other
        models that stored data names are not asked.
        """
        if requested is not None:
            return [self.requested_model(requested)]
        if setting is not None and (model := self.find_model(setting)) is not None:
            return [model]
        if not self.models:
            name = f"name one that is offered, in the request: {', '.join(self.model_names)}; or "
            raise ModelUnavailable(
                "this server",
                "no model is configured that answers",
                f"{name if self.offered else ''}start oakleaf serve with --model",
            )
        return list(self.models)


class BranchTree(Struct, frozen=True):
    """A session's branches, and each branch's last seq within the session."""

    branches: dict[int, Branch]
    reach: dict[int, int]

    def contains(self, leaf: Leaf) -> bool:
        branch = self.branches.get(leaf.branch)
        return branch is not None and branch.parent_seq <= leaf.seq <= self.reach.get(leaf.branch, -1)


class LruCache(Generic[V]):
    """Caches values derived from immutable facts, keyed by the facts' identity."""

    def __init__(self, size: int = 16) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the cached value or compute it; concurrent callers may compute it twice."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value


class ServerContext:
    def __init__(
        self,
        store: Store,
        access: AccessSettings,
        agent: ServerAgent = ServerAgent(),
        metrics: Metrics | None = None,
    ) -> None:
        self.store, self.access, self.agent, self.metrics = store, access, agent, metrics
        self.live, self.indexer = LiveHub(), SearchIndexer(store.index)
        self.poller = StorePoller(read_store(store), self.live)
        self._trees: LruCache[BranchTree] = LruCache()

    # -- sessions ----------------------------------------------------------------------------------

    def store_of(self, caller: Caller) -> Store:
        """Return the store in the caller's view: a client sees only the owner's content."""
        if not caller.is_client or caller.owner is None:
            return self.store
        return self.store.in_space(read_store(self.store).space, owner=caller.owner)

    def session(self, caller: Caller, session_id: str) -> Session:
        """Return a session at its leaf. For a client exist its owner's sessions, except trashed ones, tasks and replays.

        PostgreSQL's view `own_session` says the same: a task's input and answer are its parent's tool call and result.
        """
        session = self.store_of(caller).session(session_id)
        if caller.is_client:
            row = session.row
            is_internal = row.relation in ("task", "replay")
            if row.trashed_at is not None or is_internal or row.owner != caller.owner:
                raise NotFound(session_id)
        return session

    # -- positions ---------------------------------------------------------------------------------

    def tree(self, session: Session) -> BranchTree:
        """Return the branches of a session, cached by the number of facts: branches change only with facts."""
        row = session.row
        return self._trees.get((row.session_id, row.facts), lambda: _load_tree(session))

    def position(self, session: Session, text: str | None) -> Leaf:
        """Parse `3:7`, or `7` on the current path; raise InvalidPosition for a position outside of the tree."""
        if text is None:
            return session.leaf
        match = _POSITION.fullmatch(text)
        if match is None:
            raise InvalidPosition(text, 0, session.leaf.seq)
        branch, seq = match.groups()
        if branch is None:
            return read(session).leaf_at(int(seq))
        leaf = Leaf(int(branch), int(seq))
        if not self.tree(session).contains(leaf):
            raise InvalidPosition(text, 0, session.leaf.seq)
        return leaf

    def session_at(self, session: Session, text: str | None) -> Session:
        """Return a handle whose leaf is at a position; the stored session does not move."""
        if text is None:
            return session
        return session_at(session, self.position(session, text))


def _load_tree(session: Session) -> BranchTree:
    branches = {branch.branch: branch for branch in session.branches()}
    own = [Leaf(b.branch, b.tail) for b in branches.values() if b.session_id == session.session_id]
    return BranchTree(branches, reachable_seqs(branches, own))


ApiRequest = Request[Any, Any, Any]


def in_thread(handler: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """Run a synchronous handler in a worker thread, because the store blocks."""

    @wraps(handler)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return await to_thread.run_sync(partial(handler, *args, **kwargs))

    return run


def few_at_once(handler: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """Run a handler with thousands of entries in a worker thread, few at a time, to bound memory.

    Others wait without holding a thread.
    """
    run_in_thread = in_thread(handler)

    @wraps(handler)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        request: Any = kwargs["request"]
        async with request.app.state.wide_reads:
            return await run_in_thread(*args, **kwargs)

    return run


def context_and_caller(request: ApiRequest) -> tuple[ServerContext, Caller]:
    """Return the server context and the caller of a request."""
    context: ServerContext = request.app.state.context
    caller: Caller = request.scope["state"]["caller"]
    return context, caller


def find_session(request: ApiRequest, session_id: str, at: str | None = None) -> Session:
    """Return a session in the caller's view, at a position of the tree, or at the leaf."""
    context, caller = context_and_caller(request)
    return context.session_at(context.session(caller, session_id), at)
