"""Replay: the view at any point (R1), the entries themselves, and bounded reads of the view (C10)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from support.backends import Backend
from support.messages import say
from support.sizes import heavy, size

import tape
from tape import new_ids
from tape.core.view.in_memory import View

pytestmark = pytest.mark.alike

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def store(standing: Backend) -> tape.Store:
    return standing.open()


@pytest.fixture
def chat(store: tape.Store) -> tape.Tape:
    return store.tape(new_ids.new_id())


def shown(reads: tape.Snapshot) -> list[str]:
    return [message.id for message in reads.messages()]


def facts(reads: tape.Snapshot) -> Facts:
    """Return everything that can be read at a point."""
    context = reads.context()
    return {
        "messages": reads.messages(),
        "heads": reads.heads(),
        "children": {message.id: reads.children(message.id) for message in reads.messages()},
        "anchors": reads.anchors(),
        "context": [m.id for m in context.messages],
        "anchor": context.anchor,
        "head": context.head,
        "info": reads.info(),
        "kinds": [entry.kind for entry in reads.entries()],
    }


def page(reads: tape.Snapshot, **bounds: Any) -> tape.Page[tape.Message]:
    got = reads.messages(**bounds)
    assert isinstance(got, tape.Page)
    return got


def wild(chat: tape.Tape, steps: int, seed: int) -> list[Facts]:
    """Write at random and return what could be read after every entry."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    after: list[Facts] = []

    def seen() -> None:
        assert chat.info().head == len(after) + 1
        after.append(facts(chat))

    chat.event("begin", key="begin")
    after.append(facts(chat.at(1)))
    seen()
    while len(after) < steps:
        known = [str(entry.payload.id) for entry in chat.entries(kinds=["append"])]  # type: ignore[union-attr]
        try:
            step(chat, chance, chance.choice(known) if known else "ghost")
        except (tape.UnknownMessage, tape.InvalidEntry, tape.TapeClosed):
            continue
        seen()
    return after


def step(chat: tape.Tape, chance: random.Random, pick: str) -> None:
    """Write one entry of some kind, most often about the message ``pick``; what is refused writes none."""
    call = f"c{chance.randrange(3)}"
    writes: list[Callable[[], Any]] = [
        lambda: chat.append(role="user", content=chance.random()),
        lambda: chat.append({"role": "assistant", "content": "", "tool_calls": [{"id": call}]}),
        lambda: chat.append({"role": "tool", "content": "", "tool_call_id": call}),
        lambda: chat.append(role="user", content="aside", parent=pick),
        lambda: chat.revise(pick, content=chance.random()),
        lambda: chat.retract(pick),
        lambda: chat.restore(pick),
        lambda: chat.switch(pick),
        lambda: chat.anchor(chance.choice("xyz"), source_ids=[pick]),
        lambda: chat.event("tick"),
        lambda: chat.clear() if chance.random() < 0.5 else chat.restore(),
        lambda: chat.complete() if chance.random() < 0.5 else chat.end("enough"),
        lambda: chat.reopen(),
    ]
    chance.choice(writes)()


