"""Measure search: building the index, querying it, catching up after a turn; and listing 10,000 sessions.

Appending is timed with and without an index in the file, because it must cost the same.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from time import perf_counter_ns, process_time_ns

import apsw

import oakleaf
from oakleaf.store import SessionFilters
from oakleaf.stores.base import Status
from oakleaf.stores.sql.rows import SESSION_COLUMNS

from .bare import encode
from .measure import Plan, System, alternate, middle, ms, percentile, size_on_disk, step_by_step
from .ours import Ours, add
from .report import Figure, at_most
from .workload import MESSAGES_PER_TURN, Workload

AGENTS = ("support", "sales", "research", "billing")
STATUSES: tuple[Status, ...] = ("idle", "completed", "failed")
COMMON, RARE, PHRASE = "module", "zanzibar", '"src module 7 py"'
QUERIES = {
    "rare": ("a word in 1 of 1,000 entries", RARE),
    "common": ("a word in 3 of 8 entries", COMMON),
    "phrase": ("a phrase", PHRASE),
    "prefix": ("the beginning of a word", "zanz*"),
    "filters": ("common word, role: tool: agent:", f"{COMMON} role:assistant tool:read_file agent:sales"),
    "time": ("common word, none within after:", f"{COMMON} after:2100-01-01"),
    "tag": ("common word, one session by tag:", f"{COMMON} tag:n=7"),
    "none": ("a word that is nowhere", "qqqq"),
}
Work = Callable[[], object]


def figures(plan: Plan) -> Iterator[Figure]:
    entries, sessions = plan.pick(100_000, 8_000), plan.pick(10_000, 800)
    path, copy = plan.path("search"), plan.path("copy")
    size = _fill(path, entries, sessions)
    before = size_on_disk(path)
    shutil.copy(path, copy)
    with oakleaf.open(path, synchronous="normal") as store:
        yield _build(store)
        yield _size(path, before, size)
        yield from _ask(store, plan)
        yield _news(store, plan)
    with oakleaf.open(copy) as store:
        yield _held_up(store)
    yield _beside(plan)
    yield from _compare_lists(plan, path, sessions)


def _fill(path: Path, entries: int, sessions: int) -> int:
    """Write many sessions of a turn or two each; return the size of their messages as JSON."""
    load, size = Workload(), 0
    turns = entries // MESSAGES_PER_TURN
    with oakleaf.open(path, synchronous="normal") as store:
        for number in range(sessions):
            session = store.start(AGENTS[number % 4], title=f"case {number}", tags={"n": str(number)})
            for turn in range(turns * number // sessions, turns * (number + 1) // sessions):
                for step in load.turn():
                    add(session, step)
                    size += sum(len(encode(message)) for message in step.messages)
                if turn % 125 == 0:
                    session.append([oakleaf.user(f"{RARE} {turn}")])
            session.end(STATUSES[number % 3])
    return size


def _build(store: oakleaf.Store) -> Figure:
    began, worked = perf_counter_ns(), process_time_ns()
    indexed = store.index()
    lasted, cpu = perf_counter_ns() - began, process_time_ns() - worked
    beside = {"entries": float(indexed), "seconds": lasted / 1e9, "of them CPU": cpu / 1e9}
    return Figure("search_build", "build the index", indexed / (lasted / 1e9), "entries/s", None, beside)


def _held_up(store: oakleaf.Store) -> Figure:
    """Measure durable appends to another session of the store while the index is built."""
    session, load, done = store.start("other"), Workload(5), list[bool]()
    times: dict[bool, list[int]] = {True: [], False: []}

    def write(is_alone: bool) -> None:
        while not done:
            for step in load.turn():
                began = perf_counter_ns()
                add(session, step)
                times[is_alone].append(perf_counter_ns() - began)

    for is_alone in (True, False):
        done.clear()
        writer = Thread(target=write, args=(is_alone,))
        writer.start()
        if is_alone:
            time.sleep(2)
        else:
            store.index()
        done.append(True)
        writer.join()
    beside, alone = times[False], times[True]
    return Figure(
        "search_build_writer",
        "  a writer's step meanwhile, p99",
        ms(percentile(beside, 0.99)),
        "ms",
        at_most(100),
        {"p50 ms": ms(middle(beside)), "worst": ms(max(beside)), "alone p99": ms(percentile(alone, 0.99))},
    )


def _size(path: Path, before: int, text: int) -> Figure:
    grown = size_on_disk(path) - before
    return Figure(
        "search_size",
        "index size against the JSON",
        grown / text,
        "×",
        at_most(0.6),
        {"MB": grown / 1e6, "JSON MB": text / 1e6},
    )


def _ask(store: oakleaf.Store, plan: Plan) -> Iterator[Figure]:
    rounds = plan.pick(30, 10)
    works: dict[str, Work] = {name: partial(store.search, typed) for name, (_, typed) in QUERIES.items()}
    works["nothing new"] = store.index  # timed separately, because each search begins with it
    times = alternate(works, rounds)
    for name, (what, typed) in QUERIES.items():
        hits = len(store.search(typed).hits)
        beside = {"p99 ms": ms(percentile(times[name], 0.99)), "hits": float(hits)}
        target = None if name == "time" else at_most(50)
        yield Figure(f"search_{name}", f"search: {what}", ms(middle(times[name])), "ms", target, beside)
    yield Figure(
        "search_nothing_new",
        "  checking that nothing is new",
        ms(middle(times["nothing new"])),
        "ms",
        at_most(10),
    )


def _news(store: oakleaf.Store, plan: Plan) -> Figure:
    load, session = Workload(9), store.session(store.sessions(agent="sales").sessions[0].session_id)
    times = []
    for _ in range(plan.pick(30, 10)):
        for step in load.turn():
            add(session, step)
        began = perf_counter_ns()
        assert store.index() == MESSAGES_PER_TURN
        times.append(perf_counter_ns() - began)
    beside = {"worst": ms(max(times))}
    return Figure("search_news", "index one new turn", ms(middle(times)), "ms", at_most(25), beside)


class IndexedStore(Ours):
    """A store that has an index before it is timed, and catches up now and then."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.session.append([oakleaf.user("to begin with")])
        self.sessions.index()

    def catch_up(self) -> None:
        self.sessions.index()


