"""TapeSession does what the SDK's own session does, and more: writers, retries, restarts, branches."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from agents import SessionSettings, SQLiteSession
from agents.memory import Session
from support.backends import Backend
from support.processes import Crew, ready, say
from support.proxy import Proxy

import tape
from integrations.contention import hold_together
from tape.integrations.openai_agents import TapeSession

Item = dict[str, Any]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def user(text: str, **more: Any) -> Item:
    return {"role": "user", "content": text, **more}


def texts(session: TapeSession) -> list[str]:
    return [item["content"] for item in run(session.get_items())]


class TestItems:
    def test_two_owners_have_sessions_of_one_id(self, store: tape.Store) -> None:
        """Each has its own items, its own pops and clears; without an owner the tape has the session's id."""
        sessions = {owner: TapeSession("chat-1", store.scoped(owner)) for owner in ("ann", "bob")}
        for owner, session in sessions.items():
            run(session.add_items([user(f"of {owner}"), user("second")]))
        run(sessions["ann"].pop_item())
        assert [texts(session) for session in sessions.values()] == [["of ann"], ["of bob", "second"]]
        again = TapeSession("chat-1", store.scoped("bob"))
        assert texts(again) == ["of bob", "second"]
        run(sessions["ann"].clear_session())
        assert texts(again) == ["of bob", "second"]
        assert {info.id: info.owner for info in store.list()} == {
            session.tape_id: owner for owner, session in sessions.items()
        }
        assert TapeSession("chat-1", store).tape_id == "chat-1"

    def test_it_is_a_session(self, store: tape.Store) -> None:
        """The SDK takes it as one."""
        assert isinstance(TapeSession("chat", store), Session)

    def test_an_item_comes_back_as_it_was(self, store: tape.Store) -> None:
        """Items of every kind, and ids that the SDK uses again for other items: all are there, in order."""
        call = {"type": "function_call", "call_id": "c1", "name": "book", "arguments": "{}", "id": "__fake_id__"}
        items = [
            user("Plan the trip", id="same"),
            {"type": "reasoning", "id": "rs_1", "summary": []},
            call,
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]},
            {**call, "call_id": "c2"},
            user("Plan the trip", id="same"),
            {"type": "message", "id": None, "role": "assistant", "content": [], "status": "completed"},
        ]
        session = TapeSession("chat", store)
        run(session.add_items(items[:4]))
        run(session.add_items(items[4:]))
        assert run(session.get_items()) == items
        assert len({message.id for message in store.tape("chat").messages()}) == len(items)

    @pytest.mark.parametrize("seed", range(12))
    def test_it_answers_as_the_stock_session(self, store: tape.Store, tmp_path: Path, seed: int) -> None:
        """60 calls of chance on both: the same answers, also when the session is made anew in between."""
        print("seed", seed)
        run(self._compare(store, SQLiteSession("chat", tmp_path / "stock.db"), random.Random(seed)))

    async def _compare(self, store: tape.Store, stock: SQLiteSession, chance: random.Random) -> None:
        session = TapeSession("chat", store)
        for number in range(60):
            match chance.choice(("add", "add", "add", "pop", "last", "again", "clear" if number % 9 == 0 else "pop")):
                case "add":
                    ids = [chance.choice((None, "same", f"id-{number}")) for _ in range(chance.randrange(4))]
                    batch = [user(f"{number}", **({} if id is None else {"id": id})) for id in ids]
                    await asyncio.gather(session.add_items(batch), stock.add_items(batch))
                case "pop":
                    assert await session.pop_item() == await stock.pop_item()
                case "clear":
                    await asyncio.gather(session.clear_session(), stock.clear_session())
                case "again":
                    session = TapeSession("chat", store)
                case "last":
                    limit = chance.choice((0, 1, 3, -1, 2**31 - 1))
                    assert await session.get_items(limit) == await stock.get_items(limit)
            assert await session.get_items() == await stock.get_items()
        stock.close()
        assert store.verify().ok

    def test_the_settings_hold_the_usual_limit(self, store: tape.Store) -> None:
        """As settings or as a dict; a limit given goes before it."""
        for settings in (SessionSettings(limit=2), {"limit": 2}):
            session = TapeSession("chat", store, session_settings=settings)
            run(session.clear_session())
            run(session.add_items([user(str(number)) for number in range(5)]))
            assert texts(session) == ["3", "4"]
            assert len(run(session.get_items(4))) == 4

    def test_real_output_of_models_is_kept(self, store: tape.Store) -> None:
        """Half characters, infinities and tuples come back as the SDK's own session gives them; bytes as base64."""
        session = TapeSession("chat", store)
        run(session.add_items([user("half \ud83d"), user("plain"), user("far", score=float("inf"), pair=(1, 2))]))
        assert run(session.get_items()) == [
            user("half \ud83d"),
            user("plain"),
            user("far", score=float("inf"), pair=[1, 2]),
        ]
        assert next(message.text for message in store.tape("chat").messages()) == "half \ufffd"
        run(session.add_items([user("raw", data=b"\x00")]))
        assert run(session.pop_item()) == user("raw", data="AA==")
        assert run(session.pop_item()) == user("far", score=float("inf"), pair=[1, 2])

    def test_what_is_no_item_is_refused(self, store: tape.Store) -> None:
        """With a typed error, and nothing of its batch is there."""
        session = TapeSession("chat", store)
        with pytest.raises(tape.InvalidEntry):
            run(session.add_items([user("one"), "two"]))  # type: ignore[list-item]
        assert run(session.get_items()) == []
        with pytest.raises(tape.InvalidEntry):
            TapeSession("x" * 256, store)

    def test_nothing_is_written_for_nothing(self, store: tape.Store) -> None:
        """An empty session that is read, popped and cleared is no tape."""
        session = TapeSession("chat", store)
        run(session.add_items([]))
        run(session.clear_session())
        assert run(session.pop_item()) is None
        assert not run(session.drop_run_state())
        assert store.list().items == []

    def test_what_is_taken_away_stays_on_the_tape(self, store: tape.Store) -> None:
        """A popped item is no longer found, and is there at the point before; a clear can be undone."""
        session = TapeSession("chat", store)
        run(session.add_items([user("apple"), user("pear")]))
        before = store.tape("chat").info().head
        run(session.pop_item())
        assert store.search("pear") == []
        run(session.clear_session())
        assert [message.text for message in store.tape("chat").at(before).messages()] == ["apple", "pear"]
        store.tape("chat").restore()
        assert texts(session) == ["apple"]

    def test_after_a_restart(self, backend: Backend) -> None:
        """Another program goes on where the first one stopped; a fork is a session of its own."""
        with backend.open() as store:
            run(TapeSession("chat", store).add_items([user("one")]))
        with backend.open() as store:
            session = TapeSession("chat", store)
            run(session.add_items([user("two")]))
            store.tape("chat").fork("other")
            other = TapeSession("other", store)
            run(other.add_items([user("elsewhere")]))
            assert (texts(session), texts(other)) == (["one", "two"], ["one", "two", "elsewhere"])

    def test_an_async_store_and_a_path(self, tmp_path: Path) -> None:
        """Both are taken; sessions of one path share a store, which ends with the last of them."""

        async def go() -> list[Item]:
            one, two = (TapeSession("chat", tmp_path / "agent.db") for _ in range(2))
            await one.add_items([user("one")])
            one.close()
            await two.add_items([user("two")])
            await two.aclose()
            async with tape.open_async(tmp_path / "agent.db") as store:
                three = TapeSession("chat", store)
                await three.add_items([user("three")])
                return await three.get_items()

        assert run(go()) == [user("one"), user("two"), user("three")]


