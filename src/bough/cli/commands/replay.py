"""`bough replay`: a session executed again, without effects."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click

from ...errors import IdConflict
from ...exchange.bundle.write import atomic_file
from ...models.availability import available_models
from ...session import Session
from ..agent_options import load_tools
from ..reference import bundle_file, complete, reference, resolve
from ..rendering.error_text import CommandError, require_folder
from ..rendering.output import format_options, notify, print_json, progress_bar, safe, to_json_value
from ..store_option import StoreLocation, pass_location
from ..text_argument import text_or_file


@click.command()
@reference
@click.option(
    "--model", "models", multiple=True, metavar="NAME", help="Another model; several are a fallback chain."
)
@click.option("--prompt", metavar="TEXT|@FILE", callback=text_or_file, help="Another system prompt.")
@click.option(
    "--prompt-patch",
    metavar="TEXT|@FILE",
    callback=text_or_file,
    help="Said in addition to the system prompt.",
)
@click.option(
    "--from", "start", type=click.IntRange(0), metavar="N", help="Keep entries 1 to N; default: the seeds."
)
@click.option(
    "--mode",
    type=click.Choice(["strict", "recorded", "dry", "live"]),
    help="strict: the recorded model and tools. recorded: a new model, tools from the recording. dry: what is not "
    "recorded meets the tool's dry run. live: the tools named with --live run.",
)
@click.option(
    "--tools", "sources", multiple=True, metavar="FILE.py|MODULE", help="The tools, for dry and live."
)
@click.option("--live", multiple=True, metavar="TOOL", help="This tool runs for real; repeatable.")
@click.option(
    "--on-miss",
    type=click.Choice(["stop", "next", "tell"]),
    default="stop",
    show_default=True,
    help="A call that was not recorded: stop there, go on with the next input, or tell the model and go on.",
)
@format_options(None, json="Print JSON.", markdown="Print Markdown.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the report there instead.")
@pass_location
def replay(
    location: StoreLocation,
    /,
    reference: str,
    models: tuple[str, ...],
    sources: tuple[str, ...],
    format_: str | None,
    output: str | None,
    **how: Any,
) -> int:
    """Re-execute a session without effects, with another model or prompt.

    The source is not touched: a fork is fed every recorded input and the tools answer from the recording. Says what
    became different first, turn by turn, in words, tools and money. REFERENCE@4 is --from 4; a bundle file is
    taken in first. Exit code 0 the same, 1 different.

    \b
    bough replay latest
    bough replay ses_3f --model openai:MODEL --prompt-patch "Never refund by yourself."
    bough replay ses_3f@7 --model openai:MODEL --mode dry --tools shop.py
    """
    answering = available_models(models)
    how |= {"tools": load_tools(sources)} if sources else {}
    with open_report(output) as file:
        session, seq = _source(location, reference)
        how["start"] = seq if how["start"] is None else how["start"]
        with progress_bar("replay", unit="turns") as step:
            report = session.replay_sync(model=answering or None, progress=step, **how)
        write_report(report, format_, file)
    notify(
        f"bough diff {report.source} {report.replay} compares them again; bough show {report.replay} shows the replay"
    )
    return 0 if report.is_same else 1


def _source(location: StoreLocation, name: str) -> tuple[Session, int | None]:
    """The session to replay; one from a bundle is taken in, for its replay is to last."""
    bundle, seq = bundle_file(location, name)
    if bundle is None:
        found = resolve(location, name)
        if not found.is_on_path:
            raise CommandError(
                f"{name} lies on a branch that was left; bough fork {name} makes a session of it to replay"
            )
        return found.session, found.seq
    store = location.open_or_create()
    try:
        return store.session(store.import_bundle(bundle).session_id), seq
    except IdConflict as clash:
        raise CommandError(
            f"session id {clash.session_id!r} holds other content here; nothing was taken in. Take it in beside with "
            f"bough import {shlex.quote(str(bundle))} --new-id, then replay the id that is printed"
        ) from None


@click.command()
@click.argument("a", shell_complete=complete)
@click.argument("b", shell_complete=complete)
@format_options(None, json="Print JSON.", markdown="Print Markdown.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write it there instead.")
@click.option("-q", "--quiet", is_flag=True, help="Only the exit code.")
@pass_location
def diff(
    location: StoreLocation, a: str, b: str, format_: str | None, output: str | None, quiet: bool
) -> int:
    """Compare two sessions or places turn by turn.

    A and B are references: sessions, places (ses_3f@7), or bundle files. Exit code 0 the same, 1 different.

    \b
    bough diff ses_3f ses_9c
    bough diff latest@7 latest
    """
    if quiet and (format_ or output):
        raise CommandError("-q prints nothing; leave it out, or leave out --json, --markdown and -o")
    from ...replay.diff import diff as compare

    with open_report(output) as file:
        found = compare(resolve(location, a).session_at(), resolve(location, b).session_at())
        if not quiet:
            write_report(found, format_, file)
    return 0 if found.is_same else 1


@contextmanager
def open_report(output: str | None) -> Iterator[BinaryIO | None]:
    """Where a report goes, before the work, which may cost money: one that cannot be written is lost. None: stdout."""
    if output is None:
        yield None
        return
    require_folder(Path(output))
    with atomic_file(output) as file:
        yield file


def write_report(report: Any, format_: str | None, file: BinaryIO | None) -> None:
    """A report as text, JSON or Markdown, on stdout or in a file."""
    if format_ == "json" and file is None:
        print_json(**report_data(report))
        return
    if format_ == "json":
        from ..rendering.output import encode_report

        text = encode_report(report_data(report)).decode()
    else:
        text = report.markdown() if format_ == "markdown" else "\n".join(report.lines())
    if file is None:
        click.echo("\n".join(map(_coloured, safe(text).split("\n"))))
    else:
        file.write(text.encode() + b"\n")


_COLOURS = {"  expected ": "red", "  actual ": "green"}


def _coloured(line: str) -> str:
    """What was and what it became, as a diff shows them."""
    return next((click.style(line, fg=_COLOURS[head]) for head in _COLOURS if line.startswith(head)), line)


def report_data(report: Any) -> dict[str, Any]:
    """The report and what it derives."""
    first = report.first_divergence
    return {
        "same": report.is_same,
        "first_divergence": None if first is None else to_json_value(first),
        **to_json_value(report),
    }
