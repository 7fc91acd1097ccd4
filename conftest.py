"""Fixtures for every kind of store, with a deterministic clock and deterministic ids."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from oakleaf import Session, system
from oakleaf.store import Store
from oakleaf.stores.base import StoreBackend
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.stores.sqlite.store import SqliteStore
from support.all_stores import ALL_STORES, HAS_POSTGRES
from support.cli_store import write_store
from support.runtime import deterministic_runtime
from support.soak import SOAK

if TYPE_CHECKING:
    from support.situations import Situation

# Containers often disable bytecode files; then every process the tests start spends most of its time compiling.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["OAKLEAF_CONFIG"] = os.devnull  # not that of whoever runs the tests
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # started in the background; every process would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The short form draws the same examples every time, so that a commit passes or fails; the long form draws new ones.
settings.register_profile("oakleaf", deadline=None, max_examples=2_000 if SOAK else 25, derandomize=not SOAK)
settings.load_profile("oakleaf")


pytest_plugins = ["support.postgres_fixtures"] if HAS_POSTGRES else []


def pytest_xdist_auto_num_workers() -> int:
    """Return one more than the number of cores: tests spend a quarter of their time waiting for processes and disks."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def pytest_collection_finish() -> None:
    """Keep the objects of five thousand collected tests out of every later garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=ALL_STORES if SOAK else ["sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store for the tests above the store contract: SQLite, and in the long form every store that is installed."""
    yield from open_test_store(request, tmp_path)


@pytest.fixture(params=ALL_STORES)
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Every store that is installed, for the tests of what a store promises."""
    yield from open_test_store(request, tmp_path)


def open_test_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    match request.param:
        case "memory":
            backend: StoreBackend = MemoryStore()
        case "sqlite":
            backend = SqliteStore(tmp_path / "agent.db", synchronous="normal")
        case _:
            yield Store(request.getfixturevalue("postgres_store"), deterministic_runtime())
            return
    with Store(backend, deterministic_runtime()) as sessions:
        yield sessions


@pytest.fixture
def session(store: Store) -> Session:
    return store.start("support", [system("You help.")])


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """The file of the sample store that the commands read."""
    return write_store(tmp_path / "s.db")


@pytest.fixture
def situation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Situation:
    """A folder with the sample store and a scripted model, in which commands run."""
    from support.situations import situation_in  # it needs the command line's packages

    return situation_in(tmp_path, monkeypatch, capsys)
