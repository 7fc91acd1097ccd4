"""`oakleaf mcp`: past sessions for other agents, read only, through the official client."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

import oakleaf
from oakleaf import ScriptedModel, Session, ToolCall, assistant, tool_result, user
from oakleaf.core.redact import NullRedactor
from oakleaf.errors import TokenRequired
from oakleaf.log.runtime import real_runtime
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf_mcp.serving import HttpServer
from oakleaf_mcp.verb_tools import MAX_BYTES, call, verbs
from support.terminal import OAKLEAF, environment

TOOLS = ["context", "diff", "log", "ls", "search", "show", "tail", "tree", "usage"]


def fill(store: Store) -> Session:
    session = store.start("support", [oakleaf.system("You help.")], title="Order 41")
    session.append([user("Where is the parcel?"), assistant(ToolCall("c1", "look_up", {"order": 41}))])
    session.append([tool_result("c1", "lost at sea"), assistant("It was lost.")])
    return session


@pytest.fixture
def filled() -> Iterator[tuple[Store, Session]]:
    with oakleaf.open("memory:") as store:
        yield store, fill(store)


def ask(store: Store, tool: str, **arguments: Any) -> CallToolResult:
    return call(store, verbs()[tool], arguments)


def answer(store: Store, tool: str, **arguments: Any) -> Any:
    """Return the structured answer of a tool."""
    found = ask(store, tool, **arguments)
    assert not found.is_error, text(found)
    return found.structured_content


def code(store: Store, tool: str, **arguments: Any) -> str | None:
    """Return the code of a tool's error; None if there is none."""
    found = ask(store, tool, **arguments)
    return (found.meta or {})["code"] if found.is_error else None


