"""Every verb in any order, against the naive model of ``model.py``, on both engines.

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
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from support import random_messages as random
from support.backends import Backend
from support.exploring import explore, steps
from support.machine_ids import IdRules, heads, ids, keys, metas, picks, tapes
from support.model import Item, Model, Wrote
from support.seen import compare, show
from support.sizes import heavy
from support.tree import HEAD, Refused

import tape
from tape.core.view.in_memory import View

STEPS = 200
STEPS_PER_TAPE = 50
_numbers = itertools.count(1)

# -- what is written

reasons = st.sampled_from([None, "why"])
mostly = st.sampled_from([True, True, True, False])
names = st.sampled_from(["plan", "build"])


class TapeMachine(IdRules, RuleBasedStateMachine):
    """Three tapes of a store, and their models."""

    backend: ClassVar[Backend]
    store: ClassVar[tape.Store | None] = None
    elsewhere: ClassVar[tape.Store | None] = None
    """Another store, which exported tapes are imported into."""

    def __init__(self) -> None:
        super().__init__()
        cls = type(self)
        cls.store = cls.store or self._open()
        number = next(_numbers)
        self.models = [Model(id=f"t{number}-{index}") for index in range(3)]
        self.last: Callable[[], None] | None = None

    def _open(self) -> tape.Store:
        # Not by the backend, which would keep hundreds of closed stores until the test ends.
        return tape.open(self.backend.url, durability="normal", **self.backend.options)

    def handle(self, index: int) -> tape.Tape:
        store = type(self).store
        assert store is not None
        return store.tape(self.models[index].id)

    # -- helpers

    def pick(self, index: int, number: int) -> str:
        known = list(self.models[index].notes)
        return known[-1 - (number - 1) % len(known)] if known and number else "nobody"

    def expected(self, index: int, how: str) -> int | None:
        seq = self.models[index].seq
        return {"any": None, "right": seq, "wrong": seq + 1 if seq < 2 else seq - 1}[how]

    def write(
        self,
        index: int,
        real: Callable[[], tape.Receipt | list[tape.Receipt]],
        model: Callable[[Model, list[str]], Wrote | list[Wrote]],
    ) -> None:
        """Make the same write on the store and on the model; both must do the same, and everything shown be equal."""

        def run() -> None:
            before = self.models[index].kept()
            raised: tape.TapeError | None = None
            receipts: list[tape.Receipt] = []
            try:
                got = real()
                receipts = got if isinstance(got, list) else [got]
            except tape.TapeError as error:
                raised = error
            made = [str(receipt.message_id) for receipt in receipts]
            refused: Refused | None = None
            wants: list[Wrote] = []
            try:
                want = model(self.models[index], made or [f"<refused {number}>" for number in range(9)])
                wants = want if isinstance(want, list) else [want]
            except Refused as error:
                refused = error
                self.models[index] = before
            if refused is None:
                assert raised is None, f"unexpected {raised!r}, the model wrote {wants}"
            else:
                assert type(raised) is refused.error, f"expected {refused}, got {raised!r} {receipts}"
                assert {name: getattr(raised, name) for name in refused.facts} == refused.facts
            assert [Wrote(r.seq, r.message_id, r.duplicate) for r in receipts] == wants
            self.check(index)

        self.last = run
        run()

    def check(self, index: int) -> None:
        """Compare everything that can be read now."""
        model, handle = self.models[index], self.handle(index)
        compare(handle, model.history[-1])
        assert len(model.history) == model.seq + 1
        if model.seq:
            report = handle.verify()
            assert report.ok, report.problems
            assert report.entries == model.seq

    def teardown(self) -> None:
        for index in range(3):
            self.replay(index)
            self.carry(index)

    @rule(index=tapes)
    def carry(self, index: int) -> None:
        """Export the tape, import it elsewhere (where an earlier part of it may be), and export it from there."""
        cls, model = type(self), self.models[index]
        assert cls.store is not None
        if not model.seq:
            return
        cls.elsewhere = cls.elsewhere or tape.open(":memory:")
        exported, again = io.BytesIO(), io.BytesIO()
        cls.store.export(model.id, exported)
        cls.elsewhere.import_(io.BytesIO(exported.getvalue()))
        cls.elsewhere.export(model.id, again)
        assert again.getvalue() == exported.getvalue()
        there = cls.elsewhere.tape(model.id)
        compare(there, model.history[-1])
        for seq in range(0, model.seq, 5):
            compare(there.at(seq), model.history[seq], each=False)
        report = there.verify()
        assert report.ok, report.problems

    def replay(self, index: int) -> None:
        """Compare the view at every seq with a fold of the first entries and with what the model saw then."""
        model, handle = self.models[index], self.handle(index)
        if not model.seq:
            assert handle.messages() == []
            return
        entries = list(handle.entries())
        assert [(e.seq, e.kind) for e in entries] == [(r.seq, r.kind) for r in model.records]
        assert [e.stamp for e in entries] == sorted(e.stamp for e in entries)
        view = View()
        spoke = closed = None
        compare(handle.at(0), model.history[0])
        for entry in entries:
            assert entry.payload is not None
            if entry.kind == "append":
                spoke = entry.recorded_at
            elif entry.kind == "status":
                closed = entry.recorded_at if model.history[entry.seq].status != "active" else None
            view.fold(entry.seq, bytes.fromhex(entry.hash), entry.stamp, entry.head, entry.payload)
            then = model.history[entry.seq]
            # Every message by itself is many reads: at every seq for what was written last, and for the rest at some.
            compare(handle.at(entry.seq), then, each=entry.seq % 7 == 0 or entry.seq > len(entries) - 3)
            assert [(held.placed, held.body) for held in view.path()] == [(s[3], s[4]) for s in then.path]
            assert view.anchor() == (then.anchor and then.anchor[1])
            assert view.head.messages == then.count
            info = handle.at(entry.seq).info()
            assert (info.last_message_at, info.completed_at, info.updated_at) == (spoke, closed, entry.recorded_at)
        moments = {entry.recorded_at: entry.seq for entry in entries}
        for moment, seq in list(moments.items())[-5:]:
            assert handle.at(moment).info().head == seq

    # -- rules

    @rule(index=tapes, message=random.said, id=ids, key=keys, head=heads, actor=reasons, meta=metas)
    def append(
        self,
        index: int,
        message: dict[str, Any],
        id: str | None,
        key: str | None,
        head: str,
        actor: str | None,
        meta: dict[str, Any] | None,
    ) -> None:
        expected = self.expected(index, head)
        self.write(
            index,
            lambda: self.handle(index).append(
                role=message["role"],
                content=message["content"],
                id=id,
                key=key,
                actor=actor,
                meta=meta,
                expected_head=expected,
            ),
            lambda model, made: model.extend([Item(message, id, key, made=made[0], said=(meta, None))], expected),
        )

    @rule(index=tapes, message=st.one_of(random.called, random.answered), id=ids, key=keys)
    def append_tools(self, index: int, message: dict[str, Any], id: str | None, key: str | None) -> None:
        given = message if id is None else {"id": id, **message}
        self.write(
            index,
            lambda: self.handle(index).append(given, key=key),
            lambda model, made: model.extend([Item(given, key=key, made=made[0])]),
        )

    @rule(index=tapes, made=random.some_calls, text=random.texts, answer_all=st.booleans())
    def append_call_and_results(self, index: int, made: list[str], text: str, answer_all: bool) -> None:
        batch = [{"role": "assistant", "content": text, "tool_calls": [random.openai_call(call) for call in made]}]
        if answer_all:
            batch.append({"role": "user", "content": [random.anthropic_result(call) for call in made]})
        else:
            batch += [{"role": "tool", "tool_call_id": call, "content": text} for call in made]
        self.write(
            index,
            lambda: self.handle(index).extend(batch),
            lambda model, ids: model.extend([Item(m, made=id) for m, id in zip(batch, ids, strict=False)]),
        )

    @rule(index=tapes, made=st.lists(random.calls, min_size=2, max_size=3, unique=True))
    def append_calls_answered_together(self, index: int, made: list[str]) -> None:
        """Several messages with a call each, and one that answers all of them."""
        batch: list[dict[str, Any]] = [{"role": "assistant", "content": [random.anthropic_call(call)]} for call in made]
        batch.append({"role": "user", "content": [random.anthropic_result(call) for call in made]})
        self.write(
            index,
            lambda: self.handle(index).extend(batch),
            lambda model, ids: model.extend([Item(m, made=id) for m, id in zip(batch, ids, strict=False)]),
        )

    @rule(
        index=tapes,
        message=random.messages,
        number=picks,
        where=st.sampled_from(["root", "message", "message", "message", "elsewhere"]),
        id=ids,
        key=keys,
        head=heads,
    )
    def branch(
        self, index: int, message: dict[str, Any], number: int, where: str, id: str | None, key: str | None, head: str
    ) -> None:
        parent: str | None = None
        if where == "message":
            parent = self.pick(index, number)
        elif where == "elsewhere":
            parent = self.pick((index + 1) % 3, number)
        expected = self.expected(index, head)
        self.write(
            index,
            lambda: self.handle(index).append(message, id=id, parent=parent, key=key, expected_head=expected),
            lambda model, made: model.extend([Item(message, id, key, parent, made[0])], expected),
        )

    @rule(
        index=tapes,
        batch=st.lists(st.tuples(random.messages, ids), max_size=4),
        number=st.one_of(st.none(), picks),
        key=keys,
        head=heads,
    )
    def extend(
        self,
        index: int,
        batch: list[tuple[dict[str, Any], str | None]],
        number: int | None,
        key: str | None,
        head: str,
    ) -> None:
        given = [message if id is None else {**message, "id": id} for message, id in batch]
        expected = self.expected(index, head)
        where: dict[str, Any] = {} if number is None else {"parent": self.pick(index, number)}
        named = [None if key is None else f"{key}#{n}" for n in range(len(given))]

        def model(one: Model, made: list[str]) -> list[Wrote]:
            parents = [where.get("parent", HEAD), *[HEAD] * len(given)]
            items = [
                Item(message, None, name, parent, id)
                for message, name, parent, id in zip(given, named, parents, made, strict=False)
            ]
            return one.extend(items, expected, batch=key is not None) if items else []

        self.write(index, lambda: self.handle(index).extend(given, key=key, expected_head=expected, **where), model)

    @rule(index=tapes, message=random.messages, id=ids, number=picks, aim=st.booleans(), key=keys, head=heads)
    def upsert(
        self,
        index: int,
        message: dict[str, Any],
        id: str | None,
        number: int,
        aim: bool,
        key: str | None,
        head: str,
    ) -> None:
        given = dict(message)
        if aim and number and self.models[index].notes:
            # Aimed at a message that exists, with its own role, so that it is a revision or changes nothing.
            id = self.pick(index, number)
            role = self.models[index].notes[id].body.get("role")
            given = {name: value for name, value in message.items() if name != "role"}
            given |= {} if role is None else {"role": role}
        if id is not None:
            given["id"] = id
        expected = self.expected(index, head)
        self.write(
            index,
            lambda: self.handle(index).upsert(given, key=key, expected_head=expected),
            lambda model, made: model.upsert(Item(given, key=key, made=made[0]), expected),
        )

    @rule(index=tapes, number=picks, content=random.contents, key=keys, head=heads)
    def revise_content(self, index: int, number: int, content: Any, key: str | None, head: str) -> None:
        id, expected = self.pick(index, number), self.expected(index, head)
        self.write(
            index,
            lambda: self.handle(index).revise(id, content=content, key=key, expected_head=expected),
            lambda model, made: model.revise(id, content=content, key=key, expected=expected),
        )

    @rule(index=tapes, number=picks, message=random.messages, keep_role=mostly, key=keys)
    def revise_whole(self, index: int, number: int, message: dict[str, Any], keep_role: bool, key: str | None) -> None:
        id = self.pick(index, number)
        given = {n: value for n, value in message.items() if n != "role"} if keep_role else message
        self.write(
            index,
            lambda: self.handle(index).revise(id, given, key=key),
            lambda model, made: model.revise(id, message=given, key=key),
        )

    @rule(index=tapes, numbers=st.lists(picks, min_size=1, max_size=3), reason=reasons, key=keys, head=heads)
    def retract(self, index: int, numbers: list[int], reason: str | None, key: str | None, head: str) -> None:
        chosen, expected = [self.pick(index, n) for n in numbers], self.expected(index, head)
        self.write(
            index,
            lambda: self.handle(index).retract(*chosen, reason=reason, key=key, expected_head=expected),
            lambda model, made: model.retract(chosen, reason=reason, key=key, expected=expected),
        )

    @rule(index=tapes, number=picks)
    def retract_shown(self, index: int, number: int) -> None:
        shown = [id for id in self.models[index].notes if self.models[index].visible(id)]
        id = shown[number % len(shown)] if shown else "nobody"
        self.write(index, lambda: self.handle(index).retract(id), lambda model, made: model.retract([id]))

    @rule(index=tapes, numbers=st.lists(picks, min_size=1, max_size=3), key=keys, head=heads)
    def restore(self, index: int, numbers: list[int], key: str | None, head: str) -> None:
        chosen, expected = [self.pick(index, n) for n in numbers], self.expected(index, head)
        self.write(
            index,
            lambda: self.handle(index).restore(*chosen, key=key, expected_head=expected),
            lambda model, made: model.restore(chosen, key=key, expected=expected),
        )

    @rule(index=tapes, number=picks)
    def restore_hidden(self, index: int, number: int) -> None:
        gone = self.models[index].history[-1].hidden
        id = gone[number % len(gone)] if gone else "nobody"
        self.write(index, lambda: self.handle(index).restore(id), lambda model, made: model.restore([id]))

    @rule(index=tapes, reason=reasons, key=keys, head=heads)
    def clear(self, index: int, reason: str | None, key: str | None, head: str) -> None:
        expected = self.expected(index, head)
        self.write(
            index,
            lambda: self.handle(index).clear(reason, key=key, expected_head=expected),
            lambda model, made: model.clear(reason=reason, key=key, expected=expected),
        )

    @rule(index=tapes, key=keys, head=heads)
    def restore_cleared(self, index: int, key: str | None, head: str) -> None:
        expected = self.expected(index, head)
        self.write(
            index,
            lambda: self.handle(index).restore(key=key, expected_head=expected),
            lambda model, made: model.restore([], key=key, expected=expected),
        )

    @rule(index=tapes, number=picks, key=keys, head=heads)
    def switch(self, index: int, number: int, key: str | None, head: str) -> None:
        id, expected = self.pick(index, number), self.expected(index, head)
        self.write(
            index,
            lambda: self.handle(index).switch(id, key=key, expected_head=expected),
            lambda model, made: model.switch(id, key=key, expected=expected),
        )

    @rule(
        index=tapes,
        name=names,
        state=st.sampled_from([None, {"step": 1}]),
        numbers=st.lists(picks, max_size=2),
        nth=st.sampled_from([None, None, 0, 1, -1]),
        key=keys,
        head=heads,
    )
    def anchor(
        self, index: int, name: str, state: Any, numbers: list[int], nth: int | None, key: str | None, head: str
    ) -> None:
        sources, expected = [self.pick(index, n) for n in numbers], self.expected(index, head)
        marks = self.models[index].marks
        parents = [] if nth is None else [marks[nth % len(marks)].seq if marks and nth >= 0 else 1]
        self.write(
            index,
            lambda: self.handle(index).anchor(
                name, state, parents=parents, source_ids=sources, key=key, expected_head=expected
            ),
            lambda model, made: model.anchor_at_head(
                name, state=state, parents=parents, sources=sources, key=key, expected=expected
            ),
        )

    @rule(index=tapes, name=names, numbers=st.lists(picks, max_size=2), key=keys, head=heads)
    def handoff(self, index: int, name: str, numbers: list[int], key: str | None, head: str) -> None:
        sources, expected = [self.pick(index, n) for n in numbers], self.expected(index, head)
        self.write(
            index,
            lambda: self.handle(index).handoff(
                name, summary="done", source_ids=sources, key=key, expected_head=expected
            ),
            lambda model, made: model.anchor_at_head(name, summary="done", sources=sources, key=key, expected=expected),
        )

    @rule(
        index=tapes,
        text=st.sampled_from(["in short", "so far"]),
        ends=st.tuples(picks, picks),
        aim=st.sampled_from([True, True, True, True, False]),
        based_on=st.sampled_from(["right"] * 8 + ["none", "wrong"]),
        key=keys,
        head=heads,
    )
    def set_summary(
        self, index: int, text: str, ends: tuple[int, int], aim: bool, based_on: str, key: str | None, head: str
    ) -> None:
        first, last = (self.pick(index, number) for number in ends)
        if aim:
            first, last = self.run_of(index, *ends) or (first, last)
        newest, expected = self.models[index].history[-1].newest, self.expected(index, head)
        basis = {"right": newest, "none": None, "wrong": (newest or 0) + 1}[based_on]
        self.write(
            index,
            lambda: self.handle(index).set_summary(
                text, first=first, last=last, expected=basis, key=key, expected_head=expected
            ),
            lambda model, made: model.set_summary(text, first, last, basis, key=key, expected=expected),
        )

    def plenty(self, index: int, made: str, *, fresh: bool = False) -> None:
        """Open the tape and let six messages be behind its latest anchor, calls with their result among them."""
        model = self.models[index]
        if model.status != "active":
            self.open_again(index, None)
        if fresh or sum(id not in model.before(model.head) for id in model.path(model.head)) < 6:
            batch = [{"role": "user", "content": f"note {number}"} for number in range(4)]
            calls = [{"role": "assistant", "content": [random.anthropic_call(call)]} for call in (made, f"{made}x")]
            results = [random.anthropic_result(call) for call in (made, f"{made}x")]
            self.extend(
                index, [(m, None) for m in (*batch, *calls, {"role": "user", "content": results})], None, None, "any"
            )

    def run_of(self, index: int, low: int, high: int) -> tuple[str, str] | None:
        """Return the ends of a run that can be summarised, near the two numbers."""
        model = self.models[index]
        path = model.path(model.head)
        for first in path[low % len(path) :] if path else ():
            ends = path[path.index(first) :]
            for last in ends[high % len(ends) :] + ends[: high % len(ends)]:
                try:
                    model.judge(first, last)
                except Refused:
                    continue
                return first, last
        return None

    @rule(
        index=tapes,
        made=random.calls,
        ends=st.tuples(picks, picks),
        before=st.lists(st.integers(0, 5), max_size=2),
        steps=st.lists(st.tuples(st.integers(0, 9), picks), min_size=2, max_size=6),
    )
    def stir_under_a_clear(
        self, index: int, made: str, ends: tuple[int, int], before: list[int], steps: list[tuple[int, int]]
    ) -> None:
        """Retract, clear, do this and that to what is out, undo the clear: what summaries and results depend on."""
        self.plenty(index, made)
        if not self.models[index].history[-1].summaries:
            self.set_summary(index, "in short", ends, True, "right", None, "any")
        for number in before:
            self.retract_shown(index, -1 - number)
        self.clear(index, None, None, "any")
        for what, number in steps:
            notes = self.models[index].notes
            out = [id for id, note in notes.items() if note.out or note.taken]
            if what < 4 and out:
                id = out[number % len(out)]
                self.write(
                    index,
                    lambda id=id: self.handle(index).restore(id),  # type: ignore[misc]
                    lambda model, made, id=id: model.restore([id]),  # type: ignore[misc]
                )
            elif what < 6:
                self.retract_shown(index, number)
            elif what < 7:
                self.revise_shown(index, number, "other")
            elif what < 8:
                self.set_summary(index, "so far", (0, number), True, "right", None, "any")
            elif what < 9:
                self.clear(index, None, None, "any")
            else:
                self.restore_cleared(index, None, "any")
        self.restore_cleared(index, None, "any")

    @rule(
        index=tapes,
        made=random.calls,
        fresh=st.booleans(),
        some=st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True),
        low=st.sampled_from([0, 0, 1, 2]),
        clear=st.booleans(),
    )
    def summarise_with_gaps(self, index: int, made: str, fresh: bool, some: list[int], low: int, clear: bool) -> None:
        """Summarise while messages of the run are out, and bring them back: by a clear undone, or by themselves."""
        self.plenty(index, made, fresh=fresh)
        path = self.models[index].path(self.models[index].head)
        chosen = [path[-1 - number] for number in some if number < len(path)]
        if clear:
            self.clear(index, None, None, "any")
        for id in chosen:
            self.out_or_back(index, id)
        self.set_summary(index, "so far", (low, -1), True, "right", None, "any")
        if clear:
            self.restore_cleared(index, None, "any")
        for id in chosen:
            self.out_or_back(index, id)

    def out_or_back(self, index: int, id: str) -> None:
        """Retract what is there, restore what is not."""
        note = self.models[index].notes[id]
        if note.out or note.taken:
            self.write(index, lambda: self.handle(index).restore(id), lambda model, made: model.restore([id]))
        else:
            self.write(index, lambda: self.handle(index).retract(id), lambda model, made: model.retract([id]))

    @rule(index=tapes, number=picks, content=random.contents)
    def revise_shown(self, index: int, number: int, content: Any) -> None:
        shown = [id for id in self.models[index].notes if self.models[index].visible(id)]
        id = shown[number % len(shown)] if shown else "nobody"
        self.write(
            index,
            lambda: self.handle(index).revise(id, content=content),
            lambda model, made: model.revise(id, content=content),
        )

    @rule(index=tapes, name=names, data=st.sampled_from([None, 1, {"a": None}]), key=keys, head=heads)
    def event(self, index: int, name: str, data: Any, key: str | None, head: str) -> None:
        expected = self.expected(index, head)
        self.write(
            index,
            lambda: self.handle(index).event(name, data, key=key, expected_head=expected),
            lambda model, made: model.event(name, data, key=key, expected=expected),
        )

    @rule(
        index=tapes, how=st.sampled_from(["complete", "abandon", "end"]), key=keys, head=heads, stay=st.integers(0, 4)
    )
    def close(self, index: int, how: str, key: str | None, head: str, stay: int) -> None:
        """Close the tape; most often it is opened again at once, since little can be done with a closed one."""
        expected = self.expected(index, head)
        reason = "enough" if how == "end" else None
        status = {"complete": "completed", "abandon": "abandoned", "end": "ended"}[how]
        args = () if reason is None else (reason,)
        self.write(
            index,
            lambda: getattr(self.handle(index), how)(*args, key=key, expected_head=expected),
            lambda model, made: model.set_status(status, reason, key=key, expected=expected),
        )
        self.append(index, {"role": "user", "content": "after"}, None, None, "any", None, None)
        if stay:
            self.open_again(index, None)

    @rule(index=tapes, key=keys)
    def open_again(self, index: int, key: str | None) -> None:
        self.write(
            index,
            lambda: self.handle(index).reopen(key=key),
            lambda model, made: model.set_status("active", key=key),
        )

    @precondition(lambda self: self.last is not None)
    @rule()
    def again(self) -> None:
        """The same call once more: a duplicate if it had a key or an id, and otherwise a second entry."""
        assert self.last is not None
        self.last()

    @rule(index=tapes, number=picks)
    def read_branch(self, index: int, number: int) -> None:
        model, handle = self.models[index], self.handle(index)
        id = self.pick(index, number)
        if id in model.notes and model.visible(id):
            assert [show(m) for m in handle.messages(branch=id)] == model.shown(id)
            context = handle.context(branch=id)
            assert [show(m) for m in context.messages] == model.context(id)
            assert [one.seq for one in context.summaries] == [one.seq for one in model.summaries(id)]
            mark = model.anchor(id)
            assert (context.anchor and context.anchor.seq) == (mark and mark.seq)
            assert [show(m) for m in handle.at(id).messages()] == model.shown(id)
        else:
            with pytest.raises(tape.UnknownMessage) as caught:
                handle.messages(branch=id)
            assert caught.value.retracted == (id in model.notes)

    @rule(index=tapes, number=picks, limit=st.integers(1, 5), toward=st.sampled_from(["before", "after"]))
    def read_pages(self, index: int, number: int, limit: int, toward: str) -> None:
        """Pages of the path to any message, from its end, and on both sides of any other message."""
        model, handle = self.models[index], self.handle(index)
        path = model.history[-1].path
        page = handle.messages(limit=limit)
        assert isinstance(page, tape.Page)
        assert [show(m) for m in page] == path[-limit:]
        assert page.truncated == (len(path) > limit)
        at = self.pick(index, number)
        sides: dict[str, Any] = {"before": at} if toward == "before" else {"after": at}
        places = list(reversed(model.up(model.head)))
        if at not in model.notes:
            error: type[tape.TapeError] = tape.UnknownMessage
        elif at not in places:
            error = tape.InvalidEntry
        else:
            cut = places.index(at)
            side = places[:cut] if toward == "before" else places[cut + 1 :]
            want = [shown for shown in path if shown[0] in side]
            page = handle.messages(limit=limit, **sides)
            assert isinstance(page, tape.Page)
            assert [show(m) for m in page] == (want[-limit:] if toward == "before" else want[:limit])
            assert page.truncated == (len(want) > limit)
            return
        with pytest.raises(error):
            handle.messages(limit=limit, **sides)

    @rule(index=tapes)
    def look_back(self, index: int) -> None:
        self.replay(index)

    @rule(index=tapes)
    def rebuild(self, index: int) -> None:
        store = type(self).store
        assert store is not None
        if self.models[index].seq:
            assert store.rebuild(self.models[index].id) == 1
            self.check(index)
        else:
            with pytest.raises(tape.TapeNotFound):
                store.rebuild(self.models[index].id)

    @rule()
    def reopen_store(self) -> None:
        cls = type(self)
        assert cls.store is not None
        cls.store.close()
        cls.store = self._open()
        for index in range(3):
            self.check(index)


@heavy
def test_every_verb_in_any_order_agrees_with_the_model(backend: Backend) -> None:
    """Whatever is written in whatever order, both engines show what the naive model shows, now and at every seq."""

    class Machine(TapeMachine):
        pass

    Machine.backend = backend
    try:
        explore(Machine, steps(STEPS, postgres=backend.postgres), STEPS_PER_TAPE)
    finally:
        for opened in (Machine.store, Machine.elsewhere):
            if opened is not None:
                opened.close()
