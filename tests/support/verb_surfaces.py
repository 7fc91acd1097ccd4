"""One call of a verb on every surface: Python, the command line, HTTP on a loopback port, MCP.

A call is a verb and the JSON values of its fields. Each surface answers with an `Answer`, in which generated ids and times
are numbered, so that the answers of two stores compare.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from mcp import Client
from msgspec import Struct

from oakleaf import Store
from oakleaf.errors import OakleafError
from oakleaf.verbs.base import Verb, to_json
from oakleaf.verbs.fields import Field, bind, fields
from oakleaf_mcp.verb_tools import build_server
from oakleaf_mcp.verb_tools import verbs as agent_verbs
from oakleaf_server.verb_routes import address
from support.server import CHANGE_HEADERS, LocalServer, bearer
from support.terminal import oakleaf

Json = dict[str, Any]
_GENERATED = re.compile(r"\b([a-z]+_)?[0-9a-f]{20,64}\b")
ARGUMENTS = ("reference", "references", "word", "words", "pairs", "place", "places")
"""The kinds of fields that are no options at the command line."""
_STORE = re.compile(r"\S*/pytest-\S*/\w+\.db\b")
"""The file of a sample store: each surface has one of its own."""
_LEAST_TIME = 10**15
"""Microseconds since 1970, in 2001."""


class Answer(Struct, frozen=True):
    """The result, or the error as its code, problem and hint. What a surface does not say is None."""

    result: Any = None
    code: str | None = None
    text: str | None = None
    exit_code: int | None = None

    def says_as(self, other: Answer) -> bool:
        """Return whether two answers agree in everything that both surfaces say."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        is_error = self.text is not None
        return is_error == (other.text is not None) and all(
            a == b for a, b in pairs if a is not None and b is not None
        )


def failed(error: OakleafError) -> Answer:
    return Answer(code=error.code, text=error.command_text, exit_code=int(error.exit_code))


# -- the surfaces ------------------------------------------------------------------------------------------


def by_python(store: Store, verb: type[Verb], values: Json) -> Answer:
    try:
        called = bind(verb, values)
        result = called(store)
    except OakleafError as error:
        return failed(error)
    return Answer(result=numbered(to_json(result)), exit_code=called.exit_code(result))


def by_command(store: Store, verb: type[Verb], values: Json) -> Answer:
    """Call it in a process of its own, which opens the store by its address."""
    return command(store, verb, *["--yes"] * needs_yes(verb, values), *words(verb, values))


def command(store: Store, verb: type[Verb], *arguments: str) -> Answer:
    done = oakleaf(*verb.name.split(), "--json", *arguments, store=store.backend.url)
    if done.out:
        return Answer(result=numbered(json.loads(done.out)), exit_code=done.code)
    return Answer(text=done.err.removeprefix("oakleaf: ").removesuffix("\n"), exit_code=done.code)


def by_http(store: Store, verb: type[Verb], values: Json) -> Answer:
    with LocalServer(store) as server:
        return request(server, verb, confirmed(verb, values))


def confirmed(verb: type[Verb], values: Json) -> Json:
    return {**values, "yes": True} if needs_yes(verb, values) else values


def needs_yes(verb: type[Verb], values: Json) -> bool:
    """Return whether a call has a plan to confirm. One that is refused has none."""
    try:
        return bind(verb, values).needs_yes
    except OakleafError:
        return False


def request(server: LocalServer, verb: type[Verb], values: Json, token: str | None = None) -> Answer:
    place = address(verb)
    default = {name: fields(verb)[name].default for name in place.in_path.values()}
    named, rest = split_values(verb, {**default, **values})
    path = place.path.format(**named)
    sent: Json = {"content": json.dumps(rest)} if place.has_body else {"params": rest}
    reply = server.client.request(place.method, path, headers={**CHANGE_HEADERS, **bearer(token)}, **sent)
    body = reply.json()
    if reply.is_success:
        assert reply.status_code == verb.status
        return Answer(result=numbered(body))
    return Answer(code=body["code"], text="; ".join(filter(None, [body["detail"], body.get("hint")])))


