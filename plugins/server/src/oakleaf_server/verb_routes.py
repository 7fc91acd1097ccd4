"""Every verb over HTTP: its route, its description, and its answer.

A reading verb is a GET whose query has the fields, a changing one a POST whose body has them. Knows no verb.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec
from anyio import from_thread
from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from oakleaf.errors import AnswerTooLarge, InvalidArgument
from oakleaf.session import Session
from oakleaf.verbs import registry
from oakleaf.verbs.base import Caller, Verb, result_type, to_json
from oakleaf.verbs.bounds import OMITTED, bounded
from oakleaf.verbs.fields import Field, bind_request, fields
from oakleaf.verbs.schema import components
from oakleaf_server.active_runs import ActiveRuns
from oakleaf_server.auth import Caller as HttpCaller
from oakleaf_server.context import ApiRequest, ServerContext, context_and_caller, few_at_once, in_thread
from oakleaf_server.problems import Refusal
from oakleaf_server.search_indexer import INDEX_WAIT
from oakleaf_server.truncate import MAX_RESPONSE

Json = dict[str, Any]
_IN_PATH = re.compile(r"\{(\w+)\}")
_METHODS = {"read": "GET", "write": "POST", "destroy": "POST"}


class Service(Caller):
    """The holder of the server's token. A model that a request names is compared with those on offer."""

    level = "service"
    surface = "HTTP"
    most = 500

    def __init__(
        self, context: ServerContext, runs: ActiveRuns, key: str | None, holder: str | None = None
    ) -> None:
        super().__init__(context.store)
        self._context, self._runs, self.key, self._holder = context, runs, key, holder

    def person(self, named: str | None) -> str | None:
        """Return the holder of the token. A name in the body counts only where the operator said so."""
        if named in (None, self._holder) or (self._holder is None and self._context.access.accepts_names):
            return named or self._holder
        raise Refusal(
            403,
            "name_refused",
            f"the body names {named!r} as the person who decides, and the token is "
            + ("of nobody by name" if self._holder is None else f"of {self._holder}"),
            "oakleaf serve --person NAME=SECRET gives a person a token, --accept-names takes the names of the service",
        )

    def check_model(self, name: str | None) -> None:
        self._context.agent.check_model(name)

    def index(self) -> str | None:
        """Index in the background, and wait a moment: a search answers before a long index is whole."""
        return self._context.indexer.catch_up(INDEX_WAIT)

    def resume(self, session: Session) -> bool:
        return from_thread.run(self._runs.resume_after_approval, session)


ClientAnswer = Callable[[ServerContext, HttpCaller, Any], Struct]
"""Answers a verb for a client: with fewer fields, of the sessions of its owner."""


class Address(Struct, frozen=True):
    """Where a verb is: the method, the path, and the fields in the path.

    A verb of many `sessions` has one of them in the path `/api/sessions/{session}`.
    """

    method: str
    path: str
    known: Mapping[str, Field]

    @property
    def in_path(self) -> dict[str, str]:
        """The fields in the path, by name in the path."""
        names = _IN_PATH.findall(self.path)
        return {name: name if name in self.known else f"{name}s" for name in names}

    def values(self, named: Mapping[str, str]) -> Json:
        """Return the values of a path as field values."""
        return {
            name: [named[written]] if self.known[name].kind == "references" else named[written]
            for written, name in self.in_path.items()
        }

    @property
    def has_body(self) -> bool:
        return self.method in ("POST", "PATCH", "PUT")


@cache
def verbs() -> tuple[type[Verb], ...]:
    """Return the verbs open to requests."""
    return tuple(verb for verb in registry.find_all() if "service" in verb.callers)


def address(verb: type[Verb]) -> Address:
    known = fields(verb)
    if verb.http:
        method, _, path = verb.http.partition(" ")
        return Address(method, path, known)
    below = (
        "/api/sessions/{session}" if "session" in known and known["session"].kind == "reference" else "/api"
    )
    return Address(_METHODS[verb.effect], f"{below}/{verb.name}", known)


def handlers(for_clients: Mapping[str, ClientAnswer]) -> list[HTTPRouteHandler]:
    return [_handler(verb, for_clients.get(verb.name)) for verb in verbs()]


def _handler(verb: type[Verb], for_client: ClientAnswer | None) -> HTTPRouteHandler:
    place = address(verb)
    run = few_at_once(_answer) if verb.effect == "read" else in_thread(_answer)

    async def handle(request: ApiRequest, **named: Any) -> Response[bytes]:
        values = await _values(request, place, named)
        called = Called(verb, values, not place.has_body, for_client)
        return await run(request=request, called=called)

    hints: dict[str, Any] = dict.fromkeys(place.in_path, FromPath[str])
    _annotate(handle, {"request": ApiRequest, **hints}, Response[bytes])
    handle.__name__, handle.__doc__ = re.sub("[ -]", "_", verb.name), verb.__doc__
    path = _IN_PATH.sub(r"{\1:str}", place.path)
    return HTTPRouteHandler(
        path,
        http_method=place.method,  # type: ignore[arg-type]
        status_code=verb.status,
        tags=[verb.section.lower()],
        opt={"verb": verb, "client": for_client is not None},
    )(handle)


