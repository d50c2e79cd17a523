"""The writes of messages: appended, revised, retracted, and branches chosen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from msgspec import UNSET

from tape import new_ids
from tape.core import strict
from tape.core.entries import ids, payloads
from tape.core.plan.intents import ChooseHead, Plain
from tape.core.plan.messages import HEAD, ReviseMessage, add_message, message_intents, renewed_id, upsert_message
from tape.core.plan.retractions import RestoreMessages, RetractMessages
from tape.core.records import Receipt
from tape.errors import InvalidEntry
from tape.handles.options import WriteOptions, call_of, list_options
from tape.handles.recorded import Request, recorded, recorded_batch
from tape.handles.snapshot import Snapshot
from tape.new_ids import keyed

__all__ = ["MessageWriter"]


@list_options
class MessageWriter(Snapshot):
    """What a tape does with its messages."""

    @recorded
    def append(
        self,
        message: dict[str, Any] | None = None,
        /,
        *,
        role: str | None = None,
        content: Any = UNSET,
        id: str | None = None,
        parent: str | None = HEAD,
        **options: Unpack[WriteOptions],
    ) -> Request:
        """Append a message behind the head, behind ``parent``, or (``parent=None``) as a new root.

        The same key (or, without one, the same message id) with the same content writes nothing and returns the first
        receipt; with other content it is a ProvenanceConflict.
        """
        call = call_of(self._id, **options)
        intent = add_message(message, role, content, id, call.key, parent, new_ids.new_id)
        return Request(call, [intent])

    @recorded_batch
    def extend(
        self,
        messages: Iterable[dict[str, Any]],
        *,
        parent: str | None = HEAD,
        **options: Unpack[WriteOptions],
    ) -> Request:
        """Append messages one behind the other, all or none. With ``key``, the n-th is keyed ``key#n``."""
        call = call_of(self._id, **options)
        call.batch = call.key
        intents = message_intents(messages, call.key, new_ids.new_id, parent)
        return Request(call, intents)

    @recorded
    def upsert(
        self,
        message: dict[str, Any],
        /,
        *,
        id: str | None = None,
        **options: Unpack[WriteOptions],
    ) -> Request:
        """Append a message, or revise it if it exists and differs; an equal one is a duplicate."""
        call = call_of(self._id, **options)
        return Request(call, [upsert_message(message, id, call.key, new_ids.new_id)])

    @recorded
    def revise(
        self,
        message_id: str,
        message: dict[str, Any] | None = None,
        /,
        *,
        content: Any = UNSET,
        **options: Unpack[WriteOptions],
    ) -> Request:
        """Replace a message, or only its content; its place and role stay. An equal one is a duplicate."""
        call = call_of(self._id, **options)
        message_id = strict.identifier(message_id, "message_id")
        if (message is None) == (content is UNSET):
            raise InvalidEntry("message", "give either a message or content=")
        if message is not None:
            if not isinstance(message, dict):
                raise InvalidEntry("message", f"must be a dict, not {type(message).__name__}")
            strict.encode(message, "message")
            if message.get("id", message_id) != message_id:
                raise InvalidEntry("message.id", f"differs from {message_id!r}")
            message = dict(message)
        else:
            strict.encode(content, "content")
        intent = ReviseMessage(
            key=keyed(call.key),
            id=message_id,
            message=message,
            new_content=None if content is UNSET else content,
        )
        return Request(call, [intent])

    @recorded
    def retract(self, *ids: str, reason: str | None = None, **options: Unpack[WriteOptions]) -> Request:
        """Take messages out of the view, with the results of the tool calls they made. They stay on the tape."""
        call = call_of(self._id, **options)
        if not ids:
            raise InvalidEntry("ids", "name the messages to retract, or use clear()")
        intent = RetractMessages(key=keyed(call.key), ids=strict.distinct(ids), reason=strict.reason(reason))
        return Request(call, [intent])

    @recorded
    def restore(self, *ids: str, **options: Unpack[WriteOptions]) -> Request:
        """Bring retracted messages back, with what went along with them; without ids, undo the last clear."""
        call = call_of(self._id, **options)
        intent = RestoreMessages(key=keyed(call.key), ids=strict.distinct(ids))
        return Request(call, [intent])

    @recorded
    def clear(self, reason: str | None = None, **options: Unpack[WriteOptions]) -> Request:
        """Take every message out of the view at once, on all branches, and end the anchors."""
        call = call_of(self._id, **options)
        intent = Plain(key=keyed(call.key), payload=payloads.Clear(reason=strict.reason(reason)))
        return Request(call, [intent])

    @recorded
    def switch(self, message_id: str, /, **options: Unpack[WriteOptions]) -> Request:
        """Make a message the head: reads end there and the next message goes behind it."""
        call = call_of(self._id, **options)
        intent = ChooseHead(key=keyed(call.key), id=strict.identifier(message_id, "message_id"))
        return Request(call, [intent])

    def replace_history(
        self,
        messages: Iterable[dict[str, Any]],
        *,
        reason: str | None = None,
        **options: Unpack[WriteOptions],
    ) -> list[Receipt]:
        """Clear the view and write these messages from a new root, in one step. The old ones stay on the tape.

        A message whose id is on the tape already gets a new one; its entry cites the old as its source.
        """
        call = call_of(self._id, **options)
        key = call.batch = call.key
        fresh = []
        for index, message in enumerate(strict.listed(messages, "messages")):
            message_id = message.get("id") if isinstance(message, dict) else None
            placed = self._reader.placed(self._id, message_id) if isinstance(message_id, str) else None
            if placed is not None and key is not None and self._in_batch(placed, key, index):
                # An earlier attempt of this very call placed it.
                placed = None
            # With a key the new id is the same at every attempt, or a retry would be other content.
            renewed = new_ids.new_id() if key is None else renewed_id(key, index)
            fresh.append(({**message, "id": renewed} if placed is not None else message, placed))
        clear = Plain(key=keyed(key), payload=payloads.Clear(reason=strict.reason(reason)))
        adding = message_intents([message for message, _ in fresh], key, new_ids.new_id, None)
        for intent, (_, source) in zip(adding, fresh, strict=True):
            intent.source = source
        return self._services.recorder.record(call, [clear, *adding])

    def _in_batch(self, placed: tuple[str, int], key: str, index: int) -> bool:
        """Whether an entry is the one of this tape that a batch with this key recorded at ``index``."""
        tape, seq = placed
        if tape != self._id:
            return False
        entry = next(self.entries(after=seq - 1, limit=1))
        keys = (ids.batch_key(key, index), ids.spare_batch_key(key, index))
        return entry.key in keys and isinstance(entry.payload, payloads.Append) and entry.payload.in_batch(index)
