"""Every error a caller can meet, in one tree.

    TapeError
    ├── InvalidEntry         the input is not something a tape can hold
    ├── TapeNotFound         there is no such tape (or not for this owner)
    │   └── TapeHidden       the tape is hidden until unhide()
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
    ├── SchemaTooOld         the database was written by an older release and was opened read-only
    ├── NotInTransaction     the call cannot run inside a transaction
    ├── StoreBusy            another writer held the lock for too long
    ├── OwnerMoved           the owner's tapes are in another database of the pool, or moving there
    ├── ReplicaBehind        a replica has not seen a write in time
    ├── StoreFailed          the database itself failed or refused
    │   ├── DatabaseDown     a database of the pool cannot be reached
    │   ├── NotAStore        there is no store at this address
    │   ├── ProcessForked    this process was forked while the database was in use
    │   ├── ReadOnly         the store cannot be written
    │   └── TablesTaken      other tables in the database have the store's names
    ├── RequestClosed        the request was decided, withdrawn, or has expired
    ├── LeaseHeld            another holder has the lease
    ├── LeaseLost            the lease has ended, or another holder has it
    ├── CommitUnknown        the reply to a commit was lost
    ├── ImportFailed         the file cannot be imported
    ├── Diverged             a replayed run differs from its recording
    ├── RecordedError        a recorded call raised an error of an unavailable type
    ├── EffectRefused        a replay calls only tools that are declared as reading
    ├── EffectUnknown        a call that writes was started, and its outcome is unknown
    └── AlreadySettled       another process has recorded the outcome of the call

Each class says whether a retry is safe. All carry their facts as attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tape.errors.base import TapeError, shown
from tape.errors.places import DatabaseDown, OwnerMoved, ProcessForked, ReplicaBehind, StoreFailed

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
    "ProcessForked",
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
    """The tape is hidden: reads do not find it, and writes are refused. ``reason`` is the one given to ``hide()``.

    ``store.tape(id).unhide()`` shows it again.
    """

    _advice = "unhide() shows it again"

    def __init__(self, tape: str, reason: str | None = None) -> None:
        because = f" ({reason})" if reason else ""
        TapeError.__init__(self, f"tape {tape!r} is hidden{because}; {self._advice}")
        self.tape = tape
        self.reason = reason


class TapeExists(TapeError):
    """The id belongs to another tape. Choose another id, or ``get`` the tape that has it.

    If ``purged`` is true, the other tape was purged; ``create`` and ``fork`` take its id with ``reuse=True``. If
    ``hidden`` is true, it is hidden; ``store.tape(id).unhide()`` shows it again.
    """

    def __init__(self, tape: str, *, purged: bool = False, hidden: bool = False) -> None:
        what = "already exists"
        if purged:
            what, self._advice = "was purged", "pass reuse=True to use the id again"
        elif hidden:
            what, self._advice = "already exists, but is hidden", "unhide() shows it again"
        super().__init__(f"tape {tape!r} {what}" + (f"; {self._advice}" if self._advice else ""))
        self.tape = tape
        self.purged = purged
        self.hidden = hidden


class TapeInUse(TapeError):
    """Other tapes inherit from this one or link to it, so it cannot be purged alone; ``by`` names them.

    Purge them first, or purge the tape with all its forks by ``forks=True``. Or ``hide()`` it: no list or read shows
    it, and the others keep what they inherit.
    """

    _advice = "purge them first, or hide() this one instead"

    def __init__(self, tape: str, by: Sequence[str]) -> None:
        named = ", ".join(repr(name) for name in by[:5]) + (", …" if len(by) > 5 else "")
        super().__init__(f"tape {tape!r} is used by {named}; {self._advice}")
        self.tape = tape
        self.by = list(by)


class TapeClosed(TapeError):
    """A tape of this status takes no changes of its view. ``reopen()`` it first, unless it was merged or discarded."""

    def __init__(self, tape: str, status: str, reason: str | None = None, redirect: str | None = None) -> None:
        because = f" ({reason})" if reason else ""
        onward = "" if status in ("merged", "discarded") else "; reopen() it first"
        if redirect:
            onward = f"; continue on {redirect!r}"
        super().__init__(f"tape {tape!r} is {status}{because}{onward}")
        self.tape = tape
        self.status = status
        self.reason = reason
        self.redirect = redirect


class UnknownMessage(TapeError):
    """The message is not in the view. If ``retracted`` is true, it was retracted and can be restored."""

    def __init__(self, tape: str, message_id: str, *, retracted: bool = False) -> None:
        message = f"message {shown(message_id)}"
        super().__init__(
            f"{message} of tape {tape!r} is retracted; restore it first"
            if retracted
            else f"tape {tape!r} has no {message}"
        )
        self.tape = tape
        self.message_id = message_id
        self.retracted = retracted


class UnknownEntry(TapeError):
    """The tape has no entry with this ``seq`` or ``key``, or had none at the point in time that is read."""

    def __init__(self, tape: str, seq: int | None = None, key: str | None = None) -> None:
        which = f"at seq {seq}" if key is None else f"with key {shown(key)}"
        super().__init__(f"tape {tape!r} has no entry {which}")
        self.tape = tape
        self.seq = seq
        self.key = key


class ProvenanceConflict(TapeError):
    """The key was already used for other content. Use a new key for new content; a retry never helps."""

    _advice = "use a new key"

    def __init__(self, tape: str, key: str, seq: int, stored: str, given: str) -> None:
        super().__init__(f"key {key!r} of tape {tape!r} was already used for other content (seq {seq}); {self._advice}")
        self.tape = tape
        self.key = key
        self.seq = seq
        self.stored = stored
        self.given = given


class HeadMoved(TapeError):
    """Another writer was first. Read again and decide; a blind retry defeats the condition."""

    _advice = "read it again"

    def __init__(self, tape: str, expected: int, actual: int) -> None:
        super().__init__(f"tape {tape!r} is at seq {actual}, not at the expected seq {expected}; {self._advice}")
        self.tape = tape
        self.expected = expected
        self.actual = actual


class ViewMoved(HeadMoved):
    """Another writer changed the view: ``actual`` is the seq of the last entry that did. Read again and decide.

    Entries that do not change the view (events, usage, labels, status, receipts of forks) do not count.
    """

    def __init__(self, tape: str, expected: int, actual: int) -> None:
        TapeError.__init__(
            self,
            f"the view of tape {tape!r} last changed at seq {actual}, not at the expected {expected}; {self._advice}",
        )
        self.tape = tape
        self.expected = expected
        self.actual = actual


class SummaryMoved(TapeError):
    """The newest summary is not the one that the writer expected; ``current`` is the newest one, None if there is none.

    Look at ``current``, decide again, and pass it as ``expected``.
    """

    def __init__(self, tape: str, expected: tuple[str, int] | int | None, current: Any) -> None:
        newest = "no summary" if current is None else f"the summary at seq {current.seq} of tape {current.tape!r}"
        super().__init__(
            f"tape {tape!r} has {newest}, not the expected {shown(expected)}; look at `current` and decide again"
        )
        self.tape = tape
        self.expected = expected
        self.current = current


class MergeConflict(TapeError):
    """Both tapes changed the same inherited values; ``conflicts`` lists each. Pass ``on_conflict``."""

    _advice = "pass on_conflict='ours' or 'theirs'"

    def __init__(self, tape: str, child: str, conflicts: Sequence[Any]) -> None:
        named = ", ".join(str(conflict) for conflict in conflicts[:5])
        more = f" and {len(conflicts) - 5} more" if len(conflicts) > 5 else ""
        super().__init__(f"both {tape!r} and its child {child!r} changed {named}{more}; {self._advice}")
        self.tape = tape
        self.child = child
        self.conflicts = list(conflicts)


class BudgetExceeded(TapeError):
    """The prompt, the last request and the last step do not fit the budget. Raise the budget.

    ``tokens`` is their least possible size.
    """

    def __init__(self, budget: int, tokens: int) -> None:
        super().__init__(f"the smallest possible context needs {tokens} tokens, but the budget is {shown(budget)}")
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
    """The database has a schema of a newer release. Upgrade ``tape-store``; nothing was changed.

    A store that is open when another process upgrades the schema raises it, too. A retry fails in the same way.
    """

    def __init__(self, found: str, known: str) -> None:
        super().__init__(
            f"the database has schema {found!r}, but this release knows only up to {known!r}; upgrade tape-store"
        )
        self.found = found
        self.known = known


class SchemaTooOld(TapeError):
    """The database has a schema of an earlier release and was opened read-only; nothing was changed.

    Open it once without ``read_only``, or run ``tape migrate``. Both upgrade it.
    """

    def __init__(self, found: str, known: str) -> None:
        super().__init__(
            f"the database has schema {found!r}, but this release reads {known!r}; "
            "open it once without read_only, or run: tape migrate"
        )
        self.found = found
        self.known = known


class NotInTransaction(TapeError):
    """The call cannot be rolled back, or needs several transactions; ``call`` names it.

    Call it on the store, before or after ``transaction``.
    """

    def __init__(self, call: str, instead: str = "call it on the store, before or after the transaction") -> None:
        super().__init__(f"{call} cannot run inside a transaction; {instead}")
        self.call = call
        self.instead = instead


class StoreBusy(TapeError):
    """Another writer held the database for longer than the timeout. A retry is safe."""

    _advice = "try again"

    def __init__(self, waited: float) -> None:
        super().__init__(f"the store was busy for {waited:.1f} s; {self._advice}")
        self.waited = waited


class NotAStore(StoreFailed):
    """There is no store at this address, and a read-only store is never created. Check the address."""


class ReadOnly(StoreFailed):
    """The store was opened with ``read_only=True``, or the file or server can only be read. Nothing was written.

    A retry fails the same way. Open the store without ``read_only``, where it can be written.
    """


class TablesTaken(StoreFailed):
    """Tables that are not a store's have the names that the store needs; ``tables`` lists them. Nothing was changed.

    Use another file, or on PostgreSQL another ``schema=``.
    """

    def __init__(self, tables: Sequence[str], *, schemas: bool = False) -> None:
        named = ", ".join(tables[:5]) + (", …" if len(tables) > 5 else "")
        self._advice = "open the store with another schema=" if schemas else "use another file for the store"
        super().__init__(f"tables of another program have the store's names ({named}); {self._advice}")
        self.tables = list(tables)
        self.schemas = schemas


class RequestClosed(TapeError):
    """The request was already decided or withdrawn, or it has expired; see ``request``. A retry never helps."""

    def __init__(self, request: Any) -> None:
        by = f" by {request.decided_by!r}" if request.decided_by else ""
        super().__init__(f"request {request.id!r} of tape {request.tape!r} is already {request.status}{by}")
        self.tape = request.tape
        self.request = request


class LeaseHeld(TapeError):
    """Another ``holder`` has the lease, with ``token``, until ``expires`` by the database's clock.

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
    """The lease has ended, was released, or another holder has it. Stop the work that it protects."""

    def __init__(self, tape: str, name: str, token: int) -> None:
        super().__init__(
            f"lease {name!r} of tape {tape!r} with token {token} has ended; stop the work that it protects"
        )
        self.tape = tape
        self.name = name
        self.token = token


