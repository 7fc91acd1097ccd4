"""A plan for the files of the last turn costs no more in a long session than in a short one."""

from __future__ import annotations

from pathlib import Path

import pytest

import oakleaf_workspace
from oakleaf import Store
from support.long_sessions import check_steps, stores

__all__ = ["stores"]  # a fixture


def test_a_plan_of_files_does_no_more_work(
    stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(store: Store) -> None:
        session = store.session("ses_long")
        oakleaf_workspace.plan_rewind(session, session.leaf.seq - 4)

    check_steps(plan, stores, monkeypatch)
