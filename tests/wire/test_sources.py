"""Each rule names where and when a vendor was last seen to enforce it."""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType
from typing import get_args

import pytest

from oakleaf.wire.anthropic import rules as anthropic
from oakleaf.wire.gemini import rules as gemini
from oakleaf.wire.openai_chat import rules as openai_chat
from oakleaf.wire.openai_responses import rules as openai_responses
from oakleaf.wire.sources import SOURCES, Kind

MODULES = [anthropic, openai_chat, openai_responses, gemini]
ISSUE = re.compile(r"[\w.-]+/[\w.-]+#\d+")
DATE = re.compile(r"20\d\d(?:-[01]\d(?:-[0-3]\d)?)?")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split(".")[-2])
def test_every_rule_has_a_source(module: ModuleType) -> None:
    rules = {
        name
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and function.__annotations__.get("return") == "Violations"
    }
    assert len(rules) > 8
    assert {name for place, name in SOURCES if place == module.__name__} == rules


def test_sources_have_a_kind_a_place_and_a_date() -> None:
    for sources in SOURCES.values():
        assert sources
        for source in sources:
            assert source.kind in get_args(Kind)
            assert DATE.fullmatch(source.date)
            assert source.about
            assert bool(source.where) == (source.kind != "unconfirmed")
            if source.kind in ("error", "gateway"):
                assert ISSUE.fullmatch(source.where)


TYPES = {
    "anthropic.types": {
        "text": "TextBlockParam",
        "container_upload": "ContainerUploadBlockParam",
        "search_result": "SearchResultBlockParam",
        "server_tool_use": "ServerToolUseBlockParam",
        "image": "ImageBlockParam",
        "document": "DocumentBlockParam",
        "tool_use": "ToolUseBlockParam",
        "tool_result": "ToolResultBlockParam",
        "thinking": "ThinkingBlockParam",
        "redacted_thinking": "RedactedThinkingBlockParam",
    },
    "openai.types.responses": {
        "message": "ResponseOutputMessageParam",
        "function_call": "ResponseFunctionToolCallParam",
        "custom_tool_call": "ResponseCustomToolCallParam",
        "reasoning": "ResponseReasoningItemParam",
        "input_text": "ResponseInputTextParam",
        "input_image": "ResponseInputImageParam",
        "input_file": "ResponseInputFileParam",
        "output_text": "ResponseOutputTextParam",
        "refusal": "ResponseOutputRefusalParam",
    },
    "google.genai.types": {
        "functionCall": "FunctionCallDict",
        "functionResponse": "FunctionResponseDict",
    },
}
FIELDS = {
    "anthropic.types": anthropic._FIELDS,
    "openai.types.responses": openai_responses._FIELDS | openai_responses._PART_FIELDS,
    "google.genai.types": gemini._FIELDS,
}


@pytest.mark.extra
@pytest.mark.parametrize("module", TYPES)
def test_the_rules_know_all_fields_of_the_sdk(module: str) -> None:
    types = importlib.import_module(module)
    for kind, name in TYPES[module].items():
        fields = {
            field for base in getattr(types, name).__mro__ for field in getattr(base, "__annotations__", {})
        }
        assert {_camel_case(field) if "google" in module else field for field in fields} <= FIELDS[module][
            kind
        ]


@pytest.mark.extra
def test_the_rules_know_all_parts_of_googles_sdk() -> None:
    types = importlib.import_module("google.genai.types")
    known = gemini._DATA | gemini._MORE["model"]
    assert {_camel_case(field) for field in types.PartDict.__annotations__} <= known


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)
