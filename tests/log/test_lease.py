"""One runner drives a session: it is known by its process, renews its lease, and is replaced when it is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import Limits, ScriptedModel, Session, Store, ToolCall, assistant
from oakleaf.core.facts import ModelCallStarted
from oakleaf.errors import Fenced, SessionRunning
from oakleaf.log import lease as leases
from oakleaf.log.doctor import session_health
from oakleaf.log.process import Process, current_process
from oakleaf.log.runtime import Runtime, real_runtime
from oakleaf.stores.base import Change, CommitResult, PathSnapshot
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.stores.sqlite.locks import LifeLock
from support.all_stores import ALL_STORES
from support.paths import SUPPORT
from support.stopped_runs import stopped
from support.terminal import oakleaf as command

RUNNER = SUPPORT / "runner_process.py"
NAMESPACE = ("unshare", "-Urpf", "--mount-proc", "--kill-child")
NO_MORE_THREADS = """
import resource, threading
import oakleaf
from oakleaf.log.lease import Lease

def limit_memory(more):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))

with oakleaf.open("memory:") as store:
    log = store.start().log
    threading.stack_size(64_000_000)
    limit_memory(20_000_000)
    try:
        Lease(log).take(log.refresh())
    except RuntimeError as error:
        print(error)
    limit_memory(200_000_000)
    lease = Lease(log)
    lease.take(log.refresh())
    print(threading.enumerate()[-1].name)
