"""Citations: merges and discards are one entry on each of two tapes, and each of the two cites the other by its hash.

The other tape may not be in the file, or it may have diverged in the two stores. So the cited entry may be missing, or
another entry may be there. But the two entries of one event must agree.
"""

from __future__ import annotations

from msgspec import Struct

from tape.core.entries.payloads import Discard, Merge, Payload
from tape.core.transfer.known_tape import Unsound

__all__ = ["Citation", "Citations", "cited_by"]


class Citation(Struct, frozen=True):
    """An entry of another tape, as the entry ``by_seq`` of the tape ``by`` cites it."""

    by: str
    by_seq: int
    kind: str
    into: bool
    """Whether the parent cites its fork."""
    tape: str
    seq: int
    hash: str
    line: int = 0
    """Of a file: the line that cites."""

    @property
    def counterpart(self) -> int:
        """The seq of the event's entry on the other tape."""
        # The fork's entry follows the one that its parent cites. The parent's entry is the one that the fork cites.
        return self.seq + 1 if self.into else self.seq

    def is_answered_by(self, other: Payload | None) -> bool:
        """Whether the entry at the counterpart's seq records the same event."""
        if not isinstance(other, Merge | Discard) or (other.kind, other.into) != (self.kind, not self.into):
            return False
        return other.tape == self.by and other.seq == (self.by_seq if self.into else self.by_seq - 1)


def cited_by(tape: str, seq: int, payload: Payload, line: int = 0) -> Citation | None:
    """Return what an entry cites of another tape, if it is a merge or a discard."""
    if not isinstance(payload, Merge | Discard):
        return None
    return Citation(tape, seq, payload.kind, payload.into, payload.tape, payload.seq, payload.hash, line)


class Citations:
    """What the entries of a file cite of each other, parents before their forks."""

    def __init__(self) -> None:
        self.elsewhere: list[Citation] = []
        """Citations of entries that are not in the file so far."""
        self._parents: dict[tuple[str, int], tuple[str, Payload]] = {}
        """The merges and discards recorded on parents: hash and entry."""
        self._forks: dict[tuple[str, int], Citation] = {}
        """Their citations of forks that come later in the file."""
        self._other: dict[tuple[str, int], Citation] = {}
        """Citations where the fork has another entry than the cited one; the next entry decides."""

    def take(self, line: int, tape: str, seq: int, hash: str, payload: Payload) -> None:
        """Add an entry; raises Unsound when the two entries of one event do not agree."""
        if self._forks or self._other:
            doubted = self._other.pop((tape, seq), None)
            if doubted is not None and doubted.is_answered_by(payload):
                raise Unsound(_contradicts(doubted))
            expected = self._forks.pop((tape, seq), None)
            if expected is not None and expected.hash != hash:
                self._other[tape, expected.counterpart] = expected
        cited = cited_by(tape, seq, payload, line)
        if cited is None:
            return
        if cited.into:
            self._parents[tape, seq] = hash, payload
            self._forks[cited.tape, cited.seq] = cited
            return
        parent_hash, event = self._parents.get((cited.tape, cited.seq), (None, None))
        if parent_hash is None:
            self.elsewhere.append(cited)
        elif parent_hash != cited.hash and cited.is_answered_by(event):
            raise Unsound(_contradicts(cited))

    def finish(self) -> list[Citation]:
        """Return the citations of entries that are not in the file."""
        return [*self.elsewhere, *self._forks.values()]


def _contradicts(cited: Citation) -> str:
    return f"seq {cited.by_seq} of tape {cited.by!r} cites seq {cited.seq} of tape {cited.tape!r} with a different hash"
