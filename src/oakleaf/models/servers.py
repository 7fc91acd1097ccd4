"""The servers that the operator of this process allows, each with its key: $OAKLEAF_SERVERS.

    OAKLEAF_SERVERS="http://gpu.internal:8000/v1 https://llm.example/v1=LLM_KEY"

An address, or an address and the name of the variable that has its key; separated by blanks. A listed address gets that
key and no other. Knows addresses. Does not know who names one.
"""

from __future__ import annotations

import os
import re

from msgspec import Struct

from oakleaf.errors import ModelUnavailable

VARIABLE = "OAKLEAF_SERVERS"
_ENTRY = re.compile(r"(https?://[^\s=]+)(?:=([A-Za-z_][A-Za-z0-9_]*))?")
_LOOPBACK = re.compile(
    r"https?://(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?", re.IGNORECASE
)
"""Strict: an address that two parsers might read differently is none."""


class AllowedServer(Struct, frozen=True):
    """A server allowed by the operator."""

    address: str
    key_variable: str | None = None
    """The variable with the key; None: no key needed."""

    def key(self, model: str) -> str | None:
        """Return the server's key; raise ModelUnavailable if the variable is not set."""
        if self.key_variable is None:
            return None
        key = os.environ.get(self.key_variable)
        if not key:
            raise ModelUnavailable(
                model,
                f"${VARIABLE} names {self.key_variable} for the key of {self.address}",
                f"set {self.key_variable} in the environment",
            )
        return key


def find_server(address: str, model: str) -> AllowedServer | None:
    """Return the server of $OAKLEAF_SERVERS at an address; None if the address is not listed. `model` is named in
    errors.
    """
    return next((each for each in _listed(model) if is_same_address(each.address, address)), None)


def _listed(model: str) -> list[AllowedServer]:
    servers = []
    for text in os.environ.get(VARIABLE, "").split():
        entry = _ENTRY.fullmatch(text)
        if entry is None:
            raise ModelUnavailable(
                model,
                f"${VARIABLE} cannot be read at {text!r}",
                "write http://host:8080/v1, or http://host:8080/v1=VARIABLE with the variable of its key",
            )
        servers.append(AllowedServer(entry[1], entry[2]))
    return servers


def is_loopback(address: str) -> bool:
    """Whether an address surely belongs to this machine."""
    return _LOOPBACK.fullmatch(address) is not None


def is_same_address(address: str, other: str) -> bool:
    """Whether two addresses differ at most in slashes at the end."""
    return address.rstrip("/") == other.rstrip("/")
