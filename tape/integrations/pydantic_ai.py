"""Pydantic AI: a ``ConversationStore`` that keeps conversations on tapes, as messages, branches and forks.

A conversation is a tape, its record a slot of state on it. An entry is a message with the entry's id; the scope is the
tape's owner; a branch is a switch of the head; a fork is a fork of the tape. All of a save is one transaction. The step
store of its harness is in ``tape.integrations.pydantic_ai_harness``, with an extra of its own, because the harness asks
for one release of Pydantic AI, which may not have conversation stores yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, TypeAlias

from pydantic import TypeAdapter
from pydantic_ai import conversation_store as base
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelMessagesTypeAdapter

import tape
from tape.integrations.histories import readable, tape_id, unzipped
from tape.integrations.opening import AsyncAdapter, StoreLike, awaited, delete
from tape.integrations.pydantic_messages import NAME, from_tape, to_tape

__all__ = ["TapeConversationStore"]

_SLOT = "pydantic-ai.record"
_KEPT = 4096
"""How many heads are kept in memory with the tapes that they were last found on."""
_ATTEMPTS = 8
Entries: TypeAlias = Sequence[ConversationEntry]
_RECORD: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)


class TapeConversationStore(AsyncAdapter, base.ConversationStore):
    """Conversations of Pydantic AI on tapes: ``TapeConversationStore("agent.db")``, then ``load``, run and ``save``.

    ``store`` is a Store, an AsyncStore or a URL. A save is written in one step, all of it or nothing, and refused with
    ``ConversationConflict`` if somebody else saved meanwhile. ``delete`` purges the conversation's tape; one that has
    forks is hidden until the last of them is deleted.
    """

    def __init__(self, store: StoreLike) -> None:
        super().__init__(store)
        self._places: dict[str | None, str] = {}

    @awaited
    def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None."""
        store = self._connected.store
        id = tape_id(store, NAME, conversation_id)
        held = _held(store.tape(id))
        if held is None:
            return None
        with readable(id, 0):
            record = _RECORD.validate_python(held)
        if len(self._places) > _KEPT:
            self._places.clear()
        self._places.update(dict.fromkeys([record.head_id, *record.branches], id))
        return record

    @awaited
    def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records, or those of a scope, the one saved last first."""
        return [] if limit is not None and limit <= 0 else _records(self._connected.store, scope, limit)

    @awaited
    def write_record(
        self, record: ConversationRecord, *, new_entries: Entries = (), expected_revision: str | None
    ) -> None:
        """Write a record and its new entries in one transaction.

        Raises ConversationConflict, with nothing written, unless the stored revision is the expected one.
        """
        dumps = ModelMessagesTypeAdapter.dump_python([entry.message for entry in new_entries], mode="json")
        messages, value = [to_tape(dump) for dump in dumps], tape.to_strict(_RECORD.dump_python(record, mode="json"))
        tried = False

        def save(store: tape.Store) -> None:
            nonlocal tried
            again, tried = tried, True
            chat = store.tape(tape_id(store, NAME, record.conversation_id))
            held = _held(chat)
            revision = None if held is None else held["revision"]
            if again and revision == record.revision:
                # The first try was committed, and its reply was lost.
                return
            if revision != expected_revision:
                raise ConversationConflict(record.conversation_id)
            try:
                head = _begin(store, chat, record, new_entries) if held is None else held["head_id"]
                for begin, end in pairwise(_breaks(new_entries)):
                    ids = [entry.id for entry in new_entries[begin:end]]
                    chat.extend(**unzipped(messages[begin:end]), ids=ids, parent=new_entries[begin].parent_id)
                    head = ids[-1]
                if head != record.head_id:
                    chat.switch(record.head_id)
            except (tape.UnknownMessage, tape.TapeExists, tape.TapeNotFound) as error:
                # What it goes on from, or the tape kept for its forks, was deleted meanwhile; or someone else began it.
                raise ConversationConflict(record.conversation_id) from error
            chat.put(_SLOT, {"tape": chat.id, "record": value})

        self._connected.store.transaction(save)

    @awaited
    def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Purge a conversation with its messages; what its forks inherit stays for them.

        Raises ConversationConflict unless the stored revision is the expected one.
        """
        store = self._connected.store
        chat = store.tape(tape_id(store, NAME, conversation_id))
        for _ in range(_ATTEMPTS):
            # Forked, saved or deleted meanwhile: looked at again.
            with suppress(tape.HeadMoved, tape.TapeNotFound):
                now = chat.at()
                held, head = _held(now), now.info().head
                if held is None or held["revision"] != expected_revision:
                    break
                delete(store, chat.id, expected_head=head)
                return
        raise ConversationConflict(conversation_id)

    @awaited
    def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return one entry. Raises KeyError if there is none."""
        return _history(self._connected.store, entry_id, 1, self._places.get(entry_id))[0]

    @awaited
    def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to one, or only the last of them, by one query."""
        if head_id is None or (limit is not None and limit <= 0):
            return []
        return _history(self._connected.store, head_id, limit, self._places.get(head_id))


# -- reading


