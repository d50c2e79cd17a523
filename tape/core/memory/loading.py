"""Blocks that are filled from outside: a provider lists keyed documents, and those that are loaded are shown. Pure.

A loaded document is a block of its own, whose label is that of the provider's block, a slash, and the key. So it is
kept, inherited, merged and exported like any other; only where it is shown differs: after the prompt, not in it, so
that a frozen prompt stays as it is.
"""

from __future__ import annotations

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
    if len(whole) > LONGEST_LABEL:
        raise InvalidEntry("document", f"must have at most {LONGEST_LABEL - len(label) - 1} characters")
    return whole


def fetched(spec: BlockSpec, call: str, *arguments: Any) -> Any:
    """Ask a provider; raises InvalidEntry for whatever goes wrong in it."""
    try:
        return getattr(spec.provider, call)(*arguments)
    except Exception as error:
        said = strict.shown(str(error)) if str(error) else ""
        why = f"the provider of {spec.label!r} failed: {type(error).__name__} {said}".rstrip()
        raise InvalidEntry("document", why) from error


def listed(spec: BlockSpec) -> list[tuple[str, str]]:
    """Return what a provider lists, checked; raises InvalidEntry when it fails or lists what cannot be shown."""
    found = []
    given = fetched(spec, "list")
    try:
        for key, description in given:
            label_of(spec.label, key)
            found.append((key, strict.text(description or "", "description", empty=True)))
    except InvalidEntry:
        raise
    except Exception as error:
        why = f"the provider of {spec.label!r} must list pairs of a key and a description: {error}"
        raise InvalidEntry("document", why) from error
    return found


def provided(specs: Sequence[BlockSpec], *, live: bool) -> list[BlockSpec]:
    """Return the declared blocks, those with a provider with the list of their documents as text.

    One whose list cannot be had says so if the prompt is rendered ``live``; what is to be kept raises InvalidEntry.
    """
    found = []
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
        found.append(spec)
    return found


def _line(key: str, description: str) -> str:
    # One line each, so that no description can pass for another document's.
    said = " ".join(description.split())
    return f"- {key}: {said[:_LONGEST_LINE]}" if said else f"- {key}"


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
        return payloads.Block(label=label_of(self.label, self.name), op=op, text=self.text, read_only=True)

    def content(self) -> Any:
        """Return the document and what is done: a retry may find that the provider has another text by now."""
        return self._payload().content()

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Refuse to unload what is not loaded, and to load more than the block holds."""
        payload = self._payload()
        before = look.slot(slots.BLOCK + payload.label)
        if self.text is None and (not isinstance(before, payloads.Block) or before.text is None):
            raise InvalidEntry("document", f"{self.name!r} of {self.label!r} is not loaded")
        if self.text is not None and self.max_tokens is not None:
            held = {slot: entry for slot, _, entry in look.slots(f"{slots.BLOCK}{self.label}/")}
            held[slots.BLOCK + payload.label] = payload
            tokens = sum(
                self.counter(one.text) for one in held.values() if isinstance(one, payloads.Block) and one.text
            )
            if tokens > self.max_tokens:
                why = f"takes {tokens} tokens with what is loaded; block {self.label!r} holds {self.max_tokens}"
                raise InvalidEntry("text", f"{why}: unload something first")
        return Planned(payload, head.place)


def loaded(specs: Sequence[BlockSpec], found: Mapping[str, tuple[int, Any]], counter: Counter) -> list[Loaded]:
    """Return the documents that are loaded, in the order in which they were."""
    documents = []
    for label, (seq, payload) in sorted(found.items(), key=lambda one: one[1][0]):
        spec = provider_of(label, specs)
        if (
            spec is not None
            and label != spec.label
            and isinstance(payload, payloads.Block)
            and payload.text is not None
        ):
            key = label.removeprefix(f"{spec.label}/")
            documents.append(Loaded(spec.label, key, payload.text, counter(payload.text), seq))
    return documents


def shown_documents(documents: Sequence[Loaded]) -> str:
    """Return loaded documents as a model is shown them, each fenced so that its end cannot be mistaken."""
    parts = []
    for one in documents:
        longest = max((len(run) for run in re.findall("~+", one.text)), default=0)
        fence = "~" * max(3, longest + 1)
        parts.append(f"Loaded from {one.label}: {one.key}\n{fence}\n{one.text}\n{fence}")
    return "\n\n".join(parts)
