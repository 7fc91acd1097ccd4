"""Google's Gemini API: its rules, the projection that obeys them, and reading what its SDK returns."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from oakleaf.core.context import Context, Item, build_context
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
from oakleaf.wire.gemini.request import OPENING, UNSIGNED
from oakleaf.wire.gemini.rules import violations
from oakleaf.wire.tool_pairs import EMPTY_MESSAGE, MEDIA_HEADING, NO_OUTPUT, NO_RESULT
from support.random_logs import PNG, blobs, entries, path_of

TOOLS = [{"functionDeclarations": [{"name": "f"}]}]
PNG_64 = base64.b64encode(PNG).decode()


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"text": content, **more}


def image(mime: str = "image/png", data: Any = PNG_64) -> dict[str, Any]:
    return {"inlineData": {"mimeType": mime, "data": data}}


def call(name: str = "f", args: Any = None, sign: str | None = UNSIGNED, **more: Any) -> dict[str, Any]:
    part: dict[str, Any] = {"functionCall": {"name": name, "args": {} if args is None else args, **more}}
    return part if sign is None else {**part, "thoughtSignature": sign}


def answer(name: str = "f", response: Any = None, **more: Any) -> dict[str, Any]:
    body = {"output": "r"} if response is None else response
    return {"functionResponse": {"name": name, "response": body, **more}}


def u(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def m(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


HI, YES = u(text("hi")), m(text("yes"))

REJECTED = {
    "a content that is no object": ["hi"],
    "the assistant's role elsewhere": [HI, {"role": "assistant", "parts": [text("x")]}],
    "no role": [{"parts": [text("x")]}],
    "an extra field of a content": [{**HI, "details": {}}],
    "content in place of parts": [{"role": "user", "content": "x"}],
    "no parts": [u()],
    "parts that are text": [{"role": "user", "parts": "hi"}],
    "the model first": [YES, HI],
    "an empty text": [u(text(""))],
    "a text that is null": [u({"text": None})],
    "a part that holds nothing": [u({})],
    "a part that holds two things": [u({**text("x"), **image()})],
    "a block of Anthropic": [u({"type": "text", "text": "x"})],
    "snake_case": [u({"inline_data": {"mime_type": "image/png", "data": PNG_64}})],
    "a call of the user": [u(call()), m(answer())],
    "a response of the model": [HI, m(call()), u(answer()), m(answer())],
    "a signature of the user": [u(text("x", thoughtSignature="c2ln"))],
    "a signature that is no base64": [HI, m(text("x", thoughtSignature="§"))],
    "an empty signature": [HI, m(text("x", thoughtSignature=""))],
    "a call without response at the end": [HI, m(call())],
    "a call without response before the user": [HI, m(call()), HI],
    "one of two calls without response": [HI, m(call(), call("g", sign=None)), u(answer())],
    "two responses to a call": [HI, m(call()), u(answer(), answer())],
    "a response without call": [u(answer())],
    "a response to an answer of text": [HI, YES, u(answer())],
    "a response a turn too late": [HI, m(call()), HI, YES, u(answer())],
    "responses in another order": [HI, m(call("f"), call("g")), u(answer("g"), answer("f"))],
    "a response of another name": [HI, m(call("f")), u(answer("g"))],
    "a response of another id": [HI, m(call(id="a")), u(answer(id="b"))],
    "a response without the id of its call": [HI, m(call(id="a")), u(answer())],
    "a response with an id its call has not": [HI, m(call()), u(answer(id="a"))],
    "a text before a response": [HI, m(call()), u(text("x"), answer())],
    "an id twice": [HI, m(call(id="a")), u(answer(id="a")), m(call(id="a")), u(answer(id="a"))],
    "an empty id": [HI, m(call(id="")), u(answer(id=""))],
    "the first call of the turn unsigned": [HI, m(call(sign=None)), u(answer())],
    "a later call of the turn unsigned": [HI, m(call()), u(answer()), m(call(sign=None)), u(answer())],
    "a name that begins with a digit": [HI, m(call("9f")), u(answer("9f"))],
    "a name with a blank": [HI, m(call("a b")), u(answer("a b"))],
    "a name of 65 characters": [HI, m(call("n" * 65)), u(answer("n" * 65))],
    "no name": [HI, m(call("")), u(answer(""))],
    "arguments that are text": [HI, m(call(args="{}")), u(answer())],
    "an extra field of a call": [HI, m(call(type="function")), u(answer())],
    "a response that is text": [HI, m(call()), u(answer(response="r"))],
    "a response that is a list": [HI, m(call()), u(answer(response=[1]))],
    "an image that is no base64": [u(image(data="%%%"))],
    "an image of bytes": [u(image(data=PNG))],
    "an image of a type not taken": [u(image("image/gif", "R0lGODlh"))],
    "an image that is another type": [u(image("image/jpeg"))],
    "an image without a type": [u({"inlineData": {"data": PNG_64}})],
    "more than a request may have": [u(image(data="iVBORw0KGgo=" + "AAAA" * 5 * 1024 * 1024))],
}

ACCEPTED = {
    "two of the user in a row": [HI, HI],
    "two of the model in a row": [HI, YES, YES],
    "nothing yet": [],
    "a question": [HI],
    "a batch": [HI, m(text("x"), call("f"), call("g", sign=None)), u(answer("f"), answer("g"))],
    "the same function twice": [HI, m(call(), call(sign=None)), u(answer(), answer(response={"error": "x"}))],
    "ids": [HI, m(call(id="a")), u(answer(id="a"), text("so?"))],
    "calls of earlier turns unsigned": [HI, m(call(sign=None)), u(answer()), YES, HI],
    "a signed text, even if it is empty": [
        HI,
        m(text("x", thoughtSignature="c2ln"), text("", thoughtSignature="-_")),
    ],
    "dots, colons and dashes in a name": [HI, m(call("_a.b:c-d")), u(answer("_a.b:c-d"))],
    "an image": [u(text("x"), image())],
    "an image of the model": [HI, m(image())],
    "sound": [u(image("audio/mp3", "SUQzBAAA"))],
}


class TestRules:
    @pytest.mark.parametrize("contents", REJECTED.values(), ids=REJECTED)
    def test_refused_histories_are_found(self, contents):
        assert violations({"contents": contents, "tools": TOOLS}) != []

    @pytest.mark.parametrize("contents", ACCEPTED.values(), ids=ACCEPTED)
    def test_accepted_histories_have_no_violations(self, contents):
        assert violations({"contents": contents, "tools": TOOLS}) == []

    def test_a_request_without_contents_is_found(self):
        assert violations({}) == ["contents: not a list"]

    @pytest.mark.parametrize(
        "more",
        [
            {"messages": []},
            {"system": "x"},
            {"systemInstruction": "x"},
            {"systemInstruction": {"parts": []}},
            {"systemInstruction": {"parts": [text("")]}},
            {"systemInstruction": {"parts": [image()]}},
        ],
        ids=str,
    )
    def test_a_system_instruction_of_another_shape_is_found(self, more):
        assert violations({"contents": [HI], **more}) != []
        assert violations({"contents": [HI], "systemInstruction": {"parts": [text("x")]}}) == []

    @pytest.mark.parametrize("contents", [[], [HI, YES]])
    def test_a_ready_history_ends_with_the_user(self, contents):
        assert violations({"contents": contents, "tools": TOOLS}) == []
        assert violations({"contents": contents, "tools": TOOLS}, ready=True) != []
        assert violations({"contents": [HI]}, ready=True) == []
        assert violations({"contents": [HI, m(call()), u(answer())], "tools": TOOLS}, ready=True) == []

    @pytest.mark.parametrize("name", ["", "9f", "größe", "n" * 65])
    def test_names_of_functions_are_legal_and_unique(self, name):
        assert violations({"tools": [{"functionDeclarations": [{"name": name}]}], "contents": [HI]}) != []
        assert violations({"tools": [*TOOLS, *TOOLS], "contents": [HI]}) != []

    @pytest.mark.parametrize("tools", [{}, {"tools": []}, {"tools": [{"googleSearch": {}}]}])
    def test_a_history_with_calls_and_a_mode_need_functions(self, tools):
        contents, forbidden = [HI, m(call()), u(answer())], {"functionCallingConfig": {"mode": "NONE"}}
        assert violations({"contents": contents, **tools}) != []
        assert violations({"contents": contents, "tools": TOOLS, "toolConfig": forbidden}) == []
        assert violations({"contents": [HI], **tools, "toolConfig": forbidden}) != []


def contents(*payloads: Any) -> list[dict[str, Any]]:
    request = find_provider("gemini").project(build_context(path_of(*payloads)), blobs)
    assert violations(request) == []
    return request["contents"]


def with_evidence(message: Message, issuer: str = "gemini", **proofs: dict[str, Any]) -> list[dict[str, Any]]:
    """What an answer becomes, its parts' evidence given by `_index`."""
    evidence = Evidence(issuer, {key[1:]: proof for key, proof in proofs.items()})
    request = find_provider("gemini").project(
        build_context(entries([(user("hi"), None), (message, evidence)])), blobs
    )
    assert violations(request) == []
    return request["contents"][1:]


