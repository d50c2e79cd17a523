"""Which run a compaction summarises: the best that a commit accepts, whatever the history."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.backends import Backend
from support.compacting import WORDS, call, result, say
from support.sizes import full, heavy, size

import tape
from tape.core.context.fenced import summary_message
from tape.core.messages import toolcalls
from tape.core.messages.tokens import message_tokens
from tape.core.records import Message
from tape.core.strict import RESERVED
from tape.core.summaries import compaction
from tape.core.summaries.compaction import Candidate

# -- random histories


class Author:
    """Writes a history of a tape at random: everything that can come between a compaction and its run."""

    def __init__(self, store: tape.Store, name: str, seed: int) -> None:
        self.store = store
        self.chat = store.create(name)
        self.dice = random.Random(seed)
        self.names = (f"m{n}" for n in itertools.count())
        self.calls = (f"c{n}" for n in itertools.count())
        self.used: list[str] = []
        self.waiting: list[str] = []
        self.answered: list[str] = []
        self.depth = 0
        self.requests: list[tape.SummaryRequest] = []

    def write(self, steps: int) -> None:
        """Take some steps; what the tape refuses is no step."""
        verbs: dict[Callable[[], object], int] = {
            self.talk: 24,
            self.call: 10,
            self.answer: 14,
            self.retract: 5,
            self.restore: 4,
            self.revise: 4,
            self.summarise: 5,
            self.anchor: 1,
            self.switch: 2,
            self.branch: 2,
            self.clear: 1,
            self.unclear: 3,
            self.fork: 1,
        }
        for verb in self.dice.choices([*verbs], [*verbs.values()], k=steps):
            with contextlib.suppress(tape.TapeError):
                verb()

    def seen(self) -> list[str]:
        return [message.id for message in self.chat.messages()]

    def some(self) -> str:
        return self.dice.choice(self.seen() or ["nothing"])

    def add(self, message: dict[str, Any], **options: Any) -> None:
        self.used.append(message["id"])
        self.chat.append(message, **options)

    def text(self) -> str:
        return "word " * self.dice.randrange(1, 30)

    def talk(self) -> None:
        for _ in range(self.dice.randrange(1, 4)):
            self.add(say(next(self.names), self.dice.choice(["user", "assistant"]), self.text()))

    def call(self) -> None:
        made = [next(self.calls) for _ in range(self.dice.randrange(1, 4))]
        if self.answered and self.dice.random() < 0.1:
            made[0] = self.dice.choice(self.answered)
        self.waiting += made
        name = next(self.names)
        if self.dice.random() < 0.5:
            self.add(call(name, *made))
        else:
            parts = [{"type": "tool_use", "id": one, "name": "f", "input": {}} for one in made]
            self.add(say(name, "assistant", parts))

    def answer(self) -> None:
        if not self.waiting:
            return
        # Most often the newest call is answered, sometimes one of long ago.
        number = -1 if self.dice.random() < 0.7 else self.dice.randrange(len(self.waiting))
        settled = [self.waiting.pop(number)]
        if self.waiting and self.dice.random() < 0.3:
            settled.append(self.waiting.pop())
        self.answered += settled
        name = next(self.names)
        if len(settled) == 1 and self.dice.random() < 0.5:
            self.add(result(name, settled[0]))
        else:
            self.add(say(name, "user", [{"type": "tool_result", "tool_use_id": c, "content": WORDS} for c in settled]))

    def retract(self) -> None:
        self.chat.retract(self.some())

    def restore(self) -> None:
        self.chat.restore(self.dice.choice(self.used or ["nothing"]))

    def revise(self) -> None:
        name = self.some()
        role = self.chat.message(name).role
        made = [*self.waiting, *self.answered]
        if role == "assistant" and made and self.dice.random() < 0.5:
            self.chat.revise(name, call(name, self.dice.choice(made)))
        else:
            self.chat.revise(name, content=self.text())

    def summarise(self) -> None:
        seen = self.seen()
        if not seen:
            return
        first = self.dice.randrange(len(seen))
        last = min(first + self.dice.randrange(6), len(seen) - 1)
        newest = self.chat.summary()
        self.chat.set_summary(
            f"by hand {first}", first=seen[first], last=seen[last], expected=newest.seq if newest is not None else None
        )

    def anchor(self) -> None:
        if self.dice.random() < 0.5:
            self.chat.switch(self.some())
            self.chat.anchor("inside")
            self.switch()
        else:
            self.chat.anchor("here")

    def switch(self) -> None:
        self.chat.switch(self.dice.choice([message.id for message in self.chat.heads()] or ["nothing"]))

    def branch(self) -> None:
        self.add(say(next(self.names), "user", self.text()), parent=self.some())

    def clear(self) -> None:
        if self.dice.random() < 0.4:
            self.chat.clear()

    def unclear(self) -> None:
        self.chat.restore()

    def fork(self) -> None:
        if self.depth < 2 and self.dice.random() < 0.7:
            self.depth += 1
            self.chat = self.chat.fork(f"{self.chat.id}.{self.depth}")

    def summarize(self, request: tape.SummaryRequest) -> str:
        self.requests.append(request)
        return f"in short, number {len(self.requests)}"


def check_compaction(author: Author) -> bool:
    """Compact with random options and check the context before and after; return whether a summary was made."""
    chat, dice = author.chat, author.dice
    before = chat.context()
    held = chat.summaries()
    receipt = chat.compact(
        author.summarize,
        budget=dice.choice([0, 20, 100, 400]),
        head=dice.randrange(4),
        min_tail=dice.randrange(4),
    )
    after = chat.context()
    if receipt is None:
        assert after.to_openai() == before.to_openai()
        return False
    made = next(one for one in chat.summaries() if (one.tape, one.seq) == (chat.id, receipt.seq))
    covers = set(made.covers)
    # Everything that it does not cover is shown as it was, and nothing else is.
    kept = [m for m in before.messages if m.id not in covers and not m.id.startswith(RESERVED)]
    now = [m for m in after.messages if not m.id.startswith(RESERVED)]
    assert [(m.id, m.data) for m in now] == [(m.id, m.data) for m in kept]
    assert len(after.messages) < len(before.messages)
    # It was made of exactly what it covers.
    request = author.requests[-1]
    swallowed = [one for one in held if one.lo >= made.lo and one.hi <= made.hi]
    assert request.previous == ("\n\n".join(one.text for one in swallowed) or None)
    told = {message.id for message in request.messages} | {id for one in swallowed for id in one.covers}
    assert covers <= told
    assert {message.id for message in request.messages} <= covers
    # No call was parted from its result, and none that waits for one was covered.
    shown = {message.id for message in after.messages}
    assert [pair for pair in pairs(before.messages) if (pair[0] in shown) != (pair[1] in shown)] == []
    never = {*author.waiting} - {*author.answered}
    assert {one.message_id for one in before.repairs if one.what == "unsettled call" and one.call in never} <= shown
    return True


def pairs(messages: Sequence[tape.Message]) -> list[tuple[str, str]]:
    """Return each message that makes a tool call with one that answers it: the nearest above that makes it."""
    makers: dict[str, str] = {}
    found = []
    for message in messages:
        made, answered = toolcalls.find(message.data)
        found += [(makers[call], message.id) for call in answered if call in makers]
        makers.update(dict.fromkeys(made, message.id))
    return found


def explore(store: tape.Store, seeds: range, prefix: str) -> int:
    """Write histories and compact them again and again; return how many summaries were made."""
    made = 0
    for seed in seeds:
        author = Author(store, f"{prefix}{seed}", seed)
        try:
            for _ in range(4):
                author.write(author.dice.randrange(10, 40))
                made += check_compaction(author)
            assert author.chat.verify().ok
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return made


class TestRandomHistories:
    """Whatever happened to a tape, it can be compacted."""

    @heavy
    def test_compaction_never_raises_and_leaves_a_valid_context(self, standing: Backend) -> None:
        """With late results, open calls, anchors, retractions, clears, branches, forks and earlier summaries."""
        seeds = range(size(2, 25) if standing.postgres else size(8, 120))
        made = explore(standing.open(durability="normal"), seeds, "random")
        assert made > len(seeds)


# -- the choice by itself


def candidate(number: int, calls: Sequence[str] = (), bound: Sequence[tuple[str, int]] = ()) -> Candidate:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "word " * (number % 7 + 1)}]
    parts += [{"type": "tool_use", "id": one, "name": "f", "input": {}} for one in calls]
    parts += [{"type": "tool_result", "tool_use_id": one, "content": "done"} for one, _ in bound]
    message = Message(f"m{number}", "t", {"role": "user", "content": parts}, None, number, number, 0)
    return Candidate(message, number, calls, bound)


def cost(message: Message) -> int:
    return message_tokens(message.data)


def choose(
    candidates: Sequence[Candidate], summaries: Sequence[tape.Summary] = (), **options: Any
) -> compaction.Run | None:
    options = {"head": 0, "tail_tokens": 0, "min_tail": 0, "cost": cost, **options}
    return compaction.choose_run(candidates, summaries, shown=lambda one: summary_message(one, 0), **options)


def summary(number: int, lo: int, hi: int, covers: Sequence[int]) -> tape.Summary:
    ids = [f"m{n}" for n in covers]
    return tape.Summary(f"s{number}", number, ids[0], ids[-1], ids, False, "t", (0, 0), lo, hi)


def history(dice: random.Random, count: int) -> tuple[list[Candidate], list[tape.Summary]]:
    """Return messages with calls answered at random distances, some never, and summaries here and there."""
    calls: list[list[str]] = [[] for _ in range(count + 1)]
    bound: list[list[tuple[str, int]]] = [[] for _ in range(count + 1)]
    for number in range(1, count + 1):
        for nth in range(dice.choice([0, 0, 0, 1, 2])):
            end = min(number + dice.choice([1, 1, 2, 3, 6, 100]), count + 1)
            if end <= count or dice.random() < 0.2:
                calls[number].append(f"c{number}.{nth}")
            if end <= count:
                bound[end].append((f"c{number}.{nth}", number))
    if dice.random() < 0.3:
        bound[dice.randrange(1, count + 1)].append(("before", 0))
    candidates = [candidate(number, calls[number], bound[number]) for number in range(1, count + 1)]
    summaries: list[tape.Summary] = []
    at = 1
    while at < count and dice.random() < 0.6:
        lo = dice.randrange(at, count)
        hi = min(lo + dice.randrange(4), count)
        covers = [n for n in range(lo, hi + 1) if n in (lo, hi) or dice.random() < 0.8]
        summaries.append(summary(len(summaries) + 1, lo, hi, covers))
        at = hi + 1
    return candidates, summaries


def acceptable(candidates: Sequence[Candidate], summaries: Sequence[tape.Summary], lo: int, hi: int) -> bool:
    """Whether a commit accepts a run, asked message by message."""
    inside = range(lo, hi + 1)
    for held in summaries:
        whole = lo <= held.lo and held.hi <= hi
        if not whole and held.lo <= hi and lo <= held.hi:
            return False
    settled = {(depth, call) for one in candidates for call, depth in one.bound}
    for one in candidates:
        if one.depth in inside and any((one.depth, call) not in settled for call in one.calls):
            return False
        if any((depth in inside) != (one.depth in inside) for _, depth in one.bound):
            return False
    return True


def worth(candidates: Sequence[Candidate], summaries: Sequence[tape.Summary], lo: int, hi: int) -> tuple[int, int]:
    """Return how many messages a context shows of a run, and their tokens."""
    swallowed = [one for one in summaries if lo <= one.lo and one.hi <= hi]
    covered = {id for one in swallowed for id in one.covers}
    plain = [one.message for one in candidates if lo <= one.depth <= hi and one.message.id not in covered]
    messages = [*plain, *(summary_message(one, 0) for one in swallowed)]
    return len(messages), sum(cost(message) for message in messages)


class TestChoice:
    """The choice is the best that there is, and takes time in proportion to the messages."""

    @pytest.mark.parametrize("seed", range(0, 300, 50))
    def test_it_is_the_costliest_run_that_is_accepted(self, seed: int) -> None:
        """No other run between head and tail would save more; without any, there is none."""
        for number in range(seed, seed + 50):
            dice = random.Random(number)
            candidates, summaries = history(dice, dice.randrange(1, 16))
            runs = itertools.combinations_with_replacement(range(1, len(candidates) + 1), 2)
            values = [
                worth(candidates, summaries, lo, hi) for lo, hi in runs if acceptable(candidates, summaries, lo, hi)
            ]
            best = max((tokens for count, tokens in values if count >= 2), default=None)
            run = choose(candidates, summaries)
            if run is None:
                assert best is None, number
                continue
            lo, hi = int(run.first[1:]), int(run.last[1:])
            assert acceptable(candidates, summaries, lo, hi), number
            assert worth(candidates, summaries, lo, hi)[1] == best, number
            swallowed = [one for one in summaries if lo <= one.lo and one.hi <= hi]
            assert run.earlier == swallowed, number

    def test_head_and_tail_are_counted_in_messages_that_are_shown(self) -> None:
        """A summary counts as one message, and what came back into its run as one more each."""
        candidates = [candidate(number) for number in range(1, 11)]
        held = [summary(1, 1, 4, [1, 2, 4])]
        run = choose(candidates, held, head=1, min_tail=2)
        assert run is not None
        assert (run.first, run.last) == ("m5", "m8")
        run = choose(candidates, held, head=0, min_tail=0, tail_tokens=cost(candidates[9].message))
        assert run is not None
        assert (run.first, run.last, run.messages[0].id) == ("m1", "m9", "m3")

    @full
    @pytest.mark.parametrize("shape", ["plain", "late", "nested", "open", "summaries"])
    def test_22_ten_times_the_messages_take_about_ten_times_as_long(self, shape: str) -> None:
        """Whatever ties the messages together, the time grows with their number and not with its square."""

        def made(count: int) -> tuple[list[Candidate], list[tape.Summary]]:
            calls: dict[int, list[str]] = {}
            bound: dict[int, list[tuple[str, int]]] = {}
            held: list[tape.Summary] = []
            for number in range(1, count // 2):
                # From pairs side by side to pairs of which each contains all later ones.
                end = {"plain": 0, "late": number + count // 2, "nested": count - number}.get(shape, number + 1)
                if end and number % 2:
                    calls[number] = [f"c{number}"]
                    if shape != "open":
                        bound.setdefault(end, []).append((f"c{number}", number))
            if shape == "summaries":
                held = [summary(n, n, n + 1, [n, n + 1]) for n in range(1, count, 2)]
            candidates = [candidate(n, calls.get(n, ()), bound.get(n, ())) for n in range(1, count + 1)]
            return candidates, held

        def took(count: int) -> float:
            given = made(count)
            times = []
            for _ in range(2):
                begun = time.process_time()
                choose(*given, head=3, min_tail=2)
                times.append(time.process_time() - begun)
            return min(times)

        assert took(20_000) < 30 * took(2_000)
