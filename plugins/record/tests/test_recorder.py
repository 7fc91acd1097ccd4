"""What passes the proxy becomes sessions: the same entries, tokens and cost as if the program had recorded itself."""

from __future__ import annotations

import asyncio
import base64
import gzip
import html
import json
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import anthropic
import apsw
import httpx
import openai
import pytest
from google import genai
from google.genai.types import HttpOptions

import oakleaf
from oakleaf import Session, Store
from oakleaf.stores.sqlite.store import SqliteStore
from oakleaf_postgres.store import connections as postgres_connections
from oakleaf_record import recorder
from oakleaf_record.content_encoding import MAX_DECODED_BYTES
from oakleaf_record.recorder import Recorder
from oakleaf_record.server import ApiCall, Proxy
from oakleaf_record.upstreams import find_upstreams
from support.fake_providers import BrokenStream, Call, Completion, ErrorReply, FakeProviders, RawReply, Reply
from support.postgres import Database
from support.processes import wait_until
from support.terminal import oakleaf as command

PROVIDERS = ("anthropic", "openai", "openai-chat", "gemini")
KEY = "sk-the-key-of-the-program"


class Recording:
    """A proxy before scripted vendors; `programs` are given its addresses."""

    def __init__(self, store: Store, fake: FakeProviders) -> None:
        self.store, self.fake = store, fake
        urls = {"anthropic": fake.url, "openai": f"{fake.url}/v1", "gemini": fake.url}
        self.lines: list[str] = []
        self.recorder = Recorder(store, self.lines.append)
        self._proxy = Proxy(find_upstreams({}, urls), self.recorder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.address = self._run(self._proxy.start())

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def url(self, provider: str) -> str:
        return self.address + {"openai": "/openai/v1", "openai-chat": "/openai/v1"}.get(
            provider, f"/{provider}"
        )

    def close(self) -> None:
        """Stop the proxy and write everything that the store takes."""
        if self._thread.is_alive():
            self._run(self._proxy.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        assert self.recorder.close(20) or self.recorder.unrecorded

    def wait(self, calls: int) -> None:
        """Wait until so many calls are recorded, or known to be missing."""
        while self.recorder.calls + len(self.recorder.gaps) < calls:
            time.sleep(0.005)

    def sessions(self) -> list[Session]:
        """The recorded sessions in the order they began; ends the recording."""
        self.close()
        return [self.store.session(session_id) for session_id in self.recorder.sessions]

    def chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """Send a chat with the vendor's SDK; return the text of the answer."""
        with openai.OpenAI(base_url=self.url("openai-chat"), api_key=KEY, max_retries=0) as client:
            stream = client.chat.completions.create(
                model="gpt-loopback", messages=list(messages), stream=True, **options
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with oakleaf.open(tmp_path / "recorded.db") as store:
        yield store


@contextmanager
def recording(store: Store, *replies: Reply, judges: bool = True) -> Iterator[Recording]:
    with FakeProviders(*replies, judges=judges) as fake:
        recording = Recording(store, fake)
        try:
            yield recording
        finally:
            recording.close()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def texts(session: Session) -> list[str]:
    return [entry.message.text for entry in session.path() if entry.message is not None]


@oakleaf.tool(effect="read")
def lookup(order: int) -> str:
    """Look up an order."""
    return f"order {order} is lost"


def shape(session: Session) -> list[tuple[str, str, list[tuple[str, Any]], list[str]]]:
    """What was said, called and returned, entry by entry, without ids."""
    return [
        (
            message.role,
            message.text,
            [(call.name, call.arguments) for call in message.calls],
            ["".join(getattr(piece, "text", "") for piece in result.content) for result in message.results],
        )
        for message in (entry.message for entry in session.path())
        if message is not None
    ]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_agent_is_recorded_as_it_records_itself(provider: str, store: Store, tmp_path: Path) -> None:
    replies = [
        Completion("let me see", "an order", (Call("call_1", "lookup", '{"order": 41}'),)),
        Completion("It is lost."),
        Completion("You are welcome."),
    ]
    with recording(store, *replies) as proxy, oakleaf.open(tmp_path / "own.db") as own_store:
        own = own_store.start(seeds=[oakleaf.system("You help.")])
        model = f"{provider}:m@{proxy.url(provider)}"
        with pytest.MonkeyPatch.context() as patch:
            for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
                patch.setenv(name, KEY)
            for text in ("Where is order 41?", "Thanks"):
                assert own.send_sync(text, model=model, tools=[lookup]).status == "completed"
        (recorded,) = proxy.sessions()
        assert shape(recorded) == shape(own)
        totals, own_totals = recorded.usage(), own.usage()
        assert (totals.calls, totals.input_tokens, totals.output_tokens) == (
            own_totals.calls,
            own_totals.input_tokens,
            own_totals.output_tokens,
        )
        assert recorded.row.turns == 2
        assert recorded.row.status == "idle"
        assert recorded.request(provider) == own.request(provider)
        assert not list(store.verify())
    assert KEY.encode() not in (tmp_path / "recorded.db").read_bytes()


def test_a_stream_whose_last_event_has_no_items_is_put_together(store: Store) -> None:
    """The server of ChatGPT logins sends each item once, and ends with an empty response."""
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "an order"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "lookup", "arguments": "{}"},
    ]
    end = {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": []}
    events = [
        *(
            {"type": "response.output_item.done", "output_index": at, "item": item}
            for at, item in enumerate(items)
        ),
        {"type": "response.completed", "response": end | {"usage": {"input_tokens": 3, "output_tokens": 2}}},
    ]
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    with recording(store, RawReply(body)) as proxy:
        send_responses(proxy, [user("where is it?")])
        (recorded,) = proxy.sessions()
    assert shape(recorded)[-1] == ("assistant", "", [("lookup", {})], [])
    assert recorded.usage().output_tokens == 2


def test_a_flood_waits_on_disk_and_is_recorded_in_its_order(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """8,619 calls of a busy hour were dropped."""
    monkeypatch.setattr(recorder, "MAX_WAITING_BYTES", 2_000)
    history: list[dict[str, Any]] = []
    with recording(store, *(Completion(f"answer {n}") for n in range(30))) as proxy:
        with locked(tmp_path / "recorded.db"):
            for number in range(30):
                history.append(user(f"question {number}"))
                history.append(assistant(proxy.chat(history)))
        (recorded,) = proxy.sessions()
    assert texts(recorded) == [message["content"] for message in history]
    assert (proxy.recorder.calls, proxy.recorder.gaps, recorded.usage().calls) == (30, [], 30)


def test_calls_that_the_disk_does_not_take_pass_and_are_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(recorder, "MAX_WAITING_BYTES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with recording(store) as proxy:
        with locked(tmp_path / "recorded.db"):
            assert [proxy.chat([user(str(number))]) for number in range(4)] == ["ok"] * 4
        proxy.close()
    why = "the store was too slow, and the disk took no more to wait: No such file or directory"
    assert set(proxy.recorder.gaps) == {why}
    assert proxy.recorder.calls + len(proxy.recorder.gaps) == 4


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of a SQLite store, as another program that writes."""
    with closing(apsw.Connection(str(file))) as other:
        other.execute("begin immediate")
        yield
        other.execute("rollback")


def test_references_to_items_stand_for_the_answer_that_has_them(store: Store) -> None:
    """The Vercel AI SDK and Mastra refer to items that OpenAI stored: results had no call, and sessions were split."""
    calls = (Call("call_1", "lookup", '{"order": 41}'), Call("call_2", "lookup", '{"order": 42}'))
    replies = [Completion("", "two orders", calls), Completion("Both are lost."), Completion("Sorry.")]
    history = [user("where?")]
    with recording(store, *replies, judges=False) as proxy:
        for ids, more in (
            (["rs_1", "fc_1_0", "fc_1_1"], [function_result(call.id, "lost") for call in calls]),
            (["msg_2"], [user("both?")]),
            (["msg_3"], []),
        ):
            send_responses(proxy, history)
            history += [*({"type": "item_reference", "id": item_id} for item_id in ids), *more]
        (recorded,) = proxy.sessions()
    assert not proxy.recorder.gaps
    roles = [message[0] for message in shape(recorded)]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
    assert not list(store.verify())


def function_result(call_id: str, output: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def send_responses(proxy: Recording, items: Sequence[dict[str, Any]], **headers: str) -> bytes:
    """Send items to OpenAI's Responses; return the answer."""
    body = json.dumps({"model": "m", "stream": True, "input": list(items)}).encode()
    request = Request(f"{proxy.url('openai')}/responses", body, headers)
    with urlopen(request) as response:
        return bytes(response.read())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_tools_and_options_of_a_request_are_kept(provider: str, store: Store, tmp_path: Path) -> None:
    with recording(store, Completion("Lost.")) as proxy, oakleaf.open("memory:") as own_store:
        own = own_store.start(seeds=[oakleaf.system("You help.")])
        model = f"{provider}:m@{proxy.url(provider)}"
        with pytest.MonkeyPatch.context() as patch:
            for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
                patch.setenv(name, KEY)
            options = {"temperature": 0.25, "max_tokens": 77}
            own.send_sync("Where is 41?", model=model, tools=[lookup], options=options)
        (body,) = (request.body for request in proxy.fake.requests)
        (session_id,) = (session.session_id for session in proxy.sessions())
    with oakleaf.open(tmp_path / "recorded.db") as again:  # as another process reads it
        recorded = again.session(session_id)
        settings = recorded.context().settings
        assert {name: settings.options[name] for name in options} == options
        request = recorded.request(provider)
        assert request["tools"] == body["tools"]
        assert "Look up an order." in str(request["tools"])
        assert recorded.row.tool_names == ("lookup",)
    shown = command("--store", str(tmp_path / "recorded.db"), "context", session_id, home=tmp_path).stdout
    assert "lookup" in shown
    assert "temperature" in shown


def test_an_edit_and_a_retry_become_branches(store: Store) -> None:
    with recording(
        store, Completion("one"), Completion("two"), Completion("three"), Completion("four")
    ) as proxy:
        proxy.chat([user("hi"), assistant("hello"), user("first")])
        proxy.chat([user("hi"), assistant("hello"), user("edited")])
        proxy.chat([user("hi"), assistant("hello"), user("edited")])
        proxy.chat([user("hi"), assistant("hello"), user("first"), assistant("one"), user("more")])
        (session,) = proxy.sessions()
        assert texts(session) == ["hi", "hello", "first", "one", "more", "four"]
        answers = [
            e.message.text for e in session.entries() if e.message is not None and e.role == "assistant"
        ]
        assert sorted(answers) == ["four", "hello", "one", "three", "two"]
        assert session.usage().calls == 4
        assert not list(store.verify())


def test_another_prompt_or_tool_set_is_a_session_of_its_own(store: Store) -> None:
    tool = {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
    }
    with recording(store) as proxy:
        proxy.chat([system("You work."), user("hi")])
        proxy.chat([system("You write titles."), user("hi")])
        proxy.chat([system("You work."), user("hi")], tools=[tool])
        proxy.chat([system("You work."), user("hi"), assistant("ok"), user("go on")], temperature=0)
        sessions = proxy.sessions()
        assert [texts(session)[0] for session in sessions] == ["You work.", "You write titles.", "You work."]
        assert {len(texts(session)) for session in sessions} == {3, 5}
        continued = next(session for session in sessions if len(texts(session)) == 5)
        assert continued.context().settings.options == {"temperature": 0}


def function(name: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": "d", "parameters": {"type": "object"}},
    }


def test_the_same_history_with_other_options_is_a_branch_with_these(store: Store) -> None:
    """The second answer was recorded as if it was given with the options and the prompt of the first."""
    history = [user("hi"), assistant("one"), user("and now")]
    with recording(store, *map(Completion, ["one", "two", "three", "four"])) as proxy:
        proxy.chat([system("Be brief."), *history[:1]], temperature=0)
        proxy.chat([system("Be brief."), *history], temperature=0)
        proxy.wait(2)
        proxy.chat([system("Be polite."), *history], temperature=1)
        proxy.wait(3)
        proxy.chat([system("Be polite."), *history, assistant("three"), user("thanks")], temperature=1)
        (session,) = proxy.sessions()
        answered = {entry.message.text: entry for entry in session.entries() if entry.role == "assistant"}
        for text, prompt, temperature in [("two", "Be brief.", 0), ("three", "Be polite.", 1)]:
            session.checkout(oakleaf.Leaf(answered[text].branch, answered[text].seq))
            context = session.context()
            assert (context.system, context.settings.options) == ((prompt,), {"temperature": temperature})
        assert session.verify() == []


def test_a_session_names_every_tool_that_it_was_offered(store: Store) -> None:
    with recording(store) as proxy:
        proxy.chat([user("hi")], tools=[function("f")])
        proxy.chat([user("hi"), assistant("ok"), user("more")], tools=[function("g"), function("f")])
        proxy.chat([user("hi"), assistant("ok"), user("more"), assistant("ok"), user("last")])
        (session,) = proxy.sessions()
        assert session.row.tool_names == ("f", "g")
        assert session.context().settings.tool_definitions is not None
        assert session.context().settings.tool_definitions.is_callable is False


SHAPED_KEY = "sk-ant-" + "a1" * 20


@pytest.mark.parametrize("secret", ["correct horse battery", SHAPED_KEY], ids=["named", "shaped"])
def test_a_secret_in_the_history_is_masked_and_the_session_goes_on(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "recorded.db"
    call = Call("call_1", "login", json.dumps({"password": secret}))
    history = [
        system(f"You log in with {secret}."),
        user(f"It is {secret}."),
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "login", "arguments": json.dumps({"password": secret})},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": f"in as {secret}"},
        assistant(f"I used {secret}."),
        user("Thanks."),
    ]
    replies = [Completion("", "", (call,)), Completion(f"I used {secret}."), *3 * [Completion("Bye.")]]
    with FakeProviders(*replies) as fake:
        for ends in ((2, 4), (6,), (6,)):  # each time another process goes on
            with oakleaf.open(path, secrets={"PASSWORD": "correct horse battery"}) as store:
                proxy = Recording(store, fake)
                for end in ends:
                    proxy.chat(history[:end], tools=[function("login")])
                proxy.close()
                assert (proxy.recorder.gaps, len(store.sessions().sessions)) == ([], 1)
    with oakleaf.open(path) as store:
        (row,) = store.sessions().sessions
        session = store.session(row.session_id)
        roles = [entry.message.role for entry in session.path() if entry.message is not None]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
        assert session.usage().calls == 4
        assert not list(store.verify())
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert secret.encode() not in files


def test_a_secret_that_a_server_repeats_in_its_error_is_masked(tmp_path: Path) -> None:
    path = tmp_path / "recorded.db"
    refusal = ErrorReply(401, f"Incorrect API key provided: {SHAPED_KEY}")
    with oakleaf.open(path) as store, recording(store, refusal) as proxy:
        with pytest.raises(openai.AuthenticationError):
            proxy.chat([user("hi")])
        (session,) = proxy.sessions()
        assert "Incorrect API key provided: [redacted]" in str(session.row.error)
        assert SHAPED_KEY not in str(store.backend.journal(session.session_id))


OWN_KEY = "gw/Zq8-t0P+7hN2kLx==9vYc"
"""A key of no vendor's shape, that the store does not know."""
USER_KEY = "ann:Tq8zt0P77hN2kLx9vYcR3"
OWN_KEYS = {
    "bearer": ({"authorization": f"Bearer {OWN_KEY}"}, "", OWN_KEY),
    "no scheme": ({"authorization": OWN_KEY}, "", OWN_KEY),
    "x-api-key": ({"x-api-key": OWN_KEY}, "", OWN_KEY),
    "x-goog-api-key": ({"x-goog-api-key": OWN_KEY}, "", OWN_KEY),
    "api-key": ({"api-key": OWN_KEY}, "", OWN_KEY),
    "own header": ({"X-Gateway-Token": OWN_KEY}, "", OWN_KEY),
    "cookie": ({"cookie": f"theme=dark; session={OWN_KEY}"}, "", OWN_KEY),
    "query": ({}, f"?alt=json&key={quote(OWN_KEY, safe='')}", OWN_KEY),
    "basic": (
        {"authorization": f"Basic {base64.b64encode(USER_KEY.encode()).decode()}"},
        "",
        USER_KEY.partition(":")[2],
    ),
}


def repetitions(key: str) -> list[tuple[str, str]]:
    """Texts in which a server may repeat the key, each with the part of it that tells the key."""
    data = key.encode()
    within = base64.b64encode(b"Bearer " + data + b"\r\n").decode()
    of_address = base64.urlsafe_b64encode(b"k=" + data).decode()
    return [
        (f"Incorrect key {key}.", key),
        (json.dumps({"headers": {"authorization": f"Bearer {key}", key: 1}}), key),
        (json.dumps(json.dumps({"authorization": key})), key),
        (f"https://gateway.example/?key={quote(key, safe='')}&x=1", quote(key, safe="")),
        (f"https://gateway.example/?key={quote(key, safe='').lower()}", quote(key, safe="").lower()),
        (f"<p>{html.escape(key)}</p>", html.escape(key)),
        (base64.b64encode(data).decode(), base64.b64encode(data).decode()[:-4]),
        (within, within[12:-8]),
        (of_address, of_address[4:-4]),
        (data.hex(), data.hex()),
        (f"The key {key[:17]}… is unknown.", key[:16]),
        (f"The key …{key[-17:]} is unknown.", key[-16:]),
    ]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("how", "place"),
    [
        *((how, "bearer") for how in ("page", "answer", "stream", "call", "model", "broken")),
        *(("error", place) for place in OWN_KEYS),
    ],
)
def test_a_key_of_the_program_is_stored_nowhere_whoever_repeats_it(
    tmp_path: Path, how: str, place: str
) -> None:
    """Six of eight ways to repeat a key that is of no vendor's shape left it in the store in clear."""
    headers, query, key = OWN_KEYS[place]
    told = repetitions(key)
    with oakleaf.open(tmp_path / "recorded.db") as store, recording(store, repeat(how, told)) as proxy:
        body = {"model": f"m {key}", "messages": [user(f"My key is {key}."), user("Hello")], "user": key}
        url = f"{proxy.url('openai-chat')}/chat/completions{query}"
        reply = httpx.post(url, json=body, headers={"user-agent": f"{key}/1 agent", **headers})
        assert reply.status_code == {"error": 401, "page": 502}.get(how, 200)
        proxy.close()
        (session_id,) = proxy.recorder.sessions
        session = store.session(session_id)
        stored = "\n".join([*proxy.recorder.gaps, *proxy.lines, str(session.row), str(session.journal())])
        assert "My key is [redacted]." in texts(session)
        session.export(tmp_path / "session.oakleaf")
    for file in tmp_path.iterdir():
        data = file.read_bytes()
        stored += (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("latin-1")
    for text, secret in told:
        assert secret not in stored, text


def repeat(how: str, told: list[tuple[str, str]]) -> Reply:
    """A reply that repeats all of it, in the way that is asked for."""
    text = " ".join(text for text, _ in told)
    match how:
        case "error":
            return ErrorReply(401, text)
        case "page":
            return RawReply(f"<html>{text}</html>".encode(), 502, "text/html")
        case "answer":
            return Completion(text)
        case "stream":  # each event has a few letters of it
            pieces = [text[at : at + 5] for at in range(0, len(text), 5)]
            chunks = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
            chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            return RawReply(b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks))
        case "call":
            return Completion("", "", (Call("call_1", "login", json.dumps({"headers": {text: text}})),))
        case "model":
            message = {
                "role": "assistant",
                "content": "hi",
                "reasoning_content": text,
                "headers": {text: text},
            }
            data = {"id": text, "model": text, "choices": [{"message": message, "finish_reason": "stop"}]}
            return RawReply(json.dumps(data).encode(), content_type="application/json")
        case _:
            chunk = {"choices": [{"index": 0, "delta": {"content": text}}]}
            return RawReply(b"data: %s\n\ndata: {" % json.dumps(chunk).encode())


CALLS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "anthropic": (
        "/v1/messages",
        {"model": "m", "max_tokens": 9, "messages": [user("hi")], "stream": True},
        {"x-api-key": OWN_KEY},
    ),
    "openai": (
        "/responses",
        {"model": "m", "input": [user("hi")], "stream": True},
        {"authorization": f"Bearer {OWN_KEY}"},
    ),
    "gemini": (
        f"/v1beta/models/g:streamGenerateContent?alt=sse&key={quote(OWN_KEY, safe='')}",
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
        {},
    ),
}


@pytest.mark.attack
@pytest.mark.parametrize("provider", CALLS)
def test_a_key_is_masked_in_the_answers_and_errors_of_every_provider(tmp_path: Path, provider: str) -> None:
    path, body, headers = CALLS[provider]
    told = " ".join(text for text, _ in repetitions(OWN_KEY))
    call = Call("call_1", "login", json.dumps({"headers": {told: told}}))
    replies = (Completion(told, told, (call,)), ErrorReply(401, told))
    with oakleaf.open(tmp_path / "recorded.db") as store, recording(store, *replies) as proxy:
        for _ in replies:
            httpx.post(proxy.url(provider) + path, json=body, headers=headers)
        proxy.close()
        assert (proxy.recorder.calls, proxy.recorder.gaps) == (2, [])
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir()).decode("latin-1")
    assert "[redacted]" in stored
    for text, secret in repetitions(OWN_KEY):
        assert secret not in stored, text


@pytest.mark.attack
def test_a_key_that_another_answer_repeated_is_masked_in_the_history_too(store: Store) -> None:
    """A program that changes its key sends back what the server said of the one before."""
    with recording(store, Completion(f"Your key is {OWN_KEY}."), Completion("ok")) as proxy:
        url = f"{proxy.url('openai-chat')}/chat/completions"
        history = [user("hi"), assistant(f"Your key is {OWN_KEY}."), user("thanks")]
        for count, key in ((1, OWN_KEY), (3, "another-key-of-the-program")):
            body = {"model": "m", "messages": history[:count], "stream": True}
            httpx.post(url, json=body, headers={"authorization": f"Bearer {key}"})
        (session,) = proxy.sessions()
        assert texts(session) == ["hi", "Your key is [redacted].", "thanks", "ok"]


def test_the_word_that_local_servers_want_for_a_key_is_no_secret(store: Store) -> None:
    with recording(store, Completion("lm-studio is a program")) as proxy:
        body = {"model": "m", "messages": [user("What is lm-studio?")], "stream": True}
        url = f"{proxy.url('openai-chat')}/chat/completions"
        httpx.post(url, json=body, headers={"authorization": "Bearer lm-studio"})
        (session,) = proxy.sessions()
        assert texts(session) == ["What is lm-studio?", "lm-studio is a program"]


def test_the_session_of_a_sub_agent_is_a_task_of_the_one_that_called_it(store: Store) -> None:
    prompt = "Read every file below src and list what is unused."
    call = Call("call_1", "task", json.dumps({"prompt": prompt}))
    with recording(store, Completion("", "", (call,)), Completion("nothing")) as proxy:
        proxy.chat([system("You plan."), user("clean up")])
        proxy.chat([system("You read."), user(prompt)])
        parent, child = proxy.sessions()
        assert (child.row.relation, child.row.parent_session) == ("task", parent.session_id)
        assert not list(store.verify())


@pytest.mark.parametrize(
    ("path", "request_", "block"),
    [
        ("anthropic/v1/messages", "messages", {"type": "image", "source": {"type": "url", "url": "LINK"}}),
        ("anthropic/v1/messages", "messages", {"type": "container_upload", "file_id": "LINK"}),
        (
            "anthropic/v1/messages",
            "messages",
            {
                "type": "search_result",
                "source": "s",
                "title": "t",
                "content": [{"type": "text", "text": "LINK"}],
            },
        ),
        ("openai/v1/responses", "input", {"type": "input_image", "image_url": "LINK"}),
        ("openai/v1/responses", "input", {"type": "input_file", "file_id": "LINK"}),
        ("gemini/v1beta/models/m:generateContent", "contents", {"fileData": {"fileUri": "LINK"}}),
    ],
)
def test_the_same_words_about_another_file_are_another_input(
    store: Store, path: str, request_: str, block: dict[str, Any]
) -> None:
    """The second input was lost, and its answer recorded as another one to the first."""
    text = {"text": "What is it?"} if "gemini" in path else {"type": "text", "text": "What is it?"}
    if "openai" in path:
        text["type"] = "input_text"
    key = "parts" if "gemini" in path else "content"
    with recording(store) as proxy:
        for count, link in enumerate(("https://x/1", "https://x/2", "https://x/2"), 1):
            file = json.loads(json.dumps(block).replace("LINK", link))
            if "anthropic" in path and count == 3:
                file["cache_control"] = {"type": "ephemeral"}
            body = {"model": "m", "max_tokens": 9, request_: [{"role": "user", key: [file, text]}]}
            with urlopen(Request(f"{proxy.address}/{path}", json.dumps(body).encode())) as response:
                response.read()
            proxy.wait(count)
        first, second = proxy.sessions()
        assert len(first.model_calls()) == 1
        assert len(second.model_calls()) == 2, "the last request repeats the one before"


def test_metadata_and_blanks_do_not_make_another_session(store: Store) -> None:
    with recording(store) as proxy:
        proxy.chat([user("hi")], metadata={"n": "1"}, user="a")
        proxy.chat([user("hi"), assistant("ok "), user("more")], metadata={"n": "2"}, user="b")
        (session,) = proxy.sessions()
        assert texts(session) == ["hi", "ok", "more", "ok"]


def test_a_response_that_the_provider_stores_is_continued_by_its_id(store: Store) -> None:
    with recording(store) as proxy:
        with openai.OpenAI(base_url=proxy.url("openai"), api_key=KEY, max_retries=0) as client:
            last = None
            for text in ("one", "two", "three"):
                with client.responses.stream(
                    model="m", input=[user(text)], previous_response_id=last
                ) as stream:
                    last = stream.get_final_response().id
        (session,) = proxy.sessions()
        assert texts(session) == ["one", "ok", "two", "ok", "three", "ok"]


def test_a_response_that_is_not_the_last_one_is_continued_on_a_branch(store: Store) -> None:
    """Whatever the id, the request was appended where the session stood."""
    with recording(store, *(Completion(text) for text in ("1", "2", "3"))) as proxy:
        with openai.OpenAI(base_url=proxy.url("openai"), api_key=KEY, max_retries=0) as client:

            def ask(text: str, previous: str | None) -> str:
                with client.responses.stream(
                    model="m", input=[user(text)], previous_response_id=previous
                ) as stream:
                    return stream.get_final_response().id

            first = ask("one", None)
            ask("two", first)
            ask("another two", first)
        (session,) = proxy.sessions()
        assert texts(session) == ["one", "1", "another two", "3"]
        assert not list(store.verify())


def ask_in_conversation(proxy: Recording, conversation: Any, *items: Any) -> None:
    with (
        openai.OpenAI(base_url=proxy.url("openai"), api_key=KEY, max_retries=0) as client,
        client.responses.stream(model="m", input=list(items), conversation=conversation) as stream,
    ):
        stream.get_final_response()


def test_a_conversation_that_the_provider_stores_is_one_session(store: Store) -> None:
    """Each of its requests, which carry only what is new, was a session of its own."""
    replies = [Completion("", "", (Call("call_1", "f"),)), *(Completion(text) for text in ("two", "three"))]
    result = {"type": "function_call_output", "call_id": "call_1", "output": "found"}
    with recording(store, *replies) as proxy:
        ask_in_conversation(proxy, "conv_1", user("yes"))
        ask_in_conversation(proxy, {"id": "conv_1"}, result)
        proxy.sessions()
    with recording(store, *replies[2:]) as proxy:  # another process
        ask_in_conversation(proxy, "conv_1", user("yes"))
        ask_in_conversation(proxy, "conv_2", user("yes"))
        session, other = proxy.sessions()
        assert [role for role, *_ in shape(session)][1:3] == ["assistant", "tool"]
        assert texts(session) == ["yes", "", "", "two", "yes", "three"]
        assert texts(other) == ["yes", "ok"]
        assert session.usage().calls == 3
        assert not list(store.verify())


def test_a_conversation_is_one_of_responses_alone(store: Store) -> None:
    """A server may have a field of this name for another purpose, and get the whole history each time."""
    with recording(store) as proxy:
        proxy.chat([user("hi")], extra_body={"conversation": "conv_1"})
        proxy.chat([user("hi"), assistant("ok"), user("more")], extra_body={"conversation": "conv_1"})
        (session,) = proxy.sessions()
        assert texts(session) == ["hi", "ok", "more", "ok"]


def test_a_conversation_goes_on_after_its_last_answer_whatever_failed_meanwhile(store: Store) -> None:
    one, two, three = (Completion(text) for text in ("one", "two", "three"))
    with recording(store, ErrorReply(500), one, BrokenStream("cut"), two, three) as proxy:
        for text, is_answered in (("a", False), ("a", True), ("b", False), ("b", True), ("c", True)):
            with nullcontext() if is_answered else pytest.raises(openai.OpenAIError):
                ask_in_conversation(proxy, "conv_1", user(text))
        (session,) = proxy.sessions()
        assert texts(session) == ["a", "one", "b", "two", "c", "three"]
        assert [call.failed for call in session.model_calls()] == [True, False, True, False, False]
        assert not list(store.verify())


@pytest.mark.parametrize("is_purged", [False, True])
def test_a_sub_agent_is_recorded_although_the_session_that_called_it_was_deleted(
    store: Store, is_purged: bool
) -> None:
    prompt = "Read every file below src and list what is unused."
    call = Call("call_1", "task", json.dumps({"prompt": prompt}))
    with recording(store, Completion("", "", (call,)), Completion("nothing")) as proxy:
        proxy.chat([system("You plan."), user("clean up")])
        proxy.wait(1)
        (parent,) = proxy.recorder.sessions
        store.delete(parent)
        if is_purged:
            store.purge(parent)
        proxy.chat([system("You read."), user(prompt)])
        proxy.close()
        assert proxy.recorder.gaps == []
        (row,) = store.sessions().sessions
        assert (row.relation, texts(store.session(row.session_id))[-1]) == (None, "nothing")
        assert not list(store.verify())


def test_a_request_with_a_system_prompt_alone_leaves_no_session_running(store: Store) -> None:
    with recording(store) as proxy:
        ask_in_conversation(proxy, "conv_1", system("Say something."))
        (session,) = proxy.sessions()
        assert texts(session) == ["Say something.", "ok"]
        assert (session.row.status, session.row.holder) == ("idle", None)
        assert not list(store.verify())


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_an_answer_that_is_given_in_the_background_is_not_an_empty_one(store: Store, status: str) -> None:
    """The session had an empty answer, as if the model had said nothing."""
    later = {"id": "resp_a", "object": "response", "model": "m", "status": status, "output": []}
    with recording(store, RawReply(json.dumps(later).encode(), content_type="application/json")) as proxy:
        with openai.OpenAI(base_url=proxy.url("openai"), api_key=KEY, max_retries=0) as client:
            client.responses.create(model="m", input=[user("one")], conversation="conv_1", background=True)
        ask_in_conversation(proxy, "conv_1", user("two"))
        (session,) = proxy.sessions()
        assert texts(session) == ["one", "two", "ok"]
        facts = store.backend.journal(session.session_id)
        assert "in the background" in next(
            fact.data["why"] for fact in facts if fact.kind == "model_call_failed"
        )
        assert not list(store.verify())


def test_failures_are_recorded_as_such_and_the_next_call_goes_on(store: Store) -> None:
    replies = [ErrorReply(500, "out of order"), BrokenStream("cut"), Completion("fine")]
    with recording(store, *replies) as proxy:
        with pytest.raises(openai.InternalServerError, match="out of order"):
            proxy.chat([user("hi")])
        with pytest.raises(openai.APIConnectionError):
            proxy.chat([user("hi")])
        assert proxy.chat([user("hi")]) == "fine"
        (session,) = proxy.sessions()
        assert [call.failed for call in session.model_calls()] == [True, True, False]
        assert session.context().items[-1].message.text == "fine"
        half = [e for e in session.entries() if e.finish == "interrupted"]
        assert [e.message.text for e in half if e.message is not None] == ["once upon a time the"]
        assert session.row.status == "idle"
        assert not list(store.verify())


def test_a_server_that_is_down_is_told_as_the_reason(store: Store) -> None:
    """It was said that the program called no model."""
    with FakeProviders() as fake:
        pass  # nobody listens there any more
    with closing(Recording(store, fake)) as proxy:
        with pytest.raises(openai.InternalServerError, match="cannot be reached"):
            proxy.chat([user("hi")])
        assert proxy.sessions() == []
        (reason,) = proxy.recorder.gaps
        assert "cannot be reached" in reason


@pytest.mark.parametrize("is_stream", [False, True])
def test_text_that_was_cut_within_an_emoji_is_recorded(store: Store, is_stream: bool) -> None:
    """JavaScript writes half of one as `\\ud83d`; the request was said to be no JSON, and each that followed with it."""
    body = {"model": "m", "max_tokens": 9, "stream": is_stream, "messages": [user("cut \ud83d")]}
    block = {"type": "text", "text": "cut \ud83d"}
    message = {"id": "a", "role": "assistant", "content": [block], "stop_reason": "end_turn"}
    events = [
        {"type": "message_start", "message": {**message, "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "message_stop"},
    ]
    reply = json.dumps(message)
    if is_stream:
        reply = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    content_type = "text/event-stream" if is_stream else "application/json"
    with recording(store, RawReply(reply.encode(), content_type=content_type)) as proxy:
        request = Request(proxy.url("anthropic") + "/v1/messages", json.dumps(body).encode())
        with urlopen(request) as response:
            assert response.read() == reply.encode()
        (session,) = proxy.sessions()
        assert proxy.recorder.gaps == []
        assert texts(session) == ["cut \ufffd", "cut \ufffd"]


def test_a_compressed_request_is_recorded(store: Store) -> None:
    body = gzip.compress(json.dumps({"model": "m", "messages": [user("hi")]}).encode())
    with recording(store) as proxy:
        url = proxy.url("openai-chat") + "/chat/completions"
        with urlopen(Request(url, body, {"Content-Encoding": "gzip"})) as response:
            response.read()
        (session,) = proxy.sessions()
        assert texts(session) == ["hi", "ok"]


@pytest.mark.attack
def test_a_request_that_decompresses_to_too_much_passes_unrecorded(store: Store) -> None:
    words = {"model": "m", "messages": [user("hi")], "padding": " " * MAX_DECODED_BYTES}
    body = gzip.compress(json.dumps(words).encode())
    with recording(store, Completion("hello")) as proxy:
        url = f"{proxy.url('openai-chat')}/chat/completions"
        with urlopen(Request(url, body, {"Content-Encoding": "gzip"})) as response:
            assert b"hello" in response.read()
        assert proxy.sessions() == []
        assert proxy.recorder.gaps == ["a body of more than 64 MiB when decompressed"]


def test_a_request_that_the_server_refused_before_it_was_whole_is_told(store: Store) -> None:
    """It was said that the program sent nothing."""
    recorder = Recorder(store)
    recorder.call_ended(
        ApiCall(1, "openai-chat", "openai", None, "agent/1", 0, status=413, end="complete", ended_at=1)
    )
    assert recorder.close(20)
    assert recorder.gaps == ["the server answered 413 before the request was complete"]


def test_a_reply_that_cannot_be_read_is_told_and_leaves_no_session_running(store: Store) -> None:
    """The session was marked as running until the recorder ended."""
    with recording(store, RawReply(b'{"candidates": []}', content_type="application/json")) as proxy:
        with genai.Client(api_key=KEY, http_options=HttpOptions(base_url=proxy.url("gemini"))) as client:
            client.models.generate_content(model="m", contents="hi")
        proxy.wait(1)
        (session_id,) = proxy.recorder.sessions
        row = store.session(session_id).row
        assert (row.status, row.holder) == ("failed", None)
        assert "0 candidates" in str(row.error)
        assert len(proxy.recorder.gaps) == 1


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("provider", ["openai-chat", "gemini"])
def test_of_several_answers_the_first_is_recorded_with_the_cost_of_all(
    store: Store, provider: str, is_stream: bool
) -> None:
    """Their pieces were taken for one broken answer, or none was recorded, and nothing of their cost."""
    with recording(store, several_answers(provider, is_stream)) as proxy:
        if provider == "gemini":
            with genai.Client(api_key=KEY, http_options=HttpOptions(base_url=proxy.url("gemini"))) as client:
                ask: Any = client.models.generate_content
                if is_stream:
                    ask = client.models.generate_content_stream
                list(ask(model="gemini-2.5-pro", contents="hi", config={"candidate_count": 2}))
        else:
            with openai.OpenAI(base_url=proxy.url(provider), api_key=KEY) as sdk:
                chat: Any = sdk.chat.completions
                list(chat.create(model="gpt-4o", messages=[user("hi")], n=2, stream=is_stream))
        (session,) = proxy.sessions()
        assert (texts(session), session.row.status) == (["hi", "first"], "idle")
        assert proxy.recorder.gaps == []
        (call,) = session.model_calls()
        assert (call.usage.input_tokens, call.usage.output_tokens, call.failed) == (5, 20, False)
        assert call.price is not None


def several_answers(provider: str, is_stream: bool) -> RawReply:
    """A reply with two answers; streamed, their pieces come in turn."""
    pieces = [(0, "fir", None), (1, "oth", None), (0, "st", "STOP"), (1, "er", "STOP")]
    if not is_stream:
        pieces = [(0, "first", "STOP"), (1, "other", "STOP")]
    answers: list[dict[str, Any]] = []
    for index, text, finish in pieces:
        if provider == "gemini":
            content = {"role": "model", "parts": [{"text": text}]}
            answers.append({"index": index, "content": content, "finishReason": finish})
        else:
            key = "delta" if is_stream else "message"
            message = {"role": "assistant", "content": text}
            answers.append({"index": index, key: message, "finish_reason": finish and "stop"})
    name, about = "choices", {"id": "c", "created": 1, "model": "gpt-4o", "object": "chat.completion"}
    usage: dict[str, Any] = {"usage": {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25}}
    if provider == "gemini":
        name, about = "candidates", {"modelVersion": "gemini-2.5-pro"}
        usage = {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 20, "totalTokenCount": 25}}
    if not is_stream:
        return RawReply(
            json.dumps({**about, name: answers, **usage}).encode(), content_type="application/json"
        )
    chunks = [*({**about, name: [answer]} for answer in answers), {**about, name: [], **usage}]
    return RawReply(b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks))


def test_what_has_a_price_of_its_own_is_in_the_cost(store: Store) -> None:
    """Searches, and cache writes that are kept for an hour, cost more than their tokens."""
    usage = {
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_creation_input_tokens": 100_000,
        "cache_creation": {"ephemeral_1h_input_tokens": 100_000},
        "server_tool_use": {"web_search_requests": 3},
    }
    reply = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "found"}],
        "stop_reason": "end_turn",
        "usage": usage,
    }
    with recording(store, RawReply(json.dumps(reply).encode(), content_type="application/json")) as proxy:
        with anthropic.Anthropic(base_url=proxy.url("anthropic"), api_key=KEY) as client:
            client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "search"}])
        (session,) = proxy.sessions()
        assert session.usage().cost_microcents == 60_000_000 + 3_000_000


