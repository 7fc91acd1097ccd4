"""The public face of the lab: what `oakleaf_lab` exports."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

import oakleaf_lab
from oakleaf_lab import errors


def test_every_name_of_the_lab_is_there_and_says_what_it_is() -> None:
    for name in oakleaf_lab.__all__:
        assert inspect.getdoc(getattr(oakleaf_lab, name)), name


def test_no_module_of_the_lab_hides_a_public_name() -> None:
    """Importing `package.module` sets the attribute `module` of the package."""
    for file in Path(oakleaf_lab.__path__[0]).rglob("*.py"):
        place = file.relative_to(oakleaf_lab.__path__[0]).with_suffix("")
        import_module(".".join(("oakleaf_lab", *place.parts)))
    assert not [name for name in oakleaf_lab.__all__ if isinstance(getattr(oakleaf_lab, name), ModuleType)]


def test_type_checkers_know_every_name_of_the_lab() -> None:
    tree = ast.parse(inspect.getsource(oakleaf_lab))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert set(oakleaf_lab.__all__) <= {alias.asname for node in imports for alias in node.names}


def test_every_error_of_the_lab_has_its_place_in_the_drawn_tree() -> None:
    own = [
        kind for kind in vars(errors).values() if inspect.isclass(kind) and kind.__module__ == errors.__name__
    ]
    assert len(own) == 9
    for kind in own:
        assert f"── {kind.__name__} " in (errors.__doc__ or ""), kind
