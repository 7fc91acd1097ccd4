"""Sources of tools: what a run does with anything that has the methods of `ToolSource`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import oakleaf
from oakleaf import ScriptedModel, Session, Tool, ToolCall, ToolContext, assistant, plugins
from oakleaf.errors import DuplicateTool, InvalidArgument, InvalidTool, PluginBroken, PluginMissing
from oakleaf.ext import BEFORE_A_SESSION, ToolSource, list_tools, plugin_tools
from oakleaf.store import Store
from support.tool_source import Shop, look


@pytest.fixture
def memory() -> Iterator[Store]:
    with oakleaf.open("memory:") as store:
        yield store


def ask(session: Session, *tools: Any, name: str = "look", **how: Any) -> oakleaf.RunResult:
    model = ScriptedModel([assistant(ToolCall("c1", name, {"place": "the cellar"})), "done"])
    return session.send_sync("go", model=model, tools=tools, **how)


def result_text(session: Session) -> str:
    (result,) = [result for entry in session.path() if entry.message for result in entry.message.results]
    return "".join(part.text for part in result.content if isinstance(part, oakleaf.Text))


class TestRun:
    def test_a_source_is_connected_and_closed_once_per_run(self, memory: Store) -> None:
        shop, session = Shop(), memory.start()
        ask(session, shop)
        assert result_text(session) == "nothing in the cellar"
        assert shop.steps == ["connect", "close"]

    def test_a_session_has_the_same_key_in_each_run_and_no_other_session(self, memory: Store) -> None:
        shop, session = Shop(), memory.start()
        ask(session, shop)
        ask(session, shop)
        ask(memory.start(), shop)
        first, second, third = shop.keys
        assert first == second != third
        assert None not in shop.keys

    def test_what_had_to_be_started_again_is_a_warning(self, memory: Store) -> None:
        shop = Shop()
        shop.restarts = ["it had ended"]
        events = ask(memory.start(), shop).events
        assert [event.data["message"] for event in events if event.type == "session:warning"] == [
            "it had ended"
        ]

    def test_one_source_that_fails_closes_all_and_writes_nothing(self, memory: Store) -> None:
        good, bad, session = Shop(), Shop(error=OSError("no such shop")), memory.start()
        with pytest.raises(OSError, match="no such shop"):
            ask(session, good, bad)
        assert good.steps == bad.steps == ["connect", "close"]
        assert session.path() == []

    def test_a_name_that_two_have_is_refused_with_both(self, memory: Store) -> None:
        with pytest.raises(DuplicateTool, match=r"look: of a tool of this program, and of the shop"):
            ask(memory.start(), look, Shop())

    def test_a_source_that_offers_no_tool_is_named(self, memory: Store) -> None:
        shop = Shop("look")
        with pytest.raises(InvalidTool, match="'look' cannot be a tool: the shop offers it"):
            ask(memory.start(), shop)
        assert shop.steps == ["connect", "close"]

    def test_a_session_of_one_turn_keeps_nothing(self, memory: Store) -> None:
        shop = Shop()
        ask(memory.start(), shop, one_shot=True)
        (once,) = shop.once
        assert (shop.steps, once.steps) == ([], ["connect", "close"])

    def test_a_task_keeps_nothing(self, memory: Store) -> None:
        shop = Shop()

        @oakleaf.tool(effect="idempotent")
        async def delegate(place: str, ctx: ToolContext) -> str:
            """Ask somebody else."""
            return await ctx.task("look there", tools=[shop], models=[ScriptedModel(["an answer"])])

        session = memory.start()
        ask(session, delegate, name="delegate")
        assert result_text(session) == "an answer"
        assert (shop.steps, shop.once[0].steps) == ([], ["connect", "close"])

    def test_a_run_that_is_cancelled_while_it_connects_closes(self, memory: Store) -> None:
        shop = Shop()

        async def hang() -> Sequence[Tool]:
            shop.steps.append("connect")
            run.cancel()
            await asyncio.sleep(600)
            return ()

        shop.connect = hang  # type: ignore[method-assign]
        run = memory.start().send("go", model=ScriptedModel(["x"]), tools=[shop])

        async def wait() -> None:
            await run

        asyncio.run(wait())
        assert shop.steps == ["connect", "close"]


class TestReplay:
    def test_recordings_connect_nothing_and_a_dry_run_keeps_nothing(self, memory: Store) -> None:
        shop, session = Shop(), memory.start()
        ask(session, shop)
        shop.steps.clear()
        session.replay_sync(tools=[shop])
        assert shop.steps == []
        session.replay_sync(tools=[shop], mode="dry")
        assert (shop.steps, shop.keys[-1]) == (["connect", "close"], None)


@pytest.mark.parametrize(("tools", "form"), [(len, "len"), (look, "look"), ("look", "…")])
def test_a_tool_in_place_of_a_list_is_refused(session: Session, tools: Any, form: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"a list: tools=\[{form}\]"):
        session.send("q", model=ScriptedModel([]), tools=tools)
    with pytest.raises(InvalidArgument, match=rf"a list: tools=\[{form}\]"):
        session.turn("q", tools=tools)


class TestListing:
    def test_tools_are_listed_before_there_is_a_session(self) -> None:
        shop = Shop()
        assert asyncio.run(list_tools({}, [shop])) == [look]
        assert (shop.keys, shop.steps) == ([BEFORE_A_SESSION], ["connect", "close"])

    def test_the_class_of_a_source_is_none(self) -> None:
        assert isinstance(Shop(), ToolSource)
        assert not oakleaf.ext.is_source(Shop)
        assert not oakleaf.ext.is_source(look)


def register(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Let a stranger's distribution add the tools `shop`."""
    shop = plugins.Provider(plugins.TOOLS, "shop", target, "stranger", "1.0")
    monkeypatch.setattr(plugins, "providers", lambda: (shop,))


class TestPlugin:
    def test_tools_of_a_plugin_are_found_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        register(monkeypatch, "test_tool_sources_plugin")
        module = type(sys)("test_tool_sources_plugin")
        vars(module)["tools"] = lambda place, *, many: [look] * many
        monkeypatch.setitem(sys.modules, "test_tool_sources_plugin", module)
        assert plugin_tools("shop", "here", many=2) == [look, look]

    def test_a_plugin_that_is_not_installed_is_named_with_its_extra(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plugins, "providers", lambda: ())
        with pytest.raises(
            PluginMissing, match=r"no installed plugin adds the tool 'mcp'.*install it with: pip"
        ) as raised:
            plugin_tools("mcp", "npx x")
        assert "[mcp]" in str(raised.value)

    @pytest.mark.parametrize("tools", [None, "look", lambda: "look", lambda: ["look"], lambda: None])
    def test_nonsense_of_a_plugin_is_named_with_who_brought_it(
        self, monkeypatch: pytest.MonkeyPatch, tools: Callable[..., object] | None
    ) -> None:
        register(monkeypatch, "test_tool_sources_plugin")
        module = type(sys)("test_tool_sources_plugin")
        vars(module)["tools"] = tools
        monkeypatch.setitem(sys.modules, "test_tool_sources_plugin", module)
        with pytest.raises(
            PluginBroken, match=r"'shop' of stranger 1\.0 cannot be used: it has no function tools"
        ):
            plugin_tools("shop")
