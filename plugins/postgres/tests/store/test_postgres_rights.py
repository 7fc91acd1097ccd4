"""Who sees what on PostgreSQL: the database itself keeps spaces, owners and internal entries apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import oakleaf
from oakleaf import Evidence, Store, ToolCall, assistant, system, tool_result, user
from oakleaf.core.drafts import Draft
from oakleaf.core.messages import Reasoning, Text
from oakleaf_postgres.absurd.schema import install
from oakleaf_postgres.errors import MissingPermission, UnsafeRights
from oakleaf_postgres.store.health import rights_health
from oakleaf_postgres.store.rights import RightsDifferences, compare_rights
from oakleaf_postgres.store.schema import SAFE_PATH, migrate
from oakleaf_postgres.store.store import PostgresStore
from support.paths import ROOT
from support.postgres import TABLES, Database, DatabaseHost

VIEWS = ("public_session", "public_message", "public_fact", "public_input")
SECRETS = ("seed-secret", "inner-secret", "thought-secret", "sealed-secret", "state-secret", "spec-secret")

REFUSED = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState)


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    with oakleaf.open(database.url) as opened_store:
        yield opened_store


@pytest.fixture
def session(store: Store) -> oakleaf.Session:
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
        for name, value in (("oakleaf.space", space), ("oakleaf.owner", owner)):
            if value is not None:
                connection.execute("select set_config(%s, %s, true)", (name, value))
        rows = connection.execute(query)  # type: ignore[arg-type]
        return rows.fetchall() if rows.description else []


class TestTheClient:
    def test_it_reads_the_inputs_and_final_answers_of_its_owner(
        self, database: Database, session: oakleaf.Session
    ) -> None:
        messages = ask(database, "select seq, role, text from oakleaf.public_message where text is not null")
        assert [row[1:] for row in messages] == [("user", "Where is it?"), ("assistant", "On its way.")]
        sessions = ask(database, "select session_id, title from oakleaf.public_session")
        assert sessions == [(session.session_id, "Order 41")]
        one = ask(database, f"select text from oakleaf.own_messages('{session.session_id}')")
        assert one == [("Where is it?",), ("On its way.",)]

    def test_the_statements_that_the_page_shows_work(
        self, database: Database, session: oakleaf.Session
    ) -> None:
        page = (ROOT / "docs/scale.md").read_text().split("### What a client sees")[1]
        shown = page.split("```sql\n")[1].split("```")[0].replace("ses_…", session.session_id)
        with psycopg.connect(database.client_url, autocommit=True) as connection:
            for statement in shown.replace("'shop'", "'default'").split(";\n")[:-1]:
                connection.execute(statement)  # type: ignore[arg-type]
        assert ask(database, "select text from oakleaf.public_input") == [("Where is order 41?",)]

    def test_nothing_internal_is_in_anything_it_reads(
        self, database: Database, session: oakleaf.Session
    ) -> None:
        everything = "".join(str(ask(database, f"select * from oakleaf.{view}")) for view in VIEWS)
        assert "On its way." in everything
        assert not [word for word in SECRETS if word in everything]

    def test_without_an_identity_or_with_half_of_one_it_sees_nothing(
        self, database: Database, session: oakleaf.Session
    ) -> None:
        for owner, space in ((None, None), ("ann", None), (None, "default"), ("", ""), ("bob", "default")):
            for view in VIEWS:
                assert ask(database, f"select * from oakleaf.{view}", owner, space) == []

    def test_its_numbers_have_no_gap(self, database: Database, session: oakleaf.Session) -> None:
        facts = ask(database, "select number, kind from oakleaf.public_fact order by number")
        assert [n for n, _ in facts] == list(range(1, session.row.facts + 1))
        assert {kind for _, kind in facts} == {None, "turn_started", "turn_ended", "turn_left"}

    def test_no_table_sequence_or_function_behind_the_views_is_open_to_it(
        self, database: Database, session: oakleaf.Session
    ) -> None:
        attacks = [
            *(f"select * from oakleaf.{table}" for table in (*TABLES, "migration", "active_message")),
            *(f"select count(*) from oakleaf.{table}" for table in TABLES),
            *(f"insert into oakleaf.{table} default values" for table in TABLES),
            *(f"delete from oakleaf.{table}" for table in TABLES),
            "update oakleaf.session set branch = 1",
            "select nextval('oakleaf.session_number')",
            "select last_value from oakleaf.branch_id",
            "select * from oakleaf.match_words('x'::tsquery, 0, 9, 9)",
            "select oakleaf.queue_input()",
            "update oakleaf.public_message set text = 'x'",
            "delete from oakleaf.public_session",
            "update oakleaf.public_input set text = 'x'",
            "create table oakleaf.mine (x int)",
            "create function oakleaf.mine() returns int language sql as 'select 1'",
            "set role oakleaf_service",
            "set session authorization oakleaf_app",
            "alter table oakleaf.entry disable row level security",
        ]
        for attack in attacks:
            with pytest.raises(REFUSED):
                ask(database, attack)

    def test_a_plan_tells_nothing_of_what_it_may_not_see(
        self, database: Database, session: oakleaf.Session
    ) -> None:
        for view in VIEWS:
            plan = str(ask(database, f"explain (analyze, verbose) select * from oakleaf.{view}"))
            assert "Removed" not in plan
            assert not [
                table for table in ("oakleaf.entry", "oakleaf.session ", "oakleaf.journal") if table in plan
            ]

    def test_a_type_of_its_own_does_not_take_the_place_of_ours(
        self, database: Database, session: oakleaf.Session
    ) -> None:
        """What a function of the owner's calls `json` must not be what a client calls so."""
        with psycopg.connect(database.client_url) as connection:
            connection.execute("select set_config('oakleaf.space', 'default', true)")
            connection.execute("select set_config('oakleaf.owner', 'ann', true)")
            connection.execute("create domain pg_temp.json as text check (1 / 0 = 1)")
            connection.execute("create temp table session (id text)")
            rows = connection.execute("select text from oakleaf.public_message").fetchall()
        assert rows == [("Where is it?",), ("On its way.",)]

    def test_a_replay_has_no_public(self, database: Database, store: Store) -> None:
        store.start(owner="ann", relation="replay", parent_session="ses_x")
        assert ask(database, "select * from oakleaf.public_session") == []


