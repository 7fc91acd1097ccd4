"""The user's configuration: default model and store, aliases of models, default options of their calls, and of agents.

    model = "fast"                      # a name, an alias, or a list of them: a fallback chain
    store = "~/work/oakleaf.db"
    by = "ann@example.com"              # who decides about calls that wait; default: the user of the machine

    [aliases]
    fast = "openai:MODEL"

    [options.fast]                      # of an alias, or of a model: [options."openai:MODEL"]
    temperature = 0

    [chat]                              # of an agent that is run from here: chat, run, resume, serve
    max_turns = 200

A flag comes first, then the environment, then this file. It is $OAKLEAF_CONFIG, else `oakleaf/config.toml` in the platform's
folder for configuration. Changes are made line by line, so that comments stay.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from msgspec import Struct

from oakleaf.cli.option_group import Decorator
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.core.usage import MAX_COUNT, MICROCENTS_PER_DOLLAR
from oakleaf.errors import InvalidArgument, InvalidOption, StoreError

KEYS = "model, store, by, aliases.NAME, options.MODEL.OPTION or chat.NAME"


class Config(Struct, frozen=True):
    """The content of the configuration file."""

    path: Path
    models: tuple[str, ...] = ()
    """The default model, or the fallback chain, as written: aliases are not resolved."""
    store: str | None = None
    by: str | None = None
    """The name that decisions are recorded with."""
    aliases: dict[str, str] = {}
    options: dict[str, dict[str, Any]] = {}
    chat: dict[str, Any] = {}
    """Defaults of an agent that a command runs, as written."""

    @property
    def chat_models(self) -> tuple[str, ...]:
        """The default model of an agent, or the fallback chain, as written."""
        return _names(self.chat.get("default_model")) or self.models

    @property
    def chat_limits(self) -> dict[str, Any]:
        """The default limits of an agent, by the names in `Limits`."""
        limits = {name: self.chat[key] for key, name in CHAT_LIMITS.items() if key in self.chat}
        if "max_cost" in self.chat:
            limits["max_cost_microcents"] = round(self.chat["max_cost"] * MICROCENTS_PER_DOLLAR)
        return limits

    def resolve(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names with aliases replaced, and with the provider where a vendor's own name was typed."""
        from oakleaf.ext import with_provider

        return tuple(self.aliases.get(name) or with_provider(name) for name in names)

    def default_options(self, model: str) -> dict[str, Any]:
        """Return the default options of a model, by the model's name, an alias or a short form."""
        options: dict[str, Any] = {}
        for name in self._names_of(model):
            options |= self.options.get(name, {})
        return options

    def check_options(self, model: str, options: Iterable[str]) -> None:
        """Refuse default options unknown to the model, or with a bad value, with the place in the file."""
        from oakleaf.wire import provider_of
        from oakleaf.wire.options import check_options  # late: most commands have no options

        for option in options:
            name = [name for name in self._names_of(model) if option in self.options.get(name, {})][-1]
            try:
                check_options(provider_of(model), {option: self.options[name][option]})
            except InvalidOption as error:
                line = line_number(_read_text(self.path), ("options", name, option))
                raise CommandError(f"{self.path}, line {line}: {error.command_text}") from None

    def _names_of(self, model: str) -> list[str]:
        return [*(name for name in self.options if name != model and self.resolve([name])[0] == model), model]


def config_path() -> Path:
    """Return where the file is, or would be."""
    named = os.environ.get("OAKLEAF_CONFIG")
    return Path(named).expanduser() if named else Path(click.get_app_dir("oakleaf")) / "config.toml"


def load_config() -> Config:
    """Read the file; a missing file has defaults."""
    path = config_path()
    return _read(path, _read_text(path))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"cannot read the configuration in {path} ({error}); name another file with OAKLEAF_CONFIG"
        ) from None


@cache
def _read(path: Path, text: str) -> Config:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CommandError(f"{path}: {error}; edit the file, or name another with OAKLEAF_CONFIG") from None
    for place, expected in _faults(content):
        line = line_number(text, place)
        raise CommandError(f"{path}, line {line}: {'.'.join(place)} is invalid; expected {expected}")
    store = content.get("store")
    store = store if store is None or "://" in store or store == "memory:" else str(Path(store).expanduser())
    tables = (content.get(name, {}) for name in ("aliases", "options", "chat"))
    return Config(path, _names(content.get("model")), store, content.get("by"), *tables)


