"""A turn under a caller's key: the same lines run again leave the same entries as once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

import pytest

import oakleaf
from oakleaf import Session, ToolCall, Turn, Usage, assistant, system
from oakleaf.errors import InvalidArgument, InvalidOperation, SessionRunning
from oakleaf.store import Store
from oakleaf.testing.stores.writer import read_everything
from support.interleaving import interleaved

CALL = ToolCall("c1", "refund", {"order": 41})


class Killed(BaseException):
    """Ends a block as a killed process does not, but where it does; tests/test_crash_turn.py kills real ones."""


class Lines:
    """The lines of somebody's own loop, which end after a number of steps; they count what they ask and run."""

    def __init__(self, style: str) -> None:
        self.style, self.steps, self.calls = style, 0, 0
        self.effects: list[int] = []

    def step(self) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise Killed

    def ask(self, session: Session) -> Any:
        """Answer by what is in the history, as a model does."""
        self.calls += 1
        turn = [entry for entry in session.path() if entry.turn == session.path()[-1].turn]
        n = sum(entry.role == "assistant" for entry in turn)
        calls = [ToolCall(f"c{n}{i}", "refund", {"order": 10 * n + i}) for i in range(2)]
        return assistant("", *calls) if n < 2 else assistant("done")

    def refund(self, order: int) -> str:
        self.effects.append(order)
        return f"refunded {order}"

    def run(self, session: Session, steps: int = 0, key: str | None = "mail-17") -> None:
        self.steps = steps
        with session.turn("mail", key=key) as turn:
            self.step()
            session.set(prompt="Be brief.")
            self.note(session, "answer 0 comes")
            getattr(self, self.style)(session, turn)

    def note(self, session: Session, text: str) -> None:
        """Append a note between the steps of the turn."""
        session.note({"text": text})
        self.step()

    def straight(self, session: Session, turn: Turn) -> None:
        for n in range(2):
            calls = [ToolCall(f"c{n}{i}", "refund", {"order": 10 * n + i}) for i in range(2)]
            turn.answer(assistant("", *calls))
            self.step()
            for call in calls:
                turn.run(call, self.refund)
                self.step()
                self.note(session, "refunded")
        turn.answer(assistant("done"))
        self.step()

    def by_answer(self, session: Session, turn: Turn) -> None:
        while not turn.done:
            answer = turn.recorded_answer() or turn.answer(self.ask(session))
            self.step()
            for call in reversed(answer.calls):
                turn.run(call, self.refund)
                self.step()
                self.note(session, "refunded")

    def by_open_calls(self, session: Session, turn: Turn) -> None:
        while not turn.done:
            for call in turn.open_tool_calls:
                turn.run(call, self.refund)
                self.step()
            self.note(session, "the model is asked")
            turn.answer(self.ask(session))
            self.step()


STYLES = ["straight", "by_answer", "by_open_calls"]


