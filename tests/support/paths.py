"""Paths of the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
GOLDEN = TESTS / "golden"
VIEWER = ROOT / "plugins/server/src/oakleaf_server/viewer"
SOURCES = [ROOT / "src/oakleaf", *sorted(ROOT.glob("plugins/*/src/oakleaf_*"))]
"""The packages of the library and of the plugins that are there."""


def relative(path: Path) -> Path:
    """Return the path of a module below its `src`: its package first."""
    return next(path.relative_to(source.parent) for source in SOURCES if path.is_relative_to(source))
