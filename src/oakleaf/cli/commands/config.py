"""`oakleaf config`: print the configuration, print a value, set it, or remove it."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click
from click.shell_completion import CompletionItem

from oakleaf.cli.config import (
    KEYS,
    Config,
    complete_model,
    config_path,
    get_value,
    load_config,
    parse_key,
    parse_value,
    set_value,
    without_secrets,
)
from oakleaf.cli.rendering.error_text import FAILURE, CommandError
from oakleaf.cli.rendering.output import echo, json_option, notify, print_json
from oakleaf.ext import is_model_name, model_by_name
from oakleaf.wire import provider_of
from oakleaf.wire.options import check_options

TABLES = ("aliases", "options", "chat")
_OF_SEVERAL = ("model", "chat.default_model", "chat.allowed_commands")
"""Keys that take several values: a fallback chain, a list of commands."""


def _complete_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        keys = [*TABLES, *(key for key, _ in _lines(load_config()))]
    except CommandError:  # a message would garble the line being typed
        return []
    return [CompletionItem(key) for key in keys if key.startswith(incomplete)]


@click.command()
@click.argument("key", required=False, shell_complete=_complete_key)
@click.argument("values", nargs=-1, metavar="[VALUE]…", shell_complete=complete_model)
@click.option("--unset", is_flag=True, help="Remove the value of KEY.")
@json_option
def config(key: str | None, values: tuple[str, ...], unset: bool, is_json: bool) -> int:
    """Print the configuration, or a value of it; with VALUE set it.

    KEY is model, store, by, aliases.NAME, options.MODEL.OPTION or chat.NAME, a default of the agents that chat, run, resume
    and serve run; aliases, options or chat alone prints all of these. Several models are a fallback chain, several commands
    a list. Exit code 1: the value is not set. Passwords and keys are not printed.

    Flags win over the environment (OAKLEAF_MODEL, OAKLEAF_STORE), which wins over this file: $OAKLEAF_CONFIG, else
    config.toml in the user's configuration folder. Default options apply to sessions that have none of the same name.

    \b
    oakleaf config aliases.fast openai:MODEL
    oakleaf config model fast
    oakleaf config options.fast.temperature 0
    oakleaf config chat.max_turns 200
    oakleaf config model --unset
    """
    if unset and (key is None or values or is_json):
        raise CommandError("--unset needs one KEY, and nothing else: oakleaf config KEY --unset")
    if values and is_json:
        raise CommandError("--json prints a value; omit it, or omit VALUE")
    if key is None:
        return _print_all(is_json=is_json)
    if unset:
        return _unset(key)
    if values:
        return _set(key, values)
    return _print_table(key, is_json=is_json) if key in TABLES else _print(key, is_json=is_json)


def _print_all(*, is_json: bool) -> int:
    settings = load_config()
    if is_json:
        shown = {key: without_secrets(key, value) for key, value in _values(settings).items()}
        print_json(path=str(settings.path), exists=settings.path.exists(), **shown)
        return 0
    notify(f"{settings.path}{'' if settings.path.exists() else ' (not there yet)'}")
    for key, value in _lines(settings):
        echo(f"{key} = {_text(without_secrets(key, value))}")
    return 0


def _values(config: Config) -> dict[str, Any]:
    return {
        "models": list(config.models),
        "store": config.store,
        "by": config.by,
        "aliases": config.aliases,
        "options": config.options,
        "chat": config.chat,
    }


def _lines(config: Config) -> list[tuple[str, Any]]:
    lines: list[tuple[str, Any]] = []
    if config.models:
        lines.append(("model", config.models[0] if len(config.models) == 1 else list(config.models)))
    if config.store is not None:
        lines.append(("store", config.store))
    if config.by is not None:
        lines.append(("by", config.by))
    lines += [(f"aliases.{name}", model) for name, model in config.aliases.items()]
    for model, options in config.options.items():
        lines += [(f"options.{model}.{name}", value) for name, value in options.items()]
    lines += [(f"chat.{name}", value) for name, value in config.chat.items()]
    return lines


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print_table(name: str, *, is_json: bool) -> int:
    settings = load_config()
    if is_json:
        print_json(key=name, value=without_secrets(name, _values(settings)[name]))
        return 0
    for key, value in _lines(settings):
        if key.startswith(f"{name}."):
            echo(f"{key} = {_text(without_secrets(key, value))}")
    return 0


def _print(key: str, *, is_json: bool) -> int:
    value = get_value(key)
    shown = None if value is None else without_secrets(key, value)
    if is_json:
        print_json(key=key, value=shown)
    elif value is not None:
        echo(_text(shown))
    if value is None:
        notify(f"{key} is not set in {config_path()}; oakleaf config {shlex.quote(key)} VALUE sets it")
        return FAILURE
    if shown != value:
        notify(f"a secret is not shown; {config_path()} has it")
    return 0


def _set(key: str, values: tuple[str, ...]) -> int:
    place = parse_key(key)
    if key not in _OF_SEVERAL and len(values) > 1:
        raise CommandError(f"{key} takes one value; quote it if it contains blanks")
    _check_value(place, values)
    if key == "chat.allowed_commands":
        value: Any = list(values)
    elif place[0] == "options" or (place[0] == "chat" and key not in _OF_SEVERAL):
        value = parse_value(values[0])
        if value is None:
            raise CommandError(
                f"null is not a value; remove it with: oakleaf config {shlex.quote(key)} --unset"
            )
    else:
        value = values[0] if len(values) == 1 else list(values)
    notify(f"written to {set_value(key, value)}")
    return 0


def _check_value(place: tuple[str, ...], values: tuple[str, ...]) -> None:
    """Refuse an unusable value, while the user is looking."""
    config = load_config()
    if place[0] in ("model", "aliases") or place[1:] == ("default_model",):
        for name in values if place[0] == "aliases" else config.resolve(values):
            if not is_model_name(name):
                model_by_name(name)  # raises the error that lists what there is
    elif place[0] == "options":
        model = config.resolve([place[1]])[0]
        if not is_model_name(model):
            raise CommandError(
                f"{place[1]!r} is neither a model nor an alias; oakleaf config aliases lists them"
            )
        check_options(provider_of(model), {place[2]: parse_value(values[0])})


def _unset(key: str) -> int:
    if get_value(key) is None:
        notify(f"{key} is not set in {config_path()}; the keys are {KEYS}")
        return FAILURE
    notify(f"removed from {set_value(key, None)}")
    return 0
