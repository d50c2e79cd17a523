"""Ids beside messages: a message's own id stays data, whatever is done with the message afterwards."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any, assert_type

import pytest
from support import forging
from support.backends import Backend

import tape
from tape.core.entries import payloads

pytestmark = pytest.mark.alike

OWN: list[Any] = ["__fake_id__", "msg_1", None, 7, 1.5, True, ["a"], {"b": 1}, "", "~m:x", "x" * 300, "a\0b"]
"""What a program may have under ``id``: none of it has to be an id of ours."""


def item(own: Any = "__fake_id__", content: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"id": own, "role": "assistant", "content": content, **more}


def stored(backend: Backend, kind: str = "append") -> list[dict[str, Any]]:
    """Return the payloads in the database, as they are there."""
    connection = backend.raw()
    try:
        rows = connection.execute(f"SELECT payload FROM tape_entries WHERE kind = '{kind}' ORDER BY tape_id, seq")
        return [json.loads(bytes(payload)) for (payload,) in rows.fetchall()]
    finally:
        connection.close()


class TestAppending:
    """What is written and read back."""

    @pytest.mark.parametrize("own", OWN, ids=repr)
    def test_an_id_beside_leaves_the_messages_own_as_data(self, chat: tape.Tape, own: Any) -> None:
        """The message has the id that was given beside it, and comes back equal to what was appended."""
        given = item(own)
        receipt = chat.append(given, id="X")
        (message,) = chat.messages()
        assert (receipt.message_id, message.id) == ("X", "X")
        assert message.to_dict() == given
        assert message.data["id"] == own
        assert chat.append(given, id="X").duplicate
        assert chat.verify().ok

    def test_without_one_the_messages_own_is_its_id(self, chat: tape.Tape) -> None:
        """As before: an id in the message names it, and one that cannot be an id is refused."""
        assert chat.append(item("m")).message_id == "m"
        for own in (7, "", "~m:x", "x" * 300, "a\0b"):
            with pytest.raises(tape.InvalidEntry) as caught:
                chat.append(item(own))
            assert caught.value.field == "message.id"
        assert chat.append(item(None)).message_id not in (None, "None")
        assert chat.messages()[-1].to_dict() == item(None)

    def test_a_creation_takes_ids_and_metas_too(self, store: tape.Store) -> None:
        """They stand beside its first messages as in ``extend``; the tape's own meta is none of theirs."""
        facts: dict[str, Any] = {"messages": [item(), item()], "ids": ["a", None], "metas": [None, {"run": 1}]}
        made = store.create("t", meta={"of": "tape"}, key="k", **facts)
        first, second = made.messages()
        assert (first.id, first.meta, first.to_dict()) == ("a", None, item())
        assert (second.id, second.meta) == ("__fake_id__", {"run": 1})
        assert made.info().meta == {"of": "tape"}
        assert store.create("t", meta={"of": "tape"}, key="k", **facts).info().head == 3
        with pytest.raises(tape.InvalidEntry, match="ids"):
            store.create("u", messages=[item()], ids=["a", "b"])
        assert store.tape("u").info().head == 0

    def test_a_page_is_typed_as_one(self, chat: tape.Tape) -> None:
        """A checker knows that ``limit`` makes a page, sync and async: this test is checked by mypy, too."""

        async def awaited(other: tape.AsyncTape) -> None:
            assert_type(await other.messages(), list[tape.Message])
            assert_type(await other.messages(limit=1, before="a"), tape.Page[tape.Message])

        assert_type(chat.messages(branch=None), list[tape.Message])
        assert_type(chat.messages(limit=0), tape.Page[tape.Message])
        assert chat.messages(limit=0).items == []
        assert asyncio.iscoroutinefunction(awaited)

    def test_items_that_share_an_id_are_all_kept(self, chat: tape.Tape) -> None:
        """An SDK gives every item the same id, and equal content: with ids beside them, none is dropped."""
        items = [item(), item(), item(content="other")]
        receipts = chat.extend(items, ids=[tape.new_id() for _ in items])
        assert [receipt.duplicate for receipt in receipts] == [False] * 3
        assert [message.to_dict() for message in chat.messages()] == items
        assert len({message.id for message in chat.messages()}) == 3

    def test_none_beside_a_message_is_as_without(self, chat: tape.Tape) -> None:
        """Of a batch each message has the id beside it, its own, or a new one."""
        receipts = chat.extend([item("a"), item("b"), {"role": "user", "content": "c"}], ids=["A", None, None])
        named = [receipt.message_id for receipt in receipts]
        assert named[:2] == ["A", "b"]
        assert [message.id for message in chat.messages()] == named
        assert chat.messages()[0].data["id"] == "a"

    def test_an_id_twice_in_a_batch_is_refused(self, store: tape.Store, chat: tape.Tape) -> None:
        """Equal or not, in the messages, beside them or one of each: the error names the second, nothing is written."""
        for given, ids, field in (
            ([item("a"), item("a")], None, "messages[1].id"),
            ([item("a"), item("a", "other")], None, "messages[1].id"),
            ([item("b"), item("a"), item("b")], None, "messages[2].id"),
            ([item("a"), item("b")], ["X", "X"], "ids[1]"),
            ([item("a"), item("b")], ["b", None], "messages[1].id"),
            ([item("a"), item("b")], [None, "a"], "ids[1]"),
        ):
            for write in (chat.extend, chat.replace_history):
                with pytest.raises(tape.InvalidEntry, match="an earlier message of the batch already") as caught:
                    write(given, ids=ids)
                assert caught.value.field == field
                assert ("pass ids=" in caught.value.why) == field.startswith("messages")
            with pytest.raises(tape.TapeNotFound):
                store.get("chat")
        with pytest.raises(tape.InvalidEntry, match="ids="):
            store.create("chat", messages=[item("a"), item("a")])

    @pytest.mark.parametrize(
        ("ids", "field"),
        [
            (["X"], "ids"),
            (["X", "Y", "Z"], "ids"),
            ("XY", "ids"),
            (5, "ids"),
            ([1, 2], "ids[0]"),
            (["", "Y"], "ids[0]"),
            (["X", "~m:a"], "ids[1]"),
            (["x" * 256, "Y"], "ids[0]"),
        ],
        ids=repr,
    )
    def test_bad_ids_are_refused(self, store: tape.Store, chat: tape.Tape, ids: Any, field: str) -> None:
        """As many as there are messages, each an id or None; and nothing is written otherwise."""
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.extend([item("a"), item("b")], ids=ids)
        assert caught.value.field == field
        with pytest.raises(tape.TapeNotFound):
            store.get("chat")

    def test_ids_may_come_from_anything_that_can_be_listed(self, chat: tape.Tape) -> None:
        """A generator, a tuple, the keys of a dict."""
        chat.extend((item("a") for _ in range(2)), ids=(name for name in "XY"))
        chat.extend([item("a")], ids={"Z": 1}.keys())
        chat.extend([], ids=[], metas=[])
        assert [message.id for message in chat.messages()] == ["X", "Y", "Z"]

    def test_async(self, backend: Backend) -> None:
        """The async twin takes the same."""

        async def run() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("chat")
                await chat.append(item("a"), id="X", meta={"n": 0}, occurred_at=5)
                await chat.extend([item("a"), item("a")], ids=["Y", "Z"], metas=[{"n": 1}, None])
                await chat.switch(None)
                assert [message.id for message in await chat.messages()] == []
                found = await chat.messages(branch="Z")
                assert [(message.id, message.meta, message.occurred) for message in found] == [
                    ("X", {"n": 0}, 5),
                    ("Y", {"n": 1}, None),
                    ("Z", None, None),
                ]

        asyncio.run(run())


