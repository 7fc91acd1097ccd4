"""Keys that a TOML file or --set gives, declared by one struct: read, checked, changed and merged.

Each field of the struct is a key; a field whose type is a struct is a table. Knows no key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

from oakleaf.cli.config import line_number, parse_value
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.text_argument import refuse_file_name
from oakleaf.cli.tool_files import is_file_name

Keys = type[Struct]
Place = tuple[str, ...]
Origin = Callable[[Place], str]
"""Names where a key stands: a file and a line, or --set."""


def _tables(keys: Keys) -> dict[str, Keys]:
    return {one.name: one.type for one in fields(keys) if isinstance(one.type, type)}


def all_keys(keys: Keys) -> list[str]:
    """Return every key by the dotted name."""
    tables = _tables(keys)
    own = [one.name for one in fields(keys)]
    return [*own, *(f"{name}.{one.name}" for name, table in tables.items() for one in fields(table))]


# -- check what was written ----------------------------------------------------------------------------------


def check(keys: Keys, data: Mapping[str, Any], origin: Origin) -> None:
    """Refuse an unknown key, and a value of the wrong kind, without the value: a value may be a secret."""
    _check(keys, keys, data, (), origin)


def _check(keys: Keys, table: Keys, data: Mapping[str, Any], above: Place, origin: Origin) -> None:
    known = {field.name: field for field in fields(table)}
    for name, value in data.items():
        place = (*above, name)
        if name not in known:
            raise CommandError(f"{origin(place)}: there is no key {'.'.join(place)}{_near(keys, place)}")
        inner = _tables(keys).get(name) if not above else None
        if inner is not None and isinstance(value, dict):
            _check(keys, inner, value, place, origin)
        elif not _is_valid(known[name], inner, value):
            expected = f"a table [{name}]" if inner else _meta(known[name]).description
            raise CommandError(f"{origin(place)}: {'.'.join(place)} is invalid; expected {expected}")


def _near(keys: Keys, place: Place) -> str:
    """Name the probable key, by the whole name, else by the last part."""
    names = {name: name for name in all_keys(keys)}
    lasts = {name.rpartition(".")[2]: name for name in reversed(names)}
    typed = ".".join(place)
    close = get_close_matches(typed, names, 1, cutoff=0.75) or [
        lasts[last] for last in get_close_matches(place[-1], lasts, 1, cutoff=0.7)
    ]
    return f"; did you mean {close[0]}?" if close else f"; the keys are {', '.join(names)}"


def _meta(field: FieldInfo) -> Meta:
    annotated = next(one for one in get_args(field.type) if hasattr(one, "__metadata__"))
    meta: Meta = annotated.__metadata__[0]
    return meta


def _is_valid(field: FieldInfo, inner: Keys | None, value: object) -> bool:
    if inner is not None or value is None:
        return inner is None
    is_valid = (_meta(field).extra or {}).get("is_valid")
    if is_valid is not None:
        return bool(is_valid(value))
    try:
        msgspec.convert(value, field.type)
    except msgspec.ValidationError:
        return False
    return True


def read_toml(keys: Keys, path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CommandError(f"{path} cannot be read: {why}") from None
    except tomllib.TOMLDecodeError as error:
        raise CommandError(f"{path} is not TOML: {error}; correct the file") from None
    check(keys, data, lambda place: f"{path}, line {line_number(text, place)}")
    return data


# -- paths, as seen from the folder of a file --------------------------------------------------------------------


def join(folder: Path, name: str) -> str:
    return str(folder / Path(name).expanduser())


def text_beside(folder: Path, text: str, what: str) -> str:
    """Return a text, or @FILE; the name of a file without @ is refused."""
    if text.startswith("@"):
        return f"@{join(folder, text[1:])}"
    refuse_file_name(text, what, folder)
    return text


def model_beside(folder: Path, model: Any) -> Any:
    is_script = isinstance(model, str) and model.startswith("scripted:")
    return f"scripted:{join(folder, model.removeprefix('scripted:'))}" if is_script else model


def tool_beside(folder: Path, one: Any) -> Any:
    if not isinstance(one, str):
        return one
    place, colon, name = one.partition(":")
    return f"{join(folder, place)}{colon}{name}" if is_file_name(place) else one


# -- changes at the command line -----------------------------------------------------------------------------


def parse_change(keys: Keys, pair: str) -> dict[str, Any]:
    """Return the data of `KEY=VALUE`. A value is JSON, else a text, else the one item of a list."""
    key, equals, text = pair.partition("=")
    if not equals or not key.strip():
        raise CommandError("--set needs KEY=VALUE, such as --set limits.turns=3")
    place = tuple(part.strip() for part in key.split("."))
    for value in (parse_value(text), text):
        data = _nested(place, value)
        try:
            check(keys, data, lambda _: "--set")
        except CommandError:
            continue
        return data
    data = _nested(place, [text])
    check(keys, data, lambda _: "--set")
    return data


def _nested(place: Place, value: Any) -> dict[str, Any]:
    return {place[0]: _nested(place[1:], value) if place[1:] else value}


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of both; values of `above` win."""
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        is_table = isinstance(value, dict) and isinstance(old, dict)
        merged[name] = merge(old, value) if is_table else value  # type: ignore[arg-type]
    return merged


def merge_changes(keys: Keys, pairs: Iterable[str]) -> dict[str, Any]:
    """Return the data of all --set. A key of a list that is given again adds to the list."""
    merged: dict[str, Any] = {}
    for pair in pairs:
        merged = _merge_adding(merged, parse_change(keys, pair))
    return merged


def _merge_adding(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            merged[name] = _merge_adding(old, value)
        else:
            merged[name] = [*old, *value] if isinstance(old, list) and isinstance(value, list) else value
    return merged


def flat(keys: Keys, data: Mapping[str, Any], above: Place = ()) -> Iterator[tuple[str, Any]]:
    """Yield each dotted key of the command line's data, with the value."""
    tables = _tables(keys)
    for name, value in data.items():
        if not above and name in tables:
            yield from flat(keys, value, (name,))
        else:
            yield ".".join((*above, name)), value
