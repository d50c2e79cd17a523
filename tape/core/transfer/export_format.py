"""The lines of an export: what is written for a tape and its entries, and how a file is checked line by line.

    {"tape":"chat","entries":2,"hash":"…","format":1}        one line per tape, ancestors before their forks
    {"seq":1,"kind":"open",…,"hash":"…","meta":…,"payload":…}  one line per entry, in order
    {"tapes":1,"entries":2,"digest":"…"}                     the last line, with a digest of all before it

Every hashed field is there and payload and meta are the stored bytes, so the hash chain can be checked from the file. A
line is accepted only if it is, byte for byte, the line that an export writes.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from tape.core import strict
from tape.core.entries import chain, payloads
from tape.core.entries.payloads import Payload, Place
from tape.core.records import LAST_STAMP
from tape.core.view.fold import CLOSED, Head, Op, fold
from tape.errors import Corrupt, ImportFailed, InvalidEntry

__all__ = ["Checker", "End", "EntryLine", "TapeLine", "encode"]

FORMAT = 1
T = TypeVar("T")
_STATUSES = CLOSED - {"discarded"} | {"active"}
"""The values of a status entry: "discarded" has an entry of its own, and a purged tape is never exported."""
_OWN_LEVELS = 8
"""How many levels of nesting a payload adds around the caller's value."""
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]

encode = msgspec.json.Encoder().encode
"""Return the bytes of a line, without its newline."""


class TapeLine(Struct, frozen=True, forbid_unknown_fields=True):
    """The line that begins a tape: how many entries follow, and the hash of the last."""

    tape: str
    entries: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    hash: str
    format: int


