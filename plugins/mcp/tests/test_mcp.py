"""Tools of MCP servers: the guarantees of any other tool, whatever the server does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import oakleaf
import oakleaf_mcp
from oakleaf import Media, ScriptedModel, Session, Text, ToolCall, ToolContext, ToolResult, assistant
from oakleaf.cli.mcp_servers import connect_once
from oakleaf.core.facts import ToolCallsStarted
from oakleaf.core.redact import Redactor
from oakleaf.errors import DuplicateTool, InvalidArgument, InvalidTool, ToolsMissing
from oakleaf.ext import read
from oakleaf.log.runtime import real_runtime
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf_mcp.client import connection, kept_servers
from oakleaf_mcp.client.process import ServerProcess
from oakleaf_mcp.client.server import McpServer
from oakleaf_mcp.errors import McpServerUnavailable
from support import mcp_stdio_server
from support.paths import ROOT
from support.processes import dies, is_alive, wait_until
from support.sessions import tasks_of

COMMAND = (sys.executable, "-S", str(ROOT / "tests/support/mcp_stdio_server.py"))


def server(*words: str, **how: Any) -> McpServer:
    return oakleaf_mcp.server([*COMMAND, *words], **how)


@pytest.fixture
def memory() -> Iterator[Store]:
    with oakleaf.open("memory:") as store:
        yield store


def calling(name: str, **arguments: Any) -> ScriptedModel:
    return ScriptedModel([assistant(ToolCall("c1", name, arguments)), assistant("done")])


def run(store: Store, name: str, *tools: Any, **arguments: Any) -> Session:
    session = store.start()
    session.send_sync("go", model=calling(name, **arguments), tools=tools or [server()])
    return session


def results(session: Session) -> list[ToolResult]:
    return [result for entry in session.path() if entry.message for result in entry.message.results]


def text_of(result: ToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, Text))


class TestResult:
    def test_text_is_the_result(self, memory: Store) -> None:
        (result,) = results(run(memory, "echo", text="hello"))
        assert (text_of(result), result.error) == ("hello", False)

    def test_text_that_was_cut_within_an_emoji_arrives(self, memory: Store) -> None:
        """JavaScript writes half of one as `\\ud83d`; the answer was taken for noise, and the call for one that hangs."""
        (result,) = results(run(memory, "cut", server(timeout=10)))
        assert (result.error, text_of(result)) == (False, "cut \ufffd")

    def test_an_error_of_the_tool_is_an_error_result(self, memory: Store) -> None:
        (result,) = results(run(memory, "fail"))
        assert (text_of(result), result.error, result.outcome) == ("the disk is full", True, "done")

    def test_an_image_becomes_a_blob(self, store: Store) -> None:
        session = run(store, "image")
        (result,) = results(session)
        text, image = result.content
        assert text == Text("a dot")
        assert isinstance(image, Media)
        assert (image.mime, read(session).blob(image.hash)) == ("image/png", mcp_stdio_server.PNG)
        assert session.verify() == []

    def test_an_embedded_file_becomes_a_blob_and_an_embedded_text_stays_text(self, memory: Store) -> None:
        (result,) = results(run(memory, "file"))
        pdf, note, link = result.content
        assert isinstance(pdf, Media)
        assert (pdf.mime, pdf.name) == ("application/pdf", "file:///a.pdf")
        assert note == Text("[file:///a.txt]\na note")
        assert link == Text("[link to https://example.com/a: a]")

    def test_structured_content_becomes_details(self, memory: Store) -> None:
        (result,) = results(run(memory, "structured"))
        assert (text_of(result), result.details) == ("21 degrees", {"structured": {"celsius": 21}})

    def test_a_long_text_is_cut_and_stored_whole_without_secrets(self) -> None:
        runtime = real_runtime(Redactor({"WORD": "line\nline"}))
        with Store(MemoryStore(), runtime) as store:
            session = run(store, "large", lines=20_000)
            (result,) = results(session)
            whole = result.content[-1]
            assert isinstance(whole, Media)
            stored = read(session).blob(whole.hash)
        assert "100,000 bytes of text in total" in text_of(result)
        assert len(text_of(result)) < 65_000
        assert stored is not None
        assert b"line\nline" not in stored

    def test_a_name_that_providers_refuse_is_changed(self, memory: Store) -> None:
        (result,) = results(run(memory, "dotted_name"))
        assert text_of(result) == "called dotted.name"


class TestEffect:
    """Hints are claims of the server; they count only if the caller trusts it."""

    def effects(self, **how: Any) -> dict[str, str]:
        async def connect() -> dict[str, str]:
            connection = server(**how).open(Redactor(), None)
            try:
                return {tool.name: tool.effect for tool in await connection.connect()}
            finally:
                await connection.close()

        return asyncio.run(connect())

    def test_every_tool_is_unsafe_by_default(self) -> None:
        assert set(self.effects().values()) == {"unsafe"}

    def test_a_trusted_server_tells_what_its_tools_do(self) -> None:
        effects = self.effects(trust=True)
        assert (effects["echo"], effects["put"], effects["fail"]) == ("read", "idempotent", "unsafe")


class TestRun:
    def test_definitions_are_kept_on_the_path(self, memory: Store) -> None:
        session = run(memory, "echo", text="x")
        settings = [entry.payload for entry in session.path() if isinstance(entry.payload, oakleaf.Settings)]
        assert settings[0].tool_definitions is not None
        assert settings[0].tool_definitions.names == tuple(
            name.replace(".", "_") for name in mcp_stdio_server.NAMES
        )

    def test_only_the_named_tools_are_offered(self, memory: Store) -> None:
        session = run(memory, "echo", server(only=["echo"]), text="x")
        settings = [entry.payload for entry in session.path() if isinstance(entry.payload, oakleaf.Settings)]
        assert settings[0].tool_definitions is not None
        assert settings[0].tool_definitions.names == ("echo",)
        with pytest.raises(McpServerUnavailable, match="has no tool nosuch"):
            run(memory, "echo", server(only=["nosuch"]))

    def test_a_session_may_narrow_them(self, memory: Store, tmp_path: Path) -> None:
        session = memory.start(tool_names=["echo"])
        counter = tmp_path / "count"
        session.send_sync("go", model=calling("count", file=str(counter)), tools=[server()])
        assert text_of(results(session)[0]) == "There is no tool of this name."
        assert not counter.exists()

    def test_a_call_waits_for_its_approval_and_runs_once(self, memory: Store, tmp_path: Path) -> None:
        session, counter = memory.start(), tmp_path / "count"
        tools = [server(approval=["count"])]
        session.send_sync("go", model=calling("count", file=str(counter)), tools=tools)
        assert not counter.exists()
        session.approve(session.open_tool_calls[0])
        session.resume_sync(model=ScriptedModel([assistant("done")]), tools=tools)
        assert counter.read_text() == "x"

    def test_an_unsafe_call_that_was_started_is_not_run_again(self, memory: Store, tmp_path: Path) -> None:
        session, counter = memory.start(), tmp_path / "count"
        started = ToolCallsStarted(2, (0,))
        call = assistant(ToolCall("c1", "count", {"file": str(counter)}))
        draft = oakleaf.core.drafts.Draft
        session.log.append([draft(oakleaf.user("go")), draft(call)], facts=[started])
        session.resume_sync(model=ScriptedModel([assistant("done")]), tools=[server()])
        assert results(session)[0].outcome == "unknown"
        assert not counter.exists()

    def test_a_task_may_have_a_server_which_ends_with_it(self, memory: Store, tmp_path: Path) -> None:
        file = tmp_path / "pids"

        @oakleaf.tool(effect="idempotent")
        async def delegate(ctx: ToolContext) -> str:
            """Delegate."""
            tools = [server("--pids", str(file))]
            return await ctx.task("go", models=[calling("echo", text="below")], tools=tools)

        session = run(memory, "delegate", delegate)
        (child,) = tasks_of(session)
        assert text_of(results(child)[0]) == "below"
        assert all(map(dies, map(int, file.read_text().split())))

    def test_secrets_in_a_result_are_redacted(self) -> None:
        with Store(MemoryStore(), real_runtime(Redactor({"TOKEN": "hunter2hunter2"}))) as store:
            (result,) = results(run(store, "echo", text="it is hunter2hunter2"))
        assert "hunter2" not in text_of(result)


HANGER = """
import oakleaf, oakleaf_mcp, sys
path, begun, *words = sys.argv[1:]
call = oakleaf.assistant(oakleaf.ToolCall("c1", "hang", {"file": begun}))
with oakleaf.open(path) as store:
    store.start().send_sync("go", model=oakleaf.ScriptedModel([call]), tools=[oakleaf_mcp.server(words, trust=True)])
