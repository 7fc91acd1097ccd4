"""Following folders as their sessions grow: what is read again, what is remembered, and a real process that is killed."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oakleaf import open as oakleaf_open
from oakleaf.ingest.importers import find_importer
from oakleaf.store import Store
from oakleaf.stores.sqlite.store import SqliteStore
from oakleaf_importers.inotify import ChangeSignal
from oakleaf_importers.watch import SourceChange, Watch, WatchedFolder, source_of
from oakleaf_postgres.store import connections as postgres_connections
from support.foreign_plugins import Site
from support.import_sources import (
    SECRETS,
    assert_masked,
    memory_store,
    store,
    with_secrets,
    write_jsonl,
)
from support.postgres import Database
from support.terminal import OAKLEAF, oakleaf
from support.tool_sources import (
    ToolSource,
    claude_ai,
    claude_code,
    codex,
    copilot_cli,
    opencode,
    qwen_code,
    stored_counts,
)
from support.tool_sources.copilot_cli import SAMPLE, SESSION

__all__ = ["store"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def entries(changes: Iterator[SourceChange]) -> list[int]:
    return [result.entries for change in changes for result in change.results]


class TestAScan:
    def test_reads_a_source_again_only_if_it_changed(self, store: Store, root: Path) -> None:
        watch = Watch(store, [WatchedFolder("copilot-cli", root)])
        copilot_cli.write(root, SAMPLE[:6])
        assert entries(watch.scan()) == [3]
        assert list(watch.scan()) == []
        copilot_cli.write(root, SAMPLE)
        assert entries(watch.scan()) == [13]
        assert list(watch.scan()) == []

    @pytest.mark.parametrize(
        "source", [claude_code.SOURCE, codex.SOURCE, copilot_cli.SOURCE], ids=lambda source: source.tool
    )
    def test_piece_by_piece_ends_in_the_same_ledger_as_one_import(
        self, source: ToolSource, root: Path
    ) -> None:
        """Its files grow together, in the middle of lines too, and then are quiet."""
        source.write(root.parent / "whole", source.sample)
        files = {
            path.relative_to(root.parent / "whole"): path.read_bytes()
            for path in sorted((root.parent / "whole").rglob("*.jsonl"))
        }
        steps = max(map(len, files.values())) // 397
        with memory_store() as growing, memory_store() as whole:
            watch = Watch(growing, [WatchedFolder(source.tool, root)])
            for step in range(1, steps + 1):
                for name, body in files.items():
                    (root / name).parent.mkdir(parents=True, exist_ok=True)
                    (root / name).write_bytes(body[: len(body) * step // steps])
                list(watch.scan())
            for name in files:
                os.utime(root / name, (0, 0))
            list(watch.scan())
            list(whole.import_from(source.tool, str(root)))
            assert stored_counts(growing) == stored_counts(whole) == source.count(root)

    def test_survives_files_that_vanish_are_renamed_truncated_or_are_none(
        self, store: Store, root: Path
    ) -> None:
        watch = Watch(store, [WatchedFolder("copilot-cli", root)])
        copilot_cli.write(root, SAMPLE)
        list(watch.scan())
        before = stored_counts(store)
        (root / SESSION).rename(root / "renamed")
        assert entries(watch.scan()) == [0]
        write_jsonl(root / "renamed/events.jsonl", SAMPLE[:3])
        assert entries(watch.scan()) == [0]
        (root / "renamed/events.jsonl").unlink()
        assert list(watch.scan()) == []
        (root / "loop").symlink_to(root / "loop")
        (root / "strange.jsonl").write_bytes(b"\xff\x00{")
        list(watch.scan())
        assert stored_counts(store) == before

    def test_a_source_that_cannot_be_read_is_told_once_and_tried_again(
        self, store: Store, root: Path
    ) -> None:
        clock = Clock()
        watch = Watch(store, [WatchedFolder("claude-ai", root)], clock=clock)
        (root / "conversations.json").write_text("[{")
        (change,) = watch.scan()
        assert change.error is not None
        assert list(watch.scan()) == []
        clock.now += watch.next_due()
        assert len(list(watch.scan())) == 1
        claude_ai.write(root, claude_ai.SAMPLE)
        (change,) = watch.scan()
        assert change.error is None

    def test_a_store_that_is_away_is_told_once_and_keeps_no_source_waiting(
        self, database: Database, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each changed source waited for it half a minute, and was told of."""
        monkeypatch.setattr(postgres_connections, "SERVER_TIMEOUT_SECONDS", 0.05)
        clock = Clock()
        for name in ("a", "b", "c"):
            (root / f"{name}.jsonl").write_text('{"role": "user", "content": "hi"}\n')
        with oakleaf_open(database.url) as away:
            watch = Watch(away, [WatchedFolder("chat", root)], clock=clock)
            with database.outage():
                (change,) = watch.scan()
                assert "cannot connect to" in (change.error or "")
                for _ in range(2):
                    clock.now += watch.next_due()
                    assert list(watch.scan()) == []
            clock.now += watch.next_due()
            assert entries(watch.scan()) == [1, 1, 1]
            assert list(watch.scan()) == []
            with database.outage():
                (root / "a.jsonl").write_text('{"role": "user", "content": "hi"}\n' * 2)
                assert len(list(watch.scan())) == 1

    def test_what_may_not_be_finished_is_read_again_although_nothing_changed(
        self, store: Store, root: Path
    ) -> None:
        clock = Clock()
        watch = Watch(store, [WatchedFolder("opencode", root)], clock=clock)
        state = copy.deepcopy(opencode.SAMPLE[:11])
        del state[5]["data"]["time"]["completed"]
        opencode.write(root, state)
        list(watch.scan())
        assert 0 < watch.next_due() < 1_000
        assert list(watch.scan()) == []
        clock.now += watch.next_due()
        assert len(list(watch.scan())) == 1


