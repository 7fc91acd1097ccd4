"""Options that several commands share, as one decorator."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from msgspec import Struct

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option_group(*options: Decorator) -> Decorator:
    """Add the options to a command, in the given order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def complete_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a file's name, for an option with other values too."""
    return [CompletionItem(incomplete, type="file")]


def struct_options(parameter: str, struct: type[Struct], *options: Decorator) -> Decorator:
    """Add the options to a command, which receives the options as one `struct`, named `parameter`."""

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(verb)
        def command(*args: Any, **values: Any) -> Any:
            fields = {name: values.pop(name) for name in struct.__struct_fields__ if name in values}
            return verb(*args, **values, **{parameter: struct(**fields)})

        return option_group(*options)(command)

    return decorate
