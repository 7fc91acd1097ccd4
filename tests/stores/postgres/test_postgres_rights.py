"""Who sees what on PostgreSQL: the database itself keeps spaces, owners and internal entries apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import bough
from bough import Evidence, Store, ToolCall, assistant, errors, system, tool_result, user
from bough.core.drafts import Draft
from bough.core.messages import Reasoning, Text
from bough.engines.absurd.schema import install
from bough.stores.postgres.health import rights_health
from bough.stores.postgres.rights import RightsDifferences, compare_rights
from bough.stores.postgres.schema import SAFE_PATH, migrate
from bough.stores.postgres.store import PostgresStore
from support.paths import ROOT
from support.postgres import TABLES, Database, DatabaseHost

VIEWS = ("public_session", "public_message", "public_fact", "public_input")
SECRETS = ("seed-secret", "inner-secret", "thought-secret", "sealed-secret", "state-secret", "spec-secret")

REFUSED = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState)


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    with bough.open(database.url) as opened_store:
        yield opened_store


@pytest.fixture
def session(store: Store) -> bough.Session:
    """Ann's, with something to hide in every place that can."""
    new_session = store.start(
        seeds=[system("seed-secret")],
        owner="ann",
        title="Order 41",
        spec={"s": "spec-secret"},
        state={"s": "state-secret"},
    )
    with new_session.turn("Where is it?") as turn:
        turn.answer(assistant(ToolCall("c1", "look", {"q": "inner-secret"})))
        turn.result("c1", "inner-secret")
    answer = assistant(Reasoning("thought-secret"), Text("On its way."))
    new_session.log.append([Draft(answer, evidence=Evidence("p", {"0": {"s": "sealed-secret"}}))])
    return new_session


def ask(
    database: Database, query: str, owner: str | None = "ann", space: str | None = "default"
) -> list[Any]:
    """As the client role, in a transaction with that identity."""
    with psycopg.connect(database.client_url) as connection:
        for name, value in (("bough.space", space), ("bough.owner", owner)):
            if value is not None:
                connection.execute("select set_config(%s, %s, true)", (name, value))
        rows = connection.execute(query)  # type: ignore[arg-type]
        return rows.fetchall() if rows.description else []


