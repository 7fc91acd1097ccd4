"""Tools from a Python file or module named on the command line.

Knows where tools may stand: `Tool` values, and lists called `tools`. A file named here is run as any program of
its owner would be; nothing a session has stored ever names one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from ..agent.tools.tool import Tool, tool
from .rendering.error_text import Refused


def load_tools(sources: Iterable[str]) -> list[Tool]:
    """Every tool of `FILE.py`, `package.module`, or of one name in it (`FILE.py:name`), each once."""
    found: dict[int, Tool] = {}
    for source in sources:
        place, _, name = source.partition(":")
        module = loaded("--tools", source, place)
        tools = _named(source, module, name) if name else _every(module)
        if not tools:
            raise Refused(
                f"there is no tool in {source}; decorate functions with @bough.tool, or list them as `tools`"
            )
        found |= {id(one): one for one in tools}
    return list(found.values())


def loaded(option: str, source: str, place: str) -> ModuleType:
    """The module of `FILE.py` or `package.module`, as the option named it."""
    is_file = place.endswith(".py") or not all(part.isidentifier() for part in place.split("."))
    if is_file and Path(place).is_dir():
        raise Refused(f"{option} {source}: {place} is a folder; name a file in it, or a module")
    if is_file and not Path(place).is_file():
        raise Refused(f"{option} {source}: there is no file {place}")
    try:
        return _from_file(Path(place)) if is_file else _imported(place)
    except Exception as error:  # somebody's own code may raise anything
        raise Refused(f"{option} {source} could not be loaded: {type(error).__name__}: {error}") from error


def _from_file(place: Path) -> ModuleType:
    name = f"bough_tools_{place.stem}"
    _find_in(place.resolve().parent)  # as a script finds its neighbours
    spec = spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _imported(name: str) -> ModuleType:
    _find_in(Path.cwd())
    return import_module(name)


def _find_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _named(source: str, module: ModuleType, name: str) -> list[Tool]:
    value = getattr(module, name, None)
    if value is None:
        raise Refused(f"--tools {source}: it has no {name!r}")
    return [tool(value)] if callable(value) and not isinstance(value, Tool) else _tools_of(value)


def _every(module: ModuleType) -> list[Tool]:
    values = vars(module)
    listed = _tools_of(values["tools"]) if isinstance(values.get("tools"), list | tuple) else []
    return [*(value for value in values.values() if isinstance(value, Tool)), *listed]


def _tools_of(value: Any) -> list[Tool]:
    if isinstance(value, Tool):
        return [value]
    several = value if isinstance(value, list | tuple) else ()
    return [one if isinstance(one, Tool) else tool(one) for one in several]
