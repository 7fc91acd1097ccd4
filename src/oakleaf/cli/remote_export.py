"""Downloads a session's bundle from the server of another machine.

The bundle is checked before anything is written. Redirects are not followed: they would take the token elsewhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, build_opener

from oakleaf.cli.otlp_sender import NoRedirect
from oakleaf.cli.rendering.error_text import FAILURE, CommandError

TIMEOUT_SECONDS = 30


class DownloadFailed(CommandError):
    """The server did not give a whole bundle; nothing was written."""

    exit_code = FAILURE


@contextmanager
def download(server: str, session_id: str, token: str, how: dict[str, Any]) -> Iterator[BinaryIO]:
    """Yield the bundle of a session, whole and checked, in a temporary file."""
    from oakleaf.errors import InvalidBundle
    from oakleaf.ext import check_bundle

    url = f"{_server_url(server)}/sessions/{quote(session_id, safe='')}/export"
    query = urlencode({name: str(value).lower() for name, value in how.items()})
    request = Request(f"{url}?{query}", headers={"X-Internal-Token": token})
    with TemporaryFile() as file:
        try:
            with build_opener(NoRedirect).open(request, timeout=TIMEOUT_SECONDS) as reply:
                shutil.copyfileobj(reply, file)
        except HTTPError as error:
            raise DownloadFailed(_refusal(url, session_id, error)) from None
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise DownloadFailed(f"{url} gave no bundle: {reason}; nothing was written") from None
        file.seek(0)
        try:
            check_bundle(file, url, None)
        except InvalidBundle as error:
            raise DownloadFailed(f"{error.problem}; nothing was written") from None
        file.seek(0)
        yield file


def read_token(file: str | None) -> str:
    """Return the token of a file. A token on the command line would be seen by every user of the machine."""
    if file is None:
        raise CommandError("--from needs the server's internal token: --token-file FILE")
    try:
        token = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"the token in {file} cannot be read: {error}") from None
    if not token or not token.isascii() or not token.isprintable():
        raise CommandError(
            f"{file} holds no token; write the server's internal token into it, and nothing else"
        )
    return token


def _server_url(server: str) -> str:
    """Return the server's address. The token goes over a network by HTTPS only."""
    try:
        parts = urlsplit(server)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_good = is_good and parts.username is None and not parts.query and not parts.fragment
    except ValueError:
        is_good = False
    if not is_good or not server.isprintable() or " " in server:
        raise CommandError("--from needs the address of a server, such as https://agents.example.com")
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        raise CommandError(f"{server} would be sent the token in clear text; use https://")
    return server.rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _refusal(url: str, session_id: str, error: HTTPError) -> str:
    match error.code:
        case 401 | 403:
            what = "the server refused the token; it must be that of its --internal-token"
        case 404:
            what = f"the server has no session {session_id}"
        case code if 300 <= code < 400:
            what = f"it redirects to {error.headers.get('location')}; name that address if you trust it"
        case code:
            what = f"the server answered {code}"
    return f"{url} gave no bundle: {what}; nothing was written"
