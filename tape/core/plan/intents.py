"""Planning: what a call of the user's becomes on the tape.

An intent is one thing a caller wants recorded. ``plan`` checks it against the head and the view and returns the
payload with every decision in it, or raises. It asks its questions through ``Lookup`` and does no I/O itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tape.core import strict
from tape.core.entries import ids, payloads
from tape.core.entries.payloads import ROOT, Answer, Body, Payload, Place, Reopened
from tape.core.messages import toolcalls
from tape.core.messages.tokens import message_tokens
from tape.core.summaries.runs import Compaction, Rewritten, loosen
from tape.core.view.fold import HIDDEN, OUT, Head
from tape.errors import InvalidEntry, TapeClosed, UnknownMessage

__all__ = [
    "CHAIN",
    "HEAD",
    "AddAnchor",
    "AddMessage",
    "ChooseHead",
    "Covered",
    "Intent",
    "Lookup",
    "Plain",
    "Planned",
    "Relabel",
    "RestoreMessages",
    "RetractMessages",
    "ReviseMessage",
    "SetStatus",
    "Standing",
    "Taken",
    "Unchanged",
    "UpsertMessage",
    "canonical",
    "compose",
    "digest_of",
    "keyed",
    "makes",
    "same",
    "visible_place",
    "waiting",
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


class Standing(Struct, frozen=True, gc=False):
    """How a message stands: its newest body, and whether it is among the live rows."""

    placed: int
    since: int
    body: int
    live: bool
    why: str = ""
    of: str | None = None
    """The ancestor that the body lies in, if it does."""

    def visible(self, cleared: int) -> bool:
        """Whether readers see it, given the clear in force."""
        return self.live and self.since > cleared

    def out(self, cleared: int) -> bool:
        """Whether it was taken out in its own right, and not along with the call it answers."""
        return self.since <= cleared if self.live else self.why == OUT


class Covered(Struct, frozen=True):
    """A message in a run: its id and place, the calls it makes, those that await their result, those it answers."""

    id: str
    place: Place
    calls: list[str]
    waiting: list[str]
    answers: list[Answer]


class Lookup(Protocol):
    """What a plan may ask of the view."""

    tape: str

    @property
    def forked(self) -> bool:
        """Whether the tape inherits messages, so that an id may be taken by an ancestor."""

    def place(self, message_id: str) -> tuple[Place, int] | None:
        """Return where a message was placed and by which entry."""

    def standing(self, place: Place) -> Standing:
        """Return how the message at a place stands."""

    def body(self, seq: int, of: str | None = None) -> Body:
        """Return the message in an entry, of this tape or of an ancestor."""

    def bindings(self, place: Place, placed: int) -> list[Answer]:
        """Return the calls that a message was bound to when it was appended."""

    def makers(self, call: str) -> list[Place]:
        """Return the places of the messages that ever made a call."""

    def answers(self, maker: Place) -> list[Place]:
        """Return the places of the messages bound to calls of the message at ``maker``."""

    def lane(self, place: Place) -> tuple[int, int]:
        """Return the depth at which a place's lane branches off, and that of its last place if it can be extended."""

    def contains(self, end: Place, place: Place) -> bool:
        """Whether ``place`` is on the path from the root to ``end``."""

    def clears(self) -> list[tuple[int, int]]:
        """Return the clears in force as (seq, messages still hidden), newest first."""

    def is_anchor(self, seq: int) -> bool:
        """Whether the entry at ``seq`` is an anchor or a handoff."""

    def slot(self, name: str, *, inherited: bool = True) -> Payload | None:
        """Return the entry that a slot holds, of the tape or (if inherited) of its nearest ancestor that has one."""

    def slots(self, prefix: str) -> list[tuple[str, int, Payload]]:
        """Return every slot whose name begins so: name, seq and entry."""

    def compactions(self) -> list[Compaction]:
        """Return every compaction that is in force on some path or would be if the tape's own clears were undone."""

    def compactions_on(self, end: Place) -> list[Compaction]:
        """Return the compactions on the path to ``end``, after its latest anchor and any clear."""

    def covers(self, one: Compaction) -> list[str]:
        """Return the ids of the messages that a compaction covers."""

    def summary(self, one: Compaction) -> Any:
        """Return a compaction as readers see it."""

    def anchor_depth(self, end: Place) -> int:
        """Return the depth of the latest anchor on the path to ``end``, or 0."""

    def run(self, first: Place, last: Place) -> list[Covered]:
        """Return the visible messages from one place to another."""

    def id_at(self, place: Place) -> str:
        """Return the id of the message at a place."""

    def returned(self, clear: int) -> list[Place]:
        """Return the places of messages from before a clear that changed since by themselves, shallowest first."""

    def labels(self) -> list[str]:
        """Return the tape's labels."""


