"""Rewinding files: what the workspace tools wrote is restored, and what others changed is left alone."""

from __future__ import annotations

import io
import os
import random
import resource
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import oakleaf
import oakleaf_workspace
from oakleaf import ScriptedModel, Session, ToolCall, Workspace, assistant, tool_result, user
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import ToolCallsStarted
from oakleaf.core.redact import Redactor
from oakleaf.errors import InvalidOperation
from oakleaf.ext import read
from oakleaf.log.runtime import real_runtime
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf_workspace import FilesChanged, file_rewind
from oakleaf_workspace.file_changes import FileChange, to_details, version


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def run(session: Session, folder: Path, *calls: tuple[str, dict[str, Any]]) -> int:
    """Let a model make these calls, one per step; return the seq before its input."""
    before = session.leaf.seq
    answers = [assistant(ToolCall(f"c{n}", name, arguments)) for n, (name, arguments) in enumerate(calls)]
    tools = oakleaf_workspace.tools(session, Workspace(working_dir=str(folder)))
    session.send_sync("go", model=ScriptedModel([*answers, assistant("done")]), tools=tools)
    return before


def write(path: str, text: str) -> tuple[str, dict[str, Any]]:
    return "write_file", {"path": path, "text": text}


def edit(path: str, old: str, new: str) -> tuple[str, dict[str, Any]]:
    return "edit_file", {"path": path, "old": old, "new": new}


def kinds(session: Session, to: int, **how: Any) -> dict[str, str]:
    return {action.path: action.kind for action in oakleaf_workspace.plan_rewind(session, to, **how).actions}


class TestRestore:
    def test_changed_files_are_restored_and_new_ones_deleted(self, store: Store, folder: Path) -> None:
        (folder / "a.txt").write_text("one")
        session = store.start()
        start = run(
            session, folder, write("a.txt", "two"), edit("a.txt", "two", "three"), write("sub/b.txt", "new")
        )
        assert kinds(session, start) == {"a.txt": "restore", "sub/b.txt": "delete"}
        oakleaf_workspace.rewind(session, start)
        assert (folder / "a.txt").read_text() == "one"
        assert not (folder / "sub/b.txt").exists()
        assert session.leaf.seq == start
        assert session.verify() == []

    def test_redo_brings_them_forward(self, store: Store, folder: Path) -> None:
        (folder / "a.txt").write_text("one")
        session = store.start()
        start = run(
            session, folder, write("a.txt", "two"), edit("a.txt", "two", "three"), write("b.txt", "new")
        )
        end = session.leaf
        oakleaf_workspace.rewind(session, start)
        plan = oakleaf_workspace.plan_redo(session)
        assert {each.path: each.kind for each in plan.actions} == {"a.txt": "restore", "b.txt": "recreate"}
        assert oakleaf_workspace.redo(session) == end
        assert ((folder / "a.txt").read_text(), (folder / "b.txt").read_text()) == ("three", "new")
        oakleaf_workspace.rewind(session, start)
        assert ((folder / "a.txt").read_text(), (folder / "b.txt").exists()) == ("one", False)

    def test_redo_refuses_what_was_changed_since_the_rewind(self, store: Store, folder: Path) -> None:
        (folder / "a.txt").write_text("one")
        session = store.start()
        start = run(session, folder, write("a.txt", "two"), write("b.txt", "new"))
        oakleaf_workspace.rewind(session, start)
        (folder / "a.txt").write_text("mine")
        (folder / "b.txt").write_text("mine, too")
        with pytest.raises(FilesChanged, match="since the rewind"):
            oakleaf_workspace.redo(session)
        assert session.leaf.seq == start
        oakleaf_workspace.redo(session, skip_changed=True)
        assert ((folder / "a.txt").read_text(), (folder / "b.txt").read_text()) == ("mine", "mine, too")
        assert session.leaf.seq > start

    def test_it_stops_in_between(self, store: Store, folder: Path) -> None:
        session = store.start()
        run(session, folder, write("a.txt", "one"))
        middle = run(session, folder, write("a.txt", "two"))
        oakleaf_workspace.rewind(session, middle, str(folder))
        assert (folder / "a.txt").read_text() == "one"

    def test_bytes_permissions_and_size_are_kept(self, store: Store, folder: Path) -> None:
        data = random.Random(1).randbytes(3_000_000)
        (folder / "a.bin").write_bytes(data)
        (folder / "a.bin").chmod(0o750)
        (folder / "empty").write_bytes(b"")
        session = store.start()
        start = run(session, folder, write("a.bin", "text"), write("empty", "text"))
        (folder / "a.bin").unlink()
        assert kinds(session, start) == {"a.bin": "recreate", "empty": "restore"}
        oakleaf_workspace.rewind(session, start)
        assert (folder / "a.bin").read_bytes() == data
        assert (folder / "a.bin").stat().st_mode & 0o777 == 0o750
        assert (folder / "empty").read_bytes() == b""

    def test_nothing_happens_without_files(self, folder: Path) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start()
            start = run(session, folder, write("a.txt", "one"))
            session.rewind(start)
        assert (folder / "a.txt").read_text() == "one"

    def test_a_fork_restores_what_its_path_says(self, store: Store, folder: Path) -> None:
        session = store.start()
        start = run(session, folder, write("a.txt", "one"))
        fork = session.fork()
        middle = run(fork, folder, write("a.txt", "two"))
        # The source does not know of "two": to it, the file was changed elsewhere.
        assert kinds(session, start) == {"a.txt": "refused"}
        oakleaf_workspace.rewind(fork, middle)
        assert (folder / "a.txt").read_text() == "one"
        oakleaf_workspace.rewind(fork, start)
        assert not (folder / "a.txt").exists()


