"""E9 and E11: what a tape cannot hold is refused by a typed error that names the field, and nothing is written."""

from __future__ import annotations

import datetime
import decimal
import io
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.backends import Backend
from support.damage import contents
from support.verbs import VERBS, Verb, each_verb, prepare

import tape

pytestmark = pytest.mark.alike


def _deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def _cycle() -> Any:
    value: dict[str, Any] = {"a": {}}
    value["a"]["b"] = [value]
    return value


BAD_JSON: dict[str, Any] = {
    "NaN": float("nan"),
    "infinity": float("inf"),
    "negative infinity": float("-inf"),
    "a lone surrogate": "a\ud800",
    "the other half": "\udfffb",
    "a pair of halves": "\ud83d\ude00",
    "a surrogate in a key": {"\ud800": 1},
    "a number as a key": {1: "a"},
    "None as a key": {None: "a"},
    "a bool as a key": {True: "a"},
    "a tuple": (1, 2),
    "a set": {1, 2},
    "bytes": b"abc",
    "a decimal": decimal.Decimal("1.5"),
    "a date": datetime.date(2026, 1, 1),
    "a datetime": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    "a UUID": uuid.UUID(int=7),
    "an object": object(),
    "a complex number": 1j,
    "a cycle": _cycle(),
    "nesting past the limit": _deep(250),
    "nesting past the stack": _deep(100_000),
    "an integer that no text holds": 10**5000,
    "NaN far inside": {"a": [{"b": [float("nan")]}]},
    "a tuple far inside": {"a": [{"b": [(1,)]}]},
}

BAD_IDS: dict[str, Any] = {
    "empty": "",
    "a number": 5,
    "a bool": True,
    "bytes": b"abc",
    "a list": ["a"],
    "over-long": "x" * 256,
    "a line break": "a\nb",
    "NUL": "a\0b",
    "DEL": "a\x7f",
    "a C1 control": "a\x85b",
    "a lone surrogate": "a\ud800",
    "reserved": "~x",
}

BAD_TEXTS: dict[str, Any] = {
    "a number": 5,
    "a list": ["a"],
    "bytes": b"a",
    "blank": "  ",
    "empty": "",
    "NUL": "a\0b",
    "a lone surrogate": "\ud800",
}

BAD_POSITIONS: dict[str, Any] = {
    "negative": -1,
    "more than any": 2**100,
    "text": "1",
    "a fraction": 1.0,
    "a bool": True,
    "None": None,
}

BAD_SEQS: dict[str, Any] = {**BAD_POSITIONS, "of 64 bits": 2**63, "huge": 2**70}

BAD_LIMITS: dict[str, Any] = {"none": 0, **BAD_SEQS}

BAD_TIMES: dict[str, Any] = {
    "NaN": float("nan"),
    "negative": -0.5,
    "text": "1",
    "a bool": True,
    "more than a float": 10**400,
}

Call = Callable[[tape.Store, tape.Tape, Any], Any]

JSON_FIELDS: dict[str, tuple[Call, str]] = {
    "append content": (lambda s, t, v: t.append(role="user", content=v), "message.content"),
    "append message": (lambda s, t, v: t.append({"role": "user", "more": v}), "message.more"),
    "append meta": (lambda s, t, v: t.append(role="user", content="x", meta={"m": v}), "meta.m"),
    "extend": (lambda s, t, v: t.extend([{"content": "fine"}, {"content": v}]), "messages[1].content"),
    "upsert": (lambda s, t, v: t.upsert({"id": "m1", "role": "user", "content": v}), "message.content"),
    "revise content": (lambda s, t, v: t.revise("m1", content=v), "content"),
    "revise message": (lambda s, t, v: t.revise("m1", {"role": "user", "content": v}), "message.content"),
    "replace_history": (lambda s, t, v: t.replace_history([{"content": v}]), "messages[0].content"),
    "anchor state": (lambda s, t, v: t.anchor("a", v), "state"),
    "handoff state": (lambda s, t, v: t.handoff("h", summary="s", state=v), "state"),
    "event data": (lambda s, t, v: t.event("e", v), "data"),
    "create meta": (lambda s, t, v: s.create(meta={"m": v}), "meta.m"),
    "create messages": (lambda s, t, v: s.create(messages=[{"content": v}]), "messages[0].content"),
    "merge message": (
        lambda s, t, v: t.merge(f"{t.id}/child", strategy="squash", summary="s", message={"more": v}),
        "message.more",
    ),
    "merge content": (lambda s, t, v: t.merge(f"{t.id}/child", strategy="squash", content=v), "message.content"),
}

