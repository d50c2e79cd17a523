"""Writing from a page, on a server that was started with ``--write``: fork, retract, restore, hand off, label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request

import tape
from tape.web.addresses import reference
from tape.web.asked import Asked, NotThere

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


def _fork(chat: tape.Tape, asked: Act) -> dict[str, Any]:
    child = chat.fork(at=asked.at, name=asked.name, actor="inspector")
    return {"tape": child.id, "ref": reference(child.id), "name": asked.name}


def _retract(chat: tape.Tape, asked: Act) -> dict[str, Any]:
    return _receipt(chat.retract(_message(asked), reason=asked.reason, actor="inspector"))


def _restore(chat: tape.Tape, asked: Act) -> dict[str, Any]:
    return _receipt(chat.restore(_message(asked), actor="inspector"))


def _handoff(chat: tape.Tape, asked: Act) -> dict[str, Any]:
    return _receipt(
        chat.handoff(
            asked.name or "handoff", summary=asked.summary or "", next_steps=asked.next_steps, actor="inspector"
        )
    )


def _label(chat: tape.Tape, asked: Act) -> dict[str, Any]:
    return _receipt(chat.label(*asked.add, remove=asked.remove, actor="inspector"))


ACTIONS: dict[str, Callable[[tape.Tape, Act], dict[str, Any]]] = {
    "fork": _fork,
    "retract": _retract,
    "restore": _restore,
    "handoff": _handoff,
    "label": _label,
}


def _message(asked: Act) -> str:
    if not asked.message:
        raise tape.InvalidEntry("message", "name the message")
    return asked.message


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
            raise NotThere("that is too long")
    try:
        return msgspec.json.decode(bytes(raw), type=Act)
    except msgspec.MsgspecError as error:
        raise NotThere(f"that is nothing to do: {error}") from error


def act(asked: Asked, wanted: Act) -> dict[str, Any]:
    """Do what a page asks, and return the receipt."""
    action = ACTIONS.get(wanted.do)
    if action is None:
        raise NotThere(f"there is nothing called {wanted.do!r} to do")
    return {"did": wanted.do, "receipt": action(asked.chat(), wanted)}
