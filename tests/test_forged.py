"""S4 and S14: a file whose hashes fit is still refused if it says what no store would have recorded."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import pytest
from support.backends import Backend
from support.damage import contents
from support.exports import exported
from support.forging import ROOT, Line, file, forged, opening

import tape
from tape.core.entries import payloads as p
from tape.core.entries.payloads import Answer, Layer, Place, Reopened


def refused(store: tape.Store, *tapes: list[Line], **options: Any) -> tape.ImportFailed:
    """Return the refusal of a forged file, which names one of its lines."""
    with pytest.raises(tape.ImportFailed) as caught:
        store.import_(file(*tapes), **options)
    assert 2 <= caught.value.line <= 1 + sum(len(lines) for lines in tapes)
    return caught.value


class TestOwners:
    """A fork that names another owner's tape as its ancestor."""

    @pytest.mark.parametrize("asof", [0, 3])
    def test_s4_a_forged_fork_of_another_owners_tape_is_refused(self, backend: Backend, asof: int) -> None:
        """Whoever knows the id of another owner's tape, or even its hash, cannot fork it by an import."""
        root = backend.open()
        bob, ann = root.scoped("bob"), root.scoped("ann")
        secret = bob.tape("sec")
        hash = [secret.append(role="user", content=f"secret {n}").hash for n in range(3)][1]
        shows = [Reopened(place=Place(2, n, "sec"), placed=n + 1, body=n + 1, of="sec") for n in (1, 2, 3)]
        kept = contents(backend)
        for rest in ([], [p.Restore(ids=[], shows=shows)]):
            for head in (ROOT, (2, 3, "sec")):
                fork = opening("ann", Layer("sec", asof, 0, False), hash=hash if asof else "")
                why = refused(ann, forged("evil", fork, *rest, head=head)).why
                there = f"the fork needs tape 'sec' up to seq {asof}, which is neither in the file nor in the store"
                seen = f"the entry refers to seq {asof + 1}, which the tape cannot see"
                assert why in (there, seen)
        assert contents(backend) == kept
        assert ann.tape("evil").messages() == []

    def test_s4_nothing_is_learnt_about_the_other_tape(self, backend: Backend) -> None:
        """The refusal of a fork is the same whether the tape is another owner's, was purged, or never was."""
        root = backend.open()
        root.create("taken", owner="bob")
        root.create("purged", owner="ann")
        root.purge("purged")
        ann = root.scoped("ann")
        whys = {
            refused(ann, forged("evil", opening("ann", Layer(name, 1, 0, False), hash="00"))).why.replace(name, "x")
            for name in ("taken", "purged", "never")
        }
        assert len(whys) == 1

    @pytest.mark.parametrize("together", [False, True], ids=["stored", "in the file"])
    def test_s4_a_fork_has_its_parents_owner(self, backend: Backend, together: bool) -> None:
        """A store for all owners does not take in one owner's fork of another's tape either."""
        root = backend.open()
        parent = forged("sec", p.Open(owner="bob"))
        if not together:
            root.import_(file(parent))
        kept = contents(backend)
        hash = parent[1].hash
        fork = forged("evil", opening("ann", Layer("sec", 1, 0, False), hash=hash))
        assert "needs tape 'sec'" in refused(root, *([parent] if together else []), fork).why
        assert contents(backend) == kept
        own = forged("own", opening("bob", Layer("sec", 1, 0, False), hash=hash))
        assert root.import_(file(parent, own)).tapes == ["sec", "own"]
        assert root.verify().problems == []

    @pytest.mark.parametrize(
        ("point", "layers"),
        [
            (("a", 1), []),
            (("a", 1), [Layer("b", 1, 0, False)]),
            (("a", 1), [Layer("a", 0, 0, False)]),
            (("a", 1), [Layer("a", 1, 0, False), Layer("a", 1, 0, False)]),
            (("a", 1), [Layer("a", 1, 0, False), Layer("evil", 1, 0, False)]),
            (("a", 1), [Layer("a", 1, 0, False), Layer("b", 1, 0, False)]),
            (("evil", 1), [Layer("evil", 1, 0, False)]),
        ],
        ids=["none", "another first", "another seq", "twice", "itself", "not the parent's", "of itself"],
    )
    def test_s14_a_lineage_that_no_fork_has_is_refused(
        self, backend: Backend, point: tuple[str, int], layers: list[Layer]
    ) -> None:
        """The ancestors of a fork are its parent, up to the fork, and that one's own ancestors."""
        store = backend.open()
        parent, stranger = forged("a", p.Open()), forged("b", p.Open())
        store.import_(file(parent, stranger))
        kept = contents(backend)
        fork = p.Open(parent=p.ForkPoint(tape=point[0], seq=point[1], hash=parent[1].hash, layers=layers))
        refused(store, forged("evil", fork))
        assert contents(backend) == kept

    @pytest.mark.parametrize(
        "entry",
        [
            p.Restore(ids=["m"], shows=[Reopened(Place(2, 1, "b"), 2, 2, of="b")]),
            p.Restore(ids=["m"], shows=[Reopened(Place(2, 1, "a"), 2, 2, of="b")]),
            p.Restore(ids=["m"], shows=[Reopened(Place(2, 1, "a"), 3, 2, of="a")]),
            p.Restore(ids=["m"], shows=[Reopened(Place(2, 1, "a"), 2, 3, of="a")]),
            p.Restore(ids=["m"], marks=[Reopened(Place(2, 1, "a"), 2, 9)]),
            p.Retract(ids=["m"], places=[Place(2, 1, "b")]),
            p.Retract(ids=["m"], hides=[Place(2, 1, "b")]),
            p.Retract(ids=["m"], loosens=[p.Loosened(1, 0, False, False, "b")]),
            p.Revise(id="m", message={}, place=Place(2, 1, "b"), placed=2, supersedes=2),
            p.Revise(id="m", message={}, place=Place(2, 1, "a"), placed=2, supersedes=2, supersedes_of="b"),
            p.Revise(id="m", message={}, place=Place(2, 1, "a"), placed=2, supersedes=3, supersedes_of="a"),
            p.Append(id="n", message={}, base=Place(2, 1, "b")),
            p.Append(id="n", message={}, answers=[p.Answer("c", Place(2, 1, "b"))]),
            p.Compact(text="t", first="m", last="m", covers=["m"], place=Place(2, 1, "b"), lo=0),
            p.Fork(child="c", at=1, head=Place(2, 1, "b")),
        ],
        ids=lambda entry: entry.kind,
    )
    def test_s4_entries_name_only_what_their_tape_inherits(self, backend: Backend, entry: p.Payload) -> None:
        """Places and bodies on a tape that is no ancestor, or of a later time than the fork, are refused."""
        store = backend.open()
        message = p.Append(id="m", message={"role": "user", "content": "x"})
        grown = p.Append(id="later", message={"role": "user", "content": "y"})
        heads = [ROOT, (2, 1, None), (2, 2, None)]
        parents = [forged(name, p.Open(), message, grown, heads=heads) for name in ("a", "b")]
        store.import_(file(*parents))
        kept = contents(backend)
        fork = opening(None, Layer("a", 2, 0, False), hash=parents[0][2].hash)
        assert refused(store, forged("evil", fork, entry, head=(2, 1, "a"))).line == 3
        refused(store, forged("evil", fork, p.Event(name="x"), heads=[(2, 1, "a"), (2, 1, "b")]))
        assert contents(backend) == kept


