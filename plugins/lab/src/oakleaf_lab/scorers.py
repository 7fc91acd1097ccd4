"""Scorers: plain functions that say how good a turn or a session is, and a judge that asks a model.

    def mentions_order(turn): return "order" in turn.text          a turn: True, False or a number
    async def resolved(session): return await look_up(session)     a whole session; sync or async

The name of the parameter, `turn` or `session`, says what a function scores. One that raises or returns something else is
counted and named, and the run continues. A judge is asked once per turn; its calls are in the ledger of the run's session,
in the bucket `judge`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from oakleaf import plugins
from oakleaf.core.context import Context, Item
from oakleaf.core.entries import Entry, Settings
from oakleaf.core.messages import user
from oakleaf.core.turn_reader import TurnView, message_text, read_turns, result_text
from oakleaf.core.usage import Call, Usage
from oakleaf.errors import ModelError, ModelUnavailable, Overloaded, TruncatedReply, shorten
from oakleaf.ext import CallMeter, price_of, read_store, resolve_models
from oakleaf.models.base import Model, ModelLike, Request, model_name
from oakleaf.wire import Answer
from oakleaf_lab.cell import ModelUnreachable
from oakleaf_lab.errors import InvalidLab
from oakleaf_lab.experiment import Cell, CellResult, Lane, TurnClass, digest
from oakleaf_lab.record import LabRecord, Score

ScoreFunction = Callable[..., Any]
TRIES = 4
JUDGE_PROMPT = (
    "You judge one turn of an agent: what the user asked, the tools the agent called with their results, and its answer. "
    "Give a high score to an answer that is correct by the results, complete and polite."
)
JUDGE_FORMAT = "End your reply with a line `score: X`, where X is a number from 0 (worst) to 1 (best)."
BUCKET = "judge"


class ScoredCall(Struct, frozen=True):
    """A tool call and the result."""

    name: str
    arguments: dict[str, Any]
    result: str


class ScoredTurn(Struct, frozen=True, kw_only=True):
    """A turn in a scorer's view."""

    session_id: str
    """The recorded session."""
    lane: Lane
    number: int
    """The repetition."""
    turn: int
    """The seq of its input in the recording."""
    kind: TurnClass
    input: str
    text: str
    """The final answer."""
    calls: tuple[ScoredCall, ...]
    cost_microcents: int
    milliseconds: int
    observed: ScoredTurn | None = None
    """The same turn as it was recorded; None for the recording itself."""


class ScoredSession(Struct, frozen=True, kw_only=True):
    """A session in a scorer's view: the reached turns."""

    session_id: str
    lane: Lane
    number: int
    turns: tuple[ScoredTurn, ...]
    observed: ScoredSession | None = None


class Scorer(Struct, frozen=True):
    """A function that scores turns or sessions."""

    name: str
    subject: Literal["turn", "session"]
    function: ScoreFunction
    version: str
    """A hash of its source: a changed function scores again."""


class Judge(Struct, frozen=True):
    """A model that scores each turn."""

    model: ModelLike
    prompt: str = JUDGE_PROMPT
    name: str = "judge"

    @property
    def version(self) -> str:
        names = [model_name(each) or each.model for each in resolve_models(self.model)]
        return digest([names, self.prompt, JUDGE_FORMAT])[:12]

    def key(self, cell: Cell) -> str:
        """Return the key that marks all turns of a cell as scored."""
        return score_key(self.name, self.version, cell)


def as_scorers(functions: Sequence[ScoreFunction], metrics: Sequence[str]) -> list[Scorer]:
    """Return the functions as scorers; raise InvalidLab for a function unfit as a scorer."""
    scorers: dict[str, Scorer] = {}
    for function in functions:
        scorer = _scorer(function)
        if scorer.name in scorers or scorer.name in metrics:
            raise InvalidLab(f"there are two metrics named {scorer.name}", "rename the scorer")
        scorers[scorer.name] = scorer
    return list(scorers.values())


def subject_of(function: ScoreFunction) -> Literal["turn", "session"] | None:
    """Return the kind of subject a function scores, by the name of the first parameter; None for other functions."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    return names[0] if names and names[0] in ("turn", "session") else None  # type: ignore[return-value]


def find_scorer(name: str) -> ScoreFunction:
    """Return the plugin's scorer of the name; raise PluginMissing or PluginBroken."""
    function: ScoreFunction = plugins.find(plugins.SCORERS, name)
    if not callable(function) or subject_of(function) is None:
        reason = "it is no function whose parameter is named turn or session"
        raise plugins.broken(plugins.SCORERS, name, reason)
    return function


