"""One store for the tests of exports: `test_exports_agree` covers the others."""

from support.import_sources import store

__all__ = ["store"]