class TestProjection:
    def test_each_prompt_is_a_part_of_the_instruction(self):
        request = find_provider("gemini").project(
            build_context(path_of(system("be kind"), system("be brief"))), blobs
        )
        assert request == {
            "systemInstruction": {"parts": [text("be kind"), text("be brief")]},
            "contents": [],
        }

    def test_a_system_message_on_the_way_is_told_from_the_user(self):
        output = contents(user("hi"), assistant("yes"), system("be brief"), user("go"))
        assert output == [HI, YES, u(text("<system>\nbe brief\n</system>"), text("go"))]

    def test_messages_of_a_role_in_a_row_are_joined(self):
        output = contents(user("hi"), user("there"), assistant("yes"), assistant("so"))
        assert output == [u(text("hi"), text("there")), m(text("yes"), text("so"))]

    def test_a_history_that_begins_with_the_model_is_opened(self):
        assert contents(assistant("yes"), user("hi")) == [u(text(OPENING)), YES, HI]

    def test_results_stand_in_call_order(self):
        calls = assistant("x", ToolCall("a", "f"), ToolCall("b", "g", {"z": 1, "a": 2}))
        output = contents(
            user("hi"), calls, tool_result("b", "B"), Note(), tool_result("a", "A"), user("so?")
        )
        assert output == [
            HI,
            m(text("x"), call("f"), call("g", {"z": 1, "a": 2}, sign=None)),
            u(answer("f", {"output": "A"}), answer("g", {"output": "B"}), text("so?")),
        ]
        assert list(output[1]["parts"][2]["functionCall"]["args"]) == ["z", "a"]

    def test_a_call_that_never_got_a_result_says_so(self):
        output = contents(user("hi"), assistant(ToolCall("a", "f")))
        assert output == [HI, m(call()), u(answer(response={"error": NO_RESULT}))]

    def test_an_error_is_one(self):
        output = contents(user("hi"), assistant(ToolCall("a", "f")), tool_result("a", "bad", error=True))
        assert output[2] == u(answer(response={"error": "bad"}))

    def test_an_outcome_that_is_not_done_is_told_with_the_content(self):
        output = contents(user("hi"), assistant(ToolCall("a", "f")), tool_result("a", "x", outcome="dry_run"))
        assert output[2] == u(answer(response={"output": "[dry run: this call was not really made]\nx"}))

    def test_a_result_of_nothing_has_some_words(self):
        output = contents(user("hi"), assistant(ToolCall("a", "f")), tool_result("a"))
        assert output[2] == u(answer(response={"output": NO_OUTPUT}))

    @pytest.mark.parametrize(
        ("name", "written"),
        [
            ("fs.read:x", "fs.read:x"),
            ("größe", "gr__e"),
            ("9f", "_9f"),
            ("", "unnamed"),
            ("-" * 70, "_" + "-" * 63),
        ],
    )
    def test_names_are_made_legal_in_both_places(self, name, written):
        output = contents(user("hi"), assistant(ToolCall("a", name)))
        assert output[1]["parts"][0]["functionCall"]["name"] == written
        assert output[2]["parts"][0]["functionResponse"]["name"] == written

    def test_malformed_arguments_are_shown_as_such(self):
        output = contents(user("hi"), assistant(ToolCall("a", "f", malformed='{"x')))
        assert output[1] == m(call(args={"malformed_arguments": '{"x'}))

    def test_media_of_results_follow_the_whole_batch(self):
        calls = assistant(ToolCall("a", "f"), ToolCall("b", "f"))
        shot = tool_result("a", ["see", Media("png", "image/png", 32)])
        output = contents(user("hi"), calls, shot, tool_result("b", Media("gone", "image/png", 9)))
        assert output[2] == u(
            answer(response={"output": "see\n[media: shown below]"}),
            answer(response={"output": "[image/png, 9 bytes: is missing]"}),
            text(MEDIA_HEADING),
            image(),
        )

    def test_images_pdfs_and_sound_are_shown_and_the_rest_is_named(self):
        pdf, gif = Media("pdf", "application/pdf", 16), Media("gif", "image/gif", 14)
        sound, song = Media("sound", "audio/wav", 20), Media("song", "audio/mpeg", 13)
        [output] = contents(user(Media("png", "image/png", 32), pdf, sound, song, gif))
        types = [part["inlineData"]["mimeType"] for part in output["parts"][:4]]
        assert types == ["image/png", "application/pdf", "audio/wav", "audio/mp3"]
        assert output["parts"][4] == text("[image/gif, 14 bytes: not shown]")

    def test_a_file_too_large_is_named_instead(self):
        context = build_context(path_of(user(Media("big", "image/png", 15 * 1024 * 1024))))
        for size, kind in ((14 * 1024 * 1024, "inlineData"), (15 * 1024 * 1024, "text")):
            request = find_provider("gemini").project(context, lambda _, size=size: PNG.ljust(size, b"\0"))
            assert list(request["contents"][0]["parts"][0]) == [kind]
            assert violations(request) == []

    def test_an_empty_input_is_not_lost_and_an_empty_answer_goes(self):
        assert contents(user(""), assistant(" "), user("hi")) == [u(text(EMPTY_MESSAGE), text("hi"))]

    def test_media_of_an_answer_are_named(self):
        output = contents(user("hi"), assistant(Media("png", "image/png", 32)))
        assert output[1] == m(text("[image/png, 32 bytes: not shown]"))


