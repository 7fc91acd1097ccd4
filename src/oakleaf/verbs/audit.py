"""What tools did: audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape
from typing import Annotated

from msgspec import Meta, Struct

from oakleaf import AuditedCall
from oakleaf.core.messages import ToolCall
from oakleaf.core.time_text import iso, parse_time
from oakleaf.core.usage import Totals, format_cost
from oakleaf.errors import InvalidArgument, plural
from oakleaf.ext import read_store
from oakleaf.stores.address import display_url
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.call_text import call_text
from oakleaf.verbs.fields import File, Help
from oakleaf.verbs.new_file import new_file
from oakleaf.verbs.screen import Line, Screen, Table, clip, format_time, safe
from oakleaf.verbs.views import next_page, page_errors

_HEAD = ("STARTED", "OUTCOME", "BY", "COST", "SESSION", "CALL")


class Audited(Struct, frozen=True, kw_only=True):
    store: str
    """The address of the store, without a password."""
    space: str
    after: int
    before: int | None
    calls: list[AuditedCall]
    """In the order of their time, within each page."""
    next: str | None
    """The `page` that goes on with further sessions; null on the last page."""


class Audit(Verb, frozen=True):
    """List what tools did: each call with an effect, with arguments, outcome, who allowed it and why, and its cost.

    An effect is a call of an unsafe or idempotent tool, or of a tool whose effect is not known; a denied call is listed, too.
    The outcome is done, failed, denied, or unknown: it may have run. The cost is that of the model call that asked for it.
    Replays are left out. Of a session that came from elsewhere it says so: decisions made there count for nothing here.
    """

    section = "Maintain"
    http = "GET /api/audit"
    examples = (
        "oakleaf audit --after yesterday --before today",
        "oakleaf audit --after 2026-11-01 --owner ann -o november.html",
    )

    after: Annotated[str, Help("Calls since then: today, 7d, 2026-11-01.", metavar="TIME")] = "today"
    before: Annotated[str | None, Help("Calls before then.", metavar="TIME")] = None
    owner: Annotated[str | None, Help("Only sessions of this owner.", metavar="NAME")] = None
    tool: Annotated[str | None, Help("Only this tool.")] = None
    limit: Annotated[int, Help("Read at most N sessions for a page.", short="n"), Meta(ge=1, le=10_000)] = (
        1_000
    )
    page: Annotated[str | None, Help("Go on after a page before, as its last line says.", metavar="NEXT")] = (
        None
    )
    output: Annotated[File | None, Help("Write all pages to a new file: .html.", short="o")] = None

    def run(self, caller: Caller) -> Audited:
        if self.output is None:
            return self._read(caller, self.page)
        if not self.output.endswith(".html") or self.page is not None:
            raise InvalidArgument(
                "output", self.output, "a name that ends in .html, and no page: all are written"
            )
        with new_file(self.output) as file:
            result = self._read_all(caller)
            file.write(_html(result).encode())
        return result

    def _read_all(self, caller: Caller) -> Audited:
        page = self._read(caller, None)
        calls = page.calls
        while page.next is not None:
            page = self._read(caller, page.next)
            calls += page.calls
        return Audited(
            store=page.store,
            space=page.space,
            after=page.after,
            before=page.before,
            calls=sorted(calls, key=lambda call: (call.started_at, call.entry, call.index)),
            next=None,
        )

    def _read(self, caller: Caller, page: str | None) -> Audited:
        store = read_store(caller.store)
        now = store.now()
        after = parse_time("after", self.after, now)
        before = None if self.before is None else parse_time("before", self.before, now)
        with page_errors(page):
            found = caller.store.audit(after, before, owner=self.owner, page=page, limit=self.limit)
        calls = [call for call in found if self.tool in (None, call.tool)]
        return Audited(
            store=display_url(store.url),
            space=store.space,
            after=after,
            before=before,
            calls=calls,
            next=found.next,
        )

    def lines(self, result: Audited, screen: Screen) -> Iterator[Line]:
        if result.calls and self.output is None:
            rows = [_row(call, screen) for call in result.calls]
            yield Table(_HEAD, rows, drop_first=("COST", "SESSION"), right=("COST",))

    def notes(self, result: Audited, screen: Screen) -> Iterator[str]:
        outcomes = Counter(call.outcome for call in result.calls)
        parts = "".join(f", {count} {name}" for name, count in sorted(outcomes.items()) if name != "done")
        yield f"{plural(len(result.calls), 'call')} with an effect{parts} in space {result.space}"
        yield from next_page(self, result.next)


def _by(call: AuditedCall) -> str:
    """Return who decided, in words; empty if nobody was asked."""
    if call.approved is None:
        return ""
    return call.by or "(no name)"


def _cost(call: AuditedCall) -> str:
    return (
        "unknown"
        if call.cost_microcents is None
        else format_cost(Totals(cost_microcents=call.cost_microcents))
    )


def _made(call: AuditedCall) -> str:
    return call_text(ToolCall("", call.tool, call.arguments))


def _row(call: AuditedCall, screen: Screen) -> tuple[str, ...]:
    reason = f"  because: {call.reason}" if call.reason else ""
    mark = "  (imported)" if call.imported else ""
    return (
        format_time(call.started_at),
        call.outcome,
        safe(_by(call)) if screen.width is None else clip(_by(call), 20),
        _cost(call),
        call.entry,
        clip(_made(call) + reason + mark, 400),
    )


def _html(result: Audited) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in (
            "Started",
            "Ended",
            "Outcome",
            "Tool",
            "Arguments",
            "Decided",
            "Reason",
            "Session",
            "Owner",
            "Cost",
        )
    )
    rows = "\n".join(_html_row(call) for call in result.calls)
    until = "" if result.before is None else f" before {iso(result.before)}"
    title = f"{plural(len(result.calls), 'call')} with an effect from {iso(result.after)}{until}"
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 2rem }}
td, th {{ padding: .3rem .6rem; border-bottom: 1px solid #ccc; text-align: left; vertical-align: top }}
code {{ white-space: pre-wrap; overflow-wrap: anywhere }}
</style>
<h1>{escape(title)}</h1>
<p>Store {escape(safe(result.store))}, space {escape(safe(result.space))}. The cost is that of the model call that asked for the call.</p>
<table>
<tr>{head}</tr>
{rows}
</table>
</html>
"""


def _html_row(call: AuditedCall) -> str:
    decided = "" if call.decided_at is None else f"{_by(call)}, {iso(call.decided_at)}, {call.surface or ''}"
    arguments = "\n".join(f"{name}: {value}" for name, value in call.arguments.items())
    ended = "" if call.ended_at is None else iso(call.ended_at)
    texts = (iso(call.started_at), ended, call.outcome, call.tool)
    rest = (decided, call.reason or "", call.entry, call.owner or "", _cost(call))
    cells = (
        [escape(safe(text)) for text in texts]
        + [f"<code>{escape(safe(arguments))}</code>"]
        + [escape(safe(text)) for text in rest]
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
