"""What compaction promises: it finds a run to summarise, shows all of the summary, and never stays blocked."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.backends import Backend

import tape
from tape.core.context.build import summary_message
from tape.core.messages import toolcalls
from tape.core.messages.tokens import estimate, message_tokens
from tape.core.records import Message
from tape.core.strict import RESERVED
from tape.core.summaries import compaction
from tape.core.summaries.compaction import Candidate

WORDS = "word " * 20


def say(id: str, role: str = "user", content: Any = WORDS, **more: Any) -> dict[str, Any]:
    return {"id": id, "role": role, "content": content, **more}


def call(id: str, *calls: str) -> dict[str, Any]:
    made = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in calls]
    return say(id, "assistant", WORDS, tool_calls=made)


def result(id: str, answered: str) -> dict[str, Any]:
    return say(id, "tool", WORDS, tool_call_id=answered)


def talk(chat: tape.Tape, *ids: str) -> None:
    chat.extend(say(id) for id in ids)


def shown(chat: tape.Tape) -> list[str]:
    return ["summary" if m.id.startswith(RESERVED) else m.id for m in chat.context().messages]


def compacted(chat: tape.Tape, **options: Any) -> list[str] | None:
    """Compact with nothing protected but what is asked for, and return what the new summary covers."""
    receipt = chat.compact(lambda request: "in short", **{"budget": 0, "head": 1, "min_tail": 1, **options})
    if receipt is None:
        return None
    return next(one.covers for one in chat.summaries() if one.seq == receipt.seq)


def states(chat: tape.Tape) -> list[str]:
    events = chat.entries(kinds=["event"])
    return [entry.payload.data["state"] for entry in events]  # type: ignore[union-attr]


class TestRuns:
    """What is summarised is a run that the commit accepts."""

    def test_a_user_may_speak_between_a_call_and_its_result(self, chat: tape.Tape) -> None:
        """The run has the call, what was said meanwhile, and the result; or, if the result is in the tail, neither."""
        chat.extend([say("u0"), call("a", "c"), say("u1"), say("u2"), result("r", "c"), say("u3"), say("u4")])
        assert compacted(chat, min_tail=2) == ["a", "u1", "u2", "r"]

    def test_a_result_in_the_tail_keeps_only_its_call_out(self, chat: tape.Tape) -> None:
        """What was said between a call and its late result is summarised without them."""
        chat.extend([say("u0"), call("a", "c"), say("u1"), say("u2"), say("u3"), result("r", "c")])
        assert compacted(chat) == ["u1", "u2", "u3"]
        assert shown(chat) == ["u0", "a", "summary", "r"]

    def test_a_result_whose_call_is_in_the_head_stays_with_it(self, chat: tape.Tape) -> None:
        """Also where it comes in the middle of what could be summarised: the larger side is."""
        chat.extend([call("a", "c", "d"), result("rd", "d"), say("u1"), say("u2"), result("rc", "c")])
        talk(chat, "u3", "u4", "u5", "u6")
        assert compacted(chat) == ["u3", "u4", "u5"]
        assert compacted(chat) == ["u1", "u2"]
        assert shown(chat) == ["a", "rd", "summary", "rc", "summary", "u6"]

    def test_a_call_without_a_result_is_left_alone(self, chat: tape.Tape) -> None:
        """The runs before and behind it are summarised, one after the other."""
        chat.extend([say("u0"), say("u1"), say("u2"), call("a", "c"), say("u3"), say("u4"), say("u5"), say("u6")])
        assert compacted(chat) == ["u3", "u4", "u5"]
        assert compacted(chat) == ["u1", "u2"]
        assert compacted(chat) is None
        assert shown(chat) == ["u0", "summary", "a", "summary", "u6"]

    def test_a_call_settled_inside_its_message_is_no_open_call(self, chat: tape.Tape) -> None:
        """AI-SDK parts and server tools carry their results with them."""
        done = {"type": "tool-weather", "toolCallId": "w", "state": "output-available", "input": {}, "output": "sun"}
        searched = [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        ]
        chat.extend([say("u0"), say("a", "assistant", None, parts=[done]), say("b", "assistant", searched)])
        talk(chat, "u1", "u2")
        assert compacted(chat) == ["a", "b", "u1"]

    def test_a_message_restored_into_a_summarised_run_is_taken_in(self, chat: tape.Tape) -> None:
        """The new summary is made of the old one and of the message, and covers both."""
        talk(chat, *(f"u{n}" for n in range(6)))
        chat.retract("u2")
        chat.set_summary("old", first="u1", last="u3")
        chat.restore("u2")
        requests: list[tape.SummaryRequest] = []

        def summarize(request: tape.SummaryRequest) -> str:
            requests.append(request)
            return "new"

        assert chat.compact(summarize, budget=0, head=1, min_tail=1) is not None
        assert [message.id for message in requests[0].messages] == ["u2", "u4"]
        assert requests[0].previous == "old"
        assert chat.summaries()[0].covers == ["u1", "u2", "u3", "u4"]

    def test_what_is_protected_never_cuts_a_summarised_run(self, chat: tape.Tape) -> None:
        """A summary in the head stays there with the message that came back into its run."""
        talk(chat, *(f"u{n}" for n in range(8)))
        chat.retract("u2")
        chat.set_summary("old", first="u0", last="u3")
        chat.restore("u2")
        assert compacted(chat) == ["u4", "u5", "u6"]
        assert shown(chat) == ["summary", "u2", "summary", "u7"]

    def test_an_anchor_inside_a_summarised_run_ends_the_summary(self, chat: tape.Tape) -> None:
        """Behind the anchor nothing of it is in force: not in the context, not in the list, not for the next one."""
        talk(chat, *(f"u{n}" for n in range(8)))
        chat.set_summary("old", first="u1", last="u4")
        chat.switch("u2")
        chat.anchor("here")
        chat.switch("u7")
        assert shown(chat) == ["u3", "u4", "u5", "u6", "u7"]
        assert chat.summaries() == []
        assert chat.summary() is None
        assert compacted(chat) == ["u4", "u5", "u6"]

    def test_a_result_whose_call_is_before_the_anchor_is_left_alone(self, chat: tape.Tape) -> None:
        """As when a model sets the anchor by a tool call."""
        chat.extend([say("u0"), call("a", "c")])
        chat.anchor("here")
        chat.extend([say("u1"), say("u2"), result("r", "c"), say("u3"), say("u4"), say("u5")])
        assert compacted(chat, head=0) == ["u1", "u2"]
        assert compacted(chat, head=0) == ["u3", "u4"]
        assert compacted(chat, head=0) is None

    def test_parallel_calls_are_taken_with_all_of_their_results(self, chat: tape.Tape) -> None:
        """A message that makes three calls is summarised with the last of the three results, or not at all."""
        chat.extend([say("u0"), say("u1"), call("a", "c", "d", "e"), result("rc", "c"), result("rd", "d"), say("u2")])
        chat.extend([result("re", "e"), say("u3")])
        assert compacted(chat) == ["u1", "a", "rc", "rd", "u2", "re"]

    def test_a_revision_that_makes_a_call_ties_what_answers_it(self, chat: tape.Tape) -> None:
        """The result was bound to nothing, but the context shows the two as a pair."""
        chat.extend([say("u0"), say("a", "assistant"), say("u1"), say("u2"), result("r", "c"), say("u3")])
        chat.revise("a", call("a", "c"))
        before = chat.context().repairs
        compacted(chat, min_tail=2)
        assert chat.context().repairs == before

    def test_one_message_alone_is_not_worth_a_summary(self, chat: tape.Tape) -> None:
        """Summarising comes to an end: every compaction leaves fewer messages to show than before."""
        talk(chat, *(f"u{n}" for n in range(40)))
        sizes = [len(shown(chat))]
        while compacted(chat) is not None:
            sizes.append(len(shown(chat)))
            assert sizes[-1] < sizes[-2]
        assert sizes == [40, 3]
        assert shown(chat) == ["u0", "summary", "u39"]

    def test_a_fork_does_not_wait_for_a_compaction_of_its_parent(self, chat: tape.Tape) -> None:
        """Made while the parent compacts, it can compact at once."""
        talk(chat, *(f"u{n}" for n in range(8)))
        made: list[list[str] | None] = []

        def summarize(request: tape.SummaryRequest) -> str:
            made.append(compacted(chat.fork("child")))
            return "parent"

        assert chat.compact(summarize, budget=0, head=1, min_tail=1) is not None
        assert made == [["u1", "u2", "u3", "u4", "u5", "u6"]]


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

    def test_compaction_never_raises_and_leaves_a_valid_context(self, standing: Backend) -> None:
        """With late results, open calls, anchors, retractions, clears, branches, forks and earlier summaries."""
        seeds = range(15) if standing.postgres else range(60)
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


# -- how much of a summary is shown


class TestSize:
    """What is accepted as a summary is shown whole."""

    @pytest.mark.parametrize("what", ["asked", "twice", "spaces", "wide"])
    def test_15_an_accepted_summary_is_shown_with_its_last_line(self, chat: tape.Tape, what: str) -> None:
        """The open items stand at the end of a summary, and are what the next turn needs."""
        chat.extend(say(f"u{n}", content="word " * 5_000) for n in range(30))
        texts: list[str] = []

        def summarize(request: tape.SummaryRequest) -> str:
            assert request.max_tokens == 4_000
            piece = {"spaces": "a" + " " * 30, "wide": "東"}.get(what, "word ")
            end = "\nOpen items: book the hotel."
            times = 1
            limit = request.max_tokens * (1 if what == "asked" else 2) - estimate(end) - 10
            while times < 40_000 and estimate(piece * (times + 100)) <= limit:
                times += 100
            texts.append((piece * times)[: 40_000 - len(end)] + end)
            return texts[0]

        assert chat.compact(summarize, budget=100) is not None
        assert len(texts[0]) > 7_500
        content = str(chat.context().to_openai())
        assert "Open items: book the hotel." in content
        assert "characters cut]" not in content
        assert chat.summaries()[0].text == texts[0]

    def test_15_a_summary_too_long_to_be_shown_is_not_accepted(self, backend: Backend) -> None:
        """Also where a counter of the caller's finds it short."""
        chat = backend.open(counter=lambda text: 1).tape("chat")
        talk(chat, *(f"u{n}" for n in range(30)))
        with pytest.raises(tape.InvalidEntry):
            chat.compact(lambda request: "x" * 40_001, budget=5)
        assert states(chat) == ["started", "failed"]
        assert chat.compact(lambda request: "x" * 40_000, budget=5) is not None
        assert "characters cut]" not in str(chat.context().to_openai())

    def test_c4_a_longer_one_given_directly_is_cut_with_a_mark(self, chat: tape.Tape) -> None:
        """No summary floods the prompt, and a handoff keeps its own smaller cap."""
        talk(chat, "u0", "u1", "u2")
        chat.set_summary("x" * 100_000, first="u0", last="u1")
        text = chat.context().messages[0].content
        assert "characters cut]" in text
        assert len(text) < 41_000
        chat.handoff("next", summary="y" * 100_000)
        told = chat.context().to_openai()[0]["content"]
        assert "characters cut]" in told
        assert len(told) < 5_000


