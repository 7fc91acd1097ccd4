"""Anthropic's Messages API: its rules, the projection that obeys them, and reading its own types."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from oakleaf.core.context import build_context
from oakleaf.core.entries import Evidence, Note
from oakleaf.core.messages import (
    Attachment,
    Media,
    Message,
    ProviderBlock,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.core.usage import Usage
from oakleaf.errors import UnrecognizedReply
from oakleaf.wire import find_provider, parse_reply
from oakleaf.wire.anthropic.request import OPENING
from oakleaf.wire.anthropic.rules import violations
from oakleaf.wire.tool_pairs import EMPTY_MESSAGE, MEDIA_HEADING, NO_OUTPUT, NO_RESULT
from support.random_logs import PNG, blobs, entries, path_of

TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
PNG64 = base64.b64encode(PNG).decode()


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def use(call_id: str = "a", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {}, **more}


def result(call_id: str = "a", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": [text("r")], **more}


def image(mime: str = "image/png", data: str = PNG64) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}}


def u(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def a(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


HI, YES = u(text("hi")), a(text("yes"))
THINKING = {"type": "thinking", "thinking": "hm", "signature": "s"}

REJECTED = {
    "first message is the assistant's": [YES],
    "an image of the system": [HI, {"role": "system", "content": [image()]}],
    "a message that is no object": ["hi"],
    "an extra field of a message": [{**HI, "details": {}}],
    "an extra field of a block": [u({**text("x"), "details": 1})],
    "no content": [{"role": "user"}],
    "null content": [{"role": "user", "content": None}],
    "an empty list as content": [u()],
    "empty string as content": [{"role": "user", "content": ""}],
    "empty text block": [u(text(""))],
    "whitespace-only text block": [u(text(" \n"))],
    "text that is no text": [u({"type": "text", "text": 7})],
    "tool_use of the user": [u(use()), YES],
    "tool_result of the assistant": [HI, a(result())],
    "image of the assistant": [HI, a(image())],
    "call without result at the end": [HI, a(use())],
    "call without result before text": [HI, a(use()), HI],
    "one of two calls without result": [HI, a(use("a"), use("b")), u(result("a"))],
    "result one message too late": [HI, a(use()), HI, YES, u(result())],
    "result without call": [u(result()), YES],
    "result of another call": [HI, a(use("a")), u(result("a"), result("b"))],
    "two results for a call": [HI, a(use()), u(result(), result())],
    "result after text": [HI, a(use()), u(text("x"), result())],
    "text between results": [HI, a(use("a"), use("b")), u(result("a"), text("x"), result("b"))],
    "same id twice in a message": [HI, a(use(), use()), u(result())],
    "same id twice in a history": [HI, a(use()), u(result()), a(use()), u(result())],
    "empty id": [HI, a(use("")), u(result(""))],
    "id with a dot": [HI, a(use("a.b")), u(result("a.b"))],
    "id with a newline at its end": [HI, a(use("a\n")), u(result("a\n"))],
    "id of 65 characters": [HI, a(use("a" * 65)), u(result("a" * 65))],
    "tool name with a dot": [HI, a(use(name="fs.read")), u(result())],
    "tool name of 129 characters": [HI, a(use(name="n" * 129)), u(result())],
    "no tool name": [HI, a(use(name="")), u(result())],
    "input is text": [HI, a(use(input="{}")), u(result())],
    "input is a list": [HI, a(use(input=[])), u(result())],
    "error without content": [HI, a(use()), u(result(content=[], is_error=True))],
    "error with an image": [HI, a(use()), u(result(content=[image()], is_error=True))],
    "is_error is text": [HI, a(use()), u(result(is_error="yes"))],
    "blank text in a result": [HI, a(use()), u(result(content=[text(" ")]))],
    "tool_use in a result": [HI, a(use()), u(result(content=[use()]))],
    "thinking without signature": [HI, a({"type": "thinking", "thinking": "x"}, text("y"))],
    "thinking with empty signature": [HI, a({**THINKING, "signature": ""}, text("y"))],
    "thinking at the end": [HI, a(text("x"), THINKING)],
    "thinking alone": [HI, a(THINKING)],
    "redacted thinking at the end": [HI, a(text("x"), {"type": "redacted_thinking", "data": "d"})],
    "redacted thinking without data": [HI, a({"type": "redacted_thinking"}, text("x"))],
    "thinking of the user": [u(THINKING, text("x"))],
    "image of a type not taken": [u(image("image/tiff"))],
    "image that is another type": [u(image("image/jpeg"))],
    "image that is no base64": [u(image(data="iVBORw0KGgo!"))],
    "image without bytes": [u(image(data=""))],
    "image over 5 MB of base64": [u(image(data="iVBORw0KGgoA" + "AAAA" * 1_310_720))],
    "document that is no PDF": [u({"type": "document", "source": image()["source"]})],
    "trailing whitespace at the end": [HI, a(text("yes "))],
    "trailing newline at the end of a string": [HI, {"role": "assistant", "content": "yes\n"}],
}

ACCEPTED = {
    "a message of the system": [HI, YES, {"role": "system", "content": "x"}, HI],
    "two user messages in a row": [HI, HI],
    "two assistant messages in a row": [HI, YES, YES],
    "nothing yet": [],
    "a question": [HI],
    "strings as content": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}],
    "results first, then text": [
        HI,
        a(text("x"), use("a"), use("b")),
        u(result("a"), result("b"), text("y")),
    ],
    "results in another order": [HI, a(use("a"), use("b")), u(result("b"), result("a"))],
    "a result without content": [HI, a(use()), u({"type": "tool_result", "tool_use_id": "a"})],
    "thinking before a call": [HI, a(THINKING, use()), u(result())],
    "thinking that is only a signature": [HI, a({**THINKING, "thinking": ""}, text("x"))],
    "an image in a result": [HI, a(use()), u(result(content=[image()]))],
    "id of 64 characters": [HI, a(use("a" * 64)), u(result("a" * 64))],
    "trailing whitespace that is not at the end": [HI, a(text("yes ")), HI],
}


class TestRules:
    @pytest.mark.parametrize("messages", REJECTED.values(), ids=REJECTED)
    def test_refused_histories_are_found(self, messages):
        assert violations({"messages": messages, "tools": TOOLS}) != []

    @pytest.mark.parametrize("messages", ACCEPTED.values(), ids=ACCEPTED)
    def test_accepted_histories_have_no_violations(self, messages):
        assert violations({"messages": messages, "tools": TOOLS}) == []

    @pytest.mark.parametrize("prompt", ["", " ", [], [text("")], [image()], None, 7])
    def test_a_system_prompt_is_text_and_not_blank(self, prompt):
        assert violations({"system": prompt, "messages": [HI]}) != []

    @pytest.mark.parametrize("prompt", ["be kind", [text("be"), text("kind")]])
    def test_a_system_prompt_may_be_a_string_or_blocks(self, prompt):
        assert violations({"system": prompt, "messages": [HI]}) == []

    def test_a_request_without_messages_is_found(self):
        assert violations({}) == ["messages: not a list"]

    @pytest.mark.parametrize("messages", [[], [HI, YES]])
    def test_a_ready_history_ends_with_the_user(self, messages):
        assert violations({"messages": messages, "tools": TOOLS}) == []
        assert violations({"messages": messages, "tools": TOOLS}, ready=True) != []
        assert violations({"messages": [HI]}, ready=True) == []

    @pytest.mark.parametrize("name", ["", "fs.read", "größe", "n" * 129])
    def test_names_of_tools_are_legal_and_unique(self, name):
        assert violations({"tools": [{**TOOLS[0], "name": name}], "messages": [HI]}) != []
        assert violations({"tools": [*TOOLS, *TOOLS], "messages": [HI]}) != []

    @pytest.mark.parametrize("tools", [{}, {"tools": []}])
    def test_a_history_with_calls_and_a_forced_choice_need_tools(self, tools):
        messages = [HI, a(use()), u(result())]
        assert violations({"messages": messages, **tools}) != []
        assert violations({"messages": messages, "tools": TOOLS, "tool_choice": {"type": "none"}}) == []
        assert violations({"messages": [HI], **tools, "tool_choice": {"type": "any"}}) != []
        assert violations({"messages": [HI], **tools, "tool_choice": {"type": "auto"}}) == []


def project(*payloads: Any, seeds: int = 0) -> dict[str, Any]:
    request = find_provider("anthropic").project(build_context(path_of(*payloads, seeds=seeds)), blobs)
    assert violations(request) == []
    return request


def messages(*payloads: Any, seeds: int = 0) -> list[dict[str, Any]]:
    return project(*payloads, seeds=seeds)["messages"]


def with_evidence(message: Message, issuer: str, **parts: dict[str, Any]) -> list[dict[str, Any]]:
    evidence = Evidence(issuer, {key.strip("_"): proof for key, proof in parts.items()})
    path = entries([(user("hi"), None), (message, evidence)])
    request = find_provider("anthropic").project(build_context(path), blobs)
    assert violations(request) == []
    return request["messages"][1:]


class TestProjection:
    def test_the_system_prompt_stands_at_the_top(self):
        assert project(system("be kind"), system(" "), user("hi")) == {
            "system": [text("be kind")],
            "messages": [HI],
            "max_tokens": 8192,
        }

    def test_without_a_system_prompt_there_is_no_such_field(self):
        assert "system" not in project(user("hi"))

    def test_a_system_message_on_the_way_is_told_apart_from_the_user(self):
        output = messages(user("hi"), assistant("yes"), system("now be brief"), user("go"))
        assert output[2] == u(text("<system>\nnow be brief\n</system>"), text("go"))

    def test_a_window_that_begins_with_the_assistant_gets_an_opening(self):
        assert messages(assistant("yes"), user("hi"))[0] == u(text(OPENING))

    def test_results_stand_in_call_order(self):
        calls = assistant(ToolCall("a", "f"), ToolCall("b", "f"))
        output = messages(
            user("hi"), calls, tool_result("b", "B"), Note(), tool_result("a", "A"), user("so?")
        )
        assert output[2] == u(result("a", content=[text("A")]), result("b", content=[text("B")]), text("so?"))

    def test_a_call_that_never_got_a_result_says_so(self):
        output = messages(
            user("hi"), assistant(ToolCall("a", "f"), ToolCall("b", "f")), tool_result("b", "B")
        )
        assert output[2]["content"][0] == result("a", content=[text(NO_RESULT)], is_error=True)
        assert output[2]["content"][1] == result("b", content=[text("B")])

    def test_two_calls_of_the_same_id_are_answered_in_order(self):
        calls = assistant(ToolCall("a", "f", {"n": 1}), ToolCall("a", "f", {"n": 2}))
        output = messages(user("hi"), calls, tool_result("a", "one"), tool_result("a", "two"))
        first, second = output[1]["content"]
        assert first["id"] == "a" != second["id"]
        assert output[2] == u(result("a", content=[text("one")]), result(second["id"], content=[text("two")]))

    def test_a_derived_id_depends_on_the_place_only(self):
        call = assistant(ToolCall("x" * 512, "f"))
        first = messages(user("hi"), call, tool_result("x" * 512, "r"))
        later = messages(user("hi"), call, tool_result("x" * 512, "r"), call, tool_result("x" * 512, "r"))
        assert later[:3] == first
        assert later[3]["content"][0]["id"] != first[1]["content"][0]["id"]

    def test_names_and_malformed_arguments_are_made_legal(self):
        call = messages(user("hi"), assistant(ToolCall("a", "fs.réad", malformed='{"x')))[1]["content"][0]
        assert (call["name"], call["input"]) == ("fs_r_ad", {"malformed_arguments": '{"x'})

    def test_arguments_keep_the_order_of_their_keys(self):
        call = messages(user("hi"), assistant(ToolCall("a", "f", {"z": 1, "a": 2})))[1]["content"][0]
        assert list(call["input"]) == ["z", "a"]

    def test_blank_texts_go_and_an_answer_of_nothing_goes_whole(self):
        assert messages(user("hi"), assistant("", " \n"), user("x", "")) == [u(text("hi"), text("x"))]

    def test_an_empty_input_is_not_lost(self):
        assert messages(user(" ")) == [u(text(EMPTY_MESSAGE))]

    def test_every_answer_is_trimmed(self):
        output = messages(user("hi "), assistant("yes \n"), user("x"))
        assert output[:2] == [u(text("hi ")), YES]

    @pytest.mark.parametrize("outcome", ["unknown", "denied", "interrupted", "dry_run"])
    def test_an_outcome_that_is_not_done_is_told_with_the_content(self, outcome):
        result = tool_result("a", "half", outcome=outcome)
        content = messages(user("hi"), assistant(ToolCall("a", "f")), result)[2]["content"][0]["content"]
        assert content[0]["text"].startswith(
            "[" + {"unknown": "outcome", "dry_run": "dry run"}.get(outcome, outcome)
        )
        assert content[1] == text("half")

    def test_an_error_without_words_has_some(self):
        output = messages(user("hi"), assistant(ToolCall("a", "f")), tool_result("a", error=True))
        assert output[2] == u(result("a", content=[text(NO_OUTPUT)], is_error=True))

    def test_media_of_an_error_follow_the_results(self):
        result = tool_result("a", ["bad", Media("png", "image/png", 32)], error=True)
        output = messages(user("hi"), assistant(ToolCall("a", "f")), result)[2]["content"]
        assert output[0]["content"] == [text("bad"), text("[media: shown below]")]
        assert output[1:] == [text(MEDIA_HEADING), image()]

    def test_images_and_pdfs_are_shown_and_the_rest_is_named(self):
        output = messages(
            user(
                Media("png", "image/png", 32),
                Media("pdf", "application/pdf", 16),
                Media("sound", "audio/wav", 12_345, "a.wav"),
                Media("gone", "image/png", 9_999),
                Media("lie", "image/png", 25),
            )
        )[0]["content"]
        assert [block["type"] for block in output] == ["image", "document", "text", "text", "text"]
        assert output[2] == text("[audio/wav, 12,345 bytes, a.wav: not shown]")
        assert output[3] == text("[image/png, 9,999 bytes: is missing]")
        assert output[4] == text("[image/png, 25 bytes: not shown]")

    def test_an_image_too_large_is_named_instead(self):
        """5 MB are counted on the base64: 4 MB of bytes are too many already."""
        context = build_context(path_of(user(Media("big", "image/png", 4 * 1024 * 1024))))
        for size, kind in ((5 * 1024 * 1024 * 3 // 4, "image"), (4 * 1024 * 1024, "text")):
            request = find_provider("anthropic").project(context, lambda _, size=size: PNG.ljust(size, b"\0"))
            assert request["messages"][0]["content"][0]["type"] == kind
            assert violations(request) == []

    def test_media_of_an_answer_are_named(self):
        output = messages(user("hi"), assistant(Media("png", "image/png", 32)))
        assert output[1] == a(text("[image/png, 32 bytes: not shown]"))

    def test_a_result_whose_call_was_cut_off_stays_as_text(self):
        path = path_of(
            user("hi"), assistant(ToolCall("a", "f")), tool_result("a", "precious"), assistant("yes")
        )
        request = find_provider("anthropic").project(build_context(path[2:]), blobs)
        assert request["messages"] == []  # half a turn is dropped by the context …
        items = build_context(path).items[2:]
        context = type(build_context(path))((), items)
        request = find_provider("anthropic").project(context, blobs)[
            "messages"
        ]  # … and bearable if it is not
        assert request[0]["content"][1] == text("precious")
        assert violations({"messages": request}) == []


class TestThinking:
    def test_thinking_goes_back_with_the_signature(self):
        message = assistant(Reasoning("hm"), Text("yes"))
        assert with_evidence(message, "anthropic", _0={"signature": "s"}) == [a(THINKING, text("yes"))]

    def test_thinking_without_text_goes_back_by_signature(self):
        output = with_evidence(assistant(Reasoning(), Text("yes")), "anthropic", _0={"signature": "s"})
        assert output == [a({**THINKING, "thinking": ""}, text("yes"))]

    def test_redacted_thinking_goes_back_unchanged(self):
        output = with_evidence(assistant(Reasoning(), Text("yes")), "anthropic", _0={"data": "d"})
        assert output == [a({"type": "redacted_thinking", "data": "d"}, text("yes"))]

    @pytest.mark.parametrize("issuer", ["openai-chat", "openai", "gemini"])
    def test_the_thinking_of_others_is_dropped(self, issuer):
        message = assistant(Reasoning("hm"), Text("yes"))
        assert with_evidence(message, issuer, _0={"signature": "s"}) == [YES]

    def test_thinking_without_a_signature_is_dropped(self):
        assert messages(user("hi"), assistant(Reasoning("hm"), Text("yes")))[1:] == [YES]

    def test_an_answer_does_not_end_in_thinking(self):
        message = assistant(Text("yes"), Reasoning("hm"))
        assert with_evidence(message, "anthropic", _1={"signature": "s"}) == [YES]

    def test_an_answer_of_thinking_alone_is_dropped(self):
        assert with_evidence(assistant(Reasoning("hm")), "anthropic", _0={"signature": "s"}) == []


@pytest.mark.extra
class TestReading:
    def reply(self, *content: dict[str, Any], **more: Any) -> Any:
        from anthropic import types as types

        usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100}
        usage["cache_creation_input_tokens"] = 20
        return types.Message(
            id="msg_1",
            type="message",
            role="assistant",
            model="claude-x",
            content=list(content),
            stop_reason="end_turn",
            usage=usage,
            **more,
        )

    def test_an_object_of_the_sdk_is_read(self):
        answer = parse_reply(self.reply(THINKING, text("yes"), use("toolu_1", input={"x": 1})))
        assert answer.message == assistant(Reasoning("hm"), Text("yes"), ToolCall("toolu_1", "f", {"x": 1}))
        assert answer.evidence == Evidence("anthropic", {"0": {"signature": "s"}})
        assert (answer.provider, answer.model, answer.finish) == ("anthropic", "claude-x", "end_turn")

    def test_input_tokens_are_all_the_model_read(self):
        assert parse_reply(self.reply(text("yes"))).usage == Usage(130, 5, 100, 20)

    def test_a_dict_is_read_like_the_object(self):
        reply = self.reply(THINKING, text("yes"))
        assert parse_reply(reply.model_dump()) == parse_reply(reply)

    def test_redacted_thinking_is_kept_as_evidence(self):
        answer = parse_reply(self.reply({"type": "redacted_thinking", "data": "d"}, text("yes")))
        assert answer.message == assistant(Reasoning(), Text("yes"))
        assert answer.evidence == Evidence("anthropic", {"0": {"data": "d"}})

    def test_a_reply_without_a_stop_reason_has_no_finish(self):
        answer = parse_reply({"type": "message", "role": "assistant", "content": [text("ye")]})
        assert (answer.finish, answer.usage, answer.model) == (None, None, None)

    def test_an_answer_goes_back_unchanged(self):
        blocks = [THINKING, text("yes"), use("toolu_1", input={"z": 1, "a": 2})]
        answer = parse_reply(self.reply(*blocks))
        path = entries([(user("hi"), None), (answer.message, answer.evidence)])
        assert find_provider("anthropic").project(build_context(path), blobs)["messages"][1] == a(*blocks)

    def test_a_history_goes_back_unchanged(self):
        history = [
            u(text("look"), image()),
            a(text("I will"), use("a", input={"q": [1]}), use("b")),
            u(result("a", is_error=True), result("b", content=[text("x"), image()]), text("so?")),
            a(text("done")),
        ]
        messages = find_provider("anthropic").parse_messages(history)
        assert [message.role for message in messages] == [
            "user",
            "assistant",
            "tool",
            "tool",
            "user",
            "assistant",
        ]
        assert messages[0] == user("look", Attachment(PNG, "image/png"))
        assert messages[2] == Message("tool", (ToolResult("a", (Text("r"),), error=True),))

    def test_a_replys_content_may_be_a_messages_content(self):
        """The SDK's documentation shows {"role": "assistant", "content": response.content}."""
        reply = self.reply(text("yes"), use())
        messages = find_provider("anthropic").parse_messages(
            [{"role": "assistant", "content": reply.content}]
        )
        assert messages == [assistant("yes", ToolCall("a", "f"))]

    def test_media_that_lie_elsewhere_are_kept_as_words(self):
        source = {"type": "url", "url": "https://x/cat.png"}
        assert find_provider("anthropic").parse_messages([u({"type": "image", "source": source})]) == [
            user(ProviderBlock("image", "image: https://x/cat.png"))
        ]

    @pytest.mark.parametrize(
        "bad",
        [
            image(data="%%%"),
            image(data=""),
            {"type": "image"},
            {"type": "image", "source": {"type": "magic"}},
            {"type": "tool_use", "id": 7, "name": "f", "input": {}},
            {"type": "tool_result"},
            {"type": 7},
            "text",
            7,
        ],
        ids=str,
    )
    def test_a_block_of_the_wrong_shape_is_refused(self, bad):
        with pytest.raises(UnrecognizedReply):
            find_provider("anthropic").parse_messages([u(bad)])
