"""Usage: one ledger row per model call, whether or not it was answered; totals are sums of rows.

`input_tokens` counts everything the model read; cache reads and writes are included in it.
Money is integer microcents (a millionth of a cent, 10⁻⁸ of a dollar): sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from msgspec import Struct
from msgspec.structs import astuple, replace

from oakleaf.core.codec import check_text
from oakleaf.core.tree import Range
from oakleaf.errors import InvalidArgument, InvalidCount

if TYPE_CHECKING:
    from oakleaf.core.entries import Entry

MICROCENTS_PER_DOLLAR = 100_000_000
STATED_COST = "stated_microcents"
"""The unit of a cost that the server states itself."""

K = TypeVar("K")


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """A provider's token counts for a call. None: not reported."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None


class Price(Struct, frozen=True, gc=False):
    """The cost of a call, in millionths of a cent."""

    microcents: int
    version: str
    """The version of the price table; fixed in the row: repricing adds rows and never edits."""


class Call(Struct, frozen=True, gc=False):
    """A row of the ledger."""

    call_id: str
    branch: int
    """The branch of the answer, or the session's branch at the time if there was none."""
    after_seq: int
    answer_seq: int | None
    at: int
    usage: Usage = Usage()
    purpose: str = "answer"
    bucket: str = "live"
    provider: str | None = None
    model: str | None = None
    price: Price | None = None
    failed: bool = False

    @property
    def seq(self) -> int:
        """The entry with the call's answer, or else the entry before the call."""
        return self.after_seq if self.answer_seq is None else self.answer_seq


MAX_COUNT = 2**53  # the largest integer every JSON reader and every store handles


def is_count(value: object) -> TypeGuard[int]:
    """Return whether every store can keep and sum a number of tokens or microcents."""
    return type(value) is int and 0 <= value <= MAX_COUNT


def with_known_counts(call: Call) -> Call:
    """Return the call with None for each false count, such as -1: a bad report never costs a paid answer."""
    usage, price = _known_counts(call.usage), call.price
    if price is not None and not is_count(price.microcents):
        price = None
    return call if usage is call.usage and price is call.price else replace(call, usage=usage, price=price)


def _known_counts(usage: Usage) -> Usage:
    a, b, c, d = counts = astuple(usage)
    # All of them are counts, as most are: none is negative, and none has more bits than the largest.
    if type(a) is type(b) is type(c) is type(d) is int and 0 <= a | b | c | d < MAX_COUNT:
        return usage
    for count in counts:
        if count is not None and not (type(count) is int and 0 <= count <= MAX_COUNT):
            return Usage(*[value if is_count(value) else None for value in counts])
    return usage


def check_call(call: Call) -> None:
    """Raise if not every store could keep and sum the row."""
    check_call_text(call)
    for count in (*astuple(call.usage), None if call.price is None else call.price.microcents):
        if count is not None and not is_count(count):
            raise InvalidCount("usage of a call", count)


def check_call_text(call: Call) -> None:
    """Raise if a column cannot hold the row's text."""
    texts = [call.call_id, call.provider, call.model, None if call.price is None else call.price.version]
    if call.purpose != "answer" or call.bucket != "live":  # as most are: not looked at
        texts += [call.purpose, call.bucket]
    for text in texts:
        if text is not None:
            check_text(text, "a call's id, purpose, bucket, provider, model or price version")


class Totals(Struct, frozen=True, gc=False):
    """Sums over calls: tokens and money."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_microcents: int = 0
    unpriced_calls: int = 0
    unknown_calls: int = 0
    """Calls whose tokens were never reported, for example because of a crash."""

    @property
    def is_unknown(self) -> bool:
        """Whether no call reported tokens, so that the sums say nothing."""
        return 0 < self.calls == self.unknown_calls

    @property
    def cost_cents(self) -> float:
        return self.cost_microcents / 1_000_000


def difference(new: Totals, old: Totals) -> Totals:
    """Return the change of a row's totals when `old` is replaced by `new`."""
    return Totals(*(a - b for a, b in zip(astuple(new), astuple(old), strict=True)))


