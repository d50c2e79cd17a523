"""E9: no write stores what a read cannot decode, and an entry that cannot be read harms its own tape only."""

from __future__ import annotations

import asyncio
import datetime
import io
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from support.backends import Backend
from support.damage import Tamperer
from support.sizes import heavy, size

import tape
from tape.core.entries import payloads
from tape.core.entries.message_kinds import as_message

WRONG_FIELDS = (
    b'{"id": 5, "message": 7, "label": 1, "op": null, "name": [], "slot": {}, "tape": 1, "input_tokens": "many", '
    b'"ids": 1, "status": 2, "read_only": null, "parent": 3, "labels": 4, "child": 5, "reason": 6}'
)
DAMAGES: dict[str, tuple[str, Any]] = {
    "no JSON": ("payload", b"\xff not JSON"),
    "another type": ("payload", b"[1, 2]"),
    "nothing of it": ("payload", b"{}"),
    "wrong fields": ("payload", WRONG_FIELDS),
    "meta": ("meta", b"{no JSON"),
    "the head": ("head_tape", 424242),
}
"""What may have become of an entry: the column, and what stands in it."""


def _everything(store: tape.Store, id: str) -> tape.Tape:
    """Return a tape with an entry of nearly every kind, in a family."""
    chat = store.create(
        id, messages=[{"id": "m1", "role": "user", "content": "hello there"}], labels=["l"], meta={"a": 1}
    )
    chat.append({"id": "m2", "role": "assistant", "content": "hello again"})
    chat.revise("m1", content="hello once more")
    chat.retract("m2")
    chat.restore("m2")
    chat.set_block("b", "text")
    chat.put("s", 1)
    chat.record_usage(input_tokens=3, cost=4)
    chat.event("score", {"n": 1})
    chat.extend([{"id": f"n{n}", "role": "user", "content": "hello"} for n in range(3)])
    chat.set_summary("in short", first="n0", last="n1")
    child = chat.fork(f"{id}/child")
    child.append(role="assistant", content="hello from the child")
    chat.merge(child)
    lost = chat.fork(f"{id}/lost")
    lost.discard("no use")
    chat.anchor("a")
    chat.handoff("h", summary="done")
    chat.rename("name")
    chat.label("more")
    chat.switch("n2")
    chat.clear()
    chat.complete()
    chat.reopen()
    return chat


class TestRecordable:
    """E9: no write stores what a read cannot decode."""

    @pytest.mark.parametrize(
        "given",
        [{"read_only": None}, {"read_only": 1}, {"read_only": "yes"}, {"description": 5}, {"max_tokens": 2.5}],
        ids=str,
    )
    def test_e9_a_block_of_no_such_configuration_is_refused(self, chat: tape.Tape, given: dict[str, Any]) -> None:
        """It is InvalidEntry with the parameter, and the tape and the feed can be read as before."""
        chat.set_block("memory", "x")
        before = chat.info()
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.set_block("memory", "y", **given)
        assert caught.value.field == next(iter(given))
        assert chat.info() == before
        assert [block.text for block in chat.blocks()] == ["x"]
        assert len(list(chat.entries())) == before.head

    def test_e9_what_every_kind_records_can_be_read_back(self) -> None:
        """Of every kind, with any field replaced by anything, what is recorded decodes to the same or is refused."""
        values: list[Any] = [
            None,
            5,
            5.0,
            "x",
            "\ud800",
            [1],
            [None],
            {"a": [()]},
            (1,),
            b"x",
            object(),
            float("nan"),
            True,
        ]
        with tape.open(":memory:") as store:
            _everything(store, "a")
            recorded = {entry.kind: entry.payload for entry in store.feed()}
        assert len(recorded) == 19
        refused = 0
        for kind, payload in recorded.items():
            assert payload is not None
            assert payloads.decode(kind, payload.version, payloads.recordable(payload)) == payload
            for field in payload.__struct_fields__:
                for value in values:
                    changed = msgspec.structs.replace(payload, **{field: value})
                    try:
                        raw = payloads.recordable(changed)
                    except tape.InvalidEntry:
                        refused += 1
                        continue
                    assert payloads.decode(kind, payload.version, raw) == changed
        assert refused > 500

    def test_e9_a_long_message_is_looked_at_once(self, chat: tape.Tape) -> None:
        """The rest of a long append is checked without its message, which was compared when it was encoded."""
        said = {"role": "user", "content": "long " * 2_000, "more": {"list": [1, 2.5, None, True]}}
        raw = as_message(msgspec.json.encode(said))
        fine = payloads.Append(id="m", message=raw)
        assert payloads.decode("append", 2, payloads.recordable(fine)) == payloads.Append(id="m", message=said)
        with pytest.raises(tape.InvalidEntry):
            payloads.recordable(payloads.Append(id="m", message=raw, tokens="many"))  # type: ignore[arg-type]
        chat.append(said)
        assert chat.messages()[0].to_dict() == said


