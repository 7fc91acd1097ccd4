"""Which file is encrypted with which key, for every connection of this process.

SQLite itself cannot encrypt. `apsw-sqlite3mc` is the same module around a SQLite that can (ChaCha20-Poly1305 for each
page, the write-ahead log too) and is installed in place of `apsw`. A key belongs to a file and not to a handle: every
other connection of this process, for reading, maintenance or after fork(), needs the same one.
"""

from __future__ import annotations

import os

import apsw

from oakleaf.errors import EncryptionUnavailable, InvalidKey

_KEYS: dict[str, str] = {}


def register_key(path: str, key: str) -> None:
    """Open the file with the key from now on; a new file is created with the key."""
    if not isinstance(key, str) or not key or "\0" in key:
        raise InvalidKey()
    if not hasattr(apsw, "mc_version"):
        raise EncryptionUnavailable(path)
    _KEYS[_real_path(path)] = key


def has_key(path: str) -> bool:
    return _real_path(path) in _KEYS


def unlock(connection: apsw.Connection, path: str) -> None:
    """Set the key of a connection, before anything is read or written."""
    key = _KEYS.get(_real_path(path))
    if key is not None:
        connection.pragma("key", key)
        connection.execute(
            "pragma temp_store = memory"
        )  # temporary data must not be stored in plain text either


def _real_path(path: str) -> str:
    return os.path.realpath(path)
