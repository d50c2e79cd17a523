"""A session of Claude Code that is written to a tape while it grows, and read back line by line.

The tape holds what an import of the session's file would give: messages in a tree, anchors where a compaction begins
the view anew, events for all else. Nothing that the session writes is refused: a line that cannot be what it seems,
such as a message that no tape can hold, is kept as an event. Every line comes back as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tape.core.entries import payloads
from tape.core.lenient import lenient
from tape.core.records import Entry, Receipt
from tape.errors import InvalidEntry, ProvenanceConflict, UnknownMessage
from tape.transcripts.formats.claude.session import PREFIX, Reader, record_of
from tape.transcripts.steps import Branch, Event, Message, Restart, Start, Step
from tape.transcripts.write_step import write_step

if TYPE_CHECKING:
    from tape.handles.tape import Tape

__all__ = ["ClaudeMirror", "claude_lines"]

Line = dict[str, Any]

_RAW = "tape.raw"
_ASIDE = "claude-code.record"
"""The event that keeps a line which could not be what it seems."""


def claude_lines(tape: Tape) -> list[Line]:
    """Return the lines that were mirrored to a tape, in their order, each equal to what it was."""
    return [line for entry in tape.entries() if (line := _line_of(entry)) is not None]


class ClaudeMirror:
    """What is known of a session, so that what it writes next finds its place. Made anew from the tape at any time."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._seq, self._hash = 0, ""
        self._leaf: str | None = None
        """The last message of the conversation itself."""

    def catch_up(self, tape: Tape) -> bool:
        """Read what any process has recorded since; False if the tape is not the one that was read before."""
        entries = iter(tape.entries(after=max(0, self._seq - 1)))
        if self._seq:
            last = next(entries, None)
            if last is None or (last.seq, last.hash) != (self._seq, self._hash):
                return False
        for entry in entries:
            self._seq, self._hash = entry.seq, entry.hash
            line = _line_of(entry)
            if line is None:
                continue
            aside = isinstance(entry.payload, payloads.Event) and entry.payload.name == _ASIDE
            for step in self._reader.steps(0, _storable(line), entry.key.removeprefix(PREFIX)):
                if not aside:
                    self._note(step)
                elif isinstance(step, Message):
                    self._reader.leave_out()
        return True

    def write(self, tape: Tape, lines: Sequence[Line], keys: Iterable[str]) -> None:
        """Write the lines that are new. Each has a key of its own, for a line without a uuid: it is always new."""
        aside = False
        for line, key in zip(lines, keys, strict=True):
            record = _storable(line)
            if not self._reader.met(record):
                for step in self._reader.steps(0, record, key):
                    if self._take(tape, step, line, key) and isinstance(step, Message):
                        aside = step.lane != ""
        if aside and self._leaf is not None:
            # A side conversation is a branch. It wrote last, but it is not where the conversation stands.
            self._advance(tape.switch(self._leaf))

    def _take(self, tape: Tape, step: Step, line: Line, key: str) -> bool:
        """Write one step; tell whether it is what it seems."""
        if isinstance(step, Start | Branch):
            return False
        try:
            self._advance(_write(tape, step))
        except (InvalidEntry, UnknownMessage, ProvenanceConflict):
            if isinstance(step, Message | Event | Restart):
                self._advance(_keep_aside(tape, line, PREFIX + key))
            # Otherwise it is a name or usage, which the line tells, too, and that is kept.
            if isinstance(step, Message):
                self._reader.leave_out()
            return False
        self._note(step)
        return True

    def _note(self, step: Step) -> None:
        if isinstance(step, Message) and not step.lane:
            self._leaf = step.id

    def _advance(self, receipt: Receipt) -> None:
        if receipt.seq > self._seq:
            self._seq, self._hash = receipt.seq, receipt.hash


def _write(tape: Tape, step: Any) -> Receipt:
    parent = step.parent if isinstance(step, Message | Restart) else None
    try:
        return write_step(tape, step, {} if parent is None else {parent: parent.removeprefix(PREFIX)})
    except UnknownMessage:
        if not isinstance(step, Message):
            raise
        # Somebody took the message away that this one continues: it goes behind what is there.
        return tape.append(
            step.message, id=step.id, key=step.key, actor=step.actor, meta=step.meta, occurred_at=step.at
        )


def _keep_aside(tape: Tape, line: Line, key: str) -> Receipt:
    try:
        return tape.event(_ASIDE, _storable(line), key=key)
    except InvalidEntry:
        return tape.event(_ASIDE, {_RAW: json.dumps(line)}, key=key)


def _storable(line: Line) -> Line:
    """Return a line as a tape can hold it; what had to be altered for that is kept beside it as it was."""
    if not isinstance(line, dict):
        raise InvalidEntry("lines", f"must be objects, not {type(line).__name__}")
    record, replaced = lenient(line)
    typed = isinstance(record.get("type"), str)
    if typed and not replaced and _RAW not in line:
        return dict(record)
    return {**record, "type": record["type"] if typed else "record", _RAW: json.dumps(line, default=str)}


def _line_of(entry: Entry) -> Line | None:
    record = record_of(entry)
    if record is None or _RAW not in record:
        return record
    line: Line = json.loads(record[_RAW])
    return line
