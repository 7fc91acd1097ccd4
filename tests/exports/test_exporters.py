"""The formats of `session.export`: how they are found, what they are told, and that a bad one is named."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import ExportResult, Session, assistant, plugins, user
from oakleaf.errors import InvalidArgument, PluginMissing, UnknownExportOption, UnknownFormat
from oakleaf.ext import find_exporter, formats
from oakleaf.install import install_line
from oakleaf.store import Store
from support.foreign_plugins import Site
from support.sessions import exported

OURS = ["bundle", "events", "finetune", "inspect", "jsonl", "markdown", "otel", "workflow"]
"""The formats that come with the library."""


@pytest.fixture
def talk(store: Store) -> Session:
    session = store.start("support", session_id="ses_talk")
    session.append([user("Where is it?"), assistant("It is lost.")])
    return session


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder beside the store."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


class TestFormats:
    def test_the_bundle_and_those_of_plugins_are_listed(self) -> None:
        assert formats() == sorted({*OURS, *plugins.names(plugins.EXPORTS)})

    @pytest.mark.parametrize("format_", OURS)
    def test_a_path_and_an_open_file_get_the_same_bytes(
        self, talk: Session, folder: Path, format_: str
    ) -> None:
        file = io.BytesIO()
        result = talk.export(file, format_)
        assert isinstance(result, ExportResult)
        assert (result.format, result.bytes) == (format_, len(file.getvalue()))
        assert talk.export(folder / "x", format_) == result
        assert (folder / "x").read_bytes() == file.getvalue()
        assert [path.name for path in folder.iterdir() if path.name.endswith("part")] == []

    def test_an_unknown_format_is_refused_with_all_there_are(self, talk: Session, folder: Path) -> None:
        with pytest.raises(
            UnknownFormat, match=f"no export is called 'pdf'; use one of {', '.join(formats())}"
        ):
            talk.export(folder / "x.pdf", "pdf")
        assert list(folder.iterdir()) == []

    def test_a_page_without_its_plugin_is_named_with_what_to_install(
        self, talk: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        others = [one for one in plugins.providers() if one.name != "html"]
        monkeypatch.setattr(plugins, "providers", lambda: others)
        for path, format_ in (("x", "html"), ("x.html", None)):
            with pytest.raises(PluginMissing) as caught:
                talk.export(folder / path, format_)
            assert install_line("server") in str(caught.value)
        assert "Where is it?" in exported(talk, "markdown")
        assert list(folder.iterdir()) == []


class TestSuffix:
    @pytest.mark.parametrize(
        ("name", "format_"),
        [
            ("x.oakleaf", "bundle"),
            ("x.md", "markdown"),
            ("x.jsonl", "jsonl"),
            ("x.json", "inspect"),
            ("x.relavium.yaml", "workflow"),
        ],
    )
    def test_it_says_which_format_is_meant(
        self, talk: Session, folder: Path, name: str, format_: str
    ) -> None:
        assert talk.export(folder / name, None).format == format_

    @pytest.mark.parametrize("name", ["x", "x.txt", "x.yaml", "md", "x."])
    def test_another_one_is_refused_with_all_formats(self, talk: Session, folder: Path, name: str) -> None:
        with pytest.raises(InvalidArgument, match="bundle, events, finetune"):
            talk.export(folder / name, None)
        assert list(folder.iterdir()) == []

    def test_an_open_file_has_none(self, talk: Session) -> None:
        with pytest.raises(InvalidArgument, match="an open file has no suffix"):
            talk.export(io.BytesIO(), None)


class TestOptions:
    @pytest.mark.parametrize("format_", OURS)
    def test_an_unknown_one_is_refused_with_those_of_the_format(self, talk: Session, format_: str) -> None:
        known = ", ".join(find_exporter(format_).options.__struct_fields__)
        with pytest.raises(
            UnknownExportOption, match=f"the export '{format_}' has no option 'colour'.*{known}"
        ):
            talk.export(io.BytesIO(), format_, colour="red")

    @pytest.mark.parametrize(
        ("format_", "options", "expected"),
        [
            ("markdown", {"lines": "20"}, "lines='20' is invalid; expected int"),
            ("markdown", {"lines": 0}, "lines=0 is invalid; expected a number from 1"),
            ("jsonl", {"redact": 1}, "redact=1 is invalid; expected bool"),
            ("jsonl", {"since": None}, "since=None is invalid; expected int"),
            ("jsonl", {"what": "some"}, "what='some' is invalid; expected path or all"),
            ("bundle", {"blobs": True, "redact": True}, "blobs cannot be searched for secrets"),
        ],
    )
    def test_a_value_of_another_kind_is_refused(
        self, talk: Session, folder: Path, format_: str, options: dict[str, Any], expected: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=expected):
            talk.export(folder / "x", format_, **options)
        assert list(folder.iterdir()) == []

    def test_a_file_that_is_open_for_text_is_refused(self, talk: Session) -> None:
        with pytest.raises(InvalidArgument, match='opened with "wb"'):
            talk.export(io.StringIO(), "markdown")  # type: ignore[call-overload]


CSV = """
    from msgspec import Struct
    from oakleaf.ext import Exporter, read

    class Options(Struct, frozen=True, kw_only=True):
        redact: bool = True
        sign: str = ";"

    class Report(Struct, frozen=True):
        rows: int
        def lines(self):
            yield f"{self.rows} rows"

    def write(session, to, options):
        rows = 0
        for entry in read(session).shared_entries(redact=options.redact):
            to.write(f"{entry.seq}{options.sign}{entry.message.text}\\n".encode())
            rows += 1
        return Report(rows)

    EXPORTER = Exporter(suffix=".csv", write=write, options=Options)
