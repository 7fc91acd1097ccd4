"""The input of a turn as commands read it: its text, its key, and what caused it."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from oakleaf.cli.imports import accept_option
from oakleaf.cli.option_group import option_group
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.text_argument import check_utf8, read_stdin, text_option

turn_options = option_group(
    click.option(
        "--key", help="Send the input once, however often this runs; a repeat prints the recorded answer."
    ),
    click.option(
        "--trigger", metavar="TYPE[:ID]", help="What caused the turn, recorded with it, such as email:17."
    ),
    text_option("--policy", metavar="JSON|@FILE", help="The policy of the turn, recorded with it."),
    accept_option,
)


def read_input(text: str | None, *, is_new: bool) -> str | None:
    """Return the input from the argument or stdin. Only a new session requires one."""
    if text == "-" or (text is None and is_new and not sys.stdin.isatty()):
        text = read_stdin().strip("\n")
    if text is not None and not text.strip():
        raise CommandError("the input is empty; pass some text, or pipe it in")
    if text is None and is_new:
        raise CommandError(
            'nothing to send; use oakleaf run "TEXT", or pipe it in. For a conversation use oakleaf chat'
        )
    return None if text is None else check_utf8(text, "the input")


def turn_about(
    content: str | None, key: str | None, trigger: str | None, policy: str | None, *, is_in_session: bool
) -> dict[str, Any]:
    """Return what the options say of the turn; refuse options of an input without one, and a policy that is no JSON object."""
    if key is not None and (content is None or not is_in_session):
        raise CommandError("--key needs TEXT, and the session it is unique in: --resume or --conversation")
    about: dict[str, Any] = {}
    if trigger is not None:
        kind, _, number = trigger.partition(":")
        about["trigger"] = {"type": kind, **({"id": number} if number else {})}
    if policy is not None:
        try:
            about["policy"] = msgspec.json.decode(policy, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise CommandError(f"--policy is not a JSON object: {error}") from None
    if about and content is None:
        raise CommandError("--trigger and --policy belong to an input; add TEXT")
    return about
