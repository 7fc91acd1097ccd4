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

import oakleaf
from oakleaf import ScriptedModel, Session, ToolCall, assistant, tool_result, user
from oakleaf.core.messages import ProviderBlock
from oakleaf.core.redact import NullRedactor
from oakleaf.errors import InvalidArgument, NotFound, TokenRequired
from oakleaf.log.runtime import real_runtime
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf_mcp.archive import MAX_BYTES, Archive
from oakleaf_mcp.archive_server import HttpServer
from support.terminal import OAKLEAF, environment

TOOLS = ["diff", "search", "sessions", "show", "tree", "usage"]


def fill(store: Store) -> Session:
    session = store.start("support", [oakleaf.system("You help.")], title="Order 41")
    session.append([user("Where is the parcel?"), assistant(ToolCall("c1", "look_up", {"order": 41}))])
    session.append([tool_result("c1", "lost at sea"), assistant("It was lost.")])
    return session


@pytest.fixture
def archive() -> Iterator[tuple[Archive, Session]]:
    with oakleaf.open("memory:") as store:
        session = fill(store)
        yield Archive(store), session


class TestAnswers:
    def test_a_hit_leads_to_the_entry_it_is_in(self, archive: tuple[Archive, Session]) -> None:
        reader, session = archive
        first = reader.search("lost sea").splitlines()[0]
        reference = first.split(" ")[0]
        assert reference == f"{session.session_id}@4"
        assert "lost at sea" in reader.show(reference)
        assert reader.search("nowhere").startswith("Nothing found")

    def test_replays_are_found_only_when_asked_and_marked(self, archive: tuple[Archive, Session]) -> None:
        reader, session = archive
        session.replay_sync(mode="strict")
        assert " · replay " not in reader.search("parcel")
        assert " · replay " in reader.search("parcel is:replay")

    def test_a_secret_that_was_stored_as_it_is_is_masked_for_other_agents(self) -> None:
        """A framework's state may be stored so, and the reader's model is another program's."""
        key = "sk-ant-" + "a1B2" * 10
        store = Store(MemoryStore(), real_runtime(NullRedactor()))
        session, other = store.start("support"), store.start("support")
        session.append([user(f"Use {key} for the parcel, " + "x" * 1_470 + key), assistant("I did.")])
        other.append([user(f"Use {key}!")])
        reader, name = Archive(oakleaf.Store(store.backend)), session.session_id
        texts = [reader.search("parcel"), reader.search(key), reader.sessions(), reader.show(name)]
        texts += [reader.show(f"{name}@1"), reader.tree(name), reader.diff(name, other.session_id)]
        assert all("a1B2" not in text for text in texts)
        assert "Use [redacted] for the parcel" in reader.show(name)

    def test_what_a_provider_did_itself_is_shown(self) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start()
            block = ProviderBlock("image", "image: https://example.com/a.png")
            session.append([oakleaf.Message("user", (block, oakleaf.Text("What is it?")))])
            shown = Archive(store).show(f"{session.session_id}@1")
            assert "[image: https://example.com/a.png]" in shown

    def test_one_in_the_trash_is_read_by_its_whole_id_alone(self, archive: tuple[Archive, Session]) -> None:
        reader, session = archive
        reader._store.delete(session.session_id)
        assert reader.search("lost sea").startswith("Nothing found")
        assert reader.sessions() == "No session is like that."
        for name in ("latest", session.session_id[:8]):
            with pytest.raises(NotFound):
                reader.show(name)
        shown = reader.show(session.session_id)
        assert "lost at sea" in shown
        assert "in the trash since 20" in shown

    @pytest.mark.smoke
    def test_a_session_is_listed_and_shown_with_calls_and_results(
        self, archive: tuple[Archive, Session]
    ) -> None:
        reader, session = archive
        assert f"{session.session_id} · " in reader.sessions(agent="support")
        assert "Order 41" in reader.sessions()
        assert reader.sessions(agent="other") == "No session is like that."
        text = reader.show(session.session_id[:8])
        assert 'call look_up({"order":41})' in text
        assert "result: lost at sea" in text
        assert reader.show("latest") == text

    def test_a_long_session_is_read_page_by_page_and_nothing_is_missing(self) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start()
            for number in range(60):
                session.append([user(f"question {number} " + "x" * 900), assistant(f"answer {number}")])
            reader, first, texts = Archive(store), 1, ""
            for _ in range(20):
                page = reader.show(session.session_id, first=first, limit=100)
                assert len(page.encode()) <= MAX_BYTES + 200
                texts += page
                last = page.splitlines()[-1]
                if not last.startswith("[more: first="):
                    break
                first = int(last.removeprefix("[more: first=").split(" ")[0])
            assert all(f"answer {number}" in texts for number in range(60))
            assert len(reader.tree(session.session_id).encode()) <= MAX_BYTES + 200

    def test_a_long_entry_is_cut_and_read_whole_by_its_offsets(self) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start()
            text = "".join(f"{number:06}" for number in range(5_000))
            session.append([user(text)])
            reader = Archive(store)
            assert f"show('{session.session_id}@1')" in reader.show(session.session_id)
            pieces, offset = "", 0
            while True:
                page = reader.show(f"{session.session_id}@1", offset=offset)
                body, _, more = page.partition("\n[more: offset=")
                pieces += body
                if not more:
                    break
                offset = int(more.split(" ")[0])
            assert text in pieces

    def test_usage_is_summed_by_model_agent_day_and_session(self) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start("support")
            session.send_sync("hi", model=ScriptedModel(["hello"]))
            reader = Archive(store)
            for by in ("model", "agent", "day", "session"):
                assert "total: 1 call " in reader.usage(by=by)  # type: ignore[arg-type]
            assert "support: 1 call " in reader.usage(session.session_id, by="agent")
            assert reader.usage(since="2099-01-01") == "No model was called."

    def test_usage_of_all_has_the_trash_and_sums_replays_apart(self) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start("support")
            session.send_sync("hi", model=ScriptedModel(["hello"]))
            session.replay_sync(model=ScriptedModel(["hey"]))
            store.delete(session.session_id)
            for by in ("model", "agent", "day", "session"):
                total, replays = Archive(store).usage(by=by).splitlines()[-2:]  # type: ignore[arg-type]
                assert total.startswith("total: 1 call ")
                assert replays.startswith("replays, not in the total: 1 call ")

    def test_two_sessions_are_compared(self, archive: tuple[Archive, Session]) -> None:
        reader, session = archive
        other = session.fork(at=2)
        other.append([assistant("I do not know.")])
        text = reader.diff(session.session_id, other.session_id)
        assert "shared: 2 entries" in text
        assert f"fork {other.session_id} at entry 2" in reader.tree(session.session_id)

    def test_what_does_not_exist_is_an_error_that_says_so(self, archive: tuple[Archive, Session]) -> None:
        reader, session = archive
        for call in (
            lambda: reader.show("ses_none"),
            lambda: reader.show(f"{session.session_id}@²"),
            lambda: reader.show(f"{session.session_id}@{'9' * 5_000}"),
            lambda: reader.tree("ses_none"),
            lambda: reader.diff("latest", "ses_none"),
        ):
            with pytest.raises(NotFound):
                call()
        for refused in (
            lambda: reader.show(f"{session.session_id}@99"),
            lambda: reader.show("latest", limit=0),
            lambda: reader.search("x", limit=1_000),
            lambda: reader.sessions(status="asleep"),
            lambda: reader.sessions(tag="x"),
            lambda: reader.usage(by="hour"),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidArgument):
                refused()


