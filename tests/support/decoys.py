"""Decoys of a client: functions and operators with the names of PostgreSQL's own, in a schema that everybody's search path has.

PostgreSQL prefers what matches the types of the arguments exactly, in whatever schema of the path. So for each name
that our statements use there is a decoy with every other combination of the types that they use. A decoy that is chosen fails
its statement: the service may not execute it, which PostgreSQL checks as soon as a statement begins, and for a superuser,
who may execute everything, it raises.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import absurdctl
import psycopg

from support.paths import ROOT

SOURCES = ("src/oakleaf/stores/*.py", "plugins/postgres/src/**/*.py", "plugins/postgres/src/**/*.sql")
CALL = re.compile(r"(\w+) ?\(")
TYPES = (
    *(
        "bigint",
        "integer",
        "text",
        "varchar",
        "name",
        '"char"',
        "bytea",
        "boolean",
        "json",
        "jsonb",
        "uuid",
        "oid",
    ),
    *(
        "regrole",
        "regclass",
        "regnamespace",
        "timestamptz",
        "interval",
        "float8",
        "numeric",
        "tsvector",
        "tsquery",
    ),
    *("text[]", "bigint[]", "uuid[]"),
)
FEW_TYPES = ("bigint", "integer", "text", "varchar", "bytea", "boolean", "json", "jsonb", "float8")
"""For arguments of functions, and for all arguments at once."""
OPERATORS = {
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">=", "@@", "?", "@>", "~~", "!~~", "~", "!~"), "boolean"),
    **dict.fromkeys(("+", "-", "*", "/", "&", "|", "<<", ">>", "%"), "bigint"),
    **dict.fromkeys(("||", "->>"), "text"),
    "->": "json",
}
"""The operators of our statements, each with what its decoys return."""
SELECT_FUNCTIONS = """
select proname::text, array(select format_type(type, null) from unnest(proargtypes) with ordinality as a (type, n) order by n),
       case when pronargdefaults > 0 and pronargdefaults = pronargs then proargnames else '{}' end, pronargdefaults
from pg_proc where pronamespace = 'pg_catalog'::regnamespace and proname = any(%s) and prokind in ('f', 'a')
"""
SELECT_OPERATORS = """
select oprname::text, format_type(oprleft, null), format_type(oprright, null) from pg_operator
where oprnamespace = 'pg_catalog'::regnamespace and oprname = any(%s)
"""
BODY = """language plpgsql as $$ begin raise exception 'a decoy ran as %', current_user; end $$"""


def plant(client_url: str) -> int:
    """Plant every decoy in the schema public, as the client, who must be allowed to create there; return how many."""
    with psycopg.connect(client_url) as client:
        client.execute("set local search_path = pg_catalog")
        statements = [*_functions(client), *_operators(client)]
        client.execute("set local check_function_bodies = off")
        client.execute("set local client_min_messages = error")
        for first in range(0, len(statements), 1000):
            client.execute(";\n".join(statements[first : first + 1000]), prepare=False)  # type: ignore[arg-type]
        client.execute("revoke execute on all functions in schema public from public")
    return len(statements)


def used_names() -> set[str]:
    """Return what looks like the name of a function in our SQL or in Absurd's."""
    texts = [path.read_text() for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()]
    return set(CALL.findall("\n".join([*texts, absurdctl.BUNDLED_SCHEMA_SQL])))


def _functions(client: psycopg.Connection[Any]) -> list[str]:
    rows = client.execute(SELECT_FUNCTIONS, (sorted(used_names()),)).fetchall()
    decoys = {(name, *other): names for name, types, names, _ in rows for other in _variants(types)}
    for (
        name,
        types,
        _,
        defaults,
    ) in rows:  # exact where PostgreSQL's own takes defaults for the last arguments
        decoys |= {(name, *types[:count]): [] for count in range(max(1, len(types) - defaults), len(types))}
    for name, types, _, _ in rows:
        decoys.pop((name, *types), None)
    return [
        f"create function public.{_quote(name)}({_arguments(types, names)}) returns text {BODY}"
        for (name, *types), names in sorted(decoys.items())
    ]


def _arguments(types: list[str], names: list[str]) -> str:
    """Return the arguments of a decoy; those of a function that is called by their names have the same."""
    if len(names) != len(types):
        return ", ".join(types)
    return ", ".join(f"{_quote(name)} {kind} default null" for name, kind in zip(names, types, strict=True))


def _variants(types: list[str]) -> set[tuple[str, ...]]:
    """Return other types for the arguments of a function: another one for each of them, or the same for all."""
    if any(name.startswith(('"any"', "any")) for name in types):  # or any number of them
        return {(name,) * count for name in FEW_TYPES for count in range(1, 5)}
    if len(types) == 2:
        return set(product(FEW_TYPES, repeat=2))
    return {(*types[:n], name, *types[n + 1 :]) for n in range(len(types)) for name in FEW_TYPES}


def _operators(client: psycopg.Connection[Any]) -> list[str]:
    known = set(client.execute(SELECT_OPERATORS, (list(OPERATORS),)).fetchall())
    statements = [
        f"create function public.decoy_{result}({left}, {right}) returns {result} {BODY}"
        for result in dict.fromkeys(OPERATORS.values())
        for left, right in product(TYPES, repeat=2)
    ]
    names = {name: _full_name(client, name) for name in TYPES}
    return statements + [
        f"create operator public.{operator} (leftarg = {left}, rightarg = {right}, function = public.decoy_{result})"
        for operator, result in OPERATORS.items()
        for left, right in product(TYPES, repeat=2)
        if (operator, names[left], names[right]) not in known
    ]


def _full_name(client: psycopg.Connection[Any], name: str) -> str:
    row = client.execute("select format_type(%s::regtype, null)", (name,)).fetchone()
    assert row is not None
    return str(row[0])


def _quote(name: str) -> str:
    return '"' + name + '"'
