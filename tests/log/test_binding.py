"""One agent answers in a session; a turn records what caused it and the policy it ran under."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oakleaf import ScriptedModel, Session, assistant
from oakleaf.errors import AgentBound, InvalidOption, InvalidValue, ModelError
from oakleaf.store import Store


def model() -> ScriptedModel:
    return ScriptedModel(["Yes."], model="m")


def started(session: Session) -> list[dict[str, Any]]:
    return [fact.data for fact in session.journal() if fact.kind == "turn_started"]


class TestBinding:
    """The session specification: a session binds one agent for the whole conversation."""

    def test_another_agent_does_not_answer(self, store: Store) -> None:
        session = store.start("support")
        with pytest.raises(AgentBound, match="bound to agent 'support', and 'billing' would answer"):
            session.send_sync("q", model=model(), agent="billing")
        assert (session.path(), session.row.agent) == ([], "support")

    def test_the_same_agent_answers(self, store: Store) -> None:
        assert store.start("support").send_sync("q", model=model(), agent="support").text == "Yes."

    def test_rebinding_is_asked_for_and_recorded(self, store: Store) -> None:
        session = store.start("support")
        session.send_sync("q", model=model(), agent="billing", rebind=True)
        assert session.row.agent == "billing"
        (fact,) = [fact for fact in session.journal() if fact.kind == "bound"]
        assert fact.data == {"agent": "billing", "before": "support"}
        assert session.verify() == []

    def test_the_first_agent_that_answers_binds_a_session_without_one(self, store: Store) -> None:
        session = store.start()
        session.send_sync("q", model=model(), agent="billing")
        with pytest.raises(AgentBound):
            session.send_sync("q", model=model(), agent="support")

    def test_a_send_that_cannot_start_binds_nobody(self, store: Store) -> None:
        session = store.start()
        with pytest.raises(InvalidOption):
            session.send_sync("q", model=model(), agent="billing", options={"temperature": "hot"})
        assert session.row.agent is None

    def test_an_imported_session_is_unbound_until_an_agent_answers(
        self, store: Store, tmp_path: Path
    ) -> None:
        source = store.start("elsewhere")
        source.append([assistant("ho")])
        source.export(tmp_path / "s.oakleaf")
        imported = store.session(store.import_bundle(tmp_path / "s.oakleaf", new_id=True).session_id)
        assert imported.row.agent == "elsewhere"
        imported.send_sync("q", model=model(), agent="support")
        assert imported.row.agent == "support"
        with pytest.raises(AgentBound, match="'support'"):
            imported.send_sync("q", model=model(), agent="billing")

    def test_a_fork_may_name_another_agent(self, store: Store) -> None:
        session = store.start("support")
        session.send_sync("q", model=model())
        fork = session.fork(agent="billing")
        assert (fork.row.agent, session.row.agent) == ("billing", "support")
        assert fork.send_sync("q", model=model(), agent="billing").text == "Yes."


class TestTrigger:
    def test_a_turn_has_its_own_trigger_and_policy_and_the_row_the_latest(self, store: Store) -> None:
        session = store.start(trigger_type="email", trigger_id="1", policy={"refunds": "ask"})
        session.send_sync("a", model=model())
        session.send_sync("b", model=model())
        session.send_sync(
            "c", model=model(), trigger={"type": "cron", "id": "7"}, policy={"refunds": "never"}
        )
        session.send_sync("d", model=model(), trigger="chat")
        first, second, third, fourth = started(session)
        assert first["trigger"] == {"type": "email", "id": "1"}
        assert "trigger" not in second
        assert (third["trigger"], third["policy"]) == ({"type": "cron", "id": "7"}, {"refunds": "never"})
        assert (fourth["trigger"], fourth["policy"]) == ({"type": "chat"}, {"refunds": "ask"})
        assert (session.row.trigger_type, session.row.trigger_id) == ("chat", None)
        assert session.verify() == []

    def test_an_own_loop_records_the_same(self, store: Store) -> None:
        session = store.start()
        with session.turn("q", trigger={"type": "email", "id": "2"}, policy={"a": 1}) as turn:
            turn.answer(assistant("a"))
        assert started(session)[0]["trigger"] == {"type": "email", "id": "2"}
        assert session.row.trigger_id == "2"

    @pytest.mark.parametrize(
        "bad",
        [
            {"trigger": 7},
            {"trigger": {"id": "7"}},
            {"trigger": {"type": "x", "other": "y"}},
            {"trigger": {"type": ""}},
            {"policy": "ask"},
            {"policy": {"a": float("nan")}},
            {"policy": {"a": object()}},
        ],
    )
    def test_what_is_no_trigger_or_policy_is_refused_and_nothing_is_written(
        self, store: Store, bad: dict[str, Any]
    ) -> None:
        session = store.start()
        facts = session.row.facts
        with pytest.raises(InvalidValue, match=next(iter(bad))):
            session.send_sync("q", model=model(), **bad)
        assert session.row.facts == facts

    def test_a_failed_one_shot_has_ended(self, store: Store) -> None:
        session = store.start()
        session.send_sync("q", model=ScriptedModel([ModelError("m", "down", "wait")]), one_shot=True)
        assert session.row.status == "failed"
        assert session.row.completed_at is not None
