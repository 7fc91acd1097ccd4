"""LangGraph's checkpoints in Bough: `graph = builder.compile(checkpointer=BoughSaver(bough.open("agent.db")))`.

What maps to what:

- A thread is a session, its id the session's `conversation_id`. A checkpoint namespace, which is one run of a subgraph,
  is a task of the session it was started from (`threads`).
- A checkpoint is a note on the path. It holds the values that are new with it, once each, and refers to unchanged ones by
  the seq of the note that holds them (`checkpoints`).
- The messages of the `messages` channel are ordinary entries, once each. A checkpoint whose parent is not at the leaf, or
  that edits or removes a message, is a branch: shared lineage, no copies (`thread_log`).
- Pending writes, interrupts and errors are notes that name their checkpoint, durable when the method returns.
- Deleting a thread moves its sessions to the trash. Pruned checkpoints are no longer listed; their content stays.

Knows the methods of `BaseCheckpointSaver` and its configs. Each asynchronous method runs the synchronous one on a thread, so
no event loop waits for a disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, cast

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
from ..async_bridge import AsyncBridge
from .checkpoints import CheckpointRecord, NewCheckpoint
from .messages import ValueCodec
from .thread_log import PathCache, ThreadLog
from .threads import Threads

Writes = dict[str, list[PendingWrite]]


class BoughSaver(BaseCheckpointSaver[Any]):
    """A checkpointer whose threads are sessions. Safe to use from several threads and by several processes.

    `messages` is the channel that is the conversation; `agent` is the agent name of its sessions.
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
        self._bridge = AsyncBridge()

    # -- reading -----------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint the config names, or the thread's current one."""
        match = self._find(config)
        if match is None:
            return None
        thread, record = match
        return self._tuple(config, thread, record, thread.paths([record]))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints that match, newest first."""
        wanted = get_checkpoint_id(config) if config is not None else None
        end = get_checkpoint_id(before) if before is not None else None
        rows = [
            (record, thread, name)
            for name, thread in self._matching(config)
            for record in thread.index.listed()
            if wanted in (None, record.checkpoint_id) and (end is None or record.checkpoint_id < end)
        ]
        rows.sort(key=lambda row: row[0].checkpoint_id, reverse=True)
        paths: dict[ThreadLog, PathCache] = {}
        count = 0
        for record, thread, name in rows:
            if limit is not None and count >= limit:
                return
            if thread not in paths:
                paths[thread] = thread.paths(row[0] for row in rows if row[1] is thread)
            metadata = thread.metadata(record, paths[thread], self._codec) if filter else {}
            if all(metadata.get(key) == value for key, value in (filter or {}).items()):
                count += 1
                yield self._tuple(_config(*name), thread, record, paths[thread])

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what each channel was built from along the checkpoint's ancestors, pruned ones included."""
        match = self._find(config)
        writes: Writes = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        if match is not None:
            thread, ancestors = match[0], _ancestors(*match)
            paths = thread.paths(ancestors)
            for record in ancestors:
                self._add_history(thread, record, paths, writes, seeds)
        history: dict[str, DeltaChannelHistory] = {}
        for channel in channels:
            history[channel] = {"writes": writes[channel][::-1]}
            if channel in seeds:
                history[channel]["seed"] = seeds[channel]
        return history

    def _add_history(
        self,
        thread: ThreadLog,
        record: CheckpointRecord,
        paths: PathCache,
        writes: Writes,
        seeds: dict[str, Any],
    ) -> None:
        """Add one ancestor's writes and values for the channels that have no value yet."""
        missing = [channel for channel in writes if channel not in seeds]
        if not missing:
            return
        for write in reversed(thread.pending_writes(record, paths, self._codec)):
            if write[1] in missing:
                writes[write[1]].append(write)
        for channel in missing:
            if thread.has_value(record, channel, paths):
                seeds[channel] = thread.value(record, channel, paths, self._codec)

    # -- writing -----------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint after the one the config names. Durable on return."""
        thread_id, namespace = self._thread_name(config)
        rest = {key: value for key, value in checkpoint.items() if key != "channel_values"}
        values = dict(checkpoint["channel_values"])
        messages = _messages(values.get(self.messages))
        if messages is not None:
            del values[self.messages]
        new = NewCheckpoint(
            checkpoint=rest,
            parent=get_checkpoint_id(config),
            metadata=dict(get_checkpoint_metadata(config, metadata)),
            values=values,
            changed=frozenset(new_versions),
            messages=messages,
            messages_channel=self.messages,
        )
        self._write(
            thread_id,
            namespace,
            lambda thread: thread.put(new, self._codec, self._threads.recorded_calls(thread_id)),
        )
        return _config(config["configurable"]["thread_id"], namespace, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a task's writes until its checkpoint comes. Durable on return; idempotent."""
        thread_id, namespace = self._thread_name(config)
        checkpoint_id = get_checkpoint_id(config)
        if checkpoint_id is None:
            raise InvalidArgument("checkpoint_id", None, "the id of the checkpoint that the writes follow")
        indexed = [
            (WRITES_IDX_MAP.get(channel, index), channel, value)
            for index, (channel, value) in enumerate(writes)
        ]
        self._write(
            thread_id,
            namespace,
            lambda thread: thread.put_writes(checkpoint_id, task_id, task_path, indexed, self._codec),
        )

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the next version. A thread copied from a saver whose versions are text keeps text."""
        if isinstance(current, str):
            return f"{int(current.partition('.')[0]) + 1:032}.0"
        return 1 if current is None else current + 1

    # -- deleting ----------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Move the thread with its namespaces to the trash; `store.restore` brings it back, `purge` removes it."""
        self._threads.delete(self._stored_id(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Stop listing the checkpoints of these runs, in all threads."""
        wanted = {str(run_id) for run_id in run_ids}
        for thread_id, namespace in self._threads.all_threads() if wanted else ():
            thread = self._threads.find(thread_id, namespace)
            if thread is not None:
                records = [record for record in thread.index.listed() if record.run_id in wanted]
                thread.drop([record.checkpoint_id for record in records], self._codec)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """List only the latest checkpoint of each namespace, or move the threads to the trash (`delete`)."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidArgument("strategy", strategy, "keep_latest or delete")
        for thread_id in map(self._stored_id, thread_ids):
            if strategy == "delete":
                self._threads.delete(thread_id)
                continue
            for namespace in self._threads.namespaces(thread_id):
                thread = self._threads.find(thread_id, namespace)
                latest = None if thread is None else thread.latest()
                if thread is not None and latest is not None:
                    older = [record for record in thread.index.listed() if record != latest]
                    thread.drop([record.checkpoint_id for record in older], self._codec)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Make a thread with the same checkpoints. The path is shared, other branches are copied."""
        source, target = self._stored_id(source_thread_id), self._stored_id(target_thread_id)
        for namespace in self._threads.namespaces(source):
            thread = self._threads.find(source, namespace)
            if thread is None:
                continue
            copy = self._threads.find(target, namespace)
            if copy is None:
                copy = (
                    self._threads.find_or_start(target, namespace)
                    if namespace
                    else self._threads.fork(thread, target)
                )
                copy.catch_up()
            copy.copy_from(thread, self._codec)

    # -- asynchronous methods ----------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._bridge.run(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        checkpoints = self.list(config, filter=filter, before=before, limit=limit)
        while (checkpoint := await self._bridge.run(next, checkpoints, None)) is not None:
            yield checkpoint

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self._bridge.run(self.get_delta_channel_history, config=config, channels=channels)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._bridge.run(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._bridge.run(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await self._bridge.run(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._bridge.run(self.delete_for_runs, run_ids)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._bridge.run(self.prune, thread_ids, strategy=strategy)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._bridge.run(self.copy_thread, source_thread_id, target_thread_id)

    # -- configs -----------------------------------------------------------------------------------

    @property
    def _codec(self) -> ValueCodec:
        return ValueCodec(self.serde)  # not cached: the base class swaps the serde of a copy

    def _stored_id(self, thread_id: object) -> str:
        """Return a thread's id as text."""
        if thread_id is None or str(thread_id) == "":
            raise InvalidArgument(
                "thread_id", thread_id, 'a name: config={"configurable": {"thread_id": "1"}}'
            )
        return check_text(str(thread_id), "thread_id")

    def _thread_name(self, config: RunnableConfig) -> tuple[str, str]:
        fields = config.get("configurable", {})
        namespace = check_text(fields.get("checkpoint_ns") or "", "checkpoint_ns")
        return self._stored_id(fields.get("thread_id")), namespace

    def _find(self, config: RunnableConfig) -> tuple[ThreadLog, CheckpointRecord] | None:
        thread = self._threads.find(*self._thread_name(config))
        wanted = get_checkpoint_id(config)
        if thread is None:
            return None
        record = thread.index.checkpoints.get(wanted) if wanted else thread.latest()
        is_missing = record is None or record.checkpoint_id in thread.index.dropped
        return None if is_missing or record is None else (thread, record)

    def _matching(self, config: RunnableConfig | None) -> Iterator[tuple[tuple[Any, str], ThreadLog]]:
        """Yield the caller's thread id and the namespace, with the thread."""
        if config is None:
            names = (
                (thread_id, thread_id, namespace) for thread_id, namespace in self._threads.all_threads()
            )
        else:
            fields, (thread_id, _) = config["configurable"], self._thread_name(config)
            wanted = fields.get("checkpoint_ns")
            namespaces = self._threads.namespaces(thread_id) if wanted is None else [wanted]
            names = ((fields["thread_id"], thread_id, namespace) for namespace in namespaces)
        for own_id, thread_id, namespace in names:
            thread = self._threads.find(thread_id, namespace)
            if thread is not None:
                yield (own_id, namespace), thread

    def _write(self, thread_id: str, namespace: str, write: Callable[[ThreadLog], None]) -> None:
        try:
            write(self._threads.find_or_start(thread_id, namespace))
        except (SessionTrashed, NotFound):
            self._threads.forget(thread_id)  # deleted meanwhile: start a new thread with that id
            write(self._threads.find_or_start(thread_id, namespace))

    def _tuple(
        self, config: RunnableConfig, thread: ThreadLog, record: CheckpointRecord, paths: PathCache
    ) -> CheckpointTuple:
        loaded = thread.load(record, paths, self._codec)
        fields = config["configurable"]
        thread_id, namespace = fields["thread_id"], fields.get("checkpoint_ns") or ""
        return CheckpointTuple(
            config=_config(thread_id, namespace, record.checkpoint_id),
            checkpoint=cast(Checkpoint, {**loaded.checkpoint, "channel_values": loaded.values}),
            metadata=cast(CheckpointMetadata, loaded.metadata),
            parent_config=None if record.parent is None else _config(thread_id, namespace, record.parent),
            pending_writes=loaded.writes,
        )


def _config(thread_id: Any, namespace: str, checkpoint_id: str | None = None) -> RunnableConfig:
    checkpoint = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, **checkpoint}}


def _messages(value: object) -> list[BaseMessage] | None:
    """Return a list of messages; None if the value is anything else."""
    if type(value) is list and all(isinstance(item, BaseMessage) for item in value):
        return value
    return None


def _ancestors(thread: ThreadLog, record: CheckpointRecord) -> list[CheckpointRecord]:
    """Return the ancestors of a checkpoint, newest first."""
    ancestors: dict[str, CheckpointRecord] = {}
    parent = record.parent
    while parent is not None and parent not in ancestors and parent in thread.index.checkpoints:
        ancestors[parent] = thread.index.checkpoints[parent]
        parent = ancestors[parent].parent
    return list(ancestors.values())
