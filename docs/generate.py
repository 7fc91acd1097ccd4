"""Generates docs/cli.md (the help of every command), docs/reference (names, events, errors), docs/llms.txt and docs/demo.svg (the demo's output).

python docs/generate.py          `make docs` runs it
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

from oakleaf.cli.main import oakleaf
from oakleaf.cli.verb_table import sections

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
import reference  # noqa: E402 - a script beside this one

HEAD = """\
# The command line

`oakleaf [--store URL] COMMAND …`. The store is `--store`, else `$OAKLEAF_STORE`, else that of `oakleaf config`, else one file per user
(`$XDG_DATA_HOME/oakleaf/oakleaf.db`, by default under `~/.local/share`), whatever the working directory. `oakleaf --resume ID TEXT` is
`oakleaf run --resume ID TEXT`; `--copy` and `--overwrite` work the same way.

**References.** Name a session by its id, a unique prefix of it (with or without `ses_`), `latest` (the last active that is not
a task or a replay), its title, its conversation id (a framework's thread), or a bundle file. Append `@7` to name its
entry 7, `@3:7` for entry 7 of branch 3, as `oakleaf log --all` lists them. Reading an entry never moves the leaf; commands that take whole sessions refuse `@`.

**Texts.** Where the help says `TEXT|@FILE`, `@new.txt` is the content of the file, byte for byte, and `-` is standard input. The name of a
file without the @ is refused.

**Streams.** Data goes to stdout, notices to stderr. Colour is used at a terminal only, and `NO_COLOR` switches it off;
text of models and tools never reaches the terminal as an escape sequence. `--json` prints one object with `schema_version`
(1); `log`, `tail` and `run` print one object per line. Without a terminal no command asks questions. Ctrl-C leaves the
store valid.

**Exit codes.** 0 success · 1 differences, problems, no results, or a turn that failed · 2 usage · 3 stale, locked or
busy · 4 `replay`, `diff` and `lab` cannot tell: a model gave no answer, the budget or the data are too small · 130 interrupted.

**Destructive commands** (`rm`, `purge`, `migrate`) print their plan and ask, unless `--yes` is given. A command that writes a file overwrites none unless `--force` is given.

**Paging.** At a terminal, output that does not fit goes through `$OAKLEAF_PAGER`, else `$PAGER`, else `less`; with an
empty `OAKLEAF_PAGER`, or `cat`, it is printed directly.

**Completion.** `eval "$(oakleaf completion bash)"`, the same for zsh, or `oakleaf completion fish | source` completes commands,
options, session ids, titles and aliases of models. Tests check the generated completions; zsh 5.9 and fish 3.6 were tried by hand.
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
"""Rich's SVG template without the fonts it would load from the network."""


def command_help(*names: str) -> str:
    """Return the output of `oakleaf COMMAND --help`, 100 columns wide; of a command of a group by all its names."""
    command: click.Command = oakleaf
    # The options for help come from the context, and click keeps those it saw first: a run in this process may have been it.
    context = click.Context(oakleaf, info_name="oakleaf", terminal_width=100, **oakleaf.context_settings)
    for name in names:
        assert isinstance(command, click.Group)
        subcommand = command.get_command(context, name)
        assert subcommand is not None
        command = subcommand
        context = click.Context(command, context, name, max_content_width=100, terminal_width=100)
    return command.get_help(context)


def subcommands(*names: str) -> list[tuple[str, ...]]:
    """Return the commands of a group, and of the groups in it."""
    command: click.Command | None = oakleaf
    for name in names:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(oakleaf), name)
    if not isinstance(command, click.Group):
        return []
    paths = [(*names, name) for name in command.list_commands(click.Context(command))]
    return [each for one in paths for each in (one, *subcommands(*one))]


def page() -> str:
    parts = [HEAD]
    for section, verbs in sections().items():
        parts.append(f"## {section}\n")
        for verb in verbs:
            parts.append(f"### oakleaf {verb}\n\n```text\n{command_help(verb)}\n```\n")
            for names in subcommands(verb):
                parts.append(f"#### oakleaf {' '.join(names)}\n\n```text\n{command_help(*names)}\n```\n")
    return "\n".join(parts)


def record_demo(columns: int = 108) -> str:
    """Run the demo at a terminal and return its output, escape sequences included."""
    master, slave = pty.openpty()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as after an installation
    environment = {**os.environ, "PATH": path, "COLUMNS": str(columns), "TERM": "xterm-256color"}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "oakleaf.cli.main", "demo", "--folder", f"{folder}/oakleaf-demo"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
        )
        os.close(slave)
        output = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:
                break
            if not piece:
                break
            output += piece
        assert process.wait() == 0, output.decode()
    os.close(master)
    return output.decode().replace("\r\n", "\n").replace(folder, "/tmp")


def draw_svg(output: str, columns: int = 108) -> str:
    console = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi("$ oakleaf demo\n" + output), soft_wrap=True)
    return console.export_svg(title="oakleaf demo", code_format=FORMAT, unique_id="oakleaf")


if __name__ == "__main__":
    for name, write in {"cli.md": page, **reference.PAGES}.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")
    (FOLDER / "demo.svg").write_text(draw_svg(record_demo()), encoding="utf-8")
