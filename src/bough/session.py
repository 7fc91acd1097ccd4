"""A handle on one session: every verb of the glossary, each a line that calls the room that knows.

A handle stands at the leaf it last saw: what it reads is the path to that leaf, what it appends follows
it. If somebody else moved the leaf an append raises `StaleLeaf`; `refresh()` catches up. Handles may be
shared between threads; docs/durability.md says how to use them from asyncio.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from . import wire
from .agent import manual_compaction as compacting
from .core import context as contexts
from .core.codec import check_text
from .core.context import Context
from .core.drafts import Draft
from .core.entries import BranchSummary, Compaction, Entry, Note, Payload, Settings, Uncompaction
from .core.fit import Budget, FitResult, fit
from .core.log_events import LogEvent, log_events
from .core.messages import Message, Outcome, tool_result
from .core.state import State
from .core.tree import Branch, Leaf
from .core.tree_text import draw_tree
from .core.turns import Action, OpenCall, next_action
from .core.usage import Call, Totals, total
from .errors import InvalidOperation, InvalidPosition, InvalidSummary, NotFound
from .log import fork as forking
from .log import labels, ledger
from .log.changes import AppendResult, Cut
from .log.hydrate import HydratedSession, hydrate
from .log.log import Log
from .log.verify import Problem, verify
from .session_exports import Exports
from .session_replays import Replays
from .session_runs import Runs
from .stores.base import Fact, SessionQuery, SessionRow, Status
from .turn import Turn
from .wire.explain import Difference, first_difference

if TYPE_CHECKING:
    from .exchange.bundle.transfer import PathOrFile
    from .exchange.bundle.write import BundleExportResult, OnProgress

Appendable = Payload | dict[str, Any]


class Session(Runs, Replays, Exports):
    """A handle on one session. It stands at the leaf it last saw: what it reads is the path to that leaf, what it
    appends follows it, and if the session has moved meanwhile the append is refused (`StaleLeaf`).
    """

    def __init__(self, log: Log, cut: Cut | None = None) -> None:
        self.log = log
        super().__init__()
        self.cut = cut
        """Of a fork: the place asked for and the legal place it came to."""

    @property
    def session_id(self) -> str:
        """What `store.session` takes."""
        return self.log.session_id

    @property
    def leaf(self) -> Leaf:
        """Where this handle stands; `refresh` catches up with the session."""
        return self.log.leaf

    @property
    def row(self) -> SessionRow:
        """The row as it is now; the handle stays where it stands."""
        return self.log.store.session(self.session_id)

    def __repr__(self) -> str:
        return f"Session({self.session_id} at {self.leaf})"

    def refresh(self) -> SessionRow:
        """Stand where the session stands now."""
        return self.log.refresh()

    # -- writing -----------------------------------------------------------------------------------

    def append(
        self, items: Iterable[Appendable], *, after: Leaf | None = None, key: str | None = None
    ) -> AppendResult:
        """All of it behind the leaf, durable on return, or nothing. The primitive below `turn`."""
        coming = drafts(items)
        if any(isinstance(draft.payload, Settings) and draft.payload.tools is not None for draft in coming):
            held = self.log.store.non_message_entries(
                self.session_id, leaf=self.leaf if after is None else after
            )
            contexts.check_tools_allowed(held, (draft.payload for draft in coming))
        return self.log.append(coming, after=after, key=key)

    def turn(
        self,
        content: str | Message | dict[str, Any] | None = None,
        *,
        key: str | None = None,
        calling: str | None = None,
        **started: Any,
    ) -> Turn:
        """One input and everything appended in answer to it. Without input: go on with the turn that is open.

        `calling="anthropic:model"` records the start of each model call with the commit before it, so that
        a call cut off by a crash is counted. Further keywords (trigger, model, …) go into `turn_started`.
        """
        return Turn(self.log, content, key=key, calling=calling, started=started)

    def note(
        self, data: dict[str, Any] | None = None, *, state: dict[str, Any] | None = None
    ) -> AppendResult:
        """The host's own data on the path, never shown to a model; `state` is merged into the session's state."""
        return self.append([Note(data or {}, state)])

    def set(self, **settings: Any) -> AppendResult:
        """What holds from here on: model, prompt, prompt_patch, tools (narrowed only: `ToolsNotAllowed`), limits."""
        return self.append([Settings(**settings)])

    def close_batch(self, why: str, *, outcome: Outcome = "interrupted") -> AppendResult | None:
        """Give every open call an explicit result, so that something else may follow."""
        waiting = self.open_tool_calls
        if not waiting:
            return None
        return self.append([tool_result(c.call.id, why, error=True, outcome=outcome) for c in waiting])

    def title(self, title: str | None) -> None:
        """Name the session; None takes the name away."""
        check_text(title, "title")
        self.log.record("titled", data={"title": title}, row={"title": title})

    def tag(self, /, **tags: str | None) -> dict[str, str]:
        """Set tags; None removes one. Returns all of them."""
        for name, value in tags.items():
            check_text(name, "tag")
            check_text(value, f"tag {name}")
        self.log.record("tagged", data={"tags": tags}, tags=tags)
        return self.row.tags

    def label(self, at: int | Leaf, words: str | None) -> str | None:
        """Name a place of the tree, by its seq on the path or by branch; None takes the name away."""
        return labels.label(self.log, self.log.leaf_at(at) if isinstance(at, int) else at, words)

    def labels(self) -> dict[Leaf, str]:
        """The names of places, the one given last at the end."""
        return labels.labels(self.log)

    def end(self, status: Status = "completed", error: str | None = None) -> None:
        """Say that it is over, and how. It may be sent to again all the same."""
        now = self.log.runtime.now()
        check_text(error, "error")
        row = {"status": status, "error": error, "completed_at": now, "holder": None, "lease_until": None}
        self.log.record("ended", data={"status": status, "error": error}, row=row)

    def interrupt(self) -> None:
        """Mark a session whose runner is gone: it may be moved again, and the next turn goes on."""
        row = {"status": "interrupted", "holder": None, "lease_until": None}
        self.log.record("interrupted", data={"holder": self.row.holder}, row=row)

    # -- moving ------------------------------------------------------------------------------------

    def rewind(self, to: int, *, summary: str | None = None) -> Cut:
        """Move the leaf back to `to`, or to the nearest legal place before it. Everything stays.

        With `summary` what the branch left behind had found is told to the model in the new one.
        """
        cut = self.log.cut(to)
        left = None
        if summary is not None:
            if not summary.strip():
                raise InvalidSummary("the summary of the branch is empty")
            left = BranchSummary(summary, self.leaf.seq, self.log.cursor.entry_id.hex())
        self.log.move(self.log.leaf_at(cut.at), summary=left, data={"asked": to} if cut.has_moved else None)
        return cut

    def undo(self) -> Cut:
        """Rewind to before the latest input."""
        inputs = [entry.seq for entry in self.path() if entry.turn == entry.seq]
        if not inputs:
            raise InvalidPosition("undo", 0, self.leaf.seq)
        return self.rewind(inputs[-1] - 1)

    def redo(self) -> Leaf:
        """Back to the branch the last rewind left behind."""
        return self.log.redo()

    def checkout(self, leaf: Leaf) -> Leaf:
        """Go to any place of this session's tree."""
        return self.log.checkout(leaf)

    def fork(
        self,
        at: int | None = None,
        *,
        model: str | None = None,
        prompt: str | None = None,
        prompt_patch: str | None = None,
        tools: Sequence[str] | None = None,
        title: str | None = None,
    ) -> Session:
        """A new session from a place of this path, in O(1); the source is untouched.

        It holds the agent as frozen, the policy and the workspace of its source. `tools` narrows what holds there.
        """
        cut = self.log.cut(self.leaf.seq if at is None else at)
        settings = Settings(model, prompt, prompt_patch, None if tools is None else tuple(tools))
        return Session(forking.fork(self.log, cut, settings, title=title), cut)

    # -- reading -----------------------------------------------------------------------------------

    def path(self, since: int = 0, last: int | None = None) -> list[Entry]:
        """The entries root → leaf; those after seq `since`, or the last n."""
        return self.log.path(since=since, last=last).entries

    def trace(self) -> list[Entry]:
        """Every entry of the path."""
        return self.path()

    def transcript(self) -> list[Entry]:
        """The public entries of the path: inputs and final answers."""
        return self.log.path(public=True).entries

    def events(self) -> list[LogEvent]:
        """The messages of the path as events: one for each message, each call and each result."""
        return list(log_events(self.path()))

    def entries(self) -> list[Entry]:
        """Every entry of the session's own branches, on the path or not."""
        return [stored.entry.to_entry(stored.branch) for stored in self.log.store.entries(self.session_id)]

    def branches(self) -> list[Branch]:
        """Its own branches and the ones they hang on, oldest first."""
        return self.log.store.branches(self.session_id)

    def tree(self, *, width: int = 100) -> str:
        """The whole tree as text, the leaf marked."""
        return draw_tree(
            self.log.all_entries(), self.branches(), self.leaf, width=width, labels=self.labels()
        )

    def journal(self, after: int = 0, limit: int | None = None) -> list[Fact]:
        """The numbered facts of the session: started, appended, moved, …; those after number `after`."""
        return self.log.store.journal(self.session_id, after, limit)

    @property
    def state(self) -> State:
        """The fold of the tools' updates along the path."""
        return self.log.state

    @property
    def open_tool_calls(self) -> tuple[OpenCall, ...]:
        """The calls that wait for results, in call order."""
        return self.log.cursor.open_calls

    def idempotency_key(self, call: OpenCall) -> str:
        """The idempotency key of a call: the same in every process, before and after a crash."""
        return self.log.idempotency_key(call.seq, call.index)

    def next_action(self) -> Action:
        """What is to be done at this leaf: call the model, run tools, or rest."""
        return next_action(self.path())

    def hydrate(self) -> HydratedSession:
        """Row, seeds, messages, state and totals in one read, at the leaf where the session stands now."""
        return hydrate(self.log)

    # -- what a model sees -------------------------------------------------------------------------

    def context(self) -> Context:
        """The messages a model would be given at this leaf, in no provider's form."""
        return contexts.build_context(self.path())

    def fit(self, budget: Budget) -> FitResult:
        """The context cut to whole turns, newest first; says what it dropped."""
        return fit(self.context(), budget)

    def request(self, provider: str, budget: Budget | None = None) -> dict[str, Any]:
        """The history as that provider's request takes it: for Anthropic `system` and `messages`."""
        context = self.context() if budget is None else self.fit(budget).context
        return wire.find_provider(provider).project(context, self.read_blob)

    def messages(self, provider: str, budget: Budget | None = None) -> list[dict[str, Any]]:
        """Always a history the provider accepts, the same bytes on every host."""
        found: list[dict[str, Any]] = self.request(provider, budget)[wire.find_provider(provider).history]
        return found

    def explain(self, provider: str, sent: dict[str, Any] | None = None) -> Difference | None:
        """The first difference to what was last sent (or to `sent`); None: the cache stays warm."""
        from .agent.prompt_window import prompt_context, tree_message_limits  # late: few ask

        path, most = self.path(), tree_message_limits(self.log)
        calls = [call.after_seq for call in self.model_calls("path") if call.purpose == "answer"]
        project = wire.find_provider(provider).project
        if sent is None and not calls:
            return None
        was = project(prompt_context(path[: max(calls)], most), self.read_blob) if sent is None else sent
        return first_difference(was, project(prompt_context(path, most), self.read_blob))

    def read_blob(self, digest: str) -> bytes | None:
        """The bytes behind a media handle, by its hash; None if they are not here."""
        found = self.log.store.blob(digest)
        return None if found is None else found.data

    def compact(
        self,
        summary: str | None = None,
        *,
        first_kept: int | None = None,
        replaces_earlier: bool = False,
        **files: Any,
    ) -> Compaction:
        """From here on the model sees the summary in place of what lies before `first_kept`.

        Default: the newest turn is kept. Nothing is deleted; `uncompact` brings the old context back.
        `replaces_earlier=True` says the summary already tells what an earlier one told; else both are shown. Without a summary
        one is made without a model, which tells what earlier ones told and which files were read and changed.
        """
        compaction = compacting.compaction(
            self.log, summary, first_kept, replaces_earlier=replaces_earlier, **files
        )
        self.append([compaction])
        return compaction

    def uncompact(self) -> Uncompaction:
        """Cancel the latest compaction: the exact earlier context is back."""
        active = contexts.active_compactions(self.path())
        if not active:
            raise InvalidOperation(
                f"no compaction is in force at {self.leaf}; session.compact(summary) makes one"
            )
        cancel = Uncompaction(active[-1][0])
        self.append([cancel])
        return cancel

    # -- usage -------------------------------------------------------------------------------------

    def model_calls(self, view: str = "own", since: Leaf | None = None) -> list[Call]:
        """Ledger rows: `own` (abandoned branches too), `path` (forks: the shared part too), `tree` (with children)."""
        return ledger.model_calls(self.log, view, since)

    def usage(self, view: str = "own", since: Leaf | None = None) -> Totals:
        """Sums of the ledger. A `since` that is not on the path gives nothing, loudly."""
        return total(self.model_calls(view, since))

    def usage_by_turn(self) -> dict[int, Totals]:
        """What each turn of the path cost: the token columns of its visible answer."""
        return ledger.by_turn(self.log)

    # -- leaving -----------------------------------------------------------------------------------

    def export(
        self,
        to: PathOrFile,
        *,
        blobs: bool = False,
        children: bool = True,
        redact: bool = False,
        progress: OnProgress | None = None,
    ) -> BundleExportResult:
        """Write the session and its tasks as a bundle, to a path or a binary file: the same bytes every time.

        `blobs` puts the media in, so that nothing else is needed. `redact` hides what is known to be secret now,
        under another id: for showing it to others.
        """
        from .exchange.bundle import transfer as bundle  # late: few sessions leave, all are opened

        store, runtime = self.log.store, self.log.runtime
        how = {"blobs": blobs, "children": children, "redact": redact}
        return bundle.export(store, runtime, self.session_id, to, **how, progress=progress)

    # -- relations and care ------------------------------------------------------------------------

    def children(self) -> list[Session]:
        """Its task sessions; one that was recorded and is missing is passed over."""
        query = SessionQuery(parent_session=self.session_id, relation="task", limit=1_000)
        rows = self.log.store.sessions(query).sessions
        return [Session(Log(self.log.store, row, self.log.runtime)) for row in rows]

    def parent(self) -> Session | None:
        """The session it was forked from, replays, or is a task of; None if it has none, or none that is here."""
        row = self.row
        if row.parent_session is None:
            return None
        try:
            found = self.log.store.session(row.parent_session)
        except NotFound:
            return None
        return Session(Log(self.log.store, found, self.log.runtime))

    def verify(self) -> list[Problem]:
        """What is wrong with this session; empty if nothing is. Changes nothing."""
        return verify(self.log.store, self.session_id)


def drafts(items: Iterable[Appendable]) -> list[Draft]:
    """Dicts of a provider's shape are read in runs: one answer may be several of them."""
    found: list[Draft] = []
    for is_dict, run in groupby(items, lambda item: isinstance(item, dict)):
        group: list[Any] = list(run)
        found.extend(map(Draft, wire.parse_messages(group) if is_dict else group))
    return found