class TestContext:
    def test_a_budget_is_held(self, store: tape.Store) -> None:
        """The newest turns that fit; a limit asks for the items themselves, and the tape has them all."""
        session = TapeSession("chat", store, budget=200)
        items = [item for turn in range(30) for item in (user(f"{turn} {'word ' * 20}"), _answer(f"reply {turn}"))]
        run(session.add_items(items))
        shown = run(session.get_items())
        assert 2 <= len(shown) < 20
        assert shown[-2:] == items[-2:]
        assert run(session.get_items(60)) == items

    def test_a_last_turn_over_the_budget_is_an_error(self, store: tape.Store) -> None:
        """Rather than a request that is cut in the middle."""
        session = TapeSession("chat", store, budget=50)
        run(session.add_items([user("word " * 500)]))
        with pytest.raises(tape.BudgetExceeded):
            run(session.get_items())

    def test_it_begins_at_the_latest_handoff(self, store: tape.Store) -> None:
        """With the prompt of the blocks and what the handoff says; reasoning goes back as it came."""
        session = TapeSession("chat", store, budget=5_000)
        run(session.add_items([user("before")]))
        store.tape("chat").handoff("booking", summary="Dates fixed")
        store.tape("chat").set_block("persona", "Be brief.")
        after = [user("after"), {"type": "reasoning", "id": "rs_1", "summary": []}, _answer("fine", id="msg_1")]
        run(session.add_items(after))
        prompt, handoff, *rest = run(session.get_items())
        assert prompt["role"] == "developer"
        assert "Be brief." in prompt["content"]
        assert "Dates fixed" in handoff["content"]
        assert rest == after


