"""The writes of what a tape keeps besides messages: checkpoints, events, state, blocks, the prompt and usage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from tape.core import strict
from tape.core.entries import payloads
from tape.core.memory.loading import LoadBlock, fetched, label_of
from tape.core.memory.state import (
    LONGEST_LABEL,
    ChangeBlock,
    ChangeState,
    FreezePrompt,
    RecordUsage,
    block_text,
    provider_of,
    whole_number,
)
from tape.core.messages.tokens import estimate
from tape.core.plan.intents import AddAnchor, Plain, new_event
from tape.core.plan.keys import GIVEN, Key
from tape.core.records import Receipt
from tape.db.record.writing import Call
from tape.errors import InvalidEntry
from tape.handles.options import WriteOptions, call_of, public_as
from tape.handles.recorded import Request, composed, recorded
from tape.handles.snapshot import Snapshot

__all__ = ["MemoryWriter"]


@public_as("Tape")
class MemoryWriter(Snapshot):
    """What a tape does to be remembered beside its messages."""

    # -- checkpoints and facts

    @recorded
    def anchor(
        self,
        name: str,
        state: Any = None,
        *,
        parents: Iterable[int] = (),
        source_ids: Iterable[str] = (),
        **options: Unpack[WriteOptions],
    ) -> Request:
        """Set a checkpoint: context starts after it, with its state. ``parents`` are seqs of earlier anchors."""
        call = call_of(self._id, **options)
        strict.encode(state, "state")
        payload = payloads.Anchor(
            name=strict.identifier(name, "name"),
            state=state,
            parents=[strict.seq(seq, "parents") for seq in strict.listed(parents, "parents")],
            source_ids=strict.distinct(source_ids, "source_ids"),
        )
        return Request(call, [AddAnchor(key=self._services.keyed(call.key), payload=payload)])

    @recorded
    def handoff(
        self,
        name: str,
        *,
        summary: str,
        phase: str | None = None,
        next_steps: Iterable[str] = (),
        source_ids: Iterable[str] = (),
        owner: str | None = None,
        state: Any = None,
        **options: Unpack[WriteOptions],
    ) -> Request:
        """Set a checkpoint with a contract: what was done (``summary``, required) and what comes next."""
        call = call_of(self._id, **options)
        strict.encode(state, "state")
        payload = payloads.Handoff(
            name=strict.identifier(name, "name"),
            summary=strict.text(summary, "summary"),
            phase=None if phase is None else strict.text(phase, "phase"),
            next_steps=[strict.text(step, "next_steps") for step in strict.listed(next_steps, "next_steps")],
            source_ids=strict.distinct(source_ids, "source_ids"),
            owner=None if owner is None else strict.identifier(owner, "owner"),
            state=state,
        )
        return Request(call, [AddAnchor(key=self._services.keyed(call.key), payload=payload)])

    @recorded
    def event(self, name: str, data: Any = None, **options: Unpack[WriteOptions]) -> Request:
        """Record a fact that never enters context: a run, a score, a label, a note."""
        call = call_of(self._id, **options)
        payload = new_event(name, data)
        if payload.name.startswith("tape."):
            raise InvalidEntry("name", "must not begin with 'tape.', which marks the store's own events")
        intent = Plain(key=self._services.keyed(call.key), payload=payload)
        return Request(call, [intent])

    @recorded
    def _event_of_run(
        self, name: str, data: msgspec.Struct, key: str, claimed: tuple[str, msgspec.Struct, str] | None = None
    ) -> Request:
        """Record an event of a run's journal, whose data is strict JSON and whose key is an identifier already.

        Neither is checked again; only data that may be nested too deep is. ``claimed`` is a second event: its name,
        data and key. Both are recorded, or neither is.
        """
        beside: list[Plain] = []
        if claimed is not None:
            claim = payloads.Event(name=claimed[0], data=msgspec.Raw(payloads.encode(claimed[1])))
            beside = [Plain(key=Key(claimed[2], GIVEN), payload=claim)]
        try:
            raw = payloads.encode(data)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
            raw = None
        if raw is None or raw.count(b"[") + raw.count(b"{") > strict.MAX_DEPTH:
            request = composed(MemoryWriter.event, self, name, msgspec.to_builtins(data), key=key)
            return Request(request.call, [*request.intents, *beside])
        payload = payloads.Event(name=name, data=msgspec.Raw(raw))
        return Request(Call(self._id, key=key), [Plain(key=Key(key, GIVEN), payload=payload), *beside])

    # -- state

    @recorded
    def patch(self, slot: str, patch: Any, **options: Unpack[WriteOptions]) -> Request:
        """Change a slot of state by a JSON merge patch: None deletes a member, or the slot itself."""
        call = call_of(self._id, **options)
        return self._change_state(call, slot, strict.encode(patch, "patch"), patch=True)

    @recorded
    def put(self, slot: str, value: Any, **options: Unpack[WriteOptions]) -> Request:
        """Put a value into a slot of state; it may hold nulls."""
        call = call_of(self._id, **options)
        return self._change_state(call, slot, strict.encode(value, "value"), patch=False)

    def _change_state(self, call: Call, slot: str, raw: bytes, *, patch: bool) -> Request:
        slot = _name(slot, "slot")
        intent = ChangeState(
            key=self._services.keyed(call.key),
            slot=slot,
            given=msgspec.json.decode(raw),
            patch=patch,
            spec=self._reader.settings.slots.get(slot),
        )
        return Request(call, [intent])

    # -- blocks and the prompt

    @recorded
    def set_block(
        self,
        label: str,
        text: str,
        *,
        description: str | UnsetType | None = UNSET,
        max_tokens: int | UnsetType | None = UNSET,
        read_only: bool | UnsetType = UNSET,
        **options: Unpack[WriteOptions],
    ) -> Request:
        """Set a block of the prompt. What is not given of its configuration stays; over its limit it is refused."""
        call = call_of(self._id, **options)
        if max_tokens is not UNSET and max_tokens is not None:
            whole_number(max_tokens, "max_tokens")
        if description is not UNSET and description is not None:
            description = strict.text(description, "description", empty=True)
        if read_only is not UNSET:
            strict.flag(read_only, "read_only")
        intent = self._block(call, label, "set", block_text(text))
        intent.description, intent.max_tokens, intent.read_only = description, max_tokens, read_only
        return Request(call, [intent])

    @recorded
    def append_block(self, label: str, text: str, **options: Unpack[WriteOptions]) -> Request:
        """Add a line to a block. Two of these at one time both land."""
        call = call_of(self._id, **options)
        return Request(call, [self._block(call, label, "append", block_text(text))])

    @recorded
    def remove_block(self, label: str, **options: Unpack[WriteOptions]) -> Request:
        """Remove a block from the prompt."""
        call = call_of(self._id, **options)
        return Request(call, [self._block(call, label, "remove", None)])

    def load_block(self, label: str, document: str, **options: Unpack[WriteOptions]) -> Receipt:
        """Load a document, by its key, from the provider of a block: from now on it is shown, after the prompt.

        The provider is asked before anything is recorded; whatever goes wrong in it is InvalidEntry. So is a document
        that does not fit into the block's limit with what is loaded already. Loaded again, it is renewed. With the key
        of an earlier call the receipt of that one comes back.
        """
        call = call_of(self._id, **options)
        self._services.database.check_writable()
        whole = label_of(label, document)
        spec = provider_of(whole, self._reader.settings.blocks)
        if spec is None or spec.label != label:
            raise InvalidEntry("label", f"{label!r} is not a block with a provider")
        text = fetched(spec, "load", document)
        if not isinstance(text, str):
            raise InvalidEntry(
                "document", f"the provider of {label!r} returned a {type(text).__name__} instead of a string"
            )
        return self._load(call, spec.label, document, strict.text(text, "text", empty=True), spec.max_tokens)

    def unload_block(self, label: str, document: str, **options: Unpack[WriteOptions]) -> Receipt:
        """Take a loaded document out of what is shown; its entry stays. One that is not loaded is InvalidEntry."""
        call = call_of(self._id, **options)
        label_of(label, document)
        return self._load(call, label, document, None, None)

    def _load(self, call: Call, label: str, document: str, text: str | None, limit: int | None) -> Receipt:
        counter = self._reader.settings.counter or estimate
        intent = LoadBlock(
            key=self._services.keyed(call.key), label=label, name=document, text=text, max_tokens=limit, counter=counter
        )
        return self._services.recorder.record(call, [intent])[0]

    def _block(self, call: Call, label: str, op: str, text: str | None) -> ChangeBlock:
        label = _name(label, "label")
        settings = self._reader.settings
        if provider_of(label, settings.blocks) is not None:
            raise InvalidEntry(
                "label", f"block {label!r} is filled by its provider; change it with load_block and unload_block"
            )
        spec = next((spec for spec in settings.blocks if spec.label == label), None)
        counter = settings.counter or estimate
        return ChangeBlock(
            key=self._services.keyed(call.key), label=label, op=op, text=text, spec=spec, counter=counter
        )

    def freeze_prompt(self, **options: Unpack[WriteOptions]) -> str:
        """Return the frozen prompt, recording it as it is rendered now if there is none yet."""
        call = call_of(self._id, **options)
        frozen = self._reader.frozen(self._id)
        return self._freeze(call) if frozen is None else frozen

    def refresh_prompt(self, **options: Unpack[WriteOptions]) -> str:
        """Render the prompt from the blocks as they are now, record it, and return it.

        With the key of an earlier call, that call's prompt comes back.
        """
        return self._freeze(call_of(self._id, **options))

    def _freeze(self, call: Call) -> str:
        settings = self._reader.settings.provided(live=False)
        intent = FreezePrompt(
            key=self._services.keyed(call.key), specs=settings.blocks, counter=settings.counter or estimate
        )
        receipt = self._services.recorder.record(call, [intent])[0]
        payload = self.entry(seq=receipt.seq).payload
        return (payload.text if isinstance(payload, payloads.Block) else None) or ""

    # -- usage

    @recorded
    def record_usage(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        cost: int = 0,
        model: str | None = None,
        cache_write_tokens: int = 0,
        **options: Unpack[WriteOptions],
    ) -> Request:
        """Add the tokens and the cost (in millionths) of one model call to the totals of the tape.

        ``input_tokens`` counts all of the input: ``cached_tokens`` (read from the cache) and ``cache_write_tokens`` are
        parts of it. Without a ``cost``, ``store.usage`` works it out from the model and a table of prices.
        """
        call = call_of(self._id, **options)
        used = payloads.Usage(
            input_tokens=whole_number(input_tokens, "input_tokens", most=None),
            output_tokens=whole_number(output_tokens, "output_tokens", most=None),
            cached_tokens=whole_number(cached_tokens, "cached_tokens", most=None),
            cost=whole_number(cost, "cost", most=None),
            cache_write_tokens=whole_number(cache_write_tokens, "cache_write_tokens", most=None),
            model=None if model is None else strict.identifier(model, "model"),
        )
        intent = RecordUsage(key=self._services.keyed(call.key), used=used)
        return Request(call, [intent])


def _name(name: str, field: str) -> str:
    """Return the name of a slot or a block; raises InvalidEntry for one that is too long to be kept."""
    name = strict.identifier(name, field)
    if len(name) > LONGEST_LABEL:
        raise InvalidEntry(field, f"must have at most {LONGEST_LABEL} characters")
    return name