class Planned(Struct, gc=False):
    """An entry that is decided and only lacks its seq's seal: payload, and the head after it."""

    payload: Payload
    place: Place
    message_id: str | None = None
    key: str | None = None
    """Set when the key is derived from what the plan found."""


class Taken(Exception):
    """The message id exists under another key or on an ancestor; ``seq`` is the entry that placed it."""

    def __init__(self, seq: int, tape: str | None = None) -> None:
        super().__init__(seq, tape)
        self.seq = seq
        self.tape = tape


class Unchanged(Exception):
    """The entry at ``seq`` says the same already."""

    def __init__(self, seq: int, tape: str | None = None) -> None:
        super().__init__(seq, tape)
        self.seq = seq
        self.tape = tape


class Intent(Struct, kw_only=True):
    """One thing to record: its key, fixed before the first attempt, and whether it changes the view."""

    key: str
    asked: bool = False
    """Whether the key says something (the caller's, or derived); a random one is never looked up."""
    changes_view: bool = True
    source: tuple[str, int] | None = None
    """The entry that this one copies or cites."""
    derived_key: str | None = None
    """The key that the last plan derived, under which a lost attempt may have been recorded."""
    settling: bool = False
    """Whether the key is looked up only to learn of a lost attempt: other content under it is someone else's."""

    def settle_by_key(self) -> None:
        """From now on look for the entry before recording it: an earlier attempt may have succeeded."""
        self.settling = self.settling or not self.asked
        self.asked = True
        if self.derived_key is not None:
            self.key = self.derived_key

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Return the decided entry; ``previous`` is the place of the message before it in the batch."""
        raise AssertionError("an intent plans itself")

    def content(self) -> Any:
        """Return what the caller gave, to be compared with what a key already holds."""
        raise AssertionError("an intent knows its content")

    def content_as(self, kind: str) -> Any:
        """Return what the caller gave as an entry of ``kind`` tells it; an upsert may have become either of two."""
        return self.content()


def keyed(key: str | None) -> dict[str, Any]:
    """Return the key of an intent as the caller gave it, or a new one that nothing can repeat."""
    return {"key": ids.new_id() if key is None else strict.identifier(key, "key"), "asked": key is not None}


class Plain(Intent, kw_only=True):
    """An entry that needs no search: events, status, clears."""

    payload: Payload

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Take the payload as it is."""
        return Planned(self.payload, head.place)

    def content(self) -> Any:
        """Return the payload's content."""
        return self.payload.content()


class Relabel(Intent, kw_only=True):
    """Labels put on a tape and taken off it."""

    add: list[str]
    remove: list[str]

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Settle which labels the tape has afterwards, so that the fold need not ask."""
        kept = [label for label in look.labels() if label not in self.remove]
        new = [label for label in self.add if label not in kept]
        return Planned(payloads.Label(add=self.add, remove=self.remove, labels=kept + new), head.place)

    def content(self) -> Any:
        """Return the labels as given."""
        return {"kind": "label", "add": self.add, "remove": self.remove}


class SetStatus(Plain, kw_only=True):
    """A tape closed or opened again, unless it was discarded: that is for good."""

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Refuse to lift a discard."""
        if head.status == "discarded":
            raise TapeClosed(look.tape, head.status, head.reason)
        return Planned(self.payload, head.place)


