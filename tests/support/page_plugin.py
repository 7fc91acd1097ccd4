"""A stranger's plugin with a page of the viewer, as an installer leaves it on the path."""

from __future__ import annotations

from pathlib import Path

GARDEN = '''
from importlib.resources import files
from typing import Annotated

from msgspec import Meta, Struct

from oakleaf import Store
from oakleaf.errors import NotFound
from oakleaf.ext import Page


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
    """Write a distribution as an installer leaves it: a package, and metadata that name its pages."""
    viewer = folder / package / "viewer"
    viewer.mkdir(parents=True)
    (viewer.parent / "__init__.py").write_text(module)
    for name, text in files.items():
        (viewer / name).write_text(text)
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    lines = [f"{page} = {package}:page" for page in pages]
    (metadata / "entry_points.txt").write_text("\n".join(["[oakleaf.pages]", *lines, ""]))
