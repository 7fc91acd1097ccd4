"""What installed distributions add: plugins, importers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any

from msgspec import Struct

from oakleaf import plugins as registry
from oakleaf.errors import OakleafError, PluginBroken, plural
from oakleaf.install import install_line
from oakleaf.plugins import Provider
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import Help
from oakleaf.verbs.registry import as_verb, command_names
from oakleaf.verbs.screen import Line, Screen, Table, style


class Distribution(Struct, frozen=True):
    distribution: str
    version: str
    adds: dict[str, list[str]]
    """The names of what it adds, by kind."""


class PluginProblem(Struct, frozen=True):
    problem: str
    hint: str


class Installed(Struct, frozen=True):
    plugins: list[Distribution]
    problems: list[PluginProblem]


class Plugins(Verb, frozen=True):
    """List the installed plugins, what each adds, and what is broken.

    A plugin is imported only with --check. Exit code 1 if one is broken, or if two add the same name.
    """

    section = "Maintain"

    check: Annotated[bool, Help("Import every plugin, and say which cannot be used.", local=True)] = False

    def run(self, caller: Caller) -> Installed:
        found = sorted(
            registry.providers(), key=lambda one: (not one.is_own, one.distribution, one.group, one.name)
        )
        return Installed(_grouped(found), _problems(found, imports=self.check))

    def lines(self, result: Installed, screen: Screen) -> Iterator[Line]:
        rows: list[tuple[str, ...]] = [
            (f"{one.distribution} {one.version}", kind, ", ".join(sorted(names)))
            for one in result.plugins
            for kind, names in one.adds.items()
        ]
        if rows:
            yield Table(("PLUGIN", "ADDS", "NAMES"), rows, clip_last=False)
        for one in result.problems:
            yield f"{style('✗', 'red')} {one.problem}{style(f'  → {one.hint}', 'dim')}"

    def notes(self, result: Installed, screen: Screen) -> Iterator[str]:
        names = sum(len(added) for one in result.plugins for added in one.adds.values())
        counts = f"{plural(names, 'name')}, {plural(len(result.problems), 'problem')}"
        yield counts if self.check else f"{counts}; oakleaf plugins --check imports every plugin"

    def exit_code(self, result: Installed) -> int:
        return int(bool(result.problems))


class ImporterInfo(Struct, frozen=True):
    tool: str
    source: str
    looks_in: list[str]
    """The tool's default places."""
    found: list[str]
    """Those of the places that exist on this machine."""
    versions: str
    checked: date | None
    """The date of the newest file of the tool's own that was read."""
    is_checked: bool
    """Whether that file is from the last year."""
    problem: str | None = None
    """Why the importer cannot be used."""


class ImporterList(Struct, frozen=True):
    importers: list[ImporterInfo]


class Importers(Verb, frozen=True):
    """List the tools whose sessions can be imported, the versions checked, and where each is looked for.

    A date is that of the newest file of the tool's own that was read. A format that nobody has checked against a file of
    the last year is marked: import with --dry-run --report first.
    """

    section = "Exchange"

    def run(self, caller: Caller) -> ImporterList:
        today = datetime.now(UTC).date()
        return ImporterList([_importer(tool, today) for tool in registry.names(registry.IMPORTERS)])

    def lines(self, result: ImporterList, screen: Screen) -> Iterator[Line]:
        rows: list[tuple[str, ...]] = [
            (
                one.tool,
                one.versions or one.problem or "",
                _checked(one),
                ", ".join(one.looks_in) or one.source,
            )
            for one in result.importers
        ]
        if rows:
            yield Table(("TOOL", "VERSIONS", "CHECKED", "LOOKS IN"), rows, clip_last=False)

    def notes(self, result: ImporterList, screen: Screen) -> Iterator[str]:
        if not result.importers:
            yield f"no importer is installed; {install_line('importers')}"
            return
        found = [one.tool for one in result.importers if one.found]
        yield f"{plural(len(result.importers), 'importer')}; on this machine: {', '.join(found) or 'none'}"


