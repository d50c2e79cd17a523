"""TapeSessionStore holds the SDK's contracts, and those that its kit has no test for: writers, retries, restarts."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    InMemorySessionStore,
    delete_session_via_store,
    fold_session_summary,
    fork_session_via_store,
    get_session_messages_from_store,
    get_subagent_messages_from_store,
    list_sessions_from_store,
    list_subagents_from_store,
    project_key_for_directory,
    rename_session_via_store,
    tag_session_via_store,
)
from claude_agent_sdk.testing import run_session_store_conformance
from support.backends import Backend
from support.processes import Crew, ready, say
from support.proxy import Proxy
from support.sessions import distinct, session
from support.transcript_files import DATA

import tape
from integrations.contention import hold_together
from tape.integrations.claude_agent import TapeSessionStore

KEY = {"project_key": "-home-dev-shop", "session_id": "5b0c9a52-7d3e-4c55-9a1e-0c6f5a8d1b11"}
SIDE = {**KEY, "subpath": "subagents/agent-one"}

Line = dict[str, Any]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def asking(number: int | str, parent: str | None = None, **more: Any) -> Line:
    """Return a line of a user."""
    message = {"role": "user", "content": f"question {number}"}
    return {"type": "user", "uuid": f"u-{number}", "parentUuid": parent, "message": message, **more}


def only(store: tape.Store) -> tape.TapeInfo:
    (info,) = store.list().items
    return info


class TestKit:
    def test_the_kit_passes(self, elsewhere_of: Callable[[], tape.Store]) -> None:
        """All fourteen contracts of the SDK, the optional ones included."""
        run(run_session_store_conformance(lambda: TapeSessionStore(elsewhere_of())))

    def test_the_kit_passes_on_files(self, tmp_path: Path) -> None:
        """And when the store is named by a path, or is an async one."""
        names = itertools.count()
        made: list[tape.AsyncStore] = []

        async def awaited() -> TapeSessionStore:
            made.append(await tape.open_async(tmp_path / f"{next(names)}.db"))
            return TapeSessionStore(made[-1])

        async def both() -> None:
            await run_session_store_conformance(lambda: TapeSessionStore(tmp_path / f"{next(names)}.db"))
            await run_session_store_conformance(awaited)
            for store in made:
                await store.close()

        run(both())

    def test_the_helpers_of_the_sdk_find_what_a_store_in_memory_gives(
        self, store: tape.Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Listing, reading, renaming, tagging, forking and deleting, in turns on both stores: the same answers."""
        monkeypatch.chdir(tmp_path)
        run(compare(TapeSessionStore(store), InMemorySessionStore()))


async def compare(ours: Any, theirs: Any) -> None:
    """Hold both stores to the same answers, whatever is asked."""
    project = project_key_for_directory(None)
    lines = {str(seed): clean(session(seed, 40)) for seed in (11, 12)}
    ids = {seed: f"00000000-0000-4000-8000-0000000000{seed}" for seed in lines}
    for store in (ours, theirs):
        for seed, written in lines.items():
            key = {"project_key": project, "session_id": ids[seed]}
            await store.append(key, written)
            await store.append({**key, "subpath": "subagents/agent-x"}, written[:9])
    one, two = ids.values()
    # What a helper writes has a uuid of chance.
    known = {line.get("uuid") for written in lines.values() for line in written}
    asked: list[Callable[[Any], Any]] = [
        lambda store: rename_session_via_store(store, one, "Renamed"),
        lambda store: tag_session_via_store(store, two, "kept"),
        lambda store: get_session_messages_from_store(store, one),
        lambda store: list_subagents_from_store(store, one),
        lambda store: get_subagent_messages_from_store(store, one, "x"),
        lambda store: delete_session_via_store(store, two),
        lambda store: list_subagents_from_store(store, two),
    ]
    for ask in asked:
        assert await ask(ours) == await ask(theirs)
        # Each store has its own clock.
        listed = [
            sorted(
                ((info.session_id, info.summary, info.custom_title, info.first_prompt, info.tag, info.cwd))
                for info in await list_sessions_from_store(store)
            )
            for store in (ours, theirs)
        ]
        assert listed[0] == listed[1]
        loaded = [
            [
                [
                    line
                    for line in await store.load({"project_key": project, "session_id": id}) or []
                    if line.get("uuid") in known
                ]
                for id in ids.values()
            ]
            for store in (ours, theirs)
        ]
        assert loaded[0] == loaded[1]
    forked = [await fork_session_via_store(store, one, title="Forked") for store in (ours, theirs)]
    told = [
        await get_session_messages_from_store(store, made.session_id)
        for store, made in zip((ours, theirs), forked, strict=True)
    ]
    assert [message.message for message in told[0]] == [message.message for message in told[1]]


