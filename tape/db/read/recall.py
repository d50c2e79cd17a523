"""Recalling a recorded context: what the model saw then, from the entries that its manifest names."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from tape.core import strict, typed
from tape.core.context.build import Context, ContextInputs
from tape.core.context.policy import STANDARD, Item, Shaped
from tape.core.context.weigh import Scale
from tape.core.entries import payloads
from tape.core.records import Anchor, Message
from tape.db.read.entries import anchor_at
from tape.db.view.tape_view import TapeView
from tape.db.view.values import decoded
from tape.errors import Corrupt, InvalidEntry

__all__ = ["CONTEXT", "Recalled", "recall"]

CONTEXT = "tape.context"
"""The event that records a context's manifest."""


class Recalled(Struct, frozen=True):
    """A recorded context, built again from its manifest: what the model saw then."""

    messages: list[dict[str, Any]]
    prompt: str | None
    anchor: Anchor | None
    manifest: dict[str, Any]
    checkpoint: str | None = None
    """What the anchor told the model, as it was rendered then; None when that was not recorded."""
    documents: str = ""
    """What was loaded from the providers of blocks then."""

    def to_openai(self, api: str = "chat") -> Any:
        """Return the request for OpenAI as it was; see ``Context.to_openai``."""
        return self._context().to_openai(api)

    def to_anthropic(self) -> dict[str, Any]:
        """Return the request to Anthropic as it was; see ``Context.to_anthropic``."""
        return self._context().to_anthropic()

    def _context(self) -> Context:
        """Return a context that shows the same, for rendering: one set of rules for what is and what was."""
        items = [Item(Message("", "", data, None, 0, 0, 0), 0) for data in self.messages]
        view = ContextInputs(items, self.anchor, [], [], self.prompt, False, 0, "", checkpoint=self.checkpoint)
        view.documents = self.documents
        return Context(view, Shaped(items, []), STANDARD, None, Scale(None))


def recall(view: TapeView, seq: int) -> Recalled:
    """Return a recorded context as it was, from the entries that its manifest names."""
    row = view.tx.one(view.sql.body, (view.number, seq))
    entry = decoded(row) if row is not None and row.payload is not None else None
    if not isinstance(entry, payloads.Event) or not _is_context(entry):
        raise not_recorded(view.tape, seq)
    manifest = _manifest(entry.data, view.tape, seq)
    messages: list[dict[str, Any]] = []
    for item in manifest.included:
        messages += [item] if isinstance(item, dict) else _messages(view, *item)
    anchor = None
    if manifest.anchor is not None:
        name, at = manifest.anchor
        anchor_row = view.tx.one(view.sql.entry, (_number(view, name), at))
        if anchor_row is not None:
            anchor = anchor_at(view, name, anchor_row)
            if manifest.stale is not None:
                anchor = msgspec.structs.replace(anchor, stale=manifest.stale)
    return Recalled(messages, manifest.prompt, anchor, entry.data, manifest.checkpoint, manifest.documents)


def not_recorded(tape: str, seq: int) -> InvalidEntry:
    """Return the error of whoever asks for a context that was not recorded."""
    return InvalidEntry("seq", f"no context was recorded at seq {seq} of tape {tape!r}")


def _messages(view: TapeView, tape: str, first: int, last: int) -> list[dict[str, Any]]:
    """Return the messages in a range of entries."""
    messages = []
    for row in view.tx.all(view.sql.entries_after, (_number(view, tape), first - 1, last, last - first + 1)):
        if row.payload is None:
            raise Corrupt(tape, row.seq, "the entry was erased")
        messages.append(payloads.body_of(row.kind, row.version, row.payload, row.key).message)
    return messages


def _number(view: TapeView, name: str) -> int:
    if name != view.tape and view.ancestry is None:
        raise Corrupt(name, 0, "the tape is not an ancestor")
    return view.number_of(None if name == view.tape else name)


def _is_context(entry: payloads.Event) -> bool:
    """Whether an event holds a manifest; anyone may record an event of that name, and a file may hold anything."""
    data = entry.data
    if entry.name != CONTEXT or not isinstance(data, dict) or not {"included", "anchor", "prompt"} <= data.keys():
        return False
    included, anchor = data["included"], data["anchor"]
    if not isinstance(included, list) or not (anchor is None or _names(anchor, 1)):
        return False
    return all(isinstance(item, dict) or (_names(item, 2) and item[1] <= item[2]) for item in included)


def _names(value: Any, seqs: int) -> bool:
    """Whether a value is the name of a tape with so many seqs."""
    if not isinstance(value, list) or len(value) != seqs + 1 or type(value[0]) is not str:
        return False
    return all(type(seq) is int and 0 < seq < strict.MAX_INT for seq in value[1:])


class _Manifest(Struct):
    """What of a recorded manifest is needed to build the context again."""

    included: list[dict[str, Any] | tuple[str, int, int]]
    prompt: str | None
    anchor: tuple[str, int] | None
    checkpoint: str | None = None
    """None in a manifest that was recorded before it was kept: then it is rendered from the anchor."""
    stale: bool | None = None
    documents: str = ""


def _manifest(data: Any, tape: str, seq: int) -> _Manifest:
    try:
        return typed.convert(data, _Manifest)
    except msgspec.ValidationError as error:
        raise InvalidEntry("seq", f"the entry at seq {seq} of tape {tape!r} has no valid manifest: {error}") from None
