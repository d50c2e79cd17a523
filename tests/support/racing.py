"""Programs of processes that want the same thing at one moment: to decide a request, to have a lease."""

from __future__ import annotations

from typing import Any

import tape
from support.processes import Address, Crew, Program, ready, say

__all__ = ["decide", "hold", "rounds", "take"]


def decide(store: tape.Store, *, index: int, rounds: int) -> None:
    """Decide one request a round; tells whether this process was first, or who was and what was decided."""
    for number in range(rounds):
        ready()
        try:
            store.tape("chat").resolve(f"ask-{number}", {"by": index}, actor=f"worker-{index}")
            say(("won", f"worker-{index}", {"by": index}))
        except tape.RequestClosed as closed:
            say(("lost", closed.request.decided_by, closed.request.decision))


def take(store: tape.Store, *, index: int, rounds: int) -> None:
    """Take one lease a round; tells its token, or who has it with which token."""
    for number in range(rounds):
        ready()
        try:
            lease = store.tape("chat").lease(f"run-{number}", 600, holder=f"worker-{index}")
            say(("won", f"worker-{index}", lease.token))
        except tape.LeaseHeld as held:
            say(("lost", held.holder, held.token))


def hold(store: tape.Store, *, seconds: float) -> None:
    """Take a lease and keep it until killed."""
    lease = store.tape("chat").lease("run", seconds, holder="first")
    say(lease.token)
    ready()


def rounds(crew: Crew, backend: Address, run: Program, orders: list[dict[str, Any]]) -> list[list[Any]]:
    """Run a program whose processes begin every round at one moment, and return what they said, round by round."""
    workers = [crew.launch(backend, run, **each) for each in orders]
    said = []
    for _ in range(orders[0]["rounds"]):
        for worker in workers:
            assert worker.next() == "ready"
        for worker in workers:
            worker.tell("go")
        said.append([worker.next() for worker in workers])
    for worker in workers:
        worker.finish()
    return said
