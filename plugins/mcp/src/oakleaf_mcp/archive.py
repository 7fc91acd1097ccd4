"""What the tools of `oakleaf mcp` answer: past sessions as text of bounded length, each with how to read on.

Reads one store, and so one space and, if the store was opened for one, one owner. Writes nothing but the search index.
Other agents' models read it, so secrets are masked that a session was stored with. Does not know MCP.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import reduce
from itertools import islice
from typing import Literal, get_args

import msgspec

from oakleaf import SearchHit, Session, Store, diff
from oakleaf.core.entries import BranchSummary, Compaction, Entry, Note, Settings
from oakleaf.core.messages import Media, Message, ProviderBlock, Reasoning, Text, ToolCall, ToolResult
from oakleaf.core.redact_entries import redact_entries
from oakleaf.core.time_text import parse_time
from oakleaf.core.tree import parse_seq
from oakleaf.core.usage import Totals, add, format_cost
from oakleaf.errors import IndexBehind, InvalidArgument, NotFound, plural, shorten
from oakleaf.ext import read, read_store
from oakleaf.stores.base import SessionRow, Status
from oakleaf.stores.counts import UsageColumn, UsageSums

MAX_BYTES = 24_000
"""The maximum bytes of one answer: about six thousand tokens."""
MAX_ENTRY = 1_500
"""The maximum characters of one entry among others."""
MAX_ROWS = 50
QUARTER = 900 * 1_000_000
"""Usage is summed by quarters of an hour, so that each time zone has its days; in microseconds."""
Group = Literal["day", "model", "agent", "session"]
GROUPS = get_args(Group)
STATUSES = get_args(Status)

_NO_NAME = {"model": "(unknown)", "agent": "(none)"}


class Archive:
    """The past sessions of one store."""

    def __init__(self, store: Store) -> None:
        self._store, self._reader = store, read_store(store)

    def close(self) -> None:
        self._store.close()

    def search(self, query: str, limit: int = 10, cursor: str | None = None) -> str:
        """Search what was said and done in past sessions.

        Matches all words; "a phrase", prefix* and -excluded work. Filters: role:tool tool:NAME model:NAME error:true
        agent:NAME tag:NAME=VALUE session:ID before:2026-11-01 after:7d is:replay (else replays are left out). Each hit starts with a reference for `show`.
        """
        _check("limit", limit, 1, MAX_ROWS)
        with suppress(IndexBehind):  # what is indexed can still be searched
            self._store.index()
        page = self._store.search(query, limit=limit, before=cursor, catch_up=False)
        if not page.hits:
            return "Nothing found. Try fewer words, a prefix* or another filter."
        names = self._reader.hit_headings(page.hits)
        lines = [self._hit_text(hit, names[hit.session_id]) for hit in page.hits]
        if page.unindexed_sessions:
            lines.append(f"[{page.unindexed_sessions} sessions cannot be indexed now; they may be missing]")
        return self._bounded(lines, None if page.next is None else f"more: cursor={page.next!r}")

    def sessions(
        self,
        agent: str | None = None,
        status: str | None = None,
        model: str | None = None,
        tag: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> str:
        """List past sessions, last active first: id, time, status, turns, cost, model and title.

        `tag` is NAME=VALUE. Tasks and replays are not listed; `tree` and `show` name them.
        """
        _check("limit", limit, 1, MAX_ROWS)
        if status is not None and status not in STATUSES:
            raise InvalidArgument("status", status, f"one of {', '.join(STATUSES)}")
        name, equals, value = (tag or "").partition("=")
        if tag is not None and not (name and equals):
            raise InvalidArgument("tag", tag, "NAME=VALUE")
        page = self._store.sessions(
            agent=agent,
            status=status,  # type: ignore[arg-type]
            model=model,
            tag=None if tag is None else (name, value),
            include_children=False,
            limit=limit,
            before=cursor,
        )
        if not page.sessions:
            return "No session is like that."
        names = self._store.headings(page.sessions)
        lines = [_row_text(row, names[row.session_id]) for row in page.sessions]
        return self._bounded(lines, None if page.next is None else f"more: cursor={page.next!r}")

    def show(self, session: str, first: int = 1, limit: int = 20, offset: int = 0) -> str:
        """Show entries of a session's path, from entry `first` on; long ones are cut.

        `session` is an id, a prefix of one, or "latest". ID@7 shows entry 7 alone, from character `offset` on.
        """
        _check("limit", limit, 1, 200)
        _check("first", first, 1)
        _check("offset", offset, 0)
        position, seq = self._resolve(session)
        if seq is not None:
            return self._show_entry(position, seq, offset)
        row = position.row
        last = position.leaf.seq
        lines = [_row_text(row, self._store.headings([row])[row.session_id])]
        if row.parent_session is not None:
            lines.append(f"{row.relation} of {row.parent_session} at entry {row.parent_seq}")
        last_shown = first - 1
        for entry in _read_entries(position, first, min(first + limit - 1, last)):
            text = _entry_text(entry, MAX_ENTRY, position.session_id)
            if sum(map(_size, lines)) + _size(text) > MAX_BYTES and last_shown >= first:
                break
            lines.append(text)
            last_shown = entry.seq
        more = f"more: first={last_shown + 1} (of {last} entries)" if last_shown < last else None
        return self._bounded(lines, more)

    def _show_entry(self, session: Session, seq: int, offset: int) -> str:
        if not 0 < seq <= session.leaf.seq:
            raise InvalidArgument(
                "session", f"{session.session_id}@{seq}", f"an entry up to {session.leaf.seq}"
            )
        (entry,) = _read_entries(session, seq, seq)
        text = _entry_text(entry, None, session.session_id)
        piece = text[offset : offset + MAX_BYTES // 2]
        end = offset + len(piece)
        return piece if end >= len(text) else f"{piece}\n[more: offset={end} of {len(text)}]"

    def tree(self, session: str, first_line: int = 1) -> str:
        """Show the branches of a session as a tree, and its forks, tasks and replays."""
        _check("first_line", first_line, 1)
        position, _ = self._resolve(session)
        children = [
            f"{child.relation} {child.session_id} at entry {child.parent_seq}"
            for child in islice(self._store.all_sessions(parent_session=position.session_id), MAX_ROWS)
        ]
        lines: list[str] = []
        number, room = first_line - 1, MAX_BYTES - sum(map(_size, children))
        for line in islice((line.text for line in read(position).tree_lines()), first_line - 1, None):
            room -= _size(line) + 1
            if room < 0:
                return self._bounded([*lines, *children], f"more: first_line={number + 1}")
            lines.append(line)
            number += 1
        return self._bounded([*lines, *children]) or "The session is empty."

    def usage(self, session: str | None = None, by: Group = "model", since: str | None = None) -> str:
        """Sum tokens and cost of one session with its tasks and forks, or of all with the trash, by day, model, agent or session.

        `since` is a date, yesterday, or an age such as 7d. Of all sessions, replays are summed apart.
        """
        if by not in GROUPS:
            raise InvalidArgument("by", by, ", ".join(GROUPS))
        floor = 0 if since is None else parse_time("since", since, self._reader.now())
        sums: dict[str, Totals] = {}
        spent = self._sums(session, "quarter" if by == "day" else by, floor)
        for value, part in spent.live.items():
            name = _time(int(value) * QUARTER)[:10] if by == "day" else value or _NO_NAME[by]
            sums[name] = add(sums.get(name, Totals()), part)
        replays = []
        if spent.replays:
            replays = [_totals_text("replays, not in the total", reduce(add, spent.replays.values()))]
        if not sums:
            return "\n".join(["No model was called.", *replays])
        order = sorted(sums) if by == "day" else sorted(sums, key=lambda name: -sums[name].cost_microcents)
        lines = [_totals_text(name, sums[name]) for name in order[:MAX_ROWS]]
        lines += [_totals_text("total", reduce(add, sums.values())), *replays]
        return self._bounded(
            lines, None if len(order) <= MAX_ROWS else f"{len(order) - MAX_ROWS} more; narrow with since="
        )

    def diff(self, a: str, b: str) -> str:
        """Compare two sessions turn by turn: what they share, the first difference, tokens and cost.

        Each is an id, or ID@7 for the path up to entry 7.
        """
        return self._bounded(diff(self._target(a), self._target(b)).lines())

    # -- text --------------------------------------------------------------------------------------

    def _bounded(self, lines: Sequence[str], more: str | None = None) -> str:
        """Return the lines without secrets, as far as one answer may be long."""
        text = "\n".join(map(self._reader.redactor.redact_text, lines))
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_BYTES:
            start = data[:MAX_BYTES].decode("utf-8", "ignore")
            text = f"{start}\n[cut: {len(data):,} bytes in total; ask for less]"
        return f"{text}\n[{more}]" if more else text

    def _hit_text(self, hit: SearchHit, heading: str) -> str:
        place = f"@{hit.seq}" if hit.seq and hit.on_path else ""
        side = (
            "" if hit.on_path or not hit.seq else f" (branch {hit.branch}, entry {hit.seq}, not on the path)"
        )
        what = " ".join(filter(None, [hit.relation, hit.role or hit.kind, hit.tool]))
        title = "" if heading == hit.session_id else f" · {shorten(heading, 80)}"
        snippet = hit.highlight("**", "**")
        plain = hit.highlight("", "")
        if (redacted := self._reader.redactor.redact_text(plain)) != plain:
            snippet = redacted  # the marks would be within the secret
        return f"{hit.session_id}{place}{side} · {what} · {_time(hit.at)}{title}\n    {' '.join(snippet.split())}"

    # -- finding sessions --------------------------------------------------------------------------

    def _target(self, reference: str) -> Session | tuple[Session, int]:
        session, seq = self._resolve(reference)
        return session if seq is None else (session, seq)

    def _resolve(self, reference: str) -> tuple[Session, int | None]:
        """Return the session of an id, a unique prefix of one or "latest", and the entry after @."""
        name, at, number = reference.strip().rpartition("@")
        seq = parse_seq(number) if at else None
        name = reference.strip() if seq is None else name
        if name == "latest":
            latest = self._store.latest()
            if latest is None:
                raise NotFound("latest")
            return latest, seq
        with suppress(NotFound):
            return self._store.session(name), seq
        rows = self._store.sessions(id_prefix=name, limit=3).sessions if len(name) >= 4 else []
        if len(rows) > 1:
            raise InvalidArgument(
                "session", name, f"one session: {', '.join(row.session_id for row in rows)}, …"
            )
        if not rows:
            raise NotFound(name)
        return self._store.session(rows[0].session_id), seq

    def _sums(self, session: str | None, by: UsageColumn, since: int) -> UsageSums:
        """Sum those of all sessions in the database: a store may have millions of calls."""
        if session is None:
            return self._reader.usage_by(by, since)
        position, _ = self._resolve(session)
        return UsageSums(read(position).usage_by(by, "tree", since=since))


# -- text ----------------------------------------------------------------------------------------------


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d %H:%M")


def _row_text(row: SessionRow, heading: str) -> str:
    title = "" if heading == row.session_id else f" · {shorten(heading, 120)}"
    facts = [_time(row.updated_at), row.status, plural(row.turns, "turn"), format_cost(row.totals)]
    facts += [text for text in (row.model, row.agent and f"agent {row.agent}") if text]
    facts += [] if row.trashed_at is None else [f"in the trash since {_time(row.trashed_at)}"]
    return f"{row.session_id} · {' · '.join(facts)}{title}"


def _totals_text(name: str, sums: Totals) -> str:
    tokens = f"{sums.input_tokens:,} in, {sums.cache_read_tokens:,} cached, {sums.output_tokens:,} out"
    return f"{name}: {plural(sums.calls, 'call')} · {tokens} · {format_cost(sums)}"


def _read_entries(session: Session, first: int, last: int) -> list[Entry]:
    """Return these entries of the path, without secrets; nothing if the first is after the last."""
    reader = read(session)
    return list(redact_entries(reader.entries(first, last), reader.redactor))


def _entry_text(entry: Entry, most: int | None, session_id: str) -> str:
    """Return an entry as text; a cut one says how to read it whole."""
    head, body = _describe(entry)
    model = f" · {entry.model}" if entry.model else ""
    if most is not None and len(body) > most:
        body = f"{body[:most]}… [{len(body):,} characters; all of it: show({f'{session_id}@{entry.seq}'!r})]"
    return f"## {entry.seq} · {head}{model} · {_time(entry.at)}\n{body}".rstrip()


def _describe(entry: Entry) -> tuple[str, str]:
    match entry.payload:
        case Message(role=role) as message:
            return role, "\n".join(text for part in message.parts if (text := _part_text(part)))
        case Note() as note:
            return "note", "" if note.hidden else msgspec.json.encode(note.data).decode()
        case Compaction(summary=summary, first_kept=first):
            return "summary", f"Summary of everything before {first}:\n{summary}"
        case BranchSummary(summary=summary):
            return "summary of another branch", summary
        case Settings() as settings:
            changes = {
                name: value for name, value in msgspec.to_builtins(settings).items() if value is not None
            }
            return "settings", msgspec.json.encode(changes).decode()
    return entry.kind, ""


def _part_text(part: object) -> str:
    match part:
        case Text(text=text):
            return text
        case Reasoning(text=text):
            return f"(thought) {text}" if text else ""
        case ToolCall(name=name, arguments=arguments):
            return f"call {name}({msgspec.json.encode(arguments).decode()})"
        case ToolResult() as result:
            pieces = [
                piece.text if isinstance(piece, Text) else _part_text(piece) for piece in result.content
            ]
            failed = " (error)" if result.error else ""
            outcome = "" if result.outcome == "done" else f" ({result.outcome})"
            return f"result{failed}{outcome}: " + "\n".join(pieces)
        case Media(mime=mime, size=size, name=name):
            return f"[{name or mime}, {size:,} bytes]"
        case ProviderBlock(stub=stub):
            return stub
    return ""


def _check(name: str, value: int, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        raise InvalidArgument(name, value, f"from {least}" + ("" if most is None else f" to {most}"))
