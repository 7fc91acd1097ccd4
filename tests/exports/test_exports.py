"""Laws that hold for every export as text: what became known as a secret is hidden, and evidence is in none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import Session, Store, ToolCall, assistant, system, user
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Evidence
from oakleaf.core.messages import Reasoning
from oakleaf.core.redact import Redactor
from support.sessions import exported

WORD = "late-secret-2"
EXPORTS: dict[str, Callable[..., str]] = {
    "markdown": lambda session, **how: exported(session, "markdown", **how),
    "jsonl, path": lambda session, **how: exported(session, "jsonl", **how),
    "jsonl, all": lambda session, **how: exported(session, "jsonl", what="all", **how),
    "jsonl, events": lambda session, **how: exported(session, "events", **how),
    "finetune": lambda session, **how: exported(session, "finetune", **how),
    "workflow": lambda session, **how: exported(session, "workflow", **how),
    "inspect": lambda session, **how: exported(session, "inspect", **how),
    "otel": lambda session, **how: exported(session, "otel", content=True, **how),
}
each_export = pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)


@pytest.fixture(scope="module")
def late() -> Session:
    """A session that has the word wherever text may stand, read by one who knows it as a secret."""
    store = oakleaf.open("memory:")
    about: Any = {"title": WORD, "spec": {"id": "support", "hint": WORD}}
    session = store.start(f"a {WORD}", [system(WORD)], **about)
    session.set(prompt=WORD)
    session.append([user(WORD), assistant(WORD)])
    session.note({WORD: 1})
    with session.turn(WORD) as turn:
        turn.answer(
            assistant(WORD, ToolCall("c", "look", {WORD: [WORD]}), ToolCall("d", "x", malformed=WORD))
        )
        turn.result("c", WORD)
        turn.result("d", WORD, error=True)
        turn.failed(WORD)
    session.end("failed", WORD)
    redactor = Redactor(unnamed=[WORD])
    return Store(store.backend, replace(store.runtime, redactor=redactor)).session(session.session_id)


@each_export
def test_what_became_known_as_a_secret_later_is_hidden_by_default(
    late: Session, export: Callable[..., str]
) -> None:
    assert WORD not in export(late)
    assert WORD in export(late, redact=False)


@each_export
def test_evidence_is_nobodys_business(export: Callable[..., str]) -> None:
    session = oakleaf.open("memory:").start("support")
    session.append([user("q")])
    evidence = Evidence("anthropic", {"0": {"signature": "CANARY"}})
    session.log.append([Draft(assistant(Reasoning("hm"), "a"), evidence=evidence)])
    assert "CANARY" not in export(session, redact=False)