class TestPoints:
    """R1: what ``at`` shows."""

    @heavy
    def test_r1_every_seq_gives_the_view_of_then(self, chat: tape.Tape) -> None:
        """After any history, ``at(seq)`` shows for every seq all that was shown then, and what a fold gives."""
        after = wild(chat, size(25, 160), random.SystemRandom().randrange(2**32))
        entries = list(chat.entries())
        assert len(entries) == len(after) == chat.info().head
        view = View()
        for entry, then in zip(entries, after, strict=True):
            now = facts(chat.at(entry.seq))
            assert now == then
            assert entry.payload is not None
            view.fold(entry.seq, bytes.fromhex(entry.hash), entry.stamp, entry.head, entry.payload)
            assert [(held.placed, held.body) for held in view.path()] == [(m.seq, m.revision) for m in now["messages"]]
            assert view.anchor() == (now["anchor"].seq if now["anchor"] else None)
            assert view.head.messages == now["info"].message_count

    def test_r1_every_moment_gives_the_last_entry_at_or_before_it(self, standing: Backend, chat: tape.Tape) -> None:
        """A moment between two entries shows the earlier; of entries at one moment the last counts."""
        start = datetime(2030, 1, 1, tzinfo=UTC)
        ticks = iter([0, 0, 10, 10, 10, 20, 5, 30])
        zero = int(start.timestamp()) * 1_000_000
        with tape.open(standing.url, clock=lambda: zero + next(ticks), **standing.options) as timed:
            there = timed.tape(chat.id)
            for id in "abcdef":
                there.extend(say(id))
        entries = list(chat.entries())
        stamps = [(entry.recorded_at - start) // timedelta(microseconds=1) for entry in entries]
        assert stamps == sorted(stamps)
        for micro in range(-2, 40):
            moment = start + timedelta(microseconds=micro)
            seq = sum(stamp <= micro for stamp in stamps)
            assert chat.at(moment).info().head == seq
            assert shown(chat.at(moment)) == shown(chat.at(seq))

    def test_r1_the_zone_of_a_moment_does_not_matter(self, chat: tape.Tape) -> None:
        """A moment is the same in any zone; one without a zone is refused, since it could be any."""
        chat.extend(say("a"))
        moment = list(chat.entries())[-1].recorded_at
        chat.extend(say("b"))
        for hours in (-11, 0, 5, 14):
            there = moment.astimezone(timezone(timedelta(hours=hours)))
            assert shown(chat.at(there))[:1] == ["a"]
            assert chat.at(there).info().head == chat.at(moment).info().head
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.at(moment.replace(tzinfo=None))
        assert caught.value.field == "point"

    def test_r1_moments_before_and_after_the_tape(self, chat: tape.Tape) -> None:
        """Before the first entry there is nothing, and long after the last there is all that is there."""
        chat.extend(say("a", "b"))
        assert shown(chat.at(datetime(1970, 1, 1, tzinfo=UTC))) == []
        assert chat.at(datetime(1900, 1, 1, tzinfo=UTC)).info().head == 0
        assert shown(chat.at(datetime(9999, 1, 1, tzinfo=UTC))) == ["a", "b"]

    def test_r1_an_anchor_name_gives_the_newest_of_that_name(self, chat: tape.Tape) -> None:
        """``at(name)`` is the view right after that anchor, also one that a clear has ended."""
        chat.extend(say("a"))
        chat.anchor("plan")
        chat.extend(say("b"))
        second = chat.handoff("plan", summary="done")
        chat.extend(say("c"))
        chat.clear()
        past = chat.at("plan")
        assert past.info().head == second.seq
        assert shown(past) == ["a", "b"]
        context = past.context()
        assert context.messages == []
        assert context.anchor is not None
        assert context.anchor.summary == "done"

    def test_r1_a_message_id_gives_the_view_as_of_now_with_that_head(self, chat: tape.Tape) -> None:
        """The path ends at the message, with its content and the rest of the tree as they are now."""
        chat.extend(say("a", "b", "c"))
        chat.append(say("x")[0], parent="a")
        chat.revise("a", content="changed")
        past = chat.at("b")
        assert shown(past) == ["a", "b"]
        assert [m.id for m in past.context().messages] == ["a", "b"]
        assert [m.id for m in page(past, limit=1)] == ["b"]
        assert past.message("a").content == "changed"
        assert [m.id for m in past.heads()] == ["c", "x"]
        assert past.info() == chat.info()

    def test_r1_a_name_that_is_both_is_refused(self, chat: tape.Tape) -> None:
        """Where an anchor and a message have one name, a seq must be given; a name of neither is refused as well."""
        chat.extend(say("a"))
        chat.anchor("a")
        for name in ("a", "neither"):
            with pytest.raises(tape.InvalidEntry) as caught:
                chat.at(name)
            assert caught.value.field == "point"

    def test_r1_a_retracted_message_is_no_point(self, chat: tape.Tape) -> None:
        """A message that is not in the view cannot be its head, and the error tells why."""
        chat.extend(say("a", "b"))
        chat.retract("b")
        with pytest.raises(tape.UnknownMessage) as caught:
            chat.at("b")
        assert caught.value.retracted

    @pytest.mark.parametrize("point", [-1, 4, 10**12, True, 1.0, None, b"a", ["a"], ""])
    def test_r1_a_point_out_of_range_is_refused(self, chat: tape.Tape, point: Any) -> None:
        """A seq beyond the head or below zero, and anything that is no point, is InvalidEntry at once."""
        chat.extend(say("a", "b"))
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.at(point)
        assert caught.value.field == "point"

    def test_r1_seq_0_is_before_everything(self, chat: tape.Tape) -> None:
        """At seq 0 nothing was there yet, also on a tape that was never written, where any other point is absent."""
        assert shown(chat.at(0)) == []
        with pytest.raises(tape.TapeNotFound):
            chat.at(1).messages()
        chat.extend(say("a"))
        chat.clear()
        past = chat.at(0)
        assert (past.messages(), past.heads(), past.anchors(), list(past.entries())) == ([], [], [], [])
        assert (past.info().head, past.info().message_count) == (0, 0)

    def test_r1_a_message_of_later_is_unknown_then(self, chat: tape.Tape) -> None:
        """What was appended after the point does not exist there; what was retracted later is there."""
        chat.extend(say("a", "b"))
        chat.retract("a")
        chat.extend(say("c"))
        past = chat.at(3)
        assert past.message("a").content == "I am a"
        for read in (past.message, past.children, lambda id: past.messages(branch=id)):
            with pytest.raises(tape.UnknownMessage) as caught:
                read("c")
            assert not caught.value.retracted
        assert past.find("c") is None

    def test_r1_a_snapshot_stays_where_it_was_taken(self, chat: tape.Tape) -> None:
        """By seq, moment, anchor or message: nothing recorded later shows, not even a newer anchor of that name."""
        chat.extend(say("a", "b"))
        chat.anchor("plan")
        points: list[int | datetime | str] = [4, datetime(9999, 1, 1, tzinfo=UTC), "plan", "b"]
        taken = [chat.at(point) for point in points]
        before = [facts(past) for past in taken]
        chat.extend(say("c"))
        chat.anchor("plan")
        chat.append(say("d")[0], parent="a")
        chat.revise("a", content="changed")
        chat.clear()
        chat.complete()
        assert [facts(past) for past in taken] == before

    def test_r1_a_snapshot_cannot_be_written(self, chat: tape.Tape) -> None:
        """The past has the reads of a tape and none of its writes."""
        chat.extend(say("a"))
        past = chat.at(1)
        assert [hasattr(past, name) for name in ("append", "extend", "revise", "retract", "clear")] == [False] * 5

    def test_r1_the_info_of_then(self, chat: tape.Tape) -> None:
        """Counts, times, status and hash are those of the point, not those of now."""
        chat.extend(say("a", "b"))
        chat.complete()
        closed = chat.info()
        chat.reopen()
        chat.extend(say("c"))
        chat.retract("a")
        entries = list(chat.entries())
        past = chat.at(4).info()
        assert past == closed
        assert (past.status, past.completed_at) == ("completed", entries[3].recorded_at)
        assert (past.head_hash, past.updated_at) == (entries[3].hash, entries[3].recorded_at)
        assert (past.message_count, past.last_message_at) == (2, entries[2].recorded_at)
        assert chat.at(2).info().last_message_at == entries[1].recorded_at
        assert (chat.at(1).info().message_count, chat.at(1).info().last_message_at) == (0, None)

    def test_r1_async(self, standing: Backend) -> None:
        """The past is awaited like the present."""

        async def work() -> None:
            async with tape.open_async(standing.url, **standing.options) as store:
                chat = store.tape(new_ids.new_id())
                await chat.extend(say("a", "b"))
                await chat.anchor("plan")
                await chat.clear()
                points: list[int | str | datetime] = [4, "plan", datetime(9999, 1, 1, tzinfo=UTC)]
                pasts = [await chat.at(point) for point in points]
                assert [len(await past.messages()) for past in pasts] == [2, 2, 0]
                with pytest.raises(tape.InvalidEntry):
                    await chat.at(datetime(2030, 1, 1))
                assert [entry.seq async for entry in (await chat.at(3)).entries()] == [1, 2, 3]
                assert [entry.kind async for entry in chat.entries(kinds=["clear"])] == ["clear"]

        asyncio.run(asyncio.wait_for(work(), 60))


class TestEntries:
    """The entries themselves."""

    def test_entries_come_in_order_and_dense(self, chat: tape.Tape) -> None:
        """All of them, from 1 to the head, across as many pages as it takes."""
        chat.extend([{"role": "user", "content": n} for n in range(1_234)])
        assert [entry.seq for entry in chat.entries()] == list(range(1, 1_236))
        assert [entry.seq for entry in chat.entries(after=700)] == list(range(701, 1_236))
        assert [entry.seq for entry in chat.entries(after=1_235)] == []
        assert [entry.seq for entry in chat.entries(after=498, limit=4)] == [499, 500, 501, 502]
        assert [entry.seq for entry in chat.entries(limit=1_000)] == list(range(1, 1_001))
        assert list(chat.entries(limit=0)) == []

    def test_entries_of_some_kinds(self, chat: tape.Tape) -> None:
        """Only the kinds asked for are given, and only those count towards the limit; an unknown kind is refused."""
        for number in range(600):
            chat.event("tick", number)
            if number % 100 == 0:
                chat.extend(say(f"m{number}"))
        assert [entry.kind for entry in chat.entries(kinds=["append"])] == ["append"] * 6
        assert [entry.seq for entry in chat.entries(kinds=["append"], limit=2)] == [3, 104]
        assert [entry.seq for entry in chat.entries(kinds=["open", "append"], after=3, limit=2)] == [104, 205]
        assert [entry.kind for entry in chat.entries(kinds=["clear"])] == []
        assert list(chat.entries(kinds=[])) == []
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.entries(kinds=["apend"])
        assert caught.value.field == "kinds"

    def test_entries_at_a_point_end_there(self, chat: tape.Tape) -> None:
        """``at(seq).entries()`` gives the entries up to the point."""
        chat.extend(say("a", "b", "c"))
        assert [entry.seq for entry in chat.at(3).entries()] == [1, 2, 3]
        assert [entry.seq for entry in chat.at(3).entries(after=1)] == [2, 3]

    def test_entries_being_read_do_not_hinder_a_writer(self, chat: tape.Tape) -> None:
        """Between pages nothing is held open: what is written meanwhile is read as well."""
        chat.extend([{"role": "user", "content": n} for n in range(600)])
        reading = chat.entries()
        first = next(reading)
        chat.event("meanwhile")
        seqs = [first.seq, *(entry.seq for entry in reading)]
        assert seqs == list(range(1, 603))

    def test_an_entry_tells_all_that_was_recorded(self, chat: tape.Tape) -> None:
        """Every field comes back: key, actor, meta, payload, version, and the hash of the receipt."""
        receipt = chat.append(role="user", content="Hi", id="a", key="k", actor="ann", meta={"run": 1})
        [entry] = chat.entries(kinds=["append"])
        assert (entry.tape, entry.seq, entry.kind, entry.key) == (chat.id, 2, "append", "k")
        assert (entry.actor, entry.meta, entry.source, entry.version) == ("ann", {"run": 1}, None, 2)
        assert entry.hash == receipt.hash
        assert entry.recorded_at.tzinfo is not None
        assert entry.payload is not None
        assert entry.payload.message == {"role": "user", "content": "Hi"}  # type: ignore[attr-defined]

    def test_entries_of_an_unwritten_tape(self, chat: tape.Tape) -> None:
        """A tape that was never written has none."""
        assert list(chat.entries()) == []


class TestPages:
    """C10: bounded reads of the view."""

    def test_c10_the_last_messages(self, chat: tape.Tape) -> None:
        """A limit gives the newest messages, oldest of them first, and tells whether there are more."""
        chat.extend(say(*"abcde"))
        for limit, ids_, truncated in ((1, "e", True), (4, "bcde", True), (5, "abcde", False), (9, "abcde", False)):
            got = page(chat, limit=limit)
            assert ([m.id for m in got], got.truncated) == (list(ids_), truncated)
            assert got.cursor == (ids_[0] if truncated else None)
        assert [m.parent for m in page(chat, limit=2)] == ["c", "d"]

    def test_c10_paging_both_ways(self, chat: tape.Tape) -> None:
        """The cursor of a page leads to the next in its direction, and nothing is skipped or repeated."""
        chat.extend([{"role": "user", "content": n} for n in range(25)])
        back: list[int] = []
        got = page(chat, limit=7)
        while True:
            back = [m.content for m in got] + back
            if got.cursor is None:
                break
            got = page(chat, limit=7, before=got.cursor)
        assert back == list(range(25))
        forth: list[int] = []
        got = page(chat, limit=7, after="")
        while True:
            forth += [m.content for m in got]
            if got.cursor is None:
                break
            got = page(chat, limit=7, after=got.cursor)
        assert forth == list(range(25))

    def test_c10_before_and_after_without_a_limit(self, chat: tape.Tape) -> None:
        """They give everything on that side of the message, which is not part of it."""
        chat.extend(say(*"abcde"))
        assert ([m.id for m in page(chat, before="c")], page(chat, before="c").truncated) == (["a", "b"], False)
        assert ([m.id for m in page(chat, after="c")], page(chat, after="c").truncated) == (["d", "e"], False)
        assert page(chat, before="a").items == []
        assert page(chat, after="e").items == []
        assert [m.id for m in page(chat, after="")] == list("abcde")
        assert [m.parent for m in page(chat, after="c")] == ["c", "d"]

    def test_c10_across_branches(self, chat: tape.Tape) -> None:
        """Pages follow the path over every branch that it crosses, and other branches never show."""
        parent, path = None, []
        for block in range(12):
            receipts = chat.extend([{"role": "user", "content": block * 3 + n} for n in range(4)], parent=parent)
            parent = receipts[2].message_id
            path += [block * 3 + n for n in range(3)]
        chat.switch(str(parent))
        assert [m.content for m in chat.messages()] == path
        for limit in (1, 2, 3, 4, 5, 7, 36, 40):
            assert [m.content for m in page(chat, limit=limit)] == path[-limit:]
        on_path = chat.messages()
        for at, message in enumerate(on_path):
            got = page(chat, limit=5, before=message.id)
            assert [m.content for m in got] == path[max(0, at - 5) : at]
            assert got.truncated == (at > 5)
            got = page(chat, limit=5, after=message.id)
            assert [m.content for m in got] == path[at + 1 : at + 6]
            assert got.truncated == (len(path) - at - 1 > 5)
            assert [m.parent for m in got] == [m.id for m in on_path[at : at + len(got)]]
        branch = on_path[10].id
        assert [m.content for m in page(chat, branch=branch, limit=4)] == path[7:11]

    def test_c10_retracted_messages_are_not_counted(self, chat: tape.Tape) -> None:
        """A page is filled with messages of the view, however many retracted ones lie between them."""
        receipts = chat.extend([{"role": "user", "content": n} for n in range(60)])
        chat.retract(*(str(receipt.message_id) for n, receipt in enumerate(receipts) if n % 10))
        got = page(chat, limit=4)
        assert ([m.content for m in got], got.truncated) == ([20, 30, 40, 50], True)
        assert ([m.content for m in page(chat, limit=6)], page(chat, limit=6).truncated) == (
            [0, 10, 20, 30, 40, 50],
            False,
        )

    def test_c10_a_cursor_that_was_retracted_still_leads_on(self, chat: tape.Tape) -> None:
        """Paging goes on from where a message stood, also when it has been taken out in between."""
        chat.extend(say(*"abcdef"))
        got = page(chat, limit=2)
        assert got.cursor == "e"
        chat.retract("e")
        assert [m.id for m in page(chat, limit=2, before=got.cursor)] == ["c", "d"]
        assert [m.id for m in page(chat, limit=2, after="e")] == ["f"]

    def test_c10_after_a_clear(self, chat: tape.Tape) -> None:
        """Only what came after the clear, or came back from under it, is there, and no more is promised."""
        chat.extend(say(*"abcde"))
        chat.clear()
        got = page(chat, limit=3)
        assert (got.items, got.truncated, got.cursor) == ([], False, None)
        chat.extend(say("f", "g"))
        got = page(chat, limit=2)
        assert ([m.id for m in got], got.truncated) == (["f", "g"], False)
        chat.restore("b")
        got = page(chat, limit=2)
        assert ([m.id for m in got], got.truncated) == (["f", "g"], True)
        assert [m.id for m in page(chat, limit=2, before="f")] == ["b"]
        assert [m.id for m in page(chat, limit=9, after="a")] == ["b", "f", "g"]
        past = page(chat.at(6), limit=2)
        assert ([m.id for m in past], past.truncated) == (["d", "e"], True)

    def test_c10_as_many_bytes_as_fit(self, chat: tape.Tape) -> None:
        """``max_bytes`` gives the newest messages that fit, at least one, and never more than asked for."""
        # Bytes are counted as recorded: with the ids and the like, some hundred more than the message itself.
        chat.extend([{"role": "user", "content": f"{n:03d}" + "x" * 9_997} for n in range(100)])
        got = page(chat, max_bytes=10**9)
        assert (len(got), got.truncated) == (100, False)
        for count in (1, 2, 10, 19):
            got = page(chat, max_bytes=count * 10_500)
            assert [m.content[:3] for m in got] == [f"{n:03d}" for n in range(100 - count, 100)]
            assert (got.truncated, got.cursor) == (True, got[0].id)
        got = page(chat, max_bytes=1)
        assert ([m.content[:3] for m in got], got.truncated) == (["099"], True)
        got = page(chat, max_bytes=10 * 10_500, limit=4)
        assert ([m.content[:3] for m in got], got.truncated) == (["096", "097", "098", "099"], True)
        got = page(chat, max_bytes=3 * 10_500, after=chat.messages()[0].id)
        assert ([m.content[:3] for m in got], got.truncated) == (["001", "002", "003"], True)
        assert got.cursor == got[-1].id

    def test_c10_many_small_messages_in_some_bytes(self, chat: tape.Tape) -> None:
        """However many messages fit, from either end, they are the nearest ones and their sizes add up to less."""
        chat.extend([{"role": "user", "content": n} for n in range(500)])
        first = chat.messages()[0].id
        for room in (500, 5_000, 30_000):
            got = page(chat, max_bytes=room)
            count = len(got)
            assert room / 200 < count < room / 30
            assert [m.content for m in got] == list(range(500 - count, 500))
            assert sum(len(msgspec.json.encode(m.to_dict())) for m in got) <= room
            assert got.truncated
            got = page(chat, max_bytes=room, after=first)
            assert [m.content for m in got] == list(range(1, len(got) + 1))
            assert abs(len(got) - count) <= count / 20 + 1
            assert got.truncated

    def test_c10_one_message_larger_than_the_bytes(self, chat: tape.Tape) -> None:
        """A message that does not fit is given alone: a reader always gets on."""
        chat.extend([{"role": "user", "content": "x" * size, "id": str(size)} for size in (10, 5_000, 20)])
        got = page(chat, max_bytes=1_000)
        assert ([m.id for m in got], got.truncated) == (["20"], True)
        got = page(chat, max_bytes=1_000, before="20")
        assert ([m.id for m in got], got.truncated) == (["5000"], True)
        got = page(chat, max_bytes=1_000, before="5000")
        assert ([m.id for m in got], got.truncated) == (["10"], False)

    def test_c10_a_page_of_none(self, chat: tape.Tape) -> None:
        """``limit=0`` gives an empty page, on either side of a message, which tells whether there is any more."""
        empty = chat.messages(limit=0)
        assert (list(empty), empty.cursor, empty.truncated) == ([], None, False)
        chat.extend(say("a", "b"))
        for bounds, more in (
            ({}, True),
            ({"before": "b"}, True),
            ({"before": "a"}, False),
            ({"after": "a"}, True),
            ({"after": "b"}, False),
            ({"max_bytes": 1}, True),
        ):
            page = chat.messages(limit=0, **bounds)
            assert isinstance(page, tape.Page)
            assert (page.items, page.cursor, page.truncated) == ([], None, more)

    def test_c10_bad_bounds_are_refused(self, chat: tape.Tape) -> None:
        """Limits must be numbers, cursors must be on the path, and a page goes one way."""
        chat.extend(say("a", "b"))
        chat.append(say("x")[0], parent="a")
        for bounds, field in (
            ({"limit": -3}, "limit"),
            ({"limit": True}, "limit"),
            ({"limit": 1.5}, "limit"),
            ({"max_bytes": 0}, "max_bytes"),
            ({"before": "b"}, "before"),
            ({"after": "b"}, "after"),
            ({"before": "a", "after": "a"}, "after"),
        ):
            with pytest.raises(tape.InvalidEntry) as caught:
                chat.messages(**bounds)
            assert caught.value.field == field
        for side in ("before", "after"):
            with pytest.raises(tape.UnknownMessage):
                chat.messages(**{side: "ghost"})

    def test_c10_an_unwritten_tape_is_an_empty_page(self, chat: tape.Tape) -> None:
        """There is nothing and no more to come."""
        got = page(chat, limit=3)
        assert (got.items, got.truncated, got.cursor) == ([], False, None)
        with pytest.raises(tape.UnknownMessage):
            chat.messages(limit=3, before="ghost")

    def test_c10_async(self, standing: Backend) -> None:
        """Bounded reads are awaited like any other."""

        async def work() -> None:
            async with tape.open_async(standing.url, **standing.options) as store:
                chat = store.tape(new_ids.new_id())
                await chat.extend(say(*"abcde"))
                got = await chat.messages(limit=2)
                assert isinstance(got, tape.Page)
                assert ([m.id for m in got], got.truncated) == (["d", "e"], True)
                got = await chat.messages(limit=2, before="d")
                assert [m.id for m in got] == ["b", "c"]

        asyncio.run(asyncio.wait_for(work(), 60))