class TestSignatures:
    def test_a_signature_goes_back_with_the_part(self):
        message = assistant(Reasoning("hm"), Text("yes"), ToolCall("a", "f"), ToolCall("b", "g"))
        output = with_evidence(message, _1={"signature": "dGV4dA=="}, _2={"signature": "c2ln"})
        assert output[0] == m(
            text("yes", thoughtSignature="dGV4dA=="), call("f", sign="c2ln"), call("g", sign=None)
        )

    def test_a_bare_signature_goes_back_bare(self):
        """Streams end in such a part."""
        output = with_evidence(assistant("yes", ""), _1={"signature": "c2ln"})
        assert output == [m(text("yes"), text("", thoughtSignature="c2ln"))]

    @pytest.mark.parametrize("issuer", ["openai", "openai-chat", "anthropic"])
    def test_a_call_of_another_model_is_marked_unsigned(self, issuer):
        """Gemini 3 refuses a history whose turn began elsewhere, unless it says so in Google's words."""
        message = assistant(Text("yes"), ToolCall("a", "f"), ToolCall("b", "g"))
        output = with_evidence(message, issuer, _0={"signature": "c2ln"}, _1={"signature": "c2ln", "id": "a"})
        assert output[0] == m(text("yes"), call("f", sign=UNSIGNED), call("g", sign=None))

    def test_a_thought_is_sent_only_with_geminis_signature(self):
        message = assistant(Reasoning("hm"), Text("yes"))
        part = {"text": "hm", "thought": True, "thoughtSignature": "c2ln"}
        assert with_evidence(message, _0={"signature": "c2ln"}) == [m(part, text("yes"))]
        for proof in ({}, {"signature": "no base64!"}):
            assert with_evidence(message, _0=proof) == [YES]
        assert with_evidence(message, "anthropic", _0={"signature": "c2ln"}) == [YES]

    def test_an_id_is_written_only_where_gemini_gave_one(self):
        """Vertex AI refuses the field: unknown name "id"."""
        message = assistant(ToolCall("a", "f"), ToolCall("b", "f"))
        output = with_evidence(message, _1={"id": "b"})
        assert output[0] == m(call(), call(id="b", sign=None))
        assert [part["functionResponse"].get("id") for part in output[1]["parts"]] == [None, "b"]


