"""LangGraph's checkpoints in Oakleaf: `graph = builder.compile(checkpointer=OakleafSaver(oakleaf.open("agent.db")))`.

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

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import BaseMessage, ToolMessage
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
from langgraph.types import Command
from msgspec import Struct

from oakleaf.core.codec import check_text
from oakleaf.errors import InvalidArgument, NotFound, SessionTrashed
from oakleaf.ext import UNKNOWN_OUTCOME, read_store, run_to_end
from oakleaf.store import Store
from oakleaf_frameworks.langgraph.checkpoints import CheckpointRecord, NewCheckpoint
from oakleaf_frameworks.langgraph.messages import ValueCodec
from oakleaf_frameworks.langgraph.thread_log import PathCache, ThreadLog
from oakleaf_frameworks.langgraph.threads import Threads
from oakleaf_frameworks.shared import is_repeatable, require_store

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest

Writes = dict[str, list[PendingWrite]]
ListRow = tuple[CheckpointRecord, ThreadLog, tuple[Any, str]]
"""A checkpoint in a list, with its thread, and the thread's id and namespace as the caller names them."""
POLL_SECONDS = 0.002
DURABLE_SECONDS = 60
ToolResponse = ToolMessage | Command[Any]


class OnceCall(Struct, frozen=True):
    """A tool call that runs at most once."""

    thread: ThreadLog
    codec: ValueCodec
    task: str
    """The namespace of the task that runs it: the same when the graph is resumed."""
    checkpoint_id: str
    """The thread's checkpoint that it follows."""
    call_id: str
    name: str
    is_repeatable: bool

    def begin(self) -> ToolResponse | None:
        """Record the start; return the response instead if the call must not run (again)."""
        record = self.thread.begin_call(
            self.task, self.call_id, self.checkpoint_id, self.codec, is_repeatable=self.is_repeatable
        )
        if record is None:
            return None
        if record.status == "done":
            return cast(ToolResponse, self.thread.call_result(record, self.codec))
        return ToolMessage(UNKNOWN_OUTCOME, name=self.name, tool_call_id=self.call_id, status="error")

    def end(self, status: str, response: ToolResponse | None = None) -> None:
        """Record how the call ended."""
        result = {} if response is None else self.codec.encode(response)
        self.thread.end_call(self.task, self.call_id, status, result, self.codec)


