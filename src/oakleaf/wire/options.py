"""Options of a model call: the names all providers share, and where each provider has them in its request.

`temperature`, `max_tokens`, `effort` … are the same names everywhere and are written as the provider calls them. A field
of one provider alone, such as Anthropic's `thinking`, has the provider's own name. Any other field is an option under
the name of its provider, such as `openai.background`, and reaches that provider as it is. A new option that a provider
lacks, or a value that it would refuse, raises `InvalidOption`. An option already on the path, set for another provider,
is left out of a request, and `left_out_options` says so: a history never makes a request fail.
A choice of tools alone is left out of a request without tools: providers refuse it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from oakleaf.errors import InvalidOption, shorten

DEFAULT_MAX_TOKENS = 8192
"""Anthropic requires a limit; the default is sent if the path has none."""
EXTRA_BODY = "extra_body"
"""Fields of a compatible server without a name here, sent unchanged."""


class Option(Struct, frozen=True):
    """An option in a provider's form."""

    field: str
    """The place in the request; `a.b` is the field b of the object a."""
    values: Any
    """The type of the values."""
    expected: str
    """The same in words."""


def _number(field: str, low: float, high: float) -> Option:
    return Option(field, Annotated[float, Meta(ge=low, le=high)], f"a number from {low:g} to {high:g}")


def _integer(field: str, low: int | None = 1) -> Option:
    if low is None:
        return Option(field, int, "a whole number")
    return Option(field, Annotated[int, Meta(ge=low)], f"a whole number from {low} up")


def _one_of(field: str, values: Any) -> Option:
    return Option(field, values, f"one of {', '.join(get_args(values))}")


def _stop(field: str, count: int | None = None) -> Option:
    text = Annotated[str, Meta(min_length=1)]
    texts = Annotated[list[text], Meta(min_length=1, max_length=count)]
    return Option(
        field, text | texts, "text, or a list of texts" if count is None else f"text, or up to {count}"
    )


def _flag(field: str) -> Option:
    return Option(field, bool, "true or false")


def _text(field: str) -> Option:
    return Option(field, Annotated[str, Meta(min_length=1)], "text")


def _object(field: str) -> Option:
    return Option(field, dict[str, Any], "an object")


def _list(field: str) -> Option:
    return Option(field, list[Any], "a list")


_OpenAIEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_TOOL_CHOICE = Option("tool_choice", str | dict[str, Any], "text or an object")

COMMON = {
    "temperature": _number("temperature", 0, 2),
    "top_p": _number("top_p", 0, 1),
    "top_k": _integer("top_k"),
    "max_tokens": _integer("max_tokens"),
    "stop": _stop("stop"),
    "seed": _integer("seed", None),
    "effort": _one_of("effort", _OpenAIEffort),
    "presence_penalty": _number("presence_penalty", -2, 2),
    "frequency_penalty": _number("frequency_penalty", -2, 2),
}
"""The options with the same name for all providers, in the widest ranges."""

