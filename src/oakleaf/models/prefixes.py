"""The prefixes of models' names, and the plugins behind them: entry points of the group `oakleaf.models`.

Names a plugin that cannot be used, whatever the plugin raises or returns. Does not know which name an operator gave.
"""

from __future__ import annotations

from oakleaf import plugins
from oakleaf.errors import ModelUnavailable, PluginBroken, PluginMissing
from oakleaf.models.base import Model, ModelPlugin
from oakleaf.wire import PROVIDERS

SCRIPTED = "scripted"
"""The kernel's own prefix, handled without a plugin."""


def is_prefix(prefix: str) -> bool:
    return prefix == SCRIPTED or prefix in plugins.names(plugins.MODELS)


def prefixes() -> list[str]:
    """Return every known prefix, without importing a plugin."""
    return [*plugins.names(plugins.MODELS), SCRIPTED]


def prefix_of_family(name: str) -> str | None:
    """Return the prefix of a bare model name such as `claude-…`; None if no plugin knows the family.

    The library's own plugins are asked first: no stranger takes over a vendor's names.
    """
    own = {each.name for each in plugins.providers() if each.group == plugins.MODELS and each.is_own}
    for prefix in sorted(plugins.names(plugins.MODELS), key=lambda prefix: (prefix not in own, prefix)):
        plugin = _usable(prefix)
        if plugin is not None and name.startswith(tuple(filter(None, plugin.families))):
            return prefix
    return None


def url_variable(prefix: str) -> str | None:
    """Return the operator's variable for another server; None if there is no variable, or no plugin to ask."""
    plugin = _usable(prefix)
    return None if plugin is None else plugin.url_variable


def make_model(prefix: str, name: str, base_url: str | None, *, takes_key: bool = True) -> Model:
    plugin = _find(prefix)
    with plugins.naming(plugins.MODELS, prefix, "make"):
        model = plugin.make(name, base_url, takes_key=takes_key)
    return _checked(prefix, "make", model)


def model_of_client(prefix: str, name: str, client: object) -> Model:
    plugin = _find(prefix)
    with plugins.naming(plugins.MODELS, prefix, "make_of"):
        model = plugin.make_of(client, name)
    return _checked(prefix, "make_of", model)


def _checked(prefix: str, method: str, model: Model) -> Model:
    if not callable(getattr(model, "stream", None)):
        raise plugins.broken(
            plugins.MODELS, prefix, f"{method} returned {type(model).__name__}, which is no model"
        )
    wire_format = getattr(model, "provider", None)
    if wire_format not in PROVIDERS:
        raise plugins.broken(
            plugins.MODELS, prefix, f"its wire format {wire_format!r} is none of {', '.join(PROVIDERS)}"
        )
    return model


def model_problem(prefix: str, model: Model) -> ModelUnavailable | None:
    """Return the reason, known to the plugin before a call, why a model cannot answer."""
    plugin = _find(prefix)
    with plugins.naming(plugins.MODELS, prefix, "problem"):
        problem = plugin.problem(model)
    if problem is not None and not isinstance(problem, ModelUnavailable):
        raise plugins.broken(
            plugins.MODELS, prefix, f"problem returned {type(problem).__name__}, which is no ModelUnavailable"
        )
    return problem


def _find(prefix: str) -> ModelPlugin:
    plugin = plugins.find(plugins.MODELS, prefix)
    if not isinstance(plugin, ModelPlugin):
        raise plugins.broken(plugins.MODELS, prefix, f"it is {type(plugin).__name__}, and no ModelPlugin")
    families, variable = plugin.families, plugin.url_variable
    if not isinstance(families, tuple) or not all(isinstance(family, str) for family in families):
        raise plugins.broken(
            plugins.MODELS, prefix, f"its families are {families!r:.80}, and no tuple of names"
        )
    if not isinstance(variable, str | None):
        raise plugins.broken(
            plugins.MODELS, prefix, f"its url_variable is {variable!r:.80}, and no name of a variable"
        )
    return plugin


def _usable(prefix: str) -> ModelPlugin | None:
    try:
        return _find(prefix)
    except (PluginMissing, PluginBroken):  # told when a model of it is asked for
        return None
