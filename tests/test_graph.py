"""The graph of a family of tapes, drawn from entries alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from tape.command.show.graph import Forked, Merged, draw
from tape.core.entries.payloads import Place
from tape.core.records import Entry


def entries(tape: str, *seqs: int) -> list[Entry]:
    """Return plain entries of a tape, newest first."""
    return [
        Entry(tape, seq, "event", f"k{seq}", None, None, None, None, 0, 1, "", Place(0, 0))
        for seq in sorted(seqs, reverse=True)
    ]


def picture(
    tapes: dict[str, Iterable[Entry]], forked: Iterable[Forked] = (), merged: Iterable[Merged] = ()
) -> list[str]:
    """Return the drawing with the entries written behind it."""
    lines = draw(tapes, list(forked), list(merged))
    return [text if entry is None else f"{text} {entry.tape}{entry.seq}" for text, entry in lines]


class TestDraw:
    def test_one_tape_is_a_straight_line(self) -> None:
        """A tape without forks is drawn newest first."""
        assert picture({"a": entries("a", 1, 2, 3)}) == ["* a3", "* a2", "* a1"]

    def test_nothing_is_no_line(self) -> None:
        """Of no entries there is no drawing."""
        assert picture({"a": []}) == []

    def test_a_merged_fork(self) -> None:
        """A merge opens the fork's lane, which joins the parent's where it was forked off."""
        assert picture(
            {"a": entries("a", 1, 2, 3, 4), "b": entries("b", 1, 2)}, [Forked("b", "a", 2)], [Merged("a", 4, "b", 2)]
        ) == ["* a4", "|\\", "| * b2", "| * b1", "* | a3", "|/", "* a2", "* a1"]

    def test_a_fork_that_was_never_merged(self) -> None:
        """It is drawn right above where it was forked off."""
        assert picture({"a": entries("a", 1, 2, 3), "b": entries("b", 1)}, [Forked("b", "a", 2)]) == [
            "* a3",
            "| * b1",
            "|/",
            "* a2",
            "* a1",
        ]

    def test_a_fork_of_the_last_entry_goes_straight_on(self) -> None:
        """With nothing newer on the parent the two are one line."""
        assert picture({"a": entries("a", 1, 2), "b": entries("b", 1, 2)}, [Forked("b", "a", 2)]) == [
            "* b2",
            "* b1",
            "* a2",
            "* a1",
        ]

    def test_a_fork_merged_and_then_continued(self) -> None:
        """What it did after the merge is above it, and the merge leads into the lane that is there."""
        assert picture(
            {"a": entries("a", 1, 2, 3), "b": entries("b", 1, 2, 3)}, [Forked("b", "a", 1)], [Merged("a", 2, "b", 2)]
        ) == ["* a3", "| * b3", "* | a2", "|\\|", "| * b2", "| * b1", "|/", "* a1"]

    def test_three_forks_cross(self) -> None:
        """A lane that joins beyond another goes past it."""
        drawn = picture(
            {"a": entries("a", 1, 2, 3, 4), "b": entries("b", 1), "c": entries("c", 1)},
            [Forked("b", "a", 1), Forked("c", "a", 2)],
            [Merged("a", 3, "b", 1), Merged("a", 4, "c", 1)],
        )
        assert drawn == ["* a4", "|\\", "| * c1", "* | a3", "|\\ \\", "| * | b1", "|_|/", "* | a2", "|/", "* a1"]

    def test_a_fork_of_a_fork(self) -> None:
        """Lanes open to the right, generation by generation."""
        drawn = picture(
            {"a": entries("a", 1, 2), "b": entries("b", 1, 2), "c": entries("c", 1)},
            [Forked("b", "a", 1), Forked("c", "b", 1)],
            [Merged("a", 2, "b", 2), Merged("b", 2, "c", 1)],
        )
        assert drawn == ["* a2", "|\\", "| * b2", "| |\\", "| | * c1", "| |/", "| * b1", "|/", "* a1"]

    def test_an_absent_child_leaves_no_lane(self) -> None:
        """The merge of a fork that cannot be seen is a plain entry."""
        assert picture({"a": entries("a", 1, 2)}, [], [Merged("a", 2, "gone", 5)]) == ["* a2", "* a1"]

    def test_a_circle_is_drawn_all_the_same(self) -> None:
        """Tapes that cite each other, as only damage can make them, do not hang the drawing."""
        drawn = picture({"a": entries("a", 1), "b": entries("b", 1)}, [Forked("a", "b", 1), Forked("b", "a", 1)], [])
        assert sorted(line[-2:] for line in drawn if "*" in line) == ["a1", "b1"]


@st.composite
def families(draw: st.DrawFn) -> tuple[dict[str, list[Entry]], list[Forked], list[Merged]]:
    """Return a family as it can come about: tapes that write, fork and merge in some order."""
    heads, parents = {"t0": 1}, {}
    forked: list[Forked] = []
    merged: list[Merged] = []
    for _ in range(draw(st.integers(0, 25))):
        tape = draw(st.sampled_from(sorted(heads)))
        action = draw(st.sampled_from(["write", "fork", "merge"]))
        heads[tape] += 1
        if action == "fork" and len(heads) < 6:
            child = f"t{len(heads)}"
            # A fork may be made of the past.
            point = draw(st.sampled_from([heads[tape], max(1, heads[tape] - 3)]))
            forked.append(Forked(child, tape, point))
            heads[child], parents[child] = 1, tape
        elif action == "merge":
            children = [child for child, parent in parents.items() if parent == tape]
            if children:
                child = draw(st.sampled_from(sorted(children)))
                merged.append(Merged(tape, heads[tape], child, heads[child]))
    return {tape: entries(tape, *range(1, head + 1)) for tape, head in heads.items()}, forked, merged


class TestAnyFamily:
    @settings(max_examples=50, deadline=None)
    @given(families())
    def test_every_entry_once_and_after_what_came_of_it(
        self, family: tuple[dict[str, list[Entry]], list[Forked], list[Merged]]
    ) -> None:
        """Whatever the family, each entry is drawn once, below all that follows it, came of it or merged it."""
        tapes, forked, merged = family
        lines = list(draw(tapes, forked, merged))
        order = {(entry.tape, entry.seq): n for n, (_, entry) in enumerate(lines) if entry is not None}
        assert sorted(order) == sorted((one.tape, one.seq) for found in tapes.values() for one in found)
        assert [text.count("*") for text, entry in lines if entry is not None] == [1] * len(order)
        assert not [text for text, entry in lines if entry is None and "*" in text]
        for tape, found in tapes.items():
            places = [order[tape, one.seq] for one in found]
            assert places == sorted(places)
        for fork in forked:
            assert order[fork.child, 1] < order[fork.parent, fork.seq]
        for merge in merged:
            assert order[merge.parent, merge.seq] < order[merge.child, merge.upto]

    @settings(max_examples=50, deadline=None)
    @given(families())
    def test_no_line_of_a_lane_is_broken(
        self, family: tuple[dict[str, list[Entry]], list[Forked], list[Merged]]
    ) -> None:
        """Below every entry but the first of all, something is drawn that goes on from it."""
        tapes, forked, merged = family
        lines = [text for text, _ in draw(tapes, forked, merged)]
        for above, below in itertools.pairwise(lines):
            place = above.find("*")
            if place >= 0:
                near = below.ljust(place + 2)[max(place - 1, 0) : place + 2]
                assert set(near) & set("|/\\*"), f"{above}\n{below}"
