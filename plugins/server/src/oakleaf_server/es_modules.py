"""Join the viewer's ES modules into one script, for a page that may load nothing.

Supports only the forms of import and export that the viewer uses, and refuses all others. Each module becomes a function
that returns its exports; modules come after what they import. A page that a plugin adds becomes a script of its own, which
imports the viewer's modules from the viewer's script: an error in it breaks nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from posixpath import dirname, join, normpath

from msgspec import Struct

_IMPORT = re.compile(r'^import (?:\{([^{}]*+)\} from )?"(\.\.?/[\w./-]+)";\n', re.MULTILINE)
_LIST = re.compile(r"^export \{([^{}]*+)\};\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|class|const)\b)", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:async function|function|class|const) (\w+)", re.MULTILINE)
_UNSUPPORTED = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
# Text that would end a script element, or hide its end. In a literal, the escape means the same.
_SCRIPT_END = re.compile(r"<(?=/script|script|!--)", re.IGNORECASE)


class _Import(Struct, frozen=True):
    names: tuple[str, ...]
    source: str


class _Module(Struct, frozen=True):
    name: str
    imports: tuple[_Import, ...]
    text: str


def join_modules(sources: Mapping[str, str], entry: str, stand_ins: Mapping[str, str]) -> str:
    """Return a script running `entry`. Imports of a key of `stand_ins` get its value, except in the value itself."""
    return _join(list(_in_order(sources, entry, stand_ins)), sources)


def join_shared(sources: Mapping[str, str], entry: str) -> str:
    """Return a script for `join_page`, running `entry` with all modules exported."""
    order = list(_in_order(sources, entry, {}))
    shared = ", ".join(_variable(module.name) for module in order)
    return f"{_join(order, sources, exports_all=True)}\nexport {{ {shared} }};\n"


def join_page(sources: Mapping[str, str], entry: str, name: str, shared_entry: str, shared_url: str) -> str:
    """Return a script exporting `name` of `entry`. Modules of other folders come from the script of
    `shared_entry`.
    """
    folder = dirname(entry)
    own = [module for module in _in_order(sources, entry, {}) if dirname(module.name) == folder]
    imports = {one.source for module in own for one in module.imports}
    others = sorted(source for source in imports if dirname(source) != folder)
    shared = {module.name for module in _in_order(sources, shared_entry, {})}
    for missing in (other for other in others if other not in shared):
        raise ValueError(f"{missing} is no module that {shared_entry} of the viewer needs")
    if name not in _exports(sources[entry]):
        raise ValueError(f"{entry} exports no {name}")
    head = f"import {{ {', '.join(map(_variable, others))} }} from {shared_url!r};\n" if others else ""
    script = _join(own, sources, exports_all=True)
    return f"{head}{script}\nexport const {name} = {_variable(entry)}.{name};\n"


def _join(order: Sequence[_Module], sources: Mapping[str, str], *, exports_all: bool = False) -> str:
    imported: dict[str, set[str]] = {}
    for module in order:
        for one in module.imports:
            imported.setdefault(one.source, set()).update(name.split(" as ")[0] for name in one.names)
    for name, names in imported.items():
        for missing in sorted(names - _exports(sources[name])):
            raise ValueError(f"{name} of the viewer exports no {missing}")
    script = "\n".join(
        _wrap(
            module, sorted(_exports(sources[module.name]) if exports_all else imported.get(module.name, ()))
        )
        for module in order
    )
    return _SCRIPT_END.sub(r"\\x3C", script)


def _in_order(sources: Mapping[str, str], entry: str, stand_ins: Mapping[str, str]) -> Iterator[_Module]:
    """Yield every needed module, after the module's imports."""
    done: set[str] = set()
    importing: list[str] = []

    def visit(name: str) -> Iterator[_Module]:
        if name in done:
            return
        if name in importing:
            raise ValueError(f"the viewer's modules import each other: {' → '.join([*importing, name])}")
        importing.append(name)
        if name not in sources:
            raise ValueError(f"there is no module {' → '.join(importing)} of the viewer")
        module = _read(name, sources[name], stand_ins)
        for one in module.imports:
            yield from visit(one.source)
        importing.pop()
        done.add(name)
        yield module

    return visit(entry)


def _read(name: str, text: str, stand_ins: Mapping[str, str]) -> _Module:
    imports = []
    for names, source in _IMPORT.findall(text):
        source = normpath(join(dirname(name), source))
        other = stand_ins.get(source, source)
        imports.append(_Import(_names(names), source if other == name else other))
    rest = _EXPORT.sub("", _LIST.sub("", _IMPORT.sub("", text)))
    unsupported = _UNSUPPORTED.search(rest)
    if unsupported is not None:
        raise ValueError(f"{name} of the viewer has a line that cannot be joined: {unsupported[0]}")
    return _Module(name, tuple(imports), rest)


def _names(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _exports(text: str) -> set[str]:
    """Return every exported name of a module."""
    return {*_EXPORTED.findall(text), *(name for names in _LIST.findall(text) for name in _names(names))}


def _wrap(module: _Module, names: list[str]) -> str:
    imports_text = "".join(
        f"const {{ {', '.join(name.replace(' as ', ': ') for name in one.names)} }} = {_variable(one.source)};\n"
        for one in module.imports
        if one.names
    )
    return f"const {_variable(module.name)} = (() => {{\n{imports_text}{module.text}return {{ {', '.join(names)} }};\n}})();"


def _variable(name: str) -> str:
    return "$" + re.sub(r"[^\w/]", "_", name).replace("/", "$")
