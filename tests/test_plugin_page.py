"""The store of examples/plugin keeps every law of the contract, and docs/plugins.md names all that a plugin may add."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from oakleaf import Store, user
from oakleaf.errors import StoreDamaged, StoreError
from oakleaf.stores.opening import StoreOptions
from oakleaf.testing.stores import StoreConformance
from support.runtime import deterministic_runtime

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/plugins.md").read_text()
SOURCE = ROOT / "examples/plugin/src/acme_oakleaf/store.py"
WRITER = """
import sys
from pathlib import Path
import oakleaf
from page import JsonLinesStore
from oakleaf.log.runtime import real_runtime

session = oakleaf.Store(JsonLinesStore(Path(sys.argv[1])), real_runtime()).start("writer", session_id=sys.argv[2])
for number in range(20):
    session.append([oakleaf.user(f"{sys.argv[2]} {number}")])
"""


def load() -> Any:
    spec = spec_from_file_location("example_store", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "sessions.jsonl"
    example._open.cache_clear()


def open_store(path: Path) -> Store:
    """Open it as another process does: nothing of it is in memory yet."""
    example._open.cache_clear()
    return Store(example.JsonLinesStore(path), deterministic_runtime())


def texts(store: Store) -> list[str]:
    return [entry.message.text for entry in store.session("ses_a").path() if entry.message]


class TestJsonLines(StoreConformance):
    @pytest.fixture(autouse=True)
    def place(self, path: Path) -> None:
        self.path = path

    def open_store(self, space: str = "default", owner: str | None = None) -> Any:
        return example.JsonLinesStore(self.path, space=space, owner=owner)


def test_the_store_has_at_most_150_lines() -> None:
    assert len(SOURCE.read_text().splitlines()) <= 150


def test_the_page_names_every_group_and_every_required_method() -> None:
    from oakleaf.plugins import GROUPS
    from oakleaf.stores.base import StoreBackend

    assert [group for group in GROUPS if f"| `{group}` |" not in PAGE] == []
    assert [name for name in StoreBackend.__abstractmethods__ if f"`{name}`" not in PAGE] == []


def test_two_processes_write_to_one_file(path: Path) -> None:
    script = path.with_name("page.py")
    script.write_text(SOURCE.read_text())
    command = [sys.executable, "-c", WRITER, path]
    writers = [
        subprocess.Popen([*command, name], cwd=path.parent, env={"PYTHONPATH": "."})
        for name in ("ses_a", "ses_b")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    store = open_store(path)
    assert texts(store) == [f"ses_a {number}" for number in range(20)]
    assert list(store.verify()) == []


def test_a_line_that_a_crash_cut_off_counts_for_nothing(path: Path) -> None:
    session = open_store(path).start("a", session_id="ses_a")
    session.append([user("kept")])
    before = path.read_bytes()
    session.append([user("lost")])
    path.write_bytes(path.read_bytes()[:-7])
    store = open_store(path)
    assert texts(store) == ["kept"]
    store.session("ses_a").append([user("again")])
    assert texts(open_store(path)) == ["kept", "again"]
    assert path.read_bytes().startswith(before)


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"entries":[[[1,2],{"seq":"x"}]]}\n', b'{"strange":[]}\n'])
def test_a_line_that_is_none_is_damage(path: Path, line: bytes) -> None:
    open_store(path).start("a", session_id="ses_a")
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(StoreDamaged, match="cannot be read"):
        texts(open_store(path))


def test_an_option_that_it_does_not_know_is_refused(path: Path) -> None:
    with pytest.raises(StoreError, match="has no options"):
        example.open_store(f"jsonl://{path}", space="default", owner=None, options=StoreOptions(key="secret"))
    assert not path.exists()
