"""After a purge no byte of it is left in the file, its log or the files beside it; what a fork stands on stays."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import oakleaf
from oakleaf import (
    Attachment,
    Evidence,
    Leaf,
    Reasoning,
    ScriptedModel,
    Store,
    ToolCall,
    Usage,
    assistant,
    errors,
    system,
    tool_result,
    user,
)
from oakleaf.core.facts import TaskStarted
from oakleaf.ext import read
from oakleaf.log.log import Draft
from oakleaf.stores.sqlite import search_index
from oakleaf.stores.sqlite import store as sqlite_store
from support.sessions import exported, tasks_of

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"
STORES = 300 if SOAK else 18
KILLS = 150 if SOAK else 6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def disk(path: Path) -> Iterator[Store]:
    with oakleaf.open(path) as store:
        yield store


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, path: Path) -> Iterator[Store]:
    with oakleaf.open("memory:" if request.param == "memory" else path) as opened:
        yield opened


def occurrences(path: Path, canary: str) -> dict[str, int]:
    """How often the canary is still found, by file; empty if it is gone."""
    counts = {file.name: file.read_bytes().count(canary.encode()) for file in path.parent.iterdir()}
    return {name: count for name, count in counts.items() if count}


def purge(store: Store, session: oakleaf.Session, **how: Any) -> Any:
    store.delete(session.session_id)
    return store.purge(session.session_id, **how)


def start_with_text_everywhere(store: Store, canary: str) -> oakleaf.Session:
    """A session that holds the canary wherever text or bytes can be."""
    session = store.start(
        agent=f"{canary}-agent",
        seeds=[system(f"{canary}-seed")],
        title=f"{canary}-title",
        conversation_id=f"{canary}-conversation",
        tags={f"{canary}-tag": f"{canary}-value"},
        model=f"{canary}-model",
        trigger_type=f"{canary}-trigger",
        trigger_id=f"{canary}-trigger-id",
        tool_names=[f"{canary}-tool"],
        spec={"prompt": f"{canary}-spec"},
        policy={"rule": f"{canary}-policy"},
        state={"begin": f"{canary}-state"},
    )
    url = "data:image/png;base64," + base64.b64encode(f"{canary}-url-blob".encode() * 20).decode()
    with session.turn(user(f"{canary}-input", Attachment(f"{canary}-blob".encode(), "image/png"))) as turn:
        turn.failed(f"{canary}-failed", usage=Usage(1, 0), provider="p", model=f"{canary}-failed-model")
        turn.answer(
            assistant(
                Reasoning(f"{canary}-thought"),
                ToolCall("c1", f"{canary}-name", {"x": f"{canary}-arg", "u": url}),
            ),
            usage=Usage(1, 1),
            provider=f"{canary}-provider",
            model=f"{canary}-answer-model",
        )
        turn.result(
            "c1",
            f"{canary}-result",
            state={"k": f"{canary}-update"},
            details={"d": f"{canary}-detail"},
            key=f"{canary}-key",
        )
        turn.answer(assistant(f"{canary}-final"))
    evidence = Evidence("anthropic", {"0": {"signature": f"{canary}-evidence"}})
    session.log.append([Draft(user("q")), Draft(assistant("a"), f"{canary}-m", f"{canary}-finish", evidence)])
    session.note({"n": f"{canary}-note"}, state={"m": f"{canary}-note-state"})
    session.set(prompt=f"{canary}-prompt", limits={"l": f"{canary}-limit"})
    session.rewind(3, summary=f"{canary}-summary")
    with contextlib.suppress(ValueError), session.turn("again"):
        raise ValueError(f"{canary}-error")
    session.title(f"{canary}-second title")
    session.tag(more=f"{canary}-more")
    session.end("failed", f"{canary}-end")
    return session


class TestNoByteIsLeft:
    def test_a_canary_in_every_field_is_gone(self, disk: Store, path: Path) -> None:
        other = start_with_text_everywhere(disk, "OTHER")
        session = start_with_text_everywhere(disk, "CANARY")
        disk.index()
        assert occurrences(path, "CANARY"), "it was there"
        assert occurrences(path, "canary"), "the index holds words in small letters"
        purge(disk, session)
        assert occurrences(path, "CANARY") == {}
        assert occurrences(path, "canary") == {}
        assert sum(occurrences(path, "OTHER").values()) > 20
        assert other.verify() == []
        assert disk.blob(next(m for e in other.path() if e.message for m in e.message.media)) == b"OTHER-blob"

    def test_of_many_sessions_the_last_purge_removes_all(self, disk: Store, path: Path) -> None:
        sessions = [start_with_text_everywhere(disk, f"CANARY{n}") for n in range(3)]
        disk.index()
        for session in sessions[:-1]:
            assert not purge(disk, session, scrub=False).scrubbed
            assert disk.search(session.session_id).hits == []
            with pytest.raises(errors.NotFound):
                disk.session(session.session_id)
        assert purge(disk, sessions[-1]).scrubbed
        assert occurrences(path, "CANARY") == occurrences(path, "canary") == {}

    def test_words_leave_the_index_in_pieces_with_writers_between(
        self, disk: Store, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_store, "MERGED_PAGES", 1)
        other, session = disk.start(), disk.start()
        for n in range(40):
            other.append([user(" ".join(f"word{n}x{m}" for m in range(200)))])
            session.append([user(f"canary{n} " * 3)])
            disk.index()
        writes: list[int] = []
        merge = search_index.merge_segments

        def counted(*args: Any, **kwargs: Any) -> bool:
            writes.append(1)
            return merge(*args, **kwargs)

        monkeypatch.setattr(sqlite_store, "merge_segments", counted)
        purge(disk, session)
        assert len(writes) > 3
        assert occurrences(path, "canary") == {}
        assert len(disk.search("word7x7").hits) == 1

    def test_bytes_lifted_out_of_tool_arguments_go_too(self, disk: Store, path: Path) -> None:
        url = "data:image/png;base64," + base64.b64encode(b"CANARY" * 30).decode()
        session = disk.start()
        session.append([user("x"), assistant(ToolCall("c", "t", {"image": url}))])
        session.append([tool_result("c", "r", details={"again": url.replace("png", "gif")})])
        assert occurrences(path, "CANARY")
        purge(disk, session)
        assert occurrences(path, "CANARY") == {}

    @pytest.mark.parametrize("size", [1, 1_000, 4_000, 5_000, 100_000, 10_000_000])
    def test_entries_of_any_size_leave_nothing(self, size: int, disk: Store, path: Path) -> None:
        text = ("CANARY" * (size // 6 + 1))[: max(size, 6)]
        keeps = disk.start()
        session = disk.start()
        for n in range(3):
            keeps.append([user(f"kept {n}")])
            session.append([user(text), assistant("", ToolCall("c", "t", {"a": text}))])
            session.append([tool_result("c", text, state={f"k{n}": text[:9_999]})])
        purge(disk, session)
        assert occurrences(path, "CANARY") == {}
        assert len(keeps.path()) == 3

    def test_pages_that_were_split_and_rebalanced_leave_nothing(self, tmp_path: Path) -> None:
        """`secure_delete` zeroes a cell where it lies; copies that balancing left behind in the free part of
        another page are not its business. Sessions growing side by side make many."""
        for seed in range(STORES):
            folder = tmp_path / str(seed)
            folder.mkdir()
            with oakleaf.open(folder / "a.db", synchronous="normal") as store:
                rng = random.Random(seed)
                sessions = self.write_interleaved(store, rng)
                rng.shuffle(sessions)
                for number, session in sessions:
                    assert purge(store, session).scrubbed
                    assert occurrences(folder / "a.db", f"CANARY{number}") == {}, f"seed {seed}"

    @staticmethod
    def write_interleaved(store: Store, rng: random.Random) -> list[tuple[int, oakleaf.Session]]:
        count = rng.randrange(2, 8)
        sessions = [
            (n, store.start(title=f"CANARY{n}" + "z" * rng.randrange(300), tags={"t": f"CANARY{n}"}))
            for n in range(count)
        ]
        for step in range(rng.choice([60, 200])):
            number, session = rng.choice(sessions)
            canary, luck = f"CANARY{number}-" * rng.randrange(1, 40), rng.random()
            if luck < 0.55:
                session.append([user(canary + "x" * rng.choice([0, 10, 200, 900, 1500, 3000, 9000]))])
            elif luck < 0.65:
                session.title(canary)
            elif luck < 0.75:
                session.note(state={f"k{step}": canary})
            elif luck < 0.8:
                session.end("failed", canary)
            elif luck < 0.85:
                session.tag(**{f"t{step}": canary})
            elif session.leaf.seq > 2:
                session.rewind(rng.randrange(1, session.leaf.seq))
        return sessions

    def test_a_reader_that_holds_the_log_open_is_told_of(self, disk: Store, path: Path) -> None:
        """The bytes cannot go while somebody reads them; purge says so, and a later one cleans up."""
        session, other = disk.start(), disk.start()
        session.append([user("CANARY")])
        with contextlib.closing(apsw.Connection(str(path))) as reader:
            reader.execute("begin; select count(*) from entry")
            disk.backend._connections._writer.set_busy_timeout(50)  # type: ignore[attr-defined]
            assert not purge(disk, session).scrubbed
        assert occurrences(path, "CANARY"), "else the law above is not tested"
        assert purge(disk, other).scrubbed
        assert occurrences(path, "CANARY") == {}


class TestHalfWay:
    """A purge that fails after it deleted the session can be repeated, and finishes then."""

    def test_a_cursor_that_something_keeps_does_not_stop_it(self, disk: Store, path: Path) -> None:
        session = disk.start()
        session.append([user("CANARY")])
        connections = disk.backend._connections  # type: ignore[attr-defined]
        cursors = [connections._writer.execute("select 1 union select 2")]
        with connections.reading() as reader:
            cursors.append(reader.execute("select 1 union select 2"))
        assert purge(disk, session).scrubbed
        assert occurrences(path, "CANARY") == {}
        disk.start().append([user("and more")])
        assert list(disk.verify()) == []

    def test_the_next_purge_of_the_session_finishes_an_earlier_purge(self, disk: Store, path: Path) -> None:
        session, stranger = disk.start(title="CANARY"), disk.start()
        with contextlib.closing(apsw.Connection(str(path))) as reader:
            reader.execute("begin; select count(*) from entry")
            disk.backend._connections._writer.set_busy_timeout(50)  # type: ignore[attr-defined]
            assert not purge(disk, session).scrubbed
        disk.backend.close()
        with oakleaf.open(path) as again:
            with pytest.raises(errors.NotFound):
                again.session(session.session_id)
            with pytest.raises(errors.NotTrashed):
                again.purge(stranger.session_id)
            with oakleaf.open(path, space="other") as other, pytest.raises(errors.NotFound):
                other.purge(session.session_id)
            assert occurrences(path, session.session_id)
            done = again.purge(session.session_id)
            assert (done.sessions, done.scrubbed) == ((session.session_id,), True)
            assert occurrences(path, "CANARY") == occurrences(path, session.session_id) == {}
            with pytest.raises(errors.NotFound):
                again.purge(session.session_id)


class TestForks:
    def start_long_session(self, store: Store) -> oakleaf.Session:
        """1 system · 2 user · 3 assistant … 9, one call of 10 tokens each answer."""
        session = store.start(seeds=[system("CANARY1;")])
        for n in range(2, 9, 2):
            with session.turn(
                user(f"CANARY{n};", Attachment(f"CANARYBLOB{n};".encode(), "image/png"))
            ) as turn:
                turn.answer(
                    assistant(f"CANARY{n + 1};"),
                    usage=Usage(10, 1),
                    provider="p",
                    model=f"CANARYMODEL{n + 1};",
                )
        return session

    def test_a_fork_keeps_exactly_the_inherited_entries_and_usage(self, disk: Store, path: Path) -> None:
        session = self.start_long_session(disk)
        fork = session.fork(at=5)
        before = [entry.payload for entry in fork.path()], fork.usage("path")
        purged = purge(disk, session)
        assert (purged.entries, purged.kept_entries) == (4, 5)
        assert ([entry.payload for entry in fork.path()], fork.usage("path")) == before
        assert fork.usage("path").input_tokens == 20
        assert list(disk.verify()) == []
        for n in range(1, 10):
            assert bool(occurrences(path, f"CANARY{n};")) == (n <= 5), n
            assert bool(occurrences(path, f"CANARYBLOB{n};")) == (n in (2, 4)), n
            assert bool(occurrences(path, f"CANARYMODEL{n};")) == (n in (3, 5)), n

    def test_purging_the_fork_then_removes_that_too(self, disk: Store, path: Path) -> None:
        session = self.start_long_session(disk)
        fork = session.fork(at=5)
        fork.append([user("CANARYFORK")])
        purge(disk, session)
        purge(disk, fork)
        assert occurrences(path, "CANARY") == {}
        with contextlib.closing(apsw.Connection(str(path))) as connection:
            for table in (
                "session",
                "session_detail",
                "branch",
                "entry",
                "tool_call",
                "usage",
                "journal",
                "blob",
                "blob_use",
            ):
                assert connection.execute(f"select count(*) from {table}").get == 0, table

    def test_of_calls_below_a_fork_only_numbers_stay(self, disk: Store, path: Path) -> None:
        session = disk.start("a", trigger_type="CANARYTRIGGER")
        for n in range(4):
            limits = oakleaf.Limits(max_messages=3)
            session.send_sync(f"CANARYINPUT{n};", model=oakleaf.ScriptedModel(["ok"]), limits=limits)
        fork = session.fork(at=6)
        before = read(fork).cache_break("anthropic")
        assert before is not None
        purge(disk, session)
        assert read(fork).cache_break("anthropic") == before
        assert (occurrences(path, "CANARYTRIGGER"), occurrences(path, "CANARYINPUT3;")) == ({}, {})
        purge(disk, fork)
        assert occurrences(path, "CANARY") == {}

    def test_purging_a_fork_leaves_the_source_alone(self, store: Store) -> None:
        session = self.start_long_session(store)
        fork = session.fork(at=5)
        fork.append([user("x")])
        before = [entry.payload for entry in session.path()], session.usage()
        assert purge(store, fork).entries == 1
        assert ([entry.payload for entry in session.path()], session.usage()) == before
        assert list(store.verify()) == []

    def test_a_purge_with_forks_takes_all_forks(self, disk: Store, path: Path) -> None:
        session = self.start_long_session(disk)
        fork = session.fork(at=5)
        deep = fork.fork(at=3)
        purged = purge(disk, session, with_forks=True)
        assert set(purged.sessions) == {session.session_id, fork.session_id, deep.session_id}
        assert occurrences(path, "CANARY") == {}
        assert list(disk.all_sessions()) == list(disk.all_sessions(trashed=True)) == []

    def test_a_fork_of_a_fork_keeps_the_entries_below_both(self, store: Store) -> None:
        session = self.start_long_session(store)
        fork = session.fork(at=7)
        fork.append([user("mine")])
        deep = fork.fork(at=8)
        before = [entry.payload for entry in deep.path()]
        for purged in (session, fork):
            purge(store, purged)
            assert [entry.payload for entry in deep.path()] == before
            assert deep.verify() == []
        deep.append([assistant("goes on")])
        assert deep.usage("path").input_tokens == 30
        assert deep.verify() == []

    def test_a_fork_rewound_below_the_root_survives_a_purge(self, store: Store) -> None:
        session = self.start_long_session(store)
        fork = session.fork(at=7)
        fork.rewind(3)
        purge(store, session)
        reloaded = store.session(fork.session_id)
        assert [entry.seq for entry in reloaded.path()] == [1, 2, 3]
        reloaded.append([user("goes on")])
        assert reloaded.verify() == []

    def test_a_fork_on_later_entries_of_the_source_keeps_all(self, store: Store) -> None:
        """A leaf is a foot too. Either a fork may not go where its source grew later, or it stands there."""
        session = self.start_long_session(store)
        fork = session.fork(at=3)
        with contextlib.suppress(errors.OakleafError):
            fork.checkout(Leaf(session.leaf.branch, 9))
        before = [entry.payload for entry in fork.path()]
        purge(store, session)
        reloaded = store.session(fork.session_id)
        assert [entry.payload for entry in reloaded.path()] == before
        assert reloaded.verify() == []

    def test_a_blob_two_sessions_use_stays_for_the_other(self, store: Store) -> None:
        media = store.put_blob(b"shared", "image/png")
        one, two = store.start(), store.start()
        for session in (one, two):
            session.append([user(media)])
        assert purge(store, one).blobs == 0
        assert store.blob(media) == b"shared"
        assert purge(store, two).blobs == 1
        assert store.blob(media) is None

    def test_any_order_of_purges_leaves_every_survivor_whole(self, tmp_path: Path) -> None:
        for seed in range(STORES):
            rng = random.Random(seed)
            where = "memory:" if seed % 2 else tmp_path / f"{seed}.db"
            with oakleaf.open(where, synchronous="normal") as store:
                family = [store.start(seeds=[system("s")])]
                for n in range(25):
                    session = rng.choice(family)
                    luck = rng.random()
                    if luck < 0.25:
                        family.append(session.fork(at=rng.randrange(session.leaf.seq + 1)))
                    elif luck < 0.35:
                        session.rewind(rng.randrange(session.row.seed_count, session.leaf.seq + 1))
                    else:
                        with session.turn(f"in {n}") as turn:
                            turn.answer(assistant(f"out {n}"), usage=Usage(n, 1))
                histories = {s.session_id: ([e.payload for e in s.path()], s.usage("path")) for s in family}
                rng.shuffle(family)
                while family:
                    purge(store, family.pop())
                    for survivor in family:
                        reloaded = store.session(survivor.session_id)
                        assert ([e.payload for e in reloaded.path()], reloaded.usage("path")) == histories[
                            reloaded.session_id
                        ], seed
                    assert list(store.verify()) == [], seed

    def test_the_calls_under_one_fork_outlive_another_fork(self, store: Store) -> None:
        """Both stood on a purged session; with the first fork went the calls of branches only the second stands on."""
        parent = store.start("a", [system("s")])
        parent.append([user("x"), assistant("y")])
        one = parent.fork(at=1)
        parent.rewind(1)
        with parent.turn("q") as turn:
            turn.answer(assistant("a"), usage=Usage(10, 1))
        other = parent.fork()
        purge(store, parent)
        purge(store, one)
        assert other.usage("path").calls == 1


class TestTrash:
    def test_purge_wants_the_trash_first(self, store: Store) -> None:
        session = store.start()
        with pytest.raises(errors.NotTrashed):
            store.purge(session.session_id)
        assert store.session(session.session_id).verify() == []

    def test_purging_twice_is_not_found(self, store: Store) -> None:
        session = store.start()
        purge(store, session)
        with pytest.raises(errors.NotFound):
            store.purge(session.session_id)
        with pytest.raises(errors.NotFound):
            store.delete(session.session_id)

    def test_restore_brings_back_the_children_trashed_with_it(self, store: Store) -> None:
        parent = store.start()
        before, child = store.start_task(parent), store.start_task(parent)
        grandchild = store.start_task(child)
        store.delete(before.session_id)
        store.delete(parent.session_id)
        assert list(store.all_sessions()) == []
        store.restore(parent.session_id)
        back = {row.session_id for row in store.all_sessions()}
        assert back == {parent.session_id, child.session_id, grandchild.session_id}
        assert {row.session_id for row in store.all_sessions(trashed=True)} == {before.session_id}

    def test_a_trashed_session_takes_nothing_and_loses_nothing(self, store: Store) -> None:
        session = store.start()
        session.append([user("kept")])
        store.delete(session.session_id)
        for attempt in (
            lambda: session.append([assistant("no")]),
            lambda: session.title("no"),
            lambda: session.rewind(0),
            lambda: store.start_task(session),
            lambda: session.fork(),
            lambda: session.replay_sync(),
            lambda: session.send_sync("no", model=ScriptedModel(["no"])),
            lambda: session.enqueue("no"),
            lambda: session.turn("no").__enter__(),
            lambda: store.copy(session, oakleaf.open("memory:")),
        ):
            with pytest.raises(errors.SessionTrashed):
                attempt()
        assert [one.message.text for one in store.session(session.session_id).path()] == [
            "kept"
        ]  # it can be read until it is purged
        assert "kept" in exported(session, "markdown")
        assert list(store.all_sessions()) == list(store.search("kept").hits) == []
        store.restore(session.session_id)
        session.append([assistant("yes")])
        assert session.verify() == []

    def test_children_go_with_their_parent(self, store: Store) -> None:
        parent = store.start()
        child = store.start_task(parent, seeds=[system("x")])
        store.start_task(child)
        assert len(purge(store, parent).sessions) == 3
        assert list(store.all_sessions()) == list(store.all_sessions(trashed=True)) == []

    def test_a_child_restored_alone_is_not_purged_with_the_parent(self, store: Store) -> None:
        """Whoever took it out of the trash wants it: purge takes only what lies there."""
        parent = store.start()
        child = store.start_task(parent, seeds=[system("x")])
        store.delete(parent.session_id)
        store.restore(child.session_id)
        store.purge(parent.session_id)
        assert [row.session_id for row in store.all_sessions()] == [child.session_id]
        assert store.session(child.session_id).verify() == []

    def test_a_child_that_is_missing_is_passed_over(self, store: Store) -> None:
        parent = store.start()
        missing, there = store.start_task(parent), store.start_task(parent)
        parent.log.record(TaskStarted("ses_never", 0))
        purge(store, missing)
        assert [child.session_id for child in tasks_of(parent)] == [there.session_id]
        assert set(purge(store, parent).sessions) == {parent.session_id, there.session_id}

    def test_a_foreign_space_can_neither_trash_nor_purge(self, path: Path) -> None:
        with oakleaf.open(path) as store, oakleaf.open(path, space="other") as stranger:
            session = store.start()
            for verb in (stranger.delete, stranger.restore, stranger.purge):
                with pytest.raises(errors.NotFound):
                    verb(session.session_id)
            store.delete(session.session_id)
            with pytest.raises(errors.NotFound):
                stranger.purge(session.session_id)

    def test_a_ring_of_parents_is_walked_once(self, disk: Store, path: Path) -> None:
        sessions = [disk.start(seeds=[system(f"CANARY{n}")]) for n in range(3)]
        for n, session in enumerate(sessions):
            parent = sessions[n - 1].session_id
            _execute(
                path,
                "update session set relation = 'task', parent_session = ? where id = ?",
                (parent, session.session_id),
            )
        disk.delete(sessions[0].session_id)
        disk.restore(sessions[1].session_id)
        assert len(list(disk.all_sessions())) == 3
        assert len(tasks_of(sessions[0])) == 1
        assert [problem.where for problem in disk.verify()] == ["fact 1"] * 3  # the journal names no parent
        assert sessions[0].usage("tree").calls == 0
        assert len(purge(disk, sessions[0]).sessions) == 3
        assert occurrences(path, "CANARY") == {}

    def test_a_session_with_itself_as_parent_goes(self, disk: Store, path: Path) -> None:
        session = disk.start()
        _execute(path, "update session set relation = 'task', parent_session = id", ())
        assert purge(disk, session).sessions == (session.session_id,)

    def test_a_ring_of_branches_does_not_hang(self, tmp_path: Path) -> None:
        """Only damage makes one. Reading must end all the same, best with a problem that names it."""
        path = tmp_path / "ring.db"
        with oakleaf.open(path) as store:
            session = store.start(session_id="ses_ring")
            session.append([user("a"), assistant("b"), user("c")])
            session.rewind(2)
            session.append([user("d")])
        _execute_unless_refused(
            path, "update branch set parent = (select max(id) from branch) where parent is null"
        )
        code = (
            "import sys, oakleaf\nstore = oakleaf.open(sys.argv[1])\ntry:\n"
            "    print(len(list(store.verify())))\n    store.session('ses_ring').path()\n"
            "    store.delete('ses_ring'); store.purge('ses_ring')\nexcept oakleaf.OakleafError as e: print(e)\n"
        )
        limited = f'ulimit -v 3000000; exec {sys.executable} -c "$0" {path}'
        done = subprocess.run(
            ["bash", "-c", limited, code], timeout=8, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-500:]


def _execute(path: Path, sql: str, bindings: tuple[Any, ...]) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute(sql, bindings)


def _execute_unless_refused(path: Path, sql: str) -> None:
    with contextlib.suppress(apsw.ConstraintError):
        _execute(path, sql, ())


PURGER = """
import sys, oakleaf
store = oakleaf.open(sys.argv[1])
for row in list(store.all_sessions()):
    store.delete(row.session_id)
