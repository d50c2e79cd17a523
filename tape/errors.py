"""Every error a caller can meet, in one tree.

    TapeError
    ├── InvalidEntry         the input is not something a tape can hold
    ├── TapeNotFound         there is no such tape (or not for this owner)
    ├── TapeExists           the id is taken by another tape
    ├── TapeInUse            other tapes inherit from it or link to it
    ├── TapeClosed           the tape's status refuses the write
    ├── UnknownMessage       there is no such message in the view
    ├── ProvenanceConflict   the key was used for other content
    ├── HeadMoved            ``expected_head`` no longer holds
    ├── SummaryMoved         another summary was recorded in between
    ├── MergeConflict        both sides changed the same inherited thing
    ├── BudgetExceeded       nothing that fits the budget can be built
    ├── Corrupt              stored data contradicts itself
    ├── SchemaTooNew         the database was written by a newer release
    ├── StoreBusy            another writer held the lock for too long
    ├── StoreFailed          the database refused for a reason of its own
    ├── CommitUnknown        the reply to a commit was lost
    └── ImportFailed         the file cannot be imported

Each class says whether a retry is safe. All carry their facts as attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "BudgetExceeded",
    "CommitUnknown",
    "Corrupt",
    "HeadMoved",
    "ImportFailed",
    "InvalidEntry",
    "MergeConflict",
    "ProvenanceConflict",
    "SchemaTooNew",
    "StoreBusy",
    "StoreFailed",
    "SummaryMoved",
    "TapeClosed",
    "TapeError",
    "TapeExists",
    "TapeInUse",
    "TapeNotFound",
    "UnknownMessage",
]


def shown(value: Any) -> str:
    """Return any value as an error can show it: not at any length, and without failing over a repr that fails."""
    try:
        text = repr(value)
    except Exception:
        # An integer of more than 4 300 digits has none, nor have some objects of callers.
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 300 else f"{text[:300]}…"


def _revive(cls: type[TapeError], message: str, facts: dict[str, Any]) -> TapeError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(facts)
    return error


class TapeError(Exception):
    """Any error of this library. Nothing was written unless the class says otherwise."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default rebuilds from ``args``, which holds only the text: an error that crosses a process
        # boundary would lose its facts or fail to load.
        return _revive, (type(self), str(self), dict(self.__dict__))


class InvalidEntry(TapeError):
    """The input cannot be recorded; ``field`` names the part at fault. A retry fails the same way."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


class TapeNotFound(TapeError):
    """No tape with this id exists for this store's owner. Create it first, or check the id."""

    def __init__(self, tape: str) -> None:
        super().__init__(f"there is no tape {shown(tape)}")
        self.tape = tape


class TapeExists(TapeError):
    """The id belongs to another tape. Choose another id, or ``get`` the tape that has it.

    ``purged`` tells that the other tape is gone; ``create(id, reuse=True)`` takes its id on purpose.
    """

    def __init__(self, tape: str, *, purged: bool = False) -> None:
        what = "was purged; create it with reuse=True to use the id again" if purged else "exists already"
        super().__init__(f"tape {tape!r} {what}")
        self.tape = tape
        self.purged = purged


class TapeInUse(TapeError):
    """Other tapes inherit from this one or link to it, so it cannot be purged alone; ``by`` names them.

    Purge them first, or purge a tape and all its forks with ``forks=True``.
    """

    def __init__(self, tape: str, by: Sequence[str]) -> None:
        named = ", ".join(repr(name) for name in by[:5]) + (", …" if len(by) > 5 else "")
        super().__init__(f"tape {tape!r} is in use by {named}")
        self.tape = tape
        self.by = list(by)


class TapeClosed(TapeError):
    """The tape's status refuses what changes its view. ``reopen()`` it first, unless it was discarded."""

    def __init__(self, tape: str, status: str, reason: str | None = None, redirect: str | None = None) -> None:
        because = f" ({reason})" if reason else ""
        onward = f"; continue on {redirect!r}" if redirect else ""
        super().__init__(f"tape {tape!r} is {status}{because}{onward}")
        self.tape = tape
        self.status = status
        self.reason = reason
        self.redirect = redirect


