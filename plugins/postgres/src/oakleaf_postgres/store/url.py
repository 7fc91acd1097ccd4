"""The address of a PostgreSQL store: a libpq URL without our own options, which it parses, and a form without secrets.

    postgresql://app@db.example/agents?prepared=off&connections=16&silence=60

Knows nothing of pools or statements.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

import psycopg
from msgspec import Struct
from msgspec.structs import replace
from psycopg import adapt
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.bool import BoolDumper
from psycopg.types.numeric import IntDumper
from psycopg.types.string import BytesBinaryDumper

from oakleaf.errors import InvalidArgument, ServerUnreachable
from oakleaf_postgres.store.limited import LimitedConnection

CONNECTIONS = 20
CONNECT_SECONDS = 10
"""How long to wait for a host while connecting, unless `connect_timeout` is given: the next one may have taken over."""
SILENCE_SECONDS = 30.0
"""How long a statement waits without an answer, unless `silence` is given: `off`, or seconds."""
# With these the kernel notices within half a minute that the machine at the other end is gone.
TCP_OPTIONS = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
HINTS = (
    ("password authentication failed", "check the password: in the URL, PGPASSWORD or ~/.pgpass"),
    ("no password supplied", "give a password: in the URL, PGPASSWORD or ~/.pgpass"),
    (
        'database "[^"]*+" does not exist',
        "create it, createdb -E UTF8 -T template0 NAME, then run oakleaf --store URL migrate",
    ),
    ('role "[^"]*+" does not exist', "create the role, createuser NAME, or name another one in the URL"),
    (
        "no pg_hba.conf entry",
        "the server refuses this host, role or encryption: see its pg_hba.conf, try ?sslmode=require",
    ),
    (
        "could not translate host name|failed to resolve host|Name or service not known",
        "check the host of the URL",
    ),
    (
        "Connection refused|No such file or directory",
        "start the server, or check the host and port of the URL",
    ),
    (
        "timeout expired|timed out",
        "nothing answers there: check the host and port of the URL, and the firewall",
    ),
    (
        "unsupported startup parameter",
        "connect to the server itself, not through a pooler: this needs settings of its own",
    ),
    (
        "too many clients|too many connections|remaining connection slots|no more connections",
        "use fewer connections, ?connections=N, or a pooler, or raise max_connections or the limit that is named",
    ),
)
"""What to do about a refused connection, by what the server or libpq says."""
SECRET = frozenset(["password", "sslpassword", "passfile", "sslkey"])


class Address(Struct, frozen=True):
    url: str
    safe_url: str
    """The same without secrets, for messages."""
    is_prepared: bool = True
    """False behind a pooler that runs each transaction on another server connection and does not support prepared
    statements (PgBouncer before 1.21). A store notices such a one when it is opened."""
    connections: int = CONNECTIONS
    silence: float | None = SILENCE_SECONDS

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise InvalidArgument(
                "url", _without_password(url), f"postgresql://USER@HOST/DATABASE ({error})"
            ) from None
        if parts.netloc.count("@") > 1:
            raise InvalidArgument(
                "url", f"{parts.scheme}://…", "%40 for each @ in the name or password of the login"
            )
        options = parse_qsl(parts.query, keep_blank_values=True)
        own = dict(option for option in options if option[0] in ("prepared", "connections", "silence"))
        rest = [option for option in options if option[0] not in own]
        prepared, connections = own.get("prepared", "on"), own.get("connections", str(CONNECTIONS))
        if prepared not in ("on", "off"):
            raise InvalidArgument("prepared", prepared, "on or off")
        if not connections.isdecimal() or not 0 < int(connections) <= 1_000:
            raise InvalidArgument("connections", connections, "a number from 1 to 1,000")
        silence = own.get("silence", f"{SILENCE_SECONDS:g}")
        if silence != "off" and not re.fullmatch(r"0*[1-9]\d{0,5}|\d{1,6}\.\d+", silence):
            raise InvalidArgument("silence", silence, "off, or seconds such as 60")
        plain = _join(parts._replace(query=urlencode(rest, quote_via=quote)))
        display_url = _join(
            parts._replace(netloc=_without_password(parts.netloc), query=_without_secrets(rest))
        )
        limit = None if silence == "off" else float(silence)
        return cls(plain, display_url, prepared == "on", int(connections), limit)

    def for_maintenance(self) -> Address:
        """Return the same for statements of hours, and for unpreparable files of several statements."""
        return replace(self, is_prepared=False, silence=None)

    @property
    def connect_options(self) -> dict[str, Any]:
        """Return the options of every connection. Statements are prepared at first use: they come again, at no cost."""
        return {
            "autocommit": True,
            "prepare_threshold": 0 if self.is_prepared else None,
            "context": ADAPTERS,
            "application_name": "oakleaf",
            "client_encoding": "utf8",  # over PGCLIENTENCODING and what the role has: others cannot hold every text
            **{name: value for name, value in self._timeouts().items() if name not in self._settings},
        }

    @property
    def _settings(self) -> dict[str, Any]:
        """The settings of the URL's connection."""
        return conninfo_to_dict(self.url)

    def _timeouts(self) -> dict[str, int]:
        has_own = "PGCONNECT_TIMEOUT" in os.environ
        return TCP_OPTIONS if has_own else {**TCP_OPTIONS, "connect_timeout": CONNECT_SECONDS}

    def connect(self, search_path: str | None = None, seconds: int | None = None) -> LimitedConnection:
        """Connect, within the seconds given to each host; with `search_path` for maintenance outside a
        transaction.
        """
        options = self.connect_options | ({} if seconds is None else {"connect_timeout": seconds})
        if search_path is not None:
            own = self._settings.get("options") or os.environ.get("PGOPTIONS", "")
            options["options"] = f"{own} -c search_path={search_path.replace(' ', '')}"
        try:
            connection = LimitedConnection.connect(self.url, **options)
        except psycopg.Error as error:
            reason = first_line(error)
            hint = next((hint for pattern, hint in HINTS if re.search(pattern, reason)), None)
            raise ServerUnreachable(self.safe_url, reason, hint) from None
        connection.silence = self.silence
        return connection


def _join(parts: SplitResult) -> str:
    """Join a URL as libpq reads URLs: with both slashes, also without a host (`postgresql:///db?host=…`)."""
    query = f"?{parts.query}" if parts.query else ""
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query}{fragment}"


def _without_password(netloc: str) -> str:
    login, at, host = netloc.rpartition("@")
    return f"{login.partition(':')[0]}{at}{host}"


def _without_secrets(options: list[tuple[str, str]]) -> str:
    return urlencode([option for option in options if option[0] not in SECRET], quote_via=quote, safe="/")


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# psycopg identifies a prepared statement by its text and the types of its values, where the type of an int depends on
# its size and None has none: the same statement would be prepared dozens of times. So every value is sent untyped,
# and the casts of the statement decide.


class _Int(IntDumper):
    oid = 0

    def upgrade(self, obj: Any, format: Any) -> Any:
        return self

    def get_key(self, obj: Any, format: Any) -> Any:
        return self.cls

    def dump(self, obj: Any) -> bytes:
        return b"%d" % obj

    def quote(self, obj: Any) -> bytes:
        return b" %d" % obj


class _Bool(BoolDumper):
    oid = 0


class _UntypedBytes(BytesBinaryDumper):
    oid = 0


ADAPTERS = adapt.AdaptersMap(psycopg.adapters)
ADAPTERS.register_dumper(int, _Int)
ADAPTERS.register_dumper(bool, _Bool)
ADAPTERS.register_dumper(bytes, _UntypedBytes)
