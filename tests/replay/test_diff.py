"""Diffs: where two paths part, turn by turn, and nothing called changed that is not."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import oakleaf
from oakleaf import (
    Diff,
    Reasoning,
    ScriptedModel,
    Session,
    ToolCall,
    Usage,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.core.state import fold_state
from oakleaf.core.turn_comparison import align, heaviest_kind, word_diff
from oakleaf.core.turn_reader import read_turns
from oakleaf.replay.compared_path import PathSide, shared_seq
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from support.random_logs import SOAK
from support.random_recordings import Turn, record, turns
from support.random_steps import STEPS, Reads, random_seeds
from support.runtime import deterministic_runtime

MANY = settings(max_examples=2_000 if SOAK else 25, deadline=None)


def call(name: str = "look", order: int = 41, call_id: str = "c") -> Any:
    return assistant(ToolCall(call_id, name, {"order": order}))


def plain(*turns: tuple[str, str]) -> list[Any]:
    return [message for question, answered in turns for message in (user(question), assistant(answered))]


def tooled(answer: Any = None, result: Any = None, final: str = "Lost.") -> list[Any]:
    answer = answer or call()
    result = result or tool_result(answer.calls[0].id, "lost")
    return [user("where?"), answer, result, assistant(final)]


def compare(store: Store, a: list[Any], b: list[Any]) -> Diff:
    one, other = store.start("s", [system("You help.")]), store.start("s", [system("You help.")])
    for session, messages in ((one, a), (other, b)):
        if messages:
            session.append(messages)
    return oakleaf.diff(one, other)


def kinds(diff: Diff) -> list[str]:
    return [row.kind for row in diff.rows]


class TestKinds:
    def test_the_same_is_the_same(self, store: Store) -> None:
        diff = compare(store, tooled(), tooled())
        assert diff.is_same
        assert diff.first_divergence is None
        assert (diff.shared, diff.rows) == (5, ())

    def test_other_words(self, store: Store) -> None:
        diff = compare(store, tooled(), tooled(final="It is lost."))
        assert kinds(diff) == ["reworded"]
        first = diff.first_divergence
        assert first is not None
        assert (first.subject, first.expected, first.actual) == ("answer", "Lost.", "It is lost.")
        assert (first.turn_a, first.seq_a, first.step) == (2, 5, 2)
        assert diff.first_action_divergence is None

    def test_another_tool(self, store: Store) -> None:
        diff = compare(store, tooled(), tooled(call("refund")))
        assert kinds(diff) == ["tool changed"]
        assert diff.first_divergence is not None
        assert diff.first_divergence.expected == 'look({"order":41})'
        assert diff.first_divergence.actual == 'refund({"order":41})'

    def test_other_arguments(self, store: Store) -> None:
        diff = compare(store, tooled(), tooled(call(order=42)))
        assert kinds(diff) == ["arguments changed"]
        assert diff.first_divergence is not None
        assert (diff.first_divergence.subject, diff.first_divergence.actual) == ("look", '{"order":42}')

    @pytest.mark.parametrize(
        "result",
        [
            tool_result("c", "found"),
            tool_result("c", "lost", error=True),
            tool_result("c", "lost", outcome="unknown"),
            tool_result("c", "lost", state={"x": 1}),
        ],
    )
    def test_another_result(self, store: Store, result: Any) -> None:
        diff = compare(store, tooled(), tooled(result=result))
        assert kinds(diff) == ["result changed"]
        assert diff.first_divergence is not None
        assert (diff.first_divergence.seq_a, diff.first_divergence.seq_b) == (4, 4)

    def test_a_round_of_tools_more(self, store: Store) -> None:
        longer = [*tooled()[:-1], call("refund", call_id="d"), tool_result("d", "ok"), assistant("Lost.")]
        diff = compare(store, tooled(), longer)
        assert kinds(diff) == ["tool changed"]
        assert diff.first_divergence is not None
        assert diff.first_divergence.step == 2

    def test_a_tool_instead_of_words(self, store: Store) -> None:
        diff = compare(store, [user("where?"), assistant("No idea.")], tooled())
        assert kinds(diff) == ["tool changed"]
        assert diff.first_divergence is not None
        assert diff.first_divergence.expected == "No idea."

    def test_an_answer_that_is_not_there(self, store: Store) -> None:
        assert kinds(compare(store, tooled(), tooled()[:-1])) == ["missing"]

    def test_another_input(self, store: Store) -> None:
        diff = compare(store, plain(("a", "1"), ("b", "2")), plain(("a", "1"), ("c", "2")))
        assert kinds(diff) == ["input changed"]
        assert diff.shared == 3

    def test_reasoning_is_compared_by_name(self, store: Store) -> None:
        diff = compare(store, [user("q"), assistant(Reasoning("hm"), "a")], [user("q"), assistant("a")])
        assert diff.first_divergence is not None
        assert (diff.first_divergence.kind, diff.first_divergence.subject) == ("reworded", "reasoning")

    def test_what_weighs_most_names_the_turn(self, store: Store) -> None:
        a = [user("q"), assistant("Let me see.", ToolCall("c", "f")), tool_result("c", "1"), assistant("x")]
        b = [user("q"), assistant("I look.", ToolCall("c", "f")), tool_result("c", "2"), assistant("y")]
        diff = compare(store, a, b)
        assert kinds(diff) == ["result changed"]
        assert [difference.kind for difference in diff.rows[0].differences] == [
            "reworded",
            "result changed",
            "reworded",
        ]
        assert diff.first_action_divergence == diff.rows[0].differences[1]

    def test_state_is_compared(self, store: Store) -> None:
        one = store.start()
        one.append(plain(("a", "1")))
        other = one.fork()
        assert oakleaf.diff(one, other).is_same
        other.note(state={"x": 1})
        diff = oakleaf.diff(one, other)
        assert not diff.is_same
        assert not diff.is_state_same


class TestNotADifference:
    def test_ids_of_calls(self, store: Store) -> None:
        assert compare(store, tooled(), tooled(call(call_id="other"))).is_same

    def test_the_order_in_which_results_landed(self, store: Store) -> None:
        both = assistant(ToolCall("a", "f", {"n": 1}), ToolCall("b", "f", {"n": 2}))
        results = [tool_result("a", "1"), tool_result("b", "2")]
        one = [user("q"), both, *results, assistant("x")]
        assert compare(store, one, [user("q"), both, *reversed(results), assistant("x")]).is_same

    def test_the_order_of_keys(self, store: Store) -> None:
        one = assistant(ToolCall("c", "f", {"a": 1, "b": 2}))
        assert compare(store, tooled(one), tooled(assistant(ToolCall("c", "f", {"b": 2, "a": 1})))).is_same

    def test_another_prompt_is_told_and_is_no_behaviour(self, store: Store) -> None:
        one = store.start("s", [system("You help.")])
        one.append(plain(("a", "1")))
        other = one.fork(at=1, prompt="Be strict.", model="new")
        other.append(plain(("a", "1")))
        diff = oakleaf.diff(one, other)
        assert diff.is_same
        assert [(change.name, change.b) for change in diff.setup] == [
            ("prompt", "Be strict."),
            ("model", "new"),
        ]

    def test_which_tools_description_or_schema_changed_is_told(self, store: Store) -> None:
        def look(order: int) -> str:
            """Look an order up."""
            return "lost"

        def look_closely(order: int, closely: bool = False) -> str:
            """Look an order up, closely."""
            return "lost"

        def pay(order: int) -> str:
            """Pay."""
            return "paid"

        look_closely.__name__ = "look"
        one, other = store.start("s"), store.start("s")
        one.send_sync("a", model=ScriptedModel(["1"]), tools=[look, pay])
        other.send_sync("a", model=ScriptedModel(["1"]), tools=[look_closely])
        diff = oakleaf.diff(one, other)
        assert diff.is_same
        changes = {change.name: (change.a, change.b) for change in diff.setup}
        assert changes["tool look, description"] == ("Look an order up.", "Look an order up, closely.")
        assert "closely" in changes["tool look, parameters"][1]
        assert changes["tool pay"] == ("defined", "")
        assert "tool pay defined → (none)" in diff.lines()

    def test_a_model_nobody_set_is_told_by_who_answered(self, store: Store) -> None:
        one = store.start("s")
        one.send_sync("a", model=ScriptedModel(["1"], model="old"))
        other = one.fork(at=0, model="new")
        assert [(s.name, s.a, s.b) for s in oakleaf.diff(one, other).setup] == [("model", "old", "new")]


class TestAlignment:
    A = plain(("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"))

    def test_a_turn_less_does_not_change_what_follows(self, store: Store) -> None:
        diff = compare(store, self.A, plain(("a", "1"), ("c", "3"), ("d", "4")))
        assert kinds(diff) == ["missing", "same", "same"]
        assert (diff.rows[0].turn_a, diff.rows[0].turn_b) == (4, None)

    def test_a_turn_more_does_not_either(self, store: Store) -> None:
        diff = compare(store, self.A, plain(("a", "1"), ("x", "0"), ("b", "2"), ("c", "3"), ("d", "5")))
        assert kinds(diff) == ["missing", "same", "same", "reworded"]
        assert (diff.rows[0].turn_a, diff.rows[0].turn_b) == (None, 4)

    def test_turns_in_another_order(self, store: Store) -> None:
        diff = compare(store, self.A, plain(("c", "3"), ("a", "1"), ("b", "2"), ("d", "4")))
        assert kinds(diff).count("same") == 3

    def test_one_side_has_nothing(self, store: Store) -> None:
        assert kinds(compare(store, self.A, [])) == ["missing"] * 4
        assert compare(store, [], []).is_same

    @pytest.mark.parametrize("many", [1_000])
    def test_a_thousand_equal_inputs_are_aligned_in_no_time(self, many: int) -> None:
        store = Store(MemoryStore(), deterministic_runtime())
        one, other = store.start(), store.start()
        one.append(plain(*[("go on", str(n)) for n in range(many)]))
        other.append(plain(*[("go on", str(n)) for n in range(1, many)]))
        assert len(oakleaf.diff(one, other).rows) == many


class TestPlaces:
    @pytest.fixture
    def session(self, store: Store) -> Session:
        session = store.start()
        session.append(plain(("a", "1"), ("b", "2")))
        return session

    def test_a_fork_shares_its_prefix_by_ids(self, session: Session) -> None:
        fork = session.fork(at=2)
        fork.append(plain(("b", "3")))
        diff = oakleaf.diff(session, fork)
        assert (diff.shared, kinds(diff)) == (3, ["reworded"])

    def test_a_session_with_its_own_past(self, session: Session) -> None:
        diff = oakleaf.diff((session, 2), session)
        assert kinds(diff) == ["missing"]
        assert oakleaf.diff(session, session).is_same

    def test_two_branches_of_one_session(self, session: Session) -> None:
        leaf = session.leaf
        session.rewind(3)
        session.append([assistant("3")])
        diff = oakleaf.diff((session, leaf), session)
        assert kinds(diff) == ["reworded"]
        assert (diff.a.seq, diff.b.seq) == (4, 4)

    def test_a_cut_inside_a_turn(self, session: Session) -> None:
        assert kinds(oakleaf.diff((session, 3), session)) == ["missing"]

    def test_a_place_that_is_not_there(self, session: Session) -> None:
        with pytest.raises(oakleaf.OakleafError):
            oakleaf.diff((session, 9), session)

    def test_the_end_of_what_is_shared_is_found_by_halving(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also between two sessions that store nothing in common."""
        one, other = store.start(), store.start()
        turns = [(f"q{n}", f"a{n}") for n in range(200)]
        one.append(plain(*turns))
        other.append(plain(*turns[:150], ("q150", "other"), *turns[151:]))
        reads = Reads(store.backend, monkeypatch)
        assert shared_seq(PathSide(one.log, one.leaf), PathSide(other.log, other.leaf)) == 301
        assert reads.rows.total() <= 2 * 10


