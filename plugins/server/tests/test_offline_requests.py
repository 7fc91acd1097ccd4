"""What each model was given, as a page that is a copy holds it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

import oakleaf
from oakleaf import assistant, system, user
from oakleaf.core.context import build_context
from oakleaf.core.tree import Leaf
from oakleaf.ext import read
from oakleaf.session import Session
from oakleaf.wire import find_provider
from oakleaf_server.offline_requests import Requests, SizeBudget, requests
from support import sample_store
from support.sample_store import BUILD, CASE, TASK


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_store.fill(tmp_path_factory.mktemp("requests") / "agent.db")


def export_requests(
    session: Session, *, redact: bool = False, budget: SizeBudget | None = None
) -> dict[str, Requests]:
    bundle = BytesIO()
    session.export(bundle, redact=redact)
    return requests(bundle.getbuffer(), budget)


def full_requests(exported: Requests) -> dict[str, Any]:
    """Each request as it would be sent, by the place of its answer."""
    requests, messages = {}, list[int]()
    for request in exported.requests:
        messages = [*messages[: request.shared_messages], *request.added_messages]
        rest = msgspec.json.decode(exported.pool[request.rest])
        history = [msgspec.json.decode(exported.pool[place]) for place in messages]
        requests[request.at] = {**rest, request.history: history}
    return requests


class TestRequests:
    @pytest.mark.parametrize("name", [CASE, BUILD])
    def test_a_copy_holds_the_request_behind_every_answer_of_every_branch(
        self, store: Path, name: str
    ) -> None:
        with oakleaf.open(store) as sessions:
            session = sessions.session(name)
            requests = export_requests(session)[name]
            numbers = sorted(branch.branch for branch in session.branches())
            answers = [entry for entry in session.entries() if entry.role == "assistant"]
            assert (len(requests.requests), requests.omitted) == (len(answers), 0)
            copied = full_requests(requests)
            for entry in answers:
                leaf = Leaf(entry.branch, entry.seq - 1)
                path = session.log.store.path(name, leaf=leaf).entries
                place = f"{numbers.index(entry.branch) + 1}:{entry.seq}"
                tools = build_context(path).settings.tool_definitions
                blobs = {} if tools is None else {tools.hash: read(session).blob(tools.hash)}
                assert copied[place] == find_provider("anthropic").project(build_context(path), blobs.get)

    def test_old_turns_that_the_model_was_not_given_are_not_in_it(self) -> None:
        contexts: list[Any] = []

        def answer(request: Any) -> str:
            contexts.append(find_provider("anthropic").project(request.context, lambda _: None))
            return "ok"

        with oakleaf.open("memory:") as sessions:
            sessions.start()  # so that this session's branches have other numbers in a bundle
            session = sessions.start(seeds=[system("You help.")])
            for n in range(4):
                limits = oakleaf.Limits(max_messages=2 * n + 1 if n < 3 else 3)
                session.send_sync(f"question {n}", model=oakleaf.ScriptedModel(answer), limits=limits)
            requests = export_requests(session)[session.session_id]
        assert [len(request["messages"]) for request in contexts] == [1, 3, 5, 3]
        assert list(full_requests(requests).values()) == contexts

    def test_tasks_have_their_own(self, store: Path) -> None:
        with oakleaf.open(store) as sessions:
            requests = export_requests(sessions.session(BUILD))
        assert set(requests) == {BUILD, TASK}
        assert "Review dates.py" in str(full_requests(requests[TASK]))

    def test_messages_are_kept_once(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "s.db") as sessions:
            session = sessions.start("a", [system("You help.")])
            for n in range(50):
                session.append([user(f"question {n} " + "x" * 1_000), assistant(f"answer {n}")])
            size = len(msgspec.json.encode(export_requests(session)))
        assert size < 50 * 1_500

    def test_what_is_redacted_in_the_bundle_is_redacted_in_them(self, tmp_path: Path) -> None:
        secret = "a-secret-of-the-shop-41"
        with oakleaf.open(tmp_path / "s.db") as sessions:
            session = sessions.start("a", [system("You help.")])
            session.append([user(f"the key is {secret}"), assistant("I see.")])
        with oakleaf.open(tmp_path / "s.db", secrets=[secret]) as sessions:
            requests = export_requests(sessions.session(session.session_id), redact=True)
        text = msgspec.json.encode(requests).decode()
        assert secret not in text
        assert "the key is" in text

    def test_the_newest_have_room_first_and_the_others_are_counted(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "s.db") as sessions:
            session = sessions.start("a")
            for n in range(6):
                session.append([user(f"question {n}"), assistant(f"answer {n}")])
            [requests] = export_requests(session, budget=SizeBudget(work=30)).values()
        assert ([request.at for request in requests.requests], requests.omitted) == (
            ["1:8", "1:10", "1:12"],
            3,
        )
