"""Moments and lengths of time as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.core.time_text import parse_duration, parse_time
from bough.errors import InvalidArgument

NOW = 1_700_000_000_000_000


class TestMoments:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("1970-01-02", 86_400_000_000),
            ("1970-01-01T01:00", 3_600_000_000),
            ("1970-01-01T01:00+01:00", 0),
            ("30m", NOW - 1_800_000_000),
            (" 7d ", NOW - 7 * 86_400_000_000),
            ("0s", NOW),
        ],
    )
    def test_a_date_is_utc_and_a_span_is_ago(self, text: str, found: int) -> None:
        assert parse_time("after", text, NOW) == found

    @pytest.mark.parametrize("text", ["soon", "", "7", "d", "2026-13-01", "7y", "-1d", "9999999d"])
    def test_what_is_no_time_is_refused_with_what_it_takes(self, text: str) -> None:
        with pytest.raises(InvalidArgument, match="2026-11-01"):
            parse_time("after", text, NOW)

    @given(st.text())
    def test_any_text_is_a_time_or_refused(self, text: str) -> None:
        with contextlib.suppress(InvalidArgument):
            assert isinstance(parse_time("after", text, NOW), int)

    def test_a_length_of_time_is_no_date(self) -> None:
        assert parse_duration("for", "2w") == 14 * 86_400_000_000
        with pytest.raises(InvalidArgument):
            parse_duration("for", "2026-11-01")
