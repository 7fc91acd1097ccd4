"""Write a session in the format that is asked for: the bundle, or one that a plugin adds to the group `oakleaf.exports`.

Knows no format but the bundle. A path gets a file that is complete or absent.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from oakleaf import plugins
from oakleaf.bundle.transfer import PathOrFile, export
from oakleaf.bundle.write import BundleExportResult, OnProgress, open_target
from oakleaf.core.typed_json import converter, prepare
from oakleaf.errors import (
    InvalidArgument,
    OakleafError,
    PluginBroken,
    PluginMissing,
    UnknownExportOption,
    UnknownFormat,
)
from oakleaf.install import extra_of

if TYPE_CHECKING:
    from oakleaf.session import Session

BUNDLE = "bundle"
Report = TypeVar("Report")


class NoOptions(Struct, frozen=True, kw_only=True):
    """Of a format without options."""


class Exporter(Struct, frozen=True, kw_only=True):
    """A writer of a format. Reads a session, writes bytes, and changes nothing."""

    suffix: str
    """The end of file names: ".md"."""
    write: Callable[[Session, BinaryIO, Any], object]
    """Write a session to a file that is open for bytes, with options of the type below. The result is the export's report."""
    options: type[Struct] = NoOptions
    """The format's keywords, with defaults. Formats for people have `redact: bool = True`."""
    is_whole: bool = False
    """Whether the export holds the whole session; else the path to the handle's leaf."""
    is_text: bool = True
    """Whether it is for reading or piping; else the command line writes a file."""
    file_stem: Callable[[Session], str] | None = None
    """The stem of file names, if the session's id does not serve."""

    def __post_init__(self) -> None:
        if not self.suffix.startswith("."):
            raise ValueError(f"the suffix {self.suffix!r} does not begin with a dot")
        prepare(self.options)


class ExportResult(Struct, Generic[Report], frozen=True):
    """The result of an export."""

    format: str
    bytes: int
    """The size of the file."""
    report: Report
    """The format's report: the contents of a bundle or a page, the omissions of other formats, or None."""


class BundleOptions(Struct, frozen=True, kw_only=True):
    """The contents of a bundle."""

    blobs: bool = False
    children: bool = True
    redact: bool = False
    hide: list[str] = []
    progress: Any = None
    """`OnProgress`."""


def _write_bundle(session: Session, to: BinaryIO, options: BundleOptions) -> BundleExportResult:
    progress: OnProgress | None = options.progress
    return export(
        session.log,
        to,
        blobs=options.blobs,
        children=options.children,
        redact=options.redact,
        hide=options.hide,
        progress=progress,
    )


_BUNDLE = Exporter(
    suffix=".oakleaf", write=_write_bundle, options=BundleOptions, is_whole=True, is_text=False
)


def formats() -> list[str]:
    """Return the names of all formats, sorted. Imports no plugin."""
    return sorted({BUNDLE, *plugins.names(plugins.EXPORTS)})


def find_exporter(name: str) -> Exporter:
    """Return the writer of a format. Raises UnknownFormat with the known ones, PluginMissing or PluginBroken."""
    if name == BUNDLE:
        return _BUNDLE
    if name not in plugins.names(plugins.EXPORTS) and extra_of(plugins.EXPORTS, name) is None:
        raise UnknownFormat(name, formats())
    exporter = plugins.find(plugins.EXPORTS, name)
    if not isinstance(exporter, Exporter):
        raise plugins.broken(
            plugins.EXPORTS, name, f"it is {type(exporter).__name__}, not an Exporter of oakleaf.ext"
        )
    return exporter


def export_session(
    session: Session, to: PathOrFile, format: str | None, options: Mapping[str, Any]
) -> ExportResult[Any]:
    """Write a session to a path or an open file. Without a format the name of the file says which."""
    if isinstance(to, io.TextIOBase):
        raise InvalidArgument("to", to, 'a path, or a file that was opened with "wb"')
    name = format_of(to) if format is None else format
    exporter = find_exporter(name)
    values = _parse_options(name, exporter, options)
    with open_target(to, f"the {name}") as file:
        counted = _CountedFile(file, name)
        report = _call(name, exporter, session, cast(BinaryIO, counted), values)
    return ExportResult(name, counted.size, report)


def _call(name: str, exporter: Exporter, session: Session, to: BinaryIO, options: Struct) -> object:
    """Call a writer. The error of a stranger's is that of its plugin, and says so."""
    if name == BUNDLE or plugins.provider_of(plugins.EXPORTS, name).is_own:
        return exporter.write(session, to, options)
    try:
        return exporter.write(session, to, options)
    except (OakleafError, OSError):
        raise
    except Exception as error:
        reason = f"writing raised {type(error).__name__}: {error}"
        raise plugins.broken(plugins.EXPORTS, name, reason) from error


class _CountedFile(io.RawIOBase):
    """Passes bytes on to a file and counts bytes."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name, self.size = file, name, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise plugins.broken(plugins.EXPORTS, self._name, f"it writes {type(data).__name__}, not bytes")
        self._file.write(data)
        length = memoryview(data).nbytes
        self.size += length
        return length


def _parse_options(name: str, exporter: Exporter, options: Mapping[str, Any]) -> Struct:
    known = exporter.options.__struct_fields__
    for option in options:
        if option not in known:
            raise UnknownExportOption(option, name, known)
    try:
        return converter(exporter.options)(dict(options))
    except msgspec.ValidationError as error:
        why, _, place = str(error).rpartition(" - at `$.")
        wrong = max((option for option in options if place.startswith(option)), key=len, default=None)
        if wrong is None:
            raise InvalidArgument("options", dict(options), f"others: {error}") from None
        expected, is_type, _ = why.removeprefix("Expected `").partition("`, got ")
        raise InvalidArgument(
            wrong, options[wrong], expected if is_type else f"another value: {why}"
        ) from None


def format_of(to: PathOrFile) -> str:
    """Return the format for a file name: of several with the same suffix the format with the same name."""
    if not isinstance(to, str | os.PathLike):
        raise InvalidArgument("format", None, f"one of {', '.join(formats())}: an open file has no suffix")
    path = os.fspath(to)
    found = [name for name, suffix in _suffixes() if path.endswith(suffix)]
    name = path.rpartition(".")[2]
    if name in found or (not found and extra_of(plugins.EXPORTS, name)):
        return name
    if len(found) != 1:
        those = found or formats()
        raise InvalidArgument("format", None, f"one of {', '.join(those)}: {path!r} does not say which")
    return found[0]


def _suffixes() -> Iterator[tuple[str, str]]:
    """Yield the usable formats, with suffixes."""
    for name in formats():
        with suppress(PluginMissing, PluginBroken):
            yield name, find_exporter(name).suffix
