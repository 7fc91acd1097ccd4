"""The definitions of tools as a model receives them, stored as one blob for each distinct set.

The settings on a path name the blob by its digest. Order counts: it is the order in which they are sent. Does not know
how a provider writes a tool; `wire` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct

from oakleaf.core.codec import to_json
from oakleaf.core.drafts import Blob, Draft
from oakleaf.core.entries import Settings, ToolDefinitions
from oakleaf.core.media import digest
from oakleaf.core.redact import Redactor

MIME = "application/json"


class ToolSpec(Struct, frozen=True, omit_defaults=True):
    """A tool as a model sees it; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]
    issuer: str | None = None
    """The provider whose form the definition had."""
    shape: dict[str, Any] | None = None
    """The definition in that form, for its issuer alone; `wire.shapes` says how."""
    hosted: bool = False
    """True for a tool that only its issuer defines, such as a web search: other providers are not told of it."""


_decoder = msgspec.json.Decoder(tuple[ToolSpec, ...])


class ToolSet(Struct, frozen=True):
    """Definitions for a store: the settings' part, and the blob."""

    definitions: ToolDefinitions
    blob: Blob

    def draft(self) -> Draft:
        return Draft(Settings(tool_definitions=self.definitions), blobs=(self.blob,))


def define_tools(
    tools: Iterable[ToolSpec],
    redactor: Redactor | None = None,
    effects: Mapping[str, str] = MappingProxyType({}),
) -> ToolSet:
    """Encode definitions: equal definitions give equal bytes and the same blob, in every process.

    `effects` has the effects of tools by name: `read` or `idempotent` if a tool may run again.
    """
    plain = [msgspec.to_builtins(tool) for tool in tools]
    if redactor is not None:
        for tool in plain:
            if tool.get("hosted"):
                tool["shape"] = redactor.redact_options(tool.get("shape"))
    data = to_json(plain, "tool definitions")
    if redactor is not None and redactor.may_contain_secret(data):
        plain = redactor.redact_json(plain)
        data = to_json(plain, "tool definitions")
    names = tuple(tool["name"] for tool in plain)
    repeatable = tuple(name for name in names if effects.get(name, "unsafe") != "unsafe")
    reads = tuple(name for name in repeatable if effects[name] == "read")
    definitions = ToolDefinitions(digest(data), names, len(data), repeatable, reads)
    return ToolSet(definitions, Blob(definitions.hash, MIME, data))


def changed_tools(new: ToolSet, known: ToolDefinitions | None) -> ToolSet | None:
    """Return the definitions to record; None if the settings on the path say the same."""
    if new.definitions.names:
        return None if new.definitions == known else new
    return new if known is not None and known.names and known.is_callable else None


def decode_tools(data: bytes) -> tuple[ToolSpec, ...] | None:
    """Return the definitions in a blob; None for another content."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return None


def read_tools(
    definitions: ToolDefinitions | None, blobs: Callable[[str], bytes | None]
) -> tuple[ToolSpec, ...] | None:
    """Return the definitions named by settings; None if not recorded, or if the blob is missing or unreadable."""
    data = None if definitions is None else blobs(definitions.hash)
    return None if data is None else decode_tools(data)


def read_callable_tools(
    definitions: ToolDefinitions | None, blobs: Callable[[str], bytes | None]
) -> tuple[ToolSpec, ...] | None:
    """Return the definitions of the callable tools; None if not known."""
    return () if definitions is not None and not definitions.is_callable else read_tools(definitions, blobs)
