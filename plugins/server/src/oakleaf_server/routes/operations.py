"""Routes for operators: is it alive, can it work, what does it count."""

from __future__ import annotations

from litestar import Response, get

from oakleaf.ext import read_store
from oakleaf_server.context import ApiRequest, context_and_caller, in_thread
from oakleaf_server.problems import Refusal
from oakleaf_server.routes.home import queue_views


@get("/healthz", tags=["server"], opt={"open": True}, sync_to_thread=False)
def health() -> str:
    """Answer that the process is alive. Needs no token, asks nothing of the store."""
    return "ok\n"


@get("/readyz", tags=["server"], opt={"open": True})
@in_thread
def readiness(request: ApiRequest) -> str:
    """Answer that the store can be read; 503 if it cannot. Needs no token."""
    request.app.state.context.store.sessions(limit=1)
    return "ok\n"


@get("/metrics", tags=["server"])
@in_thread
def metrics(request: ApiRequest) -> Response[str]:
    """Return counters in the text format of Prometheus. Only with `oakleaf serve --metrics`; needs the service token."""
    context, _ = context_and_caller(request)
    if context.metrics is None:
        raise Refusal(
            404, "no_metrics", "this server counts nothing", "start it with: oakleaf serve --metrics"
        )
    store = context.store
    stores = map(store.in_space, store.spaces()) if context.metrics.all_spaces else [store]
    text = context.metrics.text(
        map(read_store, stores),
        queues=queue_views(store),
        active_runs=len(request.app.state.runs),
        streams=context.live.stream_count,
        now=read_store(store).now(),
    )
    return Response(text, media_type="text/plain; version=0.0.4")


HANDLERS = [health, readiness, metrics]
