"""The viewer's files, out of the package, and logging in. Names are looked up in a list, so no path leads elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from litestar import Request, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from ..auth import COOKIE, AccessSettings
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
    """Every file of the viewer, by its path below it."""
    root = files("bough.server").joinpath("viewer")
    return dict(_below(root, "")) if root.is_dir() else {}


def _below(folder: Traversable, prefix: str) -> Iterator[tuple[str, ViewerFile]]:
    for one in folder.iterdir():
        ending = one.name.rpartition(".")[2]
        if one.is_dir():
            yield from _below(one, f"{prefix}{one.name}/")
        elif ending in TYPES:
            data = one.read_bytes()
            yield f"{prefix}{one.name}", ViewerFile(data, TYPES[ending], f'"{sha256(data).hexdigest()[:20]}"')


@get(["/", "/{page:path}"], sync_to_thread=False, include_in_schema=False)
def page(request: Request[Any, Any, Any], page: FromPath[str | None] = None) -> Response[bytes]:
    """The viewer, whatever place of it is named; its own code reads the address."""
    name = (page or "").strip("/")
    if name.startswith("api/") or "." in name.rpartition("/")[2]:
        raise Refusal(404, "no_page", "there is nothing at this address")
    return _served(request, INDEX)


@get("/assets/{name:path}", sync_to_thread=False, include_in_schema=False)
def asset(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
    return _served(request, name.lstrip("/"))


def _served(request: Request[Any, Any, Any], name: str) -> Response[bytes]:
    found: ViewerFile | None = request.app.state.viewer.get(name)
    if found is None:
        raise Refusal(404, "no_page", "there is nothing at this address")
    headers = {"etag": found.tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == found.tag:
        return Response(b"", status_code=304, headers=headers)
    return Response(found.data, media_type=found.media_type, headers=headers)


@get("/openapi.json", sync_to_thread=False, include_in_schema=False)
def openapi(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
    return Response(request.app.openapi_schema.to_schema(), media_type="application/json")


class LoginBody(Struct, forbid_unknown_fields=True):
    token: str


@post("/api/login", sync_to_thread=False, status_code=200, tags=["server"], opt={"client": True})
def login(request: Request[Any, Any, Any], data: JSONBody[LoginBody]) -> Response[LoginInfo]:
    """Keep a token in a cookie that scripts cannot read and other sites cannot use."""
    access: AccessSettings = request.app.state.context.access
    caller = access.caller(data.token)
    if caller is None:
        raise Refusal(401, "no_token", "that is not a token of this server")
    cookie = Cookie(key=COOKIE, value=data.token, httponly=True, samesite="strict", path="/")
    return Response(LoginInfo(level=caller.level, owner=caller.owner), cookies=[cookie])


@delete("/api/login", sync_to_thread=False, status_code=200, tags=["server"], opt={"client": True})
def logout() -> Response[LoginInfo]:
    """Forget the cookie."""
    cookie = Cookie(key=COOKIE, value="", httponly=True, samesite="strict", path="/", max_age=0)
    return Response(LoginInfo(level=None), cookies=[cookie])


HANDLERS = [page, asset, openapi, login, logout]
