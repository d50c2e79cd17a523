"""The tapes that a transcript is written to: which are its own, and what became of each step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from tape.core import strict
from tape.core.lenient import lenient
from tape.core.plan.messages import AddMessage
from tape.core.records import Receipt
from tape.errors import ImportFailed, InvalidEntry, ProvenanceConflict, TapeNotFound, UnknownMessage
from tape.transcripts.composing import Composed, compose
from tape.transcripts.formats.claude.agents import Agents
from tape.transcripts.formats.lines import Reading, digest
from tape.transcripts.steps import Branch, Message, Start, Step, Title
from tape.transcripts.write_step import Ids, write_step

if TYPE_CHECKING:
    from tape.handles.recorded import Request
    from tape.handles.tape import Tape
    from tape.store import Store

_TOGETHER = 2000
"""How many steps are written together."""

__all__ = ["Beginning", "ImportedTranscript", "Refused", "Sessions", "TapeTaken", "Writer", "candidate_ids"]


class TapeTaken(ImportFailed):
    """The tape to write holds something else than this transcript (``fact``), so that another one must be named."""

    def __init__(self, line: int, fact: str, remedy: str) -> None:
        super().__init__(line, f"{fact}; {remedy}")
        self.fact = fact


class Refused(Exception):
    """A tape refuses one of the steps that were composed: each has to be written by itself, from the file."""


class ImportedTranscript(Struct, frozen=True):
    """What an import did to one tape: how many entries it added, and how many were there before."""

    tape: str
    added: int
    known: int


def _tape_id(start: Start, path: Path) -> str:
    if start.id is not None:
        return start.id
    return path.stem if start.part is None else f"{path.stem}-{start.part}"


def candidate_ids(start: Start, path: Path, lane: str, key: str | None) -> list[str]:
    """Return the ids that the tape of a conversation can have, of which the first record is in ``lane``."""
    id = _tape_id(start, path)
    if lane:
        id = f"{id}/{lane}"
    return [id] if start.id is not None or key is None else [id, f"{id}-{digest(key)[:8]}"]


class Beginning(Struct):
    """How a conversation begins: the keys of its first record, and of the first message of a user.

    The first record alone does not tell two conversations apart, since many begin with the same system prompt.
    """

    first: str | None = None
    asked: str | None = None

    def take(self, key: str, message: Any) -> None:
        """Note a record, if it is one of those two."""
        self.first = self.first or key
        if self.asked is None and isinstance(message, dict) and message.get("role") == "user":
            self.asked = key

    def matches(self, other: Beginning) -> bool:
        """Whether this can be the same conversation, perhaps one of them before the user asked anything."""
        if self.asked is None or other.asked is None:
            return self.first == other.first
        return self.asked == other.asked


class _Lane(Struct):
    """A tape that is written to: its handle, the ids of its messages by key, and what was done."""

    tape: Tape
    ids: Ids
    waiting: dict[str, tuple[Step | None, Request]] = {}
    """The steps that are to be written together, by key; None for one that was composed elsewhere."""
    added: int = 0
    known: int = 0


def _request(lane: _Lane, composed: Composed) -> Request:
    """Return the request that records a step on a tape, after the tape's message for its parent."""
    from tape.db.record.writing import Call
    from tape.handles.recorded import Request

    intent = composed.intent
    if isinstance(intent, AddMessage):
        intent.parent = None if composed.parent is None else lane.ids[composed.parent]
        lane.ids[composed.key] = intent.id
    return Request(Call(lane.tape.id, composed.actor, composed.meta, key=composed.key), [intent])


