"""The entry point: `bough [--store URL] VERB …`.

Knows the verbs, where each lives, and what an error means for the exit code. A verb's module is loaded when it
is used, so `bough --help` loads none of them.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from .. import __version__
from .store_option import StoreLocation

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Start here": {
        "demo": ("demo.demo", "An agent killed inside a refund, in one minute: no key, no network."),
        "chat": ("chat.chat", "Talk to an agent in the terminal; every word is durable."),
        "run": ("commands.run", "Send one input to an agent and print its answer."),
        "resume": ("commands.run", "Go on with a turn that was cut off."),
        "approve": ("commands.run", "Allow, or deny, the tool calls that wait for a person."),
    },
    "Look": {
        "ls": ("commands.ls", "List sessions, newest first."),
        "show": ("commands.show", "Show a session's transcript, or one of its entries."),
        "log": ("commands.show", "List every entry of a session's path."),
        "tree": ("commands.show", "Draw a session's tree with its leaf."),
        "tail": ("commands.tail", "Print a session's facts as JSON lines; -f goes on as they come."),
        "search": ("commands.search", "Search every message, tool input and tool output."),
        "usage": ("commands.usage", "What was spent: by session, day, model or agent."),
        "context": ("commands.show", "What the model would be given at this place."),
        "serve": ("commands.serve", "Serve the API and the viewer over HTTP."),
        "worker": (
            "commands.worker",
            "Run the tasks of a queue; any number of workers, on any number of machines.",
        ),
    },
    "Move": {
        "fork": ("commands.moves", "Make a new session from any place of another, in O(1)."),
        "rewind": ("commands.moves", "Move the leaf back; nothing is lost."),
        "undo": ("commands.moves", "Rewind to before the latest input."),
        "redo": ("commands.moves", "Go back to where the last rewind came from."),
        "compact": ("commands.moves", "Let a summary stand for what lies before the newest turn."),
        "uncompact": ("commands.moves", "Cancel the latest compaction."),
        "title": ("commands.moves", "Name a session."),
        "tag": ("commands.moves", "Set or remove a session's tags."),
        "label": ("commands.moves", "Name a place of a session's tree."),
    },
    "Compare": {
        "replay": ("commands.replay", "Re-execute a session without effects, with another model or prompt."),
        "diff": ("commands.replay", "Compare two sessions or places turn by turn."),
    },
    "Exchange": {
        "export": ("commands.export", "Write a session as a bundle, web page, Markdown, or for other tools."),
        "import": ("commands.import_", "Take a bundle in, or the sessions of another tool."),
        "copy": ("commands.import_", "Copy sessions to another store."),
    },
    "Care": {
        "rm": ("commands.delete", "Put a session and its children into the trash."),
        "restore": ("commands.delete", "Bring a session back from the trash."),
        "purge": ("commands.delete", "Forget a trashed session for good."),
        "gc": ("commands.delete", "Drop blobs nobody points to, and what a policy names."),
        "verify": ("commands.health", "Check chains, numbers, pairs and totals."),
        "doctor": ("commands.health", "Read-only health of a store, or of another tool's session folder."),
        "backup": ("commands.backup", "Write a whole copy of the store while others go on."),
        "migrate": ("commands.backup", "Bring the store to this version's format, with a backup."),
        "completion": ("commands.completion", "Print what makes your shell complete bough's verbs."),
    },
}
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
    "reset": "rewind",
    "sessions": "ls",
    "start": "chat",
    "status": "ls",
    "switch": "rewind",
}
"""What other tools call it."""
VERBS = {verb: home for verbs in SECTIONS.values() for verb, home in verbs.items()}


class Verbs(click.Group):
    """Loads a verb's module when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = import_module(f"{__package__}.{VERBS[cmd_name][0]}")
        command: click.Command = getattr(module, _function(cmd_name))
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs without loading them: whoever presses TAB does not wait."""
        found = [
            CompletionItem(verb, help=said)
            for verb, (_, said) in VERBS.items()
            if verb.startswith(incomplete)
        ]
        return found or click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, 1)
            guess = f" Did you mean {near[0]!r}?" if near else " bough --help lists the verbs."
            if args[0] in _SYNONYMS:
                guess = f" Here it is bough {_SYNONYMS[args[0]]}."
            ctx.fail(f"there is no verb {args[0]!r}.{guess}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for name, verbs in SECTIONS.items():
            with formatter.section(name):
                formatter.write_dl([(verb, said) for verb, (_, said) in verbs.items()], col_max=14)


def _function(verb: str) -> str:
    return f"{verb}_" if verb == "import" else verb


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--store",
    metavar="URL",
    help="A path, memory: or postgresql://…. Default: $BOUGH_STORE, else one file per user.",
)
@click.option("--space", default="default", show_default=True, help="The tenant whose sessions are meant.")
@click.option("--owner", help="Only sessions of this owner.")
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="BOUGH_KEY_FILE",
    help="Holds the key of an encrypted store file. Default: $BOUGH_KEY_FILE.",
)
@click.option(
    "--no-pager",
    is_flag=True,
    help="Print at once what does not fit the terminal; else $BOUGH_PAGER, $PAGER or less shows it.",
)
@click.version_option(__version__, prog_name="bough", message="%(prog)s %(version)s")
@click.pass_context
def bough(
    ctx: click.Context,
    store: str | None,
    space: str,
    owner: str | None,
    key_file: Path | None,
    no_pager: bool,
) -> None:
    """Sessions of LLM agents that cannot be lost.

    \b
    New here?
      bough demo                           one minute, no key, no network
      bough chat --model anthropic:MODEL   talk; then bough ls, bough show, bough tree
      bough VERB --help                    what a verb takes

    A REFERENCE is a session's id or a unique prefix of it, `latest`, a title, or a bundle file; any of them
    with @7 means its entry 7.
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    ctx.obj = StoreLocation(store, space, owner)
    ctx.obj.register_key_file(key_file)
    ctx.call_on_close(ctx.obj.close)
    if ctx.invoked_subcommand in PAGED:
        from .rendering.pager import paged

        ctx.with_resource(paged(wanted=not no_pager))


def run() -> None:
    """What `bough` on the command line calls."""
    _fill_streams()
    sys.exit(outcome(sys.argv[1:]))


def _fill_streams() -> None:
    """A stream that was closed by whoever started us leads nowhere; its number must not become a store's file."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open as long as we run


def outcome(arguments: list[str]) -> int:
    """Run one command line; the exit code. 0 fine, 1 differs or problems, 2 usage, 3 stale or locked."""
    out = sys.stdout
    for stream in (out, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a locale that cannot say it is told what it would have been
            stream.reconfigure(errors="backslashreplace")
    try:
        code: Any = bough.main(arguments, prog_name="bough", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; what was durable is safe", err=True)
        return 130
    except BrokenPipeError:
        # Whoever reads has seen enough. Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit:
        if sys.stdout is not out:  # the same, heard by click, which wraps the stream and calls it an error
            return 0
        raise
    except Exception as error:
        from .rendering.error_text import describe_error, print_error

        report = describe_error(error)
        if report is None:
            raise
        print_error(report.text)
        return report.exit_code
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    run()