def _faults(content: Mapping[str, Any]) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield each key unknown or with a value of the wrong kind, and the expected kind."""
    for key, value in content.items():
        if key == "model":
            if not _is_names(value):
                yield (key,), "the name of a model, or a list of names"
        elif key == "store":
            if not _is_text(value):
                yield (key,), "a path or a URL"
        elif key == "by":
            if not _is_text(value):
                yield (key,), "the name of a person"
        elif key == "aliases" and isinstance(value, dict):
            for name, model in value.items():
                if ":" in name:
                    yield (key, name), "an alias without a colon, which names of models have"
                if not _is_text(model) or ":" not in model:
                    yield (key, name), "the name of a model, such as openai:MODEL"
        elif key == "options" and isinstance(value, dict):
            for model, options in value.items():
                if not isinstance(options, dict):
                    yield (key, model), "a table of options: [options.MODEL]"
        elif key == "chat" and isinstance(value, dict):
            for name, one in value.items():
                is_valid, expected = CHAT.get(name, (lambda _: False, f"one of {', '.join(CHAT)}"))
                if not is_valid(one):
                    yield (key, name), expected
            if {"max_cost", "max_cost_microcents"} <= value.keys():
                yield (key, "max_cost_microcents"), "one of max_cost and max_cost_microcents"
        else:
            yield (key,), KEYS


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _names(value: str | list[str] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def _is_names(value: object) -> bool:
    return _is_text(value) or (isinstance(value, list) and bool(value) and all(map(_is_text, value)))


def _is_count(least: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value <= MAX_COUNT


def _is_amount(value: object) -> bool:
    return type(value) in (int, float) and 1 / MICROCENTS_PER_DOLLAR <= value < 1e9  # type: ignore[operator]


CHAT: dict[str, tuple[Callable[[Any], bool], str]] = {
    "default_model": (_is_names, "the name of a model, or a list of names"),
    "max_turns": (_is_count(0), "a number of turns; 0 is the default, 50"),
    "rounds": (_is_count(0), "a number of model calls in a turn; 0 is the default, 50"),
    "max_messages": (_is_count(1), "a number of messages from 1 on"),
    "max_cost": (_is_amount, "an amount of dollars"),
    "max_cost_microcents": (_is_count(1), "a number of microcents from 1 on"),
    "on_exceed": (("stop", "warn").__contains__, "stop or warn"),
    "fs_scope": (("sandboxed", "project", "full").__contains__, "sandboxed, project or full"),
    "allowed_commands": (
        lambda value: isinstance(value, list) and all(map(_is_text, value)),
        "a list of commands",
    ),
}
"""The keys of [chat]: whether a value is valid, and what is expected."""
CHAT_LIMITS = {
    "max_turns": "turns",
    "rounds": "rounds",
    "max_messages": "max_messages",
    "max_cost_microcents": "max_cost_microcents",
    "on_exceed": "on_exceed",
}


# -- change the file -------------------------------------------------------------------------------------


def set_value(key: str, value: Any) -> Path:
    """Write a value, or remove the value for None; return the file. It is unchanged if the result would be
    invalid.
    """
    path, place = config_path(), parse_key(key)
    before = _read_text(path)
    _read(path, before)
    after = _edit(before, place, value)
    _read(path, after)
    if _value_at(tomllib.loads(after), place) != value:
        line = line_number(before, place)
        raise CommandError(f"{path}, line {line}: {key} is written in a way that only you can edit")
    from oakleaf.ext import atomic_file

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error})", "name another with OAKLEAF_CONFIG") from None
    with atomic_file(path) as file:
        file.write(after.encode())
    return path


def get_value(key: str) -> Any:
    """Return the value of a key in the file; None without a value."""
    path = config_path()
    text = _read_text(path)
    _read(path, text)
    return _value_at(tomllib.loads(text), parse_key(key))


def without_secrets(key: str, value: Any) -> Any:
    """Return a printable value: a store's URL without the password, and nothing in the form of a key."""
    from oakleaf.core.redact import Redactor  # late: most commands print no configuration
    from oakleaf.stores.address import check_store_url, display_url

    if key == "store" and isinstance(value, str):
        try:
            check_store_url(value)
            value = display_url(value)
        except InvalidArgument:
            value = "… (not the address of a store)"
    return Redactor().redact_json(value)


def parse_key(key: str) -> tuple[str, ...]:
    """Return where a key is: `options.MODEL.OPTION` has three parts, though a model's name may contain dots."""
    first, _, rest = key.partition(".")
    if first in ("model", "store") and not rest:
        return (first,)
    if (first == "aliases" and rest) or (first == "chat" and rest in CHAT):
        return (first, rest)
    model, _, option = rest.rpartition(".")
    if first == "options" and model and option:
        return (first, model, option)
    expected = f"chat. and one of {', '.join(CHAT)}" if first == "chat" else KEYS
    raise CommandError(f"there is no key {key!r}; expected {expected}")


