"""Plugins of strangers: how they are found, and that a bad one is named and stops nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from oakleaf import __version__
from support.foreign_plugins import Site

GREET = """
    import click

    @click.command()
    def greet():
        click.echo("hello from a stranger")
"""
DESCRIBED = 'COMMANDS = {"greet": ("Look", "Say hello.")}'


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A folder of strangers' distributions beside the installed ones: a good one at first."""
    site = Site(tmp_path)
    files = {"greetings/__init__.py": "", "greetings/greet.py": GREET, "greetings/plugin.py": DESCRIBED}
    site.install("greetings", {"verbs": {"greet": "greetings.greet:greet"}}, files)
    return site


def problems(site: Site, *flags: str) -> list[dict[str, str]]:
    """Return what the command reports of strangers; the good plugin and the library work all the same."""
    listed = site.run("plugins", "--json", *flags)
    found: list[dict[str, str]] = listed.json["problems"]
    assert listed.code == (1 if found else 0), listed.err
    assert site.run("greet").out == "hello from a stranger\n"
    assert site.run("--store", "memory:", "ls").code == 0
    return found


def test_a_command_of_a_stranger_is_listed_described_and_run(site: Site) -> None:
    shown = site.run("plugins")
    assert shown.code == 0, shown.err
    row = next(line.split() for line in shown.out.splitlines() if line.startswith("greetings"))
    assert row == ["greetings", "1.0", "verbs", "greet"]
    assert site.run("plugins", "--json").json["plugins"][-1] == {
        "distribution": "greetings",
        "version": "1.0",
        "adds": {"verbs": ["greet"]},
    }
    look = site.run("help", "all").out.partition("\nLook:")[2].partition("\n\n")[0]
    assert "greet    Say hello." in look
    assert problems(site, "--check") == []


def test_listing_imports_no_plugin(site: Site) -> None:
    site.install("bomb", {"stores": {"bomb": "bomb:open_store"}}, {"bomb.py": "raise SystemExit(9)"})
    assert problems(site) == []


def test_check_names_a_plugin_that_raises_on_import(site: Site) -> None:
    site.install("bomb", {"verbs": {"boom": "bomb:boom"}}, {"bomb.py": "1 / 0"})
    (found,) = problems(site, "--check")
    assert found["problem"] == (
        "the verb 'boom' of bomb 1.0 cannot be used: importing bomb raised ZeroDivisionError: division by zero"
    )
    assert found["hint"] == "mend or uninstall bomb 1.0; everything else works"
    used = site.run("boom")
    assert (used.code, found["problem"] in used.err) == (1, True)
    assert "boom" in site.run("help", "all").out


def test_an_import_that_ends_the_process_is_a_broken_plugin(site: Site) -> None:
    site.install("quitter", {"exports": {"quit": "quitter:export"}}, {"quitter.py": "raise SystemExit(0)"})
    (found,) = problems(site, "--check")
    assert "the export 'quit' of quitter 1.0 cannot be used" in found["problem"]


def test_a_missing_package_is_named_with_what_needs_it(site: Site) -> None:
    site.install(
        "thirsty", {"verbs": {"drink": "thirsty:drink"}}, {"thirsty.py": "import no_such_package.part"}
    )
    (found,) = problems(site, "--check")
    assert found == {
        "problem": "thirsty 1.0 needs no_such_package for the verb 'drink', and that is not installed",
        "hint": "install no_such_package, or uninstall thirsty 1.0; everything else works",
    }
    used = site.run("drink")
    assert (used.code, "install no_such_package" in used.err) == (2, True)


def test_a_missing_package_of_the_summary_is_shown_in_the_help(site: Site) -> None:
    files = {
        "thirsty/__init__.py": GREET.replace("greet", "drink"),
        "thirsty/plugin.py": "import no_such_package",
    }
    site.install("thirsty", {"verbs": {"drink": "thirsty:drink"}}, files)
    assert "needs no_such_package" in " ".join(site.run("help", "all").out.split())


def test_entry_points_without_their_module_are_a_broken_plugin(site: Site) -> None:
    site.install("hollow", {"importers": {"hollow": "hollow.reader:Reader"}})
    (found,) = problems(site, "--check")
    assert "No module named 'hollow'" in found["problem"]
    assert "uninstall hollow 1.0" in found["hint"]


@pytest.mark.parametrize(
    "target", ["", ":x", "x y", "greetings.greet:missing", "greetings..greet:greet", "..greetings"]
)
def test_an_unusable_target_is_a_broken_plugin(site: Site, target: str) -> None:
    site.install("vague", {"tools": {"vague": target}})
    (found,) = problems(site, "--check")
    assert "the tool 'vague' of vague 1.0 cannot be used" in found["problem"]


