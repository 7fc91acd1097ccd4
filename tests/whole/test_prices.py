"""Prices by the rates of the table: equal to what the table says for every call."""

from __future__ import annotations

from random import Random

import pytest
from genai_prices.data import providers

from oakleaf.core.usage import Usage
from oakleaf.models import prices
from support.random_logs import SOAK

pytestmark = pytest.mark.extra

MODELS = [(provider.id, model.id) for provider in providers for model in provider.models]
SIZES = (1, 999, 20_000, 127_999, 128_000, 199_999, 200_000, 200_001, 271_000, 300_000, 1_000_000)


@pytest.mark.parametrize("part", range(2))
def test_a_price_by_rates_is_the_one_of_the_table(part: int) -> None:
    random = Random(part)
    models = MODELS if SOAK else [("anthropic", "claude-sonnet-4-5"), *random.sample(MODELS, 40)]
    compared = 0
    for vendor, model in models:
        for size in random.sample(SIZES, 4):
            read = random.randrange(size)
            written = random.randrange(size - read)
            hour = random.choice((0, random.randrange(written + 1)))
            usage = Usage(size, random.randrange(20_000), read, written)
            units = {"cache_write_1h_tokens": hour} if hour else {}
            try:
                expected = prices._ask_table(vendor, model, usage, units)
            except (LookupError, ValueError):
                continue
            by_rates = prices._price_by_rates(usage, vendor, model, units)
            compared += by_rates is not None
            microcents = [round(dollars * 10**8) for dollars in (by_rates, expected) if dollars is not None]
            assert len(set(microcents)) == 1, (vendor, model, usage, units)
    assert compared > len(models)


def test_a_model_that_the_table_does_not_know_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import genai_prices

    questions: list[object] = []
    ask = genai_prices.calc_price

    def calc_price(*args: object, **named: object) -> object:
        questions.append(args)
        return ask(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(genai_prices, "calc_price", calc_price)
    monkeypatch.setattr(prices.time, "time", lambda: 0.0)  # rates are asked for again each minute
    prices._token_rates.cache_clear()
    for tokens in range(1, 50):
        assert prices.price(Usage(tokens, tokens), "anthropic", "no-such-model") is None
    assert len(questions) == 1
