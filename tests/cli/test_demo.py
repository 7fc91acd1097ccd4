"""The demo's claims, checked by reading what it left behind."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf.wire import PROVIDERS, find_provider
from support.terminal import OAKLEAF, Terminal, environment, oakleaf


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    folder = tmp_path_factory.mktemp("demo") / "here"
    done = oakleaf("demo", "--folder", folder, "--json", store=None)
    assert done.code == 0, done.err
    return folder, json.loads(done.out)


class TestDemo:
    def test_every_claim_held(self, demo_run: tuple[Path, dict[str, object]]) -> None:
        _, output = demo_run
        assert output["passed"] is True
        assert len(output["claims"]) >= 15  # type: ignore[arg-type]

    def test_the_money_went_once(self, demo_run: tuple[Path, dict[str, object]]) -> None:
        folder, _ = demo_run
        assert len((folder / "bank.txt").read_text().splitlines()) == 1

    def test_the_store_tells_the_same_story(self, demo_run: tuple[Path, dict[str, object]]) -> None:
        folder, _ = demo_run
        with library.open(folder / "demo.db") as store:
            rows = list(store.all_sessions())
            assert sorted(str(row.relation) for row in rows) == ["None", "fork", "fork", "replay"]
            case = store.session(next(row.session_id for row in rows if row.relation is None))
            kinds = [fact.kind for fact in case.journal()]
            assert "tool_calls_started" in kinds
            (settled,) = [
                r for e in case.path() if e.message for r in e.message.results if r.call_id == "call_2"
            ]
            assert (settled.outcome, settled.error) == ("done", False)
            for provider in PROVIDERS:
                assert not list(find_provider(provider).violations(case.request(provider)))
            (fork,) = [store.session(row.session_id) for row in rows if row.title == "Order 41, second try"]
            assert fork.entries() == []
            (retry,) = [store.session(row.session_id) for row in rows if row.status == "waiting"]
            assert retry.pending_approvals()[0].earlier is not None
            again = store.session(next(row.session_id for row in rows if row.relation == "replay"))
            called = [call.name for entry in again.path() if entry.message for call in entry.message.calls]
            assert called == ["look_up"]
            difference = library.diff(case, again)
            assert difference.first_action_divergence is not None
            assert "refund" in difference.first_action_divergence.expected
            assert list(store.verify()) == []

    def test_what_it_says_to_type_works_in_a_folder_with_any_name(self, tmp_path: Path) -> None:
        done = oakleaf("demo", "--folder", "my demo", home=tmp_path)
        assert done.code == 0, done.err
        typed = done.out.partition("to explore it:\n")[2].splitlines()[:2]
        where = [shlex.split(line)[-1] for line in typed]
        assert where == [f"{tmp_path}/my demo", f"OAKLEAF_STORE={tmp_path}/my demo/demo.db"]

    def test_it_says_first_where_the_store_stays(self, tmp_path: Path) -> None:
        done = oakleaf("demo", store=None, TMPDIR=str(tmp_path))
        (folder,) = tmp_path.iterdir()
        assert done.code == 0
        assert done.out.splitlines()[0] == f"The store and the agent's files stay in {folder}"
        with library.open(folder / "demo.db") as store:
            assert len(list(store.all_sessions())) == 4

    def test_everything_it_says_to_type_can_be_typed(self, tmp_path: Path) -> None:
        """In a shell without `oakleaf` on its path, as after `make demo`."""
        variables = {**environment(tmp_path), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
        done = subprocess.run([*OAKLEAF, "demo"], capture_output=True, text=True, env=variables, check=True)
        typed = done.stdout.partition("to explore it:\n")[2]
        shell = subprocess.run(["sh", "-c", typed], capture_output=True, text=True, env=variables, check=True)
        assert "not found" not in shell.stderr
        assert "Order 41" in shell.stdout

    def test_it_runs_where_the_locale_is_not_utf_8(self, tmp_path: Path) -> None:
        ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        variables = {**environment(tmp_path), **ascii_locale, "TMPDIR": str(tmp_path)}
        done = subprocess.run(
            [*OAKLEAF, "demo"], capture_output=True, cwd=tmp_path, env=variables, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")

    def test_a_folder_with_things_in_it_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("x")
        assert oakleaf("demo", "--folder", tmp_path, store=None).code == 2
        assert [file.name for file in tmp_path.iterdir()] == ["mine"]

    def test_at_a_terminal_it_is_in_plain_sight(self, tmp_path: Path) -> None:
        with Terminal("demo", store=None, TMPDIR=str(tmp_path)) as terminal:
            for text in (
                "kill -9",
                "SIGKILL",
                "outcome unknown",
                "oakleaf resume",
                "first divergence",
                "◀ leaf",
                "claims hold",
            ):
                terminal.wait_for(text)
            assert terminal.wait() == 0
