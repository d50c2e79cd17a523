"""Transactions inside others, and inside a caller's own: each is a part of that, and undone by itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from support.backends import Backend

import tape


def texts(chat: tape.Tape) -> list[Any]:
    return [message.content for message in chat.messages()]


def add_one(inside: tape.Store) -> None:
    """Read a number, and write the next."""
    chat = inside.tape("a")
    chat.put("n", (chat.state("n") or 0) + 1)


Step = tuple[str, str, int]
"""A call: the tape, what is done to it, and a number."""


def take(store: tape.Store, step: Step) -> None:
    """Make a call; one that is refused does nothing."""
    name, verb, number = step
    chat = store.tape(name)
    try:
        if verb == "append":
            chat.append(role="user", content=number)
        elif verb == "extend":
            chat.extend([{"id": f"m{number}", "content": number}, {"role": "user", "content": number}])
        elif verb == "revise":
            chat.revise(f"m{number}", content=f"revised {number}")
        elif verb == "retract":
            chat.retract(f"m{number}")
        elif verb == "put":
            chat.put("n", [number, chat.state("n")] if number % 2 else number)
        elif verb == "merge":
            child = chat.fork()
            child.append(role="user", content=f"merged {number}")
            chat.merge(child)
        else:
            chat.append(role="user", content="refused", expected_head=chat.info().head + 1)
    except (tape.UnknownMessage, tape.HeadMoved, tape.ProvenanceConflict):
        pass


def act(random: Random, inside: tape.Store, survivors: list[Step], depth: int) -> None:
    """Make random calls, some in a nested transaction, and perhaps fail; notes those that are not undone."""
    for _ in range(random.randrange(1, 6)):
        if depth < 2 and random.random() < 0.25:
            left = len(survivors)
            try:
                inside.transaction(lambda again: act(random, again, survivors, depth + 1))
            except ZeroDivisionError:
                del survivors[left:]
            continue
        verb = random.choice(["append", "extend", "revise", "retract", "put", "merge", "refused"])
        survivors.append((f"t{random.randrange(3)}", verb, random.randrange(9)))
        take(inside, survivors[-1])
    if random.random() < 0.3:
        raise ZeroDivisionError


@pytest.mark.alike
class TestNested:
    """A transaction inside another is a part of it."""

    def test_it_joins(self, store: tape.Store, backend: Backend) -> None:
        """It commits with the other, and is undone with it."""

        def fn(inside: tape.Store, fail: bool) -> int:
            inside.tape("a").append(role="user", content="outer")
            seq = inside.transaction(lambda again: again.tape("a").append(role="user", content="inner").seq)
            if fail:
                raise ZeroDivisionError
            return seq

        with pytest.raises(ZeroDivisionError):
            store.transaction(lambda inside: fn(inside, True))
        assert store.tape("a").info().head == 0
        assert store.transaction(lambda inside: fn(inside, False)) == 3
        assert texts(backend.open().tape("a")) == ["outer", "inner"]

    def test_it_is_undone_by_itself(self, store: tape.Store) -> None:
        """An exception in it undoes what it wrote; the other goes on if it catches that."""

        def inner(inside: tape.Store) -> None:
            inside.tape("a").append(role="user", content="lost")
            inside.tape("b").append(role="user", content="lost")
            inside.transaction(lambda again: again.tape("c").append(role="user", content="lost"))
            raise ZeroDivisionError

        def fn(inside: tape.Store) -> None:
            inside.tape("a").append(role="user", content="one")
            with pytest.raises(ZeroDivisionError):
                inside.transaction(inner)
            assert [inside.tape(name).info().head for name in ("a", "b", "c")] == [2, 0, 0]
            inside.tape("a").append(role="user", content="two")
            inside.transaction(lambda again: again.scoped("me").create("mine"))
            inside.tape("b").append(role="user", content="three")

        store.transaction(fn)
        assert [texts(store.tape(name)) for name in ("a", "b", "c")] == [["one", "two"], ["three"], []]
        assert store.get("mine").info().owner == "me"
        assert store.verify().problems == []

    def test_errors_of_its_own(self, store: tape.Store) -> None:
        """What a nested function raises arrives as it is, also if it looks like an error of the store's driver."""

        def inner(inside: tape.Store) -> None:
            raise sqlite3.IntegrityError("of an application's own file")

        def fn(inside: tape.Store) -> None:
            inside.tape("a").append(role="user", content="x")
            with pytest.raises(sqlite3.IntegrityError):
                inside.transaction(inner)

        store.transaction(fn)
        assert texts(store.tape("a")) == ["x"]

    @pytest.mark.parametrize("seed", range(5))
    def test_any_calls(self, elsewhere_of: Callable[[], tape.Store], seed: int) -> None:
        """Random calls, some refused, in transactions that are nested and undone at random: what is left is what the
        calls that were not undone leave on a store without transactions."""
        random = Random(seed)
        mixed, plain = elsewhere_of(), elsewhere_of()
        for _ in range(25):
            survivors: list[Step] = []
            left = len(survivors)
            try:
                mixed.transaction(lambda inside: act(random, inside, survivors, 0))  # noqa: B023
            except ZeroDivisionError:
                del survivors[left:]
            for step in survivors:
                take(plain, step)
            if random.random() < 0.5:
                step = (f"t{random.randrange(3)}", "append", random.randrange(9))
                take(mixed, step)
                take(plain, step)
        for name in ("t0", "t1", "t2"):
            one, two = mixed.tape(name), plain.tape(name)
            assert texts(one) == texts(two)
            assert one.states() == two.states()
            assert [entry.kind for entry in one.entries()] == [entry.kind for entry in two.entries()]
        assert mixed.verify().problems == []

    def test_transcripts_can_be_part_of_it(self, store: tape.Store) -> None:
        """An import of a transcript is undone with the transaction that it is in."""
        from tape.transcripts import import_transcript

        file = Path(__file__).parent / "data" / "transcripts" / "claude-code.jsonl"

        def fn(inside: tape.Store) -> None:
            assert import_transcript(inside, "claude-code", file)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.transaction(fn)
        assert store.list().items == []


