"""Finding one thing in a long history: entries by seq, key and name, messages across tapes, slots by prefix."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support import bulk
from support.asking import asked, plans, work
from support.backends import Backend
from support.damage import Tamperer
from support.messages import say

import tape
from tape import new_ids
from tape.core.entries import payloads

pytestmark = pytest.mark.alike

TIMEOUT = 60.0


def run(coroutine: Awaitable[Any]) -> Any:
    """Run a test's coroutine with a bound on its time."""

    async def bounded() -> Any:
        return await asyncio.wait_for(coroutine, TIMEOUT)

    return asyncio.run(bounded())


def seqs(entries: Any) -> list[int]:
    return [entry.seq for entry in entries]


def places(entries: Any) -> list[tuple[str, int]]:
    return [(entry.tape, entry.seq) for entry in entries]


@pytest.fixture
def noted(chat: tape.Tape) -> tape.Tape:
    """A tape with events of two names among messages, and an anchor and a handoff that share one of them."""
    chat.append(role="user", content="1")  # 2
    chat.event("step", {"n": 1})  # 3
    chat.event("score", 7)  # 4
    chat.anchor("step")  # 5
    chat.append(role="user", content="2")  # 6
    chat.event("step", {"n": 2})  # 7
    chat.handoff("step", summary="done")  # 8
    return chat


@pytest.fixture
def family(store: tape.Store) -> list[tape.Tape]:
    """A tape, its fork and the fork of that, each with events, and each going on after it was forked."""
    root = store.create("root", messages=say("r1"))
    root.event("step", "root")  # 3
    child = root.fork("child")  # root 4
    root.event("step", "root, later")  # 5
    child.event("step", "child")  # 2
    child.append(*say("c1"))  # 3
    grandchild = child.fork("grandchild")  # child 4
    child.event("step", "child, later")
    grandchild.event("step", "grandchild")  # 2
    grandchild.anchor("step")  # 3
    return [root, child, grandchild]


ALL = [("root", 1), ("root", 2), ("root", 3), ("child", 1), ("child", 2), ("child", 3)]
ALL += [("grandchild", 1), ("grandchild", 2), ("grandchild", 3)]
"""What the grandchild has and inherits."""
STEPS = [("root", 3), ("child", 2), ("grandchild", 2), ("grandchild", 3)]


