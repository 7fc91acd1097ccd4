"""A framework's own ids: one with a secret is refused, since redacted two users would share one history, and none becomes an
id of Oakleaf under which another session is addressed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.sessions import Session as AdkSession
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.messages import ModelRequest, UserPromptPart

from oakleaf.core.ids import check_id
from oakleaf.errors import SecretInName
from oakleaf.store import Store
from oakleaf_frameworks.adk import OakleafSessionService
from oakleaf_frameworks.claude_agent import OakleafSessionStore
from oakleaf_frameworks.langgraph import OakleafSaver
from oakleaf_frameworks.openai_agents import OakleafSession
from oakleaf_frameworks.pydantic_ai import OakleafConversationStore

IDS = ["ghp_" + "a1B2" * 9 + letter for letter in "AB"]


def langgraph(store: Store, name: str) -> Any:
    graph = StateGraph(MessagesState).add_node("n", lambda state: {}).add_edge(START, "n")
    config: Any = {"configurable": {"thread_id": name}}
    return graph.compile(checkpointer=OakleafSaver(store)).invoke({"messages": [HumanMessage("hi")]}, config)


def openai_agents(store: Store, name: str) -> None:
    asyncio.run(OakleafSession(name, store).add_items([{"role": "user", "content": "hi"}]))


def adk_session(store: Store, name: str) -> AdkSession:
    return asyncio.run(
        OakleafSessionService(store).create_session(app_name="a", user_id="u", session_id=name)
    )


def adk_user(store: Store, name: str) -> AdkSession:
    return asyncio.run(OakleafSessionService(store).create_session(app_name="a", user_id=name))


def claude_agent(store: Store, name: str) -> None:
    key: Any = {"project_key": "p", "session_id": name}
    line: Any = {"type": "user", "uuid": "u1", "message": {"role": "user", "content": "hi"}}
    asyncio.run(OakleafSessionStore(store).append(key, [line]))


def pydantic_ai(store: Store, name: str) -> None:
    messages: Any = [ModelRequest(parts=[UserPromptPart("hi")])]
    asyncio.run(OakleafConversationStore(store).save(Conversation(messages=messages, conversation_id=name)))


each_framework = pytest.mark.parametrize(
    "start", [langgraph, openai_agents, adk_session, adk_user, claude_agent, pydantic_ai]
)


@each_framework
def test_an_id_with_a_secret_starts_no_session_and_is_never_shared(
    store: Store, start: Callable[[Store, str], Any]
) -> None:
    for name in IDS:
        with pytest.raises(SecretInName):
            start(store, name)
    rows = list(store.all_sessions())
    assert "[redacted" not in str(rows)
    assert [row for row in rows if row.leaf.seq] == []
    start(store, "an-ordinary-id")
    assert [row for row in store.all_sessions() if row.leaf.seq]


@pytest.mark.attack
@each_framework
def test_an_id_that_a_url_reads_as_another_becomes_a_session_of_its_own_and_is_found_again(
    store: Store, start: Callable[[Store, str], Any]
) -> None:
    names = [
        "ses_vic",
        "ses_vic/",
        "ses_vic?",
        "ses_vic#",
        "ses_vic%2F",
        "../ses_vic",
        "..",
        ".ses_vic",
        "ses-vic",
    ]
    sessions: set[str] = set()
    for name in names:
        start(store, name)
        new = {row.session_id for row in store.all_sessions() if "adk_state" not in row.tags} - sessions
        assert len(new) == 1, name
        sessions |= new
        with suppress(AlreadyExistsError, ConversationConflict):  # it is found again
            start(store, name)
        rows = [row for row in store.all_sessions() if "adk_state" not in row.tags]
        assert start is adk_user or {row.session_id for row in rows} == sessions, name
        sessions = {row.session_id for row in rows}
    for row in store.all_sessions():
        check_id(row.session_id)