class TestBound:
    """On a connection of the caller's a transaction is a part of the caller's."""

    def test_it_is_a_savepoint(self, store: tape.Store, backend: Backend) -> None:
        """What it raises undoes it, the caller's commit keeps it, the caller's rollback takes it back."""
        engine = backend.engine()

        def fail(inside: tape.Store) -> None:
            inside.tape("a").append(role="user", content="lost")
            raise ZeroDivisionError

        with engine.connect() as connection:
            bound = store.bind(connection)
            bound.tape("a").append(role="user", content="one")
            with pytest.raises(ZeroDivisionError):
                bound.transaction(fail)
            bound.transaction(add_one)
            assert bound.tape("a").info().head == 3
            connection.commit()
            bound.transaction(add_one)
            connection.rollback()
        engine.dispose()
        assert store.tape("a").state("n") == 1
        assert store.verify().problems == []

    def test_rows_of_the_application_go_along(self, store: tape.Store, backend: Backend) -> None:
        """The transaction holds the caller's own rows as well, if the function writes them."""
        engine = backend.engine()
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE orders_of_mine (id INTEGER)"))
        try:
            with engine.begin() as connection:

                def fail(inside: tape.Store) -> None:
                    connection.execute(sa.text("INSERT INTO orders_of_mine VALUES (1)"))
                    inside.tape("a").append(role="user", content="lost")
                    raise ZeroDivisionError

                with pytest.raises(ZeroDivisionError):
                    store.bind(connection).transaction(fail)
            with engine.begin() as connection:
                assert connection.execute(sa.text("SELECT count(*) FROM orders_of_mine")).scalar() == 0
        finally:
            with engine.begin() as connection:
                connection.execute(sa.text("DROP TABLE orders_of_mine"))
            engine.dispose()
        assert store.tape("a").info().head == 0
