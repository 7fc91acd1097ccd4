"""`oakleaf export`: write a session as a bundle, web page, Markdown, or in another tool's format."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click
from msgspec.structs import replace

from oakleaf.bundle.write import atomic_file
from oakleaf.cli.reference import reference, resolve
from oakleaf.cli.rendering.error_text import CommandError, check_target
from oakleaf.cli.rendering.output import (
    echo,
    for_terminal,
    force_option,
    format_options,
    is_terminal,
    notify,
    plural,
    print_json,
    progress_bar,
    to_json_value,
)
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.core.time_text import iso
from oakleaf.session import Session

_ENDINGS = {
    "bundle": ".oakleaf",
    "html": ".html",
    "markdown": ".md",
    "jsonl": ".jsonl",
    "events": ".jsonl",
    "finetune": ".jsonl",
    "workflow": ".relavium.yaml",
    "inspect": ".json",
    "otel": ".jsonl",
}
_FILES = ("bundle", "html")
"""Formats that are files of their own and are not printed on a terminal."""
_WHOLE_SESSION = (*_FILES, "otel")
"""Formats that hold more than one path, so they cannot end at an entry."""
_FORMATS_OF = {
    "--blobs": _FILES,
    "--no-children": _WHOLE_SESSION,
    "--content": ("otel",),
    "--to": ("otel",),
    "--from": ("bundle",),
    "--token-file": ("bundle",),
}
"""The formats each option applies to."""


@click.command()
@reference
@format_options(
    "bundle",
    bundle="Everything, for import into another store. The default.",
    html="One web page that works offline, with the bundle inside; secrets masked.",
    markdown="For reading and sharing; secrets masked.",
    jsonl="One JSON object per entry of the path.",
    events="The path as five types of events, one JSON object each.",
    finetune="OpenAI's chat fine-tuning format; complete turns only.",
    workflow="A .relavium.yaml scaffold, one node per turn.",
    inspect="An Inspect evaluation log with the path as one sample.",
    otel="OpenTelemetry GenAI spans, as lines of OTLP JSON.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="A file, a folder, or - for stdout. Default: a file named after the session.",
)
@force_option
@click.option("--blobs", is_flag=True, help="Bundle, HTML: include images and other attachments.")
@click.option("--no-children", is_flag=True, help="Bundle, HTML, spans: omit the tasks it started.")
@click.option("--content", is_flag=True, help="Spans: include messages, tool arguments and results.")
@click.option("--to", metavar="URL", help="Spans: send them to a collector, such as http://localhost:4318.")
@click.option(
    "--redact/--no-redact", default=None, help="Mask secrets. Default: for every format but the bundle."
)
@click.option("--from", "server", metavar="URL", help="Bundle: download it from the server at this address.")
@click.option("--token-file", metavar="FILE", help="With --from: the file with that server's internal token.")
@click.option("--json", "is_json", is_flag=True, help="Print what was written as JSON.")
@pass_location
def export(
    location: StoreLocation,
    reference: str,
    format_: str,
    output: str | None,
    force: bool,
    blobs: bool,
    no_children: bool,
    content: bool,
    to: str | None,
    redact: bool | None,
    server: str | None,
    token_file: str | None,
    is_json: bool,
) -> None:
    """Export a session as a bundle, web page, Markdown, or another tool's format.

    A bundle is one file that oakleaf import reads into any store; the same session gives the same bytes. --html puts it
    into a page that any browser opens from disk. --otel covers every branch of the session. The other formats contain
    the path to the entry that REFERENCE names.

    \b
    oakleaf export latest -o case.oakleaf
    oakleaf export ses_3f --html -o case.html
    oakleaf export ses_3f@7 --markdown
    oakleaf export ses_3f --otel --to http://localhost:4318
    oakleaf export ses_3f --from https://agents.example.com --token-file token.txt
    """
    typed = {
        "--blobs": blobs,
        "--no-children": no_children,
        "--content": content,
        "--to": to is not None,
        "--from": server is not None,
        "--token-file": token_file is not None,
    }
    _check_options(format_, output, [name for name in typed if typed[name]], is_json=is_json)
    if server is not None:
        how = {"blobs": blobs, "children": not no_children, "redact": bool(redact)}
        _download(
            server, token_file, reference, _file_target(reference, format_, output, force=force), how, is_json
        )
        return
    if token_file is not None:
        raise CommandError("--token-file belongs to --from URL")
    position = resolve(location, reference)
    if position.leaf is not None and format_ in _WHOLE_SESSION:
        instead = f"oakleaf fork {shlex.quote(reference)} starts a session that ends there"
        raise CommandError(
            f"this format exports the whole session; {'omit the @' if format_ == 'otel' else instead}"
        )
    if format_ in _FILES:
        redacts = format_ == "html" if redact is None else redact
        how = {"blobs": blobs, "children": not no_children, "redact": redacts}
        target = _target(position.session, format_, output, force=force)
        _export_whole(position.session, format_, target, how, is_json=is_json)
        return
    how = {"content": content, "children": not no_children} if format_ == "otel" else {}
    pieces = _pieces(position.session_at(), format_, {**how, "redact": redact is not False})
    if to is not None:
        _send(pieces, to, is_json=is_json)
    else:
        _write_text(_target(position.session, format_, output, force=force), pieces, is_json=is_json)


def _check_options(format_: str, output: str | None, typed: Sequence[str], *, is_json: bool) -> None:
    """Refuse options of another format, a bundle under the name of a page, and two outputs on stdout."""
    named = next((name for name in ("html", "markdown") if (output or "").endswith(_ENDINGS[name])), None)
    if format_ == "bundle" and named is not None:
        raise CommandError(
            f"{output} would be a bundle, with secrets as they are; add --{named}, or name a file that ends in .oakleaf"
        )
    for option in typed:
        if format_ not in _FORMATS_OF[option]:
            those = " and ".join(f"--{name}" for name in _FORMATS_OF[option])
            raise CommandError(f"{option} applies to {those}, not to --{format_}")
    if "--to" in typed:
        if output is not None:
            raise CommandError("-o writes the spans and --to sends them; use one of them")
    elif is_json and (output == "-" or (output is None and format_ not in _FILES)):
        raise CommandError("--json and the export would both go to stdout; name a file with -o FILE")


def _send(pieces: Iterable[str], to: str, *, is_json: bool) -> None:
    from oakleaf.cli.otlp_sender import send  # imported late: no other format needs it

    delivery = send(pieces, to)
    if is_json:
        print_json(**to_json_value(delivery))
    else:
        notify(f"{delivery.url}: {plural(delivery.spans, 'span')} in {plural(delivery.requests, 'request')}")


def _export_whole(
    session: Session, format_: str, target: Path | BinaryIO, how: dict[str, Any], *, is_json: bool
) -> None:
    """Write a bundle, or a page with one inside; report the size of the file."""
    if how["blobs"] and how["redact"]:
        raise CommandError("attachments cannot be searched for secrets; --blobs needs --no-redact")
    with progress_bar("export", unit="lines") as step:
        how = {**how, "progress": lambda progress: step(progress.lines, None)}
        if format_ == "bundle":
            report = session.export(target, **how)
        else:
            page = session.html(target, **how)
            report = replace(page.bundle, bytes=page.bytes)
    if is_json:
        print_json(path=str(target), **to_json_value(report))
        return
    name = "stdout" if target is sys.stdout.buffer else str(target)
    sessions = plural(report.counts.sessions, "session")
    notify(f"{name}: {sessions}, {report.counts.entries:,} entries, {report.bytes:,} bytes")
    for secret, count in report.redactions.items():
        notify(f"masked {count} × {secret}")
    if how["redact"] and not report.redactions:
        notify("no secrets found to mask")


def _download(
    server: str,
    token_file: str | None,
    session_id: str,
    target: Path | BinaryIO,
    how: dict[str, Any],
    is_json: bool,
) -> None:
    """Write the bundle of a session of another machine's server."""
    from oakleaf.cli.remote_export import download, read_token  # imported late: nothing else needs it

    with download(server, session_id, read_token(token_file), how) as bundle:
        if not isinstance(target, Path):
            shutil.copyfileobj(bundle, target)
            return
        with atomic_file(target) as file:
            shutil.copyfileobj(bundle, file)
    size = target.stat().st_size
    print_json(path=str(target), bytes=size) if is_json else notify(f"{target}: {size:,} bytes")


