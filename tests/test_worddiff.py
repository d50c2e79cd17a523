"""The word diff: what is shown is the two texts, nothing that changed is missing, and long texts take no longer."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tape.core.worddiff import Skipped, Span, count_words, hunks, lines, spans

WORDS = st.lists(st.sampled_from(["a", "b", "the", "night", " ", "\n", ".", "日", "é", "x" * 70]), max_size=60)


def marked(before: str, after: str) -> str:
    """Return a word diff as git shows it without colours."""
    marks = {"equal": ("", ""), "removed": ("[-", "-]"), "added": ("{+", "+}")}
    return "".join(f"{marks[kind][0]}{text}{marks[kind][1]}" for kind, text in spans(before, after))


def sides(found: list[Span]) -> tuple[str, str]:
    """Return the two texts that a word diff is made of."""
    before = "".join(span.text for span in found if span.kind != "added")
    return before, "".join(span.text for span in found if span.kind != "removed")


class TestSpans:
    @pytest.mark.parametrize(
        ("before", "after", "shown"),
        [
            ("", "", ""),
            ("same", "same", "same"),
            ("", "new", "{+new+}"),
            ("old", "", "[-old-]"),
            ("By train, please.", "By night train, please.", "By {+night +}train, please."),
            ("cost 10 EUR now", "cost 12 EUR now", "cost [-10-]{+12+} EUR now"),
            ("f(a, b)", "f(a, c)", "f(a, [-b-]{+c+})"),
            ("明天下雨", "今天下雨", "[-明-]{+今+}天下雨"),
            ("one\ntwo\n", "one\ntwo", "one\ntwo[-\n-]"),
        ],
    )
    def test_small_texts(self, before: str, after: str, shown: str) -> None:
        """A word that changed is marked, and the text around it stays."""
        assert marked(before, after) == shown

    def test_a_passage_that_was_rewritten_is_not_chopped_up(self) -> None:
        """Short words that two passages happen to share are shown as part of the change."""
        shown = spans("Deploy the service to the east on Monday.", "Roll back a release of the shop by night.")
        assert [span.kind for span in shown] == ["removed", "added", "equal"]

    @settings(max_examples=150, deadline=None)
    @given(WORDS.map("".join), WORDS.map("".join))
    def test_both_texts_can_be_read_from_it(self, before: str, after: str) -> None:
        """Equal and removed spans are the first text, equal and added ones the second, never empty, never twice."""
        found = spans(before, after)
        assert sides(found) == (before, after)
        assert all(span.text for span in found)
        assert all(one.kind != two.kind for one, two in itertools.pairwise(found))
        assert sides([span for line in lines(found) for span in line]) == (before, after)

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 2**32), st.integers(1, 2_000), st.integers(0, 30))
    def test_longer_texts_than_are_compared_exactly(self, seed: int, size: int, edits: int) -> None:
        """It holds as well where stretches are divided at words that occur once."""
        rng = random.Random(seed)
        words = [f"w{rng.randrange(size)}" for _ in range(size)]
        changed = list(words)
        for _ in range(edits):
            changed[rng.randrange(len(changed))] = f"v{rng.randrange(size)}"
        found = spans(" ".join(words), " ".join(changed))
        assert sides(found) == (" ".join(words), " ".join(changed))
        assert sum(count_words(found)) <= 2 * edits * 4


class TestLongTexts:
    def test_one_word_of_a_long_text(self) -> None:
        """One changed word among a hundred thousand is shown as that, whether or not there are lines."""
        for separator in (" ", "\n"):
            words = [f"word{number}" for number in range(60_000)]
            changed = [*words[:40_000], "other", *words[40_001:]]
            found = spans(separator.join(words), separator.join(changed))
            assert [span.kind for span in found] == ["equal", "removed", "added", "equal"]
            assert count_words(found) == (1, 1)

    @pytest.mark.parametrize("case", ["repeated", "shuffled", "unlike", "one word"])
    def test_hostile_texts_take_bounded_time(self, case: str) -> None:
        """Texts made to defeat it are compared in bounded time, and both can still be read from it."""
        rng = random.Random(7)
        if case == "repeated":
            before, after = "ab " * 100_000, "ba " * 100_000
        elif case == "shuffled":
            words = [f"w{number}" for number in range(60_000)]
            before = " ".join(words)
            after = " ".join(rng.sample(words, len(words)))
        elif case == "unlike":
            before = " ".join(rng.choice("ab") for _ in range(150_000))
            after = " ".join(rng.choice("ab") for _ in range(150_000))
        else:
            before, after = "x" * 1_000_000, "x" * 500_000 + "y" + "x" * 499_999
        start = time.process_time()
        found = spans(before, after)
        assert sides(found) == (before, after)
        # Linear work takes about two seconds on a slow machine; a quadratic one would take hours.
        assert time.process_time() - start < 30


class TestHunks:
    def test_lines_around_a_change(self) -> None:
        """So many equal lines stand around a change as were asked for, and the rest are counted."""
        before = "".join(f"line {number}\n" for number in range(100))
        after = before.replace("line 50\n", "line fifty\n")
        shown = list(hunks(spans(before, after), 2))
        assert [item.lines for item in shown if isinstance(item, Skipped)] == [48, 47]
        assert ["".join(span.text for span in item) for item in shown if not isinstance(item, Skipped)] == [
            "line 48\n",
            "line 49\n",
            "line 50fifty\n",
            "line 51\n",
            "line 52\n",
        ]

    @settings(max_examples=60, deadline=None)
    @given(WORDS.map("".join), WORDS.map("".join), st.integers(0, 4))
    def test_nothing_that_changed_is_left_out(self, before: str, after: str, context: int) -> None:
        """Whatever the context, every removed and added word is there, and every line is shown or counted."""
        found = spans(before, after)
        shown = list(hunks(found, context))
        spoken = [span for item in shown if not isinstance(item, Skipped) for span in item]
        for kind in ("removed", "added"):
            assert "".join(s.text for s in spoken if s.kind == kind) == "".join(s.text for s in found if s.kind == kind)
        counted = sum(item.lines if isinstance(item, Skipped) else 1 for item in shown)
        assert counted == sum(1 for _ in lines(found))
