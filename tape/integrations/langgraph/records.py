"""Checkpoints on the tape of their thread: where they stand, and how they are found again.

They are events. Each is found by its name or its key, so that nothing is ever folded:

``langgraph.checkpoint:NS``
    A checkpoint of a namespace; its key is made of namespace and id. Unless it is the latest of its namespace, it names
    the one that is (``top``), so that the newest event leads there. One without ``id`` only does that.
``langgraph.writes:NS:ID``
    Writes that wait for the next checkpoint, one event per call; or the checkpoint, put once more under its id.
``langgraph.namespace``, ``langgraph.hidden``
    A namespace besides the root; checkpoints that were deleted, and stay on the tape.
``langgraph.thread``
    The id of the thread, where it is not that of the tape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key
from msgspec import Struct

import tape

__all__ = ["LABEL", "Record", "Thread"]

LABEL = "langgraph"
_NAMESPACE, _HIDDEN, _THREAD = "langgraph.namespace", "langgraph.hidden", "langgraph.thread"
_LONGEST = 200


class Record(Struct):
    """One of these events."""

    ns: str
    key: str
    seq: int
    """Its entry; for one that a copied thread inherits, the first entry of its tape."""
    data: dict[str, Any]

    @property
    def id(self) -> str:
        """The checkpoint's id."""
        return str(self.data["id"])

    @property
    def top(self) -> str | None:
        """The id of the checkpoint that was the latest when this was recorded."""
        top = self.data.get("top", self.data.get("id"))
        return None if top is None else str(top)


class _Namespace(Struct):
    ns: str


class _Hidden(Struct):
    ns: str
    ids: list[str]


class _ThreadId(Struct):
    thread: str


class _Writes(Struct):
    task: str
    path: str
    writes: list[tuple[int, str, dict[str, Any]]]


class _Top(Struct):
    top: str | None
    head: str | None = None


class _Checkpoint(Struct):
    id: str
    metadata: dict[str, Any]
    checkpoint: dict[str, Any]
    channels: dict[str, dict[str, Any]]
    parent: str | None = None
    thread: str | None = None
    top: str | None = None
    head: str | None = None


_SHAPES: dict[str, type[Struct]] = {_NAMESPACE: _Namespace, _HIDDEN: _Hidden, _THREAD: _ThreadId}
"""The shapes of events that have one name."""
for _kind in (_Namespace, _Hidden, _ThreadId, _Writes, _Top, _Checkpoint):
    # Two threads that convert to a new class at once crash msgspec, so it looks at these now.
    msgspec.json.Decoder(_kind)


def _shape_of(name: str, data: dict[str, Any]) -> type[Struct]:
    """Return what the data of an event must be like."""
    if name in _SHAPES:
        return _SHAPES[name]
    return _Writes if "writes" in data else _Checkpoint if "id" in data else _Top


