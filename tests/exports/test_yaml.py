"""YAML text: any value of JSON, and nothing a parser takes for something else."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from oakleaf.exports.yaml import to_yaml
from support.random_logs import thorough_settings

HOSTILE = [
    *(
        "",
        " ",
        "\n",
        "\n\n",
        "\t",
        "a\n",
        "a\n\n\n",
        "a\nb",
        "a\n b\n  c",
        " a\nb",
        "\na\nb",
        "a\n \nb",
        "a\n  ",
    ),
    *(
        "a \nb",
        "a\n\tb",
        "\ta\nb",
        "a\r\nb",
        "a\rb",
        "a\x85b",
        "a\u2028b\nc",
        "a\u2029b",
        "\ufeffa",
        "a\ufeff\nb",
    ),
    *(
        "yes",
        "No",
        "ON",
        "off",
        "y",
        "N",
        "true",
        "False",
        "null",
        "Null",
        "~",
        "1",
        "1e3",
        "1.0e+3",
        "0x1f",
        "0o7",
    ),
    *(
        "1_000",
        "12:30:45",
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        ".inf",
        "-.INF",
        ".nan",
        "+1",
        "-",
        "- a",
        "---",
    ),
    *(
        "...",
        "--- a\nb",
        "a\n---\nb",
        "a\n...\nb",
        ":",
        "a: b",
        "a:",
        ":a",
        "#",
        "a #b",
        "#a",
        "a#b",
        "?",
        "? a",
    ),
    *(
        "!",
        "!tag",
        "&a",
        "*a",
        "<<",
        "=",
        "|",
        ">",
        "|-\n a",
        "%",
        "%YAML 1.2",
        "@",
        "`",
        "{",
        "{{ctx.x}}",
        "}",
        "[",
    ),
    *(
        "]",
        ",",
        "a, b",
        "'",
        "''",
        '"',
        '\\"',
        "\\",
        "\\n",
        "é",
        "größe",
        "snowman ☃ 🎄",
        "👩‍👩‍👧",
        "\0",
        "\x01\x1f\x7f",
    ),
    *("\x1b[31mred", "\ufffe\uffff", "\U0010ffff", "\u202e", "x" * 5_000, "word " * 2_000, "line\n" * 500),
    *("Hello, how are you?", "it's (almost) plain/text", "trailing ", "a  b"),
]
texts = st.sampled_from(HOSTILE) | st.text(alphabet=st.characters(codec="utf-8"), max_size=12)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()
values = st.recursive(
    texts | numbers,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
LOADERS = [yaml.SafeLoader, *([yaml.CSafeLoader] if hasattr(yaml, "CSafeLoader") else [])]


def parse(text: str, loader: Any = yaml.SafeLoader) -> Any:
    return yaml.load(text, loader)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_any_text_comes_back_as_it_was(text: str, loader: Any) -> None:
    value = {"a": text, "b": [text, [text, {"c": text}]], "d": {text: text}}
    written = to_yaml(value)
    assert parse(written, loader) == value
    assert to_yaml(parse(written, loader)) == written


@pytest.mark.parametrize("loader", LOADERS)
def test_any_value_comes_back_and_is_written_as_the_same_bytes(loader: Any) -> None:
    @thorough_settings
    @given(st.dictionaries(texts, values, max_size=5))
    @example({"k" * 2_000: {"\n" * 600: [1, {}]}, "": []})
    @example({"n": [1e16, 1e-7, -0.0, 1.5e300, 2**200, -1]})
    def law(value: dict[str, Any]) -> None:
        written = to_yaml(value)
        assert parse(written, loader) == value
        assert to_yaml(parse(written, loader)) == written

    law()


def test_keys_are_sorted_and_lists_keep_their_order() -> None:
    written = to_yaml({"b": [{"z": 3, "a": 1}, "last", []], "a": {"Z": None, "é": True, "k": {}}})
    assert written == (
        'a:\n  Z: null\n  k: {}\n  "\\xe9": true\nb:\n  - a: 1\n    z: 3\n  - last\n  - []\n'.replace(
            "\\xe9", "é"
        )
    )


def test_text_of_several_lines_is_a_block_a_person_can_read() -> None:
    assert to_yaml({"p": "Look:\n\n  x = 1\nthen stop."}) == "p: |-\n  Look:\n\n    x = 1\n  then stop.\n"


def test_a_value_nested_two_hundred_deep_is_written_and_read() -> None:
    value: Any = "leaf"
    for depth in range(200):
        value = [value] if depth % 2 else {"k": value}
    assert parse(to_yaml({"v": value})) == {"v": value}


def test_what_is_no_value_of_json_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes is not a value of JSON"):
        to_yaml({"a": b"bytes"})
