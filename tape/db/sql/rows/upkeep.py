"""Rows of maintenance: tombstones, purges, checks and imports."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BuriedRow", "BuriedTape", "CheckRow", "HashRow", "HiddenTape", "LinkRow", "Tombstone"]


class Tombstone(NamedTuple):
    """What is left of a purged tape."""

    tape_id: int
    owner: str | None
    seq: int
    hash: bytes
    stamp: int
    emptied: int


class BuriedTape(NamedTuple):
    """A tombstone with what the tape, its head and its last entry say."""

    tape_id: int
    tape: str
    owner: str | None
    seq: int
    hash: bytes
    stamp: int
    emptied: int
    row_tape: str
    row_owner: str | None
    row_status: str
    head_seq: int | None
    head_hash: bytes | None
    entry_hash: bytes | None
    entry_stamp: int | None
    entry_kind: str | None
    entry_version: int | None
    entry_payload: bytes | None


class BuriedRow(NamedTuple):
    """A purged tape whose rows are not all gone."""

    tape_id: int
    tape: str
    seq: int
    owner: str | None


class LinkRow(NamedTuple):
    """A tape that a fork was merged into or linked to, and the entry that says so."""

    parent_id: int
    tape: str
    merge_seq: int


class CheckRow(NamedTuple):
    """Up to where a tape was last verified, and when."""

    tape: str
    seq: int
    hash: bytes
    stamp: int


class HashRow(NamedTuple):
    """The hash of an entry."""

    seq: int
    hash: bytes


class HiddenTape(NamedTuple):
    """A tape of an import that is under way or died."""

    number: int
    name: str
    owner: str | None
