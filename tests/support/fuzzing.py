"""Forged files: exports of random families in which something was changed, with every hash made to fit again.

    python tests/support/fuzzing.py SEED COUNT URL [SCHEMA]

imports COUNT of them into a store. Each is refused with an error of the library, or read in every way afterwards. It
runs in a process of its own, so that a call that never ends can be ended: a watchdog kills it, and tells where it was.
"""

from __future__ import annotations

import copy
import faulthandler
import io
import itertools
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw

import tape
from tape.core.entries import chain
from tape.core.entries.payloads import KINDS, Place
from tape.core.transfer import export_format

__all__ = ["families", "forge", "main"]

BOUND = 10.0
"""Seconds that a call on a tape or a file may take: a thousand times what it does, for the machine may be busy."""
BOUND_OF_ALL = 60.0
"""Seconds that a call on all tapes of the store may take."""
TOGETHER = 60
"""How many accepted files a store holds before all of it is looked at and the next store is begun."""
JUNK: list[Any] = [None, True, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**70, 1.5, "", "x", "~", "\0", "~m:a", [], {}, [[1]]]
JUNK += [[0, 0], [2, 1], [2, 1, "fuzz-0"], "fuzz-0", "fuzz-1", "0" * 64, {"a": 1}, "a" * 300]
PREFIX = b"fuzz-"
SALT = bytes(chain.SALT_SIZE)


# -- what there is to forge


def families(seed: int, count: int, steps: int) -> list[bytes]:
    """Return exports of random families, each with most of what a tape can hold."""
    found = []
    for number in range(count):
        chance = random.Random(seed * 1_000 + number)
        with tape.open(":memory:") as store:
            names = [store.create("fuzz-0", labels=["l"], name="n", meta={"m": 1}).id]
            for _ in range(steps):
                try:
                    _step(chance, store, names)
                except tape.TapeError:
                    continue
            out = io.BytesIO()
            store.export("fuzz-0", out, family=True)
            found.append(out.getvalue())
    return found


def _step(chance: random.Random, store: tape.Store, names: list[str]) -> None:
    chat = store.get(chance.choice(names))
    known = [message.id for message in chat.messages()] or ["nobody"]
    one, pick = chance.choice(known), chance.randrange(4)
    call = {"id": f"c{pick}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ways: list[Callable[[], Any]] = [
        lambda: chat.append({"id": f"m{chance.randrange(10**6)}", "role": "user", "content": "words to find"}),
        lambda: chat.append({"role": "user", "content": "words"}),
        lambda: chat.append({"role": "user", "content": "branch"}, parent=one),
        lambda: chat.append({"role": "user", "content": "keyed"}, key=f"k{chance.randrange(10**6)}"),
        lambda: chat.append({"role": "assistant", "content": "call", "tool_calls": [call]}),
        lambda: chat.append({"role": "tool", "tool_call_id": f"c{pick}", "content": "answer"}),
        lambda: chat.revise(one, content=f"revised {chance.random()}"),
        lambda: chat.revise(one, content="again"),
        lambda: chat.retract(one),
        lambda: chat.restore(chance.choice(names)) if pick == 0 else _bring_back(chance, chat),
        lambda: chat.clear() if pick < 2 else chat.restore(),
        lambda: chat.restore(),
        lambda: chat.switch(one),
        lambda: chat.anchor(f"a{pick}", {"n": pick}, source_ids=[one]),
        lambda: chat.handoff(f"h{pick}", summary="s", source_ids=[one]),
        lambda: _summarise(chance, chat, known),
        lambda: chat.put(f"s{pick}", pick),
        lambda: chat.patch(f"s{pick}", {"a": pick}),
        lambda: chat.set_block(f"b{pick}", "text", max_tokens=100),
        lambda: chat.append_block(f"b{pick}", "more"),
        lambda: chat.refresh_prompt(),
        lambda: chat.record_usage(input_tokens=pick, cost=1),
        lambda: chat.event("score", pick),
        lambda: chat.context(record=True),
        lambda: chat.label(f"l{pick}"),
        lambda: chat.rename(f"n{pick}"),
        lambda: chat.complete() if pick == 0 else chat.reopen(),
        lambda: _branch(chance, store, chat, names),
        lambda: _branch(chance, store, chat, names),
        lambda: _branch(chance, store, chat, names),
    ]
    chance.choice(ways)()


