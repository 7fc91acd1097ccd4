"""Call each vendor's SDK under the tracers of OpenLLMetry, and print what the spans say; run as a program.

A process of its own: these tracers leave a part of the SDKs patched when they are told to stop.
"""

from __future__ import annotations

import json
import os

import anthropic
from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor
from opentelemetry.instrumentation.google_generativeai import GoogleGenerativeAiInstrumentor
from opentelemetry.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import oakleaf
from oakleaf import wire
from oakleaf.core.messages import user
from support.fake_providers import Call, Completion, FakeProviders
from support.model_calls import KEY, client, listen, request_of, run

CLIENT_OBJECT = "client object"
ANSWER = Completion("It is.", "a thought", (Call("a", "weather", '{"city": "Rome"}'),))


def main() -> None:
    os.environ["NO_PROXY"] = "127.0.0.1"
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    for tracer in (AnthropicInstrumentor(), OpenAIInstrumentor(), GoogleGenerativeAiInstrumentor()):
        tracer.instrument(tracer_provider=provider)
    found = {}
    for name in (*wire.PROVIDERS, CLIENT_OBJECT):
        with FakeProviders(ANSWER) as server:
            if name == CLIENT_OBJECT:
                own = anthropic.AsyncAnthropic(api_key=KEY, base_url=server.url)
                model = oakleaf.model("anthropic:some-model", client=own)
            else:
                model = client(name, server)
            _, answer = run(listen(model, request_of(user("Is it raining?"), max_tokens=9)))
        said = [answer.message.text, *(call.arguments for call in answer.message.calls)]
        ended = [
            [span.status.is_ok, dict(span.attributes or {}), said] for span in spans.get_finished_spans()
        ]
        found[name] = ended
        spans.clear()
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
