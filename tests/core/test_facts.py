"""The facts of a journal: kinds, bodies, and where the names of kinds may stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import oakleaf
from oakleaf import user
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import (
    Approved,
    Fact,
    KnownFact,
    Moved,
    PluginFact,
    ToolCallsStarted,
    Trigger,
    TurnLeft,
    TurnStarted,
    UnknownFact,
    decode_fact,
    encode_fact,
    kind_of,
)
from oakleaf.errors import InvalidArgument, NotJson
from support.paths import ROOT

TYPES: tuple[type[Fact], ...] = get_args(KnownFact)
KINDS = {kind_of(type_) for type_ in TYPES}
WORDS = {"approved", "bound", "denied", "imported", "moved", "started", "tagged", "task_decided"}
"""Kinds that are words of other things too."""


class TestCodec:
    def test_every_type_has_an_own_kind(self) -> None:
        assert len(KINDS) == len(TYPES)
        assert set(TYPES) == set(Fact.__subclasses__())

    @pytest.mark.parametrize(
        ("fact", "body"),
        [
            (Moved((1, 2), is_redo=True), b'{"from":[1,2],"is_redo":true}'),
            (TurnLeft(4, "waiting", queue="q"), b'{"turn":4,"status":"waiting","queue":"q"}'),
            (TurnStarted(2, Trigger("email")), b'{"turn":2,"trigger":{"type":"email"}}'),
            (ToolCallsStarted(3, (0, 1)), b'{"seq":3,"indexes":[0,1]}'),
            (Approved(3, 0), b'{"seq":3,"index":0}'),
        ],
    )
    def test_a_body_holds_the_fields_without_defaults(self, fact: Fact, body: bytes) -> None:
        assert encode_fact(fact) == (kind_of(fact), body)
        assert decode_fact(kind_of(fact), body) == fact

    def test_an_unknown_kind_keeps_the_bytes(self) -> None:
        assert decode_fact("quantum", b'{ "x": 1}') == UnknownFact("quantum", b'{ "x": 1}')

    def test_an_unknown_field_is_no_error(self) -> None:
        assert decode_fact("approved", b'{"seq":3,"index":0,"mood":"blue"}') == Approved(3, 0)

    @pytest.mark.parametrize("body", [b'{"seq":3}', b'{"seq":3,"index":"0"}', b"[]", b'{"seq":-1,"index":0}'])
    def test_a_field_of_another_shape_is_refused(self, body: bytes) -> None:
        with pytest.raises(msgspec.ValidationError):
            decode_fact("approved", body)


class TestWriting:
    def test_a_fact_of_a_newer_format_is_never_written(self) -> None:
        session = oakleaf.open("memory:").start()
        with pytest.raises(InvalidArgument):
            session.log.record(UnknownFact("quantum", b"{}"))  # type: ignore[arg-type]
        assert session.row.facts == 1

    def test_a_fact_that_json_would_change_is_refused(self) -> None:
        session = oakleaf.open("memory:").start()
        with pytest.raises(NotJson), session.turn("x", policy={"v": float("nan")}):
            pass
        with pytest.raises(NotJson):
            session.log.append([Draft(user("x"))], about=TurnStarted(0, policy={1: 2}))
        for value in ({1, 2}, b"bytes", object(), float("inf")):
            with pytest.raises(NotJson):
                session.log.record(PluginFact("tests", "odd", {"x": value}))


def _sources() -> Iterator[Path]:
    for folder in (ROOT / "src", *ROOT.glob("plugins/*/src")):
        yield from (
            path for path in folder.rglob("*.py") if path.name != "codex.py"
        )  # Codex names events alike


def test_no_source_but_the_facts_quotes_a_kind() -> None:
    """SQL, too, takes the name of a kind from `kind_of`: a renamed type renames all of them."""
    quoted = re.compile(rf"""(["'])({"|".join(sorted(KINDS - WORDS))})\1""")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in _sources()
        for match in quoted.finditer(path.read_text())
    ]
    assert found == []
