"""Forks, merges and discards: subagents that come back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from support.backends import Backend

import tape
from tape.db.engine.transaction import Transaction


def say(chat: tape.Tape, *ids: str) -> None:
    chat.extend({"id": id, "role": "user", "content": f"content of {id}"} for id in ids)


def ids(view: tape.Snapshot) -> list[str]:
    return [message.id for message in view.messages()]


class TestFork:
    def test_f1_neither_side_sees_what_the_other_does_later(self, chat: tape.Tape) -> None:
        """Child writes are invisible to the parent until merge, parent writes after the fork to the child for ever."""
        say(chat, "a", "b", "c")
        child = chat.fork("child")
        chat.revise("a", content="changed")
        chat.retract("b")
        say(chat, "later")
        say(child, "own")
        assert ids(child) == ["a", "b", "c", "own"]
        assert child.message("a").content == "content of a"
        assert ids(chat) == ["a", "c", "later"]
        chat.clear()
        assert ids(child) == ["a", "b", "c", "own"]

    def test_f1_a_child_changes_inherited_messages_for_itself_alone(self, chat: tape.Tape) -> None:
        """Revisions, retractions with their tool results, restores and clears of a child stay in the child."""
        say(chat, "a")
        chat.append({"id": "call", "role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]})
        chat.append({"id": "result", "role": "tool", "tool_call_id": "c1", "content": "42"})
        child, sibling = chat.fork("child"), chat.fork("sibling")
        child.revise("a", content="mine")
        child.retract("call")
        assert ids(child) == ["a"]
        child.restore("call")
        assert ids(child) == ["a", "call", "result"]
        child.clear()
        assert ids(child) == []
        child.restore()
        assert [message.content for message in child.messages()] == ["mine", None, "42"]
        for other in (chat, sibling):
            assert [message.content for message in other.messages()] == ["content of a", None, "42"]
        for one in (chat, child, sibling):
            assert one.verify().ok

    def test_f2_blocks_state_anchor_and_ids_are_inherited(self, chat: tape.Tape) -> None:
        """Nothing is lost and nothing gets a new id."""
        say(chat, "a", "b")
        chat.put("form", {"n": 1})
        chat.set_block("memory", "tea")
        chat.handoff("h", summary="done")
        say(chat, "c")
        child = chat.fork("child")
        assert ids(child) == ["a", "b", "c"]
        assert [message.tape for message in child.messages()] == ["chat"] * 3
        assert child.state("form") == {"n": 1}
        assert [block.text for block in child.blocks()] == ["tea"]
        context = child.context()
        assert context.anchor is not None
        assert (context.anchor.name, [message.id for message in context.messages]) == ("h", ["c"])

    def test_f2_a_fork_writes_the_same_few_rows_on_any_tape(self, backend: Backend) -> None:
        """The number of rows does not depend on the parent's length."""
        store = backend.open()
        counts = []
        for length in (10, 2_000):
            chat = store.tape(f"t{length}")
            chat.extend({"role": "user", "content": "x"} for _ in range(length))
            before = _rows(backend)
            chat.fork()
            counts.append(_rows(backend) - before)
        assert counts[0] == counts[1] <= 6

    def test_f3_fork_at_a_seq_a_moment_an_anchor_or_a_message(self, chat: tape.Tape) -> None:
        """Each point gives the view as it was, or for a message the view as it is with that head."""
        say(chat, "a", "b")
        seq = chat.anchor("here").seq
        say(chat, "c")
        chat.revise("a", content="new")
        assert ids(chat.fork("by-seq", at=3)) == ["a", "b"]
        assert ids(chat.fork("by-anchor", at="here")) == ["a", "b"]
        at_message = chat.fork("by-message", at="b")
        assert ids(at_message) == ["a", "b"]
        assert at_message.message("a").content == "new"
        moment = next(entry for entry in chat.entries() if entry.seq == seq).recorded_at
        assert set(ids(chat.fork("by-time", at=moment))) <= {"a", "b", "c"}
        assert ids(chat.fork("before", at=datetime(2000, 1, 1, tzinfo=UTC))) == []
        say(chat, "here")
        for bad in ("here", "nowhere", 99, -1, datetime(2026, 1, 1)):
            with pytest.raises(tape.TapeError):
                chat.fork(at=bad)

    def test_f3_forks_of_forks_200_deep(self, store: tape.Store) -> None:
        """Every level adds a message, and the deepest reads, changes and verifies all of them."""
        current: tape.Tape = store.tape("level-0")
        say(current, "m0")
        for level in range(1, 201):
            current = current.fork(f"level-{level}")
            say(current, f"m{level}")
        assert ids(current) == [f"m{level}" for level in range(201)]
        current.retract("m0", "m100")
        assert len(ids(current)) == 199
        assert len(ids(store.get("level-150"))) == 151
        assert current.verify().ok
        assert len(current.lineage().ancestors) == 200

    def test_a_taken_id_is_the_same_fork_or_refused(self, chat: tape.Tape, store: tape.Store) -> None:
        """The same call returns the same child; another parent, point or tape of that id is TapeExists."""
        say(chat, "a", "b")
        child = chat.fork("child")
        say(chat, "c")
        assert chat.fork("child").id == child.id
        assert ids(chat.fork("child")) == ["a", "b"]
        forks: list[Callable[[], object]] = [
            lambda: chat.fork("child", at=2),
            lambda: chat.fork("chat"),
            lambda: child.fork("child"),
        ]
        for fork in forks:
            with pytest.raises(tape.TapeExists):
                fork()
        store.tape("other").event("x")
        with pytest.raises(tape.TapeExists):
            chat.fork("other")

    def test_an_inherited_id_is_taken(self, chat: tape.Tape) -> None:
        """Equal content is a duplicate with the ancestor's receipt, other content a conflict."""
        say(chat, "a")
        child = chat.fork("child")
        again = child.append(role="user", content="content of a", id="a")
        assert (again.tape, again.seq, again.duplicate) == ("chat", 2, True)
        with pytest.raises(tape.ProvenanceConflict):
            child.append(role="user", content="other", id="a")
        assert child.info().head == 1

    def test_r1_every_past_of_a_child_is_kept(self, chat: tape.Tape) -> None:
        """``at(s)`` counts the child's seqs; the inherited part stays at the fork."""
        say(chat, "a", "b")
        child = chat.fork("child")
        seen = {child.info().head: ids(child)}
        for write in (
            lambda: say(child, "c"),
            lambda: child.retract("a"),
            lambda: child.append(role="user", content="x", id="d", parent="b"),
            lambda: child.restore("a"),
            lambda: child.clear(),
            lambda: child.restore(),
        ):
            write()
            seen[child.info().head] = ids(child)
        assert {seq: ids(child.at(seq)) for seq in seen} == seen

    def test_a_fork_belongs_to_its_parents_owner(self, backend: Backend) -> None:
        """Another owner cannot fork, and finds no fork."""
        ann, bob = backend.open(owner="ann"), backend.open(owner="bob")
        say(ann.tape("chat"), "a")
        child = ann.tape("chat").fork("child")
        assert child.info().owner == "ann"
        calls: list[Callable[[], object]] = [
            lambda: bob.get("child"),
            lambda: bob.tape("chat").fork("mine"),
            lambda: bob.tape("mine").fork("child"),
        ]
        for call in calls:
            with pytest.raises((tape.TapeNotFound, tape.TapeExists)):
                call()