def add(first: Totals, second: Totals) -> Totals:
    return Totals(  # spelled out: every model call that is committed adds to its session's row
        first.calls + second.calls,
        first.input_tokens + second.input_tokens,
        first.output_tokens + second.output_tokens,
        first.cache_read_tokens + second.cache_read_tokens,
        first.cache_write_tokens + second.cache_write_tokens,
        first.cost_microcents + second.cost_microcents,
        first.unpriced_calls + second.unpriced_calls,
        first.unknown_calls + second.unknown_calls,
    )


def to_microcents(dollars: float | None, microcents: int | None) -> int | None:
    """Return a maximum cost in microcents, from either of two units."""
    if dollars is None:
        return microcents
    if type(dollars) not in (int, float) or not 0 <= dollars < 1e9:
        raise InvalidArgument("max_cost_dollars", dollars, "an amount of dollars")
    amount = round(dollars * MICROCENTS_PER_DOLLAR)
    if microcents not in (None, amount):
        raise InvalidArgument("max_cost_dollars", dollars, "left out: max_cost_microcents says it already")
    return amount


def format_dollars(microcents: int) -> str:
    """Format an amount in dollars exactly: with all digits, and with cents at least."""
    digits = f"{microcents / MICROCENTS_PER_DOLLAR:,.8f}"
    whole, _, fraction = digits.partition(".")
    return f"${whole}.{fraction.rstrip('0').ljust(2, '0')}"


def format_cost(totals: Totals) -> str:
    """Format the cost in dollars; calls without a price are counted, not shown as free."""
    dollars = totals.cost_microcents / 100_000_000
    cost = f"${dollars:,.4f}" if 0 < dollars < 1 else f"${dollars:,.2f}"
    return f"{cost} + {totals.unpriced_calls} unpriced" if totals.unpriced_calls else cost


def format_tokens(totals: Totals) -> str:
    """Format the sums of tokens; calls without a report are unknown, not zero."""
    if totals.is_unknown:
        return "tokens unknown"
    counts = f"{totals.input_tokens:,} in, {totals.output_tokens:,} out"
    return f"{counts} + {totals.unknown_calls} unknown" if totals.unknown_calls else counts


def total(calls: Iterable[Call]) -> Totals:
    count = tokens_in = tokens_out = read = written = cost = unpriced = unknown = 0
    for call in calls:
        usage = call.usage
        count += 1
        tokens_in += usage.input_tokens or 0
        tokens_out += usage.output_tokens or 0
        read += usage.cache_read_tokens or 0
        written += usage.cache_write_tokens or 0
        cost += call.price.microcents if call.price else 0
        unpriced += call.price is None
        unknown += usage.input_tokens is None and usage.output_tokens is None
    return Totals(count, tokens_in, tokens_out, read, written, cost, unpriced, unknown)


def totals_by(calls: Iterable[Call], key: Callable[[Call], K]) -> dict[K, Totals]:
    """Return the sums of the calls with the same key."""
    groups: dict[K, list[Call]] = {}
    for call in calls:
        groups.setdefault(key(call), []).append(call)
    return {name: total(group) for name, group in groups.items()}


def totals_by_turn(calls: Iterable[Call], entries: Iterable[Entry]) -> dict[int, Totals]:
    """Return the usage of each turn's calls."""
    turn_of = {entry.seq: entry.turn for entry in entries}
    return totals_by(calls, lambda call: turn_of.get(call.seq, 0))


def calls_on_path(calls: Iterable[Call], ranges: Iterable[Range]) -> list[Call]:
    """Return the calls of the path; a call counts at the answer, or else at the entry before the call."""
    reach = {part.branch: part.last for part in ranges}
    return [call for call in calls if call.seq <= reach.get(call.branch, -1)]
