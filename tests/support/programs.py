"""The small programs that tests run in other processes, see ``processes.py``."""

from __future__ import annotations

import io
import json
import logging
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import sqlalchemy as sa

import tape
from support import crowd
from support.processes import PATIENCE, heard, pending, ready, say
from support.second_release import second_release
from tape.db.transfer import importer, staging


def _receipt(receipt: tape.Receipt, content: Any = None) -> dict[str, Any]:
    return {"seq": receipt.seq, "key": receipt.key, "hash": receipt.hash, "content": content}


def append(store: tape.Store, *, name: str, label: str, count: int, threads: int = 1) -> None:
    """Append ``count`` messages from each of ``threads`` threads to one tape."""
    chat = store.tape(name)
    answers: list[dict[str, Any]] = []
    begin = threading.Barrier(threads)

    def run(number: int) -> None:
        begin.wait(PATIENCE)
        for index in range(count):
            content = f"{label}.{number}.{index}"
            try:
                answers.append(_receipt(chat.append(role="user", content=content), content))
            except Exception as error:
                answers.append({"error": repr(error)})

    ready()
    crowd = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(PATIENCE)
    for answer in answers:
        say(answer)


def look(store: tape.Store, *, name: str) -> None:
    """Read a tape, and close the store."""
    ready()
    store.tape(name).messages()
    store.close()


def extend(store: tape.Store, *, name: str, label: str, count: int, size: int) -> None:
    """Append batches of ``size`` messages."""
    chat = store.tape(name)
    ready()
    for index in range(count):
        batch = [{"role": "user", "content": f"{label}.{index}.{place}"} for place in range(size)]
        say([_receipt(receipt) for receipt in chat.extend(batch)])


def share(store: tape.Store, *, name: str, seconds: float) -> None:
    """Append for some time and tell how often that worked, and the longest that one append took."""
    chat = store.tape(name)
    ready()
    count, longest = 0, 0.0
    now = began = time.monotonic()
    while now - began < seconds:
        chat.append(role="user", content="x")
        longest = max(longest, time.monotonic() - now)
        now = time.monotonic()
        count += 1
    say({"count": count, "longest": longest})


def mixed(store: tape.Store, *, name: str, seed: int, count: int) -> None:
    """Use every verb at random; what other writers did in between may refuse it, and only with a typed error."""
    chat, pick = store.tape(name), random.Random(seed)
    written = refused = 0
    ready()
    for index in range(count):
        known = [message.id for message in chat.messages()]
        try:
            _any_verb(chat, pick, f"{seed}.{index}", pick.choice(known) if known else None)
            written += 1
        except (tape.UnknownMessage, tape.InvalidEntry):
            refused += 1
    say({"written": written, "refused": refused})


def _any_verb(chat: tape.Tape, pick: random.Random, label: str, one: str | None) -> None:
    verb = pick.randrange(12 if one is not None else 6)
    match verb:
        case 0:
            chat.append(role="user", content=label)
        case 1:
            chat.append(role="user", content=label, id=label)
        case 2:
            chat.extend([{"role": "user", "content": n} for n in range(pick.randint(1, 4))])
        case 3:
            chat.event("note", {"by": label})
        case 4:
            chat.anchor(f"a{pick.randint(0, 3)}", {"by": label})
        case 5:
            chat.handoff("next", summary="so far", next_steps=["go on"])
    if one is not None:
        match verb:
            case 6:
                chat.revise(one, content=label)
            case 7:
                chat.retract(one)
            case 8:
                chat.restore(one)
            case 9:
                chat.switch(one)
            case 10:
                chat.append(role="user", content="branch", parent=one)
            case 11:
                chat.upsert({"id": one, "role": "user", "content": label})


