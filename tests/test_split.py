"""S11: a tape ends, the next begins with its summary, and the old id leads there."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.backends import Backend

import tape
from tape.core.entries import payloads


@pytest.fixture
def old(store: tape.Store) -> tape.Tape:
    chat = store.create("old", name="Trip", owner="ann", agent="planner", labels=["a", "b"], meta={"model": "m-1"})
    chat.append(role="user", content="one")
    chat.append(role="assistant", content="two")
    return chat


class TestSplit:
    def test_s11_ends_the_old_tape(self, store: tape.Store, old: tape.Tape) -> None:
        """The old tape is ended with the reason "split", stays readable, and names its successor."""
        new = store.split("old", summary="They want to travel.")
        info = old.info()
        assert (info.status, info.reason, info.redirect, info.head) == ("ended", "split", new.id, 4)
        assert [message.content for message in old.messages()] == ["one", "two"]
        assert (old.at(3).info().redirect, old.at(3).info().status) == (None, "active")
        assert old.at(4).info().redirect == new.id
        assert store.list(status="ended")[0].redirect == new.id

    def test_s11_seeds_the_new_one(self, store: tape.Store, old: tape.Tape) -> None:
        """The new tape begins with a handoff that holds the summary and cites the old tape's last entry."""
        new = store.split("old", summary="They want to travel.")
        context = new.context()
        assert (context.messages, context.anchor.summary if context.anchor else None) == ([], "They want to travel.")
        opened, begun = new.entries()
        assert (opened.kind, begun.kind, begun.source) == ("open", "handoff", tape.Source("old", 3))
        assert new.append(role="user", content="three").seq == 3

    def test_s11_inherits_name_owner_agent_and_labels(self, store: tape.Store, old: tape.Tape) -> None:
        """The successor has what the old tape had at the end, unless another name is given."""
        old.rename("Journey")
        old.label("c", remove=["a"])
        new = store.split("old", summary="s").info()
        assert (new.name, new.owner, new.agent, new.labels) == ("Journey", "ann", "planner", ["b", "c"])
        assert (new.parent, new.status, new.redirect) == (None, "active", None)
        third = store.split(new.id, summary="s", name="Third").info()
        assert (third.name, third.labels) == ("Third", ["b", "c"])
        assert sorted(info.id for info in store.list(label="c")) == sorted(["old", new.id, third.id])

    def test_s11_inherits_blocks_and_state(self, backend: Backend) -> None:
        """The successor holds every block and slot as the old tape held it, inherited ones too, each citing it."""
        store = backend.open(
            slots=[tape.Slot("todo", version=3)],
            blocks=[tape.BlockSpec("rules", default="Be brief."), tape.BlockSpec("style", default="Plain.")],
        )
        above = store.create("above")
        above.set_block("memory", "tea", description="notes", max_tokens=50)
        above.put("gone", 1)
        old = above.fork("old")
        old.append_block("memory", "coffee")
        old.set_block("house", "Rule one.", read_only=True)
        old.remove_block("style")
        old.patch("todo", {"open": [1]})
        old.patch("todo", {"done": None, "left": 2})
        old.put("count", 7)
        old.patch("gone", None)
        old.record_usage(input_tokens=5, output_tokens=6)
        new = store.split("old", summary="s")

        def held(one: tape.Tape) -> list[tuple[str, str, str | None, int | None, bool]]:
            return [(b.label, b.text, b.description, b.max_tokens, b.read_only) for b in one.blocks()]

        assert held(new) == held(old)
        assert [label for label, *_ in held(new)] == ["rules", "memory", "house"]
        assert new.states() == old.states() == {"todo": {"open": [1], "left": 2}, "count": 7}
        assert (new.usage().calls, new.messages()) == (0, [])
        carried = [entry for entry in new.entries() if entry.kind in ("state", "block")]
        assert [entry.source for entry in carried] == [tape.Source("old", old.info().head - 1)] * 5
        assert {entry.payload.schema for entry in carried if isinstance(entry.payload, payloads.State)} == {0, 3}
        assert store.verify().problems == []
        new.append_block("memory", "milk")
        assert [text for label, text, *_ in held(new) if label == "memory"] == ["tea\ncoffee\nmilk"]

    def test_s11_a_write_to_the_old_one_names_the_new(self, store: tape.Store, old: tape.Tape) -> None:
        """What changes the view of the old tape is TapeClosed with the redirect; events and labels are accepted."""
        new = store.split("old", summary="s")
        for write in (
            lambda: old.append(role="user", content="x"),
            lambda: old.clear(),
            lambda: old.anchor("x"),
            lambda: store.split("old", summary="again"),
        ):
            with pytest.raises(tape.TapeClosed) as caught:
                write()
            closed = caught.value
            assert (closed.tape, closed.status, closed.reason, closed.redirect) == ("old", "ended", "split", new.id)
            assert repr(new.id) in str(closed)
        old.event("seen")
        old.label("archived")
        fork = old.fork("late")
        fork.append(role="user", content="x")
        with pytest.raises(tape.TapeClosed) as caught:
            old.merge(fork)
        assert caught.value.redirect == new.id

    def test_s11_reopen_takes_the_redirect_away(self, store: tape.Store, old: tape.Tape) -> None:
        """A reopened tape leads nowhere else and can be written again; the successor stays."""
        new = store.split("old", summary="s")
        old.reopen()
        assert (old.info().redirect, old.info().status) == (None, "active")
        old.append(role="user", content="x")
        assert store.get(new.id).info().head == 2

    def test_s11_verifies_and_rebuilds(self, store: tape.Store, old: tape.Tape) -> None:
        """Both tapes verify after a split, and a rebuild changes nothing."""
        new = store.split("old", summary="s")
        before = old.info(), new.info()
        assert store.rebuild() == 2
        assert (store.verify().problems, (old.info(), new.info())) == ([], before)

    def test_s11_is_one_transaction(self, store: tape.Store, old: tape.Tape) -> None:
        """A failure at any point leaves the old tape open and no new one."""

        class Boom(Exception):
            pass

        failed = 0
        while True:
            left = failed + 1

            def fault(point: str) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise Boom(point)

            store._db.fault = fault
            try:
                store.split("old", summary="s")
                break
            except Boom:
                failed += 1
            finally:
                store._db.fault = None
            assert [info.id for info in store.list()] == ["old"]
            assert (old.info().status, old.info().head) == ("active", 3)
        assert failed >= 5
        assert len(store.list()) == 2
        assert store.verify().problems == []

    def test_s11_a_key_makes_it_repeatable(self, store: tape.Store, old: tape.Tape) -> None:
        """The same key gives the same successor, also when that went on; with another summary it is a conflict."""
        made = store.split(old.id, summary="so far", key="turn-9")
        made.append(role="user", content="on")
        assert store.split(old.id, summary="so far", key="turn-9").id == made.id
        with pytest.raises(tape.ProvenanceConflict):
            store.split(old.id, summary="other", key="turn-9")
        with pytest.raises(tape.TapeClosed):
            store.split(old.id, summary="so far", key="turn-10")
        other = store.tape("other")
        other.append(role="user", content="x", key="used")
        with pytest.raises(tape.ProvenanceConflict):
            store.split("other", summary="so far", key="used")
        assert other.info().status == "active"

    def test_s11_what_cannot_be_split(self, store: tape.Store, old: tape.Tape) -> None:
        """A tape that is not there, a summary that says nothing, and a head that moved are refused."""
        with pytest.raises(tape.TapeNotFound):
            store.split("never", summary="s")
        for wrong in ("", "  "):
            with pytest.raises(tape.InvalidEntry):
                store.split("old", summary=wrong)
        with pytest.raises(tape.HeadMoved):
            store.split("old", summary="s", expected_head=2)
        assert (len(store.list()), old.info().status) == (1, "active")

    def test_s11_of_eight_at_once_one_splits(self, backend: Backend, store: tape.Store, old: tape.Tape) -> None:
        """Eight simultaneous splits make one successor, and seven are told its id."""
        made: list[str] = []
        told: list[str | None] = []
        ready = threading.Barrier(8)

        def go() -> None:
            ready.wait(timeout=30)
            try:
                made.append(store.split("old", summary="s").id)
            except tape.TapeClosed as closed:
                told.append(closed.redirect)

        threads = [threading.Thread(target=go) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert (len(made), told) == (1, made * 7)

    def test_s11_async_twin(self, backend: Backend) -> None:
        """The async store splits alike."""

        async def go() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = await store.create("old")
                new = await store.split("old", summary="s")
                assert (await chat.info()).redirect == new.id

        asyncio.run(go())
