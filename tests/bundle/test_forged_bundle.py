"""What import accepts, every verb can read: bundles altered by somebody who knows the format."""

from __future__ import annotations

import io
from contextlib import suppress
from random import Random
from typing import Any

import pytest

import oakleaf
from oakleaf import (
    Attachment,
    Limits,
    Reasoning,
    ScriptedModel,
    ToolCall,
    Usage,
    Workspace,
    assistant,
    system,
    user,
)
from oakleaf.errors import InvalidBundle
from support.forged_bundles import Line, forge, lines_of, read_with_every_verb, written
from support.random_logs import SOAK

pytestmark = pytest.mark.extra


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    """The bundle of a fork with a task, media, costs, compactions, labels, moves, settings, approvals and a queued input."""
    store = oakleaf.open("memory:")
    workspace = Workspace(working_dir="/")
    start: dict[str, Any] = {"title": "Lost parcel", "state": {"n": 1}, "tags": {"a": "b"}, "spec": {"m": 1}}
    source = store.start("support", [system("You help.")], workspace=workspace, tool_names=["find"], **start)
    with source.turn("Where is it?", model="anthropic:claude-opus-4-5", policy={"x": 1}) as turn:
        turn.answer(assistant("Looking", ToolCall("c", "find", {"z": 1})), usage=Usage(100, 10))
        turn.result("c", {"status": "lost"}, state={"found": False})
        turn.answer(assistant("It is lost."), usage=Usage(120, 12))
    session = source.fork(5, prompt="Be kind.")
    session.append([user("See", Attachment(b"\x89PNG" + bytes(range(200)), "image/png")), assistant("Nice")])
    session.compact("A parcel was lost.")
    session.uncompact()
    session.append([user("more" * 300), assistant(Reasoning("hm"), "a" * 400)])
    session.compact("short")
    store.start_task(session, "searcher", [user("Search")]).append([user("go"), assistant("nothing")])
    session.label(6, "here")
    session.note({"a": 1}, state={"k": 2})
    session.rewind(7, summary="left")
    session.redo()
    session.rewind(5)
    session.set(limits={"turns": 40})
    session.send_sync("And now?", model=ScriptedModel(["ok"]), limits=Limits(max_messages=50))

    @oakleaf.tool(approval=True)
    def refund(order: int) -> str:
        return "done"

    asks = assistant(ToolCall("d", "refund", {"order": 1}), ToolCall("e", "refund", {"order": 2}))
    session.send_sync("Refund it", model=ScriptedModel([asks]), tools=[refund])
    session.approve(session.pending_approvals()[0])
    session.log.enqueue(user("queued"))
    file = io.BytesIO()
    session.export(file, blobs=True)
    return lines_of(file.getvalue())


def test_the_bundle_itself_is_accepted_and_read(lines: list[Line]) -> None:
    store = oakleaf.open("memory:")
    store.import_bundle(io.BytesIO(written(lines)))
    read_with_every_verb(store)


@pytest.mark.parametrize("part", range(2))
def test_every_verb_can_read_an_accepted_import(lines: list[Line], part: int) -> None:
    """A forged label and forged usage were imported, and then drawing the tree or summing up raised."""
    accepted = 0
    for seed in range(part, 20_000 if SOAK else 50, 2):
        store = oakleaf.open("memory:")
        try:
            store.import_bundle(io.BytesIO(forge(lines, Random(seed))))
        except InvalidBundle:
            continue
        read_with_every_verb(store)
        accepted += 1
    assert accepted, "every forgery was refused, so no verb was tried"


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("labelled", "nth", None),
        ("labelled", "nth", "1"),
        ("labelled", "label", 5),
        ("labelled", "seq", -1),
        ("approved", "index", [0]),
        ("approval_requested", "seq", 1.5),
        ("task_started", "child", 7),
        ("turn_started", "turn", "x"),
    ],
)
def test_a_fact_of_another_shape_is_refused_by_number(
    lines: list[Line], kind: str, field: str, value: object
) -> None:
    forged = [dict(line) for line in lines]
    fact = next(line for line in forged if line["line"] == "fact" and line["kind"] == kind)
    fact["body"] = {**fact["body"], field: value}
    with pytest.raises(InvalidBundle, match=f"fact {fact['number']}"):
        oakleaf.open("memory:").import_bundle(io.BytesIO(written(forged)))


@pytest.mark.parametrize(
    ("kind", "part", "field"),
    [("appended", "leaf", "branch"), ("appended", "leaf", "seq"), ("turn_started", "body", "turn")],
)
def test_a_fact_with_missing_fields_is_refused_or_read(
    lines: list[Line], kind: str, part: str, field: str
) -> None:
    """Accepted, purge, the HTML page, Inspect's log and explain raised KeyError."""
    facts = [n for n, line in enumerate(lines) if line["line"] == "fact" and field in line.get(part, {})]
    numbers = [n for n in facts if lines[n]["kind"] == kind][:3]
    assert numbers
    for n in numbers:
        forged = [dict(line) for line in lines]
        forged[n][part] = {name: value for name, value in lines[n][part].items() if name != field}
        store = oakleaf.open("memory:")
        with suppress(InvalidBundle):
            store.import_bundle(io.BytesIO(written(forged)))
        read_with_every_verb(store)


def test_a_call_whose_answer_is_entry_0_is_refused(lines: list[Line]) -> None:
    forged = [dict(line) for line in lines]
    call = next(line for line in forged if line["line"] == "call")
    call["call"] = {**call["call"], "answer_seq": 0}
    with pytest.raises(InvalidBundle):
        oakleaf.open("memory:").import_bundle(io.BytesIO(written(forged)))


@pytest.mark.parametrize(
    ("field", "value"), [("usage", {"input_tokens": -1}), ("usage", {"output_tokens": 2**60}), ("at", 2**70)]
)
def test_a_ledger_row_that_is_no_count_is_refused(lines: list[Line], field: str, value: object) -> None:
    forged = [dict(line) for line in lines]
    call = next(line for line in forged if line["line"] == "call")
    call["call"] = {**call["call"], field: value}
    with pytest.raises(InvalidBundle):
        oakleaf.open("memory:").import_bundle(io.BytesIO(written(forged)))