class TestEntry:
    """One entry, by its seq or its key."""

    def test_by_seq_and_by_key(self, noted: tape.Tape) -> None:
        """The same entry as in the list, by either, also under a key that the store derived."""
        receipt = noted.append({"role": "user", "content": "3", "id": "m3"}, key="client-1")
        for entry in noted.entries():
            assert noted.entry(seq=entry.seq) == noted.entry(key=entry.key) == entry
        assert noted.entry(key="client-1").seq == noted.find_entry(seq=receipt.seq).seq == receipt.seq  # type: ignore[union-attr]
        derived = noted.append({"role": "user", "content": "4", "id": "m4"})
        assert derived.key.startswith("~")
        assert noted.entry(key=derived.key).seq == derived.seq

    def test_what_is_not_there(self, noted: tape.Tape, store: tape.Store) -> None:
        """UnknownEntry says which; ``find_entry`` gives None; a tape that was never written has none."""
        for wanted in ({"seq": 0}, {"seq": 9}, {"seq": 2**63 - 1}, {"key": "nobody"}):
            with pytest.raises(tape.UnknownEntry) as caught:
                noted.entry(**wanted)
            assert (caught.value.tape, caught.value.seq, caught.value.key) == (
                "chat",
                wanted.get("seq"),
                wanted.get("key"),
            )
            assert str(next(iter(wanted.values()))) in str(caught.value)
            assert noted.find_entry(**wanted) is None
            assert store.tape("unwritten").find_entry(**wanted) is None
        with pytest.raises(tape.UnknownEntry):
            store.tape("unwritten").entry(seq=1)

    def test_a_snapshot_knows_no_later_entry(self, noted: tape.Tape) -> None:
        """Neither by seq nor by key, nor by name."""
        late = noted.event("step", key="late")
        then = noted.at(late.seq - 1)
        assert then.find_entry(key="late") is None
        assert then.find_entry(seq=late.seq) is None
        assert seqs(then.entries(name="step", reverse=True)) == [8, 7, 5, 3]

    def test_a_key_of_an_ancestor(self, store: tape.Store) -> None:
        """With ``inherited`` a key is looked up along the lineage, the nearest tape first, up to the fork points."""
        root = store.create("root")
        root.event("e", "root", key="k")
        root.event("e", key="only")
        child = root.fork("child")
        root.event("e", key="later")
        child.event("e", "child", key="k")
        grandchild = child.fork("grandchild")
        child.event("e", key="later")
        found = grandchild.entry(key="k", inherited=True)
        assert (found.tape, found.seq, found.payload.data) == ("child", 2, "child")  # type: ignore[union-attr]
        assert grandchild.entry(key="only", inherited=True) == root.entry(key="only")
        assert grandchild.find_entry(key="only") is None
        assert grandchild.find_entry(key="later", inherited=True) is None
        assert root.entry(key="later", inherited=True).tape == "root"

    @pytest.mark.parametrize(
        "wanted",
        [
            {},
            {"seq": 1, "key": "k"},
            {"seq": -1},
            {"seq": 2**63},
            {"seq": "1"},
            {"seq": True},
            {"seq": 1.0},
            {"key": ""},
            {"key": b"k"},
            {"key": "k" * 256},
            {"key": "\0"},
            {"key": "\ud800"},
            {"seq": 1, "inherited": True},
            {"key": "k", "inherited": 1},
        ],
    )
    def test_hostile_arguments_are_typed_errors(self, chat: tape.Tape, wanted: dict[str, Any]) -> None:
        """InvalidEntry that names the argument, written tape or not."""
        for _ in range(2):
            for call in (chat.entry, chat.find_entry):
                with pytest.raises(tape.InvalidEntry) as caught:
                    call(**wanted)
                assert caught.value.field in ("seq", "key", "inherited")
            chat.event("now it is written")


