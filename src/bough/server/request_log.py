"""A line of the log for each request, if the logger `bough.server` asks for it: `bough serve --log json` does."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

from litestar.types import ASGIApp, Receive, Send

log = logging.getLogger("bough.server")
SESSION = re.compile(r"/(?:sessions|s)/([^/]+)")


def log_requests(app: ASGIApp) -> ASGIApp:
    """Log a request when its response begins: an event stream ends when its reader goes. Its query may hold a secret."""

    async def logged(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not log.isEnabledFor(logging.INFO):
            await app(scope, receive, send)
            return
        start = time.perf_counter()

        async def observed(message: Any) -> None:
            if message["type"] == "http.response.start":
                session = SESSION.search(scope["path"])
                fields = {
                    "event": "request",
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": message["status"],
                    "ms": round((time.perf_counter() - start) * 1_000, 1),
                    **({"session": session[1]} if session else {}),
                }
                log.info("%s %s", scope["method"], scope["path"], extra={"fields": fields})
            await send(message)

        await app(scope, receive, observed)

    return logged