class AddAnchor(Plain, kw_only=True):
    """An anchor or a handoff, whose sources and parents must be on the tape already."""

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Check what the anchor cites; since all of it is older, anchors can never form a circle."""
        payload = self.payload
        if isinstance(payload, payloads.Anchor | payloads.Handoff):
            for message_id in payload.source_ids:
                if look.place(message_id) is None:
                    raise UnknownMessage(look.tape, message_id)
        if isinstance(payload, payloads.Anchor):
            for seq in payload.parents:
                if not look.is_anchor(seq):
                    raise InvalidEntry("parents", f"seq {seq} is no anchor of this tape")
        return Planned(payload, head.place)


class AddMessage(Intent, kw_only=True):
    """Append a message."""

    id: str
    generated: bool
    raw: bytes
    calls: list[str]
    answers: list[str]
    tokens: int = 0
    parent: Any = HEAD
    derived: bool = True
    """Whether the key is derived from the message id, so that the key alone finds the message again."""
    batch: tuple[int, int] | None = None
    """The index in a batch with a key and its length; ``(0, 0)`` for a key that only looks like one of a batch."""

    def content(self) -> Any:
        """Return the message as given, with its id and parent if those were given."""
        message = {k: v for k, v in msgspec.json.decode(self.raw).items() if k != "id"}
        given: dict[str, Any] = {"kind": "append", "message": message}
        if not self.generated:
            given["id"] = self.id
        if self.parent is None or isinstance(self.parent, str):
            given["parent"] = self.parent
        return given

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Find the parent's place and put the message behind it."""
        if not self.generated and (not self.derived or head.aliased or look.forked):
            # Before all else, as with every key: a retry is told what it wrote, whatever became of its parent.
            taken = look.place(self.id)
            if taken is not None:
                raise Taken(taken[1], taken[0].tape)
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
            id=self.id,
            message=msgspec.Raw(self.raw),
            generated=self.generated,
            parent=parent,
            calls=self.calls,
            tokens=self.tokens,
            aliased=not self.derived,
            batch=self.batch,
        )
        if extend:
            place = Place(before.lane, before.ordinal + 1)
            if before.lane != lane or head.place.tape is not None:
                payload.lo = look.lane(before)[0]
        else:
            place = Place(head.seq + 1, before.ordinal + 1)
            payload.base = None if before == ROOT else before
        if self.answers:
            payload.answers = _bind(look, head, before, self.answers)
        return Planned(payload, place, self.id)


class ReviseMessage(Intent, kw_only=True):
    """Replace the content of a message."""

    id: str
    message: dict[str, Any] | None
    new_content: Any = None
    derive_key: bool = True

    def content(self) -> Any:
        """Return the message or the content as given."""
        if self.message is None:
            return {"kind": "revise", "id": self.id, "content": self.new_content}
        message = {k: v for k, v in self.message.items() if k not in ("id", "role")}
        return {"kind": "revise", "id": self.id, "message": message}

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Find the body that holds, and settle which tool results go and which return with the new one."""
        place, standing = visible_place(look, head, self.id)
        held = look.body(standing.body, standing.of)
        message = _revised(held.message, self.message, self.new_content)
        raw = strict.encode(message, "message")
        if same(_apart(message, self.id), _apart(held.message, self.id)):
            raise Unchanged(standing.body, standing.of)
        calls, _ = toolcalls.find(message)
        hides, shows = _settle(look, {place: (True, frozenset(calls))}, head.cleared)
        rewritten = Rewritten(place, held.calls, calls, waiting(held), toolcalls.waiting(message))
        payload = payloads.Revise(
            id=self.id,
            message=msgspec.Raw(raw),
            place=place,
            placed=standing.placed,
            supersedes=standing.body,
            supersedes_of=standing.of,
            whole=self.message is not None,
            calls=calls,
            hides=hides,
            shows=shows,
            tokens=message_tokens(message),
            loosens=loosen(look, outs=hides, backs=shows, revised=[rewritten]),
        )
        key = ids.revision_key(standing.body, standing.of) if self.derive_key else None
        return Planned(payload, head.place, self.id, key)


class UpsertMessage(AddMessage, kw_only=True):
    """Append a message, or revise it if it is there; decided inside the transaction, so that two never collide."""

    message: dict[str, Any]

    def content_as(self, kind: str) -> Any:
        """Return the message as an append or as a revision tells it."""
        return self._revision().content() if kind == "revise" else self.content()

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Append what was never on the tape, and revise the rest where it stands."""
        if self.generated or look.place(self.id) is None:
            return AddMessage.plan(self, head, look, previous)
        return self._revision().plan(head, look, previous)

    def _revision(self) -> ReviseMessage:
        return ReviseMessage(key=self.key, id=self.id, message=self.message, derive_key=self.derived)