class TestSameContent:
    """What makes two writes the same."""

    def test_where_the_id_stands_makes_no_difference(self, chat: tape.Tape) -> None:
        """In the message, beside it or both: the same message."""
        first = chat.append({"id": "m", "role": "user", "content": "x"})
        for given in ({"role": "user", "content": "x"}, {"id": "m", "role": "user", "content": "x"}):
            again = chat.append(given, id="m")
            assert (again.duplicate, again.seq) == (True, first.seq)

    @pytest.mark.parametrize("key", [None, "k"])
    def test_another_own_id_is_other_content(self, chat: tape.Tape, key: str | None) -> None:
        """Data is compared: another own id under the same id or key is a conflict, the same a duplicate."""
        first = chat.append(item("a"), id="X", key=key)
        assert chat.append(item("a"), id="X", key=key).seq == first.seq
        for other in (item("b"), {"role": "assistant", "content": "hello"}, item(None)):
            with pytest.raises(tape.ProvenanceConflict):
                chat.append(other, id="X", key=key)
        with pytest.raises(tape.ProvenanceConflict):
            chat.append(item("a"), id="Y", key=key or tape.new_id()) if key else chat.append(item("c"), id="X")
        assert chat.info().head == 2

    def test_a_batch_can_be_repeated(self, chat: tape.Tape) -> None:
        """With the same ids it is all duplicates, with others under its key a conflict."""
        items = [item(), item()]
        first = chat.extend(items, ids=["X", "Y"], key="k")
        again = chat.extend(items, ids=["X", "Y"], key="k")
        assert [(one.seq, one.duplicate) for one in again] == [(one.seq, True) for one in first]
        with pytest.raises(tape.ProvenanceConflict):
            chat.extend(items, ids=["X", "Z"], key="k")

    def test_revisions(self, chat: tape.Tape) -> None:
        """A revision replaces the own id like all data, and repeats and conflicts by it."""
        chat.append(item("a"), id="X")
        first = chat.revise("X", item("b", "new"), key="k")
        assert chat.message("X").to_dict() == item("b", "new")
        assert chat.revise("X", item("b", "new"), key="k").seq == first.seq
        with pytest.raises(tape.ProvenanceConflict):
            chat.revise("X", item("c", "new"), key="k")
        assert chat.revise("X", item("b", "new")).duplicate
        assert not chat.revise("X", item("d", "new")).duplicate
        chat.revise("X", content="newer")
        assert chat.message("X").to_dict() == item("d", "newer")
        chat.revise("X", {"content": "bare"})
        assert chat.message("X").to_dict() == {"role": "assistant", "content": "bare"}
        assert chat.message("X").id == "X"

    def test_a_message_that_says_its_own_id_keeps_it(self, chat: tape.Tape) -> None:
        """Where the id in the message is the message's, a revision cannot make it another."""
        chat.append({"id": "m", "role": "user", "content": "x"})
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.revise("m", {"id": "n", "content": "y"})
        assert caught.value.field == "message.id"
        chat.revise("m", {"content": "y"})
        assert chat.message("m").to_dict() == {"id": "m", "role": "user", "content": "y"}

    def test_upserts(self, chat: tape.Tape) -> None:
        """An upsert is aimed by the id beside it."""
        chat.upsert(item("a"), id="X")
        assert chat.upsert(item("a"), id="X").duplicate
        chat.upsert(item("b"), id="X")
        (message,) = chat.messages()
        assert (message.id, message.to_dict()) == ("X", item("b"))


