"""Find models by name: `anthropic:claude-…`, `openai-chat:…@http://127.0.0.1:8080/v1`."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import ModelUnavailable
from .model import Model
from .scripted import load_script

if TYPE_CHECKING:
    from .clients.base import VendorClient

_URL = re.compile(r"@(?=https?://)")


def model_by_name(name: str) -> Model:
    """Return the model `provider:model`, or `provider:model@http://host/path` on another server."""
    prefix, _, rest = name.partition(":")
    if not is_model_name(name):
        names = ", ".join(f"{names}:…" for names in _MAKERS)
        raise ModelUnavailable(name, "there is no model with this name", f"known names: {names}")
    return _MAKERS[prefix](rest)


def is_model_name(name: str) -> bool:
    """Whether a name has the form `provider:model`; a model of the host's own may have any other."""
    prefix, _, rest = name.partition(":")
    return prefix in _MAKERS and bool(rest)


_FAMILIES = {
    "claude-": "anthropic",
    "gpt-": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4-": "openai",
    "gemini-": "gemini",
}
"""How the names of each vendor's own models begin."""


def with_provider(name: str) -> str:
    """Return `claude-…`, `gpt-…` and `gemini-…` with the provider before it, as people write them; any other as it is."""
    family = next((family for family in _FAMILIES if name.startswith(family)), None)
    return name if family is None or ":" in name else f"{_FAMILIES[family]}:{name}"


def _client(module: str, class_name: str) -> Callable[[str], Model]:
    def make(rest: str) -> Model:
        model, *url = _URL.split(rest, maxsplit=1)
        client: type[VendorClient] = getattr(import_module(f"{__package__}.clients.{module}"), class_name)
        return client(model, base_url=url[0] if url else None)

    return make


_MAKERS: dict[str, Callable[[str], Model]] = {
    "anthropic": _client("anthropic", "AnthropicModel"),
    "openai": _client("openai_responses", "OpenAIModel"),
    "openai-chat": _client("openai_chat", "OpenAIChatModel"),
    "gemini": _client("gemini", "GeminiModel"),
    "scripted": load_script,
}