ID_FIELDS: dict[str, tuple[Call, str]] = {
    "append id": (lambda s, t, v: t.append(role="user", content="x", id=v), "id"),
    "append message id": (lambda s, t, v: t.append({"id": v, "content": "x"}), "message.id"),
    "append parent": (lambda s, t, v: t.append(role="user", content="x", parent=v), "parent"),
    "extend id": (lambda s, t, v: t.extend([{"content": 1}, {"id": v, "content": 2}]), "messages[1].id"),
    "extend parent": (lambda s, t, v: t.extend([{"content": 1}], parent=v), "parent"),
    "upsert id": (lambda s, t, v: t.upsert({"content": 1}, id=v), "id"),
    "revise id": (lambda s, t, v: t.revise(v, content="x"), "message_id"),
    "retract id": (lambda s, t, v: t.retract("m1", v), "ids"),
    "restore id": (lambda s, t, v: t.restore(v), "ids"),
    "switch id": (lambda s, t, v: t.switch(v), "message_id"),
    "replace_history id": (lambda s, t, v: t.replace_history([{"id": v, "content": 1}]), "messages[0].id"),
    "anchor name": (lambda s, t, v: t.anchor(v), "name"),
    "anchor source": (lambda s, t, v: t.anchor("a", source_ids=["m1", v]), "source_ids"),
    "handoff name": (lambda s, t, v: t.handoff(v, summary="s"), "name"),
    "handoff owner": (lambda s, t, v: t.handoff("h", summary="s", owner=v), "owner"),
    "handoff source": (lambda s, t, v: t.handoff("h", summary="s", source_ids=[v]), "source_ids"),
    "event name": (lambda s, t, v: t.event(v), "name"),
    "fork id": (lambda s, t, v: t.fork(v), "id"),
    "merge child": (lambda s, t, v: t.merge(v), "child"),
    "create id": (lambda s, t, v: s.create(v), "id"),
    "create owner": (lambda s, t, v: s.create(owner=v), "owner"),
    "create agent": (lambda s, t, v: s.create(agent=v), "agent"),
    "create label": (lambda s, t, v: s.create(labels=["a", v]), "labels"),
    "get": (lambda s, t, v: s.get(v), "id"),
    "tape": (lambda s, t, v: s.tape(v), "id"),
}

TEXT_FIELDS: dict[str, tuple[Call, str]] = {
    "retract reason": (lambda s, t, v: t.retract("m1", reason=v), "reason"),
    "clear reason": (lambda s, t, v: t.clear(v), "reason"),
    "replace_history reason": (lambda s, t, v: t.replace_history([], reason=v), "reason"),
    "abandon reason": (lambda s, t, v: t.abandon(v), "reason"),
    "end reason": (lambda s, t, v: t.end(v), "reason"),
    "discard reason": (lambda s, t, v: s.get(f"{t.id}/child").discard(v), "reason"),
    "handoff summary": (lambda s, t, v: t.handoff("h", summary=v), "summary"),
    "handoff phase": (lambda s, t, v: t.handoff("h", summary="s", phase=v), "phase"),
    "handoff step": (lambda s, t, v: t.handoff("h", summary="s", next_steps=["a", v]), "next_steps"),
    "fork name": (lambda s, t, v: t.fork(name=v), "name"),
    "merge summary": (lambda s, t, v: t.merge(f"{t.id}/child", strategy="squash", summary=v), "summary"),
    "create name": (lambda s, t, v: s.create(name=v), "name"),
}

