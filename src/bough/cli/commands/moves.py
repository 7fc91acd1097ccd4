"""`bough fork`, `rewind`, `undo`, `redo`, `compact`, `uncompact`, `title` and `tag`."""

from __future__ import annotations

import click

from ...core.context import active_compactions
from ...errors import InvalidPosition
from ...log.changes import Cut
from ...session import Session
from ..reference import find, find_kept, find_kept_whole, find_whole, needed, reference
from ..rendering.error_text import Refused
from ..rendering.output import as_json, plain, say, say_json, shown
from ..store_option import Here, here
from ..text_argument import piped, spoken


@click.command()
@reference
@click.option("--model", help="Another model from here on.")
@click.option("--prompt", metavar="TEXT|@FILE", callback=spoken, help="Another system prompt.")
@click.option(
    "--prompt-patch", metavar="TEXT|@FILE", callback=spoken, help="Said in addition to the system prompt."
)
@click.option("--tools", metavar="NAMES", help="Only these tools, separated by commas.")
@click.option("--title")
@as_json
@here
def fork(
    place: Here,
    reference: str,
    model: str | None,
    prompt: str | None,
    prompt_patch: str | None,
    tools: str | None,
    title: str | None,
    is_json: bool,
) -> None:
    """Make a new session from any place of another, in O(1).

    No entry is copied and the source is untouched: bough fork ses_3f@7 --prompt @stricter.txt
    """
    found = find_kept(place, reference)
    made = found.standing().fork(
        model=model,
        prompt=prompt,
        prompt_patch=prompt_patch,
        tools=None if tools is None else [name.strip() for name in tools.split(",") if name.strip()],
        title=title,
    )
    if is_json:
        say_json(session={"id": made.session_id}, parent=found.session.session_id, cut=plain(made.cut))
        return
    _say_cut(made.cut)
    click.echo(made.session_id)


@click.command()
@needed
@click.option("--summary", help="What the branch left behind had found, for the model to know.")
@as_json
@here
def rewind(place: Here, reference: str, summary: str | None, is_json: bool) -> None:
    """Move the leaf back; nothing is lost.

    REFERENCE names the place: latest@7, or latest@3:7 on a branch that was left, as bough log --all lists them. The
    next input grows a new branch; bough redo goes back.
    """
    found = find_kept(place, reference)
    if found.seq is None:
        raise Refused(f"say where to: bough rewind {reference}@7; bough log {reference} shows the numbers")
    if summary is not None and not summary.strip():
        raise Refused("--summary is empty; say what the branch had found, or leave it out")
    _moved(found.session, found.moved(summary), is_json=is_json)


@click.command()
@reference
@as_json
@here
def undo(place: Here, reference: str, is_json: bool) -> None:
    """Rewind to before the latest input."""
    session = find_kept_whole(place, reference).session
    try:
        cut = session.undo()
    except InvalidPosition:
        raise Refused(
            f"{session.session_id} has no input to undo; bough log {reference} shows its entries"
        ) from None
    _moved(session, cut, is_json=is_json)


@click.command()
@reference
@as_json
@here
def redo(place: Here, reference: str, is_json: bool) -> None:
    """Go back to where the last rewind came from."""
    session = find_kept_whole(place, reference).session
    session.redo()
    _moved(session, None, is_json=is_json)


@click.command()
@reference
@click.option(
    "--summary",
    metavar="TEXT|@FILE|-",
    callback=spoken,
    help="The summary; without it one is made without a model.",
)
@click.option("--keep-from", type=click.IntRange(1), help="The first entry the model still sees whole.")
@as_json
@here
def compact(place: Here, reference: str, summary: str | None, keep_from: int | None, is_json: bool) -> None:
    """Let a summary stand for what lies before the newest turn.

    Nothing is deleted: bough uncompact brings the exact earlier context back.
    """
    session = find_kept_whole(place, reference).session
    if keep_from is not None and keep_from > session.leaf.seq + 1:
        raise Refused(
            f"--keep-from {keep_from}: the path ends at {session.leaf.seq}; bough log shows the numbers"
        )
    made = session.compact(piped() if summary == "-" else summary, first_kept=keep_from)
    if is_json:
        say_json(session={"id": session.session_id}, leaf=plain(session.leaf), compaction=plain(made))
        return
    click.echo(f"from {session.leaf} on the model sees a summary of what lies before entry {made.first_kept}")


