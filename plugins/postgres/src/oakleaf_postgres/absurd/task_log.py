"""The log of a worker: a record when a task begins and when it ends, with what an operator filters by.

Uses the standard `logging`, under the name `oakleaf.worker`; a library is silent until its user asks for its log. The fields of
a record are its attribute `fields`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, cast

from absurd_sdk import AbsurdHooks, CancelledTask, ClaimedTask, FailedTask, SuspendTask

log = logging.getLogger("oakleaf.worker")
log.addHandler(logging.NullHandler())


class TaskLog:
    """Logs the tasks of a slot."""

    def __init__(self, worker: str, queue: str, claimed: Callable[[], list[ClaimedTask]]) -> None:
        self._about = {"worker": worker, "queue": queue}
        self._claimed = claimed

    @property
    def hooks(self) -> AbsurdHooks:
        return {"wrap_task_execution": self._run}

    def _run(self, context: Any, execute: Callable[[], Any]) -> Any:
        task, began = self._claimed()[0], time.monotonic()
        params = cast(dict[str, Any], task["params"])
        about = {
            **self._about,
            "task_id": str(task["task_id"]),
            "task": task["task_name"],
            "attempt": task["attempt"],
            "session_id": params.get("session"),
            "space": params.get("space"),
        }
        self._log(logging.INFO, "task_begun", about)
        failure: dict[str, str] = {}
        try:
            result = execute()
            outcome = result.get("stop_reason", "completed") if isinstance(result, dict) else "completed"
            return result
        except BaseException as error:
            outcome = _outcome(error)
            failure = {"error": str(error)} if outcome == "failed" else {}
            raise
        finally:
            level = logging.WARNING if failure else logging.INFO
            seconds = round(time.monotonic() - began, 3)
            self._log(level, "task_ended", {**about, "outcome": outcome, **failure, "seconds": seconds})

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        session = f" of session {fields['session_id']}" if fields["session_id"] else ""
        text = f"{event.replace('_', ' ')}: {fields['task_id']}{session}"
        log.log(level, text, extra={"fields": {"event": event, **fields}})


def _outcome(error: BaseException) -> str:
    match error:
        case SuspendTask():
            return "returned"  # it sleeps, waits for a person, or another process runs it
        case CancelledTask() | FailedTask():
            return "lost"
    return "failed"