class CommitUnknown(TapeError):
    """The reply to a commit was lost and the database could not be asked. Retry with the same ``key``."""

    _advice = "retry with the same key"

    def __init__(self, tape: str, key: str) -> None:
        super().__init__(
            f"it is unknown whether the entry with key {key!r} of tape {tape!r} was recorded; {self._advice}"
        )
        self.tape = tape
        self.key = key


class ImportFailed(TapeError):
    """The file is not an intact export or transcript; ``line`` is the first bad line. Nothing was imported."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line
        self.why = why


class Diverged(TapeError):
    """A replayed run differs from its recording; ``divergence`` has the details.

    The call that differs was not made, and nothing was written for it. Check what changed: the agent, or the data that
    it reads. With ``on_divergence="collect"`` the replay continues as far as the recording has answers.
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
    """A recorded call raised an error whose type is not loaded here, or that cannot be rebuilt from the recording.

    ``type`` and ``text`` describe it. A retry raises it again, because it comes from the recording.
    """

    def __init__(self, type: str, text: str) -> None:
        super().__init__(f"{type.rpartition(':')[2]}: {text}")
        self.type = type
        self.text = text


class EffectRefused(TapeError):
    """A replay was about to call a tool that is not declared as reading: that needs ``into=`` and ``effects="allow"``.

    Nothing was called. Declare a tool that only reads with ``run.tool(fn, effect="read")``.
    """

    def __init__(self, run: str, tool: str) -> None:
        super().__init__(
            f"a replay of run {shown(run)} does not call tool {shown(tool)}, which is not declared as reading; "
            'pass into= and effects="allow", or declare it with effect="read" if it only reads'
        )
        self.run = run
        self.tool = tool


class EffectUnknown(TapeError):
    """A call that writes was started, and its outcome was never recorded: it may have run. ``key`` is its effect key.

    Nothing was called now. Find out whether it ran, then resume with ``on_unknown`` as "retry" or "skip", or give the
    tool a function that finds out.
    """

    def __init__(self, run: str, tool: str, key: str, seq: int) -> None:
        super().__init__(
            f"tool {shown(tool)} was started by run {shown(run)} (seq {seq}, effect {key}) without a recorded outcome: "
            'it may have run; check, then resume with on_unknown="retry" or "skip"'
        )
        self.run = run
        self.tool = tool
        self.key = key
        self.seq = seq


class AlreadySettled(TapeError):
    """Another process has recorded the outcome of this call. Let the error roll back the transaction.

    The wrapped tool then returns the recorded outcome.
    """

    def __init__(self, run: str, tool: str, key: str) -> None:
        super().__init__(
            f"the call of tool {shown(tool)} in run {shown(run)} (effect {key}) already has a recorded outcome"
        )
        self.run = run
        self.tool = tool
        self.key = key
