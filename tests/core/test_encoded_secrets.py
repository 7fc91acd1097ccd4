"""A secret is found however the text around it was encoded: as JSON, in a URL, in HTML, in base64, and all of these nested."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import oakleaf
from oakleaf import Note, ScriptedModel, Settings, ToolCall, assistant, system, tool_result, user
from oakleaf.core.encodings import encoded_forms
from oakleaf.core.facts import PluginFact
from oakleaf.core.redact import Redactor
from oakleaf.core.tool_definitions import ToolSpec, define_tools
from oakleaf.errors import InvalidArgument, SecretInName
from oakleaf.ext import formats
from oakleaf.log.original_calls import restore_call
from oakleaf.models.base import Delta
from oakleaf.store import Store
from oakleaf.wire import Answer
from support.sessions import exported

Encoder = Callable[[str], str]
BASE64: dict[str, Encoder] = {
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "urlsafe base64": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
}
ESCAPES: dict[str, Encoder] = {
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON, upper case": lambda text: _upper_case(r"\\u[0-9a-f]{4}", json.dumps(text)[1:-1]),
    "JSON, UTF-8": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "URL": lambda text: quote(text, safe=""),
    "URL, lower case": lambda text: re.sub("%..", lambda match: match[0].lower(), quote(text, safe="")),
    "form": quote_plus,
    "HTML": html.escape,
    "HTML, numbers": lambda text: "".join(
        char if char.isascii() and char.isalnum() else f"&#{ord(char)};" for char in text
    ),
}
ENCODERS = ESCAPES | BASE64
SECRET = 'pa"ss\\wörd 😀 & co'


def _upper_case(pattern: str, text: str) -> str:
    return re.sub(pattern, lambda match: "\\u" + match[0][2:].upper(), text)


def encode(secret: str, names: Sequence[str], before: str = "", after: str = "") -> tuple[str, str]:
    """Return a text that holds the secret, encoded by each in turn, and the part of it that says the secret alone."""
    text, core, start = before + secret + after, secret, len(before)
    for name in names:
        encoder = ENCODERS[name]
        if name in BASE64:
            first, last = len(text[:start].encode()), len(text[: start + len(core)].encode())
            text, start = encoder(text), (first * 8 + 5) // 6
            core = text[start : last * 8 // 6]
        else:
            first_part, last_part = encoder(text[:start]), encoder(text[start + len(core) :])
            core, start = encoder(core), len(first_part)
            text = first_part + core + last_part
    return text, core


secrets = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=8, max_size=30),
    st.text(st.sampled_from('ab7 "\\%+&#;u0041nä😀/=\n-_.'), min_size=8, max_size=30),
)
chains = st.lists(st.sampled_from(sorted(ENCODERS)), max_size=3)
surroundings = st.text(st.sampled_from('ab "\\n%+&/=\n{}ä'), max_size=12)


@given(secrets, st.sampled_from(["JSON", "JSON, UTF-8", "URL", "HTML", *BASE64]), surroundings, surroundings)
def test_the_text_of_an_encoder_holds_an_encoded_form(
    secret: str, name: str, before: str, after: str
) -> None:
    _, core = encode(secret, [name], before, after)
    assert any(form and form in core for form in encoded_forms(secret))


@pytest.mark.attack
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(secrets, chains, surroundings, surroundings)
@example('000000"\\', ["HTML"], "", "/")  # the end of the secret and what follows look like an escape
@example("000:000\x1f", [], "%", "")
@example('000:000"', ["JSON", "JSON", "HTML"], "", "")
def test_no_nesting_of_encodings_hides_a_secret(
    secret: str, names: list[str], before: str, after: str
) -> None:
    assume(len(set(secret)) > 2)  # else the surroundings may say it by chance
    text, core = encode(secret, names, before, after)
    redactor = Redactor({"X": secret})
    redacted = redactor.redact_text(text)
    assert core not in redacted
    for ensure_ascii in (False, True):
        assert redactor.may_contain_secret(json.dumps(text, ensure_ascii=ensure_ascii).encode())
    twice = redactor.redact_text(f"{text} and {text}")
    assert core not in twice


def fill(store: Store, text: str) -> oakleaf.Session:
    """Write a text wherever one can be written."""
    session = store.start(
        "a",
        [system(f"prompt {text}")],
        title=text,
        state={"k": text},
        spec={"s": text},
        policy={text: [text]},
    )
    arguments = {"body": text, text: {"deep": [text]}}
    session.append(
        [
            user(f"q {text}"),
            assistant(text, ToolCall("c", "t", arguments), ToolCall("d", "t", malformed=text)),
        ]
    )
    session.append([tool_result("c", {"out": text}, details={"d": text}, state={"s": text})])
    session.append([tool_result("d", text)])
    session.append([assistant("done"), Note({"n": text}), Settings(prompt=text, limits={"l": text})])
    tools = define_tools([ToolSpec("t", text, {"x": text})], store.runtime.redactor)
    session.log.append([tools.draft()])
    with contextlib.suppress(InvalidArgument):  # too long, or of several lines
        session.label(2, text)
    session.title(text)
    session.enqueue(text)
    session.log.record(PluginFact("tests", "custom", {"why": text, text: 1}))
    with pytest.raises(ValueError, match="error"), session.turn("again"):
        raise ValueError(f"error {text}")
    session.rewind(to=2, summary=text)
    session.end("failed", text)
    return session


def exports(session: oakleaf.Session) -> dict[str, bytes]:
    """Return everything that can be made of a session for somebody else."""
    options: dict[str, Any] = {"bundle": {"redact": True}, "otel": {"content": True}}
    texts = {name: exported(session, name, **options.get(name, {})).encode() for name in formats()}
    return texts | {"all branches": exported(session, "jsonl", what="all").encode()}


def forms(core: str) -> list[bytes]:
    """Return how a format of one's own may write a text."""
    texts = [core, *(ESCAPES[name](core) for name in ("JSON", "JSON, UTF-8", "HTML"))]
    return [text.encode() for text in texts]


