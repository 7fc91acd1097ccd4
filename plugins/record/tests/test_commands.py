"""`oakleaf record`, through the real entry point, with programs in processes of their own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import oakleaf as library
from support.fake_providers import Call, Completion, FakeProviders, Stall
from support.postgres import Database
from support.processes import wait_until
from support.terminal import OAKLEAF, Terminal, oakleaf
from support.without_posix import WITHOUT_POSIX

PROGRAM = """
import json, os, sys, urllib.request
body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": sys.argv[1]}]}).encode()
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
request = urllib.request.Request(url, body, {"Authorization": "Bearer sk-key", "Content-Type": "application/json"})
print(len(urllib.request.urlopen(request).read()) > 0)
sys.exit(7)
"""


def test_a_program_is_recorded_and_its_exit_code_is_kept(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    with FakeProviders(Completion("hello")) as fake:
        upstream = f"openai={fake.url}/v1"
        ran = oakleaf("record", "--upstream", upstream, "--", sys.executable, "agent.py", "hi", home=tmp_path)
    assert (ran.code, ran.out) == (7, "True\n")
    assert "1 turn, 11 in, 7 out" in ran.err
    assert "1 call in 1 session" in ran.err
    with library.open(tmp_path / "agent.db") as opened:
        (row,) = opened.sessions().sessions
        transcript = [
            entry.message.text for entry in opened.session(row.session_id).transcript() if entry.message
        ]
    assert transcript == ["hi", "hello"]
    assert b"sk-key" not in b"".join(path.read_bytes() for path in tmp_path.glob("agent.db*"))


def test_a_program_that_does_not_start_is_told_and_leaves_no_store(tmp_path: Path) -> None:
    unfit = oakleaf("record", "--", str(tmp_path), home=tmp_path)
    assert (unfit.code, "cannot run" in unfit.err, "sent nothing" in unfit.err) == (126, True, False)
    missing = oakleaf("record", "--", "no-such-program", home=tmp_path)
    assert missing.code == 127
    assert "there is no program 'no-such-program'" in missing.err
    assert not list(tmp_path.glob("agent.db*"))


def test_a_program_that_calls_nothing_is_told(tmp_path: Path) -> None:
    quiet = oakleaf("record", sys.executable, "-c", "pass", home=tmp_path)
    assert quiet.code == 0
    assert "sent nothing to the proxy, so nothing was recorded; it must take its base URL from" in quiet.err
    lost = "import os, urllib.request as r; u = os.environ['OPENAI_BASE_URL'].replace('openai', 'other')\nr.urlopen(u)"
    elsewhere = oakleaf("record", sys.executable, "-c", lost, home=tmp_path)
    assert "refused, because no upstream has this path: /other/v1 (1 ×)" in elsewhere.err
    assert "called no model through the proxy" in elsewhere.err
    bare = oakleaf("record", "--upstream", "openai", "--", "true", home=tmp_path)
    assert (bare.code, "'openai' has no address; write NAME=URL" in bare.err) == (2, True)
    wrong = oakleaf("record", "--upstream", "mistral=http://x", "--", "true", home=tmp_path)
    assert wrong.code == 2
    assert "anthropic, openai, gemini" in wrong.err
    unreachable = oakleaf("record", "--upstream", "openai=nonsense", "--", "true", home=tmp_path)
    assert unreachable.code == 2
    assert "http://" in unreachable.err


def test_without_a_command_it_prints_what_to_set_and_says_at_the_end_what_it_recorded(tmp_path: Path) -> None:
    with FakeProviders(Completion("hello")) as fake:
        upstream = f"anthropic={fake.url}"
        with Terminal("record", "--port", "0", "--upstream", upstream, home=tmp_path) as terminal:
            screen = terminal.wait_for("Ctrl-C stops it")
            address = screen.partition("ANTHROPIC_BASE_URL=")[2].split()[0]
            message = {"role": "user", "content": "hi"}
            body = json.dumps({"model": "m", "max_tokens": 9, "stream": True, "messages": [message]}).encode()
            with urllib.request.urlopen(urllib.request.Request(f"{address}/v1/messages", body)) as reply:
                assert b"message_stop" in reply.read()
            terminal.interrupt("1 call in 1 session")


def test_a_proxy_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    command = ["nohup", *OAKLEAF, "--store", str(tmp_path / "agent.db"), "record", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().partition("=")[2].strip()
            process.send_signal(signal.SIGHUP)
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{address.rpartition('/')[0]}/nowhere")
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()


CALLER = """
import json, os, urllib.request
body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body)).read()
"""


def test_a_program_that_ended_with_an_open_call_leaves_no_session_running(tmp_path: Path) -> None:
    with FakeProviders(Completion(calls=(Call("c1", "look_up"),))) as fake:
        oakleaf(
            "record", "--upstream", f"openai={fake.url}/v1", "--", sys.executable, "-c", CALLER, home=tmp_path
        )
    with library.open(tmp_path / "agent.db") as opened:
        (row,) = opened.sessions().sessions
        assert (row.status, row.holder) == ("interrupted", None)
        assert not list(opened.verify())


def test_a_session_that_was_purged_meanwhile_does_not_end_the_report(tmp_path: Path) -> None:
    purge = f"""{CALLER}
