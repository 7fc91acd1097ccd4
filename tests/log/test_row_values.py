"""The row of a session: every text is kept or refused alike, and finds its session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import Store, errors
from support.store_contents import TEXTS, contents, open_store, refusal_of, reopened

SHORT = [name for name in TEXTS if "long" not in name and "many" not in name]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield from open_store(request.param, tmp_path)


class TestText:
    @pytest.mark.parametrize("name", SHORT)
    def test_text_in_every_field_is_kept_or_refused(self, store: Store, name: str) -> None:
        text = TEXTS[name]
        fields = ("agent", "title", "conversation_id", "model", "trigger_type", "trigger_id", "owner")
        for field in fields:
            self.kept_or_refused(
                store, lambda f=field: store.start(**{f: text}), lambda row, f=field: getattr(row, f) or ""
            )
        tags = {text: text, "k": text}
        self.kept_or_refused(store, lambda: store.start(tags=tags), lambda row: row.tags.get(text, ""))
        self.kept_or_refused(store, lambda: store.start(tool_names=[text]), lambda row: row.tool_names[0])

    def kept_or_refused(
        self, store: Store, start: Callable[[], oakleaf.Session], read: Callable[[Any], str]
    ) -> None:
        before = contents(store)
        try:
            session = start()
        except errors.OakleafError:
            assert contents(store) == before
            return
        again = reopened(store, session)
        value = read(again.row)
        assert value in TEXTS.values() or value.startswith(("con_", "ses_"))
        assert again.verify() == []

    @pytest.mark.parametrize("name", SHORT)
    def test_sessions_are_found_by_every_text(self, store: Store, name: str) -> None:
        text = TEXTS[name]
        store.start(agent="other", tags={"k": "other"})
        try:
            session = store.start(agent=text or None, conversation_id=text or None, tags={text: text})
        except errors.OakleafError:
            return
        queries: list[dict[str, Any]] = [
            {"tag": (text, text)},
            {"conversation_id": session.row.conversation_id},
        ]
        queries += [{"agent": text}] if text else []
        for query in queries:
            assert [row.session_id for row in store.all_sessions(**query)] == [session.session_id], query
        assert len(list(store.all_sessions())) == 2


class TestShape:
    @pytest.mark.parametrize(
        "about",
        [
            {"title": 5},
            {"title": b"x"},
            {"agent": 5},
            {"session_id": 5},
            {"context_window": 1 << 70},
            {"context_window": "big"},
            {"tags": {"a": 5}},
            {"tags": {1: "a"}},
            {"tags": {"\ud800": "a"}},
            {"tool_names": ["\ud800"]},
            {"tool_names": "abc"},
            {"state": [1]},
            {"state": "x"},
        ],
        ids=repr,
    )
    def test_a_row_of_the_wrong_shape_is_refused(self, store: Store, about: dict[str, Any]) -> None:
        refusal_of(store, lambda: store.start(**about))

    @pytest.mark.parametrize(
        "ask",
        [
            lambda store: store.session("\ud800"),
            lambda store: store.session("'; drop table session; --"),
            lambda store: store.delete("\0"),
            lambda store: store.sessions(before="abc"),
        ],
        ids=["surrogate", "sql", "nul", "cursor"],
    )
    def test_an_impossible_id_or_cursor_is_refused(
        self, store: Store, ask: Callable[[Store], object]
    ) -> None:
        store.start()
        refusal_of(store, lambda: ask(store))
