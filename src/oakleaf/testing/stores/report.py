"""Which laws of the contract a run has checked: printed by pytest at its end, for each class that runs the suite."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    import pytest

NAME = "oakleaf-laws"


class CheckedLaws(Struct):
    """The checks of a test class."""

    parts: Counter[str] = field(default_factory=Counter)
    """Laws in force, by part of the suite."""
    unclaimed: Counter[str] = field(default_factory=Counter)
    """Unchecked laws, by missing capability of the store."""


class LawReport:
    """A plugin of pytest, registered by the first test of the suite."""

    def __init__(self) -> None:
        self.classes: dict[str, CheckedLaws] = {}

    @classmethod
    def of(cls, config: pytest.Config) -> LawReport:
        report = config.pluginmanager.get_plugin(NAME)
        if not isinstance(report, LawReport):
            report = cls()
            config.pluginmanager.register(report, NAME)
        return report

    def laws_of(self, name: str) -> CheckedLaws:
        return self.classes.setdefault(name, CheckedLaws())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("laws of the store contract")
        for name, laws in self.classes.items():
            listed = ", ".join(f"{part} {count}" for part, count in laws.parts.items())
            terminalreporter.line(f"{name}: {laws.parts.total()} laws hold: {listed}")
            for deed, count in laws.unclaimed.items():
                terminalreporter.line(
                    f"{name}: {count} laws were not checked, because the store cannot {deed}"
                )
