"""Stores that a plugin opens by the scheme of an address, and what is said when none can."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oakleaf
from oakleaf import plugins
from oakleaf.errors import (
    InvalidArgument,
    PluginBroken,
    PluginMissing,
    PostgresRequired,
    StoreError,
    StoreLacks,
)
from oakleaf.stores.address import display_url
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.stores.opening import plan_migration
from support.foreign_plugins import Site
from support.terminal import CommandResult, environment

pytestmark = pytest.mark.extra

TOY = """
    from oakleaf.errors import StoreError
    from oakleaf.stores.opening import Migration, MigrationResult
    from oakleaf.stores.base import Finding
    from oakleaf.stores.memory.store import MemoryStore

    class ToyStore(MemoryStore):
        def __init__(self, url, space, owner):
            super().__init__(space=space, owner=owner)
            self.url = url

        def findings(self):
            return [Finding("warning", "the toy squeaks", "oil it")]

        def backup(self, to, progress=lambda done, total: None):
            with open(to, "w") as file:
                file.write("toy")

    def open_toy(url, *, space, owner, options):
        if options.key is not None:
            raise StoreError("a toy has no key")
        return ToyStore(url.partition("?")[0], space, owner)

    def open_nonsense(url, **options):
        return 7

    def open_brief(url):
        return ToyStore(url, "default", None)

    def plan_migration(url, options):
        return Migration([f"paint it {options}"], lambda: MigrationResult(["painted"], {"format": 2}))

    def open_painted(url, *, space, owner, options):
        return ToyStore(url, space, owner)

    def open_unplanned(url, **options):
        return ToyStore(url, "default", None)

    open_unplanned.plan_migration = lambda url, options: 7
    open_painted.plan_migration = plan_migration
    open_painted.display_url = lambda url: "painted://hidden"
"""
WITHOUT_POSTGRESQL = """
import sys
from oakleaf import plugins

