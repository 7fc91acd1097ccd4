"""Which file is encrypted with which key, for every connection of this process.

SQLite itself cannot encrypt. `apsw-sqlite3mc` is the same module around a SQLite that can (ChaCha20-Poly1305 for each
page, the write-ahead log too) and is installed in place of `apsw`. A key belongs to a file and not to a handle: whoever
opens the file in this process again, to read, to look after it or after fork(), needs the same one.
"""

from __future__ import annotations

import os

import apsw

from ...errors import EncryptionUnavailable, InvalidKey

_KEYS: dict[str, str] = {}


def register_key(path: str, key: str) -> None:
    """From now on this file is opened with that key, and made with it if there is none."""
    if not isinstance(key, str) or not key or "\0" in key:
        raise InvalidKey()
    if not hasattr(apsw, "mc_version"):
        raise EncryptionUnavailable(path)
    _KEYS[_name(path)] = key


def has_key(path: str) -> bool:
    return _name(path) in _KEYS


def unlock(connection: apsw.Connection, path: str) -> None:
    """Before anything is read or written."""
    key = _KEYS.get(_name(path))
    if key is not None:
        connection.pragma("key", key)
        connection.execute("pragma temp_store = memory")  # what it sorts must not lie in the open either


def _name(path: str) -> str:
    return os.path.realpath(path)
