"""Laws of the specification that a bug had broken: each was found by trying to break it, on a file and in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

import oakleaf
from oakleaf import (
    Limits,
    ScriptedModel,
    Session,
    Slow,
    ToolCall,
    ToolContext,
    Usage,
    Workspace,
    assistant,
    draw_tree,
    system,
    user,
)
from oakleaf.core.fit import measure
from oakleaf.errors import (
    ContextOverflow,
    Fenced,
    InvalidArgument,
    InvalidMessage,
    InvalidOperation,
    InvalidText,
    ModelError,
    NotJson,
    Overloaded,
    SecretInName,
    SessionRunning,
)
from oakleaf.log.workspace import Selection
from oakleaf.models.base import Delta, Request
from oakleaf.models.prices import Rates
from oakleaf.store import Store
from oakleaf.wire import Answer
from support.sessions import tasks_of
from support.stopped_runs import stopped

pytestmark = pytest.mark.extra

NOW = Limits(pause=lambda failures: 0.0)
KEY = "sk-ant-" + "a1" * 20
PHRASE = "correct horse battery staple"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nabc def\nghi\n-----END RSA PRIVATE KEY-----"
DEAR = Rates(0, 1_000)
"""Dear only by its output: a first call is not refused for its input."""


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    where = "memory:" if request.param == "memory" else str(tmp_path / "agent.db")
    with oakleaf.open(where, synchronous="full", secrets={"phrase": PHRASE}) as opened:
        yield opened


@oakleaf.tool(effect="read")
def look(order: int) -> str:
    """Look an order up."""
    return f"order {order}"


def ask(name: str, *, times: int = 1) -> Any:
    return assistant(*(ToolCall(f"c{n}", name, {"order": n}) for n in range(times)))


class Pieces:
    """A model that says what it says piece by piece, and then ends, or does not."""

    provider, model, rates = "scripted", "pieces", None

    def __init__(self, pieces: Sequence[str], *, reasons: bool = False, hangs: bool = False) -> None:
        self.pieces, self.reasons, self.hangs = pieces, reasons, hangs

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        for piece in self.pieces:
            yield Delta(reasoning=piece) if self.reasons else Delta(piece)
        if self.hangs:
            await asyncio.sleep(60)
        yield Answer(assistant("".join(self.pieces)), Usage(1, 1, 0, 0), None, "scripted", "pieces", "stop")


def run_and_cancel(run: Any, at: str, *after: float) -> list[Any]:
    """Drive a run; from its first event of that type on, cancel it after so many seconds, as often as asked."""

    async def main() -> list[Any]:
        events = []
        async for event in run:
            if event.type == at and at not in [earlier.type for earlier in events]:
                for seconds in after:
                    asyncio.get_running_loop().call_later(seconds, run.cancel)
            events.append(event)
        return events

    return asyncio.run(main())


def live(events: Sequence[Any], what: str = "text") -> str:
    return "".join(event.data.get(what, "") for event in events if event.type == "session:delta")


class TestInput:
    @pytest.mark.parametrize(
        "message", [system("x"), assistant("y"), 5], ids=["system", "assistant", "no message"]
    )
    def test_only_a_user_message_opens_a_turn_and_anything_else_writes_nothing(
        self, session: Session, message: Any
    ) -> None:
        model = ScriptedModel(["never"])
        with pytest.raises(InvalidMessage, match="opens with a user message"):
            session.send_sync(message, model=model)
        with pytest.raises(InvalidMessage, match="opens with a user message"):
            session.enqueue(message)
        assert (session.row.status, len(session.path()), model.requests) == ("idle", 1, [])
        assert session.log.store.inbox(session.session_id) == []
        assert session.verify() == []


class TestStatus:
    @pytest.mark.parametrize("status", ["nonsense", 5, None])
    def test_one_that_is_none_is_refused_and_nothing_is_written(self, session: Session, status: Any) -> None:
        with pytest.raises(InvalidArgument, match="status"):
            session.end(status)
        assert (session.row.status, len(session.journal())) == ("idle", 1)

    def test_a_turn_tells_how_it_was_started(self, store: Store) -> None:
        session = store.start("a", policy={"p": 1}, context_window=9, trigger_type="mail", trigger_id="m1")
        session.send_sync("q", model=ScriptedModel(["a"], model="m"), tools=[look])
        (started,) = [fact.data for fact in session.journal() if fact.kind == "turn_started"]
        assert started == {
            "turn": 2,
            "trigger": {"type": "mail", "id": "m1"},
            "model": "m",
            "context_window": 9,
            "policy": {"p": 1},
        }
        definitions = session.context(at=started["turn"]).settings.tool_definitions
        assert definitions is not None
        assert definitions.names == ("look",)

    def test_a_turn_tells_how_it_ended(self, session: Session) -> None:
        session.send_sync("1", model=ScriptedModel(["fine"]))
        run_and_cancel(session.send("2", model=ScriptedModel([Slow(60)])), "session:turn_started", 0.02)
        session.send_sync("3", model=ScriptedModel([ModelError("m", "down")]), limits=NOW)
        stopped(
            session.resume_sync, model=ScriptedModel([ask("look")] * 2), tools=[look], limits=Limits(rounds=1)
        )
        ended = [fact.data for fact in session.journal() if fact.kind == "turn_ended"]
        assert [(fact["turn"], fact["status"]) for fact in ended] == [
            (2, "completed"),
            (4, "cancelled"),
            (6, "failed"),
            (6, "failed"),
        ]

    def test_a_run_that_lost_its_place_says_so_and_the_turn_goes_on(
        self, store: Store, session: Session
    ) -> None:
        @oakleaf.tool(effect="read")
        def meddle(order: int) -> str:
            store.session(session.session_id).interrupt()
            return "done"

        with pytest.raises(Fenced):
            session.send_sync("q", model=ScriptedModel([ask("meddle")]), tools=[meddle])
        assert session.row.status == "interrupted"
        session.refresh()
        session.resume_sync(model=ScriptedModel(["end"]), tools=[look])
        assert (session.row.status, session.verify()) == ("idle", [])


class TestCancel:
    def test_it_reaches_the_child_and_both_can_go_on(self, session: Session) -> None:
        @oakleaf.tool
        async def delegate(order: int, ctx: ToolContext) -> str:
            return await ctx.task("do it", models=[ScriptedModel([Slow(60, "late")])])

        run = session.send("q", model=ScriptedModel([ask("delegate")]), tools=[delegate])

        async def cancel_once_the_child_runs() -> None:
            while [child.row.status for child in tasks_of(session)] != ["running"]:
                await asyncio.sleep(0.01)
            run.cancel()

        async def both() -> None:
            other = asyncio.create_task(cancel_once_the_child_runs())
            async for _ in run:
                pass
            await other

        asyncio.run(both())
        (child,) = tasks_of(session)
        assert (session.row.status, child.row.status) == ("cancelled", "cancelled")
        assert (child.row.holder, child.path()[-1].finish) == (None, "cancelled")
        assert session.verify() == child.verify() == []
        child.send_sync("again", model=ScriptedModel(["fine"]))

    def test_a_tool_that_cleans_up_has_done_so_when_the_run_is_over(self, session: Session) -> None:
        leftovers: list[str] = []

        @oakleaf.tool
        async def tidy(order: int) -> str:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
                leftovers.append("clean")
            return "never"

        run = session.send("q", model=ScriptedModel([ask("tidy")]), tools=[tidy])
        run_and_cancel(run, "session:answer", 0.05)
        assert leftovers == ["clean"]

    def test_a_call_that_was_not_started_is_not_said_to_have_run(self, session: Session) -> None:
        @oakleaf.tool(approval=True)
        def danger(order: int) -> str:
            return "never"

        @oakleaf.tool
        async def wait(order: int) -> str:
            await asyncio.sleep(60)
            return "never"

        both = assistant(ToolCall("c0", "danger", {"order": 1}), ToolCall("c1", "wait", {"order": 1}))
        run = session.send("q", model=ScriptedModel([both]), tools=[danger, wait])
        run_and_cancel(run, "session:approval_requested", 0.05)
        results = [result for entry in session.path()[2:] for result in entry.message.results]
        assert [(result.call_id, result.outcome) for result in results] == [
            ("c0", "interrupted"),
            ("c1", "unknown"),
        ]
        assert "before this was run" in results[0].content[0].text

    def test_three_times_is_once_and_it_is_durable_when_the_run_is_over(self, tmp_path: Path) -> None:
        """While another process writes: the second cancel comes before the first is on the disk."""
        place = tmp_path / "agent.db"
        with oakleaf.open(place) as store:
            session = store.start("a")
            other = apsw.Connection(str(place))
            run = session.send("q", model=ScriptedModel([Slow(60)]))

            async def main() -> None:
                async for event in run:
                    if event.type == "session:turn_started":
                        other.execute("begin immediate")
                        threading.Timer(0.3, lambda: other.execute("rollback")).start()
                        for seconds in (0.0, 0.05, 0.1):
                            asyncio.get_running_loop().call_later(seconds, run.cancel)

            asyncio.run(main())
            row = store.session(session.session_id).row
            assert (row.status, row.holder) == ("cancelled", None)
            assert session.verify() == []


class TestAnswer:
    @pytest.mark.parametrize(
        "message",
        [
            assistant("half \ud800"),
            assistant(ToolCall("c", "t", {"n": float("nan")})),
            oakleaf.Message("assistant", (oakleaf.ToolResult("c"),)),
            user("in the wrong role"),
        ],
        ids=["half a character", "not a number", "a result", "a question"],
    )
    def test_one_that_cannot_be_kept_is_a_failed_call_and_its_tokens_are_counted(
        self, session: Session, message: Any
    ) -> None:
        bad = Answer(message, Usage(10, 5, 0, 0), None, "scripted", "m", "stop")
        events = session.send_sync("q", model=ScriptedModel([bad]), limits=NOW).events
        assert events[-1].data["error"]["code"] == "model_error"
        assert [(call.failed, call.usage.input_tokens) for call in session.model_calls()] == [(True, 10)]
        assert session.verify() == []
        session.send_sync("again", model=ScriptedModel(["whole"]))
        assert session.path()[-1].message.text == "whole"

    def test_the_next_of_the_chain_is_asked_then(self, session: Session) -> None:
        bad = Answer(assistant("\ud800"), None, None, "scripted", "m", "stop")
        chain = [ScriptedModel([bad]), ScriptedModel(["whole"], model="second")]
        session.send_sync("q", model=chain, limits=NOW)
        assert session.path()[-1].model == "second"


class TestChain:
    def test_a_model_that_stays_overloaded_is_not_waited_for_once_more(self, session: Session) -> None:
        def pause(failures: int) -> float:
            return 0.0 if failures < 2 else 60.0

        busy = ScriptedModel([Overloaded("m", "529")] * 3)
        chain = [busy, ScriptedModel(["second"])]
        events = session.send_sync("q", model=chain, limits=Limits(tries=3, pause=pause)).events
        assert [event.type for event in events].count("session:retry") == 2
        assert session.path()[-1].message.text == "second"


class TestTools:
    def test_a_call_whose_arguments_are_no_json_is_not_run_with_the_defaults(self, session: Session) -> None:
        did: list[bool] = []

        @oakleaf.tool
        def wipe(everything: bool = True) -> str:
            did.append(everything)
            return "wiped"

        half = assistant(ToolCall("c", "wipe", malformed='{"everything": fal'))
        session.send_sync("q", model=ScriptedModel([half, "end"]), tools=[wipe])
        (result,) = session.path()[4].message.results
        assert (did, result.error) == ([], True)
        assert "not a JSON object" in result.content[0].text


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"bottom": 1}
    for _ in range(depth):
        value = {"deeper": value}
    return value


NESTED: dict[str, Any] = {
    "note": lambda deep: [oakleaf.Note(deep)],
    "settings": lambda deep: [oakleaf.Settings(limits=deep)],
    "arguments": lambda deep: [user("q"), assistant(ToolCall("c", "t", deep))],
    "message details": lambda deep: [oakleaf.Message("user", (oakleaf.Text("q"),), details=deep)],
    "result details": lambda deep: [
        user("q"),
        assistant(ToolCall("c", "t")),
        oakleaf.tool_result("c", "r", details=deep),
    ],
}


class TestNesting:
    @pytest.mark.parametrize("place", NESTED)
    @pytest.mark.parametrize("depth", [250, 900])
    def test_too_deep_a_value_is_refused_wherever_it_stands(
        self, session: Session, place: str, depth: int
    ) -> None:
        """Some were kept, and one of them in any session made searching and drawing the store impossible."""
        with pytest.raises(NotJson, match="nested deeper than 200"):
            session.append(NESTED[place](nested(depth)))
        assert len(session.path()) == 1

    @pytest.mark.parametrize("place", NESTED)
    def test_what_is_kept_can_be_drawn_found_and_verified(
        self, store: Store, session: Session, place: str
    ) -> None:
        session.append(NESTED[place](nested(190)))
        assert "1" in draw_tree(session)
        store.search("help")
        assert session.verify() == []


class TestSeeds:
    def test_what_was_appended_in_their_place_is_none(self, session: Session) -> None:
        session.rewind(0)
        session.append([user("fresh"), assistant("start")])
        assert session.hydrate().seeds == []
        assert [entry.seq for entry in session.hydrate().messages] == [1, 2]
        assert session.fork().row.seed_count == 0

    def test_those_before_the_cut_stay_in_a_fork_of_a_fork(self, store: Store) -> None:
        session = store.start("a", [system("1"), user("2"), assistant("3")])
        session.append([user("q"), assistant("a")])
        fork = session.fork().fork(at=2)
        fork.append([user("q"), assistant("b")])
        assert [entry.message.text for entry in fork.hydrate().seeds] == ["1", "2"]
        assert fork.verify() == []


class TestLimits:
    def test_rounds_are_those_of_the_turn_however_often_it_was_resumed(self, session: Session) -> None:
        limits = Limits(rounds=3, pause=lambda failures: 0.0)
        model = ScriptedModel([ask("look"), ask("look"), ModelError("m", "down"), ask("look"), "never"])
        session.send_sync("q", model=model, tools=[look], limits=limits)
        events = stopped(session.resume_sync, model=model, tools=[look], limits=limits).events
        assert events[-1].data["error"]["code"] == "turn_limit"
        assert len(model.requests) == 4

    def test_a_turn_that_was_stopped_is_told_with_the_number_behind_which_it_is_durable(
        self, session: Session
    ) -> None:
        model = ScriptedModel([ask("look")])
        events = stopped(session.send_sync, "q", model=model, tools=[look], limits=Limits(rounds=1)).events
        assert events[-1].journal_number == session.row.facts

    def test_those_of_the_sessions_settings_hold(self, session: Session) -> None:
        session.set(limits=Limits(turns=1))
        assert session.context().settings.limits == {"turns": 1}
        with pytest.raises(InvalidArgument, match="pass it to send"):
            session.set(limits=Limits(tries=2))
        session.set(limits={"turns": 1, "the host's own": "kept"})
        session.send_sync("1", model=ScriptedModel(["a"]))
        (event,) = stopped(session.send_sync, "2", model=ScriptedModel(["never"])).events
        assert event.data["error"]["code"] == "turn_limit"

    def test_those_of_the_sessions_settings_only_narrow(self, session: Session) -> None:
        session.set(limits={"turns": 9, "on_exceed": "warn"})
        session.send_sync("1", model=ScriptedModel(["a"]))
        (event,) = stopped(
            session.send_sync, "2", model=ScriptedModel(["never"]), limits=Limits(turns=1)
        ).events
        assert event.data["error"]["code"] == "turn_limit"

    def test_one_of_the_settings_that_is_no_number_is_refused_before_anything_leaves(
        self, session: Session
    ) -> None:
        session.set(limits={"turns": "many"})
        model = ScriptedModel(["never"])
        with pytest.raises(InvalidArgument, match="turns"):
            session.send_sync("1", model=model)
        assert model.requests == []

    def test_the_money_of_the_parent_is_the_childs_limit_too(self, session: Session) -> None:
        models: list[ScriptedModel] = []

        @oakleaf.tool
        async def delegate(order: int, ctx: ToolContext) -> str:
            models.append(ScriptedModel(["never"], rates=DEAR))
            return await ctx.task("do it", models=models[-1:], limits=Limits(rounds=5))

        model = ScriptedModel([ask("delegate"), "never"], rates=DEAR)
        stopped(session.send_sync, "q", model=model, tools=[delegate], limits=Limits(max_cost_microcents=1))
        assert models[0].requests == []

    def test_a_child_that_was_refused_tells_its_parent_why(self, session: Session) -> None:
        @oakleaf.tool
        async def delegate(order: int, ctx: ToolContext) -> str:
            return await ctx.task("do it", models=[ScriptedModel(["never"], rates=DEAR)])

        model = ScriptedModel([ask("delegate"), "never"], rates=DEAR)
        stopped(session.send_sync, "q", model=model, tools=[delegate], limits=Limits(max_cost_microcents=1))
        (result,) = session.path()[4].message.results
        assert "of $0.00000001 is spent" in result.content[0].text

    def test_a_childs_own_cap_is_for_what_the_child_spends(self, session: Session) -> None:
        @oakleaf.tool
        async def delegate(order: int, ctx: ToolContext) -> str:
            cheap = ScriptedModel(["done"], rates=DEAR)
            return await ctx.task("do it", models=[cheap], limits=Limits(max_cost_microcents=1))

        session.send_sync("q", model=ScriptedModel([ask("delegate"), "end"], rates=DEAR), tools=[delegate])
        assert session.path()[4].message.results[0].content[0].text == "done"

    def test_money_is_looked_at_again_before_the_next_of_the_chain_is_asked(self, session: Session) -> None:
        cut = Answer(assistant("half"), Usage(1_000, 1_000, 0, 0), None, "scripted", "m", None)
        second = ScriptedModel(["never"], rates=DEAR)
        limits = Limits(max_cost_microcents=1, pause=lambda failures: 0.0)
        events = stopped(
            session.send_sync, "q", model=[ScriptedModel([cut], rates=DEAR), second], limits=limits
        ).events
        assert events[-1].data["error"]["limit"] == "cost"
        assert second.requests == []


class TestCompaction:
    def test_without_a_model_every_turn_is_still_told_and_the_context_stays_small(
        self, session: Session
    ) -> None:
        model = ScriptedModel(lambda request: "answer " + "blah " * 300)
        limits = Limits(context_tokens=2_000, turns=100)
        for n in range(30):
            session.send_sync(f"word w{n}x " + "pad " * 300, model=model, limits=limits)
        sizes = [
            sum(measure(item.message).tokens for item in request.context.items) for request in model.requests
        ]
        assert max(sizes) <= 2_000
        text = "".join(item.message.text for item in session.context().items)
        assert [n for n in range(30) if f"w{n}x" not in text] == []

    def test_what_a_model_wrote_stays_word_for_word_when_later_ones_are_made_without(
        self, session: Session
    ) -> None:
        prose = "An important fact. " * 60
        model = ScriptedModel(lambda request: "answer " * 800)
        for n in range(10):
            writer = ScriptedModel([prose]) if n < 3 else None
            limits = Limits(context_tokens=1_500, summariser=writer)
            session.send_sync("pad " * 800, model=model, limits=limits)
        texts = [item.message.text for item in session.context().items if item.pinned]
        assert (len(texts), prose.strip() in texts[0]) == (1, True)

    def test_what_tools_were_asked_and_said_is_told_too(self, session: Session) -> None:
        model = ScriptedModel([ask("look", times=9), ContextOverflow("m", "too long"), "end"])
        session.send_sync("the question", model=model, tools=[look], limits=NOW)
        summary, question = model.requests[-1].context.items
        assert "order 8" in summary.message.text
        assert question.message.text == "the question"

    def test_one_that_would_be_no_shorter_is_not_made(self, session: Session) -> None:
        session.append([user("a"), assistant("b")])
        events = session.send_sync(
            "c", model=ScriptedModel([ContextOverflow("m", "too long")]), limits=NOW
        ).events
        assert events[-1].data["error"]["code"] == "context_overflow"
        assert "compaction" not in [entry.kind for entry in session.path()]

    def test_a_models_summary_longer_than_what_it_replaces_is_refused(self, session: Session) -> None:
        session.append([user("old " * 100), assistant("answer " * 100)])
        limits = Limits(context_tokens=200, summariser=ScriptedModel(["long " * 400]))
        session.send_sync("new", model=ScriptedModel(["fine"]), limits=limits)
        (compaction,) = [entry.payload for entry in session.path() if entry.kind == "compaction"]
        assert "long " * 400 not in compaction.summary

    def test_the_call_for_a_summary_is_counted_before_it_is_made(self, session: Session) -> None:
        kinds: list[list[str]] = []

        def summary(request: Request) -> str:
            kinds.append([call.purpose for call in session.model_calls()])
            return "They spoke."

        session.append([user("old " * 400), assistant("answer " * 400)])
        limits = Limits(context_tokens=300, summariser=ScriptedModel(summary))
        session.send_sync("new", model=ScriptedModel(["fine"]), limits=limits)
        assert kinds == [["answer", "compaction"]]
        assert sorted(call.purpose for call in session.model_calls()) == ["answer", "compaction"]
        assert session.usage().unknown_calls == 0

    def test_a_summary_is_not_asked_for_when_the_money_is_spent(self, session: Session) -> None:
        session.append([user("old " * 400), assistant("answer " * 400)])
        summariser = ScriptedModel(["never"])
        limits = Limits(max_cost_microcents=1, summariser=summariser, pause=lambda failures: 0.0)
        dear = Answer(assistant(""), Usage(1_000, 1_000, 0, 0), None, "scripted", "m", None)
        chain = [ScriptedModel([dear], rates=DEAR), ScriptedModel([ContextOverflow("m", "too long")])]
        stopped(session.send_sync, "new", model=chain, limits=limits)
        assert summariser.requests == []


class TestSecrets:
    @pytest.mark.parametrize("secret", [KEY, PHRASE, PEM], ids=["key", "with blanks", "of many lines"])
    @pytest.mark.parametrize("size", [1, 7, 1_000])
    @pytest.mark.parametrize("reasons", [False, True], ids=["text", "reasoning"])
    def test_one_that_comes_in_pieces_is_in_no_event(
        self, session: Session, secret: str, size: int, reasons: bool
    ) -> None:
        whole = f"it is {secret} and no more"
        pieces = [whole[n : n + size] for n in range(0, len(whole), size)]
        events = session.send_sync("q", model=Pieces(pieces, reasons=reasons)).events
        text = live(events, "reasoning" if reasons else "text")
        assert text.startswith("it is [redacted")
        assert text.endswith("] and no more")

    def test_what_only_begins_like_one_is_shown_whole(self, session: Session) -> None:
        whole = "correct horse battery, correct horse, -----BEGIN the day"
        assert live(session.send_sync("q", model=Pieces(list(whole))).events) == whole

    def test_a_key_that_is_only_spoken_of_does_not_hold_the_rest_back_for_ever(
        self, session: Session
    ) -> None:
        pieces = [PEM.partition("\n")[0], *[" is how it begins,"] * 1_000]
        run = session.send("q", model=Pieces(pieces, hangs=True))
        events = run_and_cancel(run, "session:delta", 0.5)
        assert live(events).endswith("is how it begins,")

    def test_the_beginning_of_one_is_in_no_draft_and_no_cancelled_answer(self, session: Session) -> None:
        run = session.send("q", model=Pieces(["word " * 200, KEY[:12]], hangs=True))
        events = run_and_cancel(run, "session:delta", 0.05)
        assert live(events) == "word " * 200
        assert session.path()[-1].message.text == "word " * 200 + "(cancelled)"

    def test_one_is_in_no_tag_no_title_and_no_word_about_a_turn(self, session: Session) -> None:
        with pytest.raises(SecretInName):
            session.tag(note=KEY)
        fork = session.fork(title=f"about {KEY}")
        with pytest.raises(SecretInName):
            session.turn("q", trigger=KEY)
        with session.turn("q", policy={"note": KEY}) as turn:
            turn.answer(assistant("a"))
        facts = [str(session.row), str(session.journal()), str(fork.row)]
        assert [KEY in text for text in facts] == [False, False, False]


class TestLease:
    def test_a_turn_of_ones_own_that_another_took_over_leaves_its_status_alone(
        self, store: Store, session: Session
    ) -> None:
        """It cleared the other's lease on its way out, and a third could have driven beside it."""
        later = store.runtime.now() + 3_600_000_000
        with session.turn("q") as turn:
            store.backend.lease(session.session_id, "elsewhere:1#b", later + 1, later)
            with pytest.raises(Fenced):
                turn.answer(assistant("late"))
        row = session.row
        assert (row.status, row.holder, row.error) == ("running", "elsewhere:1#b", None)


