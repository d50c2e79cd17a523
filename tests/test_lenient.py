"""``tape.lenient``: whatever a model or an SDK gives, made into what a tape takes, and told what that changed.

``tape.to_strict`` does so without a loss, and ``tape.from_strict`` gives the value back.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time
import types
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import heavy, size

import tape
from tape.core import strict

FFFD = "\N{REPLACEMENT CHARACTER}"


class Colour(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    YES = "yes"


@dataclasses.dataclass
class Data:
    a: Any
    b: Any = None


class Struct(msgspec.Struct):
    a: Any


class Dumps:
    """As Pydantic does: JSON when it can, and otherwise what there is."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        if mode == "json" and isinstance(self.value, bytes):
            raise ValueError("not UTF-8")
        return {"value": self.value}


class Odd:
    """Refuses to say anything."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "Odd()"


class Endless:
    """Holds another of its kind, and that another."""

    def to_dict(self) -> dict[str, Any]:
        return {"next": Endless()}


@dataclasses.dataclass(frozen=True)
class Key:
    text: str

    def __str__(self) -> str:
        return self.text


class Broken(collections.UserDict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


halved = st.text(st.characters(codec="utf-8") | st.sampled_from([chr(0xD800), chr(0xDBFF), chr(0xDC00), chr(0xDFFF)]))
"""Texts with halves of characters in them."""
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip
"""Strict JSON."""
anything = st.recursive(
    plain
    | halved
    | st.floats()
    | st.binary(max_size=20)
    | st.binary(max_size=20).map(bytearray)
    | st.integers(min_value=-(2**20_000), max_value=2**20_000)
    | st.decimals()
    | st.complex_numbers()
    | st.datetimes()
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.fractions()
    | st.sampled_from([Colour.RED, Word.YES, Odd(), object(), Odd, int, len, ..., NotImplemented, range(3)])
    | st.builds(Endless)
    | st.builds(lambda: (value for value in [1])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(collections.deque)
        | st.frozensets(halved | st.integers() | st.floats(), max_size=3)
        | st.dictionaries(
            halved | st.integers() | st.floats() | st.booleans() | st.none() | st.binary() | st.tuples(),
            inner,
            max_size=3,
        )
        | st.builds(Data, inner, inner)
        | st.builds(Struct, inner)
        | st.builds(Dumps, inner)
        | st.builds(lambda value: types.MappingProxyType({"a": value}), inner)
        | st.builds(lambda value: types.SimpleNamespace(a=value), inner)
        | st.builds(lambda value: Broken(a=value), inner)
    ),
    max_leaves=12,
)

unpaired = halved.filter(lambda text: not re.search("[\ud800-\udbff][\udc00-\udfff]", text))
"""Halves that no JSON joins to a character."""
python_json = st.recursive(
    plain | halved | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(unpaired | st.just("json"), inner, max_size=4),
    max_leaves=20,
)
"""What Python's json writes and reads again."""
composed = st.recursive(
    python_json | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(unpaired | st.integers() | st.floats(), max_size=3)
        | st.dictionaries(unpaired | st.integers() | st.none() | st.just("json"), inner, max_size=2)
        | st.builds(Data, inner, inner)
        | st.builds(Dumps, inner)
        | st.builds(lambda value: types.MappingProxyType({"json": value}), inner)
    ),
    max_leaves=12,
)
"""Such values inside of what JSON has no form for."""


class TestAnything:
    """What holds for every value."""

    @heavy
    @given(anything)
    @settings(max_examples=size(50, 150), deadline=None)
    def test_what_comes_back_is_taken(self, scratch: tape.Store, value: Any) -> None:
        """Any object becomes strict JSON: as a message's content, as meta and as state."""
        clean, replaced = tape.lenient({"role": "user", "content": value})
        assert all(isinstance(one, str) for one in replaced)
        strict.encode(clean, "message")
        strict.encode(replaced, "meta")
        chat = scratch.create()
        chat.append(clean, meta={"replaced": replaced})
        assert chat.messages()[0].to_dict() == clean
        alone, _ = tape.lenient(value)
        chat.append(role="user", content=alone)
        chat.put("slot", alone)

    @given(plain)
    @settings(max_examples=150, deadline=None)
    def test_what_is_strict_already_is_left_alone(self, value: Any) -> None:
        """It comes back equal, as a copy, with nothing to report."""
        clean, replaced = tape.lenient(value)
        assert replaced == []
        assert strict.encode(clean, "value") == strict.encode(value, "value")
        if isinstance(value, dict | list) and value:
            assert clean is not value

    @heavy
    @given(anything)
    @settings(max_examples=size(50, 120), deadline=None)
    def test_once_is_enough(self, value: Any) -> None:
        """What was made strict is strict: a second time changes and reports nothing."""
        clean, _ = tape.lenient(value)
        assert tape.lenient(clean) == (clean, [])


