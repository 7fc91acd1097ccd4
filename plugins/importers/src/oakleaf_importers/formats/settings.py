"""Read what other tools recorded of how a model was called: options, and the definitions of tools.

Only what could be sent to a provider again is kept; the rest is counted as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.ingest.records import LossReport
from oakleaf.wire import parse_tool
from oakleaf.wire.options import COMMON, check_options
from oakleaf_importers.formats.json_values import UNEXPECTED_SHAPE


def known_options(options: Mapping[str, Any], losses: LossReport) -> dict[str, Any]:
    """Return the options with one meaning for every provider; count other options, and values out of range."""
    result: dict[str, Any] = {}
    for name, value in options.items():
        try:
            if name not in COMMON:
                raise ValueError(name)
            check_options(None, {name: value})
        except UNEXPECTED_SHAPE:
            losses.add("an option of a model call that is not known here", f"{name}={value!r}")
        else:
            result[name] = value
    return result


def option_changes(present: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes after which exactly `options` hold: None removes an option."""
    return {
        name: options.get(name) for name in {**present, **options} if present.get(name) != options.get(name)
    }


def tool_specs(definitions: Iterable[object], losses: LossReport) -> tuple[ToolSpec, ...]:
    """Return the definitions in the shape of Anthropic or OpenAI; count definitions of another shape."""
    tools: list[ToolSpec] = []
    for definition in definitions:
        try:
            if not isinstance(definition, dict):
                raise TypeError(definition)
            tools.append(parse_tool(definition))
        except UNEXPECTED_SHAPE as error:
            losses.misread("a tool definition of unknown shape", str(error))
    return tuple(tools)
