"""How a phrase is found in long texts, by long queries and across both engines, and what that costs."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backends import Backend
from support.sizes import full, heavy, size

import tape
from tape.core.search import tokenizer
from tape.core.search.occurrences import Phrase
from tape.core.search.query import FIRST_WORDS, parse
from tape.core.search.snippet import MARKS, WIDTH, snippet
from tape.core.search.tokenizer import Word
from tape.db.search.search import SearchRequest


def occurrences(phrase: Phrase, text: list[Word]) -> list[tuple[int, int]]:
    """Return where a phrase occurs among all the words of a text: the rule itself, with nothing to make it quick."""
    return [
        (text[at].start, text[at + len(phrase) - 1].end)
        for at in range(len(text) - len(phrase) + 1)
        if all(token.finds(text[at + n]) for n, token in enumerate(phrase))
    ]


PIECES = [
    *("the", "The", "trip", "Trips", "getUserName", "HTTPServer", "user", "name", "a", "ab", "x1", "1x", "X", "cafe"),
    *(
        "Café",
        "cafe\u0301",
        "STRASSE",
        "straße",
        "東京",
        "東京タワー",
        "東",
        "ｶﾞｷﾞ",
        "か\u3099",
        "한국어",
        "สวัสดี",
        "हिन्दी",
    ),
    *("½", "ﬁne", "İ", "_", "-", "--", ".", "“", "”", "—", "\u0301", "\n", "* ", "*", '"', "x" * 130, "y" * 300, "。"),
]
TEXTS = st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(["", " ", " ", "\n", "\u3000"])), max_size=40).map(
    lambda pieces: "".join(part for piece in pieces for part in piece)
)


class TestMatching:
    @heavy
    @settings(max_examples=size(30, 300), deadline=None, print_blob=True)
    @given(text=st.one_of(TEXTS, st.text()), query=st.one_of(TEXTS, st.text()), padding=st.sampled_from([0, 5_000]))
    def test_s7_what_is_found_quickly_is_what_the_rule_finds(self, text: str, query: str, padding: int) -> None:
        """A text matches exactly when each phrase occurs among its words, wherever in it they stand."""
        text = f"{'filler ' * (padding // 7)}{text}"
        scanned = list(tokenizer.scan(text))
        for asked in (parse(query), parse(text[-60:]), parse(f'"{text[-40:]}"')):
            spans = {phrase: occurrences(phrase, scanned) for phrase in (*asked.phrases, *asked.others)}
            expected = bool(spans) and all(spans.values())
            found = asked.match(text)
            assert (found is not None) == expected
            if expected:
                assert asked.match(text, indexed=True) == found
                assert found is not None
                every = {span for phrase in asked.phrases for span in spans[phrase]}
                assert set(found) <= every or found[0][0] in {start for start, _ in every}

    @settings(max_examples=100, deadline=None, print_blob=True)
    @given(text=st.one_of(TEXTS, st.text()), size=st.integers(1, 40))
    def test_s7_a_text_is_cut_into_the_same_words_in_pieces_of_any_size(self, text: str, size: int) -> None:
        """However small the pieces in which a text is cut into words, the words are the same."""
        assert list(tokenizer.scan(text, 0, size)) == list(tokenizer.scan(text, 0, 2**30))
        tokens = list(dict.fromkeys(token for word in tokenizer.scan(text) for token in word.tokens))
        assert tokenizer.vocabulary(text) == tokens

    @heavy
    def test_s7_words_at_the_end_of_a_long_text_are_shown(self) -> None:
        """The snippet of a long text shows the words wherever they stand and however they are written."""
        for filler in ("filler word ", "Füllwort – “quoted” "):
            for written, query in (
                ("the xylophone plays", "xylophone"),
                ("the Xylophone plays", "xylophone"),
                ("myXylophoneCase plays", "xylophone"),
                ("a Café au lait", "cafe lait"),
                ("昨日は東京タワーに行", "京タ"),
                ("then lazy dog sleeps", '"lazy dog"'),
                ("then the Lazy Dog sleeps", '"lazy dog" the'),
                ("xylophones everywhere", "xylo*"),
            ):
                text = f"{filler * size(5_000, 10_000)}{written} {filler * 3}"
                asked = parse(query)
                spans = asked.match(text, indexed=True)
                assert spans is not None
                assert asked.match(text) == spans
                assert MARKS[0] in snippet(text, spans), (written, query)
                assert parse(f"{query} nowhere").match(text) is None


def seconds(text: str) -> float:
    """Return the least processor time of this process in which a text is matched against itself, of three runs."""
    took = []
    for _ in range(3):
        began = time.process_time()
        parse(text).match(text)
        took.append(time.process_time() - began)
    return min(took)


class TestLongQueries:
    def test_s7_a_long_query_is_read_in_linear_time(self) -> None:
        """Matching a text against itself takes about twice as long when it is twice as long, up to 53 KB and beyond."""
        for form in ("word{}", "wört{}", "again", '"word{} x"'):
            short, long = (" ".join(form.format(n) for n in range(count)) for count in (3_000, 24_000))
            for text in (short, long):
                assert parse(text).match(text) is not None
            assert seconds(long) / seconds(short) < 24, form

    def test_s7_words_beyond_the_first_count_as_well(self, store: tape.Store) -> None:
        """Of a query of up to a thousand words each must match, and what follows them is ignored."""
        text = " ".join(f"word{n}" for n in range(1_500))
        store.tape("t").append(role="user", content=text, id="m")
        for _ in range(2):
            assert len(store.search(text)) == 1
            for count in (60, 64, 300, 990):
                few = " ".join(f"word{n}" for n in range(count))
                assert len(store.search(few)) == 1
                assert store.search(f"{few} absent") == []
                assert store.search(f'{few} "word7 word9"') == []
                assert len(store.search(f'{few} "word7 word8" word140*')) == 1
            assert len(store.search(f"{text} absent")) == 1

    def test_s7_a_repeated_word_is_one_word(self) -> None:
        """However often a word stands in a query, it is looked for once."""
        assert parse("trip Trip TRIP " * 5_000 + "lisbon").tokens() == parse("trip lisbon").tokens()

    def test_s7_of_a_long_text_the_first_words_of_a_long_query_must_match(self, store: tape.Store) -> None:
        """In long texts the words of a query after the first ones are not looked for, before or after indexing."""
        text = " ".join(f"word{n}" for n in range(12_000))
        assert len(text) > tokenizer.LONG
        store.tape("t").append(role="user", content=text)
        for _ in range(2):
            few = " ".join(f"word{n}" for n in range(FIRST_WORDS))
            assert len(store.search(few)) == 1
            assert store.search(f"absent {few}") == []
            assert len(store.search(f"{few} absent")) == 1


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Give the most memory that was in use at once meanwhile."""
    tracemalloc.start()
    peaks: list[int] = []
    try:
        yield lambda: peaks[0]
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@full("postgresql")
class TestLargeTexts:
    def test_s7_large_texts_are_found_alike_on_both_engines(self, pair: list[tape.Store]) -> None:
        """Texts too large to be read by the page are found, shown and ordered as small ones are, on either engine."""
        seed = 7
        chance = random.Random(seed)
        texts = []
        for n in range(12):
            filler = [chance.choice(PIECES) for _ in range(chance.choice((10, 10, 8_000)))]
            filler.insert(chance.randrange(len(filler)), f" zebra{n % 3} Giraffe ")
            texts.append(" ".join(filler))
        for store in pair:
            for n, text in enumerate(texts):
                store.tape(f"t{n % 3}").append(role="user", content=text, id=f"m{n}")
        queries = (
            "zebra0",
            "giraffe",
            "giraffe zebra1",
            '"zebra2 giraffe"',
            '"giraffe zebra2"',
            "zeb*",
            "東京 giraffe",
            "user",
        )
        for query in queries:
            left, right = (store.search(query, limit=50) for store in pair)
            facts = [
                [(hit.tape, hit.seq, hit.message_id, hit.snippet, hit.score) for hit in side] for side in (left, right)
            ]
            assert facts[0] == facts[1]
            asked = parse(query)
            expected = [f"m{n}" for n, text in enumerate(texts) if asked.match(text)]
            assert [hit.message_id for hit in left] == expected[::-1], (query, seed)

    @heavy
    def test_s7_a_huge_message_is_indexed_and_found_in_little_memory(self, backend: Backend) -> None:
        """Indexing and finding a message of megabytes takes a small multiple of its size, not a hundred times that."""
        store = backend.open(durability="normal")
        text = "".join(f"row {n % 5_000} of the log; " for n in range(size(20_000, 100_000))) + "needle at the end"
        store.tape("t").append(role="tool", content=text)
        with traced() as peak:
            assert [hit.snippet.count("«needle»") for hit in store.search("needle")] == [1]
            assert len(store.search("needle row")) == 1
            assert store.search('"the needle" row') == []
        assert peak() < 8 * len(text)

    def test_s7_a_page_of_large_messages_is_not_in_memory_at_once(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Search and index read large messages a few at a time, whether they are indexed or not."""
        monkeypatch.setattr("tape.db.search.search._AT_ONCE", 400_000)
        store = backend.open(durability="normal")
        size, count = 100_000, 20
        store.tape("t").extend(
            [{"role": "tool", "content": f"w{n} filler " * (size // 11) + f"zebra {n}"} for n in range(count)]
        )
        searcher = store._searcher
        asked = SearchRequest(parse("zebra"), None, count, None, None, 0, 2**62)
        for work in (
            lambda: searcher._ask(asked, None, None, indexed=False),
            searcher.index.catch_up,
            lambda: searcher._ask(asked, None, None, indexed=True),
        ):
            with traced() as peak:
                work()
            assert peak() < 15 * size
        assert len(store.search("zebra", limit=count)) == count

    def test_s7_an_excerpt_shows_what_the_whole_text_shows(self, store: tape.Store) -> None:
        """A hit in a long text is the same, whether it was shown by its excerpt or by reading all of it."""
        chance = random.Random(7)
        gaps = (0, 1, 3_900, 4_080, 4_095, 4_096, 4_100, 6_140, 6_200)
        for n, gap in enumerate(gaps * 3):
            begin = "".join(chance.choice(PIECES) + chance.choice([" ", " ", "", "\n"]) for _ in range(gap))[:gap]
            found = ["zebra", "Zebra crossing", "zebra" + "x" * 6_000][n % 3]
            store.tape(f"t{n % 2}").append(role=["user", "tool"][n % 2], content=f"{begin} {found} {'w ' * 33_000}")
        searcher = store._searcher
        searcher.index.catch_up()
        for query in ("zebra", "zebra w", "zeb*", '"zebra crossing"', "crossing zebra", "cafe zebra", "東京 w", "x1"):
            for role in (None, "tool"):
                asked = SearchRequest(parse(query), None, 50, None, role, 0, 2**62)
                hits = searcher._ask(asked, None, None, indexed=True)
                assert hits == searcher._ask(asked, None, None, indexed=False), query
                assert hits or query == "x1"

    def test_s7_a_long_text_is_shown_without_reading_it(
        self, store: tape.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the words stand near its beginning, a long text is not read for a hit; a damaged excerpt makes it."""
        chat = store.tape("t")
        for n in range(3):
            chat.append(role="tool", content=f"zebra {n} " + "filler " * 10_000)
        assert len(store.search("zebra")) == 3
        read: list[int] = []
        finds = SearchRequest.finds

        def reading(asked: SearchRequest, tx: Any, row: Any, raw: bytes, *, indexed: bool = False) -> Any:
            read.append(row.seq)
            return finds(asked, tx, row, raw, indexed=indexed)

        monkeypatch.setattr(SearchRequest, "finds", reading)
        hits = store.search("zebra")
        assert (len(hits), read) == (3, [])
        store._db.engine.dispose()
        table = store._db.tables.texts
        with store._db.engine.begin() as connection:
            connection.execute(table.update().where(table.c.seq == 3).values(excerpt=b"[1,"))
        assert store.search("zebra") == hits
        assert read == [3]
        assert [problem.what for problem in store.verify().problems] == [
            "the text in the search index differs from the entry"
        ]

    def test_s8_texts_with_very_many_words_are_indexed_in_smaller_batches(self, store: tape.Store) -> None:
        """A batch ends early rather than hold the words of hundreds of large texts, and nothing is left out."""
        chat = store.tape("t")
        chat.extend([{"role": "user", "content": " ".join(f"w{n}x{k}" for k in range(30_000))} for n in range(10)])
        chat.append(role="user", content="last")
        index = store._searcher.index
        _, rows, ready = store._db.read(index._batch)
        assert (len(ready) < 10, len(rows) < 12) == (True, True)
        assert index.catch_up() == 12
        assert index.lag() == 0
        for query in ("w0x5", "w9x29999", "last"):
            assert len(store.search(query)) == 1

    def test_s7_the_score_is_the_share_of_what_is_shown(self, chat: tape.Tape) -> None:
        """The score of a hit does not depend on what is not shown of a long text."""
        chat.append(role="user", content="zebra", id="whole")
        chat.append(role="user", content=f"zebra {'filler ' * 50_000}", id="long")
        assert {hit.message_id: hit.score for hit in chat.search("zebra")} == {
            "whole": 1.0,
            "long": round(5 / WIDTH, 4),
        }
