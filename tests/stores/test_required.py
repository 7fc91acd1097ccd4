"""A store with nothing but the required methods: what is derived from them obeys the laws, and what is not says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oakleaf import Store, assistant, user
from oakleaf.errors import StoreLacks
from oakleaf.stores.base import StoreBackend
from oakleaf.stores.memory.store import MemoryStore
from support.runtime import deterministic_runtime

REQUIRED = (
    *("create", "latest_or_create", "commit", "lease", "renew", "release", "put_blob"),
    *(
        "session_with_detail",
        "sessions",
        "branches",
        "entries",
        "journal",
        "calls",
        "inherited_calls",
        "blob",
    ),
)


def forward(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    return method


class Forwarding(StoreBackend):
    """Has the required methods of another store, and no others."""

    url = "required:"

    def __init__(self, inner: StoreBackend) -> None:
        self.inner, self.space, self.owner = inner, inner.space, inner.owner


RequiredStore: Any = type("RequiredStore", (Forwarding,), {name: forward(name) for name in REQUIRED})
SUITE = """
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.testing.stores import StoreConformance
from test_required import RequiredStore

class TestRequired(StoreConformance):
    def open_store(self, space="default", owner=None):
        if not hasattr(self, "shared"):
            self.shared = MemoryStore()
        return RequiredStore(self.shared.for_tenant(space, owner))
"""


def test_fifteen_methods_are_required_and_no_others() -> None:
    assert frozenset(REQUIRED) == StoreBackend.__abstractmethods__
    assert len(REQUIRED) == 15


def test_the_suite_says_which_laws_were_checked(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    here = Path(__file__).parent
    path = {"PYTHONPATH": f"{here}:{here.parent}"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
    ]
    done = subprocess.run(
        [*command, "test_suite.py"], cwd=tmp_path, env=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    hold = next(line for line in done.stdout.splitlines() if line.startswith("TestRequired: "))
    assert {"append 14", "branch 10", "create 5", "lease 5"} <= {*hold.partition("hold: ")[2].split(", ")}
    for deed in ("delete sessions", "import sessions", "save drafts"):
        assert f"not checked, because the store cannot {deed}" in done.stdout


class TestWithoutCapabilities:
    @pytest.fixture
    def store(self) -> Store:
        return Store(RequiredStore(MemoryStore()), deterministic_runtime())

    def test_an_agent_runs_forks_and_is_found(self, store: Store) -> None:
        session = store.start("support")
        with session.turn("Where is order 41?") as turn:
            turn.answer(assistant("It is lost."))
        fork = session.fork(at=1)
        fork.append([assistant("It is found.")])
        assert [entry.message.text for entry in fork.path() if entry.message] == [
            "Where is order 41?",
            "It is found.",
        ]
        assert [hit.session_id for hit in store.search("lost").hits] == [session.session_id]
        assert list(store.verify()) == []

    def test_a_missing_capability_is_refused_in_words(self, store: Store) -> None:
        session = store.start("support")
        session.append([user("hello")])
        with pytest.raises(
            StoreLacks, match=r"required: cannot delete sessions: .* nothing was done; use another store"
        ):
            store.delete(session.session_id)
        with pytest.raises(StoreLacks, match="cannot import sessions"):
            store.copy(session, store, new_id=True)

    def test_sessions_can_be_copied_to_another_store(self, store: Store) -> None:
        session = store.start("support", [user("seed")])
        session.append([user("hello"), assistant("there")])
        elsewhere = Store(MemoryStore(), deterministic_runtime())
        copied = store.copy(session.fork(at=2), elsewhere)
        assert [entry.message.text for entry in copied.path() if entry.message] == ["seed", "hello"]
        assert copied.verify() == []
