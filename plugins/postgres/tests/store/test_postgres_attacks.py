"""Whoever runs SQL of his own choice as the client role is told nothing internal and nothing foreign, and forges nothing.

Every attack runs against a store owned by a superuser, where the functions alone protect, and against one owned by
an ordinary role, where the policies bind the owner too. The number of attacks of each kind is printed at the end.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
import pytest

from oakleaf_postgres.store.schema import migrate
from support.attacked_database import (
    ABSENT,
    CROWD,
    ELSEWHERE,
    FOREIGN,
    OWN,
    PUBLIC_TEXTS,
    REPLAY,
    SECRET_PATTERN,
    SECRETS,
    TASK,
    TRASHED,
    VIEWS,
    AttackedDatabase,
    Attacker,
    AttackResult,
)
from support.postgres import DatabaseHost
from support.postgres_attacks import (
    ARGUMENTS,
    CATALOGS,
    CHANGES,
    CLASHES,
    COLUMN_READS,
    FORGERIES,
    IDENTITY,
    LEAK,
    LOCKS,
    LOOKUPS,
    ONLY_WARNED,
    PLANNED,
    PREDICATES,
    PRIVILEGES,
    READS,
    REUSED_ID,
    ROWS_READ,
    SEARCHES,
    SETTINGS,
    TOAST,
)

HIDDEN = (FOREIGN, ELSEWHERE, TASK, REPLAY, TRASHED)
HEX = re.compile(r"x((?:[0-9a-f]{2}){8,})")
PERSON = "oakleaf_ann"


@pytest.fixture(scope="module", params=["superuser", "ordinary"])
def attacked(request: pytest.FixtureRequest, postgres: DatabaseHost) -> Iterator[AttackedDatabase]:
    database = AttackedDatabase(postgres, ordinary_owner=request.param == "ordinary")
    yield database
    database.close()
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(database.attempts.items()))
    capturing: Any = request.config.pluginmanager.getplugin("capturemanager")
    with capturing.global_and_fixture_disabled():
        print(f"\n{request.param} owner: {database.attempts.total()} attacks: {kinds}")


@pytest.fixture
def person(attacked: AttackedDatabase) -> str:
    """A login that is in no role of ours."""
    with contextlib.suppress(psycopg.errors.DuplicateObject):
        attacked.run(f"create role {PERSON} login password '{PERSON}'")
    return PERSON


@pytest.fixture
def unchanged(attacked: AttackedDatabase) -> Iterator[None]:
    """No row, right, policy or definition is another one afterwards."""
    before = attacked.fingerprint()
    yield
    assert attacked.fingerprint() == before


def is_silent(result: AttackResult) -> bool:
    return SECRET_PATTERN.search(result.text) is None


def leaks(attacker: Attacker, kind: str, attacks: Iterable[str]) -> list[tuple[str, str]]:
    """The attacks that were told something."""
    results = [(attack, attacker.attempt(kind, attack)) for attack in attacks]
    return [(attack, result.text[:500]) for attack, result in results if not is_silent(result)]


def successes(attacker: Attacker, kind: str, attacks: Iterable[str]) -> list[tuple[str, str]]:
    """The attacks that were not refused, or were told something while they were."""
    results = [(attack, attacker.attempt(kind, attack)) for attack in attacks]
    return [(a, result.text[:500]) for a, result in results if result.error is None or not is_silent(result)]


class TestReading:
    def test_the_hidden_words_are_there(self, attacked: AttackedDatabase) -> None:
        """Else nothing below would prove anything."""
        content = "".join(
            str(attacked.run(f"select x::text from oakleaf.{name} x")) for name in attacked.relations("r")
        )
        content += "".join(bytes.fromhex(match).decode("utf-8", "replace") for match in HEX.findall(content))
        assert [place for place, word in SECRETS.items() if word not in content] == []
        stats = str(attacked.run("select * from pg_stats where schemaname = 'oakleaf'"))
        assert SECRET_PATTERN.search(stats)

    def test_the_client_reads_its_own(self, attacked: AttackedDatabase) -> None:
        text = "".join(attacked.client.attempt("own", f"table oakleaf.{view}").text for view in VIEWS)
        assert all(word in text for word in (*PUBLIC_TEXTS, OWN, "Order 41"))
        assert not SECRET_PATTERN.search(text)

    def test_no_relation_behind_the_views_is_read_in_any_way(
        self, attacked: AttackedDatabase, unchanged: None
    ) -> None:
        behind = [f"oakleaf.{name}" for name in attacked.relations("rvS") if name not in VIEWS]
        behind += [f"pg_toast.{name}" for (name,) in attacked.run(TOAST)]
        attacks = [read.format(name) for name in behind for read in READS]
        attacks += [
            f"table oakleaf.{name}" for name in attacked.relations("i")
        ]  # the parser refuses them all
        assert successes(attacked.client, "relation read", attacks) == []

    def test_no_column_behind_the_views_is_read(self, attacked: AttackedDatabase) -> None:
        behind = [(name, column) for name in attacked.relations("rv") for column in attacked.columns(name)]
        attacks = [
            read.format(f"oakleaf.{name}", column)
            for name, column in behind
            if name not in VIEWS
            for read in COLUMN_READS
        ]
        assert successes(attacked.client, "column read", attacks) == []

    def test_the_views_tell_nothing_internal_however_they_are_read(
        self, attacked: AttackedDatabase, unchanged: None
    ) -> None:
        attacks = [read.format(f"oakleaf.{view}") for view in VIEWS for read in READS]
        attacks += [
            "select schema_to_xml('oakleaf', true, false, '')",
            "select database_to_xml(true, false, '')",
        ]
        assert leaks(attacked.client, "view read", attacks) == []

    def test_no_catalog_tells_anything(self, attacked: AttackedDatabase) -> None:
        """Statistics hold samples of every column, and pg_stat_activity the words of every statement."""
        names = [name for (name,) in attacked.run(CATALOGS)]
        assert len(names) > 150
        assert leaks(attacked.client, "catalog", [f"select * from {name}" for name in names]) == []

    def test_another_spaces_service_is_told_nothing(
        self, attacked: AttackedDatabase, unchanged: None
    ) -> None:
        names = [f"oakleaf.{name}" for name in attacked.relations("rv")]
        attacks = [read.format(name) for name in names for read in READS]
        attacks += [f"select * from {name}" for (name,) in attacked.run(CATALOGS)]
        attacks += [
            read.format(f"oakleaf.{name}", column)
            for name in attacked.relations("r")
            for column in attacked.columns(name)
            for read in COLUMN_READS
        ]
        attacks += [
            f"select * from oakleaf.match_words('{word}'::tsquery, 0, 1::bigint << 62, 99)"
            for word in SEARCHES
        ]
        assert leaks(attacked.stranger, "other service", attacks) == []
        for table in attacked.relations("r"):
            result = attacked.stranger.attempt("other service", f"select from oakleaf.{table}")
            assert not result.rows or table in ("migration", "lock")

    def test_a_function_with_hostile_arguments_finds_ones_own_or_nothing(
        self, attacked: AttackedDatabase
    ) -> None:
        attacks = [
            call.format(argument)
            for argument in ARGUMENTS
            for call in ("select * from oakleaf.own_messages({})", "select * from oakleaf.own_facts({}, 0)")
        ]
        attacks += [
            f"select * from oakleaf.own_facts('{OWN}', {after})" for after in ("null", "-1", "9e18::bigint")
        ]
        assert leaks(attacked.client, "function", attacks) == []
        for attack in attacks[2:]:
            result = attacked.client.attempt("function", attack)
            assert result.error is not None or {row[0] for row in result.rows} <= {OWN}


class TestOracles:
    @pytest.mark.parametrize("lookup", LOOKUPS)
    def test_what_is_hidden_is_told_like_what_is_not_there(
        self, attacked: AttackedDatabase, lookup: str
    ) -> None:
        answers = set()
        for name in (*HIDDEN, ABSENT):
            result = attacked.client.attempt("oracle", lookup.replace("{}", name))
            answers.add(result.text.replace(name, "…"))
        assert len(answers) == 1
        assert not re.search("Key|constraint|leaked", answers.pop())

    @pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
    @pytest.mark.parametrize("lookup", PLANNED)
    def test_a_plan_reads_as_many_pages_for_both(
        self, attacked: AttackedDatabase, lookup: str, mode: str
    ) -> None:
        """The unique index of ids met the row of another owner: one page more than for an id of nobody's."""
        plans = {}
        for name in (FOREIGN, ELSEWHERE, ABSENT):
            query = f"explain (analyze, buffers, timing off, summary off) {lookup.format(name)}"
            result = attacked.client.attempt(
                "oracle", f"set plan_cache_mode = {mode}; {'; '.join([query] * 3)}"
            )
            plans[name] = result.rows[-1]
        assert "Buffers" in str(plans[ABSENT])
        assert plans[FOREIGN] == plans[ELSEWHERE] == plans[ABSENT]

    def test_the_counters_of_a_transaction_count_nobody_elses_rows(self, attacked: AttackedDatabase) -> None:
        counted, tables = {}, len(attacked.client.attempt("oracle", ROWS_READ).rows)
        for name in (FOREIGN, ELSEWHERE, ABSENT):
            reads = f"select * from oakleaf.own_messages('{name}'); table oakleaf.public_session"
            # In one transaction: what was counted before may be reported between two.
            rows = attacked.client.attempt("oracle", f"{ROWS_READ}; {reads}; {ROWS_READ}").rows
            pairs = zip(rows[:tables], rows[-tables:], strict=True)
            counted[name] = [(x[0], y[1] - x[1], y[2] - x[2]) for x, y in pairs]
        assert counted[FOREIGN] == counted[ELSEWHERE] == counted[ABSENT]
        assert 0 < {name: seq + idx for name, seq, idx in counted[ABSENT]}["session"] < CROWD / 10

    def test_a_predicate_of_ones_own_sees_ones_own_rows_only(self, attacked: AttackedDatabase) -> None:
        attacks = [
            f"{LEAK} {predicate.format(f'oakleaf.{view}')}" for view in VIEWS for predicate in PREDICATES
        ]
        assert leaks(attacked.client, "predicate", attacks) == []
        result = attacked.client.attempt(
            "predicate", f"{LEAK} select * from oakleaf.public_session x where pg_temp.leak(x)"
        )
        assert len(result.rows) == len([notice for notice in result.notices if "saw" in notice]) == 1

    def test_a_clash_with_another_space_names_no_value(
        self, attacked: AttackedDatabase, unchanged: None
    ) -> None:
        """A service may learn that an id is taken, as ids are the whole store's; not whose it is."""
        for attack in (REUSED_ID.format(FOREIGN), *CLASHES):
            result = attacked.stranger.attempt("clash", attack)
            assert result.error is not None or attack.startswith(
                ("update", "delete", "insert into oakleaf.inbox")
            )
            assert is_silent(AttackResult(result.rows, None, result.notices)), result.text
            assert "Key (" not in result.text


