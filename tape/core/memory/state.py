"""What a tape remembers besides messages: slots of typed state, blocks of the prompt, and usage. Pure.

Each change is an entry that records both the caller's value and the resulting value. So reading is one look-up, and two
appends to a block never overwrite each other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tape.core import strict
from tape.core.entries import payloads
from tape.core.entries.payloads import Place
from tape.core.messages.tokens import Counter, estimate
from tape.core.plan.intents import Intent, Planned
from tape.core.plan.lookup import Lookup
from tape.core.view import slots
from tape.core.view.fold import Head
from tape.errors import Corrupt, InvalidEntry

__all__ = [
    "Block",
    "BlockSpec",
    "ChangeBlock",
    "ChangeState",
    "FreezePrompt",
    "RecordUsage",
    "Slot",
    "Usage",
    "Versioned",
    "config_hash",
    "current",
    "merge_patch",
    "migrated",
    "render_prompt",
]


# -- state


class Slot(Struct, frozen=True):
    """A declared slot of state: its type (anything msgspec can convert to), its schema version, and its migrators.

    ``migrate[n]`` turns a value of version n into one of version n + 1.
    """

    name: str
    type: Any = None
    version: int = 1
    migrate: Mapping[int, Callable[[Any], Any]] = {}


def merge_patch(value: Any, patch: Any) -> Any:
    """Return ``value`` after a JSON merge patch (RFC 7396): objects merge, None deletes, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, item in patch.items():
        if item is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), item)
    return result


class Versioned(Struct, frozen=True):
    """What a slot of state holds, UNSET for nothing, and the version of its schema; 0 where none was declared."""

    value: Any | UnsetType
    version: int


def migrated(payload: payloads.Payload | None, spec: Slot | None) -> Versioned:
    """Return what an entry of a slot holds, migrated as far towards the declared version as possible.

    A value that no migrator covers, or that a newer program wrote, keeps its own version.
    """
    if not isinstance(payload, payloads.State) or payload.value is UNSET:
        return Versioned(UNSET, 0)
    value, version = payload.value, payload.schema
    if spec is None:
        return Versioned(value, version)
    # A value that was written without a declaration counts as the first version.
    version = version or 1
    while version < spec.version and version in spec.migrate:
        value = spec.migrate[version](copy.deepcopy(value))
        version += 1
    return Versioned(value, version)


def current(payload: payloads.State, spec: Slot | None) -> Any | UnsetType:
    """Return a slot's value, migrated to the version that this program declares; the tape is not changed."""
    held = migrated(payload, spec)
    if spec is not None and held.value is not UNSET and held.version < spec.version:
        raise InvalidEntry(
            spec.name,
            f"the stored value has version {held.version}, and the slot has no migrator to version {held.version + 1}",
        )
    return held.value


def check_type(value: Any, spec: Slot) -> None:
    """Refuse a value that does not fit the slot's declared type."""
    if spec.type is not None:
        try:
            msgspec.convert(value, spec.type)
        except msgspec.ValidationError as error:
            raise InvalidEntry(spec.name, f"does not fit the slot's type: {error}") from error


