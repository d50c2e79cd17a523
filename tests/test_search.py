"""S7, S8: full text over one tape, an owner or the store, with the same hits on both engines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.backends import Backend
from support.sizes import heavy, size

import tape
from tape.core.messages.text import text_of
from tape.core.search import tokenizer
from tape.core.search.query import parse

CORPUS = [
    "Plan the trip to Lisbon in May",
    "the quick brown fox jumps over the lazy dog",
    "def getUserName(user_id: int) -> str: return HTTPServer.lookup(user_id)",
    "Traceback in path/to/file.py, line 42: KeyError('foo.bar')",
    "東京タワーに行きました。昨日は雨でした。",
    "我们明天去北京看长城",
    "한국어로 검색할 수 있어요",
    "Ein Café in Köln, naïve Straße, ÜBER ALLES",
    "emoji 🎉 party 🎊 time 👩‍👩‍👧 1️⃣",
    "quotes \"double\" and 'single' and `back` and “curly”",
    "NOT a AND b OR c NEAR d & e | f ! g <-> h :* x",
    "SELECT * FROM t WHERE a='b'; -- DROP TABLE students",
    '<div class="x">html &amp; entities</div>',
    "C++ and C# and F# and .NET and Node.js",
    "version 1.2.3-beta+build.4 costs $5.00 (20% off)",
    "फ़ाइल हिन्दी में है",
    "สวัสดีชาวโลก",
    "ﬁne ﬂow １２３ ｶﾞｷﾞ",
    "e\u0301clair decomposed, éclair composed",
    "snake_case_name kebab-case-name CamelCaseName SCREAMING_CASE",
    "it's the dog's dinner; don't",
    "tabs\tand\nnewlines\r\nhere",
    "x" * 300,
    "!!! ??? ***",
    "",
]
QUERIES = [
    "trip",
    "TRIP",
    "trip lisbon",
    "lisbon trip nowhere",
    "the",
    '"the lazy dog"',
    '"lazy the dog"',
    "qui*",
    "*",
    "q*k",
    "getUserName",
    "getusername",
    "user",
    "name",
    "user_id",
    "HTTPServer",
    "server",
    "http",
    "path/to/file.py",
    "file.py",
    '"to file"',
    "foo.bar",
    "bar foo",
    "KeyError('foo.bar')",
    "42",
    "東京",
    "東京タワー",
    "京タ",
    "東",
    "雨",
    "タワーに",
    "大阪",
    "昨日は雨",
    "京東",
    "北京",
    "长城",
    "北京 长城",
    "北长",
    "한국",
    "한국어",
    "검색",
    "国",
    "cafe",
    "CAFÉ",
    "koln",
    "Köln",
    "naive",
    "strasse",
    "straße",
    "uber",
    "über alles",
    "🎉",
    "🎉 party",
    "party 🎊 time",
    "1",
    "👩‍👩‍👧",
    "double",
    '"double"',
    '"',
    '""',
    '"""',
    '"double and',
    "'single'",
    "curly",
    "back",
    "AND",
    "a AND b",
    "NOT",
    "OR",
    "NEAR",
    "NEAR(a b)",
    "a OR zzz",
    "not a",
    "a & b",
    "f | zzz",
    "!g",
    "g <-> h",
    "x:*",
    "h:*",
    ":*",
    "-- DROP",
    "students;",
    "') OR 1=1 --",
    "a='b'",
    "t WHERE",
    "^the",
    "{words} : the",
    "words:the",
    "(the",
    "the)",
    "the + quick",
    '"the quick" + fox',
    "-the",
    "\\",
    "%",
    "_",
    "%s",
    "?",
    "$1",
    ":p",
    "'",
    "''",
    "\x00",
    "\x00the",
    "div",
    "<div>",
    "&amp;",
    "class x",
    "C++",
    "c#",
    "node.js",
    ".NET",
    "1.2.3",
    "$5.00",
    "20%",
    "5 00",
    "हिन्दी",
    "फ़ाइल",
    "ह",
    "สวัสดี",
    "ชาวโลก",
    "fine",
    "flow",
    "123",
    "ガギ",
    "éclair",
    "eclair",
    "e\u0301clair",
    "snake_case",
    "case",
    "camelcasename",
    "CamelCase",
    "screaming",
    "kebab",
    "it's",
    "don't",
    "dogs",
    "tabs and",
    "x" * 300,
    "x" * 299,
    "xxx*",
    "",
    " ",
    "\t\n",
    "\ud7ff",
    "\ufffd",
    "\ue000t1",
    "\ue000",
    "ß",
    "ﬀ",
    "İ",
    "ı",
]


