"""Entry point of the `bough` script. Imports nothing at first, so that Ctrl-C during startup exits cleanly.

The script is installed with the core; click and rich come with the extra `cli` and may be missing.
"""

from __future__ import annotations

import sys


def run() -> None:
    try:
        _run()
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        if name not in ("click", "rich"):
            raise
        sys.stderr.write(
            f"bough: the command line needs {name}; install it with: pip install 'bough[cli]' (or pipx),\n"
            "or run it without installing: uvx --from 'bough[cli]' bough demo\n"
        )
        sys.exit(2)


def _run() -> None:
    try:
        from .main import run as run_command_line
    except KeyboardInterrupt:
        sys.exit(130)
    run_command_line()
