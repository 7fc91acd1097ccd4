"""OpenAI's Chat Completions: its rules, the projection that obeys them, and reading its own types."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from oakleaf.core.context import Context, Item, build_context, with_endpoint
from oakleaf.core.entries import Endpoint, Evidence, Note
from oakleaf.core.messages import (
    Attachment,
    Media,
    ProviderBlock,
    Reasoning,
    Text,
    ToolCall,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.core.usage import Usage
from oakleaf.errors import UnrecognizedReply
from oakleaf.wire import find_provider, parse_reply
from oakleaf.wire.openai_chat.rules import violations
from oakleaf.wire.tool_pairs import EMPTY_MESSAGE, MEDIA_HEADING, NO_OUTPUT, NO_RESULT
from support.random_logs import PNG, blobs, entries, path_of

TOOLS = [{"type": "function", "function": {"name": "f"}}]
PNG_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def image(url: str = PNG_URL) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def call(call_id: str = "a", name: str = "f", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: dict[str, Any], content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def tool(call_id: str = "a", content: Any = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def u(content: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


HI, YES = u(), {"role": "assistant", "content": "yes"}

REJECTED = {
    "arguments that are no JSON": [HI, asks(call(arguments="{")), tool()],
    "arguments that are no object": [HI, asks(call(arguments="[]")), tool()],
    "sound that is no base64": [u([{"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}])],
    "a message that is no object": ["hi"],
    "unknown role": [{"role": "robot", "content": "x"}],
    "no role": [{"content": "x"}],
    "tool_calls of the user": [{**HI, "tool_calls": [call()]}],
    "user without content": [{"role": "user"}],
    "user with null": [u(None)],
    "user with nothing": [u("")],
    "user with an empty list": [u([])],
    "user with an empty text part": [u([text("")])],
    "user with a block of Anthropic": [u([{"type": "tool_result", "tool_use_id": "a"}])],
    "system with an image": [{"role": "system", "content": [image()]}, HI],
    "system with nothing": [{"role": "system", "content": ""}, HI],
    "answer of null without calls": [HI, {"role": "assistant", "content": None}],
    "answer without content or calls": [HI, {"role": "assistant"}],
    "answer with nothing": [HI, {"role": "assistant", "content": ""}],
    "answer with an image": [HI, {"role": "assistant", "content": [image()]}],
    "an empty list of calls": [HI, {**YES, "tool_calls": []}],
    "call without result at the end": [HI, asks(call())],
    "call without result before the user": [HI, asks(call()), HI],
    "one of two calls without result": [HI, asks(call("a"), call("b")), tool("a"), HI],
    "system between a call and its result": [HI, asks(call()), {"role": "system", "content": "x"}, tool()],
    "user between two results": [HI, asks(call("a"), call("b")), tool("a"), HI, tool("b")],
    "result without call": [HI, tool()],
    "result first": [tool(), HI],
    "result of another call": [HI, asks(call("a")), tool("b")],
    "two results for a call": [HI, asks(call()), tool(), tool()],
    "result after the batch was left": [HI, asks(call()), tool(), YES, tool()],
    "same id twice in a message": [HI, asks(call(), call()), tool(), tool()],
    "same id twice in a history": [HI, asks(call()), tool(), asks(call()), tool()],
    "empty id": [HI, asks(call("")), tool("")],
    "id of 41 characters": [HI, asks(call("a" * 41)), tool("a" * 41)],
    "id with a blank": [HI, asks(call("a b")), tool("a b")],
    "id with a newline at its end": [HI, asks(call("a\n")), tool("a\n")],
    "result without an id": [HI, asks(call()), {"role": "tool", "content": "r"}],
    "name with a dot": [HI, asks(call(name="fs.read")), tool()],
    "name of 65 characters": [HI, asks(call(name="n" * 65)), tool()],
    "no name": [HI, asks(call(name="")), tool()],
    "arguments are an object": [HI, asks(call(arguments={})), tool()],
    "arguments are null": [HI, asks(call(arguments=None)), tool()],
    "call without a type": [HI, asks({"id": "a", "function": {"name": "f", "arguments": ""}}), tool()],
    "call of an unknown type": [HI, asks({**call(), "type": "magic"}), tool()],
    "result with an image": [HI, asks(call()), tool(content=[image()])],
    "result of null": [HI, asks(call()), tool(content=None)],
    "image that is no base64": [u([image("data:image/png;base64,iVBORw0KGgo!")])],
    "image of a type not taken": [u([image("data:image/tiff;base64,AAAA")])],
    "image that is another type": [u([image(PNG_URL.replace("png", "gif"))])],
    "image without a url": [u([{"type": "image_url", "image_url": {}}])],
    "file that is no PDF": [u([{"type": "file", "file": {"filename": "a", "file_data": PNG_URL}}])],
    "file without a name": [
        u([{"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0x"}}])
    ],
}

ACCEPTED = {
    "nothing yet": [],
    "a question": [HI],
    "a system prompt, and one on the way": [
        {"role": "system", "content": "x"},
        HI,
        {"role": "system", "content": "y"},
    ],
    "an assistant first": [YES, HI],
    "two of a role in a row": [HI, HI, YES, YES],
    "results in another order": [HI, asks(call("a"), call("b")), tool("b"), tool("a")],
    "an answer with text and calls": [HI, asks(call(), content="x"), tool()],
    "an empty result": [HI, asks(call()), tool(content="")],
    "a link to an image": [u([image("https://x/cat.png")])],
    "an image": [u([text("x"), image()])],
    "a refusal": [HI, {"role": "assistant", "content": None, "refusal": "no"}],
}


class TestRules:
    @pytest.mark.parametrize("messages", REJECTED.values(), ids=REJECTED)
    def test_refused_histories_are_found(self, messages):
        assert violations({"messages": messages, "tools": TOOLS}) != []

    @pytest.mark.parametrize("messages", ACCEPTED.values(), ids=ACCEPTED)
    def test_accepted_histories_have_no_violations(self, messages):
        assert violations({"messages": messages, "tools": TOOLS}) == []

    def test_a_request_without_messages_is_found(self):
        assert violations({}) == ["messages: not a list"]

    def test_a_system_field_is_found(self):
        assert violations({"system": "x", "messages": [HI]}) != []

    @pytest.mark.parametrize("messages", [[], [HI, YES]])
    def test_a_ready_history_ends_with_the_user_or_a_result(self, messages):
        assert violations({"messages": messages, "tools": TOOLS}) == []
        assert violations({"messages": messages, "tools": TOOLS}, ready=True) != []
        assert violations({"messages": [HI]}, ready=True) == []
        assert violations({"messages": [HI, asks(call()), tool()], "tools": TOOLS}, ready=True) == []

    @pytest.mark.parametrize("name", ["", "fs.read", "größe", "n" * 65])
    def test_names_of_tools_are_legal_and_unique(self, name):
        named = {"type": "function", "function": {"name": name}}
        assert violations({"tools": [named], "messages": [HI]}) != []
        assert violations({"tools": [*TOOLS, *TOOLS], "messages": [HI]}) != []

    @pytest.mark.parametrize("tools", [{}, {"tools": []}])
    def test_a_history_with_calls_and_a_choice_need_tools(self, tools):
        messages = [HI, asks(call()), tool()]
        assert violations({"messages": messages, **tools}) != []
        assert violations({"messages": messages, "tools": TOOLS, "tool_choice": "none"}) == []
        assert violations({"messages": [HI], **tools, "tool_choice": "none"}) != []
        assert violations({"messages": [HI], **tools, "parallel_tool_calls": True}) != []


def messages(*payloads: Any) -> list[dict[str, Any]]:
    request = find_provider("openai-chat").project(build_context(path_of(*payloads)), blobs)
    assert violations(request) == []
    return request["messages"]


class TestProjection:
    def test_system_messages_stay_in_place(self):
        output = messages(system("be kind"), user("hi"), assistant("yes"), system("be brief"), user("go"))
        assert [message["role"] for message in output] == ["system", "user", "assistant", "system", "user"]

    def test_results_stand_in_call_order(self):
        calls = assistant("x", ToolCall("a", "f"), ToolCall("b", "f", {"z": 1, "a": 2}))
        output = messages(
            user("hi"), calls, tool_result("b", "B"), Note(), tool_result("a", "A"), user("so?")
        )
        assert output == [
            HI,
            asks(call("a"), call("b", arguments='{"z":1,"a":2}'), content="x"),
            tool("a", "A"),
            tool("b", "B"),
            u("so?"),
        ]

    def test_a_call_that_never_got_a_result_says_so(self):
        output = messages(user("hi"), assistant(ToolCall("a", "f")))
        assert output == [HI, asks(call()), tool(content=f"[error]\n{NO_RESULT}")]

    def test_an_error_is_told_in_words_for_there_is_no_field(self):
        output = messages(user("hi"), assistant(ToolCall("a", "f")), tool_result("a", "bad", error=True))
        assert output[2] == tool(content="[error]\nbad")

    def test_an_outcome_that_is_not_done_is_told_with_the_content(self):
        result = tool_result("a", "x", outcome="dry_run")
        content = messages(user("hi"), assistant(ToolCall("a", "f")), result)[2]["content"]
        assert content == "[dry run: this call was not really made]\nx"

    def test_a_result_of_nothing_has_some_words(self):
        assert messages(user("hi"), assistant(ToolCall("a", "f")), tool_result("a"))[2] == tool(
            content=NO_OUTPUT
        )

    def test_long_and_repeated_ids_are_replaced_in_both_places(self):
        calls = assistant(ToolCall("x" * 41, "f"), ToolCall("b", "f"), ToolCall("b", "f"))
        output = messages(user("hi"), calls, *(tool_result(i, i[0]) for i in ("b", "x" * 41, "b")))
        ids = [one["id"] for one in output[1]["tool_calls"]]
        assert [message["tool_call_id"] for message in output[2:]] == ids
        assert (len(set(ids)), ids[1]) == (3, "b")

    def test_malformed_arguments_are_json_for_parsing_servers(self):
        """vLLM and llama-server answered every later request with 400. Their text is in it, the result says what was wrong."""
        output = messages(user("hi"), assistant(ToolCall("a", "f", malformed='{"x')))
        assert output[1]["tool_calls"] == [call(arguments='{"malformed_arguments":"{\\"x"}')]

    def test_media_of_results_follow_the_whole_batch(self):
        calls = assistant(ToolCall("a", "f"), ToolCall("b", "f"))
        shot = tool_result("a", ["see", Media("png", "image/png", 32)])
        output = messages(user("hi"), calls, shot, tool_result("b", Media("gone", "image/png", 9)))
        assert output[2:] == [
            tool("a", "see\n[media: shown below]"),
            tool("b", "[image/png, 9 bytes: is missing]"),
            u([text(MEDIA_HEADING), image()]),
        ]

    def test_images_and_pdfs_are_shown_and_the_rest_is_named(self):
        pdf, sound = Media("pdf", "application/pdf", 16), Media("sound", "audio/wav", 20)
        output = messages(user("see", Media("png", "image/png", 32), pdf, sound))[0]["content"]
        assert [part["type"] for part in output] == ["text", "image_url", "file", "text"]
        assert output[2]["file"]["filename"] == "document.pdf"
        assert output[3] == text("[audio/wav, 20 bytes: not shown]")

    def test_an_empty_input_is_not_lost_and_an_empty_answer_goes(self):
        assert messages(user(""), assistant(" "), user("hi")) == [u(EMPTY_MESSAGE), HI]

    def test_reasoning_goes_back_with_calls_in_the_same_field(self):
        """DeepSeek and Kimi answer 400 to a call without it."""
        evidence = Evidence("openai-chat@api.deepseek.com", {"0": {"field": "reasoning_content"}})
        answer = assistant(Reasoning("hm"), Text("yes"), ToolCall("a", "f"))
        path = entries([(user("hi"), None), (answer, evidence)])
        context = with_endpoint(build_context(path), "openai-chat", Endpoint("api.deepseek.com"))
        request = find_provider("openai-chat").project(context, blobs)
        assert violations(request) == []
        assert request["messages"][1] == {**asks(call(), content="yes"), "reasoning_content": "hm"}
        for issuer in ("openai", "anthropic"):
            path = entries([(user("hi"), None), (answer, Evidence(issuer, evidence.parts))])
            request = find_provider("openai-chat").project(build_context(path), blobs)
            assert request["messages"][1] == asks(call(), content="yes")

    def test_reasoning_of_an_answer_without_calls_is_never_sent(self):
        for issuer in ("anthropic", "openai-chat"):
            evidence = Evidence(issuer, {"0": {"signature": "s"}})
            path = entries([(user("hi"), None), (assistant(Reasoning("hm"), Text("yes")), evidence)])
            assert find_provider("openai-chat").project(build_context(path), blobs) == {"messages": [HI, YES]}

    def test_media_of_an_answer_are_named(self):
        output = messages(user("hi"), assistant(Media("png", "image/png", 32)))
        assert output[1]["content"] == "[image/png, 32 bytes: not shown]"


@pytest.mark.extra
class TestReading:
    def reply(self, finish: str = "stop", **message: Any) -> Any:
        from openai.types import chat as types

        return types.ChatCompletion.model_validate(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": "gpt-x",
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": finish,
                        "logprobs": None,
                        "message": {"role": "assistant", "content": None, "refusal": None, **message},
                    }
                ],
                "usage": {
                    "prompt_tokens": 130,
                    "completion_tokens": 5,
                    "total_tokens": 135,
                    "prompt_tokens_details": {"cached_tokens": 100},
                },
            }
        )

    def test_an_object_of_the_sdk_is_read(self):
        answer = parse_reply(
            self.reply("tool_calls", content="yes", tool_calls=[call("c1", arguments='{"x": 1}')])
        )
        assert answer.message == assistant("yes", ToolCall("c1", "f", {"x": 1}))
        assert (answer.provider, answer.model, answer.finish) == ("openai-chat", "gpt-x", "tool_calls")
        assert answer.evidence is None

    def test_cached_tokens_are_part_of_the_input(self):
        assert parse_reply(self.reply(content="yes")).usage == Usage(130, 5, 100)

    def test_a_dict_is_read_like_the_object(self):
        reply = self.reply(content="yes", tool_calls=[call()])
        assert parse_reply(reply.model_dump()) == parse_reply(reply)

    @pytest.mark.parametrize(
        "raw", ["{", "[1]", "7", "null", '{"a": NaN}', "{" * 2_000, '{"a":' * 300 + "1" + "}" * 300]
    )
    def test_arguments_that_are_no_object_are_kept_as_written(self, raw):
        answer = parse_reply(self.reply(tool_calls=[call(arguments=raw)]))
        assert answer.message == assistant(ToolCall("a", "f", malformed=raw))

    def test_no_arguments_at_all_are_none(self):
        assert parse_reply(self.reply(tool_calls=[call(arguments="")])).message == assistant(
            ToolCall("a", "f")
        )

    def test_a_refusal_is_text(self):
        assert parse_reply(self.reply(refusal="I will not")).message == assistant("I will not")

    def test_reasoning_of_compatible_servers_is_kept(self):
        answer = parse_reply(self.reply(content="yes", reasoning_content="hm"))
        assert answer.message == assistant(Reasoning("hm"), Text("yes"))

    def test_a_reply_cut_short_has_no_finish(self):
        answer = parse_reply({"choices": [{"message": {"role": "assistant", "content": "ye"}}]})
        assert (answer.finish, answer.usage, answer.model) == (None, None, None)

    def test_an_answer_goes_back_unchanged(self):
        answer = parse_reply(self.reply(content="yes", tool_calls=[call("c1", arguments='{"z":1,"a":2}')]))
        output = messages(user("hi"), answer.message)
        assert output[1] == asks(call("c1", arguments='{"z":1,"a":2}'), content="yes")

    def test_a_history_goes_back_unchanged(self):
        history = [
            {"role": "developer", "content": "be kind"},
            u([text("look"), image()]),
            asks(call("a"), call("b", arguments="{")),
            tool("a"),
            tool("b"),
            YES,
        ]
        messages = find_provider("openai-chat").parse_messages(history)
        assert messages == [
            system("be kind"),
            user("look", Attachment(PNG, "image/png")),
            assistant(ToolCall("a", "f"), ToolCall("b", "f", malformed="{")),
            tool_result("a", "r"),
            tool_result("b", "r"),
            assistant("yes"),
        ]

    def test_a_replys_message_may_join_the_list(self):
        """The SDK's documentation shows messages.append(response.choices[0].message)."""
        reply = self.reply(content="yes", tool_calls=[call()])
        assert find_provider("openai-chat").parse_messages([reply.choices[0].message]) == [
            assistant("yes", ToolCall("a", "f"))
        ]

    def test_linked_media_and_sound_go_back_unchanged(self):
        sound = base64.b64encode(b"RIFF\x04\0\0\0WAVEdata").decode()
        content = [
            text("see"),
            {"type": "image_url", "image_url": {"url": "https://x/cat.png", "detail": "low"}},
            {"type": "file", "file": {"file_id": "file-1"}},
            {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        ]
        [parsed] = find_provider("openai-chat").parse_history([u(content)])
        request = find_provider("openai-chat").project(
            Context((), (Item(parsed.message, 1, 1, evidence=parsed.evidence),)), blobs
        )
        assert violations(request) == []
        assert request["messages"] == [u(content)]

    @pytest.mark.parametrize("role", ["assistantassistantassistant", None])
    def test_a_stream_joined_by_the_sdk_is_an_answer(self, role):
        """Some servers repeat the role in each chunk, others send none."""
        answer = parse_reply(
            {"choices": [{"message": {"role": role, "content": "hi"}, "finish_reason": "stop"}]}
        )
        assert answer.message == assistant("hi")

    def test_an_old_function_call_becomes_a_call_with_a_result(self):
        old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}}
        messages = find_provider("openai-chat").parse_messages(
            [HI, old, {"role": "function", "name": "f", "content": "r"}]
        )
        assert messages == [user("hi"), assistant(ToolCall("f", "f", {"x": 1})), tool_result("f", "r")]

    def test_reasoning_among_the_parts_of_an_answer_is_reasoning(self):
        """As Mistral writes it."""
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
        answer = parse_reply({"choices": [{"message": {"content": [thinking, text("yes")]}}]})
        assert answer.message == assistant(Reasoning("hm"), Text("yes"))

    def test_a_spoken_answer_has_words_and_sound(self):
        sound = base64.b64encode(b"RIFF1234").decode()
        audio = {"id": "audio_1", "expires_at": 1, "transcript": "hello", "data": sound}
        answer = parse_reply(self.reply(audio=audio))
        assert answer.message == assistant("hello", Attachment(b"RIFF1234", "audio/wav"))

    def test_a_signature_of_a_call_goes_back_with_it(self):
        """As Google's compatible endpoint demands it."""
        signed = {**call(), "extra_content": {"google": {"thought_signature": "sig"}}}
        answer = parse_reply({"role": "assistant", "content": None, "tool_calls": [signed]})
        path = entries([(user("hi"), None), (answer.message, answer.evidence)])
        request = find_provider("openai-chat").project(build_context(path), blobs)
        assert request["messages"][1]["tool_calls"] == [signed]

    def test_ids_may_be_numbers_or_missing(self):
        calls = [{**call(), "id": 7}, {"function": {"name": "g", "arguments": {"x": 1}}}]
        answer = parse_reply({"role": "assistant", "content": None, "tool_calls": calls})
        assert answer.message == assistant(ToolCall("7", "f"), ToolCall("call_1", "g", {"x": 1}))

    def test_media_that_lie_elsewhere_are_kept_as_words(self):
        file = {"type": "file", "file": {"file_id": "file-1"}}
        assert find_provider("openai-chat").parse_messages([u([image("https://x/cat.png"), file])]) == [
            user(
                ProviderBlock("image_url", "image: https://x/cat.png"), ProviderBlock("file", "file: file-1")
            )
        ]

    def test_sound_is_read_as_bytes(self):
        sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}
        assert find_provider("openai-chat").parse_messages([u([sound])]) == [
            user(Attachment(b"\0\0\0", "audio/mpeg"))
        ]

    @pytest.mark.parametrize(
        "bad",
        [
            {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "custom"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": 1.5, "function": {"name": "f"}}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]},
            {"role": "assistant", "content": None, "tool_calls": ["a"]},
            {"role": "tool", "content": "r"},
            {"role": "system", "content": [image()]},
            u([image("data:image/png;base64,%%%")]),
            u([{"type": 1}]),
            u(7),
        ],
        ids=str,
    )
    def test_a_message_of_the_wrong_shape_is_refused(self, bad):
        with pytest.raises(UnrecognizedReply):
            find_provider("openai-chat").parse_messages([bad])

    def test_two_choices_are_not_one_answer(self):
        choice = {"message": YES}
        with pytest.raises(UnrecognizedReply, match="2 choices"):
            parse_reply({"choices": [choice, choice]})