class UnknownMessage(TapeError):
    """The message is not in the view; ``retracted`` tells that it was once and can be restored."""

    def __init__(self, tape: str, message_id: str, *, retracted: bool = False) -> None:
        state = "is retracted" if retracted else "is unknown"
        super().__init__(f"message {shown(message_id)} {state} in tape {tape!r}")
        self.tape = tape
        self.message_id = message_id
        self.retracted = retracted


class ProvenanceConflict(TapeError):
    """The key was recorded before with other content. Use a new key for new content; a retry never helps."""

    def __init__(self, tape: str, key: str, seq: int, stored: str, given: str) -> None:
        super().__init__(f"key {key!r} of tape {tape!r} holds other content since seq {seq}")
        self.tape = tape
        self.key = key
        self.seq = seq
        self.stored = stored
        self.given = given


class HeadMoved(TapeError):
    """Someone else wrote first. Read again and decide; a blind retry defeats the condition."""

    def __init__(self, tape: str, expected: int, actual: int) -> None:
        super().__init__(f"tape {tape!r} is at seq {actual}, not {expected}")
        self.tape = tape
        self.expected = expected
        self.actual = actual


class SummaryMoved(TapeError):
    """Another summary stands where the writer expected one; ``current`` is that summary, None if there is none.

    Decide anew with ``current`` before you, and pass it as ``expected``.
    """

    def __init__(self, tape: str, expected: tuple[str, int] | int | None, current: Any) -> None:
        super().__init__(
            f"the newest summary of tape {tape!r} is not the one expected ({shown(expected)}); `current` is"
        )
        self.tape = tape
        self.expected = expected
        self.current = current


class MergeConflict(TapeError):
    """Both tapes changed the same inherited things; ``conflicts`` lists each. Pass ``on_conflict``."""

    def __init__(self, tape: str, child: str, conflicts: Sequence[Any]) -> None:
        super().__init__(f"{len(conflicts)} conflicts between {tape!r} and its child {child!r}")
        self.tape = tape
        self.child = child
        self.conflicts = list(conflicts)


class BudgetExceeded(TapeError):
    """What must be shown is larger than the budget. Raise the budget or compact first.

    ``tokens`` is how much it takes at least: a last turn that is too large is not read to its beginning.
    """

    def __init__(self, budget: int, tokens: int) -> None:
        super().__init__(f"the smallest possible context needs at least {tokens} tokens, the budget is {shown(budget)}")
        self.budget = budget
        self.tokens = tokens


class Corrupt(TapeError):
    """Stored data contradicts itself. Run ``verify()``; nothing was changed."""

    def __init__(self, tape: str, seq: int, what: str) -> None:
        super().__init__(f"tape {tape!r} seq {seq}: {what}")
        self.tape = tape
        self.seq = seq
        self.what = what


class SchemaTooNew(TapeError):
    """The database has a schema this release does not know. Upgrade ``tape-store``; nothing was touched."""

    def __init__(self, found: str, known: str) -> None:
        super().__init__(f"the database has schema {found!r}, this release knows up to {known!r}; upgrade tape-store")
        self.found = found
        self.known = known


class StoreBusy(TapeError):
    """Another writer held the database for longer than the timeout. A retry is safe."""

    def __init__(self, waited: float) -> None:
        super().__init__(f"the store was busy for {waited:.1f} s")
        self.waited = waited


class StoreFailed(TapeError):
    """The database refused for a reason of its own (disk full, connection refused); see ``__cause__``.

    Nothing was written. A retry is safe once the cause is gone.
    """


class CommitUnknown(TapeError):
    """The reply to a commit was lost and the database could not be asked. Retry with the same ``key``."""

    def __init__(self, tape: str, key: str) -> None:
        super().__init__(f"it is unknown whether the entry with key {key!r} of tape {tape!r} was recorded")
        self.tape = tape
        self.key = key


class ImportFailed(TapeError):
    """The file is no intact export or transcript; ``line`` names the first line at fault. Nothing was imported."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line
        self.why = why
