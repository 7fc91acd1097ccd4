"""Labels: names for places of a tree."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

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


class TestLabel:
    def test_names_any_place_of_the_tree_and_moves_nothing(self, server: LocalServer, store: Store) -> None:
        session = start_branched_session(store)
        old_branch, here = (f"{branch.branch}:3" for branch in session.branches())
        before = (session.row.leaf, session.row.totals, [entry.entry_id for entry in session.entries()])
        path = f"/api/sessions/{session.session_id}/labels"
        assert server.post(path, {"at": old_branch, "label": " the  first try "})["label"] == "the first try"
        server.post(path, {"at": "3", "label": "good"})
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
        path = f"/api/sessions/{session.session_id}/labels"
        for label in ("a", "b"):
            server.post(path, {"at": "3", "label": label})
        assert list(read_labels(server, session).values()) == ["b"]
        server.post(path, {"at": "3", "label": None})
        assert read_labels(server, session) == {}

    def test_what_is_no_place_or_too_long_is_refused(self, server: LocalServer, store: Store) -> None:
        path = f"/api/sessions/{start_branched_session(store).session_id}/labels"
        for at in ("0", "99", "99:1", "1:1", "x"):
            server.post(path, {"at": at, "label": "a"}, 404)
        assert "100 characters" in server.post(path, {"at": "3", "label": "x" * 101}, 400)["detail"]

    def test_goes_with_a_bundle_into_any_store(self, server: LocalServer, store: Store) -> None:
        session = start_branched_session(store)
        old_branch = session.branches()[0].branch
        server.post(
            f"/api/sessions/{session.session_id}/labels", {"at": f"{old_branch}:3", "label": "dead end"}
        )
        for redact in (False, True):
            bundle = BytesIO()
            session.export(bundle, redact=redact)
            bundle.seek(0)
            with Store(MemoryStore(), store.runtime) as elsewhere, LocalServer(elsewhere) as there:
                copy = elsewhere.session(elsewhere.import_bundle(bundle).session_id)
                assert read_labels(there, copy) == {f"{copy.branches()[0].branch}:3": "dead end"}

    def test_a_fork_begins_without(self, server: LocalServer, store: Store) -> None:
        session = start_branched_session(store)
        server.post(f"/api/sessions/{session.session_id}/labels", {"at": "3", "label": "mine"})
        assert read_labels(server, session.fork(at=3)) == {}
