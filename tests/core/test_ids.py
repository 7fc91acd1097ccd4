"""Ids of sessions: none addresses another session, and foreign ids become different ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakleaf.core.ids import check_id, escape_id, unescape_id
from oakleaf.errors import InvalidId

UNUSABLE = [
    *(
        "ses_vic/",
        "/ses_vic",
        "a/b",
        "../ses_vic",
        ".",
        "..",
        ".hidden",
        "ses_vic?x=1",
        "ses_vic#",
        "ses_vic%2F",
    ),
    *(
        "%2e%2e",
        "ses_vic\\",
        "ses\nvic",
        "ses_vic\0",
        "ses_vic\x7f",
        "ses\x9bvic",
        "ses_\u202evic",
        "ses_vic\u200b",
    ),
    *("\ud800", " ses_vic", "ses_vic ", "", "ses\u2028vic"),
]
anything = st.text(st.characters(exclude_categories=()), max_size=20) | st.sampled_from(UNUSABLE)


@pytest.mark.attack
@pytest.mark.parametrize("session_id", UNUSABLE)
def test_an_id_ambiguous_in_urls_or_folders_is_refused(session_id: str) -> None:
    with pytest.raises(InvalidId, match="session id"):
        check_id(session_id)


@pytest.mark.parametrize(
    "session_id", ["ses_1", "a.b", "a:b@c", "claude-x~1", "東京", "a b", "é", "A-_~!$&'()*+,;="]
)
def test_any_other_id_is_accepted_unchanged(session_id: str) -> None:
    check_id(session_id)
    assert escape_id(session_id.replace("~", "")) == session_id.replace("~", "")


@given(anything)
def test_a_foreign_id_is_escaped_to_a_part_of_an_id_and_back(foreign: str) -> None:
    escaped = escape_id(foreign)
    check_id(f"tool-{escaped}")
    assert unescape_id(escaped) == foreign


@given(anything, anything)
def test_two_foreign_ids_never_become_one(one: str, other: str) -> None:
    assert (escape_id(one) == escape_id(other)) is (one == other)
