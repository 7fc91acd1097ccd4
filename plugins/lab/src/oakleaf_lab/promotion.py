"""Promote a recorded turn or session to a regression case: a bundle and a readable expectation next to it.

The bundle ends with the promoted turn, so later turns of the session stay out of the repository, and is redacted like one
for sharing unless that is declined. The expectation is read from the bundle as written, so the two agree. The same source
gives the same bytes. The source is only read.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from oakleaf import BundleExportResult, Session
from oakleaf.core.turn_reader import TurnView, message_text, read_turns
from oakleaf.core.turns import is_completed
from oakleaf.ext import atomic_file, excerpt, scratch_store
from oakleaf_lab.case_file import (
    FORMAT,
    SUFFIX,
    Case,
    CaseReplay,
    ExpectedCall,
    ExpectedTurn,
    call_text,
    write_case,
)
from oakleaf_lab.errors import AttachmentsMissing, CaseExists, NothingExpected, NothingToPromote
from oakleaf_lab.regression import judge_turn

MAX_INPUT = 200
"""The characters of an input that the case shows its reader."""


class Expectation(Struct, frozen=True, kw_only=True):
    """The expectations of the promoted turns beside the recording."""

    tools: bool = True
    """Whether they must make the recorded calls."""
    never_calls: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    never_says: tuple[str, ...] = ()
    scorers: tuple[str, ...] = ()
    """As a case names them, their files relative to the folder of the case."""


class Promotion(Struct, frozen=True):
    """A written case."""

    name: str
    case: str
    bundle: str
    turns: int
    redactions: dict[str, int]
    """How often each secret was masked in the bundle."""
    bytes: int
    unmet: tuple[str, ...] = ()
    """What the recording itself does not meet: the case fails until a model or a prompt does better."""


class _Bundle(Struct, frozen=True):
    """A written bundle, and a reader's view of the bundle."""

    data: bytes
    result: BundleExportResult
    turns: tuple[TurnView, ...]
    """Those that the case is about."""
    answered: frozenset[int]
    """Those that have a final answer, by the entry of their input."""
    start: int
    """The entries before them."""
    session_id: str


def promote(
    session: Session,
    folder: str | os.PathLike[str],
    *,
    at: int | None = None,
    name: str | None = None,
    says: Sequence[str] = (),
    never_says: Sequence[str] = (),
    never_calls: Sequence[str] = (),
    scorers: Sequence[str] = (),
    tools: bool = True,
    redact: bool = True,
    blobs: bool = False,
    overwrite: bool = False,
) -> Promotion:
    """Write the turn with entry `at`, or every turn, as a regression case: a bundle and expectations.

    The case expects the recorded tool calls, unless `tools=False`, and what is named here; see docs/testing.md.
    """
    expectation = Expectation(
        tools=tools,
        never_calls=tuple(never_calls),
        says=tuple(says),
        never_says=tuple(never_says),
        scorers=tuple(scorers),
    )
    turns = _turns(session, at)
    bundle = _bundle(session, turns, redact=redact, blobs=blobs)
    name = name or _slug(message_text(bundle.turns[-1].input)) or bundle.session_id
    last = bundle.turns[-1]
    expected = tuple(
        _expected_turn(turn, expectation, is_answered=turn.turn in bundle.answered, is_last=turn is last)
        for turn in bundle.turns
    )
    if last.turn not in bundle.answered and not expected[-1].has_expectations:
        raise NothingExpected(session.session_id, last.turn, is_last=last.last == session.leaf.seq)
    case = Case(FORMAT, f"{name}.oakleaf", bundle.start, CaseReplay(), expected)
    place = "" if at is None else f" at entry {at}"
    text = write_case(
        case,
        origin=f"Promoted from {bundle.session_id}{place}.",
        answers={turn.turn: _answer(turn) for turn in bundle.turns if turn.turn in bundle.answered},
    )
    case_path, bundle_path = Path(folder) / f"{name}{SUFFIX}", Path(folder) / case.bundle
    _write({bundle_path: bundle.data, case_path: text.encode()}, overwrite=overwrite)
    unmet = [
        failure.text
        for expected, turn in zip(case.turn, bundle.turns, strict=True)
        for failure in judge_turn(expected, turn)
    ]
    return Promotion(
        name,
        str(case_path),
        str(bundle_path),
        len(case.turn),
        dict(bundle.result.redactions),
        len(bundle.data),
        tuple(unmet),
    )


def _turns(session: Session, at: int | None) -> list[TurnView]:
    """Return the turns to promote, complete turns only: a replay cannot give the result of an open call."""
    turns = read_turns(session.path())
    selection = [turn for turn in turns if at is None or turn.turn <= at <= turn.last]
    if not selection:
        raise NothingToPromote(session.session_id, at, [turn.turn for turn in turns])
    if any(view.result is None for step in selection[-1].steps[-1:] for view in step.calls):
        raise NothingToPromote(session.session_id, at, [], "the last tool calls of the turn have no results")
    return selection


def _bundle(session: Session, turns: list[TurnView], *, redact: bool, blobs: bool) -> _Bundle:
    """Export the session up to the last turn, and read the redacted bundle again."""
    last = turns[-1].last
    is_whole = last == session.leaf.seq and len(session.branches()) == 1
    file = io.BytesIO()
    result = (session if is_whole else excerpt(session, last)).export(file, redact=redact, blobs=blobs)
    data = file.getvalue()
    store = scratch_store()
    session_id = store.import_bundle(io.BytesIO(data)).session_id
    first, entries = turns[0].turn, store.session(session_id).path()
    media = {media for entry in entries[first - 1 :] if entry.message for media in entry.message.media}
    if missing := len({one.hash for one in media if store.blob(one.hash) is None}):
        raise AttachmentsMissing(session.session_id, missing, is_left_out=not blobs)
    bundle_turns = tuple(turn for turn in read_turns(entries) if turn.turn >= first)
    answered = frozenset(
        turn.turn for turn in bundle_turns if is_completed(entries[turn.turn - 1 : turn.last])
    )
    return _Bundle(data, result.report, bundle_turns, answered, first - 1, session_id)


def _expected_turn(
    turn: TurnView, expectation: Expectation, *, is_answered: bool, is_last: bool
) -> ExpectedTurn:
    """Expect the recorded calls of a turn unless a call is forbidden; expect the given texts of the last turn.

    The calls of a turn without an answer are not all that it was going to make, so they are not expected.
    """
    calls = [view.call for step in turn.steps for view in step.calls]
    forbidden = [ExpectedCall.parse(text) for text in expectation.never_calls]
    is_forbidden = any(pattern.matches(call) for pattern in forbidden for call in calls)
    text = message_text(turn.input)
    return ExpectedTurn(
        seq=turn.turn,
        input=text if len(text) <= MAX_INPUT else f"{text[:MAX_INPUT]}…",
        tools=tuple(map(call_text, calls))
        if expectation.tools and is_answered and not is_forbidden
        else None,
        never_calls=expectation.never_calls,
        says=expectation.says if is_last else (),
        never_says=expectation.never_says,
        scorers=expectation.scorers,
    )


def _answer(turn: TurnView) -> str:
    return message_text(turn.steps[-1].message) if turn.steps else ""


def _write(files: dict[Path, bytes], *, overwrite: bool) -> None:
    if not overwrite and (present := next((path for path in files if path.exists()), None)) is not None:
        raise CaseExists(str(present))
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            file.write(data)


def _slug(text: str) -> str:
    """Return a file name from the first words of a text."""
    words = re.findall(r"[a-z0-9]+", text.lower())[:7]
    return "-".join(words)[:50].rstrip("-")
