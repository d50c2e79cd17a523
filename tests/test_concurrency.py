"""Any number of threads, processes and tasks write one tape: seqs stay dense and nobody sees half of anything."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support import programs
from support.backends import Backend
from support.processes import PATIENCE, Crew, scaled
from support.sizes import heavy

import tape
from tape import transcripts
from tape.db.schema.found import found_version
from tape.db.view.opening import open_view

pytestmark = pytest.mark.blank  # The processes of a test make the store, too, all at once.

SEED = 20_240


def check_tape(store: tape.Store, name: str, answers: list[dict[str, Any]]) -> list[tape.Entry]:
    """Require a dense, verified tape that holds every acknowledged entry exactly once; returns its entries."""
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert errors == []
    entries = list(store.tape(name).entries())
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    report = store.verify(name)
    assert report.problems == []
    assert report.entries == len(entries)
    by_seq = {entry.seq: entry for entry in entries}
    assert len({answer["seq"] for answer in answers}) == len(answers), "two receipts for one entry"
    for answer in answers:
        entry = by_seq[answer["seq"]]
        assert (entry.key, entry.hash) == (answer["key"], answer["hash"])
    return entries


@heavy
class TestOneTape:
    def test_e1_eight_processes(self, backend: Backend, crew: Crew) -> None:
        """Eight processes append to one tape: every receipt is an entry of its own, and there are no others."""
        count = scaled(25)
        said = crew.race(backend, programs.append, [{"name": "t", "label": f"p{n}", "count": count} for n in range(8)])
        answers = [answer for each in said for answer in each]
        store = backend.open()
        entries = check_tape(store, "t", answers)
        assert len(answers) == 8 * count
        assert Counter(entry.kind for entry in entries) == {"open": 1, "append": 8 * count}
        contents = [message.content for message in store.tape("t").messages()]
        assert sorted(contents) == sorted(f"p{n}.0.{i}" for n in range(8) for i in range(count))

    def test_e1_eight_threads(self, backend: Backend) -> None:
        """Eight threads of one store append to one tape, and each sees its own appends in its own order."""
        store, count = backend.open(), scaled(50)
        chat = store.tape("t")
        answers: list[list[tape.Receipt]] = [[] for _ in range(8)]
        errors: list[BaseException] = []
        begin = threading.Barrier(8)

        def run(number: int) -> None:
            try:
                begin.wait(PATIENCE)
                for index in range(count):
                    answers[number].append(chat.append(role="user", content=f"{number}.{index}"))
            except BaseException as error:
                errors.append(error)

        crowd = [threading.Thread(target=run, args=(number,)) for number in range(8)]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join(PATIENCE)
        assert errors == []
        for mine in answers:
            assert [receipt.seq for receipt in mine] == sorted(receipt.seq for receipt in mine)
        flat = [{"seq": r.seq, "key": r.key, "hash": r.hash} for mine in answers for r in mine]
        assert len(check_tape(store, "t", flat)) == 8 * count + 1

    def test_e1_threads_in_processes(self, backend: Backend, crew: Crew) -> None:
        """Four threads in each of four processes, and two threads here, all on one tape."""
        count = scaled(8)
        store = backend.open()
        chat = store.tape("t")
        mine: list[dict[str, Any]] = []
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                try:
                    receipt = chat.append(role="user", content="here")
                    mine.append({"seq": receipt.seq, "key": receipt.key, "hash": receipt.hash})
                except Exception as error:
                    mine.append({"error": repr(error)})

        crowd = [threading.Thread(target=run) for _ in range(2)]
        for one in crowd:
            one.start()
        try:
            orders = [{"name": "t", "label": f"p{n}", "count": count, "threads": 4} for n in range(4)]
            said = crew.race(backend, programs.append, orders)
        finally:
            stop.set()
            for one in crowd:
                one.join(PATIENCE)
        theirs = [answer for each in said for answer in each]
        assert len(theirs) == 4 * 4 * count
        assert len(check_tape(store, "t", theirs + mine)) == len(theirs) + len(mine) + 1

    def test_e1_processes_create_one_tape(self, backend: Backend, crew: Crew) -> None:
        """Eight processes open a database that is not there and write the first entry of one tape: it opens once."""
        for round in range(scaled(2)):
            said = crew.race(
                backend, programs.append, [{"name": f"t{round}", "label": f"p{n}", "count": 1} for n in range(8)]
            )
            store = backend.open()
            answers = [answer for each in said for answer in each]
            entries = check_tape(store, f"t{round}", answers)
            assert [entry.kind for entry in entries] == ["open"] + ["append"] * 8
            assert len(store.tape(f"t{round}").messages()) == 8

    def test_t6_batches_stay_together(self, backend: Backend, crew: Crew) -> None:
        """The messages of a batch have neighbouring seqs, whoever else writes."""
        count, size = scaled(12), 7
        orders = [{"name": "t", "label": f"p{n}", "count": count, "size": size} for n in range(6)]
        said = crew.race(backend, programs.extend, orders)
        batches = [batch for each in said for batch in each]
        store = backend.open()
        check_tape(store, "t", [answer for batch in batches for answer in batch])
        assert len(batches) == 6 * count
        for batch in batches:
            first = batch[0]["seq"]
            assert [answer["seq"] for answer in batch] == list(range(first, first + size))
        contents = [message.content.rsplit(".", 1) for message in store.tape("t").messages()]
        for at in range(0, len(contents), size):
            stretch = contents[at : at + size]
            assert [place for _, place in stretch] == [str(place) for place in range(size)]
            assert len({batch for batch, _ in stretch}) == 1

    def test_e13_one_expected_head(self, backend: Backend) -> None:
        """Of eight writers that expect the same head exactly one wins, round after round."""
        store = backend.open()
        chat = store.tape("t")
        chat.append(role="user", content="start")
        for round in range(scaled(10)):
            head = chat.info().head
            begin = threading.Barrier(8)
            outcomes: list[str] = []

            def run(number: int, head: int = head, begin: threading.Barrier = begin, out: list[str] = outcomes) -> None:
                begin.wait(PATIENCE)
                try:
                    chat.append(role="user", content=number, expected_head=head)
                    out.append("won")
                except tape.HeadMoved as moved:
                    out.append(f"moved from {moved.expected - head} to {moved.actual - head}")

            crowd = [threading.Thread(target=run, args=(number,)) for number in range(8)]
            for one in crowd:
                one.start()
            for one in crowd:
                one.join(PATIENCE)
            assert Counter(outcomes) == {"won": 1, "moved from 0 to 1": 7}, f"round {round}"
        assert chat.verify().ok

    def test_e1_mixed_verbs(self, backend: Backend, crew: Crew) -> None:
        """Five processes use every verb at random on one tape, and the view stays what the entries give."""
        print("seed", SEED)
        count = scaled(30)
        orders = [{"name": "t", "seed": SEED + n, "count": count} for n in range(5)]
        said = crew.race(backend, programs.mixed, orders)
        store = backend.open()
        check_tape(store, "t", [])
        counts = [each[0] for each in said]
        assert all(each["written"] + each["refused"] == count for each in counts)
        assert sum(each["written"] for each in counts) >= 5 * count / 2

    def test_e1_fair_shares(self, backend: Backend, crew: Crew) -> None:
        """No process is starved: with six writers the slowest has at least a sixth of a fair share."""
        orders = [{"name": "t", "seconds": float(scaled(1))} for _ in range(6)]
        # The machine may be busy with something else, and not give six processes their turns: then again.
        for _ in range(4):
            said = crew.race(backend, programs.share, orders)
            counts = [each[0]["count"] for each in said]
            longest = max(each[0]["longest"] for each in said)
            print("appends", counts, "longest wait", round(longest, 3))
            if min(counts) * 6 >= sum(counts) / 6 and longest < 2.0:
                break
        else:
            pytest.fail(f"appends {counts}, longest wait {longest} s")
        check_tape(backend.open(), "t", [])

    def test_e2_one_key_many_writers(self, backend: Backend) -> None:
        """Eight threads record the same key at one moment: one of them writes, seven get its receipt."""
        store = backend.open()
        chat = store.tape("t")
        for round in range(scaled(10)):
            begin = threading.Barrier(8)
            receipts: list[tape.Receipt] = []

            def run(round: int = round, begin: threading.Barrier = begin, out: list[tape.Receipt] = receipts) -> None:
                begin.wait(PATIENCE)
                out.append(chat.append(role="user", content=f"round {round}", key=f"k{round}"))

            crowd = [threading.Thread(target=run) for _ in range(8)]
            for one in crowd:
                one.start()
            for one in crowd:
                one.join(PATIENCE)
            assert Counter(receipt.duplicate for receipt in receipts) == {False: 1, True: 7}
            assert len({(receipt.seq, receipt.hash) for receipt in receipts}) == 1
        assert len(chat.messages()) == scaled(10)
        assert chat.verify().ok


@heavy
class TestReaders:
    def test_e1_list_append(self, backend: Backend, crew: Crew) -> None:
        """Reads see prefixes of one order, and never miss what was acknowledged before they began."""
        orders = [{"name": "t", "label": f"p{n}", "count": scaled(40), "seed": SEED + n} for n in range(4)]
        said = crew.race(backend, programs.registers, orders)
        final = [message.content for message in backend.open().tape("t").messages()]
        history = [event for each in said for event in each]
        appends = [event for event in history if "append" in event]
        assert sorted(final) == sorted(event["append"] for event in appends)
        at = {value: index for index, value in enumerate(final)}
        reads = [event for event in history if "read" in event]
        assert len(reads) > 10
        for read in reads:
            seen = len(read["read"])
            assert read["read"] == final[:seen], "a read is no prefix of the final order"
            for one in appends:
                # Real time: what ended before the read began is in it, what began after it ended is not.
                if one["ended"] < read["began"]:
                    assert at[one["append"]] < seen
                if one["began"] > read["ended"]:
                    assert at[one["append"]] >= seen
        for one in appends:
            for other in appends:
                if one["ended"] < other["began"]:
                    assert at[one["append"]] < at[other["append"]]

    def test_e1_reads_while_others_write(self, backend: Backend, crew: Crew) -> None:
        """What a reader sees in the middle of other writers' work is the view that some seq had."""
        print("seed", SEED)
        store = backend.open()
        chat = store.tape("t")
        chat.extend([{"role": "user", "content": n, "id": f"first{n}"} for n in range(5)])
        workers = [crew.start(backend, programs.mixed, name="t", seed=SEED + n, count=scaled(30)) for n in range(3)]
        for worker in workers:
            worker.tell("go")
        seen: list[tuple[int, list[tuple[str, Any]]]] = []
        done = threading.Event()

        def watch() -> None:
            # On a busy machine the writers may be through before anybody has read.
            while not done.is_set() or len(seen) <= 10:
                context = chat.context()
                head = context.head
                seen.append((head, [(m.id, m.content) for m in context.messages]))
                messages = chat.messages()
                ids = [message.id for message in messages]
                assert len(ids) == len(set(ids))
                assert [message.parent for message in messages] == [None, *ids][: len(ids)]

        failed: list[BaseException] = []

        def guarded() -> None:
            try:
                watch()
            except BaseException as error:
                failed.append(error)

        crowd = [threading.Thread(target=guarded) for _ in range(2)]
        for one in crowd:
            one.start()
        for worker in workers:
            worker.finish()
        done.set()
        for one in crowd:
            one.join(PATIENCE)
        assert failed == []
        assert len(seen) > 10
        picked = seen if len(seen) <= 200 else random.Random(SEED).sample(seen, 200)
        for head, messages in picked:
            then = chat.at(head).context().messages
            assert [(message.id, message.content) for message in then] == messages, f"at {head}"

    def test_e1_more_readers_than_connections(self, backend: Backend) -> None:
        """A hundred threads that read at one moment all get their answer, however few connections there are."""
        store = backend.open(timeout=10.0)
        chat = store.tape("t")
        chat.append(role="user", content="hello")
        begin = threading.Barrier(100)
        answers: list[Any] = []

        def run() -> None:
            begin.wait(PATIENCE)
            try:
                answers.append(len(chat.messages()))
            except Exception as error:
                answers.append(repr(error))

        crowd = [threading.Thread(target=run) for _ in range(100)]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join(PATIENCE)
        assert Counter(answers) == {1: 100}

    def test_e1_readers_that_take_their_time(self, backend: Backend) -> None:
        """Forty readers that are inside their transaction together neither block one another nor the writer."""
        store = backend.open(timeout=10.0)
        chat = store.tape("t")
        chat.append(role="user", content="hello")
        inside = threading.Barrier(41)
        answers: list[Any] = []

        def run() -> None:
            def work(tx: Any) -> Any:
                inside.wait(PATIENCE)
                inside.wait(PATIENCE)
                return open_view(tx, "t", None)

            try:
                scope = store._db.read(work)
                answers.append(None if scope is None else scope.seq)
            except Exception as error:
                answers.append(repr(error))

        crowd = [threading.Thread(target=run, daemon=True) for _ in range(40)]
        for one in crowd:
            one.start()
        inside.wait(PATIENCE)
        chat.append(role="user", content="while they read")
        inside.wait(PATIENCE)
        for one in crowd:
            one.join(PATIENCE)
        # PostgreSQL takes its snapshot with BEGIN's first query, SQLite too: both came after the append.
        assert Counter(answers) == {3: 40}


