"""A PostgreSQL store with a secret in every internal field, and logins that try to read them.

Knows what is secret and what an attack returned: rows, errors with all their fields, notices. Does not know the
attacks themselves.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg
from msgspec import Struct
from psycopg import pq

import oakleaf
from oakleaf import Evidence, Store, ToolCall, Usage, assistant, system, user
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import PluginFact
from oakleaf.core.messages import Reasoning, Text
from oakleaf_postgres.store.schema import migrate
from support.postgres import Database, DatabaseHost

SECRET_PLACES = (
    *("seed", "call", "result", "thought", "sealed", "spec", "policy", "state", "note", "summary", "setting"),
    *("fact", "meter", "file", "draft", "tag", "foreign", "elsewhere", "inbox", "task", "rehearsal", "trash"),
)
SECRETS = {place: f"leaked{place}" for place in SECRET_PLACES}
FOREIGN, ELSEWHERE, TASK, REPLAY, TRASHED = (f"ses_leaked{n:014d}" for n in range(1, 6))
ABSENT, OWN = "ses_absent00000000000", "ses_own00000000000000"
VIEWS = ("public_session", "public_message", "public_fact", "public_input")
PUBLIC_TEXTS = ("Where is it?", "On its way.", "One more thing")
STRANGER = "oakleaf_stranger"
"""A login in the service role whose space holds none of these sessions."""
CROWD = 2_000
"""Number of other owners' sessions in the space, enough for a plan that scans them to show."""
ADD_CROWD = f"""
insert into oakleaf.session select (jsonb_populate_record(one, jsonb_build_object(
    'number', 100000 + n, 'id', 'ses_leakedcrowd' || n, 'owner', 'leaked' || n))).*
from oakleaf.session as one, generate_series(1, {CROWD}) as n where one.id = '{FOREIGN}'
"""
SECRET_PATTERN = re.compile(r"leaked|6c65616b6564", re.IGNORECASE)  # as text, or as hex-encoded bytes


class AttackResult(Struct, frozen=True):
    """Everything the server returned for one attack."""

    rows: list[Any]
    error: psycopg.Error | None
    notices: list[str]

    @property
    def text(self) -> str:
        return "\n".join([*map(repr, self.rows), *_fields(self.error), *self.notices])


def _fields(error: psycopg.Error | None) -> list[str]:
    if error is None:
        return []
    names = [name for name in dir(error.diag) if not name.startswith("_")]
    return [str(error), *(str(getattr(error.diag, name)) for name in names)]


class Attacker:
    """A login that runs any SQL; each attack has its own transaction, rolled back unless `commits` is set."""

    def __init__(self, url: str, attempts: Counter[str], space: str = "default", owner: str = "ann") -> None:
        self.connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)
        self._attempts, self._notices = attempts, list[str]()
        self._identity = {"oakleaf.space": space, "oakleaf.owner": owner}
        self.connection.add_notice_handler(
            lambda notice: self._notices.append(
                " ".join(filter(None, (notice.message_primary, notice.message_detail, notice.context)))
            )
        )

    def close(self) -> None:
        self.connection.close()

    def attempt(self, kind: str, attack: str, *, commits: bool = False) -> AttackResult:
        """Run the attack as this login and reset the connection afterwards."""
        self._attempts[kind] += 1
        self._notices.clear()
        self.connection.execute("begin")
        for name, value in self._identity.items():
            self.connection.execute("select set_config(%s, %s, true)", (name, value))
        result = self.execute(attack)
        is_over = self.connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        if not is_over:
            self.connection.pgconn.exec_(b"commit" if commits and result.error is None else b"rollback")
        self.connection.execute("discard all")
        return result

    def execute(self, attack: str) -> AttackResult:
        """Run the attack in the current transaction."""
        rows: list[Any] = []
        try:
            with self.connection.cursor() as cursor:
                if attack.lstrip().lower().startswith("copy"):
                    rows += _copy_rows(cursor, attack)
                else:
                    cursor.execute(attack)  # type: ignore[arg-type]
                    rows += _all_rows(cursor)
        except psycopg.Error as error:
            return AttackResult(rows, error, list(self._notices))
        return AttackResult(rows, None, list(self._notices))


def _copy_rows(cursor: psycopg.Cursor[Any], attack: str) -> list[Any]:
    with cursor.copy(attack) as copy:  # type: ignore[arg-type]
        if " from stdin" not in attack.lower():
            return [bytes(piece) for piece in copy]
        copy.write(f"{FOREIGN}\tforged\n")
    return []


def _all_rows(cursor: psycopg.Cursor[Any]) -> list[Any]:
    rows = cursor.fetchall() if cursor.description else []
    while cursor.nextset():
        rows += cursor.fetchall() if cursor.description else []
    return rows


