"""Writing from a page, on a server that was started with ``--write``: fork, retract, restore, hand off, label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request

import tape
from tape.core import typed
from tape.web.addresses import reference
from tape.web.page_request import NotThere, PageRequest

__all__ = ["ACTIONS", "Act", "act", "body_of"]

_MOST = 1_000_000
"""Bytes of one request."""


class Act(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a page asks to be done, and with what."""

    do: str
    at: int | None = None
    name: str | None = None
    message: str | None = None
    reason: str | None = None
    summary: str | None = None
    next_steps: list[str] = []
    add: list[str] = []
    remove: list[str] = []


def _fork(chat: tape.Tape, action: Act) -> dict[str, Any]:
    child = chat.fork(at=action.at, name=action.name, actor="inspector")
    return {"tape": child.id, "ref": reference(child.id), "name": action.name}


def _retract(chat: tape.Tape, action: Act) -> dict[str, Any]:
    return _receipt(chat.retract(_message(action), reason=action.reason, actor="inspector"))


def _restore(chat: tape.Tape, action: Act) -> dict[str, Any]:
    return _receipt(chat.restore(_message(action), actor="inspector"))


def _handoff(chat: tape.Tape, action: Act) -> dict[str, Any]:
    return _receipt(
        chat.handoff(
            action.name or "handoff", summary=action.summary or "", next_steps=action.next_steps, actor="inspector"
        )
    )


def _label(chat: tape.Tape, action: Act) -> dict[str, Any]:
    return _receipt(chat.label(*action.add, remove=action.remove, actor="inspector"))


ACTIONS: dict[str, Callable[[tape.Tape, Act], dict[str, Any]]] = {
    "fork": _fork,
    "retract": _retract,
    "restore": _restore,
    "handoff": _handoff,
    "label": _label,
}


def _message(action: Act) -> str:
    if not action.message:
        raise tape.InvalidEntry("message", "is missing; name the message")
    return action.message


def _receipt(receipt: Any) -> dict[str, Any]:
    first = receipt[0] if isinstance(receipt, list) else receipt
    return {"ref": reference(first.tape)} | {
        name: getattr(first, name) for name in ("tape", "seq", "key", "message_id", "hash", "duplicate")
    }


async def body_of(request: Request) -> Act:
    """Return what a request wants done. Raises NotThere for anything else than such JSON."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > _MOST:
            raise NotThere(f"the request must have at most {_MOST} bytes")
    try:
        return typed.decode(bytes(raw), Act)
    except msgspec.MsgspecError as error:
        raise NotThere(f"the request is not a valid action: {error}") from error


def act(request: PageRequest, action: Act) -> dict[str, Any]:
    """Do what a page asks, and return the receipt."""
    do = ACTIONS.get(action.do)
    if do is None:
        raise NotThere(f"there is no action {action.do!r}")
    return {"did": action.do, "receipt": do(request.chat(), action)}