class TestItsInput:
    def test_it_waits_in_the_inbox_as_a_users_message(
        self, database: Database, store: Store, session: oakleaf.Session
    ) -> None:
        for text in ("and now?", 'it\'s "q" \\ ü'):
            with psycopg.connect(database.client_url) as connection:
                connection.execute("select set_config('oakleaf.space', 'default', true)")
                connection.execute("select set_config('oakleaf.owner', 'ann', true)")
                connection.execute(
                    "insert into oakleaf.public_input (session_id, text) values (%s, %s)",
                    (session.session_id, text),
                )
        waiting = store.backend.inbox(session.session_id)
        assert [queued.number for queued in waiting] == [1, 2]
        assert waiting[0].body == b'{"role" : "user", "parts" : [{"type" : "text", "text" : "and now?"}]}'
        assert ask(database, "select text from oakleaf.public_input order by number")[1] == (
            'it\'s "q" \\ ü',
        )
        assert session.enqueue("the service's own") == 3

    @pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
    def test_beside_another_in_a_repeatable_transaction_it_fails_and_may_be_tried_again(
        self, database: Database, store: Store, session: oakleaf.Session, isolation: str
    ) -> None:
        """It counted from what its snapshot showed and tried the same number for ever."""
        insert = f"insert into oakleaf.public_input (session_id, text) values ('{session.session_id}', 'x')"
        with psycopg.connect(database.client_url, autocommit=True) as connection:
            connection.execute("set statement_timeout = '20s'")
            connection.execute(f"begin isolation level {isolation}")  # type: ignore[arg-type]
            connection.execute(
                "select set_config('oakleaf.space', 'default', true), set_config('oakleaf.owner', 'ann', true)"
            )
            connection.execute("select count(*) from oakleaf.public_session")  # takes the snapshot
            ask(database, insert)
            with pytest.raises(psycopg.errors.SerializationFailure, match="try again"):
                connection.execute(insert)  # type: ignore[arg-type]
        assert len(store.backend.inbox(session.session_id)) == 1

    def test_what_it_cannot_say_is_refused_alike_for_foreign_and_absent(
        self, database: Database, store: Store, session: oakleaf.Session
    ) -> None:
        foreign = store.start(owner="bob").session_id
        answers = set()
        for name in (foreign, "ses_absent", ""):
            with pytest.raises(psycopg.errors.NoDataFound) as error:
                ask(database, f"insert into oakleaf.public_input (session_id, text) values ('{name}', 'x')")
            answers.add(str(error.value))
        assert len(answers) == 1
        for owner, space in ((None, None), ("bob", "default"), ("ann", "other")):
            with pytest.raises(psycopg.errors.NoDataFound):
                ask(
                    database,
                    f"insert into oakleaf.public_input (session_id, text) values ('{session.session_id}', 'x')",
                    owner,
                    space,
                )
        for columns, values in (("session_id, text, number", "'x', 'y', 1"), ("session_id, at", "'x', 1")):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                ask(database, f"insert into oakleaf.public_input ({columns}) values ({values})")
        with pytest.raises(psycopg.errors.CheckViolation):
            ask(
                database,
                f"insert into oakleaf.public_input (session_id, text) values ('{session.session_id}', '')",
            )
        assert store.backend.inbox(foreign) == store.backend.inbox(session.session_id) == []


