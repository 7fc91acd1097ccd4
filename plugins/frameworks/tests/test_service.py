"""examples/service: three processes on a real PostgreSQL, one of them killed inside refunds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import oakleaf
from support.postgres import Database
from support.processes import wait_until

FOLDER = Path(__file__).parents[3] / "examples" / "service"
SECONDS = 2
"""The time of the bank before and behind a payment: long enough to be killed in."""


class Process:
    """One process of the service, on a port of its own."""

    def __init__(self, url: str, folder: Path, number: int) -> None:
        environment = {**os.environ, "OAKLEAF_STORE": url, "BANK_SECONDS": str(SECONDS)}
        command = [sys.executable, "-m", "uvicorn", "--app-dir", str(FOLDER), "--port", "0", "service:app"]
        log = folder / f"log-{number}"
        with log.open("w") as file:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)

        def address() -> re.Match[str] | None:
            assert self.process.poll() is None, log.read_text()
            return re.search(r"running on (http://\S+)", log.read_text())

        wait_until(address)
        found = address()
        assert found is not None
        self.client = httpx.Client(base_url=found[1], timeout=60)

    def post(self, path: str, tenant: str = "acme", key: str | None = None, **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer token-of-{tenant}"} | ({"Idempotency-Key": key} if key else {})
        return self.client.post(path, headers=headers, json=body)

    def get(self, path: str, tenant: str = "acme") -> Any:
        answer = self.client.get(path, headers={"Authorization": f"Bearer token-of-{tenant}"})
        return answer.json() if answer.is_success else answer.status_code

    def events(self, path: str, tenant: str = "acme", **body: Any) -> list[tuple[str, Any]]:
        """Return the events of a streamed turn: name and data."""
        answer = self.post(path, tenant, **body)
        assert answer.is_success, answer.text
        events = re.findall(r"event: (\S+)\ndata: (.*)\n\n", answer.text)
        return [(name, json.loads(data)) for name, data in events]

    def text(self, chat: str, tenant: str = "acme") -> str:
        return str(self.get(f"/chats/{chat}", tenant)["messages"][-1]["text"])

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait(30)


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[list[Process]]:
    with ThreadPoolExecutor() as threads:
        processes = list(threads.map(lambda number: Process(database.url, tmp_path, number), range(3)))
    yield processes
    for process in processes:
        process.close()


def test_no_refund_is_lost_or_doubled_by_a_kill(
    service: list[Process], database: Database, tmp_path: Path
) -> None:
    victim, other, third = service
    chats = {f"chat-{order}": ("acme", "globex")[order % 2] for order in range(41, 47)}
    book = tmp_path / "payments"

    def paid() -> list[str]:
        return (
            sorted(line.rpartition(" ")[0] for line in book.read_text().splitlines()) if book.exists() else []
        )

    for chat, tenant in chats.items():
        events = other.events(f"/chats/{chat}/messages", tenant, text=f"Refund order {chat[-2:]}")
        assert events[-1][0] == "session:waiting"
        (call,) = third.get(f"/chats/{chat}/approvals", tenant)
        assert call["arguments"] == {"order": int(chat[-2:])}

    cut: list[str] = []

    def approve(chat: str) -> None:
        try:
            victim.events(f"/chats/{chat}/approvals/call_1", chats[chat], allow=True)
        except httpx.TransportError:
            cut.append(chat)

    with ThreadPoolExecutor() as threads:
        for chat in list(chats)[:3]:
            threads.submit(approve, chat)
        wait_until(lambda: len(paid()) == 3)
        for chat in list(chats)[3:]:
            threads.submit(approve, chat)
        wait_until(
            lambda: all(
                third.get(f"/chats/{chat}", chats[chat])["status"] == "running" for chat in list(chats)[3:]
            )
        )
        victim.process.kill()
    assert len(cut) > 3, "some were killed before the payment, some behind it"
    for chat, tenant in chats.items():
        told = f"I am told: order {chat[-2:]} is refunded."
        wait_until(lambda chat=chat, tenant=tenant, told=told: third.text(chat, tenant) == told)
    assert paid() == [f"order {order}" for order in range(41, 47)]
    with oakleaf.open(database.url) as store:
        assert [list(store.in_space(tenant).verify()) for tenant in ("acme", "globex")] == [[], []]


def test_a_message_sent_twice_has_one_turn_in_the_space_of_its_tenant(service: list[Process]) -> None:
    first, second, third = service
    for process in (first, second):
        events = process.events("/chats/hello/messages", key="mail-1", text="Hello")
        assert [data["text"] for name, data in events if name == "session:answer"] == ["How can I help you?"]
        assert events[-1] == ("session:turn_completed", {"stop_reason": "answered"})
    assert third.get("/chats/hello") == {
        "status": "idle",
        "messages": [{"role": "user", "text": "Hello"}, {"role": "assistant", "text": "How can I help you?"}],
    }
    assert third.get("/chats/hello", "globex") == 404
    assert third.get("/chats/hello", "nobody") == 401


def test_a_denied_refund_is_not_paid(service: list[Process], tmp_path: Path) -> None:
    first, second, _ = service
    first.events("/chats/deny/messages", text="Refund order 41")
    refused = first.post("/chats/deny/messages", text="And order 42?")
    assert (refused.status_code, refused.json()["code"]) == (409, "approval_pending")
    second.events("/chats/deny/approvals/call_1", allow=False)
    assert "denied" in first.text("deny")
    assert not (tmp_path / "payments").exists()


def test_a_turn_is_cancelled_through_another_process(service: list[Process]) -> None:
    first, second, _ = service
    with ThreadPoolExecutor() as threads:
        thinking = threads.submit(first.events, "/chats/think/messages", text="Think")
        wait_until(
            lambda: (
                second.get("/chats/think") not in (404,) and second.get("/chats/think")["status"] == "running"
            )
        )
        assert second.post("/chats/think/messages", text="Faster").json()["code"] == "session_running"
        assert second.post("/chats/think/cancel").json() == "requested"
        assert thinking.result()[-1] == ("session:turn_completed", {"stop_reason": "cancelled"})
    assert second.get("/chats/think")["status"] == "cancelled"


def test_a_stopped_process_leaves_its_turns_to_another(service: list[Process]) -> None:
    first, second, _ = service
    first.events("/chats/stop/messages", text="Refund order 41")
    with ThreadPoolExecutor() as threads:
        approving = threads.submit(first.events, "/chats/stop/approvals/call_1", allow=True)
        wait_until(lambda: second.get("/chats/stop")["status"] == "running")
        first.process.terminate()
        approving.result()
    assert first.process.wait(30) in (0, -15)
    wait_until(lambda: second.text("stop") == "I am told: order 41 is refunded.")
