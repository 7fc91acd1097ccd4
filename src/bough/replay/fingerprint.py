"""The fingerprint of a session: one hash over everything a store holds of it, to show that nothing was touched."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from ..log.log import Log


def fingerprint(log: Log) -> str:
    """Row, wide row, branches, entries, journal and ledger, as they are now."""
    store, name = log.store, log.session_id
    whole = sha256()
    for part in (store.session(name), store.detail(name), store.branches(name)):
        whole.update(msgspec.json.encode(part))
    for rows in (store.entries(name), store.journal(name), store.calls(name)):
        for row in rows:
            whole.update(msgspec.json.encode(row))
    return whole.hexdigest()
