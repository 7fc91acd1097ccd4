"""`bough export`: a session as a bundle, web page, Markdown, JSONL, fine-tuning line or workflow."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import click
from msgspec.structs import replace

from ..exchange.bundle_write import Exported, Tell, whole_file
from ..session import Session
from .here import Here, here
from .printing import is_terminal, many, one_of, plain, say, say_json, shown
from .progress import bar
from .reference import find, reference
from .words import Refused, check_folder

_ENDINGS = {
    "bundle": ".bough",
    "html": ".html",
    "markdown": ".md",
    "jsonl": ".jsonl",
    "events": ".jsonl",
    "finetune": ".jsonl",
    "workflow": ".relavium.yaml",
}
_WHOLE = ("bundle", "html")
"""Those that hold the whole session, and are files of their own."""


@click.command()
@reference
@one_of(
    "bundle",
    bundle="Everything, for another store. The default.",
    html="One page to open without network, the bundle inside; redacted.",
    markdown="For reading and sharing; redacted.",
    jsonl="One JSON object per entry of the path.",
    events="The path as the five event types.",
    finetune="OpenAI's chat fine-tuning format; whole turns only.",
    workflow="A .relavium.yaml scaffold, one node per turn.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="A file, a folder, or - for stdout. Default: named after the session.",
)
@click.option("--blobs", is_flag=True, help="Bundle, HTML: images and other attachments too.")
@click.option("--no-children", is_flag=True, help="Bundle, HTML: leave out the tasks it started.")
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
    """Write a session as a bundle, web page, Markdown, JSONL or workflow.

    A bundle is one file that bough import takes in anywhere, the same bytes for the same session. --html puts it into a
    page that any browser opens from disk, as the viewer shows it. The other formats tell the path to where the
    reference stands.

    \b
    bough export latest -o case.bough
    bough export ses_3f --html -o case.html
    bough export ses_3f@7 --markdown
    """
    _refuse_mixed(format_, output, has_parts=blobs or no_children, is_json=is_json)
    found = find(place, reference)
    if format_ not in _WHOLE:
        _write_text(found.standing(), format_, output, redact is not False, is_json=is_json)
        return
    if found.leaf is not None:
        raise Refused(
            f"this format holds the whole session; bough fork {reference} makes one that ends there"
        )
    hides = format_ == "html" if redact is None else redact
    _export_whole(
        found.session,
        format_,
        output,
        {"blobs": blobs, "children": not no_children, "redact": hides},
        is_json=is_json,
    )


def _refuse_mixed(format_: str, output: str | None, *, has_parts: bool, is_json: bool) -> None:
    """What was typed for another format, and two things on one stream."""
    if is_json and (output == "-" or (output is None and format_ not in _WHOLE)):
        raise Refused("--json and what is exported would both go to stdout; name a file with -o FILE")
    if format_ not in _WHOLE and has_parts:
        raise Refused(
            f"--blobs and --no-children are for a bundle or a page; --{format_} holds neither attachments nor tasks"
        )


def _export_whole(
    session: Session, format_: str, output: str | None, how: dict[str, Any], *, is_json: bool
) -> None:
    target = _target(session, format_, output)
    with bar("export", unit="lines") as step:
        report = _write_whole(session, format_, target, how, lambda told: step(told.lines, None))
    if is_json:
        say_json(path=str(target), **plain(report))
    else:
        _say_written(target, report, redacted=how["redact"])


def _say_written(target: Path | BinaryIO, report: Exported, *, redacted: bool) -> None:
    where = "stdout" if target is sys.stdout.buffer else str(target)
    say(
        f"{where}: {many(report.counts.sessions, 'session')}, {report.counts.entries:,} entries, {report.bytes:,} bytes"
    )
    for name, count in report.masked.items():
        say(f"masked {count} × {name}")
    if redacted and not report.masked:
        say("nothing in it looked like a secret")


def _write_whole(
    session: Session, format_: str, target: Path | BinaryIO, how: dict[str, Any], tell: Tell
) -> Exported:
    """A bundle, or a page with one inside; the bytes told are the file's."""
    if how["blobs"] and how["redact"]:
        raise Refused("nobody can look through the bytes of blobs for secrets; --blobs wants --no-redact")
    if format_ == "bundle":
        return session.export(target, progress=tell, **how)
    shared = session.html(target, progress=tell, **how)
    return replace(shared.bundle, bytes=shared.bytes)


def _target(session: Session, format_: str, output: str | None) -> Path | BinaryIO:
    if output == "-":
        if is_terminal() and sys.stdout.isatty() and format_ in _WHOLE:
            raise Refused(
                f"{_ENDINGS[format_]} is not for the screen; name a file with -o, or pipe it somewhere"
            )
        return sys.stdout.buffer
    name = file_name(session.session_id, _ENDINGS[format_])
    if output is None:
        return Path(name)
    check_folder(Path(output))
    return Path(output) / name if Path(output).is_dir() else Path(output)


def file_name(session_id: str, ending: str) -> str:
    """Named after the session. An id may come from a stranger's bundle: it chooses no folder and no hidden file."""
    return re.sub(r"[^\w.-]|^\.+", "_", session_id)[:100] + ending


def _write_text(session: Session, format_: str, output: str | None, redact: bool, *, is_json: bool) -> None:
    """Formats for people and tools go to stdout unless a file is named: they are read at once more often than kept."""
    target = _target(session, format_, output or "-")
    pieces = _pieces(session, format_, redact)
    if not isinstance(target, Path):
        for piece in pieces:
            click.echo(shown(piece).encode(), nl=False)
        return
    size = 0
    with whole_file(target) as file:
        for piece in pieces:
            size += file.write(piece.encode())
    say_json(path=str(target), bytes=size) if is_json else say(f"{target}: {size:,} bytes")


def _pieces(session: Session, format_: str, redact: bool) -> Iterable[str]:
    if format_ == "markdown":
        return session.markdown(redact=redact)
    if format_ == "workflow":
        return [session.workflow(redact=redact)]
    if format_ == "finetune":
        made = session.finetune(redact=redact)
        for skipped in made.skipped:
            say(f"skipped at {skipped.seq}: {skipped.why}")
        if not made.text:
            say("no turn is whole, so there is nothing to learn from")
        return [made.text]
    return session.jsonl("events" if format_ == "events" else "path", redact=redact)
