"""The window of a model, and the length of a history, as servers put them into words."""

from __future__ import annotations

import pytest

from oakleaf.providers.overflow import read_overflow


@pytest.mark.parametrize(
    ("message", "window", "length"),
    [
        ("prompt is too long: 212345 tokens > 200000 maximum", 200_000, 212_345),
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", 200_000, 190_000),
        (
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in the "
            "messages, 1000 in the completion).",
            8_192,
            8_000,
        ),
        (
            "maximum context length is 128,000 tokens. However, your messages resulted in 130,002 tokens",
            128_000,
            130_002,
        ),
        (
            "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
            4_096,
            9_000,
        ),
        (
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            1_048_576,
            1_200_000,
        ),
        ("The decoder prompt (length 9000) is longer than the maximum model length of 8192.", 8_192, 9_000),
        (
            "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100 `max_new_tokens`",
            4_096,
            5_000,
        ),
        ("the model is loaded with context length of only 4096 tokens, which is not enough", 4_096, None),
        ("too large for model with 32768 maximum context length", 32_768, None),
        (
            "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
            131_072,
            200_000,
        ),
        ("Your input exceeds the context window of this model.", None, None),
        ("the request exceeds the available context size. try increasing the context size", None, None),
    ],
)
def test_the_window_is_read_from_the_words_of_a_server(
    message: str, window: int | None, length: int | None
) -> None:
    assert read_overflow(message) == (window, length)
