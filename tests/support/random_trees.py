"""Random trees of sessions, made with the public API: forks of forks, tasks, compactions, media, costs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from hypothesis import strategies as st

from oakleaf import (
    Attachment,
    Leaf,
    Note,
    Session,
    Settings,
    ToolCall,
    Usage,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Evidence
from oakleaf.errors import OakleafError
from oakleaf.store import Store
from support.random_logs import IDS, NAMES, TEXTS

VERBS = (
    *(
        "say",
        "say",
        "turn",
        "turn",
        "ask",
        "result",
        "note",
        "set",
        "attach",
        "compact",
        "uncompact",
        "rewind",
        "rewind",
    ),
    *("redo", "fork", "fork", "task", "checkout", "enqueue", "title", "tag", "fail", "draft", "end", "purge"),
)
Step = tuple[str, int, int, str]
steps = st.lists(
    st.tuples(
        st.sampled_from(VERBS),
        st.integers(0, 9),
        st.integers(0, 30),
        st.sampled_from(TEXTS) | st.text(max_size=6, alphabet=st.characters(codec="utf-8")),
    ),
    min_size=6,
    max_size=40,
)


def grow_tree(store: Store, script: Sequence[Step]) -> list[Session]:
    """Run the script and return the sessions that still exist; steps that the log refuses are skipped."""
    sessions = [
        store.start("agent", [system("You help."), user("earlier")], state={"n": {"a": 1}}, tags={"z": "1"})
    ]
    for verb, which, number, text in script:
        session = sessions[which % len(sessions)]
        with contextlib.suppress(OakleafError):
            step = _step(store, session, verb, number, text)
            if step is not None:
                sessions.append(step)
        with contextlib.suppress(OakleafError):
            session.refresh()
    alive = []
    for session in sessions:
        with contextlib.suppress(OakleafError):
            session.refresh()
            alive.append(session)
    return alive


def _step(store: Store, session: Session, verb: str, number: int, text: str) -> Session | None:
    match verb:
        case "say":
            session.append([user(text)])
        case "turn":
            _turn(session, number, text)
        case "ask":
            calls = [
                ToolCall(IDS[(number + n) % len(IDS)], NAMES[n], {"z": text, "a": [1.5, None]})
                for n in range(2)
            ]
            session.append([user("q"), assistant(text, *calls)])
        case "result":
            name = (
                session.open_tool_calls[number % len(session.open_tool_calls)].call.id
                if session.open_tool_calls
                else ""
            )
            session.append([tool_result(name, text, state={"n": {"b": number}}, ends_turn=number % 5 == 0)])
        case "note":
            session.append([Note({"k": text}, {"n": {"a": None}} if number % 2 else None)])
        case "set":
            session.append([Settings(model="m", prompt=text)])
        case "attach":
            data = f"data:image/png;base64,{'QUJD' * 30}" if number % 3 == 0 else text
            session.append([user(data, Attachment(f"bytes {number}".encode(), "image/png", "a.png"))])
        case "fork":
            return session.fork(at=number % (session.leaf.seq + 1), model="other" if number % 2 else None)
        case "task":
            return store.start_task(session, "child", [user(text)])
        case "purge":
            store.delete(session.session_id)
            if number % 2:
                store.purge(session.session_id)
        case "fail":
            with session.turn(text, model="anthropic:m") as turn:
                turn.failed("broken")
        case "draft":
            fence = session.log.store.lease(session.session_id, "me", until=2**50, at=0)
            session.log.store.save_draft(session.session_id, session.leaf, text, fence, 1)
        case _:
            _move(session, verb, number, text)
    return None


def _turn(session: Session, number: int, text: str) -> None:
    with session.turn(text, model="anthropic:m" if number % 2 else None, policy={"branch": 7}) as turn:
        turn.answer(
            assistant(text, ToolCall("c", "tool", {"b": 1, "a": [text]})),
            usage=Usage(number, 2),
            provider="anthropic",
        )
        turn.result("c", {"got": number}, state={"last": number})
        turn.answer(assistant("done"), usage=Usage())
    proof = Evidence("anthropic", {"0": {"signature": "EVIDENCE"}})
    session.log.append([Draft(user("more")), Draft(assistant(text), "m", "stop", proof)])


def _move(session: Session, verb: str, number: int, text: str) -> None:
    if session.row.status == "running":
        session.close_batch("stopped")
        session.interrupt()
    match verb:
        case "compact":
            session.compact(
                "short", first_kept=number % (session.leaf.seq + 1), replaces_earlier=number % 2 == 0
            )
        case "uncompact":
            session.uncompact()
        case "rewind":
            session.rewind(number % (session.leaf.seq + 1), summary="found" if number % 2 else None)
        case "redo":
            session.redo()
        case "checkout":
            session.checkout(Leaf(number % 7, number % 5))
        case "enqueue":
            session.enqueue(text)
        case "title":
            session.title(text or None)
        case "tag":
            session.tag(colour=text or None, other="y")
        case "end":
            session.end()
