"""Counters of a server process, and the text in which Prometheus reads them.

Off unless `oakleaf serve --metrics` asks for it. Requests and commits are counted as they happen; sessions, queued inputs,
tasks, workers and cost are read from the store when the counters are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock

from oakleaf.ext import StoreReader
from oakleaf.stores.base import SessionQuery
from oakleaf_server.schemas import QueueView

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
DAY = 86_400 * 1_000_000


class Histogram:
    """Durations as cumulative counts per upper bound, in Prometheus's form."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0
        self._lock = Lock()

    def observe(self, seconds: float) -> None:
        with self._lock:
            self._sum += seconds
            self._counts[next((n for n, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))] += 1

    def lines(self, name: str, help: str) -> Iterator[str]:
        with self._lock:
            counts, sum_seconds = list(self._counts), self._sum
        yield f"# HELP {name} {help}"
        yield f"# TYPE {name} histogram"
        below = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{bound}"}} {below}'
        yield f"{name}_sum {sum_seconds:.6f}"
        yield f"{name}_count {below}"


class Metrics:
    """The counts of the process since the start."""

    def __init__(self, *, all_spaces: bool = False) -> None:
        self.all_spaces = all_spaces
        """Whether the sessions of all spaces are counted, and their spaces named, for who may read the counters."""
        self.commits, self.requests = Histogram(), Histogram()
        self._statuses: Counter[str] = Counter()
        self._lock = Lock()

    def count_response(self, status: int, seconds: float) -> None:
        self.requests.observe(seconds)
        with self._lock:
            self._statuses[f"{status // 100}xx"] += 1

    def text(
        self,
        stores: Iterable[StoreReader],
        *,
        queues: Sequence[QueueView],
        active_runs: int,
        streams: int,
        now: int,
    ) -> str:
        """Return everything in the text format of Prometheus; `stores` has a reader for each space."""
        with self._lock:
            statuses = sorted(self._statuses.items())
        spaces = [_SpaceCounts(store, now - now % DAY) for store in stores]
        lines = [
            *self.commits.lines("oakleaf_commit_seconds", "Commits of this process, until they are durable."),
            *self.requests.lines("oakleaf_http_request_seconds", "Requests until their response begins."),
            *_family("oakleaf_http_responses_total", "counter", "Responses by class.", ("code",), (((code,), n) for code, n in statuses)),
            *_space_family("oakleaf_sessions", "Sessions by status, with tasks and replays.", "status", spaces, lambda one: one.sessions),
            *_space_family("oakleaf_model_calls_today", "Model calls since midnight UTC, without replays.", "model", spaces, lambda one: one.calls),
            *_space_family("oakleaf_cost_today_dollars", "Money since midnight UTC, without replays.", "model", spaces, lambda one: one.cost),
            *_family(
                "oakleaf_replay_cost_today_dollars", "gauge", "Money for replays since midnight UTC.", ("space",),
                (((one.space,), one.replay_cost) for one in spaces),
            ),
            *_single("oakleaf_active_runs", "Runs of this process.", active_runs),
            *_single("oakleaf_event_streams", "Event streams that are open.", streams),
            *_family(
                "oakleaf_queued_inputs", "gauge", "Inputs that wait for a run.", ("space",),
                (((one.space,), one.queued) for one in spaces),
            ),
            *_queue_family("oakleaf_waiting_tasks", "Tasks that a worker could run now.", queues, "waiting"),
            *_queue_family("oakleaf_waiting_task_seconds", "How long the first of them waits.", queues, "waiting_seconds"),
            *_queue_family("oakleaf_running_tasks", "Tasks that workers run.", queues, "running"),
            *_queue_family("oakleaf_workers", "Workers that live.", queues, "workers"),
            *_queue_family("oakleaf_worker_slots", "How many tasks they can run at once.", queues, "slots"),
        ]  # fmt: skip
        return "\n".join(lines) + "\n"


class _SpaceCounts:
    """The readings of a space's store: money and calls count since midnight."""

    def __init__(self, store: StoreReader, midnight: int) -> None:
        self.space, self.queued = store.space, store.queued_input_count()
        self.sessions: Mapping[str, float] = store.count_all(SessionQuery(), "status")
        self.cost, self.calls = dict[str, float](), Counter[str]()
        self.replay_cost = 0.0
        for one in store.daily_usage(midnight):
            dollars = one.totals.cost_microcents / 1e8
            if one.bucket == "replay":
                self.replay_cost += dollars
                continue
            self.cost[one.model or ""] = self.cost.get(one.model or "", 0.0) + dollars
            self.calls[one.model or ""] += one.totals.calls


def _single(name: str, help: str, value: float) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} gauge"
    yield f"{name} {value}"


def _family(
    name: str,
    kind: str,
    help: str,
    labels: tuple[str, ...],
    values: Iterable[tuple[tuple[str, ...], float]],
) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"
    for named, number in values:
        pairs = zip(labels, named, strict=True)
        shown = ",".join(f'{label}="{_escape(value)}"' for label, value in pairs)
        yield f"{name}{{{shown}}} {number}"


def _space_family(
    name: str,
    help: str,
    label: str,
    spaces: Sequence[_SpaceCounts],
    counts: Callable[[_SpaceCounts], Mapping[str, float]],
) -> Iterator[str]:
    values = (((one.space, value), number) for one in spaces for value, number in sorted(counts(one).items()))
    return _family(name, "gauge", help, ("space", label), values)


def _queue_family(name: str, help: str, queues: Sequence[QueueView], field: str) -> Iterator[str]:
    values = (((view.queue,), getattr(view, field)) for view in queues)
    return _family(name, "gauge", help, ("queue",), values)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
