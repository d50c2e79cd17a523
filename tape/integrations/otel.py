"""OpenTelemetry GenAI: what instrumented programs say to models, on tapes; and tapes as GenAI spans.

Two environment variables capture any program whose instrumentation uses opentelemetry-util-genai:
``OTEL_INSTRUMENTATION_GENAI_COMPLETION_HOOK=tape`` and ``TAPE_STORE``, the store's file or URL.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

import msgspec
from opentelemetry.trace import SpanKind, Tracer, format_span_id, format_trace_id, set_span_in_context
from opentelemetry.util.genai.completion_hook import CompletionHook

import tape
from tape.integrations.histories import tape_id
from tape.integrations.opening import Adapter, StoreLike
from tape.transcripts import genai_message

__all__ = ["TapeCompletionHook", "export_spans"]

_STORE = "TAPE_STORE"
_AGENT = "otel"
_INPUTS, _OUTPUTS = "gen_ai.input.messages", "gen_ai.output.messages"
_SYSTEM, _TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
_REFERENCES = {
    _INPUTS: "gen_ai.input.messages_ref",
    _OUTPUTS: "gen_ai.output.messages_ref",
    _SYSTEM: "gen_ai.system_instructions_ref",
    _TOOLS: "gen_ai.tool.definitions_ref",
}
"""What was said, as attributes of a span; and those that tell where it is kept."""
_CONVERSATION, _OPERATION = "gen_ai.conversation.id", "gen_ai.operation.name"
_USED = {"input_tokens": "input_tokens", "output_tokens": "output_tokens", "cached_tokens": "cache_read.input_tokens"}
_Redacting = Callable[[Any], Any] | Iterable[str] | None
_log = logging.getLogger(__name__)


class TapeCompletionHook(Adapter, CompletionHook):
    """Writes what a model was given and what it said to a tape, and puts ``tape:<id>@<seq>`` on the span.

    A conversation with an id is a tape of that id. Calls without one share a tape with the other calls of their trace
    and with no others, since histories of different users may begin alike. A call brings the whole history along: each
    message of it is written once, and what differs from it becomes a branch. Nothing is ever raised into the program,
    which waits for the write; errors are logged.

    ``redact`` takes secrets out of messages, tools and attributes before anything is written, as in ``tape.record``;
    without it credentials are left out. A conversation whose id holds a secret is a tape named by a digest of the id.
    """

    def __init__(self, store: StoreLike | None = None, *, redact: _Redacting = tape.Redact.CREDENTIALS) -> None:
        if store is None and not os.environ.get(_STORE):
            raise tape.InvalidEntry(_STORE, "is not set; set it to the address of a store, or pass store=")
        super().__init__(os.environ[_STORE] if store is None else store)
        self._redact = redact if callable(redact) else tape.Redact(redact or (), tokens=redact is not None)

    def on_completion(self, *, inputs: Any, outputs: Any, system_instruction: Any, **others: Any) -> None:
        """Record one call of a model."""
        try:
            span, record = others.get("span"), others.get("log_record")
            attributes = dict(getattr(span, "attributes", None) or {})
            said = list(inputs), list(outputs), system_instruction, others.get("tool_definitions"), attributes
            call = _Call(map(self._clean, said), span, tape.lenient(attributes.get(_CONVERSATION))[0])
            references = self._connected.store.transaction(call.write)
            if span is not None:
                span.set_attributes(references)
            if record is not None:
                record.attributes = {**(record.attributes or {}), **references}
        except Exception:
            _log.warning("a completion was not written to its tape", exc_info=True)

    def _clean(self, value: Any) -> Any:
        return tape.lenient(self._redact(tape.lenient(value)[0]))[0]

    shutdown = Adapter.close


class _Call:
    """One call of a model, as its messages are kept: each under an id that tells all that stands before it."""

    def __init__(self, said: Iterable[Any], span: Any, conversation: Any) -> None:
        inputs, outputs, system, self.tools, attributes = said
        # What was said is on the tape already, and here it would be once more with each call.
        self.attributes = {name: held for name, held in attributes.items() if name not in _REFERENCES}
        self.conversation = conversation
        # Conversations whose ids are equal without their secrets are still different ones.
        self.hidden = self.attributes.get(_CONVERSATION) != conversation
        context = None if span is None else span.get_span_context()
        self.trace, self.span = tape.new_id(), tape.new_id()
        # Without the SDK no span has an id.
        if context is not None and context.is_valid:
            self.trace, self.span = format_trace_id(context.trace_id), format_span_id(context.span_id)
        self.meta = {"otel": {"trace_id": self.trace, "span_id": self.span}}
        self.system = [{"role": "system", "parts": system}] if system else []
        self.inputs, end = _chained(inputs, "")
        self.outputs = [_chained([output], end)[0][0] for output in outputs]

    def write(self, store: tape.Store) -> dict[str, str]:
        """Write what is new; returns where each part of the call is."""
        chat, known = self._place(store)
        seqs: dict[str, int] = {}
        first, prompted = None, False
        for first, message in _chained(self.system, "system")[0]:
            receipt = chat.append(message, id=first, parent=None, meta=self.meta)
            seqs[_SYSTEM], prompted = receipt.seq, not receipt.duplicate
        if self.tools:
            seqs[_TOOLS] = chat.event("otel.tools", self.tools, key=f"otel.tools/{_digest(self.tools)}").seq
        ids, new = [first, *(id for id, _ in self.inputs)], [message for _, message in self.inputs[known:]]
        receipts, end = chat.extend(new, ids=ids[known + 1 :], parent=ids[known], meta=self.meta), ids[-1]
        if end is not None and end != first:
            seqs[_INPUTS] = receipts[-1].seq if receipts else chat.message(end).seq
        meta = {"otel": {**self.meta["otel"], "attributes": self.attributes}}
        # The first of several answers is written last: it is where the conversation goes on.
        for id, message in reversed(self.outputs):
            seqs[_OUTPUTS] = chat.append(message, id=id, parent=end, meta=meta).seq
        if prompted and end != first and not (receipts or self.outputs):
            # A new prompt, and nothing behind it: the conversation stays where it was.
            chat.switch(end)
        self._count(chat)
        return {_REFERENCES[name]: _reference(chat.id, seq) for name, seq in seqs.items()}

    def _count(self, chat: tape.Tape) -> None:
        counts = {name: self.attributes.get(f"gen_ai.usage.{theirs}") for name, theirs in _USED.items()}
        used: Any = {name: count for name, count in counts.items() if type(count) is int and 0 < count < 2**53}
        if used:
            model = self.attributes.get("gen_ai.request.model")
            named = isinstance(model, str) and tape.as_id(model, most=200) == model
            chat.record_usage(**used, model=model if named else None, key=f"otel/{self.trace}/{self.span}")

    def _place(self, store: tape.Store) -> tuple[tape.Tape, int]:
        """Return the tape, and how many of the inputs it has."""
        if self.hidden:
            id = tape_id(store, _AGENT, "conversation", _digest(self.conversation))
        elif self.conversation is not None:
            named = (str(self.conversation),)
            # Two owners of stores may have conversations of one id.
            id = tape.as_id(*named, most=200) if store.owner is None else tape_id(store, _AGENT, *named)
        else:
            id = tape_id(store, _AGENT, self.trace)
        chat = store.create(id, agent=_AGENT, exists_ok=True, reuse=True)
        return chat, next((n for n in range(len(self.inputs), 0, -1) if chat.find(self.inputs[n - 1][0])), 0)


def _chained(messages: Any, before: str) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """Return messages as a tape has them, each with the digest of itself and all before it; and the last digest."""
    made: list[tuple[str, dict[str, Any]]] = []
    for said in tape.lenient(list(messages))[0]:
        parts = said["parts"]
        alone = len(parts) == 1 and parts[0].keys() == {"type", "content"} and parts[0]["type"] == "text"
        message = {"role": said["role"], **({"content": parts[0]["content"]} if alone else {"parts": parts})}
        if said.get("name") is not None:
            message["name"] = said["name"]
        before = f"otel-{_digest([before, message])}"
        made.append((before, message))
    return made, before


def _digest(value: Any) -> str:
    return blake2b(msgspec.json.encode(value, order="deterministic"), digest_size=16).hexdigest()


def export_spans(chat: tape.Tape | tape.Snapshot, tracer: Tracer, *, content: bool = False) -> int:
    """Write a tape as GenAI spans: the agent, in it each answer of a model, and each tool; returns how many.

    Spans refer to the tape, ``tape:<id>@<seq>``, and have the times at which the messages were recorded. What was said
    is in them with ``content`` only.
    """
    path, info, spans = chat.messages(), chat.info(), 1
    if not path:
        return 0
    stamps = [(message.occurred or message.stamp) * 1_000 for message in path]
    shared = {_CONVERSATION: info.id, **({"gen_ai.agent.name": info.agent} if info.agent else {})}
    name = f"invoke_agent {info.agent}" if info.agent else "invoke_agent"
    whole = tracer.start_span(name, attributes={**shared, _OPERATION: "invoke_agent"}, start_time=stamps[0])
    for place, title, kind, facts in _spans(path, content):
        begun = stamps[max(place - 1, 0)]
        span = tracer.start_span(title, set_span_in_context(whole), kind, {**shared, **facts}, start_time=begun)
        span.end(max(stamps[place], begun))
        spans += 1
    whole.end(max(stamps))
    return spans


def _spans(path: list[tape.Message], content: bool) -> Iterator[tuple[int, str, SpanKind, dict[str, Any]]]:
    """Yield the spans of the messages: the place of the message, title, kind and attributes."""
    called: dict[str, str] = {}
    for place, message in enumerate(path):
        said = genai_message(message)
        if said["role"] == "assistant":
            kept = ((message.meta or {}).get("otel") or {}).get("attributes") or {}
            facts = {name: held for name, held in kept.items() if held is not None and name not in _REFERENCES}
            facts |= {_OPERATION: "chat", _REFERENCES[_OUTPUTS]: _reference(message.tape, message.seq)}
            if place:
                facts[_REFERENCES[_INPUTS]] = _reference(path[place - 1].tape, path[place - 1].seq)
            if content:
                # A prompt is not an input: it has an attribute of its own.
                before = [genai_message(earlier) for earlier in path[:place] if earlier.role != "system"]
                facts |= {_INPUTS: _text(before), _OUTPUTS: _text([said])}
            yield place, f"chat {facts.get('gen_ai.request.model', '')}".strip(), SpanKind.CLIENT, facts
        for part in said["parts"]:
            id = str(part.get("id"))
            if part["type"] == "tool_call":
                called[id] = str(part.get("name", "unknown"))
            elif part["type"] == "tool_call_response":
                facts = {_OPERATION: "execute_tool", "gen_ai.tool.name": called.get(id, "unknown")}
                facts |= {
                    "gen_ai.tool.call.id": id,
                    "gen_ai.tool.call.result_ref": _reference(message.tape, message.seq),
                }
                yield place, f"execute_tool {facts['gen_ai.tool.name']}", SpanKind.INTERNAL, facts


def _reference(id: str, seq: int) -> str:
    return f"tape:{quote(id, safe='')}@{seq}"


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