@pytest.mark.attack
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(secrets, chains)
@example(SECRET, ["JSON"])
@example(SECRET, ["JSON, UTF-8", "JSON"])
@example("correct horse battery", ["base64", "form"])
def test_no_file_and_no_export_has_any_form_of_a_secret(
    tmp_path_factory: pytest.TempPathFactory, secret: str, names: list[str]
) -> None:
    assume(len(set(secret)) > 5)
    assume(not {secret, *encode(secret, names)} & {"prompt", "error"})
    text, core = encode(secret, names, '{"password": "', '", "x": 1}')
    folder: Path = tmp_path_factory.mktemp("store")
    with oakleaf.open(folder / "a.db", secrets={"PW": secret}) as store:
        session = fill(store, text)
        assert session.verify() == []
        found = [
            name
            for name, data in {
                **{path.name: path.read_bytes() for path in folder.iterdir()},
                **exports(session),
            }.items()
            if any(form in data for form in forms(core))
        ]
        assert found == []
    # What was written when the secret was not known yet is hidden in what is exported now.
    with oakleaf.open(folder / "b.db") as store:
        session_id = fill(store, text).session_id
    with oakleaf.open(folder / "b.db", secrets={"PW": secret}) as store:
        made = exports(store.session(session_id))
        assert [name for name, data in made.items() if any(form in data for form in forms(core))] == []


@pytest.mark.parametrize("names", [["JSON"], ["JSON", "JSON"], ["URL"], ["base64"], ["HTML"]])
def test_an_encoded_secret_in_a_call_is_not_filled_in_again(names: list[str]) -> None:
    """The value in place of its encoding would be another text than the model wrote."""
    redactor = Redactor({"PW": SECRET})
    text, _ = encode(SECRET, names, '{"password": "', '"}')
    call = redactor.redact_payload(assistant(ToolCall("c", "t", {"body": text}))).calls[0]
    assert call.placeholders == ("[redacted PW, encoded]",)
    assert restore_call(call, redactor.values, lambda _: None) is None
    plain = redactor.redact_payload(assistant(ToolCall("c", "t", {"body": SECRET}))).calls[0]
    assert restore_call(plain, redactor.values, lambda _: None).arguments == {"body": SECRET}


@pytest.mark.parametrize("names", [["JSON"], ["JSON", "JSON"], ["form"], ["base64"], ["HTML, numbers"]])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_no_piece_of_a_stream_shows_an_encoded_secret(names: list[str], size: int) -> None:
    text, core = encode(SECRET, names, 'it is "', '" and no other. ')

    class Pieces(ScriptedModel):
        async def stream(self, request):
            for start in range(0, len(text), size):
                yield Delta(text[start : start + size])
            yield Answer(assistant(text), None, None, "p", "m", "stop")

    session = oakleaf.open("memory:", secrets={"PW": SECRET}).start()
    events = session.send_sync("q", model=Pieces([])).events
    live = "".join(event.data["text"] for event in events if event.type == "session:delta")
    assert live == session.path()[-1].message.text
    assert core not in live
    assert "[redacted PW, encoded]" in live


def test_wrapped_base64_is_read_across_lines() -> None:
    for length in range(60):
        text = base64.encodebytes(b"x" * length + b"correct horse battery staple" + b"y" * 90).decode()
        for form in (text, json.dumps(text)):
            redactor = Redactor({"PW": "correct horse battery staple"})
            assert "[redacted PW, encoded]" in redactor.redact_text(form), length
            assert redactor.may_contain_secret(json.dumps(form).encode())


@pytest.mark.parametrize("names", [["JSON"], ["URL"], ["base64"]])
def test_an_encoded_secret_in_a_name_is_refused(store: Store, names: list[str]) -> None:
    text, _ = encode(SECRET, names)
    hidden = oakleaf.open("memory:", secrets={"PW": SECRET})
    with pytest.raises(SecretInName):
        hidden.start(owner=text)


def test_apparent_encodings_stay() -> None:
    redactor = Redactor({"PW": SECRET, "KEY": "abcdefgh"})
    for text in ("C:\\new\\u0041", "100%25 & &amp; &lt;", "a+b=c", "A" * 500, "\\ud83d", "%", "&#99999999;"):
        assert redactor.redact_text(text) == text
