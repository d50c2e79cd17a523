"""Which tapes a purge takes: those that are asked for, and the marked ones that nothing else rests on.

A tape rests on another if it is a fork of it, or if it is its parent and links to it. A tape may go only together with
all that rests on it. A marked tape (hidden by ``purge(when_free=True)``) goes as soon as it may.

So a set that may go consists of whole branches of a family: a tape with all of its forks and theirs, each asked for or
marked. ``find_purge_set`` begins with the tape that is asked for and goes up while the parent is marked and its branch
holds no other tape. Of the largest branch found, all may go, unless the parent of its first tape links to it. Then that
tape stays, and the same question is asked of each of its forks.

Two who purge or mark tapes of a family at the same moment must not each leave it to the other to take a parent along.
So both lock the tape at which they stopped going up, whether they write to it or not (``PurgeSet.locks``). What was
found is certain if these locks were held before it was looked for.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from msgspec import Struct

from tape.core.entries import payloads
from tape.core.entries.tape_kinds import WHEN_FREE
from tape.db.engine.transaction import Transaction
from tape.db.maintain.stored_tape import tape_row
from tape.db.sql.rows.tapes import HeadRow
from tape.db.view.values import decoded
from tape.errors import Corrupt, TapeNotFound

__all__ = ["Parent", "PurgeSet", "Use", "find_purge_set", "parent_of"]


class Parent(NamedTuple):
    """The parent of a tape, and its head."""

    tape: str
    head: HeadRow


class Use(NamedTuple):
    """Why a tape must stay: the tapes that rest on it, and the same in words."""

    by: list[str]
    why: str


class PurgeSet(Struct, frozen=True):
    """What a purge of a tape, or of a tape and its forks, comes to."""

    wanted: dict[str, None]
    """The tapes that are asked for, parents first."""
    going: list[str]
    """The tapes that may go: of those that are asked for, then of the marked ones, the nearest ancestors first."""
    staying: dict[str, Use]
    """The tapes that are asked for and must stay."""
    locks: frozenset[str]
    """The tapes that must be locked for this to be certain."""


class _Node(Struct):
    """A tape of a branch: its number and its forks."""

    number: int
    forks: list[str] = []


_Branch = dict[str, _Node]
"""A tape and all that descends from it, parents first."""


def find_purge_set(
    tx: Transaction, tape: str, owner: str | None, *, forks: bool, gone: Set[str] = frozenset()
) -> PurgeSet:
    """Return which tapes go with a tape, or with a tape and its ``forks``, as if those of ``gone`` were not there."""
    row = tape_row(tx, tape, owner)
    if row is None:
        raise TapeNotFound(tape)
    branch: _Branch = {}
    fork = _add_branch(tx, branch, tape, row.number, gone, all_forks=forks)
    if fork is not None:
        by = [child.tape for child in tx.all(tx.statements.forks_of, (row.number,))]
        use = Use(by, f"tape {fork!r} inherits from it")
        return PurgeSet(dict.fromkeys([tape]), [], {tape: use}, frozenset({tape}))
    wanted, locks, top = dict.fromkeys(branch if forks else [tape]), {*branch}, tape
    while (above := parent_of(tx, branch[top].number, owner)) is not None:
        parent, head = above
        locks.add(parent)
        if not _joins(tx, branch, top, parent, head, gone):
            break
        top = parent
    going, linked = _divide(tx, branch, top)
    staying = {name: Use([parent], f"tape {parent!r} links to it") for name, parent in linked.items() if name in wanted}
    nearest_first = [name for name in branch if name in going]
    return PurgeSet(wanted, nearest_first, staying, frozenset(locks.union(going)))


def _add_branch(
    tx: Transaction, branch: _Branch, tape: str, number: int, gone: Set[str], *, all_forks: bool = False
) -> str | None:
    """Add a tape to ``branch`` with all that descends from it, if these are marked or ``all_forks`` are to go.

    Otherwise nothing is added, and one that is not marked is returned.
    """
    added: _Branch = {tape: _Node(number)}
    names = [tape]
    for name in names:
        node = added[name]
        for fork in tx.all(tx.statements.forks_of, (node.number,)):
            if fork.tape in gone:
                continue
            if fork.tape not in branch:
                if fork.hidden != WHEN_FREE and not all_forks:
                    return fork.tape
                added[fork.tape] = _Node(fork.number)
                names.append(fork.tape)
            node.forks.append(fork.tape)
    branch |= added
    return None


def parent_of(tx: Transaction, number: int, owner: str | None) -> Parent | None:
    """Return the parent of a tape, if it is a fork."""
    fork = tx.one(tx.statements.fork, (number,))
    head = None if fork is None else tx.one(tx.statements.head, (fork.parent,))
    if fork is None or head is None or head.tape_status == "purged" or owner not in (None, head.owner):
        return None
    # A fork was made after its parent. Without this, damaged rows could lead round in a circle.
    return Parent(fork.parent, head) if head.number < number else None


def _joins(tx: Transaction, branch: _Branch, top: str, parent: str, head: HeadRow, gone: Set[str]) -> bool:
    """Add the parent of a branch's first tape to it, with its other forks, if all of these are marked."""
    if head.hidden != WHEN_FREE:
        return False
    if not gone:
        # Most parents that stay have such a fork, and may have thousands of them. One is enough.
        others = (head.number, branch[top].number, WHEN_FREE)
        if tx.one(tx.statements.fork_not_hidden_for, others) is not None:
            return False
    return _add_branch(tx, branch, parent, head.number, gone) is None


def _divide(tx: Transaction, branch: _Branch, top: str) -> tuple[set[str], dict[str, str]]:
    """Return the tapes of a branch that may go, and those that stay with the parent that links to each."""
    going: set[str] = set()
    linked: dict[str, str] = {}
    questioned = [top]
    for name in questioned:
        parent = _linking(tx, branch[name].number)
        if parent is not None:
            linked[name] = parent
            questioned += branch[name].forks
            continue
        whole = [name]
        for below in whole:
            whole += branch[below].forks
        going.update(whole)
    return going, linked


def _linking(tx: Transaction, number: int) -> str | None:
    """Return the tape that links to one: its parent, if any of its merges was a link."""
    for parent, name, seq in tx.all(tx.statements.linking, (number,)):
        while seq:
            row = tx.one(tx.statements.body, (parent, seq))
            if row is None or row.payload is None:
                break
            try:
                merge = decoded(row)
            except Corrupt:
                # It may have been a link, so the tape must stay.
                return str(name)
            if not isinstance(merge, payloads.Merge):
                break
            if merge.strategy == "link":
                return str(name)
            seq = merge.previous if merge.previous < seq else 0
    return None
