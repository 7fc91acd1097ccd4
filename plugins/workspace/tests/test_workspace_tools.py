"""The workspace tools in a session: in their scope, capped, and paged through."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

import oakleaf_workspace
from oakleaf import ScriptedModel, Session, Slow, ToolCall, Workspace, assistant
from oakleaf.errors import SessionRunning
from oakleaf.log.log import Log
from oakleaf.store import Store
from oakleaf.wire import PROVIDERS, find_provider
from replay.test_no_effects import guard_process


@pytest.fixture
def session(store: Store) -> Session:
    return store.start("coder")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "hello.py").write_text("print('hello')\n")
    (tmp_path / "outside.txt").write_text("not yours")
    return Workspace(working_dir=str(folder))


def results(session: Session) -> list[str]:
    results = [r for entry in session.path() if entry.message for r in entry.message.results]
    return [" ".join(getattr(piece, "text", "[media]") for piece in result.content) for result in results]


def run(session: Session, workspace: Workspace, *calls: tuple[str, dict]) -> list[str]:
    """Each call in a step of its own."""
    lines = [assistant(ToolCall(f"c{n}", name, arguments)) for n, (name, arguments) in enumerate(calls)]
    tools = oakleaf_workspace.tools(session, workspace, commands=["echo", "ls"])
    session.send_sync("go", model=ScriptedModel([*lines, "done"]), tools=tools)
    assert session.verify() == []
    return results(session)


def test_their_names_are_known_without_a_session(session: Session, workspace: Workspace) -> None:
    tools = oakleaf_workspace.tools(session, workspace)
    assert sorted(tool.name for tool in tools) == sorted(oakleaf_workspace.TOOL_NAMES)


@pytest.mark.smoke
def test_a_coding_turn_reads_edits_and_runs(session: Session, workspace: Workspace) -> None:
    results = run(
        session,
        workspace,
        ("list_files", {}),
        ("read_file", {"path": "hello.py"}),
        ("edit_file", {"path": "hello.py", "old": "hello", "new": "goodbye"}),
        ("write_file", {"path": "new/made.txt", "text": "made"}),
        ("grep", {"pattern": "goodbye"}),
        ("shell", {"argv": ["echo", "ran"]}),
    )
    assert "hello.py" in results[0]
    assert "goodbye" in results[4]
    assert "ran" in results[5]
    assert (Path(workspace.working_dir) / "hello.py").read_text() == "print('goodbye')\n"
    assert (Path(workspace.working_dir) / "new/made.txt").read_text() == "made"


def test_nothing_leaves_the_scope(session: Session, workspace: Workspace) -> None:
    results = run(
        session,
        workspace,
        ("read_file", {"path": "../outside.txt"}),
        ("read_file", {"path": "/etc/passwd"}),
        ("write_file", {"path": "../outside.txt", "text": "mine"}),
        ("shell", {"argv": ["cat", "../outside.txt"]}),
        ("http_request", {"method": "GET", "url": "http://127.0.0.1:1/"}),
    )
    assert all("OutOfScope" in text for text in results)
    assert (Path(workspace.working_dir).parent / "outside.txt").read_text() == "not yours"


def test_long_output_is_spilled_paged_through_and_never_collected(
    store: Store, session: Session, workspace: Workspace
) -> None:
    (Path(workspace.working_dir) / "long.txt").write_text("".join(f"line {n}\n" for n in range(1_900)) * 3)
    results = run(session, workspace, ("read_file", {"path": "long.txt"}))
    result = session.path()[3].message.results[0]
    media = result.content[1]
    assert len(results[0]) < 40_000
    assert store.gc(grace=-(10**18)) == 0
    more = run(session, workspace, ("read_spill", {"handle": media.hash, "offset": 0}))
    assert "line" in more[-1]


def test_a_handle_of_another_session_is_refused(store: Store, session: Session, workspace: Workspace) -> None:
    stranger = store.put_blob(b"somebody else's output", "text/plain")
    results = run(session, workspace, ("read_spill", {"handle": stranger.hash}))
    assert "OutOfScope" in results[0]


class TestShellOfTheHost:
    def test_shell_records_exactly_a_command_a_call_and_a_result(
        self, session: Session, workspace: Workspace
    ) -> None:
        output = oakleaf_workspace.shell(session, ["echo", "by hand"], workspace, commands=["echo"])
        assert "by hand" in output
        assert [entry.role for entry in session.path()] == ["user", "assistant", "tool"]
        assert session.path()[0].message.text == "$ echo 'by hand'"
        assert session.row.status == "idle"
        assert session.verify() == []
        session.send_sync("go on", model=ScriptedModel(["fine"]))

    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_every_provider_accepts_the_input_after_a_shell_exchange(
        self, session: Session, workspace: Workspace, provider: str
    ) -> None:
        oakleaf_workspace.shell(session, ["echo", "one"], workspace, commands=["echo"])
        oakleaf_workspace.shell(session, ["echo", "two"], workspace, commands=["echo"])
        with session.turn("go on"):
            assert find_provider(provider).violations(session.request(provider), ready=True) == []

    def test_an_error_is_a_result_too(self, session: Session, workspace: Workspace) -> None:
        assert "OutOfScope" in oakleaf_workspace.shell(session, ["rm", "-rf", "/"], workspace)
        assert session.path()[-1].message.results[0].error
        assert session.row.status == "idle"
        assert session.verify() == []

    def test_a_command_inherits_the_variables_that_were_named(
        self, session: Session, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("KUBECONFIG", "VIRTUAL_ENV"):
            monkeypatch.setenv(name, f"the {name}")
        project = replace(workspace, fs_scope_tier="project")
        output = oakleaf_workspace.shell(session, ["env"], project, commands=["env"], env=["VIRTUAL_ENV"])
        assert "VIRTUAL_ENV=the VIRTUAL_ENV" in output
        assert "KUBECONFIG" not in output

    def test_nobody_resumes_its_turn_while_it_runs(
        self, store: Store, session: Session, tmp_path: Path
    ) -> None:
        workspace, done = Workspace(working_dir=str(tmp_path), fs_scope_tier="full"), []
        script = "touch started; while [ ! -e end ]; do sleep 0.01; done; echo ended"
        thread = threading.Thread(
            target=lambda: done.append(
                oakleaf_workspace.shell(session, ["sh", "-c", script], workspace, commands=["sh"])
            )
        )
        thread.start()
        while not (tmp_path / "started").exists():
            time.sleep(0.01)
        with pytest.raises(SessionRunning):
            store.session(session.session_id).resume_sync(model=ScriptedModel(["mine"]))
        (tmp_path / "end").touch()
        thread.join(20)
        assert "ended" in done[0]
        assert (session.row.holder, session.row.status) == (None, "idle")

    def test_it_is_refused_while_a_loop_drives(self, store: Store, session: Session) -> None:
        workspace = Workspace(working_dir="/tmp")

        async def main() -> None:
            async for event in session.send("q", model=ScriptedModel([Slow(0.05, "mine")])):
                if event.type == "session:turn_started":
                    other = store.session(session.session_id)
                    with pytest.raises(SessionRunning):
                        await asyncio.to_thread(
                            oakleaf_workspace.shell, other, ["true"], workspace, commands=["true"]
                        )

        asyncio.run(main())
        assert session.path()[-1].message.text == "mine"


class TestDryRun:
    """The migration plan: a dry run of a tool with an effect returns what it would have done, and does nothing."""

    def replayed(self, session: Session, workspace: Workspace, name: str, arguments: dict) -> str:
        session.send_sync("go", model=ScriptedModel(["done"]))
        model = ScriptedModel([assistant(ToolCall("c", name, arguments)), "done"])
        tools = oakleaf_workspace.tools(session, workspace, commands=["rm"])
        with guard_process() as tripped:
            report = session.replay_sync(model=model, tools=tools, mode="dry")
        assert (report.stop_reason, report.dry_runs, tripped) == (None, {name: 1}, [])
        path = session.log.store.session(report.replay)
        replay = Session(Log(session.log.store, path, session.log.runtime))
        assert [r.outcome for entry in replay.path() if entry.message for r in entry.message.results] == [
            "dry_run"
        ]
        return results(replay)[0]

    def test_write_file_shows_the_difference(self, session: Session, workspace: Workspace) -> None:
        text = self.replayed(session, workspace, "write_file", {"path": "hello.py", "text": "print('ho')\n"})
        assert "-print('hello')\n+print('ho')" in text
        assert Path(workspace.working_dir, "hello.py").read_text() == "print('hello')\n"

    def test_write_file_of_a_new_folder_creates_none(self, session: Session, workspace: Workspace) -> None:
        text = self.replayed(session, workspace, "write_file", {"path": "new/a.txt", "text": "a\n"})
        assert text.startswith("--- /dev/null\n+++ b/new/a.txt")
        assert not Path(workspace.working_dir, "new").exists()

    def test_edit_file_shows_the_difference(self, session: Session, workspace: Workspace) -> None:
        arguments = {"path": "hello.py", "old": "hello", "new": "ho"}
        assert "+print('ho')" in self.replayed(session, workspace, "edit_file", arguments)

    def test_shell_shows_the_command(self, session: Session, workspace: Workspace) -> None:
        text = self.replayed(session, workspace, "shell", {"argv": ["rm", "hello.py"]})
        assert text.startswith("would run rm hello.py in ")
        assert Path(workspace.working_dir, "hello.py").exists()

    def test_http_request_shows_the_request(self, session: Session, workspace: Workspace) -> None:
        arguments = {"method": "POST", "url": "https://example.com/x", "body": "b"}
        text = self.replayed(session, workspace, "http_request", arguments)
        assert text == "would send POST https://example.com/x\nb"

    @pytest.mark.parametrize("path", ["../outside.txt", ".git/config", "/etc/passwd"])
    def test_a_preview_shows_no_file_out_of_scope(
        self, session: Session, workspace: Workspace, path: str
    ) -> None:
        text = self.replayed(session, workspace, "write_file", {"path": path, "text": "x"})
        assert "out of scope" in text.lower() or "OutOfScope" in text
        assert "not yours" not in text
