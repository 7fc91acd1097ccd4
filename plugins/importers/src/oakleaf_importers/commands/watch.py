"""`oakleaf import --watch`: follow the folders of other tools until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import click

from oakleaf import plugins
from oakleaf.cli.terminal import (
    CommandError,
    StoreLocation,
    clip,
    echo,
    encode_line,
    notify,
    plural,
    safe,
    to_json_value,
    width,
)
from oakleaf.errors import OakleafError, UnknownImporter
from oakleaf.ingest.importers import find_importer
from oakleaf_importers.inotify import RESCAN_SECONDS, ChangeSignal
from oakleaf_importers.watch import SourceChange, Watch, WatchedFolder

SETTLE_SECONDS = 0.3
"""How long to wait after a change: tools write a message in several pieces."""
PAUSE_FACTOR = 4
"""The pause after an import, as a multiple of its CPU time: a large database must not keep a core busy."""


def watch(location: StoreLocation, tool: str | None, arguments: Sequence[str], *, is_json: bool) -> int:
    """Import the tools' sessions, then later changes; return 0 after Ctrl-C."""
    folders = watched_folders(tool, arguments)
    store = location.open_or_create()
    following = Watch(store, folders, state_file(location, folders))
    screen = WatchOutput(following, is_json=is_json)
    with contextlib.closing(ChangeSignal()) as signal:
        for folder in folders:
            notify(safe(f"watching {folder.root} ({folder.tool}); Ctrl-C ends"))
        try:
            while True:
                started = time.process_time()
                for change in following.scan():
                    screen.show(change)
                screen.status()
                pause = PAUSE_FACTOR * (time.process_time() - started)
                if not signal.watch(following.directories):
                    _wait(signal, following, pause)
        except KeyboardInterrupt:
            screen.end()
    return 0


def _wait(signal: ChangeSignal, following: Watch, pause: float) -> None:
    """Wait for a change, or until a source is due, and then until the tools have settled."""
    due = following.next_due()
    signal.wait(min(due, RESCAN_SECONDS))
    time.sleep(max(SETTLE_SECONDS, pause) if signal.is_immediate else pause)


def watched_folders(tool: str | None, arguments: Sequence[str]) -> list[WatchedFolder]:
    """Return the named tools and folders: tools, and at most one path for the only tool."""
    known = plugins.names(plugins.IMPORTERS)
    tools = [tool] if tool else []
    paths: list[str] = []
    for argument in arguments:
        (tools if argument in known else paths).append(argument)
    for name in paths:
        if not Path(name).expanduser().exists() and Path(name).name == name:  # a word, not a path
            raise CommandError(UnknownImporter(name, known).command_text)
    if len(paths) > 1 or (paths and len(tools) != 1):
        raise CommandError(
            "name one tool and one path, or only tools: oakleaf import --watch claude-code ~/projects"
        )
    if paths:
        path = Path(paths[0]).expanduser().absolute()
        if not path.exists():
            raise CommandError(f"{paths[0]}: no such file or folder")
        find_importer(tools[0])
        return [WatchedFolder(tools[0], path)]
    named = [folder for name in sorted(set(tools)) for folder in _named_folders(name)]
    folders = named or list(_default_folders(known))
    if not folders:
        raise CommandError("no tool has sessions at its default location; name one and its path")
    return folders


def _named_folders(tool: str) -> list[WatchedFolder]:
    places = find_importer(tool).default_places
    if not places:
        raise CommandError(f"{tool} has nothing at its default location; name the path after it")
    return [WatchedFolder(tool, Path(place).absolute()) for place in places]


def _default_folders(tools: Sequence[str]) -> Iterator[WatchedFolder]:
    """Yield the tools' own locations, without locations relative to the working directory. A broken reader is
    named.
    """
    for tool in tools:
        try:
            places = find_importer(tool).default_places
        except OakleafError as error:
            notify(safe(f"{tool} is not watched: {error.command_text}"))
            continue
        yield from (WatchedFolder(tool, Path(place)) for place in places if Path(place).is_absolute())


def state_file(location: StoreLocation, folders: Sequence[WatchedFolder]) -> Path:
    """Return the file for remembering the readings: one file per store, space and set of folders."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    url = str(Path(location.url).absolute()) if location.is_file else location.url
    names = [url, location.space, location.owner or "", *(f"{each.tool} {each.root}" for each in folders)]
    return Path(base) / "oakleaf" / "watch" / f"{sha256(chr(0).join(names).encode()).hexdigest()[:20]}.json"


class WatchOutput:
    """Shows imports: JSON lines, lines of text, and at a terminal one line of status."""

    def __init__(self, following: Watch, *, is_json: bool) -> None:
        self._watch, self._is_json = following, is_json
        self._has_status = sys.stderr.isatty() and not is_json
        self._sessions: set[str] = set()
        self._entries = 0

    def show(self, change: SourceChange) -> None:
        self._clear()
        if change.error is not None:
            if self._is_json:
                self._print_json(change, {"error": change.error})
            else:
                notify(safe(f"{change.tool}: {change.error}"))
        for result in change.results:
            if not result.entries and not result.added and result.error is None:
                continue
            self._sessions |= {result.session_id}
            self._entries += result.entries
            if self._is_json:
                self._print_json(change, to_json_value(result))
            else:
                outcome = f"failed: {result.error}" if result.error else f"{result.entries:,} entries"
                echo(safe("  ".join(filter(None, [result.session_id, outcome, result.title]))))
        sys.stdout.flush()

    def _print_json(self, change: SourceChange, fields: dict[str, object]) -> None:
        echo(encode_line({"tool": change.tool, "path": change.source, **fields}))

    def status(self) -> None:
        """Show one line at a terminal, over the last line."""
        if not self._has_status:
            return
        text = f"{self._summary()}, last look {time.strftime('%H:%M:%S')}"
        click.echo(f"\r\x1b[K{clip(text, width() - 1)}", nl=False, err=True)

    def _summary(self) -> str:
        files = plural(self._watch.file_count, "file")
        return f"{files} watched, {plural(len(self._sessions), 'session')} changed, {self._entries:,} entries"

    def _clear(self) -> None:
        if self._has_status:
            click.echo("\r\x1b[K", nl=False, err=True)

    def end(self) -> None:
        self._clear()
        notify(self._summary())
