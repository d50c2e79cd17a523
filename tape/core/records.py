"""The values that the store hands out. Each is a copy: changing one changes nothing stored."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import astuple

from tape.core.entries.payloads import Payload, Place
from tape.core.messages.dialects import translated
from tape.core.messages.roles import role_of
from tape.core.strict import ATOMS, copied

__all__ = [
    "FIRST_STAMP",
    "LAST_STAMP",
    "Ancestor",
    "Anchor",
    "Check",
    "Descendant",
    "Entry",
    "Finding",
    "Hit",
    "Health",
    "IndexProblem",
    "Lineage",
    "MergeReceipt",
    "Message",
    "Page",
    "Problem",
    "Receipt",
    "Report",
    "Retention",
    "Source",
    "StateValue",
    "Stats",
    "TapeInfo",
    "Transfer",
    "ViewProblem",
    "micros",
    "moment",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_STAMP = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
LAST_STAMP = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
"""The first and the last moment that a datetime can hold."""
T = TypeVar("T")


def moment(stamp: int) -> datetime:
    """Return microseconds since 1970 as an aware datetime."""
    return _EPOCH + timedelta(microseconds=stamp)


def micros(at: datetime) -> int:
    """Return an aware datetime as microseconds since 1970."""
    return (at - _EPOCH) // timedelta(microseconds=1)


class Source(Struct, frozen=True, array_like=True):
    """Where an entry came from: the entry that it copies or cites."""

    tape: str
    seq: int


class Receipt(Struct, frozen=True):
    """The promise that an entry is recorded. ``duplicate`` says that it was recorded before this call."""

    tape: str
    seq: int
    key: str
    message_id: str | None
    hash: str
    duplicate: bool = False
    position: int | None = None


class MergeReceipt(Struct, frozen=True):
    """The promise that a merge is recorded on both tapes; ``duplicate`` says that there was nothing new."""

    tape: str
    seq: int
    key: str
    hash: str
    duplicate: bool
    child: str
    child_head: int
    """The child's seq up to which it was merged."""
    strategy: str
    message_ids: list[str]
    """The messages that the merge wrote, by their ids in the parent."""
    changed: list[str]
    """The parent's messages that the merge revised or retracted."""
    kept: list[str]
    """Those that both had changed and that stayed as the parent has them."""


class Ancestor(Struct, frozen=True):
    """A tape that another inherits from, and the seq up to which it does."""

    tape: str
    seq: int


class Descendant(Struct, frozen=True):
    """A fork of a tape or of one of its forks: its parent, where it was forked off, and its state."""

    tape: str
    parent: str
    seq: int
    state: str


class Lineage(Struct, frozen=True):
    """A tape's family: ancestors nearest first, descendants parents first, and where merged messages came from."""

    ancestors: list[Ancestor]
    descendants: list[Descendant]
    merges: list[MergeReceipt]
    sources: dict[str, Source]
    """The ids of merged messages, each with the child and the seq that it was copied from."""


class Entry(Struct, frozen=True):
    """One immutable entry as it was recorded."""

    tape: str
    seq: int
    kind: str
    key: str
    actor: str | None
    source: Source | None
    payload: Payload | None
    meta: dict[str, Any] | None
    stamp: int
    version: int
    hash: str
    head: Place
    """Where the head of the message tree stands after this entry."""
    position: int | None = None
    unreadable: str | None = None
    """Why the entry cannot be read. The feed skips none: such an entry has None as its payload and in all other damaged
    fields."""
    occurred: int | None = None
    """When the recorded event happened, if the caller gave a time: microseconds since 1970."""

    def __repr__(self) -> str:
        return f"<tape.Entry {self.tape!r} seq {self.seq}: {self.kind}, key {self.key!r}>"

    @property
    def recorded_at(self) -> datetime:
        """When the entry was recorded, by the writer's clock. Informative: nothing is decided by it."""
        return moment(self.stamp)

    @property
    def occurred_at(self) -> datetime | None:
        """When the recorded event happened, if the caller gave a time. Nothing is decided by it."""
        return None if self.occurred is None else moment(self.occurred)