def test_another_owner_and_space_see_nothing(tmp_path: Path) -> None:
    with oakleaf.open(tmp_path / "s.db", owner="ann") as store:
        session = fill(store)
    for how in ({"owner": "bob"}, {"space": "other"}):
        with oakleaf.open(tmp_path / "s.db", **how) as store:
            reader = Archive(store)
            assert reader.search("lost").startswith("Nothing found")
            assert reader.sessions() == "No session is like that."
            assert reader.usage() == "No model was called."
            for call in (reader.show, reader.tree):
                with pytest.raises(NotFound):
                    call(session.session_id)
    with oakleaf.open(tmp_path / "s.db", owner="ann") as store:
        assert session.session_id in Archive(store).search("lost")


PROBES: dict[str, Callable[[Archive, str, str], str]] = {
    "show": lambda reader, name, _: reader.show(name),
    "show a prefix": lambda reader, name, _: reader.show(name[:-4]),
    "show an entry": lambda reader, name, _: reader.show(f"{name}@3"),
    "show another entry": lambda reader, name, _: reader.show(f"{name}@99"),
    "tree": lambda reader, name, _: reader.tree(name),
    "usage": lambda reader, name, _: reader.usage(name, by="session"),
    "diff": lambda reader, name, own: reader.diff(own, name),
    "diff of an entry": lambda reader, name, own: reader.diff(f"{name}@2", own),
    "search within": lambda reader, name, _: reader.search(f"parcel session:{name}"),
    "search by prefix": lambda reader, name, _: reader.search(f"lost session:{name[:-4]}"),
    "search by tag": lambda reader, name, _: reader.search("lost tag:of=ann"),
    "sessions by tag": lambda reader, name, _: reader.sessions(tag="of=ann"),
    "sessions of an agent": lambda reader, name, _: reader.sessions(agent="support"),
}
UNKNOWN = "ses_00000000000000000000"


