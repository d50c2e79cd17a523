"""Reading what a context is built from: the anchor, the rows after it that no summary covers, the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from tape.core.context.build import ContextInputs, fixed_cost
from tape.core.context.fenced import summary_message
from tape.core.context.policy import STANDARD, Excluded, Item, Policy, Standard, check_policy
from tape.core.context.weigh import Scale
from tape.core.context.window import Reached, Unbounded, reach
from tape.core.entries.payloads import Place
from tape.core.memory.state import render_prompt
from tape.core.messages.tokens import Counter
from tape.core.strict import RESERVED
from tape.core.summaries.runs import Compaction, in_force
from tape.db.read import memory
from tape.db.read.entries import latest_anchor
from tape.db.read.memory import Settings
from tape.db.read.window import PathWindow, Run, plain_items
from tape.db.view import paths
from tape.db.view.memory import compactions_on, summary_of
from tape.db.view.tape_view import TapeView

__all__ = ["context_inputs", "nothing"]


def nothing(tape: str, settings: Settings) -> ContextInputs:
    """Return what a context of a tape is built from that was never written."""
    return ContextInputs([], None, [], [], render_prompt(settings.assembled([])) or None, False, 0, tape)


def context_inputs(
    view: TapeView,
    settings: Settings,
    branch: str | None,
    budget: int | None,
    policy: Policy | None,
    newest: int | None = None,
) -> ContextInputs:
    """Return what a context of the tape is built from: all of it, or as much as the standard policy needs.

    ``newest`` limits it to that many of the last messages.
    """
    end = paths.end_of(view, branch)
    anchor, floor = latest_anchor(view, end)
    prompt, stale, documents = memory.prompt(view, settings)
    inputs = ContextInputs([], anchor, [], [], prompt, stale, view.seq, view.tape, view=view.last_change())
    inputs.documents = documents
    if anchor is not None:
        inputs.excluded.append(Excluded(anchor.tape, 1, anchor.seq, "before the anchor"))
    _fill(view, settings.counter, end, floor, inputs, budget, _bounding(policy), newest)
    return inputs


def _fill(
    view: TapeView,
    counter: Counter | None,
    end: Place,
    floor: int,
    inputs: ContextInputs,
    budget: int | None,
    policy: Standard | None,
    newest: int | None,
) -> None:
    """Put in the messages below ``floor``: all, the ``newest``, or as many as the policy needs for the budget."""
    compactions = compactions_on(view, end, floor)
    runs = _runs(view, floor, compactions, inputs) if compactions else []
    scale = Scale(counter)
    window = PathWindow(view, end, floor, runs, scale)
    reached = None
    if budget is not None and policy is not None:
        room = budget - fixed_cost(inputs, scale.counted)
        if room < 0:
            # What is always shown is too large already, and the builder says so.
            return
        try:
            reached = reach(window, policy, room, lambda message: scale.alone(message.data))
        except Unbounded:
            # What the policy needs cannot be known without reading all.
            reached = None
    if newest is not None:
        reached = Reached([], None)
        while len(reached.spots) < newest and not window.whole():
            reached.spots[:0] = window.newest(newest - len(reached.spots))
        inputs.partial = not window.whole()
    if reached is None:
        inputs.items = _items(view, end, floor, runs)
        inputs.excluded += [excluded for run in runs for excluded in window.summarised(run)]
    else:
        inputs.items, inputs.gap, inputs.scale = [spot.item for spot in reached.spots], reached.gap, scale
        inputs.one_turn = reached.one_turn
        if runs or reached.gap is not None:
            _tell_excluded(inputs, window, reached, runs)


def _runs(view: TapeView, floor: int, compactions: Sequence[Compaction], inputs: ContextInputs) -> list[Run]:
    """Put in the summaries in force, and tell which are not; return the runs that they stand for."""
    standing, out = in_force(compactions)
    runs = [Run(compaction, summary_of(view, compaction)) for compaction in standing if compaction.lo > floor]
    inputs.summaries = [run.summary for run in runs]
    names = [(run.summary.tape, run.summary.seq) for run in runs]
    for revised, why in ((False, ""), (True, " or has a call without its result")):
        dropped = [
            (compaction.tape or view.tape, compaction.seq) for compaction in out if compaction.revised == revised
        ]
        inputs.excluded += _ranges(dropped, names, f"a message that it covers was retracted{why}")
    return runs


def _tell_excluded(inputs: ContextInputs, window: PathWindow, reached: Reached, runs: Sequence[Run]) -> None:
    """Tell what is out of a context that is read from both ends: what summaries stand for, and what lies between."""
    made = [item.message for item in inputs.items if item.message.id.startswith(RESERVED)] if runs else []
    shown = {(message.tape, message.seq) for message in made}
    names = [(run.summary.tape, run.summary.seq) for run in runs]
    inputs.excluded += [
        excluded for run, name in zip(runs, names, strict=True) if name in shown for excluded in window.summarised(run)
    ]
    if reached.gap is not None:
        missing = [name for name in names if name not in shown]
        inputs.excluded += _ranges(missing, sorted(shown), "over budget")
        before, after = reached.spots[reached.gap - 1] if reached.gap else None, reached.spots[reached.gap]
        if reached.request and reached.first is not None:
            inputs.excluded += window.between(None, reached.first, reached.spots[0], "over budget")
        inputs.excluded += window.between(before, reached.first, after, "over budget")
        for message in (spot.item.message for spot in reached.dropped):
            inputs.excluded.append(Excluded(message.tape, message.seq, message.seq, "over budget"))


def _items(view: TapeView, end: Place, floor: int, runs: Sequence[Run]) -> list[Item]:
    """Return the messages below ``floor``, with summaries in the place of what they cover."""
    if not runs:
        return plain_items(view, paths.path(view, end, floor))
    lanes = paths.walk(view, end, floor)
    items: list[Item] = []
    depth = max(floor, paths.floor_of(view, end))
    for run in runs:
        items += plain_items(view, paths.stretch(view, lanes, depth, run.lo - 1))
        message = summary_message(run.summary, run.summary.stamp)
        items.append(Item(message, 0, False, run.summary.tape))
        if run.of.loose:
            # A message that the summary does not cover has come back into its run.
            covers = set(run.summary.covers)
            inside = plain_items(view, paths.stretch(view, lanes, run.lo - 1, run.hi))
            items += [item for item in inside if item.message.id not in covers]
        depth = run.hi
    items += plain_items(view, paths.stretch(view, lanes, depth, end.ordinal))
    return items


def _bounding(policy: Policy | None) -> Standard | None:
    """Return a policy that is known to need only the ends of a branch; one with a shape of its own gets all of it."""
    if policy is None:
        return STANDARD
    chosen = check_policy(policy)
    return chosen if isinstance(chosen, Standard) and type(chosen).shape is Standard.shape else None


def _ranges(entries: Sequence[tuple[str, int]], shown: Sequence[tuple[str, int]], why: str) -> list[Excluded]:
    """Return entries that make summaries as ranges, none of which holds one that is shown."""
    ranges: list[Excluded] = []
    for tape, seq in sorted(entries):
        last = ranges[-1] if ranges else None
        if (
            last is not None
            and last.tape == tape
            and not any((tape, last.first) < name < (tape, seq) for name in shown)
        ):
            ranges[-1] = Excluded(tape, last.first, seq, why)
        else:
            ranges.append(Excluded(tape, seq, seq, why))
    return ranges
