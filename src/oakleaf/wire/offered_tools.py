"""The tools of a request: the definitions on the path, or minimal ones for a history that calls tools without any.

Providers and gateways refuse a history with tool calls and no tools. Where nobody runs tools, a request forbids calls.
Does not know how a provider writes a tool or forbids a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.context import Context, Item
from oakleaf.core.tool_definitions import ToolSpec, read_tools
from oakleaf.wire.base import Blobs, HistoryPart

NOT_RECORDED = "The definition of this tool was not recorded."


class OfferedTools(Struct, frozen=True):
    specs: tuple[ToolSpec, ...] = ()
    """Under names accepted by the provider, each once."""
    are_callable: bool = True

    @property
    def are_forbidden(self) -> bool:
        return bool(self.specs) and not self.are_callable


def offered_tools(
    context: Context, blobs: Blobs, part: HistoryPart, legal_name: Callable[[str], str], issuer: str
) -> OfferedTools:
    """Return the tools of a request to `issuer`, without those that another provider hosts."""
    definitions = context.settings.tool_definitions
    recorded = [
        spec if spec.issuer == issuer else replace(spec, shape=None)
        for spec in read_tools(definitions, blobs) or ()
        if not spec.hosted or spec.issuer == issuer
    ]
    if recorded and definitions is not None and definitions.is_callable:
        return OfferedTools(_with_legal_names(recorded, legal_name))
    names = called_tools(context.items) if part.called_tools is None else part.called_tools
    if not names:
        return OfferedTools()
    minimal = [ToolSpec(name, NOT_RECORDED, {"type": "object", "properties": {}}) for name in names]
    return OfferedTools(_with_legal_names(recorded or minimal, legal_name), are_callable=False)


def called_tools(items: Iterable[Item]) -> tuple[str, ...]:
    """Return the names of the called tools of a history, each once, in order."""
    return tuple(dict.fromkeys(call.name for item in items for call in item.message.calls))


def _with_legal_names(specs: Iterable[ToolSpec], legal_name: Callable[[str], str]) -> tuple[ToolSpec, ...]:
    """Return the tools under the names that calls in the history have."""
    named: dict[object, ToolSpec] = {}
    for number, spec in enumerate(specs):
        name = spec.name if spec.hosted else legal_name(spec.name)
        named.setdefault(
            number if spec.hosted else name, spec if name == spec.name else replace(spec, name=name)
        )
    return tuple(named.values())