class TestAKeyedTurn:
    @pytest.mark.parametrize("style", STYLES)
    @pytest.mark.parametrize("steps", range(1, 13))
    def test_the_same_lines_run_again_after_a_crash_leave_the_same_entries_as_once(
        self, store: Store, session: Session, style: str, steps: int
    ) -> None:
        once = Lines(style)
        other = store.start("support", [system("You help.")])
        once.run(other)
        lines = Lines(style)
        with pytest.raises(Killed):
            lines.run(session, steps)
        again = store.session(session.session_id)
        lines.run(again)
        assert [entry.entry_id for entry in again.path()] == [entry.entry_id for entry in other.path()]
        assert (lines.effects, lines.calls) == (once.effects, once.calls)
        assert sorted(set(lines.effects)) == sorted(lines.effects) == [0, 1, 10, 11]
        assert again.row.status == "idle"
        assert again.verify() == []

    @pytest.mark.parametrize("style", STYLES)
    def test_a_turn_that_has_ended_is_repeated_without_a_write_an_effect_or_a_model_call(
        self, store: Store, session: Session, style: str
    ) -> None:
        lines = Lines(style)
        lines.run(session)
        with session.turn("another") as turn:
            turn.answer(assistant(CALL))
            turn.run(CALL, lambda order: "refunded")
            turn.answer(assistant("yes"))
        before, leaf = read_everything(store.backend, session.session_id), session.leaf
        effects, model_calls = list(lines.effects), lines.calls
        for handle in (session, store.session(session.session_id)):
            lines.run(handle)
            assert handle.leaf == leaf, "the handle is where the session is"
        assert read_everything(store.backend, session.session_id) == before
        assert (lines.effects, lines.calls) == (effects, model_calls)
        session.rewind(1)
        before = read_everything(store.backend, session.session_id)
        lines.run(session)
        assert read_everything(store.backend, session.session_id) == before
        session.append([oakleaf.user("the session goes on where it stands")])

    def test_what_was_recorded_is_returned_by_every_verb(self, store: Store, session: Session) -> None:
        def lines(handle: Session) -> tuple[list[Any], bool]:
            with handle.turn("mail", key="k", model="anthropic:m") as turn:
                was_done = turn.done
                turn.failed("overloaded")
                writes = [turn.answer(assistant(*calls), usage=Usage(3, 1))]
                turn.started(calls[0])
                writes += [turn.result("c1", "one"), turn.run(calls[1], lambda order: "two")]
                writes += [turn.answer(assistant("done"), usage=Usage(3, 1))]
            return writes, was_done

        calls = (CALL, ToolCall("c2", "refund", {"order": 42}))
        first, was_done = lines(session)
        assert not was_done
        before = read_everything(store.backend, session.session_id)
        assert lines(store.session(session.session_id)) == (first, True)
        assert read_everything(store.backend, session.session_id) == before
        with store.session(session.session_id).turn("mail", key="k") as turn:
            assert turn.open_tool_calls == ()
            for _ in range(2):
                turn.answer(assistant("x"))
            with pytest.raises(InvalidOperation, match="has ended"):
                turn.answer(assistant("one more"))
            with pytest.raises(InvalidOperation, match="has ended"):
                turn.result("c9", "x")

    def test_a_call_that_was_started_in_a_keyed_turn_is_unknown_and_not_run_again(
        self, store: Store, session: Session
    ) -> None:
        def interrupted(order: int) -> NoReturn:
            raise KeyboardInterrupt

        def lines(handle: Session, function: Callable[..., Any]) -> None:
            with handle.turn("mail", key="k") as turn:
                (call,) = turn.answer(assistant(CALL)).calls
                turn.run(call, function)
                turn.answer(assistant("done"))

        with pytest.raises(KeyboardInterrupt):
            lines(session, interrupted)
        lines(store.session(session.session_id), lambda order: pytest.fail("refunded twice"))
        results = [
            r for e in store.session(session.session_id).path() if e.message for r in e.message.results
        ]
        assert [result.outcome for result in results] == ["unknown"]

    def test_notes_of_others_between_the_steps_are_nobodys_and_what_differs_is_not_written_again(
        self, store: Store, session: Session
    ) -> None:
        times = iter(range(10))

        def run(handle: Session) -> None:
            with handle.turn("mail", key="mail-17") as turn:
                handle.note({"time": next(times)})
                turn.answer(assistant(CALL))
                store.session(session.session_id).note({"text": "from elsewhere"})
                handle.note({"text": "asked"})
                turn.run(CALL, lambda order: "refunded")
                handle.note({"time": next(times)})
                raise Killed

        for _ in range(2):
            with pytest.raises(Killed):
                run(store.session(session.session_id))
        notes = [
            entry.payload.data for entry in store.session(session.session_id).path() if not entry.message
        ]
        elsewhere = {"text": "from elsewhere"}
        assert notes == [{"time": 0}, elsewhere, {"text": "asked"}, {"time": 1}, elsewhere, {"time": 3}]
        again = store.session(session.session_id)
        with again.turn("mail", key="mail-17") as turn:
            turn.answer(assistant(CALL))
            turn.run(CALL, lambda order: "not run")
            turn.answer(assistant("done"))
            again.note({"text": "after the end"})
        assert again.path()[-1].payload.data == {"text": "after the end"}
        assert again.verify() == []

    def test_the_calls_of_a_recorded_answer_are_as_the_model_made_them_while_the_process_knows_them(
        self, store: Store, session: Session
    ) -> None:
        call = ToolCall("c1", "save", {"text": "AKIA" + "A1B2" * 4})
        with session.turn("mail", key="mail-17") as turn:
            turn.answer(assistant(call))
        for verb in (Turn.recorded_answer, lambda turn: turn.answer(assistant("not asked"))):
            handle = store.session(session.session_id)
            with handle.turn("mail", key="mail-17") as turn:
                assert verb(turn).calls == (call,)
        assert "AKIA" not in str(store.session(session.session_id).path())

    def test_steps_take_keys_derived_from_that_of_the_turn(self, session: Session) -> None:
        Lines("straight").run(session)
        keys = [fact.key for fact in session.journal() if "mail-17" in str(fact.key)]
        assert keys == ["mail-17", *(f"~mail-17/{n}" for n in ("3", "3.0", "3.1", "8", "8.0", "8.1", "13"))]

    def test_a_turn_that_our_loop_finished_is_repeated_too(self, store: Store, session: Session) -> None:
        lines = Lines("by_answer")
        with pytest.raises(Killed):
            lines.run(session, 3)

        @oakleaf.tool
        def refund(order: int) -> str:
            """Refund."""
            return lines.refund(order)

        model = oakleaf.ScriptedModel(["All refunded."])
        store.session(session.session_id).resume_sync(model=model, tools=[refund])
        before = read_everything(store.backend, session.session_id)
        lines.run(store.session(session.session_id))
        assert read_everything(store.backend, session.session_id) == before
        assert sorted(lines.effects) == [0, 1]

    def test_a_turn_that_runs_elsewhere_is_refused_as_running(self, store: Store, session: Session) -> None:
        with session.turn("mail", key="k") as turn:
            before = read_everything(store.backend, session.session_id)
            with pytest.raises(SessionRunning), store.session(session.session_id).turn("mail", key="k"):
                pass
            assert read_everything(store.backend, session.session_id) == before
            turn.answer(assistant("done"))

    def test_a_key_that_belongs_to_no_turn_or_to_one_that_was_rewound_is_refused(
        self, store: Store, session: Session
    ) -> None:
        session.append([oakleaf.Note({})], key="note")
        with pytest.raises(Killed):
            Lines("straight").run(session, 2)
        session.undo()
        for key, why in [("note", "opened no turn"), ("mail-17", "was rewound"), ("new", "no turn is open")]:
            content = None if key == "new" else "mail"
            with pytest.raises(InvalidOperation, match=why), session.turn(content, key=key):
                pass
        with pytest.raises(InvalidArgument), session.turn("mail", key="~mine"):
            pass

    def test_no_key_costs_no_lookup(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        backend = type(session.log.store)
        monkeypatch.setattr(backend, "find_change", lambda *_: pytest.fail("looked up"))
        Lines("by_answer").run(session, key=None)


class Delivery:
    """A mail that a queue delivers to a process; its lines can be left between any two steps."""

    def __init__(self, style: str) -> None:
        self._style = style
        self.effects: list[str] = []

    def refund(self, order: int) -> str:
        self.effects.append(f"refund {order}")
        return f"refunded {order}"

    def work(self, session: Session, steps: int | None = None) -> Iterator[None]:
        """Run the lines, one step per iteration, and die after so many of them."""
        with session.turn("mail", key="mail-17") as turn:
            for number, _ in enumerate(getattr(self, self._style)(turn), 1):
                if number == steps:
                    raise Killed
                yield

    def by_answer(self, turn: Turn) -> Iterator[None]:
        for n in (0, 1):
            for call in (turn.recorded_answer() or turn.answer(self.says(n))).calls:
                yield
                turn.run(call, self.refund)
        yield
        turn.answer(assistant("done"))

    def by_open_calls(self, turn: Turn) -> Iterator[None]:
        while not turn.done:
            for call in turn.open_tool_calls:
                turn.run(call, self.refund)
                yield
            answers = [entry for entry in turn.log.path().entries if entry.role == "assistant"]
            turn.answer(self.says(len(answers)) if len(answers) < 2 else assistant("done"))
            yield

    @staticmethod
    def says(n: int) -> oakleaf.Message:
        return assistant("", *(ToolCall(f"c{n}{i}", "refund", {"order": 10 * n + i}) for i in range(2)))


class TestTwoProcessesWithOneMail:
    @pytest.mark.parametrize("style", ["by_answer", "by_open_calls"])
    @pytest.mark.parametrize("begins_after", [None, 0, 1, 2])
    @pytest.mark.parametrize("dies_after", [None, 4])
    def test_whenever_the_other_ends_or_dies_it_is_waited_for_or_continued(
        self, store: Store, style: str, begins_after: int | None, dies_after: int | None
    ) -> None:
        once = store.start("support", [system("You help.")])
        list(Delivery(style).work(once))
        has_acted, at = True, 0
        while has_acted:
            at += 1
            session_id = store.start("support", [system("You help.")]).session_id
            here, there = Delivery(style), Delivery(style)
            others = there.work(store.session(session_id), dies_after)
            for _ in range(0 if begins_after is None else begins_after + 1):
                next(others)

            def act(others: Iterator[None] = others) -> None:
                with suppress(Killed, SessionRunning):
                    list(others)

            process, backend = interleaved(store, at, act)
            with suppress(SessionRunning):
                list(here.work(process.session(session_id)))
            has_acted = backend.has_acted
            act()
            list(here.work(store.session(session_id)))
            session = store.session(session_id)
            assert [entry.payload for entry in session.path()] == [entry.payload for entry in once.path()], at
            effects = [*here.effects, *there.effects]
            assert sorted(set(effects)) == sorted(effects), "none is run twice"
            assert session.row.status == "idle"
            assert session.verify() == []
