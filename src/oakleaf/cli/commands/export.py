"""`oakleaf export`: write a session as a bundle, web page, Markdown, or in another tool's format."""

from __future__ import annotations

import codecs
import io
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import click
from click.shell_completion import CompletionItem

from oakleaf import BundleExportResult, ExportResult, Session, plugins
from oakleaf.cli.reference import reference, resolve
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.output import (
    echo,
    for_terminal,
    force_option,
    is_terminal,
    notify,
    plural,
    print_json,
    progress_bar,
    to_json_value,
)
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.cli.text_argument import read_text
from oakleaf.errors import InvalidArgument, OakleafError
from oakleaf.ext import Exporter, find_exporter, formats
from oakleaf.verbs.files import check_target

_OWN = {
    "bundle": "Everything, for import into another store.",
    "html": "One web page that works offline, with the bundle inside; secrets masked.",
    "markdown": "For reading and sharing; secrets masked.",
    "jsonl": "One JSON object per entry of the path.",
    "events": "The path as five types of events, one JSON object each.",
    "finetune": "OpenAI's chat fine-tuning format; complete turns only.",
    "workflow": "A .relavium.yaml scaffold, one node per turn.",
    "inspect": "An Inspect evaluation log with the path as one sample.",
    "otel": "OpenTelemetry GenAI spans, as lines of OTLP JSON.",
}
_FLAGS = {
    "blobs": "--blobs",
    "children": "--no-children",
    "content": "--content",
    "redact": "--redact",
    "hide": "--hide",
}
"""The flag of each option of a format."""


def _formats() -> dict[str, str]:
    """Return the formats, in words: ours, installed or not, and strangers'."""
    return _OWN | {name: _described(name) for name in formats() if name not in _OWN}


def _described(name: str) -> str:
    """Return the format's description from the plugin: `EXPORTS` of the plugin's module."""
    try:
        texts = getattr(plugins.summary_module(plugins.EXPORTS, name), "EXPORTS", {})
        return str(texts.get(name) or f"A format of {plugins.provider_of(plugins.EXPORTS, name)}.")
    except OakleafError as error:
        return f"Cannot be used: {error}"
    except AttributeError:
        return "EXPORTS of its module plugin is not as {NAME: SUMMARY}"


class ExportCommand(click.Command):
    """A command with the formats in the help; only the help needs the words of all plugins."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Formats"):
            formatter.write_dl(list(_formats().items()))


def complete_format(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted({*_OWN, *formats()}) if name.startswith(incomplete)]


def _one_format(ctx: click.Context, param: click.Parameter, typed: tuple[str, ...]) -> str | None:
    if len(typed) > 1:
        raise InvalidArgument("format", list(typed), "one value")
    return typed[0] if typed else None


@click.command(cls=ExportCommand)
@reference
@click.option(
    "--format",
    "named",
    multiple=True,
    callback=_one_format,
    metavar="NAME",
    shell_complete=complete_format,
    help="The format. Default: html for a file .html, markdown for .md, else bundle.",
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
@click.option(
    "--redact/--no-redact", default=None, help="Mask secrets. Default: for every format but the bundle."
)
@click.option(
    "--hide",
    multiple=True,
    metavar="WORD|@FILE",
    help="Bundle: redact a word, too, such as a name, or each line of a file; repeatable.",
)
@click.option("--json", "is_json", is_flag=True, help="Print what was written as JSON.")
@pass_location
def export(
    location: StoreLocation,
    reference: str,
    named: str | None,
    output: str | None,
    force: bool,
    blobs: bool,
    no_children: bool,
    content: bool,
    redact: bool | None,
    hide: tuple[str, ...],
    is_json: bool,
) -> None:
    """Export a session as a bundle, web page, Markdown, or another tool's format.

    A bundle is one file that oakleaf import reads into any store; the same session gives the same bytes. html puts it
    into a page that any browser opens from disk. otel covers every branch of the session. The other formats contain
    the path to the entry that REFERENCE names.

    \b
    oakleaf export latest -o case.oakleaf
    oakleaf export ses_3f -o case.html
    oakleaf export ses_3f@7 --format markdown
    """
    typed = {
        "blobs": blobs or None,
        "children": False if no_children else None,
        "content": content or None,
        "redact": redact,
        "hide": [word for one in hide for word in read_words(one)] or None,
    }
    options = {name: value for name, value in typed.items() if value is not None}
    format_ = named or _format_by_ending(output)
    exporter = find_exporter(format_)
    _check_options(format_, exporter, options)
    if is_json and (output == "-" or (output is None and exporter.is_text)):
        raise CommandError("--json and the export would both go to stdout; name a file with -o FILE")
    if options.get("blobs") and _redacts(exporter, options):
        raise CommandError("attachments cannot be searched for secrets; --blobs needs --no-redact")
    position = resolve(location, reference)
    if position.leaf is not None and exporter.is_whole:
        instead = f"oakleaf fork {shlex.quote(reference)} starts a session that ends there"
        raise CommandError(
            f"this format exports the whole session; {'omit the @' if format_ == 'otel' else instead}"
        )
    session = position.session_at()
    target = _target(_stem(session, exporter), exporter, output, force=force)
    _export(session, format_, exporter, target, options, is_json=is_json)


def read_words(value: str) -> list[str]:
    """Return a word, or the non-empty lines of @FILE."""
    text = read_text(value, "--hide")
    return [line.strip() for line in text.splitlines() if line.strip()] if value.startswith("@") else [text]


def _format_by_ending(output: str | None) -> str:
    """Return the format of a file's name: a page or a text for people, else a bundle."""
    return {".html": "html", ".md": "markdown"}.get(Path(output or "").suffix, "bundle")


