"""A tape that takes over entries as they were recorded elsewhere, line by line of a file that was checked."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tape.core.entries import payloads
from tape.core.transfer.export_format import Checker, EntryLine
from tape.core.view.fold import fold
from tape.db.engine.transaction import Transaction
from tape.db.record.projection import tape_of
from tape.db.record.writing import Call, Shared, TapeState, Writing, check_here, head_values
from tape.db.view.ancestry import Ancestry, Layer
from tape.db.view.values import head_from_row

__all__ = ["Above", "Copy", "absent"]


class Above(Struct, frozen=True):
    """A tape that a fork inherits from: its number and owner, how far it goes, and what it inherits itself."""

    number: int
    owner: str | None
    seq: int
    ancestry: Ancestry | None
    hidden: bool = False
    """Whether it is on its way itself, with the same import."""


class Copy(Writing):
    """A tape that takes over entries as they were recorded elsewhere."""

    __slots__ = ("_bytes", "_checker", "owner")

    pending = 500
    """How many entries are kept before they are sent."""
    most_bytes = 4 * 1024 * 1024
    """How many bytes of them are kept before that."""

    def __init__(self, shared: Shared, tx: Transaction, call: Call, state: TapeState | None, checker: Checker) -> None:
        super().__init__(shared, tx, call, state)
        self._checker = checker
        self._bytes = 0
        self.owner: str | None = None

    def take(self, line: EntryLine, payload: payloads.Payload) -> None:
        """Fold an entry and keep it for the next flush."""
        if isinstance(payload, payloads.Open):
            self._begin(line, payload)
        place, hash = line.place, bytes.fromhex(line.hash)
        self.head, ops = fold(self.head, line.seq, hash, line.stamp, place, payload)
        source_tape, source_seq = line.source if line.source is not None else (None, None)
        self._entries.append(
            (
                self.tape_id,
                line.seq,
                line.kind,
                line.key,
                line.actor,
                source_tape,
                source_seq,
                bytes(line.payload),
                line.meta_bytes,
                bytes.fromhex(line.salt),
                line.stamp,
                line.version,
                hash,
                tape_of(place, self.ancestry),
                place.lane,
                place.ordinal,
            )
        )
        self._ops += ops
        self.written = True
        self._bytes += len(line.payload)
        if len(self._entries) >= self.pending or self._bytes >= self.most_bytes:
            self._bytes = 0
            self.flush()

    def _begin(self, line: EntryLine, opening: payloads.Open) -> None:
        check_here(self.shared, self.tx, opening.owner, creating=self.tape)
        self.tape_id = self._create(line, opening, self.tape, "active", line.stamp)
        self._inherit(opening)
        self.tx.run(self.tx.statements.create_head, (self.tape_id, *head_values(self.head, self.ancestry)))
        self.existed = True

    def _create(self, line: EntryLine, opening: payloads.Open, name: str, status: str, stamp: int) -> int:
        labels = msgspec.json.encode(opening.labels) if opening.labels else None
        facts = (name, opening.owner, opening.agent, opening.name, labels, line.meta_bytes)
        return int(self.tx.value(self.tx.statements.create_tape, (*facts, status, None, stamp, None, None, None)))

    def _inherit(self, opening: payloads.Open) -> None:
        self.owner = opening.owner
        if opening.parent is not None:
            self.ancestry = self._lineage_of(opening.parent, opening.owner)

    def _lineage_of(self, point: payloads.ForkPoint, owner: str | None) -> Ancestry:
        """Return the ancestry of a fork, whose ancestors are all stored by now."""
        members = []
        beyond: list[Layer] | None = None
        for layer in point.layers:
            above = self._above(layer.tape)
            if above is None or above.owner != owner or above.seq < layer.asof:
                raise self._checker.wrong(absent(layer))
            members.append(Layer(above.number, layer.tape, layer.asof, layer.cleared, layer.overriding))
            if beyond is None:
                # Before its first entry a fork was nobody's child.
                beyond = [] if above.ancestry is None or not layer.asof else above.ancestry.layers
                if point.hash != (self._hash_at(above, point.seq) if point.seq else ""):
                    raise self._checker.wrong(f"the fork was made from another tape than the stored {layer.tape!r}")
        if members[1:] != beyond:
            raise self._checker.wrong(f"the fork and its parent {point.tape!r} have different ancestors")
        return Ancestry(members)

    def _above(self, tape: str) -> Above | None:
        row = self.tx.one(self.tx.statements.head, (tape,))
        if row is None or row.tape_status == "purged":
            return None
        number, head, ancestry = head_from_row(row)
        return Above(number, row.owner, head.seq, ancestry)

    def _hash_at(self, above: Above, seq: int) -> str:
        row = self.tx.one(self.tx.statements.entry, (above.number, seq))
        return "" if row is None else bytes(row.hash).hex()

    def settle(self) -> None:
        """Send the rest, move the head, and note how far the tape came from elsewhere."""
        self.move_head()
        self.tx.run(self.tx.statements.drop_import, (self.tape_id,))
        self.tx.run(self.tx.statements.insert_import, (self.tape_id, self.head.seq))


def absent(layer: payloads.Layer) -> str:
    """Return what is wrong when an ancestor of a fork is missing or too short."""
    return f"the fork needs tape {layer.tape!r} up to seq {layer.asof}, which is neither in the file nor in the store"
