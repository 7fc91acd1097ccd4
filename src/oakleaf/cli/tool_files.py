"""Tools from Python files and modules that the operator names."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from oakleaf import Tool, tool
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.ext import ToolLike, ToolSource, is_source


def load_tools(
    sources: Iterable[str], *, option: str = "--tools", folder: Path | None = None
) -> list[ToolLike]:
    """Return the tools, and sources of tools, of each `FILE.py` or `package.module`, or of a name inside
    (`FILE.py:name`), without duplicates.

    Modules are found in the folder; by default in the current one. `option` is named in errors.
    """
    loaded: dict[int, ToolLike] = {}
    for source in sources:
        place, _, name = source.partition(":")
        module = load_module(option, source, place, folder)
        tools = _tools_named(f"{option} {source}", module, name) if name else all_tools(module)
        if not tools:
            raise CommandError(
                f"{source} has no tools; decorate functions with @oakleaf.tool, or list them as `tools`"
            )
        loaded |= {id(one): one for one in tools}
    return list(loaded.values())


def load_module(option: str, source: str, place: str, folder: Path | None = None) -> ModuleType:
    """Import `FILE.py` or `package.module`."""
    is_file = is_file_name(place)
    if is_file and Path(place).is_dir():
        raise CommandError(f"{option} {source}: {place} is a folder; name a file in it, or a module")
    if is_file and not Path(place).is_file():
        raise CommandError(f"{option} {source}: there is no file {place}")
    try:
        if is_file:
            return _from_file(Path(place))
        _find_in(Path.cwd() if folder is None else folder.resolve())
        return import_module(place)
    except Exception as error:  # user code may raise anything
        if isinstance(error, ModuleNotFoundError) and Path(place).is_file():
            raise CommandError(f"{option} {source}: the name of a Python file must end in .py") from None
        raise CommandError(f"{option} {source}: cannot be loaded: {type(error).__name__}: {error}") from error


def is_file_name(place: str) -> bool:
    """Whether the text is the name of a file, and not of a module."""
    return place.endswith(".py") or not all(part.isidentifier() for part in place.split("."))


def _from_file(place: Path) -> ModuleType:
    name = f"oakleaf_tools_{place.stem}"
    _find_in(place.resolve().parent)  # as a script imports its neighbours
    spec = spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _find_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _tools_named(source: str, module: ModuleType, name: str) -> list[ToolLike]:
    value = getattr(module, name, None)
    if value is None:
        raise CommandError(f"{source}: it has no {name!r}")
    return [tool(value)] if callable(value) and not is_ready(value) else _tools_of(value)


def all_tools(module: ModuleType) -> list[ToolLike]:
    """Return the tools and sources of a module, and of the list `tools`."""
    values = vars(module)
    own = (value for value in values.values() if is_ready(value))
    return [*own, *_tools_of(values.get("tools"))]


def _tools_of(value: Any) -> list[ToolLike]:
    if is_ready(value):
        return [value]
    several = value if isinstance(value, list | tuple) else ()
    return [one if is_ready(one) else tool(one) for one in several]


def is_ready(value: object) -> TypeGuard[Tool | ToolSource]:
    """Whether a value can be passed on unchanged; a function is made a tool first."""
    return isinstance(value, Tool) or is_source(value)