class RetractMessages(Intent, kw_only=True):
    """Take messages out of the view."""

    ids: list[str]
    reason: str | None

    def content(self) -> Any:
        """Return the ids and the reason."""
        return {"kind": "retract", "ids": self.ids, "reason": self.reason}

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Close the messages and what answers their calls."""
        places: list[Place] = []
        marks: list[Place] = []
        changed: dict[Place, tuple[bool, frozenset[str]]] = {}
        for message_id in self.ids:
            found = look.place(message_id)
            if found is None:
                raise UnknownMessage(look.tape, message_id)
            place, _ = found
            standing = look.standing(place)
            if standing.out(head.cleared):
                raise UnknownMessage(look.tape, message_id, retracted=True)
            (places if standing.live else marks).append(place)
            changed[place] = (False, frozenset())
        hides, _ = _settle(look, changed, head.cleared)
        payload = payloads.Retract(ids=self.ids, reason=self.reason, places=places, marks=marks, hides=hides)
        payload.loosens = loosen(look, outs=places + hides)
        return Planned(payload, head.place, self.ids[0] if len(self.ids) == 1 else None)


class RestoreMessages(Intent, kw_only=True):
    """Bring messages back, or undo the last clear."""

    ids: list[str]

    def content(self) -> Any:
        """Return the ids."""
        return {"kind": "restore", "ids": self.ids}

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Open the last body of each message, and of the results that went with it."""
        if not self.ids:
            return Planned(self._undo(head, look), head.place)
        clears = look.clears()
        named: dict[Place, Reopened] = {}
        for message_id in self.ids:
            found = look.place(message_id)
            if found is None:
                raise UnknownMessage(look.tape, message_id)
            place, placed = found
            standing = look.standing(place)
            if not standing.out(head.cleared):
                why = "is not retracted" if standing.live else "is hidden with the call it answers: restore that"
                raise InvalidEntry("ids", f"message {message_id!r} {why}")
            # Under several clears a message belongs to the first that came after it.
            clear = min((seq for seq, _ in clears if seq >= standing.since), default=0) if standing.live else 0
            named[place] = Reopened(place, placed, standing.body, clear, standing.of)
        # A result named together with its call is visible if the call is, so decide calls before results.
        changed: dict[Place, tuple[bool, frozenset[str]]] = {}
        shows: list[Reopened] = []
        marks: list[Reopened] = []
        for place, back in sorted(named.items(), key=lambda item: item[0].ordinal):
            bound = look.bindings(place, back.placed)
            if bound and not any(makes(look, changed, answer, head.cleared) for answer in bound):
                marks.append(back)
                changed[place] = (False, frozenset())
            else:
                shows.append(back)
                changed[place] = (True, frozenset(look.body(back.body, back.of).calls))
        _, more = _settle(look, changed, head.cleared)
        shows += more
        # A result that a clear took and that stays hidden without its call had its row until now.
        loosens = loosen(look, outs=[back.place for back in marks if back.clear], backs=shows)
        payload = payloads.Restore(ids=self.ids, shows=shows, marks=marks, loosens=loosens)
        return Planned(payload, head.place, self.ids[0] if len(self.ids) == 1 else None)

    def _undo(self, head: Head, look: Lookup) -> payloads.Restore:
        clears = look.clears()
        if not clears:
            raise InvalidEntry("ids", "there is no clear to undo; name the messages to restore")
        clear, hidden = clears[0]
        beneath = clears[1][0] if len(clears) > 1 else 0
        # What was brought back by itself since the clear may have changed since: its results follow it. And a result
        # that was brought back without its call has waited for it.
        changed: dict[Place, tuple[bool, frozenset[str]]] = {}
        shows: list[Reopened] = []
        for place in look.returned(clear):
            standing = look.standing(place)
            if not standing.live and standing.why == HIDDEN:
                bound = look.bindings(place, standing.placed)
                if any(makes(look, changed, answer, beneath) for answer in bound):
                    shows.append(Reopened(place, standing.placed, standing.body, 0, standing.of))
                    changed[place] = (True, frozenset(look.body(standing.body, standing.of).calls))
                    continue
            live = standing.visible(beneath)
            changed[place] = (live, frozenset(look.body(standing.body, standing.of).calls if live else ()))
        hides, more = _settle(look, changed, beneath)
        shows += more
        return payloads.Restore(
            ids=[],
            shows=shows,
            hides=hides,
            undoes=clear,
            returned=hidden,
            beneath=beneath,
            loosens=loosen(look, outs=hides, backs=shows, uncleared=True),
        )


class ChooseHead(Intent, kw_only=True):
    """Make a message the head."""

    id: str

    def content(self) -> Any:
        """Return the id."""
        return {"kind": "switch", "id": self.id}

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Find the message's place and whether the next message can extend its lane."""
        place, _ = visible_place(look, head, self.id)
        lo, tip = look.lane(place)
        return Planned(payloads.Switch(id=self.id, lo=lo, tip=tip == place.ordinal), place, self.id)