import oakleaf, sys, time
with oakleaf.open({str(tmp_path / "agent.db")!r}) as store:
    while not (rows := store.sessions(status="idle").sessions):
        time.sleep(0.02)
    store.delete(rows[0].session_id)
    store.purge(rows[0].session_id)
sys.exit(3)
"""
    with FakeProviders(Completion("hello")) as fake:
        upstream = f"openai={fake.url}/v1"
        ran = oakleaf("record", "--upstream", upstream, "--", sys.executable, "-c", purge, home=tmp_path)
    assert (ran.code, "which was purged meanwhile" in ran.err) == (3, True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("path.unlink()", "agent.db was removed meanwhile"),
        ("path.write_bytes(b'x' * 200_000)", "which cannot be read"),
    ],
)
def test_the_exit_code_is_the_programs_whatever_became_of_the_store(
    tmp_path: Path, damage: str, message: str
) -> None:
    """It was that of an error of the report, which said nothing else then."""
    program = f"""{CALLER}
import oakleaf, pathlib, sys, time
path = pathlib.Path({str(tmp_path / "agent.db")!r})
with oakleaf.open(path) as store:
    while not store.sessions(status="idle").sessions:
        time.sleep(0.02)
{damage}
sys.exit(3)
"""
    with FakeProviders(Completion("hello")) as fake:
        upstream = f"openai={fake.url}/v1"
        ran = oakleaf("record", "--upstream", upstream, "--", sys.executable, "-c", program, home=tmp_path)
    assert (ran.code, message in ran.err, "1 call in 1 session" in ran.err) == (3, True, True), ran.err


def test_calls_that_a_server_does_not_take_are_recorded_in_a_file(tmp_path: Path, database: Database) -> None:
    program = f"""{CALLER}