MESSAGE = p.Append(id="m", message={"role": "user", "content": "x"})
AFTER = [ROOT, (2, 1, None), (2, 1, None)]
HUGE = 2**70
LAST = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""


class TestStates:
    """What no store records."""

    @pytest.mark.parametrize(
        "lines",
        [
            forged("evil", p.Open(), stamps=[LAST + 1]),
            forged("evil", p.Open(), p.Event(name="x"), stamps=[1, 2**62]),
            forged("evil", p.Open(), p.Status(status="purged")),
            forged("evil", p.Open(), p.Status(status="discarded")),
            forged("evil", p.Open(), p.Status(status="bogus")),
            forged("evil", p.Open(), p.Status(status="")),
            forged("evil", p.Open(), head=(7, 9, None)),
            forged("evil", p.Open(), head=(0, 0, "other")),
            forged("evil", p.Open(), p.Append(id="m", message={}, lo=HUGE), heads=AFTER),
            forged("evil", p.Open(), p.Append(id="m", message={}, base=Place(2, -1)), heads=AFTER),
            forged("evil", p.Open(), MESSAGE, p.Retract(ids=["m"], places=[Place(HUGE, 1)]), heads=AFTER),
            forged("evil", p.Open(), MESSAGE, p.Retract(ids=["m"], places=[Place(2, 1)] * 2), heads=AFTER),
            forged("evil", p.Open(), MESSAGE, p.Restore(ids=[], undoes=2, returned=2**63 - 1), heads=AFTER),
            forged("evil", p.Open(), p.Switch(id="m", lo=HUGE)),
            forged("evil", p.Open(), p.Merge(tape="x", seq=HUGE, hash="", strategy="link")),
        ],
        ids=[
            "the year 10000",
            "a stamp of 63 bits",
            "purged",
            "discarded by status",
            "an unknown status",
            "an empty status",
            "a head without messages",
            "a head elsewhere",
            "a huge depth",
            "a negative place",
            "a huge place",
            "retracted twice",
            "more than was cleared",
            "a huge switch",
            "a huge merge",
        ],
    )
    def test_s14_what_no_store_records_is_refused(self, backend: Backend, lines: list[Line]) -> None:
        """A time, status, head or number that no store writes is ImportFailed at its line, and nothing is written."""
        store = backend.open()
        kept = contents(backend)
        assert refused(store, lines).line == len(lines)
        assert contents(backend) == kept
        assert store.list().items == []

    def test_s14_the_last_moment_is_accepted(self, backend: Backend) -> None:
        """The latest time that a datetime can tell is imported and listed."""
        store = backend.open()
        store.import_(file(forged("late", p.Open(), p.Status(status="ended"), stamps=[1, LAST])))
        (found,) = store.list().items
        assert found.updated_at is not None
        assert (found.updated_at.year, found.status) == (9999, "ended")
        assert store.verify().problems == []

    def test_s14_counts_of_tokens_may_be_of_any_size(self, backend: Backend) -> None:
        """What stays within a payload is not bounded by the columns of a database."""
        store = backend.open()
        usage = p.Usage(input_tokens=HUGE, totals=[HUGE, 0, 0, 0, 1])
        store.import_(file(forged("much", p.Open(), usage)))
        assert store.get("much").usage().input_tokens == HUGE
        assert store.verify().problems == []

    def test_s14_what_the_callers_progress_raises_is_the_callers(self, backend: Backend) -> None:
        """An error of the progress callback is raised as it is, not as one of the file."""
        store = backend.open()
        many = [p.Event(name="x", data="y" * 1_000) for _ in range(150)]

        def progress(done: int, total: int) -> None:
            if done > total // 2:
                raise ValueError("stop")

        with pytest.raises(ValueError, match="stop"):
            store.import_(file(forged("a", p.Open(), *many)), progress=progress)
        assert store.list().items == []


