"""Summaries on forks, forks of forks and their parents, in any order, against a naive model, on both engines.

The family and its machine are those of ``family.py`` and ``test_family_machine.py``; here its tapes summarise as well.
A fork copies the summaries that hold for its parent, and whether one holds is worked out anew each time.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from support.backends import Backend
from support.exploring import explore, steps
from support.family import Kin, Refused, Seen, Shown, Tree, World, Wrote, _clock
from support.model import awaits_of, calls_of
from test_family_machine import STEPS_PER_FAMILY, FamilyMachine, few_picks, numbers, picks

import tape

STEPS = 180


@dataclass(frozen=True)
class Digest:
    """A summary: the tape and entry that made it, when, all messages of its run, and those that it covers."""

    tape: str
    seq: int
    when: int
    text: str
    run: list[str]
    covers: list[str]


@dataclass
class SummaryTree(Tree):
    """A view with summaries."""

    tape: str = ""
    digests: list[Digest] = field(default_factory=list)

    def awaits(self, id: str) -> set[str]:
        """Return the calls that a message makes and does not answer itself."""
        return awaits_of(self.notes[id].body)

    def before(self, end: str | None) -> set[str]:
        """Return the messages that the latest anchor on the path to ``end`` cuts off."""
        mark = self.anchor(end)
        return set(self.up(mark.at)) if mark is not None else set()

    def lasting(self) -> list[Digest]:
        """Return the summaries that no clear has ended."""
        return [one for one in self.digests if not self.clears or one.when > self.clears[-1]]

    def valid(self, digest: Digest) -> bool:
        """Whether all that a summary covers is there, and parts no tool call from its result."""
        bound = {pair for id in digest.covers for pair in self.notes[id].bound}
        return (
            all(self.visible(id) for id in digest.covers)
            and all((call, id) in bound for id in digest.covers for call in self.awaits(id))
            and not any(
                maker not in digest.covers and self.visible(maker) and call in calls_of(self.notes[maker].body)
                for call, maker in bound
            )
        )

    def summaries(self, end: str | None) -> list[Digest]:
        """Return the summaries in force on the path to ``end``, in its order: of two that overlap the newer one."""
        path, before = [*reversed(self.up(end))], self.before(end)
        held: list[Digest] = []
        for one in sorted(self.lasting(), key=lambda one: one.when, reverse=True):
            if one.run[-1] not in path or any(id in before for id in one.run) or not self.valid(one):
                continue
            if not any(set(one.run) & set(other.run) for other in held):
                held.append(one)
        return sorted(held, key=lambda one: path.index(one.run[0]))

    def stale_digest(self, one: Digest) -> bool:
        """Whether a message that a summary covers was revised since."""
        return any(self.notes[id].revised > one.when for id in one.covers)

    def name(self, one: Digest) -> str:
        """Return the id under which a context shows a summary."""
        return f"~summary:{one.seq}" if one.tape == self.tape else f"~summary:{one.tape}:{one.seq}"

    def seen(self, seq: int, world: World) -> Seen:
        """Return everything that can be seen, with summaries in the place of what they cover."""
        found: list[Shown] = []
        before, held = self.before(self.head), self.summaries(self.head)
        for id in reversed(self.up(self.head)):
            digest = next((one for one in held if id in one.run), None)
            if digest is not None and id == digest.run[0]:
                found.append((self.name(digest), None, digest.tape, digest.seq, digest.seq, ""))
                found += [self.show(one) for one in digest.run if one not in digest.covers and self.visible(one)]
            elif digest is None and id not in before and self.visible(id):
                found.append(self.show(id))
        return replace(super().seen(seq, world), context=found)


class SummaryKin(Kin):
    """One tape of a family that summarises."""

    tree: SummaryTree

    def __init__(self, id: str, world: World, parent: Kin | None = None) -> None:
        super().__init__(id, world, parent)
        self.tree = SummaryTree(tape=id)
        self.past = [copy.deepcopy(self.tree)]

    def fork(self, id: str, at: int | str | None) -> Kin:
        """Copy the view, and the summaries that hold in it."""
        point = self.named.get(at, at) if isinstance(at, str) else at
        plain = super().fork(id, at)
        then = self.past[point] if isinstance(point, int) else self.tree
        child = SummaryKin(id, self.world, self)
        child.__dict__.update({**plain.__dict__, "past": child.past})
        assert isinstance(then, SummaryTree)
        child.tree.tape, child.tree.digests = id, then.lasting()
        child._record()
        return child

    def set_summary(self, text: str, first: str, last: str, expected: Any) -> Wrote:
        """Let a text stand for the messages from one to another."""
        tree = self.tree
        self._writable()
        self._visible(first)
        self._visible(last)
        if last not in tree.up(tree.head) or first not in tree.up(last):
            raise Refused(tape.InvalidEntry, field="last")
        held = tree.summaries(tree.head)
        newest = max(held, key=lambda one: one.when, default=None)
        names: list[Any] = [None]
        if newest is not None:
            names = [(newest.tape, newest.seq)]
            if not any(one.seq == newest.seq and one.tape != newest.tape for one in tree.digests):
                names.append(newest.seq)
        if expected not in names:
            raise Refused(tape.SummaryMoved, expected=expected)
        run, covers = self.judge(first, last)
        seq = self._next()
        tree.digests.append(Digest(self.id, seq, next(_clock), text, run, covers))
        self._record()
        return Wrote(self.id, seq, None, False)

    def judge(self, first: str, last: str) -> tuple[list[str], list[str]]:
        """Return a run of messages and those of them that a summary of it covers, if there may be one."""
        tree = self.tree
        run = [*reversed(tree.up(last)[: tree.up(last).index(first) + 1])]
        if first in tree.before(tree.head):
            raise Refused(tape.InvalidEntry, field="first")
        for other in tree.summaries(tree.head):
            if set(other.run) & set(run) and not set(other.run) <= set(run):
                raise Refused(tape.InvalidEntry, field="first")
        covers = [id for id in run if tree.visible(id)]
        self._check_calls(covers)
        return run, covers

    def _check_calls(self, covers: list[str]) -> None:
        tree = self.tree
        bound = {pair for id in covers for pair in tree.notes[id].bound}
        for id in covers:
            for call, maker in tree.notes[id].bound:
                there = tree.visible(maker) or tree.notes[maker].taken
                if maker not in covers and there and call in calls_of(tree.notes[maker].body):
                    raise Refused(tape.InvalidEntry, field="first")
            outside = [one for one in tree.up(tree.head) if one not in covers and tree.visible(one)]
            made = calls_of(tree.notes[id].body)
            if any((call, id) in tree.notes[one].bound for one in outside for call in made):
                raise Refused(tape.InvalidEntry, field="last")
            if any((call, id) not in bound for call in tree.awaits(id)):
                raise Refused(tape.InvalidEntry, field="last")


class SummaryFamilyMachine(FamilyMachine):
    """A family of tapes that summarise, and their models."""

    def __init__(self) -> None:
        super().__init__()
        self.kin = [SummaryKin(f"{self.prefix}0", type(self).world)]

    @rule(
        number=numbers,
        ends=st.tuples(st.integers(1, 12), st.integers(1, 12)),
        how=st.sampled_from(["summary", "summary", "pair", "seq", "seq", "none", "other"]),
        aim=st.sampled_from([True, True, True, True, False]),
        nth=picks,
    )
    def set_summary(self, number: int, ends: tuple[int, int], how: str, aim: bool, nth: int) -> None:
        kin, handle = self.one(number)
        assert isinstance(kin, SummaryKin)
        tree = kin.tree
        first, last = (self.pick(kin, at) for at in ends)
        if aim:
            first, last = self.run_of(kin, *ends) or (first, last)
        newest = max(tree.summaries(tree.head), key=lambda one: one.when, default=None)
        other = tree.digests[nth % len(tree.digests)] if tree.digests else None
        named = other if how == "other" else newest
        expected: Any = None
        if how != "none" and named is not None:
            expected = named.seq if how == "seq" else (named.tape, named.seq)
        given = handle.summary() if how == "summary" else expected
        text = f"summary {nth}"
        self.write(
            number,
            lambda chat: chat.set_summary(text, first=first, last=last, expected=given),
            lambda kin, _: kin.set_summary(text, first, last, expected),  # type: ignore[attr-defined]
        )

    @rule(number=numbers, some=few_picks, what=st.sampled_from(["retract", "revise", "nothing", "clear"]))
    def stir_under_a_clear(self, number: int, some: list[int], what: str) -> None:
        """Clear, bring some back, do something to them, and undo the clear."""
        self.clear(number)
        self.restore(number, some)
        kin, _ = self.one(number)
        shown = [id for id in kin.tree.notes if kin.tree.visible(id)]
        if shown and what in ("retract", "revise"):
            id = shown[some[0] % len(shown)]
            if what == "retract":
                self.write(number, lambda chat: chat.retract(id), lambda kin, _: kin.retract([id]))
            else:
                self.write(number, lambda chat: chat.revise(id, content="x"), lambda kin, _: kin.revise(id, "x"))
        elif what == "clear":
            self.clear(number)
            self.undo_clear(number)
        self.undo_clear(number)

    def run_of(self, kin: Kin, low: int, high: int) -> tuple[str, str] | None:
        """Return the ends of a run that can be summarised, near the two numbers."""
        assert isinstance(kin, SummaryKin)
        path = kin.tree.path(kin.tree.head)
        for first in path[low % len(path) :] if path else ():
            ends = path[path.index(first) :]
            for last in ends[high % len(ends) :] + ends[: high % len(ends)]:
                try:
                    kin.judge(first, last)
                except Refused:
                    continue
                return first, last
        return None

    @initialize(ends=st.lists(st.tuples(picks, picks), min_size=3, max_size=3), ticks=st.integers(0, 12))
    def prepare(self, ends: list[tuple[int, int]], ticks: int) -> None:
        """Three generations, each with a summary of its own; the seqs of the younger ones lag behind or catch up."""
        for generation, (low, high) in enumerate(ends):
            for number in range(3 if generation else 6):
                self._append(generation, {"role": "user", "content": f"message {number}"})
            for _ in range(ticks if generation else 0):
                self.write(generation, lambda chat: chat.event("tick"), lambda kin, _: kin.event())
            self.set_summary(generation, (low, high), "summary", True, generation)
            if generation < 2:
                self.fork(generation, "now", 0)

    def check(self, changed: Kin) -> None:
        super().check(changed)
        for number, kin in enumerate(self.kin):
            _, handle = self.one(number)
            compare_summaries(handle, kin.tree)

    def teardown(self) -> None:
        for number, kin in enumerate(self.kin):
            _, handle = self.one(number)
            for seq in range(kin.seq + 1):
                compare_summaries(handle.at(seq), kin.past[seq])
        super().teardown()


def compare_summaries(reads: tape.Snapshot, tree: Tree) -> None:
    """Compare the summaries with what the model sees."""
    assert isinstance(tree, SummaryTree)
    want = tree.summaries(tree.head)
    found = reads.summaries()
    assert [(s.tape, s.seq, s.text, s.covers, s.stale) for s in found] == [
        (one.tape, one.seq, one.text, one.covers, tree.stale_digest(one)) for one in want
    ]
    newest = max(want, key=lambda one: one.when, default=None)
    told = reads.summary()
    assert (None if told is None else (told.tape, told.seq)) == (None if newest is None else (newest.tape, newest.seq))
    assert reads.context().summary == told


def test_f2_summaries_of_families_in_any_order_agree_with_the_model(backend: Backend) -> None:
    """Whatever is summarised, forked, cleared, changed and merged, every tape shows what a copy would show."""
    shared = {"backend": backend, "store": None, "world": World(), "copy": None}
    machine = type("Machine", (SummaryFamilyMachine,), shared)
    explore(machine, steps(STEPS, postgres=backend.postgres), STEPS_PER_FAMILY)
