"""Client input: what the database's own clients put into an inbox, through the view `public_input`.

Such an input has no key and no task: the client's role knows neither queues nor secrets. A worker redacts it and spawns
a task in one transaction, unless one waits that will take it. Does not run tasks.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from functools import partial
from typing import Any

from oakleaf.core.codec import decode, encode
from oakleaf.core.redact import Redactor
from oakleaf_postgres.absurd.engine import TaskParams, spawn_queued
from oakleaf_postgres.store.connections import SET_SPACE, Connection
from oakleaf_postgres.store.store import PostgresStore

SELECT_SPACES = "select space from oakleaf.spaces_with_client_input()"
# The oldest input of each session comes first: one client with thousands of them delays no other. Those for agents that only
# other workers have are skipped.
SELECT_INPUTS = f"""
select inbox.session_number, inbox.number, session.id, session.agent
from oakleaf.inbox join oakleaf.session on session.number = inbox.session_number
where {SET_SPACE} and inbox.key is null and session.trashed_at is null and session.agent = any(%(agents)s)
order by row_number() over (partition by inbox.session_number order by inbox.number), inbox.at limit 100
"""
# Another worker's row is skipped.
SELECT_BODY = """
select body from oakleaf.inbox where session_number = %s and number = %s and key is null for update skip locked
"""
UPDATE_INPUT = "update oakleaf.inbox set key = %s, body = %s where session_number = %s and number = %s"


def spaces_with_client_input(store: PostgresStore) -> list[str]:
    """Return the spaces in which a client's input waits for a worker."""
    return [space for (space,) in store.connections.query(SELECT_SPACES)]


def take_client_inputs(store: PostgresStore, queue: str, agents: Iterable[str], redactor: Redactor) -> int:
    """Redact the clients' inputs for the agents in the store's space, and ensure tasks for the inputs; return
    the count.
    """
    inputs = store.connections.query(SELECT_INPUTS, {"space": store.space, "agents": list(agents)})

    def take(connection: Connection, place: tuple[int, int], session_id: str, agent: str) -> bool:
        row: Any = connection.execute(SELECT_BODY, place).fetchone()
        if row is None:
            return False
        key = secrets.token_hex(16)
        message = redactor.redact_payload(decode("message", bytes(row[0])))
        connection.execute(UPDATE_INPUT, (key, encode(message), *place))
        spawn_queued(queue, TaskParams(session_id, store.space, agent), key).run(connection)
        return True

    # One at a time: an input may have a megabyte.
    return sum(
        store.connections.write(partial(take, place=(session_number, number), session_id=name, agent=agent))
        for session_number, number, name, agent in inputs
    )
