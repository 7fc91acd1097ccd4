"""OpenAI's Responses API: its rules, the projection that obeys them, and reading its own types."""

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
from oakleaf.wire.openai_responses.rules import violations
from oakleaf.wire.tool_pairs import EMPTY_MESSAGE, NO_OUTPUT, NO_RESULT
from support.random_logs import PNG, blobs, entries, path_of

TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]
PNG_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()


def text(content: str) -> dict[str, Any]:
    return {"type": "input_text", "text": content}


def image(url: str = PNG_URL) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url}


def u(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def call(call_id: str = "a", name: str = "f", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def output(call_id: str = "a", content: Any = "r") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": content}


def reasoning_item(item_id: str = "rs_1", *summary: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": piece} for piece in summary]
    return {"type": "reasoning", "id": item_id, "summary": parts, "encrypted_content": "enc", **more}


def says(*texts: str, item_id: str = "msg_1", **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {
        "type": "message",
        "id": item_id,
        "role": "assistant",
        "status": "completed",
        "content": content,
        **more,
    }


HI, YES = u(text("hi")), {"role": "assistant", "content": "yes"}

REJECTED = {
    "an item that is no object": ["hi"],
    "unknown role": [{"role": "robot", "content": "x"}],
    "no role": [{"content": "x"}],
    "the role of chat's results": [HI, {"role": "tool", "content": "r"}],
    "an extra field of a message": [{**HI, "details": {}}],
    "tool_calls as in chat": [HI, {**YES, "tool_calls": []}],
    "a phase of the user": [{**HI, "phase": "commentary"}],
    "user without content": [{"role": "user"}],
    "user with nothing": [{"role": "user", "content": ""}],
    "user with an empty list": [u()],
    "user with an empty text": [u(text(""))],
    "user with output_text": [u({"type": "output_text", "text": "x", "annotations": []})],
    "user with a part of chat": [u({"type": "text", "text": "x"})],
    "system with an image": [{"role": "system", "content": [image()]}, HI],
    "answer with input_text": [HI, {"role": "assistant", "content": [text("x")]}],
    "answer with nothing": [HI, {"role": "assistant", "content": ""}],
    "answer with an id and no status": [
        HI,
        {key: value for key, value in says("x").items() if key != "status"},
    ],
    "answer with an id and plain text": [HI, {**says(), "content": "x"}],
    "id of a message that begins otherwise": [HI, says("x", item_id="item_1")],
    "id of a call that begins otherwise": [HI, call(id="call_1"), output()],
    "id of 65 characters": [HI, says("x", item_id="msg_" + "1" * 61)],
    "an id twice": [HI, says("x"), HI, says("y")],
    "unknown status": [HI, says("x", status="done")],
    "call without output at the end": [HI, call()],
    "call without output before the user": [HI, call(), HI],
    "one of two calls without output": [HI, call("a"), call("b"), output("a"), HI],
    "system between a call and its output": [HI, call(), {"role": "system", "content": "x"}, output()],
    "an answer between two outputs": [HI, call("a"), call("b"), output("a"), YES, output("b")],
    "outputs in another order": [HI, call("a"), call("b"), output("b"), output("a")],
    "output without call": [HI, output()],
    "output before its call": [HI, output(), call()],
    "output of another call": [HI, call("a"), output("b")],
    "two outputs for a call": [HI, call(), output(), output()],
    "same call_id twice in a batch": [HI, call(), call(), output(), output()],
    "same call_id twice in a history": [HI, call(), output(), call(), output()],
    "empty call_id": [HI, call(""), output("")],
    "call_id of 65 characters": [HI, call("a" * 65), output("a" * 65)],
    "call_id with a blank": [HI, call("a b"), output("a b")],
    "output without a call_id": [HI, call(), {"type": "function_call_output", "output": "r"}],
    "name with a dot": [HI, call(name="fs.read"), output()],
    "name of 65 characters": [HI, call(name="n" * 65), output()],
    "no name": [HI, call(name=""), output()],
    "arguments are an object": [HI, call(arguments={}), output()],
    "arguments are null": [HI, call(arguments=None), output()],
    "output of null": [HI, call(), output(content=None)],
    "output of an object": [HI, call(), output(content={"x": 1})],
    "output of an empty list": [HI, call(), output(content=[])],
    "output with a part of the model": [HI, call(), output(content=[{"type": "refusal", "refusal": "x"}])],
    "reasoning alone": [HI, reasoning_item()],
    "reasoning before the user": [HI, reasoning_item(), HI],
    "reasoning before an output": [HI, call(), reasoning_item(), output()],
    "reasoning without summary": [HI, {"type": "reasoning", "id": "rs_1", "encrypted_content": "e"}, YES],
    "reasoning nobody encrypted": [HI, {"type": "reasoning", "id": "rs_1", "summary": []}, YES],
    "reasoning with text for a summary": [HI, {**reasoning_item(), "summary": ["hm"]}, YES],
    "reasoning of Anthropic": [HI, {"type": "thinking", "thinking": "hm", "signature": "s"}, YES],
    "image that is no base64": [u(image("data:image/png;base64,iVBORw0KGgo!"))],
    "image of a type not taken": [u(image("data:image/tiff;base64,AAAA"))],
    "image that is another type": [u(image(PNG_URL.replace("png", "gif")))],
    "image as chat writes it": [u({"type": "input_image", "image_url": {"url": PNG_URL}})],
    "file that is no base64": [u({"type": "input_file", "filename": "a", "file_data": "data:a/b,%"})],
    "file without a name": [u({"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0x"})],
}

ACCEPTED = {
    "nothing yet": [],
    "a question": [HI],
    "plain text": [{"role": "user", "content": "hi"}],
    "a developer on the way": [HI, YES, {"role": "developer", "content": "be brief"}, HI],
    "an assistant first": [YES, HI],
    "two of a role in a row": [HI, HI, YES, YES],
    "a batch": [HI, call("a"), call("b"), output("a"), output("b")],
    "words between two calls of an answer": [HI, call("a"), YES, call("b"), output("a"), output("b")],
    "reasoning before a message": [HI, reasoning_item(), says("x")],
    "reasoning before a call": [HI, reasoning_item("rs_1", "hm"), call(id="fc_1"), output()],
    "reasoning before reasoning": [HI, reasoning_item("rs_1"), reasoning_item("rs_2"), says("x")],
    "arguments that are no JSON": [HI, call(arguments="{"), output()],
    "an empty output": [HI, call(), output(content="")],
    "an output with an image": [HI, call(), output(content=[text("see"), image()])],
    "a link to an image": [u(image("https://x/cat.png"))],
    "a file by its id": [u({"type": "input_file", "file_id": "file-1"})],
    "a refusal": [HI, {**says(), "content": [{"type": "refusal", "refusal": "no"}]}],
}


class TestRules:
    @pytest.mark.parametrize("items", REJECTED.values(), ids=REJECTED)
    def test_refused_histories_are_found(self, items):
        assert violations({"input": items, "tools": TOOLS, "store": False}) != []

    @pytest.mark.parametrize("items", ACCEPTED.values(), ids=ACCEPTED)
    def test_accepted_histories_have_no_violations(self, items):
        assert violations({"input": items, "tools": TOOLS}) == []

    def test_a_request_without_input_is_found(self):
        assert violations({}) == ["input: not a list"]

    @pytest.mark.parametrize("more", [{"messages": []}, {"system": "x"}, {"instructions": 7}], ids=str)
    def test_a_field_that_is_not_there_or_empty_is_found(self, more):
        assert violations({"input": [HI], **more}) != []
        assert violations({"input": [HI], "instructions": "be kind"}) == []

    @pytest.mark.parametrize("items", [[], [HI, YES]])
    def test_a_ready_history_ends_with_the_user_or_an_output(self, items):
        assert violations({"input": items, "tools": TOOLS}) == []
        assert violations({"input": items, "tools": TOOLS}, ready=True) != []
        assert violations({"input": [HI]}, ready=True) == []
        assert violations({"input": [HI, call(), output()], "tools": TOOLS}, ready=True) == []

    @pytest.mark.parametrize("name", ["", "fs.read", "größe", "n" * 65])
    def test_names_of_tools_are_legal_and_unique(self, name):
        assert violations({"tools": [{**TOOLS[0], "name": name}], "input": [HI]}) != []
        assert violations({"tools": [*TOOLS, *TOOLS], "input": [HI]}) != []

    @pytest.mark.parametrize("tools", [{}, {"tools": []}])
    def test_a_history_with_calls_and_a_forced_choice_need_tools(self, tools):
        items = [HI, call(), output()]
        assert violations({"input": items, **tools}) != []
        assert violations({"input": items, "tools": TOOLS, "tool_choice": "none"}) == []
        assert violations({"input": [HI], **tools, "tool_choice": "required"}) != []
        assert violations({"input": [HI], **tools, "tool_choice": "auto"}) == []


def items(*payloads: Any) -> list[dict[str, Any]]:
    request = find_provider("openai").project(build_context(path_of(*payloads)), blobs)
    assert violations(request) == []
    return request["input"]


def with_evidence(message: Message, issuer: str = "openai", **proofs: dict[str, Any]) -> list[dict[str, Any]]:
    """What an answer becomes, its parts' evidence given by `_index`."""
    evidence = Evidence(issuer, {key[1:]: proof for key, proof in proofs.items()})
    request = find_provider("openai").project(
        build_context(entries([(user("hi"), None), (message, evidence)])), blobs
    )
    assert violations(request) == []
    return request["input"][1:]


class TestProjection:
    def test_the_prompts_are_the_instructions(self):
        request = find_provider("openai").project(
            build_context(path_of(system("be kind"), system("be brief"))), blobs
        )
        assert (request["instructions"], request["input"]) == ("be kind\n\nbe brief", [])

    def test_a_system_message_on_the_way_stays_in_place(self):
        output = items(system("be kind"), user("hi"), assistant("yes"), system("be brief"), user("go"))
        assert output == [HI, YES, {"role": "system", "content": [text("be brief")]}, u(text("go"))]

    def test_results_stand_in_call_order(self):
        calls = assistant("x", ToolCall("a", "f"), ToolCall("b", "f", {"z": 1, "a": 2}))
        body = items(user("hi"), calls, tool_result("b", "B"), Note(), tool_result("a", "A"), user("so?"))
        assert body == [
            HI,
            {"role": "assistant", "content": "x"},
            call("a"),
            call("b", arguments='{"z":1,"a":2}'),
            output("a", "A"),
            output("b", "B"),
            u(text("so?")),
        ]

    def test_words_between_calls_stay_in_place(self):
        output = items(user("hi"), assistant(ToolCall("a", "f"), "x", "y", ToolCall("b", "f")))
        assert [item.get("call_id", item.get("content")) for item in output[1:]] == ["a", "xy", "b", "a", "b"]

    def test_a_call_that_never_got_a_result_says_so(self):
        body = items(user("hi"), assistant(ToolCall("a", "f")))
        assert body == [HI, call(), output(content=f"[error]\n{NO_RESULT}")]

    def test_an_error_is_told_in_words_for_there_is_no_field(self):
        body = items(user("hi"), assistant(ToolCall("a", "f")), tool_result("a", "bad", error=True))
        assert body[2] == output(content="[error]\nbad")

    def test_an_outcome_that_is_not_done_is_told_with_the_content(self):
        body = items(user("hi"), assistant(ToolCall("a", "f")), tool_result("a", "x", outcome="dry_run"))
        assert body[2] == output(content="[dry run: this call was not really made]\nx")

    def test_a_result_of_nothing_has_some_words(self):
        body = items(user("hi"), assistant(ToolCall("a", "f")), tool_result("a"))
        assert body[2] == output(content=NO_OUTPUT)

    def test_long_and_repeated_ids_are_replaced_in_both_places(self):
        """OpenAI's own ids can pass 450 characters, and 64 are taken back."""
        calls = assistant(ToolCall("x" * 65, "f"), ToolCall("b", "f"), ToolCall("b", "f"))
        output = items(user("hi"), calls, *(tool_result(i, i[0]) for i in ("b", "x" * 65, "b")))
        ids = [item["call_id"] for item in output[1:4]]
        assert [item["call_id"] for item in output[4:]] == ids
        assert (len(set(ids)), ids[1]) == (3, "b")

    def test_malformed_arguments_are_json_for_parsing_servers(self):
        output = items(user("hi"), assistant(ToolCall("a", "fs.read", malformed='{"x')))
        assert output[1] == call(name="fs_read", arguments='{"malformed_arguments":"{\\"x"}')

    def test_media_of_a_result_stand_in_it(self):
        shot = tool_result("a", ["see", Media("png", "image/png", 32)], error=True)
        body = items(user("hi"), assistant(ToolCall("a", "f")), shot)
        assert body[2] == output(content=[text("[error]"), text("see"), image()])

    def test_images_and_pdfs_are_shown_and_the_rest_is_named(self):
        pdf, sound = Media("pdf", "application/pdf", 16), Media("sound", "audio/wav", 20)
        output = items(user("see", Media("png", "image/png", 32), pdf, sound))[0]["content"]
        assert [part["type"] for part in output] == ["input_text", "input_image", "input_file", "input_text"]
        assert output[2]["filename"] == "document.pdf"
        assert output[3] == text("[audio/wav, 20 bytes: not shown]")

    def test_an_empty_input_is_not_lost_and_an_empty_answer_goes(self):
        assert items(user(""), assistant(" "), user("hi")) == [u(text(EMPTY_MESSAGE)), HI]

    def test_media_of_an_answer_are_named(self):
        output = items(user("hi"), assistant(Media("png", "image/png", 32)))
        assert output[1] == {"role": "assistant", "content": "[image/png, 32 bytes: not shown]"}


RS, MSG, FC = {"id": "rs_1", "encrypted_content": "enc"}, {"id": "msg_1"}, {"id": "fc_1"}


class TestReasoning:
    def test_reasoning_goes_back_before_the_next_item(self):
        message = assistant(Reasoning("hm"), Text("yes"), ToolCall("a", "f"))
        output = with_evidence(message, _0=RS, _1=MSG, _2=FC)
        assert output[:3] == [reasoning_item("rs_1", "hm"), says("yes"), call(id="fc_1")]

    def test_reasoning_of_which_nothing_is_shown_goes_back_too(self):
        assert with_evidence(assistant(Reasoning(), Text("yes")), _0=RS, _1=MSG) == [
            reasoning_item(),
            says("yes"),
        ]

    def test_the_texts_of_one_message_stay_one_message(self):
        message = assistant("a", "b", "c")
        output = with_evidence(message, _0=MSG, _1=MSG, _2={"id": "msg_2", "phase": "final_answer"})
        assert output == [says("a", "b"), says("c", item_id="msg_2", phase="final_answer")]

    @pytest.mark.parametrize("issuer", ["openai-chat", "anthropic", "gemini"])
    def test_the_reasoning_and_ids_of_others_are_dropped(self, issuer):
        message = assistant(Reasoning("hm"), Text("yes"))
        assert with_evidence(message, issuer, _0=RS, _1=MSG) == [YES]

    @pytest.mark.parametrize(
        "proofs",
        [
            {"_0": {"id": "rs_1"}, "_1": MSG},
            {"_0": {"encrypted_content": "enc"}, "_1": MSG},
            {"_1": MSG},
            {"_0": RS},
            {"_0": RS, "_1": {"id": "item_1"}},
            {"_0": RS, "_1": {"id": "msg_" + "1" * 61}},
        ],
        ids=str,
    )
    def test_if_anything_is_missing_the_answer_goes_back_bare(self, proofs):
        """An item with its id is refused without its reasoning, and reasoning without the item after it."""
        assert with_evidence(assistant(Reasoning("hm"), Text("yes")), **proofs) == [YES]

    def test_reasoning_that_led_to_nothing_is_dropped(self):
        assert with_evidence(assistant(Reasoning("hm")), _0=RS) == []
        assert with_evidence(assistant(Text("yes"), Reasoning("hm")), _0=MSG, _1=RS) == [YES]

    def test_an_id_is_sent_once(self):
        """OpenAI: duplicate item found. A path may hold an answer twice, as a seed and again."""
        one = (assistant("yes"), Evidence("openai", {"0": MSG}))
        path = entries([(user("hi"), None), one, (user("hi"), None), one])
        request = find_provider("openai").project(build_context(path), blobs)
        assert violations(request) == []
        assert request["input"] == [HI, says("yes"), HI, YES]
        twice = assistant(ToolCall("a", "f"), ToolCall("b", "f"))
        assert with_evidence(twice, _0=FC, _1=FC)[:2] == [call("a"), call("b")]

    def test_a_phase_and_a_namespace_go_back_even_so(self):
        message = assistant(Reasoning(), Text("yes"), ToolCall("a", "f"))
        output = with_evidence(message, _1={"id": "msg_1", "phase": "commentary"}, _2={"namespace": "crm"})
        assert output[:2] == [{**YES, "phase": "commentary"}, call(namespace="crm")]


@pytest.mark.extra
class TestReading:
    def reply(self, *output: dict[str, Any], **more: Any) -> Any:
        from openai.types import responses as types

        return types.Response.model_validate(
            {
                "id": "resp_1",
                "object": "response",
                "created_at": 1,
                "model": "gpt-x",
                "status": "completed",
                "output": list(output),
                "parallel_tool_calls": True,
                "tool_choice": "auto",
                "tools": [],
                "usage": {
                    "input_tokens": 130,
                    "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 20},
                    "output_tokens": 5,
                    "output_tokens_details": {"reasoning_tokens": 3},
                    "total_tokens": 135,
                },
                **more,
            }
        )

    def test_an_object_of_the_sdk_is_read(self):
        answer = parse_reply(
            self.reply(reasoning_item("rs_1", "hm", "so"), says("yes"), call("c1", arguments='{"x": 1}'))
        )
        assert answer.message == assistant(Reasoning("hm\n\nso"), Text("yes"), ToolCall("c1", "f", {"x": 1}))
        summary = [{"text": text, "type": "summary_text"} for text in ("hm", "so")]
        reasoned = {**RS, "block": {"summary": summary}}
        assert answer.evidence == Evidence("openai", {"0": reasoned, "1": {**MSG, "status": "completed"}})
        assert (answer.provider, answer.model, answer.finish) == ("openai", "gpt-x", "completed")

    def test_cached_tokens_are_part_of_the_input(self):
        assert parse_reply(self.reply(says("yes"))).usage == Usage(130, 5, 100, 20)

    def test_a_dict_is_read_like_the_object(self):
        reply = self.reply(reasoning_item(), says("yes"), call(id="fc_1"))
        assert parse_reply(reply.model_dump()) == parse_reply(reply)

    def test_an_answer_goes_back_unchanged(self):
        items = [reasoning_item("rs_1", "hm"), says("yes", phase="commentary"), call("c1", id="fc_1")]
        answer = parse_reply(self.reply(*items))
        path = entries([(user("hi"), None), (answer.message, answer.evidence)])
        assert find_provider("openai").project(build_context(path), blobs)["input"][1:4] == items

    def test_unencrypted_reasoning_leaves_no_evidence(self):
        answer = parse_reply(self.reply({"type": "reasoning", "id": "rs_1", "summary": []}, call()))
        assert (answer.message, answer.evidence) == (assistant(Reasoning(), ToolCall("a", "f")), None)

    def test_reasoning_in_the_open_is_read(self):
        content = [{"type": "reasoning_text", "text": "hm"}]
        item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}
        assert parse_reply(self.reply(item)).message == assistant(Reasoning("hm"))

    def test_a_refusal_is_text(self):
        refusal = {**says(), "content": [{"type": "refusal", "refusal": "I will not"}]}
        assert parse_reply(self.reply(refusal)).message == assistant("I will not")

    @pytest.mark.parametrize("raw", ["{", "[1]", "null", '{"a": NaN}'])
    def test_arguments_that_are_no_object_are_kept_as_written(self, raw):
        answer = parse_reply(self.reply(call(arguments=raw)))
        assert answer.message == assistant(ToolCall("a", "f", malformed=raw))

    @pytest.mark.parametrize(
        ("status", "finish"),
        [
            (
                {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
                "max_output_tokens",
            ),
            ({"status": "incomplete"}, "incomplete"),
            ({"status": "cancelled"}, "cancelled"),
            ({"status": "in_progress"}, None),
            ({"status": None}, None),
        ],
        ids=str,
    )
    def test_only_a_response_that_is_over_has_a_finish(self, status, finish):
        assert parse_reply(self.reply(says("ye"), **status)).finish == finish

    def test_a_response_that_failed_is_no_answer(self):
        error = {"code": "server_error", "message": "sorry"}
        with pytest.raises(UnrecognizedReply, match="server_error"):
            parse_reply(self.reply(status="failed", error=error))

    def test_an_item_we_could_not_send_back_is_refused_by_name(self):
        with pytest.raises(UnrecognizedReply, match="custom_tool_call"):
            parse_reply({"object": "response", "output": [{"type": "custom_tool_call"}]})

    def test_a_history_is_read(self):
        history = [
            {"role": "developer", "content": "be kind"},
            u(text("look"), image()),
            reasoning_item(),
            says("I will"),
            call("a"),
            call("b", arguments="{"),
            output("a"),
            output("b", [text("x"), image()]),
            YES,
        ]
        assert find_provider("openai").parse_messages(history) == [
            system("be kind"),
            user("look", Attachment(PNG, "image/png")),
            assistant(Reasoning(), Text("I will"), ToolCall("a", "f"), ToolCall("b", "f", malformed="{")),
            tool_result("a", "r"),
            Message("tool", (ToolResult("b", (Text("x"), Attachment(PNG, "image/png"))),)),
            assistant("yes"),
        ]

    def test_a_responses_output_may_join_the_list(self):
        """The SDK's documentation shows input += response.output."""
        reply = self.reply(reasoning_item(), says("yes"), call())
        messages = find_provider("openai").parse_messages([{"role": "user", "content": "hi"}, *reply.output])
        assert messages == [user("hi"), assistant(Reasoning(), Text("yes"), ToolCall("a", "f"))]

    def test_media_that_lie_elsewhere_are_kept_as_words(self):
        file, link = (
            {"type": "input_file", "file_id": "file-1"},
            {"type": "input_file", "file_url": "https://x"},
        )
        assert find_provider("openai").parse_messages([u(image("https://x/cat.png"), file, link)]) == [
            user(
                ProviderBlock("input_image", "image: https://x/cat.png"),
                ProviderBlock("input_file", "file: file-1"),
                ProviderBlock("input_file", "file: https://x"),
            )
        ]

    @pytest.mark.parametrize(
        "bad",
        [
            {"type": "item_reference", "id": "msg_1"},
            {"type": "function_call", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "output": "r"},
            {"type": "reasoning", "summary": ["hm"]},
            {"role": "system", "content": [image()]},
            u(image("data:image/png;base64,%%%")),
            u({"type": "input_image"}),
            u({"type": 7}),
            {"role": "user", "content": 7},
            {"role": "robot", "content": "x"},
        ],
        ids=str,
    )
    def test_an_item_of_the_wrong_shape_is_refused(self, bad):
        with pytest.raises(UnrecognizedReply):
            find_provider("openai").parse_messages([bad])


def test_a_field_of_codex_on_an_item_is_legal():
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    body = {"model": "m", "input": [item | {"internal_chat_message_metadata_passthrough": {"turn": 1}}]}
    assert list(find_provider("openai").violations(body)) == []
    assert list(find_provider("openai").violations({"model": "m", "input": [item | {"extra": 1}]}))
