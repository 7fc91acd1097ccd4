"""A real PgBouncer between a store and its server, in transaction mode.

`python tests/support/pgbouncer.py` installs one with apt if it is missing and the user is root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psycopg

SETTINGS = """
[databases]
* = host={server}
[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
logfile = {folder}/log
server_lifetime = 1
query_wait_timeout = 20
server_login_retry = 1
{more}
"""
PREPARES = (1, 21)
"""The first version that supports prepared statements in transaction mode."""


def pgbouncer_path() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def version() -> tuple[int, ...]:
    output = subprocess.run(
        [str(pgbouncer_path()), "--version"], capture_output=True, text=True, check=True
    ).stdout
    return tuple(map(int, output.split()[1].split(".")[:2]))


class PgBouncer:
    def __init__(self, server: Path, logins: tuple[str, ...]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="oakleaf-pb-", dir="/tmp"))
        self.prepared = "on" if version() >= PREPARES else "off"
        more = "max_prepared_statements = 100" if self.prepared == "on" else ""
        (self.folder / "ini").write_text(SETTINGS.format(server=server, folder=self.folder, more=more))
        (self.folder / "users").write_text("".join(f'"{login}" ""\n' for login in logins))
        for path in (self.folder, *self.folder.iterdir()):
            path.chmod(0o755)
        options: dict[str, Any] = {}
        if os.getuid() == 0:  # it refuses to run as root; the account of the server can reach its socket
            account = server.stat()
            os.chown(self.folder, account.st_uid, account.st_gid)
            options = {"user": account.st_uid, "group": account.st_gid, "extra_groups": [], "cwd": "/tmp"}
        self._process = subprocess.Popen(
            [str(pgbouncer_path()), "-q", str(self.folder / "ini")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **options,
        )

    def url(self, database: str, login: str) -> str:
        host = quote(str(self.folder), safe="")
        return f"postgresql://{login}@/{database}?host={host}&port=6432&prepared={self.prepared}"

    def wait(self, database: str, login: str) -> Self:
        plain = self.url(database, login).partition("&prepared")[0]
        for _ in range(200):
            try:
                psycopg.connect(plain).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return self
        raise RuntimeError("PgBouncer did not start within 10 s")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


def ensure() -> None:
    """Find or install PgBouncer, without letting its package start a server."""
    environment = {**os.environ, "SYSTEMD_OFFLINE": "1", "RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "pgbouncer"]
    for command in (install, ["apt-get", "update", "-qq"], install):
        if pgbouncer_path() is None and os.geteuid() == 0 and shutil.which("apt-get"):
            subprocess.run(command, check=False, stdout=sys.stderr, env=environment)
    if pgbouncer_path() is None:
        print("no PgBouncer: its tests are skipped; on Debian: apt-get install pgbouncer", file=sys.stderr)


if __name__ == "__main__":
    ensure()
