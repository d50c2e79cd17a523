"""OpenTelemetry: spans of generative AI in OTLP's JSON, in the dialects that are in use. Pure.

- the conventions as they are now: ``gen_ai.input.messages``, ``gen_ai.output.messages``, ``gen_ai.system_instructions``
- those of 1.36 and before: an event per message (``gen_ai.user.message``, ``gen_ai.choice``), or ``gen_ai.prompt`` and
  ``gen_ai.completion`` as texts
- OpenLLMetry: ``gen_ai.prompt.0.role`` and so on; OpenInference: ``llm.input_messages.0.message.role`` and so on

Each call of a model carries the whole history. Calls of one conversation (or session, or trace) are one tape: each adds
what is new in it, and one in which earlier messages were changed branches off. Other spans are events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tape.errors import ImportFailed
from tape.transcripts.formats.conversations import Conversation, without
from tape.transcripts.formats.lines import Reading, count, documents, nonblank, stamp
from tape.transcripts.formats.otel.messages import Body, inputs, outputs
from tape.transcripts.formats.otel.values import attributes, value_of
from tape.transcripts.steps import Start, Step

__all__ = ["parse"]

_CONVERSATIONS = ("gen_ai.conversation.id", "session.id", "gen_ai.session.id", "langfuse.session.id")
_CONTENT = (
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.prompt",
    "gen_ai.completion",
    "llm.input_messages",
    "llm.output_messages",
)
"""The prefixes of attributes with messages, which are recorded as messages."""


class _Span:
    """A span or a log record, with its attributes and events decoded."""

    def __init__(self, line: int, record: Body, resource: Body) -> None:
        self.line = line
        self.record = record
        self.attributes = attributes(record.get("attributes"))
        self.events = [
            {**event, "attributes": attributes(event.get("attributes")), "body": value_of(event.get("body"))}
            for event in _dicts(record.get("events"))
        ]
        self.trace = str(record.get("traceId") or "")
        self.at = stamp(record.get("startTimeUnixNano", record.get("timeUnixNano")))
        self.resource = resource

    @property
    def conversation(self) -> str:
        """Which conversation it belongs to."""
        ids = (nonblank(self.attributes.get(name)) for name in _CONVERSATIONS)
        return next((id for id in ids if id is not None), self.trace or "spans")


def parse(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    """Read spans and log records, as one document or one a line."""
    spans: list[_Span] = []
    logs: dict[str, list[_Span]] = {}
    for line, value in documents(lines, reading):
        if not isinstance(value, dict) or not value.keys() & {"resourceSpans", "resourceLogs"}:
            reading.problem(line, "has no spans: resourceSpans is missing")
            reading.keep(line, "value", {"line": line, "value": value})
            continue
        spans += _records(line, value, "resourceSpans", ("scopeSpans", "instrumentationLibrarySpans"), "spans")
        for log in _records(line, value, "resourceLogs", ("scopeLogs",), "logRecords"):
            logs.setdefault(str(log.record.get("spanId") or ""), []).append(log)
    spans.sort(key=lambda span: span.at or 0)
    for span in spans:
        span.events += [_as_event(log) for log in logs.pop(str(span.record.get("spanId")), ())]
    spans += [log for unmatched in logs.values() for log in unmatched]
    if not spans:
        raise ImportFailed(1, "is not OTLP JSON: it has no spans")
    yield from _conversations(spans)


def _records(line: int, value: Body, outer: str, scopes: tuple[str, ...], inner: str) -> Iterator[_Span]:
    """Yield the spans or log records of a document, with the attributes of their resource."""
    for resource in _dicts(value.get(outer)):
        described = resource.get("resource")
        resource_attributes = attributes(described.get("attributes")) if isinstance(described, dict) else {}
        for scope in (scope for name in scopes for scope in _dicts(resource.get(name))):
            for record in _dicts(scope.get(inner)):
                yield _Span(line, record, resource_attributes)


def _dicts(value: Any) -> list[Body]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _as_event(log: _Span) -> Body:
    name = log.record.get("eventName") or log.attributes.get("event.name")
    return {"name": name, "attributes": log.attributes, "body": value_of(log.record.get("body"))}


def _conversations(spans: list[_Span]) -> Iterator[Step]:
    """Yield the steps of each conversation, in the order in which they began."""
    groups: dict[str, list[_Span]] = {}
    traces: dict[str, str] = {}
    for span in spans:
        if span.conversation != span.trace:
            traces.setdefault(span.trace, span.conversation)
    for span in spans:
        # A span that names no conversation belongs to that of its trace.
        groups.setdefault(traces.get(span.conversation, span.conversation), []).append(span)
    for id, members in groups.items():
        first = members[0]
        agent = next((nonblank(span.attributes.get("gen_ai.agent.name")) for span in members), None)
        service = nonblank(first.resource.get("service.name"))
        yield Start(line=first.line, id=id, agent=agent or service, meta={"resource": first.resource})
        conversation = Conversation("otlp")
        for span in members:
            yield from _span(conversation, span)


def _span(conversation: Conversation, span: _Span) -> Iterator[Step]:
    input_messages, output_messages = inputs(span.attributes, span.events), outputs(span.attributes, span.events)
    record = {**without(span.record, "attributes", "events"), "attributes": span.attributes, "events": span.events}
    operation = str(span.attributes.get("gen_ai.operation.name") or "")
    if not (input_messages or output_messages) or operation in (
        "execute_tool",
        "invoke_agent",
        "invoke_workflow",
        "create_agent",
    ):
        yield conversation.event(span.line, "span", record, span.at)
        return
    conversation.restart()
    end = stamp(span.record.get("endTimeUnixNano")) or span.at
    for message in input_messages:
        yield conversation.message(span.line, message, at=span.at)
    for message in output_messages:
        yield conversation.message(span.line, message, at=end)
    values = {name: value for name, value in span.attributes.items() if not name.startswith(_CONTENT)}
    yield conversation.event(span.line, "span", {**record, "attributes": values, "events": len(span.events)}, span.at)
    yield from conversation.usage(span.line, _usage(span.attributes), _model(span.attributes), end)


def _model(values: Body) -> Any:
    names = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "llm.request.model")
    return next((values[name] for name in names if nonblank(values.get(name)) is not None), None)


def _usage(values: Body) -> Body:
    def first(*names: str) -> int:
        return next((number for name in names if (number := count(_number(values.get(name))))), 0)

    cached = first("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens")
    return {
        "input_tokens": first("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
        "output_tokens": first(
            "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"
        ),
        "input_tokens_details": {
            "cached_tokens": cached or first("llm.token_count.prompt_details.cache_read"),
        },
    }


def _number(value: Any) -> Any:
    return msgspec.convert(value, int, strict=False) if isinstance(value, str) and value.isdigit() else value
