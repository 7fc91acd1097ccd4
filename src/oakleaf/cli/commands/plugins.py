"""`oakleaf plugins`: what installed distributions add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from oakleaf import plugins as registry
from oakleaf.cli.rendering.output import echo, json_option, notify, plural, print_json, table
from oakleaf.cli.verb_table import built_in_names
from oakleaf.errors import OakleafError, PluginBroken
from oakleaf.plugins import Provider


@click.command()
@click.option("--check", is_flag=True, help="Import every plugin, and say which cannot be used.")
@json_option
def plugins(check: bool, is_json: bool) -> int:
    """List the installed plugins, what each adds, and what is broken.

    A plugin is imported only with --check. Exit code 1 if one is broken, or if two add the same name.
    """
    found = sorted(
        registry.providers(), key=lambda one: (not one.is_own, one.distribution, one.group, one.name)
    )
    problems = _problems(found, imports=check)
    if is_json:
        print_json(plugins=_grouped(found), problems=[_described(error) for error in problems])
    else:
        _print(found, problems)
        counts = f"{plural(len(found), 'name')}, {plural(len(problems), 'problem')}"
        notify(counts if check else f"{counts}; oakleaf plugins --check imports every plugin")
    return 1 if problems else 0


def _problems(found: Sequence[Provider], *, imports: bool) -> list[OakleafError]:
    errors = [_hidden(provider) or registry.conflict(provider) for provider in found]
    if imports:
        errors = [error or _check(provider) for provider, error in zip(found, errors, strict=True)]
    return list({str(error): error for error in errors if error is not None}.values())


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
    from oakleaf.verbs.registry import as_verb

    def is_a(kind: type) -> Callable[[Any], bool]:
        return lambda value: isinstance(value, kind)

    return {
        registry.STORES: (callable, "a function that opens a store"),
        registry.MODELS: (is_a(ModelPlugin), "a ModelPlugin of oakleaf.models.base"),
        registry.IMPORTERS: (is_a(Importer), "an Importer of oakleaf.ingest.importers"),
        registry.EXPORTS: (is_a(Exporter), "an Exporter of oakleaf.ext"),
        registry.VERBS: (
            lambda value: isinstance(value, click.Command) or as_verb(value) is not None,
            "a Verb or a command of click",
        ),
        registry.PAGES: (is_a(Page), "a Page of oakleaf.ext"),
        registry.TOOLS: (
            lambda value: callable(getattr(value, "tools", None)),
            "an object with a function tools",
        ),
        registry.SCORERS: (callable, "a function of a turn or a session"),
        registry.TASKS: (callable, "a function of a task and its parameters"),
        "": (callable, "a function"),
    }


def _hidden(provider: Provider) -> OakleafError | None:
    """Return the error of a command or a model that has the name of the library's own."""
    own = {registry.VERBS: built_in_names(), registry.MODELS: ["scripted"]}
    if provider.name not in own.get(provider.group, ()):
        return None
    kind = "command" if provider.group == registry.VERBS else "model"
    reason, hint = f"the library has a {kind} of this name", f"uninstall {provider.distribution}"
    return PluginBroken(provider.group, provider.name, str(provider), reason, hint)


def _grouped(found: Sequence[Provider]) -> list[dict[str, object]]:
    """Return each distribution with the names that it adds, by group."""
    listed: dict[str, dict[str, list[str]]] = {}
    for provider in found:
        listed.setdefault(str(provider), {}).setdefault(_short(provider.group), []).append(provider.name)
    return [
        {"distribution": name.partition(" ")[0], "version": name.partition(" ")[2], "adds": adds}
        for name, adds in listed.items()
    ]


def _short(group: str) -> str:
    return group.rpartition(".")[2]


def _described(error: OakleafError) -> dict[str, str]:
    return {"problem": error.problem, "hint": error.command_hint}


def _print(found: Sequence[Provider], problems: Sequence[OakleafError]) -> None:
    if not found:
        return
    names: dict[tuple[str, str], list[str]] = {}
    for provider in found:
        names.setdefault((str(provider), _short(provider.group)), []).append(provider.name)
    rows = [(plugin, kind, ", ".join(sorted(added))) for (plugin, kind), added in names.items()]
    echo("\n".join(table(rows, ("PLUGIN", "ADDS", "NAMES"), clip_last=False)))
    for error in problems:
        echo(
            f"{click.style('✗', fg='red')} {error.problem}{click.style(f'  → {error.command_hint}', dim=True)}"
        )