class TestTheClient:
    def test_it_reads_the_inputs_and_final_answers_of_its_owner(
        self, database: Database, session: bough.Session
    ) -> None:
        messages = ask(database, "select seq, role, text from bough.public_message where text is not null")
        assert [row[1:] for row in messages] == [("user", "Where is it?"), ("assistant", "On its way.")]
        sessions = ask(database, "select session_id, title from bough.public_session")
        assert sessions == [(session.session_id, "Order 41")]
        one = ask(database, f"select text from bough.own_messages('{session.session_id}')")
        assert one == [("Where is it?",), ("On its way.",)]

    def test_the_statements_that_the_page_shows_work(
        self, database: Database, session: bough.Session
    ) -> None:
        page = (ROOT / "docs/scale.md").read_text().split("### What a client sees")[1]
        shown = page.split("```sql\n")[1].split("```")[0].replace("ses_…", session.session_id)
        with psycopg.connect(database.client_url, autocommit=True) as connection:
            for statement in shown.replace("'shop'", "'default'").split(";\n")[:-1]:
                connection.execute(statement)  # type: ignore[arg-type]
        assert ask(database, "select text from bough.public_input") == [("Where is order 41?",)]

    def test_nothing_internal_is_in_anything_it_reads(
        self, database: Database, session: bough.Session
    ) -> None:
        everything = "".join(str(ask(database, f"select * from bough.{view}")) for view in VIEWS)
        assert "On its way." in everything
        assert not [word for word in SECRETS if word in everything]

    def test_without_an_identity_or_with_half_of_one_it_sees_nothing(
        self, database: Database, session: bough.Session
    ) -> None:
        for owner, space in ((None, None), ("ann", None), (None, "default"), ("", ""), ("bob", "default")):
            for view in VIEWS:
                assert ask(database, f"select * from bough.{view}", owner, space) == []

    def test_its_numbers_have_no_gap(self, database: Database, session: bough.Session) -> None:
        facts = ask(database, "select number, kind from bough.public_fact order by number")
        assert [n for n, _ in facts] == list(range(1, session.row.facts + 1))
        assert {kind for _, kind in facts} == {None, "turn_started", "turn_ended"}

    def test_no_table_sequence_or_function_behind_the_views_is_open_to_it(
        self, database: Database, session: bough.Session
    ) -> None:
        attacks = [
            *(f"select * from bough.{table}" for table in (*TABLES, "migration", "active_message")),
            *(f"select count(*) from bough.{table}" for table in TABLES),
            *(f"insert into bough.{table} default values" for table in TABLES),
            *(f"delete from bough.{table}" for table in TABLES),
            "update bough.session set branch = 1",
            "select nextval('bough.session_number')",
            "select last_value from bough.branch_id",
            "select * from bough.match_words('x'::tsquery, 0, 9, 9)",
            "select bough.queue_input()",
            "update bough.public_message set text = 'x'",
            "delete from bough.public_session",
            "update bough.public_input set text = 'x'",
            "create table bough.mine (x int)",
            "create function bough.mine() returns int language sql as 'select 1'",
            "set role bough_service",
            "set session authorization bough_app",
            "alter table bough.entry disable row level security",
        ]
        for attack in attacks:
            with pytest.raises(REFUSED):
                ask(database, attack)

    def test_a_plan_tells_nothing_of_what_it_may_not_see(
        self, database: Database, session: bough.Session
    ) -> None:
        for view in VIEWS:
            plan = str(ask(database, f"explain (analyze, verbose) select * from bough.{view}"))
            assert "Removed" not in plan
            assert not [
                table for table in ("bough.entry", "bough.session ", "bough.journal") if table in plan
            ]

    def test_a_type_of_its_own_does_not_take_the_place_of_ours(
        self, database: Database, session: bough.Session
    ) -> None:
        """What a function of the owner's calls `json` must not be what a client calls so."""
        with psycopg.connect(database.client_url) as connection:
            connection.execute("select set_config('bough.space', 'default', true)")
            connection.execute("select set_config('bough.owner', 'ann', true)")
            connection.execute("create domain pg_temp.json as text check (1 / 0 = 1)")
            connection.execute("create temp table session (id text)")
            rows = connection.execute("select text from bough.public_message").fetchall()
        assert rows == [("Where is it?",), ("On its way.",)]

    def test_a_replay_has_no_public(self, database: Database, store: Store) -> None:
        store.start(owner="ann", relation="replay", parent_session="ses_x")
        assert ask(database, "select * from bough.public_session") == []


