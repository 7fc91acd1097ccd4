"""What `bough` starts with: nothing is loaded yet, so that a Ctrl-C while the rest loads is heard as one.

The command comes with the core; what it is drawn with comes with the extra `cli`, and may be missing.
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
        sys.stderr.write(f"bough: the command line needs {name}; pip install 'bough[cli]' brings it\n")
        sys.exit(2)


def _run() -> None:
    try:
        from .main import run as go
    except KeyboardInterrupt:
        sys.exit(130)
    go()
