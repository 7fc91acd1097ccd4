"""An imported history with tool calls goes on without tools: every vendor's SDK sends definitions and forbids calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_llm_importer import ROWS, row

from oakleaf import Session
from oakleaf.store import Store
from oakleaf.wire import PROVIDERS
from support.claude_transcripts import shop_transcript
from support.fake_providers import FakeProviders, forbids_calls, sent_tools
from support.import_sources import import_one, store, write_sqlite

__all__ = ["store"]

SCHEMA = {"type": "object", "properties": {"order": {"type": "integer"}}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeProviders:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, "sk-very-secret-0123456789")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return FakeProviders()


def continue_with(session: Session, server: FakeProviders, provider: str) -> None:
    result = session.send_sync("And now?", model=f"{provider}:m@{server.url_for(provider)}")
    assert (result.text, server.requests[-1].problems) == ("ok", [])
    assert forbids_calls(provider, server.requests[-1].body)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_definitions_of_an_import_are_sent_again(
    store: Store, server: FakeProviders, tmp_path: Path, provider: str
) -> None:
    rows = [
        *ROWS,
        row("tools", id=7, name="look", description="Look up an order.", input_schema=SCHEMA),
        row("tool_responses", tool_id=7, response_id="q1"),
    ]
    session, _ = import_one(store, "llm", write_sqlite(tmp_path / "logs.db", rows))
    with server:
        for _ in range(2):
            continue_with(session, server, provider)
        tools = [sent_tools(provider, request.body) for request in server.requests]
    assert tools[0] == tools[1] == [("look", "Look up an order.")]
    assert session.verify() == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_import_without_definitions_names_the_called_tools(
    store: Store, server: FakeProviders, tmp_path: Path, provider: str
) -> None:
    shop_transcript().write(tmp_path / "shop.jsonl")
    session, _ = import_one(store, "claude-code", tmp_path)
    with server:
        continue_with(session, server, provider)
        tools = sent_tools(provider, server.requests[-1].body)
    assert [name for name, _ in tools] == ["Bash", "Read"]
    assert session.verify() == []
