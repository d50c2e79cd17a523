"""E1, E5, E10, E15: what an entry is, and that it comes back as it went in."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import history, programs
from support.backends import Backend
from support.processes import Crew

import tape


class TestSeqs:
    """Seqs are the only order."""

    def test_e1_seqs_are_dense_and_each_tape_has_its_own(self, store: tape.Store) -> None:
        """Writes to several tapes in turn give each of them 1, 2, 3 … without a gap."""
        names = ["a", "b", "c"]
        for number in range(12):
            store.tape(names[number % 3]).append(role="user", content=number)
        for index, name in enumerate(names):
            entries = list(store.tape(name).entries())
            assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5]
            assert [entry.kind for entry in entries] == ["open"] + ["append"] * 4
            assert [message.content for message in store.tape(name).messages()] == list(range(index, 12, 3))
            assert store.tape(name).info().head == 5

    def test_e1_a_refused_write_leaves_no_gap(self, chat: tape.Tape) -> None:
        """Whatever fails in between, the next entry follows the last."""
        chat.append(id="m", role="user", content="x")
        for _ in range(3):
            with pytest.raises(tape.UnknownMessage):
                chat.extend([{"content": "fine"}], parent="nobody")
            with pytest.raises(tape.ProvenanceConflict):
                chat.extend([{"id": "new", "content": 1}, {"id": "m", "content": "other"}])
            with pytest.raises(tape.HeadMoved):
                chat.append(role="user", content="x", expected_head=99)
        assert chat.append(role="user", content="y").seq == 3
        assert [entry.seq for entry in chat.entries()] == [1, 2, 3]

    @pytest.mark.parametrize("point", ["entry", "view", "head", "commit"])
    def test_e1_a_crash_leaves_no_gap(self, backend: Backend, point: str, crew: Crew) -> None:
        """A process that is killed (-9) in the middle of a write leaves nothing of it, and the next is dense."""
        with backend.open() as store:
            store.tape("chat").append(role="user", content="before")
        assert crew.launch(backend, programs.write_and_die, name="chat", point=point).killed()
        chat = backend.open().tape("chat")
        assert [message.content for message in chat.messages()] == ["before"]
        assert chat.append(role="user", content="after").seq == 3
        assert [entry.seq for entry in chat.entries()] == [1, 2, 3]
        assert chat.verify().ok

    def test_e1_many_entries_are_listed_in_pages(self, backend: Backend) -> None:
        """A tape longer than a page is listed whole and in order, from any seq, by kind and with a limit."""
        chat = backend.open(durability="normal").tape("chat")
        chat.extend([{"content": number} for number in range(1_100)])
        chat.event("last")
        assert [entry.seq for entry in chat.entries()] == list(range(1, 1_103))
        assert [entry.seq for entry in chat.entries(after=1_000)] == list(range(1_001, 1_103))
        assert [entry.seq for entry in chat.entries(limit=3)] == [1, 2, 3]
        assert [entry.seq for entry in chat.entries(after=600, limit=600)] == list(range(601, 1_103))
        assert [entry.seq for entry in chat.entries(kinds=["event", "open"])] == [1, 1_102]
        assert [entry.seq for entry in chat.entries(kinds=["append"], limit=2, after=1_050)] == [1_051, 1_052]
        assert list(chat.entries(limit=0)) == []

    def test_e1_the_fields_of_an_entry(self, backend: Backend) -> None:
        """An entry tells tape, seq, kind, key, actor, source, payload, meta, time, version and hash."""
        chat = backend.open(clock=lambda: 1_700_000_000_000_000).tape("chat")
        chat.append(id="m", role="user", content="x", actor="ann", meta={"run": "r1"})
        receipt = chat.replace_history([{"id": "m", "role": "user", "content": "y"}], key="k")[1]
        entries = list(chat.entries())
        assert [(entry.tape, entry.seq, entry.kind) for entry in entries] == [
            ("chat", 1, "open"),
            ("chat", 2, "append"),
            ("chat", 3, "clear"),
            ("chat", 4, "append"),
        ]
        first, last = entries[1], entries[3]
        assert (first.actor, first.meta, first.source, first.key) == ("ann", {"run": "r1"}, None, "~m:m")
        assert (last.actor, last.meta, last.source, last.key) == (None, None, tape.Source("chat", 2), "k#0")
        assert (last.hash, last.version) == (receipt.hash, 2)
        assert str(last.recorded_at) == "2023-11-14 22:13:20+00:00"
        assert chat.info().head_hash == last.hash
        assert len({entry.hash for entry in entries}) == 4
        positions = [entry.position for entry in entries]
        assert None not in positions
        assert positions == sorted(set(positions), key=lambda position: position or 0)


class TestRevisions:
    """Every change is an entry of its own."""

    def test_e5_there_and_back_is_three_entries(self, chat: tape.Tape) -> None:
        """A message revised from A to B and back to A has three entries, and the last holds."""
        first = chat.append(id="m", role="user", content="A")
        second = chat.revise("m", content="B")
        third = chat.revise("m", content="A")
        assert [receipt.seq for receipt in (first, second, third)] == [2, 3, 4]
        assert not third.duplicate
        assert [entry.kind for entry in chat.entries()] == ["open", "append", "revise", "revise"]
        message = chat.message("m")
        assert (message.content, message.seq, message.revision) == ("A", 2, 4)
        assert [chat.at(seq).message("m").content for seq in (2, 3, 4)] == ["A", "B", "A"]
        fourth = chat.revise("m", content="B")
        assert (fourth.seq, fourth.duplicate) == (5, False)
        assert len({receipt.key for receipt in (first, second, third, fourth)}) == 4


class TestCopies:
    """Nothing that a caller holds is part of the store."""

    def test_e10_changing_what_was_passed_in_changes_nothing(self, chat: tape.Tape) -> None:
        """Dicts and lists may be changed after the call that took them."""
        message: dict[str, Any] = {"id": "m", "role": "user", "content": [{"type": "text", "text": "x"}]}
        state, data, meta, steps = {"n": [1]}, {"n": [1]}, {"n": [1]}, ["go"]
        kept = copy.deepcopy(message)
        chat.append(message, meta=meta)
        batch: list[dict[str, Any]] = [{"id": "b", "content": [1]}]
        chat.extend(batch)
        chat.anchor("a", state, meta=meta)
        chat.handoff("h", summary="s", state=state, next_steps=steps)
        chat.event("e", data)
        revised: dict[str, Any] = {"role": "user", "content": [2]}
        chat.revise("m", revised)
        before = json.dumps([_shown(chat), [chat.at(seq).messages()[0].to_dict() for seq in (2, 4)]])
        message["content"][0]["text"] = "changed"
        message["more"] = 1
        batch[0]["content"].append(2)
        batch.append({"content": "more"})
        for held in (state, data, meta):
            held["n"].append(2)
        steps.append("stop")
        revised["content"].append(3)
        assert json.dumps([_shown(chat), [chat.at(seq).messages()[0].to_dict() for seq in (2, 4)]]) == before
        assert chat.at(2).message("m").to_dict() == kept
        assert chat.verify().ok

    def test_e10_changing_what_was_read_changes_nothing(self, store: tape.Store) -> None:
        """Whatever a read gave may be changed: the next read gives the same as the first."""
        chat = store.create("chat", labels=["a"], meta={"n": [1]}, messages=[{"id": "m", "content": [1]}])
        chat.anchor("a", {"n": [1]}, meta={"n": [1]})
        before = json.dumps(_shown(chat))
        message = chat.message("m")
        message.content.append(2)
        message.data["more"] = 1
        chat.messages()[0].data.clear()
        message.to_dict()["content"].append(3)
        chat.anchors()[0].state["n"].append(2)
        info = chat.info()
        info.labels.append("b")
        assert info.meta is not None
        info.meta["n"].append(2)
        for entry in chat.entries():
            if entry.meta is not None:
                entry.meta.clear()
            if entry.kind == "append":
                entry.payload.message["content"] = "changed"  # type: ignore[union-attr]
        context = chat.context()
        context.messages.clear()
        assert json.dumps(_shown(chat)) == before
        assert chat.verify().ok

    def test_e10_receipts_entries_and_messages_are_frozen(self, chat: tape.Tape) -> None:
        """The fields of what the store hands out cannot be set."""
        receipt = chat.append(id="m", role="user", content="x")
        given: list[Any] = [receipt, chat.message("m"), next(chat.entries()), chat.info(), chat.verify()]
        for value in given:
            field = value.__struct_fields__[0]
            with pytest.raises(AttributeError):
                setattr(value, field, "other")


def _shown(chat: tape.Tape) -> Any:
    info = chat.info()
    return [
        [message.to_dict() for message in chat.messages()],
        [(anchor.name, anchor.state, anchor.next_steps) for anchor in chat.anchors()],
        [(entry.kind, entry.meta, repr(entry.payload)) for entry in chat.entries()],
        [info.labels, info.meta],
        chat.context().to_openai(),
    ]


def exact(value: Any) -> str:
    """Return a text that is equal only for values equal in type, in every digit and in the order of keys."""
    return json.dumps(value, ensure_ascii=True)


FIXED: list[Any] = [
    "",
    " ",
    "plain",
    "ünïcödé",
    "東京 🗼 👩‍👩‍👧‍👦",
    "\u0000\u0001\u001f",
    "\u2028\u2029\ufeff\uffff",
    "e\u0301 é",
    "a\r\nb\tc",
    '"quoted" \\ back / slash',
    "</script><!-- -->",
    "%s %(x)s {} ${x} ?",
    "'; DROP TABLE tape_entries; --",
    "x" * 100_000,
    0,
    -0.0,
    0.0,
    1,
    1.0,
    True,
    False,
    None,
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    2**64,
    10**100,
    -(10**400),
    0.1,
    1e-7,
    1e22,
    1e308,
    5e-324,
    1.7976931348623157e308,
    123456789.123456789,
    [],
    {},
    [[]],
    [{}],
    {"": ""},
    {"a": None},
    {"z": 1, "a": 2, "m": {"y": 1, "b": 2}},
    {"__proto__": {"x": 1}, "constructor": 1, "toString": 2},
    {"id": "inner", "role": "inner", "content": None},
    {"\u0000": 1, "é": 2, "e\u0301": 3, " ": 4},
    [None, True, 1, 1.0, "1", [], {}],
    [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def one_tape(standing: Backend) -> Iterator[tape.Tape]:
    """One tape for every example."""
    with standing.open(durability="normal") as store:
        yield store.tape("round trip")


class TestRoundTrip:
    """What comes back equals what went in."""

    @pytest.mark.alike
    @pytest.mark.parametrize("value", FIXED, ids=lambda value: repr(value)[:20])
    def test_e15_fixed_values_come_back(self, one_tape: tape.Tape, value: Any) -> None:
        """Unicode, big integers, floats, empty strings, nulls, key order and odd keys are kept exactly."""
        self._holds(one_tape, value)

    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(value=JSON)
    def test_e15_any_json_comes_back(self, one_tape: tape.Tape, value: Any) -> None:
        """Whatever JSON a program can hold is kept exactly, wherever it is given."""
        self._holds(one_tape, value)

    def _holds(self, chat: tape.Tape, value: Any) -> None:
        message = {"role": "user", "content": value, "more": value, "nested": [{"deep": value}]}
        receipt = chat.append(message, meta={"value": value})
        found = chat.messages(limit=1)[0]
        assert found.id == receipt.message_id
        assert exact(found.to_dict()) == exact(message)
        assert exact([found.content, found.more]) == exact([value, value])
        [entry] = chat.entries(after=receipt.seq - 1)
        assert exact(entry.meta) == exact({"value": value})
        chat.anchor("a", value)
        assert exact(chat.anchors(limit=1)[0].state) == exact(value)
        chat.event("e", value)
        [event] = chat.entries(after=receipt.seq + 1)
        assert exact(event.payload.data) == exact(value)  # type: ignore[union-attr]
        assert receipt.message_id is not None
        chat.revise(receipt.message_id, content=[value])
        assert exact(chat.message(receipt.message_id).content) == exact([value])

    def test_e15_a_message_is_what_was_given_and_nothing_more(self, chat: tape.Tape) -> None:
        """Messages without role or content come back without; a given id is kept, a made one is not put in.

        Only the attribute ``role`` tells more: who says an item of the Responses API, which has none.
        """
        shapes: list[dict[str, Any]] = [
            {"type": "function_call_output", "call_id": "c", "output": "x"},
            {"parts": [{"type": "text", "text": "x"}], "id": "own-id"},
            {"role": "assistant"},
            {"content": None},
            {"content": "x", "id": None},
            {},
        ]
        for shape in shapes:
            receipt = chat.append(shape)
            assert receipt.message_id is not None
            found = chat.message(receipt.message_id)
            assert exact(found.to_dict()) == exact(shape)
            implied = "tool" if shape.get("type") == "function_call_output" else None
            assert (found.role, found.content) == (shape.get("role", implied), shape.get("content"))

    def test_e15_names_and_texts_come_back(self, store: tape.Store) -> None:
        """Names, reasons, labels, actors and summaries are kept as they are, also what looks like SQL."""
        odd = "'; --  %s ☃ \" \\ é"
        chat = store.create(odd, name=odd, owner=odd, agent=odd, labels=[odd, "b"], meta={odd: odd})
        chat.append(id=odd, role=odd, content=odd, key=f"k{odd}", actor=odd)
        chat.handoff(odd, summary=odd, phase=odd, next_steps=[odd], source_ids=[odd], owner=odd)
        chat.end(odd)
        info = store.get(odd).info()
        assert (info.id, info.name, info.owner, info.agent, info.reason) == (odd,) * 5
        assert (info.labels, info.meta) == ([odd, "b"], {odd: odd})
        message = chat.message(odd)
        assert (message.id, message.role, message.content) == (odd, odd, odd)
        [anchor] = chat.anchors()
        assert (anchor.name, anchor.summary, anchor.phase, anchor.owner) == (odd,) * 4
        assert (anchor.next_steps, anchor.source_ids) == ([odd], [odd])
        assert store.verify().ok

    def test_e15_both_engines_give_the_same(self, backend: Backend) -> None:
        """The same history reads the same, field by field, as one written to a database in memory."""
        with history.counting_ids(), tape.open(":memory:", clock=history.counting_clock()) as memory:
            history.write(memory)
            expected = {name: history.describe(memory, name) for name in history.TAPES}
        with history.counting_ids():
            store = backend.open(clock=history.counting_clock())
            history.write(store)
        assert {name: history.describe(store, name) for name in history.TAPES} == expected
