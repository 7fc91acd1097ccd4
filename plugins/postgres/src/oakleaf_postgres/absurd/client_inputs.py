"""Client input: what the database's own clients put into an inbox, through the view `public_input`.

Such an input has no key and no task: the client's role knows neither queues nor secrets. A worker redacts it and spawns
its task in one transaction. Does not run tasks.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from oakleaf.core.codec import decode, encode
from oakleaf.core.redact import Redactor
from oakleaf_postgres.absurd.engine import TaskParams, spawn_turn
from oakleaf_postgres.store.connections import Connection
from oakleaf_postgres.store.store import PostgresStore

SELECT_SPACES = "select space from oakleaf.spaces_with_client_input()"
# Another worker's rows are skipped, and so are those for agents that only other workers have.
SELECT_INPUTS = """
select inbox.session_number, inbox.number, inbox.body, session.id, session.agent
from oakleaf.inbox join oakleaf.session on session.number = inbox.session_number
where inbox.key is null and session.trashed_at is null and session.agent = any(%s)
order by inbox.session_number, inbox.number limit 100 for update of inbox skip locked
"""
UPDATE_INPUT = "update oakleaf.inbox set key = %s, body = %s where session_number = %s and number = %s"


def spaces_with_client_input(store: PostgresStore) -> list[str]:
    """Return the spaces in which a client's input waits for a worker."""
    return [space for (space,) in store.connections.query(SELECT_SPACES)]


def take_client_inputs(store: PostgresStore, queue: str, agents: Iterable[str], redactor: Redactor) -> int:
    """Redact the inputs of clients for these agents in the store's space, and spawn their tasks; return how many."""
    names = list(agents)

    def work(connection: Connection) -> int:
        rows: list[Any] = connection.execute(SELECT_INPUTS, (names,)).fetchall()
        for session_number, number, body, session_id, agent in rows:
            key = secrets.token_hex(16)
            message = redactor.redact_payload(decode("message", bytes(body)))
            connection.execute(UPDATE_INPUT, (key, encode(message), session_number, number))
            spawned = spawn_turn(queue, TaskParams(session_id, store.space, agent), key)
            connection.execute(f"select {spawned.expression}", spawned.values)
        return len(rows)

    return store.connections.write(work)