class TestEntries:
    """Lists of entries: backwards, between two, by name."""

    def test_backwards_and_between(self, noted: tape.Tape) -> None:
        """``after`` and ``before`` are both exclusive, whichever way the list goes."""
        whole = list(noted.entries())
        assert seqs(whole) == list(range(1, 9))
        assert list(noted.entries(reverse=True)) == whole[::-1]
        assert seqs(noted.entries(after=2, before=5)) == [3, 4]
        assert seqs(noted.entries(after=2, before=5, reverse=True)) == [4, 3]
        assert seqs(noted.entries(before=5, reverse=True, limit=2)) == [4, 3]
        assert seqs(noted.entries(before=5, limit=2)) == [1, 2]
        assert seqs(noted.entries(after=whole[2], before=whole[4])) == [4]
        assert seqs(noted.entries(after=("chat", 6))) == [7, 8]
        assert seqs(noted.entries(before=10**18, reverse=True, limit=1)) == [8]
        nowhere: list[dict[str, Any]] = [
            {"before": 0},
            {"before": 1},
            {"after": 8},
            {"after": 5, "before": 5},
            {"limit": 0},
        ]
        for empty in nowhere:
            assert list(noted.entries(**empty)) == list(noted.entries(**empty, reverse=True)) == []

    def test_kinds_in_both_directions(self, noted: tape.Tape) -> None:
        """A filter by kind counts what it lets through."""
        assert seqs(noted.entries(kinds=["event"], reverse=True, limit=2)) == [7, 4]
        assert seqs(noted.entries(kinds=["append", "anchor"], after=2)) == [5, 6]

    def test_by_name(self, noted: tape.Tape) -> None:
        """Events, anchors and handoffs of a name, of all kinds or of some, in both directions."""
        assert seqs(noted.entries(name="step")) == [3, 5, 7, 8]
        assert seqs(noted.entries(name="step", reverse=True)) == [8, 7, 5, 3]
        assert seqs(noted.entries(name="step", kinds=["event"], reverse=True, limit=1)) == [7]
        assert seqs(noted.entries(name="step", kinds=["handoff"])) == [8]
        assert seqs(noted.entries(name="step", kinds=["anchor", "handoff"], limit=1)) == [5]
        assert seqs(noted.entries(name="step", after=3, before=8)) == [5, 7]
        assert seqs(noted.entries(name="step", limit=3, reverse=True)) == [8, 7, 5]
        assert list(noted.entries(name="step", kinds=["append"])) == list(noted.entries(name="ste")) == []
        assert list(noted.entries(name="score")) == [noted.entry(seq=4)]

    def test_names_of_the_store_itself(self, chat: tape.Tape) -> None:
        """A recorded context and a compaction are events with a name, too."""
        chat.extend([{"role": "user", "content": "word " * 50} for _ in range(12)])
        _, receipt = chat.recorded_context()
        chat.compact(lambda request: "short", budget=100)
        assert seqs(chat.entries(name="tape.context")) == [receipt.seq]
        told = [entry.payload.data["state"] for entry in chat.entries(name="tape.compaction")]  # type: ignore[union-attr]
        assert told == ["started", "finished"]

    def test_more_than_a_page(self, chat: tape.Tape) -> None:
        """Pages join without a gap or a repetition, in every combination."""
        for batch in range(3):
            chat.extend([{"role": "user", "content": n} for n in range(300)])
            chat.event("mark", batch)
        count = 1 + 3 * 301
        assert seqs(chat.entries(reverse=True)) == list(range(count, 0, -1))
        assert seqs(chat.entries(after=10, before=900, reverse=True)) == list(range(899, 10, -1))
        assert seqs(chat.entries(kinds=["event"], reverse=True)) == [904, 603, 302]

    def test_entries_that_come_meanwhile(self, chat: tape.Tape) -> None:
        """A list backwards begins at the head of its first page; one forwards goes on to what is there by then."""
        chat.extend([{"role": "user", "content": n} for n in range(700)])
        back, on = chat.entries(reverse=True), chat.entries()
        assert (next(back).seq, next(on).seq) == (701, 1)
        chat.event("late")
        assert seqs(back) == list(range(700, 0, -1))
        assert seqs(on) == list(range(2, 703))

    @pytest.mark.parametrize(
        ("field", "value"),
        [(field, value) for field in ("after", "before") for value in (-1, True, "1", 2**63, 1.5, ("chat",), ("", 1))]
        + [(field, ("chat", -1)) for field in ("after", "before")]
        + [("after", None), ("name", ""), ("name", 1), ("name", "n" * 256), ("name", "a\0"), ("name", "\udfff")]
        + [("reverse", 1), ("inherited", None), ("limit", -1), ("kinds", "event"), ("kinds", ["nothing"])],
    )
    def test_hostile_arguments_are_typed_errors(self, noted: tape.Tape, field: str, value: Any) -> None:
        """InvalidEntry that names the argument, at the call and not at the first entry."""
        with pytest.raises(tape.InvalidEntry) as caught:
            noted.entries(**{field: value})
        assert caught.value.field == field

    def test_a_bound_on_a_tape_that_is_not_listed(self, family: list[tape.Tape]) -> None:
        """A bound on a tape whose entries are not listed is refused: an ancestor without ``inherited``, a sibling."""
        *_, grandchild = family
        for wanted in ({"after": ("root", 2)}, {"before": ("sibling", 1), "inherited": True}):
            with pytest.raises(tape.InvalidEntry, match=r"tape '(root|sibling)' is not one of the listed tapes"):
                list(grandchild.entries(**wanted))


