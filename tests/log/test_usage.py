"""Usage: the sums equal the calls made, over any mix of forks, retries, rewinds, children and replays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakleaf import Leaf, OakleafError, ScriptedModel, Session, Totals, Usage, assistant, user
from oakleaf.core.usage import total
from oakleaf.errors import InvalidPosition
from oakleaf.models.prices import price
from oakleaf.store import Store
from oakleaf.store import Store as Opened
from oakleaf.stores.memory.store import MemoryStore
from support.runtime import deterministic_runtime
from support.store_contents import reopened


def answer(session: Session, tokens: int, text: str = "q") -> None:
    with session.turn(text) as turn:
        turn.answer(assistant("a"), usage=Usage(tokens, 1))


def test_own_counts_abandoned_branches_and_path_does_not(store: Store) -> None:
    session = store.start("a")
    answer(session, 10)
    answer(session, 100)
    session.undo()
    answer(session, 1_000)
    assert session.usage().input_tokens == 1_110
    assert session.usage("path").input_tokens == 1_010
    assert session.row.totals == session.usage()


def test_a_new_fork_has_cost_nothing_and_stands_on_what_its_path_cost(store: Store) -> None:
    session = store.start("a")
    answer(session, 10)
    answer(session, 100)
    fork = session.fork(at=2)
    assert fork.usage() == fork.row.totals == Totals()
    assert fork.usage("path").input_tokens == 10
    answer(fork, 1_000)
    assert (fork.usage().input_tokens, fork.usage("path").input_tokens) == (1_000, 1_010)
    assert session.usage("path").input_tokens == 110


def test_the_tree_counts_the_children(store: Store) -> None:
    parent = store.start("a")
    answer(parent, 1)
    child = store.start_task(parent, "b")
    answer(child, 10)
    grandchild = store.start_task(child, "c")
    answer(grandchild, 100)
    answer(parent.fork(), 1_000)
    assert parent.usage("tree").input_tokens == 111
    assert parent.usage().input_tokens == 1


def test_since_a_leaf_counts_what_came_after_it(store: Store) -> None:
    session = store.start("a")
    answer(session, 10)
    sampled = session.leaf
    answer(session, 100)
    with session.turn("q") as turn:
        turn.failed("cut", usage=Usage(1_000, 0))
        turn.answer(assistant("a"), usage=Usage(10_000, 1))
    assert session.usage("path", since=sampled).input_tokens == 11_100
    assert session.usage("path", since=session.leaf) == Totals()


def test_parts_of_a_path_sum_to_the_whole_and_count_a_failed_call_once(store: Store) -> None:
    """A call that failed at the leaf belongs to the part that ends there, not to the next one as well."""
    session = store.start("a")
    with session.turn("q") as turn:
        turn.failed("cut", usage=Usage(1, 0))
        middle = session.leaf
        assert session.usage("path").input_tokens == 1
        assert session.usage("path", since=middle) == Totals()
        turn.failed("cut again", usage=Usage(10, 0))
        turn.answer(assistant("a"), usage=Usage(100, 0))
    assert session.usage("path", since=middle).input_tokens == 100
    with session.turn("q") as turn:
        turn.failed("cut", usage=Usage(1_000, 0))
    assert session.usage("path", since=middle).input_tokens == 1_100
    assert session.usage("path", since=session.leaf) == Totals()
    assert session.usage("path").input_tokens == 1_111


def test_a_leaf_that_is_not_on_the_path_gives_nothing_loudly(store: Store) -> None:
    session = store.start("a")
    answer(session, 10)
    old_leaf = session.leaf
    session.undo()
    answer(session, 100)
    for leaf in (old_leaf, Leaf(session.leaf.branch, 99)):
        with pytest.raises(InvalidPosition):
            session.usage("path", since=leaf)


def test_cents_are_a_projection_of_integers() -> None:
    assert Totals(cost_microcents=2_500_000).cost_cents == 2.5


@pytest.mark.extra
def test_a_known_model_is_priced_with_the_version_of_the_table() -> None:
    known = price(Usage(1_000_000, 0, 0, 0), "anthropic", "claude-opus-4-5")
    assert known is not None
    assert known.microcents == 500_000_000  # five dollars a million tokens
    assert known.version.startswith("genai-prices ")


@pytest.mark.parametrize(
    ("usage", "provider", "model"),
    [
        (Usage(1, 1), "anthropic", "no-such-model"),
        (Usage(1, 1), "nobody", "claude-opus-4-5"),
        (Usage(1, 1), "anthropic", None),
        (Usage(), "anthropic", "claude-opus-4-5"),
        (Usage(1, 1, 500), "anthropic", "claude-opus-4-5"),
    ],
)
def test_no_price_is_no_guess(usage: Usage, provider: str, model: str | None) -> None:
    assert price(usage, provider, model) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["answer", "undo", "fork", "task", "fail", "purge"]), st.integers(0, 9)),
        max_size=25,
    )
)
def test_usage_is_conserved(steps: list[tuple[str, int]]) -> None:
    """Every call made is in exactly one session's own rows, living or kept for a fork, unless it was purged."""
    store = Opened(MemoryStore(), deterministic_runtime())
    sessions = [store.start("a")]
    totals: dict[str, int] = {}
    for n, (step, pick) in enumerate(steps):
        session = sessions[pick % len(sessions)]
        if step == "answer":
            answer(session, 2**n)
        elif step == "fail":
            with session.turn("q") as turn:
                turn.failed("x", usage=Usage(2**n, 0))
            session.rewind(to=session.leaf.seq - 1)
        elif step == "undo" and session.row.turns and any(e.turn == e.seq for e in session.path()):
            session.undo()
        elif step == "fork":
            sessions.append(session.fork())
        elif step == "task":
            sessions.append(store.start_task(session, "b"))
        if step in ("answer", "fail"):
            totals[session.session_id] = totals.get(session.session_id, 0) + 2**n
    for session in sessions:
        assert session.usage().input_tokens == totals.get(session.session_id, 0)
        assert total(session.model_calls()) == session.row.totals
    assert sum(session.usage().input_tokens for session in sessions) == sum(totals.values())


