"""Many writers, one file: one wins, nobody is silently lost, nobody waits for ever."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import apsw
import pytest

import oakleaf
from oakleaf import StaleLeaf, Store, Usage, assistant, errors, user
from oakleaf.core.facts import PluginFact
from oakleaf.stores.base import Change
from oakleaf.stores.sqlite import connections
from oakleaf.stores.sqlite.group_commit import Group, Ticket
from oakleaf.stores.transfer import SessionExports

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"
ROUNDS = 400 if SOAK else 40
spawn = multiprocessing.get_context("spawn")


def texts(store: Store, session_id: str) -> list[str]:
    return [e.message.text for e in store.session(session_id).path() if e.message is not None]


# -- processes -------------------------------------------------------------------------------------
# Workers are functions of this module, started once: a process costs more than what it does here.


def compete(path: str, session_id: str, name: str, pipe: Connection) -> None:
    """For each go: append once behind the leaf both saw; tell whether it was written."""
    with oakleaf.open(path) as store:
        session = store.session(session_id)
        pipe.send("ready")
        while (message := pipe.recv()) is not None:
            try:
                session.append([user(f"{name} {message}")])
            except StaleLeaf as stale:
                pipe.send("stale" if stale.present != session.leaf else "stale, though nothing moved")
            else:
                pipe.send("written")
            pipe.recv()  # both have told: now both look at what is new
            session.refresh()
            pipe.send(str(session.leaf))


def append_many(path: str, name: str, threads: int, each: int, pipe: Connection) -> None:
    with oakleaf.open(path) as store:
        sessions = [store.start(title=f"{name}.{n}") for n in range(threads)]
        pipe.send("ready")
        pipe.recv()

        def grow(session: oakleaf.Session) -> None:
            for n in range(each):
                with session.turn(f"input {n}") as turn:
                    turn.answer(assistant(f"answer {n}"), usage=Usage(1, 2))

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(grow, sessions))
        pipe.send([(session.session_id, str(session.leaf)) for session in sessions])


def open_at_once(folder: str, name: str, pipe: Connection) -> None:
    pipe.send("ready")
    while (n := pipe.recv()) is not None:
        with oakleaf.open(f"{folder}/{n}.db") as store:
            pipe.send(store.start(title=name).session_id)


class Crew:
    """Processes that run one function, each with a pipe."""

    def __init__(self, work: Callable[..., None], args: Sequence[tuple[Any, ...]]) -> None:
        pairs = [spawn.Pipe() for _ in args]
        self.pipes = [ours for ours, _ in pairs]
        self.processes = [
            spawn.Process(target=work, args=(*own, theirs))
            for own, (_, theirs) in zip(args, pairs, strict=True)
        ]
        for process in self.processes:
            process.start()

    def __enter__(self) -> Crew:
        self.hear()
        return self

    def tell(self, message: object) -> None:
        for pipe in self.pipes:
            pipe.send(message)

    def hear(self) -> list[Any]:
        messages = []
        for pipe in self.pipes:
            assert pipe.poll(100), "a process hangs"
            messages.append(pipe.recv())
        return messages

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self.pipes:
            pipe.close()


class TestProcesses:
    def test_of_two_writers_behind_a_leaf_the_second_is_refused(self, tmp_path: Path) -> None:
        path = str(tmp_path / "a.db")
        with oakleaf.open(path) as store:
            session_id = store.start().session_id
            with Crew(compete, [(path, session_id, name) for name in ("one", "two")]) as crew:
                for n in range(ROUNDS):
                    crew.tell(n)
                    assert sorted(crew.hear()) == ["stale", "written"]
                    crew.tell("look")
                    assert len(set(crew.hear())) == 1, "both stand at the same leaf again"
                crew.tell(None)
            lines = texts(store, session_id)
            assert [text.split()[1] for text in lines] == [str(n) for n in range(ROUNDS)]
            assert list(store.verify()) == []

    def test_many_writers_on_their_own_sessions_never_meet_a_lock(self, tmp_path: Path) -> None:
        processes, threads, each = (16, 2, 40) if SOAK else (4, 4, 12)
        path = str(tmp_path / "a.db")
        with Crew(append_many, [(path, f"p{n}", threads, each) for n in range(processes)]) as crew:
            crew.tell("go")
            counts = dict(pair for pairs in crew.hear() for pair in pairs)
        assert len(counts) == processes * threads
        with oakleaf.open(path) as store:
            assert list(store.verify()) == []
            for session_id, leaf in counts.items():
                session = store.session(session_id)
                assert str(session.leaf) == leaf
                expected = [f"{what} {n}" for n in range(each) for what in ("input", "answer")]
                assert texts(store, session_id) == expected
                assert session.row.totals.input_tokens == each

    def test_processes_that_make_the_same_file_at_once_get_one_store(self, tmp_path: Path) -> None:
        names = ["one", "two", "three"]
        with Crew(open_at_once, [(str(tmp_path), name) for name in names]) as crew:
            for n in range(ROUNDS // 2):
                crew.tell(n)
                identities = set(crew.hear())
                with oakleaf.open(tmp_path / f"{n}.db") as store:
                    assert {row.session_id for row in store.all_sessions()} == identities
                    assert {row.title for row in store.all_sessions()} == set(names)
            crew.tell(None)

    def test_one_key_sent_by_two_processes_is_written_once(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db") as store, oakleaf.open(tmp_path / "a.db") as other:
            session = store.start()
            late = other.session(session.session_id)
            first = session.append([user("once")], key="k")
            again = late.append([user("once")], key="k")
            assert again.is_repeat
            assert again.leaf == first.leaf
            assert texts(store, session.session_id) == ["once"]

    def test_tags_set_by_two_handles_are_both_kept(self, tmp_path: Path) -> None:
        """Reading the tags, merging and writing them back must be one step, or one of them is lost."""
        path = tmp_path / "a.db"
        with oakleaf.open(path) as store:
            session_id = store.start().session_id
            barrier = threading.Barrier(4)

            def tag(name: str) -> None:
                with oakleaf.open(path) as own:
                    session = own.session(session_id)
                    for n in range(10):
                        barrier.wait()
                        session.tag(**{f"{name}{n}": "x"})

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(tag, "abcd"))
            assert set(store.session(session_id).row.tags) == {
                f"{name}{n}" for name in "abcd" for n in range(10)
            }


# -- threads ---------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with oakleaf.open("memory:" if request.param == "memory" else tmp_path / "a.db") as opened:
        yield opened


class TestThreads:
    def test_appends_through_one_shared_handle_all_land(self, store: Store) -> None:
        session = store.start()
        threads, each = 8, 15

        def grow(name: int) -> None:
            for n in range(each):
                session.append([user(f"{name} {n}"), assistant("yes")])

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(grow, range(threads)))
        path = session.path()
        assert [entry.seq for entry in path] == list(range(1, 2 * threads * each + 1))
        inputs = texts(store, session.session_id)[::2]
        for name in range(threads):
            assert [text for text in inputs if text.startswith(f"{name} ")] == [
                f"{name} {n}" for n in range(each)
            ]
        assert session.verify() == []

    def test_reads_beside_writes_see_whole_commits(self, store: Store) -> None:
        session = store.start()
        stop = threading.Event()
        wrong: list[object] = []

        def look() -> None:
            while not stop.is_set():
                whole = store.hydrate(session.session_id)
                figures = len(whole.messages), whole.state.get("n", 0) * 3, whole.row.leaf.seq
                if len(set(figures)) != 1:
                    wrong.append(figures)

        readers = [threading.Thread(target=look) for _ in range(3)]
        for reader in readers:
            reader.start()
        for n in range(1, 80):
            session.append([user("a"), assistant("b"), oakleaf.Note(state={"n": n})])
        stop.set()
        for reader in readers:
            reader.join()
        assert wrong == []

    def test_tasks_of_asyncio_each_with_a_session(self, store: Store) -> None:
        tasks, each = 20, 5

        async def agent(n: int) -> str:
            session = await asyncio.to_thread(store.start, f"agent {n}")
            for step in range(each):
                await asyncio.to_thread(session.append, [user(f"{n} {step}"), assistant("yes")])
            return session.session_id

        async def main() -> list[str]:
            return await asyncio.gather(*(agent(n) for n in range(tasks)))

        for n, session_id in enumerate(asyncio.run(main())):
            assert texts(store, session_id)[::2] == [f"{n} {step}" for step in range(each)]
        assert list(store.verify()) == []

    def test_latest_or_start_in_many_threads_starts_once(self, store: Store) -> None:
        barrier = threading.Barrier(8)

        def begin(_: int) -> str:
            barrier.wait()
            return store.latest_or_start("con_one").session_id

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(begin, range(8)))) == 1

    def test_a_store_closed_under_writers_raises_errors_of_ours(self, tmp_path: Path) -> None:
        for n in range(20 if SOAK else 4):
            store = oakleaf.open(tmp_path / f"{n}.db")
            sessions = [store.start() for _ in range(4)]
            raised: list[BaseException] = []
            acknowledged = [0] * 4
            started = threading.Barrier(5)

            def grow(k: int) -> None:
                started.wait()  # noqa: B023 - joined within the round
                try:
                    while True:
                        sessions[k].append([user("x")])  # noqa: B023
                        acknowledged[k] += 1  # noqa: B023
                except BaseException as error:  # noqa: BLE001 - told below
                    raised.append(error)  # noqa: B023

            threads = [threading.Thread(target=grow, args=(k,)) for k in range(4)]
            for thread in threads:
                thread.start()
            started.wait()
            while not all(acknowledged):
                time.sleep(0.001)
            store.close()
            for thread in threads:
                thread.join(20)
            assert [type(error) for error in raised if not isinstance(error, errors.StoreError)] == []
            with oakleaf.open(tmp_path / f"{n}.db") as again:
                numbers = [again.session(session.session_id).leaf.seq for session in sessions]
                assert all(have >= had for have, had in zip(numbers, acknowledged, strict=True))


# -- group commit ----------------------------------------------------------------------------------


class WriterGate:
    """A way to make writers come together: the first holds the lock until the others wait."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def together(self, works: Sequence[Callable[[], object]]) -> list[object]:
        """Each work's outcome or error; all of them in one transaction, in this order."""
        group = self.store.backend._connections._group  # type: ignore[attr-defined]
        outcomes: list[object] = [None] * len(works)

        def one(n: int) -> None:
            try:
                outcomes[n] = works[n]()
            except BaseException as error:  # noqa: BLE001 - handed to the test
                outcomes[n] = error

        threads = []
        with group.lead:
            for n in range(len(works)):
                thread = threading.Thread(target=one, args=(n,))
                thread.start()
                threads.append(thread)
                until = time.monotonic() + 10
                while self._arrived(group, outcomes) <= n and time.monotonic() < until:
                    time.sleep(0.001)
            assert self._arrived(group, outcomes) == len(works), "they did not come together"
        for thread in threads:
            thread.join(20)
        return outcomes

    @staticmethod
    def _arrived(group: Group, outcomes: Sequence[object]) -> int:
        """Those that wait, and those that were refused before they came so far."""
        return len(group._waiting) + sum(isinstance(outcome, Exception) for outcome in outcomes)