class ChangeState(Intent, kw_only=True):
    """Patch a slot or put a value into it."""

    records = payloads.State

    slot: str
    given: Any
    patch: bool
    spec: Any = None

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Compute the new value of the slot and check it against its declared type."""
        value: Any | UnsetType = self.given
        schema = self.spec.version if self.spec is not None else 0
        if self.patch:
            before = look.slot(slots.STATE + self.slot)
            held = current(before, self.spec) if isinstance(before, payloads.State) else UNSET
            value = UNSET if self.given is None else merge_patch(None if held is UNSET else held, self.given)
            if isinstance(before, payloads.State) and isinstance(held, dict) and isinstance(self.given, dict):
                # A newer program wrote the rest of the value. With an older version it would be migrated again.
                schema = max(schema, before.schema)
        if value is not UNSET and self.spec is not None:
            check_type(value, self.spec)
        payload = payloads.State(slot=self.slot, given=self.given, patch=self.patch, value=value, schema=schema)
        return Planned(payload, head.place)


# -- blocks


LONGEST_LABEL = 240
"""Characters of the name of a slot or a block."""


class BlockSpec(Struct, frozen=True):
    """A block declared once for all tapes of a store.

    With a ``provider`` it lists documents that a model can load: what is loaded is shown after the prompt, and
    ``max_tokens`` is the limit of all that is loaded at one time. ``default`` is shown above the list.
    """

    label: str
    description: str | None = None
    max_tokens: int | None = None
    read_only: bool = False
    default: str = ""
    provider: Any = None
    """A ``Provider``, or None."""


def provider_of(label: str, specs: Sequence[BlockSpec]) -> BlockSpec | None:
    """Return the declared block with a provider that a label belongs to: its own label, or that of a document."""
    for spec in specs:
        if spec.provider is not None and (label == spec.label or label.startswith(f"{spec.label}/")):
            return spec
    return None


class Block(Struct, frozen=True):
    """A block of the prompt as it is now. ``read_only`` applies to the model's tool, not to the program."""

    label: str
    text: str
    description: str | None
    max_tokens: int | None
    read_only: bool
    tokens: int
    seq: int | None
    """The entry that holds the text; None for a declared block that was never written."""
    loadable: bool = False
    """Whether it lists documents that can be loaded; then its text is its provider's."""

    @property
    def percent(self) -> int | None:
        """How much of the limit is used, if there is one."""
        return None if not self.max_tokens else round(100 * self.tokens / self.max_tokens)


class ChangeBlock(Intent, kw_only=True):
    """Set, extend or remove a block."""

    records = payloads.Block

    label: str
    op: str
    text: str | None
    description: str | UnsetType | None = UNSET
    max_tokens: int | UnsetType | None = UNSET
    read_only: bool | UnsetType = UNSET
    spec: BlockSpec | None = None
    counter: Any = estimate

    def content(self) -> Any:
        """Return the label, what is done, and the text given."""
        return payloads.Block(label=self.label, op=self.op, given=self.text).content()

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Compute the new block; a text over its limit is refused."""
        before = look.slot(slots.BLOCK + self.label)
        spec = self.spec or BlockSpec(self.label)
        if not isinstance(before, payloads.Block) or before.text is None:
            before = payloads.Block(
                label=self.label,
                op="set",
                text=None if self.spec is None else spec.default,
                description=spec.description,
                max_tokens=spec.max_tokens,
                read_only=spec.read_only,
                declared=self.spec is not None,
            )
        if before.loaded:
            # Also where its provider is not declared: text from outside must not become a part of the prompt.
            raise InvalidEntry("label", f"{self.label!r} is a loaded document; use load_block() or unload_block()")
        text = self.text
        if self.op == "remove" and before.text is None:
            raise InvalidEntry("label", f"there is no block {self.label!r}")
        if self.op == "append":
            text = with_line(before.text or "", text or "")
        payload = payloads.Block(
            label=self.label,
            op=self.op,
            given=self.text,
            text=text,
            description=before.description if self.description is UNSET else self.description,
            max_tokens=before.max_tokens if self.max_tokens is UNSET else self.max_tokens,
            read_only=before.read_only if self.read_only is UNSET else self.read_only,
            declared=before.declared,
        )
        if payload.max_tokens is not None and text is not None:
            tokens = self.counter(text)
            if tokens > payload.max_tokens:
                limit = f"block {self.label!r} holds at most {payload.max_tokens}"
                raise InvalidEntry("text", f"has {tokens} tokens, but {limit}")
        return Planned(payload, head.place)


def with_line(text: str, line: str) -> str:
    """Return a block's text with a line appended to it."""
    return f"{text}\n{line}" if text and line and not line.startswith("\n") else f"{text}{line}"


