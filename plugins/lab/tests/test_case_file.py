"""The file of a case: what can be written is read again equal, and what is wrong in it is said with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakleaf import ToolCall
from oakleaf_lab.case_file import (
    SUFFIX,
    Case,
    CaseReplay,
    ExpectedCall,
    ExpectedTurn,
    call_text,
    find_cases,
    read_case,
    text_pattern,
    write_case,
)
from oakleaf_lab.errors import InvalidCase

text = st.text(st.characters(codec="utf-8"), max_size=30)
json_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(text, json_value, max_size=4)


class TestCall:
    @given(arguments)
    def test_a_written_call_matches_the_call_it_was_written_from(self, values: dict[str, Any]) -> None:
        call = ToolCall("c", "look_up", values)
        expected = ExpectedCall.parse(call_text(call))
        assert expected.matches(call)
        assert ExpectedCall.parse(str(expected)) == expected

    @pytest.mark.parametrize(
        ("pattern", "values", "is_match"),
        [
            ("f", {"a": 1}, True),
            ("f()", {}, True),
            ("f()", {"a": 1}, False),
            ('f({"a": 1})', {"a": 1}, True),
            ('f({"a": 1})', {"a": 1, "b": 2}, False),
            ('f({"a": 1, ...})', {"a": 1, "b": 2}, True),
            ('f({"a": 1, …})', {"a": 2, "b": 2}, False),
            ('f({"a": null, ...})', {}, False),
            ("f({...})", {"b": 2}, True),
            ("g", {}, False),
        ],
    )
    def test_arguments_are_exact_unless_left_open(
        self, pattern: str, values: dict[str, Any], is_match: bool
    ) -> None:
        assert ExpectedCall.parse(pattern).matches(ToolCall("c", "f", values)) is is_match

    def test_a_call_with_malformed_arguments_is_expected_by_its_name(self) -> None:
        call = ToolCall("c", "f", {}, malformed='{"a": ')
        assert call_text(call) == "f"
        assert ExpectedCall.parse("f").matches(call)
        assert not ExpectedCall.parse("f()").matches(call)


class TestText:
    @pytest.mark.parametrize(
        ("expected", "answer", "is_said"),
        [
            ("order 41", "Your ORDER\n 41 is lost", True),
            ("a.b", "axb", False),
            (r"/refund(ed)?\s.*41/", "Refunded\nfor 41", True),
            ("/^no/", "oh no", False),
        ],
    )
    def test_case_and_spaces_do_not_matter(self, expected: str, answer: str, is_said: bool) -> None:
        assert (text_pattern(expected).search(answer) is not None) is is_said


class TestFile:
    @given(
        turns=st.lists(
            st.builds(
                ExpectedTurn,
                seq=st.integers(1, 99),
                input=text,
                tools=st.none()
                | st.lists(
                    st.just("f") | st.builds(lambda a: call_text(ToolCall("c", "f", a)), arguments)
                ).map(tuple),
                match=st.sampled_from(["exact", "include"]),
                never_calls=st.lists(st.just("g")).map(tuple),
                says=st.lists(text.filter(lambda t: t.strip() and not t.startswith("/"))).map(tuple),
            ),
            min_size=1,
            max_size=3,
        ),
        words=text,
        options=st.dictionaries(text, st.integers(0, 9) | text | st.lists(text), max_size=2),
    )
    def test_what_is_written_is_read_again_equal(
        self,
        turns: list[ExpectedTurn],
        words: str,
        options: dict[str, Any],
        tmp_path_factory: pytest.TempPathFactory,
    ) -> None:
        turns = [t if t.tools is not None else ExpectedTurn(t.seq, t.input, says=t.says) for t in turns]
        case = Case(1, "x.oakleaf", 3, CaseReplay(prompt=words, options=options), tuple(turns))
        path = tmp_path_factory.getbasetemp() / f"written{SUFFIX}"
        path.write_text(
            write_case(case, origin=words, answers={turn.seq: words for turn in turns}), encoding="utf-8"
        )
        assert read_case(path) == case

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            ("format = ", "not TOML"),
            ("format = 2\nbundle = 'x'", "reads up to 1"),
            ("format = 1\nbundle = 'x'", r"no \[\[turn\]\]"),
            ("format = 1\nbundle = 'x'\n[[turn]]\nseq = 2\ntool = []", "unknown field `tool`"),
            ("format = 1\nbundle = 'x'\n[[turn]]\nseq = 2\ntools = ['f({)']", "turn 2: the arguments of"),
            ("format = 1\nbundle = 'x'\n[[turn]]\nseq = 2\ntools = ['f g']", "turn 2: 'f g' is not a call"),
            ("format = 1\nbundle = 'x'\n[[turn]]\nseq = 2\nsays = ['/(/']", "not a regular expression"),
            ("format = 1\nbundle = 'x'\n[[turn]]\nseq = 2\nsays = [' ']", "in every answer"),
            ("format = 1\nbundle = 'x'\n[[turn]]\nseq = 2\nscorers = ['polite']", "is not a scorer"),
            (
                "format = 1\nbundle = 'x'\n[replay]\nprompt = 'a'\nprompt_file = 'b'\n[[turn]]\nseq = 2",
                "use one",
            ),
        ],
    )
    def test_what_is_wrong_is_said_with_its_place(self, tmp_path: Path, content: str, why: str) -> None:
        path = tmp_path / f"bad{SUFFIX}"
        path.write_text(content)
        with pytest.raises(InvalidCase, match=why) as error:
            read_case(path)
        assert str(path) in str(error.value)
        assert "docs/testing.md" in str(error.value)

    def test_cases_are_found_at_any_depth_and_once(self, tmp_path: Path) -> None:
        for name in ("b/two.case.toml", "one.case.toml", "pyproject.toml"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        assert [path.name for path in find_cases([tmp_path, tmp_path / "b"])] == [
            "two.case.toml",
            "one.case.toml",
        ]
