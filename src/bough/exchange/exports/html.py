"""A session as one HTML file that opens from disk, without network: the viewer, and the bundle it looks at.

Knows how the viewer's files and a bundle's bytes become one page. What the page then does with them the viewer knows
(`server/viewer/offline.js`); of the server nothing is imported, only the files beside it are read.

The page may run its own script, use its own style and show what is inside it, each named by its hash; it can ask
nobody for anything. The bundle stands in it as base64, which no content of a session can end; beside it what each
model was given, which takes the projections of `wire` to know.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from io import BytesIO

import msgspec
from msgspec import Struct

from ...errors import PageTooLarge
from ...log.runtime import Runtime
from ...stores.base import StoreBackend
from ..bundle.transfer import PathOrFile, export
from ..bundle.write import BundleExportResult, OnProgress, atomic_file, write_error
from .es_modules import joined
from .requests import requests

MOST = 50_000_000
"""Bytes of the bundle inside. A browser holds it three times over: as text, as bytes, and as what it shows."""
PIECE = 3 << 18
"""Bytes of it in one element; a multiple of three, so that the pieces' base64 has no padding but at the end."""
_STAND_INS = {"api.js": "offline.js", "live.js": "offline_live.js", "route.js": "offline_route.js"}
_STYLES = re.compile(r'<link rel="stylesheet" href="/assets/([\w.-]+)">')
_ICON = "icon.svg"


class HtmlExportResult(Struct, frozen=True):
    bundle: BundleExportResult
    """What is inside: as `session.export` tells it."""
    bytes: int
    """Of the whole file."""


def html(
    store: StoreBackend,
    runtime: Runtime,
    session_id: str,
    to: PathOrFile,
    *,
    blobs: bool = False,
    children: bool = True,
    redact: bool = True,
    progress: OnProgress | None = None,
) -> HtmlExportResult:
    """Write one session, and its tasks, as a page. The same session makes the same bytes with the same Bough."""
    bundle = _Bounded()
    how = {"blobs": blobs, "children": children, "redact": redact}
    exported = export(store, runtime, session_id, bundle, **how, progress=progress)
    return HtmlExportResult(exported, _written(to, page(bundle.getbuffer())))


class _Bounded(BytesIO):
    """Holds as much as a page may, and refuses before the memory is full."""

    def write(self, data: object, /) -> int:
        assert isinstance(data, bytes)
        if self.tell() + len(data) > MOST:
            raise PageTooLarge(MOST)
        return super().write(data)


def _written(to: PathOrFile, parts: Iterator[bytes]) -> int:
    if isinstance(to, str | os.PathLike):
        with atomic_file(to) as file:
            return sum(map(file.write, parts))
    size = 0
    try:
        for part in parts:
            to.write(part)
            size += len(part)
    except BrokenPipeError:
        raise  # as of a bundle: the owner of the stream judges
    except OSError as error:
        raise write_error(str(getattr(to, "name", "the page")), error) from None
    return size


def page(bundle: memoryview) -> Iterator[bytes]:
    """The file, piece by piece."""
    sources = _viewer()
    script = joined(sources, "main.js", _STAND_INS)
    style = "".join(sources[name] for name in [*_STYLES.findall(sources["index.html"]), "offline.css"])
    yield _head(script, style, sources[_ICON]).encode()
    yield from _held("bundle", bundle)
    yield from _held("requests", memoryview(msgspec.json.encode(requests(bundle))))
    yield b"</body>\n</html>\n"


def _held(name: str, data: memoryview) -> Iterator[bytes]:
    """Bytes in elements that the page's script reads and no browser runs."""
    for begin in range(0, len(data), PIECE):
        yield f'<script type="application/octet-stream" class="{name}">'.encode()
        yield b64encode(data[begin : begin + PIECE])
        yield b"</script>\n"


def _viewer() -> dict[str, str]:
    """The viewer's files by their names. A checkout may have given their lines other ends."""
    folder = files("bough.server").joinpath("viewer")
    found = (
        (one.name, one) for one in folder.iterdir() if one.name.endswith((".js", ".css", ".html", ".svg"))
    )
    return {name: one.read_text("utf-8").replace("\r\n", "\n") for name, one in sorted(found)}


def _head(script: str, style: str, icon: str) -> str:
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    drawn = b64encode(icon.encode()).decode()
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>Session · Bough</title>
<link rel="icon" type="image/svg+xml" data-name="{_ICON}" href="data:image/svg+xml;base64,{drawn}">
<style>{style}</style>
<script type="module">{script}</script>
</head>
<body data-copy>
<noscript>This page is a program: it needs JavaScript. The bundle inside is base64, in the elements of class bundle.</noscript>
"""


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
