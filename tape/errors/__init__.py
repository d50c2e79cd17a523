"""Every error a caller can meet, in one tree.

    TapeError
    ├── InvalidEntry         the input is not something a tape can hold
    ├── TapeNotFound         there is no such tape (or not for this owner)
    │   └── TapeHidden       the tape is hidden, so that nothing but unhide() finds it
    ├── TapeExists           the id is taken by another tape
    ├── TapeInUse            other tapes inherit from it or link to it
    ├── TapeClosed           the tape's status refuses the write
    ├── UnknownMessage       there is no such message in the view
    ├── UnknownEntry         the tape has no such entry
    ├── ProvenanceConflict   the key was used for other content
    ├── HeadMoved            ``expected_head`` no longer holds
    │   └── ViewMoved        ``expected_view`` no longer holds
    ├── SummaryMoved         another summary was recorded in between
    ├── MergeConflict        both sides changed the same inherited thing
    ├── BudgetExceeded       nothing that fits the budget can be built
    ├── Corrupt              stored data contradicts itself
    ├── SchemaTooNew         the database was written by a newer release
    ├── SchemaTooOld         the database was written by an older release, and is only to be read
    ├── NotInTransaction     the call can have no part in a transaction
    ├── StoreBusy            another writer held the lock for too long
    ├── OwnerMoved           the owner's tapes are in another database of the pool, or on their way there
    ├── ReplicaBehind        a replica has not seen a write in time
    ├── StoreFailed          the database refused for a reason of its own
    │   ├── DatabaseDown     a database of the pool cannot be reached
    │   ├── NotAStore        there is no store to read at this address
    │   ├── ReadOnly         the store is only to be read
    │   └── TablesTaken      the database has tables of these names that are not the store's
    ├── RequestClosed        the request was decided, withdrawn, or has expired
    ├── LeaseHeld            somebody else holds the lease
    ├── LeaseLost            the lease is over, or somebody else has it
    ├── CommitUnknown        the reply to a commit was lost
    ├── ImportFailed         the file cannot be imported
    ├── Diverged             a run that is run again differs from its recording
    ├── RecordedError        a recorded call raised an error that cannot be made again
    ├── EffectRefused        a replay makes no call that writes
    ├── EffectUnknown        nobody knows whether a call that writes was made
    └── AlreadySettled       another process has recorded the outcome of the call

Each class says whether a retry is safe. All carry their facts as attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tape.errors.base import TapeError, shown
from tape.errors.places import DatabaseDown, OwnerMoved, ReplicaBehind, StoreFailed

__all__ = [
    "AlreadySettled",
    "BudgetExceeded",
    "CommitUnknown",
    "Corrupt",
    "DatabaseDown",
    "Diverged",
    "EffectRefused",
    "EffectUnknown",
    "HeadMoved",
    "ImportFailed",
    "InvalidEntry",
    "LeaseHeld",
    "LeaseLost",
    "MergeConflict",
    "NotAStore",
    "NotInTransaction",
    "OwnerMoved",
    "ProvenanceConflict",
    "ReadOnly",
    "RecordedError",
    "ReplicaBehind",
    "RequestClosed",
    "SchemaTooNew",
    "SchemaTooOld",
    "StoreBusy",
    "StoreFailed",
    "SummaryMoved",
    "TablesTaken",
    "TapeClosed",
    "TapeError",
    "TapeExists",
    "TapeHidden",
    "TapeInUse",
    "TapeNotFound",
    "UnknownEntry",
    "UnknownMessage",
    "ViewMoved",
]


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


class TapeHidden(TapeNotFound):
    """The tape is hidden, so that it reads as absent and takes no writes; ``reason`` says why, if that was told.

    ``unhide()`` on a handle of it (``store.tape(id).unhide()``) shows it again.
    """

    def __init__(self, tape: str, reason: str | None = None) -> None:
        because = f" ({reason})" if reason else ""
        TapeError.__init__(self, f"tape {tape!r} is hidden{because}; unhide() shows it again")
        self.tape = tape
        self.reason = reason


class TapeExists(TapeError):
    """The id belongs to another tape. Choose another id, or ``get`` the tape that has it.

    ``purged`` tells that the other tape is gone; ``create`` and ``fork`` take its id with ``reuse=True``. ``hidden``
    tells that it is hidden; ``store.tape(id).unhide()`` shows it again.
    """

    def __init__(self, tape: str, *, purged: bool = False, hidden: bool = False) -> None:
        what = "exists already, but is hidden; unhide() shows it again" if hidden else "exists already"
        if purged:
            what = "was purged; pass reuse=True to use the id again"
        super().__init__(f"tape {tape!r} {what}")
        self.tape = tape
        self.purged = purged
        self.hidden = hidden


class TapeInUse(TapeError):
    """Other tapes inherit from this one or link to it, so it cannot be purged alone; ``by`` names them.

    Purge them first, or purge a tape and all its forks with ``forks=True``; or ``hide()`` it, which takes it out of
    every list and read and leaves the others what they inherit. ``purge(id, when_free=True)`` hides it until the last
    of them is purged, and then purges it, too.
    """

    def __init__(self, tape: str, by: Sequence[str]) -> None:
        named = ", ".join(repr(name) for name in by[:5]) + (", …" if len(by) > 5 else "")
        super().__init__(f"tape {tape!r} is in use by {named}; hide() takes it out of sight all the same")
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


class UnknownEntry(TapeError):
    """The tape has no entry of this ``seq`` or ``key``, or none yet at the point it is read at."""

    def __init__(self, tape: str, seq: int | None = None, key: str | None = None) -> None:
        which = f"seq {seq}" if key is None else f"the key {shown(key)}"
        super().__init__(f"tape {tape!r} has no entry of {which}")
        self.tape = tape
        self.seq = seq
        self.key = key


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


class ViewMoved(HeadMoved):
    """Someone else changed what readers see: ``actual`` is the seq of the last entry that did. Read again and decide.

    Entries that change nothing there (events, usage, labels, status, receipts of forks) do not count.
    """

    def __init__(self, tape: str, expected: int, actual: int) -> None:
        TapeError.__init__(self, f"the view of tape {tape!r} was last changed at seq {actual}, not {expected}")
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
        named = ", ".join(str(conflict) for conflict in conflicts[:5])
        more = f" and {len(conflicts) - 5} more" if len(conflicts) > 5 else ""
        super().__init__(f"both {tape!r} and its child {child!r} changed {named}{more}")
        self.tape = tape
        self.child = child
        self.conflicts = list(conflicts)


class BudgetExceeded(TapeError):
    """The prompt, the last request and the last step do not fit the budget. Raise the budget.

    ``tokens`` is how much they take at their shortest.
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