class TestValues:
    """How each value is converted, and how the report names it."""

    @pytest.mark.parametrize(
        ("value", "clean", "told"),
        [
            ({"a": "cut \ud83d"}, {"a": f"cut {FFFD}"}, ["a holds a lone surrogate"]),
            ("\udc00", FFFD, ["value holds a lone surrogate"]),
            ("\ud83d\ude00", "\U0001f600", ["value holds a split surrogate pair"]),
            ("a\ude00\ud83d\ude00\ud83d", f"a{FFFD}\U0001f600{FFFD}", ["value holds a lone surrogate"]),
            ({"\ud83d\ude00": 1}, {"\U0001f600": 1}, ["\U0001f600 key holds a split surrogate pair"]),
            ([1.5, math.nan], [1.5, None], ["[1] is nan"]),
            ({"a": [math.inf, -math.inf]}, {"a": [None, None]}, ["a[0] is inf", "a[1] is -inf"]),
            ({"a": (1, (2,))}, {"a": [1, [2]]}, ["a is a tuple", "a[1] is a tuple"]),
            ({"a": {3, 1, 2}}, {"a": [1, 2, 3]}, ["a is a set"]),
            ({"a": b"\xff\x00"}, {"a": "/wA="}, ["a is bytes and is now base64"]),
            ({1: "x"}, {"1": "x"}, ["1 is a key of type int"]),
            ({Colour.RED: "x"}, {"red": "x"}, ["red is a key of type Colour"]),
            (
                {None: 0, True: 1},
                {"null": 0, "true": 1},
                ["null is a key of type NoneType", "true is a key of type bool"],
            ),
            ({"\ud800": 1}, {FFFD: 1}, [f"{FFFD} key holds a lone surrogate"]),
            ({"a": Data(1, (2,))}, {"a": {"a": 1, "b": [2]}}, ["a is a Data", "a.b is a tuple"]),
            ({"a": Struct(1)}, {"a": {"a": 1}}, ["a is a Struct"]),
            ({"a": Dumps(1)}, {"a": {"value": 1}}, ["a is a Dumps"]),
            ({"a": Dumps(b"x")}, {"a": {"value": "eA=="}}, ["a is a Dumps", "a.value is bytes and is now base64"]),
            ({"a": Colour.RED}, {"a": "red"}, ["a is a Colour"]),
            ({"a": datetime.date(2026, 1, 2)}, {"a": "2026-01-02"}, ["a is a date"]),
            ({"a": decimal.Decimal("1.10")}, {"a": "1.10"}, ["a is a Decimal"]),
            ({"a": uuid.UUID(int=7)}, {"a": "00000000-0000-0000-0000-000000000007"}, ["a is a UUID"]),
            ({"a": pathlib.PurePosixPath("/x")}, {"a": "/x"}, ["a is a PurePosixPath"]),
            ({"a": Odd()}, {"a": "<Odd>"}, ["a is a Odd"]),
            ({"a": Broken(x=1)}, {"a": None}, ["a is a Broken", "a is a Broken that cannot be read (RuntimeError)"]),
        ],
        ids=lambda value: ascii(value)[:30] if isinstance(value, list) else "",
    )
    def test_each_value_is_converted_and_reported(self, value: Any, clean: Any, told: list[str]) -> None:
        """Each kind of value that JSON does not have becomes a JSON value, and the report names its place."""
        assert tape.lenient(value) == (clean, told)

    def test_a_word_of_an_enum_of_words_is_a_word(self) -> None:
        """What is equal to a string is one, and nothing is to be told."""
        clean, replaced = tape.lenient({"a": Word.YES, "b": math.nan})
        assert (clean["a"], type(clean["a"]), replaced) == ("yes", str, ["b is nan"])

    def test_no_value_is_lost_to_a_key(self) -> None:
        """Keys that become equal are numbered by primes, and the report names the duplicate."""
        halves = {f"x{chr(half)}": number for number, half in enumerate((0xD800, 0xDC00))}
        clean, replaced = tape.lenient({"1": "a", 1: "b", **halves})
        assert clean == {"1": "a", "1'": "b", f"x{FFFD}": 0, f"x{FFFD}'": 1}
        assert any("is a duplicate key" in one for one in replaced)
        clean, _ = tape.lenient({"\ud83d\ude00": 1, "\U0001f600": 2, Key("\ud83d\ude00"): 3})
        assert clean == {"\U0001f600": 1, "\U0001f600'": 2, "\U0001f600''": 3}

    def test_circles_and_depth(self) -> None:
        """A value in itself is cut there; what is nested too deeply is a text from there on."""
        circle: dict[str, Any] = {"a": 1}
        circle["self"] = [circle]
        assert tape.lenient(circle) == ({"a": 1, "self": [None]}, ["self[0] contains itself"])
        shared = [math.nan]
        assert tape.lenient([shared, shared])[0] == [[None], [None]]
        deep: Any = ["end"]
        for _ in range(5_000):
            deep = [deep]
        clean, replaced = tape.lenient({"content": deep})
        strict.encode(clean, "value")
        assert [one for one in replaced if "too deeply" in one]
        clean, replaced = tape.lenient(Endless())
        strict.encode(clean, "value")

    def test_the_value_itself_is_not_changed(self) -> None:
        """The caller's objects are as they were."""
        inner = [math.nan, (1, 2)]
        value = {"a": inner, 1: {2}}
        tape.lenient(value)
        assert value == {"a": inner, 1: {2}}
        assert value["a"] is inner
        assert inner[1] == (1, 2)

    def test_the_order_of_a_set_is_the_same_in_every_process(self) -> None:
        """Hashes of strings differ from process to process; what is stored does not."""
        code = "import tape; print(tape.lenient({'a', 'b', 'c', 'd', 'e'})[0])"
        made = set()
        for seed in ("1", "2", "3"):
            environment = {**os.environ, "PYTHONHASHSEED": seed}
            command = [sys.executable, "-c", code]
            made.add(
                subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True).stdout.strip()
            )
        assert made == {b"['a', 'b', 'c', 'd', 'e']"}