class TestTurn:
    def test_an_answer_that_was_refused_does_not_count_its_call_twice(self, session: Session) -> None:
        with session.turn("q", model="scripted:m") as turn:
            with pytest.raises(InvalidText):
                turn.answer(assistant("\ud800"), usage=Usage(7, 7, 0, 0))
            with pytest.raises(InvalidText):
                turn.failed("\ud800")
            turn.answer(assistant("whole"), usage=Usage(7, 7, 0, 0))
        assert [call.usage.input_tokens for call in session.model_calls()] == [7]

    def test_one_that_is_over_takes_no_answer(self, session: Session) -> None:
        with session.turn("q") as turn:
            turn.answer(assistant("a"))
            with pytest.raises(InvalidOperation, match="turn 2 has ended"):
                turn.answer(assistant("b"))
        assert len(session.path()) == 3

    def test_one_within_another_is_refused(self, session: Session) -> None:
        with session.turn("outer") as outer:
            with pytest.raises(SessionRunning), session.turn("inner"):
                pass
            outer.answer(assistant("a"))
        assert (session.row.status, len(session.path())) == ("idle", 3)


class TestWorkspace:
    def test_everything_it_knows_is_filled_in(self, store: Store) -> None:
        workspace = Workspace(working_dir="/w", active_file="a.py", selection=Selection("f.py", 3, 9))
        text = "{{ctx.active_file}} {{ctx.selection}} {{ctx.selection.file}} {{ctx.selection.end_line}} {{ctx.no}}"
        session = store.start("a", [system(text)], workspace=workspace)
        assert session.path()[0].message.text == "a.py f.py:3-9 f.py 9 {{ctx.no}}"


class TestTask:
    def test_one_without_an_answer_is_named(self, session: Session) -> None:
        @oakleaf.tool
        async def delegate(order: int, ctx: ToolContext) -> str:
            with pytest.raises(InvalidOperation, match="ended without an answer: m gave no answer: down"):
                await ctx.task("do it", models=[ScriptedModel([ModelError("m", "down")])], limits=NOW)
            return "told"

        session.send_sync("q", model=ScriptedModel([ask("delegate"), "end"]), tools=[delegate])
        assert session.path()[4].message.results[0].content[0].text == "told"