class TestItsInput:
    def test_it_waits_in_the_inbox_as_a_users_message(
        self, database: Database, store: Store, session: bough.Session
    ) -> None:
        for text in ("and now?", 'it\'s "q" \\ ü'):
            with psycopg.connect(database.client_url) as connection:
                connection.execute("select set_config('bough.space', 'default', true)")
                connection.execute("select set_config('bough.owner', 'ann', true)")
                connection.execute(
                    "insert into bough.public_input (session_id, text) values (%s, %s)",
                    (session.session_id, text),
                )
        waiting = store.backend.inbox(session.session_id)
        assert [queued.number for queued in waiting] == [1, 2]
        assert waiting[0].body == b'{"role" : "user", "parts" : [{"type" : "text", "text" : "and now?"}]}'
        assert ask(database, "select text from bough.public_input order by number")[1] == ('it\'s "q" \\ ü',)
        assert session.enqueue("the service's own") == 3

    @pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
    def test_beside_another_in_a_repeatable_transaction_it_fails_and_may_be_tried_again(
        self, database: Database, store: Store, session: bough.Session, isolation: str
    ) -> None:
        """It counted from what its snapshot showed and tried the same number for ever."""
        insert = f"insert into bough.public_input (session_id, text) values ('{session.session_id}', 'x')"
        with psycopg.connect(database.client_url, autocommit=True) as connection:
            connection.execute("set statement_timeout = '20s'")
            connection.execute(f"begin isolation level {isolation}")  # type: ignore[arg-type]
            connection.execute(
                "select set_config('bough.space', 'default', true), set_config('bough.owner', 'ann', true)"
            )
            connection.execute("select count(*) from bough.public_session")  # takes the snapshot
            ask(database, insert)
            with pytest.raises(psycopg.errors.SerializationFailure, match="try again"):
                connection.execute(insert)  # type: ignore[arg-type]
        assert len(store.backend.inbox(session.session_id)) == 1

    def test_what_it_cannot_say_is_refused_alike_for_foreign_and_absent(
        self, database: Database, store: Store, session: bough.Session
    ) -> None:
        foreign = store.start(owner="bob").session_id
        answers = set()
        for name in (foreign, "ses_absent", ""):
            with pytest.raises(psycopg.errors.NoDataFound) as error:
                ask(database, f"insert into bough.public_input (session_id, text) values ('{name}', 'x')")
            answers.add(str(error.value))
        assert len(answers) == 1
        for owner, space in ((None, None), ("bob", "default"), ("ann", "other")):
            with pytest.raises(psycopg.errors.NoDataFound):
                ask(
                    database,
                    f"insert into bough.public_input (session_id, text) values ('{session.session_id}', 'x')",
                    owner,
                    space,
                )
        for columns, values in (("session_id, text, number", "'x', 'y', 1"), ("session_id, at", "'x', 1")):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                ask(database, f"insert into bough.public_input ({columns}) values ({values})")
        with pytest.raises(psycopg.errors.CheckViolation):
            ask(
                database,
                f"insert into bough.public_input (session_id, text) values ('{session.session_id}', '')",
            )
        assert store.backend.inbox(foreign) == store.backend.inbox(session.session_id) == []


class TestTheService:
    """Raw SQL as the role an application logs in with."""

    def _run(self, database: Database, query: str, space: str | None = "default") -> list[Any]:
        with psycopg.connect(database.url) as connection:
            if space is not None:
                connection.execute("select set_config('bough.space', %s, true)", (space,))
            rows = connection.execute(query)  # type: ignore[arg-type]
            return rows.fetchall() if rows.description else []

    def test_it_sees_its_space_and_nothing_without_one(
        self, database: Database, store: Store, session: bough.Session
    ) -> None:
        with session.turn(user("x", bough.Attachment(b"bytes", "image/png"))) as turn:
            turn.answer(assistant("seen"), usage=bough.Usage(1, 1))
        session.enqueue("waits")
        store.search("order")
        for table in TABLES:
            query = f"select count(*) from bough.{table}"
            query = query.replace("count(*)", "count(id)") if table == "search" else query
            assert self._run(database, query, "other") == self._run(database, query, None) == [(0,)]
            if table != "draft":
                assert self._run(database, query)[0][0] > 0, table

    def test_it_writes_into_no_other_space(
        self, database: Database, store: Store, session: bough.Session
    ) -> None:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            self._run(
                database,
                "insert into bough.entry select 99, 1, 'other', null, 1, 1, null, 'user', false, null, null, "
                "'x'::bytea, 1, null, '{}'::bytea",
            )
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            self._run(database, "update bough.session set space = 'other'")

    def test_an_entry_and_a_fact_never_change(self, database: Database, session: bough.Session) -> None:
        for table, column in (("entry", "body"), ("journal", "data")):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                self._run(database, f"update bough.{table} set {column} = null")