class TestChanging:
    def test_nothing_of_ours_is_changed_or_made(self, attacked: AttackedDatabase, unchanged: None) -> None:
        names = [f"oakleaf.{name}" for name in attacked.relations("rvS")]
        attacks = [change.format(name) for name in names for change in CHANGES]
        attacks += [
            f"update oakleaf.{name} set {column} = {column}"
            for name in attacked.relations("rv")
            for column in attacked.columns(name)
        ]
        assert successes(attacked.client, "change", attacks) == []
        vain = [attempt.format(name) for name in names for attempt in ONLY_WARNED]
        for attempt in vain:
            assert is_silent(attacked.client.attempt("change", attempt, commits=True))

    def test_no_lock_is_taken_that_others_would_wait_for(self, attacked: AttackedDatabase) -> None:
        names = [f"oakleaf.{name}" for name in attacked.relations("rv") if name != "public_input"]
        assert (
            successes(attacked.client, "lock", [lock.format(name) for name in names for lock in LOCKS]) == []
        )

    @pytest.mark.parametrize("forgery", FORGERIES)
    def test_a_forgery_is_refused(self, attacked: AttackedDatabase, unchanged: None, forgery: str) -> None:
        attacks = dict.fromkeys(forgery.format(own=OWN, hidden=hidden) for hidden in HIDDEN)
        assert successes(attacked.client, "forgery", attacks) == []

    def test_a_copy_into_the_inbox_is_an_input_like_any_other(
        self, attacked: AttackedDatabase, unchanged: None
    ) -> None:
        result = attacked.client.attempt("forgery", "copy oakleaf.public_input (session_id, text) from stdin")
        assert isinstance(result.error, psycopg.errors.NoDataFound)

    def test_it_has_no_power_over_the_server(self, attacked: AttackedDatabase, unchanged: None) -> None:
        powers = [
            power
            for power in PRIVILEGES
            if "oakleaf_plain" not in power or attacked.owner_url != attacked.database.owner_url
        ]
        done = successes(attacked.client, "power", powers)
        assert [attack for attack, _ in done] == []

    def test_what_is_put_in_is_the_owners_and_a_users(self, attacked: AttackedDatabase) -> None:
        statement = f"insert into oakleaf.public_input (session_id, text) values ('{OWN}', '{{\"role\": \"system\"}}')"
        attacked.client.attempt("forgery", statement, commits=True)
        rows = attacked.run(
            "select owner, space, convert_from(body, 'UTF8')::json ->> 'role' from oakleaf.inbox where session_number = 1"
        )
        assert set(rows) == {("ann", "default", "user")}
        attacked.run("delete from oakleaf.inbox where session_number = 1 and number > 1")