def found(hits: list[tape.Hit]) -> list[tuple[str, int]]:
    return [(hit.tape, hit.seq) for hit in hits]


def ids(hits: list[tape.Hit]) -> list[str]:
    return [hit.message_id for hit in hits]


class TestQueries:
    def test_s7_all_words_must_match(self, chat: tape.Tape) -> None:
        """A message is found when it has every word of the query, in any order and case."""
        chat.append(role="user", content="Plan the trip to Lisbon", id="a")
        chat.append(role="assistant", content="A trip to Porto", id="b")
        assert ids(chat.search("trip")) == ["b", "a"]
        assert ids(chat.search("LISBON trip")) == ["a"]
        assert ids(chat.search("lisbon porto")) == []

    def test_s7_phrases_and_prefixes(self, chat: tape.Tape) -> None:
        """Quoted words must stand together; a trailing star finds all that begins so."""
        chat.append(role="user", content="the lazy dog sleeps", id="a")
        chat.append(role="user", content="the dog is lazy", id="b")
        assert ids(chat.search('"lazy dog"')) == ["a"]
        assert ids(chat.search("laz* dog")) == ["b", "a"]
        assert ids(chat.search("laz dog")) == []
        assert ids(chat.search('"the laz"*')) == ["a"]

    def test_s7_hits_tell_where_and_show_the_words(self, store: tape.Store) -> None:
        """A hit names tape, seq, message and role, and shows the text around the words with marks."""
        chat = store.tape("chat")
        receipt = chat.append(role="user", content="Plan the trip to Lisbon in May", id="m1")
        [hit] = store.search("lisbon trip")
        assert (hit.tape, hit.seq, hit.message_id, hit.role) == ("chat", receipt.seq, "m1", "user")
        assert hit.snippet == "Plan the «trip» to «Lisbon» in May"
        assert 0 < hit.score <= 1
        assert hit.recorded_at == chat.message("m1").recorded_at

    def test_s7_a_long_text_is_cut_around_the_first_hit(self, chat: tape.Tape) -> None:
        """The snippet of a long text is short, begins and ends with dots, and shows the word."""
        chat.append(role="user", content=f"{'before ' * 500}needle {'after ' * 500}")
        [hit] = chat.search("needle")
        assert hit.snippet.count("«needle»") == 1
        assert (hit.snippet[0], hit.snippet[-1]) == ("…", "…")
        assert len(hit.snippet) < 200

    def test_s7_newest_first_and_limited(self, store: tape.Store) -> None:
        """Hits come newest first across tapes, and no more than the limit."""
        for n in range(30):
            store.tape(f"t{n % 3}").append(role="user", content=f"word {n}", id=f"m{n}")
        assert ids(store.search("word")) == [f"m{n}" for n in range(29, 9, -1)]
        assert ids(store.search("word", limit=2)) == ["m29", "m28"]
        assert len(store.search("word", limit=100)) == 30

    def test_s7_the_same_hits_on_both_engines(self, pair: list[tape.Store]) -> None:
        """One corpus and one list of queries give the same hits in the same order on SQLite and PostgreSQL."""
        for store in pair:
            for n, content in enumerate(CORPUS):
                store.tape(f"t{n % 4}").append(role="user", content=content, id=f"m{n}")
        some = 0
        for query in QUERIES:
            left, right = (store.search(query, limit=100) for store in pair)
            assert [(h.tape, h.seq, h.message_id, h.snippet, h.score) for h in left] == [
                (h.tape, h.seq, h.message_id, h.snippet, h.score) for h in right
            ], query
            expected = [f"m{n}" for n, text in enumerate(CORPUS) if parse(query).match(text)]
            assert ids(left) == expected[::-1], query
            some += bool(left)
        assert some >= 90

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("東京", [4]),
            ("東", [4]),
            ("北京 长城", [5]),
            ("한국", [6]),
            ("cafe", [7]),
            ("strasse", [7]),
            ("user", [2]),
            ("getusername", [2]),
            ("path/to/file.py", [3]),
            ("<div>", [12]),
            ("🎉", []),
            ("🎉 party", [8]),
            ("a AND b", [10]),
            ("file.py OR", []),
            ("हिन्दी", [15]),
        ],
    )
    def test_s7_what_counts_as_a_word(self, store: tape.Store, query: str, expected: list[int]) -> None:
        """CJK is found by any part, accents and case do not count, code falls into words, symbols are ignored."""
        for n, content in enumerate(CORPUS[:16]):
            store.tape("t").append(role="user", content=content, id=f"m{n}")
        assert ids(store.search(query)) == [f"m{n}" for n in expected]

    @heavy
    @settings(max_examples=size(20, 240), deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(query=st.one_of(st.text(), st.lists(st.sampled_from(QUERIES), max_size=3).map(" ".join)))
    def test_s7_any_string_is_legal(self, pair: list[tape.Store], query: str) -> None:
        """No string makes a search fail, and both engines and the matcher itself agree on what it finds."""
        for store in pair:
            if not store.search("lisbon"):
                for n, content in enumerate(CORPUS):
                    store.tape("t").append(role="user", content=content, id=f"m{n}")
        expected = [f"m{n}" for n, text in enumerate(CORPUS) if parse(query).match(text)][::-1]
        assert [ids(store.search(query, limit=50)) for store in pair] == [expected, expected]

    @settings(max_examples=100, deadline=None, print_blob=True)
    @given(text=st.one_of(st.text(), st.text(alphabet=st.characters(max_codepoint=127))), query=st.text())
    def test_s7_the_index_never_hides_a_match(self, text: str, query: str) -> None:
        """Whatever the matcher finds in a text, the words indexed of it lead to."""
        tokens = tokenizer.vocabulary(text)
        assert set(tokens) == {token for word in tokenizer.scan(text) for token in word.tokens}
        for asked in (parse(query), parse(text)):
            if asked.match(text) is not None:
                assert all(
                    any(token.startswith(one.text) if one.prefix else token == one.text for token in tokens)
                    for one in asked.tokens()
                )
        assert not any(character.isspace() or character in "\"'_" for token in tokens for character in token)

    @pytest.mark.parametrize(
        "wrong", [{"limit": 0}, {"limit": True}, {"kind": "event"}, {"since": datetime(2026, 1, 1)}]
    )
    def test_s7_bad_arguments_name_the_field(self, store: tape.Store, wrong: dict[str, Any]) -> None:
        """An argument that cannot be is refused by name."""
        with pytest.raises(tape.InvalidEntry) as caught:
            store.search("x", **wrong)
        assert caught.value.field == next(iter(wrong))


SHAPES: list[tuple[dict[str, Any], list[str]]] = [
    ({"role": "user", "content": "plain marble"}, ["marble"]),
    ({"role": "user", "content": [{"type": "text", "text": "anthropic marble"}]}, ["anthropic marble"]),
    (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"\\u6771\\u4eac"}'},
                }
            ],
        },
        ["weather", "東京", "city"],
    ),
    ({"role": "tool", "tool_call_id": "c1", "content": '{"sky": "overcast"}'}, ["overcast", "sky"]),
    (
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "grep", "input": {"pattern": "needle", "n": 7}}],
        },
        ["grep needle 7", "pattern"],
    ),
    (
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "haystack"}]}
            ],
        },
        ["haystack"],
    ),
    (
        {"type": "function_call", "call_id": "c", "name": "search_web", "arguments": '{"q": "zebra"}'},
        ["zebra", "search_web"],
    ),
    ({"type": "function_call_output", "call_id": "c", "output": "stripes"}, ["stripes"]),
    (
        {
            "role": "assistant",
            "parts": [
                {"type": "tool-lookup", "toolCallId": "c", "input": {"term": "okapi"}, "output": {"legs": "four"}}
            ],
        },
        ["okapi", "legs four"],
    ),
    ({"role": "assistant", "parts": [{"type": "reasoning", "text": "because walrus"}]}, ["walrus"]),
    ({"role": "user", "content": "see", "annotation": "extra ocelot"}, ["ocelot"]),
]


