"""The pages and pictures that docs/generate.py writes are those of this version."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import click
import pytest

from oakleaf.cli.main import oakleaf as command_line
from oakleaf.cli.verb_table import verb_names
from support.paths import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["generate"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestPage:
    def test_it_holds_the_help_of_every_command(self, generate: ModuleType) -> None:
        """`make docs` regenerates it."""
        assert (DOCS / "cli.md").read_text(encoding="utf-8") == generate.page()
        for verb in verb_names():
            assert f"### oakleaf {verb}\n" in generate.page()

    @pytest.mark.parametrize("name", ["api", "events", "errors"])
    def test_the_reference_is_that_of_the_code(self, generate: ModuleType, name: str) -> None:
        """`make docs` regenerates it."""
        page = f"reference/{name}.md"
        assert (DOCS / page).read_text(encoding="utf-8") == generate.reference.PAGES[page]()

    def test_the_list_for_language_models_has_every_page(self, generate: ModuleType) -> None:
        """`make docs` regenerates it."""
        link = re.compile(r"- \[.+?\]\((.+?)\)")
        listed = link.findall((DOCS / "llms.txt").read_text(encoding="utf-8"))
        assert listed == link.findall(generate.reference.PAGES["llms.txt"]())
        assert {"index.md", "howto/asyncio.md", "cli.md"} <= set(listed)

    def test_the_page_of_settings_has_every_variable_that_is_read(self) -> None:
        text = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
        source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
        read = set(re.findall(r"\bOAKLEAF_[A-Z]+\b|\b[A-Z]+_(?:API_KEY|BASE_URL)\b", source))
        assert {name for name in read if f"`{name}`" not in text} == set()

    def test_the_picture_loads_nothing_from_the_network(self) -> None:
        svg = (DOCS / "demo.svg").read_text(encoding="utf-8")
        assert svg.count("http") == 1  # the SVG namespace
        assert "claims&#160;hold" in svg


def options(
    command: click.Command = command_line, name: str = "oakleaf"
) -> Iterator[tuple[str, click.Option]]:
    """Yield every option of every command, with the command's name."""
    yield from ((name, option) for option in command.params if isinstance(option, click.Option))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for verb in command.list_commands(context):
            if (inner := command.get_command(context, verb)) is not None:
                yield from options(inner, f"{name} {verb}")


class TestOptions:
    def test_each_says_what_it_does_and_what_it_takes(self) -> None:
        vague = {"INTEGER", "INTEGER RANGE", "FLOAT", "FLOAT RANGE"}
        assert [
            f"{name} {option.opts[-1]}"
            for name, option in options()
            if not option.help
            or (not option.is_flag and option.make_metavar(click.Context(command_line)) in vague)
        ] == []

    @pytest.mark.parametrize("flag", ["--yes", "--force", "--owner", "--port", "--workers"])
    def test_the_same_flag_is_spelled_the_same_in_every_command(self, flag: str) -> None:
        spellings = {(tuple(option.opts), option.metavar) for _, option in options() if flag in option.opts}
        assert len(spellings) == 1
