"""Answer the tasks of a replayed tool from the recorded child session, or refuse. No child runs."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from oakleaf.agent.tasks import task_id
from oakleaf.agent.tools.tool import RunTask, TaskOptions
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import is_completed
from oakleaf.errors import InvalidReplay, NotFound
from oakleaf.log.log import Log
from oakleaf.replay.recording import RecordedResult


def recorded_task(source: Log, recorded: RecordedResult | None) -> RunTask:
    """Return the `ctx.task` of a replay.

    The recorded child of the same call and number answers, if the input was the same.
    """

    async def task(key: str, text: str, _: TaskOptions) -> str:
        number = key.rpartition("/")[2]
        answer = await asyncio.to_thread(_answer, source, recorded, number, text)
        if answer is None:
            raise InvalidReplay(
                "this task was not recorded, so it was not run", "replay with the recorded result of the tool"
            )
        return answer

    return task


def _answer(source: Log, recorded: RecordedResult | None, number: str, text: str) -> str | None:
    if recorded is None:
        return None
    store = source.store
    owner_of = {branch.branch: branch.session_id for branch in store.branches(source.session_id)}
    try:
        row = replace(
            store.session(owner_of.get(recorded.branch) or ""), leaf=Leaf(recorded.branch, recorded.seq)
        )
        log = Log(store, row, source.runtime)
        key = f"{log.idempotency_key(recorded.seq, recorded.index)}/{number}"
        entries = store.path(task_id(log, key)).entries
    except NotFound:
        return None
    turn = [entry for entry in entries if entry.turn]
    question, answer = (turn[0].message, turn[-1].message) if turn else (None, None)
    if question is None or answer is None or question.text != text or not is_completed(turn):
        return None
    return answer.text
