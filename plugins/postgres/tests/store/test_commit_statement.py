"""`commit.sql` as a reader sees it: every part has a condition that a change may have, every column the name of its value."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from oakleaf_postgres.store import commit
from oakleaf_postgres.store.commit import Shape, statement
from oakleaf_postgres.store.rows import CALL_NAMES, ENTRY_NAMES

TEXT = (Path(commit.__file__).parent / "commit.sql").read_text()


def shape(**values: object) -> Shape:
    """Return the shape of a title, changed by these values."""
    plain = dict.fromkeys(Shape.__struct_fields__, False)
    counts = dict.fromkeys(("entries", "tool_calls", "facts", "calls"), 0)
    return Shape(**{**plain, **counts, "branch": "none", "columns": (), **values})


@pytest.mark.parametrize("names", [ENTRY_NAMES, commit.FACT_NAMES, CALL_NAMES[:1], CALL_NAMES[2:]])
def test_columns_stand_in_the_order_of_their_values(names: tuple[str, ...]) -> None:
    assert ", ".join(names) in re.sub(r"\s+", " ", TEXT)


def test_every_column_of_a_call_is_replaced_and_closed_up() -> None:
    for name in CALL_NAMES:
        assert name == "branch" or f"{name} = %(call_{name}_0)s" in TEXT
        assert f"{name} = next.{name}" in TEXT


def test_a_title_is_the_row_and_one_fact() -> None:
    text = statement(shape(columns=("title",))).text.decode()
    assert re.findall(r"^,? ?(\w+) as ", text, re.MULTILINE) == ["head", "facts"]


def test_the_parts_of_every_shape_are_one_statement() -> None:
    """Parentheses close, values are numbered, and no mark of a part is sent."""
    flags = [name for name in Shape.__struct_fields__ if name not in ("branch", "columns", "facts")]
    for branch, flag, other in product(("none", "extend", "check", "open"), flags, flags):
        text = statement(shape(branch=branch, **{flag: 1, other: 1})).text.decode()
        assert text.count("(") == text.count(")")
        assert not re.search(r"--|%\(|[{}]", text.replace("'{}'", "''")), text
