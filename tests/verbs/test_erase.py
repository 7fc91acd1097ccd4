"""Erasing a customer leaves a receipt and no byte, and goes on after an interruption."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import oakleaf
from oakleaf import Attachment, Store, assistant, system, user
from oakleaf.errors import InvalidArgument, InvalidOperation, NotFound, SessionRunning
from oakleaf.verbs.base import Caller, Step
from oakleaf.verbs.erase import Erase
from oakleaf.verbs.health import Verify
from oakleaf.verbs.screen import Screen
from oakleaf.verbs.seal import seal_text
from support.processes import wait_until
from support.terminal import OAKLEAF
from support.terminal import oakleaf as command

CANARY = "canary-7d1f"


def fill(store: Store) -> None:
    """Write two sessions of ann with all that repeats them, and one of bob in the same conversation."""
    for name in ("ses_1", "ses_2"):
        session = store.start(
            "support",
            [system(f"{CANARY} seed")],
            session_id=name,
            owner="ann",
            conversation_id="con_1",
            title=CANARY,
        )
        session.append(
            [user(f"{CANARY} asks", Attachment(CANARY.encode() * 9, "text/plain")), assistant(f"{CANARY}!")]
        )
        session.fork(title=f"{CANARY} again").append([user("more"), assistant(CANARY)])
        store.start_task(session, "research", session_id=f"{name}_task").append(
            [user(CANARY), assistant(CANARY)]
        )
        session.replay_sync()
        session.enqueue(f"{CANARY} waits")
    store.delete("ses_2")
    bob = store.start("support", session_id="ses_bob", owner="bob", conversation_id="con_1")
    bob.append([user("bob asks"), assistant("bob is told")])
    store.index()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store" / "a.db"


@pytest.fixture
def disk(path: Path) -> Iterator[Store]:
    with oakleaf.open(path) as store:
        fill(store)
        yield store


def files_with(folder: Path, text: str) -> list[str]:
    return [file.name for file in folder.iterdir() if text.encode() in file.read_bytes()]


class Killed(Caller):
    """Ends after some sessions, as a killed process does."""

    def __init__(self, store: Store, after: int) -> None:
        super().__init__(store)
        self.after = after

    @contextmanager
    def progress(self, label: str, unit: str = "") -> Iterator[Step]:
        def stop(done: int, total: int | None, note: str = "") -> None:
            if done == self.after:
                raise KeyboardInterrupt

        yield stop


def test_no_byte_of_a_customer_is_left_and_others_stay(disk: Store, path: Path) -> None:
    assert files_with(path.parent, CANARY)
    planned = Erase(owner="ann").plan(Caller(disk))
    assert (planned.done, len(planned.purged)) == (False, 8)
    erased = Erase(owner="ann")(disk)
    assert (erased.done, erased.scrubbed, sorted(erased.purged)) == (True, True, sorted(planned.purged))
    assert files_with(path.parent, CANARY) == []
    assert [row.session_id for row in disk.sessions()] == ["ses_bob"]
    assert disk.session("ses_bob").transcript()[-1].message.text == "bob is told"


def test_a_plan_names_tasks_and_forks_as_such(disk: Store) -> None:
    erase = Erase(owner="ann")
    lines = "\n".join(erase.lines(erase.plan(Caller(disk)), Screen()))
    assert f"ses_1  {CANARY}  (1 turn) is deleted permanently" in lines
    assert f"ses_1_task  {CANARY}  (task) is deleted permanently" in lines


def test_an_erasure_is_the_same_on_every_store(any_store: Store) -> None:
    fill(any_store)
    erased = Erase(owner="ann")(any_store)
    assert (erased.done, len(erased.purged)) == (True, 8)
    left = [row for trashed in (False, True) for row in any_store.all_sessions(trashed=trashed)]
    assert [row.session_id for row in left] == ["ses_bob"]


@pytest.mark.parametrize("after", range(1, 9))
def test_an_interrupted_erasure_goes_on_and_the_receipt_is_whole(
    disk: Store, path: Path, tmp_path: Path, after: int
) -> None:
    sealed, receipt = disk.seal(), tmp_path / "ann.json"
    (tmp_path / "s.seal").write_text(seal_text(sealed))
    erase = Erase(owner="ann", receipt=str(receipt))
    names = sorted(erase.plan(Caller(disk)).purged)
    with pytest.raises(KeyboardInterrupt):
        erase.run(Killed(disk, after))
    cut_off = json.loads(receipt.read_bytes())
    assert (cut_off["done"], sorted(cut_off["purged"])) == (False, names)
    verify = Verify(against=str(tmp_path / "s.seal"), receipt=[str(receipt)])
    with pytest.raises(oakleaf.OakleafError, match="is a plan"):
        verify(disk)
    assert sorted(erase(disk).purged) == names
    whole = json.loads(receipt.read_bytes())
    assert (whole["done"], sorted(whole["purged"])) == (True, names)
    assert CANARY not in receipt.read_text()
    assert files_with(path.parent, CANARY) == []
    assert verify(disk).problems == []


def test_a_session_started_meanwhile_keeps_the_receipt_open(disk: Store, tmp_path: Path) -> None:
    class Served(Caller):
        @contextmanager
        def progress(self, label: str, unit: str = "") -> Iterator[Step]:
            disk.start(session_id="ses_late", owner="ann")
            yield lambda done, total, note="": None

    erase = Erase(owner="ann", receipt=str(tmp_path / "ann.json"))
    with pytest.raises(InvalidOperation, match="ann has 1 session more"):
        erase.run(Served(disk))
    assert json.loads((tmp_path / "ann.json").read_bytes())["done"] is False
    assert len(erase(disk).purged) == 9


def test_an_erasure_killed_with_kill_9_goes_on(path: Path, tmp_path: Path) -> None:
    with oakleaf.open(path) as store:
        for n in range(60):
            store.start(session_id=f"ses_{n}", owner="ann").append([user(f"{CANARY} {n}"), assistant(CANARY)])
    receipt = tmp_path / "ann.json"
    arguments = ["--store", str(path), "erase", "--owner", "ann", "--receipt", str(receipt), "--yes"]
    with subprocess.Popen([*OAKLEAF, *arguments], stdout=subprocess.DEVNULL) as process:
        wait_until(receipt.exists)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert command(*arguments[2:], store=path).code == 0
    whole = json.loads(receipt.read_bytes())
    assert (whole["done"], sorted(whole["purged"])) == (True, sorted(f"ses_{n}" for n in range(60)))
    assert files_with(path.parent, CANARY) == []


def test_a_receipt_of_another_customer_or_a_whole_one_is_refused(disk: Store, tmp_path: Path) -> None:
    receipt = tmp_path / "ann.json"
    Erase(owner="ann", receipt=str(receipt))(disk)
    with pytest.raises(InvalidArgument, match="it is of ann"):
        Erase(owner="bob", receipt=str(receipt))(disk)
    with pytest.raises(InvalidArgument, match="this receipt is complete"):
        Erase(owner="ann", receipt=str(receipt))(disk)
    cut_off = json.loads(receipt.read_bytes()) | {"done": False, "owner": "bob", "space": "other"}
    receipt.write_text(json.dumps(cut_off))
    with pytest.raises(InvalidArgument, match="a receipt of the space default; it is of other"):
        Erase(owner="bob", receipt=str(receipt))(disk)
    receipt.write_text("hello")
    with pytest.raises(InvalidArgument, match="an unfinished receipt"):
        Erase(owner="bob", receipt=str(receipt))(disk)
    with pytest.raises(InvalidArgument, match="an unfinished receipt"):
        Erase(owner="bob", receipt="/dev/zero")(disk)
    with pytest.raises(InvalidArgument, match="a folder that exists"):
        Erase(owner="bob", receipt="/no/such/folder/x.json")(disk)
    assert disk.session("ses_bob").row.owner == "bob"


def test_a_running_session_is_not_erased_nor_anything_beside_it(disk: Store) -> None:
    session = disk.session("ses_1")
    with session.turn("still at it") as turn:
        with pytest.raises(SessionRunning):
            Erase(owner="ann")(disk)
        turn.answer(assistant("done"))
    assert len(Erase(owner="bob").plan(Caller(disk)).purged) == 1
    assert disk.session("ses_2").row.trashed_at is not None


def test_an_unknown_customer_has_nothing_to_erase(disk: Store) -> None:
    erase = Erase(owner="nobody")
    assert erase.question(erase.plan(Caller(disk))) is None


def test_the_inputs_leave_the_chat_history_of_the_machine(disk: Store, path: Path, tmp_path: Path) -> None:
    session = disk.session("ses_1")
    session.append([user(f"{CANARY} undone"), assistant("ok")])
    session.undo()
    disk.close()
    history = tmp_path / "data" / "oakleaf" / "chat_history"
    history.parent.mkdir(parents=True)
    history.write_bytes(
        b"".join(
            json.dumps(text).encode() + b"\n"
            for text in (f"{CANARY} asks", f"{CANARY} undone", f"{CANARY} waits", "bob asks")
        )
        + f'"{CANARY} cut'.encode()
    )
    done = command(
        "erase", "--owner", "ann", "--yes", "--json", store=path, XDG_DATA_HOME=str(tmp_path / "data")
    )
    assert (done.code, json.loads(done.out)["history"]) == (0, 4)
    assert history.read_text() == '"bob asks"\n'
    with oakleaf.open(path) as store, pytest.raises(NotFound):
        store.session("ses_1")
