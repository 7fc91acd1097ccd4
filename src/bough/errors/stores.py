"""Errors of the file or server itself."""

from __future__ import annotations

from .root import BoughError


class StoreError(BoughError):
    """The file or server itself."""


class NotAStore(StoreError):
    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where} is not a Bough store: {why}; name another path to make a new one")


class NewerFormat(StoreError):
    def __init__(self, where: str, found: str, known: str) -> None:
        super().__init__(
            f"{where} has format {found}, this Bough reads up to {known}; "
            "upgrade with pip install -U bough. The file was not touched"
        )


class ServerUnreachable(StoreError):
    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} cannot be reached: {why}; check the host, port, database and role of the URL, and that the "
            "server runs"
        )


class MigrationNeeded(StoreError):
    def __init__(self, where: str, found: int, wanted: int) -> None:
        self.found, self.wanted = found, wanted
        what = f"has schema {found}, this Bough needs {wanted}" if found else "has no Bough schema yet"
        super().__init__(
            f"{where} {what}; run bough --store URL migrate, once, as the role that owns it or is to own it"
        )


class MissingPermission(StoreError):
    def __init__(self, where: str, role: str, why: str) -> None:
        self.role = role
        super().__init__(
            f"role {role!r} lacks a right on {where}: {why}. To open a store: grant bough_service to {role} "
            "(or the service role you chose); to migrate: the right to create a schema and roles"
        )


class PostgresRequired(StoreError):
    def __init__(self, engine: str, where: str) -> None:
        self.engine, self.where = engine, where
        super().__init__(
            f"the engine {engine!r} runs on PostgreSQL, {where} is none; open postgresql://…, and take sessions "
            "along with bough copy --to URL"
        )


class EngineNotInstalled(StoreError):
    def __init__(self, where: str, queue: str, why: str) -> None:
        self.where, self.queue, self.why = where, queue, why
        super().__init__(
            f"{where} {why}; run bough --store URL migrate --engine absurd --queue {queue}, once, as the role that "
            "owns the schema"
        )


class UnknownCommit(StoreError):
    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} went away while committing and did not come back in time ({why}); whether the change was "
            "written is not known. Hand it in again with the same key once the server is back: it is written once"
        )


class InvalidKey(StoreError):
    def __init__(self) -> None:
        super().__init__("a key is a text of at least one character, without NUL; the store was not opened")


class EncryptionUnavailable(StoreError):
    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} was not opened: the SQLite of this Python cannot encrypt. Put the one that can in its place: "
            "pip uninstall apsw, then pip install apsw-sqlite3mc"
        )


class StoreReadOnly(StoreError):
    def __init__(self, where: str) -> None:
        super().__init__(f"{where} cannot be written; check the rights of the file and its folder")


class StoreFull(StoreError):
    def __init__(self, where: str) -> None:
        super().__init__(
            f"no room to write {where}; nothing of this change was kept and all before it is safe. "
            "Free some disk, then try again with the same key"
        )


class IndexBehind(StoreError):
    def __init__(self, where: str, sessions: int, why: str) -> None:
        self.sessions, self.why = sessions, why
        super().__init__(
            f"{sessions:,} session(s) of {where} have text that is not indexed yet, and it cannot be now: {why}. "
            "Search what is indexed with search(…, catch_up=False)"
        )


class StoreDamaged(StoreError):
    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} is damaged ({why}); restore a backup, or copy what can be read with verify()"
        )


class StoreClosed(StoreError):
    def __init__(self, where: str) -> None:
        super().__init__(f"the store {where} was closed; open it again with bough.open(…)")
