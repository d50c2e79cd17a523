"""What adapters of plain chat histories share: a tape per conversation, the framework's objects beside its messages.

A message on the tape is one that any reader understands. What else the framework's object says is kept in the
message's meta, without what the message says already, so that the object comes back as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tape
from tape import Store, Tape, TapeInfo
from tape.integrations.naming import digest, listed, short
from tape.integrations.opening import Connected, StoreLike

__all__ = ["Pair", "Shelf", "as_json", "from_json", "keep", "kept", "recorded", "unzipped"]

_JSON = "json"
"""The one field of what could not be kept as strict JSON: its text, in which Python's json finds every value again."""

R = TypeVar("R")
Pair = tuple[dict[str, Any], dict[str, Any]]
"""A message and its meta."""


class Shelf(Connected):
    """The conversations of one framework: tapes whose ids begin with its name, and whose agent it is."""

    def __init__(self, store: StoreLike, framework: str) -> None:
        super().__init__(store)
        self.framework = framework

    def id(self, name: str) -> str:
        """Return the id of a conversation's tape. Two owners of stores may have conversations of one name."""
        owner = self.store.owner
        scope = self.framework if owner is None else f"{self.framework}/{digest(owner)}"
        return short(f"{scope}/{name}")

    def tape(self, name: str) -> Tape:
        """Return the tape of a conversation, to read."""
        return self.store.tape(self.id(name))

    def write(self, name: str, work: Callable[[Tape], R]) -> R:
        """Run ``work`` with the conversation's tape, made if it is not there, in one transaction."""
        return self.store.transaction(lambda together: work(self._opened(together, name)))

    def extend(self, name: str, pairs: Sequence[Pair]) -> None:
        """Write messages, all of them or none."""
        if pairs:
            self.write(name, lambda chat: chat.extend(**unzipped(pairs)))

    def names(self) -> Iterator[tuple[str, TapeInfo]]:
        """Yield the conversations, newest first."""
        for info in listed(self.store, agent=self.framework):
            # A fork has no meta of its own: its name is what its id says.
            named = (info.meta or {}).get(self.framework)
            yield info.id.removeprefix(self.id("")) if named is None else from_json(named), info

    def _opened(self, store: Store, name: str) -> Tape:
        try:
            return store.get(self.id(name))
        except tape.TapeNotFound:
            meta = {self.framework: as_json(name)}
            return store.create(self.id(name), agent=self.framework, meta=meta, reuse=True)


def unzipped(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return messages and their meta as ``extend`` takes them."""
    return {"messages": [message for message, _ in pairs], "metas": [meta for _, meta in pairs]}


def keep(framework: str, message: dict[str, Any], whole: dict[str, Any]) -> Pair:
    """Return a message that a tape takes, and the meta from which ``kept`` makes the framework's object again.

    ``whole`` is the object as a dict. A field that the message has from it, the same value, is not kept twice.
    """
    clean, replaced = tape.lenient(message)
    same = () if replaced else {field for field in message if field in whole and whole[field] is message[field]}
    rest = {field: value for field, value in whole.items() if field not in same}
    return clean, {framework: as_json(rest)}


def kept(framework: str, message: tape.Message, *shared: str) -> dict[str, Any] | None:
    """Return what ``keep`` was given as ``whole``, or None for a message that was not written by the framework.

    ``shared`` are the fields that the message may have from it.
    """
    rest = (message.meta or {}).get(framework)
    if rest is None:
        return None
    return {**{field: message.data[field] for field in shared if field in message.data}, **from_json(rest)}


def recorded(chat: Tape) -> list[tuple[tape.Entry, tape.Message | None]]:
    """Return the entries since the last clear, in order: messages in the view, anchors and events."""
    view = {(message.tape, message.seq): message for message in chat.messages()}
    cleared = next(chat.entries(kinds=["clear"], reverse=True, inherited=True, limit=1), None)
    pairs: list[tuple[tape.Entry, tape.Message | None]] = []
    for after in (cleared or 0, 0):
        pairs = [(entry, view.get((entry.tape, entry.seq))) for entry in chat.entries(after=after, inherited=True)]
        if sum(message is not None for _, message in pairs) == len(view):
            # Otherwise the clear was undone.
            break
    return [(entry, message) for entry, message in pairs if message is not None or entry.kind in ("event", "anchor")]


def as_json(value: Any) -> Any:
    """Return a value as strict JSON: as it is, or as a text in which nothing is replaced."""
    clean, replaced = tape.lenient(value)
    if not replaced and not (isinstance(value, dict) and value.keys() == {_JSON}):
        return clean
    try:
        return {_JSON: json.dumps(value, default=_plain)}
    except (TypeError, ValueError, RecursionError):
        return clean


def _plain(value: Any) -> Any:
    """Return an object that Python's json does not know as data."""
    return tape.lenient(value)[0]


def from_json(value: Any) -> Any:
    """Return what ``as_json`` was given."""
    return json.loads(value[_JSON]) if isinstance(value, dict) and value.keys() == {_JSON} else value
