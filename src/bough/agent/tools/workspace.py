"""The workspace tools as tools of a session: files, grep, shell and HTTP within one scope.

What a tool says beyond its cap is kept as a blob its result points to, so that the model can page through it
and no clean-up takes it. A handle is good only in the session whose results name it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shlex
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from ...core.drafts import Blob, Draft, ExtraFact
from ...core.media import digest
from ...core.messages import Media, Message, Text, ToolCall, assistant, user
from ...errors import InvalidOperation, OutOfScope
from ...log.log import Log
from ...log.workspace import Workspace
from .files import Files
from .http import HttpTools
from .scope import Scope
from .shell import Shell
from .tool import Effect, Happened, NeverHappened, Tool, ToolContext, tool


class Spills:
    """Where output beyond the cap goes, and who may have it back."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.made: list[Media] = []

    def keep(self, data: bytes, mime: str) -> str:
        kept = self._log.runtime.redactor.redact_text(data.decode("utf-8", "replace")).encode()
        media = Media(digest(kept), mime, len(kept), "the rest of the output")
        self._log.store.put_blob(Blob(media.hash, mime, kept), self._log.runtime.now())
        self.made.append(media)
        return media.hash

    def read(self, handle: str) -> bytes:
        found = self._log.store.blob(handle) if self._is_named(handle) else None
        if found is None:
            raise OutOfScope(handle, "no result of this session has such a handle")
        return found.data

    def _is_named(self, handle: str) -> bool:
        messages = (entry.message for entry in self._log.path().entries)
        return any(media.hash == handle for message in messages if message for media in message.media)


def workspace_tools(
    log: Log, workspace: Workspace, *, commands: Iterable[str] = (), hosts: Iterable[str] = ()
) -> list[Tool]:
    """Tools for one workspace. `commands` is the allow-list of the shell, `hosts` of private hosts for HTTP."""
    scope = Scope.of(workspace, commands)

    def made(effect: Effect, pick: Callable[[Spills], Any], **how: Any) -> Tool:
        return _wrapped(log, effect, pick, **how)

    def files(spills: Spills) -> Files:
        return Files(scope, spills.keep, spills.read)

    def was_edited(path: str, old: str, new: str) -> Happened | NeverHappened | None:
        with scope.open(path) as file:
            text = file.read().decode("utf-8", "replace")
        if old in text and new not in text:
            return NeverHappened()
        return Happened("edited before the interruption") if new in text and old not in text else None

    return [
        made("read", lambda spills: files(spills).read_file),
        made("idempotent", lambda spills: files(spills).write_file),
        made("unsafe", lambda spills: files(spills).edit_file, verify=was_edited),
        made("read", lambda spills: files(spills).list_files),
        made("read", lambda spills: files(spills).grep),
        made("read", lambda spills: files(spills).read_spill),
        made("unsafe", lambda spills: Shell(scope, spills.keep, os.environ).run, name="shell"),
        made(
            "unsafe",
            lambda spills: Shell(scope, spills.keep, os.environ).run_approved,
            name="shell_approved",
            approval=True,
        ),
        made("unsafe", lambda spills: HttpTools(spills.keep, hosts=frozenset(hosts)).http_request),
    ]


def _wrapped(log: Log, effect: Effect, pick: Callable[[Spills], Any], **how: Any) -> Tool:
    """The function with a place for its spills; its parameters and docstring are what the model is told."""
    told = pick(Spills(log))

    async def run(ctx: ToolContext, **given: Any) -> Any:
        spills = Spills(log)
        found = pick(spills)(**given)
        found = await found if inspect.isawaitable(found) else found
        text = found if isinstance(found, str) else found.text
        return [text, *spills.made] if spills.made else text

    parameters = list(inspect.signature(told, eval_str=True).parameters.values())
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=ToolContext)
    run.__signature__ = inspect.Signature([*parameters, context])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [*parameters, context]}
    run.__doc__ = inspect.getdoc(told)
    return tool(effect=effect, **{"name": told.__name__, **how})(run)


def run_shell(log: Log, argv: list[str], workspace: Workspace, commands: Iterable[str]) -> str:
    """Run a command for the host, recorded as the exchange a model would have made; return its output.

    Command and call are durable before it runs, the result afterwards, errors included. So later context, compaction
    and inspection see what they would have seen if the model had called the tool itself.
    """
    if asyncio._get_running_loop() is not None:
        raise InvalidOperation(
            "session.shell runs an event loop of its own; from asyncio call asyncio.to_thread(session.shell, …)"
        )
    log.raise_if_leased()
    call = ToolCall(log.runtime.new_id("call"), "shell", {"argv": argv})
    started = ExtraFact("calls_started", {"seq": log.leaf.seq + 2, "indexes": [0]})
    log.append([Draft(user(f"$ {shlex.join(argv)}")), Draft(assistant(call))], facts=[started])
    (shell,) = [tool for tool in workspace_tools(log, workspace, commands=commands) if tool.name == "shell"]
    context = ToolContext(log.idempotency_key(log.leaf.seq, 0), log.session_id, call, log.state)
    message = asyncio.run(shell.run(context))
    # An error ends the turn as well as a success: no model is called.
    ending = replace(message, parts=(replace(message.results[0], ends_turn=True),))
    stored = log.append([Draft(ending)]).payloads[0]
    assert isinstance(stored, Message)
    return "".join(part.text for part in stored.results[0].content if isinstance(part, Text))