class TestWhatTheDatabaseSays:
    """What the database itself says of who may do what: a new table, view or function fails here first."""

    def test_every_table_has_policies_and_they_are_forced(self, database: Database) -> None:
        open_ones = database.run(
            "select relname from pg_class x where relnamespace = 'bough'::regnamespace and relkind in ('r', 'p', 'f', 'm') "
            "and not (relrowsecurity and relforcerowsecurity and exists (select from pg_policy where polrelid = x.oid))"
        )
        assert open_ones == []

    def test_no_policy_is_for_everybody_or_for_clients(self, database: Database) -> None:
        owner = psycopg.conninfo.conninfo_to_dict(database.owner_url)["user"]
        policies = database.run("select roles, qual from pg_policies where qual <> 'false'")
        assert {role for roles, _ in policies for role in roles} == {"bough_service", owner}

    def test_the_client_has_these_rights_and_no_others(self, database: Database) -> None:
        query = "select relname from pg_class where relnamespace = 'bough'::regnamespace and {} order by 1"
        role = "'bough_client', oid"
        read = database.run(query.format(f"has_any_column_privilege({role}, 'select') and relkind <> 'S'"))
        assert [name for (name,) in read] == sorted(VIEWS)
        written = "relkind <> 'S' and (has_any_column_privilege({0}, 'insert, update') or has_table_privilege({0}, 'delete, truncate, trigger'))"
        assert database.run(query.format(written.format(role))) == [("public_input",)]
        used = f"case when relkind = 'S' then has_sequence_privilege({role}, 'usage, select, update') end"
        assert database.run(query.format(used)) == []
        called = database.run(
            "select proname from pg_proc where pronamespace = 'bough'::regnamespace "
            "and has_function_privilege('bough_client', oid, 'execute') order by 1"
        )
        assert [name for (name,) in called] == ["own_facts", "own_inputs", "own_messages", "own_sessions"]

    def test_no_other_schema_is_open_to_the_client(self, database: Database) -> None:
        rows = database.run(
            "select nspname from pg_namespace where nspname !~ '^pg_' and has_schema_privilege('bough_client', oid, 'create') "
            "or nspname not in ('bough', 'public', 'information_schema', 'pg_catalog') and nspname !~ '^pg_t' "
            "and has_schema_privilege('bough_client', oid, 'usage')"
        )
        assert rows == []

    def test_what_runs_as_the_owner_names_its_search_path_with_the_callers_objects_last(
        self, database: Database
    ) -> None:
        rows = database.run(
            "select proconfig from pg_proc where pronamespace = 'bough'::regnamespace and prosecdef"
        )
        safe = (
            "search_path=pg_catalog, pg_temp",
            "debug_print_plan=off",
        )  # a plan shows how many rows others have
        assert {tuple(config or ())[:2] for (config,) in rows} == {safe}


@pytest.fixture
def generous(postgres: DatabaseHost) -> Iterator[Database]:
    """A database whose administrator lets everybody and both roles do everything with whatever the owner creates."""
    database = Database(postgres, "generous")
    roles = "public, bough_client, bough_service"
    kinds = ("tables", "sequences", "functions", "schemas")
    for kind in kinds:
        database.run(f"alter default privileges grant all on {kind} to {roles}")
    database.run("drop schema bough cascade")
    migrate(database.owner_url)
    yield database
    for kind in kinds:
        database.run(f"alter default privileges revoke all on {kind} from {roles}")


def rights(database: Database) -> RightsDifferences:
    with psycopg.connect(database.owner_url) as connection:
        connection.execute(f"set local search_path = {SAFE_PATH}")
        return compare_rights(connection)