def _answer(text: str, **more: Any) -> Item:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, "status": "completed", **more}


class TestCompaction:
    def test_a_suffix_is_replaced_by_a_branch(self, store: tape.Store) -> None:
        """The session goes on behind what replaced it; what was replaced is found by search."""
        session = TapeSession("chat", store)
        run(session.add_items([user("kept"), user("apples"), user("pears")]))
        snapshot = run(session._get_compaction_snapshot(2))
        assert (snapshot.items, snapshot.complete) == ([user("apples"), user("pears")], False)
        assert run(snapshot.replace_suffix(0, [user("fruit")]))
        run(session.add_items([user("next")]))
        assert texts(session) == ["kept", "fruit", "next"]
        assert len(store.search("pears")) == 1
        assert len(store.tape("chat").heads()) == 2
        assert store.verify().ok

    def test_all_of_it_by_nothing(self, store: tape.Store) -> None:
        """An empty output leaves an empty session, whose old items are cleared with it."""
        session = TapeSession("chat", store)
        run(session.add_items([user("apples"), user("pears")]))
        snapshot = run(session._get_compaction_snapshot(5))
        assert snapshot.complete
        assert run(snapshot.replace_suffix(0, []))
        assert run(session.get_items()) == []
        run(session.add_items([user("next")]))
        assert texts(session) == ["next"]
        run(session.clear_session())
        assert store.search("pears") == []

    @pytest.mark.parametrize("change", ["add", "pop", "clear", "revise"])
    def test_a_session_that_moved_is_left_alone(self, store: tape.Store, change: str) -> None:
        """What came in between is not lost: nothing is replaced."""
        session = TapeSession("chat", store)
        run(session.add_items([user("one"), user("two"), user("three")]))
        snapshot = run(session._get_compaction_snapshot(2))
        match change:
            case "add":
                run(session.add_items([user("four")]))
            case "pop":
                run(session.pop_item())
            case "clear":
                run(session.clear_session())
            case _:
                store.tape("chat").revise(store.tape("chat").messages()[-1].id, content="changed")
        held = run(session.get_items())
        assert not run(snapshot.replace_suffix(0, [user("summary")]))
        assert not run(snapshot.replace_suffix(2, [user("summary")]))
        assert run(session.get_items()) == held

    def test_what_expired_goes_too(self, store: tape.Store) -> None:
        """The items at the beginning that the SDK says are over are retracted in the same step."""
        session = TapeSession("chat", store)
        run(session.add_items([user("old"), user("old"), user("kept"), user("old"), user("last")]))
        snapshot = run(session._get_compaction_snapshot(1, prune_prefix=lambda item: item["content"] == "old"))
        assert run(snapshot.replace_suffix(0, [user("summary")]))
        assert texts(session) == ["kept", "old", "summary"]
        snapshot = run(session._get_compaction_snapshot(1, prune_prefix=lambda item: True))
        assert run(snapshot.replace_suffix(0, []))
        assert run(session.get_items()) == []

    def test_a_wrong_option_fails_at_once(self, store: tape.Store) -> None:
        """Where it is written, not at the end of a run."""
        with pytest.raises(ValueError, match="Unsupported model"):
            TapeSession("chat", store, compaction={"model": "other"})


