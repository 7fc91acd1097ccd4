"""The entry point: `oakleaf [--store URL] VERB …`.

Lists the commands and the module of each, and maps errors to exit codes. A command's module is imported when the
command runs, so `oakleaf --help` imports none of them.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from oakleaf import __version__
from oakleaf.cli.option_group import complete_file
from oakleaf.cli.rendering.error_text import suggestions
from oakleaf.cli.store_option import StoreLocation
from oakleaf.cli.verb_table import load_verb, missing_verb, verb_names

PAGED = {"ls", "show", "log", "tree", "search", "usage", "context", "diff"}
_SYNONYMS = {
    "branch": "tree",
    "branches": "tree",
    "cat": "show",
    "checkout": "rewind",
    "clone": "copy",
    "cost": "usage",
    "delete": "rm",
    "history": "log",
    "init": "chat",
    "list": "ls",
    "new": "chat",
    "remove": "rm",
    "reset": "rewind",
    "sessions": "ls",
    "start": "chat",
    "status": "ls",
    "switch": "rewind",
}
"""Names that other tools use for our commands."""
SESSION_FLAGS = {"--resume", "--copy", "--overwrite"}
"""Flags of `run` that need no command before them."""


START = """\b
demo                        one minute, no key, no network
chat --model NAME           talk to an agent; run TEXT sends one input
import --from TOOL          bring the sessions of Claude Code, Codex and others
record -- COMMAND           record the model calls of any program
ls, show, tree, search      look at sessions
resume, approve, cancel     go on, or stop
fork, rewind, undo          go another way
replay, diff, lab           compare with another model or prompt
usage, verify, serve        cost, integrity, the viewer in a browser

`oakleaf help all` lists every command, `oakleaf help COMMAND` explains one."""
"""What people start with."""


class Verbs(click.Group):
    """Imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return verb_names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_verb(cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names without importing the modules."""
        items = [CompletionItem(verb) for verb in verb_names() if verb.startswith(incomplete)]
        return items or click.Command.shell_complete(self, ctx, incomplete)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`oakleaf --resume ID TEXT` is `oakleaf run --resume ID TEXT`; likewise --copy and --overwrite."""
        if ctx.resilient_parsing and args:  # bash hands over --store=URL as three words
            args = "\0".join(args).replace("\0=\0", "=").split("\0")
        at = self._verb_position(ctx, args)
        names = [argument.partition("=")[0] for argument in args[at:]]
        if names and names[0] not in verb_names() and SESSION_FLAGS.intersection(names):
            args = [*args[:at], "run", *args[at:]]
        return super().parse_args(ctx, args)

    def _verb_position(self, ctx: click.Context, args: list[str]) -> int:
        """Return the index of the first argument after the options of `oakleaf` itself."""
        takes_value = {
            name: not option.is_flag
            for option in self.get_params(ctx)
            if isinstance(option, click.Option)
            for name in option.opts
        }
        at = 0
        while at < len(args) and args[at].partition("=")[0] in takes_value:
            name, equals, _ = args[at].partition("=")
            at += 2 if takes_value[name] and not equals else 1
        return at

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_wrong = args and args[0] not in verb_names() and not args[0].startswith("-")
        if is_wrong and not ctx.resilient_parsing:  # a message would garble the line being typed
            from difflib import get_close_matches

            missing = missing_verb(args[0])
            if missing is not None:
                raise missing
            near = get_close_matches(args[0], verb_names(), 1)
            guess = f" Did you mean {near[0]!r}?" if near else " oakleaf --help lists the commands."
            if args[0] in _SYNONYMS:
                guess = f" Did you mean 'oakleaf {_SYNONYMS[args[0]]}'?"
            ctx.fail(f"unknown command {args[0]!r}.{guess}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List none: the help above names the first commands, `oakleaf help all` has the rest."""


@click.group(
    cls=Verbs,
    epilog=START,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--store",
    shell_complete=complete_file,
    metavar="URL",
    help="A file path, memory: or postgresql://…. Default: $OAKLEAF_STORE, else oakleaf config's, else one file per user.",
)
@click.option("--space", metavar="NAME", default="default", show_default=True, help="The tenant to work in.")
@click.option("--owner", metavar="NAME", help="Only sessions of this owner.")
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="OAKLEAF_KEY_FILE",
    help="File with the key of an encrypted store. Default: $OAKLEAF_KEY_FILE.",
)
@click.version_option(__version__, prog_name="oakleaf", message="%(prog)s %(version)s")
@click.pass_context
def oakleaf(
    ctx: click.Context,
    store: str | None,
    space: str,
    owner: str | None,
    key_file: Path | None,
) -> None:
    """Run LLM agents in durable sessions that you can inspect, fork and replay."""
    if ctx.invoked_subcommand is None:
        click.echo(f"oakleaf {__version__}: LLM agents in durable sessions\n\n{START[2:].lstrip()}")
        return
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    ctx.obj = StoreLocation(store, space, owner)
    suggestions.use(_typed_flags(ctx, store and ctx.obj.display_url), verb_names())
    ctx.obj.register_key_file(key_file)
    ctx.call_on_close(ctx.obj.close)
    if ctx.invoked_subcommand in PAGED:
        from oakleaf.cli.rendering.pager import paged

        ctx.with_resource(paged())


def _typed_flags(ctx: click.Context, store: str | None) -> dict[str, str]:
    """Return the typed flags for selecting sessions: a suggested command needs the flags too."""
    values = {**ctx.params, "store": store}
    return {
        f"--{name.replace('_', '-')}": str(values[name])
        for name in ("store", "space", "owner", "key_file")
        if values[name] and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def run() -> None:
    """Run the command line and exit."""
    _fill_streams()
    sys.exit(outcome(sys.argv[1:]))


def _fill_streams() -> None:
    """Replace closed standard streams by /dev/null, so a store's file cannot get the descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open as long as we run


def outcome(arguments: list[str]) -> int:
    """Run a command line and return the exit code: 0 success, 1 failure or difference, 2 usage, 3 stale or
    locked, 4 a comparison without an answer.
    """
    out = sys.stdout
    for stream in (out, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # print escapes for characters the locale cannot encode
            stream.reconfigure(errors="backslashreplace")
    try:
        code: Any = oakleaf.main(arguments, prog_name="oakleaf", standalone_mode=False)
        sys.stdout.flush()
    except click.NoSuchOption as error:
        usage_error = _misplaced_option(error, arguments) or error
        usage_error.show()
        return usage_error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; everything saved so far is safe", err=True)
        return 130
    except BrokenPipeError:
        # The reader closed the pipe. Without this Python would report it again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit:
        if sys.stdout is not out:  # also a closed pipe: click wraps the stream and raises SystemExit
            return 0
        raise
    except Exception as error:  # the one place where errors become messages; unknown ones are raised again
        from oakleaf.cli.rendering.error_text import describe_error, print_error

        report = describe_error(error)
        if report is None:
            raise
        print_error(report.text)
        return report.exit_code
    return code if isinstance(code, int) else 0


def _misplaced_option(error: click.NoSuchOption, arguments: list[str]) -> click.UsageError | None:
    """Say the place of an option of `oakleaf` itself; for other options click guesses among the command's."""
    name, context = error.option_name, error.ctx
    if context is None or context.parent is None or not any(name in option.opts for option in oakleaf.params):
        return None
    typed = next((word for word in arguments if word.partition("=")[0] == name), name)
    value = "" if "=" in typed else " VALUE"
    message = f"{name} belongs before the command: oakleaf {typed}{value} {context.info_name} …"
    return click.UsageError(message, context)


if __name__ == "__main__":
    run()