def _bring_back(chance: random.Random, chat: tape.Tape) -> None:
    gone = [entry.payload.ids for entry in chat.entries(kinds=["retract"])]  # type: ignore[union-attr]
    chat.restore(*chance.choice(gone or [["nobody"]]))


def _summarise(chance: random.Random, chat: tape.Tape, known: list[str]) -> None:
    first, last = sorted(chance.choices(range(len(known)), k=2))
    before = chat.summary()
    chat.set_summary("s", first=known[first], last=known[last], expected=None if before is None else before.seq)


def _branch(chance: random.Random, store: tape.Store, chat: tape.Tape, names: list[str]) -> None:
    if len(names) < 4 and chance.random() < 0.6:
        at = chance.choice([None, None, chance.randint(0, chat.info().head)])
        names.append(chat.fork(f"fuzz-{len(names)}", at=at).id)
        return
    parent = chat.info().parent
    if parent is None:
        return
    if chance.random() < 0.2:
        chat.discard("d")
    else:
        strategy = chance.choice(["replay", "replay", "squash", "link"])
        more: dict[str, Any] = {"summary": "s"} if strategy == "squash" else {}
        store.get(parent).merge(chat, strategy=strategy, on_conflict="theirs", **more)


# -- changing it

Family = dict[str, list[dict[str, Any]]]
"""The entries of each tape of a file, with payload and meta as values."""


def _parsed(raw: bytes) -> Family:
    found: Family = {}
    for text in raw.splitlines()[:-1]:
        line = msgspec.json.decode(text)
        if "format" in line:
            entries = found[line["tape"]] = []
        else:
            entries.append(line)
    return found


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all that is in a value, containers too."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += _leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += _leaves(item, (*path, index))
    return found


def _holder(value: Any, path: tuple[Any, ...]) -> Any:
    for part in path[:-1]:
        value = value[part]
    return value


def forge(chance: random.Random, family: Family) -> list[str]:
    """Change a family in one to three ways; returns what was done."""
    done = []
    for _ in range(chance.choice([1, 1, 1, 2, 2, 3])):
        how = chance.choice(_WAYS)
        done.append(how.__name__)
        how(chance, family)
        for name in [name for name, entries in family.items() if not entries]:
            del family[name]
        if not family:
            break
    if chance.random() < 0.9:
        _smooth(family)
    return done


def _smooth(family: Family) -> None:
    """Make good what is refused at a glance, so that the lies behind it are looked at."""
    for entries in family.values():
        for before, entry in itertools.pairwise(entries):
            if type(entry["stamp"]) is int and type(before["stamp"]) is int:
                entry["stamp"] = max(entry["stamp"], before["stamp"])
            if entry["kind"] not in ("append", "switch", "open"):
                entry["head"] = list(before["head"])


def _entry(chance: random.Random, family: Family) -> dict[str, Any]:
    return chance.choice(chance.choice(list(family.values())))


def _number(chance: random.Random, family: Family) -> None:
    """Change a number that an entry names: most often to another that is near, or that is there."""
    for _ in range(20):
        entry = _entry(chance, family)
        paths = [path for path in _leaves(entry["payload"]) if type(_at(entry["payload"], path)) is int]
        if paths:
            path = chance.choice(paths)
            holder = _holder(entry["payload"], path)
            old = holder[path[-1]]
            near = [old - 1, old + 1, 0, entry["seq"], entry["seq"] - 1, chance.randint(0, 40), -1, 2**63, 2**70]
            holder[path[-1]] = chance.choice(near)
            return


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    return _holder(value, path)[path[-1]]


def _value(chance: random.Random, family: Family) -> None:
    """Put something else in a place of a payload."""
    entry = _entry(chance, family)
    paths = _leaves(entry["payload"])
    if paths:
        path = chance.choice(paths)
        _holder(entry["payload"], path)[path[-1]] = copy.deepcopy(chance.choice(JUNK))


