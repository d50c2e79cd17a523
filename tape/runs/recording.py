"""Recordings: a run read back from the entries of its tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from tape.core import strict
from tape.core.entries import payloads
from tape.core.records import Entry
from tape.errors import Corrupt, InvalidEntry, UnknownEntry
from tape.runs.pure.deltas import applied

if TYPE_CHECKING:
    from tape.handles.snapshot import Snapshot
    from tape.handles.tape import Tape

__all__ = [
    "CALL",
    "ENDED",
    "RESULT",
    "STARTED",
    "RecordedCall",
    "Recording",
    "RunInfo",
    "key_of",
    "list_runs",
    "read_recording",
    "rendered_field",
]

STARTED, CALL, RESULT, ENDED = "run.started", "run.call", "run.result", "run.ended"
"""The events of a run."""

_LONGEST_LANE = 140


def key_of(run: str, *parts: object) -> str:
    """Return the key of an entry of a run. A lane that is too long for a key stands in it by its digest."""
    words = ["run", run, *map(str, parts)]
    if len(words) > 2 and len(words[2]) > _LONGEST_LANE:
        import hashlib

        words[2] = hashlib.sha256(words[2].encode()).hexdigest()[:32]
    return ":".join(words)


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
    attempt: int = 1
    result: dict[str, Any] | None = None
    """The data of its outcome: ``status`` and a value, chunks or an error."""
    result_seq: int | None = None
    stored: dict[str, Any] = field(default_factory=dict)
    request_of: Callable[[RecordedCall], dict[str, Any]] | None = None

    @property
    def status(self) -> str:
        """What came of it: completed, failed, partial (a stream that was not read to its end), skipped, or unknown."""
        return "unknown" if self.result is None else str(self.result.get("status", "completed"))

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
    """"completed", "failed", "interrupted", or "open" for one that never ended."""
    error: str | None = None
    calls: int | None = None
    end: int | None = None
    """The entry with which it ended."""
    base: dict[str, Any] | None = None
    """The run that it goes on from: its tape, its id, and the number of the first call that is no longer its own."""
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


def rendered_field(recalled: Any, api: str) -> Any:
    """Return a field of the request that a recorded context was rendered to; ``api`` names rendering and field."""
    rendering, _, name = api.partition(":")
    if rendering == "anthropic":
        return recalled.to_anthropic()[name]
    request = recalled.to_openai(rendering)
    return request[name] if name else request


class _Bodies:
    """The requests of one tape's calls, each built from those before it when it is asked for."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._stored: dict[int, Mapping[str, Any]] = {}
        self._built: dict[int, dict[str, Any]] = {}

    def add(self, seq: int, stored: Mapping[str, Any]) -> None:
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
        if seq not in self._stored:
            raise Corrupt(self._tape.id, seq, "a recorded request refers to it, but it is not a call")
        needed = {field["of"] for field in self._stored[seq].values() if "of" in field}
        if any(of >= seq for of in needed):
            raise Corrupt(self._tape.id, seq, "a recorded request refers to a later entry")
        return needed

    def _build(self, seq: int) -> dict[str, Any]:
        request: dict[str, Any] = {}
        for name, stored in self._stored[seq].items():
            if "of" in stored:
                request[name] = applied(stored, self._built[stored["of"]].get(stored.get("field", name)))
            elif "context" in stored:
                request[name] = rendered_field(self._recall(stored["context"]), stored["api"])
            else:
                request[name] = stored.get("is")
        return request

    def _recall(self, place: list[Any]) -> Any:
        # A run that a fork inherits has its contexts on the tape that it was recorded on.
        return self._tape._on_same_store(place[0]).recall(place[1])


def list_runs(tape: Snapshot, *, inherited: bool = False) -> Iterator[RunInfo]:
    """Yield the runs of a tape, the newest first."""
    for entry in tape.entries(name=STARTED, reverse=True, inherited=inherited):
        data = event_data(entry)
        if data is not None:
            yield run_info(tape, entry, data)


