"""``occurred_at``: when that happened of which an entry tells. Every write takes it, and nothing is decided by it."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from support import forging
from support.backends import Backend
from support.verbs import Verb, each_verb

import tape
from tape.core import meta
from tape.core.entries import payloads
from tape.core.records import FIRST_STAMP, LAST_STAMP, moment

pytestmark = pytest.mark.alike

THEN = datetime(2020, 2, 29, 12, 0, 0, 123_456, tzinfo=UTC)
MICROS = 1_582_977_600_123_456


class TestWrites:
    """What is given is kept."""

    @each_verb
    def test_every_write_takes_it(self, store: tape.Store, verb: Verb) -> None:
        """Each entry that the call recorded on the tape tells it, beside the caller's meta, and none before does."""
        chat = verb.start(store)
        before = chat.info().head
        verb.call(chat, occurred_at=THEN, meta={"run": 1})
        entries = list(chat.entries())
        assert len(entries) > before
        assert {(entry.occurred_at, entry.occurred) for entry in entries[before:]} == {(THEN, MICROS)}
        assert [entry.meta for entry in entries[before:]] == [{"run": 1}] * (len(entries) - before)
        assert {entry.occurred_at for entry in entries[:before]} == {None}
        assert all(entry.recorded_at > THEN for entry in entries)
        assert store.verify().ok

    @pytest.mark.parametrize(
        ("given", "stamp"),
        [
            (THEN, MICROS),
            (MICROS, MICROS),
            (THEN.astimezone(timezone(timedelta(hours=5, minutes=45))), MICROS),
            (0, 0),
            (-1, -1),
            (datetime(1969, 7, 20, 20, 17, tzinfo=UTC), -14_182_980_000_000),
            (FIRST_STAMP, FIRST_STAMP),
            (LAST_STAMP, LAST_STAMP),
            (datetime.max.replace(tzinfo=UTC), LAST_STAMP),
            (datetime.min.replace(tzinfo=UTC), FIRST_STAMP),
        ],
        ids=str,
    )
    def test_any_moment_of_the_calendar(self, chat: tape.Tape, given: Any, stamp: int) -> None:
        """An aware datetime of any zone, or microseconds, also before 1970."""
        chat.append(role="user", content="x", occurred_at=given)
        (message,) = chat.messages()
        (entry,) = chat.entries(kinds=["append"])
        assert (message.occurred, entry.occurred) == (stamp, stamp)
        assert message.occurred_at == entry.occurred_at == moment(stamp)
        assert (message.meta, entry.meta) == (None, None)

    @pytest.mark.parametrize(
        "bad",
        [datetime(2020, 1, 1), "2020-01-01", 1.5, True, LAST_STAMP + 1, FIRST_STAMP - 1, 2**70, float("nan"), b"1", []],
        ids=str,
    )
    def test_what_is_no_moment_is_refused(self, store: tape.Store, chat: tape.Tape, bad: Any) -> None:
        """A datetime without a zone, a text, a fraction, a number out of the calendar: all InvalidEntry."""
        for write in (
            lambda: chat.append(role="user", content="x", occurred_at=bad),
            lambda: chat.extend([{"content": 1}], occurred_at=bad),
            lambda: chat.event("e", occurred_at=bad),
        ):
            with pytest.raises(tape.InvalidEntry) as caught:
                write()
            assert caught.value.field == "occurred_at"
        with pytest.raises(tape.TapeNotFound):
            store.get("chat")

    def test_its_name_in_meta_is_the_stores(self, chat: tape.Tape) -> None:
        """A caller cannot say it by that name, which no reader shows."""
        for write in (
            lambda: chat.append(role="user", content="x", meta={meta.OCCURRED: 1}),
            lambda: chat.extend([{"content": 1}], metas=[{meta.OCCURRED: 1}]),
        ):
            with pytest.raises(tape.InvalidEntry, match="occurred_at=") as caught:
                write()
            assert caught.value.field.endswith(f".{meta.OCCURRED}")