@pytest.mark.alike
class TestUnreadable:
    """One entry that cannot be read is a fault of its tape, and of no other."""

    @heavy
    @pytest.mark.parametrize("damage", DAMAGES)
    def test_v5_an_unreadable_entry_stops_nothing_for_other_tapes(
        self, backend: Backend, store: tape.Store, damage: str
    ) -> None:
        """Feed, consumers, list, retain, rebuild, search and verify go on, whichever entry is damaged."""
        _everything(store, "good")
        bad = _everything(store, "bad")
        store.search("hello")
        whole = list(store.feed())
        infos = {info.id: info for info in store.list()}
        column, value = DAMAGES[damage]
        attack = Tamperer(backend)
        number = attack.tape_id("bad")
        # Whichever entry it is, what is read of it is the same on both engines: one of them need not try each. On the
        # other the damages begin at different entries, so that together they meet every one.
        begin, apart = (0, 6) if backend.postgres else (list(DAMAGES).index(damage), size(5, 1))
        for seq in range(1 + begin % apart, bad.info().head + 1, apart):
            kept = attack.entry(number, seq)
            at = {"tape_id": number, "seq": seq}
            assert attack.update("tape_entries", at, {column: value}) == 1
            with backend.open() as other:
                if kept[column] != value:
                    self._holds(other, whole, infos, seq)
                attack.update("tape_entries", at, {column: kept[column]})
                # What could be read, though it was never written, was folded into the view.
                other.rebuild("bad")
        with backend.open() as other:
            assert other.verify().ok
            assert other.rebuild() == 6
        attack.close()

    def _holds(self, store: tape.Store, whole: list[tape.Entry], infos: dict[str, tape.TapeInfo], seq: int) -> None:
        found = list(store.feed())
        assert [(one.tape, one.seq, one.key, one.position) for one in found] == [
            (one.tape, one.seq, one.key, one.position) for one in whole
        ]
        for entry, before in zip(found, whole, strict=True):
            if (entry.tape, entry.seq) != ("bad", seq):
                assert entry == before
            elif entry.unreadable is not None:
                assert entry.payload is None
                assert (entry.kind, entry.hash, entry.stamp) == (before.kind, before.hash, before.stamp)
        assert list(store.follow(timeout=0)) == found
        consumer = store.consumer("c")
        assert list(consumer) == found
        listed = {info.id: info for info in store.list()}
        assert {name: info for name, info in listed.items() if name != "bad"} == {
            name: info for name, info in infos.items() if name != "bad"
        }
        assert "bad" in listed
        told = store.retain(older_than=datetime.timedelta(0))
        assert {"good", "good/child", "good/lost"} <= set(told.tapes)
        assert set(told.tapes) | set(told.kept) == set(infos)
        report = store.verify()
        assert {problem.tape for problem in report.problems} == {"bad"}
        assert seq in {problem.seq for problem in report.problems}
        assert report.tapes == 6
        assert store.rebuild() >= 3
        assert {hit.tape for hit in store.search("hello")} >= {"good/child"}
        good = store.get("good")
        assert good.verify().ok
        good.context()
        store.export("good", io.BytesIO(), family=True)

    def test_v5_an_unreadable_tape_can_be_purged(self, backend: Backend, store: tape.Store) -> None:
        """A tape whose texts cannot be read any more goes with its forks, by ``purge`` and by ``retain``."""
        for call in ("purge", "retain"):
            bad = _everything(store, f"bad-{call}")
            good = _everything(store, f"good-{call}")
            store.search("hello")
            attack = Tamperer(backend)
            number = attack.tape_id(bad.id)
            for entry in bad.entries(kinds=["append", "revise", "usage", "block"]):
                attack.update("tape_entries", {"tape_id": number, "seq": entry.seq}, {"payload": b"no JSON"})
            attack.close()
            if call == "purge":
                assert store.purge(bad.id, forks=True).tapes == [bad.id, f"{bad.id}/child", f"{bad.id}/lost"]
            else:
                told = store.retain(older_than=datetime.timedelta(0), dry_run=False)
                assert {bad.id, good.id} <= set(told.tapes)
            with pytest.raises(tape.TapeNotFound):
                store.get(bad.id)
            if call == "purge":
                assert {hit.tape for hit in store.search("from the child")} == {f"{good.id}/child"}
            assert store.verify().ok

    def test_v5_the_tape_itself_says_what_is_damaged(self, backend: Backend, store: tape.Store) -> None:
        """Reads of the damaged tape are Corrupt, with the tape and the seq, and never another error."""
        chat = _everything(store, "bad")
        reads: list[Callable[[], Any]] = [
            chat.info,
            chat.messages,
            chat.context,
            chat.blocks,
            chat.states,
            chat.usage,
            chat.summaries,
            chat.anchors,
            chat.heads,
            chat.lineage,
            lambda: list(chat.entries()),
            lambda: chat.search("hello"),
            lambda: store.rebuild("bad"),
            lambda: store.export("bad", io.BytesIO()),
            lambda: chat.at(5).info(),
            lambda: chat.put("s", 2),
            lambda: chat.append_block("b", "x"),
            lambda: chat.fork(),
        ]
        attack = Tamperer(backend)
        number = attack.tape_id("bad")
        caught = []
        for begin, (column, value) in enumerate(DAMAGES.values()):
            for seq in range(1 + begin % 3, 12, 3) if backend.postgres else range(1, 12):
                kept = attack.entry(number, seq)
                at = {"tape_id": number, "seq": seq}
                attack.update("tape_entries", at, {column: value})
                for read in reads:
                    try:
                        read()
                    except tape.Corrupt as error:
                        caught.append((error.tape, error.seq))
                attack.update("tape_entries", at, {column: kept[column]})
        assert set(caught) == {("bad", seq) for seq in range(1, 12)}
        attack.close()

    def test_v5_an_async_feed_goes_on_as_well(self, backend: Backend, store: tape.Store) -> None:
        """The async twins of feed, follow and consumer show the same entries."""
        chat = _everything(store, "bad")
        attack = Tamperer(backend)
        attack.update("tape_entries", {"tape_id": attack.tape_id("bad"), "seq": 3}, {"payload": b"no JSON"})
        attack.close()
        expected = list(store.feed())
        assert [one.seq for one in expected if one.unreadable] == [3]
        assert chat.info().head > 3

        async def read() -> list[list[tape.Entry]]:
            async with tape.open_async(backend.url, **backend.options) as other:
                return [
                    [entry async for entry in other.feed()],
                    [entry async for entry in other.follow(timeout=0)],
                    [entry async for entry in other.consumer("c")],
                ]

        assert asyncio.run(read()) == [expected] * 3
