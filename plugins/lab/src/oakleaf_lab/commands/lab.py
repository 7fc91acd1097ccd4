"""`oakleaf lab`: replay a cohort of sessions with a change and compare."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

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
    pass_location,
    print_error,
    progress_bar,
    safe,
    to_json_value,
    write_report,
    yes_option,
)
from oakleaf.core.usage import MICROCENTS_PER_DOLLAR, format_dollars
from oakleaf.errors import ExitCode, ModelUnavailable, PostgresRequired, plural
from oakleaf_lab import Judge, LabReport, report_file
from oakleaf_lab.commands.experiment_file import ExperimentFile, read_experiment
from oakleaf_lab.commands.regression import max_cost_option, promote
from oakleaf_lab.report_text import gate_lines
from oakleaf_lab.scorers import ScoreFunction, find_scorer, subject_of
from oakleaf_lab.verbs import resolve_cohort

if TYPE_CHECKING:
    from oakleaf import Store, Tool

WORKERS = 4
"""How many replays run at once, if nobody says."""


@click.group(cls=VerbGroup)
def lab() -> None:
    """Replay many sessions with a change, and say whether it makes a difference.

    Three lanes: what was observed, the recorded setup replayed (its noise), and the candidate. Nothing has effects, and
    the sources do not change.

    \b
    oakleaf lab run 'agent:support after:7d' --prompt @new.txt --set tools=shop.py --fail-if 'calls:refund > baseline + 5%'
    oakleaf lab show
    oakleaf lab show lab_3f
    oakleaf lab promote ses_3f@7 tests/regressions
    """


lab.add_command(promote)


@lab.command()
@click.argument(
    "cohort", nargs=-1, required=True, metavar="EXPERIMENT.toml|COHORT…", shell_complete=complete_file
)
@model_option("--model", must_exist=True, help="The candidate's model. Default: the baseline's.")
@click.option("--prompt", metavar="TEXT|@FILE", help="The candidate's system prompt.")
@model_options
@click.option(
    "--fail-if",
    multiple=True,
    metavar="GATE",
    help="Exit with 1 if this holds, such as 'calls:refund > baseline + 5%' or 'cost > 1.2x'; repeatable.",
)
@max_cost_option
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any key of an experiment file, such as repeat=3, sample=100, score=checks.py, judge.model=NAME or queue=NAME; "
    "repeatable.",
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
    cohort: tuple[str, ...],
    model: str | None,
    prompt: str | None,
    model_options: dict[str, Any],
    fail_if: tuple[str, ...],
    max_cost_microcents: int | None,
    changes: tuple[str, ...],
    again: bool,
    yes: bool,
    output: str | None,
    force: bool,
    is_json: bool,
) -> int:
    """Replay a cohort with the recorded setup and with a change, and compare.

    COHORT is a query as for oakleaf search, a session (its id or whole title), or a name saved with oakleaf lab cohort.
    EXPERIMENT.toml has the cohort and everything else of the run; flags override it. Prints the plan and asks
    before money is spent. Stopped or killed, the same command continues and pays for nothing twice; complete, it
    prints the same report again. Exit code 0 passed, 1 a gate failed, 2 usage,
    4 incomplete or not decided.

    \b
    oakleaf lab run experiment.toml
    oakleaf lab run 'agent:support after:7d' --prompt @new.txt --max-cost 5 --yes
    oakleaf lab run tag:golden=yes --model openai:MODEL --set tools=shop.py --fail-if 'calls:refund > baseline + 5%'
    """
    flags = {"model": model, "prompt": prompt, "options": model_options, "fail_if": fail_if}
    experiment = read_experiment(cohort, changes, flags)
    scorers, judge = load_scorers(experiment.score or ()), experiment.judge
    if judge.prompt is not None and judge.model is None:
        raise CommandError("judge.prompt needs judge.model")
    if experiment.queue is not None:
        if experiment.workers is not None:
            raise CommandError(
                "workers and queue exclude each other; oakleaf worker --concurrency N says how many run at once"
            )
        if location.scheme is None:
            raise PostgresRequired(location.display_url)
    if max_cost_microcents is None and experiment.max_cost is not None:
        max_cost_microcents = round(experiment.max_cost * MICROCENTS_PER_DOLLAR)
    if output is not None:
        report_file.check_ending(output)
    store = location.open()
    try:
        made = _judge(judge.model, judge.prompt, is_local=experiment.queue is None)
        evaluation = Evaluation(scorers, made, experiment.fail_if or (), max_cost_microcents)
        planned = _planned(
            store, resolve_cohort(Typist(location), list(experiment.cohort or ())), experiment, again
        )
        with open_report(output, force=force) as file:
            report = _run_confirmed(planned, evaluation, workers=experiment.workers or WORKERS, yes=yes)
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


def _planned(store: Store, cohort: Sequence[str], experiment: ExperimentFile, again: bool) -> oakleaf_lab.Lab:
    baseline = experiment.baseline
    return oakleaf_lab.Lab(
        store,
        *cohort,
        model=experiment.model,
        prompt=experiment.prompt,
        prompt_patch=experiment.prompt_patch,
        options=experiment.options or None,
        tools=_tools("tools", experiment.tools),
        baseline_model=baseline.model,
        baseline_tools=_tools("baseline.tools", baseline.tools),
        mode=experiment.mode,
        repeat=experiment.repeat or 1,
        after_divergence=experiment.after_divergence or "stop",
        sample=experiment.sample,
        seed=experiment.seed or 0,
        again=again,
        queue=experiment.queue,
    )


def _tools(key: str, sources: Sequence[str] | None) -> list[Tool] | None:
    if not sources:
        return None
    own, servers = ext.split_tools(load_tools(sources, option=key))
    if servers:
        raise CommandError(f"{key}: a lab asks no server for tools; name functions of Python")
    return list(own.values())


class Evaluation(NamedTuple):
    """The metrics and the budget of a run."""

    scorers: Sequence[ScoreFunction]
    judge: Judge | None
    fail_if: Sequence[str]
    max_cost_microcents: int | None


def _run_confirmed(
    planned: oakleaf_lab.Lab, evaluation: Evaluation, *, workers: int, yes: bool
) -> LabReport | None:
    """Print the plan, ask before spending money, and run; None after a no."""
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
    """Load scorers: plugins' scorers by name, a file's or module's scorers by name, or all scorers in the file."""
    functions: list[ScoreFunction] = []
    for source in sources:
        if source in plugins.names(plugins.SCORERS):
            functions.append(find_scorer(source))
            continue
        place, _, name = source.rpartition(":") if ":" in source else (source, "", "")
        module = load_module("score", source, place)
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
                f"score {source}: there is no function whose parameter is named turn or session{_plugins_hint()}"
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
