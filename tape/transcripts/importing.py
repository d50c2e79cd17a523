"""Writing a transcript's steps to tapes, all of them or none.

The file is read twice: once without writing, so that a broken one never holds a lock, and once in a transaction that
writes what is new. Records are known by their keys, so that importing again, also when the file has grown, adds only
what was not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec import Struct

from tape.core import strict
from tape.core.records import Page, Receipt
from tape.errors import HeadMoved, ImportFailed, InvalidEntry, ProvenanceConflict, TapeNotFound, UnknownMessage
from tape.transcripts import anthropic, claude_code, codex, langgraph, openai
from tape.transcripts.lines import digest
from tape.transcripts.steps import Event, Message, Restart, Start, Step, Title, Used

if TYPE_CHECKING:
    from tape.handles.tape import Tape
    from tape.store import Store

__all__ = ["FORMATS", "ImportedTranscript", "TapeTaken", "import_transcript"]

Progress = Callable[[int, int], None]

_PARSERS: dict[str, Callable[[Iterable[bytes]], Iterator[Step]]] = {
    "claude-code": claude_code.parse,
    "codex": codex.parse,
    "openai": openai.parse,
    "anthropic": anthropic.parse,
    "langgraph": langgraph.parse,
}

FORMATS = tuple(_PARSERS)
"""The formats that ``import_transcript`` reads."""

_TOLD_EVERY = 1 << 18
"""Bytes between two calls of ``progress``."""


class TapeTaken(ImportFailed):
    """The tape to write holds something else than this transcript (``fact``), so that another one must be named."""

    def __init__(self, line: int, fact: str, remedy: str) -> None:
        super().__init__(line, f"{fact}; {remedy}")
        self.fact = fact


class ImportedTranscript(Struct, frozen=True):
    """What an import did to one tape: how many entries it added, and how many were there before."""

    tape: str
    added: int
    known: int


def import_transcript(
    store: Store,
    format: str,
    path: str | os.PathLike[str],
    *,
    tape: str | None = None,
    progress: Progress | None = None,
) -> list[ImportedTranscript]:
    """Import a transcript that another program wrote, into tapes of ``store``; all of it, or nothing.

    ``tape`` is the id of the tape to write to; by default it is the session's own id, or the file's name (with a digest
    behind it if another conversation has a tape of that name). A tape that has the session's id, but that no transcript
    made, is written to only if ``tape`` names it; otherwise the import is refused. A file that holds several
    conversations makes a tape of each, unless ``tape`` is given: then they become branches of that one. Importing again
    adds only what is new. ``progress`` is called with the bytes done and the bytes in all, over both readings of the
    file.

    Raises ImportFailed with the number of the line for a file that is broken, empty or of another format, and
    InvalidEntry when there is no such format or file.
    """
    parse = _PARSERS.get(format)
    if parse is None:
        raise InvalidEntry("format", f"must be one of {', '.join(FORMATS)}, not {format!r}")
    if tape is not None:
        strict.identifier(tape, "tape")
    path = Path(path)
    if not path.is_file():
        raise InvalidEntry("path", f"there is no file {os.fspath(path)!r}")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            name = tape
            begins: list[_Beginning] = []
            for step in parse(_lines(file, size, 0, progress)):
                if not isinstance(step, Start):
                    begins[-1].take(step.key, step.message if isinstance(step, Message) and not step.lane else None)
                    continue
                begins.append(_Beginning())
                name = name or _tape_id(step, path)
            if name is None:
                raise ImportFailed(1, "is empty")

            def write(together: Store) -> list[ImportedTranscript]:
                file.seek(0)
                writer = _Writer(together, format, path, tape, begins)
                # What is appended to the file meanwhile is for the next import.
                for step in parse(_lines(file, size, size, progress)):
                    writer.take(step)
                return writer.done()

            return store._together(name, write)
    except OSError as error:
        raise InvalidEntry("path", f"cannot be read: {error}") from error


def _lines(file: BinaryIO, size: int, before: int, progress: Progress | None) -> Iterator[bytes]:
    """Yield the lines of the first ``size`` bytes of a file, and tell how far the reading is."""
    done, told = 0, 0
    while done < size:
        raw = file.readline(size - done)
        if not raw:
            break
        done += len(raw)
        if progress is not None and (done - told >= _TOLD_EVERY or done == size):
            told = done
            progress(before + done, 2 * size)
        yield raw


def _tape_id(start: Start, path: Path) -> str:
    if start.id is not None:
        return start.id
    return path.stem if start.part is None else f"{path.stem}-{start.part}"


class _Beginning(Struct):
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

    def matches(self, other: _Beginning) -> bool:
        """Whether this can be the same conversation, perhaps one of them before the user asked anything."""
        if self.asked is None or other.asked is None:
            return self.first == other.first
        return self.asked == other.asked


class _Lane(Struct):
    """A tape that is written to: its handle, the ids of its messages by key, and what was done."""

    tape: Tape
    ids: dict[str, str]
    added: int = 0
    known: int = 0


class _Writer:
    """Takes the steps of a transcript, one after the other."""

    def __init__(self, store: Store, format: str, path: Path, tape: str | None, begins: list[_Beginning]) -> None:
        self._store = store
        self._format = format
        self._file = path
        self._given = tape
        self._begins = begins
        """How each conversation of the file begins."""
        self._starts = 0
        self._start: Start | None = None
        self._main: str | None = tape
        """The tape of the conversation that began last."""
        self._lanes: dict[str, _Lane] = {}
        """The tapes by their ids."""

    def take(self, step: Step) -> None:
        """Write one step."""
        try:
            self._take(step)
        except ProvenanceConflict as error:
            fact = f"differs from what was imported before as seq {error.seq} of tape {error.tape!r}"
            raise TapeTaken(step.line, fact, "import into another") from error
        except (InvalidEntry, UnknownMessage) as error:
            raise ImportFailed(step.line, str(error)) from error

    def done(self) -> list[ImportedTranscript]:
        """Return what was done to each tape."""
        return [ImportedTranscript(lane.tape.id, lane.added, lane.known) for lane in self._lanes.values()]

    def _take(self, step: Step) -> None:
        if isinstance(step, Start):
            self._start = step
            self._main = self._given
            self._starts += 1
        elif isinstance(step, Message):
            lane = self._lane(step.lane)
            receipt = self._message(lane, step)
            lane.ids[step.key] = receipt.message_id or ""
            self._count(lane, receipt)
        elif isinstance(step, Event):
            lane = self._lane(step.lane)
            self._count(lane, lane.tape.event(_event_name(step.name), step.data, key=step.key))
        elif isinstance(step, Restart):
            lane = self._lane(step.lane)
            self._count(lane, self._restart(lane, step))
        elif isinstance(step, Used):
            lane = self._lane(step.lane)
            used = lane.tape.record_usage(
                input_tokens=step.input_tokens,
                output_tokens=step.output_tokens,
                cached_tokens=step.cached_tokens,
                model=step.model if strict.is_identifier(step.model) else None,
                key=step.key,
            )
            self._count(lane, used)
        elif isinstance(step, Title):
            lane = self._lane("")
            self._count(lane, lane.tape.rename(step.name.replace("\0", ""), key=step.key))

    def _count(self, lane: _Lane, receipt: Receipt) -> None:
        if receipt.duplicate:
            lane.known += 1
        else:
            lane.added += 1

    def _message(self, lane: _Lane, step: Message) -> Receipt:
        message, meta = step.message, step.meta
        own = message.get("id")
        if "id" in message and not strict.is_identifier(own):
            message, meta = _without_id(message), {**meta, "id": own}
        parent = None if step.parent is None else lane.ids[step.parent]

        def append(message: dict[str, Any], meta: dict[str, Any]) -> Receipt:
            return lane.tape.append(
                message, id=step.id, parent=parent, key=step.key, actor=step.actor, meta=meta or None
            )

        try:
            return append(message, meta)
        except ProvenanceConflict:
            if "id" not in message:
                raise
            # Another message has this id: the record keeps it in its meta, and its message gets one of its own.
            return append(_without_id(message), {**meta, "id": message["id"]})

    def _restart(self, lane: _Lane, step: Restart) -> Receipt:
        tape = lane.tape

        def mark(expected_head: int | None) -> Receipt:
            if step.summary is not None:
                return tape.handoff(
                    step.name, summary=step.summary, key=step.key, meta=step.meta, expected_head=expected_head
                )
            return tape.anchor(step.name, key=step.key, meta=step.meta, expected_head=expected_head)

        try:
            # No tape that has an entry is at seq 0: only an anchor that is known already comes back from this.
            return mark(0)
        except HeadMoved:
            pass
        if step.parent is not None:
            last = tape.messages(limit=1)
            assert isinstance(last, Page)
            if not last.items or last.items[-1].id != lane.ids[step.parent]:
                tape.switch(lane.ids[step.parent], key=f"{step.key}/switch")
        return mark(None)

    # -- the tapes

    def _lane(self, name: str) -> _Lane:
        """Return the tape of the conversation that began last, or of a side conversation of it."""
        start = self._start
        assert start is not None, "a transcript begins with a start"
        if self._main is None:
            self._main = self._own(start)
        main = self._main
        id = f"{main}/{name}" if name else main
        if id not in self._lanes:
            self._lanes[id] = _Lane(self._open(id, main if name else None, start), {})
        return self._lanes[id]

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
        fact = f"the tapes {id!r} and {others[-1]!r} are not made from this file"
        raise TapeTaken(start.line, fact, "name one with tape=")

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
            fact = f"the tape {id!r} was not made from a transcript of {self._format}"
            raise TapeTaken(start.line, fact, "name the tape to write with tape=")

    def _is_of(self, id: str, begin: _Beginning) -> bool:
        """Whether a tape was made from the conversation that begins so."""
        try:
            tape = self._store.get(id)
        except TapeNotFound:
            return False
        made = (tape.info().meta or {}).get("imported")
        if not isinstance(made, dict) or made.get("format") != self._format:
            return False
        found = _Beginning()
        for entry in tape.entries():
            if entry.key.startswith(f"{self._format}:"):
                found.take(entry.key, getattr(entry.payload, "message", None))
            if found.asked is not None:
                break
        return found.matches(begin)

    def _open(self, id: str, main: str | None, start: Start) -> Tape:
        """Return a tape, made if it is not there: a side conversation is a fork of the main one, if that is there."""
        strict.identifier(id, "tape")
        self._check_ours(id, start)
        try:
            return self._store.get(id)
        except TapeNotFound:
            pass
        meta = {"imported": {"format": self._format, "file": self._file.name, **start.meta}}
        if main is not None:
            try:
                return self._store.get(main).fork(id, name=id.removeprefix(f"{main}/"), meta=meta)
            except TapeNotFound:
                pass
        return self._store.create(id, agent=start.agent, meta=meta)


def _without_id(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "id"}


def _event_name(name: str) -> str:
    """Return a record's name as an event's: it may be anything that a program wrote."""
    return name if strict.is_identifier(name) else f"{name.partition('.')[0]}.record"