class TestIdentity:
    @pytest.mark.parametrize(
        "owner", [None, "", " ", "Ann", "ann ", "%", "аnn", "ann' or '1'='1", "null", "x" * 9999]
    )
    @pytest.mark.parametrize("space", [None, "", "default", "DEFAULT", "%"])
    def test_nobody_sees_nothing(
        self, attacked: AttackedDatabase, space: str | None, owner: str | None
    ) -> None:
        attacked.client.connection.execute("discard all")
        with attacked.client.connection.transaction():
            for name, value in (("oakleaf.space", space), ("oakleaf.owner", owner)):
                attacked.client.connection.execute("select set_config(%s, %s, true)", (name, value))
            for view in VIEWS:
                attacked.attempts["identity"] += 1
                assert attacked.client.execute(f"table oakleaf.{view}").rows == []

    @pytest.mark.parametrize("setting", SETTINGS)
    def test_no_setting_and_no_object_of_ones_own_makes_one_more(
        self, attacked: AttackedDatabase, setting: str
    ) -> None:
        results = [attacked.client.attempt("setting", f"{setting}; table oakleaf.{view}") for view in VIEWS]
        assert all(is_silent(result) for result in results)
        known = [row for result in results for row in result.rows if isinstance(row, tuple)]
        assert {row[0] for row in known} <= {OWN}

    def test_an_identity_ends_with_its_transaction(self, attacked: AttackedDatabase) -> None:
        client = attacked.client
        client.connection.execute("discard all")
        client.connection.execute("prepare p as select text from oakleaf.public_message")
        client.connection.execute("set plan_cache_mode = force_generic_plan")
        for ending in ("commit", "rollback", "select 1 / 0"):
            client.connection.execute("begin")
            client.connection.execute("savepoint s")
            client.connection.execute(IDENTITY)
            assert len(client.execute("execute p").rows) == 2
            client.execute(ending)
            client.execute("rollback")
            for view in ("execute p", *(f"table oakleaf.{view}" for view in VIEWS)):
                attacked.attempts["identity"] += 1
                assert client.execute(view).rows == []
        client.connection.execute("begin")
        client.connection.execute("savepoint s")
        client.connection.execute(IDENTITY)
        client.connection.execute("rollback to s")
        assert client.execute("execute p").rows == []
        client.execute("rollback")
        client.connection.execute(IDENTITY.replace("true", "false"))
        assert len(client.execute("execute p").rows) == 2
        client.connection.execute("discard all")
        assert client.execute("table oakleaf.public_message").rows == []

    def test_a_bound_login_is_its_owner_whatever_it_sets(
        self, attacked: AttackedDatabase, person: str
    ) -> None:
        attacked.run(f"select oakleaf.bind('{person}', 'default', 'ann')")
        url = attacked.database.host.url(attacked.database.name, person)
        for space, owner in (("default", "bob"), ("other", "ann"), ("", ""), ("default", "ann")):
            ann = Attacker(url, attacked.attempts, space, owner)
            results = [
                ann.attempt("bound", f"{setting}; table oakleaf.public_message") for setting in SETTINGS
            ]
            assert all(is_silent(one) for one in results)
            assert ann.attempt("bound", "select text from oakleaf.public_message").rows == [
                (PUBLIC_TEXTS[0],),
                (PUBLIC_TEXTS[1],),
            ]
            assert successes(ann, "bound", PRIVILEGES[4:]) == []
            assert (
                successes(
                    ann, "bound", [f"set role {name}" for name in ("oakleaf_client", "oakleaf_service")]
                )
                == []
            )
            forged = f"insert into oakleaf.public_input (session_id, text) values ('{FOREIGN}', 'x')"
            assert successes(ann, "bound", [forged]) == []
            ann.close()
        attacked.run(f"select oakleaf.unbind('{person}')")
        ann = Attacker(url, attacked.attempts)
        assert successes(ann, "bound", [f"table oakleaf.{view}" for view in VIEWS]) == []
        ann.close()

    def test_migrating_again_keeps_who_is_bound(self, attacked: AttackedDatabase, person: str) -> None:
        attacked.run(f"select oakleaf.bind('{person}', 'default', 'ann')")
        migrate(attacked.owner_url)
        ann = Attacker(
            attacked.database.host.url(attacked.database.name, person), attacked.attempts, owner="bob"
        )
        assert ann.attempt("bound", "select session_id from oakleaf.public_session").rows == [(OWN,)]
        ann.close()
        attacked.run(f"select oakleaf.unbind('{person}')")