def registers(store: tape.Store, *, name: str, label: str, count: int, seed: int) -> None:
    """Append and read in turn, and tell when each call began and ended and what it saw."""
    chat, pick = store.tape(name), random.Random(seed)
    ready()
    for index in range(count):
        began = time.monotonic_ns()
        if pick.random() < 0.6:
            value = f"{label}.{index}"
            chat.append(role="user", content=value)
            say({"append": value, "began": began, "ended": time.monotonic_ns()})
        else:
            seen = [message.content for message in chat.messages()]
            say({"read": seen, "began": began, "ended": time.monotonic_ns()})


def bound(store: tape.Store, *, name: str, label: str, count: int, seed: int, schema: str | None) -> None:
    """Append inside transactions of the program's own, with a row of its own first; some are rolled back."""
    pick = random.Random(seed)
    engine = sa.create_engine(store._db.engine.url)
    where = f'"{schema}".application' if schema else "application"
    ready()
    with engine.connect() as connection:
        for index in range(count):
            keep = pick.random() < 0.8
            connection.exec_driver_sql(f"INSERT INTO {where} (note) VALUES ('{label}.{index}')")
            receipt = store.bind(connection).tape(name).append(role="user", content=f"{label}.{index}")
            if keep:
                connection.commit()
                say(_receipt(receipt, f"{label}.{index}"))
            else:
                connection.rollback()
    engine.dispose()


def insist(store: tape.Store, *, name: str, label: str) -> None:
    """Append with keys until told to stop, each again and again until it works; tell of every one acknowledged."""
    chat = store.tape(name)
    ready()
    index = failures = 0
    while not pending():
        content = f"{label}.{index}"
        tries = 0
        while True:
            try:
                receipt = chat.append(role="user", content=content, key=content)
                break
            except (tape.CommitUnknown, tape.StoreFailed, tape.StoreBusy):
                failures += 1
                tries += 1
                if tries > 2_000:
                    raise
                # The server is away for a moment; asking at full speed would only slow its return.
                threading.Event().wait(0.02)
        say(_receipt(receipt, content))
        index += 1
    heard()
    say({"failures": failures})


def stop_inside(store: tape.Store, *, name: str) -> None:
    """Stop, as a debugger or a laptop's lid would, in the middle of a write."""

    def stop(point: str) -> None:
        if point == "commit":
            say("inside")
            os.kill(os.getpid(), signal.SIGSTOP)

    ready()
    store._db.fault = stop
    say(_receipt(store.tape(name).append(role="user", content="stopped")))


def fill(store: tape.Store, *, name: str, room: int) -> None:
    """Append until files may grow no further, then with more room again."""
    chat = store.tape(name)
    chat.append(role="user", content="first")
    ready()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    count = 0
    error: BaseException | None = None
    while error is None and count < 10_000:
        try:
            chat.extend([{"role": "user", "content": "x" * 2_000}, {"role": "user", "content": "y" * 2_000}])
            count += 1
        except Exception as caught:
            error = caught
    typed = isinstance(error, tape.StoreFailed)
    held = len(chat.messages())
    again: list[str] = []
    for _ in range(3):
        try:
            chat.append(role="user", content="z" * 200_000)
            again.append("wrote")
        except tape.StoreFailed:
            again.append("StoreFailed")
    problems = [str(problem) for problem in store.verify().problems]
    said = {"typed": typed, "error": repr(error), "batches": count, "messages": held}
    say({**said, "again": again, "problems": problems, "after": len(chat.messages())})
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    receipt = chat.append(role="user", content="room again")
    say({"seq": receipt.seq, "messages": len(chat.messages()), "ok": store.verify().ok})