import pathlib, time
pathlib.Path("called").touch()
while not pathlib.Path("away").exists():
    time.sleep(0.02)
{CALLER}
"""
    with FakeProviders(Completion("one"), Completion("two")) as fake:
        arguments = ("record", "--upstream", f"openai={fake.url}/v1", "--", sys.executable, "-c", program)
        with Terminal(*arguments, home=tmp_path, store=database.url, columns=1_000) as terminal:
            wait_until(
                lambda: (
                    (tmp_path / "called").exists()
                    and database.run("select 1 from oakleaf.entry where seq = 3")
                )
            )
            with database.outage():
                (tmp_path / "away").touch()
                terminal.wait_for("Ctrl-C stops waiting")
                terminal.type("\x03")  # once: a second one would stop it from writing the file
                terminal.wait_for("1 call recorded in")
                assert terminal.wait() == 0
    copy = terminal.screen.partition("When it is back: oakleaf ")[2].splitlines()[0]
    assert oakleaf(*shlex.split(copy), home=tmp_path).code == 0
    with library.open(database.url) as opened:
        answers = [
            opened.session(row.session_id).path()[-1].message.text for row in opened.sessions().sessions
        ]  # type: ignore[union-attr]
    assert sorted(answers) == ["one", "two"]


def test_a_closed_terminal_ends_the_program_and_its_session(tmp_path: Path) -> None:
    with FakeProviders(Stall()) as fake, recorded_program(fake, tmp_path) as process:
        os.killpg(process.pid, signal.SIGHUP)
        process.wait(20)
    with library.open(tmp_path / "agent.db") as opened:
        (row,) = opened.sessions().sessions
        assert (row.status, row.error) == ("cancelled", "the call was cancelled before the server answered")


def test_the_doctor_names_the_sessions_of_a_recorder_that_was_killed(tmp_path: Path) -> None:
    with FakeProviders(Stall()) as fake, recorded_program(fake, tmp_path) as process:
        healthy = oakleaf("doctor", home=tmp_path)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
    assert (healthy.code, "is marked running" in healthy.out) == (0, False)
    found = oakleaf("doctor", home=tmp_path)
    assert (found.code, "is marked running, but its runner" in found.out) == (1, True)
    assert "1 session marked interrupted" in oakleaf("doctor", "--fix", "--yes", home=tmp_path).err
    with library.open(tmp_path / "agent.db") as opened:
        assert [row.status for row in opened.sessions().sessions] == ["interrupted"]


LONG_CALLER = """
import json, os, urllib.request
turns = [turn for n in range(60) for turn in (f"question {n}", f"answer {n}")]
roles = ("user", "assistant")
messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate([*turns, "last question"])]
body = json.dumps({"model": "m", "stream": True, "messages": messages}).encode()
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body)).read()
"""


@pytest.mark.parametrize("written", [1, 20])
def test_a_killed_recorder_leaves_one_session_to_go_on_with(tmp_path: Path, written: int) -> None:
    with FakeProviders(Stall(), Completion("last answer")) as fake:
        command = [*OAKLEAF, "--store", str(tmp_path / "agent.db"), "record", "--upstream"]
        command += [f"openai={fake.url}/v1", "--", sys.executable, "-c", LONG_CALLER]
        with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: entries(tmp_path) >= written)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
        with library.open(tmp_path / "agent.db") as opened:
            (row,) = opened.sessions().sessions
            assert row.holder is not None
        assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    with library.open(tmp_path / "agent.db") as opened:
        (row,) = opened.sessions().sessions
        assert (row.status, row.holder, row.turns) == ("idle", None, 61)
        path = [entry.message.text for entry in opened.session(row.session_id).path() if entry.message]
        assert (path[0], path[119:]) == ("question 0", ["answer 59", "last question", "last answer"])
        assert not list(opened.verify())


def entries(home: Path) -> int:
    """Return how many entries the store has; none before there is one."""
    if not (home / "agent.db").exists():
        return 0
    with library.open(home / "agent.db") as opened:
        rows = opened.sessions().sessions
        return len(opened.session(rows[0].session_id).path()) if rows else 0


def _hear_hangup() -> None:
    """A test runner that was started with nohup ignores it, and its children would too."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def recorded_program(fake: FakeProviders, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A recorded program whose model does not answer, as soon as its request is stored; in a process group of its own."""
    command = [*OAKLEAF, "--store", str(home / "agent.db"), "record", "--upstream", f"openai={fake.url}/v1"]
    command += ["--", sys.executable, "-c", CALLER]
    with subprocess.Popen(
        command, start_new_session=True, stderr=subprocess.DEVNULL, preexec_fn=_hear_hangup
    ) as process:
        try:
            while not fake.requests:
                time.sleep(0.02)
            with library.open(home / "agent.db") as opened:
                while not opened.sessions(status="running").sessions:
                    time.sleep(0.02)
            yield process
        finally:
            fake.is_over.set()
            process.kill()


def test_recording_needs_nothing_that_only_posix_has() -> None:
    script = WITHOUT_POSIX + "import oakleaf_record.commands, oakleaf_record.recorder\nprint('sound')\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr[-3000:]
