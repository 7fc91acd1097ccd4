"""A verb as a command: its fields as arguments and options, its result as lines or JSON, its plan before it destroys.

Knows no verb.
"""

from __future__ import annotations

import re
import select
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from inspect import cleandoc
from typing import Any

import click
from click.shell_completion import CompletionItem

from oakleaf import plugins
from oakleaf.cli.chat_history import forget_inputs
from oakleaf.cli.config import complete_model, load_config, read_options
from oakleaf.cli.option_group import complete_file
from oakleaf.cli.person import COMMAND_LINE, user_name
from oakleaf.cli.reference import complete, complete_trashed, resolve, resolve_stored
from oakleaf.cli.rendering.error_text import suggestions
from oakleaf.cli.rendering.output import (
    confirm_plan,
    echo,
    encode_line,
    encode_report,
    notify,
    print_lines,
    progress_bar,
    screen,
)
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.cli.text_argument import check_utf8, read_text
from oakleaf.errors import InvalidArgument, UnknownField
from oakleaf.verbs import registry
from oakleaf.verbs.base import Caller, Step, Verb, summary, to_json
from oakleaf.verbs.fields import Field, bind, fields, nearest
from oakleaf.verbs.reference import Position

PAUSE = 0.1
"""Seconds between two looks for more; each is one indexed query."""
_ARGUMENTS = ("reference", "references", "word", "words", "pairs", "place", "places")
_LISTS = ("references", "words", "pairs", "places")
_EXCLUDED = re.compile(r"-(?!-|n\d+$|.$)")


class Typist(Caller):
    """The person at the command line, with access to bundle files."""

    surface = COMMAND_LINE

    def __init__(self, location: StoreLocation) -> None:
        super().__init__(location.open, location.url)
        self.location = location

    def position(self, reference: str, *, trashed: bool = False) -> Position:
        return resolve(self.location, reference, trashed=trashed)

    def stored_position(self, reference: str, *, trashed: bool = False) -> Position:
        return resolve_stored(self.location, reference, trashed=trashed)

    def person(self, named: str | None) -> str | None:
        return named or user_name()

    def forget(self, inputs: Collection[str]) -> int:
        return forget_inputs(inputs)

    def typed(self, command: str, space: str | None = None) -> str:
        return suggestions.complete(command, {} if space is None else {"--space": space})

    @contextmanager
    def progress(self, label: str, unit: str = "") -> Iterator[Step]:
        with progress_bar(label, unit=unit) as step:
            yield step


class VerbCommand(click.Command):
    """Names an unknown option in the words of every surface. In a query `-refund` excludes a word and is no option."""

    has_query = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, _excluded_last(args) if self.has_query else args)
        except click.NoSuchOption as error:
            if any(error.option_name in option.opts for option in ctx.find_root().command.params):
                raise
            typed = error.option_name.lstrip("-")
            names = {
                name.lstrip("-"): None for option in self.params for name in option.opts if name[0] == "-"
            }
            raise UnknownField(ctx.command_path.partition(" ")[2], typed, nearest(typed, names)) from None


class VerbGroup(click.Group):
    """The command `GROUP` with its own commands, and each verb of the name `GROUP VERB`, whose entry point is `GROUP.VERB`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        parts = (name.split(".", 1) for name in plugins.names(plugins.VERBS) if "." in name)
        return [*super().list_commands(ctx), *(verb for group, verb in parts if group == self.name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        verb = None if own else registry.find(f"{self.name}.{cmd_name}")
        return command(verb) if verb else own


def _excluded_last(args: list[str]) -> list[str]:
    """Return arguments with the excluded words of a query behind `--`."""
    end = args.index("--") if "--" in args else len(args)
    excluded = [word for word in args[:end] if _EXCLUDED.match(word)]
    others = [word for word in args[:end] if not _EXCLUDED.match(word)]
    return [*others, "--", *excluded, *args[end + 1 :]]


def command(verb: type[Verb]) -> click.Command:
    """Return the command of a verb."""

    @pass_location
    def run(
        location: StoreLocation,
        /,
        *,
        is_json: bool,
        yes: bool = False,
        is_followed: bool = False,
        **typed: Any,
    ) -> int:
        called = _bound(verb, {name: value for name, value in typed.items() if value is not None})
        if is_followed:
            return follow(called, Typist(location))
        return execute(called, Typist(location), is_json=is_json, yes=yes)

    params = [_parameter(field) for field in fields(verb).values() if not field.is_remote]
    params += [click.Option(["-y", "--yes"], is_flag=True, help="Do not ask for confirmation.")] * _has_plan(
        verb
    )
    if verb.follow is not Verb.follow:
        help = "Print a line of JSON for each, and for those that come; Ctrl-C stops."
        params.append(click.Option(["-f", "--follow", "is_followed"], is_flag=True, help=help))
    params.append(click.Option(["--json", "is_json"], is_flag=True, help="Print JSON."))
    own_name = verb.name.rpartition(" ")[2]
    made = VerbCommand(own_name, callback=run, params=params, help=_help(verb), short_help=summary(verb))
    made.has_query = "query" in fields(verb)
    return made


def execute(verb: Verb, caller: Caller, *, is_json: bool, yes: bool) -> int:
    """Run a verb and print the result; a destroying verb shows the plan and asks first."""
    if verb.needs_yes:
        planned = verb.plan(caller)
        question = verb.question(planned)
        if question is None or not _is_confirmed(verb, planned, question, yes=yes):
            print_result(verb, planned, is_json=is_json, is_shown=question is not None)
            return verb.exit_code(planned) if question is None else 1
        verb = verb.confirmed(planned)
    elif yes:
        raise InvalidArgument("yes", True, "a plan to confirm, and these arguments have none")
    result = verb.run(caller)
    print_result(verb, result, is_json=is_json)
    return verb.exit_code(result)


def follow(verb: Verb, caller: Caller) -> int:
    """Print the stream until nobody reads."""
    for one in verb.follow(caller):
        if one is not None:
            echo(encode_line(one))
            sys.stdout.flush()  # a reader of the pipe gets each line at once
        elif _is_reader_gone():
            break
        else:
            time.sleep(PAUSE)
    return 0


def _is_reader_gone() -> bool:
    """Return whether the pipe behind stdout was closed, which a waiting program does not notice."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _is_confirmed(verb: Verb, planned: Any, question: str, *, yes: bool) -> bool:
    for line in screen().print(verb.lines(planned, screen())):
        notify(line)
    return confirm_plan(question, yes=yes)


