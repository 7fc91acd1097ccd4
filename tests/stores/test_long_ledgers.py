"""The calls of some entries of a long ledger are those that a look at every call finds, by whatever index a store has."""

from __future__ import annotations

from pathlib import Path
from random import Random

import apsw
import pytest

import oakleaf
from oakleaf import Store, assistant, user
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import ModelCallDropped, ModelCallStarted
from oakleaf.core.usage import Call, Usage, total


@pytest.mark.parametrize("seed", range(4))
def test_of_any_session(seed: int, store: Store) -> None:
    check_any_session(store, Random(seed))


def test_sqlite_has_blocks_of_calls(tmp_path: Path) -> None:
    with oakleaf.open(tmp_path / "s.db", synchronous="normal") as store:
        check_any_session(store, Random(5))
    connection = apsw.Connection(str(tmp_path / "s.db"))
    assert connection.execute("select count(*) from usage_block").get > 0
    connection.close()


def check_any_session(store: Store, random: Random) -> None:
    """With rewinds, calls that failed or were answered late, and calls that were announced and not made."""
    session = store.start("a", session_id="ses_a")
    log = session.log
    for n in range(60):
        at = session.leaf.seq
        calls = [Call(f"c{n}-{m}", 0, at + m, at + m + 1, 1, Usage(1, 1)) for m in range(1, 20, 2)]
        messages = [draft for m in range(10) for draft in (Draft(user("q")), Draft(assistant("a")))]
        log.append(messages, calls=calls)
        started = Call(f"s{n}", 0, session.leaf.seq, None, 1)
        log.record(ModelCallStarted(), calls=[started], key=None)
        if random.random() < 0.5:
            log.record(ModelCallDropped(started.call_id), drops_call=started.call_id)
        if random.random() < 0.2:
            session.rewind(random.randrange(session.leaf.seq))
    branches = [branch.branch for branch in session.branches()]
    recorded = store.backend.calls("ses_a")
    check(store, branches, recorded, random)
    late = next(call for call in recorded if call.call_id.startswith("s"))
    log.record(ModelCallStarted(), calls=[late], replaces_call=True)
    check(store, branches, store.backend.calls("ses_a"), random)
    fork = session.fork(at=session.leaf.seq // 2)
    assert fork.usage("path") == total(fork.model_calls("path"))


def check(store: oakleaf.Store, branches: list[int], recorded: list[Call], random: Random) -> None:
    for branch in branches:
        first = random.randrange(400)
        last = first + random.randrange(200)
        found = [call for call in recorded if call.branch == branch and first <= call.seq <= last]
        assert store.backend.calls_between("ses_a", branch, first, last) == found
        answers = [c for c in recorded if c.branch == branch and c.answer_seq is not None and c.seq <= last]
        latest = store.backend.latest_answer_call("ses_a", branch, last)
        assert latest == (answers[-1] if answers else None)
