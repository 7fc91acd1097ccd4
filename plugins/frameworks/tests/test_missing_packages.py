"""What a user who follows a framework's page has installed, and what he reads if he has not."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from oakleaf import assistant, user
from oakleaf.install import PLUGINS_OF, install_line
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf_frameworks.shared import require_store

ROOT = Path(__file__).parents[3]
FRAMEWORKS = {
    "langgraph": "langchain_core",
    "openai-agents": "agents",
    "claude-agent": "claude_agent_sdk",
    "adk": "google.adk",
    "pydantic-ai": "pydantic_ai",
}


@pytest.mark.parametrize("extra", FRAMEWORKS)
class TestAnExtra:
    def test_is_named_by_the_error_of_an_import_without_it(self, extra: str) -> None:
        package = f"oakleaf_frameworks.{extra.replace('-', '_')}"
        code = f"import sys; sys.modules[{FRAMEWORKS[extra]!r}] = None; import {package}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: ")
        assert install_line(extra) in done.stderr.splitlines()[-1]

    def test_is_the_one_its_page_installs(self, extra: str) -> None:
        page = (ROOT / "docs" / "frameworks" / f"{extra}.md").read_text()
        folders = " ".join(f"/path/to/oakleaf/plugins/{name}" for name in PLUGINS_OF[extra])
        assert f"pip install '/path/to/oakleaf[{extra}]' {folders}" in page

    def test_names_every_plugin_in_its_install_line(self, extra: str) -> None:
        project = tomllib.loads((ROOT / "plugins/frameworks/pyproject.toml").read_text())["project"]
        needed = re.findall(r"oakleaf-(\w+)==", " ".join(project["optional-dependencies"][extra]))
        assert sorted(PLUGINS_OF[extra]) == sorted(["frameworks", *needed])

    def test_brings_the_commands_that_its_page_shows_and_the_prices(self, extra: str) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        own = [item for item in project["optional-dependencies"][extra] if item.startswith("oakleaf[")]
        names = {name for item in own for name in re.findall(r"[\w-]+", item)[1:]}
        assert {"cli", "prices"} <= names


class TestAStore:
    @pytest.mark.parametrize("value", ["agent.db", Path("agent.db")])
    @pytest.mark.smoke
    def test_is_not_a_path(self, value: object) -> None:
        with pytest.raises(TypeError, match=r"not \w+; pass oakleaf\.open\('agent.db'\)"):
            require_store(value, "OakleafSaver")

    def test_may_be_a_session_only_where_that_is_allowed(self) -> None:
        session = Session.__new__(Session)
        assert require_store(session, "OakleafSession", or_session=True) is session
        with pytest.raises(TypeError, match=r"OakleafSaver expected the Store that oakleaf\.open"):
            require_store(session, "OakleafSaver")


class TestRedaction:
    KEY = "AKIA" + "Q" * 16

    def test_is_off_only_for_what_is_written_through_the_adapter(self, store: Store) -> None:
        adapter_store = require_store(store, "OakleafSaver", redact=False)
        session = adapter_store.start("a", [user(self.KEY)])
        by_session = require_store(session, "OakleafSession", or_session=True, redact=False)
        by_session.append([assistant(self.KEY)])
        store.session(session.session_id).append([user(self.KEY)])
        session.refresh()
        texts = [entry.message.text for entry in session.path() if entry.message is not None]
        assert texts == [self.KEY, self.KEY, "[redacted]"]
        assert session.verify() == []
