"""Messages: what a caller appends, revises or upserts, alone or as a batch in which each follows the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType, structs

from tape.core import strict
from tape.core.entries import ids, payloads
from tape.core.entries.message_kinds import apart, as_message
from tape.core.entries.payloads import ROOT, Place
from tape.core.messages import toolcalls
from tape.core.messages.objects import as_dict
from tape.core.messages.tokens import message_tokens
from tape.core.plan.intents import Intent, Planned, Taken, Unchanged, same
from tape.core.plan.keys import DERIVED, GIVEN, RANDOM, Key
from tape.core.plan.lookup import Lookup, visible_place, waiting
from tape.core.plan.results import bind, settle
from tape.core.summaries.runs import Rewritten, loosen
from tape.core.view.fold import Head
from tape.errors import InvalidEntry

__all__ = [
    "CHAIN",
    "HEAD",
    "AddMessage",
    "ReviseMessage",
    "UpsertMessage",
    "add_message",
    "given_message",
    "matching",
    "message_fields",
    "message_intents",
    "renew",
    "renewed_id",
    "upsert_message",
]


class _Sentinel:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


HEAD: Any = _Sentinel("<head>")
"""The parent that was not given: the message goes behind the head."""
CHAIN: Any = _Sentinel("<previous>")
"""The parent of all but the first message of a batch."""


class AddMessage(Intent, kw_only=True, gc=False):
    """Append a message."""

    records = payloads.Append
    told_by = frozenset({GIVEN, DERIVED})

    id: str
    generated: bool
    """Whether the store chose the id, which then no other message has."""
    raw: bytes
    calls: list[str]
    answers: list[str]
    tokens: int = 0
    parent: Any = HEAD
    batch: tuple[int, int] | None = None
    """The index in a batch with a key and its length; ``(0, 0)`` for a key that only looks like one of a batch."""
    index_meta: bool = False
    """Whether the message is to be found by what is said in its meta, too."""

    def content(self) -> Any:
        """Return the message as given, with its id and parent if those were given."""
        content: dict[str, Any] = {"kind": "append", "message": apart(msgspec.json.decode(self.raw), self.id)}
        if not self.generated:
            content["id"] = self.id
        if self.parent is None or isinstance(self.parent, str):
            content["parent"] = self.parent
        return content

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Find the parent's place and put the message behind it."""
        aliased = self.key.origin is GIVEN
        if not self.generated and (aliased or head.aliased or look.forked):
            # First, as with every key: a retry gets the receipt of what it wrote, whatever became of its parent.
            placement = look.place(self.id)
            if placement is not None:
                raise Taken(placement[1], placement[0].tape)
        parent: str | UnsetType | None = UNSET
        lane = head.place.lane
        if self.parent is HEAD or (self.parent is CHAIN and (previous is None or previous == head.place)):
            before, extend = head.place, head.tip
        elif self.parent is CHAIN and previous is not None:
            before = previous
            extend = look.lane(before)[1] == before.ordinal
        elif self.parent is None:
            before, extend, parent = ROOT, False, None
        else:
            parent = self.parent
            before, _ = visible_place(look, head, self.parent)
            extend = look.lane(before)[1] == before.ordinal
        payload = payloads.Append(
            message=as_message(self.raw),
            id="" if self.key.value.startswith(ids.MESSAGE) else self.id,
            generated=self.generated,
            parent=parent,
            calls=self.calls,
            tokens=self.tokens,
            aliased=aliased,
            batch=self.batch,
            index_meta=self.index_meta,
        )
        plain = False
        if not extend:
            place = Place(head.seq + 1, before.ordinal + 1)
            payload.base = None if before == ROOT else before
        else:
            place = Place(before.lane, before.ordinal + 1)
            if before.lane != lane or head.place.tape is not None:
                payload.lo = look.lane(before)[0]
            else:
                plain = parent is UNSET and self.batch is None and not (self.calls or self.index_meta)
        if self.answers:
            plain = False
            payload.answers = bind(look, head, before, self.answers)
        return Planned(payload, place, self.id, plain)


