"""`bough fork`, `rewind`, `undo`, `redo`, `compact`, `uncompact`, `title` and `tag`."""

from __future__ import annotations

import click

from ...core.context import active_compactions
from ...errors import InvalidPosition
from ...log.changes import Cut
from ...session import Session
from ..reference import (
    reference,
    required_reference,
    resolve,
    resolve_session,
    resolve_stored,
    resolve_stored_session,
)
from ..rendering.error_text import CommandError
from ..rendering.output import for_terminal, json_option, notify, print_json, to_json_value
from ..store_option import StoreLocation, pass_location
from ..text_argument import read_stdin, text_or_file


@click.command()
@reference
@click.option("--model", help="Another model from here on.")
@click.option("--prompt", metavar="TEXT|@FILE", callback=text_or_file, help="Another system prompt.")
@click.option(
    "--prompt-patch",
    metavar="TEXT|@FILE",
    callback=text_or_file,
    help="Said in addition to the system prompt.",
)
@click.option("--tools", metavar="NAMES", help="Only these tools, separated by commas.")
@click.option("--title")
@json_option
@pass_location
def fork(
    location: StoreLocation,
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
    found = resolve_stored(location, reference)
    made = found.session_at().fork(
        model=model,
        prompt=prompt,
        prompt_patch=prompt_patch,
        tools=None if tools is None else [name.strip() for name in tools.split(",") if name.strip()],
        title=title,
    )
    if is_json:
        print_json(
            session={"id": made.session_id}, parent=found.session.session_id, cut=to_json_value(made.cut)
        )
        return
    _say_cut(made.cut)
    click.echo(made.session_id)


@click.command()
@required_reference
@click.option("--summary", help="What the branch left behind had found, for the model to know.")
@json_option
@pass_location
def rewind(location: StoreLocation, reference: str, summary: str | None, is_json: bool) -> None:
    """Move the leaf back; nothing is lost.

    REFERENCE names the place: latest@7, or latest@3:7 on a branch that was left, as bough log --all lists them. The
    next input grows a new branch; bough redo goes back.
    """
    found = resolve_stored(location, reference)
    if found.seq is None:
        raise CommandError(
            f"say where to: bough rewind {reference}@7; bough log {reference} shows the numbers"
        )
    if summary is not None and not summary.strip():
        raise CommandError("--summary is empty; say what the branch had found, or leave it out")
    _moved(found.session, found.move_leaf(summary), is_json=is_json)


@click.command()
@reference
@json_option
@pass_location
def undo(location: StoreLocation, reference: str, is_json: bool) -> None:
    """Rewind to before the latest input."""
    session = resolve_stored_session(location, reference).session
    try:
        cut = session.undo()
    except InvalidPosition:
        raise CommandError(
            f"{session.session_id} has no input to undo; bough log {reference} shows its entries"
        ) from None
    _moved(session, cut, is_json=is_json)


@click.command()
@reference
@json_option
@pass_location
def redo(location: StoreLocation, reference: str, is_json: bool) -> None:
    """Go back to where the last rewind came from."""
    session = resolve_stored_session(location, reference).session
    session.redo()
    _moved(session, None, is_json=is_json)


@click.command()
@reference
@click.option(
    "--summary",
    metavar="TEXT|@FILE|-",
    callback=text_or_file,
    help="The summary; without it one is made without a model.",
)
@click.option("--keep-from", type=click.IntRange(1), help="The first entry the model still sees whole.")
@json_option
@pass_location
def compact(
    location: StoreLocation, reference: str, summary: str | None, keep_from: int | None, is_json: bool
) -> None:
    """Let a summary stand for what lies before the newest turn.

    Nothing is deleted: bough uncompact brings the exact earlier context back.
    """
    session = resolve_stored_session(location, reference).session
    if keep_from is not None and keep_from > session.leaf.seq + 1:
        raise CommandError(
            f"--keep-from {keep_from}: the path ends at {session.leaf.seq}; bough log shows the numbers"
        )
    made = session.compact(read_stdin() if summary == "-" else summary, first_kept=keep_from)
    if is_json:
        print_json(
            session={"id": session.session_id},
            leaf=to_json_value(session.leaf),
            compaction=to_json_value(made),
        )
        return
    click.echo(f"from {session.leaf} on the model sees a summary of what lies before entry {made.first_kept}")


@click.command()
@reference
@json_option
@pass_location
def uncompact(location: StoreLocation, reference: str, is_json: bool) -> None:
    """Cancel the latest compaction."""
    session = resolve_stored_session(location, reference).session
    if not active_compactions(session.path()):
        raise CommandError(
            f"no compaction is in force at {session.leaf}; bough compact {reference} makes one"
        )
    cancelled = session.uncompact()
    if is_json:
        print_json(
            session={"id": session.session_id}, leaf=to_json_value(session.leaf), cancels=cancelled.cancels
        )
        return
    click.echo(f"the compaction at {cancelled.cancels} no longer holds; the earlier context is back")


@click.command()
@required_reference
@click.argument("words", nargs=-1, metavar="[TEXT]…")
@json_option
@pass_location
def title(location: StoreLocation, reference: str, words: tuple[str, ...], is_json: bool) -> None:
    """Name a session; without TEXT print its name, with an empty one ('') take it away."""
    session = (resolve_stored_session if words else resolve_session)(location, reference).session
    if words:
        session.title(" ".join(words) or None)
    if is_json:
        print_json(session={"id": session.session_id}, title=session.row.title)
    elif not words:
        click.echo(for_terminal(session.row.title or ""))


@click.command()
@required_reference
@click.argument("tags", nargs=-1, metavar="[NAME=VALUE]…")
@json_option
@pass_location
def tag(location: StoreLocation, reference: str, tags: tuple[str, ...], is_json: bool) -> None:
    """Set or remove a session's tags; `name=` removes one, none given prints them."""
    session = (resolve_stored_session if tags else resolve_session)(location, reference).session
    pairs = {}
    for pair in tags:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CommandError(f"{pair!r} is no tag; write name=value, or name= to remove it")
        pairs[name] = value or None
    now = session.tag(**pairs) if pairs else session.row.tags
    if is_json:
        print_json(session={"id": session.session_id}, tags=now)
        return
    for name, value in sorted(now.items()):
        click.echo(for_terminal(f"{name}={value}"))


def _say_cut(cut: Cut | None) -> None:
    if cut is not None and cut.has_moved:
        notify(f"{cut.requested} lies between a call and its results; cut at {cut.at} instead")


def _moved(session: Session, cut: Cut | None, *, is_json: bool) -> None:
    if is_json:
        print_json(
            session={"id": session.session_id}, leaf=to_json_value(session.leaf), cut=to_json_value(cut)
        )
        return
    _say_cut(cut)
    click.echo(f"{session.session_id} stands at {session.leaf}")


@click.command()
@required_reference
@click.argument("words", nargs=-1, metavar="[TEXT]…")
@json_option
@pass_location
def label(location: StoreLocation, reference: str, words: tuple[str, ...], is_json: bool) -> None:
    """Name a place of a session's tree.

    `bough label latest@7 the good one` names entry 7, an empty text ('') takes the name away; without TEXT the labels
    are listed. bough tree and the viewer show them; no model sees them.
    """
    found = (resolve_stored if words else resolve)(location, reference)
    session = found.session
    if words:
        session.label(session.leaf if found.leaf is None else found.leaf, " ".join(words))
    labels = session.labels()
    if not words and found.leaf is not None:
        labels = {leaf: words for leaf, words in labels.items() if leaf == found.leaf}
    if is_json:
        print_json(
            session={"id": session.session_id}, labels={str(leaf): name for leaf, name in labels.items()}
        )
    elif not words:
        for leaf, name in labels.items():
            click.echo(f"{session.session_id}@{leaf}  {for_terminal(name)}")
