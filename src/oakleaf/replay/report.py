"""The report of a replay: values only, without times, so equal replays give equal reports."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import astuple

from oakleaf.core.turn_comparison import DiffRow, Divergence
from oakleaf.core.usage import Totals
from oakleaf.log.request import Cut
from oakleaf.replay.diff import Diff
from oakleaf.replay.tool_answers import Mode


class ReplayReport(Struct, frozen=True, kw_only=True):
    """The result of a replay: the session, the difference and the cost."""

    source: str
    replay: str
    """The id of the replay's session."""
    mode: Mode
    cut: Cut
    """The kept part of the source: the entries up to `at`."""
    until: int
    """The last replayed entry: calls without results at the end are left out."""
    model_before: tuple[str, ...]
    model_after: tuple[str, ...]
    diff: Diff
    """Source against replay, turn by turn."""
    is_identical: bool
    """Both end in the same entry id: every entry is equal, byte by byte."""
    turns: int
    """The number of replayed inputs, of `total_turns`."""
    total_turns: int
    recorded_results: int
    """Calls answered from the recording."""
    dry_runs: dict[str, int]
    reads: dict[str, int]
    """How often each `read` tool was executed."""
    effects: dict[str, int]
    """How often each other tool was executed: only in mode live, and only tools named in `live`."""
    missed_calls: tuple[str, ...]
    """The names of calls without an answer: nothing was done."""
    usage_before: Totals
    """The recorded cost of the replayed turns."""
    usage_after: Totals
    """The cost of the replay."""
    source_before: str
    source_after: str
    """Fingerprints of the source."""
    stop_reason: str | None = None
    """Why the replay ended before the last input; None for a complete replay."""
    is_unanswered: bool = False
    """Whether the replay ended without a model's answer, or at a limit.

    Whether the replay is the same is unknown then. A call without a recording is a difference.
    """
    error_code: str | None = None
    """With `is_unanswered`: the code of the error."""

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
        """The cost of the replay minus the cost of the recording, field by field."""
        pairs = zip(
            Totals.__struct_fields__, astuple(self.usage_after), astuple(self.usage_before), strict=True
        )
        return {name: after - before for name, after, before in pairs}

    def lines(self) -> list[str]:
        from oakleaf.replay.report_text import report_lines

        return report_lines(self)

    def markdown(self) -> str:
        from oakleaf.replay.report_text import report_markdown

        return report_markdown(self)