sys.modules["oakleaf_postgres"] = None
installed = plugins.providers()
plugins.providers = lambda: tuple(one for one in installed if one.distribution != "oakleaf-postgres")
from oakleaf.cli.entry import run
run()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Distributions of strangers, found by this process too."""
    site = Site(tmp_path)
    stores = {
        "toy": "toy_store:open_toy",
        "nonsense": "toy_store:open_nonsense",
        "brief": "toy_store:open_brief",
        "painted": "toy_store:open_painted",
        "unplanned": "toy_store:open_unplanned",
        "raises": "raising_store:open_store",
    }
    site.install("toys", {"stores": stores}, {"toy_store.py": TOY, "raising_store.py": "1 / 0"})
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.providers.cache_clear()
    yield site
    plugins.providers.cache_clear()
    sys.modules.pop("toy_store", None)


def test_an_opener_that_raises_is_named_with_the_error(site: Site) -> None:
    with pytest.raises(
        PluginBroken, match=r"the store 'brief' of toys 1\.0 cannot be used: opening raised TypeError"
    ):
        oakleaf.open("brief://home")


def test_an_address_is_opened_by_the_plugin_of_the_scheme(site: Site) -> None:
    with oakleaf.open("toy://me:hunter2@home/x", space="play", owner="ann") as store:
        assert (type(store.backend).__name__, store.backend.space, store.backend.owner) == (
            "ToyStore",
            "play",
            "ann",
        )
        store.start("a", session_id="ses_a")
        assert store.session("ses_a").row.agent == "a"
    with pytest.raises(StoreError, match="a toy has no key"):
        oakleaf.open("toy://home/x", key="k")


def test_commands_use_a_store_of_a_stranger(site: Site) -> None:
    toy = ("--store", "toy://me:hunter2@home/x?token=abc&size=3")
    assert site.run(*toy, "ls", "--json").json["sessions"] == []
    doctor = site.run(*toy, "doctor")
    assert "the toy squeaks" in doctor.out
    assert "toy://me@home/x?size=3" in doctor.out
    assert "hunter2" not in doctor.out + doctor.err
    target = site.folder / "toy.bak"
    assert site.run(*toy, "backup", str(target)).code == 0
    assert target.read_text() == "toy"
    refused = site.run(*toy, "migrate", "--yes")
    assert (refused.code, "has nothing to migrate" in refused.err) == (2, True)
    needs = site.run(*toy, "enqueue", "hi", "--agent", "a")
    assert (needs.code, "need PostgreSQL" in needs.err) == (2, True)


def test_a_store_of_a_stranger_plans_a_migration(site: Site) -> None:
    flags = ("--store", "painted://x", "migrate", "--client-role", "guest")
    asked = site.run(*flags)
    assert (asked.code, "paint it {'client_role': 'guest'}" in asked.err) == (1, True)
    assert site.run(*flags, "--yes").out == "painted\n"
    assert site.run(*flags, "--yes", "--json").json == {
        "backend": "painted://hidden",
        "done": True,
        "report": {"format": 2},
        "schema_version": 1,
        "steps": ["painted"],
        "warnings": [],
    }


def test_nonsense_in_place_of_a_migration_is_refused(site: Site) -> None:
    with pytest.raises(PluginBroken, match="plan_migration returned int, not a Migration"):
        plan_migration("unplanned://x", {})
    assert plan_migration("toy://x", {}) is None
    assert plan_migration("memory:", {}) is None


def test_an_unknown_scheme_lists_the_known_schemes(site: Site) -> None:
    with pytest.raises(
        InvalidArgument, match=r"memory:, or SCHEME://.*postgresql, raises, toy, unplanned"
    ) as caught:
        oakleaf.open("mysql://me:hunter2@home/x")
    assert "hunter2" not in str(caught.value)


def test_a_store_that_raises_on_import_is_named(site: Site) -> None:
    with pytest.raises(
        PluginBroken, match=r"the store 'raises' of toys 1\.0 cannot be used: .*ZeroDivisionError"
    ):
        oakleaf.open("raises://home/x")
    shown = site.run("--store", "raises://me:hunter2@home/x", "ls")
    assert "mend or uninstall toys 1.0" in shown.err
    assert "hunter2" not in shown.err
    assert display_url("raises://me:hunter2@home/x?password=p") == "raises://me@home/x"


def test_nonsense_in_place_of_a_store_is_refused(site: Site) -> None:
    with pytest.raises(PluginBroken, match="it returned int, not a StoreBackend"):
        oakleaf.open("nonsense://home/x")


def test_a_missing_plugin_gives_an_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "providers", tuple)
    with pytest.raises(PluginMissing, match="no installed plugin adds the store 'postgresql'") as caught:
        oakleaf.open("postgresql://me:hunter2@home/x")
    assert "[postgres]" in (caught.value.hint or "")
    assert "hunter2" not in str(caught.value)
    assert display_url("postgresql://me:hunter2@home/x") == "postgresql://me@home/x"
    with pytest.raises(InvalidArgument, match="no plugin adds a store"):
        oakleaf.open("mysql://home/x")


def test_a_file_and_memory_read_no_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("entry points were read")

    monkeypatch.setattr(plugins, "providers", fail)
    for address in ("memory:", tmp_path / "a.db", "./b.db"):
        monkeypatch.chdir(tmp_path)
        with oakleaf.open(address) as store:
            store.start("a")
    with pytest.raises(StoreLacks, match="memory: cannot be copied to a file"):
        oakleaf.open("memory:").backup(tmp_path / "c")
    with pytest.raises(StoreError, match="key= is for files"):
        oakleaf.open("memory:", key="k")


def test_a_store_without_capabilities_has_no_findings_or_workers() -> None:
    store = MemoryStore()
    assert (store.findings(), store.queues()) == ([], [])
    with pytest.raises(PostgresRequired):
        store.tasks("oakleaf")


def test_everything_but_postgresql_works_without_the_plugin(tmp_path: Path) -> None:
    store = tmp_path / "a.db"

    def run(*words: str) -> CommandResult:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_POSTGRESQL, *words],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return CommandResult(words, done.returncode, done.stdout, done.stderr)

    (tmp_path / "replies.json").write_text('["hello"]')
    here = ("--store", str(store))
    answered = run(*here, "run", "hi", "--model", f"scripted:{tmp_path / 'replies.json'}")
    assert (answered.code, "hello" in answered.out) == (0, True), answered.err
    for words in (["ls"], ["doctor"], ["migrate"], ["backup", str(tmp_path / "b.db")], ["--help"]):
        assert run(*here, *words).code == 0
    for words in (
        ["worker", "--agents", "x.py"],
        ["enqueue", "hi"],
        ["--store", "postgresql://me:hunter2@home/x", "ls"],
    ):
        missing = run(*words)
        assert (missing.code, "install it with: pip install" in missing.err) == (2, True)
        assert "hunter2" not in missing.err