def print_result(verb: Verb, result: Any, *, is_json: bool, is_shown: bool = False) -> None:
    if is_json:
        echo(encode_report(to_json(result)))
        return
    if is_shown:
        return
    shown = screen()
    print_lines(shown.print(verb.lines(result, shown)))
    for note in verb.notes(result, shown):
        notify(note)


def _has_plan(verb: type[Verb]) -> bool:
    return verb.plan is not Verb.plan


def _help(verb: type[Verb]) -> str:
    text = cleandoc(verb.__doc__ or "")
    return f"{text}\n\n\b\n" + "\n".join(verb.examples) if verb.examples else text


# -- parameters --------------------------------------------------------------------------------------------


def _parameter(field: Field) -> click.Parameter:
    name = field.attribute
    if field.kind in _ARGUMENTS:
        return click.Argument(
            [name],
            nargs=-1 if field.kind in _LISTS else 1,
            required=field.is_required,
            metavar=f"[{field.metavar}]" if field.metavar and not field.is_required else field.metavar,
            shell_complete=_completion(field),
        )
    flags = [_flag(field), name] + ([f"-{field.short}"] if field.short else [])
    if field.is_flag:
        return click.Option(flags, is_flag=True, default=None, help=field.help)
    return click.Option(
        flags,
        multiple=True,
        metavar=_metavar(field),
        help=_with_default(field),
        shell_complete=_completion(field),
    )


def _flag(field: Field) -> str:
    return "--option" if field.kind == "options" else f"--{field.name.replace('_', '-')}"


def _metavar(field: Field) -> str:
    if field.metavar:
        return field.metavar
    if field.choices:
        return f"[{'|'.join(field.choices)}]"
    return _METAVARS.get(field.kind) or ("N" if field.type is int else "TEXT")


_METAVARS = {
    "text": "TEXT|@FILE",
    "model": "NAME",
    "names": "NAME,…",
    "options": "NAME=VALUE",
    "file": "FILE",
}


def _with_default(field: Field) -> str:
    is_said = field.default in (None, "", ()) or isinstance(field.default, dict | list) or field.is_required
    return field.help if is_said else f"{field.help} Default: {field.default}."


def _completion(field: Field) -> Callable[..., list[CompletionItem]] | None:
    if field.kind in ("reference", "references"):
        return complete_trashed if field.is_trashed else complete
    if field.kind == "model":
        return complete_model
    if field.choices:
        return lambda ctx, param, start: [
            CompletionItem(one) for one in field.choices if one.startswith(start)
        ]
    if field.kind in ("file", "place", "places"):
        return complete_file
    return None


# -- values ------------------------------------------------------------------------------------------------


def _bound(verb: type[Verb], typed: dict[str, Any]) -> Verb:
    values = {}
    for field in fields(verb).values():
        value = typed.get(field.attribute)
        if value is not None and value != ():
            values[field.name] = _value(field, value)
    return bind(verb, values, is_text=True)


def _value(field: Field, typed: Any) -> Any:
    """Return the typed text as the field's value."""
    match field.kind:
        case "references" | "places":
            return [check_utf8(one, field.name) for one in typed]
        case "words":
            return check_utf8(" ".join(typed), field.name)
        case "reference" | "place":
            return typed
        case "word":
            return check_utf8(typed, field.name)
        case "options":
            return read_options(typed)
        case "pairs":
            return dict(_pair(field, one) for one in typed)
        case _ if field.is_flag:
            return typed
    if len(typed) > 1:
        raise InvalidArgument(field.name, list(typed), "one value")
    (value,) = typed
    match field.kind:
        case "text":
            return read_text(value, f"--{field.name}")
        case "model":
            return load_config().resolve([value])[0]
        case "names":
            return [name.strip() for name in value.split(",") if name.strip()]
    return check_utf8(value, f"--{field.name}")


def _pair(field: Field, text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidArgument(field.name, text, "NAME=VALUE, or NAME= to remove it")
    return name, value or None
