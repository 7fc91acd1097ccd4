"""Compaction finds a way: every request fits the window, is legal for every provider, and has the newest input whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import oakleaf
from oakleaf import (
    Attachment,
    Compaction,
    Entry,
    Limits,
    ScriptedModel,
    Session,
    ToolCall,
    Usage,
    assistant,
    fit,
    system,
    user,
)
from oakleaf.agent.compaction import ANSWER_TOKENS
from oakleaf.agent.compaction_plan import newest_turn, plan_compaction
from oakleaf.core.context import build_context
from oakleaf.core.entries import Evidence
from oakleaf.core.fit import BYTES_PER_TOKEN, measure, measure_context, measure_system, measure_tools
from oakleaf.core.messages import Reasoning, Text, tool_result
from oakleaf.core.turns import CallModel, cursor_after, next_action
from oakleaf.errors import ContextOverflow, InvalidSummary
from oakleaf.models.base import Request
from oakleaf.models.prices import Rates
from oakleaf.models.windows import window_of
from oakleaf.store import Store
from oakleaf.wire import PROVIDERS, Answer, find_provider, render
from support.order_desk import Desk
from support.order_desk import ask as ask_desk
from support.random_logs import blobs, path_of, paths, thorough_settings
from support.stopped_runs import stopped

NOW = Limits(pause=lambda failures: 0.0)
LARGE = "0123456789 word " * 1_280  # 20 kB


@oakleaf.tool(effect="read")
def look(order: int) -> str:
    """Look an order up."""
    return f"order {order}: {LARGE}"


def _look_up_at_length(order: int) -> str:
    """Look an order up, in one of the many places where orders are kept, and say where it was found and when."""
    return str(order)


def tokens(request: Request) -> int:
    """What the estimate says of a whole request."""
    return measure_context(request.context).tokens


def texts(request: Request) -> list[str]:
    return [message.text for message in request.messages]


def ask(order: int, text: str = "") -> oakleaf.Message:
    return assistant(*([text] if text else []), ToolCall(f"c{order}", "look", {"order": order}))


def calls_then_done(count: int) -> Any:
    """A model that looks so many orders up, one after the other."""
    orders = iter(range(count))

    def answer(request: Request) -> Any:
        order = next(orders, None)
        return "done" if order is None else ask(order)

    return ScriptedModel(answer)


def kinds(session: Session) -> list[str]:
    return [entry.kind for entry in session.path()]


def compactions(session: Session) -> list[Compaction]:
    return [entry.payload for entry in session.path() if isinstance(entry.payload, Compaction)]


def is_legal(request: Request) -> bool:
    projected = {
        name: find_provider(name).project(request.context, lambda digest: None) for name in PROVIDERS
    }
    return all(find_provider(name).violations(one, ready=True) == [] for name, one in projected.items())


@pytest.mark.extra
class TestWindow:
    def test_a_hundred_calls_of_20_kb_each_finish_in_a_window_of_8000_tokens(self, tmp_path: Path) -> None:
        session, model = (
            oakleaf.open(tmp_path / "store.db").start("a", [system("You help.")]),
            calls_then_done(100),
        )
        limits = Limits(context_window=8_000, rounds=200)
        result = session.send_sync("the question", model=model, tools=[look], limits=limits)
        assert (result.text, len(model.requests)) == ("done", 101)
        assert max(map(tokens, model.requests)) <= 6_000
        assert all("the question" in texts(request) for request in model.requests)
        assert all(map(is_legal, model.requests[::25]))
        assert f"order {99}" in model.requests[-1].context.items[-1].message.results[0].content[0].text
        assert session.verify() == []

    @pytest.mark.parametrize("provider", ["anthropic", "openai", "gemini", "openai-chat"])
    def test_what_is_sent_fits_with_definitions_signatures_and_sealed_reasoning(
        self, tmp_path: Path, provider: str
    ) -> None:
        """Counted on the JSON that is sent, not by the estimate."""
        seal = "c2VhbGVk" * 250  # 2,000 characters
        proof = {"signature": seal, "encrypted_content": seal, "field": "reasoning_content"}
        orders = iter(range(30))

        def answer(request: Request) -> Any:
            order = next(orders, None)
            if order is None:
                return "done"
            message = assistant(Reasoning("hm"), *ask(order).parts)
            proofs = {"0": proof | {"id": f"rs_{order}"}, "1": {"id": f"fc_{order}"}}
            return Answer(message, evidence=Evidence(provider, proofs), finish="tool_calls")

        tools = [look, *(oakleaf.tool(effect="read", name=f"t{n}")(_look_up_at_length) for n in range(12))]
        model = ScriptedModel(answer)
        model.provider = provider
        session = oakleaf.open(tmp_path / "store.db").start("a", [system("You help.")])
        limits = Limits(context_window=8_000, rounds=200)
        assert session.send_sync("q", model=model, tools=tools, limits=limits).text == "done"
        bodies = [render(find_provider(provider).project(r.context, r.blobs)) for r in model.requests]
        assert max(map(len, bodies)) // BYTES_PER_TOKEN <= 8_000
        assert max(measure_context(r.context, provider).tokens for r in model.requests) <= 6_000
        if provider != "openai-chat":
            assert any(seal.encode() in one for one in bodies)

    def test_a_result_that_is_shortened_is_not_sent_whole_because_its_issuer_wrote_it(
        self, session: Session
    ) -> None:
        block = {
            "type": "search_result",
            "source": "a",
            "title": "t",
            "content": [{"type": "text", "text": LARGE}],
        }
        result = {"type": "tool_result", "tool_use_id": "c0", "content": [block]}
        call = {"type": "tool_use", "id": "c0", "name": "look", "input": {}}
        session.append(
            [user("q"), {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        )
        assert LARGE.encode() in render(session.request("anthropic"))
        session.compact(context_tokens=2_000)
        assert LARGE.encode() not in render(session.request("anthropic"))
        assert measure_context(session.context(), "anthropic").tokens <= 2_000

    def test_a_limit_on_tokens_holds_for_the_first_call_too(self, store: Store) -> None:
        seeds = [system("You help."), *[user("mail " * 400), assistant("noted " * 400)] * 5]
        session, model = store.start("a", seeds), ScriptedModel(["fine"])
        session.send_sync("the question", model=model, limits=Limits(context_tokens=900))
        assert tokens(model.requests[0]) <= 900
        assert texts(model.requests[0])[-1] == "the question"
        assert "mail" in texts(model.requests[0])[0]

    @pytest.mark.parametrize(
        ("prompt", "question", "tools", "largest"),
        [
            ("rule " * 2_000, "q", [], "system prompt"),
            ("You help.", "why " * 2_000, [], "input"),
            ("You help.", "q", [look], "tool definitions"),
        ],
    )
    def test_a_window_smaller_than_the_prompt_is_an_error_that_names_the_part(
        self, store: Store, prompt: str, question: str, tools: list[Any], largest: str
    ) -> None:
        session, model = store.start("a", [system(prompt)]), ScriptedModel(["fine"])
        limits = Limits(context_tokens=40 if tools else 1_000)
        result = session.send_sync(question, model=model, tools=tools, limits=limits)
        assert result.error is not None
        assert (result.status, result.error.code) == ("failed", "prompt_too_large")
        assert f"the {largest} is too large" in result.error.message
        assert (model.requests, session.usage().calls) == ([], 0)
        session.resume_sync(model=ScriptedModel(["it fits now"]), tools=tools)
        assert session.path()[-1].message.text == "it fits now"

    def test_the_window_of_a_session_leaves_room_for_the_answer(self, store: Store) -> None:
        for window, options, limit in ((8_000, None, 6_000), (8_000, {"max_tokens": 1_000}, 7_000)):
            session, model = store.start("a", context_window=window), calls_then_done(3)
            if options is not None:
                session.append([oakleaf.Settings(options=options)])
            session.send_sync("q", model=model, tools=[look])
            assert limit * 3 // 4 < max(map(tokens, model.requests)) <= limit
        assert ANSWER_TOKENS < 200_000 // 4

    def test_the_table_of_models_knows_windows(self) -> None:
        from oakleaf.providers.anthropic import AnthropicModel
        from oakleaf.providers.openai_chat import OpenAIChatModel

        assert window_of(AnthropicModel("claude-sonnet-4-5")) == 200_000
        assert window_of(OpenAIChatModel("gpt-4o")) == 128_000
        assert window_of(OpenAIChatModel("a-model-of-mine")) is None
        assert window_of(ScriptedModel([])) is None


class TestPlan:
    """Older turns first, then steps of the turn, then results, then everything but the input."""

    def turn(self, *steps: int, older: int = 0) -> list[Entry]:
        payloads: list[Any] = []
        for n in range(older):
            payloads += [user(f"old {n} " * 100), assistant("answer " * 100)]
        payloads.append(user("the question"))
        for n, size in enumerate(steps):
            payloads += [ask(n), tool_result(f"c{n}", "r" * size)]
        return path_of(*payloads)

    def plan(self, path: list[Entry], limit: int) -> Compaction:
        plan = plan_compaction(path, 0, limit, limit)
        assert plan is not None
        after = extend_path(path, plan.compaction)
        assert (
            plan.tokens == sum(measure(item.message).tokens for item in build_context(after).items) <= limit
        )
        return plan.compaction

    def test_older_turns_go_first(self) -> None:
        plan = self.plan(self.turn(400, 400, older=4), 800)
        assert (plan.first_kept, plan.kept_input, plan.shortened) == (9, 0, ())

    def test_then_the_first_steps_of_the_turn(self) -> None:
        plan = self.plan(self.turn(2_000, 2_000, 400, 400, older=2), 900)
        assert (plan.first_kept, plan.kept_input, plan.shortened) == (10, 5, ())

    def test_then_the_newest_results_are_shortened(self) -> None:
        path = self.turn(2_000, 9_000)
        plan = self.plan(path, 900)
        assert (plan.first_kept, plan.kept_input) == (4, 1)
        [(seq, length)] = plan.shortened
        assert (seq, 1_000 < length < 3_600) == (5, True)

    def test_a_result_alone_is_shortened_without_a_summary_and_says_how_much_is_left_out(self) -> None:
        path = self.turn(9_000)
        plan = self.plan(path, 900)
        assert (plan.summary, plan.first_kept, len(plan.shortened)) == ("", 1, 1)
        [(_, length)] = plan.shortened
        path.append(path_of(*[user("x")] * 3, plan)[-1])
        [content] = build_context(path).items[-1].message.results[0].content
        assert f"(… {9_000 - length:,} of 9,000 characters left out …)" in content.text
        assert content.text.count("r" * (length // 3)) == 3  # two thirds before, a third after

    def test_then_all_steps_if_the_call_itself_is_too_large(self) -> None:
        call = assistant(ToolCall("c", "write_file", {"path": "a.txt", "text": "w" * 9_000}))
        path = path_of(user("the question"), call, tool_result("c", "written"))
        plan = self.plan(path, 600)
        assert (plan.first_kept, plan.kept_input, plan.files_changed) == (4, 1, ("a.txt",))

    def test_with_room_for_a_word_beside_the_input_there_is_a_way_in_any_script(self) -> None:
        path = path_of(user("früher 🌍 " * 90), assistant("🌍" * 900), user("the question"))
        room = 60 + measure(path[-1].message).tokens
        plan = self.plan(path, room)
        assert measure_context(build_context(extend_path(path, plan))).tokens <= room

    def test_images_of_a_result_are_left_out_by_name(self, session: Session) -> None:
        image = Attachment(b"\x89PNG\r\n\x1a\n" + bytes(90), "image/png")
        session.append([user("q"), ask(0), tool_result("c0", ["seen", image, image])])
        compaction = session.compact(context_tokens=2_000)
        assert len(compaction.shortened) == 1
        [*_, last] = session.context().items
        content = last.message.results[0].content
        assert [getattr(piece, "text", "image") for piece in content] == [
            "seen",
            "image",
            "(image/png left out)",
        ]


def waiting(path: list[Entry]) -> list[Entry]:
    """The longest beginning of a path that waits for an answer, some of its results long."""
    while path and not (cursor_after(path).turn and isinstance(next_action(path), CallModel)):
        path = path[:-1]
    grown = []
    for entry in path:
        if entry.message is not None and entry.role == "tool":
            text = Text("résult\n" * [1, 40, 1_500][entry.seq % 3])
            parts = [replace(result, content=(*result.content, text)) for result in entry.message.results]
            entry = replace(entry, payload=replace(entry.message, parts=tuple(parts)))
        grown.append(entry)
    return grown or path_of(user("the question"))


def extend_path(path: list[Entry], payload: Any) -> list[Entry]:
    return [*path, path_of(*[user("x")] * len(path), payload)[-1]]


@thorough_settings
@given(paths().map(waiting), st.integers(60, 4_000))
def test_whatever_the_history_and_the_window_the_request_fits_and_is_legal(
    path: list[Entry], limit: int
) -> None:
    turn = newest_turn(path)
    newest = [item for item in build_context(path).items if item.seq == turn]
    before = build_context(path)
    prompt = (measure_system(before) + measure_tools(before.settings)).tokens
    plan = plan_compaction(path, prompt, limit, limit)
    if plan is None:
        input_tokens = measure(path[turn - 1].message).tokens
        assert measure_context(before).tokens <= limit or prompt + input_tokens + 60 > limit
        return
    compacted = extend_path(path, plan.compaction)
    context = build_context(compacted)
    assert measure_context(context).tokens == plan.tokens <= limit
    assert [item for item in context.items if item.seq == turn][: len(newest)] == newest
    for name in PROVIDERS:
        request = find_provider(name).project(context, blobs)
        was = find_provider(name).project(build_context(path), blobs)
        if find_provider(name).violations(was, ready=True) == []:
            assert find_provider(name).violations(request, ready=True) == []
    assert build_context(extend_path(compacted, oakleaf.Uncompaction(len(compacted)))) == build_context(path)


class TestOverflow:
    def refusing(self, window: int, error: ContextOverflow, factor: float = 1.0) -> ScriptedModel:
        """A server with a window that counts `factor` times as many tokens as the estimate."""
        answer = calls_then_done(4)

        def reply(request: Request) -> Any:
            if tokens(request) * factor > window:
                return error
            return answer._next_line(request)

        return ScriptedModel(reply)

    @pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
    @pytest.mark.parametrize("window", [None, 4_000])
    def test_an_overflow_is_compacted_until_the_server_accepts(
        self, session: Session, window: int | None, factor: float
    ) -> None:
        model = self.refusing(4_000, ContextOverflow("m", "too long", window), factor)
        session.append([user("hello"), assistant("hi"), user("short"), assistant("too")])
        result = session.send_sync("the question", model=model, tools=[look], limits=NOW)
        assert result.text == "done"
        failed = sum(call.failed for call in session.model_calls())
        assert 0 < failed <= 12
        assert len(model.requests) == failed + 5
        assert all("the question" in texts(request) for request in model.requests)
        assert session.verify() == []

    def test_a_chat_of_two_short_turns_and_a_long_one_goes_on(self, session: Session) -> None:
        session.append([user("hello"), assistant("hi"), user("short"), assistant("too")])
        session.append([user("long " * 2_000), assistant("answer " * 2_000)])
        model = ScriptedModel([ContextOverflow("m", "too long"), "fits"])
        assert session.send_sync("the question", model=model, limits=NOW).text == "fits"
        assert [call.failed for call in session.model_calls()] == [True, False]

    def test_the_first_turn_with_one_huge_result_goes_on(self, session: Session) -> None:
        model = ScriptedModel([ask(0), ContextOverflow("m", "too long"), "fits"])
        assert session.send_sync("the question", model=model, tools=[look], limits=NOW).text == "fits"
        [question, call, result] = model.requests[-1].context.items
        assert (question.message.text, call.message.calls[0].id) == ("the question", "c0")
        assert "characters left out" in result.message.results[0].content[0].text

    def test_one_huge_input_is_an_error_that_says_so(self, session: Session) -> None:
        model = ScriptedModel(lambda request: ContextOverflow("m", "prompt is too long"))
        result = session.send_sync("huge " * 9_000, model=model, limits=NOW)
        assert result.error is not None
        assert result.error.code == "context_overflow"
        assert "prompt is too long" in result.error.message
        assert "the input is too large" in result.error.message
        assert len(model.requests) == 1
        assert session.path()[-1].message.text == "huge " * 9_000

    def test_a_window_that_a_server_reported_is_known_after_a_restart(self, store: Store) -> None:
        session = store.start()
        model = ScriptedModel([ask(0), ContextOverflow("m", "…", 4_000, 5_100), "fits"], model="mine")
        session.send_sync("q", model=model, tools=[look], limits=NOW)
        reopened = store.session(session.session_id)
        assert reopened.context().settings.windows == {"mine": 4_000}
        later = ScriptedModel([ask(1), "fits"], model="mine")
        reopened.send_sync("again", model=later, tools=[look], limits=NOW)
        assert max(map(tokens, later.requests)) <= 3_000
        other = ScriptedModel([ask(2), "fits"], model="other")
        reopened.send_sync("another model has another window", model=other, tools=[look], limits=NOW)
        assert max(map(tokens, other.requests)) > 4_000

    def test_the_next_model_of_the_chain_is_tried_when_the_prompt_fits_only_there(
        self, session: Session
    ) -> None:
        session.append([oakleaf.Settings(windows={"small": 100})])
        chain = [ScriptedModel(["never"], model="small"), ScriptedModel(["here"], model="large")]
        assert session.send_sync("q " * 400, model=chain, limits=NOW).text == "here"
        assert [call.model for call in session.model_calls()] == ["large"]


class TestSummariser:
    def test_its_own_request_fits_its_window(self, session: Session) -> None:
        for n in range(20):
            session.append([user(f"question {n} " * 200), assistant(f"answer {n} " * 200)])
        session.append([oakleaf.Settings(windows={"writer": 1_000})])
        writer = ScriptedModel(["They spoke of twenty things."], model="writer")
        model = ScriptedModel(["fine"])
        limits = Limits(context_tokens=2_000, summariser=writer)
        session.send_sync("new", model=model, limits=limits)
        assert tokens(writer.requests[0]) <= 750
        assert "question 0" in texts(writer.requests[0])[0]
        assert texts(model.requests[0])[0].endswith("They spoke of twenty things.")

    def test_an_overflow_of_it_leaves_the_summary_made_without_a_model(self, session: Session) -> None:
        session.append([user("old " * 2_000), assistant("answer " * 2_000)])
        writer = ScriptedModel([ContextOverflow("writer", "…", 500)], model="writer")
        model = ScriptedModel(["fine"])
        session.send_sync("new", model=model, limits=Limits(context_tokens=2_000, summariser=writer))
        assert "user: old" in texts(model.requests[0])[0]
        assert session.context().settings.windows == {"writer": 500}
        assert [call.purpose for call in session.model_calls()] == ["answer", "compaction"]

    def test_a_summary_longer_than_the_history_is_refused(self, session: Session) -> None:
        session.append([user("old " * 100), assistant("answer " * 100)])
        limits = Limits(context_tokens=200, summariser=ScriptedModel(["long " * 400]))
        session.send_sync("new", model=ScriptedModel(["fine"]), limits=limits)
        (compaction,) = [entry.payload for entry in session.path() if entry.kind == "compaction"]
        assert "long " * 400 not in compaction.summary

    def test_its_call_is_counted_before_it_is_made(self, session: Session) -> None:
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

    def test_it_is_not_asked_past_the_cost_cap(self, session: Session) -> None:
        session.append([user("old " * 400), assistant("answer " * 400)])
        summariser = ScriptedModel(["never"])
        limits = Limits(max_cost_microcents=1, summariser=summariser, pause=lambda failures: 0.0)
        dear = Answer(assistant(""), Usage(1_000, 1_000, 0, 0), None, "scripted", "m", None)
        chain = [
            ScriptedModel([dear], rates=Rates(0, 1_000)),
            ScriptedModel([ContextOverflow("m", "too long")]),
        ]
        stopped(session.send_sync, "new", model=chain, limits=limits)
        assert summariser.requests == []


class TestByHand:
    def test_an_open_turn_is_made_to_fit_and_restored_exactly(self, session: Session) -> None:
        session.append([user("old " * 900), assistant("answer")])
        session.append(
            [user("the question"), ask(0), tool_result("c0", LARGE), ask(1), tool_result("c1", LARGE)]
        )
        before = [session.request(name) for name in PROVIDERS]
        compaction = session.compact(context_tokens=2_000)
        assert compaction.kept_input == 4
        assert fit(session.context(), oakleaf.Budget(tokens=2_000)).dropped == ()
        session.compact(context_tokens=1_000)
        assert fit(session.context(), oakleaf.Budget(tokens=1_000)).dropped == ()
        assert isinstance(session.next_action(), CallModel)
        for _ in range(2):
            session.uncompact()
        assert [session.request(name) for name in PROVIDERS] == before
        assert session.verify() == []

    def test_what_cannot_fit_is_refused_with_the_reason(self, session: Session) -> None:
        session.append([user("the question " * 200)])
        with pytest.raises(InvalidSummary, match="they always stay"):
            session.compact(context_tokens=100)
        with pytest.raises(InvalidSummary, match="fits in"):
            session.compact(context_tokens=10_000)


def test_a_replay_repeats_compactions_inside_turns_and_shortened_results(session: Session) -> None:
    model, limits = calls_then_done(4), Limits(context_window=4_000)
    session.send_sync("the question", model=model, tools=[look], limits=limits)
    session.send_sync("and now?", model=calls_then_done(2), tools=[look], limits=limits)
    assert any(compaction.kept_input for compaction in compactions(session))
    assert any(compaction.shortened for compaction in compactions(session))
    report = session.replay_sync()
    assert report.is_identical


class TestSummary:
    def test_without_a_model_every_turn_stays_in_the_summary(self, session: Session) -> None:
        model = ScriptedModel(lambda request: "answer " + "blah " * 300)
        limits = Limits(context_tokens=2_000, turns=100)
        for n in range(30):
            session.send_sync(f"word w{n}x " + "pad " * 300, model=model, limits=limits)
        sizes = [sum(measure(message).tokens for message in request.messages) for request in model.requests]
        assert max(sizes) <= 2_000
        text = "".join(item.message.text for item in session.context().items)
        assert [n for n in range(30) if f"w{n}x" not in text] == []

    def test_the_words_of_a_model_outlive_later_summaries(self, session: Session) -> None:
        prose = "An important fact. " * 60
        model = ScriptedModel(lambda request: "answer " * 800)
        for n in range(10):
            writer = ScriptedModel([prose]) if n < 3 else None
            limits = Limits(context_tokens=1_500, summariser=writer)
            session.send_sync("pad " * 800, model=model, limits=limits)
        texts = [item.message.text for item in session.context().items if item.pinned]
        assert (len(texts), prose.strip() in texts[0]) == (1, True)

    def test_calls_and_results_are_in_the_summary(self, session: Session) -> None:
        calls = ask_desk(*(("look", n) for n in range(9)))
        model = ScriptedModel([calls, ContextOverflow("m", "too long"), "end"])
        session.send_sync("the question", model=model, tools=Desk().tools(), limits=NOW)
        summary, question = model.requests[-1].context.items
        assert '"order":8' in summary.message.text
        assert question.message.text == "the question"

    def test_a_summary_that_saves_nothing_is_not_made(self, session: Session) -> None:
        session.append([user("a"), assistant("b")])
        events = session.send_sync(
            "c", model=ScriptedModel([ContextOverflow("m", "too long")]), limits=NOW
        ).events
        assert events[-1].data["error"]["code"] == "context_overflow"
        assert "compaction" not in [entry.kind for entry in session.path()]
