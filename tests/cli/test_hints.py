"""Every command that a message suggests can be typed as it is printed: it exists, has these flags, and runs."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf import ScriptedModel, ToolCall, assistant, user
from oakleaf.core.facts import Titled
from support.paths import SOURCES, relative
from support.situations import Prepare, Situation, branched, nothing, trashed
from support.suggestions import suggested_commands


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every text of a module, with a word in the place of what is filled in."""
    tree = ast.parse(path.read_text())
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            values = (str(part.value) if isinstance(part, ast.Constant) else "ses_1" for part in node.values)
            yield node.lineno, "".join(values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


def test_every_command_in_a_text_exists_and_has_the_flags_it_is_shown_with() -> None:
    count = 0
    for path in (path for source in SOURCES for path in sorted(source.rglob("*.py"))):
        for line, text in texts(path):
            try:
                count += len(suggested_commands(text))
            except AssertionError as error:
                raise AssertionError(f"{relative(path)}, line {line}: {error}") from None
    assert count > 200


def waiting(here: Situation) -> None:
    """A call of the last turn waits for approval."""

    @library.tool(approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    with here.store as store:
        session = store.start(session_id="ses_waits")
        session.send_sync("q", model=ScriptedModel([assistant(ToolCall("c", "pay"))]), tools=[pay])


def interrupted(here: Situation) -> None:
    with here.store as store:
        store.start(session_id="ses_open").append([user("q")])


def started(here: Situation) -> None:
    """Killed in the middle of a tool: nobody knows whether it ran."""
    with here.store as store:
        session = store.start(session_id="ses_started")
        turn = session.turn("q")
        turn.__enter__()
        turn.started(turn.answer(assistant(ToolCall("c", "pay"))).calls[0])


def running(here: Situation) -> None:
    """Another process has the lease."""
    with here.store as store:
        log = store.session("ses_case").log
        now = log.runtime.now()
        store.backend.lease("ses_case", "web:1:5:77:boot#x", now + 20_000_000, now)
        log.record(Titled(), row={"status": "running"})


def left_running(here: Situation) -> None:
    """By a process on another host, which is gone: its lease has expired."""
    with here.store as store:
        row = {"status": "running", "holder": "web:1:5:77:boot#x", "lease_until": 1}
        store.session("ses_case").log.record(Titled(), row=row)


def replayed(here: Situation) -> None:
    with here.store as store:
        store.session("ses_case").replay_sync(mode="strict")


def exported(here: Situation) -> None:
    here.run("export", "ses_case", "-o", "case.oakleaf")


def exported_waiting(here: Situation) -> None:
    """A bundle of a session that waits for approval, which the store does not have."""
    waiting(here)
    here.run("export", "ses_waits", "-o", "waits.oakleaf")
    with here.store as store:
        store.delete("ses_waits")
        store.purge("ses_waits")


def empty(here: Situation) -> None:
    for path in here.folder.glob("s.db*"):
        path.unlink()


SITUATIONS: list[tuple[Prepare, str]] = [
    (nothing, "show nobody"),
    (nothing, "show ''"),
    (nothing, "show ses_case@99"),
    (nothing, "show ses_case@9:1"),
    (nothing, "show ses_case@3 -n 2"),
    (nothing, "log ses_case --events --all"),
    (nothing, "rewind ses_case"),
    (nothing, "rewind ses_case@99"),
    (nothing, "title ses_case@3 x"),
    (nothing, "redo ses_case"),
    (nothing, "undo ses_other"),
    (nothing, "uncompact ses_case"),
    (nothing, "compact ses_case --keep-from 99"),
    (nothing, "resume ses_case"),
    (nothing, "resume ses_case --keep-partial"),
    (nothing, "run hi --resume ses_case --set session.title=x"),
    (nothing, "run hi --resume ses_case"),
    (nothing, "run hi --resume ses_case --queue"),
    (nothing, "run hi --resume ses_case --set limits.turns=1"),
    (nothing, "usage --view path"),
    (nothing, "usage --by storage"),
    (nothing, "ls tag:blue"),
    (nothing, "ls agent:nobody"),
    (nothing, "restore nobody"),
    (nothing, "restore latest"),
    (nothing, "purge ses_case"),
    (nothing, "rm ses_case --yes"),
    (nothing, "import nothing.oakleaf"),
    (nothing, "import nothing"),
    (nothing, "import claude-code"),
    (nothing, "import case.oakleaf --dry-run"),
    (nothing, "export ses_case@3 --format bundle"),
    (nothing, "replay ses_case --model nobody"),
    (nothing, "replay ses_case --mode strict"),
    (nothing, "config aliases.nobody"),
    (nothing, "config options.nobody.seed 1"),
    (nothing, "config options.scripted:one.json.temperature null"),
    (trashed, "fork ses_case"),
    (trashed, "run hi --resume ses_case"),
    (trashed, "rm ses_case"),
    (waiting, "show ses_waits"),
    (waiting, "run hi --resume ses_waits"),
    (waiting, "resume ses_waits"),
    (interrupted, "resume ses_open --rollback"),
    (started, "resume ses_started"),
    (running, "run hi --resume ses_case"),
    (running, "rewind ses_case@3"),
    (running, "rm ses_case --yes"),
    (running, "resume ses_case"),
    (left_running, "doctor"),
    (replayed, "run hi --resume ses_case"),
    (exported, "title case.oakleaf x"),
    (exported, "rewind case.oakleaf@3"),
    (exported, "run hi --resume case.oakleaf"),
    (exported_waiting, "show waits.oakleaf"),
    (branched, "replay ses_case@1:5"),
    (branched, "show ses_case@5"),
    (empty, "show latest"),
    (empty, "ls"),
    (empty, "search x"),
]


@pytest.mark.parametrize(
    ("prepare", "command"),
    SITUATIONS,
    ids=[f"{prepare.__name__}: {command}" for prepare, command in SITUATIONS],
)
def test_every_command_that_a_message_suggests_runs_as_printed(
    situation: Situation, prepare: Prepare, command: str
) -> None:
    prepare(situation)
    situation.assert_suggestions_run(command)


@pytest.mark.parametrize(
    ("prepare", "command", "hint"),
    [
        (nothing, ["title", "Lost order@3", "x"], "oakleaf rewind 'Lost order@3'"),
        (nothing, ["show", "Lost order@9:1"], "oakleaf log 'Lost order' --all"),
        (nothing, ["show", "Lost order@3", "-n", "2"], "oakleaf log 'Lost order@3' -n"),
        (nothing, ["rewind", "Lost order"], "oakleaf rewind 'Lost order@7'"),
        (nothing, ["rewind", "Lost order"], "oakleaf log 'Lost order' lists"),
        (nothing, ["export", "Lost order@3", "--format", "bundle"], "oakleaf fork 'Lost order@3'"),
        (nothing, ["config", "aliases.my model"], "oakleaf config 'aliases.my model' VALUE"),
        (branched, ["replay", "Lost order@1:5"], "oakleaf fork 'Lost order@1:5'"),
    ],
    ids=lambda value: (
        value.__name__ if callable(value) else shlex.join(value) if isinstance(value, list) else ""
    ),
)
def test_a_name_of_several_words_is_quoted_in_a_suggested_command(
    situation: Situation, prepare: Prepare, command: list[str], hint: str
) -> None:
    with situation.store as store:
        store.session("ses_case").title("Lost order")
    prepare(situation)
    assert hint in situation.run(*command)[1]
