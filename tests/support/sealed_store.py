"""A store with everything that a seal covers."""

from __future__ import annotations

from oakleaf import Session, Store, ToolCall, Usage, assistant, system, user


def fill(store: Store) -> Session:
    """Write a session with a value in every column, a task, a fork, and a branch that was left."""
    session = store.start(
        "support",
        [system("You help.")],
        session_id="ses_sealed",
        conversation_id="con_1",
        title="Refund",
        tags={"team": "blue"},
        model="scripted",
        context_window=1000,
        trigger_type="email",
        trigger_id="mail-1",
        tool_names=["refund"],
        spec={"prompt": "You help."},
        policy={"days": 30},
        owner="ann",
    )
    with session.turn("Refund order 41", key="mail-1") as turn:
        call = assistant(ToolCall("c1", "refund", {"order": 41}))
        turn.answer(call, usage=Usage(10, 2), provider="anthropic", model="claude-sonnet-4-5")
        turn.result("c1", "done")
        turn.answer(
            assistant("Refunded."), usage=Usage(12, 3, 4, 5), provider="anthropic", model="claude-sonnet-4-5"
        )
    session.rewind(to=2)
    session.append([assistant("Another answer")])
    session.fork(at=2, title="Another try").append([assistant("A third answer")])
    store.start_task(session, "research", session_id="ses_task").append([user("look"), assistant("seen")])
    session.end("failed", "no money left")
    return session
