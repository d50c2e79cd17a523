"""Pointers: a moment of a tape as a short text, ``tape:<tape>@<seq>#<hash>``. Pure."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct

from tape.core import strict
from tape.errors import InvalidEntry

__all__ = ["Pointer"]

_FORM = re.compile(r"tape:([^@#\s]+)@([1-9][0-9]{0,18})#([0-9a-f]{64})")


class Pointer(Struct, frozen=True):
    """A tape, one of its seqs, and the hash of the entry there. The id of the tape is percent-encoded in the text."""

    tape: str
    seq: int
    hash: str

    def __str__(self) -> str:
        return f"tape:{quote(self.tape, safe='/:+,=')}@{self.seq}#{self.hash}"

    @classmethod
    def parsed(cls, text: Any) -> Pointer:
        """Return the pointer in a text; raises InvalidEntry for anything else."""
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidEntry("pointer", f"must have the form tape:<tape>@<seq>#<hash>, not {strict.shown(text)}")
        name, seq, hash = match.groups()
        tape = strict.identifier(unquote(name, errors="surrogateescape"), "pointer")
        return cls(tape, strict.seq(int(seq), "pointer"), hash)
