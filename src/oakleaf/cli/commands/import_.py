"""`oakleaf import` and `oakleaf copy`."""

from __future__ import annotations

import math
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from oakleaf import plugins
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.output import (
    echo,
    json_option,
    notify,
    plural,
    print_json,
    progress_bar,
    safe,
)
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.errors import OakleafError
from oakleaf.ingest.importers import find_importer, read_sessions
from oakleaf.ingest.ingest import ToolImportResult
from oakleaf.ingest.records import LossReport


class ToolOption(click.Option):
    """The option --from. Its help says what to name as the source of each tool; only the help needs to load them all."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        sources = "; ".join(f"{tool}: {_source(tool)}" for tool in plugins.names(plugins.IMPORTERS))
        about = f"FILE defaults to its own location: {sources}" if sources else "No importer is installed"
        self.help = f"Import sessions of another tool. {about}."
        return super().get_help_record(ctx)


def _source(tool: str) -> str:
    try:
        return find_importer(tool).source
    except OakleafError as error:
        return f"cannot be used: {error.problem}"


def complete_tool(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in plugins.names(plugins.IMPORTERS) if name.startswith(incomplete)]


@click.command("import")
@click.argument("files", nargs=-1, type=click.Path(allow_dash=True), metavar="[FILE]…")
@click.option(
    "--from",
    "tool",
    cls=ToolOption,
    help="Import sessions of another tool.",
    metavar="TOOL",
    shell_complete=complete_tool,
)
@click.option(
    "-n",
    "--dry-run",
    is_flag=True,
    help="With --from: write nothing, report what would be added to the store and what would be lost.",
)
@click.option(
    "--report",
    "has_report",
    is_flag=True,
    help="With --from: say for each session what share of its lines was understood.",
)
@click.option("--new-id", is_flag=True, help="Import under a new id, even if the session exists here.")
@click.option(
    "--watch",
    "is_watch",
    is_flag=True,
    help="Follow the sessions of other tools as they grow, until Ctrl-C. FILE: the tools, or one tool and its path; default: every tool with sessions at its default location.",
)
@json_option
@pass_location
def import_(
    location: StoreLocation,
    files: tuple[str, ...],
    tool: str | None,
    dry_run: bool,
    has_report: bool,
    new_id: bool,
    is_watch: bool,
    is_json: bool,
) -> int:
    """Import a bundle, or the sessions of another tool.

    A bundle is imported completely or not at all; importing it twice adds nothing. - reads a bundle from stdin. With
    --from, FILE is a file or folder of that tool; it is only read, and what cannot be converted is reported.

    \b
    oakleaf import case.oakleaf
    ssh host oakleaf export latest -o - | oakleaf import -
    oakleaf import --from chat log.jsonl
    oakleaf import --watch claude-code codex
    """
    if is_watch:
        if dry_run or new_id or has_report:
            raise CommandError("--watch cannot be combined with --dry-run, --report or --new-id")
        code: int = plugins.find(plugins.VERBS, "import.watch")(location, tool, files, is_json=is_json)
        return code
    if tool is not None:
        return import_from_tool(
            location, tool, files, new_id=new_id, is_dry=dry_run, has_report=has_report, is_json=is_json
        )
    if dry_run or has_report:
        option = "--dry-run" if dry_run else "--report"
        raise CommandError(f"{option} needs --from TOOL; oakleaf show FILE shows what a bundle holds")
    if not files:
        raise CommandError("name a bundle file, or pass --from TOOL")
    if files[0] in plugins.names(plugins.IMPORTERS) and not Path(files[0]).exists():
        raise CommandError(f"oakleaf import --from {shlex.join(files)} imports sessions of {files[0]}")
    for name in files:  # before one of them is imported
        if name != "-" and not Path(name).exists():
            raise CommandError(f"{name}: no such file; oakleaf export REFERENCE -o FILE writes a bundle")
    reports = []
    for name in files:
        source = sys.stdin.buffer if name == "-" else name
        with progress_bar("import", unit="lines") as step:
            report = location.import_bundle(
                source, new_id=new_id, progress=lambda progress: step(progress.lines, None)
            )
        reports.append(report)
        if not is_json:
            existing = (
                f", {plural(len(report.existing), 'session')} imported before" if report.existing else ""
            )
            missing = (
                f"; {plural(report.missing_blobs, 'attachment')} missing" if report.missing_blobs else ""
            )
            notify(
                f"{name}: {plural(len(report.added), 'session')}, {report.entries:,} entries{existing}{missing}"
            )
            _name_addresses(report.foreign_addresses)
            echo(report.session_id)
    if is_json:
        print_json(imported=reports)
    return 0


def import_from_tool(
    location: StoreLocation,
    tool: str,
    sources: Sequence[str],
    *,
    new_id: bool,
    is_dry: bool,
    has_report: bool,
    is_json: bool,
) -> int:
    """Import another tool's sessions; return 1 if one of them failed, else 0."""
    store = location.open() if location.exists else location.open_memory()
    reports: list[ToolImportResult] = []
    with progress_bar("import", unit="sessions") as step:
        for source in sources or (None,):
            for record in read_sessions(tool, source):
                if not is_dry and record.has_content and not location.exists:
                    store = location.open_or_create()
                reports.append(store.import_record(record, new_id=new_id, dry_run=is_dry))
                step(len(reports), None)
    if is_json:
        print_json(imported=reports, dry_run=is_dry)
    else:
        for result in reports:
            share = [_understood(result.items, result.misread)] if has_report else []
            echo(safe("  ".join([result.session_id, *_outcome(result), *share])))
        for line in _summary_lines(reports, is_dry=is_dry, has_report=has_report):
            notify(safe(line))
        _name_addresses(sorted({address for result in reports for address in result.foreign_addresses}))
    return int(any(result.error for result in reports))


