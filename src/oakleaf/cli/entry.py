"""Entry point of the `oakleaf` script. Imports nothing at first, so that Ctrl-C during startup exits cleanly.

The script is installed with the core; click and rich come with the extra `cli` and may be missing. `uvx --from WHEEL oakleaf …` installs
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
            from oakleaf.install import install_line

            sys.stderr.write(
                f"oakleaf: the command line needs {name}; install it with: {install_line('cli')}\n"
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
    """Repeat the command by uvx with the extra `cli` and return the exit code; None outside of uvx."""
    import os
    import subprocess
    from pathlib import Path

    from oakleaf.install import find_origin

    uv = os.environ.get("UV")  # uv names itself to what it starts
    in_cache = any(
        part.startswith("archive-v") for part in Path(sys.prefix).parts
    )  # not a project's own environment
    origin = find_origin()
    if not uv or not in_cache or origin is None or RESTARTED in os.environ:
        return None
    command = [
        uv,
        "tool",
        "run",
        "--python",
        sys.executable,
        "--from",
        f"oakleaf[cli] @ {origin.as_uri()}",
        "oakleaf",
        *sys.argv[1:],
    ]
    environment = {**os.environ, RESTARTED: "1"}
    if os.name == "posix":
        os.execve(uv, command, environment)  # signals and the terminal reach the command itself
    return subprocess.run(command, env=environment).returncode