class TestSeveralWatches:
    def test_of_one_folder_lose_nothing_to_each_other(self, root: Path) -> None:
        """Both read the new lines; the slower one was told that the session had moved, and did not try again."""
        with oakleaf_open(root.parent / "agent.db") as store, memory_store() as whole:
            folders = [WatchedFolder("copilot-cli", root)]
            watches = [Watch(store, folders) for _ in range(3)]
            errors: list[str | None] = []
            for count in range(4, len(SAMPLE) + 1):
                copilot_cli.write(root, SAMPLE[:count])
                with ThreadPoolExecutor(len(watches)) as threads:
                    for changes in threads.map(lambda watch: list(watch.scan()), watches):
                        errors += [result.error for change in changes for result in change.results]
            assert set(errors) == {None}
            list(whole.import_from("copilot-cli", str(root)))
            assert stored_counts(store) == stored_counts(whole)


class TestWhatWasRead:
    def test_is_remembered_so_that_a_restart_reads_only_what_changed(self, store: Store, root: Path) -> None:
        folders, state = [WatchedFolder("copilot-cli", root)], root.parent / "state/watch.json"
        copilot_cli.write(root, SAMPLE)
        assert len(list(Watch(store, folders, state).scan())) == 1
        assert list(Watch(store, folders, state).scan()) == []

    def test_is_read_again_if_the_store_does_not_have_it_or_the_state_is_damaged(
        self, store: Store, root: Path
    ) -> None:
        folders, state = [WatchedFolder("copilot-cli", root)], root.parent / "state/watch.json"
        copilot_cli.write(root, SAMPLE)
        list(Watch(store, folders, state).scan())
        with memory_store() as other:
            assert len(list(Watch(other, folders, state).scan())) == 1
        state.write_bytes(b"{")
        assert entries(Watch(store, folders, state).scan()) == [0]

    def test_is_read_again_if_a_backup_was_restored_that_has_less_of_it(self, root: Path) -> None:
        """A file that was complete was never read again, so its end was missing for good."""
        folders, state = [WatchedFolder("copilot-cli", root)], root.parent / "state/watch.json"
        copilot_cli.write(root, SAMPLE[:6])
        with oakleaf_open(root.parent / "now.db") as store:
            list(Watch(store, folders, state).scan())
            assert isinstance(store.backend, SqliteStore)
            store.backend.backup(root.parent / "backup.db")
            copilot_cli.write(root, SAMPLE)
            list(Watch(store, folders, state).scan())
            complete = stored_counts(store)
        with oakleaf_open(root.parent / "backup.db") as restored:
            list(Watch(restored, folders, state).scan())
            assert stored_counts(restored) == complete