# -- summarizers that are awaited, and cancelled


async def filled(store: tape.AsyncStore) -> tape.AsyncTape:
    chat = store.tape("chat")
    await chat.extend([say(f"u{n}") for n in range(20)])
    return chat


async def states_of(chat: tape.AsyncTape) -> list[str]:
    return [entry.payload.data["state"] async for entry in chat.entries(kinds=["event"])]  # type: ignore[union-attr]


class TestAwaited:
    """From the async twin a summarizer runs on the loop of whoever awaits."""

    @pytest.mark.parametrize("how", ["function", "partial", "object", "lambda"])
    def test_13_a_coroutine_runs_on_the_callers_loop(self, backend: Backend, how: str) -> None:
        """So that it can use clients, locks and queues that belong to that loop."""

        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = await filled(store)
                queue: asyncio.Queue[str] = asyncio.Queue()
                loops: list[asyncio.AbstractEventLoop] = []

                async def summarize(request: tape.SummaryRequest, *, more: str = "") -> str:
                    loops.append(asyncio.get_running_loop())
                    # The reader of a queue is woken on the loop that it waits on.
                    return await queue.get()

                class Summarizer:
                    async def __call__(self, request: tape.SummaryRequest) -> str:
                        return await summarize(request)

                given: dict[str, Any] = {
                    "function": summarize,
                    "partial": functools.partial(summarize, more="x"),
                    "object": Summarizer(),
                    "lambda": lambda request: summarize(request),
                }
                task = asyncio.create_task(chat.compact(given[how], budget=60, timeout=20))
                while not loops:
                    await asyncio.sleep(0.001)
                queue.put_nowait("in short")
                assert await task is not None
                assert loops == [asyncio.get_running_loop()]
                summary = await chat.summary()
                assert summary is not None
                assert summary.text == "in short"

        asyncio.run(main())

    def test_13_it_may_use_the_store_itself(self, backend: Backend) -> None:
        """A summarizer that reads the tape needs a thread of the store, and no compaction holds one meanwhile."""

        async def main() -> None:
            async with tape.open_async(backend.url, threads=1, **backend.options) as store:
                chat = await filled(store)

                async def summarize(request: tape.SummaryRequest) -> str:
                    return f"of {len(await chat.messages())}"

                assert await chat.compact(summarize, budget=60, timeout=20) is not None
                summary = await chat.summary()
                assert summary is not None
                assert summary.text == "of 20"

        asyncio.run(main())

    def test_a_plain_function_does_not_hold_up_the_loop(self, backend: Backend) -> None:
        """It runs in a thread, so that other tasks go on."""

        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = await filled(store)
                release = threading.Event()
                begun = asyncio.Event()
                loop = asyncio.get_running_loop()

                def summarize(request: tape.SummaryRequest) -> str:
                    loop.call_soon_threadsafe(begun.set)
                    assert release.wait(20)
                    return "in short"

                task = asyncio.create_task(chat.compact(summarize, budget=60, timeout=20))
                await begun.wait()
                release.set()
                assert await task is not None

        asyncio.run(main())

    @pytest.mark.parametrize("how", ["raises", "hangs", "nothing", "cancels itself", "hangs in a thread"])
    def test_a10_a_failing_one_changes_nothing(self, backend: Backend, how: str) -> None:
        """It is recorded as failed, the caller gets a TapeError, and the next compaction starts at once."""

        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = await filled(store)
                release = threading.Event()

                async def summarize(request: tape.SummaryRequest) -> Any:
                    if how == "raises":
                        raise StopIteration("no model \ud800")
                    if how == "hangs":
                        await asyncio.sleep(3600)
                    if how == "cancels itself":
                        raise asyncio.CancelledError
                    return None

                def hang(request: tape.SummaryRequest) -> str:
                    release.wait(20)
                    return "late"

                given: Any = hang if how == "hangs in a thread" else summarize
                with pytest.raises(tape.InvalidEntry):
                    await chat.compact(given, budget=60, timeout=0.1 if "hangs" in how else 20)
                release.set()
                assert await states_of(chat) == ["started", "failed"]
                assert await chat.compact(lambda request: "fine", budget=60) is not None

        asyncio.run(main())


