"""Spaces: the operator of a store sees all of them by name, and nobody else learns that there are others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from psycopg.errors import DuplicateObject

import oakleaf
from oakleaf import Store, assistant
from oakleaf.errors import InvalidArgument, NotFound, SpacesHidden
from oakleaf.verbs.health import Doctor
from oakleaf.verbs.sessions import Ls, Spaces
from oakleaf.verbs.usage import Usage
from oakleaf_mcp.verb_tools import verbs as agent_verbs
from oakleaf_server.metrics import Metrics
from support.all_stores import ALL_STORES
from support.server import LocalServer, bearer
from support.terminal import oakleaf as oakleaf_command
from support.verb_surfaces import by_mcp

OPERATOR = "oakleaf_operator"
TOKEN, CLIENT_TOKEN = "operator" * 4, "ann" * 8
OTHER = "acme-secret"
"""The name of a space that others must not see."""


class Tenants(NamedTuple):
    operator: str
    service: str
    """The address as an ordinary service role; on stores without roles the operator's."""


def write(store: Store) -> None:
    """One session in `default`, two in another space, and one in the trash of a third."""
    for space, names in (("default", ["ses_d"]), (OTHER, ["ses_a", "ses_b"]), ("third", ["ses_t"])):
        tenant = store.in_space(space)
        for name in names:
            session = tenant.start("support", session_id=name, title=f"Case {name}", tags={"team": space})
            with session.turn("Hi") as turn:
                turn.answer(assistant("Hello"), usage=oakleaf.Usage(10, 5))
    store.in_space("third").delete("ses_t")


@pytest.fixture(params=[name for name in ALL_STORES if name != "memory"])
def tenants(request: pytest.FixtureRequest, tmp_path: Path) -> Tenants:
    if request.param == "sqlite":
        path = str(tmp_path / "agents.db")
        found = Tenants(path, path)
    else:
        database = request.getfixturevalue("database")
        with suppress(DuplicateObject):
            database.run(
                f"create role {OPERATOR} login password '{OPERATOR}' bypassrls in role oakleaf_service"
            )
        found = Tenants(database.host.url(database.name, OPERATOR), database.url)
    with oakleaf.open(found.operator) as store:
        write(store)
    return found


@pytest.fixture
def operator(tenants: Tenants) -> Iterator[Store]:
    with oakleaf.open(tenants.operator) as store:
        yield store


class TestTheOperator:
    def test_spaces_lists_sessions_activity_and_cost(self, operator: Store, tenants: Tenants) -> None:
        spaces = Spaces()(operator).spaces
        assert [(one.space, one.sessions, one.trashed) for one in spaces] == [
            (OTHER, 2, 0),
            ("default", 1, 0),
            ("third", 0, 1),
        ]
        assert [one.totals.calls for one in spaces] == [2, 1, 1]
        assert [one.active_at is not None for one in spaces] == [True, True, False]
        shown = oakleaf_command("spaces", store=tenants.operator)
        assert (shown.code, OTHER in shown.out, "3 spaces" in shown.err) == (0, True, True)

    def test_ls_of_all_spaces_is_by_activity(self, operator: Store, tenants: Tenants) -> None:
        found = Ls(all_spaces=True)(operator)
        assert [(one.space, one.id) for one in found.sessions] == [
            (OTHER, "ses_b"),
            (OTHER, "ses_a"),
            ("default", "ses_d"),
        ]
        cut = Ls(query="agent:support", all_spaces=True, limit=2)(operator)
        assert ([one.id for one in cut.sessions], cut.is_cut) == (["ses_b", "ses_a"], True)
        shown = oakleaf_command("ls", "--all-spaces", "-n", "2", store=tenants.operator)
        assert ("SPACE" in shown.out, OTHER in shown.out, "more than 2" in shown.err) == (True, True, True)
        for wrong in (Ls(all_spaces=True, page="1-1"), Ls(query="parent:ses_a", all_spaces=True)):
            with pytest.raises(InvalidArgument, match="all_spaces"):
                wrong(operator)

    def test_usage_of_all_spaces_adds_the_sums(self, operator: Store) -> None:
        used = Usage(by="tag:team", all_spaces=True)(operator)
        assert {one.name: one.totals.calls for one in used.usage} == {"default": 1, OTHER: 2, "third": 1}
        assert (used.total.calls, used.space) == (4, None)
        with pytest.raises(InvalidArgument, match="all_spaces"):
            Usage(session="ses_d", all_spaces=True)(operator)

    def test_doctor_of_all_spaces_names_each(self, operator: Store, tenants: Tenants) -> None:
        operator.in_space(OTHER).session("ses_b").enqueue("waits")
        findings = Doctor(all_spaces=True)(operator).findings
        assert {one.space for one in findings if "queued" in one.message} == {OTHER}
        assert {one.space for one in findings} >= {OTHER, "default", "third"}
        shown = oakleaf_command("doctor", "--all-spaces", store=tenants.operator)
        assert f"{OTHER}: ses_b" in shown.out
        assert f"--space {OTHER} resume ses_b" in shown.out

    def test_metrics_of_all_spaces_have_their_names(self, operator: Store) -> None:
        with LocalServer(operator, token=TOKEN, metrics=Metrics(all_spaces=True)) as server:
            assert server.client.get("/metrics").status_code == 401
            text = server.client.get("/metrics", headers=bearer(TOKEN)).text
        assert f'oakleaf_sessions{{space="{OTHER}",status="idle"}} 2' in text
        assert 'oakleaf_sessions{space="default",status="idle"} 1' in text

    def test_ls_says_the_space_and_an_empty_one_the_others(self, tenants: Tenants) -> None:
        own = oakleaf_command("--space", OTHER, "ls", store=tenants.operator)
        assert f"in the space {OTHER}" in own.err
        empty = oakleaf_command("--space", "none", "ls", store=tenants.operator)
        assert (empty.code, OTHER in empty.err, "oakleaf" in empty.err) == (0, True, True)
        assert oakleaf_command("ls", store=tenants.operator).err == ""


