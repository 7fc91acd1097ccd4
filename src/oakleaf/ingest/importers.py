"""Read another tool's sessions by the tool's name. A plugin adds a reader to the group `oakleaf.importers`.

Knows no tool and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import date, timedelta
from itertools import chain
from pathlib import Path

from msgspec import Struct

from oakleaf import plugins
from oakleaf.errors import InvalidSource, PluginMissing, UnknownImporter
from oakleaf.ingest.records import SessionRecord
from oakleaf.install import extra_of

CHECKED_FOR = timedelta(days=365)


def _no_source(root: Path, file: Path) -> None:
    return None


class Importer(Struct, frozen=True, kw_only=True):
    """A reader of a tool's sessions. Readers never write to a source; losses go into the records."""

    source: str
    """People's name of a source: "its projects folder, or one .jsonl file in it"."""
    sessions: Callable[[str], Iterator[SessionRecord]]
    """Read the sessions of a source. Raises InvalidSource for a place without sessions of the tool."""
    default_paths: tuple[str, ...] = ()
    """The tool's default places of sessions; every existing path is read."""
    source_of: Callable[[Path, Path], Path | None] = _no_source
    """For `import --watch`: the source to read when a file below a root has changed; None if the file is no part of a session.
    Databases need no answer: they are sources themselves."""
    versions: str = ""
    """The versions of the tool's format that the reader was written for, for people."""
    checked: date | None = None
    """The date of the newest file of the tool's own that was read with the reader; None: there was none."""
    conversation: Callable[[str, str], SessionRecord | None] | None = None
    """Read a single conversation of a source by id, if cheaper than reading all."""

    def is_checked(self, today: date) -> bool:
        """Return whether a file of the tool's own from the last year was read."""
        return self.checked is not None and self.checked > today - CHECKED_FOR

    @property
    def default_places(self) -> list[str]:
        """The existing default paths; of several, those that are not empty folders."""
        paths = [path for name in self.default_paths if (path := Path(name).expanduser()).exists()]
        filled = [path for path in paths if not _is_empty(path)]
        return [str(path) for path in filled or paths]


def find_importer(tool: str) -> Importer:
    """Return the reader of a tool. Raises UnknownImporter with the known tools, PluginMissing or PluginBroken."""
    names = plugins.names(plugins.IMPORTERS)
    if tool not in names:
        if extra_of(plugins.IMPORTERS, tool):
            raise PluginMissing(plugins.IMPORTERS, tool)
        raise UnknownImporter(tool, names)
    importer = plugins.find(plugins.IMPORTERS, tool)
    if not isinstance(importer, Importer):
        raise plugins.broken(
            plugins.IMPORTERS,
            tool,
            f"it is {type(importer).__name__}, not an Importer of oakleaf.ingest.importers",
        )
    return importer


def read_sessions(tool: str, source: str | None = None) -> Iterator[SessionRecord]:
    """Read the sessions of a tool from `source` or the default locations."""
    importer = find_importer(tool)
    places = [source] if source else importer.default_places
    if not places:
        paths = " or ".join(importer.default_paths)
        reason = f"nothing is at {paths}" if paths else "it has no default location"
        raise InvalidSource(None, tool, f"{reason}; name {importer.source}")
    return chain.from_iterable([_checked(tool, place, importer.sessions(place)) for place in places])


def read_conversation(tool: str, source: str, conversation_id: str) -> SessionRecord | None:
    """Read a single conversation of a tool; None if the source lacks the conversation."""
    importer = find_importer(tool)
    if importer.conversation is not None:
        return importer.conversation(source, conversation_id)
    records = _checked(tool, source, importer.sessions(source))
    return next((record for record in records if record.conversation_id == conversation_id), None)


def _is_empty(path: Path) -> bool:
    try:
        return path.is_dir() and not any(path.iterdir())
    except PermissionError:  # reading it says so
        return False


def _checked(tool: str, place: str, records: Iterable[object]) -> Iterator[SessionRecord]:
    if not isinstance(records, Iterable):
        raise plugins.broken(plugins.IMPORTERS, tool, f"it read {type(records).__name__}, not sessions")
    try:
        for record in records:
            if not isinstance(record, SessionRecord):
                raise plugins.broken(
                    plugins.IMPORTERS, tool, f"it read {type(record).__name__}, not a SessionRecord"
                )
            yield record
    except PermissionError as error:
        denied = f"{error.filename} may not be read by this user; run as its owner, or import a copy"
        raise InvalidSource(place, tool, denied) from None
