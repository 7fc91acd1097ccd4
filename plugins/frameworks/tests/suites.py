"""Run the frameworks' own test suites against Oakleaf's adapters, from a checkout of the framework's repository.

    python plugins/frameworks/tests/suites.py langgraph|openai|openai-runs|adk|claude SOURCES [--store sqlite|memory|own] [PYTEST ARGUMENT …]

SOURCES is a checkout of the framework's repository, or its unpacked source distribution where that has the tests
(`pip download --no-deps --no-binary :all: openai-agents==0.24.0`; ADK's has none). Use a copy of `.venv-frameworks` with what
the suites need beside it: pytest-asyncio, pytest-mock, pytest-timeout, syrupy, redis, trio, pycryptodome, cryptography,
langchain, langgraph-checkpoint-sqlite, langgraph-checkpoint-postgres. Nothing in SOURCES is changed: this module is also a
pytest plugin, which puts Oakleaf's store in the place of the framework's own before its tests import it. A second run with
`--store own` counts the framework's own stores: a test that fails there too says nothing about ours.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

SUITES: dict[str, tuple[str, tuple[str, ...]]] = {
    "langgraph": (
        "libs/langgraph",
        (
            "tests/test_pregel.py",
            "tests/test_pregel_async.py",
            "tests/test_large_cases.py",
            "tests/test_large_cases_async.py",
            "tests/test_time_travel.py",
            "tests/test_time_travel_async.py",
            "tests/test_subgraph_persistence.py",
            "tests/test_subgraph_persistence_async.py",
            "tests/test_interruption.py",
            "tests/test_delta_channel_exit_mode.py",
            "tests/test_delta_channel_update_state.py",
        ),
    ),
    "openai": (
        ".",
        (
            "tests/memory/test_session.py",
            "tests/memory/test_session_limit.py",
            "tests/memory/test_session_context_wrapper.py",
            "tests/memory/test_openai_responses_compaction_session.py",
            "tests/memory/test_compaction_suffix.py",
            "tests/memory/test_compaction_model_visibility.py",
            "tests/extensions/memory/test_encrypt_session.py",
            "tests/test_max_turns.py",
            "tests/test_soft_cancel.py",
        ),
    ),
    "openai-runs": (
        ".",
        (
            "tests/test_hitl_session_scenario.py",
            "tests/test_run_state_pending_input.py",
            "tests/test_run_impl_resume_paths.py",
            "tests/test_handoff_history_duplication.py",
            "tests/test_agent_runner.py",
            "tests/test_agent_runner_streamed.py",
        ),
    ),
    "adk": (".", ("tests/unittests/sessions/test_session_service.py",)),
    "claude": (
        ".",
        (
            "tests/test_session_store_conformance.py",
            "tests/test_session_helpers_store.py",
            "tests/test_session_import.py",
            "tests/test_session_resume.py",
            "tests/test_transcript_mirror.py",
        ),
    ),
}
"""For each framework the folder in its checkout to run in, and the files whose tests use a session store."""


def main(framework: str, sources: str, *arguments: str) -> int:
    store, *rest = arguments[1:] if arguments[:1] == ("--store",) else ("sqlite", *arguments)
    folder, files = SUITES[framework]
    root = Path(sources, folder).resolve() if Path(sources, folder).is_dir() else Path(sources).resolve()
    environment = {
        **os.environ,
        "OAKLEAF_SUITE": f"{framework}:{store}",
        "NO_DOCKER": "true",
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), str(root))),
    }
    if framework == "langgraph" and store != "own":
        conformance = Path(sources, "libs/checkpoint-conformance").resolve()  # else the installed version
        paths = str(conformance) + os.pathsep + environment["PYTHONPATH"]
        subprocess.run(
            [sys.executable, __file__, "conformance"], env=environment | {"PYTHONPATH": paths}, check=True
        )
    present = [file for file in files if (root / file).is_file()]
    arguments_left = rest if any(argument.startswith("tests/") for argument in rest) else [*present, *rest]
    pytest_command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "suites",
        "-p",
        "no:cacheprovider",
        "-q",
        "--timeout",
        "120",
    ]
    return subprocess.run(
        [*pytest_command, *arguments_left], cwd=root, env=environment, check=False
    ).returncode


def open_store(folder: str | None = None) -> Any:
    import oakleaf

    kind = os.environ["OAKLEAF_SUITE"].partition(":")[2]
    where = (
        "memory:" if kind == "memory" else f"{folder or tempfile.mkdtemp(prefix='oakleaf-suite-')}/suite.db"
    )
    return oakleaf.open(where, synchronous="normal")


# -- LangGraph ---------------------------------------------------------------------------------------


def count_conformance() -> None:
    """Count the conformance suite of LangGraph, in the version of the checkout."""
    conformance = importlib.import_module("langgraph.checkpoint.conformance")
    from oakleaf_frameworks.langgraph import OakleafSaver

    @conformance.checkpointer_test(name="oakleaf")  # type: ignore[untyped-decorator]
    async def saver() -> AsyncIterator[Any]:
        with open_store() as store:
            yield OakleafSaver(store)

    results = asyncio.run(conformance.validate(saver)).results.values()
    failures = [failure for result in results for failure in result.failures]
    passed = sum(result.tests_passed for result in results)
    print(f"{conformance.__file__}: {passed} of {passed + len(failures)} passed", *failures, sep="\n")
    if failures:
        sys.exit(1)


def replace_checkpointers() -> None:
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    from oakleaf_frameworks.langgraph import OakleafSaver

    fixtures = importlib.import_module("tests.conftest_checkpointer")

    @contextmanager
    def checkpointer(serde: Any = None) -> Iterator[Any]:
        with open_store() as store:
            yield OakleafSaver(store, serde=serde)

    @contextmanager
    def encrypted() -> Iterator[Any]:
        with checkpointer(EncryptedSerializer.from_pycryptodome_aes(key=b"1234567890123456")) as saver:
            yield saver

    @asynccontextmanager
    async def async_checkpointer() -> AsyncIterator[Any]:
        with checkpointer() as saver:
            yield saver

    fixtures._checkpointer_memory = checkpointer
    fixtures._checkpointer_sqlite = checkpointer
    fixtures._checkpointer_sqlite_aes = encrypted
    fixtures._checkpointer_sqlite_aio = async_checkpointer


# -- OpenAI Agents -----------------------------------------------------------------------------------


def replace_sqlite_sessions() -> None:
    """Put an `OakleafSession` in the place of `SQLiteSession`."""
    import agents
    from agents.memory import sqlite_session

    from oakleaf_frameworks.openai_agents import OakleafSession

    stores: dict[str, Any] = {}
    numbers = count(1)

    class StoreSession(OakleafSession):
        def __init__(
            self, session_id: str, db_path: Any = ":memory:", *_tables: str, session_settings: Any = None
        ) -> None:
            name = f"memory-{next(numbers)}" if str(db_path) == ":memory:" else str(db_path)
            if name not in stores:
                stores[name] = open_store()
            super().__init__(session_id, stores[name], session_settings=session_settings)

        def close(self) -> None:
            """Leave the store open: other sessions of the test share it."""

    agents.SQLiteSession = StoreSession  # type: ignore[misc, assignment]
    sqlite_session.SQLiteSession = StoreSession  # type: ignore[misc, assignment]


def replace_list_sessions() -> None:
    """Put an `OakleafSession` in the place of the list in which tests of whole runs keep their items, too."""
    from oakleaf_frameworks.openai_agents import OakleafSession

    replace_sqlite_sessions()

    class ListSession(OakleafSession):
        def __init__(self, session_id: str = "test", history: Any = None) -> None:
            super().__init__(session_id, open_store())
            self._ignore_ids_for_matching = False
            if history:
                self._add(history)

        @property
        def saved_items(self) -> list[Any]:
            return self._read(None)

        _items = saved_items

    importlib.import_module("tests.utils.simple_session").SimpleListSession = ListSession


# -- ADK and Claude ----------------------------------------------------------------------------------


def replace_services() -> None:
    """Put ours in the place of ADK's services. A suite with a contract of its own (since 2.6) meets it as `in_memory`:
    its other tests are about the tables of ADK's databases."""
    from google.adk import sessions
    from google.adk.sessions import in_memory_session_service

    from oakleaf_frameworks.adk import OakleafSessionService

    def service(*_where: str) -> OakleafSessionService:
        return OakleafSessionService(open_store())

    sessions.InMemorySessionService = service  # type: ignore[misc, assignment]
    sessions.DatabaseSessionService = service  # type: ignore[misc, assignment]
    in_memory_session_service.InMemorySessionService = service  # type: ignore[misc, assignment]


