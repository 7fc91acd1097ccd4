"""Where a run goes on from: a new session, one that is there, a copy of one, or an earlier place of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from msgspec import Struct

from ..errors import SessionIsReplay
from ..log.changes import Cut
from ..session import Session
from .agent_options import Agent, AgentOptions, agent_for
from .reference import Position, complete, resolve_stored, resolve_stored_session
from .rendering.error_text import CommandError
from .rendering.output import notify
from .store_option import StoreLocation


class Source(Struct, frozen=True, kw_only=True):
    """The flags of a session's origin, at most one of them."""

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
            raise CommandError("--resume, --copy and --overwrite exclude each other; name one")
        if self.to_point is not None and self.copy_from is None:
            raise CommandError("--to-point says how much --copy takes along; name what to copy")
        if self.from_point is not None and self.overwrite_from is None:
            raise CommandError("--from-point says where --overwrite goes back to; name the session")

    @property
    def reference(self) -> str | None:
        return next(
            (name for name in (self.resume_from, self.copy_from, self.overwrite_from) if name is not None),
            None,
        )

    def session(self, location: StoreLocation, options: AgentOptions) -> tuple[Session, Agent]:
        """The session to run in and the agent to run it; nothing is made or moved before both are known to be sound."""
        if self.reference is None:
            return _new(location, options)
        reject_naming_options(
            options, *(("agent",) if self.copy_from is not None else ("title", "tags", "agent"))
        )
        place = resolve_stored(location, self.reference)
        if self.resume_from is not None and place.leaf is not None:
            raise CommandError(
                f"--resume goes on where the session stands; for entry {place.leaf.seq} use --copy or --overwrite"
            )
        agent = agent_for(options, place.session)
        if self.copy_from is not None:
            return _copied(place, self.to_point, agent), agent
        _refuse_replay(place.session)
        if place.leaf is not None or self.from_point is not None:
            cut = place.move_leaf() if place.leaf is not None else place.session.rewind(self.from_point or 0)
            _print_move(cut, f"rewound {place.session.session_id} to")
        agent.update_prompt(place.session)
        return place.session, agent


def _new(location: StoreLocation, options: AgentOptions) -> tuple[Session, Agent]:
    if options.conversation is None:
        agent = agent_for(options, None)
        return agent.start(location.open_or_create()), agent
    store = location.open_or_create()
    found = store.latest(options.conversation)
    agent = agent_for(options, found)
    session = agent.start(store)
    if found is not None:
        agent.update_prompt(session)
    return session, agent


def _copied(place: Position, to_point: int | None, agent: Agent) -> Session:
    options, seq = agent.options, place.seq if to_point is None else to_point
    source = place.session if to_point is not None else place.session_at()
    model = options.models[0] if options.models else None
    made = source.fork(seq, model=model, prompt=options.system, title=options.title)
    assert made.cut is not None
    _print_move(made.cut, f"copied {place.session.session_id} to {made.session_id}, up to")
    if options.tags:
        made.tag(**options.tags)
    return made


def _print_move(cut: Cut, what: str) -> None:
    why = f" ({cut.requested} would part a call from its results)" if cut.has_moved else ""
    notify(f"{what} entry {cut.at}{why}")


def resolve_runnable(location: StoreLocation, reference: str) -> Session:
    """A whole session of this store that may go on."""
    session = resolve_stored_session(location, reference).session
    _refuse_replay(session)
    return session


def reject_naming_options(options: AgentOptions, *names: str) -> None:
    """What a session is called is said when it is made, and what is typed is never passed over."""
    if options.conversation is not None:
        raise CommandError(
            "--conversation names the session by itself; leave out --resume, --copy, --overwrite"
        )
    flags = {"title": "--title", "tags": "--tag", "agent": "--agent", "system": "--system"}
    given = [flags[name] for name in names if getattr(options, name) not in (None, {})]
    if given:
        raise CommandError(
            f"{' and '.join(given)}: only for a session that is made; of one that is there bough title and bough tag "
            "change the name and the tags"
        )


def _refuse_replay(session: Session) -> None:
    """Before anything is said of how to go on with it."""
    if session.row.relation == "replay":
        raise SessionIsReplay(session.session_id)


_OPTIONS = (
    click.option(
        "--resume",
        "resume_from",
        metavar="REFERENCE",
        shell_complete=complete,
        help="Go on with this session.",
    ),
    click.option(
        "--copy", "copy_from", metavar="REFERENCE", shell_complete=complete, help="Fork this session first."
    ),
    click.option(
        "--to-point", type=click.IntRange(min=0), metavar="N", help="Of --copy: only up to entry N."
    ),
    click.option(
        "--overwrite",
        "overwrite_from",
        metavar="REFERENCE",
        shell_complete=complete,
        help="Go on with this session from an earlier place.",
    ),
    click.option(
        "--from-point",
        type=click.IntRange(min=0),
        metavar="N",
        help="Of --overwrite: rewind to entry N first. What lay behind it stays; bough tree shows it.",
    ),
)


def source_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """--resume, --copy --to-point, --overwrite --from-point; the verb is given them as `source`."""

    @wraps(verb)
    def parsed(*args: Any, **given: Any) -> Any:
        source = Source(**{name: given.pop(name) for name in Source.__struct_fields__})
        return verb(*args, source=source, **given)

    taking: Callable[..., Any] = parsed
    for option in reversed(_OPTIONS):
        taking = option(taking)
    return taking
