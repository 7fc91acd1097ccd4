"""Stores: the contract (`base`), its laws as a suite (`conformance`), the steps databases share, and the stores themselves."""

import re

from ..errors import InvalidArgument

_CONNECTION_STRING = re.compile(r"\s*(?:\w+\s*=\s*\S+\s+)*(?:host|hostaddr|dbname|service)\s*=")


def check_store_url(url: str) -> None:
    """Refuse libpq's `host=… dbname=…`: a file of that name would be created, with the password in it."""
    if _CONNECTION_STRING.match(url):
        expected = "postgresql://USER@HOST/DATABASE instead of pairs of keys and values"
        raise InvalidArgument("store", url.partition("=")[0] + "=…", expected)


def is_postgres_url(url: str) -> bool:
    """Say whether this names a PostgreSQL server; needs no driver installed."""
    return url.startswith(("postgresql://", "postgres://"))
