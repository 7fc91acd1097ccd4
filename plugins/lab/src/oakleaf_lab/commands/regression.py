"""`oakleaf lab promote` and `oakleaf test`: write regression cases, and run them."""

from __future__ import annotations

import asyncio
import re
import shlex
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import click

import oakleaf_lab
from oakleaf import ext
from oakleaf.cli.terminal import (
    CommandError,
    StoreLocation,
    echo,
    json_option,
    model_option,
    notify,
    pass_location,
    print_error,
    print_json,
    progress_bar,
    required_reference,
    resolve,
    safe,
    text_option,
    to_json_value,
)
from oakleaf.core.usage import MICROCENTS_PER_DOLLAR
from oakleaf.errors import ExitCode, ModelUnavailable, plural

if TYPE_CHECKING:
    from oakleaf_lab.regression import RegressionReport


def _dollars(ctx: click.Context, param: click.Parameter, value: float | None) -> int | None:
    if value is not None and not isfinite(value):
        raise click.BadParameter(f"{value} is not an amount; omit it for no limit")
    return None if value is None else round(value * MICROCENTS_PER_DOLLAR)


def _share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", value.strip())
    if match is None or not 0 < float(match[1]) <= 100:
        raise click.BadParameter(f"{value} is not a share; write it like 80%")
    return float(match[1]) / 100


max_cost_option = click.option(
    "--max-cost",
    "max_cost_microcents",
    type=click.FloatRange(min=0),
    callback=_dollars,
    metavar="DOLLARS",
    help="Make no model call that could make the run cost more.",
)


@click.command()
@required_reference
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", metavar="NAME", help="The name of the case. Default: the first words of its input.")
@click.option("--redact/--no-redact", default=True, help="Mask secrets in the bundle. Default: yes.")
@click.option("--blobs", is_flag=True, help="Include images and other attachments; needs --no-redact.")
@json_option
@pass_location
def promote(
    location: StoreLocation,
    reference: str,
    folder: Path,
    name: str | None,
    redact: bool,
    blobs: bool,
    is_json: bool,
) -> None:
    """Write a recorded turn as a regression case: a bundle and what it must do.

    REFERENCE@7 selects the turn that contains entry 7; without @ the case has every turn of the session. It expects the
    recorded tool calls, in a TOML file; edit it to say what the answer must say, or must not call. Run it with oakleaf test
    FOLDER or pytest.

    \b
    oakleaf lab promote ses_3f@7 tests/regressions
    """
    if blobs and redact:
        raise CommandError("attachments cannot be searched for secrets; --blobs needs --no-redact")
    if name is not None and not _is_file_name(name):
        raise CommandError(
            f"--name {name}: a name has letters, digits, dots, dashes and underscores, and no folder"
        )
    position = resolve(location, reference)
    if not position.is_on_path:
        raise CommandError(
            f"{reference} is on another branch; fork it first: oakleaf fork {shlex.quote(reference)}"
        )
    written = oakleaf_lab.promote(
        position.session,
        folder,
        at=position.seq,
        name=name,
        redact=redact,
        blobs=blobs,
    )
    if is_json:
        print_json(**to_json_value(written))
        return
    notify(f"{safe(written.case)}: {plural(written.turns, 'turn')}, bundle {written.bytes:,} bytes")
    for secret, count in written.redactions.items():
        notify(f"masked {count} × {safe(secret)}")
    notify(f"run it with: oakleaf test {shlex.quote(safe(str(folder)))}")


def _is_file_name(name: str) -> bool:
    return name[:1].isalnum() and all(character.isalnum() or character in "._-" for character in name)


@click.command()
@click.argument("places", nargs=-1, required=True, metavar="DIR|CASE…", type=click.Path(path_type=Path))
@model_option(
    "--model",
    "models",
    multiple=True,
    must_exist=True,
    help="Ask this model; repeat it for a fallback chain. Default: the case's, else the recorded answers.",
)
@text_option("--prompt", help="Another system prompt.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    metavar="N",
    help="How many cases run at once.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1),
    metavar="N",
    help="Run each case so often where a live model or a judge answers. Default: as the case says, else once.",
)
@click.option(
    "--pass-rate",
    callback=_share,
    metavar="PERCENT",
    help="How many of these runs must pass, such as 80%. Default: as the case says, else all.",
)
@max_cost_option
@json_option
def test(
    places: tuple[Path, ...],
    models: tuple[str, ...],
    prompt: str | None,
    workers: int,
    repeat: int | None,
    pass_rate: float | None,
    max_cost_microcents: int | None,
    is_json: bool,
) -> int:
    """Run regression cases: replay them and check what they expect.

    Finds the *.case.toml files below DIR, as oakleaf lab promote writes them. Without --model and --prompt the recorded
    answers are used: nothing is sent and nothing costs money, unless a case names a model or a judge. Tools never run
    for real. A case that fails prints its difference from the recording. Exit code 0 all passed, 1 a case failed, 2 a
    case cannot be run, 4 a model gave no answer or --max-cost is reached.

    \b
    oakleaf test tests/regressions
    oakleaf test tests/regressions --model anthropic:MODEL --prompt @new_prompt.txt --repeat 5 --pass-rate 80%
    """
    from oakleaf_lab.budget import CostBudget
    from oakleaf_lab.case_file import find_cases
    from oakleaf_lab.regression import run_cases

    if missing := [place for place in places if not place.exists()]:
        raise CommandError(
            f"there is no file or folder {missing[0]}; oakleaf lab promote REFERENCE DIR writes cases"
        )
    cases = find_cases(places)
    if not cases:
        raise CommandError(
            f"there is no *.case.toml below {', '.join(map(str, places))}; oakleaf lab promote REFERENCE DIR writes one"
        )
    try:
        model = ext.available_models(models) or None
    except ModelUnavailable as unavailable:
        print_error(unavailable.command_text)
        return ExitCode.UNANSWERABLE
    if max_cost_microcents is not None:
        for each in model or ():
            CostBudget(max_cost_microcents).check_price(each)
    overrides = ext.ReplayPlan(model=model, prompt=prompt)
    with progress_bar("test", unit="cases") as step:
        running = run_cases(
            cases,
            overrides,
            workers=workers,
            max_cost_microcents=max_cost_microcents,
            progress=step,
            repeat=repeat,
            pass_rate=pass_rate,
        )
        report = asyncio.run(running)
    if is_json:
        counts = {status: report.count(status) for status in ("passed", "failed", "incomplete", "invalid")}
        print_json(**counts, cases=report.cases)
        return report.exit_code
    _print_report(report)
    return report.exit_code


def _print_report(report: RegressionReport) -> None:
    for result in report.cases:
        echo("\n".join(map(safe, result.lines())))
    passed = report.count("passed")
    words = [
        f"{report.count(status)} {status}"
        for status in ("failed", "incomplete", "invalid")
        if report.count(status)
    ]
    notify(f"{plural(len(report.cases), 'case')}: {', '.join([f'{passed} passed', *words])}")
