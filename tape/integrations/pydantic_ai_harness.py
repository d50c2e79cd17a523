"""Pydantic AI Harness: a step store for ``StepPersistence``, and a ``HistorySource`` for ``ConversationSearch``.

A run is a tape. Its events are events, its record and each tool effect a slot of state. The messages of a snapshot are
messages of the tape: each is written once, however many snapshots hold it, and one that was changed begins a branch.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai_harness.conversation_search import SnapshotHistorySource
from pydantic_ai_harness.step_persistence import ContinuableSnapshot, RunRecord, StepEvent, ToolEffectRecord

import tape
from tape.integrations.histories import readable, tape_id, unzipped
from tape.integrations.opening import AsyncAdapter, StoreLike, awaited
from tape.integrations.pydantic_messages import from_tape, to_tape

__all__ = ["TapeStepStore"]

_AGENT = "pydantic-ai-run"
_RUN = "pydantic-ai.run"
_EFFECT = "pydantic-ai.effect/"
_EVENT = "pydantic-ai.event."
_SNAPSHOT = "pydantic-ai.snapshot."
_STATES = ("complete", "interrupted")
_KEPT = 32
"""How many runs are kept in memory with their last snapshot, so that the next is compared without reading."""

Json = dict[str, Any]
Written = tuple[list[str], list[Json]]
"""The messages of a snapshot: their ids on the tape, and their JSON."""

_runs: TypeAdapter[RunRecord] = TypeAdapter(RunRecord)
_events: TypeAdapter[StepEvent] = TypeAdapter(StepEvent)
_effects: TypeAdapter[ToolEffectRecord] = TypeAdapter(ToolEffectRecord)
_facts: TypeAdapter[ContinuableSnapshot] = TypeAdapter(ContinuableSnapshot)


class TapeStepStore(AsyncAdapter):
    """Runs of Pydantic AI's harness on tapes: ``StepPersistence(store=TapeStepStore("agent.db"))``.

    ``store`` is a Store, an AsyncStore or a URL. All snapshots are kept. An event or a snapshot whose idempotency key
    is known is not written again. A run id that another registration has claimed is refused with TapeExists.
    """

    def __init__(self, store: StoreLike) -> None:
        super().__init__(store)
        self._known: set[str] = set()
        self._last: OrderedDict[str, Written] = OrderedDict()

    # -- runs

    @awaited
    def register_run(self, record: RunRecord) -> None:
        """Write the record of a run. Raises TapeExists if it has another registration."""
        id = self._opened(record.run_id).id

        def write(store: tape.Store) -> None:
            chat = store.tape(id)
            before = _read(_runs, chat, chat.state(_RUN))
            claims = {record.registration_id, None if before is None else before.registration_id} - {None}
            if len(claims) > 1:
                raise tape.TapeExists(id)
            chat.put(_RUN, _storable(_runs, record))
            chat.label(_AGENT, *_labels(record.parent_run_id, record.conversation_id))

        self._connected.store.transaction(write)

    @awaited
    def get_run(self, *, run_id: str) -> RunRecord | None:
        """Return the record of a run, or None."""
        chat = self._run(run_id)
        return _read(_runs, chat, chat.state(_RUN))

    @awaited
    def list_runs(self, *, parent_run_id: str | None = None, conversation_id: str | None = None) -> list[RunRecord]:
        """Return the runs, or those of a parent or a conversation, the one started first first."""
        store, label = self._connected.store, [*_labels(parent_run_id, conversation_id), _AGENT][0]
        chats = [store.tape(info.id) for info in store.tapes(label=label)]
        runs = [_read(_runs, chat, chat.state(_RUN)) for chat in chats]
        runs = [run for run in runs if run is not None and parent_run_id in (None, run.parent_run_id)]
        runs = [run for run in runs if conversation_id in (None, run.conversation_id)]
        return sorted(runs, key=lambda run: run.started_at)

    # -- events and tool effects

    @awaited
    def append_event(self, event: StepEvent) -> None:
        """Append an event, unless one with its key is there."""
        key = _key("event", event.idempotency_key)
        # The same event when it is sent again: only its time is another one.
        with suppress(tape.ProvenanceConflict):
            self._opened(event.run_id).event(f"{_EVENT}{event.kind}", _storable(_events, event), key=key)

    @awaited
    def list_events(self, *, run_id: str) -> list[StepEvent]:
        """Return the events of a run, in order."""
        chat = self._run(run_id)
        payloads: list[Any] = [entry.payload for entry in chat.entries(kinds=["event"])]
        return [_read(_events, chat, event.data) for event in payloads if event.name.startswith(_EVENT)]

    @awaited
    def record_tool_effect(self, record: ToolEffectRecord) -> None:
        """Write how a tool call stands."""
        self._opened(record.run_id).put(_effect_slot(record.tool_call_id), _storable(_effects, record))

    @awaited
    def get_tool_effect(self, *, run_id: str, tool_call_id: str) -> ToolEffectRecord | None:
        """Return how a tool call stands, or None."""
        chat = self._run(run_id)
        return _read(_effects, chat, chat.state(_effect_slot(tool_call_id)))

    @awaited
    def list_unresolved_tool_effects(self, *, run_id: str) -> list[ToolEffectRecord]:
        """Return the tool calls of a run that were started and did not end, the oldest first."""
        chat = self._run(run_id)
        effects = [_read(_effects, chat, value) for value in chat.states(prefix=_EFFECT).values()]
        return sorted(
            (effect for effect in effects if effect and effect.status == "started"), key=lambda each: each.started_at
        )

    # -- snapshots

    @awaited
    def save_snapshot(self, snapshot: ContinuableSnapshot) -> None:
        """Write a snapshot, and those of its messages that the one before does not have, in one transaction."""
        id, place = self._opened(snapshot.run_id).id, _sequence(snapshot.idempotency_key)
        dumps = ModelMessagesTypeAdapter.dump_python(snapshot.messages, mode="json")
        # Known before the first try, so that another one finds what the first has written.
        key = _key("snapshot", snapshot.idempotency_key) or f"snapshot/{tape.new_id()}"
        last = self._last.pop(id, ([], []))

        def write(store: tape.Store) -> list[str] | None:
            chat = store.tape(id)
            newest = _newest(chat, _STATES)
            before = {} if newest is None else _data(newest)
            high = before.get("high")
            if (place is not None and high is not None and place < high) or chat.find_entry(key=key) is not None:
                # There already, or older than one that is.
                return None
            ids = _shared(chat, before.get("head"), last, dumps)
            if rest := [to_tape(dump) for dump in dumps[len(ids) :]]:
                receipts = chat.extend(**unzipped(rest), parent=ids[-1] if ids else None)
                ids += [receipt.message_id for receipt in receipts if receipt.message_id is not None]
            data = _storable(_facts, replace(snapshot, messages=[]))
            data |= {"head": ids[-1] if ids else None, "high": high if place is None else place}
            chat.event(f"{_SNAPSHOT}{snapshot.state}", data, key=key)
            return ids

        if (ids := self._connected.store.transaction(write)) is not None:
            self._last[id] = ids, dumps
            while len(self._last) > _KEPT:
                self._last.popitem(last=False)

    @awaited
    def latest_snapshot(self, *, run_id: str, include_interrupted: bool = False) -> ContinuableSnapshot | None:
        """Return the newest snapshot that is complete, or the newest of all."""
        chat = self._run(run_id)
        newest = _newest(chat, _STATES if include_interrupted else _STATES[:1])
        return None if newest is None else _snapshot(chat, newest, {})

    @awaited
    def list_snapshots(self, *, run_id: str, include_interrupted: bool = False) -> list[ContinuableSnapshot]:
        """Return the snapshots of a run in the order in which they were written."""
        chat, known = self._run(run_id), dict[str, ModelMessage]()
        states = _STATES if include_interrupted else _STATES[:1]
        entries = [entry for state in states for entry in chat.entries(name=f"{_SNAPSHOT}{state}")]
        return [_snapshot(chat, entry, known) for entry in sorted(entries, key=lambda entry: entry.seq)]

    async def run_history(self, *, run_id: str) -> list[ModelMessage]:
        """Return all that was said in a run, also what compaction left out later, without its summaries."""
        return await SnapshotHistorySource(self).run_history(run_id=run_id)

    # -- tapes

    def _run(self, run_id: str) -> tape.Tape:
        store = self._connected.store
        return store.tape(tape_id(store, _AGENT, run_id))

    def _opened(self, run_id: str) -> tape.Tape:
        """Return the tape of a run to write to."""
        chat = self._run(run_id)
        if chat.id not in self._known:
            with suppress(tape.TapeExists):
                self._connected.store.create(chat.id, agent=_AGENT, name=tape.as_id(run_id))
            self._known.add(chat.id)
        return chat


def _shared(chat: tape.Tape, head: str | None, last: Written, dumps: list[Json]) -> list[str]:
    """Return the ids of the first messages, which the last snapshot has as well."""
    ids, held = last
    if (ids[-1] if ids else None) == head:
        return [id for id, _, _ in takewhile(lambda said: said[1] == said[2], zip(ids, held, dumps, strict=False))]
    pairs = zip([] if head is None else chat.messages(branch=head), dumps, strict=False)
    same = takewhile(lambda pair: (pair[0].data, pair[0].meta) == to_tape(pair[1]), pairs)
    return [message.id for message, _ in same]


def _newest(chat: tape.Tape, states: tuple[str, ...]) -> tape.Entry | None:
    newest = [entry for name in states for entry in chat.entries(name=f"{_SNAPSHOT}{name}", reverse=True, limit=1)]
    return max(newest, key=lambda entry: entry.seq, default=None)


def _data(entry: tape.Entry) -> Json:
    payload: Any = entry.payload
    return dict(payload.data)


def _snapshot(chat: tape.Tape, entry: tape.Entry, known: dict[str, ModelMessage]) -> ContinuableSnapshot:
    """Return a snapshot; messages that are known are not made again."""
    with readable(chat.id, entry.seq):
        data = _data(entry)
        head, _ = data.pop("head"), data.pop("high")
        held = [] if head is None else chat.messages(branch=head)
        new = [message for message in held if message.id not in known]
        made = ModelMessagesTypeAdapter.validate_python([from_tape(message) for message in new])
        known.update(zip((message.id for message in new), made, strict=True))
        return replace(_read(_facts, chat, data), messages=[known[message.id] for message in held])


def _effect_slot(tool_call_id: str) -> str:
    return tape.as_id(f"{_EFFECT}{tool_call_id}", most=200)


def _key(kind: str, key: str | None) -> str | None:
    return None if key is None else tape.as_id(kind, key)


def _sequence(key: str | None) -> int | None:
    """Return the number that a snapshot's key begins with; what has a lower one than the last is old."""
    number = (key or "").partition(":")
    return int(number[0]) if number[1] and number[0].isascii() and number[0].isdigit() else None


def _labels(parent: str | None, conversation: str | None) -> list[str]:
    named = (("parent", parent), ("conversation", conversation))
    return [tape.as_id(_AGENT, kind, name) for kind, name in named if name is not None]


def _read(adapter: TypeAdapter[Any], chat: tape.Tape, value: Any) -> Any:
    with readable(chat.id, 0):
        return None if value is None else adapter.validate_python(tape.from_strict(value))


def _storable(adapter: TypeAdapter[Any], value: Any) -> Json:
    return tape.to_strict(adapter.dump_python(value, mode="json"))
