"""Where sessions lie: the contract (`store`), its laws as a suite (`conformance`), and the stores."""


def is_postgres_url(url: str) -> bool:
    """Say whether this names a PostgreSQL server; needs no driver installed."""
    return url.startswith(("postgresql://", "postgres://"))
