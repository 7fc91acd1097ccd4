"""Diffs and replay reports as plain lines and as Markdown, without colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.usage import Totals, format_cost
from .diff import Diff, DiffRow
from .report import ReplayReport
from .turn_comparison import Divergence

SHORT = 60
LONG = 200


def diff_lines(diff: Diff) -> list[str]:
    """The shared part, the setup, the turns, and the first divergence."""
    lines = [f"a {_side(diff.a.session_id, diff.a.models)}", f"b {_side(diff.b.session_id, diff.b.models)}"]
    lines.append(f"shared: {diff.shared} entries, {diff.shared_turns} turns")
    lines += [f"{one.name}: {_short(one.a)!r} -> {_short(one.b)!r}" for one in diff.setup]
    lines += [_row_line(row) for row in diff.rows]
    lines += [] if diff.is_state_same else ["state differs"]
    lines += _first_lines(diff)
    lines.append(
        f"tokens {_tokens(diff.a.totals, diff.b.totals)}, cost {_cost(diff.a.totals, diff.b.totals)}"
    )
    lines.append("same" if diff.is_same else "different")
    return lines


def report_lines(report: ReplayReport) -> list[str]:
    """What was done, then the diff of source and replay in short."""
    cut = report.cut
    moved = "" if not cut.has_moved else f" (requested {cut.requested}, moved to a valid position)"
    lines = [
        f"{report.source} -> {report.replay}, mode {report.mode}",
        f"kept 1..{cut.at}{moved}, replayed {report.turns} of {report.total_turns} inputs",
        f"model {_names(report.model_before)} -> {_names(report.model_after)}",
    ]
    lines += [_row_line(row) for row in report.rows]
    lines += _first_lines(report.diff)
    lines += _summary(report)
    if report.stop_reason is not None:
        lines.append(f"stopped: {_short(report.stop_reason, LONG)}")
    lines.append("same" if report.is_same else "different")
    return lines


def _summary(report: ReplayReport) -> list[str]:
    before, after = report.usage_before, report.usage_after
    unchanged = "unchanged" if report.is_source_unchanged else "CHANGED during the replay"
    return [
        f"effects sent: {report.effects_sent}{_counts(report.effects)}",
        f"calls: {report.recorded_results} recorded, {sum(report.dry_runs.values())} dry run{_counts(report.dry_runs)}, "
        f"{sum(report.reads.values())} really read{_counts(report.reads)}, {len(report.missed_calls)} refused",
        f"tokens {_tokens(before, after)}, cost {_cost(before, after)}",
        f"source {unchanged} ({report.source_after[:12]})",
    ]


def diff_markdown(diff: Diff) -> str:
    parts = [f"# Diff of `{diff.a.session_id}` and `{diff.b.session_id}`", _markdown_table(diff.rows)]
    if diff.setup:
        parts.append("\n".join(f"- {one.name}: {_cell(one.a)} → {_cell(one.b)}" for one in diff.setup))
    parts.append(_markdown_first(diff))
    parts.append(f"**{'Same' if diff.is_same else 'Different'}.**")
    return "\n\n".join(part for part in parts if part) + "\n"


def report_markdown(report: ReplayReport) -> str:
    title = f"# Replay of `{report.source}` in `{report.replay}`, mode {report.mode}"
    facts = "\n".join(f"- {_cell(line)}" for line in _summary(report))
    verdict = f"**{'Same' if report.is_same else 'Different'}.**"
    if report.stop_reason is not None:
        verdict += f" Stopped: {_cell(report.stop_reason)}."
    parts = [title, _markdown_table(report.rows), _markdown_first(report.diff), facts, verdict]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(rows: Sequence[DiffRow]) -> str:
    if not rows:
        return ""
    head = ["| a | b | input | | tokens | cost |", "|---|---|---|---|---|---|"]
    body = [
        f"| {_number(row.turn_a)} | {_number(row.turn_b)} | {_cell(_short(row.input))} | {row.kind} "
        f"| {_tokens(row.a, row.b)} | {_cost(row.a, row.b)} |"
        for row in rows
    ]
    return "\n".join([*head, *body])


def _markdown_first(diff: Diff) -> str:
    first = diff.first_divergence
    if first is None:
        return ""
    lines = [f"First divergence: {_where(first)}, {first.kind} ({_cell(first.subject)})", ""]
    pieces = {"both": "{}", "a": "~~{}~~", "b": "**{}**"}
    words = first.word_diff() if max(len(first.expected), len(first.actual)) <= LONG else []
    if words:
        told = (pieces[word.side].format(_cell(word.text.strip())) for word in words if word.text.strip())
        return "\n".join([*lines, "> " + " ".join(told)])
    return "\n".join(
        [
            *lines,
            f"- expected: {_cell(_short(first.expected, LONG))}",
            f"- actual: {_cell(_short(first.actual, LONG))}",
        ]
    )


def _first_lines(diff: Diff) -> list[str]:
    found = [("first divergence", diff.first_divergence)]
    if diff.first_action_divergence is not None and diff.first_action_divergence != diff.first_divergence:
        found.append(("first beyond wording", diff.first_action_divergence))
    lines = []
    for name, one in found:
        if one is not None:
            lines.append(f"{name}: {_where(one)}, {one.kind} ({one.subject})")
            lines.append(f"  expected {_short(one.expected, LONG) or '(nothing)'}")
            lines.append(f"  actual   {_short(one.actual, LONG) or '(nothing)'}")
    return lines


def _row_line(row: DiffRow) -> str:
    turns = f"{_number(row.turn_a):>4} {_number(row.turn_b):>4}"
    return f"{turns}  {row.kind:<17}  {_short(row.input):<{SHORT}}  {_tokens(row.a, row.b)}".rstrip()


def _where(found: Divergence) -> str:
    turn = found.turn_a if found.turn_a is not None else found.turn_b
    at = found.seq_a if found.seq_a is not None else found.seq_b
    return f"turn {turn}, message {at}"


def _number(turn: int | None) -> str:
    return "-" if turn is None else str(turn)


def _tokens(a: Totals, b: Totals) -> str:
    one, other = a.input_tokens + a.output_tokens, b.input_tokens + b.output_tokens
    return f"{one:,} -> {other:,}"


def _cost(a: Totals, b: Totals) -> str:
    return f"{format_cost(a)} -> {format_cost(b)}"


def _counts(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{name} {n}' for name, n in sorted(counts.items()))})" if counts else ""


def _side(session_id: str, models: Sequence[str]) -> str:
    return f"{session_id} {_names(models)}"


def _names(models: Sequence[str]) -> str:
    return ", ".join(models) or "(no model named)"


def _short(text: str, most: int = SHORT) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


_SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>#|~!"})


def _cell(text: str) -> str:
    """Escape content for Markdown: no mark-up, no line breaks."""
    return " ".join(text.split()).translate(_SPECIAL)
