"""Whether a change of the setup changes what sessions do: measured on recorded sessions, kept as regression cases.

    lab = oakleaf_lab.Lab(store, "agent:support after:7d", prompt=new_prompt)
    report = lab.run_sync(max_cost_dollars=5)

The names below are the public face. They load when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oakleaf.late_names import late_names

_HOMES = {
    "oakleaf_lab.cohort": ["Cohort", "cohorts", "save_cohort"],
    "oakleaf_lab.experiment": ["Cell"],
    "oakleaf_lab.lab": ["Lab", "report"],
    "oakleaf_lab.lab_report": ["LabReport"],
    "oakleaf_lab.promotion": ["Promotion", "promote"],
    "oakleaf_lab.record": ["runs"],
    "oakleaf_lab.scorers": ["Judge", "ScoredSession", "ScoredTurn"],
}
__getattr__, __all__ = late_names(__name__, _HOMES)

if TYPE_CHECKING:
    from oakleaf_lab.cohort import Cohort as Cohort
    from oakleaf_lab.cohort import cohorts as cohorts
    from oakleaf_lab.cohort import save_cohort as save_cohort
    from oakleaf_lab.experiment import Cell as Cell
    from oakleaf_lab.lab import Lab as Lab
    from oakleaf_lab.lab import report as report
    from oakleaf_lab.lab_report import LabReport as LabReport
    from oakleaf_lab.promotion import Promotion as Promotion
    from oakleaf_lab.promotion import promote as promote
    from oakleaf_lab.record import runs as runs
    from oakleaf_lab.scorers import Judge as Judge
    from oakleaf_lab.scorers import ScoredSession as ScoredSession
    from oakleaf_lab.scorers import ScoredTurn as ScoredTurn
