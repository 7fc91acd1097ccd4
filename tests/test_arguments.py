"""What the public verbs are given: a wrong type is refused with one of our errors, by name, and nothing was done."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bough
from bough import Leaf, ScriptedModel, Session, Sessions, ToolCall, assistant, system, tool_result, user
from bough.core.arguments import OPEN, SESSION, SESSIONS
from bough.errors import BadQuery, BoughError
from bough.turn import Turn
from bough.workspace import Workspace

WRONG: list[Any] = [
    *(None, 5, -1, 2.5, True, "x", b"x", "\ud800", "\0", object(), print, Leaf(9, 9)),
    *([], [5], [None], {}, {5: 5}, {"a": object()}, ("a",), {"a"}),
]


def needed(verb: str, store: Sessions, session: Session) -> dict[str, Any]:
    """What else a verb must have to be carried out."""
    seen, model = {"provider": "anthropic"}, {"model": ScriptedModel([])}
    call, name = session.open_calls[0], session.session_id
    found: dict[str, dict[str, Any]] = {
        "Session.append": {"items": [user("h")]},
        "Session.approve": {"call": call},
        "Session.close_batch": {"why": "w"},
        "Session.enqueue": {"content": "q"},
        "Session.explain": seen,
        "Session.export": {"to": "made.bough"},
        "Session.html": {"to": "made.html"},
        "Session.label": {"at": 1, "words": "w"},
        "Session.messages": seen,
        "Session.request": seen,
        "Session.resume": model,
        "Session.resume_sync": model,
        "Session.rewind": {"to": 1},
        "Session.send": {"content": "q", **model},
        "Session.send_sync": {"content": "q", **model},
        "Session.shell": {"argv": ["true"], "workspace": Workspace(working_dir=".")},
        "Sessions.copy": {"session": name, "to": store},
        "Sessions.family": {"session_id": name},
        "Sessions.import_bundle": {"source": "none.bough"},
        "Sessions.import_from": {"tool": "none"},
        "Sessions.latest_or_start": {"conversation_id": "c"},
        "Sessions.purge": {"session_id": name},
        "Sessions.put_blob": {"data": b"x", "mime": "a/b"},
        "Sessions.search": {"typed": "x"},
        "Sessions.start_task": {"parent": session},
    }
    return found.get(verb, {})


def verbs() -> Iterator[tuple[type, str]]:
    for kind in (Session, Sessions):
        for name, _ in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                yield kind, name


def parameters(kind: type, name: str) -> Iterator[str]:
    """By name, and of verbs that take keywords those that are looked at."""
    found = list(inspect.signature(getattr(kind, name)).parameters.values())[1:]
    yield from (one.name for one in found if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    yield from (SESSION if kind is Session else SESSIONS).get(name, {})


def made() -> tuple[Sessions, Session]:
    store = bough.open("memory:")
    session = store.start("a", [system("s")])
    session.append([user("q"), assistant("x", ToolCall("c", "t", {})), tool_result("c", "r"), assistant("a")])
    session.append([user("w"), assistant(ToolCall("d", "t", {}))])
    return store, session


def outcome(do: Callable[[], Any]) -> Exception | None:
    """What comes of it, carried out to its end: what is lazy has done nothing yet."""
    try:
        done = do()
        if inspect.iscoroutine(done):
            asyncio.run(done)
        elif isinstance(done, Turn):
            with done:
                pass
        elif isinstance(done, Iterator):
            list(done)
    except Exception as error:  # noqa: BLE001 – which it is, is what the test asks
        return error
    return None


CASES = sorted({(k.__name__, name, p) for k, name in verbs() for p in parameters(k, name)})


@pytest.mark.parametrize(("kind", "verb", "parameter"), CASES, ids=[".".join(case) for case in CASES])
def test_a_wrong_type_is_refused_by_one_of_our_errors(
    kind: str, verb: str, parameter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in WRONG:
        store, session = made()
        given = {**needed(f"{kind}.{verb}", store, session), parameter: wrong}
        if kind == "Session" and parameter in ("queue", "agent"):
            given = {**{name: value for name, value in given.items() if name != "model"}, "engine": "absurd"}
        before = session.journal()
        error = outcome(partial(getattr(session if kind == "Session" else store, verb), **given))
        assert error is None or isinstance(error, BoughError), wrong
        if isinstance(error, BadQuery):
            assert ("takes" in str(error), session.journal()) == (True, before)


@pytest.mark.parametrize(
    ("do", "takes"),
    [
        (lambda session: bough.diff(session, "x"), r"a session, \(session, seq\)"),
        (lambda session: bough.diff((session, "x"), session), r"a session, \(session, seq\)"),
        (lambda session: session.approve(None), "a call of session.waiting"),
        (lambda session: session.approve(session.open_calls[0], allow="no"), "True or False"),
        (lambda session: session.checkout("1:2"), "a Leaf"),
        (lambda session: session.rewind(1, summary=5), "text"),
        (lambda session: session.send("q", model=5), "a model, the name of one"),
        (lambda session: session.send("q", model=ScriptedModel([]), tools=[5]), "a list of tools"),
        (lambda session: session.append(5), "a list of messages"),
        (lambda _: bough.open(5), "a path"),
        (lambda _: bough.open("memory:", space=None), "text"),
    ],
)
def test_the_error_says_what_belongs_there(do: Any, takes: str) -> None:
    with pytest.raises(BadQuery, match=takes):
        do(made()[1])


def test_a_tool_that_is_no_function_is_told_however_it_comes() -> None:
    with pytest.raises(BoughError, match="no function"):
        made()[1].send("q", model=ScriptedModel([]), tools=(one for one in [5]))


def test_what_is_looked_at_is_a_parameter_of_its_verb() -> None:
    for kind, table in ((Session, SESSION), (Sessions, SESSIONS)):
        for verb, kinds in table.items():
            found = inspect.signature(getattr(kind, verb)).parameters
            has_keywords = any(one.kind is one.VAR_KEYWORD for one in found.values())
            assert has_keywords or kinds.keys() <= found.keys(), verb
    assert OPEN.keys() == inspect.signature(bough.open).parameters.keys()
