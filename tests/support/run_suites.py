"""Run every test suite with the interpreter that has its dependencies: `make test` and `make soak`.

    python tests/support/run_suites.py WORKERS SUITE=PYTHON …

The first suite runs alone with live output; the others are short, run in parallel, and their output is printed when they
end. Fails if any suite fails; an interrupt ends all of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack


def main(workers: str, *suites: str) -> int:
    first, *others = (suite.split("=", 1) for suite in suites)
    codes = [subprocess.run(tests(*first, workers), check=False).returncode]
    with ExitStack() as stack:
        running = []
        for folder, python in others:
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            suite = subprocess.Popen(tests(folder, python, "2"), stdout=output, stderr=output)
            stack.callback(suite.terminate)
            running.append((folder, output, suite))
        for folder, output, suite in running:
            codes.append(suite.wait())
            output.seek(0)
            print(f"\n{folder}\n{output.read()}", end="", flush=True)
    return next((code for code in codes if code), 0)


def tests(folder: str, python: str, workers: str) -> list[str]:
    return [python, "-m", "pytest", "-n", workers, "--dist", "worksteal", folder]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
