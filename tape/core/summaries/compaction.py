"""Compaction: summaries that replace runs of messages in a context, and the reference way to make one. Pure.

A compaction names exactly the messages it covers: a run that ends at one place. Every path through that place contains
the whole run, so the compaction is in force on those paths and on no other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from msgspec import Struct

from tape.core import strict
from tape.core.entries import payloads
from tape.core.entries.payloads import Place
from tape.core.messages import toolcalls
from tape.core.messages.tokens import Counter, estimate
from tape.core.plan.intents import Intent, Planned
from tape.core.plan.lookup import Covered, Lookup, visible_place
from tape.core.plan.results import makes
from tape.core.records import Message
from tape.core.summaries.runs import Compaction, in_force, newest
from tape.core.view import slots
from tape.core.view.fold import COMPACTION, Head
from tape.errors import InvalidEntry, SummaryMoved

__all__ = [
    "MOST_CHARACTERS",
    "MOST_TOKENS",
    "AddSummary",
    "Candidate",
    "Run",
    "StartCompaction",
    "Summary",
    "SummaryRequest",
    "choose_run",
    "spare",
    "summary_prompt",
]

MOST_TOKENS = 4_000
"""The limit of the longest summary that is requested."""
MOST_CHARACTERS = 10 * MOST_TOKENS
"""The longest summary that is accepted from one, and that a context shows whole.

Up to twice the requested tokens are accepted, and five characters are about one token of English. It also bounds a
text that a counter finds small, such as one full of spaces.
"""


class Summary(Struct, frozen=True):
    """A summary as it stands: its text, the entry, the first and last message, all that it covers."""

    text: str
    seq: int
    first: str
    last: str
    covers: list[str]
    stale: bool
    """A source was revised since."""
    tape: str
    span: tuple[int, int]
    """The seqs that placed the first and the last message."""
    lo: int
    hi: int
    """The depths of the run on its path."""
    stamp: int = 0
    levels_up: int = 0
    """How many forks up the tape is that made it; 0 for the tape itself."""


def newest_summary(summaries: Sequence[Summary]) -> Summary | None:
    """Return the summary that was made last: one of the nearest tape, since the seqs of two tapes do not compare."""
    return max(summaries, key=lambda summary: (-summary.levels_up, summary.seq), default=None)


def named(expected: Any) -> tuple[str, int] | int | None:
    """Return what a caller expects as the newest summary: its tape and seq, its seq alone, or None for none yet."""
    if isinstance(expected, Summary):
        return expected.tape, expected.seq
    if isinstance(expected, tuple | list) and len(expected) == 2:
        tape, seq = expected
        if isinstance(tape, str) and type(seq) is int:
            return tape, strict.seq(seq, "expected")
    elif expected is None or type(expected) is int:
        return None if expected is None else strict.seq(expected, "expected")
    raise InvalidEntry("expected", "must be a Summary, a (tape, seq) pair, a seq, or None if there is no summary yet")


class AddSummary(Intent, kw_only=True):
    """Put a summary in place of a run of messages."""

    records = payloads.Compact

    text: str
    first: str
    last: str
    expected: tuple[str, int] | int | None

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Check the run against the path to the head, its anchor and the compactions that hold on it."""
        first, first_standing = visible_place(look, head, self.first)
        last, last_standing = visible_place(look, head, self.last)
        if not look.contains(head.place, last) or not look.contains(last, first):
            raise InvalidEntry("last", f"{self.first!r} to {self.last!r} is not a run of messages on the active branch")
        held, _ = in_force(look.compactions_on(head.place))
        latest = newest(held)
        if not self._expects(look, latest):
            raise SummaryMoved(look.tape, self.expected, look.summary(latest) if latest is not None else None)
        if first.ordinal <= look.anchor_depth(head.place):
            raise InvalidEntry("first", "the run would cross the latest anchor")
        for compaction in held:
            if compaction.overlaps(first.ordinal, last.ordinal) and not compaction.within(first.ordinal, last.ordinal):
                raise InvalidEntry("first", f"the run partly overlaps the summary at seq {compaction.seq}")
        run = look.run(first, last)
        self._check_calls(head, look, run)
        payload = payloads.Compact(
            text=self.text,
            first=self.first,
            last=self.last,
            covers=[message.id for message in run],
            place=last,
            lo=first.ordinal,
            span=(first_standing.placed, last_standing.placed),
            expected=latest.seq if latest is not None else None,
            expected_of=latest.tape if latest is not None else None,
        )
        return Planned(payload, head.place)

    def _expects(self, look: Lookup, latest: Compaction | None) -> bool:
        """Whether the newest summary is the one that the caller knows."""
        if self.expected is None or latest is None:
            return self.expected is None and latest is None
        if isinstance(self.expected, tuple):
            return self.expected == (latest.tape or look.tape, latest.seq)
        # Where two summaries have the same seq, the seq does not show whether the caller knows the newer one.
        return self.expected == latest.seq and not (
            look.forked
            and any(
                compaction.seq == latest.seq and compaction.tape != latest.tape for compaction in look.compactions()
            )
        )

    def _check_calls(self, head: Head, look: Lookup, run: Sequence[Covered]) -> None:
        """Refuse a run with a call whose result is elsewhere or still to come, or with a result without its call."""
        inside = {message.place for message in run}
        settled = {(answer.maker, answer.call) for message in run for answer in message.answers}
        for message in run:
            # A call that a clear hides counts as well: undoing the clear would restore it without its result.
            if any(answer.maker not in inside and makes(look, {}, answer, 0) for answer in message.answers):
                raise InvalidEntry("first", "the run would separate a tool result from its call")
            if message.calls and any(
                place not in inside and look.contains(head.place, place) and self._answered(head, look, message, place)
                for place in look.answers(message.place)
            ):
                raise InvalidEntry("last", "the run would separate a tool call from its result")
            for call in message.waiting:
                if (message.place, call) not in settled:
                    raise InvalidEntry(
                        "last",
                        f"the tool call {call!r} of message {message.id!r} has no result yet, so it must stay visible",
                    )

    def _answered(self, head: Head, look: Lookup, message: Covered, place: Place) -> bool:
        """Whether the message at a place is in the view and answers a call that another still makes."""
        standing = look.standing(place)
        return standing.visible(head.cleared) and any(
            bound.maker == message.place and bound.call in message.calls
            for bound in look.bindings(place, standing.placed)
        )