@pytest.mark.parametrize("seed", range(8))
def test_what_is_shared_need_not_be_read(seed: int) -> None:
    """The rows are those of two paths that are read as a whole."""
    random = Random(seed)
    store = oakleaf.open("memory:")
    session = store.start("a", [system("You help."), *random_seeds(random)])
    for _ in range(12):
        random.choice(STEPS)(session, random)
    fork = session.fork(random.randrange(session.leaf.seq + 1))
    for one in (session, fork):
        for _ in range(random.randrange(6)):
            random.choice(STEPS)(one, random)
    for a, b in ((session, fork), (fork, session), (session, session)):
        diff = oakleaf.diff(a, b)
        assert [(row.turn_a, row.turn_b, row.kind) for row in diff.rows] == rows_of_whole_paths(a, b)
        assert diff.is_state_same == (fold_state(a.path()) == fold_state(b.path()))


def rows_of_whole_paths(a: Session, b: Session) -> list[tuple[int | None, int | None, str]]:
    paths = [session.path() for session in (a, b)]
    ids = [[entry.entry_id for entry in path] for path in paths]
    shared = next((n for n, (x, y) in enumerate(zip(*ids, strict=False)) if x != y), min(map(len, ids)))
    turns_a, turns_b = [read_turns(path) for path in paths]
    count = 0
    for one, other in zip(turns_a, turns_b, strict=False):
        is_within = one.turn == other.turn and max(one.last, other.last) <= shared
        if not is_within and ids[0] != ids[1]:
            break
        count += 1
    return [
        (None if one is None else one.turn, None if other is None else other.turn, heaviest_kind(differences))
        for one, other, differences in align(turns_a[count:], turns_b[count:])
    ]


