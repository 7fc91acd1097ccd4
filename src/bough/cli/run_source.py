"""The session a run continues: a new one, an existing one, a fork of one, or an earlier entry of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from msgspec import Struct

from ..errors import SessionIsReplay
from ..log.changes import Cut
from ..session import Session
from .agent_options import AgentOptions, CommandAgent, agent_for
from .reference import Position, complete, resolve_stored, resolve_stored_session
from .rendering.error_text import CommandError
from .rendering.output import notify
from .store_option import StoreLocation


class Source(Struct, frozen=True, kw_only=True):
    """--resume, --copy or --overwrite; at most one of them."""

    resume_from: str | None = None
    copy_from: str | None = None
    to_point: int | None = None
    overwrite_from: str | None = None
    from_point: int | None = None

    def __post_init__(self) -> None:
        if (
            len(
                [name for name in (self.resume_from, self.copy_from, self.overwrite_from) if name is not None]
            )
            > 1
        ):
            raise CommandError("--resume, --copy and --overwrite exclude each other; use one")
        if self.to_point is not None and self.copy_from is None:
            raise CommandError("--to-point needs --copy REFERENCE")
        if self.from_point is not None and self.overwrite_from is None:
            raise CommandError("--from-point needs --overwrite REFERENCE")

    @property
    def reference(self) -> str | None:
        return next(
            (name for name in (self.resume_from, self.copy_from, self.overwrite_from) if name is not None),
            None,
        )

    def session(self, location: StoreLocation, options: AgentOptions) -> tuple[Session, CommandAgent]:
        """Return the session to run in and its agent. Nothing is created or moved before both are valid."""
        if self.reference is None:
            return _new(location, options)
        reject_naming_options(
            options, *(("agent",) if self.copy_from is not None else ("title", "tags", "agent"))
        )
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
            cut = (
                position.move_leaf()
                if position.leaf is not None
                else position.session.rewind(self.from_point or 0)
            )
            _print_move(cut, f"rewound {position.session.session_id} to")
        agent.update_prompt(position.session)
        return position.session, agent


def _new(location: StoreLocation, options: AgentOptions) -> tuple[Session, CommandAgent]:
    if options.conversation is None:
        agent = agent_for(options, None)
        return agent.start(location.open_or_create()), agent
    store = location.open_or_create()
    existing = store.latest(options.conversation)
    agent = agent_for(options, existing)
    session = agent.start(store)
    if existing is not None:
        agent.update_prompt(session)
    return session, agent


def _copy(position: Position, to_point: int | None, agent: CommandAgent) -> Session:
    options, seq = agent.options, position.seq if to_point is None else to_point
    source = position.session if to_point is not None else position.session_at()
    model = options.models[0] if options.models else None
    fork = source.fork(seq, model=model, prompt=options.system, title=options.title)
    assert fork.cut is not None
    _print_move(fork.cut, f"copied {position.session.session_id} to {fork.session_id}, up to")
    if options.tags:
        fork.tag(**options.tags)
    return fork


def _print_move(cut: Cut, what: str) -> None:
    why = f" (entry {cut.requested} is between a call and its results)" if cut.has_moved else ""
    notify(f"{what} entry {cut.at}{why}")


def resolve_runnable(location: StoreLocation, reference: str) -> Session:
    """Resolve a session of this store that can run; a replay cannot."""
    session = resolve_stored_session(location, reference).session
    _refuse_replay(session)
    return session


def reject_naming_options(options: AgentOptions, *names: str) -> None:
    """Refuse options that only apply to a new session."""
    if options.conversation is not None:
        raise CommandError(
            "--conversation already selects the session; omit --resume, --copy and --overwrite"
        )
    flags = {"title": "--title", "tags": "--tag", "agent": "--agent", "system": "--system"}
    given = [flags[name] for name in names if getattr(options, name) not in (None, {})]
    if given:
        raise CommandError(
            f"{' and '.join(given)}: only for a new session; use bough title and bough tag on an existing one"
        )


def _refuse_replay(session: Session) -> None:
    """Refuse a replay before any other message suggests how to continue it."""
    if session.row.relation == "replay":
        raise SessionIsReplay(session.session_id)


_OPTIONS = (
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
        help="With --overwrite: rewind to entry N first. Later entries are kept on their branch; bough tree shows them.",
    ),
)


def source_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add --resume, --copy --to-point and --overwrite --from-point to a command, which receives them as `source`."""

    @wraps(verb)
    def command(*args: Any, **parameters: Any) -> Any:
        source = Source(**{name: parameters.pop(name) for name in Source.__struct_fields__})
        return verb(*args, source=source, **parameters)

    decorated: Callable[..., Any] = command
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
