"""The pytest plugin: collects regression cases, and has fixtures for tests of your own agent.

    oakleaf_store       an empty store in memory
    scripted_model    makes a model that answers from a script
    replayed          replays a case or a bundle in `oakleaf_store`, without effects

pytest imports this module at every start, so it imports nothing of Oakleaf but late names before it is used (measured: about 3 ms).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import pytest

if TYPE_CHECKING:
    from _pytest._code.code import ExceptionInfo, TerminalRepr

    from oakleaf import ModelLike, ReplayReport, ScriptedModel, Session, Store, Tool, ToolCall
    from oakleaf.ext import ReplayPlan
    from oakleaf_lab.regression import CaseResult, Failure

SUFFIX = ".case.toml"
_OVERRIDES: pytest.StashKey[ReplayPlan] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("oakleaf", "regression cases of Oakleaf")
    group.addoption(
        "--oakleaf-model",
        action="append",
        metavar="NAME",
        help="ask this model in regression cases; repeat it for a fallback chain (default: the recorded answers)",
    )
    group.addoption(
        "--oakleaf-prompt",
        metavar="TEXT|@FILE",
        help="the system prompt of regression cases (default: the recorded one)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the options before anything is collected. Without them nothing is imported."""
    names: list[str] = config.getoption("--oakleaf-model") or []
    prompt: str | None = config.getoption("--oakleaf-prompt")
    if not names and prompt is None:
        return
    from oakleaf.errors import ModelUnavailable
    from oakleaf.ext import ReplayPlan, available_models

    try:
        if prompt is not None and prompt.startswith("@"):
            prompt = Path(prompt[1:]).read_bytes().decode()
        elif prompt is not None and isfile(prompt):
            raise pytest.UsageError(f"--oakleaf-prompt: {prompt} is a file; write @{prompt} for its content")
        models = available_models(names)
    except (ModelUnavailable, OSError, UnicodeDecodeError) as error:
        raise pytest.UsageError(f"--oakleaf-model, --oakleaf-prompt: {error}") from None
    config.stash[_OVERRIDES] = ReplayPlan(model=models or None, prompt=prompt)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return CaseFile.from_parent(parent, path=file_path) if file_path.name.endswith(SUFFIX) else None


class CaseFile(pytest.File):
    """A regression case as a file of one test."""

    def collect(self) -> Iterator[pytest.Item]:
        yield CaseItem.from_parent(self, name=self.path.name.removesuffix(SUFFIX))


class CaseItem(pytest.Item):
    def runtest(self) -> None:
        import asyncio

        from oakleaf.ext import ReplayPlan
        from oakleaf_lab.regression import run_case

        result = asyncio.run(run_case(self.path, self.config.stash.get(_OVERRIDES, ReplayPlan())))
        if result.status != "passed":
            raise CaseNotPassed(result)

    def repr_failure(self, excinfo: ExceptionInfo[BaseException], style: Any = None) -> str | TerminalRepr:
        if isinstance(excinfo.value, CaseNotPassed):
            return "\n".join(excinfo.value.result.lines())
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"case {self.name}"


class CaseNotPassed(Exception):
    def __init__(self, result: CaseResult) -> None:
        self.result = result
        super().__init__(result.status)


# -- fixtures ----------------------------------------------------------------------------------------------------


@pytest.fixture
def oakleaf_store() -> Iterator[Store]:
    """Yield an empty store in memory, a real store, closed with the test."""
    from oakleaf import open

    with open("memory:") as store:
        yield store


@pytest.fixture
def scripted_model() -> type[ScriptedModel]:
    """Make a model with scripted answers: `scripted_model(["Hello."])`. Its `requests` are what it was asked."""
    from oakleaf import ScriptedModel

    return ScriptedModel


class Replayed(NamedTuple):
    """A replay to assert on."""

    session: Session
    """The replay, in `oakleaf_store`."""
    report: ReplayReport
    """What differs from the recording."""
    tool_calls: list[ToolCall]
    """The calls of the replayed turns, in order."""
    text: str
    """The last answer."""
    failures: list[Failure]
    """What a case expects and the replay does not meet; empty for a bundle."""


class ReplayFixture(Protocol):
    def __call__(
        self,
        path: str | Path,
        *,
        model: ModelLike | None = None,
        prompt: str | None = None,
        prompt_patch: str | None = None,
        options: Mapping[str, Any] | None = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        mode: Literal["strict", "recorded", "dry", "live"] | None = None,
        start: int = 0,
    ) -> Replayed: ...


@pytest.fixture
def replayed(oakleaf_store: Store, request: pytest.FixtureRequest) -> ReplayFixture:
    """Replay a case or a bundle: `replayed("refund.case.toml", model=my_model).text`.

    A relative path is looked up next to the test's file first. Without a model the recorded answers are given again.
    """

    def replay(path: str | Path, *, start: int = 0, **overrides: Any) -> Replayed:
        import asyncio

        from oakleaf.core.turn_reader import message_text
        from oakleaf.ext import ReplayPlan
        from oakleaf_lab.case_file import FORMAT, Case
        from oakleaf_lab.regression import judge_case, replay_case

        beside = request.path.parent / path
        place = beside if beside.exists() else Path(path)
        plan = ReplayPlan(**overrides)
        case = None if place.name.endswith(SUFFIX) else Case(FORMAT, place.name, start)
        result = asyncio.run(replay_case(place, plan, case=case, store=oakleaf_store))
        steps = [step for turn in result.turns for step in turn.steps]
        return Replayed(
            result.replay,
            result.report,
            [view.call for step in steps for view in step.calls],
            message_text(steps[-1].message) if steps else "",
            asyncio.run(judge_case(result, place)),
        )

    return replay