@pytest.mark.attack
class TestOthers:
    """None of them sees another space, or its name."""

    def test_a_store_of_an_owner_sees_none(self, tenants: Tenants) -> None:
        with oakleaf.open(tenants.operator, owner="ann") as store:
            _is_refused(store)

    def test_an_ordinary_role_of_the_database_sees_its_own(self, tenants: Tenants) -> None:
        if tenants.service == tenants.operator:
            return  # a file has no roles: who may read it is its operator
        with oakleaf.open(tenants.service) as store:
            _is_refused(store)
            assert Ls(query="is:trashed")(store).explanation == "the trash is empty"
        for words in (
            ["spaces"],
            ["ls", "--all-spaces"],
            ["usage", "--all-spaces"],
            ["doctor", "--all-spaces"],
        ):
            shown = oakleaf_command(*words, store=tenants.service)
            assert (shown.code, OTHER in shown.out + shown.err) == (2, False), words
            assert "bypassrls" in shown.err
        empty = oakleaf_command("--space", "none", "ls", store=tenants.service)
        assert (empty.code, OTHER in empty.out + empty.err) == (0, False)

    @pytest.mark.parametrize("space", ["default", "none"])
    def test_a_holder_of_a_token_sees_one_space(self, tenants: Tenants, space: str) -> None:
        with oakleaf.open(tenants.operator, space=space) as store:
            access: dict[str, Any] = {"token": TOKEN, "client_tokens": {"ann": CLIENT_TOKEN}}
            with LocalServer(store, metrics=Metrics(), **access) as server:
                for token in (TOKEN, CLIENT_TOKEN):
                    for path in _paths():
                        reply = server.client.get(path, headers=bearer(token))
                        assert OTHER not in reply.text, path
                    for path in ("/api/sessions", "/api/usage"):
                        reply = server.client.get(f"{path}?all_spaces=true", headers=bearer(token))
                        assert reply.status_code in (400, 401, 403, 404), path

    def test_an_id_of_another_space_is_not_found(self, operator: Store) -> None:
        """Also as an operator: its server and its stores are those of one space."""
        writes: list[Callable[[], object]] = [
            lambda: operator.backend.enqueue("ses_a", b"{}", 1),
            lambda: operator.backend.lease("ses_a", "h", 2, 1),
            lambda: operator.delete("ses_a"),
            lambda: operator.restore("ses_t"),
            lambda: operator.purge("ses_t"),
        ]
        reads: list[Callable[[], object]] = [
            lambda: operator.session("ses_a"),
            lambda: operator.hydrate("ses_a"),
            lambda: operator.backend.path("ses_a"),
            lambda: operator.backend.journal("ses_a"),
            lambda: operator.backend.calls("ses_a"),
        ]
        for deed in (*reads, *writes):
            with pytest.raises(NotFound):
                deed()
        with LocalServer(operator, metrics=Metrics(all_spaces=True)) as server:
            for path in ("", "/entries", "/transcript", "/log", "/usage"):
                reply = server.client.get(f"/api/sessions/ses_a{path}")
                assert (reply.status_code, "Hello" in reply.text) == (404, False), path
        assert list(operator.in_space(OTHER).verify()) == []

    @pytest.mark.parametrize("space", ["default", "none"])
    def test_an_agent_over_mcp_sees_one_space(self, tenants: Tenants, space: str) -> None:
        with oakleaf.open(tenants.operator, space=space) as store:
            for verb in (Ls, Usage):
                answer = by_mcp(store, verb, {})
                assert (answer.code, OTHER in str(answer)) == (None, False)
                refused = by_mcp(store, verb, {"all_spaces": True})
                assert (refused.code is None, OTHER in str(refused)) == (False, False)
        assert not {"spaces", "doctor"} & agent_verbs().keys()


def _paths() -> list[str]:
    return [
        "/api/sessions",
        "/api/usage",
        "/api/usage/days",
        "/api/spaces",
        "/api/overview",
        "/metrics",
        "/api/openapi.json",
    ]


def _is_refused(store: Store) -> None:
    with pytest.raises(SpacesHidden) as refused:
        store.spaces()
    assert OTHER not in str(refused.value)
    verbs = (Spaces(), Ls(all_spaces=True), Usage(all_spaces=True), Doctor(all_spaces=True))
    for verb in verbs:
        with pytest.raises(SpacesHidden):
            verb(store)