class Sessions:
    """The agents of each session, so that a session's tape is read once for all of its subagents."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[int, str, Agents]] = {}
        """For each tape: the seq and hash of the last entry read, and the agents up to it."""

    def agents(self, session: Tape) -> Agents:
        """Return the agents of a session. Reads only the entries since the last call."""
        seq, hash, agents = self._read.get(session.id, (0, "", Agents()))
        entries = iter(session.entries(after=max(0, seq - 1)))
        if seq and ((last := next(entries, None)) is None or last.hash != hash):
            # The transaction that wrote it was undone.
            seq, hash, agents, entries = 0, "", Agents(), iter(session.entries())
        for entry in entries:
            seq, hash = entry.seq, entry.hash
            agents.read(entry)
        self._read[session.id] = seq, hash, agents
        return agents


class Writer:
    """Takes the steps of a transcript, one after the other."""

    def __init__(
        self,
        store: Store,
        reading: Reading,
        path: Path,
        tape: str | None,
        begins: list[Beginning],
        known: int = 0,
        sessions: Sessions | None = None,
    ) -> None:
        self._store = store
        self._sessions = Sessions() if sessions is None else sessions
        self._reading = reading
        self._format = reading.format
        self._file = path
        self._given = tape
        self._known = known
        """The lines of which every step is on its tape already."""
        self._begins = begins
        """How each conversation of the file begins."""
        self._starts = 0
        self._start: Start | None = None
        self._main: str | None = tape
        """The tape of the conversation that began last."""
        self._lanes: dict[str, _Lane] = {}
        """The tapes by their ids."""
        self._branches: dict[str, Branch] = {}
        """Where side conversations begin."""

    def take_all(self, steps: Iterable[Step | Composed]) -> None:
        """Write the steps of a file; raises Refused if a tape takes one not as it was composed elsewhere."""
        for step in steps:
            if isinstance(step, Start):
                self._start = step
                self._main = self._given
                self._starts += 1
            elif isinstance(step, Branch):
                self._branches[step.lane] = step
            else:
                self._take(step)
        for lane in self._lanes.values():
            self._flush(lane)

    def _take(self, step: Any) -> None:
        """Write one step. What a tape cannot hold as it is, or holds otherwise already, is kept as an event."""
        lane = self._lane("" if isinstance(step, Title) else step.lane)
        if step.line <= self._known:
            lane.known += 1
            if isinstance(step, Message) and step.id is not None:
                lane.ids[step.key] = step.id
            return
        composed = step if isinstance(step, Composed) else compose(step)
        if composed is None:
            self._flush(lane)
            self._take_alone(lane, step)
            return
        if len(lane.waiting) >= _TOGETHER or step.key in lane.waiting:
            self._flush(lane)
        lane.waiting[step.key] = (None if step is composed else step, _request(lane, composed))

    def _flush(self, lane: _Lane) -> None:
        """Write the steps that wait. If one of them is refused, each is written by itself."""
        waiting, lane.waiting = lane.waiting, {}
        if not waiting:
            return
        # Not at the top: help and completion name the formats without loading a database.
        from tape.handles.recorded import record_in_order

        try:
            receipts = record_in_order(lane.tape, [request for _, request in waiting.values()])
        except (ProvenanceConflict, InvalidEntry, UnknownMessage) as error:
            for step, _ in waiting.values():
                if step is None:
                    raise Refused from error
                self._take_alone(lane, step)
            return
        for (key, (_, request)), receipt in zip(waiting.items(), receipts, strict=True):
            if isinstance(request.intents[0], AddMessage):
                lane.ids[key] = receipt.message_id
            self._count(lane, receipt)

    def _take_alone(self, lane: _Lane, step: Any) -> None:
        try:
            receipt = write_step(lane.tape, step, lane.ids)
        except ProvenanceConflict as error:
            fact = f"differs from the record that was imported as seq {error.seq} of tape {error.tape!r}"
            if self._reading.strict:
                raise TapeTaken(step.line, fact, "import into another tape") from error
            self._keep(lane, step, fact, step.id if isinstance(step, Message) else None)
        except (InvalidEntry, UnknownMessage) as error:
            if self._reading.strict:
                raise ImportFailed(step.line, str(error)) from error
            self._keep(lane, step, str(error), None)
        else:
            if isinstance(step, Message):
                lane.ids[step.key] = receipt.message_id
            self._count(lane, receipt)

    def _keep(self, lane: _Lane, step: Any, reason: str, id: str | None) -> None:
        """Keep a step as an event; what follows it follows the message of that id, or else the one before it."""
        self._reading.problem(step.line, reason)
        if isinstance(step, Message):
            lane.ids[step.key] = id if id is not None else lane.ids[step.parent] if step.parent else None
        value, _ = lenient(msgspec.to_builtins(step))
        data = {"reason": reason, "step": value}
        try:
            receipt = lane.tape.event(f"{self._format}.kept", data, key=f"{self._format}:{digest(value)}/kept")
        except InvalidEntry:
            data["step"] = msgspec.json.encode(value).decode()
            receipt = lane.tape.event(f"{self._format}.kept", data, key=f"{self._format}:{digest(value)}/kept")
        self._count(lane, receipt)

    def done(self) -> list[ImportedTranscript]:
        """Return what was done to each tape."""
        return [ImportedTranscript(lane.tape.id, lane.added, lane.known) for lane in self._lanes.values()]

    def _count(self, lane: _Lane, receipt: Receipt) -> None:
        if receipt.duplicate:
            lane.known += 1
        else:
            lane.added += 1

    # -- the tapes

    def _lane(self, name: str) -> _Lane:
        """Return the tape of the conversation that began last, or of a side conversation of it."""
        start = self._start
        assert start is not None, "a transcript begins with a start"
        if self._main is None:
            try:
                self._main = self._own(start)
            except InvalidEntry as error:
                raise ImportFailed(start.line, str(error)) from error
        main = self._main
        id = f"{main}/{name}" if name else main
        if id not in self._lanes:
            if not strict.is_identifier(id):
                # A name that no tape can have, of a side conversation.
                id = f"{main}/{digest(name)}"
            branch = self._branches.get(name)
            if name and main in self._lanes:
                self._flush(self._lanes[main])
            self._lanes[id] = self._lanes.get(id) or self._opened(id, main if name else None, start, branch)
        return self._lanes[id]

    def _opened(self, id: str, main: str | None, start: Start, branch: Branch | None) -> _Lane:
        tape = self._open(id, main, start, branch)
        return _Lane(tape, Ids(tape))

    def _own(self, start: Start) -> str:
        """Return the id of a conversation's tape. The name of a file is no proof that the tape of that name is its own.

        Another conversation's tape, or one that somebody else wrote, is left alone: the id then ends with a digest of
        how the conversation begins, which stays the same when the file is imported again or has grown.
        """
        id = _tape_id(start, self._file)
        strict.identifier(id, "tape")
        if start.id is not None:
            self._check_ours(id, start)
            return id
        begin = self._begins[self._starts - 1]
        others = [f"{id}-{digest(key)[:8]}" for key in (begin.first, begin.asked) if key is not None]
        for known in (id, *others):
            if self._is_of(known, begin):
                return known
        for free in (id, others[-1]):
            try:
                self._store.get(free)
            except TapeNotFound:
                return free
        fact = f"the tapes {id!r} and {others[-1]!r} were not imported from this file"
        raise TapeTaken(start.line, fact, "name another tape with tape=")

    def _check_ours(self, id: str, start: Start) -> None:
        """Refuse a tape that is there and that no transcript of this format made, unless the caller named it.

        An id in a file is no proof either: whoever wrote the file chose it, perhaps so that it hits this tape.
        """
        if id == self._given:
            return
        try:
            tape = self._store.get(id)
        except TapeNotFound:
            return
        info = tape.info()
        made = (info.meta or {}).get("imported")
        if isinstance(made, dict) and made.get("format") == self._format:
            return
        # A side conversation is a fork, which has no meta of its own; what it begins with tells as much, if anything.
        own = [entry.key for entry in tape.entries(after=1, limit=1)]
        side = info.parent is not None and id.startswith(f"{info.parent}/")
        if not (own[0].startswith(f"{self._format}:") if own else side):
            fact = f"the tape {id!r} was not imported from a {self._format} transcript"
            raise TapeTaken(start.line, fact, "name the tape to write with tape=")

    def _is_of(self, id: str, begin: Beginning) -> bool:
        """Whether a tape was made from the conversation that begins so."""
        try:
            tape = self._store.get(id)
        except TapeNotFound:
            return False
        imported = (tape.info().meta or {}).get("imported")
        if not isinstance(imported, dict) or imported.get("format") != self._format:
            return False
        beginning = Beginning()
        for entry in tape.entries():
            if entry.key.startswith(f"{self._format}:"):
                beginning.take(entry.key, getattr(entry.payload, "message", None))
            if beginning.asked is not None:
                break
        return beginning.matches(begin)

    def _open(self, id: str, main: str | None, start: Start, branch: Branch | None) -> Tape:
        """Return a tape, made if it is not there: a side conversation is a fork of the main one, if that is there."""
        self._check_ours(id, start)
        try:
            return self._store.get(id)
        except TapeNotFound:
            pass
        meta = {"imported": {"format": self._format, "file": self._file.name, **start.meta}}
        if main is not None:
            try:
                session = self._store.get(main)
            except TapeNotFound:
                pass
            else:
                at = None if branch is None else self._fork_point(session, branch)
                return session.fork(id, at=at, name=id.removeprefix(f"{main}/"), meta=meta)
        agent = start.agent if strict.is_identifier(start.agent) else None
        return self._store.create(id, agent=agent, meta=meta)

    def _fork_point(self, session: Tape, branch: Branch) -> str | None:
        """Return the message of the session at which a side conversation begins, if it is there to be seen."""
        lane = self._lanes.get(session.id)
        id = None if lane is None or branch.parent is None else lane.ids[branch.parent]
        if id is None and (branch.agent or branch.prompt):
            id = self._sessions.agents(session).started(branch.agent, branch.prompt)
        return id if id is not None and session.find(id) is not None else None
