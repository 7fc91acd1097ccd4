"""A dumped session with its secrets hidden, to be shown to others: chained anew, under an id of its own.

The log hides what was known to be secret when it was written; this hides what is known now. The id is made of
the old one, so that the same session gives the same bytes, and cannot be turned back. What it says of what
it hid are names and counts. Blobs are not looked through, so none come along.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256

from msgspec.structs import replace

from ...core.codec import chain_id, decode, encode, from_json, to_json
from ...core.entries import BranchSummary, Payload, Unknown
from ...core.redact import Redactor
from ...stores.base import Fact, QueuedInput, SessionDetail, SessionRow, StoredEntry
from ...stores.transfer import SessionExport
from .rename import Names, owned, relinked

_HIDDEN = re.compile(r"\[redacted(?: ([^\]]*))?\]")
UNNAMED = "looks like a secret"
MARK = "redacted"
"""The tag that says so wherever the session goes."""


class CountingRedactor(Redactor):
    """A redactor that counts what it hides."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor
        self.masked: Counter[str] = Counter()

    def may_contain_secret(self, body: bytes) -> bool:
        return self._redactor.may_contain_secret(body)

    def redact_text(self, text: str) -> str:
        hidden = self._redactor.redact_text(text)
        if hidden != text:
            self.masked += _marks(hidden) - _marks(text)
        return hidden


def _marks(text: str) -> Counter[str]:
    return Counter(name or UNNAMED for name in _HIDDEN.findall(text))


class Redaction:
    def __init__(self, redactor: Redactor) -> None:
        self.tally = CountingRedactor(redactor)
        self._sessions = Names(_other("ses"))
        self._conversations = Names(_other("con"))
        self._ids: dict[bytes, bytes] = {b"": b""}

    def dumps(self, dumps: Iterable[SessionExport]) -> Iterator[SessionExport]:
        for dump in dumps:
            row = self._row(dump.row)
            facts = self._facts(relinked(dump.facts, self._sessions, is_root=False))
            changed = replace(
                dump,
                row=row,
                detail=self._detail(dump.detail),
                entries=self._entries(dump),
                facts=facts,
                inbox=self._inbox(dump.inbox),
            )
            yield owned(changed, row.session_id)

    def _row(self, row: SessionRow) -> SessionRow:
        hide = self.tally.redact_json
        return replace(
            row,
            session_id=self._sessions[row.session_id],
            conversation_id=self._conversations[row.conversation_id],
            parent_session=None if row.parent_session is None else self._sessions[row.parent_session],
            owner=None,  # whose mailbox it was is nobody's business
            agent=hide(row.agent),
            title=hide(row.title),
            error=hide(row.error),
            trigger_id=hide(row.trigger_id),
            tags=dict(sorted({**hide(row.tags), MARK: "true"}.items())),
        )

    def _detail(self, detail: SessionDetail) -> SessionDetail:
        """The cached state goes: it is folded again from what is left."""
        return SessionDetail(*(self._json(text) for text in (detail.spec, detail.policy, detail.workspace)))

    def _json(self, text: bytes | None) -> bytes | None:
        if text is None or not self.tally.may_contain_secret(text):
            return text
        return to_json(self.tally.redact_json(from_json(text)), "a redacted value")

    def _facts(self, facts: Iterable[Fact]) -> Iterator[Fact]:
        for fact in facts:
            yield replace(fact, data=self.tally.redact_json(fact.data))

    def _inbox(self, inbox: Iterable[QueuedInput]) -> Iterator[QueuedInput]:
        for queued in inbox:
            yield replace(queued, body=self._body("message", queued.body))

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
            yield StoredEntry(branch, replace(entry, entry_id=last, body=body, evidence=None))

    def _body(self, kind: str, body: bytes) -> bytes:
        if kind == "branch_summary":
            body = self._summary_body(decode(kind, body))
        if not self.tally.may_contain_secret(body):
            return body
        payload = decode(kind, body)
        if isinstance(payload, Unknown):
            return to_json(self.tally.redact_json(from_json(body)), kind)
        return encode(self.tally.redact_payload(payload))

    def _summary_body(self, payload: Payload) -> bytes:
        """It names the branch it left by an id, which is another now."""
        assert isinstance(payload, BranchSummary)
        left = self._ids.get(bytes.fromhex(payload.leaf_id), b"")
        return encode(replace(payload, leaf_id=left.hex()))


def _other(prefix: str) -> Callable[[str], str]:
    def name(old: str) -> str:
        return f"{prefix}_{sha256(f'redacted {old}'.encode()).hexdigest()[:20]}"

    return name
