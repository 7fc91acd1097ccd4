"""`oakleaf lab`: replay a cohort of sessions with a change and compare."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

import oakleaf_lab
from oakleaf import Store, ext, plugins
from oakleaf.cli.terminal import (
    CommandError,
    StoreLocation,
    complete_file,
    confirm_plan,
    echo,
    encode_report,
    force_option,
    format_age,
    is_title,
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
    print_json,
    progress_bar,
    resolve_stored_session,
    safe,
    table,
    text_option,
    to_json_value,
    write_report,
    yes_option,
)
from oakleaf.core.usage import format_dollars
from oakleaf.errors import ExitCode, ModelUnavailable, PostgresRequired, plural
from oakleaf_lab import Judge, LabReport
from oakleaf_lab.cohort import COHORT_PREFIX, is_query
from oakleaf_lab.commands.regression import max_cost_option, promote
from oakleaf_lab.record import RUN_PREFIX, run_summary
from oakleaf_lab.scorers import ScoreFunction, find_scorer, subject_of

if TYPE_CHECKING:
    from oakleaf.ext import ToolLike


@click.group()
def lab() -> None:
    """Replay many sessions with a change, and say whether it makes a difference.

    Three lanes: what was observed, the recorded setup replayed (its noise), and the candidate. Nothing has effects, and
    the sources do not change.

    \b
    oakleaf lab run 'agent:support after:7d' --prompt @new.txt --fail-if 'tool_changed > baseline + 5%'
    oakleaf lab ls
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
    help="The candidate's tools.",
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
    help="The baseline's tools, for mode dry.",
)
@click.option(
    "--mode",
    type=click.Choice(["strict", "recorded", "dry"]),
    help="strict: recorded answers and results. recorded (default): models answer, the recording answers tool calls. dry: "
    "calls that were not recorded use the tool's dry run.",
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
    help="Exit with 1 if this holds, such as 'tool_changed > baseline + 5%' or 'cost > 1.2x'; repeatable.",
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
@click.option("--output", type=click.Path(dir_okay=False), help="Write the report to this file.")
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

    COHORT is a query as for oakleaf search, a session (its id or whole title), or a name saved with oakleaf lab cohort save. Prints the plan and asks
    before money is spent. Stopped or killed, the same command continues and pays for nothing twice; complete, it
    prints the same report again. Exit code 0 passed, 1 a gate failed, 2 usage, 4 incomplete or too few data.

    \b
    oakleaf lab run 'agent:support after:7d' --prompt @new.txt --max-cost 5 --yes
    oakleaf lab run tag:golden=yes --model openai:MODEL --repeat 3 --fail-if 'tool_changed > baseline + 5%'
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
    store = location.open()
    try:
        judge = _judge(judge_model, judge_prompt, is_local=queue is None)
        with open_report(output, force=force) as file:
            planned = oakleaf_lab.Lab(
                store,
                *resolve_cohort(location, store, cohort),
                options=model_options or None,
                queue=queue,
                **how,
            )
            evaluation = Evaluation(scorers, judge, fail_if, max_cost_microcents)
            report = _run_confirmed(planned, evaluation, workers=workers, yes=yes)
            if report is None:
                return ExitCode.UNANSWERABLE
            write_report(_report_text(report, is_json=is_json), file)
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


def resolve_cohort(location: StoreLocation, store: Store, typed: Sequence[str]) -> list[str]:
    """Return the cohort with references to sessions replaced by their ids; a title of several words is not a query."""
    saved = oakleaf_lab.cohorts(store)
    return [
        each
        if each in saved or (is_query(each) and not is_title(store, each))
        else resolve_stored_session(location, each).session_id
        for each in typed
    ]


def _report_text(report: LabReport, *, is_json: bool) -> bytes | str:
    if not is_json:
        return "\n".join(report.lines())
    return encode_report({"exit_code": int(report.exit_code), **to_json_value(report)})


@lab.command()
@json_option
@pass_location
def ls(location: StoreLocation, is_json: bool) -> None:
    """List lab runs, newest first."""
    store = location.open()
    runs = [run_summary(row) for row in oakleaf_lab.runs(store)]
    if is_json:
        print_json(runs=runs)
        return
    if not runs:
        notify("there is no lab run yet; oakleaf lab run COHORT makes one")
        return
    now = ext.read_store(store).now()
    cells = [
        (run["run_id"], format_age(run["started_at"], now), run["status"], safe(run["title"] or ""))
        for run in runs
    ]
    for line in table(cells, ("run", "started", "status", "cohort")):
        echo(line)


@lab.command()
@click.argument("run_id", metavar="RUN", required=False)
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False),
    help="Write it as one web page that works offline.",
)
@force_option
@click.option("--redact/--no-redact", default=True, help="Mask secrets in the page. Default: yes.")
@json_option
@pass_location
def show(
    location: StoreLocation,
    run_id: str | None,
    html_file: str | None,
    force: bool,
    redact: bool,
    is_json: bool,
) -> None:
    """Print the report of a run as far as it is done; by default of the newest.

    With the gates that oakleaf lab run checked last; the exit code is 0 whatever became of them. oakleaf serve shows runs at /lab.
    """
    if html_file is not None and is_json:
        raise CommandError("--html and --json exclude each other; use one")
    store = location.open()
    rows = oakleaf_lab.runs(store)
    matches = [row.session_id for row in rows if run_id is None or _is_run(row.session_id, run_id)]
    if not rows:
        raise CommandError("there is no lab run yet; oakleaf lab run COHORT makes one")
    if not matches:
        raise CommandError(f"there is no lab run {run_id!r}; oakleaf lab ls lists them")
    if run_id is not None and len(matches) > 1 and run_id not in matches:
        raise CommandError(f"{run_id!r} is ambiguous; type more of the id: {', '.join(matches[:5])}")
    name = run_id if run_id in matches else matches[0]
    report = oakleaf_lab.report(store, name or matches[0])
    if html_file is None:
        write_report(_report_text(report, is_json=is_json), None)
        return
    from oakleaf_lab.page import report_html

    with open_report(html_file, force=force) as file:
        assert file is not None
        size = sum(map(file.write, report_html(report, ext.read_store(store).redactor if redact else None)))
    notify(f"{safe(html_file)}: {plural(len(report.sessions), 'session')}, {size:,} bytes")


