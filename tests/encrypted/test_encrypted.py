"""An encrypted store is a store: the whole contract, and nothing on the disk that can be read without the key.

Runs where `apsw-sqlite3mc` stands in the place of `apsw`: `make test` makes that environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oakleaf
from oakleaf import Attachment, ToolCall, assistant, errors, system, user
from oakleaf.stores.base import StoreBackend
from oakleaf.stores.sqlite.public_reader import PublicReader
from oakleaf.stores.sqlite.store import SqliteStore
from oakleaf.testing.stores import StoreConformance

KEY = "correct horse 'battery' \"staple\" ä"
RAW = "raw:" + "5a" * 32
"""A key as it is, of which none has to be made at each opening."""
CANARY = "canary-in-the-mine"


class TestStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> Iterator[None]:
        self.place, self.stores = tmp_path / "agent.db", list[StoreBackend]()
        yield
        for store in self.stores:
            store.close()

    def open_store(self, space: str = "default", owner: str | None = None) -> StoreBackend:
        store = SqliteStore(self.place, space=space, owner=owner, key=RAW)
        self.stores.append(store)
        return store


def fill(store: oakleaf.Store) -> oakleaf.Session:
    """Everything that can hold words: seeds, messages, calls, results, state, titles, tags, blobs, search."""
    session = store.start(
        f"agent {CANARY}", [system(CANARY)], title=CANARY, tags={"t": CANARY}, state={"s": CANARY}
    )
    with session.turn(user(CANARY, Attachment(CANARY.encode() * 999, "text/plain"))) as turn:
        turn.answer(assistant(CANARY, ToolCall("c1", "look", {"for": CANARY})))
        turn.result("c1", CANARY * 2_000, state={"found": CANARY})
        turn.answer(assistant(CANARY))
    assert store.search(CANARY).hits
    return session


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def opened_elsewhere(path: Path, key: str | None) -> subprocess.CompletedProcess[str]:
    code = "import sys, oakleaf\nwith oakleaf.open(sys.argv[1], key=sys.argv[2] or None) as s: print(len(s.sessions().sessions))"
    return subprocess.run(
        [sys.executable, "-c", code, str(path), key or ""], capture_output=True, text=True, check=False
    )


class TestDisk:
    def test_no_word_lies_there_in_the_open_neither_while_it_is_written_nor_afterwards(
        self, tmp_path: Path
    ) -> None:
        with oakleaf.open(tmp_path / "a.db", key=KEY) as store:
            fill(store)
            during = files(tmp_path)
            assert during["a.db-wal"]
        for content in (during, files(tmp_path)):
            for name, data in content.items():
                assert CANARY.encode() not in data, name
                assert not data.startswith(b"SQLite format 3"), name

    def test_without_encryption_the_same_words_would_be_found(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db") as store:
            fill(store)
            assert any(CANARY.encode() in data for data in files(tmp_path).values())

    def test_a_backup_is_encrypted_with_the_same_key(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db", key=KEY) as store:
            session = fill(store)
            path = session.path()
            store.backend.backup(tmp_path / "b.db")
        assert CANARY.encode() not in (tmp_path / "b.db").read_bytes()
        with oakleaf.open(tmp_path / "b.db", key=KEY) as copy:
            assert copy.session(session.session_id).path() == path
            assert list(copy.verify()) == []

    def test_killed_in_the_middle_it_goes_on(self, tmp_path: Path) -> None:
        code = """if True:
            import os, sys, oakleaf
            store = oakleaf.open(sys.argv[1], key=sys.argv[2])
            session = store.start(session_id="one")
            for n in range(10_000):
                session.append([oakleaf.user(f"message {n}")])
                print(n, flush=True)"""
        writer = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "a.db"), KEY], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        numbers = [int(writer.stdout.readline()) for _ in range(60)]
        os.kill(writer.pid, signal.SIGKILL)
        numbers += [int(line) for line in writer.stdout.read().splitlines()]
        writer.wait()
        writer.stdout.close()
        with oakleaf.open(tmp_path / "a.db", key=KEY) as store:
            texts = [entry.message.text for entry in store.session("one").path() if entry.message]
            assert texts[: len(numbers)] == [f"message {n}" for n in numbers]
            assert len(texts) <= len(numbers) + 1
            assert list(store.verify()) == []


class TestKey:
    @pytest.mark.parametrize("key", [None, "another"])
    def test_without_the_right_one_nothing_is_told_and_nothing_changes(
        self, tmp_path: Path, key: str | None
    ) -> None:
        with oakleaf.open(tmp_path / "a.db", key=KEY) as store:
            fill(store)
        before = files(tmp_path)
        refused = opened_elsewhere(tmp_path / "a.db", key)
        assert "NotAStore" in refused.stderr
        assert "key" in refused.stderr
        assert CANARY not in refused.stdout + refused.stderr
        assert KEY not in refused.stderr
        assert {name: files(tmp_path)[name] for name in before} == before
        assert opened_elsewhere(tmp_path / "a.db", KEY).stdout == "1\n"

    def test_a_store_that_is_not_encrypted_is_not_taken_for_one(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db") as store:
            fill(store)
        before = (tmp_path / "a.db").read_bytes()
        assert "not encrypted at all" in opened_elsewhere(tmp_path / "a.db", KEY).stderr
        assert (tmp_path / "a.db").read_bytes() == before

    @pytest.mark.parametrize("key", ["", "a\0b"])
    def test_what_is_no_key_is_refused_before_a_file_is_made(self, tmp_path: Path, key: str) -> None:
        with pytest.raises(errors.InvalidKey, match="at least one character"):
            oakleaf.open(tmp_path / "a.db", key=key)
        assert files(tmp_path) == {}

    def test_only_files_have_one(self) -> None:
        for url in ("memory:", "postgresql://localhost/x"):
            with pytest.raises(errors.StoreError, match="key= is for files"):
                oakleaf.open(url, key=KEY)

    def test_the_public_reader_wants_it_too(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db", owner="ann", key=KEY) as store:
            fill(store)
        with PublicReader(str(tmp_path / "a.db"), owner="ann", key=KEY) as reader:
            assert [session.title for session in reader.sessions()] == [CANARY]

    def test_several_processes_write_one_file(self, tmp_path: Path) -> None:
        code = """if True:
            import sys, oakleaf
            with oakleaf.open(sys.argv[1], key=sys.argv[2]) as store:
                session = store.start()
                for n in range(30):
                    session.append([oakleaf.user(str(n))])"""
        arguments = [sys.executable, "-c", code, str(tmp_path / "a.db"), KEY]
        writers = [subprocess.Popen(arguments) for _ in range(3)]
        assert [writer.wait() for writer in writers] == [0, 0, 0]
        with oakleaf.open(tmp_path / "a.db", key=KEY) as store:
            assert [store.session(row.session_id).leaf.seq for row in store.all_sessions()] == [30, 30, 30]
            assert list(store.verify()) == []


def command(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from oakleaf.cli.entry import run; run()", *words],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


class TestCommandLine:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "key").write_text(f"{KEY}\n")
        with oakleaf.open(tmp_path / "plain.db") as store:
            fill(store)
        done = command(
            tmp_path,
            "--store",
            "plain.db",
            "copy",
            "--all",
            "--to",
            "safe.db",
            "--to-key-file",
            "key",
        )
        assert done.returncode == 0, done.stderr
        return tmp_path

    def test_copying_encrypts_a_store_and_the_bundles_are_the_same(self, folder: Path) -> None:
        assert CANARY.encode() not in (folder / "safe.db").read_bytes()
        for store, words in (("plain", ()), ("safe", ("--key-file", "key"))):
            done = command(
                folder, "--store", f"{store}.db", *words, "export", "latest", "-o", f"{store}.oakleaf"
            )
            assert done.returncode == 0, done.stderr
        assert (folder / "plain.oakleaf").read_bytes() == (folder / "safe.oakleaf").read_bytes()

    def test_the_key_comes_from_a_file_named_by_an_option_or_the_environment(self, folder: Path) -> None:
        named = command(folder, "--store", "safe.db", "--key-file", "key", "ls", "--json")
        result = command(folder, "--store", "safe.db", "ls", "--json", OAKLEAF_KEY_FILE=str(folder / "key"))
        assert named.stdout == result.stdout
        assert CANARY in named.stdout

    def test_every_verb_that_looks_after_a_store_has_it(self, folder: Path) -> None:
        for verb in (["verify"], ["doctor"], ["backup", "copy.db"], ["purge"], ["search", CANARY]):
            done = command(folder, "--store", "safe.db", "--key-file", "key", *verb)
            assert done.returncode == 0, (verb, done.stdout, done.stderr)

    def test_without_it_the_error_says_where_it_goes(self, folder: Path) -> None:
        done = command(folder, "--store", "safe.db", "ls")
        assert done.returncode != 0
        assert "--key-file" in done.stderr
        assert "Traceback" not in done.stderr

    def test_an_empty_file_is_no_key(self, folder: Path) -> None:
        (folder / "key").write_text("")
        done = command(folder, "--store", "safe.db", "--key-file", "key", "ls")
        assert done.returncode != 0
        assert "at least one character" in done.stderr