def contract_tests(items: list[Any]) -> list[Any]:
    """The tests that ADK runs with its service in memory; all of them in versions without a contract."""
    contract = [item for item in items if item.name.endswith("[in_memory]")]
    return contract or items


def replace_transcripts() -> None:
    import claude_agent_sdk

    from oakleaf_frameworks.claude_agent import OakleafSessionStore

    class TranscriptStore(OakleafSessionStore):
        """Ours, with what the SDK's store in memory offers to tests."""

        def __init__(self) -> None:
            super().__init__(open_store())

        def get_entries(self, key: Any) -> list[Any]:
            return self._load(key) or []

    claude_agent_sdk.InMemorySessionStore = TranscriptStore  # type: ignore[misc, assignment]


REPLACEMENTS = {
    "langgraph": replace_checkpointers,
    "openai": replace_sqlite_sessions,
    "openai-runs": replace_list_sessions,
    "adk": replace_services,
    "claude": replace_transcripts,
}


def pytest_load_initial_conftests() -> None:
    framework, _, store = os.environ["OAKLEAF_SUITE"].partition(":")
    if store != "own":
        REPLACEMENTS[framework]()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    if os.environ["OAKLEAF_SUITE"].startswith("adk:") and not os.environ["OAKLEAF_SUITE"].endswith(":own"):
        items[:] = contract_tests(items)


if __name__ == "__main__":
    if sys.argv[1] == "conformance":
        count_conformance()
    else:
        sys.exit(main(*sys.argv[1:]))