def test_a_whole_json_reply_is_recorded_too(store: Store) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "at once"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }
    with recording(store, RawReply(json.dumps(body).encode(), content_type="application/json")) as proxy:
        with openai.OpenAI(base_url=proxy.url("openai-chat"), api_key=KEY) as client:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        (session,) = proxy.sessions()
        assert texts(session) == ["hi", "at once"]
        assert (session.usage().input_tokens, session.usage().output_tokens) == (5, 2)


def test_another_recorder_goes_on_with_the_session(store: Store) -> None:
    with recording(store) as first:
        first.chat([user("hi")])
        (session,) = first.sessions()
    with recording(store) as second:
        second.chat([user("hi"), assistant("ok"), user("and now")])
        second.chat([user("hi")])  # the same words, in another run: another conversation
        again, other = second.sessions()
    assert again.session_id == session.session_id != other.session_id
    assert texts(again) == ["hi", "ok", "and now", "ok"]


def test_a_program_that_runs_again_and_is_answered_alike_is_a_session_of_its_own(store: Store) -> None:
    """Its second request was found in the session of the earlier run, which has the same history and more."""
    histories = [
        [user("hi")],
        [user("hi"), assistant("ok"), user("and now")],
        [user("hi"), assistant("ok"), user("and now"), assistant("ok"), user("then")],
    ]
    for _ in range(3):
        with recording(store) as proxy:
            for history in histories:
                proxy.chat(history)
            (session,) = proxy.sessions()
            assert texts(session) == ["hi", "ok", "and now", "ok", "then", "ok"]
            assert session.usage().calls == 3