def _borrow(chance: random.Random, family: Family) -> None:
    """Put what another entry says of something in the place of what this one says of it."""
    entry, other = _entry(chance, family), _entry(chance, family)
    for _ in range(20):
        if entry is not other and entry["kind"] == other["kind"]:
            break
        other = _entry(chance, family)
    named = [name for name in other["payload"] if name in entry["payload"] or chance.random() < 0.3]
    if named:
        name = chance.choice(named)
        entry["payload"][name] = copy.deepcopy(other["payload"][name])


def _drop_field(chance: random.Random, family: Family) -> None:
    entry = _entry(chance, family)
    if entry["payload"]:
        del entry["payload"][chance.choice(list(entry["payload"]))]


def _list(chance: random.Random, family: Family) -> None:
    """Repeat, take out or add an element of a list."""
    for _ in range(20):
        entry = _entry(chance, family)
        paths = [path for path in _leaves(entry["payload"]) if isinstance(_at(entry["payload"], path), list)]
        if paths:
            found = _at(entry["payload"], chance.choice(paths))
            way = chance.randrange(3)
            if way == 0 and found:
                found.append(copy.deepcopy(chance.choice(found)))
            elif way == 1 and found:
                found.pop(chance.randrange(len(found)))
            else:
                found.append(copy.deepcopy(chance.choice(JUNK)))
            return


def _head(chance: random.Random, family: Family) -> None:
    """Let an entry leave the head elsewhere."""
    entry = _entry(chance, family)
    part = chance.randrange(3)
    if chance.random() < 0.3:
        entry["head"] = copy.deepcopy(_entry(chance, family)["head"])
    elif part == 2:
        entry["head"][2] = chance.choice([None, *family, "nobody"])
    else:
        entry["head"][part] = chance.choice([0, 1, entry["seq"], entry["head"][part] + 1, chance.randint(0, 40)])


def _header(chance: random.Random, family: Family) -> None:
    """Change what stands beside the payload."""
    entry, other = _entry(chance, family), _entry(chance, family)
    name = chance.choice(["key", "actor", "source", "stamp", "version", "kind", "meta"])
    if name == "kind":
        entry["kind"] = chance.choice(KINDS)
    elif chance.random() < 0.5:
        entry[name] = copy.deepcopy(other[name])
    else:
        entry[name] = copy.deepcopy(chance.choice(JUNK))


def _take_out(chance: random.Random, family: Family) -> None:
    entries = chance.choice(list(family.values()))
    entries.pop(chance.randrange(len(entries)))


def _repeat(chance: random.Random, family: Family) -> None:
    entries = chance.choice(list(family.values()))
    again = copy.deepcopy(chance.choice(entries))
    if chance.random() < 0.7:
        again["key"] = f"again-{chance.randrange(10**6)}"
    entries.insert(chance.randint(1, len(entries)), again)


def _swap(chance: random.Random, family: Family) -> None:
    entries = chance.choice(list(family.values()))
    one, other = chance.randrange(len(entries)), chance.randrange(len(entries))
    entries[one], entries[other] = entries[other], entries[one]


def _cut(chance: random.Random, family: Family) -> None:
    entries = chance.choice(list(family.values()))
    del entries[chance.randint(1, len(entries)) :]


def _tape(chance: random.Random, family: Family) -> None:
    """Take a tape out of the file, or put it in another place."""
    name = chance.choice(list(family))
    entries = family.pop(name)
    if chance.random() < 0.5:
        family[name] = entries


def _name(chance: random.Random, family: Family) -> None:
    """Let a payload name another tape or message."""
    for _ in range(20):
        entry = _entry(chance, family)
        paths = [path for path in _leaves(entry["payload"]) if type(_at(entry["payload"], path)) is str]
        if paths:
            path = chance.choice(paths)
            ids = [one["payload"].get("id") for one in chance.choice(list(family.values())) if "id" in one["payload"]]
            _holder(entry["payload"], path)[path[-1]] = chance.choice([*family, *ids, "nobody"])
            return


