"""Compaction: summaries that stand for runs of messages, and the reference way to make one. Pure.

A compaction names exactly the messages it covers: a run that ends at one place. Every path through that place contains
the whole run, so it holds there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from tape.core import payloads
from tape.core.fold import COMPACTION, Head
from tape.core.payloads import Place
from tape.core.plan import Covered, Intent, Lookup, Planned, makes, visible_place
from tape.core.records import Message
from tape.core.runs import Compaction, in_force, newest
from tape.core.tokens import Counter, estimate
from tape.errors import InvalidEntry, SummaryMoved

__all__ = [
    "AddSummary",
    "StartCompaction",
    "Summary",
    "SummaryRequest",
    "choose_run",
    "summary_prompt",
]


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


def newest_summary(found: Sequence[Summary]) -> Summary | None:
    """Return the summary that was made last: one of the nearest tape, since the seqs of two tapes do not compare."""
    return max(found, key=lambda one: (-one.levels_up, one.seq), default=None)


def named(expected: Any) -> tuple[str, int] | int | None:
    """Return what a caller expects as the newest summary: its tape and seq, its seq alone, or None for none yet."""
    if isinstance(expected, Summary):
        return expected.tape, expected.seq
    if isinstance(expected, tuple | list) and len(expected) == 2:
        tape, seq = expected
        if isinstance(tape, str) and type(seq) is int:
            return tape, seq
    elif expected is None or type(expected) is int:
        return expected
    raise InvalidEntry("expected", "must be a Summary, a pair of tape and seq, a seq, or None for no summary yet")


class AddSummary(Intent, kw_only=True):
    """Put a summary in place of a run of messages."""

    text: str
    first: str
    last: str
    expected: tuple[str, int] | int | None

    def content(self) -> Any:
        """Return the text and the run."""
        return {"kind": "compact", "text": self.text, "first": self.first, "last": self.last}

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Check the run against the path to the head, its anchor and the compactions that hold on it."""
        first, first_standing = visible_place(look, head, self.first)
        last, last_standing = visible_place(look, head, self.last)
        if not look.contains(head.place, last) or not look.contains(last, first):
            raise InvalidEntry("last", f"{self.first!r} to {self.last!r} is no run of messages on the active branch")
        held, _ = in_force(look.compactions_on(head.place))
        latest = newest(held)
        if not self._expects(look, latest):
            raise SummaryMoved(look.tape, self.expected, look.summary(latest) if latest is not None else None)
        if first.ordinal <= look.anchor_depth(head.place):
            raise InvalidEntry("first", "the run would cross the latest anchor")
        for one in held:
            if one.overlaps(first.ordinal, last.ordinal) and not one.within(first.ordinal, last.ordinal):
                raise InvalidEntry("first", f"the run partly overlaps the summary of seq {one.seq}")
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
        # Where two summaries have the same seq, it does not tell whether the caller knows of the newer one.
        return self.expected == latest.seq and not (
            look.forked and any(one.seq == latest.seq and one.tape != latest.tape for one in look.compactions())
        )

    def _check_calls(self, head: Head, look: Lookup, run: Sequence[Covered]) -> None:
        """Refuse a run with a call whose result is elsewhere or still to come, or with a result without its call."""
        inside = {message.place for message in run}
        settled = {(answer.maker, answer.call) for message in run for answer in message.answers}
        for message in run:
            # A call under a clear counts as well: undoing the clear would bring it back without its result.
            if any(answer.maker not in inside and makes(look, {}, answer, 0) for answer in message.answers):
                raise InvalidEntry("first", "the run would part a tool result from its call")
            if message.calls and any(
                place not in inside and look.contains(head.place, place) and self._answered(head, look, message, place)
                for place in look.answers(message.place)
            ):
                raise InvalidEntry("last", "the run would part a tool call from its result")
            for call in message.waiting:
                if (message.place, call) not in settled:
                    raise InvalidEntry(
                        "last",
                        f"the tool call {call!r} of message {message.id!r} has no result yet: it must stay visible",
                    )

    def _answered(self, head: Head, look: Lookup, message: Covered, place: Place) -> bool:
        """Whether the message at a place is in the view and answers a call that another still makes."""
        standing = look.standing(place)
        return standing.visible(head.cleared) and any(
            bound.maker == message.place and bound.call in message.calls
            for bound in look.bindings(place, standing.placed)
        )


class StartCompaction(Intent, kw_only=True):
    """Say that a compaction of the active branch begins; refused while another one is under way."""

    deadline: int
    now: int

    def content(self) -> Any:
        """A start is never repeated."""
        return {"kind": "event", "name": COMPACTION}

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Look for another compaction of this branch that has begun and not ended, within its deadline."""
        before = look.slot(f"compacting:{head.place.lane}")
        told = before.data if isinstance(before, payloads.Event) and isinstance(before.data, dict) else {}
        if told.get("state") == "started" and told.get("deadline", 0) > self.now:
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


def choose_run(
    messages: Sequence[Message],
    calls: Callable[[Message], tuple[Sequence[str], Sequence[str]]],
    *,
    head: int,
    tail_tokens: int,
    min_tail: int,
    cost: Callable[[Message], int],
) -> tuple[int, int] | None:
    """Return the indexes (first, last) of the run to summarise, or None when there is nothing between head and tail.

    The head keeps its first messages, the tail as many tokens as allowed and at least a few messages. Neither end parts
    a tool call from its result: the run shrinks until it does not.
    """
    count = len(messages)
    start, end, used = head, count, 0
    while end > start and (count - end < min_tail or used + cost(messages[end - 1]) <= tail_tokens):
        end -= 1
        used += cost(messages[end])
    makes = [calls(message) for message in messages]
    while start < end:
        inside = {call for made, _ in makes[start:end] for call in made}
        before = {call for made, _ in makes[:start] for call in made}
        # A result at the start whose call is before the run belongs to the head.
        if any(call in before and call not in inside for call in makes[start][1]):
            start += 1
            continue
        later = {call for _, answered in makes[end:] for call in answered}
        if any(call in later for call in makes[end - 1][0]) or any(
            call in later for made, _ in makes[start:end] for call in made
        ):
            end -= 1
            continue
        break
    return (start, end - 1) if end - start >= 2 else None


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
    """Return how many tokens a summary of these messages may take: a fifth of theirs, within reason."""
    return max(100, min(4_000, sum(cost(message) for message in messages) // 5))


def within(text: str, max_tokens: int, counter: Counter = estimate) -> bool:
    """Whether a summary is about as short as it was asked to be; twice the limit is too much."""
    return counter(text) <= 2 * max_tokens
