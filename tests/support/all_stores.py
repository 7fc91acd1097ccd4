"""The stores that are installed: those of the library, and PostgreSQL where its plugin is."""

from importlib.util import find_spec

HAS_POSTGRES = bool(find_spec("oakleaf_postgres") and find_spec("psycopg"))
ALL_STORES = ["memory", "sqlite", *(["postgres"] if HAS_POSTGRES else [])]
