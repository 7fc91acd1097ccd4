"""Every command: verbs, hand-written commands, and those that plugins add by an entry point of the group `oakleaf.verbs`.

A command's module is imported when the command runs. What a hand-written command of a plugin does is said in words by
`COMMANDS` of its small module `plugin`. A name with a dot is a part of a command: `lab.show` is the verb `oakleaf lab show`,
`import.watch` is what `oakleaf import --watch` runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from oakleaf import plugins
from oakleaf.errors import OakleafError, PluginMissing
from oakleaf.verbs import registry

if TYPE_CHECKING:
    import click

SECTIONS = ("Start here", "Look", "Move", "Compare", "Exchange", "Maintain")
_HOMES = {name: home for verbs in registry.HAND_WRITTEN.values() for name, (home, _) in verbs.items()}


def verb_names() -> list[str]:
    own = registry.command_names()
    added = (name for name in plugins.names(plugins.VERBS) if name not in own and "." not in name)
    return [*own, *added]


def sections() -> dict[str, dict[str, str]]:
    """Return each command's summary, by section. A plugin that cannot be used is shown with its problem."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for name in verb_names():
        section, text = _described(name)
        found.setdefault(section, {})[name] = text
    return found


def _described(name: str) -> tuple[str, str]:
    if name in _HOMES:
        return next(
            (section, verbs[name][1]) for section, verbs in registry.HAND_WRITTEN.items() if name in verbs
        )
    try:
        if (verb := registry.find(name)) is not None:
            from oakleaf.verbs.base import summary

            return verb.section, summary(verb)
        commands = getattr(plugins.summary_module(plugins.VERBS, name), "COMMANDS", {})
        section, text = map(str, commands.get(name, ("Plugins", "")))
    except OakleafError as error:
        return "Plugins", f"cannot be used: {error}"
    except (AttributeError, TypeError, ValueError):
        return "Plugins", "COMMANDS of its module plugin is not as {NAME: (SECTION, SUMMARY)}"
    return section, text


def load_verb(name: str) -> click.Command | None:
    if name in registry.names():
        from oakleaf.cli.verb_command import command

        verb = registry.find(name)
        assert verb is not None
        return command(verb)
    if name in _HOMES:
        module = import_module(f"{__package__}.{_HOMES[name]}")
        own: click.Command = getattr(module, "import_" if name == "import" else name)
        return own
    if name not in verb_names():
        return None
    return _checked(name, plugins.find(plugins.VERBS, name))


def _checked(name: str, command: Any) -> click.Command:
    import click

    from oakleaf.cli.verb_command import command as make_command

    if isinstance(command, click.Command):
        return command
    if (verb := registry.as_verb(command)) is not None:
        return make_command(verb)
    raise plugins.broken(
        plugins.VERBS, name, f"it is {type(command).__name__}, not a Verb or a command of click"
    )


def missing_verb(name: str) -> PluginMissing | None:
    """Return the error with the package to install, if a plugin of the project has the command."""
    from oakleaf.install import extra_of

    is_missing = "." not in name and extra_of(plugins.VERBS, name)
    return PluginMissing(plugins.VERBS, name) if is_missing else None