class SchemaTooOld(TapeError):
    """The database has a schema of an earlier release, and was opened to be read only; nothing was touched.

    Open it once without ``read_only``, or run ``tape migrate``: that upgrades it.
    """

    def __init__(self, found: str, known: str) -> None:
        super().__init__(
            f"the database has schema {found!r}, this release reads {known!r}; "
            "open it once without read_only, or run: tape migrate"
        )
        self.found = found
        self.known = known


class NotInTransaction(TapeError):
    """The call cannot be undone, or works in several transactions of its own; ``call`` names it.

    Run it on the store itself, before or after ``transaction``.
    """

    def __init__(self, call: str) -> None:
        super().__init__(f"{call} cannot be part of a transaction; call it on the store itself, before or after")
        self.call = call


class StoreBusy(TapeError):
    """Another writer held the database for longer than the timeout. A retry is safe."""

    def __init__(self, waited: float) -> None:
        super().__init__(f"the store was busy for {waited:.1f} s")
        self.waited = waited


class NotAStore(StoreFailed):
    """There is no store at this address, and a store that is only to be read is never created. Check the address."""


class ReadOnly(StoreFailed):
    """The store was opened with ``read_only=True``, or the file or server can only be read. Nothing was written.

    A retry fails the same way. Open the store without ``read_only``, where it can be written.
    """


class TablesTaken(StoreFailed):
    """The database has tables of the names that the store needs, and they are not a store's. Nothing was touched.

    ``tables`` names them. Give the store names of its own with ``prefix=``, or on PostgreSQL a ``schema=``.
    """

    def __init__(self, tables: Sequence[str], *, schemas: bool = False) -> None:
        named = ", ".join(tables[:5]) + (", …" if len(tables) > 5 else "")
        or_schema = "in a schema of its own with schema=, or " if schemas else ""
        super().__init__(
            f"the database has tables of another program where the store's would be ({named}); "
            f"open the store {or_schema}with names of its own with prefix="
        )
        self.tables = list(tables)
        self.schemas = schemas


