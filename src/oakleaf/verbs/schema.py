"""The JSON schemas of verbs: what each takes and what it returns, for OpenAPI and MCP."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from oakleaf.verbs.base import Verb, result_type, summary
from oakleaf.verbs.bounds import OMITTED
from oakleaf.verbs.fields import fields

Json = dict[str, Any]


def components(verbs: Iterable[type[Verb]], ref_template: str) -> Json:
    """Return the schemas of all verbs and their results by the names of their classes."""
    types: list[type] = [kind for verb in verbs for kind in (verb, result_type(verb))]
    _, found = msgspec.json.schema_components(types, ref_template=ref_template)
    for verb in verbs:
        found[verb.__name__] = _public(verb, found[verb.__name__])
    return dict(found)


def schema(verb: type[Verb]) -> Json:
    """Return the schema of what a verb takes from elsewhere, complete in itself."""
    return _public(verb, _complete(verb))


def result_schema(verb: type[Verb]) -> Json:
    """Return the schema of a verb's result with what every surface adds, complete in itself."""
    found = _complete(result_type(verb))
    counts = {name: {"type": "integer"} for name in ("schema_version", OMITTED)}
    return {**found, "properties": {**counts, **found["properties"]}}


def public_names(verb: type[Verb], without: Collection[str] = ()) -> list[str]:
    """Return the fields that a request may have."""
    return [name for name, field in fields(verb).items() if not field.is_local and name not in without]


def _complete(kind: type) -> Json:
    """Return a type's schema as an object with its definitions, instead of a reference to one."""
    whole = msgspec.json.schema(kind)
    definitions = whole.pop("$defs", {})
    if "$ref" not in whole:
        return {**whole, "$defs": definitions}
    name = whole["$ref"].rpartition("/")[2]
    found = definitions.pop(name)
    return {**found, "$defs": definitions} if definitions else found


def _public(verb: type[Verb], found: Json) -> Json:
    names = public_names(verb)
    properties = {name: found["properties"][name] for name in names if name in found["properties"]}
    required = [name for name in found.get("required", ()) if name in properties]
    return {
        **found,
        "description": summary(verb),
        "properties": properties,
        **({"required": required} if "required" in found else {}),
        "additionalProperties": False,
    }
