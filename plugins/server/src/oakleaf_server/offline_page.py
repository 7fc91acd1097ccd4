"""Export a session as one HTML file that opens from disk without network: the viewer and a bundle; or a page of a plugin.

Nothing is imported from the server; only the viewer's files beside it are read, and `server/viewer/offline.js` decides
what the page does with the bundle. The page may run its own script, use its own style and show its own content, each
allowed by its hash, and can make no request. The bundle is embedded as base64, which no session content can terminate;
beside it are the requests of each model call, which only `wire` can render.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from oakleaf import BundleExportResult, Session
from oakleaf.core.pages import Page
from oakleaf.errors import PageTooLarge
from oakleaf.ext import Exporter
from oakleaf_server.es_modules import join_modules
from oakleaf_server.offline_requests import requests

MAX_BUNDLE_BYTES = 50_000_000
"""The largest embedded bundle. A browser holds it three times: as text, as bytes, and as what it shows."""
PIECE = 3 << 18
"""Bytes per element; a multiple of three, so that only the last piece's base64 has padding."""
ASSETS = (".js", ".css", ".html", ".svg")
ENTRY = "main.js"
_STAND_INS = {"api.js": "offline.js", "live.js": "offline_live.js", "route.js": "offline_route.js"}
_STYLES = re.compile(r'<link rel="stylesheet" href="/assets/([\w.-]+)">')
_ICON = "icon.svg"
_END = b"</body>\n</html>\n"


class Options(Struct, frozen=True, kw_only=True):
    """The content of the page's bundle. `blobs` needs `redact=False`: the bytes of blobs cannot be redacted."""

    blobs: bool = False
    children: bool = True
    redact: bool = True
    progress: Any = None


def write(session: Session, to: BinaryIO, options: Options) -> BundleExportResult:
    """Write the viewer and the session's bundle as a page. The same bundle and Oakleaf version give the same
    bytes.
    """
    bundle = _BoundedBuffer()
    exported: BundleExportResult = session.export(bundle, **asdict(options)).report
    for part in page(bundle.getbuffer()):
        to.write(part)
    return exported


class HtmlExporter(Exporter, frozen=True, kw_only=True):
    """Writes sessions, and pages of plugins (`oakleaf.core.pages.PageFiles`)."""

    def page_file(self, name: str, page: Page, module: str, data: bytes, *, title: str) -> Iterator[bytes]:
        """Yield an HTML file running a module of a page's folder; `script.data` holds the data."""
        sources = {**read_viewer(), **read_folder(page.folder, f"{name}/")}
        script = join_modules(sources, f"{name}/{module}", {})
        style = _style(sources, *(f"{name}/{file}" for file in page.styles))
        yield page_head(script, style, sources[_ICON], title=title).encode()
        yield from embed("data", memoryview(data))
        yield _END


EXPORTER = HtmlExporter(suffix=".html", write=write, options=Options, is_whole=True, is_text=False)


class _BoundedBuffer(BytesIO):
    """A buffer with a page's limit, refusing more before memory is full."""

    def write(self, data: object, /) -> int:
        assert isinstance(data, bytes)
        if self.tell() + len(data) > MAX_BUNDLE_BYTES:
            raise PageTooLarge(MAX_BUNDLE_BYTES)
        return super().write(data)


def page(bundle: memoryview) -> Iterator[bytes]:
    """Yield the file piece by piece."""
    sources = read_viewer()
    script = join_modules(sources, ENTRY, _STAND_INS)
    yield page_head(script, _style(sources), sources[_ICON], title="Session").encode()
    yield from embed("bundle", bundle)
    yield from embed("requests", memoryview(msgspec.json.encode(requests(bundle))))
    yield _END


def _style(sources: Mapping[str, str], *added: str) -> str:
    viewer = _STYLES.findall(sources["index.html"])
    return "".join(sources[name] for name in [*viewer, *added, "offline.css"])


def embed(name: str, data: memoryview) -> Iterator[bytes]:
    """Yield bytes in elements for the page's script, never run by a browser."""
    for begin in range(0, len(data), PIECE):
        yield f'<script type="application/octet-stream" class="{name}">'.encode()
        yield b64encode(data[begin : begin + PIECE])
        yield b"</script>\n"


def read_viewer() -> dict[str, str]:
    """Return the viewer's files by name."""
    return read_folder(files("oakleaf_server").joinpath("viewer"))


def read_folder(folder: Traversable, prefix: str = "") -> dict[str, str]:
    """Return the files of a page by name. A checkout may have changed their line endings."""
    assets = ((one.name, one) for one in folder.iterdir() if one.name.endswith(ASSETS))
    return {prefix + name: one.read_text("utf-8").replace("\r\n", "\n") for name, one in sorted(assets)}


def page_head(script: str, style: str, icon: str, *, title: str) -> str:
    """Return the beginning of a file with permission for the own script and style, and no request."""
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    icon_data = b64encode(icon.encode()).decode()
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title} · Oakleaf</title>
<link rel="icon" type="image/svg+xml" data-name="{_ICON}" href="data:image/svg+xml;base64,{icon_data}">
<style>{style}</style>
<script type="module">{script}</script>
</head>
<body data-copy>
<noscript>This page is a program: it needs JavaScript. Its content is base64, in the elements of type application/octet-stream.</noscript>
"""


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