def answer(probe: Callable[[Archive, str, str], str], reader: Archive, name: str, own: str) -> str:
    try:
        text = probe(reader, name, own)
    except (NotFound, InvalidArgument) as error:
        text = f"{type(error).__name__}: {error}"
    return text.replace(name, "ID").replace(name[:-4], "ID")


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
        own, reader = store.start().session_id, Archive(store)
        seen = answer(PROBES[probe], reader, theirs.session_id, own)
        assert seen == answer(PROBES[probe], reader, UNKNOWN, own)
        assert "parcel" not in seen.replace("parcel session:", "")


def test_a_cursor_of_another_leads_to_nothing_of_theirs(tmp_path: Path) -> None:
    with oakleaf.open(tmp_path / "s.db", owner="ann") as store:
        for _ in range(3):
            fill(store)
        pages = [Archive(store).sessions(limit=1), Archive(store).search("lost", limit=1)]
        cursors = [page.rpartition("cursor=")[2].strip("']\n") for page in pages]
    for stranger in ({"owner": "bob"}, {"space": "other"}):
        with oakleaf.open(tmp_path / "s.db", **stranger) as store:
            reader = Archive(store)
            assert reader.sessions(cursor=cursors[0]) == "No session is like that."
            assert reader.search("lost", cursor=cursors[1]).startswith("Nothing found")


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
            assert text(usage) == "No model was called."
            missing = await client.call_tool("show", {"session": "ses_none"})
            assert missing.is_error
            assert text(missing).endswith(
                "no session 'ses_none' in this store, space and owner; find its id with the tools sessions or search"
            )
            wrong = await client.call_tool("sessions", {"cursor": "x"})
            assert "cursor='x' is invalid" in text(wrong)

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
        server = HttpServer(Archive(store), "127.0.0.1", 0, "sesame")
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
        command = [*OAKLEAF, "--store", str(tmp_path / "s.db"), "mcp", "--http", "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(tmp_path)) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"http://127.0.0.1:")
            process.send_signal(number)
            assert process.wait(30) == 0

    def test_others_cannot_reach_it_without_a_token(self) -> None:
        with oakleaf.open("memory:") as store:
            for host, token in (("0.0.0.0", None), ("127.0.0.1", " ")):
                with pytest.raises(TokenRequired):
                    HttpServer(Archive(store), host, 0, token)