class TestFork:
    @pytest.mark.parametrize("threads", [False, True], ids=["alone", "with busy threads"])
    def test_e1_parent_and_child(self, backend: Backend, crew: Crew, threads: bool) -> None:
        """After os.fork() parent and child both go on with the store that was open, and either may close it first."""
        for round in range(scaled(3)):
            name, count = f"t{round}", 10
            order = {"name": name, "count": count, "threads": threads, "options": backend.options}
            worker = crew.start(backend, programs.divide, opening={"timeout": 10.0}, **order)
            worker.tell("go")
            (answer,) = worker.finish()
            assert (answer["child"], answer["status"]) == ("++", 0)
            store = backend.open()
            check_tape(store, name, [])
            contents = Counter(str(m.content).split(".")[0] for m in store.tape(name).messages())
            assert (contents["parent"], contents["child"], contents["late"]) == (count, count, count)
            assert (contents["before"], contents["after"]) == (1, 1)
            store.close()

    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    def test_e1_forked_in_memory(self, backend: Backend, crew: Crew) -> None:
        """A fork of a process with a store in memory has a copy of it, as of all its memory."""
        worker = crew.start(backend, programs.divide_in_memory)
        worker.tell("go")
        assert worker.finish() == [[3, ["before", "child"]], [3, ["before", "parent"]]]


