"""What people read after a move."""

from __future__ import annotations

from oakleaf.store import Store
from oakleaf.verbs.base import Caller
from oakleaf.verbs.moves import Fork
from support.cli_store import answers, look_up, refund
from support.golden_text import check_golden

NOW = 1_000_000_100_000_000


def test_a_fork_prints_its_id_and_what_is_left_behind(store: Store) -> None:
    case = store.start("support", session_id="ses_case")
    case.send_sync("Where is order 41?", model=answers(), tools=[look_up, refund])
    fork = Fork(session="ses_case@3")
    check_golden("fork", fork, fork.run(Caller(store)), NOW)
