"""What `bough` starts with: nothing is loaded yet, so that a Ctrl-C while the rest loads is heard as one."""

from __future__ import annotations

import sys


def run() -> None:
    try:
        from .main import run as go
    except KeyboardInterrupt:
        sys.exit(130)
    go()
