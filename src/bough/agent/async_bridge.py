"""The one crossing from the loop, which is asynchronous, to the log, which is not.

Knows how an entry and a fact of a run become durable, and how its model calls are counted. Does not know what is
to be done next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from ..core.context import fold_settings
from ..core.drafts import Draft
from ..core.entries import Entry, Settings
from ..core.messages import Message
from ..core.turns import advance
from ..core.usage import Call, Usage
from ..log.changes import AppendResult
from ..log.log import Log
from ..models.model import Model
from ..models.prices import price_of

R = TypeVar("R")
BROKEN = ("cancelled", "interrupted", "error")
"""How an answer ends that is not the model's own."""


class Crossing:
    """One run's hand on the log."""

    def __init__(self, log: Log, models: Sequence[Model]) -> None:
        self.log, self.models = log, models
        self.path: list[Entry] = []
        self.n = 0
        """The number of the latest fact."""
        self.is_one_shot = False
        """Whether the session is completed, and not at rest, when the turn has its answer."""
        self._call_id: str | None = None
        self._fence = 0
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="bough-log")

    async def run_blocking(self, work: Callable[..., R], *given: Any, **how: Any) -> R:
        """On threads of its own: tools that block must not keep a result from becoming durable."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *given, **how))

    async def read_path(self) -> list[Entry]:
        return (await self.run_blocking(self.log.path)).entries

    async def read_settings(self) -> Settings:
        """What holds at the leaf, without reading the path."""
        return fold_settings(await self.run_blocking(self.log.store.non_message_entries, self.log.session_id))

    def settings(self) -> Settings:
        """What holds at the end of the path."""
        return fold_settings(self.path)

    async def append(self, *drafts: Draft, **how: Any) -> AppendResult:
        start = None if "calls" in how else self._ride(drafts)
        riding = {"calls": [start]} if start is not None else {}
        if self.is_one_shot and self._completes(drafts):
            how["row"] = {**how.get("row", {}), "status": "completed", "completed_at": self.log.runtime.now()}
        appended = await self.run_blocking(self.log.append, drafts, fence=self._fence, **how, **riding)
        self.path.extend(appended.entries)
        self.n = appended.fact_number
        return appended

    async def record(self, kind: str, **how: Any) -> None:
        self.n = (await self.run_blocking(self.log.record, kind, fence=self._fence, **how)).facts

    def _completes(self, drafts: Sequence[Draft]) -> bool:
        """Whether the turn ends with these, and not by a limit, a cancel or a crash."""
        cursor = self.log.cursor
        for draft in drafts:
            cursor = advance(cursor, draft.payload).cursor
        return not cursor.turn and drafts[-1].finish not in BROKEN

    def _ride(self, drafts: Sequence[Draft]) -> Call | None:
        """If the model is to be called next, the start of that call rides in this commit."""
        last = drafts[-1].payload
        if not isinstance(last, Message) or last.role not in ("user", "tool") or not self.models:
            return None
        ends = self.log.cursor.ends_turn or any(result.ends_turn for result in last.results)
        if len(self.log.cursor.open_calls) > len(last.results) or ends:
            return None
        self._call_id = self.log.runtime.new_id("")
        call = self._ledger(self.models[0], None, answered=False)
        return replace(call, after_seq=self.log.leaf.seq + len(drafts), failed=False)

    def blob(self, digest: str) -> bytes | None:
        found = self.log.store.blob(digest)
        return None if found is None else found.data

    def _ledger(self, model: Model, usage: Usage | None, *, answered: bool) -> Call:
        after = self.log.leaf.seq
        return Call(
            call_id=self._call_id or self.log.runtime.new_id(""),
            branch=0,
            after_seq=after,
            answer_seq=after + 1 if answered else None,
            at=self.log.runtime.now(),
            usage=usage or Usage(),
            provider=model.provider,
            model=model.model,
            price=price_of(model, usage) if usage is not None else None,
            failed=not answered,
        )

    def side_call(self, model: Model, purpose: str) -> Call:
        """The start of a call that is not the turn's own."""
        call = self._ledger(model, None, answered=False)
        return replace(call, call_id=self.log.runtime.new_id(""), purpose=purpose, failed=False)
