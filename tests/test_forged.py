"""S4 and S14: a file whose hashes fit is still refused if it says what no store would have recorded."""

from __future__ import annotations

from typing import Any

import pytest
from support.backends import Backend
from support.damage import contents
from support.forging import ROOT, Line, file, forged, opening

import tape
from tape.core.entries import payloads as p
from tape.core.entries.payloads import Layer, Place, Reopened


def refused(store: tape.Store, *tapes: list[Line], **options: Any) -> tape.ImportFailed:
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
                there = f"the fork needs tape 'sec' up to seq {asof}, which is not there"
                seen = f"the entry names seq {asof + 1}, which the tape does not see"
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
