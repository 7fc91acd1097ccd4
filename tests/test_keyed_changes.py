"""A change under a caller's key happens once, however often it is asked for, and whoever else asks for it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import oakleaf
from oakleaf import Cut, Leaf, Session, ToolCall, assistant, tool_result, user
from oakleaf.errors import InvalidArgument, KeyReused, SecretInName
from oakleaf.store import Store
from oakleaf.testing.stores.writer import read_everything
from support.interleaving import interleaved

context = multiprocessing.get_context("fork")


class Case(NamedTuple):
    """A change, another one of the same kind, and what has to come before."""

    ask: Callable[[Session, str | None], Any]
    ask_else: Callable[[Session, str], Any]
    prepare: Callable[[Session], Any] = lambda session: None


def root(session: Session, seq: int) -> Leaf:
    return Leaf(session.branches()[0].branch, seq)


def compact(session: Session, key: str | None = None, summary: str = "He asked; it is there.") -> Any:
    return session.compact(summary, first_kept=5, key=key)


def fork(session: Session, key: str | None, at: int | Leaf | None = 5, title: str = "strict") -> Any:
    forked = session.fork(at, prompt="Be strict.", title=title, key=key)
    return forked.session_id, forked.cut, forked.leaf


def set_prompt(session: Session, key: str | None, prompt: str = "Be brief.") -> Any:
    done = session.set(prompt=prompt, options={"temperature": 0}, key=key)
    return done.leaf, done.payloads


CASES = {
    "rewind": Case(lambda s, key: s.rewind(3, key=key), lambda s, key: s.rewind(5, key=key)),
    "rewind with a summary": Case(
        lambda s, key: s.rewind(5, summary="no luck", key=key),
        lambda s, key: s.rewind(5, summary="luck", key=key),
    ),
    "undo": Case(lambda s, key: s.undo(key=key), lambda s, key: s.rewind(5, key=key)),
    "redo": Case(lambda s, key: s.redo(key=key), lambda s, key: s.undo(key=key), lambda s: s.rewind(5)),
    "checkout": Case(
        lambda s, key: s.checkout(root(s, 1), key=key), lambda s, key: s.checkout(root(s, 0), key=key)
    ),
    "compact": Case(compact, lambda s, key: compact(s, key, "Another summary.")),
    "uncompact": Case(lambda s, key: s.uncompact(key=key), compact, compact),
    "set": Case(set_prompt, lambda s, key: set_prompt(s, key, "Be long.")),
    "fork": Case(fork, lambda s, key: fork(s, key, title="mild")),
    "fork at the leaf": Case(lambda s, key: fork(s, key, None), fork),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def start(store: Store, session_id: str = "ses_keyed") -> Session:
    call = ToolCall("c1", "look_up", {"order": 41})
    session = store.start("support", session_id=session_id)
    for items in (
        [user("Where is order 41? It was sent a week ago, and I have waited for it since.")],
        [assistant("Let me look at what the parcel service says about the order.", call)],
        [tool_result("c1", "in the cellar of the neighbours, behind the bicycles and the boxes")],
        [assistant("It is in the cellar of your neighbours, behind the bicycles.")],
        [user("Thanks")],
        [assistant("Welcome")],
    ):
        session.append(items)
    return session


def prepared(store: Store, case: Case, session_id: str = "ses_keyed") -> Session:
    session = start(store, session_id)
    case.prepare(session)
    return session


def contents(store: Store) -> Any:
    ids = sorted(row.session_id for row in store.all_sessions())
    return {session_id: read_everything(store.backend, session_id) for session_id in ids}


class TestAKeyedChange:
    def test_the_second_request_writes_nothing_and_returns_the_first_outcome(
        self, any_store: Store, case: Case
    ) -> None:
        first = case.ask(prepared(any_store, case), "k1")
        before = contents(any_store)
        assert case.ask(any_store.session("ses_keyed"), "k1") == first
        assert contents(any_store) == before

    def test_another_request_under_the_key_is_refused_and_writes_nothing(
        self, any_store: Store, case: Case
    ) -> None:
        case.ask(prepared(any_store, case), "k1")
        before = contents(any_store)
        with pytest.raises(KeyReused, match="k1"):
            case.ask_else(any_store.session("ses_keyed"), "k1")
        assert contents(any_store) == before

    def test_the_outcome_is_found_after_the_session_went_on(self, any_store: Store, case: Case) -> None:
        first = case.ask(prepared(any_store, case), "k1")
        session = any_store.session("ses_keyed")
        session.append([user("And order 42?")])
        session.append([assistant("It is lost.")])
        session.rewind(0)
        before = contents(any_store)
        assert case.ask(any_store.session("ses_keyed"), "k1") == first
        assert contents(any_store) == before

    def test_of_two_processes_at_once_one_makes_the_change_and_both_return_it(
        self, any_store: Store, case: Case
    ) -> None:
        at = 0
        while True:
            at += 1
            session_id, seen = f"ses_{at}", list[Any]()
            prepared(any_store, case, session_id)

            def act(session_id: str = session_id, seen: list[Any] = seen) -> None:
                before = contents(any_store)
                outcome = case.ask(any_store.session(session_id), "k1")
                seen.extend((outcome, before, contents(any_store)))

            store, backend = interleaved(any_store, at, act)
            outcome = case.ask(store.session(session_id), "k1")
            if not backend.has_acted:
                break
            other_outcome, before, after = seen
            assert outcome == other_outcome
            assert after in (before, contents(any_store)), "one of the two wrote nothing"
        assert at > 3

    def test_a_lost_reply_loses_no_change(self, any_store: Store, case: Case) -> None:
        prepared(any_store, case)

        class Dead(BaseException):
            """The process, after its commit."""

        class Dying:
            """A backend whose process dies once something is written."""

            def __getattr__(self, name: str) -> Any:
                value = getattr(any_store.backend, name)

                def call(*args: Any, **kwargs: Any) -> Any:
                    value(*args, **kwargs)
                    raise Dead

                return call if name in ("commit", "create") else value

        with pytest.raises(Dead):
            case.ask(Store(Dying(), any_store.runtime).session("ses_keyed"), "k1")  # type: ignore[arg-type]
        before = contents(any_store)
        outcome = case.ask(any_store.session("ses_keyed"), "k1")
        assert contents(any_store) == before
        assert outcome == case.ask(any_store.session("ses_keyed"), "k1")


def run_and_die(path: str, name: str) -> None:
    """Make a change in a process of its own, which is gone before it could say so."""
    store = oakleaf.open(path)
    CASES[name].ask(store.session("ses_keyed"), "k1")
    os._exit(9)


@pytest.mark.parametrize("name", CASES)
def test_processes_that_die_after_the_commit_leave_one_change(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s.db"
    with oakleaf.open(path) as store:
        prepared(store, CASES[name])
    processes = [context.Process(target=run_and_die, args=(str(path), name)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [9, 9, 9]
    with oakleaf.open(path) as store, oakleaf.open("memory:") as once:
        before = contents(store)
        CASES[name].ask(store.session("ses_keyed"), "k1")
        assert contents(store) == before
        CASES[name].ask(prepared(once, CASES[name]), "k1")
        facts = {row.session_id: row.facts for row in once.all_sessions()}
        assert {row.session_id: row.facts for row in store.all_sessions()} == facts


class TestKeys:
    def test_a_cut_that_moved_is_told_again(self, any_store: Store) -> None:
        session = start(any_store)
        assert session.fork(2, key="f").cut == session.fork(2, key="f").cut == Cut(1, 2)
        assert session.rewind(2, key="r") == Cut(1, 2)
        assert any_store.session("ses_keyed").rewind(2, key="r") == Cut(1, 2)

    def test_a_leaf_of_another_branch_is_moved_to_and_told_again(self, any_store: Store) -> None:
        session = start(any_store)
        place = session.log.leaf_at(2)
        session.rewind(0)
        session.append([user("Another question")])
        assert session.rewind(place, key="r") == Cut(1, 2)
        assert session.rewind(place, key="r") == Cut(1, 2)
        assert session.leaf == Leaf(place.branch, 1)

    def test_keys_of_two_sessions_are_two(self, any_store: Store) -> None:
        one, two = start(any_store, "ses_1"), start(any_store, "ses_2")
        assert one.fork(key="k").session_id != two.fork(key="k").session_id
        one.undo(key="k")
        two.undo(key="k")
        assert (one.leaf.seq, two.leaf.seq) == (4, 4)

    def test_an_input_and_a_change_do_not_share_a_key(self, any_store: Store) -> None:
        session = start(any_store)
        session.append([user("More")], key="k")
        with pytest.raises(KeyReused):
            session.undo(key="k")

    @pytest.mark.parametrize("key", ["", "~k", "k" * 2_000])
    def test_a_key_that_no_caller_may_give_is_refused(self, any_store: Store, key: str) -> None:
        session = start(any_store)
        for ask in (session.undo, session.fork):
            with pytest.raises(InvalidArgument):
                ask(key=key)

    def test_a_key_that_holds_a_secret_is_refused(self, any_store: Store) -> None:
        with pytest.raises(SecretInName):
            start(any_store).undo(key="ghp_" + "a1B2" * 9)


class TestStart:
    def test_a_session_is_started_once_under_a_key(self, any_store: Store) -> None:
        first = any_store.start("support", [oakleaf.system("Be brief.")], title="one", key="k")
        before = contents(any_store)
        again = any_store.start("support", [oakleaf.system("Be brief.")], title="one", key="k")
        assert again.session_id == first.session_id
        assert contents(any_store) == before
        for other in ({"agent": "sales"}, {"title": "two"}, {"seeds": [oakleaf.system("Be long.")]}):
            wanted: dict[str, Any] = {
                "agent": "support",
                "seeds": [oakleaf.system("Be brief.")],
                "title": "one",
            }
            with pytest.raises(KeyReused):
                any_store.start(**{**wanted, **other}, key="k")
        assert contents(any_store) == before

    def test_two_processes_at_once_start_one(self, any_store: Store) -> None:
        at = 0
        while True:
            at += 1
            other = list[str]()
            key = f"k{at}"
            store, backend = interleaved(
                any_store,
                at,
                lambda key=key, other=other: other.append(any_store.start("a", key=key).session_id),
            )
            session = store.start("a", key=key)
            if not backend.has_acted:
                break
            assert other == [session.session_id]
        assert at > 2

    def test_a_key_makes_the_id(self, any_store: Store) -> None:
        with pytest.raises(InvalidArgument, match="session_id"):
            any_store.start(session_id="ses_1", key="k")