class StartCompaction(Intent, kw_only=True):
    """Record the start of a compaction of the active branch; refused while another one is under way."""

    records = payloads.Event

    deadline: int
    now: int
    lane: int | None = None
    """The branch that the last plan found at the head: the end of the compaction is recorded for that one."""

    def content(self) -> Any:
        """A start is never repeated."""
        return {"kind": "event", "name": COMPACTION}

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Look for another compaction of this branch that has begun and not ended, within its deadline."""
        self.lane = head.place.lane
        # A fork does not wait for a compaction of its parent, because its end is never recorded on the fork.
        before = look.slot(f"{slots.COMPACTING}{head.place.lane}", inherited=False)
        last = before.data if isinstance(before, payloads.Event) and isinstance(before.data, dict) else {}
        if last.get("state") == "started" and last.get("deadline", 0) > self.now:
            raise Underway
        data = {"state": "started", "deadline": self.deadline}
        return Planned(payloads.Event(name=COMPACTION, data=data), head.place)


class Underway(Exception):
    """Another compaction of the same branch has begun."""


# -- the reference compaction


class SummaryRequest(Struct, frozen=True):
    """What a summarizer gets: the messages to summarise, the summary they continue, a limit, and a prompt to use."""

    messages: list[Message]
    previous: str | None
    max_tokens: int
    prompt: str


Summarize = Callable[[SummaryRequest], Any]


class Candidate(Struct, frozen=True):
    """A message in the view behind the latest anchor, with the tool calls that tie it to others."""

    message: Message
    depth: int
    calls: Sequence[str] = ()
    """The calls that it makes, as recorded."""
    bound: Sequence[tuple[str, int]] = ()
    """The calls that it was bound to when it was appended, each with the depth of the message that makes it."""


class Run(Struct, frozen=True):
    """A run to summarise: its ends, the messages that no summary covers yet, and the summaries that it continues."""

    first: str
    last: str
    messages: list[Message]
    earlier: list[Summary]


class _Unit(Struct):
    """A part of a run that cannot be split: a message, or everything between the ends of an earlier summary."""

    first: int
    last: int
    """Indexes of candidates."""
    summary: Summary | None
    tokens: list[int]
    """The cost of each message that a context shows for it."""
    begins: bool = True
    ends: bool = True
    """Whether a run can begin and end with it: both ends of a summary must be messages in the view."""
    fixed: bool = False
    """Whether no run may contain it."""


def spare(tokens: Sequence[int], *, head: int, tail_tokens: int, min_tail: int) -> tuple[int, int]:
    """Return the range of messages behind the protected head and before the protected tail, given what each costs."""
    count = len(tokens)
    end, used = count, 0
    while end > head and (count - end < min_tail or used + tokens[end - 1] <= tail_tokens):
        end -= 1
        used += tokens[end]
    return head, end


def choose_run(
    candidates: Sequence[Candidate],
    summaries: Sequence[Summary],
    *,
    head: int,
    tail_tokens: int,
    min_tail: int,
    cost: Callable[[Message], int],
    shown: Callable[[Summary], Message],
) -> Run | None:
    """Return the costliest run between the protected head and tail that may be summarised, or None.

    It is one that the commit accepts. It has all or nothing of each tool call with its results, and of each earlier
    summary with what lies between its ends. It has no call that still waits for its result, and no result of a call
    that is out of the view or before the anchor. A run may lie between a call and its late result.

    The time it takes grows with the number of messages, not with its square.
    """
    units = _units(candidates, summaries, cost, shown)
    tokens = [each for unit in units for each in unit.tokens]
    start, end = spare(tokens, head=head, tail_tokens=tail_tokens, min_tail=min_tail)
    low = high = seen = 0
    for unit in units:
        low += seen < start
        seen += len(unit.tokens)
        high += seen <= end
    chosen = _costliest(units, _tie(units, candidates), low, high)
    if chosen is None:
        return None
    inside = units[chosen[0] : chosen[1]]
    messages: list[Message] = []
    for unit in inside:
        covered = frozenset(unit.summary.covers if unit.summary is not None else ())
        messages += [
            candidate.message
            for candidate in candidates[unit.first : unit.last + 1]
            if candidate.message.id not in covered
        ]
    return Run(
        first=candidates[inside[0].first].message.id,
        last=candidates[inside[-1].last].message.id,
        messages=messages,
        earlier=[unit.summary for unit in inside if unit.summary is not None],
    )


def _units(
    candidates: Sequence[Candidate],
    summaries: Sequence[Summary],
    cost: Callable[[Message], int],
    shown: Callable[[Summary], Message],
) -> list[_Unit]:
    """Return what a run is made of, in order of the path."""
    units: list[_Unit] = []
    held = sorted(summaries, key=lambda summary: summary.lo)
    covered: frozenset[str] = frozenset()
    at = 0
    for index, candidate in enumerate(candidates):
        while at < len(held) and held[at].hi < candidate.depth:
            at += 1
        summary = held[at] if at < len(held) and held[at].lo <= candidate.depth else None
        if summary is None:
            units.append(_Unit(index, index, None, [cost(candidate.message)]))
            continue
        if not units or units[-1].summary is not summary:
            covered = frozenset(summary.covers)
            units.append(_Unit(index, index, summary, [cost(shown(summary))], begins=candidate.depth == summary.lo))
        unit = units[-1]
        unit.last, unit.ends = index, candidate.depth == summary.hi
        if candidate.message.id not in covered:
            unit.tokens.append(cost(candidate.message))
    return units


def _tie(units: Sequence[_Unit], candidates: Sequence[Candidate]) -> list[tuple[int, int]]:
    """Return the pairs of units that a tool call and its result tie together, and mark units that are fixed."""
    at = {candidate.depth: index for index, candidate in enumerate(candidates)}
    unit_of = [number for number, unit in enumerate(units) for _ in range(unit.first, unit.last + 1)]
    ties: list[tuple[int, int]] = []
    answered: set[tuple[int, str]] = set()
    makers: dict[str, int] = {}
    for index, candidate in enumerate(candidates):
        for call, depth in candidate.bound:
            maker = at.get(depth)
            if maker is None:
                units[unit_of[index]].fixed = True
            else:
                answered.add((maker, call))
                ties.append((maker, index))
        # Calls and results that a revision changed are not in the bindings, but a context uses them.
        made, answers = toolcalls.find(candidate.message.data)
        ties += [(makers[call], index) for call in answers if call in makers]
        for call in (*candidate.calls, *made):
            makers[call] = index
    for index, candidate in enumerate(candidates):
        if any((index, call) not in answered for call in candidate.calls):
            waiting = toolcalls.waiting(candidate.message.data)
            if any((index, call) not in answered and call in waiting for call in candidate.calls):
                units[unit_of[index]].fixed = True
    return [(unit_of[a], unit_of[b]) for a, b in ties if unit_of[a] != unit_of[b]]


def _costliest(units: Sequence[_Unit], ties: Sequence[tuple[int, int]], low: int, high: int) -> tuple[int, int] | None:
    """Return the costliest run of units between two bounds, as a range, that no tie crosses; None without any.

    A tie is open at every boundary between its two ends. No tie crosses the ends of a run exactly when the same ties
    are open before and after it. Before the first end of a tie that is open at the start of the run, none of those
    ties can close. Up to there, an equal number of open ties means the same ties.
    """
    count = len(units)
    change = [0] * (count + 2)
    by_start: list[list[int]] = [[] for _ in range(count)]
    for a, b in ties:
        change[a + 1] += 1
        change[b + 1] -= 1
        by_start[a].append(b)
    still_open = [0] * (count + 1)
    for boundary in range(1, count + 1):
        still_open[boundary] = still_open[boundary - 1] + change[boundary]
    ends: dict[int, list[int]] = {}
    cost, pieces = [0], [0]
    for boundary, unit in enumerate(units, 1):
        cost.append(cost[-1] + sum(unit.tokens))
        pieces.append(pieces[-1] + len(unit.tokens))
        if unit.ends and low < boundary <= high:
            ends.setdefault(still_open[boundary], []).append(boundary)
    walls = [high] * (count + 1)
    for number in range(count - 1, -1, -1):
        walls[number] = number if units[number].fixed else min(walls[number + 1], high)
    best: tuple[int, int] | None = None
    closing: list[int] = []
    for start in range(high):
        for end in by_start[start - 1] if start else ():
            heappush(closing, end)
        while closing and closing[0] < start:
            heappop(closing)
        if start < low or not units[start].begins:
            continue
        limit = min(walls[start], closing[0]) if closing else walls[start]
        known = ends.get(still_open[start], [])
        place = bisect_right(known, limit) - 1
        if place < 0 or pieces[known[place]] - pieces[start] < 2 or known[place] <= start:
            continue
        end = known[place]
        if best is None or cost[end] - cost[start] > cost[best[1]] - cost[best[0]]:
            best = (start, end)
    return best


def summary_prompt(messages: Sequence[Message], previous: str | None, max_tokens: int) -> str:
    """Return instructions for a model that is to summarise these messages."""
    text = [
        f"Summarise the conversation below for an assistant that will continue it. Use at most {max_tokens} tokens.",
        "Write these sections: Topic, Key points, Current state, Open items. Keep names, numbers, paths and decisions.",
    ]
    if previous:
        text += [
            "An earlier summary is given first. Keep what still holds, add what is new, drop what is obsolete.",
            f"<earlier-summary>\n{previous}\n</earlier-summary>",
        ]
    lines = []
    for message in messages:
        body = message.text or str(message.content or "")
        lines.append(f"[{message.role or 'item'}] {body if len(body) <= 2000 else body[:2000] + ' …'}")
    text.append("<conversation>\n" + "\n".join(lines) + "\n</conversation>")
    return "\n\n".join(text)


def budget_for(messages: Sequence[Message], cost: Callable[[Message], int]) -> int:
    """Return how many tokens a summary of these messages may take: a fifth of theirs, between fixed bounds."""
    return max(100, min(MOST_TOKENS, sum(cost(message) for message in messages) // 5))


def within(text: str, max_tokens: int, counter: Counter = estimate) -> bool:
    """Whether a summary is short enough: at most twice the limit that the summarizer got."""
    return len(text) <= MOST_CHARACTERS and counter(text) <= 2 * max_tokens
