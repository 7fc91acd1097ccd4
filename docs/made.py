"""What in the docs is made by the program itself: the help of every verb, and the picture of the demo.

python docs/made.py          writes docs/cli.md and docs/demo.svg; `make docs` does it
"""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from bough.cli.main import SECTIONS, bough

HERE = Path(__file__).parent
HEAD = """\
# The command line

`bough [--store URL] VERB …`. The store is `--store`, else `$BOUGH_STORE`, else one file per user
(`$XDG_DATA_HOME/bough/bough.db`, by default under `~/.local/share`), never keyed by the working directory.

**References.** A session is named by its id, a unique prefix of it (with or without `ses_`), `latest` (the newest that is
no task and no replay), its title, or a bundle file. `@7` behind any of them is its entry 7, `@3:7` the entry 7 of
branch 3, as `bough log --all` lists them. Looking at a place never moves the leaf; a verb that takes whole sessions
refuses one.

**Streams.** Data goes to stdout, talk to stderr. Colour appears at a terminal only and `NO_COLOR` switches it off; text of
models and tools never reaches the terminal as an escape sequence. `--json` prints one object with `schema_version` (1); `log`, `tail` and `run` print
one object per line. Nobody is asked anything without a terminal. Ctrl-C leaves everything valid.

**Exit codes.** 0 fine · 1 differs, problems found, nothing found, or the turn did not end well · 2 usage · 3 stale, locked or
busy · 130 interrupted.

**Destructive verbs** (`rm`, `purge`, `gc`, `migrate`) show their plan and want `--yes`, or a person who says y.

**Paging.** At a terminal, what does not fit it goes through `$BOUGH_PAGER`, else `$PAGER`, else `less`; an empty
`BOUGH_PAGER`, `cat`, or `bough --no-pager VERB …` prints it at once.

**Completion.** `eval "$(bough completion bash)"`, the same with zsh, or `bough completion fish | source` completes verbs, options,
session ids and titles. Tests hold what the shells are told; in zsh 5.9 and fish 3.6 themselves it was tried by hand.
"""
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
        line-height: {line_height}px; font-variant-east-asian: full-width; }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""
"""Rich's picture without the fonts it would load from elsewhere."""


def help_of(verb: str) -> str:
    """What `bough VERB --help` prints, 100 columns wide."""
    command = bough.get_command(click.Context(bough), verb)
    assert command is not None
    parent = click.Context(bough, info_name="bough", max_content_width=100, terminal_width=100)
    return command.get_help(click.Context(command, parent, verb, max_content_width=100, terminal_width=100))


def page() -> str:
    parts = [HEAD]
    for section, verbs in SECTIONS.items():
        parts.append(f"## {section}\n")
        for verb in verbs:
            parts.append(f"### bough {verb}\n\n```text\n{help_of(verb)}\n```\n")
    return "\n".join(parts)


def recorded(columns: int = 108) -> str:
    """What the demo shows at a terminal, escape sequences and all."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "bough.cli.main", "demo"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TMPDIR": folder},
        )
        os.close(slave)
        said = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:
                break
            if not piece:
                break
            said += piece
        assert process.wait() == 0, said.decode()
    os.close(master)
    return said.decode().replace("\r\n", "\n")


def picture(said: str, columns: int = 108) -> str:
    console = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi("$ bough demo\n" + said), soft_wrap=True)
    return console.export_svg(title="bough demo", code_format=FORMAT, unique_id="bough")


if __name__ == "__main__":
    (HERE / "cli.md").write_text(page(), encoding="utf-8")
    (HERE / "demo.svg").write_text(picture(recorded()), encoding="utf-8")