class TestInherited:
    """A fork's entries with those that it inherits."""

    def test_ancestors_come_first(self, family: list[tape.Tape]) -> None:
        """Each tape up to where it was forked off, the oldest first, with its own name on every entry."""
        root, child, grandchild = family
        assert places(grandchild.entries(inherited=True)) == ALL
        assert places(grandchild.entries(inherited=True, reverse=True)) == ALL[::-1]
        assert places(grandchild.entries()) == ALL[-3:]
        assert places(root.entries(inherited=True)) == places(root.entries())
        for entry in grandchild.entries(inherited=True):
            owner = {"root": root, "child": child, "grandchild": grandchild}[entry.tape]
            assert entry == owner.entry(seq=entry.seq)

    def test_by_name(self, family: list[tape.Tape]) -> None:
        """Names along the lineage, in both directions, limited and by kind."""
        *_, grandchild = family
        assert places(grandchild.entries(name="step", inherited=True)) == STEPS
        assert places(grandchild.entries(name="step", inherited=True, reverse=True)) == STEPS[::-1]
        assert places(grandchild.entries(name="step", inherited=True, reverse=True, limit=3)) == STEPS[:0:-1]
        assert places(grandchild.entries(name="step", kinds=["event"], inherited=True, limit=2)) == STEPS[:2]
        assert list(grandchild.entries(name="nobody", inherited=True)) == []

    @pytest.mark.parametrize("name", [None, "step"])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_every_place_bounds_the_list(self, family: list[tape.Tape], name: str | None, reverse: bool) -> None:
        """``after`` and ``before`` any entry give exactly what is behind or before it in the whole list."""
        *_, grandchild = family
        listed = list(grandchild.entries(inherited=True, name=name))
        for low in range(-1, len(listed)):
            for high in range(len(listed) + 1):
                wanted: dict[str, Any] = {} if low < 0 else {"after": listed[low]}
                if high < len(listed):
                    wanted["before"] = (listed[high].tape, listed[high].seq)
                expected = listed[low + 1 : high]
                found = list(grandchild.entries(inherited=True, name=name, reverse=reverse, **wanted))
                assert found == (expected[::-1] if reverse else expected), (low, high)

    def test_a_bare_seq_is_one_of_the_tapes_own(self, family: list[tape.Tape]) -> None:
        """So it lies behind everything that is inherited."""
        *_, grandchild = family
        assert places(grandchild.entries(inherited=True, after=1)) == ALL[-2:]
        assert places(grandchild.entries(inherited=True, before=2)) == ALL[:-2]
        assert places(grandchild.entries(inherited=True, before=1, reverse=True, limit=2)) == ALL[5:3:-1]

    def test_a_place_behind_the_fork_point_is_its_end(self, family: list[tape.Tape]) -> None:
        """What an ancestor recorded later is not listed, so it bounds like the last entry that is."""
        *_, grandchild = family
        assert places(grandchild.entries(inherited=True, after=("root", 5))) == ALL[3:]
        assert places(grandchild.entries(inherited=True, before=("root", 5))) == ALL[:3]

    def test_in_a_snapshot(self, family: list[tape.Tape]) -> None:
        """The tape's own entries end at the point, the inherited ones at the fork."""
        *_, grandchild = family
        assert places(grandchild.at(2).entries(inherited=True)) == ALL[:-1]
        assert places(grandchild.at(2).entries(inherited=True, name="step", reverse=True)) == STEPS[2::-1]
        assert list(grandchild.at(0).entries(inherited=True)) == []

    def test_pages_go_from_one_tape_to_the_next(self, store: tape.Store) -> None:
        """Long tapes and many levels, in both directions."""
        chat = store.create("level-0", messages=[{"role": "user", "content": n} for n in range(600)])
        expected = [("level-0", seq) for seq in range(1, 602)]
        for level in range(1, 20):
            chat = chat.fork(f"level-{level}")
            chat.event("level", level)
            expected += [(f"level-{level}", 1), (f"level-{level}", 2)]
        assert places(chat.entries(inherited=True)) == expected
        assert places(chat.entries(inherited=True, reverse=True)) == expected[::-1]
        assert [entry.payload.data for entry in chat.entries(inherited=True, name="level")] == list(range(1, 20))  # type: ignore[union-attr]

    def test_an_owner_never_sees_further_by_it(self, store: tape.Store) -> None:
        """Another owner's fork is absent, whatever is asked of it."""
        store.scoped("bob").create("bobs").fork("fork")
        assert list(store.scoped("ann").tape("fork").entries(inherited=True)) == []


