"""Promises of moving and checking: every tape can be moved, no forged file gets in, and no damage goes unnoticed."""

from __future__ import annotations

import io
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import history
from support.backends import Backend, MakeBackend
from support.damage import Tamperer, contents
from support.forging import ROOT, Line, file, forged, opening
from test_verify import rehash

import tape
from tape.core.entries import payloads as p
from tape.core.entries.payloads import Answer, Layer, Place, Reopened
from tape.db.schema.tables import Tables
from tape.transcripts import import_transcript

DATA = Path(__file__).parent / "data"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def elsewhere(
    standing: Backend, make_backend: MakeBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tape.Store]:
    """Another store on the same engine, for tests whose tapes have ids of their own."""
    with make_backend(standing.name, tmp_path_factory.mktemp("elsewhere")) as made:
        yield made.open(durability="normal")


def exported(store: tape.Store, id: str, *, family: bool = False) -> bytes:
    out = io.BytesIO()
    store.export(id, out, family=family)
    return out.getvalue()


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
        store = backend.open()
        history.write(store)
        history.branch(store)
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

    def test_a_kept_store_of_the_first_revision_can_be_moved(self, tmp_path: Path) -> None:
        """What an old release wrote exports, imports and exports as the same file."""
        shutil.copy(DATA / "store-0001.db", tmp_path / "old.db")
        with tape.open(tmp_path / "old.db") as store, tape.open(":memory:") as target:
            for info in store.list():
                moved(store, target, info.id)

    def test_usage_beyond_64_bits_can_be_moved(self, guest: tape.Store, elsewhere: tape.Store) -> None:
        """Counts stay within the payload and may be of any size, on a tape and through a merge."""
        chat = guest.create("much")
        chat.record_usage(input_tokens=2**70, cost=2**80)
        fork = chat.fork("much-fork")
        fork.record_usage(output_tokens=2**90)
        chat.merge(fork)
        moved(guest, elsewhere, "much", family=True)
        assert elsewhere.get("much").usage() == guest.get("much").usage()


@pytest.fixture
def elsewhere_of(backend: Backend, make_backend: MakeBackend, tmp_path: Path) -> Iterator[Callable[[], tape.Store]]:
    """Return what opens fresh stores on the engine of a test."""
    with ExitStack() as made:

        def open() -> tape.Store:
            return made.enter_context(make_backend(backend.name, tmp_path)).open(durability="normal")

        yield open


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


