"""The same workload in Oakleaf, with chain ids, journal, usage ledger, totals and the facts of the turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import oakleaf
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Entry
from oakleaf.core.messages import Message
from oakleaf.core.usage import Call

from .workload import Step, result_of


class Ours:
    def __init__(
        self, path: Path, synchronous: Literal["full", "normal"] = "full", session_id: str | None = None
    ) -> None:
        self.path = path
        self.sessions = oakleaf.open(path, synchronous=synchronous)
        if session_id is None:
            self.session = self.sessions.start(agent="bench")
        else:
            self.session = self.sessions.session(session_id)

    def step(self, step: Step) -> None:
        add(self.session, step)

    def one_by_one(self, turn: Sequence[Step]) -> None:
        """Write the turn as the README does, with one commit per message."""
        with self.session.turn(turn[0].messages[0]) as open_turn:
            for step in turn[1:]:
                open_turn.answer(step.messages[0], usage=step.usage)
                for message in step.messages[1:]:
                    open_turn.result(*result_of(message))

    def load(self) -> list[Entry]:
        return self.session.path()

    def tail(self, count: int) -> list[Entry]:
        return self.session.path(last=count)

    def close(self) -> None:
        self.sessions.close()


def add(session: oakleaf.Session, step: Step) -> None:
    """Append one step in one commit, with the ledger row of `Turn.answer` except for the price."""
    log = session.log
    calls = []
    if step.usage is not None:
        after = log.leaf.seq
        calls.append(Call(log.runtime.new_id(""), 0, after, after + 1, log.runtime.now(), step.usage))
    log.append([Draft(message) for message in step.messages], calls=calls)


def messages_of(turn: Sequence[Step]) -> list[Message]:
    return [message for step in turn for message in step.messages]
