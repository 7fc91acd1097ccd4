"""Nothing acknowledged is lost and nothing half-written is seen: kills, cut logs, full disks, strange files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import oakleaf
from oakleaf import Store, assistant, errors, system, tool_result, user
from oakleaf.core.entries import Unknown
from oakleaf.core.turns import Rest
from support.crash_writer import digest, entry_text
from support.paths import SUPPORT
from support.terminal import oakleaf as command

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"
KILLS = 400 if SOAK else 14
CUTS = 400 if SOAK else 24
PAGE = 2048  # of a new store
WRITER = SUPPORT / "crash_writer.py"
NAMES = ("session", "commit", "length", "said", "state", "totals")
Lines = list[dict[str, Any]]


def write_and_die(path: Path, seed: int, wait: float, *, threads: int = 1, blob_bytes: int = 20_000) -> Lines:
    """Run a writer, kill it with SIGKILL some time after it is ready, and return what it told."""
    return _run(path, seed, threads, blob_bytes, 0, wait)


def write_commits(path: Path, seed: int, commits: int) -> Lines:
    """A writer killed after a given number of small commits: everything still lies in the WAL."""
    return _run(path, seed, 1, 0, commits, 0)


def _run(path: Path, seed: int, threads: int, blob_bytes: int, commits: int, wait: float) -> Lines:
    args = [str(path), *map(str, (seed, threads, blob_bytes, commits))]
    with subprocess.Popen([sys.executable, str(WRITER), *args], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(json.loads(line))
            if lines[-1]["t"] == ("done" if commits else "ready"):
                break
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        lines += [json.loads(line) for line in process.stdout if line.endswith(b"\n")]
    assert process.returncode == -signal.SIGKILL, "the writer died of itself"
    return lines


def read_summary(store: Store, session_id: str) -> dict[str, Any]:
    """A session as a new process finds it, in the words the writer uses."""
    whole = store.hydrate(session_id)
    entries = [*whole.seeds, *whole.messages]
    totals = whole.totals
    commits = sum(fact.key is not None for fact in store.session(session_id).journal())
    return {
        "session": session_id,
        "commit": commits,
        "length": len(entries),
        "said": digest([entry_text(entry) for entry in entries]),
        "state": whole.state,
        "totals": [totals.calls, totals.input_tokens, totals.output_tokens],
    }


def integrity(path: Path) -> str:
    with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        return str(connection.execute("pragma integrity_check").get)


class ExpectedSessions:
    """What must be there: the last acknowledged form of each session."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}

    def check(self, path: Path, lines: Lines) -> int:
        """Hold the reopened store against what the dead writer told; returns the unacknowledged commits found."""
        pending: dict[str, dict[str, Any]] = {}
        births = 0
        for line in lines:
            if line["t"] == "will":
                pending[line["session"]] = line
            elif line["t"] == "did":
                births -= line["session"] not in self.known
                self.known[line["session"]] = line
                pending.pop(line["session"], None)
            births += line["t"] in ("forks", "starts")
        with oakleaf.open(path) as store:
            assert list(store.verify()) == []
            more = self._compare(store, pending, births)
        assert integrity(path) == "ok"
        return more

    def _compare(self, store: Store, pending: dict[str, dict[str, Any]], births: int) -> int:
        summaries = {row.session_id: read_summary(store, row.session_id) for row in store.all_sessions()}
        assert set(self.known) <= set(summaries), "an acknowledged session is gone"
        born = set(summaries) - set(self.known)
        assert len(born) <= births
        more = len(born)
        for session_id in summaries.keys() & self.known.keys():
            expected, session = self.known[session_id], store.session(session_id)
            if summaries[session_id]["commit"] == expected["commit"]:
                leaf = session.leaf
                assert expected.get("leaf", [leaf.branch, leaf.seq]) == [leaf.branch, leaf.seq]
                assert expected.get("id", "") in ("", session.log.cursor.entry_id.hex())
                assert expected.get("open", len(session.open_tool_calls)) == len(session.open_tool_calls)
            else:  # the one commit that was durable when the kill came before its acknowledgement
                expected = pending[session_id]
                more += 1
            assert summaries[session_id] == {name: expected[name] for name in summaries[session_id]}
        self.known = summaries
        return more


