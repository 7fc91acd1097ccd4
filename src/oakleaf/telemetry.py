"""OpenTelemetry, live: spans and metrics of turns, model calls and tool calls, by the three hooks.

Names follow the GenAI semantic conventions. Spans hold no content. Without an SDK nothing is recorded, and the SDK's
samplers and exporters decide what is sent. The `otel` export writes a recorded session with the names of this module.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from oakleaf import __version__
from oakleaf.errors import OakleafError
from oakleaf.install import install_line

if TYPE_CHECKING:
    from oakleaf import Call, Ending, Hooks, WatchedModelCall, WatchedTool, WatchedTurn

PROVIDERS = {"openai-chat": "openai", "gemini": "gcp.gemini"}
"""Providers that the conventions name differently."""
_agent: ContextVar[str | None] = ContextVar("oakleaf_agent", default=None)
"""The agent of the turn around a call."""


def telemetry() -> Hooks:
    """Return hooks that record spans and metrics with the global providers of OpenTelemetry."""
    return Recorder().hooks


def installed_telemetry() -> tuple[Hooks, ...]:
    """Return the hooks for a command: those of telemetry if its process runs an SDK of OpenTelemetry."""
    return (telemetry(),) if "opentelemetry.sdk.trace" in sys.modules else ()


def traceparent() -> str | None:
    """Return the `traceparent` of the current span, for another process. None without a recorded span."""
    carrier: dict[str, str] = {}
    _api().propagate.inject(carrier)
    return carrier.get("traceparent")


# -- names -----------------------------------------------------------------------------------------


def span_name(operation: str, subject: str | None) -> str:
    return f"{operation} {subject}" if subject else operation


def place_attributes(operation: str | None, session_id: str, agent: str | None) -> dict[str, Any]:
    """Return the attributes of every span."""
    return _present(
        {
            "gen_ai.operation.name": operation,
            "gen_ai.conversation.id": session_id,
            "gen_ai.agent.name": agent,
        }
    )


def request_attributes(provider: str | None, model: str | None) -> dict[str, Any]:
    """Return the attributes of a model call known before the call, also those of its metrics."""
    name = PROVIDERS.get(provider or "", provider) or "unknown"
    return _present({"gen_ai.provider.name": name, "gen_ai.request.model": model})


def answer_attributes(call: Call, finish: str | None) -> dict[str, Any]:
    """Return the attributes of a model call known from its ledger row."""
    return _present(
        {
            "gen_ai.response.finish_reasons": [finish] if finish is not None else None,
            "gen_ai.usage.input_tokens": call.usage.input_tokens,
            "gen_ai.usage.output_tokens": call.usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": call.usage.cache_read_tokens,
            "gen_ai.usage.cache_write.input_tokens": call.usage.cache_write_tokens,
            "oakleaf.cost_microcents": call.price.microcents if call.price is not None else None,
            "oakleaf.purpose": call.purpose,
            "oakleaf.bucket": call.bucket,
            "oakleaf.seq": call.answer_seq,
        }
    )


def tool_attributes(name: str, call_id: str) -> dict[str, Any]:
    return {"gen_ai.tool.name": name, "gen_ai.tool.type": "function", "gen_ai.tool.call.id": call_id}


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


# -- recording -------------------------------------------------------------------------------------


class _Api(NamedTuple):
    """Modules of OpenTelemetry."""

    context: Any
    metrics: Any
    propagate: Any
    trace: Any


class Recorder:
    """Starts a span in each hook, and ends the span with the outcome."""

    def __init__(self) -> None:
        self._api = _api()
        self._tracer = self._api.trace.get_tracer("oakleaf", __version__)
        meter = self._api.metrics.get_meter("oakleaf", __version__)
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens of model calls")
        self._cost = meter.create_counter("oakleaf.cost", "{microcent}", "Cost of model calls")
        self._seconds = {
            "chat": meter.create_histogram("gen_ai.client.operation.duration", "s", "Seconds of model calls"),
            "execute_tool": meter.create_histogram(
                "gen_ai.execute_tool.duration", "s", "Seconds of tool calls"
            ),
            "invoke_agent": meter.create_histogram("gen_ai.invoke_agent.duration", "s", "Seconds of turns"),
        }

    @property
    def hooks(self) -> Hooks:
        from oakleaf import Hooks

        return Hooks(on_turn=self._turn, on_model_call=self._model_call, on_tool=self._tool)

    def _turn(self, turn: WatchedTurn) -> Callable[[Ending], None]:
        _agent.set(turn.agent)
        parent = None
        if turn.trace is not None:
            parent = self._api.propagate.extract({"traceparent": turn.trace})
        return self._start(
            "invoke_agent", turn, turn.agent, {}, _present({"gen_ai.agent.name": turn.agent}), parent
        )

    def _model_call(self, call: WatchedModelCall) -> Callable[[Ending], None]:
        about = request_attributes(call.provider, call.model)
        end = self._start("chat", call, call.model, about, about)

        def after(ending: Ending) -> None:
            row = ending.call
            if row is not None:
                measured = {"gen_ai.operation.name": "chat", **about}
                for kind, count in (("input", row.usage.input_tokens), ("output", row.usage.output_tokens)):
                    if count is not None:
                        self._tokens.record(count, {**measured, "gen_ai.token.type": kind})
                if row.price is not None:
                    self._cost.add(row.price.microcents, measured)
            end(ending)

        return after

    def _tool(self, tool: WatchedTool) -> Callable[[Ending], None]:
        name = tool.call.name
        about = tool_attributes(name, tool.call.id)
        return self._start("execute_tool", tool, name, about, {"gen_ai.tool.name": name})

    def _start(
        self,
        operation: str,
        watched: WatchedTurn | WatchedModelCall | WatchedTool,
        subject: str | None,
        about: dict[str, Any],
        measured: dict[str, Any],
        parent: Any = None,
    ) -> Callable[[Ending], None]:
        """Start a span as the current span. Return what ends the span and counts the seconds."""
        trace, context = self._api.trace, self._api.context
        span = self._tracer.start_span(
            span_name(operation, subject),
            context=parent,
            kind=trace.SpanKind.CLIENT if operation == "chat" else trace.SpanKind.INTERNAL,
            attributes={**place_attributes(operation, watched.session_id, _agent.get()), **about},
            start_time=watched.at * 1_000,
        )
        context.attach(trace.set_span_in_context(span))

        def after(ending: Ending) -> None:
            counted = {"gen_ai.operation.name": operation, **measured}
            if ending.call is not None:
                span.set_attributes(answer_attributes(ending.call, ending.finish))
            if turn := ending.turn or watched.turn:
                span.set_attribute("oakleaf.turn", turn)
            span.set_attribute("oakleaf.status", ending.status)
            if ending.error_type is not None:
                counted["error.type"] = ending.error_type
                span.set_attribute("error.type", ending.error_type)
                span.set_status(trace.StatusCode.ERROR)
            self._seconds[operation].record(max(0.0, time.time() - watched.at / 1_000_000), counted)
            span.end()

        return after


def _api() -> _Api:
    """Load OpenTelemetry."""
    try:
        from opentelemetry import context, metrics, propagate, trace
    except ModuleNotFoundError as error:
        raise OakleafError(f"{error.name} is not installed", install_line("otel")) from None
    return _Api(context, metrics, propagate, trace)
