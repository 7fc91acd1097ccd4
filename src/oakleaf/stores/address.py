"""The address of a store: a path, `memory:`, or a URL whose scheme a plugin opens. Imports no store."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from oakleaf import plugins
from oakleaf.errors import InvalidArgument, PluginBroken, PluginMissing
from oakleaf.install import extra_of

_PAIR = re.compile(
    r"(?<![\w./-])(?:PG)?(?:HOST|HOSTADDR|DBNAME|DATABASE|SERVICE|USER|PASSWORD|PORT|SSLMODE)\s{0,20}=",
    re.IGNORECASE,
)
"""A pair of libpq's form, or a variable of libpq."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*(?=://)")
_SECRET = re.compile(r"pass|secret|token|key", re.IGNORECASE)


def store_scheme(url: str) -> str | None:
    """Return the scheme of an address for a plugin; None for a path and `memory:`, which are built in.

    Also for a plugin of this project that is not installed: opening the store then names the package to install.
    """
    found = None if _is_plain_path(url) else _SCHEME.match(url)
    if found is None or not (found[0] in plugins.names(plugins.STORES) or extra_of(plugins.STORES, found[0])):
        return None
    return found[0]


def is_path(url: str) -> bool:
    """Whether an address is that of a file."""
    return url not in ("memory:", ":memory:") and "://" not in url


def check_store_url(url: str) -> None:
    """Refuse a likely mistyped server address: a file's name or a message would show the password in it.

    The message repeats only the first word of the address, where no password can be.
    """
    if store_scheme(url) is not None:
        _check_login(url)
    elif url not in ("memory:", ":memory:") and not _is_plain_path(url) and _may_be_address(unquote(url)):
        schemes = ", ".join(plugins.names(plugins.STORES))
        known = "a path or memory: (no plugin adds a store)"
        if schemes:
            known = f"a path, memory:, or SCHEME://USER@HOST/DATABASE with one of these schemes: {schemes}"
        raise InvalidArgument(
            "store", _first_word(url), f"{known}; for a file of that name write ./ before it"
        )


def display_url(url: str) -> str:
    """Return the address of a store without secrets, for messages: as shown by the plugin, if the plugin has a say."""
    scheme = store_scheme(url)
    if scheme is None:
        return url
    try:
        shown = getattr(plugins.find(plugins.STORES, scheme), "display_url", _without_secrets)(url)
    except (PluginMissing, PluginBroken):  # opening it says so
        shown = _without_secrets(url)
    return str(shown)


def _without_secrets(url: str) -> str:
    """Return the address without the password of the login and without the secrets of the query."""
    scheme, _, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    login, at, host = authority.rpartition("@")
    path, mark, query = rest[len(authority) :].partition("?")
    pairs = [pair for pair in query.split("&") if not _SECRET.search(pair.partition("=")[0])]
    return (
        f"{scheme}://{login.partition(':')[0]}{at}{host}{path}{mark if any(pairs) else ''}{'&'.join(pairs)}"
    )


def _is_plain_path(url: str) -> bool:
    is_drive = os.name == "nt" and re.match(r"[A-Za-z]:[\\/]|\\", url) is not None
    return is_drive or (url.startswith(("/", "./", "../", "~")) and not url.startswith("//"))


def _may_be_address(url: str) -> bool:
    """Return whether the text has a scheme, a login with a password, or libpq's pairs of keys and values."""
    login, at, _ = url.rpartition("@")
    return "://" in url or bool(at and ":" in login) or _PAIR.search(url) is not None


def _first_word(url: str) -> str:
    word = re.match(r"[A-Za-z0-9_+-]{0,20}", url.strip())
    return f"{word[0] if word else ''}…"


def _check_login(url: str) -> None:
    """Refuse a login that parses as something else: a message would show a part of the password."""
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
    """Return whether the text is hosts with or without ports, `HOST:PORT,HOST`, and no beginning of a login."""
    return all(
        port == "" or port.isdecimal()
        for host in authority.split(",")
        for port in [host.rpartition("]")[2].partition(":")[2]]
    )