def _invent(chance: random.Random, family: Family) -> None:
    """Put in an entry that nobody recorded."""
    name = chance.choice(list(family))
    entries = family[name]
    at = chance.randint(1, len(entries))

    def place() -> list[Any]:
        where = [] if chance.random() < 0.7 else [chance.choice(list(family))]
        return [chance.randint(0, 12), chance.randint(0, 12), *where]

    def seq() -> int:
        return chance.choice([at + 1, at, chance.randint(0, at + 2)])

    def back() -> list[Any]:
        more: list[list[Any]] = [[], [seq()], [0, chance.choice(list(family))]]
        return [place(), seq(), seq(), *chance.choice(more)]

    made_up: list[tuple[str, dict[str, Any]]] = [
        ("append", {"id": "new", "message": {"role": "user"}, "base": place()}),
        ("append", {"id": "new", "message": {}, "answers": [["c0", place()]], "calls": ["c0"]}),
        ("retract", {"ids": ["m"], "places": [place()], "hides": [place()]}),
        ("restore", {"ids": ["m"], "shows": [back()], "marks": [back()]}),
        ("restore", {"ids": [], "undoes": seq(), "returned": chance.randint(-1, 3), "beneath": seq()}),
        ("revise", {"id": "m", "message": {}, "place": place(), "placed": seq(), "supersedes": seq()}),
        ("switch", {"id": "m", "lo": chance.randint(0, 3), "tip": True}),
        ("clear", {}),
        ("usage", {"input_tokens": 1, "totals": chance.choice([[], [1], [1, 0, 0, 0, 1], ["x"]])}),
        ("anchor", {"name": "a", "parents": [seq()], "source_ids": ["m"]}),
        ("compact", {"text": "t", "first": "m", "last": "n", "covers": ["m"], "place": place(), "lo": 1}),
        ("event", {"name": "tape.context", "data": chance.choice(JUNK)}),
        ("event", {"name": "tape.context", "data": {"included": [["x", 1, 2**70]], "anchor": 5, "prompt": []}}),
        ("event", {"name": "tape.compaction", "data": {"state": "started", "deadline": "x"}}),
        ("fork", {"child": chance.choice(list(family)), "at": seq(), "head": place()}),
        ("merge", {"tape": chance.choice(list(family)), "seq": seq(), "hash": "0" * 64, "strategy": "link"}),
        (
            "merge",
            {
                "tape": chance.choice(list(family)),
                "seq": seq(),
                "hash": "0" * 64,
                "strategy": "link",
                "into": True,
                "previous": seq(),
            },
        ),
        ("discard", {"tape": chance.choice(list(family)), "seq": seq(), "hash": "0" * 64}),
        ("status", {"status": "completed", "redirect": name}),
        ("block", {"label": "b", "op": "set", "text": None, "max_tokens": 0}),
        ("state", {"slot": "s", "schema": -1, "value": 1}),
        ("label", {"labels": ["l", "l"]}),
        ("erase", {"digest": "zz"}),
    ]
    kind, payload = chance.choice(made_up)
    head = entries[at - 1]["head"]
    if kind == "append":
        base = payload.get("base", [0, 0])
        deeper = base[1] + 1
        head = chance.choice([[at + 1, deeper, None], [at + 1, deeper, None], [head[0], 1, None], [0, 1, None]])
    elif kind == "switch":
        head = chance.choice([chance.choice(entries)["head"], [*place(), None][:3]])
    made = {**copy.deepcopy(entries[at - 1]), "kind": kind, "payload": payload, "head": list(head), "meta": None}
    made["key"] = "~m:new" if kind == "append" else f"new-{chance.randrange(10**6)}"
    entries.insert(at, made)


_WAYS = [
    _number,
    _number,
    _number,
    _value,
    _borrow,
    _borrow,
    _drop_field,
    _list,
    _list,
    _head,
    _head,
    _header,
    _take_out,
]
_WAYS += [_repeat, _swap, _cut, _tape, _name, _name, _invent, _invent, _invent, _invent]


# -- making the hashes fit


