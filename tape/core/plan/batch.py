"""What callers append, as intents: one message, or a batch in which each follows the one before it."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from msgspec import UNSET

from tape.core import strict
from tape.core.entries import ids
from tape.core.plan.intents import CHAIN, HEAD, AddMessage, compose

__all__ = ["add_message", "message_intents", "renewed_id"]


def add_message(
    composed: tuple[str, bool, bytes, list[str], list[str], int], key: str | None, parent: Any
) -> AddMessage:
    """Return the intent to append a message that ``compose`` checked, behind ``parent``."""
    id, generated, raw, calls, answers, tokens = composed
    if parent is not HEAD and parent is not CHAIN and parent is not None:
        parent = strict.identifier(parent, "parent")
    return AddMessage(
        key=ids.message_key(id) if key is None else strict.identifier(key, "key"),
        asked=key is not None or not generated,
        id=id,
        generated=generated,
        raw=raw,
        calls=calls,
        answers=answers,
        tokens=tokens,
        parent=parent,
        derived=key is None,
        batch=(0, 0) if key is not None and ids.is_like_batch(key) else None,
    )


def message_intents(messages: Iterable[dict[str, Any]], key: str | None, parent: Any = HEAD) -> list[AddMessage]:
    """Return the intents of a batch: the first behind ``parent``, each other behind the one before it."""
    if key is not None:
        key = strict.identifier(key, "key")
    intents = []
    given = strict.listed(messages, "messages")
    for index, message in enumerate(given):
        composed = compose(message, None, UNSET, None, field=f"messages[{index}]")
        intent = add_message(composed, None, CHAIN if index else parent)
        if key is not None:
            intent.key, intent.asked, intent.derived = ids.batch_key(key, index), True, False
            intent.batch = (index, len(given))
        intents.append(intent)
    return intents


def renewed_id(key: str, index: int) -> str:
    """Return the id that a message of a keyed batch gets in place of one that is taken."""
    return blake2b(ids.batch_key(key, index).encode(), digest_size=16).hexdigest()
