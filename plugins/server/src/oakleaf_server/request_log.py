"""Count each request, and write a line of the log for it if the logger `oakleaf.server` asks for one: `oakleaf serve --log json` does."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

from litestar.types import ASGIApp, Receive, Send

from oakleaf_server.metrics import Metrics

log = logging.getLogger("oakleaf.server")
SESSION = re.compile(r"/(?:sessions|s)/([^/]+)")


def observe_requests(app: ASGIApp, metrics: Metrics | None) -> ASGIApp:
    """Log and count a request when the response begins: an event stream ends with the reader."""

    async def observed(scope: Any, receive: Receive, send: Send) -> None:
        is_logged = log.isEnabledFor(logging.INFO)
        if scope["type"] != "http" or not (is_logged or metrics):
            await app(scope, receive, send)
            return
        start = time.perf_counter()

        async def observe(message: Any) -> None:
            if message["type"] == "http.response.start":
                seconds = time.perf_counter() - start
                if metrics is not None:
                    metrics.count_response(message["status"], seconds)
                if is_logged:
                    _log_request(scope, message["status"], seconds)
            await send(message)

        await app(scope, receive, observe)

    return observed


def _log_request(scope: Any, status: int, seconds: float) -> None:
    """Log a request without the query, a possible place of secrets."""
    session = SESSION.search(scope["path"])
    fields = {
        "event": "request",
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(seconds * 1_000, 1),
        **({"session": session[1]} if session else {}),
    }
    log.info("%s %s", scope["method"], scope["path"], extra={"fields": fields})