class TestTexts:
    @pytest.mark.parametrize(("message", "queries"), SHAPES)
    def test_s7_text_of_every_shape_is_found(
        self, store: tape.Store, message: dict[str, Any], queries: list[str]
    ) -> None:
        """Words in content, parts, tool calls and results of every known shape are found."""
        receipt = store.tape("t").append(message)
        for query in queries:
            assert found(store.search(query)) == [("t", receipt.seq)], query

    def test_s7_media_and_ids_are_no_text(self) -> None:
        """Encoded media, ids and types are not taken for words."""
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo"}}
        url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo", "detail": "high"}}
        assert text_of({"role": "user", "id": "abc", "content": [{"type": "text", "text": "hi"}, image, url]}) == "hi"

    def test_s7_a_huge_text_is_indexed(self, store: tape.Store) -> None:
        """A text with more words than an index row can hold is found by its first ones, on either engine."""
        text = " ".join(f"word{n}" for n in range(200_000))
        store.tape("t").append(role="tool", content=text)
        assert len(store.search("word7 word99")) == 1
        assert len(store.search("word199999")) <= 1


class TestWhatHolds:
    def test_s7_revised_text_is_never_found(self, store: tape.Store) -> None:
        """After a revision only the new text is found; before and after the index has seen it."""
        chat = store.tape("t")
        chat.append(role="user", content="old words", id="m")
        assert len(store.search("old")) == 1
        receipt = chat.revise("m", content="new words")
        assert store.search("old") == []
        assert found(store.search("words")) == [("t", receipt.seq)]
        chat.revise("m", content="old words")
        assert len(store.search("old")) == 1
        assert len(store.search("words")) == 1

    def test_s7_retracted_text_is_never_found_and_restored_text_is(self, store: tape.Store) -> None:
        """Retraction hides a message from search with the tool results it takes along; restore brings both back."""
        chat = store.tape("t")
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        chat.append({"role": "assistant", "content": "asking giraffe", "tool_calls": [call]}, id="m")
        chat.append({"role": "tool", "tool_call_id": "c1", "content": "answer giraffe"})
        assert len(store.search("giraffe")) == 2
        chat.retract("m")
        assert store.search("giraffe") == []
        chat.restore("m")
        assert len(store.search("giraffe")) == 2

    def test_s7_cleared_text_is_never_found(self, store: tape.Store) -> None:
        """A clear hides everything before it, and undoing it brings everything back."""
        chat = store.tape("t")
        chat.append(role="user", content="giraffe one", id="m")
        chat.clear()
        chat.append(role="user", content="giraffe two")
        assert [hit.snippet for hit in store.search("giraffe")] == ["«giraffe» two"]
        assert [hit.snippet for hit in chat.search("giraffe")] == ["«giraffe» two"]
        chat.restore()
        assert len(store.search("giraffe")) == 2

    def test_s7_other_branches_are_found(self, chat: tape.Tape) -> None:
        """Every live message of a tape is found, on whichever branch."""
        root = chat.append(role="user", content="root zebra").message_id
        chat.append(role="assistant", content="left zebra")
        chat.append(role="assistant", content="right zebra", parent=root)
        assert len(chat.search("zebra")) == 3

    def test_s7_the_past_is_searched_as_it_was(self, chat: tape.Tape) -> None:
        """A tape at an earlier point finds what held then, and nothing later."""
        chat.append(role="user", content="first text", id="m")
        then = chat.info().head
        chat.revise("m", content="second text")
        chat.append(role="user", content="third text")
        assert [hit.snippet for hit in chat.at(then).search("text")] == ["first «text»"]
        assert [hit.snippet for hit in chat.search("text")] == ["third «text»", "second «text»"]

    def test_e2_a_duplicate_is_indexed_once(self, store: tape.Store) -> None:
        """The same append twice is one hit."""
        for _ in range(2):
            store.tape("t").append(role="user", content="zebra", key="k")
            assert len(store.search("zebra")) == 1

    def test_t8_revising_an_unknown_message_leaves_no_phantom(self, store: tape.Store) -> None:
        """A refused write is never found."""
        store.tape("t").append(role="user", content="hello")
        with pytest.raises(tape.UnknownMessage):
            store.tape("t").revise("nobody", content="phantom")
        assert store.search("phantom") == []