"""
"""Calls a tool that counts and never returns."""


class TestCrash:
    """After a crash, and in another process: what may have run is not run again, and what waited still can."""

    def test_an_unsafe_call_of_a_process_that_was_killed_is_not_run_again(self, tmp_path: Path) -> None:
        path, begun = tmp_path / "s.db", tmp_path / "begun"
        process = subprocess.Popen([sys.executable, "-c", HANGER, str(path), str(begun), *COMMAND])
        try:
            wait_until(begun.exists)
        finally:
            process.kill()
            process.wait()
        with oakleaf.open(path) as store:
            (row,) = store.sessions().sessions
            session = store.session(row.session_id)
            session.resume_sync(model=ScriptedModel(["done"]), tools=[server(trust=True)])
            assert (results(session)[0].outcome, begun.read_text()) == ("unknown", "x")
            assert session.verify() == []

    @pytest.fixture
    def waiting(self, tmp_path: Path) -> Path:
        """A store with a call that waits for its approval, left by a process that is gone."""
        call = calling("count", file=str(tmp_path / "count"))
        with oakleaf.open(tmp_path / "s.db") as store:
            session = store.start()
            session.send_sync("go", model=call, tools=[server(approval=True)])
            session.approve(session.open_tool_calls[0])
        return tmp_path

    @pytest.mark.parametrize(
        ("words", "refusal"),
        [
            (["no-such-program"], McpServerUnavailable),
            ([*COMMAND, "--silent"], McpServerUnavailable),
            ([*COMMAND, "--names", "echo"], ToolsMissing),
        ],
        ids=["gone", "silent", "without the tool"],
    )
    def test_an_approved_call_outlives_a_server_that_cannot_run_it(
        self, waiting: Path, words: list[str], refusal: type[Exception]
    ) -> None:
        with oakleaf.open(waiting / "s.db") as store:
            (row,) = store.sessions().sessions
            session = store.session(row.session_id)
            before = store.backend.journal(row.session_id)
            bad = oakleaf_mcp.server(words, approval=True, connect_timeout=0.5 if "--silent" in words else 60)
            with pytest.raises(refusal):
                session.resume_sync(model=ScriptedModel(["done"]), tools=[bad])
            assert store.backend.journal(row.session_id) == before
            assert not (waiting / "count").exists()
            session.resume_sync(model=ScriptedModel(["done"]), tools=[server(approval=True)])
            assert ((waiting / "count").read_text(), results(session)[0].outcome) == ("x", "done")
            assert session.verify() == []

    @pytest.mark.parametrize("named", [True, False], ids=["named", "shaped"])
    @pytest.mark.parametrize("approval", [True, False], ids=["approval", "crash"])
    def test_a_call_with_hidden_arguments_runs_only_if_they_are_known(
        self, tmp_path: Path, *, named: bool, approval: bool
    ) -> None:
        """The server is sent what the model said; the store holds placeholders, and only a named secret can be put back."""
        secret = "hunter2hunter2" if named else "sk-ant-" + "a1" * 20
        file = tmp_path / "saved"
        tools = [server(trust=True, approval=approval)]
        call = assistant(ToolCall("c1", "save", {"file": str(file), "text": secret}))
        with oakleaf.open(tmp_path / "s.db", secrets={"TOKEN": "hunter2hunter2"}) as store:
            session = store.start()
            if approval:
                session.send_sync("go", model=ScriptedModel([call]), tools=tools)
                session.approve(session.open_tool_calls[0])
            else:  # as a process leaves it that dies after the answer
                session.append([oakleaf.user("go"), call])
        with oakleaf.open(tmp_path / "s.db", secrets={"TOKEN": "hunter2hunter2"}) as store:
            session = store.session(session.session_id)
            session.resume_sync(model=ScriptedModel(["done"]), tools=tools)
            (result,) = results(session)
            assert file.exists() is named
            assert result.error is not named
            assert not named or file.read_text() == secret
        stored = b"".join(part.read_bytes() for part in tmp_path.glob("s.db*"))
        assert secret.encode() not in stored

    def test_the_server_is_sent_what_the_model_said_and_the_store_is_not(self, tmp_path: Path) -> None:
        secret, file = "sk-ant-" + "a1" * 20, tmp_path / "saved"
        with oakleaf.open(tmp_path / "s.db") as store:
            session = run(store, "save", file=str(file), text=secret)
            assert (file.read_text(), text_of(results(session)[0])) == (secret, "saved [redacted]")
        assert secret.encode() not in b"".join(part.read_bytes() for part in tmp_path.glob("s.db*"))


class TestReplay:
    def test_a_recorded_call_is_answered_without_the_server(self, memory: Store, tmp_path: Path) -> None:
        counter = tmp_path / "count"
        session = run(memory, "count", file=str(counter))
        missing = oakleaf_mcp.server("no-such-program")
        report = session.replay_sync(tools=[missing])
        assert report.is_identical
        report = session.replay_sync(model=calling("count", file=str(counter)), tools=[missing])
        assert report.missed_calls == ()
        assert counter.read_text() == "x"

    def test_a_dry_run_refuses_an_unsafe_call_and_runs_a_trusted_read(
        self, memory: Store, tmp_path: Path
    ) -> None:
        session = run(memory, "echo", text="a")
        counter = tmp_path / "count"
        other = calling("count", file=str(counter))
        report = session.replay_sync(model=other, tools=[server(trust=True)], mode="dry")
        assert report.missed_calls == ("count",)
        assert not counter.exists()
        report = session.replay_sync(model=calling("echo", text="b"), tools=[server(trust=True)], mode="dry")
        assert report.reads == {"echo": 1}

    def test_a_named_tool_runs_live(self, memory: Store, tmp_path: Path) -> None:
        counter = tmp_path / "count"
        session = run(memory, "count", file=str(counter))
        report = session.replay_sync(tools=[server()], live=["count"], effects="repeat")
        assert report.effects == {"count": 1}
        assert counter.read_text() == "xx"


class TestBadServer:
    def test_one_that_dies_in_a_call_is_an_error_of_unknown_outcome(self, memory: Store) -> None:
        (result,) = results(run(memory, "die"))
        assert (result.error, result.outcome) == (True, "unknown")
        assert "it ended with exit code 3: out of memory" in text_of(result)

    def test_one_that_answers_with_an_error_is_not_gone(self, memory: Store) -> None:
        """The code -32000 is free for a server's own errors, and the SDK's for a connection that was closed."""
        (result,) = results(run(memory, "echo", server("--refuse", "tools/call")))
        assert (result.error, result.outcome) == (True, "done")
        assert text_of(result) == "the server refused the call: the quota is used up"

    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            (("--refuse", "initialize"), "the quota is used up"),
            (("--refuse", "tools/list"), "the quota is used up"),
            (("--names", ",".join(map(str, range(1_001)))), "it lists more than 1,000 tools"),
        ],
    )
    def test_one_that_cannot_be_used_says_why(
        self, memory: Store, words: tuple[str, ...], reason: str
    ) -> None:
        """It was said to have ended with exit code 0, which it did when it was closed."""
        session = memory.start()
        with pytest.raises(McpServerUnavailable, match=reason):
            session.send_sync("go", model=calling("echo"), tools=[server(*words)])
        assert session.path() == []

    def test_calls_after_its_death_fail_too(self, memory: Store) -> None:
        calls = [ToolCall("c1", "die", {}), ToolCall("c2", "echo", {"text": "x"})]
        model = ScriptedModel([assistant(calls[0]), assistant(calls[1]), assistant("done")])
        session = memory.start()
        session.send_sync("go", model=model, tools=[server()])
        assert [result.error for result in results(session)] == [True, True]

    def test_one_that_hangs_is_an_error_in_time(self, memory: Store) -> None:
        (result,) = results(run(memory, "hang", server("--stubborn", timeout=0.2)))
        assert (result.error, result.outcome) == (True, "unknown")
        assert "hang took longer than 0.2 s" in text_of(result)

    @pytest.mark.parametrize("name", ["flood", "notify"])
    def test_one_that_floods_is_cut_off(self, memory: Store, name: str) -> None:
        (result,) = results(run(memory, name, server(max_bytes=100_000)))
        assert result.error
        assert "it sent " in text_of(result)

    def test_one_that_never_answers_is_refused_and_nothing_is_written(self, memory: Store) -> None:
        session = memory.start()
        with pytest.raises(McpServerUnavailable, match=r"did not list its tools within 0\.2 s"):
            session.send_sync("go", model=calling("echo"), tools=[server("--silent", connect_timeout=0.2)])
        assert session.path() == []

    @pytest.mark.parametrize(
        ("command", "reason"),
        [
            ("no-such-program --fast", "there is no program 'no-such-program'"),
            ("/no/such/program", "cannot start /no/such/program: No such file"),
            ("false", "it ended with exit code 1"),
        ],
    )
    def test_a_command_that_does_not_start_is_named(self, memory: Store, command: str, reason: str) -> None:
        session = memory.start()
        with pytest.raises(McpServerUnavailable, match=reason):
            session.send_sync("go", model=calling("echo"), tools=[oakleaf_mcp.server(command)])
        assert session.path() == []

    def test_one_that_ends_while_the_machine_is_busy_is_named_alike(self) -> None:
        """Its pipes were closed before they were looked at, and the reason given was a closed file."""

        async def keep_busy() -> None:
            while True:
                time.sleep(0.1)  # holds up the loop, and the process ends meanwhile
                await asyncio.sleep(0)

        async def reason() -> str:
            process = ServerProcess(oakleaf_mcp.server("false"))
            busy = asyncio.create_task(keep_busy())
            async with process.connect() as (incoming, _):
                busy.cancel()
                assert [message async for message in incoming] == []
            return process.describe_end()

        assert asyncio.run(reason()) == "it ended with exit code 1"

    def test_two_tools_of_one_name_are_refused_and_a_prefix_helps(self, memory: Store) -> None:
        one, other = server("--names", "echo"), server("--names", "echo,put")
        with pytest.raises(DuplicateTool, match=r"named echo: of .*--names echo, and of .*echo,put.*prefix="):
            run(memory, "echo", one, other)
        two = oakleaf_mcp.server([*COMMAND, "--names", "echo"], prefix="b_")
        assert text_of(results(run(memory, "b_echo", one, two, text="x"))[0]) == "x"

    def test_a_tool_of_the_program_is_named_too(self, memory: Store) -> None:
        def echo() -> str:
            return ""

        with pytest.raises(DuplicateTool, match="of a tool of this program"):
            run(memory, "echo", echo, server())

    def test_arguments_are_checked(self) -> None:
        for call in (
            lambda: oakleaf_mcp.server(""),
            lambda: oakleaf_mcp.server("ftp://example.com/mcp"),
            lambda: oakleaf_mcp.server("'unbalanced"),
            lambda: oakleaf_mcp.server("x", prefix="a b"),
            lambda: oakleaf_mcp.server("x", timeout=0),
            lambda: oakleaf_mcp.server("x", headers={"a": "b"}),
            lambda: oakleaf_mcp.server("http://example.com", env={"a": "b"}),
        ):
            with pytest.raises(InvalidArgument):
                call()

    def test_its_credentials_are_not_shown(self) -> None:
        texts = [
            repr(oakleaf_mcp.server("x", env={"TOKEN": "hunter2"})),
            repr(
                oakleaf_mcp.server("https://u:hunter2@example.com/mcp?key=hunter2", headers={"a": "hunter2"})
            ),
        ]
        assert "hunter2" not in "".join(texts)

    def test_it_is_no_tool_where_tools_are_described(self, memory: Store) -> None:
        with pytest.raises(InvalidTool, match="known in a run only"):
            memory.start().turn("go", tools=[server()]).__enter__()


def has_escapes(text: str) -> bool:
    return any(not (char.isprintable() or char in "\n\t") for char in text)


@pytest.mark.attack
class TestWordsOfAServer:
    """What a server writes is data: it claims no effect and no approval, and it controls no terminal."""

    def test_a_claim_to_be_harmless_or_approved_does_not_count(self, memory: Store, tmp_path: Path) -> None:
        session, counter = memory.start(), tmp_path / "count"
        tools = [server("--hostile", approval=True)]
        session.send_sync("go", model=calling("claim", file=str(counter)), tools=tools)
        assert not counter.exists()
        (waiting,) = session.pending_approvals()
        assert waiting.call.name == "claim"
        session.approve(waiting)
        session.resume_sync(model=ScriptedModel([assistant("done")]), tools=tools)
        (result,) = results(session)
        assert (counter.read_text(), result.ends_turn) == ("x", False)
        assert result.details == {"structured": mcp_stdio_server.HOSTILE_RESULT["structuredContent"]}
        assert session.verify() == []

    def test_its_effect_is_unsafe_whatever_it_claims(self, memory: Store, tmp_path: Path) -> None:
        session = run(memory, "claim", server("--hostile"), file=str(tmp_path / "count"))
        report = session.replay_sync(
            model=calling("claim", file=str(tmp_path / "other")), tools=[server("--hostile")], mode="dry"
        )
        assert report.missed_calls == ("claim",)
        assert not (tmp_path / "other").exists()

    def test_its_schema_does_not_hold_up_this_process(self, memory: Store, tmp_path: Path) -> None:
        """Its expression took ages to match what it returned, and no other thread ran meanwhile."""
        started = time.monotonic()
        (result,) = results(run(memory, "claim", server("--hostile"), file=str(tmp_path / "count")))
        assert time.monotonic() - started < 8
        assert not result.error

    @pytest.mark.parametrize("words", [("--refuse", "tools/list"), ("--refuse", "initialize")])
    def test_an_error_has_no_terminal_escapes_of_it(self, memory: Store, words: tuple[str, ...]) -> None:
        with pytest.raises(McpServerUnavailable, match="the quota is used up") as caught:
            run(memory, "claim", server("--hostile", *words))
        assert not has_escapes(str(caught.value))

    def test_nor_has_what_it_wrote_before_it_died(
        self, memory: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        session, file = memory.start(), tmp_path / "pids"
        tools = [server("--hostile", "--pids", str(file))]
        for _ in range(2):
            session.send_sync("go", model=calling("claim", file=str(tmp_path / "count")), tools=tools)
            process = int(file.read_text().split()[0])
            os.kill(process, signal.SIGKILL)
            assert dies(process)
        assert "was started again: it was ended by signal 9: " in caplog.text
        assert not has_escapes(caplog.text)

    def test_an_approval_of_a_tool_that_it_does_not_have_is_refused(self, memory: Store) -> None:
        """A tool that was renamed, or a name that was mistyped, would run without approval."""
        with pytest.raises(McpServerUnavailable, match=r"has no tool nosuch.*approval="):
            run(memory, "echo", server(approval=["echo", "nosuch"]))


KEEPER = """
import oakleaf, oakleaf_mcp, os, sys, time
words, how = sys.argv[2:], sys.argv[1]
def turn():
    call = oakleaf.assistant(oakleaf.ToolCall("c1", "pid", {}))
    session.send_sync("go", model=oakleaf.ScriptedModel([call, "done"]), tools=[oakleaf_mcp.server(words)])
    print(session.path()[-2].message.results[0].content[0].text, flush=True)
