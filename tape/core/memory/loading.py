"""Blocks with a provider: it lists documents by key, and those that are loaded are shown. Pure.

A loaded document is a block of its own, whose label is that of the provider's block, a slash, and the key. So it is
stored, inherited, merged and exported like any other block. Only its place in a context differs: it is shown after the
prompt, so that a frozen prompt stays as it is. Its entry says that it is a document: whoever opens the store, with its
provider or without, text from outside never becomes a part of the prompt.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from tape.core import strict
from tape.core.entries import payloads
from tape.core.entries.payloads import Place
from tape.core.memory.state import LONGEST_LABEL, BlockSpec, provider_of
from tape.core.messages.tokens import Counter, estimate
from tape.core.plan.intents import Intent, Planned
from tape.core.plan.lookup import Lookup
from tape.core.view import slots
from tape.core.view.fold import Head
from tape.errors import InvalidEntry

__all__ = [
    "LoadBlock",
    "Loaded",
    "Provider",
    "fetched",
    "label_of",
    "listed",
    "loaded",
    "provided",
    "shown_documents",
]

_LONGEST_LINE = 500
"""Characters of a description in the list."""


@runtime_checkable
class Provider(Protocol):
    """Documents that a model can load into its context by their keys: skills, manuals, notes of other programs.

    A provider may also have ``search(query)``, which returns pairs of a key and a line about it.
    """

    def list(self) -> Iterable[tuple[str, str]]:
        """Return the key and the description of each document, in the order in which the prompt lists them."""

    def load(self, key: str) -> str:
        """Return the text of a document. Whatever it raises is told to the model, and nothing is recorded."""


class Loaded(Struct, frozen=True):
    """A document that is loaded: the label of its block, its key, its text, and the entry that holds it."""

    label: str
    key: str
    text: str
    tokens: int
    seq: int


def label_of(label: str, key: str) -> str:
    """Return the label under which a document is kept; raises InvalidEntry for a key that is too long."""
    whole = f"{strict.identifier(label, 'label')}/{strict.identifier(key, 'document')}"
    if len(label) > LONGEST_LABEL - 2:
        why = f"must have at most {LONGEST_LABEL - 2} characters, to leave room for a document key"
        raise InvalidEntry("label", why)
    if len(whole) > LONGEST_LABEL:
        raise InvalidEntry("document", f"must have at most {LONGEST_LABEL - len(label) - 1} characters")
    return whole


def fetched(spec: BlockSpec, call: str, *arguments: Any) -> Any:
    """Call a method of a provider; raises InvalidEntry for whatever it raises."""
    try:
        answer = getattr(spec.provider, call)(*arguments)
    except Exception as error:
        message = strict.shown(str(error)) if str(error) else ""
        why = f"the provider of {spec.label!r} failed: {type(error).__name__} {message}".rstrip()
        raise InvalidEntry("document", why) from error
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidEntry(
            "document",
            f"{call}() of the provider of {spec.label!r} returned an awaitable; it must return a plain value",
        )
    return answer


def listed(spec: BlockSpec) -> list[tuple[str, str]]:
    """Return what a provider lists, checked; raises InvalidEntry when it fails or lists what cannot be shown."""
    documents = []
    pairs = fetched(spec, "list")
    try:
        for key, description in pairs:
            label_of(spec.label, key)
            documents.append((key, strict.text(description or "", "description", empty=True)))
    except InvalidEntry as error:
        why = f"the provider of {spec.label!r} lists an invalid document: {error.field} {error.why}"
        raise InvalidEntry("document", why) from error
    except Exception as error:
        why = f"the provider of {spec.label!r} must list (key, description) pairs: {error}"
        raise InvalidEntry("document", why) from error
    return documents


def provided(specs: Sequence[BlockSpec], *, live: bool) -> list[BlockSpec]:
    """Return the declared blocks, those with a provider with the list of their documents as text.

    If a list cannot be read, a ``live`` prompt says so. A prompt that is recorded raises InvalidEntry instead.
    """
    blocks = []
    for spec in specs:
        if spec.provider is not None:
            try:
                lines = [_line(key, description) for key, description in listed(spec)] or ["(nothing to load)"]
            except InvalidEntry as error:
                if not live:
                    raise
                lines = [f"(cannot be listed now: {error.why})"]
            text = "\n".join([*([spec.default] if spec.default else []), *lines])
            spec = msgspec.structs.replace(spec, default=text)
        blocks.append(spec)
    return blocks


def _line(key: str, description: str) -> str:
    # One line each, so that a description cannot imitate another document.
    line = " ".join(description.split())
    return f"- {key}: {line[:_LONGEST_LINE]}" if line else f"- {key}"


class LoadBlock(Intent, kw_only=True):
    """Load a document, or (without a text) unload it."""

    records = payloads.Block

    label: str
    name: str
    text: str | None
    max_tokens: int | None = None
    counter: Any = estimate

    def _payload(self) -> payloads.Block:
        op = "unload" if self.text is None else "load"
        label = label_of(self.label, self.name)
        return payloads.Block(label=label, op=op, text=self.text, read_only=True, document=self.name)

    def content(self) -> Any:
        """Return the document and the operation, without the text, which may have changed before a retry."""
        return self._payload().content()

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Refuse to unload what is not loaded, and to load more than the block holds."""
        payload = self._payload()
        before = look.slot(slots.BLOCK + payload.label)
        if self.text is None and not (isinstance(before, payloads.Block) and before.loaded):
            raise InvalidEntry("document", f"{self.name!r} is not loaded in block {self.label!r}")
        if self.text is not None and self.max_tokens is not None:
            held = {slot: entry for slot, _, entry in look.slots(f"{slots.BLOCK}{self.label}/")}
            held[slots.BLOCK + payload.label] = payload
            texts = [block.text for block in held.values() if isinstance(block, payloads.Block) and block.loaded]
            tokens = sum(self.counter(text) for text in texts if text)
            if tokens > self.max_tokens:
                limit = f"block {self.label!r} holds at most {self.max_tokens}"
                why = f"needs {tokens} tokens with the loaded documents, but {limit}; unload a document first"
                raise InvalidEntry("text", why)
        return Planned(payload, head.place)


def loaded(specs: Sequence[BlockSpec], held: Mapping[str, tuple[int, Any]], counter: Counter) -> list[Loaded]:
    """Return the documents that are loaded, in the order in which they were."""
    documents = []
    for label, (seq, payload) in sorted(held.items(), key=lambda item: item[1][0]):
        if isinstance(payload, payloads.Block) and payload.loaded and payload.text is not None:
            block, key = _parts(label, payload.document, specs)
            documents.append(Loaded(block, key, payload.text, counter(payload.text), seq))
    return documents


def _parts(label: str, document: str | None, specs: Sequence[BlockSpec]) -> tuple[str, str]:
    """Return the label of the provider's block and the key of a document, as its entry has them."""
    if document and label.endswith(f"/{document}"):
        return label[: -len(document) - 1], document
    # An entry without the key: it was recorded before there was one.
    spec = provider_of(label, specs)
    if spec is not None:
        return spec.label, label.removeprefix(f"{spec.label}/")
    block, _, key = label.partition("/")
    return block, key


def shown_documents(documents: Sequence[Loaded]) -> str:
    """Return loaded documents as the model sees them, each in a fence that its text cannot close."""
    parts = []
    for document in documents:
        longest = max((len(run) for run in re.findall("~+", document.text)), default=0)
        fence = "~" * max(3, longest + 1)
        parts.append(f"Loaded from {document.label}: {document.key}\n{fence}\n{document.text}\n{fence}")
    return "\n\n".join(parts)
