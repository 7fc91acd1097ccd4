"""The agent loop as the steps of a task: one model call and the results of its tools each.

The checkpoint of a step records where it ended and what it cost, and nothing else: the messages are in the log. Its
figures are a function of the log and the ledger, so they are the same when two workers did one half of a step each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Limits
from oakleaf.core.drafts import Draft, NewEntry
from oakleaf.core.entries import Entry, Payload
from oakleaf.core.messages import Message
from oakleaf.core.turns import ENDED_BY_TOOL
from oakleaf.core.typed_json import converter
from oakleaf.core.usage import Call, Totals, total
from oakleaf.ext import Answers, GoesOn, OwnTools, Recorded, RunPolicy
from oakleaf_postgres.absurd.claim import Claim
from oakleaf_postgres.errors import SessionRewound
from oakleaf_postgres.store.guard import SqlEffect

NOT_RUN = ("denied", "interrupted")


class Checkpoint(Struct, frozen=True):
    """Absurd's record of a step."""

    to_message_number: int
    finish_reason: str | None
    usage: Totals
    executed_local_tool_count: int


_to_checkpoint = converter(Checkpoint)


def checkpoint(path: Sequence[Entry], drafts: Sequence[Draft], calls: Iterable[Call]) -> Checkpoint:
    """Return the checkpoint of the step from `path` to `drafts`: answer, results and model calls.

    A step begins after the message that its answer answers; what is in between, such as a summary, is part of it.
    """
    to = (path[-1].seq if path else 0) + len(drafts)
    start, finish, executed, is_answered = 0, None, 0, False
    for seq, payload, finished in _backwards(path, drafts):
        if not isinstance(payload, Message) or finished == ENDED_BY_TOOL:
            continue
        if is_answered:
            start = seq
            break
        if payload.role == "assistant":
            finish, is_answered = finished, True
        executed += sum(result.outcome not in NOT_RUN for result in payload.results)
    return Checkpoint(to, finish, total(call for call in calls if start <= call.after_seq < to), executed)


def step_end(claim: Claim, ends: Checkpoint, entries: Sequence[NewEntry]) -> SqlEffect:
    """Return the effect of the commit at the end of a step; foreign notes may have moved the step's end."""
    last = entries[-1].seq
    return claim.step_end(last, msgspec.json.encode(replace(ends, to_message_number=last)).decode())


def _backwards(path: Sequence[Entry], drafts: Sequence[Draft]) -> Iterator[tuple[int, Payload, str | None]]:
    seq = (path[-1].seq if path else 0) + len(drafts)
    for draft in reversed(drafts):
        yield seq, draft.payload, draft.finish
        seq -= 1
    for entry in reversed(path):
        yield entry.seq, entry.payload, entry.finish


def check_steps(session_id: str, leaf_seq: int, claim: Claim) -> None:
    """Raise SessionRewound unless the session holds the completed steps of the task: no step runs again."""
    for state in claim.completed_steps():
        ended = _to_checkpoint(state).to_message_number
        if ended > leaf_seq:
            raise SessionRewound(session_id, ended, leaf_seq)


def claimed_run(
    claim: Claim,
    answers: Answers,
    tools: OwnTools,
    limits: Limits,
    is_stopping: Callable[[], bool],
    inputs: int,
) -> RunPolicy:
    """Return the policy of a claimed run: each step ends with a checkpoint, for another worker to continue
    from.

    `inputs` is the most queued inputs that the run takes.
    """
    return RunPolicy(
        answers=answers,
        tools=tools,
        limits=limits,
        step_end=lambda path, drafts, calls: partial(step_end, claim, checkpoint(path, drafts, calls)),
        # No client is shown an answer in flight, so a new run asks again instead of keeping half of it.
        recorded=Recorded(queue=claim.queue, drafts=False),
        # The worker looks for requests to cancel, for all of its tasks at once.
        goes_on=GoesOn(
            may_call=lambda: not is_stopping(), inputs=inputs, checks_turn=True, watches_cancel=False
        ),
    )
