"""What operators ask of a server and of a store: is it alive, can it work, what does it count, what needs a look."""

from __future__ import annotations

import re

from msgspec.structs import replace

from bough import Rates, ScriptedModel
from bough.log.doctor import session_health
from bough.server.metrics import Metrics
from bough.store import Store
from support.server import LocalServer, bearer

TOKEN = "a token of the service"


def samples(text: str) -> dict[str, float]:
    """Read the text format of Prometheus: one sample a line, and every family described."""
    values = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", line), line
        else:
            name, _, value = line.rpartition(" ")
            assert re.fullmatch(r'[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\.)*"\})?', name), line
            values[name] = float(value)
    return values


class TestServer:
    def test_health_needs_no_token_and_metrics_needs_one_and_a_switch(self, store: Store) -> None:
        with LocalServer(store, token=TOKEN) as server:
            for path in ("/healthz", "/readyz"):
                assert server.client.get(path).text == "ok\n"
            assert server.client.get("/metrics").status_code == 401
            reply = server.client.get("/metrics", headers=bearer(TOKEN))
            assert (reply.status_code, "--metrics" in reply.text) == (404, True)

    def test_a_store_that_cannot_be_read_is_not_ready(self, store: Store) -> None:
        with LocalServer(store) as server:
            store.close()
            assert server.client.get("/healthz").status_code == 200
            assert server.client.get("/readyz").status_code == (200 if "memory" in store.backend.url else 503)

    def test_requests_commits_sessions_and_money_are_counted(self, store: Store) -> None:
        metrics = Metrics()
        store.runtime = replace(store.runtime, on_commit=metrics.commits.observe)
        model = ScriptedModel(["one", "two"], model='a "model"', rates=Rates(input=3, output=15))
        session = store.start("support")
        session.send_sync("Hello", model=model)
        session.send_sync("Again", model=model)
        store.start().enqueue("later")
        with LocalServer(store, metrics=metrics) as server:
            server.get("/api/sessions")
            server.get("/api/sessions/ses_none", status=404)
            reply = server.client.get("/metrics")
        assert reply.headers["content-type"].startswith("text/plain")
        values = samples(reply.text)
        assert values["bough_commit_seconds_count"] >= 4
        assert values['bough_commit_seconds_bucket{le="+Inf"}'] == values["bough_commit_seconds_count"]
        assert values['bough_http_responses_total{code="2xx"}'] >= 1
        assert values['bough_http_responses_total{code="4xx"}'] == 1
        assert values['bough_sessions{status="idle"}'] == 2
        assert values["bough_queued_inputs"] == 1
        assert values['bough_model_calls_today{model="a \\"model\\""}'] == 2
        cost = values['bough_cost_today_dollars{model="a \\"model\\""}']
        assert round(cost * 1e8) == session.usage().cost_microcents > 0


class TestDoctor:
    def test_it_names_what_needs_a_look_and_reads_no_session_one_by_one(self, store: Store) -> None:
        for n in range(25):
            store.start(session_id=f"ses_i{n}").end("interrupted")
        store.start(session_id="ses_f").end("failed", "no answer")
        store.start().enqueue("later")
        messages = [finding.message for finding in session_health(store.backend, store.runtime)]
        assert messages[0] == "27 sessions, 0 in the trash"
        assert sum("was interrupted" in message for message in messages) == 20
        assert "5 more sessions were interrupted" in messages
        assert "ses_f failed: no answer" in messages
        assert "1 queued inputs wait for a run" in messages