session = oakleaf.open("memory:").start()
turn()
if how == "fork" and not os.fork():
    turn()
    time.sleep(600)
elif how != "exit":
    time.sleep(600)
"""
"""Runs a turn, prints the pid of its server, and then ends or waits."""


class TestLife:
    """A command is kept for the next turns of its session. No process of it survives this one, however it ends."""

    def pids(self, file: Path) -> list[int]:
        wait_until(lambda: file.exists() and len(file.read_text().split()) == 2)
        return [int(pid) for pid in file.read_text().split()]

    def pid(self, session: Session, tool: McpServer) -> str:
        session.send_sync("go", model=calling("pid"), tools=[tool])
        return text_of(results(session)[-1])

    def test_it_is_kept_for_the_next_turn_in_another_event_loop(self, memory: Store) -> None:
        session = memory.start()
        assert len({self.pid(session, server()) for _ in range(3)}) == 1

    @pytest.mark.attack
    def test_it_inherits_no_variable_that_is_not_listed(
        self, memory: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WORD", "hunter2")
        assert self.pid(memory.start(), server()).isdecimal()
        assert self.pid(memory.start(), server(env={"WORD": "ahoy"})).endswith(" ahoy")

    def test_another_session_has_its_own(self, memory: Store) -> None:
        session = memory.start()
        assert (
            self.pid(session, server())
            != self.pid(memory.start(), server())
            != self.pid(session.fork(), server())
        )

    def test_one_that_only_listed_its_tools_serves_the_first_session(
        self, memory: Store, tmp_path: Path
    ) -> None:
        file = tmp_path / "pids"
        tool = server("--pids", str(file))
        assert "pid" in [each.name for each in connect_once({}, [tool])]
        listed = str(self.pids(file)[0])
        assert self.pid(memory.start(), tool) == listed != self.pid(memory.start(), tool)

    def test_a_changed_command_or_variable_starts_another_and_a_changed_policy_does_not(
        self, memory: Store
    ) -> None:
        session = memory.start()
        first = self.pid(session, server())
        assert self.pid(session, server(trust=True, timeout=5, only=["pid"])) == first
        other = self.pid(session, server(env={"WORD": "ahoy"})).split()
        assert (other[0] != first, other[1]) == (True, "ahoy")
        assert self.pid(session, server("--names", "pid")) != first

    def test_it_ends_after_its_idle_time(self, memory: Store, tmp_path: Path) -> None:
        for seconds in (0, 0.05):
            file = tmp_path / f"pids-{seconds}"
            tool = server("--stubborn", "--pids", str(file), idle_timeout=seconds)
            run(memory, "echo", tool, text="x")
            assert all(map(dies, self.pids(file)))

    def test_the_one_that_waited_longest_ends_when_too_many_wait(
        self, memory: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kept_servers, "MAX_KEPT", 1)
        first, second = tmp_path / "first", tmp_path / "second"
        for file in (first, second):
            run(memory, "echo", server("--pids", str(file)), text="x")
        assert all(map(dies, self.pids(first)))
        assert all(map(is_alive, self.pids(second)))

    @pytest.mark.parametrize(
        ("number", "reason"),
        [
            (signal.SIGKILL, "it was ended by signal 9"),
            (signal.SIGSTOP, "it did not list its tools again"),
        ],
        ids=["died", "hangs"],
    )
    def test_one_that_is_gone_between_turns_is_started_again_with_a_warning(
        self, memory: Store, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, reason: str
    ) -> None:
        session = memory.start()
        os.kill(int(self.pid(session, server())), number)
        monkeypatch.setattr(connection, "RELIST_SECONDS", 0.3)

        async def events() -> list[oakleaf.Event]:
            return [
                event async for event in session.send("go", model=calling("echo", text="x"), tools=[server()])
            ]

        (warning,) = [event for event in asyncio.run(events()) if event.type == "session:warning"]
        assert warning.data["code"] == "mcp_server_restarted"
        assert f"was started again: {reason}" in warning.data["message"]
        assert text_of(results(session)[-1]) == "x"

    def test_its_tools_are_those_it_lists_now(self, memory: Store, tmp_path: Path) -> None:
        names, session = tmp_path / "names", memory.start()
        names.write_text("echo,pid")
        first = self.pid(session, server("--names-file", str(names)))
        names.write_text("put,pid")
        session.send_sync("go", model=calling("echo"), tools=[server("--names-file", str(names))])
        assert text_of(results(session)[-1]) == "There is no tool of this name."
        assert self.pid(session, server("--names-file", str(names))) == first

    def test_one_with_a_call_that_was_given_up_is_not_kept(self, memory: Store, tmp_path: Path) -> None:
        file = tmp_path / "pids"
        run(memory, "hang", server("--stubborn", "--pids", str(file), timeout=0.2))
        assert all(map(dies, self.pids(file)))

    def test_it_ends_when_a_call_is_cancelled(self, memory: Store, tmp_path: Path) -> None:
        file, begun, session = tmp_path / "pids", tmp_path / "begun", memory.start()

        async def cancel() -> None:
            model = calling("hang", file=str(begun))
            started = session.send("go", model=model, tools=[server("--pids", str(file))])
            async for event in started:
                if event.type == "session:calls_started" or event.type == "session:answer":
                    asyncio.get_running_loop().run_in_executor(None, wait_then_cancel, started)

        def wait_then_cancel(started: Any) -> None:
            wait_until(begun.exists)
            started.cancel()

        asyncio.run(cancel())
        assert all(map(dies, self.pids(file)))
        assert results(session)[0].outcome == "unknown"
        assert session.verify() == []

    @pytest.mark.attack
    @pytest.mark.parametrize("end", ["close", "die", "kill"])
    def test_a_process_that_left_its_session_ends_with_it(self, tmp_path: Path, end: str) -> None:
        """The server forks twice and calls setsid between: the process has another parent, group and session."""
        file = tmp_path / "pid"
        words = [*COMMAND, "--daemon", str(file)]
        if end == "kill":
            host = subprocess.Popen([sys.executable, "-c", KEEPER, "wait", *words], stdout=subprocess.PIPE)
            with host:
                wait_until(lambda: file.exists() and file.read_text())
                assert is_alive(int(file.read_text()))
                host.kill()
        else:
            with oakleaf.open("memory:") as store:
                run(store, "die" if end == "die" else "echo", oakleaf_mcp.server(words, idle_timeout=0))
        assert dies(int(file.read_text()))

    @pytest.mark.parametrize("how", ["exit", "interrupt", "kill", "fork"])
    def test_it_ends_with_this_process(self, tmp_path: Path, how: str) -> None:
        file = tmp_path / "pids"
        words = [*COMMAND, *(["--stubborn"] if how == "kill" else []), "--pids", str(file)]
        process = subprocess.Popen(
            [sys.executable, "-c", KEEPER, how, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            with process.stdout as lines:
                pids = [int(lines.readline()) for _ in range(1 + (how == "fork"))]
            assert len(set(pids)) == len(pids)  # a forked process starts its own
            helpers = self.pids(file) if how != "fork" else []
            if how == "exit":
                process.wait(20)
            else:
                assert all(map(is_alive, pids))
                os.kill(process.pid, signal.SIGINT if how == "interrupt" else signal.SIGKILL)
                process.wait(20)
            assert all(map(dies, [pids[0], *helpers]))
            assert how != "fork" or is_alive(pids[1])
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert all(map(dies, pids))
