"""What a context is made of and why, and what moved in it since the one before. Pure.

A provider caches the beginning of a request. So what matters between two requests is the first byte that differs:
everything after it is read, and paid for, again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from tape.core.context.policy import Excluded
from tape.core.messages.tokens import Counter, message_tokens
from tape.core.plan.intents import canonical

__all__ = ["Difference", "Explanation", "Piece", "Region", "common_prefix", "digest", "excerpt", "kept_of"]
__all__ += ["moved_at", "pieces_of", "same_until"]

_NEAR = 12
"""How many of the last entries are tried one by one, the newest first, before the others are bisected."""
_EXCERPT = 60
"""Characters of a request that are shown from the byte that differs."""


class Region(Struct, frozen=True, kw_only=True):
    """A part of a context: what it is, the entry and the actor that put it there, the policy's step, and its tokens."""

    kind: str
    """``prompt``, ``documents``, ``anchor``, ``summary`` or ``message``."""
    tokens: int
    """About how many tokens it takes."""
    step: str
    """What put it there as it is: ``as recorded``, or what was done to it, and why."""
    tape: str | None = None
    """The tape of the entry that it comes from; None for a prompt that is rendered from declared blocks alone."""
    seq: int | None = None
    """The entry whose content is shown."""
    entry_kind: str | None = None
    """The kind of that entry: ``append``, ``revise``, ``handoff``, ``compact``, ``block`` and so on."""
    actor: str | None = None
    """Who recorded that entry, if it says so."""
    message_id: str | None = None
    role: str | None = None
    placed: int | None = None
    """The entry that placed the message, where another one revised it since."""


class Difference(Struct, frozen=True, kw_only=True):
    """The first byte at which a request differs from the one before it, and what moved it."""

    offset: int
    """The byte, counted over the request's system text and the JSON of each block or message behind it."""
    region: int | None
    """The index in ``Explanation.regions`` of the part at that byte now; None when the request ends there."""
    cause: str
    """What moved it: the kind of the entry (``revise``, ``retract``, ``restore``, ``clear``, ``compact``, ``anchor``,
    ``handoff``, ``block``, ``prompt``, ``switch``, ``append``, ``merge``), or a change that no entry records:
    ``budget``, ``policy``, ``model``, ``tools``, ``branch`` or ``settings``."""
    why: str
    """The same in a sentence."""
    before: str
    """A few characters of the request before, from that byte on."""
    after: str
    """The same of this request."""
    kept_tokens: int
    """About how many tokens of the request before are still its beginning."""
    lost_tokens: int
    """About how many tokens of the request before the provider's cache can no longer serve."""
    tape: str | None = None
    seq: int | None = None
    """The entry that moved it; None where no entry did."""
    actor: str | None = None
    cost: int | None = None
    """How much more it costs to read the lost tokens again than from the cache, in millionths of ``currency``.

    None unless usage was recorded for the call before, reports that its cache was read or written, and has a price.
    """
    currency: str | None = None
    cached_before: int | None = None
    """The tokens that the provider's cache served for the request before, as its usage reports."""
    cached_after: int | None = None
    """The same of this request."""


class Explanation(Struct, frozen=True, kw_only=True):
    """What a context is made of, what it leaves out and why, and what moved since the recorded one before it."""

    tape: str
    head: int
    """The last entry of the tape when it was built."""
    policy: str
    version: int
    budget: int | None
    tokens: int
    hash: str
    api: str
    """The rendering that was compared: ``chat``, ``responses`` or ``anthropic``."""
    regions: list[Region]
    """In the order in which the model reads them."""
    left_out: list[Excluded]
    """What is not shown, and why, as ranges of entries."""
    recorded: int | None = None
    """The seq at which this context was recorded, if it was."""
    against: int | None = None
    """The seq of the recorded context that it was compared with; None when there is none."""
    difference: Difference | None = None
    """What moved since then; None when this request begins with all of the one before, or there was none."""
    model: str | None = None
    tools: str | None = None
    """A digest of the tool list, if the caller gave it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the same as JSON values."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


class Piece(NamedTuple):
    """A part of a rendered request that a provider's cache compares as one: the system text, a block, or an item."""

    raw: bytes
    tokens: int


def pieces_of(request: Any, count: Counter) -> list[Piece]:
    """Return a rendered request in pieces, in the order in which a provider reads it.

    A message with several blocks is several pieces, so that adding a block changes none of the pieces before it.
    """

    def piece(value: Any, shown: dict[str, Any]) -> Piece:
        return Piece(msgspec.json.encode(value) + b"\n", message_tokens(shown, count))

    if isinstance(request, list):
        return [piece(message, message) for message in request]
    system = request["instructions"] if "input" in request else request["system"]
    pieces = [piece(system, {"role": "system", "content": system})] if system else []
    if "input" in request:
        return [*pieces, *(piece(item, item) for item in request["input"])]
    for message in request["messages"]:
        role = message["role"]
        pieces += [piece([role, block], {"role": role, "content": [block]}) for block in message["content"]]
    return pieces


def common_prefix(before: Sequence[Piece], after: Sequence[Piece]) -> int:
    """Return how many bytes two requests have in common at their beginning."""
    same = 0
    for a, b in zip(before, after, strict=False):
        if a.raw != b.raw:
            return same + _same_bytes(a.raw, b.raw)
        same += len(a.raw)
    return same


def _same_bytes(before: bytes, after: bytes) -> int:
    """Return how many bytes two texts that differ have in common at their beginning."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if before[:middle] == after[:middle] else (low, middle - 1)
    return low


def kept_of(pieces: Sequence[Piece], offset: int) -> int:
    """Return about how many tokens of a request lie before a byte of it."""
    tokens_before = 0
    for raw, tokens in pieces:
        if offset < len(raw):
            return tokens_before + tokens * offset // len(raw)
        offset -= len(raw)
        tokens_before += tokens
    return tokens_before


def same_until(before: Sequence[tuple[str, Any]], now: Sequence[tuple[str, Any]]) -> int | None:
    """Return the index in ``now`` of the first part that differs from before; None when ``now`` ends there.

    Each part is its kind and its content. Prompt, documents and checkpoint have fixed places and may be absent.
    """
    fixed = ("prompt", "documents", "anchor")
    old, new = dict(before), dict(now)
    index = 0
    for kind in fixed:
        if old.get(kind) != new.get(kind):
            return index if index < len(now) else None
        index += kind in new
    first = sum(kind in fixed for kind, _ in before)
    for part in before[first:]:
        if index >= len(now) or now[index][1] != part[1]:
            break
        index += 1
    return index if index < len(now) else None


def digest(tools: Any) -> str:
    """Return a digest of a tool list, equal for equal JSON values."""
    return blake2b(canonical(tools), digest_size=16).hexdigest()


def excerpt(pieces: Sequence[Piece], offset: int) -> str:
    """Return a few characters of a request from a byte on."""
    for raw, _ in pieces:
        if offset < len(raw):
            return raw[offset : offset + _EXCERPT].decode("utf-8", "replace").rstrip("\n")
        offset -= len(raw)
    return ""


def moved_at(agrees: Callable[[int], bool], first: int, last: int) -> int:
    """Return the entry after which a byte was no longer the same: the last such entry, if it is near the end."""
    near = max(first, last - _NEAR)
    for seq in range(last, near, -1):
        if agrees(seq - 1):
            return seq
    low, high = first, near
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if agrees(middle) else (low, middle)
    return high
