"""An instrumented program whose model calls are kept on a tape, and the tape written as GenAI spans again.

Run it: python examples/integrations/otel.py. It needs ``pip install 'tape-store[otel]'``. A program whose client
library is instrumented needs two environment variables instead of the code here.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util.genai.handler import TelemetryHandler
from opentelemetry.util.genai.types import InputMessage, OutputMessage, TextPart

import tape
from tape.integrations.otel import TapeCompletionHook, export_spans


def talk(handler: TelemetryHandler) -> None:
    """Call a model twice, as an instrumented client library would: each call brings the whole history along."""
    told: list[InputMessage] = []
    for question, answer in [("How do I get to Lisbon?", "By the night train."), ("When?", "At 9:30.")]:
        told.append(InputMessage(role="user", parts=[TextPart(content=question)]))
        with handler.inference("openai", request_model="gpt", conversation_id="trip") as call:
            call.input_messages = list(told)
            call.output_messages = [OutputMessage(role="assistant", parts=[TextPart(content=answer)])]
        told.append(InputMessage(role="assistant", parts=[TextPart(content=answer)]))


def main(folder: Path) -> None:
    """Capture, look at the tape, and export it."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with tape.open(folder / "agent.db") as store:
        talk(TelemetryHandler(tracer_provider=provider, completion_hook=TapeCompletionHook(store)))
        for message in store.tape("trip").messages():
            print(f"{message.role:<10} {message.text}")
        attributes = spans.get_finished_spans()[-1].attributes or {}
        print(f"on the span: {attributes['gen_ai.output.messages_ref']}")
        spans.clear()
        export_spans(store.tape("trip"), provider.get_tracer("example"))
        print(f"as spans: {', '.join(span.name for span in spans.get_finished_spans())}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