def _beside(plan: Plan) -> Figure:
    """Compare a store with an index with two without, step by step; the difference of those two is noise."""
    indexed = IndexedStore(plan.path("indexed"))
    systems: dict[str, System] = {
        "plain": Ours(plan.path("plain")),
        "indexed": indexed,
        "control": Ours(plan.path("control")),
    }
    load = Workload(3)
    by_system: dict[str, list[int]] = {name: [] for name in systems}
    for number in range(plan.pick(200, 40)):
        steps = load.turn()
        for name, times in step_by_step(systems, steps, seed=number).items():
            by_system[name] += times
        if number % 10 == 0:
            indexed.catch_up()
    for system in systems.values():
        system.close()
    without = middle([*by_system["plain"], *by_system["control"]])
    beside = {
        "p50 ms": ms(middle(by_system["indexed"])),
        "without": ms(without),
        "noise ×": middle(by_system["control"]) / middle(by_system["plain"]),
    }
    ratio = middle(by_system["indexed"]) / without
    return Figure("search_append", "append a step, index present", ratio, "× without", at_most(1.05), beside)


LISTS: dict[str, SessionFilters] = {
    "": {},
    "agent": {"agent": "sales"},
    "status": {"status": "failed"},
    "tag": {"tag": ("n", "3")},
    "time": {"started_before": 1},
    "title": {"title": "case 3"},
    "conversation": {"conversation_id": "con_none"},
}


def _compare_lists(plan: Plan, path: Path, sessions: int) -> Iterator[Figure]:
    """Compare `store.sessions()`, the first page and a late one, with the same rows read by the bare driver."""
    rounds = plan.pick(40, 10)
    connection = apsw.Connection(str(path))
    query = (
        f"select {SESSION_COLUMNS} from session where space = 'default' and (active_at, number) < (?, ?)"
        " order by active_at desc, number desc limit 50"
    )
    deep = f"select active_at, number from session order by active_at desc, number desc limit 1 offset {sessions * 9 // 10}"
    with oakleaf.open(path, synchronous="normal") as store:
        for name, before in (("first", (10**17, 0)), ("deep", connection.execute(deep).get)):
            works: dict[str, Work] = {
                "ours": partial(store.sessions, before="-".join(map(str, before))),
                "bare": partial(_rows, connection, query, before),
            }
            times = alternate(works, rounds)
            ratio = middle(times["ours"]) / middle(times["bare"])
            beside = {"ms": ms(middle(times["ours"])), "bare": ms(middle(times["bare"]))}
            yield Figure(
                f"list_{name}", f"list 50 of {sessions:,}, the {name} page", ratio, "× bare", None, beside
            )
        for name, filters in LISTS.items():
            times = alternate({"ours": partial(store.sessions, **filters)}, rounds)
            beside = {
                "rows": float(len(store.sessions(**filters).sessions)),
                "p99 ms": ms(percentile(times["ours"], 0.99)),
            }
            yield Figure(
                f"list_by_{name or 'all'}",
                f"first page, {name or 'no'} filter",
                ms(middle(times["ours"])),
                "ms",
                at_most(10),
                beside,
            )
    connection.close()


def _rows(connection: apsw.Connection, query: str, before: tuple[int, int]) -> list[object]:
    return list(connection.execute(query, before))