def clean(lines: list[Line]) -> list[Line]:
    """Return lines as the SDK writes them: each once, and none that JSON itself cannot hold."""
    made = [line for line in distinct(lines) if "Infinity" not in json.dumps(line) and "rewritten" not in line]
    return [line for line in made if isinstance(line.get("type"), str)]


class TestMirror:
    def test_a_session_is_a_tape_with_forks(self, store: tape.Store) -> None:
        """The kept session and its subagent's transcript: messages, a name, an owner; the subagent begins empty."""
        kept, side = (
            [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]
            for name in ("claude-code.jsonl", "claude-code-agent.jsonl")
        )
        sessions = TapeSessionStore(store)
        run(sessions.append(KEY, kept))
        run(sessions.append(SIDE, side))
        assert run(sessions.load(KEY)) == distinct(kept)
        assert run(sessions.load(SIDE)) == side
        main, fork = sorted(store.list().items, key=lambda info: info.parent or "")
        assert (main.name, main.owner, main.agent) == ("Cart total", KEY["project_key"], "claude-agent")
        assert (fork.parent, fork.name, fork.owner) == (main.id, SIDE["subpath"], main.owner)
        assert [message.id for message in store.tape(fork.id).messages()] == [line["uuid"] for line in side]
        assert store.search("cart", tape=main.id)
        assert store.verify().ok

    def test_a_subagent_may_write_first(self, store: tape.Store) -> None:
        """Its session is there when it is written to, not before."""
        sessions = TapeSessionStore(store)
        run(sessions.append(SIDE, [asking(1)]))
        assert run(sessions.load(KEY)) is None
        assert run(sessions.list_sessions(KEY["project_key"])) == []
        assert run(sessions.list_session_summaries(KEY["project_key"])) == []
        assert run(sessions.list_subkeys(KEY)) == [SIDE["subpath"]]
        run(sessions.append(KEY, [asking(1)]))
        assert [one["session_id"] for one in run(sessions.list_sessions(KEY["project_key"]))] == [KEY["session_id"]]
        assert run(sessions.load(SIDE)) == run(sessions.load(KEY)) == [asking(1)]

    def test_what_is_deleted_can_be_written_again(self, store: tape.Store) -> None:
        """The session and its subagents, as often as one likes; adapters that knew the old one notice."""
        one, two = TapeSessionStore(store), TapeSessionStore(store)
        for turn in range(3):
            for sessions in (one, two):
                run(sessions.append(KEY, [asking(1), asking(2, "u-1"), {"type": "x", "turn": turn}]))
                run(sessions.append(SIDE, [asking(3)]))
            assert len(run(one.load(KEY))) == 4
            assert run(two.load(SIDE)) == [asking(3)]
            assert run(two.list_subkeys(KEY)) == [SIDE["subpath"]]
            run((one if turn % 2 else two).delete(KEY))
            assert run(one.load(KEY)) is run(one.load(SIDE)) is None
        assert store.verify().ok

    def test_a_fork_that_somebody_made_is_not_deleted(self, store: tape.Store) -> None:
        """Nothing of the session is, and the error says so; without the fork all of it is."""
        sessions = TapeSessionStore(store)
        run(sessions.append(KEY, [asking(1)]))
        run(sessions.append(SIDE, [asking(2)]))
        for parent in [info.id for info in store.list()]:
            mine = store.tape(parent).fork("mine", reuse=True)
            with pytest.raises(tape.TapeInUse) as caught:
                run(sessions.delete(KEY))
            assert caught.value.by == ["mine"]
            assert (run(sessions.load(KEY)), run(sessions.load(SIDE))) == ([asking(1)], [asking(2)])
            assert len(mine.messages()) == 1
            store.purge("mine")
        run(sessions.delete(KEY))
        assert store.list().items == store.list(hidden=True).items == []

    def test_keys_are_never_confused(self, store: tape.Store) -> None:
        """Equal sessions of two projects or tenants, names like paths, long and strange ones: each is its own."""
        odd = ["a", "a/b", "a%2Fb", "x" * 300, "x" * 299 + "y", "~ä\u202e", " "]
        keys: list[Any] = [{"project_key": project, "session_id": id} for project in odd for id in odd]
        keys += [{"project_key": "p", "session_id": id, "subpath": sub} for id in odd for sub in odd]
        sessions = {None: TapeSessionStore(store), "ann": TapeSessionStore(store.scoped("ann"))}
        for owner, one in sessions.items():
            for number, key in enumerate(keys):
                run(one.append(key, [{"type": "x", "of": [owner, number]}]))
        for owner, one in sessions.items():
            for number, key in enumerate(keys):
                assert run(one.load(key)) == [{"type": "x", "of": [owner, number]}]
            for project in odd:
                assert sorted(each["session_id"] for each in run(one.list_sessions(project))) == sorted(odd)
            for id in odd:
                assert sorted(run(one.list_subkeys({"project_key": "p", "session_id": id}))) == sorted(odd)

    def test_many_sessions_are_listed(self, store: tape.Store) -> None:
        """More than a page of them, and more than are kept in memory; each can be gone on with."""
        sessions = TapeSessionStore(store)
        ids = [f"s{number}" for number in range(70)]

        async def go() -> None:
            for turn in range(2):
                for id in ids:
                    await sessions.append(
                        {"project_key": "p", "session_id": id}, [asking(turn, "u-0" if turn else None)]
                    )

        run(go())
        assert sorted(one["session_id"] for one in run(sessions.list_sessions("p"))) == sorted(ids)
        assert {tuple(m.id for m in store.tape(info.id).messages()) for info in store.list(limit=100).items} == {
            ("u-0", "u-1")
        }


