"""The log of a command that runs for long: notices for people or, with `--log json`, one JSON object per line.

Everything goes through `logging` to stderr. Known secrets are redacted, as they are in a store.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from oakleaf.cli.rendering.output import notify
from oakleaf.core.redact import Redactor

Report = Callable[[str], None]

log_format_option = click.option(
    "--log",
    "log_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    envvar="OAKLEAF_LOG",
    help="json: one object per line on stderr, for programs that collect logs.",
)


class JsonFormatter(logging.Formatter):
    """A record as one line: time, level, logger, event, message, and the caller's `fields`."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": "notice",
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # In ASCII: a lone surrogate must not stop a log.
        return json.dumps(self._redactor.redact_json(line), default=str)


def start_log(log_format: str, redactor: Redactor, command: str) -> Report:
    """Return the reporter to the operator; as JSON, send every log of the process and of its children there
    as well.
    """
    if log_format == "text":
        return notify
    os.environ["OAKLEAF_LOG"] = log_format
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(redactor))
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger("oakleaf").setLevel(logging.INFO)
    return logging.getLogger(f"oakleaf.{command}").info