class ReviseMessage(Intent, kw_only=True):
    """Replace the content of a message."""

    records = payloads.Revise

    id: str
    message: dict[str, Any]
    """The new message, or only the fields that change."""
    whole: bool = True
    index_meta: bool = False

    def content(self) -> Any:
        """Return the message or the fields as given."""
        if not self.whole:
            return {"kind": "revise", "id": self.id, **self.message}
        return {"kind": "revise", "id": self.id, "message": apart(self.message, self.id, "role")}

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Find the body that holds, and settle which tool results go and which return with the new one."""
        place, standing = visible_place(look, head, self.id)
        held = look.body(standing.body, standing.of)
        message = _revised(self.id, held.message, self.message, whole=self.whole)
        raw = strict.encode(message, "message")
        if same(apart(message, self.id), apart(held.message, self.id)):
            raise Unchanged(standing.body, standing.of)
        calls, _ = toolcalls.find(message)
        hides, shows = settle(look, {place: (True, frozenset(calls))}, head.cleared)
        rewritten = Rewritten(place, held.calls, calls, waiting(held), toolcalls.waiting(message))
        payload = payloads.Revise(
            id=self.id,
            message=as_message(raw),
            place=place,
            placed=standing.placed,
            supersedes=standing.body,
            supersedes_of=standing.of,
            fields=None if self.whole else list(self.message),
            calls=calls,
            hides=hides,
            shows=shows,
            tokens=message_tokens(message),
            loosens=loosen(look, outs=hides, backs=shows, revised=[rewritten]),
            index_meta=self.index_meta,
        )
        if self.key.origin is not GIVEN:
            # Of two revisions of the same body one fails, and plans again with the other's as the body to replace.
            self.key = Key(ids.revision_key(standing.body, standing.of), DERIVED)
        return Planned(payload, head.place, self.id)


class UpsertMessage(AddMessage, kw_only=True):
    """Append a message, or revise it if it is there; decided inside the transaction, so that two never collide."""

    # A key that is derived from the id tells only that the message is there.
    told_by = frozenset({GIVEN})

    message: dict[str, Any]

    def content_as(self, kind: str) -> Any:
        """Return the message as an append or as a revision tells it."""
        return self._revision().content() if kind == "revise" else self.content()

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Append what was never on the tape, and revise the rest where it stands."""
        if self.generated or look.place(self.id) is None:
            if self.key.origin is DERIVED:
                # An earlier attempt may have planned a revision.
                self.key = Key(ids.message_key(self.id), DERIVED)
            return AddMessage.plan(self, head, look, previous)
        revision = self._revision()
        planned = revision.plan(head, look, previous)
        self.key = revision.key
        return planned

    def _revision(self) -> ReviseMessage:
        return ReviseMessage(key=self.key, id=self.id, message=self.message, index_meta=self.index_meta)


def add_message(
    message: Any,
    id: Any,
    key: str | None,
    parent: Any,
    new_id: Callable[[], str],
    *,
    field: str = "message",
) -> AddMessage:
    """Return the intent to append a message.

    With an ``id`` beside it, whatever ``id`` the message has itself is data. A message without either gets a new one.
    """
    raw, message = strict.encoded(message if isinstance(message, dict) else as_dict(message, field), field)
    role, own_id = message.get("role"), message.get("id") if id is None else id
    if role is not None and type(role) is not str:
        raise InvalidEntry(f"{field}.role", f"must be a string, not {type(role).__name__}")
    if own_id is not None:
        own_id = strict.identifier(own_id, f"{field}.id" if id is None else "id")
    if parent is not HEAD and parent is not CHAIN and parent is not None:
        parent = strict.identifier(parent, "parent")
    calls, answers = toolcalls.find(message)
    tokens = message_tokens(message)
    chosen = own_id or new_id()
    if key is not None:
        named = Key(strict.identifier(key, "key"), GIVEN)
    elif own_id is None:
        named = Key(ids.MESSAGE + chosen, RANDOM)
    else:
        named = Key(ids.message_key(own_id), DERIVED)
    return AddMessage(
        key=named,
        id=chosen,
        generated=own_id is None,
        raw=raw,
        calls=calls,
        answers=answers,
        tokens=tokens,
        parent=parent,
        batch=(0, 0) if key is not None and ids.is_like_batch(key) else None,
    )


def given_message(message: Any, role: Any, content: Any, name: Any, tool_calls: Any, tool_call_id: Any) -> Any:
    """Return the message that a caller passed whole, or as keywords."""
    if message is not None and content is UNSET and role is name is tool_calls is tool_call_id is None:
        return message
    fields = message_fields(role, content, name, tool_calls, tool_call_id)
    if message is not None:
        raise InvalidEntry("message", f"pass either a message or {next(iter(fields))}=, not both")
    if not fields:
        raise InvalidEntry("message", "pass a message, or its fields such as role= and content=")
    return fields


