"""`bough export`: a session as a bundle, web page or Markdown, or in the formats of other tools."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click
from msgspec.structs import replace

from ...exchange.bundle.write import BundleExportResult, OnProgress, atomic_file
from ...exchange.exports.path_reader import iso
from ...session import Session
from ..reference import reference, resolve
from ..rendering.error_text import CommandError, require_folder
from ..rendering.output import (
    for_terminal,
    format_options,
    is_terminal,
    notify,
    plural,
    print_json,
    progress_bar,
    to_json_value,
)
from ..store_option import StoreLocation, pass_location

_ENDINGS = {
    "bundle": ".bough",
    "html": ".html",
    "markdown": ".md",
    "jsonl": ".jsonl",
    "events": ".jsonl",
    "finetune": ".jsonl",
    "workflow": ".relavium.yaml",
    "inspect": ".json",
    "otel": ".jsonl",
}
_WHOLE = ("bundle", "html")
"""Those that are files of their own, and not for the screen."""
_WITHOUT_PLACE = (*_WHOLE, "otel")
"""Those that hold more than one path."""
_FOR = {
    "--blobs": _WHOLE,
    "--no-children": _WITHOUT_PLACE,
    "--content": ("otel",),
    "--to": ("otel",),
}
"""Which formats an option is for."""


@click.command()
@reference
@format_options(
    "bundle",
    bundle="Everything, for another store. The default.",
    html="One page to open without network, the bundle inside; redacted.",
    markdown="For reading and sharing; redacted.",
    jsonl="One JSON object per entry of the path.",
    events="The path as the five event types.",
    finetune="OpenAI's chat fine-tuning format; whole turns only.",
    workflow="A .relavium.yaml scaffold, one node per turn.",
    inspect="An evaluation log of Inspect: the path as one sample.",
    otel="OpenTelemetry GenAI spans, as lines of OTLP JSON.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="A file, a folder, or - for stdout. Default: named after the session.",
)
@click.option("--blobs", is_flag=True, help="Bundle, HTML: images and other attachments too.")
@click.option("--no-children", is_flag=True, help="Bundle, HTML, spans: leave out the tasks it started.")
@click.option("--content", is_flag=True, help="Spans: what was said, asked for and found, too.")
@click.option("--to", metavar="URL", help="Spans: send them to a collector, such as http://localhost:4318.")
@click.option(
    "--redact/--no-redact", default=None, help="Mask secrets; what is made for sharing does so anyway."
)
@click.option("--json", "is_json", is_flag=True, help="Say as JSON what was written.")
@pass_location
def export(
    location: StoreLocation,
    reference: str,
    format_: str,
    output: str | None,
    blobs: bool,
    no_children: bool,
    content: bool,
    to: str | None,
    redact: bool | None,
    is_json: bool,
) -> None:
    """Write a session as a bundle, web page, Markdown, or for other tools.

    A bundle is one file that bough import takes in anywhere, the same bytes for the same session. --html puts it into a
    page that any browser opens from disk, as the viewer shows it. --otel tells all the session did itself, in any branch.
    The other formats tell the path to where the reference stands.

    \b
    bough export latest -o case.bough
    bough export ses_3f --html -o case.html
    bough export ses_3f@7 --markdown
    bough export ses_3f --otel --to http://localhost:4318
    """
    typed = {"--blobs": blobs, "--no-children": no_children, "--content": content, "--to": to is not None}
    _refuse_mixed(format_, output, [name for name in typed if typed[name]], is_json=is_json)
    found = resolve(location, reference)
    if found.leaf is not None and format_ in _WITHOUT_PLACE:
        raise CommandError(f"this format holds the whole session; {_instead(format_, reference)}")
    if format_ in _WHOLE:
        hides = format_ == "html" if redact is None else redact
        how = {"blobs": blobs, "children": not no_children, "redact": hides}
        _export_whole(found.session, format_, output, how, is_json=is_json)
        return
    how = {"content": content, "children": not no_children} if format_ == "otel" else {}
    pieces = _pieces(found.session_at(), format_, {**how, "redact": redact is not False})
    if to is not None:
        _send(pieces, to, is_json=is_json)
    else:
        _write_text(found.session, format_, output, pieces, is_json=is_json)


def _instead(format_: str, reference: str) -> str:
    if format_ == "otel":
        return "ask for it without a place"
    return f"bough fork {reference} makes one that ends there"


def _refuse_mixed(format_: str, output: str | None, typed: Sequence[str], *, is_json: bool) -> None:
    """What was typed for another format, and two things on one stream."""
    for option in typed:
        if format_ not in _FOR[option]:
            those = " and ".join(f"--{name}" for name in _FOR[option])
            raise CommandError(f"{option} is for {those}; --{format_} has no use for it")
    if "--to" in typed:
        if output is not None:
            raise CommandError("-o writes the spans and --to sends them; ask for one at a time")
    elif is_json and (output == "-" or (output is None and format_ not in _WHOLE)):
        raise CommandError("--json and what is exported would both go to stdout; name a file with -o FILE")


def _send(pieces: Iterable[str], to: str, *, is_json: bool) -> None:
    from ..otlp_sender import send  # late: no other export opens a connection

    sent = send(pieces, to)
    if is_json:
        print_json(**to_json_value(sent))
    else:
        notify(f"{sent.url}: {plural(sent.spans, 'span')} in {plural(sent.requests, 'request')}")


def _export_whole(
    session: Session, format_: str, output: str | None, how: dict[str, Any], *, is_json: bool
) -> None:
    target = _target(session, format_, output)
    with progress_bar("export", unit="lines") as step:
        report = _write_whole(session, format_, target, how, lambda told: step(told.lines, None))
    if is_json:
        print_json(path=str(target), **to_json_value(report))
    else:
        _say_written(target, report, redacted=how["redact"])


def _say_written(target: Path | BinaryIO, report: BundleExportResult, *, redacted: bool) -> None:
    where = "stdout" if target is sys.stdout.buffer else str(target)
    notify(
        f"{where}: {plural(report.counts.sessions, 'session')}, {report.counts.entries:,} entries, {report.bytes:,} bytes"
    )
    for name, count in report.redactions.items():
        notify(f"masked {count} × {name}")
    if redacted and not report.redactions:
        notify("nothing in it looked like a secret")


def _write_whole(
    session: Session, format_: str, target: Path | BinaryIO, how: dict[str, Any], tell: OnProgress
) -> BundleExportResult:
    """A bundle, or a page with one inside; the bytes told are the file's."""
    if how["blobs"] and how["redact"]:
        raise CommandError(
            "nobody can look through the bytes of blobs for secrets; --blobs wants --no-redact"
        )
    if format_ == "bundle":
        return session.export(target, progress=tell, **how)
    shared = session.html(target, progress=tell, **how)
    return replace(shared.bundle, bytes=shared.bytes)