class FreezePrompt(Intent, kw_only=True):
    """Record the prompt as it is rendered from the blocks now."""

    records = payloads.Block

    specs: Any = ()
    counter: Any = estimate

    def content(self) -> Any:
        """Return no text, because a frozen prompt is never compared with another."""
        return payloads.Block(label="", op="freeze").content()

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Render the blocks as they are now."""
        by_label = {slot.removeprefix(slots.BLOCK): (seq, entry) for slot, seq, entry in look.slots(slots.BLOCK)}
        blocks = assemble(self.specs, by_label, self.counter)
        text = render_prompt(blocks)
        payload = payloads.Block(label="", op="freeze", text=text, config=config_hash(blocks))
        return Planned(payload, head.place)


def assemble(
    specs: Sequence[BlockSpec], held: Mapping[str, tuple[int, Any]], counter: Counter = estimate
) -> list[Block]:
    """Return the blocks of a tape: declared ones first, in their order, then those made on the tape, oldest first.

    Documents that are loaded are none of them.
    """
    declared = {spec.label: spec for spec in specs}
    labels = [*declared, *(label for label in sorted(held, key=lambda name: held[name][0]) if label not in declared)]
    blocks = []
    for label in labels:
        seq, payload = held.get(label, (None, None))
        if label in declared and declared[label].provider is not None:
            spec = declared[label]
            tokens = counter(spec.default)
            blocks.append(Block(label, spec.default, spec.description, spec.max_tokens, True, tokens, None, True))
        elif isinstance(payload, payloads.Block):
            if payload.text is None or payload.loaded:
                continue
            blocks.append(
                Block(
                    label,
                    payload.text,
                    payload.description,
                    payload.max_tokens,
                    payload.read_only,
                    counter(payload.text),
                    seq,
                )
            )
        else:
            spec = declared[label]
            tokens = counter(spec.default)
            blocks.append(Block(label, spec.default, spec.description, spec.max_tokens, spec.read_only, tokens, None))
    return blocks


_RULE = "=" * 46


def render_prompt(blocks: Sequence[Block]) -> str:
    """Return the system prompt: every block under its header. Empty blocks that are read-only are left out."""
    parts = []
    for block in blocks:
        if not block.text and block.read_only:
            continue
        header = block.label.upper()
        if block.description:
            header += f" ({block.description})"
        if block.loadable:
            limit = f", at most {block.max_tokens} tokens" if block.max_tokens is not None else ""
            header += f" [loadable{limit}]"
            parts.append(f"{_RULE}\n{header}\n{_RULE}\n{block.text}")
            continue
        if block.max_tokens:
            header += f" [{block.percent}% - {block.tokens}/{block.max_tokens} tokens]"
        header += " [read-only]" if block.read_only else " [writable]"
        parts.append(f"{_RULE}\n{header}\n{_RULE}\n{block.text}")
    return "\n\n".join(parts)


def config_hash(blocks: Sequence[Block]) -> str:
    """Return a hash of how the blocks are configured, whatever they contain."""
    config = [(block.label, block.description, block.max_tokens, block.read_only) for block in blocks]
    return blake2b(msgspec.json.encode(config), digest_size=16).hexdigest()


# -- usage


class Usage(Struct, frozen=True):
    """Tokens and cost of a tape so far. Cost is in millionths of whatever the caller counts in."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: int = 0
    calls: int = 0


class RecordUsage(Intent, kw_only=True):
    """Add the usage of one model call to the totals."""

    records = payloads.Usage

    used: payloads.Usage

    def content(self) -> Any:
        """Return the usage given."""
        return self.used.content()

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Add to the totals that the last usage entry holds. A fork counts its own from nothing."""
        before = look.slot(slots.USAGE, inherited=False)
        totals = before.totals if isinstance(before, payloads.Usage | payloads.Merge) else [0, 0, 0, 0, 0]
        used = self.used
        added = (used.input_tokens, used.output_tokens, used.cached_tokens, used.cost, 1)
        payload = msgspec.structs.replace(used, totals=[a + b for a, b in zip(totals, added, strict=True)])
        return Planned(payload, head.place)


def usage_of(payload: Any, tape: str = "", seq: int = 0) -> Usage:
    """Return the totals that a usage entry holds; raises Corrupt, which names the entry, when it holds none."""
    if payload is None:
        return Usage()
    if not isinstance(payload, payloads.Usage | payloads.Merge) or len(payload.totals) != 5:
        raise Corrupt(tape, seq, "the usage entry has no totals")
    return Usage(*payload.totals)


def whole_number(value: Any, field: str, *, most: int | None = strict.MAX_INT) -> int:
    """Return ``value`` if it is a count of tokens or a cost: an integer of at least 0.

    What is only recorded and added up, such as usage, may be of any size.
    """
    if type(value) is not int or value < 0 or (most is not None and value > most):
        raise InvalidEntry(field, f"must be an integer of at least 0, not {strict.shown(value)}")
    return value


def block_text(value: Any) -> str:
    """Return a block's text, which may be empty."""
    return strict.text(value, "text", empty=True)