class TestTheSourceOf:
    @pytest.mark.parametrize(
        ("tool", "file", "source"),
        [
            ("claude-code", "p/s.jsonl", "p/s.jsonl"),
            ("claude-code", "p/s/subagents/agent-1.jsonl", "p/s.jsonl"),
            ("claude-code", "p/notes.txt", None),
            ("qwen-code", "p/subagents/s/agent-1.jsonl", "p"),
            ("qwen-code", "p/chats/s.jsonl", "p/chats/s.jsonl"),
            ("gemini-cli", "h/chats/session-1.jsonl", "h/chats/session-1.jsonl"),
            ("gemini-cli", "h/chats/s/1.jsonl", "h"),
            ("gemini-cli", "h/logs.json", None),
            ("opencode", "opencode.db-wal", "opencode.db"),
            ("opencode", "storage/part/m/p.json", "."),
            ("droid", "p/s.settings.json", "p/s.jsonl"),
            ("cline", "tasks/1/ui_messages.json", "tasks/1/api_conversation_history.json"),
            ("cline", "sessions/s/agent.messages.json", "sessions/s"),
            ("codex", "2026/rollout-1.jsonl", "2026/rollout-1.jsonl"),
            ("codex", "2026/rollout-child.jsonl", "."),
        ],
    )
    def test_a_file_is_what_one_import_reads(
        self, root: Path, tool: str, file: str, source: str | None
    ) -> None:
        others = ("p/s.jsonl", "opencode.db", "tasks/1/api_conversation_history.json")
        for name in (*others, file):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("{}\n")
        (root / "2026").mkdir(exist_ok=True)
        (root / "2026/rollout-child.jsonl").write_text('{"payload": {"parent_thread_id": "x"}}\n')
        assert source_of(find_importer(tool), root, root / file) == (
            None if source is None else root / source
        )

    def test_a_sub_agent_that_appears_becomes_a_task(self, store: Store, root: Path) -> None:
        watch = Watch(store, [WatchedFolder("qwen-code", root)])
        qwen_code.write(root, qwen_code.SAMPLE[:-2])
        list(watch.scan())
        qwen_code.write(root, qwen_code.SAMPLE)
        list(watch.scan())
        assert store.backend.session(f"qwen-code-{qwen_code.SESSION}-agent-a").relation == "task"


class TestTheSignal:
    @pytest.mark.parametrize("use_inotify", [True, False])
    def test_wakes_when_a_file_in_a_watched_folder_changes(self, root: Path, use_inotify: bool) -> None:
        waiting = ChangeSignal(use_inotify=use_inotify)
        assert waiting.watch([root]) == waiting.is_immediate
        assert not waiting.watch([root])
        (root / "a").write_text("x")
        started = time.monotonic()
        waiting.wait(5)
        assert time.monotonic() - started < 3
        waiting.close()

    def test_watches_a_folder_that_was_replaced(self, root: Path) -> None:
        """It was taken for the one that is gone, and changes in it were seen after half a minute."""
        waiting = ChangeSignal()
        waiting.watch([root])
        root.rename(root.with_name("old"))
        root.mkdir()
        waiting.wait(5)
        assert waiting.watch([root]) == waiting.is_immediate
        (root / "a").write_text("x")
        started = time.monotonic()
        waiting.wait(5)
        assert time.monotonic() - started < 3
        waiting.close()


class Follower:
    """A real `oakleaf import --watch --json`, and the lines it has printed."""

    def __init__(self, tmp_path: Path, *arguments: str) -> None:
        self.output = tmp_path / "watch.out"
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*OAKLEAF, "--store", str(tmp_path / "s.db"), "import", "--watch", "--json", *arguments],
                stdout=output,
                stderr=subprocess.PIPE,
                env=env,
            )

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_true():
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code


