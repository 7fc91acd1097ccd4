"""Tasks that are no turn of a session: a plugin runs each, found in the group `oakleaf.tasks` by the task's name.

Hands a claimed task to its handler as `oakleaf.stores.tasks.Task`. Does not know what a handler does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from absurd_sdk import SuspendTask

from oakleaf import Store, plugins
from oakleaf.errors import ClaimLost, OakleafError
from oakleaf_postgres.absurd.claim import Claim
from oakleaf_postgres.absurd.deaths import Deaths

if TYPE_CHECKING:
    from oakleaf_postgres.absurd.worker import LoadedAgent, Worker

T = TypeVar("T")


class HandlerWorker:
    """A handler's view of the worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.name: str = worker.name
        self.agents: Mapping[str, LoadedAgent] = worker.agents

    def is_stopping(self) -> bool:
        return self._worker.stopping.is_set()

    def store(self, space: str) -> Store:
        return Store(self._worker.store(space), self._worker.runtime)


class HandlerTask:
    """A handler's view of the task."""

    def __init__(self, worker: Worker, claim: Claim, deaths: Deaths) -> None:
        self._worker, self._claim = worker, claim
        self.worker = worker.for_handlers
        self.queue, self.task_id, self.attempt = claim.queue, claim.task_id, claim.attempt
        self.deaths, self.last_death, self.is_hopeless = deaths.total, deaths.last, deaths.is_hopeless

    def store(self, space: str) -> Store:
        claimed = self._worker.claimed_store(space, self._claim)
        return Store(claimed, self._worker.claimed_runtime(self._claim))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(run_claimed(self._claim, work), self._worker.loop).result()

    def put_back(self, seconds: float = 0) -> NoReturn:
        self._claim.reschedule(seconds)
        raise SuspendTask


async def run_claimed(claim: Claim, work: Coroutine[Any, Any, T]) -> T:
    """Run the work, cancel the work after the loss of the claim, and wait for the end: then the slot is free."""
    events = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    claim.on_loss(lambda: events.call_soon_threadsafe(task.cancel))
    await asyncio.wait([task])
    if claim.is_lost:
        task.cancelled() or task.exception()  # retrieved, or asyncio logs it
        raise ClaimLost(claim.queue, claim.task_id)
    return task.result()


class PluginTasks:
    """Runs the tasks of a name by the plugin's handler."""

    def __init__(self, name: str) -> None:
        self._name, self._run = name, plugins.find(plugins.TASKS, name)
        if not callable(self._run):
            raise plugins.broken(
                plugins.TASKS,
                self._name,
                f"it is {type(self._run).__name__}, not a function of a task and its parameters",
            )

    def __call__(self, worker: Worker, claim: Claim, params: Any, deaths: Deaths) -> dict[str, Any]:
        result = self._run(HandlerTask(worker, claim, deaths), params)
        if not isinstance(result, dict):
            raise plugins.broken(
                plugins.TASKS, self._name, f"it returned {type(result).__name__}, not a dict"
            )
        return result


def plugin_handlers(report: Callable[[str], None]) -> dict[str, PluginTasks]:
    """Return the handlers of all plugins. One that cannot be used is reported; its tasks wait for a worker that can."""
    handlers = {}
    for name in plugins.names(plugins.TASKS):
        try:
            handlers[name] = PluginTasks(name)
        except OakleafError as error:
            report(f"tasks {name!r} do not run here: {error}")
    return handlers
