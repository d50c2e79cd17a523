"""Summaries on forks, forks of forks and their parents, in any order, against a naive model, on both engines.

The family and its machine are those of ``family.py`` and ``test_family_machine.py``; here its tapes summarise as well.
A fork copies the summaries that hold for its parent, and whether one holds is worked out anew each time.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from support.backends import Backend
from support.exploring import explore, steps
from support.family import FamilyTree, Kin
from support.family_memory import World
from support.sizes import full, heavy
from support.tree import Refused
from test_family_machine import STEPS_PER_FAMILY, FamilyMachine, few_picks, numbers, picks

import tape

STEPS = 40


class SummaryFamilyMachine(FamilyMachine):
    """A family of tapes that summarise, and their models."""

    @rule(
        number=numbers,
        ends=st.tuples(st.integers(1, 12), st.integers(1, 12)),
        how=st.sampled_from(["summary", "summary", "pair", "seq", "seq", "none", "other"]),
        aim=st.sampled_from([True, True, True, True, False]),
        nth=picks,
    )
    def set_summary(self, number: int, ends: tuple[int, int], how: str, aim: bool, nth: int) -> None:
        kin, handle = self.one(number)
        tree = kin.tree
        first, last = (self.pick(kin, at) for at in ends)
        if aim:
            first, last = self.run_of(kin, *ends) or (first, last)
        newest = tree.newest()
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
            lambda kin, _: kin.set_summary(text, first, last, expected),
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
        path = kin.tree.path(kin.tree.head)
        for first in path[low % len(path) :] if path else ():
            ends = path[path.index(first) :]
            for last in ends[high % len(ends) :] + ends[: high % len(ends)]:
                try:
                    kin.tree.judge(first, last)
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


def compare_summaries(reads: tape.Snapshot, tree: FamilyTree) -> None:
    """Compare the summaries with what the model sees."""
    want = tree.summaries(tree.head)
    found = reads.summaries()
    assert [(s.tape, s.seq, s.text, s.covers, s.stale) for s in found] == [
        (one.tape, one.seq, one.text, one.covers, tree.outdated(one)) for one in want
    ]
    newest = tree.newest()
    told = reads.summary()
    assert (None if told is None else (told.tape, told.seq)) == (None if newest is None else (newest.tape, newest.seq))
    assert reads.context().summary == told


@full("postgresql")
@heavy
def test_f2_summaries_of_families_in_any_order_agree_with_the_model(backend: Backend) -> None:
    """Whatever is summarised, forked, cleared, changed and merged, every tape shows what a copy would show."""
    shared = {"backend": backend, "store": None, "world": World(), "copy": None}
    machine = type("Machine", (SummaryFamilyMachine,), shared)
    explore(machine, steps(STEPS, postgres=backend.postgres), STEPS_PER_FAMILY)
