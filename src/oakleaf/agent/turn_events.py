"""The events of a turn, read from the journal with the data that a run tells with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict, replace

from oakleaf.agent.call_status import read_call_status
from oakleaf.agent.earlier_calls import find_earlier_call
from oakleaf.agent.events import Event, fact_event
from oakleaf.agent.start_facts import session_data
from oakleaf.agent.tool_batch import call_data, call_key, earlier_data
from oakleaf.agent.tools.tool import EarlierCall
from oakleaf.core.entries import Entry
from oakleaf.core.facts import ApprovalRequested, Started, StoredFact, TaskWaits, TurnEnded, TurnStarted
from oakleaf.core.turns import ENDED_BY_TOOL, OpenCall
from oakleaf.log.log import Log


def turn_events(log: Log, after: int, until: int) -> list[Event]:
    """Return the events of the facts after number `after`, up to number `until`. The two are ends of commits."""
    if until <= after:
        return []
    read: dict[int, Entry] = {}
    events = []
    for fact in log.store.journal(log.session_id, after, until - after):
        entries = log.appended_entries(fact)
        read |= {entry.seq: entry for entry in entries}
        event = fact_event(fact, entries)
        events.append(replace(event, data=_data(log, fact, event, entries, read)))
    return events


def _data(
    log: Log, stored: StoredFact, event: Event, entries: Sequence[Entry], read: Mapping[int, Entry]
) -> dict[str, Any]:
    """Return the data of an event. `read` has the entries so far: a turn starts and ends right behind an append."""
    match stored.fact:
        case Started():
            return session_data(*log.store.session_with_detail(log.session_id))
        case TurnStarted(turn=turn) if (entry := read.get(turn)) and entry.message:
            return {"seq": turn, "text": entry.message.text}
        case TurnEnded(status="completed"):
            is_ended_by_tool = any(entry.finish == ENDED_BY_TOOL for entry in list(read.values())[-1:])
            return {"stop_reason": "ended by a tool" if is_ended_by_tool else "answered"}
        case ApprovalRequested(seq=seq, index=index, earlier=reference):
            call = _open_call(log, seq, lambda call: (call.seq, call.index) == (seq, index))
            if call is not None:
                earlier = None if reference is None else find_earlier_call(log, call.call)
                return call_data(call) | _earlier(earlier)
        case TaskWaits(seq=seq, index=index, session=session, call=key):
            call = _open_call(log, seq, lambda call: (call.seq, call.index) == (seq, index))
            for asked in read_call_status(log).task_approvals.get((seq, index), ()):
                if call is not None and (asked.session_id, call_key(asked)) == (session, key):
                    task = {"session_id": session, "task_of": asdict(call_key(call))}
                    return call_data(asked) | task | _earlier(asked.earlier)
    if event.type == "session:tool_result" and (message := entries[0].message):
        result = message.results[0]
        call = _open_call(log, entries[0].seq - 1, lambda call: call.call.id == result.call_id)
        if call is not None:
            content = to_builtins(list(result.content))
            about = {"content": content, "error": result.error, "outcome": result.outcome}
            return call_data(call) | about
    return event.data


def _earlier(call: EarlierCall | None) -> dict[str, Any]:
    return {} if call is None else {"earlier": earlier_data(call)}


def _open_call(log: Log, seq: int, is_meant: Callable[[OpenCall], bool]) -> OpenCall | None:
    """Return a call that was open at entry `seq` of the path; None on another path."""
    if seq > log.leaf.seq:
        return None
    return next((call for call in log.place_of(seq).cursor.open_calls if is_meant(call)), None)