print("ready", flush=True)
for row in list(store.all_sessions(trashed=True)):
    store.purge(row.session_id)
    print(row.session_id, flush=True)
"""


class TestCrash:
    def test_a_killed_purge_leaves_whole_sessions(self, tmp_path: Path) -> None:
        rng = random.Random("purge")
        cut_short = 0
        for kill in range(KILLS):
            path = tmp_path / f"{kill}" / "a.db"
            path.parent.mkdir()
            self.fill(path)
            purged = self.kill(path, rng.random() * 0.1)
            with oakleaf.open(path) as store:
                assert list(store.verify()) == []
                there = {row.session_id for row in store.all_sessions(trashed=True)}
                assert not there & purged, "purged and acknowledged, and back"
                assert len(there) + len(purged) in (5, 6), "at most one purge more than acknowledged"
                for session_id in there:
                    assert len(store.session(session_id).path()) == 21
                cut_short += bool(there)
                for session_id in there:
                    store.purge(session_id)
                empty = (
                    store.start()
                )  # the last purge may have been killed before it scrubbed: the next one does
                purge(store, empty)
                assert occurrences(path, "CANARY") == {}
                assert list(store.verify()) == []
        assert cut_short, "no kill fell before the end"

    @staticmethod
    def fill(path: Path) -> None:
        with oakleaf.open(path, synchronous="normal") as store:
            for n in range(6):
                session = store.start(seeds=[system("CANARY")])
                for _ in range(10):
                    data = f"CANARY-blob-{n}".encode() + os.urandom(2_000)
                    session.append([user("CANARY" * 500, Attachment(data, "image/png")), assistant("CANARY")])

    @staticmethod
    def kill(path: Path, wait: float) -> set[str]:
        args = [sys.executable, "-c", PURGER, str(path)]
        with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
            return {line.strip() for line in process.stdout if line.endswith("\n")}
