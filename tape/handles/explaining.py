"""Explaining a context: the entry behind each part of it, and what moved since the recorded one before it.

To find what moved, the context is built again as of the entries in between, with the same budget, policy and branch.
The cause is the entry before which the two requests still agree, and after which they do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from tape.core import strict, typed
from tape.core.context.build import Context
from tape.core.context.causes import replaces, why_moved
from tape.core.context.explain import (
    Difference,
    Explanation,
    Piece,
    Region,
    common_prefix,
    excerpt,
    kept_of,
    moved_at,
    pieces_of,
    same_until,
)
from tape.core.context.manifest import Manifest
from tape.core.context.policy import STANDARD, Item, Policy
from tape.core.context.weigh import Scale
from tape.core.entries import payloads
from tape.core.memory.prices import Prices
from tape.core.messages import shapes
from tape.core.messages.tokens import MESSAGE_TOKENS, estimate
from tape.core.records import Entry, Message
from tape.core.render.convert import ANTHROPIC, APIS
from tape.db.read.recall import CONTEXT, Recalled
from tape.errors import Corrupt, InvalidEntry, TapeError

if TYPE_CHECKING:
    from tape.handles.snapshot import Snapshot

__all__ = ["explain"]

_USAGE_WITHIN = 200
"""How many entries after a recorded context are searched for the usage of its call."""


class _Part(Struct, frozen=True):
    """A part of a context before it is rendered."""

    kind: str
    shown: Any
    """Its text, or its message in the neutral shape."""
    data: dict[str, Any]
    tape: str | None = None
    seq: int | None = None
    step: str = "as recorded"


class _Side:
    """A context that is explained or compared, built now or recorded then."""

    def __init__(self, shown: Context | Recalled, recorded: int | None, count: Any) -> None:
        self.shown = shown
        self.recorded = recorded
        self.count = count
        manifest = shown.manifest
        data = manifest if isinstance(manifest, dict) else msgspec.to_builtins(manifest)
        try:
            self.manifest = typed.convert(data, Manifest)
        except msgspec.ValidationError as error:
            raise InvalidEntry("seq", f"the entry at seq {recorded} holds no manifest: {error}") from None

    def pieces(self, api: str) -> list[Piece]:
        """Return the request that it is rendered as."""
        request = self.shown.to_anthropic() if api == ANTHROPIC else self.shown.to_openai(api)
        return pieces_of(request, self.count)

    @cached_property
    def parts(self) -> list[_Part]:
        """What it is made of, in the order of the request."""
        manifest = self.manifest
        texts = [("prompt", manifest.prompt), ("documents", manifest.documents), ("anchor", manifest.checkpoint)]
        parts = [_Part(kind, text, {"role": "user", "content": text}) for kind, text in texts if text]
        altered = iter(manifest.altered)
        for data in self.shown.messages:
            data = data.data if isinstance(data, Message) else data
            parts.append(_Part("message", shapes.read(data), data))
        fixed = len(parts) - len(self.shown.messages)
        index = fixed
        for item in manifest.included:
            if isinstance(item, dict):
                origin = next(altered, None)
                if origin is not None:
                    part = msgspec.structs.replace(parts[index], tape=origin.tape, seq=origin.seq, step=origin.why)
                    parts[index] = part
                index += 1
                continue
            tape, first, last = item
            for seq in range(first, last + 1):
                parts[index] = msgspec.structs.replace(parts[index], tape=tape, seq=seq)
                index += 1
        return parts


class _Explaining:
    """The explanation of one context."""

    def __init__(self, reads: Snapshot, side: _Side, policy: Policy | None, api: str, prices: Prices) -> None:
        self.reads = reads
        self.reader = reads._services.reader
        self.side = side
        self.policy = policy
        self.api = api
        self.prices = prices

    # -- regions

    def regions(self) -> list[Region]:
        """Return each part with the entry behind it."""
        side, manifest = self.side, self.side.manifest
        prompt, documents = self.reader.prompt_entries(self.reads.id, manifest.head or None)
        origins = {"prompt": prompt, "documents": documents, "anchor": manifest.anchor}
        placed = [
            (part.tape, part.seq) if part.seq is not None else origins.get(part.kind) or (None, None)
            for part in side.parts
        ]
        entries = self._entries([(tape, seq) for tape, seq in placed if tape is not None and seq is not None])
        regions = []
        for part, (tape, seq), tokens in zip(side.parts, placed, self._tokens(), strict=True):
            entry = entries.get((tape, seq))
            payload = entry.payload if entry is not None else None
            kind = "summary" if isinstance(payload, payloads.Compact) else part.kind
            regions.append(
                Region(
                    kind=kind,
                    tokens=tokens,
                    step=_step(part, payload),
                    tape=tape,
                    seq=seq,
                    entry_kind=entry.kind if entry is not None else None,
                    actor=entry.actor if entry is not None else None,
                    message_id=payload.id if isinstance(payload, payloads.Append | payloads.Revise) else None,
                    role=part.shown.role if isinstance(part.shown, shapes.Neutral) else None,
                    placed=payload.placed if isinstance(payload, payloads.Revise) else None,
                )
            )
        return regions

    def _tokens(self) -> list[int]:
        fixed = [part for part in self.side.parts if isinstance(part.shown, str)]
        items = [
            Item(Message("", "", part.data, None, 0, 0, 0), 0)
            for part in self.side.parts
            if not isinstance(part.shown, str)
        ]
        weights = Scale(self.side.count).weigh(items).weights
        return [*(self.side.count(part.shown) + MESSAGE_TOKENS for part in fixed), *weights]

    def _entries(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str | None, int | None], Entry]:
        """Return entries by tape and seq, read in as few ranges as possible."""
        ranges: list[list[Any]] = []
        for tape, seq in sorted(set(places)):
            if ranges and ranges[-1][0] == tape and ranges[-1][2] + 1 == seq:
                ranges[-1][2] = seq
            else:
                ranges.append([tape, seq, seq])
        by_place: dict[tuple[str | None, int | None], Entry] = {}
        for tape, first, last in ranges:
            for entry in self.reader.entries_between(self.reads.id, self.side.manifest.head, tape, first, last):
                by_place[entry.tape, entry.seq] = entry
        return by_place

    # -- what moved

    def difference(self, before: _Side, regions: Sequence[Region]) -> Difference | None:
        """Return where the request begins to differ from the one before, and what moved it; None when it only grew."""
        side = self.side
        old, new = before.pieces(self.api), side.pieces(self.api)
        whole = sum(piece.tokens for piece in old)
        for cause, was, now in (
            ("model", before.manifest.model, side.manifest.model),
            ("tools", before.manifest.tools, side.manifest.tools),
        ):
            if was is not None and now is not None and was != now:
                why = f"the model changed from {was} to {now}" if cause == "model" else "the tool list changed"
                return self._difference(before, regions, 0, cause, why, None, whole, 0)
        offset = common_prefix(old, new)
        if offset == sum(len(piece.raw) for piece in old):
            return None
        common = kept_of(old, offset)
        at = same_until([(part.kind, part.shown) for part in before.parts], [(p.kind, p.shown) for p in side.parts])
        region = regions[at] if at is not None else None
        cause, why, entry = self._cause(before, old, offset, region)
        change = self._difference(before, regions, offset, cause, why, entry, whole - common, common)
        return msgspec.structs.replace(change, region=at, before=excerpt(old, offset), after=excerpt(new, offset))

    def _cause(
        self, before: _Side, old: Sequence[Piece], offset: int, region: Region | None
    ) -> tuple[str, str, Entry | None]:
        """Return what moved a byte: an entry between the two contexts, or a changed argument of the caller."""
        agrees = self._agreement(before, old, offset)
        first, last = before.manifest.head, self.side.manifest.head
        if isinstance(agrees, str):
            return ("policy" if self.policy is None else "settings"), agrees, None
        if not agrees(first):
            changed = region is not None and region.kind == "prompt" and region.tape == self.reads.id
            if region is not None and region.seq is not None and changed and region.seq > first:
                # The prompt cannot be rendered here as it was then, because this program declares other blocks.
                entry = self._entry(region.seq)
                return (*why_moved(entry, self.side.manifest), entry)
            return (*self._changed_request(before), None)
        seq = moved_at(agrees, first, last)
        entry = self._entry(seq)
        if region is not None and region.seq is not None and region.tape == self.reads.id and region.seq > seq:
            shown = self._entry(region.seq)
            if replaces(shown, entry):
                # It was moved more than once, and this is the entry whose content is shown.
                entry = shown
        return (*why_moved(entry, self.side.manifest), entry)

    def _agreement(self, before: _Side, old: Sequence[Piece], offset: int) -> Callable[[int], bool] | str:
        """Return a function that compares the context as of an entry with the one before, or why there is none."""
        manifest, policy = self.side.manifest, self.policy
        if policy is None:
            if (manifest.policy, manifest.version) != (STANDARD.name, STANDARD.version):
                return f"the policy {manifest.policy} {manifest.version} is unknown here; pass it as policy="
            policy = self.policy = STANDARD
        known: dict[int, bool] = {}
        same_prompt = before.manifest.prompt == manifest.prompt

        def pieces(seq: int) -> list[Piece]:
            context = self.reads._context_at(seq, manifest.budget, manifest.branch, policy)
            if same_prompt:
                # The prompt may be rendered from blocks that only the recording program declares.
                context.prompt = manifest.prompt
            return _Side(context, None, self.side.count).pieces(self.api)

        def agrees(seq: int) -> bool:
            if seq not in known:
                try:
                    known[seq] = common_prefix(old, pieces(seq)) > offset
                except TapeError:
                    # A branch that did not exist yet, or a budget that nothing fitted into.
                    known[seq] = False
            return known[seq]

        if agrees(manifest.head):
            return "the context cannot be rebuilt here: the store was opened with different settings"
        return agrees

    def _changed_request(self, before: _Side) -> tuple[str, str]:
        """Return which argument of the caller changed."""
        was, now = before.manifest, self.side.manifest
        if (was.policy, was.version) != (now.policy, now.version):
            return "policy", f"the policy changed from {was.policy} {was.version} to {now.policy} {now.version}"
        if was.budget != now.budget:
            return "budget", f"the budget changed from {was.budget} to {now.budget}"
        if was.branch != now.branch:
            names = [side.branch or "the active one" for side in (was, now)]
            return "branch", f"the branch changed from {names[0]} to {names[1]}"
        return (
            "settings",
            "no entry caused the change: the store declares different blocks, or the policy has different parameters",
        )

    def _entry(self, seq: int) -> Entry | None:
        return self.reader.entry(self.reads.id, None, seq, None)

    # -- what it costs

    def _difference(
        self,
        before: _Side,
        regions: Sequence[Region],
        offset: int,
        cause: str,
        why: str,
        entry: Entry | None,
        lost: int,
        common: int,
    ) -> Difference:
        """Return a difference with what the usage of both calls reports."""
        seq = entry.seq if entry is not None else self.side.recorded
        used_before, used = (self._usage(side.recorded) for side in (before, self.side))
        cost = self._cost(lost, used_before)
        return Difference(
            offset=offset,
            region=0 if regions else None,
            cause=cause,
            why=why,
            before="",
            after="",
            kept_tokens=common,
            lost_tokens=lost,
            tape=self.reads.id if seq is not None else None,
            seq=seq,
            actor=entry.actor if entry is not None else None,
            cost=cost,
            currency=self.prices.currency if cost is not None else None,
            cached_before=used_before.cached_tokens if used_before is not None else None,
            cached_after=used.cached_tokens if used is not None else None,
        )

    def _usage(self, recorded: int | None) -> payloads.Usage | None:
        """Return the usage of the call of a recorded context, if it was recorded soon after it."""
        if recorded is None:
            return None
        near = self.reader.entries_between(self.reads.id, None, self.reads.id, recorded + 1, recorded + _USAGE_WITHIN)
        for entry in near:
            if isinstance(entry.payload, payloads.Event) and entry.payload.name == CONTEXT:
                return None
            if isinstance(entry.payload, payloads.Usage):
                return entry.payload
        return None

    def _cost(self, lost: int, used: payloads.Usage | None) -> int | None:
        """Return what it costs to read lost tokens again instead of from the cache, in millionths.

        Only a call whose usage reports that the cache was read or written can lose anything of it.
        """
        if used is None or not used.cached_tokens + used.cache_write_tokens:
            return None
        price = self.prices.price(used.model or self.side.manifest.model)
        if price is None or price.cached_input is None:
            return None
        written = used.cache_write_tokens and price.cache_write is not None
        fresh = price.cache_write if written and price.cache_write is not None else price.input
        # A price per million tokens is a price in millionths per token.
        return round(lost * (fresh - price.cached_input))


def _step(part: _Part, payload: Any) -> str:
    if part.kind == "prompt":
        frozen = isinstance(payload, payloads.Block) and payload.op == "freeze"
        return "frozen" if frozen else "rendered from the blocks"
    return {"documents": "loaded", "anchor": "the latest anchor on the path"}.get(part.kind, part.step)


def explain(
    reads: Snapshot, context: Context | int, policy: Policy | None, against: int | None, api: str, prices: Prices | None
) -> Explanation:
    """Return what a context is made of and what moved since the one before it."""
    if prices is None:
        from tape.prices import load_prices

        prices = load_prices()
    elif not isinstance(prices, Prices):
        raise InvalidEntry("prices", f"must be Prices, not {type(prices).__name__}")
    api = strict.one_of(api, tuple(APIS), "api")
    reader, id = reads._services.reader, reads.id
    count = reader.settings.counter or estimate
    if isinstance(context, Context):
        side, policy = _Side(context, context._recorded, count), context._policy
    else:
        side = _Side(reader.recall(id, strict.seq(context, "context")), context, count)
    explaining = _Explaining(reads, side, policy, api, prices)
    regions = explaining.regions()
    manifest = side.manifest
    before = None
    if against is not None:
        before = _Side(reader.recall(id, strict.seq(against, "against")), against, count)
        if before.manifest.head > manifest.head:
            raise InvalidEntry(
                "against", f"the context recorded at seq {against} is newer than this one; compare with an older one"
            )
    elif (last := reader.recorded_before(id, side.recorded or manifest.head + 1)) is not None:
        with contextlib.suppress(InvalidEntry, Corrupt):
            # An imported file may contain anything there.
            before = _Side(reader.recall(id, last), last, count)
    return Explanation(
        tape=id,
        head=manifest.head,
        policy=manifest.policy,
        version=manifest.version,
        budget=manifest.budget,
        tokens=manifest.tokens,
        hash=manifest.hash,
        api=api,
        regions=regions,
        left_out=manifest.excluded,
        recorded=side.recorded,
        against=before.recorded if before is not None else None,
        difference=explaining.difference(before, regions) if before is not None else None,
        model=manifest.model,
        tools=manifest.tools,
    )
