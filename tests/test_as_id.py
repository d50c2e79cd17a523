"""``tape.as_id``: an id for whatever another program calls its things."""

from __future__ import annotations

import random
import re
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import size

import tape
from tape.core import strict

TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=300)
"""Any text that Python can hold: controls, halves of characters, and all others."""
NAMES = TEXT | st.sampled_from(["", " ", "~", "~~a", "a/b", "%2F", "a" * 256, "x~" + "0" * 32, "-~" + "f" * 32])
DIGESTED = re.compile(r"~[0-9a-f]{32}\Z")


def digested(name: str) -> str:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class TestOneName:
    """A name becomes an id, and stays what it is where it can."""

    @pytest.mark.parametrize(
        "name", ["chat-1", "a/b", "Zürich 東京", " padded ", "%41", "x" * 255, "a~b", "x~" + "0" * 31]
    )
    def test_a_name_that_can_be_an_id_is_one(self, name: str) -> None:
        """Nothing is quoted or cut that need not be."""
        assert tape.as_id(name) == name

    @pytest.mark.parametrize(
        ("name", "beginning"),
        [
            ("", "-"),
            ("~", "-"),
            ("~~own", "own"),
            ("a\nb\0c", "abc"),
            ("cut \ud83d", "cut "),
            ("   ", "   "),
            ("no\N{NO-BREAK SPACE}break", "nobreak"),
            ("x" * 256, "x" * 222),
            ("chat~" + "0" * 32, "chat~" + "0" * 32),
        ],
    )
    def test_any_other_keeps_its_readable_beginning(self, name: str, beginning: str) -> None:
        """Behind it stand the mark and the digest of the whole name, always the same."""
        assert tape.as_id(name) == f"{beginning}~{digested(name)}"

    def test_an_id_that_was_made_is_no_name_of_another(self) -> None:
        """What looks like a digested name is digested, so that nobody can name a tape of somebody else."""
        made = tape.as_id("x" * 300)
        assert tape.as_id(made) != made

    @pytest.mark.parametrize("most", [34, 100, 255])
    def test_an_id_can_be_shorter(self, most: int) -> None:
        """``most`` bounds its length, for those who put something before it."""
        assert len(tape.as_id("x" * 256, most=most)) == most
        assert tape.as_id("x" * most, most=most) == "x" * most

    def test_a_text_of_another_class_becomes_a_plain_one(self) -> None:
        """No driver is given a class of the caller's."""

        class Name(str):
            __slots__ = ()

        assert type(tape.as_id(Name("chat"))) is str


class TestSeveralNames:
    """Names that belong together are the parts of a path."""

    def test_they_can_be_read_back(self) -> None:
        """Each is quoted, so that what stands between two parts is always the mark."""
        names = ["app", "a/b", "50%", "", "Zürich"]
        made = tape.as_id(*names)
        assert made == "app/a%2Fb/50%25//Z%C3%BCrich"
        assert [unquote(part) for part in made.split("/")] == names

    def test_a_long_path_is_digested_as_a_whole(self) -> None:
        """Two that begin alike differ."""
        one, other = tape.as_id("app", "x" * 300, "a"), tape.as_id("app", "x" * 300, "b")
        assert one != other
        assert one[:222] == other[:222] == "app/" + "x" * 218

    def test_halves_of_characters_stay_apart(self) -> None:
        """They have no UTF-8, and still each has an id of its own."""
        assert tape.as_id("a", "\ud83d") != tape.as_id("a", "\ud83e")


class TestEveryId:
    """What holds for all names."""

    @settings(max_examples=size(300, 5_000))
    @given(names=st.lists(NAMES, min_size=1, max_size=4), most=st.integers(34, 255))
    def test_it_is_one_that_the_store_takes(self, names: list[str], most: int) -> None:
        """The store's own check accepts it, and it fits."""
        made = tape.as_id(*names, most=most)
        assert strict.identifier(made, "id") == made
        assert made.isprintable()
        assert len(made) <= most

    @settings(max_examples=size(300, 5_000))
    @given(names=st.lists(NAMES, min_size=1, max_size=4))
    def test_made_of_a_legal_name_it_is_that_name(self, names: list[str]) -> None:
        """An id that was not digested comes back as it is, however often it is asked for."""
        made = tape.as_id(*names)
        assert (tape.as_id(made) == made) == (DIGESTED.search(made) is None)

    @settings(max_examples=size(300, 5_000))
    @given(some=st.lists(NAMES, min_size=2, max_size=4), others=st.lists(NAMES, min_size=2, max_size=4))
    def test_two_lists_have_two_ids(self, some: list[str], others: list[str]) -> None:
        """Only the same names have the same id."""
        assert (tape.as_id(*some) == tape.as_id(*others)) == (some == others)

    def test_many_names_have_as_many_ids(self) -> None:
        """A large sample of names that are near each other, digested ones and those that look so among them."""
        chance = random.Random(7)
        parts = ["a", "b", "/", "~", "%", "\0", "\n", "\ud83d", "ä", " ", "%2F", "x" * 120, "~" + "0" * 32]
        names = {"".join(chance.choices(parts, k=chance.randrange(6))) for _ in range(30_000)}
        names |= {tape.as_id(name) for name in names}
        assert len({tape.as_id(name) for name in names}) == len(names) > 20_000
        choice = sorted(names)
        lists = {tuple(chance.choices(choice, k=chance.randrange(2, 4))) for _ in range(20_000)}
        assert len({tape.as_id(*one) for one in lists}) == len(lists)

    def test_a_tape_and_all_of_its_names_can_be_made_of_anything(self, store: tape.Store) -> None:
        """Both databases take the ids for tapes, owners, agents, labels, keys, messages and slots."""
        id, slot = tape.as_id("~\ud83d\0" + "x" * 300), tape.as_id("~\ud83d\0" + "x" * 300, most=240)
        chat = store.create(id, owner=id, agent=id, labels=[id], key=id)
        chat.append(role="user", content="hi", id=id)
        chat.put(slot, 1)
        assert (chat.info().owner, chat.info().labels, chat.state(slot)) == (id, [id], 1)
        assert [info.id for info in store.list(prefix="x" * 222)] == [id]


class TestRefusals:
    """What is no name."""

    @pytest.mark.parametrize("names", [(), (None,), (1,), (b"a",), ("a", None), (["a"],), ("a", ("b",))])
    def test_only_texts_are_names(self, names: tuple[Any, ...]) -> None:
        """A number or None may have been meant otherwise."""
        with pytest.raises(tape.InvalidEntry, match="names"):
            tape.as_id(*names)

    @pytest.mark.parametrize("most", [0, -1, 33, 256, True, "40", 40.0, None])
    def test_the_length_has_room_for_a_digest(self, most: Any) -> None:
        """Less than that could not tell names apart, and more no store takes."""
        with pytest.raises(tape.InvalidEntry, match="most"):
            tape.as_id("a", most=most)
