"""Routes for the viewer's files and for login. Files are looked up by name, so no path can escape the package."""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from litestar import Request, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from ..auth import LOGIN, LOGIN_SECONDS, AccessSettings, cookie_name
from ..problems import Refusal
from ..schemas import LoginInfo

INDEX = "index.html"
# Litestar adds the charset to text.
TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "mjs": "text/javascript",
    "css": "text/css",
    "json": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "txt": "text/plain",
}


class ViewerFile(Struct, frozen=True):
    data: bytes
    media_type: str
    tag: str


def viewer_files() -> dict[str, ViewerFile]:
    """Read every file of the viewer, by its path below the viewer folder."""
    root = files("bough.server").joinpath("viewer")
    return dict(_below(root, "")) if root.is_dir() else {}


def _below(folder: Traversable, prefix: str) -> Iterator[tuple[str, ViewerFile]]:
    for file in folder.iterdir():
        ending = file.name.rpartition(".")[2]
        if file.is_dir():
            yield from _below(file, f"{prefix}{file.name}/")
        elif ending in TYPES:
            data = file.read_bytes()
            yield (
                f"{prefix}{file.name}",
                ViewerFile(data, TYPES[ending], f'"{sha256(data).hexdigest()[:20]}"'),
            )


@get(["/", "/{page:path}"], sync_to_thread=False, include_in_schema=False, opt={"open": True})
def page(request: Request[Any, Any, Any], page: FromPath[str | None] = None) -> Response[bytes]:
    """Serve the viewer's page for any address; its script reads the URL."""
    name = (page or "").strip("/")
    if name.startswith("api/") or "." in name.rpartition("/")[2]:
        raise Refusal(404, "no_page", "page not found")
    return _file_response(request, INDEX)


@get("/assets/{name:path}", sync_to_thread=False, include_in_schema=False, opt={"open": True})
def asset(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
    return _file_response(request, name.lstrip("/"))


def _file_response(request: Request[Any, Any, Any], name: str) -> Response[bytes]:
    file: ViewerFile | None = request.app.state.viewer.get(name)
    if file is None:
        raise Refusal(404, "no_page", "page not found")
    headers = {"etag": file.tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(b"", status_code=304, headers=headers)
    return Response(file.data, media_type=file.media_type, headers=headers)


@get("/openapi.json", sync_to_thread=False, include_in_schema=False, opt={"open": True})
def openapi(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
    return Response(request.app.openapi_schema.to_schema(), media_type="application/json")


class LoginBody(Struct, forbid_unknown_fields=True):
    token: str


@post(LOGIN, sync_to_thread=False, status_code=200, tags=["server"], opt={"open": True})
def login(request: Request[Any, Any, Any], data: JSONBody[LoginBody]) -> Response[LoginInfo]:
    """Exchange a token for an HttpOnly, SameSite=Strict cookie, which expires after a week."""
    access: AccessSettings = request.app.state.context.access
    caller = access.caller(data.token)
    if caller is None:
        raise Refusal(401, "no_token", "the token is not valid")
    cookie = _login_cookie(request, access.login_cookie(data.token, time.time()), LOGIN_SECONDS)
    return Response(LoginInfo(level=caller.level, owner=caller.owner), cookies=[cookie])


@delete(LOGIN, sync_to_thread=False, status_code=200, tags=["server"], opt={"open": True})
def logout(request: Request[Any, Any, Any]) -> Response[LoginInfo]:
    """Delete the cookie."""
    return Response(LoginInfo(level=None), cookies=[_login_cookie(request, "", 0)])


def _login_cookie(request: Request[Any, Any, Any], value: str, seconds: int) -> Cookie:
    name = cookie_name(request.headers.get("host", ""))
    return Cookie(name, value=value, httponly=True, samesite="strict", path="/", max_age=seconds)


HANDLERS = [page, asset, openapi, login, logout]
