"""The workspace tools of a session: files, grep, shell and HTTP within one scope.

Output beyond a tool's limit is stored as a blob that its result references, so that the model can page through it and
garbage collection keeps it. A handle is valid only in the session whose results name it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from oakleaf import Attachment, Happened, NeverHappened, Session, Tool, ToolContext, Workspace, tool
from oakleaf.core.drafts import Blob
from oakleaf.core.media import digest
from oakleaf.errors import InvalidOperation, OutOfScope
from oakleaf.ext import Effect, read, run_host_tool
from oakleaf_workspace.commands import Shell
from oakleaf_workspace.file_changes import FileChange, FileVersion, large_version, to_details, version
from oakleaf_workspace.files import Files, Snapshot, read_snapshot
from oakleaf_workspace.http import HttpTools
from oakleaf_workspace.scope import Scope


class Spills:
    """A call's files besides the text: output beyond the limit, and the written files, before and after.

    Reads back only the output of this session.
    """

    def __init__(self, session: Session, *, is_repeated: bool = False) -> None:
        self._session, self._is_repeated = session, is_repeated
        self._redactor = read(session).redactor
        self.outputs: list[Attachment] = []
        self.changes: list[FileChange] = []
        self.blobs: list[Blob] = []

    def record_write(self, root: str, path: str, before: Snapshot | None, after: Snapshot) -> None:
        """Record a written file, for a rewind to restore."""
        now = self._version(after)
        was = None if before is None else self._version(before)
        is_same = was is not None and was.hash == now.hash
        # The first try of an interrupted call may have written it: then this is not what was there before.
        self.changes.append(FileChange(root, path, was, now, is_before_lost=is_same and self._is_repeated))

    def _version(self, snapshot: Snapshot) -> FileVersion:
        if snapshot.data is None:
            return large_version(snapshot.hash, snapshot.size, snapshot.mode)
        saved, blob = version(snapshot.data, snapshot.mode, self._redactor)
        self.blobs += [] if blob is None else [blob]
        return saved

    def store(self, data: bytes, mime: str) -> str:
        """Keep output for the result's blobs; return the handle for paging."""
        redacted = self._redactor.redact_text(data.decode("utf-8", "replace")).encode()
        self.outputs.append(Attachment(redacted, mime, "the rest of the output"))
        return digest(redacted)

    def read(self, handle: str) -> bytes:
        data = read(self._session).blob(handle) if self._is_referenced(handle) else None
        if data is None:
            raise OutOfScope(handle, "no result of this session has this handle, or its bytes are damaged")
        return data

    def _is_referenced(self, handle: str) -> bool:
        messages = (entry.message for entry in read(self._session).backwards())
        return any(media.hash == handle for message in messages if message for media in message.media)


def check(workspace: Workspace, *, commands: Iterable[str] = (), env: Iterable[str] = ()) -> None:
    """Refuse the same input as `tools`, before a session exists."""
    Scope.of(workspace, commands, env)