class _Sealer:
    """Gives every entry its hash anew, in the order in which they cite each other."""

    def __init__(self, family: Family, *, mend: bool) -> None:
        self._family = family
        self._mend = mend
        self._hashes: dict[str, list[bytes]] = {name: [] for name in family}
        self._open: set[str] = set()
        self.lines: dict[str, list[export_format.EntryLine]] = {name: [] for name in family}

    def until(self, name: str, seq: int) -> str | None:
        """Return the hash of an entry, if it can be known by now."""
        found = self._hashes[name]
        while len(found) < seq and name not in self._open:
            self._open.add(name)
            self._seal(name, len(found))
            self._open.discard(name)
        return found[seq - 1].hex() if 0 < seq <= len(found) else None

    def _cite(self, cited: Any) -> None:
        if not isinstance(cited, dict) or not self._mend:
            return
        name, seq = cited.get("tape"), cited.get("seq")
        if isinstance(name, str) and name in self._family and type(seq) is int and seq <= len(self._family[name]):
            cited["hash"] = self.until(name, seq) or cited.get("hash")

    def _seal(self, name: str, index: int) -> None:
        entry, seq = self._family[name][index], index + 1
        if isinstance(entry["payload"], dict):
            self._cite(entry["payload"] if entry["kind"] in ("merge", "discard") else entry["payload"].get("parent"))
        payload = msgspec.json.encode(entry["payload"])
        meta = None if entry["meta"] is None else msgspec.json.encode(entry["meta"])
        before = self._hashes[name][-1] if index else chain.ZERO
        head = entry["head"]
        # What stands in a forged entry may be of any type.
        seal: Any = chain.link
        hash: bytes = seal(
            before,
            chain.commit(SALT, payload, meta),
            name,
            seq,
            *(entry[field] for field in ("kind", "key", "actor", "source")),
            entry["stamp"],
            entry["version"],
            Place(*head),
        )
        self._hashes[name].append(hash)
        fields = (seq, entry["kind"], entry["key"], entry["actor"], entry["source"], entry["stamp"], entry["version"])
        raw = Raw(b"null" if meta is None else meta)
        self.lines[name].append(
            export_format.EntryLine(*fields, tuple(head), hash.hex(), SALT.hex(), raw, Raw(payload))
        )


def sealed(family: Family, *, mend: bool = True) -> bytes:
    """Return a family as a file whose hashes, counts and digest fit."""
    sealer = _Sealer(family, mend=mend)
    out, digest = io.BytesIO(), blake2b(digest_size=32)
    total = 0
    for name, entries in family.items():
        last = sealer.until(name, len(entries))
        total += len(entries)
        for line in (export_format.TapeLine(name, len(entries), last or "", export_format.FORMAT), *sealer.lines[name]):
            raw = export_format.encode(line) + b"\n"
            digest.update(raw)
            out.write(raw)
    out.write(export_format.encode(export_format.End(len(family), total, digest.hexdigest())) + b"\n")
    return out.getvalue()


# -- reading what was accepted


class Watch:
    """Bounds every call: one that does not end kills the process, one that took too long fails."""

    def __init__(self) -> None:
        self.bound = BOUND
        self.longest = 0.0
        self.calls = 0
        self._began: float | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(0.5)
            began = self._began
            if began is not None and time.monotonic() - began > 2 * self.bound:
                print(f"a call did not end within {2 * self.bound:.0f} seconds", flush=True)
                faulthandler.dump_traceback(sys.stdout.fileno(), all_threads=True)
                os._exit(1)

    def __call__(self, work: Callable[[], Any], *expected: type[BaseException]) -> Any:
        """Run a call that may raise nothing but what is expected."""
        self._began = began = time.monotonic()
        try:
            return work()
        except expected:
            return None
        finally:
            took, self._began = time.monotonic() - began, None
            self.calls += 1
            self.longest = max(self.longest, took)
            if took > self.bound:
                raise AssertionError(f"a call took {took:.1f} seconds")


