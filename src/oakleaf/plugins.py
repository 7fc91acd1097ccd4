"""Find what installed distributions add: stores, models, importers, exports, verbs, pages, tools, scorers and tasks.

A plugin says so in its metadata, as entry points of the groups below. Names are listed without importing anything; `find`
imports one plugin. One that is missing or broken is an error in words, and everything else works. Knows no plugin but by
the name that people ask for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from oakleaf.errors import OakleafError, PluginBroken, PluginMissing

STORES = "oakleaf.stores"
MODELS = "oakleaf.models"
IMPORTERS = "oakleaf.importers"
EXPORTS = "oakleaf.exports"
VERBS = "oakleaf.verbs"
PAGES = "oakleaf.pages"
TOOLS = "oakleaf.tools"
SCORERS = "oakleaf.scorers"
TASKS = "oakleaf.tasks"
GROUPS = (STORES, MODELS, IMPORTERS, EXPORTS, VERBS, PAGES, TOOLS, SCORERS, TASKS)


class Provider(NamedTuple):
    """An entry point: a distribution, a group, a name and a target."""

    group: str
    name: str
    target: str
    """`module:name`."""
    distribution: str
    version: str

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def is_own(self) -> bool:
        """Whether the plugin is part of this project."""
        return self.distribution.partition("-")[0] == "oakleaf"

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


def names(group: str) -> list[str]:
    """Return the names that installed plugins add to a group, sorted."""
    return sorted({provider.name for provider in providers() if provider.group == group})


def find(group: str, name: str) -> Any:
    """Import and return the plugin of a name; raise PluginMissing or PluginBroken."""
    return load(provider_of(group, name))


def provider_of(group: str, name: str) -> Provider:
    """Return the provider of a name. This project goes before strangers; two strangers are an error."""
    found = [provider for provider in providers() if (provider.group, provider.name) == (group, name)]
    if not found:
        raise PluginMissing(group, name)
    candidates = [provider for provider in found if provider.is_own] or found
    if len(candidates) > 1:
        rivals = " and ".join(sorted(map(str, candidates)))
        raise PluginBroken(group, name, rivals, "two distributions add this name", "uninstall one of them")
    return candidates[0]


def load(provider: Provider) -> Any:
    """Import and return an entry point's target, whatever other plugins add."""
    return _load(provider, *provider.target.split(":", 1))


def broken(group: str, name: str, reason: str) -> PluginBroken:
    """Return the error of a plugin that breaks the promise of the name."""
    return PluginBroken(group, name, str(provider_of(group, name)), reason)


@contextmanager
def naming(group: str, name: str, deed: str) -> Iterator[None]:
    """Name the plugin in errors of the plugin's code; errors of Oakleaf are in words already."""
    try:
        yield
    except OakleafError:
        raise
    except Exception as error:
        raise broken(group, name, f"{deed} raised {type(error).__name__}: {error}") from error


def conflict(provider: Provider) -> PluginBroken | None:
    """Return the error of a name added by two distributions; None if the provider is alone or goes first."""
    try:
        first = provider_of(provider.group, provider.name)
    except PluginBroken as error:
        return error
    if first == provider:
        return None
    reason, hint = f"{first} adds the same name and goes first", f"uninstall {provider.distribution}"
    return PluginBroken(provider.group, provider.name, str(provider), reason, hint)


def summary_module(group: str, name: str) -> ModuleType | None:
    """Import `plugin.py` of a plugin's package, with the plugin's own words; None without such a module."""
    provider = provider_of(group, name)
    module = f"{provider.module.partition('.')[0]}.plugin"
    try:
        found: ModuleType = _load(provider, module)
    except PluginBroken as error:
        if isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == module:
            return None
        raise
    return found


def _load(provider: Provider, module: str, attributes: str = "") -> Any:
    try:
        value: Any = import_module(module)
        for name in filter(None, attributes.split(".")):
            value = getattr(value, name)
    except (Exception, SystemExit) as error:
        raise _failure(provider, module, error) from error
    return value


def _failure(provider: Provider, module: str, error: BaseException) -> OakleafError:
    """Return the advice to install, mend or uninstall: a plugin that raises must not stop other plugins."""
    package = provider.module.partition(".")[0]
    missing = (error.name or "") if isinstance(error, ImportError) else ""
    top = missing.partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and top not in ("", "oakleaf", package):
        return PluginMissing(provider.group, provider.name, str(provider), missing)
    reason = f"importing {module} raised {type(error).__name__}: {error}"
    if top == "oakleaf":
        reason += f" (this is Oakleaf {_library_version()}; the plugin was made for another version)"
    return PluginBroken(provider.group, provider.name, str(provider), reason)


def _library_version() -> str:
    from oakleaf import __version__

    return __version__


@cache
def providers() -> tuple[Provider, ...]:
    """Return the entry points of every group, of every distribution on the path. A distribution counts once.

    The files are read directly: importing `importlib.metadata` takes longer than the whole rest of a command's start.
    """
    found: dict[str, list[Provider]] = {}
    for folder in sys.path:
        for distribution, version, text in _entry_point_files(folder or os.curdir):
            found.setdefault(distribution, list(_parse(distribution, version, text)))
    return tuple(provider for listed in found.values() for provider in listed)


def _entry_point_files(folder: str) -> Iterator[tuple[str, str, str]]:
    try:
        entries = [entry for entry in os.scandir(folder) if entry.name.endswith(".dist-info")]
    except OSError:  # not there, or an archive
        return
    for entry in entries:
        try:
            with open(os.path.join(entry.path, "entry_points.txt"), encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError):
            continue
        name, _, version = entry.name.removesuffix(".dist-info").rpartition("-")
        yield name.replace("_", "-").lower(), version, text


def _parse(distribution: str, version: str, text: str) -> Iterator[Provider]:
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[]")
        elif group in GROUPS and "=" in line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            yield Provider(group, name.strip(), target.partition("[")[0].strip(), distribution, version)