class TestCost:
    def test_each_turn_has_the_tokens_of_both_sides(self, store: Store) -> None:
        one, other = store.start(), store.start()
        for session, tokens in ((one, 10), (other, 25)):
            with session.turn("q") as turn:
                turn.answer(assistant("a"), usage=Usage(tokens, 1), provider="openai", model="gpt-4o")
            with session.turn("r") as turn:
                turn.answer(
                    assistant(f"b{tokens}"), usage=Usage(tokens, 2), provider="openai", model="gpt-4o"
                )
        diff = oakleaf.diff(one, other)
        assert [(row.a.input_tokens, row.b.input_tokens) for row in diff.rows] == [(10, 25)]
        assert (diff.a.totals.output_tokens, diff.b.totals.output_tokens) == (2, 2)
        assert diff.a.models == ("gpt-4o",)


class TestShowing:
    def test_lines(self, store: Store) -> None:
        lines = compare(store, tooled(), tooled(call("refund"))).lines()
        assert lines[2] == "shared: 2 entries"
        assert "   1    1  tool changed" in "\n".join(lines)
        assert '  actual   refund({"order":41})' in lines
        assert lines[-1] == "different"
        assert compare(store, tooled(), tooled()).lines()[-1] == "same"
        assert compare(store, plain(("a", "1")), plain(("b", "1"))).lines()[2] == "shared: 1 entry"

    def test_markdown_shows_the_words_that_changed(self, store: Store) -> None:
        diff = compare(store, tooled(final="It is lost."), tooled(final="It is found."))
        assert "> It is ~~lost.~~ **found.**" in diff.markdown()

    def test_it_is_json_and_comes_back(self, store: Store) -> None:
        diff = compare(store, tooled(), tooled(call("refund")))
        assert msgspec.json.decode(msgspec.json.encode(diff), type=Diff) == diff

    @given(st.text(), st.text())
    def test_words_lose_nothing(self, a: str, b: str) -> None:
        pieces = word_diff(a, b)
        assert "".join(word.text for word in pieces if word.side != "b") == a
        assert "".join(word.text for word in pieces if word.side != "a") == b

    def test_very_long_texts_are_told_whole(self) -> None:
        assert [word.side for word in word_diff("a b " * 5_000, "a c " * 5_000)] == ["a", "b"]