class TestMessagesById:
    """One message id on many tapes."""

    def test_every_tape_that_wrote_it(self, store: tape.Store) -> None:
        """Oldest tape first, each with its own content, whichever way its id is known to the tape."""
        store.create("one").append({"role": "user", "content": "1", "id": "m"})
        store.create("two").append({"role": "user", "content": "2", "id": "m"}, key="client-1")
        store.create("three").extend([{"role": "user", "content": "3", "id": "m"}], key="batch")
        store.create("four").append(*say("n"))
        found = store.messages_by_id("m")
        assert [(one.tape, one.content) for one in found] == [("one", "1"), ("two", "2"), ("three", "3")]
        assert found == [store.tape(one.tape).message("m") for one in found]
        assert store.messages_by_id("m", limit=2) == found[:2]
        assert store.messages_by_id("m", limit=0) == store.messages_by_id("nobody") == []
        long = "x" * 255
        store.tape("four").append({"role": "user", "content": "long", "id": long})
        assert [one.id for one in store.messages_by_id(long)] == [long]

    def test_as_it_stands_now(self, chat: tape.Tape, store: tape.Store) -> None:
        """With its revision and its parent; not while it is retracted or cleared; again once it is back."""
        chat.extend(say("a", "b"))
        chat.revise("b", content="revised")
        [found] = store.messages_by_id("b")
        assert (found.content, found.parent, found.revision) == ("revised", "a", 4)
        chat.retract("b")
        assert store.messages_by_id("b") == []
        chat.restore("b")
        assert [one.content for one in store.messages_by_id("b")] == ["revised"]
        chat.clear()
        assert store.messages_by_id("b") == []

    def test_forks_that_inherit_it_are_not_named(self, chat: tape.Tape, store: tape.Store) -> None:
        """A message is found once, under the tape that wrote it and as that has it, whatever a fork made of it."""
        chat.extend(say("a"))
        child = chat.fork("child")
        child.revise("a", content="by the child")
        child.append(*say("b"))
        child.fork("grandchild")
        assert [(one.tape, one.content) for one in store.messages_by_id("a")] == [("chat", "I am a")]
        assert [one.tape for one in store.messages_by_id("b")] == ["child"]
        chat.retract("a")
        assert store.messages_by_id("a") == []
        chat.append(*say("b"))
        assert [one.tape for one in store.messages_by_id("b")] == ["chat", "child"]

    def test_after_a_merge(self, chat: tape.Tape, store: tape.Store) -> None:
        """A copy is a message of the parent, under the id that it has there."""
        chat.extend(say("a"))
        child = chat.fork("child")
        child.append(*say("b"))
        chat.append({"role": "user", "content": "other", "id": "c"})
        child.append(*say("c"))
        chat.merge(child)
        assert [one.tape for one in store.messages_by_id("b")] == ["chat", "child"]
        copied = chat.messages()[-1]
        assert copied.content == "I am c"
        assert copied.id != "c"
        assert [one.tape for one in store.messages_by_id(copied.id)] == ["chat"]
        assert [(one.tape, one.content) for one in store.messages_by_id("c")] == [
            ("chat", "other"),
            ("child", "I am c"),
        ]

    def test_purged_reused_and_imported_tapes(self, store: tape.Store) -> None:
        """What is purged is not found; what takes its id is; what was imported is found as if written here."""
        store.create("x", messages=say("m"))
        file = io.BytesIO()
        store.export("x", file)
        store.purge("x")
        assert store.messages_by_id("m") == []
        store.create("x", reuse=True).append(*say("m"))
        assert [one.tape for one in store.messages_by_id("m")] == ["x"]
        store.purge("x")
        store.import_(io.BytesIO(file.getvalue()), reuse=True)
        assert [one.tape for one in store.messages_by_id("m")] == ["x"]

    def test_only_the_owners_tapes(self, store: tape.Store) -> None:
        """A store of one owner finds its own, and cannot tell whether others have the id."""
        for owner in ("ann", "bob"):
            store.scoped(owner).create(f"{owner}s", messages=say("m"))
        assert [one.tape for one in store.scoped("ann").messages_by_id("m")] == ["anns"]
        assert [one.tape for one in store.messages_by_id("m")] == ["anns", "bobs"]
        assert store.scoped("cara").messages_by_id("m") == []

    def test_more_tapes_than_a_page(self, store: tape.Store) -> None:
        """All of them, also when those of the first pages have retracted it."""
        names = [f"t{n:03}" for n in range(230)]
        for name in names:
            store.create(name, messages=say("m"))
        for name in names[:150]:
            store.tape(name).retract("m")
        assert [one.tape for one in store.messages_by_id("m")] == names[150:]
        assert [one.tape for one in store.messages_by_id("m", limit=3)] == names[150:153]

    @pytest.mark.parametrize(
        "wanted",
        [{"id": ""}, {"id": 1}, {"id": "\0"}, {"id": "~m:x"}, {"id": "m", "limit": -1}, {"id": "m", "limit": "1"}],
    )
    def test_hostile_arguments_are_typed_errors(self, store: tape.Store, wanted: dict[str, Any]) -> None:
        """InvalidEntry, and nothing asked."""
        with pytest.raises(tape.InvalidEntry):
            store.messages_by_id(**wanted)


