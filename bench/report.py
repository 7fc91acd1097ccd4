"""Print figures with their goals as a table, and save them as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path

import apsw
import msgspec
from msgspec import Struct

import oakleaf


class Target(Struct, frozen=True):
    bound: float
    is_floor: bool = False

    def holds(self, value: float) -> bool:
        return value >= self.bound if self.is_floor else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.is_floor else '≤'} {self.bound:g}"


def at_most(bound: float) -> Target:
    return Target(bound)


def at_least(bound: float) -> Target:
    return Target(bound, is_floor=True)


class Figure(Struct, frozen=True):
    key: str
    what: str
    value: float
    unit: str
    target: Target | None = None
    beside: dict[str, float] = {}
    """The underlying values, also for the bare driver."""

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "ok" if self.target.holds(self.value) else "over" if not self.target.is_floor else "under"

    def line(self) -> str:
        target = "" if self.target is None else str(self.target)
        beside = "  ".join(f"{name} {number(value)}" for name, value in self.beside.items())
        value = f"{number(self.value)} {self.unit}"
        return f"  {self.what:<46} {value:>15}  {target:>8} {self.verdict:<5}  {beside}".rstrip()


def number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def versions() -> dict[str, str]:
    return {
        "oakleaf": oakleaf.__version__,
        "python": platform.python_version(),
        "apsw": apsw.apsw_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "msgspec": msgspec.__version__,
    }


def others() -> float:
    """Return the number of other runnable programs. Above the number of cores, scheduling dominates the disk's figures."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def keep(figures: Iterable[Figure], to: Path, *, is_quick: bool) -> None:
    result = {
        "versions": versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": others(),
        "quick": is_quick,
        "figures": {figure.key: _plain(figure) for figure in figures},
    }
    to.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def _plain(figure: Figure) -> dict[str, object]:
    plain: dict[str, object] = {"value": round(figure.value, 4), "unit": figure.unit}
    if figure.target is not None:
        plain |= {"target": str(figure.target), "verdict": figure.verdict}
    if figure.beside:
        plain["beside"] = {name: round(value, 4) for name, value in figure.beside.items()}
    return plain
