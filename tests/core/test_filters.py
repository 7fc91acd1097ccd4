"""The filters before the searches for secrets and for bytes: an append is the same without these filters, only slower."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from html import escape
from json import dumps
from unittest.mock import patch
from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st

from oakleaf import ToolCall, assistant, tool_result, user
from oakleaf.core import media
from oakleaf.core.drafts import Draft, EntryBatch, build_entries
from oakleaf.core.entries import Note
from oakleaf.core.messages import Message, Text
from oakleaf.core.redact import Redactor
from oakleaf.core.turns import Cursor

SECRETS = {"PLAIN": "hunter2hunter2", "ODD": 'x"\\ü&+ y/z', "SPACED": "two words here"}
PNG = b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(60))).decode()
FRAGMENTS = [
    *SECRETS.values(),
    *(dumps(value)[1:-1] for value in SECRETS.values()),
    *(quote(value) for value in SECRETS.values()),
    *(escape(value) for value in SECRETS.values()),
    *(b64encode(b"ab" + value.encode()).decode() for value in SECRETS.values()),
    *("sk-ant-" + "a1B2" * 5, "sk-proj-", "gh", "ghp_" + "a1B2" * 9, "AKIA" + "A1B2" * 4, "a1B2" * 9),
    *("-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----", "xoxb-", "a1B-" * 5),
    *(PNG, PNG[:59], PNG[:60], "data:image/png;base64,", urlsafe_b64encode(bytes(range(200))).decode()),
    *("[oakleaf-blob:", "\n", "\\n", '"', "\\", "ü", " ", ".", "=", "Where is order 41?"),
]


class PlainRedactor(Redactor):
    """Searches every text."""

    def may_contain_secret(self, body: bytes) -> bool:
        return True


texts = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)
arguments = st.dictionaries(st.sampled_from(["data", "text", "mime_type"]) | texts, texts, max_size=3)
payloads = st.one_of(
    texts.map(user),
    arguments.map(lambda values: Note(values)),
    st.lists(texts, min_size=1, max_size=3).map(lambda parts: user(*map(Text, parts))),
)
calls = st.tuples(arguments, texts).map(
    lambda both: (
        user("Go."),
        assistant(ToolCall("c1", "look", both[0])),
        tool_result("c1", both[1]),
    )
)


def entries(payloads: tuple[Message | Note, ...], redactor: Redactor) -> EntryBatch:
    return build_entries(Cursor(), [Draft(payload) for payload in payloads], 1, redactor=redactor)


@settings(max_examples=150)
@given(payloads.map(lambda payload: (payload,)) | calls)
def test_an_append_is_the_same_without_filters(payloads: tuple[Message | Note, ...]) -> None:
    filtered = entries(payloads, Redactor(SECRETS))
    with patch.object(media, "_has_long_word", lambda text: True):
        plain = entries(payloads, PlainRedactor(SECRETS))
    assert filtered.entries == plain.entries
    assert filtered.blobs == plain.blobs
