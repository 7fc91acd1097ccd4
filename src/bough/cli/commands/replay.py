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
from ..load_tools import load_tools
from ..reference import bundle_file, find, reference
from ..rendering.error_text import Refused, check_folder
from ..rendering.output import one_of, plain, safe, say, say_json
from ..rendering.progress import bar
from ..store_option import Here, here
from ..text_argument import spoken


@click.command()
@reference
@click.option(
    "--model", "models", multiple=True, metavar="NAME", help="Another model; several are a fallback chain."
)
@click.option("--prompt", metavar="TEXT|@FILE", callback=spoken, help="Another system prompt.")
@click.option(
    "--prompt-patch", metavar="TEXT|@FILE", callback=spoken, help="Said in addition to the system prompt."
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
@one_of(None, json="Print JSON.", markdown="Print Markdown.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the report there instead.")
@here
def replay(
    place: Here,
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
    with opened(output) as file:
        session, seq = _source(place, reference)
        how["start"] = seq if how["start"] is None else how["start"]
        with bar("replay", unit="turns") as step:
            report = session.replay_sync(model=answering or None, progress=step, **how)
        written(report, format_, file)
    say(
        f"bough diff {report.source} {report.replay} compares them again; bough show {report.replay} shows the replay"
    )
    return 0 if report.is_same else 1


def _source(place: Here, name: str) -> tuple[Session, int | None]:
    """The session to replay; one from a bundle is taken in, for its replay is to last."""
    bundle, seq = bundle_file(place, name)
    if bundle is None:
        found = find(place, name)
        if not found.is_on_path:
            raise Refused(
                f"{name} lies on a branch that was left; bough fork {name} makes a session of it to replay"
            )
        return found.session, found.seq
    sessions = place.new_sessions()
    try:
        return sessions.session(sessions.import_bundle(bundle).session_id), seq
    except IdConflict as clash:
        raise Refused(
            f"session id {clash.session_id!r} holds other content here; nothing was taken in. Take it in beside with "
            f"bough import {shlex.quote(str(bundle))} --new-id, then replay the id that is printed"
        ) from None


@contextmanager
def opened(output: str | None) -> Iterator[BinaryIO | None]:
    """Where a report goes, before the work, which may cost money: one that cannot be written is lost. None: stdout."""
    if output is None:
        yield None
        return
    check_folder(Path(output))
    with atomic_file(output) as file:
        yield file


def written(report: Any, format_: str | None, file: BinaryIO | None) -> None:
    """A report as text, JSON or Markdown, on stdout or in a file."""
    if format_ == "json" and file is None:
        say_json(**data(report))
        return
    if format_ == "json":
        from ..rendering.output import as_text

        text = as_text(data(report)).decode()
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


def data(report: Any) -> dict[str, Any]:
    """The report and what it derives."""
    first = report.first_divergence
    return {
        "same": report.is_same,
        "first_divergence": None if first is None else plain(first),
        **plain(report),
    }
