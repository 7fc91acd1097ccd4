"""`oakleaf lab`: replay a cohort of sessions with a change and compare."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

import oakleaf_lab
from oakleaf import ext, plugins
from oakleaf.cli.terminal import (
    CommandError,
    StoreLocation,
    Typist,
    VerbGroup,
    complete_file,
    confirm_plan,
    encode_report,
    force_option,
    json_option,
    load_module,
    load_tools,
    model_option,
    model_options,
    notify,
    open_report,
    option_group,
    pass_location,
    print_error,
    progress_bar,
    safe,
    text_option,
    to_json_value,
    write_report,
    yes_option,
)
from oakleaf.core.usage import format_dollars
from oakleaf.errors import ExitCode, ModelUnavailable, PostgresRequired, plural
from oakleaf_lab import Judge, LabReport, report_file
from oakleaf_lab.commands.regression import max_cost_option, promote
from oakleaf_lab.report_text import gate_lines
from oakleaf_lab.scorers import ScoreFunction, find_scorer, subject_of
from oakleaf_lab.verbs import resolve_cohort

if TYPE_CHECKING:
    from oakleaf.ext import ToolLike


@click.group(cls=VerbGroup)
def lab() -> None:
    """Replay many sessions with a change, and say whether it makes a difference.

    Three lanes: what was observed, the recorded setup replayed (its noise), and the candidate. Nothing has effects, and
    the sources do not change.

    \b
    oakleaf lab run 'agent:support after:7d' --prompt @new.txt --tools shop.py --fail-if 'calls:refund > baseline + 5%'
    oakleaf lab show
    oakleaf lab show lab_3f
    oakleaf lab promote ses_3f@7 tests/regressions
    """


lab.add_command(promote)


cohort_options = option_group(
    click.argument("cohort", nargs=-1, required=True, metavar="COHORT…"),
    click.option("--sample", type=click.IntRange(1), metavar="N", help="Take so many of the sessions."),
    click.option(
        "--seed", metavar="N", type=int, default=0, show_default=True, help="Which ones --sample takes."
    ),
)


def _tools(ctx: click.Context, _: click.Parameter, sources: tuple[str, ...]) -> list[ToolLike] | None:
    """Load the tools, not while a shell completes the line: that would run the files."""
    return load_tools(sources) if sources and not ctx.resilient_parsing else None


def _scorers(ctx: click.Context, _: click.Parameter, sources: tuple[str, ...]) -> list[ScoreFunction]:
    return [] if ctx.resilient_parsing else load_scorers(sources)


@lab.command()
@cohort_options
@model_option("--model", must_exist=True, help="The candidate's model. Default: the baseline's.")
@text_option("--prompt", help="The candidate's system prompt.")
@text_option("--prompt-patch", help="Text added to its system prompt.")
@model_options
@click.option(
    "--tools",
    multiple=True,
    callback=_tools,
    shell_complete=complete_file,
    metavar="FILE.py|MODULE",
    help="The candidate's tools, and the baseline's where they are defined as recorded. Calls that were not recorded use "
    "their dry runs.",
)
@model_option(
    "--baseline-model",
    must_exist=True,
    help="The model of the baseline. Default: the one that each session ran with.",
)
@click.option(
    "--baseline-tools",
    multiple=True,
    callback=_tools,
    shell_complete=complete_file,
    metavar="FILE.py|MODULE",
    help="The baseline's tools, if its own are defined otherwise.",
)
@click.option(
    "--mode",
    type=click.Choice(["strict", "recorded", "dry"]),
    help="strict: recorded answers and results. recorded: models answer, the recording answers tool calls. dry: "
    "calls that were not recorded use the tool's dry run. Default: dry with --tools, else recorded.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Replay each session so often in both lanes.",
)
@click.option(
    "--after-divergence",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    show_default=True,
    help="After a call that was not recorded: leave the rest of the session out, or go on with the next input.",
)
@click.option(
    "--score",
    "scorers",
    multiple=True,
    callback=_scorers,
    shell_complete=complete_file,
    metavar="FILE.py[:NAME]|SCORER",
    help="Score with the functions there whose parameter is named turn or session, or with a plugin's; repeatable.",
)
@model_option(
    "--judge",
    "judge_model",
    metavar="MODEL",
    must_exist=True,
    help="Let this model score each turn from 0 to 1.",
)
@text_option(
    "--judge-prompt",
    help="What the judge is to look at. Default: correct by the results, complete, polite.",
)
@click.option(
    "--fail-if",
    multiple=True,
    metavar="GATE",
    help="Exit with 1 if this holds, such as 'calls:refund > baseline + 5%' or 'cost > 1.2x'; repeatable.",
)
@max_cost_option
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    metavar="N",
    help="How many replays run at once.",
)
@click.option(
    "--queue",
    metavar="NAME",
    help="Let the workers of this queue replay the sessions; oakleaf worker starts one.",
)
@click.option("--again", is_flag=True, help="Run it anew, though the same run is complete.")
@yes_option
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    help="Write the report to this file: .html is one page that works offline, .json data, else text.",
)
@force_option
@json_option
@pass_location
def run(
    location: StoreLocation,
    /,
    cohort: tuple[str, ...],
    model_options: dict[str, Any],
    scorers: list[ScoreFunction],
    judge_model: str | None,
    judge_prompt: str | None,
    fail_if: tuple[str, ...],
    max_cost_microcents: int | None,
    workers: int,
    queue: str | None,
    yes: bool,
    output: str | None,
    force: bool,
    is_json: bool,
    **how: Any,
) -> int:
    """Replay a cohort with the recorded setup and with a change, and compare.

    COHORT is a query as for oakleaf search, a session (its id or whole title), or a name saved with oakleaf lab cohort. Prints the plan and asks
    before money is spent. Stopped or killed, the same command continues and pays for nothing twice; complete, it
    prints the same report again. Exit code 0 passed, 1 a gate failed, 2 usage, 4 incomplete or not decided.

    \b
    oakleaf lab run 'agent:support after:7d' --prompt @new.txt --max-cost 5 --yes
    oakleaf lab run tag:golden=yes --model openai:MODEL --tools shop.py --repeat 3 --fail-if 'calls:refund > baseline + 5%'
    """
    if judge_prompt is not None and judge_model is None:
        raise CommandError("--judge-prompt needs --judge MODEL")
    if queue is not None:
        if click.get_current_context().get_parameter_source("workers") is not ParameterSource.DEFAULT:
            raise CommandError(
                "--workers and --queue exclude each other; oakleaf worker --concurrency N says how many run at once"
            )
        if location.scheme is None:
            raise PostgresRequired(location.display_url)
    if output is not None:
        report_file.check_ending(output)
    store = location.open()
    try:
        judge = _judge(judge_model, judge_prompt, is_local=queue is None)
        with open_report(output, force=force) as file:
            planned = oakleaf_lab.Lab(
                store,
                *resolve_cohort(Typist(location), list(cohort)),
                options=model_options or None,
                queue=queue,
                **how,
            )
            evaluation = Evaluation(scorers, judge, fail_if, max_cost_microcents)
            report = _run_confirmed(planned, evaluation, workers=workers, yes=yes)
            if report is None:
                return ExitCode.UNANSWERABLE
            if file is None or is_json:
                write_report(_report_text(report, is_json=is_json), file)
            else:
                redactor = ext.read_store(store).redactor
                report_file.write_report(report, file, str(output), redactor)
            if file is not None:
                for line in (*gate_lines(report), f"{output}: {plural(len(report.sessions), 'session')}"):
                    notify(safe(line))
    except ModelUnavailable as unavailable:
        print_error(unavailable.command_text)
        return ExitCode.UNANSWERABLE
    except KeyboardInterrupt:
        notify("stopped; the same command continues where it stopped")
        raise
    if report.status == "incomplete":
        forced = "" if output is None or force else ", with --force,"
        notify(f"the same command{forced} continues where it stopped")
    return report.exit_code


class Evaluation(NamedTuple):
    """What a run is measured by, and what it may cost."""

    scorers: Sequence[ScoreFunction]
    judge: Judge | None
    fail_if: Sequence[str]
    max_cost_microcents: int | None


def _run_confirmed(
    planned: oakleaf_lab.Lab, evaluation: Evaluation, *, workers: int, yes: bool
) -> LabReport | None:
    """Print the plan, ask before money is spent, and run it; None if the answer is no."""
    scorers, judge, fail_if, max_cost = evaluation
    planned.check(fail_if=fail_if, max_cost_microcents=max_cost, scorers=scorers, judge=judge)
    for line in planned.plan_lines(judge):
        notify(safe(line))
    if planned.estimate(judge).is_real and not confirm_plan("Call these models?", yes=yes):
        return None
    with progress_bar("lab", unit="replays") as step:
        return planned.run_sync(
            workers=workers,
            max_cost_microcents=max_cost,
            fail_if=fail_if,
            scorers=scorers,
            judge=judge,
            progress=lambda done, total, spent: step(done, total, f"  {format_dollars(spent)}"),
            notify=notify,
        )


def _judge(model: str | None, prompt: str | None, *, is_local: bool) -> Judge | None:
    if model is None:
        return None
    resolved = ext.available_models([model])[0] if is_local else ext.model_by_name(model)
    return Judge(resolved) if prompt is None else Judge(resolved, prompt)


def load_scorers(sources: Sequence[str]) -> list[ScoreFunction]:
    """Load scorers: those of plugins by name; of files or modules those named, or every function there that is a scorer."""
    functions: list[ScoreFunction] = []
    for source in sources:
        if source in plugins.names(plugins.SCORERS):
            functions.append(find_scorer(source))
            continue
        place, _, name = source.rpartition(":") if ":" in source else (source, "", "")
        module = load_module("--score", source, place)
        values = [getattr(module, name, None)] if name else list(vars(module).values())
        own = [
            value
            for value in values
            if isinstance(value, FunctionType)
            and subject_of(value) is not None
            and (name or (value.__module__ == module.__name__ and not value.__name__.startswith("_")))
        ]
        if not own:
            raise CommandError(
                f"--score {source}: there is no function whose parameter is named turn or session{_plugins_hint()}"
            )
        functions += own
    return functions


def _plugins_hint() -> str:
    names = plugins.names(plugins.SCORERS)
    return f"; scorers of plugins: {', '.join(names)}" if names else ""


def _report_text(report: LabReport, *, is_json: bool) -> bytes | str:
    if not is_json:
        return "\n".join(report.lines())
    return encode_report({"exit_code": int(report.exit_code), **to_json_value(report)})
