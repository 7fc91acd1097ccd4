"""Options of model calls: common names in each provider's request, and what each provider refuses."""

from __future__ import annotations

from typing import Any

import pytest

from oakleaf.errors import InvalidOption
from oakleaf.wire.options import (
    DEFAULT_MAX_TOKENS,
    check_options,
    left_out_options,
    read_options,
    request_fields,
)

FIELDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "anthropic",
        {"temperature": 0, "top_p": 0.9, "top_k": 5, "max_tokens": 500, "stop": "END", "effort": "high"},
        {
            "temperature": 0,
            "top_p": 0.9,
            "top_k": 5,
            "max_tokens": 500,
            "stop_sequences": ["END"],
            "output_config": {"effort": "high"},
        },
    ),
    ("anthropic", {}, {"max_tokens": DEFAULT_MAX_TOKENS}),
    (
        "anthropic",
        {"thinking": {"type": "adaptive"}, "output_config": {"format": {}}, "effort": "max", "max_tokens": 1},
        {"max_tokens": 1, "thinking": {"type": "adaptive"}, "output_config": {"effort": "max", "format": {}}},
    ),
    (
        "openai",
        {"temperature": 1.5, "max_tokens": 500, "effort": "none", "reasoning": {"summary": "auto"}},
        {"temperature": 1.5, "max_output_tokens": 500, "reasoning": {"effort": "none", "summary": "auto"}},
    ),
    (
        "openai-chat",
        {"max_tokens": 9, "stop": ["a", "b"], "seed": -1, "effort": "low", "extra_body": {"mirostat": 2}},
        {
            "max_completion_tokens": 9,
            "stop": ["a", "b"],
            "seed": -1,
            "reasoning_effort": "low",
            "mirostat": 2,
        },
    ),
    (
        "gemini",
        {"temperature": 2, "max_tokens": 7, "stop": "x", "effort": "low", "safety_settings": []},
        {
            "generationConfig": {
                "temperature": 2,
                "maxOutputTokens": 7,
                "stopSequences": ["x"],
                "thinkingConfig": {"thinkingLevel": "LOW"},
            },
            "safetySettings": [],
        },
    ),
    (
        "gemini",
        {"effort": "low", "thinking_config": {"includeThoughts": True}},
        {"generationConfig": {"thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True}}},
    ),
    ("openai", {"temperature": None, "seed": None}, {}),
]

REFUSED: list[tuple[str | None, dict[str, Any], str]] = [
    (
        "anthropic",
        {"temperature": 1.5},
        "temperature=1.5 is invalid for anthropic; expected a number from 0 to 1",
    ),
    ("openai", {"temperature": 2.5}, "temperature=2.5 is invalid for openai; expected a number from 0 to 2"),
    ("openai", {"temperature": "0"}, "temperature='0' is invalid for openai; expected a number"),
    ("openai", {"temperature": True}, "temperature=True is invalid"),
    ("openai", {"temperature": float("nan")}, "temperature=nan is invalid"),
    ("gemini", {"max_tokens": 0}, "max_tokens=0 is invalid for gemini; expected a whole number from 1 up"),
    ("gemini", {"max_tokens": 1.5}, "max_tokens=1.5 is invalid"),
    ("anthropic", {"stop": [""]}, "stop=[''] is invalid"),
    ("openai-chat", {"stop": list("abcde")}, "expected text, or up to 4"),
    ("anthropic", {"effort": "none"}, "effort='none' is invalid for anthropic; expected one of low, medium"),
    ("gemini", {"effort": "max"}, "effort='max' is invalid for gemini; expected one of minimal, low"),
    ("openai-chat", {"extra_body": {"messages": []}}, "extra_body may not set messages"),
    ("openai-chat", {"extra_body": {"temperature": 1}, "temperature": 0}, "both set temperature"),
    ("anthropic", {"effort": "low", "output_config": {"effort": "max"}}, "both set output_config.effort"),
    ("anthropic", {"thinking": "yes"}, "thinking='yes' is invalid for anthropic; expected an object"),
    (
        "anthropic",
        {"seed": 7},
        "anthropic has no option 'seed'; it is one of openai-chat, gemini; leave it out",
    ),
    ("openai", {"stop": "END"}, "session.set(options={'stop': None})"),
    ("anthropic", {"temprature": 0}, "anthropic has no option 'temprature'; did you mean temperature?"),
    ("scripted", {"zzz": 0}, "scripted has no option 'zzz'; use one of temperature, top_p"),
    (None, {"temprature": 0}, "no provider has an option 'temprature'; did you mean temperature?"),
    (None, {"temperature": 3}, "option temperature=3 is invalid; expected a number from 0 to 2"),
    ("host", {"max_tokens": -1}, "max_tokens=-1 is invalid"),
    ("openai", ["temperature"], "expected a dict of names and values"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("provider", "options", "fields"), FIELDS)
def test_common_names_become_the_providers_own_fields(
    provider: str, options: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert request_fields(provider, options) == fields
    assert list(request_fields(provider, dict(reversed(options.items())))) == list(
        request_fields(provider, options)
    ), "the order in which options were set may not change the bytes of a request"


@pytest.mark.parametrize(("provider", "options", "message"), REFUSED)
def test_an_unknown_or_refused_option_is_named_in_the_error(
    provider: str | None, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOption) as excinfo:
        check_options(provider, options)
    assert message in str(excinfo.value)


@pytest.mark.parametrize(
    ("provider", "options", "left_out"),
    [
        ("openai", {"thinking": {"type": "adaptive"}, "temperature": 0}, ["thinking"]),
        ("openai-chat", {"stop": [], "top_k": 40.0}, ["stop", "top_k"]),
        ("anthropic", {"tool_choice": "auto", "seed": 7, "max_tokens": 9}, ["seed", "tool_choice"]),
        ("gemini", {"anthropic.mcp_servers": [], "effort": "low"}, ["anthropic.mcp_servers"]),
    ],
)
def test_options_of_another_provider_are_left_out_and_named(
    provider: str, options: dict[str, Any], left_out: list[str]
) -> None:
    kept = {name: value for name, value in options.items() if name not in left_out}
    assert request_fields(provider, options) == request_fields(provider, kept)
    assert list(left_out_options(provider, options)) == left_out
    check_options(provider, kept, in_force=options)
    with pytest.raises(InvalidOption):
        check_options(provider, {left_out[0]: options[left_out[0]], "zzz": 1})


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (
        "anthropic",
        {"max_tokens": 9, "mcp_servers": [{"type": "url"}], "container": "c", "stop_sequences": []},
    ),
    ("anthropic", {"max_tokens": 9, "output_config": {"effort": "low", "format": {"type": "json_schema"}}}),
    ("openai", {"store": False, "include": ["x"], "prompt_cache_key": "k", "reasoning": {"effort": "odd"}}),
    ("openai", {"context_management": [{"type": "compaction"}], "background": False}),
    ("openai-chat", {"n": 1, "provider": {"only": ["x"]}, "stop": "END", "top_k": 40.5, "functions": []}),
    ("gemini", {"generationConfig": {"topK": 40.5, "temperature": 0, "responseSchema": {"type": "OBJECT"}}}),
    ("gemini", {"generationConfig": {"thinkingConfig": {"thinkingLevel": "low"}}, "labels": {"team": "a"}}),
]


@pytest.mark.parametrize(("provider", "request_"), REQUESTS)
def test_every_field_of_a_request_is_an_option_of_its_provider(
    provider: str, request_: dict[str, Any]
) -> None:
    options = read_options(provider, request_)
    assert request_fields(provider, options) == request_
    assert left_out_options(provider, options) == {}
    check_options(provider, options)


def test_a_hosts_own_model_takes_own_options() -> None:
    check_options("host", {"temperature": 0, "mood": "calm"})