class TestKill:
    def test_acknowledged_writes_stay_and_half_writes_are_unseen(self, tmp_path: Path) -> None:
        rng = random.Random(os.environ.get("OAKLEAF_SEED", "kill"))
        commits = more = resumed = batches = 0
        for kill in range(KILLS):
            if kill % 25 == 0:  # a new file now and then: checking all of it takes longer as it grows
                witness, path = ExpectedSessions(), tmp_path / f"{kill}.db"
            lines = write_and_die(path, kill, rng.random() * 0.25, threads=1 + kill % 2)
            commits += sum(line["t"] == "did" for line in lines)
            going_on = [line for line in lines if line["t"] == "resumed"]
            resumed += len(going_on)
            batches += sum(line["open"] > 0 for line in going_on)
            more += witness.check(path, lines)
        print(f"{KILLS} kills, {commits} commits acknowledged, {more} durable but not yet acknowledged")
        print(
            f"{resumed} open turns gone on with by the next process, {batches} of them within a batch of calls"
        )
        assert commits > KILLS
        assert resumed > 0, "no kill fell into a turn: the test tests nothing"

    def test_the_next_process_goes_on_in_mid_turn(self, tmp_path: Path) -> None:
        path = tmp_path / "killed.db"
        for seed in range(9):
            write_commits(path, seed, 7)
            with oakleaf.open(path) as store:
                rows = [
                    row for row in store.all_sessions() if not isinstance(_next(store, row.session_id), Rest)
                ]
                for row in rows:
                    session = store.session(row.session_id)
                    with session.turn() as turn:
                        for call in turn.open_tool_calls:
                            turn.result(call.call.id, "result of the next process")
                        turn.answer(assistant("the end"))
                    assert isinstance(session.next_action(), Rest)
                    assert session.row.status == "idle"
                    assert session.verify() == []
                if rows:
                    return
        pytest.fail("no writer was killed in mid-turn")


def _next(store: Store, session_id: str) -> object:
    return store.session(session_id).next_action()


@pytest.fixture(scope="class")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lines]:
    path = tmp_path_factory.mktemp("wal") / "killed.db"
    lines = write_commits(path, 7, 60)
    assert 100_000 < Path(f"{path}-wal").stat().st_size < 1_000 * PAGE, "nothing was checkpointed"
    return path, [line for line in lines if line["t"] == "did"]


