"""Deaths of a task: its runs that ended because their process did, and when the task is given up.

A tool that exits, crashes or exhausts the memory takes its worker along, with every task that ran there. Which of them
did it cannot be known, so each of them runs in a process of its own next time. A process that dies then was ended by its
task, or by an operator: the task is given up only after several deaths in the same step. Does not know how a process is
started.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from oakleaf_postgres.absurd.claim import ConnectionHandle
from oakleaf_postgres.absurd.queue import queue_tables

PROCESS_DIED = "ProcessDied"
"""The name of the failure that a worker reports when a task's own process died."""
CLAIM_TIMEOUT = "$ClaimTimeout"
"""The name that Absurd gives to the failure of a run whose worker fell silent."""
MAX_DEATHS_ALONE = 3
MAX_DEATHS = 10
"""Deaths of whole workers count, too: a container is killed as one when a task exhausts its memory."""

# Of the present step: from the last run that ended a step on. What a run failed with otherwise does not matter.
SELECT_DEATHS = """
select pg_catalog.count(*) filter (where failure_reason ->> 'name'::text = %(alone)s), pg_catalog.count(*),
       (pg_catalog.array_agg(case when failure_reason ->> 'name'::text = %(alone)s then failure_reason ->> 'message'::text
                       else 'its worker fell silent' end order by attempt desc))[1]
from absurd.{runs} where task_id = %(task_id)s and attempt < %(attempt)s
  and failure_reason ->> 'name'::text in (%(alone)s, %(silent)s)
  and attempt >= coalesce((
    select pg_catalog.max(attempt) from absurd.{runs} as run
    where run.task_id = %(task_id)s
      and exists (select 1 from absurd.{checkpoints} where task_id = %(task_id)s and owner_run_id = run.run_id)), 0)
"""
# A run whose worker died was no failure of the task: it does not use up an attempt.
RETURN_ATTEMPT = """
update absurd.{tasks} set max_attempts = max_attempts + 1 where task_id = %(task_id)s and exists (
    select 1 from absurd.{runs} where task_id = %(task_id)s and attempt = %(attempt)s - 1
      and failure_reason ->> 'name'::text in (%(alone)s, %(silent)s))
"""
USE_UP_ATTEMPTS = "update absurd.{tasks} set max_attempts = attempts where task_id = %(task_id)s"
FAIL_RUN = """
select absurd.fail_run(%s, %s, pg_catalog.jsonb_build_object('name', %s::text, 'message', %s::text),
                       absurd.current_time() + pg_catalog.make_interval(secs => %s::float8))
"""


class Deaths(Struct, frozen=True):
    alone: int = 0
    """How often the task's own process died in this step."""
    total: int = 0
    """How often a process died that ran this step, also when other tasks ran there."""
    last: str | None = None
    """What is known of the last one."""

    @property
    def is_hopeless(self) -> bool:
        return self.alone >= MAX_DEATHS_ALONE or self.total >= MAX_DEATHS


class TaskDeaths:
    """The deaths of a task, at the present attempt."""

    def __init__(self, handle: ConnectionHandle, queue: str, task: Any) -> None:
        self._handle, self._queue, self._task = handle, queue, task
        self._tables = queue_tables(queue)

    def count(self) -> Deaths:
        """Count the deaths of the present step; the last death does not use up an attempt. No query for a
        first attempt.
        """
        if self._task["attempt"] == 1:
            return Deaths()
        self._execute(RETURN_ATTEMPT)
        return Deaths(*self._execute(SELECT_DEATHS)[0])

    def fail_run(self, reason: str, pause: float) -> None:
        """Record the death of the own process; the task is tried again after `pause` seconds."""
        self._handle.execute(FAIL_RUN, (self._queue, self._task["run_id"], PROCESS_DIED, reason, pause))

    def use_up_attempts(self) -> None:
        """Let the next failure of the task be the last."""
        self._execute(USE_UP_ATTEMPTS)

    def _execute(self, query: str) -> list[Any]:
        values = {
            "task_id": self._task["task_id"],
            "attempt": self._task["attempt"],
            "alone": PROCESS_DIED,
            "silent": CLAIM_TIMEOUT,
        }
        return self._handle.execute(query.format(**self._tables), values)
