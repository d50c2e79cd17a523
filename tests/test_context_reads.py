"""What a context reads of a tape: as much as its budget needs, and it shows the same as if it had read all."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from support.backends import Backend
from support.contexts import Meddling
from support.sizes import heavy, size

import tape
from tape.core.context import window
from tape.core.context.build import ContextInputs, build
from tape.core.context.policy import Item, Shaped, Standard
from tape.core.context.turns import turn_facts, turn_starts
from tape.core.context.weigh import Scale
from tape.core.context.window import Spot, reach
from tape.core.entries import payloads
from tape.core.records import Message


def exchange(number: int) -> list[dict[str, Any]]:
    """Return a turn with a tool call in it."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"id": f"u{number}", "role": "user", "content": f"question {number} " + "word " * 10},
        {"id": f"a{number}", "role": "assistant", "content": None, "tool_calls": [call]},
        {"id": f"t{number}", "role": "tool", "tool_call_id": f"c{number}", "content": f"result {number} " * 100},
        {"id": f"s{number}", "role": "assistant", "content": f"answer {number}"},
    ]


def turns(chat: tape.Tape, count: int, first: int = 0) -> None:
    """Append so many turns."""
    chat.extend(message for number in range(first, first + count) for message in exchange(number))


class Counted:
    """How many bodies of messages are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = payloads.decode_body

        def decode_body(raw: bytes) -> Any:
            self.count += 1
            return real(raw)

        monkeypatch.setattr(payloads, "decode_body", decode_body)

    def during(self, work: Callable[[], Any]) -> int:
        """Return how many are decoded in the course of something."""
        before = self.count
        work()
        return self.count - before


@pytest.mark.alike
class TestBounds:
    def test_what_a_context_reads_depends_on_its_budget(
        self, store: tape.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a long tape without an anchor no more messages are decoded than on a short one, and few."""
        short, long = store.tape("short"), store.tape("long")
        turns(short, 80)
        turns(long, 400)
        counted = Counted(monkeypatch)
        for budget in (400, 2_000, 4_000):
            few = counted.during(partial(short.context, budget=budget))
            many = counted.during(partial(long.context, budget=budget))
            assert many <= few
            assert many <= max(150, budget // 10)

    def test_a_manifest_is_small(self, store: tape.Store) -> None:
        """What is out stands there as ranges, however much it is, also where turns were dropped one by one."""
        chat = store.tape("chat")
        turns(chat, 300)
        for number in range(0, 270, 7):
            chat.retract(f"s{number}")
        for budget in (400, 2_000, 4_000):
            manifest = chat.context(budget=budget).manifest
            assert len(manifest.excluded) <= 3
            assert len(msgspec.json.encode(manifest)) < 20_000

    @pytest.mark.parametrize("before", [0, 30])
    def test_a_turn_that_never_ends_is_not_read_whole(
        self, store: tape.Store, monkeypatch: pytest.MonkeyPatch, before: int
    ) -> None:
        """Its last steps are read, and what the user asked for, however many turns are before it."""
        chat = store.tape("chat")
        turns(chat, before, 1_000)
        chat.append(role="user", content="go", id="go")
        chat.extend(message for number in range(300) for message in exchange(number)[1:3])
        counted = Counted(monkeypatch)
        assert counted.during(lambda: chat.context(budget=2_000)) < 200
        context = chat.context(budget=2_000)
        assert [context.messages[0].id, context.messages[-1].id] == ["go", "t299"]
        assert seen(context) == seen(chat.context(budget=2_000, policy=Whole(Standard())))
        assert len(context.manifest.excluded) == (2 if before else 1)
        chat.append(role="user", content="and then?")
        assert counted.during(lambda: chat.context(budget=2_000)) < 400
        assert chat.context(budget=2_000).messages[-1].content == "and then?"

    def test_an_orphan_result_near_the_end_costs_no_more(
        self, store: tape.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether anybody made the call is looked up, not searched for."""
        chat = store.tape("chat")
        turns(chat, 250)
        chat.append(role="user", content="odd")
        chat.append({"role": "tool", "tool_call_id": "nobody", "content": "x"})
        chat.append(role="user", content="go on")
        counted = Counted(monkeypatch)
        assert counted.during(lambda: chat.context(budget=1_000)) < 200
        assert [one.what for one in chat.context(budget=1_000).repairs] == ["orphan result"]

    def test_a_call_answered_much_later_holds_its_turns_together(self, store: tape.Store) -> None:
        """A result near the end whose call was made long ago: neither is shown without the other."""
        chat = store.tape("chat")
        turns(chat, 50)
        chat.append({"role": "assistant", "content": None, "tool_calls": [{"id": "late", "function": {}}]})
        turns(chat, 50, 50)
        chat.append(role="user", content="so?")
        chat.append({"role": "tool", "tool_call_id": "late", "content": "here"})
        chat.append(role="user", content="go on")
        context = chat.context(budget=1_000)
        assert context.messages[-1].content == "go on"
        assert context.repairs == []
        assert [message.id for message in context.messages[:4]] == ["u0", "a0", "t0", "s0"]
        assert len(context.messages) == 5

    def test_a_call_of_the_head_answered_much_later_takes_the_head_with_it(self, store: tape.Store) -> None:
        """The protected head goes when its call's result cannot stay."""
        chat = store.tape("chat")
        chat.append(role="user", content="begin")
        chat.append({"role": "assistant", "content": None, "tool_calls": [{"id": "late", "function": {}}]})
        turns(chat, 50)
        chat.append({"role": "tool", "tool_call_id": "late", "content": "here"})
        turns(chat, 50, 50)
        context = chat.context(budget=1_000)
        assert context.repairs == []
        assert [message.id for message in context.messages] == ["u99", "a99", "t99", "s99"]

    def test_a_result_that_came_while_its_call_was_out_still_belongs_to_it(self, store: tape.Store) -> None:
        """It was bound to nothing then; now that the call is back, neither is shown without the other."""
        call = {"role": "assistant", "content": None, "tool_calls": [{"id": "early", "function": {}}]}
        for name in ("cleared", "retracted"):
            chat = store.tape(name)
            chat.append(role="user", content="begin")
            chat.append(call, id="early")
            turns(chat, 20)
            if name == "cleared":
                chat.clear()
            else:
                chat.retract("early")
            chat.append({"role": "tool", "tool_call_id": "early", "content": "here"})
            chat.restore(*(() if name == "cleared" else ("early",)))
            turns(chat, 30, 20)
            context = chat.context(budget=1_000)
            assert context.repairs == []
            assert "early" not in [message.id for message in context.messages]

    def test_a_call_that_was_streamed_costs_no_more(self, store: tape.Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """A message that was revised until it made its call, and once more at the end, is no reason to read it all."""
        chat = store.tape("chat")
        chat.append(role="user", content="begin")
        for text in ("I", "I will", "I will look"):
            chat.upsert({"id": "early", "role": "assistant", "content": text})
        call = {"role": "assistant", "content": "I will look", "tool_calls": [{"id": "early", "function": {}}]}
        chat.upsert({"id": "early", **call})
        chat.append({"role": "tool", "tool_call_id": "early", "content": "here"})
        turns(chat, 250)
        chat.upsert({"id": "early", **call, "content": "I looked"})
        counted = Counted(monkeypatch)
        assert counted.during(lambda: chat.context(budget=1_000)) < 200
        assert [message.id for message in chat.context(budget=1_000).messages][1] == "early"

    @pytest.mark.parametrize("shape", ["fork", "branches", "retracted", "revised", "summaries"])
    def test_the_bound_holds_on_every_shape_of_path(
        self, store: tape.Store, monkeypatch: pytest.MonkeyPatch, shape: str
    ) -> None:
        """Forks of forks, many branches, long gaps, revisions and summaries cost no more for being long."""

        def made(name: str, scale: int) -> tape.Tape:
            chat = store.tape(name)
            if shape == "fork":
                for number in range(5):
                    turns(chat, scale, scale * number)
                    chat = chat.fork(f"{name}-{number}")
                    chat.append(role="user", content="on", id=f"on{number}")
            elif shape == "branches":
                for number in range(scale):
                    turns(chat, 2, 2 * number)
                    chat.append(role="assistant", content="again", parent=f"t{2 * number + 1}")
            elif shape == "retracted":
                turns(chat, scale)
                turns(chat, scale, scale)
                chat.retract(*(f"u{n}" for n in range(scale, 2 * scale - 1)))
                chat.retract(*(f"a{n}" for n in range(scale, 2 * scale - 1)))
                chat.retract(*(f"s{n}" for n in range(scale, 2 * scale - 1)))
            elif shape == "revised":
                turns(chat, scale)
                for number in range(0, scale, 2):
                    chat.revise(f"s{number}", content="revised")
            else:
                for number in range(4):
                    turns(chat, scale, scale * number)
                    before = chat.summary()
                    first, last = f"u{scale * number + 1}", f"s{scale * number + scale // 2}"
                    chat.set_summary("sum", first=first, last=last, expected=before.seq if before else None)
            return chat

        short, long = made("short", 12), made("long", 90)
        counted = Counted(monkeypatch)
        few = counted.during(lambda: short.context(budget=1_500))
        many = counted.during(lambda: long.context(budget=1_500))
        assert many <= few * 1.5 + 16
        whole = long.context(budget=1_500, policy=Meddling(lambda: None, times=0))
        assert [m.id for m in long.context(budget=1_500).messages] == [m.id for m in whole.messages]
        assert len(msgspec.json.encode(long.context(budget=1_500).manifest)) < 20_000


# -- what is read in part gives what the whole would give


class Listed:
    """A window over a list of messages, which counts how much of it was read."""

    def __init__(self, items: list[Item]) -> None:
        self.spots = [Spot(item, depth) for depth, item in enumerate(items, start=1)]
        self.low, self.high = 0, len(items)

    def whole(self) -> bool:
        return self.low >= self.high

    def newest(self, count: int) -> list[Spot]:
        high, self.high = self.high, max(self.high - count, self.low)
        return self.spots[self.high : high]

    def oldest(self, count: int) -> list[Spot]:
        low, self.low = self.low, min(self.low + count, self.high)
        return self.spots[low : self.low]

    def made(self, call: str) -> bool:
        return any(call in one.facts.calls for one in self.spots[: self.high])

    def request(self) -> Spot | None:
        return next((one for one in reversed(self.spots[: self.high]) if one.facts.begins), None)

    def answers(self, makers: Sequence[Spot], below: int) -> list[Spot]:
        """Return what a tape would have recorded: each result is bound to the last call before it."""
        depths = {one.depth for one in makers}
        last: dict[str, int] = {}
        found = []
        for one in self.spots:
            last.update((call, one.depth) for call in one.facts.calls)
            if one.depth > below and any(last.get(call) in depths for call in one.facts.results):
                found.append(one)
        return found


_ids = st.sampled_from(["a", "b", "c", "d"])
_words = st.sampled_from(["hi", "hello there", "word " * 20, "x" * 300, "y" * 900])


@st.composite
def _message(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["user", "user", "say", "say", "call", "result", "result", "both", "item", "output"]))
    call, text = draw(_ids), draw(_words)
    made = {"id": call, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    shapes: dict[str, dict[str, Any]] = {
        "user": {"role": "user", "content": text},
        "say": {"role": "assistant", "content": text},
        "call": {"role": "assistant", "content": None, "tool_calls": [made]},
        "result": {"role": "tool", "tool_call_id": call, "content": text},
        "both": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]},
        "item": {"type": "function_call", "call_id": call, "name": "f", "arguments": "{}"},
        "output": {"type": "function_call_output", "call_id": call, "output": {"rows": [text, text]}},
    }
    return shapes[kind]


_policies = st.builds(
    Standard, head=st.integers(0, 6), recent=st.integers(0, 6), tool_chars=st.sampled_from([10, 100, 500])
)


def same(
    whole: Callable[[], Any],
    part: Callable[[], Any],
    budget: int,
    show: Callable[[Any], Any] = lambda found: found,
    what: str = "",
) -> tuple[Any, Any] | None:
    """Return both contexts, which show the same, or None when both are refused; the part tells at least how much."""
    found: list[Any] = []
    for make in (whole, part):
        try:
            found.append(make())
        except tape.BudgetExceeded as error:
            found.append(error)
    if isinstance(found[0], tape.BudgetExceeded):
        if not isinstance(found[1], tape.BudgetExceeded):
            # The whole counts the numbers behind ids that were used before, also where those are dropped in the end.
            assert found[0].tokens <= budget + 10, what
            return None
        assert budget < found[1].tokens <= found[0].tokens, what
        return None
    assert show(found[1]) == show(found[0]), what
    return found[0], found[1]


class TestSameAsWhole:
    @heavy
    @given(st.lists(_message(), max_size=40), st.integers(1, 700), _policies, st.integers(1, 9), st.integers(1, 5))
    @settings(max_examples=size(40, 480), deadline=None)
    def test_reading_the_ends_gives_what_reading_all_gives(
        self, messages: list[dict[str, Any]], budget: int, policy: Standard, stretch: int, head: int
    ) -> None:
        """Whatever the history, the budget, the policy and the stretches in which it is read."""
        items = [Item(Message(f"m{n}", "t", data, None, n + 2, n + 2, 0), 0) for n, data in enumerate(messages)]
        scale = Scale(None)
        scale.price(items)

        def cost(message: Message) -> int:
            return scale.alone(message.data)

        def shaped(items: list[Item], gap: int | None, one_turn: bool = False) -> Any:
            given = [Item(item.message, 0) for item in items]
            context = build(
                ContextInputs(given, None, [], [], None, False, 0, "t", gap, one_turn=one_turn, scale=scale),
                budget,
                policy,
                None,
            )
            return context.messages, context.tokens

        def ends() -> Any:
            reached = reach(Listed(items), policy, budget, cost)
            return shaped([one.item for one in reached.spots], reached.gap, reached.one_turn)

        with mock.patch.multiple(window, FIRST_STRETCH=stretch, HEAD_STRETCH=head, LONGEST_STRETCH=3 * stretch):
            same(lambda: shaped(items, None), ends, budget)

    @heavy
    @given(st.lists(_message(), max_size=14))
    @settings(max_examples=size(30, 360), deadline=None)
    def test_no_turn_parts_a_call_from_its_result(self, messages: list[dict[str, Any]]) -> None:
        """A result is in the turn of the last call before it, also where turns interlock."""
        told = [turn_facts(message) for message in messages]
        starts = turn_starts(told)
        makers: dict[str, int] = {}
        for index, one in enumerate(told):
            makers.update(dict.fromkeys(one.calls, index))
            for call in one.results & makers.keys():
                assert not any(makers[call] < start <= index for start in starts)


class Whole(msgspec.Struct):
    """The standard policy in another's clothes, so that everything is read."""

    of: Standard

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def version(self) -> int:
        return self.of.version

    def shape(self, items: list[Item], budget: int | None, cost: Callable[[Message], int]) -> Shaped:
        return self.of.shape(items, budget, cost)


class Story:
    """A random history on a family of tapes."""

    def __init__(self, store: tape.Store, seed: int) -> None:
        self.random = random.Random(seed)
        self.name = f"story{seed}"
        self.tapes = [store.create(self.name)]
        self.numbers = itertools.count()
        self.calls: list[str] = []

    @property
    def chat(self) -> tape.Tape:
        return self.tapes[-1]

    def run(self, steps: int) -> None:
        """Do so many things; what a tape refuses is not done."""
        verbs = [
            (30, self.turn),
            (8, self.say),
            (6, self.late),
            (6, self.branch),
            (5, self.retract),
            (5, self.restore),
            (6, self.revise),
            (6, self.summarise),
            (2, self.anchor),
            (3, self.fork),
            (2, self.note),
            (1, self.clear),
            (2, self.switch),
        ]
        for _ in range(steps):
            verb = self.random.choices([verb for _, verb in verbs], [weight for weight, _ in verbs])[0]
            if not self.chat.messages():
                self.turn()
            with contextlib.suppress(tape.TapeError):
                verb()

    def _id(self) -> str:
        return f"m{next(self.numbers)}"

    def _text(self) -> str:
        return self.random.choice(["ok", "some words here", "word " * 30, "z" * 700])

    def _any(self) -> str:
        return self.random.choice(self.chat.messages()).id

    def _call(self) -> dict[str, Any]:
        call = f"c{next(self.numbers)}"
        self.calls.append(call)
        return {"id": call, "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def _result(self, call: str) -> dict[str, Any]:
        return {"id": self._id(), "role": "tool", "tool_call_id": call, "content": self._text()}

    def say(self) -> None:
        self.chat.append(role=self.random.choice(["user", "assistant"]), content=self._text(), id=self._id())

    def turn(self) -> None:
        made: list[dict[str, Any]] = [{"id": self._id(), "role": "user", "content": self._text()}]
        for _ in range(self.random.randint(0, 3)):
            call = self._call()
            made.append({"id": self._id(), "role": "assistant", "content": None, "tool_calls": [call]})
            if self.random.random() < 0.85:
                made.append(self._result(call["id"]))
        self.chat.extend(made)

    def late(self) -> None:
        known = self.random.random() < 0.8 and self.calls
        self.chat.append(self._result(self.random.choice(self.calls) if known else f"nobody{next(self.numbers)}"))

    def branch(self) -> None:
        self.chat.append(role="assistant", content=self._text(), id=self._id(), parent=self._any())

    def switch(self) -> None:
        self.chat.switch(self.random.choice(self.chat.heads()).id)

    def retract(self) -> None:
        self.chat.retract(*{self._any() for _ in range(self.random.randint(1, 4))})

    def restore(self) -> None:
        taken = [entry.payload for entry in self.chat.entries(kinds=["retract", "clear"])]
        if taken:
            payload = self.random.choice(taken)
            self.chat.restore(*(payload.ids if isinstance(payload, payloads.Retract) else ()))

    def revise(self) -> None:
        message = self.chat.message(self._any())
        if "tool_calls" in message.data and self.random.random() < 0.5:
            self.chat.revise(message.id, {"role": "assistant", "content": "no call after all"})
        else:
            self.chat.revise(message.id, content=self._text())

    def summarise(self) -> None:
        messages = self.chat.context().messages or self.chat.messages()
        first = self.random.randrange(len(messages))
        last = min(first + self.random.randint(1, 12), len(messages) - 1)
        newest = self.chat.summary()
        self.chat.set_summary(
            "in short", first=messages[first].id, last=messages[last].id, expected=newest.seq if newest else None
        )

    def anchor(self) -> None:
        self.chat.handoff(f"h{next(self.numbers)}", summary="so far", source_ids=[self._any()])

    def note(self) -> None:
        self.chat.event("note")
        self.chat.set_block("memory", self._text())

    def clear(self) -> None:
        self.chat.clear()

    def fork(self) -> None:
        at: Any = self.random.choice([None, self._any()])
        self.tapes.append(self.chat.fork(f"{self.name}-{len(self.tapes)}", at=at))


def seen(context: tape.Context) -> Any:
    """Return all that a context shows."""
    return (
        [(one.id, one.tape, one.data, one.parent, one.seq, one.revision) for one in context.messages],
        context.tokens,
        context.repairs,
        context.manifest.hash,
        context.manifest.included,
    )


def accounted(chat: Any, context: tape.Context) -> None:
    """Every message and summary of the window is in or out."""
    everything = chat.context()
    shown = {(one.tape, one.seq) for one in context.messages}
    assert len(shown) == len(context.messages)
    for message in everything.messages:
        at = (message.tape, message.seq)
        out = [one for one in context.manifest.excluded if one.tape == at[0] and one.first <= at[1] <= one.last]
        assert at in shown or any(one.why == "over budget" for one in out), (at, context.manifest.excluded)


@pytest.mark.alike
class TestStories:
    @heavy
    @pytest.mark.parametrize("number", range(6))
    def test_a_budget_gives_the_same_on_every_history(
        self, guest: tape.Store, standing: Backend, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """With tools, turns, summaries, anchors, branches, forks, retractions, revisions and clears, now and before."""
        # The rules are the same on both engines, so that of the slower one fewer histories show its statements.
        many = size(1, 2) if standing.postgres else size(1, 10)
        for seed in range(number * many, (number + 1) * many):
            with monkeypatch.context() as patch:
                story = Story(guest, seed)
                story.run(50)
                patch.setattr(window, "FIRST_STRETCH", 2 + seed % 5)
                patch.setattr(window, "HEAD_STRETCH", 1 + seed % 3)
                patch.setattr("tape.db.read.window._SPAN", 1 + seed % 7)
                views: list[Any] = [*story.tapes[-2:]]
                views += [chat.at(story.random.randint(1, chat.info().head)) for chat in story.tapes[-3:]]
                for chat in views:
                    for _ in range(4):
                        self.compare(chat, story.random, f"seed {seed}")

    def compare(self, chat: Any, random: random.Random, seed: str) -> None:
        """Build a context from the whole branch and from what a budget needs of it."""
        budget = random.choice([60, 150, 300, 600, 1_200, 3_000])
        policy = Standard(head=random.choice([0, 1, 3, 5]), recent=random.choice([0, 2, 4]))
        wanted = same(
            lambda: chat.context(budget=budget, policy=Whole(policy)),
            lambda: chat.context(budget=budget, policy=policy),
            budget,
            seen,
            seed,
        )
        for context in wanted or ():
            accounted(chat, context)

    def test_a_callers_counter_decides_how_much_is_read(self, standing: Backend) -> None:
        """It counts every message that is read, once, and gives what the whole branch would give."""
        texts: list[str] = []

        def count(text: str) -> int:
            texts.append(text)
            return len(text)

        with standing.open(counter=count) as store:
            chat = store.tape("counted")
            turns(chat, 60)
            texts.clear()
            context = chat.context(budget=3_000)
            turn_facts = [text for text in texts if text.startswith("question")]
            assert len(turn_facts) == len(set(turn_facts)) < 40
            whole = chat.context(budget=3_000, policy=Whole(Standard()))
            assert seen(context) == seen(whole)

    def test_calls_without_an_id_are_read_and_not_looked_up(self, guest: tape.Store) -> None:
        """Nothing is recorded of them, so that the whole branch is read where they matter."""
        chat = guest.tape("nameless")
        chat.append(role="user", content="go")
        chat.append({"role": "assistant", "content": None, "tool_calls": [{"id": "", "function": {}}]})
        turns(chat, 60)
        chat.append(role="user", content="so?")
        chat.append({"role": "tool", "tool_call_id": "", "content": "here"})
        chat.append(role="user", content="on")
        for budget in (200, 1_000, 2_000):
            whole = chat.context(budget=budget, policy=Whole(Standard()))
            assert seen(chat.context(budget=budget)) == seen(whole)
