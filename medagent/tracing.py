"""Spans in OpenTelemetry's GenAI conventions: `invoke_agent` for a dialogue, in it `execute_tool` and `retrieval`.

They are made where a tracer provider is set, as `start_tracing` does. No text of a question or an answer is in them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace

_tracer = trace.get_tracer("medagent")


def start_tracing() -> None:
    """Send spans to the address in OTEL_EXPORTER_OTLP_ENDPOINT. The other variables of OpenTelemetry hold too."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "medagent"})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


@contextmanager
def span(operation: str, name: str = "", **attributes: str | int) -> Iterator[trace.Span]:
    """A span of an operation of the conventions; `attributes` with double underscores for dots, below `gen_ai.`."""
    given = {f"gen_ai.{key.replace('__', '.')}": value for key, value in attributes.items()}
    started = {"gen_ai.operation.name": operation, **given}
    with _tracer.start_as_current_span(f"{operation} {name}".strip(), attributes=started) as made:
        yield made
