"""Check before a run that a model has its package and its key.

Reads the attributes of a vendor's client. Imports no SDK, which takes seconds, and sends nothing: a wrong key fails
at the first call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec

from oakleaf.errors import ModelUnavailable
from oakleaf.models.base import Model
from oakleaf.models.names import model_by_name, stored_model
from oakleaf.providers.base import VendorClient


def available_models(names: Iterable[str], *, stored_in: str | None = None) -> list[Model]:
    """Return the models of a chain; raise ModelUnavailable if none of them can answer.

    `stored_in` is the session whose stored data names them; without it the operator does.
    """
    if stored_in is None:
        chain = [model_by_name(name) for name in names]
    else:
        chain = [stored_model(name, stored_in) for name in names]
    problems = [_problem(model) for model in chain]
    if problems and all(problems):
        raise next(filter(None, problems))
    return chain


def check_available(model: Model) -> Model:
    """Return the model; raise ModelUnavailable if it cannot answer."""
    if (problem := _problem(model)) is not None:
        raise problem
    return model


def _problem(model: Model) -> ModelUnavailable | None:
    if not isinstance(model, VendorClient):
        return None
    name = model.name
    if not _is_installed(model.package):
        hint = f'pip install "oakleaf[{model.extra}]"'
        return ModelUnavailable(name, f"the package {model.package} is not installed", hint)
    has_key = any(map(os.environ.get, model.key_variables))
    if not has_key and "@http" not in name:  # a custom server may need none
        return ModelUnavailable(
            name, "no API key was found", f"set {' or '.join(model.key_variables)} in the environment"
        )
    return None


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # its parent package is missing too
        return False
