"""Every suite, each where what it needs is installed: `make test` and `make soak`.

    python tests/support/run_suites.py WORKERS SUITE=PYTHON …

The first has the machine to itself and is shown as it runs; the others are short, run beside each other and are shown when
they are done. Fails if one of them does; whoever interrupts it interrupts all.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack


def main(workers: str, *suites: str) -> int:
    first, *others = (suite.split("=", 1) for suite in suites)
    codes = [subprocess.run(tests(*first, workers), check=False).returncode]
    with ExitStack() as open_:
        beside = []
        for folder, python in others:
            said = open_.enter_context(tempfile.TemporaryFile("w+"))
            suite = subprocess.Popen(tests(folder, python, "2"), stdout=said, stderr=said)
            open_.callback(suite.terminate)
            beside.append((folder, said, suite))
        for folder, said, suite in beside:
            codes.append(suite.wait())
            said.seek(0)
            print(f"\n{folder}\n{said.read()}", end="", flush=True)
    return next((code for code in codes if code), 0)


def tests(folder: str, python: str, workers: str) -> list[str]:
    return [python, "-m", "pytest", "-n", workers, "--dist", "worksteal", folder]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
