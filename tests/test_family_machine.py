"""Forks, merges and discards in any order, against the naive family of ``family.py``, on both engines.

Hypothesis prints the steps and a blob that repeat a failure. ``TAPE_TEST_STEPS`` sets how many steps are run per
engine, for a longer hunt.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from conftest import Backend
from exploring import explore
from family import Kin, Merged, Refused, Seen, Wrote
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import tape

STEPS = int(os.environ.get("TAPE_TEST_STEPS", "300"))
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


def _call(call: str) -> dict[str, Any]:
    return {"id": call, "type": "function", "function": {"name": "look", "arguments": "{}"}}


said = st.builds(lambda text: {"role": "user", "content": text}, texts)
called = st.builds(lambda call: {"role": "assistant", "content": "look", "tool_calls": [_call(call)]}, calls)
answered = st.builds(lambda call, text: {"role": "tool", "tool_call_id": call, "content": text}, calls, texts)
messages = st.one_of(said, said, called, answered)
bodies = st.one_of(
    st.builds(lambda text: {"content": text}, texts),
    st.builds(lambda text, call: {"content": text, "tool_calls": [_call(call)]}, texts, calls),
)


class FamilyMachine(RuleBasedStateMachine):
    """One family: a tape, its forks and theirs, and their models."""

    backend: ClassVar[Backend]
    store: ClassVar[tape.Store | None] = None

    def __init__(self) -> None:
        super().__init__()
        cls = type(self)
        cls.store = cls.store or self._open()
        self.prefix = f"t{next(_numbers)}-"
        self.kin = [Kin(f"{self.prefix}0")]

    def _open(self) -> tape.Store:
        return self.backend.open() if self.backend.postgres else self.backend.open(durability="normal")

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

    def teardown(self) -> None:
        for number, kin in enumerate(self.kin):
            _, handle = self.one(number)
            for seq in range(kin.seq + 1):
                compare(handle.at(seq), kin.seen(seq), now=False)
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

    @initialize(first=st.lists(messages, min_size=1, max_size=4))
    def begin(self, first: list[dict[str, Any]]) -> None:
        for index, message in enumerate(first):
            self._append(0, {**message, "id": f"p{index}"})

    @rule(number=numbers, message=messages, id=ids)
    def append(self, number: int, message: dict[str, Any], id: str | None) -> None:
        self._append(number, message if id is None else {**message, "id": id})

    def _append(self, number: int, given: dict[str, Any]) -> None:
        self.write(number, lambda chat: chat.append(given), lambda kin, got: kin.append(given, got and got.message_id))

    @rule(number=numbers, call=calls, text=texts)
    def call_and_answer(self, number: int, call: str, text: str) -> None:
        made = {"role": "assistant", "content": text, "tool_calls": [_call(call)]}
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
        kin, handle = self.one(number)
        point: int | str | None = None
        if where == "seq":
            point = at % (kin.seq + 1)
        elif where == "message":
            point = self.pick(kin, at)
        elif where == "anchor":
            point = ["plan", "build"][at % 2]
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
        parent = (
            self.kin.index(child.parent) if into == "parent" and child.parent is not None else number % len(self.kin)
        )
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
            compare(handle.linked(child.id), child.seen(child.last.child_head), now=False)

    @rule(number=numbers, certain=st.integers(0, 3))
    def discard(self, number: int, certain: int) -> None:
        if certain == 0:
            self.write(number, lambda chat: chat.discard("no use"), lambda kin, _: kin.discard())

    @rule()
    def reopen_store(self) -> None:
        cls = type(self)
        assert cls.store is not None
        cls.store.close()
        cls.store = self._open()


def _more(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "content"}


def show(message: tape.Message) -> tuple[str, str | None, str, int, int, str]:
    # A summary shown as a message has a text that is the store's own.
    body = "" if message.id.startswith("~") else json.dumps(message.to_dict(), sort_keys=True)
    return message.id, message.parent, message.tape, message.seq, message.revision, body


def compare(reads: tape.Snapshot, seen: Seen, *, now: bool = True) -> None:
    """Compare every read with what the model sees."""
    assert [show(m) for m in reads.messages()] == seen.path
    assert [show(m) for m in reads.heads()] == seen.heads
    for id, below in seen.children.items():
        assert [show(m) for m in reads.children(id)] == below
        assert reads.message(id).id == id
    for id in seen.hidden:
        assert reads.find(id) is None
    pages: list[tape.Message] = []
    cursor = None
    while True:
        page = reads.messages(limit=3, before=cursor)
        assert isinstance(page, tape.Page)
        pages[:0] = page.items
        cursor = page.cursor
        if not page.truncated:
            break
    assert [show(m) for m in pages] == seen.path
    context = reads.context()
    assert [show(m) for m in context.messages] == seen.context
    assert (None if context.anchor is None else (context.anchor.tape, context.anchor.seq)) == seen.anchor
    assert context.head == seen.seq
    assert [(a.tape, a.seq, a.name, a.stale) for a in reads.anchors(limit=1000)] == seen.anchors
    info = reads.info()
    assert (info.head, info.status) == (seen.seq, seen.status)


def test_f1_to_f7_families_in_any_order_agree_with_the_model(backend: Backend) -> None:
    """Whatever is forked, changed, merged and discarded in whatever order, every tape shows what a copy would show."""
    machine = type("Machine", (FamilyMachine,), {"backend": backend, "store": None})
    explore(machine, STEPS, STEPS_PER_FAMILY)
