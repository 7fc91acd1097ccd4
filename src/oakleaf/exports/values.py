"""Small conversions that several formats share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oakleaf.core.messages import Text, ToolResult


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def result_text(result: ToolResult) -> str:
    return "\n".join(piece.text for piece in result.content if isinstance(piece, Text))