class TestRefusal:
    def test_a_file_that_was_changed_since_is_not_touched(self, folder: Path) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start()
            start = run(session, folder, write("a.txt", "one"), write("b.txt", "one"))
            leaf = session.leaf
            (folder / "a.txt").write_text("mine")
            assert kinds(session, start) == {"a.txt": "refused", "b.txt": "delete"}
            with pytest.raises(FilesChanged, match=r"a\.txt \(it was changed elsewhere since entry \d+\)"):
                oakleaf_workspace.rewind(session, start)
            assert (folder / "b.txt").exists()
            assert session.leaf == leaf
            oakleaf_workspace.rewind(session, start, skip_changed=True)
        assert (folder / "a.txt").read_text() == "mine"
        assert not (folder / "b.txt").exists()

    def test_a_change_in_between_is_not_thrown_away(self, folder: Path) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start()
            start = run(session, folder, write("a.txt", "one"))
            (folder / "a.txt").write_text("mine")
            middle = run(session, folder, write("a.txt", "two"))
            assert kinds(session, start) == {"a.txt": "refused"}
            oakleaf_workspace.rewind(session, middle)
        assert (folder / "a.txt").read_text() == "mine"

    def test_links_are_not_followed(self, folder: Path, tmp_path: Path) -> None:
        other = tmp_path / "other.txt"
        with oakleaf.open("memory:") as store:
            session = store.start()
            start = run(session, folder, write("a.txt", "one"), write("sub/b.txt", "one"))
            other.write_text("one")
            (folder / "a.txt").unlink()
            (folder / "a.txt").symlink_to(other)
            (folder / "sub").rename(tmp_path / "sub")
            (folder / "sub").symlink_to(tmp_path / "sub")
            assert set(kinds(session, start).values()) == {"refused"}
            oakleaf_workspace.rewind(session, start, skip_changed=True)
        assert other.read_text() == "one"
        assert (tmp_path / "sub/b.txt").exists()

    def test_a_forged_path_does_not_lead_out(self, folder: Path, tmp_path: Path) -> None:
        """Details can come from anywhere, as those of an imported bundle."""
        (tmp_path / "victim").write_text("x")
        after = {"hash": file_rewind.digest(b"x"), "size": 1, "mode": 0o644}
        changes = [
            {"root": str(folder), "path": path, "before": None, "after": after}
            for path in ("../victim", str(tmp_path / "victim"), ".git/config", "")
        ]
        with oakleaf.open("memory:") as store:
            session = store.start()
            call = assistant(ToolCall("c1", "write_file", {}))
            result = oakleaf.tool_result("c1", "ok", details={"files": [*changes, {"root": 1}, "junk"]})
            session.append([oakleaf.user("go"), call, result, assistant("done")])
            plan = oakleaf_workspace.plan_rewind(session, 0)
            assert {action.kind for action in plan.changes} == set()
            (folder / ".git").mkdir()
            (folder / ".git/config").write_text("x")
            with pytest.raises((FilesChanged, oakleaf.errors.OutOfScope)):
                oakleaf_workspace.rewind(session, 0, skip_changed=False)
        assert (tmp_path / "victim").exists()
        assert (folder / ".git/config").exists()

    def test_only_the_named_folder_is_written_to(self, folder: Path, tmp_path: Path) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start()
            start = run(session, folder, write("a.txt", "one"))
            plan = oakleaf_workspace.plan_rewind(session, start, tmp_path)
        assert [action.reason for action in plan.refused] == [f"it is not in {tmp_path}"]

    def test_a_secret_is_not_kept_and_so_not_restored(self, folder: Path) -> None:
        secret = "hunter2hunter2"
        (folder / ".env").write_text(f"TOKEN={secret}\n")
        backend = MemoryStore()
        with Store(backend, real_runtime(Redactor({"TOKEN": secret}))) as store:
            session = store.start()
            start = run(session, folder, write(".env", "TOKEN=none\n"))
            (action,) = oakleaf_workspace.plan_rewind(session, start).refused
            assert "it holds a secret" in action.reason
            assert all(secret.encode() not in record.blob.data for record in backend.tables.blobs.values())

    def test_a_replay_restores_nothing(self, folder: Path) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start()
            run(session, folder, write("a.txt", "one"))
            replay = store.session(session.replay_sync().replay)
            with pytest.raises(InvalidOperation, match="a replay wrote no files"):
                oakleaf_workspace.plan_rewind(replay, 0)


