"""What a replay found: values only, the same every time it is made the same way. No clock in it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import astuple

from ..core.usage import Totals
from ..log.changes import Cut
from .diff import Diff, DiffRow
from .tool_answers import Mode
from .turn_comparison import Divergence


class ReplayReport(Struct, frozen=True, kw_only=True):
    """A replay and what came of it: where it lies, what it differs in, what it cost."""

    source: str
    replay: str
    """The session it was made in."""
    mode: Mode
    cut: Cut
    """What was kept of the source: up to `at`; `asked` is what was asked for."""
    until: int
    """How far the source was replayed: calls without results at its end are left out."""
    model_before: tuple[str, ...]
    model_after: tuple[str, ...]
    diff: Diff
    """Source against replay, turn by turn."""
    is_identical: bool
    """The replay ends in the very same entry id: every entry is the same, bytes and all."""
    turns: int
    """Inputs that were fed, of all there were."""
    total_turns: int
    recorded_results: int
    """Calls answered from the recording."""
    dry_runs: dict[str, int]
    reads: dict[str, int]
    """Runs of `read` tools for real."""
    effects: dict[str, int]
    """Runs of other tools for real: none but in mode live, and there of the named ones only."""
    missed_calls: tuple[str, ...]
    """Calls nobody answered: nothing was done."""
    usage_before: Totals
    """What the replayed turns cost when they were recorded."""
    usage_after: Totals
    """What the replay cost."""
    source_before: str
    source_after: str
    """Fingerprints of the source."""
    stop_reason: str | None = None
    """Why it ended before the last input; None: it did not."""

    @property
    def is_same(self) -> bool:
        return self.stop_reason is None and self.diff.is_same

    @property
    def is_source_unchanged(self) -> bool:
        return self.source_before == self.source_after

    @property
    def rows(self) -> tuple[DiffRow, ...]:
        return self.diff.rows

    @property
    def first_divergence(self) -> Divergence | None:
        return self.diff.first_divergence

    @property
    def effects_sent(self) -> int:
        return sum(self.effects.values())

    @property
    def usage_change(self) -> dict[str, int]:
        """What the replay cost more (or less) than the recording, field by field."""
        pairs = zip(
            Totals.__struct_fields__, astuple(self.usage_after), astuple(self.usage_before), strict=True
        )
        return {name: now - then for name, now, then in pairs}

    def lines(self) -> list[str]:
        from .report_text import replayed_lines

        return replayed_lines(self)

    def markdown(self) -> str:
        from .report_text import replayed_markdown

        return replayed_markdown(self)