@heavy
class TestLocks:
    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    @pytest.mark.parametrize("read_only", [False, True])
    def test_e1_opening_a_file_again_leaves_its_locks(self, backend: Backend, crew: Crew, read_only: bool) -> None:
        """Who opens and closes the file beside an open store takes no lock away: nobody else ends its log."""
        store = backend.open()
        store.tape("t").append(role="user", content="first")
        log = Path(f"{backend.url.database}-wal")
        before = log.stat().st_ino
        backend.open(read_only=read_only).close()
        # Without the lock this process would take itself for the last one, and delete the log when it closes.
        other = crew.start(backend, programs.look, name="t")
        other.tell("go")
        other.finish()
        assert log.stat().st_ino == before
        store.tape("t").append(role="user", content="second")
        assert store.verify().ok

    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    def test_s14_the_store_itself_is_no_file_to_move(self, backend: Backend, crew: Crew) -> None:
        """Neither import, of an export or of transcripts, nor export touches a database that is open."""
        store = backend.open()
        store.tape("t").append(role="user", content="first")
        path = str(backend.url.database)
        log = Path(f"{path}-wal")
        before = log.stat().st_ino
        with pytest.raises(tape.InvalidEntry, match="in use"):
            store.import_(path)
        with pytest.raises(tape.StoreFailed):
            store.export("t", path)
        with pytest.raises(tape.TapeError):
            transcripts.import_transcript(store, "codex", path)
        assert [file.tapes for file in transcripts.import_paths(store, [path])] in ([], [[]])
        other = crew.start(backend, programs.look, name="t")
        other.tell("go")
        other.finish()
        assert log.stat().st_ino == before
        assert store.verify().ok

    @pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
    def test_r4_a_store_that_is_made_meanwhile_is_none_of_others(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two who open a new file at one moment: neither takes the tables of the other for another program's."""
        Path(str(backend.url.database)).touch()
        look, made = found_version, threading.Event()

        def other() -> None:
            tape.open(backend.url, **backend.options).close()
            made.set()

        def found(*args: Any) -> Any:
            monkeypatch.setattr("tape.db.schema.migrate.found_version", look)
            revision = look(*args)
            threading.Thread(target=other, daemon=True).start()
            # It comes between two looks at the file, or has to wait for both.
            made.wait(0.5)
            return revision

        monkeypatch.setattr("tape.db.schema.migrate.found_version", found)
        with backend.open() as store:
            assert store.list().items == []
        assert made.wait(PATIENCE)


class TestXidOrder:
    @pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
    def test_s12_xid_never_falls(self, backend: Backend, crew: Crew) -> None:
        """Along a tape the stored xid never falls and is never below the transaction's own, also for bound writers."""
        print("seed", SEED)
        store = backend.open()
        with backend.raw() as connection:
            connection.execute("CREATE TABLE application (id bigserial PRIMARY KEY, note text)")
        count = scaled(25)
        workers = []
        for number in range(8):
            if number < 3:
                order: dict[str, Any] = {
                    "label": f"bound{number}",
                    "count": count,
                    "seed": SEED + number,
                    "schema": backend.schema,
                }
                workers.append(crew.launch(backend, programs.bound, name="t", **order))
            elif number < 5:
                workers.append(crew.launch(backend, programs.mixed, name="t", count=count, seed=SEED + number))
            else:
                workers.append(crew.launch(backend, programs.append, name="t", count=count, label=f"a{number}"))
        for worker in workers:
            assert worker.next() == "ready"
        for worker in workers:
            worker.tell("go")
        for worker in workers:
            worker.finish()
        entries = check_tape(store, "t", [])
        with backend.raw() as connection:
            rows = connection.execute(
                "SELECT seq, xid, xmin::text::bigint FROM tape_entries ORDER BY tape_id, seq"
            ).fetchall()
            notes = connection.execute("SELECT count(*) FROM application").fetchone()[0]
        assert len(rows) == len(entries)
        falls = [(one, other) for one, other in pairwise(rows) if one[1] > other[1]]
        assert falls == []
        bound = {entry.seq for entry in entries if entry.kind == "append" and _label(entry).startswith("bound")}
        assert len(bound) == notes
        # A bound append runs in a savepoint, whose rows carry a later xid than the transaction itself; so does the
        # opening that the first of all writes brings along.
        bound |= {1} if 2 in bound else set()
        below = [row for row in rows if row[0] not in bound and row[1] % 2**32 < row[2]]
        assert below == []


def _label(entry: tape.Entry) -> str:
    return str(getattr(entry.payload, "message", {}).get("content"))


class TestAsync:
    def test_e1_two_hundred_tasks(self, backend: Backend) -> None:
        """Two hundred tasks append to one tape at once: 200 entries, dense, none lost and none twice."""

        async def run() -> list[tape.Receipt]:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("t")
                return await asyncio.gather(*(chat.append(role="user", content=n) for n in range(200)))

        receipts = asyncio.run(run())
        answers = [{"seq": r.seq, "key": r.key, "hash": r.hash} for r in receipts]
        store = backend.open()
        assert len(check_tape(store, "t", answers)) == 201
        assert sorted(message.content for message in store.tape("t").messages()) == list(range(200))

    def test_e1_cancelled_tasks(self, backend: Backend) -> None:
        """A cancelled append is wholly there or wholly absent, and the tape goes on."""
        print("seed", SEED)
        pick = random.Random(SEED)

        async def run() -> tuple[list[str], list[str]]:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("t")

                async def one(number: int) -> tape.Receipt:
                    return await chat.append(role="user", content=number, key=f"k{number}")

                tasks = {f"k{number}": asyncio.create_task(one(number)) for number in range(80)}
                await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
                for key in pick.sample(sorted(tasks), 40):
                    tasks[key].cancel()
                done = await asyncio.gather(*tasks.values(), return_exceptions=True)
                acked = [key for key, answer in zip(tasks, done, strict=True) if isinstance(answer, tape.Receipt)]
                odd = [repr(e) for e in done if not isinstance(e, tape.Receipt | asyncio.CancelledError)]
                await chat.append(role="user", content="after")
                return acked, odd

        acked, odd = asyncio.run(run())
        assert odd == []
        store = backend.open()
        entries = check_tape(store, "t", [])
        keys = [entry.key for entry in entries]
        assert len(keys) == len(set(keys))
        assert set(acked) <= set(keys)
        assert store.tape("t").messages()[-1].content == "after"

    def test_s1_closed_store(self, backend: Backend) -> None:
        """A call on a store that was closed is a typed error, not one of the machinery beneath."""

        async def run() -> None:
            store = await tape.open_async(backend.url, **backend.options)
            chat = store.tape("t")
            await chat.append(role="user", content="hello")
            await store.close()
            with pytest.raises(tape.StoreFailed):
                await chat.append(role="user", content="too late")
            with pytest.raises(tape.StoreFailed):
                await chat.messages()

        asyncio.run(run())

    def test_s1_close_waits(self, backend: Backend) -> None:
        """Closing an async store waits for the calls that were made before it; a second close does nothing."""

        async def run() -> list[tape.Receipt]:
            store = await tape.open_async(backend.url, **backend.options)
            chat = store.tape("t")

            async def one(number: int) -> tape.Receipt:
                return await chat.append(role="user", content=number)

            tasks = [asyncio.create_task(one(number)) for number in range(50)]
            # Let every task make its call, then close under them.
            await asyncio.sleep(0)
            await store.close()
            await store.close()
            return await asyncio.gather(*tasks)

        receipts = asyncio.run(run())
        assert sorted(receipt.seq for receipt in receipts) == list(range(2, 52))
        check_tape(backend.open(), "t", [])


class TestClose:
    def test_s1_close_while_in_use(self, backend: Backend) -> None:
        """Closing a store under busy threads ends their calls with StoreFailed or lets them finish; nothing else."""
        for _ in range(scaled(5)):
            store = backend.open()
            chat = store.tape("t")
            chat.append(role="user", content="first")
            odd: list[str] = []
            acked: list[int] = []
            going = threading.Barrier(7)

            def run(
                read: bool,
                chat: tape.Tape = chat,
                going: threading.Barrier = going,
                odd: list[str] = odd,
                acked: list[int] = acked,
            ) -> None:
                going.wait(PATIENCE)
                try:
                    while True:
                        if read:
                            chat.messages(limit=5)
                        else:
                            acked.append(chat.append(role="user", content="x").seq)
                except tape.StoreFailed:
                    pass
                except BaseException as error:
                    odd.append(repr(error))

            crowd = [threading.Thread(target=run, args=(number % 2 == 0,)) for number in range(6)]
            for one in crowd:
                one.start()
            going.wait(PATIENCE)
            deadline = time.monotonic() + PATIENCE
            while not acked and time.monotonic() < deadline:
                crowd[0].join(0.001)
            store.close()
            for one in crowd:
                one.join(PATIENCE)
                assert not one.is_alive()
            assert odd == []
            again = backend.open()
            check_tape(again, "t", [])
            assert {entry.seq for entry in again.tape("t").entries()} >= set(acked)
            again.close()
