"""LangGraph's checkpoints in Bough: `graph = builder.compile(checkpointer=BoughSaver(bough.open("agent.db")))`.

What maps to what:

- A thread is a session, its id the session's `conversation_id`. A checkpoint namespace, which is one run of a subgraph,
  is a task session of the session it was started from (`langgraph_threads`).
- A checkpoint is a note on the path. It holds what is small and the values that are new with it, once each; unchanged
  ones are named by the seq of the note that holds them (`langgraph_index`).
- The messages of the `messages` channel are ordinary entries, once each. A checkpoint whose parent is not where the
  session stands, or that edits or removes a message, is a branch: lineage, not copies (`langgraph_thread`).
- Pending writes, interrupts and errors are notes that name their checkpoint, durable when the verb returns.
- Deleting a thread puts its sessions into the trash. Pruned checkpoints are told no longer; what they held stays.

Knows the verbs of `BaseCheckpointSaver` and its configs. The synchronous ones do the work; each asynchronous one
crosses to a thread for it, so that no event loop waits for a disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from ...core.codec import check_text
from ...errors import InvalidArgument, NotFound, SessionTrashed
from ...store import Store
from .. import require_store
from .checkpoint import Coming
from .index import Kept
from .path_cache import Paths
from .thread import ThreadLog
from .threads import Threads
from .values import Values

R = TypeVar("R")
Writes = dict[str, list[PendingWrite]]


class BoughSaver(BaseCheckpointSaver[Any]):
    """A checkpointer whose threads are sessions. Safe to use from several threads and by several processes.

    `messages` names the channel that is the conversation; `agent` is what its sessions are filed under.
    """

    def __init__(
        self,
        store: Store,
        *,
        agent: str = "langgraph",
        messages: str = "messages",
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self.store, self.messages = require_store(store, "BoughSaver"), messages
        self._threads = Threads(store, agent)
        self._crossing = ThreadPoolExecutor(thread_name_prefix="bough-langgraph")

    # -- reading -----------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that is named, or the one the thread stands at."""
        found = self._find(config)
        if found is None:
            return None
        thread, kept = found
        return self._tuple(config, thread, kept, thread.paths([kept]))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The checkpoints that match, newest first."""
        wanted = get_checkpoint_id(config) if config is not None else None
        end = get_checkpoint_id(before) if before is not None else None
        rows = [
            (kept, thread, place)
            for place, thread in self._matching(config)
            for kept in thread.index.told()
            if wanted in (None, kept.checkpoint_id) and (end is None or kept.checkpoint_id < end)
        ]
        rows.sort(key=lambda row: row[0].checkpoint_id, reverse=True)
        paths: dict[ThreadLog, Paths] = {}
        count = 0
        for kept, thread, place in rows:
            if limit is not None and count >= limit:
                return
            if thread not in paths:
                paths[thread] = thread.paths(row[0] for row in rows if row[1] is thread)
            metadata = thread.metadata(kept, paths[thread], self._values) if filter else {}
            if all(metadata.get(name) == value for name, value in (filter or {}).items()):
                count += 1
                yield self._tuple(_config(*place), thread, kept, paths[thread])

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What each channel was built from along the checkpoint's ancestors: pruned ones too, for nothing is gone."""
        found = self._find(config)
        writes: Writes = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        line = [] if found is None else _ancestors(*found)
        if found is not None:
            paths = found[0].paths(line)
            for kept in line:
                self._gather(found[0], kept, paths, writes, seeds)
        history: dict[str, DeltaChannelHistory] = {}
        for channel in channels:
            history[channel] = {"writes": writes[channel][::-1]}
            if channel in seeds:
                history[channel]["seed"] = seeds[channel]
        return history

    def _gather(
        self,
        thread: ThreadLog,
        kept: Kept,
        paths: Paths,
        writes: Writes,
        seeds: dict[str, Any],
    ) -> None:
        """Add what one ancestor contributes, to the channels that have found no value yet."""
        open_ones = [channel for channel in writes if channel not in seeds]
        if not open_ones:
            return
        for write in reversed(thread.read_writes(kept, paths, self._values)):
            if write[1] in open_ones:
                writes[write[1]].append(write)
        for channel in open_ones:
            if thread.has_value(kept, channel, paths):
                seeds[channel] = thread.value(kept, channel, paths, self._values)

    # -- writing -----------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint behind the one the config names. Durable on return."""
        name, ns = self._place(config)
        rest = {key: value for key, value in checkpoint.items() if key != "channel_values"}
        held = dict(checkpoint["channel_values"])
        said = _conversation(held.get(self.messages))
        if said is not None:
            del held[self.messages]
        coming = Coming(
            checkpoint=rest,
            parent=get_checkpoint_id(config),
            metadata=dict(get_checkpoint_metadata(config, metadata)),
            held=held,
            changed=frozenset(new_versions),
            messages=said,
            channel=self.messages,
        )
        self._on_thread(
            name, ns, lambda thread: thread.put(coming, self._values, self._threads.counted(name))
        )
        return _config(config["configurable"]["thread_id"], ns, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task has written until its checkpoint comes. Durable on return; the same twice is once."""
        name, ns = self._place(config)
        of = get_checkpoint_id(config)
        if of is None:
            raise InvalidArgument("checkpoint_id", None, "the id of the checkpoint that the writes follow")
        made = [
            (WRITES_IDX_MAP.get(channel, index), channel, value)
            for index, (channel, value) in enumerate(writes)
        ]
        self._on_thread(
            name, ns, lambda thread: thread.put_writes(of, task_id, task_path, made, self._values)
        )

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Counted up. A thread that was brought here from a saver whose versions are texts goes on with texts."""
        if isinstance(current, str):
            return f"{int(current.partition('.')[0]) + 1:032}.0"
        return 1 if current is None else current + 1

    # -- care --------------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Into the trash, with its namespaces; `store.restore` brings it back, `purge` takes it away."""
        self._threads.delete(self._named(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Tell the checkpoints of these runs no longer, in whatever thread they are."""
        wanted = {str(run_id) for run_id in run_ids}
        for name, ns in self._threads.every() if wanted else ():
            thread = self._threads.find(name, ns)
            if thread is not None:
                dropped = [kept.checkpoint_id for kept in thread.index.told() if kept.run_id in wanted]
                thread.drop(dropped, self._values)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Tell only the latest checkpoint of each namespace, or put the threads into the trash (`delete`)."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidArgument("strategy", strategy, "keep_latest or delete")
        for name in map(self._named, thread_ids):
            if strategy == "delete":
                self._threads.delete(name)
                continue
            for ns in self._threads.namespaces(name):
                thread = self._threads.find(name, ns)
                latest = None if thread is None else thread.latest()
                if thread is not None and latest is not None:
                    thread.drop(
                        [
                            k.checkpoint_id
                            for k in thread.index.told()
                            if k.checkpoint_id != latest.checkpoint_id
                        ],
                        self._values,
                    )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Another thread with the same checkpoints. The path is shared, not copied; what lies beside it is."""
        source, target = self._named(source_thread_id), self._named(target_thread_id)
        for ns in self._threads.namespaces(source):
            thread = self._threads.find(source, ns)
            if thread is None:
                continue
            made = self._threads.find(target, ns)
            if made is None:
                made = self._threads.opened(target, ns) if ns else self._threads.fork(thread, target)
                made.catch_up()
            made.take(thread, self._values)

    # -- the same, for whoever must not wait -------------------------------------------------------

    async def _cross(self, work: Callable[..., R], *given: Any, **how: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._crossing, partial(work, *given, **how))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._cross(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (one := await self._cross(next, found, None)) is not None:
            yield one

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self._cross(self.get_delta_channel_history, config=config, channels=channels)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._cross(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._cross(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await self._cross(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._cross(self.delete_for_runs, run_ids)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._cross(self.prune, thread_ids, strategy=strategy)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._cross(self.copy_thread, source_thread_id, target_thread_id)

    # -- configs -----------------------------------------------------------------------------------

    @property
    def _values(self) -> Values:
        return Values(self.serde)  # made anew: the base class swaps the serde of a copy

    def _named(self, thread_id: object) -> str:
        """A thread's name as the store keeps it."""
        if thread_id is None or str(thread_id) == "":
            raise InvalidArgument(
                "thread_id", thread_id, 'a name: config={"configurable": {"thread_id": "1"}}'
            )
        return self.store.runtime.redactor.redact_text(check_text(str(thread_id), "thread_id"))

    def _place(self, config: RunnableConfig) -> tuple[str, str]:
        given = config.get("configurable", {})
        return self._named(given.get("thread_id")), check_text(
            given.get("checkpoint_ns") or "", "checkpoint_ns"
        )

    def _find(self, config: RunnableConfig) -> tuple[ThreadLog, Kept] | None:
        thread = self._threads.find(*self._place(config))
        wanted = get_checkpoint_id(config)
        if thread is None:
            return None
        kept = thread.index.checkpoints.get(wanted) if wanted else thread.latest()
        return None if kept is None or kept.checkpoint_id in thread.index.dropped else (thread, kept)

    def _matching(self, config: RunnableConfig | None) -> Iterator[tuple[tuple[Any, str], ThreadLog]]:
        """Thread and namespace, with the caller's own name of the thread."""
        if config is None:
            places = ((name, name, ns) for name, ns in self._threads.every())
        else:
            given, (name, _) = config["configurable"], self._place(config)
            ns = given.get("checkpoint_ns")
            spaces = self._threads.namespaces(name) if ns is None else [ns]
            places = ((given["thread_id"], name, one) for one in spaces)
        for given_name, name, ns in places:
            thread = self._threads.find(name, ns)
            if thread is not None:
                yield (given_name, ns), thread

    def _on_thread(self, name: str, ns: str, work: Callable[[ThreadLog], None]) -> None:
        try:
            work(self._threads.opened(name, ns))
        except (SessionTrashed, NotFound):
            self._threads.forget(name)  # somebody deleted it meanwhile: a thread of that name begins anew
            work(self._threads.opened(name, ns))

    def _tuple(self, config: RunnableConfig, thread: ThreadLog, kept: Kept, paths: Paths) -> CheckpointTuple:
        found = thread.read(kept, paths, self._values)
        name, ns = config["configurable"]["thread_id"], config["configurable"].get("checkpoint_ns") or ""
        return CheckpointTuple(
            config=_config(name, ns, kept.checkpoint_id),
            checkpoint=cast(Checkpoint, {**found.checkpoint, "channel_values": found.held}),
            metadata=cast(CheckpointMetadata, found.metadata),
            parent_config=None if kept.parent is None else _config(name, ns, kept.parent),
            pending_writes=found.writes,
        )


def _config(thread_id: Any, ns: str, checkpoint_id: str | None = None) -> RunnableConfig:
    named = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, **named}}


def _conversation(value: object) -> list[BaseMessage] | None:
    """A list of messages and nothing else; None if it is something else."""
    if type(value) is list and all(isinstance(item, BaseMessage) for item in value):
        return value
    return None


def _ancestors(thread: ThreadLog, kept: Kept) -> list[Kept]:
    """The checkpoints it came from, newest first."""
    found: dict[str, Kept] = {}
    name = kept.parent
    while name is not None and name not in found and name in thread.index.checkpoints:
        found[name] = thread.index.checkpoints[name]
        name = found[name].parent
    return list(found.values())
