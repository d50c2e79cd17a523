"""A conversation as of now or of any seq: messages with their branches, and what happened between them."""

from __future__ import annotations

from typing import Any

import msgspec

import tape
from tape.web.page_request import NotThere, PageRequest
from tape.web.parts import card, entry_row, instant, message_view, part_text

__all__ = ["BETWEEN", "conversation", "text_of"]

_WINDOW = 60
"""Messages that one request gives."""
_QUICK = 24
"""Messages that one gives while the scrubber moves: what a screen shows, and a little more."""
_BYTES = 4_000_000
BETWEEN = ("anchor", "handoff", "compact", "fork", "merge", "discard", "status", "switch", "clear", "retract")
_SPAN = 2_000
"""Entries that are looked through for what happened between the messages."""
_PIECE = 65_536
"""Characters of a long text that one request gives."""


def conversation(request: PageRequest) -> dict[str, Any]:
    """Return a window of the conversation: its end, what is before or after a message, or what is around one.

    What a past point was counted as, and its branches, take longer the longer the tape is. A scrubber asks for what it
    shows without them (``quick``), and for all of it where it stops.
    """
    chat = request.snapshot()
    now = request.chat().info()
    head = now.head
    quick = request.text("quick") == "1" and isinstance(request.point, int)
    info = msgspec.structs.replace(now, head=request.point) if quick else chat.info()
    heads = [] if quick else chat.heads()
    branch = _branch(request, chat, heads)
    try:
        messages, earlier, later = _window(request, chat, branch)
    except (tape.UnknownMessage, tape.InvalidEntry) as error:
        raise NotThere(str(error)) from error
    # A window that was asked for by one of its messages ends where it ends; any other shows what came last, too.
    last = messages[-1].seq if later and messages else info.head
    return {
        "title": info.name or info.id,
        "tape": card(info),
        "seq": info.head,
        "head": head,
        "quick": quick,
        "live": info.head == head and request.point is None and branch is None,
        "branch": branch,
        "heads": [{"id": end.id, "seq": end.seq, "text": end.text[:80]} for end in heads[-50:]] if heads[1:] else [],
        "messages": _named([_shown(chat, message, many=len(heads) > 1) for message in messages]),
        "earlier": messages[0].id if earlier else None,
        "later": messages[-1].id if later else None,
        "between": _between(chat, messages, last, whole=not earlier),
    }


def _branch(request: PageRequest, chat: tape.Snapshot, heads: list[tape.Message]) -> str | None:
    """Return the end of the branch that is asked for; of a message in the middle, that of its newest branch."""
    message_id = request.text("branch")
    if message_id is None:
        return None
    if chat.find(message_id) is None:
        raise NotThere(f"there is no message {message_id!r}")
    for end in reversed(heads):
        try:
            chat.messages(branch=end.id, after=message_id, limit=0)
            return end.id
        except tape.InvalidEntry:
            continue
    return message_id


def _window(request: PageRequest, chat: tape.Snapshot, branch: str | None) -> tuple[list[tape.Message], bool, bool]:
    """Return messages, and whether there are earlier and later ones."""
    before, after, around = request.text("before"), request.text("after"), request.text("m")
    if around is not None and before is None and after is None:
        half = _WINDOW // 2
        try:
            left = _page(chat, branch, before=around, limit=half)
        except tape.InvalidEntry:
            branch = around
            left = _page(chat, branch, before=around, limit=half)
        right = _page(chat, branch, after=around, limit=half)
        return [*left, chat.message(around), *right], left.truncated, right.truncated
    limit = _QUICK if request.text("quick") == "1" else _WINDOW
    page = _page(chat, branch, before=before, after=after, limit=limit)
    if after is not None:
        return list(page), True, page.truncated
    return list(page), page.truncated, before is not None


def _page(chat: tape.Snapshot, branch: str | None, **where: Any) -> tape.Page[tape.Message]:
    page = chat.messages(branch=branch, max_bytes=_BYTES, **where)
    assert isinstance(page, tape.Page)
    return page


def _shown(chat: tape.Snapshot, message: tape.Message, *, many: bool) -> dict[str, Any]:
    shown = message_view(message.data) | {
        "id": message.id,
        "seq": message.seq,
        "revision": message.revision,
        "inherited": None if message.tape == chat.id else message.tape,
        "tokens": message.tokens,
        "at": instant(message.recorded_at),
    }
    siblings = chat.children(message.parent) if many and message.parent is not None else []
    if len(siblings) > 1:
        ids = [sibling.id for sibling in siblings]
        place = ids.index(message.id)
        shown["branches"] = {
            "at": place + 1,
            "of": len(ids),
            "previous": ids[place - 1] if place else None,
            "next": ids[place + 1] if place + 1 < len(ids) else None,
        }
    return shown


def _named(shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give each result the name of the tool whose call it answers, if the call is in sight."""
    parts = [part for message in shown for part in message["parts"]]
    names = {part["call"]: part["name"] for part in parts if part["part"] == "call"}
    for part in parts:
        if part["part"] == "result":
            part["name"] = part["name"] or names.get(part["call"])
    return shown


def _between(chat: tape.Snapshot, messages: list[tape.Message], last: int, *, whole: bool) -> list[dict[str, Any]]:
    """Return what happened on the tape itself between the messages: checkpoints, forks, merges, retractions."""
    own = [message.seq for message in messages if message.tape == chat.id]
    first = 0 if whole or not own else own[0]
    entries = chat.entries(after=max(first, last - _SPAN), before=last + 1, kinds=BETWEEN)
    return [entry_row(entry) for entry in entries]


def text_of(request: PageRequest) -> dict[str, Any]:
    """Return a piece of one long text of an entry: of the message's part ``part``, from character ``from`` on."""
    if not isinstance(request.point, int):
        raise NotThere("no seq")
    entry = request.chat().find_entry(seq=request.point)
    message = getattr(entry.payload, "message", None) if entry is not None else None
    part, start = request.number("part", 0, 0, 2**31), request.number("from", 0, 0, 2**53)
    text = part_text(message, part) if isinstance(message, dict) else None
    if text is None:
        raise NotThere(f"entry {request.point} does not have this part")
    return {"title": "Text", "text": text[start : start + _PIECE], "from": start, "length": len(text)}
