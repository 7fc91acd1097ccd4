"""Check before a run that a model can be asked: that its package and its key are there.

The plugin behind a model knows. It imports no SDK, which takes seconds, and sends nothing: a wrong key fails at the first
call.
"""

from __future__ import annotations

from collections.abc import Iterable

from oakleaf.errors import ModelUnavailable
from oakleaf.models.base import Model, model_name
from oakleaf.models.names import is_model_name, model_by_name, stored_model
from oakleaf.models.prefixes import SCRIPTED, model_problem


def available_models(names: Iterable[str], *, stored_in: str | None = None) -> list[Model]:
    """Return the models of a chain; raise ModelUnavailable if no model can answer.

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
    """Return the model; raise ModelUnavailable if the model cannot answer."""
    if (problem := _problem(model)) is not None:
        raise problem
    return model


def _problem(model: Model) -> ModelUnavailable | None:
    name = model_name(model) or ""
    prefix = name.partition(":")[0]
    return model_problem(prefix, model) if prefix != SCRIPTED and is_model_name(name) else None