@pytest.mark.extra
class TestReading:
    def test_tokens_of_sound_and_images_are_counted_by_themselves(self):
        counts = [{"modality": "AUDIO", "tokenCount": 7}, {"modality": "TEXT", "tokenCount": 3}]
        usage = {
            "promptTokenCount": 10,
            "promptTokensDetails": counts,
            "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 9}],
        }
        content = {"role": "model", "parts": [{"text": "x"}]}
        reply = parse_reply({"candidates": [{"content": content}], "usageMetadata": usage})
        assert reply.units == {"input_audio_tokens": 7, "output_image_tokens": 9}

    def reply(self, *parts: dict[str, Any], finish: Any = "STOP", **more: Any) -> dict[str, Any]:
        """As the REST API writes it."""
        candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": finish, "index": 0}
        usage = {
            "promptTokenCount": 130,
            "candidatesTokenCount": 5,
            "thoughtsTokenCount": 3,
            "cachedContentTokenCount": 100,
            "totalTokenCount": 138,
        }
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-x", **more}

    PARTS = (
        text("hm", thought=True),
        text("yes"),
        call("f", {"x": 1}, sign="c2ln", id="a"),
        call("g", sign=None),
    )

    def test_a_reply_is_read(self):
        reply = parse_reply(self.reply(*self.PARTS))
        calls = (ToolCall("a", "f", {"x": 1}), ToolCall("call_1_g", "g"))
        assert reply.message == assistant(Reasoning("hm"), Text("yes"), *calls)
        assert reply.evidence == Evidence("gemini", {"2": {"signature": "c2ln", "id": "a"}})
        assert (reply.provider, reply.model, reply.finish) == ("gemini", "gemini-x", "STOP")

    def test_thoughts_count_as_output_and_the_cache_as_input(self):
        assert parse_reply(self.reply(text("yes"))).usage == Usage(130, 8, 100)

    def test_a_dump_of_the_sdk_is_read_like_the_reply(self):
        """Snake case, bytes, an enum, and None for whatever is not there."""
        from google.genai import types as types

        reply = self.reply(*self.PARTS, text("", thoughtSignature="dGV4dA=="), image())
        response = types.GenerateContentResponse.model_validate(reply)
        assert parse_reply(response) == parse_reply(reply) == parse_reply(response.model_dump(mode="json"))

    def test_snake_case_and_bytes_are_read_like_the_rest_api(self):
        part = {
            "function_call": {"id": None, "name": "f", "args": None},
            "thought_signature": b"sig",
            "text": None,
        }
        candidate = {"content": {"parts": [part], "role": "model"}, "finish_reason": "MAX_TOKENS"}
        usage = {"prompt_token_count": 7, "tool_use_prompt_token_count": 2, "candidates_token_count": None}
        reply = parse_reply({"candidates": [candidate], "usage_metadata": usage, "model_version": None})
        assert reply.message == assistant(ToolCall("call_1_f", "f"))
        assert reply.evidence == Evidence("gemini", {"0": {"signature": "c2ln"}})
        assert (reply.usage, reply.finish, reply.model) == (Usage(9, None), "MAX_TOKENS", None)

    def test_an_answer_goes_back_unchanged(self):
        parts = [text("yes"), call("f", {"z": 1, "a": 2}, sign="c2ln", id="a"), call("g", sign=None)]
        reply = parse_reply(self.reply(*parts))
        path = entries([(user("hi"), None), (reply.message, reply.evidence)])
        assert find_provider("gemini").project(build_context(path), blobs)["contents"][1] == m(*parts)

    def test_a_part_of_nothing_but_a_signature_is_kept(self):
        reply = parse_reply(self.reply(text("yes"), {"thoughtSignature": "c2ln"}))
        assert reply.message == assistant("yes", "")
        assert reply.evidence == Evidence("gemini", {"1": {"signature": "c2ln"}})

    def test_empty_texts_are_not(self):
        assert parse_reply(self.reply(text(""), text("yes"))).message == assistant("yes")

    def test_an_answer_cut_short_may_be_empty(self):
        reply = parse_reply({"candidates": [{"finishReason": "SAFETY"}]})
        assert (reply.message, reply.finish, reply.usage) == (assistant(), "SAFETY", None)

    def test_an_image_the_model_made_is_read_in_either_alphabet(self):
        data = b"\xfb\xef\xff"
        for encoded in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()):
            reply = parse_reply(self.reply(image(data=encoded)))
            assert reply.message == assistant(Attachment(data, "image/png"))

    def test_a_prompt_that_was_blocked_is_no_answer_and_says_why(self):
        with pytest.raises(UnrecognizedReply, match="SAFETY"):
            parse_reply({"promptFeedback": {"blockReason": "SAFETY"}})

    def test_two_candidates_are_not_one_answer(self):
        candidate = {"content": YES}
        with pytest.raises(UnrecognizedReply, match="2 candidates"):
            parse_reply({"candidates": [candidate, candidate]})

    def test_a_history_is_read(self):
        history = [
            u(text("look"), image()),
            m(text("I will"), call("f", {"q": [1]}, id="a"), call("g", sign=None)),
            u(answer("f", {"error": "bad"}, id="a"), answer("g", {"rows": [1]}), text("so?")),
            YES,
        ]
        assert find_provider("gemini").parse_messages(history) == [
            user("look", Attachment(PNG, "image/png")),
            assistant("I will", ToolCall("a", "f", {"q": [1]}), ToolCall("call_1_g", "g")),
            Message("tool", (ToolResult("a", (Text("bad"),), error=True),)),
            tool_result("call_1_g", '{"rows":[1]}'),
            user("so?"),
            assistant("yes"),
        ]

    def test_calls_without_ids_find_their_results_by_name_and_turn(self):
        """Each content may be read by itself, and another process must find the same ids."""
        calls = m(call("f", {"n": 1}), call("g", sign=None), call("f", {"n": 2}, sign=None))
        responses = u(
            answer("g", {"output": "G"}), answer("f", {"output": "1"}), answer("f", {"output": "2"})
        )
        messages = [
            message
            for content in (HI, calls, responses)
            for message in find_provider("gemini").parse_messages([content])
        ]
        items = [Item(message, seq, 0) for seq, message in enumerate(messages, 1)]
        written = find_provider("gemini").project(Context((), tuple(items)), blobs)["contents"][2]["parts"]
        assert [part["functionResponse"]["response"]["output"] for part in written] == ["1", "G", "2"]
        path_of(*messages)

    def test_a_replys_content_may_join_the_list(self):
        """The SDK's documentation shows contents.append(response.candidates[0].content)."""
        assert find_provider("gemini").parse_messages(
            [self.reply(*self.PARTS[1:3])["candidates"][0]["content"]]
        ) == [assistant("yes", ToolCall("a", "f", {"x": 1}))]

    def test_media_that_lie_elsewhere_are_kept_as_words(self):
        file = {"fileData": {"fileUri": "https://x/files/1", "mimeType": "video/mp4"}}
        assert find_provider("gemini").parse_messages([u(file)]) == [
            user(ProviderBlock("fileData", "file: https://x/files/1"))
        ]

    @pytest.mark.parametrize(
        "bad",
        [
            {"role": "robot", "parts": [text("x")]},
            u(image(data="%%%")),
            u(image(data="")),
            u({"inlineData": {"data": PNG_64}}),
            u(text(7)),  # type: ignore[arg-type]
            u(call()),
            m(answer()),
            m({"functionCall": {"args": {}}}),
            u({"functionResponse": {"name": "f"}}),
            {"role": "user", "parts": 7},
            "text",
        ],
        ids=str,
    )
    def test_a_content_of_the_wrong_shape_is_refused(self, bad):
        with pytest.raises(UnrecognizedReply):
            find_provider("gemini").parse_messages([bad])