class TestCrash:
    def test_a_file_that_cannot_be_written_is_named(self, folder: Path) -> None:
        """The error named the temporary file, in no folder."""
        (folder / "a.txt").write_text("one " * 1_000)
        with oakleaf.open("memory:") as store:
            session = store.start()
            start = run(session, folder, write("a.txt", "two"))
            leaf, limits = session.leaf, resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
            try:
                with pytest.raises(OSError, match="File too large") as raised:
                    oakleaf_workspace.rewind(session, start)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert (raised.value.filename, session.leaf) == (str(folder / "a.txt"), leaf)
            oakleaf_workspace.rewind(session, start)
        assert (folder / "a.txt").read_text() == "one " * 1_000

    def test_a_rewind_that_broke_off_continues(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in "abc":
            (folder / name).write_text("one")
        with oakleaf.open("memory:") as store:
            session = store.start()
            start = run(session, folder, *(write(name, "two") for name in "abc"))
            leaf = session.leaf
            rename, renames = os.rename, []

            def die(*args: Any, **how: Any) -> None:
                renames.append(args)
                if len(renames) == 2:
                    raise KeyboardInterrupt
                rename(*args, **how)

            monkeypatch.setattr(os, "rename", die)
            with pytest.raises(KeyboardInterrupt):
                oakleaf_workspace.rewind(session, start)
            monkeypatch.undo()
            texts = sorted((folder / name).read_text() for name in "abc")
            assert (texts, session.leaf) == (["one", "two", "two"], leaf)
            assert sorted(os.listdir(folder)) == ["a", "b", "c"]
            oakleaf_workspace.rewind(session, start)
        assert {(folder / name).read_text() for name in "abc"} == {"one"}

    def test_a_write_that_was_interrupted_and_repeated_does_not_invent_what_was_before(
        self, folder: Path
    ) -> None:
        (folder / "a.txt").write_text("two")  # as the first try left it
        with oakleaf.open("memory:") as store:
            session = store.start()
            call = assistant(ToolCall("c1", "write_file", {"path": "a.txt", "text": "two"}))
            started = ToolCallsStarted(2, (0,))
            session.log.append([Draft(oakleaf.user("go")), Draft(call)], facts=[started])
            tools = oakleaf_workspace.tools(session, Workspace(working_dir=str(folder)))
            session.resume_sync(model=ScriptedModel([assistant("done")]), tools=tools)
            (action,) = oakleaf_workspace.plan_rewind(session, 0).refused
        assert "was lost when the call was interrupted" in action.reason
        assert (folder / "a.txt").read_text() == "two"


class TestBlobs:
    """The bytes live and die with the entries that name them."""

    def test_they_are_collected_exported_and_purged_like_media(
        self, store: Store, folder: Path, tmp_path: Path
    ) -> None:
        (folder / "a.txt").write_text("one")
        session = store.start()
        start = run(session, folder, write("a.txt", "two"))
        assert store.gc(grace=0) == 0
        digests = [
            version.blob_hash
            for _, change in file_rewind.file_changes(session.path())
            for version in (change.before, change.after)
            if version is not None
        ]
        assert [read(session).blob(digest) for digest in digests] == [b"one", b"two"]
        session.export(tmp_path / "s.oakleaf", blobs=True, redact=False)
        with oakleaf.open("memory:") as other:
            copy = other.session(other.import_bundle(tmp_path / "s.oakleaf").session_id)
            assert copy.verify() == []
            assert kinds(copy, start, folder=folder, accept_imported=True) == {"a.txt": "restore"}
        store.delete(session.session_id)
        store.purge(session.session_id)
        store.gc(grace=0)
        assert [store.blob(digest) for digest in digests] == [None, None]


def forged(session: Session, root: object, path: str, text: str = "evil", mode: int = 0o755) -> None:
    """Append a result that claims a file was written: before it held `text`, after it there was nothing to find."""
    before, blob = version(text.encode(), mode, session.log.runtime.redactor)
    after, _ = version(b"gone", 0o644, session.log.runtime.redactor)
    assert blob is not None
    details = to_details([FileChange(str(root), path, before, after)])
    call = assistant(ToolCall("c", "write_file"))
    session.append([user("q"), call])
    result = tool_result("c", "ok", details=details)
    session.log.append([Draft(result, blobs=(blob,))])


def taken_in(session: Session, store: Store) -> Session:
    bundle = io.BytesIO()
    session.export(bundle, blobs=True)
    bundle.seek(0)
    return store.session(store.import_bundle(bundle).session_id)


@pytest.mark.attack
class TestImports:
    """A bundle's paths and contents are a stranger's."""

    @pytest.fixture
    def elsewhere(self) -> Session:
        return Store(MemoryStore()).start()

    def refusal(self, session: Session, **how: Any) -> str:
        (action,) = oakleaf_workspace.plan_rewind(session, 0, **how).actions
        assert (action.kind, action.is_imported) == ("refused", True)
        return action.reason

    def test_a_bundle_cannot_name_the_folder_that_is_written_to(
        self, store: Store, elsewhere: Session, folder: Path
    ) -> None:
        forged(elsewhere, folder, "start.sh")
        session = taken_in(elsewhere, store)
        for how in ({}, {"accept_imported": True}, {"folder": folder}):
            assert "came with an import" in self.refusal(session, **how)
        with pytest.raises(FilesChanged, match="came with an import"):
            oakleaf_workspace.rewind(session, 0)
        assert not (folder / "start.sh").exists()

    def test_a_fork_of_an_import_and_a_session_that_went_on_here_refuse_it_too(
        self, store: Store, elsewhere: Session, folder: Path
    ) -> None:
        forged(elsewhere, folder, "start.sh")
        session = taken_in(elsewhere, store)
        run(session, folder, write("ours.txt", "new"))
        fork = session.fork()
        for one in (session, fork):
            plan = {
                action.path: (action.kind, action.is_imported)
                for action in oakleaf_workspace.plan_rewind(one, 0).actions
            }
            assert plan == {"start.sh": ("refused", True), "ours.txt": ("delete", False)}

    def test_a_file_that_both_wrote_is_the_imports(
        self, store: Store, elsewhere: Session, folder: Path
    ) -> None:
        forged(elsewhere, folder, "both.txt")
        session = taken_in(elsewhere, store)
        (folder / "both.txt").write_text("gone")
        run(session, folder, write("both.txt", "ours"))
        assert "came with an import" in self.refusal(session)

    def test_accepted_it_is_restored_in_the_folder_that_is_named_and_is_no_program(
        self, store: Store, elsewhere: Session, folder: Path
    ) -> None:
        forged(elsewhere, folder, "start.sh")
        session = taken_in(elsewhere, store)
        oakleaf_workspace.rewind(session, 0, folder, accept_imported=True)
        assert (folder / "start.sh").read_text() == "evil"
        assert not os.access(folder / "start.sh", os.X_OK)

    def test_a_file_keeps_its_own_mode(self, store: Store, elsewhere: Session, folder: Path) -> None:
        forged(elsewhere, folder, "a.txt", mode=0o777)
        (folder / "a.txt").write_text("gone")
        (folder / "a.txt").chmod(0o600)
        oakleaf_workspace.rewind(taken_in(elsewhere, store), 0, folder, accept_imported=True)
        assert (folder / "a.txt").stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize(
        "path",
        [
            "../out.txt",
            "/etc/out.txt",
            "sub/../../out.txt",
            ".git/hooks/pre-commit",
            ".GIT/config",
            "~/x",
            "a\0b",
        ],
    )
    def test_a_path_that_leads_out_of_it_or_to_programs_is_named_and_refused(
        self, store: Store, elsewhere: Session, folder: Path, path: str
    ) -> None:
        forged(elsewhere, folder, path)
        session = taken_in(elsewhere, store)
        assert self.refusal(session, folder=folder, accept_imported=True)
        with pytest.raises(FilesChanged):
            oakleaf_workspace.rewind(session, 0, folder, accept_imported=True)
        oakleaf_workspace.rewind(session, 0, folder, accept_imported=True, skip_changed=True)
        assert list(folder.iterdir()) == []
        assert not list(folder.parent.glob("out*"))

    @pytest.mark.parametrize("root", ["/", "/etc", "/proc/self/cwd", "relative", "a\0b", ""])
    def test_another_folder_is_refused_without_looking_at_it(
        self, store: Store, elsewhere: Session, folder: Path, root: str
    ) -> None:
        forged(elsewhere, root, "out.txt")
        session = taken_in(elsewhere, store)
        assert "written elsewhere" in self.refusal(session, folder=folder, accept_imported=True)

    def test_a_link_is_not_followed_and_other_names_of_a_file_keep_their_content(
        self, store: Store, elsewhere: Session, folder: Path
    ) -> None:
        outside = folder.parent / "outside"
        outside.mkdir()
        (outside / "kept.txt").write_text("gone")
        (folder / "linked").symlink_to(outside)
        (folder / "hard.txt").hardlink_to(outside / "kept.txt")
        forged(elsewhere, folder, "linked/kept.txt")
        other = Store(MemoryStore()).start()
        forged(other, folder, "hard.txt")
        session = taken_in(elsewhere, store)
        assert "symbolic link" in self.refusal(session, folder=folder, accept_imported=True)
        oakleaf_workspace.rewind(taken_in(other, store), 0, folder, accept_imported=True)
        assert ((folder / "hard.txt").read_text(), (outside / "kept.txt").read_text()) == ("evil", "gone")

    def test_a_redo_does_not_write_it(self, store: Store, elsewhere: Session, folder: Path) -> None:
        forged(elsewhere, folder, "start.sh")
        session = taken_in(elsewhere, store)
        (folder / "start.sh").write_text("evil")
        session.rewind(0)
        with pytest.raises(FilesChanged, match="came with an import"):
            oakleaf_workspace.redo(session)
        assert (folder / "start.sh").read_text() == "evil"

    def test_a_copy_between_two_stores_of_one_operator_is_restored_as_before(
        self, store: Store, folder: Path
    ) -> None:
        there = Store(MemoryStore())
        session = there.start()
        start = run(session, folder, write("a.txt", "new"))
        copy = there.copy(session, store)
        oakleaf_workspace.rewind(copy, start)
        assert not (folder / "a.txt").exists()


@pytest.mark.parametrize("text", ["{}", '{{"key": "{}"}}', "https://x.example/?key={}"])
@pytest.mark.parametrize("encode", [str, quote, lambda text: b64encode(text.encode()).decode()])
def test_a_file_that_holds_an_encoded_secret_is_not_kept(text: str, encode: Callable[[str], str]) -> None:
    secret = "correct horse/battery+staple"
    saved, blob = version(text.format(encode(secret)).encode(), 0o644, Redactor({"PW": secret}))
    assert (saved.not_kept, blob) == ("it holds a secret", None)