def event_data(entry: Entry) -> dict[str, Any] | None:
    """Return the data of an event of a run; None for any other entry, and for one that holds something else."""
    payload = entry.payload
    if not isinstance(payload, payloads.Event) or not payload.name.startswith("run."):
        return None
    data = payload.data
    if not isinstance(data, dict) or not isinstance(data.get("run"), str):
        return None
    return data if entry.key.startswith(f"run:{data['run']}:") else None


def run_info(tape: Snapshot, entry: Entry, data: Mapping[str, Any]) -> RunInfo:
    """Return what is known of the run that an entry starts."""
    end: Entry | None = None
    attempt = 1
    while following := tape.find_entry(key=key_of(data["run"], "end", attempt), inherited=True):
        end, attempt = following, attempt + 1
    ended = (event_data(end) if end is not None else None) or {}
    return RunInfo(
        id=data["run"],
        tape=entry.tape,
        name=data.get("name"),
        input=data.get("input"),
        seq=entry.seq,
        status=ended.get("status", "open"),
        error=ended.get("error"),
        calls=ended.get("calls"),
        end=end.seq if end is not None else None,
        base=data.get("base"),
        normalise=list(data.get("normalise") or []),
        ends=attempt - 1,
    )


def find_run(tape: Snapshot, run: str) -> RunInfo | None:
    """Return what is known of a run, or None when the tape has none of this id."""
    entry = tape.find_entry(key=key_of(strict.identifier(run, "run"), "start"), inherited=True)
    data = event_data(entry) if entry is not None else None
    return run_info(tape, entry, data) if entry is not None and data is not None else None


def read_recording(tape: Tape, run: str, base: Tape | None = None) -> Recording:
    """Read a run from its tape; raises UnknownEntry when it has none of this id.

    A run that goes on from another one is read with the calls of that one up to there: they are on a tape that this one
    inherits from, or on ``base``.
    """
    info = find_run(tape, run)
    if info is None:
        raise UnknownEntry(tape.id, None, key_of(run, "start"))
    calls = _calls(tape, info)
    if info.base is not None:
        before = info.base["before"]
        source = base if base is not None and base.id == info.base["tape"] else tape
        try:
            earlier = read_recording(source, info.base["run"]).calls
        except UnknownEntry:
            raise InvalidEntry(
                "base", f"the run continues a run of tape {info.base['tape']!r}; pass that tape as base="
            ) from None
        calls = [call for call in earlier if call.number < before] + calls
    return Recording(info, calls)


def _calls(tape: Tape, info: RunInfo) -> list[RecordedCall]:
    bodies: dict[str, _Bodies] = {}
    calls: dict[tuple[str, int], RecordedCall] = {}
    start = (info.tape, info.seq)
    end = None if info.end is None else (info.tape, info.end + 1)
    for entry in tape.entries(after=start, before=end, kinds=["event"], inherited=True):
        data = event_data(entry)
        if data is None or data["run"] != info.id or "n" not in data:
            continue
        place = (data["lane"], data["n"])
        if entry.payload.name == CALL:  # type: ignore[union-attr]
            built = bodies.setdefault(entry.tape, _Bodies(tape))
            # Later requests may refer to that of a second attempt.
            built.add(entry.seq, data.get("request") or {})
            if place in calls:
                calls[place].attempt = data.get("attempt", 1)
                continue
            calls[place] = _call(entry, data)
            calls[place].request_of = built.request
        elif entry.payload.name == RESULT and place in calls:  # type: ignore[union-attr]
            calls[place].result, calls[place].result_seq = data, entry.seq
    return list(calls.values())


def _call(entry: Entry, data: Mapping[str, Any]) -> RecordedCall:
    return RecordedCall(
        run=data["run"],
        tape=entry.tape,
        seq=entry.seq,
        lane=data["lane"],
        n=data["n"],
        kind=data["kind"],
        name=data["name"],
        digest=data["digest"],
        effect=data.get("effect"),
        key=data.get("key"),
        bound=bool(data.get("bound")),
        stored=data.get("request") or {},
    )