OPTIONS: dict[str, dict[str, Option]] = {
    "anthropic": {
        "temperature": _number("temperature", 0, 1),
        "top_p": COMMON["top_p"],
        "top_k": COMMON["top_k"],
        "max_tokens": COMMON["max_tokens"],
        "stop": _stop("stop_sequences"),
        "effort": _one_of("output_config.effort", Literal["low", "medium", "high", "xhigh", "max"]),
        "thinking": _object("thinking"),
        "output_config": _object("output_config"),
        "tool_choice": _object("tool_choice"),
        "cache_control": _object("cache_control"),
        "metadata": _object("metadata"),
        "service_tier": _text("service_tier"),
        "speed": _text("speed"),
        "inference_geo": _text("inference_geo"),
    },
    "openai": {
        "temperature": COMMON["temperature"],
        "top_p": COMMON["top_p"],
        "max_tokens": _integer("max_output_tokens"),
        "effort": _one_of("reasoning.effort", _OpenAIEffort),
        "reasoning": _object("reasoning"),
        "text": _object("text"),
        "tool_choice": _TOOL_CHOICE,
        "parallel_tool_calls": _flag("parallel_tool_calls"),
        "max_tool_calls": _integer("max_tool_calls"),
        "top_logprobs": _integer("top_logprobs", 0),
        "truncation": _text("truncation"),
        "service_tier": _text("service_tier"),
        "metadata": _object("metadata"),
        "prompt_cache_key": _text("prompt_cache_key"),
        "prompt_cache_retention": _text("prompt_cache_retention"),
        "safety_identifier": _text("safety_identifier"),
    },
    "openai-chat": {
        **COMMON,
        "max_tokens": _integer("max_completion_tokens"),  # other servers than OpenAI's: max_tokens
        "stop": _stop("stop", 4),
        "effort": _one_of("reasoning_effort", _OpenAIEffort),
        "response_format": _object("response_format"),
        "tool_choice": _TOOL_CHOICE,
        "parallel_tool_calls": _flag("parallel_tool_calls"),
        "logit_bias": _object("logit_bias"),
        "logprobs": _flag("logprobs"),
        "top_logprobs": _integer("top_logprobs", 0),
        "verbosity": _text("verbosity"),
        "service_tier": _text("service_tier"),
        "metadata": _object("metadata"),
        "prompt_cache_key": _text("prompt_cache_key"),
        "safety_identifier": _text("safety_identifier"),
        "user": _text("user"),
        # Fields of servers with the same API: vLLM, llama.cpp, DeepSeek, OpenRouter.
        "min_p": _number("min_p", 0, 1),
        "repetition_penalty": _number("repetition_penalty", 0, 2),
        "chat_template_kwargs": _object("chat_template_kwargs"),
        "thinking": _object("thinking"),
        "reasoning": _object("reasoning"),
        EXTRA_BODY: _object(""),
    },
    "gemini": {
        "temperature": _number("generationConfig.temperature", 0, 2),
        "top_p": _number("generationConfig.topP", 0, 1),
        "top_k": _integer("generationConfig.topK"),
        "max_tokens": _integer("generationConfig.maxOutputTokens"),
        "stop": _stop("generationConfig.stopSequences", 5),
        "seed": _integer("generationConfig.seed", None),
        "effort": _one_of(
            "generationConfig.thinkingConfig.thinkingLevel", Literal["minimal", "low", "medium", "high"]
        ),
        "presence_penalty": _number("generationConfig.presencePenalty", -2, 2),
        "frequency_penalty": _number("generationConfig.frequencyPenalty", -2, 2),
        "thinking_config": _object("generationConfig.thinkingConfig"),
        "response_mime_type": _text("generationConfig.responseMimeType"),
        "response_json_schema": _object("generationConfig.responseJsonSchema"),
        "response_modalities": _list("generationConfig.responseModalities"),
        "media_resolution": _text("generationConfig.mediaResolution"),
        "tool_config": _object("toolConfig"),
        "safety_settings": _list("safetySettings"),
        "cached_content": _text("cachedContent"),
    },
    "scripted": COMMON,
}
"""The options of each provider, by the names here. A provider outside the table has a model of the host's own."""

_ANY = {**OPTIONS["anthropic"], **OPTIONS["openai"], **OPTIONS["gemini"], **OPTIONS["openai-chat"], **COMMON}
_RESERVED = (
    *("model", "messages", "input", "contents", "tools", "stream", "stream_options"),
    *("system", "instructions", "systemInstruction", "previous_response_id", "conversation"),
)


def check_options(
    provider: str | None, options: Mapping[str, Any] | None, in_force: Mapping[str, Any] | None = None
) -> None:
    """Raise `InvalidOption` for an unknown option or a refused value; None is always a value.

    Without a provider an option must be one that some provider has. Of a provider that has no wire format, which is
    a model of the host's own, only the common options are checked. Those `in_force` are not: they may be another
    provider's.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidOption(f"options={options!r} is invalid", "expected a dict of names and values")
    fields: dict[str, str] = {}
    kept = {name: value for name, value in (in_force or {}).items() if name not in (options or {})}
    for name, value in kept.items():
        with suppress(InvalidOption):
            _check_option(provider, name, value, fields)
    for name, value in (options or {}).items():
        _check_option(provider, name, value, fields)


def _check_option(provider: str | None, name: str, value: Any, fields: dict[str, str]) -> None:
    """Check an option, and add the fields it sets to `fields`, with its name."""
    option = _option(provider, name)
    if value is None or _is_foreign(provider, name):
        return
    if option is None and (provider is None or provider in OPTIONS):
        raise _missing_option(provider, name, _known_options(provider))
    if option is not None:
        _check_value(provider, name, value, option)
        set_fields = list(_set_fields(value, option))
        for field in set_fields:
            if field in fields:
                raise InvalidOption(f"{fields[field]} and {name} both set {field}", "leave one of them out")
        fields.update(dict.fromkeys(set_fields, name))


def request_fields(provider: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options as fields of the provider's request, without those of `left_out_options`."""
    fields: dict[str, Any] = {"max_tokens": DEFAULT_MAX_TOKENS} if provider == "anthropic" else {}
    left_out = left_out_options(provider, options)
    for name, value in sorted((options or {}).items()):
        option = _option(provider, name)
        if value is None or name in left_out or option is None:
            continue
        if name == EXTRA_BODY:
            fields |= value
        else:
            _put(fields, option.field.split("."), _wire_value(provider, name, value))
    return fields