class TestForks:
    def test_s7_the_store_finds_a_text_once_under_its_writer(self, store: tape.Store) -> None:
        """However many forks inherit a message, the store finds it once, on the tape that wrote it."""
        parent = store.tape("parent")
        parent.append(role="user", content="shared zebra", id="m")
        for n in range(5):
            parent.fork(f"fork{n}")
        assert found(store.search("zebra")) == [("parent", 2)]
        assert found(store.search("zebra", tape="fork3")) == [("parent", 2)]

    def test_s7_a_fork_is_searched_as_it_sees_itself(self, store: tape.Store) -> None:
        """A fork finds what it inherits as of the fork, its own changes to it, and its own messages."""
        parent = store.tape("parent")
        parent.append(role="user", content="zebra one", id="a")
        parent.append(role="user", content="zebra two", id="b")
        parent.append(role="user", content="zebra three", id="c")
        fork = parent.fork("fork")
        parent.append(role="user", content="zebra later")
        parent.revise("a", content="parent zebra")
        parent.retract("b")
        fork.revise("c", content="fork zebra")
        fork.append(role="user", content="own zebra")
        assert [hit.snippet for hit in fork.search("zebra")] == [
            "own «zebra»",
            "fork «zebra»",
            "«zebra» two",
            "«zebra» one",
        ]
        assert [hit.snippet for hit in parent.search("zebra")] == ["parent «zebra»", "«zebra» later", "«zebra» three"]
        fork.retract("a")
        assert ids(fork.search("one")) == []
        fork.restore("a")
        assert ids(fork.search("one")) == ["a"]
        grandchild = fork.fork("grandchild")
        assert found(grandchild.search("zebra")) == found(fork.search("zebra"))
        assert sorted(hit.tape for hit in store.search("zebra")) == ["fork", "fork", "parent", "parent", "parent"]
        fork.clear()
        assert fork.search("zebra") == []
        assert len(grandchild.search("zebra")) == 4

    def test_s7_what_came_back_from_under_a_clear_is_found(self, store: tape.Store) -> None:
        """A fork that cleared what it inherits finds the messages that it restored since, and so do its own forks."""
        parent = store.tape("parent")
        parent.append(role="user", content="zebra one", id="a")
        parent.append(role="user", content="zebra two", id="b")
        fork = parent.fork("fork")
        fork.revise("b", content="fork zebra")
        fork.clear()
        before = fork.info().head
        for name, snippet in (("a", "«zebra» one"), ("b", "fork «zebra»")):
            fork.restore(name)
            grandchild = fork.fork()
            for chat in (fork, grandchild):
                assert snippet in [hit.snippet for hit in chat.search("zebra")]
                assert sorted(hit.message_id for hit in chat.search("zebra")) == sorted(m.id for m in chat.messages())
        assert fork.at(before).search("zebra") == []
        fork.retract("a")
        assert ids(fork.search("zebra")) == ["b"]
        assert sorted(ids(grandchild.search("zebra"))) == ["a", "b"]

    def test_f9_a_linked_fork_is_searched_up_to_its_frozen_head(self, store: tape.Store) -> None:
        """A linked child finds what it had when it was linked."""
        parent = store.tape("parent")
        parent.append(role="user", content="start")
        child = parent.fork("child")
        child.append(role="user", content="zebra before")
        parent.merge(child, strategy="link")
        child.append(role="user", content="zebra after")
        assert [hit.snippet for hit in parent.linked(child).search("zebra")] == ["«zebra» before"]


