"""Tasks that a plugin runs: a worker finds the handler by the task's name, and a bad handler stops nothing else."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import oakleaf
from oakleaf import ScriptedModel, plugins
from oakleaf.errors import PostgresRequired
from oakleaf.stores.tasks import task_queue
from oakleaf_postgres.absurd.engine import Agent
from oakleaf_postgres.errors import EngineMissing, EngineNotInstalled
from support import paths
from support.absurd_queue import AbsurdQueue
from support.foreign_plugins import Site
from support.postgres import Database, DatabaseHost
from support.processes import wait_until

GOOD = """
    import asyncio
    from oakleaf.errors import InvalidArgument

    def count(task, params):
        if params.get("put_back") and not task.store("default").backend.find_session(params["session"]):
            task.store("default").start("seen", session_id=params["session"])
            task.put_back()
        async def add():
            await asyncio.sleep(0)
            return params["a"] + params["b"]
        agents = sorted(task.worker.agents)
        models = [model.model for model in task.worker.agents["a"].models]
        return {"sum": task.run(add()), "attempt": task.attempt, "agents": agents, "models": models}

    def write_late(task, params):
        store = task.store("default")
        task._claim.lose()
        store.start("late", session_id="ses_late")

    def nonsense(task, params):
        return [1]

    number = 7
"""


@pytest.fixture(scope="module")
def installed(postgres: DatabaseHost) -> Database:
    return Database(postgres, "handlers")


@pytest.fixture
def queue(installed: Database) -> Iterator[AbsurdQueue]:
    with closing(AbsurdQueue(installed)) as queue:
        yield queue


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Distributions of strangers, found by this process too."""
    site = Site(tmp_path)
    tasks = {
        "oakleaf-count": "tasks_of_a_stranger:count",
        "late": "tasks_of_a_stranger:write_late",
        "nonsense": "tasks_of_a_stranger:nonsense",
        "number": "tasks_of_a_stranger:number",
        "needs-more": "lacking_tasks:run",
        "raises": "raising_tasks:run",
    }
    files = {
        "tasks_of_a_stranger.py": GOOD,
        "lacking_tasks.py": "import nosuchpackage",
        "raising_tasks.py": "1 / 0",
    }
    site.install("stranger", {"tasks": tasks}, {name: dedent(text) for name, text in files.items()})
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.providers.cache_clear()
    yield site
    plugins.providers.cache_clear()


def spawn(queue: AbsurdQueue, name: str, params: dict[str, Any], attempts: int = 1) -> None:
    retry = {"kind": "none"}
    task_queue(queue.store, queue.name).spawn(name, {"key": params}, attempts=attempts, retry=retry)


def agent(*answers: Any) -> Agent:
    return Agent("a", ScriptedModel(answers or ["hello"]))


def test_a_stranger_runs_a_task_with_the_workers_agents(queue: AbsurdQueue, site: Site) -> None:
    spawn(queue, "oakleaf-count", {"a": 2, "b": 3})
    with queue.working(agent()):
        wait_until(queue.is_done)
    state, _, result = queue.task()
    assert (state, result) == (
        "completed",
        {"sum": 5, "attempt": 1, "agents": ["a"], "models": ["scripted"]},
    )


def test_the_task_of_the_docs_runs(
    queue: AbsurdQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (paths.ROOT / "docs/plugins.md").read_text()
    sample = page.partition("## A task")[2].partition("```python\n")[2].partition("```")[0]
    Site(tmp_path).install(
        "acme", {"tasks": {"acme-words": "acme_words:count_words"}}, {"acme_words.py": sample}
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.providers.cache_clear()
    session = queue.store.start("counted", [oakleaf.user("one two three")])
    count_all = importlib.import_module("acme_words").count_all
    count_all(queue.store, queue.name)
    with queue.working(agent()):
        wait_until(queue.is_done)
    plugins.providers.cache_clear()
    assert queue.store.session(session.session_id).row.tags == {"words": "3"}


def test_a_task_that_is_put_back_runs_again(queue: AbsurdQueue, site: Site) -> None:
    spawn(queue, "oakleaf-count", {"a": 2, "b": 3, "put_back": True, "session": "ses_seen"})
    with queue.working(agent()):
        wait_until(queue.is_done)
    state, _, result = queue.task()
    assert (state, result["sum"]) == ("completed", 5)
    assert queue.store.session("ses_seen").row.agent == "seen"


def test_a_task_whose_claim_is_lost_writes_nothing(queue: AbsurdQueue, site: Site) -> None:
    spawn(queue, "late", {})
    reports: list[str] = []
    with queue.working(agent(), report=reports.append):
        wait_until(lambda: any("its lease" in line for line in reports))
    assert queue.store.backend.find_session("ses_late") is None


def test_a_handler_that_cannot_be_used_is_named_and_turns_run(queue: AbsurdQueue, site: Site) -> None:
    reports: list[str] = []
    session = queue.send("hi")
    with queue.working(agent("hello"), report=reports.append):
        wait_until(queue.is_done)
    assert [line.partition(":")[0] for line in reports] == [
        "tasks 'needs-more' do not run here",
        "tasks 'number' do not run here",
        "tasks 'raises' do not run here",
    ]
    assert "stranger 1.0 needs nosuchpackage" in reports[0]
    assert "it is int, not a function" in reports[1]
    assert "ZeroDivisionError" in reports[2]
    assert queue.store.session(session.session_id).path()[-1].message.text == "hello"


def test_a_handler_that_returns_nonsense_fails_its_task(queue: AbsurdQueue, site: Site) -> None:
    spawn(queue, "nonsense", {})
    with queue.working(agent()):
        wait_until(queue.is_done)
    ((failed,),) = [[state.failure] for state in task_queue(queue.store, queue.name).states(["key"]).values()]
    assert "the task 'nonsense' of stranger 1.0 cannot be used: it returned list, not a dict" in (
        failed or ""
    )


def test_tasks_need_a_store_and_a_queue_that_take_them(queue: AbsurdQueue) -> None:
    with oakleaf.open("memory:") as store, pytest.raises(PostgresRequired, match="memory:"):
        task_queue(store, "oakleaf")
    with pytest.raises(EngineNotInstalled, match="no queue 'nosuch'"):
        task_queue(queue.store, "nosuch")


def test_a_missing_package_of_the_engine_is_named_with_its_install_line(
    queue: AbsurdQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "absurd_sdk", None)
    monkeypatch.delitem(sys.modules, "oakleaf_postgres.absurd.task_queue", raising=False)
    with pytest.raises(EngineMissing, match="absurd_sdk") as caught:
        task_queue(queue.store, queue.name)
    assert "[absurd]" in (caught.value.hint or "")
