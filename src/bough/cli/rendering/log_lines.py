"""Log records as lines of JSON on standard error, for programs that collect logs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """A record as one line: time, level, logger, message, and the fields that its caller added as `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)  # in ASCII: a lone surrogate must not stop a log


def log_as_json(level: int = logging.INFO) -> None:
    """Write the log of Bough to standard error, a line of JSON for each record."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("bough")
    logger.addHandler(handler)
    logger.setLevel(level)