class TestAnswers:
    def test_a_hit_leads_to_its_entry(self, filled: tuple[Store, Session]) -> None:
        store, session = filled
        (hit,) = answer(store, "search", query="lost sea")["hits"]
        assert hit["reference"] == f"{session.session_id}@4"
        assert "lost at sea" in text(ask(store, "show", session=hit["reference"]))

    def test_a_secret_stored_in_the_clear_is_masked_for_other_agents(self) -> None:
        """A framework's state may be stored in the clear, and the reader's model is another program's."""
        key = "sk-ant-" + "a1B2" * 10
        store = Store(MemoryStore(), real_runtime(NullRedactor()))
        session, other = store.start("support"), store.start("support")
        session.append([user(f"Use {key} for the parcel, " + "x" * 1_470 + key), assistant("I did.")])
        session.note({"key": key})
        other.append([user(f"Use {key}!")])
        reader, name = oakleaf.Store(store.backend), session.session_id
        asked: list[tuple[str, dict[str, Any]]] = [
            ("search", {"query": "parcel"}),
            ("ls", {}),
            ("show", {"session": name, "trace": True}),
            ("show", {"session": f"{name}@1"}),
            ("show", {"session": f"{name}@1", "offset": 20}),
            ("log", {"session": name}),
            ("log", {"session": name, "events": True}),
            ("tree", {"session": name}),
            ("tail", {"session": name}),
            ("context", {"session": name}),
            ("diff", {"a": name, "b": other.session_id}),
        ]
        for tool, arguments in asked:
            found = ask(reader, tool, **arguments)
            assert not found.is_error, (tool, text(found))
            assert "a1B2" not in text(found) + str(found.structured_content), tool
        assert "Use [redacted] for the parcel" in text(ask(reader, "show", session=name))

    def test_a_trashed_session_is_read_by_its_whole_id_alone(self, filled: tuple[Store, Session]) -> None:
        store, session = filled
        store.delete(session.session_id)
        assert answer(store, "search", query="lost sea")["hits"] == []
        assert answer(store, "ls")["sessions"] == []
        for name in ("latest", session.session_id[:8]):
            assert code(store, "show", session=name) in ("invalid_reference", "not_found")
        shown = text(ask(store, "show", session=session.session_id))
        assert "lost at sea" in shown
        assert "in the trash since 20" in shown

    @pytest.mark.smoke
    def test_a_session_is_listed_and_shown_with_calls_and_results(
        self, filled: tuple[Store, Session]
    ) -> None:
        store, session = filled
        assert session.session_id[:16] in text(ask(store, "ls", query="agent:support"))
        assert answer(store, "ls", query="agent:other")["sessions"] == []
        shown = text(ask(store, "show", session=session.session_id[:8]))
        assert '→ look_up {"order":41}' in shown
        assert "← lost at sea" in shown
        assert text(ask(store, "show")) == shown

    def test_a_long_session_is_read_window_by_window(self) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start()
            for number in range(60):
                session.append([user(f"question {number} " + "x" * 900), assistant(f"answer {number}")])
            seen, first = "", 121
            while first > 1:
                page = ask(store, "show", session=session.session_id, until=first - 1)
                assert len(text(page).encode()) <= MAX_BYTES
                assert page.structured_content is not None
                seen += text(page)
                first = page.structured_content["entries"][0]["seq"]
            assert all(f"answer {number}" in seen for number in range(60))
            lines, page_of = 0, None
            while True:
                drawn = answer(store, "tree", session=session.session_id, page=page_of)
                lines, page_of = lines + len(drawn["tree"]), drawn["next"]
                if page_of is None:
                    break
            assert lines == 120

    def test_a_long_entry_is_read_whole_by_its_offsets(self) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start()
            whole = "".join(f"{number:06}" for number in range(5_000))
            session.append([user(whole)])
            reference = f"{session.session_id}@1"
            assert answer(store, "show", session=reference)["omitted_chars"] > 0
            pieces, offset = "", 0
            while offset is not None:
                piece = answer(store, "show", session=reference, offset=offset)
                pieces, offset = pieces + piece["text"], piece["next_offset"]
            assert whole in pieces

    def test_a_lists_answer_that_is_too_large_names_what_asks_for_less(self) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start()
            for number in range(400):
                session.append([user(f"question {number}")])
            found = ask(store, "show", session=session.session_id, last=400)
            assert (found.meta or {})["code"] == "answer_too_large"
            assert "ask for less with" in text(found)
            assert "last" in text(found)

    def test_two_sessions_are_compared(self, filled: tuple[Store, Session]) -> None:
        store, session = filled
        other = session.fork(at=2)
        other.append([assistant("I do not know.")])
        assert answer(store, "diff", a=session.session_id, b=other.session_id)["shared"] == 2
        (fork,) = answer(store, "tree", session=session.session_id)["related"]
        assert (fork["relation"], fork["parent_seq"], fork["id"]) == ("fork", 2, other.session_id)


def test_another_owner_and_space_see_nothing(tmp_path: Path) -> None:
    with oakleaf.open(tmp_path / "s.db", owner="ann") as store:
        session = fill(store)
    for how in ({"owner": "bob"}, {"space": "other"}):
        with oakleaf.open(tmp_path / "s.db", **how) as store:  # type: ignore[arg-type]
            assert answer(store, "search", query="lost")["hits"] == []
            assert answer(store, "ls")["sessions"] == []
            assert answer(store, "usage")["total"]["calls"] == 0
            for tool in ("show", "log", "tree", "tail", "context"):
                assert code(store, tool, session=session.session_id) == "not_found"
    with oakleaf.open(tmp_path / "s.db", owner="ann") as store:
        assert session.session_id in text(ask(store, "search", query="lost"))