def _value_at(content: Any, place: tuple[str, ...]) -> Any:
    for part in place:
        content = content.get(part) if isinstance(content, dict) else None
    return content


def _edit(text: str, place: tuple[str, ...], value: Any) -> str:
    """Return the text with a line replaced, added or removed."""
    *table, name = place
    lines = text.splitlines()
    headers = [(number, _header(line)) for number, line in enumerate(lines) if line.lstrip().startswith("[")]
    starts = [number + 1 for number, header in headers if header == tuple(table)]
    start = 0 if not table else starts[0] if starts else None
    new = [] if value is None else [f"{_toml_key(name)} = {_toml(value)}"]
    if start is None:
        header = f"[{'.'.join(map(_toml_key, table))}]"
        return "\n".join([*lines, *([""] if lines else []), header, *new, ""]) if new else text
    end = next((number for number, _ in headers if number >= start), len(lines))
    at = next((n for n in range(start, end) if _key(lines[n]) == name), None)
    if at is not None:
        lines[at : at + 1] = new
    else:
        while end > start and not lines[end - 1].strip():
            end -= 1
        is_before_table = end == start == 0 and bool(lines[:1]) and lines[0].startswith("[")
        lines[end:end] = [*new, ""] if is_before_table else new
    return "\n".join([*lines, ""])


def _header(line: str) -> tuple[str, ...]:
    """Return the name of the table begun by a line."""
    try:
        content: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    place: list[str] = []
    while isinstance(content, dict) and content:
        name = next(iter(content))
        place.append(name)
        content = content[name]
    return tuple(place)


def _key(line: str) -> str | None:
    """Return the name set by a line; None for other lines, or for more than fits on the line."""
    try:
        return next(iter(tomllib.loads(line)), None)
    except tomllib.TOMLDecodeError:
        return None


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def line_number(text: str, place: tuple[str, ...]) -> int:
    """Return the line of a key, or of the key's table."""
    for name in reversed(place):
        quoted = re.escape(name)
        pattern = re.compile(rf"""^\s*\[?[^=#]*?(?<![\w-])["']?{quoted}["']?\s*[\].=]""")
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.match(line):
                return number
    return 1


# -- options of commands ---------------------------------------------------------------------------------


def model_option(
    *names: str, help: str, metavar: str = "NAME", multiple: bool = False, must_exist: bool = False
) -> Decorator:
    """Return an option naming a model, or with `multiple` several, with aliases replaced.

    With `must_exist` a name that is neither that of a model nor an alias is refused.
    """
    return click.option(
        *names,
        metavar=metavar,
        multiple=multiple,
        callback=_resolve_known_models if must_exist else _resolve_models,
        shell_complete=complete_model,
        help=help,
    )


def _resolve_models(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    if not value:
        return value
    config = load_config()
    return config.resolve([value])[0] if isinstance(value, str) else config.resolve(value)


def _resolve_known_models(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    resolved = _resolve_models(ctx, param, value)
    for name in filter(None, [resolved] if isinstance(resolved, str) else resolved or ()):
        check_model_name(name, param.opts[0])
    return resolved


def known_model(name: str | None, what: str) -> str | None:
    """Return the model of a name or an alias; refuse an unknown name."""
    if name is None:
        return None
    (resolved,) = load_config().resolve([name])
    check_model_name(resolved, what)
    return resolved


def check_model_name(name: str, what: str) -> None:
    from oakleaf.ext import is_model_name

    if not is_model_name(name):
        raise CommandError(
            f"{what} {name}: there is no model with this name; oakleaf config aliases lists yours"
        )


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete aliases."""
    try:
        aliases = load_config().aliases
    except CommandError:  # a message would garble the line being typed
        return []
    return [
        CompletionItem(name, help=model) for name, model in aliases.items() if name.startswith(incomplete)
    ]


def parse_value(text: str) -> Any:
    """Return a value as typed: JSON, or any other text verbatim."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_options(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, Any]:
    """Option callback: return `-o NAME=VALUE` as a dict."""
    return read_options(value)


def read_options(pairs: Iterable[str]) -> dict[str, Any]:
    """Return options as typed, NAME=VALUE, by name."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip() or not text.strip():
            raise InvalidArgument("option", pair, "NAME=VALUE, or NAME=null to take an option back")
        options[name.strip()] = parse_value(text)
    return options


model_options = click.option(
    "-o",
    "--option",
    "model_options",
    multiple=True,
    callback=parse_options,
    metavar="NAME=VALUE",
    help="An option of the model's calls from here on, such as temperature=0, max_tokens=500 or effort=high; repeatable. "
    "null removes one.",
)