class TestElsewhere:
    """Everything else that knows messages by their ids."""

    def test_reads_and_changes_go_by_the_messages_id(self, store: tape.Store, chat: tape.Tape) -> None:
        """Found, searched, retracted, restored, branched from and shown under it, and never under its own."""
        chat.extend([item("a", "zebra"), item("a", "lion")], ids=["X", "Y"])
        assert chat.find("a") is None
        assert [hit.message_id for hit in store.search("zebra")] == ["X"]
        assert [message.id for message in chat.children("X")] == ["Y"]
        chat.append({"role": "user", "content": "beside"}, parent="X", id="Z")
        assert [message.id for message in chat.heads()] == ["Y", "Z"]
        chat.switch("Y")
        assert [message.id for message in chat.context().messages] == ["X", "Y"]
        chat.retract("X")
        with pytest.raises(tape.UnknownMessage):
            chat.retract("a")
        chat.restore("X")
        chat.set_summary("in short", first="X", last="X")
        assert chat.summaries()[0].covers == ["X"]
        assert " X: " in chat.tools().call("tape_search", {"query": "zebra"})
        assert store.verify().ok

    def test_forks_inherit_them(self, chat: tape.Tape) -> None:
        """An inherited id is taken: the same content is a duplicate, another own id a conflict."""
        chat.append(item("a"), id="X")
        child = chat.fork("child")
        assert child.append(item("a"), id="X").duplicate
        with pytest.raises(tape.ProvenanceConflict):
            child.append(item("b"), id="X")
        child.append(item("a", "more"), id="Y")
        assert [(m.id, m.to_dict()) for m in child.messages()] == [("X", item("a")), ("Y", item("a", "more"))]

    def test_a_merge_leaves_data_alone(self, store: tape.Store, chat: tape.Tape) -> None:
        """A copy whose id is taken gets a new one: in the message only where it says its own there."""
        chat.append({"role": "user", "content": "hi"}, id="top")
        child = chat.fork("child")
        for name in ("X", "Y", "Z"):
            chat.append(item("p", f"parent {name}"), id=name)
        child.append(item("a", "own id"), id="X")
        child.append({"id": "Y", "role": "user", "content": "its own"})
        child.append({"role": "user", "content": "none"}, id="Z")
        child.append(item("free", "free"), id="F")
        first = chat.merge(child)
        x, y, z, f = (chat.message(id) for id in first.message_ids)
        assert x.to_dict() == item("a", "own id")
        assert y.to_dict() == {"id": y.id, "role": "user", "content": "its own"}
        assert z.to_dict() == {"role": "user", "content": "none"}
        assert (f.id, f.to_dict()) == ("F", item("free", "free"))
        assert {"X", "Y", "Z"}.isdisjoint(first.message_ids)
        # The renamed ones are followed by later merges.
        child.revise("X", item("b", "again"))
        child.revise("Y", content="more")
        child.retract("Z")
        second = chat.merge(child)
        assert chat.message(x.id).to_dict() == item("b", "again")
        assert chat.message(y.id).to_dict() == {"id": y.id, "role": "user", "content": "more"}
        assert chat.find(z.id) is None
        assert sorted(second.changed) == sorted([x.id, y.id, z.id])
        assert chat.merge(child).duplicate
        assert store.verify().ok

    def test_both_sides_changed_the_own_id(self, chat: tape.Tape) -> None:
        """That is a conflict like any other difference in what a message says; the same change is none."""
        chat.append(item("a"), id="X")
        child, other = chat.fork("child"), chat.fork("other")
        chat.revise("X", item("b"))
        child.revise("X", item("c"))
        with pytest.raises(tape.MergeConflict):
            chat.merge(child)
        chat.merge(child, on_conflict="theirs")
        assert chat.message("X").to_dict() == item("c")
        other.revise("X", item("c"))
        chat.merge(other)

    def test_exported_rebuilt_and_imported(self, backend: Backend, store: tape.Store, chat: tape.Tape) -> None:
        """The file round-trips byte for byte, and a rebuilt view is the same."""
        for number, own in enumerate(OWN):
            chat.append(item(own, f"zebra {number}"), id=f"m{number}")
        chat.append(item("k", "keyed"), id="K", key="key")
        chat.append(item("long"), id="i" * 255)
        chat.switch(None)
        chat.append(item("root"), id="R")
        chat.fork("child").append(item("c"), id="C")
        before = [message.to_dict() for message in chat.messages(branch="i" * 255)]
        file, again = io.BytesIO(), io.BytesIO()
        store.export("chat", file, family=True)
        with tape.open(":memory:") as other:
            other.import_(io.BytesIO(file.getvalue()))
            other.export("chat", again, family=True)
            assert again.getvalue() == file.getvalue()
            assert [m.to_dict() for m in other.get("chat").messages(branch="i" * 255)] == before
            assert other.verify().ok
        store.rebuild()
        assert [m.to_dict() for m in chat.messages(branch="i" * 255)] == before
        assert {hit.message_id for hit in store.search("zebra", limit=50)} == {f"m{n}" for n in range(len(OWN))}
        assert store.verify().ok

    def test_replacing_a_history(self, chat: tape.Tape) -> None:
        """Ids beside the messages that are on the tape already give way to new ones, which leave data as it is."""
        chat.extend([item("a"), item("a")], ids=["X", "Y"])
        receipts = chat.replace_history(
            [item("a"), item("b"), {"id": "Y", "content": 1}], ids=["X", "N", None], key="k"
        )
        messages = chat.messages()
        assert [message.id for message in messages] == [receipt.message_id for receipt in receipts[1:]]
        assert messages[1].id == "N"
        assert {"X", "Y"}.isdisjoint(message.id for message in messages)
        assert [m.to_dict() for m in messages] == [item("a"), item("b"), {"id": messages[2].id, "content": 1}]
        again = chat.replace_history([item("a"), item("b"), {"id": "Y", "content": 1}], ids=["X", "N", None], key="k")
        assert [(one.seq, one.duplicate) for one in again] == [(one.seq, True) for one in receipts]
        cited = [entry.source and entry.source.seq for entry in chat.entries(kinds=["append"])]
        assert cited == [None, None, 2, None, 3]

    def test_replacing_with_messages_that_are_there_keeps_their_own_data(self, chat: tape.Tape) -> None:
        """A tool call that is told by the message's own id goes by the new one, as its result would."""
        chat.append({"id": "m", "role": "user", "content": "x"})
        chat.replace_history([{"id": "m", "role": "user", "content": "x"}])
        (message,) = chat.messages()
        assert message.id != "m"
        assert message.to_dict() == {"id": message.id, "role": "user", "content": "x"}