class AttackedDatabase:
    """A database full of secrets, owned by a superuser or by an ordinary role."""

    def __init__(self, host: DatabaseHost, *, ordinary_owner: bool) -> None:
        self.attempts: Counter[str] = Counter()
        self.database = Database(host, f"attacked_{'plain' if ordinary_owner else 'super'}")
        self.owner_url = self.database.owner_url
        self._superuser = psycopg.connect(self.owner_url, autocommit=True, prepare_threshold=None)
        if ordinary_owner:
            self._change_owner("oakleaf_plain")
        with oakleaf.open(self.database.url) as sessions:
            fill(sessions)
        with oakleaf.open(self.database.url, space="other") as sessions:
            sessions.start(session_id=ELSEWHERE, owner="ann", title="leakedelsewhere")
        self.run(ADD_CROWD)
        self.run("analyze")
        self.client = Attacker(self.database.client_url, self.attempts)
        with contextlib.suppress(psycopg.errors.DuplicateObject):
            self.run(f"create role {STRANGER} login password '{STRANGER}' in role oakleaf_service")
        self.stranger = Attacker(host.url(self.database.name, STRANGER), self.attempts, space="third")
        self.idle = psycopg.connect(self.database.url, autocommit=True)
        self.idle.execute("select 'leakedquery'")  # visible in pg_stat_activity to privileged roles

    def _change_owner(self, owner: str) -> None:
        self.run(
            f"do $$ begin create role {owner} login password '{owner}'; exception when duplicate_object then end $$"
        )
        self.run(f"drop schema oakleaf cascade; grant create on database {self.database.name} to {owner}")
        self.owner_url = self.database.host.url(self.database.name, owner)
        migrate(self.owner_url)

    def run(self, query: str) -> list[Any]:
        """Run the query as a superuser, to whom no policy applies."""
        rows = self._superuser.execute(query)  # type: ignore[arg-type]
        return rows.fetchall() if rows.description else []

    def close(self) -> None:
        for connection in (self.client.connection, self.stranger.connection, self.idle, self._superuser):
            connection.close()

    def relations(self, kinds: str) -> list[str]:
        query = f"select relname from pg_class where relnamespace = 'oakleaf'::regnamespace and position(relkind::text in '{kinds}') > 0"
        return sorted(name for (name,) in self.run(query))

    def columns(self, relation: str) -> list[str]:
        query = (
            f"select attname from pg_attribute where attrelid = 'oakleaf.{relation}'::regclass and attnum > 0"
        )
        return [name for (name,) in self.run(query)]

    def fingerprint(self) -> Sequence[Any]:
        """Return every row, privilege, policy and definition, which no attack may change."""
        rows = [
            self.run(f"select '{t}', md5(string_agg(x::text, '' order by x::text)) from oakleaf.{t} x")
            for t in self.relations("r")
        ]
        catalog = (
            "select relname, relowner, relacl::text, relrowsecurity, relforcerowsecurity, relkind::text from pg_class "
            "where relnamespace = 'oakleaf'::regnamespace order by 1",
            "select proname, proowner, proacl::text, md5(pg_get_functiondef(oid)) from pg_proc "
            "where pronamespace = 'oakleaf'::regnamespace order by 1",
            "select nspname, nspowner, nspacl::text from pg_namespace where nspname !~ '^pg_t' order by 1",
            "select * from pg_policies order by schemaname, tablename, policyname",
            "select rolname, rolsuper, rolcanlogin from pg_roles order by 1",
            "select roleid, member from pg_auth_members order by 1, 2",
            "select attrelid::regclass::text, attname, attacl::text from pg_attribute where attacl is not null order by 1, 2",
            "select extname from pg_extension order by 1",
        )
        return [*rows, *map(self.run, catalog)]


def fill(sessions: Store) -> None:
    """Create Ann's session with a secret in every internal field, her task, replay and trashed sessions, and Bob's session."""
    own = sessions.start(
        seeds=[system("leakedseed")],
        session_id=OWN,
        owner="ann",
        title="Order 41",
        spec={"s": "leakedspec"},
        policy={"s": "leakedpolicy"},
        state={"s": "leakedstate"},
        tags={"t": "leakedtag"},
    )
    with own.turn(user(PUBLIC_TEXTS[0], oakleaf.Attachment(b"leakedfile", "image/leakedfile"))) as turn:
        call = assistant(Reasoning("leakedthought"), ToolCall("leakedcall", "look", {"q": "leakedcall"}))
        turn.answer(call, usage=Usage(7, 7), provider="leakedmeter", model="leakedmeter")
        turn.result("leakedcall", "leakedresult")
    answer = assistant(Reasoning("leakedthought"), Text(PUBLIC_TEXTS[1]))
    own.log.append([Draft(answer, evidence=Evidence("p", {"0": {"s": "leakedsealed"}}))])
    own.note({"n": "leakednote"}, state={"n": "leakednote"})
    own.set(model="leakedsetting")
    own.compact("leakedsummary")
    own.log.record(PluginFact("tests", "started", {"d": "leakedfact"}))
    own.enqueue(PUBLIC_TEXTS[2])
    fence = sessions.backend.lease(OWN, "leakeddraft", 1 << 60, 1)
    sessions.backend.save_draft(OWN, own.leaf, "leakeddraft", fence, 1)
    hidden = ((TASK, "task", "task"), (REPLAY, "replay", "rehearsal"), (TRASHED, None, "trash"))
    for session_id, relation, name in hidden:
        options: Any = {"relation": relation, "parent_session": OWN} if relation else {}
        session = sessions.start(session_id=session_id, owner="ann", title=f"leaked{name}", **options)
        session.append([user(f"leaked{name}"), assistant(f"leaked{name}")])
    sessions.backend.trash(TRASHED, 1)
    other = sessions.start(session_id=FOREIGN, owner="bob", title="leakedforeign")
    other.append([user("leakedforeign"), assistant("leakedforeign")])
    other.enqueue("leakedinbox")
    sessions.search("leakedforeign")
