"""The input of a turn as commands read it: its text and its key."""

from __future__ import annotations

import sys
from typing import Any

import click

from oakleaf.cli.agent_options import AgentOptions
from oakleaf.cli.imports import accept_option
from oakleaf.cli.option_group import option_group
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.text_argument import check_utf8, read_stdin

turn_options = option_group(
    click.option(
        "--key", help="Send the input once, however often this runs; a repeat prints the recorded answer."
    ),
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
    content: str | None, key: str | None, options: AgentOptions, *, is_in_session: bool
) -> dict[str, Any]:
    """Return the options' facts about the turn; refuse options of an input without TEXT."""
    if key is not None and (content is None or not is_in_session):
        raise CommandError(
            "--key needs TEXT, and the session it is unique in: --resume or --set session.conversation"
        )
    if content is not None:
        return options.about_turn
    options.refuse_typed(("trigger", "policy"), "it belongs to an input; add TEXT")
    return {}
