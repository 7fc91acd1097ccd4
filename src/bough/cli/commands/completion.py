"""`bough completion`: what a shell needs to complete verbs, options and references."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_FILES = {
    "bash": '~/.bashrc: eval "$(bough completion bash)"',
    "zsh": '~/.zshrc: eval "$(bough completion zsh)"',
    "fish": "~/.config/fish/completions/bough.fish: bough completion fish > that file",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_FILES)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes your shell complete bough's verbs.

    bash: eval "$(bough completion bash)" in ~/.bashrc; zsh likewise; fish: save it as a completions file.
    """
    made = get_completion_class(shell)
    assert made is not None
    source = made(ctx.find_root().command, {}, "bough", "_BOUGH_COMPLETE").source()
    # click's own for fish ends a title, and what is told of an option, at the first comma.
    click.echo(source.replace('string split ","', 'string split --max 1 ","'))