class TestTheService:
    """Raw SQL as the role an application logs in with."""

    def _run(self, database: Database, query: str, space: str | None = "default") -> list[Any]:
        with psycopg.connect(database.url) as connection:
            if space is not None:
                connection.execute("select set_config('oakleaf.space', %s, true)", (space,))
            rows = connection.execute(query)  # type: ignore[arg-type]
            return rows.fetchall() if rows.description else []

    def test_it_sees_its_space_and_nothing_without_one(
        self, database: Database, store: Store, session: oakleaf.Session
    ) -> None:
        with session.turn(user("x", oakleaf.Attachment(b"bytes", "image/png"))) as turn:
            turn.answer(assistant("seen"), usage=oakleaf.Usage(1, 1))
        session.enqueue("waits")
        store.search("order")
        for table in TABLES:
            query = f"select count(*) from oakleaf.{table}"
            query = query.replace("count(*)", "count(id)") if table == "search" else query
            assert self._run(database, query, "other") == self._run(database, query, None) == [(0,)]
            if table != "draft":
                assert self._run(database, query)[0][0] > 0, table

    def test_it_writes_into_no_other_space(
        self, database: Database, store: Store, session: oakleaf.Session
    ) -> None:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            self._run(
                database,
                "insert into oakleaf.entry select 99, 1, 'other', null, 1, 1, null, 'user', false, null, null, "
                "'x'::bytea, 1, null, '{}'::bytea",
            )
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            self._run(database, "update oakleaf.session set space = 'other'")

    def test_an_entry_and_a_fact_never_change(self, database: Database, session: oakleaf.Session) -> None:
        for table, column in (("entry", "body"), ("journal", "data")):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                self._run(database, f"update oakleaf.{table} set {column} = null")


