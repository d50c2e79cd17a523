"""Several processes that write to one conversation through an adapter: what was acknowledged is held exactly once."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from support.backends import Backend
from support.processes import Crew, ready, say

import tape

__all__ = ["PROCESSES", "WRITES", "hold_together"]

PROCESSES = 4
WRITES = 50

Write = Callable[[str], Any]
"""Writes something that holds this mark, through the adapter; a coroutine function may do so, too."""


def _program(
    store: tape.Store, *, adapt: Callable[[tape.Store], Write], who: int, refusals: tuple[type[Exception], ...]
) -> None:
    write = adapt(store)
    with asyncio.Runner() as loop:

        async def awaited(outcome: Any) -> None:
            await outcome

        ready()
        for number in range(WRITES):
            mark = f"mark-{who}-{number}"
            try:
                outcome = write(mark)
                if inspect.isawaitable(outcome):
                    loop.run(awaited(outcome))
            except refusals as error:
                say(("refused", mark, type(error).__name__))
            else:
                say(("held", mark, ""))


def hold_together(
    crew: Crew,
    backend: Backend,
    adapt: Callable[[tape.Store], Write],
    read: Callable[[tape.Store], Iterable[str]],
    *,
    refusals: tuple[type[Exception], ...] = (tape.TapeError,),
    least: int = 1,
) -> Counter[str]:
    """Let 4 processes make 50 writes each to one conversation, and hold that none is lost, doubled or half there.

    ``adapt`` is a top-level function: it makes an adapter on the store of its process, and returns what writes a mark
    through it. ``read`` returns the marks that the conversation holds at the end. A write may be refused with one of
    ``refusals`` and is then not there; any other error fails the test. At least ``least`` writes are acknowledged.
    Returns how often each refusal was met.
    """
    given = [{"adapt": adapt, "who": who, "refusals": refusals} for who in range(PROCESSES)]
    said = [fact for facts in crew.race(backend, _program, given) for fact in facts]
    assert len(said) == PROCESSES * WRITES
    acknowledged = {mark for verdict, mark, _ in said if verdict == "held"}
    with backend.open() as store:
        held = Counter(read(store))
        assert {mark: times for mark, times in held.items() if times != 1} == {}, "written twice"
        assert acknowledged - set(held) == set(), "acknowledged and not there"
        assert set(held) - acknowledged == set(), "refused and there all the same"
        assert len(acknowledged) >= least
        assert store.verify().ok
    return Counter(kind for verdict, _, kind in said if verdict == "refused")
