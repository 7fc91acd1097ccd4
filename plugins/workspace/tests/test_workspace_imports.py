"""What an import says of folders, tiers and open writes widens nothing here."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

import oakleaf_workspace
from oakleaf import ScriptedModel, Session, ToolCall, Workspace, assistant, user
from oakleaf.errors import ImportNotAccepted
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore

pytestmark = pytest.mark.attack


@pytest.fixture
def elsewhere() -> Iterator[Store]:
    with Store(MemoryStore()) as store:
        yield store


def taken_in(session: Session, store: Store, **options: bool) -> Session:
    bundle = io.BytesIO()
    session.export(bundle)
    bundle.seek(0)
    return store.session(store.import_bundle(bundle, **options).session_id)


def test_a_folder_and_tier_of_a_bundle_do_not_widen_what_tools_may_do(
    store: Store, elsewhere: Store, tmp_path: Path
) -> None:
    full = Workspace(working_dir="/", fs_scope_tier="full")
    original = elsewhere.start(workspace=full, spec={"workspace": "/", "scope": "full"})
    calls = [ToolCall(f"c{n}", "read_file", {"path": path}) for n, path in enumerate(("/etc/passwd", "a"))]
    original.append([user("q"), assistant(*calls)])
    (tmp_path / "a").write_text("ours")
    session = taken_in(original, store)
    here = oakleaf_workspace.tools(session, Workspace(working_dir=str(tmp_path)))
    session.resume_sync(model=ScriptedModel(["done"]), tools=here)
    results = [r for entry in session.path() if entry.message for r in entry.message.results]
    assert {result.call_id: result.error for result in results} == {"c0": True, "c1": False}


def test_an_open_write_of_a_bundle_needs_to_be_accepted(
    store: Store, elsewhere: Store, tmp_path: Path
) -> None:
    original = elsewhere.start()
    write = ToolCall("c", "write_file", {"path": "Makefile", "text": "all: ; evil"})
    original.append([user("q"), assistant(write)])
    session = taken_in(original, store)
    here = oakleaf_workspace.tools(session, Workspace(working_dir=str(tmp_path)))
    with pytest.raises(ImportNotAccepted, match="Makefile"):
        session.resume_sync(model=ScriptedModel(["never"]), tools=here)
    assert list(tmp_path.glob("Makefile")) == []