class TestSettling:
    def test_a_cancelled_write_ends_before_the_next(self, store: tape.Store) -> None:
        """Whoever is cancelled while waiting for the tape stays until the write has ended."""
        session = TapeSession("chat", store)
        run(session.add_items([user("zero")]))
        held, release = threading.Event(), threading.Event()

        def hold(together: tape.Store) -> None:
            together.tape("chat").event("held")
            held.set()
            assert release.wait(30)

        async def go() -> None:
            holder = asyncio.ensure_future(asyncio.to_thread(store.transaction, hold))
            assert await asyncio.to_thread(held.wait, 30)
            writing = asyncio.ensure_future(session.add_items([user("one")]))
            for _ in range(3):
                await asyncio.sleep(0)
                writing.cancel()
            await asyncio.sleep(0)
            assert not writing.done()
            release.set()
            await holder
            with pytest.raises(asyncio.CancelledError):
                await writing
            assert await session.get_items() == [user("zero"), user("one")]

        run(go())

    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    @pytest.mark.parametrize("reply", [True, False], ids=["reply lost", "request lost"])
    def test_a_lost_commit_is_not_repeated(self, proxy: Proxy, backend: Backend, reply: bool) -> None:
        """The connection breaks while items are added, popped or replaced: each happens once."""
        with tape.open(proxy.url, **backend.options) as store:
            session = TapeSession("chat", store)
            proxy.lose("COMMIT", reply=reply)
            run(session.add_items([user(str(number)) for number in range(6)]))
            proxy.lose("COMMIT", reply=reply)
            assert run(session.pop_item()) == user("5")
            snapshot = run(session._get_compaction_snapshot(2))
            proxy.lose("COMMIT", reply=reply)
            assert run(snapshot.replace_suffix(0, [user("summary")]))
            assert proxy.lost == 3
            assert texts(session) == ["0", "1", "2", "summary"]


# -- other processes


def writes(store: tape.Store) -> Callable[[str], Any]:
    session = TapeSession("chat", store)
    return lambda mark: session.add_items([user(mark, id="same"), _answer(f"re: {mark}", id="same")])  # type: ignore[list-item]


def marks(store: tape.Store) -> list[str]:
    items = run(TapeSession("chat", store).get_items())
    # A turn is never torn apart by another one.
    assert [item["content"][0]["text"] for item in items[1::2]] == [f"re: {item['content']}" for item in items[::2]]
    return [item["content"] for item in items[::2]]


def pops(store: tape.Store) -> None:
    """Pop until nothing is left."""
    session = TapeSession("chat", store)
    ready()
    with asyncio.Runner() as loop:
        while (item := loop.run(session.pop_item())) is not None:
            say(item["content"])


def drops(store: tape.Store) -> None:
    session = TapeSession("chat", store)
    ready()
    say(run(session.drop_run_state()))


class TestTogether:
    def test_four_processes_write_one_session(self, backend: Backend, crew: Crew) -> None:
        """4 times 50 turns: all are acknowledged, held once and whole."""
        assert not hold_together(crew, backend, writes, marks, least=200)

    def test_four_processes_pop_one_session(self, backend: Backend, crew: Crew) -> None:
        """Each item is popped by one of them."""
        with backend.open() as store:
            run(TapeSession("chat", store).add_items([user(str(number)) for number in range(80)]))
            popped = Counter(item for items in crew.race(backend, pops, [{} for _ in range(4)]) for item in items)
            assert popped == Counter(str(number) for number in range(80))
            assert run(TapeSession("chat", store).get_items()) == []

    def test_one_process_may_resume(self, backend: Backend, crew: Crew) -> None:
        """Of four that drop the run that waits, one is told that it did."""
        with backend.open() as store:
            store.tape("chat").put("openai-agents.run", {"state": {}})
            said = [fact for facts in crew.race(backend, drops, [{} for _ in range(4)]) for fact in facts]
            assert sorted(said) == [False, False, False, True]