def left_out_options(provider: str, options: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the options that a request to the provider lacks, each with the reason."""
    left_out: dict[str, str] = {}
    fields: dict[str, str] = {}
    for name, value in sorted((options or {}).items()):
        if value is not None and _is_foreign(provider, name):
            left_out[name] = f"{provider} has no option {name!r}"
            continue
        try:
            _check_option(provider, name, value, fields)
        except InvalidOption as error:
            left_out[name] = error.problem
    return left_out


def _known_options(provider: str | None) -> Mapping[str, Option]:
    return _ANY if provider is None else OPTIONS.get(provider, COMMON)


def _option(provider: str | None, name: str) -> Option | None:
    """Return the option of that name, which may be any field under the name of its provider."""
    owner, _, field = name.partition(".")
    if owner in OPTIONS and field:
        return None if field.partition(".")[0] in _RESERVED else Option(field, Any, "any value")
    return _known_options(provider).get(name)


def _is_foreign(provider: str | None, name: str) -> bool:
    """Whether an option is a field of another provider."""
    owner, _, field = name.partition(".")
    return provider is not None and bool(field) and owner in OPTIONS and owner != provider


def _missing_option(provider: str | None, name: str, available: Mapping[str, Option]) -> InvalidOption:
    others = [other for other, options in OPTIONS.items() if name in options and other != "scripted"]
    problem = (
        f"no provider has an option {name!r}" if provider is None else f"{provider} has no option {name!r}"
    )
    if others:
        return InvalidOption(
            f"{problem}; it is one of {', '.join(others)}",
            f"leave it out, or take it back with session.set(options={{{name!r}: None}})",
            f"leave it out, or set it to null: {name}=null",
        )
    similar = get_close_matches(name, available, 1)
    return InvalidOption(
        problem, f"did you mean {similar[0]}?" if similar else f"use one of {', '.join(available)}"
    )


def _check_value(provider: str | None, name: str, value: object, option: Option) -> None:
    try:
        msgspec.convert(value, option.values)
    except msgspec.ValidationError:
        owner = f" for {provider}" if provider in OPTIONS else ""
        raise InvalidOption(
            f"option {name}={shorten(repr(value))} is invalid{owner}", f"expected {option.expected}"
        ) from None
    if name == EXTRA_BODY and isinstance(value, Mapping) and (reserved := value.keys() & _RESERVED):
        raise InvalidOption(f"extra_body may not set {', '.join(sorted(reserved))}", "it is set by Oakleaf")


def _set_fields(value: Any, option: Option) -> Iterator[str]:
    """Yield the fields that an option sets; of an object each field, because other options may add fields."""
    if isinstance(value, Mapping) and value and option.values in (dict[str, Any], Any):
        prefix = f"{option.field}." if option.field else ""
        yield from (f"{prefix}{key}" for key in value)
    else:
        yield option.field


def _wire_value(provider: str, name: str, value: Any) -> Any:
    if name == "stop" and provider != "openai-chat" and isinstance(value, str):
        return [value]
    return value.upper() if provider == "gemini" and name == "effort" else value


def _put(fields: dict[str, Any], place: list[str], value: Any) -> None:
    *parents, last = place
    for parent in parents:
        fields = fields.setdefault(parent, {})
    fields[last] = {**fields.get(last, {}), **value} if isinstance(value, Mapping) else value


def read_options(provider: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a provider's request, by the names here; the inverse of `request_fields`.

    An option that is part of an object, such as an effort, is read from it, and the rest of the object is an option too.
    What has no name here, or a value that is not one of its name, is an option under the name of the provider.
    """
    options: dict[str, Any] = {}
    rest = msgspec.json.decode(msgspec.json.encode(request))
    if provider == "openai-chat" and "max_tokens" in rest:
        rest.setdefault("max_completion_tokens", rest.pop("max_tokens"))
    for name, option in sorted(OPTIONS[provider].items(), key=lambda item: -item[1].field.count(".")):
        if not option.field:
            continue
        *parents, last = option.field.split(".")
        holder: Any = rest
        for parent in parents:
            holder = holder.get(parent) if isinstance(holder, dict) else None
        if not isinstance(holder, dict) or holder.get(last) is None:
            continue
        value = holder[last]
        if provider == "gemini" and name == "effort" and isinstance(value, str) and value == value.upper():
            value = value.lower()
        with suppress(InvalidOption):
            _check_value(provider, name, value, option)
            if _wire_value(provider, name, value) == holder[last]:
                options[name] = value
                del holder[last]
                _remove_empty(rest, parents)
    fields = {
        name: value
        for name, value in rest.items()
        if name not in _RESERVED and value is not None and (value or provider != "gemini")
    }
    return options | {f"{provider}.{name}": value for name, value in fields.items()}


def _remove_empty(fields: dict[str, Any], path: list[str]) -> None:
    """Remove an object that has no fields left, and the objects around it."""
    for depth in range(len(path), 0, -1):
        holder = fields
        for name in path[: depth - 1]:
            holder = holder[name]
        if holder[path[depth - 1]] == {}:
            del holder[path[depth - 1]]
