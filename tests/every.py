"""Every suite at once, each where what it needs is installed: `make test` and `make soak`.

    python tests/every.py WORKERS SUITE=PYTHON …

The first is shown as it runs; the others run beside it, for a quarter of the time it waits, and are shown when they are
done. Fails if one of them does; whoever interrupts it interrupts all.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack

BESIDE = "1"
"""Workers of each suite that runs beside the first."""


def main(workers: str, *suites: str) -> int:
    first, *others = (suite.split("=", 1) for suite in suites)
    with ExitStack() as open_:
        beside = []
        for folder, python in others:
            said = open_.enter_context(tempfile.TemporaryFile("w+"))
            suite = subprocess.Popen(tests(python, folder, BESIDE), stdout=said, stderr=said)
            open_.callback(suite.terminate)
            beside.append((folder, said, suite))
        codes = [subprocess.run(tests(first[1], first[0], workers), check=False).returncode]
        for folder, said, suite in beside:
            codes.append(suite.wait())
            said.seek(0)
            print(f"\n{folder}\n{said.read()}", end="", flush=True)
    return next((code for code in codes if code), 0)


def tests(python: str, folder: str, workers: str) -> list[str]:
    return [python, "-m", "pytest", "-n", workers, "--dist", "worksteal", folder]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
