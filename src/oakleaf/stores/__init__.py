"""Stores: the contract (`base`), its laws as a suite (`conformance`), the steps databases share, and the stores themselves."""

import os
import re
from urllib.parse import unquote

from oakleaf.errors import InvalidArgument

_PAIR = re.compile(
    r"(?<![\w./-])(?:PG)?(?:HOST|HOSTADDR|DBNAME|DATABASE|SERVICE|USER|PASSWORD|PORT|SSLMODE)\s{0,20}=",
    re.IGNORECASE,
)
"""A pair of libpq's form, or a variable of it."""
_SCHEMES = ("postgresql://", "postgres://")
EXPECTED = "a path, memory: or postgresql://USER@HOST/DATABASE"


def check_store_url(url: str) -> None:
    """Refuse what may be a mistyped server address: it would become a file's name, or be shown, with the password in it.

    Nothing of such an address is repeated but its first word, where no password can be.
    """
    if is_postgres_url(url):
        _check_login(url)
    elif url not in ("memory:", ":memory:") and not _is_plain_path(url) and _may_be_address(unquote(url)):
        expected = f"{EXPECTED}; for a file of that name write ./ before it"
        raise InvalidArgument("store", _first_word(url), expected)


def is_postgres_url(url: str) -> bool:
    """Say whether this names a PostgreSQL server; needs no driver installed."""
    return url.startswith(_SCHEMES)


def _is_plain_path(url: str) -> bool:
    is_drive = os.name == "nt" and re.match(r"[A-Za-z]:[\\/]|\\", url) is not None
    return is_drive or (url.startswith(("/", "./", "../", "~")) and not url.startswith("//"))


def _may_be_address(url: str) -> bool:
    """Return whether this has a scheme, a login with a password, or libpq's pairs of keys and values."""
    login, at, _ = url.rpartition("@")
    return "://" in url or bool(at and ":" in login) or _PAIR.search(url) is not None


def _first_word(url: str) -> str:
    word = re.match(r"[A-Za-z0-9_+-]{0,20}", url.strip())
    return f"{word[0] if word else ''}…"


def _check_login(url: str) -> None:
    """Refuse a login that would be read as something else, so that a part of the password would be shown."""
    scheme, _, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    after = rest[len(authority) :]
    path, _, query = after.partition("?")
    is_cut = "@" not in authority and (
        not _is_host(authority)
        or "@" in path
        or "@" in query.partition("=")[0]
        or "@" in url.partition("#")[2]
    )
    login = authority.rpartition("@")[0]
    is_encoded = all(re.match(r"(?!00)[0-9A-Fa-f]{2}", piece) for piece in login.split("%")[1:])
    if is_cut or not is_encoded:
        expected = "%2F, %3F, %23, %40 and %25 for each /, ?, #, @ and % in the name or password of the login"
        raise InvalidArgument("store", f"{scheme}://…", expected)


def _is_host(authority: str) -> bool:
    """Return whether it is hosts with or without ports, `HOST:PORT,HOST`, and no beginning of a login."""
    return all(
        port == "" or port.isdecimal()
        for host in authority.split(",")
        for port in [host.rpartition("]")[2].partition(":")[2]]
    )