class TestState:
    """Slots with the entry that set them, and by prefix."""

    def test_the_entry_that_set_it(self, chat: tape.Tape) -> None:
        """Its seq moves with every change; what holds nothing has none, and null is something."""
        assert chat.state_entry("todo") is None
        first = chat.put("todo", {"a": 1})
        assert chat.state_entry("todo") == tape.StateValue("todo", {"a": 1}, first.seq, "chat")
        second = chat.patch("todo", {"b": 2})
        assert chat.state_entry("todo") == tape.StateValue("todo", {"a": 1, "b": 2}, second.seq, "chat")
        assert chat.at(first.seq).state_entry("todo") == tape.StateValue("todo", {"a": 1}, first.seq, "chat")
        null = chat.put("none", None)
        assert chat.state_entry("none") == tape.StateValue("none", None, null.seq, "chat")
        assert (chat.state("none", 1), chat.state("nobody", 1)) == (None, 1)

    def test_on_a_fork(self, chat: tape.Tape) -> None:
        """An inherited value names the ancestor that set it, until the fork sets its own."""
        receipt = chat.put("todo", 1)
        child = chat.fork("child")
        chat.put("todo", 2)
        grandchild = child.fork("grandchild")
        assert grandchild.state_entry("todo") == tape.StateValue("todo", 1, receipt.seq, "chat")
        own = grandchild.put("todo", 3)
        assert grandchild.state_entry("todo") == tape.StateValue("todo", 3, own.seq, "grandchild")

    def test_prefixes(self, chat: tape.Tape) -> None:
        """Exactly the names that begin so, at the ends of Unicode as well; blocks and other slots never."""
        last, before_surrogates = "\U0010ffff", "\ud7ff"
        names = [
            "a",
            "a:1",
            "a:2",
            "ab",
            "b",
            f"z{last}",
            f"z{last}y",
            f"z{last}{last}",
            "{",
            before_surrogates,
            "\ue000",
        ]
        names += [f"{before_surrogates}x", "東京", "東京タワー"]
        for number, name in enumerate(names):
            chat.put(name, number)
        chat.set_block("a:block", "text")
        whole = {name: number for number, name in enumerate(names)}
        assert chat.states() == chat.states(prefix="") == whole
        for prefix in [*names, "a:", "z", f"z{last}{last}{last}", "nobody", last]:
            expected = {name: number for name, number in whole.items() if name.startswith(prefix)}
            assert chat.states(prefix=prefix) == expected, prefix
        assert chat.fork("child").states(prefix="a:") == {"a:1": 1, "a:2": 2}

    @pytest.mark.parametrize("prefix", [None, 1, "\0", "p" * 256, "\ud800", b"a"])
    def test_hostile_prefixes_are_typed_errors(self, chat: tape.Tape, prefix: Any) -> None:
        """InvalidEntry that names it."""
        with pytest.raises(tape.InvalidEntry) as caught:
            chat.states(prefix=prefix)
        assert caught.value.field == "prefix"