def _importer(tool: str, today: date) -> ImporterInfo:
    from oakleaf.ingest.importers import find_importer

    try:
        one = find_importer(tool)
    except OakleafError as error:
        return ImporterInfo(tool, "", [], [], "", None, False, error.problem)
    places, found = list(one.default_paths), one.default_places
    return ImporterInfo(tool, one.source, places, found, one.versions, one.checked, one.is_checked(today))


def _checked(one: ImporterInfo) -> str:
    if one.problem is not None:
        return style("cannot be used", "red")
    return str(one.checked) if one.is_checked else style("not in the last year", "yellow")


def _problems(found: Sequence[Provider], *, imports: bool) -> list[PluginProblem]:
    errors = [_hidden(provider) or registry.conflict(provider) for provider in found]
    if imports:
        errors = [error or _check(provider) for provider, error in zip(found, errors, strict=True)]
    found_once = {str(error): error for error in errors if error is not None}.values()
    return [PluginProblem(error.problem, error.command_hint) for error in found_once]


def _check(provider: Provider) -> OakleafError | None:
    """Import a plugin; return why it cannot be used, None if nothing is wrong."""
    try:
        value = registry.load(provider)
    except OakleafError as error:
        return error
    is_right, expected = _shapes()["" if "." in provider.name else provider.group]
    if is_right(value):
        return None
    reason = f"it is {type(value).__name__}, not {expected}"
    return PluginBroken(provider.group, provider.name, str(provider), reason)


def _shapes() -> dict[str, tuple[Callable[[Any], bool], str]]:
    """Return for each group what a plugin of it is, as a test and in words; "" is a part of another command."""
    from oakleaf.core.pages import Page
    from oakleaf.ext import Exporter
    from oakleaf.ingest.importers import Importer
    from oakleaf.models.base import ModelPlugin

    def is_a(kind: type) -> Callable[[Any], bool]:
        return lambda value: isinstance(value, kind)

    return {
        registry.STORES: (callable, "a function that opens a store"),
        registry.MODELS: (is_a(ModelPlugin), "a ModelPlugin of oakleaf.models.base"),
        registry.IMPORTERS: (is_a(Importer), "an Importer of oakleaf.ingest.importers"),
        registry.EXPORTS: (is_a(Exporter), "an Exporter of oakleaf.ext"),
        registry.VERBS: (_is_command, "a Verb or a command of click"),
        registry.PAGES: (is_a(Page), "a Page of oakleaf.ext"),
        registry.TOOLS: (
            lambda value: callable(getattr(value, "tools", None)),
            "an object with a function tools",
        ),
        registry.SCORERS: (callable, "a function of a turn or a session"),
        registry.TASKS: (callable, "a function of a task and its parameters"),
        "": (callable, "a function"),
    }


def _is_command(value: Any) -> bool:
    """Whether this is a Verb, or a hand-written command: then click has been imported."""
    click = sys.modules.get("click")
    return as_verb(value) is not None or (click is not None and isinstance(value, click.Command))


def _hidden(provider: Provider) -> OakleafError | None:
    """Return the error of a command or a model that has the name of the library's own."""
    own = {registry.VERBS: command_names(), registry.MODELS: ["scripted"]}
    if provider.name not in own.get(provider.group, ()):
        return None
    kind = "command" if provider.group == registry.VERBS else "model"
    reason, hint = f"the library has a {kind} of this name", f"uninstall {provider.distribution}"
    return PluginBroken(provider.group, provider.name, str(provider), reason, hint)


def _grouped(found: Sequence[Provider]) -> list[Distribution]:
    """Return each distribution with the names that it adds, by group."""
    listed: dict[tuple[str, str], dict[str, list[str]]] = {}
    for provider in found:
        adds = listed.setdefault((provider.distribution, provider.version), {})
        adds.setdefault(provider.group.rpartition(".")[2], []).append(provider.name)
    return [Distribution(name, version, adds) for (name, version), adds in listed.items()]