def _rows(backend: Backend) -> int:
    connection = backend.raw()
    tables = ["tapes", "heads", "entries", "live", "past", "lanes", "forks", "overrides", "slots", "aliases"]
    total = sum(connection.execute(f"SELECT count(*) FROM tape_{name}").fetchone()[0] for name in tables)
    connection.close()
    return int(total)


class TestMerge:
    def test_f5_merging_takes_what_is_new_and_nothing_twice(self, chat: tape.Tape) -> None:
        """Again: the latest receipt. After more child writes: only those. With nothing at all: one receipt."""
        say(chat, "a")
        child = chat.fork("child")
        empty = chat.merge(child)
        assert (empty.message_ids, empty.duplicate) == ([], False)
        assert chat.merge(child).seq == empty.seq
        say(child, "b", "c")
        first = chat.merge(child)
        assert first.message_ids == ["b", "c"]
        head = chat.info().head
        again = chat.merge(child)
        assert (again.seq, again.duplicate) == (first.seq, True)
        assert chat.info().head == head
        say(child, "d")
        assert chat.merge(child).message_ids == ["d"]
        assert ids(chat) == ["a", "b", "c", "d"]
        sources = {entry.payload.id: entry.source for entry in chat.entries(kinds=["append"])}  # type: ignore[union-attr]
        assert sources["b"] == tape.Source("child", 3)

    def test_f6_a_childs_anchor_or_summary_never_becomes_the_parents(self, chat: tape.Tape) -> None:
        """The parent's context starts where it did, with its own summary."""
        say(chat, "a", "b", "c")
        chat.set_summary("the parent's", first="a", last="b")
        chat.anchor("parent")
        say(chat, "d")
        child = chat.fork("child")
        say(child, "e", "f")
        child.set_summary("the child's", first="d", last="e")
        child.handoff("hijack", summary="mine now")
        say(child, "g")
        chat.merge(child)
        context = chat.context()
        assert context.anchor is not None
        assert context.anchor.name == "parent"
        assert [message.id for message in context.messages] == ["d", "e", "f", "g"]
        assert chat.summaries() == []

    def test_f7_changes_of_inherited_and_merged_messages_are_carried_over(self, chat: tape.Tape) -> None:
        """Revisions, retractions and restores of a child reach the parent, also of what was merged before."""
        say(chat, "a", "b", "c")
        chat.retract("c")
        child = chat.fork("child")
        child.revise("a", content="better")
        child.retract("b")
        child.restore("c")
        say(child, "d")
        receipt = chat.merge(child)
        assert sorted(receipt.changed) == ["a", "b", "c"]
        assert chat.message("a").content == "better"
        assert ids(chat) == ["a", "c", "d"]
        child.revise("d", content="better, too")
        chat.merge(child)
        assert chat.message("d").content == "better, too"
        assert chat.verify().ok

    def test_f7_both_sides_changed_the_same_message(self, chat: tape.Tape) -> None:
        """Every pair is listed and nothing written; ours keeps, theirs takes."""
        for policy, expected in (("ours", "parent"), ("theirs", "child")):
            say(chat, f"{policy}-1", f"{policy}-2")
            child = chat.fork(f"child-{policy}")
            for side, text in ((chat, "parent"), (child, "child")):
                side.revise(f"{policy}-1", content=text)
                side.revise(f"{policy}-2", content="the same")
            child.retract(f"{policy}-2")
            before = (chat.info(), child.info())
            with pytest.raises(tape.MergeConflict) as caught:
                chat.merge(child)
            assert sorted(one.message_id for one in caught.value.conflicts) == [f"{policy}-1", f"{policy}-2"]
            assert (chat.info(), child.info()) == before
            chat.merge(child, on_conflict=policy)
            assert chat.message(f"{policy}-1").content == expected

    def test_an_id_taken_in_the_parent_gets_a_new_one(self, chat: tape.Tape) -> None:
        """Both messages are there, and later merges follow the copy."""
        say(chat, "a")
        child = chat.fork("child")
        say(chat, "same")
        child.append(role="assistant", content="the child's", id="same")
        (copy,) = chat.merge(child).message_ids
        assert copy != "same"
        child.revise("same", content="revised")
        chat.merge(child)
        assert [message.content for message in chat.messages()] == ["content of a", "content of same", "revised"]

    def test_squash_answers_a_tool_call(self, chat: tape.Tape) -> None:
        """One message with the result; what it stands for is never replayed; a replay here is refused with advice."""
        say(chat, "go")
        chat.append({"id": "call", "role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]})
        child = chat.fork("child")
        say(child, "long", "work")
        with pytest.raises(tape.InvalidEntry, match="c1"):
            chat.merge(child)
        receipt = chat.merge(child, strategy="squash", summary="42", role="tool", tool_call_id="c1")
        last = chat.messages()[-1]
        assert (last.role, last.content, last.tool_call_id) == ("tool", "42", "c1")
        assert receipt.message_ids == [last.id]
        say(child, "more")
        assert chat.merge(child).message_ids == ["more"]
        assert ids(chat)[-1] == "more"

    def test_squash_without_a_summary_takes_the_last_content(self, chat: tape.Tape) -> None:
        """The child's head speaks for it."""
        say(chat, "a")
        child = chat.fork("child")
        child.append(role="assistant", content="the result")
        chat.merge(child, strategy="squash")
        assert chat.messages()[-1].content == "the result"

    def test_f9_a_linked_child_is_readable_up_to_its_frozen_head(self, chat: tape.Tape) -> None:
        """Nothing is copied, and later entries of the child never show."""
        say(chat, "a")
        child = chat.fork("child")
        say(child, "b")
        receipt = chat.merge(child, strategy="link")
        say(child, "later")
        assert ids(chat) == ["a"]
        assert receipt.message_ids == []
        assert ids(chat.linked(child)) == ["a", "b"]
        with pytest.raises(tape.InvalidEntry):
            chat.linked("stranger")

    def test_f10_two_children_merged_in_either_order(self, store: tape.Store) -> None:
        """Both deltas are present, the order is recorded, and the family verifies."""
        for number, order in enumerate(itertools.permutations(("x", "y"))):
            chat = store.tape(f"chat-{number}")
            say(chat, "a")
            children = {name: chat.fork(f"{name}-{number}") for name in ("x", "y")}
            for name, child in children.items():
                say(child, f"from-{name}")
            for name in order:
                chat.merge(children[name])
            assert ids(chat) == ["a", *(f"from-{name}" for name in order)]
            assert [receipt.child for receipt in chat.lineage().merges] == [f"{name}-{number}" for name in order]
        assert store.verify().ok

    def test_f11_lineage_tells_the_family_and_where_messages_came_from(self, chat: tape.Tape) -> None:
        """Ancestors nearest first, descendants with their state, sources of merged messages."""
        say(chat, "a")
        child = chat.fork("child")
        grandchild = child.fork("grandchild")
        say(grandchild, "g")
        child.merge(grandchild)
        chat.merge(child)
        gone = chat.fork("gone")
        gone.discard()
        lineage = chat.lineage()
        assert [(one.tape, one.parent, one.state) for one in lineage.descendants] == [
            ("child", "chat", "merged"),
            ("gone", "chat", "discarded"),
            ("grandchild", "child", "merged"),
        ]
        assert [one.tape for one in grandchild.lineage().ancestors] == ["child", "chat"]
        assert lineage.sources["g"].tape == "child"
        assert child.lineage().sources["g"].tape == "grandchild"

    @pytest.mark.parametrize("what", ["itself", "stranger", "grandchild", "parent", "unknown"])
    def test_what_is_no_child_cannot_be_merged(self, chat: tape.Tape, store: tape.Store, what: str) -> None:
        """A typed error, and nothing written."""
        say(chat, "a")
        child = chat.fork("child")
        child.fork("grandchild")
        store.tape("stranger").event("x")
        target, other = {
            "itself": (chat, "chat"),
            "stranger": (chat, "stranger"),
            "grandchild": (chat, "grandchild"),
            "parent": (child, "chat"),
            "unknown": (chat, "unknown"),
        }[what]
        before = (chat.info(), child.info())
        with pytest.raises(tape.TapeError):
            target.merge(other)
        assert (chat.info(), child.info()) == before

    def test_f5_a_branch_from_the_root_is_taken_after_a_merge(self, chat: tape.Tape) -> None:
        """What a fork begins anew at the root, less deep than what was merged before, is new all the same."""
        chat.append(role="user", content="before")
        helper = chat.fork("helper", at=0)
        helper.extend([{"id": "a", "role": "user", "content": "1"}, {"id": "b", "role": "user", "content": "2"}])
        assert chat.merge(helper).message_ids == ["a", "b"]
        helper.append({"id": "c", "role": "user", "content": "3"}, parent=None)
        assert chat.merge(helper).message_ids == ["c"]
        assert [message.id for message in chat.messages()][1:] == ["a", "b", "c"]

    def test_f4_a_fault_anywhere_leaves_both_tapes_unchanged(self, store: tape.Store) -> None:
        """Raising at each point in turn; the retry then succeeds once."""
        chat = store.tape("chat")
        say(chat, "a", "b")
        child = chat.fork("child")
        say(child, "c", "d")
        child.revise("a", content="new")
        child.put("s", 1)
        before = (chat.info(), child.info(), ids(chat))
        for stop in itertools.count(1):
            points = itertools.count(1)

            def fault(name: str, stop: int = stop, points: itertools.count[int] = points) -> None:
                if next(points) == stop:
                    raise RuntimeError(name)

            store._db.fault = fault
            try:
                chat.merge(child)
            except RuntimeError:
                store._db.fault = None
                assert (chat.info(), child.info(), ids(chat)) == before
                continue
            store._db.fault = None
            break
        assert stop > 5
        assert ids(chat) == ["a", "b", "c", "d"]
        assert chat.merge(child).duplicate
        assert store.verify().ok


class TestDiscard:
    def test_f8_the_state_of_a_fork_is_enforced(self, chat: tape.Tape) -> None:
        """Discard after merge, merge after discard, writes to a discarded fork, discard of a stranger: refused."""
        say(chat, "a")
        merged, gone = chat.fork("merged"), chat.fork("gone")
        say(merged, "b")
        chat.merge(merged)
        with pytest.raises(tape.TapeClosed):
            merged.discard()
        receipt = gone.discard("no use", key="k")
        assert gone.discard("no use", key="k").duplicate
        assert receipt.tape == "gone"
        for call in (
            lambda: chat.merge(gone),
            lambda: say(gone, "x"),
            lambda: gone.discard(),
            lambda: gone.reopen(),
            lambda: gone.put("s", 1),
        ):
            with pytest.raises(tape.TapeClosed):
                call()
        with pytest.raises(tape.InvalidEntry):
            chat.discard()
        assert (gone.info().status, gone.info().reason) == ("discarded", "no use")
        assert [entry.kind for entry in chat.entries()][-1] == "discard"
        assert chat.verify().ok
        assert gone.verify().ok

    def test_a_fork_in_a_with_statement(self, chat: tape.Tape) -> None:
        """Merged at the end, discarded on an exception, left open on an interrupt and on a failed merge."""
        say(chat, "a")
        with chat.fork("fine", strategy="squash") as child:
            child.append(role="assistant", content="found")
        assert chat.messages()[-1].content == "found"
        with pytest.raises(ZeroDivisionError), chat.fork("failed") as child:
            say(child, "x")
            raise ZeroDivisionError("no")
        assert chat.lineage().descendants[1].state == "discarded"
        with pytest.raises(KeyboardInterrupt), chat.fork("stopped") as child:
            raise KeyboardInterrupt
        with pytest.raises(tape.MergeConflict), chat.fork("conflict") as child:
            child.revise("a", content="child")
            chat.revise("a", content="parent")
        states = {one.tape: one.state for one in chat.lineage().descendants}
        assert states == {"fine": "merged", "failed": "discarded", "stopped": "open", "conflict": "open"}

    def test_the_same_async(self, backend: Backend) -> None:
        """Fork, merge, discard, lineage and diff, awaited."""

        async def main() -> dict[str, str]:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("chat")
                await chat.append(role="user", content="a", id="a")
                async with chat.fork("fine") as child:
                    await child.append(role="assistant", content="found", id="b")
                other = await chat.fork("other")
                await other.discard("no")
                with pytest.raises(asyncio.CancelledError):
                    async with chat.fork("stopped"):
                        raise asyncio.CancelledError
                assert [message.id for message in await chat.messages()] == ["a", "b"]
                assert [message.id for message in (await chat.diff(2, chat)).added] == ["b"]
                return {one.tape: one.state for one in (await chat.lineage()).descendants}

        assert asyncio.run(main()) == {"fine": "merged", "other": "discarded", "stopped": "open"}


class TestDiff:
    def test_r2_diff_lists_what_changed_between_two_points(self, chat: tape.Tape) -> None:
        """Added, revised, retracted, left behind on another branch, anchored; readable as text."""
        say(chat, "a", "b", "c")
        start = chat.info().head
        chat.revise("a", content="new")
        chat.retract("b")
        chat.anchor("here")
        say(chat, "d")
        chat.append(role="user", content="x", id="e", parent="c")
        diff = chat.diff(start, chat)
        assert [message.id for message in diff.added] == ["e"]
        assert [(one.before.content, one.after.content) for one in diff.revised] == [("content of a", "new")]
        assert [message.id for message in diff.retracted] == ["b"]
        assert [anchor.name for anchor in diff.anchored] == ["here"]
        assert [message.id for message in chat.diff("here", "c").left] == []
        assert [line[0] for line in str(diff).splitlines()] == ["+", "~", " ", "-", "@"]
        assert not chat.diff(start, start)
        assert str(chat.diff(start, start)) == "no difference"

    def test_r2_diff_between_two_tapes_of_a_family(self, chat: tape.Tape) -> None:
        """What a fork has that its parent has not, and the other way round."""
        say(chat, "a")
        child = chat.fork("child")
        say(child, "b")
        say(chat, "c")
        diff: Any = chat.diff(chat, child)
        assert ([m.id for m in diff.added], [m.id for m in diff.retracted]) == (["b"], ["c"])


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Give the names of the statements that are run meanwhile."""
    names: list[str] = []
    with monkeypatch.context() as patch:
        for method in ("one", "all", "run"):
            plain = getattr(Transaction, method)

            def run(self: Any, statement: Any, params: Any, plain: Any = plain) -> Any:
                names.append(statement.name)
                return plain(self, statement, params)

            patch.setattr(Transaction, method, run)
        yield names


def plain_family(store: tape.Store, levels: int) -> tape.Tape:
    """Each level goes on where the one before stands."""
    chat = store.tape(f"plain{levels}")
    chat.append(role="user", content="zebra", id="m0")
    for n in range(1, levels + 1):
        chat = chat.fork()
        chat.append(role="user", content=f"zebra {n}", id=f"m{n}")
    return chat


def bushy_family(store: tape.Store, levels: int) -> tape.Tape:
    """Each level answers the first message anew, and takes back the answer of the one before."""
    chat = store.tape(f"bushy{levels}")
    chat.append(role="user", content="zebra", id="m0")
    for n in range(1, levels + 1):
        chat = chat.fork()
        chat.append(role="user", content=f"zebra {n}", id=f"m{n}", parent="m0")
        if n % 3 == 0:
            chat.retract(f"m{n - 1}")
    return chat


READS: dict[str, Callable[[tape.Tape], Any]] = {
    "heads": lambda chat: chat.heads(),
    "children of the first": lambda chat: chat.children("m0"),
    "children of the last": lambda chat: chat.children(chat.messages()[-1].id),
    "messages": lambda chat: chat.messages(),
    "the last messages": lambda chat: chat.messages(limit=5),
    "one message": lambda chat: chat.message("m0"),
    "messages after one": lambda chat: chat.messages(after="m0", limit=1),
    "context": lambda chat: chat.context(),
    "anchors": lambda chat: chat.anchors(),
    "lineage": lambda chat: chat.lineage().ancestors,
    "search": lambda chat: chat.search("zebra", limit=5),
    "the past": lambda chat: (chat.at(2).heads(), chat.at(2).children("m0"), chat.at(2).messages(limit=5)),
}


class TestDeepFamilies:
    @pytest.mark.parametrize("family", [plain_family, bushy_family])
    def test_f3_reads_of_a_deep_family_take_as_many_statements_as_of_a_shallow_one(
        self, store: tape.Store, monkeypatch: pytest.MonkeyPatch, family: Callable[[tape.Store, int], tape.Tape]
    ) -> None:
        """How many statements a read runs depends on neither the levels of forks nor the branches among them."""
        shallow, deep = family(store, 12), family(store, 90)
        store.search("zebra")
        for name, read in READS.items():
            counts = []
            for chat in (shallow, deep):
                with counted(monkeypatch) as names:
                    read(chat)
                counts.append(len(names))
            assert counts[1] <= counts[0] + 2, (name, counts, names)

    def test_f3_heads_and_children_of_a_deep_family_are_right(self, store: tape.Store) -> None:
        """Every answer that no later level took back is a head and a child of the first message, oldest first."""
        chat = bushy_family(store, 30)
        left = [f"m{n}" for n in range(1, 31) if (n + 1) % 3 or n + 1 > 30]
        assert [(message.id, message.parent) for message in chat.heads()] == [(id, "m0") for id in left]
        assert [message.id for message in chat.children("m0")] == left
        assert [message.text for message in chat.heads()] == [f"zebra {id[1:]}" for id in left]
        assert sorted(hit.message_id for hit in chat.search("zebra", limit=100)) == sorted(["m0", *left])
        assert [message.id for message in plain_family(store, 30).heads()] == ["m30"]

    def test_f3_a_long_tail_that_a_fork_took_back_is_passed_over(self, store: tape.Store) -> None:
        """A fork that retracted the end of what it inherits has its head before it, however long the tail is."""
        chat = store.tape("parent")
        for n in range(40):
            chat.append(role="user", content=f"text {n}", id=f"m{n}")
        fork = chat.fork()
        fork.revise("m12", content="changed")
        for n in range(39, 12, -1):
            fork.retract(f"m{n}")
            assert [(head.id, head.parent) for head in fork.heads()] == [(f"m{n - 1}", f"m{n - 2}")]
            assert [message.id for message in fork.messages(limit=3)] == [f"m{n - 3}", f"m{n - 2}", f"m{n - 1}"]
        fork.restore("m30")
        assert [(head.id, head.parent) for head in fork.heads()] == [("m30", "m12")]
        assert [message.id for message in fork.children("m12")] == ["m30"]
        assert [head.text for head in chat.heads()] == ["text 39"]
        grandchild = fork.fork()
        assert [(head.id, head.parent) for head in grandchild.heads()] == [("m30", "m12")]
        assert grandchild.message("m12").text == "changed"
