"""Counts what SQLite does for each statement: its steps, and the rows it read because no index fitted."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from oakleaf.stores.sqlite import file


class Steps:
    """Counts what the statements of every new connection do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        self.scans: list[tuple[int, str]] = []
        connect = file.connect

        def traced(*args: Any, **kwargs: Any) -> apsw.Connection:
            connection = connect(*args, **kwargs)
            connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._count)
            return connection

        monkeypatch.setattr(file, "connect", traced)

    def _count(self, event: dict[str, Any]) -> None:
        status = event["stmt_status"]
        self.steps += status["SQLITE_STMTSTATUS_VM_STEP"]
        if status["SQLITE_STMTSTATUS_FULLSCAN_STEP"] > 200:
            self.scans.append((status["SQLITE_STMTSTATUS_FULLSCAN_STEP"], event["sql"]))
