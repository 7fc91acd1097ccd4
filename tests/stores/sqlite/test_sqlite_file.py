"""The file: its format, its migrations, its view for people."""

from __future__ import annotations

import gzip
import multiprocessing
import threading
from pathlib import Path

import apsw
import pytest

import oakleaf
from oakleaf import ToolCall, assistant, system, tool_result, user
from oakleaf.errors import NewerFormat, OakleafError, PrereleaseFormat, StoreDamaged
from oakleaf.stores.sqlite import file
from oakleaf.stores.sqlite.file import PRERELEASE_IDS
from support.paths import GOLDEN


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def test_the_view_gives_each_active_message_exactly_once(place: Path) -> None:
    with oakleaf.open(place) as store:
        session = store.start("a", [system("s")])
        session.append(
            [user("q"), assistant("look", ToolCall("c", "t")), tool_result("c", "r"), assistant("a")]
        )
        session.append([user("left")])
        session.rewind(to=5)
        fork = session.fork(at=2)
        fork.append([assistant("mine")])
        trashed = store.start("a", [user("in the trash")])
        store.delete(trashed.session_id)
    with apsw.Connection(str(place), flags=apsw.SQLITE_OPEN_READONLY) as connection:
        rows = list(
            connection.execute(
                "select session_id, seq, role, text from active_message order by session_id, seq"
            )
        )
    messages = {
        name: [row[1:] for row in rows if row[0] == name] for name in (session.session_id, fork.session_id)
    }
    assert len(rows) == sum(map(len, messages.values()))
    assert messages[session.session_id] == [
        (1, "system", "s"),
        (2, "user", "q"),
        (3, "assistant", "look\n[tool_call]"),
        (4, "tool", "[tool_result]"),
        (5, "assistant", "a"),
    ]
    assert messages[fork.session_id] == [(1, "system", "s"), (2, "user", "q"), (3, "assistant", "mine")]


def test_a_migration_is_backed_up_applied_once_and_loses_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with oakleaf.open(place) as store:
        session = store.start("a", [system("kept")])
    monkeypatch.setattr(file, "FORMAT", file.FORMAT + 2)
    steps = []

    def step(to: int) -> file.Migration:
        def migrate(connection: apsw.Connection) -> None:
            steps.append(to)
            connection.execute(f"create table made_by_{to} (x)")

        return migrate

    migrations = {file.FORMAT: step(file.FORMAT), file.FORMAT - 1: step(file.FORMAT - 1)}
    for _ in range(2):
        file.prepare(str(place), synchronous="full", migrations=migrations)
    assert steps == [file.FORMAT - 1, file.FORMAT]
    (backup,) = place.parent.glob("*.bak")
    assert backup.stat().st_mode & 0o777 == 0o600
    with apsw.Connection(str(backup)) as old, apsw.Connection(str(place)) as new:
        assert old.execute("pragma user_version").get == file.FORMAT - 2
        assert new.execute("pragma user_version").get == file.FORMAT
        assert [c.execute("select count(*) from entry").get for c in (old, new)] == [1, 1]
    with oakleaf.open(place) as store:
        assert store.session(session.session_id).path()[0].message.text == "kept"