"""
BAD = """
    from oakleaf.ext import Exporter

    def fail(session, to, options):
        to.write(b"half")
        raise KeyError("nothing")

    def write_text(session, to, options):
        to.write("text")

    FAILS = Exporter(suffix=".bad", write=fail)
    WRITES_TEXT = Exporter(suffix=".bad", write=write_text)
    NOTHING = 7
"""


class TestStrangers:
    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        site = Site(tmp_path / "site")
        files = {"tables/__init__.py": "", "tables/csv.py": CSV}
        files["tables/plugin.py"] = 'EXPORTS = {"my-csv": "A table with a row per entry."}'
        site.install("tables", {"exports": {"my-csv": "tables.csv:EXPORTER"}}, files)
        with oakleaf.open(tmp_path / "s.db", secrets=["hidden-word"]) as store:
            session = store.start("support", session_id="ses_talk")
            session.append([user("Where is it?"), assistant("It is lost.")])
        return site

    def export(self, site: Site, *words: str) -> Any:
        return site.run("--store", str(site.folder.parent / "s.db"), "export", "ses_talk", *words)

    def test_the_command_writes_a_format_of_theirs(self, site: Site, tmp_path: Path) -> None:
        table = "1;Where is it?\n2;It is lost.\n"
        shown = " ".join(self.export(site, "--help").out.split())
        assert "my-csv A table with a row per entry." in shown
        done = self.export(site, "--format", "my-csv")
        assert (done.code, done.out, done.err) == (0, table, "2 rows\n")
        done = self.export(site, "--format", "my-csv", "-o", str(tmp_path), "--json")
        assert done.json == {
            "schema_version": 1,
            "path": str(tmp_path / "ses_talk.csv"),
            "rows": 2,
            "bytes": len(table),
        }
        assert (tmp_path / "ses_talk.csv").read_text() == table
        store = str(tmp_path / "s.db")
        assert (
            site.run("--store", store, "export", "ses_talk@1", "--format", "my-csv").out == "1;Where is it?\n"
        )
        refused = self.export(site, "--format", "my-csv", "--blobs")
        assert refused.code == 2
        assert re.search(r"--blobs applies to bundle.*, not to my-csv", refused.err)

    def test_the_suffix_and_the_options_of_theirs_serve_in_python(self, site: Site, tmp_path: Path) -> None:
        done = site.python(f"""
            import oakleaf
            session = oakleaf.open({str(tmp_path / "s.db")!r}).session("ses_talk")
            print(session.export({str(tmp_path / "x.csv")!r}, None, sign=","))
            """)
        assert "format='my-csv', bytes=29" in done.out, done.err
        assert (tmp_path / "x.csv").read_text() == "1,Where is it?\n2,It is lost.\n"

    @pytest.mark.parametrize(
        ("target", "problem"),
        [
            ("bad:FAILS", "writing raised KeyError: 'nothing'"),
            ("bad:WRITES_TEXT", "it writes str, not bytes"),
            ("bad:NOTHING", "it is int, not an Exporter of oakleaf.ext"),
            ("bad:ABSENT", "has no attribute 'ABSENT'"),
            ("worse:EXPORTER", "importing worse raised ZeroDivisionError"),
            ("dotless:EXPORTER", "the suffix 'csv' does not begin with a dot"),
        ],
    )
    def test_a_bad_one_is_named_and_leaves_no_file(
        self, site: Site, tmp_path: Path, target: str, problem: str
    ) -> None:
        dotless = "from oakleaf.ext import Exporter\nEXPORTER = Exporter(suffix='csv', write=print)"
        files = {"bad.py": BAD, "worse.py": "1 / 0", "dotless.py": dotless}
        site.install("strange", {"exports": {"odd": target}}, files)
        done = self.export(site, "--format", "odd", "-o", str(tmp_path / "x.bad"))
        assert done.code == 1
        assert "the export 'odd' of strange 1.0 cannot be used: " in done.err
        assert problem in done.err
        assert "mend or uninstall strange 1.0; everything else works" in done.err
        assert not [path for path in tmp_path.iterdir() if "x.bad" in path.name]
        assert (
            self.export(site, "--format", "my-csv").code
            == self.export(site, "--format", "markdown").code
            == 0
        )

    def test_one_without_words_is_listed_with_its_plugin(self, site: Site) -> None:
        site.install("silent", {"exports": {"mute": "tables.csv:EXPORTER"}})
        site.install("loud", {"exports": {"Odd Name": "tables.csv:EXPORTER"}})
        shown = " ".join(self.export(site, "--help").out.split())
        assert "mute A format of silent 1.0." in shown
        assert "Odd Name A format of loud 1.0." in shown
        assert self.export(site, "--format", "mute").code == 0