def mutated(turn: Turn, how: str) -> Turn | None:
    """The same turn with one thing different; None: the turn goes."""
    steps = turn.steps
    if how == "final":
        return replace(turn, final=turn.final + " indeed")
    if how == "input":
        return replace(turn, text=turn.text + "!")
    if how == "more":
        return replace(turn, steps=(*steps, (("look", 0),)))
    if how == "gone":
        return None
    assume(steps)
    (name, value), *rest = steps[0]
    other = "send" if name == "look" else "look"
    changed = (other, value) if how == "tool" else (name, value + 3)
    return replace(turn, steps=((changed, *rest), *steps[1:]))


EXPECTED = {
    "final": "reworded",
    "input": "input changed",
    "more": "tool changed",
    "gone": "missing",
    "tool": "tool changed",
    "arguments": "arguments changed",
}


@pytest.mark.parametrize("how", EXPECTED)
@MANY
@given(script=st.lists(turns, min_size=1, max_size=4), data=st.data())
def test_one_change_is_found_in_the_turn_it_was_made(
    script: list[Turn], data: st.DataObject, how: str
) -> None:
    """Every input is a different one, so that there is one right way to align them.

    Results of one batch may land in another order the second time: such a turn has other ids and is the same.
    """
    script = [replace(turn, host=None, text=f"{turn.text} {n}") for n, turn in enumerate(script)]
    k = data.draw(st.integers(0, len(script) - 1))
    changed = mutated(script[k], how)
    with Store(MemoryStore(), deterministic_runtime()) as store:
        one = record(store, script)
        at = [entry.seq for entry in one.path() if entry.turn == entry.seq][k]
        replayed = record(store, [*script[:k], *([changed] if changed else []), *script[k + 1 :]])
        diff = oakleaf.diff(one, replayed)
        assert diff.first_divergence is not None
        assert diff.first_divergence.turn_a == at
        if how != "gone":
            (row,) = [row for row in diff.rows if row.turn_a == at]
            assert row.kind == EXPECTED[how]
