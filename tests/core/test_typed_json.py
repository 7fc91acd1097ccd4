"""Types are prepared before threads use them: msgspec crashes the process if two of them are the first to use one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.paths import SOURCES, relative

FIRST_USE = """
import sys, threading
import msgspec
from oakleaf.core.typed_json import converter, json_decoder

sys.setswitchinterval(1e-6)


def together(work):
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=lambda: (barrier.wait(), work())) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


def new_type(number):
    inner = [msgspec.defstruct(f"Inner{number}_{n}", [("a", list[int]), ("b", dict[str, str])]) for n in range(6)]
    return msgspec.defstruct(f"Outer{number}", [(f"f{n}", inner[n]) for n in range(6)])


value = {f"f{n}": {"a": [1], "b": {}} for n in range(6)}
for number in range(100):
    FIRST
print("done")
"""
WAYS = {
    "converter": "convert = converter(new_type(number)); together(lambda: convert(value))",
    "json_decoder": "decode = json_decoder(new_type(number)); together(lambda: decode(msgspec.json.encode(value)))",
}


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("way", WAYS)
def test_first_threads_of_a_type_get_own_values(way: str) -> None:
    done = run(FIRST_USE.replace("FIRST", WAYS[way]))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.extra
def test_no_module_lets_a_thread_be_the_first_to_use_a_type() -> None:
    """`convert` and `decode(…, type=)` of msgspec prepare a type when they are called: only scalars and lists may."""
    allowed = (
        "oakleaf/core/typed_json.py",
        "oakleaf/cli/",
        "oakleaf/agent/tools/tool.py",
        "oakleaf/wire/options.py",
        "oakleaf_lab/cohort.py",
        "oakleaf/verbs/fields.py",  # prepares a verb with its fields
    )
    late = [
        f"{relative(path)}:{number}"
        for source in SOURCES
        for path in source.rglob("*.py")
        if not str(relative(path)).startswith(allowed)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "msgspec.convert(" in line
        or ("decode(" in line and "type=" in line and "type=dict[str, Any]" not in line)
    ]
    assert late == []
