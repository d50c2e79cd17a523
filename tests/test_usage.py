"""What was used and what it cost: by model, day, tape and turn, from a table of prices that can be replaced."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.backends import Backend

import tape
from tape.core.memory.prices import parse_prices

FIRST = datetime(2026, 3, 1, 9, tzinfo=UTC)
TABLE = tape.Prices(
    models={
        "small": tape.Price(input=1, output=2),
        "small-fast": tape.Price(input=10, output=20, cached_input=1, cache_write=12),
    },
    currency="EUR",
)


def filled(store: tape.Store) -> None:
    """Two tapes, of two owners, with calls of three models on two days."""
    first, second = store.create("first", owner="ann"), store.create("second", owner="bob")
    first.append(role="system", content="Be brief.")
    first.append(role="user", content="One?", id="one")
    first.record_usage(input_tokens=100, output_tokens=10, model="small", occurred_at=FIRST)
    first.append(role="user", content="Two?", id="two")
    first.record_usage(
        input_tokens=100,
        output_tokens=10,
        cached_tokens=50,
        cache_write_tokens=20,
        model="acme/small-fast-20260101",
        occurred_at=FIRST + timedelta(days=1),
    )
    second.record_usage(input_tokens=7, output_tokens=1, model="strange", occurred_at=FIRST)
    second.record_usage(input_tokens=5, output_tokens=1, model="strange", cost=9, occurred_at=FIRST)


class TestUsage:
    """``store.usage``."""

    def test_s6_by_model(self, store: tape.Store) -> None:
        """Each model has its tokens; recorded cost wins, priced ones follow, and what has no price is said."""
        filled(store)
        rows = {row.key: row for row in store.usage(by="model", prices=TABLE)}
        assert {name: (row.calls, row.cost, row.unpriced) for name, row in rows.items()} == {
            "small": (1, 120, 0),
            # 30 plain at 10, 50 cached at 1, 20 written at 12, 10 out at 20.
            "acme/small-fast-20260101": (1, 300 + 50 + 240 + 200, 0),
            "strange": (2, 9, 1),
        }
        assert {row.currency for row in rows.values()} == {"EUR"}

    def test_by_day_and_tape(self, store: tape.Store) -> None:
        """Days go by when a call happened; tapes come from the most costly on."""
        filled(store)
        assert [(row.key, row.calls) for row in store.usage(by="day", prices=TABLE)] == [
            ("2026-03-01", 3),
            ("2026-03-02", 1),
        ]
        assert [(row.key, row.cost) for row in store.usage(by="tape", prices=TABLE)] == [("first", 910), ("second", 9)]
        later = store.usage(by="tape", prices=TABLE, since=FIRST + timedelta(hours=1))
        assert [(row.key, row.calls) for row in later] == [("first", 1)]

    def test_by_turn(self, store: tape.Store) -> None:
        """A turn is known by the message that began it, in the order of the tape."""
        filled(store)
        rows = store.usage(by="turn", tape="first", prices=TABLE)
        assert [(row.key, row.cost) for row in rows] == [("one", 120), ("two", 790)]
        with pytest.raises(tape.InvalidEntry):
            store.usage(by="turn")

    def test_s4_of_one_owner(self, store: tape.Store) -> None:
        """A store of one owner counts that owner's tapes, and finds no other."""
        filled(store)
        scoped = store.scoped("bob")
        assert [row.key for row in scoped.usage(by="tape", prices=TABLE)] == ["second"]
        with pytest.raises(tape.TapeNotFound):
            scoped.usage(by="model", tape="first")

    def test_many_pages(self, store: tape.Store) -> None:
        """Nothing is left out or counted twice where pages meet."""
        for number in range(3):
            for _ in range(7):
                store.tape(f"t{number}").record_usage(input_tokens=1, model="small")
        pages = list(store._services.catalog.uses(page=2))
        assert len(pages) == 21
        assert sum(row.calls for row in store.usage(by="tape", prices=TABLE)) == 21

    def test_the_twin(self, backend: Backend) -> None:
        """The async store tells the same."""
        with backend.open() as store:
            filled(store)
            expected = store.usage(by="model", prices=TABLE), store.get("first").title()

        async def ask() -> tuple[list[tape.UsageRow], str | None]:
            async with tape.open_async(backend.url, **backend.options) as twin:
                return await twin.usage(by="model", prices=TABLE), await twin.tape("first").title()

        assert asyncio.run(ask()) == expected

    @pytest.mark.parametrize("options", [{"by": "week"}, {"since": datetime(2026, 1, 1)}, {"prices": {}}])
    def test_bad_input(self, store: tape.Store, options: dict[str, object]) -> None:
        """What cannot be meant is refused."""
        with pytest.raises(tape.InvalidEntry):
            store.usage(**options)  # type: ignore[arg-type]