class TestAgain:
    @pytest.mark.parametrize("seed", range(3))
    def test_batches_that_are_sent_again_add_nothing(self, store: tape.Store, seed: int) -> None:
        """By the same adapter or a new one, whole or overlapping: every line with a uuid is there once."""
        lines = [line for line in session(seed, 50) if isinstance(line.get("uuid"), str)]
        pick = random.Random(seed)
        sessions = TapeSessionStore(store)
        done = 0
        while done < len(lines):
            begin = max(0, done - pick.randint(0, 9))
            done = min(len(lines), done + pick.randint(1, 9))
            if pick.random() < 0.3:
                sessions = TapeSessionStore(store)
            run(sessions.append(KEY, lines[begin:done]))
        held = run(sessions.load(KEY))
        assert json.dumps(held, sort_keys=True) == json.dumps(distinct(lines), sort_keys=True)
        assert store.verify().ok

    def test_a_batch_that_fails_leaves_nothing(self, store: tape.Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also its lines without a uuid, which nobody could tell apart when it is sent again."""
        sessions = TapeSessionStore(store)
        run(sessions.append(KEY, [asking(1)]))
        batch = [asking(2, "u-1"), {"type": "mode", "mode": "plan"}, asking(3, "u-2")]

        def fails(*_: Any) -> None:
            raise OSError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr("tape.integrations.claude_agent.fold_session_summary", fails)
            with pytest.raises(OSError, match="the disk is full"):
                run(sessions.append(KEY, batch))
        assert run(sessions.load(KEY)) == [asking(1)]
        run(sessions.append(KEY, batch))
        assert run(sessions.load(KEY)) == [asking(1), *batch]
        assert [message.id for message in store.tape(only(store).id).messages()] == ["u-1", "u-2", "u-3"]

    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    @pytest.mark.parametrize("reply", [True, False], ids=["reply lost", "request lost"])
    def test_a_lost_commit_doubles_nothing(self, proxy: Proxy, backend: Backend, reply: bool) -> None:
        """The connection breaks while a batch is committed: it is there once, with the lines that have no uuid."""
        with tape.open(proxy.url, **backend.options) as store:
            sessions = TapeSessionStore(store)
            lines: list[Line] = []
            for number in range(8):
                proxy.lose("COMMIT", reply=reply)
                batch = [asking(number, f"u-{number - 1}"), {"type": "mode", "n": number}, {"type": "mode"}]
                run(sessions.append(KEY, batch))
                lines += batch
                assert proxy.lost == number + 1
            assert run(sessions.load(KEY)) == lines
            assert len(store.tape(only(store).id).messages()) == 8
            assert store.verify().ok

    def test_a_cancelled_append_is_there_or_not(self, store: tape.Store) -> None:
        """What the SDK gives up waiting for may still land, as a whole; sent again it is there once."""
        sessions = TapeSessionStore(store)

        async def go() -> None:
            for number in range(20):
                batch = [asking(f"{number}.{place}") for place in range(5)]
                waiting = asyncio.ensure_future(sessions.append(KEY, batch))
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting

        run(go())
        held = [line["uuid"] for line in run(sessions.load(KEY)) or []]
        assert len(held) == len(set(held))
        assert len(held) % 5 == 0
        run(sessions.append(KEY, [asking(f"{number}.{place}") for number in range(20) for place in range(5)]))
        assert len(run(sessions.load(KEY))) == 100


# -- other processes


def writes(store: tape.Store) -> Callable[[str], Any]:
    """Return what writes a turn of a conversation that all processes share."""
    sessions = TapeSessionStore(store)

    def write(mark: str) -> Any:
        lines = [asking(mark, mark=mark), {"type": "custom-title", "customTitle": mark}]
        return sessions.append(KEY, lines)

    return write


def marks(store: tape.Store) -> list[str]:
    lines = run(TapeSessionStore(store).load(KEY))
    titles = sorted(line["customTitle"] for line in lines if "customTitle" in line)
    assert titles == sorted(line["mark"] for line in lines if "mark" in line)
    return [line["mark"] for line in lines if "mark" in line]


def sends(store: tape.Store, lines: list[Line]) -> None:
    """Send the same session as other processes do, in batches."""
    sessions = TapeSessionStore(store)
    ready()
    for begin in range(0, len(lines), 5):
        asyncio.run(sessions.append(KEY, lines[begin : begin + 5]))
    say(len(lines))


def deletes(store: tape.Store, rounds: int) -> None:
    sessions = TapeSessionStore(store)
    ready()
    for _ in range(rounds):
        asyncio.run(sessions.delete(KEY))
    say("deleted")


def starts(store: tape.Store, rounds: int) -> None:
    """Write to a session and a subagent of it, again and again."""
    sessions = TapeSessionStore(store)
    ready()
    for number in range(rounds):
        asyncio.run(sessions.append(SIDE, [asking(number)]))
        asyncio.run(sessions.append(KEY, [asking(number)]))
    say("started")


class TestTogether:
    def test_four_processes_write_one_session(self, backend: Backend, crew: Crew) -> None:
        """4 times 50 turns: all are acknowledged and held once, and the summary is that of the session as it is."""
        refused = hold_together(crew, backend, writes, marks, least=200)
        assert not refused
        store = backend.open()
        sessions = TapeSessionStore(store)
        (summary,) = run(sessions.list_session_summaries(KEY["project_key"]))
        assert summary["data"] == fold_session_summary(None, KEY, run(sessions.load(KEY)))["data"]
        (listed,) = run(sessions.list_sessions(KEY["project_key"]))
        assert summary["mtime"] >= listed["mtime"]

    def test_processes_that_send_the_same_session(self, backend: Backend, crew: Crew) -> None:
        """Each of four sends all of it: every line is there once, in a tree."""
        lines = [line for line in distinct(session(21, 60)) if isinstance(line.get("uuid"), str)]
        crew.race(backend, sends, [{"lines": lines} for _ in range(4)])
        store = backend.open()
        held = run(TapeSessionStore(store).load(KEY))
        assert sorted(json.dumps(line, sort_keys=True) for line in held) == sorted(
            json.dumps(line, sort_keys=True) for line in lines
        )
        assert store.verify().ok

    def test_deleting_beside_writers(self, backend: Backend, crew: Crew) -> None:
        """A session that is deleted again and again while a subagent and the session are written: no error."""
        workers = [
            crew.start(backend, starts, rounds=30),
            crew.start(backend, starts, rounds=30),
            crew.start(backend, deletes, rounds=15),
        ]
        for worker in workers:
            worker.tell("go")
        assert [worker.finish() for worker in workers] == [["started"], ["started"], ["deleted"]]
        store = backend.open()
        sessions = TapeSessionStore(store)
        run(sessions.delete(KEY))
        assert run(sessions.load(KEY)) is run(sessions.load(SIDE)) is None
        assert run(sessions.list_subkeys(KEY)) == []
        assert store.verify().ok

    def test_tasks_that_write_one_session(self, store: tape.Store) -> None:
        """Forty tasks of one loop: all lines are held, each batch together."""
        sessions = TapeSessionStore(store)

        async def go() -> None:
            await asyncio.gather(
                *(sessions.append(KEY, [asking(f"{n}.0"), {"type": "x", "n": n}, asking(f"{n}.1")]) for n in range(40))
            )

        run(go())
        held = run(sessions.load(KEY))
        assert len(held) == 120
        for place in range(0, 120, 3):
            assert held[place]["uuid"].split(".")[0] == held[place + 2]["uuid"].split(".")[0]
            assert held[place]["uuid"] == f"u-{held[place + 1]['n']}.0"

    def test_another_program_goes_on(self, tmp_path: Path) -> None:
        """Closed and opened again, the session is gone on with: the next line finds its parent."""
        for number in range(4):
            sessions = TapeSessionStore(tmp_path / "agent.db")
            run(sessions.append(KEY, [asking(number, f"u-{number - 1}" if number else None)]))
            run(sessions.close())
        with tape.open(tmp_path / "agent.db") as store:
            chat = store.tape(only(store).id)
            assert [(m.id, m.parent) for m in chat.messages()] == [
                (f"u-{number}", f"u-{number - 1}" if number else None) for number in range(4)
            ]
