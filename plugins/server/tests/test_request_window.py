"""A request is read in windows: together they are the request, and each is read as fast in a long session as in a short one."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

import oakleaf
from oakleaf import Limits, Note, ScriptedModel, Session, ToolCall, assistant, system, tool_result, user, wire
from oakleaf.core.context import build_context
from oakleaf.core.drafts import Draft
from oakleaf.core.usage import Call, Usage
from oakleaf.ext import read
from oakleaf.replay import compared_path, diff_window
from oakleaf.wire.parts import join_messages
from oakleaf_server import request_window
from oakleaf_server.request_window import PromptReader, read_prompt
from oakleaf_server.routes import requests
from support.random_steps import STEPS, Reads, random_seeds
from support.server import LocalServer


def whole_request(session: Session, seq: int, provider: wire.Provider) -> dict[str, Any]:
    path = read(session).entries(last=seq) if seq else []
    context = build_context(path)
    return provider.project(context, read(session).blob)


def join_windows(reader: PromptReader, provider: wire.Provider, limit: int) -> dict[str, Any]:
    """The request of all windows, read backwards by cursor."""
    before, pages, rest = None, list[list[dict[str, Any]]](), dict[str, Any]()
    while True:
        window = reader.window(before, limit)
        request = reader.project(provider, window)
        pages.insert(0, request[provider.history])
        rest = rest or request
        if window.is_start:
            break
        assert window.items
        assert before is None or window.first < before
        before = window.first
    messages: list[dict[str, Any]] = []
    for page in pages:
        join_messages(provider, messages, page)
    return {**rest, provider.history: messages}


def numbered(session: Session, count: int) -> Session:
    """Calls with ids of their own, as providers make them."""
    for n in range(count):
        calls = [ToolCall(f"c{n}-{m}", "look", {"order": n}) for m in range(n % 3)]
        session.append([user(f"Where is {n}?")])
        for call in calls:
            session.append([assistant(call), tool_result(call.id, "lost"), Note({"n": n})])
        session.append([assistant(f"Order {n} is lost.")])
    return session


LOOK = {"name": "look", "description": "Look an order up.", "parameters": {"type": "object"}}


class TestWindows:
    @pytest.fixture(autouse=True)
    def small_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(request_window, "STEP", 3)

    @pytest.mark.parametrize("limit", [1, 4, 1_000])
    def test_joined_are_the_request(self, limit: int) -> None:
        session = numbered(oakleaf.open("memory:").start("a", [system("You help."), system("Be brief.")]), 12)
        with session.turn("Hi.", tools=[LOOK]) as turn:
            turn.answer(assistant("Hello."))
        session.compact("Some orders were lost.", first_kept=session.leaf.seq - 20)
        numbered(session, 3)
        for provider in wire.PROVIDERS.values():
            for seq in range(0, session.leaf.seq + 1, 3):
                reader = read_prompt(read(session).at(read(session).leaf_at(seq)))
                joined, whole = join_windows(reader, provider, limit), whole_request(session, seq, provider)
                assert joined[provider.history] == whole[provider.history]
                if reader.frame.settings.tool_definitions is not None:
                    assert joined == whole

    @pytest.mark.parametrize("seed", range(8))
    def test_of_any_session_the_stream_is_the_request_byte_for_byte(self, seed: int) -> None:
        random = Random(seed)
        session = oakleaf.open("memory:").start("a", [system("You help."), *random_seeds(random)])
        for _ in range(random.randrange(5, 30)):
            random.choice(STEPS)(session, random)
        for n in range(2):
            limits = Limits(max_messages=random.randrange(1, 9), turns=10**6)
            session.send_sync(f"question {n}", model=ScriptedModel(["ok"]), limits=limits)
        for seq in {session.leaf.seq, 0, *random.choices(range(session.leaf.seq), k=6)}:
            reader = read_prompt(read(session).at(read(session).leaf_at(seq)))
            for provider in wire.PROVIDERS.values():
                whole = wire.render(whole_request(session, seq, provider))
                assert b"".join(reader.stream(provider)) == whole


SHORT, LONG = 120, 480


def append(session: Session, payloads: list[Any]) -> None:
    """Append with a ledger row for each answer, as a run does."""
    at = session.leaf.seq
    calls = [
        Call(f"call{at + n}", 0, at + n - 1, at + n, 1, Usage(100, 10), provider="anthropic", model="m")
        for n, payload in enumerate(payloads, 1)
        if payload.role == "assistant"
    ]
    session.log.append([Draft(payload) for payload in payloads], calls=calls)


def fill(store: oakleaf.Store, turns: int) -> tuple[Session, Session]:
    """A session and a fork of it near its end."""
    session = store.start("support", [system("You help.")])
    for n in range(turns):
        call = ToolCall(f"c{n}", "look", {"order": n})
        append(
            session,
            [user(f"Where is {n}?"), assistant(call), tool_result(call.id, "lost"), assistant("Lost.")],
        )
    fork = session.fork(session.leaf.seq - 8)
    append(session, [user("And the last?"), assistant("It is lost.")])
    append(fork, [user("And the last?"), assistant("It is here.")])
    return session, fork


PATHS = [
    "/sessions/{a}/request",
    "/sessions/{a}/request?at={middle}",
    "/sessions/{b}/request",
    "/sessions/{a}/request?before={middle}",
    "/sessions/{a}/turns",
    "/sessions/{a}/calls?first={middle}&last={later}",
    "/sessions/{a}/entries/{middle}",
    "/diff?a={a}&b={b}",
    "/diff?a={a}@{early}&b={b}",
]


def test_no_response_that_a_page_waits_for_reads_more_in_a_longer_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law of `tests/log/test_long_session.py`, over HTTP."""
    monkeypatch.setattr(requests, "NEWEST", 100)
    monkeypatch.setattr(diff_window, "MAX_SCANNED", 100)
    for module in (request_window, compared_path):
        monkeypatch.setattr(module, "STEP", 50)
    counts = {path: list[int]() for path in PATHS}
    for turns in (SHORT, LONG):
        with (
            oakleaf.open(tmp_path / f"{turns}.db", synchronous="normal") as store,
            LocalServer(store) as server,
        ):
            a, b = fill(store, turns)
            middle = a.leaf.seq // 8 * 4 + 1
            places = {"middle": middle, "later": middle + 99, "early": 33}
            for path in PATHS:
                url = path.format(a=a.session_id, b=b.session_id, **places)
                with monkeypatch.context() as patch:
                    reads = Reads(store.backend, patch)
                    server.get(f"/api{url}")
                counts[path].append(reads.rows.total())
    for path, (short, long) in counts.items():
        # The end of what both share, and the facts of a time, are found by halving: a few rows more in a session four times
        # as long.
        is_halved = path.startswith("/diff") or "/calls" in path or "/turns" in path
        assert 0 < long <= short + (8 if is_halved else 0), (path, short, long)
