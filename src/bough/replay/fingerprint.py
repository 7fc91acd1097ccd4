"""The fingerprint of a session: one hash over all its stored data, to prove that nothing changed."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from ..log.log import Log


def fingerprint(log: Log) -> str:
    """Hash row, details, branches, entries, journal and ledger as they are now."""
    store, session_id = log.store, log.session_id
    digest = sha256()
    for part in (store.session(session_id), store.detail(session_id), store.branches(session_id)):
        digest.update(msgspec.json.encode(part))
    for rows in (store.entries(session_id), store.journal(session_id), store.calls(session_id)):
        for row in rows:
            digest.update(msgspec.json.encode(row))
    return digest.hexdigest()
