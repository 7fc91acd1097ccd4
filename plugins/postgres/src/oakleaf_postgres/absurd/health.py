"""The health of the engine's queues: tasks that wait, workers that live or died, and tasks that were given up.

Reads only, with one connection and a bounded number of rows. Needs no library of Absurd: `oakleaf doctor` runs anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from oakleaf.core.facts import Enqueued, TurnEnded, TurnLeft, TurnStarted, kind_of
from oakleaf.stores.base import Finding
from oakleaf.stores.tasks import QueueStatus
from oakleaf_postgres.absurd.queue import queue_tables
from oakleaf_postgres.store.connections import Connection

if TYPE_CHECKING:
    from oakleaf_postgres.store.store import PostgresStore

MOST_NAMED = 20
MOST_COUNTED = 10_000
LATE_SECONDS = 30
"""How long a task may wait before a queue without a worker is a problem: one may just be starting."""
CRASH_LOOP = 3
"""How many workers of a queue died within `CRASH_MINUTES` when they die again and again."""
CRASH_MINUTES = 15

# The queues that this role may read, if the engine is installed.
SELECT_QUEUES = """
select queue_name from absurd.queues
where coalesce(has_table_privilege(to_regclass(format('absurd.%I', 't_' || queue_name)), 'select'), false)
order by queue_name limit 100
"""
# By the catalog: in a schema that this role may not use PostgreSQL looks nothing up by its name.
SELECT_RIGHTS = """
select has_schema_privilege(relnamespace, 'usage') and has_table_privilege(pg_class.oid, 'select'), current_user
from pg_class join pg_namespace on pg_namespace.oid = relnamespace
where nspname = 'absurd' and relname = 'oakleaf_worker'
"""
# By the index on state and time of runs, so that neither finished nor sleeping ones are read; counted up to a bound.
# A run whose claim has expired belongs to a worker that died: it waits for another one.
SELECT_TASKS = """
with due as (
    select available_at from absurd.{runs} as run join absurd.{tasks} as task using (task_id)
    where run.state in ('pending', 'sleeping') and available_at <= now() and task_name like 'oakleaf-%%'
    order by available_at limit %(most)s),
claimed as (
    select claim_expires_at from absurd.{runs} as run join absurd.{tasks} as task using (task_id)
    where run.state = 'running' and task_name like 'oakleaf-%%' limit %(most)s),
waiting (since) as (
    select available_at from due union all select claim_expires_at from claimed where claim_expires_at <= now()),
others as (
    select 1 from absurd.{runs} as run join absurd.{tasks} as task using (task_id)
    where run.state in ('pending', 'running') and task_name not like 'oakleaf-%%' limit %(most)s)
select (select count(*) from waiting), (select coalesce(extract(epoch from now() - min(since)), 0)::float8 from waiting),
       (select count(*) from claimed where claim_expires_at > now()),
       (select count(*) from others)
"""
SELECT_WORKERS = """
select name, seen_at + make_interval(secs => lease) > now(), extract(epoch from now() - seen_at)::float8, slots, agents
from absurd.oakleaf_worker where queue = %s and seen_at > now() - make_interval(mins => %s)
order by seen_at desc limit 100
"""
SELECT_SUSPECTS = """
select distinct params ->> 'session' from absurd.{runs} as run join absurd.{tasks} as task using (task_id)
where run.state = 'failed' and available_at > now() - make_interval(mins => %s) and params ->> 'space' = %s and params ? 'session'
  and task.state not in ('completed', 'cancelled')
  and failure_reason ->> 'name' in ('ProcessDied', '$ClaimTimeout') limit %s
"""
# Sessions whose open turn is a worker's: it was enqueued since it was started, and nobody runs it.
TURN_KINDS = (kind_of(TurnStarted), kind_of(TurnEnded), kind_of(Enqueued))
SELECT_ENQUEUED = f"""
select session.id from oakleaf.session cross join lateral (
    select journal.kind from oakleaf.journal where journal.session_number = session.number
      and (journal.kind in {TURN_KINDS}
           or journal.kind = '{kind_of(TurnLeft)}' and journal.data::json ->> 'status' <> 'waiting') order by journal.number desc limit 1) as latest
where session.space = %s and session.status = 'running' and session.trashed_at is null and session.holder is null
  and latest.kind = '{kind_of(Enqueued)}'