PROBES: dict[str, Callable[[Store, str, str], CallToolResult]] = {
    "show": lambda store, name, _: ask(store, "show", session=name),
    "show a prefix": lambda store, name, _: ask(store, "show", session=name[:-4]),
    "show an entry": lambda store, name, _: ask(store, "show", session=f"{name}@3"),
    "show another entry": lambda store, name, _: ask(store, "show", session=f"{name}@99"),
    "log": lambda store, name, _: ask(store, "log", session=name),
    "tree": lambda store, name, _: ask(store, "tree", session=name),
    "tail": lambda store, name, _: ask(store, "tail", session=name),
    "context": lambda store, name, _: ask(store, "context", session=name),
    "usage": lambda store, name, _: ask(store, "usage", session=name, by="session"),
    "diff": lambda store, name, own: ask(store, "diff", a=own, b=name),
    "diff of an entry": lambda store, name, own: ask(store, "diff", a=f"{name}@2", b=own),
    "search within": lambda store, name, _: ask(store, "search", query=f"parcel session:{name}"),
    "search by prefix": lambda store, name, _: ask(store, "search", query=f"lost session:{name[:-4]}"),
    "search by tag": lambda store, name, _: ask(store, "search", query="lost tag:of=ann"),
    "sessions by tag": lambda store, name, _: ask(store, "ls", query="tag:of=ann"),
    "sessions of an agent": lambda store, name, _: ask(store, "ls", query="agent:support"),
    "children": lambda store, name, _: ask(store, "ls", query=f"parent:{name}"),
}
UNKNOWN = "ses_00000000000000000000"


def probed(store: Store, probe: str, name: str, own: str) -> str:
    found = PROBES[probe](store, name, own)
    return f"{found.meta} {text(found)}".replace(name, "ID").replace(name[:-4], "ID")


@pytest.mark.parametrize("stranger", [{"owner": "bob"}, {"space": "other"}], ids=["owner", "space"])
@pytest.mark.parametrize("probe", PROBES)
def test_a_session_of_another_looks_like_one_that_does_not_exist(
    tmp_path: Path, probe: str, stranger: dict[str, str]
) -> None:
    with oakleaf.open(tmp_path / "s.db", owner="ann") as store:
        theirs = fill(store)
        theirs.tag(of="ann")
        theirs.send_sync("more", model=ScriptedModel(["yes"]))
        theirs.fork().append([user("parcel again")])
    with oakleaf.open(tmp_path / "s.db", **stranger) as store:  # type: ignore[arg-type]
        own = store.start().session_id
        seen = probed(store, probe, theirs.session_id, own)
        assert seen == probed(store, probe, UNKNOWN, own)
        assert "parcel" not in seen.replace("parcel session:", "")


def test_a_page_of_another_leads_to_nothing_of_theirs(tmp_path: Path) -> None:
    with oakleaf.open(tmp_path / "s.db", owner="ann") as store:
        for _ in range(3):
            fill(store)
        listed = answer(store, "ls", limit=1)["next"]
        found = answer(store, "search", query="lost", limit=1)["next"]
    for stranger in ({"owner": "bob"}, {"space": "other"}):
        with oakleaf.open(tmp_path / "s.db", **stranger) as store:  # type: ignore[arg-type]
            assert answer(store, "ls", page=listed)["sessions"] == []
            assert answer(store, "search", query="lost", page=found)["hits"] == []


def conversation(server: Any, talk: Callable[[Client], Awaitable[Any]]) -> Any:
    async def connect() -> Any:
        async with Client(server) as client:
            return await talk(client)

    return asyncio.run(connect())


def text(result: Any) -> str:
    return "".join(block.text for block in result.content)


