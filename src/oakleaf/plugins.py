"""Find what installed distributions add: stores, models, importers, exports, verbs, pages, tools, scorers and tasks.

A plugin says so in its metadata, as entry points of the groups below. Names are listed without importing anything; `find`
imports one plugin. One that is missing or broken is an error in words, and everything else works. Knows no plugin but by
the name that people ask for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from oakleaf.errors import PluginBroken, PluginMissing

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
    """One entry point: who adds what."""

    group: str
    name: str
    target: str
    """`module:name`."""
    distribution: str
    version: str

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


def names(group: str) -> list[str]:
    """Return the names that installed plugins add to a group, sorted."""
    return sorted({provider.name for provider in providers() if provider.group == group})


def find(group: str, name: str) -> Any:
    """Import and return what a plugin adds under this name; raise PluginMissing or PluginBroken."""
    provider = provider_of(group, name)
    module = _import(provider, provider.module)
    value: Any = module
    for part in filter(None, provider.target.partition(":")[2].split(".")):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            raise PluginBroken(group, name, str(provider), str(error)) from error
    return value


def provider_of(group: str, name: str) -> Provider:
    """Return who adds this name. The library itself goes before strangers; two strangers are an error."""
    found = [provider for provider in providers() if (provider.group, provider.name) == (group, name)]
    if not found:
        raise PluginMissing(group, name)
    own = [provider for provider in found if provider.distribution.partition("-")[0] == "oakleaf"]
    if len(own or found) > 1:
        rivals = " and ".join(sorted(map(str, own or found)))
        raise PluginBroken(group, name, rivals, "two distributions add this name; uninstall one of them")
    return (own or found)[0]


def summary_module(group: str, name: str) -> ModuleType | None:
    """Import `plugin.py` of a plugin's package, which says in words what the plugin adds; None if it has none."""
    provider = provider_of(group, name)
    try:
        return _import(provider, f"{provider.module.partition('.')[0]}.plugin")
    except PluginMissing:
        return None


def _import(provider: Provider, module: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise PluginMissing(provider.group, provider.name, str(provider), error.name or str(error)) from error
    except Exception as error:
        reason = f"importing {module} raised {type(error).__name__}: {error}"
        raise PluginBroken(provider.group, provider.name, str(provider), reason) from error


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