@pytest.mark.attack
class TestWhatAnAdministratorGranted:
    def test_migrate_takes_back_what_is_granted_by_default(self, generous: Database) -> None:
        install(generous.owner_url)
        assert rights(generous) == RightsDifferences()
        ask(generous, "select * from bough.public_session")
        for forbidden in ("bough.session", "absurd.t_bough", "absurd.queues"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                ask(generous, f"select * from {forbidden}")

    @pytest.mark.parametrize(
        ("grant", "revoke", "named"),
        [
            (
                "grant select on {} to public",
                "revoke all on {} from public",
                "public select on table bough.session",
            ),
            (
                "grant insert (title) on {} to bough_client",
                "revoke insert (title) on {} from bough_client",
                "bough_client insert (title) on table bough.session",
            ),
            (
                "grant execute on function bough.bind to public",
                "revoke all on function bough.bind from public",
                "public execute on function bough.bind(regrole,text,text)",
            ),
            (
                "grant usage on sequence bough.branch_id to bough_client",
                "revoke all on sequence bough.branch_id from bough_client",
                "bough_client usage on sequence bough.branch_id",
            ),
            (
                "grant create on schema bough to bough_client",
                "revoke create on schema bough from bough_client",
                "bough_client create on schema bough",
            ),
            (
                "grant bough_service to bough_client",
                "revoke bough_service from bough_client",
                "bough_client is a member of bough_service",
            ),
            (
                "grant pg_read_all_data to bough_client",
                "revoke pg_read_all_data from bough_client",
                "bough_client is a member of pg_read_all_data",
            ),
            (
                "alter role bough_client bypassrls",
                "alter role bough_client nobypassrls",
                "bough_client bypasses row level security",
            ),
        ],
    )
    def test_a_right_too_many_is_named_and_the_store_not_opened(
        self, database: Database, grant: str, revoke: str, named: str
    ) -> None:
        database.run(grant.format("bough.session"))
        try:
            with pytest.raises(errors.UnsafeRights, match="nothing was done") as raised:
                bough.open(database.url)
            assert raised.value.rights == (named,)
            if "role" not in grant and "on " in grant:
                assert migrate(database.owner_url).warnings == ()
                bough.open(database.url).close()
            else:
                assert named in migrate(database.owner_url).warnings
        finally:
            database.run(revoke.format("bough.session"))

    def test_a_trigger_of_a_client_runs_neither_as_the_service_nor_as_who_migrates(
        self, database: Database
    ) -> None:
        """With all rights on a table comes that of creating triggers there."""
        database.run("grant trigger on bough.migration, bough.session to bough_client")
        database.run("create schema if not exists theirs; grant all on schema theirs to public")
        with psycopg.connect(database.client_url) as client:
            client.execute(
                "create function theirs.mine() returns trigger language plpgsql as "
                "$$ begin raise exception 'ran as %', current_user; end $$"
            )
            for table in ("migration", "session"):
                client.execute(
                    f"create trigger mine before insert on bough.{table} execute function theirs.mine()"
                )  # type: ignore[arg-type]
        try:
            for use in (lambda: bough.open(database.url), lambda: migrate(database.owner_url)):
                with pytest.raises(
                    errors.UnsafeRights, match=r"'mine' on bough\.session runs a function of bough_person"
                ):
                    use()
        finally:
            database.run(
                "drop schema theirs cascade; revoke trigger on bough.migration, bough.session from bough_client"
            )

    def test_a_right_that_the_service_lacks_is_named(self, database: Database) -> None:
        database.run("revoke insert on bough.journal from bough_service")
        try:
            with pytest.raises(
                errors.MissingPermission, match=r"bough_service insert on table bough\.journal"
            ):
                bough.open(database.url)
            assert migrate(database.owner_url).warnings == ()
        finally:
            database.run("grant insert on bough.journal to bough_service")

    def test_what_doctor_says(self, database: Database) -> None:
        database.run(
            "grant update on bough.entry to bough_service; grant create on schema public to bough_client"
        )
        try:
            with bough.open(database.url) as store:
                assert isinstance(store.backend, PostgresStore)
                findings = {finding.message: finding.level for finding in rights_health(store.backend)}
            assert findings == {
                "a right too many: bough_service update on table bough.entry": "warning",
                "bough_client may create in the schema 'public', which is in the search path; "
                "Bough calls nothing there, other programs may": "warning",
            }
            (warning,) = migrate(database.owner_url).warnings
            assert warning == "bough_client may create in the schema 'public', which is in the search path"
        finally:
            database.run("revoke create on schema public from bough_client")
        with bough.open(database.url) as store:
            assert isinstance(store.backend, PostgresStore)
            assert rights_health(store.backend) == []

    def test_a_migration_for_another_client_role_takes_the_rights_of_the_former(
        self, database: Database
    ) -> None:
        database.run("drop role if exists other_client")
        migrate(database.owner_url, client="other_client")
        try:
            assert rights(database) == RightsDifferences()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                ask(database, "select * from bough.public_session")
            assert migrate(database.owner_url).warnings == (), "it keeps the role that it has"
        finally:
            migrate(database.owner_url, client="bough_client")
            database.run("drop role other_client")
        ask(database, "select * from bough.public_session")


def test_tool_results_are_internal_and_so_are_their_calls(database: Database, store: Store) -> None:
    session = store.start(owner="ann")
    session.append([user("q"), assistant(ToolCall("c", "t", {})), tool_result("c", "r")])
    assert ask(database, "select role from bough.public_message") == [("user",)]
