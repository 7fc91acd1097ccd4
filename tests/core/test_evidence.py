"""Evidence stays with the part it belongs to, and goes where the part is not what its issuer signed."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

import oakleaf
from oakleaf import Evidence, Session, Workspace, tool_result, user
from oakleaf.core.evidence import move_evidence
from oakleaf.store import Store
from oakleaf.wire import find_provider
from oakleaf.wire.gemini.request import UNSIGNED

SECRET = "correct-horse-battery"
URL = "data:image/png;base64," + base64.b64encode(bytes(range(256))).decode()


def thinking(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def anthropic(*content: dict[str, Any]) -> dict[str, Any]:
    tool_use = {"type": "tool_use", "id": "c", "name": "look", "input": {"order": 41}}
    return {
        "type": "message",
        "role": "assistant",
        "content": [*content, tool_use],
        "stop_reason": "tool_use",
    }


def openai(summary: str, order: str) -> dict[str, Any]:
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": summary}],
        "encrypted_content": "ENC",
    }
    call = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c",
        "name": "look",
        "arguments": f'{{"order":"{order}"}}',
        "namespace": "shop",
    }
    return {"object": "response", "status": "completed", "model": "m", "output": [reasoning, call]}


def gemini(order: str) -> dict[str, Any]:
    call = {"functionCall": {"name": "look", "args": {"order": order}, "id": "c"}, "thoughtSignature": "c2ln"}
    candidate = {"content": {"role": "model", "parts": [{"text": "hm", "thought": True}, call]}}
    return {"candidates": [candidate | {"finishReason": "STOP"}]}


def sent_after(session: Session, reply: dict[str, Any], provider: str) -> list[dict[str, Any]]:
    """What goes back to the provider with the tool's result, after a restart."""
    with session.turn("q") as turn:
        turn.answer(reply)
        turn.result("c", "lost")
    request = session.request(provider)
    assert find_provider(provider).violations(request, ready=True) == []
    assert session.verify() == []
    return list(request[find_provider(provider).history])


@pytest.fixture
def session() -> Session:
    return oakleaf.open("memory:", secrets={"PIN": SECRET}).start("a")


class TestRedacted:
    def test_redacted_thinking_loses_the_signature(self, session: Session) -> None:
        """Anthropic refuses a signature that does not match, and any answer whose thinking is not complete."""
        reply = anthropic(thinking("fine", "SIG A"), thinking(f"the PIN is {SECRET}", "SIG B"))
        (_, answer, _) = sent_after(session, reply, "anthropic")
        assert [block["type"] for block in answer["content"]] == ["tool_use"]
        reasoning = session.path()[-2].message.parts[1]
        assert reasoning == oakleaf.Reasoning("the PIN is [redacted PIN]")

    @pytest.mark.parametrize(("summary", "order"), [(SECRET, "41"), ("hm", SECRET)])
    def test_redacted_reasoning_items_are_not_sent_again(
        self, session: Session, summary: str, order: str
    ) -> None:
        (_, call, _) = sent_after(session, openai(summary, order), "openai")
        assert (call["type"], call["namespace"]) == ("function_call", "shop")
        assert "id" not in call

    def test_a_redacted_call_is_sent_as_one_that_gemini_did_not_sign(self, session: Session) -> None:
        (_, answer, _) = sent_after(session, gemini(SECRET), "gemini")
        assert [part["thoughtSignature"] for part in answer["parts"]] == [UNSIGNED]

    def test_unaltered_parts_keep_the_signature(self, session: Session) -> None:
        """A secret in the text beside the thinking does not touch the thinking."""
        text = {"type": "text", "text": SECRET}
        (_, answer, _) = sent_after(session, anthropic(thinking("fine", "SIG A"), text), "anthropic")
        assert answer["content"][0] == thinking("fine", "SIG A")
        reasoning, call = sent_after(session, openai("hm", "41"), "openai")[-3:-1]
        assert (reasoning["encrypted_content"], call["id"]) == ("ENC", "fc_1")
        assert sent_after(session, gemini("41"), "gemini")[-2]["parts"][0]["thoughtSignature"] == "c2ln"


def test_a_signature_stays_when_bytes_leave_the_text_before(
    store: Store,
) -> None:
    text = {"type": "text", "text": f"see {URL} there"}
    blocks = (thinking("A", "SIG A"), text, thinking("B", "SIG B"))
    (_, answer, _) = sent_after(store.start("a"), anthropic(*blocks), "anthropic")
    signed = [block for block in answer["content"] if block["type"] == "thinking"]
    assert signed == [thinking("A", "SIG A"), thinking("B", "SIG B")]
    assert URL not in str(answer)


def test_bytes_in_signed_reasoning_return_to_the_letter(store: Store) -> None:
    text = f"I see {URL}; and {URL}, twice"
    for reply, provider in ((anthropic(thinking(text, "SIG")), "anthropic"), (openai(text, "41"), "openai")):
        session = store.start("a")
        request = json.dumps(sent_after(session, reply, provider))
        body = store.backend.entries(session.session_id)[1].entry.body
        assert (URL.encode() in body, body.count(b"oakleaf-blob:"), request.count(text)) == (False, 4, 1)
        assert "SIG" in request or "ENC" in request
        assert store.gc(grace=-1_000_000_000) == 0


def test_an_adapters_evidence_stays_until_redaction() -> None:
    evidence = Evidence("gemini", {"0": {"signature": "A"}, "adk": {"1": "B"}})
    before = oakleaf.assistant("x", oakleaf.Attachment(b"bytes", "image/png"))
    extracted = oakleaf.assistant("x", oakleaf.Media("0" * 64, "image/png", 5))
    assert move_evidence(evidence, before, extracted, [0, 1]) == evidence
    assert move_evidence(evidence, before, oakleaf.assistant("[redacted]", before.parts[1])) is None


def test_signed_reasoning_whose_bytes_are_missing_is_left_out(store: Store) -> None:
    session = store.start("a")
    sent_after(session, anthropic(thinking(f"I see {URL}", "SIG")), "anthropic")
    request = find_provider("anthropic").project(session.context(), lambda digest: None)
    assert "SIG" not in json.dumps(request)
    assert find_provider("anthropic").violations(request, ready=True) == []


@pytest.mark.parametrize("reply", [anthropic(thinking("hm", "SIG")), openai("hm", "41"), gemini("41")])
def test_append_and_seeds_keep_evidence(store: Store, reply: dict[str, Any]) -> None:
    answer = reply.get("output") or [reply["candidates"][0]["content"] if "candidates" in reply else reply]
    provider = oakleaf.wire.parse_reply(reply).provider
    answered = store.start("a")
    with answered.turn("q") as turn:
        turn.answer(reply)
        turn.result("c", "lost")
    history = [user("q"), *answer, tool_result("c", "lost")]
    appended = store.start("a")
    appended.append(history)
    seeded = store.start("a", history, workspace=Workspace(working_dir="/"))
    evidence = answered.path()[1].evidence
    assert evidence is not None
    for session in (appended, seeded):
        again = store.session(session.session_id)
        assert again.path()[1].evidence is not None
        assert again.request(provider) == answered.request(provider)
