"""How the state machines run: a number of steps in all, and shrunk only when asked."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from support.sizes import size


def steps(usual: int, *, postgres: bool) -> int:
    """Return how many steps to run: as ``TAPE_TEST_STEPS`` says, or the usual number, on PostgreSQL fewer.

    The rules are the same on both engines, and a step there takes ten times as long. At full size it is three times as
    many.
    """
    given = os.environ.get("TAPE_TEST_STEPS")
    return int(given) if given else size(usual // 12, usual // 2) if postgres else size(usual // 2, 3 * usual)


def explore(machine: type[RuleBasedStateMachine], steps: int, steps_each: int) -> None:
    """Run a machine for about ``steps`` steps; a failure prints the blob that reproduces it.

    Shrinking runs the machine hundreds of times more, which no run of the whole suite can afford: set
    ``TAPE_TEST_SHRINK=1`` to get the shortest history that fails.
    """
    phases = (Phase.generate, Phase.shrink) if os.environ.get("TAPE_TEST_SHRINK") else (Phase.generate,)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(1, steps // steps_each),
            stateful_step_count=steps_each,
            deadline=None,
            print_blob=True,
            derandomize=False,
            database=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )
