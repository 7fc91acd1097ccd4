"""`oakleaf fork`, `rewind`, `undo`, `redo`, `compact`, `uncompact`, `title`, `tag` and `label`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from msgspec import Struct

from oakleaf import Cut
from oakleaf.cli.option_group import Decorator, struct_options
from oakleaf.cli.reference import (
    reference,
    required_reference,
    resolve,
    resolve_session,
    resolve_stored,
    resolve_stored_session,
)
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.left_behind import notify_left_behind
from oakleaf.cli.rendering.output import (
    confirm_plan,
    echo,
    is_terminal,
    json_option,
    notify,
    plural,
    print_json,
    yes_option,
)
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.cli.text_argument import read_stdin, text_option
from oakleaf.cli.workspace_plugin import FilesPlan, PlanFiles, find_workspace_plugin, workspace_plugin
from oakleaf.core.context import active_compactions
from oakleaf.errors import InvalidOperation, InvalidPosition
from oakleaf.ext import read
from oakleaf.session import Session


class FileOptions(Struct, frozen=True):
    """--files, and the options that need it."""

    files: bool
    workspace: str | None
    skip_changed: bool
    accept_imported: bool
    yes: bool

    def __post_init__(self) -> None:
        if not self.files and (self.workspace or self.skip_changed or self.accept_imported or self.yes):
            raise CommandError("--workspace, --skip-changed, --accept-imported and --yes need --files")

    @property
    def accepts_imported(self) -> bool:
        """Whether files that an import names may be restored: by the option, or because the plan is shown and asked about."""
        return self.accept_imported or (is_terminal() and not self.yes)

    def move(
        self,
        session: Session,
        plan_files: PlanFiles,
        question: str,
        move: Callable[[str], Cut | None],
        *,
        is_json: bool,
    ) -> int:
        """Show which files change with a move of the leaf, ask, and move; return the exit code."""
        folder = str(Path(self.workspace or ".").resolve())
        plan = plan_files(folder, accept_imported=self.accepts_imported)
        _show_plan(plan, folder, skip_changed=self.skip_changed)
        report = {
            "session": {"id": session.session_id},
            "files": [
                {"kind": each.kind, "path": each.location, "reason": each.reason} for each in plan.actions
            ],
        }
        if not confirm_plan(question.format(plural(len(plan.changes), "file")), yes=self.yes):
            if is_json:
                print_json(**report, is_done=False)
            return 1
        cut = move(folder)
        if is_json:
            more = {} if cut is None else {"cut": cut}
            print_json(**report, is_done=True, leaf=session.leaf, left_behind=session.left_behind(), **more)
            return 0
        notify(plan.summary())
        _print_position(session, cut, is_json=False)
        return 0


def file_options(help: str) -> Decorator:
    return struct_options(
        "options",
        FileOptions,
        click.option("--files", is_flag=True, help=help),
        click.option(
            "--workspace",
            type=click.Path(exists=True, file_okay=False),
            metavar="DIR",
            help="With --files: the folder to restore in. Default: the current one.",
        ),
        click.option(
            "--skip-changed", is_flag=True, help="With --files: skip files that cannot be restored."
        ),
        click.option(
            "--accept-imported",
            is_flag=True,
            help="With --files: also restore what an import says was written in that folder.",
        ),
        yes_option,
    )


@click.command()
@required_reference
@click.option("--summary", help="What the abandoned branch found out; the model sees it.")
@file_options("Restore the files that the agent's workspace tools wrote since: shows a plan, and asks.")
@json_option
@pass_location
def rewind(
    location: StoreLocation, reference: str, summary: str | None, options: FileOptions, is_json: bool
) -> int:
    """Move back to an earlier entry; nothing is deleted.

    REFERENCE names the entry: latest@7, or latest@3:7 on another branch, as oakleaf log --all lists them. The next input
    starts a new branch; oakleaf redo undoes the rewind. What tools did stays done, and is listed: the same call of an
    unsafe tool waits for approval.

    With --files, what write_file and edit_file wrote after that entry is restored, too: changed files get their earlier
    content, new ones are deleted. A file that something else changed since then is refused. Files that shell commands
    wrote are not tracked and stay.

    \b
    oakleaf rewind latest@7
    oakleaf rewind latest@7 --files --yes
    """
    position = resolve_stored(location, reference)
    if position.seq is None:
        raise CommandError(
            f"name the entry to rewind to, such as oakleaf rewind {shlex.quote(f'{reference}@7')}; oakleaf log {shlex.quote(reference)} lists the entries"
        )
    if summary is not None and not summary.strip():
        raise CommandError("--summary is empty; pass some text, or omit it")
    session, seq = position.session, position.seq
    if not options.files:
        _print_position(session, position.move_leaf(summary), is_json=is_json)
        return 0
    if not position.is_on_path:
        raise CommandError(f"--files goes back on the same branch only; {reference} is on another")
    files = workspace_plugin("--files")
    return options.move(
        session,
        partial(files.plan_rewind, session, seq),
        "Restore {} and rewind?",
        lambda folder: files.rewind(
            session,
            seq,
            folder,
            summary=summary,
            skip_changed=options.skip_changed,
            accept_imported=options.accepts_imported,
        ),
        is_json=is_json,
    )


def _show_plan(plan: FilesPlan, folder: str, *, skip_changed: bool) -> None:
    """Show the plan; refuse one that cannot be carried out, and one for another folder."""
    roots = sorted({action.root for action in plan.actions if not action.is_imported})
    if roots and folder not in roots:
        raise CommandError(
            f"the files are in {roots[0]}, and this is {folder}; go there, or pass --workspace {roots[0]}"
        )
    for line in plan.lines():
        notify(line)
    if not plan.actions:
        notify("no file was written by the agent's workspace tools there")
    if not skip_changed:
        plan.raise_if_refused()


@click.command()
@reference
@json_option
@pass_location
def undo(location: StoreLocation, reference: str, is_json: bool) -> None:
    """Move back to before the latest input."""
    session = resolve_stored_session(location, reference)
    try:
        cut = session.undo()
    except InvalidPosition:
        raise CommandError(
            f"{session.session_id} has no input to undo; oakleaf log {shlex.quote(reference)} shows its entries"
        ) from None
    _print_position(session, cut, is_json=is_json)


@click.command()
@reference
@file_options("Write the files again that oakleaf rewind --files restored: shows a plan, and asks.")
@json_option
@pass_location
def redo(location: StoreLocation, reference: str, options: FileOptions, is_json: bool) -> int:
    """Undo the last rewind.

    Files do not change, unless --files writes again what write_file and edit_file wrote after that entry. A file that
    something else changed since the rewind is refused.
    """
    session = resolve_stored_session(location, reference)
    if not options.files:
        count = _unwritten_files(session)
        session.redo()
        if count:
            notify(f"{plural(count, 'file')} of the agent not written again: that is oakleaf redo --files")
        _print_position(session, None, is_json=is_json)
        return 0

    files = workspace_plugin("--files")

    def redo_files(folder: str) -> None:
        files.redo(
            session,
            folder,
            skip_changed=options.skip_changed,
            accept_imported=options.accepts_imported,
        )

    plan = partial(files.plan_redo, session)
    return options.move(session, plan, "Write {} and redo?", redo_files, is_json=is_json)


def _unwritten_files(session: Session) -> int:
    """Return how many files a redo without --files leaves as the rewind restored them."""
    files = find_workspace_plugin()
    if files is None:
        return 0
    try:
        return len(files.plan_redo(session).changes)
    except InvalidOperation:  # it goes to another branch
        return 0


@click.command()
@reference
@text_option(
    "--summary", metavar="TEXT|@FILE|-", help="The summary. Default: an outline, made without a model."
)
@click.option(
    "--keep-from",
    type=click.IntRange(1),
    metavar="N",
    help="The first entry the model still receives in full.",
)
@click.option(
    "--context-tokens",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Make what the model receives fit: older turns, then steps of the newest turn, then long results.",
)
@json_option
@pass_location
def compact(
    location: StoreLocation,
    reference: str,
    summary: str | None,
    keep_from: int | None,
    context_tokens: int | None,
    is_json: bool,
) -> None:
    """Replace older turns with a summary in what the model receives.

    Nothing is deleted: oakleaf uncompact restores the exact earlier context.
    """
    session = resolve_stored_session(location, reference)
    if keep_from is not None and keep_from > session.leaf.seq + 1:
        raise CommandError(
            f"--keep-from {keep_from} is invalid: the path ends at entry {session.leaf.seq}; "
            f"oakleaf log {session.session_id} lists the entries"
        )
    text = read_stdin() if summary == "-" else summary
    compaction = session.compact(text, first_kept=keep_from, context_tokens=context_tokens)
    if is_json:
        print_json(session={"id": session.session_id}, leaf=session.leaf, compaction=compaction)
        return
    if compaction.summary:
        echo(f"the model now receives a summary of everything before entry {compaction.first_kept}")
    for seq, length in compaction.shortened:
        echo(f"the model now receives {length:,} characters of each result at entry {seq}")


@click.command()
@reference
@json_option
@pass_location
def uncompact(location: StoreLocation, reference: str, is_json: bool) -> None:
    """Cancel the latest compaction."""
    session = resolve_stored_session(location, reference)
    if not active_compactions(read(session).control_entries()):
        raise CommandError(
            f"{session.session_id} has no active compaction; oakleaf compact {shlex.quote(reference)} creates one"
        )
    cancelled = session.uncompact()
    if is_json:
        print_json(session={"id": session.session_id}, leaf=session.leaf, cancels=cancelled.cancels)
        return
    echo(
        f"the compaction at entry {cancelled.cancels} is cancelled; the model receives the earlier context again"
    )


@click.command()
@required_reference
@click.argument("words", nargs=-1, metavar="[TEXT]…")
@json_option
@pass_location
def title(location: StoreLocation, reference: str, words: tuple[str, ...], is_json: bool) -> None:
    """Set or print a session's title.

    Without TEXT the title is printed; an empty TEXT ('') removes it.
    """
    session = (resolve_stored_session if words else resolve_session)(location, reference)
    if words:
        session.title(" ".join(words) or None)
    if is_json:
        print_json(session={"id": session.session_id}, title=session.row.title)
    elif not words:
        echo(session.row.title or "")


@click.command()
@required_reference
@click.argument("tags", nargs=-1, metavar="[NAME=VALUE]…")
@json_option
@pass_location
def tag(location: StoreLocation, reference: str, tags: tuple[str, ...], is_json: bool) -> None:
    """Set or remove a session's tags.

    `name=` removes a tag; without tags they are printed.
    """
    session = (resolve_stored_session if tags else resolve_session)(location, reference)
    pairs = {}
    for pair in tags:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CommandError(f"{pair!r} is not a tag; write name=value, or name= to remove it")
        pairs[name] = value or None
    now = session.tag(**pairs) if pairs else session.row.tags
    if is_json:
        print_json(session={"id": session.session_id}, tags=now)
        return
    for name, value in sorted(now.items()):
        echo(f"{name}={value}")


def _print_cut(cut: Cut | None) -> None:
    if cut is not None and cut.has_moved:
        notify(f"entry {cut.requested} is between a call and its results; used entry {cut.at} instead")


def _print_position(session: Session, cut: Cut | None, *, is_json: bool) -> None:
    if is_json:
        print_json(
            session={"id": session.session_id},
            leaf=session.leaf,
            cut=cut,
            left_behind=session.left_behind(),
        )
        return
    _print_cut(cut)
    notify_left_behind(session)
    echo(f"{session.session_id} is at {session.leaf}")


@click.command()
@required_reference
@click.argument("words", nargs=-1, metavar="[TEXT]…")
@json_option
@pass_location
def label(location: StoreLocation, reference: str, words: tuple[str, ...], is_json: bool) -> None:
    """Label an entry of a session.

    `oakleaf label latest@7 the good one` labels entry 7; an empty TEXT ('') removes the label; without TEXT the labels are
    listed. oakleaf tree and the viewer show labels; models do not receive them.
    """
    position = (resolve_stored if words else resolve)(location, reference)
    session = position.session
    if words:
        session.label(session.leaf if position.leaf is None else position.leaf, " ".join(words))
    labels = session.labels()
    if not words and position.leaf is not None:
        labels = {leaf: label for leaf, label in labels.items() if leaf == position.leaf}
    if is_json:
        print_json(
            session={"id": session.session_id}, labels={str(leaf): name for leaf, name in labels.items()}
        )
    elif not words:
        for leaf, name in labels.items():
            echo(f"{session.session_id}@{leaf}  {name}")