def test_a_plugin_for_a_newer_library_is_named_with_both_versions(site: Site) -> None:
    site.install(
        "modern", {"verbs": {"soon": "modern:soon"}}, {"modern.py": "from oakleaf.ext import of_tomorrow"}
    )
    site.install("later", {"verbs": {"late": "later:late"}}, {"later.py": "import oakleaf.tomorrow"})
    for found, name in zip(problems(site, "--check"), ("later", "modern"), strict=True):
        assert f"of {name} 1.0 cannot be used" in found["problem"]
        assert f"this is Oakleaf {__version__}; the plugin was made for another version" in found["problem"]


def test_a_plugin_may_refuse_the_library_in_its_own_words(site: Site) -> None:
    refusal = 'raise RuntimeError("this plugin needs Oakleaf 2 or newer")'
    site.install("proud", {"pages": {"proud": "proud:page"}}, {"proud.py": refusal})
    (found,) = problems(site, "--check")
    assert "this plugin needs Oakleaf 2 or newer" in found["problem"]


def test_a_name_that_two_strangers_add_is_found_without_import(site: Site) -> None:
    for name in ("left", "right"):
        site.install(
            name, {"verbs": {"twin": f"{name}:twin"}}, {f"{name}.py": GREET.replace("greet", "twin")}
        )
    (found,) = problems(site)
    assert found == {
        "problem": "the verb 'twin' of left 1.0 and right 1.0 cannot be used: two distributions add this name",
        "hint": "uninstall one of them; everything else works",
    }
    assert problems(site, "--check") == [found]
    used = site.run("twin")
    assert (used.code, "uninstall one of them" in used.err) == (1, True)


def test_this_project_goes_before_a_stranger_with_the_same_name(site: Site) -> None:
    site.install("oakleaf_twin", {"verbs": {"twin": "own_twin:greet"}}, {"own_twin.py": GREET})
    site.install("stranger", {"verbs": {"twin": "stranger:twin"}}, {"stranger.py": "1 / 0"})
    (found,) = problems(site, "--check")
    assert found == {
        "problem": "the verb 'twin' of stranger 1.0 cannot be used: oakleaf-twin 1.0 adds the same name and goes first",
        "hint": "uninstall stranger; everything else works",
    }
    assert site.run("twin").out == "hello from a stranger\n"


@pytest.mark.parametrize(
    ("group", "name", "kind"), [("verbs", "ls", "command"), ("models", "scripted", "model")]
)
def test_a_name_of_the_library_is_not_replaced(site: Site, group: str, name: str, kind: str) -> None:
    site.install("greedy", {group: {name: "greetings.greet:greet"}})
    (found,) = problems(site)
    assert f"the library has a {kind} of this name" in found["problem"]


@pytest.mark.parametrize("value", ["None", "41", "object()", "print"])
def test_a_command_that_is_none_is_refused_at_its_use(site: Site, value: str) -> None:
    site.install("nonsense", {"verbs": {"odd": "nonsense:odd"}}, {"nonsense.py": f"odd = {value}"})
    used = site.run("odd")
    assert used.code == 1
    assert "not a Verb or a command of click" in used.err
    assert "mend or uninstall nonsense 1.0" in used.err
    assert problems(site) == []
    (found,) = problems(site, "--check")
    assert "not a Verb or a command of click" in found["problem"]


@pytest.mark.parametrize(
    "group", ["stores", "models", "importers", "exports", "pages", "tools", "scorers", "tasks"]
)
def test_check_names_a_plugin_that_is_not_what_its_group_expects(site: Site, group: str) -> None:
    site.install("nonsense", {group: {"odd": "nonsense:odd"}}, {"nonsense.py": "odd = 41"})
    (found,) = problems(site, "--check")
    assert (
        f"the {group.removesuffix('s')} 'odd' of nonsense 1.0 cannot be used: it is int, not a"
        in found["problem"]
    )


@pytest.mark.parametrize(
    "commands", ["None", "41", "{'odd': 'Look'}", "{'odd': None}", "[]", "{'odd': (1, 2, 3)}"]
)
def test_a_nonsense_summary_is_shown_and_stops_no_help(site: Site, commands: str) -> None:
    files = {"odd/__init__.py": GREET, "odd/plugin.py": f"COMMANDS = {commands}"}
    site.install("odd", {"verbs": {"odd": "odd:greet"}}, files)
    shown = site.run("help", "all")
    assert (shown.code, shown.err) == (0, "")
    assert "\n  odd" in shown.out
    assert site.run("odd").out == "hello from a stranger\n"


def test_metadata_that_cannot_be_read_is_passed_over(site: Site) -> None:
    broken = site.folder / "garbled-1.0.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_bytes(b"\xff\xfe[oakleaf.verbs]\n")
    (site.folder / "empty-1.0.dist-info").mkdir()
    (site.folder / "file-1.0.dist-info").write_text("")
    odd = site.folder / "odd-1.0.dist-info"
    odd.mkdir()
    (odd / "entry_points.txt").write_text(
        "x = y\n[\n]\n[oakleaf.verbs]\nno equals sign\n# a = b:c\n[other]\nz = w:v\n"
    )
    assert problems(site, "--check") == []
