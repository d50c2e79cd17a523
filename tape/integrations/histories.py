"""What adapters of plain chat histories share: a tape per conversation, the framework's objects beside its messages.

A message on the tape is one that any reader understands. What else the framework's object says is kept in the
message's meta, without what the message says already, so that the object comes back as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar, cast
from urllib.parse import unquote

import tape
from tape import Tape, TapeInfo
from tape.integrations.opening import Adapter, StoreLike

__all__ = ["Histories", "Pair", "copying", "keep", "kept", "readable", "recorded", "tape_id", "unzipped"]

_MOST_KNOWN = 10_000
"""Conversations that an adapter remembers to be there."""

M = TypeVar("M")
R = TypeVar("R")
Pair = tuple[dict[str, Any], dict[str, Any]]
"""A message and its meta."""


class Histories(Adapter):
    """The conversations of one framework: tapes whose ids begin with its name, and whose agent it is."""

    _framework: ClassVar[str]
    _known: set[str]
    """Tapes that are there, so that messages are written to them without looking, and without a transaction."""

    def __init__(self, store: StoreLike) -> None:
        super().__init__(store)
        self._known = set()

    def _id(self, *names: str) -> str:
        return tape_id(self._connected.store, self._framework, *names)

    def _tape(self, *names: str) -> Tape:
        """Return the tape of a conversation, to read."""
        return self._connected.store.tape(self._id(*names))

    def _write(self, work: Callable[[Tape], R], *names: str) -> R:
        """Run ``work`` with the conversation's tape, made if it is not there, in one transaction."""
        id, meta = self._id(*names), {self._framework: tape.to_strict(names[-1])}
        facts: Any = {"agent": self._framework, "meta": meta, "exists_ok": True, "reuse": True}
        return self._connected.store.transaction(lambda store: work(store.create(id, **facts)))

    def _extend(self, name: str, pairs: Sequence[Pair]) -> None:
        """Write messages, all of them or none."""
        if pairs and (id := self._id(name)) in self._known:
            # Purged meanwhile, it is made anew.
            with suppress(tape.TapeNotFound):
                self._connected.store.tape(id).extend(**unzipped(pairs))
                return
        if pairs:
            self._write(lambda chat: chat.extend(**unzipped(pairs)), name)
            if self._connected.own and len(self._known) < _MOST_KNOWN:
                self._known.add(id)

    def _names(self) -> Iterator[tuple[str, TapeInfo]]:
        """Yield the conversations, newest first."""
        for info in self._connected.store.tapes(agent=self._framework):
            named = (info.meta or {}).get(self._framework)
            # A fork has no meta of its own: its name is what its id says, if that is a name's.
            name = unquote(info.id.removeprefix(self._id("")))
            if named is not None:
                with suppress(tape.InvalidEntry):
                    name = tape.from_strict(named)
            # A tape from elsewhere may say anything in its meta.
            if isinstance(name, str) and (named is not None or self._id(name) == info.id):
                yield name, info


def tape_id(store: tape.Store, kind: str, *names: str) -> str:
    """Return the id of the tape that a framework knows by these names; two owners of stores may have equal ones."""
    return tape.as_id(kind, *names) if store.owner is None else tape.as_id(f"{kind}~", store.owner, *names)


@contextmanager
def readable(id: str, seq: int) -> Iterator[None]:
    """Raise Corrupt for an entry that its adapter did not write: a tape may come from a file, and hold anything."""
    try:
        yield
    except Exception as error:
        if isinstance(error, tape.TapeError) and not isinstance(error, tape.InvalidEntry | tape.UnknownMessage):
            raise
        raise tape.Corrupt(id, seq, f"the entry cannot be read: {type(error).__name__}: {error}") from error


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
    return clean, {framework: tape.to_strict(rest)}


def kept(framework: str, message: tape.Message, *shared: str) -> dict[str, Any] | None:
    """Return what ``keep`` was given as ``whole``, or None for a message that was not written by the framework.

    ``shared`` are the fields that the message may have from it.
    """
    rest = (message.meta or {}).get(framework)
    if rest is None:
        return None
    return {**{field: message.data[field] for field in shared if field in message.data}, **tape.from_strict(rest)}


def copying(model: M) -> Callable[[dict[str, Any]], M]:
    """Return what makes copies of a Pydantic model that has no private attributes, each with other fields.

    They are as ``model_copy`` makes them. A long history has thousands, for which that would take three times as long.
    """
    kind: Any = type(model)
    new, put, held = object.__new__, object.__setattr__, model.__dict__
    names, extra, private = (getattr(kind, f"__pydantic_{it}__").__set__ for it in ("fields_set", "extra", "private"))

    def copy(fields: dict[str, Any]) -> M:
        made = new(kind)
        put(made, "__dict__", {**held, **fields})
        names(made, set(fields))
        extra(made, None)
        private(made, None)
        return cast(M, made)

    return copy


def recorded(framework: str, chat: Tape) -> Iterator[tuple[Any, tape.Message | None]]:
    """Yield what was kept of the framework's objects since the last clear, in order, with the messages among them."""
    view = {(message.tape, message.seq): message for message in chat.messages()}
    cleared = next(chat.entries(kinds=["clear"], reverse=True, inherited=True, limit=1), None)
    pairs: list[tuple[tape.Entry, tape.Message | None]] = []
    for after in (cleared or 0, 0):
        pairs = [(entry, view.get((entry.tape, entry.seq))) for entry in chat.entries(after=after, inherited=True)]
        if sum(message is not None for _, message in pairs) == len(view):
            # Otherwise the clear was undone.
            break
    for entry, message in pairs:
        beside = tape.from_strict(((message or entry).meta or {}).get(framework))
        if message is not None or (beside is not None and entry.kind in ("event", "anchor")):
            yield beside, message
