"""The writes of messages: appended, revised, retracted, and branches chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from msgspec import UNSET

from tape.core import meta, strict
from tape.core.entries import payloads
from tape.core.entries.ids import batch_key, spare_batch_key
from tape.core.messages.objects import MessageLike, as_dict
from tape.core.plan.intents import ChooseHead, Plain
from tape.core.plan.messages import (
    HEAD,
    AddMessage,
    ReviseMessage,
    add_message,
    given_message,
    matching,
    message_intents,
    renew,
    renewed_id,
    upsert_message,
)
from tape.core.plan.retractions import RestoreMessages, RetractMessages
from tape.core.records import Receipt
from tape.db.record.writing import Call
from tape.errors import InvalidEntry
from tape.handles.options import WriteOptions, call_of, public_as
from tape.handles.recorded import Request, recorded, recorded_batch
from tape.handles.snapshot import Snapshot

__all__ = ["MessageWriter", "add_metas"]


@public_as("Tape")
class MessageWriter(Snapshot):
    """What a tape does with its messages."""

    @recorded
    def append(
        self,
        message: MessageLike | None = None,
        /,
        *,
        role: str | None = None,
        content: Any = UNSET,
        id: str | None = None,
        name: str | None = None,
        tool_calls: Any = None,
        tool_call_id: str | None = None,
        parent: str | None = HEAD,
        **options: Unpack[WriteOptions],
    ) -> Request:
        """Append a message behind the head, behind ``parent``, or (``parent=None``) as a new root.

        Pass a dict, an object with ``to_dict()`` or ``model_dump()``, or the usual fields as keywords. Other fields
        need a dict. ``id`` sets the message's id, and the dict's own ``id`` then stays in the data; without it the
        dict's ``id`` is used. The same key (or, without one, the same message id) with the
        same content writes nothing and returns the first receipt; with other content it is a ProvenanceConflict.
        """
        call = call_of(self._id, **options) if options else Call(self._id)
        whole = given_message(message, role, content, name, tool_calls, tool_call_id)
        intent = add_message(whole, id, call.key, parent, self._services.new_id)
        return Request(call, [intent])

    @recorded_batch
    def extend(
        self,
        messages: Iterable[MessageLike],
        *,
        ids: Iterable[str | None] | None = None,
        metas: Iterable[dict[str, Any] | None] | None = None,
        parent: str | None = HEAD,
        **options: Unpack[WriteOptions],
    ) -> Request:
        """Append messages one behind the other, all or none. With ``key``, the n-th is keyed ``key#n``.

        ``ids`` and ``metas`` stand beside the messages, one for each or None: an id beside a message leaves its own
        ``id`` as data, and its meta is added to ``meta``, which is for all of them. The same id twice is InvalidEntry.
        """
        call = call_of(self._id, **options) if options else Call(self._id)
        call.batch = call.key
        intents = message_intents(messages, call.key, self._services.new_id, parent, message_ids=ids)
        add_metas(intents, call.meta, metas)
        return Request(call, intents)

    @recorded
    def upsert(
        self,
        message: MessageLike | None = None,
        /,
        *,
        role: str | None = None,
        content: Any = UNSET,
        id: str | None = None,
        name: str | None = None,
        tool_calls: Any = None,
        tool_call_id: str | None = None,
        **options: Unpack[WriteOptions],
    ) -> Request:
        """Append a message, or revise it if it exists and differs; an equal one is a duplicate.

        The message is passed as in ``append``.
        """
        call = call_of(self._id, **options)
        whole = given_message(message, role, content, name, tool_calls, tool_call_id)
        intent = upsert_message(whole, id, call.key, self._services.new_id)
        return Request(call, [intent])

    @recorded
    def revise(
        self,
        message_id: str,
        message: MessageLike | None = None,
        /,
        *,
        role: str | None = None,
        content: Any = UNSET,
        name: str | None = None,
        tool_calls: Any = None,
        tool_call_id: str | None = None,
        **options: Unpack[WriteOptions],
    ) -> Request:
        """Replace a message, or only the fields given as keywords. An equal one is a duplicate.

        A message keeps its place and its role. The revision's ``meta`` replaces the original's.
        """
        call = call_of(self._id, **options)
        message_id = strict.identifier(message_id, "message_id")
        given = given_message(message, role, content, name, tool_calls, tool_call_id)
        if message is None:
            replacement = {field: strict.encoded(value, field)[1] for field, value in given.items()}
        else:
            plain = dict(given) if isinstance(given, dict) else as_dict(given, "message")
            _, replacement = strict.encoded(plain, "message")
        intent = ReviseMessage(
            key=self._services.keyed(call.key),
            id=message_id,
            message=replacement,
            whole=message is not None,
        )
        return Request(call, [intent])

    @recorded
    def retract(self, *ids: str, reason: str | None = None, **options: Unpack[WriteOptions]) -> Request:
        """Take messages out of the view, with the results of the tool calls they made. They stay on the tape."""
        call = call_of(self._id, **options)
        if not ids:
            raise InvalidEntry("ids", "name the messages to retract, or use clear()")
        intent = RetractMessages(
            key=self._services.keyed(call.key), ids=strict.distinct(ids), reason=strict.reason(reason)
        )
        return Request(call, [intent])

    @recorded
    def restore(self, *ids: str, **options: Unpack[WriteOptions]) -> Request:
        """Bring retracted messages back, with what went along with them; without ids, undo the last clear."""
        call = call_of(self._id, **options)
        intent = RestoreMessages(key=self._services.keyed(call.key), ids=strict.distinct(ids))
        return Request(call, [intent])

    @recorded
    def clear(self, reason: str | None = None, **options: Unpack[WriteOptions]) -> Request:
        """Take every message out of the view at once, on all branches, and end the anchors."""
        call = call_of(self._id, **options)
        intent = Plain(key=self._services.keyed(call.key), payload=payloads.Clear(reason=strict.reason(reason)))
        return Request(call, [intent])

    @recorded
    def switch(self, message_id: str | None, /, **options: Unpack[WriteOptions]) -> Request:
        """Make a message the head: reads end there and the next message goes behind it.

        With None no message is the head: reads are empty and the next message is a new root. All branches stay.
        """
        call = call_of(self._id, **options)
        chosen = None if message_id is None else strict.identifier(message_id, "message_id")
        intent = ChooseHead(key=self._services.keyed(call.key), id=chosen)
        return Request(call, [intent])

    def replace_history(
        self,
        messages: Iterable[MessageLike],
        *,
        ids: Iterable[str | None] | None = None,
        metas: Iterable[dict[str, Any] | None] | None = None,
        reason: str | None = None,
        **options: Unpack[WriteOptions],
    ) -> list[Receipt]:
        """Clear the view and write these messages from a new root, in one step. The old ones stay on the tape.

        A message whose id is on the tape already gets a new one; its entry cites the old as its source. ``ids`` and
        ``metas`` stand beside the messages as in ``extend``.
        """
        call = call_of(self._id, **options)
        key = call.batch = call.key
        adding = message_intents(messages, key, self._services.new_id, None, message_ids=ids)
        for index, intent in enumerate(adding):
            placed = None if intent.generated else self._reader.placed(self._id, intent.id)
            if placed is not None and not (key is not None and self._in_batch(placed, key, index)):
                # With a key the new id is the same at every attempt, or a retry would be other content.
                renew(intent, self._services.new_id() if key is None else renewed_id(key, index))
                intent.source = placed
        add_metas(adding, call.meta, metas)
        clear = Plain(key=self._services.keyed(key), payload=payloads.Clear(reason=strict.reason(reason)))
        return self._services.recorder.record(call, [clear, *adding])

    def _in_batch(self, placed: tuple[str, int], key: str, index: int) -> bool:
        """Whether an entry is the one of this tape that a batch with this key recorded at ``index``."""
        tape, seq = placed
        if tape != self._id:
            return False
        entry = next(self.entries(after=seq - 1, limit=1))
        keys = (batch_key(key, index), spare_batch_key(key, index))
        return entry.key in keys and isinstance(entry.payload, payloads.Append) and entry.payload.in_batch(index)


def add_metas(intents: Sequence[AddMessage], of_call: bytes | None, metas: Any) -> None:
    """Give each message of a batch its own meta, joined with that of the whole call."""
    if metas is None:
        return
    for index, (intent, own) in enumerate(zip(intents, matching(metas, len(intents), "metas"), strict=True)):
        if own is not None:
            intent.meta = meta.joined(meta.encode(own, field=f"metas[{index}]"), of_call)
