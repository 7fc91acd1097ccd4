"""Windows of a path: a page of entries from, up to or around any seq, read in small steps.

Does not know HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from oakleaf.core.entries import Entry
from oakleaf.core.usage import Call
from oakleaf.ext import read
from oakleaf.session import Session
from oakleaf_server.json_views import entry_view
from oakleaf_server.truncate import PAGE, SizedPage, truncate_entry

STEP, PUBLIC_STEP = 50, 500
MAX_SCANNED = 5_000
"""Entries that one request scans for those it returns."""
View = Callable[[Entry], dict[str, Any]]
CallsByEntry = dict[tuple[int, int], list[Call]]


class EntryWindow(Struct, frozen=True):
    entries: list[dict[str, Any]]
    first: int
    last: int
    """The range it covers; `last` < `first` if it is empty."""


class PathReader(Struct, frozen=True):
    """Reads windows of the path to a session's leaf."""

    session: Session
    view: View
    is_public: bool = False

    def forward(self, first: int, limit: int, room: int = PAGE) -> EntryWindow:
        """Return the entries from `first` on, oldest first."""
        views, last = self._page(self._forward_steps(first), first - 1, 1, limit, room)
        return EntryWindow(views, first, last)

    def backward(self, last: int, limit: int, room: int = PAGE) -> EntryWindow:
        """Return the newest entries up to `last`, oldest first."""
        views, first = self._page(self._backward_steps(last), last + 1, -1, limit, room)
        return EntryWindow(views[::-1], first, last)

    def around(self, seq: int, limit: int) -> EntryWindow:
        after = self.forward(seq, limit - limit // 2, PAGE // 2)
        before = self.backward(seq - 1, limit // 2, PAGE // 2)
        return EntryWindow([*before.entries, *after.entries], before.first, after.last)

    def _page(
        self, steps: Iterator[tuple[list[Entry], int]], covered: int, direction: int, limit: int, room: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the views of the fitting entries, in the order of the steps, and the last covered seq."""
        page = SizedPage(room)
        for entries, end in steps:
            for entry in entries:
                if len(page.items) == limit or not page.add(self.view(entry)):
                    return page.items, entry.seq - direction
            covered = end
            if len(page.items) == limit:
                break
        return page.items, covered

    def _forward_steps(self, first: int) -> Iterator[tuple[list[Entry], int]]:
        step, end = self._step, self.session.leaf.seq
        for begin in range(max(1, first), min(end, first + MAX_SCANNED - 1) + 1, step):
            stop = min(begin + step - 1, end)
            yield self._read(begin, stop), stop

    def _backward_steps(self, last: int) -> Iterator[tuple[list[Entry], int]]:
        step, end = self._step, min(last, self.session.leaf.seq)
        for stop in range(end, max(0, end - MAX_SCANNED), -step):
            begin = max(1, stop - step + 1)
            yield self._read(begin, stop)[::-1], begin

    @property
    def _step(self) -> int:
        return PUBLIC_STEP if self.is_public else STEP

    def _read(self, first: int, last: int) -> list[Entry]:
        return read_entries(self.session, first, last, public=self.is_public)


def read_entries(session: Session, first: int, last: int, *, public: bool = False) -> list[Entry]:
    """Return the entries of the path to the handle's leaf between two seqs."""
    return read(session).entries(first, last, public=public)


def calls_by_entry(session: Session, first: int, last: int) -> CallsByEntry:
    """Return the model calls of a part of the path, by the answering entry, or the entry before the call."""
    calls = CallsByEntry()
    for call in read(session).calls(first, last):
        calls.setdefault((call.branch, call.seq), []).append(call)
    return calls


def truncated_entry(entry: Entry) -> dict[str, Any]:
    return truncate_entry(entry_view(entry))
