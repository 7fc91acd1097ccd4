"""Redact an exported session for sharing: hide secrets, recompute the chain, and give it another id.

The log hides what was known to be secret when it was written; this hides what is known now. The new id is a hash of the
old one: the same session gives the same bytes, and the old id cannot be recovered. The result reports only names and
counts of secrets. Media cannot be searched for secrets, so they are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from oakleaf.bundle.rename import IdMap, rename_links, with_owner
from oakleaf.core.codec import chain_id, decode, encode, from_json, to_json
from oakleaf.core.entries import BranchSummary, Payload, Unknown
from oakleaf.core.redact import ENCODED, Redactor, may_contain_packed
from oakleaf.stores.base import SessionDetail, SessionRow, StoredEntry
from oakleaf.stores.transfer import BlobStream, SessionExport

_HIDDEN = re.compile(r"\[redacted(?: ([^\[\]]*))?\]")
UNNAMED = "looks like a secret"
MIN_NUMBER = 5
"""Digits of the shortest number that is hidden: a shorter one may be that of an entry."""
MARK = "redacted"
"""The tag of a redacted session in any store: the id of the session that it was made from."""


class CountingRedactor(Redactor):
    """A redactor that counts hidden secrets, by name."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor
        self.counts: Counter[str] = Counter()

    def may_contain_secret(self, body: bytes) -> bool:
        return self._redactor.may_contain_secret(body)

    def redact_json(self, value: Any) -> Any:
        """Redact numbers, too: the number of a customer is no text in the arguments of a call."""
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and len(text := str(value)) >= MIN_NUMBER
        ):
            hidden = self.redact_text(text)
            return value if hidden == text else hidden
        return super().redact_json(value)

    def redact_text(self, text: str) -> str:
        hidden = self._redactor.redact_text(text)
        if hidden != text:
            self.counts += (_marks(hidden) - _marks(text)) or Counter([UNNAMED])  # packed: marked within
        return hidden


def _marks(text: str) -> Counter[str]:
    return Counter(name.removesuffix(ENCODED) or UNNAMED for name in _HIDDEN.findall(text))


