"""Install lines: each fetches this project from a checkout or a wheel, because the names are not published yet."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from oakleaf.install import EXTRAS_OF_NAMES, PLUGINS_OF, install_line
from support.paths import ROOT

LINE = re.compile(
    r"(?:\bpip install|\bpip3 install|\buv add|\buv tool|\buv pip install|\buvx|\bpipx)\b[^\n`]*"
)
OURS = re.compile(r"^[\"'(]*oakleaf(?:-\w+)?(?:\[[^\]]*\])?(?:[=<>~!].*)?[\"').,;:]*$")


def install_lines() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if (
            name.endswith((".md", ".py", ".yml", ".toml", "Dockerfile", "Makefile", "run"))
            and "/tests/" not in f"/{name}"
        ):
            for line in LINE.findall((ROOT / name).read_text()):
                yield name, line


def fetched_by_name(line: str) -> list[str]:
    """Return the words of a line that an installer would look up in a package index under our name."""
    words = line.partition("#")[0].split()
    if "--from" in words:  # uvx --from WHEEL COMMAND
        words = words[words.index("--from") + 1 :][:1]
    return [word for word in words if OURS.match(word)]


def test_every_install_line_names_a_checkout_or_a_wheel() -> None:
    lines = list(install_lines())
    assert len(lines) > 20
    assert [(name, line) for name, line in lines if fetched_by_name(line)] == []


@pytest.mark.parametrize(
    "line",
    ["pip install oakleaf", "pip install 'oakleaf[cli]'", "uvx oakleaf demo", "uv add oakleaf-server==0.1.0"],
)
def test_a_line_that_asks_an_index_for_our_name_is_found(line: str) -> None:
    assert fetched_by_name(line)


@pytest.mark.parametrize("extra", sorted({*PLUGINS_OF, "cli", "anthropic"}))
def test_the_printed_line_leads_back_to_this_checkout(extra: str) -> None:
    words = shlex.split(install_line(extra))
    assert words[:3] == ["pip", "install", f"{ROOT}[{extra}]"]
    assert all(Path(word).is_dir() for word in words[3:])
    assert len(words) == 3 + len(PLUGINS_OF.get(extra, ()))


def test_every_extra_of_a_plugin_has_its_folder_and_no_other() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra: re.findall(r"oakleaf-(\w+)", " ".join(wanted)) for extra, wanted in extras.items()}
    assert {extra: folders[0] for extra, folders in named.items() if folders} == {
        extra: folders[0] for extra, folders in PLUGINS_OF.items()
    }


def test_the_hints_name_what_the_plugins_add() -> None:
    """A plugin of this project that adds a name without a hint would be missing without a word."""
    for path in ROOT.glob("plugins/*/pyproject.toml"):
        groups = tomllib.loads(path.read_text())["project"].get("entry-points", {})
        for group in ("oakleaf.stores", "oakleaf.verbs", "oakleaf.exports", "oakleaf.tools", "oakleaf.tasks"):
            for name in groups.get(group, {}):
                assert PLUGINS_OF[EXTRAS_OF_NAMES[group][name]][0] == path.parent.name


def test_all_distributions_have_one_version() -> None:
    projects = [tomllib.loads(path.read_text())["project"] for path in ROOT.glob("plugins/*/pyproject.toml")]
    import oakleaf

    assert {project["version"] for project in projects} == {oakleaf.__version__}
    pins = [
        wanted for project in projects for wanted in project["dependencies"] if wanted.startswith("oakleaf")
    ]
    assert {pin.rpartition("==")[2] for pin in pins} == {oakleaf.__version__}