def read_all(watch: Watch, store: tape.Store, name: str) -> None:
    """Read a tape in every way there is; what holds of every sound tape must hold."""
    chat = store.get(name)
    info = watch(chat.info)
    shown = watch(chat.messages)
    watch(lambda: chat.messages(limit=2))
    watch(lambda: chat.context())
    watch(lambda: chat.context(budget=500), tape.BudgetExceeded)
    for read in (chat.heads, chat.anchors, chat.summaries, chat.summary, chat.states, chat.blocks, chat.usage):
        watch(read)
    watch(chat.lineage)
    entries = watch(lambda: list(chat.entries()))
    assert [entry.seq for entry in entries] == list(range(1, info.head + 1))
    for message in shown[-2:]:
        assert watch(partial(chat.message, message.id)) == message
        watch(partial(chat.children, message.id))
        watch(partial(chat.messages, after=message.id, limit=2))
    for seq in {1, info.head // 2}:
        past = chat.at(seq)
        watch(past.messages)
        watch(past.context)
    for entry in entries:
        if entry.kind == "event":
            watch(partial(chat.recall, entry.seq), tape.InvalidEntry, tape.Corrupt)
    watch(lambda: chat.diff(1, info.head))
    watch(lambda: chat.search("words"))
    watch(lambda: store.export(name, io.BytesIO()))


def write_on(watch: Watch, store: tape.Store, name: str) -> None:
    """Write to a tape, which must go on as every other, unless it is closed."""
    chat = store.get(name)
    shown = watch(chat.messages)
    if shown:
        last = shown[-1].id
        watch(lambda: chat.revise(last, content="written after the import"), tape.TapeClosed)
        watch(lambda: chat.retract(last), tape.TapeClosed)
        # It may be hidden with a call that it answers.
        watch(lambda: chat.restore(last), tape.TapeClosed, tape.InvalidEntry)
    watch(lambda: chat.append(role="user", content="more"), tape.TapeClosed)
    watch(lambda: chat.fork(f"{name}-probe"))


def look_at_all(watch: Watch, store: tape.Store) -> None:
    """Do what concerns all tapes of a store."""
    watch.bound = BOUND_OF_ALL
    never = datetime(2100, 1, 1, tzinfo=UTC)
    cursor: str | None = None
    while True:
        page = watch(partial(store.list, limit=500, cursor=cursor))
        cursor = page.cursor
        if cursor is None:
            break
    watch(lambda: store.retain(older_than=never, dry_run=True))
    watch(lambda: list(store.feed()))
    watch(lambda: store.search("words"))
    watch(store.stats)
    watch(store.rebuild)
    report = watch(store.verify)
    assert report.ok, report.problems[:5]
    watch.bound = BOUND


class Run:
    """Imports of many forged files."""

    def __init__(self, seed: int, url: str, schema: str | None) -> None:
        self._seed = seed
        self._url = url
        self._options: dict[str, Any] = {} if schema is None else {"schema": schema}
        self._sources = families(seed, 10, 45)
        self._store: tape.Store | None = None
        self.watch, self.told, self.why = Watch(), Counter[str](), Counter[str]()

    def one(self, number: int) -> None:
        """Forge one file and import it."""
        chance = random.Random(self._seed * 1_000_003 + number)
        family = _parsed(chance.choice(self._sources).replace(PREFIX, b"f%d-" % number))
        done = forge(chance, family)
        try:
            raw = sealed(family, mend=chance.random() < 0.9)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
            # No file can hold it.
            self.told["unwritable"] += 1
            return
        self._store = self._store or tape.open(self._url, durability="normal", **self._options)
        try:
            self._take(self._store, raw)
        except BaseException:
            print(f"seed {self._seed} file {number}: {' '.join(done)}\n{raw.decode()}", flush=True)
            raise

    def _take(self, store: tape.Store, raw: bytes) -> None:
        watch = self.watch
        try:
            names = watch(lambda: store.import_(io.BytesIO(raw))).tapes
        except tape.TapeError as error:
            self.told["refused"] += 1
            self.why[f"{type(error).__name__}: {getattr(error, 'why', error)}"[:60]] += 1
            return
        self.told["accepted"] += 1
        for name in names:
            read_all(watch, store, name)
        write_on(watch, store, names[-1])
        report = watch(lambda: [one for name in names for one in store.verify(name).problems])
        assert report == [], report
        watch(lambda: [store.rebuild(name) for name in names])
        if self.told["accepted"] % TOGETHER == 0:
            # A store in memory is another one each time, or looking at all of it would take longer and longer.
            self.close()

    def close(self) -> None:
        """Look at all that is stored, and let go of it."""
        if self._store is not None:
            look_at_all(self.watch, self._store)
            self._store.close()
            self._store = None


def main(seed: int, count: int, url: str, schema: str | None = None) -> None:
    """Import that many forged files."""
    began = time.monotonic()
    run = Run(seed, url, schema)
    for number in range(count):
        run.one(number)
    run.close()
    calls = f"{run.watch.calls} calls, the longest {run.watch.longest:.2f} s"
    print(f"seed {seed}: {dict(run.told)}, {calls}, {time.monotonic() - began:.1f} s in all")
    for text, times in run.why.most_common(12):
        print(f"{times:6} {text}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
