"""Tokens and cost: usage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import reduce
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from oakleaf.core.time_text import parse_time
from oakleaf.core.tree import parse_seq
from oakleaf.core.usage import Totals, add, format_cost
from oakleaf.errors import InvalidArgument, plural
from oakleaf.ext import SessionStorage, read, read_store
from oakleaf.session import Session, UsageView
from oakleaf.stores.counts import QUARTER, TAG, UsageSums
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import AllSpaces, Help, Ref
from oakleaf.verbs.screen import Line, Screen, Table, clip, safe
from oakleaf.verbs.views import NamedTotals, in_space

_GROUPS = ("day", "model", "agent", "owner", "session", "purpose", "bucket", "storage", "tag:NAME")
Group = Annotated[str, Meta(pattern=f"^(({'|'.join(_GROUPS[:-1])})$|{TAG}.)", extra={"choices": _GROUPS})]
_HEAD = ("", "CALLS", "INPUT", "CACHED", "OUTPUT", "COST")
_STORAGE_HEAD = ("STORED", "COUNT", "BYTES", "BYTES A TURN")
_NO_NAME = {"model": "(unknown)"}


class Used(Struct, frozen=True, kw_only=True):
    usage: list[NamedTotals]
    """The sums of each day, model, agent …, by name."""
    total: Totals
    space: str | None = "default"
    """The space of the sessions; null: all spaces."""
    replays: Totals | None = None
    """The calls of replays, which the sums leave out; null if the sums are those of one session, of replays or of buckets."""
    storage: SessionStorage | None = None
    turns: int | None = None
    """The turns of the session whose storage this is."""


class Usage(Verb, frozen=True):
    """Sum tokens and cost by session, day, model, agent, owner or tag.

    Without a session all sessions of the store are summed, trashed ones too, and replays are left out: --replays sums
    those alone, --by bucket shows both. --by tag:team has a line for each value of the tag team. A day begins where this program runs.
    """

    section = "Look"
    callers = frozenset({"operator", "service", "agent"})
    http = "GET /api/usage"
    examples = ("oakleaf usage --by model --since 30d", "oakleaf usage latest --view tree")

    session: Ref | None = None
    view: Annotated[
        UsageView | None,
        Help("For one session: its own calls (default), those on its path, or those of its children too."),
    ] = None
    since: Annotated[
        str | None,
        Help("Only calls after this entry of the path, or since this time.", metavar="SEQ|TIME"),
    ] = None
    by: Annotated[Group | None, Help("One line per day, model, …; storage: the session's size.")] = None
    replays: Annotated[bool, Help("Sum the calls of replays alone.")] = False
    all_spaces: AllSpaces = False

    def run(self, caller: Caller) -> Used:
        if self.session is not None:
            if self.replays:
                raise InvalidArgument(
                    "replays", True, "no session: the sums of one session are all its own calls"
                )
            if self.all_spaces:
                raise InvalidArgument("all_spaces", True, "no session beside it: a session is in one space")
            session = caller.position(self.session).session_at()
            return replace(self._of_one(session), space=read(session).store.space)
        if self.view is not None:
            raise InvalidArgument("view", self.view, "a session: oakleaf usage latest --view tree")
        if self.by == "storage":
            raise InvalidArgument("by", self.by, "a session: oakleaf usage latest --by storage")
        store = read_store(caller.store)
        floor = 0 if self.since is None else parse_time("since", self.since, store.now())
        # Summed in the database: a store may have millions of calls.
        stores = caller.stores(all_spaces=self.all_spaces)
        sums = reduce(_merged, (one.usage(self._column, max(floor, 0)) for one in stores), UsageSums())
        if self.replays:
            used = self._used(sums.replays)
        elif self.by == "bucket":
            used = self._used(sums.live | sums.replays)
        else:
            used = replace(self._used(sums.live), replays=reduce(add, sums.replays.values(), Totals()))
        return replace(used, space=None if self.all_spaces else store.space)

    def _of_one(self, session: Session) -> Used:
        reader, view = read(session), self.view or "own"
        seq = None if self.since is None else parse_seq(self.since)
        after = None if seq is None else reader.leaf_at(seq)
        is_time = self.since is not None and seq is None
        if self.by in (None, "storage") and not is_time:  # sums that the session has already
            total = session.usage(view, after)
            used = Used(usage=[NamedTotals("total", total)], total=total)
        else:
            floor = parse_time("since", self.since or "", reader.store.now()) if is_time else 0
            used = self._used(reader.usage_by(self._column, view, after=after, since=floor))
        if self.by != "storage":
            return used
        return Used(usage=used.usage, total=used.total, storage=reader.storage(), turns=session.row.turns)

    @property
    def _column(self) -> str:
        by = self.by or "bucket"
        return {"day": "quarter", "storage": "bucket"}.get(by, by)

    def _used(self, sums: Mapping[str, Totals]) -> Used:
        """Return the sums by what each group is called, in order; those with the same name are added."""
        groups: dict[str, Totals] = {}
        for value, each in sums.items():
            name = self._name(value)
            groups[name] = add(groups[name], each) if name in groups else each
        total = reduce(add, groups.values(), Totals())
        if self._is_whole:
            groups = {"total": total}
        return Used(usage=[NamedTotals(name, groups[name]) for name in sorted(groups)], total=total)

    @property
    def _is_whole(self) -> bool:
        return self.by in (None, "storage")

    def _name(self, value: str) -> str:
        """Return what a group is called."""
        if self.by == "day":
            return datetime.fromtimestamp(int(value) * QUARTER / 1e6).strftime("%Y-%m-%d")
        return value or _NO_NAME.get(self.by or "", "(none)")

    def lines(self, result: Used, screen: Screen) -> Iterator[Line]:
        rows = [_row(one.name, one.totals, screen) for one in result.usage]
        if len(rows) != 1:
            rows.append(_row("total", result.total, screen))
        hidden = ("CACHED", "INPUT", "OUTPUT", "CALLS")
        yield Table(_HEAD, rows, drop_first=hidden, right=_HEAD[1:], clip_last=False)
        if result.storage is not None:
            stored = list(_storage_rows(result.storage, result.turns or 0))
            yield ""
            yield Table(_STORAGE_HEAD, stored, right=_STORAGE_HEAD[1:], clip_last=False)

    def notes(self, result: Used, screen: Screen) -> Iterator[str]:
        yield from in_space(result.space)
        unknown, unpriced = result.total.unknown_calls, result.total.unpriced_calls
        if unknown:
            yield f"not in the tokens: {plural(unknown, 'call')} that reported none"
        if unpriced:
            yield f"not in the cost: {plural(unpriced, 'call')} without a price"
        if result.replays is not None and result.replays.calls:
            left = f"{plural(result.replays.calls, 'call')} of replays, {format_cost(result.replays)}"
            yield f"left out: {left}; oakleaf usage --replays sums those"


def _merged(a: UsageSums, b: UsageSums) -> UsageSums:
    return UsageSums(_added(a.live, b.live), _added(a.replays, b.replays))


def _added(a: Mapping[str, Totals], b: Mapping[str, Totals]) -> dict[str, Totals]:
    return {name: add(a.get(name, Totals()), b.get(name, Totals())) for name in {**a, **b}}


def _row(name: str, sums: Totals, screen: Screen) -> tuple[str, ...]:
    unknown = f" ({sums.unknown_calls} unknown)" if sums.unknown_calls else ""
    counts = (sums.input_tokens, sums.cache_read_tokens, sums.output_tokens)
    return (
        safe(name) if screen.width is None else clip(name, 60),
        f"{sums.calls:,}{unknown}",
        *("unknown" if sums.is_unknown else f"{count:,}" for count in counts),
        format_cost(sums),
    )


def _storage_rows(stored: SessionStorage, turns: int) -> Iterator[tuple[str, ...]]:
    per_turn = f"{stored.settings_bytes / turns:,.0f}" if turns else ""
    yield "entries", f"{stored.entries:,}", f"{stored.bytes:,}", ""
    yield "  settings: tools and options", f"{stored.settings:,}", f"{stored.settings_bytes:,}", per_turn
    yield "blobs", f"{stored.blobs:,}", f"{stored.blob_bytes:,}", ""
    yield "  definitions of tools", f"{stored.tool_sets:,}", f"{stored.tool_bytes:,}", ""