def fill_together(store: tape.Store, *, name: str, threads: int) -> None:
    """Write from many threads until files may grow no further, and once more when there is room again."""
    chat, acknowledged, full, odd = store.tape(name), [], [], []
    begin = threading.Barrier(threads)

    def write(label: str, number: int, index: int) -> None:
        batch = [f"{label}.{number}.{index}.{part}." + "x" * 2_000 for part in range(2)]
        chat.extend([{"role": "user", "content": text} for text in batch])
        acknowledged.extend(batch)

    def run(number: int) -> None:
        try:
            begin.wait(PATIENCE)
            for index in range(5_000):
                write("first", number, index)
        except tape.StoreFailed:
            full.append(number)
        except BaseException as error:
            odd.append(repr(error))

    chat.event("begun")
    ready()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    crowd = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(PATIENCE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    for number in range(threads):
        write("later", number, 0)
    say({"acknowledged": acknowledged, "full": len(full), "odd": odd})


def nest(store: tape.Store, *, name: str, options: dict[str, Any]) -> None:
    """Put a writer into the world whenever asked, for the test to kill; a fork of this process starts at once.

    With a verb the writer takes its own life, just before it would pass the given one of the points of that write. With
    a crowd it is many writers at once, threads or tasks.
    """
    url = store._db.engine.url
    store.close()
    say("ready")
    while (order := heard()) != "enough":
        child = os.fork()
        if not child:
            # What was inherited is closed; everything else is opened anew, as a process after a crash does.
            if "crowd" in order:
                _crowd(url, options, kind=order["crowd"], seed=order["seed"])
                os._exit(0)
            fresh = tape.open(url, **options)
            if "verb" in order:
                _die_within(fresh, name, **order)
                os._exit(0)
            _write_on(fresh.tape(name), order["label"], keyed=False)
        say({"pid": child})
        _, status = os.waitpid(child, 0)
        say({"status": status})


def _crowd(url: sa.URL, options: dict[str, Any], *, kind: str, seed: int) -> None:
    turn = threading.Lock()

    def tell(answer: dict[str, Any]) -> None:
        with turn:
            say(answer)

    crowd.write(url, kind, seed, tell, **options)


def _die_within(store: tape.Store, name: str, *, verb: str, point: int) -> None:
    left = point

    def pass_by(_: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    store._db.fault = pass_by
    VERBS[verb](store.tape(name))


VERBS: dict[str, Callable[[tape.Tape], Any]] = {
    "append": lambda chat: chat.append(role="user", content="x"),
    "append as a root": lambda chat: chat.append(role="user", content="x", parent=None),
    "extend": lambda chat: chat.extend([{"role": "user", "content": n} for n in range(3)]),
    "revise": lambda chat: chat.revise("m", content="revised"),
    "retract": lambda chat: chat.retract("m"),
    "clear": lambda chat: chat.clear(),
    "anchor": lambda chat: chat.anchor("here"),
    "complete": lambda chat: chat.complete(),
    "first write": lambda chat: tape.Tape(chat._services, "brand new").append(role="user", content="x"),
    "fork": lambda chat: chat.fork("brand new"),
    "merge": lambda chat: chat.merge("helper"),
    "discard": lambda chat: tape.Tape(chat._services, "helper").discard("enough"),
}
"""Writes in the middle of which a process can die; the tape has a message ``m`` and a fork ``helper``."""


def _write_on(chat: tape.Tape, label: str, *, keyed: bool) -> None:
    index = 0
    while True:
        content = f"{label}.{index}"
        receipt = chat.append(role="user", content=content, key=content if keyed else None)
        say(_receipt(receipt, content))
        index += 1


class Beside:
    """Threads that append to a tape until they are told to end."""

    def __init__(self, chat: tape.Tape, threads: int) -> None:
        self.acknowledged: list[str] = []
        self.odd: list[str] = []
        self._chat, self._over = chat, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(threads)]
        for one in self._threads:
            one.start()

    def _run(self, number: int) -> None:
        index = 0
        try:
            while not self._over.is_set():
                content = f"{number}.{index}"
                self._chat.append(role="user", content=content)
                self.acknowledged.append(content)
                index += 1
        except BaseException as error:
            self.odd.append(repr(error))

    def end(self) -> None:
        """Let them end."""
        self._over.set()
        for one in self._threads:
            one.join(PATIENCE)
            if one.is_alive():
                self.odd.append("a thread hangs")


def divide_often(store: tape.Store, *, name: str, threads: int, forks: int) -> None:
    """Fork again and again while threads write; every child writes a little with the store that it inherits."""
    chat = store.tape(name)
    chat.append(role="user", content="first")
    ready()
    beside = Beside(chat, threads)
    children = []
    for number in range(forks):
        child = os.fork()
        if not child:
            try:
                for index in range(5):
                    chat.append(role="user", content=f"child.{number}.{index}")
                os._exit(0)
            finally:
                os._exit(1)
        children.append(os.waitpid(child, 0)[1])
    beside.end()
    say({"acknowledged": ["first", *beside.acknowledged], "odd": beside.odd, "children": children})


def divide(store: tape.Store, *, name: str, count: int, threads: bool, options: dict[str, Any]) -> None:
    """Fork with the store open and in use, and go on writing on both sides; the child outlives the parent's store."""
    import gc

    url, chat = store._db.engine.url, store.tape(name)
    chat.append(role="user", content="before")
    assert len(chat.messages()) == 1
    ready()
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            chat.append(role="user", content="beside")
            chat.messages(limit=5)

    crowd = [threading.Thread(target=busy, daemon=True) for _ in range(3 if threads else 0)]
    for one in crowd:
        one.start()
    told, tells = os.pipe()
    hears, saying = os.pipe()
    child = os.fork()
    side = "parent" if child else "child"

    def work(label: str) -> None:
        for index in range(count):
            chat.append(role="user", content=f"{label}.{index}")
            if index % 5 == 0:
                chat.messages(limit=3)

    if not child:
        try:
            # Whatever the child lets go of here must not reach into the parent's connections.
            gc.collect()
            work(side)
            os.write(tells, b"+")
            # Now the parent closes its store, as the last one that the kernel knows of if locks were inherited.
            os.read(hears, 1)
            work("late")
            assert store.verify(name).ok
            store.close()
            os.write(tells, b"+")
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
            os.write(tells, b"-")
        finally:
            os._exit(0)
    work(side)
    first = os.read(told, 1)
    stop.set()
    for one in crowd:
        one.join(PATIENCE)
    assert store.verify(name).ok
    store.close()
    os.write(saying, b".")
    second = os.read(told, 1) if first == b"+" else b""
    _, status = os.waitpid(child, 0)
    with tape.open(url, **options) as again:
        again.tape(name).append(role="user", content="after")
    for end in (told, tells, hears, saying):
        os.close(end)
    say({"child": (first + second).decode(), "status": status})


def divide_in_memory(store: tape.Store) -> None:
    """Fork with a store in memory, and write on both sides."""
    ready()
    with tape.open(":memory:") as inner:
        chat = inner.tape("t")
        chat.append(role="user", content="before")
        told, tells = os.pipe()
        child = os.fork()
        if not child:
            try:
                seq = chat.append(role="user", content="child").seq
                os.write(tells, json.dumps([seq, [message.content for message in chat.messages()]]).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        say(json.loads(os.read(told, 1_000)))
        os.close(told)
        os.close(tells)
        seq = chat.append(role="user", content="parent").seq
        say([seq, [message.content for message in chat.messages()]])


def write_if_head(store: tape.Store, *, name: str, label: str, expected: int) -> None:
    """Append on condition that the head stands at ``expected``; tells ("won", seq) or ("lost", actual head)."""
    chat = store.tape(name)
    chat.messages()
    ready()
    try:
        say(("won", chat.append(role="user", content=label, expected_head=expected).seq))
    except tape.HeadMoved as error:
        say(("lost", error.actual))


class _Migrations(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "tape.migrated" in record.getMessage()


def open_and_append(address: str, options: dict[str, Any], *, name: str, label: str, later: bool) -> None:
    """Open a store at the same instant as others, append once; tells the seq and whether this one migrated."""
    seen = _Migrations()
    logger = logging.getLogger("tape")
    logger.setLevel(logging.INFO)
    logger.addHandler(seen)
    ready()
    with second_release() if later else nullcontext(), tape.open(address, **options) as store:
        seq = store.tape(name).append(role="user", content=label).seq
    logger.removeHandler(seen)
    say((seq, seen.count))


def open_new_files(address: str, options: dict[str, Any], *, folder: str, count: int) -> None:
    """Open new SQLite files, each at the same instant as others; tells what went wrong."""
    for number in range(count):
        ready()
        try:
            tape.open(f"{folder}/{number}.db").close()
        except tape.TapeError as error:
            say(repr(error))


def open_and_die(address: str, options: dict[str, Any], *, statement: int, later: bool) -> None:
    """Open the store and be killed (-9) before the n-th statement, or with 0 before the commit."""
    left = statement

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            die()

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    if statement == 0:
        sa.event.listen(sa.Engine, "commit", die)
    with second_release() if later else nullcontext():
        tape.open(address, **options).close()
    sa.event.remove(sa.Engine, "before_cursor_execute", count)


def write_and_die(store: tape.Store, *, name: str, point: str) -> None:
    """Append and be killed (-9) at a named point inside the write."""

    def die(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    store._db.fault = die
    store.tape(name).extend([{"content": "lost"}, {"content": "lost too"}])


def merge_child(store: tape.Store, *, index: int, rounds: int) -> None:
    """Append a message to one's own child and merge it, so many times; others write the same parent."""
    chat, child = store.tape("chat"), store.tape(f"child-{index}")
    ready()
    for number in range(rounds):
        child.append(role="assistant", content="found", id=f"{index}-{number}")
        say(chat.merge(child).message_ids)


def merge_on(store: tape.Store) -> None:
    """Write threes of messages to a child and merge them until killed; tells the number of each three."""
    chat, child = store.tape("chat"), store.tape("child")
    number = len(list(child.entries(kinds=["append"])))
    ready()
    while True:
        child.extend([{"id": f"{number}-{part}", "role": "user", "content": "x"} for part in range(3)])
        chat.merge(child)
        say(number)
        number += 1


def import_and_die(store: tape.Store, *, raw: bytes, at_once: int, pending: int) -> None:
    """Import a file that counts as long, and be killed (-9) when nine tenths of both readings are done."""
    importer._AT_ONCE = at_once
    staging._Arrival.pending = pending

    def die(done: int, total: int) -> None:
        if done >= total * 0.9:
            os.kill(os.getpid(), signal.SIGKILL)

    store.import_(io.BytesIO(raw), progress=die)


def storm(store: tape.Store, *, index: int, seed: int, count: int) -> None:
    """Write to shared and own tapes, in transactions of the application's own with pauses inside."""
    pick = random.Random(seed + index)
    engine = sa.create_engine(store._db.engine.url)
    # SQLite has one writer, so that every pause is a pause of all.
    longest = 0.004 if engine.dialect.name == "postgresql" else 0.001
    pause = threading.Event()
    ready()
    written = 0
    while written < count:
        some = min(pick.randint(1, 5), count - written)
        # One tape for a transaction: two in changing order could wait for each other.
        name = f"shared{pick.randrange(3)}" if pick.random() < 0.5 else f"own{index}"
        if pick.random() < 0.2:
            for _ in range(some):
                store.tape(name).append(role="user", content="single")
        else:
            with engine.connect() as connection:
                connection.execute(sa.text("SELECT 1"))
                if engine.dialect.name == "postgresql" and pick.random() < 0.5:
                    connection.execute(sa.text("SELECT pg_current_xact_id()"))
                bound = store.bind(connection).tape(name)
                for _ in range(some):
                    bound.append(role="user", content="bound")
                    # The pause is what is tested: a transaction that commits late.
                    pause.wait(pick.random() * longest)
                connection.commit()
        written += some
    engine.dispose()
