"""Routes for the viewer's files and for login. Files are looked up by name, so no path can escape the package."""

from __future__ import annotations

import gzip
import re
import time
from functools import cached_property
from hashlib import sha256
from typing import Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from oakleaf_server.auth import LOGIN_SECONDS, AccessSettings, cookie_name
from oakleaf_server.capacity import LOGIN
from oakleaf_server.es_modules import join_shared
from oakleaf_server.offline_page import ENTRY, read_viewer
from oakleaf_server.openapi import complete
from oakleaf_server.pages import AddedPage, added_pages
from oakleaf_server.problems import Refusal
from oakleaf_server.schemas import LoginInfo, PageLink

INDEX = "index.html"
OWN_PAGES = ("s", "diff", "usage")
"""The first parts of the addresses of the viewer's pages."""
STYLES = re.compile(r'<link rel="stylesheet" href="/assets/([\w.-]+)">\n')
# Litestar adds the charset to text.
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


class ViewerFile(Struct, frozen=True, dict=True):
    data: bytes
    media_type: str
    tag: str
    is_permanent: bool = False
    """Whether its address contains its hash, so that it may be cached for good."""

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.data, mtime=0)


class ViewerFiles(Struct, frozen=True):
    """Every file of the viewer by path, and the page with all modules and styles joined into a file each.

    Joining is done here, once per start: the sources stay plain modules, a page load is three requests, and the joined
    files carry their hash in the address, so a browser asks for them once per version.
    """

    files: dict[str, ViewerFile]
    pages: list[AddedPage]
    links: list[PageLink]

    @classmethod
    def read(cls, taken: frozenset[str] = frozenset()) -> ViewerFiles:
        """Read the viewer and the pages of plugins. `taken` are names that no page may have."""
        texts = read_viewer()
        sources = {name: _viewer_file(name, text) for name, text in texts.items()}
        index = texts[INDEX]
        js, script = _permanent("viewer.js", join_shared(texts, ENTRY))
        pages = added_pages(texts, f"/assets/{js}", taken.union(OWN_PAGES))
        style = "".join([*(texts[name] for name in STYLES.findall(index)), *(page.style for page in pages)])
        css, joined_style = _permanent("viewer.css", style)
        scripts = [_permanent(f"{page.name}.js", page.script) for page in pages]
        index = STYLES.sub("", index).replace(
            "</title>", f'</title>\n<link rel="stylesheet" href="/assets/{css}">', 1
        )
        index = index.replace("/assets/main.js", f"/assets/{js}")
        index = "\n".join(line for line in index.splitlines() if line) + "\n"
        links = [
            PageLink(name=page.name, title=page.title, script=f"/assets/{address}")
            for page, (address, _) in zip(pages, scripts, strict=True)
        ]
        files = {**sources, js: script, css: joined_style, **dict(scripts), INDEX: _viewer_file(INDEX, index)}
        return cls(files, pages, links)

    def is_page_with_id(self, address: str) -> bool:
        """Whether an address names a page and an id, possibly with a dot."""
        first, slash, _ = address.partition("/")
        return bool(slash) and first in {*OWN_PAGES, *(page.name for page in self.pages)}


def _permanent(name: str, text: str) -> tuple[str, ViewerFile]:
    file = _viewer_file(name, text, is_permanent=True)
    return f"{file.tag.strip(chr(34))}/{name}", file


def _viewer_file(name: str, text: str, *, is_permanent: bool = False) -> ViewerFile:
    data, media_type = text.encode(), TYPES[name.rpartition(".")[2]]
    return ViewerFile(data, media_type, f'"{sha256(data).hexdigest()[:20]}"', is_permanent)


@get(["/", "/{page:path}"], sync_to_thread=False, include_in_schema=False, opt={"open": True})
def page(request: Request[Any, Any, Any], page: FromPath[str | None] = None) -> Response[bytes]:
    """Serve the viewer's page for any address; its script reads the URL."""
    name = (page or "").strip("/")
    viewer: ViewerFiles = request.app.state.viewer
    is_file = "." in name.rpartition("/")[2] and not viewer.is_page_with_id(name)
    if name.startswith("api/") or is_file:
        raise Refusal(404, "no_page", "page not found", "see /openapi.json")
    return _file_response(request, INDEX)


@get("/assets/{name:path}", sync_to_thread=False, include_in_schema=False, opt={"open": True})
def asset(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
    return _file_response(request, name.lstrip("/"))


def _file_response(request: Request[Any, Any, Any], name: str) -> Response[bytes]:
    viewer: ViewerFiles = request.app.state.viewer
    file = viewer.files.get(name)
    if file is None:
        raise Refusal(404, "no_page", "page not found")
    caching = "public, max-age=31536000, immutable" if file.is_permanent else "no-cache"
    headers = {"etag": file.tag, "cache-control": caching, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(b"", status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(file.data, media_type=file.media_type, headers=headers)
    return Response(
        file.compressed, media_type=file.media_type, headers={**headers, "content-encoding": "gzip"}
    )


@get("/openapi.json", sync_to_thread=False, include_in_schema=False, opt={"open": True})
def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Serve the description of the API."""
    state = request.app.state
    if state.openapi is None:  # built on first use: it takes longer than the rest of the start
        state.openapi = msgspec.json.encode(complete(request.app.openapi_schema.to_schema()))
    return Response(state.openapi, media_type="application/json")


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