class TestNow:
    def test_at_without_a_point_is_now(self, chat: tape.Tape, store: tape.Store) -> None:
        """A snapshot that stays as it is, whatever is recorded later; of an unwritten tape it stays empty."""
        before = chat.at()
        chat.append(*say("a"))
        now = chat.at()
        chat.append(*say("b"))
        chat.put("slot", 1)
        assert (before.messages(), before.info().head, before.states()) == ([], 0, {})
        assert ([one.id for one in now.messages()], now.info().head, now.states()) == (["a"], 2, {})
        assert [one.id for one in chat.at().messages()] == ["a", "b"]


class TestView:
    """Events by name are part of the view: derived from the entries, and checked against them."""

    def test_verify_finds_a_wrong_row_and_rebuild_mends_it(self, backend: Backend, store: tape.Store) -> None:
        """A name that is missing, changed or made up is a problem at its seq; a rebuild makes the rows anew."""
        chat = store.tape("chat")
        chat.event("step")
        chat.event("step")
        listed = list(chat.entries(name="step"))
        changes = (
            "DELETE FROM tape_events WHERE seq = 3",
            "UPDATE tape_events SET name = 'other' WHERE seq = 3",
            "INSERT INTO tape_events (tape_id, name, seq) SELECT tape_id, 'made up', 3 FROM tape_events WHERE seq = 2",
        )
        for change in changes:
            tamperer = Tamperer(backend, guarded=True)
            tamperer.run(change)
            tamperer.close()
            problems = chat.verify().problems
            assert [problem.seq for problem in problems][:1] == [3], change
            store.rebuild("chat")
            assert chat.verify().ok
            assert list(chat.entries(name="step")) == listed

    def test_purge_and_import(self, backend: Backend, store: tape.Store) -> None:
        """The rows go with the tape, and come with the file, also those of a tape that is extended."""
        chat = store.tape("chat")
        chat.event("step", 1)
        short = io.BytesIO()
        store.export("chat", short)
        chat.event("step", 2)
        whole = io.BytesIO()
        store.export("chat", whole)
        store.purge("chat")
        assert backend.reader.execute("SELECT count(*) FROM tape_events").fetchone() == (0,)
        assert store.verify().ok
        for file in (short, whole):
            store.import_(io.BytesIO(file.getvalue()), reuse=True)
        assert [entry.payload.data for entry in store.tape("chat").entries(name="step")] == [1, 2]  # type: ignore[union-attr]
        assert store.verify().ok

    def test_a_fork_that_is_purged_leaves_its_parent_alone(self, store: tape.Store) -> None:
        """Names are kept by tape."""
        root = store.create("root")
        root.event("step")
        child = root.fork("child")
        child.event("step")
        store.purge("child")
        assert seqs(root.entries(name="step")) == [2]
        assert store.verify().ok


class TestAsync:
    def test_the_twins(self, backend: Backend) -> None:
        """Every call awaited gives what it gives without."""
        with backend.open() as store:
            root = store.create("root", messages=say("m"))
            root.event("step", 1, key="k")
            root.put("a:1", 1)
            child = root.fork("child")
            child.event("step", 2)
            expected = (
                child.find_entry(key="k", inherited=True),
                root.entry(seq=3),
                list(child.entries(name="step", reverse=True, inherited=True, limit=5)),
                child.state_entry("a:1"),
                child.states(prefix="a:"),
                store.messages_by_id("m"),
                child.at().messages(),
            )

        async def go() -> Any:
            async with tape.open_async(backend.url, **backend.options) as twin:
                root, child = await twin.get("root"), await twin.get("child")
                with pytest.raises(tape.UnknownEntry):
                    await child.entry(key="k")
                return (
                    await child.find_entry(key="k", inherited=True),
                    await root.entry(seq=3),
                    [one async for one in child.entries(name="step", reverse=True, inherited=True, limit=5)],
                    await child.state_entry("a:1"),
                    await child.states(prefix="a:"),
                    await twin.messages_by_id("m"),
                    await (await child.at()).messages(),
                )

        assert run(go()) == expected


SHORT, LONG = 50, 20_000


