"""Write spans as OTLP JSON lines, each an `ExportTraceServiceRequest`.

Ids are derived from the session id and the span's position, so the same session gives the same bytes, and a backend that
receives them twice has the same spans. Does not know what a span means or where it is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, BinaryIO

import msgspec

from oakleaf import Session, __version__
from oakleaf.exports.otel.spans import Span, session_span
from oakleaf.exports.values import PathOptions, redactor_of, without_none
from oakleaf.ext import Exporter

MOST_SPANS = 512
MOST_BYTES = 3 * 1024 * 1024  # some collectors refuse requests above 4 MB
_ERROR = 2


class Options(PathOptions, frozen=True, kw_only=True):
    """The scope and content of the spans."""

    content: bool = False
    """Whether inputs, answers and results are in them."""
    children: bool = True
    """Whether the spans of the session's tasks are among them."""


def write(session: Session, to: BinaryIO, options: Options) -> None:
    """Write the spans of everything the session did. Each line is one request to a collector, and one write."""
    redactor = redactor_of(session, options)
    root = session_span(session, content=options.content, children=options.children, redactor=redactor)
    for line in lines(root):
        to.write(line.encode())


EXPORTER = Exporter(suffix=".jsonl", write=write, options=Options, is_whole=True)


def lines(root: Span) -> Iterator[str]:
    """Yield lines with parents first, each small enough for a collector to accept."""
    waiting: list[msgspec.Raw] = []
    size = 0
    trace = _hash(f"trace {root.place}", 16)
    for span in _flat(root, trace):
        written = msgspec.json.encode(span)
        if waiting and (len(waiting) == MOST_SPANS or size + len(written) > MOST_BYTES):
            yield _request(waiting)
            waiting, size = [], 0
        waiting.append(msgspec.Raw(written))
        size += len(written)
    yield _request(waiting)


def _flat(root: Span, trace: str) -> Iterator[dict[str, Any]]:
    """Flatten without recursion: tasks may be nested deeper than Python's stack."""
    waiting: list[tuple[Span, str | None]] = [(root, None)]
    while waiting:
        span, parent = waiting.pop()
        span_id = _hash(f"{trace} {span.place}", 8)
        yield _span(span, {"traceId": trace, "spanId": span_id, **without_none({"parentSpanId": parent})})
        waiting.extend((inner, span_id) for inner in reversed(span.inner))


def _span(span: Span, ids: dict[str, str]) -> dict[str, Any]:
    failed = {} if span.error is None else {"code": _ERROR, **without_none({"message": span.message})}
    return {
        **ids,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start * 1_000),
        "endTimeUnixNano": str(span.end * 1_000),
        "attributes": _attributes({**span.attributes, **without_none({"error.type": span.error})}),
        "status": failed,
    }


def _hash(text: str, size: int) -> str:
    return sha256(f"oakleaf {text}".encode()).hexdigest()[: 2 * size]


def _request(spans: list[msgspec.Raw]) -> str:
    scope = {"scope": {"name": "oakleaf", "version": __version__}, "spans": spans}
    resource = {"attributes": _attributes({"service.name": "oakleaf"})}
    request = {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}
    return msgspec.json.encode(request).decode() + "\n"


def _attributes(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}  # 64 bits do not fit a JSON number everywhere
    return {"arrayValue": {"values": [_value(one) for one in value]}}
