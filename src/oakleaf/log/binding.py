"""The agent of a session. No other agent answers in the session without an explicit `rebind`."""

from __future__ import annotations

from oakleaf.core.facts import Bound
from oakleaf.errors import AgentBound
from oakleaf.log.log import Log
from oakleaf.stores.base import SessionRow


def bound_agent(log: Log, row: SessionRow) -> str | None:
    """Return the agent of the session. An import names an agent of another place and binds nobody here."""
    if not row.imported_facts:
        return row.agent
    stored = log.store.facts_of(row.session_id, Bound)
    here = [each.fact for each in stored if each.number > row.imported_facts]
    latest = here[-1] if here else None
    return latest.agent if isinstance(latest, Bound) else None


def check_bound(log: Log, agent: str, *, rebind: bool = False) -> str | None:
    """Return the agent of the session; raise `AgentBound` for another agent unless `rebind` is set."""
    bound = bound_agent(log, log.store.session(log.session_id))
    if bound not in (None, agent) and not rebind:
        raise AgentBound(log.session_id, bound, agent)
    return bound


def bind(log: Log, agent: str, *, rebind: bool = False) -> None:
    """Bind the session to an agent and record the binding, unless the agent is bound already."""
    bound = check_bound(log, agent, rebind=rebind)
    if bound == agent:
        return
    log.record(Bound(agent, bound), row={"agent": agent}, fence=log.fence)