class EntryLine(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry with every hashed field."""

    seq: Number
    kind: str
    key: str
    actor: str | None
    source: tuple[str | None, Number] | None
    stamp: Number
    version: Number
    head: tuple[Number, Number, str | None]
    hash: str
    meta: Raw
    payload: Raw

    @property
    def place(self) -> Place:
        """Where the head of the message tree stands after the entry."""
        return Place(*self.head)

    @property
    def meta_bytes(self) -> bytes | None:
        """The caller's meta as stored."""
        raw = bytes(self.meta)
        return None if raw == b"null" else raw


class End(Struct, frozen=True, forbid_unknown_fields=True):
    """The last line: how many tapes and entries there are, and the digest of all lines before."""

    tapes: int
    entries: int
    digest: str


_tape_line = msgspec.json.Decoder(TapeLine).decode
_entry_line = msgspec.json.Decoder(EntryLine).decode
_end_line = msgspec.json.Decoder(End).decode


class Checker:
    """Checks a file line by line, in constant memory, and raises ImportFailed at the first line that is wrong.

    With the digest of a file that was checked before, the lines are only read again, and the end is compared with that
    digest.
    """

    def __init__(self, checked: str | None = None) -> None:
        self.line = 0
        self.tape: TapeLine | None = None
        """The tape whose entries are read."""
        self.head = Head.blank(chain.ZERO)
        """Of that tape, after the entry read last."""
        self.payload: Payload | None = None
        """The payload of the entry read last."""
        self.ops: list[Op] = []
        """The row changes of that entry."""
        self.ended = False
        self._checked = checked
        self._digest = blake2b(digest_size=32)
        self._remaining = 0
        """How many entries of the tape are still to come."""
        self._tapes = 0
        self._entries = 0

    def wrong(self, why: str) -> ImportFailed:
        """Return the error for the line read last."""
        return ImportFailed(self.line, why)

    def take(self, raw: bytes) -> TapeLine | EntryLine | End:
        """Check one more line, newline included."""
        self.line += 1
        if self.ended:
            raise self.wrong("there is data after the end of the export")
        if not raw.endswith(b"\n"):
            raise self.wrong("the line is truncated")
        text = raw[:-1]
        if self._remaining:
            entry = self._decoded(text, "an entry line", _entry_line)
            if self._checked is None:
                self._entry(entry)
            self._remaining -= 1
            self._entries += 1
            self._digest.update(raw)
            return entry
        if text.startswith(b'{"tapes":'):
            end = self._decoded(text, "the end line", _end_line)
            if (end.tapes, end.entries, end.digest) != (self._tapes, self._entries, self._digest.hexdigest()):
                raise self.wrong("the checksum or the counts do not match the lines above, so the file was altered")
            if self._checked not in (None, end.digest):
                raise self.wrong("the file changed while it was being read")
            self.ended = True
            return end
        tape = self._decoded(text, "a tape line", _tape_line)
        if tape.format != FORMAT:
            raise self.wrong(f"unknown format {tape.format}; this release reads format {FORMAT}")
        self._name(tape.tape, "tape", reserved=False)
        self._digest.update(raw)
        self.tape, self._remaining, self.head = tape, tape.entries, Head.blank(chain.ZERO)
        self._tapes += 1
        return tape

    def finish(self) -> None:
        """Check that nothing is missing at the end."""
        if not self.ended:
            self.line += 1
            raise self.wrong("the file is incomplete: its end line is missing")

    def _decoded(self, text: bytes, what: str, decode: Callable[[bytes], T]) -> T:
        try:
            line = decode(text)
            if self._checked is not None or encode(line) == text:
                return line
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self.wrong(f"expected {what}: {error}") from None
        raise self.wrong(f"expected {what}, but the line is not written as an export writes it")

    def _name(self, value: str, field: str, *, reserved: bool = True) -> None:
        try:
            strict.identifier(value.removeprefix(strict.RESERVED) if reserved else value, field)
        except InvalidEntry as error:
            raise self.wrong(str(error)) from None

    def _texts(self, payload: Payload) -> None:
        """Check fields with columns of their own: text in a database cannot contain NUL."""
        for field in ("id", "name", "owner", "agent", "reason", "redirect", "labels"):
            value = getattr(payload, field, None)
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str) and "\0" in text:
                    raise self.wrong(f"{field}: must not contain NUL")

    def _deep(self, raw: bytes, field: str) -> None:
        """Check that the nesting is not too deep to be read and copied."""
        # Brackets bound the depth from above; only a value with many of them needs the walk.
        if len(raw) > 2 * strict.MAX_DEPTH and raw.count(b"[") + raw.count(b"{") > strict.MAX_DEPTH:
            try:
                strict.shallow(msgspec.json.decode(raw), field, more=_OWN_LEVELS)
            except InvalidEntry as error:
                raise self.wrong(str(error)) from None

    def _entry(self, entry: EntryLine) -> None:
        assert self.tape is not None
        tape, head = self.tape.tape, self.head
        if entry.seq != head.seq + 1:
            raise self.wrong(f"expected seq {head.seq + 1} of tape {tape!r}, not seq {entry.seq}")
        if (entry.kind == "open") != (entry.seq == 1):
            raise self.wrong("the first entry of a tape, and no other, must be of kind 'open'")
        if entry.stamp < head.stamp:
            raise self.wrong("the entry is older than the one before it")
        if entry.stamp > LAST_STAMP:
            raise self.wrong(f"the timestamp {entry.stamp} of the entry is out of range")
        self._name(entry.key, "key")
        if entry.actor is not None:
            self._name(entry.actor, "actor")
        if entry.source is not None and entry.source[0] is not None:
            self._name(entry.source[0], "source")
        raw = bytes(entry.payload)
        place, meta = entry.place, entry.meta_bytes
        hash = chain.link(
            head.hash,
            chain.digest(raw),
            tape,
            entry.seq,
            entry.kind,
            entry.key,
            entry.actor,
            entry.source,
            meta,
            entry.stamp,
            entry.version,
            place,
        )
        if hash.hex() != entry.hash:
            raise self.wrong("the hash does not match the entry")
        try:
            if meta is not None and not isinstance(msgspec.json.decode(meta), dict):
                raise self.wrong("meta is not an object")
            self._deep(raw, "payload")
            if meta is not None:
                self._deep(meta, "meta")
            self.payload = payload = payloads.decode(entry.kind, entry.version, raw, key=entry.key)
            self._texts(payload)
            if isinstance(payload, payloads.Status) and payload.status not in _STATUSES:
                raise self.wrong(f"unknown status {payload.status!r}")
            self.head, self.ops = fold(head, entry.seq, hash, entry.stamp, place, payload)
            if not 0 <= self.head.messages <= entry.seq:
                raise self.wrong(
                    f"the tape would have {self.head.messages} messages after {entry.seq} entries, which is impossible"
                )
        except Corrupt as error:
            raise self.wrong(error.what) from None
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise self.wrong(f"the entry cannot be read: {error}") from None
        if entry.seq == self.tape.entries and entry.hash != self.tape.hash:
            raise self.wrong("the hash of the last entry is not the one in the tape's first line")