class TestWal:
    """A WAL that lost its tail may lose the last commits; never their order, never half of one.

    Only frames that no checkpoint copied may be cut: SQLite syncs the log before it copies, so no crash can
    leave a log shorter than what was copied from it.
    """

    @staticmethod
    def copy_with_wal(killed: Path, to: Path, wal: bytes) -> Path:
        copy = to / f"{hashlib.sha256(wal).hexdigest()[:16]}.db"
        shutil.copy(killed, copy)
        Path(f"{copy}-wal").write_bytes(wal)
        return copy

    @staticmethod
    def count_kept_commits(path: Path, did: Lines) -> int:
        """How many of the acknowledged commits are there; fails unless it is the first so many."""
        with oakleaf.open(path) as store:
            assert list(store.verify()) == []
            summaries = {row.session_id: read_summary(store, row.session_id) for row in store.all_sessions()}
        assert integrity(path) == "ok"
        total = sum(one["commit"] for one in summaries.values())
        expected: dict[str, dict[str, Any]] = {}
        for line in did[:total]:
            expected[line["session"]] = {name: line[name] for name in NAMES}
        assert summaries == expected
        return total

    def test_a_cut_log_leaves_the_first_so_many_commits(
        self, killed: tuple[Path, Lines], tmp_path: Path
    ) -> None:
        path, did = killed
        wal = Path(f"{path}-wal").read_bytes()
        rng = random.Random(1)
        edges = [0, 1, 31, 32, 33, 32 + 24, 32 + 4120, 32 + 4120 * 5, 32 + 4120 * 5 + 2000, len(wal) - 1]
        counts = []
        for length in sorted([*edges, *(rng.randrange(len(wal)) for _ in range(CUTS))]):
            counts.append(self.count_kept_commits(self.copy_with_wal(path, tmp_path, wal[:length]), did))
        assert counts == sorted(counts)
        assert counts[0] == 0
        assert len(set(counts)) > 5, "the cuts fell at different commits"
        assert self.count_kept_commits(self.copy_with_wal(path, tmp_path, wal), did) == len(did), (
            "uncut it is all there"
        )

    def test_garbage_behind_the_log_is_not_read(self, killed: tuple[Path, Lines], tmp_path: Path) -> None:
        path, did = killed
        wal = Path(f"{path}-wal").read_bytes()
        rng = random.Random(2)
        for tail in (
            b"\0" * (PAGE + 24),
            rng.randbytes(10),
            rng.randbytes(9_999),
            wal[32 : 32 + PAGE + 24],
            wal,
        ):
            assert self.count_kept_commits(self.copy_with_wal(path, tmp_path, wal + tail), did) == len(did)

    def test_a_flipped_byte_in_the_log_ends_the_log_there(
        self, killed: tuple[Path, Lines], tmp_path: Path
    ) -> None:
        path, did = killed
        wal = bytearray(Path(f"{path}-wal").read_bytes())
        rng = random.Random(3)
        for _ in range(CUTS // 2):
            at = rng.randrange(32, len(wal))
            wal[at] ^= 0x40
            assert self.count_kept_commits(self.copy_with_wal(path, tmp_path, bytes(wal)), did) <= len(did)
            wal[at] ^= 0x40


class TestCheckpoint:
    def test_a_checkpoint_cut_after_any_page_leaves_a_sound_store(self, tmp_path: Path) -> None:
        """Killed while pages are copied, the main file is torn and the log is the truth: whoever looks at the
        file alone, even only to see whose it is, takes a healthy store for a damaged one."""
        path = tmp_path / "a.db"
        with oakleaf.open(path) as store:
            purged, session = store.start(), store.start()
            for n in range(6):
                purged.append([user("y" * 9_000)])
                session.append([user(f"{n} " + "x" * 3_000)])
        with contextlib.closing(apsw.Connection(str(path))) as connection:
            for sql in ("pragma wal_autocheckpoint = 0", "delete from entry where id < 2 << 32", "vacuum"):
                connection.execute(sql).fetchall()
            main, wal = path.read_bytes(), Path(f"{path}-wal").read_bytes()
        frames = [wal[at : at + PAGE + 24] for at in range(32, len(wal), PAGE + 24)]
        pages = {int.from_bytes(frame[:4], "big"): frame[24:] for frame in frames}
        assert len(pages) > 10
        torn = bytearray(main)
        for number in [0, *sorted(pages)]:
            if number:
                torn.extend(b"\0" * (number * PAGE - len(torn)))
                torn[(number - 1) * PAGE : number * PAGE] = pages[number]
            copy = tmp_path / f"torn-{number}.db"
            copy.write_bytes(torn)
            Path(f"{copy}-wal").write_bytes(wal)
            with oakleaf.open(copy) as store:
                reloaded = store.session(session.session_id)
                assert [entry.seq for entry in reloaded.path()] == list(range(1, 7))
                assert reloaded.verify() == []


# -- full disks ------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Two megabytes, if we may mount."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = shutil.which("mount")
    done = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(where)], capture_output=True, check=False
    )
    if not done or done.returncode:
        pytest.skip("mounting a small tmpfs is not allowed here; test_a_file_that_may_not_grow still runs")
    yield where
    subprocess.run(["umount", str(where)], check=True)


