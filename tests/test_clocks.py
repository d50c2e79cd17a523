"""Wrong clocks: every entry stays readable, and a write is refused if the clock is out of range."""

from __future__ import annotations

import re
import time
import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest
from support.backends import Backend

import tape
from tape.core.records import FIRST_STAMP, LAST_STAMP, moment

SECOND = 1_000_000_000
BEYOND = {
    "the year 10000": (LAST_STAMP + 1) * 1_000,
    "the year 10889": 2**48 * 1_000_000,
    "no time at all": 2**80,
    "the year 11900": 2**49 * 1_000_000 + 7,
}


class TestBeyond:
    @pytest.mark.parametrize("clock", BEYOND)
    def test_a_clock_beyond_the_year_9999_writes_nothing(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch, clock: str
    ) -> None:
        """Each write is an InvalidEntry that names the clock. Reads and later writes still work."""
        with backend.open() as store:
            chat = store.create("chat")
            chat.append(role="user", content="before")
            with monkeypatch.context() as patched:
                patched.setattr(time, "time_ns", lambda: BEYOND[clock])
                for write in (
                    lambda: chat.append(role="user", content="x"),
                    lambda: chat.event("e", {}),
                    lambda: chat.fork("side"),
                    lambda: store.create("other"),
                    lambda: store.transaction(lambda inner: inner.tape("chat").append(role="user", content="x")),
                ):
                    with pytest.raises(tape.InvalidEntry, match="clock: must return microseconds since 1970 up to the"):
                        write()
                assert [message.text for message in chat.messages()] == ["before"]
                assert [info.id for info in store.list().items] == ["chat"]
            chat.append(role="user", content="after")
            assert [message.text for message in chat.messages()] == ["before", "after"]
            assert all(entry.recorded_at.year < 3_000 for entry in chat.entries())
            assert store.verify().ok

    def test_a_clock_at_the_end_of_the_calendar_is_read_back(
        self, store: tape.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The last moment of the year 9999 is valid. Later entries keep this time, with the raw time in their meta."""
        chat = store.create("chat")
        with monkeypatch.context() as patched:
            patched.setattr(time, "time_ns", lambda: LAST_STAMP * 1_000)
            chat.append(role="user", content="x")
            assert store.list().items[0].updated_at == moment(LAST_STAMP)
        chat.append(role="user", content="y")
        last = [*chat.entries()][-1]
        assert last.recorded_at == moment(LAST_STAMP)
        assert last.meta is not None
        assert last.meta["tape.clock"] < LAST_STAMP
        assert store.verify().ok

    def test_a_clock_before_1970_is_read_back(self, store: tape.Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """The entry has the earliest valid time, and its meta the raw time."""
        monkeypatch.setattr(time, "time_ns", lambda: -(2**62))
        chat = store.create("chat")
        chat.append(role="user", content="x")
        assert {entry.recorded_at for entry in chat.entries()} == {moment(0)}
        assert [entry.meta for entry in chat.entries(kinds=["append"])] == [{"tape.clock": -(2**62) // 1_000}]
        assert [info.id for info in store.list().items] == ["chat"]


class TestIds:
    @pytest.mark.parametrize("clock", [*BEYOND.values(), 0, -1, -(2**63), 2**48 * 1_000_000 - 1])
    def test_an_id_is_one_by_any_clock(self, monkeypatch: pytest.MonkeyPatch, clock: int) -> None:
        """Each is a UUID of version 7 and no two are equal, also when the clock is right again."""
        monkeypatch.setattr(time, "time_ns", lambda: clock)
        ids = [tape.new_id() for _ in range(5_000)]
        monkeypatch.undo()
        ids += [tape.new_id() for _ in range(5_000)]
        assert len(set(ids)) == 10_000
        assert all(
            re.fullmatch("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", id) for id in ids
        )
        assert all(uuid.UUID(id).version == 7 for id in ids)


class TestOccurred:
    @pytest.mark.parametrize(
        "given",
        [
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
            datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
            datetime.max.replace(tzinfo=timezone(-timedelta(hours=23, minutes=59))),
            datetime(1, 1, 1, tzinfo=timezone(timedelta(seconds=1))),
        ],
        ids=str,
    )
    def test_a_moment_outside_the_calendar_in_utc_is_refused(
        self, store: tape.Store, chat: tape.Tape, given: datetime
    ) -> None:
        """It is InvalidEntry, and names the field: no write accepts it and later reads it as None."""
        for write in (
            lambda: chat.append(role="user", content="x", occurred_at=given),
            lambda: chat.extend([{"role": "user", "content": "x"}], occurred_at=given),
            lambda: chat.event("e", {}, occurred_at=given),
            lambda: chat.put("slot", 1, occurred_at=given),
        ):
            with pytest.raises(tape.InvalidEntry, match="within the years 1 to 9999 in UTC") as refused:
                write()
            assert refused.value.field == "occurred_at"

    @pytest.mark.parametrize(("stamp", "hours"), [(FIRST_STAMP, -5), (LAST_STAMP, 5)])
    def test_the_edge_of_the_calendar_is_kept_in_any_zone(self, chat: tape.Tape, stamp: int, hours: int) -> None:
        """What is inside in UTC comes back."""
        edge = moment(stamp)
        zone = timezone(timedelta(hours=hours))
        inside = (edge + timedelta(hours=-hours)).replace(tzinfo=zone) + timedelta(0)
        chat.append(role="user", content="x", occurred_at=inside)
        assert chat.messages()[0].occurred_at == inside.astimezone(UTC)