@pytest.fixture
def gate(tmp_path: Path) -> Any:
    with oakleaf.open(tmp_path / "a.db") as store:
        yield WriterGate(store)


def raw(session: oakleaf.Session, **odd: Any) -> object:
    """A change that the log would have refused, handed to the store behind its back."""
    change = Change(**{"session_id": session.session_id, "key": "k", "at": 1, **odd})
    return session.log.store.commit(change)


BAD: dict[str, Callable[[oakleaf.Session], object]] = {
    "stale leaf": lambda s: s.append([user("x")], after=oakleaf.Leaf(s.leaf.branch, 0)),
    "missing blob": lambda s: s.append([user(oakleaf.Media("0" * 64, "image/png", 1))]),
    "surrogate in a key": lambda s: raw(s, key="\ud800"),
    "surrogate in an error": lambda s: raw(s, columns={"error": "\ud800"}),
    "number too great": lambda s: raw(s, columns={"context_window": 1 << 70}),
    "not json in a fact": lambda s: raw(s, fact=PluginFact("tests", "odd", {"x": object()})),
}


class TestGroupCommit:
    @pytest.mark.parametrize("what", BAD)
    def test_one_refused_change_does_not_fail_the_others(self, gate: WriterGate, what: str) -> None:

        sessions = [gate.store.start() for _ in range(5)]
        for session in sessions:
            session.append([user("first")])
        works: list[Callable[[], object]] = [
            (lambda s=session: s.append([assistant("good")])) for session in sessions
        ]
        works[2] = lambda: BAD[what](sessions[2])
        outcomes = gate.together(works)
        assert isinstance(outcomes[2], Exception)
        for n in (0, 1, 3, 4):
            assert not isinstance(outcomes[n], Exception), f"{n} was failed by its neighbour: {outcomes[n]!r}"
            assert texts(gate.store, sessions[n].session_id) == ["first", "good"]
        assert texts(gate.store, sessions[2].session_id) == ["first"]
        assert list(gate.store.verify()) == []

    def test_an_unforeseen_error_reaches_a_single_writer(self, gate: WriterGate) -> None:
        sessions = [gate.store.start() for _ in range(3)]
        connections = gate.store.backend._connections  # type: ignore[attr-defined]

        def fail(writer: Any) -> None:
            writer.execute("update session set title = 'half done'").fetchall()
            raise ZeroDivisionError

        works: list[Callable[[], object]] = [
            lambda: sessions[0].append([user("before")]),
            lambda: connections.write(fail),
            lambda: sessions[2].append([user("behind")]),
        ]
        outcomes = gate.together(works)
        assert [type(outcome).__name__ for outcome in outcomes] == [
            "Committed",
            "ZeroDivisionError",
            "Committed",
        ]
        assert [row.title for row in gate.store.all_sessions()] == [None] * 3, "what it had done is undone"
        assert list(gate.store.verify()) == []

    def test_an_import_beside_a_writer_that_fails_half_done_is_whole(self, gate: WriterGate) -> None:
        """An import reads its source once: run again it would find the source empty, and report success."""
        source = oakleaf.open("memory:")
        names = [source.start(session_id=f"ses_{n}", seeds=[user("a")]).session_id for n in range(3)]
        connections = gate.store.backend._connections  # type: ignore[attr-defined]

        def fail(writer: Any) -> None:
            writer.execute("create table half_done (a)").fetchall()
            writer.execute("insert into half_done values (1)").fetchall()
            raise ZeroDivisionError

        with source.backend.export_sessions(*names) as exports:
            works: list[Callable[[], object]] = [
                lambda: gate.store.backend.import_sessions(exports, 1),
                lambda: connections.write(fail),
            ]
            result, error = gate.together(works)
        assert isinstance(error, ZeroDivisionError)
        assert sorted(result.added) == names  # type: ignore[attr-defined]
        assert [texts(gate.store, name) for name in names] == [["a"]] * 3
        assert list(gate.store.verify()) == []

    def test_a_torn_import_beside_a_writer_leaves_nothing(self, gate: WriterGate) -> None:
        """Run again, such an import found the rest of its source and reported success without the sessions before."""
        source = oakleaf.open("memory:")
        names = [source.start(session_id=f"ses_{n}", seeds=[user("a")]).session_id for n in range(3)]
        session = gate.store.start()

        def tear(exported: Any) -> Any:
            if exported.row.session_id == names[1]:
                raise errors.NotFound(names[1])
            return exported

        with source.backend.export_sessions(*names) as exports:
            torn = SessionExports(map(tear, exports.sessions), exports.blobs)
            works: list[Callable[[], object]] = [
                lambda: session.append([user("beside")]),
                lambda: gate.store.backend.import_sessions(torn, 1),
            ]
            appended, error = gate.together(works)
        assert not isinstance(appended, Exception)
        assert isinstance(error, errors.NotFound)
        assert [row.session_id for row in gate.store.all_sessions()] == [session.session_id]
        assert texts(gate.store, session.session_id) == ["beside"]
        assert list(gate.store.verify()) == []

    def test_a_broken_constraint_reaches_a_single_writer(self, gate: WriterGate) -> None:
        session = gate.store.start()
        connections = gate.store.backend._connections  # type: ignore[attr-defined]
        broken = "insert into session_detail (session_number) values (1)"
        works: list[Callable[[], object]] = [
            lambda: session.append([user("before")]),
            lambda: connections.write(lambda writer: writer.execute(broken).fetchall()),
        ]
        appended, error = gate.together(works)
        assert not isinstance(appended, Exception)
        assert isinstance(error, errors.StoreError)
        assert texts(gate.store, session.session_id) == ["before"]

    def test_changes_in_a_group_are_compared_and_swapped(self, gate: WriterGate) -> None:
        session = gate.store.start()
        handles = [gate.store.session(session.session_id) for _ in range(4)]
        works = [(lambda h=handle, n=n: h.append([user(str(n))])) for n, handle in enumerate(handles)]
        outcomes = gate.together(works)
        assert [type(outcome).__name__ for outcome in outcomes] == ["Committed"] + ["StaleLeaf"] * 3
        assert texts(gate.store, session.session_id) == ["0"]
        assert session.verify() == []


