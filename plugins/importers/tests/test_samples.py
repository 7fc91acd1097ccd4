"""A sample of each format and version, as the files a tool writes, with the sessions that they are: read, and mangled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oakleaf.core.entries import Compaction
from oakleaf.errors import OakleafError
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf_importers.session_records import NEWER_FORMAT
from support.import_sources import assert_survived, file_contents, import_all, memory_store
from support.random_logs import SOAK

SAMPLES = sorted(path for path in (Path(__file__).parent / "samples").iterdir() if path.is_dir())
AT_REST = 1_772_360_000
each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)


def expected_of(sample: Path) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((sample / "expected.json").read_text())
    return expected


def copied(sample: Path, folder: Path) -> Path:
    """Return a copy of the source whose files are at rest: of one that is being written the last answer waits."""
    place = shutil.copytree(sample / "source", folder / "source")
    for path in files_in(place):
        os.utime(path, (AT_REST, AT_REST))
    return folder / expected_of(sample)["source"]


def files_in(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())


def stored_ids(store: Store) -> set[tuple[str, bytes]]:
    names = [row.session_id for row in store.all_sessions(limit=100)]
    return {(name, stored.entry.entry_id) for name in names for stored in store.backend.entries(name)}


def as_nobody(folder: Path, tool: str, place: Path) -> str:
    """Return the output of an import by a user who may read nothing of root's; the tests' own user, if that is not root."""
    script = (
        "import os, sys, oakleaf\n"
        "tool, place = sys.argv[1:]; store = oakleaf.open('memory:')\n"
        "os.getuid() or list(store.import_from(tool, place))\n"  # imports what nobody may not read
        "os.getuid() or os.setuid(65534)\n"
        "try: print(*(loss for report in store.import_from(tool, place) for loss in report.losses))\n"
        "except oakleaf.OakleafError as error: print(error)\n"
    )
    command = [sys.executable, "-c", script, tool, str(place)]
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.getuid() and parent.is_relative_to(tempfile.gettempdir()):
            parent.chmod(0o755)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def entries(session: Session) -> list[list[Any]]:
    """Return the entries of the path, as short as they can be compared."""
    listed = []
    for entry in session.path():
        row: list[Any] = [entry.role or entry.kind]
        if entry.message is not None:
            row += [entry.message.text] if entry.message.text else []
            row += [{"call": call.name, "arguments": call.arguments} for call in entry.message.calls]
            row += [
                {"result": result.text, "error": result.error, "of": result.call_id}
                for result in entry.message.results
            ]
            row += [media.mime for media in entry.message.media]
        elif isinstance(entry.payload, Compaction):
            row.append(entry.payload.summary)
        listed.append(row)
    return listed


def shown(store: Store, tool: str, place: Path) -> dict[str, Any]:
    reports = import_all(store, tool, place)
    sessions = []
    for row in sorted(store.all_sessions(limit=100), key=lambda row: row.session_id):
        session = store.session(row.session_id)
        usage = session.usage()
        about = {"session_id": row.session_id, "title": row.title, "parent": row.parent_session}
        counts = {"calls": usage.calls, "input": usage.input_tokens, "output": usage.output_tokens}
        sessions.append(
            {
                **about,
                "branches": len(session.branches()),
                "model": row.model,
                "usage": counts,
                "entries": entries(session),
            }
        )
    losses: dict[str, int] = {}
    for report in reports:
        for description, loss in report.losses.items():
            losses[description] = losses.get(description, 0) + loss.count
    misread = sum(report.misread for report in reports)
    return {"losses": losses, "misread": misread, "sessions": sessions}


@each_sample
class TestASample:
    def test_is_the_expected_sessions(self, sample: Path, tmp_path: Path) -> None:
        expected = expected_of(sample)
        with memory_store() as store:
            read = shown(store, expected["tool"], copied(sample, tmp_path))
        assert {"tool": expected["tool"], "source": expected["source"], **read} == expected

    def test_that_shrinks_takes_nothing_from_the_sessions(self, sample: Path, tmp_path: Path) -> None:
        tool, place = expected_of(sample)["tool"], copied(sample, tmp_path)
        with memory_store() as store:
            import_all(store, tool, place)
            before = stored_ids(store)
            for path in files_in(place):
                whole = path.read_bytes()
                for size in (len(whole) // 2, 0):
                    path.write_bytes(whole[:size])
                    with suppress(OakleafError):
                        list(store.import_from(tool, str(place)))
                    assert before <= stored_ids(store)
                    assert list(store.verify()) == []
                path.write_bytes(whole)

    @settings(max_examples=2_000 if SOAK else 6)
    @given(data=st.data())
    def test_with_bytes_changed_is_sound_or_refused(self, sample: Path, data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = copied(sample, Path(folder))
            path = data.draw(st.sampled_from(files_in(place)))
            body = bytearray(path.read_bytes())
            for _ in range(data.draw(st.integers(1, 4))):
                start = data.draw(st.integers(0, len(body)))
                end = start + data.draw(st.sampled_from((0, 1, 8, 100, 4_096)))
                body[start:end] = data.draw(st.binary(max_size=8))
            path.write_bytes(body)
            os.utime(path, (AT_REST, AT_REST))
            assert_survived(expected_of(sample)["tool"], place)

    def test_of_another_user_is_refused_or_counted(self, sample: Path, tmp_path: Path) -> None:
        """A folder that may not be read was said to be empty."""
        place = copied(sample, tmp_path)
        before = file_contents(tmp_path)
        for path in (place, *[each for each in place.rglob("*") if each.is_dir()]):
            mode = path.stat().st_mode
            path.chmod(0)
            done = as_nobody(tmp_path, expected_of(sample)["tool"], place)
            path.chmod(mode)
            assert "may not" in done, done
            assert "Traceback" not in done
        assert file_contents(tmp_path) == before


class TestANewerFormat:
    @pytest.mark.parametrize(
        ("sample", "old", "new"),
        [
            ("pi-3", '"version": 3', '"version": 4'),
            ("droid-2", '"version": 2', '"version": 3'),
            ("cline-4.1", '"version": 1', '"version": 2'),
            ("inspect-2", '"version": 2', '"version": 3'),
            ("codex-0.90", '"cwd"', '"history_mode": "woven", "cwd"'),
        ],
    )
    def test_is_read_and_counted(self, tmp_path: Path, sample: str, old: str, new: str) -> None:
        folder = Path(__file__).parent / "samples" / sample
        place = copied(folder, tmp_path)
        for path in files_in(place):
            if path.suffix in (".json", ".jsonl"):
                path.write_text(path.read_text().replace(old, new, 1))
                os.utime(path, (AT_REST, AT_REST))
        with memory_store() as store:
            read = shown(store, expected_of(folder)["tool"], place)
        assert NEWER_FORMAT in read["losses"]
        assert read["sessions"] == expected_of(folder)["sessions"]
