"""Nothing that a person waits for reads more in a long session than in a short one, unless it returns more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

import oakleaf
from oakleaf import Budget, Limits, ScriptedModel, Session, ToolCall, assistant, system, tool_result, user
from oakleaf.core.context import Context, build_context
from oakleaf.core.entries import Entry
from oakleaf.core.fit import fit
from oakleaf.core.prompt_path import PromptPath
from oakleaf.errors import TurnTooLarge
from oakleaf.log import prompt
from oakleaf.log.prompt import prompt_entries
from oakleaf.store import Store
from support.random_steps import STEPS, Reads, random_seeds

SHORT, LONG = 300, 3_000
TOOLS = 5


@oakleaf.tool(effect="read")
async def look(order: int) -> str:
    """Look."""
    return f"{order} is lost"


def fill(store: Store, entries: int) -> Session:
    session = store.start("support", [system("You help.")], title="long")
    while session.leaf.seq < entries:
        n = session.leaf.seq
        session.append(
            [
                user(f"Where is {n}?"),
                assistant(ToolCall("c", "look", {"order": n})),
                tool_result("c", "lost"),
                assistant(f"Order {n} is lost."),
            ]
        )
    session.label(2, "first")
    session.label(session.leaf.seq, "last")
    return session


def compacted(store: Store, entries: int) -> Session:
    session = fill(store, entries)
    session.compact("Orders were lost.", first_kept=session.leaf.seq - 7)
    return session


def redo(session: Session) -> None:
    session.undo()
    session.redo()


def send(session: Session) -> None:
    answer = assistant(*(ToolCall(f"c{n}", "look", {"order": n}) for n in range(TOOLS)))
    result = session.send_sync(
        "Where?", model=ScriptedModel([answer, "Lost."]), tools=[look], limits=Limits(turns=10**6)
    )
    assert result.text == "Lost."


def own_loop(session: Session) -> None:
    with session.turn("Where?", tools=[look]) as turn:
        turn.answer(assistant(ToolCall("c", "look", {"order": 1})))
        assert not turn.is_cancel_requested
        turn.run(turn.open_tool_calls[0], lambda order: "lost")
        turn.answer(assistant("Lost."))


class TestAVerbReadsNoMoreInALongSession:
    @pytest.mark.parametrize(
        "verb",
        [
            lambda session: session.next_action(),
            lambda session: session.undo(),
            redo,
            lambda session: session.messages("anthropic", Budget(tokens=400)),
            lambda session: session.messages("anthropic", Budget(messages=6)),
            lambda session: session.labels(),
            lambda session: session.usage(),
            lambda session: session.usage("tree"),
            lambda session: session.set(tools=["look"]),
            lambda session: session.fork(),
            own_loop,
        ],
        ids=[
            *("next_action", "undo", "redo", "tokens", "messages", "labels", "usage", "usage_tree"),
            *("set", "fork", "own_loop"),
        ],
    )
    def test_of_any_kind(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, verb: Callable[[Session], Any]
    ) -> None:
        assert self.rows(store, monkeypatch, verb, fill, SHORT) == self.rows(
            store, monkeypatch, verb, fill, LONG
        )

    @pytest.mark.parametrize(
        "verb",
        [
            lambda session: session.context(),
            lambda session: session.request("anthropic"),
            lambda session: session.uncompact(),
            lambda session: session.compact("Most orders were lost.", replaces_earlier=True),
            send,
        ],
        ids=["context", "request", "uncompact", "compact", "send"],
    )
    def test_after_a_compaction(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, verb: Callable[[Session], Any]
    ) -> None:
        assert self.rows(store, monkeypatch, verb, compacted, SHORT) == self.rows(
            store, monkeypatch, verb, compacted, LONG
        )

    def rows(
        self,
        store: Store,
        monkeypatch: pytest.MonkeyPatch,
        verb: Callable[[Session], Any],
        make: Callable[[Store, int], Session],
        entries: int,
    ) -> Counter[str]:
        session = store.session(make(store, entries).session_id)
        with monkeypatch.context() as patch:
            reads = Reads(store.backend, patch)
            verb(session)
        return reads.rows


class TestWhatIsNotReadDoesNotMatter:
    """A context of the entries that were read is that of the whole path."""

    @pytest.fixture(autouse=True)
    def small_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(prompt, "NEWEST", 3)
        monkeypatch.setattr(prompt, "HEAD", 1)
        monkeypatch.setattr(prompt, "WINDOW", 2)

    @pytest.mark.parametrize("seed", range(12))
    def test_for_any_session(self, seed: int) -> None:
        random = Random(seed)
        session = oakleaf.open("memory:").start("a", [system("You help."), *random_seeds(random)])
        for _ in range(random.randrange(5, 40)):
            random.choice(STEPS)(session, random)
        budgets = [Budget(messages=n) for n in (1, 3, 7)] + [Budget(tokens=n) for n in (30, 90, 400)]
        for at in {session.leaf.seq, *random.choices(range(session.leaf.seq + 1), k=8)}:
            leaf = session.log.leaf_at(at)
            whole = session.log.store.path(session.session_id, leaf=leaf).entries if at else []
            assert session.context(at) == build_context(whole)
            parts = prompt_entries(session.log, leaf)
            assert PromptPath(parts).settings() == build_context(whole).settings
            assert newest_input(parts) == newest_input(whole)
            for budget in budgets:
                read = partial(prompt.context_within, session.log, leaf, budget)
                assert outcome(read) == outcome(partial(fit_whole, whole, budget))

    @pytest.mark.parametrize("seed", range(4))
    def test_nor_in_which_pieces_the_path_grows(self, seed: int) -> None:
        random = Random(seed)
        session = oakleaf.open("memory:").start("a", [system("You help.")])
        grown = PromptPath(session.path())
        for _ in range(30):
            random.choice(STEPS[:-1])(session, random)
            grown.extend(session.path(since=grown.last_seq))
            if random.random() < 0.7:
                assert grown.context() == build_context(session.path())
            assert grown.settings() == build_context(session.path()).settings


class TestContextOfARun:
    @pytest.mark.parametrize("seed", range(8))
    def test_the_model_is_given_the_context_of_the_leaf_whatever_others_did_since(
        self, store: Store, seed: int
    ) -> None:
        random = Random(seed)
        session = store.start("a", [system("You help.")])
        contexts = list[Context]()

        def answer(request: Any) -> str:
            contexts.append(request.context)
            assert request.context == build_context(store.session(session.session_id).path())
            return "Lost."

        for _ in range(12):
            for _ in range(random.randrange(3)):
                random.choice(STEPS)(store.session(session.session_id), random)
            session.send_sync("And now?", model=ScriptedModel(answer))
        assert len(contexts) == 12


def fit_whole(path: list[Entry], budget: Budget) -> Context:
    return fit(build_context(path), budget).context


def newest_input(path: Any) -> int:
    return max((entry.seq for entry in path if entry.is_input), default=0)


def outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except TurnTooLarge as error:
        return str(error)