LIST_FIELDS: dict[str, tuple[Call, str]] = {
    "extend": (lambda s, t, v: t.extend(v), "messages"),
    "replace_history": (lambda s, t, v: t.replace_history(v), "messages"),
    "create messages": (lambda s, t, v: s.create(messages=v), "messages"),
    "create labels": (lambda s, t, v: s.create(labels=v), "labels"),
    "anchor sources": (lambda s, t, v: t.anchor("a", source_ids=v), "source_ids"),
    "anchor parents": (lambda s, t, v: t.anchor("a", parents=v), "parents"),
    "handoff sources": (lambda s, t, v: t.handoff("h", summary="s", source_ids=v), "source_ids"),
    "handoff steps": (lambda s, t, v: t.handoff("h", summary="s", next_steps=v), "next_steps"),
}


BOUNDED: dict[str, tuple[dict[str, Any], Call, str]] = {
    "feed": (BAD_POSITIONS, lambda s, t, v: s.feed(v), "after"),
    "follow": (BAD_POSITIONS, lambda s, t, v: s.follow(v), "after"),
    "commit": (BAD_POSITIONS, lambda s, t, v: s.consumer("c").commit(v), "position"),
    "follow timeout": (BAD_TIMES, lambda s, t, v: s.follow(timeout=v), "timeout"),
    "consumer timeout": (BAD_TIMES, lambda s, t, v: s.consumer("c").follow(timeout=v), "timeout"),
    "entries after": (BAD_SEQS, lambda s, t, v: t.entries(after=v), "after"),
    "recall": (BAD_SEQS, lambda s, t, v: t.recall(v), "seq"),
    "messages limit": ({**BAD_SEQS, "None": 2**64}, lambda s, t, v: t.messages(limit=v), "limit"),
    "anchors limit": (BAD_LIMITS, lambda s, t, v: t.anchors(limit=v), "limit"),
    "store search": (BAD_LIMITS, lambda s, t, v: s.search("x", limit=v), "limit"),
    "tape search": (BAD_LIMITS, lambda s, t, v: t.search("x", limit=v), "limit"),
    "feed limit": ({"huge": 2**70, "negative": -1, "text": "1"}, lambda s, t, v: s.feed(limit=v), "limit"),
    "entries limit": ({"huge": 2**70, "negative": -1, "text": "1"}, lambda s, t, v: t.entries(limit=v), "limit"),
    "list cursor": (
        {"huge": "9" * 30, "endless": "9" * 9_000, "negative": "-1", "a number": 5, "text": "x", "of both": "1.2"},
        lambda s, t, v: s.list(cursor=v),
        "cursor",
    ),
    "list cursor by change": (
        {"huge": "9" * 30 + ".1", "a huge end": "1." + "9" * 30, "negative": "-1.1", "of one": "1"},
        lambda s, t, v: s.list(cursor=v, order="updated"),
        "cursor",
    ),
    "retain": (
        {
            "endless": datetime.timedelta.max,
            "negative": datetime.timedelta(days=-1),
            "without a zone": datetime.datetime(2026, 1, 1),
            "a number": 5,
        },
        lambda s, t, v: s.retain(older_than=v, dry_run=False),
        "older_than",
    ),
    "verify": (
        {"a dict": {}, "one with a seq": {"seq": 1}, "a hash": "00"},
        lambda s, t, v: s.verify(against=v),
        "against",
    ),
    "export": (
        {"a number": 5, "None": None, "text": io.StringIO(), "bytes": b"x", "NUL": "a\0b", "empty": ""},
        lambda s, t, v: s.export(t.id, v),
        "file",
    ),
    "import": (
        {"a number": 5, "None": None, "text": io.StringIO("abc"), "bytes": b"x", "NUL": "a\0b", "a folder": "."},
        lambda s, t, v: s.import_(v),
        "file",
    ),
}
"""Numbers, times and files: the values to refuse, the call, and the field that must be named."""