def _scorer(function: ScoreFunction) -> Scorer:
    subject = subject_of(function) if callable(function) else None
    name = getattr(function, "__name__", repr(function))
    if subject is None:
        raise InvalidLab(
            f"{name} is not a scorer", "write a function whose parameter is named turn or session"
        )
    try:
        source = inspect.getsource(inspect.getmodule(function) or function)
    except (OSError, TypeError):  # typed at a prompt
        source = name
    return Scorer(name, subject, function, digest([source, name])[:12])


# -- what is scored --------------------------------------------------------------------------------------


def scored_session(
    result: CellResult, path: Sequence[Entry], observed: ScoredSession | None
) -> ScoredSession:
    """Return a cell for the scorers. Turns that were cut off or failed have no answer to score and are left out."""
    cell = result.cell
    views = {view.turn: view for view in read_turns(path)}
    recorded = {} if observed is None else {turn.turn: turn for turn in observed.turns}
    turns: list[ScoredTurn] = []
    for turn in result.turns:
        view = views.get(turn.replay_turn or turn.turn)
        if view is None or turn.is_cut or not view.steps:
            continue
        turns.append(
            ScoredTurn(
                session_id=cell.source,
                lane=cell.lane,
                number=cell.number,
                turn=turn.turn,
                kind=turn.kind,
                cost_microcents=turn.usage.cost_microcents,
                milliseconds=turn.milliseconds,
                observed=recorded.get(turn.turn),
                **turn_values(view),
            )
        )
    return ScoredSession(
        session_id=cell.source, lane=cell.lane, number=cell.number, turns=tuple(turns), observed=observed
    )


def turn_values(view: TurnView) -> dict[str, Any]:
    """Return the scored turn's fields found in the entries."""
    calls = [
        ScoredCall(call.call.name, dict(call.call.arguments), result_text(call.result))
        for step in view.steps
        for call in step.calls
    ]
    text = message_text(view.steps[-1].message) if view.steps else ""
    return {"input": message_text(view.input), "text": text, "calls": tuple(calls)}


# -- functions -------------------------------------------------------------------------------------------


def score_key(name: str, version: str, cell: Cell, turn: int | None = None) -> str:
    """Return the key of stored scores, for scoring once."""
    return f"score:{digest([name, version, cell, turn])[:20]}"


async def apply_scorer(
    scorer: Scorer, session: ScoredSession, cell: Cell, redact: Callable[[str], str]
) -> list[Score]:
    """Return the scores of a cell. Problems are redacted before they are cut: half a secret is not recognized."""
    subjects: list[tuple[int | None, ScoredTurn | ScoredSession]] = [(None, session)]
    if scorer.subject == "turn":
        subjects = [(turn.turn, turn) for turn in session.turns]
    elif not session.turns:
        return []
    return [await _apply(scorer, cell, turn, subject, redact) for turn, subject in subjects]


async def _apply(
    scorer: Scorer,
    cell: Cell,
    turn: int | None,
    subject: ScoredTurn | ScoredSession,
    redact: Callable[[str], str],
) -> Score:
    value: float | None = None
    try:
        returned = await call_scorer(scorer.function, subject)
        problem = value_problem(returned, redact)
        value = float(returned) if problem is None else None
    except Exception as error:  # noqa: BLE001  # a user's function may raise anything
        problem = error_text(error, redact)
    return Score(scorer.name, scorer.version, cell, turn, value, problem)


async def call_scorer(function: ScoreFunction, subject: ScoredTurn | ScoredSession) -> Any:
    """Return a scorer's value; a synchronous scorer runs in a thread, because it may block."""
    if inspect.iscoroutinefunction(function):
        return await function(subject)
    return await asyncio.to_thread(function, subject)


def value_problem(value: object, redact: Callable[[str], str] = str) -> str | None:
    """Return the fault of a value as a score; None for a score."""
    if isinstance(value, bool | int | float) and isfinite(value):
        return None
    return f"it returned {shorten(redact(repr(value)), 60)}, not a bool or a number"


def error_text(error: Exception, redact: Callable[[str], str] = str) -> str:
    return shorten(redact(f"{type(error).__name__}: {error}"), 200)


# -- the judge -------------------------------------------------------------------------------------------


