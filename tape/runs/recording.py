"""Recordings: a run read back from the entries of its tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field

from tape.core import strict
from tape.core.records import Entry
from tape.errors import Corrupt, InvalidEntry, UnknownEntry
from tape.runs.events import STARTED, Base, Call, Ended, Result, Started, key_of, read_event, run_of
from tape.runs.pure.deltas import StoredField, applied

if TYPE_CHECKING:
    from tape.handles.snapshot import Snapshot
    from tape.handles.tape import Tape

__all__ = [
    "RecordedCall",
    "Recording",
    "RunInfo",
    "calls_of_runs",
    "find_run",
    "list_runs",
    "read_recording",
    "recorded_call",
]

E = TypeVar("E", Started, Ended)


class RecordedCall(Struct, kw_only=True):
    """One call of a run: what was asked, and what came of it, if that was recorded."""

    run: str
    tape: str
    seq: int
    lane: str
    n: int
    kind: str
    """"model", "tool" or "value"."""
    name: str
    digest: str
    number: int = 0
    """The number of the call in its run, from 1, in the order in which the calls were started."""
    effect: str | None = None
    key: str | None = None
    """The key of its effect."""
    bound: bool = False
    """Whether every attempt was bound to a transaction."""
    attempt: int = 1
    claim: int | None = None
    """For a write in a parallel lane: its number among the equal writes there."""
    result: Result | None = None
    """Its outcome: ``status`` and a value, chunks or an error."""
    result_seq: int | None = None
    request_of: Callable[[RecordedCall], dict[str, Any]] | None = None

    @property
    def status(self) -> str:
        """What came of it: completed, failed, partial (a stream that was not read to its end), skipped, or unknown."""
        return "unknown" if self.result is None else self.result.status

    def request(self) -> dict[str, Any]:
        """Return the arguments of the call as JSON."""
        return {} if self.request_of is None else self.request_of(self)


class RunInfo(Struct, kw_only=True):
    """What is known of a run without reading its calls."""

    id: str
    tape: str
    name: str | None
    input: Any
    seq: int
    """The entry with which it started."""
    status: str
    """"completed", "failed", "interrupted", "open" for one that never ended, or "unreadable" for a damaged one."""
    error: str | None = None
    calls: int | None = None
    end: int | None = None
    """The entry with which it ended."""
    base: Base | None = None
    """The run that it continues, and the number of the first call that it does not share with it."""
    normalise: list[str] = field(default_factory=list)
    ends: int = 0
    """How often it ended: a run that failed may have been resumed."""


class Recording:
    """A run as it was recorded, by lanes."""

    def __init__(self, info: RunInfo, calls: list[RecordedCall]) -> None:
        self.info = info
        self.calls = calls
        for number, call in enumerate(calls, 1):
            call.number = number
        self.lanes: dict[str, list[RecordedCall]] = {}
        for call in calls:
            self.lanes.setdefault(call.lane, []).append(call)
        for lane in self.lanes.values():
            lane.sort(key=lambda call: call.n)


class _Bodies:
    """The requests of one tape's calls, each built from those before it when it is asked for."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._stored: dict[int, Mapping[str, StoredField]] = {}
        self._built: dict[int, dict[str, Any]] = {}

    def add(self, seq: int, stored: Mapping[str, StoredField]) -> None:
        """Take a request as the entry at ``seq`` stores it."""
        self._stored[seq] = stored

    def request(self, call: RecordedCall) -> dict[str, Any]:
        chain = [call.seq]
        while chain:
            seq = chain[-1]
            if seq in self._built or (waiting := [of for of in self._needs(seq) if of not in self._built]) == []:
                self._built[seq] = self._built.get(seq) or self._build(seq)
                chain.pop()
            else:
                chain += waiting
        return {name: strict.copied(value) for name, value in self._built[call.seq].items()}

    def _needs(self, seq: int) -> set[int]:
        needed = {field.of for field in self._stored[seq].values() if field.of is not None}
        for of in needed:
            if of >= seq or of not in self._stored:
                raise Corrupt(self._tape.id, seq, f"its request refers to seq {of}, which is not an earlier call")
        return needed

    def _build(self, seq: int) -> dict[str, Any]:
        return {name: self._field(seq, name, stored) for name, stored in self._stored[seq].items()}

    def _field(self, seq: int, name: str, stored: StoredField) -> Any:
        try:
            if stored.of is not None:
                return applied(stored, self._built[stored.of][name])
            if stored.context is not None and stored.api is not None:
                rendering, _, part = stored.api.partition(":")
                recalled = self._tape.recall(stored.context)
                request: Any = recalled.to_anthropic() if rendering == "anthropic" else recalled.to_openai(rendering)
                return request[part] if part else request
        except (InvalidEntry, KeyError, TypeError, ValueError) as error:
            raise Corrupt(self._tape.id, seq, f"field {name!r} of its request cannot be rebuilt: {error}") from error
        return stored.value


