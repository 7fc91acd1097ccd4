"""A handle on one session: every verb of the glossary, each a few lines that call the package that does the work.

A handle has a position: the leaf it last saw. Reads follow the path to that leaf; appends extend it. If another
writer moved the leaf, an append raises `StaleLeaf` and writes nothing; `refresh()` reloads the current leaf. Handles
may be shared between threads; docs/durability.md explains their use with asyncio.

Modules that only some verbs need (agents, replay, exports) are imported when those verbs are called.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, overload

from msgspec.structs import replace

from oakleaf import wire
from oakleaf.agent.blocking import Awaited, awaited, blocking
from oakleaf.core import context as contexts
from oakleaf.core.codec import check_text
from oakleaf.core.context import Context
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import (
    BranchSummary,
    Compaction,
    Effects,
    Entry,
    Note,
    Payload,
    Settings,
    Uncompaction,
    check_effects,
)
from oakleaf.core.facts import (
    Approved,
    Decision,
    Denied,
    ModelCallRecorded,
    Moved,
    SessionEnded,
    StoredFact,
    Tagged,
    TaskDecided,
    Titled,
    TurnStarted,
)
from oakleaf.core.fit import Budget
from oakleaf.core.messages import Message, Outcome, tool_result, user
from oakleaf.core.state import State
from oakleaf.core.tool_definitions import ToolSpec, define_tools
from oakleaf.core.tree import Branch, Leaf
from oakleaf.core.turns import Action, OpenCall
from oakleaf.core.usage import Call, Totals
from oakleaf.errors import (
    ApproverUnnamed,
    InvalidArgument,
    InvalidOperation,
    InvalidPosition,
    NothingToUndo,
    StaleLeaf,
    TaskTrashed,
)
from oakleaf.log import labels, ledger, prompt
from oakleaf.log.binding import bind, check_bound
from oakleaf.log.changes import ask, check_callers_key
from oakleaf.log.fork import fork, fork_once
from oakleaf.log.lease import Hold, interrupt, require_free
from oakleaf.log.log import HydratedSession, Log, hydrate
from oakleaf.log.request import Asked, Committed, Cut
from oakleaf.log.turn_start import turn_about
from oakleaf.log.verify import Problem, verify
from oakleaf.stores.base import SessionRow, Status
from oakleaf.turn.turn import Turn
from oakleaf.wire.options import check_options

if TYPE_CHECKING:
    from oakleaf.agent.events import Event, RunResult
    from oakleaf.agent.limits import Limits
    from oakleaf.agent.run import Cancellation, Run
    from oakleaf.agent.tools.sources import ToolLike
    from oakleaf.agent.tools.tool import EarlierCall, PendingApproval, Tool
    from oakleaf.bundle.exporters import ExportResult
    from oakleaf.bundle.transfer import PathOrFile
    from oakleaf.bundle.write import BundleExportResult, OnProgress
    from oakleaf.models.base import Model, ModelLike
    from oakleaf.replay.report import ReplayReport
    from oakleaf.replay.tool_answers import Mode, OnMiss

    Tools = Iterable[ToolLike]

Appendable = Payload | Draft | dict[str, Any]
UsageView = Literal["own", "path", "tree"]


class Session:
    """A handle on a session, positioned at a leaf.

    Reads follow the path to that leaf and appends extend it. If the session has moved since, an append raises
    `StaleLeaf` and writes nothing.
    """

    def __init__(self, log: Log, cut: Cut | None = None) -> None:
        self.log = log
        self.cut = cut
        """For a fork: the requested position and the nearest legal position."""
        self._run: weakref.ref[Run] | None = None
        """Weak: the entries read by a run are freed with the run's result, not with the next run."""

    @property
    def session_id(self) -> str:
        """The id for `store.session()`."""
        return self.log.session_id

    @property
    def leaf(self) -> Leaf:
        """The position of the handle; `refresh()` reloads the position."""
        return self.log.leaf

    @property
    def row(self) -> SessionRow:
        """The session's current row. Reading the row does not move the handle."""
        return self.log.store.session(self.session_id)

    @property
    def aio(self) -> AsyncSession:
        """The verbs of the session for asyncio: `await session.aio.append(…)`. None blocks the event loop.

        The properties that read the store are verbs there: `await session.aio.row()`. A cancelled verb is cancelled
        when it has ended, so that the handle is free.
        """
        return AsyncSession(self)

    def __repr__(self) -> str:
        return f"Session({self.session_id} at {self.leaf})"

    def refresh(self) -> SessionRow:
        """Reload the current leaf."""
        return self.log.refresh()

    # -- write -------------------------------------------------------------------------------------

    def append(
        self, items: Iterable[Appendable], *, after: Leaf | None = None, key: str | None = None
    ) -> Committed:
        """Append all items after the leaf, or no item; durable on return. The primitive below `turn`."""
        check_callers_key(key)
        return self._append(items, Asked(key), after)

    def _append(self, items: Iterable[Appendable], asked: Asked, after: Leaf | None = None) -> Committed:
        drafts = as_drafts(items, "items")
        if any(isinstance(draft.payload, Settings) and draft.payload.tools is not None for draft in drafts):
            settings = self.log.store.control_entries(
                self.session_id, leaf=self.leaf if after is None else after
            )
            payloads = (draft.payload for draft in drafts)
            contexts.check_tools_allowed(settings, payloads, self.row.tool_names)
        return self.log.append(drafts, after=after, key=asked.key, digest=asked.digest)

    def turn(
        self,
        content: str | Message | dict[str, Any] | None = None,
        *,
        key: str | None = None,
        model: str | None = None,
        trigger: str | Mapping[str, str] | None = None,
        context_window: int | None = None,
        policy: Mapping[str, Any] | None = None,
        trace: str | None = None,
        tools: Iterable[Tool | Callable[..., Any] | dict[str, Any]] | None = None,
        tool_names: Sequence[str] | None = None,
        task_models: ModelLike | None = None,
        take_over: bool = False,
        accept_imported: bool = False,
    ) -> Turn:
        """Open a turn of your own loop: `with session.turn("…") as turn`. Without content, continue the open turn.

        `SessionRunning` on entering it if another run drives the session; `take_over=True` ends that run instead.

        With `key` the same lines may run again, after a crash or a second delivery, and leave the same entries as
        once (see `Turn`). With `model="anthropic:claude-…"` the start of each model call is recorded in the commit
        before it: a call that a crash or an exception cuts off is counted, one that the block ends without is not.
        `tools` are those that the model may call, as tools, functions or dicts with name, description and parameters:
        their definitions become part of the path, and of `session.request()`. The other keywords are recorded in the
        turn's `turn_started` fact; `tool_names` is for tools whose definitions are not known. A call that an import left
        open is run with `accept_imported=True` only. With `task_models`, a model or a chain, the tools of `turn.run` may
        start tasks (`ToolContext.task`), which ask these models.
        """
        if tools is not None:
            from oakleaf.agent.tools.sources import require_list

            tools = require_list(tools)
        specs = None if tools is None else _tool_specs(tools)
        effects = _effects_of(tools or ())
        if accept_imported:
            self.accept_imported()
        if take_over:
            self._end_other_run()
        check_callers_key(key)
        about = turn_about(trigger, policy, self.log.runtime.redactor, trace)
        names = tuple(tool_names or ())
        started = replace(about, model=model, context_window=context_window, tool_names=names)
        tool_set = None if specs is None else define_tools(specs, self.log.runtime.redactor, effects)
        models: Sequence[Model] = ()
        if task_models is not None:
            from oakleaf.agent.run import resolve_models

            models = resolve_models(task_models)
        return Turn(
            self.log, content, key=key, model=model, started=started, tools=tool_set, task_models=models
        )

    def note(self, data: dict[str, Any] | None = None, *, state: dict[str, Any] | None = None) -> Committed:
        """Append data of the host, never shown to a model; `state` is merged into the session's state.

        While another handle or process runs the session the note goes behind its newest entry, and the run continues
        behind the note.
        """
        note = [Note(data or {}, state)]
        while True:
            try:
                return self.append(note)
            except StaleLeaf:
                if not Hold(self.refresh(), self.log.runtime).is_held:
                    raise

    def set(
        self,
        *,
        model: str | None = None,
        prompt: str | None = None,
        prompt_patch: str | None = None,
        tools: Sequence[str] | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        effects: Effects | None = None,
        key: str | None = None,
    ) -> Committed:
        """Change the settings from here on. Tools can be narrowed only (`ToolsNotAllowed`).

        `limits` narrow those of each run, except `max_messages`, which holds until it is set again; a dict may have names
        of the host's own, which are kept and ignored.
        `options` of the model's calls, such as `{"temperature": 0}`, are added to those in force; None removes one.
        `InvalidOption` if the provider of the session's model lacks one; docs/options.md lists them.
        `effects` says what becomes of an unsafe call that a path which was left has made: `ask` a person, `repeat` it, or
        `reuse` its recorded result; docs/effects.md.
        """
        check_effects(effects)
        if limits is not None and not isinstance(limits, Mapping):
            from oakleaf.agent.limits import session_limits

            limits = session_limits(limits)
        own_limits = dict(limits or {})
        max_messages = own_limits.pop("max_messages", None)
        settings = Settings(
            model,
            prompt,
            prompt_patch,
            _tool_names(tools),
            own_limits or None,
            effects=effects,
            max_messages=max_messages,
        )
        asked = self._ask(key, "set", settings, options)
        return self.log.once(asked, lambda: self._append([self._with_options(settings, options)], asked))

    def _with_options(
        self, settings: Settings, options: Mapping[str, Any] | None, leaf: Leaf | None = None
    ) -> Settings:
        """Add options to settings, after a check against the model in force."""
        if options is None:
            return settings
        path = self.log.store.control_entries(self.session_id, leaf=leaf or self.leaf)
        now = contexts.fold_settings(path)
        model = settings.model or now.model or self.row.model
        # A model without the prefix of a provider is the host's own.
        provider = None if model is None else wire.provider_of(model)
        check_options(provider, options, now.options)
        self.log.runtime.redactor.check_options(options)
        return replace(settings, options=dict(options))

    def close_batch(self, why: str, *, outcome: Outcome = "interrupted") -> Committed | None:
        """Give every open tool call an explicit result, so that other entries may follow."""
        calls = self.open_tool_calls
        if not calls:
            return None
        return self.append([tool_result(c.call.id, why, error=True, outcome=outcome) for c in calls])

    def title(self, title: str | None) -> None:
        """Set the title; None removes the title."""
        check_text(title, "title")
        self.log.record(Titled(title), row={"title": title})

    def tag(self, /, **tags: str | None) -> dict[str, str]:
        """Set tags; a value of None removes the tag. Returns all tags."""
        for name, value in tags.items():
            check_text(name, "tag")
            check_text(value, f"tag {name}")
        self.log.record(Tagged(dict(tags)), tags=tags)
        return self.row.tags

    def label(self, at: int | Leaf, text: str | None) -> str | None:
        """Label an entry, by the entry's seq on the path or by leaf; None removes the label."""
        return labels.label(self.log, self.log.leaf_at(at) if isinstance(at, int) else at, text)

    def labels(self) -> dict[Leaf, str]:
        """The labels of the session's tree, the newest last."""
        return labels.labels(self.log)

    def end(self, status: Status = "completed", error: str | None = None) -> None:
        """Mark the session as ended. It still accepts the next input."""
        now = self.log.runtime.now()
        if self.log.fence is None:
            require_free(self.row, self.log.runtime)
        check_text(error, "error")
        row = {"status": status, "error": error, "completed_at": now, "holder": None, "lease_until": None}
        self.log.record(SessionEnded(status, error), row=row, fence=self.log.fence)

    def interrupt(self) -> None:
        """End the session's run if the run's process died or hangs. The next turn continues the session.

        The leaf may move. A runner that is alive after all loses the lease and writes nothing more.
        """
        interrupt(self.log, self.row)

    def _end_other_run(self) -> None:
        """Take the lease away from the holder, if any."""
        row = self.row
        if row.holder is not None:
            interrupt(self.log, row)

    # -- move --------------------------------------------------------------------------------------

    def rewind(self, to: int | Leaf, *, summary: str | None = None, key: str | None = None) -> Cut:
        """Move the leaf back to `to`, or to the nearest legal position before `to`. Nothing is deleted.

        With `summary` the new branch starts with a summary of the one left behind, shown to the model. A leaf of another
        branch may be named, too, without a summary. Files stay as they are: `oakleaf_workspace.rewind` restores those
        that its tools wrote.

        With a `key` the change is made once, however often it is asked for, in any process: what was recorded under the
        key is returned. `KeyReused` if something else was. The same holds for the other changes that take a key.
        """
        asked = self._ask(key, "rewind", str(to), summary)
        return self.log.once(asked, lambda: self._rewind(to, summary, asked)).cut

    def _rewind(self, to: int | Leaf, summary: str | None, asked: Asked) -> Committed:
        if isinstance(to, Leaf) and not self.log.is_on_path(to):
            if summary is not None:
                raise InvalidArgument("summary", summary, "none: it applies to a rewind on the same branch")
            return self.log.checkout(to, asked)
        place = self.log.place(to.seq if isinstance(to, Leaf) else to)
        drafts = []
        if summary is not None:
            if not summary.strip():
                raise InvalidArgument("summary", summary, "some text, or no summary")
            drafts = [Draft(BranchSummary(summary, self.leaf.seq, self.log.cursor.entry_id.hex()))]
        moved = Moved((0, 0), requested=place.cut.requested) if place.cut.has_moved else None
        return self.log.move(place, drafts=drafts, moved=moved, asked=asked)

    def undo(self, *, key: str | None = None) -> Cut:
        """Rewind to before the latest input."""
        asked = self._ask(key, "undo")
        return self.log.once(asked, lambda: self._undo(asked)).cut

    def _undo(self, asked: Asked) -> Committed:
        turn = self.log.newest_turn()
        if not turn:
            raise NothingToUndo(
                f"{self.session_id} has no input to undo",
                "session.path() lists its entries",
                f"oakleaf log {self.session_id} lists its entries",
            )
        return self._rewind(turn - 1, None, asked)

    def redo(self, *, key: str | None = None) -> Leaf:
        """Return to the branch left by the last rewind."""
        asked = self._ask(key, "redo")
        return self.log.once(asked, lambda: self.log.redo(asked)).leaf

    def checkout(self, leaf: Leaf, *, key: str | None = None) -> Leaf:
        """Move to any position in the session's tree."""
        asked = self._ask(key, "checkout", str(leaf))
        return self.log.once(asked, lambda: self.log.checkout(leaf, asked)).leaf

    def _ask(self, key: str | None, name: str, *values: Any) -> Asked:
        return ask(self.log.runtime, key, name, *values)

    def keep_partial(self) -> str | None:
        """End the open turn with the shown part of a broken answer; return None without such a part.

        The answer is marked as interrupted, for people and for the model. `resume` asks the model again instead.
        """
        self.refresh()
        return self.log.keep_partial()

    def fork(
        self,
        at: int | Leaf | None = None,
        *,
        model: str | None = None,
        prompt: str | None = None,
        prompt_patch: str | None = None,
        tools: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        effects: Effects | None = None,
        title: str | None = None,
        agent: str | None = None,
        key: str | None = None,
    ) -> Session:
        """Start a new session from a position on the path, or a leaf of the tree, in O(1), without touching the source.

        The fork keeps the source's agent, unless `agent` names another, and the frozen agent, policy and workspace.
        `tools` narrows the tools allowed at the position; `options` are added to the options in force there.

        The effects of tools after the position stay: `left_behind()` of the fork lists the calls. If the fork makes the
        same unsafe call, a person is asked first, unless `effects` is `repeat` or `reuse` (docs/effects.md).

        With a `key` the fork is made once: asked for again, it is found by its id, which is made of the source and the key.
        """
        check_effects(effects)
        names = _tool_names(tools)
        settings = Settings(model, prompt, prompt_patch, names, effects=effects)
        where = None if at is None else str(at)
        asked = self._ask(key, "fork", where, settings, options, title, agent)

        def make() -> tuple[Log, Cut]:
            source = self.log.at(at) if isinstance(at, Leaf) else self.log
            place = source.place(at if isinstance(at, int) else source.leaf.seq)
            full = self._with_options(settings, options, place.leaf)
            return fork(source, place, full, title=title, agent=agent, asked=asked), place.cut

        return Session(*fork_once(self.log, asked, make, at.seq if isinstance(at, Leaf) else at))

    def left_behind(self, limit: int = 50) -> list[EarlierCall]:
        """The calls of unsafe tools outside the path that took effect, or may have: the newest first.

        The calls on other branches of the session and, for a fork, the calls made before the fork; with the calls of the
        tasks. Only the newest thousand entries of each branch count.
        """
        from oakleaf.agent.earlier_calls import left_behind

        return left_behind(self.log, limit)

    # -- read --------------------------------------------------------------------------------------

    def path(self, since: int = 0, last: int | None = None) -> list[Entry]:
        """The entries from root to leaf; only entries after seq `since`, or only the last n."""
        return self.log.path(since=since, last=last).entries

    def transcript(self, since: int = 0) -> list[Entry]:
        """The public entries of the path: inputs and final answers; only entries after seq `since`."""
        return self.log.path(since=since, public=True).entries

    def entries(self) -> list[Entry]:
        """Every entry of the session's own branches, on the path or not."""
        return [stored.entry.to_entry(stored.branch) for stored in self.log.store.entries(self.session_id)]

    def branches(self) -> list[Branch]:
        """The session's branches and the ancestors, oldest first."""
        return self.log.store.branches(self.session_id)

    def journal(self, after: int = 0, limit: int | None = None) -> list[StoredFact]:
        """The session's numbered facts (started, appended, moved, …) after number `after`."""
        return self.log.store.journal(self.session_id, after, limit)

    def events(self, after: int | None = None) -> AsyncGenerator[Event]:
        """Follow the session from any process: `async for event in session.events(after=n)`. It does not end by itself.

        First come the journal's events after number `after`, then those to come; without `after` only these. An answer in
        flight comes as `session:draft`. Names and numbers are those of `send` and of HTTP. Raises NotFound once the session
        is purged.
        """
        from oakleaf.agent.follow import follow

        return follow(self.log, after)

    @property
    def state(self) -> State:
        """The fold of the tools' updates along the path."""
        return self.log.state

    @property
    def open_tool_calls(self) -> tuple[OpenCall, ...]:
        """The tool calls without a result, in call order, in the stored form. To run the calls: `turn.open_tool_calls`."""
        return self.log.cursor.open_calls

    def idempotency_key(self, call: OpenCall) -> str:
        """The idempotency key of a tool call: the same in every process, before and after a crash."""
        return self.log.idempotency_key(call.seq, call.index)

    def next_action(self) -> Action:
        """The next step at the leaf: call the model, run tools, or rest."""
        return self.log.next_action()

    def hydrate(self) -> HydratedSession:
        """Read row, seeds, messages, state and totals at the session's current leaf, in one read."""
        return hydrate(self.log)

    def verify(self) -> list[Problem]:
        """Check the session and list the problems. Changes nothing."""
        return verify(self.log.store, self.session_id)

    # -- what a model sees -------------------------------------------------------------------------

    def context(self, at: int | None = None) -> Context:
        """The messages for a model at the leaf, or at entry `at` of the path, in no provider's form."""
        return prompt.read_context(self.log, self._leaf_at(at))

    def _leaf_at(self, at: int | None) -> Leaf:
        if at is None:
            return self.leaf
        if type(at) is not int or not 0 <= at <= self.leaf.seq:
            raise InvalidPosition(at, 0, self.leaf.seq, self.session_id)
        return self.log.leaf_at(at)

    def request(
        self, provider: str | None = None, budget: Budget | None = None, *, at: int | None = None
    ) -> dict[str, Any]:
        """The provider's request at the leaf, or after entry `at`: for Anthropic `system`, `tools`, `messages` and options.

        The request as our clients send it, without the model and the streaming option. `provider`: default is the
        provider of the session's model.
        """
        provider_format = wire.find_provider(provider or self._provider())
        context = prompt.read_context(self.log, self._leaf_at(at), budget, provider_format.name)
        return provider_format.project(context, self.log.read_blob)

    def _provider(self) -> str:
        """Return the provider of the model last run in the session."""
        model = self.row.model
        provider = wire.provider_of(model or "")
        if provider not in wire.PROVIDERS:
            names = ", ".join(wire.PROVIDERS)
            raise InvalidArgument("provider", None, f"one of {names}: the session's model is {model}")
        return provider

    def messages(
        self, provider: str, budget: Budget | None = None, *, at: int | None = None
    ) -> list[dict[str, Any]]:
        """Only the messages of `request()`: always a history the provider accepts, byte-equal on every host.

        Anthropic, Gemini and OpenAI's Responses take the system prompt elsewhere: `request()` has it.
        """
        request = self.request(provider, budget, at=at)
        messages: list[dict[str, Any]] = request[wire.find_provider(provider).history]
        return messages

    def compact(
        self,
        summary: str | None = None,
        *,
        first_kept: int | None = None,
        replaces_earlier: bool = False,
        context_tokens: int | None = None,
        files_read: Sequence[str] | None = None,
        files_changed: Sequence[str] | None = None,
        usage: object = None,
        model: str | None = None,
        key: str | None = None,
    ) -> Compaction:
        """Show the model a summary in place of everything before `first_kept` (default: the newest turn).

        Nothing is deleted; `uncompact` restores the earlier context. `replaces_earlier=True` says that the summary
        covers what earlier summaries said; otherwise all are shown. Without a summary one is written without a model.
        With `context_tokens` the context is made to fit as `send` does it: older turns, then steps of the newest turn,
        then long results, which are shortened. `usage` and `model` are of the call that wrote the summary, as for
        `record_call`: the ledger charges it with the entry.
        """
        from oakleaf.agent.compaction import manual_compaction  # late: few sessions are compacted
        from oakleaf.agent.host_call import host_call

        asked = self._ask(
            key, "compact", summary, first_kept, replaces_earlier, context_tokens, files_read, files_changed
        )

        def append() -> Committed:
            compaction = manual_compaction(
                self.log,
                summary,
                first_kept,
                replaces_earlier=replaces_earlier,
                context_tokens=context_tokens,
                files_read=files_read,
                files_changed=files_changed,
            )
            leaf = self.leaf
            calls = [] if usage is None else [host_call(self.log, usage, model, "compaction")]
            return self.log.append(
                [Draft(compaction)], after=leaf, calls=calls, key=asked.key, digest=asked.digest
            )

        (compaction,) = self.log.once(asked, append).payloads
        assert isinstance(compaction, Compaction)
        return compaction

    def uncompact(self, *, key: str | None = None) -> Uncompaction:
        """Cancel the latest compaction and restore the exact earlier context."""
        asked = self._ask(key, "uncompact")
        (cancelled,) = self.log.once(asked, lambda: self._uncompact(asked)).payloads
        assert isinstance(cancelled, Uncompaction)
        return cancelled

    def _uncompact(self, asked: Asked) -> Committed:
        active = contexts.active_compactions(self.log.store.control_entries(self.session_id, leaf=self.leaf))
        if not active:
            raise NothingToUndo(
                f"{self.session_id} has no active compaction at {self.leaf}",
                "session.compact() makes one",
                f"oakleaf compact {self.session_id} makes one",
            )
        return self._append([Uncompaction(active[-1][0])], asked)

    # -- usage -------------------------------------------------------------------------------------

    def model_calls(self, view: UsageView = "own", since: Leaf | None = None) -> list[Call]:
        """Ledger rows: `own` (abandoned branches too), `path` (a fork's shared part too) or `tree` (with tasks)."""
        return ledger.model_calls(self.log, view, since)

    @overload
    def usage(self, view: UsageView = "own", since: Leaf | None = None) -> Totals: ...
    @overload
    def usage(self, *, by: Literal["turn"]) -> dict[int, Totals]: ...
    def usage(
        self,
        view: UsageView = "own",
        since: Leaf | None = None,
        *,
        by: Literal["turn"] | None = None,
    ) -> Totals | dict[int, Totals]:
        """Sums of the ledger; with `by="turn"` the sums of each turn of the path, by the seq of the input.

        Raises InvalidPosition if `since` is not on the path.
        """
        if by is None:
            return ledger.totals(self.log, view, since)
        if by != "turn" or since is not None:
            raise InvalidArgument("by", by, '"turn", without since: each turn of the path')
        return ledger.by_turn(self.log)

    def record_call(
        self,
        usage: object,
        *,
        model: str | None = None,
        purpose: str = "host",
        failed: bool = False,
        key: str | None = None,
    ) -> Call:
        """Record a model call of your own in the ledger, for instance for a title: counted, without an entry.

        `usage` is a `Usage` or the reply of an SDK, which also names its model; `model` is a name such as
        "anthropic:claude-…". Recorded again under its `key`, it is counted once.
        """
        from oakleaf.agent.host_call import host_call

        check_callers_key(key)
        check_text(purpose, "purpose")
        call = host_call(self.log, usage, model, purpose, failed=failed)
        self.log.record(ModelCallRecorded(purpose, call.call_id), calls=[call], key=key)
        return call

    # -- run an agent ------------------------------------------------------------------------------

    def send(
        self,
        content: str | Message,
        *,
        model: ModelLike,
        tools: Tools = (),
        options: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        effects: Effects | None = None,
        one_shot: bool = False,
        agent: str | None = None,
        rebind: bool = False,
        trigger: str | Mapping[str, str] | None = None,
        policy: Mapping[str, Any] | None = None,
        trace: str | None = None,
        key: str | None = None,
        accept_imported: bool = False,
    ) -> Run:
        """Run a turn with our loop. Iterate over the result for its events: `async for event in session.send(…)`.

        `model` is a Model, a name such as "anthropic:claude-…", or a chain of them: the next is called when one stays
        overloaded. `options` of its calls, such as `{"temperature": 0}`, hold from here on. `one_shot` marks the session
        completed once this input is answered. After a crash anywhere, `resume` continues from what is durable. `effects`
        holds from here on: what becomes of an unsafe call that a path which was left has made (docs/effects.md).

        `key` makes it safe to send again: if an input was sent under it before, the turn continues if it is open, else
        the recorded result is returned, and nothing is written.

        `agent` names who answers: a session without an agent is bound to it, one of another agent raises `AgentBound`
        unless `rebind=True` says so. `trigger`, a name or a dict with type and id, and `policy` are recorded with the turn.
        `trace` is the `traceparent` of a caller's span: the turn is a part of that trace (docs/howto/telemetry.md).

        Inputs that were queued elsewhere before the session was imported raise `ImportNotAccepted`, which lists them;
        `accept_imported=True` lets them run.
        """
        check_callers_key(key)
        about = turn_about(trigger, policy, self.log.runtime.redactor, trace)
        if agent is not None:
            check_bound(self.log, agent, rebind=rebind)
        run = self._start_run(
            content,
            model,
            tools,
            options,
            limits,
            effects,
            one_shot=one_shot,
            key=key,
            accept_imported=accept_imported,
            about=about,
        )
        if agent is not None:  # last: a send that cannot start binds nobody
            bind(self.log, agent, rebind=rebind)
        return run

    def send_sync(
        self,
        content: str | Message,
        *,
        model: ModelLike,
        tools: Tools = (),
        options: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        effects: Effects | None = None,
        one_shot: bool = False,
        agent: str | None = None,
        rebind: bool = False,
        trigger: str | Mapping[str, str] | None = None,
        policy: Mapping[str, Any] | None = None,
        trace: str | None = None,
        key: str | None = None,
        accept_imported: bool = False,
    ) -> RunResult:
        """`send` for scripts: run the whole turn and return the result."""
        from oakleaf.agent.run import collect

        return collect(
            self.send(
                content,
                model=model,
                tools=tools,
                options=options,
                limits=limits,
                effects=effects,
                one_shot=one_shot,
                agent=agent,
                rebind=rebind,
                trigger=trigger,
                policy=policy,
                trace=trace,
                key=key,
                accept_imported=accept_imported,
            )
        )

    def enqueue(self, content: str | Message) -> int:
        """Store an input durably while the session is busy; the runner takes the input after the current turn."""
        return self.log.enqueue(user(content) if isinstance(content, str) else content)

    def resume(
        self,
        *,
        model: ModelLike,
        tools: Tools = (),
        options: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        effects: Effects | None = None,
        rollback: bool = False,
        take_over: bool = False,
        keep_partial: bool = False,
        accept_imported: bool = False,
    ) -> Run:
        """Continue the open turn after a crash, a failure or an approval.

        If an answer broke off, what was shown of it becomes an interrupted answer and the model is asked again;
        `keep_partial=True` ends the turn with it. `rollback=True` rewinds an unanswered turn instead, for an interactive
        start. `take_over=True` ends the run that holds the session's lease, for one that hangs or died elsewhere: it
        writes nothing more.

        Calls with an effect and inputs that an import left open raise `ImportNotAccepted`, which lists them;
        `accept_imported=True` lets them run. A decision made elsewhere is asked again: `pending_approvals`.
        """
        # First: if it cannot start, move nothing.
        run = self._start_run(None, model, tools, options, limits, effects, accept_imported=accept_imported)
        if take_over:
            self._end_other_run()
        if rollback and self.log.cursor.turn:
            self.undo()
        if keep_partial:
            self.keep_partial()
        return run

    def resume_sync(
        self,
        *,
        model: ModelLike,
        tools: Tools = (),
        options: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        effects: Effects | None = None,
        rollback: bool = False,
        take_over: bool = False,
        keep_partial: bool = False,
        accept_imported: bool = False,
    ) -> RunResult:
        """`resume` for scripts: run the open turn to the end and return the result."""
        from oakleaf.agent.run import collect

        return collect(
            self.resume(
                model=model,
                tools=tools,
                options=options,
                limits=limits,
                effects=effects,
                rollback=rollback,
                take_over=take_over,
                keep_partial=keep_partial,
                accept_imported=accept_imported,
            )
        )

    def _start_run(
        self,
        content: str | Message | None,
        model: ModelLike,
        tools: Tools,
        options: Mapping[str, Any] | None,
        limits: Limits | None,
        effects: Effects | None,
        *,
        one_shot: bool = False,
        key: str | None = None,
        accept_imported: bool = False,
        about: TurnStarted = TurnStarted(0),
    ) -> Run:
        from oakleaf.agent.run import start_run

        run = start_run(
            self.log,
            content,
            model=model,
            tools=tools,
            options=options,
            limits=limits,
            effects=effects,
            one_shot=one_shot,
            key=key,
            accept_imported=accept_imported,
            about=about,
            previous=None if self._run is None else self._run(),
        )
        self._run = weakref.ref(run)
        return run

    def cancel(self) -> Cancellation | None:
        """Abort the open turn: the model call, the tools and the tools' tasks. Return None if no turn is open.

        From any handle, thread or process. "requested": the turn is driven, here or elsewhere; the runner, the block of
        an own loop too, finds the request in about a second. "cancelled": nobody drove the turn, and it is closed. The
        session stays valid and takes the next input.
        """
        run = None if self._run is None else self._run()
        if run is not None and not run.is_over:
            run.cancel()
            return "requested"
        self.refresh()
        if not self.log.cursor.turn:
            return None
        from oakleaf.agent.run import cancel_turn

        return cancel_turn(self.log)

    def pending_approvals(self) -> list[PendingApproval]:
        """The tool calls that wait for a person, in the session and the tasks; pass each to `approve`."""
        from oakleaf.agent.call_status import pending_approvals

        return pending_approvals(self.log)

    def approve(
        self,
        call: OpenCall,
        *,
        allow: bool = True,
        by: str | None = None,
        reason: str | None = None,
        surface: str = "Python",
    ) -> None:
        """Answer a tool's request for approval. `resume` then runs the call once, or tells the model it was denied.

        The journal keeps the decision with the name of the person who decided, the reason, and the surface by which the
        decision came, such as a host's own "chat". Raises ApproverUnnamed if the tool wants a name.
        A call of a task can be approved through any handle above it; `resume` of the session that started the task
        continues both.
        """
        session_id = getattr(call, "session_id", self.log.session_id)
        log = self.log
        decision = _decision(allow=allow, by=by, reason=reason, surface=surface)
        if session_id != log.session_id:
            log = Log(log.store, log.store.session(session_id), log.runtime)
        call = OpenCall(call.seq, call.index, call.call)
        while True:
            log.refresh()
            place = call.seq, call.index
            same = [
                open_call for open_call in log.cursor.open_calls if (open_call.seq, open_call.index) == place
            ]
            # As it is stored, or with the arguments in clear, as `turn.open_tool_calls` has them.
            if not any(call.call in (each.call, log.original_call(each)) for each in same):
                raise InvalidPosition(f"call {call.call.id}", 0, log.leaf.seq)
            _refuse_unseen(log, call, allow=allow, by=decision.by)
            try:
                return _decide(log, replace(decision, seq=call.seq, index=call.index))
            except StaleLeaf:
                pass  # the result of a sibling was appended just now; try again if this call is still open

    def accept_imported(self) -> None:
        """Allow the calls with an effect and the queued inputs left open by an import, also of the tasks.

        Recorded, so the permission is asked for once; `ImportNotAccepted` lists the calls and inputs.
        """
        from oakleaf.agent.import_plan import accept_import

        accept_import(self.log)

    # -- replay ------------------------------------------------------------------------------------

    async def replay(
        self,
        *,
        model: ModelLike | None = None,
        prompt: str | None = None,
        prompt_patch: str | None = None,
        options: Mapping[str, Any] | None = None,
        tools: Literal["recorded"] | Tools = "recorded",
        start: int | None = None,
        mode: Mode | None = None,
        live: Sequence[str] = (),
        on_miss: OnMiss = "stop",
        effects: Effects = "ask",
        limits: Limits | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ReplayReport:
        """Execute the session again on a fork, without effects, and report the changes.

        Keeps the entries up to `start` (default: the seeds) and feeds every later input. Without `model` the recorded
        answers are used. Modes: strict, recorded, dry, live (only the tools named in `live` run); see docs/replay.md.
        Nobody can be asked in a replay: a live call of an unsafe tool that was made before with the same arguments is a
        miss, unless `effects` is `repeat` or `reuse`.
        """
        from oakleaf.replay.replay import ReplayPlan, replay

        plan = ReplayPlan(
            model=model,
            prompt=prompt,
            prompt_patch=prompt_patch,
            options=options,
            tools=tools,
            start=start,
            mode=mode,
            live=live,
            on_miss=on_miss,
            effects=effects,
            limits=limits,
            progress=progress,
        )
        return await replay(self.log, plan)

    replay_sync = blocking(replay)

    # -- export ------------------------------------------------------------------------------------

    @overload
    def export(
        self,
        to: PathOrFile,
        format: Literal["bundle"] = "bundle",
        *,
        blobs: bool = False,
        children: bool = True,
        redact: bool = False,
        hide: Sequence[str] = (),
        progress: OnProgress | None = None,
    ) -> ExportResult[BundleExportResult]: ...
    @overload
    def export(self, to: PathOrFile, format: str | None, **options: object) -> ExportResult[Any]: ...
    def export(self, to: PathOrFile, format: str | None = "bundle", **options: object) -> ExportResult[Any]:
        """Write the session to a path or a binary file: as a bundle, or in a plugin's format.

        A bundle holds the session and its tasks; the same session gives the same bytes. `blobs` includes the media, so
        that the bundle is self-contained. `redact` hides everything known to be secret now, under a new session id; the
        tag `redacted` is the id of the session. `hide=["Ann Lee"]` hides words, too: whole ones, in any case and encoding.

        docs/exports.md lists the other formats with their options; None takes the format from the path. No export
        contains evidence, and those for people are redacted unless `redact=False`. Raises UnknownFormat.
        """
        from oakleaf.bundle.exporters import export_session

        return export_session(self, to, format, options)


def _row(session: Session) -> SessionRow:
    return session.row


def _state(session: Session) -> State:
    return session.state


def _open_tool_calls(session: Session) -> tuple[OpenCall, ...]:
    return session.open_tool_calls


def _export(
    session: Session, /, to: PathOrFile, format: str | None = "bundle", **options: object
) -> ExportResult[Any]:
    return session.export(to, format, **options)


class AsyncSession(Awaited[Session]):
    """The verbs of a session for asyncio, each with the arguments and the result of the session's own.

    Of a verb with overloads, mypy knows the first.
    """

    def _reads_much(self) -> bool:
        from oakleaf.log.threads import MANY_ENTRIES

        return self._blocking.leaf.seq > MANY_ENTRIES

    row = awaited(_row)
    state = awaited(_state, reads_all=True)
    open_tool_calls = awaited(_open_tool_calls)
    refresh = awaited(Session.refresh)
    append = awaited(Session.append)
    note = awaited(Session.note)
    set = awaited(Session.set)
    close_batch = awaited(Session.close_batch)
    title = awaited(Session.title)
    tag = awaited(Session.tag)
    label = awaited(Session.label)
    labels = awaited(Session.labels)
    end = awaited(Session.end)
    interrupt = awaited(Session.interrupt)
    rewind = awaited(Session.rewind)
    undo = awaited(Session.undo)
    redo = awaited(Session.redo)
    checkout = awaited(Session.checkout)
    keep_partial = awaited(Session.keep_partial)
    fork = awaited(Session.fork)
    left_behind = awaited(Session.left_behind, reads_all=True)
    path = awaited(Session.path, reads_all=True)
    transcript = awaited(Session.transcript, reads_all=True)
    entries = awaited(Session.entries, reads_all=True)
    branches = awaited(Session.branches)
    journal = awaited(Session.journal, reads_all=True)
    idempotency_key = awaited(Session.idempotency_key)
    next_action = awaited(Session.next_action)
    hydrate = awaited(Session.hydrate, reads_all=True)
    verify = awaited(Session.verify, reads_all=True)
    context = awaited(Session.context, reads_all=True)
    request = awaited(Session.request, reads_all=True)
    messages = awaited(Session.messages, reads_all=True)
    compact = awaited(Session.compact, reads_all=True)
    uncompact = awaited(Session.uncompact)
    model_calls = awaited(Session.model_calls, reads_all=True)
    usage = awaited(Session.usage, reads_all=True)
    record_call = awaited(Session.record_call)
    turn = awaited(Session.turn)
    send = awaited(Session.send)
    enqueue = awaited(Session.enqueue)
    resume = awaited(Session.resume)
    cancel = awaited(Session.cancel)
    pending_approvals = awaited(Session.pending_approvals)
    approve = awaited(Session.approve)
    accept_imported = awaited(Session.accept_imported)
    export = awaited(_export, reads_all=True)


def as_drafts(items: Iterable[Appendable], parameter: str) -> list[Draft]:
    """Drafts of our payloads and of dicts in a provider's format. Neighbouring dicts are read together: one answer
    may be several of them.
    """
    if isinstance(items, str | bytes | Message | Mapping):
        raise InvalidArgument(parameter, items, "a list of messages: [oakleaf.user(…)]")
    items = list(items)
    for item in items:
        if isinstance(item, str | bytes):
            raise InvalidArgument(parameter, item, "messages: oakleaf.system(text), oakleaf.user(text)")
    drafts: list[Draft] = []
    for is_dict, run in groupby(items, lambda item: isinstance(item, dict)):
        group: list[Any] = list(run)
        if is_dict:
            history = wire.parse_history(group)
            drafts.extend(Draft(parsed.message, evidence=parsed.evidence) for parsed in history)
        else:
            drafts.extend(item if isinstance(item, Draft) else Draft(item) for item in group)
    return drafts


def _tool_names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(names, str):
        raise InvalidArgument("tools", names, "a list of tool names")
    return None if names is None else tuple(names)


def _tool_specs(tools: Iterable[Tool | Callable[..., Any] | dict[str, Any]]) -> list[ToolSpec]:
    """Return the definitions of tools, of functions and of dicts."""
    from oakleaf.agent.tools.sources import tools_by_name

    tools = list(tools)
    parsed = {id(item): wire.parse_tool(item) for item in tools if isinstance(item, dict)}
    others = tools_by_name(item for item in tools if not isinstance(item, dict))
    specs = iter(tool.spec for tool in others.values())
    return [parsed[id(item)] if isinstance(item, dict) else next(specs) for item in tools]


def _effects_of(tools: Iterable[object]) -> dict[str, str]:
    """Return the declared effects of tools by name; functions and dicts declare nothing."""
    from oakleaf.agent.tools.tool import Tool

    return {tool.name: tool.effect for tool in tools if isinstance(tool, Tool)}


def _decision(*, allow: bool, by: str | None, reason: str | None, surface: str | None) -> Approved | Denied:
    """Return a decision, of a call that is still to be named. A name or a reason without content is none."""
    said = {"by": by, "reason": reason, "surface": surface}
    kept = {name: (check_text(text, name) or "").strip() or None for name, text in said.items()}
    return Approved(0, 0, **kept) if allow else Denied(0, 0, **kept)


def _refuse_unseen(log: Log, call: OpenCall, *, allow: bool, by: str | None) -> None:
    """Raise for an approval after a denial, for a decision without a name where the tool wants one, and for a call whose
    task is in the trash or itself waits for a person."""
    from oakleaf.agent.call_status import read_call_status

    status = read_call_status(log)
    place = call.seq, call.index
    if by is None and place in status.named:
        raise ApproverUnnamed(log.session_id, call.call.name)
    if allow and place in status.denied:
        raise InvalidOperation(f"call {call.call.id} was denied, which is final; resume tells the model")
    if place in status.trashed_tasks:
        raise TaskTrashed(log.session_id, status.trashed_tasks[place])
    below = status.task_approvals.get(place, ())
    if below:
        raise InvalidOperation(
            f"call {call.call.id} waits for {below[0].call.name} of its task {below[0].session_id}; approve that one: "
            "session.pending_approvals() lists the calls that session.approve() takes"
        )


def _decide(log: Log, decision: Approved | Denied) -> None:
    from oakleaf.agent.task_line import ancestors

    log.record(decision, only_at_leaf=True)
    kind: Decision = "approved" if isinstance(decision, Approved) else "denied"
    decided = TaskDecided(decision.seq, decision.index, log.session_id, kind)
    for parent in ancestors(log):
        parent.record(decided)
