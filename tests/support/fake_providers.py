"""Four vendors on one loopback port: they stream scripted answers to real SDKs, and refuse illegal histories.

Knows each vendor's events on the wire as its documentation shows them. A request's history is judged by the
rules in `oakleaf.wire`, and an illegal one gets the vendor's 400; one that continues what the vendor stored is not
judged. Nothing survives the `with` block.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from msgspec import Struct

from oakleaf import wire

DELTA_LENGTH = 5
USAGE = (11, 7)


class Call(Struct, frozen=True):
    id: str
    name: str
    arguments: str = "{}"
    """The arguments as the model writes them: JSON, possibly malformed."""


class Completion(Struct, frozen=True):
    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    refuses: bool = False
    is_cut_short: bool = False
    """Whether the answer stops at the token limit."""


class BrokenStream(Struct, frozen=True):
    """A stream that begins like `completion` and then fails.

    cut: the connection breaks; end: it closes cleanly, without a stop reason; nothing: it closes at once;
    garbage: a chunk that is not JSON; nonsense: JSON of another shape; trouble: the vendor reports an overload.
    """

    failure: str
    completion: Completion = Completion("once upon a time there was")


class ErrorReply(Struct, frozen=True):
    status: int
    message: str = "no"
    retry_after: str | None = None
    code: str | None = None
    is_html: bool = False


class Stall(Struct, frozen=True):
    """Send nothing until the test ends."""


class HangUp(Struct, frozen=True):
    """Close the connection without a byte of an answer, or reset it."""

    is_reset: bool = False


class RawReply(Struct, frozen=True):
    """The body of a response byte for byte, in pieces of `piece_length` bytes."""

    body: bytes
    status: int = 200
    content_type: str = "text/event-stream"
    piece_length: int = 65_536


class Redirect(Struct, frozen=True):
    """Send the client to the same address on this server; if that is by GET, the answer is a page."""

    status: int


Reply = Completion | BrokenStream | ErrorReply | Stall | HangUp | RawReply | Redirect


class ReceivedRequest(Struct, frozen=True):
    provider: str
    body: dict[str, Any]
    headers: dict[str, str]
    problems: list[str]
    raw: bytes
    path: str


class FakeProviders:
    """Answer requests with `replies` in order, whatever the provider; afterwards every answer is "ok".

    With `keeps_alive` connections stay open after an answer, as those of vendors do. `judges` whether a history is legal:
    that of another program may have fields that Oakleaf sends never.
    """

    def __init__(self, *replies: Reply, keeps_alive: bool = False, judges: bool = True) -> None:
        self.replies = list(replies)
        self.judges = judges
        self.keeps_alive = keeps_alive
        self.connections = 0
        self.requests: list[ReceivedRequest] = []
        self.bodies_of_gets: list[bytes] = []
        self.is_over = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.loopback = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def url_for(self, provider: str) -> str:
        return f"{self.url}/v1" if provider.startswith("openai") else self.url

    def bodies(self, provider: str) -> list[dict[str, Any]]:
        return [request.body for request in self.requests if request.provider == provider]

    @property
    def open_connections(self) -> int:
        return len(self._server.open_connections)

    def close_idle_connections(self) -> None:
        """Close all connections, and return when the clients' ends see it."""
        for connection in list(self._server.open_connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self._server.shutdown()
        self._server.server_close()  # waits for the threads of its connections
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128
    loopback: FakeProviders

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.open_connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self.loopback.connections += 1
        self.open_connections.append(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open_connections.remove(request)
        super().shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        loopback = self.server.loopback
        provider = _provider(self.path)
        data = self.rfile.read(int(self.headers["content-length"]))
        body = json.loads(gzip.decompress(data) if self.headers["content-encoding"] == "gzip" else data)
        body = _camel_case(body) if provider == "gemini" else body
        is_whole = loopback.judges and not (body.get("conversation") or body.get("previous_response_id"))
        problems = wire.find_provider(provider).violations(body, ready=True) if is_whole else []
        loopback.requests.append(
            ReceivedRequest(provider, body, dict(self.headers), problems, data, self.path)
        )
        reply = loopback.replies.pop(0) if loopback.replies else Completion("ok")
        if problems:
            reply = ErrorReply(400, problems[0])
        if isinstance(reply, Stall):
            loopback.is_over.wait(30)
            self.close_connection = True
        elif isinstance(reply, HangUp):
            self._hang_up(reply)
        elif isinstance(reply, ErrorReply):
            self._refuse(provider, reply)
        elif isinstance(reply, RawReply):
            self._send_raw(reply)
        elif isinstance(reply, Redirect):
            self.send_response(reply.status)
            self.send_header("location", self.path)
            self.send_header("content-length", "0")
            self.end_headers()
        else:
            self._stream(provider, reply, len(loopback.requests))

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        self.server.loopback.bodies_of_gets.append(body)
        self._send_raw(RawReply(b"<html><title>Log in</title></html>", 403, "text/html"))

    def _hang_up(self, reply: HangUp) -> None:
        self.close_connection = True
        if reply.is_reset:  # also for the server's own end, which shuts it down before it closes it
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def _refuse(self, provider: str, reply: ErrorReply) -> None:
        body = b"<html>Bad Gateway</html>" if reply.is_html else json.dumps(_error(provider, reply)).encode()
        self.send_response(reply.status)
        self.send_header("content-type", "text/html" if reply.is_html else "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        if reply.retry_after is not None:
            self.send_header("retry-after", reply.retry_after)
        self.end_headers()
        self.wfile.write(body)

    def _send_raw(self, reply: RawReply) -> None:
        self.send_response(reply.status)
        self.send_header("content-type", reply.content_type)
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        for at in range(0, len(reply.body), reply.piece_length):
            piece = reply.body[at : at + reply.piece_length]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _stream(self, provider: str, reply: Completion | BrokenStream, number: int) -> None:
        says = reply if isinstance(reply, Completion) else reply.completion
        how = reply.failure if isinstance(reply, BrokenStream) else ""
        events = list(STREAMS[provider](says, number))
        if how:
            events = [] if how == "nothing" else events[: len(events) // 2]
            events.extend(_failure_events(provider, how))
        is_bedrock = self.path.endswith("/invoke-with-response-stream")
        kind = "application/vnd.amazon.eventstream" if is_bedrock else "text/event-stream"
        events = [_aws_message(event) for event in events] if is_bedrock else events
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        if not self.server.loopback.keeps_alive:
            self.send_header("connection", "close")
        self.end_headers()
        try:
            for event in events:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            if how == "cut":
                self.connection.shutdown(socket.SHUT_RDWR)
            else:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the client closed the connection
            self.close_connection = True


def _provider(path: str) -> str:
    path = path.partition("?")[0]
    if path.endswith(("/messages", "/invoke-with-response-stream", ":streamRawPredict")):
        return "anthropic"
    if path.endswith("/chat/completions"):
        return "openai-chat"
    return "openai" if path.endswith("/responses") else "gemini"


def _camel_case(value: Any) -> Any:
    """Return a request with the names of Gemini's documentation. Its API knows each name in snake case too."""
    if isinstance(value, list):
        return [_camel_case(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = {re.sub("_([a-z])", lambda match: match[1].upper(), name): name for name in value}
    return {
        name: value[was] if name in _DATA_OF_GEMINI else _camel_case(value[was])
        for name, was in names.items()
    }


_DATA_OF_GEMINI = ("args", "response", "parametersJsonSchema", "responseJsonSchema")


def _aws_message(event: bytes) -> bytes:
    """Return an event of Anthropic's as a message of Bedrock's binary stream."""
    data = event.partition(b"data: ")[2].strip()
    names = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        bytes([len(name)]) + name.encode() + struct.pack(">BH", 7, len(value)) + value.encode()
        for name, value in names.items()
    )
    payload = json.dumps({"bytes": base64.b64encode(data).decode()}).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))


def _error(provider: str, reply: ErrorReply) -> dict[str, Any]:
    if provider == "anthropic":
        return {"type": "error", "error": {"type": reply.code or "an_error", "message": reply.message}}
    if provider == "gemini":
        return {"error": {"code": reply.status, "message": reply.message, "status": "SOME_STATUS"}}
    return {"error": {"message": reply.message, "type": "an_error", "param": None, "code": reply.code}}


def _failure_events(provider: str, how: str) -> list[bytes]:
    kind = b"event: content_block_delta\n" if provider == "anthropic" else b""
    if how == "garbage":
        return [kind + b'data: {"type": "content_block_delta", "del\n\n']
    if how == "nonsense":
        return [
            kind + b'data: {"type": "content_block_delta", "choices": 7, "candidates": "x", "index": 99}\n\n'
        ]
    if how == "trouble" and provider == "anthropic":
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        return [_sse(error, "error")]
    if how == "trouble" and provider == "openai":
        error = {"code": "server_error", "message": "The server had an error"}
        return [_sse({"type": "response.failed", "response": _response([], "failed", 1) | {"error": error}})]
    if how == "trouble":
        return [_sse({"error": {"code": 503, "message": "overloaded", "type": "server_error"}})]
    return []


def _sse(data: dict[str, Any], event: str | None = None) -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def _split(text: str) -> list[str]:
    return [text[at : at + DELTA_LENGTH] for at in range(0, len(text), DELTA_LENGTH)]


def signature(provider: str, number: int) -> str:
    return f"SIG-{provider}-{number};"


def sent_tools(provider: str, body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the name and description of each tool of a request."""
    tools = body.get("tools", [])
    if provider == "gemini":
        tools = [one for tool in tools for one in tool["functionDeclarations"]]
    functions = [tool["function"] if provider == "openai-chat" else tool for tool in tools]
    return [(function["name"], function["description"]) for function in functions]


def forbids_calls(provider: str, body: dict[str, Any]) -> bool:
    if provider == "gemini":
        return body.get("toolConfig") == {"functionCallingConfig": {"mode": "NONE"}}
    return body.get("tool_choice") == ({"type": "none"} if provider == "anthropic" else "none")


# -- Anthropic's Messages --------------------------------------------------------------------------


def _anthropic(says: Completion, number: int) -> Iterator[bytes]:
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "claude-loopback",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": USAGE[0], "output_tokens": 1, "cache_read_input_tokens": 3},
    }
    yield _event(type="message_start", message=message)
    yield _event(type="ping")
    blocks = list(_anthropic_blocks(says, number))
    for index, (block, deltas) in enumerate(blocks):
        yield _event(type="content_block_start", index=index, content_block=block)
        for delta in deltas:
            yield _event(type="content_block_delta", index=index, delta=delta)
        yield _event(type="content_block_stop", index=index)
    stop = "refusal" if says.refuses else "max_tokens" if says.is_cut_short else "end_turn"
    stop = "tool_use" if says.calls and stop == "end_turn" else stop
    delta = {"stop_reason": stop, "stop_sequence": None}
    yield _event(type="message_delta", delta=delta, usage={"output_tokens": USAGE[1]})
    yield _event(type="message_stop")


def _anthropic_blocks(says: Completion, number: int) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    if says.reasoning:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _split(says.reasoning)]
        deltas.append({"type": "signature_delta", "signature": signature("anthropic", number)})
        yield {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if says.text:
        yield (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": piece} for piece in _split(says.text)],
        )
    for call in says.calls:
        pieces = ["", *_split(call.arguments)] if call.arguments != "{}" else [""]
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, deltas


def _event(**data: Any) -> bytes:
    return _sse(data, data["type"])


# -- OpenAI's Chat Completions ---------------------------------------------------------------------


def _chat(says: Completion, number: int) -> Iterator[bytes]:
    yield chunk({"role": "assistant", "content": ""})
    for piece in _split(says.reasoning):
        yield chunk({"reasoning_content": piece})
    for piece in _split(says.text):
        yield chunk({"refusal" if says.refuses else "content": piece})
    for index, call in enumerate(says.calls):
        function = {"name": call.name, "arguments": ""}
        yield chunk(
            {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}
        )
    for piece, index in _interleaved([_split(call.arguments) for call in says.calls]):
        yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    stop = "length" if says.is_cut_short else "tool_calls" if says.calls else "stop"
    yield chunk({}, finish_reason=stop)
    usage = {"prompt_tokens": USAGE[0], "completion_tokens": USAGE[1], "total_tokens": sum(USAGE)}
    yield _sse({**_CHUNK, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


_CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-loopback"}


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    return _sse({**_CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def _interleaved(rows: list[list[str]]) -> Iterator[tuple[str, int]]:
    for at in range(max(map(len, rows), default=0)):
        yield from ((row[at], index) for index, row in enumerate(rows) if at < len(row))


# -- OpenAI's Responses ----------------------------------------------------------------------------


def _responses(says: Completion, number: int) -> Iterator[bytes]:
    output = _output(says, number)
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": _response([], "in_progress", number)}
    ]
    for index, item in enumerate(output):
        where = {"output_index": index, "item_id": item["id"]}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        if item["type"] == "reasoning":
            kind, pieces = "response.reasoning_summary_text.delta", _split(says.reasoning)
        elif item["type"] == "message":
            kind = "response.refusal.delta" if says.refuses else "response.output_text.delta"
            pieces = _split(says.text)
        else:
            kind, pieces = "response.function_call_arguments.delta", _split(item["arguments"])
        more = {"summary_index": 0, "content_index": 0, "logprobs": []}
        events.extend({"type": kind, **where, **more, "delta": piece} for piece in pieces)
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    status = "incomplete" if says.is_cut_short else "completed"
    events.append({"type": f"response.{status}", "response": _response(output, status, number)})
    for at, event in enumerate(events):
        yield _sse({**event, "sequence_number": at}, event["type"])


def _output(says: Completion, number: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if says.reasoning:
        reasoning: dict[str, Any] = {"type": "reasoning", "id": f"rs_{number}"}
        reasoning["summary"] = [{"type": "summary_text", "text": says.reasoning}]
        items.append(reasoning | {"encrypted_content": signature("openai", number)})
    if says.text:
        text = {"type": "output_text", "text": says.text, "annotations": [], "logprobs": []}
        part = {"type": "refusal", "refusal": says.text} if says.refuses else text
        done = {"role": "assistant", "status": "completed", "content": [part]}
        items.append({"type": "message", "id": f"msg_{number}", **done})
    for at, call in enumerate(says.calls):
        base = {"call_id": call.id, "name": call.name, "arguments": call.arguments, "status": "completed"}
        items.append({"type": "function_call", "id": f"fc_{number}_{at}", **base})
    return items


def _response(output: list[dict[str, Any]], status: str, number: int) -> dict[str, Any]:
    usage = {"input_tokens": USAGE[0], "output_tokens": USAGE[1], "total_tokens": sum(USAGE)}
    details = {"input_tokens_details": {"cached_tokens": 3}, "output_tokens_details": {"reasoning_tokens": 1}}
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "model": "gpt-loopback",
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if status == "in_progress" else usage | details,
    }


# -- Gemini's streamGenerateContent ----------------------------------------------------------------


def _gemini(says: Completion, number: int) -> Iterator[bytes]:
    sealed = base64.b64encode(signature("gemini", number).encode()).decode()
    for piece in _split(says.reasoning):
        yield _candidate([{"text": piece, "thought": True}])
    for piece in _split(says.text):
        yield _candidate([{"text": piece}])
    for at, call in enumerate(says.calls):
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            arguments = {"text": call.arguments}
        part: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}
        yield _candidate([part | {"thoughtSignature": sealed} if says.reasoning and at == 0 else part])
    last = [{"text": "", "thoughtSignature": sealed}] if says.reasoning and not says.calls else []
    yield _candidate(last, "SAFETY" if says.refuses else "MAX_TOKENS" if says.is_cut_short else "STOP")


def _candidate(parts: list[dict[str, Any]], finish: str | None = None) -> bytes:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts} if parts else {}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    usage = {"promptTokenCount": USAGE[0], "candidatesTokenCount": USAGE[1], "totalTokenCount": sum(USAGE)}
    return _sse({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-loopback"})


STREAMS = {"anthropic": _anthropic, "openai-chat": _chat, "openai": _responses, "gemini": _gemini}