class TestGroup:
    """The queue itself, with work that is no database."""

    @staticmethod
    def run_in_order(group: Group, threads: Sequence[threading.Thread]) -> None:
        """Let them all wait in this order, and then go on."""
        with group.lead:
            for n, thread in enumerate(threads):
                thread.start()
                until = time.monotonic() + 10
                while len(group._waiting) <= n and time.monotonic() < until:
                    time.sleep(0.001)
        group.wake_next()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive(), "a writer waits for ever"

    def submit_together(self, group: Group, requests: Sequence[Any]) -> list[object]:
        outcomes: list[object] = [None] * len(requests)

        def one(n: int) -> None:
            try:
                outcomes[n] = group.submit(requests[n])
            except BaseException as error:  # noqa: BLE001 - handed to the test
                outcomes[n] = error

        threads = [
            threading.Thread(target=one, args=(n,), daemon=True, name=f"writer {n}")
            for n in range(len(requests))
        ]
        self.run_in_order(group, threads)
        return outcomes

    @staticmethod
    def double(tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            ticket.succeed(ticket.work * 2)

    @staticmethod
    def interrupt_sleep(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """Let Ctrl-C wake the thread of that name."""
        sleep = Ticket.sleep

        def interrupted(ticket: Ticket) -> None:
            sleep(ticket)
            if threading.current_thread().name == name:
                raise KeyboardInterrupt

        monkeypatch.setattr(Ticket, "sleep", interrupted)

    def test_everybody_gets_their_own_outcome(self) -> None:
        assert self.submit_together(Group(self.double), range(30)) == [n * 2 for n in range(30)]

    def test_all_that_wait_share_one_batch(self) -> None:
        sizes: list[int] = []

        def run_batch(tickets: Sequence[Ticket]) -> None:
            sizes.append(len(tickets))
            self.double(tickets)

        self.submit_together(Group(run_batch), range(300))
        assert sizes == [300]

    @pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
    def test_an_interrupted_leader_is_told_and_strands_no_writer(
        self, interrupt: type[BaseException]
    ) -> None:
        leaders: list[str] = []

        def run_batch(tickets: Sequence[Ticket]) -> None:
            leaders.append(threading.current_thread().name)
            if len(leaders) == 1:
                raise interrupt
            self.double(tickets)

        outcomes = self.submit_together(Group(run_batch), range(6))
        assert sum(isinstance(outcome, interrupt) for outcome in outcomes) == 1, "Ctrl-C was swallowed"
        for n, outcome in enumerate(outcomes):
            assert outcome == n * 2 or isinstance(outcome, interrupt | errors.StoreError)

    @pytest.mark.parametrize("leaving", [0, 1, 2])
    def test_an_interrupted_waiter_is_not_run_and_hands_the_lead_on(
        self, leaving: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The oldest is woken to lead and leaves instead: another one has to."""
        self.interrupt_sleep(monkeypatch, f"writer {leaving}")
        done: list[int] = []

        def run_batch(tickets: Sequence[Ticket]) -> None:
            done.extend(ticket.work for ticket in tickets)
            self.double(tickets)

        outcomes = self.submit_together(Group(run_batch), range(3))
        for n, outcome in enumerate(outcomes):
            assert isinstance(outcome, KeyboardInterrupt) if n == leaving else outcome == n * 2
        # Another writer may have taken the ticket before the interrupt came.
        assert set(range(3)) - {leaving} <= set(done)
        assert leaving or 0 not in done

    def test_the_group_works_on_after_an_interrupt(self) -> None:
        calls: list[int] = []

        def run_batch(tickets: Sequence[Ticket]) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise KeyboardInterrupt
            self.double(tickets)

        group = Group(run_batch)
        with pytest.raises(KeyboardInterrupt):
            group.submit(1)
        assert group.submit(2) == 4

    def test_a_writer_whose_leader_vanished_with_the_ticket_fails(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Interrupted twice, a leader tells nobody; this one must neither wait for ever nor write twice."""
        group, done = Group(self.double), list[object]()

        def lose(ticket: Ticket) -> None:
            group._waiting.remove(ticket)
            group.lead.release()

        monkeypatch.setattr(Ticket, "sleep", lose)
        group.lead.acquire()
        with pytest.raises(errors.StoreError, match="was interrupted"):
            done.append(group.submit(1))
        assert done == []


# -- Ctrl-C ----------------------------------------------------------------------------------------

INTERRUPTED = """
import os, random, signal, sys, threading, time
import oakleaf
from oakleaf import errors, user


def interrupt(*_):
    raise KeyboardInterrupt


def expire(*_):
    os._exit(9)


def grow(n):
    session = store.start()
    while not stop.is_set():
        try:
            session.append([user("x")])
        except errors.OakleafError:  # the interrupted leader took its ticket along
            session.refresh()
        session.path(last=1)
        turns[n] += 1


store, stop, turns = oakleaf.open(sys.argv[1]), threading.Event(), [0, 0, 0]
threads = [threading.Thread(target=grow, args=(n,), daemon=True) for n in range(3)]
for thread in threads:
    thread.start()
while not all(turns):
    time.sleep(0.01)
random.seed(int(sys.argv[3]))
errors_kept = []
signal.signal(signal.SIGALRM, interrupt)
for _ in range(int(sys.argv[2])):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.003))
            end = time.monotonic() + 1  # the callback of a weak reference swallows an interrupt
            while time.monotonic() < end:
                store.start().append([user("x")])
                store.sessions(limit=1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt as error:
        errors_kept = [*errors_kept[-3:], error]
signal.signal(signal.SIGALRM, expire)
signal.alarm(20)
before = list(turns)
while any(now == then for now, then in zip(turns, before)):
    time.sleep(0.01)
stop.set()
for thread in threads:
    thread.join()
with oakleaf.open(sys.argv[1]) as other:
    other.start().append([user("x")])
    assert list(other.verify()) == []
store.close()
print("sound")
"""


class TestInterrupts:
    """An interrupt between any two steps of one thread hangs no other, and damages nothing.

    One that came after the lead was taken and before its `try` hung the store for ever. An error whose traceback held a
    cursor ended its statement in whichever thread dropped it, beside the one that wrote: the file was damaged.
    """

    def test_a_storm_of_interrupts_leaves_the_store_sound(self, tmp_path: Path) -> None:
        for seed in range(20 if SOAK else 1):
            path = tmp_path / f"{seed}.db"
            command = [sys.executable, "-c", INTERRUPTED, str(path), "2000" if SOAK else "250", str(seed)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            assert (done.returncode, done.stdout) == (0, "sound\n"), (seed, done.stderr[-2000:])
            connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]

    def test_a_kept_error_keeps_no_statement_of_the_writer(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db") as store:
            session = store.start()
            stale = store.session(session.session_id)
            session.append([user("a")])
            failures: list[BaseException] = []

            def fail(writer: apsw.Connection) -> None:
                cursor = writer.cursor()
                for _ in cursor.execute("select * from session_detail union all select 1, 2, 3, 4, 5"):
                    raise KeyboardInterrupt

            with pytest.raises(StaleLeaf) as excinfo:
                stale.append([user("b")])
            failures.append(excinfo.value)
            try:
                store.backend._connections.write(fail)  # type: ignore[attr-defined]
            except KeyboardInterrupt as error:
                failures.append(error)
            store.backend._connections._writer.execute("vacuum")  # type: ignore[attr-defined]
            assert len(failures) == 2


# -- fork() ----------------------------------------------------------------------------------------


def in_child(work: Callable[[], object]) -> Callable[[], None]:
    """Run work in a forked child; the returned function waits for it and fails if it failed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork() in a process with threads
        pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told on standard error, and by the status
            print(f"in the child: {error!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)

    def wait() -> None:
        until = time.monotonic() + 20
        done, status = os.waitpid(pid, os.WNOHANG)
        while not done and time.monotonic() < until:
            time.sleep(0.002)
            done, status = os.waitpid(pid, os.WNOHANG)
        if not done:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert done, "the child hangs"
        assert os.waitstatus_to_exitcode(status) == 0, "the child failed"

    return wait


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
class TestFork:
    def test_child_and_parent_both_write(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db") as store:
            sessions = [store.start() for _ in range(2)]
            for session in sessions:
                session.append([user("before")])

            def grow(session: oakleaf.Session) -> None:
                for n in range(30):
                    session.append([user(str(n))])

            wait = in_child(lambda: grow(sessions[1]))
            grow(sessions[0])
            wait()
            for session in sessions:
                assert texts(store, session.session_id) == ["before", *map(str, range(30))]
            assert list(store.verify()) == []

    @pytest.mark.parametrize("how", ["the handle it inherited", "a store of its own"])
    def test_writes_of_a_child_stay_after_the_parent_closed(self, how: str, tmp_path: Path) -> None:
        """The child's SQLite believes it holds the locks it inherited. It holds none, so a parent that closes
        takes itself for the last one and removes the log the child goes on writing to."""
        path = tmp_path / "a.db"
        store = oakleaf.open(path)
        session_id = store.start().session_id
        from_child, to_parent = os.pipe()
        from_parent, to_child = os.pipe()

        def child() -> None:
            own = store if how == "the handle it inherited" else oakleaf.open(path)
            session = own.session(session_id)
            session.append([user("before the parent closed")])
            os.write(to_parent, b".")
            os.read(from_parent, 1)
            for n in range(5):
                session.append([user(f"after {n}")])

        wait = in_child(child)
        os.read(from_child, 1)
        store.close()
        os.write(to_child, b".")
        wait()
        for pipe in (from_child, to_parent, from_parent, to_child):
            os.close(pipe)
        with oakleaf.open(path) as again:
            expected = ["before the parent closed", *(f"after {n}" for n in range(5))]
            assert texts(again, session_id) == expected
            assert list(again.verify()) == []

    def test_a_child_that_ends_leaves_the_parents_log_alone(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db") as store:
            session = store.start()
            for n in range(10):

                def child() -> None:
                    store.session(session.session_id)
                    store.close()

                in_child(child)()
                session.append([user(str(n))])
            with oakleaf.open(tmp_path / "a.db") as other:
                assert texts(other, session.session_id) == [str(n) for n in range(10)]

    def test_fork_while_other_threads_write(self, tmp_path: Path) -> None:
        """No lock that a thread held at that moment may hang the child, and nothing the parent wrote is hurt."""
        with oakleaf.open(tmp_path / "a.db") as store:
            sessions = [store.start() for _ in range(4)]
            stop = threading.Event()

            def grow(session: oakleaf.Session) -> None:
                while not stop.is_set():
                    session.append([user("parent")])

            threads = [threading.Thread(target=grow, args=(session,)) for session in sessions[:3]]
            for thread in threads:
                thread.start()
            children = 40 if SOAK else 8
            try:
                for n in range(children):
                    in_child(lambda n=n: store.session(sessions[3].session_id).append([user(f"child {n}")]))()  # type: ignore[misc]
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
            assert texts(store, sessions[3].session_id) == [f"child {n}" for n in range(children)]
            for session in sessions[:3]:
                assert len(store.session(session.session_id).path()) == session.leaf.seq
            assert list(store.verify()) == []

    def test_fork_while_other_threads_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It waited for a moment at which none read, which need not come, and forked all the same in the end."""
        monkeypatch.setattr(connections, "PAUSE_SECONDS", 600.0)  # a fork that needs it does not come back
        with oakleaf.open(tmp_path / "a.db") as store, oakleaf.open(tmp_path / "b.db") as other:
            sessions = [store.start(), other.start()]
            for session in sessions:
                session.append([user("x")])
            stop = threading.Event()
            reads = [0] * 4

            def read(n: int) -> None:
                while not stop.is_set():
                    with store.backend.export_sessions(sessions[0].session_id):  # and more within it
                        sessions[n % 2].refresh()  # under the lock of a handle that the child uses, too
                        store.session(sessions[0].session_id).path()
                    reads[n] += 1

            threads = [threading.Thread(target=read, args=(n,), daemon=True) for n in range(4)]
            for thread in threads:
                thread.start()
            try:
                for n in range(60 if SOAK else 6):

                    def child(n: int = n) -> None:
                        for session in sessions:
                            session.refresh()
                            session.append([user(f"child {n}")])

                    in_child(child)()
                before = list(reads)
                until = time.monotonic() + 20
                while any(now == then for now, then in zip(reads, before, strict=True)):
                    assert time.monotonic() < until, "a reader hangs"
                    time.sleep(0.001)
            finally:
                stop.set()
                for thread in threads:
                    thread.join(20)
            assert list(store.verify()) == list(other.verify()) == []

    def test_a_handle_that_another_thread_used_works_in_the_child(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db") as store:
            session = store.start()
            in_use, done = threading.Event(), threading.Event()

            def use() -> None:
                with session.log._lock:
                    in_use.set()
                    done.wait()

            thread = threading.Thread(target=use)
            thread.start()
            in_use.wait()
            try:
                in_child(lambda: session.append([user("child")]))()
            finally:
                done.set()
                thread.join()
            assert texts(store, session.session_id) == ["child"]

    def test_a_turn_in_the_child_is_held_by_the_child(self, tmp_path: Path) -> None:
        """Held under the parent's name a turn would seem to run on after its child died."""
        with oakleaf.open(tmp_path / "a.db") as store:
            session = store.start()

            def child() -> None:
                store.session(session.session_id).turn("x").__enter__()
                os._exit(0)

            in_child(child)()
            holder = session.refresh().holder
            assert holder is not None
            assert not holder.endswith(f":{os.getpid()}")
            session.rewind(0)

    def test_multiprocessing_with_fork(self, tmp_path: Path) -> None:
        fork = multiprocessing.get_context("fork")
        with oakleaf.open(tmp_path / "a.db") as store:
            sessions = [store.start() for _ in range(3)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                processes = [
                    fork.Process(target=lambda s=session: [s.append([user(str(n))]) for n in range(10)])
                    for session in sessions
                ]
                for process in processes:
                    process.start()
            for process in processes:
                process.join(60)
                assert process.exitcode == 0
            for session in sessions:
                assert texts(store, session.session_id) == [str(n) for n in range(10)]
            assert list(store.verify()) == []
