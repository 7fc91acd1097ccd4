"""Follow the folders of other tools: import each source again when it has changed.

A source is what one import reads: a session file, a task folder, a database. What was read is remembered with size and time
of its files, so a restart reads only what changed since. Importing is idempotent: a state that is lost, or older than the
store, costs time, and nothing is counted twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, field

from oakleaf import Store
from oakleaf.core.typed_json import json_decoder
from oakleaf.errors import NotFound, OakleafError, StoreError
from oakleaf.ingest.importers import Importer, find_importer, read_sessions
from oakleaf.ingest.ingest import ToolImportResult
from oakleaf_importers.formats.source_files import leads_to
from oakleaf_importers.sqlite_files import Signature, file_signature

RETRY_SECONDS = 5.0
SAVE_SECONDS = 1.0
"""How often to save what was read: the first scan may read thousands of sources."""
REVISIT_SECONDS = 10.0
"""When to read a source again whose last answer may not have been finished: importers wait until its file is quiet."""
FIRST_LINE_BYTES = 1 << 20


class WatchedFolder(Struct, frozen=True):
    """A tool and the folder of the tool's sessions."""

    tool: str
    root: Path


class SourceChange(Struct, frozen=True):
    """A source read after a change."""

    tool: str
    source: str
    results: tuple[ToolImportResult, ...] = ()
    error: str | None = None
    """Why it could not be read; it is tried again."""


class SourceState(Struct):
    """The state of a source at the last reading."""

    files: dict[str, Signature] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    """How many facts the journal of each session had then: a store that was restored has fewer."""


_decode_states = json_decoder(dict[str, SourceState])


class Watch:
    """The state of following some folders into a store. `scan` finds and imports what changed."""

    def __init__(
        self,
        store: Store,
        folders: list[WatchedFolder],
        state_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self._clock = store, clock
        # Resolved once: the process may change its folder.
        self.folders = [WatchedFolder(folder.tool, folder.root.absolute()) for folder in folders]
        self._state_file = None if state_file is None else state_file.absolute()
        self.directories: set[Path] = set()
        """Every folder in which a file may appear."""
        self.file_count = 0
        self._states = self._load()
        self._due: dict[str, float] = {}
        """When to read a source again although it has not changed."""
        self._failed: dict[str, dict[str, Signature]] = {}
        """The files of sources that could not be read."""
        self._is_store_away = False
        self._saved_at, self._is_saved = clock(), True

    def scan(self) -> Iterator[SourceChange]:
        """Import every changed source, and every source now due.

        Ends at the first one that the store does not take; the next scan begins with what is missing.
        """
        self.directories, self.file_count = set(), 0
        present: set[str] = set()
        for folder in self.folders:
            for source, files in self._sources(folder).items():
                name = f"{folder.tool} {source}"
                present.add(name)
                if self._is_due(name) or self._has_changed(name, files):
                    try:
                        change = self._import(name, folder.tool, source, files)
                    except StoreError as error:  # the other sources would wait for it, too
                        self._due[name] = self._clock() + RETRY_SECONDS
                        is_told, self._is_store_away = self._is_store_away, True
                        if not is_told:
                            yield SourceChange(folder.tool, source, error=error.command_text)
                        self._save()
                        return
                    self._is_store_away = False
                    yield change
                    if self._clock() - self._saved_at >= SAVE_SECONDS:
                        self._save()
        for name in self._states.keys() - present:  # it is gone; its session stays
            del self._states[name]
            self._is_saved = False
        self._save()

    def _is_due(self, name: str) -> bool:
        return self._due.get(name, float("inf")) <= self._clock()

    def _has_changed(self, name: str, files: dict[str, Signature]) -> bool:
        state = self._states.get(name)
        return self._failed.get(name) != files and (state is None or state.files != files)

    def next_due(self) -> float:
        """Return the seconds until an unchanged source is due for reading."""
        return max(0.0, min(self._due.values(), default=float("inf")) - self._clock())

    def _import(self, name: str, tool: str, source: str, files: dict[str, Signature]) -> SourceChange:
        self._due.pop(name, None)
        self._failed.pop(name, None)
        try:
            records = read_sessions(tool, source)
            results = tuple(map(self.store.import_record, records))
            read = [result.session_id for result in results if result.error is None]
            sessions = {session_id: self.store.session(session_id).row.facts for session_id in read}
        except StoreError:
            raise
        except (OakleafError, OSError) as error:
            self._due[name] = self._clock() + RETRY_SECONDS
            self._failed[name] = files
            return SourceChange(tool, source, error=str(error))
        if any(result.unfinished for result in results):
            self._due[name] = self._clock() + REVISIT_SECONDS
        self._states[name] = SourceState(files, sessions)
        self._is_saved = False
        return SourceChange(tool, source, results)

    # -- files -------------------------------------------------------------------------------------

    def _sources(self, folder: WatchedFolder) -> dict[str, dict[str, Signature]]:
        """Return the files of every source below a folder, with signatures."""
        sources: dict[str, dict[str, Signature]] = {}
        importer = find_importer(folder.tool)
        for path, signature in self._files(folder.root):
            source = source_of(importer, folder.root, path)
            if source is not None:
                sources.setdefault(str(source), {})[str(path)] = signature
                self.file_count += 1
        return sources

    def _files(self, root: Path) -> Iterator[tuple[Path, Signature]]:
        folders: Iterable[tuple[str, list[str], list[str]]] = os.walk(root)
        if root.is_file():
            folders = [(str(root.parent), [], [root.name, f"{root.name}-wal"])]
        for name, _, files in folders:
            self.directories.add(Path(name))
            for file in files:
                path = Path(name, file)
                signature = file_signature(path)
                is_link_out = path != root and path.is_symlink() and not leads_to(root.resolve(), path)
                if signature is not None and not is_link_out:
                    yield path, signature

    # -- what was read -----------------------------------------------------------------------------

    def _load(self) -> dict[str, SourceState]:
        """Return the earlier readings, without sources of sessions missing in the store."""
        if self._state_file is None:
            return {}
        try:
            states = _decode_states(self._state_file.read_bytes())
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}
        return {
            name: state
            for name, state in states.items()
            if all(self._is_stored(session_id, facts) for session_id, facts in state.sessions.items())
        }

    def _is_stored(self, session_id: str, facts: int) -> bool:
        try:
            return self.store.session(session_id).row.facts >= facts
        except NotFound:
            return False
        except OakleafError:  # in the trash, for example: it is known
            return True

    def _save(self) -> None:
        """Replace the state file atomically: a kill leaves the old file or the new file."""
        if self._state_file is None or self._is_saved:
            return
        self._saved_at, self._is_saved = self._clock(), True
        self._state_file.parent.mkdir(parents=True, exist_ok=True)
        new = self._state_file.with_name(f"{self._state_file.name}.{os.getpid()}")
        new.write_bytes(msgspec.json.encode(self._states))
        new.replace(self._state_file)


def source_of(importer: Importer, root: Path, path: Path) -> Path | None:
    """Return the source of a changed file; None for a file outside of sessions."""
    name = path.name
    if path.suffix in (".db", ".sqlite", ".sqlite3") or name.endswith(("-wal", "-journal")):
        database = path.with_name(name.removesuffix("-wal").removesuffix("-journal"))
        return database if database.suffix and database.is_file() else None
    return path if root == path else importer.source_of(root, path)
