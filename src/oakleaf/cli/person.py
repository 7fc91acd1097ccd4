"""The person at the command line: the name that decisions are recorded with."""

from __future__ import annotations

import getpass
import os

from oakleaf.cli.config import load_config

COMMAND_LINE = "command line"
"""The surface of decisions that are made here."""


def user_name() -> str | None:
    """Return $OAKLEAF_BY, the setting `by`, or the name of the machine's user; None for a user without a name."""
    try:
        return os.environ.get("OAKLEAF_BY") or load_config().by or getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        return None
