"""A replay whose plan names its session continues in it, whichever commit was its last: the same entries, the same report."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from oakleaf import RecordedModel, ScriptedModel, Session, Store, ToolCall, assistant
from oakleaf.core.usage import Usage
from oakleaf.replay.replay import Replay, ReplayPlan, ReplayTarget
from oakleaf.replay.report import ReplayReport
from oakleaf.stores.base import Change, CommitResult
from oakleaf.stores.memory.store import MemoryStore
from support.random_recordings import Turn, record, scripts
from support.runtime import deterministic_runtime
from support.soak import SOAK

TARGET = "ses_target"


class Killed(BaseException):
    """The process is gone: nothing more is written."""


class DyingStore(MemoryStore):
    """A store that a process can write to only so often."""

    commits_left: int | None = None

    def commit(self, change: Change) -> CommitResult:
        if self.commits_left == 0:
            raise Killed
        if self.commits_left is not None:
            self.commits_left -= 1
        return super().commit(change)


def replay(session: Session, target: str, **how: Any) -> ReplayReport:
    plan = ReplayPlan(target=ReplayTarget(target, {"lab": "x"}), **how)
    return asyncio.run(Replay(session.log, plan).run())


def entry_ids(store: Store, session_id: str) -> list[bytes]:
    return [entry.entry_id for entry in store.session(session_id).path()]


@example([Turn("go", (), "yes", None), Turn("go", (), "yes", "limit")], [7], "strict", "stop")
@settings(max_examples=1_500 if SOAK else 25, deadline=None)
@given(
    scripts,
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.sampled_from(["strict", "recorded", "other"]),
    st.sampled_from(["stop", "next"]),
)
def test_killed_after_any_commit_it_continues(
    script: list[Turn], lives: list[int], kind: str, on_miss: Any
) -> None:
    backend = DyingStore()
    store = Store(backend, deterministic_runtime())
    session = record(store, script)

    def how() -> dict[str, Any]:
        if kind == "strict":
            return {"mode": "strict"}
        model = RecordedModel(session.path()) if kind == "recorded" else ScriptedModel(other_answer)
        return {"model": model, "mode": "recorded", "on_miss": on_miss}

    whole = replay(session, "ses_whole", **how())
    for commits in lives:
        backend.commits_left = commits
        try:
            replay(session, TARGET, **how())
        except Killed:
            continue
        finally:
            backend.commits_left = None
    final = replay(session, TARGET, **how())
    assert entry_ids(store, TARGET) == entry_ids(store, "ses_whole")
    assert (final.stop_reason, final.turns) == (whole.stop_reason, whole.turns)
    assert final.diff.rows == whole.diff.rows or kind != "strict"
    assert [row.kind for row in final.rows] == [row.kind for row in whole.rows]
    assert answered_usage(store, TARGET) == answered_usage(store, "ses_whole")
    assert final.is_source_unchanged
    assert list(store.verify()) == []


def other_answer(request: Any) -> Any:
    """A model of another mind: it looks once, then answers."""
    last = request.messages[-1]
    return assistant(ToolCall("z", "look", {"n": 1})) if last.role == "user" else "Other words."


def answered_usage(store: Store, session_id: str) -> list[Usage]:
    """Return the usage of the calls that got an answer: no answer is paid for twice."""
    calls = store.session(session_id).model_calls()
    return [call.usage for call in calls if call.usage != Usage()]
