"""Every verb on every surface: the same result, the same errors, the same refusals.

`CALLS` has a row for each verb; one without a row fails. A call says the values of the fields, and the code of the error that
it must end with, if it must. What a verb does is tested where the verb is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mcp.shared.exceptions import MCPError

import oakleaf
from oakleaf import ScriptedModel, Store, ToolCall, assistant
from oakleaf.ext import with_approval
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.verbs.base import Verb
from oakleaf.verbs.fields import Field, fields
from oakleaf.verbs.registry import find_all
from oakleaf_mcp.verb_tools import verbs as agent_verbs
from oakleaf_server.app import FOR_CLIENTS
from oakleaf_server.verb_routes import address
from support.all_stores import ALL_STORES
from support.cli_store import fill, refund, write_store
from support.generated_client import GeneratedClient
from support.server import LocalServer
from support.soak import SOAK
from support.terminal import oakleaf as oakleaf_command
from support.verb_surfaces import (
    ARGUMENTS,
    SURFACES,
    Json,
    by_mcp,
    by_python,
    command,
    confirmed,
    flag,
    is_requested,
    needs_yes,
    numbered,
    request,
    split_values,
    surfaces_of,
    words,
)


class Call(NamedTuple):
    values: Json
    error: str | None = None
    before: Callable[[Store], object] | None = None
    """What happened to the sample store."""

    def prepare(self, store: Store) -> None:
        if self.before is not None:
            self.before(store)


def trash(store: Store) -> None:
    store.delete("ses_case")


def wait(store: Store) -> None:
    """Let two calls of a turn wait for a person."""
    refunds = [ToolCall(f"r{order}", "refund", {"order": order}) for order in (1, 2)]
    model = ScriptedModel([assistant("I refund both.", *refunds)])
    store.session("ses_other").send_sync("Refund both", model=model, tools=with_approval([refund], True))


def rewind(store: Store) -> None:
    store.session("ses_case").rewind(8)


def undo_all(store: Store) -> None:
    """Leave no input on the path."""
    session = store.session("ses_case")
    while session.leaf.seq > 2:
        session.undo()


NO_SESSION = Call({"session": "ses_none"}, "not_found")
NO_SESSIONS = Call({"sessions": ["ses_none"]}, "not_found")
CALLS: dict[str, list[Call]] = {
    "fork": [
        Call({"session": "ses_case@8"}),
        Call({"session": "Order 41", "options": {"temperature": 0}, "title": "Again"}),
        Call({"session": "ses_case@99"}, "invalid_reference"),
        Call({"session": "ses_case", "options": {"temperature": [1]}}, "invalid_option"),
        Call({"session": "ses_case", "from_turn": 1}),
        Call({"session": "ses_case@8", "from_turn": 1}, "invalid_argument"),
        Call({"session": "ses_case", "from_turn": 3}, "invalid_argument"),
        NO_SESSION,
    ],
    "rewind": [
        Call({"session": "ses_case@8", "summary": "The order was found."}),
        Call({"session": "ses_case@4"}),
        Call({"session": "ses_case", "to_turn": 1}),
        Call({"session": "ses_case@8", "leaf": "1:10"}),
        Call({"session": "ses_case@8", "leaf": "1:9"}, "stale_leaf"),
        Call({"session": "ses_case@8", "leaf": "nine"}, "invalid_argument"),
        Call({"session": "ses_case@8", "summary": " "}, "invalid_argument"),
        Call({"session": "ses_case"}, "invalid_reference"),
        Call({"session": "ses_case", "to_turn": 9}, "invalid_argument"),
        Call({"session": "ses_case@99"}, "invalid_reference"),
        Call({"session": "ses_case@8", "skip_changed": True}, "invalid_argument"),
        Call({"session": "ses_case@8"}, "session_trashed", before=trash),
        NO_SESSION,
    ],
    "undo": [
        Call({"session": "ses_case"}),
        Call({"session": "ses_case", "leaf": "1:9"}, "stale_leaf"),
        Call({"session": "ses_case@8"}, "invalid_reference"),
        Call({"session": "ses_case"}, "nothing_to_undo", before=undo_all),
        NO_SESSION,
    ],
    "redo": [
        Call({"session": "ses_case"}, before=undo_all),
        Call({"session": "ses_case", "leaf": "1:10"}, "stale_leaf", before=undo_all),
        Call({"session": "ses_case"}, "nothing_to_redo"),
        NO_SESSION,
    ],
    "compact": [
        Call({"session": "ses_case", "summary": "Order 41 was refunded."}),
        Call({"session": "ses_case", "keep_from": 9}),
        Call({"session": "ses_case", "keep_from": 99}, "invalid_argument"),
        Call({"session": "ses_case", "summary": " "}, "invalid_summary"),
        Call({"session": "ses_case", "leaf": "1:9"}, "stale_leaf"),
        NO_SESSION,
    ],
    "uncompact": [
        Call({"session": "ses_case"}, before=lambda store: store.session("ses_case").compact("Refunded.")),
        Call({"session": "ses_case"}, "nothing_to_undo"),
        NO_SESSION,
    ],
    "settings": [
        Call({"session": "ses_case", "prompt": "Be brief.", "options": {"temperature": 0}}),
        Call({"session": "ses_case", "tools": ["look_up"], "effects": "reuse"}),
        Call({"session": "ses_case", "options": {"temperature": 9}}, "invalid_option"),
        Call({"session": "ses_case", "prompt": "Be brief.", "leaf": "1:9"}, "stale_leaf"),
        Call({"session": "ses_case@8"}),
        Call({"session": "ses_case@8", "prompt": "Be brief."}, "invalid_reference"),
        NO_SESSION,
    ],
    "title": [
        Call({"session": "ses_case", "text": "Lost parcel"}),
        Call({"session": "ses_case", "text": ""}),
        Call({"session": "ses_case"}),
        Call({"session": "ses_case@8"}, "invalid_reference"),
        Call({"session": "ses_case", "text": "Lost"}, "session_trashed", before=trash),
        NO_SESSION,
    ],
    "tag": [
        Call({"session": "ses_case", "tags": {"a": "1", "team": None}}),
        Call({"session": "ses_case"}),
        NO_SESSION,
    ],
    "label": [
        Call({"session": "ses_case@3", "text": "the good one"}),
        Call({"session": "ses_case", "text": "the end"}),
        Call({"session": "ses_case"}),
        Call({"session": "ses_case@3", "text": "x" * 101}, "invalid_argument"),
        Call({"session": "ses_case@99", "text": "x"}, "invalid_reference"),
        NO_SESSION,
    ],
    "cancel": [
        Call({"session": "ses_other"}, before=wait),
        Call({"session": "ses_case"}),
        NO_SESSION,
    ],
    "approve": [
        Call({"session": "ses_other"}, before=wait),
        Call({"session": "ses_other", "call": ["2", "ses_other@3.0"], "deny": True}, before=wait),
        Call({"session": "ses_other", "call": ["1"], "resume": False}, before=wait),
        Call({"session": "ses_other", "call": ["1", "3"]}, "not_waiting", before=wait),
        Call({"session": "ses_case", "deny": True}),
        NO_SESSION,
    ],
    "audit": [
        Call({"after": "2020-01-01"}),
        Call({"after": "2020-01-01", "tool": "refund", "limit": 1}),
        Call({"after": "yesterday", "before": "2020-01-01"}),
        Call({"after": "whenever"}, "invalid_argument"),
        Call({"page": "x"}, "invalid_argument"),
        Call({"output": "report.pdf"}, "invalid_argument"),
    ],
    "backup": [Call({"to": "/no/such/folder/copy.db"}, "invalid_value")],
    "copy": [Call({"to": "memory:", "all": True}), Call({"to": "memory:"}, "invalid_argument")],
    "doctor": [
        Call({}),
        Call({"folder": "/no/such/folder"}, "invalid_argument"),
        Call({"folder": "/no/such/folder", "all_spaces": True}, "invalid_argument"),
    ],
    "erase": [
        Call(
            {"owner": "ann"}, before=lambda store: store.start("support", owner="ann", session_id="ses_ann")
        ),
        Call({"owner": "ann", "receipt": "/no/such/folder/x.json"}, "invalid_argument"),
    ],
    "migrate": [],  # each kind of store has another answer: tests of the commands
    "plugins": [Call({})],
    "importers": [Call({})],
    "purge": [
        Call({"sessions": ["ses_case"]}, before=trash),
        Call({"trashed_for": "0s", "idle_for": "0s"}, before=trash),
        Call({"sessions": ["ses_case"]}, "invalid_reference"),
        Call({"sessions": ["ses_case"], "idle_for": "1d"}, "invalid_argument"),
    ],
    "restore": [
        Call({"sessions": ["ses_case"]}, before=trash),
        Call({"sessions": ["ses_case"]}, "invalid_reference"),
    ],
    "rm": [Call({"sessions": ["ses_case"]}), NO_SESSIONS],
    "spaces": [],  # another role's on PostgreSQL: tests/whole/test_all_spaces.py
    "seal": [Call({}), Call({"output": "/no/such/folder/x.seal"}, "invalid_argument")],
    "verify": [
        Call({}),
        Call({"session": "Order 41"}),
        Call({"sample": 1}),
        NO_SESSION,
        Call({"key": "seal.key"}, "invalid_argument"),
    ],
    "ls": [
        Call({}),
        Call({"query": "agent:support tag:team=blue order", "limit": 1}),
        Call({"query": "is:trashed"}, before=lambda store: store.delete("ses_other")),
        Call({"query": "colour:red"}, "invalid_search"),
        Call({"query": "parent:ses_none"}, "not_found"),
        Call({"page": "x"}, "invalid_argument"),
        Call({"all_spaces": True, "query": "parent:ses_case"}, "invalid_argument"),
    ],
    "search": [
        Call({"query": "order role:user", "limit": 1}),
        Call({"query": "lost session:latest is:trashed"}, "invalid_reference"),
        Call({"query": "colour:red"}, "invalid_search"),
        Call({"query": "order", "page": "x"}, "invalid_argument"),
    ],
    "show": [
        Call({"session": "ses_case"}),
        Call({"session": "ses_case@8"}),
        Call({"session": "ses_case@8", "offset": 5}),
        Call({"session": "Order 41", "since": 2, "until": 8, "last": 3}),
        Call({"session": "ses_other", "trace": True}, before=wait),
        Call({"session": "ses_case@99"}, "invalid_reference"),
        Call({"session": "ses_case@8", "last": 2}, "invalid_reference"),
        Call({"session": "ses_case", "offset": 5}, "invalid_argument"),
        NO_SESSION,
    ],
    "log": [
        Call({"session": "ses_case"}),
        Call({"session": "ses_case@8", "since": 2, "last": 3}),
        Call({"session": "ses_case", "events": True, "last": 4}),
        Call({"session": "ses_case", "all": True}, before=rewind),
        Call({"session": "ses_case", "all": True, "events": True}, "invalid_argument"),
        NO_SESSION,
    ],
    "tree": [
        Call({"session": "ses_case"}, before=rewind),
        Call({"session": "ses_case", "limit": 3, "page": "3"}),
        Call({"session": "ses_case", "page": "x"}, "invalid_argument"),
        NO_SESSION,
    ],
    "tail": [
        Call({"session": "ses_case", "last": 4}),
        Call({"session": "ses_case", "from": 2, "last": 3}),
        Call({"session": "ses_case@3"}, "invalid_reference"),
        NO_SESSION,
    ],
    "context": [
        Call({"session": "ses_case"}),
        Call({"session": "ses_case@8", "provider": "openai"}),
        Call({"session": "ses_case", "explain": True}),
        NO_SESSION,
    ],
    "diff": [
        Call({"a": "ses_case", "b": "Another try"}),
        Call({"a": "ses_case@8", "b": "Another try"}),
        Call({"a": "ses_case", "b": "ses_other", "limit": 1}),
        Call({"a": "ses_case", "b": "ses_other", "page": "x"}, "invalid_argument"),
        Call({"a": "ses_case", "b": "ses_none"}, "not_found"),
    ],
    "usage": [
        Call({}),
        Call({"session": "ses_case@8", "view": "path", "by": "model"}),
        Call({"session": "ses_case", "by": "storage"}),
        Call({"by": "owner"}, before=lambda store: store.start(owner="ann")),
        Call({"by": "storage"}, "invalid_argument"),
        NO_SESSION,
    ],
    "lab cohort": [Call({"cohort": "blue", "query": ["tag:team=blue"]})],
    "lab show": [Call({})],
}
VERBS = {verb.name: verb for verb in find_all()}
ROWS = [(verb, call) for verb in VERBS.values() for call in CALLS.get(verb.name, ())]


def rows(is_wanted: Callable[[type[Verb], Call], bool] = lambda verb, call: True) -> pytest.MarkDecorator:
    """Run a test for each row that is wanted."""
    wanted = [row for row in ROWS if is_wanted(*row)]
    return pytest.mark.parametrize(
        ("verb", "call"), wanted, ids=[f"{verb.name}-{call.values}" for verb, call in wanted]
    )


def test_every_verb_has_a_row() -> None:
    assert sorted(CALLS) == sorted(VERBS)


Fill = Callable[[str, Call], Store]


@pytest.fixture
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fill]:
    """A function that opens the sample store of a kind anew, each time without what was done to it before."""
    opened: list[Store] = []

    def open_filled(kind: str, call: Call) -> Store:
        store = _open_filled(kind, request, tmp_path / f"{len(opened)}.db")
        opened.append(store)
        call.prepare(store)
        return store

    yield open_filled
    for store in opened:
        store.close()


def _open_filled(kind: str, request: pytest.FixtureRequest, path: Path) -> Store:
    if kind == "sqlite":
        return oakleaf.open(write_store(path))
    if kind == "memory":
        store = Store(MemoryStore())
    else:
        connection = request.getfixturevalue("owner_connection")
        database = request.getfixturevalue("migrated_database")
        empty_database(connection)
        store = oakleaf.open(database.url)
    fill(store)
    return store


def empty_database(connection: Any) -> None:
    from support.postgres import EMPTY

    connection.execute(EMPTY)


# -- the same everywhere -----------------------------------------------------------------------------------


def on_stores() -> pytest.MarkDecorator:
    """Run a test for each row: the first of a verb on every store, the others on SQLite, and in the long form all on all."""
    stored = [
        (kind, verb, call)
        for verb, call in ROWS
        for kind in (ALL_STORES if SOAK or call is CALLS[verb.name][0] else ["sqlite"])
    ]
    ids = [f"{kind}-{verb.name}-{call.values}" for kind, verb, call in stored]
    return pytest.mark.parametrize(("kind", "verb", "call"), stored, ids=ids)


@on_stores()
def test_a_call_has_the_same_answer_on_every_surface(
    kind: str, verb: type[Verb], call: Call, filled: Fill
) -> None:
    store = filled(kind, call)
    expected = by_python(store, verb, call.values)
    assert expected.code == call.error, expected
    for name in surfaces_of(verb, call.values, store):
        answer = SURFACES[name](filled(kind, call), verb, call.values)
        assert expected.says_as(answer), f"{name}: {answer}\nPython: {expected}"


def wrong(verb: type[Verb]) -> list[tuple[Json, str, str]]:
    """Return values that each surface refuses, with the code and the beginning of the words."""
    name, field = next(
        ((name, field) for name, field in fields(verb).items() if field.choices or field.type is int),
        (None, None),
    )
    found = [({"no_such_field": "1"}, "unknown_field", f"{verb.name} has no 'no")]
    if name and field and not field.is_local:
        found.append(
            ({name: "purple"}, "invalid_argument", f"{name}='purple' is invalid; expected {field.expected}")
        )
    return found


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_what_no_field_takes_is_refused_in_the_same_words(verb: type[Verb], store_path: Path) -> None:
    with oakleaf.open(store_path) as store:
        for values, code, text in wrong(verb):
            given = {**required(verb), **values}
            for name in surfaces_of(verb, values, store):
                answer = SURFACES[name](store, verb, given)
                assert answer.code in (code, None), (name, answer)
                assert (answer.text or "").startswith(text), (name, answer)


def required(verb: type[Verb]) -> Json:
    return {name: _any_value(field) for name, field in fields(verb).items() if field.is_required}


def _any_value(field: Field) -> Any:
    if field.choices:
        return field.choices[0]
    return ["ses_case"] if field.type is list else "ses_case"


def single(verb: type[Verb]) -> str | None:
    """Return the name of a field that takes one value and is an option of the command line."""
    offered = {name: field for name, field in fields(verb).items() if not field.is_remote}
    return next((name for name, field in offered.items() if field.choices or field.type is int), None)


@pytest.mark.parametrize(
    "verb", [verb for verb in VERBS.values() if single(verb)], ids=lambda verb: verb.name
)
def test_two_values_for_one_are_refused(verb: type[Verb], store_path: Path) -> None:
    name = single(verb)
    assert name is not None
    expected = "is invalid; expected one value"
    with oakleaf.open(store_path) as store:
        option = flag(fields(verb)[name])
        typed = [option, "1", option, "2", *words(verb, required(verb))]
        assert expected in (command(store, verb, *typed).text or "")
        given = {**required(verb), name: ["1", "2"]}
        others = [SURFACES[one] for one in surfaces_of(verb, given, store) if one != "command line"]
        for call_by in (by_python, *others):
            answer = call_by(store, verb, given)
            assert (answer.code, answer.text) == ("invalid_argument", f"{name}=['1', '2'] {expected}")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GeneratedClient]:
    folder = tmp_path_factory.mktemp("generated")
    with pytest.MonkeyPatch.context() as patch, oakleaf.open("memory:") as store:
        patch.syspath_prepend(folder)
        with LocalServer(store) as server:
            description = server.client.get("/openapi.json").content
        yield GeneratedClient(description, folder, "verb_client")


@rows(lambda verb, call: call.error is None and is_requested(verb, call.values))
def test_a_generated_client_has_the_same_answer(
    verb: type[Verb], call: Call, generated: GeneratedClient, store_path: Path, tmp_path: Path
) -> None:
    with oakleaf.open(write_store(tmp_path / "other.db")) as store, oakleaf.open(store_path) as served:
        for one in (store, served):
            call.prepare(one)
        operation = ".".join(re.sub(r"\W", "_", name.lower()) for name in (verb.section, verb.name))
        with LocalServer(served) as server:
            named, rest = split_values(verb, confirmed(verb, call.values))
            found = generated.call_with(server.url, operation, {**named, **rest})
        assert numbered(found.to_dict()) == by_python(store, verb, call.values).result


# -- what the shell completes -------------------------------------------------------------------------------


def completed(store: Path, *typed: str) -> list[str]:
    """Return what bash offers for the last word of a command line."""
    line = " ".join(["oakleaf", *typed])
    variables = {"_OAKLEAF_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(typed))}
    return [found.partition(",")[2] for found in oakleaf_command(store=store, **variables).out.splitlines()]


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_bash_completes_fields_choices_and_references(verb: type[Verb], store_path: Path) -> None:
    name = verb.name.split()
    options = [
        field for field in fields(verb).values() if not field.is_remote and field.kind not in ARGUMENTS
    ]
    offered = completed(store_path, *name, "--")
    assert {flag(field) for field in options} <= set(offered)
    for field in options:
        if field.choices:
            assert completed(store_path, *name, flag(field), field.choices[-1][:1])[-1:] == [
                field.choices[-1]
            ]
    first = next((field for field in fields(verb).values() if field.kind in ARGUMENTS), None)
    if first is not None and first.kind.startswith("reference") and not first.is_trashed:
        assert completed(store_path, *name, "ses_cas") == ["ses_case"]


# -- who may call ------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(store_path: Path) -> Iterator[LocalServer]:
    with (
        oakleaf.open(store_path) as store,
        LocalServer(store, token="service", client_tokens={"ann": "hers"}) as server,
    ):
        yield server


def test_without_the_token_of_a_service_no_verb_runs(guarded: LocalServer) -> None:
    for verb in VERBS.values():
        if "service" not in verb.callers:
            continue
        hers = (None,) if verb.name in FOR_CLIENTS else ("service_only", "not_found")
        for token, codes in ((None, ("no_token",)), ("wrong", ("no_token",)), ("hers", hers)):
            assert request(guarded, verb, required(verb), token).code in codes, (verb.name, token)


def test_a_request_names_no_file(guarded: LocalServer) -> None:
    for verb in VERBS.values():
        for name, field in fields(verb).items():
            if not field.is_local or "service" not in verb.callers:
                continue
            answer = request(guarded, verb, {**required(verb), name: "/etc/passwd"}, "service")
            assert answer.code == "invalid_argument", (verb.name, name, answer)
            assert "a request names no file or folder" in (answer.text or "")


def test_an_operators_verb_has_no_route(guarded: LocalServer) -> None:
    paths = guarded.get("/openapi.json", token="service")["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    for verb in VERBS.values():
        place = address(verb)
        assert ((place.method, place.path) in described) == ("service" in verb.callers), verb.name


def test_an_agent_only_reads() -> None:
    assert all(verb.effect == "read" for verb in agent_verbs().values())
    for verb in VERBS.values():
        assert "agent" not in verb.callers or verb.effect == "read", verb.name


def test_over_mcp_other_verbs_are_no_tools(store_path: Path) -> None:
    with oakleaf.open(store_path) as store:
        before = [row.facts for row in store.all_sessions()]
        for verb in VERBS.values():
            if verb not in agent_verbs().values():
                with pytest.RaisesGroup(MCPError, allow_unwrapped=True, flatten_subgroups=True):
                    by_mcp(store, verb, required(verb))
        assert [row.facts for row in store.all_sessions()] == before


# -- what destroys -----------------------------------------------------------------------------------------


@rows(
    lambda verb, call: needs_yes(verb, call.values) and call.error is None and is_requested(verb, call.values)
)
def test_without_yes_a_request_gets_the_plan_and_nothing_is_done(
    verb: type[Verb], call: Call, store_path: Path
) -> None:
    with oakleaf.open(store_path) as store:
        call.prepare(store)
        before = [row.facts for row in store.all_sessions()]
        with LocalServer(store) as server:
            planned = [request(server, verb, call.values) for _ in range(2)]
        assert planned[0].code is None
        assert planned[0] == planned[1]
        assert [row.facts for row in store.all_sessions()] == before
