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
from .auth import Rules, Who
from .live import Live
from .lru_cache import Recall

P = ParamSpec("P")
R = TypeVar("R")
_PLACE = re.compile(r"(?:(\d{1,18}):)?(\d{1,10})")


class Agent(Struct, frozen=True):
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

    def named(self, name: str) -> Model | str:
        """One of its models by its name, else the name: it may be found by that."""
        known = (model for model in self.models if name in (model.model, f"{model.provider}:{model.model}"))
        return next(known, name)


class Tree(Struct, frozen=True):
    """A session's branches, and how far each belongs to it."""

    branches: dict[int, Branch]
    reach: dict[int, int]

    def holds(self, leaf: Leaf) -> bool:
        branch = self.branches.get(leaf.branch)
        return branch is not None and branch.parent_seq <= leaf.seq <= self.reach.get(leaf.branch, -1)


class Desk:
    def __init__(
        self,
        sessions: Store,
        rules: Rules,
        agent: Agent = Agent(),
        open_for: Callable[[str], Store] | None = None,
    ) -> None:
        self.sessions, self.rules, self.agent = sessions, rules, agent
        self.live = Live()
        self._open_for = open_for
        self._owned: dict[str, Store] = {}
        self._lock = Lock()
        self._trees: Recall[Tree] = Recall()
        self._calls: Recall[dict[tuple[int, int], list[Call]]] = Recall(4)
        self._most: Recall[MessageLimits] = Recall(4)

    def close(self) -> None:
        for sessions in self._owned.values():
            sessions.close()

    # -- whose sessions ----------------------------------------------------------------------------

    def sessions_of(self, who: Who) -> Store:
        """The store as this one may see it; for a client, opened for its owner and nobody else."""
        if not who.is_client or who.owner is None:
            return self.sessions
        with self._lock:
            if who.owner not in self._owned:
                if self._open_for is None:
                    raise NotFound(who.owner)
                self._owned[who.owner] = self._open_for(who.owner)
            return self._owned[who.owner]

    def session(self, who: Who, session_id: str) -> Session:
        """A handle at its leaf. For a client what is trashed or a replay is not there."""
        found = self.sessions_of(who).session(session_id)
        if who.is_client:
            row = found.row
            if row.trashed_at is not None or row.relation == "replay" or row.owner != who.owner:
                raise NotFound(session_id)
        return found

    # -- places ------------------------------------------------------------------------------------

    def tree(self, session: Session, row: SessionRow | None = None) -> Tree:
        """Its branches change only with its facts, so their number names them."""
        row = row or session.row
        return self._trees.of((row.session_id, row.facts), lambda: _tree(session))

    def place(self, session: Session, text: str | None) -> Leaf:
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
        if not self.tree(session).holds(leaf):
            raise InvalidPosition(text, 0, session.leaf.seq)
        return leaf

    def at(self, session: Session, text: str | None) -> Session:
        """A handle that stands at that place; the session itself is not moved."""
        if text is None:
            return session
        log, leaf = session.log, self.place(session, text)
        return Session(Log(log.store, replace(session.row, leaf=leaf), log.runtime))

    def unmoved(self, session: Session, leaf: str | None) -> Session:
        """The session, if it stands where the caller believes."""
        if leaf is not None and str(session.leaf) != leaf:
            raise StaleLeaf(session.session_id, self.place(session, leaf), session.leaf)
        return session

    def calls_by_place(self, session: Session) -> dict[tuple[int, int], list[Call]]:
        """The model calls by the entry that answers them, or behind which they were made."""
        row = session.row
        return self._calls.of((row.session_id, row.facts), lambda: _calls(session))

    def most_messages(self, session: Session) -> MessageLimits:
        """How many messages a model was given at the most, by the turns of which that was said."""
        row = session.row
        return self._most.of((row.session_id, row.facts), lambda: tree_message_limits(session.log))


def _tree(session: Session) -> Tree:
    branches = {branch.branch: branch for branch in session.branches()}
    own = [Leaf(b.branch, b.tail) for b in branches.values() if b.session_id == session.session_id]
    return Tree(branches, reachable_seqs(branches, own))


def _calls(session: Session) -> dict[tuple[int, int], list[Call]]:
    store, found = session.log.store, dict[tuple[int, int], list[Call]]()
    for call in (*store.inherited_calls(session.session_id), *store.calls(session.session_id)):
        seq = call.after_seq if call.answer_seq is None else call.answer_seq
        found.setdefault((call.branch, seq), []).append(call)
    return found


Asked = Request[Any, Any, Any]


def threaded(handler: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """The crossing from the event loop to the store, for a handler that only reads or writes there."""

    @wraps(handler)
    async def crossed(*given: P.args, **named: P.kwargs) -> R:
        return await to_thread.run_sync(partial(handler, *given, **named))

    return crossed


def asked_by(request: Asked) -> tuple[Desk, Who]:
    """The desk, and who stands before it."""
    desk: Desk = request.app.state.desk
    who: Who = request.scope["state"]["who"]
    return desk, who


def names(models: Sequence[Model]) -> list[str]:
    return [model.model for model in models]