class Model:
    """An object as Pydantic makes them."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        return {**self.fields, "mode": mode}


class Plain:
    """An object that only tells its fields, and has both ways to do so."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def to_dict(self) -> Any:
        if isinstance(self.made, Exception):
            raise self.made
        return self.made

    def model_dump(self) -> Any:
        raise AssertionError("to_dict comes first")


class TestObjects:
    """Messages that are objects of an SDK."""

    def test_objects_are_taken(self, store: tape.Store, chat: tape.Tape) -> None:
        """By every call that takes a message; Pydantic's are asked for JSON."""
        one = Model(id="a", role="user", content="x")
        chat.append(one)
        assert chat.message("a").to_dict() == {"id": "a", "role": "user", "content": "x", "mode": "json"}
        chat.extend([Plain({"content": 1}), {"content": 2}], ids=["b", "c"])
        chat.upsert(Plain({"id": "b", "content": 3}))
        chat.revise("c", Plain({"content": 4}))
        assert [message.content for message in chat.messages()] == ["x", 3, 4]
        chat.replace_history([Plain({"content": 5})])
        made = store.create("made", messages=[Plain({"content": 6})])
        assert [message.content for message in made.messages()] == [6]

    def test_a_message_of_a_tape_goes_to_another(self, store: tape.Store, chat: tape.Tape) -> None:
        """What was read can be appended elsewhere as it is."""
        chat.extend([item("a"), item("b")], ids=["X", "Y"])
        other = store.tape("other")
        other.extend(chat.messages(), ids=[message.id for message in chat.messages()])
        assert [(m.id, m.to_dict()) for m in other.messages()] == [(m.id, m.to_dict()) for m in chat.messages()]

    @pytest.mark.parametrize(
        "bad",
        [
            Plain([1]),
            Plain(None),
            Plain("text"),
            Plain(ValueError("no")),
            Plain({"a": (1,)}),
            object(),
            Model,
            5,
            "text",
        ],
        ids=lambda bad: str(getattr(bad, "made", bad))[:20],
    )
    def test_what_is_no_message_is_refused(self, store: tape.Store, chat: tape.Tape, bad: Any) -> None:
        """Whatever the object does: InvalidEntry that names the message, and nothing written."""
        for call in (lambda: chat.append(bad), lambda: chat.extend([bad]), lambda: chat.upsert(bad)):
            with pytest.raises(tape.InvalidEntry) as caught:
                call()
            assert caught.value.field.startswith("message")
        with pytest.raises(tape.TapeNotFound):
            store.get("chat")