def split_values(verb: type[Verb], values: Json) -> tuple[Json, Json]:
    """Return the values that the path of a request has, one for each name, and the others."""
    in_path = address(verb).in_path
    named = {written: values[name] for written, name in in_path.items() if name in values}
    rest = {name: value for name, value in values.items() if name not in in_path.values()}
    return {name: value[0] if isinstance(value, list) else value for name, value in named.items()}, rest


def by_mcp(store: Store, verb: type[Verb], values: Json) -> Answer:
    async def talk() -> Answer:
        async with Client(build_server(store)) as client:  # compares the answer with its schema
            reply = await client.call_tool(verb.name.replace(" ", "_"), values)
        (content,) = reply.content
        if reply.is_error:
            return Answer(code=(reply.meta or {})["code"], text=content.text)
        return Answer(result=numbered(reply.structured_content))

    return asyncio.run(talk())


SURFACES: dict[str, Callable[[Store, type[Verb], Json], Answer]] = {
    "command line": by_command,
    "HTTP": by_http,
    "MCP": by_mcp,
}


def surfaces_of(verb: type[Verb], values: Json, store: Store) -> list[str]:
    """Return the surfaces on which a call can be made."""
    has = {
        "command line": "operator" in verb.callers
        and store.backend.url != "memory:"
        and not any(field.is_remote for field in _fields_of(verb, values)),
        "HTTP": is_requested(verb, values),
        "MCP": verb in agent_verbs().values() and not _has_local(verb, values),
    }
    return [name for name, is_there in has.items() if is_there]


def is_requested(verb: type[Verb], values: Json) -> bool:
    """Return whether a request can make a call."""
    return "service" in verb.callers and not _has_local(verb, values)


def _has_local(verb: type[Verb], values: Json) -> bool:
    return any(field.is_local for field in _fields_of(verb, values))


def _fields_of(verb: type[Verb], values: Json) -> list[Field]:
    return [fields(verb)[name] for name in values.keys() & fields(verb).keys()]


# -- what is typed -----------------------------------------------------------------------------------------


def words(verb: type[Verb], values: Json) -> list[str]:
    """Return the values of a call as words of a command line: options first."""
    options: list[str] = []
    arguments: list[str] = []
    for name, value in values.items():
        field = fields(verb).get(name)
        if field is not None and field.kind == "pairs":
            arguments += [f"{key}={item or ''}" for key, item in value.items()]
        elif field is not None and field.kind in ARGUMENTS:
            arguments += value if isinstance(value, list) else [str(value)]
        else:
            options += _option(name, field, value)
    return [*options, *(["--"] if arguments else []), *arguments]


def flag(field: Field) -> str:
    return "--option" if field.kind == "options" else f"--{field.name.replace('_', '-')}"


def _option(name: str, field: Field | None, value: Any) -> list[str]:
    typed = f"--{name.replace('_', '-')}" if field is None else flag(field)
    if field is not None and field.kind == "options":
        return [word for key, item in value.items() for word in (typed, f"{key}={json.dumps(item)}")]
    if isinstance(value, list):
        return [typed, ",".join(value)]
    if isinstance(value, bool):
        return [typed] if value else []
    return [typed, str(value)]


# -- what is compared --------------------------------------------------------------------------------------


def numbered(value: Any) -> Any:
    """Return JSON in which generated ids and times are numbered by where they appear first."""
    seen: dict[Any, int] = {}

    def number(found: Any) -> str:
        return f"#{seen.setdefault(found, len(seen) + 1)}"

    def of(item: Any) -> Any:
        if isinstance(item, str):
            return _GENERATED.sub(lambda match: number(match[0]), _STORE.sub("STORE", item))
        if isinstance(item, dict):
            # The marks of a seal follow from its times.
            return {
                of(name): number(one) if name == "marks" and isinstance(one, str) else of(one)
                for name, one in item.items()
            }
        if isinstance(item, list | tuple):
            return [of(one) for one in item]
        return "time" if isinstance(item, int) and item > _LEAST_TIME else item

    return of(value)
