"""`oakleaf help`: every command, or one."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.output import echo
from oakleaf.cli.verb_table import load_verb, sections, verb_names


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in ("all", *verb_names()) if name.startswith(incomplete)]


@click.command()
@click.argument("topic", default="all", shell_complete=_complete)
@click.pass_context
def help(ctx: click.Context, topic: str) -> None:
    """List every command, or explain one."""
    if topic == "all":
        _print_all()
        return
    command = load_verb(topic)
    if command is None:
        raise CommandError(f"there is no command {topic!r}; oakleaf help all lists them")
    assert ctx.parent is not None
    with click.Context(command, parent=ctx.parent, info_name=topic) as about:
        echo(command.get_help(about))


def _print_all() -> None:
    formatter = click.HelpFormatter(max_width=100)
    for name, verbs in sections().items():
        if verbs:
            with formatter.section(name):
                formatter.write_dl(list(verbs.items()), col_max=14)
    echo(formatter.getvalue().strip())
