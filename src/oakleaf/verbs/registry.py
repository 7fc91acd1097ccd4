"""The verbs of the library, and those that plugins register in the group `oakleaf.verbs`.

A verb's module is imported when the verb is used. Says only where a verb is: everything else is in its declaration.
`HAND_WRITTEN` has the commands that are no verbs.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from oakleaf import plugins

if TYPE_CHECKING:
    from oakleaf.verbs.base import Verb

_HOMES = {
    "approve": "turns:Approve",
    "cancel": "turns:Cancel",
    "fork": "moves:Fork",
    "rewind": "moves:Rewind",
    "undo": "moves:Undo",
    "redo": "moves:Redo",
    "compact": "settings:Compact",
    "uncompact": "settings:Uncompact",
    "settings": "settings:ChangeSettings",
    "title": "names:Title",
    "tag": "names:Tag",
    "label": "names:Label",
    "ls": "sessions:Ls",
    "spaces": "sessions:Spaces",
    "search": "search:Search",
    "show": "show:Show",
    "log": "log:Log",
    "tree": "tree:Tree",
    "tail": "tail:Tail",
    "context": "context:Context",
    "diff": "diff:Diff",
    "usage": "usage:Usage",
    "rm": "trash:Rm",
    "restore": "trash:Restore",
    "purge": "trash:Purge",
    "verify": "health:Verify",
    "seal": "seal:SealStore",
    "audit": "audit:Audit",
    "erase": "erase:Erase",
    "doctor": "health:Doctor",
    "backup": "format:Backup",
    "migrate": "format:Migrate",
    "plugins": "installed:Plugins",
    "importers": "installed:Importers",
    "copy": "exchange:Copy",
}
"""Where each verb of the library is declared."""
HAND_WRITTEN: dict[str, dict[str, tuple[str, str]]] = {
    "Start here": {
        "demo": (
            "demo.demo",
            "Watch an agent get killed during a refund and recover; needs no key and no network.",
        ),
        "chat": ("chat.chat", "Talk to an agent in the terminal; every message is saved as it is sent."),
        "run": ("commands.run", "Send one input to an agent and print its answer."),
        "resume": ("commands.run", "Continue a turn that was interrupted."),
    },
    "Compare": {
        "replay": (
            "commands.replay",
            "Run a session again without side effects, with another model or prompt.",
        ),
    },
    "Exchange": {
        "export": (
            "commands.export",
            "Export a session as a bundle, web page, Markdown, or another tool's format.",
        ),
        "import": ("commands.import_", "Import a bundle, or the sessions of another tool."),
    },
    "Maintain": {
        "config": (
            "commands.config",
            "Print the configuration, or a value of it; with VALUE set it.",
        ),
        "help": ("commands.help", "List every command, or explain one."),
        "completion": ("commands.completion", "Print the completion script for your shell."),
    },
}
"""The library's hand-written commands by section: the module of `oakleaf.cli` that each is in, and what it does."""


def names() -> list[str]:
    """Return the names of the library's verbs."""
    return list(_HOMES)


def command_names() -> list[str]:
    """Return the names of the library's commands, verbs or not: no plugin's command can have one of them."""
    return [*(name for commands in HAND_WRITTEN.values() for name in commands), *_HOMES]


def find(name: str) -> type[Verb] | None:
    """Return the verb of a name; None if the name is no verb, but perhaps a hand-written command."""
    if name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        own: type[Verb] = getattr(import_module(f"{__package__}.{module}"), attribute)
        return own
    if name in plugins.names(plugins.VERBS):
        return as_verb(plugins.find(plugins.VERBS, name))
    return None


def as_verb(value: Any) -> type[Verb] | None:
    from oakleaf.verbs.base import Verb

    return value if isinstance(value, type) and issubclass(value, Verb) else None


def find_all() -> Iterator[type[Verb]]:
    """Yield every verb that can be used. A broken plugin is left out: `oakleaf plugins` names it."""
    from oakleaf.errors import OakleafError

    for name in [*_HOMES, *plugins.names(plugins.VERBS)]:
        try:
            verb = find(name)
        except OakleafError:
            continue
        if verb is not None:
            yield verb
