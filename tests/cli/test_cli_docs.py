"""The page of the command line says what the command line says."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

from bough.cli.main import VERBS
from support.paths import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    spec = spec_from_file_location("made", DOCS / "made.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["made"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestPage:
    def test_every_verb_stands_in_it_with_its_help(self, made: ModuleType) -> None:
        """`make docs` writes it anew."""
        assert (DOCS / "cli.md").read_text(encoding="utf-8") == made.page()
        for verb in VERBS:
            assert f"### bough {verb}\n" in made.page()

    def test_the_picture_loads_nothing_from_elsewhere(self) -> None:
        drawn = (DOCS / "demo.svg").read_text(encoding="utf-8")
        assert drawn.count("http") == 1  # the name of SVG itself
        assert "claims&#160;held" in drawn
