"""A lease lasts as long as its holder asked for, by the server's clock: a caller whose clock is wrong neither loses nor steals one."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import oakleaf
from oakleaf import errors
from support.postgres import Database

HOUR, LEASE_SECONDS = 3_600, 3
CALLER = f"""
import sys, time
real, wrong = time.time_ns, int(sys.argv[2]) * 10**9
time.time_ns = lambda: real() + wrong
time.time = lambda: time.time_ns() / 1e9
import oakleaf
from oakleaf.log import lease
lease.LEASE_SECONDS = {LEASE_SECONDS}
with oakleaf.open(sys.argv[1]) as store:
    session = store.session("ses_a")
    {{act}}
"""
TRIES = """
    row = session.row
    print(round((row.lease_until - store.runtime.now()) / 1e6))
    try:
        with session.turn("mine") as turn:
            turn.answer(oakleaf.assistant("done"))
    except oakleaf.errors.SessionRunning:
        print("running")
    try:
        store.backend.lease("ses_a", "other:1#x", store.runtime.now() + 60_000_000, store.runtime.now())
    except oakleaf.errors.SessionRunning:
        print("running")
    try:
        session.append([oakleaf.user("mine")])
    except oakleaf.errors.SessionRunning:
        print("running")
"""
HOLDS = """
    turn = session.turn("mine")
    with turn:
        print("holds", flush=True)
        sys.stdin.readline()
        turn.answer(oakleaf.assistant("done"))
    print("done")
"""


def caller(database: Database, act: str, wrong: int) -> subprocess.Popen[str]:
    code = CALLER.replace("    {act}", act)
    command = [sys.executable, "-c", code, database.url, str(wrong)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("wrong", [HOUR, -HOUR])
class TestACallerWhoseClockIsWrong:
    def test_it_steals_no_lease(self, database: Database, wrong: int) -> None:
        with oakleaf.open(database.url) as store:
            session = store.start(session_id="ses_a")
            now = store.runtime.now()
            fence = store.backend.lease("ses_a", "elsewhere:1#a", now + 60_000_000, now)
            with caller(database, TRIES, wrong) as other:
                said = other.communicate(timeout=60)[0].split()
            assert 30 < int(said[0]) <= 60
            assert said[1:] == ["running"] * 3
            assert store.backend.renew("ses_a", fence, store.runtime.now() + 60_000_000)
            assert session.row.leaf.seq == 0

    def test_it_loses_none(self, database: Database, wrong: int) -> None:
        with oakleaf.open(database.url) as store:
            store.start(session_id="ses_a")
            with caller(database, HOLDS, wrong) as other:
                assert other.stdout is not None
                assert other.stdout.readline() == "holds\n"
                until = store.session("ses_a").row.lease_until or 0
                assert 0 < until - store.runtime.now() <= (LEASE_SECONDS + 1) * 1_000_000
                now = store.runtime.now()
                with pytest.raises(errors.SessionRunning):
                    store.backend.lease("ses_a", "elsewhere:1#a", now + 1, now)
                time.sleep(LEASE_SECONDS)  # it was renewed
                assert (store.session("ses_a").row.lease_until or 0) > until
                assert other.communicate("\n", timeout=60)[0] == "done\n"
            assert [entry.message.text for entry in store.session("ses_a").path() if entry.message] == [
                "mine",
                "done",
            ]

    def test_one_that_has_expired_is_taken(self, database: Database, wrong: int) -> None:
        with oakleaf.open(database.url) as store:
            store.start(session_id="ses_a")
            now = store.runtime.now()
            store.backend.lease("ses_a", "elsewhere:1#a", now + 1, now)
            with caller(database, TRIES, wrong) as other:
                said = other.communicate(timeout=60)[0].split()
            assert said[1:] == ["running"]  # the append, since the lease before it was taken
