"""The view of a tape inside a transaction: the two ways in which it answers agree."""

from __future__ import annotations

import contextlib
import random

import pytest
from support.backends import Backend

import tape
from tape.db.engine.transaction import Transaction
from tape.db.view import paths
from tape.db.view.opening import view_of
from tape.db.view.tape_view import TapeView

STEPS = 60


def live(chance: random.Random, store: tape.Store) -> tuple[list[str], list[str]]:
    """Write a family of tapes in any order; return its tapes, and the ids of all messages."""
    tapes, ids = ["root"], ["m0"]
    store.tape("root").append(role="user", content="0", id="m0")
    for n in range(1, STEPS):
        chat, some = store.tape(chance.choice(tapes)), chance.choice(ids)
        with contextlib.suppress(tape.UnknownMessage, tape.InvalidEntry, tape.TapeClosed):
            match chance.choice(
                ["append", "append", "branch", "revise", "retract", "restore", "clear", "undo", "fork"]
            ):
                case "append":
                    ids.append(chat.append(role="user", content=str(n), id=f"m{n}").message_id or "")
                case "branch":
                    ids.append(chat.append(role="user", content=str(n), id=f"m{n}", parent=some).message_id or "")
                case "revise":
                    chat.revise(some, content=f"revised {n}")
                case "retract":
                    chat.retract(some)
                case "restore":
                    chat.restore(some)
                case "clear" if chance.random() < 0.4:
                    chat.clear()
                case "undo":
                    chat.restore()
                case "fork" if len(tapes) < 6:
                    tapes.append(chat.fork(f"t{n}").id)
    return tapes, ids


def compare(view: TapeView, ids: list[str]) -> int:
    """Ask for each message by itself and with the rows of its path; return how many are in the view."""
    seen = 0
    for message_id in ids:
        found = view.place(message_id)
        if found is None:
            continue
        place, _ = found
        standing = view.standing(place)
        rows = paths.rows(view, place, place.ordinal - 1)
        assert bool(rows) == standing.visible(view.head.cleared), message_id
        on_path = [row for row in paths.path(view, place) if row.ordinal == place.ordinal]
        assert [(row.placed, row.body, row.payload) for row in on_path] == [
            (row.placed, row.body, row.payload) for row in rows
        ]
        for row in rows:
            seen += 1
            body_tape = view.name_of(row.body_tape or row.tape_id)
            assert (row.body, row.placed, body_tape) == (standing.body, standing.placed, standing.of or view.tape)
            assert view.body(standing.body, standing.of).id == message_id
    return seen


@pytest.mark.alike
@pytest.mark.parametrize("seed", range(12))
def test_f2_the_nearest_tape_decides_in_one_message_as_on_a_path(backend: Backend, seed: int) -> None:
    """How a message stands, asked by itself as plans do, is what the rows of a path show, as readers get them."""
    chance = random.Random(seed)
    store = backend.open(durability="normal")
    tapes, ids = live(chance, store)

    def work(tx: Transaction) -> int:
        return sum(compare(view_of(tx, name, None), ids) for name in tapes)

    assert store._db.read(work) > 0, f"seed {seed}"


def test_f2_a_clear_on_the_way_hides_what_an_ancestor_beyond_it_changed(store: tape.Store) -> None:
    """Of a message that was revised two forks up, behind a clear one fork up, both ways say that it is out."""
    root = store.tape("root")
    root.append(role="user", content="first", id="m0")
    above = root.fork("above")
    above.revise("m0", content="revised")
    cleared = above.fork("cleared")
    cleared.clear()
    cleared.fork("below")

    def work(tx: Transaction) -> list[int]:
        return [compare(view_of(tx, name, None), ["m0"]) for name in ("root", "above", "cleared", "below")]

    assert store._db.read(work) == [1, 1, 0, 0]