@settings(
    max_examples=40,
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
    "an erasure of nothing": ([p.Erase(digest="0" * 64)], [AT]),
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


def refused(store: tape.Store, *tapes: list[Line]) -> tape.ImportFailed:
    """Return the refusal of a forged file."""
    with pytest.raises(tape.ImportFailed) as caught:
        store.import_(file(*tapes))
    return caught.value


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
            payload = p.decode(line["kind"], 1, json.dumps(line["payload"]).encode())
            if isinstance(payload, p.Merge) and not payload.into:
                payload.hash = "0" * 64
            payloads, heads, keys = tapes[name]
            payloads.append(payload)
            heads.append(tuple(line["head"]))
            keys.append(line["key"])
        made = [forged(one, *parts[0], heads=parts[1], keys=parts[2]) for one, parts in tapes.items()]
        # The parent's hashes are as they were, so that the fork's first entry still fits.
        assert "cites another seq" in refused(elsewhere, *made).why

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


class TestDamagedLanes:
    """A database in which a lane branches off from itself, as no import can make one any more."""

    @pytest.mark.parametrize("base", [(2, 1), (2, 3), (2, 10)])
    def test_no_read_follows_a_circle(self, backend: Backend, base: tuple[int, int]) -> None:
        """Every read of a tape with a circle ends, with an answer or with Corrupt, and verify names the lane."""
        store = backend.open()
        chat = store.create("chat", messages=[{"id": f"m{n}", "role": "user", "content": "x"} for n in range(5)])
        chat.append({"id": "b", "role": "user", "content": "y"}, parent="m2")
        fork = chat.fork("fork")
        fork.append(role="user", content="z")
        tamperer = Tamperer(backend)
        tamperer.run("UPDATE tape_lanes SET base_lane = ?, base_ordinal = ? WHERE lane = 2", *base)
        tamperer.close()
        reads: list[Callable[[], Any]] = []
        for one in (chat, fork):
            reads += [one.messages, one.context, one.heads, one.summaries, one.anchors]
            reads += [partial(one.children, "m0"), partial(one.search, "x"), partial(one.messages, limit=2)]
            reads += [partial(one.messages, after="m0", limit=2), one.at(one.info().head - 1).messages]
        for read in reads:
            within(5, read)
        assert {problem.what[:20] for problem in store.verify("chat").problems} == {"a row of tape_lanes "}
        store.rebuild()
        assert store.verify().ok

    def test_no_read_follows_a_circle_of_forks(self, backend: Backend) -> None:
        """Lineage, export, retention and purge end also where damage made a tape its own fork."""
        store = backend.open()
        chat = store.create("chat")
        fork = chat.fork("fork")
        tamperer = Tamperer(backend)
        tamperer.run("UPDATE tape_forks SET parent_id = tape_id")
        tamperer.close()
        for read in (
            fork.lineage,
            chat.lineage,
            lambda: exported(store, "fork", family=True),
            lambda: store.retain(older_than=datetime(2100, 1, 1, tzinfo=UTC)),
        ):
            within(5, read)
        assert not store.verify().ok


def within(seconds: float, work: Callable[[], Any]) -> None:
    """Run something that must end soon, with an answer or with an error of the library."""
    done: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            done.append(None)
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert done, f"{work} did not end within {seconds} seconds"
    assert done[0] is None or isinstance(done[0], tape.TapeError), done[0]


# -- 7: a transcript is not grafted on a tape that no transcript made


class TestTranscripts:
    """Ids in a transcript are chosen by whoever wrote it."""

    def _session(self, folder: Path, session: str, *, agent: str | None = None) -> Path:
        """Write a small log of Claude Code."""
        record: dict[str, Any] = {"type": "user", "uuid": "u1", "parentUuid": None, "sessionId": session}
        record |= {"timestamp": "2026-01-01T00:00:00Z", "message": {"role": "user", "content": "Obey me."}}
        record["isSidechain"] = agent is not None
        if agent is not None:
            record["agentId"] = agent
        path = folder / "log.jsonl"
        path.write_text(json.dumps(record) + "\n")
        return path

    def test_a_session_with_the_id_of_another_tape_is_refused(self, backend: Backend, tmp_path: Path) -> None:
        """A transcript whose session has the id of a tape that no transcript made leaves that tape as it is."""
        store = backend.open()
        chat = store.create("chat-1", messages=[{"role": "user", "content": "mine"}])
        kept = contents(backend)
        for agent in (None, "helper"):
            with pytest.raises(tape.ImportFailed, match="'chat-1'"):
                import_transcript(store, "claude-code", self._session(tmp_path, "chat-1", agent=agent))
        assert contents(backend) == kept
        assert [message.content for message in chat.messages()] == ["mine"]

    def test_a_side_conversation_with_the_id_of_another_tape_is_refused(self, backend: Backend, tmp_path: Path) -> None:
        """The tape of a subagent is not grafted on another tape either."""
        store = backend.open()
        import_transcript(store, "claude-code", self._session(tmp_path, "s"))
        store.create("s/agent-helper", messages=[{"role": "user", "content": "mine"}])
        with pytest.raises(tape.ImportFailed, match="'s/agent-helper'"):
            import_transcript(store, "claude-code", self._session(tmp_path, "s", agent="helper"))
        assert [message.content for message in store.get("s/agent-helper").messages()] == ["mine"]

    def test_a_session_of_another_format_is_refused(self, backend: Backend, tmp_path: Path) -> None:
        """A session's tape is continued only by transcripts of the format that made it."""
        store = backend.open()
        import_transcript(store, "claude-code", self._session(tmp_path, "s"))
        path = tmp_path / "rollout.jsonl"
        record = {"type": "session_meta", "payload": {"id": "s"}, "timestamp": "2026-01-01T00:00:00Z"}
        path.write_text(json.dumps(record))
        with pytest.raises(tape.ImportFailed, match="'s'"):
            import_transcript(store, "codex", path)

    def test_a_session_is_imported_again_and_onto_a_tape_that_is_named(self, backend: Backend, tmp_path: Path) -> None:
        """A session's own tape is continued, and a tape that the caller names is written to, whatever it is."""
        store = backend.open()
        path = self._session(tmp_path, "s")
        assert [one.added for one in import_transcript(store, "claude-code", path)] == [1]
        assert [one.known for one in import_transcript(store, "claude-code", path)] == [1]
        side = self._session(tmp_path, "s", agent="helper")
        assert [one.tape for one in import_transcript(store, "claude-code", side)] == ["s/agent-helper"]
        assert [one.known for one in import_transcript(store, "claude-code", side)] == [1]
        store.create("mine")
        path = self._session(tmp_path, "s")
        assert [one.tape for one in import_transcript(store, "claude-code", path, tape="mine")] == ["mine"]


# -- 23: verify names all that is wrong, also beside the tapes

OWNED = sorted(table.name for table in Tables("sqlite").metadata.sorted_tables if "tape_id" in table.c)


class TestUnnoticed:
    """Damage that no tape's own check can see."""

    @pytest.fixture
    def hurt(self, backend: Backend) -> Iterator[tuple[tape.Store, Tamperer]]:
        """A store with a rich history, a purged tape and a full index, and someone with all rights on it."""
        store = backend.open(durability="normal")
        history.write(store)
        history.branch(store)
        store.create("away", owner="ann", messages=[{"role": "user", "content": "gone"}])
        store.purge("away")
        store.search("trip")
        assert store.verify().problems == []
        tamperer = Tamperer(backend)
        yield store, tamperer
        tamperer.close()

    @pytest.mark.parametrize("name", ["plan", "chat", "under"])
    def test_a_tape_whose_row_is_gone_is_named(self, hurt: tuple[tape.Store, Tamperer], name: str) -> None:
        """Entries that belong to no tape are a problem of the store, with the number that is left of their tape."""
        store, tamperer = hurt
        number = tamperer.tape_id(name)
        tamperer.run("DELETE FROM tape_tapes WHERE tape = ?", name)
        found = {problem.what.split()[0] for problem in store.verify().problems if problem.tape == f"~{number}"}
        assert {"tape_entries", "tape_heads", "a"} <= found

    @pytest.mark.parametrize("table", OWNED)
    def test_a_row_of_no_tape_is_named_in_any_table(self, hurt: tuple[tape.Store, Tamperer], table: str) -> None:
        """A row under a number that no tape has is found, whatever table it is in."""
        store, tamperer = hurt
        if table == "tape_arrivals":
            row = {k: v for k, v in tamperer.entry(tamperer.tape_id("chat"), 2).items() if k not in ("position", "xid")}
        elif table == "tape_imports":
            row = {"tape_id": 0, "seq": 1}
        else:
            row = dict(zip(tamperer.columns(table), tamperer.run(f"SELECT * FROM {table} LIMIT 1")[0], strict=True))
        row["tape_id"] = 4_711
        if table == "tape_texts":
            row["position"] = 4_711
        tamperer.insert(table, row)
        (problem,) = store.verify().problems
        assert (problem.tape, table in problem.what) == ("~4711", True)
        if table in {one.name for one in Tables("sqlite").view} | {"tape_texts"}:
            store.rebuild()
            assert store.verify().problems == []

    @pytest.mark.parametrize("table", ["tape_live", "tape_slots", "tape_entries", "tape_labels", "tape_texts"])
    def test_a_row_of_a_purged_tape_is_named(self, hurt: tuple[tape.Store, Tamperer], table: str) -> None:
        """Of a purged tape only the tombstone is left; anything else is found."""
        store, tamperer = hurt
        row = dict(zip(tamperer.columns(table), tamperer.run(f"SELECT * FROM {table} LIMIT 1")[0], strict=True))
        row["tape_id"] = number = tamperer.tape_id("away")
        if table == "tape_texts":
            row["position"] = 4_711
        tamperer.insert(table, row)
        (problem,) = store.verify().problems
        assert (problem.tape, table in problem.what, "purged" in problem.what) == (f"~{number}", True, True)

    @pytest.mark.parametrize("column", ["tape", "owner", "seq", "hash", "stamp", "emptied"])
    def test_a_changed_tombstone_is_named(self, hurt: tuple[tape.Store, Tamperer], column: str) -> None:
        """Whatever a tombstone says is said elsewhere as well, and must be the same."""
        store, tamperer = hurt
        value = {"tape": "other", "owner": "bob", "seq": 7, "hash": b"x" * 32, "stamp": 7, "emptied": 3}[column]
        tamperer.run(f"UPDATE tape_tombstones SET {column} = ?", value)
        assert store.verify().problems[0].tape == ("other" if column == "tape" else "away")

    @pytest.mark.parametrize(
        "change",
        [
            "DELETE FROM tape_tombstones",
            "DELETE FROM tape_heads WHERE tape_id = (SELECT id FROM tape_tapes WHERE tape = 'away')",
            "DELETE FROM tape_entries WHERE tape_id = (SELECT id FROM tape_tapes WHERE tape = 'away')",
            "UPDATE tape_tapes SET status = 'active' WHERE tape = 'away'",
            "UPDATE tape_tapes SET status = 'purged' WHERE tape = 'plan'",
        ],
        ids=["tombstone", "head", "entry", "raised", "buried"],
    )
    def test_a_purge_that_is_not_whole_is_named(self, hurt: tuple[tape.Store, Tamperer], change: str) -> None:
        """A purged tape without its tombstone, head or last entry is found, as is one that looks purged or not."""
        store, tamperer = hurt
        tamperer.run(change)
        assert ("plan" if "plan" in change else "away") in {problem.tape for problem in store.verify().problems}

    def test_an_owner_is_told_of_own_tombstones_only(self, hurt: tuple[tape.Store, Tamperer]) -> None:
        """A store of one owner finds what is wrong with that owner's purged tapes, and nothing of others."""
        store, tamperer = hurt
        tamperer.run("UPDATE tape_tombstones SET seq = 7")
        assert [problem.tape for problem in store.scoped("ann").verify().problems] == ["away"]
        assert store.scoped("bob").verify().problems == []

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ("DELETE FROM tape_texts WHERE tape_id = {} AND seq = 2", "lacks the text of the entry"),
            ("UPDATE tape_texts SET ordinal = 77 WHERE tape_id = {} AND seq = 2", "holds another text than the entry"),
            ("UPDATE tape_texts SET lane = 77 WHERE tape_id = {} AND seq = 2", "holds another text than the entry"),
            ("UPDATE tape_texts SET origin = 77 WHERE tape_id = {} AND seq = 2", "holds another text than the entry"),
            ("UPDATE tape_texts SET seq = 1 WHERE tape_id = {} AND seq = 2", "holds a text that is not on the tape"),
        ],
        ids=["missing", "depth", "lane", "origin", "added"],
    )
    def test_a_wrong_row_of_the_search_index_is_named(
        self, hurt: tuple[tape.Store, Tamperer], change: str, says: str
    ) -> None:
        """A text that is missing, elsewhere or too many is found, of one tape too, and a rebuild of all mends it."""
        store, tamperer = hurt
        tamperer.run(change.format(tamperer.tape_id("plan")))
        for report in (store.verify(), store.verify("plan")):
            assert f"the search index {says}" in [problem.what for problem in report.problems]
            assert {problem.tape for problem in report.problems} <= {"plan", ""}
        store.rebuild()
        store.search("trip")
        assert store.verify().problems == []

    @pytest.mark.parametrize("change", ["missing", "added", "changed"])
    def test_wrong_words_of_the_search_index_are_named(
        self, hurt: tuple[tape.Store, Tamperer], backend: Backend, change: str
    ) -> None:
        """Words that are missing, too many or others are found by cutting the texts into words again."""
        store, tamperer = hurt
        number = tamperer.tape_id("plan")
        [(position,)] = tamperer.run("SELECT position FROM tape_texts WHERE tape_id = ? AND seq = 2", number)
        if backend.postgres:
            words = {"missing": "''", "added": "words || 'bogus'::tsvector", "changed": "'bogus'"}[change]
            tamperer.run(f"UPDATE tape_texts SET words = {words} WHERE position = ?", position)
        else:
            if change != "added":
                found = tamperer.run("SELECT count(*) FROM tape_words WHERE tape_words MATCH 'another'")
                assert found == [(1,)]
                delete = "INSERT INTO tape_words(tape_words, rowid, words) VALUES ('delete', ?, 'another')"
                tamperer.run(delete, position)
            if change != "missing":
                tamperer.run("INSERT INTO tape_words(rowid, words) VALUES (?, 'bogus')", position)
        found = [(problem.tape, problem.seq, problem.what) for problem in store.verify().problems]
        assert found == [("plan", 2, "the search index holds another text than the entry")]
        store.rebuild()
        assert store.verify().problems == []

    def test_an_index_that_is_behind_or_not_there_is_no_problem(self, backend: Backend) -> None:
        """What was not searched yet is not indexed yet, and that is no damage."""
        store = backend.open()
        chat = store.create("chat", messages=[{"role": "user", "content": "one"}])
        assert store.verify().problems == []
        store.search("one")
        chat.append(role="user", content="two")
        assert store.verify().problems == []

    def test_an_import_under_way_is_no_problem(self, backend: Backend, elsewhere_of: Callable[[], tape.Store]) -> None:
        """The hidden tapes of an import that is being written, or that died, are not taken for damage."""
        store, target = backend.open(), elsewhere_of()
        store.create("long", messages=[{"role": "user", "content": f"{n}"} for n in range(2_500)])
        raw = exported(store, "long")
        found: list[tape.Report] = []

        def look(done: int, total: int) -> None:
            if done > 0.9 * total:
                found.append(target.verify())

        target.import_(io.BytesIO(raw), progress=look)
        assert (len(found) > 0, [report.problems for report in found if not report.ok]) == (True, [])
        assert target.verify().problems == []


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
        assert (problem.tape, "cites another seq" in problem.what) == ("fork", True)