def list_runs(tape: Snapshot, *, inherited: bool = False) -> Iterator[RunInfo]:
    """Yield the runs of a tape, the newest first. One whose events are damaged has the status "unreadable"."""
    for entry in tape.entries(name=STARTED, reverse=True, inherited=inherited):
        run = run_of(entry)
        if run is None:
            continue
        try:
            yield _info(tape, entry)
        except Corrupt as error:
            yield RunInfo(
                id=run, tape=entry.tape, name=None, input=None, seq=entry.seq, status="unreadable", error=str(error)
            )


def _info(tape: Snapshot, entry: Entry) -> RunInfo:
    """Return what is known of the run that an entry starts."""
    started = _read(entry, Started)
    end: Entry | None = None
    attempt = 1
    while following := tape.find_entry(key=key_of(started.run, "end", attempt), inherited=True):
        end, attempt = following, attempt + 1
    ended = None if end is None else _read(end, Ended)
    return RunInfo(
        id=started.run,
        tape=entry.tape,
        name=started.name,
        input=started.input,
        seq=entry.seq,
        status="open" if ended is None else ended.status,
        error=None if ended is None else ended.error,
        calls=None if ended is None else ended.calls,
        end=None if end is None else end.seq,
        base=started.base,
        normalise=started.normalise,
        ends=attempt - 1,
    )


def _read(entry: Entry, kind: type[E]) -> E:
    event = read_event(entry)
    if not isinstance(event, kind):
        raise Corrupt(entry.tape, entry.seq, f"the entry has the key {entry.key!r}, but is a {event.event}")
    return event


def find_run(tape: Snapshot, run: str) -> RunInfo | None:
    """Return what is known of a run, or None when the tape has none of this id. Raises Corrupt for a damaged one."""
    entry = tape.find_entry(key=key_of(strict.identifier(run, "run"), "start"), inherited=True)
    return None if entry is None else _info(tape, entry)


def read_recording(tape: Tape, run: str, base: Tape | None = None) -> Recording:
    """Read a run from its tape; raises UnknownEntry when it has none of this id, and Corrupt when it is damaged.

    A run that continues another one is read with the calls of that one up to there: they are on a tape that this one
    inherits from, or on ``base``.
    """
    info = find_run(tape, run)
    if info is None:
        raise UnknownEntry(tape.id, None, key_of(run, "start"))
    chain, source = [(tape, info)], tape
    while (before := chain[-1][1].base) is not None:
        source = base if base is not None and base.id == before.tape else source
        earlier = find_run(source, before.run)
        if earlier is None:
            raise InvalidEntry("base", f"the run continues a run of tape {before.tape!r}; pass that tape as base=")
        if any(earlier.seq == known.seq and earlier.tape == known.tape for _, known in chain):
            raise Corrupt(earlier.tape, earlier.seq, "the run continues itself")
        chain.append((source, earlier))
    calls: list[RecordedCall] = []
    for source, each in reversed(chain):
        shared = 0 if each.base is None else each.base.before - 1
        calls = calls[:shared] + calls_of_runs(source, [each])[each.id]
    return Recording(info, calls)


def calls_of_runs(tape: Tape, infos: Sequence[RunInfo]) -> dict[str, list[RecordedCall]]:
    """Return the calls of runs, oldest first, by the id of the run; without those of runs that they continue.

    A run that did not complete is read up to the head: a worker may have made calls after another one ended the run.
    """
    ends = [(info.tape, info.end + 1) for info in infos if info.status == "completed" and info.end is not None]
    found: dict[str, dict[tuple[str, int], RecordedCall]] = {info.id: {} for info in infos}
    bodies: dict[str, _Bodies] = {}
    start, end = (infos[0].tape, infos[0].seq), ends[-1] if len(ends) == len(infos) else None
    for entry in tape.entries(after=start, before=end, kinds=["event"], inherited=True):
        calls = found.get(run_of(entry) or "")
        event = None if calls is None else read_event(entry)
        if calls is None or not isinstance(event, Call | Result):
            continue
        call = calls.get((event.lane, event.n))
        if isinstance(event, Result):
            if call is None:
                raise Corrupt(entry.tape, entry.seq, "the outcome of a call that the run does not have")
            call.result, call.result_seq = event, entry.seq
            continue
        if entry.tape not in bodies:
            bodies[entry.tape] = _Bodies(tape._on_same_store(entry.tape))
        # Later requests may refer to that of a second attempt.
        bodies[entry.tape].add(entry.seq, event.request)
        if call is None:
            call = calls[event.lane, event.n] = recorded_call(entry, event)
            call.request_of = bodies[entry.tape].request
        call.attempt = event.attempt
        call.bound = call.bound and event.bound
    return {run: list(calls.values()) for run, calls in found.items()}


def recorded_call(entry: Entry, call: Call) -> RecordedCall:
    """Return a call as its entry tells of it, without its outcome and its request."""
    return RecordedCall(
        run=call.run,
        tape=entry.tape,
        seq=entry.seq,
        lane=call.lane,
        n=call.n,
        kind=call.kind,
        name=call.name,
        digest=call.digest,
        effect=call.effect,
        key=call.key,
        bound=call.bound,
        attempt=call.attempt,
        claim=call.claim,
    )