def _target(session: Session, format_: str, output: str | None, *, force: bool) -> Path | BinaryIO:
    """Return where the export goes; without a name, text goes to stdout."""
    return _file_target(_stem(session, format_), format_, output, force=force)


def _file_target(stem: str, format_: str, output: str | None, *, force: bool) -> Path | BinaryIO:
    if output == "-" or (output is None and format_ not in _FILES):
        if is_terminal() and sys.stdout.isatty() and format_ in _FILES:
            raise CommandError(
                f"refusing to print {_ENDINGS[format_]} on a terminal; name a file with -o, or pipe the output"
            )
        return sys.stdout.buffer
    target = Path(output or ".")
    if target.is_dir():
        target /= export_file_name(stem, _ENDINGS[format_])
    check_target(target, force=force)
    return target


def _stem(session: Session, format_: str) -> str:
    """Return the file name's stem. Inspect expects a time, a task and an id, joined by `_`, which no part may contain."""
    if format_ != "inspect":
        return session.session_id
    row, mask = session.row, session.log.runtime.redactor.redact_text
    started = iso(row.started_at).partition(".")[0].replace(":", "-")
    parts = (mask(row.agent or "session")[:40], session.session_id)
    return "_".join([started, *(re.sub(r"[^A-Za-z0-9.-]+", "-", part) for part in parts)])


def export_file_name(session_id: str, ending: str) -> str:
    """Return a file name for the session. Its id may come from an untrusted bundle: it must not name a folder or hidden file."""
    return re.sub(r"[^\w.-]|^\.+", "_", session_id)[:100] + ending


def _write_text(target: Path | BinaryIO, pieces: Iterable[str], *, is_json: bool) -> None:
    if not isinstance(target, Path):
        for piece in pieces:
            echo(for_terminal(piece).encode(), nl=False)
        return
    size = 0
    with atomic_file(target) as file:
        for piece in pieces:
            size += file.write(piece.encode())
    print_json(path=str(target), bytes=size) if is_json else notify(f"{target}: {size:,} bytes")


def _pieces(session: Session, format_: str, how: dict[str, bool]) -> Iterable[str]:
    writers: dict[str, Callable[..., str | Iterable[str]]] = {
        "markdown": session.markdown,
        "otel": session.spans,
        "workflow": session.workflow,
        "inspect": session.inspect,
        "finetune": partial(_finetune_text, session),
        "events": partial(session.jsonl, "events"),
        "jsonl": partial(session.jsonl, "path"),
    }
    text = writers[format_](**how)
    return [text] if isinstance(text, str) else text


def _finetune_text(session: Session, *, redact: bool) -> str:
    export = session.finetune(redact=redact)
    for skipped in export.skipped:
        notify(f"skipped at {skipped.seq}: {skipped.why}")
    if not export.text:
        notify("no turn is complete, so the export is empty")
    return export.text
