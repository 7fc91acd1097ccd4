"""A page that a plugin adds to the viewer, what the page reads over HTTP, and the same as a file.

An entry point of the group `oakleaf.pages` names a `Page`. Whoever serves the viewer finds the page there. Knows neither
HTTP nor the viewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.resources.abc import Traversable
from typing import Protocol

from msgspec import Struct


class Page(Struct, frozen=True, kw_only=True):
    """A page at `/NAME` and `/NAME/ID`, where NAME is the name of the entry point."""

    title: str
    """Stands in the navigation and in the window's title."""
    folder: Traversable
    """Holds the page's modules (`.js`) and styles (`.css`). They are served as `/assets/NAME/FILE`, so a module imports its
    neighbours as `./FILE` and those of the viewer as `../dom.js`."""
    module: str
    """The module in `folder` that exports `openPage(id)`. It returns an object with `element`, and perhaps `open()`, which
    is awaited once the element is shown, and `close()`."""
    styles: tuple[str, ...] = ()
    """Files in `folder`, loaded after the viewer's own styles."""
    routes: Mapping[str, Callable[..., Struct]] = {}
    """What `GET /api/NAME…` answers, by the rest of the path, such as `""` and `"/{run_id}"`.

    A function gets the store, then the parameters of the path and of the query by name; `Annotated[int, Meta(ge=0)]` limits
    one. It returns a Struct and raises Oakleaf's errors. Its docstring describes the route. Only the operator's token may
    ask. Long strings and lists are cut, so that no answer is larger than 1 MB.
    """


class PageFiles(Protocol):
    """Makes files for use from disk without a server. The export `html` is one, if the viewer is installed."""

    def page_file(self, name: str, page: Page, module: str, data: bytes, *, title: str) -> Iterator[bytes]:
        """Yield an HTML file that runs a module of a page's folder and can load nothing.

        The data stand in the text of all elements `script.data` together, each in base64.
        """
        ...
