"""Compaction on request: check the summary and build the entry. Without a summary, write one without a model."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..core import context
from ..core.entries import Compaction, Entry
from ..core.fit import measure
from ..core.messages import user
from ..core.turns import Cursor
from ..errors import InvalidSummary
from ..log.log import Log


def compaction(
    log: Log,
    summary: str | None,
    first_kept: int | None,
    *,
    replaces_earlier: bool,
    files_read: Sequence[str] | None = None,
    files_changed: Sequence[str] | None = None,
) -> Compaction:
    """The entry to append. Raises InvalidSummary if the summary is empty, replaces nothing, or is longer than what it replaces."""
    entries = log.path().entries
    cut = log.cut(_before_newest_turn(entries, log.leaf.seq) if first_kept is None else first_kept - 1)
    if summary is None:
        made = _automatic(log, entries, cut.at, is_cut_chosen=first_kept is not None)
    else:
        made = _by_hand(entries, summary, cut.at, replaces_earlier=replaces_earlier)
    if files_read is not None:
        made = replace(made, files_read=tuple(files_read))
    return made if files_changed is None else replace(made, files_changed=tuple(files_changed))


def _automatic(log: Log, entries: Sequence[Entry], at: int, *, is_cut_chosen: bool) -> Compaction:
    from .compaction import summarise  # late: few sessions are compacted, all are to_entry

    keeps_input = not is_cut_chosen and bool(
        log.cursor.turn
    )  # the open turn's input stays whole, as in the loop
    made = summarise(entries, log.cursor if keeps_input else Cursor(turn=at + 1))
    if made is None or not (keeps_input or made.first_kept == at + 1):
        raise InvalidSummary(f"no summary would be shorter than the entries before {at + 1}")
    return made


def _by_hand(entries: Sequence[Entry], summary: str, at: int, *, replaces_earlier: bool) -> Compaction:
    built = context.build_context(entries)
    replaced = [item for item in built.items if item.seq <= at and (replaces_earlier or not item.pinned)]
    if not summary.strip():
        raise InvalidSummary("the summary is empty")
    if not replaced:
        raise InvalidSummary(f"there is nothing before entry {at + 1} to replace")
    before = sum(measure(item.message).tokens for item in replaced)
    if measure(user(summary)).tokens >= before:
        raise InvalidSummary(f"the summary is longer than the {before:,} tokens it would replace")
    tokens = sum(measure(item.message).tokens for item in built.items)
    return Compaction(summary, at + 1, tokens, replaces_earlier=replaces_earlier)


def _before_newest_turn(entries: Sequence[Entry], last: int) -> int:
    """The seq before the newest turn, or the end if there is no older one."""
    inputs = [entry.seq for entry in entries if entry.turn == entry.seq]
    return inputs[-1] - 1 if len(inputs) > 1 else last