class Thread:
    """The tape of one thread."""

    def __init__(self, chat: tape.Tape, id: str | None = None) -> None:
        self.chat = chat
        self._id = id

    @property
    def id(self) -> str:
        """The thread's id."""
        if self._id is None:
            held = next(self._events(_THREAD, reverse=True, limit=1), None)
            self._id = self.chat.id if held is None else str(held.data["thread"])
        return self._id

    def newest(self, ns: str) -> Record | None:
        """Return the newest event of a namespace."""
        return next(self._events(_checkpoints(ns), ns, reverse=True, limit=1), None)

    def latest(self, ns: str) -> Record | None:
        """Return the latest checkpoint of a namespace: the one with the greatest id."""
        newest = self.newest(ns)
        if newest is None or newest.top is None:
            return None
        return newest if newest.data.get("id") == newest.top else self.find(ns, newest.top)

    def find(self, ns: str, id: str) -> Record | None:
        """Return a checkpoint as it was first put, whether it was deleted or not."""
        return self.by_key(ns, _key(ns, id))

    def by_key(self, ns: str, key: str) -> Record | None:
        """Return the checkpoint that has a key."""
        entry = self.chat.find_entry(key=key, inherited=True)
        return None if entry is None else self._record(ns, entry)

    def current(self, record: Record) -> tuple[Record, list[tuple[str, str, Any]]]:
        """Return a checkpoint as it was last put, and the packed writes that wait for the next one, in order."""
        writes: dict[tuple[str, int], tuple[str, str, Any]] = {}
        for event in self._events(_attached(record.ns, record.id), record.ns):
            if "writes" not in event.data:
                record = event
                continue
            task, path = event.data["task"], event.data["path"]
            for index, channel, value in event.data["writes"]:
                # What a task wrote holds; an error, an interrupt or an answer to one is replaced.
                if index < 0 or (task, index) not in writes:
                    writes[task, index] = (path, channel, value)
        order = sorted(writes, key=lambda place: writes_sort_key(writes[place][0], *place))
        return record, [(place[0], *writes[place][1:]) for place in order]

    def stream(self, ns: str) -> Iterator[Record]:
        """Yield the checkpoints of a namespace that were not deleted, the latest first."""
        waiting: list[Record] = []
        hidden = self.hidden(ns)
        for record in self._events(_checkpoints(ns), ns, reverse=True):
            if "id" not in record.data:
                continue
            if record.id not in hidden:
                waiting.append(record)
            if record.id == record.top:
                # All that came before it have smaller ids, or were deleted.
                waiting.sort(key=lambda each: each.id)
                while waiting and waiting[-1].id >= record.id:
                    yield waiting.pop()
        yield from sorted(waiting, key=lambda each: each.id, reverse=True)

    def namespaces(self) -> list[str]:
        """Return the namespaces that have checkpoints."""
        return sorted({"", *(event.data["ns"] for event in self._events(_NAMESPACE))})

    def hidden(self, ns: str) -> set[str]:
        """Return the ids of the checkpoints of a namespace that were deleted."""
        return {id for event in self._events(_HIDDEN) if event.data["ns"] == ns for id in event.data["ids"]}

    def _events(self, name: str, ns: str = "", **how: Any) -> Iterator[Record]:
        entries = self.chat.entries(kinds=["event"], name=name, inherited=True, **how)
        return (self._record(ns, entry) for entry in entries)

    def _record(self, ns: str, entry: tape.Entry) -> Record:
        event: Any = entry.payload
        try:
            if entry.kind != "event" or not isinstance(event.data, dict):
                raise TypeError("the data must be an object of an event")
            msgspec.convert(event.data, _shape_of(event.name, event.data))
        except (msgspec.ValidationError, TypeError) as error:
            raise tape.Corrupt(entry.tape, entry.seq, f"the entry cannot be read as a checkpoint: {error}") from error
        return Record(ns, entry.key, entry.seq if entry.tape == self.chat.id else 1, event.data)

    # -- writing

    def begin(self, store: tape.Store, ns: str) -> None:
        """Note a namespace, on a tape made anew if it was purged; the root is noted by the label of the tape."""
        store.create(self.chat.id, exists_ok=True, reuse=True)
        if ns:
            self.chat.event(_NAMESPACE, {"ns": ns}, key=tape.as_id(f"{_NAMESPACE}:{ns}", most=_LONGEST))
        else:
            self.show()

    def show(self) -> None:
        """Let the thread be listed, under its own id."""
        self.chat.label(LABEL)
        if self.id != self.chat.id:
            self.chat.event(_THREAD, {"thread": self.id})

    def put(self, ns: str, data: dict[str, Any]) -> None:
        """Record a checkpoint; one whose id is taken is put once more."""
        try:
            self.chat.event(_checkpoints(ns), data, key=_key(ns, data["id"]))
        except tape.ProvenanceConflict:
            self.chat.event(_attached(ns, data["id"]), data)

    def put_writes(self, ns: str, id: str, task: str, path: str, writes: list[tuple[str, Any]]) -> None:
        """Record what a task wrote."""
        rows = [[WRITES_IDX_MAP.get(channel, index), channel, value] for index, (channel, value) in enumerate(writes)]
        self.chat.event(_attached(ns, id), {"task": task, "path": path, "writes": rows})

    def hide(self, ns: str, ids: list[str]) -> None:
        """Hide checkpoints. The latest that is left is the latest now, and its messages are the conversation."""
        if not ids or (newest := self.newest(ns)) is None:
            return
        self.chat.event(_HIDDEN, {"ns": ns, "ids": ids})
        latest = next(self.stream(ns), None)
        head = None if latest is None else latest.data.get("head")
        self.chat.event(_checkpoints(ns), {"top": None if latest is None else latest.id, "head": head})
        if newest.data.get("head") != head:
            self.chat.switch(head)


def _key(ns: str, id: str) -> str:
    return tape.as_id(f"langgraph:{ns}:{id}", most=_LONGEST)


def _checkpoints(ns: str) -> str:
    return tape.as_id(f"langgraph.checkpoint:{ns}" if ns else "langgraph.checkpoint", most=_LONGEST)


def _attached(ns: str, id: str) -> str:
    return tape.as_id(f"langgraph.writes:{ns}:{id}", most=_LONGEST)
