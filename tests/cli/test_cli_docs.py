"""docs/cli.md and docs/demo.svg are what docs/generate.py writes."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

from bough.cli.main import VERBS
from support.paths import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["generate"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestPage:
    def test_it_holds_the_help_of_every_command(self, generate: ModuleType) -> None:
        """`make docs` regenerates it."""
        assert (DOCS / "cli.md").read_text(encoding="utf-8") == generate.page()
        for verb in VERBS:
            assert f"### bough {verb}\n" in generate.page()

    def test_the_picture_loads_nothing_from_the_network(self) -> None:
        svg = (DOCS / "demo.svg").read_text(encoding="utf-8")
        assert svg.count("http") == 1  # the SVG namespace
        assert "claims&#160;hold" in svg