def _check_options(format_: str, exporter: Exporter, options: Mapping[str, Any]) -> None:
    """Refuse options of other formats."""
    for option in options:
        if option not in exporter.options.__struct_fields__:
            those = " and ".join(_formats_with(option))
            raise CommandError(
                f"{_FLAGS[option]} applies to {those}, not to {format_}; name one with --format"
            )


def _formats_with(option: str) -> Iterator[str]:
    for name in _formats():
        try:
            exporter = find_exporter(name)
        except OakleafError:
            continue  # not installed, or broken
        if option in exporter.options.__struct_fields__:
            yield name


def _redacts(exporter: Exporter, options: Mapping[str, Any]) -> bool:
    return bool(options.get("hide") or options.get("redact", getattr(exporter.options(), "redact", False)))


def _export(
    session: Session,
    format_: str,
    exporter: Exporter,
    target: Path | BinaryIO,
    options: Mapping[str, Any],
    *,
    is_json: bool,
) -> None:
    """Write a file and report the file, or text to stdout."""
    if "progress" in exporter.options.__struct_fields__:
        with progress_bar("export", unit="lines") as step:
            result = session.export(
                target, format_, **options, progress=lambda progress: step(progress.lines, None)
            )
    else:
        to = target if isinstance(target, Path) else cast(BinaryIO, _TextOutput())
        result = session.export(to, format_, **options)
    if is_json:
        report = to_json_value(result.report)
        print_json(path=str(target), **(report if isinstance(report, dict) else {}) | {"bytes": result.bytes})
        return
    for line in _report_lines(result, target, redacts=_redacts(exporter, options)):
        notify(line)


def _report_lines(result: ExportResult[Any], target: Path | BinaryIO, *, redacts: bool) -> Iterator[str]:
    name = "stdout" if target is sys.stdout.buffer else str(target)
    report = result.report
    if isinstance(report, BundleExportResult):
        sessions = plural(report.counts.sessions, "session")
        yield f"{name}: {sessions}, {report.counts.entries:,} entries, {result.bytes:,} bytes"
        for secret, count in report.redactions.items():
            yield f"masked {count} × {secret}"
        if redacts and not report.redactions:
            yield "no secrets found to mask"
        return
    if hasattr(report, "lines"):
        yield from report.lines()
    if isinstance(target, Path):
        yield f"{name}: {result.bytes:,} bytes"


class _TextOutput(io.RawIOBase):
    """Prints text to stdout: unchanged to a pipe, safe to a terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        echo(for_terminal(self._decoder.decode(data)).encode(), nl=False)
        return len(data)


def _target(stem: str, exporter: Exporter, output: str | None, *, force: bool) -> Path | BinaryIO:
    """Return where the export goes; without a name, text goes to stdout."""
    if output == "-" or (output is None and exporter.is_text):
        if is_terminal() and sys.stdout.isatty() and not exporter.is_text:
            raise CommandError(
                f"refusing to print {exporter.suffix} on a terminal; name a file with -o, or pipe the output"
            )
        return sys.stdout.buffer
    target = Path(output or ".")
    if target.is_dir():
        target /= export_file_name(stem, exporter.suffix)
    check_target(target, force=force)
    return target


def _stem(session: Session, exporter: Exporter) -> str:
    return session.session_id if exporter.file_stem is None else exporter.file_stem(session)


def export_file_name(session_id: str, ending: str) -> str:
    """Return a file name for the session. Its id may come from an untrusted bundle: it must not name a folder or hidden file."""
    return re.sub(r"[^\w.-]|^\.+", "_", session_id)[:100] + ending
