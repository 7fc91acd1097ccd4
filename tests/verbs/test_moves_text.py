"""What people read after a move, a name or a change of settings."""

from __future__ import annotations

import pytest

from oakleaf import Session
from oakleaf.store import Store
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.moves import Fork, Moved, MovedFile, Redo, Rewind, Undo
from oakleaf.verbs.names import Label, Tag, Title
from oakleaf.verbs.settings import ChangeSettings, Compact, Uncompact
from oakleaf.verbs.turns import Cancel, Cancelled
from support.cli_store import answers, look_up, refund
from support.golden_text import check_golden

NOW = 1_000_000_100_000_000


@pytest.fixture
def case(store: Store) -> Session:
    case = store.start("support", session_id="ses_case")
    case.send_sync("Where is order 41?", model=answers(), tools=[look_up, refund])
    return case


def check(name: str, verb: Verb, store: Store) -> None:
    check_golden(name, verb, verb.run(Caller(store)), NOW)


def test_a_fork_prints_its_id_and_what_is_left_behind(store: Store, case: Session) -> None:
    check("fork", Fork(session="ses_case@3"), store)


def test_a_move_prints_the_leaf_and_what_is_left_behind(store: Store, case: Session) -> None:
    check("rewind", Rewind(session="ses_case@3"), store)
    check("redo", Redo(session="ses_case"), store)
    check("undo", Undo(session="ses_case"), store)


def test_a_plan_prints_a_line_for_each_file() -> None:
    files = [
        MovedFile(kind="restore", path="/work/a.txt", reason="", imported=True),
        MovedFile(kind="refused", path="/work/b.txt", reason="it was changed elsewhere", imported=False),
    ]
    rewind = Rewind(session="ses_case@3", files=True)
    planned = Moved(session="ses_case", done=False, leaf="1:7", left_behind=[], files=files)
    check_golden("rewind_plan", rewind, planned, NOW)
    assert rewind.question(planned) == "Restore 1 file and rewind?"
    done = Moved(session="ses_case", leaf="1:3", left_behind=[], files=files, files_summary="1 restored")
    check_golden("rewind_files", rewind, done, NOW)
    left = Moved(session="ses_case", leaf="1:7", left_behind=[], unwritten_files=2)
    check_golden("redo_without_files", Redo(session="ses_case"), left, NOW)


def test_a_compaction_prints_what_the_model_receives(store: Store, case: Session) -> None:
    check("compact", Compact(session="ses_case", summary="Refunded."), store)
    check("uncompact", Uncompact(session="ses_case"), store)


def test_settings_are_printed_in_words(store: Store, case: Session) -> None:
    options = {"temperature": 0, "stop": ["END"]}
    prompt = "Be brief. " * 20
    check("settings", ChangeSettings(session="ses_case", prompt=prompt, options=options), store)


def test_names_are_printed_where_none_is_given(store: Store, case: Session) -> None:
    case.title("Lost \x1b[2Jparcel")
    case.tag(team="blue", order="41")
    case.label(3, "the good one")
    check("title", Title(session="ses_case"), store)
    check("tag", Tag(session="ses_case"), store)
    check("label", Label(session="ses_case"), store)


def test_a_cancel_says_what_became_of_the_turn(store: Store, case: Session) -> None:
    check("cancel_nothing", Cancel(session="ses_case"), store)
    for name, is_cancelled in (("cancel", True), ("cancel_requested", False)):
        result = Cancelled(
            session="ses_case", turn=3, requested=True, cancelled=is_cancelled, status="cancelled"
        )
        check_golden(name, Cancel(session="ses_case"), result, NOW)
