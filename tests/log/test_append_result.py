"""What an append says of itself is what a read of the store returns."""

from __future__ import annotations

import asyncio

import oakleaf
from oakleaf import ScriptedModel, ToolCall, assistant, system, tool_result, user
from oakleaf.agent.events import fact_event_type
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import PluginFact, TurnEnded
from oakleaf.store import Store


def test_its_facts_are_those_of_the_journal(store: Store) -> None:
    session = store.start("a", [system("s")])
    session.append([user("q")])
    log, before = session.log, session.row.facts
    answer = assistant(ToolCall("c1", "look", {"n": 1}), ToolCall("c2", "look", {"n": 2}))
    appends = [
        log.append(
            [Draft(answer)], starts=[0, 1], facts=[PluginFact("tests", "remembered", {"pair": [1, "ä"]})]
        ),
        log.append([Draft(tool_result("c1", "x")), Draft(tool_result("c2", "y"))]),
        log.append([Draft(assistant("Seen."))], key="once", about=TurnEnded(0, "completed")),
    ]
    facts = [fact for appended in appends for fact in appended.facts]
    assert facts == log.store.journal(session.session_id, before)
    assert log.append([Draft(assistant("Seen."))], key="once").facts == []


def test_the_events_of_a_run_are_those_of_the_journal(store: Store) -> None:
    """Also of what others wrote meanwhile, which the run has to read."""
    session = store.start("a", [system("s")])

    @oakleaf.tool(effect="read")
    def look(n: int) -> str:
        """Look around."""
        if n % 2:
            store.session(session.session_id).note({"seen": n})
        return "seen"

    answers = [
        assistant(ToolCall("c1", "look", {"n": 1}), ToolCall("c2", "look", {"n": 2})),
        assistant(ToolCall("c3", "look", {"n": 3})),
        "That is all.",
    ]
    before = session.row.facts
    run = session.send("Look.", model=ScriptedModel(answers), tools=[look])
    asyncio.run(run._run_to_end())
    told = {event.journal_number: event.type for event in run.result.events}
    facts = session.log.store.journal(session.session_id, before)
    stored = {fact.number: fact_event_type(fact, session.log.appended_entries(fact)) for fact in facts}
    assert {number: told[number] for number in stored} == stored
    assert list(stored.values()).count("session:note") == 2
