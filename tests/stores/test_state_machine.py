"""Two stores driven alike hold the same bytes: every entry, branch, row, fact and call, after every operation.

The memory store is the model. Crashes are injected into SQLite between statements; what was refused, and
with which words, must be equal too.
"""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oakleaf import Leaf, Note, Settings, ToolCall, Usage, assistant, system, tool_result, user
from oakleaf.core.state import fold_state
from oakleaf.core.usage import total
from oakleaf.errors import OakleafError
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.stores.base import SessionQuery
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.stores.sqlite.store import SqliteStore
from oakleaf.testing.stores.writer import read_everything
from support.runtime import deterministic_runtime

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"

words = st.sampled_from(["hello", "", "a b c", "ü\0\u202e", "x" * 300])
numbers = st.integers(0, 40)
call_ids = st.sampled_from(["c1", "c2", "c1", "call|odd id", "i" * 512])
patches = st.sampled_from([None, {"a": 1}, {"a": None}, {"n": {"x": [1]}}, {"n": {"y": 2.5, "x": None}}])
usages = st.sampled_from([None, Usage(10, 2), Usage(100, 20, 50, 10), Usage()])


class Crash(Exception):
    """The process dies here."""


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.sqlite = SqliteStore(Path(self.folder.name) / "agent.db", synchronous="normal")
        self.memory = MemoryStore()
        self.both = (
            Store(self.memory, deterministic_runtime()),
            Store(self.sqlite, deterministic_runtime()),
        )
        self.handles: list[tuple[Session, Session]] = []
        self.media: list[Any] = []
        self.retries: list[tuple[int, Leaf, str, Any]] = []
        self.entries: dict[tuple[int, int], Any] = {}
        self.steps = 0

    def teardown(self) -> None:
        self.sqlite.close()
        self.folder.cleanup()

    def outcomes(self, *does: Any) -> Any:
        """What an operation gave on each store, which must be the same: a value, or a refusal in the same words."""
        results = []
        for do in does:
            try:
                results.append(("done", do()))
            except OakleafError as error:
                results.append(("refused", type(error), str(error)))
        plain = [(f[0], _comparable(f[1])) if f[0] == "done" else f for f in results]
        assert plain[0] == plain[1]
        self.steps += 1
        return [f[1] for f in results] if results[0][0] == "done" else None

    def on(self, which: int, do: Any) -> Any:
        pair = self.handles[which % len(self.handles)]
        return self.outcomes(*(lambda handle=handle: do(handle) for handle in pair))

    def keep(self, pair: Any) -> None:
        if pair is not None:
            self.handles.append(tuple(pair))

    # -- making ------------------------------------------------------------------------------------

    @initialize(text=words)
    def first(self, text: str) -> None:
        self.start(text, patch=None)

    @rule(text=words, patch=patches)
    def start(self, text: str, patch: Any) -> None:
        self.keep(
            self.outcomes(*(lambda s=s: s.start("agent", [system(text)], state=patch) for s in self.both))
        )

    @rule(which=numbers, text=words)
    def start_task(self, which: int, text: str) -> None:
        pair = self.handles[which % len(self.handles)]
        does = (
            lambda s=s, h=h: s.start_task(h, "child", [user(text)])
            for s, h in zip(self.both, pair, strict=True)
        )
        self.keep(self.outcomes(*does))

    @rule(which=numbers)
    def open_again(self, which: int) -> None:
        name = self.handles[which % len(self.handles)][0].session_id
        self.keep(self.outcomes(*(lambda s=s: s.session(name) for s in self.both)))

    @rule(which=numbers, text=words)
    def conversation(self, which: int, text: str) -> None:
        conversation = f"con_{which % 3}"
        self.keep(
            self.outcomes(
                *(lambda s=s: s.latest_or_start(conversation, "a", [system(text)]) for s in self.both)
            )
        )

    # -- appending ---------------------------------------------------------------------------------

    @rule(which=numbers, text=words)
    def say(self, which: int, text: str) -> None:
        self.on(which, lambda h: h.append([user(text)]))

    @rule(
        which=numbers,
        text=words,
        calls=st.lists(call_ids, max_size=3),
        usage=usages,
        calling=st.booleans(),
        leaves=st.booleans(),
    )
    def turn(self, which: int, text: str, calls: list[str], usage: Any, calling: bool, leaves: bool) -> None:
        """A turn the level-1 way, its results in reverse order; one that is left drops the call that was to come."""

        def do(handle: Session) -> Any:
            with handle.turn(text, model="anthropic:m" if calling else None) as turn:
                message = assistant(text, *(ToolCall(name, "tool", {"b": 1, "a": [text]}) for name in calls))
                turn.answer(message, usage=usage, provider="anthropic", model="no-such-model")
                for open_call in reversed(turn.open_tool_calls):
                    turn.result(open_call.call.id, {"got": open_call.index}, state={"last": open_call.index})
                if calls and not leaves:
                    turn.answer(assistant("done"), usage=usage)
            return handle.leaf

        self.on(which, do)

    @rule(which=numbers, calls=st.lists(call_ids, min_size=1, max_size=3))
    def ask(self, which: int, calls: list[str]) -> None:
        """A question and an answer with parallel calls whose results are still to come."""
        answer = assistant(*(ToolCall(name, "tool", {"k": name}) for name in calls))
        self.on(which, lambda h: h.append([user("q"), answer]))

    @rule(which=numbers, pick=numbers, patch=patches, ends=st.booleans())
    def result(self, which: int, pick: int, patch: Any, ends: bool) -> None:
        def do(handle: Session) -> Any:
            waiting = handle.open_tool_calls
            name = waiting[pick % len(waiting)].call.id if waiting else "nobody asked"
            return handle.append([tool_result(name, "r", state=patch, ends_turn=ends)])

        self.on(which, do)

    @rule(which=numbers, patch=patches)
    def note_it(self, which: int, patch: Any) -> None:
        self.on(which, lambda h: h.append([Note({"k": 1}, patch)]))

    @rule(
        which=numbers, prompt=st.sampled_from([None, "be brief"]), patch=st.sampled_from([None, "and kind"])
    )
    def set(self, which: int, prompt: str | None, patch: str | None) -> None:
        self.on(which, lambda h: h.append([Settings(model="m", prompt=prompt, prompt_patch=patch)]))

    @rule(which=numbers)
    def close_batch(self, which: int) -> None:
        self.on(which, lambda h: h.close_batch("stopped"))

    @rule(which=numbers, text=words)
    def remember_a_change(self, which: int, text: str) -> None:
        """Append with a key; the same change may be handed in again at any later time."""
        handle = self.handles[which % len(self.handles)][0]
        leaf, key = handle.leaf, f"key {len(self.retries)}"
        if self.on(which, lambda h: h.append([user(text)], key=key)) is not None:
            self.retries.append((which % len(self.handles), leaf, key, text))

    @precondition(lambda self: self.retries)
    @rule(pick=numbers)
    def retry(self, pick: int) -> None:
        which, leaf, key, text = self.retries[pick % len(self.retries)]
        self.on(which, lambda h: h.append([user(text)], after=leaf, key=key))

    @rule(which=numbers, text=words)
    def crash(self, which: int, text: str) -> None:
        """SQLite dies before each statement of an append in turn: nothing of it is seen."""
        handle = self.handles[which % len(self.handles)][1]
        before = self.everything_of(self.sqlite)
        writer = self.sqlite._connections._writer
        for survive in range(1, 12):
            remaining = [survive]

            def trace(cursor: Any, sql: str, bindings: Any, remaining: list[int] = remaining) -> bool:
                remaining[0] -= 1
                if remaining[0] == 0:
                    raise Crash
                return True

            writer.exec_trace = trace
            try:
                self.sqlite.commit(_change(handle, text))
            except Crash:
                writer.exec_trace = None
                assert self.everything_of(self.sqlite) == before
                continue
            except OakleafError:
                pass
            finally:
                writer.exec_trace = None
            break
        if self.everything_of(self.sqlite) != before:  # the last try went through; let the model do it too
            self.memory.commit(_change(self.handles[which % len(self.handles)][0], text))

    # -- moving ------------------------------------------------------------------------------------

    @rule(which=numbers, to=numbers, summary=st.sampled_from([None, "found nothing", " "]))
    def rewind(self, which: int, to: int, summary: str | None) -> None:
        self.on(which, lambda h: h.rewind(to % (h.leaf.seq + 2), summary=summary))

    @rule(which=numbers)
    def undo(self, which: int) -> None:
        self.on(which, lambda h: h.undo())

    @rule(which=numbers)
    def redo(self, which: int) -> None:
        self.on(which, lambda h: h.redo())

    @rule(which=numbers, branch=numbers, seq=numbers)
    def checkout(self, which: int, branch: int, seq: int) -> None:
        self.on(which, lambda h: h.checkout(Leaf(branch, seq)))

    @rule(which=numbers)
    def refresh(self, which: int) -> None:
        self.on(which, lambda h: h.refresh())

    @rule(which=numbers, at=numbers, model=st.sampled_from([None, "other"]))
    def fork(self, which: int, at: int, model: str | None) -> None:
        self.keep(self.on(which, lambda h: h.fork(at=at % (h.leaf.seq + 2), model=model)))

    @rule(which=numbers, first_kept=st.one_of(st.none(), numbers), replaces_earlier=st.booleans())
    def compact(self, which: int, first_kept: int | None, replaces_earlier: bool) -> None:
        self.on(which, lambda h: h.compact("short", first_kept=first_kept, replaces_earlier=replaces_earlier))

    @rule(which=numbers)
    def uncompact(self, which: int) -> None:
        self.on(which, lambda h: h.uncompact())

    # -- caring ------------------------------------------------------------------------------------

    @rule(which=numbers, text=words)
    def title(self, which: int, text: str) -> None:
        self.on(which, lambda h: h.title(text))

    @rule(which=numbers, value=st.sampled_from([None, "x"]))
    def tag(self, which: int, value: str | None) -> None:
        self.on(which, lambda h: h.tag(colour=value, other="y"))

    @rule(which=numbers)
    def end(self, which: int) -> None:
        self.on(which, lambda h: h.end())

    @rule(which=numbers)
    def delete(self, which: int) -> None:
        name = self.handles[which % len(self.handles)][0].session_id
        self.outcomes(*(lambda s=s: s.delete(name) for s in self.both))

    @rule(which=numbers)
    def restore(self, which: int) -> None:
        name = self.handles[which % len(self.handles)][0].session_id
        self.outcomes(*(lambda s=s: s.restore(name) for s in self.both))

    @rule(which=numbers, with_forks=st.booleans())
    def purge(self, which: int, with_forks: bool) -> None:
        name = self.handles[which % len(self.handles)][0].session_id
        if self.outcomes(*(lambda s=s: s.purge(name, with_forks=with_forks) for s in self.both)):
            self.entries.clear()

    @rule(data=st.sampled_from([b"", b"png", b"\0" * 5000]))
    def put_blob(self, data: bytes) -> None:
        self.media.extend(
            (self.outcomes(*(lambda s=s: s.put_blob(data, "image/png") for s in self.both)) or [])[:1]
        )

    @precondition(lambda self: self.media)
    @rule(which=numbers, pick=numbers)
    def show(self, which: int, pick: int) -> None:
        self.on(which, lambda h: h.append([user("look", self.media[pick % len(self.media)])]))

    @rule(which=numbers)
    def show_bytes(self, which: int) -> None:
        from oakleaf import Attachment

        self.on(which, lambda h: h.append([user(Attachment(f"bytes {which}".encode(), "image/png"))]))

    @rule(grace=st.sampled_from([0, 5_000_000]))
    def gc(self, grace: int) -> None:
        self.outcomes(*(lambda s=s: s.gc(grace) for s in self.both))

    # -- moving between stores ---------------------------------------------------------------------

    @rule(which=numbers, beside=st.booleans())
    def bundle(self, which: int, beside: bool) -> None:
        """The same bytes from both; taken in again they add nothing, or lie beside under ids of their own."""

        def do(handle: Session) -> bytes:
            handle.export(file := io.BytesIO(), blobs=True)
            return file.getvalue()

        data = self.on(which, do)
        if data is not None:
            report = self.outcomes(
                *(lambda s=s: s.import_bundle(io.BytesIO(data[0]), new_id=beside) for s in self.both)
            )
            if beside:
                self.keep([s.session(report[0].session_id) for s in self.both])
            else:
                assert report[0].added == ()

    # -- the laws ----------------------------------------------------------------------------------

    def everything_of(self, store: Any) -> list[Any]:
        rows = [
            r
            for trashed in (False, True)
            for r in store.sessions(SessionQuery(trashed=trashed, limit=10_000)).sessions
        ]
        return [
            (row, read_everything(store, row.session_id), store.path(row.session_id, detail=True))
            for row in rows
        ]

    @invariant()
    def the_stores_hold_the_same(self) -> None:
        model, real = self.everything_of(self.memory), self.everything_of(self.sqlite)
        assert model == real
        for row, (_, _, entries, _, _, calls, *_), reading in real:
            for stored in entries:
                key = (stored.branch, stored.entry.seq)
                assert self.entries.setdefault(key, stored) == stored  # an entry never changes
            path = reading.entries
            assert [entry.seq for entry in path] == list(
                range(1, row.leaf.seq + 1)
            )  # a path never skips a number
            assert row.totals == total(calls)  # usage is conserved
            if reading.detail.state is not None:
                assert self.both[0].session(row.session_id).state == fold_state(
                    path
                )  # state is the fold of the path

    @invariant()
    def verify_is_clean(self) -> None:
        for sessions in self.both:
            problems = list(sessions.verify())
            for problem in problems:
                note(str(problem))
            assert not problems


def _change(handle: Session, text: str) -> Any:
    from oakleaf.core.drafts import Draft, build_entries
    from oakleaf.stores.base import Change

    written = build_entries(handle.log.cursor, [Draft(user(text))], 5)
    return Change(
        session_id=handle.session_id,
        key=f"crash {text.encode().hex()}",
        at=5,
        after=handle.leaf,
        entries=written.entries,
        facts=written.facts,
    )


def _comparable(value: Any) -> Any:
    if isinstance(value, Session):
        return (value.session_id, value.leaf, value.cut)
    return value


Machine.TestCase.settings = settings(
    max_examples=400 if SOAK else 25,
    stateful_step_count=80 if SOAK else 40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestMachine = Machine.TestCase