class TestReads:
    """What it changes: nothing else."""

    def test_a_message_tells_that_of_the_content_that_holds(self, chat: tape.Tape) -> None:
        """A revision brings its own, or none; the past shows the one of then."""
        chat.append(id="m", role="user", content="x", occurred_at=1)
        chat.revise("m", content="y", occurred_at=2)
        assert chat.message("m").occurred == 2
        chat.revise("m", content="z")
        assert chat.message("m").occurred_at is None
        assert [chat.at(seq).message("m").occurred for seq in (2, 3, 4)] == [1, 2, None]
        chat.retract("m", occurred_at=9)
        chat.restore("m", occurred_at=10)
        assert chat.message("m").occurred is None

    def test_it_decides_nothing(self, chat: tape.Tape) -> None:
        """Neither the order, nor what holds at a moment, nor whether two writes are the same."""
        first = chat.append(id="a", role="user", content="late", occurred_at=LAST_STAMP)
        chat.append(id="b", role="user", content="early", occurred_at=0)
        assert [message.id for message in chat.messages()] == ["a", "b"]
        now = chat.messages()[-1].recorded_at
        assert [message.id for message in chat.at(now).messages()] == ["a", "b"]
        again = chat.append(id="a", role="user", content="late", occurred_at=5)
        assert (again.duplicate, again.seq) == (True, first.seq)
        assert chat.message("a").occurred == LAST_STAMP
        assert chat.info().updated_at == now

    def test_forks_and_merges_carry_it(self, store: tape.Store, chat: tape.Tape) -> None:
        """An inherited message tells its own; so does the copy of a merge, whatever the merge itself says."""
        chat.append(id="a", role="user", content="x", occurred_at=1)
        child = chat.fork("child", occurred_at=2)
        child.append(id="b", role="user", content="y", occurred_at=3)
        child.append(id="c", role="user", content="z")
        child.revise("a", content="w", occurred_at=4)
        assert [message.occurred for message in child.messages()] == [4, 3, None]
        chat.merge(child, occurred_at=5)
        assert [message.occurred for message in chat.messages()] == [4, 3, 5]
        assert next(iter(child.entries())).occurred is None
        assert store.verify().ok

    def test_a_held_back_clock_stands_beside_it(self, backend: Backend) -> None:
        """What the clock said and when it happened are two things; a message shows neither in its meta."""
        clock = iter([5_000_000, 5_000_000, 3_000_000])
        chat = backend.open(clock=lambda: next(clock)).tape("chat")
        chat.append(role="user", content="x")
        chat.append(role="user", content="y", occurred_at=7, meta={"run": 1})
        message, entry = chat.messages()[-1], list(chat.entries())[-1]
        assert (message.occurred, message.meta, message.stamp) == (7, {"run": 1}, 5_000_000)
        assert (entry.occurred, entry.meta) == (7, {"run": 1, "tape.clock": 3_000_000})

    def test_it_travels(self, store: tape.Store, chat: tape.Tape) -> None:
        """An export and an import keep it, byte for byte; the feed and async reads show it, too."""
        chat.append(role="user", content="x", occurred_at=THEN)
        file, again = io.BytesIO(), io.BytesIO()
        store.export("chat", file)
        with tape.open(":memory:") as other:
            other.import_(io.BytesIO(file.getvalue()))
            assert other.get("chat").messages()[0].occurred_at == THEN
            other.export("chat", again)
        assert again.getvalue() == file.getvalue()
        assert [entry.occurred for entry in store.feed()] == [None, MICROS]

    @pytest.mark.parametrize("said", ["soon", 1.5, None, [], 2**70, -(2**70), True], ids=str)
    def test_a_file_may_say_anything_under_the_name(self, said: Any) -> None:
        """What is no moment there is none here, and the rest of the meta is shown."""
        entry = payloads.Append(message={"role": "user", "content": "x"})
        lines = forging.forged(
            "t", payloads.Open(), entry, heads=[(0, 0, None), (2, 1, None)], keys=["k0", "~m:a"],
            metas=[None, msgspec.json.encode({meta.OCCURRED: said, "run": 1})],
        )  # fmt: skip
        with tape.open(":memory:") as store:
            store.import_(forging.file(lines))
            (message,) = store.get("t").messages()
            assert (message.occurred_at, message.meta) == (None, {"run": 1})
            assert [(one.occurred_at, one.meta) for one in store.get("t").entries()][1:] == [(None, {"run": 1})]
