"""Matching: which recorded call answers a call that is made again, and where the two runs part. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, structs

from tape.runs.pure.divergence import Divergence, changes_between, kind_of_change
from tape.runs.pure.lanes import ROOT, Lane, lanes_inside_calls, parallel_parent
from tape.runs.pure.requests import Body, Reader
from tape.runs.recording import RecordedCall, Recording

__all__ = ["MATCHES", "CallRequest", "Cursor", "Verdict"]

MATCHES = ("strict", "request", "order")
"""How a call finds its recording: at its place with the same request; by its request wherever it was made; or as the
next one of its kind and name, whatever it says."""


_LOOKED_AT = 20
"""Recorded calls that a call without one is held against, to find the nearest."""


class CallRequest(Struct):
    """A call as it is made now."""

    kind: str
    name: str
    body: Body


class Verdict(Struct):
    """What the recording says of a call: the recorded one, the first difference, or neither, which is a live call."""

    recorded: RecordedCall | None = None
    diverged: Divergence | None = None


class Cursor:
    """A place in a recording for each of its lanes. Its caller holds a lock."""

    def __init__(
        self, recording: Recording, reader: Reader, *, match: str, live_from: int | None, open_ended: bool = False
    ) -> None:
        self.recording = recording
        self.used: set[int] = set()
        """The numbers of the calls that were made again, and of those inside them."""
        self._reader = reader
        self._match = match
        self._live_from = live_from
        self._open_ended = open_ended
        self._positions: dict[str, int] = {}
        self._passed_over: dict[str, list[RecordedCall]] = {}
        """Calls of a lane that were not made when a later one was: missing, or made in another order."""
        self._recompute = recording.info.normalise != reader.normaliser.patterns
        self._digests: dict[int, str] = {}
        self._live_begun = False
        self._inside = lanes_inside_calls(recording.lanes, (f"{call.lane}/{call.n}" for call in recording.calls))

    # -- one call

    def find(self, lane: Lane, request: CallRequest) -> Verdict:
        """Return what the recording says of a call that is made in ``lane``."""
        if lane.live:
            return Verdict()
        if self._match != "strict":
            return self._find_anywhere(lane, request)
        if lane.bound is None and not self._bind(lane, request):
            return self._beyond(lane, request, None)
        assert lane.bound is not None
        queue = self.recording.lanes.get(lane.bound, [])
        position = self._positions.get(lane.bound, 0)
        expected = queue[position] if position < len(queue) else None
        if expected is not None and self._is_live(expected):
            return self._go_live(lane)
        late = self._settle_passed_over(lane.bound, request)
        if late is not None:
            return late
        if expected is None:
            return self._beyond(lane, request, queue[-1] if queue else None)
        later = next((index for index in range(position, len(queue)) if self._matches(queue[index], request)), None)
        if later is None and self._same(expected, request):
            later = position
        if later is not None:
            if later > position:
                self._passed_over[lane.bound] = queue[position:later]
            return Verdict(self._use(lane, queue[later], later + 1))
        return self._differs(lane, request, expected, queue[position + 1 :])

    def take(self, lane: Lane, kind: str, name: str) -> RecordedCall | None:
        """Return the next recorded call of a kind and name in a lane, whatever it asked, and pass over it."""
        if lane.bound is None:
            lane.bound = lane.path
        queue = self.recording.lanes.get(lane.bound, [])
        for index in range(self._positions.get(lane.bound, 0), len(queue)):
            if (queue[index].kind, queue[index].name) == (kind, name):
                return self._use(lane, queue[index], index + 1)
        return None

    def _use(self, lane: Lane, call: RecordedCall, position: int | None = None) -> RecordedCall:
        self.used.add(call.number)
        lane.calls = max(lane.calls, call.n)
        if position is not None and lane.bound is not None:
            self._positions[lane.bound] = position
        return call

    def cover(self, call: RecordedCall) -> None:
        """Count the calls that a recorded call made itself as made: it is answered without them."""
        for path in self._inside.get(f"{call.lane}/{call.n}", ()):
            self.used |= {other.number for other in self.recording.lanes[path]}

    def _is_live(self, call: RecordedCall) -> bool:
        return self._live_from is not None and call.number >= self._live_from

    def _go_live(self, lane: Lane) -> Verdict:
        lane.live = self._live_begun = True
        return Verdict()

    def _beyond(self, lane: Lane, request: CallRequest, last: RecordedCall | None) -> Verdict:
        """Return the verdict on a call behind the last one of its lane."""
        if self._open_ended or self._live_begun or (self._live_from or 2**62) <= 1:
            return self._go_live(lane)
        if self._live_from is not None and self._live_from > len(self.recording.calls):
            return self._go_live(lane)
        nearest = self._nearest(request, self._unused())
        lost = self._lost_lane(lane, None)
        if lost is not None:
            return Verdict(diverged=lost)
        return Verdict(
            diverged=_divergence(
                "extra_call", request, lane, nearest=nearest or last, why="the recording has no call here"
            )
        )

    # -- lanes

    def _bind(self, lane: Lane, request: CallRequest) -> bool:
        """Find the recorded lane that a new lane is; False when there is none left."""
        parent = lane.parent or lane
        fixed = lane.nested or lane.parent is None or not _numbered(lane.path)
        if lane.nested or (fixed and lane.path in self.recording.lanes and lane.path not in parent.taken):
            lane.bound = lane.path
            return True
        siblings = self._siblings(lane, parent)
        recorded = [calls for calls in siblings if not self._is_live(calls[0])]
        chosen = self._lane_of(request, recorded)
        if chosen is None:
            if not fixed:
                lane.path = self._free_path(parent)
            if siblings and not recorded:
                self._live_begun = True
            return False
        lane.path = lane.bound = chosen[0].lane
        parent.taken.add(lane.bound)
        return True

    def _siblings(self, lane: Lane, parent: Lane) -> list[list[RecordedCall]]:
        """Return the recorded lanes that a lane may be, in the order of their first calls."""
        name = None if _numbered(lane.path) else lane.path.rpartition(".")[2]
        paths = [path for path in self.recording.lanes if path not in parent.taken]
        if name is not None:
            # Its parent may be another lane than when it was recorded.
            paths = [path for path in paths if path.rpartition(".")[2] == name]
        else:
            paths = [path for path in paths if parallel_parent(path) == parent.path and _numbered(path)]
        if (
            name is None
            and parent.parent is None
            and parent.bound is None
            and ROOT in self.recording.lanes
            and ROOT not in parent.taken
        ):
            # Recorded in an ``async with``, and run again inside ``asyncio.run``: the task is the first lane, now.
            paths.append(ROOT)
        return sorted((self.recording.lanes[path] for path in paths), key=lambda calls: calls[0].number)

    def _lane_of(self, request: CallRequest, lanes: list[list[RecordedCall]]) -> list[RecordedCall] | None:
        """Return the lane that begins with a call, or else the one that it is most likely meant to be.

        Not simply the next in turn: which of several threads comes first is up to the scheduler.
        """
        chosen = next((calls for calls in lanes if self._matches(calls[0], request)), None)
        if chosen is not None:
            return chosen
        nearest = self._nearest(request, [calls[0] for calls in lanes])
        if nearest is not None and (not self._open_ended or self._same(nearest, request)):
            return self.recording.lanes[nearest.lane]
        if self._open_ended:
            return None
        # Its first call may be missing.
        nearest = self._nearest(request, [call for calls in lanes for call in calls])
        return None if nearest is None else self.recording.lanes[nearest.lane]

    def _free_path(self, parent: Lane) -> str:
        """Return a path for a lane that the recording lacks, which no recorded one has."""
        number = 1
        while (path := f"{parent.path}.{number}") in self.recording.lanes or path in parent.taken:
            number += 1
        parent.taken.add(path)
        return path

    # -- differences

    def _differs(self, lane: Lane, request: CallRequest, expected: RecordedCall, rest: list[RecordedCall]) -> Verdict:
        """Return the verdict on a call that is not the expected one, nor any later one of its lane."""
        lost = self._lost_lane(lane, expected)
        alike = (expected.kind, expected.name) == (request.kind, request.name)
        if alike:
            self._use(lane, expected, self._positions.get(lane.bound or "", 0) + 1)
            return Verdict(expected, lost or self._changed(request, expected))
        if lost is not None:
            return Verdict(diverged=lost)
        following = next((call for call in rest if (call.kind, call.name) == (request.kind, request.name)), None)
        if following is not None and self._alike(request, following) >= 0.5:
            # It is the next one of its kind, changed by what the calls before it no longer gave.
            index = self.recording.lanes[lane.bound or ""].index(following)
            self._use(lane, following, index + 1)
            return Verdict(following, missing(expected, f"{request.kind} call {request.name!r} was made in its place"))
        nearest = self._nearest(request, self._unused())
        why = f"the recording has {expected.kind} call {expected.name!r} here"
        return Verdict(diverged=_divergence("extra_call", request, lane, nearest=nearest, why=why, expected=expected))

    def _changed(self, request: CallRequest, expected: RecordedCall) -> Divergence:
        changes = changes_between(*self._comparable(expected, request.body))
        return recorded_divergence(kind_of_change(request.kind, changes), expected, changes=changes)

    def _settle_passed_over(self, bound: str, request: CallRequest) -> Verdict | None:
        """Decide what became of calls that were passed over: the next call tells."""
        passed = self._passed_over.pop(bound, None)
        if passed is None:
            return None
        late = next((call for call in passed if self._same(call, request)), None)
        if late is None:
            return Verdict(diverged=missing(passed[0], "a later call was made instead"))
        self.used.add(late.number)
        if rest := [call for call in passed if call is not late]:
            self._passed_over[bound] = rest
        return Verdict(late, recorded_divergence("order_changed", passed[0], why="a later call was made before it"))

    def _lost_lane(self, lane: Lane, expected: RecordedCall | None) -> Divergence | None:
        """Return the parallel call that was not made before this one, which differs because of it."""
        before = 2**62 if expected is None else expected.seq
        above: Lane | None = lane
        while above is not None:
            for path, calls in self.recording.lanes.items():
                beside = parallel_parent(path) == (above.bound or above.path) and path not in above.taken
                # Only what was over when the recorded call was made: anything else may still come.
                if beside and self._over(calls, before) and calls[0].number not in self.used:
                    return missing(calls[0], "the run continued without this call")
            above = above.parent
        return None

    def _over(self, calls: list[RecordedCall], before: int) -> bool:
        return all(call.result_seq is not None and call.result_seq < before for call in calls)

    def close(self) -> list[Divergence]:
        """Return what the recording has and nobody asked for: missing where the run went on, unused at its end."""
        passed = {call.number for calls in self._passed_over.values() for call in calls}
        left = self._unused()
        missed = [missing(call, "a later call was made instead") for call in left if call.number in passed]
        return missed + [recorded_divergence("unused", call) for call in left if call.number not in passed]

    def _unused(self) -> list[RecordedCall]:
        return [call for call in self.recording.calls if call.number not in self.used and not self._is_live(call)]

    # -- looser matching

    def _find_anywhere(self, lane: Lane, request: CallRequest) -> Verdict:
        left = [call for call in self._unused() if (call.kind, call.name) == (request.kind, request.name)]
        if self._match == "order":
            chosen = left[0] if left else None
        else:
            # By its digest if there is one: to compare what it says takes longer.
            chosen = next((call for call in left if self._matches(call, request)), None)
            chosen = chosen or next((call for call in left if self._same(call, request)), None)
        if chosen is not None:
            return Verdict(self._use(lane, chosen))
        begun = self._live_from is not None and not self._unused()
        if begun or self._open_ended:
            return self._go_live(lane)
        nearest = self._nearest(request, left)
        if nearest is None:
            return Verdict(
                diverged=_divergence("extra_call", request, lane, why="the recording has no unused call of this name")
            )
        self.used.add(nearest.number)
        return Verdict(nearest, self._changed(request, nearest))

    # -- comparing

    def _matches(self, call: RecordedCall, request: CallRequest) -> bool:
        """Whether two requests have the same digest."""
        return (call.kind, call.name) == (request.kind, request.name) and self._digest(call) == request.body.digest

    def _same(self, call: RecordedCall, request: CallRequest) -> bool:
        """Whether two requests say the same; the names in a list of objects may come in another order."""
        if self._matches(call, request):
            return True
        if (call.kind, call.name) != (request.kind, request.name):
            return False
        recorded, given = self._comparable(call, request.body)
        return bool(recorded == given) and not changes_between(recorded, given)

    def _digest(self, call: RecordedCall) -> str:
        if not self._recompute:
            return call.digest
        if call.number not in self._digests:
            self._digests[call.number] = self._reader.digest_of_values(call.request())
        return self._digests[call.number]

    def _comparable(self, call: RecordedCall, body: Body) -> tuple[dict[str, Any], dict[str, Any]]:
        normaliser = self._reader.normaliser
        return normaliser(call.request(), {}), normaliser(body.values(), {})

    def _nearest(self, request: CallRequest, calls: Iterable[RecordedCall]) -> RecordedCall | None:
        """Return the recorded call that is most like the one made."""
        same = [call for call in calls if (call.kind, call.name) == (request.kind, request.name)]
        return max(same[:_LOOKED_AT], key=lambda call: (self._alike(request, call), -call.number), default=None)

    def _alike(self, request: CallRequest, call: RecordedCall) -> float:
        """Return how much of two requests is the same, from 0 to 1: what they say, in whichever order."""
        recorded, given = (_leaves(side) for side in self._comparable(call, request.body))
        every = sum(recorded.values()) + sum(given.values())
        common = sum(min(count, given.get(leaf, 0)) for leaf, count in recorded.items())
        return 1.0 if every == 0 else 2 * common / every


def _numbered(path: str) -> bool:
    """Whether a lane has no name of its own."""
    return path.rpartition(".")[2].isdigit()


def _leaves(request: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    waiting = [request]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
        else:
            counts[repr(value)] = counts.get(repr(value), 0) + 1
    return counts


def recorded_divergence(kind: str, call: RecordedCall, **facts: Any) -> Divergence:
    """Return a divergence at the place of a recorded call."""
    place: dict[str, Any] = {"call": call.kind, "name": call.name, "lane": call.lane, "n": call.n}
    return Divergence(kind=kind, number=call.number, seq=call.seq, **place, **facts)


def missing(call: RecordedCall, why: str) -> Divergence:
    """Return the divergence of a recorded call that was not made."""
    return recorded_divergence("missing_call", call, why=why)


def _divergence(
    kind: str,
    request: CallRequest,
    lane: Lane,
    *,
    why: str,
    nearest: RecordedCall | None = None,
    expected: RecordedCall | None = None,
) -> Divergence:
    divergence = Divergence(
        kind=kind, call=request.kind, name=request.name, lane=lane.bound or lane.path, n=lane.calls, why=why
    )
    facts: dict[str, Any] = {}
    if nearest is not None:
        facts["nearest"] = nearest.seq
    if expected is not None:
        facts |= {"seq": expected.seq, "number": expected.number}
    return structs.replace(divergence, **facts) if facts else divergence
