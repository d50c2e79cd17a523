"""Resolving a pointer: the snapshot of a tape that it was made for."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, overload

from tape.core import strict
from tape.core.journal.pointers import Pointer
from tape.errors import InvalidEntry
from tape.handles.snapshot import Snapshot
from tape.store import Store

if TYPE_CHECKING:
    from tape.aio import AsyncSnapshot, AsyncStore

__all__ = ["resolve"]

DEPTH = 20_000
"""How many entries are checked unless the caller says otherwise."""


@overload
def resolve(store: Store, pointer: str, *, depth: int | None = DEPTH) -> Snapshot: ...


@overload
def resolve(store: AsyncStore, pointer: str, *, depth: int | None = DEPTH) -> Awaitable[AsyncSnapshot]: ...


def resolve(
    store: Store | AsyncStore, pointer: str, *, depth: int | None = DEPTH
) -> Snapshot | Awaitable[AsyncSnapshot]:
    """Return the tape as it was when ``pointer()`` was called, after checking that its entries were not changed since.

    The hashes of the newest ``depth`` entries up to there are recomputed, inherited ones included, so that the cost is
    bounded; None means all entries. Raises Corrupt for an entry that was changed or is not the one of the pointer,
    TapeNotFound and UnknownEntry for what does not exist. With an AsyncStore, await the AsyncSnapshot.
    """
    place = Pointer.parsed(pointer)
    if depth is not None and strict.seq(depth, "depth") < 1:
        raise InvalidEntry("depth", "must be at least 1")
    if isinstance(store, Store):
        return store.tape(place.tape)._at_pointer(place, depth)
    from tape.aio.tape import resolve_pointer

    return resolve_pointer(store.tape(place.tape), place, depth)