class TestNarrowing:
    def test_s7_per_tape_owner_and_store(self, backend: Backend) -> None:
        """A search covers one tape, one owner's tapes, or all."""
        store = backend.open()
        for owner, name in (("ann", "a1"), ("ann", "a2"), ("bob", "b1")):
            store.create(name, owner=owner, messages=[{"role": "user", "content": "zebra"}])
        assert sorted(hit.tape for hit in store.search("zebra")) == ["a1", "a2", "b1"]
        assert sorted(hit.tape for hit in store.search("zebra", owner="ann")) == ["a1", "a2"]
        assert [hit.tape for hit in store.search("zebra", tape="a2")] == ["a2"]
        assert store.search("zebra", tape="a2", owner="bob") == []
        assert store.search("zebra", tape="nothing") == []

    def test_s4_s16_a_scoped_store_finds_only_its_own(self, backend: Backend) -> None:
        """With an owner, no argument leads to another owner's text, indexed or not."""
        store = backend.open()
        store.create("a1", owner="ann", messages=[{"role": "user", "content": "zebra ann"}])
        store.create("b1", owner="bob", messages=[{"role": "user", "content": "zebra bob"}])
        ann = backend.open(owner="ann")
        for _ in range(2):
            assert [hit.tape for hit in ann.search("zebra")] == ["a1"]
            assert ann.search("zebra", tape="b1") == []
            assert ann.search("zebra", owner="bob") == []
            assert ann.tape("b1").search("zebra") == []
            store.tape("b1").append(role="user", content="zebra more")

    def test_s7_by_role_kind_and_time(self, backend: Backend) -> None:
        """Role, kind and time narrow the hits."""
        clock = iter(range(1_000_000, 100_000_000, 1_000_000))
        store = backend.open(clock=lambda: next(clock))
        chat = store.create("t")
        chat.append(role="user", content="zebra", id="a")
        chat.append(role="assistant", content="zebra", id="b")
        chat.revise("a", content="zebra again")
        moment = chat.message("b").recorded_at
        assert ids(store.search("zebra", role="assistant")) == ["b"]
        assert ids(store.search("zebra", kind="revise")) == ["a"]
        assert ids(store.search("zebra", since=moment)) == ["a", "b"]
        assert ids(store.search("zebra", until=moment)) == ["b"]
        assert ids(store.search("zebra", since=moment + timedelta(hours=1))) == []
        assert ids(store.search("zebra", until=datetime(1970, 1, 1, tzinfo=UTC))) == []
