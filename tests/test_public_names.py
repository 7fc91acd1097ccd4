"""The public face: what `oakleaf` exports, and what importing it loads."""

from __future__ import annotations

import ast
import builtins
import inspect
import subprocess
import sys

import pytest

import oakleaf


def test_all_is_sorted_and_every_name_is_there() -> None:
    assert oakleaf.__all__ == sorted(oakleaf.__all__)
    assert dir(oakleaf) == sorted([*oakleaf.__all__, "open"])
    for name in dir(oakleaf):
        assert getattr(oakleaf, name) is not None


def test_type_checkers_know_every_name() -> None:
    imports = [
        node for node in ast.walk(ast.parse(inspect.getsource(oakleaf))) if isinstance(node, ast.ImportFrom)
    ]
    assert set(dir(oakleaf)) <= {alias.asname for node in imports for alias in node.names}


def test_importing_every_name_replaces_no_builtin() -> None:
    names: dict[str, object] = {}
    exec("from oakleaf import *", names)
    assert names["user"] is oakleaf.user
    assert not (names.keys() - {"__builtins__"}) & vars(builtins).keys()
    assert callable(oakleaf.open)


def test_the_names_of_the_contract_are_public() -> None:
    contract = "open system user assistant tool_result ToolCall Text Session Store Leaf Entry Message Usage StaleLeaf NotFound"
    assert set(contract.split()) <= set(dir(oakleaf))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        oakleaf.nothing  # noqa: B018


def loaded_modules(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(m.partition('.')[0] for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_loads_no_dependency_and_using_it_none_of_the_optional_ones() -> None:
    assert not {"msgspec", "apsw", "asyncio"} & loaded_modules("import oakleaf")
    used = loaded_modules(
        "import oakleaf\ns = oakleaf.open('memory:').start('a')\ns.append([oakleaf.user('x')])\ns.messages('anthropic')"
    )
    assert not {"anthropic", "openai", "genai_prices", "asyncio", "pydantic", "click", "psycopg"} & used


def test_every_error_has_its_place_in_the_drawn_tree() -> None:
    from oakleaf import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    for kind in kinds:
        assert kind.__name__ in (errors.__doc__ or ""), kind
        assert issubclass(kind, errors.OakleafError)


def test_every_public_class_and_function_says_what_it_is() -> None:
    for name in dir(oakleaf):
        known = getattr(oakleaf, name)
        if inspect.isclass(known) or inspect.isroutine(known):
            assert said_of(known), name


@pytest.mark.parametrize("face", [oakleaf.Session, oakleaf.Store])
def test_every_verb_says_what_it_does(face: type) -> None:
    verbs = {name: verb for kind in face.__mro__[:-1] for name, verb in vars(kind).items() if name[0] != "_"}
    assert len(verbs) > 10
    for name, verb in verbs.items():
        if callable(verb) or isinstance(verb, property | classmethod | staticmethod):
            assert said_of(verb), name


def said_of(known: object) -> str | None:
    """The docstring of its own: a class inherits none, and what `help` would borrow does not count."""
    if isinstance(known, type):
        return known.__dict__.get("__doc__")
    return known.__doc__
