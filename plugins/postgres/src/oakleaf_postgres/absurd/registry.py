"""The registry of workers: who works on which queue, and when each was last seen.

A row is written when a worker starts, renewed with its leases and deleted when it stops; a worker that is killed leaves
it. So a queue without a worker, and workers that die again and again, can be reported. Nothing depends on it to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oakleaf_postgres.absurd.claim import ConnectionHandle

CREATE = """
create table if not exists absurd.oakleaf_worker (
    queue      text collate "C" not null,
    name       text collate "C" not null, -- host and process
    started_at timestamptz not null,
    seen_at    timestamptz not null,
    lease      integer not null,          -- in seconds: a worker that was not seen for longer is dead
    slots      integer not null,
    agents     text[] not null,
    primary key (queue, name, started_at)
);
grant select, insert, update, delete on absurd.oakleaf_worker to {service}
"""
DELETE_OLD = "delete from absurd.oakleaf_worker where seen_at < pg_catalog.now() - interval '1 day'"
WRITE = """
insert into absurd.oakleaf_worker (queue, name, started_at, seen_at, lease, slots, agents)
values (%s, %s, %s, pg_catalog.now(), %s, %s, %s) on conflict (queue, name, started_at) do update set seen_at = pg_catalog.now()
"""
DELETE = "delete from absurd.oakleaf_worker where queue = %s and name = %s and started_at = %s"


class Registration:
    """The row of a worker."""

    def __init__(self, queue: str, name: str, lease: int, slots: int, agents: Sequence[str]) -> None:
        self._key = (queue, name, datetime.now().astimezone())
        self._values: tuple[Any, ...] = (lease, slots, sorted(agents))

    def begin(self, handle: ConnectionHandle) -> None:
        handle.execute(DELETE_OLD)
        self.renew(handle)

    def renew(self, handle: ConnectionHandle) -> None:
        handle.execute(WRITE, (*self._key, *self._values))

    def end(self, handle: ConnectionHandle) -> None:
        handle.execute(DELETE, self._key)
