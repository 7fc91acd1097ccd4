"""Labels: names for places of a tree."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest

import oakleaf
from oakleaf import assistant, system, user
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from support.server import LocalServer


@pytest.fixture
def server(store: Store) -> Iterator[LocalServer]:
    with LocalServer(store) as running:
        yield running


def start_branched_session(store: Store) -> oakleaf.Session:
    """Another session first, so that branches have other numbers here than elsewhere; then one with two branches."""
    store.start("other").append([user("hello")])
    session = store.start("support", [system("You help.")])
    session.append([user("Where?"), assistant("Here.")])
    session.rewind(1)
    session.append([user("When?"), assistant("Now.")])
    return session


def read_labels(server: LocalServer, session: oakleaf.Session) -> dict[str, str]:
    labels = server.get(f"/api/sessions/{session.session_id}/labels")["labels"]
    return {one["position"]: one["label"] for one in labels}


def label(server: LocalServer, session: oakleaf.Session, at: str, text: str, status: int = 200) -> Any:
    return server.post(f"/api/sessions/{session.session_id}@{at}/labels", {"text": text}, status)


class TestLabel:
    def test_names_any_place_of_the_tree_and_moves_nothing(self, server: LocalServer, store: Store) -> None:
        session = start_branched_session(store)
        old_branch, here = (f"{branch.branch}:3" for branch in session.branches())
        before = (session.row.leaf, session.row.totals, [entry.entry_id for entry in session.entries()])
        labelled = label(server, session, old_branch, " the  first try ")
        assert labelled["labels"] == {old_branch: "the first try"}
        label(server, session, "3", "good")
        assert read_labels(server, session) == {old_branch: "the first try", here: "good"}
        assert before == (
            session.row.leaf,
            session.row.totals,
            [entry.entry_id for entry in session.entries()],
        )
        assert "first try" not in str(session.messages("anthropic"))

    def test_the_last_word_on_a_place_counts_and_none_takes_it_away(
        self, server: LocalServer, store: Store
    ) -> None:
        session = start_branched_session(store)
        for text in ("a", "b"):
            label(server, session, "3", text)
        assert list(read_labels(server, session).values()) == ["b"]
        label(server, session, "3", "")
        assert read_labels(server, session) == {}

    def test_what_is_no_place_or_too_long_is_refused(self, server: LocalServer, store: Store) -> None:
        session = start_branched_session(store)
        for at in ("0", "99", "99:1", "1:1", "x"):
            label(server, session, at, "a", 404)
        assert "100 characters" in label(server, session, "3", "x" * 101, 400)["detail"]

    def test_goes_with_a_bundle_into_any_store(self, server: LocalServer, store: Store) -> None:
        session = start_branched_session(store)
        old_branch = session.branches()[0].branch
        label(server, session, f"{old_branch}:3", "dead end")
        for redact in (False, True):
            bundle = BytesIO()
            session.export(bundle, redact=redact)
            bundle.seek(0)
            with Store(MemoryStore(), store.runtime) as elsewhere, LocalServer(elsewhere) as there:
                copy = elsewhere.session(elsewhere.import_bundle(bundle).session_id)
                assert read_labels(there, copy) == {f"{copy.branches()[0].branch}:3": "dead end"}

    def test_a_fork_begins_without(self, server: LocalServer, store: Store) -> None:
        session = start_branched_session(store)
        label(server, session, "3", "mine")
        assert read_labels(server, session.fork(at=3)) == {}
