"""The judges of a regression case: models that it names in `[judge.NAME]`, asked about its turns.

    [judge.kind]
    model = "anthropic:MODEL"
    prompt = "Is the answer kind?"          # or prompt_file = "kind.txt"

    [[turn]]
    scorers = ["judge:kind >= 0.7"]

They are asked as those of the key `judge` of an experiment file are, within the same budget as the replay.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from oakleaf.errors import Overloaded
from oakleaf.ext import available_models, price_of
from oakleaf.models.base import Model, Request
from oakleaf.wire import Answer
from oakleaf_lab.budget import CostBudget
from oakleaf_lab.case_file import Case, CaseJudge
from oakleaf_lab.case_scorers import CaseScorer
from oakleaf_lab.errors import InvalidCase
from oakleaf_lab.scorers import (
    JUDGE_PROMPT,
    TRIES,
    ScoredTurn,
    ask_judge,
    judge_request,
    read_score,
    retry_pause,
)


class CaseJudges:
    """Asks the judges of one case, and counts the cost."""

    def __init__(self, case: Case, path: Path, budget: CostBudget | None) -> None:
        self._case, self._path = case, path
        self._budget = budget or CostBudget(None)
        self.cost = 0
        """What they cost so far, in microcents."""

    async def problem(self, scorer: CaseScorer, turn: ScoredTurn) -> str | None:
        """Return a judge's objection to a turn; None for a pass. A judge without an answer raises ModelError."""
        judge = self._case.judge[scorer.name]
        (model,) = available_models([judge.model])
        answer = await self._ask(model, judge_request(self._prompt(scorer.name, judge), turn))
        value, problem = read_score(answer.message.text)
        return problem if value is None else scorer.problem(value)

    def _prompt(self, name: str, judge: CaseJudge) -> str:
        if judge.prompt_file is None:
            return JUDGE_PROMPT if judge.prompt is None else judge.prompt
        try:
            return (self._path.parent / judge.prompt_file).read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = f"the prompt_file {judge.prompt_file} of [judge.{name}] cannot be read ({error})"
            raise InvalidCase(str(self._path), reason) from None

    async def _ask(self, model: Model, request: Request) -> Answer:
        for failures in range(TRIES):
            reserved = await self._budget.reserve(model, request)
            cost: int | None = None
            try:
                answer = await ask_judge(model, request)
                price = None if answer.usage is None else price_of(model, answer.usage, answer.units)
                cost = None if price is None else price.microcents
                self.cost += cost or 0
                return answer
            except Overloaded as busy:
                cost = 0
                if failures + 1 == TRIES:
                    raise
                await asyncio.sleep(retry_pause(busy, failures))
            finally:
                await self._budget.settle(reserved, cost)
        raise AssertionError("unreachable")