class Untouched:
    """A tape that a test tries to write bad input to, and the state of everything before it did."""

    def __init__(self, backend: Backend, store: tape.Store) -> None:
        self._backend = backend
        self.store = store
        self.postgres = backend.postgres
        self.chat = prepare(self.store)
        self._info = self.chat.info()
        self._contents = contents(backend)

    def refuses(self, values: dict[str, Any], call: Call, field: str) -> None:
        """Hold that each value is InvalidEntry with the field, and that nothing was written."""
        for name, value in values.items():
            with pytest.raises(tape.InvalidEntry) as caught:
                call(self.store, self.chat, value)
                pytest.fail(f"{name} was accepted")
            error = caught.value
            assert error.field.startswith(field), name
            assert error.why, name
            assert str(error) == f"{error.field}: {error.why}"
        self.check()

    def check(self) -> None:
        """Hold that nothing was written."""
        assert self.chat.info() == self._info
        assert contents(self._backend) == self._contents


@pytest.fixture
def untouched(standing: Backend, guest: tape.Store) -> Iterator[Untouched]:
    made = Untouched(standing, guest)
    yield made
    made.check()


class TestBadInput:
    """Whatever the verb and the field."""

    @pytest.mark.parametrize("where", JSON_FIELDS)
    def test_e9_what_is_not_json_is_refused(self, untouched: Untouched, where: str) -> None:
        """Every sort of value that JSON cannot hold and give back equal is refused with the path to it."""
        untouched.refuses(BAD_JSON, *JSON_FIELDS[where])

    @pytest.mark.parametrize("where", ID_FIELDS)
    def test_e9_what_is_no_id_is_refused(self, untouched: Untouched, where: str) -> None:
        """Ids and names are strings of 1 to 255 characters without controls, outside the store's own namespace."""
        untouched.refuses(BAD_IDS, *ID_FIELDS[where])

    @pytest.mark.parametrize("where", TEXT_FIELDS)
    def test_e9_what_is_no_text_is_refused(self, untouched: Untouched, where: str) -> None:
        """Reasons, names and summaries are strings with something in them that both engines can store."""
        untouched.refuses(BAD_TEXTS, *TEXT_FIELDS[where])

    @pytest.mark.parametrize("where", LIST_FIELDS)
    def test_e9_what_is_no_list_is_refused(self, untouched: Untouched, where: str) -> None:
        """A single string, a dict or a number in place of a list is not taken apart."""
        untouched.refuses({"a string": "m1", "a dict": {"role": "user"}, "a number": 5}, *LIST_FIELDS[where])

    @pytest.mark.parametrize("where", BOUNDED)
    def test_e9_what_no_engine_can_take_is_refused(self, untouched: Untouched, where: str) -> None:
        """Positions, seqs, limits, cursors, times and files out of bounds are InvalidEntry, never a driver's error."""
        untouched.refuses(*BOUNDED[where])

    def test_e9_a_position_that_the_engine_cannot_have_is_refused(self, untouched: Untouched) -> None:
        """On SQLite a position is the number of a row, on PostgreSQL a transaction stands in front of it."""
        for position in (2**63, 2**70):
            if untouched.postgres:
                assert list(untouched.store.feed(position)) == []
            else:
                untouched.refuses({"far": position}, lambda s, t, v: s.feed(v), "after")
                untouched.refuses({"far": position}, lambda s, t, v: s.consumer("c").commit(v), "position")

    def test_e9_a_receipt_is_of_the_tape_that_is_verified(self, untouched: Untouched) -> None:
        """The receipt of another tape proves nothing about this one, so it is refused."""
        kept = next(iter(untouched.chat.entries()))
        other = f"{untouched.chat.id}/child"
        untouched.refuses({"another": kept}, lambda s, t, v: s.verify(other, against=v), "against")

    def test_e9_the_largest_limits_are_taken(self, store: tape.Store) -> None:
        """The greatest integer of the platform stands for no limit, as callers write it."""
        chat = store.create("a", messages=[{"role": "user", "content": "x"}])
        chat.anchor("b")
        assert list(chat.messages(limit=sys.maxsize)) == chat.messages()
        assert chat.anchors(limit=sys.maxsize) == chat.anchors()
        assert store.search("x", tape=chat.id, limit=sys.maxsize) == store.search("x", tape=chat.id)
        assert list(chat.entries(after=2**63 - 1, limit=sys.maxsize)) == []
        assert list(store.follow(2**63 - 1, timeout=0)) == []

    def test_e9_what_cannot_be_written_to_is_told(self, untouched: Untouched, tmp_path: Path) -> None:
        """An export into a folder that is not there, or onto one, is StoreFailed and leaves no file behind."""
        for target in (tmp_path / "missing" / "a.jsonl", tmp_path):
            with pytest.raises(tape.StoreFailed, match="cannot write"):
                untouched.store.export(untouched.chat.id, target)
        assert list(tmp_path.parent.glob("*.part")) == []

    @each_verb
    def test_e9_every_write_checks_its_common_arguments(self, untouched: Untouched, verb: Verb) -> None:
        """Key, actor, meta and expected_head are checked by every write."""

        def calls(argument: str) -> Call:
            target = f"{untouched.chat.id}/child" if verb.on_child else untouched.chat.id
            return lambda s, t, v: verb.call(s.get(target), **{argument: v})

        if verb.keyed:
            untouched.refuses(BAD_IDS, calls("key"), "key")
        untouched.refuses(BAD_IDS, calls("actor"), "actor")
        untouched.refuses({"a list": [1], "a string": "x", "a number": 5}, calls("meta"), "meta")
        nested = {name: {"deep": value} for name, value in BAD_JSON.items()}
        untouched.refuses(nested, calls("meta"), "meta.deep")
        heads = {"negative": -1, "text": "1", "a fraction": 1.0, "a bool": True, "a list": [1]}
        untouched.refuses(heads, calls("expected_head"), "expected_head")

    def test_e9_a_message_is_one_thing(self, untouched: Untouched) -> None:
        """A message is given as a dict or by keywords, has a role that is a string, and one id."""
        bad: dict[str, tuple[Call, str]] = {
            "nothing": (lambda s, t, v: t.append(), "message"),
            "both": (lambda s, t, v: t.append({"content": "x"}, role="user"), "message"),
            "a list": (lambda s, t, v: t.append(v), "message"),
            "a numeric role": (lambda s, t, v: t.append({"role": 5, "content": "x"}), "message.role"),
            "a revision of nothing": (lambda s, t, v: t.revise("m1"), "message"),
            "a revision of both": (lambda s, t, v: t.revise("m1", {"content": 1}, content=2), "message"),
            "a revision to another id": (lambda s, t, v: t.revise("m1", {"id": "m2", "content": 1}), "message.id"),
            "a revision to another role": (lambda s, t, v: t.revise("m1", {"role": "tool", "content": 1}), "message"),
            "a revision to a list": (lambda s, t, v: t.revise("m1", v), "message"),
            "retracting nothing": (lambda s, t, v: t.retract(), "ids"),
            "restoring what is there": (lambda s, t, v: t.restore("m1"), "ids"),
            "undoing no clear": (lambda s, t, v: t.restore(), "ids"),
            "a meta that is no dict": (lambda s, t, v: s.create(meta=v), "meta"),
        }
        for name, (call, field) in bad.items():
            untouched.refuses({name: [{"content": "x"}]}, call, field)

    def test_e9_a_mistyped_keyword_is_an_error(self, untouched: Untouched) -> None:
        """Keywords that no write knows are refused by Python itself, so that a mistyped condition is not ignored."""
        for verb in VERBS:
            if verb.method == "merge" or verb.on_child:
                continue
            with pytest.raises(TypeError):
                verb.call(untouched.chat, expected_haed=1)

    @pytest.mark.parametrize("parent", [[1], [99], [-1], [True], ["1"], [2.0]])
    def test_e9_an_anchors_parents_are_anchors(self, untouched: Untouched, parent: list[Any]) -> None:
        """The parents of an anchor are seqs of anchors of the same tape."""
        untouched.refuses({"parents": parent}, lambda s, t, v: t.anchor("a", parents=v), "parents")

    def test_e9_unknown_messages_are_refused(self, untouched: Untouched) -> None:
        """A write that names a message that is not there, or only on another tape, is UnknownMessage with its id."""
        untouched.store.get(f"{untouched.chat.id}/child")
        calls: list[Callable[[tape.Tape], Any]] = [
            lambda t: t.append(role="user", content="x", parent="c1"),
            lambda t: t.extend([{"content": "x"}], parent="c1"),
            lambda t: t.revise("c1", content="x"),
            lambda t: t.retract("m1", "c1"),
            lambda t: t.restore("m3", "c1"),
            lambda t: t.switch("c1"),
            lambda t: t.anchor("a", source_ids=["c1"]),
            lambda t: t.handoff("h", summary="s", source_ids=["m1", "c1"]),
        ]
        for call in calls:
            with pytest.raises(tape.UnknownMessage) as caught:
                call(untouched.chat)
            error = caught.value
            assert (error.tape, error.message_id, error.retracted) == (untouched.chat.id, "c1", False)

    def test_e9_retracted_messages_are_told_apart(self, untouched: Untouched) -> None:
        """A write to a retracted message is UnknownMessage, and says that it can be restored."""
        calls: list[Callable[[tape.Tape], Any]] = [
            lambda t: t.append(role="user", content="x", parent="m3"),
            lambda t: t.revise("m3", content="x"),
            lambda t: t.retract("m3"),
            lambda t: t.switch("m3"),
        ]
        for call in calls:
            with pytest.raises(tape.UnknownMessage) as caught:
                call(untouched.chat)
            assert (caught.value.message_id, caught.value.retracted) == ("m3", True)

    @pytest.mark.parametrize("url", ["", "mysql://x/y", "nothing://x", b"tape.db", 5])
    def test_e9_what_is_no_database_is_refused(self, url: Any) -> None:
        """Opening something else than a path, SQLite or PostgreSQL is InvalidEntry for the url."""
        with pytest.raises(tape.InvalidEntry) as caught:
            tape.open(url)
        assert caught.value.field == "url"

    @pytest.mark.blank
    def test_e9_options_of_open_are_checked(self, backend: Backend) -> None:
        """An unknown durability or an impossible owner is refused before anything is made."""
        bad: list[tuple[str, Any]] = [("durability", "most"), ("owner", ""), ("owner", 5)]
        for option, value in bad:
            with pytest.raises(tape.InvalidEntry) as caught:
                backend.open(**{option: value})
            assert caught.value.field == option

    def test_e9_points_and_limits_of_reads_are_checked(self, untouched: Untouched) -> None:
        """A point that is not on the tape, or a limit that is no count, is refused and not guessed."""
        for impossible in ("a\0b", "\ud800", "~m:m1", "", "x" * 300):
            assert untouched.chat.find(impossible) is None
            with pytest.raises(tape.UnknownMessage):
                untouched.chat.messages(branch=impossible)
        naive = datetime.datetime(2026, 1, 1)
        for point in (-1, 10**9, True, 1.5, None, naive, "nowhere", "a\0b", "\ud800", b"x"):
            with pytest.raises(tape.InvalidEntry) as caught:
                untouched.chat.at(point)  # type: ignore[arg-type]
            assert caught.value.field == "point"
        for limit in (0, -1, 1.5, True, "3"):
            if limit != 0:
                with pytest.raises(tape.InvalidEntry) as caught:
                    untouched.chat.messages(limit=limit)  # type: ignore[arg-type]
                assert caught.value.field == "limit"
            with pytest.raises(tape.InvalidEntry):
                untouched.chat.anchors(limit=limit)  # type: ignore[arg-type]