def _name_addresses(addresses: Sequence[str]) -> None:
    if addresses:
        notify(
            safe(
                f"  names models at {', '.join(addresses)}: they get neither a key nor the history unless you name such a "
                f"model yourself, or list the address in OAKLEAF_SERVERS"
            )
        )


def _outcome(result: ToolImportResult) -> Iterator[str]:
    if result.error is not None:
        yield f"failed: {result.error}" + (f"; {result.command_hint}" if result.command_hint else "")
    elif result.added:
        yield f"{result.entries:,} entries"
    else:
        yield f"{result.entries:,} new entries" if result.entries else "imported before"
    if result.unfinished:
        yield "(being written)"
    if result.title:
        yield result.title


def _understood(items: int, misread: int) -> str:
    """Return the understood share of the lines; 100 % only if all were understood."""
    share = math.floor(1_000 * (items - misread) / items) / 10 if items > misread else 0
    return f"understood {share:g} % of {plural(items, 'line')}"


def _summary_lines(reports: Sequence[ToolImportResult], *, is_dry: bool, has_report: bool) -> Iterator[str]:
    losses = LossReport()
    for result in reports:
        losses.merge(LossReport(result.losses))
    sessions = sum(len(result.added) for result in reports)
    grown = sum(bool(result.entries) and not result.added for result in reports)
    action = "would be imported" if is_dry else "imported"
    unchanged = sum(not result.added and not result.entries and not result.error for result in reports)
    yield (
        f"{plural(sessions, 'session')} {action}, {grown} updated, {unchanged} imported before, "
        f"{sum(result.entries for result in reports):,} entries"
    )
    if has_report:
        yield f"  {_understood(sum(each.items for each in reports), sum(each.misread for each in reports))}"
    unfinished = sum(result.unfinished for result in reports)
    if unfinished:
        yield f"  {plural(unfinished, 'answer')} still being written; import again to add {'it' if unfinished == 1 else 'them'}"
    missing = Counter(name for result in reports if not result.error for name in result.missing)
    if missing:
        counts = (f"{name} ({plural(count, 'session')})" for name, count in missing.items())
        yield f"  not in the source: {', '.join(counts)}"
    for description, loss in losses.items():
        examples = f" ({', '.join(loss.examples)})" if loss.examples else ""
        yield f"  lost {loss.count:,} × {description}{examples}"
