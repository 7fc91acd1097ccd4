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
from .agent_options import Agent, Asked, agent_for
from .reference import Place, complete, find_kept, find_kept_whole
from .rendering.error_text import Refused
from .rendering.output import say
from .store_option import Here


class Source(Struct, frozen=True, kw_only=True):
    """The flags of a session's origin, at most one of them."""

    resumed: str | None = None
    copied: str | None = None
    to_point: int | None = None
    overwritten: str | None = None
    from_point: int | None = None

    def __post_init__(self) -> None:
        if len([name for name in (self.resumed, self.copied, self.overwritten) if name is not None]) > 1:
            raise Refused("--resume, --copy and --overwrite exclude each other; name one")
        if self.to_point is not None and self.copied is None:
            raise Refused("--to-point says how much --copy takes along; name what to copy")
        if self.from_point is not None and self.overwritten is None:
            raise Refused("--from-point says where --overwrite goes back to; name the session")

    @property
    def reference(self) -> str | None:
        return next(
            (name for name in (self.resumed, self.copied, self.overwritten) if name is not None), None
        )

    def session(self, here: Here, asked: Asked) -> tuple[Session, Agent]:
        """The session to run in and the agent to run it; nothing is made or moved before both are known to be sound."""
        if self.reference is None:
            return _new(here, asked)
        refuse_naming(asked, *(("agent",) if self.copied is not None else ("title", "tags", "agent")))
        place = find_kept(here, self.reference)
        if self.resumed is not None and place.leaf is not None:
            raise Refused(
                f"--resume goes on where the session stands; for entry {place.leaf.seq} use --copy or --overwrite"
            )
        agent = agent_for(asked, place.session)
        if self.copied is not None:
            return _copied(place, self.to_point, agent), agent
        _refuse_replay(place.session)
        if place.leaf is not None or self.from_point is not None:
            cut = place.moved() if place.leaf is not None else place.session.rewind(self.from_point or 0)
            _say_moved(cut, f"rewound {place.session.session_id} to")
        agent.settle_prompt(place.session)
        return place.session, agent


def _new(here: Here, asked: Asked) -> tuple[Session, Agent]:
    if asked.conversation is None:
        agent = agent_for(asked, None)
        return agent.start(here.new_sessions()), agent
    sessions = here.new_sessions()
    found = sessions.latest(asked.conversation)
    agent = agent_for(asked, found)
    session = agent.start(sessions)
    if found is not None:
        agent.settle_prompt(session)
    return session, agent


def _copied(place: Place, to_point: int | None, agent: Agent) -> Session:
    asked, seq = agent.asked, place.seq if to_point is None else to_point
    source = place.session if to_point is not None else place.standing()
    model = asked.models[0] if asked.models else None
    made = source.fork(seq, model=model, prompt=asked.system, title=asked.title)
    assert made.cut is not None
    _say_moved(made.cut, f"copied {place.session.session_id} to {made.session_id}, up to")
    if asked.tags:
        made.tag(**asked.tags)
    return made


def _say_moved(cut: Cut, what: str) -> None:
    why = f" ({cut.requested} would part a call from its results)" if cut.has_moved else ""
    say(f"{what} entry {cut.at}{why}")


def find_driven(here: Here, reference: str) -> Session:
    """A whole session of this store that may go on."""
    session = find_kept_whole(here, reference).session
    _refuse_replay(session)
    return session


def refuse_naming(asked: Asked, *names: str) -> None:
    """What a session is called is said when it is made, and what is typed is never passed over."""
    if asked.conversation is not None:
        raise Refused("--conversation names the session by itself; leave out --resume, --copy, --overwrite")
    flags = {"title": "--title", "tags": "--tag", "agent": "--agent", "system": "--system"}
    given = [flags[name] for name in names if getattr(asked, name) not in (None, {})]
    if given:
        raise Refused(
            f"{' and '.join(given)}: only for a session that is made; of one that is there bough title and bough tag "
            "change the name and the tags"
        )


def _refuse_replay(session: Session) -> None:
    """Before anything is said of how to go on with it."""
    if session.row.relation == "replay":
        raise SessionIsReplay(session.session_id)


_OPTIONS = (
    click.option(
        "--resume", "resumed", metavar="REFERENCE", shell_complete=complete, help="Go on with this session."
    ),
    click.option(
        "--copy", "copied", metavar="REFERENCE", shell_complete=complete, help="Fork this session first."
    ),
    click.option(
        "--to-point", type=click.IntRange(min=0), metavar="N", help="Of --copy: only up to entry N."
    ),
    click.option(
        "--overwrite",
        "overwritten",
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
