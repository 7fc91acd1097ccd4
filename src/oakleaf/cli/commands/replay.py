"""`oakleaf replay`."""

from __future__ import annotations

import shlex
from typing import Any

import click

from oakleaf import ReplayReport
from oakleaf.cli.agent_options import AgentOptions, agent_group, agent_option, models_of, set_option
from oakleaf.cli.config import model_option
from oakleaf.cli.reference import bundle_file, reference, resolve
from oakleaf.cli.rendering.error_text import CommandError, print_error
from oakleaf.cli.rendering.output import (
    encode_report,
    json_option,
    notify,
    progress_bar,
    to_json_value,
)
from oakleaf.cli.rendering.report_file import write_report
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.cli.text_argument import text_option
from oakleaf.errors import ExitCode, IdConflict, ModelUnavailable
from oakleaf.ext import read
from oakleaf.session import Session
from oakleaf.verbs.reference import Position, after_turn

NOT_OF_A_REPLAY = ("name", "approval", "trigger", "policy", "limits", "workspace", "context", "session")
"""Keys of an agent that a replay has no use for."""
_agent_options = agent_group(
    agent_option,
    model_option(
        "--model",
        "models",
        multiple=True,
        must_exist=True,
        help="The model of the replay; repeat it for a fallback chain. Default: the recorded one, which is "
        "called again if the prompt or an option differs.",
    ),
    click.option("--prompt", metavar="TEXT|@FILE", help="The system prompt of the replay."),
    set_option,
)


@click.command()
@reference
@click.option(
    "--from-turn",
    type=click.IntRange(min=1),
    metavar="N",
    help="The last turn that the replay keeps, instead of REFERENCE@N.",
)
@_agent_options
@text_option("--prompt-patch", help="Text added to the system prompt.")
@click.option(
    "--mode",
    type=click.Choice(["strict", "recorded", "dry", "live"]),
    help="strict: recorded answers and tool results. recorded: a new model, recorded tool results. dry: calls that were not "
    "recorded use the tool's dry run. live: tools named with --live run.",
)
@click.option("--live", multiple=True, metavar="TOOL", help="Run this tool for real; repeatable.")
@click.option(
    "--on-miss",
    type=click.Choice(["stop", "next", "continue"]),
    default="stop",
    show_default=True,
    help="On a call that was not recorded: stop, skip to the next input, or tell the model and continue.",
)
@click.option(
    "--new-id", is_flag=True, help="With a bundle file: import it under new session and conversation ids."
)
@json_option
@pass_location
def replay(
    location: StoreLocation,
    /,
    reference: str,
    from_turn: int | None,
    options: AgentOptions,
    new_id: bool,
    is_json: bool,
    **how: Any,
) -> int:
    """Run a session again without side effects, with another model or prompt.

    The source does not change: a fork receives every recorded input and tools answer from the recording. The report
    shows the first difference, then every turn's text, tools and cost. REFERENCE@4 keeps entries 1 to 4, else only the
    seeds are kept; a bundle file is imported first. With --set effects=repeat or reuse a call of an unsafe tool named with --live, made before with the same
    arguments, runs once more or gets the result it had; else it counts as not recorded. Exit code 0 same, 1 different, 4 unknown: a model gave no answer.

    \b
    oakleaf replay latest
    oakleaf replay latest --prompt @stricter.txt --set options.temperature=0
    oakleaf replay latest --agent candidate.toml
    oakleaf replay ses_3f --model openai:MODEL --prompt-patch "Never refund by yourself."
    oakleaf replay ses_3f@7 --model openai:MODEL --mode dry --set tools=shop.py
    """
    options.refuse_typed(NOT_OF_A_REPLAY, "a replay has no use for it; leave it out")
    how |= _candidate(options, runs_tools=bool(how["live"]) or how["mode"] == "live")
    try:
        session, seq = _source(location, reference, from_turn, new_id=new_id)
        with progress_bar("replay", unit="turns") as step:
            models = models_of(options.models) or None
            report = session.replay_sync(model=models, start=seq, progress=step, **how)
    except ModelUnavailable as unavailable:
        print_error(unavailable.command_text)
        return ExitCode.UNANSWERABLE
    write_report(_text(report, is_json=is_json), None)
    notify(
        f"compare again with: oakleaf diff {report.source} {report.replay}; show the replay with: oakleaf show {report.replay}"
    )
    if report.is_unanswered:
        return ExitCode.UNANSWERABLE
    return 0 if report.is_same else 1


def _candidate(options: AgentOptions, *, runs_tools: bool) -> dict[str, Any]:
    """Return the prompt, options and tools of the replay. Those that nobody named are the recorded ones."""
    agent = options.agent
    how: dict[str, Any] = {"prompt": agent.prompt, "options": agent.options or None}
    how |= {"tools": tools} if (tools := options.tools()) else {}
    if agent.effects is not None and (runs_tools or "effects" in options.typed):
        how["effects"] = agent.effects
    return how


def _source(
    location: StoreLocation, name: str, from_turn: int | None, *, new_id: bool
) -> tuple[Session, int | None]:
    """Return the session to replay. One from a bundle is imported, so that its replay is stored."""
    bundle, seq = bundle_file(location, name)
    if bundle is None:
        if new_id:
            raise CommandError(f"--new-id applies to a bundle file, and {name} is not one; omit it")
        position = after_turn(resolve(location, name), "from_turn", from_turn)
        if not position.is_on_path:
            raise CommandError(
                f"{name} is on another branch; fork it first: oakleaf fork {shlex.quote(name)}"
            )
        return position.session, position.seq
    try:
        imported = location.import_bundle(bundle, new_id=new_id)
    except IdConflict as clash:
        raise CommandError(
            f"this store has another session {clash.session_id!r}; nothing was imported. Replay it under a new id: "
            f"oakleaf replay {shlex.quote(str(bundle))} --new-id"
        ) from None
    session = location.open().session(imported.session_id)
    place = Position(session, None if seq is None else read(session).leaf_at(seq))
    return session, after_turn(place, "from_turn", from_turn).seq


def _text(report: ReplayReport, *, is_json: bool) -> bytes | str:
    """Return a report as text, or with the derived values as JSON."""
    if is_json:
        derived = {"same": report.is_same, "first_divergence": report.first_divergence}
        return encode_report({**derived, **to_json_value(report)})
    return "\n".join(report.lines())
