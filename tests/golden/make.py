"""Makes the golden bundles and the golden store of the present format. One that exists is never written again: old data is sacred."""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from oakleaf import Attachment, Note, Session, ToolCall, Usage, assistant, system, tool_result, user  # noqa: E402
from oakleaf.bundle.lines import FORMAT  # noqa: E402
from oakleaf.core.drafts import Draft  # noqa: E402
from oakleaf.core.entries import Evidence  # noqa: E402
from oakleaf.store import Store  # noqa: E402
from oakleaf.stores.memory.store import MemoryStore  # noqa: E402
from oakleaf.stores.sqlite.file import FORMAT as STORE_FORMAT  # noqa: E402
from oakleaf.stores.sqlite.store import SqliteStore  # noqa: E402
from support.runtime import deterministic_runtime  # noqa: E402


def plain(store: Store) -> Session:
    session = store.start(
        "support", [system("You help customers.")], title="Lost parcel", tags={"team": "post"}
    )
    with session.turn("Where is order 41?", model="anthropic:claude") as turn:
        call = ToolCall("toolu_1", "find", {"order": 41, "also": [1.5, None, "größe ☃"]})
        turn.answer(assistant("Let me look.", call), usage=Usage(120, 18, 100, 0), provider="anthropic")
        turn.result("toolu_1", {"status": "lost"}, state={"order": {"id": 41, "status": "lost"}})
        turn.answer(assistant("It is lost. Sorry."), usage=Usage(160, 9))
    return session


def tree(store: Store) -> Session:
    """A fork of a fork with everything a bundle may hold; its ancestors come along as far as it stands on them."""
    root = plain(store)
    root.append(
        [user("See", Attachment(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 2, "image/png", "parcel.png"))]
    )
    root.append([assistant("I see it."), Note({"seen": "nul \0 and \u202e"}, {"seen": True})])
    middle = root.fork(model="other:model", prompt="Be brief.")
    middle.append(
        [user("Refund it"), assistant(ToolCall("c1", "refund"), ToolCall("c2", "mail", malformed="{"))]
    )
    middle.append([tool_result("c2", "no", error=True), tool_result("c1", "done", ends_turn=True)])
    fork = middle.fork(title="What if")
    fork.compact("A parcel was lost and refunded.", files_read=["orders/41"])
    proof = Evidence("anthropic", {"0": {"signature": "never in a bundle"}})
    fork.log.append([Draft(user("Thanks")), Draft(assistant("Gladly."), "other:model", "end_turn", proof)])
    fork.uncompact()
    fork.rewind(9, summary="They thanked us.")
    with fork.turn("Once more", model="openai:gpt") as turn:
        turn.failed("overloaded")
    child = store.start_task(fork, "searcher", [user("Search the depot")], spec={"name": "searcher"})
    child.append([user("go"), assistant("Nothing there.")])
    fork.enqueue("and hurry")
    return fork


def store_bytes() -> bytes:
    """A SQLite store with the same tree, searched once so that its index is filled, as gzip keeps it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "store.db"
        with Store(SqliteStore(place), deterministic_runtime()) as sessions:
            tree(sessions)
            sessions.search("parcel")
            sessions.backend.backup(
                Path(folder) / "whole.db"
            )  # one file, nothing left in the write-ahead log
        return gzip.compress((Path(folder) / "whole.db").read_bytes(), mtime=0)


if __name__ == "__main__":
    for name, make, blobs in (("plain", plain, False), ("tree", tree, True)):
        place = HERE / f"{name}-{FORMAT}.oakleaf"
        if not place.exists():
            make(Store(MemoryStore(), deterministic_runtime())).export(place, blobs=blobs)
            place.chmod(0o644)
            print(f"made {place.name}")
    golden_store = HERE / f"store-{STORE_FORMAT // 1_000}.{STORE_FORMAT % 1_000}.db.gz"
    if not golden_store.exists():
        golden_store.write_bytes(store_bytes())
