"""`bough export`: a session as a bundle, Markdown, JSONL, fine-tuning line or workflow."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import click

from ..session import Session
from .here import Here, here
from .printing import is_terminal, many, plain, say, say_json
from .progress import bar
from .reference import find, reference
from .words import Refused

_ENDINGS = {
    "bundle": ".bough",
    "markdown": ".md",
    "jsonl": ".jsonl",
    "events": ".jsonl",
    "finetune": ".jsonl",
    "workflow": ".relavium.yaml",
}


@click.command()
@reference
@click.option(
    "--bundle",
    "format_",
    flag_value="bundle",
    default="bundle",
    help="Everything, for another store. The default.",
)
@click.option("--markdown", "format_", flag_value="markdown", help="For reading and sharing; redacted.")
@click.option("--jsonl", "format_", flag_value="jsonl", help="One JSON object per entry of the path.")
@click.option("--events", "format_", flag_value="events", help="The path as the five event types.")
@click.option(
    "--finetune", "format_", flag_value="finetune", help="OpenAI's chat fine-tuning format; whole turns only."
)
@click.option(
    "--workflow", "format_", flag_value="workflow", help="A .relavium.yaml scaffold, one node per turn."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="A file, a folder, or - for stdout. Default: named after the session.",
)
@click.option("--blobs", is_flag=True, help="Bundle: images and other attachments too.")
@click.option("--no-children", is_flag=True, help="Bundle: leave out the tasks it started.")
@click.option(
    "--redact/--no-redact", default=None, help="Mask secrets; what is made for sharing does so anyway."
)
@click.option("--json", "is_json", is_flag=True, help="Say as JSON what was written.")
@here
def export(
    place: Here,
    reference: str,
    format_: str,
    output: str | None,
    blobs: bool,
    no_children: bool,
    redact: bool | None,
    is_json: bool,
) -> None:
    """Write a session as a bundle, Markdown, JSONL or workflow.

    A bundle is one file that bough import takes in anywhere, the same bytes for the same session. The other formats
    tell the path to where the reference stands.
    """
    found = find(place, reference)
    if format_ != "bundle":
        _write_text(found.standing(), format_, output, redact is not False, is_json=is_json)
        return
    if found.leaf is not None:
        raise Refused("a bundle holds the whole session; bough fork REFERENCE@N makes one that ends there")
    target = _target(found.session, format_, output)
    how: dict[str, Any] = {"blobs": blobs, "children": not no_children, "redact": bool(redact)}
    with bar("export", unit="lines") as step:
        report = found.session.export(target, progress=lambda told: step(told.lines, None), **how)
    if is_json:
        say_json(path=None if target is sys.stdout.buffer else str(target), **plain(report))
        return
    where = "stdout" if target is sys.stdout.buffer else str(target)
    say(
        f"{where}: {many(report.counts.sessions, 'session')}, {report.counts.entries:,} entries, {report.bytes:,} bytes"
    )
    for name, count in report.masked.items():
        say(f"masked {count} × {name}")
    if redact and not report.masked:
        say("nothing in it looked like a secret")


def _target(session: Session, format_: str, output: str | None) -> Path | BinaryIO:
    if output == "-":
        if is_terminal() and sys.stdout.isatty() and format_ == "bundle":
            raise Refused("a bundle is not for the screen; name a file with -o, or pipe it somewhere")
        return sys.stdout.buffer
    name = f"{session.session_id}{_ENDINGS[format_]}"
    if output is None:
        return Path(name)
    return Path(output) / name if Path(output).is_dir() else Path(output)


def _write_text(session: Session, format_: str, output: str | None, redact: bool, *, is_json: bool) -> None:
    """Formats for people and tools go to stdout unless a file is named: they are read at once more often than kept."""
    target = _target(session, format_, output or "-")
    text = "".join(_pieces(session, format_, redact))
    if isinstance(target, Path):
        target.write_text(text, encoding="utf-8")
        say_json(path=str(target), bytes=len(text.encode())) if is_json else say(
            f"{target}: {len(text.encode()):,} bytes"
        )
    else:
        click.echo(text, nl=False)


def _pieces(session: Session, format_: str, redact: bool) -> Iterable[str]:
    if format_ == "markdown":
        return session.markdown(redact=redact)
    if format_ == "workflow":
        return [session.workflow(redact=redact)]
    if format_ == "finetune":
        made = session.finetune(redact=redact)
        for skipped in made.skipped:
            say(f"skipped at {skipped.seq}: {skipped.why}")
        return [made.text]
    return session.jsonl("events" if format_ == "events" else "path", redact=redact)