_numbers = itertools.count(1)

# -- 3 and 4: what a forged file says is checked before anything of it shows

M = p.Append(id="m", message={"role": "user", "content": "x"})
N = p.Append(id="n", message={"role": "assistant", "content": "y"})
BEGUN: list[p.Payload] = [p.Open(), M, N]
HEADS: list[Any] = [ROOT, (2, 1, None), (2, 2, None)]
AT = HEADS[-1]
RUN: dict[str, Any] = {"text": "t", "first": "m", "last": "n", "covers": ["m", "n"], "place": Place(2, 2), "lo": 1}
SUMMARY = p.Compact(**RUN, span=(2, 3))
RETRACTED = p.Retract(ids=["n"], places=[Place(2, 2)])


def deep(levels: int) -> Any:
    """Return a value nested that deep."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


LIES: dict[str, tuple[list[p.Payload], list[Any]]] = {
    "a lane that branches off from itself": ([p.Append(id="o", message={}, base=Place(4, 1))], [(4, 2, None)]),
    "a lane from nowhere": ([p.Append(id="o", message={}, base=Place(7, 3))], [(4, 4, None)]),
    "a lane from below the last message": ([p.Append(id="o", message={}, base=Place(2, 3))], [(4, 4, None)]),
    "a lane that begins at another depth": ([p.Append(id="o", message={}, base=Place(2, 1))], [(4, 9, None)]),
    "a message on no lane": ([p.Append(id="o", message={})], [(9, 1, None)]),
    "a message on the root": ([p.Append(id="o", message={})], [(0, 1, None)]),
    "a gap in a lane": ([p.Append(id="o", message={})], [(2, 4, None)]),
    "a place that is taken": ([p.Append(id="o", message={})], [(2, 2, None)]),
    "another depth of the lane": ([p.Append(id="o", message={}, lo=1)], [(2, 3, None)]),
    "a parent that is not above": ([p.Append(id="o", message={}, parent="m")], [(2, 3, None)]),
    "an answer to nobody": ([p.Append(id="o", message={}, answers=[Answer("c", Place(5, 5))])], [(2, 3, None)]),
    "an answer to itself": ([p.Append(id="o", message={}, answers=[Answer("c", Place(2, 3))])], [(2, 3, None)]),
    "a call made twice": ([p.Append(id="o", message={}, calls=["c", "c"])], [(2, 3, None)]),
    "a role that is none": ([p.Append(id="o", message={"role": 5})], [(2, 3, None)]),
    "a message that no copy survives": ([p.Append(id="o", message={"content": deep(400)})], [(2, 3, None)]),
    "an event that moves the head": ([p.Event(name="x")], [(2, 1, None)]),
    "a switch to nowhere": ([p.Switch(id="m", lo=0)], [(2, 9, None)]),
    "a switch to another message": ([p.Switch(id="n", lo=0)], [(2, 1, None)]),
    "a switch with another lane": ([p.Switch(id="m", lo=1)], [(2, 1, None)]),
    "a switch to an end that is none": ([p.Switch(id="m", lo=0, tip=True)], [(2, 1, None)]),
    "usage without totals": ([p.Usage(input_tokens=1)], [AT]),
    "usage with other totals": ([p.Usage(input_tokens=1, totals=[2, 0, 0, 0, 1])], [AT]),
    "usage that goes down": ([p.Usage(cost=-1, totals=[0, 0, 0, -1, 1])], [AT]),
    "merged usage without totals": (
        [p.Merge(tape="f", seq=1, hash="0" * 64, strategy="link", into=True, usage=[1, 0, 0, 0, 1])],
        [AT],
    ),
    "a restore that undoes itself": ([p.Restore(ids=[], undoes=4)], [AT]),
    "a restore that undoes a message": ([p.Restore(ids=[], undoes=2)], [AT]),
    "a clear undone twice": (
        [p.Clear(), p.Restore(ids=[], undoes=4, returned=2), p.Restore(ids=[], undoes=4, returned=2)],
        [AT] * 3,
    ),
    "a clear that gives back more": ([p.Clear(), p.Restore(ids=[], undoes=4, returned=1)], [AT] * 2),
    "a clear on top of none": ([p.Clear(), p.Restore(ids=[], undoes=4, returned=2, beneath=2)], [AT] * 2),
    "a restore of nothing": ([p.Restore(ids=[])], [AT]),
    "a restore from nowhere": ([p.Restore(ids=["o"], shows=[Reopened(Place(9, 1), 2, 2)])], [AT]),
    "a restore of what is there": ([p.Restore(ids=["n"], shows=[Reopened(Place(2, 2), 3, 3)])], [AT]),
    "a restore of another message": (
        [RETRACTED, p.Restore(ids=["m"], shows=[Reopened(Place(2, 2), 3, 3)])],
        [AT] * 2,
    ),
    "a restore with another's body": (
        [RETRACTED, p.Restore(ids=["n"], shows=[Reopened(Place(2, 2), 3, 2)])],
        [AT] * 2,
    ),
    "a restore with no body": (
        [RETRACTED, p.Restore(ids=["n"], shows=[Reopened(Place(2, 2), 3, 4)])],
        [AT] * 2,
    ),
    "a restore of another placing": (
        [RETRACTED, p.Restore(ids=["n"], shows=[Reopened(Place(2, 2), 2, 3)])],
        [AT] * 2,
    ),
    "a restore from a clear that is none": (
        [p.Restore(ids=["n"], shows=[Reopened(Place(2, 2), 3, 3, clear=2)])],
        [AT],
    ),
    "a restore that hides from nowhere": (
        [p.Clear(), p.Restore(ids=[], undoes=4, returned=2, hides=[Place(3, 3)])],
        [AT] * 2,
    ),
    "a mark of what is there": ([p.Restore(ids=["n"], marks=[Reopened(Place(2, 2), 3, 3)])], [AT]),
    "a retraction from nowhere": ([p.Retract(ids=["o"], places=[Place(9, 1)])], [AT]),
    "a retraction of another message": ([p.Retract(ids=["m"], places=[Place(2, 2)])], [AT]),
    "a retraction of what is out": ([RETRACTED, RETRACTED], [AT] * 2),
    "a retraction and a mark of one message": (
        [p.Retract(ids=["n"], places=[Place(2, 2)], hides=[Place(2, 2)])],
        [AT],
    ),
    "a retraction that marks what is there": ([p.Retract(ids=["n"], marks=[Place(2, 2)])], [AT]),
    "a retraction that hides from nowhere": (
        [p.Retract(ids=["n"], places=[Place(2, 2)], hides=[Place(2, 9)])],
        [AT],
    ),
    "a summary loosened that is none": (
        [p.Retract(ids=["n"], places=[Place(2, 2)], loosens=[p.Loosened(2, 1, False, False)])],
        [AT],
    ),
    "a revision from nowhere": (
        [p.Revise(id="n", message={}, place=Place(2, 9), placed=3, supersedes=3)],
        [AT],
    ),
    "a revision of another message": (
        [p.Revise(id="n", message={}, place=Place(2, 1), placed=2, supersedes=2)],
        [AT],
    ),
    "a revision of another placing": (
        [p.Revise(id="n", message={}, place=Place(2, 2), placed=2, supersedes=3)],
        [AT],
    ),
    "a revision of no body": ([p.Revise(id="n", message={}, place=Place(2, 2), placed=3, supersedes=1)], [AT]),
    "a revision of itself": ([p.Revise(id="n", message={}, place=Place(2, 2), placed=3, supersedes=4)], [AT]),
    "a revision of what is out": (
        [RETRACTED, p.Revise(id="n", message={}, place=Place(2, 2), placed=3, supersedes=3)],
        [AT] * 2,
    ),
    "a summary of nothing": ([p.Compact(**{**RUN, "place": Place(2, 9)})], [AT]),
    "a summary from above the root": ([p.Compact(**{**RUN, "lo": 0})], [AT]),
    "a summary from below its end": ([p.Compact(**{**RUN, "lo": 3})], [AT]),
    "a summary from another message": ([p.Compact(**{**RUN, "lo": 2})], [AT]),
    "a summary to another message": ([p.Compact(**{**RUN, "place": Place(2, 1)})], [AT]),
    "a summary of what is outside": ([p.Compact(**{**RUN, "covers": ["m", "z"]})], [AT]),
    "a summary of another span": ([p.Compact(**RUN, span=(1, 9))], [AT]),
    "a summary on top of none": ([p.Compact(**RUN, expected=3)], [AT]),
    "an anchor with a parent that is none": ([p.Anchor(name="a", parents=[2])], [AT]),
    "an anchor with itself as parent": ([p.Anchor(name="a", parents=[4])], [AT]),
    "an anchor made from nothing": ([p.Anchor(name="a", source_ids=["nobody"])], [AT]),
    "a handoff made from nothing": ([p.Handoff(name="a", summary="s", source_ids=["nobody"])], [AT]),
    "an anchor without a name": ([p.Anchor(name="")], [AT]),
    "a slot with a control character": ([p.State(slot="a\0b", value=1)], [AT]),
    "a block that nobody knows how to change": ([p.Block(label="a", op="burn", text="x")], [AT]),
    "a fork in the future": ([p.Fork(child="f", at=4, head=Place(2, 1))], [AT]),
    "a fork from nowhere": ([p.Fork(child="f", at=3, head=Place(2, 9))], [AT]),
    "a fork from before its head": ([p.Fork(child="f", at=2, head=Place(2, 2))], [AT]),
    "a merge before itself": (
        [p.Merge(tape="f", seq=1, hash="0" * 64, strategy="link", into=True, previous=4)],
        [AT],
    ),
    "a merge behind a message": (
        [p.Merge(tape="f", seq=1, hash="0" * 64, strategy="link", into=True, previous=2)],
        [AT],
    ),
    "a merge of messages that are not there": (
        [p.Merge(tape="f", seq=1, hash="0" * 64, strategy="replay", into=True, messages=[("z", 1)])],
        [AT],
    ),
    "a merge in no way": ([p.Merge(tape="f", seq=1, hash="0" * 64, strategy="x", into=True)], [AT]),
    "a merge into nobody": ([p.Merge(tape="f", seq=1, hash="0" * 64, strategy="link")], [AT]),
    "a discard by nobody": ([p.Discard(tape="f", seq=1, hash="0" * 64)], [AT]),
    "a hash that is none": ([p.Merge(tape="f", seq=1, hash="x", strategy="link", into=True)], [AT]),
    "an erasure of nothing": ([p.Erase(commitment="0" * 64)], [AT]),
}
KEYS: dict[str, tuple[p.Payload, str]] = {
    "a message": (p.Event(name="x"), "~m:o"),
    "another message": (p.Append(id="o", message={}), "~m:z"),
    "a message by a key of the caller's": (p.Append(id="o", message={}), "mine"),
    "a revision": (p.Event(name="x"), "~r:3"),
    "another revision": (p.Revise(id="n", message={}, place=Place(2, 2), placed=3, supersedes=3), "~r:2"),
    "a fork": (p.Event(name="x"), "~f:child"),
    "another fork": (p.Fork(child="f", at=3, head=Place(2, 2)), "~f:child"),
    "a merge": (p.Event(name="x"), "~g:3@child"),
    "a copy": (p.Event(name="x"), "~c:3@child"),
    "a discard": (p.Event(name="x"), "~d:child"),
    "a split": (p.Event(name="x"), "~t:child"),
    "a squash": (p.Event(name="x"), "~s:3@child"),
}


class TestForged:
    """Files whose hashes fit and whose content lies."""

    def test_the_beginning_of_the_forged_files_is_sound(self, guest: tape.Store) -> None:
        """What the lies below are put behind is accepted by itself, so that each lie is refused for its own sake."""
        sound: list[p.Payload] = [*BEGUN, SUMMARY, RETRACTED, p.Usage(cost=1, totals=[0, 0, 0, 1, 1]), p.Clear()]
        sound.append(p.Restore(ids=[], undoes=7, returned=1))
        guest.import_(file(forged("sound", *sound, heads=[*HEADS, *[AT] * 5])))
        assert guest.verify("sound").problems == []
        assert [message.id for message in guest.get("sound").messages()] == ["m"]

    @pytest.mark.parametrize("lie", LIES)
    @pytest.mark.alike
    def test_what_is_not_there_cannot_be_named(self, guest: tape.Store, standing: Backend, lie: str) -> None:
        """Every place, seq, body, clear and summary that an entry names is there, or its line is refused."""
        entries, heads = LIES[lie]
        kept = contents(standing)
        lines = forged(f"evil-{next(_numbers)}", *BEGUN, *entries, heads=[*HEADS, *heads])
        assert refused(guest, lines).line == len(lines)
        assert contents(standing) == kept

    @pytest.mark.parametrize("taken", KEYS)
    def test_no_entry_takes_the_key_of_another(self, guest: tape.Store, taken: str) -> None:
        """A derived key under another entry would keep its own entry from ever being recorded or found."""
        entry, key = KEYS[taken]
        head = (2, 3, None) if isinstance(entry, p.Append) else AT
        keys = ["k", "~m:m", "~m:n", key]
        lines = forged(f"keys-{next(_numbers)}", *BEGUN, entry, heads=[*HEADS, head], keys=keys)
        assert refused(guest, lines).line == len(lines)

    @pytest.mark.parametrize(
        ("point", "head"),
        [
            ({"layers": [Layer("a", 3, 3, False)]}, (2, 2, "a")),
            ({"layers": [Layer("a", 3, 0, True)]}, (2, 2, "a")),
            ({"layers": [Layer("a", 3, 0, False)], "lo": 1}, (2, 2, "a")),
            ({"layers": [Layer("a", 3, 0, False)]}, (2, 3, "a")),
            ({"layers": [Layer("a", 3, 0, False)]}, (9, 1, "a")),
            ({"layers": [Layer("a", 3, 0, False)], "receipt": -1}, (2, 2, "a")),
        ],
        ids=["a clear", "overrides", "another depth", "a later head", "a head nowhere", "another receipt"],
    )
    @pytest.mark.parametrize("together", [False, True], ids=["stored", "in the file"])
    def test_a_fork_begins_as_its_parent_stood(
        self, guest: tape.Store, point: dict[str, Any], head: Any, together: bool
    ) -> None:
        """A clear in force, changes of inherited messages and the head of a new fork are those of its parent."""
        parent = forged("a", *BEGUN, p.Append(id="o", message={}), heads=[*HEADS, (2, 3, None)])
        if not together:
            guest.import_(file(parent))
        fork = p.Open(parent=p.ForkPoint(tape="a", seq=3, hash=parent[3].hash, **point))
        refused(guest, *([parent] if together else []), forged(f"f-{next(_numbers)}", fork, head=head))

    def test_what_a_fork_names_of_its_ancestors_is_there(self, guest: tape.Store) -> None:
        """A fork's own entries are checked against ancestors that are only in the store, up to the fork."""
        parent = forged("b", *BEGUN, p.Append(id="o", message={}), heads=[*HEADS, (2, 3, None)])
        guest.import_(file(parent))
        fork = opening(None, Layer("b", 3, 0, False), hash=parent[3].hash)
        gone = [p.Retract(ids=["n"], places=[Place(2, 2, "b")])]
        late = [p.Retract(ids=["o"], places=[Place(2, 3, "b")])]
        refused(guest, forged("g", fork, *late, head=(2, 2, "b")))
        guest.import_(file(forged("g", fork, *gone, head=(2, 2, "b"))))
        assert [message.id for message in guest.get("g").messages()] == ["m"]
        assert guest.verify("g").problems == []

    def test_the_two_entries_of_a_merge_agree(self, guest: tape.Store, elsewhere: tape.Store) -> None:
        """A file in which a fork tells of another merge than its parent is refused."""
        chat = guest.create("agree")
        fork = chat.fork("agree-fork")
        fork.append(role="user", content="x")
        chat.merge(fork)
        raw = exported(guest, "agree", family=True)
        lines = [json.loads(line) for line in raw.splitlines()]
        merges = [line for line in lines if line.get("kind") == "merge"]
        assert [line["payload"]["tape"] for line in merges] == ["agree-fork", "agree"]
        tapes: dict[str, tuple[list[p.Payload], list[Any], list[str]]] = {}
        name = ""
        for line in lines[:-1]:
            if "tapes" not in line and "entries" in line:
                name = line["tape"]
                tapes[name] = ([], [], [])
                continue
            payload = p.decode(line["kind"], line["version"], json.dumps(line["payload"]).encode(), key=line["key"])
            if isinstance(payload, p.Merge) and not payload.into:
                payload.hash = "0" * 64
            payloads, heads, keys = tapes[name]
            payloads.append(payload)
            heads.append(tuple(line["head"]))
            keys.append(line["key"])
        made = [forged(one, *parts[0], heads=parts[1], keys=parts[2]) for one, parts in tapes.items()]
        # The parent's hashes are as they were, so that the fork's first entry still fits.
        assert "cites seq 2 of tape 'agree-fork' with a different hash" in refused(elsewhere, *made).why

    def test_a_file_that_changes_while_it_is_read_is_refused(self, backend: Backend) -> None:
        """The second reading must give what the first one checked, or nothing is imported."""
        store = backend.open()
        good = file(forged("a", *BEGUN, heads=HEADS)).getvalue()
        evil = file(forged("a", p.Open(), M, p.Usage(), heads=HEADS)).getvalue()

        class Shifty(io.BytesIO):
            """A file that gives something else from the second reading on."""

            readings = 0

            def seek(self, offset: int, whence: int = 0) -> int:
                if (offset, whence) == (0, 0):
                    self.readings += 1
                    if self.readings > 2:
                        super().seek(0)
                        self.truncate()
                        self.write(evil)
                return super().seek(offset, whence)

        with pytest.raises(tape.ImportFailed):
            store.import_(Shifty(good))
        assert store.list().items == []