class TestEdges:
    """What is just allowed."""

    def test_e9_ids_of_full_length_work_everywhere(self, store: tape.Store) -> None:
        """Ids and keys of 255 characters, in any script, can be written, found, revised and repeated."""
        longest = "名" * 255
        chat = store.tape(longest)
        first = chat.append(id=longest, role="user", content="x")
        assert chat.append(id=longest, role="user", content="x").duplicate
        assert len(first.key) <= 255
        chat.revise(longest, content="y", key="k" * 255, actor="a" * 255)
        batch = chat.extend([{"content": 1}, {"content": 2}], key="b" * 255)
        assert len({receipt.key for receipt in batch}) == 2
        assert chat.extend([{"content": 1}, {"content": 2}], key="b" * 255)[1].duplicate
        assert store.get(longest).message(longest).content == "y"
        assert chat.fork("f" * 255).message(longest).content == "y"
        assert store.verify().ok

    def test_e9_ids_are_compared_bytewise(self, store: tape.Store) -> None:
        """Ids that differ only in case, accents, spaces or normal form are different."""
        names = ["a", "A", "á", "a\u0301", "a ", " a", "ａ"]
        chat = store.tape("chat")
        for name in names:
            assert not chat.append(id=name, role="user", content=name).duplicate
            store.create(name)
        assert [chat.message(name).content for name in names] == names
        assert [store.get(name).info().head for name in names] == [1] * 7

    def test_e9_nesting_up_to_the_limit_is_kept(self, chat: tape.Tape) -> None:
        """A value just within the limit comes back equal, and many brackets side by side are no nesting."""
        deep, wide = _deep(190), [_deep(0) for _ in range(5_000)]
        chat.append(id="deep", role="user", content=deep)
        chat.append(id="wide", role="user", content=wide)
        assert chat.message("deep").content == deep
        assert chat.message("wide").content == wide

    def test_e9_shared_parts_are_no_cycle(self, chat: tape.Tape) -> None:
        """The same list twice side by side is accepted."""
        part = [1, 2]
        chat.append(id="m", role="user", content={"a": part, "b": [part, part]})
        assert chat.message("m").content == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


