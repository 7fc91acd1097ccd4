"""Paths of the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
GOLDEN = TESTS / "golden"
VIEWER = ROOT / "src" / "oakleaf" / "server" / "viewer"