def tools(
    session: Session,
    workspace: Workspace,
    *,
    commands: Iterable[str] = (),
    hosts: Iterable[str] = (),
    env: Iterable[str] = (),
) -> list[Tool]:
    """Return the tools of a workspace. `commands` may be run by the shell and inherit the variables named in
    `env`;
    `hosts` may be reached by HTTP if private."""
    scope = Scope.of(workspace, commands, env)

    def files(spills: Spills) -> Files:
        return Files(scope, spills.store, spills.read, spills.record_write)

    def runner(spills: Spills) -> Shell:
        return Shell(scope, spills.store, os.environ)

    def was_edited(path: str, old: str, new: str, ctx: ToolContext) -> Happened | NeverHappened | None:
        with scope.open(path) as file:
            snapshot = read_snapshot(file)
        text = (snapshot.data or b"").decode("utf-8", "replace")
        if old in text and new not in text:
            return NeverHappened()
        if new not in text or old in text:
            return None
        spills = Spills(session, is_repeated=True)
        spills.record_write(*scope.locate(path), snapshot, snapshot)
        _keep(ctx, spills)
        return Happened("edited before the interruption")

    def http(spills: Spills) -> HttpTools:
        return HttpTools(spills.store, hosts=frozenset(hosts))

    make = partial(_workspace_tool, session)
    return [
        make("read", lambda spills: files(spills).read_file),
        make(
            "idempotent",
            lambda spills: files(spills).write_file,
            preview=lambda spills: files(spills).preview_write,
        ),
        make(
            "unsafe",
            lambda spills: files(spills).edit_file,
            verify=was_edited,
            preview=lambda spills: files(spills).preview_edit,
        ),
        make("read", lambda spills: files(spills).list_files),
        make("read", lambda spills: files(spills).grep),
        make("read", lambda spills: files(spills).read_spill),
        make(
            "unsafe",
            lambda spills: runner(spills).run,
            name="shell",
            preview=lambda spills: runner(spills).preview,
        ),
        make(
            "unsafe",
            lambda spills: runner(spills).run_approved,
            name="shell_approved",
            approval=True,
            preview=lambda spills: runner(spills).preview,
        ),
        make(
            "unsafe",
            lambda spills: http(spills).http_request,
            preview=lambda spills: http(spills).preview,
        ),
    ]


def _workspace_tool(
    session: Session,
    effect: Effect,
    bind: Callable[[Spills], Callable[..., Any]],
    *,
    name: str | None = None,
    verify: Callable[..., Any] | None = None,
    preview: Callable[[Spills], Callable[..., str]] | None = None,
    approval: bool = False,
) -> Tool:
    """Make a tool of `bind`'s function for the spills of a call.

    The model sees the function's parameters and docstring, and its name unless `name` is passed. `preview` returns the
    function that says what the tool would do, for a dry run.
    """
    function = bind(Spills(session))

    async def run(ctx: ToolContext, **arguments: Any) -> Any:
        return await call(bind, ctx, arguments)

    async def run_dry(ctx: ToolContext, **arguments: Any) -> Any:
        assert preview is not None
        return await call(preview, ctx, arguments)

    async def call(bind: Callable[[Spills], Callable[..., Any]], ctx: ToolContext, arguments: Any) -> Any:
        spills = Spills(session, is_repeated=ctx.is_repeated)
        result = bind(spills)(**arguments)
        result = await result if inspect.isawaitable(result) else result
        _keep(ctx, spills)
        text = result if isinstance(result, str) else result.text
        return [text, *spills.outputs] if spills.outputs else text

    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=ToolContext)
    run.__signature__ = inspect.Signature([*parameters, context])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [*parameters, context]}
    run.__doc__ = inspect.getdoc(function)
    return tool(
        effect=effect,
        name=name or function.__name__,
        verify=verify,
        dry_run=None if preview is None else run_dry,
        approval=approval,
    )(run)


def _keep(ctx: ToolContext, spills: Spills) -> None:
    """Store a call's written files with the result."""
    if spills.changes:
        ctx.details.update(to_details(spills.changes))
        ctx.blobs.extend(spills.blobs)


def shell(
    session: Session,
    argv: Sequence[str],
    workspace: Workspace,
    *,
    commands: Iterable[str] = (),
    env: Iterable[str] = (),
) -> str:
    """Run a command for the host, recorded like a model's tool call; return the output."""
    if asyncio._get_running_loop() is not None:
        raise InvalidOperation(
            "oakleaf_workspace.shell runs an event loop of its own; from asyncio call "
            "asyncio.to_thread(oakleaf_workspace.shell, session, …)"
        )
    (run,) = [tool for tool in tools(session, workspace, commands=commands, env=env) if tool.name == "shell"]
    result = run_host_tool(session, f"$ {shlex.join(argv)}", run, {"argv": list(argv)})
    return result.text
