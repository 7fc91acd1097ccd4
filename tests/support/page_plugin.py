"""A stranger's plugin with a page of the viewer, as an installer leaves it on the path."""

from __future__ import annotations

from pathlib import Path

from support.foreign_plugins import Site

GARDEN = '''
from importlib.resources import files
from typing import Annotated

from msgspec import Meta, Struct

from oakleaf import Store
from oakleaf.errors import NotFound
from oakleaf.core.pages import Page


class Beds(Struct):
    beds: list[dict[str, str]]
    total: int


class Bed(Struct):
    name: str
    sessions: int


def beds(
    store: Store,
    first: Annotated[int, Meta(ge=0, description="Index of the first bed")] = 0,
    size: int = 10,
) -> Beds:
    """List the beds. They are many."""
    return Beds([{"name": f"bed {at}", "text": "x" * size} for at in range(first, 300)], 300)


def bed(store: Store, name: str) -> Bed:
    """Read one bed."""
    if name == "none":
        raise NotFound(name)
    return Bed(name, len(list(store.all_sessions())))


page = Page(
    title="Garden",
    folder=files("garden_plugin").joinpath("viewer"),
    module="garden_page.js",
    styles=("garden.css",),
    routes={"": beds, "/beds/{name}": bed},
)
'''
SCRIPT = """\
import { fetchJson } from "../api.js";
import { fill, h } from "../dom.js";
import { shout } from "./words.js";

export function openPage(id) {
  const element = h("main.page", { id: "main" });
  return { element, open: async () => {
    const { beds } = await fetchJson("/garden");
    fill(element, h("h1", shout(id ?? "all")), h("p.bed", beds[0].name));
  } };
}
"""
FILES = {
    "garden_page.js": SCRIPT,
    "words.js": "export function shout(text) { return text.toUpperCase(); }\n",
    "garden.css": ".bed { color: rgb(1, 2, 3); }\n",
}


def write_plugin(folder: Path, package: str, module: str, files: dict[str, str], *pages: str) -> None:
    """Write a distribution with a package whose `page` is added under these names."""
    viewer = {f"{package}/viewer/{name}": text for name, text in files.items()}
    (folder / package / "viewer").mkdir(parents=True)
    targets = dict.fromkeys(pages, f"{package}:page")
    Site(folder).install(package, {"pages": targets}, {f"{package}/__init__.py": module, **viewer})
