"""The largest answer of a surface."""

from __future__ import annotations

from typing import Annotated

import pytest
from msgspec import Struct

from oakleaf.errors import AnswerTooLarge, InvalidArgument
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.bounds import bounded, json_size
from oakleaf.verbs.fields import Count, File, Help, Ref, bind_request

MOST = 24_000


class Rows(Struct):
    rows: list[str]


class Listing(Verb, frozen=True):
    """List."""

    session: Ref
    agent: str | None = None
    limit: Count = 20
    whole: bool = False
    file: Annotated[File | None, Help("A file.")] = None

    def run(self, caller: Caller) -> Rows:
        return Rows([])


ASKED = Listing(session="latest")


def test_a_small_answer_is_unchanged() -> None:
    answer = {"rows": ["x" * 23_000]}
    assert bounded(ASKED, answer, MOST) is answer


@pytest.mark.parametrize("text", ["a", "\x01", "\U0001f600", 'é"'])
def test_long_texts_are_cut_until_the_answer_fits_and_the_cut_is_counted(text: str) -> None:
    rows = [{"id": f"ses_{n}", "texts": [text * 6_000], "next": None} for n in range(5)]
    answer = bounded(ASKED, {"rows": rows, "next": "c" * 400}, MOST)
    assert json_size(answer) <= MOST + 30  # and the count
    assert [row["id"] for row in answer["rows"]] == [f"ses_{n}" for n in range(5)]
    cut = answer["rows"][0]["texts"][0]
    assert cut.endswith("…")
    assert answer["omitted_chars"] == 5 * (len(text) * 6_000 - len(cut))
    assert answer["next"] == "c" * 400


def test_a_list_is_refused_in_words_that_name_the_fields_to_narrow_with() -> None:
    with pytest.raises(AnswerTooLarge) as caught:
        bounded(ASKED, {"rows": ["x" * 100] * 1_000}, MOST)
    assert (
        caught.value.problem
        == "the answer of listing has 103,010 bytes, and one answer here has at most 24,000"
    )
    assert caught.value.hint == "ask for less with limit or agent"


def test_a_request_names_no_file_and_a_program_may() -> None:
    with pytest.raises(InvalidArgument, match="a request names no file or folder"):
        bind_request(Listing, {"session": "latest", "file": "/etc/passwd"})
    assert Listing(session="latest", file="notes.txt").file == "notes.txt"
