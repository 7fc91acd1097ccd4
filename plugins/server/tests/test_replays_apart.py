"""Replays repeat what happened: lists, searches, counts and sums leave them out unless they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oakleaf import Session
from oakleaf.models.prices import Rates
from oakleaf.models.scripted import ScriptedModel
from oakleaf.store import Store
from oakleaf_server.metrics import Metrics
from support.server import LocalServer

REPLAYS = 3


@pytest.fixture
def source(store: Store) -> Session:
    """A session with one turn, replayed three times by a model that costs money."""
    session = store.start("support")
    session.send_sync("A refund?", model=ScriptedModel(["A refund."], rates=Rates(input=3, output=15)))
    for _ in range(REPLAYS):
        model = ScriptedModel(["A refund again."], rates=Rates(input=3, output=15))
        session.replay_sync(model=model, mode="dry")
    return session


@pytest.fixture
def server(store: Store, source: Session) -> Iterator[LocalServer]:
    with LocalServer(store, metrics=Metrics()) as running:
        yield running


def test_a_search_finds_them_with_is_replay(server: LocalServer, source: Session, store: Store) -> None:
    store.index()
    hits = server.get("/api/search", query="refund")["hits"]
    assert [(hit["session_id"], hit["relation"]) for hit in hits] == [(source.session_id, None)] * 2
    again = server.get("/api/search", query="refund is:replay")["hits"]
    assert [hit["relation"] for hit in again] == ["replay"] * REPLAYS * 2
    assert len(server.get("/api/search", query="refund is:all")["hits"]) == 2 + REPLAYS * 2
    one = next(hit["session_id"] for hit in again)
    assert len(server.get("/api/search", query=f"refund session:{one}")["hits"]) == 2


def test_facets_count_them_with_is_replay(server: LocalServer) -> None:
    assert server.get("/api/facets")["total"] == 1
    assert server.get("/api/facets", query="is:replay")["facets"]["agent"] == {"support": REPLAYS}
    assert server.get("/api/facets", query="is:all")["total"] == 1 + REPLAYS
    assert len(server.get("/api/sessions")["sessions"]) == 1


def test_their_spending_is_a_bucket_of_its_own(server: LocalServer, source: Session) -> None:
    live = source.usage().cost_microcents
    spent = server.get("/api/usage", by="model")
    assert (spent["total"]["calls"], spent["total"]["cost_microcents"]) == (1, live)
    assert (spent["replays"]["calls"], spent["usage"][0]["totals"]["calls"]) == (REPLAYS, 1)
    asked = server.get("/api/usage", replays="true")
    assert (asked["total"]["calls"], asked["replays"]) == (REPLAYS, None)
    both = server.get("/api/usage", by="bucket")
    assert {one["name"]: one["totals"]["calls"] for one in both["usage"]} == {"live": 1, "replay": REPLAYS}
    days = server.get("/api/usage/days")
    assert (
        days["total"]["calls"] == days["days"][0]["totals"]["calls"] == days["models"][0]["totals"]["calls"]
    )
    assert days["total"]["cost_microcents"] == live
    assert {one["name"]: one["totals"]["calls"] for one in days["buckets"]} == {"live": 1, "replay": REPLAYS}


def test_todays_cost_and_the_metrics_are_those_of_the_work(server: LocalServer, source: Session) -> None:
    live = source.usage().cost_microcents
    overview = server.get("/api/overview")
    assert overview["cost_today"]["cost_microcents"] == overview["cost_week"]["cost_microcents"] == live
    lines = server.client.get("/metrics").text.splitlines()
    values = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}
    costs = [value for name, value in values.items() if name.startswith("oakleaf_cost_today_dollars")]
    assert round(sum(costs) * 1e8) == live
    assert values['oakleaf_replay_cost_today_dollars{space="default"}'] > 0


def test_one_session_is_summed_whole(server: LocalServer, store: Store) -> None:
    (replay, *_) = store.sessions(relation="replay")
    spent = server.get("/api/usage", session=replay.session_id)
    assert (spent["total"]["calls"], spent["replays"]) == (1, None)
    refused = server.get("/api/usage", status=400, session=replay.session_id, replays="true")
    assert refused["code"] == "invalid_argument"