class RequestClosed(TapeError):
    """The request was decided by somebody else, withdrawn, or has expired: ``request`` tells. A retry never helps."""

    def __init__(self, request: Any) -> None:
        by = f" by {request.decided_by!r}" if request.decided_by else ""
        super().__init__(f"request {request.id!r} of tape {request.tape!r} is {request.status}{by}")
        self.tape = request.tape
        self.request = request


class LeaseHeld(TapeError):
    """Somebody else holds the lease: ``holder``, with ``token``, until ``expires`` by the database's clock.

    ``expires`` is in microseconds since 1970. A retry after that succeeds, unless it was renewed or taken meanwhile.
    """

    def __init__(self, tape: str, name: str, holder: str, token: int, expires: int) -> None:
        super().__init__(f"lease {name!r} of tape {tape!r} is held by {holder!r}")
        self.tape = tape
        self.name = name
        self.holder = holder
        self.token = token
        self.expires = expires


class LeaseLost(TapeError):
    """The lease is over, was let go, or somebody else has taken it. Stop the work that it protects."""

    def __init__(self, tape: str, name: str, token: int) -> None:
        super().__init__(f"lease {name!r} of tape {tape!r} with token {token} is not held any more")
        self.tape = tape
        self.name = name
        self.token = token


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


class Diverged(TapeError):
    """A run that is run again does something else than its recording; ``divergence`` has all facts.

    Nothing was called and nothing was written for the call that differs. Look at what changed: the agent, or the world
    that it reads. ``on_divergence="collect"`` goes on as far as the recording has answers.
    """

    kind: str
    lane: str
    n: int
    number: int | None
    seq: int | None
    path: str | None
    recorded: Any
    given: Any
    nearest: int | None

    def __init__(self, divergence: Any) -> None:
        super().__init__(str(divergence))
        self.divergence = divergence
        for name in ("kind", "lane", "n", "number", "seq", "path", "recorded", "given", "nearest"):
            setattr(self, name, getattr(divergence, name, None))


class RecordedError(TapeError):
    """A recorded call raised an error of a type that is not loaded here, or that cannot be made from what was recorded.

    ``type`` and ``text`` tell what it was. A retry raises it again: it comes from the recording.
    """

    def __init__(self, type: str, text: str) -> None:
        super().__init__(f"{type.rpartition(':')[2]}: {text}")
        self.type = type
        self.text = text


class EffectRefused(TapeError):
    """A replay was about to call a tool that writes. It does so only with ``into=`` and ``effects="allow"``.

    Nothing was called. A tool that only reads is told as such: ``run.tool(fn, effect="read")``.
    """

    def __init__(self, run: str, tool: str) -> None:
        super().__init__(
            f"tool {shown(tool)} writes, and a replay of run {shown(run)} does not call it; "
            'give into= and effects="allow", or effect="read" if it only reads'
        )
        self.run = run
        self.tool = tool


class EffectUnknown(TapeError):
    """A call that writes was started, and its outcome was never recorded: it may have run. ``key`` is its effect key.

    Nothing was called now. Find out whether it happened, then resume with ``on_unknown`` as "retry" or "skip", or give
    the tool a function that finds out.
    """

    def __init__(self, run: str, tool: str, key: str, seq: int) -> None:
        super().__init__(
            f"tool {shown(tool)} was started by run {shown(run)} (seq {seq}, effect {key}) and has no outcome: "
            "it may have run; check, then say so with on_unknown="
        )
        self.run = run
        self.tool = tool
        self.key = key
        self.seq = seq


class AlreadySettled(TapeError):
    """Another process has recorded the outcome of this call. Let it leave the transaction, which must roll back.

    The wrapped tool then returns the outcome that is recorded.
    """

    def __init__(self, run: str, tool: str, key: str) -> None:
        super().__init__(f"the call of tool {shown(tool)} in run {shown(run)} (effect {key}) is settled already")
        self.run = run
        self.tool = tool
        self.key = key