class TestTheCommand:
    def test_follows_a_growing_file_is_killed_and_goes_on_and_ends_cleanly(self, tmp_path: Path) -> None:
        root = tmp_path / "in"
        path = root / SESSION / "events.jsonl"
        path.parent.mkdir(parents=True)
        lines = [json.dumps(record) + "\n" for record in SAMPLE]

        def append(text: str) -> None:
            with path.open("a") as file:
                file.write(text)

        follower = Follower(tmp_path, "copilot-cli", str(root))
        append("".join(lines[:5]))
        follower.wait_until(lambda: len(follower.lines()) >= 1)
        for line in lines[5:11]:
            append(line)
        append(lines[11][:40])  # half a line
        follower.wait_until(lambda: sum(line["entries"] for line in follower.lines()) >= 8)
        assert follower.end(signal.SIGKILL) == -signal.SIGKILL
        append(lines[11][40:] + "".join(lines[12:]))
        follower = Follower(tmp_path, "copilot-cli", str(root))
        with memory_store() as whole:
            list(whole.import_from("copilot-cli", str(root)))
            expected = stored_counts(whole)
        follower.wait_until(lambda: sum(line["entries"] for line in follower.lines()) >= 16)
        assert follower.end(signal.SIGINT) == 0
        assert {line["tool"] for line in follower.lines()} == {"copilot-cli"}
        from oakleaf import open as open_store

        with open_store(str(tmp_path / "s.db")) as stored:
            assert stored_counts(stored) == expected

    def test_refuses_a_path_without_a_tool_and_a_tool_without_sessions(self, tmp_path: Path) -> None:
        cases = {
            (str(tmp_path),): "name one tool and one path",
            ("codex",): "nothing at its default location",
            ("codex", str(tmp_path / "x")): "no such file",
            ("nosuch",): "no importer for sessions of 'nosuch'; use one of adk, ",
            ("codex", "nosuch"): "no importer for sessions of 'nosuch'",
            (): "no tool has sessions",
        }
        for arguments, reason in cases.items():
            result = oakleaf(
                "import", "--watch", *arguments, home=tmp_path, store=tmp_path / "s.db", HOME=str(tmp_path)
            )
            assert (result.code, reason in result.err) == (2, True), result.err
        assert not (tmp_path / "s.db").exists()


class TestSecrets:
    @pytest.mark.parametrize("source", [claude_code.SOURCE, codex.SOURCE], ids=lambda source: source.tool)
    def test_that_arrive_in_two_halves_are_masked(self, source: ToolSource, root: Path) -> None:
        path = root.parent / "s.db"
        source.write(root.parent / "whole", with_secrets(source.sample))
        bodies = {
            file.relative_to(root.parent / "whole"): file.read_bytes()
            for file in (root.parent / "whole").rglob("*.jsonl")
        }
        reports: list[SourceChange] = []
        with oakleaf_open(path, secrets={"TOKEN": SECRETS[0]}) as store:
            watch = Watch(store, [WatchedFolder(source.tool, root)], root.parent / "s.db-state")
            for name, body in bodies.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                ends = [found.start() + 7 for found in re.finditer(SECRETS[0].encode(), body)][::3]
                for end in (*ends, len(body)):
                    (root / name).write_bytes(body[:end])
                    os.utime(root / name, (end, end))  # quiet: what is there is imported
                    reports += watch.scan()
        assert_masked(path, reports)


def test_a_broken_reader_is_named_and_the_others_are_watched(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.install("bomb", {"importers": {"boom": "bomb:IMPORTER"}}, {"bomb.py": "1 / 0"})
    (tmp_path / ".codex/sessions").mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    done = site.python(
        f"""
        import os

        os.environ["HOME"] = {str(tmp_path)!r}
        os.chdir(os.environ["HOME"])
        from oakleaf_importers.commands.watch import watched_folders

        print(*(folder.tool for folder in watched_folders(None, ())))
        """
    )
    assert done.out == "codex\n", done.err
    assert "boom is not watched: the importer 'boom' of bomb 1.0 cannot be used" in done.err
