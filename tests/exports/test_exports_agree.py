"""Every store exports the same bytes. What an export says is tested once, in `exports/`, on the store in memory."""

from __future__ import annotations

from oakleaf.store import Store
from support.import_sources import memory_store
from support.sample_store import BUILD, CASE, build, case
from support.sessions import exported


def exports(store: Store) -> dict[str, list[str]]:
    """Everything that is written of a session that our loop ran, and of one with every kind of entry and branch."""
    case(store)
    build(store)
    return {
        name: [
            *(exported(session, "markdown"), exported(session, "jsonl"), exported(session, "events")),
            *(exported(session, "finetune"), exported(session, "workflow"), exported(session, "inspect")),
            exported(session, "otel", content=True),
        ]
        for name in (CASE, BUILD)
        for session in [store.session(name)]
    }


def test_every_export_is_the_same_on_every_store(store: Store) -> None:
    with memory_store() as memory:
        assert exports(store) == exports(memory)