class Message(Struct, frozen=True, eq=True):
    """A message as it is in the view. Every field of its data is an attribute, too."""

    id: str
    tape: str
    data: dict[str, Any]
    parent: str | None
    seq: int
    """The entry that placed the message."""
    revision: int
    """The entry with the current content."""
    stamp: int
    tokens: int = 0
    """About how many tokens it takes, as estimated when it was recorded; 0 when that is not known."""
    meta: dict[str, Any] | None = None
    """The caller's meta for the current content. No model sees it and no budget counts it."""
    occurred: int | None = None
    """When the current content originated, if the caller gave a time: microseconds since 1970."""

    @property
    def role(self) -> str | None:
        """The role that was given, or that the type of an item without one implies, or None."""
        return role_of(self.data)

    @property
    def content(self) -> Any:
        """The content that was given, verbatim, or None."""
        return self.data.get("content")

    @property
    def recorded_at(self) -> datetime:
        """When the content was recorded."""
        return moment(self.stamp)

    @property
    def occurred_at(self) -> datetime | None:
        """When the content originated, if the caller gave a time; it was recorded at ``recorded_at``."""
        return None if self.occurred is None else moment(self.occurred)

    @property
    def text(self) -> str:
        """The plain text in the content: a string as it is, or the text parts joined by blank lines."""
        data = translated(self.data)
        body = data.get("content", data.get("parts"))
        if isinstance(body, str):
            return body
        if not isinstance(body, list):
            return ""
        parts = (part.get("text") if isinstance(part, dict) else part for part in body)
        return "\n\n".join(part for part in parts if isinstance(part, str))

    def __repr__(self) -> str:
        text = " ".join(self.text.split())
        text = text if len(text) <= 60 else f"{text[:59]}…"
        return f"<tape.Message {self.id!r} of {self.tape!r}, seq {self.seq}: {self.role or 'item'}: {text!r}>"

    def _repr_html_(self) -> str:
        """Return it as notebooks show it."""
        from tape.web.report.notebook import message_frame

        return message_frame(self)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy equal to what was appended."""
        made = self.data.copy()
        for name, item in self.data.items():
            if type(item) not in ATOMS:
                made[name] = copied(item)
        return made

    def __getattr__(self, name: str) -> Any:
        # Called only for names that are no field: further members of the message.
        if not name.startswith("__"):
            try:
                return self.data[name]
            except KeyError:
                pass
        raise AttributeError(f"the message has no field {name!r}")


class Anchor(Struct, frozen=True):
    """A checkpoint or a handoff: where context begins, and the state it begins with."""

    name: str
    seq: int
    state: Any
    summary: str | None
    phase: str | None
    next_steps: list[str]
    source_ids: list[str]
    owner: str | None
    parents: list[int]
    stale: bool
    tape: str
    stamp: int

    @property
    def recorded_at(self) -> datetime:
        """When the anchor was recorded."""
        return moment(self.stamp)


class StateValue(Struct, frozen=True):
    """What a slot of state holds, and the entry that set it: of the tape itself, or of one that it inherits from."""

    slot: str
    value: Any
    seq: int
    tape: str


class TapeInfo(Struct, frozen=True, kw_only=True):
    """The facts of a tape that are known without reading its entries."""

    id: str
    name: str | None = None
    owner: str | None = None
    agent: str | None = None
    labels: list[str] = field(default_factory=list)
    meta: dict[str, Any] | None = None
    status: str = "active"
    reason: str | None = None
    parent: str | None = None
    forked_at: int | None = None
    redirect: str | None = None
    head: int = 0
    head_hash: str | None = None
    view: int = 0
    """The seq of the last entry that changed messages, anchors, summaries, state, blocks or the prompt."""
    hidden: bool = False
    hidden_reason: str | None = None
    message_count: int = 0
    entry_count: int = 0
    last_message_at: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    completed_at: datetime | None = None
    tokens: int = 0
    cost: int = 0


class Hit(Struct, frozen=True):
    """A message that a search found: the tape and seq of the entry that holds the text, and the place in it."""

    tape: str
    seq: int
    message_id: str
    role: str | None
    snippet: str
    """The text around the first matching words, on one line, with « » around each."""
    score: float
    """How well the text matches the query. Informative: hits are ordered by age."""
    stamp: int

    @property
    def recorded_at(self) -> datetime:
        """When the text was recorded."""
        return moment(self.stamp)


class Check(Struct, frozen=True):
    """Up to where ``verify`` last found a tape intact: the seq, the hash there, and when that was."""

    tape: str
    seq: int
    hash: str
    at: datetime


class Health(Struct, frozen=True, kw_only=True):
    """The state of a store, without reading any tape."""

    ok: bool
    """The database answers and has the schema of this release."""
    engine: str
    server: str
    """The version of the database."""
    schema: str | None
    """The revision of the schema in the database."""
    expected_schema: str
    latency: float
    """Seconds that the database took to answer."""
    verified: Check | None = None
    """The newest check of the requested tape, or of any."""
    tape: str | None = None
    head: int | None = None
    head_hash: str | None = None
    index_lag: int | None = None
    """About how many entries the search index is behind; None in a store of one owner, since all owners share it."""


class Finding(Struct, frozen=True):
    """What one check of a doctor found, and the command that repairs it."""

    check: str
    level: str
    """ok, note, warning or error."""
    what: str
    mend: str | None = None


class Stats(Struct, frozen=True, kw_only=True):
    """How much a store holds: tapes by status, entries, messages in the view, and bytes of payloads and meta."""

    tapes: int = 0
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    by_status: dict[str, int] = field(default_factory=dict)


class Retention(Struct, frozen=True, kw_only=True):
    """The tapes that ``purge`` or ``retain`` purged, or would purge, and those that are ``kept``, with the reason."""

    dry_run: bool
    tapes: list[str] = field(default_factory=list)
    entries: int = 0
    kept: dict[str, str] = field(default_factory=dict)


class Transfer(Struct, frozen=True, kw_only=True):
    """What an export wrote, or an import added: the tapes in the file, and how many entries."""

    tapes: list[str] = field(default_factory=list)
    entries: int = 0


class Page(Struct, Generic[T], frozen=True):
    """A part of a longer list. ``cursor`` continues it; ``truncated`` says whether there is more."""

    items: list[T]
    cursor: str | None = None
    truncated: bool = False

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> T:
        return self.items[index]


class Problem(Struct, frozen=True):
    """Something that ``verify`` found: the tape, the first seq concerned, and what is wrong."""

    tape: str
    seq: int
    what: str

    def __eq__(self, other: object) -> bool:
        # The class of a problem says how to repair it, and is not part of its value.
        return isinstance(other, Problem) and astuple(self) == astuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(astuple(self))


class ViewProblem(Problem, frozen=True):
    """The entries are intact and the view does not match them: ``rebuild`` repairs it."""


class IndexProblem(Problem, frozen=True):
    """The search index does not match the entries: ``rebuild`` of all tapes repairs it."""


class Report(Struct, frozen=True):
    """What ``verify`` found. ``erased`` lists entries that were erased on purpose."""

    problems: list[Problem] = field(default_factory=list)
    tapes: int = 0
    entries: int = 0
    erased: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems
