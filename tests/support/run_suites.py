"""Run every test suite with the interpreter that has its dependencies: `make test` and `make soak`.

    python tests/support/run_suites.py WORKERS SUITE=PYTHON …

The first suite runs alone with live output; the others are short, run in parallel, and their output is printed when they
end. A handful of failures is run once more, one test at a time: tests that kill processes and drive a browser share the
machine with others, and only a failure that repeats fails the run. One that does not is named at the end as unsteady.
An interrupt ends all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

MAX_REPEATED = 5
"""More failures than these are no accident."""
TESTS_FAILED = 1
"""pytest's exit code for failed tests; any other is an error of the run itself."""


@dataclass(frozen=True)
class Suite:
    folder: str
    python: str

    def command(self, workers: str, *options: str) -> list[str]:
        cache = ("-o", f"cache_dir={self._cache}")
        options = ("-n", workers, "--dist", "worksteal", *cache, *options)
        return [self.python, "-m", "pytest", *options, self.folder]

    @property
    def failures(self) -> list[str]:
        file = self._cache / "v/cache/lastfailed"
        return list(json.loads(file.read_text())) if file.exists() else []

    def repeat(self) -> tuple[int, list[str]]:
        """Run the few tests that failed again, alone; return the exit code and which of them had failed."""
        failures = self.failures
        if not 0 < len(failures) <= MAX_REPEATED:
            return TESTS_FAILED, []
        print(f"\n{self.folder}: once more, alone: {' '.join(failures)}", flush=True)
        return subprocess.run(self.command("0", "--last-failed"), check=False).returncode, failures

    @property
    def _cache(self) -> Path:
        return Path(".pytest_cache") / self.folder.replace("/", "-")


def main(workers: str, *arguments: str) -> int:
    suites = [Suite(*argument.split("=", 1)) for argument in arguments]
    codes = [subprocess.run(suites[0].command(workers), check=False).returncode]
    with ExitStack() as stack:
        running = []
        for suite in suites[1:]:
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(suite.command("2"), stdout=output, stderr=output)
            stack.callback(process.terminate)
            running.append((suite, output, process))
        for suite, output, process in running:
            codes.append(process.wait())
            output.seek(0)
            print(f"\n{suite.folder}\n{output.read()}", end="", flush=True)
    unsteady: list[str] = []
    for at, suite in enumerate(suites):
        if codes[at] == TESTS_FAILED:
            codes[at], failures = suite.repeat()
            unsteady += failures if codes[at] == 0 else []
    if unsteady:
        print("\nunsteady, failed once and passed alone:", *unsteady, sep="\n  ", flush=True)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
