"""The commands that a message suggests: `oakleaf …` within prose, as far as it is a command line."""

from __future__ import annotations

import re
import shlex
from typing import Any, cast

import click

from oakleaf.cli.main import oakleaf

_WORD = re.compile(r"'[^']*'\S*|\"[^\"]*\"\S*|\S+")
_END = ",;:.)…!?`"
_VALUE = re.compile(r"^['\"]|[0-9_@/{<]|\w\.\w|^[A-Z][A-Z.:]+$|^latest$|^-$")
"""What an argument of a suggested command looks like; any other word is prose again."""

BARE_FLAGS = ("--resume", "--copy", "--overwrite")
"""Flags of `oakleaf` without a verb, which stand for those of `oakleaf run`."""


def suggested_commands(text: str) -> list[list[str]]:
    """Return the arguments of every command that the text suggests, without the leading `oakleaf`."""
    commands = []
    text = re.sub(r"^Usage: .*", "", text, flags=re.MULTILINE)
    for start in re.finditer(r"(?<![\w/.'-])oakleaf (?=[\w-])", text):
        arguments = _command_line(text[start.end() :].split("\n")[0])
        if arguments is not None:
            commands.append(arguments)
    return commands


def _command_line(text: str) -> list[str] | None:
    """Return the words of `text` that belong to the command line; None if it begins none."""
    command: click.Command = oakleaf
    arguments: list[str] = []
    is_value = False
    for match in _WORD.finditer(text):
        typed = match[0]
        word = typed.rstrip(_END)
        is_last = word != typed
        if is_value:
            is_value = False
        elif isinstance(command, click.Group) and not word.startswith("-"):
            context = click.Context(command)
            below = command.get_command(context, word)
            if below is None:
                break
            command = below
        elif word == "--":
            break
        elif word.startswith("-") and word != "-":
            is_value = _takes_value(command, word)
        elif not _VALUE.search(word) or not any(isinstance(p, click.Argument) for p in command.params):
            break
        arguments.append(word)
        if is_last:
            break
    if command is oakleaf:
        return None
    return shlex.split(" ".join(arguments))


def has_placeholder(arguments: list[str]) -> bool:
    """Whether the reader has to fill in a word that is printed in capitals."""
    return any(re.fullmatch(r"[A-Z][A-Z.:@]+(\.py)?", argument) for argument in arguments)


def _takes_value(command: click.Command, flag: str) -> bool:
    if flag in ("--help", "-h") or (command is oakleaf and flag in BARE_FLAGS):
        return flag in BARE_FLAGS
    for parameter in command.params:
        if flag in (*parameter.opts, *parameter.secondary_opts):
            option = cast(Any, parameter)
            return not (option.is_flag or option.count)
    raise AssertionError(f"oakleaf {command.name} has no option {flag}")