class OakleafSaver(BaseCheckpointSaver[Any]):
    """A checkpointer whose threads are sessions. Safe to use from several threads and by several processes.

    `messages` is the channel that is the conversation; `agent` is the agent name of its sessions. With `redact=False` the
    graph's state is stored as it is, secrets included.
    """

    def __init__(
        self,
        store: Store,
        *,
        agent: str = "langgraph",
        messages: str = "messages",
        serde: SerializerProtocol | None = None,
        redact: bool = True,
    ) -> None:
        super().__init__(serde=serde)
        self.store, self.messages = require_store(store, "OakleafSaver", redact=redact), messages
        self._threads = Threads(self.store, agent)

    # -- reading -----------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint the config names, or the thread's current checkpoint."""
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
        """Yield the matching checkpoints, newest first."""
        end = get_checkpoint_id(before) if before is not None else None
        rows = (row for row in self._checkpoints_of(config) if end is None or row[0].checkpoint_id < end)
        count = 0
        while batch := list(islice(rows, limit)):  # no more is read than may be needed
            paths: dict[ThreadLog, PathCache] = {}
            for record, thread, name in batch:
                if limit is not None and count >= limit:
                    return
                if thread not in paths:
                    paths[thread] = thread.paths(row[0] for row in batch if row[1] is thread)
                metadata = thread.metadata(record, paths[thread], self._codec) if filter else {}
                if all(metadata.get(key) == value for key, value in (filter or {}).items()):
                    count += 1
                    yield self._tuple(_config(*name), thread, record, paths[thread])

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the building blocks of each channel along the checkpoint's ancestors, pruned ancestors included."""
        match = self._find(config)
        writes: Writes = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        if match is not None:
            thread, ancestors = match[0], _ancestors(*match)
            paths = thread.paths(ancestors)
            for record in ancestors:
                missing = [channel for channel in channels if channel not in seeds]
                pending = thread.pending_writes(record, paths, self._codec) if missing else []
                for write in reversed(pending):
                    if write[1] in missing:
                        writes[write[1]].append(write)
                for channel in missing:
                    if thread.has_value(record, channel, paths):
                        seeds[channel] = thread.value(record, channel, paths, self._codec)
        history: dict[str, DeltaChannelHistory] = {}
        for channel in channels:
            history[channel] = {"writes": writes[channel][::-1]}
            if channel in seeds:
                history[channel]["seed"] = seeds[channel]
        return history

    # -- writing -----------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint after the checkpoint in the config. Durable on return."""
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
        """Store a task's writes until the checkpoint comes. Durable on return; idempotent."""
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

    # -- running tools once ------------------------------------------------------------------------

    def run_once(
        self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], ToolResponse]
    ) -> ToolResponse:
        """Run a tool call at most once: `ToolNode(tools, wrap_tool_call=saver.run_once)`.

        Its start is durable before it runs, its result as soon as it returns. When the graph is resumed after a crash, a
        call that is done is not run again, and one that had started is answered with an unknown outcome. A tool with
        `metadata={"effect": "read"}` or `"idempotent"` is run again. One that raises or interrupts has not run.
        """
        call = self._tool_call(request)
        if call is None:
            return execute(request)
        for _ in _until_durable():
            if self._is_durable(request):
                break
            time.sleep(POLL_SECONDS)
        response = call.begin()
        if response is not None:
            return response
        try:
            response = execute(request)
        except Exception:
            call.end("raised")
            raise
        call.end("done", response)
        return response

    async def arun_once(
        self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[ToolResponse]]
    ) -> ToolResponse:
        """Run a tool call at most once: `ToolNode(tools, awrap_tool_call=saver.arun_once)`."""
        call = await run_to_end(self._tool_call, request)
        if call is None:
            return await execute(request)
        for _ in _until_durable():
            if await run_to_end(self._is_durable, request):
                break
            await asyncio.sleep(POLL_SECONDS)  # not on a thread: the checkpoint may be waiting for one
        response = await run_to_end(call.begin)
        if response is not None:
            return response
        try:
            response = await execute(request)
        except Exception:
            await run_to_end(call.end, "raised")
            raise
        await run_to_end(call.end, "done", response)
        return response

    def _is_durable(self, request: ToolCallRequest) -> bool:
        """Whether the checkpoints before the call are written.

        With LangGraph's default durability they may still be on their way. A tool that runs before them would run again
        after a crash, for another call: the graph would ask its model anew.
        """
        fields = request.runtime.config["configurable"]
        thread_id = self._stored_id(fields["thread_id"])
        checkpoints = fields.get("checkpoint_map", {})
        return all(self._threads.has_checkpoint(thread_id, *name) for name in checkpoints.items())

    def _tool_call(self, request: ToolCallRequest) -> OnceCall | None:
        """Return the call of a request; None outside of a thread, or without an id from the model."""
        fields = request.runtime.config.get("configurable", {})
        call_id = request.tool_call["id"]
        if not fields.get("thread_id") or not call_id:
            return None
        if fields.get("__pregel_durability") == "exit":
            raise InvalidArgument(
                "durability", "exit", "sync or async: run_once needs the checkpoint of a call"
            )
        # In the root's session even for a subgraph, whose own session may not exist yet.
        thread = self._threads.find_or_start(self._stored_id(fields["thread_id"]), "")
        return OnceCall(
            thread,
            self._codec,
            fields.get("checkpoint_ns") or "",
            fields.get("checkpoint_map", {}).get("", ""),
            call_id,
            request.tool_call["name"],
            is_repeatable(request.tool.metadata if request.tool is not None else None),
        )

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the next version. A thread copied from a saver whose versions are text keeps text."""
        if isinstance(current, str):
            return f"{int(current.partition('.')[0]) + 1:032}.0"
        return 1 if current is None else current + 1

    # -- deleting ----------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Move the thread and its namespaces to the trash; `store.restore` undoes the move, `purge` makes the
        move final.
        """
        self._threads.delete(self._stored_id(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Stop listing the checkpoints of these runs, in all threads."""
        names = {str(run_id) for run_id in run_ids}
        for thread_id, namespace in self._threads.with_runs(names):
            thread = self._threads.find(thread_id, namespace)
            if thread is not None:
                records = thread.listed_of_runs(names)
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
                    thread.add_all()
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
        return await run_to_end(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        checkpoints = self.list(config, filter=filter, before=before, limit=limit)
        while (checkpoint := await run_to_end(next, checkpoints, None)) is not None:
            yield checkpoint

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await run_to_end(self.get_delta_channel_history, config=config, channels=channels)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await run_to_end(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await run_to_end(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await run_to_end(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await run_to_end(self.delete_for_runs, run_ids)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await run_to_end(self.prune, thread_ids, strategy=strategy)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await run_to_end(self.copy_thread, source_thread_id, target_thread_id)

    # -- configs -----------------------------------------------------------------------------------

    @property
    def _codec(self) -> ValueCodec:
        return ValueCodec(
            self.serde, read_store(self.store).redactor
        )  # not cached: the base class swaps the serde of a copy

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
        checkpoint_id = get_checkpoint_id(config)
        if thread is None:
            return None
        record = thread.find(checkpoint_id) if checkpoint_id else thread.latest()
        return None if record is None or record.checkpoint_id in thread.index.dropped else (thread, record)

    def _matching(self, config: RunnableConfig | None) -> Iterator[tuple[tuple[Any, str], ThreadLog]]:
        """Yield the caller's thread id and the namespace, with the thread."""
        if config is None:
            names = (
                (thread_id, thread_id, namespace) for thread_id, namespace in self._threads.all_threads()
            )
        else:
            fields, (thread_id, _) = config["configurable"], self._thread_name(config)
            only = fields.get("checkpoint_ns")
            namespaces = self._threads.namespaces(thread_id) if only is None else [only]
            names = ((fields["thread_id"], thread_id, namespace) for namespace in namespaces)
        for own_id, thread_id, namespace in names:
            thread = self._threads.find(thread_id, namespace)
            if thread is not None:
                yield (own_id, namespace), thread

    def _checkpoints_of(self, config: RunnableConfig | None) -> Iterator[ListRow]:
        """Yield the checkpoints of the config, newest first, with thread and name."""
        checkpoint_id = get_checkpoint_id(config) if config is not None else None

        def rows(name: tuple[Any, str], thread: ThreadLog) -> Iterator[ListRow]:
            if checkpoint_id is None:
                yield from ((record, thread, name) for record in thread.listed())
            elif (
                record := thread.find(checkpoint_id)
            ) is not None and checkpoint_id not in thread.index.dropped:
                yield record, thread, name

        iterators = [rows(name, thread) for name, thread in self._matching(config)]
        return merge(*iterators, key=lambda row: row[0].checkpoint_id, reverse=True)

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


def _until_durable() -> Iterator[None]:
    """Yield until a checkpoint should have been written; then raise."""
    deadline = time.monotonic() + DURABLE_SECONDS
    while time.monotonic() < deadline:
        yield
    raise TimeoutError(
        f"the checkpoint of a tool call was not written within {DURABLE_SECONDS} s, so the tool was not run"
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
    while parent is not None and parent not in ancestors and (checkpoint := thread.find(parent)) is not None:
        ancestors[parent] = checkpoint
        parent = checkpoint.parent
    return list(ancestors.values())