class TestWhatTheDatabaseSays:
    """What the database itself says of who may do what: a new table, view or function fails here first."""

    def test_every_table_has_policies_and_they_are_forced(self, database: Database) -> None:
        open_ones = database.run(
            "select relname from pg_class x where relnamespace = 'oakleaf'::regnamespace and relkind in ('r', 'p', 'f', 'm') "
            "and not (relrowsecurity and relforcerowsecurity and exists (select from pg_policy where polrelid = x.oid))"
        )
        assert open_ones == []

    def test_no_policy_is_for_everybody_or_for_clients(self, database: Database) -> None:
        owner = psycopg.conninfo.conninfo_to_dict(database.owner_url)["user"]
        policies = database.run("select roles, qual from pg_policies where qual <> 'false'")
        assert {role for roles, _ in policies for role in roles} == {"oakleaf_service", owner}

    def test_the_client_has_these_rights_and_no_others(self, database: Database) -> None:
        query = "select relname from pg_class where relnamespace = 'oakleaf'::regnamespace and {} order by 1"
        role = "'oakleaf_client', oid"
        read = database.run(query.format(f"has_any_column_privilege({role}, 'select') and relkind <> 'S'"))
        assert [name for (name,) in read] == sorted(VIEWS)
        written = "relkind <> 'S' and (has_any_column_privilege({0}, 'insert, update') or has_table_privilege({0}, 'delete, truncate, trigger'))"
        assert database.run(query.format(written.format(role))) == [("public_input",)]
        used = f"case when relkind = 'S' then has_sequence_privilege({role}, 'usage, select, update') end"
        assert database.run(query.format(used)) == []
        called = database.run(
            "select proname from pg_proc where pronamespace = 'oakleaf'::regnamespace "
            "and has_function_privilege('oakleaf_client', oid, 'execute') order by 1"
        )
        assert [name for (name,) in called] == ["own_facts", "own_inputs", "own_messages", "own_sessions"]

    def test_no_other_schema_is_open_to_the_client(self, database: Database) -> None:
        rows = database.run(
            "select nspname from pg_namespace where nspname !~ '^pg_' and has_schema_privilege('oakleaf_client', oid, 'create') "
            "or nspname not in ('oakleaf', 'public', 'information_schema', 'pg_catalog') and nspname !~ '^pg_t' "
            "and has_schema_privilege('oakleaf_client', oid, 'usage')"
        )
        assert rows == []

    def test_what_runs_as_the_owner_names_its_search_path_with_the_callers_objects_last(
        self, database: Database
    ) -> None:
        rows = database.run(
            "select proconfig from pg_proc where pronamespace = 'oakleaf'::regnamespace and prosecdef"
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
    roles = "public, oakleaf_client, oakleaf_service"
    kinds = ("tables", "sequences", "functions", "schemas")
    for kind in kinds:
        database.run(f"alter default privileges grant all on {kind} to {roles}")
    database.run("drop schema oakleaf cascade")
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
        ask(generous, "select * from oakleaf.public_session")
        for forbidden in ("oakleaf.session", "absurd.t_oakleaf", "absurd.queues"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                ask(generous, f"select * from {forbidden}")

    @pytest.mark.parametrize(
        ("grant", "revoke", "named"),
        [
            (
                "grant select on {} to public",
                "revoke all on {} from public",
                "public select on table oakleaf.session",
            ),
            (
                "grant insert (title) on {} to oakleaf_client",
                "revoke insert (title) on {} from oakleaf_client",
                "oakleaf_client insert (title) on table oakleaf.session",
            ),
            (
                "grant execute on function oakleaf.bind to public",
                "revoke all on function oakleaf.bind from public",
                "public execute on function oakleaf.bind(regrole,text,text)",
            ),
            (
                "grant usage on sequence oakleaf.branch_id to oakleaf_client",
                "revoke all on sequence oakleaf.branch_id from oakleaf_client",
                "oakleaf_client usage on sequence oakleaf.branch_id",
            ),
            (
                "grant create on schema oakleaf to oakleaf_client",
                "revoke create on schema oakleaf from oakleaf_client",
                "oakleaf_client create on schema oakleaf",
            ),
            (
                "grant oakleaf_service to oakleaf_client",
                "revoke oakleaf_service from oakleaf_client",
                "oakleaf_client is a member of oakleaf_service",
            ),
            (
                "grant pg_read_all_data to oakleaf_client",
                "revoke pg_read_all_data from oakleaf_client",
                "oakleaf_client is a member of pg_read_all_data",
            ),
            (
                "alter role oakleaf_client bypassrls",
                "alter role oakleaf_client nobypassrls",
                "oakleaf_client bypasses row level security",
            ),
        ],
    )
    def test_a_right_too_many_is_named_and_the_store_not_opened(
        self, database: Database, grant: str, revoke: str, named: str
    ) -> None:
        database.run(grant.format("oakleaf.session"))
        try:
            with pytest.raises(UnsafeRights, match="nothing was done") as raised:
                oakleaf.open(database.url)
            assert raised.value.rights == (named,)
            if "role" not in grant and "on " in grant:
                assert migrate(database.owner_url).warnings == ()
                oakleaf.open(database.url).close()
            else:
                assert named in migrate(database.owner_url).warnings
        finally:
            database.run(revoke.format("oakleaf.session"))

    def test_a_trigger_of_a_client_runs_neither_as_the_service_nor_as_who_migrates(
        self, database: Database
    ) -> None:
        """With all rights on a table comes that of creating triggers there."""
        database.run("grant trigger on oakleaf.migration, oakleaf.session to oakleaf_client")
        database.run("create schema if not exists theirs; grant all on schema theirs to public")
        with psycopg.connect(database.client_url) as client:
            client.execute(
                "create function theirs.mine() returns trigger language plpgsql as "
                "$$ begin raise exception 'ran as %', current_user; end $$"
            )
            for table in ("migration", "session"):
                client.execute(
                    f"create trigger mine before insert on oakleaf.{table} execute function theirs.mine()"
                )  # type: ignore[arg-type]
        try:
            for use in (lambda: oakleaf.open(database.url), lambda: migrate(database.owner_url)):
                with pytest.raises(
                    UnsafeRights, match=r"'mine' on oakleaf\.session runs a function of oakleaf_person"
                ):
                    use()
        finally:
            database.run(
                "drop schema theirs cascade; revoke trigger on oakleaf.migration, oakleaf.session from oakleaf_client"
            )

    def test_a_right_that_the_service_lacks_is_named(self, database: Database) -> None:
        database.run("revoke insert on oakleaf.journal from oakleaf_service")
        try:
            with pytest.raises(MissingPermission, match=r"oakleaf_service insert on table oakleaf\.journal"):
                oakleaf.open(database.url)
            assert migrate(database.owner_url).warnings == ()
        finally:
            database.run("grant insert on oakleaf.journal to oakleaf_service")

    def test_what_doctor_says(self, database: Database) -> None:
        database.run(
            "grant update on oakleaf.entry to oakleaf_service; grant create on schema public to oakleaf_client"
        )
        try:
            with oakleaf.open(database.url) as store:
                assert isinstance(store.backend, PostgresStore)
                findings = {finding.message: finding.level for finding in rights_health(store.backend)}
            assert findings == {
                "a right too many: oakleaf_service update on table oakleaf.entry": "warning",
                "oakleaf_client may create in the schema 'public', which is in the search path; "
                "Oakleaf calls nothing there, other programs may": "warning",
            }
            (warning,) = migrate(database.owner_url).warnings
            assert warning == "oakleaf_client may create in the schema 'public', which is in the search path"
        finally:
            database.run("revoke create on schema public from oakleaf_client")
        with oakleaf.open(database.url) as store:
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
                ask(database, "select * from oakleaf.public_session")
            assert migrate(database.owner_url).warnings == (), "it keeps the role that it has"
        finally:
            migrate(database.owner_url, client="oakleaf_client")
            database.run("drop role other_client")
        ask(database, "select * from oakleaf.public_session")


def test_tool_results_are_internal_and_so_are_their_calls(database: Database, store: Store) -> None:
    session = store.start(owner="ann")
    session.append([user("q"), assistant(ToolCall("c", "t", {})), tool_result("c", "r")])
    assert ask(database, "select role from oakleaf.public_message") == [("user",)]
