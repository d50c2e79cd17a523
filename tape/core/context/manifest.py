"""Manifests: what a context shows, what it leaves out and why, and what its rendering repairs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tape.core.context.policy import Excluded, Item
from tape.core.messages import shapes
from tape.core.render import requests
from tape.core.strict import RESERVED, copied

__all__ = ["Altered", "Manifest", "Repair", "altered", "included", "joined", "repairs_of"]


class Repair(Struct, frozen=True, omit_defaults=True):
    """Something that the output repairs or cannot show as it is.

    Kinds: an orphan result (left out), an unclear result (shown as text), an unsettled call (answered with a mark), a
    reused call id (numbered), a repeated call (sent once), an empty message (left out), a part that not every API
    accepts (replaced by a mark).
    """

    what: str
    call: str
    """The id of the tool call; empty where there is none."""
    message_id: str
    apis: tuple[str, ...] = ()
    """The renderings that it concerns, of ``chat``, ``responses`` and ``anthropic``; empty for all of them."""


class Altered(Struct, frozen=True):
    """A message that is not shown as it was recorded: the entry that it was made from, and why."""

    tape: str
    seq: int
    why: str


class Manifest(Struct, frozen=True):
    """What a context shows and why: enough to build it again without the policy's code."""

    tape: str
    head: int
    policy: str
    version: int
    budget: int | None
    anchor: tuple[str, int] | None
    prompt: str | None
    included: list[Any]
    """In order: [tape, first, last] for entries shown as recorded, or the message itself where it was altered."""
    excluded: list[Excluded]
    repairs: list[Repair]
    tokens: int
    hash: str
    """Equal for the same entries and policy."""
    checkpoint: str = ""
    """The anchor as it was rendered for the model."""
    stale: bool = False
    """Whether a message that the anchor was made from had changed by then."""
    documents: str = ""
    """The documents loaded from the providers of blocks, as they were shown."""
    altered: list[Altered] = []
    """For each message that ``included`` holds in full, in order: its source entry, and why it was altered."""
    branch: str | None = None
    """The message that the caller named as the end of the branch, if any."""
    model: str | None = None
    """The model that the request goes to, if the caller named it."""
    tools: str | None = None
    """A digest of the tools that the request offers, if the caller gave them."""


def joined(excluded: Sequence[Excluded]) -> list[Excluded]:
    """Return the ranges with adjacent ones merged."""
    ranges: list[Excluded] = []
    for following in excluded:
        last = ranges[-1] if ranges else None
        adjoining = (following.tape, following.why, following.first)
        if last is not None and (last.tape, last.why, last.last + 1) == adjoining:
            ranges[-1] = Excluded(last.tape, last.first, following.last, following.why)
        else:
            ranges.append(following)
    return ranges


def repairs_of(items: Sequence[Item]) -> list[Repair]:
    """Return what the rendered output repairs, and what not every API accepts as it is."""
    neutrals = [shapes.read(item.message.data) for item in items]
    repairs = [Repair(fix.what, fix.call, items[fix.at].message.id) for fix in requests.mend(neutrals).fixes]
    for item, neutral in zip(items, neutrals, strict=True):
        if all(isinstance(part, shapes.Text) for part in neutral.parts):
            if not any(part.text.strip() for part in neutral.parts if isinstance(part, shapes.Text)):
                # OpenAI accepts blank text, Anthropic does not.
                repairs.append(Repair("empty message", "", item.message.id, ("anthropic",) if neutral.parts else ()))
            continue
        for word, apis in requests.untaken(neutral).items():
            repairs.append(Repair(f"{word} not shown", "", item.message.id, tuple(apis)))
    return repairs


def included(items: Sequence[Item]) -> list[Any]:
    """Return what is shown, in order: recorded entries as ranges, and altered messages in full."""
    shown: list[Any] = []
    for item in items:
        tape, seq = item.entry
        if _in_full(item):
            shown.append(copied(item.message.data))
            continue
        before = shown[-1] if shown and isinstance(shown[-1], list) else None
        if before is not None and before[0] == tape and before[2] + 1 == seq:
            before[2] = seq
        else:
            shown.append([tape, seq, seq])
    return shown


def altered(items: Sequence[Item]) -> list[Altered]:
    """Return the messages that are not shown as they were recorded, in order."""
    return [Altered(*item.entry, _why_altered(item)) for item in items if _in_full(item)]


def _why_altered(item: Item) -> str:
    return item.why or ("a summary replaces the messages it covers" if _made(item) else "altered by the policy")


def _in_full(item: Item) -> bool:
    """Whether a manifest holds a message itself."""
    return item.altered or _made(item)


def _made(item: Item) -> bool:
    return item.message.id.startswith(RESERVED)