@click.command()
@reference
@as_json
@here
def uncompact(place: Here, reference: str, is_json: bool) -> None:
    """Cancel the latest compaction."""
    session = find_kept_whole(place, reference).session
    if not active_compactions(session.path()):
        raise Refused(f"no compaction is in force at {session.leaf}; bough compact {reference} makes one")
    cancelled = session.uncompact()
    if is_json:
        say_json(session={"id": session.session_id}, leaf=plain(session.leaf), cancels=cancelled.cancels)
        return
    click.echo(f"the compaction at {cancelled.cancels} no longer holds; the earlier context is back")


@click.command()
@needed
@click.argument("words", nargs=-1, metavar="[TEXT]…")
@as_json
@here
def title(place: Here, reference: str, words: tuple[str, ...], is_json: bool) -> None:
    """Name a session; without TEXT print its name, with an empty one ('') take it away."""
    session = (find_kept_whole if words else find_whole)(place, reference).session
    if words:
        session.title(" ".join(words) or None)
    if is_json:
        say_json(session={"id": session.session_id}, title=session.row.title)
    elif not words:
        click.echo(shown(session.row.title or ""))


@click.command()
@needed
@click.argument("tags", nargs=-1, metavar="[NAME=VALUE]…")
@as_json
@here
def tag(place: Here, reference: str, tags: tuple[str, ...], is_json: bool) -> None:
    """Set or remove a session's tags; `name=` removes one, none given prints them."""
    session = (find_kept_whole if tags else find_whole)(place, reference).session
    pairs = {}
    for pair in tags:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise Refused(f"{pair!r} is no tag; write name=value, or name= to remove it")
        pairs[name] = value or None
    now = session.tag(**pairs) if pairs else session.row.tags
    if is_json:
        say_json(session={"id": session.session_id}, tags=now)
        return
    for name, value in sorted(now.items()):
        click.echo(shown(f"{name}={value}"))


def _say_cut(cut: Cut | None) -> None:
    if cut is not None and cut.has_moved:
        say(f"{cut.requested} lies between a call and its results; cut at {cut.at} instead")


def _moved(session: Session, cut: Cut | None, *, is_json: bool) -> None:
    if is_json:
        say_json(session={"id": session.session_id}, leaf=plain(session.leaf), cut=plain(cut))
        return
    _say_cut(cut)
    click.echo(f"{session.session_id} stands at {session.leaf}")


@click.command()
@needed
@click.argument("words", nargs=-1, metavar="[TEXT]…")
@as_json
@here
def label(place: Here, reference: str, words: tuple[str, ...], is_json: bool) -> None:
    """Name a place of a session's tree.

    `bough label latest@7 the good one` names entry 7, an empty text ('') takes the name away; without TEXT the labels
    are listed. bough tree and the viewer show them; no model sees them.
    """
    found = (find_kept if words else find)(place, reference)
    session = found.session
    if words:
        session.label(session.leaf if found.leaf is None else found.leaf, " ".join(words))
    labels = session.labels()
    if not words and found.leaf is not None:
        labels = {leaf: words for leaf, words in labels.items() if leaf == found.leaf}
    if is_json:
        say_json(
            session={"id": session.session_id}, labels={str(leaf): name for leaf, name in labels.items()}
        )
    elif not words:
        for leaf, name in labels.items():
            click.echo(f"{session.session_id}@{leaf}  {shown(name)}")
