"""Forks, merges and discards in any order, against the naive family of ``family.py``, on both engines.

Messages, state in several versions, and blocks, declared and not, by programs with other declarations one after the
other. Every state that is reached is exported, imported elsewhere and compared there as well.

Hypothesis prints the steps and a blob that repeat a failure. ``TAPE_TEST_STEPS`` sets how many steps are run per
engine, for a longer hunt.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.backends import Backend
from support.exploring import explore, steps
from support.family import Kin, Merged, Wrote
from support.family_memory import World, migrator
from support.random_messages import openai_call
from support.seen import compare, show
from support.sizes import heavy
from support.tree import Refused

import tape

STEPS = 120
STEPS_PER_FAMILY = 30
MOST = 7
"""Tapes in a family."""
_numbers = itertools.count(1)
numbers = st.integers(0, MOST - 1)
picks = st.integers(0, 12)
"""A message by its number from the newest, in the view or not; 0 for one that is not there."""
few_picks = st.lists(st.integers(1, 12), min_size=1, max_size=3)
texts = st.sampled_from(["one", "two", "three"])
ids = st.sampled_from([None, None, "a", "b", "c", "d", "e"])
calls = st.sampled_from(["c1", "c2"])
said = st.builds(lambda text: {"role": "user", "content": text}, texts)
called = st.builds(lambda call: {"role": "assistant", "content": "look", "tool_calls": [openai_call(call)]}, calls)
answered = st.builds(lambda call, text: {"role": "tool", "tool_call_id": call, "content": text}, calls, texts)
messages = st.one_of(said, said, called, answered)
bodies = st.one_of(
    st.builds(lambda text: {"content": text}, texts),
    st.builds(lambda text, call: {"content": text, "tool_calls": [openai_call(call)]}, texts, calls),
)
values = st.sampled_from([1, 7, None, "x", {}, {"a": 1}, {"a": 2, "b": None}, {"a": {"b": 1}, "c": 1}])
patches = st.sampled_from([{"a": 3}, {"a": {"b": 2}}, {"a": {"d": 1}}, {"a": None}, {"b": 1}, {}, 5, None])
configs = st.sampled_from(
    [{"max_tokens": 12}, {"max_tokens": None}, {"description": "d"}, {"read_only": True}, {"read_only": False}]
)
Change = tuple[str, str, Any, dict[str, Any]]
"""What is done to a slot or a block: how, its name, what is given, and how the block is to be configured."""


def changes_of(name: str) -> st.SearchStrategy[Change]:
    """Return what can be done to a slot or a block."""

    def made(op: str, given: st.SearchStrategy[Any], config: st.SearchStrategy[Any]) -> st.SearchStrategy[Change]:
        return st.tuples(st.just(op), st.just(name), given, config)

    nothing = st.none()
    plain: st.SearchStrategy[dict[str, Any]] = st.just({})
    if name in ("form", "free"):
        return st.one_of(made("put", values, plain), made("patch", patches, plain), made("patch", patches, plain))
    return st.one_of(
        made("set", texts, plain),
        made("set", texts, configs),
        made("configure", nothing, configs),
        made("append", texts, plain),
        made("append", texts, plain),
        made("remove", nothing, plain),
    )


slots = st.sampled_from(["form", "form", "free"])
labels = st.sampled_from(["memory", "memory", "persona", "notes"])
changes = st.one_of(slots, labels).flatmap(changes_of)


def on_both(names: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[list[Change], list[Change]]]:
    """Return what a fork and its parent do to the same slot or block."""
    return names.flatmap(
        lambda name: st.tuples(
            st.lists(changes_of(name), min_size=1, max_size=3), st.lists(changes_of(name), max_size=2)
        )
    )


MEMORY = tape.BlockSpec("memory", "what to keep", max_tokens=24, default="tea")
WORLDS = [
    World(),
    World({"form": 1}, [MEMORY]),
    World({"form": 2}, [tape.BlockSpec("persona", read_only=True, default="calm"), MEMORY]),
    World({"form": 3}, [tape.BlockSpec("memory", max_tokens=40), tape.BlockSpec("notes", default="none")]),
]
"""What programs declare, one after the other, in any order."""
programs = st.sampled_from([None, None, *WORLDS])
strategies = st.sampled_from(["replay", "squash", "link"])
policies = st.sampled_from(["fail", "ours", "theirs"])


def options(world: World) -> dict[str, Any]:
    """Return what a program that declares this opens a store with."""
    declared = [
        tape.Slot(name, version=version, migrate={n: migrator(n) for n in range(1, version)})
        for name, version in world.slots.items()
    ]
    return {"slots": declared, "blocks": world.blocks, "counter": len}


class FamilyMachine(RuleBasedStateMachine):
    """One family: a tape, its forks and theirs, and their models."""

    backend: ClassVar[Backend]
    store: ClassVar[tape.Store | None] = None
    world: ClassVar[World]
    copy: ClassVar[tape.Store | None] = None
    """Where every state is imported: what it had of the family before is extended."""

    def __init__(self) -> None:
        super().__init__()
        cls = type(self)
        cls.store = cls.store or self._open()
        self.prefix = f"t{next(_numbers)}-"
        self.kin = [Kin(f"{self.prefix}0", cls.world)]

    def _open(self) -> tape.Store:
        durability = {} if self.backend.postgres else {"durability": "normal"}
        return self.backend.open(**options(type(self).world), **durability)

    def one(self, number: int) -> tuple[Kin, tape.Tape]:
        store = type(self).store
        assert store is not None
        kin = self.kin[number % len(self.kin)]
        return kin, store.tape(kin.id)

    def pick(self, kin: Kin, number: int) -> str:
        known = list(kin.tree.notes)
        return known[-1 - (number - 1) % len(known)] if known and number else "nobody"

    def write(self, number: int, real: Callable[[tape.Tape], Any], model: Callable[[Kin, Any], Wrote | Merged]) -> None:
        """Make the same write on the store and on the model; both must do the same, and show the same everywhere."""
        kin, handle = self.one(number)
        receipt, raised = None, None
        try:
            receipt = real(handle)
        except tape.TapeError as error:
            raised = error
        try:
            want = model(kin, receipt)
        except Refused as refused:
            if raised is None or type(raised) is not refused.error:
                raise AssertionError(f"expected {refused}, got {raised!r} {receipt}") from raised
            facts = dict(refused.facts)
            if isinstance(raised, tape.MergeConflict):
                pairs = [(one.message_id, one.ours, one.theirs) for one in raised.conflicts]
                assert sorted(pairs, key=repr) == sorted(facts.pop("conflicts"), key=repr)
            assert {name: getattr(raised, name) for name in facts} == facts
        else:
            assert raised is None, f"unexpected {raised!r}, the model wrote {want}"
            if isinstance(want, Wrote):
                assert isinstance(receipt, tape.Receipt)
                assert Wrote(receipt.tape, receipt.seq, receipt.message_id, receipt.duplicate) == want
            else:
                assert isinstance(receipt, tape.MergeReceipt)
                got = Merged(
                    receipt.seq,
                    receipt.child_head,
                    receipt.message_ids,
                    sorted(receipt.changed),
                    sorted(receipt.kept),
                    receipt.duplicate,
                )
                assert got == Merged(**{**want.__dict__, "changed": sorted(want.changed), "kept": sorted(want.kept)})
        self.check(kin)

    def check(self, changed: Kin) -> None:
        """Compare all that can be read of the tape that was written and of its parent, and the paths of all."""
        for number, kin in enumerate(self.kin):
            _, handle = self.one(number)
            seen = kin.seen()
            if kin is changed or kin is changed.parent or changed.parent is kin.parent:
                compare(handle, seen)
            else:
                assert [show(m) for m in handle.messages()] == seen.path
                assert [show(m) for m in handle.context().messages] == seen.context
            if kin.seq:
                report = handle.verify()
                assert report.ok, report.problems
                assert report.entries == kin.seq
        if self.kin[0].seq:
            cls = type(self)
            cls.copy = cls.copy or tape.open(":memory:", **options(cls.world))
            self.import_into(cls.copy)
            for kin in self.kin:
                if kin is changed or kin is changed.parent:
                    compare(cls.copy.tape(kin.id), kin.seen())

    def closely(self, kin: Kin, seq: int) -> bool:
        """Whether to read every message by itself: for what was written last, and for the rest at some seqs."""
        return seq % 5 == 0 or seq > kin.seq - 3

    def import_into(self, copy: tape.Store) -> bytes:
        """Bring the whole family to another store; returns what went there."""
        store = type(self).store
        assert store is not None
        file = io.BytesIO()
        store.export(self.kin[0].id, file, family=True)
        file.seek(0)
        copy.import_(file)
        return file.getvalue()

    def teardown(self) -> None:
        for number, kin in enumerate(self.kin):
            _, handle = self.one(number)
            for seq in range(kin.seq + 1):
                compare(handle.at(seq), kin.seen(seq), each=self.closely(kin, seq))
        if self.kin[0].seq:
            with tape.open(":memory:", **options(type(self).world)) as copy:
                told, again = self.import_into(copy), io.BytesIO()
                copy.export(self.kin[0].id, again, family=True)
                assert again.getvalue() == told
                for kin in self.kin:
                    compare(copy.tape(kin.id), kin.seen())
                    for seq in range(kin.seq + 1):
                        compare(copy.tape(kin.id).at(seq), kin.seen(seq), each=self.closely(kin, seq))
        store = type(self).store
        assert store is not None
        for kin in self.kin:
            if kin.seq:
                store.rebuild(kin.id)
        for number, kin in enumerate(self.kin):
            _, handle = self.one(number)
            compare(handle, kin.seen())
            if kin.seq:
                assert handle.verify().ok

    # -- rules

    @initialize(
        first=st.lists(messages, min_size=1, max_size=4),
        held=st.lists(changes, max_size=4),
        parents=st.sampled_from([[], [0], [0, 0], [0, 1]]),
    )
    def begin(self, first: list[dict[str, Any]], held: list[Change], parents: list[int]) -> None:
        for index, message in enumerate(first):
            self._append(0, {**message, "id": f"p{index}"})
        for change in held:
            self._change(0, change)
        for number in parents:
            self._fork(number, None)

    @rule(number=numbers, message=messages, id=ids)
    def append(self, number: int, message: dict[str, Any], id: str | None) -> None:
        self._append(number, message if id is None else {**message, "id": id})

    def _append(self, number: int, given: dict[str, Any]) -> None:
        self.write(number, lambda chat: chat.append(given), lambda kin, got: kin.append(given, got and got.message_id))

    @rule(number=numbers, call=calls, text=texts)
    def call_and_answer(self, number: int, call: str, text: str) -> None:
        made = {"role": "assistant", "content": text, "tool_calls": [openai_call(call)]}
        self._append(number, made)
        self._append(number, {"role": "tool", "tool_call_id": call, "content": text})

    @rule(number=numbers, message=messages, at=picks, root=st.integers(0, 5))
    def branch(self, number: int, message: dict[str, Any], at: int, root: int) -> None:
        parent = None if root == 0 else self.pick(self.one(number)[0], at)
        self.write(
            number,
            lambda chat: chat.append(message, parent=parent),
            lambda kin, got: kin.append(message, got and got.message_id, parent),
        )

    @rule(number=numbers, at=picks, text=texts)
    def revise_content(self, number: int, at: int, text: str) -> None:
        id = self.pick(self.one(number)[0], at)
        self.write(number, lambda chat: chat.revise(id, content=text), lambda kin, _: kin.revise(id, text))

    @rule(number=numbers, at=picks, body=bodies)
    def revise(self, number: int, at: int, body: dict[str, Any]) -> None:
        id = self.pick(self.one(number)[0], at)
        self.write(number, lambda chat: chat.revise(id, body), lambda kin, _: kin.revise(id, message=body))

    @rule(number=numbers, some=few_picks)
    def retract(self, number: int, some: list[int]) -> None:
        named = list(dict.fromkeys(self.pick(self.one(number)[0], at) for at in some))
        self.write(number, lambda chat: chat.retract(*named), lambda kin, _: kin.retract(named))

    @rule(number=numbers, some=few_picks)
    def restore(self, number: int, some: list[int]) -> None:
        kin, _ = self.one(number)
        named = list(dict.fromkeys(self.pick(kin, at) for at in some))
        out = [id for id, note in kin.tree.notes.items() if note.out or note.taken]
        if out:
            named = list(dict.fromkeys(out[at % len(out)] for at in some))
        self.write(number, lambda chat: chat.restore(*named), lambda kin, _: kin.restore(named))

    @rule(number=numbers)
    def undo_clear(self, number: int) -> None:
        self.write(number, lambda chat: chat.restore(), lambda kin, _: kin.restore([]))

    @rule(number=numbers)
    def clear(self, number: int) -> None:
        self.write(number, lambda chat: chat.clear(), lambda kin, _: kin.clear())

    @rule(number=numbers, at=picks)
    def switch(self, number: int, at: int) -> None:
        id = self.pick(self.one(number)[0], at)
        self.write(number, lambda chat: chat.switch(id), lambda kin, _: kin.switch(id))

    @rule(number=numbers, name=st.sampled_from(["plan", "build"]), some=st.lists(st.integers(1, 12), max_size=2))
    def anchor(self, number: int, name: str, some: list[int]) -> None:
        kin, _ = self.one(number)
        sources = list(dict.fromkeys(self.pick(kin, at) for at in some))
        self.write(
            number,
            lambda chat: chat.anchor(name, source_ids=sources),
            lambda kin, _: kin.anchor(name, sources),
        )

    @rule(number=numbers, change=changes)
    def change(self, number: int, change: Change) -> None:
        self._change(number, change)

    def _change(self, number: int, change: Change) -> None:
        op, name, given, config = change
        if op == "configure":
            # A block is configured by setting the text that it has.
            shown = self.one(number)[0].tree.look(name, type(self).world)
            op, given = "set", "" if shown is None else shown[0]
        real: dict[str, Callable[[tape.Tape], Any]] = {
            "put": lambda chat: chat.put(name, given),
            "patch": lambda chat: chat.patch(name, given),
            "set": lambda chat: chat.set_block(name, given, **config),
            "append": lambda chat: chat.append_block(name, given),
            "remove": lambda chat: chat.remove_block(name),
        }
        model: dict[str, Callable[[Kin], Wrote]] = {
            "put": lambda kin: kin.put(name, given),
            "patch": lambda kin: kin.patch(name, given),
        }
        self.write(
            number, real[op], lambda kin, _: model[op](kin) if op in model else kin.block(name, op, given, config)
        )

    @rule(number=numbers, how=st.sampled_from(["event", "event", "complete", "reopen", "reopen"]))
    def facts(self, number: int, how: str) -> None:
        if how == "event":
            self.write(number, lambda chat: chat.event("note"), lambda kin, _: kin.event())
        elif how == "complete":
            self.write(number, lambda chat: chat.complete(), lambda kin, _: kin.set_status("completed"))
        else:
            self.write(number, lambda chat: chat.reopen(), lambda kin, _: kin.set_status("active"))

    @precondition(lambda self: len(self.kin) < MOST)
    @rule(number=numbers, where=st.sampled_from(["now", "now", "seq", "message", "anchor"]), at=st.integers(0, 60))
    def fork(self, number: int, where: str, at: int) -> None:
        kin, _ = self.one(number)
        point: int | str | None = None
        if where == "seq":
            point = at % (kin.seq + 1)
        elif where == "message":
            point = self.pick(kin, at)
        elif where == "anchor":
            point = ["plan", "build"][at % 2]
        self._fork(number, point)

    def _fork(self, number: int, point: int | str | None) -> None:
        kin, handle = self.one(number)
        id = f"{self.prefix}{len(self.kin)}"
        try:
            self.kin.append(kin.fork(id, point))
        except Refused as refused:
            with pytest.raises(refused.error) as raised:
                handle.fork(id, at=point)
            facts = refused.facts
            assert {name: getattr(raised.value, name) for name in facts} == facts
        else:
            assert handle.fork(id, at=point).id == id
            assert handle.fork(id, at=point).id == id
        self.check(self.kin[-1])
        self.check(kin)

    @precondition(lambda self: len(self.kin) > 1)
    @rule(
        number=numbers,
        into=st.sampled_from(["parent"] * 8 + ["another"]),
        strategy=st.sampled_from(["replay", "replay", "replay", "squash", "link"]),
        on_conflict=st.sampled_from(["fail", "ours", "theirs", "theirs"]),
        fields=st.sampled_from([{}, {"content": "done"}, {"role": "tool", "tool_call_id": "c1"}]),
    )
    def merge(self, number: int, into: str, strategy: str, on_conflict: str, fields: dict[str, Any]) -> None:
        child = self.kin[1 + number % (len(self.kin) - 1)]
        self._merge(child, number if into == "another" else None, strategy, on_conflict, fields)

    def _merge(self, child: Kin, into: int | None, strategy: str, on_conflict: str, fields: dict[str, Any]) -> None:
        """Merge a fork into its parent, or into a tape that is none."""
        assert child.parent is not None
        parent = self.kin.index(child.parent) if into is None else into % len(self.kin)
        given = dict(fields) if strategy == "squash" else {}
        self.write(
            parent,
            lambda chat: chat.merge(
                child.id, strategy=strategy, on_conflict=on_conflict, summary=given.get("content"), **_more(given)
            ),
            lambda kin, got: kin.merge(child, strategy, on_conflict, given, got.message_ids if got else []),
        )
        if child.last is not None and child.parent is self.kin[parent]:
            _, handle = self.one(parent)
            compare(handle.linked(child.id), child.seen(child.last.child_head))

    @precondition(lambda self: len(self.kin) > 1)
    @rule(number=numbers, both=on_both(slots), declared=programs, strategy=strategies, on_conflict=policies)
    def meet_in_state(
        self, number: int, both: tuple[list[Change], list[Change]], declared: Any, strategy: str, on_conflict: str
    ) -> None:
        self._meet(number, both, declared, strategy, on_conflict)

    @precondition(lambda self: len(self.kin) > 1)
    @rule(number=numbers, both=on_both(labels), declared=programs, strategy=strategies, on_conflict=policies)
    def meet_in_blocks(
        self, number: int, both: tuple[list[Change], list[Change]], declared: Any, strategy: str, on_conflict: str
    ) -> None:
        self._meet(number, both, declared, strategy, on_conflict)

    def _meet(
        self,
        number: int,
        both: tuple[list[Change], list[Change]],
        declared: World | None,
        strategy: str,
        on_conflict: str,
    ) -> None:
        """Change the same slot or block on a fork and on its parent, and merge, be it by a program of another world."""
        child = self.kin[1 + number % (len(self.kin) - 1)]
        assert child.parent is not None
        for change in both[0]:
            self._change(self.kin.index(child), change)
        for change in both[1]:
            self._change(self.kin.index(child.parent), change)
        if declared is not None:
            self.reopen(declared)
        fields = {"content": "done"} if strategy == "squash" else {}
        self._merge(child, None, strategy, on_conflict, fields)

    @rule(number=numbers, certain=st.integers(0, 3))
    def discard(self, number: int, certain: int) -> None:
        if certain == 0:
            self.write(number, lambda chat: chat.discard("no use"), lambda kin, _: kin.discard())

    @rule(declared=st.sampled_from(WORLDS))
    def reopen_store(self, declared: World) -> None:
        self.reopen(declared)

    def reopen(self, declared: World) -> None:
        """Go on with another program, which declares other slots and blocks."""
        cls = type(self)
        assert cls.store is not None
        cls.store.close()
        cls.world.slots, cls.world.blocks = declared.slots, declared.blocks
        cls.store = self._open()
        if cls.copy is not None:
            cls.copy.close()
            cls.copy = None


def _more(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "content"}


@heavy
def test_f1_to_f7_families_in_any_order_agree_with_the_model(backend: Backend) -> None:
    """Whatever is forked, changed, merged and discarded in whatever order, every tape shows what a copy would show."""
    machine = type("Machine", (FamilyMachine,), {"backend": backend, "store": None, "world": World(), "copy": None})
    explore(machine, steps(STEPS, postgres=backend.postgres), STEPS_PER_FAMILY)