def _held(chat: tape.Snapshot) -> dict[str, Any] | None:
    """Return the record that a tape has for itself; a fork that somebody else made has that of its parent."""
    value = chat.state(_SLOT)
    with readable(chat.id, 0):
        return None if value is None or value["tape"] != chat.id else dict(tape.from_strict(value["record"]))


def _records(store: tape.Store, scope: str | None, limit: int | None) -> list[ConversationRecord]:
    records: dict[str, ConversationRecord] = {}
    owner = None if scope is None else _owner(store, scope)
    order = "created" if limit is None else "updated"
    for info in store.tapes(owner=owner, agent=NAME, order=order):
        if limit is not None and len(records) >= limit:
            # A tape is written when its record is, or later: those that follow have older ones.
            times = sorted(record.updated_at for record in records.values())
            if info.updated_at is not None and info.updated_at < times[-limit]:
                break
        held = _held(store.tape(info.id))
        with readable(info.id, 0):
            if held is not None and scope in (None, held["scope"]):
                records[info.id] = _RECORD.validate_python(held)
    return sorted(records.values(), key=lambda record: record.updated_at, reverse=True)[:limit]


def _history(store: tape.Store, head: str, limit: int | None, hint: str | None) -> list[ConversationEntry]:
    for chat in _holders(store, head, hint):
        with suppress(tape.UnknownMessage):
            path = list(chat.messages(branch=head, limit=limit))
            with readable(chat.id, 0):
                messages = ModelMessagesTypeAdapter.validate_python([from_tape(message) for message in path])
            pairs = zip(path, messages, strict=True)
            return [ConversationEntry(id=at.id, parent_id=at.parent, message=said) for at, said in pairs]
    raise KeyError(head)


def _holders(store: tape.Store, entry: str, hint: str | None) -> Iterator[tape.Tape]:
    """Yield the tapes on which an entry may be."""
    if hint is not None:
        yield store.tape(hint)
    for message in store.messages_by_id(entry):
        if message.tape.startswith((f"{NAME}/", f"{NAME}~/")):
            yield store.tape(message.tape)
    # On a deleted conversation that has forks.
    for gone in store.tapes(agent=NAME, hidden=True):
        for fork in store.tapes(parent=gone.id):
            yield store.tape(fork.id)


# -- writing


def _breaks(entries: Entries) -> list[int]:
    """Return where a new entry does not follow the one before it, and the end."""
    breaks = [n for n, entry in enumerate(entries) if n == 0 or entry.parent_id != entries[n - 1].id]
    return [*breaks, len(entries)]


def _begin(store: tape.Store, chat: tape.Tape, record: ConversationRecord, entries: Entries) -> str | None:
    """Make the tape of a conversation that is not there, with what it goes on from; returns its head."""
    base = entries[0].parent_id if entries else record.head_id
    owner = _owner(store, record.scope)
    source = None if base is None else _source(store, record, base)
    try:
        store.get(chat.id)
        # Somebody made one of this id, which is no conversation.
        raise tape.TapeExists(chat.id)
    except tape.TapeHidden:
        _bring_back(chat, owner, _path(source, base))
    except tape.TapeNotFound:
        name = tape.as_id(record.conversation_id)
        if source is None or source.info().owner != owner:
            copied = _copied(_path(source, base))
            store.create(chat.id, name=name, owner=owner, agent=NAME, reuse=True, **copied)
        else:
            source.fork(chat.id, at=base, name=name, reuse=True)
    return base


def _source(store: tape.Store, record: ConversationRecord, base: str) -> tape.Tape:
    """Return a tape with the entry that the conversation goes on from: that of the forked one, if it has it."""
    forked = record.forked_from
    hint = None if forked is None else tape_id(store, NAME, forked)
    for chat in _holders(store, base, hint):
        if chat.find(base) is not None:
            return chat
    raise tape.UnknownMessage(record.conversation_id, base)


def _bring_back(chat: tape.Tape, owner: str | None, path: list[tape.Message]) -> None:
    """Show the tape of a deleted conversation that was kept for its forks again, with nothing but ``path``."""
    chat.unhide()
    if chat.info().owner != owner:
        # What is on it is another's.
        raise tape.TapeExists(chat.id)
    there = [message.id for message in path if chat.find(message.id) is not None]
    chat.clear()
    if there:
        chat.restore(*there)
    chat.switch(there[-1] if there else None)
    if rest := path[len(there) :]:
        chat.extend(**_copied(rest), parent=rest[0].parent)


def _path(source: tape.Tape | None, base: str | None) -> list[tape.Message]:
    return [] if source is None else source.messages(branch=base)


def _copied(path: list[tape.Message]) -> dict[str, Any]:
    """Return messages as ``extend`` and ``create`` take them."""
    ids, metas = [message.id for message in path], [message.meta for message in path]
    return {"messages": [message.to_dict() for message in path], "ids": ids, "metas": metas}


# -- tapes


def _owner(store: tape.Store, scope: str | None) -> str | None:
    """Return the owner of a scope's tapes: the scope, unless the store has an owner."""
    return store.owner if store.owner is not None or scope is None else tape.as_id(scope)
