"""The command line on PostgreSQL: migrate by the owner, the verbs by the service, sessions moved there and back."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from oakleaf import open as open_store
from oakleaf_postgres import absurd
from support.postgres import APP, Database, DatabaseHost
from support.terminal import oakleaf


@pytest.fixture
def url(database: Database) -> str:
    return database.url


class TestMigrate:
    def test_the_owner_makes_the_schema_after_seeing_the_plan(self, postgres: DatabaseHost) -> None:
        bare = postgres.url(postgres.create_database("cli"))
        missing = oakleaf("ls", store=bare)
        assert missing.code == 1
        assert "migrate" in missing.err
        planned = oakleaf("migrate", store=bare)
        assert planned.code == 1
        assert "oakleaf_service" in planned.err
        assert oakleaf("migrate", "--yes", "--json", store=bare).json["report"]["format_before"] == 0
        assert "nothing to do" in oakleaf("migrate", "--yes", store=bare).out
        assert oakleaf("ls", "--json", store=bare).json["sessions"] == []

    def test_a_later_one_keeps_the_service_role_that_was_chosen(self, postgres: DatabaseHost) -> None:
        name = postgres.create_database("chosen")
        owner = postgres.url(name)
        with psycopg.connect(owner, autocommit=True) as admin:
            admin.execute("drop role if exists chosen_app")
        assert oakleaf("migrate", "--service-role", "chosen_service", "--yes", store=owner).code == 0
        with psycopg.connect(owner, autocommit=True) as admin:
            admin.execute("create role chosen_app login password 'chosen_app' in role chosen_service")
        url = postgres.url(name, "chosen_app")
        with open_store(url) as store:
            session = store.start(title="still there")
            assert oakleaf("migrate", "--queue", "oakleaf", "--yes", store=owner).code == 0
            assert store.session(session.session_id).row.title == "still there"
            assert absurd.send(session, "hello", agent="a").queue == "oakleaf"

    def test_who_has_no_right_is_told_so(self, postgres: DatabaseHost, migrated_database: Database) -> None:
        bare = postgres.url(postgres.create_database("rights"), APP)
        done = oakleaf("migrate", "--yes", store=bare)
        assert done.code == 1
        assert APP in done.err

    def test_a_server_that_is_not_there_is_said_without_the_password(self) -> None:
        done = oakleaf("ls", store="postgresql://me:hunter2@127.0.0.1:1/none")
        assert done.code == 1
        assert "hunter2" not in done.err + done.out
        assert "Traceback" not in done.err

    def test_a_backup_is_the_servers_and_the_doctor_looks_at_the_sessions(self, url: str) -> None:
        refused = oakleaf("backup", store=url)
        assert (refused.code, "cannot be copied to a file" in refused.err) == (2, True)
        assert oakleaf("doctor", "--json", store=url).json["healthy"] is True


class TestCopy:
    def test_sessions_go_there_and_back_and_their_bundles_are_the_same_bytes(
        self, url: str, store_path: Path, tmp_path: Path
    ) -> None:
        back = tmp_path / "back.db"
        assert oakleaf("copy", "--all", "--to", url, store=store_path).code == 0
        assert oakleaf("copy", "--all", "--to", back, store=url).code == 0
        bundles = []
        for name, store in (("one", store_path), ("two", url), ("three", back)):
            assert oakleaf("export", "ses_case", "-o", tmp_path / name, store=store).code == 0
            bundles.append((tmp_path / name).read_bytes())
        assert bundles[0] == bundles[1] == bundles[2]
        assert oakleaf("verify", store=url).code == 0
        assert oakleaf("verify", store=back).code == 0


class TestVerbs:
    def test_the_verbs_work_as_on_a_file(self, url: str, store_path: Path) -> None:
        oakleaf("copy", "ses_case", "--to", url, store=store_path)
        assert "Where is order 41?" in oakleaf("show", "ses_case", store=url).out
        assert (
            oakleaf("search", "lost", "role:tool", "--json", store=url).json["hits"][0]["reference"]
            == "ses_case@5"
        )
        assert oakleaf("fork", "case@8", store=url).code == 0
        assert oakleaf("undo", "ses_case", "--json", store=url).json["leaf"] == "1:8"
        assert oakleaf("replay", "ses_case", store=url).code == 0
        assert oakleaf("usage", "--json", store=url).json["total"]["calls"] == 4
        assert oakleaf("tail", "ses_case", "-n", "1", "--json", store=url).json["facts"][0]["kind"] == "moved"
        assert oakleaf("rm", "ses_case", "-y", store=url).code == 0
        assert oakleaf("purge", "ses_case", "-y", store=url).code == 0
