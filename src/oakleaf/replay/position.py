"""The progress of an interrupted replay, read from path and journal: the same plan continues the replay.

The host's entries are appended under keys with the number of the last entry, so the journal tells which
entries are there. Does not know how a replay is made.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from oakleaf.core.entries import Entry
from oakleaf.core.facts import SessionEnded, TurnEnded, TurnLeft
from oakleaf.log.log import Log

_HOST = "host:"


class ReplayPosition(Struct, frozen=True):
    """How far a replay came."""

    turns: int = 0
    """How many inputs were appended."""
    is_turn_open: bool = False
    """Whether the last appended input has no final answer yet."""
    host_seq: int = 0
    """The last appended host entry, as a seq of the source."""
    misses: tuple[str, ...] = ()
    """The names of calls without a recording."""
    stop_reason: str | None = None
    """Why the replay ended before the last input."""
    is_ended: bool = False
    """Whether the replay came to the end or to a missed call: there is nothing to continue."""


def host_key(entries: Sequence[Entry]) -> str:
    """Return the key for an append of entries of the host. The entries keep the order of the source."""
    return f"{_HOST}{entries[-1].seq}"


def read_position(log: Log, path: Sequence[Entry], cut: int) -> ReplayPosition:
    """Return the progress of the replay after the shared entries 1..`cut`."""
    journal = log.store.journal(log.session_id)
    keys = [fact.key or "" for fact in journal]
    hosts = [int(key.removeprefix(_HOST)) for key in keys if key.startswith(_HOST)]
    facts = [stored.fact for stored in reversed(journal)]
    ended = next((fact for fact in facts if isinstance(fact, SessionEnded)), None)
    after = path[cut:]
    turn_end = next((fact for fact in facts if isinstance(fact, TurnEnded | TurnLeft)), None)
    # An answer that only repeats how a limit ended the recorded turn has no error of its own, and more turns follow it.
    has_error = turn_end is not None and turn_end.error is not None
    is_stopped = bool(after) and after[-1].finish == "error" and has_error
    return ReplayPosition(
        turns=sum(entry.is_input for entry in after),
        is_turn_open=bool(log.cursor.turn),
        host_seq=max(hosts, default=0),
        misses=tuple(_misses(after)),
        stop_reason=(ended and ended.error) or (_text(after[-1]) if is_stopped else None),
        is_ended=ended is not None and (ended.status == "completed" or ended.missed_call),
    )


def _misses(path: Sequence[Entry]) -> list[str]:
    names: dict[str, str] = {}
    misses: list[str] = []
    for entry in path:
        if entry.message is None:
            continue
        names |= {call.id: call.name for call in entry.message.calls}
        misses += [names[r.call_id] for r in entry.message.results if r.outcome == "not_recorded"]
    return misses


def _text(entry: Entry) -> str:
    return "" if entry.message is None else entry.message.text
