"""The spans we write are OTLP: the published protocol buffers take every line, and say the same."""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as known

import oakleaf
from oakleaf import Session, ToolCall, assistant, system
from oakleaf.core.usage import Usage
from support.random_logs import SOAK
from support.random_sessions import sessions
from support.sessions import exported_lines

NEWER = {"gen_ai.usage.cache_write.input_tokens"}
"""Renamed by the conventions since the installed package was made."""


def parse_line(line: str) -> ExportTraceServiceRequest:
    """OTLP writes ids in hex where the JSON of protocol buffers has base64; all else is the same."""
    request = json.loads(line)
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in {"traceId", "spanId", "parentSpanId"} & set(span):
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return ParseDict(request, ExportTraceServiceRequest(), ignore_unknown_fields=False)


def spans(session: Session, **how: bool) -> list[Span]:
    requests = [parse_line(line) for line in exported_lines(session, "otel", **how)]
    return [s for r in requests for one in r.resource_spans for scope in one.scope_spans for s in scope.spans]


def attributes(span: Span) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def sample_session() -> Session:
    session = oakleaf.open("memory:").start("support", [system("You help.")])
    with session.turn("Where?") as turn:
        looks = assistant(ToolCall("c", "lookup", {"order": 41}))
        turn.answer(looks, usage=Usage(100, 10, 60, 30), provider="anthropic", model="m")
        turn.result("c", "lost", error=True)
        turn.failed("too busy", model="m")
        turn.answer(assistant("Lost."), usage=Usage(150, 20), provider="anthropic", model="m")
    return session


class TestProtocol:
    def test_ids_kinds_times_and_status_are_what_a_collector_reads(self) -> None:
        session = sample_session()
        root, turn, first, tool, failed, last = spans(session)
        assert {len(span.trace_id) for span in (root, turn)} == {16}
        assert {len(span.span_id) for span in (root, turn)} == {8}
        assert (root.parent_span_id, turn.parent_span_id) == (b"", root.span_id)
        kinds = [span.kind for span in (turn, first, tool)]
        assert kinds == [Span.SPAN_KIND_INTERNAL, Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_INTERNAL]
        assert turn.start_time_unix_nano == session.path()[1].at * 1_000
        assert [span.status.code for span in (first, tool, failed, last)] == [
            Status.STATUS_CODE_UNSET,
            Status.STATUS_CODE_ERROR,
            Status.STATUS_CODE_ERROR,
            Status.STATUS_CODE_UNSET,
        ]
        assert attributes(first)[known.GEN_AI_USAGE_INPUT_TOKENS] == 100

    def test_every_gen_ai_attribute_is_one_of_the_conventions(self) -> None:
        names = {value for name, value in vars(known).items() if name.startswith("GEN_AI_")} | NEWER
        keys = {one.key for span in spans(sample_session(), content=True) for one in span.attributes}
        ours = {name for name in keys if name.startswith("gen_ai.")}
        assert ours <= names
        assert {known.GEN_AI_INPUT_MESSAGES, known.GEN_AI_TOOL_CALL_RESULT, known.GEN_AI_AGENT_NAME} < ours


class TestAnyLog:
    @settings(max_examples=1_000 if SOAK else 25, deadline=None)
    @given(sessions())
    def test_every_line_is_a_request(self, session: Session) -> None:
        trace = spans(session, content=True)
        assert sum(span.kind == Span.SPAN_KIND_CLIENT for span in trace) == session.usage().calls
