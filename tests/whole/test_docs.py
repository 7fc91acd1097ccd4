"""Docs that cannot rot: every Python block of README and docs is run, those copied first are typed, and every link leads
somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import ROOT
from support.type_checkers import mypy_errors, pyright_errors

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TYPED = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("tutorial", "concepts", "howto/own-loop")),
]
"""Pages whose code is copied first."""

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda page: page.name
)
def test_the_code_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    run_code(page, tmp_path)


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_the_code_of_the_page_can_be_pasted_into_a_prompt(name: str, tmp_path: Path) -> None:
    """At a prompt a blank line ends a block, and a line that begins at the margin does not."""
    code = "\n\n".join(BLOCK.findall((ROOT / name).read_text()))
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input=code, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert re.sub(r"(>>>|\.\.\.)\s*", "", done.stderr) == "", done.stderr


@pytest.mark.parametrize("page", TYPED, ids=lambda page: page.name)
def test_type_checkers_accept_the_code_of_the_page(page: Path, tmp_path: Path) -> None:
    run_code(page, tmp_path)  # a page may write modules that its code imports
    assert (mypy_errors(tmp_path), pyright_errors(tmp_path)) == ([], [])


def run_code(page: Path, folder: Path) -> None:
    """Run the Python blocks of the page as one script."""
    script = folder / "page.py"
    script.write_text("\n".join(BLOCK.findall(page.read_text())))
    done = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), (page, target)


def test_every_file_a_page_names_is_there() -> None:
    for page in PAGES:
        for name in re.findall(
            r"`((?:tests|plugins|examples|docs|src/oakleaf|bench)/[\w./-]+)(?:::\w+)*`", page.read_text()
        ):
            assert "NAME" in name or (ROOT / name).exists(), (page, name)


def prose(page: Path) -> Iterator[str]:
    """Yield each paragraph and list item of a page, without code blocks, tables and headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?:\||#).*$", "", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        yield re.sub(r"\]\([^)]*\)", "]", block)


WRITTEN = [page for page in PAGES if page.name != "cli.md" and page.parent.name != "reference"]
"""Pages that no program writes."""


def test_no_line_of_prose_is_over_200_characters() -> None:
    """A table's row is one line, however long."""
    assert [
        (page.name, line)
        for page in WRITTEN
        for block in prose(page)
        for line in block.splitlines()
        if len(line) > 200
    ] == []


def test_no_sentence_is_over_30_words() -> None:
    """Code counts as one word. A colon and a semicolon end a sentence."""
    for page in WRITTEN:
        for block in prose(page):
            flat = re.sub(r"`[^`]*`", "code", " ".join(block.split()))
            for sentence in re.split(r"(?<=[.:;!?])[*”\"')]*\s", flat):
                assert len(re.findall(r"\S*\w\S*", sentence)) <= 30, (page.name, sentence)


def test_the_architecture_names_every_package_and_nothing_that_is_gone() -> None:
    text, source = (ROOT / "docs/architecture.md").read_text(), ROOT / "src/oakleaf"
    rows = re.findall(r"^\|([^|]+)\|[^|]+\|[^|]+\|$", text.partition("## The walk")[0], re.MULTILINE)
    packages = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert packages == {path.stem for path in source.iterdir()} - {"__init__", "py", "__pycache__"}
    for package, *names in (name.split(".") for name in re.findall(r"\b[a-z_]+(?:\.(?!py\b)[a-z_]+)+", text)):
        path = source / package
        if path.is_dir():
            while names and ((path / names[0]).is_dir() or (path / f"{names[0]}.py").exists()):
                path /= names.pop(0)
            files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
            code = "".join(file.read_text() for file in files)
            assert all(re.search(rf"\b(def|class) {name}\b", code) for name in names), (package, names)


def test_the_glossary_names_every_kind_of_entry() -> None:
    from oakleaf.core.entries import KINDS

    for page in ("docs/concepts.md", "docs/format.md"):
        text = (ROOT / page).read_text()
        assert all(kind in text for kind in KINDS), page


def test_the_format_page_lists_the_fields_in_the_order_they_are_written() -> None:
    from oakleaf.core.entries import KINDS

    text = (ROOT / "docs/format.md").read_text()
    for kind, payload in KINDS.items():
        assert f"| {kind} | `{', '.join(payload.__struct_fields__)}` |" in text, kind


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Strict: a page that is not in the navigation, a link or an anchor that leads nowhere fails."""
    # Not quiet: what is not printed does not count as a warning.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "WARNING" in done.stdout + done.stderr) == (0, False), done.stderr
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe)[^>]+src=\"(https?:[^\"]+)|<link[^>]+href=\"(https?:[^\"]+)",
            page.read_text(),
        )
        assert loaded == [], page.name
