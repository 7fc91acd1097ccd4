"""Every search of text that a person, a model or another tool wrote takes time in proportion to its length.

A regular expression that tries again at every position is quadratic for the right text: 560 kB of unended key headers
took 64 s to append. Each search is given text made for it, once and four times as long.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import Attachment, Message, Text, ToolCall, ToolResult, assistant, user
from oakleaf.agent.model_call import StreamBuffer
from oakleaf.bundle.redaction import CountingRedactor
from oakleaf.cli.rendering.turn_screen import _FENCE as SCREEN_FENCE
from oakleaf.cli.rendering.turn_screen import _ITEM as SCREEN_ITEM
from oakleaf.core.codec import to_json
from oakleaf.core.json_repair import _LONE_SURROGATE
from oakleaf.core.media import extract_blobs
from oakleaf.core.redact import Redactor
from oakleaf.core.search import parse_query
from oakleaf.core.turn_comparison import _split
from oakleaf.errors import OakleafError
from oakleaf.exports.escape import code, fence, lines_of, quote
from oakleaf.exports.workflow import _OPENER, _SLUG
from oakleaf.exports.yaml import to_yaml
from oakleaf.log.original_calls import restore_call
from oakleaf.log.workspace import Workspace
from oakleaf.models.base import Delta
from oakleaf.models.names import _URL as MODEL_URL
from oakleaf.providers.base import _mask, body_text
from oakleaf.providers.overflow import OVERFLOW
from oakleaf.stores.transfer import blob_references
from oakleaf.verbs.reference import split
from oakleaf.wire import find_provider
from oakleaf.wire.anthropic.rules import _BASE64
from oakleaf.wire.openai_chat.rules import _IMAGE, _LINK, _PDF
from oakleaf.wire.tool_pairs import legal_name
from oakleaf_importers.formats.langchain import DATA_URL
from oakleaf_lab.case_file import ExpectedCall
from oakleaf_postgres.store.url import HINTS
from oakleaf_record.credentials import SecretMask
from oakleaf_workspace.command_rules import _PROGRAM_OPTIONS, reason_to_ask
from oakleaf_workspace.files import _FolderWalk
from oakleaf_workspace.http import _without_user
from oakleaf_workspace.scope import Scope
from support.patterns import Use, hostile_texts, uses

LENGTH = 20_000
KEY_BEGIN = "-----BEGIN RSA PRIVATE KEY-----\n"
KEY_END = "-----END RSA PRIVATE KEY-----\n"
REFERENCE = f"[oakleaf-blob:{'0' * 64};a/b;1]"
words = Redactor().hiding(["ann lee", "ann", "zo\u00eb", "a" * 40])
redactor = Redactor({"NAME": "correct horse battery staple", "AAA": "a" * 40, "ODD": '"\\%+&ü\n;é'})
ESCAPES = [
    "\\",
    "\\\\",
    "\\u0025",
    "%25",
    "%",
    "&amp;",
    "&",
    "+",
    "%2B+",
    "\\u0026amp%3B",
    '\\"',
    "\\ud83d",
    "\\u005cu0025&amp;%25",
]
WORDS = [
    "Y29ycmVjdCBob3JzZSA",
    "WTI5eWNtVmpkQ0JvYjNKelpTQQ",
    "A" * 76 + "\n",
    "A" * 76 + "\\n",
    "A%2F",
    "correct%20horse+",
]


def seconds(work: Callable[[], object]) -> float:
    """The least of a few runs: what else the machine does only adds to it."""
    times = []
    for _ in range(3):
        start = time.process_time()
        with suppress(OakleafError, ValueError):  # refusing is an answer too
            work()
        times.append(time.process_time() - start)
    return min(times)


def stream(text: str) -> None:
    buffer = StreamBuffer(redactor)
    for start in range(0, len(text), 500):
        buffer.add(Delta(text[start : start + 500]))
    buffer.rest()


def append(text: str) -> None:
    session = oakleaf.open("memory:", secrets={"NAME": "correct horse battery staple"}).start()
    session.append([user(text), assistant(text, ToolCall("c", "t", {"text": text}))])


def counting(text: str) -> None:
    CountingRedactor(redactor).redact_text(text + " correct horse battery staple")


def extract(text: str) -> None:
    extract_blobs(Message("assistant", (Text(text), ToolCall("c", "t", {"a": text}))))
    extract_blobs(Message("tool", (ToolResult("c", (Text(text), Attachment(b"x", "a/b"))),)))


def restore(text: str) -> None:
    restore_call(
        ToolCall("c", "t", {"a": text}, placeholders=("[redacted NAME]",)), redactor.values, lambda _: None
    )


def redact_call(text: str) -> None:
    redactor.redact_payload(assistant(ToolCall("c", "t", {"a": text, text: [text]})))


def glob(text: str) -> None:
    _FolderWalk(None, ".", text)  # type: ignore[arg-type]  # refused, or not, before the folder is looked at


def read_image(url: str) -> None:
    for provider in ("openai-chat", "openai"):
        part = (
            {"type": "image_url", "image_url": {"url": url}}
            if provider == "openai-chat"
            else {"type": "input_image", "image_url": url}
        )
        find_provider(provider).parse_messages([{"role": "user", "content": [part]}])


SEARCHES: list[tuple[str, Callable[[str], object], list[str]]] = [
    (
        "redacted text",
        redactor.redact_text,
        [KEY_BEGIN, KEY_BEGIN + KEY_END, "-----BEGIN ", "-----BEGIN A", "-----END RSA PRIVATE KEY-----", "PRIVATE KEY-----",
         "-", "sk-", "task-", "sk-ant-", "sk-proj-", "ghp_", "github_pat_", "AKIA", "AIza", "xoxb-", "a", "correct horse ", *ESCAPES, *WORDS],
    ),
    ("words to hide", words.redact_text, ["a", "ann ", "ann lee", "ann le", "Ann", "zo\u00eb", "\\u00eb", "ab", *ESCAPES, *WORDS]),
    ("bytes to redact", lambda text: redactor.may_contain_secret(to_json(text, "t")), [KEY_BEGIN, "-----BEGIN A", "sk-", "a", "AKIA", *ESCAPES, *WORDS]),
    ("a key that a server repeats", SecretMask(["a" * 40, "ab" * 20, "k-Zq8t0P7hN2kLx9vYcR3"]).json, ["a", "ab", "abababab", "k-Zq8t0P", "Zq8t0P7hN2kLx9v ", "aaaaaaa "]),
    ("a tool call to redact", redact_call, [KEY_BEGIN, "[redacted ", "[redacted", "[", "[redacted NAME] "]),
    ("an appended message", append, [KEY_BEGIN, "[redacted ", "data:a/b;base64,", ";base64,"]),
    ("a stream", stream, [KEY_BEGIN, KEY_BEGIN + KEY_END, "-----BEGIN ", "sk-", "a b ", "correct horse ", *ESCAPES, *WORDS]),
    ("what was hidden in a bundle", counting, ["[redacted ", "[redacted", "[redacted NAME] "]),
    ("placeholders to fill in", restore, ["[redacted ", "[redacted NAME] ", REFERENCE + " "]),
    ("data URLs in messages", extract, ["data:", "data:a", "data:a/", "data:a/b", "data:a/b;", "data:a/b;c=", ";base64,", "data:a/b;base64,", "data:a/b;base64,AAAA", ";base64,data:a/b;c", "A" * 76 + "\n", "iVBORw0KGg" + "A" * 66 + "\n", "iVBORw0KGg" + "A" * 66 + "\\n"]),
    ("references to blobs", lambda text: blob_references("note", to_json(text, "t")), ["oakleaf-blob:", f"oakleaf-blob:{'0' * 64};", REFERENCE]),
    ("a data URL", read_image, ["data:", "data:;", "data:a/b;base64,", ";", "data:a/b" + ";" * 40]),
    ("a data URL of LangChain", DATA_URL.fullmatch, ["data:", "data:;", "data:;base64", "data:a/b;base64,"]),
    ("slots in prompts", lambda text: Workspace(working_dir="/").fill(user(text)), ["{{", "{{ ", "{{ctx.", "{{ctx.a ", "{{ctx.a.", "{{ctx.a }"]),
    ("a search", lambda text: parse_query(text, 0), ['"', "a:", "-", 'a:"', "tag:", "a_"]),
    ("a fence in Markdown", quote, ["```", "``` ", "~~~ ", "``` `", "`", " ", "~~~a", "```a "]),
    ("one long fence in Markdown", lambda text: quote("```" + text + "`"), [" ", "\t", "a", "a "]),
    ("code in Markdown", lambda text: (code(text), fence(lines_of(text), "x")), ["`", "` ", "\r", "\r\n"]),
    ("YAML", lambda text: to_yaml({"a": text}), ["a ", "a, ", " \n", "\n", "a\n", "a \n", "\t", "("]),
    ("a workflow", lambda text: (_OPENER.sub("", text), _SLUG.findall(text)), ["{", "{{", "a", "-"]),
    ("words to compare", _split, [" ", "a ", "\n", " \n", "a"]),
    ("an error of a provider", lambda text: OVERFLOW.search(_mask(text, "secret-key")), ["input token count", "exceed", "exceeds the ", "input token count exceed", "secret-ke"]),
    ("a command", lambda text: reason_to_ask(Scope(Path("/"), "full"), ["sh", "-c", text]), ["git ", "git add ", "git -C ", "a/", "/git", "./", "git-"]),
    ("a glob", glob, ["{", "{,", ",", "{a,", "{}"]),
    ("one long glob", lambda text: glob("{" + text), [",", "a,", "a"]),
    ("a URL to show", _without_user, ["//", "//a", "a", "/", "@"]),
    ("a reference", split, ["@", "@1", "@1:", "1", "@1:1"]),
    ("the name of a model", lambda text: MODEL_URL.split(text, maxsplit=1), ["@", "@http", "@https:/"]),
    ("the name of a tool", lambda text: legal_name(text, 64), ["a", "!", "ü"]),
    ("lines of another tool", lambda text: _LONE_SURROGATE.sub(b"", text.encode()), ["\\", "\\u", "\\ud83d", "\\ud83d\\u"]),
    ("lines on the screen", lambda text: (SCREEN_FENCE.match(text), SCREEN_ITEM.match(text)), [" ", "1", "`", "- "]),
    ("base64", _BASE64.fullmatch, ["A", "AAAA", "AAAA=", "="]),
    ("an image", lambda text: (_IMAGE.fullmatch("data:image/png;base64,iVBORw0KGgo" + text), _PDF.fullmatch(text)), ["A", "A=", "data:"]),
    ("a link", _LINK.fullmatch, ["https://", "https://a", "https://a "]),
    ("an error page", lambda text: body_text("<html>" + text), ["<title>", "<title", "<h1 ", "<", "<style>", "<script ", "<style", ">", "<!--"]),
    ("an expected call", lambda text: ExpectedCall.parse(f"f({text})"), [" ", "...", ",", ", ...", "(", "{", "\n"]),
]  # fmt: skip


@pytest.mark.parametrize(("search", "pieces"), [pytest.param(*case[1:], id=case[0]) for case in SEARCHES])
def test_four_times_the_text_takes_about_four_times_as_long(
    search: Callable[[str], Any], pieces: list[str]
) -> None:
    for piece in pieces:
        text = piece * (LENGTH // len(piece) + 1)
        short, long = seconds(partial(search, text)), seconds(partial(search, text * 4))
        assert long <= 8 * short + 0.005, f"{piece!r}: {short:.4f} s, then {long:.4f} s"


DYNAMIC = {
    "oakleaf_workspace/command_rules.py:option": "one of _PROGRAM_OPTIONS",
    "oakleaf_workspace/files.py:grep": "a pattern of the model's, in a process of its own that is given a time",
    "oakleaf/cli/config.py:pattern": "a name in the user's own file",
    "oakleaf/cli/rendering/error_text.py:use": "the names of the commands",
    "oakleaf/core/encodings.py:words_of": "a run of letters, which is searched above",
    "oakleaf/core/media.py:_more_lines": "lines of base64, which are searched above",
    "oakleaf/core/redact.py:_SEARCHES": "the shapes of secrets, which are searched above",
    "oakleaf/core/redact.py:__init__": "the secrets, which are searched above",
    "oakleaf/core/redact.py:_whole_words": "the words to hide, which are searched above",
    "oakleaf/core/search_text.py:match": "the words of a query",
    "oakleaf_lab/case_file.py:text_pattern": "the words, or the pattern, of a case that the user wrote",
    "oakleaf/log/original_calls.py:pattern": "the placeholders of a call, which are filled in above",
    "oakleaf/providers/openai_chat.py:_adapt": "the name of a field",
    "oakleaf/providers/overflow.py:match": "one of a few patterns, in text that is cut before",
    "oakleaf_postgres/store/url.py:hint": "one of HINTS",
}
"""The patterns that are made while the program runs, and why that is all right."""
ALL_USES, DYNAMIC_PLACES = uses()
ALL_USES |= {Use("oakleaf_postgres/store/url.py:HINTS", pattern, 0, "search") for pattern, _ in HINTS}
ALL_USES |= {
    Use("oakleaf_workspace/command_rules.py:_PROGRAM_OPTIONS", pattern, re.DOTALL.value, "fullmatch")
    for pattern in _PROGRAM_OPTIONS.values()
}


class TestEveryPattern:
    def test_is_known(self) -> None:
        assert set(DYNAMIC) == DYNAMIC_PLACES
        assert len(ALL_USES) > 150

    @pytest.mark.parametrize("use", sorted(ALL_USES), ids=lambda use: f"{use.place}.{use.function}")
    def test_takes_time_in_proportion_to_the_text(self, use: Use) -> None:
        assert slow_text(use) is None

    @pytest.mark.parametrize(
        ("pattern", "function"),
        [
            (r"\s+(?=[a-z_]+=)", "split"),
            (r",?\s*(\.\.\.|…)\s*}$", "sub"),
            (r"<(title|h1)[^>]*>(.*?)</\1>", "search"),
            (r"<(style|script)\b.*?</\1>|<[^>]*>", "sub"),
            (r'database ".*" does not exist', "search"),
            (r"\$\{(\w+)(?::-([^}]*))?\}", "sub"),
        ],
    )
    def test_that_is_slow_is_caught(self, pattern: str, function: str) -> None:
        assert slow_text(Use("here", pattern, 0, function)) is not None


def slow_text(use: Use) -> str | bytes | None:
    """Return the beginning of a text that takes much more than four times as long when it is four times as long."""
    search = use.run()
    for text in hostile_texts(use):
        length, start = LENGTH // 2, time.process_time()
        search(text(length))
        once = time.process_time() - start
        if once < 0.001:
            continue
        if once < 0.02:  # long enough to be measured
            length *= 4
        if seconds(partial(search, text(length))) > 8 * seconds(partial(search, text(length // 4))) + 0.005:
            return text(60)
    return None
