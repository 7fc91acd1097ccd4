"""No verb and no command does more work in a long session than in a short one, unless it returns more.

SQLite counts the steps of each statement, so a row that is read and not returned counts, too.
`tests/log/test_long_session.py` has the same law for what any store returns.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import oakleaf
from oakleaf import (
    Budget,
    Limits,
    ScriptedModel,
    Session,
    ToolCall,
    assistant,
    fit,
    user,
)
from oakleaf.cli.main import oakleaf as command
from oakleaf.ext import read
from oakleaf.models.prices import Rates
from oakleaf.replay.diff import diff
from oakleaf.verbs.log import newest_events
from support.long_sessions import LONG, MIDDLE, SHORT, check, check_steps, count_steps, stores
from support.sessions import exported_lines, tasks_of
from support.statement_steps import Steps

__all__ = ["stores"]  # a fixture


@oakleaf.tool(effect="read")
async def look(order: int) -> str:
    """Look."""
    return f"{order} is lost"


def send(session: Session) -> None:
    limits = Limits(turns=10**6, max_cost_microcents=10**9)
    answers = [assistant(ToolCall("c", "look", {"order": 1})), "Lost."]
    model = ScriptedModel(answers, model="m", rates=Rates(1, 1))
    assert session.send_sync("Where?", model=model, tools=[look], limits=limits).text == "Lost."


def rewind(session: Session) -> None:
    session.rewind(session.leaf.seq - 4)
    session.redo()


VERBS: dict[str, Callable[[Session], Any]] = {
    "path": lambda session: session.path(last=3),
    "transcript": lambda session: session.transcript(since=session.leaf.seq - 4),
    "log_events": lambda session: newest_events(session, 0, 3),
    "journal": lambda session: session.journal(session.row.facts - 3),
    "context": lambda session: session.context(),
    "context at": lambda session: session.context(MIDDLE),
    "request": lambda session: session.request("anthropic"),
    "request at": lambda session: session.request("anthropic", at=MIDDLE),
    "fit": lambda session: fit(session.context(), Budget(messages=4)),
    "window_use": lambda session: read(session).window_use(),
    "labels": lambda session: session.labels(),
    "label": lambda session: session.label(5, "here"),
    "usage": lambda session: session.usage(),
    "usage of the path": lambda session: session.usage("path"),
    "usage of the path of a fork": lambda session: session.fork(MIDDLE).usage("path"),
    "usage since": lambda session: session.usage(since=session.log.leaf_at(session.leaf.seq - 4)),
    "calls of an entry": lambda session: session.log.store.calls_between("ses_long", 1, MIDDLE, MIDDLE),
    "latest call": lambda session: session.log.store.latest_answer_call("ses_long", 1, MIDDLE),
    "state": lambda session: session.state,
    "next_action": lambda session: session.next_action(),
    "pending_approvals": lambda session: session.pending_approvals(),
    "children": lambda session: tasks_of(session),
    "jsonl": lambda session: exported_lines(session, "jsonl", since=session.leaf.seq - 4),
    "fork": lambda session: session.fork(MIDDLE, options={"temperature": 0}),
    "rewind and redo": rewind,
    "repeated append": lambda session: session.append([user("And?")], key="again"),
    "set": lambda session: session.set(options={"temperature": 0}),
    "note": lambda session: session.note({"n": 1}),
    "send": send,
}
COMMANDS = [
    "ls",
    "show ses_long -n 3",
    "show ses_long -n 3 --json",
    f"show ses_long@{MIDDLE}",
    f"show ses_long --until {MIDDLE} -n 3",
    f"show ses_long --since {MIDDLE} --until {MIDDLE + 3}",
    "log ses_long -n 3",
    "log ses_long --events -n 3",
    "log ses_long --all -n 3",
    "tail ses_long",
    "tail ses_long --from 3 -n 3",
    f"diff ses_long@{MIDDLE} ses_long@{MIDDLE + 4}",
    "context ses_long",
    "usage ses_long",
    "usage ses_long --view tree",
    "title ses_long",
    "fork ses_long",
    "undo ses_long",
    "redo ses_long",
]


@pytest.mark.parametrize("name", VERBS)
def test_no_verb_does_more_work(
    name: str, stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_steps(lambda store: VERBS[name](store.session("ses_long")), stores, monkeypatch)


def test_diff_numbers_turns_by_an_index(stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of a turn is the count of inputs before: six steps each on both paths, and no entry is read."""
    short, long = count_steps(lambda store: newest_turns(store.session("ses_long")), stores, monkeypatch)
    more_turns = (LONG - SHORT) // 4
    assert 0 < long - short <= 2 * 6 * more_turns


def newest_turns(session: Session) -> object:
    return diff((session, session.leaf.seq - 6), session)


@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_does_more_work(
    words: str, stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for path in stores:
        with monkeypatch.context() as patch:
            steps = Steps(patch)
            result = CliRunner().invoke(command, ["--store", str(path), *words.split()])
            assert result.exit_code == 0, result.output
        counts.append(steps.steps)
    check(counts)