def test_a_full_store_does_not_stop_the_traffic_and_the_next_request_heals_the_gap(
    store: Store,
) -> None:
    assert isinstance(store.backend, SqliteStore)
    long = "long " * 100_000
    with recording(store, *(Completion(text) for text in ("one", "two", "three"))) as proxy:
        proxy.chat([user("a")])
        proxy.wait(1)
        writer = store.backend._connections._writer
        pages = int(writer.execute("pragma page_count").get)
        writer.execute(f"pragma max_page_count = {pages}")
        assert proxy.chat([user("a"), assistant("one"), user(long)]) == "two"
        proxy.wait(2)
        assert len(proxy.recorder.gaps) == 1
        assert "no space left" in proxy.recorder.gaps[0]
        writer.execute(f"pragma max_page_count = {pages * 1000}")
        assert proxy.chat([user("a"), assistant("one"), user(long), assistant("two"), user("c")]) == "three"
        (session,) = proxy.sessions()
        assert len(proxy.recorder.gaps) == 1, proxy.recorder.gaps
        assert texts(session) == ["a", "one", long, "two", "c", "three"]
        assert session.usage().calls == 2
        assert not list(store.verify())


def test_calls_wait_for_a_store_that_is_away_which_is_told_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them waited a minute for the store, one after the other, and was lost."""
    monkeypatch.setattr(postgres_connections, "SERVER_TIMEOUT_SECONDS", 0.05)
    chat = [
        user("a"),
        assistant("one"),
        user("b"),
        assistant("two"),
        user("c"),
        assistant("three"),
        user("d"),
    ]
    answers = ("one", "two", "three", "four")
    with oakleaf.open(database.url) as store, recording(store, *map(Completion, answers)) as proxy:
        proxy.chat(chat[:1])
        proxy.wait(1)
        with database.outage():
            assert proxy.chat(chat[:3]) == "two"
            wait_until(lambda: proxy.lines)
            assert proxy.chat(chat[:5]) == "three"
        wait_until(lambda: len(proxy.lines) == 2)
        assert proxy.chat(chat) == "four"
        (session,) = proxy.sessions()
        assert texts(session) == ["a", "one", "b", "two", "c", "three", "d", "four"]
        assert (session.usage().calls, proxy.recorder.gaps) == (4, [])
        assert "too many connections" in proxy.lines[0]
        assert proxy.lines[1:] == ["the store is back, and what waited for it is recorded"]
        assert not list(store.verify())


def test_what_waits_for_a_store_that_does_not_come_back_is_recorded_elsewhere(
    database: Database, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connections, "SERVER_TIMEOUT_SECONDS", 0.05)
    with (
        oakleaf.open(database.url) as away,
        recording(away, *map(Completion, ("one", "two", "three"))) as proxy,
    ):
        proxy.chat([user("a")])
        proxy.wait(1)
        with database.outage():
            proxy.chat([user("a"), assistant("one"), user("b")])
            proxy.chat([user("x")])
            wait_until(lambda: proxy.lines)
            proxy.close()
            assert len(proxy.lines) == 1
        assert proxy.recorder.calls == 1
        spare = proxy.recorder.record_elsewhere(store)
    assert (spare.calls, spare.gaps) == (2, [])
    sessions = [store.session(session_id) for session_id in spare.sessions]
    assert [texts(session) for session in sessions] == [["a", "one", "b", "two"], ["x", "three"]]
    assert not list(store.verify())


def test_ctrl_c_stops_waiting_for_the_store_whichever_thread_gets_it(store: Store, tmp_path: Path) -> None:
    """A signal that is not delivered to the main thread, or just before it waits, does not wake it."""

    def interrupt() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with recording(store) as proxy, closing(apsw.Connection(str(tmp_path / "recorded.db"))) as other:
        other.execute("begin immediate")
        proxy.chat([user("hi")])
        thread = threading.Timer(0.1, interrupt)
        thread.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            proxy.recorder.finish(20)
        assert time.monotonic() - start < 10
        thread.join()
        other.execute("rollback")


def test_twenty_programs_at_once_keep_their_sessions_apart(store: Store) -> None:
    def talk(number: int) -> None:
        history = [user(f"program {number}")]
        for turn in range(3):
            answer = proxy.chat(history)
            history += [assistant(answer), user(f"turn {turn} of {number}")]

    with recording(store) as proxy:
        with ThreadPoolExecutor(20) as programs:
            list(programs.map(talk, range(20)))
        sessions = proxy.sessions()
        assert len(sessions) == 20
        assert proxy.recorder.calls == 60
        assert not proxy.recorder.gaps
        for session in sessions:
            number = texts(session)[0].removeprefix("program ")
            inputs = [f"program {number}", *(f"turn {turn} of {number}" for turn in range(2))]
            assert texts(session) == [text for each in inputs for text in (each, "ok")]


def test_recorders_of_one_conversation_lose_no_answer_to_each_other(store: Store) -> None:
    """Each moves the session to its own branch, so another finds it elsewhere than it left it."""

    def talk(proxy: Recording, number: int) -> None:
        history = [user("hi"), assistant("hello")]
        for turn in range(8):
            history.append(user(f"turn {turn} of {number}"))
            history.append(assistant(proxy.chat(history)))

    with recording(store) as first, recording(store) as second, recording(store) as third:
        first.chat([user("hi"), assistant("hello"), user("before")])
        first.wait(1)
        with ThreadPoolExecutor(3) as programs:
            list(programs.map(talk, (first, second, third), range(3)))
        (session,) = first.sessions()
        assert [proxy.sessions()[0].session_id for proxy in (second, third)] == [session.session_id] * 2
        assert [proxy.recorder.gaps for proxy in (first, second, third)] == [[], [], []]
        assert (session.usage().calls, session.usage().unknown_calls) == (25, 0)
        assert sum(entry.role == "assistant" for entry in session.entries()) == 26
        assert not list(store.verify())


def test_a_call_without_a_result_is_closed_when_the_program_goes_on(store: Store) -> None:
    function = {"name": "f", "arguments": "{}"}
    call = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    with recording(store, Completion("", "", (Call("call_1", "f"),))) as proxy:
        proxy.chat([user("hi")])
        with pytest.raises(
            openai.BadRequestError
        ):  # the provider refuses such a history; it is recorded all the same
            proxy.chat([user("hi"), call, user("forget it")])
        (session,) = proxy.sessions()
        results = [result for e in session.path() if e.message for result in e.message.results]
        assert [(result.call_id, result.outcome) for result in results] == [("call_1", "interrupted")]
        assert texts(session)[-1] == "forget it"
        assert [call.failed for call in session.model_calls()] == [False, True]
        assert not list(store.verify())


def test_results_find_their_calls_although_the_program_made_the_ids_anew(store: Store) -> None:
    """They were left out, and the answer to them, which had been paid for, with them."""
    calls = tuple(Call(f"call_{n}", "f", f'{{"n": {n}}}') for n in (1, 2))
    sent = [
        {"id": f"own_{call.id}", "type": "function", "function": {"name": "f", "arguments": call.arguments}}
        for call in calls
    ]
    results = [{"role": "tool", "tool_call_id": f"own_call_{n}", "content": f"result {n}"} for n in (1, 2)]
    with recording(store, Completion("", "", calls), Completion("done")) as proxy:
        proxy.chat([user("hi")])
        proxy.chat([user("hi"), {"role": "assistant", "tool_calls": sent}, *results], tools=[function("f")])
        (session,) = proxy.sessions()
        assert proxy.recorder.gaps == []
        stored = [result for entry in session.path() if entry.message for result in entry.message.results]
        assert [(result.call_id, result.content) for result in stored] == [
            ("call_1", (oakleaf.Text("result 1"),)),
            ("call_2", (oakleaf.Text("result 2"),)),
        ]
        assert texts(session)[-1] == "done"
        assert not list(store.verify())


def test_an_answer_is_recorded_although_a_call_before_it_got_no_result(store: Store) -> None:
    """Such a request is refused by the vendors and answered by other servers; the answer was not recorded."""
    result = {"type": "function_call_output", "call_id": "call_2", "output": "found"}
    with recording(store, Completion("", "", (Call("call_1", "f"), Call("call_2", "f")))) as proxy:
        ask_in_conversation(proxy, "conv_1", user("hi"))
        ask_in_conversation(proxy, "conv_1", result)
        (session,) = proxy.sessions()
        assert proxy.recorder.gaps == []
        results = [result for e in session.path() if e.message for result in e.message.results]
        assert [(result.call_id, result.outcome) for result in results] == [
            ("call_2", "done"),
            ("call_1", "interrupted"),
        ]
        assert texts(session)[-1] == "ok"
        assert not list(store.verify())


def test_a_result_of_no_call_is_left_out_and_told(store: Store) -> None:
    result = {"role": "tool", "tool_call_id": "nobody", "content": "x"}
    with recording(store) as proxy:
        with pytest.raises(openai.BadRequestError):
            proxy.chat([user("hi"), assistant("ok"), result])
        (session,) = proxy.sessions()
        assert texts(session) == ["hi", "ok"]
        assert "without an open call" in proxy.recorder.gaps[0]
        assert [call.failed for call in session.model_calls()] == [True]
        assert not list(store.verify())


def test_sessions_that_wait_are_interrupted_at_the_end_although_others_were_purged(store: Store) -> None:
    with recording(store, Completion("ok"), Completion(calls=(Call("c1", "look_up"),))) as proxy:
        proxy.chat([user("first")])
        proxy.chat([user("second")], tools=[function("look_up")])
        proxy.wait(2)
        purged, waiting = proxy.recorder.sessions
        assert store.session(waiting).row.status == "running"
        store.delete(purged)
        store.purge(purged)
        proxy.close()
        assert store.session(waiting).row.status == "interrupted"
