"""`oakleaf completion`: shell completion of commands, options and references."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for your shell.

    bash: eval "$(oakleaf completion bash)" in ~/.bashrc; zsh likewise; fish: save it as a completions file.
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    source = completion_class(ctx.find_root().command, {}, "oakleaf", "_OAKLEAF_COMPLETE").source()
    # click's script for fish cuts a title or a help text at the first comma.
    click.echo(source.replace('string split ","', 'string split --max 1 ","'))