order by session.active_at limit %s
"""
SELECT_UNFINISHED = """
select params ->> 'session' from absurd.{runs} as run join absurd.{tasks} as task using (task_id)
where run.state in ('pending', 'sleeping', 'running') and task_name like 'oakleaf-%%' limit %s
"""


class WorkerStatus(Struct, frozen=True):
    name: str
    is_alive: bool
    seen_seconds: float
    """How long ago it was seen."""
    slots: int
    agents: list[str]


class QueueHealth(Struct, frozen=True):
    queue: str
    waiting: int
    """Tasks of Oakleaf that a worker could run now."""
    waiting_seconds: float
    """How long the first of them has been waiting."""
    running: int
    foreign: int
    """Unfinished tasks of other programs."""
    workers: list[WorkerStatus]
    suspects: list[str]
    """Sessions of this space whose workers died lately."""

    @property
    def alive(self) -> list[WorkerStatus]:
        return [worker for worker in self.workers if worker.is_alive]

    @property
    def dead(self) -> list[WorkerStatus]:
        return [worker for worker in self.workers if not worker.is_alive]

    @property
    def summary(self) -> QueueStatus:
        problem = next((finding for finding in findings_of(self) if finding.level == "problem"), None)
        return QueueStatus(
            queue=self.queue,
            waiting=self.waiting,
            waiting_seconds=self.waiting_seconds,
            running=self.running,
            workers=len(self.alive),
            slots=sum(worker.slots for worker in self.alive),
            dead_workers=len(self.dead),
            suspects=self.suspects,
            problem=None if problem is None else problem.message,
            hint=None if problem is None else problem.fix,
        )


def queue_statuses(store: PostgresStore) -> list[QueueHealth]:
    """Return the status of each queue of Oakleaf; none without the engine or the rights."""
    return store.connections.read_snapshot(lambda connection: _read_statuses(connection, store.space))


def _read_statuses(connection: Connection, space: str) -> list[QueueHealth]:
    if not any(may_use for may_use, _ in _rows(connection, SELECT_RIGHTS)):
        return []
    statuses = []
    for (queue,) in _rows(connection, SELECT_QUEUES):
        tables = queue_tables(queue)
        query = SELECT_TASKS.format(**tables)
        waiting, seconds, running, foreign = _rows(connection, query, {"most": MOST_COUNTED})[0]
        workers = [WorkerStatus(*row) for row in _rows(connection, SELECT_WORKERS, (queue, CRASH_MINUTES))]
        suspects = _rows(connection, SELECT_SUSPECTS.format(**tables), (CRASH_MINUTES, space, MOST_NAMED))
        if waiting or running or workers or suspects:
            statuses.append(
                QueueHealth(
                    queue, waiting, seconds, running, foreign, workers, [name for (name,) in suspects]
                )
            )
    return statuses


def _rows(connection: Connection, query: str, values: Any = None) -> list[Any]:
    return connection.execute(query, values).fetchall()


def engine_health(store: PostgresStore) -> list[Finding]:
    """Findings about the queues: waiting tasks without a worker, dying workers, foreign tasks."""
    for may_use, role in store.connections.read_snapshot(lambda connection: _rows(connection, SELECT_RIGHTS)):
        if not may_use:
            message = f"{role!r} may not use the schema absurd: no worker can run and no turn can be enqueued"
            fix = "oakleaf --store URL migrate --queue NAME, as the role that owns the schema"
            return [Finding("problem", message, fix)]
    findings = [finding for status in queue_statuses(store) for finding in findings_of(status)]
    return [*findings, *_lost_turns(store)]


def _lost_turns(store: PostgresStore) -> list[Finding]:
    """Name sessions whose input was accepted for a worker, and whose task does not exist any more."""
    lost = store.connections.read_snapshot(lambda connection: _find_lost_turns(connection, store.space))
    return [
        Finding(
            "problem",
            f"{session_id} has an input that waits for a worker, and no task of a queue that answers it",
            f"oakleaf enqueue --resume {session_id}, or oakleaf resume {session_id}",
            sessions=(session_id,),
        )
        for session_id in lost[:MOST_NAMED]
    ]


def _find_lost_turns(connection: Connection, space: str) -> list[str]:
    waiting = [name for (name,) in _rows(connection, SELECT_ENQUEUED, (space, MOST_COUNTED))]
    may_use = any(may_use for may_use, _ in _rows(connection, SELECT_RIGHTS))
    for (queue,) in _rows(connection, SELECT_QUEUES) if waiting and may_use else []:
        tasks = _rows(connection, SELECT_UNFINISHED.format(**queue_tables(queue)), (MOST_COUNTED,))
        if len(tasks) == MOST_COUNTED:  # so many that the others are not known
            return []
        sessions = {name for (name,) in tasks}
        waiting = [name for name in waiting if name not in sessions]
    return waiting


def findings_of(status: QueueHealth) -> list[Finding]:
    name, alive = f"queue {status.queue!r}", status.alive
    start = f"oakleaf worker --queue {status.queue} --agents FILE.py"
    waiting = f"{_count(status.waiting, 'task')} waiting"
    findings = []
    if status.waiting and not alive and status.waiting_seconds > LATE_SECONDS:
        since = f"the first for {_duration(status.waiting_seconds)}"
        findings.append(Finding("problem", f"{name}: {waiting}, {since}, and no worker", start))
    else:
        slots = sum(worker.slots for worker in alive)
        running = f"{_count(len(alive), 'worker')} with {_count(slots, 'slot')}, {status.running:,} running"
        findings.append(Finding("ok", f"{name}: {running}, {waiting}"))
    dead = status.dead
    if len(dead) >= CRASH_LOOP:
        sessions = ", ".join(status.suspects)
        during = f" while they ran {sessions}" if sessions else ""
        message = f"{name}: {len(dead)} workers died in the last {CRASH_MINUTES} minutes{during}"
        fix = "read the workers' log; a task that ends its process is given up after three deaths of its own"
        findings.append(Finding("problem", message, fix, sessions=tuple(status.suspects)))
    elif dead and not alive:
        last = f"{dead[0].name} was last seen {_duration(dead[0].seen_seconds)} ago"
        findings.append(Finding("warning", f"{name}: {last} and did not stop in order", start))
    if status.foreign:
        message = f"{name} has {_count(status.foreign, 'task')} of other programs: each claim of one delays it by 15 to 30 s"
        fix = "use a queue of its own: oakleaf migrate --queue NAME; oakleaf worker --queue NAME"
        findings.append(Finding("warning", message, fix))
    return findings


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
