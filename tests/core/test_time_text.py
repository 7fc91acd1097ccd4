"""Moments and lengths of time as people write them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakleaf.core.time_text import parse_duration, parse_time
from oakleaf.errors import InvalidArgument

NOW = 1_700_000_000_000_000


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class TestMoments:
    @pytest.mark.parametrize(
        ("text", "moment"),
        [
            ("1970-01-02", 82_800_000_000),
            ("1970-01-01T01:00", 0),
            ("1970-01-01T01:00Z", 3_600_000_000),
            ("1970-01-01T01:00+01:00", 0),
            ("30m", NOW - 1_800_000_000),
            (" 7d ", NOW - 7 * 86_400_000_000),
            ("0s", NOW),
        ],
    )
    def test_a_date_is_local_without_a_zone_and_a_span_is_ago(
        self, berlin: None, text: str, moment: int
    ) -> None:
        assert parse_time("after", text, NOW) == moment

    @pytest.mark.parametrize(
        ("text", "day"),
        [
            ("today", "2023-11-14"),
            ("Yesterday", "2023-11-13"),
            ("tuesday", "2023-11-14"),
            ("wed", "2023-11-08"),
            ("monday", "2023-11-13"),
        ],
    )
    def test_a_day_has_a_name_and_begins_at_the_local_midnight(
        self, berlin: None, text: str, day: str
    ) -> None:
        """The present is Tuesday 2023-11-14, 23:13 in Berlin."""
        assert parse_time("after", text, NOW) == parse_time("after", f"{day}T00:00+01:00", NOW)

    def test_yesterday_is_a_calendar_day_also_when_the_clocks_change(self, berlin: None) -> None:
        noon = parse_time("after", "2023-10-30T12:00+01:00", NOW)
        assert parse_time("after", "yesterday", noon) == parse_time("after", "2023-10-29T00:00+02:00", NOW)

    @pytest.mark.parametrize(
        "text", ["soon", "", "7", "d", "mo", "tomorrow", "2026-13-01", "7y", "-1d", "9999999d"]
    )
    def test_other_text_than_a_time_is_refused_with_the_forms(self, text: str) -> None:
        with pytest.raises(InvalidArgument, match="2026-11-01, today, yesterday, monday"):
            parse_time("after", text, NOW)

    @given(st.text())
    def test_any_text_is_a_time_or_refused(self, text: str) -> None:
        with contextlib.suppress(InvalidArgument):
            assert isinstance(parse_time("after", text, NOW), int)

    def test_a_length_of_time_is_no_date(self) -> None:
        assert parse_duration("for", "2w") == 14 * 86_400_000_000
        with pytest.raises(InvalidArgument):
            parse_duration("for", "2026-11-01")
