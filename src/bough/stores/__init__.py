"""Stores: the contract (`base`), its laws as a suite (`conformance`), the steps databases share, and the stores themselves."""


def is_postgres_url(url: str) -> bool:
    """Say whether this names a PostgreSQL server; needs no driver installed."""
    return url.startswith(("postgresql://", "postgres://"))