class TestToStrict:
    """A value is made strict so that it comes back."""

    @given(python_json)
    @settings(max_examples=size(200, 2_000), deadline=None)
    def test_what_python_can_write_as_json_comes_back(self, value: Any) -> None:
        """Every NaN, infinity and lone surrogate, also in keys; also what looks like a kept value."""
        made = tape.to_strict(value)
        strict.encode(made, "value")
        assert json.dumps(tape.from_strict(made)) == json.dumps(value)

    @given(composed)
    @settings(max_examples=size(100, 1_000), deadline=None)
    def test_anything_else_comes_back_as_lenient_makes_it(self, value: Any) -> None:
        """What can be kept inside of it is kept."""
        made = tape.to_strict(value)
        strict.encode(made, "value")
        back = tape.from_strict(made)
        assert tape.lenient(back)[0] == tape.lenient(value)[0]
        assert tape.to_strict(back) == made

    @heavy
    @given(anything)
    @settings(max_examples=size(50, 120), deadline=None)
    def test_it_is_taken_whatever_it_is(self, value: Any) -> None:
        """Also objects that cannot be read, and those that never end."""
        made = tape.to_strict(value)
        strict.encode({"meta": [made]}, "value")
        json.dumps(tape.from_strict(made))

    @given(plain)
    @settings(max_examples=150, deadline=None)
    def test_what_is_strict_already_is_left_alone(self, value: Any) -> None:
        """It comes back equal, as a copy, so that readers find it where it was put."""
        made = tape.to_strict(value)
        assert strict.encode(made, "value") == strict.encode(value, "value")
        if isinstance(value, dict | list) and value:
            assert made is not value

    @pytest.mark.parametrize(
        ("value", "made"),
        [
            ({"a": 1.5}, {"a": 1.5}),
            (2**70, 2**70),
            ({"a": (1, 2), "b": b"x"}, {"a": [1, 2], "b": "eA=="}),
            ({1: "a", "1": "b"}, {"1": "a", "1'": "b"}),
            ({"a": math.nan}, {"json": '{"a": NaN}'}),
            ([math.inf, -math.inf], {"json": "[Infinity, -Infinity]"}),
            ("cut \ud83d", {"json": '"cut \\ud83d"'}),
            ("\ud83d\ude00", "\U0001f600"),
            ({"\ud83d\ude00": 1, "\U0001f600": 2}, {"\U0001f600": 1, "\U0001f600'": 2}),
            ({"\U0001f600": math.nan, "\ud83d\ude00": 2}, {"json": '{"\\ud83d\\ude00": NaN, "\\ud83d\\ude00\'": 2}'}),
            ({"\ud83d": 1}, {"json": '{"\\ud83d": 1}'}),
            ({"json": 1}, {"json": '{"json": 1}'}),
            ({"json": '{"a": NaN}'}, {"json": '{"json": "{\\"a\\": NaN}"}'}),
            ({"json": 1, "other": 2}, {"json": 1, "other": 2}),
            (types.MappingProxyType({"json": (1,)}), {"json": '{"json": [1]}'}),
            (Dumps(math.nan), {"json": '{"value": NaN}'}),
            ({(1, 2): math.nan}, {"json": '{"(1, 2)": NaN}'}),
            ([10**5_000], [hex(10**5_000)]),
        ],
    )
    def test_each_value_is_converted_and_reported(self, value: Any, made: Any) -> None:
        """What is kept as a text is that of Python's json, and nothing is that need not be."""
        assert tape.to_strict(value) == made

    def test_depth_and_circles(self) -> None:
        """What no tape holds as it is because of its depth comes back; a circle is cut, as everywhere."""
        deep: Any = [math.nan, "end"]
        for _ in range(400):
            deep = [deep]
        assert json.dumps(tape.from_strict(tape.to_strict({"a": deep}))) == json.dumps({"a": deep})
        circle: dict[str, Any] = {"a": 1.5}
        circle["json"] = circle
        assert tape.from_strict(tape.to_strict(circle)) == {"a": 1.5, "json": None}
        del circle["a"]
        assert tape.from_strict(tape.to_strict(circle)) == {"json": None}
        long: list[Any] = [math.nan]
        inner = long
        for _ in range(300):
            inner.append([])
            inner = inner[-1]
        inner.append(long)
        strict.encode(tape.to_strict({"json": long}), "value")
        assert tape.from_strict(tape.to_strict({"json": long}))["json"][0] is None

    @pytest.mark.parametrize("levels", [191, 192, 193, 199, 200, 201, 400])
    def test_every_depth_fits_into_a_meta(self, scratch: tape.Store, levels: int) -> None:
        """What is strict JSON only by itself is kept, so that there is room for it where it is put."""
        deep: Any = 1
        for _ in range(levels):
            deep = [deep]
        made = tape.to_strict(deep)
        assert (made == deep) == (levels <= 192)
        chat = scratch.create()
        chat.append(role="user", content="hi", meta={"fw": made, "more": {"fw": [made]}})
        assert tape.from_strict((chat.messages()[0].meta or {})["fw"]) == deep
        assert tape.lenient(tape.to_strict([made]))[1] == []

    @pytest.mark.parametrize("levels", [0, 190, 195, 300])
    def test_no_value_is_lost_to_a_key(self, levels: int) -> None:
        """Keys that become equal stay apart however deep they are, as ``lenient`` keeps them."""
        keys = {True: 1, "true": 2, "true'": 3, None: 4, "null": 5, "\ud83d\ude00": 6, "\U0001f600": 7, "n": math.nan}
        expected = {"true": 1, "true'": 2, "true''": 3, "null": 4, "null'": 5, "\U0001f600": 6, "\U0001f600'": 7}
        value: Any = keys
        for _ in range(levels):
            value = [value]
        back = tape.from_strict(tape.to_strict(value))
        for _ in range(levels):
            (back,) = back
        assert math.isnan(back.pop("n"))
        assert back == expected

    def test_a_tape_holds_it(self, store: tape.Store) -> None:
        """As meta and as state, in both databases."""
        chat = store.create()
        value = {"scores": [1.5, -math.inf], "text": "cut \ud83d", "n": 2**70}
        chat.append(role="user", content="hi", meta={"value": tape.to_strict(value)})
        chat.put("slot", tape.to_strict(value))
        assert tape.from_strict((chat.messages()[0].meta or {})["value"]) == value
        assert tape.from_strict(chat.state("slot")) == value

    @pytest.mark.parametrize(
        "value", [None, 1, "json", [], {}, {"a": 1}, {"json": "x", "other": 1}, {"a": {"json": "x"}}]
    )
    def test_any_other_value_is_itself(self, value: Any) -> None:
        """Only a value that is kept as a whole is read."""
        assert tape.from_strict(value) is value

    @pytest.mark.parametrize("value", [{"json": 1}, {"json": None}, {"json": "{"}, {"json": ""}])
    def test_what_was_never_made_is_refused(self, value: Any) -> None:
        """A value of somebody else's that looks like a kept one."""
        with pytest.raises(tape.InvalidEntry, match="to_strict"):
            tape.from_strict(value)

    def test_the_usual_value_costs_what_lenient_costs(self) -> None:
        """Whoever keeps all metas so pays nothing for it."""
        value = {"messages": [{"role": "user", "content": "word " * 50, "n": n, "x": [1.5, None]} for n in range(200)]}

        def fastest(work: Any) -> float:
            took = []
            for _ in range(15):
                began = time.perf_counter()
                work(value)
                took.append(time.perf_counter() - began)
            return min(took)

        assert fastest(tape.to_strict) < 2 * fastest(tape.lenient)
