"""Answers with blocks of tools that the provider runs, as each provider writes them; also as strategies of random ones."""

from __future__ import annotations

import base64
from typing import Any

from hypothesis import strategies as st

from support.random_logs import PNG

Block = dict[str, Any]

PNG_64 = base64.b64encode(PNG).decode()
CITATION = {
    "type": "web_search_result_location",
    "url": "https://x/cats",
    "title": "Cats",
    "encrypted_index": "RW5j",
    "cited_text": "Cats sleep.",
}
SEARCH_RESULT = {
    "type": "web_search_result",
    "url": "https://x/cats",
    "title": "Cats",
    "encrypted_content": "RW5jcnlwdGVk",
    "page_age": None,
}


def anthropic_pairs(number: int) -> list[list[Block]]:
    """Calls of Anthropic's tools with their results, and blocks that stand alone."""
    use = {"type": "server_tool_use", "id": f"srvtoolu_{number}"}
    mcp = {"id": f"mcptoolu_{number}", "name": "look", "server_name": "shop", "input": {"order": 41}}
    answers = {"tool_use_id": f"srvtoolu_{number}"}
    ran = {"type": "code_execution_result", "stdout": "2\n", "stderr": "", "return_code": 0, "content": []}
    failed = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    says = {
        "tool_use_id": f"mcptoolu_{number}",
        "is_error": False,
        "content": [{"type": "text", "text": "lost"}],
    }
    return [
        [
            use | {"name": "web_search", "input": {"query": "cats"}},
            {"type": "web_search_tool_result", **answers, "content": [SEARCH_RESULT]},
        ],
        [
            use | {"name": "web_search", "input": {"query": "more"}, "caller": {"type": "direct"}},
            {"type": "web_search_tool_result", **answers, "content": failed},
        ],
        [
            use | {"name": "code_execution", "input": {"code": "print(1 + 1)"}},
            {"type": "code_execution_tool_result", **answers, "content": ran},
        ],
        [{"type": "mcp_tool_use", **mcp}, {"type": "mcp_tool_result", **says}],
        [{"type": "container_upload", "file_id": f"file_{number}"}],
        [{"type": "block_of_a_newer_api", "number": number, "deep": [{"x": None}]}],
        [{"type": "text", "text": f"Cats sleep {number}.", "citations": [CITATION]}],
        [{"type": "text", "text": f"plain {number}"}],
        [{"type": "thinking", "thinking": "hm", "signature": f"SIG{number}"}],
        [{"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": {"x": number}}],
        [
            {
                "type": "tool_use",
                "id": f"toolu_{number}",
                "name": "f",
                "input": {},
                "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_0"},
            }
        ],
    ]


def openai_items(number: int) -> list[list[Block]]:
    page = {"type": "open_page", "url": "https://x"}
    search = {"type": "search", "query": "cats", "sources": [{"type": "url", "url": "https://x/cats"}]}
    cited = {"type": "url_citation", "start_index": 0, "end_index": 4, "title": "Cats", "url": "https://x"}
    text = {"type": "output_text", "text": f"Cats {number}.", "annotations": [cited]}
    mcp = {"server_label": "shop", "name": "look", "arguments": "{}"}
    code = {"code": "print(2)", "container_id": "c", "outputs": [{"type": "logs", "logs": "2"}]}
    done = {"status": "completed"}
    return [
        [{"type": "web_search_call", "id": f"ws_{number}", **done, "action": search}],
        [{"type": "web_search_call", "id": f"ws_{number}", **done, "action": page}],
        [{"type": "file_search_call", "id": f"fs_{number}", **done, "queries": ["cats"], "results": None}],
        [{"type": "code_interpreter_call", "id": f"ci_{number}", **done, **code}],
        [{"type": "image_generation_call", "id": f"ig_{number}", **done, "result": PNG_64}],
        [{"type": "mcp_call", "id": f"mcp_{number}", **mcp, "output": "lost", "error": None}],
        [{"type": "mcp_list_tools", "id": f"mcpl_{number}", "server_label": "shop", "tools": []}],
        [{"type": "item_of_a_newer_api", "id": f"new_{number}", "deep": [{"x": None}]}],
        [{"type": "message", "id": f"msg_{number}", "role": "assistant", **done, "content": [text]}],
        [
            {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                **done,
                "content": [{"type": "refusal", "refusal": "no"}],
            }
        ],
        [
            {
                "type": "custom_tool_call",
                "id": f"ctc_{number}",
                "call_id": f"call_{number}",
                "name": "patch",
                "input": "*** Begin",
            }
        ],
        [
            {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": "f",
                "arguments": '{"x":1}',
            }
        ],
        [
            {
                "type": "reasoning",
                "id": f"rs_{number}",
                "summary": [{"type": "summary_text", "text": t} for t in ("one", "two")],
                "encrypted_content": "ENC",
            },
            {"type": "web_search_call", "id": f"ws_{number}", **done, "action": search},
        ],
    ]


def gemini_parts(number: int) -> list[list[Block]]:
    signed = {"thoughtSignature": base64.b64encode(f"sig{number}".encode()).decode()}
    return [
        [{"executableCode": {"language": "PYTHON", "code": "print(2)"}, **signed}],
        [{"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2\n"}}],
        [{"inlineData": {"mimeType": "image/png", "data": PNG_64}, **signed}],
        [{"inlineData": {"mimeType": "image/png", "data": PNG_64}}],
        [{"fileData": {"mimeType": "video/mp4", "fileUri": f"https://x/files/{number}"}}],
        [{"toolCall": {"id": f"t{number}", "toolType": "GOOGLE_SEARCH_WEB", "args": {"snake_case": 1}}}],
        [{"partOfANewerApi": {"x": number}, **signed}],
        [{"text": f"plain {number}"}],
        [{"text": f"signed {number}", **signed}],
        [{"text": "hm", "thought": True, **signed}],
        [{"functionCall": {"id": f"call{number}", "name": "f", "args": {"x": 1}}, **signed}],
    ]


GROUPS = {"anthropic": anthropic_pairs, "openai": openai_items, "gemini": gemini_parts}


@st.composite
def random_blocks(draw: st.DrawFn, provider: str) -> list[Block]:
    """Draw the blocks of an answer: calls with their results, text, reasoning, tool calls."""
    make = GROUPS[provider]
    choices = draw(st.lists(st.integers(0, len(make(0)) - 1), min_size=1, max_size=6))
    blocks = [block for number, choice in enumerate(choices, 1) for block in make(number)[choice]]
    if provider == "anthropic" and blocks[-1]["type"] == "thinking":
        blocks.append({"type": "text", "text": "end"})
    return blocks


def reply(provider: str, blocks: list[Block], finish: str | None = None) -> dict[str, Any]:
    """Return a whole reply with these blocks."""
    if provider == "anthropic":
        usage = {"input_tokens": 10, "output_tokens": 5}
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
        return {**head, "content": blocks, "stop_reason": finish or "end_turn", "usage": usage}
    if provider == "openai":
        return {"object": "response", "status": "completed", "model": "gpt-5", "output": blocks}
    candidate = {"content": {"role": "model", "parts": blocks}, "finishReason": finish or "STOP"}
    return {"candidates": [candidate], "modelVersion": "gemini-2.5-pro"}
