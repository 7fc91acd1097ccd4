"""Bundles: import(export(s)) == s, on every store, to the byte; what is not whole changes nothing."""

from __future__ import annotations

import base64
import filecmp
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import oakleaf
from oakleaf import (
    Attachment,
    ScriptedModel,
    Session,
    ToolCall,
    Usage,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.bundle.write import BundleExportResult
from oakleaf.core.redact import Redactor
from oakleaf.errors import (
    IdConflict,
    InvalidArgument,
    InvalidBundle,
    InvalidText,
    NewerFormat,
    NotFound,
    OakleafError,
    PrereleaseFormat,
    SecretInName,
    StoreError,
    StoreFull,
)
from oakleaf.ext import read
from oakleaf.log.runtime import real_runtime
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.stores.sqlite.store import SqliteStore
from oakleaf.testing.stores.writer import read_everything
from support.paths import GOLDEN, SUPPORT
from support.random_logs import SOAK
from support.random_trees import Step, grow_tree, steps
from support.runtime import deterministic_runtime
from support.sessions import tasks_of

HEAVY = SUPPORT / "large_bundle.py"


def bundle(session: Session, **how: Any) -> bytes:
    file = io.BytesIO()
    session.export(file, **how)
    return file.getvalue()


def other(store: Store, place: Path | None = None) -> Store:
    """Another store, of the other kind."""
    if isinstance(store.backend, MemoryStore):
        return Store(SqliteStore((place or Path()) / "other.db", synchronous="normal"), real_runtime())
    return Store(MemoryStore(), real_runtime())


def read_store(store: Store) -> list[Any]:
    rows = [row for trashed in (False, True) for row in store.all_sessions(trashed=trashed)]
    return [
        (row, read_everything(store.backend, row.session_id), store.backend.inbox(row.session_id))
        for row in rows
    ]


def with_valid_hash(lines: list[bytes]) -> bytes:
    """The lines with a true hash: what somebody would hand in who knows the format."""
    *content, end = lines
    record = json.loads(end)
    record["sha256"] = sha256(b"".join(content)).hexdigest()
    return b"".join([*content, json.dumps(record).encode() + b"\n"])


@pytest.fixture
def session(store: Store) -> Session:
    """One with everything: a fork's worth of branches, a task, media, costs, a compaction, state."""
    session = store.start("support", [system("You help.")], title="Lost parcel", state={"n": 1})
    with session.turn("Where is it?") as turn:
        turn.answer(assistant("Looking", ToolCall("c", "find", {"z": 1, "a": 2})), usage=Usage(100, 10))
        turn.result("c", {"status": "lost"}, state={"found": False})
        turn.answer(assistant("It is lost."), usage=Usage(120, 12))
    session.append(
        [user("See", Attachment(b"\x89PNG" + bytes(range(256)) * 2_000, "image/png")), assistant("Nice")]
    )
    session.compact("A parcel was lost.")
    store.start_task(session, "searcher", [user("Search")]).append([user("go"), assistant("nothing")])
    session.rewind(5)
    session.append([user("And now?"), assistant("Still lost.")])
    return session


def assert_refused(store: Store, data: bytes, error: type[OakleafError] = InvalidBundle) -> OakleafError:
    before = read_store(store)
    with pytest.raises(error) as excinfo:
        store.import_bundle(io.BytesIO(data))
    assert read_store(store) == before
    return excinfo.value


class TestRoundTrip:
    @settings(max_examples=2_000 if SOAK else 30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(script=steps, forwards=st.booleans())
    @example(
        forwards=True,
        script=[("turn", 0, 1, "x"), ("fork", 0, 3, ""), ("purge", 0, 1, ""), ("turn", 1, 2, "y")],
    )
    @example(
        forwards=False,
        script=[
            *(("turn", 0, 3, "x"), ("fork", 0, 9, ""), ("turn", 1, 6, "y"), ("fork", 1, 20, "")),
            *(("purge", 0, 1, ""), ("purge", 1, 1, ""), ("turn", 2, 0, "z")),
        ],
    )
    @example(
        forwards=False,
        script=[
            ("fork", 0, 2, ""),
            ("fork", 1, 2, ""),
            ("rewind", 2, 1, ""),
            ("fail", 2, 1, "x"),
            ("task", 1, 1, ""),
        ],
    )
    def test_an_import_exports_to_the_same_bytes(self, script: list[Step], forwards: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            here = [
                Store(MemoryStore(), deterministic_runtime()),
                Store(SqliteStore(Path(folder) / "a.db", synchronous="normal"), deterministic_runtime()),
            ]
            grown = [grow_tree(store, script) for store in here]
            bundles = [[bundle(session, blobs=True) for session in sessions] for sessions in grown]
            assert bundles[0] == bundles[1]  # the same on every store
            assert b"EVIDENCE" not in b"".join(bundles[0])
            self.round_trip(folder, grown[0], bundles[0], forwards=forwards)
            for store in here:
                store.close()

    def round_trip(
        self, folder: str, sessions: list[Session], bundles: list[bytes], *, forwards: bool
    ) -> None:
        there = Store(SqliteStore(Path(folder) / "b.db", synchronous="normal"), real_runtime())
        far = Store(MemoryStore(), real_runtime())
        for store in (there, far):
            for data in bundles if forwards else bundles[::-1]:
                store.import_bundle(io.BytesIO(data))
            for session, data in zip(sessions, bundles, strict=True):
                again = store.session(session.session_id)
                assert bundle(again, blobs=True) == data
                assert store.import_bundle(io.BytesIO(data)).added == ()
                assert again.messages("anthropic") == session.messages("anthropic")
                assert again.state == session.state
                assert again.usage("path") == session.usage("path")
            assert list(store.verify()) == []
        assert [row for row, *_ in read_store(there)] == [row for row, *_ in read_store(far)]
        there.close()

    @pytest.mark.parametrize("has_parent", [True, False])
    def test_contexts_below_a_fork_are_the_same_in_both_stores(
        self, store: Store, tmp_path: Path, has_parent: bool
    ) -> None:
        source = store.start("a", [system("s")])
        for n in range(3):
            limits = oakleaf.Limits(max_messages=3)
            source.send_sync(f"question {n}", model=ScriptedModel(["ok"]), limits=limits)
        fork = source.fork().fork()
        before = read(fork).cache_break("anthropic")
        assert before is not None
        assert (before.before, before.after) == ("question 1", "question 2")
        with other(store, tmp_path) as there:
            if has_parent:
                there.import_bundle(io.BytesIO(bundle(source)))
            there.import_bundle(io.BytesIO(bundle(fork)))
            again = there.session(fork.session_id)
            assert read(again).cache_break("anthropic") == before
            assert bundle(again) == bundle(fork)

    def test_an_imported_session_goes_on_and_forks(
        self, session: Session, tmp_path: Path, store: Store
    ) -> None:
        with other(store, tmp_path) as there:
            there.import_bundle(io.BytesIO(bundle(session)))
            again = there.session(session.session_id)
            assert [e.entry_id for e in again.path()] == [e.entry_id for e in session.path()]
            again.append([user("on"), assistant("and on")])
            fork = again.fork(at=3)
            fork.append([user("otherwise")])
            assert [p.what for p in there.verify() if "blob" not in p.what] == []
            leaf = again.leaf
            again.rewind(3)
            assert again.redo() == leaf

    def test_forks_before_parents_double_nothing_needlessly(self, store: Store) -> None:
        parent = store.start("a", [system("s")])
        parent.append([user("q"), assistant("a")])
        fork = parent.fork()
        fork.append([user("f")])
        there = Store(MemoryStore(), real_runtime())
        assert there.import_bundle(io.BytesIO(bundle(parent))).entries == 3
        assert there.import_bundle(io.BytesIO(bundle(fork))).entries == 1
        assert there.session(fork.session_id).branches()[0].session_id == parent.session_id


class TestExport:
    def test_a_bundle_is_lines_of_json_with_the_stored_bytes(self, session: Session) -> None:
        lines = bundle(session).splitlines()
        kinds = [json.loads(line)["line"] for line in lines]
        assert (kinds[0], kinds[-1]) == ("oakleaf", "end")
        for stored in session.log.store.entries(session.session_id):
            assert any(b'"body":' + stored.entry.body in line for line in lines)

    def test_an_export_reports_the_contents(self, session: Session, tmp_path: Path) -> None:
        done = session.export(tmp_path / "s.oakleaf", blobs=True)
        report = done.report
        assert isinstance(report, BundleExportResult)
        assert (report.counts.sessions, report.counts.blobs, report.omitted_blobs) == (2, 1, 0)
        assert done.bytes == (tmp_path / "s.oakleaf").stat().st_size
        assert session.export(tmp_path / "s.oakleaf").report.omitted_blobs == 1
        assert session.export(tmp_path / "s.oakleaf", children=False).report.counts.sessions == 1

    def test_an_export_is_private_and_replaces_an_older_file(self, session: Session, tmp_path: Path) -> None:
        place = tmp_path / "s.oakleaf"
        place.write_bytes(b"old")
        session.export(place)
        assert place.stat().st_mode & 0o777 == 0o600
        assert place.read_bytes() == bundle(session)

    def test_a_running_session_is_told_as_interrupted(self, store: Store) -> None:
        session = store.start("a")
        session.append([user("q")])
        assert session.row.status == "running"
        there = Store(MemoryStore(), real_runtime())
        there.import_bundle(io.BytesIO(bundle(session)))
        assert there.session(session.session_id).row.status == "interrupted"

    def test_an_export_among_writers_is_of_a_single_moment(self, store: Store) -> None:
        """Ten times, each a session of its own: one that goes on growing takes ever longer to take in."""
        for _ in range(10):
            self.export_while_writing(store, store.start("a"))

    @staticmethod
    def export_while_writing(store: Store, session: Session) -> None:
        begun, done = threading.Event(), threading.Event()

        def write() -> None:
            mine = store.session(session.session_id)
            while not done.is_set():
                with mine.turn("q") as turn:
                    turn.answer(assistant("a"), usage=Usage(1, 1))
                begun.set()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert begun.wait(60)
            data = bundle(session)
        finally:
            done.set()
            writer.join()
        Store(MemoryStore(), real_runtime()).import_bundle(io.BytesIO(data))

    def test_ctrl_c_leaves_no_file(self, store: Store, tmp_path: Path) -> None:
        session = long(store)
        (tmp_path / "out").mkdir()
        with pytest.raises(KeyboardInterrupt):
            session.export(tmp_path / "out" / "s.oakleaf", progress=stop)
        assert list((tmp_path / "out").iterdir()) == []

    def test_a_full_disk_leaves_only_the_older_file(self, store: Store, tmp_path: Path) -> None:
        session = long(store)
        folder = tmp_path / "out"
        folder.mkdir()
        (folder / "s.oakleaf").write_bytes(b"old")
        with pytest.raises(StoreFull, match=r"s\.oakleaf"):
            with_file_size_limit(100_000, lambda: session.export(folder / "s.oakleaf"))
        assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("s.oakleaf", b"old")]

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
    def test_a_full_disk_behind_a_file_is_told_too(self, store: Store) -> None:
        with open("/dev/full", "wb", buffering=0) as full, pytest.raises(StoreFull):
            store.start("a").export(full)

    def test_a_folder_that_is_not_there_is_told(self, session: Session, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="name another path"):
            session.export(tmp_path / "none" / "s.oakleaf")

    def test_a_damaged_session_is_not_exported(self, tmp_path: Path) -> None:
        import apsw

        with Store(SqliteStore(tmp_path / "a.db"), deterministic_runtime()) as store:
            session = store.start("a", [system("s")])
            session.append([user("q")])
            with apsw.Connection(str(tmp_path / "a.db")) as connection:
                connection.execute("update entry set body = replace(cast(body as text), 'q', 'x')")
            with pytest.raises(StoreError, match="altered or reordered"):
                session.export(tmp_path / "s.oakleaf")
        assert not (tmp_path / "s.oakleaf").exists()


def long(store: Store, entries: int = 1_500) -> Session:
    session = store.start("a")
    session.append([user(f"{n} " + "x" * 100) for n in range(entries)])
    return session


DYING = """
import os, sys, oakleaf
oakleaf.open(sys.argv[1]).import_bundle(sys.argv[2], progress=lambda p: os._exit(9) if p.phase == "importing" and p.lines > 4000 else None)
"""


def stop(_: object) -> None:
    raise KeyboardInterrupt


def with_file_size_limit(most: int, do: Callable[[], Any]) -> Any:
    """Do it while no file may grow beyond `most` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        return do()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)


class TestImport:
    def test_twice_adds_nothing_and_says_so(self, session: Session, tmp_path: Path, store: Store) -> None:
        data = bundle(session, blobs=True)
        with other(store, tmp_path) as there:
            first = there.import_bundle(io.BytesIO(data))
            before = read_store(there)
            second = there.import_bundle(io.BytesIO(data))
            assert read_store(there) == before
        assert (len(first.added), first.existing, first.entries, first.blobs) == (2, (), 14, 1)
        assert (second.added, second.existing, second.entries, second.blobs) == ((), first.added, 0, 0)

    def test_an_import_into_the_source_store_adds_nothing(self, session: Session, store: Store) -> None:
        before = read_store(store)
        assert store.import_bundle(io.BytesIO(bundle(session))).added == ()
        assert read_store(store) == before

    def test_a_conflicting_id_is_refused_and_new_ids_are_accepted(
        self, session: Session, store: Store
    ) -> None:
        data = bundle(session, blobs=True)
        session.append([user("more")])
        assert "new_id=True" in str(assert_refused(store, data, IdConflict))
        before = bundle(session)
        report = store.import_bundle(io.BytesIO(data), new_id=True)
        copy = store.session(report.session_id)
        assert report.session_id != session.session_id
        assert (copy.row.relation, copy.row.parent_session) == ("import", session.session_id)
        assert copy.row.conversation_id != session.row.conversation_id
        assert [child.row.parent_session for child in tasks_of(copy)] == [copy.session_id]
        started = [fact.data["child"] for fact in copy.journal() if fact.kind == "task_started"]
        assert started == [child.session_id for child in tasks_of(copy)]
        assert bundle(session) == before
        assert list(store.verify()) == []

    def test_blobs_left_out_may_come_later(self, session: Session, tmp_path: Path, store: Store) -> None:
        with other(store, tmp_path) as there:
            assert there.import_bundle(io.BytesIO(bundle(session))).missing_blobs == 1
            assert [p for p in there.verify() if "blob" in p.what]
            assert there.session(session.session_id).messages("anthropic")
            later = there.import_bundle(io.BytesIO(bundle(session, blobs=True)))
            assert (later.added, later.blobs, later.missing_blobs) == ((), 1, 0)
            assert list(there.verify()) == []
            assert there.gc(grace=0) == 0  # they are tied to the entries that name them

    def test_from_a_path_a_file_and_a_pipe(self, session: Session, tmp_path: Path) -> None:
        session.export(tmp_path / "s.oakleaf")
        reading, writing = os.pipe()

        def feed() -> None:
            with os.fdopen(writing, "wb") as pipe:
                session.export(pipe)

        feeder = threading.Thread(target=feed)
        feeder.start()
        with os.fdopen(reading, "rb") as pipe, (tmp_path / "s.oakleaf").open("rb") as file:
            for source in (pipe, file, tmp_path / "s.oakleaf", str(tmp_path / "s.oakleaf")):
                there = Store(MemoryStore(), real_runtime())
                assert there.import_bundle(source).session_id == session.session_id
        feeder.join()

    def test_long_ones_and_wide_ones_come_in_whole(self, store: Store) -> None:
        """Stores take rows in by the hundred and by the megabyte."""
        session = Store(MemoryStore(), real_runtime()).start("a", [system("s")])
        for name in ("NULL", '{"a\\,b}', "", "größer ☃"):
            session.title(name)
            session.append(
                [message for n in range(200) for message in (user(f"{name} {n}"), assistant("\0"))]
            )
            session.send_sync(
                name or "q", model=oakleaf.ScriptedModel(["yes"]), limits=oakleaf.Limits(turns=1_000)
            )
        session.append([user("w" * 9_000_000), assistant("wide")])
        session.append([user("and on"), assistant("narrow")])
        data = bundle(session)
        store.import_bundle(io.BytesIO(data))
        there = store.session(session.session_id)
        assert bundle(there) == data
        assert there.verify() == []

    def test_ctrl_c_changes_nothing(self, store: Store, tmp_path: Path) -> None:
        data = bundle(long(store))
        with other(store, tmp_path) as there:
            for stage in ("checking", "importing"):

                def interrupt(progress: Any, stage: str = stage) -> None:
                    if progress.phase == stage:
                        raise KeyboardInterrupt

                with pytest.raises(KeyboardInterrupt):
                    there.import_bundle(io.BytesIO(data), progress=interrupt)
                assert read_store(there) == []
            assert there.import_bundle(io.BytesIO(data)).entries == 1_500

    def test_a_full_disk_changes_nothing(self, store: Store, tmp_path: Path) -> None:
        data = bundle(long(store))
        with Store(SqliteStore(tmp_path / "small.db"), real_runtime()) as there:
            with pytest.raises(StoreError):
                with_file_size_limit(200_000, lambda: there.import_bundle(io.BytesIO(data)))
            assert read_store(there) == []
            assert there.import_bundle(io.BytesIO(data)).entries == 1_500

    def test_a_process_that_dies_in_an_import_leaves_nothing(self, tmp_path: Path) -> None:
        with Store(SqliteStore(tmp_path / "a.db"), real_runtime()) as here:
            long(here, 5_000).export(tmp_path / "s.oakleaf")
        died = subprocess.run(
            [sys.executable, "-c", DYING, tmp_path / "b.db", tmp_path / "s.oakleaf"], check=False
        )
        assert died.returncode == 9
        with Store(SqliteStore(tmp_path / "b.db"), real_runtime()) as there:
            assert read_store(there) == []
            assert there.import_bundle(tmp_path / "s.oakleaf").entries == 5_000

    def test_of_two_imports_at_once_only_the_first_adds(self, session: Session, tmp_path: Path) -> None:
        data, done = bundle(session, blobs=True), []
        stores = [Store(SqliteStore(tmp_path / "both.db"), real_runtime()) for _ in range(2)]

        def take(there: Store) -> None:
            done.append(there.import_bundle(io.BytesIO(data)))

        threads = [threading.Thread(target=take, args=(there,)) for there in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(len(report.added) for report in done) == [0, 2]
        assert bundle(stores[0].session(session.session_id), blobs=True) == data
        for there in stores:
            there.close()


class TestDamage:
    def test_a_bundle_cut_at_any_line_is_refused(self, session: Session, store: Store) -> None:
        lines = bundle(session, blobs=True).splitlines(keepends=True)
        there = Store(MemoryStore(), real_runtime())
        for n in range(len(lines)):
            error = assert_refused(there, b"".join(lines[:n]))
            assert isinstance(error, InvalidBundle)
            assert error.line == n + 1
            assert_refused(there, b"".join(lines[:n]) + lines[n][:-1])
        assert "more after the end" in str(assert_refused(there, b"".join(lines) + b"\n"))

    def test_missing_doubled_or_swapped_lines_are_refused(self, session: Session) -> None:
        lines = bundle(session, blobs=True).splitlines(keepends=True)
        there = Store(MemoryStore(), real_runtime())
        for n in range(len(lines) - 1):
            for changed in (
                lines[:n] + lines[n + 1 :],
                lines[: n + 1] + lines[n:],
                [*lines[:n], *lines[n : n + 2][::-1], *lines[n + 2 :]],
            ):
                ordered = not all(
                    b'"line":"call"' in line for line in lines[n : n + 2]
                )  # calls are only summed
                if changed[-1] == lines[-1] and (ordered or len(changed) != len(lines)):
                    assert_refused(there, with_valid_hash(changed))

    def test_any_flipped_byte_is_found(self, session: Session) -> None:
        data = bundle(session)
        there = Store(MemoryStore(), real_runtime())
        for place in range(0, len(data), 1 if SOAK else 37):
            changed = bytearray(data)
            changed[place] ^= 1 << (place % 7)
            with pytest.raises((InvalidBundle, NewerFormat)):
                there.import_bundle(io.BytesIO(bytes(changed)))
        assert read_store(there) == []

    @pytest.mark.parametrize(
        ("old", "new", "named"),
        [
            (b"It is lost.", b"It is here.", "altered or reordered"),
            (b'"turns":3', b'"turns":4', "turns"),
            (b'"input_tokens":220', b'"input_tokens":221', "totals"),
            (b'"facts":', b'"facts":1', "facts"),
            (b'"seq":8}', b'"seq":9}', "leaf"),
            (b'"state":{"n":1,"found"', b'"state":{"n":2,"found"', "state"),
            (b'"key":', b'"other":', "other"),
            (b'"status":"idle"', b'"status":"odd"', "odd"),
            (b'"status":"idle"', b'"status":"running"', "status is running"),
            (b'"title":"Lost', b'"title":"\\u0000', "NUL"),
            (b'"parent":1', b'"parent":2', "is not an earlier branch"),
            (b'"internal":true', b'"internal":false', "visibility"),
            (b'"at":1000', b'"at":-100', "out of range"),
        ],
    )
    def test_an_altered_part_is_named_even_with_a_true_hash(
        self, session: Session, old: bytes, new: bytes, named: str
    ) -> None:
        session.note(state={"found": False})
        data = bundle(session)
        assert old in data
        there = Store(MemoryStore(), real_runtime())
        assert named in str(
            assert_refused(there, with_valid_hash(data.replace(old, new).splitlines(keepends=True)))
        )

    @pytest.mark.parametrize(
        "data",
        [
            *(
                b"",
                b"\n",
                b"{}\n",
                b"[]\n",
                b"\x89PNG\r\n\x1a\n" + bytes(99),
                b"SQLite format 3\0" + bytes(4_000),
            ),
            *(
                b'{"line":"oakleaf"}\n',
                b'{"line":"oakleaf","format":"x"}\n',
                b'{"line":"session"}\n',
                b"x" * 200_000,
            ),
        ],
        ids=range(10),
    )
    def test_a_file_of_another_kind_is_refused_in_plain_words(self, store: Store, data: bytes) -> None:
        assert "cannot import" in str(assert_refused(store, data))

    def test_a_bundle_of_the_former_name_is_refused_by_that_name(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "old.bundle"
        path.write_bytes(b'{"line":"bundle","format":"1.0","session":"ses_000001"}\n')
        with pytest.raises(PrereleaseFormat, match="written by Bough"):
            store.import_bundle(path)
        assert list(store.all_sessions()) == []

    @pytest.mark.parametrize(
        "value",
        [
            b"[" * 50_000 + b"]" * 50_000,
            b"9" * 5_000,
            b"9" * 3_000,
            b"1e999",
            rb'"\ud800"',
            b"NaN",
            b'"\xff"',
        ],
        ids=[
            "nested without end",
            "a number without end",
            "a long number",
            "infinite",
            "half a character",
            "NaN",
            "bytes",
        ],
    )
    @pytest.mark.parametrize("place", [b'{"turn":1', b'{"a":1', b'{"k":"v"'])
    def test_json_that_no_store_can_keep_is_refused(self, store: Store, value: bytes, place: bytes) -> None:
        session = store.start("a", tags={"k": "v", "z": "v"})
        session.append([user("q"), assistant(ToolCall("c", "t"))])
        session.append([tool_result("c", "r", details={"a": 1})])
        data = bundle(session)
        assert place in data
        lines = data.replace(place, b'{"x":' + value + b"," + place[1:]).splitlines(keepends=True)
        assert_refused(Store(MemoryStore(), real_runtime()), with_valid_hash(lines))

    def test_inline_bytes_and_odd_kinds_are_refused(self, store: Store) -> None:
        from oakleaf.core.codec import chain_id

        session = store.start("a", [system("s")])
        lines = bundle(session).splitlines(keepends=True)
        at = next(n for n, line in enumerate(lines) if b'"line":"entry"' in line)
        attached = b'{"role":"user","parts":[{"type":"attachment","data":"AAAA","mime":"image/png"}]}'
        for kind, body in (("message", attached), ("a kind\n", b"{}")):
            record = {**json.loads(lines[at]), "kind": kind, "id": chain_id(b"", kind, 0, 0, body).hex()}
            line = json.dumps({**record, "body": 0}).encode().replace(b'"body": 0', b'"body":' + body)
            data = with_valid_hash([*lines[:at], line + b"\n", *lines[at + 1 :]])
            assert "inline bytes" in str(error := assert_refused(store, data)) or "not a valid kind" in str(
                error
            )

    def test_a_file_that_is_not_there_or_text_is_refused(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(InvalidBundle, match="cannot be opened"):
            store.import_bundle(tmp_path / "none.oakleaf")
        with pytest.raises(InvalidBundle, match="text"):
            store.import_bundle(io.StringIO("x"))  # type: ignore[arg-type]

    def test_a_newer_major_is_refused_politely(self, session: Session, store: Store) -> None:
        data = bundle(session).replace(b'"format":"1.0"', b'"format":"2.0"', 1)
        assert "install a newer Oakleaf" in str(assert_refused(store, data, NewerFormat))

    def test_kinds_of_a_newer_minor_are_kept_whole(self, tmp_path: Path, store: Store) -> None:
        from oakleaf.core.codec import chain_id

        session = store.start("a", [system("s")])
        lines = bundle(session).splitlines(keepends=True)
        body = b'{"mood":{"z":1,"a":2.50}}'
        entry_id = chain_id(session.path()[-1].entry_id, "mood", 0, 0, body).hex()
        entry = b'{"line":"entry","branch":1,"seq":2,"id":"%s","turn":0,"step":0,"at":5,"body":%s,"kind":"mood"}\n'
        at = next(n for n, line in enumerate(lines) if b'"line":"entry"' in line)
        lines.insert(at + 1, entry % (entry_id.encode(), body))
        data = b"".join(lines).replace(b'"format":"1.0"', b'"format":"1.7"', 1)
        for name in (b'"tail":%d', b'"leaf":{"branch":1,"seq":%d}'):
            assert name % 1 in data
            data = data.replace(name % 1, name % 2)
        data = with_valid_hash(data.replace(b'"entries":1', b'"entries":2').splitlines(keepends=True))
        with other(store, tmp_path) as there:
            there.import_bundle(io.BytesIO(data))
            again = bundle(there.session(session.session_id))
        assert body in again
        assert again.splitlines()[1:-1] == data.splitlines()[1:-1]

    @pytest.mark.parametrize("name", ["session_id", "parent_session"])
    def test_an_unprintable_id_is_refused(self, session: Session, name: str) -> None:
        *lines, end = bundle(session).splitlines(keepends=True)
        head, row = json.loads(lines[0]), json.loads(lines[1])
        row["row"][name] = "ses_\x1b]0;owned\x07"
        head["session"] = row["row"]["session_id"]
        forged = [json.dumps(record).encode() + b"\n" for record in (head, row)]
        refusal = assert_refused(
            Store(MemoryStore(), real_runtime()), with_valid_hash([*forged, *lines[2:], end])
        )
        assert re.search("cannot be printed|has the character", str(refusal))


class TestRedacted:
    def test_secrets_are_hidden_chained_anew_and_counted(self, tmp_path: Path) -> None:
        secret, key = "hunter2-hunter2", "ghp_" + "a1B2" * 10
        here = Store(MemoryStore(), real_runtime())
        session = here.start("a", [system(f"Password {secret}")], title=f"with {secret}", spec={"p": secret})
        session.append([user(f"use {secret}"), assistant(ToolCall("c", "t", {"deep": [{"k": secret}]}))])
        session.append([tool_result("c", secret, state={"s": secret}), assistant("ok")])
        session.rewind(2, summary=f"found {secret}")
        session.append([user("plain")])
        session.tag(note=secret)
        session.enqueue(f"later {secret}")
        here.start_task(session, "child", [user(secret)])
        here.runtime = session.log.runtime = _runtime_with(Redactor({"DOOR": secret}))
        done = session.export(tmp_path / "r.oakleaf", redact=True).report
        data = (tmp_path / "r.oakleaf").read_bytes()
        assert secret.encode() not in data
        assert key.encode() not in data
        assert done.redactions["DOOR"] >= 9
        assert bundle(session, redact=True) == data
        there = Store(MemoryStore(), real_runtime())
        report = there.import_bundle(tmp_path / "r.oakleaf")
        assert report.redacted
        again = there.session(report.session_id)
        assert (again.session_id, again.row.tags["redacted"]) == (again.row.session_id, session.session_id)
        assert again.session_id != session.session_id
        assert bundle(again, redact=True).count(session.session_id.encode()) == 1  # the session it comes from
        assert "[redacted DOOR]" in again.path()[0].message.text  # type: ignore[union-attr]
        assert list(there.verify()) == []
        assert bundle(again) == data

    @pytest.mark.attack
    def test_hidden_words_are_nowhere_in_the_bytes(self, tmp_path: Path) -> None:
        words = ["Ann Lee", "Zoë", "40711222", "b+c"]
        here = Store(MemoryStore(), real_runtime())
        session = here.start(
            "ann lee",
            [system("Ask ANN LEE, then Zoë.")],
            session_id="ses_1",
            conversation_id="con:Zo",
            title="A case of Ann Lee",
            tags={"for": "zoë", "Zoë": "x"},
            model="made-for-Zoë",
            trigger_id="mail-40711222",
            spec={"customer": "Ann Lee", "deep": [{"number": 40711222}]},
        )
        inner = json.dumps({"name": "Zoë\nAnn Lee", "more": json.dumps({"who": "Zoë"})})
        packed = base64.b64encode(b"a letter to Ann Lee and others").decode()
        call = ToolCall("c1", "look_up", {"id": 40711222, "json": inner, "base64": packed, "Ann Lee": 1})
        session.append([user("I am ann lee; write to b+c, not to bb+cc"), assistant(call)], key="order-Zoë")
        media = user("see", oakleaf.Attachment(b"bytes", "image/png", "Ann Lee.png"))
        session.append(
            [tool_result("c1", "ZOË said &#65;nn Lee or Ann%20Lee", state={"n": "Ann Lee"}), media]
        )
        session.rewind(2, summary="Zoë left")
        session.enqueue("later, Ann Lee")
        here.start_task(session, "child", [user("for Zoë")])
        data = bundle(session, hide=words)
        for form in ("Ann Lee", "Zoë", "40711222", "b+c", "Zo\\u00eb", "Ann%20Lee", "&#65;nn Lee"):
            assert not re.search(rf"(?<![^\W_]){re.escape(form)}(?![^\W_])".encode(), data, re.IGNORECASE), (
                form
            )
        assert "zoë" not in data.decode().lower()
        assert packed.encode() not in data
        assert b"bb+cc" in data
        there = Store(MemoryStore(), real_runtime())
        again = there.session(there.import_bundle(io.BytesIO(data)).session_id)
        assert {problem.where for problem in there.verify()} == {"entry 1:5"}  # the picture was left out
        assert bundle(again) == data == bundle(session, hide=words[::-1])
        assert again.row.tags["redacted"] == session.session_id

    @pytest.mark.attack
    def test_an_accent_written_apart_hides_no_word_from_the_search(self, store: Store) -> None:
        apart = normalize("NFD", "Zoë")
        for word, text in (("Zoë", apart), (apart, "Zoë")):
            data = bundle(store.start(seeds=[user(f"I am {text}.")]), hide=[word])
            assert text.encode() not in data

    def test_a_source_whose_id_is_hidden_is_not_named(self, store: Store) -> None:
        session = store.start(session_id="ses_ann_41", seeds=[user("Hi")])
        data = bundle(session, hide=["Ann"])
        assert b"ann" not in data
        assert f'"redacted":"{json.loads(data.splitlines()[0])["session"]}"'.encode() in data

    @pytest.mark.attack
    def test_a_hidden_word_in_the_id_of_a_call_is_refused(self, store: Store, tmp_path: Path) -> None:
        session = store.start(seeds=[user("Hi")])
        session.append([assistant(ToolCall("call-ann-1", "f", {})), tool_result("call-ann-1", "x")])
        with pytest.raises(SecretInName) as refused:
            session.export(tmp_path / "x.oakleaf", hide=["Ann"])
        assert "ann" not in str(refused.value).replace("cannot", "").lower()
        assert not (tmp_path / "x.oakleaf").exists()

    @pytest.mark.parametrize("hide", ["Ann Lee", ["an"], [""], [" Ann"], ["a\0nn"], ["Ann", "x"]])
    def test_words_that_cannot_be_hidden_are_refused(self, session: Session, hide: Any) -> None:
        with pytest.raises((InvalidArgument, InvalidText)):
            bundle(session, hide=hide)
        with pytest.raises(InvalidArgument, match="blobs"):
            bundle(session, hide=["Ann Lee"], blobs=True)

    def test_sessions_without_secrets_keep_ids(self, session: Session) -> None:
        there = Store(MemoryStore(), real_runtime())
        report = there.import_bundle(io.BytesIO(bundle(session, redact=True)))
        again = there.session(report.session_id)
        assert [entry.entry_id for entry in again.path()] == [entry.entry_id for entry in session.path()]

    def test_blobs_are_not_looked_through_so_none_come_along(self, session: Session) -> None:
        with pytest.raises(InvalidArgument):
            bundle(session, redact=True, blobs=True)


def _runtime_with(redactor: Redactor) -> Any:
    return real_runtime(redactor)


class TestCopy:
    def test_a_copy_in_another_store_is_the_same_to_the_byte(
        self, session: Session, tmp_path: Path, store: Store
    ) -> None:
        with other(store, tmp_path) as there:
            copy = store.copy(session, to=there)
            assert bundle(copy, blobs=True) == bundle(session, blobs=True)
            assert store.copy(session.session_id, to=there).session_id == session.session_id
            assert len(list(there.all_sessions())) == 2

    def test_evidence_goes_along_between_stores_of_ones_own(self, tmp_path: Path, store: Store) -> None:
        session = grow_tree(store, [("turn", 0, 1, "x")])[0]
        with other(store, tmp_path) as there:
            proofs = [entry.evidence for entry in store.copy(session, to=there).path()]
        assert proofs == [entry.evidence for entry in session.path()]
        assert any(proofs)

    def test_another_space_of_the_same_file_needs_a_new_id(self, tmp_path: Path) -> None:
        stores = [
            Store(SqliteStore(tmp_path / "a.db", space=space), real_runtime()) for space in ("one", "two")
        ]
        session = stores[0].start("a", [system("s")])
        with pytest.raises(IdConflict):
            stores[0].copy(session, to=stores[1])
        copy = stores[0].copy(session, to=stores[1], new_id=True)
        assert copy.row.space == "two"
        with pytest.raises(NotFound):
            stores[0].session(copy.session_id)
        for store in stores:
            store.close()


class TestFallback:
    def test_a_conversation_not_yet_moved_is_read_once_then_ours(self, store: Store, tmp_path: Path) -> None:
        with other(store, tmp_path) as older:
            for text in ("first", "second"):
                older.start("a", [system(text)], conversation_id="con_1").append([user(text)])
            ours = store.latest_or_start("con_1", "a", fallback=older)
            assert ours.transcript()[-1].message.text == "second"  # type: ignore[union-attr]
            assert len(list(store.all_sessions(conversation_id="con_1"))) == 2
            ours.append([assistant("ours now")])
            older.latest("con_1").append([assistant("theirs still")])  # type: ignore[union-attr]
        again = store.latest_or_start("con_1", "a", fallback=older)  # closed: it is not asked again
        assert (again.session_id, again.leaf) == (ours.session_id, ours.leaf)

    def test_a_conversation_that_is_nowhere_is_started(self, store: Store) -> None:
        older = Store(MemoryStore(), real_runtime())
        assert store.latest_or_start("con_1", "a", fallback=older).row.agent == "a"
        assert list(older.all_sessions()) == []

    def test_a_deleted_conversation_does_not_come_back(self, store: Store) -> None:
        older = Store(MemoryStore(), real_runtime())
        older.start("a", conversation_id="con_1")
        ours = store.latest_or_start("con_1", "a", fallback=older)
        store.delete(ours.session_id)
        assert store.latest_or_start("con_1", "b", fallback=older).session_id != ours.session_id

    def test_two_processes_take_a_conversation_over_once(self, tmp_path: Path) -> None:
        older = Store(MemoryStore(), real_runtime())
        older.start("a", [system("s")], conversation_id="con_1").append([user("q")])
        stores = [Store(SqliteStore(tmp_path / "a.db"), real_runtime()) for _ in range(6)]
        begin, errors = threading.Barrier(6), []

        def go(mine: Store) -> None:
            begin.wait()
            session = mine.latest_or_start("con_1", "a", fallback=older)
            errors.append(session.session_id)

        threads = [threading.Thread(target=go, args=(mine,)) for mine in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(errors)) == 1
        assert len(errors) == 6
        assert len(list(stores[0].all_sessions())) == 1
        for mine in stores:
            mine.close()


class TestWeight:
    @pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured with /proc")
    def test_a_heavy_session_moves_in_little_memory(self, tmp_path: Path) -> None:
        """60 MB, or 1 GB in the long form: measured 8 MB and 9 MB beyond what the interpreter takes."""
        run(HEAVY, "make", str(tmp_path), "1000" if SOAK else "60")
        peak, size, *_ = run(HEAVY, "move", str(tmp_path)).split()
        assert int(size) > (1_000_000_000 if SOAK else 60_000_000)
        assert int(peak) < 40_000_000
        assert filecmp.cmp(tmp_path / "s.oakleaf", tmp_path / "t.oakleaf", shallow=False)


def run(script: Path, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=True
    ).stdout


class TestGolden:
    @pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.oakleaf")))
    def test_a_bundle_of_every_released_format_imports_for_ever(self, name: str, store: Store) -> None:
        data = (GOLDEN / name).read_bytes()
        report = store.import_bundle(GOLDEN / name)
        assert list(store.verify()) == []
        assert bundle(store.session(report.session_id), blobs=b'"blobs":true' in data.splitlines()[0]) == data
        assert store.session(report.session_id).messages("anthropic")

    def test_there_are_some(self) -> None:
        assert {"plain-1.0.oakleaf", "tree-1.0.oakleaf"} <= {path.name for path in GOLDEN.glob("*.oakleaf")}


def test_an_open_call_keeps_the_key_after_a_move(tmp_path: Path) -> None:
    with oakleaf.open(tmp_path / "a.db") as here, oakleaf.open(tmp_path / "b.db") as there:
        for _ in range(3):
            there.start()  # so that the other store counts its branches differently
        session = here.start(session_id="ses_open")
        session.append([user("one"), assistant("1")])
        session.rewind(0)
        session.append([user("two"), assistant(ToolCall("c", "pay", {}))])
        session.export(tmp_path / "x.oakleaf")
        there.import_bundle(tmp_path / "x.oakleaf")
        moved = there.session("ses_open")
        assert moved.leaf.branch != session.leaf.branch
        (call,) = session.open_tool_calls
        assert moved.idempotency_key(moved.open_tool_calls[0]) == session.idempotency_key(call)


@pytest.mark.parametrize("conversation_id", ["a\nb", "\x1b[2J", "a\u202eb"])
def test_a_bundle_carries_every_conversation_id(
    conversation_id: str,
) -> None:
    bundle = io.BytesIO()
    with oakleaf.open("memory:") as store, oakleaf.open("memory:") as other:
        store.start(conversation_id=conversation_id).export(bundle)
        bundle.seek(0)
        other.import_bundle(bundle)
        assert [row.conversation_id for row in other.all_sessions()] == [conversation_id]
