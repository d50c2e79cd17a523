"""Every tape can be moved: the export of what was imported is the file that it came from."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import history
from support.backends import Backend
from support.damage import Tamperer
from support.exports import exported
from support.filling import filled
from support.sizes import heavy, size
from test_verify import rehash

import tape
from tape.core.entries import payloads as p

DATA = Path(__file__).parent / "data"
_numbers = itertools.count(1)


def moved(store: tape.Store, target: tape.Store, id: str, *, family: bool = False) -> None:
    """Export, import, export: the same bytes, and a store that verifies."""
    raw = exported(store, id, family=family)
    target.import_(io.BytesIO(raw))
    assert exported(target, id, family=family) == raw
    assert [one for name in json_tapes(raw) for one in target.verify(name).problems] == []


def json_tapes(raw: bytes) -> list[str]:
    """Return the tapes of a file."""
    return [json.loads(line)["tape"] for line in raw.splitlines() if line.startswith(b'{"tape":')]


# -- 2: every tape that can be written can be moved

HOSTILE: list[Any] = [
    *(None, True, False, 0, -1, -5, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**70), 10**300, 0.5, -1e300, ""),
    *("x", "\0", "東京", "\u202e", "~m:x", [], {}, [None], [[-1]], {"tape": "x", "seq": -1}, {"": {"a": [2**80]}}),
    *(["other", 5], [2, 1], [2, 1, "other"], {"lane": -1, "ordinal": -1}, {"seq": 2**70, "gone": -1}),
]


class TestEveryTape:
    """Export, import, export is the same file, whatever callers put on a tape."""

    @pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:30])
    @pytest.mark.alike
    def test_what_callers_give_is_never_read_as_a_number_of_the_tape(
        self, guest: tape.Store, elsewhere: tape.Store, value: Any
    ) -> None:
        """An event, a slot, an anchor, a message and meta may hold any JSON, and the tape can still be moved."""
        chat = guest.create(f"given-{next(_numbers)}", meta={"given": value})
        chat.append({"role": "user", "content": value, "given": value}, id="m", meta={"given": value})
        chat.event("score", value)
        chat.put("slot", value)
        chat.patch("patched", {"a": value})
        chat.patch("slot", value)
        chat.anchor("mark", value)
        chat.handoff("hand", summary="s", state=value)
        chat.revise("m", content=[value])
        fork = chat.fork()
        fork.put("slot", [value])
        fork.revise("m", content={"again": value})
        chat.merge(fork)
        for one in (chat, fork):
            for family in (False, True):
                moved(guest, elsewhere, one.id, family=family)

    def test_a_tape_of_every_kind_can_be_moved(self, backend: Backend, elsewhere_of: Callable[[], tape.Store]) -> None:
        """A history in which every kind of entry occurs moves with every fork of it, each alone and all together."""
        store = filled(backend, history.write_all)
        chat = store.get("chat")
        chat.context(record=True)
        chat.fork("linked").append(role="user", content="x")
        chat.merge("linked", strategy="link")
        chat.label("a", remove=["travel"])
        chat.rename(None)
        store.split("plan" if store.get("plan").info().status == "active" else "chat", summary="On we go.")
        kinds = {entry.kind for info in store.list(limit=100) for entry in store.get(info.id).entries()}
        assert kinds == set(p.KINDS) - {"erase"}
        for family in (False, True):
            target = elsewhere_of()
            for info in store.list(limit=100):
                moved(store, target, info.id, family=family)
            assert target.verify().problems == []

    def test_a_fork_of_a_fork_from_before_its_beginning_can_be_moved(
        self, guest: tape.Store, elsewhere: tape.Store
    ) -> None:
        """A fork made at seq 0 of a fork inherits nothing at all, and moves so."""
        chat = guest.create("zero", messages=[{"role": "user", "content": "x"}])
        under = chat.fork("zero-fork").fork("zero-under", at=0)
        under.append(role="user", content="y")
        for family in (False, True):
            moved(guest, elsewhere, "zero-under", family=family)
        assert [message.content for message in elsewhere.get("zero-under").messages()] == ["y"]

    def test_usage_beyond_64_bits_can_be_moved(self, guest: tape.Store, elsewhere: tape.Store) -> None:
        """Counts stay within the payload and may be of any size, on a tape and through a merge."""
        chat = guest.create("much")
        chat.record_usage(input_tokens=2**70, cost=2**80)
        fork = chat.fork("much-fork")
        fork.record_usage(output_tokens=2**90)
        chat.merge(fork)
        moved(guest, elsewhere, "much", family=True)
        assert elsewhere.get("much").usage() == guest.get("much").usage()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.one_of(st.sampled_from(HOSTILE), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
VERBS = (
    *("append", "append", "branch", "call", "answer", "upsert", "revise", "retract", "restore", "undo", "clear"),
    *("switch", "anchor", "handoff", "summary", "put", "patch", "block", "line", "unblock", "freeze", "usage", "event"),
    *("fork", "fork", "merge", "squash", "link", "discard", "label", "rename", "close", "reopen", "history", "record"),
)
steps = st.tuples(st.sampled_from(VERBS), st.integers(0, 5), st.integers(0, 9), values)


def step(store: tape.Store, names: list[str], verb: str, which: int, pick: int, value: Any) -> None:
    """Do one thing to one tape of a family; what the store refuses changes nothing."""
    chat = store.get(names[which % len(names)])
    known = [entry.payload.id for entry in chat.entries(kinds=["append"]) if isinstance(entry.payload, p.Append)]
    known += [message.id for message in chat.messages()]
    one = known[-1 - pick % len(known)] if known else "nobody"
    other = known[-1 - (pick + which) % len(known)] if known else "nobody"
    call = {"id": f"c{pick % 3}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    match verb:
        case "append":
            chat.append({"role": "user", "content": value})
        case "branch":
            chat.append({"role": "user", "content": value}, parent=one, key=f"k{pick}")
        case "call":
            chat.append({"role": "assistant", "content": value, "tool_calls": [call]})
        case "answer":
            chat.append({"role": "tool", "tool_call_id": f"c{pick % 3}", "content": value})
        case "upsert":
            chat.upsert({"id": one if pick % 2 else f"u{pick}", "role": "user", "content": value})
        case "revise":
            chat.revise(one, content=value)
        case "retract":
            chat.retract(one, other, reason="r")
        case "restore":
            chat.restore(one)
        case "undo":
            chat.restore()
        case "clear":
            chat.clear()
        case "switch":
            chat.switch(one)
        case "anchor":
            chat.anchor(f"a{pick}", value, source_ids=[one] if known and pick % 2 else [])
        case "handoff":
            chat.handoff(f"h{pick}", summary="s", state=value, source_ids=[one] if known else [])
        case "summary":
            before = chat.summary()
            chat.set_summary("s", first=one, last=other, expected=None if before is None else before.seq)
        case "put":
            chat.put(f"s{pick % 2}", value)
        case "patch":
            chat.patch(f"s{pick % 2}", value)
        case "block":
            chat.set_block(f"b{pick % 2}", str(value).replace("\0", ""), max_tokens=10_000 if pick else None)
        case "line":
            chat.append_block(f"b{pick % 2}", str(pick))
        case "unblock":
            chat.remove_block(f"b{pick % 2}")
        case "freeze":
            chat.refresh_prompt()
        case "usage":
            chat.record_usage(input_tokens=pick, cost=2 ** (10 * pick))
        case "event":
            chat.event(f"e{pick}", value)
        case "fork":
            if len(names) < 6:
                at: Any = (None, None, 0, 1, chat.info().head // 2, one)[pick % 6]
                names.append(chat.fork(f"{names[0]}-{len(names)}", at=at, name="n").id)
        case "merge" | "squash" | "link":
            strategy = {"merge": "replay"}.get(verb, verb)
            parent = chat.info().parent
            if parent is not None:
                more: dict[str, Any] = {"summary": "s"} if verb == "squash" else {}
                store.get(parent).merge(chat, strategy=strategy, on_conflict="theirs", **more)
        case "discard":
            chat.discard("d")
        case "label":
            chat.label(f"l{pick}", remove=[f"l{which}"])
        case "rename":
            chat.rename(str(pick))
        case "close":
            chat.complete()
        case "reopen":
            chat.reopen()
        case "history":
            chat.replace_history([{"id": one, "role": "user", "content": value}])
        case "record":
            chat.context(record=True)


@heavy
@settings(
    max_examples=size(5, 50),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(done=st.lists(steps, min_size=1, max_size=40))
def test_export_import_export_is_the_same_for_every_tape(
    guest: tape.Store, elsewhere: tape.Store, done: list[tuple[str, int, int, Any]]
) -> None:
    """Whatever was written, with forks and merges: the export of what was imported is the file that was imported."""
    names = [guest.create(f"any-{next(_numbers)}").id]
    for one in done:
        try:
            step(guest, names, *one)
        except tape.TapeError:
            continue
    for name in names:
        moved(guest, elsewhere, name)
    moved(guest, elsewhere, names[0], family=True)


# -- 24: no false alarm


class TestWentOn:
    """Tapes that were imported and then went on another way than where they came from."""

    def test_a_merged_fork_whose_parent_goes_on_here_is_sound(
        self, backend: Backend, elsewhere_of: Callable[[], tape.Store]
    ) -> None:
        """The parent came only up to the fork; what is written to it here is not what the merge cites, and no fault."""
        store, target, third = backend.open(), elsewhere_of(), elsewhere_of()
        chat = store.create("chat", messages=[{"role": "user", "content": "x"}])
        fork = chat.fork("fork")
        fork.append(role="user", content="y")
        chat.merge(fork)
        raw = exported(store, "fork")
        target.import_(io.BytesIO(raw))
        for number in range(5):
            target.get("chat").append(role="user", content=f"here {number}")
        assert target.verify().problems == []
        # What was imported so moves on, also as a family; and a longer file still extends the fork.
        moved(target, third, "fork", family=True)
        assert third.verify().problems == []
        fork.append(role="user", content="more")
        chat.merge(fork)
        target.import_(io.BytesIO(exported(store, "fork")))
        assert target.verify().problems == []
        target.get("chat").merge("fork")
        assert target.verify().problems == []

    def test_a_parent_whose_fork_is_another_tape_here_is_sound(
        self, backend: Backend, elsewhere_of: Callable[[], tape.Store]
    ) -> None:
        """A parent imported without its forks may meet a tape of the same id that has nothing to do with it."""
        store, target = backend.open(), elsewhere_of()
        chat = store.create("chat")
        for name in ("fork", "gone"):
            chat.fork(name).append(role="user", content="y")
        chat.merge("fork")
        store.get("gone").discard()
        target.import_(io.BytesIO(exported(store, "chat")))
        for name in ("fork", "gone"):
            target.create(name, messages=[{"role": "user", "content": f"{n}"} for n in range(5)])
        assert target.verify().problems == []

    def test_a_recomputed_parent_is_still_found(self, backend: Backend, elsewhere_of: Callable[[], tape.Store]) -> None:
        """In an imported family, too, a chain that was recomputed contradicts what the fork cites of the merge."""
        store = elsewhere_of()
        chat = store.create("chat", messages=[{"role": "user", "content": "x"}])
        fork = chat.fork("fork")
        fork.append(role="user", content="y")
        chat.event("score", 1)
        chat.merge(fork)
        target = backend.open()
        target.import_(io.BytesIO(exported(store, "chat", family=True)))
        tamperer = Tamperer(backend)
        number = tamperer.tape_id("chat")
        row = tamperer.entry(number, 4)
        assert row["payload"].endswith(b'"data":1}')
        tamperer.update("tape_entries", row, {"payload": row["payload"].replace(b"1}", b"2}")})
        rehash(tamperer, "chat", 4)
        tamperer.close()
        target.rebuild("chat")
        (problem,) = target.verify().problems
        assert (problem.tape, "of tape 'chat' with a different hash" in problem.what) == ("fork", True)
