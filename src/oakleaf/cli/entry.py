"""Entry point of the `oakleaf` script. Imports nothing at first, so that Ctrl-C during startup exits cleanly.

The script is installed with the core; click and rich come with the extra `cli` and may be missing. `uvx oakleaf …` installs
the core into an environment for this one run, so there the same command starts again with the extra.
"""

from __future__ import annotations

import sys

RESTARTED = "OAKLEAF_RESTARTED_WITH_CLI"  # set for the second start, which must not cause a third


def run() -> None:
    try:
        _run()
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        if name not in ("click", "rich"):
            raise
        try:
            status = _run_with_extra()
        except KeyboardInterrupt:
            status = 130
        if status is None:
            sys.stderr.write(
                f"oakleaf: the command line needs {name}; install it with: pip install 'oakleaf[cli]' (or pipx),\n"
                "or run it without installing: uvx --from 'oakleaf[cli]' oakleaf demo\n"
            )
            status = 2
        sys.exit(status)


def _run() -> None:
    try:
        from oakleaf.cli.main import run as run_command_line
    except KeyboardInterrupt:
        sys.exit(130)
    run_command_line()


def _run_with_extra() -> int | None:
    """Repeat this command by `uvx --from 'oakleaf[cli]'` and return its exit code; None if uvx did not start this process."""
    import os
    import subprocess
    from pathlib import Path

    uv = os.environ.get("UV")  # uv names itself to what it starts
    in_cache = any(
        part.startswith("archive-v") for part in Path(sys.prefix).parts
    )  # not a project's own environment
    if not uv or not in_cache or RESTARTED in os.environ:
        return None
    command = [
        uv,
        "tool",
        "run",
        "--python",
        sys.executable,
        "--from",
        _requirement(),
        "oakleaf",
        *sys.argv[1:],
    ]
    environment = {**os.environ, RESTARTED: "1"}
    if os.name == "posix":
        os.execve(uv, command, environment)  # signals and the terminal reach the command itself
    return subprocess.run(command, env=environment).returncode


def _requirement() -> str:
    """Return what to install: this very wheel if a file was given, otherwise this version from the index."""
    import json
    from importlib.metadata import distribution

    installed = distribution("oakleaf")
    origin = installed.read_text("direct_url.json")
    if origin:
        return f"oakleaf[cli] @ {json.loads(origin)['url']}"
    return f"oakleaf[cli]=={installed.version}"