def _target(session: Session, format_: str, output: str | None) -> Path | BinaryIO:
    if output == "-":
        if is_terminal() and sys.stdout.isatty() and format_ in _WHOLE:
            raise CommandError(
                f"{_ENDINGS[format_]} is not for the screen; name a file with -o, or pipe it somewhere"
            )
        return sys.stdout.buffer
    name = export_file_name(_stem(session, format_), _ENDINGS[format_])
    if output is None:
        return Path(name)
    require_folder(Path(output))
    return Path(output) / name if Path(output).is_dir() else Path(output)


def _stem(session: Session, format_: str) -> str:
    """Inspect lists the logs of a folder by their names: a time, a task and an id, with `_` between them alone."""
    if format_ != "inspect":
        return session.session_id
    row, hide = session.row, session.log.runtime.redactor.redact_text
    started = iso(row.started_at).partition(".")[0].replace(":", "-")
    words = (hide(row.agent or "session")[:40], session.session_id)
    return "_".join([started, *(re.sub(r"[^A-Za-z0-9.-]+", "-", word) for word in words)])


def export_file_name(session_id: str, ending: str) -> str:
    """Named after the session. An id may come from a stranger's bundle: it chooses no folder and no hidden file."""
    return re.sub(r"[^\w.-]|^\.+", "_", session_id)[:100] + ending


def _write_text(
    session: Session, format_: str, output: str | None, pieces: Iterable[str], *, is_json: bool
) -> None:
    """Formats for people and tools go to stdout unless a file is named: they are read at once more often than kept."""
    target = _target(session, format_, output or "-")
    if not isinstance(target, Path):
        for piece in pieces:
            click.echo(for_terminal(piece).encode(), nl=False)
        return
    size = 0
    with atomic_file(target) as file:
        for piece in pieces:
            size += file.write(piece.encode())
    print_json(path=str(target), bytes=size) if is_json else notify(f"{target}: {size:,} bytes")


def _pieces(session: Session, format_: str, how: dict[str, bool]) -> Iterable[str]:
    match format_:
        case "markdown":
            return session.markdown(**how)
        case "otel":
            return session.spans(**how)
        case "workflow":
            return [session.workflow(**how)]
        case "inspect":
            return [session.inspect(**how)]
        case "finetune":
            return [_finetune_text(session, how)]
        case "events":
            return session.jsonl("events", **how)
        case _:
            return session.jsonl("path", **how)


def _finetune_text(session: Session, how: dict[str, bool]) -> str:
    made = session.finetune(redact=how["redact"])
    for skipped in made.skipped:
        notify(f"skipped at {skipped.seq}: {skipped.why}")
    if not made.text:
        notify("no turn is whole, so there is nothing to learn from")
    return made.text