def message_fields(role: Any, content: Any, name: Any, tool_calls: Any, tool_call_id: Any) -> dict[str, Any]:
    """Return the fields of a message that a caller passed as keywords. None can be a content, and nothing else."""
    fields = {} if role is None else {"role": role}
    if content is not UNSET:
        fields["content"] = content
    if name is not None:
        fields["name"] = name
    if tool_calls is not None:
        fields["tool_calls"] = tool_calls
    if tool_call_id is not None:
        fields["tool_call_id"] = tool_call_id
    return fields


def upsert_message(message: Any, id: Any, key: str | None, new_id: Callable[[], str]) -> UpsertMessage:
    """Return the intent to append a message behind the head, or to revise it if it is there."""
    _, whole = strict.encoded(message if isinstance(message, dict) else as_dict(message, "message"), "message")
    added = add_message(whole, id, key, HEAD, new_id)
    return UpsertMessage(**structs.asdict(added), message=dict(whole))


def message_intents(
    messages: Iterable[Any],
    key: str | None,
    new_id: Callable[[], str],
    parent: Any = HEAD,
    *,
    message_ids: Iterable[Any] | None = None,
) -> list[AddMessage]:
    """Return the intents of a batch: the first behind ``parent``, each other behind the one before it.

    ``message_ids`` are ids beside the messages, None for those that have their own or get a new one.
    """
    if key is not None:
        key = strict.identifier(key, "key")
    intents: list[AddMessage] = []
    listed = strict.listed(messages, "messages")
    beside = matching(message_ids, len(listed), "ids")
    seen: set[str] = set()
    for index, (message, id) in enumerate(zip(listed, beside, strict=True)):
        field = f"messages[{index}]"
        if id is not None:
            id = strict.identifier(id, f"ids[{index}]")
        intent = add_message(message, id, None, CHAIN if index else parent, new_id, field=field)
        if intent.id in seen:
            why = f"an earlier message of the batch already has the id {intent.id!r}"
            if id is not None:
                raise InvalidEntry(f"ids[{index}]", why)
            raise InvalidEntry(f"{field}.id", f"{why}; pass ids= to keep the messages' own ids as data")
        seen.add(intent.id)
        if key is not None:
            intent.key = Key(ids.batch_key(key, index), GIVEN)
            intent.batch = (index, len(listed))
        intents.append(intent)
    return intents


def matching(values: Any, length: int, field: str) -> list[Any]:
    """Return what stands beside each message of a batch; without any, as many times None."""
    if values is None:
        return [None] * length
    listed = strict.listed(values, field)
    if len(listed) != length:
        raise InvalidEntry(field, f"has {len(listed)} items, but there are {length} messages")
    return listed


def renew(intent: AddMessage, message_id: str) -> None:
    """Give a message that is to be appended another id; also in itself, if it says its own there."""
    message = msgspec.json.decode(intent.raw)
    if message.get("id") == intent.id:
        message["id"] = message_id
        intent.raw = msgspec.json.encode(message)
        intent.calls, intent.answers = toolcalls.find(message)
    intent.id = message_id
    if intent.key.origin is DERIVED:
        intent.key = Key(ids.message_key(message_id), DERIVED)


def renewed_id(key: str, index: int) -> str:
    """Return the id that a message of a keyed batch gets in place of one that is taken."""
    return blake2b(ids.batch_key(key, index).encode(), digest_size=16).hexdigest()


def _revised(message_id: str, current: dict[str, Any], message: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """Return the message after a revision: never another role, nor another id where that is the message's own."""
    role = current.get("role")
    if message.get("role", role) != role:
        raise InvalidEntry("message.role", f"a revision must keep the role {role!r}; append a new message instead")
    if not whole:
        return {**current, **message}
    fixed: dict[str, Any] = {}
    if current.get("id") == message_id:
        if message.get("id", message_id) != message_id:
            raise InvalidEntry(
                "message.id", f"a revision must keep the id {message_id!r}; append a new message instead"
            )
        fixed["id"] = message_id
    if "role" in current:
        fixed["role"] = role
    return {**fixed, **message}