class TestFullDisk:
    def test_a_full_disk_keeps_all_but_the_present_change(self, small_disk: Path) -> None:
        store = oakleaf.open(small_disk / "a.db")
        session = store.start(seeds=[system("s")])
        refused = _fill(session)
        assert isinstance(refused, errors.StoreFull)
        leaf, texts, facts = session.leaf, [entry_text(e) for e in session.path()], len(session.journal())
        with pytest.raises(errors.StoreFull):
            session.append([user("y" * 90_000)], key="again")
        assert (session.leaf, [entry_text(e) for e in session.path()]) == (leaf, texts)
        assert len(session.journal()) == facts
        assert list(store.verify()) == []
        (small_disk / "ballast").unlink()
        session.append([user("y" * 90_000)], key="again")
        assert session.leaf.seq == leaf.seq + 1
        assert list(store.verify()) == []
        store.close()
        with oakleaf.open(small_disk / "a.db") as store:
            assert len(store.session(session.session_id).path()) == len(texts) + 1

    @pytest.mark.parametrize("free_bytes", [0, 40_000, 400_000])
    def test_a_backup_that_finds_no_room_leaves_nothing_behind(
        self, small_disk: Path, tmp_path: Path, free_bytes: int
    ) -> None:
        with oakleaf.open(tmp_path / "a.db") as store:
            store.start().append([user("x" * 900_000)])
            _ballast(small_disk)
            os.truncate(small_disk / "ballast", (small_disk / "ballast").stat().st_size - free_bytes)
            for _ in range(2):
                with pytest.raises(errors.StoreFull):
                    store.backend.backup(small_disk / "copy.db")  # type: ignore[attr-defined]
                assert os.listdir(small_disk) == ["ballast"]
            (small_disk / "ballast").unlink()
            store.backend.backup(small_disk / "copy.db")  # type: ignore[attr-defined]
        assert os.listdir(small_disk) == ["copy.db"]

    def test_a_full_disk_says_so_when_a_store_is_opened(self, small_disk: Path) -> None:
        with oakleaf.open(small_disk / "a.db") as store:
            session_id = store.start(title="kept").session_id
        _ballast(small_disk)
        for name in ("a.db", "new.db"):
            with pytest.raises(errors.StoreError), oakleaf.open(small_disk / name) as store:
                store.start()
        (small_disk / "ballast").unlink()
        with oakleaf.open(small_disk / "a.db") as store:
            assert store.session(session_id).row.title == "kept"
            store.start()
            assert list(store.verify()) == []
        with oakleaf.open(small_disk / "new.db") as store:
            store.start()

    @pytest.mark.extra
    def test_a_store_on_a_full_disk_can_be_read(self, small_disk: Path, tmp_path: Path) -> None:
        place = small_disk / "a.db"
        with oakleaf.open(place) as store:
            store.start(session_id="ses_one", title="kept", seeds=[system("s")])
            store.search("s")
        _ballast(small_disk)
        with oakleaf.open(place) as store:
            assert [entry.message.text for entry in store.session("ses_one").path()] == ["s"]
            assert list(store.verify()) == []
            assert len(store.search("s").hits) == 1
            with pytest.raises(errors.StoreFull, match="no space left"):
                store.start()
            every_verb_reads(place, tmp_path)
            (small_disk / "ballast").unlink()
            store.session("ses_one").append([user("there is room again")])
            assert len(store.session("ses_one").path()) == 2

    @pytest.mark.extra
    def test_a_store_on_a_read_only_disk_can_be_read(self, small_disk: Path, tmp_path: Path) -> None:
        place = small_disk / "a.db"
        with oakleaf.open(place) as store:
            store.start(session_id="ses_one", title="kept", seeds=[system("s")])
            store.search("s")
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        every_verb_reads(place, tmp_path)
        changed = command("title", "ses_one", "new", store=place)
        assert (changed.code, "cannot be written" in changed.err) == (1, True)
        with pytest.raises(errors.StoreReadOnly):
            oakleaf.open(small_disk / "new.db")

    @pytest.mark.extra
    def test_a_search_that_cannot_index_says_so(self, small_disk: Path) -> None:
        place = small_disk / "a.db"
        with oakleaf.open(place) as store:
            store.start(session_id="ses_one", seeds=[system("early")])
            store.search("early")
            store.start(session_id="ses_two", seeds=[system("late")])
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        result, missed = command("search", "early", store=place), command("search", "late", store=place)
        assert (result.code, "ses_one@1" in result.out, missed.code) == (0, True, 1)
        for message in (result.err, missed.err):
            assert "1 session not indexed now" in message

    def test_purge_on_a_full_disk_purges_or_says_why_not(self, small_disk: Path) -> None:
        with oakleaf.open(small_disk / "a.db") as store:
            session = store.start()
            _fill(session)
            before = len(session.path())
            store.delete(session.session_id) if _has_room(small_disk) else None
            with contextlib.suppress(errors.StoreError):
                store.delete(session.session_id)
                store.purge(session.session_id)
            with contextlib.suppress(errors.NotFound):
                assert len(store.session(session.session_id).path()) == before
            assert list(store.verify()) == []

    def test_a_file_that_may_not_grow_is_refused_and_nothing_is_kept(self, tmp_path: Path) -> None:
        """RLIMIT_FSIZE: the disk has room, this process may not use it."""
        code = """
            import resource, sys, oakleaf
            from oakleaf import user, errors
            store = oakleaf.open(sys.argv[1]); session = store.start()
            session.append([user("before")])
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
            try:
                for n in range(20):
                    leaf = session.leaf
                    session.append([user("x" * 50_000)], key=f"k{n}")
            except errors.StoreError as error:
                assert session.leaf == leaf, "the handle moved"
                assert n > 0
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                assert list(store.verify()) == []
                assert len(session.path()) == leaf.seq
                session.append([user("x" * 50_000)], key=f"k{n}")
                assert list(store.verify()) == []
                print(type(error).__name__, leaf.seq + 1, session.session_id)
        """
        words = run(code, tmp_path / "a.db").split()
        assert words[0] in ("StoreFull", "StoreError")
        with oakleaf.open(tmp_path / "a.db") as store:
            assert len(store.session(words[2]).path()) == int(words[1])