class TestCallsOfTheHost:
    @pytest.mark.extra
    def test_a_call_of_the_host_is_counted_and_appends_nothing(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant("a")])
        leaf = session.leaf
        call = session.record_call(Usage(100, 5), model="anthropic:claude-opus-4-5", purpose="title")
        assert (call.purpose, call.provider, call.model) == ("title", "anthropic", "claude-opus-4-5")
        assert call.price is not None
        assert session.leaf == leaf
        assert (session.usage().calls, session.usage().input_tokens) == (1, 100)
        assert session.verify() == []

    def test_recorded_again_under_its_key_it_is_counted_once(self, store: Store) -> None:
        session = store.start()
        for _ in range(2):
            session.record_call(Usage(100, 5), model="m", key="title-1")
        assert session.usage().calls == 1

    def test_a_reply_of_an_sdk_says_what_it_used_and_who_answered(self, store: Store) -> None:
        reply = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-4-5",
            "content": [{"type": "text", "text": "A title"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 40, "output_tokens": 3},
        }
        session = store.start()
        call = session.record_call(reply, purpose="title")
        assert (call.model, call.usage.input_tokens) == ("claude-opus-4-5", 40)

    def test_the_call_that_wrote_a_summary_is_charged_with_it(self, store: Store) -> None:
        session = store.start()
        for n in range(3):
            session.append([user("old " * 50), assistant(f"answer {n} " * 50)])
        session.compact("They talked.", usage=Usage(900, 20), model="anthropic:claude-opus-4-5")
        (call,) = session.model_calls()
        assert (call.purpose, call.after_seq) == ("compaction", session.leaf.seq - 1)
        assert session.usage("path").input_tokens == 900
        assert session.verify() == []

    def test_what_says_nothing_of_its_use_is_refused(self, store: Store) -> None:
        session = store.start()
        with pytest.raises(OakleafError):
            session.record_call({"nonsense": True})
        assert session.usage().calls == 0


@pytest.mark.parametrize(
    "usage",
    [Usage(1 << 70, 1), Usage(1.5, 1), Usage("1", 1), Usage(float("nan"), 1), Usage(-1, 1)],
    ids=repr,
)  # type: ignore[arg-type]
def test_usage_that_is_no_count_is_unknown(store: Store, usage: Usage) -> None:
    session = store.start()
    with session.turn("x") as turn:
        turn.answer(assistant("y"), usage=usage)
    again = reopened(store, session)
    assert [call.usage for call in again.model_calls()] == [Usage(None, 1)]
    assert again.path()[-1].message == assistant("y")
    assert again.verify() == []


def test_a_store_sums_its_calls_by_owner(any_store: Store) -> None:
    for owner, calls in (("ann", 2), ("bob", 1), (None, 1)):
        session = any_store.start(owner=owner)
        for n in range(calls):
            session.send_sync(f"q{n}", model=ScriptedModel(["a"]))
    sums = any_store.usage("owner")
    assert {name: totals.calls for name, totals in sums.live.items()} == {"ann": 2, "bob": 1, "": 1}
    assert any_store.in_space("acme").usage("owner").live == {}
