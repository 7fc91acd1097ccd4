"""Your own loop with the real Anthropic SDK, against a fake server on this machine.

Remove `base_url` to call the real API: the loop is the same. Needs `pip install "/path/to/oakleaf[anthropic]"`.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anthropic

import oakleaf
from oakleaf import Session, draw_tree, system

TOOLS: list[Any] = [
    {
        "name": "lookup",
        "description": "Look up an order.",
        "input_schema": {
            "type": "object",
            "properties": {"order": {"type": "integer"}},
            "required": ["order"],
        },
    }
]
ANSWERS: list[list[dict[str, Any]]] = [
    [
        {"type": "thinking", "thinking": "I should look it up.", "signature": "c2lnbmVk"},
        {"type": "tool_use", "id": "toolu_1", "name": "lookup", "input": {"order": 41}},
    ],
    [{"type": "text", "text": "Your order is on its way."}],
]


class FakeApi(BaseHTTPRequestHandler):
    """Return the two scripted answers in order and record the requests."""

    requests: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        self.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        content = ANSWERS[len(self.requests) - 1]
        reply = {
            "id": f"msg_{len(self.requests)}",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-4-5",
            "content": content,
            "stop_reason": "tool_use" if content[-1]["type"] == "tool_use" else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 120, "output_tokens": 20},
        }
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def lookup(order: int) -> dict[str, Any]:
    return {"order": order, "status": "on its way"}


def loop(client: anthropic.Anthropic, session: Session, text: str) -> None:
    with session.turn(text, tools=TOOLS) as turn:
        while not turn.done:
            for call in turn.open_tool_calls:
                turn.run(
                    call, lookup
                )  # records the start, then the result; never twice, whenever it is killed
            reply = client.messages.create(model="claude-opus-4-5", **session.request("anthropic"))
            turn.answer(reply)  # stores usage, price and the signature too


def main() -> None:
    server = HTTPServer(("127.0.0.1", 0), FakeApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with (
            oakleaf.open("memory:") as store,
            anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client,
        ):
            session = store.start("support", [system("You help customers.")])
            loop(client, session, "Where is order 41?")
            print(draw_tree(session))
            print(f"cost: {session.usage().cost_cents:.4f} cents in {session.usage().calls} calls")
            first, second = FakeApi.requests
            assert second["messages"][: len(first["messages"])] == first["messages"], (
                "the first request is a prefix of the second"
            )
            assert "c2lnbmVk" in str(second), "the signature is sent back to its issuer"
            assert "c2lnbmVk" not in str(session.messages("openai-chat")), "and to no other provider"
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
