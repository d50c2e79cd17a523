"""The events of a run, by type.

Every event of a recording is decoded by ``read_event`` before anything acts on it. A damaged or forged event raises
Corrupt there, with its tape and seq. A run writes the same types.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct, field

from tape.core import strict, typed
from tape.core.entries import payloads
from tape.core.records import Entry
from tape.errors import Corrupt
from tape.runs.pure.deltas import StoredField
from tape.runs.pure.effects import effect_key
from tape.runs.pure.values import StoredError, StoredValue

__all__ = [
    "CALL",
    "ENDED",
    "LONGEST_RUN_ID",
    "RESULT",
    "STARTED",
    "Base",
    "Call",
    "Claim",
    "Ended",
    "Result",
    "Resumed",
    "RunEvent",
    "Started",
    "key_of",
    "read_event",
    "run_of",
]

STARTED, CALL, RESULT, ENDED, RESUMED = "run.started", "run.call", "run.result", "run.ended", "run.resumed"
CLAIM = "run.claim"
"""The names of the events of a run."""

LONGEST_RUN_ID = 60
_LONGEST_LANE = 140

RunId = Annotated[str, Meta(min_length=1, max_length=LONGEST_RUN_ID, pattern=r"\A[^:]+\Z")]
LanePath = Annotated[str, Meta(max_length=16_000, pattern=r"\A0([./][^./:\x00-\x1f]+)*\Z")]
Kind = Annotated[str, Meta(pattern=r"\A(model|tool|value)\Z")]
EffectName = Annotated[str, Meta(pattern=r"\A(read|idempotent|write)\Z")]
Ordinal = Annotated[int, Meta(ge=1, le=strict.MAX_INT)]


def key_of(run: str, *parts: object) -> str:
    """Return the key of an entry of a run. A digest replaces a lane that is too long for a key."""
    words = ["run", run, *map(str, parts)]
    if len(words) > 2 and len(words[2]) > _LONGEST_LANE:
        import hashlib

        words[2] = hashlib.sha256(words[2].encode()).hexdigest()[:32]
    return ":".join(words)


class RunEvent(Struct, omit_defaults=True, kw_only=True):
    """An event of a run, as it is stored."""

    event: ClassVar[str]
    run: RunId

    @property
    def entry_key(self) -> str:
        """The key of its entry."""
        raise NotImplementedError

    @property
    def claimed(self) -> Claim | None:
        """The claim that is recorded in one commit with it."""
        return None


class Base(Struct, frozen=True):
    """The run that another run continues: its tape, its id, and the number of the first call that it does not share."""

    tape: str
    run: RunId
    before: Ordinal

    def __post_init__(self) -> None:
        if not strict.is_identifier(self.tape):
            raise ValueError("it needs the id of a tape")


class Started(RunEvent):
    """A run started."""

    event = STARTED
    name: str | None = None
    input: Any = None
    base: Base | None = None
    normalise: list[str] = field(default_factory=list)
    worker: str = ""
    """Who recorded it: two workers that start one run write different events."""

    @property
    def entry_key(self) -> str:
        """The key of its entry."""
        return key_of(self.run, "start")


class Resumed(RunEvent):
    """A worker resumed a run."""

    event = RESUMED
    calls: int
    worker: str

    @property
    def entry_key(self) -> str:
        """The key of its entry."""
        return key_of(self.run, "resumed", self.worker)


class Call(RunEvent):
    """A call starts."""

    event = CALL
    lane: LanePath
    n: Ordinal
    kind: Kind
    name: str
    digest: str
    request: dict[str, StoredField]
    effect: EffectName | None = None
    key: str | None = None
    """The key of its effect."""
    bound: bool = False
    attempt: Ordinal = 1
    worker: str = ""
    """Who makes it: of two workers that make one call, the second one cannot record that it starts."""
    claim: Ordinal | None = None
    """For a write in a parallel lane: its number among the equal writes there, from 1."""

    @property
    def entry_key(self) -> str:
        """The key of its entry."""
        last = [] if self.attempt == 1 else [self.attempt]
        return key_of(self.run, self.lane, self.n, "call", *last)

    @property
    def claimed(self) -> Claim | None:
        """The claim of the first attempt."""
        if self.claim is None or self.attempt > 1:
            return None
        return Claim(
            run=self.run,
            lane=self.lane,
            n=self.n,
            name=self.name,
            digest=self.digest,
            ordinal=self.claim,
            worker=self.worker,
        )


class Claim(RunEvent):
    """A worker makes a write in a parallel lane.

    Two workers may give a parallel lane different paths. So the place of a write does not keep another worker from
    making it. The key of the claim names the write and not its place.
    """

    event = CLAIM
    lane: LanePath
    n: Ordinal
    name: str
    digest: str
    ordinal: Ordinal
    worker: str

    @property
    def entry_key(self) -> str:
        """The key of its entry."""
        return key_of(self.run, "claim", effect_key(self.run, str(self.ordinal), self.name, self.digest))


class Result(RunEvent):
    """The outcome of a call: a value, chunks of a stream, or an error, which may follow chunks."""

    event = RESULT
    lane: LanePath
    n: Ordinal
    status: Literal["completed", "failed", "partial", "skipped"]
    value: StoredValue | None = None
    chunks: list[tuple[int, StoredValue]] | None = None
    """What a stream yielded, each with the microseconds after the call."""
    error: StoredError | None = None
    took: int = 0
    """Microseconds."""
    awaited: bool = False
    """Whether the function returned something to be awaited."""

    def __post_init__(self) -> None:
        if (self.status == "failed") != (self.error is not None):
            raise ValueError("an error and the status 'failed' belong together")
        if self.status == "partial" and self.chunks is None:
            raise ValueError("the status 'partial' needs chunks")
        if (self.value is not None) + (self.chunks is not None) != 1 and self.error is None:
            raise ValueError("it has either a value or chunks")

    @property
    def entry_key(self) -> str:
        """The key of its entry."""
        return key_of(self.run, self.lane, self.n, "result")

    def outcome(self) -> Any:
        """Return the outcome of the call as JSON, without times."""
        if self.error is not None:
            return {"error": f"{self.error.type}: {self.error.text}"}
        if self.chunks is not None:
            return {"chunks": [msgspec.to_builtins(chunk) for _, chunk in self.chunks]}
        assert self.value is not None
        return msgspec.to_builtins(self.value) if self.value.data is msgspec.UNSET else self.value.data


class Ended(RunEvent):
    """A run ended. One that failed may be resumed, and ends again."""

    event = ENDED
    status: Literal["completed", "failed", "interrupted"]
    error: str | None = None
    calls: int | None = None
    attempt: Ordinal = 1
    """How often the run has ended."""

    def __post_init__(self) -> None:
        if (self.status == "completed") != (self.error is None):
            raise ValueError("an error and the status 'completed' exclude each other")

    @property
    def entry_key(self) -> str:
        """The key of its entry."""
        return key_of(self.run, "end", self.attempt)


_TYPES: dict[str, type[Started | Call | Claim | Result | Ended]] = {
    cls.event: cls for cls in (Started, Call, Claim, Result, Ended)
}


def run_of(entry: Entry) -> str | None:
    """Return the id of the run that an entry claims to belong to, by its name and its key; None for any other entry."""
    payload = entry.payload
    if not isinstance(payload, payloads.Event) or payload.name not in _TYPES or not entry.key.startswith("run:"):
        return None
    return entry.key.split(":", 2)[1]


def read_event(entry: Entry) -> Started | Call | Claim | Result | Ended:
    """Return the event of a run that an entry holds. Raises Corrupt when it holds none."""
    payload = entry.payload
    if not isinstance(payload, payloads.Event) or payload.name not in _TYPES:
        raise Corrupt(
            entry.tape, entry.seq, f"the key {entry.key!r} is of a run, but the entry is not an event of a run"
        )
    try:
        event = typed.convert(payload.data, _TYPES[payload.name])
    except msgspec.ValidationError as error:
        raise Corrupt(entry.tape, entry.seq, f"the event {payload.name} is damaged: {error}") from error
    if event.entry_key != entry.key:
        raise Corrupt(entry.tape, entry.seq, f"the event {payload.name} has the key {entry.key!r} of another one")
    return event
