"""``TapeSaver``: the checkpoints of LangGraph on tapes, one tape per thread."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint import base
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, get_checkpoint_id
from langgraph.checkpoint.serde.base import SerializerProtocol

import tape
from tape.integrations.histories import readable, tape_id
from tape.integrations.langgraph.channels import Channels, conversation, pack, prepared, strict, unpack
from tape.integrations.langgraph.records import LABEL, Record, Thread
from tape.integrations.opening import Adapter, Connected, StoreLike, awaited

__all__ = ["TapeSaver"]

Config: TypeAlias = RunnableConfig | None
Metadata: TypeAlias = base.CheckpointMetadata
_MOST_HANDED = 10_000
_PAGE = 16


class TapeSaver(Adapter, base.BaseCheckpointSaver[str]):
    """Keeps the checkpoints of graphs on tapes; for sync and async graphs alike.

    ``store`` is a ``tape.Store``, a ``tape.AsyncStore`` or a URL. The tape of a thread has the thread's id
    (in the store of an owner, an id of the owner's own), and the messages of the graph are its messages. Calls raise
    the errors of the store, and Corrupt for a checkpoint that cannot be read.

    A tape may come from a file that another program wrote. So a checkpoint is read back with LangGraph's safe types and
    the ``classes`` that the program names: each is a class, or a pair of its module and its name. Anything else comes
    back as plain data, and no function is called. ``serde`` may be a serializer that encrypts, or one of your own; one
    of LangGraph's that calls whatever a checkpoint names is refused with InvalidEntry.
    """

    def __init__(
        self,
        store: StoreLike,
        *,
        serde: SerializerProtocol | None = None,
        classes: Iterable[type | tuple[str, str]] = (),
    ) -> None:
        base.BaseCheckpointSaver.__init__(self, serde=strict(serde, list(classes)))
        self._connected = Connected(store)
        self._handed: OrderedDict[tuple[str, str | None], None] = OrderedDict()
        """What was given out as the latest checkpoint of a thread (None: it had none), by tape and id."""

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the version of a channel after ``current``."""
        before = 0 if current is None else int(str(current).split(".")[0])
        return f"{before + 1:032}.{random.random():016}"

    # -- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the latest of its thread."""
        thread, ns, id = self._place(config)
        if id is None:
            record = thread.latest(ns)
            if not ns:
                self._hand_out(thread, None if record is None else record.id)
            return None if record is None else self._tuple(thread, record)
        # Whoever goes on from this one means it, whatever is the latest.
        self._handed.pop((thread.chat.id, id), None)
        record = None if id in thread.hidden(ns) else thread.find(ns, id)
        return None if record is None else self._tuple(thread, record, config)

    def list(
        self, config: Config, *, filter: dict[str, Any] | None = None, before: Config = None, limit: int | None = None
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a namespace, of a thread or of all threads, the latest first."""
        end = None if before is None else get_checkpoint_id(before)
        id = None if config is None else get_checkpoint_id(config)
        ns = None if config is None else config["configurable"].get("checkpoint_ns")
        streams = (
            zip(itertools.repeat(thread), thread.stream(name), strict=False)
            for thread in (self._threads() if config is None else [self._place(config)[0]])
            for name in (thread.namespaces() if ns is None else [ns])
        )
        tuples = (
            self._tuple(thread, record, metadata=filter)
            for thread, record in heapq.merge(*streams, key=lambda pair: pair[1].id, reverse=True)
            if id in (None, record.id) and (end is None or record.id < end)
        )
        yield from itertools.islice((each for each in tuples if each is not None), limit)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, base.DeltaChannelHistory]:
        """Return the last value of each channel before a checkpoint, and what was written to it since."""
        thread, ns, id = self._place(config)
        record = thread.find(ns, id) if id else thread.latest(ns)
        history: dict[str, base.DeltaChannelHistory] = {name: {"writes": []} for name in channels}
        left, walked = set(channels), set()
        parent = None if record is None else thread.current(record)[0].data.get("parent")
        # Deleted ones count: they stay on the tape, and what came after rests on them.
        while left and parent not in walked and (before := thread.find(ns, parent) if parent else None) is not None:
            walked.add(parent)
            record, writes = thread.current(before)
            with readable(thread.chat.id, record.seq):
                for task, name, value in reversed(writes):
                    if name in left:
                        history[name]["writes"].insert(0, (task, name, unpack(value, self.serde)))
                for name in left & record.data["channels"].keys():
                    history[name]["seed"] = Channels(thread, self.serde).value(record, name)
                    left.remove(name)
            parent = record.data.get("parent")
        return history

    def _tuple(
        self, thread: Thread, record: Record, config: Config = None, metadata: dict[str, Any] | None = None
    ) -> CheckpointTuple | None:
        """Return a checkpoint with its values and the writes that wait; None if its metadata are others."""
        with readable(thread.chat.id, record.seq):
            return self._read(thread, record, config, metadata)

    def _read(
        self, thread: Thread, record: Record, config: Config, metadata: dict[str, Any] | None
    ) -> CheckpointTuple | None:
        record, writes = thread.current(record)
        data, channels = record.data, Channels(thread, self.serde)
        said = unpack(data["metadata"], self.serde)
        if any(said.get(name) != value for name, value in (metadata or {}).items()):
            return None
        values = {name: channels.value(record, name) for name in data["channels"]}
        parent = data.get("parent")
        checkpoint: Checkpoint = unpack(data["checkpoint"], self.serde)
        checkpoint |= {"id": record.id, "channel_values": values}
        return CheckpointTuple(
            config or _config(thread.id, record.ns, record.id),
            checkpoint,
            said,
            _config(thread.id, record.ns, parent) if parent else None,
            [(task, name, unpack(value, self.serde)) for task, name, value in writes],
        )

    # -- writing

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: Metadata, new_versions: base.ChannelVersions
    ) -> RunnableConfig:
        """Record a checkpoint and the messages that are new in it, in one commit.

        Raises HeadMoved when it goes on from what this saver gave out as the latest checkpoint of the thread, and
        another one is the latest by now. One that goes on from a checkpoint asked for by its id is a branch.
        """
        thread, ns, parent = self._place(config)
        said = base.get_checkpoint_metadata(config, metadata)
        rest = {name: value for name, value in checkpoint.items() if name not in ("id", "channel_values")}
        data = {"id": checkpoint["id"], "metadata": pack(said, self.serde), "checkpoint": pack(rest, self.serde)}
        data |= {"parent": parent} if parent else {}
        values = checkpoint["channel_values"].items()
        ready = {name: prepared(value, self.serde) for name, value in values if name in new_versions}
        awaits = not ns and said.get("source") != "fork" and (thread.chat.id, parent) in self._handed

        def write(store: tape.Store) -> None:
            here = Thread(store.tape(thread.chat.id), thread.id)
            newest = here.newest(ns)
            before = newest if newest and parent and newest.data.get("id") == parent else None
            before = here.find(ns, parent) if before is None and parent else before
            if awaits and parent != (newest.top if newest else None):
                raise tape.HeadMoved(here.chat.id, before.seq if before else 0, newest.seq if newest else 0)
            if newest is None:
                here.begin(store, ns)
            channels = Channels(here, self.serde)
            held = channels.write(checkpoint, before, ready)
            _put(here, ns, {**data, "channels": held}, newest, channels.written)

        self._connected.store.transaction(write)
        if not ns:
            self._hand_out(thread, checkpoint["id"])
        return _config(thread.id, ns, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Record what a task wrote, for the checkpoint after the one that a config names."""
        thread, ns, id = self._place(config)
        rows = [(channel, pack(value, self.serde)) for channel, value in writes]
        try:
            thread.put_writes(ns, str(id), task_id, task_path, rows)
        except tape.TapeNotFound:

            def begin(store: tape.Store) -> None:
                Thread(store.tape(thread.chat.id), thread.id).begin(store, "")

            self._connected.store.transaction(begin)
            thread.put_writes(ns, str(id), task_id, task_path, rows)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Make a thread that has all checkpoints of another: a fork of its tape. Raises TapeExists if it is there."""
        source, target = (_tape_id(self._connected.store, id) for id in (source_thread_id, target_thread_id))

        def copy(store: tape.Store) -> None:
            if store.tape(target).info().head:
                raise tape.TapeExists(target)
            Thread(store.get(source).fork(target), str(target_thread_id)).show()

        self._connected.store.transaction(copy)

    def delete_thread(self, thread_id: str) -> None:
        """Purge the tape of a thread. While a copy of it is there, its checkpoints are hidden and its bytes stay."""
        store = self._connected.store
        id = _tape_id(store, thread_id)
        try:
            store.purge(id)
        except tape.TapeNotFound:
            pass
        except tape.TapeInUse:
            self._hide(id)
            store.tape(id).clear(reason="deleted")

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Hide the checkpoints of some runs, on all threads. Their bytes stay on the tapes."""

        def of_runs(record: Record) -> bool:
            return unpack(record.data["metadata"], self.serde).get("run_id") in run_ids

        for thread in list(self._threads()) if run_ids else []:
            self._hide(thread.chat.id, of_runs)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Hide all checkpoints but the latest of each namespace (their bytes stay), or delete the threads."""
        if strategy not in ("keep_latest", "delete"):
            raise tape.InvalidEntry("strategy", f"must be 'keep_latest' or 'delete', not {strategy!r}")
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
            else:
                self._hide(_tape_id(self._connected.store, thread_id), keep=1)

    def _hide(self, id: str, chosen: Callable[[Record], bool] = bool, keep: int = 0) -> None:
        def hide(store: tape.Store) -> None:
            thread = Thread(store.tape(id))
            for ns in thread.namespaces():
                ids: list[str] = []
                for record in itertools.islice(thread.stream(ns), keep, None):
                    with readable(thread.chat.id, record.seq):
                        ids += [record.id] if chosen(record) else []
                thread.hide(ns, ids)

        self._connected.store.transaction(hide)

    # -- threads

    def _place(self, config: RunnableConfig) -> tuple[Thread, str, str | None]:
        """Return the thread, the namespace and the checkpoint that a config names."""
        named, store = config["configurable"], self._connected.store
        thread = Thread(store.tape(_tape_id(store, named["thread_id"])), str(named["thread_id"]))
        return thread, named.get("checkpoint_ns", ""), get_checkpoint_id(config) or None

    def _threads(self) -> Iterator[Thread]:
        store = self._connected.store
        return (Thread(store.tape(info.id)) for info in store.tapes(label=LABEL))

    def _hand_out(self, thread: Thread, id: str | None) -> None:
        self._handed[thread.chat.id, id] = None
        while len(self._handed) > _MOST_HANDED:
            self._handed.popitem(last=False)

    # -- the same, awaited

    aget_tuple = awaited(get_tuple)
    aget_delta_channel_history = awaited(get_delta_channel_history)
    aput = awaited(put)
    aput_writes = awaited(put_writes)
    acopy_thread = awaited(copy_thread)
    adelete_thread = awaited(delete_thread)
    adelete_for_runs = awaited(delete_for_runs)
    aprune = awaited(prune)

    async def alist(
        self, config: Config, *, filter: dict[str, Any] | None = None, before: Config = None, limit: int | None = None
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield the checkpoints of a namespace, of a thread or of all threads, the latest first."""
        tuples = self.list(config, filter=filter, before=before, limit=limit)
        while page := await self._connected.run(lambda _: [*itertools.islice(tuples, _PAGE)]):
            for each in page:
                yield each


def _tape_id(store: tape.Store, thread_id: str) -> str:
    """Return the id of a thread's tape. Two owners may have threads of one id."""
    return tape.as_id(str(thread_id)) if store.owner is None else tape_id(store, LABEL, str(thread_id))


def _config(thread_id: str, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}


def _put(thread: Thread, ns: str, data: dict[str, Any], newest: Record | None, written: str | None) -> None:
    """Record a checkpoint; the end of the conversation in the latest one of the root is the head of the tape."""
    top = None if newest is None else newest.top
    is_latest = top is None or top <= data["id"]
    root = thread.newest("") if ns and written else newest
    earlier = None if root is None else root.data.get("head")
    head = conversation(data["channels"]) if is_latest and not ns else earlier
    if (written or not ns) and head != (written or earlier):
        thread.chat.switch(head)
    data |= {"head": head} if head and not ns else {}
    thread.put(ns, data if is_latest else {**data, "top": top})
