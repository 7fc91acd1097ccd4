"""Find models by name: `anthropic:claude-…`, `openai-chat:…@http://127.0.0.1:8080/v1`.

Who gives a name decides what it may do. `model_by_name` takes the word of the operator: a flag, the configuration, the
environment, code. `stored_model` takes a name that was read from a store, which may have come with a bundle: it names no
file, and no address but those that the operator allows.
"""

from __future__ import annotations

import os
import re
import shlex

from oakleaf.errors import ModelRefused, ModelUnavailable
from oakleaf.models.base import Model
from oakleaf.models.prefixes import (
    SCRIPTED,
    is_prefix,
    make_model,
    model_of_client,
    prefix_of_family,
    prefixes,
    url_variable,
)
from oakleaf.models.scripted import load_script
from oakleaf.models.servers import VARIABLE, find_server, is_loopback, is_same_address

_URL = re.compile(r"@(?=https?://)")
_CLIENT = re.compile(r"(.+)@client:(\w+)", re.DOTALL)


def model(name: str, *, client: object) -> Model:
    """Return a model that is called through a client object of yours: `model("claude-…", client=AsyncAnthropicBedrock())`.

    The object is that of the vendor's SDK, asynchronous, with its own server, credentials and retries. It is never closed
    and never changed. Sessions record the name and the class, so that resuming elsewhere asks for such an object again.
    """
    full = with_provider(name)
    if not is_model_name(full):
        raise _unknown(name)
    if address_of(full) is not None:
        raise ModelUnavailable(name, "a client object has an address of its own", "pass the name without one")
    prefix, _, rest = full.partition(":")
    if prefix == SCRIPTED:
        raise ModelUnavailable(name, "a script takes no client object", "pass its name alone")
    return model_of_client(prefix, rest, client)


def model_by_name(name: str) -> Model:
    """Return the model `provider:model`, or `provider:model@http://host/path` on another server; by the operator's word."""
    prefix, _, rest = name.partition(":")
    if not is_model_name(name):
        raise _unknown(name)
    if prefix == SCRIPTED:
        return load_script(rest)
    model, *address = _URL.split(rest, maxsplit=1)
    return make_model(prefix, model, address[0] if address else None)


def stored_model(name: str, session_id: str, option: str = "model", flag: str = "--model ") -> Model:
    """Return the model named by a session's stored data; raise ModelRefused for a name reserved to operators.

    The operator gave it if $OAKLEAF_MODEL is the same. A loopback address that is not listed in $OAKLEAF_SERVERS gets no
    key. An operator names a model with `option` in Python, with `flag` at the command line.
    """
    if name == os.environ.get("OAKLEAF_MODEL"):
        return model_by_name(name)
    flag += shlex.quote(name)
    if name.startswith(f"{SCRIPTED}:"):
        raise ModelRefused(
            name,
            f"session {session_id} names a script, and stored data names no file to read",
            f"pass the model yourself: {option}={name!r}",
            f"name the model yourself: {flag}",
        )
    address = address_of(name)
    if address is None or _is_configured(name, address):
        return model_by_name(name)
    if foreign_address(name) is not None:
        allow = f"allow the address: {VARIABLE}={shlex.quote(address)}, or with a key of its own {shlex.quote(address + '=VARIABLE')}"
        raise ModelRefused(
            name,
            f"its address {address} comes from session {session_id} and is not configured here, so that it gets neither the "
            "history nor a key",
            f"pass the model yourself if you trust the address: {option}={name!r}; or {allow}",
            f"name the model yourself if you trust the address: {flag}; or {allow}",
        )
    prefix, _, rest = name.partition(":")
    return make_model(prefix, _URL.split(rest, maxsplit=1)[0], address, takes_key=False)


def address_of(name: str) -> str | None:
    """Return the address in a model's name; None means the vendor's own server."""
    _, *address = _URL.split(name, maxsplit=1)
    return address[0] if address and is_model_name(name) and not name.startswith(f"{SCRIPTED}:") else None


def foreign_address(name: str) -> str | None:
    """Return the address in a model's name if only an operator's word allows the address; else None."""
    address = address_of(name)
    if address is None or is_loopback(address) or _is_configured(name, address):
        return None
    return address


def _is_configured(name: str, address: str) -> bool:
    """Whether the operator allows the address: by $OAKLEAF_SERVERS, or by the vendor's variable such as
    OPENAI_BASE_URL.
    """
    variable = url_variable(name.partition(":")[0])
    own = None if variable is None else os.environ.get(variable)
    return (own is not None and is_same_address(own, address)) or find_server(address, name) is not None


def is_model_name(name: str) -> bool:
    """Whether a name has the form `provider:model`; a model of the host's own, or of its client object, has another."""
    prefix, _, rest = name.partition(":")
    return bool(rest) and is_prefix(prefix) and not needs_client(name)


def needs_client(name: str) -> bool:
    """Whether a model was called through a client object, so that its name alone finds it nowhere."""
    return _CLIENT.fullmatch(name) is not None


def _unknown(name: str) -> ModelUnavailable:
    if (of_client := _CLIENT.fullmatch(name)) is not None:
        return ModelUnavailable(
            name,
            "it was called through a client object of the program's own",
            f"pass such an object: model=oakleaf.model({of_client[1]!r}, client={of_client[2]}(…)), or another model",
            f"name another model with --model, or resume it in Python: oakleaf.model({of_client[1]!r}, client={of_client[2]}(…))",
        )
    names = ", ".join(f"{prefix}:…" for prefix in prefixes())
    return ModelUnavailable(name, "there is no model with this name", f"known names: {names}")


def with_provider(name: str) -> str:
    """Return `claude-…`, `gpt-…` and `gemini-…` with the provider in front; other names unchanged."""
    prefix = None if ":" in name else prefix_of_family(name)
    return name if prefix is None else f"{prefix}:{name}"
