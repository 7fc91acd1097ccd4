"""Workers and their queues: how a store takes turns and other tasks, and how a worker hands a task to its handler.

    @entry point of the group `oakleaf.tasks`, under the name of the task
    def run(task: Task, params: dict[str, Any]) -> dict[str, Any]

Any number of workers, on any machine, run the tasks of a queue. What a handler returns is the result of its task; what it
raises fails the attempt, and the task is tried again. Does not know what a task does, nor how a queue is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from oakleaf.agent.tools.tool import Tool
    from oakleaf.models.base import Model
    from oakleaf.store import Store

T = TypeVar("T")
DEFAULT_QUEUE = "oakleaf"
"""Oakleaf's own: a worker puts off a claimed task of another program by 15 to 30 seconds."""
TASK_HOLDER = "task:"
"""The beginning of a session's holder for a task of a worker: `task:QUEUE:ID`."""


class TaskState(Struct, frozen=True):
    """The progress of a task."""

    state: str
    """pending, running, sleeping, completed, failed or cancelled."""
    is_claimed: bool
    """Whether a worker runs the task now."""
    failure: str | None
    """The reason of the latest failure."""

    @property
    def has_ended(self) -> bool:
        return self.state in ("completed", "failed", "cancelled")


class TaskQueue(Protocol):
    """A queue for work outside the turns of a session. `task_queue` returns one."""

    queue: str

    def spawn(
        self, name: str, tasks: Mapping[str, Mapping[str, Any]], *, attempts: int, retry: Mapping[str, Any]
    ) -> None:
        """Spawn tasks from parameters by key. A known key is not spawned again."""

    def states(self, keys: Iterable[str]) -> dict[str, TaskState]:
        """Return the progress of tasks by key; an absent task is left out."""


class EnqueuedTask(Struct, frozen=True):
    """A durable input and the task for the answer."""

    session_id: str
    queue: str
    task_id: str
    seq: int
    """The leaf of the session: the input, unless the input was queued."""


class QueueStatus(Struct, frozen=True):
    """The state of a queue: tasks, workers, and problems."""

    queue: str
    waiting: int
    """Tasks that a worker could run now."""
    waiting_seconds: float
    """The longest wait of a task."""
    running: int
    workers: int
    """Live workers."""
    slots: int
    """The number of tasks that all workers run at once."""
    dead_workers: int
    suspects: list[str]
    """Sessions of the space whose workers died lately."""
    problem: str | None
    hint: str | None


def task_queue(store: Store, queue: str) -> TaskQueue:
    """Return a queue of the store for tasks; raise PostgresRequired if the store has no queues."""
    return store.backend.tasks(queue)


def queue_statuses(store: Store) -> list[QueueStatus]:
    """Return the state of each queue of a store; none if the store has no workers."""
    return store.backend.queues()


class TaskAgent(Protocol):
    """An agent of a worker, with models and tools resolved."""

    @property
    def models(self) -> list[Model]: ...
    @property
    def tools(self) -> dict[str, Tool]: ...


class TaskWorker(Protocol):
    """The worker of a task. The same object for every task of one worker."""

    name: str
    agents: Mapping[str, TaskAgent]

    def is_stopping(self) -> bool:
        """Return whether the worker stops: then a task returns itself with `put_back` at the next good moment."""

    def store(self, space: str) -> Store:
        """Return the store of a space; a write there needs no claim."""


class Task(Protocol):
    """A task claimed by a worker."""

    queue: str
    task_id: str
    attempt: int
    """From 1."""
    deaths: int
    """The number of processes that died with the task."""
    last_death: str | None
    """The known facts about the last death."""
    is_hopeless: bool
    """Whether so many processes died that this attempt is the last: the handler writes down that the task is given up."""
    worker: TaskWorker

    def store(self, space: str) -> Store:
        """Return the store of a space for the task: each write requires the claim, else raises ClaimLost."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the worker's event loop. It is cancelled when the claim is lost, which raises ClaimLost."""

    def put_back(self, seconds: float = 0) -> NoReturn:
        """Return the task to the queue: after so many seconds any worker may take the task. Does not use up an attempt."""


TaskHandler = Callable[[Task, dict[str, Any]], dict[str, Any]]
"""The function of the group `oakleaf.tasks` under the name of a task."""
