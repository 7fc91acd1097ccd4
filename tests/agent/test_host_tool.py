"""A tool that the host runs is recorded as a model's call of it would be."""

from __future__ import annotations

import pytest

import oakleaf
from oakleaf import ScriptedModel, Session, ToolContext
from oakleaf.core.drafts import Blob
from oakleaf.core.media import digest
from oakleaf.errors import SessionRunning
from oakleaf.ext import run_host_tool
from oakleaf.store import Store


@oakleaf.tool(effect="unsafe")
def greet(name: str) -> str:
    """Greet somebody."""
    if name == "nobody":
        raise ValueError("there is nobody")
    return f"hello {name}"


@pytest.fixture
def session(store: Store) -> Session:
    return store.start()


def test_an_input_a_call_and_a_result_are_recorded(session: Session) -> None:
    result = run_host_tool(session, "$ greet ann", greet, {"name": "ann"})
    assert result.content == (oakleaf.Text("hello ann"),)
    assert [entry.role for entry in session.path()] == ["user", "assistant", "tool"]
    assert session.path()[0].message == oakleaf.user("$ greet ann")
    assert (session.row.status, session.row.holder, session.open_tool_calls) == ("idle", None, ())
    assert session.verify() == []
    assert session.send_sync("go on", model=ScriptedModel(["fine"])).text == "fine"


def test_an_error_is_a_result_and_ends_the_turn(session: Session) -> None:
    result = run_host_tool(session, "$ greet nobody", greet, {"name": "nobody"})
    assert (result.error, session.row.status) == (True, "idle")
    assert session.verify() == []


def test_a_crash_leaves_a_call_that_was_started(session: Session, store: Store) -> None:
    @oakleaf.tool(effect="unsafe")
    def die() -> str:
        """Look at what another process would find."""
        other = store.session(session.session_id)
        assert [call.call.name for call in other.open_tool_calls] == ["die"]
        assert other.row.holder is not None
        with pytest.raises(SessionRunning):
            other.resume_sync(model=ScriptedModel(["mine"]), tools=[greet])
        return "seen"

    assert not run_host_tool(session, "$ die", die, {}).error


def test_bytes_that_a_tool_keeps_are_stored_with_its_result(session: Session, store: Store) -> None:
    @oakleaf.tool(effect="unsafe")
    def keep(ctx: ToolContext) -> str:
        """Keep some bytes."""
        ctx.blobs.append(Blob(digest(b"kept"), "text/plain", b"kept"))
        return "done"

    run_host_tool(session, "$ keep", keep, {})
    assert store.blob(digest(b"kept")) == b"kept"
