"""Laws that hold for the source of every tool: equal to an independent count, twice adds nothing, growth, damage."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oakleaf
from oakleaf.errors import OakleafError
from support import tool_sources
from support.forged_bundles import read_with_every_verb
from support.import_sources import (
    SECRETS,
    assert_masked,
    assert_survived,
    entries_of,
    file_contents,
    import_all,
    mangle,
    mangled_records,
    memory_store,
    with_secrets,
)
from support.random_logs import SOAK
from support.tool_sources import ToolSource, stored_counts

SOURCES: list[ToolSource] = [
    import_module(f"support.tool_sources.{module.name}").SOURCE
    for module in iter_modules(tool_sources.__path__)
]
each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.tool)


@each_source
class TestASource:
    def test_equals_an_independent_count_of_its_files(self, source: ToolSource, tmp_path: Path) -> None:
        place = source.write(tmp_path / "in", source.sample)
        with memory_store() as store:
            import_all(store, source.tool, place)
            assert stored_counts(store) == source.count(place)

    def test_has_its_secrets_masked_in_every_field_and_in_the_report(
        self, source: ToolSource, tmp_path: Path
    ) -> None:
        place = source.write(tmp_path / "in", with_secrets(source.sample))
        path = tmp_path / "s.db"
        with oakleaf.open(path, secrets={"TOKEN": SECRETS[0]}, synchronous="normal") as store:
            reports = list(store.import_from(source.tool, str(place)))
            assert [report.error for report in reports] == [None] * len(reports)
            assert list(store.verify()) == []
        assert_masked(path, reports)

    def test_is_not_changed_and_adds_nothing_the_second_time(
        self, source: ToolSource, tmp_path: Path
    ) -> None:
        place = source.write(tmp_path / "in", source.sample)
        before = file_contents(tmp_path / "in")
        with memory_store() as store:
            import_all(store, source.tool, place)
            counts = stored_counts(store)
            again = import_all(store, source.tool, place)
            assert [(report.entries, report.added, report.error) for report in again] == [
                (0, (), None)
            ] * len(again)
            assert stored_counts(store) == counts
        assert file_contents(tmp_path / "in") == before

    def test_names_the_tool_and_keeps_the_times(self, source: ToolSource, tmp_path: Path) -> None:
        place = source.write(tmp_path / "in", source.sample)
        with memory_store() as store:
            for report in import_all(store, source.tool, place):
                assert store.backend.session(report.session_id).tags["imported_from"] == source.tool
                times = [entry.at for entry in entries_of(store.session(report.session_id))]
                assert times == sorted(times)
                if source.has_times:
                    assert all(1_772_359_200_000_000 <= at < 1_772_370_000_000_000 for at in times)

    def test_counts_what_it_does_not_know_and_keeps_it_as_a_note(
        self, source: ToolSource, tmp_path: Path
    ) -> None:
        place = source.write(tmp_path / "in", source.sample)
        with memory_store() as store:
            reports = import_all(store, source.tool, place)
            unknown = [report.losses.get("an item of unknown kind, kept as a note") for report in reports]
            assert sum(loss.count for loss in unknown if loss) == 1
            notes = [
                stored.entry.body
                for report in reports
                for name in (report.session_id, *report.added[1:])
                for stored in store.backend.entries(name)
                if stored.entry.kind == "note"
            ]
            assert any(b"hologram" in note for note in notes)

    def test_grows_into_the_same_as_one_import(self, source: ToolSource, tmp_path: Path) -> None:
        with memory_store() as growing, memory_store() as whole:
            for number, records in enumerate(source.states()):
                place = source.write(tmp_path / str(number), records)
                for report in growing.import_from(source.tool, str(place)):
                    assert report.error is None or "no messages" in report.error, report.error
            import_all(whole, source.tool, place)
            assert stored_counts(growing) == stored_counts(whole)
            for row in whole.all_sessions(limit=500):
                grown, at_once = (store.session(row.session_id) for store in (growing, whole))
                assert [e.entry_id for e in entries_of(grown)] == [e.entry_id for e in entries_of(at_once)]

    def test_whatever_was_imported_of_a_mangled_one_every_verb_can_read(
        self, source: ToolSource, tmp_path: Path
    ) -> None:
        imported = 0
        for seed in range(3_000 // len(SOURCES) if SOAK else 3):
            place = source.write(tmp_path / str(seed), mangle(source.sample, Random(seed)))
            with memory_store() as store:
                with suppress(OakleafError):  # refused, with a reason
                    imported += sum(not report.error for report in store.import_from(source.tool, str(place)))
                read_with_every_verb(store)
        assert imported

    @settings(max_examples=2_000 if SOAK else 12)
    @given(data=st.data())
    def test_however_mangled_gives_sound_sessions_or_a_reason(
        self, source: ToolSource, data: st.DataObject
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            records = data.draw(mangled_records(source.sample))
            assert_survived(source.tool, source.write(Path(folder, "in"), records))

    @settings(max_examples=1_000 if SOAK else 7)
    @given(data=st.data())
    def test_however_cut_gives_sound_sessions_or_a_reason(
        self, source: ToolSource, data: st.DataObject
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = source.write(Path(folder, "in"), source.sample)
            files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            path = data.draw(st.sampled_from(files))
            body = path.read_bytes()
            start = data.draw(st.integers(0, len(body)))
            path.write_bytes(body[:start] + body[start + data.draw(st.integers(1, 40)) :])
            assert_survived(source.tool, place)
