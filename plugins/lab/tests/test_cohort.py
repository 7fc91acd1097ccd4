"""Cohorts: found by query, tag, reference or name; each history once; what is left out is counted with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oakleaf
import oakleaf_lab
from oakleaf import ScriptedModel, Store
from oakleaf.errors import InvalidSearch, NotFound
from oakleaf_lab import Lab
from oakleaf_lab.cohort import Cohort, CohortFinder
from oakleaf_lab.errors import EmptyCohort, InvalidLab
from support.lab_sessions import noisy, write_cohort


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Four recorded sessions of three turns."""
    with oakleaf.open(write_cohort(tmp_path / "lab.db", 4), synchronous="normal") as store:
        yield store


ALL = [f"ses_case_{n:03d}" for n in range(4)]


def find(store: Store, *cohort: str, needs_model: bool = False, **how: Any) -> Cohort:
    return CohortFinder(store).find(cohort, needs_model=needs_model, **how)


def ids(cohort: Cohort) -> list[str]:
    return [source.session_id for source in cohort.sources]


def reasons(cohort: Cohort) -> dict[str, int]:
    return {skipped.reason: len(skipped.session_ids) for skipped in cohort.skipped}


@pytest.mark.parametrize("query", ["agent:support", "agent:support after:7d", "tool:look_up", '"is lost"'])
def test_a_query_finds_sessions(store: Store, query: str) -> None:
    assert ids(find(store, query)) == ALL


def test_a_tag_finds_sessions(store: Store) -> None:
    store.session(ALL[1]).tag(golden="yes")
    assert ids(find(store, "tag:golden=yes")) == [ALL[1]]


def test_queries_references_and_names_add_up_and_each_session_counts_once(store: Store) -> None:
    store.session(ALL[1]).tag(golden="yes")
    oakleaf_lab.save_cohort(store, "late", ALL[3])
    assert ids(find(store, "tag:golden=yes", ALL[1], ALL[0], "late")) == [ALL[0], ALL[1], ALL[3]]


def test_it_is_counted_what_they_did(store: Store) -> None:
    source = find(store, ALL[0]).sources[0]
    assert (source.turns, source.calls, source.model) == (3, 6, "recorded-model")
    assert source.usage == store.session(ALL[0]).usage()


class TestLeftOut:
    def test_copies_of_the_same_history(self, store: Store) -> None:
        fork = store.session(ALL[0]).fork()
        cohort = find(store, ALL[0], fork.session_id)
        assert ids(cohort) == [ALL[0]]
        assert reasons(cohort) == {"with the same history as another": 1}

    def test_forks_unless_they_are_named(self, store: Store) -> None:
        fork = store.session(ALL[0]).fork()
        fork.send_sync("Hello?", model=ScriptedModel(["Hi."]))
        by_query = find(store, "agent:support")
        assert ids(by_query) == ALL
        assert reasons(by_query) == {"forks of other sessions": 1}
        assert ids(find(store, fork.session_id)) == [fork.session_id]

    def test_tasks_and_replays(self, store: Store) -> None:
        task = store.start_task(store.session(ALL[0]), "support")
        task.send_sync("Look.", model=ScriptedModel(["Looked."]))
        replay = store.session(ALL[0]).replay_sync().replay
        cohort = find(store, "agent:support", replay)
        assert ids(cohort) == ALL
        assert reasons(cohort) == {"tasks of other sessions": 1, "replays": 1}

    def test_what_a_lab_made(self, store: Store) -> None:
        before = find(store, "agent:support")
        Lab(store, "agent:support", baseline_model=noisy(1)).run_sync()
        assert find(store, "agent:support") == before

    def test_sessions_that_cannot_be_replayed(self, store: Store) -> None:
        empty = store.start("support", session_id="ses_empty")
        cohort = find(store, "agent:support", empty.session_id, needs_model=True)
        assert ids(cohort) == []
        assert reasons(cohort) == {
            "without an input": 1,
            "with model recorded-model, which cannot be called by that name": 4,
        }

    def test_running_ones(self, store: Store) -> None:
        with store.session(ALL[0]).turn("Wait."):
            cohort = find(store, "agent:support")
        assert ids(cohort) == ALL[1:]
        assert reasons(cohort) == {"still running": 1}


class TestSampling:
    def test_the_seed_decides(self, store: Store) -> None:
        samples = [ids(find(store, "agent:support", sample=2, seed=seed)) for seed in range(8)]
        assert all(len(sample) == 2 and sample == sorted(sample) for sample in samples)
        assert len({tuple(sample) for sample in samples}) > 1
        assert find(store, "agent:support", sample=2, seed=3) == find(
            store, "agent:support", sample=2, seed=3
        )

    def test_new_sessions_replace_no_more_than_they_must(self, store: Store) -> None:
        before = set(ids(find(store, "agent:support", sample=3)))
        store.start("support", session_id="ses_new").send_sync("Hi.", model=ScriptedModel(["Hello."]))
        assert len(before - set(ids(find(store, "agent:support", sample=3)))) <= 1

    def test_more_than_there_are_takes_all(self, store: Store) -> None:
        assert ids(find(store, "agent:support", sample=50)) == ALL


class TestSaved:
    def test_it_survives_closing_and_is_a_fixed_list(self, store: Store) -> None:
        oakleaf_lab.save_cohort(store, "golden", "agent:support", sample=2)
        saved = oakleaf_lab.cohorts(store)["golden"]
        store.start("support", session_id="ses_new").send_sync("Hi.", model=ScriptedModel(["Hello."]))
        with oakleaf.open(store.backend.url) as again:
            assert oakleaf_lab.cohorts(again) == {"golden": saved}
            assert ids(find(again, "golden")) == list(saved)

    def test_saving_again_replaces_it(self, store: Store) -> None:
        oakleaf_lab.save_cohort(store, "golden", ALL[0])
        oakleaf_lab.save_cohort(store, "golden", ALL[1])
        assert oakleaf_lab.cohorts(store) == {"golden": (ALL[1],)}

    def test_it_is_no_conversation(self, store: Store) -> None:
        oakleaf_lab.save_cohort(store, "golden", "agent:support")
        assert store.latest().session_id == ALL[3]  # type: ignore[union-attr]
        assert len(store.sessions(include_children=False).sessions) == 4

    def test_a_name_that_cannot_be_one_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidLab, match="cannot be the name"):
            oakleaf_lab.save_cohort(store, "my cohort", ALL[0])


@pytest.mark.parametrize(
    ("cohort", "error"),
    [("ses_nowhere", NotFound), ("agent:nobody", EmptyCohort), ("colour:red", InvalidSearch)],
)
def test_what_is_not_there_is_refused(store: Store, cohort: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Lab(store, cohort, baseline_model=noisy(1))