class TestStored:
    """The id is on disk once."""

    def test_the_payload_does_not_repeat_what_the_key_holds(self, backend: Backend, chat: tape.Tape) -> None:
        """Only under a caller's key, or where the key is a digest, the payload names the message."""
        chat.append({"role": "user", "content": "generated"})
        chat.append({"role": "user", "content": "beside"}, id="X")
        chat.append({"id": "m", "role": "user", "content": "in it"})
        chat.append({"role": "user", "content": "keyed"}, id="K", key="k")
        chat.append({"role": "user", "content": "long"}, id="i" * 255)
        assert [one.get("id") for one in stored(backend)] == [None, None, None, "K", "i" * 255]
        assert [entry.payload.id for entry in chat.entries(kinds=["append"])] == [m.id for m in chat.messages()]  # type: ignore[union-attr]
        assert {entry.version for entry in chat.entries(kinds=["append"])} == {2}

    def test_a_message_without_any_id_is_refused_and_named(self, chat: tape.Tape) -> None:
        """An entry without an id in its payload or its key is neither imported nor decoded."""
        entry = payloads.Append(message={"role": "user", "content": "x"}, aliased=True)
        lines = forging.forged("t", payloads.Open(), entry, heads=[(0, 0, None), (2, 1, None)], keys=["k0", "k1"])
        why = "neither the payload nor the key 'k1' contains the message id"
        with tape.open(":memory:") as store, pytest.raises(tape.ImportFailed, match=why):
            store.import_(forging.file(lines))
        with pytest.raises(tape.Corrupt, match=why):
            payloads.body_of("append", 2, b'{"message":{}}', "k1")
        for bad in ("~m:", "~#abc", ""):
            with pytest.raises(tape.Corrupt):
                payloads.decode("append", 2, b'{"message":{}}', key=bad)

    def test_a_file_cannot_name_a_message_by_another_key(self) -> None:
        """What is omitted is taken from the key; what is said must be what the key says."""
        for entry, key in (
            (payloads.Append(message={"content": 1}, id="a"), "~m:b"),
            (payloads.Append(message={"content": 1}), "~m:~x"),
            (payloads.Append(message={"content": 1}, aliased=True), "~m:a"),
        ):
            lines = forging.forged("t", payloads.Open(), entry, heads=[(0, 0, None), (2, 1, None)], keys=["k0", key])
            with tape.open(":memory:") as store, pytest.raises(tape.ImportFailed):
                store.import_(forging.file(lines))
        fine = payloads.Append(message={"content": 1})
        lines = forging.forged("t", payloads.Open(), fine, heads=[(0, 0, None), (2, 1, None)], keys=["k0", "~m:a"])
        with tape.open(":memory:") as store:
            store.import_(forging.file(lines))
            assert store.get("t").message("a").content == 1


def test_new_ids_are_public_and_in_order() -> None:
    """They ascend, and none comes twice."""
    made = [tape.new_id() for _ in range(1_000)]
    assert made == sorted(set(made))
