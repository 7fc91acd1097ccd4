"""The page of names is true: every test it cites is there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs/mapping.md").read_text()
CONFORMANCE = TESTS.parent / "src/bough/stores/conformance"


def test_every_test_that_is_cited_is_there() -> None:
    cited = re.findall(r"`([\w/.]+)::(test_\w+)`", PAGE)
    assert len(cited) > 100
    for home, name in cited:
        files = [*CONFORMANCE.glob("*.py")] if home == "conformance" else [TESTS / home]
        assert any(f"def {name}(" in file.read_text() for file in files), f"{home}::{name}"


def test_every_line_of_a_table_cites_one() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| theirs")]
    assert [line for line in lines if "::test_" not in line] == []