def _ballast(disk: Path) -> None:
    with contextlib.suppress(OSError), open(disk / "ballast", "ab", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"b" * size):
                    pass


def _has_room(disk: Path) -> bool:
    room = os.statvfs(disk)
    return room.f_bavail * room.f_bsize > 100_000


def _fill(session: oakleaf.Session) -> Exception | None:
    """Append until the disk refuses; the ballast leaves some room first, so that the WAL grows into it."""
    disk = Path(session.log.store.url).parent
    with open(disk / "ballast", "wb", buffering=0) as file:
        file.write(b"b" * 1_000_000)
    for n in range(200):
        try:
            session.append([user(f"{n} " + "x" * 30_000)])
        except errors.OakleafError as error:
            return error
    return None


def dedented(code: str) -> str:
    lines = code.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] for line in lines)


def run(code: str, *args: object) -> str:
    """Run code in a process of its own; its standard output."""
    done = subprocess.run(
        [sys.executable, "-c", dedented(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- files that are not ours to write --------------------------------------------------------------


def every_verb_reads(place: Path, aside: Path) -> None:
    """All that only looks, at the command line, where nothing can be written."""
    reading = (
        ("ls",),
        ("show", "ses_one"),
        ("log", "ses_one"),
        ("tree", "ses_one"),
        ("usage",),
        ("search", "kept"),
        ("export", "ses_one", "-o", aside / "out.oakleaf"),
        ("backup", aside / "copy.db"),
        ("verify",),
    )
    for verb in reading:
        done = command(*verb, store=place)
        assert done.code == 0, (verb, done.err)
    assert "SQLite finds no damaged page" in command("doctor", store=place).out
    assert command("verify", store=aside / "copy.db").code == 0


def beside(path: Path) -> dict[str, bytes | None]:
    """Every file of the folder with its bytes."""
    return {p.name: p.read_bytes() if p.is_file() else None for p in sorted(path.parent.iterdir())}


@pytest.fixture
def store_file(tmp_path: Path) -> Path:
    """A store with one session, closed."""
    path = tmp_path / "made" / "a.db"
    path.parent.mkdir()
    with oakleaf.open(path) as store:
        session = store.start(session_id="ses_one", seeds=[system("s")])
        session.append([user("kept")])
    return path


AS_NOBODY = """
    import os, sys, tempfile, oakleaf
    from oakleaf import errors, user
    with tempfile.TemporaryDirectory() as folder, oakleaf.open(folder + "/load.db") as store:
        list(store.verify()); store.start().append([user("everything is imported now")])
    if os.geteuid() == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
    try:
        with oakleaf.open(sys.argv[1]) as store:
            store.session("ses_one").append([user("more")])
    except errors.OakleafError as error:
        print(type(error).__name__)
    else:
        print("written")
"""


AS_SOMEBODY = """
    import os, sys, tempfile, oakleaf
    from oakleaf import errors, user
    from oakleaf.stores.sqlite.public_reader import PublicReader
    with tempfile.TemporaryDirectory() as folder, oakleaf.open(folder + "/load.db") as store:
        list(store.verify()); store.start().append([user("everything is imported now")])
    def all_text(store):
        return " ".join(entry.message.text for entry in store.session("ses_one").path())
    def lay_down_rights():
        if os.geteuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
"""
READ_AS_NOBODY = f"""{AS_SOMEBODY}
    lay_down_rights()
    with oakleaf.open(sys.argv[1]) as store:
        print(all_text(store))
        assert list(store.verify()) == []
        PublicReader(sys.argv[1], owner="nobody").sessions()
        try:
            store.session("ses_one").append([user("more")])
        except errors.OakleafError as error:
            print(type(error).__name__)
"""
WHY_AS_NOBODY = f"""{AS_SOMEBODY}
    lay_down_rights()
    try:
        oakleaf.open(sys.argv[1])
    except errors.StoreError as error:
        print(error)
"""
WATCH_AS_NOBODY = f"""{AS_SOMEBODY}
    lay_down_rights()
    store, public = oakleaf.open(sys.argv[1]), PublicReader(sys.argv[1], owner="ann")
    query = "select count(*) from public_message"
    print(all_text(store), next(public.query(query))[0], flush=True)
    sys.stdin.readline()
    print(all_text(store), next(public.query(query))[0], flush=True)
    rows = public.query("select * from public_message")
    next(rows)
    try:
        with store.backend._connections.reading() as reader:
            reader.execute("select count(*) from entry").get
            print("reading", flush=True)
            sys.stdin.readline()
    except errors.StoreError as error:
        print("was written during the read" if "was written during" in str(error) else error)
    try:
        list(rows)
    except errors.StoreError as error:
        print("was written during the read" if "was written during" in str(error) else error)
"""
TORN_AS_NOBODY = f"""{AS_SOMEBODY}
    lay_down_rights()
    store, public = oakleaf.open(sys.argv[1]), PublicReader(sys.argv[1], owner="ann")
    rows = public.query("select * from public_message")
    next(rows)
    try:
        with store.backend._connections.reading() as reader:
            reader.execute("select count(*) from sqlite_schema").get
            print("reading", flush=True)
            sys.stdin.readline()
            reader.execute("select * from entry").get
    except errors.StoreError as error:
        print("was written during the read" if "was written during" in str(error) else error)
    try:
        list(rows)
    except errors.StoreError as error:
        print("was written during the read" if "was written during" in str(error) else error)
"""
LOOK_AS_NOBODY = f"""{AS_SOMEBODY}
    from oakleaf.stores.sqlite.readonly import readonly_snapshot
    lay_down_rights()
    print("looking", flush=True)
    os.set_blocking(0, False)
    told = set()
    while sys.stdin.buffer.read(1) is None:
        try:
            with readonly_snapshot(sys.argv[1]) as reader:
                reader.execute("select count(*) from entry").get
        except errors.StoreError as error:
            told.add(str(error))
    print([said for said in told if "was written during" not in said])
"""


class TestRights:
    @pytest.fixture
    def open_made(self) -> Iterator[Path]:
        """A store in a folder that everybody may reach."""
        folder = Path(tempfile.mkdtemp(prefix="oakleaf-rights-"))
        folder.chmod(0o777)
        path = folder / "a.db"
        with oakleaf.open(path) as store:
            store.start(session_id="ses_one", owner="ann").append([user("kept")])
        for file in folder.iterdir():
            file.chmod(0o666)
        yield path
        folder.chmod(0o777)
        shutil.rmtree(folder)

    def test_with_all_rights_anybody_writes(self, open_made: Path) -> None:
        assert run(AS_NOBODY, open_made) == "written\n"

    def test_a_read_only_file_is_refused(self, open_made: Path) -> None:
        open_made.chmod(0o444)
        before = beside(open_made)
        assert run(AS_NOBODY, open_made) == "StoreReadOnly\n"
        assert beside(open_made) == before

    def test_a_read_only_folder_is_refused(self, open_made: Path) -> None:
        open_made.parent.chmod(0o555)
        before = beside(open_made)
        assert run(AS_NOBODY, open_made) == "StoreReadOnly\n"
        assert run(AS_NOBODY, open_made.parent / "new.db") == "StoreReadOnly\n"
        assert beside(open_made) == before

    def test_a_read_only_store_is_read_without_new_files(self, open_made: Path) -> None:
        open_made.parent.chmod(0o555)
        before = beside(open_made)
        assert run(READ_AS_NOBODY, open_made) == "kept\nStoreReadOnly\n"
        assert beside(open_made) == before

    def test_a_store_with_a_writer_is_read_in_a_read_only_folder(self, open_made: Path) -> None:
        with oakleaf.open(open_made) as store:
            store.session("ses_one").append([user("in the log")])
            for file in open_made.parent.iterdir():
                file.chmod(0o644)
            open_made.parent.chmod(0o555)
            before = beside(open_made)
            assert run(READ_AS_NOBODY, open_made) == "kept in the log\nStoreReadOnly\n"
            assert beside(open_made) == before

    def test_a_log_that_cannot_be_read_in_place_is_never_left_out(self, open_made: Path) -> None:
        """A copy of a store with its -wal, on a disk nothing can be written to: without the log it would be old."""
        with oakleaf.open(open_made) as store:
            store.session("ses_one").append([user("in the log")])
            log = Path(f"{open_made}-wal").read_bytes()
        Path(f"{open_made}-wal").write_bytes(log)
        open_made.parent.chmod(0o555)
        assert "together with its -wal" in run(WHY_AS_NOBODY, open_made)

    def test_a_write_during_a_still_read_is_seen(self, open_made: Path) -> None:
        """Another may have the right to write, and takes no notice of a reader that has not."""

        def write(text: str) -> None:
            open_made.parent.chmod(0o777)
            with oakleaf.open(open_made) as store:
                store.session("ses_one").append([user(text)])
            open_made.parent.chmod(0o555)

        open_made.parent.chmod(0o555)
        child = _as_nobody(WATCH_AS_NOBODY, open_made)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "kept 1\n"
        write("between two reads")
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "kept between two reads 2\n"
        assert child.stdout.readline() == "reading\n"
        write("within one")
        assert child.communicate("\n")[0] == "was written during the read\n" * 2

    def test_a_torn_read_is_not_taken_for_damage(self, open_made: Path) -> None:
        """Who checkpoints writes page by page, and somebody who stands still reads some of each."""
        with oakleaf.open(open_made) as store:
            for n in range(40):
                store.session("ses_one").append([user(f"{n}" * 3_000)])
        open_made.parent.chmod(0o555)
        child = _as_nobody(TORN_AS_NOBODY, open_made)
        assert child.stdout is not None
        assert child.stdout.readline() == "reading\n"
        with open_made.open("r+b") as file:
            file.seek(8_192)
            file.write(b"\xff" * (open_made.stat().st_size - 8_192))
        assert child.communicate("\n")[0] == "was written during the read\n" * 2

    def test_a_log_that_comes_and_goes_is_no_log_that_cannot_be_read(self, open_made: Path) -> None:
        """Between its length and its index it was deleted by a writer that closed the store."""
        open_made.parent.chmod(0o755)
        open_made.chmod(0o644)
        child = _as_nobody(LOOK_AS_NOBODY, open_made)
        assert child.stdout is not None
        assert child.stdout.readline() == "looking\n"
        for n in range(150):
            with oakleaf.open(open_made) as store:
                store.session("ses_one").append([user(str(n))])
        assert child.communicate("\n")[0] == "[]\n"

    def test_a_lock_file_of_another_user_is_refused_in_words(self, open_made: Path) -> None:
        Path(f"{open_made}-oakleaf").chmod(0o400)
        assert run(AS_NOBODY, open_made) == "StoreReadOnly\n"

    def test_an_unreadable_file_is_refused_with_an_error_of_ours(self, open_made: Path) -> None:
        open_made.chmod(0o200)
        assert run(AS_NOBODY, open_made) in ("StoreReadOnly\n", "StoreError\n")

    def test_the_file_is_the_owners_alone(self, store_file: Path) -> None:
        with oakleaf.open(store_file) as store:
            store.start()
            for file in store_file.parent.iterdir():
                assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def _as_nobody(script: str, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", dedented(script), str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class TestStrangeFiles:
    def test_a_directory_is_no_store(self, tmp_path: Path) -> None:
        before = beside(tmp_path)
        with pytest.raises(errors.NotAStore, match="directory"):
            oakleaf.open(tmp_path)
        assert beside(tmp_path) == before

    def test_a_device_or_a_pipe_is_no_store(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for path in (Path("/dev/null"), tmp_path / "pipe"):
            before = set(path.parent.iterdir())
            with pytest.raises(errors.NotAStore, match="device or pipe"):
                oakleaf.open(path)
            assert set(path.parent.iterdir()) == before

    def test_a_folder_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(errors.NotAStore, match="does not exist"):
            oakleaf.open(tmp_path / "no" / "a.db")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["x" * 300, "nul\0.db", "lone \ud800 surrogate"])
    def test_an_impossible_file_name_raises_an_error_of_ours(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(errors.OakleafError):
            oakleaf.open(f"{tmp_path}/{name}")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "content",
        [b"hello, not a database\n" * 400, b"x", b"SQLite format 3\0" + b"\xff" * 4080, os.urandom(8192)],
        ids=["text", "one byte", "only the magic", "noise"],
    )
    def test_a_file_that_is_not_sqlite_is_left_alone(self, content: bytes, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_bytes(content)
        with pytest.raises((errors.NotAStore, errors.StoreDamaged)):
            oakleaf.open(path)
        assert beside(path) == {"notes.txt": content}, "no file of ours is left beside it"

    @pytest.mark.parametrize("mode", ["delete", "wal"])
    def test_a_database_of_another_program_is_left_alone(self, mode: str, tmp_path: Path) -> None:
        path = tmp_path / "other.db"
        with contextlib.closing(apsw.Connection(str(path))) as other:
            other.execute(f"pragma journal_mode = {mode}")
            other.execute("create table session (id text); insert into session values ('theirs')")
        before = beside(path)
        with pytest.raises(errors.NotAStore, match="another program"):
            oakleaf.open(path)
        assert beside(path) == before

    def test_an_empty_file_becomes_a_store(self, tmp_path: Path) -> None:
        (tmp_path / "a.db").touch()
        with oakleaf.open(tmp_path / "a.db") as store:
            store.start()
            assert list(store.verify()) == []

    def test_a_newer_major_format_is_refused_and_not_touched(self, store_file: Path) -> None:
        _execute(store_file, "pragma user_version = 2000")
        before = beside(store_file)
        with pytest.raises(errors.NewerFormat, match=r"2\.0"):
            oakleaf.open(store_file)
        assert beside(store_file) == before

    def test_a_newer_minor_format_keeps_unknown_kinds_whole(self, store_file: Path) -> None:
        from oakleaf.core.codec import chain_id

        body = b'{"mood":"sunny","nested":{"z":1,"a":2}}'
        with oakleaf.open(store_file) as store:
            session = store.session("ses_one")
            last, cursor = session.path()[-1], session.log.cursor
        entry_id = chain_id(last.entry_id, "weather", cursor.turn, cursor.step, body)
        with contextlib.closing(apsw.Connection(str(store_file))) as newer:
            newer.execute("pragma user_version = 1007")
            newer.execute("alter table entry add column mood text")
            newer.execute(
                "insert into entry (id, turn, step, kind, internal, entry_id, at, body) values (?,?,?,?,1,?,0,?)",
                (
                    last.branch << 32 | (last.seq + 1),
                    cursor.turn,
                    cursor.step,
                    "weather",
                    entry_id,
                    body,
                ),
            )
            newer.execute("update session set seq = seq + 1, facts = facts + 1")
            newer.execute(
                "insert into journal (id, kind, key, branch, first_seq, last_seq, at) "
                "select number << 32 | facts, 'appended', '~newer', ?, ?, ?, 0 from session",
                (last.branch, last.seq + 1, last.seq + 1),
            )
        with oakleaf.open(store_file) as store:
            session = store.session("ses_one")
            assert session.path()[-1].payload == Unknown("weather", body)
            assert session.verify() == []
            session.append([assistant("goes on")])
            assert session.path()[-2].payload == Unknown("weather", body)
            assert [m["role"] for m in session.messages("anthropic")] == ["user", "assistant"]
            assert session.verify() == []
            with pytest.raises(errors.InvalidMessage, match="weather"):
                session.append([Unknown("weather", body)])
        assert _execute(store_file, "pragma user_version") == 1007, "a newer minor is not turned back"

    def test_a_page_of_noise_is_called_damage(self, store_file: Path) -> None:
        whole = store_file.read_bytes()
        assert len(whole) > PAGE * 8
        messages = set()
        for page in range(1, len(whole) // PAGE):
            store_file.write_bytes(whole[: page * PAGE] + os.urandom(PAGE) + whole[(page + 1) * PAGE :])
            try:
                with oakleaf.open(store_file) as store:
                    problems = list(store.verify())
                    session = store.session("ses_one")
                    session.append([user("more")])
                    messages.add("problem" if problems else "unseen")
            except errors.OakleafError as error:
                messages.add(type(error).__name__)
        assert "StoreDamaged" in messages
        assert messages <= {"StoreDamaged", "NotAStore", "NotFound", "StoreError", "problem", "unseen"}

    def test_an_interrupted_making_is_made_whole_by_the_next(self, tmp_path: Path) -> None:
        """Killed between the WAL pragma and the schema: a header without tables."""
        path = tmp_path / "a.db"
        _execute(path, "pragma journal_mode = wal")
        with oakleaf.open(path) as store:
            session = store.start()
            session.append([user("x"), assistant("", oakleaf.ToolCall("c", "t")), tool_result("c", "r")])
            assert list(store.verify()) == []


def _execute(path: Path, sql: str) -> Any:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        return connection.execute(sql).get