def _annotate(function: Any, hints: dict[str, Any], result: Any) -> None:
    """Give a function the parameters Litestar reads."""
    from inspect import Parameter, Signature

    parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=hint) for name, hint in hints.items()]
    function.__signature__ = Signature(parameters, return_annotation=result)
    function.__annotations__ = {**hints, "return": result}


async def _values(request: ApiRequest, place: Address, named: dict[str, Any]) -> Json:
    """Return the fields of a request: the fields of the path, and of the body or query."""
    typed = await _body(request) if place.has_body else _query(request)
    for name, value in place.values(named).items():
        if name in typed:
            raise InvalidArgument(name, [value, typed[name]], "one value")
        typed[name] = value
    return typed


async def _body(request: ApiRequest) -> Json:
    data = await request.body()
    try:
        found = msgspec.json.decode(data) if data else {}
    except msgspec.DecodeError:
        raise Refusal(400, "invalid_body", "the body is not valid JSON", "see /openapi.json") from None
    if not isinstance(found, dict):
        raise Refusal(400, "invalid_body", "the body is not a JSON object", "see /openapi.json")
    return found


def _query(request: ApiRequest) -> Json:
    found: Json = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise InvalidArgument(name, request.query_params.getall(name), "one value")
        found[name] = value
    return found


class Called(Struct, frozen=True):
    """A request for a verb."""

    verb: type[Verb]
    values: Json
    is_text: bool
    for_client: ClientAnswer | None


def _answer(request: ApiRequest, called: Called) -> Response[bytes]:
    context, caller = context_and_caller(request)
    verb, values = called.verb, called.values
    is_confirmed = _has_plan(verb) and values.pop("yes", False) in (True, "true")
    bound = bind_request(verb, values, is_text=called.is_text)
    if caller.is_client and called.for_client is not None:
        answer = to_json(called.for_client(context, caller, bound))
    else:
        key = request.headers.get("idempotency-key")
        service = Service(context, request.app.state.runs, key, caller.person)
        answer = _run(bound, service, is_plan=bound.needs_yes and not is_confirmed)
    return Response(msgspec.json.encode(answer), status_code=verb.status, media_type="application/json")


def _run(verb: Verb, caller: Service, *, is_plan: bool) -> Json:
    """Return the answer of a verb. A page that is too large is read again with as many items as may fit."""
    while True:
        result = verb.plan(caller) if is_plan else verb.run(caller)
        try:
            return bounded(verb, to_json(result), MAX_RESPONSE)
        except AnswerTooLarge as error:
            limit = getattr(verb, "limit", 1) or caller.most
            if "page" not in fields(type(verb)) or limit == 1:
                raise
            verb = msgspec.structs.replace(verb, limit=max(1, limit * MAX_RESPONSE // (2 * error.size)))


def _has_plan(verb: type[Verb]) -> bool:
    """Whether a request gets the plan without a yes."""
    return verb.plan is not Verb.plan and not verb.has_local_plan


# -- the description ---------------------------------------------------------------------------------------


def describe(document: Json, ref: str) -> None:
    """Complete the OpenAPI document with the verbs' parameters and results."""
    schemas = components(verbs(), ref)
    for verb in verbs():
        _describe(document, verb, schemas, ref)
    document["components"]["schemas"].update(schemas)


def _describe(document: Json, verb: type[Verb], schemas: Json, ref: str) -> None:
    place = address(verb)
    operation = document["paths"][place.path][place.method.lower()]
    taken = schemas.pop(verb.__name__)
    properties = dict(taken["properties"])
    if _has_plan(verb):
        properties["yes"] = {
            "type": "boolean",
            "default": False,
            "description": "Do it; without it the answer is the plan",
        }
    inside = {written: properties.pop(name) for written, name in place.in_path.items()}
    required = [name for name in taken.get("required", ()) if name in properties]
    operation["parameters"] = [
        {"name": name, "in": "path", "required": True, "schema": _one(schema)}
        for name, schema in inside.items()
    ]
    if place.has_body:
        body = {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
        if not required:
            del body["required"]
        operation["requestBody"] = {
            "required": bool(required),
            "content": {"application/json": {"schema": body}},
        }
    else:
        operation["parameters"] += [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in properties.items()
        ]
    result = result_type(verb).__name__
    for name, kind in (("schema_version", "integer"), (OMITTED, "integer")):
        schemas[result]["properties"].setdefault(name, {"type": kind})
    operation["responses"][str(verb.status)] = {
        "description": "The plan, or what was done" if _has_plan(verb) else "The result",
        "content": {"application/json": {"schema": {"$ref": ref.format(name=result)}}},
    }


def _one(schema: Json) -> Json:
    """Return the schema of a path's single value."""
    one = schema.get("items", schema)
    return {name: value for name, value in one.items() if name != "default"}