class TestReservedNamespace:
    """Ids and keys that the store makes itself."""

    def test_e11_made_up_ids_cannot_be_appended_back(self, untouched: Untouched) -> None:
        """A message with an id of the store's own namespace, as an echo of what a view showed, is refused."""
        shown = "~summary:7"
        calls: list[Callable[[tape.Tape], Any]] = [
            lambda t: t.append({"id": shown, "role": "assistant", "content": "x"}),
            lambda t: t.append(role="assistant", content="x", id=shown),
            lambda t: t.extend([{"id": "a", "content": 1}, {"id": shown, "content": 2}]),
            lambda t: t.upsert({"id": shown, "content": 1}),
            lambda t: t.replace_history([{"id": shown, "content": 1}]),
        ]
        for call in calls:
            with pytest.raises(tape.InvalidEntry, match="'~'"):
                call(untouched.chat)

    def test_e11_ids_cannot_be_used(self, untouched: Untouched) -> None:
        """Every key that the store derives is one that no caller can pass."""
        keys = [entry.key for entry in untouched.chat.entries() if entry.kind in ("append", "fork")]
        assert len(keys) == 4
        for key in keys:
            assert key.startswith("~")
            with pytest.raises(tape.InvalidEntry):
                untouched.chat.event("e", key=key)