class Interrupted(BaseException):
    """Something that is no error of the summarizer's, as an exit or an interrupt."""


class TestReleased:
    """Whatever ends a summarizer, the next compaction can start at once."""

    @pytest.mark.parametrize("kind", ["coroutine", "thread"])
    def test_26_a_cancelled_compaction_is_recorded_as_failed(self, backend: Backend, kind: str) -> None:
        """Once the cancelled task has ended, another compaction finds nothing under way."""

        async def main() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = await filled(store)
                loop = asyncio.get_running_loop()
                begun, release = asyncio.Event(), threading.Event()

                async def summarize(request: tape.SummaryRequest) -> str:
                    begun.set()
                    await asyncio.sleep(3600)
                    return "never"

                def wait(request: tape.SummaryRequest) -> str:
                    loop.call_soon_threadsafe(begun.set)
                    release.wait(20)
                    return "late"

                task = asyncio.create_task(chat.compact(summarize if kind == "coroutine" else wait, budget=60))
                await begun.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert await states_of(chat) == ["started", "failed"]
                assert await chat.compact(lambda request: "fine", budget=60) is not None
                release.set()
                assert [one.text for one in await chat.summaries()] == ["fine"]

        asyncio.run(main())

    def test_26_cancelled_at_every_await_it_is_never_left_under_way(self, standing: Backend) -> None:
        """However many turns of the loop it was given, and however often it is cancelled."""

        async def main() -> None:
            async with tape.open_async(standing.url, **standing.options) as store:
                for turns in range(40):
                    chat = store.tape(f"turns{turns}")
                    await chat.extend([say(f"u{n}") for n in range(20)])

                    async def summarize(request: tape.SummaryRequest) -> str:
                        await asyncio.sleep(0)
                        return "done"

                    task = asyncio.create_task(chat.compact(summarize, budget=60))
                    for _ in range(turns):
                        await asyncio.sleep(0 if turns < 30 else 0.0005)
                    while not task.done():
                        task.cancel()
                        await asyncio.sleep(0)
                    if not task.cancelled():
                        assert task.result() is not None
                    told = await states_of(chat)
                    assert told in ([], ["started", "failed"], ["started", "finished"]), turns
                    if "finished" not in told:
                        assert await chat.compact(lambda request: "fine", budget=60) is not None, turns
                    assert len(await chat.summaries()) == 1

        asyncio.run(main())

    @pytest.mark.parametrize("error", [Interrupted, SystemExit, asyncio.CancelledError, StopIteration])
    def test_26_whatever_a_summarizer_raises_is_recorded(self, chat: tape.Tape, error: type[BaseException]) -> None:
        """An exit goes on to the caller; everything else is an error of the summarizer."""
        talk(chat, *(f"u{n}" for n in range(20)))

        async def summarize(request: tape.SummaryRequest) -> str:
            raise error()

        wanted = error if error in (Interrupted, SystemExit) else tape.InvalidEntry
        with pytest.raises(wanted):
            chat.compact(summarize, budget=60)
        assert states(chat) == ["started", "failed"]
        assert chat.compact(lambda request: "fine", budget=60) is not None

    def test_26_an_interrupt_releases_the_branch(self, chat: tape.Tape) -> None:
        """Ctrl-C while the model is asked leaves nothing under way."""
        talk(chat, *(f"u{n}" for n in range(20)))
        release = threading.Event()

        def summarize(request: tape.SummaryRequest) -> str:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            release.wait(20)
            return "late"

        with pytest.raises(KeyboardInterrupt):
            chat.compact(summarize, budget=60, timeout=20)
        release.set()
        assert states(chat) == ["started", "failed"]
        assert chat.compact(lambda request: "fine", budget=60) is not None

    @pytest.mark.parametrize("ending", ["raises", "returns"])
    def test_26_a_branch_left_meanwhile_is_released_too(self, chat: tape.Tape, ending: str) -> None:
        """The end is recorded for the branch that it began on, wherever the head is by then."""
        talk(chat, *(f"u{n}" for n in range(20)))

        def summarize(request: tape.SummaryRequest) -> str:
            chat.append(role="assistant", content="again", id="other", parent="u1")
            if ending == "raises":
                raise RuntimeError("no model")
            return "in short"

        with pytest.raises(tape.TapeError):
            chat.compact(summarize, budget=60)
        chat.switch("u19")
        assert chat.compact(lambda request: "fine", budget=60) is not None

    def test_26_an_error_that_cannot_be_written_down_is_recorded(self, chat: tape.Tape) -> None:
        """What it says may be no text that a tape can hold."""
        talk(chat, *(f"u{n}" for n in range(20)))

        class Unspeakable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        def summarize(request: tape.SummaryRequest) -> str:
            raise errors.pop()

        errors: list[Exception] = [Unspeakable(), ValueError("half a character: \ud800, and none: \0")]
        for _ in range(2):
            with pytest.raises(tape.InvalidEntry):
                chat.compact(summarize, budget=60)
        assert states(chat) == ["started", "failed"] * 2
        assert chat.compact(lambda request: "fine", budget=60) is not None