@pytest.fixture(scope="module")
def lengths(standing: Backend) -> tuple[tape.Store, tape.Tape, tape.Tape]:
    """Two tapes that are alike but for their length, each with one rare event at its beginning, among many tapes."""
    store = standing.open(durability="normal")
    made = []
    for count in (SHORT, LONG):
        chat = store.create(f"length-{count}")
        chat.append({"role": "user", "content": "hello", "id": f"m-{count}"})
        chat.append({"role": "user", "content": "hello", "id": f"keyed-{count}"}, key=f"client-{count}")
        chat.event("rare", key="rare")
        chat.anchor("rare")
        chat.put("a:1", 1)
        frequent = [(new_ids.new_id(), payloads.Event(name="frequent", data=n)) for n in range(count)]
        assert bulk.record(standing, chat, frequent, move_head=True) == count
        made.append(chat)
    for number in range(100):
        store.create(f"other-{number}", messages=[{"role": "user", "content": n} for n in range(20)])
    if standing.postgres:
        standing.reader.execute("ANALYZE")
    # What was written around the store is read afresh.
    opened = standing.open()
    return opened, opened.tape(made[0].id), opened.tape(made[1].id)


READS: dict[str, Callable[[tape.Store, tape.Tape], Any]] = {
    "entry by seq": lambda store, chat: chat.entry(seq=4),
    "entry by key": lambda store, chat: chat.entry(key="rare"),
    "last entries": lambda store, chat: list(chat.entries(reverse=True, limit=3)),
    "entries before": lambda store, chat: list(chat.entries(before=6, reverse=True, limit=3)),
    "newest of a rare name": lambda store, chat: list(chat.entries(name="rare", reverse=True, limit=1)),
    "newest of a frequent name": lambda store, chat: list(chat.entries(name="frequent", reverse=True, limit=1)),
    "first of a frequent name": lambda store, chat: list(chat.entries(name="frequent", limit=1)),
    "an unknown name": lambda store, chat: list(chat.entries(name="nobody")),
    "a message": lambda store, chat: store.messages_by_id(chat.id.replace("length", "m")),
    "a message with a key": lambda store, chat: store.messages_by_id(chat.id.replace("length", "keyed")),
    "no message": lambda store, chat: store.messages_by_id("nobody"),
    "state": lambda store, chat: chat.state_entry("a:1"),
    "states": lambda store, chat: chat.states(prefix="a:"),
}


class TestCost:
    """What finding costs depends on what is found, never on how long the tape is."""

    @pytest.mark.parametrize("name", READS)
    def test_it_does_not_grow_with_the_tape(
        self, standing: Backend, lengths: tuple[tape.Store, tape.Tape, tape.Tape], name: str
    ) -> None:
        """Four hundred times the length is at most twice the work: an index is a level or two deeper."""
        store, short, long = lengths
        little, much = (work(standing, asked(lambda chat=chat: READS[name](store, chat))) for chat in (short, long))  # type: ignore[misc]
        print(f"{name}: {little} and {much}")
        assert much <= 2 * little + 8

    @pytest.mark.parametrize("name", READS)
    def test_it_asks_an_index(
        self, standing: Backend, lengths: tuple[tape.Store, tape.Tape, tape.Tape], name: str
    ) -> None:
        """No plan reads a whole table of entries, events or messages."""
        store, _, long = lengths
        plan = plans(standing, asked(lambda: READS[name](store, long)))
        for table in ("tape_entries", "tape_events", "tape_live"):
            assert f"Seq Scan on {table}" not in plan
            assert f"SCAN {table}" not in plan

    @pytest.mark.parametrize("name", ["rare", "frequent", "nobody"])
    def test_a_name_along_a_deep_family(
        self, standing: Backend, lengths: tuple[tape.Store, tape.Tape, tape.Tape], name: str
    ) -> None:
        """The newest of a name, twenty levels up: as much work below a long tape as below a short one."""
        _, *tapes = lengths
        found = []
        for chat in tapes:
            leaf: tape.Tape = chat
            for _ in range(20):
                leaf = leaf.fork(new_ids.new_id())
            queries = asked(lambda leaf=leaf: list(leaf.entries(name=name, inherited=True, reverse=True, limit=1)))  # type: ignore[misc]
            found.append((len(queries), work(standing, queries)))
        [(little, less), (much, more)] = found
        assert little == much <= 4
        assert more <= 2 * less + 8
