"""The viewer's ES modules as one script, for a page that may load nothing.

Knows the few forms of import and export that our own modules use, and refuses every other one: this is no tool for
other people's code. Each module becomes a function that gives its names; what it imports is there before it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

_IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"\./([\w.-]+)";\n', re.MULTILINE)
_LIST = re.compile(r"^export \{([^}]*)\};\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|class|const)\b)", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
# What would end a script element, or make its end be overlooked. In a literal the escape says the same.
_ENDS = re.compile(r"<(?=/script|script|!--)", re.IGNORECASE)


class _Import(Struct, frozen=True):
    names: tuple[str, ...]
    source: str


class _Module(Struct, frozen=True):
    name: str
    imports: tuple[_Import, ...]
    text: str


def joined(sources: Mapping[str, str], entry: str, stand_ins: Mapping[str, str]) -> str:
    """One script that runs `entry`. Whoever imports a key of `stand_ins` is given its value, but the value itself."""
    order = list(_ordered(sources, entry, stand_ins))
    wanted: dict[str, set[str]] = {}
    for module in order:
        for one in module.imports:
            wanted.setdefault(one.source, set()).update(name.split(" as ")[0] for name in one.names)
    for name, names in wanted.items():
        for missing in sorted(one for one in names if not _is_exported(sources[name], one)):
            raise ValueError(f"{name} of the viewer exports no {missing}")
    script = "\n".join(_wrapped(module, sorted(wanted.get(module.name, ()))) for module in order)
    return _ENDS.sub(r"\\x3C", script)


def _ordered(sources: Mapping[str, str], entry: str, stand_ins: Mapping[str, str]) -> Iterator[_Module]:
    """Every module that is needed, each behind what it imports."""
    done: set[str] = set()
    above: list[str] = []

    def visit(name: str) -> Iterator[_Module]:
        if name in done:
            return
        if name in above:
            raise ValueError(f"the viewer's modules import each other: {' → '.join([*above, name])}")
        above.append(name)
        module = _read(name, sources[name], stand_ins)
        for one in module.imports:
            yield from visit(one.source)
        above.pop()
        done.add(name)
        yield module

    return visit(entry)


def _read(name: str, text: str, stand_ins: Mapping[str, str]) -> _Module:
    imports = []
    for names, source in _IMPORT.findall(text):
        other = stand_ins.get(source, source)
        imports.append(_Import(_listed(names), source if other == name else other))
    rest = _EXPORT.sub("", _LIST.sub("", _IMPORT.sub("", text)))
    left = _LEFT.search(rest)
    if left is not None:
        raise ValueError(f"{name} of the viewer has a line that cannot be joined: {left[0]}")
    return _Module(name, tuple(imports), rest)


def _listed(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _is_exported(text: str, name: str) -> bool:
    """Whether a line that exports says the name."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    return any(word.search(line) for line in text.splitlines() if line.startswith("export "))


def _wrapped(module: _Module, names: list[str]) -> str:
    given = "".join(
        f"const {{ {', '.join(name.replace(' as ', ': ') for name in one.names)} }} = {_held(one.source)};\n"
        for one in module.imports
        if one.names
    )
    return f"const {_held(module.name)} = (() => {{\n{given}{module.text}return {{ {', '.join(names)} }};\n}})();"


def _held(name: str) -> str:
    return "$" + re.sub(r"\W", "_", name)
