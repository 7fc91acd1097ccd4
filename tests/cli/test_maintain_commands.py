"""The verbs that take care: rm, restore, purge, verify, doctor, backup, migrate."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf.core.facts import Titled
from oakleaf.stores.sqlite.file import FORMAT
from support.claude_transcripts import shop_transcript
from support.foreign_plugins import Site
from support.terminal import OAKLEAF, CommandResult, Terminal, oakleaf


def list_ids(store_path: Path, *flags: str) -> set[str]:
    return {row["id"] for row in oakleaf("ls", "--json", "is:all", *flags, store=store_path).json["sessions"]}


def drive(store: library.Store, name: str) -> None:
    """As this process would while it runs a turn of it."""
    log = store.session(name).log
    now = log.runtime.now()
    store.backend.lease(name, f"{log.runtime.holder()}#x", now + 60_000_000, now)
    log.record(Titled(), row={"status": "running"})


class TestTrash:
    def test_rm_shows_the_plan_and_wants_yes(self, store_path: Path) -> None:
        done = oakleaf("rm", "ses_case", store=store_path)
        assert done.code == 1
        assert "ses_case  Order 41  (2 turns) moves to the trash" in done.err
        assert "--yes" in done.err
        assert "ses_case" in list_ids(store_path)

    def test_the_plan_calls_a_session_without_a_title_by_its_first_input(self, store_path: Path) -> None:
        with library.open(store_path) as store:
            store.start("support", session_id="ses_untitled").append([library.user("Where is order 9?")])
        done = oakleaf("rm", "ses_untitled", store=store_path)
        assert "ses_untitled  Where is order 9?  (1 turn) moves to the trash" in done.err

    def test_trash_restore_and_purge(self, store_path: Path) -> None:
        assert oakleaf("rm", "ses_case", "--yes", "--json", store=store_path).json["trashed"] == ["ses_case"]
        assert list_ids(store_path, "is:trashed") == {"ses_case"}
        assert "in the trash" in oakleaf("show", "ses_case", store=store_path).out
        for command in (
            ("fork", "ses_case"),
            ("replay", "ses_case"),
            ("rm", "ses_case"),
            ("redo", "ses_case"),
        ):
            done = oakleaf(*command, store=store_path)
            assert (done.code, "restore ses_case brings it back" in done.err) == (2, True), done.err
        assert oakleaf("restore", "ses_case", store=store_path).code == 0
        present = oakleaf("purge", "ses_case", "--yes", store=store_path)
        assert (present.code, "oakleaf rm ses_case moves it there" in present.err) == (2, True)
        assert oakleaf("rm", "ses_case", "-y", store=store_path).code == 0
        planned = oakleaf("purge", "ses_case", store=store_path)
        assert planned.code == 1
        assert "MB) is rewritten, so that no byte is left; other writers wait meanwhile" in planned.err
        done = oakleaf("purge", "ses_case", "--yes", store=store_path)
        assert done.code == 0
        assert "entries remain until their forks are purged" in done.out
        assert "ses_case" not in list_ids(store_path) | list_ids(store_path, "is:trashed")
        assert b"Thank you!" not in store_path.read_bytes()

    def test_the_plan_of_a_purge_names_the_forks_and_replays_that_repeat_parts_of_it(
        self, store_path: Path
    ) -> None:
        with library.open(store_path) as store:
            replay = asyncio.run(store.session("ses_case").replay(mode="strict")).replay
        assert oakleaf("rm", "ses_case", "--yes", store=store_path).code == 0
        planned = oakleaf("purge", "ses_case", store=store_path)
        assert planned.code == 1
        assert f"{replay}  Order 41  (replay) stays and repeats parts of it" in planned.err
        assert "(fork) stays and repeats parts of it" in planned.err
        assert "--with-forks deletes forks and replays too" in planned.err
        whole = oakleaf("purge", "ses_case", "--with-forks", store=store_path)
        assert "stays" not in whole.err
        assert f"{replay}  Order 41  (2 turns) is deleted permanently" in whole.err
        old = oakleaf("purge", "--trashed-for", "0s", store=store_path)
        assert f"{replay}  Order 41  (replay) stays" in old.err
        done = oakleaf("purge", "ses_case", "--yes", "--json", store=store_path).json
        assert replay in done["surviving"]

    def test_the_plan_of_a_purge_says_that_an_import_brings_back_what_the_source_still_has(
        self, tmp_path: Path
    ) -> None:
        """It came back with the next import, and nothing had said that it would."""
        projects = tmp_path / ".claude" / "projects"
        shop_transcript().write(projects / "-home-ann" / "s.jsonl")

        def run(*arguments: str) -> CommandResult:
            return oakleaf(*arguments, store=tmp_path / "s.db", HOME=str(tmp_path))

        session_id = run("import", "--from", "claude-code", "--json").json["imported"][0]["session_id"]
        run("rm", session_id, "--yes")
        assert "0 sessions imported" in run("import", "--from", "claude-code").err
        planned = run("purge", session_id)
        assert "1 session imported from claude-code" in planned.err
        assert str(projects) in planned.err
        assert run("purge", "--trashed-for", "0s").err.count(str(projects)) == 1
        done = run("purge", session_id, "--yes", "--json").json
        assert done["imported_from"] == {session_id: "claude-code"}
        assert "1 session imported" in run("import", "--from", "claude-code").err

    def test_the_plan_of_a_purge_names_the_sessions_of_plugins_that_quote_it(
        self, store_path: Path, tmp_path: Path
    ) -> None:
        with library.open(store_path) as store:
            store.delete("ses_case")
        site = Site(tmp_path / "site")
        quoting = (
            'def quoting_sessions(store, session_ids):\n    yield store.session("ses_other").row, "digest"\n'
        )
        files = {"digests/__init__.py": "", "digests/plugin.py": quoting, "broken/__init__.py": ""}
        site.install("digests", {"verbs": {"digest": "digests:digest"}}, files)
        files = {"broken/__init__.py": "", "broken/plugin.py": "1 / 0"}
        site.install("broken", {"verbs": {"break": "broken:break"}}, files)
        files = {
            "nonsense/__init__.py": "",
            "nonsense/plugin.py": "def quoting_sessions(*given):\n    return 7\n",
        }
        site.install("nonsense", {"verbs": {"babble": "nonsense:babble"}}, files)
        done = site.run("--store", str(store_path), "purge", "ses_case", "--yes")
        assert done.code == 0
        assert "(digest) stays and repeats parts of it" in done.err
        assert "broken 1.0 cannot say which of its sessions repeat parts of it" in done.err
        assert "nonsense 1.0 cannot say which of its sessions repeat parts of it" in done.err

    def test_a_person_is_asked_and_may_say_no(self, store_path: Path) -> None:
        with Terminal("rm", "ses_case", store=store_path) as terminal:
            terminal.wait_for("Move to the trash?")
            terminal.type("n\n")
            assert terminal.wait() == 1
        assert "ses_case" in list_ids(store_path)
        with Terminal("rm", "ses_case", store=store_path) as terminal:
            terminal.wait_for("Move to the trash?")
            terminal.type("y\n")
            assert terminal.wait() == 0
        assert "ses_case" not in list_ids(store_path)

    def test_ctrl_c_at_the_question_does_nothing(self, store_path: Path) -> None:
        with Terminal("rm", "ses_case", store=store_path) as terminal:
            terminal.wait_for("Move to the trash?")
            terminal.interrupt("\ninterrupted")
            assert terminal.wait() == 130
        assert "ses_case" in list_ids(store_path)

    def test_what_is_not_in_the_trash_is_put_there_by_the_verb_that_is_named(self, store_path: Path) -> None:
        done = oakleaf("purge", "latest", "--yes", store=store_path)
        assert (done.code, "oakleaf rm REFERENCE" in done.err) == (2, True)

    @pytest.mark.parametrize("driven", ["ses_case", "ses_t"])
    def test_what_is_being_driven_is_not_put_away(self, store_path: Path, driven: str) -> None:
        with library.open(store_path) as store:
            store.start_task(store.session("ses_case"), session_id="ses_t")
            drive(store, driven)
            done = oakleaf("rm", "ses_other", "ses_case", "--yes", store=store_path)
        assert (done.code, f"oakleaf tail -f {driven}" in done.err) == (3, True)
        assert list_ids(store_path) >= {"ses_case", "ses_other"}

    def test_a_policy_leaves_what_is_being_driven_alone(self, store_path: Path) -> None:
        with library.open(store_path) as store:
            drive(store, "ses_case")
            done = oakleaf("purge", "--idle-for", "0s", "--yes", store=store_path)
        assert (done.code, "ses_case" in list_ids(store_path)) == (0, True)

    def test_children_are_in_the_plan(self, tmp_path: Path) -> None:
        place = tmp_path / "s.db"
        with library.open(place) as store:
            store.start_task(store.start(session_id="ses_p"), session_id="ses_t")
        assert "ses_t" in oakleaf("rm", "ses_p", store=place).err
        assert oakleaf("rm", "ses_p", "-y", store=place).code == 0
        assert list_ids(place) == set()


class TestPolicy:
    def test_nothing_is_deleted_by_age_without_a_policy(self, store_path: Path) -> None:
        before = list_ids(store_path)
        done = oakleaf("purge", "--yes", store=store_path)
        assert done.code == 0
        assert "nothing to do" in done.err
        assert list_ids(store_path) == before

    def test_a_policy_is_planned_then_done(self, store_path: Path) -> None:
        oakleaf("rm", "ses_other", "-y", store=store_path)
        planned = oakleaf("purge", "--trashed-for", "0s", "--idle-for", "0s", store=store_path)
        assert planned.code == 1
        assert "ses_other" in planned.err
        assert list_ids(store_path, "is:trashed") == {"ses_other"}
        done = oakleaf(
            "purge", "--trashed-for", "0s", "--idle-for", "0s", "--yes", "--json", store=store_path
        ).json
        assert done["purged"] == ["ses_other"]
        assert "ses_case" in done["trashed"]
        assert list_ids(store_path) == set()

    def test_loose_blobs_are_counted_and_dropped(self, store_path: Path) -> None:
        with library.open(store_path) as store:
            store.put_blob(b"x" * 1000, "text/plain")
        with sqlite3.connect(store_path) as raw:
            raw.execute("update blob set at = 0")
        assert "1 unreferenced attachment (1,000 bytes)" in oakleaf("purge", store=store_path).err
        assert oakleaf("purge", "--yes", "--json", store=store_path).json["attachments"] == 1


class TestVerify:
    def test_a_sound_store_verifies(self, store_path: Path) -> None:
        assert oakleaf("verify", "--json", store=store_path).json == {
            "schema_version": 1,
            "sessions": 3,
            "problems": [],
            "seal": None,
        }
        assert oakleaf("verify", "ses_case", store=store_path).code == 0

    def test_a_part_can_be_checked_in_bounded_time(self, store_path: Path) -> None:
        assert oakleaf("verify", "--sample", "2", "--json", store=store_path).json["sessions"] == 2
        assert oakleaf("verify", "--sample", "9", "--json", store=store_path).json["sessions"] == 3
        for since, sessions in (("2020-01-01", 3), ("2099-01-01", 0)):
            assert (
                oakleaf("verify", "--since", since, "--json", store=store_path).json["sessions"] == sessions
            )
        assert oakleaf("verify", "ses_case", "--sample", "2", store=store_path).code == 2

    def test_an_altered_entry_is_named(self, store_path: Path) -> None:
        with sqlite3.connect(store_path) as raw:
            raw.execute(
                "update entry set body = replace(cast(body as text), 'order 41', 'order 42') where id & 7 = 3"
            )
        done = oakleaf("verify", store=store_path)
        assert done.code == 1
        assert "ses_case" in done.out
        assert oakleaf("verify", "--json", store=store_path).json["problems"]


class TestDoctor:
    def test_a_healthy_store(self, store_path: Path) -> None:
        report = oakleaf("doctor", "--json", store=store_path).json
        assert report["healthy"] is True
        written = f"format {FORMAT // 1_000}.{FORMAT % 1_000}"
        assert any(written in finding["message"] for finding in report["findings"])

    def test_what_is_no_store_is_a_problem(self, store_path: Path, tmp_path: Path) -> None:
        assert oakleaf("doctor", store=tmp_path / "none.db").code == 1
        nowhere = oakleaf("doctor", store=tmp_path / "no" / "none.db")
        assert (nowhere.code, f"no folder {tmp_path / 'no'}" in nowhere.out) == (1, True)
        (tmp_path / "notes.txt").write_text("my notes\n" * 200)
        done = oakleaf("doctor", store=tmp_path / "notes.txt")
        assert done.code == 1
        assert "not an Oakleaf store" in done.out

    def test_a_file_others_may_read_is_a_problem(self, store_path: Path) -> None:
        store_path.chmod(0o644)
        done = oakleaf("doctor", store=store_path)
        assert done.code == 1
        assert "chmod 600" in done.out

    def test_a_problem_that_fix_leaves_is_still_one(self, store_path: Path) -> None:
        store_path.chmod(0o644)
        done = oakleaf("doctor", "--fix", "--yes", store=store_path)
        assert "nothing to fix" in done.err
        assert done.code == 1

    @pytest.mark.parametrize("page", [1, 5, 12])
    def test_damage_is_found_without_being_touched(self, store_path: Path, page: int) -> None:
        data = bytearray(store_path.read_bytes())
        data[page * 2048 : page * 2048 + 4000] = b"\xff" * 4000
        store_path.write_bytes(data)
        done = oakleaf("doctor", store=store_path)
        assert done.code == 1
        assert "damaged" in done.out or "✗ SQLite:" in done.out
        assert store_path.read_bytes() == data

    def test_a_fix_names_the_store_it_is_for(self, store_path: Path, tmp_path: Path) -> None:
        with library.open(store_path) as store:
            drive(store, "ses_case")
            store.session("ses_case").log.record(Titled(), row={"status": "interrupted"})
        fix = f"oakleaf --store {store_path} resume ses_case"
        assert fix in oakleaf("--store", store_path, "doctor", home=tmp_path).out
        assert fix in oakleaf("--store", store_path, "doctor", "--json", home=tmp_path).out
        misnamed = oakleaf("doctor", store_path, home=tmp_path)
        assert (misnamed.code, "--store FILE doctor" in misnamed.err) == (2, True)


class TestDamage:
    """One session of many cannot be read: the others are saved by the command that every message names."""

    @pytest.fixture
    def damaged_path(self, tmp_path: Path) -> Path:
        path = tmp_path / "damaged.db"
        with library.open(path) as store:
            for number in range(6):
                session = store.start("oak", session_id=f"ses_{number}")
                session.append([library.user(f"leaf {number} " * 600), library.assistant("green")])
        data = path.read_bytes()
        at = data.index(b"leaf 3 " * 10) // 2048 * 2048
        path.write_bytes(data[:at] + bytes(range(256)) * 8 + data[at + 2048 :])
        return path

    def test_verify_names_what_is_damaged_and_what_saves_the_rest(self, damaged_path: Path) -> None:
        done = oakleaf("--store", damaged_path, "verify")
        assert done.code == 1
        assert "ses_3 " in done.out
        assert "ses_2 " not in done.out
        assert "store.verify" not in done.out
        assert f"oakleaf --store {damaged_path} copy --all --to rescued.db" in done.err

    def test_doctor_and_show_name_it_too(self, damaged_path: Path) -> None:
        saves = f"oakleaf --store {damaged_path} copy --all --to rescued.db"
        assert saves in oakleaf("--store", damaged_path, "doctor").out
        assert saves in oakleaf("--store", damaged_path, "show", "ses_3").err

    def test_what_can_be_read_is_copied_and_the_rest_is_named(
        self, damaged_path: Path, tmp_path: Path
    ) -> None:
        rescued = tmp_path / "rescued.db"
        done = oakleaf("copy", "--all", "--to", rescued, store=damaged_path)
        assert (done.code, "not copied: ses_3: " in done.err) == (1, True)
        assert list_ids(rescued) == {f"ses_{number}" for number in (0, 1, 2, 4, 5)}
        assert oakleaf("verify", store=rescued).code == 0
        again = oakleaf("copy", "--all", "--to", rescued, "--json", store=damaged_path).json
        assert (len(again["existing"]), again["failed"][0]["session"]) == (5, "ses_3")

    def test_a_store_without_a_readable_list_is_not_told_to_try_the_same_again(
        self, damaged_path: Path
    ) -> None:
        damaged_path.write_bytes(damaged_path.read_bytes()[:2048] + b"\xff" * 90_000)
        done = oakleaf("copy", "--all", "--to", "rescued.db", store=damaged_path)
        assert (done.code, "restore a backup" in done.err, "copy --all" in done.err) == (1, True, False)


class TestBackup:
    def test_a_backup_opens_as_a_store(self, store_path: Path, tmp_path: Path) -> None:
        report = oakleaf("backup", tmp_path / "copy.db", "--json", store=store_path).json
        assert list_ids(Path(report["path"])) == list_ids(store_path)
        assert oakleaf("backup", tmp_path / "copy.db", store=store_path).code == 2
        assert oakleaf("backup", tmp_path / "copy.db", "--force", store=store_path).code == 0
        assert oakleaf("backup", store_path, "--force", store=store_path).code == 2
        assert oakleaf("backup", tmp_path / "no" / "x.db", store=store_path).code == 2
        assert Path(oakleaf("backup", store=store_path).out.strip()).exists()

    def test_a_file_that_may_not_grow_is_told_and_leaves_nothing(
        self, store_path: Path, tmp_path: Path
    ) -> None:
        limited = ["sh", "-c", 'ulimit -f 20; exec "$@"', "sh", *OAKLEAF, "--store", str(store_path)]
        done = subprocess.run(
            [*limited, "backup", str(tmp_path / "b.db")], capture_output=True, text=True, check=False
        )
        assert (done.returncode, "ulimit -f" in done.stderr, "Traceback" in done.stderr) == (1, True, False)
        assert not list(tmp_path.glob("b.db*"))

    def test_a_pipe_is_not_replaced(self, store_path: Path, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        done = oakleaf("backup", pipe, "--force", store=store_path)
        assert done.code == 2
        assert stat.S_ISFIFO(pipe.stat().st_mode)


class TestMigrate:
    def test_a_present_store_has_nothing_to_do(self, store_path: Path) -> None:
        assert "nothing to do" in oakleaf("migrate", store=store_path).out

    def test_a_folder_is_not_taken_for_a_broken_disk(self, tmp_path: Path) -> None:
        done = oakleaf("migrate", "--yes", store=tmp_path)
        assert (done.code, "is not an Oakleaf store: it is a directory" in done.err) == (2, True)

    def test_a_newer_store_is_refused_and_not_touched(self, store_path: Path) -> None:
        with sqlite3.connect(store_path) as raw:
            raw.execute("pragma user_version = 9000")
        before = store_path.read_bytes()
        done = oakleaf("migrate", "--yes", store=store_path)
        assert done.code == 1
        assert "install a newer Oakleaf" in done.err
        assert store_path.read_bytes() == before