class TestStdio:
    def test_the_official_client_reads_sessions(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "s.db") as store:
            session = fill(store)

        async def talk(client: Client) -> None:
            tools = (await client.list_tools()).tools
            assert sorted(tool.name for tool in tools) == TOOLS
            assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
            answer = await client.call_tool("show", {"session": "latest"})
            assert "lost at sea" in text(answer)
            result = await client.call_tool("search", {"query": "parcel"})
            assert f"{session.session_id}@2" in text(result)
            usage = await client.call_tool("usage", {"by": "day"})
            assert usage.structured_content["total"]["calls"] == 0
            missing = await client.call_tool("show", {"session": "ses_none"})
            assert missing.is_error
            assert text(missing).startswith("no session 'ses_none'")
            wrong = await client.call_tool("ls", {"page": "x"})
            assert "page='x' is invalid" in text(wrong)

        store_option = ["--store", str(tmp_path / "s.db"), "mcp"]
        command = StdioServerParameters(
            command=str(OAKLEAF[0]), args=[*map(str, OAKLEAF[1:]), *store_option], env=environment(tmp_path)
        )
        conversation(command, talk)
        with oakleaf.open(tmp_path / "s.db") as store:
            assert store.session(session.session_id).verify() == []
            assert len(store.session(session.session_id).path()) == 5

    def test_it_ends_cleanly_whoever_ends_it(self, tmp_path: Path) -> None:
        """Ctrl-C waited for the thread that reads the input, for ever; a client that was gone left a traceback."""
        command = [*map(str, OAKLEAF), "--store", str(tmp_path / "s.db"), "mcp"]
        hello = (
            b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
            b'"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}\n'
        )
        oakleaf.open(tmp_path / "s.db").close()
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        how = ("interrupt", "terminate", "end of input", "client gone")
        started = {
            name: subprocess.Popen(command, env=environment(tmp_path), **pipes)  # type: ignore[call-overload]
            for name in how
        }
        for name, process in started.items():
            with process, process.stdin as stdin, process.stdout as stdout:
                stdin.write(hello)
                stdin.flush()
                assert b'"result"' in stdout.readline()
                if name == "client gone":
                    stdout.close()
                    stdin.write(hello)
                    stdin.close()
                elif name == "end of input":
                    stdin.close()
                else:
                    process.send_signal(signal.SIGINT if name == "interrupt" else signal.SIGTERM)
                assert (name, process.wait(30), process.stderr.read()) == (name, 0, b"")


@pytest.fixture(scope="module")
def web() -> Iterator[HttpServer]:
    with oakleaf.open("memory:") as store:
        fill(store)
        server = HttpServer(store, "127.0.0.1", 0, "sesame")
        ready = threading.Event()
        thread = threading.Thread(target=server.run, args=(ready.set,), daemon=True)
        thread.start()
        ready.wait()
        yield server
        server.stop()
        thread.join(10)
        assert not thread.is_alive()


class TestHttp:
    def test_the_official_client_reads_sessions(self, web: HttpServer) -> None:
        async def talk() -> str:
            headers = {"Authorization": "Bearer sesame"}
            async with (
                httpx2.AsyncClient(headers=headers) as http,
                Client(streamable_http_client(web.address, http_client=http)) as client,
            ):
                return text(await client.call_tool("show", {"session": "latest"}))

        assert "lost at sea" in asyncio.run(talk())

    def test_a_wrong_token_is_refused(self, web: HttpServer) -> None:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"}):
            assert httpx2.post(web.address, json={}, headers=headers).status_code == 401

    def test_another_host_and_a_foreign_page_are_refused(self, web: HttpServer) -> None:
        good = {"Authorization": "Bearer sesame"}
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            assert httpx2.post(web.address, json={}, headers={**good, **headers}).status_code in (403, 421)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_stopping_it_is_no_failure(self, tmp_path: Path, number: signal.Signals) -> None:
        command = [*OAKLEAF, "--store", str(tmp_path / "s.db"), "mcp", "--http", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(tmp_path)) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"http://127.0.0.1:")
            process.send_signal(number)
            assert process.wait(30) == 0

    def test_others_cannot_reach_it_without_a_token(self) -> None:
        with oakleaf.open("memory:") as store:
            for host, token in (("0.0.0.0", None), ("127.0.0.1", " ")):
                with pytest.raises(TokenRequired):
                    HttpServer(store, host, 0, token)