"""
RENAMED = ("sh", "-c", 'hostname renamed && exec "$@"', "sh")


@pytest.fixture(params=[name for name in ALL_STORES if name != "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    url: str = request.getfixturevalue("database").url
    return url


@contextmanager
def inside_its_tool(
    url: str, session_id: str, how: str = "loop", prefix: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the session and waits in `charge`."""
    with subprocess.Popen(
        [*prefix, sys.executable, str(RUNNER), url, session_id, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert line_of(process) == "inside"
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def leave_the_tool(process: subprocess.Popen[str]) -> str:
    """Let the tool return; return how the run ended."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return line_of(process)


def kill_unreaped(process: subprocess.Popen[str]) -> None:
    """Kill it and do not collect its exit status, as a busy parent would: it stays as a zombie."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def elsewhere(runtime: Runtime, process: Process) -> Runtime:
    return replace(runtime, holder=lambda: str(process), is_gone=lambda name: Process.parse(name).is_gone())  # type: ignore[union-attr]


def resume(session: Session, *, take_over: bool = False) -> str:
    session.refresh()
    model = ScriptedModel(["resumed"])
    return session.resume_sync(model=model, tools=[charge], take_over=take_over).text


def charge() -> str:
    return "charged again"


class TestRunner:
    @pytest.mark.parametrize("how", ["loop", "turn"])
    def test_one_that_was_killed_is_replaced_at_once_even_before_it_is_reaped(
        self, url: str, how: str
    ) -> None:
        with oakleaf.open(url) as store:
            session = store.start()
            with inside_its_tool(url, session.session_id, how) as process:
                kill_unreaped(process)
                stuck = [
                    f.message for f in session_health(store.backend, store.runtime) if f.level == "problem"
                ]
                assert len(stuck) == 1
                assert f":{process.pid} is gone" in stuck[0]
                assert resume(session) == "resumed"

    @pytest.mark.parametrize("how", ["loop", "turn"])
    def test_one_that_is_alive_refuses_every_other_until_it_is_taken_over_and_writes_nothing_then(
        self, url: str, how: str
    ) -> None:
        with oakleaf.open(url) as store:
            session = store.start()
            with inside_its_tool(url, session.session_id, how) as process:
                session.refresh()
                with pytest.raises(SessionRunning, match=f":{process.pid}, whose lease"):
                    resume(session)
                with pytest.raises(SessionRunning, match="take_over=True"):
                    session.turn().__enter__()
                with pytest.raises(SessionRunning):
                    session.rewind(0)
                assert resume(session, take_over=True) == "resumed"
                before = session.path()
                assert leave_the_tool(process) == "Fenced"
            assert session.refresh().status == "idle"
            assert session.path() == before

    @pytest.mark.extra
    def test_the_command_line_names_it_and_takes_over(self, tmp_path: Path) -> None:
        path = tmp_path / "store.db"
        with oakleaf.open(path) as store:
            session = store.start()
        with inside_its_tool(str(path), session.session_id, "turn") as process:
            refused = command("resume", session.session_id, "--rollback", store=path)
            assert refused.code == 3
            assert f"oakleaf resume {session.session_id} --take-over" in refused.err
            result = command("resume", session.session_id, "--rollback", "--take-over", store=path)
            assert result.code == 0
            assert leave_the_tool(process) == "Fenced"

    @pytest.mark.extra
    def test_a_server_resumes_what_a_killed_one_ran(self, tmp_path: Path) -> None:
        from support.server import LocalServer

        with oakleaf.open(tmp_path / "store.db") as store:
            session = store.start()
            where = f"/api/sessions/{session.session_id}"
            with LocalServer(store) as server, inside_its_tool(store.backend.url, session.session_id) as one:
                assert server.get(where)["is_held"]
                server.post(f"{where}/resume", {"rollback": True}, 409)
                kill_unreaped(one)
                detail = server.get(where)
                assert (detail["session"]["status"], detail["is_held"]) == ("interrupted", False)
                (listed,) = server.get("/api/sessions?query=status:interrupted")["sessions"]
                assert (listed["id"], listed["status"]) == (session.session_id, "interrupted")
                assert server.get("/api/facets")["facets"]["status"] == {"interrupted": 1}
                assert [call["state"] for call in detail["open_tool_calls"]] == ["unknown"]
                server.post(f"{where}/resume", {"rollback": True}, 202)
            session.refresh()
            session.set(
                effects="repeat"
            )  # whether the call took effect is unknown: by default a person is asked
            with LocalServer(store) as server, inside_its_tool(store.backend.url, session.session_id):
                server.post(f"{where}/resume", {"rollback": True, "take_over": True}, 202)


def can_make_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_make_namespaces(), reason="no pid namespaces here; TestExpiry does it without")
class TestContainer:
    """Processes with pid 1 in pid namespaces of their own, under one host name, or two."""

    def test_one_that_is_alive_keeps_its_session_and_its_result(self, tmp_path: Path) -> None:
        url = str(tmp_path / "store.db")
        with oakleaf.open(url) as store:
            session = store.start()
            with inside_its_tool(url, session.session_id, prefix=NAMESPACE) as process:
                assert session.refresh().holder.split("/")[0].endswith(":1")  # type: ignore[union-attr]
                with pytest.raises(SessionRunning):
                    resume(session)
                with inside_its_tool(url, store.start().session_id, "turn", NAMESPACE) as other:
                    assert leave_the_tool(other) == "done"
                refused = subprocess.run(
                    [*NAMESPACE, sys.executable, str(RUNNER), url, session.session_id, "resume"],
                    stdout=subprocess.PIPE,
                    check=True,
                )
                assert refused.stdout == b"SessionRunning\n"
                assert leave_the_tool(process) == "done"
            session.refresh()
            outcomes = [r.outcome for e in session.path() if e.message for r in e.message.results]
            assert (outcomes, session.row.status) == (["done"], "idle")

    @pytest.mark.parametrize("name", ["the same host name", "another host name"])
    def test_one_that_was_killed_is_replaced_at_once_by_the_next(self, name: str, tmp_path: Path) -> None:
        url = str(tmp_path / "store.db")
        restart = NAMESPACE if name == "the same host name" else (*NAMESPACE, "--uts", *RENAMED)
        with oakleaf.open(url) as store:
            session = store.start()
        with inside_its_tool(url, session.session_id, "turn", NAMESPACE) as process:
            kill_unreaped(process)
        again = subprocess.run(
            [*restart, sys.executable, str(RUNNER), url, session.session_id, "resume"],
            stdout=subprocess.PIPE,
            check=True,
        )
        assert again.stdout == b"resumed\n"

    def test_a_renamed_host_still_knows_its_own_processes(self, tmp_path: Path) -> None:
        url = str(tmp_path / "store.db")
        with oakleaf.open(url) as store:
            session = store.start()
        with inside_its_tool(url, session.session_id) as process:
            kill_unreaped(process)
            again = subprocess.run(
                [
                    "unshare",
                    "-Ur",
                    "--uts",
                    *RENAMED,
                    sys.executable,
                    str(RUNNER),
                    url,
                    session.session_id,
                    "resume",
                ],
                stdout=subprocess.PIPE,
                check=True,
            )
        assert again.stdout == b"resumed\n"


class TestProcess:
    @pytest.mark.skipif(sys.platform != "linux", reason="the name is one of Linux")
    def test_the_name_of_a_process_may_be_cut_within_a_letter(self) -> None:
        """Linux keeps 15 bytes of it: of a script called rückerstattungen the ü may be cut in two."""
        script = """
import ctypes
import oakleaf
ctypes.CDLL(None).prctl(15, b"r\\xc3", 0, 0, 0)
with oakleaf.open("memory:") as store:
    print(store.start().send_sync("q", model=oakleaf.ScriptedModel(["Sound."])).text)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("Sound.\n", "")

    def test_it_is_gone_once_it_ended_or_another_has_its_pid(self) -> None:
        here = current_process()
        assert Process.parse(str(here)) == here
        assert here.is_gone() is False
        assert replace(here, host="renamed").is_gone() is False
        assert replace(here, start="1").is_gone() is True
        child = subprocess.Popen(["true"])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert replace(here, pid=child.pid, start=here.start).is_gone() is True
        child.wait()
        assert replace(here, pid=child.pid).is_gone() is True

    def test_nothing_is_known_of_another_boot_or_pid_namespace(self) -> None:
        here = current_process()
        assert replace(here, boot="another").is_gone() is None
        assert replace(here, namespace="4").is_gone() is None
        assert Process("another host", 1).is_gone() is None
        assert Process.parse("task:queue:019a") is None

    def test_between_namespaces_of_one_boot_the_lock_tells(self, tmp_path: Path) -> None:
        (tmp_path / "store.db").touch()
        here, another = (LifeLock(str(tmp_path / "store.db")) for _ in range(2))
        process = replace(current_process(), namespace="4", life_token=here.token() or "")
        assert process.is_gone(here.is_free) is process.is_gone(another.is_free) is False
        assert replace(process, boot="another").is_gone(another.is_free) is None
        assert replace(process, life_token="no.token").is_gone(another.is_free) is None
        here.close()  # as the kernel does when a process ends
        assert process.is_gone(another.is_free) is True
        (tmp_path / "store.db-oakleaf").rename(tmp_path / "elsewhere")
        assert process.is_gone(here.is_free) is None


class AskedMemoryStore(MemoryStore):
    """Lets a test act, on another thread, once a run has read the session, and in the moment after a lease is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.after_read: list[Callable[[], object]] = []
        self.is_read = False
        self.after_lease: list[Callable[[], object]] = []

    def path(self, session_id: str, **options: Any) -> PathSnapshot:
        self.is_read = self.is_read or bool(options.get("detail"))
        return super().path(session_id, **options)

    def now(self) -> int:
        """Tell the time between a run's first read and the commit of the run: no lock of a handle is held there."""
        if self.is_read:
            on_another_thread(self.after_read)
        return time.time_ns() // 1_000

    def commit(self, change: Change) -> CommitResult:
        result = super().commit(change)
        if change.columns.get("holder") is not None:
            on_another_thread(self.after_lease)
        return result


def on_another_thread(actions: list[Callable[[], object]]) -> None:
    while actions:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(actions.pop()).result()


class TestOneProcess:
    """Two runs of one process are two holders: the second took the lease of the first in the moment it was stored."""

    def test_a_lease_is_held_from_the_moment_it_is_stored(self) -> None:
        backend = AskedMemoryStore()
        session = Store(backend, real_runtime()).start()
        refusals: list[SessionRunning] = []

        def send_too() -> None:
            other = Store(backend, real_runtime()).session(session.session_id)
            with pytest.raises(SessionRunning) as refused:
                other.send_sync("mine", model=ScriptedModel(["never"]))
            refusals.append(refused.value)

        backend.after_lease = [send_too]
        assert session.send_sync("q", model=ScriptedModel(["a"])).text == "a"
        assert len(refusals) == 1
        assert [entry.message.text for entry in session.path() if entry.message] == ["q", "a"]

    @pytest.mark.parametrize("is_same", [True, False], ids=["one handle", "two handles"])
    def test_a_send_that_another_one_overtook_follows_it(self, is_same: bool) -> None:
        """Through one handle the second wrote at the leaf that it had read before the first, and got `StaleLeaf`."""
        backend = AskedMemoryStore()
        store = Store(backend, replace(real_runtime(), now=backend.now))
        session = store.start()
        other = session if is_same else store.session(session.session_id)
        backend.after_read = [lambda: other.send_sync("first", model=ScriptedModel(["1"]))]
        assert session.send_sync("second", model=ScriptedModel(["2"])).text == "2"
        texts = [entry.message.text for entry in session.path() if entry.message]
        assert texts == ["first", "1", "second", "2"]

    def test_a_send_that_another_one_overtook_keeps_the_limit_of_turns(self) -> None:
        backend = AskedMemoryStore()
        store = Store(backend, replace(real_runtime(), now=backend.now))
        session = store.start()
        other, limits = store.session(session.session_id), Limits(turns=1)
        backend.after_read = [lambda: other.send_sync("first", model=ScriptedModel(["1"]), limits=limits)]
        model = ScriptedModel(["2"])
        stopped(session.send_sync, "second", model=model, limits=limits)
        assert model.requests == []
        session.refresh()
        assert [entry.message.text for entry in session.path() if entry.message] == ["first", "1"]

    def test_a_turn_of_ones_own_loop_is_held_from_the_moment_it_is_stored(self, store: Store) -> None:
        refusals: list[SessionRunning] = []

        def send_too(_: float) -> None:
            if session.row.holder is not None and not refusals:
                with pytest.raises(SessionRunning) as refused:
                    store.session(session.session_id).send_sync("mine", model=ScriptedModel(["never"]))
                refusals.append(refused.value)

        store = Store(store.backend, real_runtime())
        session = store.start()
        asked = Store(store.backend, replace(real_runtime(), on_commit=send_too))
        with asked.session(session.session_id).turn("q") as turn:
            turn.answer(assistant("a"))
        assert len(refusals) == 1
        session.refresh()
        assert [entry.message.text for entry in session.path() if entry.message] == ["q", "a"]

    @pytest.mark.parametrize("handles", ["one handle", "two handles", "two stores"])
    def test_of_many_sends_at_once_each_runs_or_is_refused(self, url: str, handles: str) -> None:
        with oakleaf.open(url) as store, ExitStack() as opened:
            session = store.start()

            def handle() -> Session:
                if handles == "one handle":
                    return session
                own = store if handles == "two handles" else opened.enter_context(oakleaf.open(url))
                return own.session(session.session_id)

            senders = [handle() for _ in range(6)]
            start = Barrier(len(senders))

            def send(sender: Session) -> str:
                start.wait()
                try:
                    return sender.send_sync("q", model=ScriptedModel(["a"])).status
                except SessionRunning:
                    return "refused"

            with ThreadPoolExecutor(len(senders)) as threads:
                outcomes = list(threads.map(send, senders))
            session.refresh()
            assert set(outcomes) <= {"completed", "refused"}
            texts = [entry.message.text for entry in session.path() if entry.message]
            assert texts == ["q", "a"] * outcomes.count("completed")
            assert outcomes.count("completed") >= 1


class TestExpiry:
    def test_a_runner_out_of_sight_keeps_its_lease_for_half_a_minute_after_its_last_sign_of_life(
        self, store: Store
    ) -> None:
        clock = [1_000_000_000]
        runtime = replace(real_runtime(), now=lambda: clock[0])
        there = elsewhere(runtime, Process("web", 1, "5", "77", "boot"))
        here = Store(store.backend, elsewhere(runtime, current_process()))
        session = here.start()
        turn = Session(Store(store.backend, there).session(session.session_id).log).turn("q")
        turn.__enter__()
        session.refresh()
        clock[0] += 29_000_000
        with pytest.raises(SessionRunning, match="web:1"):
            resume(session)
        assert not any("web:1" in finding.message for finding in session_health(here.backend, here.runtime))
        clock[0] += 1_000_000
        problems = [
            one.message for one in session_health(here.backend, here.runtime) if one.level == "problem"
        ]
        assert problems == [f"{session.session_id} is marked running, but its runner web:1 is gone"]
        assert resume(session) == "resumed"
        with pytest.raises(Fenced):
            turn.answer(assistant("late"))

    def test_of_a_recorder_out_of_sight_doctor_says_how_long_it_was_silent(self, store: Store) -> None:
        """A recorder has no lease that could expire."""
        session = store.start()
        holder = f"{Process('web', 1, '5', '77', 'boot')}#x"
        session.log.record(ModelCallStarted(), row={"status": "running", "holder": holder})
        later = replace(real_runtime(), now=lambda: session.row.updated_at + 90 * 60_000_000)
        messages = [finding.message for finding in session_health(store.backend, later)]
        assert any("is run by web:1" in text and "it was active 90 minutes ago" in text for text in messages)

    @pytest.mark.parametrize("hours", [5, -5])
    def test_one_that_is_alive_renews_it_as_soon_as_the_clock_was_set(
        self, store: Store, hours: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Set forward, or after the machine slept, the lease looked expired for ten seconds, and another could take the
        session from a tool at work; set back, it outlived a runner that died by hours."""
        real_time, clock = time.time, [0.0]
        monkeypatch.setattr(time, "time", lambda: real_time() + clock[0])
        runtime = replace(real_runtime(), now=lambda: int(time.time() * 1e6))
        session = Store(store.backend, runtime).start()
        with session.turn("q"):
            (lease,) = [one for one in leases._alive.values() if one._session_id == session.session_id]
            before = session.row.lease_until or 0
            lease.tick()
            assert session.row.lease_until == before  # not due, and nothing happened to the clock
            clock[0] += hours * 3600
            lease.tick()
            remaining = (session.row.lease_until or 0) / 1e6 - time.time()
            assert 25 < remaining <= leases.LEASE_SECONDS
            with pytest.raises(SessionRunning):
                store.session(session.session_id).turn("mine").__enter__()

    def test_one_whose_commit_waited_for_other_writers_renews_it_at_once(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The lease was counted from the end of the commit that took it, and written from its beginning: after half a
        minute in a queue of writers a run that had just begun looked interrupted, and another could take its session."""
        clocks, waited = (time.time, time.monotonic), [0.0]
        for name, clock in zip(("time", "monotonic"), clocks, strict=True):
            monkeypatch.setattr(time, name, lambda clock=clock: clock() + waited[0])

        def wait(_: float) -> None:
            waited[0] += 25

        runtime = replace(real_runtime(), now=lambda: int(time.time() * 1e6), on_commit=wait)
        session = Store(store.backend, runtime).start()
        with session.turn("q"):
            (lease,) = [one for one in leases._alive.values() if one._session_id == session.session_id]
            assert waited[0] >= 25
            lease.tick()
            assert (session.row.lease_until or 0) / 1e6 - time.time() > 25

    def test_a_turn_that_was_dropped_ends_with_its_object(self, store: Store) -> None:
        session = store.start()
        turn = session.turn("q")
        turn.__enter__()
        with pytest.raises(SessionRunning):
            store.session(session.session_id).turn().__enter__()
        del turn
        with store.session(session.session_id).turn() as again:
            again.answer(assistant("a"))
        assert session.row.holder is None


class TestRenewal:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(leases, "LEASE_SECONDS", 0.3)
        monkeypatch.setattr(leases, "TICK_SECONDS", 0.05)

    def until_renewed(self, store: Store, session_id: str) -> Callable[[], str]:
        """A tool that blocks until the lease has been renewed twice."""

        def charge() -> str:
            ends = {store.backend.session(session_id).lease_until}
            while len(ends) < 3:
                time.sleep(0.01)
                ends.add(store.backend.session(session_id).lease_until)
            return "charged"

        return charge

    def test_a_tool_may_block_the_event_loop_and_the_callers_thread(self, url: str) -> None:
        with oakleaf.open(url) as store:
            session = store.start()
            blocking = self.until_renewed(store, session.session_id)

            async def charge() -> str:
                return blocking()

            model = ScriptedModel([assistant(ToolCall("c", "charge")), "done"])
            assert session.send_sync("q", model=model, tools=[charge]).text == "done"
            with session.turn("q") as turn:
                turn.answer(assistant(ToolCall("d", "charge")))
                turn.result("d", blocking())
                turn.answer(assistant("done"))
            outcomes = [r.outcome for e in session.path() if e.message for r in e.message.results]
            assert outcomes == ["done", "done"]

    @pytest.mark.skipif(sys.platform != "linux", reason="limits its memory by what /proc tells")
    def test_after_a_thread_could_not_start_the_next_lease_starts_one(self) -> None:
        """No lease of the process was renewed any more, and none of its runs knew."""
        ended = subprocess.run(
            [sys.executable, "-c", NO_MORE_THREADS], capture_output=True, text=True, timeout=60
        )
        assert (ended.stdout, ended.stderr) == ("can't start new thread\noakleaf-lease\n", "")

    def test_it_stops_when_another_takes_over(self, store: Store) -> None:
        session = store.start(session_id="ses_taken_over")  # other tests may have left leases of a ses_000001
        with session.turn("q"):
            (lease,) = [one for one in leases._alive.values() if one._session_id == session.session_id]
            session.interrupt()
            while not lease.is_lost:
                time.sleep(0.01)
        assert session.row.status == "interrupted"

    def test_a_child_does_not_renew_what_its_parent_holds(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "store.db") as store, store.start().turn("q"):
            pid = os.fork()
            if pid == 0:
                os._exit(len(leases._alive) + len(leases._heartbeats))
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert len(leases._alive) >= 1
