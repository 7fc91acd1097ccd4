"""Scorers of a regression case: functions in the repository that say whether a replayed turn is good enough.

    scorers = ["scorers.py:is_polite", "scorers.py:helpful >= 0.8", "judge:kind >= 0.7"]

The file is relative to the case. The functions are those of the key `score` of an experiment file: they take a turn and return True or
False, or a number, which then needs a limit. They are code of the repository that the case is in, like its tests.
`judge:NAME` is a model that the case names in `[judge.NAME]`; it scores from 0 to 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any

from msgspec import Struct

from oakleaf_lab.scorers import ScoredTurn, ScoreFunction, call_scorer, error_text, subject_of, value_problem

_SCORER = re.compile(
    r"(?P<file>.+\.py|judge):(?P<name>[A-Za-z_]\w*)(?:\s*(?P<sign>>=|<=|>|<)\s*(?P<limit>-?\d+(?:\.\d+)?))?"
)
JUDGE = "judge"
_SIGNS: dict[str, Callable[[float, float], bool]] = {">=": ge, "<=": le, ">": gt, "<": lt}


class CaseScorer(Struct, frozen=True):
    """A scorer as named in a case."""

    file: str
    """Its file, or `judge`."""
    name: str
    sign: str | None = None
    limit: float = 0.0

    @classmethod
    def parse(cls, text: str) -> CaseScorer:
        """Read `FILE.py:NAME`, `FILE.py:NAME >= 0.8` or `judge:NAME >= 0.8`; raise ValueError with the fault."""
        match = _SCORER.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"{text!r} is not a scorer; write FILE.py:NAME, FILE.py:NAME >= 0.8 or judge:NAME >= 0.8"
            )
        sign = match["sign"]
        if match["file"] == JUDGE and sign is None:
            raise ValueError(f"a judge scores from 0 to 1, so {text!r} needs a limit: write {text} >= 0.8")
        return cls(match["file"], match["name"], sign, float(match["limit"]) if sign else 0.0)

    @property
    def is_judge(self) -> bool:
        return self.file == JUDGE

    def __str__(self) -> str:
        return f"{self.file}:{self.name}" + (f" {self.sign} {self.limit:g}" if self.sign else "")

    def load(self, folder: Path) -> ScoreFunction:
        """Import the function; raise ValueError for a missing function, or for a function other than a scorer
        of turns.
        """
        path = folder / self.file
        if not path.is_file():
            raise ValueError(f"there is no file {path} for the scorer {self.name}")
        try:
            function = getattr(_load_module(path), self.name, None)
        except Exception as error:  # the user's code may raise anything
            raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
        if not callable(function) or subject_of(function) != "turn":
            raise ValueError(f"{path} has no function {self.name}(turn)")
        return function  # type: ignore[no-any-return]

    def problem(self, value: Any) -> str | None:
        """Return the fault of a score; None for a pass."""
        if self.sign is None and isinstance(value, bool):
            return None if value else "it says False"
        if (problem := value_problem(value)) is not None:
            return problem
        if self.sign is None:
            return f"it says {value:g}, and the case has no limit for a number: write {self.file}:{self.name} >= 0.8"
        return None if _SIGNS[self.sign](float(value), self.limit) else f"it says {float(value):g}"


async def apply_scorer(scorer: CaseScorer, function: ScoreFunction, turn: ScoredTurn) -> str | None:
    """Score a turn and return the fault; None for a pass."""
    try:
        value = await call_scorer(function, turn)
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        return f"it raised {error_text(error)}"
    return scorer.problem(value)


def _load_module(path: Path) -> Any:
    name = f"oakleaf_scorers_{path.stem}_{abs(hash(path.resolve())):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module
