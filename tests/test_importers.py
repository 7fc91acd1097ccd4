"""Importers of strangers: a reader of another tool's sessions, found by the tool's name; bad ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.foreign_plugins import Site

pytestmark = pytest.mark.extra

READER = """
    from pathlib import Path

    from oakleaf import assistant, user
    from oakleaf.ingest.importers import Importer
    from oakleaf.ingest.records import EntryRecord, SessionRecord


    def read(source):
        for file in sorted(Path(source).glob("*.talk")):
            first, answer = file.read_text().splitlines()
            entries = (EntryRecord(user(first)), EntryRecord(assistant(answer)))
            yield SessionRecord("talk", file.stem, entries, conversation_id=file.stem)


    IMPORTER = Importer(
        source="a folder of .talk files", sessions=read, default_paths=("~/talks",),
        source_of=lambda root, file: file.parent if file.suffix == ".talk" else None,
    )
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A stranger's importer beside the installed ones, and one session at its default location."""
    site = Site(tmp_path / "site")
    site.install("talks", {"importers": {"talk": "talks:IMPORTER"}}, {"talks.py": READER})
    return site


@pytest.fixture
def talks(site: Site) -> Path:
    folder = site.folder / "talks"
    folder.mkdir()
    (folder / "one.talk").write_text("Hello?\nHi.\n")
    return folder


def hide_importers(site: Site) -> None:
    """Take the project's own importers away: of two distributions of one name the first on the path counts."""
    site.install("oakleaf_importers", {})


def test_a_stranger_s_tool_is_imported_by_its_name(site: Site, talks: Path) -> None:
    done = site.run("--store", str(site.folder / "s.db"), "import", "--from", "talk", str(talks))
    assert (done.code, done.out) == (0, "talk-one  2 entries\n"), done.err
    shown = site.run("--store", str(site.folder / "s.db"), "show", "talk-one")
    assert "Hi." in shown.out


def test_help_says_what_to_name_of_each_tool_that_works(site: Site) -> None:
    site.install("bomb", {"importers": {"boom": "bomb:IMPORTER"}}, {"bomb.py": "1 / 0"})
    shown = site.run("import", "--help")
    text = " ".join(shown.out.split())
    assert shown.code == 0, shown.err
    assert "talk: a folder of .talk files" in text
    assert "boom: cannot be used: the importer 'boom' of bomb 1.0 cannot be used" in text


def test_an_unknown_tool_is_refused_with_the_known_ones(site: Site) -> None:
    done = site.run("import", "--from", "abacus", "x")
    assert done.code == 2
    assert "no importer for sessions of 'abacus'" in done.err
    assert "talk" in done.err.partition("use one of ")[2]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("import", "--from", "claude-code"), "no installed plugin adds the importer 'claude-code'"),
        (("import", "--watch", "talk"), "no installed plugin adds the verb 'import.watch'"),
        (("doctor", "."), "no installed plugin adds the verb 'doctor.folder'"),
    ],
)
def test_without_the_plugin_the_install_line_is_named(
    site: Site, arguments: tuple[str, ...], problem: str
) -> None:
    hide_importers(site)
    done = site.run(*arguments)
    assert done.code == 2, done.out
    assert problem in done.err
    assert "install it with: pip install" in done.err
    assert "importers" in done.err.partition("pip install")[2]


def test_a_fallback_address_needs_the_importer_of_redis(site: Site, tmp_path: Path) -> None:
    hide_importers(site)
    done = site.python(
        """
        import oakleaf

        try:
            oakleaf.open("memory:").latest_or_start("c", fallback="redis://127.0.0.1:1")
        except oakleaf.errors.PluginMissing as error:
            print(error)
        """
    )
    assert "no installed plugin adds the importer 'redis'" in done.out, done.err
    assert "[redis]" in done.out


def test_importers_of_strangers_need_none_of_ours(site: Site, talks: Path) -> None:
    hide_importers(site)
    done = site.run("--store", str(site.folder / "s.db"), "import", "--from", "talk", str(talks))
    assert (done.code, done.out) == (0, "talk-one  2 entries\n"), done.err
    assert "talk: a folder of .talk files" in " ".join(site.run("import", "--help").out.split())


@pytest.mark.parametrize("value", ["None", "41", "object()", "print"])
def test_a_value_that_is_no_importer_is_a_broken_plugin(site: Site, value: str) -> None:
    site.install("nonsense", {"importers": {"odd": "nonsense:odd"}}, {"nonsense.py": f"odd = {value}"})
    done = site.run("import", "--from", "odd", "x")
    assert done.code == 1
    assert "the importer 'odd' of nonsense 1.0 cannot be used: it is" in done.err
    assert "mend or uninstall nonsense 1.0" in done.err


@pytest.mark.parametrize("read", ["[41]", "None", "41", "(n for n in 'ab')"])
def test_a_reader_of_no_records_is_a_broken_plugin(site: Site, read: str) -> None:
    module = f"""
        from oakleaf.ingest.importers import Importer

        odd = Importer(source="x", sessions=lambda source: {read})
    """
    site.install("nonsense", {"importers": {"odd": "nonsense:odd"}}, {"nonsense.py": module})
    done = site.run("--store", str(site.folder / "s.db"), "import", "--from", "odd", "x")
    assert done.code == 1
    assert "the importer 'odd' of nonsense 1.0 cannot be used: it read" in done.err
    assert not (site.folder / "s.db").exists()
