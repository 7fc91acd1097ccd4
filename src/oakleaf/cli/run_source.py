"""The session a run continues: a new one, an existing one, a fork of one, or an earlier entry of one."""

from __future__ import annotations

from collections.abc import Sequence

import click
from msgspec import Struct

from oakleaf import Cut
from oakleaf.cli.agent_options import AgentOptions, CommandAgent, agent_for
from oakleaf.cli.option_group import struct_options
from oakleaf.cli.picker import can_pick, pick
from oakleaf.cli.reference import complete, resolve_stored, resolve_stored_session
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.left_behind import notify_left_behind
from oakleaf.cli.rendering.output import format_age, notify
from oakleaf.cli.store_option import StoreLocation
from oakleaf.errors import SessionIsReplay
from oakleaf.ext import read_store
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.stores.base import SessionRow
from oakleaf.verbs.reference import Position

MAX_PICKED = 1_000
NAMING_KEYS = ("name", "session")
"""Keys of an agent that name a new session."""
OPEN_STATUSES = ("interrupted", "waiting", "failed", "running")
"""The turn of such a session may be open; one that is running may have lost its runner."""


class Source(Struct, frozen=True, kw_only=True):
    """--resume, --copy or --overwrite; at most one of them."""

    resume_from: str | None = None
    copy_from: str | None = None
    to_point: int | None = None
    overwrite_from: str | None = None
    from_point: int | None = None

    def __post_init__(self) -> None:
        if len(self._named) > 1:
            raise CommandError("--resume, --copy and --overwrite exclude each other; use one")
        if self.to_point is not None and self.copy_from is None:
            raise CommandError("--to-point needs --copy REFERENCE")
        if self.from_point is not None and self.overwrite_from is None:
            raise CommandError("--from-point needs --overwrite REFERENCE")

    @property
    def _named(self) -> list[str]:
        return [name for name in (self.resume_from, self.copy_from, self.overwrite_from) if name is not None]

    @property
    def reference(self) -> str | None:
        return next(iter(self._named), None)

    def session(self, location: StoreLocation, options: AgentOptions) -> tuple[Session, CommandAgent]:
        """Return the session to run in and the agent. Nothing is created or moved before both are valid."""
        if self.reference is None:
            return _new(location, options)
        reject_naming_options(options, *(("name",) if self.copy_from is not None else NAMING_KEYS))
        position = resolve_stored(location, self.reference)
        if self.resume_from is not None and position.leaf is not None:
            raise CommandError(
                f"--resume continues at the session's leaf; to continue from entry {position.leaf.seq} use --copy or --overwrite"
            )
        agent = agent_for(options, position.session)
        if self.copy_from is not None:
            return _copy(position, self.to_point, agent), agent
        _refuse_replay(position.session)
        if position.leaf is not None or self.from_point is not None:
            cut = position.session.rewind(position.leaf or self.from_point or 0)
            notify(f"rewound {position.session.session_id} to entry {cut_text(cut)}")
            notify_left_behind(position.session)
        agent.update_prompt(position.session)
        return position.session, agent


def _new(location: StoreLocation, options: AgentOptions) -> tuple[Session, CommandAgent]:
    conversation = options.agent.session.conversation
    if conversation is None:
        agent = agent_for(options, None)
        return agent.start(location.open_or_create()), agent
    store = location.open_or_create()
    existing = store.latest(conversation)
    agent = agent_for(options, existing)
    session = agent.start(store)
    if existing is not None:
        agent.update_prompt(session)
    return session, agent


def _copy(position: Position, to_point: int | None, agent: CommandAgent) -> Session:
    options, seq = agent.options, position.seq if to_point is None else to_point
    about = options.agent.session
    source = position.session if to_point is not None else position.session_at()
    model, prompt = agent.names[0] if options.models else None, options.agent.prompt
    fork = source.fork(seq, model=model, prompt=prompt, effects=options.agent.effects, title=about.title)
    assert fork.cut is not None
    notify(f"copied {position.session.session_id} to {fork.session_id}, up to entry {cut_text(fork.cut)}")
    notify_left_behind(fork)
    if about.tags:
        fork.tag(**about.tags)
    return fork


def cut_text(cut: Cut) -> str:
    """Return the number of the entry, and the reason for a different entry than asked for."""
    why = f" (entry {cut.requested} is between a call and its results)" if cut.has_moved else ""
    return f"{cut.at}{why}"


def resolve_runnable(location: StoreLocation, reference: str) -> Session:
    """Resolve a runnable session of the store; a replay cannot run."""
    session = resolve_stored_session(location, reference)
    _refuse_replay(session)
    return session


def pick_session(location: StoreLocation, command: str, *, is_open: bool = False) -> Session | None:
    """Let the user pick a session by the title or first input; None after leaving. `is_open`: only if a turn
    is open.
    """
    store = location.open()
    rows = store.sessions(include_children=False, limit=MAX_PICKED).sessions
    if is_open:
        rows = [row for row in rows if row.status in OPEN_STATUSES and not read_store(store).is_held(row)]
    if not rows:
        raise CommandError(
            "no session has an interrupted turn; oakleaf ls lists the sessions"
            if is_open
            else "there is no session yet; oakleaf chat starts one"
        )
    if not can_pick():
        raise CommandError(
            f"there is no terminal to pick a session at; name one, as in {command} latest. oakleaf ls lists them"
        )
    index = pick(_session_lines(store, rows), "Which session?", has_filter=True)
    return None if index is None else store.session(rows[index].session_id)


def _session_lines(store: Store, rows: Sequence[SessionRow]) -> list[str]:
    """Return a line per session: the age, the status unless idle, the heading, the id."""
    names, now = store.headings(rows), read_store(store).now()
    ages = [format_age(row.updated_at, now) for row in rows]
    statuses = ["" if row.status == "idle" else row.status for row in rows]
    age_width, status_width = max(map(len, ages)), max(map(len, statuses))
    return [
        f"{age:<{age_width}}  {status:<{status_width}}{'  ' if status_width else ''}"
        f"{names[row.session_id]}{f' ({row.relation})' if row.relation else ''}  {row.session_id}"
        for row, age, status in zip(rows, ages, statuses, strict=True)
    ]


def reject_naming_options(options: AgentOptions, *keys: str) -> None:
    """Refuse typed keys for new sessions only. An agent file may say more: it names and places new sessions only."""
    why = "only for a new session, without --resume, --copy and --overwrite; oakleaf title and oakleaf tag name an existing one"
    options.refuse_typed(("context", "session.conversation", *keys), why)


def _refuse_replay(session: Session) -> None:
    """Refuse a replay before any other message suggests a way to continue."""
    if session.row.relation == "replay":
        raise SessionIsReplay(session.session_id)


source_options = struct_options(
    "source",
    Source,
    click.option(
        "--resume",
        "resume_from",
        metavar="REFERENCE",
        shell_complete=complete,
        help="Continue this session.",
    ),
    click.option(
        "--copy", "copy_from", metavar="REFERENCE", shell_complete=complete, help="Fork this session first."
    ),
    click.option("--to-point", type=click.IntRange(min=0), metavar="N", help="With --copy: fork at entry N."),
    click.option(
        "--overwrite",
        "overwrite_from",
        metavar="REFERENCE",
        shell_complete=complete,
        help="Continue this session from an earlier entry.",
    ),
    click.option(
        "--from-point",
        type=click.IntRange(min=0),
        metavar="N",
        help="With --overwrite: rewind to entry N first. Later entries are kept on their branch; oakleaf tree shows them.",
    ),
)
"""--resume, --copy --to-point and --overwrite --from-point; the command receives them as `source`."""
