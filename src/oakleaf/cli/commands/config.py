"""`oakleaf config`."""

from __future__ import annotations

import shlex
from typing import Any

import click

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
from oakleaf.wire.options import check_options


@click.group(invoke_without_command=True)
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show or change the configuration: default model and store, aliases, options, limits.

    KEY is model, store, aliases.NAME, options.MODEL.OPTION or chat.NAME, a default of the agents that chat, run, resume
    and serve run. Flags win over the environment (OAKLEAF_MODEL,
    OAKLEAF_STORE), which wins over this file: $OAKLEAF_CONFIG, else config.toml in the user's configuration folder. Default
    options apply to sessions that have none of the same name.

    \b
    oakleaf config alias fast openai:MODEL
    oakleaf config set model fast
    oakleaf config set options.fast.temperature 0
    oakleaf config set chat.max_turns 200
    oakleaf config unset model
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(show)


@config.command()
@json_option
def show(is_json: bool = False) -> None:
    """Print everything that is set, without passwords and keys."""
    settings = load_config()
    if is_json:
        shown = {key: without_secrets(key, value) for key, value in _values(settings).items()}
        print_json(path=str(settings.path), exists=settings.path.exists(), **shown)
        return
    notify(f"{settings.path}{'' if settings.path.exists() else ' (not there yet)'}")
    for key, value in _lines(settings):
        echo(f"{key} = {_text(without_secrets(key, value))}")


def _values(config: Config) -> dict[str, Any]:
    return {
        "models": list(config.models),
        "store": config.store,
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
    lines += [(f"aliases.{name}", model) for name, model in config.aliases.items()]
    for model, options in config.options.items():
        lines += [(f"options.{model}.{name}", value) for name, value in options.items()]
    lines += [(f"chat.{name}", value) for name, value in config.chat.items()]
    return lines


def _text(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@config.command()
def path() -> None:
    """Print where the file is."""
    echo(str(config_path()))


@config.command()
@click.argument("key")
@json_option
def get(key: str, is_json: bool) -> int:
    """Print one value, without passwords and keys; exit code 1 if it is not set."""
    value = get_value(key)
    shown = None if value is None else without_secrets(key, value)
    if is_json:
        print_json(key=key, value=shown)
    elif value is not None:
        echo(_text(shown))
    if value is None:
        notify(f"{key} is not set in {config_path()}; oakleaf config set {shlex.quote(key)} VALUE sets it")
        return FAILURE
    if shown != value:
        notify(f"a secret is not shown; {config_path()} has it")
    return 0


@config.command("set")
@click.argument("key")
@click.argument("values", nargs=-1, required=True, metavar="VALUE…", shell_complete=complete_model)
def set_(key: str, values: tuple[str, ...]) -> None:
    """Set a value. Several models are a fallback chain, several commands a list."""
    place = parse_key(key)
    has_several = key in ("model", "chat.default_model", "chat.allowed_commands")
    if not has_several and len(values) > 1:
        raise CommandError(f"{key} takes one value; quote it if it contains blanks")
    _check_value(place, values)
    if key == "chat.allowed_commands":
        value: Any = list(values)
    elif place[0] == "options" or (place[0] == "chat" and not has_several):
        value = parse_value(values[0])
        if value is None:
            raise CommandError(f"null is not a value; remove it with: oakleaf config unset {key}")
    else:
        value = values[0] if len(values) == 1 else list(values)
    notify(f"written to {set_value(key, value)}")


def _check_value(place: tuple[str, ...], values: tuple[str, ...]) -> None:
    """Refuse what no command could use, while the user is looking."""
    config = load_config()
    if place[0] in ("model", "aliases") or place[1:] == ("default_model",):
        for name in values if place[0] == "aliases" else config.resolve(values):
            if not is_model_name(name):
                model_by_name(name)  # raises the error that lists what there is
    elif place[0] == "options":
        model = config.resolve([place[1]])[0]
        if not is_model_name(model):
            raise CommandError(
                f"{place[1]!r} is neither a model nor an alias; oakleaf config alias lists them"
            )
        check_options(model.partition(":")[0], {place[2]: parse_value(values[0])})


@config.command()
@click.argument("key")
def unset(key: str) -> int:
    """Remove a value."""
    if get_value(key) is None:
        notify(f"{key} is not set in {config_path()}; the keys are {KEYS}")
        return FAILURE
    notify(f"removed from {set_value(key, None)}")
    return 0


@config.command()
@click.argument("name", required=False, shell_complete=complete_model)
@click.argument("model", required=False)
@json_option
@click.pass_context
def alias(ctx: click.Context, name: str | None, model: str | None, is_json: bool) -> int:
    """Name a model, or list the names: oakleaf config alias fast openai:MODEL"""
    if name is not None and model is not None:
        ctx.invoke(set_, key=f"aliases.{name}", values=(model,))
        return 0
    aliases = load_config().aliases
    if name is not None and name not in aliases:
        raise CommandError(
            f"there is no alias {name!r}; make it with: oakleaf config alias {shlex.quote(name)} MODEL"
        )
    listed = {one: aliases[one] for one in (sorted(aliases) if name is None else [name])}
    if is_json:
        print_json(aliases=listed)
        return 0
    for one, value in listed.items():
        echo(f"{one} = {value}")
    if not aliases:
        notify("there is no alias yet; oakleaf config alias NAME MODEL makes one")
    return 0
