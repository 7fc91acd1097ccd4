"""The same turns in a bare file and in an Oakleaf store, made once and read by several figures."""

from __future__ import annotations

from msgspec import Struct

from .bare import Bare, encode
from .measure import Plan, step_by_step
from .ours import Ours
from .workload import Step, turns_of


class FilledStore(Struct):
    ours: Ours
    bare: Bare
    json_bytes: int
    """Size of all messages as JSON, each counted once."""

    def close(self) -> None:
        self.ours.close()
        self.bare.close()


def fill(plan: Plan, name: str, messages: int) -> FilledStore:
    """Append step by step, as a session grows, without waiting for the disk."""
    steps: list[Step] = [step for turn in turns_of(messages) for step in turn]
    ours = Ours(plan.path(f"{name}-{messages}-ours"), "normal")
    bare = Bare(plan.path(f"{name}-{messages}-bare"), "normal")
    step_by_step({"ours": ours, "bare": bare}, steps)
    size = sum(len(encode(message)) for step in steps for message in step.messages)
    return FilledStore(ours, bare, size)
