"""A collector of OpenTelemetry on a loopback port: OTLP over HTTP, as the SDK's own exporter sends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.spans: list[Any] = []
        self.metrics: list[Any] = []

    @property
    def environment(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url}

    def receive(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            for resource in traces.resource_spans:
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        else:
            metrics = ExportMetricsServiceRequest.FromString(body)
            for resource in metrics.resource_metrics:
                self.metrics += [metric for scope in resource.scope_metrics for metric in scope.metrics]

    def tree(self) -> list[Any]:
        """Return the names of the spans, each with the spans inside it, by start."""

        def inside(parent: bytes) -> list[Any]:
            spans = sorted(self.spans, key=lambda span: span.start_time_unix_nano)
            return [(one.name, inside(one.span_id)) for one in spans if one.parent_span_id == parent]

        known = {span.span_id for span in self.spans}
        roots = {span.parent_span_id for span in self.spans} - known
        return [tree for root in sorted(roots) for tree in inside(root)]

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.receive(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def attributes(values: Any) -> dict[str, Any]:
    """Return attributes as a dict."""

    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        return (
            [plain(one) for one in value.array_value.values]
            if kind == "array_value"
            else getattr(value, kind)
        )

    return {one.key: plain(one.value) for one in values}