class JudgeCaller:
    """Asks the judge, within the run's budget, and stores each score with the call's cost."""

    def __init__(self, judge: Judge, record: LabRecord, budget: CallMeter) -> None:
        self._judge, self._record, self._budget = judge, record, budget
        self._model = resolve_models(judge.model)[0]
        self._version = judge.version
        self._redact = read_store(record.store).redactor.redact_text

    async def score(self, turn: ScoredTurn, cell: Cell) -> None:
        """Score a turn without a stored score."""
        if (self._judge.name, self._version, cell, turn.turn) in self._record.scores:
            return
        request = judge_request(self._judge.prompt, turn)
        for failures in range(TRIES):
            busy = await self._try(turn, cell, request)
            if busy is None:
                return
            if failures + 1 == TRIES or isinstance(busy, ModelUnavailable):
                raise ModelUnreachable(str(busy))
            await asyncio.sleep(retry_pause(busy, failures))

    async def _try(self, turn: ScoredTurn, cell: Cell, request: Request) -> ModelError | None:
        """Ask once and store the score, or the reason for a missing score; return a busy judge's error."""
        notebook = self._record.notebook
        reserved = await self._budget.reserve(self._model, request)
        cost: int | None = None
        try:
            call = await asyncio.to_thread(notebook.start_call, self._model, BUCKET, reserved)
            try:
                cost = await self._store(turn, cell, call, await ask_judge(self._model, request))
            except (Overloaded, ModelUnavailable) as busy:
                cost = 0
                await asyncio.to_thread(notebook.fail_call, call, busy)
                return busy
            except ModelError as error:
                await asyncio.to_thread(notebook.fail_call, call, error)
                await self._add_score(turn, cell, None, shorten(self._redact(str(error)), 200))
        finally:
            await self._budget.settle(reserved, cost)
        return None

    async def _store(self, turn: ScoredTurn, cell: Cell, call: Call, answer: Answer) -> int | None:
        usage = answer.usage
        price = None if usage is None else price_of(self._model, usage, answer.units)
        call = replace(call, usage=usage or Usage(), price=price)
        await self._add_score(turn, cell, *read_score(self._redact(answer.message.text)), call)
        return None if price is None else price.microcents

    async def _add_score(
        self,
        turn: ScoredTurn,
        cell: Cell,
        value: float | None,
        problem: str | None,
        call: Call | None = None,
    ) -> None:
        score = Score(self._judge.name, self._version, cell, turn.turn, value, problem)
        key = score_key(self._judge.name, self._version, cell, turn.turn)
        await asyncio.to_thread(self._record.add_scores, [score], key, call)


def retry_pause(busy: Exception, failures: int) -> float:
    """Return the seconds before a busy judge is asked again."""
    after: float | None = getattr(busy, "after", None)
    return min(30.0, 0.5 * 2**failures) if after is None else after


def judge_request(prompt: str, turn: ScoredTurn) -> Request:
    """Return the judge's request about a turn."""
    context = Context((prompt, JUDGE_FORMAT), (Item(user(_transcript(turn)), 1, 1),), Settings())
    return Request(context, lambda digest: None)


def _transcript(turn: ScoredTurn) -> str:
    calls = "\n".join(f"{call.name}({_arguments(call.arguments)}) → {call.result}" for call in turn.calls)
    pieces = [("input", turn.input), ("tools", calls), ("answer", turn.text)]
    return "\n\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in pieces if text)


def _arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


async def ask_judge(model: Model, request: Request) -> Answer:
    """Return the judge's whole answer; raise TruncatedReply for a cut answer."""
    answer: Answer | None = None
    async for piece in model.stream(request):
        if isinstance(piece, Answer):
            answer = piece
    if answer is None or answer.finish is None:
        raise TruncatedReply(model.model, "the stream ended without a stop reason")
    return answer


_NUMBER = r"(-?\d+(?:\.\d+)?)"


def read_score(reply: str) -> tuple[float | None, str | None]:
    """Return the score in a judge's reply, or the fault."""
    marked = re.findall(rf"score\W{{0,5}}\s*{_NUMBER}", reply, re.IGNORECASE)
    alone = re.fullmatch(rf"\s*{_NUMBER}\s*", reply)
    text = marked[-1] if marked else alone[1] if alone else None
    if text is None:
        return None, f"its reply has no score: {shorten(' '.join(reply.split()), 80)!r}"
    value = float(text)
    if not 0 <= value <= 1:
        return None, f"its score {text} is not between 0 and 1"
    return value, None