def _is_run(session_id: str, typed: str) -> bool:
    return session_id.startswith((typed, f"{RUN_PREFIX}{typed}"))


@lab.group()
def cohort() -> None:
    """Save lists of sessions under a name, for oakleaf lab run."""


@cohort.command("save")
@click.argument("name")
@cohort_options
@json_option
@pass_location
def cohort_save(
    location: StoreLocation, name: str, cohort: tuple[str, ...], sample: int | None, seed: int, is_json: bool
) -> None:
    """Save the sessions of a cohort as a list; a list of that name is replaced.

    \b
    oakleaf lab cohort save golden 'agent:support after:7d' --sample 100
    """
    store = location.open()
    saved = oakleaf_lab.save_cohort(
        store, name, *resolve_cohort(location, store, cohort), sample=sample, seed=seed
    )
    if is_json:
        print_json(name=name, sessions=[source.session_id for source in saved.sources])
        return
    for skipped in saved.skipped:
        notify(safe(f"left out: {len(skipped.session_ids):,} {skipped.reason}"))
    echo(f"saved {plural(len(saved.sources), 'session')} as {name}; oakleaf lab run {name} replays them")


@cohort.command("ls")
@json_option
@pass_location
def cohort_ls(location: StoreLocation, is_json: bool) -> None:
    """List the saved cohorts."""
    saved = oakleaf_lab.cohorts(location.open())
    if is_json:
        print_json(cohorts={name: list(ids) for name, ids in saved.items()})
        return
    if not saved:
        notify("there is no saved cohort yet; oakleaf lab cohort save NAME COHORT saves one")
        return
    for line in table([(name, f"{len(ids):,}") for name, ids in saved.items()], ("cohort", "sessions")):
        echo(line)


@cohort.command("rm")
@click.argument("name")
@yes_option
@json_option
@pass_location
def cohort_rm(location: StoreLocation, name: str, yes: bool, is_json: bool) -> int:
    """Move a saved cohort to the trash; its sessions stay."""
    store = location.open()
    saved = oakleaf_lab.cohorts(store)
    if name not in saved:
        raise CommandError(f"there is no cohort {name!r}; oakleaf lab cohort ls lists them")
    notify(f"  {name}  ({plural(len(saved[name]), 'session')}, which stay) moves to the trash")
    if not confirm_plan("Move to the trash?", yes=yes):
        return 1
    store.delete(f"{COHORT_PREFIX}{name}")
    if is_json:
        print_json(trashed=[f"{COHORT_PREFIX}{name}"])
    else:
        notify(f"oakleaf restore {COHORT_PREFIX}{name} brings it back")
    return 0