def compose(
    message: Any, role: Any, content: Any, id: Any, *, field: str = "message"
) -> tuple[str, bool, bytes, list[str], list[str], int]:
    """Return (id, whether generated, JSON, calls made, calls answered, tokens) of what a caller appends."""
    if message is None:
        message = {}
        if role is not None:
            message["role"] = role
        if content is not UNSET:
            message["content"] = content
        if not message:
            raise InvalidEntry(field, "give a message, or role= and content=")
    elif not isinstance(message, dict):
        raise InvalidEntry(field, f"must be a dict, not {type(message).__name__}")
    elif role is not None or content is not UNSET:
        raise InvalidEntry(field, "give either a message or role= and content=, not both")
    raw = strict.encode(message, field)
    given = message.get("role")
    if given is not None and type(given) is not str:
        raise InvalidEntry(f"{field}.role", f"must be a string, not {type(given).__name__}")
    inner = message.get("id")
    if inner is not None:
        inner = strict.identifier(inner, f"{field}.id")
        if id is not None and id != inner:
            raise InvalidEntry("id", f"differs from the message's own id {inner!r}")
    elif id is not None:
        inner = strict.identifier(id, "id")
    calls, answers = toolcalls.find(message)
    return inner or ids.new_id(), inner is None, raw, calls, answers, message_tokens(message)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: keys in any order, but 1, 1.0 and true all different."""
    return canonical(one) == canonical(other)


canonical = msgspec.json.Encoder(order="deterministic").encode


def digest_of(content: bytes) -> str:
    """Return the digest by which a conflict tells two contents apart."""
    return blake2b(content, digest_size=32).hexdigest()


def visible_place(look: Lookup, head: Head, message_id: str) -> tuple[Place, Standing]:
    """Return where a message of the view is and how it stands; raises UnknownMessage for any other."""
    found = look.place(message_id)
    if found is None:
        raise UnknownMessage(look.tape, message_id)
    standing = look.standing(found[0])
    if not standing.visible(head.cleared):
        raise UnknownMessage(look.tape, message_id, retracted=True)
    return found[0], standing


def waiting(body: Body) -> list[str]:
    """Return those of the calls that a message was recorded to make whose results are not in it."""
    return [call for call in toolcalls.waiting(body.message) if call in body.calls] if body.calls else []


def _revised(held: dict[str, Any], message: dict[str, Any] | None, content: Any) -> dict[str, Any]:
    """Return the message after a revision: never another id or role."""
    if message is None:
        return {**held, "content": content}
    role = held.get("role")
    if message.get("role", role) != role:
        raise InvalidEntry("message.role", f"a revision keeps the role {role!r}; append a new message instead")
    kept: dict[str, Any] = {name: held[name] for name in ("id", "role") if name in held and name not in message}
    return {**kept, **message}


def _apart(message: dict[str, Any], message_id: str) -> dict[str, Any]:
    """Return a message without its own id, which is the same whether it stood in the message or beside it."""
    return {k: v for k, v in message.items() if k != "id"} if message.get("id") == message_id else message


def _bind(look: Lookup, head: Head, before: Place, answered: Sequence[str]) -> list[Answer]:
    """Return, for each call answered, the nearest message above that makes it."""
    bound = []
    for call in answered:
        above = [
            maker
            for maker in look.makers(call)
            if look.contains(before, maker)
            and (standing := look.standing(maker)).visible(head.cleared)
            and call in look.body(standing.body, standing.of).calls
        ]
        if above:
            bound.append(Answer(call, max(above, key=lambda place: place.ordinal)))
    return bound


def makes(look: Lookup, changed: dict[Place, tuple[bool, frozenset[str]]], answer: Answer, cleared: int) -> bool:
    """Whether the message that a result was bound to is there and makes the call, after the change."""
    if answer.maker in changed:
        live, calls = changed[answer.maker]
        return live and answer.call in calls
    standing = look.standing(answer.maker)
    return standing.visible(cleared) and answer.call in look.body(standing.body, standing.of).calls


def _settle(
    look: Lookup, changed: dict[Place, tuple[bool, frozenset[str]]], cleared: int
) -> tuple[list[Place], list[Reopened]]:
    """Return the results that go and those that return when the named messages change, transitively."""
    hides: list[Place] = []
    shows: list[Reopened] = []
    queue = list(changed)
    while queue:
        for place in look.answers(queue.pop()):
            if place in changed:
                continue
            standing = look.standing(place)
            if standing.out(cleared):
                continue
            wanted = any(makes(look, changed, answer, cleared) for answer in look.bindings(place, standing.placed))
            if wanted == standing.visible(cleared):
                continue
            if wanted:
                shows.append(Reopened(place, standing.placed, standing.body, 0, standing.of))
            else:
                hides.append(place)
            changed[place] = (wanted, frozenset(look.body(standing.body, standing.of).calls if wanted else ()))
            queue.append(place)
    return hides, shows