class Redaction:
    def __init__(self, redactor: Redactor) -> None:
        self.redactor = CountingRedactor(redactor)
        self._sessions = IdMap(_hashed_id("ses"))
        self._conversations = IdMap(_hashed_id("con"))
        self._ids: dict[bytes, bytes] = {b"": b""}

    def dumps(self, dumps: Iterable[SessionExport]) -> Iterator[SessionExport]:
        for dump in dumps:
            row = self._row(dump.row)
            links = rename_links(dump.facts, self._sessions, is_root=False)
            hide = self.redactor.redact_json
            changed = replace(
                dump,
                row=row,
                detail=self._detail(dump.detail),
                entries=self._entries(dump),
                calls=(replace(each, model=hide(each.model)) for each in dump.calls),
                inherited_calls=(replace(each, model=hide(each.model)) for each in dump.inherited_calls),
                facts=(
                    replace(fact, key=self._key(fact.key), body=self._fact_body(fact.body)) for fact in links
                ),
                inbox=(replace(each, body=self._body("message", each.body)) for each in dump.inbox),
            )
            yield with_owner(changed, row.session_id)

    def blobs(
        self, blobs: Callable[[Mapping[str, str]], Iterable[BlobStream]]
    ) -> Callable[[Mapping[str, str]], Iterator[BlobStream]]:
        """Leave out tool definitions with a secret: the digest is part of the entries."""

        def clean(mimes: Mapping[str, str]) -> Iterator[BlobStream]:
            for blob in blobs(mimes):
                data = b"".join(blob.pieces)
                if not self.redactor.may_contain_secret(data):
                    yield replace(blob, pieces=(data,))

        return clean

    def _row(self, row: SessionRow) -> SessionRow:
        hide = self.redactor.redact_json
        return replace(
            row,
            session_id=self._sessions[row.session_id],
            conversation_id=self._conversations[row.conversation_id],
            parent_session=None if row.parent_session is None else self._sessions[row.parent_session],
            owner=None,  # the owner is not part of what is shared
            agent=hide(row.agent),
            title=hide(row.title),
            error=hide(row.error),
            model=hide(row.model),
            tool_names=tuple(hide(row.tool_names)),
            trigger_id=hide(row.trigger_id),
            tags=dict(sorted({**hide(row.tags), MARK: self._source(row)}.items())),
        )

    def _source(self, row: SessionRow) -> str:
        """Return the id of the session as it was recorded, or its new id if the old one says what is hidden."""
        source = row.tags.get(MARK, row.session_id)
        return self._sessions[row.session_id] if hides(self.redactor, source) else source

    def _key(self, key: str | None) -> str | None:
        """Return another key for one that says what is hidden. No change is made under it again."""
        return key if key is None or not hides(self.redactor, key) else _hashed_id("key")(key)

    def _detail(self, detail: SessionDetail) -> SessionDetail:
        """Drop the cached state: readers fold the state again from the redacted entries."""
        return SessionDetail(*(self._json(text) for text in (detail.spec, detail.policy, detail.workspace)))

    def _json(self, text: bytes | None) -> bytes | None:
        if text is None or not self.redactor.may_contain_secret(text):
            return text
        return to_json(self.redactor.redact_json(from_json(text)), "a redacted value")

    def _entries(self, dump: SessionExport) -> Iterator[StoredEntry]:
        parents = {branch.branch: (branch.parent, branch.parent_seq) for branch in dump.branches}
        anchors = {*parents.values()}
        ids: dict[tuple[int | None, int], bytes] = {(None, 0): b""}
        branch, last = 0, b""
        for stored in dump.entries:
            entry = stored.entry
            while branch != stored.branch:
                branch += 1
                last = ids[parents[branch]]
                ids[branch, parents[branch][1]] = last
            body = self._body(entry.kind, entry.body)
            last = chain_id(last, entry.kind, entry.turn, entry.step, body)
            self._ids[entry.entry_id] = last
            if (branch, entry.seq) in anchors:
                ids[branch, entry.seq] = last
            yield StoredEntry(
                branch,
                replace(
                    entry,
                    entry_id=last,
                    body=body,
                    evidence=None,
                    model=self.redactor.redact_json(entry.model),
                ),
            )

    def _body(self, kind: str, body: bytes) -> bytes:
        if kind == "branch_summary":
            body = self._summary_body(decode(kind, body))
        if not self.redactor.may_contain_secret(body) and not may_contain_packed(body):
            return body
        payload = decode(kind, body)
        if isinstance(payload, Unknown):
            return to_json(self.redactor.redact_json(from_json(body)), kind)
        return encode(self.redactor.redact_payload(payload))

    def _fact_body(self, body: bytes) -> bytes:
        """Redact the values of any fact; the names of the fields stay."""
        if not self.redactor.may_contain_secret(body):
            return body
        values = {name: self.redactor.redact_json(value) for name, value in from_json(body).items()}
        return to_json(values, "a fact")

    def _summary_body(self, payload: Payload) -> bytes:
        """Replace the changed id of the entry in a reference."""
        assert isinstance(payload, BranchSummary)
        leaf_id = self._ids.get(bytes.fromhex(payload.leaf_id), b"")
        return encode(replace(payload, leaf_id=leaf_id.hex()))


def hides(redactor: Redactor, text: str) -> bool:
    """Return whether a text holds what the redactor hides."""
    return redactor.may_contain_secret(text.encode())


def _hashed_id(prefix: str) -> Callable[[str], str]:
    def name(old: str) -> str:
        return f"{prefix}_{sha256(f'redacted {old}'.encode()).hexdigest()[:20]}"

    return name
