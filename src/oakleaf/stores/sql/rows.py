"""Conversion between table rows and values, in the order of the column lists, for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oakleaf.core.codec import decode, decode_evidence, decode_message, from_json
from oakleaf.core.drafts import NewEntry
from oakleaf.core.entries import Entry
from oakleaf.core.facts import NO_FIELDS, StoredFact
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Call, Price, Totals, Usage
from oakleaf.stores.base import SessionRow, StoredEntry

SEQ = 0xFFFFFFFF

SESSION_COLUMNS = """number, id, space, owner, conversation_id, agent, title, status, relation, parent_session,
    parent_seq, trigger_type, trigger_id, model, context_window, tool_names, branch, seq, seed_count, turns,
    calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_microcents, unpriced_calls,
    unknown_calls, facts, fence, holder, lease_until, tags, started_at, updated_at, completed_at, trashed_at, error,
    imported_facts"""
ENTRY_COLUMNS = "id, turn, step, kind, internal, model, finish, entry_id, at, evidence, body"
CALL_COLUMNS = """call_id, branch, after_seq, answer_seq, at, input_tokens, output_tokens, cache_read_tokens,
    cache_write_tokens, purpose, bucket, provider, model, cost_microcents, price_version, failed"""


def session_from(row: tuple[Any, ...]) -> SessionRow:
    return SessionRow(
        session_id=row[1],
        space=row[2],
        owner=row[3],
        conversation_id=row[4],
        agent=row[5],
        title=row[6],
        status=row[7],
        relation=row[8],
        parent_session=row[9],
        parent_seq=row[10],
        trigger_type=row[11],
        trigger_id=row[12],
        model=row[13],
        context_window=row[14],
        tool_names=tuple(from_json(row[15])) if row[15] else (),
        leaf=Leaf(row[16], row[17]),
        seed_count=row[18],
        turns=row[19],
        totals=Totals(*row[20:28]),
        facts=row[28],
        fence=row[29],
        holder=row[30],
        lease_until=row[31],
        tags=from_json(row[32]) if row[32] else {},
        started_at=row[33],
        updated_at=row[34],
        completed_at=row[35],
        trashed_at=row[36],
        error=row[37],
        imported_facts=row[38],
    )


def entries_from(rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
    """Convert all rows of a path at once: a load is a tenth faster without a function call per row."""
    return [
        Entry(
            packed >> 32,
            packed & SEQ,
            entry_id,
            turn,
            step,
            decode_message(body) if kind is None else decode(kind, body),
            internal == 1,
            at,
            model,
            finish,
            None if evidence is None else decode_evidence(evidence),
        )
        for packed, turn, step, kind, internal, model, finish, entry_id, at, evidence, body in rows
    ]


def stored_from(row: tuple[Any, ...]) -> StoredEntry:
    packed, turn, step, kind, internal, model, finish, entry_id, at, evidence, body, role, media = row
    entry = NewEntry(
        seq=packed & SEQ,
        entry_id=entry_id,
        turn=turn,
        step=step,
        kind=kind or "message",
        role=role,
        internal=internal == 1,
        at=at,
        body=body if isinstance(body, bytes) else str(body).encode(),  # edited by hand
        model=model,
        finish=finish,
        evidence=evidence,
        media=tuple(sorted(media.split())) if media else (),
    )
    return StoredEntry(packed >> 32, entry)


def call_from(row: tuple[Any, ...]) -> Call:
    price = None if row[13] is None else Price(row[13], row[14])
    return Call(
        call_id=row[0],
        branch=row[1],
        after_seq=row[2],
        answer_seq=row[3],
        at=row[4],
        usage=Usage(*row[5:9]),
        purpose=row[9] or "answer",
        bucket=row[10] or "live",
        provider=row[11],
        model=row[12],
        price=price,
        failed=row[15] == 1,
    )


FACT_COLUMNS = "id, kind, key, branch, first_seq, last_seq, data, at"


def fact_from(row: tuple[Any, ...]) -> StoredFact:
    packed, kind, key, branch, first, last, body, at = row
    leaf = None if branch is None else Leaf(branch, last)
    return StoredFact(packed & SEQ, kind, key, at, NO_FIELDS if body is None else body.encode(), leaf, first)


def fact_row(fact: StoredFact) -> tuple[Any, ...]:
    """Return the columns of a fact after the number."""
    branch, last = (None, None) if fact.leaf is None else (fact.leaf.branch, fact.leaf.seq)
    return fact.kind, fact.key, branch, fact.first, last, body_text(fact.body), fact.at


def body_text(body: bytes) -> str | None:
    """Return the body of a fact for its column: None without fields."""
    return None if body == NO_FIELDS else body.decode()


def entry_row(entry: NewEntry) -> tuple[Any, ...]:
    return (
        entry.seq,
        entry.turn,
        entry.step,
        None if entry.kind == "message" else entry.kind,
        entry.role,
        entry.internal,
        entry.model,
        entry.finish,
        entry.entry_id,
        entry.at,
        entry.evidence,
        entry.body,
    )


def call_row(call: Call, branch: int | None) -> tuple[Any, ...]:
    usage, price = call.usage, call.price
    return (
        call.call_id,
        branch,
        call.after_seq,
        call.answer_seq,
        call.at,
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        None if call.purpose == "answer" else call.purpose,
        None if call.bucket == "live" else call.bucket,
        call.provider,
        call.model,
        None if price is None else price.microcents,
        None if price is None else price.version,
        call.failed,
    )
