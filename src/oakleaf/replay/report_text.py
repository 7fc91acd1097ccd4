"""Diffs and replay reports as plain lines and as Markdown, without colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oakleaf.core.turn_comparison import DiffRow, Divergence
from oakleaf.core.usage import Totals, format_cost
from oakleaf.errors import shorten
from oakleaf.replay.diff import Diff
from oakleaf.replay.report import ReplayReport

SHORT = 60
LONG = 200


def diff_lines(diff: Diff) -> list[str]:
    """Return lines for the shared part, the setup, the turns, and the first divergence."""
    lines = [f"a {_side(diff.a.session_id, diff.a.models)}", f"b {_side(diff.b.session_id, diff.b.models)}"]
    lines.append(f"shared: {diff.shared} {'entry' if diff.shared == 1 else 'entries'}")
    lines += _setup_lines(diff)
    lines += [_row_line(row) for row in diff.rows]
    lines += [] if diff.is_state_same else ["state differs"]
    lines += _divergence_lines(diff)
    lines.append(
        f"tokens {_tokens(diff.a.totals, diff.b.totals)}, cost {_cost(diff.a.totals, diff.b.totals)}"
    )
    lines.append(_verdict(diff.is_same, diff.incomplete))
    return lines


def _setup_lines(diff: Diff) -> list[str]:
    return [f"{change.name} {_side_text(change.a)} → {_side_text(change.b)}" for change in diff.setup]


def _side_text(text: str) -> str:
    return _short(text) or "(none)"


def _verdict(is_same: bool, unanswered: str | None) -> str:
    return f"unknown: {_short(unanswered, LONG)}" if unanswered else "same" if is_same else "different"


def report_lines(report: ReplayReport) -> list[str]:
    """Return lines for the replayed part, then the diff of source and replay in short."""
    cut = report.cut
    moved = "" if not cut.has_moved else f" (requested {cut.requested}, moved to a valid position)"
    lines = [
        f"{report.source} -> {report.replay}, mode {report.mode}",
        f"{_first_entries(cut.at)}{moved}, replayed {report.turns} of {report.total_turns} inputs",
        f"model {_names(report.model_before)} -> {_names(report.model_after)}",
    ]
    lines += [line for line in _setup_lines(report.diff) if not line.startswith("model ")]
    lines += [_row_line(row) for row in report.rows]
    lines += _divergence_lines(report.diff)
    lines += _summary(report)
    if report.stop_reason is not None and not report.is_unanswered:
        lines.append(f"stopped: {_short(report.stop_reason, LONG)}")
    lines.append(_verdict(report.is_same, report.stop_reason if report.is_unanswered else None))
    return lines


def _first_entries(last: int) -> str:
    return f"kept entries 1 to {last}" if last > 1 else f"kept {'entry 1' if last else 'no entry'}"


def _summary(report: ReplayReport) -> list[str]:
    before, after = report.usage_before, report.usage_after
    unchanged = "unchanged" if report.is_source_unchanged else "CHANGED during the replay"
    return [
        f"effects sent: {report.effects_sent}{_counts(report.effects)}",
        f"calls: {report.recorded_results} recorded, {sum(report.dry_runs.values())} dry run{_counts(report.dry_runs)}, "
        f"{sum(report.reads.values())} executed reads{_counts(report.reads)}, {len(report.missed_calls)} refused",
        f"tokens {_tokens(before, after)}, cost {_cost(before, after)}",
        f"source {unchanged} ({report.source_after[:12]})",
    ]


def diff_markdown(diff: Diff) -> str:
    parts = [f"# Diff of `{diff.a.session_id}` and `{diff.b.session_id}`", _markdown_table(diff.rows)]
    if diff.setup:
        parts.append(
            "\n".join(f"- {change.name}: {_cell(change.a)} → {_cell(change.b)}" for change in diff.setup)
        )
    parts.append(_markdown_divergence(diff))
    parts.append(_markdown_verdict(diff.is_same, diff.incomplete))
    return "\n\n".join(part for part in parts if part) + "\n"


def report_markdown(report: ReplayReport) -> str:
    title = f"# Replay of `{report.source}` in `{report.replay}`, mode {report.mode}"
    facts = "\n".join(f"- {_cell(line)}" for line in _summary(report))
    setup = "\n".join(f"- {_cell(line)}" for line in _setup_lines(report.diff))
    verdict = _markdown_verdict(report.is_same, report.stop_reason if report.is_unanswered else None)
    if report.stop_reason is not None and not report.is_unanswered:
        verdict += f" Stopped: {_cell(report.stop_reason)}."
    parts = [title, setup, _markdown_table(report.rows), _markdown_divergence(report.diff), facts, verdict]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_verdict(is_same: bool, unanswered: str | None) -> str:
    if unanswered:
        return f"**Unknown:** {_cell(unanswered)}."
    return f"**{'Same' if is_same else 'Different'}.**"


def _markdown_table(rows: Sequence[DiffRow]) -> str:
    if not rows:
        return ""
    head = ["| a | b | input | | tokens | cost |", "|---|---|---|---|---|---|"]
    body = [
        f"| {_number(row.number_a)} | {_number(row.number_b)} | {_cell(_short(row.input))} | {row.kind} "
        f"| {_tokens(row.a, row.b)} | {_cost(row.a, row.b)} |"
        for row in rows
    ]
    return "\n".join([*head, *body])


def _markdown_divergence(diff: Diff) -> str:
    first = diff.first_divergence
    if first is None:
        return ""
    lines = [f"First divergence: {_position(diff.rows, first)}, {first.kind} ({_cell(first.subject)})", ""]
    formats = {"both": "{}", "a": "~~{}~~", "b": "**{}**"}
    spans = first.word_diff() if max(len(first.expected), len(first.actual)) <= LONG else []
    if spans:
        texts = (formats[span.side].format(_cell(span.text.strip())) for span in spans if span.text.strip())
        return "\n".join([*lines, "> " + " ".join(texts)])
    return "\n".join(
        [
            *lines,
            f"- expected: {_cell(_short(first.expected, LONG))}",
            f"- actual: {_cell(_short(first.actual, LONG))}",
        ]
    )


def _divergence_lines(diff: Diff) -> list[str]:
    named = [("first divergence", diff.first_divergence)]
    if diff.first_action_divergence is not None and diff.first_action_divergence != diff.first_divergence:
        named.append(("first beyond wording", diff.first_action_divergence))
    lines = []
    for name, divergence in named:
        if divergence is not None:
            lines.append(
                f"{name}: {_position(diff.rows, divergence)}, {divergence.kind} ({divergence.subject})"
            )
            lines.append(f"  expected {_short(divergence.expected, LONG) or '(nothing)'}")
            lines.append(f"  actual   {_short(divergence.actual, LONG) or '(nothing)'}")
    return lines


def _row_line(row: DiffRow) -> str:
    turns = f"{_number(row.number_a):>4} {_number(row.number_b):>4}"
    return f"{turns}  {row.kind:<17}  {_short(row.input):<{SHORT}}  {_tokens(row.a, row.b)}".rstrip()


def _position(rows: Sequence[DiffRow], divergence: Divergence) -> str:
    """Return where a divergence is: the number of the turn, and the entry."""
    row = next(row for row in rows if divergence in row.differences)
    seq = divergence.seq_a if divergence.seq_a is not None else divergence.seq_b
    return f"turn {row.number_a or row.number_b}, entry {seq}"


def _number(turn: int | None) -> str:
    return "-" if turn is None else str(turn)


def _tokens(a: Totals, b: Totals) -> str:
    return f"{a.input_tokens + a.output_tokens:,} -> {b.input_tokens + b.output_tokens:,}"


def _cost(a: Totals, b: Totals) -> str:
    return f"{format_cost(a)} -> {format_cost(b)}"


def _counts(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{name} {n}' for name, n in sorted(counts.items()))})" if counts else ""


def _side(session_id: str, models: Sequence[str]) -> str:
    return f"{session_id} {_names(models)}"


def _names(models: Sequence[str]) -> str:
    return ", ".join(models) or "(unknown model)"


def _short(text: str, length: int = SHORT) -> str:
    return shorten(" ".join(text.split()), length)


_SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>#|~!"})


def _cell(text: str) -> str:
    """Escape content for Markdown: no mark-up, no line breaks."""
    return " ".join(text.split()).translate(_SPECIAL)