def test_a_failed_migration_leaves_the_file_unchanged(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oakleaf.open(place).close()
    monkeypatch.setattr(file, "FORMAT", file.FORMAT + 1)

    def migrate(connection: apsw.Connection) -> None:
        connection.execute("create table half (x)")
        raise RuntimeError("lost power")

    with pytest.raises(RuntimeError):
        file.prepare(str(place), synchronous="full", migrations={file.FORMAT: migrate})
    with apsw.Connection(str(place)) as connection:
        assert connection.execute("pragma user_version").get == file.FORMAT - 1
        assert connection.execute("select count(*) from sqlite_schema where name = 'half'").get == 0


def test_a_newer_format_is_refused_politely_and_not_touched(place: Path) -> None:
    oakleaf.open(place).close()
    with apsw.Connection(str(place)) as connection:
        connection.execute("pragma user_version = 2000")
    before = place.read_bytes()
    with pytest.raises(NewerFormat, match=r"format 2\.0, this Oakleaf reads up to 1\.0"):
        oakleaf.open(place)
    assert place.read_bytes() == before


@pytest.mark.parametrize("application_id", PRERELEASE_IDS)
def test_a_file_of_the_former_name_is_refused_and_not_touched(place: Path, application_id: int) -> None:
    with apsw.Connection(str(place)) as connection:
        connection.execute(
            f"create table session (no integer primary key); pragma application_id = {application_id}"
        )
        connection.execute("pragma user_version = 1002")
    before = place.read_bytes()
    with pytest.raises(PrereleaseFormat, match=r"written by Bough.*read it with the version that wrote it"):
        oakleaf.open(place)
    assert place.read_bytes() == before
    assert list(place.parent.iterdir()) == [place]


def _open(place: str, ready: object, out: object) -> None:
    ready.wait()  # type: ignore[attr-defined]
    try:
        with oakleaf.open(place) as store:
            store.start("a")
        out.put("ok")  # type: ignore[attr-defined]
    except OakleafError as error:
        out.put(repr(error))  # type: ignore[attr-defined]


def test_two_processes_may_make_the_file_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, out = context.Barrier(4), context.Queue()
    workers = [context.Process(target=_open, args=(str(tmp_path / "new.db"), ready, out)) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert [out.get(timeout=60) for _ in workers] == ["ok"] * 4
    for worker in workers:
        worker.join()
    with oakleaf.open(tmp_path / "new.db") as store:
        assert len(store.sessions().sessions) == 4


@pytest.mark.parametrize("is_link", [False, True])
def test_a_relative_path_survives_a_change_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    if is_link:
        (home / "a.db").symlink_to(other / "real.db")
    monkeypatch.chdir(home)
    store = oakleaf.open("a.db")
    session = store.start(seeds=[user("first")])
    monkeypatch.chdir(other)
    session.append([user("second")])
    store.backend.life_token()
    store.index()
    store.backend.backup("copy.db")  # type: ignore[attr-defined]
    threads = [threading.Thread(target=lambda: session.path()) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = {f"{path.parent.name}/{path.name}" for path in tmp_path.glob("*/*")}
    place = "other/real.db" if is_link else "home/a.db"
    beside = {place, *(f"{place}-{name}" for name in ("wal", "shm", "oakleaf"))}
    assert files - {"home/a.db", "other/copy.db"} == beside - {"home/a.db"}
    assert len(session.path()) == 2
    store.close()


def test_every_column_of_the_schema_says_why_or_is_plain() -> None:
    """The schema file is documentation: a tour at its head and no table without a word of explanation."""
    text = (Path(file.__file__).parent / "schema.sql").read_text()
    assert text.startswith("-- Oakleaf's SQLite schema, format 1.0.")
    for table in ("session", "branch", "entry", "usage", "journal", "blob"):
        block = text.split(f"create table {table} (")[1].split(");")[0]
        assert block.count("--") >= 2, table


def test_an_entry_that_cannot_be_read_is_named_as_damage(place: Path) -> None:
    with oakleaf.open(place) as store:
        session = store.start("a", [system("s")])
        with apsw.Connection(str(place)) as connection:
            connection.execute("update entry set body = 'not json'")
        with pytest.raises(StoreDamaged, match="cannot be decoded"):
            session.path()
        assert session.verify()


class TestGolden:
    """Stores written by every released format open for ever."""

    @pytest.mark.parametrize(
        "golden_file", sorted(GOLDEN.glob("store-*.db.gz")), ids=lambda golden_file: golden_file.name
    )
    def test_a_store_of_an_old_format_opens_verifies_and_goes_on(
        self, golden_file: Path, tmp_path: Path
    ) -> None:
        place = tmp_path / "old.db"
        place.write_bytes(gzip.decompress(golden_file.read_bytes()))
        with oakleaf.open(place) as store:
            assert list(store.verify()) == []
            rows = list(store.all_sessions())
            assert sorted(str(row.relation) for row in rows) == ["None", "fork", "fork", "task"]
            leaf = next(store.session(row.session_id) for row in rows if row.title == "What if")
            leaf.export(tmp_path / "again.oakleaf", blobs=True)
            assert (tmp_path / "again.oakleaf").read_bytes() == (GOLDEN / "tree-1.0.oakleaf").read_bytes()
            assert store.search("parcel").hits
            leaf.append([oakleaf.user("still here")])
            assert leaf.verify() == []
