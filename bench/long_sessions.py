"""What people wait for in a long session, at 1,000, 10,000 and 100,000 entries, with the ratio of the last to the first.

Half of each session's verbs run on a history that a summary has replaced but for its newest turns, as a session of this
length has one: what the model is given, and so what `context` and `send` return, is then the same at every length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import perf_counter_ns

import oakleaf
from oakleaf import Budget, Limits, ScriptedModel, Session, ToolCall, assistant, user
from oakleaf.store import Store

from .large import BATCH, _append, turn
from .measure import Plan, middle, ms
from .report import Figure, at_most
from .serving import ServedStore

ROUNDS = 7
TOOLS = 20
SUMMARY = "Parcels were looked for, and most of them were found in Zanzibar."


@oakleaf.tool(effect="read")
async def track(order: int) -> str:
    """Say where a parcel is."""
    return f"{order} is in Zanzibar"


def long_session(store: Store, entries: int) -> Session:
    """Build a session of whole turns, of four entries each, and label three entries."""
    random = Random(7)
    session = store.start(
        agent="long", seeds=[oakleaf.system("You find parcels.")], title=f"{entries:,} entries"
    )
    turns = entries // 4
    for first in range(0, turns, BATCH // 4):
        last = min(first + BATCH // 4, turns)
        _append(session, [payload for n in range(first, last) for payload in turn(n, random)])
    for seq in (2, session.leaf.seq // 2, session.leaf.seq):
        session.label(seq, f"label {seq}")
    return session


def compacted_session(store: Store, entries: int) -> Session:
    session = long_session(store, entries)
    session.compact(SUMMARY, first_kept=session.leaf.seq - 39)
    _append(session, [payload for n in range(2) for payload in turn(n, Random(n))])
    return session


def send(session: Session) -> None:
    """Send an input whose answer calls 20 tools at once."""
    calls = [ToolCall(f"c{n}", "track", {"order": n}) for n in range(TOOLS)]
    model = ScriptedModel([assistant(*calls), "There."])
    result = session.send_sync("Where are they?", model=model, tools=[track], limits=Limits(turns=10**9))
    assert result.text == "There.", result


def append_turn(session: Session) -> None:
    session.append([user("Where is it?"), assistant("There.")])


def undone(session: Session) -> None:
    append_turn(session)
    session.undo()


Verb = tuple[str, Callable[[Session], object], Callable[[Session], object] | None]


def verbs() -> list[Verb]:
    """Name, verb, and what is done before each time, which is not timed."""
    return [
        ("open", lambda s: _again(s).leaf, None),
        ("next_action", lambda s: _again(s).next_action(), None),
        ("undo", lambda s: s.undo(), append_turn),
        ("redo", lambda s: s.redo(), undone),
        ("messages, budget of 2,000 tokens", lambda s: s.messages("anthropic", Budget(tokens=2_000)), None),
        ("labels", lambda s: s.labels(), None),
        ("usage", lambda s: s.usage(), None),
        ("the last turn", lambda s: s.path(last=4), None),
        ("fork", lambda s: s.fork(), None),
        ("set tools", lambda s: s.set(tools=["track"]), None),
    ]


def compacted_verbs() -> list[Verb]:
    return [
        ("context", lambda s: s.context(), None),
        ("messages", lambda s: s.messages("anthropic"), None),
        ("uncompact", lambda s: s.uncompact(), lambda s: s.compact("More was found.", replaces_earlier=True)),
        (f"send with {TOOLS} tools at once", send, None),
    ]


def whole_verbs() -> list[Verb]:
    """Verbs that return or send all of the history: they grow with it, at most as fast."""
    return [("context, whole", lambda s: s.context(), None), (f"send with {TOOLS} tools, whole", send, None)]


def _again(session: Session) -> Session:
    return oakleaf.Store(session.log.store, session.log.runtime).session(session.session_id)


def _time(sessions: Sequence[Session], verb: Verb, rounds: int) -> list[float]:
    """Time a verb on each session, in turns: what else the machine does is then the same for all lengths."""
    _, work, before = verb
    times: list[list[int]] = [[] for _ in sessions]
    for _ in range(rounds + 1):
        for session, own in zip(sessions, times, strict=True):
            if before is not None:
                before(session)
            began = perf_counter_ns()
            work(session)
            own.append(perf_counter_ns() - began)
    return [ms(middle(own[1:])) for own in times]


def figures(plan: Plan) -> Iterator[Figure]:
    sizes = (1_000, 10_000, 100_000) if not plan.is_quick else (1_000, 4_000)
    times: dict[str, list[float]] = {}
    whole = {name for name, _, _ in whole_verbs()}
    with ExitStack() as opened:
        stores = [
            opened.enter_context(oakleaf.open(plan.path(f"long-{size}"), synchronous="normal"))
            for size in sizes
        ]
        plain = [long_session(store, size) for store, size in zip(stores, sizes, strict=True)]
        for verb in verbs():
            times[verb[0]] = _time(plain, verb, ROUNDS)
        compacted = [compacted_session(store, size) for store, size in zip(stores, sizes, strict=True)]
        for verb in compacted_verbs():
            times[f"{verb[0]}, compacted"] = _time(compacted, verb, ROUNDS)
        for verb in whole_verbs():
            times[verb[0]] = _time(plain, verb, 3)
        others = [session.fork() for session in compacted]
        for other in others:
            append_turn(other)
        ids = [
            [session.session_id for session in group] for group in zip(plain, compacted, others, strict=True)
        ]
    for size, session_ids in zip(sizes, ids, strict=True):
        for name, time in _serve_times(plan.path(f"long-{size}"), *session_ids).items():
            times.setdefault(name, []).append(time)
    for name, each in times.items():
        beside = {f"ms at {size:,}": value for size, value in zip(sizes, each, strict=True)}
        target = None if name in whole else at_most(1.5)
        yield Figure(f"long {name}", name, each[-1] / each[0], "× first", target, beside)


def _serve_times(place: Path, plain: str, compacted: str, other: str) -> dict[str, float]:
    served = ServedStore(place)
    try:
        paths = {
            "GET request": f"/api/sessions/{compacted}/request",
            "GET labels": f"/api/sessions/{plain}/labels",
            "GET diff": f"/api/diff?a={compacted}&b={other}",
            "GET turns": f"/api/sessions/{plain}/turns",
        }
        times = {}
        for name, path in paths.items():
            served.get(path)
            each = []
            for _ in range(ROUNDS):
                began = perf_counter_ns()
                served.get(path)
                each.append(perf_counter_ns() - began)
            times[name] = ms(middle(each))
        return times
    finally:
        served.close()
