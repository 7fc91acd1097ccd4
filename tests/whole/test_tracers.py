"""Public tracers of the vendors' SDKs find the whole prompt in a call of Oakleaf's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from oakleaf import wire
from support.paths import ROOT


@pytest.fixture(scope="module")
def spans() -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-W", "ignore", "-m", "support.traced_calls"]
    done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("call", [*wire.PROVIDERS, "client object"])
def test_span_has_the_whole_prompt(call, spans):
    [(is_ok, attributes, said)] = spans[call]
    assert is_ok
    assert said == ["It is.", {"city": "Rome"}]
    text = json.dumps(attributes)
    prompt = ("Be brief.", "Is it raining?", "weather", "Looks out of the window.")
    assert [words for words in prompt if words not in text] == []
    if call != "gemini":  # whose tracer keeps the first piece of an answer
        assert "It is." in text
