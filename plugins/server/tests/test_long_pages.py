"""No page does more work in a long session than in a short one, unless it returns more."""

from __future__ import annotations

from pathlib import Path

import pytest

import oakleaf
from support.long_sessions import MIDDLE, stores
from support.server import LocalServer
from support.statement_steps import Steps

__all__ = ["stores"]  # a fixture

PAGES = [
    "/turns",
    f"/turns?before={MIDDLE}",
    f"/calls?first={MIDDLE}",
    f"/path?around={MIDDLE}",
    f"/entries/{MIDDLE}",
    f"/request?at={MIDDLE}",
]
SUMS = [f"@{MIDDLE}&view=path&since={MIDDLE - 9}", "&view=path", "&view=tree"]
ADDRESSES = [f"/api/sessions/ses_long{page}" for page in PAGES] + [
    f"/api/usage?session=ses_long{query}" for query in SUMS
]


def test_no_page_does_more_work(stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, list[int]] = {page: [] for page in ADDRESSES}
    for path in stores:
        with monkeypatch.context() as patch:
            steps = Steps(patch)
            with oakleaf.open(path, synchronous="normal") as store, LocalServer(store) as server:
                for page in ADDRESSES:
                    steps.steps = 0
                    server.get(page)
                    counts[page].append(steps.steps)
    assert {page: pair for page, pair in counts.items() if not 0 < pair[1] <= 1.2 * pair[0] + 1_500} == {}