class TestPrices:
    """The table of prices."""

    def test_a_model_is_found_without_its_provider_and_release(self) -> None:
        """The longest name that fits holds, and a name that only begins alike does not fit."""
        assert TABLE.price("us.anthropic.small-fast-20260101") == TABLE.models["small-fast"]
        assert TABLE.price("openrouter/acme/small@1") == TABLE.models["small"]
        assert TABLE.price("smaller") is None
        assert TABLE.price(None) is None

    def test_the_shipped_table(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """It is read without an option, and a file or the environment puts another in its place."""
        shipped = tape.load_prices()
        assert shipped.currency == "USD"
        assert shipped.price("claude-sonnet-4-5-20250929") is not None
        other = tmp_path / "prices.json"
        other.write_text(json.dumps({"models": {"mine": {"input": 1, "output": 1}}}))
        monkeypatch.setenv("TAPE_PRICES", str(other))
        assert list(tape.load_prices().models) == ["mine"]
        assert tape.load_prices(other) == tape.load_prices()

    @pytest.mark.parametrize(
        "raw", [b"", b"[]", b"\xff", b'{"models": {"a": {"input": "x", "output": 1}}}', b'{"model": {}}']
    )
    def test_a_wrong_table_is_refused(self, raw: bytes) -> None:
        """The error names the file."""
        with pytest.raises(tape.InvalidEntry, match=r"table\.json"):
            parse_prices(raw, "table.json")

    def test_a_missing_table_is_refused(self, tmp_path: Path) -> None:
        """As is one that cannot be read."""
        with pytest.raises(tape.InvalidEntry, match=r"gone\.json"):
            tape.load_prices(tmp_path / "gone.json")


class TestTitle:
    """``chat.title()``."""

    def test_a_name_or_the_first_request(self, store: tape.Store) -> None:
        """The name if there is one; else what was first asked, on one line and not too long."""
        chat = store.tape("chat")
        assert chat.title() is None
        chat.append(role="system", content="You are a guide.")
        chat.append(role="user", content="Plan\n  two days " + "x" * 100)
        title = chat.title()
        assert title is not None
        assert title.startswith("Plan two days x")
        assert len(title) == 80
        chat.rename("Lisbon")
        assert chat.title() == "Lisbon"


class TestDiff:
    """``store.diff``."""

    def test_r2_tapes_of_a_family_by_id_others_by_content(self, store: tape.Store) -> None:
        """A fork is compared message by message; a stranger by what it says."""
        chat = store.tape("chat")
        chat.extend([{"role": "user", "content": "Go"}, {"role": "assistant", "content": "By train"}])
        fork = chat.fork("fork")
        fork.revise(fork.messages()[1].id, content="By plane")
        assert [change.after.content for change in store.diff("chat", "fork").revised] == ["By plane"]
        other = store.tape("other")
        other.extend([{"role": "user", "content": "Go"}, {"role": "assistant", "content": "By bus"}])
        diff = store.diff(chat.at(3), "other")
        assert [message.content for message in diff.added] == ["By bus"]
        assert [message.content for message in diff.retracted] == ["By train"]
        assert diff.parted is not None
        assert [message.content for message in diff.parted] == ["Go", "Go"]
        same = store.diff("other", other)
        assert not same
        with pytest.raises(tape.TapeNotFound):
            store.diff("chat", "gone")


class TestNames:
    """What values are called when they are printed."""

    def test_reprs_are_short_and_say_what_they_are(self, store: tape.Store) -> None:
        """Each names the tape and the place, however long the content is."""
        chat = store.tape("chat")
        chat.append(role="user", content="long " * 1_000, id="go")
        assert repr(chat.messages()[0]).startswith("<tape.Message 'go' of 'chat', seq 2: user: 'long long")
        assert len(repr(chat.messages()[0])) < 150
        assert repr(chat.entry(seq=2)) == "<tape.Entry 'chat' seq 2: append, key '~m:go'>"
        assert (repr(chat), repr(chat.at(2))) == ("<tape.Tape 'chat'>", "<tape.Snapshot 'chat' at 2>")
        assert repr(store.diff(chat.at(1), chat)) == "<tape.Diff: 1 added>"

    def test_f7_a_conflict_names_what_conflicts(self, store: tape.Store) -> None:
        """Messages, slots of state and blocks are told apart, in the error's text as well."""
        chat = store.tape("chat")
        chat.append(role="user", content="Go", id="go")
        fork = chat.fork("fork")
        for side, text in ((chat, "ours"), (fork, "theirs")):
            side.revise("go", content=text)
            side.put("plan", text)
            side.set_block("memo", text)
        with pytest.raises(tape.MergeConflict, match="message 'go', state 'plan', block 'memo'") as caught:
            chat.merge(fork)
        assert [conflict.what for conflict in caught.value.conflicts] == ["message", "state", "block"]


class TestPayloads:
    """``tape.payloads``: this module is checked by mypy like a user's program."""

    def test_a_payload_has_a_type(self, store: tape.Store) -> None:
        """Each kind of entry is told apart by the class of its payload, whose fields are typed."""
        chat = store.tape("chat")
        chat.append(role="user", content="Go", id="go")
        chat.event("score", {"value": 1})
        chat.retract("go", reason="wrong")
        seen: list[str] = []
        for entry in chat.entries():
            match entry.payload:
                case tape.payloads.Append(id=message_id, message=message):
                    seen.append(f"{message_id}: {message['content']}")
                case tape.payloads.Event(name=name):
                    seen.append(name)
                case tape.payloads.Retract(reason=reason):
                    seen.append(reason or "")
        assert seen == ["go: Go", "score", "wrong"]
        assert set(tape.payloads.__all__) - {"Payload"} == {
            cls.__name__ for cls in vars(tape.payloads).values() if isinstance(cls, type) and hasattr(cls, "kind")
        }
